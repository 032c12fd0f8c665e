// Words are moved or written whatever they hold: every bit is kept. The last one may reach into the padding behind short
// elements.

struct Copy { words: u32 }
struct Fill { words: u32, even: u32, odd: u32 }

@group(0) @binding(0) var<storage, read> x: array<u32>;
@group(0) @binding(1) var<storage, read_write> y: array<u32>;
@group(0) @binding(2) var<uniform> p: Copy;

@group(0) @binding(0) var<storage, read_write> filled: array<u32>;
@group(0) @binding(1) var<uniform> q: Fill;

@compute @workgroup_size({{GROUP}})
fn copy(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) local: u32,
) {
    let i = (group.y * groups.x + group.x) * {{GROUP}}u + local;
    if (i < p.words) {
        y[i] = x[i];
    }
}

// Elements of 8 bytes have two words, shorter ones repeat within one.
@compute @workgroup_size({{GROUP}})
fn fill(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) local: u32,
) {
    let i = (group.y * groups.x + group.x) * {{GROUP}}u + local;
    if (i < q.words) {
        filled[i] = select(q.odd, q.even, i % 2u == 0u);
    }
}
