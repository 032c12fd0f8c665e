//! One function per subcommand: configuration, job, output, exit code.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use signal_hook::consts::{SIGINT, SIGTERM};

use crate::base::blas::BlasInfo;
use crate::base::record::{Host, SCHEMA};
use crate::base::sink::Cancel;
use crate::base::{Backend, Code, DType, DeviceInfo, Document, Env, Error, Record, Result, os, system};
use crate::device::cpu::Pin;
use crate::device::probe::{CpuConfig, Rig, Select, open};
use crate::device::traced;
use crate::jobs::workers::Start;
use crate::jobs::{inventory, stress};
use crate::measure::{Awake, Residency};
use crate::op::{self, OpDesc};
use crate::report;

use super::args::{self, Cli, Command, Common};
use super::cpu_blas;
use super::drivers::Drivers;
use super::output::{self, CliSink};
use super::trace::Tracing;

/// Runs the subcommand; gives its exit code.
pub(super) fn run(cli: &Cli, command: &[String], env: &Env) -> Result<u8> {
    let tracing = Tracing::of(&cli.command)?;
    let trace = tracing.as_ref();
    let env = &Env { cpu_blas: cpu_blas::asked(&cli.command)?, ..env.clone() };
    let done = dispatch(cli, Ctx { command, env, trace, drivers: Drivers::default() });
    match (done, trace.map_or(Ok(()), Tracing::finish)) {
        (Ok(_), Err(e)) => Err(e),
        // What ended the run is what it ends with.
        (Err(first), Err(e)) => {
            output::talk(&format!("gpuctl: {e}"));
            Err(first)
        }
        (done, Ok(())) => done,
    }
}

fn dispatch(cli: &Cli, ctx: Ctx<'_>) -> Result<u8> {
    let env = ctx.env;
    let numbered = |process| Env { process, ..env.clone() };
    fn worker<'a>(of: &Ctx<'a>, env: &'a Env) -> Ctx<'a> {
        Ctx { command: of.command, env, trace: of.trace, drivers: Drivers::settled(env) }
    }
    match &cli.command {
        Command::Devices(a) if a.measure => ctx.measure(a),
        Command::Devices(a) if a.trial => ctx.trial(a),
        Command::Devices(a) if a.health => ctx.health(a),
        Command::Devices(a) => ctx.devices(a),
        Command::Bench(a) => ctx.bench(a),
        Command::Calibrate(a) => ctx.calibrate(a),
        Command::Verify(a) => ctx.verify(a),
        Command::Stress(a) if a.reports.self_test => ctx.stress_self_test(a),
        Command::Stress(a) => ctx.stress(a),
        Command::Profile(a) => ctx.profile(&a.what),
        Command::Run(a) => ctx.run_op(a),
        Command::Explain(a) => ctx.explain(a),
        Command::BenchWorker(w) => worker(&ctx, &numbered(w.worker)).bench_worker(&w.of),
        Command::DevicesWorker(w) => worker(&ctx, &numbered(w.worker)).measure_worker(&w.of),
        Command::ProbeWorker { backend } => probe_worker(backend),
        Command::TrialWorker(w) => ctx.trial_worker(w),
        Command::CalibrateWorker(w) => worker(&ctx, &numbered(w.worker)).calibrate_worker(&w.of, w.of_threads),
        Command::StressWorker { task } => {
            outlive_the_terminal()?;
            stress::worker(task, &mut std::io::stdout(), env).map(|()| 0)
        }
    }
}

pub(super) struct Ctx<'a> {
    pub(super) command: &'a [String],
    pub(super) env: &'a Env,
    pub(super) trace: Option<&'a Tracing>,
    pub(super) drivers: Drivers,
}

/// SIGINT and SIGTERM raise the flag; a second SIGINT ends the process at once.
pub(super) fn cancel_on_signals() -> Result<Cancel> {
    let cancel = Cancel::new();
    let failed = |e: std::io::Error| Error::new(Code::Internal, "signals cannot be handled").caused_by(e);
    signal_hook::flag::register_conditional_shutdown(SIGINT, i32::from(super::INTERRUPTED), Arc::clone(&cancel.0))
        .map_err(failed)?;
    for signal in [SIGINT, SIGTERM] {
        signal_hook::flag::register(signal, Arc::clone(&cancel.0)).map_err(failed)?;
    }
    Ok(cancel)
}

