// f16 and bf16: two to a word. The products are summed in f32 scratch; `finish` adds beta C and rounds once, each
// invocation owning a whole word of C.

@group(0) @binding(0) var<storage, read> a: array<u32>;
@group(0) @binding(1) var<storage, read> b: array<u32>;

fn load_a(i: u32) -> f32 {
    return widen((a[i / 2u] >> ((i & 1u) * 16u)) & 0xffffu);
}

fn load_b(i: u32) -> f32 {
    return widen((b[i / 2u] >> ((i & 1u) * 16u)) & 0xffffu);
}

struct Finish { n: u32, beta: f32 }

@group(0) @binding(0) var<storage, read> sums: array<f32>;
@group(0) @binding(1) var<storage, read_write> out: array<u32>;
@group(0) @binding(2) var<uniform> f: Finish;

fn finished(i: u32, old: u32) -> u32 {
    // With an odd n the last word's upper half is padding; scratch holds a whole word there too.
    var r = sums[i];
    if (f.beta != 0.0) {
        r += f.beta * widen(old);
    }
    return narrow(r);
}

// out[i] = sums[i] + beta out[i], i counting elements below n.
@compute @workgroup_size(256)
fn finish(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) local: u32,
) {
    let w = (group.y * groups.x + group.x) * 256u + local;
    if (w < (f.n + 1u) / 2u) {
        var old = 0u;
        if (f.beta != 0.0) {
            old = out[w];
        }
        out[w] = finished(2u * w, old & 0xffffu) | (finished(2u * w + 1u, old >> 16u) << 16u);
    }
}
