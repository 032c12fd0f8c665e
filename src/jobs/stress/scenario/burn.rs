//! Large matrix products: without a pause ([`run`]), or in turns with idle ([`pulse`]).
//!
//! Cards pass memory tests and corrupt products, and a wrong result may well be the same each time. So a reference is judged
//! by the oracle first (Freivalds' check of the whole and single elements where it is large, all of it where it is not),
//! every later result must equal it to the bit, and of every result some more elements are judged. Where equal runs give other
//! bits, every later result is judged as the reference was.

use std::time::{Duration, Instant};

use crate::base::rng::Philox;
use crate::base::{Attrs, Case, Code, DType, DeviceClass, Error, Exact, Fill, HostTensor, Lang, Result};
use crate::device::Queue;
use crate::engine::run::{Prepared, Runner};
use crate::op::expected::Expected;
use crate::op::tolerance::Bound;
use crate::op::{self, OpDesc, case};

use super::Ctx;
use super::reference::{Steady, first_difference, steady};

/// Edges of the matrices that are tried. No multiples of a tile: edges of tiles are work as well.
const EDGES: [u64; 7] = [60, 124, 250, 510, 1020, 2040, 4090];
/// Multiply-adds up to which the oracle computes all of a result.
const WHOLE: u64 = 4_000_000;
/// Elements judged of a reference and of a result whose bits are not fixed, and of every other result.
const SAMPLE: u64 = 48;
const MORE: u64 = 2;
/// Launches between two looks at a result.
const LAUNCHES: u32 = 4;
/// Seconds of one cycle's launches at most, as far as can be told before: that is long enough for a load without a pause, and a
/// phase has many cycles also where devices take each other's time.
const LONGEST: f64 = 0.25;
/// Seconds of a launch from which on its time is the device's and not that of whoever submits it.
const SHORTEST: f64 = 100e-6;
/// Times that the speed of a product is measured when its reference was made, in phases of so many seconds or more; and for so
/// long the card works before that.
const FIRST: u32 = 3;
const WITH_TIME: f64 = 20.0;
const RISE: Duration = Duration::from_millis(50);
/// Bytes of one load's operands at most, on the host.
const MAX_BYTES: u64 = 256 << 20;

/// One product with its proved result.
struct Load {
    op: &'static OpDesc,
    case: Case,
    prepared: Prepared,
    inputs: Vec<HostTensor>,
    want: Vec<HostTensor>,
    bounds: Vec<Bound>,
    /// What judges all of a result, kept where equal runs do not give equal bits.
    loose: Option<Judge>,
    bytes: u64,
    /// Seconds of one call.
    seconds: f64,
}

/// What judges all of a result.
enum Judge {
    /// The oracle's answers, each element.
    Exact(Expected),
    /// The op's own check of a whole result.
    Whole(op::Whole),
}

impl Judge {
    /// The one for a case of this size; `None` if nothing judges all of its results.
    fn of(op: &'static OpDesc, case: &Case, lang: Lang, inputs: &[HostTensor]) -> Option<Self> {
        match (op.work)(case) <= u128::from(WHOLE) {
            true => Expected::new(op, case, lang, inputs).map(Judge::Exact),
            false => op.whole.map(Judge::Whole),
        }
    }

    /// What is wrong with results, if anything.
    fn first_wrong(&self, case: &Case, inputs: &[HostTensor], got: &[HostTensor], bounds: &[Bound]) -> Option<String> {
        match self {
            Judge::Exact(expected) => expected.first_wrong(inputs, got),
            Judge::Whole(check) => check(case, inputs, got, bounds),
        }
    }
}

pub(super) fn run(ctx: &Ctx<'_>) -> Result<()> {
    let runner = ctx.runner();
    let loads = loads(ctx, &runner, 0.3 * ctx.seconds)?;
    if loads.is_empty() {
        return Ok(());
    }
    let rng = Philox::new(ctx.seed);
    ctx.repeat(&runner, |q, round| {
        let load = &loads[round as usize % loads.len()];
        ctx.meter.doing(0, &load.case.to_string());
        load.again(ctx, q, LAUNCHES, &rng, round)
    })?;
    ended(ctx, &runner, loads);
    Ok(())
}

