//! `devices --trial`, and what other subcommands make of devices that a trial found wrong.

use std::io::Write;
use std::time::Duration;

use crate::base::record::TrialRecord;
use crate::base::sink::Sink;
use crate::base::{Absence, Backend, Code, DeviceInfo, Error, Record, Result, os};
use crate::device::cpu::Pin;
use crate::device::probe::{CpuConfig, Rig, Select};
use crate::device::{sim, traced};
use crate::engine::Trials;
use crate::engine::trace::Talk;
use crate::engine::trials::Finding;
use crate::jobs::inventory::{self, Answer, Waits};
use crate::jobs::trial::{self, Start, TrialConfig};
use crate::{op, report};

use super::args;
use super::commands::{Ctx, cancel_on_signals, dtypes, ops, this_program};
use super::output::CliSink;
use super::trace::Tracing;

/// How often the part of a trace is written: a device that ends the process loses no more of it.
const TRACED: Duration = Duration::from_millis(250);

fn config(op: Option<&str>, dtype: Option<&str>) -> Result<TrialConfig> {
    Ok(TrialConfig { ops: op.map_or_else(|| Ok(op::all().collect()), ops)?, dtypes: dtype.map(dtypes).transpose()? })
}

impl Ctx<'_> {
    /// Tries one device in this process, which may end of it.
    pub(super) fn trial_worker(&self, w: &args::TrialWorker) -> Result<u8> {
        os::expendable();
        let cfg = config(w.op.as_deref(), w.dtype.as_deref())?;
        let tried = |out: &mut dyn Write| {
            let tried = trial::open(&w.backend, &w.uid, self.env).and_then(|mut rig| {
                self.trace.into_iter().for_each(|t| traced::rig(&mut rig, &t.tracer));
                trial::worker(&cfg, &rig, &Trials::of(self.env), out)
            });
            tried.or_else(|e| trial::give_up(&e, out)).map(|()| 0)
        };
        let Some(part) = self.trace.and_then(Tracing::part) else { return tried(&mut std::io::stdout()) };
        let failed = |e| Error::new(Code::Io, "the part of a trace").caused_by(e);
        part.begin().map_err(failed)?;
        let code = tried(&mut Talk(std::io::stdout(), part.clone(), TRACED))?;
        part.write(true).map_err(failed)?;
        Ok(code)
    }

    pub(super) fn trial(&self, a: &args::Devices) -> Result<u8> {
        config(a.op.as_deref(), a.dtype.as_deref())?;
        let select = a.device.as_deref().map_or(Ok(Select::Default), Select::parse)?;
        let cancel = cancel_on_signals()?;
        let program = this_program()?;
        // The processes that try load the drivers that this one finds sound, and no others.
        let env = self.sound(&select.backends())?;
        let cpu = CpuConfig { threads: 0, pin: Pin::Free };
        let seen = inventory::ask(&select.backends(), Waits::LONG, env, cpu, &program)?;
        let devices = selected(&select, &seen)?;
        self.require(&devices.iter().collect::<Vec<_>>(), matches!(select, Select::Named(_)))?;
        let kept = Trials::of(self.env);
        let json_on_stdout = a.json.as_deref() == Some("-");
        let mut sink = CliSink::new(
            a.quiet,
            !json_on_stdout,
            Box::new(move |r| match r {
                Record::Trial(t) if !json_on_stdout => Some(report::trial::line(t)),
                _ => None,
            }),
        );
        let mut records = Vec::new();
        let mut interrupted = false;
        for info in &devices {
            let before = kept.wrong(info).len() as u64;
            let doubt = doubt(info, &seen, &env.left_out);
            match trial::run(info, &self.trial_start(a, info, &program), doubt.as_deref(), &mut sink, &cancel) {
                Err(e) if e.code() == Code::Cancelled => {
                    interrupted = true;
                    break;
                }
                tried => {
                    let tried = tried?;
                    kept.note(&tried.info, &tried.verdicts);
                    let record = TrialRecord { wrong_before: before, ..tried.record };
                    sink.record(&Record::Trial(Box::new(record.clone())));
                    records.push(record);
                }
            }
        }
        if let Some(why) = kept.trouble() {
            sink.note(&why);
        }
        let code = if interrupted { super::INTERRUPTED } else { trial::exit_code(&records) };
        let doc = self.document(devices, seen.absent, sink.finish()?, !interrupted, code);
        self.write_json(a.json.as_deref(), &doc)?;
        Ok(code)
    }

    /// How the process that tries a device is started.
    fn trial_start(&self, a: &args::Devices, info: &DeviceInfo, program: &std::path::Path) -> Start {
        let named = if info.backend == Backend::Sim { &info.id } else { &info.uid };
        let mut arguments =
            vec!["trial-worker".to_string(), format!("--backend={}", info.backend), format!("--uid={named}")];
        arguments.push(format!("--cpu-blas={}", a.cpu_blas));
        arguments.extend(a.op.iter().map(|op| format!("--op={op}")));
        arguments.extend(a.dtype.iter().map(|dtype| format!("--dtype={dtype}")));
        let parts = self.trace.and_then(Tracing::parts);
        arguments.extend(parts.map(|p| format!("--trace-parts={}", p.display())));
        Start { program: program.to_path_buf(), arguments, silence: trial::SILENCE }
    }

    /// What trials have left on record of listed devices.
    pub(super) fn on_record(&self, devices: &[DeviceInfo]) -> Vec<TrialRecord> {
        let kept = Trials::of(self.env);
        devices.iter().map(|info| trial::on_record(info, &kept)).collect()
    }

    /// Takes devices that are on record as unfit out of a rig. For each a line with the next step, and its row of what is not
    /// usable.
    pub(super) fn refuse_unfit(&self, rig: &mut Rig) -> Vec<(String, Absence)> {
        let kept = Trials::of(self.env);
        let mut refused = Vec::new();
        rig.devices.retain(|d| {
            let info = d.info();
            let record = trial::on_record(info, &kept);
            let Some(line) = report::trial::unfit(&record) else { return true };
            let row = Absence {
                backend: info.backend,
                what: info.id.clone(),
                reason: format!("{}: {}", Code::ResultWrong.name(), record.found.unwrap_or_default()),
                next: format!("`gpuctl devices --trial --device {}` tries again", info.id),
            };
            refused.push((format!("refused, {line}"), row));
            false
        });
        refused
    }

    /// Keeps what a job found wrong.
    pub(super) fn keep_wrong(&self, devices: &[DeviceInfo], found: &[Finding]) -> Option<String> {
        let kept = Trials::of(self.env);
        for finding in found {
            let verdicts: Vec<_> = finding.programs.iter().map(|p| (p.clone(), finding.verdict.clone())).collect();
            if let Some(info) = devices.iter().find(|i| i.uid == finding.uid) {
                kept.note(info, &verdicts);
            }
        }
        kept.trouble()
    }
}

