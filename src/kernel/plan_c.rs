//! Plans of the common C dialect (OpenCL and CUDA). The entry points are documented here and in the kernel files.
//!
//! All texts get `T`, `ACC`, `OUT`, `LOAD`, `STORE`, `STORE_OUT` (see [`source::c_types`]) and `GROUP`, the work-items
//! per group. Sizes are u64. Flat group numbers are spread over x and y; kernels recover them as `y * ngroups_x + x`.

use crate::base::{Case, DType, DeviceInfo, Result};

use super::{Arg, Kernel, Param, Plan, Step, plan_native, source, spread_groups};

/// Work-items per group of the one-dimensional kernels.
const GROUP: u32 = 256;

fn step(case: &Case, entry: &'static str, acc: DType, out: DType, group: u32) -> Step {
    let mut defines = source::c_types(case.dtype, acc, out);
    defines.push(("GROUP".into(), group.to_string()));
    Step {
        entry,
        dtype: case.dtype,
        defines,
        group: [group, 1, 1],
        groups: [1; 3],
        args: Vec::new(),
        writes: Vec::new(),
        params: Vec::new(),
        cost: Default::default(),
    }
}

fn one(step: Step) -> Plan {
    Plan { steps: vec![step], scratch: Vec::new() }
}

/// Groups for `n` work-items, at most enough to fill the device eight times over; kernels loop grid-wide.
fn grid(n: u64, info: &DeviceInfo) -> Result<[u64; 3]> {
    let full = u64::from(info.compute_units.max(1)) * 64;
    spread_groups(n.div_ceil(u64::from(GROUP)).clamp(1, full.max(1024)), info)
}

/// `unary(x, y, n)`: y[i] = EXPR(x[i]).
pub fn unary(_: &Kernel, case: &Case, info: &DeviceInfo) -> Result<Plan> {
    let n = case.dim("n");
    if n == 0 {
        return Ok(Plan::default());
    }
    let native = plan_native::unary(&EMPTY, case, info)?;
    Ok(one(Step {
        groups: grid(n, info)?,
        args: vec![Arg::Operand(0), Arg::Operand(1)],
        writes: vec![false, true],
        params: vec![Param::U64(n)],
        cost: native.steps[0].cost,
        ..step(case, "unary", case.dtype.compute(), case.dtype, GROUP)
    }))
}

/// `binary(a, b, y, n)` for operands of one shape; otherwise
/// `binary_broadcast(a, b, y, n, d0..d3, a's strides, b's strides)`.
pub fn binary(_: &Kernel, case: &Case, info: &DeviceInfo) -> Result<Plan> {
    let b = plan_native::broadcast(case)?;
    if b.n == 0 {
        return Ok(Plan::default());
    }
    let native = plan_native::binary(&EMPTY, case, info)?;
    let same = b.a_shape == b.b_shape;
    let mut params = native.steps[0].params.clone();
    if same {
        params.truncate(1);
    }
    Ok(one(Step {
        groups: grid(b.n, info)?,
        args: vec![Arg::Operand(0), Arg::Operand(1), Arg::Operand(2)],
        writes: vec![false, false, true],
        params,
        cost: native.steps[0].cost,
        ..step(case, if same { "binary" } else { "binary_broadcast" }, case.dtype.compute(), case.dtype, GROUP)
    }))
}

/// Elements of one row that one group sums before a second launch adds the groups' results.
const SEGMENT: u64 = 16_384;

/// `sum_rows(x, y, outer, n, segment, parts)`: group (row, part) sums x[row, part*segment ..] in a tree and stores
/// y[row*parts + part]; with several parts y is scratch of type ACC and `sum_partials` follows.
/// `sum_columns(x, y, outer, n, inner, segment, parts)`: one work-item per (outer, part, inner), stores
/// y[(outer*parts + part)*inner + inner].
/// `sum_partials(p, y, outer, parts, inner)`: y[o, i] = Σ_part p[o, part, i], in order.
pub fn sum(_: &Kernel, case: &Case, info: &DeviceInfo) -> Result<Plan> {
    let (outer, n, inner) = (case.dim("outer"), case.dim("n"), case.dim("inner"));
    let out = if case.dtype.is_float() { case.dtype } else { DType::I64 };
    if outer * inner == 0 {
        return Ok(Plan::default());
    }
    let parts = n.div_ceil(SEGMENT).max(1);
    let cost = plan_native::sum_cost(case);
    let (entry, items, mut params) = if inner == 1 {
        ("sum_rows", outer * parts * u64::from(GROUP), vec![outer, n])
    } else {
        ("sum_columns", outer * parts * inner, vec![outer, n, inner])
    };
    params.extend([SEGMENT, parts]);
    let target = if parts == 1 { Arg::Operand(1) } else { Arg::Scratch(0) };
    let mut plan = one(Step {
        groups: spread_groups(items.div_ceil(u64::from(GROUP)), info)?,
        args: vec![Arg::Operand(0), target],
        writes: vec![false, true],
        params: params.into_iter().map(Param::U64).collect(),
        cost,
        ..step(case, entry, out, out, GROUP)
    });
    if parts > 1 {
        plan.scratch.push(outer * parts * inner * out.size());
        plan.steps.push(Step {
            groups: spread_groups((outer * inner).div_ceil(u64::from(GROUP)), info)?,
            args: vec![Arg::Scratch(0), Arg::Operand(1)],
            writes: vec![false, true],
            params: [outer, parts, inner].into_iter().map(Param::U64).collect(),
            ..step(case, "sum_partials", out, out, GROUP)
        });
    }
    Ok(plan)
}

