// Convolutions of images, directly: a sum per result, over a range [first, end) of its terms, added to what is there if
// beta is 1. Unsigned coordinates: left of or above the image they wrap to large numbers. CS, YS, XS are the distances of
// channels, rows and columns: the layout. LOADS gives `load_a(i)` and `load_b(i)` for the two factors.

struct Params {
    first: u32, end: u32,
    n: u32, c: u32, h: u32, w: u32, co: u32, kh: u32, kw: u32, ho: u32, wo: u32,
    sh: u32, sw: u32, pt: u32, pl: u32, dh: u32, dw: u32, group: u32,
    beta: {{ACC}},
}

{{LOADS}}
@group(0) @binding(2) var<storage, read_write> r: array<{{ACC}}>;
@group(0) @binding(3) var<uniform> p: Params;

var<workgroup> tree: array<{{ACC}}, {{ITEMS}}>;

fn cs(nc: u32, nh: u32, nw: u32) -> u32 {
    return {{CS}};
}

fn ys(nc: u32, nh: u32, nw: u32) -> u32 {
    return {{YS}};
}

fn xs(nc: u32, nh: u32, nw: u32) -> u32 {
    return {{XS}};
}

fn put(i: u32, s: {{ACC}}) {
    if (p.beta == {{ACC}}(0)) {
        r[i] = s;
    } else {
        r[i] += s;
    }
}

// x, filters -> y. The padding is zeros that are multiplied like other numbers. Terms: channel, kernel row, column.
@compute @workgroup_size({{ITEMS}})
fn conv2d(
    @builtin(workgroup_id) number: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) local: u32,
) {
    let i = (number.y * groups.x + number.x) * {{ITEMS}}u + local;
    if (i >= p.n * p.co * p.ho * p.wo) {
        return;
    }
    let cg = p.c / p.group;
    let filt = i / cs(p.co, p.ho, p.wo) % p.co;
    let y0 = i / ys(p.co, p.ho, p.wo) % p.ho * p.sh - p.pt;
    let x0 = i / xs(p.co, p.ho, p.wo) % p.wo * p.sw - p.pl;
    let image = i / (p.co * p.ho * p.wo) * (p.c * p.h * p.w) + filt / (p.co / p.group) * cg * cs(p.c, p.h, p.w);
    let weights = filt * (cg * p.kh * p.kw);
    var kx = p.first % p.kw;
    var ky = p.first / p.kw % p.kh;
    var j = p.first / (p.kw * p.kh);
    var s = {{ACC}}(0);
    for (var t = p.first; t < p.end; t++) {
        let row = y0 + ky * p.dh;
        let column = x0 + kx * p.dw;
        var v = {{ACC}}(0);
        if (row < p.h && column < p.w) {
            v = load_a(image + j * cs(p.c, p.h, p.w) + row * ys(p.c, p.h, p.w) + column * xs(p.c, p.h, p.w));
        }
        s += v * load_b(weights + j * cs(cg, p.kh, p.kw) + ky * ys(cg, p.kh, p.kw) + kx * xs(cg, p.kh, p.kw));
        kx++;
        if (kx == p.kw) {
            kx = 0u;
            ky++;
            if (ky == p.kh) {
                ky = 0u;
                j++;
            }
        }
    }
    put(i, s);
}

// g, filters -> dx: gathers from the results that an element took part in. Terms: filter, kernel row, column.
@compute @workgroup_size({{ITEMS}})
fn conv2d_bwd_data(
    @builtin(workgroup_id) number: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) local: u32,
) {
    let i = (number.y * groups.x + number.x) * {{ITEMS}}u + local;
    if (i >= p.n * p.c * p.h * p.w) {
        return;
    }
    let cg = p.c / p.group;
    let channel = i / cs(p.c, p.h, p.w) % p.c;
    let row = i / ys(p.c, p.h, p.w) % p.h + p.pt;
    let column = i / xs(p.c, p.h, p.w) % p.w + p.pl;
    let start = channel / cg * (p.co / p.group);
    let image = i / (p.c * p.h * p.w) * (p.co * p.ho * p.wo) + start * cs(p.co, p.ho, p.wo);
    let size = cg * p.kh * p.kw;
    let weights = start * size + channel % cg * cs(cg, p.kh, p.kw);
    var kx = p.first % p.kw;
    var ky = p.first / p.kw % p.kh;
    var j = p.first / (p.kw * p.kh);
    var s = {{ACC}}(0);
    for (var t = p.first; t < p.end; t++) {
        let y0 = row - ky * p.dh;
        let x0 = column - kx * p.dw;
        let oy = y0 / p.sh;
        let ox = x0 / p.sw;
        if (row >= ky * p.dh && column >= kx * p.dw && oy * p.sh == y0 && ox * p.sw == x0 && oy < p.ho && ox < p.wo) {
            s += load_a(image + j * cs(p.co, p.ho, p.wo) + oy * ys(p.co, p.ho, p.wo) + ox * xs(p.co, p.ho, p.wo))
                * load_b(weights + j * size + ky * ys(cg, p.kh, p.kw) + kx * xs(cg, p.kh, p.kw));
        }
        kx++;
        if (kx == p.kw) {
            kx = 0u;
            ky++;
            if (ky == p.kh) {
                ky = 0u;
                j++;
            }
        }
    }
    put(i, s);
}

// g, x -> the filters' gradient: a group per element, for there are few elements and many terms (image, row, column).
@compute @workgroup_size({{ITEMS}})
fn conv2d_bwd_weight(
    @builtin(workgroup_id) number: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) local: u32,
) {
    let cg = p.c / p.group;
    let size = cg * p.kh * p.kw;
    let i = number.y * groups.x + number.x;
    // Groups behind the last element add nothing and store nothing.
    let live = i < p.co * size;
    let end = select(p.first, p.end, live);
    let filt = i / size;
    let channel = filt / (p.co / p.group) * cg + i / cs(cg, p.kh, p.kw) % cg;
    let y0 = i / ys(cg, p.kh, p.kw) % p.kh * p.dh - p.pt;
    let x0 = i / xs(cg, p.kh, p.kw) % p.kw * p.dw - p.pl;
    let pixels = p.ho * p.wo;
    var s = {{ACC}}(0);
    for (var t = p.first + local; t < end; t += {{ITEMS}}u) {
        let image = t / pixels;
        let oy = t % pixels / p.wo;
        let ox = t % pixels % p.wo;
        let row = y0 + oy * p.sh;
        let column = x0 + ox * p.sw;
        var v = {{ACC}}(0);
        if (row < p.h && column < p.w) {
            v = load_b(image * (p.c * p.h * p.w) + channel * cs(p.c, p.h, p.w) + row * ys(p.c, p.h, p.w)
                + column * xs(p.c, p.h, p.w));
        }
        s += v * load_a(image * (p.co * pixels) + filt * cs(p.co, p.ho, p.wo) + oy * ys(p.co, p.ho, p.wo)
            + ox * xs(p.co, p.ho, p.wo));
    }
    tree[local] = s;
    workgroupBarrier();
    for (var width = {{ITEMS}}u / 2u; width > 0u; width /= 2u) {
        if (local < width) {
            tree[local] += tree[local + width];
        }
        workgroupBarrier();
    }
    if (local == 0u && live) {
        put(i, tree[0]);
    }
}
