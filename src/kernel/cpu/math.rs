//! Elementary functions without branches, so that loops over them become vector code.
//!
//! exp: Cody and Waite's reduction x = n·ln2 + r, a polynomial on |r| <= ln2/2, scaling by 2^n in two steps so
//! that subnormal results are rounded once more at most. Error below 1.5 ulp (see the tests).
//! tanh of f64 (f32's is in `elementary`): expm1(2|x|) / (expm1(2|x|) + 2) with the same reduction. Three roundings reach the result undamped (the last sum of
//! expm1, e + 2, the quotient), those of the polynomial by at most a half; each is at most one ulp of the result: below
//! 4 ulp.
//! log, sin, cos and pow of f32 are those of `elementary` where the style has fused steps. Else, and of f64, they are the
//! standard library's (on Linux glibc's), one number at a time, as is tan: argument reduction and special values are right
//! there, and the error stays below 1 ulp (2 for tan and pow, see the tests).

use std::ops::{Add, Div, Mul, Neg, Sub};

use super::elementary;
use super::simd::Style;

/// f32 and f64 as the kernels' templates see them.
pub trait Real:
    bytemuck::Pod
    + Send
    + Sync
    + PartialOrd
    + Default
    + Add<Output = Self>
    + Sub<Output = Self>
    + Mul<Output = Self>
    + Div<Output = Self>
    + Neg<Output = Self>
{
    /// Whole numbers of the same width.
    type Bits: Copy + Ord + Default;
    /// True for f64.
    const WIDE: bool = size_of::<Self>() == 8;
    /// The largest [`Real::magnitude`] for which e^x and e^-x are normal numbers, and the largest whose sine and cosine need no more
    /// than [`Real::sin`] and [`Real::cos`] of a style that has vectors.
    const NEAR: Self::Bits;
    /// See [`Real::NEAR`].
    const ANGLE: Self::Bits;
    /// [`Real::above_least`] of the largest number.
    const FINITE: Self::Bits;
    /// From f64, rounded.
    fn of(x: f64) -> Self;
    /// To f64.
    fn to_f64(self) -> f64;
    /// a·b + c, fused where the style has it.
    fn fma<S: Style>(self, b: Self, c: Self) -> Self;
    /// e^x.
    fn exp<S: Style>(self) -> Self;
    /// e^x up to [`Real::NEAR`]: the same bits with half the work.
    fn exp_near<S: Style>(self) -> Self;
    /// 1/(1 + e^-x).
    fn logistic<S: Style>(self) -> Self;
    /// |x| as whole numbers in its order, NaN above infinity.
    fn magnitude(self) -> Self::Bits;
    /// Positive normal numbers as whole numbers in their order, the least of all first; everything else above [`Real::FINITE`].
    fn above_least(self) -> Self::Bits;
    /// Hyperbolic tangent.
    fn tanh<S: Style>(self) -> Self;
    /// The same by expm1, whatever the style.
    fn tanh_by_expm1<S: Style>(self) -> Self;
    /// True for NaN.
    fn is_unordered(self) -> bool;
    /// Magnitude; NaN stays NaN.
    fn abs(self) -> Self;
    /// Square root, correctly rounded.
    fn sqrt(self) -> Self;
    /// The largest and the smallest; of none, or with a NaN among them, NaN twice.
    fn extremes(x: &[Self]) -> (Self, Self);
    /// Natural logarithm.
    fn ln<S: Style>(self) -> Self;
    /// Natural logarithm of a positive normal number.
    fn ln_normal<S: Style>(self) -> Self;
    /// Sine; with a style that has vectors only up to [`Real::ANGLE`].
    fn sin<S: Style>(self) -> Self;
    /// Cosine; as the sine.
    fn cos<S: Style>(self) -> Self;
    /// Tangent (standard library).
    fn tan(self) -> Self;
    /// x^y by C99's rules for special values; with a style that has vectors only where [`Real::is_odd_power`] is false.
    fn pow<S: Style>(self, y: Self) -> Self;
    /// True for operands whose power only [`Textbook`](super::simd::Textbook) finds.
    fn is_odd_power(self, y: Self) -> bool;
}

