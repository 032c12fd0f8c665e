//! Plans of the WGSL kernels. The entry points are documented here and in the kernel files.
//!
//! Conventions: buffers are bound in the order of `args`, the scalars in one uniform struct behind them. Sizes and
//! indices are u32 in WGSL; `fit` refuses what could leave them. Flat group numbers are spread over x and y. No
//! invocation may loop long (lavapipe ends all loops of an invocation after 65,535 iterations in all, silently), so
//! long sums, rows and products are cut into launches.

use crate::base::{Case, Code, Cost, DType, DeviceInfo, Error, Feature, Result};

use super::{Arg, Kernel, LAUNCH_TOKEN, Param, Plan, Step, plan_c, plan_native, spread_groups};

const CODEC_F32: &str = include_str!("../../kernels/codec_f32.wgsl");
const CODEC_F64: &str = include_str!("../../kernels/codec_f64.wgsl");
const CODEC_HALF: &str = include_str!("../../kernels/codec_half.wgsl");
const HALF_F16: &str = include_str!("../../kernels/half_f16.wgsl");
const HALF_BF16: &str = include_str!("../../kernels/half_bf16.wgsl");
const LOADS_FULL: &str = include_str!("../../kernels/matmul_full.wgsl");
const LOADS_HALF: &str = include_str!("../../kernels/matmul_half.wgsl");

/// Work-items per group of the one-dimensional kernels.
const GROUP: u64 = 256;

/// Elements of a row or column that one group or work-item takes in one launch.
const SEGMENT: u64 = 16_384;
const COLUMN_SEGMENT: u64 = 1_024;

/// Depth of a product that one launch takes: 17/16 of it in loop iterations stays below lavapipe's 65,535.
const DEPTH: u64 = 32_768;

fn step(case: &Case, entry: &'static str, groups: [u64; 3], defines: &[(&str, &str)]) -> Step {
    let mut defines: Vec<(String, String)> = defines.iter().map(|(n, v)| ((*n).into(), (*v).into())).collect();
    defines.push(("GROUP".into(), GROUP.to_string()));
    Step {
        entry,
        dtype: case.dtype,
        defines,
        group: [GROUP as u32, 1, 1],
        groups,
        args: Vec::new(),
        writes: Vec::new(),
        params: Vec::new(),
        cost: Cost::default(),
    }
}

fn one(step: Step) -> Plan {
    Plan { steps: vec![step], scratch: Vec::new() }
}

fn sizes(values: &[u64]) -> Vec<Param> {
    values.iter().map(|v| Param::U64(*v)).collect()
}

/// Refuses operands that one binding cannot cover and numbers of elements beyond 2^31 - 1: indices are u32, and flat
/// numbers may overshoot the last element by the rest of a spread grid.
fn fit(info: &DeviceInfo, operands: &[(u64, DType)]) -> Result<()> {
    for (elements, dtype) in operands {
        if *elements > i32::MAX as u64 {
            return Err(Error::new(
                Code::AllocTooLarge,
                format!("{elements} elements; WGSL's 32-bit indices reach {}", i32::MAX),
            ));
        }
        let bytes = elements * dtype.size();
        if bytes > info.max_binding_bytes {
            return Err(Error::new(
                Code::AllocTooLarge,
                format!(
                    "an operand of {bytes} B; a kernel of this device sees at most {} B of one",
                    info.max_binding_bytes
                ),
            ));
        }
    }
    Ok(())
}

/// Product of sizes, saturating: `fit` refuses what saturates.
fn product(sizes: &[u64]) -> u64 {
    sizes.iter().fold(1, |a, b| a.saturating_mul(*b))
}

fn half_text(dtype: DType) -> Option<&'static str> {
    match dtype {
        DType::F16 => Some(HALF_F16),
        DType::BF16 => Some(HALF_BF16),
        _ => None,
    }
}

/// `unary(x, y, n)`: `y[i] = EXPR(x[i])`; one work-item per element, per word of two for f16 and bf16.
pub fn unary(kernel: &Kernel, case: &Case, info: &DeviceInfo) -> Result<Plan> {
    let n = case.dim("n");
    if n == 0 {
        return Ok(Plan::default());
    }
    fit(info, &[(n, case.dtype)])?;
    let (store, acc, codec, words) = match (case.dtype, half_text(case.dtype)) {
        (_, Some(half)) => ("u32", "f32", format!("{half}\n{CODEC_HALF}"), n.div_ceil(2)),
        (DType::F64, _) => ("f64", "f64", CODEC_F64.to_string(), n),
        _ => ("f32", "f32", CODEC_F32.to_string(), n),
    };
    let native = plan_native::unary(kernel, case, info)?;
    Ok(one(Step {
        args: vec![Arg::Operand(0), Arg::Operand(1)],
        writes: vec![false, true],
        params: sizes(&[n]),
        cost: native.steps[0].cost,
        ..step(
            case,
            "unary",
            spread_groups(words.div_ceil(GROUP), info)?,
            &[("CODEC", &codec), ("STORE", store), ("ACC", acc)],
        )
    }))
}

