// Comparisons with zero by bits: NaN is never negative, and a subnormal number is not zero.

// x < 0.
fn negative(x: f32) -> bool {
    let bits = bitcast<u32>(x);
    return bits > 0x80000000u && bits <= 0xff800000u;
}

// x <= 0.
fn dead(x: f32) -> bool {
    let bits = bitcast<u32>(x);
    return bits == 0u || (bits >= 0x80000000u && bits <= 0xff800000u);
}
