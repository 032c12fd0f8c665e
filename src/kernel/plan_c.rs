//! Plans of the common C dialect (OpenCL and CUDA). The entry points are documented here and in the kernel files.
//!
//! All texts get `T`, `ACC`, `OUT`, `LOAD`, `STORE`, `STORE_OUT` (see [`source::c_types`]) and `GROUP`, the work-items
//! per group. Sizes are u64. Flat group numbers are spread over x and y; kernels recover them as `y * ngroups_x + x`.

use crate::base::{Case, Code, Cost, DType, DeviceInfo, Error, Result};

use super::{Arg, Kernel, LAUNCH_TOKEN, Needs, Param, Plan, Step, plan_native, rules_c, source, spread_groups};

/// Work-items per group of the one-dimensional kernels.
pub(super) const GROUP: u32 = 256;

/// How work-items share what a group works on together.
///
/// A GPU wants many work-items that read neighbours in turn. A processor runs a group's work-items one after the other, on
/// one core: there one work-item takes all, and its neighbours in memory stand in loops of which the compiler makes vectors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Share {
    /// Work-items per group.
    pub(super) group: u32,
    /// Elements beside each other that a work-item takes in one step (`WIDE`).
    pub(super) wide: u32,
}

impl Share {
    /// `WIDE`, and `STRETCHES`: how many places a work-item reads or writes at in turn; `stretches` on a GPU.
    pub(super) fn defines(self, stretches: u32) -> [(String, String); 2] {
        let stretches = if self.group == 1 { 2 } else { stretches };
        [("WIDE".into(), self.wide.to_string()), ("STRETCHES".into(), stretches.to_string())]
    }
}

/// Work-items per group where a group works on one row of `n`: short rows would leave most of 256 idle. Two sizes only,
/// since each is a program of its own.
pub(super) fn row_group(n: u64) -> u32 {
    if n <= 128 { 64 } else { GROUP }
}

/// A group's share of one row of `n` elements.
pub(super) fn row_share(n: u64, info: &DeviceInfo) -> Share {
    match info.is_software() {
        true => Share { group: 1, wide: if n <= 128 { 32 } else { 64 } },
        false => Share { group: row_group(n), wide: 1 },
    }
}

