//! The profile as a TOML file: written once, closed by an end mark and a digest, read with distrust.
//!
//! TOML cut between two tables, or empty, is still valid TOML; therefore the last table is `[end]` with the number of
//! entries and a digest of every byte before the digest's own line. A file without it is truncated, one with another
//! digest was edited or damaged; both are refused.

use std::collections::HashSet;
use std::path::{Path, PathBuf};

use crate::base::rng::fnv1a64;
use crate::base::{Backend, Code, DType, Error, Result};

use super::{ANY, BY_CALLER, Kind, Profile, SCHEMA, Verdict, work_of};

/// Names and texts of the shipped presets (requirements B3).
pub const PRESETS: [(&str, &str); 5] = [
    ("default", include_str!("../../profiles/default.toml")),
    ("high-end", include_str!("../../profiles/high-end.toml")),
    ("low-end", include_str!("../../profiles/low-end.toml")),
    ("always-cpu", include_str!("../../profiles/always-cpu.toml")),
    ("always-gpu", include_str!("../../profiles/always-gpu.toml")),
];

/// Larger files are no profiles: a thousand entries with full evidence take about 2 MB.
pub const MAX_BYTES: u64 = 16 << 20;

const HEAD: &str = "# Threshold profile of gpuctl. Sizes are in each entry's unit; sizes from `threshold` on go to the device.\n\
                    # points: [size, cpu_s, gpu_s, lower and upper end of cpu/gpu (95 %), pairs]\n";

/// Where a profile comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// A file.
    File(PathBuf),
    /// A shipped preset, asked for by name.
    Preset(String),
    /// The always-cpu preset at the end of the search.
    Embedded,
}

impl Source {
    /// Reads what `--profile` and `GPUCTL_PROFILE` take: `preset:NAME`, a preset's bare name, or a file (write `./default`
    /// for a file that is called like a preset).
    pub fn parse(spec: &str) -> Result<Source> {
        let preset = |name: &str| PRESETS.iter().any(|(n, _)| *n == name);
        match spec.strip_prefix("preset:") {
            Some(name) if preset(name) => Ok(Source::Preset(name.into())),
            Some(name) => {
                let known: Vec<_> = PRESETS.iter().map(|(n, _)| *n).collect();
                Err(Error::new(
                    Code::ProfileNotFound,
                    format!("no preset '{name}'; the presets are {}", known.join(", ")),
                ))
            }
            None if spec.is_empty() => Err(Error::new(Code::ProfileNotFound, "the profile's name is empty")),
            None if preset(spec) => Ok(Source::Preset(spec.into())),
            None => Ok(Source::File(PathBuf::from(spec))),
        }
    }
}

impl std::fmt::Display for Source {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Source::File(path) => write!(f, "{}", path.display()),
            Source::Preset(name) => write!(f, "preset:{name}"),
            Source::Embedded => write!(f, "the embedded always-cpu"),
        }
    }
}

/// A profile with what was noticed while reading it.
#[derive(Clone, Debug)]
pub struct Loaded {
    /// The profile.
    pub profile: Profile,
    /// Where it came from.
    pub source: Source,
    /// Unknown keys, and a notice if the calibration was cut short.
    pub warnings: Vec<String>,
}

/// Loads `preset:NAME`, a preset's bare name, or a file.
///
/// Errors: `ProfileNotFound`, `Io`, and those of [`Profile::from_toml`]; all name the source.
pub fn load(spec: &str) -> Result<Loaded> {
    load_source(Source::parse(spec)?)
}

/// Loads a profile from a source.
pub fn load_source(source: Source) -> Result<Loaded> {
    let text;
    let text = match &source {
        Source::File(path) => {
            text = read(path)?;
            text.as_str()
        }
        Source::Preset(name) => preset_text(name)?,
        Source::Embedded => preset_text("always-cpu")?,
    };
    let (profile, warnings) = read_toml(text).map_err(|e| Error::new(e.code(), format!("{source}: {}", e.detail())))?;
    Ok(Loaded { profile, source, warnings })
}

fn preset_text(name: &str) -> Result<&'static str> {
    let found = PRESETS.iter().find(|(n, _)| *n == name);
    found.map(|(_, text)| *text).ok_or_else(|| Error::new(Code::ProfileNotFound, format!("no preset '{name}'")))
}

