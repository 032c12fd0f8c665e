// Ops that stream their operands once; one invocation per element, no loops. T is the element and the arithmetic.

struct Scaled { n: u32, alpha: {{T}} }

// axpy: y[i] += alpha x[i].
@group(0) @binding(0) var<storage, read> x: array<{{T}}>;
@group(0) @binding(1) var<storage, read_write> y: array<{{T}}>;
@group(0) @binding(2) var<uniform> p: Scaled;

// scal: s[i] *= alpha.
@group(0) @binding(0) var<storage, read_write> s: array<{{T}}>;
@group(0) @binding(1) var<uniform> scal_params: Scaled;

// triad: sum[i] = a[i] + alpha b[i].
@group(0) @binding(0) var<storage, read> a: array<{{T}}>;
@group(0) @binding(1) var<storage, read> b: array<{{T}}>;
@group(0) @binding(2) var<storage, read_write> sum: array<{{T}}>;
@group(0) @binding(3) var<uniform> triad_params: Scaled;

@compute @workgroup_size({{GROUP}})
fn axpy(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) local: u32,
) {
    let i = (group.y * groups.x + group.x) * {{GROUP}}u + local;
    if (i < p.n) {
        y[i] = y[i] + p.alpha * x[i];
    }
}

@compute @workgroup_size({{GROUP}})
fn scal(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) local: u32,
) {
    let i = (group.y * groups.x + group.x) * {{GROUP}}u + local;
    if (i < scal_params.n) {
        s[i] = scal_params.alpha * s[i];
    }
}

@compute @workgroup_size({{GROUP}})
fn triad(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) local: u32,
) {
    let i = (group.y * groups.x + group.x) * {{GROUP}}u + local;
    if (i < triad_params.n) {
        sum[i] = a[i] + triad_params.alpha * b[i];
    }
}
