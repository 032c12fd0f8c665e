//! Plans of convolutions: work, and launches on the CPU and in the C dialect. Params: the sizes in the order of [`Window::params`].

use crate::base::{Case, Code, Cost, DeviceInfo, Error, Result};

use super::window::{Window, product};
use super::{Arg, Kernel, Param, Plan, Step, plan_c, plan_native, spread_groups};

/// Work-items per group. Small, since a work-item has much to do and images may be small.
pub(super) const GROUP: u64 = 64;

/// Which of the three tensors of a convolution a call makes from the other two.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Makes {
    Y,
    X,
    Filters,
}

impl Makes {
    pub(super) fn entry(self) -> &'static str {
        match self {
            Makes::Y => "conv2d",
            Makes::X => "conv2d_bwd_data",
            Makes::Filters => "conv2d_bwd_weight",
        }
    }
    fn tiled_entry(self) -> &'static str {
        match self {
            Makes::Y => "conv2d_tiled",
            Makes::X => "conv2d_bwd_data_tiled",
            Makes::Filters => "conv2d_bwd_weight_tiled",
        }
    }
    /// Elements of the result.
    pub(super) fn results(self, w: &Window) -> u64 {
        product(&match self {
            Makes::Y => w.y(),
            Makes::X => w.x(),
            Makes::Filters => w.filters(),
        })
    }
    /// Terms of one element's sum, those in the padding counted.
    pub(super) fn terms(self, w: &Window) -> u64 {
        product(&match self {
            Makes::Y => [w.cg(), w.kh, w.kw],
            Makes::X => [w.og(), w.kh, w.kw],
            Makes::Filters => [w.n, w.ho, w.wo],
        })
    }
    pub(super) fn cost(self, case: &Case, w: &Window) -> Cost {
        let size = case.dtype.size();
        let [x, f, y] = [w.x(), w.filters(), w.y()].map(|s| product(&s).saturating_mul(size));
        let (read, written) = match self {
            Makes::Y => (x.saturating_add(f), y),
            Makes::X => (y.saturating_add(f), x),
            Makes::Filters => (x.saturating_add(y), f),
        };
        Cost { flops: product(&[2, w.n, w.co, w.ho, w.wo, w.cg(), w.kh, w.kw]), read, written }
    }
}

fn conv_cost(case: &Case, makes: Makes) -> Cost {
    Window::conv(case).map(|w| makes.cost(case, &w)).unwrap_or_default()
}

/// Work of conv2d.
pub fn forward_cost(case: &Case) -> Cost {
    conv_cost(case, Makes::Y)
}

/// Work of conv2d_bwd_data.
pub fn data_cost(case: &Case) -> Cost {
    conv_cost(case, Makes::X)
}

/// Work of conv2d_bwd_weight.
pub fn weight_cost(case: &Case) -> Cost {
    conv_cost(case, Makes::Filters)
}

/// CPU: the shared params, then 1 for NHWC.
pub fn native_params(w: &Window) -> Vec<Param> {
    let mut params = w.params();
    params.push(Param::U64(u64::from(w.nhwc)));
    params
}

fn native(case: &Case, makes: Makes) -> Result<Plan> {
    let w = Window::conv(case)?;
    Ok(plan_native::step(case, makes.entry(), &[0, 1], &[2], native_params(&w), makes.cost(case, &w)))
}

/// Defines of a text in the C dialect: the layout, and the type of indices for operands of so many elements.
pub(super) fn c_defines(w: &Window, largest: u64) -> Vec<(String, String)> {
    // Distances of channels, rows and columns.
    let layout = match w.nhwc {
        true => ["1", "((nw) * (nc))", "(nc)"],
        false => ["((nh) * (nw))", "(nw)", "1"],
    };
    let names = ["CS(nh, nw)", "YS(nc, nw)", "XS(nc)"];
    let mut defines: Vec<(String, String)> =
        names.into_iter().zip(layout).map(|(name, text)| (name.to_string(), text.to_string())).collect();
    // The last group may reach beyond the last element, and coordinates beyond the padded image.
    let index = if largest < 1 << 31 { "u32" } else { "u64" };
    defines.push(("INDEX".into(), index.into()));
    defines
}

/// The largest of both images' elements and of the padded coordinates.
pub(super) fn farthest(w: &Window) -> u64 {
    let reach = |o: u64, s: u64, k: u64, d: u64| o.saturating_mul(s).saturating_add(k.saturating_mul(d));
    let images = [product(&w.x()), product(&w.y())];
    let ends = [reach(w.ho, w.sh, w.kh, w.dh), reach(w.wo, w.sw, w.kw, w.dw), w.h + w.pt, w.w + w.pl];
    images.into_iter().chain(ends).max().unwrap_or(0)
}

/// The largest number that a convolution's indices reach: the filters are an operand, too.
pub(super) fn largest(w: &Window) -> u64 {
    farthest(w).max(product(&w.filters()))
}

fn c(case: &Case, info: &DeviceInfo, makes: Makes) -> Result<Plan> {
    let w = Window::conv(case)?;
    let results = makes.results(&w);
    if results == 0 {
        return Ok(Plan::default());
    }
    let mut step = plan_c::step(case.dtype, makes.entry(), case.dtype.compute(), case.dtype, GROUP as u32);
    step.defines.extend(c_defines(&w, largest(&w)));
    let groups = if makes == Makes::Filters { results } else { results.div_ceil(GROUP) };
    Ok(plan_c::one(Step {
        groups: spread_groups(groups, info)?,
        args: vec![Arg::Operand(0), Arg::Operand(1), Arg::Operand(2)],
        writes: vec![false, false, true],
        params: w.params(),
        cost: makes.cost(case, &w),
        ..step
    }))
}

