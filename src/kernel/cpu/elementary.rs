//! tanh, gelu, log, sin, cos and pow of f32 without branches, so that loops over them become vector code.
//!
//! Arguments that would need a branch (see `wide_angle` and `odd_power`) are left to the standard library, one at a time, by
//! whoever loops. Polynomials are minimax fits by Remez' exchange; their errors are given relative to the function. The limits
//! below hold for every 31st of the 2^32 arguments (pow: for as many random pairs), see docs/cpu.md.
//!
//! tanh: x + x³·P(x²) below 0.55, where P's error is 1e-9; beyond, 1 - 2/(e^2x + 1), where the quotient is at most a half of the
//! result and so are its errors. At most 2 ulp.
//!
//! gelu with fused steps: below 0.6 x·(0.5 + x·P(x²)), P's error 1.2e-8 of the result; beyond, max(x, 0) - e^(-t²/2)·V(t) with t = |x|,
//! where V, t·e^(t²/2) times the normal distribution's tail, lies within 0.2 and 0.4 and is a polynomial in (t - 1.5)/(t + 3) with
//! an error of 1.5e-8; so the relative error stays bounded where 1 + erf cancels. At most 2 ulp. The first number of the quotient
//! is 1.5166..., where V lies within 5e-10 of a number of f32; coefficients were moved by some last places until the largest error
//! of all arguments was below 2.
//!
//! gelu without fused steps: max(x, 0) - t·Q(t) with the tail Q(t) = e^(-t²/2)·W(t)/(t + 4), where W is a polynomial in
//! (t - 4)/(t + 4) with an error of 9e-9; in f64. gelu_tanh, too, is computed in f64, x/(1 + e^-v). At most 1 ulp.
//!
//! log: x = 2^e·(1 + f) with 1 + f in [√½, √2); log(1 + f) = f - f²/2 + f³·P(f), P's error 8e-10; e·ln 2 in two parts, the first
//! of which is exact for all e. At most 1 ulp.
//!
//! sin, cos: x = n·π/2 + r with π/2 in three parts and fused steps (Cody and Waite, 1980); the errors of the polynomials on
//! |r| <= π/4 are 4e-9 and 2e-10. At most 2 ulp for |x| <= 30,000.
//!
//! pow: 2^(y·log2|x|) in f64, where log2's series in (m - 1)/(m + 1) has an error of 4e-12 and 2^r one of 4e-11: for results
//! within f32's range 1e-9 in all, and one rounding. At most 1 ulp.

use super::math::Real;
use super::simd::Style;

/// Horner's scheme; coefficients from the highest power down.
macro_rules! horner {
    ($style:ident, $x:expr, $first:expr $(, $c:expr)*) => {{
        let x = $x;
        let sum = $first;
        $(let sum = fused::<$style>(sum, x, $c);)*
        sum
    }};
}

#[inline(always)]
fn fused<S: Style>(a: impl Into<f32> + Copy, b: f32, c: f32) -> f32 {
    Real::fma::<S>(a.into(), b, c)
}

/// Natural logarithm of a positive normal number times 2^shift.
#[inline(always)]
pub(super) fn log_normal<S: Style>(x: f32, shift: i32) -> f32 {
    /// Bits of √½.
    const ROOT: i32 = 0x3f35_04f3;
    /// ln 2: the first part has 15 bits, so that its products with exponents are exact.
    const LN2: [f32; 2] = [0.693_145_75, 1.428_606_8e-6];
    let bits = x.to_bits() as i32;
    let e = bits.wrapping_sub(ROOT) >> 23;
    let f = f32::from_bits(bits.wrapping_sub(e << 23) as u32) - 1.0;
    let e = (e + shift) as f32;
    let p = horner!(
        S,
        f,
        0.067_466_51f32,
        -0.116_756_54,
        0.118_881_59,
        -0.124_055_885,
        0.142_195_52,
        -0.166_679_96,
        0.200_021_19,
        -0.250_000_1,
        0.333_333_13
    );
    let square = f * f;
    let low = fused::<S>(e, LN2[1], p * f * square);
    fused::<S>(e, LN2[0], f + fused::<S>(-0.5, square, low))
}

/// Natural logarithm.
#[inline(always)]
pub(super) fn log<S: Style>(x: f32) -> f32 {
    let small = x < f32::MIN_POSITIVE;
    let log = log_normal::<S>(if small { x * 8_388_608.0 } else { x }, if small { -23 } else { 0 });
    let log = if x == 0.0 { f32::NEG_INFINITY } else { log };
    let log = if x < 0.0 { f32::NAN } else { log };
    // Infinity, and NaN, which no comparison is true for.
    if x < f32::INFINITY { log } else { x }
}

/// Hyperbolic tangent.
#[inline(always)]
pub(super) fn tanh<S: Style>(x: f32) -> f32 {
    let y = x.abs();
    // From here on the result is 1; NaN passes through.
    let y = if y > 10.0 { 10.0 } else { y };
    let z = y * y;
    let p = horner!(S, z, -0.006_272_166f32, 0.021_070_3, -0.053_851_996, 0.133_325_83, -0.333_333_16);
    let near = fused::<S>(y * z, p, y);
    let far = 1.0 - 2.0 / (Real::exp_near::<S>(y + y) + 1.0);
    (if y < 0.55 { near } else { far }).copysign(x)
}

