// y[i] = EXPR(a[i], b[i]), operands named x and b in the expression. STORE is the buffers' element (u32 for f16 and bf16:
// one word holds two neighbours, and one invocation owns the whole word), ACC the arithmetic; PAIR gives `words`, `zip`
// and `stretched`, and the number rules that EXPR may call.

struct Same { n: u32 }
struct Broadcast {
    n: u32,
    d0: u32, d1: u32, d2: u32, d3: u32,
    a0: u32, a1: u32, a2: u32, a3: u32,
    b0: u32, b1: u32, b2: u32, b3: u32,
}

@group(0) @binding(0) var<storage, read> a: array<{{STORE}}>;
@group(0) @binding(1) var<storage, read> b: array<{{STORE}}>;
@group(0) @binding(2) var<storage, read_write> y: array<{{STORE}}>;
@group(0) @binding(3) var<uniform> same: Same;
@group(0) @binding(3) var<uniform> p: Broadcast;
// For `accumulate`, which has two operands.
@group(0) @binding(1) var<storage, read_write> total: array<{{STORE}}>;
@group(0) @binding(2) var<uniform> all: Same;

fn apply(x: {{ACC}}, b: {{ACC}}) -> {{ACC}} {
    return {{EXPR}};
}

// Where the operands of result number i lie: at most four axes of extents d; a stride of 0 repeats the operand.
fn place(i: u32) -> vec2<u32> {
    let i3 = i % p.d3;
    let r3 = i / p.d3;
    let i2 = r3 % p.d2;
    let r2 = r3 / p.d2;
    let i1 = r2 % p.d1;
    let i0 = r2 / p.d1;
    return vec2<u32>(
        i0 * p.a0 + i1 * p.a1 + i2 * p.a2 + i3 * p.a3,
        i0 * p.b0 + i1 * p.b1 + i2 * p.b2 + i3 * p.b3,
    );
}

{{PAIR}}

@compute @workgroup_size({{GROUP}})
fn binary(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) local: u32,
) {
    let i = (group.y * groups.x + group.x) * {{GROUP}}u + local;
    if (i < words(same.n)) {
        y[i] = zip(a[i], b[i]);
    }
}

@compute @workgroup_size({{GROUP}})
fn binary_broadcast(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) local: u32,
) {
    let i = (group.y * groups.x + group.x) * {{GROUP}}u + local;
    if (i < words(p.n)) {
        y[i] = stretched(i);
    }
}

// total[i] = EXPR(total[i], a[i])
@compute @workgroup_size({{GROUP}})
fn accumulate(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) local: u32,
) {
    let i = (group.y * groups.x + group.x) * {{GROUP}}u + local;
    if (i < words(all.n)) {
        total[i] = zip(total[i], a[i]);
    }
}