fn read(path: &Path) -> Result<String> {
    let named = |code: Code, e: std::io::Error| Error::new(code, path.display().to_string()).caused_by(e);
    let meta = std::fs::metadata(path).map_err(|e| match e.kind() {
        std::io::ErrorKind::NotFound => named(Code::ProfileNotFound, e),
        _ => named(Code::Io, e),
    })?;
    if !meta.is_file() {
        return Err(Error::new(Code::ProfileNotFound, format!("{} is not a file", path.display())));
    }
    if meta.len() > MAX_BYTES {
        let why = format!("{}: {} bytes; a profile has at most {MAX_BYTES}", path.display(), meta.len());
        return Err(Error::new(Code::ProfileParse, why));
    }
    let bytes = std::fs::read(path).map_err(|e| named(Code::Io, e))?;
    String::from_utf8(bytes)
        .map_err(|e| Error::new(Code::ProfileParse, format!("{}: not UTF-8 text", path.display())).caused_by(e))
}

/// Writes a profile: completely or not at all (a temporary file beside it is renamed).
pub fn save(profile: &Profile, path: &Path) -> Result<()> {
    let text = profile.to_toml()?;
    let named = |e: std::io::Error| Error::new(Code::Io, path.display().to_string()).caused_by(e);
    let mut name = path.file_name().unwrap_or_default().to_os_string();
    name.push(format!(".{}.tmp", std::process::id()));
    let temporary = path.with_file_name(name);
    std::fs::write(&temporary, text).map_err(named)?;
    std::fs::rename(&temporary, path).map_err(|e| {
        // Best effort: the rename's error is the one to report.
        let _ = std::fs::remove_file(&temporary);
        named(e)
    })
}

impl Profile {
    /// The file's text, closed by `[end]`. Refuses (`ProfileParse`) what [`Profile::from_toml`] would refuse.
    pub fn to_toml(&self) -> Result<String> {
        validate(self)?;
        let body = toml::to_string(self)
            .map_err(|e| Error::new(Code::ProfileParse, "the profile cannot be written as TOML").caused_by(e))?;
        let mut text = format!("{HEAD}{body}");
        if !text.ends_with('\n') {
            text.push('\n');
        }
        text.push_str(&format!("\n[end]\nentries = {}\npartial = {}\n", self.entries.len(), self.partial));
        let digest = fnv1a64(text.as_bytes());
        text.push_str(&format!("digest = \"{digest:016x}\"\n"));
        Ok(text)
    }

    /// Reads a file's text; warnings are dropped (see [`read_toml`]).
    ///
    /// Errors: `ProfileTruncated` without the end mark, `ProfileParse` for what is no TOML or no profile (with the line),
    /// `ProfileSchema` for another layout, `ProfileDigest` if a byte or the number of entries changed after writing.
    pub fn from_toml(text: &str) -> Result<Profile> {
        read_toml(text).map(|(profile, _)| profile)
    }
}

/// Reads a file's text and says what was noticed: unknown keys, a partial calibration.
pub fn read_toml(text: &str) -> Result<(Profile, Vec<String>)> {
    if text.len() as u64 > MAX_BYTES {
        return Err(Error::new(Code::ProfileParse, format!("{} bytes; a profile has at most {MAX_BYTES}", text.len())));
    }
    let (sealed, digest) = split_digest(text)?;
    let table: toml::Table = text.parse().map_err(|e: toml::de::Error| parse_error(text, &e))?;
    match table.get("schema").and_then(toml::Value::as_integer) {
        Some(v) if v == i64::from(SCHEMA) => {}
        Some(v) => return Err(Error::new(Code::ProfileSchema, format!("schema {v}; this build reads {SCHEMA}"))),
        None => return Err(Error::new(Code::ProfileSchema, format!("no schema; this build reads {SCHEMA}"))),
    }
    let actual = fnv1a64(sealed.as_bytes());
    if actual != digest {
        return Err(Error::new(
            Code::ProfileDigest,
            format!("the digest says {digest:016x}, the text gives {actual:016x}"),
        ));
    }
    let mut profile: Profile = toml::from_str(text).map_err(|e| parse_error(text, &e))?;
    let end = table.get("end").and_then(toml::Value::as_table);
    let counted = end.and_then(|t| t.get("entries")).and_then(toml::Value::as_integer);
    if counted != i64::try_from(profile.entries.len()).ok() {
        let said = counted.map_or("no number".into(), |n| n.to_string());
        return Err(Error::new(
            Code::ProfileDigest,
            format!("[end] says {said} of entries, there are {}", profile.entries.len()),
        ));
    }
    profile.partial = end
        .and_then(|t| t.get("partial"))
        .and_then(toml::Value::as_bool)
        .ok_or_else(|| Error::new(Code::ProfileTruncated, "[end] does not say whether the profile is partial"))?;
    validate(&profile)?;
    let mut warnings = unknown_keys(&table);
    if profile.partial {
        warnings.push("the calibration was cut short: what is missing runs on the CPU".into());
    }
    Ok((profile, warnings))
}

