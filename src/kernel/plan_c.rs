//! Plans of the common C dialect (OpenCL and CUDA). The entry points are documented here and in the kernel files.
//!
//! All texts get `T`, `ACC`, `OUT`, `LOAD`, `STORE`, `STORE_OUT` (see [`source::c_types`]) and `GROUP`, the work-items
//! per group. Sizes are u64. Flat group numbers are spread over x and y; kernels recover them as `y * ngroups_x + x`.

use crate::base::{Case, Code, Cost, DType, DeviceInfo, Error, Result};

use super::{Arg, Kernel, LAUNCH_TOKEN, Param, Plan, Step, plan_native, rules_c, source, spread_groups};

/// Work-items per group of the one-dimensional kernels.
pub(super) const GROUP: u32 = 256;

/// Work-items per group where a group works on one row of `n`: short rows would leave most of 256 idle. Two sizes only,
/// since each is a program of its own.
pub(super) fn row_group(n: u64) -> u32 {
    if n <= 128 { 64 } else { GROUP }
}

pub(super) fn step(dtype: DType, entry: &'static str, acc: DType, out: DType, group: u32) -> Step {
    let mut defines = source::c_types(dtype, acc, out);
    defines.push(("GROUP".into(), group.to_string()));
    Step {
        entry,
        dtype,
        defines,
        group: [group, 1, 1],
        groups: [1; 3],
        args: Vec::new(),
        writes: Vec::new(),
        params: Vec::new(),
        cost: Default::default(),
    }
}

pub(super) fn one(step: Step) -> Plan {
    Plan { steps: vec![step], scratch: Vec::new() }
}

/// An elementwise step over `n` elements: the number rules `N_...` of the dtype, groups, and `ITEMS` elements per
/// work-item. A GPU hides memory latency better with several independent reads per item; a processor's compiler makes
/// vectors of neighbouring items and wants one.
fn elementwise(case: &Case, entry: &'static str, n: u64, info: &DeviceInfo) -> Result<Step> {
    let mut step = step(case.dtype, entry, case.dtype.compute(), case.dtype, GROUP);
    step.defines.extend(rules_c::defines(case.dtype));
    spread_elements(step, n, info)
}

/// The same for a step that has its defines.
pub(super) fn spread_elements(mut step: Step, n: u64, info: &DeviceInfo) -> Result<Step> {
    let items: u32 = if info.is_software() { 1 } else { 4 };
    step.defines.push(("ITEMS".into(), items.to_string()));
    step.groups = spread_groups(n.div_ceil(u64::from(GROUP * items)), info)?;
    Ok(step)
}

