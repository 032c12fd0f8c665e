// Maxima and their places. Numbers are compared by keys, unsigned words in the order of the numbers, NaN last and above
// all: comparisons of floats may flush subnormals in WGSL, and compilers may assume that there is no NaN. Nothing is
// computed, so f64 needs no feature. WORD is the word of the buffers; KEY makes the key of element i of x, PUT stores.

struct Params {
    n: u32, c: u32, h: u32, w: u32, kh: u32, kw: u32, ho: u32, wo: u32, sh: u32, sw: u32, pt: u32, pl: u32,
    include: u32, results: u32,
}

@group(0) @binding(0) var<storage, read> x: array<{{WORD}}>;
@group(0) @binding(1) var<storage, read_write> y: array<{{WORD}}>;
@group(0) @binding(2) var<storage, read_write> places: array<i32>;
@group(0) @binding(3) var<uniform> p: Params;

fn cs(nc: u32, nh: u32, nw: u32) -> u32 {
    return {{CS}};
}

fn ys(nc: u32, nh: u32, nw: u32) -> u32 {
    return {{YS}};
}

fn xs(nc: u32, nh: u32, nw: u32) -> u32 {
    return {{XS}};
}

// Key of a float of two words, high and low; `infinity` is the high word of that.
fn float_key(high: u32, low: u32, infinity: u32) -> vec2<u32> {
    let size = high & 0x7fffffffu;
    if (size > infinity || (size == infinity && low != 0u)) {
        return vec2<u32>(0xffffffffu, 0xffffffffu);
    }
    if (size == 0u && low == 0u) {
        // Both zeros are equal.
        return vec2<u32>(0x80000000u, 0u);
    }
    if (size != high) {
        return vec2<u32>(~high, ~low);
    }
    return vec2<u32>(high | 0x80000000u, low);
}

fn half_bits(i: u32) -> u32 {
    return {{HALF}};
}

fn key(i: u32) -> vec2<u32> {
    return {{KEY}};
}

// Element of x that result i takes; its place goes to `places`.
fn pick(i: u32) -> u32 {
    let oy = i / ys(p.c, p.ho, p.wo) % p.ho;
    let ox = i / xs(p.c, p.ho, p.wo) % p.wo;
    let plane = i / (p.c * p.ho * p.wo) * (p.c * p.h * p.w) + i / cs(p.c, p.ho, p.wo) % p.c * cs(p.c, p.h, p.w);
    let row0 = max(oy * p.sh, p.pt) - p.pt;
    let column0 = max(ox * p.sw, p.pl) - p.pl;
    let rows = min(oy * p.sh + p.kh - p.pt, p.h);
    let columns = min(ox * p.sw + p.kw - p.pl, p.w);
    var best = row0 * p.w + column0;
    var source = plane + row0 * ys(p.c, p.h, p.w) + column0 * xs(p.c, p.h, p.w);
    var top = key(source);
    for (var row = row0; row < rows; row++) {
        for (var column = column0; column < columns; column++) {
            let at = plane + row * ys(p.c, p.h, p.w) + column * xs(p.c, p.h, p.w);
            let k = key(at);
            if (k.x > top.x || (k.x == top.x && k.y > top.y)) {
                top = k;
                best = row * p.w + column;
                source = at;
            }
        }
    }
    places[i] = i32(best);
    return source;
}

@compute @workgroup_size({{ITEMS}})
fn maxpool2d(
    @builtin(workgroup_id) number: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) local: u32,
) {
    let i = (number.y * groups.x + number.x) * {{ITEMS}}u + local;
    {{PUT}}
}
