//! How far a result may be from the exact one: published limits as data, and bounds derived from them.
//!
//! Limits belong to a function, a kernel language and a dtype, never to a device: a device that needs more is a finding.
//! Sources: OpenCL: KhronosGroup/OpenCL-CTS, math_brute_force/function_list.cpp. WGSL: gpuweb, "Accuracy of concrete
//! floating point expressions". CUDA: CUDA C++ Programming Guide, mathematical functions appendix (default flags, no
//! fast math). Native: the error statements of `kernel::cpu::math`, tested there.

use crate::base::{Case, DType, Lang, exact};

/// An op's rule.
#[derive(Clone, Copy, Debug)]
pub enum Tolerance {
    /// Every bit must match (moves, integer results; comparisons).
    Exact,
    /// Correctly rounded: half a unit in the last place.
    Rounded,
    /// A row of [`LIMITS`].
    Function(&'static str),
    /// A formula around one row: that row's limit plus so many ulps for the arithmetic around it.
    Around {
        /// The row.
        function: &'static str,
        /// Ulps of the surrounding operations.
        extra_ulps: f64,
    },
    /// Sum of products or of terms: γ_t·scale, where scale is Σ|x| or (|A||B|)_ij and t the number of roundings
    /// (Higham, *Accuracy and Stability of Numerical Algorithms*, 3.1 and 3.5), plus the final rounding.
    Gamma(fn(&Case) -> u64),
    /// Softmax: exp's limit on x - max (twice: term and sum), γ_n of the sum, division and subtraction.
    Softmax(fn(&Case) -> u64),
}

/// A published limit.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Limit {
    /// Units in the last place.
    Ulp(f64),
    /// a + b·|x| ulps, x being the argument.
    UlpPlus(f64, f64),
    /// Absolute.
    Abs(f64),
}

/// One row of the table.
#[derive(Clone, Copy, Debug)]
pub struct LimitRow {
    /// Function.
    pub function: &'static str,
    /// Kernel language.
    pub lang: Lang,
    /// Dtype of the arithmetic: f32 or f64.
    pub dtype: DType,
    /// Limit.
    pub limit: Limit,
    /// Where it is published.
    pub source: &'static str,
}

const CTS: &str = "OpenCL CTS function_list.cpp, full profile";
const WGSL: &str = "WGSL, Accuracy of Concrete Floating Point Expressions";
const CUDA: &str = "CUDA C++ Programming Guide, Mathematical Functions";
const OWN: &str = "kernel::cpu::math, tested against 160-bit arithmetic";

const fn row(function: &'static str, lang: Lang, dtype: DType, limit: Limit, source: &'static str) -> LimitRow {
    LimitRow { function, lang, dtype, limit, source }
}

/// Published limits; `gpuctl verify --limits` prints them.
pub static LIMITS: &[LimitRow] = &[
    row("exp", Lang::OpenclC, DType::F32, Limit::Ulp(3.0), CTS),
    row("exp", Lang::OpenclC, DType::F64, Limit::Ulp(3.0), CTS),
    row("exp", Lang::Cuda, DType::F32, Limit::Ulp(2.0), CUDA),
    row("exp", Lang::Cuda, DType::F64, Limit::Ulp(1.0), CUDA),
    row("exp", Lang::Wgsl, DType::F32, Limit::UlpPlus(3.0, 2.0), WGSL),
    row("exp", Lang::Native, DType::F32, Limit::Ulp(1.5), OWN),
    row("exp", Lang::Native, DType::F64, Limit::Ulp(1.5), OWN),
    row("tanh", Lang::OpenclC, DType::F32, Limit::Ulp(5.0), CTS),
    row("tanh", Lang::OpenclC, DType::F64, Limit::Ulp(5.0), CTS),
    row("tanh", Lang::Cuda, DType::F32, Limit::Ulp(2.0), CUDA),
    row("tanh", Lang::Cuda, DType::F64, Limit::Ulp(1.0), CUDA),
    row("tanh", Lang::Wgsl, DType::F32, Limit::Abs(1e-5), WGSL),
    row("tanh", Lang::Native, DType::F32, Limit::Ulp(3.0), OWN),
    row("tanh", Lang::Native, DType::F64, Limit::Ulp(3.0), OWN),
    row("divide", Lang::OpenclC, DType::F32, Limit::Ulp(2.5), CTS),
    row("divide", Lang::OpenclC, DType::F64, Limit::Ulp(0.5), CTS),
    row("divide", Lang::Cuda, DType::F32, Limit::Ulp(0.5), CUDA),
    row("divide", Lang::Cuda, DType::F64, Limit::Ulp(0.5), CUDA),
    row("divide", Lang::Wgsl, DType::F32, Limit::Ulp(2.5), WGSL),
    row("divide", Lang::Native, DType::F32, Limit::Ulp(0.5), "IEEE 754"),
    row("divide", Lang::Native, DType::F64, Limit::Ulp(0.5), "IEEE 754"),
];

