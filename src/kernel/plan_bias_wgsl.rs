//! Plans of bias_add and its gradient in WGSL.

use crate::base::{Case, Cost, DType, DeviceInfo, Result};

use super::plan_bias::{COLUMN_SEGMENT, GROUP_FROM, SEGMENT, elements, sizes};
use super::plan_wgsl::{GROUP, fit, half_text, one, step};
use super::{Arg, Kernel, Param, Plan, Step, plan_bias, spread_groups};

const FULL: &str = include_str!("../../kernels/bias_full.wgsl");
const HALF: &str = include_str!("../../kernels/bias_half.wgsl");

/// What a text of the dtype is made of.
fn defines(dtype: DType) -> Vec<(&'static str, &'static str)> {
    let acc = ("ACC", dtype.compute().name());
    match half_text(dtype) {
        Some(half) => vec![("CODEC", HALF), ("HALF", half), acc],
        None => vec![("CODEC", FULL), acc],
    }
}

/// `bias_add(x, b, y, n, c, inner)`; a work-item per word of two for f16 and bf16.
pub fn add(_: &Kernel, case: &Case, info: &DeviceInfo) -> Result<Plan> {
    let n = elements(case);
    if n == 0 {
        return Ok(Plan::default());
    }
    fit(info, &[(n, case.dtype)])?;
    let items = if case.dtype.size() == 2 { n.div_ceil(2) } else { n };
    Ok(one(Step {
        args: (0..3).map(Arg::Operand).collect(),
        writes: vec![false, false, true],
        params: [n, case.dim("c"), case.dim("inner")].map(Param::U64).to_vec(),
        cost: plan_bias::add_cost(case),
        ..step(case, "bias_add", spread_groups(items.div_ceil(GROUP), info)?, &defines(case.dtype))
    }))
}

/// `bias_groups(g, sums, k, c, inner, segment, parts)` or `bias_columns(..)` as in the C dialect. f16 and bf16 are summed in
/// f32 scratch, then `pack(sums, db, n)` rounds once.
pub fn sum(_: &Kernel, case: &Case, info: &DeviceInfo) -> Result<Plan> {
    let [outer, c, mut inner] = sizes(case);
    if c == 0 {
        return Ok(Plan::default());
    }
    let (acc, half) = (case.dtype.compute(), case.dtype.size() == 2);
    fit(info, &[(elements(case), case.dtype), (c, acc)])?;
    let mut plan = Plan::default();
    let (mut from, mut dtype, mut k) = (Arg::Operand(0), case.dtype, outer.saturating_mul(inner));
    loop {
        let groups = inner >= GROUP_FROM;
        let segment = if groups { SEGMENT } else { COLUMN_SEGMENT };
        let parts = k.div_ceil(segment).max(1);
        let results = parts.saturating_mul(c);
        fit(info, &[(results, acc)])?;
        let (entry, count) = match groups {
            true => ("bias_groups", results),
            false => ("bias_columns", results.div_ceil(GROUP)),
        };
        let last = parts == 1;
        let target = if last && !half { Arg::Operand(1) } else { Arg::Scratch(plan.scratch.len()) };
        plan.steps.push(Step {
            dtype,
            args: vec![from, target],
            writes: vec![false, true],
            params: [k, c, inner.max(1), segment, parts].map(Param::U64).to_vec(),
            cost: if plan.steps.is_empty() { plan_bias::sum_cost(case) } else { Cost::default() },
            ..step(case, entry, spread_groups(count, info)?, &defines(dtype))
        });
        if let Arg::Scratch(_) = target {
            // Whole pairs: an odd number of sums has a partner that is never looked at.
            plan.scratch.push(results.next_multiple_of(2) * acc.size());
        }
        if last && half {
            plan.steps.push(Step {
                args: vec![target, Arg::Operand(1)],
                writes: vec![false, true],
                params: vec![Param::U64(c)],
                ..step(case, "pack", spread_groups(c.div_ceil(2).div_ceil(GROUP), info)?, &defines(case.dtype))
            });
        }
        if last {
            return Ok(plan);
        }
        (from, dtype, k, inner) = (target, acc, parts, 1);
    }
}
