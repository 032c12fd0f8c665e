//! Plans of `kernels/norm.wgsl` and `kernels/moments.wgsl`: softmax and the normalisations by mean and variance.

use crate::base::{Case, Cost, DType, DeviceInfo, Result};

use super::plan_native::{self, Channels};
use super::plan_wgsl::{GROUP, fit, half_text, one, product, sizes, step};
use super::plan_wgsl_reduce::{cells, load, waiting, words};
use super::{Arg, Kernel, Param, Plan, Step, plan_c_norm, spread_groups};

/// Elements of a row that one group takes in one launch.
const SEGMENT: u64 = 16_384;
/// Rows side by side from which one invocation each keeps a device busy, and the longest of them: three loops of this
/// length stay below lavapipe's 65,535 iterations.
const BUSY: u64 = 1_024;
const COLUMN: u64 = 16_384;

/// `softmax(x, y, rows, n, inner, segment, parts)`: a group per row; `softmax_columns`: an invocation per row. Rows beyond
/// one segment take three launches of a group per (row, part): `segment_max(x, tops, ..)`, `segment_sum(x, tops, totals,
/// ..)`, `segment_write(x, tops, totals, y, ..)`. f16 and bf16 wait in f32 scratch for `pack(wide, packed, n)`.
pub fn softmax(_: &Kernel, case: &Case, info: &DeviceInfo) -> Result<Plan> {
    let (n, inner) = (case.dim("n"), case.attrs.int("inner", 1) as u64);
    let rows = product(&[case.dim("m"), inner]);
    let total = product(&[rows, n]);
    if total == 0 {
        return Ok(Plan::default());
    }
    let half = half_text(case.dtype).is_some();
    fit(info, &[(total, DType::F32)])?;
    let columns = inner > 1 && rows >= BUSY && n <= COLUMN;
    let parts = if columns { 1 } else { n.div_ceil(SEGMENT) };
    let params = sizes(&[rows, n, inner, SEGMENT, parts]);
    let groups = spread_groups(if columns { rows.div_ceil(GROUP) } else { rows * parts }, info)?;
    let (element, loads) = load("load", "x", case.dtype, "f32");
    let (word, layout) = cells(case.dtype, DType::F32);
    let defines = [("X", element), ("LOADS", loads.as_str()), ("CELLS", layout.as_str()), ("CELL", word)];
    let make = |entry, args: Vec<Arg>, cost| Step {
        writes: (0..args.len()).map(|i| i + 1 == args.len()).collect(),
        args,
        params: params.clone(),
        cost,
        ..step(case, entry, groups, &defines)
    };
    let (x, cost) = (Arg::Operand(0), plan_native::softmax_cost(case));
    let (tops, totals) = (Arg::Scratch(0), Arg::Scratch(1));
    let y = if half { Arg::Scratch(2) } else { Arg::Operand(1) };
    let mut plan = Plan::default();
    if parts == 1 {
        plan.steps.push(make(if columns { "softmax_columns" } else { "softmax" }, vec![x, y], cost));
    } else {
        plan.steps.push(make("segment_max", vec![x, tops], cost));
        plan.steps.push(make("segment_sum", vec![x, tops, totals], Cost::default()));
        plan.steps.push(make("segment_write", vec![x, tops, totals, y], Cost::default()));
    }
    if parts > 1 || half {
        plan.scratch = vec![rows * parts * 4; 2];
    }
    if half {
        plan.scratch.push(waiting(total, DType::F32, info)?);
        plan.steps.push(Step {
            params: sizes(&[total]),
            groups: spread_groups(words(total, case.dtype).div_ceil(GROUP), info)?,
            ..make("pack", vec![y, Arg::Operand(1)], Cost::default())
        });
    }
    Ok(plan)
}

/// A step of moments.wgsl.
fn make(case: &Case, entry: &'static str, groups: [u64; 3]) -> Step {
    let acc = case.dtype.compute();
    let mut loads = String::new();
    for (function, array) in [
        ("load", "x"),
        ("load_gamma", "gamma"),
        ("load_beta", "beta"),
        ("load_given_gamma", "given_gamma"),
        ("load_given_beta", "given_beta"),
        ("load_mean", "given_mean"),
        ("load_variance", "given_variance"),
    ] {
        loads.push_str(&load(function, array, case.dtype, acc.name()).1);
    }
    let (word, mut layout) = cells(case.dtype, acc);
    // What a word that is read and written held.
    layout.push_str(&match half_text(case.dtype) {
        Some(_) => "fn low(w: u32) -> f32 {\n    return widen(w & 0xffffu);\n}\nfn high(w: u32) -> f32 {\n    return \
                    widen(w >> 16u);\n}\n"
            .to_string(),
        None => ["low", "high"].map(|f| format!("fn {f}(w: {word}) -> {word} {{\n    return w;\n}}\n")).concat(),
    });
    let largest = if acc == DType::F64 { "1.7976931348623157e308lf" } else { "3.4028234663852886e38f" };
    let defines = [
        ("X", word),
        ("ACC", acc.name()),
        ("LOADS", loads.as_str()),
        ("CELLS", layout.as_str()),
        ("CELL", word),
        ("LARGEST", largest),
    ];
    step(case, entry, groups, &defines)
}

