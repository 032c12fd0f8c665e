{{HALF}}

// Words of two halves; one invocation owns the whole word of what it writes.
@group(0) @binding(0) var<storage, read> x: array<u32>;
@group(0) @binding(1) var<storage, read> b: array<u32>;
@group(0) @binding(2) var<storage, read_write> y: array<u32>;
@group(0) @binding(3) var<uniform> q: Add;

// pack: n sums in f32, an even number of places of them.
struct Pack { n: u32 }
@group(0) @binding(0) var<storage, read> wide: array<f32>;
@group(0) @binding(1) var<storage, read_write> packed: array<u32>;
@group(0) @binding(2) var<uniform> r: Pack;

fn load(i: u32) -> f32 {
    return widen((x[i / 2u] >> (16u * (i % 2u))) & 0xffffu);
}

fn bias(i: u32) -> f32 {
    let channel = i / q.inner % q.c;
    return widen((b[channel / 2u] >> (16u * (channel % 2u))) & 0xffffu);
}

// With an odd n the last word's upper half is padding: it is computed with and never looked at.
@compute @workgroup_size({{GROUP}})
fn bias_add(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) local: u32,
) {
    let i = (group.y * groups.x + group.x) * {{GROUP}}u + local;
    if (2u * i < q.n) {
        y[i] = narrow(load(2u * i) + bias(2u * i)) | (narrow(load(2u * i + 1u) + bias(2u * i + 1u)) << 16u);
    }
}

@compute @workgroup_size({{GROUP}})
fn pack(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) local: u32,
) {
    let i = (group.y * groups.x + group.x) * {{GROUP}}u + local;
    if (2u * i < r.n) {
        packed[i] = narrow(wide[2u * i]) | (narrow(wide[2u * i + 1u]) << 16u);
    }
}
