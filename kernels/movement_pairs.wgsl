// y[j, i] = x[i, j] of an m by n matrix whose elements of 16 bits lie two to a word. An invocation owns a whole word of y
// and gathers its two elements: rows of odd length begin in the middle of a word, so tiles would share words.

struct Params { m: u32, n: u32 }

@group(0) @binding(0) var<storage, read> x: array<u32>;
@group(0) @binding(1) var<storage, read_write> y: array<u32>;
@group(0) @binding(2) var<uniform> p: Params;

fn element(i: u32) -> u32 {
    // Element i of y is (j, k) with i = j * m + k, hence element k * n + j of x.
    let source = (i % p.m) * p.n + i / p.m;
    return (x[source / 2u] >> ((source & 1u) * 16u)) & 0xffffu;
}

@compute @workgroup_size({{GROUP}})
fn transpose_pairs(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) local: u32,
) {
    let w = (group.y * groups.x + group.x) * {{GROUP}}u + local;
    let total = p.m * p.n;
    if (2u * w < total) {
        var word = element(2u * w);
        if (2u * w + 1u < total) {
            word |= element(2u * w + 1u) << 16u;
        }
        y[w] = word;
    }
}

// y = x, word by word: the second half of transposing in place.
@compute @workgroup_size({{GROUP}})
fn copy_words(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) local: u32,
) {
    let w = (group.y * groups.x + group.x) * {{GROUP}}u + local;
    if (w < (p.m * p.n + 1u) / 2u) {
        y[w] = x[w];
    }
}
