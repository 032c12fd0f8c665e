//! What tracing costs: `cargo bench --bench tracing`, and `-- cpu,opencl:0` for these devices.
//!
//! Three tables. What the recording itself takes for a launch and a wait, on a device that does nothing: no driver, no noise. What
//! the marks take on each device that give a launch its device time. And whole calls, traced and not, sample by sample in turns:
//! each ratio is the median of several pairs that were prepared anew, because two preparations of the same call differ by far
//! more than a trace costs (where their memory lies, whether a driver's threads sleep). The same of two that are not traced shows
//! what the method cannot tell apart.

#![allow(clippy::print_stdout, reason = "a benchmark prints its table")]

use std::sync::Arc;
use std::time::{Duration, Instant};

use gpuctl::base::sink::Cancel;
use gpuctl::base::{Attrs, Clock, DType, DeviceInfo, Env, RealClock, Result, stats};
use gpuctl::device::cpu::{CpuDevice, Pin};
use gpuctl::device::probe::{CpuConfig, Select, open};
use gpuctl::device::tap::{KEPT, Tracer};
use gpuctl::device::{
    Buffer, BuildStats, DEADLINE, Device, Health, Kind, Launch, Ledger, Mark, MemoryKind, MemoryState, Program, Queue,
    Slice, Source, Span, Waited, next_serial, traced,
};
use gpuctl::engine::Runner;
use gpuctl::kernel::Isa;
use gpuctl::measure::{OpSubject, Residency, StopRule, sample};
use gpuctl::op::{self, case};

/// A device that does nothing and takes no time for it; it says that it is an OpenCL device, so that launches get marks.
struct Idle {
    info: DeviceInfo,
    serial: u64,
    ledger: Arc<Ledger>,
    clock: Arc<dyn Clock>,
}

impl Idle {
    fn new() -> Result<Self> {
        let mut info = CpuDevice::new(1, Isa::detect(), Pin::Free)?.info().clone();
        info.backend = gpuctl::base::Backend::Opencl;
        Ok(Idle { info, serial: next_serial(), ledger: Ledger::new(), clock: Arc::new(RealClock::new()) })
    }
}

impl Device for Idle {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }
    fn serial(&self) -> u64 {
        self.serial
    }
    fn clock(&self) -> Arc<dyn Clock> {
        Arc::clone(&self.clock)
    }
    fn ledger(&self) -> &Arc<Ledger> {
        &self.ledger
    }
    fn memory(&self) -> MemoryState {
        MemoryState::default()
    }
    fn alloc(&self, bytes: u64, _: MemoryKind) -> Result<Buffer> {
        Ok(Buffer::new((), bytes, self.serial, self.ledger.enter(Kind::Buffer, bytes)))
    }
    fn build(&self, _: Source<'_>, _: Option<&[u8]>) -> Result<Program> {
        Ok(Program::new((), self.serial, self.ledger.enter(Kind::Program, 0), None, BuildStats::default()))
    }
    fn queue(&self) -> Result<Box<dyn Queue>> {
        Ok(Box::new(IdleQueue(0)))
    }
    fn health(&self) -> Health {
        Health::Usable
    }
}

struct IdleQueue(u64);

impl Queue for IdleQueue {
    fn write(&mut self, _: &Buffer, _: u64, _: &[u8]) -> Result<()> {
        Ok(())
    }
    fn read(&mut self, _: &Buffer, _: u64, _: &mut [u8]) -> Result<()> {
        Ok(())
    }
    fn copy(&mut self, _: &Buffer, _: u64, _: &Buffer, _: u64, _: u64) -> Result<()> {
        Ok(())
    }
    fn fill(&mut self, _: &Buffer, _: u64, _: u64, _: u8) -> Result<()> {
        Ok(())
    }
    fn launch(&mut self, _: &Launch) -> Result<()> {
        Ok(())
    }
    fn mark(&mut self) -> Result<Mark> {
        self.0 += 1;
        Ok(Mark(self.0))
    }
    fn flush(&mut self) -> Result<()> {
        Ok(())
    }
    fn wait(&mut self, _: Mark, _: Duration) -> Result<Waited> {
        Ok(Waited::Done)
    }
    fn span(&mut self, _: Mark, _: Mark) -> Result<Span> {
        Ok(Span { device: Some(1e-6), host: 1e-6 })
    }
    fn finish(&mut self, _: Duration) -> Result<()> {
        Ok(())
    }
}

/// Seconds of one of many repetitions; the least of several rounds.
fn least(repeats: u32, mut does: impl FnMut() -> Result<()>) -> Result<f64> {
    let mut best = f64::INFINITY;
    for _ in 0..7 {
        let start = Instant::now();
        for _ in 0..repeats {
            does()?;
        }
        best = best.min(start.elapsed().as_secs_f64() / f64::from(repeats));
    }
    Ok(best)
}