/// A terminal that is closed ends nothing: SIGHUP is taken and forgotten.
fn outlive_the_terminal() -> Result<()> {
    #[cfg(unix)]
    signal_hook::flag::register(signal_hook::consts::SIGHUP, Arc::default())
        .map_err(|e| Error::new(Code::Internal, "signals cannot be handled").caused_by(e))?;
    Ok(())
}

/// A duration: `10s`, `2m`, `1h`, `250ms`, or plain seconds.
pub(super) fn seconds(name: &str, text: &str) -> Result<f64> {
    let bad = || {
        Error::new(
            Code::BadArgument,
            format!("{name} {text}: expected a positive duration such as 10s, 2m, 500ms or 50us"),
        )
    };
    let split = text.find(|c: char| c.is_ascii_alphabetic()).unwrap_or(text.len());
    let (number, unit) = text.split_at(split);
    let number = number.parse::<f64>().map_err(|_| bad())?;
    let v = match unit {
        "" | "s" => number,
        // Divided, so that 50us is the number that 50e-6 is.
        "ms" => number / 1e3,
        "us" => number / 1e6,
        "m" | "min" => number * 60.0,
        "h" => number * 3600.0,
        _ => return Err(bad()),
    };
    // A century, in seconds: no clock here counts further.
    if v > 0.0 && v <= 3.2e9 { Ok(v) } else { Err(bad()) }
}

pub(super) fn host() -> Host {
    Host {
        cpu: os::cpu_name(),
        cpus: u32::try_from(os::allowed_cpus().len()).unwrap_or(0),
        memory_bytes: os::memory().map_or(0, |m| m.0),
        os: os::os_name(),
        awake: false,
        system: None,
    }
}

/// Where this program is, to start it again.
pub(super) fn this_program() -> Result<PathBuf> {
    std::env::current_exe().map_err(|e| Error::new(Code::Io, "no path to this program").caused_by(e))
}

/// The side of `devices` that a driver may take with it: asks one backend and says what it found.
fn probe_worker(backend: &str) -> Result<u8> {
    let backend = Backend::ALL
        .into_iter()
        .find(|b| b.name() == backend)
        .ok_or_else(|| Error::new(Code::BadArgument, format!("unknown backend '{backend}'")))?;
    output::data(&inventory::answer(backend)?)?;
    Ok(0)
}

pub(super) fn list<T>(text: &str, parse: impl Fn(&str) -> Result<T>) -> Result<Vec<T>> {
    text.split(',').map(|s| parse(s.trim())).collect()
}

pub(super) fn ops(text: &str) -> Result<Vec<&'static OpDesc>> {
    if text == "all" { Ok(op::all().collect()) } else { list(text, op::find) }
}

pub(super) fn dtypes(text: &str) -> Result<Vec<DType>> {
    list(text, |s| s.parse())
}

/// `--threads`; 0 stands for all.
pub(super) fn threads_of(asked: Option<usize>) -> Result<usize> {
    match asked {
        Some(n) if n == 0 || n > 4096 => Err(Error::new(Code::BadArgument, "--threads must be from 1 to 4096")),
        other => Ok(other.unwrap_or(0)),
    }
}

/// The one number that a command takes.
fn one_count(threads: &[usize]) -> Result<Option<usize>> {
    match threads {
        [] => Ok(None),
        [n] => Ok(Some(*n)),
        _ => Err(Error::new(Code::BadArgument, "--threads: one number here; `calibrate` takes several")),
    }
}

/// `--residency`.
pub(super) fn residencies(text: &str) -> Result<Vec<Residency>> {
    if text == "all" { Ok(Residency::ALL.to_vec()) } else { list(text, |s| s.parse()) }
}

