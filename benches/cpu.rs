//! The CPU's kernels alone, timed on request: `cargo bench --bench cpu`.
//!
//! With `-- --serve` it answers lines of stdin, for `benches/compare/race_cpu.py`: `THREADS VARIANT SECONDS CASE`, where a
//! variant of `-` is the one that a call would get; each answer is one line of JSON. Between two requests every thread
//! sleeps, so that a rival has the processors for itself.
//!
//! With `-- --accuracy [STEP] [FUNCTION...]` it computes every STEPth f32 (all, without one) with every instruction set and prints
//! the largest error in units of the last place against the standard library's function in f64, and for pow that of as many
//! pairs: docs/cpu.md has the table. Without a name all functions.
//!
//! With `-- --callers` it tells what eight threads that call at once get done, against one.
//!
//! Without any of these: the kernel of each op against a plain loop (its variant `naive`), in turns, from one element on; a ratio
//! below 1 says that the plain loop is faster. Below [`LEAST`], also when it is measured again, it is a regression: the pairs are
//! named and the exit status is 1. `-- OP...` takes only some ops.

#![allow(clippy::print_stdout, reason = "a benchmark prints its table")]

use std::collections::HashMap;
use std::io::{BufRead, Write};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use gpuctl::base::rng::Philox;
use gpuctl::base::{Attrs, Case, Code, DType, Error, Fill, HostTensor, Result, os, stats};
use gpuctl::device::Queue;
use gpuctl::device::cpu::{CpuDevice, Pin};
use gpuctl::engine::{Prepared, Runner};
use gpuctl::kernel::Isa;
use gpuctl::kernel::cpu::activation::Wide;
use gpuctl::kernel::cpu::simd::{Job, Style, dispatch};
use gpuctl::op::{self, OpDesc, case};
use statrs::function::erf::{erf, erfc};

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
    if let std::collections::hash_map::Entry::Vacant(none) = runners.entry(threads) {
        none.insert(runner(threads)?);
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

/// Functions of one number and what they are in f64, with an error of about 1 ulp of f64.
const FUNCTIONS: [(&str, fn(f64) -> f64); 11] = [
    ("exp", f64::exp),
    ("log", f64::ln),
    ("sin", f64::sin),
    ("cos", f64::cos),
    ("tan", f64::tan),
    ("tanh", f64::tanh),
    ("sqrt", f64::sqrt),
    ("sigmoid", logistic),
    ("erf", erf),
    ("gelu", |x| if x < -40.0 { -0.0 } else { x * 0.5 * erfc(-x * std::f64::consts::FRAC_1_SQRT_2) }),
    ("gelu_tanh", |x| {
        let v = 2.0 * (2.0 / std::f64::consts::PI).sqrt() * x * (1.0 + 0.044_715 * x * x);
        if x < -40.0 { -0.0 } else { x * logistic(v) }
    }),
];

fn logistic(x: f64) -> f64 {
    if x < 0.0 { x.exp() / (1.0 + x.exp()) } else { 1.0 / (1.0 + (-x).exp()) }
}

/// The error function is no op of its own.
struct Erf<'a> {
    x: &'a [f32],
    y: &'a mut [f32],
}

impl Job for Erf<'_> {
    type Out = ();
    #[inline(always)]
    fn run<S: Style>(self) {
        for (y, x) in self.y.iter_mut().zip(self.x) {
            *y = Wide::erf::<S>(*x);
        }
    }
}

/// What computes a run of arguments: columns in, results out.
type Computer = Box<dyn FnMut(&[Vec<f32>]) -> Result<Vec<f32>>>;

fn computer(name: &str, isa: Isa) -> Result<Computer> {
    if name == "erf" {
        return Ok(Box::new(move |columns| {
            let mut y = vec![0.0; RUN];
            dispatch(isa, Erf { x: &columns[0], y: &mut y });
            Ok(y)
        }));
    }
    let op = op::find(name)?;
    let case = op.case(DType::F32, &[RUN as u64], Attrs::new(), Fill::Uniform)?;
    let runner = Runner::new(Arc::new(CpuDevice::new(1, isa, Pin::Free)?));
    let mut ready = Ready::new(&runner, op, &case, None)?;
    Ok(Box::new(move |columns| {
        let tensors = columns.iter().map(|c| HostTensor::from_slice(c, &[RUN as u64])).collect::<Result<Vec<_>>>()?;
        ready.prepared.upload(&mut *ready.queue, &tensors)?;
        ready.batch(1)?;
        ready.prepared.download(&mut *ready.queue)?[0].to_vec::<f32>()
    }))
}

