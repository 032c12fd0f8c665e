//! Plans of `kernels/norm.c`: softmax and the normalisations by mean and variance.

use crate::base::{Case, Code, Cost, DType, DeviceInfo, Error, Result};

use super::plan_c::{
    GROUP, Share, column_share, for_processors, one, past_caches, row_group, row_share, spread_elements, step,
};
use super::plan_native::{self, Channels};
use super::{Arg, Kernel, Param, Plan, Step, plan_c, source, spread_groups};

/// Elements of one channel that one group takes before the groups' statistics are joined; more where a channel has more
/// than 8,192 such segments.
const SEGMENT: u64 = 16_384;
const PARTS: u64 = 8_192;

/// Rows of softmax from which one work-item each keeps a device busy.
const BUSY: u64 = 1_024;

/// A step whose work-items share rows or columns.
fn shared(case: &Case, entry: &'static str, share: Share) -> Step {
    let mut s = step(case.dtype, entry, case.dtype.compute(), case.dtype, share.group);
    s.defines.extend(share.defines(1));
    s
}

/// `softmax(x, y, rows, n, inner)`: one group per row; `softmax_columns(x, y, m, n, inner)`, a work-item for `WIDE` rows
/// side by side, where there are many.
pub fn softmax(_: &Kernel, case: &Case, info: &DeviceInfo) -> Result<Plan> {
    let (n, inner) = (case.dim("n"), case.attrs.int("inner", 1) as u64);
    let (m, rows) = (case.dim("m"), case.dim("m") * inner);
    if rows * n == 0 {
        return Ok(Plan::default());
    }
    let columns = inner > 1 && (info.is_software() || rows >= BUSY);
    let share = column_share(inner, info);
    let items = m * inner.div_ceil(u64::from(share.wide));
    let mut step = match columns {
        true => shared(case, "softmax_columns", share),
        false => step(case.dtype, "softmax", case.dtype.compute(), case.dtype, row_group(n)),
    };
    step.defines.push(("STRIDE".into(), if inner == 1 { "1" } else { "inner" }.into()));
    Ok(one(Step {
        groups: spread_groups(if columns { items.div_ceil(u64::from(share.group)) } else { rows }, info)?,
        args: vec![Arg::Operand(0), Arg::Operand(1)],
        writes: vec![false, true],
        params: [if columns { m } else { rows }, n, inner].map(Param::U64).to_vec(),
        cost: plan_native::softmax_cost(case),
        ..step
    }))
}

/// A step of `kernels/opencl/norm_vectors.cl`: a work-item per row of a device that is a processor.
fn vectors(case: &Case, entry: &'static str, rows: u64, info: &DeviceInfo) -> Result<Step> {
    for_processors(info)?;
    let mut s = step(case.dtype, entry, case.dtype.compute(), case.dtype, 1);
    s.defines.extend(source::vector_types(case.dtype));
    // Of the text's functions, which every entry is given.
    s.defines.extend(exponential(case.dtype));
    Ok(Step { groups: spread_groups(rows, info)?, ..s })
}

/// Elements of a row whose exponentials are kept, and for which a work-item takes several rows.
const ROW: u64 = 4_096;

/// What `exp_tame` knows of exp. The polynomials have the least largest relative error within half of log(2): 1.9e-9 and
/// 3.1e-18.
fn exponential(dtype: DType) -> Vec<(String, String)> {
    let (sizes, numbers) = match dtype {
        DType::F64 => (
            [11, 52],
            [
                "-708.0",
                "1.4426950408889634",
                "6755399441055744.0",
                "0.69314718036912382",
                "1.9082149292705877e-10",
                "{1.0, 1.0, 0.50000000000000177, 0.16666666666666170, 0.041666666666492823, 0.0083333333335585358, \
                 0.0013888888951209748, 0.00019841269434156055, 0.000024801486535902398, 2.7557621246204917e-6, \
                 2.7632288262370691e-7, 2.4994707288794189e-8}",
            ],
        ),
        _ => (
            [6, 23],
            [
                "-87.0f",
                "1.44269504f",
                "12582912.0f",
                "0.693145752f",
                "1.42860677e-6f",
                "{1.0f, 1.0f, 0.499999921f, 0.166664202f, 0.0416682260f, 0.00837481493f, 0.00138368168f}",
            ],
        ),
    };
    let names = ["LEAST", "LOG2_E", "ROUNDER", "LN2_HIGH", "LN2_LOW", "POLYNOMIAL"];
    let numbers = names.into_iter().zip(numbers).map(|(name, value)| (name.to_string(), value.to_string()));
    let sizes =
        ["DEGREE", "EXPONENT"].into_iter().zip(sizes).map(|(name, value)| (name.to_string(), value.to_string()));
    numbers.chain(sizes).collect()
}

