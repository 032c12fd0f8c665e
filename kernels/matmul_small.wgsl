// matmul.wgsl for small matrices: tiles of 16 by 16 and one result per invocation. Same parameters, same LOADS.

struct Params {
    m: u32, n: u32, k: u32, first: u32, end: u32,
    a_row: u32, a_col: u32, b_row: u32, b_col: u32, batches: u32,
    alpha: {{ACC}}, beta: {{ACC}},
}

{{LOADS}}
@group(0) @binding(2) var<storage, read_write> c: array<{{ACC}}>;
@group(0) @binding(3) var<uniform> p: Params;

var<workgroup> tile_a: array<{{ACC}}, 256>;
var<workgroup> tile_b: array<{{ACC}}, 256>;

@compute @workgroup_size(256)
fn gemm_small(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) local: u32,
) {
    let number = group.y * groups.x + group.x;
    let across = (p.n + 15u) / 16u;
    let tiles = across * ((p.m + 15u) / 16u);
    let batch = number / tiles;
    let flat = number % tiles;
    // Groups behind the last problem multiply nothing and store nothing.
    let live = batch < p.batches;
    let end = select(p.first, p.end, live);
    let tx = local % 16u;
    let ty = local / 16u;
    let row = (flat / across) * 16u + ty;
    let column = (flat % across) * 16u + tx;
    let a0 = batch * p.m * p.k;
    let b0 = batch * p.k * p.n;
    var s = {{ACC}}(0);
    for (var k0 = p.first; k0 < end; k0 += 16u) {
        var a = {{ACC}}(0);
        var b = {{ACC}}(0);
        if (row < p.m && k0 + tx < end) {
            a = load_a(a0 + row * p.a_row + (k0 + tx) * p.a_col);
        }
        if (k0 + ty < end && column < p.n) {
            b = load_b(b0 + (k0 + ty) * p.b_row + column * p.b_col);
        }
        tile_a[local] = a;
        tile_b[local] = b;
        workgroupBarrier();
        for (var k = 0u; k < 16u; k++) {
            s += tile_a[ty * 16u + k] * tile_b[k * 16u + tx];
        }
        workgroupBarrier();
    }
    if (live && row < p.m && column < p.n) {
        let at = batch * p.m * p.n + row * p.n + column;
        var r = p.alpha * s;
        // beta = 0 must not read C: it may hold NaN.
        if (p.beta != {{ACC}}(0)) {
            r += p.beta * c[at];
        }
        c[at] = r;
    }
}