/// The functions that f32 has in `elementary`, and f64 in the standard library alone.
macro_rules! functions {
    (f32) => {
        #[inline(always)]
        fn tanh<S: Style>(self) -> f32 {
            if S::TEXTBOOK { f32::tanh(self) } else { elementary::tanh::<S>(self) }
        }
        #[inline(always)]
        fn ln<S: Style>(self) -> f32 {
            if S::FMA { elementary::log::<S>(self) } else { f32::ln(self) }
        }
        #[inline(always)]
        fn ln_normal<S: Style>(self) -> f32 {
            if S::FMA { elementary::log_normal::<S>(self, 0) } else { f32::ln(self) }
        }
        #[inline(always)]
        fn sin<S: Style>(self) -> f32 {
            if S::FMA { elementary::sine::<S>(self, 0) } else { f32::sin(self) }
        }
        #[inline(always)]
        fn cos<S: Style>(self) -> f32 {
            if S::FMA { elementary::sine::<S>(self, 1) } else { f32::cos(self) }
        }
        #[inline(always)]
        fn pow<S: Style>(self, y: f32) -> f32 {
            if S::FMA { elementary::power::<S>(self, y) } else { f32::powf(self, y) }
        }
        #[inline(always)]
        fn is_odd_power(self, y: f32) -> bool {
            elementary::odd_power(self, y)
        }
    };
    (f64) => {
        #[inline(always)]
        fn tanh<S: Style>(self) -> f64 {
            if S::TEXTBOOK { f64::tanh(self) } else { self.tanh_by_expm1::<S>() }
        }
        #[inline(always)]
        fn ln<S: Style>(self) -> f64 {
            f64::ln(self)
        }
        #[inline(always)]
        fn ln_normal<S: Style>(self) -> f64 {
            f64::ln(self)
        }
        #[inline(always)]
        fn sin<S: Style>(self) -> f64 {
            f64::sin(self)
        }
        #[inline(always)]
        fn cos<S: Style>(self) -> f64 {
            f64::cos(self)
        }
        #[inline(always)]
        fn pow<S: Style>(self, y: f64) -> f64 {
            f64::powf(self, y)
        }
        #[inline(always)]
        fn is_odd_power(self, _: f64) -> bool {
            false
        }
    };
}

/// e^r for x = n·ln 2 + r, and n: the integer sits in the low bits of t.
macro_rules! reduced {
    ($style:ident, $t:tt, $ibits:ident, $x:expr, $ln2_hi:expr, $ln2_lo:expr, $magic:expr, $c:expr) => {{
        let x = $x;
        let t = x.fma::<$style>(std::$t::consts::LOG2_E, $magic);
        let n = t - $magic;
        let r = n.fma::<$style>(-$ln2_hi, x);
        let r = n.fma::<$style>(-$ln2_lo, r);
        let p = poly::<$style, $t>(r, &$c).fma::<$style>(r, 1.0);
        (p, (t.to_bits() as $ibits).wrapping_sub($magic.to_bits() as $ibits))
    }};
}

