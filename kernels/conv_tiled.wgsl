// Convolutions as products of filters, gathered tile by tile (implicit im2col): FORM is `y`, filters by pixels of an image,
// `dx`, channels by pixels where strides are 1, or `df`, filters by their elements over all images. Tiles of 64 by 64, 16 deep,
// as in matmul.wgsl; a range [first, end) of the terms, added to what is there if beta is 1. Parameters, layouts and
// coordinates are those of conv.wgsl.

struct Params {
    first: u32, end: u32,
    n: u32, c: u32, h: u32, w: u32, co: u32, kh: u32, kw: u32, ho: u32, wo: u32,
    sh: u32, sw: u32, pt: u32, pl: u32, dh: u32, dw: u32, group: u32,
    beta: {{ACC}},
}

{{LOADS}}
@group(0) @binding(2) var<storage, read_write> r: array<{{ACC}}>;
@group(0) @binding(3) var<uniform> p: Params;

// Element (depth, 4 rows) and (depth, 4 columns).
var<workgroup> tile_a: array<vec4<{{ACC}}>, 256>;
var<workgroup> tile_b: array<vec4<{{ACC}}>, 256>;

// Channels and filters of a group; the number of this group's problem.
var<private> cg: u32;
var<private> og: u32;
var<private> batch: u32;

fn cs(nc: u32, nh: u32, nw: u32) -> u32 {
    return {{CS}};
}

fn ys(nc: u32, nh: u32, nw: u32) -> u32 {
    return {{YS}};
}

fn xs(nc: u32, nh: u32, nw: u32) -> u32 {
    return {{XS}};
}

// Where element (channel, row, column) of a tensor like x or like y lies.
fn in_x(image: u32, channel: u32, row: u32, column: u32) -> u32 {
    return image * (p.c * p.h * p.w) + channel * cs(p.c, p.h, p.w) + row * ys(p.c, p.h, p.w) + column * xs(p.c, p.h, p.w);
}

fn in_y(image: u32, filt: u32, pixel: u32) -> u32 {
    return image * (p.co * p.ho * p.wo) + filt * cs(p.co, p.ho, p.wo) + pixel / p.wo * ys(p.co, p.ho, p.wo)
        + pixel % p.wo * xs(p.co, p.ho, p.wo);
}

// The coordinates of x that element `e` of a filter meets for a pixel of y, and its channel.
fn met(e: u32, pixel: u32) -> vec3<u32> {
    let row = pixel / p.wo * p.sh - p.pt + e / ys(cg, p.kh, p.kw) % p.kh * p.dh;
    let column = pixel % p.wo * p.sw - p.pl + e / xs(cg, p.kh, p.kw) % p.kw * p.dw;
    return vec3<u32>(row, column, e / cs(cg, p.kh, p.kw) % cg);
}

// Terms of y: elements of a filter. Problems: images and their filter groups.
fn a_of_y(row: u32, t: u32) -> {{ACC}} {
    if (row < og && t < p.end) {
        return load_b((batch % p.group * og + row) * (cg * p.kh * p.kw) + t);
    }
    return {{ACC}}(0);
}

fn b_of_y(t: u32, pixel: u32) -> {{ACC}} {
    let at = met(t, pixel);
    if (t < p.end && pixel < p.ho * p.wo && at.x < p.h && at.y < p.w) {
        return load_a(in_x(batch / p.group, batch % p.group * cg + at.z, at.x, at.y));
    }
    return {{ACC}}(0);
}

fn rows_of_y() -> u32 {
    return og;
}

fn columns_of_y() -> u32 {
    return p.ho * p.wo;
}

fn problems_of_y() -> u32 {
    return p.n * p.group;
}

fn sum_of_y(row: u32, pixel: u32, v: {{ACC}}) -> {{ACC}} {
    return v;
}

fn place_of_y(row: u32, pixel: u32) -> u32 {
    return in_y(batch / p.group, batch % p.group * og + row, pixel);
}

// Terms of dx: filters, then their rows and columns. Problems: images and their filter groups.
fn a_of_dx(row: u32, t: u32) -> {{ACC}} {
    if (row < cg && t < p.end) {
        let filt = batch % p.group * og + t / (p.kh * p.kw);
        return load_b(filt * (cg * p.kh * p.kw) + row * cs(cg, p.kh, p.kw) + t / p.kw % p.kh * ys(cg, p.kh, p.kw)
            + t % p.kw * xs(cg, p.kh, p.kw));
    }
    return {{ACC}}(0);
}

// The row and column of the result that a pixel took part in by a term; too large where there is none.
fn taken(t: u32, pixel: u32) -> vec2<u32> {
    return vec2<u32>(pixel / p.w + p.pt - t / p.kw % p.kh * p.dh, pixel % p.w + p.pl - t % p.kw * p.dw);
}

fn b_of_dx(t: u32, pixel: u32) -> {{ACC}} {
    let at = taken(t, pixel);
    if (t < p.end && pixel < p.h * p.w && at.x < p.ho && at.y < p.wo) {
        return load_a(in_y(batch / p.group, batch % p.group * og + t / (p.kh * p.kw), at.x * p.wo + at.y));
    }
    return {{ACC}}(0);
}

