//! `calibrate`: a profile on stdout, thresholds on stderr.

use std::sync::Arc;
use std::time::Duration;

use crate::base::regret::RegretRecord;
use crate::base::sink::{Cancel, Sink};
use crate::base::{Absence, Code, DType, Env, Error, Record, Result};
use crate::device::Device;
use crate::device::cpu::Pin;
use crate::device::probe::{Rig, Select};
use crate::device::telemetry::Telemetry;
use crate::engine::{KernelCache, Workload};
use crate::jobs::calibrate::{self, regret};
use crate::jobs::workers::Start;
use crate::jobs::workload::{self, Judged};
use crate::measure::Residency;
use crate::profile::State;
use crate::{op, profile, report};

use super::args;
use super::check;
use super::commands::{Ctx, Picture, cancel_on_signals, check_plot, dtypes, ops, plot, residencies, seconds};
use super::output::{self, CliSink};

fn config(a: &args::Calibrate, env: &Env) -> Result<calibrate::CalibrateConfig> {
    let bad = |why: String| Err(Error::new(Code::BadArgument, why));
    if a.processes != 1 && !(3..=64).contains(&a.processes) {
        return bad(format!("--processes {}: expected 1, or 3 to 64", a.processes));
    }
    let cfg = calibrate::CalibrateConfig {
        ops: match &a.op {
            Some(text) => ops(text)?,
            None => op::all().collect(),
        },
        dtypes: match &a.dtype {
            Some(text) => dtypes(text)?,
            None if a.full => DType::ALL.to_vec(),
            None => vec![DType::F32],
        },
        residencies: match &a.residency {
            Some(text) => residencies(text)?,
            None if a.full => Residency::ALL.to_vec(),
            None => Residency::PLACED.to_vec(),
        },
        cpu_variant: a.cpu_variant.clone(),
        margin: a.margin,
        budget: Duration::from_secs_f64(seconds("--budget", &a.budget)? / counts(a).len() as f64),
        range: None,
        allow_software: a.allow_software,
        seed: 1,
        processes: if a.processes == 1 { calibrate::CalibrateConfig::PROCESSES } else { a.processes },
        states: Vec::new(),
        earlier: a.merge.as_deref().map(profile::load).transpose()?.map(|loaded| loaded.profile),
        kernels: KernelCache::of(env),
        telemetry: Telemetry::cards,
    };
    if !(cfg.margin.is_finite() && (1.0..=100.0).contains(&cfg.margin)) {
        return bad(format!("--margin {}: expected 1 to 100", cfg.margin));
    }
    if !cfg.ops.iter().any(|op| calibrate::can(op, &cfg.dtypes)) {
        return bad("no op that was asked for has both a CPU side and one of these dtypes".into());
    }
    Ok(cfg)
}

/// Numbers of CPU threads to calibrate against, one after the other; `None`: all that are allowed.
fn counts(a: &args::Calibrate) -> Vec<Option<usize>> {
    let mut counts: Vec<_> = a.common.threads.iter().copied().map(Some).collect();
    if counts.is_empty() {
        counts.extend(a.full.then_some(Some(1)));
        counts.push(None);
    }
    counts
}

/// The record of a program's calls.
fn recorded(path: &str) -> Result<Workload> {
    const MOST: u64 = 256 << 20;
    let failed = |e: std::io::Error| Error::new(Code::BadArgument, format!("--workload {path}")).caused_by(e);
    if std::fs::metadata(path).map_err(failed)?.len() > MOST {
        return Err(Error::new(Code::BadArgument, format!("--workload {path}: larger than {} MiB", MOST >> 20)));
    }
    Workload::parse(&std::fs::read_to_string(path).map_err(failed)?)
}

/// Why another API of a card is left out.
const WHOLE_BUDGET: &str = ", which has the whole budget";

/// Keeps of each card the device of the API that comes first, CUDA's before others: the budget is then spent on one. What is left
/// out is among the absent, with the reason.
fn one_api_per_card(rig: &mut Rig) {
    let mut kept: Vec<Arc<dyn Device>> = Vec::new();
    for device in std::mem::take(&mut rig.devices) {
        let info = device.info();
        let Some(first) = kept.iter().map(|k| k.info()).find(|k| k.same_card(info) && k.backend != info.backend) else {
            kept.push(device);
            continue;
        };
        rig.absent.push(Absence {
            backend: info.backend,
            what: info.id.clone(),
            reason: format!("the same card as {}{WHOLE_BUDGET}", first.id),
            next: format!("--device {},{} or --full calibrates both", first.id, info.id),
        });
    }
    rig.devices = kept;
}

