//! Plans of pooling on the CPU and in the C dialect. Params of all kernels: n, c, h, w, kh, kw, ho, wo, sh, sw, pt, pl, then what the form adds.

use crate::base::{Case, Cost, DeviceInfo, Result};

use super::plan_c::for_processors;
use super::plan_window::{GROUP, c_defines, largest};
use super::window::{Window, product};
use super::{Arg, Kernel, Param, Plan, Step, plan_c, plan_native, source, spread_groups};

/// The four ops: operands, and which image they make.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Form {
    Max,
    Mean,
    MaxBack,
    MeanBack,
}

impl Form {
    pub(super) fn entry(self) -> &'static str {
        match self {
            Form::Max => "maxpool2d",
            Form::Mean => "avgpool2d",
            Form::MaxBack => "maxpool2d_bwd",
            Form::MeanBack => "avgpool2d_bwd",
        }
    }
    /// For devices that are processors.
    fn entry_of_vectors(self) -> &'static str {
        match self {
            Form::Max => "maxpool2d_vectors",
            Form::Mean => "avgpool2d_vectors",
            Form::MaxBack => "maxpool2d_bwd_vectors",
            Form::MeanBack => "avgpool2d_bwd_vectors",
        }
    }
    /// Number of read and of written operands.
    pub(super) fn operands(self) -> (usize, usize) {
        match self {
            Form::Max => (1, 2),
            Form::Mean | Form::MeanBack => (1, 1),
            Form::MaxBack => (2, 1),
        }
    }
    pub(super) fn results(self, w: &Window) -> u64 {
        match self {
            Form::Max | Form::Mean => product(&w.y()),
            _ => product(&w.x()),
        }
    }
    pub(super) fn cost(self, case: &Case, w: &Window) -> Cost {
        let size = case.dtype.size();
        let (x, y) = (product(&w.x()), product(&w.y()));
        let window = w.kh.saturating_mul(w.kw);
        let (flops, read, written) = match self {
            Form::Max => (y.saturating_mul(window - 1), x * size, y.saturating_mul(size + 4)),
            Form::Mean => (y.saturating_mul(window), x * size, y.saturating_mul(size)),
            Form::MaxBack => (y, y.saturating_mul(size + 4), x * size),
            Form::MeanBack => (y.saturating_mul(window), y.saturating_mul(size), x * size),
        };
        Cost { flops, read, written }
    }
}

fn cost(case: &Case, form: Form) -> Cost {
    Window::pool(case).map(|w| form.cost(case, &w)).unwrap_or_default()
}

/// Work of maxpool2d: a comparison less than pixels per window.
pub fn max_cost(case: &Case) -> Cost {
    cost(case, Form::Max)
}
/// Work of avgpool2d.
pub fn mean_cost(case: &Case) -> Cost {
    cost(case, Form::Mean)
}
/// Work of maxpool2d_bwd: an addition per window.
pub fn max_bwd_cost(case: &Case) -> Cost {
    cost(case, Form::MaxBack)
}
/// Work of avgpool2d_bwd.
pub fn mean_bwd_cost(case: &Case) -> Cost {
    cost(case, Form::MeanBack)
}

/// True if the padding counts as zeros in means.
pub(super) fn include(case: &Case) -> u64 {
    u64::from(case.attrs.int("count_include_pad", 0) == 1)
}

pub(super) fn sizes(w: &Window) -> Vec<Param> {
    [w.n, w.c, w.h, w.w, w.kh, w.kw, w.ho, w.wo, w.sh, w.sw, w.pt, w.pl].into_iter().map(Param::U64).collect()
}

/// CPU: the sizes in the order of a convolution, 1 for NHWC, 1 if the padding counts.
fn native(case: &Case, form: Form) -> Result<Plan> {
    let w = Window::pool(case)?;
    let mut params = super::plan_window::native_params(&w);
    params.push(Param::U64(include(case)));
    let (reads, writes) = form.operands();
    let all: Vec<usize> = (0..reads + writes).collect();
    Ok(plan_native::step(case, form.entry(), &all[..reads], &all[reads..], params, form.cost(case, &w)))
}

