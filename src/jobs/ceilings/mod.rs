//! What a device reaches at most, measured: copies on it and in its caches, arithmetic, its link, its launches.
//!
//! The probes are ops like any other, so that their results are checked and their samples come from several processes
//! ([`mod@bench`]). [`judge`] holds rows of `bench` against what was found.

pub mod judge;

use std::io::{BufRead, Write};
use std::sync::Arc;

use crate::base::record::{BenchRecord, CeilingRecord, NoiseRecord, Record, Status};
use crate::base::sink::{Cancel, Collect, Sink};
use crate::base::{Attr, Attrs, Backend, Case, DType, DeviceInfo, Fill, Result};
use crate::device::probe::Rig;
use crate::device::{DEADLINE, Device};
use crate::engine::KernelCache;
use crate::engine::Runner;
use crate::jobs::bench::{self, BenchConfig, BenchSummary, baseline, processes};
use crate::jobs::workers::Start;
use crate::measure::{Cache, OpSubject, Residency, noise};
use crate::op::{OpDesc, Probe, case};

/// Steps of a chain of multiply-adds: a call lasts far longer than its launch.
const STEPS: i64 = 4096;

/// Chains per unit: 2,048 work-items of eight.
const CHAINS: u64 = 16_384;

/// Launches in a row.
const QUEUED: u64 = 256;

/// Bytes that cross the link: its latency must not count.
const LINK_BYTES: u64 = 64 << 20;

/// A result above this share of what is possible is not believed.
pub const BEYOND: f64 = 1.05;

/// Longest timed region of short calls in seconds: what is to be had at most is not to be had while a wait is a part of it. On an H200
/// a wait for CUDA takes 20 us, one through Vulkan 200 us, and a copy of 512 MiB 125 us. Regions are no longer than that asks for:
/// a laptop that has worked for seconds is slower than it can be.
const REGION_S: f64 = 2e-3;

/// Most bytes of a copy's operands.
const LARGEST: u64 = 512 << 20;

/// One thing to measure.
struct Probing {
    what: &'static str,
    probe: Probe,
    case: Case,
    /// What a call amounts to, in units of `unit`.
    amount: f64,
    unit: &'static str,
}

/// What is measured on these devices, the same list in every process.
fn probings(infos: &[DeviceInfo]) -> Result<Vec<Probing>> {
    let mut all = Vec::new();
    let mut add = |what, probe: Probe, dtype, n: u64, attrs: Attrs, amount, unit| -> Result<()> {
        let case = probe.op().case(dtype, &[n], attrs, Fill::Uniform)?;
        all.push(Probing { what, probe, case, amount, unit });
        Ok(())
    };
    let beyond = beyond_all(infos);
    let within = [32 << 10, 256 << 10, 2 << 20, 16 << 20].into_iter().filter(|b| *b < beyond);
    for bytes in within.chain([beyond]) {
        // Elements of four bytes in this many operands.
        for (what, probe, operands) in [("copy", Probe::Copy, 2), ("read", Probe::Read, 2), ("write", Probe::Write, 1)]
        {
            add(what, probe, DType::F32, bytes / 4 / operands, Attrs::new(), bytes as f64 * 1e-9, "GB/s")?;
        }
    }
    add("d2d", Probe::OnDevice, DType::I32, beyond / 8, Attrs::new(), beyond as f64 * 1e-9, "GB/s")?;
    let units = infos.iter().map(units).max().unwrap_or(1);
    for dtype in [DType::F32, DType::F64] {
        let n = CHAINS * units;
        let steps = Attrs::new().with("steps", Attr::Int(STEPS));
        add("fma", Probe::Arithmetic, dtype, n, steps, 2e-9 * STEPS as f64 * n as f64, "GFLOP/s")?;
    }
    for (what, probe) in [("h2d", Probe::Upload), ("d2h", Probe::Download)] {
        for memory in ["pageable", "pinned"] {
            // The default is written like any default: not at all.
            let attrs = match memory {
                "pageable" => Attrs::new(),
                other => Attrs::new().with("memory", Attr::Word(other.into())),
            };
            add(what, probe, DType::I32, LINK_BYTES / 4, attrs, LINK_BYTES as f64 * 1e-9, "GB/s")?;
        }
    }
    add("launch", Probe::Launch, DType::I32, 1, Attrs::new(), 1.0, "s")?;
    add("launch-queued", Probe::Launch, DType::I32, QUEUED, Attrs::new(), QUEUED as f64, "s")?;
    Ok(all)
}

/// Bytes that no device keeps in its last cache: four times the largest, and so many that a launch does not count.
fn beyond_all(infos: &[DeviceInfo]) -> u64 {
    let cache = infos.iter().filter_map(|d| d.cache_bytes).max().unwrap_or(0);
    cache.saturating_mul(4).clamp(64 << 20, LARGEST)
}

