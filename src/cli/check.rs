//! `calibrate --check`: a profile's keys measured again, and what became of them.

use std::collections::BTreeSet;

use crate::base::record::ThresholdRecord;
use crate::base::{Code, DeviceInfo, Error, Result};
use crate::device::probe::Rig;
use crate::op;
use crate::profile::{self, CPU_AUTO, Fit, Host, Kind, Profile, Verdict, diff};

use super::args;
use super::output;

/// Thresholds that lie closer than this have not drifted, whatever their intervals: of hundreds of keys some always part by
/// chance.
const TOLERANCE: f64 = 0.15;

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

/// What became of the keys that had a verdict. Those without one now are unknown: that is no drift.
pub(super) fn drift(made: &Profile, now: &Profile) -> Vec<ThresholdRecord> {
    let open = |v: &Option<String>| {
        v.as_deref().is_none_or(|v| [Verdict::Inconclusive, Verdict::Unmeasured].iter().any(|o| o.name() == v))
    };
    let mut records = diff::diff(made, now, TOLERANCE);
    records.retain(|r| !open(&r.old_verdict));
    for r in records.iter_mut().filter(|r| open(&r.new_verdict)) {
        r.reason = format!("now {}", r.new_verdict.as_deref().unwrap_or("not measured"));
        r.verdict = diff::UNKNOWN.into();
    }
    records
}

/// 1: a key has drifted; 4: of no key can that be said; else 0.
pub(super) fn exit_code(records: &[ThresholdRecord]) -> u8 {
    match () {
        () if records.iter().any(|r| diff::is_finding(&r.verdict)) => 1,
        () if records.iter().all(|r| r.verdict == diff::UNKNOWN) => 4,
        () => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profile::Entry;

    fn entry(op: &str, verdict: Verdict, threshold: Option<u64>) -> Entry {
        Entry {
            op: op.into(),
            dtype: "f32".into(),
            family: "all".into(),
            device: "sim:x".into(),
            residency: "always".into(),
            threads: 2,
            cpu_variant: CPU_AUTO.into(),
            verdict,
            unit: "elements".into(),
            crossing: threshold.map(|t| t * 10 / 11),
            ci: threshold.map(|t| [t * 9 / 11, t]),
            threshold,
            ..Entry::default()
        }
    }

    fn profile(entries: Vec<Entry>) -> Profile {
        Profile { entries, ..Profile::new(Kind::Calibrated, "x") }
    }

    #[test]
    fn a_programs_own_functions_are_left_out() {
        use clap::Parser;
        let parsed = args::Cli::try_parse_from(["gpuctl", "calibrate", "--check", "x.toml"]).unwrap();
        let args::Command::Calibrate(a) = parsed.command else { panic!("another command") };
        let made = |ops: &[&str]| profile(ops.iter().map(|op| entry(op, Verdict::Never, None)).collect());
        assert_eq!(as_made(&a, &made(&["mine", "exp", "add"])).unwrap().op.as_deref(), Some("add,exp"));
        let e = as_made(&a, &made(&["mine"])).unwrap_err();
        assert!(e.code() == Code::BadArgument && e.to_string().contains("own functions"), "{e}");
    }

    #[test]
    fn drift_is_a_moved_threshold_or_another_verdict_and_not_a_missing_one() {
        let made = profile(vec![
            entry("add", Verdict::Crossing, Some(11_000)),
            entry("exp", Verdict::Crossing, Some(11_000)),
            entry("sum", Verdict::Never, None),
            entry("relu", Verdict::Inconclusive, None),
        ]);
        let with = |at: usize, e: Entry| {
            let mut now = made.clone();
            now.entries[at] = e;
            let records = drift(&made, &now);
            assert_eq!(records.len(), 3, "a key that had no verdict is not checked");
            (records[at.min(2)].verdict.clone(), exit_code(&records))
        };
        assert_eq!(exit_code(&drift(&made, &made)), 0);
        assert_eq!(with(0, entry("add", Verdict::Crossing, Some(11_500))), ("WITHIN".into(), 0));
        assert_eq!(with(0, entry("add", Verdict::Crossing, Some(22_000))), ("MOVED".into(), 1));
        assert_eq!(with(1, entry("exp", Verdict::Unsafe, None)), ("VERDICT".into(), 1));
        assert_eq!(with(2, entry("sum", Verdict::Inconclusive, None)), ("UNKNOWN".into(), 0));
        let nothing = profile(made.entries.iter().map(|e| entry(&e.op, Verdict::Unmeasured, None)).collect());
        assert_eq!(exit_code(&drift(&made, &nothing)), 4);
        assert_eq!(exit_code(&drift(&profile(Vec::new()), &made)), 4, "nothing was checked");
    }
}
