//! Values more exact than any dtype: 128-bit integers and double-doubles, for the oracle and the judge.
//!
//! Arithmetic on double-doubles comes from `twofloat`; it breaks down on infinities (inf - inf inside its error terms),
//! so every operation falls back to plain f64 rules when a leading part is not finite. exp, tanh, log, sin, cos, tan and
//! pow are series in double-doubles, held against a multi-precision library at 160 bits by tests; other elementary
//! functions come from that library ([`Exact::multi`]). Nothing here is shared with a kernel.

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
            (a, b) => tiny(a, b, |a, b| a * b).unwrap_or_else(|| combine(a, b, |a, b| a * b, |a, b| a * b)),
        }
    }

    /// Quotient, as a double-double.
    #[allow(clippy::should_implement_trait, reason = "the operators would hide the rules for infinities")]
    pub fn div(self, other: Self) -> Self {
        tiny(self, other, |a, b| a / b).unwrap_or_else(|| combine(self, other, quotient, |a, b| a / b))
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

    /// Square root; of a negative number NaN.
    pub fn sqrt(self) -> Self {
        let x = self.to_f64();
        if x < 0.0 || !x.is_finite() || x == 0.0 {
            return Exact::f(x.sqrt());
        }
        // An even power of two keeps the residual's parts away from underflow and overflow.
        let half = -exponent_of(x) / 2;
        let d = self.dd();
        let d = TwoFloat::new_add(scale2(d.hi(), 2 * half), scale2(d.lo(), 2 * half));
        let s = d.hi().sqrt();
        let y = TwoFloat::new_add(s, (d - TwoFloat::new_mul(s, s)).hi() / (2.0 * s));
        Exact::F(TwoFloat::new_add(scale2(y.hi(), -half), scale2(y.lo(), -half)))
    }

    /// Natural logarithm: -infinity at 0, NaN below. x = 2^k·m with m near 1, ln m = 2 artanh((m - 1) / (m + 1)).
    pub fn log(self) -> Self {
        let x = self.to_f64();
        if x <= 0.0 || !x.is_finite() {
            return Exact::f(x.ln());
        }
        static TERMS: LazyLock<[TwoFloat; 24]> = LazyLock::new(|| {
            let mut c = [TwoFloat::from_f64(1.0); 24];
            for (i, c) in c.iter_mut().enumerate() {
                *c = TwoFloat::from_f64(1.0) / (2 * i + 1) as f64;
            }
            c
        });
        let e = exponent_of(x);
        // The significand within [1/sqrt 2, sqrt 2), so that k = 0 around 1 and nothing cancels.
        let k = if scale2(x, -e) < std::f64::consts::SQRT_2 { e } else { e + 1 };
        let d = self.dd();
        let m = TwoFloat::new_add(scale2(d.hi(), -k), scale2(d.lo(), -k));
        let s = quotient(m - 1.0, m + 1.0);
        // |s| <= 0.1716: the terms left out are below 2^-120 of the sum.
        let p = s * 2.0 * horner(s * s, &*TERMS);
        Exact::F(ln2() * f64::from(k) + p)
    }

    /// Sine.
    pub fn sin(self) -> Self {
        self.circular(|s, _| s, |x| x)
    }

    /// Cosine.
    pub fn cos(self) -> Self {
        self.circular(|_, c| c, |_| Exact::f(1.0))
    }

    /// Tangent.
    pub fn tan(self) -> Self {
        self.circular(quotient, |x| x)
    }

    /// `f` of sine and cosine; `tiny` where x² is beyond any precision.
    fn circular(self, f: impl Fn(TwoFloat, TwoFloat) -> TwoFloat, tiny: impl Fn(Self) -> Self) -> Self {
        let x = self.to_f64();
        if !x.is_finite() {
            return Exact::f(f64::NAN);
        }
        if x.abs() < 1e-100 {
            return tiny(self);
        }
        let (r, quadrant) = self.reduced();
        let (s, c) = sin_cos(r);
        Exact::F(match quadrant {
            0 => f(s, c),
            1 => f(c, -s),
            2 => f(-s, -c),
            _ => f(-c, s),
        })
    }

    /// (x - k·pi/2, k mod 4) with the remainder within ±pi/4.
    fn reduced(self) -> (TwoFloat, i64) {
        let d = self.dd();
        if d.hi().abs() < 1e9 {
            // pi/2 in three parts, 160 bits: k has 30, so what is missing lies 2^-130 below 1, and no f64 of this size
            // is nearer to a multiple of pi/2 than 2^-62.
            const PARTS: [f64; 3] =
                [std::f64::consts::FRAC_PI_2, 6.123_233_995_736_766e-17, -1.497_384_904_859_169_6e-33];
            let k = (d.hi() / PARTS[0]).round();
            let r = PARTS.iter().fold(d, |r, p| r - TwoFloat::new_mul(k, *p));
            return (r, k as i64 & 3);
        }
        // As many bits as the number is long, and 160 below the point.
        let bits = exponent_of(d.hi()).max(0) as usize + 2 * BITS;
        let big = BigFloat::from_f64(d.hi(), bits).add(&BigFloat::from_f64(d.lo(), bits), bits, RM);
        with_consts(|cc| {
            let half = cc.pi(bits, RM).div(&BigFloat::from_f64(2.0, bits), bits, RM);
            let k = big.div(&half, bits, RM).round(0, RM);
            let four = BigFloat::from_f64(4.0, bits);
            let whole = k.div(&four, bits, RM).floor().mul(&four, bits, RM);
            let quadrant = from_big(&k.sub(&whole, bits, RM)).hi() as i64 & 3;
            (from_big(&big.sub(&k.mul(&half, bits, RM), bits, RM)), quadrant)
        })
        .unwrap_or((TwoFloat::from_f64(f64::NAN), 0))
    }

    /// x^y by C99's rules (F.10.4.4): x^0 and 1^y are 1 even for NaN; a negative base needs a whole exponent.
    pub fn pow(self, y: Self) -> Self {
        let (a, b) = (self.to_f64(), y.to_f64());
        let whole = b.is_finite() && b.fract() == 0.0;
        let odd = whole && b.abs() < 2f64.powi(53) && b as i64 & 1 == 1;
        if b == 0.0 || a == 1.0 && self.dd().lo() == 0.0 {
            return Exact::f(1.0);
        }
        if a.is_nan() || b.is_nan() || a < 0.0 && a.is_finite() && b.is_finite() && !whole {
            return Exact::f(f64::NAN);
        }
        let sign = if odd && a.is_sign_negative() { -1.0 } else { 1.0 };
        let grows = (a.abs() > 1.0) == (b > 0.0);
        if a == 0.0 || a.is_infinite() || b.is_infinite() {
            let one = a.abs() == 1.0;
            return Exact::f(if one { 1.0 } else { sign * if grows { f64::INFINITY } else { 0.0 } });
        }
        let power = if a < 0.0 { self.neg() } else { self }.log().mul(y).exp();
        if sign < 0.0 { power.neg() } else { power }
    }

    /// a^b of integers with wrapping products; a negative exponent gives 0 except for |a| = 1, and 0^0 is 1. The low
    /// bits of a product depend on the factors' low bits alone, so i128 serves every width.
    pub fn int_pow(a: i128, b: i128) -> i128 {
        match (a, b < 0) {
            (1, true) => 1,
            (-1, true) => 1 - 2 * (b & 1),
            (_, true) => 0,
            _ => {
                let mut power = 1i128;
                for bit in (0..128 - b.leading_zeros()).rev() {
                    power = power.wrapping_mul(power);
                    if b >> bit & 1 == 1 {
                        power = power.wrapping_mul(a);
                    }
                }
                power
            }
        }
    }

    /// A function by the multi-precision library: slow (0.1 ms), for functions without a double-double form here, and
    /// to test those that have one.
    pub fn multi(self, f: impl Fn(&BigFloat, &mut Consts) -> BigFloat) -> Self {
        let d = self.dd();
        let big = BigFloat::from_f64(d.hi(), BITS).add(&BigFloat::from_f64(d.lo(), BITS), BITS, RM);
        // NaN makes every comparison fail loudly.
        with_consts(|cc| Exact::F(from_big(&f(&big, cc)))).unwrap_or(Exact::f(f64::NAN))
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

/// Calls `f` with this thread's cache of constants; `None` only for lack of memory.
fn with_consts<T>(f: impl FnOnce(&mut Consts) -> T) -> Option<T> {
    thread_local!(static CONSTS: std::cell::RefCell<Option<Consts>> = const { std::cell::RefCell::new(None) });
    CONSTS.with_borrow_mut(|slot| {
        if slot.is_none() {
            *slot = Consts::new().ok();
        }
        slot.as_mut().map(f)
    })
}

fn array<const N: usize>(b: &[u8]) -> [u8; N] {
    let mut out = [0; N];
    out.copy_from_slice(b);
    out
}

/// A product or quotient of two f64 so small that its error terms would underflow: the nearest f64 is then all that there
/// is room for.
fn tiny(a: Exact, b: Exact, plain: impl Fn(f64, f64) -> f64) -> Option<Exact> {
    let (x, y) = (a.dd(), b.dd());
    let lead = plain(x.hi(), y.hi());
    (lead.abs() < 1e-290 && x.lo() == 0.0 && y.lo() == 0.0).then(|| Exact::f(lead))
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
    let s = (x - ln2() * k) * pow2(-HALVINGS);
    let mut p = horner(s, &TERMS[1..]) * s;
    for _ in 0..HALVINGS {
        p = p * 2.0 + p * p;
    }
    (p, k as i32)
}

/// ln 2 as a double-double; the lower part from the constant's decimal expansion 0.69314718055994530941723212145818.
fn ln2() -> TwoFloat {
    TwoFloat::new_add(std::f64::consts::LN_2, 2.319_046_813_846_299_6e-17)
}

/// A polynomial; coefficients from the lowest power up.
fn horner(x: TwoFloat, c: &[TwoFloat]) -> TwoFloat {
    let zero = TwoFloat::from_f64(0.0);
    let (last, rest) = c.split_last().unwrap_or((&zero, &[]));
    rest.iter().rev().fold(*last, |p, c| p * x + *c)
}

/// Sine and cosine of |r| <= pi/4 by Taylor's series up to r^29: the next term is below 2^-115.
fn sin_cos(r: TwoFloat) -> (TwoFloat, TwoFloat) {
    static TERMS: LazyLock<[[TwoFloat; 15]; 2]> = LazyLock::new(|| {
        let mut c = [[TwoFloat::from_f64(1.0); 15]; 2];
        let mut factorial = TwoFloat::from_f64(1.0);
        for n in 1..30 {
            factorial *= n as f64;
            let term = quotient(TwoFloat::from_f64(1.0), factorial);
            c[1 - n % 2][n / 2] = if n / 2 % 2 == 1 { -term } else { term };
        }
        c
    });
    let square = r * r;
    (r * horner(square, &TERMS[0]), horner(square, &TERMS[1]))
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
    fn log_and_circular_functions_agree_with_160_bits() {
        let rng = crate::base::rng::Philox::new(9);
        let far = |a: Exact, b: Exact| a.add(b.neg()).abs_f64() / b.abs_f64();
        let mut worst = [0.0f64; 4];
        for i in 0..2000u64 {
            let range = [1e300, 1e5, 10.0, 1.0, 1e-3, 1e-30][i as usize % 6];
            let x = (rng.unit(0, i) * 2.0 - 1.0) * range;
            let positive = [x.abs(), 1.0 + x.abs().min(1.0) * 1e-9, 0.5 + rng.unit(1, i)][i as usize % 3];
            let log = |v: &BigFloat, cc: &mut Consts| v.ln(BITS, RM, cc);
            worst[0] = worst[0].max(far(Exact::f(positive).log(), Exact::f(positive).multi(log)));
            let x = if i % 6 == 0 { (x / range) * 1e12 } else { x };
            let arg = Exact::f(x);
            let found = [arg.sin(), arg.cos(), arg.tan()];
            let want = [
                arg.multi(|v, cc| v.sin(BITS, RM, cc)),
                arg.multi(|v, cc| v.cos(BITS, RM, cc)),
                arg.multi(|v, cc| v.tan(BITS, RM, cc)),
            ];
            for (k, (a, b)) in found.into_iter().zip(want).enumerate() {
                worst[k + 1] = worst[k + 1].max(far(a, b));
            }
        }
        assert!(worst.iter().all(|w| *w < 2f64.powi(-90)), "{:?}", worst.map(f64::log2));
    }

    /// sin(10^22) is a known hard case (Ng, *Argument Reduction for Huge Arguments*: -0.8522008497671888); the sine of the
    /// largest f64 as glibc 2.36 gives it.
    #[test]
    fn huge_arguments_are_reduced_exactly() {
        assert_eq!(Exact::f(1e22).sin().to_f64(), -0.852_200_849_767_188_8);
        assert_eq!(Exact::f(f64::MAX).sin().to_f64(), 0.004_961_954_789_184_062);
        let (s, c) = (Exact::f(-3e200).sin(), Exact::f(-3e200).cos());
        assert!((s.mul(s).add(c.mul(c)).add(Exact::f(-1.0)).abs_f64()) < 2f64.powi(-95));
        assert!(Exact::f(f64::INFINITY).cos().to_f64().is_nan());
        assert_eq!(Exact::f(-1e-310).tan().to_f64(), -1e-310);
        // The f64 nearest to a multiple of pi/2 (Muller, *Elementary Functions*, 11.2): 6381956970095103 · 2^797.
        let hard = Exact::f(6_381_956_970_095_103.0 * 2f64.powi(797));
        assert!((hard.cos().to_f64() / -4.687_165_924_254_623e-19 - 1.0).abs() < 1e-14, "{:e}", hard.cos().to_f64());
    }

    #[test]
    fn roots_square_back() {
        let rng = crate::base::rng::Philox::new(10);
        for i in 0..2000 {
            let x = Exact::f(rng.unit(0, i) * 2f64.powi((i % 2000) as i32 - 1000)).mul(Exact::f(1.0 / 3.0));
            let back = x.sqrt().mul(x.sqrt()).add(x.neg()).abs_f64() / x.abs_f64();
            // Below 2^-969 the lower part of x itself is subnormal.
            assert!(x.to_f64() < 1e-290 || back < 2f64.powi(-100), "{x:?}: 2^{}", back.log2());
        }
        assert_eq!(Exact::f(f64::from_bits(1)).sqrt().to_f64(), 2f64.powi(-537));
        // 2^512·(1 - 2^-54 - 2^-109): the last term lies below the double-double.
        assert_eq!(Exact::f(f64::MAX).sqrt().dd(), TwoFloat::new_add(2f64.powi(512), -2f64.powi(458)));
        assert!(Exact::f(-1.0).sqrt().to_f64().is_nan() && Exact::f(-0.0).sqrt().to_f64().is_sign_negative());
    }

    #[test]
    fn powers() {
        let pow = |a: f64, b: f64| Exact::f(a).pow(Exact::f(b)).to_f64();
        for a in [-3.0, -0.5, 0.25, 1.5, 7.0] {
            for b in -9..10 {
                assert_eq!(pow(a, f64::from(b)), f64::powi(a, b), "{a}^{b}");
            }
        }
        assert_eq!(pow(2.0, 0.5), std::f64::consts::SQRT_2);
        assert_eq!(pow(2.0, -1074.0), f64::from_bits(1));
        // C99 F.10.4.4, each line of it.
        let (inf, nan) = (f64::INFINITY, f64::NAN);
        let rules = [
            (0.0, -3.0, inf),
            (-0.0, -3.0, -inf),
            (-0.0, -2.0, inf),
            (0.0, -inf, inf),
            (-0.0, 3.0, -0.0),
            (-0.0, 2.5, 0.0),
            (-1.0, inf, 1.0),
            (-1.0, -inf, 1.0),
            (1.0, nan, 1.0),
            (nan, 0.0, 1.0),
            (inf, -0.0, 1.0),
            (0.5, -inf, inf),
            (-2.0, -inf, 0.0),
            (0.5, inf, 0.0),
            (3.0, inf, inf),
            (-inf, -3.0, -0.0),
            (-inf, -2.5, 0.0),
            (-inf, 3.0, -inf),
            (-inf, 0.5, inf),
            (inf, -1.0, 0.0),
            (inf, 2.0, inf),
        ];
        for (a, b, want) in rules {
            assert_eq!(pow(a, b).to_bits(), f64::to_bits(want), "{a}^{b}");
            assert_eq!(pow(a, b), a.powf(b), "{a}^{b}");
        }
        assert!(pow(-2.0, 0.5).is_nan() && pow(nan, 1.0).is_nan() && pow(2.0, nan).is_nan());
        // Integers: the rules of every width, against plain products.
        assert_eq!(
            [(3, 4), (-2, 3), (0, 0), (5, -1), (-1, -3), (-1, -4), (1, -9), (0, -2)].map(|(a, b)| Exact::int_pow(a, b)),
            [81, -8, 1, 0, -1, 1, 1, 0]
        );
        assert_eq!(
            Exact::I(Exact::int_pow(3, 201)).wrap(DType::U8),
            Exact::I((0..201).fold(1i128, |p, _| p * 3 % 256))
        );
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
    fn subnormal_quotients_are_the_nearest_numbers() {
        let rng = crate::base::rng::Philox::new(12);
        for i in 0..2000 {
            let (a, b) = (f64::MIN_POSITIVE * rng.unit(0, i), 0.5 + rng.unit(1, i));
            assert_eq!(Exact::f(a).div(Exact::f(b)).dd(), TwoFloat::from_f64(a / b));
            assert_eq!(Exact::f(a).mul(Exact::f(b)).dd(), TwoFloat::from_f64(a * b));
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
