//! Plans of `kernels/reduce.c` and `kernels/extreme.c`: sums, means, dot products, norms; extremes and their places.
//!
//! Each set of axes is taken in passes over [outer, n, inner] ([`super::plan_reduce::passes`]), each pass in launches: one for
//! the parts of a long axis, others that join the parts. Intermediate results lie in scratch in the type of the arithmetic.

use crate::base::{Case, Cost, DType, DeviceInfo, Result};

use super::plan_c::{self, GROUP, Share, column_share, row_share};
use super::plan_native::reduce_cost;
use super::plan_reduce::{Order, Pass, ROW, blocks, passes, row_segment, segment};
use super::{Arg, Kernel, Param, Plan, Step, spread_groups};

/// Elements of one row that one group of a processor takes before another launch joins the groups' results.
const SEGMENT: u64 = 65_536;
/// Fewer elements than this of one column are no work-item's while there are fewer than `BUSY` items, or on a processor so
/// many for each of its cores: each part is written, and read by another launch.
const COLUMN: u64 = 64;
const BUSY: u64 = 1 << 16;
const BUSY_PER_CORE: u64 = 16;
/// On a processor, a group that searches for a place does so where it meets a number larger than all before: often early in
/// its part of a row, seldom later. So parts are as long as they can be with this many for each of its cores.
const PARTS_PER_CORE: u64 = 8;

/// Elements of one row that one group sums.
fn summed(p: Pass, info: &DeviceInfo) -> u64 {
    if info.is_software() { SEGMENT } else { row_segment(p, info) }
}

/// One launch of a pass: entry (of rows or columns), groups, sizes, and how many parts of each axis stay.
struct Cut {
    rows: bool,
    share: Share,
    groups: [u64; 3],
    sizes: Vec<Param>,
    parts: u64,
    results: u64,
}

/// Longest part of a row in which an extreme is searched.
fn searched(p: Pass, info: &DeviceInfo) -> u64 {
    if !info.is_software() {
        return row_segment(p, info);
    }
    segment(p.n, p.outer, u64::from(info.compute_units.max(1)) * PARTS_PER_CORE, SEGMENT, u64::MAX)
}

/// Parts of rows have `longest` elements, those of columns at most as many.
fn cut(p: Pass, info: &DeviceInfo, longest: u64) -> Result<Cut> {
    let rows = p.inner == 1;
    let share = match (rows, p.joins && !info.is_software()) {
        // Of one size, however many parts: the same text for small operands and large ones.
        (true, true) => Share { group: GROUP, wide: 1 },
        (true, false) => row_share(p.n, info),
        (false, _) => column_share(p.inner, info),
    };
    let strips = p.inner.div_ceil(u64::from(share.wide));
    let busy = if share.group == 1 { BUSY_PER_CORE * u64::from(info.compute_units.max(1)) } else { BUSY };
    let length = if rows { longest } else { segment(p.n, p.outer.saturating_mul(strips), busy, COLUMN, longest) };
    let parts = p.n.div_ceil(length).max(1);
    let results = p.results().saturating_mul(parts);
    let items = p.outer.saturating_mul(parts).saturating_mul(strips);
    let groups = if rows { results } else { items.div_ceil(u64::from(share.group)) };
    let sizes = if rows { vec![p.outer, p.n, length, parts] } else { vec![p.outer, p.n, p.inner, length, parts] };
    let sizes = sizes.into_iter().map(Param::U64).collect();
    Ok(Cut { rows, share, groups: spread_groups(groups, info)?, sizes, parts, results })
}

/// The arithmetic of sums of a dtype: signed overflow is undefined in C, unsigned wraps with the same bits.
fn sum_types(dtype: DType) -> (DType, DType) {
    match dtype {
        d if d.is_float() => (d.compute(), d),
        d if d.is_signed() => (DType::U64, DType::I64),
        _ => (DType::U64, DType::U64),
    }
}

/// A step of reduce.c.
fn step(dtype: DType, entry: &'static str, acc: DType, out: DType, share: Share) -> Step {
    let mut s = plan_c::step(dtype, entry, acc, out, share.group);
    // A GPU's work-item that waits for one number before it asks for the next leaves the memory idle. Of squares some items of a
    // group may go through their numbers again, range by range: those must be the same numbers, a group's width apart.
    s.defines.extend(share.defines(if entry == "squares_part" { 1 } else { 4 }));
    s.defines.push(("ROOT".into(), if acc.is_float() { "sqrt" } else { "" }.into()));
    s
}