macro_rules! real {
    ($t:tt, $bits:ident, $ibits:ident, $mant:literal, $bias:literal, $low:literal, $high:literal, $near:literal, $one:literal, $sat:literal,
     $ln2_hi:expr, $ln2_lo:expr, $magic:expr, [$($c:expr),*]) => {
        impl Real for $t {
            type Bits = $ibits;
            const NEAR: $ibits = <$t>::to_bits($near) as $ibits;
            const ANGLE: $ibits = <$t>::to_bits(30_000.0) as $ibits;
            const FINITE: $ibits =
                ($t::MAX.to_bits().wrapping_sub($t::MIN_POSITIVE.to_bits()) ^ 1 << ($bits::BITS - 1)) as $ibits;
            #[inline(always)]
            fn of(x: f64) -> Self {
                x as $t
            }
            #[inline(always)]
            fn to_f64(self) -> f64 {
                f64::from(self)
            }
            #[inline(always)]
            fn fma<S: Style>(self, b: Self, c: Self) -> Self {
                if S::FMA { self.mul_add(b, c) } else { self * b + c }
            }
            #[inline(always)]
            fn exp<S: Style>(self) -> Self {
                if S::TEXTBOOK {
                    return $t::exp(self);
                }
                // Comparisons, not min and max: NaN must pass through.
                let x = if self < $low { $low } else { self };
                let x = if x > $high { $high } else { x };
                let (p, i) = reduced!(S, $t, $ibits, x, $ln2_hi, $ln2_lo, $magic, [$($c),*]);
                let half = i >> 1;
                let pow2 = |e: $ibits| $t::from_bits(((e + $bias) << $mant) as $bits);
                p * pow2(half) * pow2(i - half)
            }
            #[inline(always)]
            fn exp_near<S: Style>(self) -> Self {
                if S::TEXTBOOK {
                    return $t::exp(self);
                }
                let (p, i) = reduced!(S, $t, $ibits, self, $ln2_hi, $ln2_lo, $magic, [$($c),*]);
                p * $t::from_bits((i.wrapping_add($bias) << $mant) as $bits)
            }
            #[inline(always)]
            fn logistic<S: Style>(self) -> Self {
                if S::TEXTBOOK {
                    let e = $t::exp(-$t::abs(self));
                    return (if self < 0.0 { e } else { 1.0 }) / (1.0 + e);
                }
                // 2^-32 for f32: sums and quotient are taken of numbers that much smaller, e^104 would leave the range.
                const LOW: $t = $t::from_bits((($bias - $bias / 4 - 1) as $bits) << $mant);
                // Beyond, the result is 0 or 1; NaN passes through.
                let v = if self < $low { $low } else { self };
                let v = if v > $one { $one } else { v };
                // e^-v = (1 + q)·s / LOW.
                let t = v.fma::<S>(-std::$t::consts::LOG2_E, $magic);
                let n = t - $magic;
                let r = n.fma::<S>(-$ln2_hi, -v);
                let r = n.fma::<S>(-$ln2_lo, r);
                let c = [$($c),*];
                let q = (poly::<S, $t>(r, &c[..c.len() - 1]) * r).fma::<S>(r, r);
                let s = $t::from_bits((t.to_bits() << $mant).wrapping_add(LOW.to_bits()));
                // 1 + s + q·s with one rounding where 1 + s needs none; where it would, s is added last.
                let far = v < -8.0;
                let (first, last) = (if far { LOW } else { LOW + s }, if far { s } else { 0.0 });
                LOW / (q.fma::<S>(s, first) + last)
            }
            #[inline(always)]
            fn magnitude(self) -> Self::Bits {
                (self.to_bits() & ($bits::MAX >> 1)) as $ibits
            }
            #[inline(always)]
            fn above_least(self) -> Self::Bits {
                // Without a sign negative numbers and NaN lie above infinity, and what is below the least wraps around; signed
                // numbers are what vector units compare.
                (self.to_bits().wrapping_sub($t::MIN_POSITIVE.to_bits()) ^ 1 << ($bits::BITS - 1)) as $ibits
            }
            #[inline(always)]
            fn tanh_by_expm1<S: Style>(self) -> Self {
                let y = self.abs();
                let y = if y > $sat { $sat } else { y };
                let x = y + y;
                let t = x.fma::<S>(std::$t::consts::LOG2_E, $magic);
                let n = t - $magic;
                let r = n.fma::<S>(-$ln2_hi, x);
                let r = n.fma::<S>(-$ln2_lo, r);
                // expm1(r) = r + r·(r/2 + ...): adding r last leaves one rounding near zero; r · (1 + ...) has two, and
                // exceeds 3 ulp just below powers of two.
                let c = [$($c),*];
                let q = (poly::<S, $t>(r, &c[..c.len() - 1]) * r).fma::<S>(r, r);
                let i = t.to_bits() as $ibits - $magic.to_bits() as $ibits;
                let s = $t::from_bits(((i + $bias) << $mant) as $bits);
                let e = q.fma::<S>(s, s - 1.0);
                (e / (e + 2.0)).copysign(self)
            }
            #[inline(always)]
            fn is_unordered(self) -> bool {
                self.is_nan()
            }
            #[inline(always)]
            fn abs(self) -> Self {
                $t::abs(self)
            }
            #[inline(always)]
            fn sqrt(self) -> Self {
                $t::sqrt(self)
            }
            #[inline(always)]
            fn extremes(x: &[$t]) -> ($t, $t) {
                // As whole numbers of the same order: the compiler may compare those in any order, so in vectors. NaN
                // lie beyond the infinities.
                let turned = |v: $ibits| v ^ (v >> ($ibits::BITS - 1) & $ibits::MAX);
                let infinity = $t::INFINITY.to_bits() as $ibits;
                let (mut top, mut low) = ($ibits::MIN, $ibits::MAX);
                for v in x {
                    let v = turned(v.to_bits() as $ibits);
                    top = top.max(v);
                    low = low.min(v);
                }
                if top > infinity || low < turned(infinity | $ibits::MIN) || x.is_empty() {
                    return ($t::NAN, $t::NAN);
                }
                ($t::from_bits(turned(top) as $bits), $t::from_bits(turned(low) as $bits))
            }
            #[inline(always)]
            fn tan(self) -> Self {
                $t::tan(self)
            }
            functions!($t);
        }
    };
}

