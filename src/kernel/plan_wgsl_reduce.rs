//! Plans of `kernels/reduce.wgsl` and `kernels/extreme.wgsl`: the passes of `plan_c_reduce`, f16 and bf16 in words of two.
//!
//! Sums of f16 and bf16 wait in f32 scratch until a last launch rounds them, one invocation to a word.

use crate::base::{Case, Code, Cost, DType, DeviceInfo, Error, Feature, Result};

use super::plan_native::{dot_cost, nrm2_cost, reduce_cost};
use super::plan_reduce::{Order, Pass, ROW, blocks, passes, row_segment, segment};
use super::plan_wgsl::{GROUP, fit, half_text, product, sizes, step};
use super::{Arg, Kernel, Param, Plan, Step, plan_c_reduce, spread_groups};

/// Elements of a row that one group takes in one launch.
fn row(p: Pass, info: &DeviceInfo) -> u64 {
    if info.is_software() { ROW.1 } else { row_segment(p, info) }
}

const COLUMN: (u64, u64) = (64, 1_024);
const BUSY: u64 = 1 << 14;

/// How elements of `dtype` in `array` (of this element in WGSL) are read as `acc`: the element, the function.
pub(super) fn load(function: &str, array: &str, dtype: DType, acc: &str) -> (&'static str, String) {
    match half_text(dtype) {
        Some(_) => (
            "u32",
            format!(
                "fn {function}(i: u32) -> f32 {{\n    return widen(({array}[i / 2u] >> ((i & 1u) * 16u)) & 0xffffu);\n}}\n"
            ),
        ),
        None => (dtype.name(), format!("fn {function}(i: u32) -> {acc} {{\n    return {acc}({array}[i]);\n}}\n")),
    }
}

/// How results in `acc` are laid into words of the case's dtype: the word, the functions lo, hi and cell. What the halves
/// need to be read comes along.
pub(super) fn cells(out: DType, acc: DType) -> (&'static str, String) {
    let lines = |word: &str, low: &str, high: &str, value: &str| {
        let acc = acc.name();
        format!(
            "fn lo(w: u32) -> u32 {{\n    return {low};\n}}\nfn hi(w: u32) -> u32 {{\n    return {high};\n}}\n\
             fn cell(a: {acc}, b: {acc}) -> {word} {{\n    return {value};\n}}\n"
        )
    };
    match half_text(out) {
        Some(text) => {
            ("u32", format!("{text}\n{}", lines("u32", "2u * w", "2u * w + 1u", "narrow(a) | (narrow(b) << 16u)")))
        }
        None => (acc.name(), lines(acc.name(), "w", "w", "a")),
    }
}

/// Words of `n` elements.
pub(super) fn words(n: u64, dtype: DType) -> u64 {
    if half_text(dtype).is_some() { n.div_ceil(2) } else { n }
}

/// Arithmetic of sums and products: that of floats, 64 bits for integers.
fn sum_type(case: &Case, info: &DeviceInfo) -> Result<DType> {
    let acc = match case.dtype {
        d if d.is_float() => d.compute(),
        d if d.is_signed() => DType::I64,
        _ => DType::U64,
    };
    if !acc.is_float() && !info.has(Feature::Int64) {
        return Err(Error::new(Code::FeatureUnsupported, format!("integers sum to {acc}, which the device lacks")));
    }
    Ok(acc)
}

/// A step of reduce.wgsl that reads `from`.
fn sum_step(case: &Case, entry: &'static str, groups: [u64; 3], from: DType, acc: DType, finish: &str) -> Step {
    let (x, mut loads) = load("load", "x", from, acc.name());
    loads.push_str(&load("load_b", "b", from, acc.name()).1);
    let half = half_text(case.dtype).is_some();
    let (word, layout) = cells(if half { case.dtype } else { acc }, acc);
    let defines = [
        ("X", x),
        ("ACC", acc.name()),
        ("LOADS", loads.as_str()),
        ("CELLS", layout.as_str()),
        ("CELL", word),
        ("FINISH", finish),
        ("ROOT", if acc.is_float() { "sqrt" } else { "" }),
    ];
    step(case, entry, groups, &defines)
}