impl Ctx<'_> {
    fn calibrate_rig(&self, a: &args::Calibrate, threads: Option<usize>, pin: Pin) -> Result<Rig> {
        let select = match (&a.common.device, a.allow_software) {
            (Some(text), _) => Select::parse(text)?,
            (None, true) => Select::All,
            (None, false) => Select::Default,
        };
        let mut rig = self.rig_of(&select, threads, pin)?;
        if select == Select::Default && !a.full {
            one_api_per_card(&mut rig);
        }
        Ok(rig)
    }

    /// Times what is ordered, for [`Ctx::calibrate`] and [`Ctx::judge`] in another process.
    pub(super) fn calibrate_worker(&self, a: &args::Calibrate, threads: Option<usize>) -> Result<u8> {
        let cancel = cancel_on_signals()?;
        let a = &check::checked(a)?.map_or_else(|| Ok(a.clone()), |made| check::as_made(a, &made))?;
        let rig = self.calibrate_rig(a, threads, Pin::Workers)?;
        let kernels = KernelCache::of(self.env);
        let variant = a.cpu_variant.as_deref();
        self.serve(|input, output| calibrate::worker(variant, (&rig, &kernels), input, output, &cancel))
    }

    /// Workers for so many threads.
    fn calibrate_workers(&self, a: &args::Calibrate, threads: Option<usize>) -> Result<Start> {
        let mut start = self.workers("calibrate-worker", a.processes, Duration::from_secs(120))?;
        start.arguments.extend(threads.map(|n| format!("--of-threads={n}")));
        Ok(start)
    }

    fn judge(
        &self,
        (a, threads): (&args::Calibrate, Option<usize>),
        (cfg, workload): (&calibrate::CalibrateConfig, &Workload),
        rig: &Rig,
        sink: &mut CliSink,
        cancel: &Cancel,
    ) -> Result<Judged> {
        if a.processes == 1 {
            return workload::run(cfg, workload, rig, sink, cancel);
        }
        workload::run_workers(cfg, workload, rig, &self.calibrate_workers(a, threads)?, sink, cancel)
    }

    pub(super) fn calibrate(&self, a: &args::Calibrate) -> Result<u8> {
        let made = check::checked(a)?;
        let a = &made.as_ref().map_or_else(|| Ok(a.clone()), |made| check::as_made(a, made))?;
        let cfg = config(a, self.env)?;
        let workload = a.workload.as_deref().map(recorded).transpose()?;
        check_plot(a.plot.as_deref())?;
        for path in [&a.output, &a.common.json, &a.plot].into_iter().flatten() {
            output::check(path)?;
        }
        let cancel = cancel_on_signals()?;
        let mut sink = CliSink::new(a.common.quiet, false, Box::new(|_| None)).once();
        let (mut parts, mut unjudged) = (Vec::new(), None);
        let mut judged = Vec::new();
        let (mut refused, mut unkept) = (Vec::new(), Vec::new());
        let (mut infos, mut absent) = (Vec::new(), Vec::new());
        let (mut awake, mut twice) = (None, check::Twice::default());
        for threads in counts(a) {
            let mut rig = self.calibrate_rig(a, threads, if a.processes == 1 { Pin::Workers } else { Pin::Free })?;
            // What another thread count's rig lacks as well is said once.
            for a in rig.absent.iter().filter(|a| a.reason.ends_with(WHOLE_BUDGET)) {
                sink.note(&format!("{} is left out: {}; {}", a.what, a.reason, a.next));
            }
            let has = rig.cpu.info().compute_units;
            if let Some(n) = threads.filter(|n| *n as u64 != u64::from(has)) {
                let why = format!("--threads {n}: {} has {has}", rig.cpu.info().name);
                return Err(Error::new(Code::BadArgument, why));
            }
            if let Some(made) = &made {
                check::same_machine(made, &rig)?;
            }
            let unfit = self.refuse_unfit(&mut rig);
            if awake.is_none() {
                let then = made.as_ref().or(cfg.earlier.as_ref()).and_then(|p| p.host.as_ref()).map(|h| h.awake);
                awake = self.awake(&rig, then)?;
            }
            let start = match a.processes {
                1 => None,
                _ => Some(self.calibrate_workers(a, threads)?),
            };
            let all: Vec<_> = rig.devices.iter().map(|d| d.info().clone()).collect();
            let remembered = self.remembered(rig.cpu.info(), &all, awake.is_some());
            // A file that is checked says itself what its thresholds are stated for.
            let mut states = made.as_ref().map_or_else(Vec::new, |made| made.states.clone());
            State::join(&mut states, &remembered.states);
            let mut cfg = calibrate::CalibrateConfig { states, ..cfg.clone() };
            // What seems to have changed is measured once more: time is kept for that.
            let again = cfg.budget.mul_f64(if made.is_some() { check::AGAIN } else { 0.0 });
            cfg.budget -= again;
            let mut part = match (&workload, &start) {
                (Some(workload), _) => {
                    let answer = self.judge((a, threads), (&cfg, workload), &rig, &mut sink, &cancel)?;
                    let part = answer.calibrated.clone();
                    judged.push(answer);
                    part
                }
                (None, None) => calibrate::run(&cfg, &rig, &mut sink, &cancel)?,
                (None, Some(start)) => calibrate::run_workers(&cfg, &rig, start, &mut sink, &cancel)?,
            };
            if let Some(made) = &made {
                let cfg = calibrate::CalibrateConfig { budget: again, ..cfg.clone() };
                twice.measure(made, &mut part, &cfg, (&rig, start.as_ref()), &mut sink, &cancel)?;
            }
            if a.regret && !part.interrupted {
                // An earlier profile's keys may be of devices and processors that nobody asked for now. The profile is there already:
                // it is written whatever becomes of this.
                match Self::regret(a, &cfg, &part.as_asked(), &rig, start.as_ref(), &mut sink, &cancel) {
                    Err(e) if e.code() != Code::Cancelled => unjudged = unjudged.or(Some(e)),
                    _ => {}
                }
            }
            if !part.interrupted {
                unkept.extend(remembered.keep(&part.profile));
            }
            part.profile.host.iter_mut().for_each(|h| h.awake = awake.is_some());
            part.profile.notes.extend(unfit.iter().map(|(line, _)| line.clone()));
            parts.push(part);
            infos = rig.devices.iter().map(|d| d.info().clone()).collect();
            absent = rig.absent;
            absent.extend(unfit.iter().map(|(_, row)| row.clone()));
            refused = unfit;
        }
        let done = calibrate::joined(parts)?;
        unkept.extend(self.keep_wrong(&infos, &done.wrong));
        let toml = done.profile.to_toml()?;
        // What is written must be readable: a profile that its own reader refuses is never handed out.
        crate::profile::Profile::from_toml(&toml)?;
        let untold: Vec<String> = done.profile.notes.iter().filter(|n| !sink.told().contains(n)).cloned().collect();
        let mut records = sink.finish()?;
        let judged_keys = |r: &Record| match r {
            Record::Regret(r) => Some((**r).clone()),
            _ => None,
        };
        let regret: Vec<RegretRecord> = records.iter().filter_map(judged_keys).collect();
        let (drift, left_open) = made.as_ref().map(|made| twice.records(made, &done.profile)).unzip();
        if let Some(made) = &made {
            let remarks = profile::diff::disturbed(made, &done.profile).into_iter();
            remarks.chain(profile::diff::states(made, &done.profile)).for_each(|line| output::talk(&line));
        }
        match (a.output.as_deref(), a.common.json.as_deref(), &drift) {
            (Some(path), ..) => output::file(path, &toml)?,
            (None, Some("-"), _) => {}
            (None, _, None) => output::data(&toml)?,
            (None, _, Some(drift)) => {
                let (table, counts) = report::text::threshold_changes(drift, output::width());
                output::data(&table.into_iter().chain([counts]).map(|l| l + "\n").collect::<String>())?;
            }
        }
        records.extend(drift.iter().flatten().cloned().map(|r| Record::Threshold(Box::new(r))));
        // A finding, which nobody asked to be quiet about.
        refused.iter().filter(|_| a.common.quiet).for_each(|(line, _)| output::talk(line));
        if !a.common.quiet {
            unkept.iter().for_each(|why| output::talk(why));
            if !done.records.is_empty() {
                output::talk(&report::text::thresholds(&done.records, Some(160)));
            }
            if !regret.is_empty() {
                output::talk(&report::text::regret(&regret, Some(160)));
            }
            untold.iter().for_each(|note| output::talk(note));
            output::talk(&done.summary());
            if done.kept > 0 {
                output::talk(&format!("{} keys are the earlier profile's", done.kept));
            }
            if done.unmeasured > 0 {
                output::talk(&format!("{} keys did not fit the budget: they stay on the CPU", done.unmeasured));
            }
            if a.regret && regret.is_empty() {
                output::talk("regret: inconclusive, for there is no key to judge");
            }
            for line in judged.iter().flat_map(Judged::lines) {
                output::talk(&line);
            }
        }
        let wrong = judged.iter().any(|j| j.record.rows.iter().any(|r| r.wrong));
        let unclear = judged.iter().any(|j| j.record.worth == "unclear");
        let found = done.records.iter().any(|r| r.verdict == "unsafe") || regret.iter().any(|r| r.finding != "ok");
        let code = match () {
            () if done.interrupted || cancel.raised() => super::INTERRUPTED,
            () if found || wrong || !refused.is_empty() => 1,
            () if drift.is_some() => drift.as_deref().map_or(0, |d| check::exit_code(d, left_open.unwrap_or(0))),
            () if unjudged.is_some() => unjudged.as_ref().map_or(5, super::exit_code),
            () if unclear || (a.regret && regret.is_empty()) || done.nothing() => 4,
            () => 0,
        };
        // What was measured is told whether there is a picture of it or not.
        let drawn = plot(a.plot.as_deref(), Picture::Calibrate, &records);
        let mut doc = self.document(infos, absent, records, done.complete, code);
        doc.host.awake = awake.is_some();
        self.write_json(a.common.json.as_deref(), &doc)?;
        drawn?;
        Ok(code)
    }

    /// What the profile's choices cost on shapes that the calibration did not see, measured by as many processes.
    fn regret(
        a: &args::Calibrate,
        cfg: &calibrate::CalibrateConfig,
        profile: &profile::Profile,
        rig: &Rig,
        start: Option<&Start>,
        sink: &mut CliSink,
        cancel: &Cancel,
    ) -> Result<Vec<RegretRecord>> {
        let some = regret::RegretConfig::new(cfg.budget);
        let judge = regret::RegretConfig {
            processes: if a.processes == 1 { some.processes } else { some.processes.min(a.processes) },
            cpu_variant: cfg.cpu_variant.clone(),
            ..some
        };
        match start {
            None => regret::run_in(&judge, profile, &[rig], sink, cancel),
            Some(start) => regret::run_workers(&judge, profile, rig, start, sink, cancel),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::{Backend, DeviceClass, DeviceInfo};
    use crate::device::cpu::CpuDevice;
    use crate::device::spoilt::Spoilt;
    use crate::kernel::Isa;

    #[test]
    fn a_card_behind_several_apis_is_calibrated_by_the_first() {
        let cpu: Arc<dyn Device> = Arc::new(CpuDevice::new(1, Isa::detect(), Pin::Free).unwrap());
        let posing = |(id, backend, pci, class): (&str, Backend, &str, DeviceClass)| {
            let mut info = DeviceInfo { id: id.into(), backend, class, ..cpu.info().clone() };
            info.facts.pci = Some(pci.into());
            Arc::new(Spoilt::posing(Arc::clone(&cpu), info)) as Arc<dyn Device>
        };
        let (a, b, card) = ("0000:03:00.0", "0000:04:00.0", DeviceClass::Discrete);
        let others = [
            ("cuda:0", Backend::Cuda, a, card),
            // A second part of a divided card.
            ("cuda:1", Backend::Cuda, a, card),
            ("opencl:0", Backend::Opencl, a, card),
            ("opencl:1", Backend::Opencl, b, card),
            ("wgpu:0", Backend::Wgpu, b, card),
            ("wgpu:1", Backend::Wgpu, a, DeviceClass::Software),
        ];
        let devices = std::iter::once(Arc::clone(&cpu)).chain(others.map(posing)).collect();
        let mut rig = Rig { devices, cpu: Arc::clone(&cpu), absent: Vec::new() };
        one_api_per_card(&mut rig);
        let kept: Vec<&str> = rig.devices.iter().map(|d| d.info().id.as_str()).collect();
        assert_eq!(kept, ["cpu", "cuda:0", "cuda:1", "opencl:1", "wgpu:1"]);
        let absent: Vec<_> = rig.absent.iter().map(|a| (a.what.as_str(), a.reason.as_str(), a.next.as_str())).collect();
        let why = "the same card as cuda:0, which has the whole budget";
        assert_eq!(absent[0], ("opencl:0", why, "--device cuda:0,opencl:0 or --full calibrates both"));
        assert_eq!((absent.len(), absent[1].0), (2, "wgpu:0"));
    }
}
