//! Values more exact than any dtype: 128-bit integers and double-doubles, for the oracle and the judge.
//!
//! Arithmetic on double-doubles comes from `twofloat`; it breaks down on infinities (inf - inf inside its error terms),
//! so every operation falls back to plain f64 rules when a leading part is not finite. exp and tanh are series in
//! double-doubles, held against a multi-precision library at 160 bits by tests; other elementary functions come from that
//! library ([`Exact::multi`]). Nothing here is shared with a kernel.

use std::sync::LazyLock;

use astro_float_num::{BigFloat, Consts, RoundingMode, Sign};
use twofloat::TwoFloat;

use super::dtype::DType;
use super::host::HostTensor;

/// An exact integer or a double-double (about 106 bits of significand).
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Exact {
    /// An integer; integer ops are exact in it.
    I(i128),
    /// A double-double; infinities and NaN are in the leading part.
    F(TwoFloat),
}

/// Bits of the multi-precision evaluations: 106 for the result and 54 to absorb their rounding.
const BITS: usize = 160;
const RM: RoundingMode = RoundingMode::ToEven;

impl Exact {
    /// From an f64, exactly.
    pub fn f(x: f64) -> Self {
        Exact::F(TwoFloat::from_f64(x))
    }

    /// Zero of the family that `dtype` belongs to.
    pub fn zero(dtype: DType) -> Self {
        if dtype.is_float() { Exact::f(0.0) } else { Exact::I(0) }
    }

    /// The nearest f64 (integers beyond 2^53 are rounded).
    pub fn to_f64(self) -> f64 {
        match self {
            Exact::I(v) => v as f64,
            Exact::F(v) => v.hi(),
        }
    }

    /// The value as a double-double.
    pub fn dd(self) -> TwoFloat {
        match self {
            Exact::F(v) => v,
            Exact::I(v) => {
                let hi = v as f64;
                TwoFloat::new_add(hi, (v - hi as i128) as f64)
            }
        }
    }

    /// Sum. Mixed operands become double-doubles.
    #[allow(clippy::should_implement_trait, reason = "the operators would hide the rules for infinities")]
    pub fn add(self, other: Self) -> Self {
        match (self, other) {
            (Exact::I(a), Exact::I(b)) => Exact::I(a.wrapping_add(b)),
            (a, b) => combine(a, b, |a, b| a + b, |a, b| a + b),
        }
    }

    /// Product.
    #[allow(clippy::should_implement_trait, reason = "the operators would hide the rules for infinities")]
    pub fn mul(self, other: Self) -> Self {
        match (self, other) {
            (Exact::I(a), Exact::I(b)) => Exact::I(a.wrapping_mul(b)),
            (a, b) => combine(a, b, |a, b| a * b, |a, b| a * b),
        }
    }

    /// Quotient, as a double-double.
    #[allow(clippy::should_implement_trait, reason = "the operators would hide the rules for infinities")]
    pub fn div(self, other: Self) -> Self {
        combine(self, other, quotient, |a, b| a / b)
    }

    /// Negation.
    #[allow(clippy::should_implement_trait, reason = "goes with add and mul")]
    pub fn neg(self) -> Self {
        match self {
            Exact::I(a) => Exact::I(a.wrapping_neg()),
            Exact::F(a) => Exact::F(-a),
        }
    }

    /// Magnitude as f64, for error bounds.
    pub fn abs_f64(self) -> f64 {
        self.to_f64().abs()
    }

    /// e^x. Overflow gives infinity, underflow zero.
    pub fn exp(self) -> Self {
        let x = self.to_f64();
        if !(-760.0..=720.0).contains(&x) {
            return Exact::f(x.exp());
        }
        let (p, k) = expm1_scaled(self.dd());
        let e = p + 1.0;
        Exact::F(TwoFloat::new_add(scale2(e.hi(), k), scale2(e.lo(), k)))
    }