/// `binary(a, b, y, n)` for operands of one shape; otherwise
/// `binary_broadcast(a, b, y, n, d0..d3, a's strides, b's strides)`.
pub fn binary(kernel: &Kernel, case: &Case, info: &DeviceInfo) -> Result<Plan> {
    let b = plan_native::broadcast(case)?;
    if b.n == 0 {
        return Ok(Plan::default());
    }
    fit(info, &[(b.n, case.dtype), (product(&b.a_shape), case.dtype), (product(&b.b_shape), case.dtype)])?;
    let native = plan_native::binary(kernel, case, info)?;
    let same = b.a_shape == b.b_shape;
    let mut params = native.steps[0].params.clone();
    if same {
        params.truncate(1);
    }
    Ok(one(Step {
        args: vec![Arg::Operand(0), Arg::Operand(1), Arg::Operand(2)],
        writes: vec![false, false, true],
        params,
        cost: native.steps[0].cost,
        ..step(
            case,
            if same { "binary" } else { "binary_broadcast" },
            spread_groups(b.n.div_ceil(GROUP), info)?,
            &[("T", case.dtype.name()), ("ACC", case.dtype.name())],
        )
    }))
}

/// `sum_rows(x, y, outer, n, segment, parts)`: a group per (row, part), inner being 1.
/// `sum_columns(x, y, outer, n, inner, segment, parts)`: a work-item per (outer, part, inner).
/// Several parts go to scratch as [outer, parts, inner] and are summed again, until one part is left.
pub fn sum(_: &Kernel, case: &Case, info: &DeviceInfo) -> Result<Plan> {
    let (outer, inner) = (case.dim("outer"), case.dim("inner"));
    let out = if case.dtype.is_float() { case.dtype } else { DType::I64 };
    if out == DType::I64 && !info.has(Feature::Int64) {
        return Err(Error::new(Code::FeatureUnsupported, "integers sum to i64, which the device lacks"));
    }
    if outer == 0 || inner == 0 {
        return Ok(Plan::default());
    }
    let mut plan = Plan::default();
    let (mut source, mut dtype, mut n) = (Arg::Operand(0), case.dtype, case.dim("n"));
    loop {
        // A group per short row would mostly idle.
        let rows = inner == 1 && n > 64;
        let segment = if rows { SEGMENT } else { COLUMN_SEGMENT };
        let parts = n.div_ceil(segment).max(1);
        let results = product(&[outer, parts, inner]);
        fit(info, &[(product(&[outer, n, inner]), dtype), (results, out)])?;
        let (entry, groups, params) = if rows {
            ("sum_rows", results, sizes(&[outer, n, segment, parts]))
        } else {
            ("sum_columns", results.div_ceil(GROUP), sizes(&[outer, n, inner, segment, parts]))
        };
        let target = if parts == 1 { Arg::Operand(1) } else { Arg::Scratch(plan.scratch.len()) };
        plan.steps.push(Step {
            args: vec![source, target],
            writes: vec![false, true],
            params,
            cost: if plan.steps.is_empty() { plan_native::sum_cost(case) } else { Cost::default() },
            ..step(case, entry, spread_groups(groups, info)?, &[("T", dtype.name()), ("OUT", out.name())])
        });
        if parts == 1 {
            return Ok(plan);
        }
        plan.scratch.push(results * out.size());
        (source, dtype, n) = (target, out, parts);
    }
}

/// `softmax(x, y, m, n, segment, parts)`: a group per row. Rows beyond one segment take three launches of a group per
/// (row, part): `segment_max(x, tops, ..)`, `segment_sum(x, tops, totals, ..)`, `segment_write(x, tops, totals, y, ..)`.
pub fn softmax(_: &Kernel, case: &Case, info: &DeviceInfo) -> Result<Plan> {
    let (m, n) = (case.dim("m"), case.dim("n"));
    if m == 0 || n == 0 {
        return Ok(Plan::default());
    }
    fit(info, &[(product(&[m, n]), case.dtype)])?;
    let parts = n.div_ceil(SEGMENT);
    let params = sizes(&[m, n, SEGMENT, parts]);
    let groups = spread_groups(m * parts, info)?;
    let make = |entry, args: Vec<Arg>, cost| Step {
        writes: (0..args.len()).map(|i| i + 1 == args.len()).collect(),
        args,
        params: params.clone(),
        cost,
        ..step(case, entry, groups, &[])
    };
    let (x, y, cost) = (Arg::Operand(0), Arg::Operand(1), plan_native::matrix_cost(case, 4));
    if parts == 1 {
        return Ok(one(make("softmax", vec![x, y], cost)));
    }
    let (tops, totals) = (Arg::Scratch(0), Arg::Scratch(1));
    Ok(Plan {
        steps: vec![
            make("segment_max", vec![x, tops], cost),
            make("segment_sum", vec![x, tops, totals], Cost::default()),
            make("segment_write", vec![x, tops, totals, y], Cost::default()),
        ],
        scratch: vec![m * parts * 4; 2],
    })
}

