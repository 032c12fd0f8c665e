//! The process that touches the driver: it runs one phase, reports over a pipe, and may die or hang doing so.
//!
//! Invariants: every line is flushed at once, the name of an operation before the operation; a parent that is gone
//! (standard input at its end, or a broken pipe) ends the worker.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::base::record::{Speed, StressSample};
use crate::base::stats::{quantile, sorted};
use crate::base::{Absence, Cancel, Code, DeviceInfo, Env, Error, Result, Told, os};
use crate::device::cpu::Pin;
use crate::device::probe::{CpuConfig, Select, open, open_apart};
use crate::device::tap::{KEPT, Tracer};
use crate::device::{Device, LedgerState, traced};
use crate::engine::KernelCache;
use crate::engine::trace::{Part, Talk};

use super::planted::{Plant, Planted};
use super::scenario::{self, Counts, Ctx, Meter, Open};

/// What a worker is to do; handed over as JSON.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Task {
    /// Devices as `--device` names them; `None` for the default ones.
    pub device: Option<String>,
    /// The phase; `None` only lists the devices.
    pub phase: Option<Phase>,
    /// Instead of either: lose the device for real, see what becomes of it, and die of it if need be.
    #[serde(default)]
    pub lose: bool,
}

/// One phase: a scenario on one device.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Phase {
    /// Scenario name.
    pub scenario: String,
    /// Seconds, references included.
    pub seconds: f64,
    /// Threads for scenarios that use many.
    pub threads: u32,
    /// A lane without progress for this long is stuck.
    pub heartbeat: f64,
    /// Seed of everything random.
    pub seed: u64,
    /// A planted fault.
    pub inject: Option<String>,
    /// Devices of the run that are the same card, this one included; 0 counts as 1.
    #[serde(default)]
    pub sharing: u32,
    /// Folder for the worker's part of a trace.
    #[serde(default)]
    pub trace: Option<PathBuf>,
    /// The program that may be started to lose the device for real ([`Task::lose`]); `None`: losses are only injected.
    #[serde(default)]
    pub victim: Option<PathBuf>,
}

/// What a worker says, one JSON object per line.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "say", rename_all = "kebab-case")]
pub enum Line {
    /// The devices of the selection, opened, and what is not there.
    Devices {
        /// Usable devices.
        devices: Vec<DeviceInfo>,
        /// The others, with reasons.
        absent: Vec<Absence>,
    },
    /// A lane is about to do this.
    Op {
        /// The lane (thread).
        lane: u32,
        /// The operation.
        doing: String,
    },
    /// A sample and the counts so far.
    Sample {
        /// The sample.
        sample: StressSample,
        /// Counts.
        counts: Counts,
        /// Seconds tested so far.
        tested: f64,
    },
    /// A wrong result or a failed operation, in words.
    Finding {
        /// Which case, which element, which error.
        what: String,
    },
    /// Something that is left out, with its reason.
    NotTested {
        /// What and why.
        what: String,
    },
    /// A lane made no progress for longer than the heartbeat.
    Stalled {
        /// The operation that does not return.
        doing: String,
        /// Seconds without progress.
        seconds: f64,
    },
    /// The phase is over.
    Finished {
        /// Counts.
        counts: Counts,
        /// Seconds tested.
        tested: f64,
        /// The scenario's own counts.
        counters: BTreeMap<String, u64>,
        /// How fast it did works that were the same each time.
        #[serde(default)]
        speeds: BTreeMap<String, Speed>,
        /// The ledger before the first and after the last operation.
        ledger: (LedgerState, LedgerState),
        /// Errors of releases, which had nobody to return to.
        release_errors: Vec<String>,
        /// The planted fault, or the parts of it, that never came up.
        #[serde(default)]
        unmet: Option<String>,
    },
    /// What became of a device that was to be lost for real, in the process that lost it.
    Lost {
        /// The error that the driver gave; `None` if it noticed nothing.
        seen: Option<Told>,
        /// The device was opened again and used.
        back: bool,
        /// A wrong result on the way.
        wrong: Option<String>,
    },
    /// The worker cannot do the task.
    Refused(Told),
}

/// Runs a task in a worker process: the hidden subcommand `stress-worker`. `task` is the JSON of a [`Task`], `out` the
/// pipe to the parent. The end of standard input asks the worker to stop; one that does not manage within ten seconds
/// aborts itself, so that no orphan keeps a device busy.
///
/// Errors: `BadArgument` for a task that is not valid; everything else is reported on `out`.
pub fn worker(task: &str, out: &mut (dyn Write + Send), env: &Env) -> Result<()> {
    let stop = Cancel::new();
    let raise = stop.clone();
    std::thread::spawn(move || {
        let mut byte = [0u8; 64];
        // A read error means the same as the end: nobody is there any more.
        while std::io::stdin().read(&mut byte).is_ok_and(|n| n > 0) {}
        raise.raise();
        std::thread::sleep(Duration::from_secs(10));
        std::process::abort();
    });
    run_task(task, out, env, stop)
}

