// Largest elements along the middle axis of [outer, n, inner], and their places. K is the unsigned integer in which they
// are compared: bits become keys of the same order (key), so NaN, zeros and subnormals are compared exactly, whatever a
// driver assumes of floats, and a minimum is the maximum of inverted keys. X is the buffer's element, LOADS gives load(i),
// the key of element i. STORED is the key k or its bits. Segments keep loops short.

struct Rows { outer: u32, n: u32, segment: u32, parts: u32, behind: u32 }
struct Columns { outer: u32, n: u32, inner: u32, segment: u32, parts: u32, behind: u32 }
struct Pack { n: u32 }

@group(0) @binding(0) var<storage, read> x: array<{{X}}>;
@group(0) @binding(1) var<storage, read_write> y: array<{{K}}>;
@group(0) @binding(2) var<uniform> r: Rows;
@group(0) @binding(2) var<uniform> c: Columns;

@group(0) @binding(1) var<storage, read> before: array<u32>;
@group(0) @binding(2) var<storage, read_write> keys: array<{{K}}>;
@group(0) @binding(3) var<storage, read_write> places: array<u32>;
@group(0) @binding(4) var<uniform> r4: Rows;
@group(0) @binding(4) var<uniform> c4: Columns;

@group(0) @binding(0) var<storage, read> wide: array<u32>;
@group(0) @binding(1) var<storage, read_write> packed: array<u32>;
@group(0) @binding(2) var<uniform> p: Pack;

var<workgroup> tree: array<{{K}}, {{GROUP}}>;
var<workgroup> found: array<u32, {{GROUP}}>;

fn key(given: {{K}}) -> {{K}} {
    var b = given;
    if ({{ONE_ZERO}} && (b & {{MAGNITUDE}}) == {{K}}(0)) {
        b = {{K}}(0);
    }
    if ((b & {{MAGNITUDE}}) > {{INFINITE}}) {
        return {{ALL}};
    }
    return (b ^ select({{LIFT}}, {{MASK}} | {{LIFT}}, (b & {{SIGN}}) != {{K}}(0)) ^ {{FLIP}}) & {{ALL}};
}

fn bits(k: {{K}}) -> {{K}} {
    let u = k ^ {{FLIP}};
    return (u ^ select({{MASK}} | {{LIFT}}, {{LIFT}}, (u & {{SIGN}}) != {{K}}(0))) & {{ALL}};
}

{{LOADS}}

fn stored(k: {{K}}) -> {{K}} {
    return {{STORED}};
}

// inner is 1. Group (row, part) stores y[row * parts + part]. No key is below 0, so idle invocations change nothing.
@compute @workgroup_size({{GROUP}})
fn extreme_rows(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) local: u32,
) {
    let flat = group.y * groups.x + group.x;
    let row = flat / r.parts;
    let part = flat % r.parts;
    var best = {{K}}(0);
    if (row < r.outer) {
        let end = min(r.n, (part + 1u) * r.segment);
        for (var i = part * r.segment + local; i < end; i += {{GROUP}}u) {
            best = max(best, load(row * r.n + i));
        }
    }
    tree[local] = best;
    workgroupBarrier();
    for (var half = {{GROUP}}u / 2u; half > 0u; half = half / 2u) {
        if (local < half) {
            tree[local] = max(tree[local], tree[local + half]);
        }
        workgroupBarrier();
    }
    if (local == 0u && row < r.outer) {
        y[flat] = stored(tree[0]);
    }
}

// One invocation per (outer, part, inner).
@compute @workgroup_size({{GROUP}})
fn extreme_columns(
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
    var best = {{K}}(0);
    for (var i = part * c.segment; i < end; i++) {
        best = max(best, load((row * c.n + i) * c.inner + column));
    }
    y[flat] = stored(best);
}

// The first place of the largest key: its index along the axis, or index * behind + the place found before within it.
@compute @workgroup_size({{GROUP}})
fn place_rows(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) local: u32,
) {
    let flat = group.y * groups.x + group.x;
    let row = flat / r4.parts;
    let part = flat % r4.parts;
    var best = {{K}}(0);
    var place = 0xffffffffu;
    if (row < r4.outer) {
        let end = min(r4.n, (part + 1u) * r4.segment);
        for (var i = part * r4.segment + local; i < end; i += {{GROUP}}u) {
            let index = row * r4.n + i;
            let k = load(index);
            let at = {{ROW_PLACE}};
            if (k > best || (k == best && at < place)) {
                best = k;
                place = at;
            }
        }
    }
    tree[local] = best;
    found[local] = place;
    workgroupBarrier();
    for (var half = {{GROUP}}u / 2u; half > 0u; half = half / 2u) {
        if (local < half) {
            let k = tree[local + half];
            let at = found[local + half];
            if (k > tree[local] || (k == tree[local] && at < found[local])) {
                tree[local] = k;
                found[local] = at;
            }
        }
        workgroupBarrier();
    }
    if (local == 0u && row < r4.outer) {
        keys[flat] = tree[0];
        places[flat] = found[0];
    }
}

@compute @workgroup_size({{GROUP}})
fn place_columns(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) local: u32,
) {
    let flat = (group.y * groups.x + group.x) * {{GROUP}}u + local;
    if (flat >= c4.outer * c4.parts * c4.inner) {
        return;
    }
    let column = flat % c4.inner;
    let part = (flat / c4.inner) % c4.parts;
    let row = flat / (c4.inner * c4.parts);
    let end = min(c4.n, (part + 1u) * c4.segment);
    var best = {{K}}(0);
    var place = 0xffffffffu;
    for (var i = part * c4.segment; i < end; i++) {
        let index = (row * c4.n + i) * c4.inner + column;
        let k = load(index);
        let at = {{COLUMN_PLACE}};
        if (k > best || (k == best && at < place)) {
            best = k;
            place = at;
        }
    }
    keys[flat] = best;
    places[flat] = place;
}

// Two 16-bit results to a word; with an odd n the last word's upper half is padding.
@compute @workgroup_size({{GROUP}})
fn pack(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) local: u32,
) {
    let w = (group.y * groups.x + group.x) * {{GROUP}}u + local;
    if (2u * w < p.n) {
        packed[w] = (wide[2u * w] & 0xffffu) | (wide[2u * w + 1u] << 16u);
    }
}