/// The sealed text before the digest's line, and the digest.
fn split_digest(text: &str) -> Result<(&str, u64)> {
    let truncated = |why: &str| Error::new(Code::ProfileTruncated, why);
    // Without the line end the last line may itself be cut short.
    let inner = text.strip_suffix('\n').ok_or_else(|| truncated("the last line is incomplete"))?;
    let start = inner.rfind('\n').map_or(0, |at| at + 1);
    let sealed = &text[..start];
    let digest = inner[start..]
        .strip_prefix("digest = \"")
        .and_then(|rest| rest.strip_suffix('"'))
        .ok_or_else(|| truncated("the last line is not the digest of [end]"))?;
    if !sealed.lines().rev().take(3).any(|line| line == "[end]") {
        return Err(truncated("there is no [end] before the last line"));
    }
    let valid = digest.len() == 16 && digest.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b));
    let value = u64::from_str_radix(digest, 16).ok().filter(|_| valid);
    value.map(|v| (sealed, v)).ok_or_else(|| Error::new(Code::ProfileDigest, "the digest is not 16 hexadecimal digits"))
}

fn parse_error(text: &str, e: &toml::de::Error) -> Error {
    let message = e.message().lines().next().unwrap_or("not valid").to_string();
    let line = e.span().map(|s| text.as_bytes()[..s.start.min(text.len())].iter().filter(|b| **b == b'\n').count() + 1);
    Error::new(Code::ProfileParse, line.map_or(message.clone(), |l| format!("line {l}: {message}")))
}

/// Checks every number and every combination that a lookup relies on.
pub fn validate(p: &Profile) -> Result<()> {
    let bad = |why: String| Err(Error::new(Code::ProfileParse, why));
    if p.schema != SCHEMA {
        return Err(Error::new(Code::ProfileSchema, format!("schema {}; this build reads {SCHEMA}", p.schema)));
    }
    if !(p.margin.is_finite() && (1.0..=100.0).contains(&p.margin)) {
        return bad(format!("margin {}: expected 1 to 100", p.margin));
    }
    let mut uids = HashSet::new();
    for d in &p.devices {
        if d.uid.is_empty() || d.uid == ANY || !uids.insert(d.uid.as_str()) {
            return bad(format!("device '{}': the uid '{}' is empty, reserved or used twice", d.id, d.uid));
        }
        if !Backend::ALL.iter().any(|b| b.name() == d.backend) {
            return bad(format!("device '{}': unknown backend '{}'", d.id, d.backend));
        }
    }
    for t in &p.transfers {
        let latencies = [t.h2d_latency_s, t.d2h_latency_s];
        let rates = [t.h2d_bytes_per_s, t.d2h_bytes_per_s];
        if latencies.iter().any(|v| !(v.is_finite() && *v >= 0.0)) || rates.iter().any(|v| !(v.is_finite() && *v > 0.0))
        {
            return bad(format!("transfer model of '{}': latencies must be >= 0, rates > 0", t.device));
        }
    }
    let mut keys = HashSet::new();
    for (i, e) in p.entries.iter().enumerate() {
        let at = format!("entry {} ({} {})", i + 1, e.op, e.dtype);
        if e.op.is_empty() || e.op == ANY {
            return bad(format!("{at}: the op needs a name"));
        }
        if e.dtype != ANY && e.dtype.parse::<DType>().is_err() {
            return bad(format!("{at}: unknown dtype"));
        }
        if work_of(&e.unit, 0).is_none() {
            return bad(format!("{at}: unknown unit '{}'", e.unit));
        }
        let words = [&e.dtype, &e.family, &e.device, &e.residency, &e.cpu_variant];
        if words.iter().any(|w| w.is_empty()) {
            return bad(format!("{at}: dtype, family, device, residency and cpu_variant must be named"));
        }
        if p.kind == Kind::Calibrated {
            if words.iter().any(|w| *w == ANY) || e.threads == 0 {
                return bad(format!("{at}: only presets may say '{ANY}' or 0 threads"));
            }
            if !uids.contains(e.device.as_str()) {
                return bad(format!("{at}: device '{}' has no [[device]]", e.device));
            }
            let wins = matches!(e.verdict, Verdict::Always | Verdict::Crossing);
            if wins && (e.points.is_empty() || !["ok", BY_CALLER].contains(&e.verify.as_str())) {
                return bad(format!("{at}: verdict {} without points and verify = \"ok\"", e.verdict));
            }
        }
        match (e.verdict, e.threshold) {
            (Verdict::Crossing, None) => return bad(format!("{at}: a crossing needs a threshold")),
            (_, Some(t)) if i64::try_from(t).is_err() => return bad(format!("{at}: threshold {t} is beyond 2^63 - 1")),
            (_, Some(t)) if e.crossing.is_some_and(|c| c > t) => {
                return bad(format!("{at}: threshold {t} is below the crossing"));
            }
            _ => {}
        }
        if e.ci.is_some_and(|[low, high]| low > high) {
            return bad(format!("{at}: the interval's ends are swapped"));
        }
        for point in &e.points {
            let times = [point.cpu_s, point.gpu_s, point.ratio_ci[0], point.ratio_ci[1]];
            if times.iter().any(|v| !(v.is_finite() && *v > 0.0)) {
                return bad(format!("{at}: size {}: times and ratios must be finite and above 0", point.size));
            }
        }
        if e.points.windows(2).any(|w| w[0].size >= w[1].size) {
            return bad(format!("{at}: the points' sizes do not grow"));
        }
        if let Some(why) = e.curve.as_ref().and_then(super::model::Curve::fault) {
            return bad(format!("{at}: curve.{why}"));
        }
        if !keys.insert((&e.op, &e.dtype, &e.family, &e.device, &e.residency, e.threads, &e.cpu_variant)) {
            return bad(format!("{at}: the key is listed twice"));
        }
    }
    Ok(())
}