/// Elements of a call.
const RUN: usize = 1 << 20;

/// Error of `got` in units of the last place that f32 has at `want`; infinite if only one of them is NaN or infinite.
fn ulps(got: f32, want: f64) -> f64 {
    let rounded = want as f32;
    if got.to_bits() == rounded.to_bits() || got.is_nan() && want.is_nan() {
        // Of a result in the range of f32 still the part that rounding takes.
        return if rounded.is_finite() { (f64::from(got) - want).abs() / place(rounded) } else { 0.0 };
    }
    if got.is_finite() && rounded.is_finite() { (f64::from(got) - want).abs() / place(rounded) } else { f64::INFINITY }
}

/// Unit of the last place of an f32.
fn place(v: f32) -> f64 {
    let exponent = u64::from(v.abs().to_bits() >> 23).max(1);
    f64::from_bits((exponent + 1023 - 127 - 23) << 52)
}

/// One or two arguments of a function; the second of one-argument functions is not looked at.
type Given = [f32; 2];

/// The largest error and where, of one function on all instruction sets, on threads of its own.
fn worst(
    name: &str,
    step: usize,
    isas: &[Isa],
    arguments: usize,
    given: impl Fn(u64) -> Given + Sync,
    want: impl Fn(&Given) -> f64 + Sync,
) -> Result<Vec<(f64, Given)>> {
    let runs = (1usize << 32).div_ceil(RUN * step);
    let next = AtomicUsize::new(0);
    let one = || -> Result<Vec<(f64, Given)>> {
        let mut found = vec![(0.0, Given::default()); isas.len()];
        let mut computers = isas.iter().map(|isa| computer(name, *isa)).collect::<Result<Vec<_>>>()?;
        loop {
            let run = next.fetch_add(1, Ordering::Relaxed);
            if run >= runs {
                return Ok(found);
            }
            let all: Vec<Given> = (0..RUN).map(|i| given(((run * RUN + i) * step) as u64)).collect();
            let wants: Vec<f64> = all.iter().map(&want).collect();
            let columns: Vec<Vec<f32>> = (0..arguments).map(|k| all.iter().map(|x| x[k]).collect()).collect();
            for (found, compute) in found.iter_mut().zip(&mut computers) {
                for ((got, want), x) in compute(&columns)?.iter().zip(&wants).zip(&all) {
                    let error = ulps(*got, *want);
                    if error > found.0 {
                        *found = (error, *x);
                    }
                }
            }
        }
    };
    let threads = os::allowed_cpus().len().max(1);
    let all = std::thread::scope(|s| {
        let running: Vec<_> = (0..threads).map(|_| s.spawn(one)).collect();
        let join = |t: std::thread::ScopedJoinHandle<'_, _>| {
            t.join().unwrap_or_else(|_| Err(Error::new(Code::Internal, "a thread panicked")))
        };
        running.into_iter().map(join).collect::<Result<Vec<_>>>()
    })?;
    Ok((0..isas.len())
        .map(|i| all.iter().map(|a| a[i]).fold((0.0, Given::default()), |a, b| if b.0 > a.0 { b } else { a }))
        .collect())
}

/// Bases and exponents of powers with rules of their own, and those beside them; negative, too.
const SPECIAL: [f32; 16] = [
    0.0,
    f32::INFINITY,
    f32::NAN,
    1.0,
    0.5,
    2.0,
    3.0,
    127.0,
    149.0,
    // The largest odd number, the even one after it, and one beyond all integers' steps.
    16_777_215.0,
    16_777_216.0,
    1e30,
    f32::MAX,
    f32::MIN_POSITIVE,
    1e-45,
    1.0 + f32::EPSILON,
];

