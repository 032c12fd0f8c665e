//! The profile subcommand: why a call goes where it goes, what a profile says, whether a file is sound.

use std::path::Path;

use crate::base::{Attrs, Code, DType, Error, Fill, Result, units};
use crate::engine::{Engine, Explanation, Why};
use crate::op;
use crate::profile::file::{self, Loaded};
use crate::profile::{
    ANY, CPU_AUTO, Entry, Key, Kind, Place, Profile, Reason, Rule, SCHEMA, Source, State, edit, model,
};

/// Explains the placement of one call with operands in host memory, as `Engine::run` would decide it.
///
/// `dims` are sizes in the op's order of dimension names. Errors: `UnknownOp`, and those of a bad shape, dtype or attribute.
pub fn why(engine: &Engine, op: &str, dtype: DType, dims: &[u64], attrs: Attrs) -> Result<Explanation> {
    let case = op::find(op)?.case(dtype, dims, attrs, Fill::Uniform)?;
    engine.why(&case)
}

/// An explanation as lines for people; the first is the answer.
pub fn why_lines(engine: &Engine, e: &Explanation) -> Vec<String> {
    let place = if e.place == Place::Gpu { "GPU" } else { "CPU" };
    let mut lines = vec![format!("{} -> {} ({place})", e.case, e.device), format!("because: {}", e.why)];
    let assumed = if e.assumed { "; assumed, not measured" } else { "" };
    let profile = engine.profile();
    lines.push(format!("profile: {} ({}{assumed})", engine.source(), profile.name));
    lines.push(format!("work: {} ({}), family: {}", e.work, e.unit, e.family.unwrap_or("none")));
    if let Some(entry) = &e.entry {
        lines.push(format!("entry: {}", describe(profile, entry)));
        if let Some(curve) = &entry.curve {
            if curve.covers(&model::Shape::of(&e.features)) {
                lines.push(format!("CPU: {}", curve.cpu.text(&e.features)));
                lines.push(format!("device: {}", curve.device.text(&e.features)));
                lines.extend(curve.change_text(&e.features).filter(|_| profile.rule == Rule::Curve));
                let threshold =
                    matches!(e.why, Why::Profile(Reason::ReachesThreshold | Reason::BelowThreshold | Reason::Always));
                if threshold && profile.rule == Rule::Curve && model::exceeds(entry, curve, &e.features) {
                    lines.push("curve: far more operations than were measured, so that the threshold decides".into());
                }
            } else {
                lines.push("curve: no such shape was measured, nor one near it".into());
            }
        } else if let (Some(cpu), Some(gpu)) = (model::cpu_seconds(entry, e.work), model::gpu_seconds(entry, e.work)) {
            lines.push(format!(
                "evidence at this work: CPU {}, device {} ({} sizes measured)",
                units::seconds(cpu),
                units::seconds(gpu),
                entry.points.len()
            ));
        }
        if entry.edited {
            lines.push("evidence: none, the entry was edited by hand".into());
        }
        if !entry.reason.is_empty() {
            lines.push(format!("remark: {}", entry.reason));
        }
    }
    lines.extend(e.notes.iter().map(|n| format!("note: {n}")));
    lines
}

/// One entry on one line.
fn describe(profile: &Profile, e: &Entry) -> String {
    let device = profile.devices.iter().find(|d| d.uid == e.device).map_or(e.device.as_str(), |d| d.id.as_str());
    let mut text = format!("{} {} {} on {device}, {}", e.op, e.dtype, e.family, e.residency);
    if e.threads > 0 {
        text.push_str(&format!(", against {} CPU threads ({})", e.threads, e.cpu_variant));
    }
    text.push_str(&format!(": {}", e.verdict));
    match (e.threshold, e.crossing, e.ci) {
        (Some(t), Some(c), Some([low, high])) => {
            let stake = e.stake.map(|s| format!(", at stake there {:.0} %", 100.0 * (s - 1.0))).unwrap_or_default();
            text.push_str(&format!(", threshold {t} {} (crossing {c}, 95 % {low} to {high}{stake})", e.unit));
        }
        (Some(t), ..) => text.push_str(&format!(", threshold {t} {}", e.unit)),
        _ => {}
    }
    if e.edited {
        text.push_str(" (edited by hand, not measured)");
    }
    text
}