/// Rows or columns, their segments and parts.
struct Cut {
    rows: bool,
    groups: [u64; 3],
    sizes: Vec<u64>,
    parts: u64,
    results: u64,
}

fn cut(p: Pass, info: &DeviceInfo) -> Result<Cut> {
    // A group per short row would mostly idle. Parts are joined by the same text, however many they are.
    let rows = p.inner == 1 && (p.n > 64 || p.joins && !info.is_software());
    let length = if rows { row(p, info) } else { segment(p.n, p.results(), BUSY, COLUMN.0, COLUMN.1) };
    let parts = p.n.div_ceil(length).max(1);
    let results = product(&[p.outer, parts, p.inner]);
    let groups = spread_groups(if rows { results } else { results.div_ceil(GROUP) }, info)?;
    let sizes = if rows { vec![p.outer, p.n, length, parts] } else { vec![p.outer, p.n, p.inner, length, parts] };
    Ok(Cut { rows, groups, sizes, parts, results })
}

/// Appends launches that sum `from` (of dtype `dtype`) over the passes into `to`.
#[allow(clippy::too_many_arguments, reason = "source, target and arithmetic of one chain of launches")]
fn sum_into(
    plan: &mut Plan,
    case: &Case,
    list: &[Pass],
    from: Arg,
    dtype: DType,
    acc: DType,
    to: Arg,
    cost: Cost,
    info: &DeviceInfo,
) -> Result<()> {
    let (mut from, mut dtype, mut cost) = (from, dtype, cost);
    for (i, pass) in list.iter().enumerate() {
        let mut pass = *pass;
        while pass.results() > 0 {
            fit(info, &[(product(&[pass.outer, pass.n, pass.inner]), dtype)])?;
            let c = cut(pass, info)?;
            fit(info, &[(c.results, acc)])?;
            let last = i + 1 == list.len() && c.parts == 1;
            let target = if last { to } else { Arg::Scratch(plan.scratch.len()) };
            if !last {
                plan.scratch.push(c.results * acc.size());
            }
            plan.steps.push(Step {
                args: vec![from, target],
                writes: vec![false, true],
                params: sizes(&c.sizes),
                cost: std::mem::take(&mut cost),
                ..sum_step(case, if c.rows { "sum_rows" } else { "sum_columns" }, c.groups, dtype, acc, "v")
            });
            (from, dtype) = (target, acc);
            if c.parts == 1 {
                break;
            }
            (pass.n, pass.joins) = (c.parts, true);
        }
        if pass.results() == 0 && i + 1 < list.len() {
            // Nothing to hand on; the next pass finds an axis of no elements.
            plan.scratch.push(acc.size());
            (from, dtype) = (Arg::Scratch(plan.scratch.len() - 1), acc);
        }
    }
    Ok(())
}

/// `finish(sums, out, n, count)`.
fn finish(case: &Case, info: &DeviceInfo, sums: Arg, n: u64, acc: DType, count: Param, formula: &str) -> Result<Step> {
    let groups = spread_groups(words(n, case.dtype).div_ceil(GROUP), info)?;
    Ok(Step {
        args: vec![sums, Arg::Operand(1)],
        writes: vec![false, true],
        params: vec![Param::U64(n), count],
        ..sum_step(case, "finish", groups, acc, acc, formula)
    })
}

/// Bytes of scratch for `n` results that are laid into words: with an odd number the last word's partner is read, too.
/// Refused where one binding does not cover them all.
pub(super) fn waiting(n: u64, acc: DType, info: &DeviceInfo) -> Result<u64> {
    let elements = n.saturating_add(1);
    fit(info, &[(elements, acc)])?;
    Ok(elements * acc.size())
}

