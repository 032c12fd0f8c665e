// C = alpha op(A) op(B) + beta C for a range of k, for `batches` problems that lie one behind the other. Tiles of 64 by 64, 16 deep, in workgroup memory; each of the 256
// invocations keeps 4 by 4 results in four vectors. A's and B's strides carry the transposes. ACC is the arithmetic;
// LOADS gives `load_a(i)` and `load_b(i)` with the buffers' declarations.
// A range [first, end) of k instead of all of it: the planner cuts a long k into launches, because lavapipe ends an
// invocation's loops after 65,535 iterations.

struct Params {
    m: u32, n: u32, k: u32, first: u32, end: u32,
    a_row: u32, a_col: u32, b_row: u32, b_col: u32, batches: u32,
    alpha: {{ACC}}, beta: {{ACC}},
}

{{LOADS}}
@group(0) @binding(2) var<storage, read_write> c: array<{{ACC}}>;
@group(0) @binding(3) var<uniform> p: Params;

// Element (depth, 4 rows) and (depth, 4 columns).
var<workgroup> tile_a: array<vec4<{{ACC}}>, 256>;
var<workgroup> tile_b: array<vec4<{{ACC}}>, 256>;

// Where this group's problem begins.
var<private> a0: u32;
var<private> b0: u32;
var<private> c0: u32;

fn get_a(row: u32, k: u32) -> {{ACC}} {
    if (row < p.m && k < p.end) {
        return load_a(a0 + row * p.a_row + k * p.a_col);
    }
    return {{ACC}}(0);
}

fn get_b(k: u32, column: u32) -> {{ACC}} {
    if (k < p.end && column < p.n) {
        return load_b(b0 + k * p.b_row + column * p.b_col);
    }
    return {{ACC}}(0);
}

fn put(row: u32, column: u32, v: {{ACC}}) {
    if (row < p.m && column < p.n) {
        let at = c0 + row * p.n + column;
        var r = p.alpha * v;
        // beta = 0 must not read C: it may hold NaN.
        if (p.beta != {{ACC}}(0)) {
            r += p.beta * c[at];
        }
        c[at] = r;
    }
}

fn put4(row: u32, column: u32, v: vec4<{{ACC}}>) {
    put(row, column, v.x);
    put(row, column + 1u, v.y);
    put(row, column + 2u, v.z);
    put(row, column + 3u, v.w);
}

@compute @workgroup_size(256)
fn gemm(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) local: u32,
) {
    let number = group.y * groups.x + group.x;
    let across = (p.n + 63u) / 64u;
    let tiles = across * ((p.m + 63u) / 64u);
    let batch = number / tiles;
    let flat = number % tiles;
    a0 = batch * p.m * p.k;
    b0 = batch * p.k * p.n;
    c0 = batch * p.m * p.n;
    // Groups behind the last problem multiply nothing and store nothing.
    let live = batch < p.batches;
    let end = select(p.first, p.end, live);
    let row0 = (flat / across) * 64u;
    let column0 = (flat % across) * 64u;
    let tx = local % 16u;
    let ty = local / 16u;
    var acc0 = vec4<{{ACC}}>({{ACC}}(0));
    var acc1 = acc0;
    var acc2 = acc0;
    var acc3 = acc0;
    for (var k0 = p.first; k0 < end; k0 += 16u) {
        // Neighbouring invocations read neighbouring k of A and neighbouring columns of B.
        let ra = row0 + ty * 4u;
        let ka = k0 + tx;
        tile_a[tx * 16u + ty] = vec4<{{ACC}}>(get_a(ra, ka), get_a(ra + 1u, ka), get_a(ra + 2u, ka), get_a(ra + 3u, ka));
        let cb = column0 + tx * 4u;
        let kb = k0 + ty;
        tile_b[local] = vec4<{{ACC}}>(get_b(kb, cb), get_b(kb, cb + 1u), get_b(kb, cb + 2u), get_b(kb, cb + 3u));
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