/// Load and idle in turns. Clocks and voltages change at the edges; what is wrong then is wrong in the first result after one.
/// Idle time is part of what is tested, but no work.
pub(super) fn pulse(ctx: &Ctx<'_>) -> Result<()> {
    let runner = ctx.runner();
    let loads = loads(ctx, &runner, 0.2 * ctx.seconds)?;
    if loads.is_empty() {
        return Ok(());
    }
    let rng = Philox::new(ctx.seed);
    // From shorter than a governor's step up to long enough to cool down, and several of the longest in a phase.
    let longest = (ctx.seconds / 8.0).clamp(0.02, 15.0);
    let length = |stream, edge| 0.005 * (longest / 0.005).powf(rng.unit(stream, edge));
    let (mut edges, mut idle) = (0, 0.0);
    let mut until = Instant::now();
    ctx.repeat(&runner, |q, round| {
        if Instant::now() >= until {
            ctx.meter.doing(0, "idle");
            let rest = Instant::now();
            let long = length(0, edges);
            while rest.elapsed().as_secs_f64() < long && ctx.running() {
                std::thread::sleep(Duration::from_secs_f64((long - rest.elapsed().as_secs_f64()).clamp(0.0, 0.05)));
                ctx.meter.step(0);
            }
            idle += rest.elapsed().as_secs_f64();
            until = Instant::now() + Duration::from_secs_f64(length(1, edges));
            edges += 1;
        }
        let load = &loads[edges as usize % loads.len()];
        ctx.meter.doing(0, &load.case.to_string());
        load.again(ctx, q, 1, &rng, round)
    })?;
    ctx.meter.count("edges", 2 * edges);
    ctx.meter.count("idle_milliseconds", (1e3 * idle) as u64);
    ended(ctx, &runner, loads);
    Ok(())
}

fn ended(ctx: &Ctx<'_>, runner: &Runner, loads: Vec<Load>) {
    drop(loads);
    ctx.meter.quiet(ctx.device.ledger().state());
    ctx.count_kernels(runner);
}

/// For every dtype the largest product that fits the time, once with whole numbers (in which the smallest wrong bit shows) and
/// once with data that use all bits.
fn loads(ctx: &Ctx<'_>, runner: &Runner, budget: f64) -> Result<Vec<Load>> {
    let op = op::find("gemm")?;
    let start = Instant::now();
    let mut loads = Vec::new();
    for (i, dtype) in op.dtypes.iter().copied().enumerate() {
        let share = budget * (i + 1) as f64 / op.dtypes.len() as f64 - start.elapsed().as_secs_f64();
        if !loads.is_empty() && share <= 0.0 {
            ctx.meter.not_tested(format!("products of {dtype}: no time to prove their references"));
            continue;
        }
        let mut lease = runner.lease()?;
        match lease.queue().and_then(|q| largest(ctx, runner, q, op, dtype, share)) {
            Ok(found) => loads.extend(found),
            Err(e) if matches!(e.code(), Code::OpUnsupported | Code::DTypeUnsupported | Code::FeatureUnsupported) => {
                ctx.meter.not_tested(format!("products of {dtype}: {}", e.detail()));
            }
            Err(e) => {
                lease.discard();
                ctx.meter.survive(e)?;
            }
        }
    }
    for load in &loads {
        let n = load.case.dim("n");
        ctx.meter.count(&format!("edge_{}", load.case.dtype), n);
    }
    Ok(loads)
}

/// The largest products of a dtype whose preparation takes so many seconds and whose calls are a small part of the phase.
fn largest(
    ctx: &Ctx<'_>,
    runner: &Runner,
    q: &mut dyn Queue,
    op: &'static OpDesc,
    dtype: DType,
    seconds: f64,
) -> Result<Option<Load>> {
    let start = Instant::now();
    let mut best: Option<Load> = None;
    let mut last = 0.0;
    // Whole numbers and others in turns, so that dtypes together have both.
    let fill = if loads_whole(dtype) { Fill::Integer } else { Fill::Uniform };
    for edge in EDGES {
        let case = op.case(dtype, &[edge, edge - 2, edge + 1], Attrs::new(), fill)?;
        if op.total_bytes(&case).is_none_or(|b| b > MAX_BYTES.min(ctx.device.info().max_binding_bytes)) {
            break;
        }
        // The next one takes about eight times as long as the last.
        let left = seconds - start.elapsed().as_secs_f64();
        let call = best.as_ref().map_or(0.0, |b| 8.0 * b.seconds * f64::from(LAUNCHES));
        if best.is_some() && (8.0 * last > left || call > (ctx.seconds / 20.0).min(LONGEST)) {
            break;
        }
        ctx.meter.doing(0, &format!("reference of {case}"));
        let from = Instant::now();
        // A wrong one is told; larger ones would be wrong as well, and cost more.
        let Some(next) = load(ctx, runner, q, op, case)? else { break };
        best = Some(next);
        last = from.elapsed().as_secs_f64();
        if ctx.meter.stop.raised() {
            break;
        }
    }
    Ok(best)
}

/// Data of the products of a dtype: every other one has whole numbers.
fn loads_whole(dtype: DType) -> bool {
    !matches!(dtype, DType::F32 | DType::BF16)
}