fn is_nan_sum(v: {{ACC}}) -> bool {
    return {{IS_NAN}};
}

// A sum that is NaN perhaps for a filter's infinity by a 0 that stands for no result: that of the real terms.
fn sum_of_dx(row: u32, pixel: u32, v: {{ACC}}) -> {{ACC}} {
    if (!is_nan_sum(v)) {
        return v;
    }
    var s = {{ACC}}(0);
    for (var t = p.first; t < p.end; t++) {
        let at = taken(t, pixel);
        if (at.x < p.ho && at.y < p.wo) {
            s += a_of_dx(row, t) * b_of_dx(t, pixel);
        }
    }
    return s;
}

fn rows_of_dx() -> u32 {
    return cg;
}

fn columns_of_dx() -> u32 {
    return p.h * p.w;
}

fn problems_of_dx() -> u32 {
    return p.n * p.group;
}

fn place_of_dx(row: u32, pixel: u32) -> u32 {
    return in_x(batch / p.group, batch % p.group * cg + row, pixel / p.w, pixel % p.w);
}

// Terms of df: pixels of all images. Problems: filter groups.
fn a_of_df(row: u32, t: u32) -> {{ACC}} {
    if (row < og && t < p.end) {
        return load_a(in_y(t / (p.ho * p.wo), batch * og + row, t % (p.ho * p.wo)));
    }
    return {{ACC}}(0);
}

fn b_of_df(t: u32, element: u32) -> {{ACC}} {
    let at = met(element, t % (p.ho * p.wo));
    if (t < p.end && element < cg * p.kh * p.kw && at.x < p.h && at.y < p.w) {
        return load_b(in_x(t / (p.ho * p.wo), batch * cg + at.z, at.x, at.y));
    }
    return {{ACC}}(0);
}

fn rows_of_df() -> u32 {
    return og;
}

fn columns_of_df() -> u32 {
    return cg * p.kh * p.kw;
}

fn problems_of_df() -> u32 {
    return p.group;
}

fn sum_of_df(row: u32, element: u32, v: {{ACC}}) -> {{ACC}} {
    return v;
}

fn place_of_df(row: u32, element: u32) -> u32 {
    return (batch * og + row) * (cg * p.kh * p.kw) + element;
}

fn put4(row: u32, column: u32, v: vec4<{{ACC}}>) {
    for (var i = 0u; i < 4u; i++) {
        if (row < rows_of_{{FORM}}() && column + i < columns_of_{{FORM}}()) {
            let at = place_of_{{FORM}}(row, column + i);
            let sum = sum_of_{{FORM}}(row, column + i, v[i]);
            if (p.beta == {{ACC}}(0)) {
                r[at] = sum;
            } else {
                r[at] += sum;
            }
        }
    }
}

@compute @workgroup_size(256)
fn conv_product(
    @builtin(workgroup_id) number: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) local: u32,
) {
    cg = p.c / p.group;
    og = p.co / p.group;
    let across = (columns_of_{{FORM}}() + 63u) / 64u;
    let tiles = across * ((rows_of_{{FORM}}() + 63u) / 64u);
    let flat = number.y * groups.x + number.x;
    batch = flat / tiles;
    let tile = flat % tiles;
    // Groups behind the last problem multiply nothing and store nothing.
    let live = batch < problems_of_{{FORM}}();
    let end = select(p.first, p.end, live);
    let row0 = (tile / across) * 64u;
    let column0 = (tile % across) * 64u;
    let tx = local % 16u;
    let ty = local / 16u;
    var acc0 = vec4<{{ACC}}>({{ACC}}(0));
    var acc1 = acc0;
    var acc2 = acc0;
    var acc3 = acc0;
    for (var k0 = p.first; k0 < end; k0 += 16u) {
        let ra = row0 + ty * 4u;
        let ka = k0 + tx;
        tile_a[tx * 16u + ty] = vec4<{{ACC}}>(
            a_of_{{FORM}}(ra, ka), a_of_{{FORM}}(ra + 1u, ka), a_of_{{FORM}}(ra + 2u, ka), a_of_{{FORM}}(ra + 3u, ka));
        let cb = column0 + tx * 4u;
        let kb = k0 + ty;
        tile_b[local] = vec4<{{ACC}}>(
            b_of_{{FORM}}(kb, cb), b_of_{{FORM}}(kb, cb + 1u), b_of_{{FORM}}(kb, cb + 2u), b_of_{{FORM}}(kb, cb + 3u));
        workgroupBarrier();
        for (var k = 0u; k < 16u; k++) {
            let a = tile_a[k * 16u + ty];
            let b = tile_b[k * 16u + tx];
            acc0 += a.x * b;
            acc1 += a.y * b;
            acc2 += a.z * b;
            acc3 += a.w * b;
        }
        workgroupBarrier();
    }
    let row = row0 + ty * 4u;
    let column = column0 + tx * 4u;
    if (live) {
        put4(row, column, acc0);
        put4(row + 1u, column, acc1);
        put4(row + 2u, column, acc2);
        put4(row + 3u, column, acc3);
    }
}