/// `softmax_vectors(x, y, rows, n, each, past)`, for rows that lie beside each other.
pub fn softmax_vectors(_: &Kernel, case: &Case, info: &DeviceInfo) -> Result<Plan> {
    for_processors(info)?;
    let (m, n) = (case.dim("m"), case.dim("n"));
    if case.attrs.int("inner", 1) != 1 {
        return Err(Error::new(Code::FeatureUnsupported, "needs rows that lie beside each other"));
    }
    if m * n == 0 {
        return Ok(Plan::default());
    }
    let each = (ROW / n).max(1);
    let mut step = vectors(case, "softmax_vectors", m.div_ceil(each), info)?;
    step.defines.push(("ROW".into(), ROW.to_string()));
    Ok(one(Step {
        args: vec![Arg::Operand(0), Arg::Operand(1)],
        writes: vec![false, true],
        params: vec![Param::U64(m), Param::U64(n), Param::U64(each), past_caches(m * n * case.dtype.size())],
        cost: plan_native::softmax_cost(case),
        ..step
    }))
}

/// Elements up to which rows are short: in vectors along them most lanes would be idle.
const SHORT: u64 = 32;

/// `softmax_lanes(x, y, rows, n, each)`, for short rows that lie beside each other.
pub fn softmax_lanes(_: &Kernel, case: &Case, info: &DeviceInfo) -> Result<Plan> {
    for_processors(info)?;
    let (m, n) = (case.dim("m"), case.dim("n"));
    if m * n == 0 {
        return Ok(Plan::default());
    }
    let lanes = source::vector_lanes(case.dtype);
    if case.attrs.int("inner", 1) != 1 || n > SHORT || n % lanes == 0 {
        return Err(Error::new(
            Code::FeatureUnsupported,
            format!("needs rows of at most {SHORT} elements, but no whole vectors, that lie beside each other"),
        ));
    }
    let each = (ROW / (n * lanes)).max(1);
    let mut step = vectors(case, "softmax_lanes", m.div_ceil(each * lanes), info)?;
    step.defines.push(("ROW".into(), SHORT.to_string()));
    Ok(one(Step {
        args: vec![Arg::Operand(0), Arg::Operand(1)],
        writes: vec![false, true],
        params: [m, n, each].map(Param::U64).to_vec(),
        cost: plan_native::softmax_cost(case),
        ..step
    }))
}

/// `layernorm_vectors(x, gamma, beta, y, mean, rstd, rows, n, epsilon, past)`, for rows of one segment.
pub fn layernorm_vectors(_: &Kernel, case: &Case, info: &DeviceInfo) -> Result<Plan> {
    for_processors(info)?;
    let (m, n) = (case.dim("m"), case.dim("n"));
    if cut(n).1 != 1 {
        return Err(Error::new(Code::FeatureUnsupported, format!("needs rows of at most {SEGMENT} elements")));
    }
    if m == 0 {
        return Ok(Plan::default());
    }
    let epsilon = Param::scalar(case.dtype, case.attrs.float("epsilon", plan_native::EPSILON));
    Ok(one(Step {
        args: (0..6).map(Arg::Operand).collect(),
        writes: vec![false, false, false, true, true, true],
        params: vec![Param::U64(m), Param::U64(n), epsilon, past_caches(m * n * case.dtype.size())],
        cost: plan_native::layernorm_cost(case),
        ..vectors(case, "layernorm_vectors", m, info)?
    }))
}

/// Segment and parts of a channel of n elements.
pub(super) fn cut(n: u64) -> (u64, u64) {
    let segment = SEGMENT.max(n.div_ceil(PARTS));
    (segment, n.div_ceil(segment).max(1))
}