/// What a profile holds, as lines for people.
pub fn show(loaded: &Loaded) -> Vec<String> {
    let p = &loaded.profile;
    let kind = match p.kind {
        Kind::Preset => "preset: assumed, not measured",
        Kind::Calibrated if p.partial => "calibrated, cut short",
        Kind::Calibrated => "calibrated",
    };
    let mut lines = vec![format!("{}: {} ({kind}), gpuctl {}", loaded.source, p.name, p.gpuctl)];
    if !p.created.is_empty() {
        lines.push(format!("created: {}, margin {}", p.created, p.margin));
    }
    if let Some(h) = &p.host {
        let awake = if h.awake { ", its processors kept awake" } else { "" };
        let disturbed =
            h.disturbed.map_or_else(String::new, |s| format!(", disturbed in {:.0} % of the looks", 100.0 * s));
        lines.push(format!("host: {}, {} CPUs, {}{awake}{disturbed}", h.side(), h.cpus, h.os));
    }
    lines.extend(p.devices.iter().map(|d| format!("device: {} = {} ({}, driver {})", d.id, d.name, d.uid, d.driver)));
    lines.extend(p.states.iter().map(|s| state(p, s)));
    lines.extend(p.notes.iter().map(|n| format!("note: {n}")));
    lines.extend(p.entries.iter().map(|e| describe(p, e)));
    if p.entries.is_empty() {
        lines.push("no entries: every call runs on the CPU".into());
    }
    let edited = p.entries.iter().filter(|e| e.edited).count();
    if edited > 0 {
        lines.push(format!("{edited} of {} entries were edited by hand", p.entries.len()));
    }
    lines
}

/// What was read of a device's state, and what its thresholds are stated for.
fn state(p: &Profile, s: &State) -> String {
    let id = p.devices.iter().find(|d| d.uid == s.device).map_or(s.device.as_str(), |d| d.id.as_str());
    let of = |read: f64, stated: f64| format!("{} (stated for {})", units::seconds(read), units::seconds(stated));
    format!(
        "state: {id} {} at {} threads: CPU reads {}, device {}",
        s.residency,
        s.threads,
        of(s.cpu_s, s.stated_cpu_s),
        of(s.device_s, s.stated_device_s)
    )
}

/// How far a call's key is known to the engine's profile, part by part and for each of its devices.
///
/// `cpu_variant` is what the engine was built with. Errors as of [`why`].
pub fn chain_lines(
    engine: &Engine,
    op: &str,
    dtype: DType,
    dims: &[u64],
    attrs: Attrs,
    cpu_variant: Option<&str>,
) -> Result<Vec<String>> {
    let op = op::find(op)?;
    let case = op.case(dtype, dims, attrs, Fill::Uniform)?;
    let profile = engine.profile();
    let key = Key {
        op: op.name,
        dtype,
        family: op.family(&case).map(|f| f.name),
        unit: op.unit.name(),
        device_uid: "",
        residency: "always",
        threads: engine.device_info("cpu")?.compute_units,
        cpu_variant: cpu_variant.unwrap_or(CPU_AUTO),
    };
    let mut lines = Vec::new();
    let mut chain = |head: String, key: &Key<'_>| {
        lines.push(head);
        lines.extend(profile.chain(key).iter().map(|step| format!("  {}", step.text())));
    };
    match profile.kind {
        Kind::Preset => chain("key, on whichever GPU is here:".into(), &Key { device_uid: ANY, ..key }),
        Kind::Calibrated if profile.devices.is_empty() => chain("key, on no device:".into(), &key),
        Kind::Calibrated => {
            for d in &profile.devices {
                chain(format!("key, on {}:", d.id), &Key { device_uid: &d.uid, ..key });
            }
        }
    }
    Ok(lines)
}

/// What is wrong with a file, and what is merely odd.
#[derive(Debug)]
pub struct LintReport {
    /// The file or preset.
    pub source: Source,
    /// The first reason to refuse the file.
    pub error: Option<Error>,
    /// Odd but harmless: unknown keys, ops that this build does not have.
    pub warnings: Vec<String>,
    /// Entries read.
    pub entries: usize,
}