/// `sum_rows(x, y, outer, n, segment, parts)`: a group per (row, part), inner being 1.
/// `sum_columns(x, y, outer, n, inner, segment, parts)`: a work-item per (outer, part, inner).
/// Several parts go to scratch as [outer, parts, inner] and are summed again, until one part is left.
pub fn sum(_: &Kernel, case: &Case, info: &DeviceInfo) -> Result<Plan> {
    let acc = sum_type(case, info)?;
    let list = passes(&blocks(case)?);
    let results = list.last().map_or(0, Pass::results);
    if results == 0 {
        return Ok(Plan::default());
    }
    let half = half_text(case.dtype).is_some();
    let mut plan = Plan::default();
    let mut to = Arg::Operand(1);
    if half {
        plan.scratch.push(waiting(results, acc, info)?);
        to = Arg::Scratch(0);
    }
    sum_into(&mut plan, case, &list, Arg::Operand(0), case.dtype, acc, to, reduce_cost(case, acc.size()), info)?;
    if half {
        plan.steps.push(finish(case, info, to, results, acc, Param::F32(1.0), "v")?);
    }
    Ok(plan)
}

/// As `sum`, integers in f64, into scratch; then `finish(sums, out, n, count)`.
pub fn mean(_: &Kernel, case: &Case, info: &DeviceInfo) -> Result<Plan> {
    let acc = if case.dtype.is_float() { case.dtype.compute() } else { DType::F64 };
    if acc == DType::F64 && !info.has(Feature::Fp64) {
        return Err(Error::new(Code::FeatureUnsupported, "the mean of integers is f64, which the device lacks"));
    }
    let list = passes(&blocks(case)?);
    let results = list.last().map_or(0, Pass::results);
    if results == 0 {
        return Ok(Plan::default());
    }
    let mut plan = Plan { steps: Vec::new(), scratch: vec![waiting(results, acc, info)?] };
    let cost = reduce_cost(case, acc.size());
    sum_into(&mut plan, case, &list, Arg::Operand(0), case.dtype, acc, Arg::Scratch(0), cost, info)?;
    // WGSL leaves 0 / 0 open, but hands NaN on from here on every driver.
    let count = list.iter().map(|p| p.n).product::<u64>() as f64;
    let count = Param::scalar(acc, if count == 0.0 { f64::NAN } else { count });
    plan.steps.push(finish(case, info, Arg::Scratch(0), results, acc, count, "v / f.count")?);
    Ok(plan)
}

/// `dot_part(x, b, products, n, segment, parts)`, then sums of the parts.
pub fn dot(_: &Kernel, case: &Case, info: &DeviceInfo) -> Result<Plan> {
    let (n, acc) = (case.dim("n"), sum_type(case, info)?);
    fit(info, &[(n, case.dtype)])?;
    let half = half_text(case.dtype).is_some();
    let segment = row(Pass::of(1, n, 1), info);
    let parts = n.div_ceil(segment).max(1);
    let mut plan = Plan { steps: Vec::new(), scratch: vec![waiting(parts, acc, info)?, waiting(1, acc, info)?] };
    let done = if half { Arg::Scratch(1) } else { Arg::Operand(2) };
    let target = if parts == 1 { done } else { Arg::Scratch(0) };
    plan.steps.push(Step {
        args: vec![Arg::Operand(0), Arg::Operand(1), target],
        writes: vec![false, false, true],
        params: sizes(&[n, segment, parts]),
        cost: dot_cost(case, acc.size()),
        ..sum_step(case, "dot_part", spread_groups(parts, info)?, case.dtype, acc, "v")
    });
    if parts > 1 {
        let rest = Pass { joins: true, ..Pass::of(1, parts, 1) };
        sum_into(&mut plan, case, &[rest], target, acc, acc, done, Cost::default(), info)?;
    }
    if half {
        let mut last = finish(case, info, done, 1, acc, Param::F32(1.0), "v")?;
        last.args = vec![done, Arg::Operand(2)];
        plan.steps.push(last);
    }
    Ok(plan)
}