/// Launches that leave the moments of the channels in scratch 0.
fn moments(case: &Case, c: Channels, info: &DeviceInfo, cost: Cost) -> Result<Plan> {
    let acc = case.dtype.compute();
    let (segment, parts) = cut(c.n);
    let flat = |n: u64| spread_groups(n.div_ceil(u64::from(GROUP)), info);
    let mut sizes = [c.channels, c.inner, c.n, segment, parts].map(Param::U64).to_vec();
    let first = Step {
        groups: spread_groups(c.channels * parts, info)?,
        args: vec![Arg::Operand(0), Arg::Scratch(1)],
        writes: vec![false, true],
        params: sizes.clone(),
        cost,
        ..match info.is_software() {
            true => shared(case, "stats_runs", row_share(c.inner, info)),
            false => step(case.dtype, "stats_part", acc, case.dtype, row_group(c.n)),
        }
    };
    sizes.push(Param::scalar(case.dtype, case.attrs.float("epsilon", plan_native::EPSILON)));
    let join = Step {
        groups: flat(c.channels)?,
        args: vec![Arg::Operand(0), Arg::Scratch(1), Arg::Scratch(0)],
        writes: vec![false, false, true],
        params: sizes,
        ..step(case.dtype, "stats_join", acc, case.dtype, GROUP)
    };
    Ok(Plan {
        steps: vec![first, join],
        scratch: vec![4 * c.channels * acc.size(), 2 * c.channels * parts * acc.size()],
    })
}

/// An elementwise step of the text.
fn flat(case: &Case, entry: &'static str, n: u64, info: &DeviceInfo) -> Result<Step> {
    let groups = spread_groups(n.div_ceil(u64::from(GROUP)), info)?;
    Ok(Step { groups, ..step(case.dtype, entry, case.dtype.compute(), case.dtype, GROUP) })
}

/// `layernorm(x, gamma, beta, y, mean, rstd, rows, n, epsilon)`, a group per row, where a row is one segment; else
/// `stats_part`, `stats_join`, `store_layer`, `apply_layer`.
pub fn layernorm(_: &Kernel, case: &Case, info: &DeviceInfo) -> Result<Plan> {
    let (m, n) = (case.dim("m"), case.dim("n"));
    if m == 0 {
        return Ok(Plan::default());
    }
    if cut(n).1 == 1 {
        let epsilon = Param::scalar(case.dtype, case.attrs.float("epsilon", plan_native::EPSILON));
        return Ok(one(Step {
            groups: spread_groups(m, info)?,
            args: (0..6).map(Arg::Operand).collect(),
            writes: vec![false, false, false, true, true, true],
            params: vec![Param::U64(m), Param::U64(n), epsilon],
            cost: plan_native::layernorm_cost(case),
            ..step(case.dtype, "layernorm", case.dtype.compute(), case.dtype, row_group(n))
        }));
    }
    let c = Channels { channels: m, inner: n, n };
    let mut plan = moments(case, c, info, plan_native::layernorm_cost(case))?;
    plan.steps.push(Step {
        args: vec![Arg::Scratch(0), Arg::Operand(4), Arg::Operand(5)],
        writes: vec![false, true, true],
        params: vec![Param::U64(m)],
        ..flat(case, "store_layer", m, info)?
    });
    plan.steps.push(Step {
        args: vec![Arg::Operand(0), Arg::Scratch(0), Arg::Operand(1), Arg::Operand(2), Arg::Operand(3)],
        writes: vec![false, false, false, false, true],
        params: vec![Param::U64(m), Param::U64(n)],
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
        params: [total, c.channels, c.inner].map(Param::U64).to_vec(),
        ..flat(case, "apply_batch", total, info)?
    });
    Ok(plan)
}

/// Elements of a piece of a run, which a core's first cache holds, and of the pieces of a work-item.
const PIECE: u64 = 4_096;
const PIECES: u64 = 8_192;

/// Elements of the pieces into which runs of `inner` are cut: whole vectors, all of one size, enough to be worth two sums
/// over lanes.
fn piece(inner: u64, lanes: u64) -> Option<u64> {
    let least = inner.div_ceil(PIECE).max(1);
    let per = (least..least + 64).find(|per| inner.is_multiple_of(per * lanes))?;
    Some(inner / per).filter(|piece| *piece >= 4 * lanes)
}

/// Batchnorm's own statistics in vectors: `batchnorm_train_vectors`, or where the operand is larger than the caches
/// `batch_stats`, `batch_join` and `batch_apply`.
pub fn batchnorm_train_vectors(_: &Kernel, case: &Case, info: &DeviceInfo) -> Result<Plan> {
    for_processors(info)?;
    let c = Channels::of(case);
    if c.channels * c.n == 0 {
        return Err(Error::new(Code::FeatureUnsupported, "needs elements"));
    }
    let lanes = source::vector_lanes(case.dtype);
    let large = past_caches(c.channels * c.n * case.dtype.size()) == past_caches(u64::MAX);
    match piece(c.inner, lanes) {
        Some(segment) if large => train_in_order(case, c, segment, info),
        _ => train_by_channels(case, c, lanes, info),
    }
}