/// The row of a function, if one is published.
pub fn limit(function: &str, lang: Lang, dtype: DType) -> Option<&'static LimitRow> {
    LIMITS.iter().find(|r| r.function == function && r.lang == lang && r.dtype == dtype.compute())
}

/// γ_n = n·u / (1 - n·u); infinite where the bound says nothing (Higham 3.1).
pub fn gamma(n: u64, u: f64) -> f64 {
    let nu = n as f64 * u;
    if nu < 1.0 { nu / (1.0 - nu) } else { f64::INFINITY }
}

/// A tolerance made concrete for one case, language and output dtype.
#[derive(Clone, Debug)]
pub struct Bound {
    arithmetic: DType,
    storage: DType,
    ulps: f64,
    ulps_per_scale: f64,
    per_scale: f64,
    relative: f64,
    absolute: f64,
    /// May a subnormal result be flushed to zero (WGSL), or an underflow inside a formula give zero?
    flush: bool,
    /// The bound in words, with its source.
    pub words: String,
}

impl Tolerance {
    /// The bound for a case whose output has dtype `out`, computed by a kernel in `lang`. `None`: no limit is published
    /// for this combination, so nothing can be called verified.
    pub fn bound(&self, case: &Case, lang: Lang, out: DType) -> Option<Bound> {
        let arithmetic = out.compute();
        let u = arithmetic.unit_roundoff();
        let mut b = Bound {
            arithmetic,
            storage: out,
            ulps: 0.0,
            ulps_per_scale: 0.0,
            per_scale: 0.0,
            relative: 0.0,
            absolute: 0.0,
            flush: lang == Lang::Wgsl,
            words: String::new(),
        };
        if !out.is_float() {
            b.words = "exact: integer result".to_string();
            return Some(b);
        }
        match *self {
            Tolerance::Exact => {
                b.flush = false;
                b.words = "exact: every bit".to_string();
            }
            Tolerance::Rounded => {
                b.ulps = 0.5;
                b.words = "0.5 ulp: correctly rounded".to_string();
            }
            Tolerance::Function(function) => b.add(limit(function, lang, out)?, 1.0),
            Tolerance::Around { function, extra_ulps } => {
                b.add(limit(function, lang, out)?, 1.0);
                b.add(limit("divide", lang, out)?, 1.0);
                b.ulps += extra_ulps;
                b.flush = true;
                b.words.push_str(&format!(" + {extra_ulps} ulp of arithmetic"));
            }
            Tolerance::Gamma(terms) => {
                let n = terms(case);
                b.ulps = 0.5;
                b.per_scale = gamma(n, u);
                b.words = format!("gamma_{n} (Higham 3.1) of the sum of magnitudes + 0.5 ulp");
            }
            Tolerance::Softmax(terms) => {
                // y = e_i / Σ e_j with e = exp(x - max). Relative errors: the rounding of x - max acts through exp as
                // |x - max|·u (scale carries that maximum), exp's own limit, both for the term and for the sum; γ_n for
                // the summation; the division.
                let n = terms(case);
                let exp = limit("exp", lang, out)?;
                b.add(exp, 2.0);
                b.add(limit("divide", lang, out)?, 1.0);
                b.ulps_per_scale += 2.0;
                b.relative = 2.0 * gamma(n, u);
                b.flush = true;
                b.words.push_str(&format!("; 2 ulp per unit of |x - max|; 2 gamma_{n}"));
            }
        }
        if out != arithmetic {
            b.words.push_str(&format!("; + 0.5 ulp of {out} storage"));
        }
        Some(b)
    }
}