/// Makes a reference and proves it. `None` if it is wrong, which is counted.
fn load(ctx: &Ctx<'_>, runner: &Runner, q: &mut dyn Queue, op: &'static OpDesc, case: Case) -> Result<Option<Load>> {
    let inputs = case::inputs(op, &case)?;
    let prepared = runner.prepare(op, &case, None)?;
    let Some(bounds) = op.bounds(&case, prepared.lang) else {
        ctx.meter.not_tested(format!("{case}: no published limit for {:?}", prepared.lang));
        return Ok(None);
    };
    let mut seconds = f64::INFINITY;
    let mut run = || {
        let from = Instant::now();
        let out = prepared.call(q, &inputs, ctx.deadline())?;
        seconds = seconds.min(from.elapsed().as_secs_f64());
        Ok(out)
    };
    let want = run()?;
    let Some(judge) = Judge::of(op, &case, prepared.lang, &inputs) else {
        ctx.meter.not_tested(format!("{case}: nothing judges a result of that size as a whole"));
        return Ok(None);
    };
    let rng = Philox::new(ctx.seed);
    let wrong = judge.first_wrong(&case, &inputs, &want, &bounds);
    if let Some(wrong) = wrong.or_else(|| sample(op, &case, &inputs, &want, &bounds, &rng, 0, SAMPLE)) {
        ctx.meter.mismatch(format!("{case}: {wrong}"));
        return Ok(None);
    }
    let (want, loose) = match steady(want, run)? {
        Steady::Always(want) => (want, None),
        Steady::Never(want) => {
            ctx.meter.count("nondeterministic_cases", 1);
            (want, Some(judge))
        }
        Steady::Odd(what) => {
            ctx.meter.mismatch(format!("{case}: one of five equal runs gave different bits: {what}"));
            return Ok(None);
        }
    };
    at_first(ctx, q, op, &case, &prepared)?;
    let bytes = want.iter().map(|t| t.bytes().len() as u64).sum();
    Ok(Some(Load { op, case, prepared, inputs, want, bounds, loose, bytes, seconds }))
}

/// Judges `count` elements of the first result, others for each `round`.
#[allow(clippy::too_many_arguments, reason = "a result with all that it is judged by")]
fn sample(
    op: &OpDesc,
    case: &Case,
    inputs: &[HostTensor],
    got: &[HostTensor],
    bounds: &[Bound],
    rng: &Philox,
    round: u64,
    count: u64,
) -> Option<String> {
    let (element, got, bound) = (op.element?, got.first()?, bounds.first()?);
    (0..count).find_map(|i| {
        let at = rng.u64(2, round * SAMPLE + i) % got.len().max(1);
        let (want, scale) = element(case, inputs, 0, at);
        let value = Exact::read(got, at);
        let judged = bound.judge(value, want, scale);
        (!judged.ok).then(|| {
            let (value, want) = (value.to_f64(), want.to_f64());
            format!("element {at} is {value:e}, expected {want:e} within {:e}", judged.allowed)
        })
    })
}

/// Seconds of one of some launches one behind the other, with nothing else between the first's start and the last's end.
fn launched(ctx: &Ctx<'_>, q: &mut dyn Queue, prepared: &Prepared, launches: u32) -> Result<f64> {
    q.finish(ctx.deadline())?;
    let clock = ctx.device.clock();
    let from = clock.now();
    for _ in 0..launches {
        prepared.launch(q)?;
    }
    q.finish(ctx.deadline())?;
    Ok((clock.now() - from) / f64::from(launches))
}

/// Notes what a product took, if that is the device's time.
fn speed(ctx: &Ctx<'_>, op: &OpDesc, case: &Case, when: &str, seconds: f64) {
    if seconds >= SHORTEST {
        let unit = if case.dtype.is_float() { "FLOP" } else { "op" };
        ctx.meter.speed(&format!("{case}{when}"), unit, 2.0 * (op.work)(case) as f64, seconds);
    }
}

/// The speed of a size that is tried: cards of one model may settle on other sizes, but have all tried the smaller ones. The name
/// is another, for no card is as warm as in the phase. A real one first gets the time to raise its clocks, if there is any.
fn at_first(ctx: &Ctx<'_>, q: &mut dyn Queue, op: &OpDesc, case: &Case, prepared: &Prepared) -> Result<()> {
    if ctx.device.info().class != DeviceClass::Simulated {
        if ctx.seconds < WITH_TIME {
            return Ok(());
        }
        let start = Instant::now();
        while start.elapsed() < RISE && !ctx.meter.stop.raised() {
            launched(ctx, q, prepared, LAUNCHES)?;
        }
    }
    for _ in 0..FIRST {
        speed(ctx, op, case, ", at first", launched(ctx, q, prepared, LAUNCHES)?);
    }
    Ok(())
}