/// Appends launches that sum `from` (of dtype `dtype`) over the passes into `to` (of dtype `out`).
#[allow(clippy::too_many_arguments, reason = "source, target and arithmetic of one chain of launches")]
fn sum_into(
    plan: &mut Plan,
    list: &[Pass],
    from: Arg,
    dtype: DType,
    acc: DType,
    to: Arg,
    out: DType,
    cost: Cost,
    info: &DeviceInfo,
) -> Result<()> {
    let (mut from, mut dtype) = (from, dtype);
    let mut cost = cost;
    for (i, pass) in list.iter().enumerate() {
        let mut pass = *pass;
        while pass.results() > 0 {
            let c = cut(pass, info, summed(pass, info))?;
            let last = i + 1 == list.len() && c.parts == 1;
            let (target, stored) = if last { (to, out) } else { (Arg::Scratch(plan.scratch.len()), acc) };
            if !last {
                plan.scratch.push(c.results * acc.size());
            }
            plan.steps.push(Step {
                groups: c.groups,
                args: vec![from, target],
                writes: vec![false, true],
                params: c.sizes,
                // What follows the first launch is small: it carries the work.
                cost: std::mem::take(&mut cost),
                ..step(dtype, if c.rows { "sum_rows" } else { "sum_columns" }, acc, stored, c.share)
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

/// `sum_rows(x, y, outer, n, segment, parts)`: group (row, part) sums x[row, part*segment ..] in a tree and stores
/// y[row, part].
/// `sum_columns(x, y, outer, n, inner, segment, parts)`: one work-item per (outer, part, inner), stores
/// y[outer, part, inner].
pub fn sum(_: &Kernel, case: &Case, info: &DeviceInfo) -> Result<Plan> {
    let (acc, out) = sum_types(case.dtype);
    sum_of(case, &passes(&blocks(case)?), acc, out, reduce_cost(case, out.size()), info)
}

/// Launches that sum operand 0 over the passes into operand 1, in `acc`.
pub(super) fn sum_of(
    case: &Case,
    list: &[Pass],
    acc: DType,
    out: DType,
    cost: Cost,
    info: &DeviceInfo,
) -> Result<Plan> {
    let mut plan = Plan::default();
    sum_into(&mut plan, list, Arg::Operand(0), case.dtype, acc, Arg::Operand(1), out, cost, info)?;
    Ok(plan)
}

/// As `sum`, integers in f64, into scratch; then `divide(sums, y, n, count)`.
pub fn mean(_: &Kernel, case: &Case, info: &DeviceInfo) -> Result<Plan> {
    let list = passes(&blocks(case)?);
    let results = list.last().map_or(0, Pass::results);
    if results == 0 {
        return Ok(Plan::default());
    }
    let (acc, out) = if case.dtype.is_float() { (case.dtype.compute(), case.dtype) } else { (DType::F64, DType::F64) };
    let mut plan = Plan { steps: Vec::new(), scratch: vec![results * acc.size()] };
    let cost = reduce_cost(case, out.size());
    sum_into(&mut plan, &list, Arg::Operand(0), case.dtype, acc, Arg::Scratch(0), acc, cost, info)?;
    let count: u64 = list.iter().map(|p| p.n).product();
    plan.steps.push(Step {
        groups: spread_groups(results.div_ceil(u64::from(GROUP)), info)?,
        args: vec![Arg::Scratch(0), Arg::Operand(1)],
        writes: vec![false, true],
        params: vec![Param::U64(results), Param::scalar(acc, count as f64)],
        ..step(acc, "divide", acc, out, Share { group: GROUP, wide: 1 })
    });
    Ok(plan)
}

/// `dot_part(a, b, out, n, segment, parts)`, then sums of the parts.
pub fn dot(_: &Kernel, case: &Case, info: &DeviceInfo) -> Result<Plan> {
    let n = case.dim("n");
    let (acc, out) = sum_types(case.dtype);
    let segment = summed(Pass::of(1, n, 1), info);
    let parts = n.div_ceil(segment).max(1);
    let mut plan = Plan::default();
    let (target, stored) = if parts == 1 { (Arg::Operand(2), out) } else { (Arg::Scratch(0), acc) };
    plan.steps.push(Step {
        groups: spread_groups(parts, info)?,
        args: vec![Arg::Operand(0), Arg::Operand(1), target],
        writes: vec![false, false, true],
        params: [n, segment, parts].map(Param::U64).to_vec(),
        cost: super::plan_native::dot_cost(case, out.size()),
        ..step(case.dtype, "dot_part", acc, stored, row_share(n, info))
    });
    if parts > 1 {
        plan.scratch.push(parts * acc.size());
        let rest = Pass { joins: true, ..Pass::of(1, parts, 1) };
        sum_into(&mut plan, &[rest], target, acc, acc, Arg::Operand(2), out, Cost::default(), info)?;
    }
    Ok(plan)
}

/// Exponents of two for sums of squares in three ranges: low, high, grow, shrink, up. Squares of numbers between low and
/// high neither vanish nor overflow in sums of 2^40 terms; neither do those of low ones grown and of high ones shrunk.
fn ranges(acc: DType) -> [i32; 5] {
    if acc == DType::F64 { [-511, 486, 563, -538, 400] } else { [-63, 40, 86, -76, 50] }
}

/// Scalars of `squares_part`: low, high, grow, shrink. Of `root`: shrink, 1/shrink, 1/grow, up, up/grow, 1/up.
pub(super) fn range_params(acc: DType) -> ([Param; 4], [Param; 6]) {
    let [low, high, grow, shrink, up] = ranges(acc);
    let power = |e: i32| Param::scalar(acc, 2f64.powi(e));
    (
        [power(low), power(high), power(grow), power(shrink)],
        [power(shrink), power(-shrink), power(-grow), power(up), power(up - grow), power(-up)],
    )
}

/// The sum of squares beside which those of a segment of low numbers, which were added as they are, do not count: 2^-8 of a
/// rounding of it.
fn enough(acc: DType) -> Param {
    let digits = if acc == DType::F64 { 53 } else { 24 };
    let longest = SEGMENT.max(ROW.1).ilog2() as i32;
    Param::scalar(acc, 2f64.powi(2 * ranges(acc)[0] + longest + digits + 8))
}

/// `squares_part(x, out, n, segment, parts, low, high, grow, shrink, enough)`, sums of the parts, then
/// `root(sums, y, shrink, unshrink, ungrow, up, mix, down)`.
pub fn nrm2(_: &Kernel, case: &Case, info: &DeviceInfo) -> Result<Plan> {
    let (n, acc) = (case.dim("n"), case.dtype.compute());
    let (squares, root) = range_params(acc);
    let segment = summed(Pass::of(1, n, 1), info);
    let parts = n.div_ceil(segment).max(1);
    let mut plan = Plan { steps: Vec::new(), scratch: vec![3 * parts * acc.size()] };
    let mut params = [n, segment, parts].map(Param::U64).to_vec();
    params.extend(squares);
    params.push(enough(acc));
    plan.steps.push(Step {
        groups: spread_groups(parts, info)?,
        args: vec![Arg::Operand(0), Arg::Scratch(0)],
        writes: vec![false, true],
        params,
        cost: super::plan_native::nrm2_cost(case),
        ..step(case.dtype, "squares_part", acc, acc, row_share(n, info))
    });
    let mut sums = Arg::Scratch(0);
    if parts > 1 {
        sums = Arg::Scratch(1);
        plan.scratch.push(3 * acc.size());
        let rest = Pass { joins: true, ..Pass::of(3, parts, 1) };
        sum_into(&mut plan, &[rest], Arg::Scratch(0), acc, acc, sums, acc, Cost::default(), info)?;
    }
    plan.steps.push(Step {
        args: vec![sums, Arg::Operand(1)],
        writes: vec![false, true],
        params: root.to_vec(),
        ..step(case.dtype, "root", acc, case.dtype, Share { group: 64, wide: 1 })
    });
    Ok(plan)
}

/// The unsigned type of a dtype's width, and of its comparisons.
fn key_types(dtype: DType) -> (DType, DType) {
    match dtype.size() {
        1 => (DType::U8, DType::U32),
        2 => (DType::U16, DType::U32),
        4 => (DType::U32, DType::U32),
        _ => (DType::U64, DType::U64),
    }
}

fn key_step(entry: &'static str, dtype: DType, order: Order, first: bool, last: bool, share: Share) -> Step {
    let (t, k) = key_types(dtype);
    let mut s = plan_c::step(t, entry, k, t, share.group);
    let number = |v: u64| format!("((K)0x{v:x})");
    let words = [
        ("K", k.name().to_string()),
        ("ALL", number(order.all)),
        ("SIGN", number(order.sign)),
        ("MASK", number(order.mask)),
        ("LIFT", number(order.lift)),
        ("FLIP", number(order.flip)),
        ("MAGNITUDE", number(order.magnitude)),
        ("INFINITE", number(order.infinity)),
        ("LOWEST", number(order.ends().0)),
        ("HIGHEST", number(order.ends().1)),
        ("ONE_ZERO", u8::from(order.one_zero).to_string()),
        ("FIRST", u8::from(first).to_string()),
        ("LAST", u8::from(last).to_string()),
        // Some steps of a group, or as much of a row as a processor finds the largest of before it joins its lanes.
        ("CHUNK", if share.group == 1 { 256 } else { 4 * share.group }.to_string()),
    ];
    s.defines.extend(words.into_iter().map(|(name, value)| (name.to_string(), value)));
    s.defines.extend(share.defines(1));
    s
}

/// `extreme_rows(x, y, outer, n, segment, parts)`, `extreme_columns(x, y, outer, n, inner, segment, parts)`.
fn extreme(case: &Case, info: &DeviceInfo, minimum: bool) -> Result<Plan> {
    let list = passes(&blocks(case)?);
    let order = Order::of(case.dtype, minimum, false);
    let mut plan = Plan::default();
    let mut from = Arg::Operand(0);
    for (i, pass) in list.iter().enumerate() {
        let mut pass = *pass;
        while pass.results() > 0 {
            let c = cut(pass, info, searched(pass, info))?;
            let (first, last) = (plan.steps.is_empty(), i + 1 == list.len() && c.parts == 1);
            let target = if last { Arg::Operand(1) } else { Arg::Scratch(plan.scratch.len()) };
            if !last {
                plan.scratch.push(c.results * case.dtype.size());
            }
            let entry = if c.rows { "extreme_rows" } else { "extreme_columns" };
            plan.steps.push(Step {
                groups: c.groups,
                args: vec![from, target],
                writes: vec![false, true],
                params: c.sizes,
                cost: if first { reduce_cost(case, case.dtype.size()) } else { Cost::default() },
                ..key_step(entry, case.dtype, order, first, last, c.share)
            });
            from = target;
            if c.parts == 1 {
                break;
            }
            (pass.n, pass.joins) = (c.parts, true);
        }
    }
    Ok(plan)
}

/// Maxima.
pub fn max(_: &Kernel, case: &Case, info: &DeviceInfo) -> Result<Plan> {
    extreme(case, info, false)
}

/// Minima.
pub fn min(_: &Kernel, case: &Case, info: &DeviceInfo) -> Result<Plan> {
    extreme(case, info, true)
}

/// `place_rows(x, from, keys, places, outer, n, segment, parts, behind)`, `place_columns(x, from, keys, places, outer, n,
/// inner, segment, parts, behind)`. The first launch gets x for `from`, which it does not read.
fn place(case: &Case, info: &DeviceInfo, minimum: bool) -> Result<Plan> {
    let list = passes(&blocks(case)?);
    let order = Order::of(case.dtype, minimum, true);
    let mut plan = Plan::default();
    let (mut keys, mut places) = (Arg::Operand(0), Arg::Operand(0));
    for (i, pass) in list.iter().enumerate() {
        let (mut pass, mut behind) = (*pass, pass.behind);
        while pass.results() > 0 {
            let c = cut(pass, info, searched(pass, info))?;
            let (first, last) = (plan.steps.is_empty(), i + 1 == list.len() && c.parts == 1);
            let to_keys = Arg::Scratch(plan.scratch.len());
            plan.scratch.push(c.results * case.dtype.size());
            let to_places = if last { Arg::Operand(1) } else { Arg::Scratch(plan.scratch.len()) };
            if !last {
                plan.scratch.push(c.results * 4);
            }
            let mut params = c.sizes;
            params.push(Param::U64(behind));
            plan.steps.push(Step {
                groups: c.groups,
                args: vec![keys, places, to_keys, to_places],
                writes: vec![false, false, true, true],
                params,
                cost: if first { reduce_cost(case, 4) } else { Cost::default() },
                ..key_step(
                    if c.rows { "place_rows" } else { "place_columns" },
                    case.dtype,
                    order,
                    first,
                    false,
                    c.share,
                )
            });
            (keys, places) = (to_keys, to_places);
            if c.parts == 1 {
                break;
            }
            // The parts' places are those along the whole axis already.
            (pass.n, pass.joins, behind) = (c.parts, true, 0);
        }
    }
    Ok(plan)
}

/// Places of maxima.
pub fn argmax(_: &Kernel, case: &Case, info: &DeviceInfo) -> Result<Plan> {
    place(case, info, false)
}

/// Places of minima.
pub fn argmin(_: &Kernel, case: &Case, info: &DeviceInfo) -> Result<Plan> {
    place(case, info, true)
}