impl Ctx<'_> {
    pub(super) fn rig(&self, common: &Common, pin: Pin) -> Result<Rig> {
        let select = common.device.as_deref().map_or(Ok(Select::Default), Select::parse)?;
        self.rig_of(&select, one_count(&common.threads)?, pin)
    }

    pub(super) fn rig_of(&self, select: &Select, threads: Option<usize>, pin: Pin) -> Result<Rig> {
        let env = self.sound(&select.backends())?;
        let mut rig = open(select, env, CpuConfig { threads: threads_of(threads)?, pin })?;
        // The driver thread on the first allowed CPU, the CPU device's workers on the others: they never share a core.
        // Only now: a pinned thread would pass its one CPU on to the workers and be counted as the whole machine. And not where a
        // library may start its threads with each call, as BLIS does: all of them would share that CPU.
        if pin == Pin::Workers
            && rig.cpu.info().facts.blas.as_ref().is_none_or(BlasInfo::keeps_threads)
            && let Some(first) = os::allowed_cpus().first()
        {
            os::pin_current_thread(*first);
        }
        if let Some(tracing) = self.trace {
            traced::rig(&mut rig, &tracing.tracer);
        }
        let there: Vec<&DeviceInfo> = rig.devices.iter().map(|d| d.info()).collect();
        self.require(&there, matches!(select, Select::Named(_)))?;
        Ok(rig)
    }

    /// `GPUCTL_REQUIRE` names backends that must be there. With named devices the selection itself is the requirement.
    pub(super) fn require(&self, there: &[&DeviceInfo], named: bool) -> Result<()> {
        if named {
            return Ok(());
        }
        for backend in Backend::ALL {
            let wanted = self.env.require.iter().any(|r| r == backend.name());
            let found = there.iter().any(|d| d.backend == backend && !(d.is_software() && backend == Backend::Cpu));
            // Software devices are not in the default selection; asking for their backend is satisfied by `devices`.
            if wanted && !found && !matches!(backend, Backend::Opencl | Backend::Wgpu) {
                return Err(Error::new(
                    Code::DeviceMissing,
                    format!("GPUCTL_REQUIRE names {backend}, which has no device here"),
                ));
            }
        }
        Ok(())
    }

    /// Workers with a hidden subcommand and the arguments of this one.
    pub(super) fn workers(&self, subcommand: &str, processes: usize, limit: Duration) -> Result<Start> {
        let program = this_program()?;
        let parts = self.trace.and_then(Tracing::parts).map(|p| format!("--trace-parts={}", p.display()));
        let arguments =
            std::iter::once(subcommand.to_string()).chain(parts).chain(self.command.iter().skip(2).cloned());
        Ok(Start { program, arguments: arguments.collect(), processes, limit })
    }

    /// Keeps the processors from falling idle while something is timed, if this process was told to; if it was told nothing, as it
    /// was `then`, for what this run is held against. Simulated machines have a time of their own.
    pub(super) fn awake(&self, rig: &Rig, then: Option<bool>) -> Result<Option<Awake>> {
        let asked = self.env.awake.or(then).unwrap_or(false) && !rig.cpu.clock().is_virtual();
        asked.then(|| Awake::start(&os::allowed_cpus(), system::quota())).transpose()
    }

    pub(super) fn document(
        &self,
        devices: Vec<DeviceInfo>,
        absent: Vec<crate::base::Absence>,
        records: Vec<Record>,
        complete: bool,
        exit_code: u8,
    ) -> Document {
        Document {
            schema: SCHEMA,
            gpuctl: env!("CARGO_PKG_VERSION").into(),
            command: self.command.to_vec(),
            complete,
            exit_code,
            host: host(),
            devices,
            absent,
            records,
        }
    }

    /// Writes the document where `--json` says, if it says anything.
    pub(super) fn write_json(&self, to: Option<&str>, doc: &Document) -> Result<()> {
        match to {
            None => Ok(()),
            Some("-") => output::data(&report::json::document(doc)?),
            Some(path) => output::file(path, &report::json::document(doc)?),
        }
    }

    fn stress(&self, a: &args::Stress) -> Result<u8> {
        let seconds = match (a.hours, a.minutes, a.seconds) {
            (Some(h), ..) => h * 3600.0,
            (_, Some(m), _) => m * 60.0,
            (_, _, Some(s)) => s,
            _ => 60.0,
        };
        if !(seconds > 0.0 && seconds.is_finite()) {
            return Err(Error::new(Code::BadArgument, format!("{seconds} seconds: the duration must be positive")));
        }
        let cfg = stress::StressConfig {
            seconds,
            scenarios: match &a.scenario {
                Some(text) => list(text, |s| Ok(s.to_string()))?,
                None => Vec::new(),
            },
            device: a.common.device.clone(),
            threads: one_count(&a.common.threads)?.and_then(|t| u32::try_from(t).ok()).unwrap_or(0),
            journal: match (&a.journal, a.no_journal) {
                (Some(path), _) => Some(path.into()),
                (None, true) => None,
                (None, false) => stress::default_journal(self.env),
            },
            resume: match &a.resume {
                None => None,
                Some(Some(path)) => Some(path.into()),
                Some(None) => Some(stress::default_journal(self.env).ok_or_else(|| {
                    Error::new(Code::BadArgument, "--resume: this user has no state folder; name the journal")
                })?),
            },
            shared: a.shared,
            max_temp: a.max_temp,
            below_floor: false,
            inject: a.inject.clone(),
            fail_early: a.fail_early,
            heartbeat: None,
            tree: None,
            trace: self.trace.and_then(Tracing::parts).map(PathBuf::from),
            limits: stress::Limits::default(),
            command: self.command.to_vec(),
        };
        let cancel = cancel_on_signals()?;
        outlive_the_terminal()?;
        let json_on_stdout = a.common.json.as_deref() == Some("-");
        let sink = CliSink::new(
            a.common.quiet,
            !json_on_stdout,
            Box::new(move |r| match r {
                Record::Stress(s) if !json_on_stdout => Some(report::text::stress_row(s)),
                _ => None,
            }),
        );
        let mut sink = super::soak::Reporting::new(sink, &a.reports)?;
        // Which devices a run that goes on had is in its journal.
        let select =
            cfg.device.as_deref().filter(|_| cfg.resume.is_none()).map_or(Ok(Select::Default), Select::parse)?;
        let left_out = &self.sound(&select.backends())?.left_out;
        let mut summary = stress::run(&cfg, &stress::Exe::current()?, &mut sink, &cancel)?;
        summary.absent.retain(|row| !left_out.iter().any(|l| l.backend == row.backend && row.what == l.backend.name()));
        summary.absent.extend(left_out.iter().cloned());
        let code = summary.exit_code;
        sink.print(&summary.line());
        let doc = sink.finish(self, summary, code)?;
        self.write_json(a.common.json.as_deref(), &doc)?;
        Ok(code)
    }
}

