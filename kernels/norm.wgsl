// Softmax over the middle axis of [m, n, inner]: y = exp(x - max) / sum of the same; rows = m * inner, the elements of one
// being `inner` apart. NaN or +infinity in a row makes its sum NaN. Short rows take one group each (`softmax`), many rows
// side by side one invocation each (`softmax_columns`); long ones are cut into segments over three launches, so that no
// invocation loops long. WGSL's max may drop NaN and a compiler may assume its absence, so bits are compared.
// LOADS gives load(i), CELLS lo, hi and cell: how f16 and bf16 are laid into words of two (`pack`).

struct Params { rows: u32, n: u32, inner: u32, segment: u32, parts: u32 }
struct Pack { n: u32 }

@group(0) @binding(0) var<storage, read> x: array<{{X}}>;
@group(0) @binding(1) var<storage, read_write> y: array<f32>;
@group(0) @binding(2) var<uniform> p: Params;

@group(0) @binding(1) var<storage, read> tops: array<f32>;
@group(0) @binding(2) var<storage, read_write> totals_out: array<f32>;
@group(0) @binding(2) var<storage, read> totals: array<f32>;
@group(0) @binding(3) var<uniform> p3: Params;
@group(0) @binding(3) var<storage, read_write> z: array<f32>;
@group(0) @binding(4) var<uniform> p4: Params;

@group(0) @binding(0) var<storage, read> wide: array<f32>;
@group(0) @binding(1) var<storage, read_write> packed: array<{{CELL}}>;
@group(0) @binding(2) var<uniform> k: Pack;

var<workgroup> cells: array<f32, {{GROUP}}>;

{{LOADS}}

{{CELLS}}

fn nan(v: f32) -> bool {
    return (bitcast<u32>(v) & 0x7fffffffu) > 0x7f800000u;
}

// First element of a row.
fn first(row: u32, n: u32, inner: u32) -> u32 {
    return row / inner * n * inner + row % inner;
}

fn larger(a: f32, b: f32) -> f32 {
    if (nan(a)) {
        return a;
    }
    if (nan(b)) {
        return b;
    }
    return select(b, a, a > b);
}

// exp(v - top); NaN where either is NaN or both are the same infinity, whatever the driver's exp makes of NaN.
fn term(v: f32, top: f32) -> f32 {
    let top_bits = bitcast<u32>(top);
    if ((top_bits & 0x7fffffffu) >= 0x7f800000u) {
        return bitcast<f32>(top_bits | 0x7fc00000u);
    }
    return exp(v - top);
}

// Largest or total of the group's cells; the result is in cells[0] after the call, behind a barrier.
fn group_max(local: u32) {
    workgroupBarrier();
    for (var half = {{GROUP}}u / 2u; half > 0u; half = half / 2u) {
        if (local < half) {
            cells[local] = larger(cells[local], cells[local + half]);
        }
        workgroupBarrier();
    }
}

fn group_sum(local: u32) {
    workgroupBarrier();
    for (var half = {{GROUP}}u / 2u; half > 0u; half = half / 2u) {
        if (local < half) {
            cells[local] += cells[local + half];
        }
        workgroupBarrier();
    }
}

@compute @workgroup_size({{GROUP}})
fn softmax(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) local: u32,
) {
    let row = group.y * groups.x + group.x;
    let inside = row < p.rows;
    let at = first(min(row, p.rows - 1u), p.n, p.inner);
    var top = load(at);
    for (var i = local; i < p.n; i += {{GROUP}}u) {
        top = larger(top, load(at + i * p.inner));
    }
    cells[local] = top;
    group_max(local);
    top = cells[0];
    workgroupBarrier();
    var s = 0.0;
    for (var i = local; i < p.n; i += {{GROUP}}u) {
        s += term(load(at + i * p.inner), top);
    }
    cells[local] = s;
    group_sum(local);
    let total = cells[0];
    if (inside) {
        for (var i = local; i < p.n; i += {{GROUP}}u) {
            y[at + i * p.inner] = term(load(at + i * p.inner), top) / total;
        }
    }
}

