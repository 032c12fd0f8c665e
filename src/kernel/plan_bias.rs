//! Plans of bias_add and its gradient, on the CPU and in the common C dialect.

use crate::base::{Case, Cost, DeviceInfo, Result};

use super::plan_reduce::{outer_axes, passes};
use super::{Arg, Kernel, Param, Plan, Step, plan_c, plan_c_reduce, plan_native, source, spread_groups};

/// Terms that one group sums before another launch adds the groups' results, and the same of one work-item.
pub(super) const SEGMENT: u64 = 16_384;
pub(super) const COLUMN_SEGMENT: u64 = 1_024;

/// Terms that lie side by side from which on a group works on one channel.
pub(super) const GROUP_FROM: u64 = 32;

/// outer, c, inner.
pub(super) fn sizes(case: &Case) -> [u64; 3] {
    ["outer", "c", "inner"].map(|d| case.dim(d))
}

/// Elements of [outer, c, inner].
pub fn elements(case: &Case) -> u64 {
    sizes(case).iter().fold(1, |a, b| a.saturating_mul(*b))
}

/// One addition, x and y per element, and the bias.
pub fn add_cost(case: &Case) -> Cost {
    let (n, size) = (elements(case), case.dtype.size());
    Cost { flops: n, read: n.saturating_add(case.dim("c")).saturating_mul(size), written: n.saturating_mul(size) }
}

/// One addition per element of g.
pub fn sum_cost(case: &Case) -> Cost {
    let (n, size) = (elements(case), case.dtype.size());
    Cost { flops: n, read: n.saturating_mul(size), written: case.dim("c").saturating_mul(size) }
}

/// y = x + b: params outer, c, inner.
pub fn add_native(_: &Kernel, case: &Case, _: &DeviceInfo) -> Result<Plan> {
    Ok(plan_native::step(case, "bias_add", &[0, 1], &[2], plan_native::sizes(case), add_cost(case)))
}

/// db = sums of g: params outer, c, inner.
pub fn sum_native(_: &Kernel, case: &Case, _: &DeviceInfo) -> Result<Plan> {
    Ok(plan_native::step(case, "bias_sum", &[0], &[1], plan_native::sizes(case), sum_cost(case)))
}

/// `bias_add(x, b, y, n, c, inner)`.
pub fn add_c(_: &Kernel, case: &Case, info: &DeviceInfo) -> Result<Plan> {
    let n = elements(case);
    if n == 0 {
        return Ok(Plan::default());
    }
    let mut step = plan_c::step(case.dtype, "bias_add", case.dtype.compute(), case.dtype, plan_c::GROUP);
    let index = if n <= u64::from(u32::MAX) { "u32" } else { "u64" };
    step.defines.push(("INDEX".into(), index.into()));
    Ok(plan_c::one(Step {
        args: (0..3).map(Arg::Operand).collect(),
        writes: vec![false, false, true],
        params: [n, case.dim("c"), case.dim("inner")].map(Param::U64).to_vec(),
        cost: add_cost(case),
        ..plan_c::spread_elements(step, n, info)?
    }))
}

/// `bias_vectors(x, b, y, n, c, inner, past)`, for devices that are processors.
pub fn add_vectors(_: &Kernel, case: &Case, info: &DeviceInfo) -> Result<Plan> {
    plan_c::for_processors(info)?;
    let n = elements(case);
    if n == 0 {
        return Ok(Plan::default());
    }
    let mut step = plan_c::step(case.dtype, "bias_vectors", case.dtype.compute(), case.dtype, 1);
    step.defines.extend(source::vector_types(case.dtype));
    step.defines.push(("AHEAD".into(), plan_c::AHEAD.to_string()));
    let mut params = [n, case.dim("c"), case.dim("inner")].map(Param::U64).to_vec();
    params.push(plan_c::past_caches(n * case.dtype.size()));
    Ok(plan_c::one(Step {
        args: (0..3).map(Arg::Operand).collect(),
        writes: vec![false, false, true],
        params,
        cost: add_cost(case),
        ..plan_c::spread_elements(step, n, info)?
    }))
}

/// Sums over the first and the last axis of [outer, c, inner] by reduce.c, for devices that are processors.
pub fn sum_c_of_processor(_: &Kernel, case: &Case, info: &DeviceInfo) -> Result<Plan> {
    plan_c::for_processors(info)?;
    plan_c_reduce::sum_of(
        case,
        &passes(&outer_axes(&sizes(case))),
        case.dtype.compute(),
        case.dtype,
        sum_cost(case),
        info,
    )
}

/// `bias_groups(g, db, k, c, inner, segment, parts)`: a group per (part, channel); `bias_columns(..)`: a work-item each. With
/// several parts db is scratch of the arithmetic's type, [parts, c], and `bias_columns` sums the parts, until one is left.
pub fn sum_c(_: &Kernel, case: &Case, info: &DeviceInfo) -> Result<Plan> {
    let [outer, c, mut inner] = sizes(case);
    if c == 0 {
        return Ok(Plan::default());
    }
    let acc = case.dtype.compute();
    let mut plan = Plan::default();
    let (mut from, mut dtype, mut k) = (Arg::Operand(0), case.dtype, outer.saturating_mul(inner));
    loop {
        let groups = inner >= GROUP_FROM;
        let segment = if groups { SEGMENT } else { COLUMN_SEGMENT };
        let parts = k.div_ceil(segment).max(1);
        let (entry, count) = match groups {
            true => ("bias_groups", parts * c),
            false => ("bias_columns", (parts * c).div_ceil(u64::from(plan_c::GROUP))),
        };
        let last = parts == 1;
        let target = if last { Arg::Operand(1) } else { Arg::Scratch(plan.scratch.len()) };
        plan.steps.push(Step {
            groups: spread_groups(count, info)?,
            args: vec![from, target],
            writes: vec![false, true],
            params: [k, c, inner.max(1), segment, parts].map(Param::U64).to_vec(),
            cost: if plan.steps.is_empty() { sum_cost(case) } else { Cost::default() },
            ..plan_c::step(dtype, entry, acc, if last { case.dtype } else { acc }, plan_c::GROUP)
        });
        if last {
            return Ok(plan);
        }
        plan.scratch.push(parts * c * acc.size());
        (from, dtype, k, inner) = (target, acc, parts, 1);
    }
}
