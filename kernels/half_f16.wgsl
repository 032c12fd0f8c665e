// f16 in words of two, converted by hand: pack2x16float leaves its rounding to the driver.

fn is_nan(v: f32) -> bool {
    return (bitcast<u32>(v) & 0x7fffffffu) > 0x7f800000u;
}

// The half in the low 16 bits of h, exactly.
fn widen(h: u32) -> f32 {
    let sign = (h & 0x8000u) << 16u;
    let exponent = (h >> 10u) & 0x1fu;
    let fraction = h & 0x3ffu;
    if (exponent == 0x1fu) {
        return bitcast<f32>(sign | 0x7f800000u | (fraction << 13u));
    }
    if (exponent == 0u) {
        // Subnormal: an integer times 2^-24.
        return bitcast<f32>(sign | bitcast<u32>(f32(fraction) * 5.9604644775390625e-8));
    }
    return bitcast<f32>(sign | ((exponent + 112u) << 23u) | (fraction << 13u));
}

// Nearest half, ties to even; overflow gives infinity, NaN stays NaN.
fn narrow(v: f32) -> u32 {
    let bits = bitcast<u32>(v);
    let sign = (bits >> 16u) & 0x8000u;
    let a = bits & 0x7fffffffu;
    if (a > 0x7f800000u) {
        return sign | 0x7e00u;
    }
    // 65520 and beyond round to infinity.
    if (a >= 0x477ff000u) {
        return sign | 0x7c00u;
    }
    if (a < 0x38800000u) {
        // Below 2^-14: round the significand to a multiple of 2^-24.
        let exponent = a >> 23u;
        if (exponent < 102u) {
            return sign;
        }
        let m = (a & 0x7fffffu) | 0x800000u;
        let shift = 126u - exponent;
        return sign | ((m + ((1u << (shift - 1u)) - 1u) + ((m >> shift) & 1u)) >> shift);
    }
    return sign | ((a + 0xfffu + ((a >> 13u) & 1u) - 0x38000000u) >> 13u);
}
