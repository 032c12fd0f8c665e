//! Plans of the activations and their backward forms, on the CPU and in the common C dialect.

use crate::base::{AttrType, Case, Cost, DeviceInfo, Result};

use super::{Arg, Kernel, Param, Plan, Step, plan_c, plan_native};

/// The attribute alpha as a scalar of the arithmetic; ops without one ignore it. 0.01 is ONNX's default for LeakyRelu.
pub const ALPHA: AttrType = AttrType::Float(0.01);

pub(super) fn alpha(case: &Case) -> Param {
    Param::scalar(case.dtype, case.attrs.float("alpha", 0.01))
}

/// `streams` operands of n elements, the last one written, `flops` operations per element.
pub fn cost(case: &Case, streams: u64, flops: u64) -> Cost {
    let n = case.dim("n");
    let bytes = n.saturating_mul(case.dtype.size());
    Cost { flops: n.saturating_mul(flops), read: bytes.saturating_mul(streams - 1), written: bytes }
}

/// y = f(x): params n, alpha.
pub fn forward_native(_: &Kernel, case: &Case, _: &DeviceInfo) -> Result<Plan> {
    let params = vec![Param::U64(case.dim("n")), alpha(case)];
    Ok(plan_native::step(case, "forward", &[0], &[1], params, cost(case, 2, 1)))
}

/// dx = f(g, x): params n, alpha.
pub fn backward_native(_: &Kernel, case: &Case, _: &DeviceInfo) -> Result<Plan> {
    let params = vec![Param::U64(case.dim("n")), alpha(case)];
    Ok(plan_native::step(case, "backward", &[0, 1], &[2], params, cost(case, 3, 1)))
}

/// `forward(x, y, n, alpha)`: `y[i] = EXPR(x[i])`.
pub fn forward_c(_: &Kernel, case: &Case, info: &DeviceInfo) -> Result<Plan> {
    c(case, info, "forward", 2)
}

/// `backward(g, x, dx, n, alpha)`: `dx[i] = EXPR(x[i], g[i])`.
pub fn backward_c(_: &Kernel, case: &Case, info: &DeviceInfo) -> Result<Plan> {
    c(case, info, "backward", 3)
}

fn c(case: &Case, info: &DeviceInfo, entry: &'static str, streams: u64) -> Result<Plan> {
    let n = case.dim("n");
    if n == 0 {
        return Ok(Plan::default());
    }
    let step = plan_c::step(case.dtype, entry, case.dtype.compute(), case.dtype, plan_c::GROUP);
    let step = plan_c::spread_elements(step, n, info)?;
    Ok(plan_c::one(Step {
        args: (0..streams as usize).map(Arg::Operand).collect(),
        writes: (1..=streams).map(|i| i == streams).collect(),
        params: vec![Param::U64(n), alpha(case)],
        cost: cost(case, streams, 1),
        ..step
    }))
}