/// Draws what `--plot` asks for.
#[cfg(feature = "plot")]
pub(super) fn plot(path: Option<&str>, what: Picture, records: &[Record]) -> Result<()> {
    let Some(path) = path else { return Ok(()) };
    let format = report::plot::Format::of(path)?;
    let drawn = match what {
        Picture::Bench => report::plot::bench(records, format)?,
        Picture::Calibrate => report::plot::calibrate(records, format)?,
    };
    let Some((bytes, left_out)) = drawn else {
        output::talk(&format!("no picture {path}: nothing was measured that could be drawn"));
        return Ok(());
    };
    if left_out > 0 {
        output::talk(&format!("{path}: {left_out} more keys have no place in one picture; choose some with --op"));
    }
    output::bytes(path, &bytes)
}

/// Refuses what [`plot`] would refuse, before anything is measured for it.
#[cfg(feature = "plot")]
pub(super) fn check_plot(path: Option<&str>) -> Result<()> {
    path.map_or(Ok(()), |p| report::plot::Format::of(p).map(|_| ()))
}

#[cfg(not(feature = "plot"))]
pub(super) fn plot(path: Option<&str>, _: Picture, _: &[Record]) -> Result<()> {
    check_plot(path)
}

#[cfg(not(feature = "plot"))]
pub(super) fn check_plot(path: Option<&str>) -> Result<()> {
    match path {
        Some(_) => Err(Error::new(Code::FeatureUnsupported, "--plot needs a build with the cargo feature 'plot'")),
        None => Ok(()),
    }
}

/// What there is to draw.
#[derive(Clone, Copy, Debug)]
pub(super) enum Picture {
    Bench,
    Calibrate,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations() {
        assert_eq!(seconds("--budget", "2m").unwrap(), 120.0);
        assert_eq!(seconds("--budget", "500ms").unwrap(), 0.5);
        assert_eq!(seconds("--budget", "3").unwrap(), 3.0);
        for bad in ["", "s", "-1s", "0", "10 parsecs", "nan", "inf", "99999999999999999999", "1e9h"] {
            assert!(seconds("--budget", bad).is_err(), "{bad}");
        }
    }
}
