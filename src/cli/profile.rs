//! `profile`: what a profile says, why, and how to change it.

use std::path::Path;

use crate::base::text::printable;
use crate::base::{Backend, Code, Env, Error, Fill, Record, Result};
use crate::device::cpu::Pin;
use crate::device::probe::{CpuConfig, inventory};
use crate::engine::{Engine, Placement};
use crate::jobs::profile;
use crate::op::{self, case};
use crate::profile::{Profile, by_age, diff, edit, file, merge};
use crate::report;

use super::args::{self, ProfileCommand};
use super::commands::Ctx;
use super::output;
use super::sizes::parse_shape;

impl Ctx<'_> {
    pub(super) fn profile(&self, what: &ProfileCommand) -> Result<u8> {
        match what {
            ProfileCommand::Why(a) => self.profile_why(a),
            ProfileCommand::Show { profile: spec } => {
                let loaded = file::load(spec)?;
                loaded.warnings.iter().for_each(|w| output::talk(w));
                lines(&profile::show(&loaded)).map(|()| 0)
            }
            ProfileCommand::Diff(a) => self.profile_diff(a),
            ProfileCommand::Merge { files, output } => profile_merge(files, output.as_deref()),
            ProfileCommand::Set(a) => {
                let which = edit::Which {
                    device: a.device.clone(),
                    residency: a.residency.clone(),
                    threads: a.threads,
                    cpu_variant: a.cpu_variant.clone(),
                };
                lines(&profile::set(&a.file, &a.assignment, &which, a.output.as_deref().map(Path::new))?).map(|()| 0)
            }
            ProfileCommand::Lint { seal: true, file } => lines(&profile::seal(file)?).map(|()| 0),
            ProfileCommand::Lint { seal: false, file } => {
                let report = profile::lint(file)?;
                lines(&report.lines()).map(|()| report.exit_code())
            }
        }
    }

    fn profile_why(&self, a: &args::Why) -> Result<u8> {
        let op = op::find(&a.op)?;
        let placement: Placement = a.placement.parse()?;
        let threads = a.threads.unwrap_or(0);
        let builder = |env: &Env| {
            let mut builder = Engine::builder().env(env.clone()).threads(threads).placement(placement.clone());
            if let Some(spec) = &a.profile {
                builder = builder.profile(spec.clone());
            }
            if let Some(variant) = &a.cpu_variant {
                builder = builder.cpu_variant(variant.clone());
            }
            builder
        };
        let attrs = case::parse_attrs(op, &a.attr)?;
        let shape = parse_shape(&a.shape)?;
        let dtype = a.dtype.parse()?;
        // The request is checked before any profile or device is looked at.
        op.case(dtype, &shape, attrs.clone(), Fill::Uniform)?;
        let engine = self.engine(&placement, builder)?;
        let why = profile::why(&engine, &a.op, dtype, &shape, attrs.clone())?;
        let mut text = profile::why_lines(&engine, &why);
        text.extend(profile::chain_lines(&engine, &a.op, dtype, &shape, attrs, a.cpu_variant.as_deref())?);
        lines(&text)?;
        self.cpu_only(&engine)?;
        Ok(0)
    }

    /// Tells of a GPU here that the profile never looked at. Drivers are opened only for a profile that uses none.
    fn cpu_only(&self, engine: &Engine) -> Result<()> {
        if self.env.disable_gpu || engine.profile().may_use_gpu() {
            return Ok(());
        }
        let here = inventory(self.sound(&Backend::ALL)?, CpuConfig { threads: 1, pin: Pin::Free })?;
        let infos: Vec<_> = here.found.iter().map(|f| f.info.clone()).collect();
        if let Some(text) = engine.profile().cpu_only(engine.source(), &infos) {
            output::talk(&text);
        }
        Ok(())
    }

    fn profile_diff(&self, a: &args::Diff) -> Result<u8> {
        let tolerance = tolerance(&a.tolerance)?;
        let (old, new) = (file::load(&a.a)?, file::load(&a.b)?);
        for loaded in [&old, &new] {
            loaded.warnings.iter().for_each(|w| output::talk(&format!("{}: {w}", loaded.source)));
        }
        if let (Some(x), Some(y)) = (&old.profile.host, &new.profile.host)
            && x.side() != y.side()
        {
            let (x, y) = (x.side(), y.side());
            output::talk(&format!("measured against different CPUs: '{x}' and '{y}'"));
        }
        let awake = |p: &Profile| p.host.as_ref().is_some_and(|h| h.awake);
        if awake(&old.profile) != awake(&new.profile) {
            output::talk(
                "in one of them processors were kept awake, in the other they could fall idle: short calls differ by that",
            );
        }
        let remarks = diff::disturbed(&old.profile, &new.profile).into_iter();
        remarks.chain(diff::states(&old.profile, &new.profile)).for_each(|line| output::talk(&line));
        let records = diff::diff(&old.profile, &new.profile, tolerance);
        let found = records.iter().any(|r| diff::is_finding(&r.verdict));
        let judged = records.iter().any(|r| r.verdict != diff::UNKNOWN);
        let code = match (found, judged || records.is_empty()) {
            (true, _) => 1,
            (false, true) => 0,
            (false, false) => 4,
        };
        if a.json.as_deref() != Some("-") {
            let (table, counts) = report::text::threshold_changes(&records, output::width());
            let empty = records.is_empty().then(|| "neither has entries: both keep everything on the CPU".to_string());
            lines(&table.into_iter().chain([empty.unwrap_or(counts)]).collect::<Vec<_>>())?;
        }
        let complete = !(old.profile.partial || new.profile.partial);
        let records = records.into_iter().map(|r| Record::Threshold(Box::new(r))).collect();
        self.write_json(a.json.as_deref(), &self.document(Vec::new(), Vec::new(), records, complete, code))?;
        Ok(code)
    }
}

