//! Plans of the WGSL kernels. The entry points are documented here and in the kernel files.
//!
//! Conventions: buffers are bound in the order of `args`, the scalars in one uniform struct behind them. Sizes and
//! indices are u32 in WGSL; `fit` refuses what could leave them. Flat group numbers are spread over x and y. No
//! invocation may loop long (lavapipe ends all loops of an invocation after 65,535 iterations in all, silently), so
//! long sums, rows and products are cut into launches.

use crate::base::{Case, Code, Cost, DType, DeviceInfo, Error, Result};

use super::rules_wgsl;
pub(super) use super::rules_wgsl::half_text;
use super::{Arg, Kernel, LAUNCH_TOKEN, Param, Plan, Step, plan_c, plan_native, spread_groups};

const LOADS_FULL: &str = include_str!("../../kernels/matmul_full.wgsl");
const LOADS_HALF: &str = include_str!("../../kernels/matmul_half.wgsl");

/// Work-items per group of the one-dimensional kernels.
pub(super) const GROUP: u64 = 256;

/// Depth of a product that one launch takes: 17/16 of it in loop iterations stays below lavapipe's 65,535.
const DEPTH: u64 = 32_768;

pub(super) fn step(case: &Case, entry: &'static str, groups: [u64; 3], defines: &[(&str, &str)]) -> Step {
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

pub(super) fn one(step: Step) -> Plan {
    Plan { steps: vec![step], scratch: Vec::new() }
}

pub(super) fn sizes(values: &[u64]) -> Vec<Param> {
    values.iter().map(|v| Param::U64(*v)).collect()
}

/// Refuses numbers of elements, and coordinates, beyond 2^31 - 1: indices are u32, and flat numbers may overshoot the last
/// element by the rest of a spread grid.
pub(super) fn countable(elements: u64) -> Result<()> {
    if elements > i32::MAX as u64 {
        let why = format!("{elements} elements; WGSL's 32-bit indices reach {}", i32::MAX);
        return Err(Error::new(Code::AllocTooLarge, why));
    }
    Ok(())
}

/// Refuses operands that one binding cannot cover, or indices.
pub(super) fn fit(info: &DeviceInfo, operands: &[(u64, DType)]) -> Result<()> {
    for (elements, dtype) in operands {
        countable(*elements)?;
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
pub(super) fn product(sizes: &[u64]) -> u64 {
    sizes.iter().fold(1, |a, b| a.saturating_mul(*b))
}

/// A step of an elementwise text over `n` elements, one work-item per element or word of two.
fn elementwise(
    case: &Case,
    entry: &'static str,
    n: u64,
    info: &DeviceInfo,
    guard: bool,
    more: &[(&str, &str)],
) -> Result<Step> {
    let types = rules_wgsl::defines(case.dtype, guard);
    let mut defines = more.to_vec();
    defines.extend(types.iter().map(|(name, value)| (*name, value.as_str())));
    let groups = spread_groups(rules_wgsl::words(case.dtype, n).div_ceil(GROUP), info)?;
    Ok(step(case, entry, groups, &defines))
}

/// `unary(x, y, n)`: `y[i] = EXPR(x[i])`; one work-item per element, per word of two for f16 and bf16. In f32, f16 and
/// bf16 NaN stays NaN without asking the expression.
pub fn unary(kernel: &Kernel, case: &Case, info: &DeviceInfo) -> Result<Plan> {
    let n = case.dim("n");
    if n == 0 {
        return Ok(Plan::default());
    }
    fit(info, &[(n, case.dtype)])?;
    let native = plan_native::unary(kernel, case, info)?;
    Ok(one(Step {
        args: vec![Arg::Operand(0), Arg::Operand(1)],
        writes: vec![false, true],
        params: sizes(&[n]),
        cost: native.steps[0].cost,
        ..elementwise(case, "unary", n, info, true, &[("FIELD", ""), ("NAMES", "let x = v;")])?
    }))
}

/// `unary(x, y, n, s)`: `y[i] = EXPR(x[i], s)`.
pub fn scalar(kernel: &Kernel, case: &Case, info: &DeviceInfo) -> Result<Plan> {
    with_scalar(kernel, case, info, "let x = v; let b = p.s;")
}

/// `unary(x, y, n, s)`: `y[i] = EXPR(s, x[i])`.
pub fn scalar_first(kernel: &Kernel, case: &Case, info: &DeviceInfo) -> Result<Plan> {
    with_scalar(kernel, case, info, "let x = p.s; let b = v;")
}

fn with_scalar(kernel: &Kernel, case: &Case, info: &DeviceInfo, names: &str) -> Result<Plan> {
    let n = case.dim("n");
    let native = plan_native::scalar(kernel, case, info)?;
    if n == 0 {
        return Ok(Plan::default());
    }
    fit(info, &[(n, case.dtype)])?;
    Ok(one(Step {
        args: vec![Arg::Operand(0), Arg::Operand(1)],
        writes: vec![false, true],
        params: native.steps[0].params.clone(),
        cost: native.steps[0].cost,
        ..elementwise(case, "unary", n, info, false, &[("FIELD", "s: {{ACC}},"), ("NAMES", names)])?
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
        ..elementwise(case, if same { "binary" } else { "binary_broadcast" }, b.n, info, false, &[])?
    }))
}

/// `accumulate(b, a, n)`: `a[i] = EXPR(a[i], b[i])`.
pub fn accumulate(kernel: &Kernel, case: &Case, info: &DeviceInfo) -> Result<Plan> {
    let n = case.dim("n");
    if n == 0 {
        return Ok(Plan::default());
    }
    fit(info, &[(n, case.dtype)])?;
    let native = plan_native::accumulate(kernel, case, info)?;
    Ok(one(Step {
        args: vec![Arg::Operand(0), Arg::Operand(1)],
        writes: vec![false, true],
        params: sizes(&[n]),
        cost: native.steps[0].cost,
        ..elementwise(case, "accumulate", n, info, false, &[])?
    }))
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

/// `transpose_pairs(x, y, m, n)` for elements of 16 bits: an invocation per word of y.
pub fn transpose_pairs(_: &Kernel, case: &Case, info: &DeviceInfo) -> Result<Plan> {
    let (m, n) = (case.dim("m"), case.dim("n"));
    if m == 0 || n == 0 {
        return Ok(Plan::default());
    }
    fit(info, &[(product(&[m, n]), case.dtype)])?;
    Ok(one(Step {
        args: vec![Arg::Operand(0), Arg::Operand(1)],
        writes: vec![false, true],
        params: sizes(&[m, n]),
        cost: plan_native::matrix_cost(case, 0),
        ..step(case, "transpose_pairs", spread_groups((m * n).div_ceil(2 * GROUP), info)?, &[])
    }))
}

/// `transpose_inplace(x, n)`: a group per 16×16 tile; those on and above the diagonal swap two tiles each.
pub fn transpose_inplace(_: &Kernel, case: &Case, info: &DeviceInfo) -> Result<Plan> {
    let n = case.dim("n");
    if n == 0 {
        return Ok(Plan::default());
    }
    fit(info, &[(product(&[n, n]), case.dtype)])?;
    let word = if case.dtype.size() == 8 { "vec2<u32>" } else { "u32" };
    let tiles = n.div_ceil(16);
    Ok(one(Step {
        group: [16, 16, 1],
        args: vec![Arg::Operand(0)],
        writes: vec![true],
        params: sizes(&[n]),
        cost: plan_native::square_cost(case),
        ..step(case, "transpose_inplace", spread_groups(tiles * tiles, info)?, &[("T", word)])
    }))
}

/// `transpose_pairs(x, scratch, n, n)`, then `copy_words(scratch, x, n, n)`: with an odd n two tiles share words, so that no
/// order of swaps would leave each word to one invocation.
pub fn transpose_inplace_pairs(_: &Kernel, case: &Case, info: &DeviceInfo) -> Result<Plan> {
    let n = case.dim("n");
    if n == 0 {
        return Ok(Plan::default());
    }
    fit(info, &[(product(&[n, n]), case.dtype)])?;
    let words = (n * n).div_ceil(2);
    let make = |entry, from, to, cost| -> Result<Step> {
        Ok(Step {
            args: vec![from, to],
            writes: vec![false, true],
            params: sizes(&[n, n]),
            cost,
            ..step(case, entry, spread_groups(words.div_ceil(GROUP), info)?, &[])
        })
    };
    let (x, scratch) = (Arg::Operand(0), Arg::Scratch(0));
    Ok(Plan {
        steps: vec![
            make("transpose_pairs", x, scratch, plan_native::square_cost(case))?,
            make("copy_words", scratch, x, Cost::default())?,
        ],
        scratch: vec![words * 4],
    })
}

/// Texts that declare and read the two factors a and b of a product, in the dtype's storage.
pub(super) fn loads(dtype: DType) -> String {
    half_text(dtype).map_or_else(|| LOADS_FULL.to_string(), |text| format!("{text}\n{LOADS_HALF}"))
}

/// `finish(sums, y, n, beta)`: y = the f32 sums + beta y, rounded once to f16 or bf16; in the text of the step `before`,
/// which made the sums in scratch 0. They come in whole pairs.
fn finish(before: &Step, info: &DeviceInfo, results: u64, beta: Param) -> Result<Step> {
    Ok(Step {
        entry: "finish",
        args: vec![Arg::Scratch(0), Arg::Operand(2)],
        writes: vec![false, true],
        params: vec![Param::U64(results), beta],
        group: [GROUP as u32, 1, 1],
        groups: spread_groups(results.div_ceil(2).div_ceil(GROUP), info)?,
        cost: Cost::default(),
        ..before.clone()
    })
}

/// Runs `make(first, end, beta)` for ranges of at most `depth` of `k` summands, all into operand 2 or, for f16 and bf16,
/// into f32 scratch of `results` elements that `finish` then rounds. The first range takes the case's beta.
pub(super) fn in_ranges(
    case: &Case,
    info: &DeviceInfo,
    (k, depth): (u64, u64),
    results: u64,
    mut make: impl FnMut(Arg, u64, u64, Param) -> Result<Step>,
) -> Result<Plan> {
    let half = half_text(case.dtype).is_some();
    let beta = Param::scalar(case.dtype, case.attrs.float("beta", 0.0));
    let (one, zero) = (Param::scalar(case.dtype, 1.0), Param::scalar(case.dtype, 0.0));
    let target = if half { Arg::Scratch(0) } else { Arg::Operand(2) };
    let mut plan = Plan::default();
    let mut first = 0;
    loop {
        let end = k.min(first + depth);
        let now = match (first, half) {
            (0, false) => beta,
            (0, true) => zero,
            _ => one,
        };
        plan.steps.push(make(target, first, end, now)?);
        first = end;
        if first >= k {
            break;
        }
    }
    if half {
        // Whole words: an odd number of results has a partner that is never looked at.
        plan.scratch.push(results.div_ceil(2) * 8);
        plan.steps.push(finish(&plan.steps[0], info, results, beta)?);
    }
    Ok(plan)
}

/// `gemm(a, b, c, m, n, k, first, end, a_row, a_col, b_row, b_col, batches, alpha, beta)` for each range of k, tiles of
/// 64×64. f16 and bf16 are summed in f32 scratch, then `finish(sums, c, n, beta)` rounds once.
pub fn gemm(_: &Kernel, case: &Case, info: &DeviceInfo) -> Result<Plan> {
    products(case, info, "gemm", 64, plan_native::gemm_cost(case))
}

/// The same for `b` problems one behind the other; passed over where a tile would be mostly empty.
pub fn bmm(_: &Kernel, case: &Case, info: &DeviceInfo) -> Result<Plan> {
    if case.dim("m").saturating_mul(case.dim("n")).saturating_mul(4) < 64 * 64 {
        return Err(Error::new(Code::OpUnsupported, "needs matrices that fill a quarter of a tile of 64 by 64"));
    }
    products(case, info, "gemm", 64, plan_native::bmm_cost(case))
}

/// `gemm_small` with the same parameters: tiles of 16×16.
pub fn bmm_small(_: &Kernel, case: &Case, info: &DeviceInfo) -> Result<Plan> {
    products(case, info, "gemm_small", 16, plan_native::bmm_cost(case))
}

fn products(case: &Case, info: &DeviceInfo, entry: &'static str, tile: u64, cost: Cost) -> Result<Plan> {
    let (b, m, n, k) = (case.dim("b"), case.dim("m"), case.dim("n"), case.dim("k"));
    if b == 0 || m == 0 || n == 0 {
        return Ok(Plan::default());
    }
    let acc = case.dtype.compute();
    let results = product(&[b, m, n]);
    fit(info, &[(product(&[b, m, k]), case.dtype), (product(&[b, k, n]), case.dtype), (results, acc)])?;
    let groups = spread_groups(product(&[b, m.div_ceil(tile), n.div_ceil(tile)]), info)?;
    let loads = loads(case.dtype);
    // plan_c: m, n, k, four strides, alpha, beta.
    let given = plan_c::gemm_params(case);
    in_ranges(case, info, (k, DEPTH), results, |target, first, end, beta| {
        let mut params = sizes(&[m, n, k, first, end]);
        params.extend_from_slice(&given[3..7]);
        params.extend([Param::U64(b), given[7], beta]);
        Ok(Step {
            args: vec![Arg::Operand(0), Arg::Operand(1), target],
            writes: vec![false, false, true],
            params,
            cost: if first == 0 { cost } else { Cost::default() },
            ..step(case, entry, groups, &[("LOADS", loads.as_str()), ("ACC", acc.name())])
        })
    })
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