    /// Hyperbolic tangent: t / (t + 2) with t = e^2|x| - 1.
    pub fn tanh(self) -> Self {
        let x = self.to_f64();
        if x.is_nan() || x.abs() > 60.0 {
            return Exact::f(x.tanh());
        }
        if x.abs() < 1e-100 {
            // x - x^3/3 + ...: the second term is 10^200 times smaller.
            return self;
        }
        let d = self.dd();
        let (p, k) = expm1_scaled(if x < 0.0 { d * -2.0 } else { d * 2.0 });
        let t = if k == 0 { p } else { (p + 1.0) * pow2(k) - 1.0 };
        let y = quotient(t, t + 2.0);
        Exact::F(if x < 0.0 { -y } else { y })
    }

    /// A function by the multi-precision library: slow (0.1 ms), for functions without a double-double form here, and
    /// to test those that have one.
    pub fn multi(self, f: impl Fn(&BigFloat, &mut Consts) -> BigFloat) -> Self {
        thread_local!(static CONSTS: std::cell::RefCell<Option<Consts>> = const { std::cell::RefCell::new(None) });
        let d = self.dd();
        let big = BigFloat::from_f64(d.hi(), BITS).add(&BigFloat::from_f64(d.lo(), BITS), BITS, RM);
        CONSTS.with_borrow_mut(|slot| {
            if slot.is_none() {
                *slot = Consts::new().ok();
            }
            // The constants cache fails only for lack of memory; f64 NaN then makes every comparison fail loudly.
            slot.as_mut().map_or(Exact::f(f64::NAN), |cc| Exact::F(from_big(&f(&big, cc))))
        })
    }

    /// Element `i` of a tensor, exactly. Out of range is NaN, which no judge accepts.
    pub fn read(t: &HostTensor, i: u64) -> Self {
        let size = t.dtype.size() as usize;
        let at = i as usize * size;
        let Some(b) = t.bytes().get(at..at + size) else { return Exact::f(f64::NAN) };
        match t.dtype {
            DType::F32 => Exact::f(f64::from(f32::from_le_bytes(array(b)))),
            DType::F64 => Exact::f(f64::from_le_bytes(array(b))),
            DType::F16 => Exact::f(f64::from(half::f16::from_le_bytes(array(b)))),
            DType::BF16 => Exact::f(f64::from(half::bf16::from_le_bytes(array(b)))),
            DType::I8 => Exact::I(i128::from(i8::from_le_bytes(array(b)))),
            DType::I16 => Exact::I(i128::from(i16::from_le_bytes(array(b)))),
            DType::I32 => Exact::I(i128::from(i32::from_le_bytes(array(b)))),
            DType::I64 => Exact::I(i128::from(i64::from_le_bytes(array(b)))),
            DType::U8 => Exact::I(i128::from(b[0])),
            DType::U16 => Exact::I(i128::from(u16::from_le_bytes(array(b)))),
            DType::U32 => Exact::I(i128::from(u32::from_le_bytes(array(b)))),
            DType::U64 => Exact::I(i128::from(u64::from_le_bytes(array(b)))),
        }
    }

    /// All elements of a tensor.
    pub fn read_all(t: &HostTensor) -> Vec<Self> {
        (0..t.len()).map(|i| Self::read(t, i)).collect()
    }

    /// An integer reduced to the dtype's width as two's complement (our integer rule: wrap); floats unchanged.
    pub fn wrap(self, dtype: DType) -> Self {
        match (self, dtype) {
            (Exact::I(v), DType::I8) => Exact::I(i128::from(v as i8)),
            (Exact::I(v), DType::I16) => Exact::I(i128::from(v as i16)),
            (Exact::I(v), DType::I32) => Exact::I(i128::from(v as i32)),
            (Exact::I(v), DType::I64) => Exact::I(i128::from(v as i64)),
            (Exact::I(v), DType::U8) => Exact::I(i128::from(v as u8)),
            (Exact::I(v), DType::U16) => Exact::I(i128::from(v as u16)),
            (Exact::I(v), DType::U32) => Exact::I(i128::from(v as u32)),
            (Exact::I(v), DType::U64) => Exact::I(i128::from(v as u64)),
            (other, _) => other,
        }
    }
}

fn array<const N: usize>(b: &[u8]) -> [u8; N] {
    let mut out = [0; N];
    out.copy_from_slice(b);
    out
}

