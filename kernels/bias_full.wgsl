@group(0) @binding(0) var<storage, read> x: array<{{ACC}}>;
@group(0) @binding(1) var<storage, read> b: array<{{ACC}}>;
@group(0) @binding(2) var<storage, read_write> y: array<{{ACC}}>;
@group(0) @binding(3) var<uniform> q: Add;

fn load(i: u32) -> {{ACC}} {
    return x[i];
}

@compute @workgroup_size({{GROUP}})
fn bias_add(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) local: u32,
) {
    let i = (group.y * groups.x + group.x) * {{GROUP}}u + local;
    if (i < q.n) {
        y[i] = x[i] + b[i / q.inner % q.c];
    }
}
