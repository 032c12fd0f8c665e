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
    /// a + b·|x| ulps, x being the argument (or the scale that the op's oracle gives).
    UlpPlus(f64, f64),
    /// Absolute.
    Abs(f64),
    /// Absolute for arguments within [0.5, 2], ulps elsewhere.
    AbsNearOne(f64, f64),
    /// Quotient of two functions with this absolute error whose squares sum to 1 (tan = sin / cos), and the division's ulps.
    Quotient(f64, f64),
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
    /// Magnitudes of the argument for which it is published; results for others are open.
    pub within: (f64, f64),
    /// Where it is published.
    pub source: &'static str,
}

const CTS: &str = "OpenCL CTS function_list.cpp, full profile";
pub(super) const WGSL: &str = "WGSL, Accuracy of Concrete Floating Point Expressions";
const CUDA: &str = "CUDA C++ Programming Guide, Mathematical Functions; its count from the rounded result, plus 0.5";
const BESIDE: &str = "WGSL, Accuracy of Concrete Floating Point Expressions; counted as WebGPU's CTS does";
const OWN: &str = "kernel::cpu::math, tested against 160-bit arithmetic";

const fn row(function: &'static str, lang: Lang, dtype: DType, limit: Limit, source: &'static str) -> LimitRow {
    LimitRow { function, lang, dtype, limit, within: (0.0, f64::INFINITY), source }
}

/// A limit of CUDA's tables, which state by how many ulps a result may differ from the correctly rounded one: from the exact
/// value it is half an ulp more. An H200's f64 tanh, 1 there, was seen 1.38 ulps from the exact value.
const fn rounded(ulps: f64) -> Limit {
    Limit::Ulp(ulps + 0.5)
}

/// A limit of WGSL in ulps from the exact value. What conforms is counted from the numbers on either side of it (WebGPU CTS,
/// `ulpInterval`; Vulkan's CTS rounds its intervals outwards): whole ulps, less than one more than the published figure. An
/// H200's log, 3 there, was seen 3.12 ulps from the exact value.
const fn beside(ulps: f64) -> f64 {
    (ulps as u32 + 1) as f64
}

/// A row that is published for a range of arguments.
const fn part(
    function: &'static str,
    lang: Lang,
    dtype: DType,
    limit: Limit,
    within: (f64, f64),
    source: &'static str,
) -> LimitRow {
    LimitRow { within, ..row(function, lang, dtype, limit, source) }
}

const STD: &str = "the platform's standard library, tested with glibc";
const VECTORS: &str = "kernel::cpu::elementary, tested with every 31st argument (docs/cpu.md)";
const IEEE: &str = "IEEE 754";
const PI: f64 = std::f64::consts::PI;
/// 2^-21 and 2^-11.
const TWO_M21: f64 = 1.0 / 2_097_152.0;
const TWO_M11: f64 = 1.0 / 2_048.0;
/// 2^-126 and 2^126.
const LEAST: f64 = f32::MIN_POSITIVE as f64;
const MOST: f64 = 1.0 / LEAST;
/// Ulps of f64 in one of f32. "The precision of double-precision instructions is at least that of single precision."
const AS_F32: f64 = 536_870_912.0;
const VULKAN: &str = "Vulkan, Precision and Operation of SPIR-V Instructions: f64 at least as precise as f32";
// sqrt = 1 / inverseSqrt (WGSL): 2 ulps, doubled where the quotient has smaller ulps, and the division's 2.5.
const WGSL_SQRT: f64 = 6.51;
// pow = exp2(y log2 x) (WGSL). The oracle's scale is m = |y| max(1, |log2 x|). log2's error, 2^-21 or 3 ulps, and the
// product's rounding put at most 2^-21 m + 2^-23 m into the exponent; times ln 2, in ulps of at least 2^-24 of the value:
// 6.94 m; exp2 adds 3 + 2m. Beyond 2^20 the error is larger than the value.
const WGSL_POW: Limit = Limit::UlpPlus(3.0, 8.95);
const POW_MOST: f64 = 1_048_576.0;