/// Units to fill with work; a GPU that does not tell theirs may be a large one.
fn units(info: &DeviceInfo) -> u64 {
    match info.compute_units {
        0 if info.is_software() => 2,
        0 => 128,
        n => u64::from(n.min(1024)),
    }
}

fn config(infos: &[DeviceInfo], budget_s: f64) -> Result<(Vec<Probing>, BenchConfig)> {
    let probings = probings(infos)?;
    // A launch with its wait is one call; the next one must not follow before.
    let case = |p: &Probing| (p.probe.op(), p.case.clone(), p.what == "launch");
    // Arithmetic first: after seconds of work a laptop's clocks are lower than in a short call, which would then seem to be faster
    // than the device can be.
    let (first, then): (Vec<_>, Vec<_>) = probings.iter().partition(|p| p.what == "fma");
    let cases: Vec<(&'static OpDesc, Case, bool)> = first.into_iter().chain(then).map(case).collect();
    let cfg = BenchConfig {
        ops: Vec::new(),
        sizes: None,
        shape: None,
        attrs: String::new(),
        dtypes: Vec::new(),
        residencies: vec![Residency::Resident],
        variant: None,
        cpu_variant: None,
        budget_s,
        region_s: REGION_S,
        cache: Cache::Hot,
        cases,
        ceilings: judge::Ceilings::default(),
        // A handful of kernels that nobody else uses.
        kernels: KernelCache::off(),
    };
    Ok((probings, cfg))
}

fn infos(rig: &Rig) -> Vec<DeviceInfo> {
    rig.devices.iter().map(|d| d.info().clone()).collect()
}

/// Measures in this process. `budget_s`: seconds for each probe and device.
pub fn run(rig: &Rig, budget_s: f64, sink: &mut dyn Sink, cancel: &Cancel) -> Result<BenchSummary> {
    let infos = infos(rig);
    let (probings, cfg) = config(&infos, budget_s)?;
    let mut rows = Rows { sink, rows: Collect::default() };
    let summary = bench::run(&cfg, rig, &mut rows, cancel)?;
    hand_out(&probings, &infos, rows);
    Ok(summary)
}

/// Measures in fresh processes, which `start` says how to start; [`worker`] is what they run.
pub fn run_workers(
    infos: &[DeviceInfo],
    budget_s: f64,
    start: &Start,
    sink: &mut dyn Sink,
    cancel: &Cancel,
) -> Result<BenchSummary> {
    let (probings, cfg) = config(infos, budget_s)?;
    let mut rows = Rows { sink, rows: Collect::default() };
    let summary = processes::run(&cfg, start, infos, &mut rows, cancel)?;
    hand_out(&probings, infos, rows);
    Ok(summary)
}

/// Answers orders of [`run_workers`] in another process.
pub fn worker(
    rig: &Rig,
    budget_s: f64,
    input: &mut dyn BufRead,
    output: &mut dyn Write,
    cancel: &Cancel,
) -> Result<()> {
    let (_, cfg) = config(&infos(rig), budget_s)?;
    processes::worker(&cfg, rig, input, output, cancel)
}

/// Keeps rows until they are joined, and passes everything else on.
struct Rows<'a> {
    sink: &'a mut dyn Sink,
    rows: Collect,
}

impl Sink for Rows<'_> {
    fn record(&mut self, record: &Record) {
        self.rows.record(record);
    }
    fn progress(&mut self, p: &crate::base::sink::Progress) {
        self.sink.progress(p);
    }
    fn note(&mut self, text: &str) {
        self.sink.note(text);
    }
}

fn hand_out(probings: &[Probing], infos: &[DeviceInfo], rows: Rows<'_>) {
    for info in infos {
        for p in probings {
            let is_it = |r: &&BenchRecord| {
                let s = &r.subject;
                s.device == info.id
                    && s.op == p.case.op
                    && s.dtype == p.case.dtype
                    && s.shape_text == p.case.shape_text()
                    && s.attrs == p.case.attrs
            };
            // An interrupted run has no row of what came after.
            if let Some(row) = baseline::rows(&rows.rows.records).find(is_it) {
                rows.sink.record(&Record::Ceiling(Box::new(ceiling(p, info, row))));
            }
        }
    }
}