fn combine(a: Exact, b: Exact, dd: impl Fn(TwoFloat, TwoFloat) -> TwoFloat, plain: impl Fn(f64, f64) -> f64) -> Exact {
    let (x, y) = (a.dd(), b.dd());
    let lead = plain(x.hi(), y.hi());
    if !x.hi().is_finite() || !y.hi().is_finite() || !lead.is_finite() || lead == 0.0 && x.lo() == 0.0 && y.lo() == 0.0
    {
        return Exact::f(lead);
    }
    let exact = dd(x, y);
    // Near the largest f64 the error terms overflow although the result does not.
    if exact.hi().is_finite() && exact.lo().is_finite() { Exact::F(exact) } else { Exact::f(lead) }
}

/// a / b by long division, three digits of 53 bits. `twofloat`'s own quotient of two double-doubles (0.8.4) is no better
/// than an f64: it rounds the residual 1 - b·(1/b) that its algorithm wants fused.
fn quotient(a: TwoFloat, b: TwoFloat) -> TwoFloat {
    let q1 = a.hi() / b.hi();
    let r = a - b * q1;
    let q2 = r.hi() / b.hi();
    let r = r - b * q2;
    TwoFloat::new_add(q1, q2) + r.hi() / b.hi()
}

/// (e^r - 1, k) with x = r + k ln 2 and |r| <= ln2 / 2, in double-doubles with a relative error below 2^-90 (tested
/// against 160 bits): Taylor's series at r / 2^8, then eight doublings p -> 2p + p².
fn expm1_scaled(x: TwoFloat) -> (TwoFloat, i32) {
    const HALVINGS: i32 = 8;
    static TERMS: LazyLock<[TwoFloat; 13]> = LazyLock::new(|| {
        let mut c = [TwoFloat::from_f64(1.0); 13];
        for i in 1..13 {
            c[i] = c[i - 1] / i as f64;
        }
        c
    });
    let k = (x.hi() * std::f64::consts::LOG2_E).round();
    // ln 2 as a double-double; the lower part from the constant's decimal expansion 0.69314718055994530941723212145818.
    let ln2 = TwoFloat::new_add(std::f64::consts::LN_2, 2.319_046_813_846_299_6e-17);
    let s = (x - ln2 * k) * pow2(-HALVINGS);
    let mut p = TERMS[12];
    for c in TERMS[1..12].iter().rev() {
        p = p * s + *c;
    }
    p *= s;
    for _ in 0..HALVINGS {
        p = p * 2.0 + p * p;
    }
    (p, k as i32)
}

/// x · 2^k in two steps, so that a subnormal result does not vanish on the way.
fn scale2(x: f64, k: i32) -> f64 {
    x * pow2(k / 2) * pow2(k - k / 2)
}

/// Leading 128 bits of a multi-precision number as a double-double.
fn from_big(v: &BigFloat) -> TwoFloat {
    if v.is_nan() {
        return TwoFloat::from_f64(f64::NAN);
    }
    let Some((words, _, sign, exponent, _)) = v.as_raw_parts() else {
        return TwoFloat::from_f64(if v.is_inf_neg() { f64::NEG_INFINITY } else { f64::INFINITY });
    };
    let word = |back: usize| words.len().checked_sub(back).map_or(0, |i| words[i]);
    // The value is 0.m * 2^exponent with m's most significant word last.
    let m = u128::from(word(1)) << 64 | u128::from(word(2));
    let hi = m as f64;
    let lo =
        if hi >= 2f64.powi(128) { -((!m).wrapping_add(1) as f64) } else { m.wrapping_sub(hi as u128) as i128 as f64 };
    let scale = |x: f64| {
        let half = (exponent - 128) / 2;
        x * 2f64.powi(half) * 2f64.powi(exponent - 128 - half)
    };
    let value = TwoFloat::new_add(scale(hi), scale(lo));
    if sign == Sign::Neg { -value } else { value }
}

/// Spacing of the dtype's numbers at `x`: one unit in the last place (Goldberg), subnormals included.
pub fn ulp(dtype: DType, x: f64) -> f64 {
    let (Some(p), Some(emin)) = (dtype.mantissa_bits(), dtype.min_exponent()) else { return 1.0 };
    let x = x.abs();
    let e = if x == 0.0 || !x.is_finite() { emin } else { exponent_of(x).max(emin) };
    pow2(e - p + 1)
}