/// x·(1 + erf(x/√2))/2.
#[inline(always)]
pub(super) fn gelu<S: Style>(x: f32) -> f32 {
    if S::FMA { gelu_fused::<S>(x) } else { gelu_wide::<S>(x) }
}

#[inline(always)]
fn gelu_fused<S: Style>(x: f32) -> f32 {
    /// 2^-64: with it the powers of two that the tail is multiplied with stay in f32's range.
    const LOW: f32 = f32::from_bits(63 << 23);
    /// ln 2: the first part has 12 bits, so that its products with exponents are exact.
    const LN2: [f32; 2] = [0.693_359_4, -2.121_944_4e-4];
    /// 1.5·2^23: adding it rounds to an integer, which is then in the low bits.
    const ROUND: f32 = 12_582_912.0;
    let t = x.abs();
    // From here on the tail is zero; NaN passes through.
    let t = if t > 15.0 { 15.0 } else { t };
    let square = t * t;
    let near = t < 0.6;
    // Both ranges go through the same steps with numbers of their own: choosing those is cheaper than taking both ways.
    let pick = |a: f32, b: f32| if near { a } else { b };
    // e^(-t²/2) = 2^n·e^(-r/2) with t² = r - 2·n·ln 2, n <= 0; what the square lost belongs to r. q = e^(-r/2) - 1.
    let low = fused::<S>(t, t, -square);
    let shifted = fused::<S>(square, -0.5 * std::f32::consts::LOG2_E, ROUND);
    let n = shifted - ROUND;
    let r = fused::<S>(n, 2.0 * LN2[0], square) + fused::<S>(n, 2.0 * LN2[1], low);
    let q = horner!(S, r, 2.163_075_6e-5f32, -0.000_261_693_73, 0.002_604_270_4, -0.020_833_075, 0.125);
    let q = fused::<S>(q * r, r, -0.5 * r);
    let z = (t - 1.516_601_6) / (t + 3.0);
    let v = horner!(
        S,
        z,
        -0.005_095_954 * LOW,
        0.009_784_607 * LOW,
        0.013_488_468 * LOW,
        -0.035_442_85 * LOW,
        -0.062_256_012 * LOW
    );
    let v = pick(-0.001_095_467_1, fused::<S>(v, z, 0.292_355_2 * LOW));
    let v = horner!(
        S,
        pick(square, z),
        v,
        pick(0.009_948_184, -0.436_023_03 * LOW),
        pick(-0.066_487_715, 0.312_288_6 * LOW),
        pick(0.398_942_2, 0.309_829_06 * LOW)
    );
    // x·P + 0.5 times x, or V·q + V times -2^n, added to what is not the tail. Zeros are negative as gelu(-0) is.
    let sum = fused::<S>(pick(x, q), v, pick(0.5, v));
    let scale = f32::from_bits((shifted.to_bits() << 23).wrapping_add((-1.0 / LOW).to_bits()));
    fused::<S>(sum, pick(x, scale), if x > 0.0 && !near { x } else { -0.0 })
}

/// In f64, for styles whose steps are rounded twice.
#[inline(always)]
fn gelu_wide<S: Style>(x: f32) -> f32 {
    let t = x.abs();
    // From here on the tail is zero; NaN passes through.
    let t = f64::from(if t > 15.0 { 15.0 } else { t });
    let d = t / (t + 4.0);
    let z = Real::fma::<S>(d, 2.0, -1.0);
    let mut w = -0.000_134_196_352_196_227;
    for c in [
        0.000_174_659_278_049_949_6,
        0.001_568_408_367_005_562,
        -0.003_510_210_906_356_056_3,
        -0.007_524_004_384_051_324,
        0.060_403_489_460_443_854,
        -0.186_523_656_303_470_23,
        0.387_136_916_519_923_3,
        -0.607_896_579_876_155_3,
        0.755_285_135_253_054_2,
    ] {
        w = Real::fma::<S>(w, z, c);
    }
    let tail = d * w * power_of_two::<S>(t * t * (-0.5 * std::f64::consts::LOG2_E));
    let whole = f64::from(if x > 0.0 { x } else { 0.0 });
    ((whole - tail) as f32).copysign(x)
}

/// x·(1 + tanh u)/2 = x/(1 + e^-2u) with u = √(2/π)·(x + 0.044715·x³).
#[inline(always)]
pub(super) fn gelu_tanh<S: Style>(x: f32) -> f32 {
    /// 2·√(2/π).
    const SCALE: f64 = 1.595_769_121_605_730_8;
    // Below, the result is -0; NaN passes through.
    let x = f64::from(if x < -40.0 { -40.0 } else { x });
    let v = x * Real::fma::<S>(x * x, 0.044_715 * SCALE, SCALE);
    let p = -std::f64::consts::LOG2_E * v.abs();
    let e = power_of_two::<S>(if p < -1_000.0 { -1_000.0 } else { p });
    (x * (if v < 0.0 { e } else { 1.0 }) / (1.0 + e)) as f32
}

