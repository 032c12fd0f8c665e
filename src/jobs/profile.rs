//! The profile subcommand: why a call goes where it goes, what a profile says, whether a file is sound.

use crate::base::{Attrs, Code, DType, Error, Fill, Result, units};
use crate::engine::{Engine, Explanation};
use crate::op;
use crate::profile::file::{self, Loaded};
use crate::profile::{Entry, Kind, Place, Profile, Source, model};

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
            text.push_str(&format!(", threshold {t} {} (crossing {c}, 95 % {low} to {high})", e.unit));
        }
        (Some(t), ..) => text.push_str(&format!(", threshold {t} {}", e.unit)),
        _ => {}
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
        lines.push(format!("host: {}, {}, {} CPUs, {}", h.cpu, h.isa, h.cpus, h.os));
    }
    lines.extend(p.devices.iter().map(|d| format!("device: {} = {} ({}, driver {})", d.id, d.name, d.uid, d.driver)));
    lines.extend(p.notes.iter().map(|n| format!("note: {n}")));
    lines.extend(p.entries.iter().map(|e| describe(p, e)));
    if p.entries.is_empty() {
        lines.push("no entries: every call runs on the CPU".into());
    }
    lines
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
    match file::load_source(source.clone()) {
        Err(e) if matches!(e.code(), Code::ProfileNotFound | Code::Io) => Err(e),
        Err(e) => Ok(LintReport { source, error: Some(e), warnings: Vec::new(), entries: 0 }),
        Ok(loaded) => {
            let mut warnings = loaded.warnings;
            let mut unknown: Vec<&str> =
                loaded.profile.entries.iter().map(|e| e.op.as_str()).filter(|op| op::find(op).is_err()).collect();
            unknown.dedup();
            // Presets name ops ahead of their time on purpose.
            if loaded.profile.kind == Kind::Calibrated {
                warnings.extend(unknown.iter().map(|op| format!("this build has no op '{op}'")));
            }
            for e in &loaded.profile.entries {
                if let Ok(op) = op::find(&e.op)
                    && op.unit.name() != e.unit
                {
                    warnings.push(format!("{}: unit {}, this build measures {}", e.op, e.unit, op.unit.name()));
                }
            }
            Ok(LintReport { source, error: None, warnings, entries: loaded.profile.entries.len() })
        }
    }
}
