//! What placing a call costs: `cargo bench --bench placement`.
//!
//! First the choice alone: 10,000 keys of the op table in random order, a thousand a batch, and once more of those batches
//! only that nothing else slowed the processor down for, by a reading before and after each. Then one op on the CPU, four ways
//! in turns: the kernel called directly, the same once more (what differs there is noise), through a route that was made once,
//! and by name with fresh results. Last, a route after other work has taken all caches.

#![allow(clippy::print_stdout, reason = "a benchmark prints its table")]

use std::cell::RefCell;
use std::sync::Arc;
use std::time::Instant;

use gpuctl::base::record::CalibratePoint;
use gpuctl::base::rng::Philox;
use gpuctl::base::sink::Cancel;
use gpuctl::base::{Attrs, Clock, Cost, DType, Env, Features, Fill, HostTensor, RealClock, Result, stats};
use gpuctl::engine::{Engine, Route};
use gpuctl::kernel::cpu::Call as NativeCall;
use gpuctl::kernel::{self, Body, CpuCtx, Isa, NativeArgs, NativeFn};
use gpuctl::measure::calm::{Calm, DISTURBED};
use gpuctl::measure::{StopRule, Subject, sample};
use gpuctl::op::{self, OpDesc, Unit};
use gpuctl::profile::model::{Curve, Side};
use gpuctl::profile::{Call, Chooser, Entry, Kind, Operands, Place, Policy, Profile, ProfileDevice, Rule, Verdict};

const UID: &str = "GPU-00000000-0000-0000-0000-000000000000";

/// 10,000 keys by op, dtype, family, residency and threads. Their curves have the terms that calibrated ones mostly have, and
/// one in sixteen has all.
fn profile(rule: Rule) -> Profile {
    let mut p = Profile::new(Kind::Calibrated, "synthetic");
    p.rule = rule;
    let side =
        |flop_s, fixed_s| Side { fixed_s, flop_s, byte_s: 1e-11, wave: 65_536.0, wave_most: 8.0, ..Side::default() };
    let all = |side: Side| Side { cache: 1e6, tile: 32, knots: [0.0, 4.0], factors: vec![1.0, 1.1, 1.0, 0.9], ..side };
    let [usual, whole] = [[side(1e-9, 1e-7), side(1e-12, 1e-5)], [all(side(1e-9, 1e-7)), all(side(1e-12, 1e-5))]]
        .map(|[cpu, device]| Curve { span: [[1.0, 1e18]; 4], cpu, device, ..Curve::default() });
    let mut number = 0;
    let mut curve = || {
        number += 1;
        if number % 16 == 0 { whole.clone() } else { usual.clone() }
    };
    p.devices.push(ProfileDevice { uid: UID.into(), backend: "cuda".into(), ..ProfileDevice::default() });
    let point = |size| CalibratePoint { size, cpu_s: 1e-6, gpu_s: 1e-6, ratio_ci: [0.9, 1.1], pairs: 5 };
    for threads in 1..=64 {
        for o in op::all().filter(|o| !matches!(o.unit, Unit::Bytes | Unit::Calls)) {
            for (dtype, family) in o.dtypes.iter().flat_map(|d| o.families.iter().map(move |f| (d, f))) {
                p.entries.extend(["always", "resident"].map(|residency| Entry {
                    op: o.name.into(),
                    dtype: dtype.name().into(),
                    family: family.name.into(),
                    device: UID.into(),
                    residency: residency.into(),
                    threads,
                    cpu_variant: "auto".into(),
                    verdict: Verdict::Crossing,
                    unit: o.unit.name().into(),
                    crossing: Some(100),
                    threshold: Some(100),
                    n: 2,
                    verify: "ok".into(),
                    points: vec![point(1), point(1000)],
                    curve: (rule == Rule::Curve).then(&mut curve),
                    ..Entry::default()
                }));
            }
        }
    }
    p.entries.truncate(10_000);
    p
}