/// `squares_part(x, y, n, segment, parts, low, high, grow, shrink)`, sums of the parts, then
/// `root(sums, out, shrink, unshrink, ungrow, up, mix, down)`.
pub fn nrm2(_: &Kernel, case: &Case, info: &DeviceInfo) -> Result<Plan> {
    let (n, acc) = (case.dim("n"), case.dtype.compute());
    fit(info, &[(n, case.dtype)])?;
    let (ranges, root) = plan_c_reduce::range_params(acc);
    let segment = row(Pass::of(1, n, 1), info);
    let parts = n.div_ceil(segment).max(1);
    let mut plan = Plan { steps: Vec::new(), scratch: vec![3 * parts * acc.size()] };
    let mut params = sizes(&[n, segment, parts]);
    params.extend(ranges);
    plan.steps.push(Step {
        args: vec![Arg::Operand(0), Arg::Scratch(0)],
        writes: vec![false, true],
        params,
        cost: nrm2_cost(case),
        ..sum_step(case, "squares_part", spread_groups(parts, info)?, case.dtype, acc, "v")
    });
    let mut sums = Arg::Scratch(0);
    if parts > 1 {
        sums = Arg::Scratch(1);
        plan.scratch.push(3 * acc.size());
        let rest = Pass { joins: true, outer: 3, ..Pass::of(1, parts, 1) };
        sum_into(&mut plan, case, &[rest], Arg::Scratch(0), acc, acc, sums, Cost::default(), info)?;
    }
    plan.steps.push(Step {
        args: vec![sums, Arg::Operand(1)],
        writes: vec![false, true],
        params: root.to_vec(),
        ..sum_step(case, "root", [1; 3], acc, acc, "v")
    });
    Ok(plan)
}

/// A step of extreme.wgsl: `first` reads elements, others keys; `bits` stores elements, else keys.
fn key_step(case: &Case, entry: &'static str, groups: [u64; 3], order: Order, first: bool, bits: bool) -> Step {
    let (k, suffix) = if case.dtype.size() == 8 { ("u64", "lu") } else { ("u32", "u") };
    let half = case.dtype.size() == 2;
    let loads = match (first, half) {
        (true, true) => "return key((x[i / 2u] >> ((i & 1u) * 16u)) & 0xffffu);",
        (true, false) => "return key(x[i]);",
        (false, _) => "return x[i];",
    };
    let loads = format!("fn load(i: u32) -> {k} {{\n    {loads}\n}}\n");
    let number = |v: u64| format!("0x{v:x}{suffix}");
    let [all, sign, mask, lift] = [order.all, order.sign, order.mask, order.lift].map(number);
    let [flip, magnitude, infinite] = [order.flip, order.magnitude, order.infinity].map(number);
    let place = |sizes: &str| match first {
        true => "i".to_string(),
        false => format!("i * {sizes}.behind + before[index]"),
    };
    let (row, column) = (place("r4"), place("c4"));
    let defines = [
        ("X", k),
        ("K", k),
        ("LOADS", loads.as_str()),
        ("STORED", if bits { "bits(k)" } else { "k" }),
        ("ROW_PLACE", row.as_str()),
        ("COLUMN_PLACE", column.as_str()),
        ("ALL", all.as_str()),
        ("SIGN", sign.as_str()),
        ("MASK", mask.as_str()),
        ("LIFT", lift.as_str()),
        ("FLIP", flip.as_str()),
        ("MAGNITUDE", magnitude.as_str()),
        ("INFINITE", infinite.as_str()),
        ("ONE_ZERO", if order.one_zero { "true" } else { "false" }),
    ];
    step(case, entry, groups, &defines)
}

