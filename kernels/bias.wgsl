// A bias per channel of [outer, c, inner], and its gradient. ACC is the arithmetic; CODEC gives the buffer `x`, its
// element `load(i)`, and `bias_add`.

struct Add { n: u32, c: u32, inner: u32 }
struct Sum { k: u32, c: u32, inner: u32, segment: u32, parts: u32 }

@group(0) @binding(1) var<storage, read_write> sums: array<{{ACC}}>;
@group(0) @binding(2) var<uniform> p: Sum;

var<workgroup> tree: array<{{ACC}}, {{GROUP}}>;

{{CODEC}}

// Term t of a channel.
fn term(t: u32, channel: u32) -> {{ACC}} {
    return load((t / p.inner * p.c + channel) * p.inner + t % p.inner);
}

// sums[part, channel] = sum of the channel's terms part*segment .. of k = outer*inner; one invocation each.
@compute @workgroup_size({{GROUP}})
fn bias_columns(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) local: u32,
) {
    let flat = (group.y * groups.x + group.x) * {{GROUP}}u + local;
    if (flat < p.parts * p.c) {
        let start = flat / p.c * p.segment;
        let end = min(start + p.segment, p.k);
        var sum = {{ACC}}(0);
        for (var t = start; t < end; t++) {
            sum += term(t, flat % p.c);
        }
        sums[flat] = sum;
    }
}

// The same with a group each, which adds up in a tree.
@compute @workgroup_size({{GROUP}})
fn bias_groups(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) local: u32,
) {
    let flat = group.y * groups.x + group.x;
    let part = flat / p.c;
    let start = min(part, p.parts) * p.segment;
    let end = select(0u, min(start + p.segment, p.k), part < p.parts);
    var sum = {{ACC}}(0);
    for (var t = start + local; t < end; t += {{GROUP}}u) {
        sum += term(t, flat % p.c);
    }
    tree[local] = sum;
    workgroupBarrier();
    for (var width = {{GROUP}}u / 2u; width > 0u; width /= 2u) {
        if (local < width) {
            tree[local] += tree[local + width];
        }
        workgroupBarrier();
    }
    if (local == 0u && part < p.parts) {
        sums[flat] = tree[0];
    }
}
