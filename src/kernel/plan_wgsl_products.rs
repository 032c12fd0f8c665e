//! Plan of matrix by vector in WGSL; the ranges are gemm's.

use crate::base::{Case, Cost, DeviceInfo, Result};

use super::plan_products::{lanes, scalars, strides};
use super::{Arg, Kernel, Plan, Step, plan_native, plan_wgsl, spread_groups};

/// `gemv(a, x, y, m, first, end, a_row, a_col, alpha, beta)` for ranges of n that keep an invocation's loops below
/// lavapipe's 65,535 iterations.
pub fn gemv(_: &Kernel, case: &Case, info: &DeviceInfo) -> Result<Plan> {
    let (m, n) = (case.dim("m"), case.dim("n"));
    if m == 0 {
        return Ok(Plan::default());
    }
    let acc = case.dtype.compute();
    plan_wgsl::fit(info, &[(plan_wgsl::product(&[m, n]), case.dtype), (n, case.dtype), (m, acc)])?;
    let (rows, lanes) = lanes(case);
    let (row_of, lane_of) = if rows > lanes {
        (format!("local % {rows}u"), format!("local / {rows}u"))
    } else {
        (format!("local / {lanes}u"), format!("local % {lanes}u"))
    };
    let (loads, rows_text, lanes_text) = (plan_wgsl::loads(case.dtype), rows.to_string(), lanes.to_string());
    let defines = [
        ("LOADS", loads.as_str()),
        ("ACC", acc.name()),
        ("ROWS", &rows_text),
        ("LANES", &lanes_text),
        ("ROW_OF", &row_of),
        ("LANE_OF", &lane_of),
    ];
    let groups = spread_groups(m.div_ceil(rows), info)?;
    let [row, col] = strides(case);
    plan_wgsl::in_ranges(case, info, (n, 32_768 * lanes), m, |target, first, end, beta| {
        let mut params = plan_wgsl::sizes(&[m, first, end, row, col]);
        params.extend([scalars(case)[0], beta]);
        Ok(Step {
            args: vec![Arg::Operand(0), Arg::Operand(1), target],
            writes: vec![false, false, true],
            params,
            cost: if first == 0 { plan_native::gemv_cost(case) } else { Cost::default() },
            ..plan_wgsl::step(case, "gemv", groups, &defines)
        })
    })
}