/// Elements of the result for which a processor's work-item takes several rows.
const ITEMS: u64 = 4_096;

/// For processors: the sizes, rows per work-item, and for means whether the padding counts.
fn vectors(case: &Case, info: &DeviceInfo, form: Form) -> Result<Plan> {
    for_processors(info)?;
    let w = Window::pool(case)?;
    let results = form.results(&w);
    if results == 0 {
        return Ok(Plan::default());
    }
    let (height, lanes) = match form {
        Form::Max | Form::Mean => (w.ho, w.wo),
        Form::MaxBack | Form::MeanBack => (w.h, w.w),
    };
    let rows = w.n * height * if w.nhwc { 1 } else { w.c };
    let each = (ITEMS / (results / rows)).max(1);
    // Windows further apart are taken one by one.
    let lane = if w.nhwc || w.sw > 4 { 1 } else { w.sw };
    let vectors = if (if w.nhwc { w.c } else { lanes }) >= 96 * lane { 4 } else { 1 };
    let mut step = plan_c::step(case.dtype, form.entry_of_vectors(), case.dtype.compute(), case.dtype, 1);
    step.defines.extend(c_defines(&w, largest(&w)));
    step.defines.extend(source::vector_types(case.dtype));
    let numbers = [("ALONG", u64::from(!w.nhwc)), ("LANE", lane), ("VECTORS", vectors)];
    step.defines.extend(numbers.map(|(name, value)| (name.to_string(), value.to_string())));
    let mut params = sizes(&w);
    params.push(Param::U64(each));
    if matches!(form, Form::Mean | Form::MeanBack) {
        params.push(Param::U64(include(case)));
    }
    let (reads, writes) = form.operands();
    Ok(plan_c::one(Step {
        groups: spread_groups(rows.div_ceil(each), info)?,
        args: (0..reads + writes).map(Arg::Operand).collect(),
        writes: (0..reads + writes).map(|i| i >= reads).collect(),
        params,
        cost: form.cost(case, &w),
        ..step
    }))
}

/// C dialect: the sizes, and for means whether the padding counts.
fn c(case: &Case, info: &DeviceInfo, form: Form) -> Result<Plan> {
    let w = Window::pool(case)?;
    let results = form.results(&w);
    if results == 0 {
        return Ok(Plan::default());
    }
    let mut step = plan_c::step(case.dtype, form.entry(), case.dtype.compute(), case.dtype, GROUP as u32);
    step.defines.extend(c_defines(&w, largest(&w)));
    let (reads, writes) = form.operands();
    let mut params = sizes(&w);
    if matches!(form, Form::Mean | Form::MeanBack) {
        params.push(Param::U64(include(case)));
    }
    Ok(plan_c::one(Step {
        groups: spread_groups(results.div_ceil(GROUP), info)?,
        args: (0..reads + writes).map(Arg::Operand).collect(),
        writes: (0..reads + writes).map(|i| i >= reads).collect(),
        params,
        cost: form.cost(case, &w),
        ..step
    }))
}

macro_rules! plans {
    ($($form:ident: $native:ident $c:ident $vectors:ident;)*) => {$(
        /// On the CPU.
        pub fn $native(_: &Kernel, case: &Case, _: &DeviceInfo) -> Result<Plan> {
            native(case, Form::$form)
        }
        /// In the C dialect.
        pub fn $c(_: &Kernel, case: &Case, info: &DeviceInfo) -> Result<Plan> {
            c(case, info, Form::$form)
        }
        /// `kernels/opencl/pool_vectors.cl`, for devices that are processors.
        pub fn $vectors(_: &Kernel, case: &Case, info: &DeviceInfo) -> Result<Plan> {
            vectors(case, info, Form::$form)
        }
    )*};
}
plans! {
    Max: max max_c max_vectors;
    Mean: mean mean_c mean_vectors;
    MaxBack: max_bwd max_bwd_c max_bwd_vectors;
    MeanBack: mean_bwd mean_bwd_c mean_bwd_vectors;
}