/// The same without a claim on standard input: `stop` ends the phase. For tests and library users.
pub fn run_task(task: &str, out: &mut (dyn Write + Send), env: &Env, stop: Cancel) -> Result<()> {
    let task: Task = serde_json::from_str(task)
        .map_err(|e| Error::new(Code::BadArgument, "the worker's task is not valid").caused_by(e))?;
    if task.lose {
        os::expendable();
    }
    let select = task.device.as_deref().map_or(Ok(Select::Default), Select::parse)?;
    // Workers of the CPU device stay unpinned: a soak shares the machine with others.
    let config = CpuConfig { threads: 0, pin: Pin::Free };
    let listed = task.phase.is_none() && !task.lose;
    let rig = match if listed { open_apart(&select, env, config) } else { open(&select, env, config) } {
        Ok(rig) => rig,
        Err(e) => return say(out, &Line::Refused((&e).into())),
    };
    if listed {
        let devices = rig.devices.iter().map(|d| d.info().clone()).collect();
        return say(out, &Line::Devices { devices, absent: rig.absent });
    }
    let missing = || Error::new(Code::DeviceMissing, "the selection holds no device");
    let Some(device) = rig.devices.into_iter().next() else {
        return say(out, &Line::Refused((&missing()).into()));
    };
    let (select, again) = (Select::Named(vec![device.info().id.clone()]), env.clone());
    let open = move || {
        let rig = open(&select, &again, config)?;
        rig.devices.into_iter().next().ok_or_else(missing)
    };
    let (open, kernels): (Open, _) = (Arc::new(open), KernelCache::of(env).read_only());
    match task.phase {
        Some(phase) => run_phase_opening(device, open, &phase, kernels, out, stop),
        None => match scenario::victim(device, open, kernels, &mut |line| say(out, line)) {
            Ok(()) => Ok(()),
            Err(e) => say(out, &Line::Refused((&e).into())),
        },
    }
}

fn say(out: &mut (dyn Write + Send), line: &Line) -> Result<()> {
    let lost = |e: std::io::Error| Error::new(Code::Io, "the parent does not listen").caused_by(e);
    let mut text = serde_json::to_vec(line).map_err(|e| lost(e.into()))?;
    text.push(b'\n');
    out.write_all(&text).and_then(|()| out.flush()).map_err(lost)
}

/// Runs a phase on an opened device and reports on `out` until it is over or `stop` is raised. Scenarios that open the
/// device again get the same one; for real ones see [`run_phase_opening`].
pub fn run_phase(
    device: Arc<dyn Device>,
    phase: &Phase,
    kernels: KernelCache,
    out: &mut (dyn Write + Send),
    stop: Cancel,
) -> Result<()> {
    let same = Arc::clone(&device);
    run_phase_opening(device, Arc::new(move || Ok(Arc::clone(&same))), phase, kernels, out, stop)
}

/// The same for a device that can be opened once more, by `open`, beside the one that is open.
pub fn run_phase_opening(
    device: Arc<dyn Device>,
    open: Open,
    phase: &Phase,
    kernels: KernelCache,
    out: &mut (dyn Write + Send),
    stop: Cancel,
) -> Result<()> {
    let scenario = scenario::find(&phase.scenario)?;
    let plant = Arc::new(Plant::new(Planted::parse(phase.inject.as_deref())?));
    let serial = device.serial();
    let device = plant.plant(device);
    let (later, first) = (Arc::clone(&plant), Arc::clone(&device));
    // One device has one plan of faults, however often it is handed out.
    let open: Open = Arc::new(move || {
        let again = open()?;
        Ok(if again.serial() == serial { Arc::clone(&first) } else { later.plant(again) })
    });
    let work = |device, out: &mut (dyn Write + Send)| work(scenario, device, open, phase, &plant, kernels, out, stop);
    let Some(folder) = &phase.trace else { return work(device, out) };
    let tracer = Tracer::new(&format!("gpuctl stress worker, {}", phase.scenario), KEPT);
    let part = Part::new(folder, &tracer)?;
    part.begin().map_err(|e| Error::new(Code::Io, "the part of a trace").caused_by(e))?;
    // Outside of planted faults, so that they are in the trace as well.
    let device = traced::device(device, &tracer);
    let mut out = Talk(out, part.clone(), TRACED);
    work(device, &mut out)?;
    part.write(true).map_err(|e| Error::new(Code::Io, "the part of a trace").caused_by(e))
}

/// How often a worker's part of a trace is written: a crash loses no more of it.
const TRACED: Duration = Duration::from_millis(250);

