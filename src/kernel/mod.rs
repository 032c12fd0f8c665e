//! How an op is spelled on a device: variants, what each needs, and the pure plan of its launches.
//!
//! A [`Kernel`] is data in an op's record. [`choose`] is the one place where a variant is picked; it touches no device,
//! so tests can ask it about any [`DeviceInfo`]. Not here: running anything (`device`, `engine`).

pub mod cpu;
pub mod debug;
pub mod micro;
pub mod plan_activation;
pub mod plan_activation_wgsl;
pub mod plan_bias;
pub mod plan_bias_wgsl;
pub mod plan_blas;
pub mod plan_c;
pub mod plan_c_norm;
pub mod plan_c_reduce;
pub mod plan_cast;
pub mod plan_cuda;
pub mod plan_native;
pub mod plan_peak;
pub mod plan_pool;
pub mod plan_products;
pub mod plan_reduce;
pub mod plan_stream;
pub mod plan_stream_wgsl;
pub mod plan_wgsl;
pub mod plan_wgsl_norm;
pub mod plan_wgsl_pool;
pub mod plan_wgsl_products;
pub mod plan_wgsl_reduce;
pub mod plan_wgsl_window;
pub mod plan_window;
mod rules_c;
mod rules_wgsl;
#[cfg(test)]
mod size_tests;
pub mod source;
pub mod stray;
pub mod window;

/// Version of the kernels: part of what names a compiled one that was kept. A higher one makes all kept kernels void; needed
/// only where the same text must be compiled anew, as after a change of the compiler's options.
pub const VERSION: u32 = 1;

use crate::base::{Backend, Case, Code, Cost, DType, DeviceInfo, Error, Feature, Lang, Library, Result};

pub use cpu::{CpuCtx, Isa, NativeArgs, NativeFn};

/// One way to compute an op.
#[derive(Clone, Copy, Debug)]
pub struct Kernel {
    /// Name of the variant, unique per op and language: `naive`, `simd`, `tiled64`, `cublas`.
    pub variant: &'static str,
    /// The text or function.
    pub body: Body,
    /// Dtypes of the operands that it takes.
    pub dtypes: &'static [DType],
    /// Why other dtypes of the op are left out; empty if none are.
    pub dtypes_why: &'static str,
    /// The op's one-line expression for templates (`EXPR` in the text); empty where the text has none.
    pub expr: &'static str,
    /// What the device must have.
    pub needs: Needs,
    /// True if this variant only runs when named (the deliberately weak baseline).
    pub only_when_named: bool,
    /// Launches for a case on a device; pure. An error says why this variant does not fit.
    pub plan: fn(&Kernel, &Case, &DeviceInfo) -> Result<Plan>,
}

/// The form of a kernel.
#[derive(Clone, Copy)]
pub enum Body {
    /// A Rust function.
    Native(NativeFn),
    /// The common C dialect; runs under `prelude.cl` on OpenCL and `prelude.cu` on CUDA.
    C(&'static str),
    /// OpenCL C beyond the common dialect, under `prelude.cl`.
    Opencl(&'static str),
    /// CUDA C++ with its own prelude or none.
    Cuda(&'static str),
    /// WGSL with `{{NAME}}` substitutions.
    Wgsl(&'static str),
    /// A vendor library's routine.
    Routine(Routine),
    /// What the queue does itself: copies and allocations.
    Action(Action),
}

impl Body {
    /// The text, of those that have one.
    pub fn text(&self) -> Option<&'static str> {
        match self {
            Body::C(text) | Body::Opencl(text) | Body::Cuda(text) | Body::Wgsl(text) => Some(text),
            Body::Native(_) | Body::Routine(_) | Body::Action(_) => None,
        }
    }

    /// The same form with another text; forms without text stay what they are.
    #[must_use]
    pub fn with_text(self, text: &'static str) -> Body {
        match self {
            Body::C(_) => Body::C(text),
            Body::Opencl(_) => Body::Opencl(text),
            Body::Cuda(_) => Body::Cuda(text),
            Body::Wgsl(_) => Body::Wgsl(text),
            other => other,
        }
    }
}

impl std::fmt::Debug for Body {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Body::Native(_) => "Native",
            Body::C(_) => "C",
            Body::Opencl(_) => "OpenCL C",
            Body::Cuda(_) => "Cuda",
            Body::Wgsl(_) => "Wgsl",
            Body::Routine(_) => "Routine",
            Body::Action(_) => "Action",
        })
    }
}