const TOP: &[&str] = &[
    "schema", "kind", "name", "gpuctl", "created", "margin", "rule", "notes", "host", "device", "transfer", "entry",
    "end",
];
const HOST: &[&str] = &["cpu", "isa", "cpus", "memory_bytes", "os"];
const DEVICE: &[&str] = &["id", "uid", "fingerprint", "backend", "name", "driver"];
const TRANSFER: &[&str] = &["device", "h2d_latency_s", "h2d_bytes_per_s", "d2h_latency_s", "d2h_bytes_per_s"];
const ENTRY: &[&str] = &[
    "op",
    "dtype",
    "family",
    "device",
    "residency",
    "threads",
    "cpu_variant",
    "verdict",
    "unit",
    "crossing",
    "ci",
    "threshold",
    "n",
    "verify",
    "kernel",
    "reason",
    "points",
    "curve",
];
const END: &[&str] = &["entries", "partial", "digest"];

/// Keys that this build does not know: a newer writer's, or a spelling mistake.
fn unknown_keys(table: &toml::Table) -> Vec<String> {
    let mut found = std::collections::BTreeSet::new();
    let mut look = |place: &str, table: &toml::Table, known: &[&str]| {
        found.extend(table.keys().filter(|k| !known.contains(&k.as_str())).map(|k| format!("{place}{k}")));
    };
    look("", table, TOP);
    for (name, known) in [("host", HOST), ("device", DEVICE), ("transfer", TRANSFER), ("entry", ENTRY), ("end", END)] {
        match table.get(name) {
            Some(toml::Value::Table(t)) => look(&format!("{name}."), t, known),
            Some(toml::Value::Array(list)) => {
                list.iter().filter_map(toml::Value::as_table).for_each(|t| look(&format!("{name}."), t, known));
            }
            _ => {}
        }
    }
    found.into_iter().map(|k| format!("unknown key '{k}' is ignored")).collect()
}

/// The evidence as one short array per point.
pub(super) mod points {
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    use crate::base::record::CalibratePoint;

    type Row = (u64, f64, f64, f64, f64, u64);

    pub(in crate::profile) fn serialize<S: Serializer>(points: &[CalibratePoint], s: S) -> Result<S::Ok, S::Error> {
        let rows: Vec<Row> =
            points.iter().map(|p| (p.size, p.cpu_s, p.gpu_s, p.ratio_ci[0], p.ratio_ci[1], p.pairs)).collect();
        rows.serialize(s)
    }

    pub(in crate::profile) fn deserialize<'de, D: Deserializer<'de>>(d: D) -> Result<Vec<CalibratePoint>, D::Error> {
        let rows = Vec::<Row>::deserialize(d)?;
        let point = |(size, cpu_s, gpu_s, low, high, pairs): Row| CalibratePoint {
            size,
            cpu_s,
            gpu_s,
            ratio_ci: [low, high],
            pairs,
        };
        Ok(rows.into_iter().map(point).collect())
    }
}