/// The same where work-items walk down columns, `inner` of them side by side. A few columns are no vector.
pub(super) fn column_share(inner: u64, info: &DeviceInfo) -> Share {
    match info.is_software() {
        true if inner >= 1024 => Share { group: 1, wide: 1024 },
        true if inner >= 256 => Share { group: 1, wide: 256 },
        true if inner >= 64 => Share { group: 1, wide: 64 },
        true if inner >= 16 => Share { group: 1, wide: 16 },
        _ => Share { group: GROUP, wide: 1 },
    }
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

/// Elements that a processor's work-item takes one behind the other: far more than a launch of a group costs.
const BLOCK: u32 = 4096;

/// An elementwise step over `n` elements: the number rules `N_...` of the dtype, groups, and `ITEMS` elements per
/// work-item, a group's width apart. A GPU hides memory latency better with several independent reads per item; a
/// processor has groups of one item, whose elements are then neighbours.
fn elementwise(case: &Case, entry: &'static str, n: u64, info: &DeviceInfo) -> Result<Step> {
    let mut step = step(case.dtype, entry, case.dtype.compute(), case.dtype, GROUP);
    step.defines.extend(rules_c::defines(case.dtype));
    spread_elements(step, n, info)
}

/// The same for a step that has its defines.
pub(super) fn spread_elements(mut step: Step, n: u64, info: &DeviceInfo) -> Result<Step> {
    let (group, items) = if info.is_software() { (1, BLOCK) } else { (GROUP, 4) };
    step.defines.retain(|(name, _)| name != "GROUP");
    step.defines.extend([("GROUP".into(), group.to_string()), ("ITEMS".into(), items.to_string())]);
    step.group = [group, 1, 1];
    step.groups = spread_groups(n.div_ceil(u64::from(group * items)), info)?;
    Ok(step)
}

/// The refusal of a variant that is only for devices that are processors.
pub(super) fn for_processors(info: &DeviceInfo) -> Result<()> {
    match info.is_software() {
        true => Ok(()),
        false => Err(Error::new(Code::FeatureUnsupported, "needs a processor, the device is a GPU")),
    }
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

/// The same plans with the kernels of `kernels/opencl/elementwise_vectors.cl`, for devices that are processors: the last
/// parameter says whether the result is stored past the caches.
fn vectors(plan: Result<Plan>, info: &DeviceInfo) -> Result<Plan> {
    for_processors(info)?;
    let mut plan = plan?;
    for s in &mut plan.steps {
        s.entry = match s.entry {
            "unary" => "unary_vectors",
            "binary" => "binary_vectors",
            "scalar" => "scalar_vectors",
            "scalar_first" => "scalar_first_vectors",
            "triad" => "triad_vectors",
            "forward" => "forward_vectors",
            "backward" => "backward_vectors",
            _ => return Err(Error::new(Code::FeatureUnsupported, "needs operands of one shape")),
        };
        s.params.push(past_caches(s.cost.written));
    }
    Ok(plan)
}

macro_rules! with_vectors {
    ($($name:ident: $of:path;)*) => {$(
        #[doc = concat!("[`", stringify!($of), "`] by `kernels/opencl/elementwise_vectors.cl`.")]
        pub fn $name(k: &Kernel, case: &Case, info: &DeviceInfo) -> Result<Plan> {
            vectors($of(k, case, info), info)
        }
    )*};
}

with_vectors! {
    unary_vectors: unary;
    binary_vectors: binary;
    scalar_vectors: scalar;
    scalar_first_vectors: scalar_first;
    triad_vectors: super::plan_stream::triad_c;
    forward_vectors: super::plan_activation::forward_c;
    backward_vectors: super::plan_activation::backward_c;
}

/// Rows and columns that a processor's work-item transposes at once.
const SQUARE: u64 = 64;

/// A step that moves square tiles, so many of them for a side: by groups of 32×8, on a processor by single work-items.
fn tiles_step(case: &Case, entries: [&'static str; 2], tiles: &dyn Fn(u64) -> u64, info: &DeviceInfo) -> Result<Step> {
    let dtype = case.dtype;
    if !info.is_software() {
        let groups = spread_groups(tiles(32), info)?;
        return Ok(Step { group: [32, 8, 1], groups, ..step(dtype, entries[0], dtype, dtype, GROUP) });
    }
    let mut s = step(dtype, entries[1], dtype, dtype, 1);
    s.defines.push(("BLOCK".into(), SQUARE.to_string()));
    Ok(Step { groups: spread_groups(tiles(SQUARE), info)?, ..s })
}

/// Elements on a side of the squares that a work-item of a processor moves in vectors, larger ones first: the first that leaves
/// `BUSY` work-items.
const SIDES: [u64; 2] = [256, 64];
const BUSY: u64 = 64;

/// Elements ahead of its work at which a processor's work-item asks for memory (`AHEAD`), where it goes straight on.
pub(super) const AHEAD: u64 = 2_048;

/// 1 if a result of so many bytes is stored past the caches: more than the cache of a core usually holds.
pub(super) fn past_caches(bytes: u64) -> Param {
    Param::U32(u32::from(bytes >= 1 << 21))
}

/// A step that moves squares of words of 32 or 64 bits in vectors.
fn vectors_step(case: &Case, entry: &'static str, tiles: &dyn Fn(u64) -> u64, info: &DeviceInfo) -> Result<Step> {
    let (dtype, vector) = if case.dtype.size() == 4 { (DType::U32, "uint16") } else { (DType::U64, "ulong16") };
    let side = SIDES.into_iter().find(|s| tiles(*s) >= BUSY).unwrap_or(SIDES[1]);
    let mut s = step(dtype, entry, dtype, dtype, 1);
    s.defines.extend([
        ("VECTOR".into(), vector.into()),
        ("SIDE".into(), side.to_string()),
        ("AHEAD".into(), "32".into()),
    ]);
    Ok(Step { groups: spread_groups(tiles(side), info)?, dtype: case.dtype, ..s })
}

/// `transpose_vectors(x, y, m, n, past)`: a work-item per square, for devices that are processors.
pub fn transpose_vectors(_: &Kernel, case: &Case, info: &DeviceInfo) -> Result<Plan> {
    for_processors(info)?;
    let (m, n) = (case.dim("m"), case.dim("n"));
    if m * n == 0 {
        return Ok(Plan::default());
    }
    let tiles = |side| n.div_ceil(side) * m.div_ceil(side);
    Ok(one(Step {
        args: vec![Arg::Operand(0), Arg::Operand(1)],
        writes: vec![false, true],
        params: vec![Param::U64(m), Param::U64(n), past_caches(m * n * case.dtype.size())],
        cost: plan_native::matrix_cost(case, 0),
        ..vectors_step(case, "transpose_vectors", &tiles, info)?
    }))
}

/// `transpose_inplace_vectors(x, n)`: a work-item per two squares, for devices that are processors.
pub fn transpose_inplace_vectors(_: &Kernel, case: &Case, info: &DeviceInfo) -> Result<Plan> {
    for_processors(info)?;
    let n = case.dim("n");
    if n == 0 {
        return Ok(Plan::default());
    }
    let tiles = |side| n.div_ceil(side).saturating_mul(n.div_ceil(side));
    Ok(one(Step {
        args: vec![Arg::Operand(0)],
        writes: vec![true],
        params: vec![Param::U64(n)],
        cost: plan_native::square_cost(case),
        ..vectors_step(case, "transpose_inplace_vectors", &tiles, info)?
    }))
}

/// `transpose(x, y, m, n)`: groups of 32×8 move 32×32 tiles through local memory; x counts tiles along n, y along m
/// (spread like every flat number when there are too many). `transpose_blocks`, the same, on a processor.
pub fn transpose(_: &Kernel, case: &Case, info: &DeviceInfo) -> Result<Plan> {
    let (m, n) = (case.dim("m"), case.dim("n"));
    if m * n == 0 {
        return Ok(Plan::default());
    }
    let tiles = |side| n.div_ceil(side) * m.div_ceil(side);
    Ok(one(Step {
        args: vec![Arg::Operand(0), Arg::Operand(1)],
        writes: vec![false, true],
        params: vec![Param::U64(m), Param::U64(n)],
        cost: plan_native::matrix_cost(case, 0),
        ..tiles_step(case, ["transpose", "transpose_blocks"], &tiles, info)?
    }))
}

/// `transpose_inplace(x, n)`: a group per 32×32 tile; the groups on and above the diagonal swap two tiles each.
/// `transpose_inplace_blocks`, the same, on a processor.
pub fn transpose_inplace(_: &Kernel, case: &Case, info: &DeviceInfo) -> Result<Plan> {
    let n = case.dim("n");
    if n == 0 {
        return Ok(Plan::default());
    }
    let tiles = |side| n.div_ceil(side).saturating_mul(n.div_ceil(side));
    Ok(one(Step {
        args: vec![Arg::Operand(0)],
        writes: vec![true],
        params: vec![Param::U64(n)],
        cost: plan_native::square_cost(case),
        ..tiles_step(case, ["transpose_inplace", "transpose_inplace_blocks"], &tiles, info)?
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

/// Tiles TM×TN×TK in local memory and RM×RN results per work-item; (TM/RM)·(TN/RN) = GROUP.
#[derive(Clone, Copy)]
pub(super) struct Tiles {
    pub(super) tm: u64,
    pub(super) tn: u64,
    tk: u64,
    rm: u64,
    rn: u64,
}

/// 8×8 results per work-item.
pub(super) const TILED128: Tiles = Tiles { tm: 128, tn: 128, tk: 16, rm: 8, rn: 8 };
/// 4×4 results per work-item.
pub(super) const TILED64: Tiles = Tiles { tm: 64, tn: 64, tk: 16, rm: 4, rn: 4 };
/// One result per work-item.
pub(super) const TILED16: Tiles = Tiles { tm: 16, tn: 16, tk: 16, rm: 1, rn: 1 };

/// `gemm(a, b, c, m, n, k, a_row, a_col, b_row, b_col, batches, alpha, beta)`. Groups are spread over x and y; a flat
/// number counts tiles row by row, one problem after the other.
pub(super) fn gemm_tiled(case: &Case, info: &DeviceInfo, t: Tiles, cost: Cost) -> Result<Plan> {
    let group = (t.tm / t.rm) * (t.tn / t.rn);
    gemm_step(case, info, "gemm", group as u32, t, Vec::new(), cost)
}

/// Tiles of `gemm_blocks`: strips of 8 rows by stripes of two vectors of 64 bytes. Of 8-byte numbers 16 columns, so that
/// sums and operands stay within 32 registers.
const BLOCKS: Tiles = Tiles { tm: 64, tn: 128, tk: 128, rm: 8, rn: 2 };

/// The local memory of `gemm_blocks`.
pub const BLOCK_NEEDS: Needs =
    Needs { local_elements: ((BLOCKS.tm + BLOCKS.tn) * BLOCKS.tk + BLOCKS.tm * BLOCKS.tn) as u32, ..Needs::NONE };

/// `gemm_blocks`, the same arguments: a work-item per tile, for devices that are processors.
pub(super) fn gemm_blocks(case: &Case, info: &DeviceInfo, cost: Cost) -> Result<Plan> {
    for_processors(info)?;
    let (vector, lanes) = match gemm_types(case.dtype).0 {
        DType::F64 => ("double8", 8),
        DType::U32 => ("uint16", 16),
        _ => ("float16", 16),
    };
    let defines = vec![("VECTOR".to_string(), vector.to_string()), ("LANES".to_string(), lanes.to_string())];
    gemm_step(case, info, "gemm_blocks", 1, BLOCKS, defines, cost)
}

/// Arithmetic and result. Products of i32 wrap; C leaves signed overflow undefined, unsigned arithmetic has the same bits.
fn gemm_types(dtype: DType) -> (DType, DType) {
    match dtype {
        DType::I8 | DType::I32 => (DType::U32, DType::I32),
        float => (float.compute(), float),
    }
}

fn gemm_step(
    case: &Case,
    info: &DeviceInfo,
    entry: &'static str,
    group: u32,
    t: Tiles,
    defines: Vec<(String, String)>,
    cost: Cost,
) -> Result<Plan> {
    let (m, n, batches) = (case.dim("m"), case.dim("n"), case.dim("b"));
    if m == 0 || n == 0 || batches == 0 {
        return Ok(Plan::default());
    }
    if batches > u64::from(u32::MAX) {
        return Err(Error::new(
            Code::LaunchTooLarge,
            format!("{batches} products in one launch, at most {}", u32::MAX),
        ));
    }
    let (acc, out) = gemm_types(case.dtype);
    let mut s = step(case.dtype, entry, acc, out, group);
    let sizes = [("TM", t.tm), ("TN", t.tn), ("TK", t.tk), ("RM", t.rm), ("RN", t.rn)];
    s.defines.extend(sizes.into_iter().map(|(name, value)| (name.to_string(), value.to_string())));
    s.defines.extend(defines);
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

/// `gemm_blocks`: for devices that are processors.
pub fn gemm_cpu_tile(_: &Kernel, case: &Case, info: &DeviceInfo) -> Result<Plan> {
    gemm_blocks(case, info, plan_native::gemm_cost(case))
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
