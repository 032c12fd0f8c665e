//! Plans of pooling on the CPU and in the C dialect. Params of all kernels: n, c, h, w, kh, kw, ho, wo, sh, sw, pt, pl, then what the form adds.

use crate::base::{Case, Cost, DeviceInfo, Result};

use super::plan_c::for_processors;
use super::plan_window::{GROUP, c_defines, farthest};
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
            Form::Max => (y.saturating_mul(window - 1), x.saturating_mul(size), y.saturating_mul(size + 4)),
            Form::Mean => (y.saturating_mul(window), x.saturating_mul(size), y.saturating_mul(size)),
            Form::MaxBack => (y, y.saturating_mul(size + 4), x.saturating_mul(size)),
            Form::MeanBack => (y.saturating_mul(window), y.saturating_mul(size), x.saturating_mul(size)),
        };
        Cost { flops, read, written }
    }
}

/// The largest number that indices reach. A window is counted, for the means, and is no operand.
pub(super) fn largest(w: &Window) -> u64 {
    farthest(w).max(product(&[w.kh, w.kw]))
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

/// No strip begins anywhere.
const NOWHERE: (u64, u64) = (u32::MAX as u64, 0);

/// The first and the last position in a row of results where a strip of `length` may begin, whose windows lie `step` apart: all
/// of them within the image, or of pixels: all that hold them.
fn bounds(w: &Window, form: Form, length: u64, step: u64) -> (u64, u64) {
    let whole = |first: u64, last: u64| first * step >= w.pl && last < w.wo && last * step + w.kw <= w.w + w.pl;
    let (size, length) = match form {
        Form::Max | Form::Mean => (w.wo, length),
        Form::MaxBack | Form::MeanBack => (w.w, length * step),
    };
    let fits = |at: &u64| match form {
        Form::Max | Form::Mean => whole(*at, at + length - 1),
        Form::MaxBack | Form::MeanBack => {
            let first = (at + w.pl + step).checked_sub(w.kw).map(|past| past / step);
            first.is_some_and(|first| whole(first, (at + length - 1 + w.pl) / step))
        }
    };
    if length > size {
        return NOWHERE;
    }
    // What fits are neighbours, and both ends are near: padding is shorter than a window.
    let near = (2 * w.kw + step) as usize;
    let low = (0..=size - length).take(near).find(fits);
    let high = (0..=size - length).rev().take(near).find(fits);
    low.zip(high).unwrap_or(NOWHERE)
}

/// Elements of the result for which a processor's work-item takes several rows, so that a row that several windows read is
/// still in its core's cache. Fewer where that leaves a core less than `SHARES` work-items.
const ITEMS: u64 = 16_384;
const SHARES: u64 = 8;

/// Vectors of a strip: as many as registers hold beside what is read, if rows are two strips long.
fn strip_vectors(length: u64, lane: u64) -> u64 {
    match length / lane {
        0..96 => 1,
        192.. if lane == 1 => 8,
        _ => 4,
    }
}

/// For processors: the sizes, rows per work-item, and for means whether the padding counts.
fn vectors(case: &Case, info: &DeviceInfo, form: Form) -> Result<Plan> {
    for_processors(info)?;
    let w = Window::pool(case)?;
    let results = form.results(&w);
    if results == 0 {
        return Ok(Plan::default());
    }
    let (height, width) = match form {
        Form::Max | Form::Mean => (w.ho, w.wo),
        Form::MaxBack | Form::MeanBack => (w.h, w.w),
    };
    let rows = w.n * height * if w.nhwc { 1 } else { w.c };
    let shares = SHARES * u64::from(info.compute_units.max(1));
    let each = (ITEMS / (results / rows)).min(rows / shares).max(1);
    // Windows further apart are taken one by one.
    let lane = if w.nhwc || w.sw > 4 { 1 } else { w.sw };
    let vectors = strip_vectors(if w.nhwc { w.c } else { width }, lane);
    let strip = vectors * source::vector_lanes(case.dtype);
    let (low, high) = if w.nhwc || lane != w.sw { NOWHERE } else { bounds(&w, form, strip, lane) };
    let mut step = plan_c::step(case.dtype, form.entry_of_vectors(), case.dtype.compute(), case.dtype, 1);
    step.defines.extend(c_defines(&w, largest(&w)));
    step.defines.extend(source::vector_types(case.dtype));
    let numbers = [("ALONG", u64::from(!w.nhwc)), ("LANE", lane), ("VECTORS", vectors)];
    step.defines.extend(numbers.map(|(name, value)| (name.to_string(), value.to_string())));
    let mut params = sizes(&w);
    params.extend([each, low, high].map(Param::U64));
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::{Attr, Attrs, DType, Fill};

    /// Where strips may begin, against the definition: of every position, whether all its windows lie within the image.
    #[test]
    fn strips_begin_wherever_all_their_windows_are_whole() {
        for (width, kernel, stride, pads) in [
            (9, 2, 1, [0, 0]),
            (40, 3, 1, [1, 1]),
            (41, 3, 2, [1, 0]),
            (40, 5, 2, [4, 4]),
            (38, 2, 3, [1, 0]),
            (30, 7, 2, [0, 6]),
            (33, 1, 4, [0, 0]),
            (16, 16, 1, [15, 15]),
        ] {
            let ints = |v: [i64; 2]| Attr::Ints(v.to_vec());
            let attrs = Attrs::new()
                .with("kernel_shape", ints([1, kernel]))
                .with("pads", Attr::Ints(vec![0, pads[0], 0, pads[1]]))
                .with("strides", ints([1, stride]));
            let name = format!("{width} {attrs:?}");
            let dims = vec![("n", 1), ("c", 1), ("h", 4), ("w", width)];
            let case = Case { op: "maxpool2d", dtype: DType::F32, dims, attrs, fill: Fill::Uniform };
            let w = Window::pool(&case).unwrap();
            let whole = |o: u64| o * w.sw >= w.pl && o < w.wo && o * w.sw + w.kw <= w.w + w.pl;
            let holders = |i: u64| (0..w.wo + w.kw).filter(move |o| (o * w.sw..o * w.sw + w.kw).contains(&(i + w.pl)));
            for length in [1, 4, 16] {
                let fits = |at: &u64| at + length <= w.wo && (*at..at + length).all(whole);
                let all: Vec<u64> = (0..w.wo).filter(fits).collect();
                let want = all.first().zip(all.last()).map_or(NOWHERE, |(a, b)| (*a, *b));
                assert_eq!(bounds(&w, Form::Max, length, w.sw), want, "{name} {length}");
                assert_eq!(bounds(&w, Form::Mean, length, w.sw), want);
                assert!(want == NOWHERE || all.len() as u64 == want.1 - want.0 + 1, "neighbours");
                // Pixels: every window that would hold one if there were no border is one of the image's.
                let pixels = length * w.sw;
                let covered = |i: &u64| {
                    i + pixels <= w.w && (*i..i + pixels).all(|i| i + w.pl + w.sw >= w.kw && holders(i).all(whole))
                };
                let (low, high) = bounds(&w, Form::MaxBack, length, w.sw);
                let begins = if (low, high) == NOWHERE { 0..0 } else { low..high + 1 };
                for i in begins.clone() {
                    assert!(covered(&i), "{name} {length}: strip of pixels at {i}");
                }
                // The first and the last window of a pixel are asked of its neighbours in the strip too: at most a stride less.
                let all: Vec<u64> = (0..w.w).filter(covered).collect();
                assert!(begins.count() as u64 + 2 * w.sw >= all.len() as u64, "{name} {length}: {low} {high} {all:?}");
            }
        }
    }
}