/// Sizes of the calls.
#[derive(Clone, Copy, Debug)]
enum Sizes {
    /// Half tiny, half huge.
    Extreme,
    /// From one element to 2^30, as many in each octave: some are near where the sides cross.
    LogUniform,
}

/// A key of the profile in few bytes: what a program knows of a call before it makes one.
#[derive(Clone, Copy)]
struct Asked {
    op: &'static OpDesc,
    family: u8,
    dtype: DType,
    resident: bool,
    threads: u16,
    n: u64,
}

impl Asked {
    /// A program's calls name ops and families by the table's own words.
    fn call(&self) -> Call<'static> {
        let n = self.n;
        Call {
            op: self.op.name,
            dtype: self.dtype,
            family: self.op.families.get(usize::from(self.family)).map(|f| f.name),
            unit: self.op.unit.name(),
            features: Features {
                work: u128::from(n),
                cost: Cost { flops: 10 * n, read: 8 * n, written: 4 * n },
                dims: [n, 0, 0, 0, 0, 0, 0, 0],
            },
            operands: if self.resident { Operands::Device(UID) } else { Operands::Host },
            threads: u32::from(self.threads),
            cpu_variant: "auto",
        }
    }
}

fn choosing(rule: Rule, sizes: Sizes) -> Result<()> {
    let p = profile(rule);
    let rng = Philox::new(1);
    let chooser = Chooser::knowing(p.clone(), op::words());
    let asked = |(i, e): (usize, &Entry)| -> Result<Asked> {
        let op = op::find(&e.op)?;
        let family = op.families.iter().position(|f| f.name == e.family).map_or(u8::MAX, |at| at as u8);
        let n = match sizes {
            Sizes::Extreme => [1, 1 << 30][i % 2],
            Sizes::LogUniform => (30.0 * rng.u64(9, i as u64) as f64 / u64::MAX as f64).exp2() as u64,
        };
        let (dtype, resident) = (e.dtype.parse()?, e.residency == "resident");
        Ok(Asked { op, family, dtype, resident, threads: e.threads as u16, n })
    };
    let mut asked = p.entries.iter().enumerate().map(asked).collect::<Result<Vec<Asked>>>()?;
    let (mut batches, mut gpu) = (Vec::new(), 0u64);
    let mut calls = Vec::with_capacity(1000);
    let (calm, mut readings) = (Calm::default(), Vec::new());
    // Many, or what the machine does once in a while would be one batch in a hundred.
    for round in 0..400 {
        for i in (1..asked.len()).rev() {
            asked.swap(i, rng.u64(round, i as u64) as usize % (i + 1));
        }
        for batch in asked.chunks_exact(1000) {
            // A program has made its call just before it asks: ten thousand of them, made long ago, would be fetched from
            // memory, and that is no part of a choice.
            calls.clear();
            let before = calm.seconds();
            calls.extend(batch.iter().map(Asked::call));
            let begin = Instant::now();
            for c in &calls {
                gpu += u64::from(chooser.choose(Policy::Automatic, c).place == Place::Gpu);
            }
            let ns = begin.elapsed().as_secs_f64() * 1e9 / 1000.0;
            let slower = before.max(calm.seconds());
            // The first round warms up.
            if round > 0 {
                batches.push(ns);
                readings.push(slower);
            }
        }
    }
    println!(
        "choose() by {}, {sizes:?} sizes: {} keys, {} batches of 1,000, {gpu} for the device",
        rule.name(),
        asked.len(),
        batches.len()
    );
    // Against the fastest hundredth of all: an episode may be longer than what a `Calm` remembers.
    let most = DISTURBED * stats::quantile(&stats::sorted(&readings), 0.01);
    let alone: Vec<f64> = batches.iter().zip(&readings).filter(|(_, r)| **r <= most).map(|(ns, _)| *ns).collect();
    println!("{}", spread(&batches));
    println!("left alone {:.0} %: {}\n", 100.0 * alone.len() as f64 / batches.len() as f64, spread(&alone));
    Ok(())
}

