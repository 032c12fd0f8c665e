//! Points measured in several processes, one after the other. A worker opens the devices once and then measures the points
//! whose numbers it reads; the parent touches no device meanwhile and joins the rows.

use std::io::{BufRead, Write};

use serde::{Deserialize, Serialize};

use crate::base::record::{BenchRecord, Phases, Status};
use crate::base::sink::{Cancel, Collect, Sink};
use crate::base::{Code, DeviceInfo, Error, Result, Told, stats};
use crate::device::probe::Rig;
use crate::jobs::workers::{self, Start, Worker};
use crate::measure::processes::{median, ratio};

use super::point::{self, Bench, Measured, Point};
use super::{BenchConfig, BenchSummary, Source, run_points};

/// A worker's answer to the number of a point, one line of JSON.
#[derive(Debug, Serialize, Deserialize)]
enum Answer {
    /// The rows of all devices, with all samples.
    Rows(Vec<Measured>),
    /// The point cannot be measured on any device, or it was interrupted before there was a row.
    Error(Told),
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
            Ok(rows) => Answer::Rows(rows),
            Err(e) => Answer::Error(Told::from(&e)),
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
    run_some(&all, start, infos, sink, cancel)
}

/// Measures the points of these rows once more, in fresh processes.
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
    run_some(&some, start, infos, &mut sink, cancel)?;
    Ok(super::baseline::rows(&sink.records).cloned().collect())
}

fn run_some(
    points: &[(usize, &Point)],
    start: &Start,
    infos: &[DeviceInfo],
    sink: &mut dyn Sink,
    cancel: &Cancel,
) -> Result<BenchSummary> {
    let workers = (0..start.processes.max(1)).map(|i| Worker::start(start, i)).collect::<Result<Vec<_>>>()?;
    let mut crew = Crew { start, infos, workers };
    run_points(points, &mut crew, sink, cancel)
}

struct Crew<'a> {
    start: &'a Start,
    infos: &'a [DeviceInfo],
    workers: Vec<Worker>,
}

impl Source for Crew<'_> {
    fn rows(&mut self, index: usize, point: &Point, cancel: &Cancel) -> Result<Vec<BenchRecord>> {
        let mut all = Vec::new();
        for (number, worker) in self.workers.iter_mut().enumerate() {
            let mut answer = worker.ask(&index.to_string(), self.start.limit, cancel);
            // What contradicts itself is measured once more: another program may have had the cores.
            if matches!(&answer, Ok(Answer::Rows(rows)) if rows.iter().any(|m| m.row.subject.status == Status::Suspect))
            {
                answer = worker.ask(&index.to_string(), self.start.limit, cancel);
            }
            match answer {
                Ok(Answer::Rows(rows)) => all.push(rows),
                Ok(Answer::Error(told)) => return Err(told.error()),
                Err(e) if e.code() == Code::Cancelled => return Err(e),
                Err(e) => {
                    *worker = Worker::start(self.start, number)?;
                    let threads = self.infos.iter().find(|d| d.id == "cpu").map_or(0, |d| d.compute_units);
                    let lost = |info: &DeviceInfo| {
                        let mut row = point::blank(point, info, threads);
                        row.subject.status = Status::Failed;
                        row.subject.reason = format!("process {}: {e}", number + 1);
                        row
                    };
                    return Ok(self.infos.iter().map(lost).collect());
                }
            }
        }
        Ok(join(all))
    }
}

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
    };
    Some(row)
}