impl LintReport {
    /// 0: sound; 1: the file would be refused.
    pub fn exit_code(&self) -> u8 {
        u8::from(self.error.is_some())
    }
    /// The report as lines for people.
    pub fn lines(&self) -> Vec<String> {
        let mut lines = match &self.error {
            Some(e) => vec![format!("refused: {e}")],
            None => vec![format!("{}: sound, {} entries", self.source, self.entries)],
        };
        lines.extend(self.warnings.iter().map(|w| format!("warning: {w}")));
        lines
    }
}

/// Checks a profile's form. A file that is not there is an error; one that would be refused is a report.
pub fn lint(spec: &str) -> Result<LintReport> {
    let source = Source::parse(spec)?;
    let text = match file::text(&source) {
        Err(e) if matches!(e.code(), Code::ProfileNotFound | Code::Io) => return Err(e),
        Err(e) => return Ok(LintReport { source, error: Some(e), warnings: Vec::new(), entries: 0 }),
        Ok(text) => text,
    };
    let (profile, mut warnings) = match file::read_toml(&text) {
        Err(e) => {
            let error = Some(file::in_source(&source, &e));
            // Says now what would keep the file from being signed, not only that its digest is wrong.
            let warnings = match edit::seal(&text) {
                Ok(sealed) => sealed.remarks.iter().map(|r| format!("with --seal: {r}")).collect(),
                Err(other) if other.detail() != e.detail() => vec![format!("and --seal would refuse it: {other}")],
                Err(_) => Vec::new(),
            };
            return Ok(LintReport { source, error, warnings, entries: 0 });
        }
        Ok(read) => read,
    };
    warnings.extend(odd(&profile));
    if let Ok(sealed) = edit::seal(&text) {
        warnings.extend(sealed.remarks.iter().filter(|r| r.starts_with("layout")).map(|r| {
            format!("{r} where it is read; `gpuctl profile lint --seal FILE` writes it so (this build: {SCHEMA})")
        }));
    }
    Ok(LintReport { source, error: None, warnings, entries: profile.entries.len() })
}

/// Ops and units that this build does not have or measures otherwise.
fn odd(profile: &Profile) -> Vec<String> {
    let mut warnings = Vec::new();
    // Presets name ops ahead of their time on purpose.
    if profile.kind == Kind::Calibrated {
        let mut unknown: Vec<&str> =
            profile.entries.iter().map(|e| e.op.as_str()).filter(|op| op::find(op).is_err()).collect();
        unknown.dedup();
        warnings.extend(unknown.iter().map(|op| format!("this build has no op '{op}'")));
    }
    for e in &profile.entries {
        if let Ok(op) = op::find(&e.op)
            && op.unit.name() != e.unit
        {
            warnings.push(format!("{}: unit {}, this build measures {}", e.op, e.unit, op.unit.name()));
        }
    }
    warnings
}

/// Signs a file that was edited by hand; gives what was done. The file is replaced whole or not at all.
///
/// Errors: those of reading it, `BadArgument` for a preset's name, and why the file would be refused.
pub fn seal(spec: &str) -> Result<Vec<String>> {
    let source = Source::parse(spec)?;
    let path = own_file(&source)?;
    let text = file::text(&source)?;
    let sealed = edit::seal(&text).map_err(|e| file::in_source(&source, &e))?;
    let mut lines = sealed.remarks;
    let new = sealed.profile.to_toml()?;
    if new == *text {
        lines.push(format!("{source}: already sealed, nothing was changed"));
    } else {
        file::write(path, &new)?;
        lines.push(format!("{source}: sealed, {} of {} entries edited", sealed.changed, sealed.profile.entries.len()));
    }
    Ok(lines)
}

/// Sets one value of a profile (see [`edit::set`]) and writes it to `output`, or back to its file; gives what was done.
pub fn set(spec: &str, assignment: &str, which: &edit::Which, output: Option<&Path>) -> Result<Vec<String>> {
    let source = Source::parse(spec)?;
    let path = output.map_or_else(|| own_file(&source), Ok)?;
    let mut profile = file::load_source(source.clone())?.profile;
    let lines = edit::set(&mut profile, assignment, which)?;
    file::save(&profile, path)?;
    Ok(lines)
}

fn own_file(source: &Source) -> Result<&Path> {
    match source {
        Source::File(path) => Ok(path),
        other => {
            let why = format!("{other} is part of gpuctl: `gpuctl profile set KEY=VALUE NAME -o FILE` makes your own");
            Err(Error::new(Code::BadArgument, why))
        }
    }
}