/// Extremes, or their places. `extreme_rows(x, y, outer, n, segment, parts, behind)`, `extreme_columns(x, y, outer, n, inner,
/// ..)`; `place_rows(x, before, keys, places, ..)`, `place_columns`, of which the first launch gets x for `before` and does
/// not read it; `pack(wide, packed, n)` for f16 and bf16.
fn extreme(case: &Case, info: &DeviceInfo, minimum: bool, place: bool) -> Result<Plan> {
    if case.dtype.size() == 8 && !info.has(Feature::Int64) {
        let why = format!("{} is compared as an integer of 64 bits, which the device lacks", case.dtype);
        return Err(Error::new(Code::FeatureUnsupported, why));
    }
    let list = passes(&blocks(case)?);
    let results = list.last().map_or(0, Pass::results);
    if results == 0 {
        return Ok(Plan::default());
    }
    let order = Order::of(case.dtype, minimum, place);
    let key = if case.dtype.size() == 8 { DType::U64 } else { DType::U32 };
    let packs = !place && case.dtype.size() == 2;
    let mut plan = Plan::default();
    let (mut from, mut before) = (Arg::Operand(0), Arg::Operand(0));
    for (i, pass) in list.iter().enumerate() {
        let (mut pass, mut behind) = (*pass, pass.behind);
        loop {
            fit(info, &[(product(&[pass.outer, pass.n, pass.inner]), case.dtype)])?;
            let c = cut(pass, info)?;
            fit(info, &[(c.results, key)])?;
            let (first, last) = (plan.steps.is_empty(), i + 1 == list.len() && c.parts == 1);
            let mut scratch = |dtype: DType| -> Result<Arg> {
                plan.scratch.push(waiting(c.results, dtype, info)?);
                Ok(Arg::Scratch(plan.scratch.len() - 1))
            };
            let keys = if last && !place && !packs { Arg::Operand(1) } else { scratch(key)? };
            let places = if last || !place { Arg::Operand(1) } else { scratch(DType::U32)? };
            let entry = match (place, c.rows) {
                (false, true) => "extreme_rows",
                (false, false) => "extreme_columns",
                (true, true) => "place_rows",
                (true, false) => "place_columns",
            };
            let mut numbers = c.sizes;
            numbers.push(behind);
            let (args, writes) = match place {
                false => (vec![from, keys], vec![false, true]),
                true => (vec![from, before, keys, places], vec![false, false, true, true]),
            };
            plan.steps.push(Step {
                args,
                writes,
                params: sizes(&numbers),
                cost: if first {
                    reduce_cost(case, if place { 4 } else { case.dtype.size() })
                } else {
                    Cost::default()
                },
                ..key_step(case, entry, c.groups, order, first, last && !place)
            });
            (from, before) = (keys, places);
            if c.parts == 1 {
                break;
            }
            // The parts' places are those along the whole axis already.
            (pass.n, pass.joins, behind) = (c.parts, true, 0);
        }
    }
    if packs {
        plan.steps.push(Step {
            args: vec![from, Arg::Operand(1)],
            writes: vec![false, true],
            params: sizes(&[results]),
            ..key_step(case, "pack", spread_groups(results.div_ceil(2).div_ceil(GROUP), info)?, order, false, false)
        });
    }
    Ok(plan)
}

/// Maxima.
pub fn max(_: &Kernel, case: &Case, info: &DeviceInfo) -> Result<Plan> {
    extreme(case, info, false, false)
}

/// Minima.
pub fn min(_: &Kernel, case: &Case, info: &DeviceInfo) -> Result<Plan> {
    extreme(case, info, true, false)
}

/// Places of maxima.
pub fn argmax(_: &Kernel, case: &Case, info: &DeviceInfo) -> Result<Plan> {
    extreme(case, info, false, true)
}

/// Places of minima.
pub fn argmin(_: &Kernel, case: &Case, info: &DeviceInfo) -> Result<Plan> {
    extreme(case, info, true, true)
}