/// conv2d on the CPU.
pub fn forward(_: &Kernel, case: &Case, _: &DeviceInfo) -> Result<Plan> {
    native(case, Makes::Y)
}
/// conv2d_bwd_data on the CPU.
pub fn data(_: &Kernel, case: &Case, _: &DeviceInfo) -> Result<Plan> {
    native(case, Makes::X)
}
/// conv2d_bwd_weight on the CPU.
pub fn weight(_: &Kernel, case: &Case, _: &DeviceInfo) -> Result<Plan> {
    native(case, Makes::Filters)
}
/// `conv2d(x, filters, y, sizes)`: a work-item per element of y.
pub fn forward_c(_: &Kernel, case: &Case, info: &DeviceInfo) -> Result<Plan> {
    c(case, info, Makes::Y)
}
/// Results and terms of a tile, and results side by side per work-item, of the tiled entries.
const TILE: u64 = 64;
const TERMS: u64 = 16;
const ACROSS: u64 = 4;

/// Fewest rows of a product that fill a tile.
const ROWS: u64 = 16;

/// A convolution as `times` products of so many rows and columns.
pub(super) struct Product {
    pub(super) rows: u64,
    pub(super) columns: u64,
    pub(super) times: u64,
}

impl Product {
    /// Filters by pixels of an image; for dx channels by pixels; for the filters' gradient filters by their elements, each
    /// sum over all images. Refuses one that would waste the device, with the reason.
    pub(super) fn of(w: &Window, makes: Makes, info: &DeviceInfo) -> Result<Self> {
        let product = match makes {
            Makes::Y => Product { rows: w.og(), columns: w.ho * w.wo, times: w.n * w.group },
            Makes::X => Product { rows: w.cg(), columns: w.h * w.w, times: w.n * w.group },
            Makes::Filters => Product { rows: w.og(), columns: w.cg() * w.kh * w.kw, times: w.group },
        };
        product.enough(w, makes, info)?;
        Ok(product)
    }

    /// Tiles of so many rows.
    pub(super) fn tiles(&self, rows: u64) -> u64 {
        product(&[self.rows.div_ceil(rows), self.columns.div_ceil(TILE), self.times])
    }

    fn enough(&self, w: &Window, makes: Makes, info: &DeviceInfo) -> Result<()> {
        let cores = u64::from(info.compute_units).max(if info.is_software() { 1 } else { BUSY });
        let what = if makes == Makes::X { "channels" } else { "filters" };
        let why = if self.rows < ROWS {
            format!("needs {ROWS} {what} in a group, there are {}", self.rows)
        } else if makes == Makes::X && (w.sh, w.sw) != (1, 1) {
            format!("strides of {}:{} leave most factors of the product 0", w.sh, w.sw)
        } else if makes == Makes::Filters && self.tiles(TILE) < cores {
            // Where there are few results with long sums, groups that share a sum leave fewer cores idle.
            format!("makes {} tiles, {cores} keep the device busy", self.tiles(TILE))
        } else {
            return Ok(());
        };
        Err(Error::new(Code::FeatureUnsupported, why))
    }
}

/// Fewest tiles of a sum over all images that keep a GPU busy; a processor is with one for each core.
const BUSY: u64 = 64;

/// A product in tiles of 16, 32 or 64 by 64 results, a group of 256 per tile.
fn tiled(case: &Case, info: &DeviceInfo, makes: Makes) -> Result<Plan> {
    let w = Window::conv(case)?;
    let product = Product::of(&w, makes, info)?;
    if makes.results(&w) == 0 {
        return Ok(Plan::default());
    }
    let rows = product.rows.next_power_of_two().min(TILE);
    let group = u64::from(plan_c::GROUP);
    let mut step = plan_c::step(case.dtype, makes.tiled_entry(), case.dtype.compute(), case.dtype, plan_c::GROUP);
    step.defines.extend(c_defines(&w, largest(&w)));
    let sizes = [("TM", rows), ("TN", TILE), ("TK", TERMS), ("RM", rows * TILE / ACROSS / group), ("RN", ACROSS)];
    step.defines.extend(sizes.into_iter().map(|(name, value)| (name.to_string(), value.to_string())));
    Ok(plan_c::one(Step {
        groups: spread_groups(product.tiles(rows), info)?,
        args: vec![Arg::Operand(0), Arg::Operand(1), Arg::Operand(2)],
        writes: vec![false, false, true],
        params: w.params(),
        cost: makes.cost(case, &w),
        ..step
    }))
}

/// `conv2d_tiled(x, filters, y, sizes)`: filters by pixels of an image.
pub fn tiled_c(_: &Kernel, case: &Case, info: &DeviceInfo) -> Result<Plan> {
    tiled(case, info, Makes::Y)
}
/// `conv2d_bwd_data_tiled(g, filters, dx, sizes)`: channels by pixels of an image, for strides of 1.
pub fn data_tiled_c(_: &Kernel, case: &Case, info: &DeviceInfo) -> Result<Plan> {
    tiled(case, info, Makes::X)
}
/// `conv2d_bwd_weight_tiled(g, x, df, sizes)`: filters by their elements, each sum over all images in one group.
pub fn weight_tiled_c(_: &Kernel, case: &Case, info: &DeviceInfo) -> Result<Plan> {
    tiled(case, info, Makes::Filters)
}

/// `conv2d_bwd_data(g, filters, dx, sizes)`: a work-item per element of dx.
pub fn data_c(_: &Kernel, case: &Case, info: &DeviceInfo) -> Result<Plan> {
    c(case, info, Makes::X)
}
/// `conv2d_bwd_weight(g, x, df, sizes)`: a group per element of df.
pub fn weight_c(_: &Kernel, case: &Case, info: &DeviceInfo) -> Result<Plan> {
    c(case, info, Makes::Filters)
}
