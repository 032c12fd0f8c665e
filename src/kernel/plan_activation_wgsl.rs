//! Plans of the activations and their backward forms in WGSL.

use crate::base::{Case, DType, DeviceInfo, Result};

use super::plan_wgsl::{GROUP, fit, half_text, one, step};
use super::{Arg, Kernel, Param, Plan, Step, plan_activation, spread_groups};

const CODEC_F32: &str = include_str!("../../kernels/activation_f32.wgsl");
const CODEC_F64: &str = include_str!("../../kernels/activation_f64.wgsl");
const CODEC_HALF: &str = include_str!("../../kernels/activation_half.wgsl");
const BITS: &str = include_str!("../../kernels/activation_bits.wgsl");

/// `forward(x, y, n, alpha)`: `y[i] = EXPR(x[i])`; one work-item per element, per word of two for f16 and bf16.
pub fn forward(_: &Kernel, case: &Case, info: &DeviceInfo) -> Result<Plan> {
    plan(case, info, "forward", 2)
}

/// `backward(g, x, dx, n, alpha)`: `dx[i] = EXPR(x[i], g[i])`.
pub fn backward(_: &Kernel, case: &Case, info: &DeviceInfo) -> Result<Plan> {
    plan(case, info, "backward", 3)
}

fn plan(case: &Case, info: &DeviceInfo, entry: &'static str, streams: u64) -> Result<Plan> {
    let n = case.dim("n");
    if n == 0 {
        return Ok(Plan::default());
    }
    fit(info, &[(n, case.dtype)])?;
    let (store, acc, codec, words) = match (case.dtype, half_text(case.dtype)) {
        (_, Some(half)) => ("u32", "f32", format!("{half}\n{BITS}\n{CODEC_HALF}"), n.div_ceil(2)),
        (DType::F64, _) => ("f64", "f64", CODEC_F64.to_string(), n),
        _ => ("f32", "f32", format!("{BITS}\n{CODEC_F32}"), n),
    };
    Ok(one(Step {
        args: (0..streams as usize).map(Arg::Operand).collect(),
        writes: (1..=streams).map(|i| i == streams).collect(),
        params: vec![Param::U64(n), plan_activation::alpha(case)],
        cost: plan_activation::cost(case, streams, 1),
        ..step(
            case,
            entry,
            spread_groups(words.div_ceil(GROUP), info)?,
            &[("CODEC", &codec), ("STORE", store), ("ACC", acc)],
        )
    }))
}
