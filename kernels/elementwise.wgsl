// y[i] = EXPR(x[i]). STORE is the buffers' element (u32 for f16 and bf16: one word holds two neighbours, and one
// invocation owns the whole word), ACC the arithmetic; CODEC gives `words` and `map`, and the number rules that EXPR may
// call. Binary ops with a scalar add it to the parameters (FIELD); NAMES says which operand it is. No loop here: a driver
// may cut loops short, and the planner launches one invocation per word anyway.

struct Params {
    n: u32,
    {{FIELD}}
}

@group(0) @binding(0) var<storage, read> x: array<{{STORE}}>;
@group(0) @binding(1) var<storage, read_write> y: array<{{STORE}}>;
@group(0) @binding(2) var<uniform> p: Params;

fn apply(v: {{ACC}}) -> {{ACC}} {
    {{NAMES}}
    return {{EXPR}};
}

{{CODEC}}

@compute @workgroup_size({{GROUP}})
fn unary(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) local: u32,
) {
    let i = (group.y * groups.x + group.x) * {{GROUP}}u + local;
    if (i < words(p.n)) {
        y[i] = map(x[i]);
    }
}