/// `batch_stats(x, stats, channels, inner, n, segment, each)`, `batch_join(x, stats, moments, mean, variance, running_mean,
/// running_variance, channels, inner, n, segment, epsilon, keep, take)`, `batch_apply(x, moments, gamma, beta, y, total,
/// channels, inner, past)`.
fn train_in_order(case: &Case, c: Channels, segment: u64, info: &DeviceInfo) -> Result<Plan> {
    let (pieces, each) = (c.channels * (c.n / segment), (PIECES / segment).max(1));
    let momentum = case.attrs.float("momentum", plan_native::MOMENTUM);
    let sizes = [c.channels, c.inner, c.n, segment].map(Param::U64);
    let mut first = vectors(case, "batch_stats", pieces.div_ceil(each), info)?;
    first.defines.push(("AHEAD".into(), plan_c::AHEAD.to_string()));
    let stats = Step {
        args: vec![Arg::Operand(0), Arg::Scratch(0)],
        writes: vec![false, true],
        params: sizes.iter().cloned().chain([Param::U64(each)]).collect(),
        cost: plan_native::batchnorm_train_cost(case),
        ..first
    };
    let scalars = [case.attrs.float("epsilon", plan_native::EPSILON), momentum, 1.0 - momentum];
    let join = Step {
        args: [Arg::Operand(0), Arg::Scratch(0), Arg::Scratch(1)].into_iter().chain((4..8).map(Arg::Operand)).collect(),
        writes: vec![false, false, true, true, true, true, true],
        params: sizes.into_iter().chain(scalars.map(|v| Param::scalar(case.dtype, v))).collect(),
        ..vectors(case, "batch_join", c.channels, info)?
    };
    let total = c.channels * c.n;
    let apply = Step {
        args: vec![Arg::Operand(0), Arg::Scratch(1), Arg::Operand(1), Arg::Operand(2), Arg::Operand(3)],
        writes: vec![false, false, false, false, true],
        params: [total, c.channels, c.inner].map(Param::U64).into_iter().chain([past_caches(u64::MAX)]).collect(),
        ..spread_elements(vectors(case, "batch_apply", 1, info)?, total, info)?
    };
    let acc = case.dtype.compute().size();
    Ok(Plan { steps: vec![stats, join, apply], scratch: vec![2 * pieces * acc, 2 * c.channels * acc] })
}

/// `batchnorm_train_vectors(x, gamma, beta, y, mean, variance, running_mean, running_variance, stats, channels, inner, n,
/// segment, parts, epsilon, keep, take, past)`, for channels of whole vectors, enough of them for all processors.
fn train_by_channels(case: &Case, c: Channels, lanes: u64, info: &DeviceInfo) -> Result<Plan> {
    let (segment, parts) = cut(c.n);
    if !c.inner.is_multiple_of(lanes) || !segment.is_multiple_of(lanes) {
        return Err(Error::new(Code::FeatureUnsupported, format!("needs images of whole vectors of {lanes} elements")));
    }
    if c.channels < 4 * u64::from(info.compute_units) {
        return Err(Error::new(Code::FeatureUnsupported, "needs four channels for each processor"));
    }
    let momentum = case.attrs.float("momentum", plan_native::MOMENTUM);
    let mut params = [c.channels, c.inner, c.n, segment, parts].map(Param::U64).to_vec();
    let scalars = [case.attrs.float("epsilon", plan_native::EPSILON), momentum, 1.0 - momentum];
    params.extend(scalars.map(|v| Param::scalar(case.dtype, v)));
    params.push(past_caches(c.channels * c.n * case.dtype.size()));
    let step = Step {
        args: (0..8).map(Arg::Operand).chain([Arg::Scratch(0)]).collect(),
        writes: vec![false, false, false, true, true, true, true, true, true],
        params,
        cost: plan_native::batchnorm_train_cost(case),
        ..vectors(case, "batchnorm_train_vectors", c.channels, info)?
    };
    Ok(Plan { steps: vec![step], scratch: vec![2 * c.channels * parts * case.dtype.compute().size()] })
}

