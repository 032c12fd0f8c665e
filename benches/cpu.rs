//! The CPU's kernels alone, timed on request: `cargo bench --bench cpu`.
//!
//! With `-- --serve` it answers lines of stdin, for `benches/compare/race_cpu.py`: `THREADS VARIANT SECONDS CASE`, where a
//! variant of `-` is the one that a call would get; each answer is one line of JSON. Between two requests every thread
//! sleeps, so that a rival has the processors for itself.
//!
//! Without it: the kernel of each op against a plain loop (its variant `naive`), in turns, from one element on; a ratio
//! below 1 says that the plain loop is faster.

#![allow(clippy::print_stdout, reason = "a benchmark prints its table")]

use std::collections::HashMap;
use std::io::{BufRead, Write};
use std::sync::Arc;
use std::time::Instant;

use gpuctl::base::{Attrs, Case, Code, DType, Error, Result, os, stats};
use gpuctl::device::Queue;
use gpuctl::device::cpu::{CpuDevice, Pin};
use gpuctl::engine::{Prepared, Runner};
use gpuctl::kernel::Isa;
use gpuctl::op::{self, OpDesc, case};

/// Seconds of a batch: long enough for the clock.
const BATCH_S: f64 = 1e-3;

/// A kernel with its operands on a device, ready to run.
struct Ready {
    prepared: Prepared,
    queue: Box<dyn Queue>,
}

impl Ready {
    fn new(runner: &Runner, op: &'static OpDesc, case: &Case, variant: Option<&str>) -> Result<Self> {
        let prepared = runner.prepare(op, case, variant)?;
        let mut queue = runner.device().queue()?;
        prepared.upload(&mut *queue, &case::inputs(op, case)?)?;
        Ok(Ready { prepared, queue })
    }

    /// Seconds a call in a batch of `calls`.
    fn batch(&mut self, calls: usize) -> Result<f64> {
        let begun = Instant::now();
        for _ in 0..calls {
            self.prepared.launch(&mut *self.queue)?;
        }
        Ok(begun.elapsed().as_secs_f64() / calls as f64)
    }

    /// Calls that make a batch.
    fn calls(&mut self) -> Result<usize> {
        self.batch(1)?;
        let once = self.batch(1)?;
        let more = (BATCH_S / once.max(1e-8)) as usize;
        if more < 2 {
            return Ok(1);
        }
        Ok(((BATCH_S / self.batch(more)?.max(1e-9)) as usize).max(1))
    }
}

fn runner(threads: usize) -> Result<Runner> {
    let isa = match std::env::var("GPUCTL_CPU_ISA") {
        Ok(name) => Isa::capped(&name)?,
        Err(_) => Isa::detect(),
    };
    Ok(Runner::new(Arc::new(CpuDevice::new(threads, isa, Pin::Workers)?)))
}

/// Median seconds of a call, as JSON.
fn answer(line: &str, runners: &mut HashMap<usize, Runner>, last: &mut Option<(String, Ready)>) -> Result<String> {
    let bad = || Error::new(Code::BadArgument, format!("'{line}': expected THREADS VARIANT SECONDS CASE"));
    let mut words = line.split_whitespace();
    let mut word = || words.next().ok_or_else(bad);
    let threads: usize = word()?.parse().map_err(|_| bad())?;
    let variant = Some(word()?).filter(|v| *v != "-");
    let seconds: f64 = word()?.parse().map_err(|_| bad())?;
    let case = case::parse(word()?)?;
    if !runners.contains_key(&threads) {
        runners.insert(threads, runner(threads)?);
    }
    let key = format!("{threads} {variant:?} {case}");
    if last.as_ref().is_none_or(|(k, _)| *k != key) {
        *last = None;
        *last = Some((key, Ready::new(&runners[&threads], op::find(case.op)?, &case, variant)?));
    }
    let Some((_, ready)) = last else { return Err(bad()) };
    let (calls, begun, mut samples) = (ready.calls()?, Instant::now(), Vec::new());
    while samples.len() < 5 || begun.elapsed().as_secs_f64() < seconds {
        samples.push(ready.batch(calls)?);
    }
    let (median, variant) = (stats::median(&samples), ready.prepared.variant);
    Ok(format!("{{\"median_s\": {median:e}, \"samples\": {}, \"variant\": \"{variant}\"}}", samples.len()))
}

fn serve() -> Result<()> {
    let (mut runners, mut last) = (HashMap::new(), None);
    for line in std::io::stdin().lock().lines() {
        let Ok(line) = line else { break };
        let said = answer(&line, &mut runners, &mut last);
        println!("{}", said.unwrap_or_else(|e| format!("{{\"error\": {:?}}}", e.to_string())));
        if std::io::stdout().flush().is_err() {
            break;
        }
    }
    Ok(())
}

/// Rounds in turns of each pair.
const ROUNDS: usize = 9;

/// Time of the plain loop by that of the kernel: median of the rounds.
fn against_loop(runner: &Runner, op: &'static OpDesc, size: u64) -> Result<f64> {
    let case = op.sized(DType::F32, size, Attrs::new())?;
    let (mut ours, mut plain) =
        (Ready::new(runner, op, &case, None)?, Ready::new(runner, op, &case, Some("naive"))?);
    let calls = [ours.calls()?, plain.calls()?];
    let mut ratios = Vec::new();
    for _ in 0..ROUNDS {
        let kernel = ours.batch(calls[0])?;
        ratios.push(plain.batch(calls[1])? / kernel);
    }
    Ok(stats::median(&ratios))
}

fn loops(wanted: &[String]) -> Result<()> {
    let runner = runner(0)?;
    let sizes: [u64; 8] = [1, 2, 3, 8, 33, 100, 1000, 10_000];
    println!("| op, f32 | {} |", sizes.map(|s| s.to_string()).join(" | "));
    println!("| --- |{}", " ---: |".repeat(sizes.len()));
    let mut below = 0;
    for op in op::all() {
        let both = op.kernels.iter().any(|k| k.variant == "naive") && op.dtypes.contains(&DType::F32);
        if !both || !wanted.is_empty() && !wanted.iter().any(|w| w == op.name) {
            continue;
        }
        let mut cells = Vec::new();
        for size in sizes {
            // Beyond a millisecond the plain loop is no rival for a small call.
            let cell = match op.sized(DType::F32, size, Attrs::new()).and_then(|c| Ok((op.cost)(&c))) {
                Ok(cost) if cost.flops < 10_000_000 => {
                    let ratio = against_loop(&runner, op, size)?;
                    below += usize::from(ratio < 0.95);
                    format!("{ratio:.2}")
                }
                _ => "-".into(),
            };
            cells.push(cell);
        }
        println!("| {} | {} |", op.name, cells.join(" | "));
    }
    println!("\nplain loop / kernel; {below} below 0.95");
    Ok(())
}

fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().skip(1).filter(|a| a != "--bench").collect();
    // As `gpuctl bench` does: the caller on the first processor, the workers behind it. A thread of its own, because the
    // main thread's affinity tells which processors there are.
    let driver = std::thread::spawn(move || {
        if let Some(first) = os::allowed_cpus().first() {
            os::pin_current_thread(*first);
        }
        if args.iter().any(|a| a == "--serve") { serve() } else { loops(&args) }
    });
    driver.join().unwrap_or_else(|_| Err(Error::new(Code::Internal, "the driver thread panicked")))
}