fn accuracy(step: usize, only: &[String]) -> Result<()> {
    let wanted = |name: &str| only.is_empty() || only.iter().any(|o| o == name);
    if let Some(unknown) = only.iter().find(|o| *o != "pow" && FUNCTIONS.iter().all(|(name, _)| name != o)) {
        return Err(Error::new(Code::BadArgument, format!("'{unknown}': no function of the table")));
    }
    let mut isas: Vec<Isa> = Vec::new();
    for name in ["baseline", "avx2", "avx512"] {
        let isa = Isa::capped(name)?;
        if isas.last() != Some(&isa) {
            isas.push(isa);
        }
    }
    let head = isas.iter().map(|i| format!(" {} | at |", i.name())).collect::<String>();
    println!("| f32, largest error in ulp |{head}");
    println!("| --- |{}", " ---: | --- |".repeat(isas.len()));
    let tell = |name: &str, arguments: usize, found: Vec<(f64, Given)>| {
        let cells = found.iter().map(|(error, at)| {
            let at: Vec<String> = at[..arguments].iter().map(|x| format!("{x:e}")).collect();
            format!(" {error:.3} | {} |", at.join(", "))
        });
        println!("| {name} |{}", cells.collect::<String>());
    };
    for (name, f) in FUNCTIONS.into_iter().filter(|(name, _)| wanted(name)) {
        let given = |i: u64| [f32::from_bits(i as u32), 0.0];
        tell(name, 1, worst(name, step, &isas, 1, given, |x| f(f64::from(x[0])))?);
    }
    if !wanted("pow") {
        return Ok(());
    }
    let rng = Philox::new(8);
    let specials: Vec<f32> = SPECIAL.iter().flat_map(|v| [*v, -*v]).collect();
    // All pairs of special values; of the others half are any bits, half such that the result is a number.
    let pair = |i: u64| {
        let (x, y) = (i as usize / step / specials.len(), i as usize / step % specials.len());
        if x < specials.len() {
            return [specials[x], specials[y]];
        }
        let (a, b) = ((rng.unit(0, i) * 2f64.powi(32)) as u32, (rng.unit(1, i) * 2f64.powi(32)) as u32);
        if (i / 2).is_multiple_of(2) {
            return [f32::from_bits(a), f32::from_bits(b)];
        }
        let x = f32::from_bits(a & 0x7fff_ffff);
        [x, ((rng.unit(1, i) * 2.0 - 1.0) * 150.0 / f64::from(x).log2().abs().max(0.01)) as f32]
    };
    tell("pow", 2, worst("pow", step, &isas, 2, pair, |x| f64::from(x[0]).powf(f64::from(x[1])))?);
    Ok(())
}

/// Rounds in turns of each pair.
const ROUNDS: usize = 9;
/// A pair below this is a regression. Calls of a few elements take some 150 ns, and batches of them differ by a tenth.
const LEAST: f64 = 0.8;
/// How often a pair below it is measured; the best counts.
const TRIES: usize = 3;

/// Time of the plain loop by that of the kernel: median of the rounds.
fn against_loop(runner: &Runner, op: &'static OpDesc, size: u64) -> Result<f64> {
    let case = op.sized(DType::F32, size, Attrs::new())?;
    let (mut ours, mut plain) = (Ready::new(runner, op, &case, None)?, Ready::new(runner, op, &case, Some("naive"))?);
    let calls = [ours.calls()?, plain.calls()?];
    let mut ratios = Vec::new();
    for _ in 0..ROUNDS {
        let kernel = ours.batch(calls[0])?;
        ratios.push(plain.batch(calls[1])? / kernel);
    }
    Ok(stats::median(&ratios))
}