/// 2^e, exact down to the smallest subnormal (`powi` is not).
fn pow2(e: i32) -> f64 {
    if e < -1022 { f64::from_bits(1u64 << (e + 1074).max(0)) } else { 2f64.powi(e) }
}

/// floor(log2(|x|)) of a finite, non-zero f64, subnormals included.
fn exponent_of(x: f64) -> i32 {
    let bits = x.to_bits() >> 52 & 0x7ff;
    if bits == 0 { exponent_of(x * 2f64.powi(64)) - 64 } else { bits as i32 - 1023 }
}

/// Smallest normal number of a float dtype; 0 for integers.
pub fn min_normal(dtype: DType) -> f64 {
    dtype.min_exponent().map_or(0.0, pow2)
}

/// The dtype's numbers next to a finite `x` of that dtype, below and above, as if the exponent had no upper end (f64
/// ends at infinity). Integers: x - 1 and x + 1.
pub fn neighbours(dtype: DType, x: f64) -> (f64, f64) {
    if dtype == DType::F64 {
        return (x.next_down(), x.next_up());
    }
    // Towards zero the spacing halves at powers of two, except where the subnormals begin.
    let near = |x: f64| {
        let step = ulp(dtype, x);
        if x == pow2(exponent_of(x)) && x > min_normal(dtype) { step / 2.0 } else { step }
    };
    let step = ulp(dtype, x);
    if x == 0.0 {
        (-step, step)
    } else if x > 0.0 {
        (x - near(x), x + step)
    } else {
        (x - step, x + near(-x))
    }
}