/// `batchnorm_infer_vectors(x, gamma, beta, mean, variance, y, total, channels, inner, epsilon, past)`.
pub fn batchnorm_infer_vectors(_: &Kernel, case: &Case, info: &DeviceInfo) -> Result<Plan> {
    for_processors(info)?;
    let c = Channels::of(case);
    let total = c.channels * c.n;
    if total == 0 {
        return Ok(Plan::default());
    }
    let mut params = [total, c.channels, c.inner].map(Param::U64).to_vec();
    params.push(Param::scalar(case.dtype, case.attrs.float("epsilon", plan_native::EPSILON)));
    params.push(past_caches(total * case.dtype.size()));
    let step = spread_elements(vectors(case, "batchnorm_infer_vectors", 1, info)?, total, info)?;
    Ok(one(Step {
        args: (0..6).map(Arg::Operand).collect(),
        writes: vec![false, false, false, false, false, true],
        params,
        cost: plan_native::batchnorm_infer_cost(case),
        ..step
    }))
}

/// `batchnorm_infer(x, gamma, beta, mean, variance, y, total, channels, inner, epsilon)`.
pub fn batchnorm_infer(_: &Kernel, case: &Case, info: &DeviceInfo) -> Result<Plan> {
    let c = Channels::of(case);
    let total = c.channels * c.n;
    if total == 0 {
        return Ok(Plan::default());
    }
    let mut params = [total, c.channels, c.inner].map(Param::U64).to_vec();
    params.push(Param::scalar(case.dtype, case.attrs.float("epsilon", plan_native::EPSILON)));
    Ok(one(Step {
        args: (0..6).map(Arg::Operand).collect(),
        writes: vec![false, false, false, false, false, true],
        params,
        cost: plan_native::batchnorm_infer_cost(case),
        ..flat(case, "batchnorm_infer", total, info)?
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::Exact;
    use crate::base::exact::ulp;
    use crate::base::rng::Philox;

    /// The kernel's steps on one number, with products rounded and not (compilers may do either).
    macro_rules! tame {
        ($name:ident, $t:ty, $bits:ty) => {
            fn $name(v: $t, fused: bool) -> $t {
                let dtype = if size_of::<$t>() == 4 { DType::F32 } else { DType::F64 };
                let defines = exponential(dtype);
                let of = |name: &str| defines.iter().find(|(n, _)| n == name).unwrap().1.replace(['f', '{', '}'], "");
                let one = |name: &str| of(name).parse::<$t>().unwrap();
                let terms: Vec<$t> = of("POLYNOMIAL").split(',').map(|t| t.trim().parse().unwrap()).collect();
                assert_eq!(terms.len(), of("DEGREE").parse::<usize>().unwrap() + 1);
                let madd = |a: $t, b: $t, c: $t| if fused { a.mul_add(b, c) } else { a * b + c };
                let t = madd(v, one("LOG2_E"), one("ROUNDER"));
                let k = t - one("ROUNDER");
                let r = madd(-k, one("LN2_LOW"), madd(-k, one("LN2_HIGH"), v));
                let p = terms.iter().rev().copied().reduce(|p, term| madd(p, r, term)).unwrap();
                let exponent: u32 = of("EXPONENT").parse().unwrap();
                let one: $t = 1.0;
                p * <$t>::from_bits(one.to_bits().wrapping_add(t.to_bits() << exponent))
            }
        };
    }
    tame!(tame32, f32, u32);
    tame!(tame64, f64, u64);

    /// OpenCL's limit for exp, by which softmax is judged, is 3 ulp.
    #[test]
    fn the_own_exponential_is_within_two_ulps() {
        let rng = Philox::new(9);
        for fused in [false, true] {
            let (mut worst32, mut worst64) = (0f64, 0f64);
            for i in 0..20_000u64 {
                // Logarithmic and even, so that numbers near 0 and near LEAST are among them.
                let u = rng.unit(0, i);
                let x = if i % 2 == 0 { -87.0 * u } else { -87.0 * 2f64.powf(-30.0 * u) };
                let x32 = x as f32;
                let want = Exact::f(x32.into()).exp();
                let far = Exact::f(tame32(x32, fused).into()).add(want.neg()).abs_f64();
                worst32 = worst32.max(far / ulp(DType::F32, want.to_f64()));
                let x64 = x * 8.1;
                let want = Exact::f(x64).exp();
                let far = Exact::f(tame64(x64, fused)).add(want.neg()).abs_f64();
                worst64 = worst64.max(far / ulp(DType::F64, want.to_f64()));
            }
            assert!((0.5..2.0).contains(&worst32) && (0.5..2.0).contains(&worst64), "{worst32} {worst64} {fused}");
        }
        assert_eq!((tame32(0.0, false), tame64(0.0, true)), (1.0, 1.0));
    }
}
