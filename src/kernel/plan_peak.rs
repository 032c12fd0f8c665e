//! Plans of the probe of arithmetic, in every language.

use crate::base::{Case, Cost, DeviceInfo, Result};

use super::{Kernel, Param, Plan, Step, plan_c, plan_native, plan_wgsl, spread_groups};

/// What x is multiplied by in a step; exact in f32.
pub const FACTOR: f64 = 1.0 - 1.0 / 1024.0;
/// What is added in a step: 1 stays 1.
pub const TERM: f64 = 1.0 / 1024.0;
/// Default of `steps`.
pub const STEPS: i64 = 64;

/// Independent chains of a work-item: enough to fill the pipelines of every GPU known (4 cycles), and of a processor with
/// two units of 4 cycles.
const CHAINS: u32 = 8;

/// Multiply-adds per element.
pub fn steps(case: &Case) -> u64 {
    u64::try_from(case.attrs.int("steps", STEPS)).unwrap_or(0)
}

/// Two operations a step; the operands are read and written once.
pub fn cost(case: &Case) -> Cost {
    let bytes = case.dim("n").saturating_mul(case.dtype.size());
    Cost { flops: case.dim("n").saturating_mul(2).saturating_mul(steps(case)), read: bytes, written: bytes }
}

fn params(case: &Case) -> Vec<Param> {
    let scalar = |v| Param::scalar(case.dtype, v);
    vec![Param::U64(case.dim("n")), Param::U64(steps(case)), scalar(FACTOR), scalar(TERM)]
}

/// y = x after the steps: params n, steps, factor, term.
pub fn native(_: &Kernel, case: &Case, _: &DeviceInfo) -> Result<Plan> {
    Ok(plan_native::step(case, "fma", &[0], &[1], params(case), cost(case)))
}

/// The native step on a GPU.
fn like(native: &Plan, step: Step) -> Plan {
    let [n] = &native.steps[..] else { return Plan::default() };
    let (args, writes) = (n.args.clone(), n.writes.clone());
    Plan { steps: vec![Step { args, writes, params: n.params.clone(), cost: n.cost, ..step }], scratch: Vec::new() }
}

/// `fma_chains(x, y, n, steps, factor, term)`; a processor's work-item has its chains in vectors.
pub fn c(k: &Kernel, case: &Case, info: &DeviceInfo) -> Result<Plan> {
    let n = case.dim("n");
    if n == 0 {
        return Ok(Plan::default());
    }
    let (group, wide) = if info.is_software() { (1, (64 / case.dtype.size()) as u32) } else { (plan_c::GROUP, 1) };
    let mut step = plan_c::step(case.dtype, "fma_chains", case.dtype.compute(), case.dtype, group);
    step.defines.extend([("CHAINS".into(), CHAINS.to_string()), ("WIDE".into(), wide.to_string())]);
    step.groups = spread_groups(n.div_ceil(u64::from(group * wide * CHAINS)), info)?;
    Ok(like(&native(k, case, info)?, step))
}

/// The same in WGSL.
pub fn wgsl(k: &Kernel, case: &Case, info: &DeviceInfo) -> Result<Plan> {
    let n = case.dim("n");
    if n == 0 {
        return Ok(Plan::default());
    }
    plan_wgsl::fit(info, &[(n, case.dtype)])?;
    let groups = spread_groups(n.div_ceil(plan_wgsl::GROUP * u64::from(CHAINS)), info)?;
    let step = plan_wgsl::step(case, "fma_chains", groups, &[("T", case.dtype.name())]);
    Ok(like(&native(k, case, info)?, step))
}