/// What batches took, in ns a call.
fn spread(batches: &[f64]) -> String {
    let sorted = stats::sorted(batches);
    let [least, median, p99] = [0.0, 0.5, 0.99].map(|q| stats::quantile(&sorted, q));
    let mean = batches.iter().sum::<f64>() / batches.len().max(1) as f64;
    format!("mean {mean:.1} ns, least {least:.1} ns, median {median:.1} ns, p99 of batches {p99:.1} ns")
}

/// Something called many times on the real clock.
struct Timed<'a>(Box<dyn FnMut() -> Result<()> + 'a>, Arc<RealClock>);

impl Subject for Timed<'_> {
    fn run(&mut self, calls: u64) -> Result<()> {
        (0..calls).try_for_each(|_| (self.0)())
    }
    fn clock(&self) -> Arc<dyn Clock> {
        self.1.clone()
    }
}

/// The kernel that the engine would choose.
fn kernel(op: &str, n: u64, engine: &Engine) -> Result<(NativeFn, NativeCall)> {
    let op = op::find(op)?;
    let case = op.case(DType::F32, &[n], Attrs::new(), Fill::Uniform)?;
    let choice = kernel::choose(op.kernels, &case, &engine.device_info("cpu")?, None)?;
    let step = &choice.plan.steps[0];
    let Body::Native(run) = choice.kernel.body else { unreachable!("the CPU's kernels are native") };
    Ok((run, NativeCall { dtype: step.dtype, params: step.params.clone() }))
}

/// An op on the CPU with one thread: called directly, and through a route.
struct Calls<'e> {
    x: HostTensor,
    run: NativeFn,
    call: NativeCall,
    ctx: CpuCtx<'static>,
    route: Route<'e>,
    /// Both write to the same memory: otherwise caches make a difference that is not the route's.
    results: RefCell<Vec<HostTensor>>,
}

impl<'e> Calls<'e> {
    fn new(op: &str, n: u64, engine: &'e Engine) -> Result<Self> {
        let x = HostTensor::from_slice(&vec![0.5f32; n as usize], &[n])?;
        let (run, call) = kernel(op, n, engine)?;
        let ctx = CpuCtx { threads: 1, isa: Isa::detect(), team: None, blas: None };
        let route = engine.route(op, &[&x], &Attrs::new())?;
        let results = RefCell::new(route.outputs()?);
        Ok(Calls { x, run, call, ctx, route, results })
    }

    fn directly(&self) -> Result<()> {
        let mut results = self.results.borrow_mut();
        let mut args = NativeArgs { ins: vec![self.x.bytes()], outs: vec![results[0].bytes_mut()] };
        (self.run)(&self.ctx, &mut args, &self.call)
    }

    fn routed(&self) -> Result<()> {
        self.route.run_into(&[&self.x], &mut self.results.borrow_mut()).map(|_| ())
    }

    /// Seconds of single calls: directly, directly again, routed and routed again, in random order, `before` each of them. As
    /// often the one as the other, and which one comes is in a register: what the processor guesses favours neither.
    fn turns(&self, rounds: usize, mut before: impl FnMut()) -> Result<[Vec<f64>; 4]> {
        let rng = Philox::new(3);
        let mut times: [Vec<f64>; 4] = std::array::from_fn(|_| Vec::with_capacity(rounds));
        let mut ways = [0, 1, 2, 3];
        for round in 0..rounds {
            for last in (1..ways.len()).rev() {
                ways.swap(last, (rng.u64(round as u64, last as u64) % (last as u64 + 1)) as usize);
            }
            for way in ways {
                before();
                let begin = Instant::now();
                match way {
                    0 | 1 => self.directly()?,
                    _ => self.routed()?,
                }
                times[way].push(begin.elapsed().as_secs_f64());
            }
        }
        Ok(times)
    }
}