/// `softmax(x, y, m, n)`: one group per row; maximum, sum of exponentials, division. NaN in a row makes it NaN.
pub fn softmax(_: &Kernel, case: &Case, info: &DeviceInfo) -> Result<Plan> {
    let (m, n) = (case.dim("m"), case.dim("n"));
    if m * n == 0 {
        return Ok(Plan::default());
    }
    Ok(one(Step {
        groups: spread_groups(m, info)?,
        args: vec![Arg::Operand(0), Arg::Operand(1)],
        writes: vec![false, true],
        params: vec![Param::U64(m), Param::U64(n)],
        cost: plan_native::matrix_cost(case, 4),
        ..step(case, "softmax", case.dtype.compute(), case.dtype, GROUP)
    }))
}

/// `transpose(x, y, m, n)`: groups of 32×8 move 32×32 tiles through local memory; x counts tiles along n, y along m
/// (spread like every flat number when there are too many).
pub fn transpose(_: &Kernel, case: &Case, info: &DeviceInfo) -> Result<Plan> {
    let (m, n) = (case.dim("m"), case.dim("n"));
    if m * n == 0 {
        return Ok(Plan::default());
    }
    Ok(one(Step {
        group: [32, 8, 1],
        groups: spread_groups(n.div_ceil(32) * m.div_ceil(32), info)?,
        args: vec![Arg::Operand(0), Arg::Operand(1)],
        writes: vec![false, true],
        params: vec![Param::U64(m), Param::U64(n)],
        cost: plan_native::matrix_cost(case, 0),
        ..step(case, "transpose", case.dtype, case.dtype, GROUP)
    }))
}

/// Parameters of the C and mma gemms: m, n, k, A's row and column stride, B's row and column stride, alpha, beta.
pub fn gemm_params(case: &Case) -> Vec<Param> {
    let (m, n, k) = (case.dim("m"), case.dim("n"), case.dim("k"));
    let (ars, acs) = if case.attrs.int("transA", 0) == 1 { (1, m) } else { (k, 1) };
    let (brs, bcs) = if case.attrs.int("transB", 0) == 1 { (1, k) } else { (n, 1) };
    let mut params: Vec<Param> = [m, n, k, ars, acs, brs, bcs].into_iter().map(Param::U64).collect();
    params.push(Param::scalar(case.dtype, case.attrs.float("alpha", 1.0)));
    params.push(Param::scalar(case.dtype, case.attrs.float("beta", 0.0)));
    params
}

/// `gemm(a, b, c, m, n, k, a_row, a_col, b_row, b_col, alpha, beta)` with tiles TM×TN×TK in local memory and RM×RN
/// results per work-item; (TM/RM)·(TN/RN) = GROUP. Groups are spread over x and y; a flat number counts tiles row by row.
fn gemm_tiled(case: &Case, info: &DeviceInfo, tm: u64, tn: u64, tk: u64, rm: u64, rn: u64) -> Result<Plan> {
    let (m, n) = (case.dim("m"), case.dim("n"));
    if m == 0 || n == 0 {
        return Ok(Plan::default());
    }
    let mut s = step(case, "gemm", case.dtype.compute(), case.dtype, ((tm / rm) * (tn / rn)) as u32);
    for (name, value) in [("TM", tm), ("TN", tn), ("TK", tk), ("RM", rm), ("RN", rn)] {
        s.defines.push((name.into(), value.to_string()));
    }
    Ok(one(Step {
        groups: spread_groups(m.div_ceil(tm) * n.div_ceil(tn), info)?,
        args: vec![Arg::Operand(0), Arg::Operand(1), Arg::Operand(2)],
        writes: vec![false, false, true],
        params: gemm_params(case),
        cost: plan_native::gemm_cost(case),
        ..s
    }))
}

/// 128×128×16 tiles, 8×8 results per work-item.
pub fn gemm_tiled128(_: &Kernel, case: &Case, info: &DeviceInfo) -> Result<Plan> {
    gemm_tiled(case, info, 128, 128, 16, 8, 8)
}

/// 64×64×16 tiles, 4×4 results per work-item.
pub fn gemm_tiled64(_: &Kernel, case: &Case, info: &DeviceInfo) -> Result<Plan> {
    gemm_tiled(case, info, 64, 64, 16, 4, 4)
}

/// 16×16×16 tiles, one result per work-item.
pub fn gemm_tiled16(_: &Kernel, case: &Case, info: &DeviceInfo) -> Result<Plan> {
    gemm_tiled(case, info, 16, 16, 16, 1, 1)
}

/// `launch(y)`: work-item 0 stores the token; `n` such steps.
pub fn launch(_: &Kernel, case: &Case, _: &DeviceInfo) -> Result<Plan> {
    let one = Step {
        args: vec![Arg::Operand(0)],
        writes: vec![true],
        cost: crate::base::Cost { flops: 0, read: 0, written: 4 },
        ..step(case, "launch", DType::I32, DType::I32, 1)
    };
    Ok(Plan { steps: vec![one; case.dim("n") as usize], scratch: Vec::new() })
}

/// The native plans do not look at the kernel; this one is passed where only their arithmetic is wanted.
const EMPTY: Kernel = Kernel {
    variant: "",
    body: super::Body::C(""),
    dtypes: &[],
    dtypes_why: "",
    expr: "",
    needs: super::Needs::NONE,
    only_when_named: false,
    plan: unary,
};
