// y[i] += alpha x[i] for f16 and bf16: one invocation per word of two.

struct Scaled { n: u32, alpha: f32 }

@group(0) @binding(0) var<storage, read> x: array<u32>;
@group(0) @binding(1) var<storage, read_write> y: array<u32>;
@group(0) @binding(2) var<uniform> p: Scaled;

{{CODEC}}

fn one(x: u32, y: u32) -> u32 {
    return narrow(widen(y) + p.alpha * widen(x));
}

// With an odd n the last word's upper half is padding: it is computed with and never looked at.
@compute @workgroup_size({{GROUP}})
fn axpy(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) local: u32,
) {
    let i = (group.y * groups.x + group.x) * {{GROUP}}u + local;
    if (i < (p.n + 1u) / 2u) {
        let a = x[i];
        let b = y[i];
        y[i] = one(a & 0xffffu, b & 0xffffu) | (one(a >> 16u, b >> 16u) << 16u);
    }
}