/// The devices that a selection means, of those that are there.
fn selected(select: &Select, seen: &Answer) -> Result<Vec<DeviceInfo>> {
    let names = match select {
        Select::All => return Ok(seen.devices.clone()),
        Select::Default => return Ok(seen.devices.iter().filter(|d| !d.is_software()).cloned().collect()),
        Select::Named(names) => names,
    };
    let mut devices: Vec<DeviceInfo> = Vec::new();
    for name in names {
        let info = match name.strip_prefix("sim:") {
            Some(preset) => sim::open_process(preset, 0)?.1.info().clone(),
            None => {
                let found = seen.devices.iter().find(|d| d.id == *name || d.uid == *name);
                found.cloned().ok_or_else(|| missing(name, seen))?
            }
        };
        if !devices.iter().any(|d| d.uid == info.uid) {
            devices.push(info);
        }
    }
    Ok(devices)
}

fn missing(name: &str, seen: &Answer) -> Error {
    let known: Vec<&str> = seen.devices.iter().map(|d| d.id.as_str()).collect();
    let backend = name.split(':').next().unwrap_or(name);
    let why = seen.absent.iter().filter(|a| a.backend.name() == backend);
    let why: String = why.map(|a| format!("; {}: {}", a.what, a.reason)).collect();
    Error::new(Code::DeviceMissing, format!("no device '{name}'; there are: {}{why}", known.join(" ")))
}

/// Why a process that ends before it has opened the device says nothing of the device: loaders load all drivers but those that are
/// left out.
fn doubt(info: &DeviceInfo, seen: &Answer, left_out: &[Absence]) -> Option<String> {
    let broken = [Code::WorkerCrashed, Code::LaunchTimeout];
    let bad = seen.absent.iter().find(|a| {
        a.backend == info.backend
            && !left_out.contains(a)
            && broken.iter().any(|code| a.reason.starts_with(&format!("{}:", code.name())))
    })?;
    Some(format!("it loads another driver, which is broken ({}): repair or remove that first", bad.what))
}