impl Bound {
    fn add(&mut self, row: &LimitRow, times: f64) {
        match row.limit {
            Limit::Ulp(n) => self.ulps += n * times,
            Limit::UlpPlus(n, per) => {
                self.ulps += n * times;
                self.ulps_per_scale += per * times;
            }
            Limit::Abs(a) => self.absolute += a * times,
        }
        if !self.words.is_empty() {
            self.words.push_str(" + ");
        }
        self.words.push_str(&format!("{} x {:?} of {} ({})", times, row.limit, row.function, row.source));
    }

    /// Largest allowed |got - want| for one element with oracle value `want` and scale `scale`.
    pub fn allowed(&self, want: f64, scale: f64) -> f64 {
        if !self.storage.is_float() {
            return 0.0;
        }
        let ulp = exact::ulp(self.arithmetic, want);
        let mut e = (self.ulps + self.ulps_per_scale * scale) * ulp
            + self.per_scale * scale
            + self.relative * want.abs()
            + self.absolute;
        if self.storage != self.arithmetic && e + self.ulps > 0.0 {
            // Rounding to storage happens after the arithmetic's error.
            e += 0.500_001 * exact::ulp(self.storage, want.abs() + e);
        }
        if self.flush && self.arithmetic.min_exponent().is_some_and(|m| want.abs() < 2f64.powi(m)) {
            e += want.abs() + exact::ulp(self.arithmetic, 0.0);
        }
        e
    }

    /// True if an overflow to infinity is within the bound although the exact value is finite.
    pub fn allows_overflow(&self, want: f64, scale: f64) -> bool {
        let e = self.allowed(want, scale);
        e > 0.0
            && want.abs() + e + exact::ulp(self.storage, exact::max_finite(self.storage)) / 2.0
                > exact::max_finite(self.storage)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::{Attrs, Fill};

    fn case(dtype: DType) -> Case {
        Case { op: "t", dtype, dims: vec![("n", 10)], attrs: Attrs::new(), fill: Fill::Uniform }
    }

    #[test]
    fn functions_get_their_published_limit() {
        let c = case(DType::F32);
        let t = Tolerance::Function("exp");
        let cl = t.bound(&c, Lang::OpenclC, DType::F32).unwrap();
        assert_eq!(cl.allowed(1.0, 5.0), 3.0 * 2f64.powi(-23));
        let wgsl = t.bound(&c, Lang::Wgsl, DType::F32).unwrap();
        assert_eq!(wgsl.allowed(1.0, 5.0), 13.0 * 2f64.powi(-23));
        assert!(t.bound(&c, Lang::Wgsl, DType::F64).is_none(), "WGSL publishes no f64 exp");
    }

    #[test]
    fn two_ulps_in_f64_are_caught_where_the_limit_is_less() {
        let c = case(DType::F64);
        let b = Tolerance::Function("exp").bound(&c, Lang::Native, DType::F64).unwrap();
        assert!(b.allowed(1.0, 1.0) < 2.0 * f64::EPSILON);
    }

    #[test]
    fn integers_and_moves_have_no_slack() {
        let c = case(DType::I32);
        assert_eq!(Tolerance::Rounded.bound(&c, Lang::Cuda, DType::I32).unwrap().allowed(7.0, 1e9), 0.0);
        assert_eq!(Tolerance::Exact.bound(&c, Lang::Wgsl, DType::F32).unwrap().allowed(1e-40, 1.0), 0.0);
    }

    #[test]
    fn storage_rounds_once_more() {
        let b = Tolerance::Function("exp").bound(&case(DType::F16), Lang::OpenclC, DType::F16).unwrap();
        let a = b.allowed(1.0, 0.0);
        assert!(a > 0.5 * 2f64.powi(-10) && a < 0.51 * 2f64.powi(-10), "{a}");
    }

    #[test]
    fn flushing_is_allowed_only_where_the_language_says_so() {
        let c = case(DType::F32);
        assert!(Tolerance::Rounded.bound(&c, Lang::Wgsl, DType::F32).unwrap().allowed(1e-40, 0.0) >= 1e-40);
        assert!(Tolerance::Rounded.bound(&c, Lang::OpenclC, DType::F32).unwrap().allowed(1e-40, 0.0) < 1e-44);
    }
}