#[allow(clippy::too_many_arguments, reason = "what a phase has, passed on by its only caller")]
fn work(
    scenario: &'static scenario::Scenario,
    device: Arc<dyn Device>,
    open: Open,
    phase: &Phase,
    plant: &Plant,
    kernels: KernelCache,
    out: &mut (dyn Write + Send),
    stop: Cancel,
) -> Result<()> {
    // Longer than the heartbeat, so that the watch names a stuck lane before its wait gives up.
    let deadline = Duration::from_secs_f64((2.0 * phase.heartbeat).clamp(1.0, 600.0));
    let meter = Meter::new(out, (scenario.lanes)(phase.threads), stop, deadline, plant.what().crash_after());
    let before = device.ledger().state();
    let start = Instant::now();
    let ctx = Ctx {
        device: Arc::clone(&device),
        open,
        seconds: phase.seconds,
        threads: phase.threads,
        sharing: phase.sharing.max(1),
        seed: phase.seed,
        start,
        kernels,
        victim: phase.victim.clone(),
        meter: &meter,
    };
    let idle = *plant.what() == Planted::Zero;
    let ended = std::thread::scope(|scope| {
        let work = scope.spawn(|| if idle { Ok(()) } else { (scenario.run)(&ctx) });
        watch(&meter, phase, start, || work.is_finished());
        work.join()
    });
    match ended {
        Ok(Ok(())) => {}
        // The device is lost or the scenario cannot go on; the error is counted already or counted here.
        Ok(Err(e)) if meter.counts().errors > 0 => log::debug!("the phase ended early: {e}"),
        Ok(Err(e)) => {
            meter.failed(&e);
        }
        // A panic is a crash of the worker and must look like one.
        Err(panic) => std::panic::resume_unwind(panic),
    }
    let after = meter.with_left(device.ledger().state());
    meter.send(&Line::Finished {
        counts: meter.counts(),
        tested: meter.tested_seconds(),
        counters: meter.counters(),
        speeds: meter.speeds(),
        ledger: (before, after),
        release_errors: device.ledger().release_errors(),
        unmet: plant.unmet(),
    });
    Ok(())
}

/// Longest round of the watch that a busy machine explains.
const AWAY: Duration = Duration::from_millis(1500);

/// Samples and watches the lanes until the work is over.
fn watch(meter: &Meter<'_>, phase: &Phase, start: Instant, over: impl Fn() -> bool) {
    // About once a second, and some twenty times in a short phase.
    let every = (phase.seconds / 20.0).clamp(0.05, 1.0);
    let mut last = (0.0, 0u64);
    let mut seen: Vec<(Option<u64>, Instant, bool)> = vec![(None, start, false); meter.lanes().len()];
    let mut looked = Instant::now();
    loop {
        // A round takes some hundredths of a second. After a longer gap the process was stopped, or its reports were not
        // taken: lanes that stood still meanwhile are not stuck.
        let gap = looked.elapsed();
        looked = Instant::now();
        if gap > AWAY {
            meter.away(gap);
            seen.iter_mut().for_each(|lane| lane.1 += gap);
        }
        let ended = over();
        let t = start.elapsed().as_secs_f64();
        if t - last.0 >= every || ended {
            let counts = meter.counts();
            let sample = sample(meter, t, (counts.done - last.1) as f64 / (t - last.0).max(1e-9));
            last = (t, counts.done);
            meter.send(&Line::Sample { sample, counts, tested: meter.tested_seconds() });
        }
        if ended {
            return;
        }
        for (lane, state) in meter.lanes().into_iter().zip(&mut seen) {
            let steps = lane.as_ref().map(|l| l.0);
            if steps != state.0 || steps.is_none() {
                *state = (steps, Instant::now(), false);
            } else if let Some((_, doing)) = lane {
                let seconds = state.1.elapsed().as_secs_f64();
                if seconds > phase.heartbeat && !state.2 {
                    state.2 = true;
                    meter.send(&Line::Stalled { doing, seconds });
                }
            }
        }
        std::thread::sleep(Duration::from_millis(20).min(Duration::from_secs_f64(every)));
    }
}

fn sample(meter: &Meter<'_>, t: f64, rate: f64) -> StressSample {
    let times = sorted(&meter.take_times());
    let at = |q: f64| (!times.is_empty()).then(|| quantile(&times, q));
    let ledger = meter.last_quiet().unwrap_or_default();
    StressSample {
        t,
        buffers: ledger.buffers,
        buffer_bytes: ledger.bytes,
        objects: ledger.objects(),
        pinned: ledger.pinned,
        queues: ledger.queues,
        programs: ledger.programs,
        events: ledger.events,
        rss_bytes: os::rss_bytes(),
        fds: os::open_fds(),
        threads: os::threads(),
        rate,
        p50_s: at(0.5),
        p99_s: at(0.99),
        ..StressSample::default()
    }
}