impl Load {
    /// Some launches, and a look at what the last of them made.
    fn again(&self, ctx: &Ctx<'_>, q: &mut dyn Queue, launches: u32, rng: &Philox, round: u64) -> Result<(u64, u64)> {
        // All operands anew, what is written as well: a launch that did nothing leaves no right result behind.
        self.prepared.poison(q)?;
        self.prepared.upload(q, &self.inputs)?;
        let each = launched(ctx, q, &self.prepared, launches)?;
        // One launch alone comes after a pause: it may find lowered clocks.
        if launches > 1 {
            speed(ctx, self.op, &self.case, "", each);
        }
        let got = self.prepared.download(q)?;
        if got.len() != self.want.len() {
            return Err(Error::new(Code::Internal, format!("{} results", got.len())).op(self.op.name));
        }
        let differs = || self.want.iter().zip(&got).find_map(|(want, got)| first_difference(want, got));
        let wrong = match &self.loose {
            Some(judge) => judge.first_wrong(&self.case, &self.inputs, &got, &self.bounds),
            None => differs(),
        };
        let some = if self.loose.is_some() { SAMPLE } else { MORE };
        let judged = || sample(self.op, &self.case, &self.inputs, &got, &self.bounds, rng, round, some);
        if let Some(wrong) = wrong.or_else(judged) {
            ctx.meter.mismatch(format!("{}: {wrong}", self.case));
        }
        ctx.meter.count("products", u64::from(launches));
        Ok((self.bytes, self.bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::Device;
    use crate::device::cpu::{CpuDevice, Pin};
    use crate::device::faulty::{FaultPlan, Faulty};
    use crate::jobs::stress::scenario::testing::on;
    use crate::kernel::Isa;
    use std::sync::Arc;

    fn cpu() -> Arc<dyn Device> {
        Arc::new(CpuDevice::new(1, Isa::detect(), Pin::Free).unwrap())
    }

    /// A product of an edge with whole numbers, as a phase makes it, and what was said.
    fn product(device: Arc<dyn Device>, edge: u64, then: impl FnOnce(&Ctx<'_>, &mut dyn Queue, Load)) -> String {
        on(device, |ctx| {
            let runner = ctx.runner();
            let op = op::find("gemm").unwrap();
            let case = op.case(DType::F32, &[edge, edge - 2, edge + 1], Attrs::new(), Fill::Integer).unwrap();
            let mut lease = runner.lease().unwrap();
            let q = lease.queue().unwrap();
            let made = load(ctx, &runner, q, op, case).unwrap();
            then(ctx, q, made.expect("a right product"));
        })
        .1
    }

    /// No size is so small that the check of whole results passes it over and so large that its elements are not judged.
    #[test]
    fn one_wrong_bit_is_found_in_products_of_every_size() {
        for edge in EDGES.into_iter().filter(|e| *e < 1000) {
            let said = product(cpu(), edge, |_, _, load| {
                let mut got = load.want.clone();
                let at = got[0].bytes().len() / 2 / 4 * 4;
                got[0].bytes_mut()[at] ^= 1;
                let judge = Judge::of(load.op, &load.case, load.prepared.lang, &load.inputs).expect("a judge");
                let wrong = |got: &[HostTensor]| judge.first_wrong(&load.case, &load.inputs, got, &load.bounds);
                assert_eq!(wrong(&load.want), None, "{edge}");
                assert!(wrong(&got).is_some(), "{edge}: a wrong bit");
            });
            assert!(!said.contains("\"finding\""), "{said}");
        }
    }

    /// Where bits differ from run to run, nothing but the judge sees a wrong element among millions.
    #[test]
    fn a_product_without_fixed_bits_is_judged_whole_each_time() {
        let plan = FaultPlan::parse("bitflip@from=1000").unwrap();
        for (edge, faulty) in [(124, false), (124, true), (250, false), (250, true)] {
            // References are read a few times, and a fault in one would be found there.
            let plan = if faulty { FaultPlan::parse("bitflip@from=6").unwrap() } else { plan.clone() };
            let device: Arc<dyn Device> = Arc::new(Faulty::new(cpu(), plan));
            let said = product(device, edge, |ctx, q, mut load| {
                load.loose = Judge::of(load.op, &load.case, load.prepared.lang, &load.inputs);
                let rng = Philox::new(1);
                for round in 0..4 {
                    load.again(ctx, q, 1, &rng, round).unwrap();
                }
                assert_eq!(ctx.meter.counts().mismatches > 0, faulty, "{edge}");
            });
            assert_eq!(said.contains("\"finding\""), faulty, "{edge}: {said}");
        }
    }
}
