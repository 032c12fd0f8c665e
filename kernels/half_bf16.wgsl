// bf16 in words of two: the upper half of an f32.

fn is_nan(v: f32) -> bool {
    return (bitcast<u32>(v) & 0x7fffffffu) > 0x7f800000u;
}

fn widen(h: u32) -> f32 {
    return bitcast<f32>(h << 16u);
}

// Nearest bf16, ties to even; overflow gives infinity, NaN stays NaN.
fn narrow(v: f32) -> u32 {
    let bits = bitcast<u32>(v);
    if ((bits & 0x7fffffffu) > 0x7f800000u) {
        return (bits >> 16u) | 0x40u;
    }
    return (bits + 0x7fffu + ((bits >> 16u) & 1u)) >> 16u;
}