/// The median of the first, and what each other one adds in the same round: what the machine does to both drops out.
fn adds(times: &[&[f64]]) -> (f64, Vec<String>) {
    let base = stats::median(times[0]) * 1e9;
    let cell = |other: &&[f64]| {
        let d: Vec<f64> = other.iter().zip(times[0]).map(|(a, b)| (a - b) * 1e9).collect();
        let ([low, high], median) = (stats::median_ci(&stats::sorted(&d)), stats::median(&d));
        format!("{median:.0} ns ({low:.0} to {high:.0}) | {:.2} %", 100.0 * median / base)
    };
    (base, times[1..].iter().map(cell).collect())
}

fn overhead() -> Result<()> {
    let engine = Engine::builder().env(Env::default()).threads(1).profile("preset:always-cpu").build()?;
    let clock = Arc::new(RealClock::new());
    println!("| op | elements | kernel alone | itself adds | of it | route adds | of it | by name adds | of it |");
    println!("| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |");
    for op in ["relu", "exp"] {
        for n in [1u64, 1_000, 10_000, 100_000, 1_000_000] {
            let calls = Calls::new(op, n, &engine)?;
            let attrs = Attrs::new();
            let named = || engine.run(op, &[&calls.x], &attrs).map(|_| ());
            // A call of a million elements varies by more than what is looked for.
            let samples = if n < 1_000_000 { 300 } else { 5000 };
            let rule = StopRule {
                min_samples: samples,
                max_samples: samples,
                spread: 0.0,
                soft_s: 20.0,
                ..StopRule::with_budget(20.0)
            };
            let sampled = |ways: Vec<Box<dyn FnMut() -> Result<()> + '_>>| -> Result<(f64, Vec<String>)> {
                let mut ways: Vec<Timed<'_>> = ways.into_iter().map(|f| Timed(f, clock.clone())).collect();
                let mut subjects: Vec<&mut dyn Subject> = ways.iter_mut().map(|w| w as &mut dyn Subject).collect();
                let series = sample(&mut subjects, &rule, &Cancel::new())?;
                Ok(adds(&series.iter().map(|s| &s.samples[..]).collect::<Vec<_>>()))
            };
            let direct = || -> Box<dyn FnMut() -> Result<()> + '_> { Box::new(|| calls.directly()) };
            let (base, mut cells) = sampled(vec![direct(), direct(), Box::new(|| calls.routed())])?;
            // Fresh results put what the others find there out of the caches: turns of their own.
            cells.extend(sampled(vec![direct(), Box::new(named)])?.1);
            println!("| {op} | {n} | {base:.0} ns | {} |", cells.join(" | "));
        }
    }
    Ok(())
}

/// Bytes of other memory between two calls: far more than a core's own caches hold.
const OTHER: usize = 32 << 20;

/// The same where nothing that a call looks at is in the caches any more. This is what a call of a million elements leaves
/// behind for the next one; of a thousand elements it can be told from the kernel's own changes.
fn cold() -> Result<()> {
    let engine = Engine::builder().env(Env::default()).threads(1).profile("preset:always-cpu").build()?;
    let mut other = vec![0u64; OTHER / 8];
    println!("\nafter {} MiB of other memory:\n", OTHER >> 20);
    println!("| op | elements | kernel alone | itself adds | of it | route adds | of it | route again | of it |");
    println!("| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |");
    for op in ["relu", "exp"] {
        let calls = Calls::new(op, 1_000, &engine)?;
        let times = calls.turns(2_000, || {
            other.iter_mut().for_each(|v| *v = v.wrapping_add(1));
            std::hint::black_box(&mut other);
        })?;
        let (base, cells) = adds(&times.each_ref().map(|t| &t[..]));
        println!("| {op} | 1000 | {base:.0} ns | {} |", cells.join(" | "));
    }
    Ok(())
}

fn main() -> Result<()> {
    choosing(Rule::Threshold, Sizes::Extreme)?;
    choosing(Rule::Curve, Sizes::Extreme)?;
    choosing(Rule::Curve, Sizes::LogUniform)?;
    overhead()?;
    cold()
}
