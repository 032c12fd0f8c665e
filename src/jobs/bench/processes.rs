//! Points measured in several processes, one after the other. A worker opens the devices once and then measures the points
//! whose numbers it reads; the parent touches no device meanwhile and joins the rows.

use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::base::record::{BenchRecord, Phases, Status};
use crate::base::sink::{Cancel, Collect, Sink};
use crate::base::{Code, DeviceInfo, Error, Result, stats};
use crate::device::probe::Rig;
use crate::measure::processes::{median, ratio};

use super::point::{self, Bench, Measured, Point};
use super::{BenchConfig, BenchSummary, Source, run_points};

/// A worker's answer to the number of a point, one line of JSON.
#[derive(Debug, Serialize, Deserialize)]
enum Answer {
    /// The rows of all devices, with all samples.
    Rows(Vec<Measured>),
    /// Interrupted before there was a row.
    Cancelled,
    /// The point cannot be measured on any device.
    Error {
        /// Code of the error.
        code: String,
        /// The error in words.
        text: String,
    },
}

/// How to start a worker: this program, its subcommand and arguments.
#[derive(Clone, Debug)]
pub struct Start {
    /// The program.
    pub program: PathBuf,
    /// Its arguments.
    pub arguments: Vec<String>,
    /// Number of workers, at least 1.
    pub processes: usize,
    /// Seconds after which a point is given up: a driver hangs.
    pub limit: Duration,
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
    for line in input.lines() {
        let line = line.map_err(|e| Error::new(Code::Io, "the worker's orders").caused_by(e))?;
        let point = line.trim().parse::<usize>().ok().and_then(|i| points.get(i));
        let point = point.ok_or_else(|| Error::new(Code::BadArgument, format!("'{line}' is no point")))?;
        let answer = match bench.point(point, cancel) {
            Ok(rows) => Answer::Rows(rows),
            Err(e) if e.code() == Code::Cancelled => Answer::Cancelled,
            Err(e) => Answer::Error { code: e.code().name().into(), text: e.to_string() },
        };
        let text = serde_json::to_string(&answer)
            .map_err(|e| Error::new(Code::Internal, "an answer cannot be written").caused_by(e))?;
        if writeln!(output, "{text}").and_then(|()| output.flush()).is_err() {
            // The parent is gone.
            return Ok(());
        }
    }
    Ok(())
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
            match worker.ask(index, self.start.limit, cancel) {
                Ok(Answer::Rows(rows)) => all.push(rows),
                Ok(Answer::Cancelled) => return Err(Error::new(Code::Cancelled, "interrupted while it was measured")),
                Ok(Answer::Error { code, text }) => {
                    let code = Code::ALL.iter().copied().find(|c| c.name() == code).unwrap_or(Code::Internal);
                    return Err(Error::new(code, text));
                }
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

/// A process and its lines.
struct Worker {
    child: Child,
    orders: Option<ChildStdin>,
    answers: Receiver<String>,
}

impl Worker {
    fn start(start: &Start, number: usize) -> Result<Self> {
        let failed = |e: std::io::Error| {
            Error::new(Code::WorkerCrashed, format!("cannot start {}", start.program.display())).caused_by(e)
        };
        let mut command = Command::new(&start.program);
        command
            .args(&start.arguments)
            .env("GPUCTL_PROCESS", number.to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        // A group of its own: Ctrl-C at the terminal reaches the parent alone, which then ends the worker.
        #[cfg(unix)]
        std::os::unix::process::CommandExt::process_group(&mut command, 0);
        let mut child = command.spawn().map_err(failed)?;
        let (send, answers) = sync_channel(16);
        if let Some(output) = child.stdout.take() {
            std::thread::spawn(move || {
                for line in BufReader::new(output).lines() {
                    if !line.is_ok_and(|l| send.send(l).is_ok()) {
                        break;
                    }
                }
            });
        }
        Ok(Worker { orders: child.stdin.take(), child, answers })
    }

    fn ask(&mut self, index: usize, limit: Duration, cancel: &Cancel) -> Result<Answer> {
        let crashed = |worker: &mut Self, how: &str| {
            let _ = worker.child.kill();
            let ended = worker.child.wait().map_or_else(|e| e.to_string(), |s| s.to_string());
            Error::new(Code::WorkerCrashed, format!("a process that measures {how} ({ended})"))
        };
        let sent = self.orders.as_mut().is_some_and(|o| writeln!(o, "{index}").and_then(|()| o.flush()).is_ok());
        if !sent {
            return Err(crashed(self, "takes no orders"));
        }
        let begin = Instant::now();
        loop {
            match self.answers.recv_timeout(Duration::from_millis(20)) {
                // Lines that are no answer are a driver's chatter.
                Ok(line) => {
                    if let Ok(answer) = serde_json::from_str(&line) {
                        return Ok(answer);
                    }
                }
                Err(RecvTimeoutError::Disconnected) => return Err(crashed(self, "ended")),
                Err(RecvTimeoutError::Timeout) => {}
            }
            if cancel.raised() {
                return Err(Error::new(Code::Cancelled, "interrupted while it was measured"));
            }
            if begin.elapsed() > limit {
                return Err(crashed(self, &format!("gave no answer in {:.0} s", limit.as_secs_f64())));
            }
        }
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        drop(self.orders.take());
        // It sleeps in its last read or is in the middle of a point that nobody waits for.
        let _ = self.child.kill();
        let _ = self.child.wait();
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
