//! Plans of matrix by vector and of batched products in the C dialect. The tiles are gemm's.

use crate::base::{Case, Code, DeviceInfo, Error, Result};

use super::plan_c::{TILED16, TILED64, TILED128, Tiles};
use super::{Arg, Kernel, Param, Plan, Step, plan_c, plan_native, spread_groups};

/// Results per group of gemv and work-items per result; their product is 256.
pub(super) fn lanes(case: &Case) -> (u64, u64) {
    // A transposed A is contiguous along the results.
    if case.attrs.int("transA", 0) == 1 { (64, 4) } else { (4, 64) }
}

/// Row and column stride of op(A).
pub(super) fn strides(case: &Case) -> [u64; 2] {
    if case.attrs.int("transA", 0) == 1 { [1, case.dim("m")] } else { [case.dim("n"), 1] }
}

pub(super) fn scalars(case: &Case) -> [Param; 2] {
    let scalar = |name, default| Param::scalar(case.dtype, case.attrs.float(name, default));
    [scalar("alpha", 1.0), scalar("beta", 0.0)]
}

/// `gemv(a, x, y, m, n, a_row, a_col, alpha, beta)`: a group per ROWS results. Of a processor `gemv_rows` and `gemv_columns`.
pub fn gemv(_: &Kernel, case: &Case, info: &DeviceInfo) -> Result<Plan> {
    let (m, n) = (case.dim("m"), case.dim("n"));
    if m == 0 {
        return Ok(Plan::default());
    }
    if info.is_software() {
        return gemv_of_processor(case, info);
    }
    let (rows, lanes) = lanes(case);
    let mut s = plan_c::step(case.dtype, "gemv", case.dtype.compute(), case.dtype, plan_c::GROUP);
    let (row_of, lane_of) =
        if rows > lanes { ("((lid) % ROWS)", "((lid) / ROWS)") } else { ("((lid) / LANES)", "((lid) % LANES)") };
    s.defines.extend([
        ("ROWS".into(), rows.to_string()),
        ("LANES".into(), lanes.to_string()),
        ("ROW_OF(lid)".into(), row_of.into()),
        ("LANE_OF(lid)".into(), lane_of.into()),
    ]);
    let [row, col] = strides(case);
    let mut params: Vec<Param> = [m, n, row, col].into_iter().map(Param::U64).collect();
    params.extend(scalars(case));
    Ok(plan_c::one(Step {
        groups: spread_groups(m.div_ceil(rows), info)?,
        args: vec![Arg::Operand(0), Arg::Operand(1), Arg::Operand(2)],
        writes: vec![false, false, true],
        params,
        cost: plan_native::gemv_cost(case),
        ..s
    }))
}

/// `gemv_rows(a, x, y, m, n, alpha, beta)`, a work-item per ROWS results, each of WIDE sums; `gemv_columns(..)`, where A is
/// transposed, per WIDE results.
fn gemv_of_processor(case: &Case, info: &DeviceInfo) -> Result<Plan> {
    let (m, n) = (case.dim("m"), case.dim("n"));
    let (entry, wide, results) = match case.attrs.int("transA", 0) == 1 {
        true if m < 512 => ("gemv_columns", 64, 64),
        true => ("gemv_columns", 512, 512),
        false => ("gemv_rows", 64, 4),
    };
    let mut s = plan_c::step(case.dtype, entry, case.dtype.compute(), case.dtype, 1);
    s.defines.extend([("ROWS".into(), "4".into()), ("WIDE".into(), wide.to_string())]);
    let mut params: Vec<Param> = [m, n].into_iter().map(Param::U64).collect();
    params.extend(scalars(case));
    Ok(plan_c::one(Step {
        groups: spread_groups(m.div_ceil(results), info)?,
        args: vec![Arg::Operand(0), Arg::Operand(1), Arg::Operand(2)],
        writes: vec![false, false, true],
        params,
        cost: plan_native::gemv_cost(case),
        ..s
    }))
}

/// gemm's text for `b` problems. A tile is passed over where it would be mostly empty.
fn bmm(case: &Case, info: &DeviceInfo, tiles: Tiles) -> Result<Plan> {
    let results = case.dim("m").saturating_mul(case.dim("n"));
    if tiles.tm > 16 && results.saturating_mul(4) < tiles.tm * tiles.tn {
        let why = format!("needs matrices that fill a quarter of a tile of {} by {}", tiles.tm, tiles.tn);
        return Err(Error::new(Code::OpUnsupported, why));
    }
    plan_c::gemm_tiled(case, info, tiles, plan_native::bmm_cost(case))
}

/// Tiles for devices that are processors.
pub fn bmm_cpu_tile(_: &Kernel, case: &Case, info: &DeviceInfo) -> Result<Plan> {
    plan_c::for_processors(info)?;
    plan_c::gemm_blocks(case, info, plan_native::bmm_cost(case))
}

/// 128×128×16 tiles.
pub fn bmm_tiled128(_: &Kernel, case: &Case, info: &DeviceInfo) -> Result<Plan> {
    bmm(case, info, TILED128)
}

/// 64×64×16 tiles.
pub fn bmm_tiled64(_: &Kernel, case: &Case, info: &DeviceInfo) -> Result<Plan> {
    bmm(case, info, TILED64)
}

/// 16×16×16 tiles.
pub fn bmm_tiled16(_: &Kernel, case: &Case, info: &DeviceInfo) -> Result<Plan> {
    bmm(case, info, TILED16)
}
