//! Points measured in several processes, one process after the other. A worker opens the devices once and then measures the
//! points whose numbers it reads; the parent touches no device meanwhile and joins the rows.

use std::io::{BufRead, Write};

use serde::{Deserialize, Serialize};

use crate::base::record::{BenchRecord, KernelsRecord, Phases, Status};
use crate::base::sink::{Cancel, Collect, Progress, Sink};
use crate::base::{Code, DeviceInfo, Error, Result, Told, stats};
use crate::device::probe::Rig;
use crate::jobs::ceilings::judge::Ceilings;
use crate::jobs::workers::{self, Start, Worker};
use crate::measure::processes::{median, ratio};

use super::point::{self, Bench, Measured, Point};
use super::{BenchConfig, BenchSummary, judged};

/// A worker's answer to the number of a point, one line of JSON.
#[derive(Debug, Serialize, Deserialize)]
enum Answer {
    /// The rows of all devices, with all samples, and what became of the process's programs so far.
    Rows(Vec<Measured>, Vec<KernelsRecord>),
    /// The point cannot be measured on any device, or it was interrupted before there was a row.
    Error(Box<Told>),
}

/// The worker: reads numbers of points, one a line, and answers each with a line. Ends with its input, or where its output
/// is closed.
///
/// Errors: `BadArgument` for what is no number of a point.
pub fn worker(
    cfg: &BenchConfig,
    rig: &Rig,
    input: &mut dyn BufRead,
    output: &mut dyn Write,
    cancel: &Cancel,
) -> Result<()> {
    let points = point::points(cfg, &mut Collect::default())?;
    let mut bench = Bench::new(cfg, rig);
    workers::serve(input, output, |line| {
        let point = line.trim().parse::<usize>().ok().and_then(|i| points.get(i));
        let point = point.ok_or_else(|| Error::new(Code::BadArgument, format!("'{line}' is no point")))?;
        Ok(match bench.point(point, cancel) {
            Ok(rows) => Answer::Rows(rows, bench.kernels()),
            Err(e) => Answer::Error(Box::new(Told::from(&e))),
        })
    })
}

/// Runs all points in several processes and hands out their joined rows as they end. `infos`: the devices as this process
/// saw them, the baseline among them if its rows are wanted.
///
/// Errors: `WorkerCrashed` if no worker can be started; one that dies or hangs at a point leaves failed rows there.
pub fn run(
    cfg: &BenchConfig,
    start: &Start,
    infos: &[DeviceInfo],
    sink: &mut dyn Sink,
    cancel: &Cancel,
) -> Result<BenchSummary> {
    let points = point::points(cfg, sink)?;
    let all: Vec<(usize, &Point)> = points.iter().enumerate().collect();
    run_some(&all, start, (infos, &cfg.ceilings), sink, cancel)
}

/// Measures the points of these rows once more, in fresh processes. Where that was interrupted, rows may lack.
pub fn again(
    cfg: &BenchConfig,
    start: &Start,
    infos: &[DeviceInfo],
    rows: &[&BenchRecord],
    cancel: &Cancel,
) -> Result<Vec<BenchRecord>> {
    let mut sink = Collect::default();
    let points = point::points(cfg, &mut sink)?;
    let asked = |p: &Point| {
        rows.iter().any(|r| {
            r.subject.op == p.case.op
                && r.subject.dtype == p.case.dtype
                && r.subject.shape_text == p.case.shape_text()
                && r.residency == p.residency.name()
        })
    };
    let some: Vec<(usize, &Point)> = points.iter().enumerate().filter(|(_, p)| asked(p)).collect();
    run_some(&some, start, (infos, &cfg.ceilings), &mut sink, cancel)?;
    Ok(super::baseline::rows(&sink.records).cloned().collect())
}

