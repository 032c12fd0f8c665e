//! `calibrate`: a profile on stdout, thresholds on stderr.

use std::time::Duration;

use crate::base::{Code, DType, Error, Result};
use crate::device::cpu::Pin;
use crate::device::probe::{Rig, Select};
use crate::jobs::calibrate;
use crate::measure::Residency;
use crate::{op, profile, report};

use super::args;
use super::commands::{Ctx, Picture, cancel_on_signals, check_plot, dtypes, ops, plot, residencies, seconds};
use super::output::{self, CliSink};

fn config(a: &args::Calibrate) -> Result<calibrate::CalibrateConfig> {
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
        earlier: a.merge.as_deref().map(profile::load).transpose()?.map(|loaded| loaded.profile),
    };
    if !(cfg.margin.is_finite() && (1.0..=100.0).contains(&cfg.margin)) {
        return bad(format!("--margin {}: expected 1 to 100", cfg.margin));
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

impl Ctx<'_> {
    fn calibrate_rig(&self, a: &args::Calibrate, threads: Option<usize>, pin: Pin) -> Result<Rig> {
        let select = match (&a.common.device, a.allow_software) {
            (Some(text), _) => Select::parse(text)?,
            (None, true) => Select::All,
            (None, false) => Select::Default,
        };
        self.rig_of(&select, threads, pin)
    }

    /// Times what is ordered, for [`Ctx::calibrate`] in another process.
    pub(super) fn calibrate_worker(&self, a: &args::Calibrate, threads: Option<usize>) -> Result<u8> {
        let cancel = cancel_on_signals()?;
        let rig = self.calibrate_rig(a, threads, Pin::Workers)?;
        let (input, output) = (&mut std::io::stdin().lock(), &mut std::io::stdout());
        calibrate::worker(a.cpu_variant.as_deref(), &rig, input, output, &cancel)?;
        Ok(0)
    }

    pub(super) fn calibrate(&self, a: &args::Calibrate) -> Result<u8> {
        let cfg = config(a)?;
        check_plot(a.plot.as_deref())?;
        let cancel = cancel_on_signals()?;
        let mut sink = CliSink::new(a.common.quiet, false, Box::new(|_| None));
        let mut parts = Vec::new();
        let (mut infos, mut absent) = (Vec::new(), Vec::new());
        for threads in counts(a) {
            let rig = self.calibrate_rig(a, threads, if a.processes == 1 { Pin::Workers } else { Pin::Free })?;
            let has = rig.cpu.info().compute_units;
            if let Some(n) = threads.filter(|n| *n as u64 != u64::from(has)) {
                let why = format!("--threads {n}: {} has {has}", rig.cpu.info().name);
                return Err(Error::new(Code::BadArgument, why));
            }
            parts.push(if a.processes == 1 {
                calibrate::run(&cfg, &rig, &mut sink, &cancel)?
            } else {
                let mut start = self.workers("calibrate-worker", a.processes, Duration::from_secs(120))?;
                start.arguments.extend(threads.map(|n| format!("--of-threads={n}")));
                calibrate::run_workers(&cfg, &rig, &start, &mut sink, &cancel)?
            });
            infos = rig.devices.iter().map(|d| d.info().clone()).collect();
            absent = rig.absent;
        }
        let done = calibrate::joined(parts)?;
        let toml = done.profile.to_toml()?;
        // What is written must be readable: a profile that its own reader refuses is never handed out.
        crate::profile::Profile::from_toml(&toml)?;
        let records = sink.finish()?;
        match (a.output.as_deref(), a.common.json.as_deref()) {
            (Some(path), _) => output::file(path, &toml)?,
            (None, Some("-")) => {}
            (None, _) => output::data(&toml)?,
        }
        plot(a.plot.as_deref(), Picture::Calibrate, &records)?;
        if !a.common.quiet {
            if !done.records.is_empty() {
                output::talk(&report::text::thresholds(&done.records, Some(160)));
            }
            for note in &done.profile.notes {
                output::talk(note);
            }
            output::talk(&format!("{} of {} keys decided", done.decided(), done.records.len()));
            if done.kept > 0 {
                output::talk(&format!("{} keys are the earlier profile's", done.kept));
            }
            if done.unmeasured > 0 {
                output::talk(&format!("{} keys did not fit the budget: they stay on the CPU", done.unmeasured));
            }
        }
        let code = match () {
            () if done.interrupted => super::INTERRUPTED,
            () => u8::from(done.records.iter().any(|r| r.verdict == "unsafe")),
        };
        let doc = self.document(infos, absent, records, done.complete, code);
        self.write_json(a.common.json.as_deref(), &doc)?;
        Ok(code)
    }
}
