//! `calibrate --check`: a profile's keys measured again, and what became of them.

use std::collections::BTreeSet;

use crate::base::record::ThresholdRecord;
use crate::base::sink::{Cancel, Sink};
use crate::base::{Code, DeviceInfo, Error, Result};
use crate::device::probe::Rig;
use crate::jobs::calibrate::{self, CalibrateConfig, Calibrated};
use crate::jobs::workers::Start;
use crate::op;
use crate::profile::{self, CPU_AUTO, Entry, Fit, Host, Kind, Profile, diff, drift};

use super::args;
use super::output::{self, CliSink};

/// The profile of `--check`. Errors: those of loading it, `BadArgument` for a preset.
pub(super) fn checked(a: &args::Calibrate) -> Result<Option<Profile>> {
    let Some(path) = &a.check else { return Ok(None) };
    let loaded = profile::load(path)?;
    if loaded.profile.kind == Kind::Preset {
        return Err(Error::new(Code::BadArgument, format!("--check {path}: a preset was not measured anywhere")));
    }
    Ok(Some(loaded.profile))
}

/// The command as the profile was made, where it says nothing else.
pub(super) fn as_made(a: &args::Calibrate, made: &Profile) -> Result<args::Calibrate> {
    // A program's own functions cannot be called from here: their keys stay unknown.
    let known = |e: &&profile::Entry| op::find(&e.op).is_ok();
    let all = |of: fn(&profile::Entry) -> &str| -> Vec<String> {
        let words: BTreeSet<&str> = made.entries.iter().filter(known).map(of).collect();
        words.into_iter().map(str::to_string).collect()
    };
    if !made.entries.is_empty() && !made.entries.iter().any(|e| known(&e)) {
        return Err(Error::new(
            Code::BadArgument,
            "--check: the profile has no key of an op, only a program's own functions",
        ));
    }
    let mut a = a.clone();
    let list = |words: Vec<String>| (!words.is_empty()).then(|| words.join(","));
    a.op = a.op.or_else(|| list(all(|e| &e.op)));
    a.dtype = a.dtype.or_else(|| list(all(|e| &e.dtype)));
    a.residency = a.residency.or_else(|| list(all(|e| &e.residency)));
    a.common.device = a.common.device.or_else(|| list(all(|e| &e.device)));
    if a.common.threads.is_empty() {
        let counts: BTreeSet<usize> = made.entries.iter().filter(known).map(|e| e.threads as usize).collect();
        a.common.threads = counts.into_iter().collect();
    }
    if a.cpu_variant.is_none() {
        let variants = all(|e| &e.cpu_variant);
        if variants.len() > 1 {
            let why = format!("--check: keys against several CPU kernels ({}): name one", variants.join(", "));
            return Err(Error::new(Code::BadArgument, why));
        }
        a.cpu_variant = variants.into_iter().next().filter(|v| v != CPU_AUTO);
    }
    a.margin = made.margin;
    // The file names its devices.
    a.allow_software = true;
    Ok(a)
}

/// Refuses (`BadArgument`) a profile of another machine: its thresholds cannot have drifted.
pub(super) fn same_machine(made: &Profile, rig: &Rig) -> Result<()> {
    let bad = |why: String| Err(Error::new(Code::BadArgument, format!("--check: {why}")));
    let cpu = rig.cpu.info();
    if let Some(why) = made.other_host(&Host::of(cpu)) {
        return bad(why);
    }
    let here: Vec<DeviceInfo> = rig.devices.iter().map(|d| d.info().clone()).collect();
    for (device, fit) in made.check(&here) {
        match fit {
            Fit::Other { .. } => return bad(format!("{}: {}", device.id, fit.text())),
            Fit::OtherDriver { .. } => output::talk(&format!("{}: {}", device.id, fit.text())),
            Fit::Exact | Fit::Absent => {}
        }
    }
    Ok(())
}

/// Share of the budget that is kept for keys that seem to have changed.
pub(super) const AGAIN: f64 = 1.0 / 3.0;

/// Keys that were measured twice: their entries at first, and those of the second look.
#[derive(Debug, Default)]
pub(super) struct Twice {
    first: Vec<Entry>,
    again: Vec<Entry>,
}