/// Each process measures all points before the next one is started: a machine that changes its speed within minutes then
/// shows as a difference between processes, which intervals and verdicts know of. Rows come with the last process.
fn run_some(
    points: &[(usize, &Point)],
    start: &Start,
    known: (&[DeviceInfo], &Ceilings),
    sink: &mut dyn Sink,
    cancel: &Cancel,
) -> Result<BenchSummary> {
    let processes = start.processes.max(1);
    let (infos, ceilings) = known;
    let seen: Vec<&DeviceInfo> = infos.iter().collect();
    let hand_out = |passes: Passes, point: &Point, summary: &mut BenchSummary, sink: &mut dyn Sink| {
        let mut rows = passes.rows(point, infos);
        judged(point, rows.iter_mut(), &seen, ceilings);
        summary.hand_out(rows, sink);
    };
    let mut summary = BenchSummary::default();
    let mut measured: Vec<Passes> = points.iter().map(|_| Passes::default()).collect();
    'all: for number in 0..processes {
        let mut worker = Worker::start(start, number)?;
        let mut kernels = Vec::new();
        for (at, ((index, point), passes)) in points.iter().zip(&mut measured).enumerate() {
            sink.progress(&Progress {
                doing: format!("{} {} in process {}", point.case.op, point.case.shape_text(), number + 1),
                done: (number * points.len() + at) as u64,
                total: Some((processes * points.len()) as u64),
            });
            if passes.lost.is_none() {
                match ask(&mut worker, *index, start, cancel) {
                    Ok((rows, so_far)) => {
                        passes.rows.push(rows);
                        kernels = so_far;
                    }
                    Err(e) if e.code() == Code::Cancelled => {
                        summary.cancelled = true;
                        summary.joins(&kernels);
                        break 'all;
                    }
                    Err(e) if e.code() == Code::WorkerCrashed => {
                        worker = Worker::start(start, number)?;
                        summary.joins(&std::mem::take(&mut kernels));
                        passes.lost = Some(format!("process {}: {e}", number + 1));
                    }
                    Err(e) => return Err(e),
                }
            }
            if number + 1 == processes {
                hand_out(std::mem::take(passes), point, &mut summary, sink);
            }
        }
        summary.joins(&kernels);
    }
    // What was finished before an interruption is kept and handed out.
    for ((_, point), passes) in points.iter().zip(measured) {
        hand_out(passes, point, &mut summary, sink);
    }
    Ok(summary)
}

/// What the processes said of one point.
#[derive(Default)]
struct Passes {
    rows: Vec<Vec<Measured>>,
    /// How a process was lost there. It is not tried again.
    lost: Option<String>,
}

impl Passes {
    fn rows(self, point: &Point, infos: &[DeviceInfo]) -> Vec<BenchRecord> {
        let Some(why) = self.lost else { return join(self.rows) };
        let threads = infos.iter().find(|d| d.id == "cpu").map_or(0, |d| d.compute_units);
        let lost = |info: &DeviceInfo| {
            let mut row = point::blank(point, info, threads);
            row.subject.status = Status::Failed;
            row.subject.reason = why.clone();
            row
        };
        infos.iter().map(lost).collect()
    }
}

/// One point in one process; at most [`ATTEMPTS`] times where another program seems to have had the cores: what was measured
/// contradicts itself, or the machine was another one before and after.
fn ask(
    worker: &mut Worker,
    index: usize,
    start: &Start,
    cancel: &Cancel,
) -> Result<(Vec<Measured>, Vec<KernelsRecord>)> {
    let mut attempt = 1;
    loop {
        let (rows, kernels) = match worker.ask(&index.to_string(), start.limit, cancel)? {
            Answer::Rows(rows, kernels) => (rows, kernels),
            Answer::Error(told) => return Err(told.error()),
        };
        let doubtful = |m: &Measured| m.row.subject.status == Status::Suspect || m.drift.is_some();
        if attempt == ATTEMPTS || !rows.iter().any(doubtful) {
            return Ok((rows, kernels));
        }
        attempt += 1;
    }
}

/// Times that a process measures a point.
const ATTEMPTS: usize = 3;

/// One row per device from those of all processes, which name the devices in the same order.
fn join(mut all: Vec<Vec<Measured>>) -> Vec<BenchRecord> {
    let Some(first) = all.first() else { return Vec::new() };
    let devices: Vec<String> = first.iter().map(|m| m.row.subject.device.clone()).collect();
    let mut of = |device: &String| {
        let mine = all
            .iter_mut()
            .filter_map(|rows| rows.iter().position(|m| m.row.subject.device == *device).map(|i| rows.swap_remove(i)));
        one(mine.collect())
    };
    devices.iter().filter_map(&mut of).collect()
}

