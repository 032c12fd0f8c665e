//! References: results that were proved right once, so that every later result can be compared with them in full.
//!
//! A reference is the device's own result, judged element by element against the op's oracle and then repeated: equal
//! bits make later comparisons bit for bit. Not here: limits (`op::tolerance`).

use std::collections::HashMap;
use std::time::Instant;

use crate::base::{Attrs, Case, DType, Exact, Fill, HostTensor, Result};
use crate::engine::run::{Prepared, Runner};
use crate::kernel::{self, Action, Body};
use crate::op::expected::Expected;
use crate::op::{self, OpDesc, Role, Tier, case};

use super::Ctx;

/// A case with its inputs and proved results.
pub struct Golden {
    /// The op.
    pub op: &'static OpDesc,
    /// The case.
    pub case: Case,
    /// The case's name.
    pub name: String,
    pub(super) inputs: Vec<HostTensor>,
    pub(super) want: Vec<HostTensor>,
    /// The oracle's answers, kept only where the device's results differ from run to run.
    loose: Option<Expected>,
    /// Bytes of all results.
    pub bytes: u64,
}

impl std::fmt::Debug for Golden {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Golden({})", self.name)
    }
}

/// Cases for a device and what it cannot do, with reasons.
#[derive(Debug, Default)]
pub struct Candidates {
    /// Cases, the first of every op and dtype before the second of any.
    pub cases: Vec<(&'static OpDesc, Case)>,
    /// Left out: what, and why.
    pub left_out: Vec<(String, String)>,
}

/// The cases of the whole table that fit the device: the smoke tier and sizes of the sweep, at most `max_bytes` each.
pub fn candidates(runner: &Runner, max_bytes: u64) -> Candidates {
    let info = runner.device().info();
    let mut ranked: Vec<(usize, &'static OpDesc, Case)> = Vec::new();
    let mut left_out = Vec::new();
    for op in op::all() {
        if op.kernels.iter().any(|k| matches!(k.body, Body::Action(Action::Build))) {
            // Its programs never repeat: what drivers keep of each would look like a leak.
            left_out.push((op.name.into(), "builds ever new programs, which drivers keep".into()));
            continue;
        }
        for dtype in op.dtypes {
            let mut cases = specs(op, *dtype);
            cases.retain(|c| op.total_bytes(c).is_some_and(|b| b <= max_bytes) && output_bytes(op, c) > 0);
            let before = cases.len();
            let mut reason = None;
            cases.retain(|c| match kernel::choose(op.kernels, c, info, None) {
                Ok(_) => true,
                Err(e) => {
                    reason.get_or_insert(e.detail().to_string());
                    false
                }
            });
            if let (true, Some(why)) = (cases.is_empty(), &reason) {
                left_out.push((format!("{} {dtype}", op.name), why.clone()));
            } else if let Some(why) = &reason {
                let some = format!("{} {dtype} ({} of {before} cases)", op.name, before - cases.len());
                left_out.push((some, why.clone()));
            }
            ranked.extend(cases.into_iter().enumerate().map(|(rank, c)| (rank, op, c)));
        }
    }
    ranked.sort_by_key(|(rank, ..)| *rank);
    Candidates { cases: ranked.into_iter().map(|(_, op, c)| (op, c)).collect(), left_out }
}

/// Cases of one op and dtype from small to large, the smoke tier's first.
fn specs(op: &'static OpDesc, dtype: DType) -> Vec<Case> {
    let mut cases: Vec<Case> =
        (op.cases)(Tier::Smoke).into_iter().filter_map(|s| op.case(dtype, &s.dims, s.attrs, s.fill).ok()).collect();
    let (low, high) = op.unit.default_range();
    for step in [2, 8, 32, 128] {
        let size = low.saturating_mul(step).min(high);
        for family in op.families {
            cases.extend(op.case(dtype, &(family.sweep)(size), Attrs::new(), Fill::Uniform));
        }
    }
    cases.sort_by_key(|c| (op.work)(c));
    cases.dedup_by_key(|c| c.to_string());
    cases
}

fn output_bytes(op: &OpDesc, case: &Case) -> u64 {
    let Ok(shapes) = (op.shapes)(case) else { return 0 };
    shapes
        .iter()
        .enumerate()
        .filter(|(i, _)| op.operands[*i].role != Role::In)
        .map(|(i, s)| s.iter().product::<u64>() * op.operand_dtype(i, case).size())
        .sum()
}

/// Makes references in order until `budget` seconds are gone; the first one whatever it takes. Cases whose oracle would take
/// longer than what is left are passed over (predicted from smaller cases of the op) and counted, as are ops and dtypes that
/// nothing is left for: a driver that has compiled nothing yet may take minutes for all kernels. Findings go to the meter.
pub fn build(
    ctx: &Ctx<'_>,
    runner: &Runner,
    candidates: Candidates,
    budget: f64,
    max_total: u64,
) -> Result<Vec<Golden>> {
    let start = Instant::now();
    let mut pace: HashMap<(&str, DType), f64> = HashMap::new();
    let (mut late, mut full, mut total) = (0u64, 0u64, 0u64);
    let mut unseen: Vec<String> = Vec::new();
    let mut goldens = Vec::new();
    for line in by_reason(candidates.left_out) {
        ctx.meter.not_tested(line);
    }
    let mut lease = runner.lease()?;
    for (op, case) in candidates.cases {
        if ctx.meter.stop.raised() {
            break;
        }
        let work = (op.work)(&case) as f64;
        let predicted = pace.get(&(op.name, case.dtype)).map_or(0.0, |p| p * work);
        let left = budget - start.elapsed().as_secs_f64();
        // The first case of an op and dtype is small by construction, but its kernel may have to be compiled.
        if !pace.contains_key(&(op.name, case.dtype)) && left <= 0.0 && !pace.is_empty() {
            let name = format!("{} {}", op.name, case.dtype);
            if !unseen.contains(&name) {
                unseen.push(name);
            }
            continue;
        }
        if pace.contains_key(&(op.name, case.dtype)) && predicted > left {
            late += 1;
            continue;
        }
        let bytes = op.total_bytes(&case).unwrap_or(u64::MAX);
        if total.saturating_add(bytes) > max_total {
            full += 1;
            continue;
        }
        ctx.meter.doing(0, &format!("reference of {case}"));
        let from = Instant::now();
        match make(ctx, runner, lease.queue()?, op, &case) {
            Ok(Some(golden)) => {
                total += bytes;
                goldens.push(golden);
            }
            Ok(None) => {}
            Err(e) => {
                lease.discard();
                if !ctx.meter.failed(&e) {
                    return Err(e);
                }
                drop(lease);
                lease = runner.lease()?;
            }
        }
        // Overhead of small cases makes later predictions pessimistic; the last and largest case counts.
        pace.insert((op.name, case.dtype), from.elapsed().as_secs_f64() / work.max(1.0));
    }
    if late > 0 {
        ctx.meter.not_tested(format!("{late} larger cases: no time for their references; a longer run includes them"));
    }
    if !unseen.is_empty() {
        ctx.meter.not_tested(format!(
            "{} ops with a dtype: no time to compile their kernels and to make references; a longer run, or one after it, \
             includes them: {}",
            unseen.len(),
            first_of(&unseen)
        ));
    }
    if full > 0 {
        ctx.meter.not_tested(format!("{full} larger cases: their references would exceed the memory set aside"));
    }
    Ok(goldens)
}

/// A line per reason: a device without a number type lacks it in every op. The variants of a kernel that all say the same give
/// one reason.
fn by_reason(left_out: Vec<(String, String)>) -> Vec<String> {
    let mut reasons: Vec<(String, Vec<String>)> = Vec::new();
    for (what, why) in left_out {
        let inner = why.split_once('(').and_then(|(_, rest)| rest.strip_suffix(')')).filter(|r| !r.contains('('));
        let why = inner.unwrap_or(&why);
        match reasons.iter_mut().find(|(reason, _)| reason == why) {
            Some((_, all)) => all.push(what),
            None => reasons.push((why.to_string(), vec![what])),
        }
    }
    let line = |(why, all): (String, Vec<String>)| match &all[..] {
        [one] => format!("{one}: {why}"),
        _ => format!("{} ops with a dtype: {why}: {}", all.len(), first_of(&all)),
    };
    reasons.into_iter().map(line).collect()
}

/// The first few, and how many more there are.
fn first_of(all: &[String]) -> String {
    let few = all[..all.len().min(5)].join(", ");
    if all.len() > 5 { format!("{few} and {} more", all.len() - 5) } else { few }
}

/// One reference. `None` if the result is wrong (the meter knows) or no limit is published for it.
fn make(
    ctx: &Ctx<'_>,
    runner: &Runner,
    q: &mut dyn crate::device::Queue,
    op: &'static OpDesc,
    case: &Case,
) -> Result<Option<Golden>> {
    let inputs = case::inputs(op, case)?;
    let prepared = runner.prepare(op, case, None)?;
    let mut run = || {
        prepared.poison(q)?;
        prepared.call(q, &inputs, ctx.deadline())
    };
    let first: Vec<HostTensor> = run()?;
    let Some(expected) = Expected::new(op, case, prepared.lang, &inputs) else {
        ctx.meter
            .not_tested(format!("{case}: no published limit for {:?}, so no result can be trusted", prepared.lang));
        return Ok(None);
    };
    if let Some(wrong) = expected.first_wrong(&inputs, &first) {
        ctx.meter.mismatch(format!("{case}: {wrong}"));
        return Ok(None);
    }
    let (first, differ) = match steady(first, run)? {
        Steady::Always(first) => (first, false),
        Steady::Never(first) => {
            ctx.meter.count("nondeterministic_cases", 1);
            (first, true)
        }
        Steady::Odd(what) => {
            ctx.meter.mismatch(format!("{case}: one of five equal runs gave different bits: {what}"));
            return Ok(None);
        }
    };
    let bytes = first.iter().map(|t| t.bytes().len() as u64).sum();
    Ok(Some(Golden {
        op,
        case: case.clone(),
        name: case.to_string(),
        inputs,
        want: first,
        loose: differ.then_some(expected),
        bytes,
    }))
}

/// What equal runs gave.
pub(super) enum Steady {
    /// Equal bits.
    Always(Vec<HostTensor>),
    /// Different bits more than once; the first result.
    Never(Vec<HostTensor>),
    /// Different bits in one of five, in words: a fault, whichever of them it is; the first one, too, may be wrong within its
    /// bound.
    Odd(String),
}

/// Runs twice more, and twice again unless all are equal.
pub(super) fn steady(first: Vec<HostTensor>, mut run: impl FnMut() -> Result<Vec<HostTensor>>) -> Result<Steady> {
    let mut runs = vec![first];
    for extra in 0..4 {
        if extra >= 2 && runs.iter().all(|r| *r == runs[0]) {
            break;
        }
        runs.push(run()?);
    }
    let alike = |r: &Vec<HostTensor>| runs.iter().filter(|other| *other == r).count();
    let usual = runs.iter().find(|r| runs.len() == 5 && alike(r) == 4);
    let odd = runs.iter().find(|r| alike(r) == 1);
    if let (Some(usual), Some(odd)) = (usual, odd) {
        let what = usual.iter().zip(odd).find_map(|(usual, odd)| first_difference(usual, odd)).unwrap_or_default();
        return Ok(Steady::Odd(what));
    }
    let differ = runs.len() == 5;
    let first = runs.swap_remove(0);
    Ok(if differ { Steady::Never(first) } else { Steady::Always(first) })
}

impl Golden {
    /// One whole call on operands made before: poison, upload, launch, download, compare all of it. `Some` says which
    /// element is wrong.
    pub fn repeat(
        &self,
        prepared: &Prepared,
        q: &mut dyn crate::device::Queue,
        ctx: &Ctx<'_>,
    ) -> Result<Option<String>> {
        prepared.poison(q)?;
        Ok(self.wrong(&prepared.call(q, &self.inputs, ctx.deadline())?))
    }

    /// Compares all of a result; `Some` says which element is wrong.
    pub(super) fn wrong(&self, got: &[HostTensor]) -> Option<String> {
        wrong(&self.want, got, self.loose.as_ref().map(|e| (e, &self.inputs[..])))
            .map(|w| format!("{}: {w}", self.name))
    }
}

/// What is wrong with results, all elements of all of them: other bits than the verified ones have, or, where `loose` holds
/// the oracle's answers and the data because no two runs have the same bits, an element beyond its bound.
pub fn wrong(want: &[HostTensor], got: &[HostTensor], loose: Option<(&Expected, &[HostTensor])>) -> Option<String> {
    if got == want {
        return None;
    }
    if got.len() != want.len() {
        return Some("another number of results".into());
    }
    if let Some((expected, inputs)) = loose {
        return expected.first_wrong(inputs, got);
    }
    let found = want.iter().zip(got).find_map(|(w, g)| first_difference(w, g));
    Some(found.unwrap_or_else(|| "another shape of a result".into()))
}

/// The first element whose bits differ.
pub(super) fn first_difference(want: &HostTensor, got: &HostTensor) -> Option<String> {
    let size = want.dtype.size() as usize;
    let mut pairs = want.bytes().chunks(size).zip(got.bytes().chunks(size));
    let at = pairs.position(|(w, g)| w != g)?;
    let bits = want.bytes()[at * size..].iter().zip(&got.bytes()[at * size..]).take(size);
    let flipped: u32 = bits.map(|(w, g)| (w ^ g).count_ones()).sum();
    let value = |t: &HostTensor| Exact::read(t, at as u64).to_f64();
    Some(format!("element {at} is {:e}, the verified result is {:e} ({flipped} bits differ)", value(got), value(want)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::cpu::{CpuDevice, Pin};
    use crate::jobs::stress::scenario::testing::on;
    use crate::kernel::Isa;
    use std::sync::Arc;

    /// Names of the references that so many seconds are enough for, and what was said.
    fn made(budget: f64) -> (Vec<String>, String) {
        let device: Arc<dyn crate::device::Device> = Arc::new(CpuDevice::new(1, Isa::detect(), Pin::Free).unwrap());
        let wanted = |(op, _): &(&'static OpDesc, Case)| matches!(op.name, "add" | "relu" | "sum");
        let (goldens, said) = on(device, |ctx| {
            let runner = ctx.runner();
            let mut few = candidates(&runner, 1 << 12);
            few.cases.retain(wanted);
            few.left_out.clear();
            build(ctx, &runner, few, budget, 1 << 30).unwrap()
        });
        (goldens.iter().map(|g| format!("{} {}", g.op.name, g.case.dtype)).collect(), said)
    }

    #[test]
    fn what_is_left_out_for_one_reason_is_one_line() {
        let short = "flat (no i8: WGSL stores no integers below 32 bits)";
        let pairs = |all: &[(&str, &str)]| all.iter().map(|(a, b)| (a.to_string(), b.to_string())).collect();
        let lines = by_reason(pairs(&[
            ("compile", "builds ever new programs"),
            ("add i8", short),
            ("pad f64", "flat (no f64); rows (no f64)"),
            ("gemm i8", &short.replace("flat", "tiled")),
        ]));
        assert_eq!(
            lines,
            [
                "compile: builds ever new programs",
                "2 ops with a dtype: no i8: WGSL stores no integers below 32 bits: add i8, gemm i8",
                "pad f64: flat (no f64); rows (no f64)",
            ]
        );
        let seven: Vec<_> = (0..7).map(|i| (format!("op{i} i8"), short.to_string())).collect();
        assert!(by_reason(seven)[0].ends_with("op4 i8 and 2 more"));
    }

    #[test]
    fn preparation_ends_with_its_time_and_says_what_it_left_out() {
        let (names, said) = made(0.0);
        assert_eq!(names.len(), 1, "the first one is made whatever it takes: {names:?}");
        assert!(said.contains("no time to compile their kernels") && said.contains(" more"), "{said}");
        let (names, said) = made(600.0);
        assert!(names.len() > 30 && !said.contains("no time"), "{} {said}", names.len());
    }
}
