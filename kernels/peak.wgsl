// The probe of arithmetic: eight chains per invocation that do not wait for each other.

struct Chains { n: u32, steps: u32, factor: {{T}}, term: {{T}} }

@group(0) @binding(0) var<storage, read> x: array<{{T}}>;
@group(0) @binding(1) var<storage, read_write> y: array<{{T}}>;
@group(0) @binding(2) var<uniform> p: Chains;

// What lies past n is not read; its chains start at the last element and are not stored.
fn start(i: u32) -> {{T}} {
    return x[min(i, p.n - 1u)];
}

fn keep(i: u32, v: {{T}}) {
    if (i < p.n) {
        y[i] = v;
    }
}

// y[i] = x[i] after `steps` steps v = v * factor + term.
@compute @workgroup_size({{GROUP}})
fn fma_chains(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) local: u32,
) {
    let i = (group.y * groups.x + group.x) * {{GROUP}}u * 8u + local;
    let factor = vec4<{{T}}>(p.factor);
    let term = vec4<{{T}}>(p.term);
    let step = {{GROUP}}u;
    var low = vec4<{{T}}>(start(i), start(i + step), start(i + 2u * step), start(i + 3u * step));
    var high = vec4<{{T}}>(start(i + 4u * step), start(i + 5u * step), start(i + 6u * step), start(i + 7u * step));
    for (var s = 0u; s < p.steps; s++) {
        low = fma(low, factor, term);
        high = fma(high, factor, term);
    }
    keep(i, low.x);
    keep(i + step, low.y);
    keep(i + 2u * step, low.z);
    keep(i + 3u * step, low.w);
    keep(i + 4u * step, high.x);
    keep(i + 5u * step, high.y);
    keep(i + 6u * step, high.z);
    keep(i + 7u * step, high.w);
}