/// A step with an invocation per word of `n` elements.
fn flat(case: &Case, entry: &'static str, n: u64, info: &DeviceInfo) -> Result<Step> {
    Ok(make(case, entry, spread_groups(words(n, case.dtype).div_ceil(GROUP), info)?))
}

/// Launches that leave the moments of the channels in scratch 0.
fn moments(case: &Case, c: Channels, info: &DeviceInfo, cost: Cost) -> Result<Plan> {
    let acc = case.dtype.compute();
    fit(info, &[(product(&[c.channels, c.n]), case.dtype)])?;
    let joined = waiting(product(&[c.channels, 4]), acc, info)?;
    let (segment, parts) = plan_c_norm::cut(c.n);
    fit(info, &[(product(&[c.channels, parts, 2]), acc)])?;
    let mut params = sizes(&[c.channels, c.inner, c.n, segment, parts]);
    let first = Step {
        args: vec![Arg::Operand(0), Arg::Scratch(1)],
        writes: vec![false, true],
        params: params.clone(),
        cost,
        ..make(case, "stats_part", spread_groups(c.channels * parts, info)?)
    };
    params.push(Param::scalar(case.dtype, case.attrs.float("epsilon", plan_native::EPSILON)));
    let join = Step {
        args: vec![Arg::Operand(0), Arg::Scratch(1), Arg::Scratch(0)],
        writes: vec![false, false, true],
        params,
        ..make(case, "stats_join", spread_groups(c.channels.div_ceil(GROUP), info)?)
    };
    Ok(Plan { steps: vec![first, join], scratch: vec![joined, 2 * c.channels * parts * acc.size()] })
}

/// `stats_part`, `stats_join`, `store_layer`, `apply_layer`.
pub fn layernorm(_: &Kernel, case: &Case, info: &DeviceInfo) -> Result<Plan> {
    let (m, n) = (case.dim("m"), case.dim("n"));
    if m == 0 {
        return Ok(Plan::default());
    }
    let c = Channels { channels: m, inner: n, n };
    let mut plan = moments(case, c, info, plan_native::layernorm_cost(case))?;
    plan.steps.push(Step {
        args: vec![Arg::Scratch(0), Arg::Operand(4), Arg::Operand(5)],
        writes: vec![false, true, true],
        params: sizes(&[m]),
        ..flat(case, "store_layer", m, info)?
    });
    plan.steps.push(Step {
        args: vec![Arg::Operand(0), Arg::Scratch(0), Arg::Operand(1), Arg::Operand(2), Arg::Operand(3)],
        writes: vec![false, false, false, false, true],
        params: sizes(&[m, n]),
        ..flat(case, "apply_layer", m * n, info)?
    });
    Ok(plan)
}

/// `stats_part`, `stats_join`, `store_batch`, `apply_batch`.
pub fn batchnorm_train(_: &Kernel, case: &Case, info: &DeviceInfo) -> Result<Plan> {
    let c = Channels::of(case);
    if c.channels == 0 {
        return Ok(Plan::default());
    }
    let mut plan = moments(case, c, info, plan_native::batchnorm_train_cost(case))?;
    let momentum = case.attrs.float("momentum", plan_native::MOMENTUM);
    plan.steps.push(Step {
        args: vec![Arg::Scratch(0), Arg::Operand(4), Arg::Operand(5), Arg::Operand(6), Arg::Operand(7)],
        writes: vec![false, true, true, true, true],
        params: vec![
            Param::U64(c.channels),
            Param::scalar(case.dtype, momentum),
            Param::scalar(case.dtype, 1.0 - momentum),
        ],
        ..flat(case, "store_batch", c.channels, info)?
    });
    let total = c.channels * c.n;
    plan.steps.push(Step {
        args: vec![Arg::Operand(0), Arg::Scratch(0), Arg::Operand(1), Arg::Operand(2), Arg::Operand(3)],
        writes: vec![false, false, false, false, true],
        params: sizes(&[total, c.channels, c.inner]),
        ..flat(case, "apply_batch", total, info)?
    });
    Ok(plan)
}

/// `batchnorm_infer(x, gamma, beta, mean, variance, z, total, channels, inner, epsilon)`.
pub fn batchnorm_infer(_: &Kernel, case: &Case, info: &DeviceInfo) -> Result<Plan> {
    let c = Channels::of(case);
    let total = product(&[c.channels, c.n]);
    if total == 0 {
        return Ok(Plan::default());
    }
    fit(info, &[(total, case.dtype)])?;
    let mut params = sizes(&[total, c.channels, c.inner]);
    params.push(Param::scalar(case.dtype, case.attrs.float("epsilon", plan_native::EPSILON)));
    Ok(one(Step {
        args: (0..6).map(Arg::Operand).collect(),
        writes: vec![false, false, false, false, false, true],
        params,
        cost: plan_native::batchnorm_infer_cost(case),
        ..flat(case, "batchnorm_infer", total, info)?
    }))
}