/// `transpose(x, y, m, n)`: groups of 16×16 move tiles; a flat number counts tiles along n first.
pub fn transpose(_: &Kernel, case: &Case, info: &DeviceInfo) -> Result<Plan> {
    let (m, n) = (case.dim("m"), case.dim("n"));
    if m == 0 || n == 0 {
        return Ok(Plan::default());
    }
    fit(info, &[(product(&[m, n]), case.dtype)])?;
    let word = if case.dtype.size() == 8 { "vec2<u32>" } else { "u32" };
    Ok(one(Step {
        group: [16, 16, 1],
        args: vec![Arg::Operand(0), Arg::Operand(1)],
        writes: vec![false, true],
        params: sizes(&[m, n]),
        cost: plan_native::matrix_cost(case, 0),
        ..step(case, "transpose", spread_groups(n.div_ceil(16) * m.div_ceil(16), info)?, &[("T", word)])
    }))
}

/// `gemm(a, b, c, m, n, first, end, a_row, a_col, b_row, b_col, alpha, beta)` for each range of k, tiles of 64×64.
/// f16 and bf16 are summed in f32 scratch, then `finish(sums, c, n, beta)` rounds once.
pub fn gemm(_: &Kernel, case: &Case, info: &DeviceInfo) -> Result<Plan> {
    let (m, n, k) = (case.dim("m"), case.dim("n"), case.dim("k"));
    if m == 0 || n == 0 {
        return Ok(Plan::default());
    }
    let acc = case.dtype.compute();
    let half = half_text(case.dtype);
    let results = product(&[m, n]);
    fit(info, &[(product(&[m, k]), case.dtype), (product(&[k, n]), case.dtype), (results, acc)])?;
    let groups = spread_groups(m.div_ceil(64) * n.div_ceil(64), info)?;
    let loads = half.map_or_else(|| LOADS_FULL.to_string(), |text| format!("{text}\n{LOADS_HALF}"));
    let defines = [("LOADS", loads.as_str()), ("ACC", acc.name())];
    // plan_c: m, n, k, four strides, alpha, beta.
    let given = plan_c::gemm_params(case);
    let (alpha, beta) = (given[7], given[8]);
    let one = Param::scalar(case.dtype, 1.0);
    let zero = Param::scalar(case.dtype, 0.0);
    let target = if half.is_some() { Arg::Scratch(0) } else { Arg::Operand(2) };
    let mut plan = Plan::default();
    let mut first = 0;
    loop {
        let end = k.min(first + DEPTH);
        let mut params = sizes(&[m, n, first, end]);
        params.extend_from_slice(&given[3..7]);
        params.push(alpha);
        params.push(match (first, half) {
            (0, None) => beta,
            (0, Some(_)) => zero,
            _ => one,
        });
        plan.steps.push(Step {
            args: vec![Arg::Operand(0), Arg::Operand(1), target],
            writes: vec![false, false, true],
            params,
            cost: if first == 0 { plan_native::gemm_cost(case) } else { Cost::default() },
            ..step(case, "gemm", groups, &defines)
        });
        first = end;
        if first >= k {
            break;
        }
    }
    if half.is_some() {
        // Whole words: an odd number of results has a partner that is never looked at.
        plan.scratch.push(results.div_ceil(2) * 8);
        plan.steps.push(Step {
            args: vec![Arg::Scratch(0), Arg::Operand(2)],
            writes: vec![false, true],
            params: vec![Param::U64(results), beta],
            ..step(case, "finish", spread_groups(results.div_ceil(2).div_ceil(GROUP), info)?, &defines)
        });
    }
    Ok(plan)
}

/// `launch(y)`: the single work-item stores the token; `n` such steps.
pub fn launch(_: &Kernel, case: &Case, _: &DeviceInfo) -> Result<Plan> {
    let one = Step {
        group: [1; 3],
        args: vec![Arg::Operand(0)],
        writes: vec![true],
        cost: Cost { flops: 0, read: 0, written: 4 },
        ..step(case, "launch", [1; 3], &[("TOKEN", &LAUNCH_TOKEN.to_string())])
    };
    let calls = usize::try_from(case.dim("n"))
        .map_err(|_| Error::new(Code::BadArgument, "too many launches in one submission"))?;
    Ok(Plan { steps: vec![one; calls], scratch: Vec::new() })
}
