// KNOWN BAD, for the self-test of verify: replaces elementwise.wgsl (entry `unary`).
// Mistake: the last, partly filled group takes one element too few, so the last element (word, for f16 and bf16) stays
// unwritten. Missed by: n = 0 and every n whose words fill whole groups of 256 (f32: n = 256, 1024, 65536).
// Caught by: any other n, e.g. 1, 257, 1000.

struct Params { n: u32 }

@group(0) @binding(0) var<storage, read> x: array<{{STORE}}>;
@group(0) @binding(1) var<storage, read_write> y: array<{{STORE}}>;
@group(0) @binding(2) var<uniform> p: Params;

fn apply(x: {{ACC}}) -> {{ACC}} {
    return {{EXPR}};
}

{{CODEC}}

@compute @workgroup_size({{GROUP}})
fn unary(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) local: u32,
) {
    let flat = group.y * groups.x + group.x;
    let i = flat * {{GROUP}}u + local;
    let full = words(p.n) / {{GROUP}}u;
    if (flat < full || (flat == full && local + 1u < words(p.n) % {{GROUP}}u)) {
        y[i] = map(x[i]);
    }
}
