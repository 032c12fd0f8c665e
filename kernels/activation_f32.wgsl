fn words(n: u32) -> u32 {
    return n;
}

fn is_nan(v: f32) -> bool {
    return (bitcast<u32>(v) & 0x7fffffffu) > 0x7f800000u;
}

fn map(x: f32, b: f32, alpha: f32) -> f32 {
    return apply(x, b, alpha);
}