fn loops(wanted: &[String]) -> Result<bool> {
    wanted.iter().try_for_each(|name| op::find(name).map(|_| ()))?;
    let runner = runner(0)?;
    let sizes: [u64; 8] = [1, 2, 3, 8, 33, 100, 1000, 10_000];
    println!("| op, f32 | {} |", sizes.map(|s| s.to_string()).join(" | "));
    println!("| --- |{}", " ---: |".repeat(sizes.len()));
    let (mut below, mut slow) = (0, Vec::new());
    for op in op::all() {
        let both = op.kernels.iter().any(|k| k.variant == "naive") && op.dtypes.contains(&DType::F32);
        if !both || !wanted.is_empty() && !wanted.iter().any(|w| w == op.name) {
            continue;
        }
        let mut cells = Vec::new();
        for size in sizes {
            // Beyond a millisecond the plain loop is no rival for a small call.
            let cell = match op.sized(DType::F32, size, Attrs::new()).map(|c| (op.cost)(&c)) {
                Ok(cost) if cost.flops < 10_000_000 => {
                    let mut ratio = against_loop(&runner, op, size)?;
                    for _ in 1..TRIES {
                        if ratio < LEAST {
                            ratio = ratio.max(against_loop(&runner, op, size)?);
                        }
                    }
                    below += usize::from(ratio < 0.95);
                    if ratio < LEAST {
                        slow.push(format!("{} {size}: {ratio:.2}", op.name));
                    }
                    format!("{ratio:.2}")
                }
                _ => "-".into(),
            };
            cells.push(cell);
        }
        println!("| {} | {} |", op.name, cells.join(" | "));
    }
    println!("\nplain loop / kernel; {below} below 0.95, {} below {LEAST}", slow.len());
    if !slow.is_empty() {
        println!("slower than a plain loop: {}", slow.join(", "));
    }
    Ok(slow.is_empty())
}

/// Calls a second that one thread and eight get done, each with operands of its own, on one device.
fn callers() -> Result<()> {
    let runner = runner(0)?;
    println!("| case | 1 thread, calls/s | 8 threads, calls/s | ratio | range |");
    println!("| --- | ---: | ---: | ---: | --- |");
    for name in ["gemm/f32/m128,n128,k128/-/uniform", "exp/f32/n65536/-/uniform", "add/f32/n1048576/-/uniform"] {
        let case = case::parse(name)?;
        let op = op::find(case.op)?;
        let mut all = (0..8).map(|_| Ready::new(&runner, op, &case, None)).collect::<Result<Vec<_>>>()?;
        let calls = all[0].calls()? * 100;
        let (mut rates, mut ratios) = ([Vec::new(), Vec::new()], Vec::new());
        for _ in 0..ROUNDS {
            for (rates, threads) in rates.iter_mut().zip([1, 8]) {
                let next = AtomicUsize::new(0);
                let begun = Instant::now();
                std::thread::scope(|s| {
                    // The same operands for both: one thread takes them in turn.
                    for own in all.chunks_mut(8 / threads) {
                        s.spawn(|| {
                            let mut at = 0;
                            while next.fetch_add(1, Ordering::Relaxed) < calls {
                                at = (at + 1) % own.len();
                                if let Err(e) = own[at].batch(1) {
                                    println!("{name}: {e}");
                                    return;
                                }
                            }
                        });
                    }
                });
                rates.push(calls as f64 / begun.elapsed().as_secs_f64());
            }
            ratios.push(rates[1][rates[1].len() - 1] / rates[0][rates[0].len() - 1]);
        }
        let ratios = stats::sorted(&ratios);
        println!(
            "| {name} | {:.0} | {:.0} | {:.2} | {:.2} .. {:.2} |",
            stats::median(&rates[0]),
            stats::median(&rates[1]),
            stats::quantile(&ratios, 0.5),
            ratios[0],
            ratios[ratios.len() - 1]
        );
    }
    Ok(())
}

fn main() -> Result<ExitCode> {
    let args: Vec<String> = std::env::args().skip(1).filter(|a| a != "--bench").collect();
    // As `gpuctl bench` does: the caller on the first processor, the workers behind it. A thread of its own, because the
    // main thread's affinity tells which processors there are.
    // Nor do the threads of a program that calls from many stay on one.
    let measures = !args.iter().any(|a| a == "--accuracy" || a == "--callers");
    let driver = std::thread::spawn(move || {
        if measures && let Some(first) = os::allowed_cpus().first() {
            os::pin_current_thread(*first);
        }
        match args.first().map(String::as_str) {
            Some("--serve") => serve()?,
            Some("--callers") => callers()?,
            Some("--accuracy") => {
                let step = args.get(1).and_then(|a| a.parse().ok());
                accuracy(step.unwrap_or(1), &args[1 + usize::from(step.is_some())..])?
            }
            _ if !loops(&args)? => return Ok(ExitCode::FAILURE),
            _ => {}
        }
        Ok(ExitCode::SUCCESS)
    });
    driver.join().unwrap_or_else(|_| Err(Error::new(Code::Internal, "the driver thread panicked")))
}