/// Largest finite number of a float dtype; infinity for integers.
pub fn max_finite(dtype: DType) -> f64 {
    match dtype {
        DType::F16 => 65504.0,
        DType::BF16 => f64::from(half::bf16::MAX),
        DType::F32 => f64::from(f32::MAX),
        DType::F64 => f64::MAX,
        _ => f64::INFINITY,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exp_is_exact_beyond_f64() {
        // e = 2.718281828459045 (f64) + 1.4456468917292502e-16: Dekker's split of the constant.
        let e = Exact::f(1.0).exp().dd();
        assert_eq!(e.hi(), std::f64::consts::E);
        assert!((e.lo() - 1.445_646_891_729_250_2e-16).abs() < 1e-31, "{}", e.lo());
        let small = Exact::f(-745.0).exp().to_f64();
        assert!(small > 0.0 && small < 1e-322);
        assert!(Exact::f(1000.0).exp().to_f64().is_infinite());
        assert_eq!(Exact::f(-1000.0).exp().to_f64(), 0.0);
    }

    /// The library misreads subnormal arguments (2^-1023 as 2^-1022), so these are not among the samples.
    #[test]
    fn exp_and_tanh_agree_with_160_bits() {
        let rng = crate::base::rng::Philox::new(5);
        let mut worst: (f64, f64) = (0.0, 0.0);
        for i in 0..3000u64 {
            let range = [700.0, 10.0, 1.0, 1e-3, 1e-9, 1e-30][i as usize % 6];
            let x = (rng.unit(0, i) * 2.0 - 1.0) * range;
            let lower = x * (rng.unit(1, i) - 0.5) * f64::EPSILON / 2.0;
            let arg = Exact::F(TwoFloat::new_add(x, lower));
            let far = |a: Exact, b: Exact| a.add(b.neg()).abs_f64() / b.abs_f64();
            worst.0 = worst.0.max(far(arg.exp(), arg.multi(|v, cc| v.exp(BITS, RM, cc))));
            if x.abs() < 60.0 {
                worst.1 = worst.1.max(far(arg.tanh(), arg.multi(|v, cc| v.tanh(BITS, RM, cc))));
            }
        }
        assert!(worst.0 < 2f64.powi(-90) && worst.1 < 2f64.powi(-90), "2^{} 2^{}", worst.0.log2(), worst.1.log2());
        assert_eq!(Exact::f(2f64.powi(-1023)).tanh().to_f64(), 2f64.powi(-1023));
    }

    #[test]
    fn tanh_matches_its_series_for_tiny_arguments() {
        let x = 1e-10;
        let t = Exact::f(x).tanh().dd();
        // tanh x = x - x^3/3 + 2x^5/15; the cubic term lies below f64's last place of x.
        let diff = (t - TwoFloat::from_f64(x)).hi();
        // 2^-100 of x; an f64 of tanh is off by 2^-54 of it.
        assert!((diff + x * x * x / 3.0).abs() < x * 2f64.powi(-100), "{diff}");
        assert_eq!(Exact::f(100.0).tanh().to_f64(), 1.0);
    }

    #[test]
    fn infinities_follow_ieee() {
        let inf = Exact::f(f64::INFINITY);
        assert!(inf.add(inf.neg()).to_f64().is_nan());
        assert_eq!(inf.add(Exact::f(1.0)).to_f64(), f64::INFINITY);
        assert!(inf.mul(Exact::f(0.0)).to_f64().is_nan());
        assert_eq!(Exact::f(1.0).div(Exact::f(0.0)).to_f64(), f64::INFINITY);
        assert_eq!(Exact::f(f64::MAX).add(Exact::f(f64::MAX)).to_f64(), f64::INFINITY);
    }

    #[test]
    fn ulps() {
        assert_eq!(ulp(DType::F32, 1.0), 2f64.powi(-23));
        assert_eq!(ulp(DType::F64, 1.0), f64::EPSILON);
        assert_eq!(ulp(DType::F16, 0.0), 2f64.powi(-24));
        assert_eq!(ulp(DType::F32, 1e-45), 2f64.powi(-149));
        assert_eq!(ulp(DType::F64, f64::from_bits(1)), f64::from_bits(1));
    }

    #[test]
    fn neighbours_are_the_next_numbers() {
        for x in [1.0f32, -1.0, 1.5, 0.0, f32::MIN_POSITIVE, -f32::MIN_POSITIVE, 1e-45, 3.4e38, 2.0, -8.0] {
            let want = (f64::from(x.next_down()), f64::from(x.next_up()));
            assert_eq!(neighbours(DType::F32, f64::from(x)), want, "{x}");
        }
        assert_eq!(neighbours(DType::F64, 1.0), (1.0 - f64::EPSILON / 2.0, 1.0 + f64::EPSILON));
        assert_eq!(neighbours(DType::F16, 2048.0), (2047.0, 2050.0));
        assert_eq!(neighbours(DType::F32, f64::from(f32::MAX)).1, 2f64.powi(128));
    }

    #[test]
    fn sums_near_the_largest_f64_stay_finite() {
        let max = Exact::f(f64::MAX);
        assert_eq!(max.add(Exact::f(-1.0)).to_f64(), f64::MAX);
        assert_eq!(max.add(max.neg()).to_f64(), 0.0);
        assert_eq!(max.mul(Exact::f(1.0)).to_f64(), f64::MAX);
        assert_eq!(max.div(Exact::f(2.0)).to_f64(), f64::MAX / 2.0);
    }

    #[test]
    fn quotients_have_a_hundred_bits() {
        let rng = crate::base::rng::Philox::new(3);
        for i in 0..2000 {
            let (a, b) = (Exact::f(rng.unit(0, i) + 0.1), Exact::f(rng.unit(1, i) + 0.1).exp());
            let back = a.div(b).mul(b).add(a.neg()).abs_f64() / a.abs_f64();
            assert!(back < 2f64.powi(-100), "2^{}", back.log2());
        }
    }

    #[test]
    fn zeros_keep_their_sign() {
        let minus = Exact::f(-0.0);
        assert!(minus.to_f64().is_sign_negative() && minus.neg().to_f64().is_sign_positive());
        assert!(minus.add(minus).to_f64().is_sign_negative());
        assert!(minus.add(Exact::f(0.0)).to_f64().is_sign_positive());
        assert!(minus.mul(Exact::f(2.0)).to_f64().is_sign_negative());
    }

    #[test]
    fn integers_wrap_to_width() {
        assert_eq!(Exact::I(1 << 31).wrap(DType::I32), Exact::I(-(1 << 31)));
        assert_eq!(Exact::I(-1).wrap(DType::U8), Exact::I(255));
    }
}