/// Vendor-library calls; ops list them, devices run them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Routine {
    /// C = alpha op(A) op(B) + beta C, row-major. Params: m n k transA transB (U64), alpha beta.
    Gemm,
    /// The same for many products that lie one behind the other. One param more: their number (U64).
    GemmStridedBatched,
}

/// What a queue or device does itself, measured like an op.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    /// Host to device copy of the first input into the first output; the host's memory is what the attribute says.
    Upload,
    /// Device to host copy of the first input; the first output receives what arrived.
    Download,
    /// Copy of the first input into the first output, both on the device.
    Copy,
    /// Allocate a buffer of the output's size, fill it with the token byte, release it.
    Allocate,
    /// Wait on an idle queue, n times; the output receives how often that was done.
    Wait,
    /// Build the token kernel ([`micro::TOKEN`]) and run it once, n times; the output receives how many ran right.
    Build,
}

/// The byte that `alloc` fills its buffer with, so that a lazy allocation is really backed by memory.
pub const ALLOC_TOKEN: u8 = 0x5A;

/// What the `launch` op's single work-item stores, so that a launch that never ran is noticed.
pub const LAUNCH_TOKEN: i32 = 0x600D_CA11;

/// Requirements beyond language and dtype; the first unmet one is the reason shown.
#[derive(Clone, Copy, Debug)]
pub struct Needs {
    /// Features of the device.
    pub features: &'static [Feature],
    /// Vendor library.
    pub library: Option<Library>,
    /// Group-local memory in elements of the compute type.
    pub local_elements: u32,
    /// Work-items per group.
    pub group: u32,
    /// Least CUDA compute capability.
    pub compute_capability: Option<(u32, u32)>,
}

impl Needs {
    /// Nothing beyond language and dtype.
    pub const NONE: Needs =
        Needs { features: &[], library: None, local_elements: 0, group: 1, compute_capability: None };
}

/// One scalar argument of a kernel. Sizes are U64 (WGSL gets u32 and refuses more).
#[derive(Clone, Copy, Debug, PartialEq)]
#[allow(missing_docs, reason = "each variant is the number type of its name")]
pub enum Param {
    U64(u64),
    F32(f32),
    F64(f64),
    I32(i32),
    U32(u32),
    I64(i64),
    /// An unsigned 64-bit scalar, which stays 64 bits wide in WGSL, too.
    Wide(u64),
}

impl Param {
    /// A scalar attribute in the compute type of `dtype`, e.g. gemm's alpha: f32 for f16 and bf16, 32 bits for the short
    /// integers. The op has checked that it fits ([`crate::base::DType::holds`]).
    pub fn scalar(dtype: DType, value: f64) -> Param {
        match dtype.compute() {
            DType::F64 => Param::F64(value),
            DType::I64 => Param::I64(value as i64),
            DType::U64 => Param::Wide(value as u64),
            DType::U8 | DType::U16 | DType::U32 => Param::U32(value as u32),
            DType::I8 | DType::I16 | DType::I32 => Param::I32(value as i32),
            _ => Param::F32(value as f32),
        }
    }
    /// As a size; scalars give 0.
    pub fn u64(self) -> u64 {
        if let Param::U64(v) = self { v } else { 0 }
    }
    /// As an integer, exactly; floats give 0.
    pub fn int(self) -> i128 {
        match self {
            Param::U64(v) | Param::Wide(v) => i128::from(v),
            Param::I32(v) => i128::from(v),
            Param::U32(v) => i128::from(v),
            Param::I64(v) => i128::from(v),
            Param::F32(_) | Param::F64(_) => 0,
        }
    }
    /// As a number.
    pub fn f64(self) -> f64 {
        match self {
            Param::U64(v) | Param::Wide(v) => v as f64,
            Param::F32(v) => f64::from(v),
            Param::F64(v) => v,
            Param::I32(v) => f64::from(v),
            Param::U32(v) => f64::from(v),
            Param::I64(v) => v as f64,
        }
    }
}

