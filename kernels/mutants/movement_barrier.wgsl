// KNOWN BAD, for the self-test of verify: replaces movement.wgsl (entry `transpose`).
// Mistake: no barrier between filling the tile and reading it. Surely missed by: 1 by 1, where the reader is the
// writer. Caught by: shapes of at least one whole tile, where the members of a group do not run in step (lavapipe: 8
// at a time); on hardware it may go unnoticed.

struct Params { m: u32, n: u32 }

@group(0) @binding(0) var<storage, read> x: array<{{T}}>;
@group(0) @binding(1) var<storage, read_write> y: array<{{T}}>;
@group(0) @binding(2) var<uniform> p: Params;

// One column of padding keeps the reads of a column on different banks.
var<workgroup> tile: array<{{T}}, 272>;

// Tiles are counted along n first.
@compute @workgroup_size(16, 16)
fn transpose(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_id) local: vec3<u32>,
) {
    let flat = group.y * groups.x + group.x;
    let across = (p.n + 15u) / 16u;
    let i0 = (flat / across) * 16u;
    let j0 = (flat % across) * 16u;
    let i = i0 + local.y;
    let j = j0 + local.x;
    if (i < p.m && j < p.n) {
        tile[local.y * 17u + local.x] = x[i * p.n + j];
    }
    let row = j0 + local.y;
    let column = i0 + local.x;
    if (row < p.n && column < p.m) {
        y[row * p.m + column] = tile[local.x * 17u + local.y];
    }
}
