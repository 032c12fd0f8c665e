// x becomes its own transpose, an n by n matrix. The group of tile (i, j) with i <= j swaps it with tile (j, i); groups
// below the diagonal find nothing to do. T is an unsigned word of the element's size, as in movement.wgsl.

struct Params { n: u32 }

@group(0) @binding(0) var<storage, read_write> x: array<{{T}}>;
@group(0) @binding(1) var<uniform> p: Params;

var<workgroup> upper: array<{{T}}, 272>;
var<workgroup> lower: array<{{T}}, 272>;

@compute @workgroup_size(16, 16)
fn transpose_inplace(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_id) local: vec3<u32>,
) {
    let flat = group.y * groups.x + group.x;
    let across = (p.n + 15u) / 16u;
    let i0 = (flat / across) * 16u;
    let j0 = (flat % across) * 16u;
    // Rows from n on do not exist, nor do tiles below the diagonal for this group.
    let end = select(0u, p.n, i0 <= j0);
    let here = i0 + local.y < end && j0 + local.x < end;
    let there = j0 + local.y < end && i0 + local.x < end;
    let at = (i0 + local.y) * p.n + j0 + local.x;
    let mirror = (j0 + local.y) * p.n + i0 + local.x;
    if (here) {
        upper[local.y * 17u + local.x] = x[at];
    }
    if (there) {
        lower[local.y * 17u + local.x] = x[mirror];
    }
    workgroupBarrier();
    if (there) {
        x[mirror] = upper[local.x * 17u + local.y];
    }
    if (here && i0 != j0) {
        x[at] = lower[local.x * 17u + local.y];
    }
}
