// The emptiest useful launch: stores a token, so that a launch that never ran is noticed.

@group(0) @binding(0) var<storage, read_write> y: array<i32>;

@compute @workgroup_size(1)
fn launch() {
    y[0] = {{TOKEN}};
}
