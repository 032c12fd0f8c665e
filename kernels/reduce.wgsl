// Sums: over the middle axis of [outer, n, inner], of products, of squares. In segments, so that no invocation loops long
// (lavapipe ends all loops of an invocation after 65,535 iterations in all, silently). X is the buffers' element, ACC the
// arithmetic and what sums are stored in; LOADS gives load(i) and load_b(i), CELLS says how results are laid into words:
// lo and hi are the elements of word w, cell(a, b) is the word.

struct Rows { outer: u32, n: u32, segment: u32, parts: u32 }
struct Columns { outer: u32, n: u32, inner: u32, segment: u32, parts: u32 }
struct Finish { n: u32, count: {{ACC}} }
struct Products { n: u32, segment: u32, parts: u32 }
struct Squares { n: u32, segment: u32, parts: u32, low: {{ACC}}, high: {{ACC}}, grow: {{ACC}}, shrink: {{ACC}} }
struct Root { shrink: {{ACC}}, unshrink: {{ACC}}, ungrow: {{ACC}}, up: {{ACC}}, mix: {{ACC}}, down: {{ACC}} }

@group(0) @binding(0) var<storage, read> x: array<{{X}}>;
@group(0) @binding(1) var<storage, read> b: array<{{X}}>;
@group(0) @binding(1) var<storage, read_write> y: array<{{ACC}}>;
@group(0) @binding(2) var<uniform> r: Rows;
@group(0) @binding(2) var<uniform> c: Columns;
@group(0) @binding(2) var<uniform> q: Squares;

@group(0) @binding(2) var<storage, read_write> products: array<{{ACC}}>;
@group(0) @binding(3) var<uniform> d: Products;

@group(0) @binding(0) var<storage, read> sums: array<{{ACC}}>;
@group(0) @binding(1) var<storage, read_write> out: array<{{CELL}}>;
@group(0) @binding(2) var<uniform> f: Finish;
@group(0) @binding(2) var<uniform> s: Root;

var<workgroup> tree: array<{{ACC}}, {{GROUP}}>;
var<workgroup> tree_middle: array<{{ACC}}, {{GROUP}}>;
var<workgroup> tree_low: array<{{ACC}}, {{GROUP}}>;

{{LOADS}}

{{CELLS}}

// Sum of the group's numbers, in tree[0] after the call, behind a barrier.
fn group_sum(local: u32) {
    workgroupBarrier();
    for (var half = {{GROUP}}u / 2u; half > 0u; half = half / 2u) {
        if (local < half) {
            tree[local] += tree[local + half];
        }
        workgroupBarrier();
    }
}

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
    var s = {{ACC}}(0);
    if (row < r.outer) {
        let end = min(r.n, (part + 1u) * r.segment);
        for (var i = part * r.segment + local; i < end; i += {{GROUP}}u) {
            s += load(row * r.n + i);
        }
    }
    tree[local] = s;
    group_sum(local);
    if (local == 0u && row < r.outer) {
        y[flat] = {{ACC}}(tree[0]);
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
    var s = {{ACC}}(0);
    for (var i = part * c.segment; i < end; i++) {
        s += load((row * c.n + i) * c.inner + column);
    }
    y[flat] = {{ACC}}(s);
}

fn finished(i: u32) -> {{ACC}} {
    let v = sums[i];
    return {{FINISH}};
}

// out[i] = sums[i], divided by f.count for means; one invocation per word.
@compute @workgroup_size({{GROUP}})
fn finish(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) local: u32,
) {
    let w = (group.y * groups.x + group.x) * {{GROUP}}u + local;
    if (lo(w) < f.n) {
        out[w] = cell(finished(lo(w)), finished(hi(w)));
    }
}

// Group `part` stores the sum of x[i] b[i] over its segment of n.
@compute @workgroup_size({{GROUP}})
fn dot_part(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) local: u32,
) {
    let part = group.y * groups.x + group.x;
    let end = select(0u, min(d.n, (part + 1u) * d.segment), part < d.parts);
    var s = {{ACC}}(0);
    for (var i = part * d.segment + local; i < end; i += {{GROUP}}u) {
        s += load(i) * load_b(i);
    }
    tree[local] = s;
    group_sum(local);
    if (local == 0u && part < d.parts) {
        products[part] = {{ACC}}(tree[0]);
    }
}

// Sums of squares in three ranges, so that none overflows or vanishes (Blue 1978; Anderson 2017): of numbers from `high`
// on times `shrink`, of those below `low` times `grow`, of the others and NaN as they are. Group `part` stores
// y[range * parts + part]; ranges 0, 1 and 2 are high, middle and low.
@compute @workgroup_size({{GROUP}})
fn squares_part(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) local: u32,
) {
    let part = group.y * groups.x + group.x;
    let end = select(0u, min(q.n, (part + 1u) * q.segment), part < q.parts);
    var high = {{ACC}}(0);
    var middle = {{ACC}}(0);
    var low = {{ACC}}(0);
    for (var i = part * q.segment + local; i < end; i += {{GROUP}}u) {
        let v = load(i);
        let m = abs(v);
        if (m >= q.high) {
            high += (v * q.shrink) * (v * q.shrink);
        } else if (m < q.low) {
            low += (v * q.grow) * (v * q.grow);
        } else {
            middle += v * v;
        }
    }
    tree[local] = high;
    tree_middle[local] = middle;
    tree_low[local] = low;
    workgroupBarrier();
    for (var half = {{GROUP}}u / 2u; half > 0u; half = half / 2u) {
        if (local < half) {
            tree[local] += tree[local + half];
            tree_middle[local] += tree_middle[local + half];
            tree_low[local] += tree_low[local + half];
        }
        workgroupBarrier();
    }
    if (local == 0u && part < q.parts) {
        y[part] = {{ACC}}(tree[0]);
        y[q.parts + part] = {{ACC}}(tree_middle[0]);
        y[2u * q.parts + part] = {{ACC}}(tree_low[0]);
    }
}

// out[0] = square root of the three sums together. Where high numbers occur, low ones do not count; where the middle sum
// is at least 1, neither. `up` keeps a small middle sum from vanishing; `mix` is ungrow * up, `down` is 1 / up. ROOT is sqrt,
// and nothing for integers, for which no launch comes here.
@compute @workgroup_size({{GROUP}})
fn root(@builtin(local_invocation_index) local: u32) {
    if (local == 0u) {
        let big = sums[0];
        let middle = sums[1];
        let small = sums[2];
        var v = {{ACC}}(0);
        if (big != {{ACC}}(0)) {
            v = {{ROOT}}(big + middle * s.shrink * s.shrink) * s.unshrink;
        } else if (middle == {{ACC}}(0)) {
            v = {{ROOT}}(small) * s.ungrow;
        } else if (middle < {{ACC}}(1)) {
            v = {{ROOT}}(middle * s.up * s.up + small * s.mix * s.mix) * s.down;
        } else {
            v = {{ROOT}}(middle);
        }
        out[0] = cell(v, {{ACC}}(0));
    }
}
