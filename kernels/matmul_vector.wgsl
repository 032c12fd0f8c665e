// y = alpha op(A) x + beta y for a range [first, end) of x. A group computes ROWS results, LANES invocations each; `row_of`
// and `lane_of` lay them out so that neighbours read neighbours of A. LOADS as in matmul.wgsl.

struct Params { m: u32, first: u32, end: u32, a_row: u32, a_col: u32, alpha: {{ACC}}, beta: {{ACC}} }

{{LOADS}}
@group(0) @binding(2) var<storage, read_write> c: array<{{ACC}}>;
@group(0) @binding(3) var<uniform> p: Params;

// [ROWS][LANES]
var<workgroup> tree: array<{{ACC}}, 256>;

@compute @workgroup_size(256)
fn gemv(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) local: u32,
) {
    let own = {{ROW_OF}};
    let lane = {{LANE_OF}};
    let row = (group.y * groups.x + group.x) * {{ROWS}}u + own;
    var s = {{ACC}}(0);
    if (row < p.m) {
        for (var j = p.first + lane; j < p.end; j += {{LANES}}u) {
            s += load_a(row * p.a_row + j * p.a_col) * load_b(j);
        }
    }
    tree[own * {{LANES}}u + lane] = s;
    workgroupBarrier();
    for (var width = {{LANES}}u / 2u; width > 0u; width /= 2u) {
        if (lane < width) {
            tree[own * {{LANES}}u + lane] += tree[own * {{LANES}}u + lane + width];
        }
        workgroupBarrier();
    }
    if (lane == 0u && row < p.m) {
        var r = p.alpha * tree[own * {{LANES}}u];
        // beta = 0 must not read y: it may hold NaN.
        if (p.beta != {{ACC}}(0)) {
            r += p.beta * c[row];
        }
        c[row] = r;
    }
}