/// A buffer argument of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arg {
    /// Operand number i of the op's record, inputs and outputs counted together.
    Operand(usize),
    /// Scratch buffer number i of the plan.
    Scratch(usize),
}

/// One launch.
#[derive(Clone, Debug, PartialEq)]
pub struct Step {
    /// Entry point in the text; for native functions and routines a label.
    pub entry: &'static str,
    /// Dtype of the operands (native functions dispatch on it).
    pub dtype: DType,
    /// Defines (C) or substitutions (WGSL), in order.
    pub defines: Vec<(String, String)>,
    /// Work-items per group.
    pub group: [u32; 3],
    /// Groups per axis; all at least 1.
    pub groups: [u64; 3],
    /// Buffers in the order of the entry's parameters.
    pub args: Vec<Arg>,
    /// Which of `args` are written; the others are read only.
    pub writes: Vec<bool>,
    /// Scalars, after the buffers, in the order of the entry's parameters.
    pub params: Vec<Param>,
    /// Work of this launch, for the simulator and for sanity checks.
    pub cost: Cost,
}

/// All launches of one call, in order.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Plan {
    /// The launches. Empty for a case without elements.
    pub steps: Vec<Step>,
    /// Sizes of scratch buffers in bytes.
    pub scratch: Vec<u64>,
}

/// A variant picked for a case on a device.
#[derive(Clone, Debug)]
pub struct Choice {
    /// The kernel.
    pub kernel: &'static Kernel,
    /// The language it will be given in.
    pub lang: Lang,
    /// Its launches.
    pub plan: Plan,
    /// Why this one: the better ones passed over and their reasons.
    pub reason: String,
}

/// The language in which `device` would take this body, if any.
pub fn lang_for(body: &Body, device: &DeviceInfo) -> Option<Lang> {
    let wanted: &[Lang] = match body {
        Body::Native(_) => &[Lang::Native],
        Body::C(_) => &[Lang::OpenclC, Lang::Cuda],
        Body::Opencl(_) => &[Lang::OpenclC],
        Body::Cuda(_) | Body::Routine(_) => &[Lang::Cuda],
        Body::Wgsl(_) => &[Lang::Wgsl],
        Body::Action(_) => return device.langs.first().copied(),
    };
    wanted.iter().copied().find(|l| device.takes(*l))
}

/// Picks the first kernel, in the op's order of preference, that fits the case and the device.
///
/// With `want`, only that variant is considered. The error lists every variant of the device's languages with the
/// reason why it does not fit.
pub fn choose(kernels: &'static [Kernel], case: &Case, device: &DeviceInfo, want: Option<&str>) -> Result<Choice> {
    let mut passed: Vec<String> = Vec::new();
    for kernel in kernels {
        let Some(lang) = lang_for(&kernel.body, device) else { continue };
        match want {
            Some(name) if name != kernel.variant => continue,
            None if kernel.only_when_named => continue,
            _ => {}
        }
        match unmet(kernel, case, device).map_or_else(|| (kernel.plan)(kernel, case, device), Err) {
            Ok(plan) => {
                let reason = if passed.is_empty() {
                    format!("{}: first choice", kernel.variant)
                } else {
                    format!("{}; passed over: {}", kernel.variant, passed.join("; "))
                };
                return Ok(Choice { kernel, lang, plan, reason });
            }
            Err(e) => passed.push(format!("{} ({})", kernel.variant, e.detail())),
        }
    }
    let detail = match (passed.is_empty(), want) {
        (false, _) => passed.join("; "),
        (true, Some(name)) => {
            let known: Vec<_> =
                kernels.iter().filter(|k| lang_for(&k.body, device).is_some()).map(|k| k.variant).collect();
            let code = if known.is_empty() { Code::OpUnsupported } else { Code::BadArgument };
            return Err(Error::new(code, format!("no variant '{name}' here; known: {}", known.join(" ")))
                .op(case.op)
                .device(&device.id));
        }
        (true, None) => format!("the op has no kernel in a language of this device ({:?})", device.langs),
    };
    Err(Error::new(Code::OpUnsupported, detail).op(case.op).shape(&case.shape_text()).device(&device.id))
}