/// `unary(x, y, n)`: `y[i] = EXPR(x[i])`.
pub fn unary(_: &Kernel, case: &Case, info: &DeviceInfo) -> Result<Plan> {
    let n = case.dim("n");
    if n == 0 {
        return Ok(Plan::default());
    }
    let native = plan_native::unary(&EMPTY, case, info)?;
    let step = elementwise(case, "unary", n, info)?;
    Ok(one(Step {
        args: vec![Arg::Operand(0), Arg::Operand(1)],
        writes: vec![false, true],
        params: vec![Param::U64(n)],
        cost: native.steps[0].cost,
        ..step
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
    let entry = if same { "binary" } else { "binary_broadcast" };
    let step = elementwise(case, entry, b.n, info)?;
    Ok(one(Step {
        args: vec![Arg::Operand(0), Arg::Operand(1), Arg::Operand(2)],
        writes: vec![false, false, true],
        params,
        cost: native.steps[0].cost,
        ..step
    }))
}

/// `scalar(x, y, n, s)`: `y[i] = EXPR(x[i], s)`.
pub fn scalar(_: &Kernel, case: &Case, info: &DeviceInfo) -> Result<Plan> {
    with_scalar(case, "scalar", info)
}

/// `scalar_first(x, y, n, s)`: `y[i] = EXPR(s, x[i])`.
pub fn scalar_first(_: &Kernel, case: &Case, info: &DeviceInfo) -> Result<Plan> {
    with_scalar(case, "scalar_first", info)
}

fn with_scalar(case: &Case, entry: &'static str, info: &DeviceInfo) -> Result<Plan> {
    let n = case.dim("n");
    let native = plan_native::scalar(&EMPTY, case, info)?;
    if n == 0 {
        return Ok(Plan::default());
    }
    Ok(one(Step {
        args: vec![Arg::Operand(0), Arg::Operand(1)],
        writes: vec![false, true],
        params: native.steps[0].params.clone(),
        cost: native.steps[0].cost,
        ..elementwise(case, entry, n, info)?
    }))
}

/// `accumulate(b, a, n)`: `a[i] = EXPR(a[i], b[i])`.
pub fn accumulate(_: &Kernel, case: &Case, info: &DeviceInfo) -> Result<Plan> {
    let n = case.dim("n");
    if n == 0 {
        return Ok(Plan::default());
    }
    let native = plan_native::accumulate(&EMPTY, case, info)?;
    Ok(one(Step {
        args: vec![Arg::Operand(0), Arg::Operand(1)],
        writes: vec![false, true],
        params: vec![Param::U64(n)],
        cost: native.steps[0].cost,
        ..elementwise(case, "accumulate", n, info)?
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
        ..step(case.dtype, "transpose", case.dtype, case.dtype, GROUP)
    }))
}

/// `transpose_inplace(x, n)`: a group per 32×32 tile; the groups on and above the diagonal swap two tiles each.
pub fn transpose_inplace(_: &Kernel, case: &Case, info: &DeviceInfo) -> Result<Plan> {
    let n = case.dim("n");
    if n == 0 {
        return Ok(Plan::default());
    }
    let tiles = n.div_ceil(32);
    Ok(one(Step {
        group: [32, 8, 1],
        groups: spread_groups(tiles.saturating_mul(tiles), info)?,
        args: vec![Arg::Operand(0)],
        writes: vec![true],
        params: vec![Param::U64(n)],
        cost: plan_native::square_cost(case),
        ..step(case.dtype, "transpose_inplace", case.dtype, case.dtype, GROUP)
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

/// How a gemm's results are laid out among work-items.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Layout {
    /// A work-item's results lie apart, neighbours' side by side: no bank conflicts, coalesced stores.
    Scattered,
    /// A work-item's results are one block: a processor's compiler makes vectors of them.
    Blocks,
}

/// Tiles TM×TN×TK in local memory and RM×RN results per work-item; (TM/RM)·(TN/RN) = GROUP.
#[derive(Clone, Copy)]
pub(super) struct Tiles {
    pub(super) tm: u64,
    pub(super) tn: u64,
    tk: u64,
    rm: u64,
    rn: u64,
    layout: Layout,
}

/// For devices that are processors: blocks of 4×32 results per work-item.
pub(super) const CPU_TILE: Tiles = Tiles { tm: 128, tn: 128, tk: 64, rm: 4, rn: 32, layout: Layout::Blocks };
/// 8×8 results per work-item.
pub(super) const TILED128: Tiles = Tiles { tm: 128, tn: 128, tk: 16, rm: 8, rn: 8, layout: Layout::Scattered };
/// 4×4 results per work-item.
pub(super) const TILED64: Tiles = Tiles { tm: 64, tn: 64, tk: 16, rm: 4, rn: 4, layout: Layout::Scattered };
/// One result per work-item.
pub(super) const TILED16: Tiles = Tiles { tm: 16, tn: 16, tk: 16, rm: 1, rn: 1, layout: Layout::Scattered };

/// `gemm(a, b, c, m, n, k, a_row, a_col, b_row, b_col, batches, alpha, beta)`. Groups are spread over x and y; a flat
/// number counts tiles row by row, one problem after the other.
pub(super) fn gemm_tiled(case: &Case, info: &DeviceInfo, t: Tiles, cost: Cost) -> Result<Plan> {
    let (m, n) = (case.dim("m"), case.dim("n"));
    if m == 0 || n == 0 {
        return Ok(Plan::default());
    }
    // Products of i32 wrap; C leaves signed overflow undefined, unsigned arithmetic has the same bits.
    let (acc, out) = match case.dtype {
        DType::I8 | DType::I32 => (DType::U32, DType::I32),
        float => (float.compute(), float),
    };
    let batches = case.dim("b");
    if batches == 0 {
        return Ok(Plan::default());
    }
    if batches > u64::from(u32::MAX) {
        return Err(Error::new(
            Code::LaunchTooLarge,
            format!("{batches} products in one launch, at most {}", u32::MAX),
        ));
    }
    let (rows, columns) = (t.tm / t.rm, t.tn / t.rn);
    let mut s = step(case.dtype, "gemm", acc, out, (rows * columns) as u32);
    let [row_item, row_step, col_item, col_step] = match t.layout {
        Layout::Scattered => [1, rows, 1, columns],
        Layout::Blocks => [t.rm, 1, t.rn, 1],
    };
    let defines = [
        ("TM", t.tm),
        ("TN", t.tn),
        ("TK", t.tk),
        ("RM", t.rm),
        ("RN", t.rn),
        ("ROW_ITEM", row_item),
        ("ROW_STEP", row_step),
        ("COL_ITEM", col_item),
        ("COL_STEP", col_step),
    ];
    s.defines.extend(defines.into_iter().map(|(name, value)| (name.to_string(), value.to_string())));
    let mut params = gemm_params(case);
    params.insert(7, Param::U64(batches));
    let tiles = m.div_ceil(t.tm).saturating_mul(n.div_ceil(t.tn)).saturating_mul(batches);
    Ok(one(Step {
        groups: spread_groups(tiles, info)?,
        args: vec![Arg::Operand(0), Arg::Operand(1), Arg::Operand(2)],
        writes: vec![false, false, true],
        params,
        cost,
        ..s
    }))
}

/// 128×128×64 tiles, blocks of 4×32 results per work-item: for devices that are processors.
pub fn gemm_cpu_tile(_: &Kernel, case: &Case, info: &DeviceInfo) -> Result<Plan> {
    if !info.is_software() {
        return Err(Error::new(Code::FeatureUnsupported, "needs a processor, the device is a GPU"));
    }
    gemm_tiled(case, info, CPU_TILE, plan_native::gemm_cost(case))
}

/// 128×128×16 tiles, 8×8 results per work-item.
pub fn gemm_tiled128(_: &Kernel, case: &Case, info: &DeviceInfo) -> Result<Plan> {
    gemm_tiled(case, info, TILED128, plan_native::gemm_cost(case))
}

/// 64×64×16 tiles, 4×4 results per work-item.
pub fn gemm_tiled64(_: &Kernel, case: &Case, info: &DeviceInfo) -> Result<Plan> {
    gemm_tiled(case, info, TILED64, plan_native::gemm_cost(case))
}

/// 16×16×16 tiles, one result per work-item.
pub fn gemm_tiled16(_: &Kernel, case: &Case, info: &DeviceInfo) -> Result<Plan> {
    gemm_tiled(case, info, TILED16, plan_native::gemm_cost(case))
}

/// `launch(y)`: work-item 0 stores `TOKEN`; `n` such steps.
pub fn launch(_: &Kernel, case: &Case, _: &DeviceInfo) -> Result<Plan> {
    let mut step = step(DType::I32, "launch", DType::I32, DType::I32, 1);
    step.defines.push(("TOKEN".into(), LAUNCH_TOKEN.to_string()));
    let one = Step {
        args: vec![Arg::Operand(0)],
        writes: vec![true],
        cost: crate::base::Cost { flops: 0, read: 0, written: 4 },
        ..step
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