// Group (row, part): largest of the segment, to y[row * parts + part].
@compute @workgroup_size({{GROUP}})
fn segment_max(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) local: u32,
) {
    let flat = group.y * groups.x + group.x;
    let row = min(flat / p.parts, p.rows - 1u);
    let at = first(row, p.n, p.inner);
    let begin = (flat % p.parts) * p.segment;
    let end = min(p.n, begin + p.segment);
    var top = load(at + begin * p.inner);
    for (var i = begin + local; i < end; i += {{GROUP}}u) {
        top = larger(top, load(at + i * p.inner));
    }
    cells[local] = top;
    group_max(local);
    if (local == 0u && flat < p.rows * p.parts) {
        y[flat] = cells[0];
    }
}

// The row's largest, from its segments'.
fn row_max(row: u32, parts: u32, local: u32) -> f32 {
    var top = tops[row * parts];
    for (var i = local; i < parts; i += {{GROUP}}u) {
        top = larger(top, tops[row * parts + i]);
    }
    cells[local] = top;
    group_max(local);
    top = cells[0];
    workgroupBarrier();
    return top;
}

// Group (row, part): sum of exp(x - max of the row) over the segment.
@compute @workgroup_size({{GROUP}})
fn segment_sum(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) local: u32,
) {
    let flat = group.y * groups.x + group.x;
    let row = min(flat / p3.parts, p3.rows - 1u);
    let at = first(row, p3.n, p3.inner);
    let top = row_max(row, p3.parts, local);
    let begin = (flat % p3.parts) * p3.segment;
    let end = min(p3.n, begin + p3.segment);
    var s = 0.0;
    for (var i = begin + local; i < end; i += {{GROUP}}u) {
        s += term(load(at + i * p3.inner), top);
    }
    cells[local] = s;
    group_sum(local);
    if (local == 0u && flat < p3.rows * p3.parts) {
        totals_out[flat] = cells[0];
    }
}

// Group (row, part): the segment's results.
@compute @workgroup_size({{GROUP}})
fn segment_write(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) local: u32,
) {
    let flat = group.y * groups.x + group.x;
    let row = min(flat / p4.parts, p4.rows - 1u);
    let at = first(row, p4.n, p4.inner);
    let top = row_max(row, p4.parts, local);
    var s = 0.0;
    for (var i = local; i < p4.parts; i += {{GROUP}}u) {
        s += totals[row * p4.parts + i];
    }
    cells[local] = s;
    group_sum(local);
    let total = cells[0];
    if (flat < p4.rows * p4.parts) {
        let begin = (flat % p4.parts) * p4.segment;
        let end = min(p4.n, begin + p4.segment);
        for (var i = begin + local; i < end; i += {{GROUP}}u) {
            z[at + i * p4.inner] = term(load(at + i * p4.inner), top) / total;
        }
    }
}

// One invocation per row.
@compute @workgroup_size({{GROUP}})
fn softmax_columns(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) local: u32,
) {
    let row = (group.y * groups.x + group.x) * {{GROUP}}u + local;
    if (row >= p.rows) {
        return;
    }
    let at = first(row, p.n, p.inner);
    var top = load(at);
    for (var i = 1u; i < p.n; i++) {
        top = larger(top, load(at + i * p.inner));
    }
    var s = 0.0;
    for (var i = 0u; i < p.n; i++) {
        s += term(load(at + i * p.inner), top);
    }
    for (var i = 0u; i < p.n; i++) {
        y[at + i * p.inner] = term(load(at + i * p.inner), top) / s;
    }
}

// Results in f32 to words.
@compute @workgroup_size({{GROUP}})
fn pack(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) local: u32,
) {
    let w = (group.y * groups.x + group.x) * {{GROUP}}u + local;
    if (lo(w) < k.n) {
        packed[w] = cell(wide[lo(w)], wide[hi(w)]);
    }
}
