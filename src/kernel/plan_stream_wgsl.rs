//! Plans of the ops that stream their operands once, and of `cast`, in WGSL.

use crate::base::{Case, Code, DType, DeviceInfo, Error, Result};

use super::plan_wgsl::{GROUP, fit, half_text, one, step};
use super::{Kernel, Param, Plan, Step, plan_cast, plan_stream, spread_groups};

/// A step like the native plan's only one, over `n` work-items.
fn like(
    case: &Case,
    info: &DeviceInfo,
    native: Plan,
    n: u64,
    params: Vec<Param>,
    defines: &[(&str, &str)],
) -> Result<Plan> {
    if n == 0 {
        return Ok(Plan::default());
    }
    fit(info, &[(case.dim("n"), case.dtype)])?;
    let [native] = &native.steps[..] else { return Ok(Plan::default()) };
    Ok(one(Step {
        args: native.args.clone(),
        writes: native.writes.clone(),
        params,
        cost: native.cost,
        ..step(case, native.entry, spread_groups(n.div_ceil(GROUP), info)?, defines)
    }))
}

/// `axpy(x, y, n, alpha)`; a work-item per word of two for f16 and bf16.
pub fn axpy(k: &Kernel, case: &Case, info: &DeviceInfo) -> Result<Plan> {
    let native = plan_stream::axpy_native(k, case, info)?;
    let (n, params) = (case.dim("n"), native.steps[0].params.clone());
    match half_text(case.dtype) {
        Some(half) => like(case, info, native, n.div_ceil(2), params, &[("CODEC", half)]),
        None => like(case, info, native, n, params, &[("T", case.dtype.name())]),
    }
}

/// `scal(x, n, alpha)`.
pub fn scal(k: &Kernel, case: &Case, info: &DeviceInfo) -> Result<Plan> {
    let native = plan_stream::scal_native(k, case, info)?;
    let params = native.steps[0].params.clone();
    like(case, info, native, case.dim("n"), params, &[("T", case.dtype.name())])
}

/// `triad(a, b, y, n, alpha)`.
pub fn triad(k: &Kernel, case: &Case, info: &DeviceInfo) -> Result<Plan> {
    let native = plan_stream::triad_native(k, case, info)?;
    let params = native.steps[0].params.clone();
    like(case, info, native, case.dim("n"), params, &[("T", case.dtype.name())])
}

/// `copy(x, y, words)`: whole words of 32 bits.
pub fn copy(k: &Kernel, case: &Case, info: &DeviceInfo) -> Result<Plan> {
    let n = plan_stream::words(case);
    like(case, info, plan_stream::copy_native(k, case, info)?, n, vec![Param::U64(n)], &[])
}

/// `fill(y, words, even, odd)`: whole words of 32 bits.
pub fn fill(k: &Kernel, case: &Case, info: &DeviceInfo) -> Result<Plan> {
    let (n, [even, odd]) = (plan_stream::words(case), plan_stream::pattern_words(case));
    like(case, info, plan_stream::fill_native(k, case, info)?, n, vec![Param::U64(n), even, odd], &[])
}

/// `convert(x, y, n)`; a work-item per element of y, per word of two for f16 and bf16.
pub fn cast(k: &Kernel, case: &Case, info: &DeviceInfo) -> Result<Plan> {
    let to = plan_cast::target(case, info)?;
    if to.size() < 4 && !to.is_float() {
        return Err(Error::new(Code::DTypeUnsupported, format!("no {to}: WGSL stores no integers below 32 bits")));
    }
    let n = case.dim("n");
    fit(info, &[(n, to)])?;
    let digits = |d: DType| d.mantissa_bits().map_or(0, |p| p - 1).to_string();
    let bias = |d: DType| d.min_exponent().map_or(0, |e| 1 - e).to_string();
    let bits = |d: DType| (8 * d.size()).to_string();
    let signed = |d: DType| (d.is_float() || d.is_signed()).to_string();
    let float = |d: DType| d.is_float().to_string();
    let from = case.dtype;
    let defines = [
        ("IN_BITS", bits(from)),
        ("IN_FLOAT", float(from)),
        ("IN_SIGNED", signed(from)),
        ("IN_DIGITS", digits(from)),
        ("IN_BIAS", bias(from)),
        ("OUT_BITS", bits(to)),
        ("OUT_FLOAT", float(to)),
        ("OUT_SIGNED", signed(to)),
        ("OUT_DIGITS", digits(to)),
        ("OUT_BIAS", bias(to)),
    ];
    let defines: Vec<(&str, &str)> = defines.iter().map(|(n, v)| (*n, v.as_str())).collect();
    let items = if to.size() == 2 { n.div_ceil(2) } else { n };
    like(case, info, plan_cast::native(k, case, info)?, items, vec![Param::U64(n)], &defines)
}
