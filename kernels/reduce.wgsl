// Sums over the middle axis of [outer, n, inner], in segments, so that no invocation loops long (lavapipe ends all
// loops of an invocation after 65,535 iterations in all, silently). T is the element read, OUT the sum.

struct Rows { outer: u32, n: u32, segment: u32, parts: u32 }
struct Columns { outer: u32, n: u32, inner: u32, segment: u32, parts: u32 }

@group(0) @binding(0) var<storage, read> x: array<{{T}}>;
@group(0) @binding(1) var<storage, read_write> y: array<{{OUT}}>;
@group(0) @binding(2) var<uniform> r: Rows;
@group(0) @binding(2) var<uniform> c: Columns;

var<workgroup> sums: array<{{OUT}}, {{GROUP}}>;

// inner is 1. Group (row, part) adds x[row, part * segment ..] and stores y[row * parts + part].
@compute @workgroup_size({{GROUP}})
fn sum_rows(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) local: u32,
) {
    let flat = group.y * groups.x + group.x;
    let row = flat / r.parts;
    let part = flat % r.parts;
    var s = {{OUT}}(0);
    if (row < r.outer) {
        let end = min(r.n, (part + 1u) * r.segment);
        for (var i = part * r.segment + local; i < end; i += {{GROUP}}u) {
            s += {{OUT}}(x[row * r.n + i]);
        }
    }
    sums[local] = s;
    workgroupBarrier();
    for (var half = {{GROUP}}u / 2u; half > 0u; half = half / 2u) {
        if (local < half) {
            sums[local] += sums[local + half];
        }
        workgroupBarrier();
    }
    if (local == 0u && row < r.outer) {
        y[flat] = sums[0];
    }
}

// One invocation per (outer, part, inner) adds its segment and stores y[(outer * parts + part) * inner + inner].
@compute @workgroup_size({{GROUP}})
fn sum_columns(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) local: u32,
) {
    let flat = (group.y * groups.x + group.x) * {{GROUP}}u + local;
    if (flat >= c.outer * c.parts * c.inner) {
        return;
    }
    let column = flat % c.inner;
    let part = (flat / c.inner) % c.parts;
    let row = flat / (c.inner * c.parts);
    let end = min(c.n, (part + 1u) * c.segment);
    var s = {{OUT}}(0);
    for (var i = part * c.segment; i < end; i++) {
        s += {{OUT}}(x[(row * c.n + i) * c.inner + column]);
    }
    y[flat] = s;
}
