//! `calibrate`: a profile on stdout, thresholds on stderr.

use std::time::Duration;

use crate::base::{Code, Error, Result};
use crate::device::cpu::Pin;
use crate::device::probe::{Rig, Select};
use crate::jobs::calibrate;
use crate::measure::Residency;
use crate::{op, profile, report};

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
        earlier: a.merge.as_deref().map(profile::load).transpose()?.map(|loaded| loaded.profile),
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
        let done = if a.processes == 1 {
            calibrate::run(&cfg, &rig, &mut sink, &cancel)?
        } else {
            let start = self.workers("calibrate-worker", a.processes, Duration::from_secs(120))?;
            calibrate::run_workers(&cfg, &rig, &start, &mut sink, &cancel)?
        };
        let toml = done.profile.to_toml()?;
        // What is written must be readable: a profile that its own reader refuses is never handed out.
        crate::profile::Profile::from_toml(&toml)?;
        let records = sink.finish()?;
        match (a.output.as_deref(), a.common.json.as_deref()) {
            (Some(path), _) => output::file(path, &toml)?,
            (None, Some("-")) => {}
            (None, _) => output::data(&toml)?,
        }
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
        let infos = rig.devices.iter().map(|d| d.info().clone()).collect();
        let doc = self.document(infos, rig.absent, records, done.complete, code);
        self.write_json(a.common.json.as_deref(), &doc)?;
        Ok(code)
    }
}
