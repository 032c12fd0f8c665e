//! Published accuracy limits of functions, as data.
//!
//! A limit belongs to a function, a kernel language and a dtype, never to a device: a device that needs more is a finding.
//! Sources: OpenCL: KhronosGroup/OpenCL-CTS, math_brute_force/function_list.cpp. WGSL: gpuweb, "Accuracy of concrete
//! floating point expressions". CUDA: CUDA C++ Programming Guide, mathematical functions appendix (default flags, no
//! fast math). Native: the error statements of `kernel::cpu::math`, tested there.

use crate::base::{DType, Lang};

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
pub(super) const WGSL: &str = "WGSL, Accuracy of Concrete Floating Point Expressions";
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
    row("tanh", Lang::Native, DType::F32, Limit::Ulp(4.0), OWN),
    row("tanh", Lang::Native, DType::F64, Limit::Ulp(4.0), OWN),
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

impl Limit {
    /// As a + b·|x| ulps; `None` for absolute limits.
    pub(super) fn ulps(self) -> Option<(f64, f64)> {
        match self {
            Limit::Ulp(a) => Some((a, 0.0)),
            Limit::UlpPlus(a, b) => Some((a, b)),
            Limit::Abs(_) => None,
        }
    }
}

impl LimitRow {
    /// The row in words.
    pub fn words(&self) -> String {
        let limit = match self.limit {
            Limit::Ulp(n) => format!("{n} ulp"),
            Limit::UlpPlus(a, b) => format!("({a} + {b}|x|) ulp"),
            Limit::Abs(a) => format!("{a:e} absolute"),
        };
        format!("{}: {limit} ({})", self.function, self.source)
    }
}