/// What a launch with its wait takes: on the idle device, and traced there.
fn recording() -> Result<()> {
    let plain: Arc<dyn Device> = Arc::new(Idle::new()?);
    // As in any long run: the events find room at first, and are counted alone when there is none left.
    let (full, kept) = (Tracer::new("full", 0), Tracer::new("kept", 50_000_000));
    println!("| on a device that does nothing | a launch and a wait |");
    println!("| --- | ---: |");
    for (name, tracer) in [("not traced", None), ("traced", Some(kept)), ("traced, no room left", Some(full))] {
        let device = tracer.as_ref().map_or_else(|| Arc::clone(&plain), |t| traced::device(Arc::clone(&plain), t));
        let y = device.alloc(64, MemoryKind::Device)?;
        let program = device.build(Source::Routine(gpuctl::kernel::Routine::Gemm, DType::F32), None)?;
        let launch = Launch {
            program,
            group: [1; 3],
            groups: [1; 3],
            args: vec![Slice::whole(&y)],
            writes: vec![true],
            params: Vec::new(),
            cost: Default::default(),
        };
        let mut q = device.queue()?;
        let seconds = least(100_000, || {
            q.launch(&launch)?;
            q.finish(DEADLINE)
        })?;
        println!("| {name} | {:.0} ns |", seconds * 1e9);
    }
    Ok(())
}

/// What two marks and the span between them take on a device, around nothing.
fn marks(device: &dyn Device) -> Result<f64> {
    let mut q = device.queue()?;
    let x = device.alloc(64, MemoryKind::Device)?;
    q.fill(&x, 0, 64, 0)?;
    q.finish(DEADLINE)?;
    least(200, || {
        let (from, to) = (q.mark()?, q.mark()?);
        q.span(from, to).map(drop)
    })
}

/// Seconds per call of two runners in turns, and the median ratio of the second to the first.
fn ratio(a: &Runner, b: &Runner, op: &str, size: u64, residency: Residency) -> Result<(f64, f64)> {
    let op = op::find(op)?;
    let case = op.sized(DType::F32, size, Attrs::new())?;
    let inputs = case::inputs(op, &case)?;
    let (first, second) = (a.prepare(op, &case, None)?, b.prepare(op, &case, None)?);
    let mut first = OpSubject::new(a, &first, &inputs, residency, DEADLINE)?;
    let mut second = OpSubject::new(b, &second, &inputs, residency, DEADLINE)?;
    let rule = StopRule { min_samples: 40, max_samples: 40, spread: 0.0, soft_s: 1.0, ..StopRule::with_budget(2.0) };
    let series = sample(&mut [&mut first, &mut second], &rule, &Cancel::new())?;
    let ratios: Vec<f64> = series[1].samples.iter().zip(&series[0].samples).map(|(b, a)| b / a).collect();
    Ok((series[0].median(), stats::median(&ratios)))
}

/// Pairs that are prepared anew.
const PAIRS: usize = 15;

fn main() -> Result<()> {
    recording()?;
    // Cargo's own `--bench` is no device.
    let named = std::env::args().skip(1).find(|a| !a.starts_with('-')).unwrap_or_else(|| "cpu,opencl:0,wgpu:0".into());
    let opened = |name: &str| -> Result<Option<Arc<dyn Device>>> {
        let rig = open(&Select::parse(name)?, &Env::default(), CpuConfig { threads: 0, pin: Pin::Free });
        Ok(rig.ok().and_then(|r| r.devices.first().cloned()))
    };
    println!("\n| device | two marks and their span |");
    println!("| --- | ---: |");
    for name in named.split(',') {
        match opened(name)? {
            Some(device) => println!("| {name} | {:.2} us |", marks(&*device)? * 1e6),
            None => println!("| {name} | not here |"),
        }
    }
    println!("\n| device | op | size | operands | call | off/off | middle half | on/off | middle half |");
    println!("| --- | --- | ---: | --- | ---: | ---: | --- | ---: | --- |");
    for name in named.split(',') {
        let Some(inner) = opened(name)? else { continue };
        for (op, size) in [("relu", 1_000), ("relu", 1_000_000), ("gemm", 64), ("gemm", 256)] {
            for residency in [Residency::Resident, Residency::Always] {
                let plain = || Runner::new(Arc::clone(&inner));
                let (mut calls, mut none, mut on) = (Vec::new(), Vec::new(), Vec::new());
                for pair in 0..PAIRS {
                    let tracer = Tracer::new("bench", KEPT);
                    let watched = || Runner::new(traced::device(Arc::clone(&inner), &tracer));
                    none.push(ratio(&plain(), &plain(), op, size, residency)?.1);
                    // Neither is always prepared first.
                    let (call, with) = if pair % 2 == 0 {
                        ratio(&plain(), &watched(), op, size, residency)?
                    } else {
                        let (call, without) = ratio(&watched(), &plain(), op, size, residency)?;
                        (call, 1.0 / without)
                    };
                    calls.push(call);
                    on.push(with);
                }
                let half = |all: &[f64]| {
                    let sorted = stats::sorted(all);
                    let at = |q: f64| stats::quantile(&sorted, q);
                    format!("{:.3} | {:.3} to {:.3}", at(0.5), at(0.25), at(0.75))
                };
                println!(
                    "| {name} | {op} | {size} | {} | {:.2} us | {} | {} |",
                    residency.name(),
                    stats::median(&calls) * 1e6,
                    half(&none),
                    half(&on)
                );
            }
        }
    }
    Ok(())
}
