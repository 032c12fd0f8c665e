// y[i] = EXPR(a[i], b[i]), operands named x and b in the expression. T is the element and the arithmetic.

struct Same { n: u32 }
struct Broadcast {
    n: u32,
    d0: u32, d1: u32, d2: u32, d3: u32,
    a0: u32, a1: u32, a2: u32, a3: u32,
    b0: u32, b1: u32, b2: u32, b3: u32,
}

@group(0) @binding(0) var<storage, read> a: array<{{T}}>;
@group(0) @binding(1) var<storage, read> b: array<{{T}}>;
@group(0) @binding(2) var<storage, read_write> y: array<{{T}}>;
@group(0) @binding(3) var<uniform> same: Same;
@group(0) @binding(3) var<uniform> p: Broadcast;

fn apply(x: {{T}}, b: {{T}}) -> {{T}} {
    return {{EXPR}};
}

@compute @workgroup_size({{GROUP}})
fn binary(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) local: u32,
) {
    let i = (group.y * groups.x + group.x) * {{GROUP}}u + local;
    if (i < same.n) {
        y[i] = apply(a[i], b[i]);
    }
}

// At most four axes of extents d; a stride of 0 repeats the operand along its axis.
@compute @workgroup_size({{GROUP}})
fn binary_broadcast(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) local: u32,
) {
    let i = (group.y * groups.x + group.x) * {{GROUP}}u + local;
    if (i >= p.n) {
        return;
    }
    let i3 = i % p.d3;
    let r3 = i / p.d3;
    let i2 = r3 % p.d2;
    let r2 = r3 / p.d2;
    let i1 = r2 % p.d1;
    let i0 = r2 / p.d1;
    let at_a = i0 * p.a0 + i1 * p.a1 + i2 * p.a2 + i3 * p.a3;
    let at_b = i0 * p.b0 + i1 * p.b1 + i2 * p.b2 + i3 * p.b3;
    y[i] = apply(a[at_a], b[at_b]);
}