/// The first requirement that the device or case does not meet.
fn unmet(kernel: &Kernel, case: &Case, device: &DeviceInfo) -> Option<Error> {
    let no = |code: Code, why: String| Some(Error::new(code, why));
    // The device first: its reason (no 8-bit numbers in WGSL) is the deeper one.
    if !device.dtypes.contains(&case.dtype) {
        let note = device.notes.iter().find(|n| n.starts_with(&format!("no {}", case.dtype)));
        return no(
            Code::DTypeUnsupported,
            note.cloned().unwrap_or_else(|| format!("the device does not hold {}", case.dtype)),
        );
    }
    if !kernel.dtypes.contains(&case.dtype) {
        let why = if kernel.dtypes_why.is_empty() { "not written for it" } else { kernel.dtypes_why };
        return no(Code::DTypeUnsupported, format!("no {}: {why}", case.dtype));
    }
    let needs = &kernel.needs;
    if let Some(f) = needs.features.iter().find(|f| !device.has(**f)) {
        return no(Code::FeatureUnsupported, format!("the device lacks {f:?}"));
    }
    if let Some(lib) = needs.library
        && !device.libraries.iter().any(|(l, _)| *l == lib)
    {
        let why = match lib {
            Library::Blas => "no BLAS was opened (--cpu-blas)".into(),
            Library::Cublas => format!("{lib:?} was not found"),
        };
        return no(Code::LibraryNotFound, why);
    }
    if let Some(cc) = needs.compute_capability
        && device.compute_capability.is_none_or(|have| have < cc)
    {
        return no(Code::FeatureUnsupported, format!("needs compute capability {}.{}", cc.0, cc.1));
    }
    let local = u64::from(needs.local_elements) * case.dtype.compute().size();
    if local > u64::from(device.local_bytes) {
        return no(
            Code::FeatureUnsupported,
            format!("needs {local} B of local memory, the device has {} B", device.local_bytes),
        );
    }
    if needs.group > device.max_group {
        return no(
            Code::FeatureUnsupported,
            format!("needs groups of {}, the device allows {}", needs.group, device.max_group),
        );
    }
    None
}

/// Splits a number of groups over the x and y axes within the device's limits. The kernel recovers the flat group
/// number as `y * groups.x + x` and must drop numbers at or beyond `total`.
pub fn spread_groups(total: u64, device: &DeviceInfo) -> Result<[u64; 3]> {
    let total = total.max(1);
    let limit = device.max_groups[0].max(1);
    if total <= limit {
        return Ok([total, 1, 1]);
    }
    let x = limit.min(1 << 15);
    let y = total.div_ceil(x);
    if y > device.max_groups[1] {
        return Err(Error::new(
            Code::LaunchTooLarge,
            format!("{total} groups; the device takes {} by {}", device.max_groups[0], device.max_groups[1]),
        ));
    }
    Ok([x, y, 1])
}

/// True for the languages in which `backend`'s devices take kernels as text.
pub fn is_text_backend(backend: Backend) -> bool {
    matches!(backend, Backend::Cuda | Backend::Opencl | Backend::Wgpu)
}