fn profile_merge(files: &[String], to: Option<&str>) -> Result<u8> {
    let mut all: Vec<(String, Profile)> = Vec::new();
    for spec in files {
        let loaded = file::load(spec)?;
        loaded.warnings.iter().for_each(|w| output::talk(&format!("{spec}: {w}")));
        all.push((spec.clone(), loaded.profile));
    }
    let called = all.first().map(|(_, p)| p.name.clone()).unwrap_or_default();
    by_age(&mut all);
    let mut merged: Option<(String, Profile)> = None;
    for (spec, next) in all {
        merged = Some(match merged {
            None => (spec, next),
            Some((name, first)) => {
                let named = |e: Error| Error::new(e.code(), format!("{name} and {spec}: {}", e.detail()));
                let (profile, notes) = merge(&first, &next).map_err(named)?;
                notes.iter().for_each(|n| output::talk(&format!("{spec}: {n}")));
                (format!("{name} + {spec}"), profile)
            }
        });
    }
    let (_, merged) = merged.ok_or_else(|| Error::new(Code::BadArgument, "no profile to merge"))?;
    let profile = Profile { name: called, ..merged };
    match to {
        Some(path) => file::save(&profile, Path::new(path))?,
        None => output::data(&profile.to_toml()?)?,
    }
    Ok(0)
}

/// `15%`, or `0.15`.
fn tolerance(text: &str) -> Result<f64> {
    let (number, scale) = text.strip_suffix('%').map_or((text, 1.0), |n| (n, 0.01));
    let value = number.trim().parse::<f64>().ok().map(|v| v * scale);
    let bad = || Error::new(Code::BadArgument, format!("--tolerance {text}: expected a share such as 15%"));
    value.filter(|v| (0.0..=100.0).contains(v)).ok_or_else(bad)
}

/// Writes lines that quote files and drivers.
fn lines(lines: &[String]) -> Result<()> {
    output::data(&(printable(&lines.join("\n")).into_owned() + "\n"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profile::{Entry, Host, Kind, ProfileDevice, Verdict};

    /// A profile of one day with these entries: the op's name and whether the device always wins.
    fn of_day(day: u32, entries: &[(&str, bool)]) -> Profile {
        let mut p = Profile::new(Kind::Calibrated, &format!("day {day}"));
        p.created = format!("2026-01-{day:02}T12:00:00Z");
        p.host = Some(Host { cpu: "CPU".into(), isa: "avx2".into(), ..Host::default() });
        p.devices.push(ProfileDevice {
            id: "opencl:0".into(),
            uid: "pci:1".into(),
            backend: "opencl".into(),
            ..ProfileDevice::default()
        });
        p.entries = entries
            .iter()
            .map(|(op, wins)| Entry {
                op: (*op).into(),
                dtype: "f32".into(),
                family: "all".into(),
                device: "pci:1".into(),
                residency: "always".into(),
                threads: 2,
                cpu_variant: "auto".into(),
                verdict: if *wins { Verdict::Inconclusive } else { Verdict::Never },
                unit: "elements".into(),
                reason: format!("day {day}"),
                ..Entry::default()
            })
            .collect();
        p
    }

    /// In every order of the files each key has what was measured last, and the first file gives the name.
    #[test]
    fn the_order_of_files_does_not_decide() {
        let dir = tempfile::tempdir().unwrap();
        // `b` is not among the newest: in a wrong order the oldest one's would pass for as new as the newest file.
        let days = [
            of_day(1, &[("a", true), ("b", true), ("c", true)]),
            of_day(2, &[("b", false), ("c", false)]),
            of_day(3, &[("c", true)]),
        ];
        let paths: Vec<String> =
            (0..3).map(|i| dir.path().join(format!("{i}.toml")).to_str().unwrap().to_string()).collect();
        for (p, path) in days.iter().zip(&paths) {
            file::save(p, Path::new(path)).unwrap();
        }
        let out = dir.path().join("all.toml");
        for order in [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]] {
            let files: Vec<String> = order.iter().map(|i| paths[*i].clone()).collect();
            assert_eq!(profile_merge(&files, out.to_str()).unwrap(), 0);
            let all = file::load(out.to_str().unwrap()).unwrap().profile;
            let mut said: Vec<(&str, &str)> = all.entries.iter().map(|e| (&*e.op, &*e.reason)).collect();
            said.sort_unstable();
            assert_eq!(said, [("a", "day 1"), ("b", "day 2"), ("c", "day 3")], "{order:?}");
            assert_eq!((all.created.as_str(), &all.name), ("2026-01-03T12:00:00Z", &days[order[0]].name), "{order:?}");
        }
    }
}