/// Horner's scheme; coefficients from the highest power down.
#[inline(always)]
fn poly<S: Style, R: Real>(x: R, c: &[R]) -> R {
    let mut acc = c[0];
    for &k in &c[1..] {
        acc = acc.fma::<S>(x, k);
    }
    acc
}

// Coefficients of (e^r - 1)/r: f32's by Remez' exchange, 2e-9 of e^r; f64's 1/n!. ln2_hi has trailing zeros so that n·ln2_hi is exact (Cody and Waite, 1980).
real!(
    f32,
    u32,
    i32,
    23,
    127,
    -104.0,
    89.0,
    87.0,
    30.0,
    10.0,
    0.693_359_4_f32,
    -2.121_944_4e-4_f32,
    12_582_912.0_f32,
    [1.384_360_7e-3, 8.374_196e-3, 4.166_800_5e-2, 0.166_664_3, 0.499_999_94, 1.0]
);
real!(
    f64,
    u64,
    i64,
    52,
    1023,
    -746.0,
    710.0,
    708.0,
    45.0,
    22.0,
    0.693_147_180_369_123_8_f64,
    1.908_214_929_270_587_7e-10_f64,
    6_755_399_441_055_744.0_f64,
    [
        1.0 / 6_227_020_800.0,
        1.0 / 479_001_600.0,
        1.0 / 39_916_800.0,
        1.0 / 3_628_800.0,
        1.0 / 362_880.0,
        1.0 / 40320.0,
        1.0 / 5040.0,
        1.0 / 720.0,
        1.0 / 120.0,
        1.0 / 24.0,
        1.0 / 6.0,
        0.5,
        1.0
    ]
);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::exact::{Exact, max_finite, ulp};
    use crate::base::{DType, rng::Philox};
    use crate::kernel::cpu::simd::{Fused, Plain, Textbook};

    fn worst<R: Real>(dtype: DType, range: f64, f: fn(R) -> R, oracle: fn(Exact) -> Exact) -> f64 {
        let rng = Philox::new(11);
        (0..20_000u64)
            .map(|i| {
                // Near zero rounding errors weigh most: the result lies anywhere between two powers of two.
                let scale = [range, 1.5, 0.03, 0.0157][(i % 4) as usize];
                let x = R::of((rng.unit(0, i) * 2.0 - 1.0) * scale);
                let want = oracle(Exact::f(x.to_f64()));
                if want.to_f64() > max_finite(dtype) {
                    return 0.0;
                }
                let err = Exact::f(f(x).to_f64()).add(want.neg()).abs_f64();
                err / ulp(dtype, want.to_f64())
            })
            .fold(0.0, f64::max)
    }

    #[test]
    fn errors_stay_below_the_stated_ulps() {
        let exp32 = worst::<f32>(DType::F32, 103.0, Real::exp::<Plain>, Exact::exp);
        let exp64 = worst::<f64>(DType::F64, 744.0, Real::exp::<Plain>, Exact::exp);
        let tanh32 = worst::<f32>(DType::F32, 12.0, Real::tanh::<Plain>, Exact::tanh);
        let tanh64 = worst::<f64>(DType::F64, 25.0, Real::tanh::<Plain>, Exact::tanh);
        let logistic = |x: Exact| {
            let e = if x.to_f64() < 0.0 { x.exp() } else { x.neg().exp() };
            (if x.to_f64() < 0.0 { e } else { Exact::f(1.0) }).div(Exact::f(1.0).add(e))
        };
        for (name, error) in [
            ("f32", worst::<f32>(DType::F32, 103.0, Real::logistic::<Plain>, logistic)),
            ("f32 fused", worst::<f32>(DType::F32, 103.0, Real::logistic::<Fused>, logistic)),
            ("f64", worst::<f64>(DType::F64, 744.0, Real::logistic::<Plain>, logistic)),
            ("f64 fused", worst::<f64>(DType::F64, 744.0, Real::logistic::<Fused>, logistic)),
        ] {
            assert!(error < 2.0, "logistic {name}: {error}");
        }
        let std32 = worst::<f32>(DType::F32, 12.0, Real::tanh::<Textbook>, Exact::tanh);
        assert!(exp32 < 1.5 && exp64 < 1.5, "exp {exp32} {exp64}");
        assert!(tanh32 < 2.0 && tanh64 < 4.0 && std32 < 4.0, "tanh {tanh32} {tanh64} {std32}");
    }

    #[test]
    fn the_standard_librarys_functions_keep_their_limits() {
        let worst = [
            worst::<f32>(DType::F32, 1e5, |x| Real::ln::<Textbook>(x.abs()), |x| Exact::f(x.abs_f64()).log()),
            worst::<f64>(DType::F64, 1e5, |x| Real::ln::<Textbook>(x.abs()), |x| Exact::f(x.abs_f64()).log()),
            worst::<f32>(DType::F32, 1e5, Real::sin::<Textbook>, Exact::sin),
            worst::<f64>(DType::F64, 1e5, Real::sin::<Textbook>, Exact::sin),
            worst::<f32>(DType::F32, 1e5, Real::cos::<Textbook>, Exact::cos),
            worst::<f64>(DType::F64, 1e5, Real::cos::<Textbook>, Exact::cos),
            worst::<f32>(DType::F32, 1e5, Real::tan, Exact::tan),
            worst::<f64>(DType::F64, 1e5, Real::tan, Exact::tan),
            worst::<f32>(DType::F32, 80.0, |x| Real::pow::<Textbook>(2.9, x), |x| Exact::f(f64::from(2.9f32)).pow(x)),
            worst::<f64>(DType::F64, 600.0, |x| Real::pow::<Textbook>(2.9, x), |x| Exact::f(2.9).pow(x)),
            worst::<f32>(DType::F32, 1e10, |x| Real::pow::<Textbook>(x, 3.0), |x| x.pow(Exact::f(3.0))),
            worst::<f64>(DType::F64, 1e10, |x| Real::pow::<Textbook>(x, -3.0), |x| x.pow(Exact::f(-3.0))),
        ];
        let limits = [1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 2.0, 2.0, 2.0, 2.0, 2.0, 2.0];
        assert!(worst.iter().zip(limits).all(|(w, l)| *w < l), "{worst:?}");
    }

    /// The limits that `op::limits` states; docs/cpu.md has the errors over all arguments.
    #[test]
    fn vector_functions_keep_their_limits() {
        let worst = [
            worst::<f32>(DType::F32, 1e5, |x| Real::ln::<Fused>(Real::abs(x)), |x| Exact::f(x.abs_f64()).log()),
            worst::<f32>(DType::F32, 30_000.0, Real::sin::<Fused>, Exact::sin),
            worst::<f32>(DType::F32, 30_000.0, Real::cos::<Fused>, Exact::cos),
            worst::<f32>(DType::F32, 80.0, |x| Real::pow::<Fused>(2.9, x), |x| Exact::f(f64::from(2.9f32)).pow(x)),
            worst::<f32>(DType::F32, 1e10, |x| Real::pow::<Fused>(x, 3.0), |x| x.pow(Exact::f(3.0))),
            worst::<f32>(DType::F32, 80.0, Real::exp_near::<Fused>, Exact::exp),
        ];
        let limits = [1.0, 2.0, 2.0, 0.6, 0.6, 1.5];
        assert!(worst.iter().zip(limits).all(|(w, l)| *w < l), "{worst:?}");
    }

    /// Where the results are defined by rules, they are those of the standard library.
    #[test]
    fn vector_functions_know_special_values() {
        let inf = f32::INFINITY;
        let odd = [0.0, -0.0, -1.0, inf, -inf, f32::NAN, 1e-45, 1e-40, f32::MIN_POSITIVE, 1.0, f32::MAX];
        for x in odd {
            let (got, want) = (Real::ln::<Fused>(x), x.ln());
            assert!(
                (got - want).abs() <= 1e-5 || got == want || got.is_nan() && want.is_nan(),
                "log {x}: {got} {want}"
            );
            assert_eq!(x.above_least() <= f32::FINITE, x.is_normal() && x > 0.0, "{x}");
            for y in odd.into_iter().chain([2.0, 3.0, 0.5, -3.0, 16_777_217.0]).filter(|y| !x.is_odd_power(*y)) {
                let (got, want) = (Real::pow::<Fused>(x, y), x.powf(y));
                let close = (got - want).abs() <= 1e-6 * want.abs();
                assert!(close || got == want || got.is_nan() && want.is_nan(), "{x}^{y}: {got} {want}");
            }
        }
        assert_eq!(Real::sin::<Fused>(-0.0f32).to_bits(), (-0.0f32).to_bits());
        assert_eq!(Real::sin::<Fused>(1e-45f32), 1e-45);
        assert_eq!(Real::cos::<Fused>(0.0f32), 1.0);
        for (v, want) in [(inf, 1.0), (-inf, 0.0), (800.0, 1.0), (-800.0, 0.0), (0.0, 0.5), (-0.0, 0.5)] {
            assert_eq!(
                (Real::logistic::<Fused>(v), Real::logistic::<Plain>(f64::from(v))),
                (want, f64::from(want)),
                "{v}"
            );
        }
        assert!(Real::logistic::<Fused>(f32::NAN).is_nan() && Real::logistic::<Fused>(f64::NAN).is_nan());
        assert_eq!(Real::logistic::<Fused>(-103.9f32), 1e-45);
        assert_eq!(Real::logistic::<Fused>(-745.0f64), 5e-324);
        assert_eq!(
            [-30_000.0f32, 30_001.0, -inf, f32::NAN].map(|x| x.magnitude() > f32::ANGLE),
            [false, true, true, true]
        );
        assert_eq!([-87.0f32, -87.5, inf, -f32::NAN].map(|x| x.magnitude() <= f32::NEAR), [true, false, false, false]);
        assert_eq!([708.0f64, -709.0, f64::NAN].map(|x| x.magnitude() <= f64::NEAR), [true, false, false]);
        // The bits of both forms are the same where both may be used.
        for i in -8700..=8700 {
            let x = i as f32 * 0.01;
            assert_eq!(Real::exp_near::<Fused>(x).to_bits(), Real::exp::<Fused>(x).to_bits(), "{x}");
        }
    }

    #[test]
    fn extremes_are_found_and_nan_is_seen() {
        let x = [3.0f32, -0.0, -7.5, 0.0, 2.0];
        assert_eq!(f32::extremes(&x), (3.0, -7.5));
        assert_eq!(f64::extremes(&[f64::NEG_INFINITY, 1.0, f64::INFINITY]), (f64::INFINITY, f64::NEG_INFINITY));
        assert_eq!(f64::extremes(&[-2.0]), (-2.0, -2.0));
        for nan in [f32::NAN, -f32::NAN] {
            assert!(f32::extremes(&[1.0, nan, f32::INFINITY]).0.is_nan());
            assert!(f32::extremes(&[1.0, nan]).1.is_nan());
        }
        assert!(f32::extremes(&[]).0.is_nan());
    }

    #[test]
    fn special_values() {
        let e = Real::exp::<Plain>;
        assert_eq!(e(f32::NEG_INFINITY), 0.0);
        assert_eq!(e(f32::INFINITY), f32::INFINITY);
        assert!(e(f32::NAN).is_nan());
        assert_eq!(e(-0.0f32), 1.0);
        assert_eq!(e(88.8f32), f32::INFINITY);
        assert!(e(-103.0f32) > 0.0);
        let t = Real::tanh::<Plain>;
        assert_eq!(t(-0.0f64).to_bits(), (-0.0f64).to_bits());
        assert_eq!(t(f64::NEG_INFINITY), -1.0);
        assert!(t(f64::NAN).is_nan());
        assert_eq!(t(1e-310f64), 1e-310);
    }
}
