//! Plans of convolutions in WGSL.

use crate::base::{Case, Cost, DType, DeviceInfo, Result};

use super::plan_window::{GROUP, Makes, Product, largest};
use super::window::{Window, product};
use super::{Arg, Kernel, Param, Plan, Step, plan_wgsl, spread_groups};

/// Distances of channels, rows and columns in the layout, as expressions of nc, nh and nw.
pub(super) fn layout(w: &Window) -> [(&'static str, &'static str); 3] {
    match w.nhwc {
        true => [("CS", "1u"), ("YS", "nw * nc"), ("XS", "nc")],
        false => [("CS", "nh * nw"), ("YS", "nw"), ("XS", "1u")],
    }
}

fn wgsl(case: &Case, info: &DeviceInfo, makes: Makes) -> Result<Plan> {
    let w = Window::conv(case)?;
    let results = makes.results(&w);
    if results == 0 {
        return Ok(Plan::default());
    }
    let acc = case.dtype.compute();
    let operands = [w.x(), w.filters(), w.y()].map(|s| (product(&s), case.dtype));
    // The result's scratch is f32; coordinates must stay in 31 bits, too.
    plan_wgsl::fit(info, &[operands[0], operands[1], operands[2], (results, acc)])?;
    let terms = makes.terms(&w);
    plan_wgsl::countable(largest(&w).max(terms))?;
    let (groups, depth) = match makes {
        Makes::Filters => (results, 32_768 * GROUP),
        _ => (results.div_ceil(GROUP), 32_768),
    };
    let (loads, items) = (plan_wgsl::loads(case.dtype), GROUP.to_string());
    let mut defines = vec![("LOADS", loads.as_str()), ("ACC", acc.name()), ("ITEMS", items.as_str())];
    defines.extend(layout(&w));
    let groups = spread_groups(groups, info)?;
    plan_wgsl::in_ranges(case, info, (terms, depth), results, |target, first, end, beta| {
        let mut params = vec![Param::U64(first), Param::U64(end)];
        params.extend(w.params());
        params.push(beta);
        Ok(Step {
            group: [GROUP as u32, 1, 1],
            args: vec![Arg::Operand(0), Arg::Operand(1), target],
            writes: vec![false, false, true],
            params,
            cost: if first == 0 { makes.cost(case, &w) } else { Cost::default() },
            ..plan_wgsl::step(case, makes.entry(), groups, &defines)
        })
    })
}

/// Side of a tile of `conv_product`, and terms of one launch: each invocation makes a step of the outer loop per 16 of them
/// and 16 of the inner one.
const SIDE: u64 = 64;
const DEPTH: u64 = 32_768;
/// The same for dx on lavapipe, where all 16 sums of an invocation may be NaN and are then made again, a step per term.
const DEPTH_OF_DX: u64 = 3_584;

/// `conv_product(.., sizes as above)` of `kernels/conv_tiled.wgsl`.
fn tiled(case: &Case, info: &DeviceInfo, makes: Makes) -> Result<Plan> {
    let w = Window::conv(case)?;
    let form = match makes {
        Makes::Y => "y",
        Makes::X => "dx",
        Makes::Filters => "df",
    };
    let tiles = Product::of(&w, makes, info)?.tiles(SIDE);
    let results = makes.results(&w);
    if results == 0 {
        return Ok(Plan::default());
    }
    let acc = case.dtype.compute();
    let [x, f, y] = [w.x(), w.filters(), w.y()].map(|s| (product(&s), case.dtype));
    let terms = makes.terms(&w);
    // Positions of tiles reach beyond the last result and the last term.
    plan_wgsl::fit(info, &[x, f, y, (results, acc)])?;
    plan_wgsl::countable(largest(&w).max(terms).saturating_add(SIDE))?;
    let loads = plan_wgsl::loads(case.dtype);
    // A compiler may assume that NaN does not occur; of f64 naga gives no bits.
    let is_nan = if acc == DType::F64 { "!(v == v)" } else { "(bitcast<u32>(v) & 0x7fffffffu) > 0x7f800000u" };
    let mut defines = vec![("LOADS", loads.as_str()), ("ACC", acc.name()), ("FORM", form), ("IS_NAN", is_nan)];
    defines.extend(layout(&w));
    let groups = spread_groups(tiles, info)?;
    let depth = if makes == Makes::X && info.is_software() { DEPTH_OF_DX } else { DEPTH };
    plan_wgsl::in_ranges(case, info, (terms, depth), results, |target, first, end, beta| {
        let mut params = vec![Param::U64(first), Param::U64(end)];
        params.extend(w.params());
        params.push(beta);
        Ok(Step {
            args: vec![Arg::Operand(0), Arg::Operand(1), target],
            writes: vec![false, false, true],
            params,
            cost: if first == 0 { makes.cost(case, &w) } else { Cost::default() },
            ..plan_wgsl::step(case, "conv_product", groups, &defines)
        })
    })
}

/// y as a product.
pub fn forward_tiled(_: &Kernel, case: &Case, info: &DeviceInfo) -> Result<Plan> {
    tiled(case, info, Makes::Y)
}
/// dx as a product.
pub fn data_tiled(_: &Kernel, case: &Case, info: &DeviceInfo) -> Result<Plan> {
    tiled(case, info, Makes::X)
}
/// The filters' gradient as a product.
pub fn weight_tiled(_: &Kernel, case: &Case, info: &DeviceInfo) -> Result<Plan> {
    tiled(case, info, Makes::Filters)
}

/// The entries of the C dialect with first, end, sizes, beta: for ranges of the terms.
pub fn forward(_: &Kernel, case: &Case, info: &DeviceInfo) -> Result<Plan> {
    wgsl(case, info, Makes::Y)
}
/// See [`forward`].
pub fn data(_: &Kernel, case: &Case, info: &DeviceInfo) -> Result<Plan> {
    wgsl(case, info, Makes::X)
}
/// See [`forward`].
pub fn weight(_: &Kernel, case: &Case, info: &DeviceInfo) -> Result<Plan> {
    wgsl(case, info, Makes::Filters)
}
