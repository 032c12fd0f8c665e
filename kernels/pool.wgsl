// Pooling with arithmetic: means, and both gradients. An invocation owns one word of the result: an element, or two of f16
// and bf16. CS, YS, XS are the layout as in conv.wgsl. STORAGE declares a (first operand), result and `load(i)`; VALUE
// names the function that computes an element, PUT stores a word of them.

struct Params {
    n: u32, c: u32, h: u32, w: u32, kh: u32, kw: u32, ho: u32, wo: u32, sh: u32, sw: u32, pt: u32, pl: u32,
    include: u32, results: u32,
}

{{STORAGE}}
@group(0) @binding(1) var<storage, read> places: array<i32>;
@group(0) @binding({{LAST}}) var<uniform> p: Params;

fn cs(nc: u32, nh: u32, nw: u32) -> u32 {
    return {{CS}};
}

fn ys(nc: u32, nh: u32, nw: u32) -> u32 {
    return {{YS}};
}

fn xs(nc: u32, nh: u32, nw: u32) -> u32 {
    return {{XS}};
}

// First pixel and end of the window at position o of an axis.
fn first_in(o: u32, stride: u32, pad: u32) -> u32 {
    return max(o * stride, pad) - pad;
}

fn end_in(o: u32, stride: u32, pad: u32, k: u32, size: u32) -> u32 {
    return min(o * stride + k - pad, size);
}

// First position and end of those whose window holds pixel i of an axis.
fn first_over(i: u32, stride: u32, pad: u32, k: u32) -> u32 {
    if (i + pad < k) {
        return 0u;
    }
    return (i + pad - k) / stride + 1u;
}

fn end_over(i: u32, stride: u32, pad: u32, count: u32) -> u32 {
    return min((i + pad) / stride + 1u, count);
}

fn count_of(oy: u32, ox: u32) -> u32 {
    if (p.include == 1u) {
        return p.kh * p.kw;
    }
    return (end_in(oy, p.sh, p.pt, p.kh, p.h) - first_in(oy, p.sh, p.pt))
        * (end_in(ox, p.sw, p.pl, p.kw, p.w) - first_in(ox, p.sw, p.pl));
}

fn mean(i: u32) -> {{ACC}} {
    let oy = i / ys(p.c, p.ho, p.wo) % p.ho;
    let ox = i / xs(p.c, p.ho, p.wo) % p.wo;
    let plane = i / (p.c * p.ho * p.wo) * (p.c * p.h * p.w) + i / cs(p.c, p.ho, p.wo) % p.c * cs(p.c, p.h, p.w);
    let rows = end_in(oy, p.sh, p.pt, p.kh, p.h);
    let columns = end_in(ox, p.sw, p.pl, p.kw, p.w);
    var s = {{ACC}}(0);
    for (var row = first_in(oy, p.sh, p.pt); row < rows; row++) {
        for (var column = first_in(ox, p.sw, p.pl); column < columns; column++) {
            s += load(plane + row * ys(p.c, p.h, p.w) + column * xs(p.c, p.h, p.w));
        }
    }
    return s / {{ACC}}(count_of(oy, ox));
}

fn mean_bwd(i: u32) -> {{ACC}} {
    let row = i / ys(p.c, p.h, p.w) % p.h;
    let column = i / xs(p.c, p.h, p.w) % p.w;
    let plane = i / (p.c * p.h * p.w) * (p.c * p.ho * p.wo) + i / cs(p.c, p.h, p.w) % p.c * cs(p.c, p.ho, p.wo);
    var s = {{ACC}}(0);
    for (var oy = first_over(row, p.sh, p.pt, p.kh); oy < end_over(row, p.sh, p.pt, p.ho); oy++) {
        for (var ox = first_over(column, p.sw, p.pl, p.kw); ox < end_over(column, p.sw, p.pl, p.wo); ox++) {
            s += load(plane + oy * ys(p.c, p.ho, p.wo) + ox * xs(p.c, p.ho, p.wo)) / {{ACC}}(count_of(oy, ox));
        }
    }
    return s;
}

fn max_bwd(i: u32) -> {{ACC}} {
    let row = i / ys(p.c, p.h, p.w) % p.h;
    let column = i / xs(p.c, p.h, p.w) % p.w;
    let plane = i / (p.c * p.h * p.w) * (p.c * p.ho * p.wo) + i / cs(p.c, p.h, p.w) % p.c * cs(p.c, p.ho, p.wo);
    let place = i32(row * p.w + column);
    var s = {{ACC}}(0);
    for (var oy = first_over(row, p.sh, p.pt, p.kh); oy < end_over(row, p.sh, p.pt, p.ho); oy++) {
        for (var ox = first_over(column, p.sw, p.pl, p.kw); ox < end_over(column, p.sw, p.pl, p.wo); ox++) {
            let at = plane + oy * ys(p.c, p.ho, p.wo) + ox * xs(p.c, p.ho, p.wo);
            if (places[at] == place) {
                s += load(at);
            }
        }
    }
    return s;
}

@compute @workgroup_size({{ITEMS}})
fn pool(
    @builtin(workgroup_id) number: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) local: u32,
) {
    let i = (number.y * groups.x + number.x) * {{ITEMS}}u + local;
    {{PUT}}
}