/// One device's row. What failed in one process failed; what some processes had no time for is the others'.
fn one(measured: Vec<Measured>) -> Option<BenchRecord> {
    let asked = measured.len();
    let bad = |s: Status| matches!(s, Status::Failed | Status::Suspect);
    if let Some((i, m)) = measured.iter().enumerate().find(|(_, m)| bad(m.row.subject.status)) {
        let mut row = m.row.clone();
        row.subject.reason = format!("process {}: {}", i + 1, row.subject.reason);
        return Some(row);
    }
    let (good, rest): (Vec<_>, Vec<_>) = measured.into_iter().partition(|m| m.row.subject.status == Status::Ok);
    let Some(first) = good.first() else { return rest.into_iter().next().map(|m| m.row) };
    let mut row = first.row.clone();
    if good.len() < asked {
        row.subject.flags.push(format!("processes: {} of {asked}", good.len()));
    }
    let mut flags: Vec<String> = good.iter().flat_map(|m| m.row.subject.flags.clone()).collect();
    flags.retain(|f| !row.subject.flags.contains(f));
    flags.dedup();
    row.subject.flags.extend(flags);
    if good.len() == 1 {
        return Some(row);
    }
    let pooled: Vec<f64> = good.iter().flat_map(|m| m.samples.iter().copied()).collect();
    let sorted = stats::sorted(&pooled);
    row.samples = pooled.len() as u64;
    // Of every process its share, for the document's 200.
    let share = 200 / good.len();
    row.samples_s = good.iter().flat_map(|m| m.samples.iter().copied().take(share)).collect();
    row.process_medians_s = good.iter().map(|m| stats::median(&m.samples)).collect();
    // A speed that one process could not tell is of no use beside the others'.
    row.machine_speeds = good.iter().flat_map(|m| m.row.machine_speeds.iter().copied()).collect();
    if row.machine_speeds.len() != good.len() {
        row.machine_speeds.clear();
    }
    if let Some(most) = good.iter().filter_map(|m| m.drift).reduce(f64::max) {
        row.subject.flags.push(format!("drift: {:.0} %", 100.0 * (most - 1.0)));
    }
    row.min_s = sorted.first().copied();
    row.p95_s = Some(stats::quantile(&sorted, 0.95));
    row.p99_s = Some(stats::quantile(&sorted, 0.99));
    let views: Vec<&[f64]> = good.iter().map(|m| m.samples.as_slice()).collect();
    if let Some(e) = median(&views) {
        let scale = row.median_s.map_or(1.0, |old| old / e.value);
        (row.gflops, row.gbps) = (row.gflops.map(|v| v * scale), row.gbps.map(|v| v * scale));
        row.peak_fraction = row.peak_fraction.map(|v| v * scale);
        (row.median_s, row.ci_s, row.between_processes) = (Some(e.value), Some(e.ci), Some(e.between));
    }
    let pairs: Vec<(&[f64], &[f64])> =
        good.iter().filter(|m| !m.cpu_samples.is_empty()).map(|m| (&m.cpu_samples[..], &m.samples[..])).collect();
    if let Some(e) = ratio(&pairs) {
        (row.speedup_vs_cpu, row.speedup_ci) = (Some(e.value), Some(e.ci));
    }
    let phase = |of: fn(&Phases) -> Option<f64>| {
        let all: Vec<f64> = good.iter().filter_map(|m| of(&m.row.phases_s)).collect();
        (!all.is_empty()).then(|| stats::median(&all))
    };
    row.phases_s = Phases {
        alloc: phase(|p| p.alloc),
        h2d: phase(|p| p.h2d),
        launch: phase(|p| p.launch),
        kernel: phase(|p| p.kernel),
        sync: phase(|p| p.sync),
        d2h: phase(|p| p.d2h),
        kernel_clock: row.phases_s.kernel_clock,
    };
    Some(row)
}
