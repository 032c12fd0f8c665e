// The number rules in f32. A compiler may assume that NaN and infinities do not occur, and subnormal operands of
// arithmetic may be flushed: where that matters, bits are looked at.

fn n_is_nan(v: f32) -> bool {
    return (bitcast<u32>(v) & 0x7fffffffu) > 0x7f800000u;
}

fn n_neg(v: f32) -> f32 {
    return bitcast<f32>(bitcast<u32>(v) ^ 0x80000000u);
}

fn n_abs(v: f32) -> f32 {
    return bitcast<f32>(bitcast<u32>(v) & 0x7fffffffu);
}

fn n_sign(v: f32) -> f32 {
    return select(select(0.0, -1.0, v < 0.0), 1.0, v > 0.0);
}

// WGSL derives sqrt from 1 / inverseSqrt(v), which has no value at zero.
fn n_sqrt(v: f32) -> f32 {
    if ((bitcast<u32>(v) & 0x7fffffffu) == 0u) {
        return v;
    }
    return sqrt(v);
}

// Of equal numbers the first.
fn n_max(v: f32, w: f32) -> f32 {
    if (n_is_nan(v) || (v >= w && !n_is_nan(w))) {
        return v;
    }
    return w;
}

fn n_min(v: f32, w: f32) -> f32 {
    if (n_is_nan(v) || (v <= w && !n_is_nan(w))) {
        return v;
    }
    return w;
}

// WGSL's pow is exp2(w log2 v), for positive v alone: the sign, zeros, infinities and NaN by C99's rules.
fn n_pow(v: f32, w: f32) -> f32 {
    let bits = bitcast<u32>(v);
    let magnitude = bitcast<f32>(bits & 0x7fffffffu);
    let size = bitcast<u32>(w) & 0x7fffffffu;
    if (size == 0u || bits == 0x3f800000u) {
        return 1.0;
    }
    if (n_is_nan(v)) {
        return v;
    }
    if (n_is_nan(w)) {
        return w;
    }
    // From 2^24 on every f32 is even.
    let is_whole = size >= 0x4b800000u || w == trunc(w);
    let is_odd = is_whole && size < 0x4b800000u && fract(w * 0.5) != 0.0;
    let is_negative = (bits >> 31u) == 1u;
    let sign = select(0u, 0x80000000u, is_negative && is_odd);
    let one = (bits & 0x7fffffffu) == 0x3f800000u;
    if (magnitude == 0.0 || (bits & 0x7fffffffu) == 0x7f800000u || size == 0x7f800000u) {
        let grows = (magnitude > 1.0) == ((bitcast<u32>(w) >> 31u) == 0u);
        let limit = select(0u, 0x7f800000u, grows);
        return bitcast<f32>(sign | select(limit, 0x3f800000u, one));
    }
    if (is_negative && !is_whole) {
        // Not a constant: those may not be NaN.
        return bitcast<f32>(0x7fc00000u | bits);
    }
    return bitcast<f32>(bitcast<u32>(pow(magnitude, w)) ^ sign);
}
