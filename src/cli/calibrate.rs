//! `calibrate`: a profile on stdout, thresholds on stderr.

use std::time::Duration;

use crate::base::{Code, Error, Result};
use crate::device::cpu::Pin;
use crate::device::probe::{Rig, Select};
use crate::jobs::calibrate::{self, regret};
use crate::measure::Residency;
use crate::{op, report};

use super::args;
use super::commands::{Ctx, cancel_on_signals, dtypes, ops, seconds};
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
        dtypes: dtypes(&a.dtype)?,
        residencies: Residency::ALL.to_vec(),
        cpu_variant: a.cpu_variant.clone(),
        margin: a.margin,
        budget: Duration::from_secs_f64(seconds("--budget", &a.budget)?),
        range: None,
        allow_software: a.allow_software,
        seed: 1,
        processes: if a.processes == 1 { calibrate::CalibrateConfig::PROCESSES } else { a.processes },
    };
    if !(cfg.margin.is_finite() && (1.0..=100.0).contains(&cfg.margin)) {
        return bad(format!("--margin {}: expected 1 to 100", cfg.margin));
    }
    Ok(cfg)
}

impl Ctx<'_> {
    fn calibrate_rig(&self, a: &args::Calibrate, pin: Pin) -> Result<Rig> {
        let select = match (&a.common.device, a.allow_software) {
            (Some(text), _) => Select::parse(text)?,
            (None, true) => Select::All,
            (None, false) => Select::Default,
        };
        self.rig_of(&select, a.common.threads, pin)
    }

    /// Times what is ordered, for [`Ctx::calibrate`] in another process.
    pub(super) fn calibrate_worker(&self, a: &args::Calibrate) -> Result<u8> {
        let cancel = cancel_on_signals()?;
        let rig = self.calibrate_rig(a, Pin::Workers)?;
        let (input, output) = (&mut std::io::stdin().lock(), &mut std::io::stdout());
        calibrate::worker(a.cpu_variant.as_deref(), &rig, input, output, &cancel)?;
        Ok(0)
    }

    pub(super) fn calibrate(&self, a: &args::Calibrate) -> Result<u8> {
        let cfg = config(a)?;
        let cancel = cancel_on_signals()?;
        let rig = self.calibrate_rig(a, if a.processes == 1 { Pin::Workers } else { Pin::Free })?;
        let mut sink = CliSink::new(a.common.quiet, false, Box::new(|_| None));
        let start = match a.processes {
            1 => None,
            n => Some(self.workers("calibrate-worker", n, Duration::from_secs(120))?),
        };
        let done = match &start {
            None => calibrate::run(&cfg, &rig, &mut sink, &cancel)?,
            Some(start) => calibrate::run_workers(&cfg, &rig, start, &mut sink, &cancel)?,
        };
        let toml = done.profile.to_toml()?;
        // What is written must be readable: a profile that its own reader refuses is never handed out.
        crate::profile::Profile::from_toml(&toml)?;
        match (a.output.as_deref(), a.common.json.as_deref()) {
            (Some(path), _) => output::file(path, &toml)?,
            (None, Some("-")) => {}
            (None, _) => output::data(&toml)?,
        }
        let regret = if a.regret {
            let some = regret::RegretConfig::new(cfg.budget);
            let judge = regret::RegretConfig {
                processes: if a.processes == 1 { some.processes } else { some.processes.min(a.processes) },
                cpu_variant: cfg.cpu_variant.clone(),
                ..some
            };
            match &start {
                None => regret::run_in(&judge, &done.profile, &[&rig], &mut sink, &cancel)?,
                Some(start) => regret::run_workers(&judge, &done.profile, &rig, start, &mut sink, &cancel)?,
            }
        } else {
            Vec::new()
        };
        let records = sink.finish()?;
        if !a.common.quiet {
            if !done.records.is_empty() {
                output::talk(&report::text::thresholds(&done.records, Some(160)));
            }
            if !regret.is_empty() {
                output::talk(&report::text::regret(&regret, Some(160)));
            }
            for note in &done.profile.notes {
                output::talk(note);
            }
            if done.unmeasured > 0 {
                output::talk(&format!("{} keys did not fit the budget: they stay on the CPU", done.unmeasured));
            }
            if a.regret && regret.is_empty() {
                output::talk("regret: inconclusive, for there is no key to judge");
            }
        }
        let found = done.records.iter().any(|r| r.verdict == "unsafe") || regret.iter().any(|r| r.finding != "ok");
        let code = match (found, a.regret && regret.is_empty()) {
            (true, _) => 1,
            (false, true) => 4,
            (false, false) => 0,
        };
        let infos = rig.devices.iter().map(|d| d.info().clone()).collect();
        let doc = self.document(infos, rig.absent, records, done.complete, code);
        self.write_json(a.common.json.as_deref(), &doc)?;
        Ok(code)
    }
}