/// A row as a ceiling.
fn ceiling(p: &Probing, info: &DeviceInfo, row: &BenchRecord) -> CeilingRecord {
    let link = matches!(p.probe, Probe::Upload | Probe::Download);
    // Times of launches are seconds each, everything else is an amount per second.
    let of = |s: f64| if p.unit == "s" { s / p.amount } else { p.amount / s };
    let known = info.theoretical.as_ref();
    let theoretical = match (p.probe, p.case.dtype) {
        (Probe::Arithmetic, DType::F32) => known.and_then(|t| t.f32_gflops),
        (Probe::Arithmetic, _) => known.and_then(|t| t.f64_gflops),
        // Smaller operands are in a cache, whose peak is not told.
        (Probe::Copy | Probe::Read | Probe::Write | Probe::OnDevice, _) if beyond_cache(info, p.bytes()) => {
            known.and_then(|t| t.memory_gbps)
        }
        _ => None,
    };
    let memory = if link { p.case.attrs.word("memory", "pageable").to_string() } else { String::new() };
    let mut record = CeilingRecord {
        device: info.id.clone(),
        uid: info.uid.clone(),
        what: p.what.into(),
        dtype: (p.probe == Probe::Arithmetic).then_some(p.case.dtype),
        bytes: p.bytes(),
        memory,
        unit: p.unit.into(),
        value: row.median_s.map(of),
        ci: row.ci_s.map(|c| {
            let [a, b] = c.map(of);
            [a.min(b), a.max(b)]
        }),
        theoretical,
        samples: row.samples,
        processes: row.process_medians_s.len() as u64,
        variant: row.subject.variant.clone(),
        status: row.subject.status,
        reason: if row.subject.status == Status::Ok { String::new() } else { row.subject.reason.clone() },
    };
    if link && info.backend == Backend::Cpu {
        record.value = None;
        record.ci = None;
        record.status = Status::Unsupported;
        record.reason = "the CPU works in the host's memory: there is no link".into();
    }
    if let (Some(value), Some(peak), Status::Ok) = (record.value, record.theoretical, record.status)
        && value > BEYOND * peak
    {
        record.status = Status::Suspect;
        record.reason = format!(
            "{:.0} % of the theoretical peak: the work was skipped, or the peak is wrong",
            100.0 * value / peak
        );
    }
    record
}

/// True if operands of so many bytes find nothing of themselves in the last cache.
fn beyond_cache(info: &DeviceInfo, bytes: u64) -> bool {
    info.cache_bytes.is_some_and(|c| bytes >= c.saturating_mul(2))
}

impl Probing {
    /// Bytes of all operands; of a copy over the link those that cross it.
    fn bytes(&self) -> u64 {
        let cost = (self.probe.op().cost)(&self.case);
        match self.probe {
            Probe::Upload | Probe::Download => cost.written,
            _ => cost.bytes(),
        }
    }
}

/// Elements of the copy that the self-calibration repeats: short enough for many samples, long enough for the clock.
const NOISE_ELEMENTS: u64 = 65_536;

/// How each device's sampling judges equal things and a known ratio, in this process; at most `budget_s` seconds in all.
/// A device that cannot even copy is a note.
pub fn noise(rig: &Rig, budget_s: f64, sink: &mut dyn Sink, cancel: &Cancel) -> Vec<NoiseRecord> {
    let share = budget_s / rig.devices.len().max(1) as f64;
    let mut of = |device| match noise_of(device, share, cancel) {
        Ok(found) => Some(found),
        Err(e) => {
            sink.note(&format!("{}: no self-calibration: {e}", device.info().id));
            None
        }
    };
    rig.devices.iter().filter_map(&mut of).collect()
}

fn noise_of(device: &Arc<dyn Device>, budget_s: f64, cancel: &Cancel) -> Result<NoiseRecord> {
    let runner = Runner::new(Arc::clone(device));
    let op = Probe::Copy.op();
    let case = op.case(DType::F32, &[NOISE_ELEMENTS], Attrs::new(), Fill::Uniform)?;
    let inputs = case::inputs(op, &case)?;
    // Both in one memory: where operands happen to lie makes two copies of 256 KiB differ by 17 % on a CPU, and that is no fault
    // of the sampler's.
    let prepared = runner.prepare(op, &case, None)?;
    let subject = || OpSubject::new(&runner, &prepared, &inputs, Residency::Resident, DEADLINE);
    let (mut a, mut b) = (subject()?, subject()?);
    let found = noise::noise(&mut a, &mut b, budget_s, cancel)?;
    let fault = found.fault();
    Ok(NoiseRecord {
        device: device.info().id.clone(),
        uid: device.info().uid.clone(),
        null_ratio: found.null.0,
        null_ci: found.null.1,
        floor: found.floor(),
        known: noise::TIMES as f64,
        known_ratio: found.known.0,
        known_ci: found.known.1,
        pairs: found.pairs,
        sound: fault.is_none(),
        reason: fault.unwrap_or_default(),
    })
}
