@group(0) @binding(0) var<storage, read> a: array<{{ACC}}>;
@group(0) @binding(1) var<storage, read> b: array<{{ACC}}>;

fn load_a(i: u32) -> {{ACC}} {
    return a[i];
}

fn load_b(i: u32) -> {{ACC}} {
    return b[i];
}