/// Published limits; `gpuctl verify --limits` prints them.
pub static LIMITS: &[LimitRow] = &[
    row("exp", Lang::OpenclC, DType::F32, Limit::Ulp(3.0), CTS),
    row("exp", Lang::OpenclC, DType::F64, Limit::Ulp(3.0), CTS),
    row("exp", Lang::Cuda, DType::F32, rounded(2.0), CUDA),
    row("exp", Lang::Cuda, DType::F64, rounded(1.0), CUDA),
    row("exp", Lang::Wgsl, DType::F32, Limit::UlpPlus(beside(3.0), 2.0), BESIDE),
    row("exp", Lang::Native, DType::F32, Limit::Ulp(1.5), OWN),
    row("exp", Lang::Native, DType::F64, Limit::Ulp(1.5), OWN),
    row("tanh", Lang::OpenclC, DType::F32, Limit::Ulp(5.0), CTS),
    row("tanh", Lang::OpenclC, DType::F64, Limit::Ulp(5.0), CTS),
    row("tanh", Lang::Cuda, DType::F32, rounded(2.0), CUDA),
    row("tanh", Lang::Cuda, DType::F64, rounded(1.0), CUDA),
    row("tanh", Lang::Wgsl, DType::F32, Limit::Abs(1e-5), WGSL),
    row(
        "tanh",
        Lang::Native,
        DType::F32,
        Limit::Ulp(2.5),
        "kernel::cpu::elementary 2, the textbook form's (glibc's) 2.2",
    ),
    row("tanh", Lang::Native, DType::F64, Limit::Ulp(4.0), OWN),
    row("erf", Lang::OpenclC, DType::F32, Limit::Ulp(16.0), CTS),
    row("erf", Lang::OpenclC, DType::F64, Limit::Ulp(16.0), CTS),
    row("erf", Lang::Cuda, DType::F32, rounded(2.0), CUDA),
    row("erf", Lang::Cuda, DType::F64, rounded(2.0), CUDA),
    row("erf", Lang::Wgsl, DType::F32, Limit::Ulp(10.0), "own, derived from WGSL's limits in kernels/activation.wgsl"),
    row("erf", Lang::Native, DType::F32, Limit::Ulp(2.0), "kernel::cpu::activation, tested against 90 bits"),
    row("erf", Lang::Native, DType::F64, Limit::Ulp(2.0), "kernel::cpu::activation, tested against 90 bits"),
    row("divide", Lang::OpenclC, DType::F32, Limit::Ulp(2.5), CTS),
    row("divide", Lang::OpenclC, DType::F64, Limit::Ulp(0.5), CTS),
    row("divide", Lang::Cuda, DType::F32, rounded(0.0), CUDA),
    row("divide", Lang::Cuda, DType::F64, rounded(0.0), CUDA),
    part("divide", Lang::Wgsl, DType::F32, Limit::Ulp(2.5), (LEAST, MOST), WGSL),
    part("divide", Lang::Wgsl, DType::F64, Limit::Ulp(2.5 * AS_F32), (LEAST, MOST), VULKAN),
    row("divide", Lang::Native, DType::F32, Limit::Ulp(0.5), IEEE),
    row("divide", Lang::Native, DType::F64, Limit::Ulp(0.5), IEEE),
    row("sqrt", Lang::OpenclC, DType::F32, Limit::Ulp(3.0), CTS),
    row("sqrt", Lang::OpenclC, DType::F64, Limit::Ulp(0.5), CTS),
    row("sqrt", Lang::Cuda, DType::F32, rounded(0.0), CUDA),
    row("sqrt", Lang::Cuda, DType::F64, rounded(0.0), CUDA),
    row("sqrt", Lang::Wgsl, DType::F32, Limit::Ulp(WGSL_SQRT), WGSL),
    row("sqrt", Lang::Wgsl, DType::F64, Limit::Ulp(WGSL_SQRT * AS_F32), VULKAN),
    row("sqrt", Lang::Native, DType::F32, Limit::Ulp(0.5), IEEE),
    row("sqrt", Lang::Native, DType::F64, Limit::Ulp(0.5), IEEE),
    row("log", Lang::OpenclC, DType::F32, Limit::Ulp(3.0), CTS),
    row("log", Lang::OpenclC, DType::F64, Limit::Ulp(3.0), CTS),
    row("log", Lang::Cuda, DType::F32, rounded(1.0), CUDA),
    row("log", Lang::Cuda, DType::F64, rounded(1.0), CUDA),
    row("log", Lang::Wgsl, DType::F32, Limit::AbsNearOne(TWO_M21, beside(3.0)), BESIDE),
    row("log", Lang::Native, DType::F32, Limit::Ulp(1.0), VECTORS),
    row("log", Lang::Native, DType::F64, Limit::Ulp(1.0), STD),
    row("sin", Lang::OpenclC, DType::F32, Limit::Ulp(4.0), CTS),
    row("sin", Lang::OpenclC, DType::F64, Limit::Ulp(4.0), CTS),
    row("sin", Lang::Cuda, DType::F32, rounded(2.0), CUDA),
    row("sin", Lang::Cuda, DType::F64, rounded(2.0), CUDA),
    part("sin", Lang::Wgsl, DType::F32, Limit::Abs(TWO_M11), (0.0, PI), WGSL),
    row("sin", Lang::Native, DType::F32, Limit::Ulp(2.0), VECTORS),
    row("sin", Lang::Native, DType::F64, Limit::Ulp(1.0), STD),
    row("cos", Lang::OpenclC, DType::F32, Limit::Ulp(4.0), CTS),
    row("cos", Lang::OpenclC, DType::F64, Limit::Ulp(4.0), CTS),
    row("cos", Lang::Cuda, DType::F32, rounded(2.0), CUDA),
    row("cos", Lang::Cuda, DType::F64, rounded(2.0), CUDA),
    part("cos", Lang::Wgsl, DType::F32, Limit::Abs(TWO_M11), (0.0, PI), WGSL),
    row("cos", Lang::Native, DType::F32, Limit::Ulp(2.0), VECTORS),
    row("cos", Lang::Native, DType::F64, Limit::Ulp(1.0), STD),
    row("tan", Lang::OpenclC, DType::F32, Limit::Ulp(5.0), CTS),
    row("tan", Lang::OpenclC, DType::F64, Limit::Ulp(5.0), CTS),
    row("tan", Lang::Cuda, DType::F32, rounded(4.0), CUDA),
    row("tan", Lang::Cuda, DType::F64, rounded(2.0), CUDA),
    part("tan", Lang::Wgsl, DType::F32, Limit::Quotient(TWO_M11, 2.5), (0.0, PI), WGSL),
    row("tan", Lang::Native, DType::F32, Limit::Ulp(2.0), STD),
    row("tan", Lang::Native, DType::F64, Limit::Ulp(2.0), STD),
    row("pow", Lang::OpenclC, DType::F32, Limit::Ulp(16.0), CTS),
    row("pow", Lang::OpenclC, DType::F64, Limit::Ulp(16.0), CTS),
    row("pow", Lang::Cuda, DType::F32, rounded(4.0), CUDA),
    row("pow", Lang::Cuda, DType::F64, rounded(2.0), CUDA),
    part("pow", Lang::Wgsl, DType::F32, WGSL_POW, (0.0, POW_MOST), WGSL),
    row("pow", Lang::Native, DType::F32, Limit::Ulp(2.0), VECTORS),
    row("pow", Lang::Native, DType::F64, Limit::Ulp(2.0), STD),
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
            Limit::Abs(_) | Limit::AbsNearOne(..) | Limit::Quotient(..) => None,
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
            Limit::AbsNearOne(a, n) => format!("{a:e} absolute within [0.5, 2], else {n} ulp"),
            Limit::Quotient(a, n) => format!("of a quotient of terms with {a:e} absolute each, + {n} ulp"),
        };
        let range = match self.within {
            (low, high) if low > 0.0 || high < f64::INFINITY => {
                // A short number: 0, 3.1415927, 1.175494e-38.
                let short = |v: f64| match v {
                    v if v != 0.0 && !(1e-3..1e7).contains(&v) => format!("{v:.6e}"),
                    v => format!("{v:.7}").trim_end_matches('0').trim_end_matches('.').to_string(),
                };
                format!(", for |x| from {} to {}", short(low), short(high))
            }
            _ => String::new(),
        };
        format!("{}: {limit}{range} ({})", self.function, self.source)
    }
}