/// 2^p for |p| <= 1,000.
#[inline(always)]
fn power_of_two<S: Style>(p: f64) -> f64 {
    /// 1.5·2^52: adding it rounds to an integer, which is then in the low bits.
    const ROUND: f64 = 6_755_399_441_055_744.0;
    let n = p + ROUND;
    let r = p - (n - ROUND);
    let mut result = 1.520_190_292_994_735_6e-5;
    for c in [
        0.000_154_693_173_293_653_94,
        0.001_333_392_284_738_665_2,
        0.009_618_027_172_691_024,
        0.055_504_103_528_424_75,
        0.240_226_511_987_553_38,
        0.693_147_180_728_713_4,
        0.999_999_999_961_621_1,
    ] {
        result = Real::fma::<S>(result, r, c);
    }
    result * f64::from_bits(n.to_bits().wrapping_add(1023) << 52)
}

/// sin(x + quarters·π/2) for |x| <= 30,000.
#[inline(always)]
pub(super) fn sine<S: Style>(x: f32, quarters: u32) -> f32 {
    /// 1.5·2^23: adding it rounds to an integer, which is then in the low bits.
    const ROUND: f32 = 12_582_912.0;
    /// All positive, so that the steps keep the sign of a zero.
    const HALF_PI: [f32; 3] = [f32::from_bits(0x3fc9_0fda), f32::from_bits(0x33a2_2168), f32::from_bits(0x27c2_34c5)];
    const SIGN: u32 = 1 << 31;
    let t = fused::<S>(x, std::f32::consts::FRAC_2_PI, ROUND);
    let n = t - ROUND;
    let r = fused::<S>(-n, HALF_PI[0], x);
    let r = fused::<S>(-n, HALF_PI[1], r);
    let r = fused::<S>(-n, HALF_PI[2], r);
    let z = r * r;
    // An even multiple leaves r + r³·(...), an odd one 1 + r²·(...): the same steps with numbers of their own.
    let q = t.to_bits().wrapping_add(quarters);
    let pick = |a: f32, b: f32| if q & 1 == 0 { a } else { b };
    let p = horner!(
        S,
        z,
        pick(0.0, 2.443_308_4e-5),
        pick(-0.000_195_172_35, -0.001_388_731_5),
        pick(0.008_332_178, 0.041_666_646),
        pick(-0.166_666_55, -0.5)
    );
    let first = pick(r, 1.0);
    let v = fused::<S>(p, z * first, first);
    // The sign of the first term, also of a zero.
    f32::from_bits(v.to_bits() & !SIGN | (first.to_bits() ^ q << 30) & SIGN)
}

/// True for the arguments that [`power`] is not for: its zeros, infinities and NaN have rules of their own.
#[inline(always)]
pub(super) fn odd_power(x: f32, y: f32) -> bool {
    let finite = |v: f32| v.abs() < f32::INFINITY;
    !finite(x) | !finite(y) | (x == 0.0)
}

/// x^y.
#[inline(always)]
pub(super) fn power<S: Style>(x: f32, y: f32) -> f32 {
    /// Bits of √½.
    const ROOT: i64 = 0x3fe6_a09e_667f_3bcd;
    /// 1.5·2^52, as above.
    const ROUND: f64 = 6_755_399_441_055_744.0;
    let (magnitude, wide) = (f64::from(x.abs()), f64::from(y));
    let bits = magnitude.to_bits() as i64;
    // Of the difference only the exponent's bits stay: an arithmetic shift, which not every vector unit has.
    let exponent = bits.wrapping_sub(ROOT) & !0xf_ffff_ffff_ffff;
    let m = f64::from_bits(bits.wrapping_sub(exponent) as u64);
    let e = f64::from_bits((exponent as u64 >> 52 ^ 0x800).wrapping_add(ROUND.to_bits()).wrapping_sub(0x800)) - ROUND;
    let t = (m - 1.0) / (m + 1.0);
    let z = t * t;
    let mut series = 0.340_730_107_406_234_7;
    for c in [0.411_672_718_714_383_55, 0.577_083_584_976_405_8, 0.961_796_673_341_682, 2.885_390_081_790_086_4] {
        series = Real::fma::<S>(series, z, c);
    }
    let p = Real::fma::<S>(series, t, e) * wide;
    // Beyond these f32 has no numbers.
    let p = if p > 200.0 { 200.0 } else { p };
    let p = if p < -200.0 { -200.0 } else { p };
    let result = power_of_two::<S>(p) as f32;
    // A negative x: only whole powers exist, and odd ones are negative. From 2^24 on all numbers are even.
    let whole = y.trunc() == y;
    let half = 0.5 * y;
    let odd = half.trunc() != half;
    let signed = if odd { -result } else { result };
    let negative = if whole { signed } else { f32::NAN };
    if x < 0.0 { negative } else { result }
}