impl Twice {
    /// Measures once more what seems to have changed in `part`, and puts it in its place there; `cfg` has the budget for it.
    pub(super) fn measure(
        &mut self,
        made: &Profile,
        part: &mut Calibrated,
        cfg: &CalibrateConfig,
        (rig, start): (&Rig, Option<&Start>),
        sink: &mut CliSink,
        cancel: &Cancel,
    ) -> Result<()> {
        let now = part.as_asked();
        let suspects = drift::suspects(made, &now);
        if suspects.is_empty() || cancel.raised() {
            return Ok(());
        }
        sink.note(&format!("measuring {} key(s) once more that seem to have changed", suspects.len()));
        if let Some(found) = calibrate::again(cfg, &suspects, rig, start, sink, cancel)? {
            let first: Vec<Entry> = suspects.into_iter().cloned().collect();
            part.replace(&first, &found);
            part.interrupted |= found.interrupted;
            self.first.extend(first);
            self.again.extend(found.asked);
        }
        Ok(())
    }

    /// What became of the keys, `now` being the profile with what was found last; and of how many that seemed to have changed that
    /// cannot be said.
    pub(super) fn records(&self, made: &Profile, now: &Profile) -> (Vec<ThresholdRecord>, usize) {
        let mut first = now.clone();
        for old in &self.first {
            let same = |e: &&mut Entry| diff::same_key(e, old);
            first.entries.iter_mut().filter(same).for_each(|e| *e = old.clone());
        }
        drift::twice(made, &first, &self.again)
    }
}

/// 1: a key has drifted; 4: of no key can that be said, or not of one that seemed to (`left_open`); else 0.
pub(super) fn exit_code(records: &[ThresholdRecord], left_open: usize) -> u8 {
    match () {
        () if records.iter().any(|r| diff::is_finding(&r.verdict)) => 1,
        () if left_open > 0 => 4,
        () if records.iter().all(|r| r.verdict == diff::UNKNOWN) => 4,
        () => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profile::Verdict;

    fn entry(op: &str, verdict: Verdict) -> Entry {
        Entry { op: op.into(), verdict, ..Entry::default() }
    }

    fn profile(entries: Vec<Entry>) -> Profile {
        Profile { entries, ..Profile::new(Kind::Calibrated, "x") }
    }

    #[test]
    fn a_programs_own_functions_are_left_out() {
        use clap::Parser;
        let parsed = args::Cli::try_parse_from(["gpuctl", "calibrate", "--check", "x.toml"]).unwrap();
        let args::Command::Calibrate(a) = parsed.command else { panic!("another command") };
        let made = |ops: &[&str]| profile(ops.iter().map(|op| entry(op, Verdict::Never)).collect());
        assert_eq!(as_made(&a, &made(&["mine", "exp", "add"])).unwrap().op.as_deref(), Some("add,exp"));
        let e = as_made(&a, &made(&["mine"])).unwrap_err();
        assert!(e.code() == Code::BadArgument && e.to_string().contains("own functions"), "{e}");
    }

    #[test]
    fn a_key_that_drifted_is_a_finding_and_keys_of_which_nothing_is_known_are_no_answer() {
        let made = profile(vec![entry("exp", Verdict::Never), entry("add", Verdict::Never)]);
        let code = |verdicts: [Verdict; 2]| {
            let now = profile(["exp", "add"].iter().zip(verdicts).map(|(op, v)| entry(op, v)).collect());
            exit_code(&drift::drift(&made, &now), 0)
        };
        assert_eq!(code([Verdict::Never, Verdict::Never]), 0);
        assert_eq!(code([Verdict::Never, Verdict::Inconclusive]), 0);
        assert_eq!(code([Verdict::Unsafe, Verdict::Inconclusive]), 1);
        assert_eq!(code([Verdict::Unmeasured, Verdict::Inconclusive]), 4);
        assert_eq!(exit_code(&[], 0), 4, "nothing was checked");
        let same = drift::drift(&made, &made);
        assert_eq!([exit_code(&same, 0), exit_code(&same, 1)], [0, 4], "what seemed to have changed is no pass");
    }
}
