//! The profile as a TOML file: written once, closed by an end mark and a digest, read with distrust.
//!
//! TOML cut between two tables, or empty, is still valid TOML; therefore the last table is `[end]` with the number of
//! entries and a digest of every byte before the digest's own line. A file without it is truncated, one with another
//! digest was edited or damaged; both are refused. `edit::seal` signs an edited file, and says what was edited.

use std::borrow::Cow;
use std::collections::HashSet;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::base::text::printable;
use crate::base::{Backend, Code, DType, Error, Result, os};

use super::check::{WORD, clip, evidence, is_time, is_word, label, label_of};
use super::{ANY, BY_CALLER, Entry, Kind, Profile, SCHEMA, Verdict, merge, migrate, seal, work_of};

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

/// Most commas, brackets, equal signs and points of a file: one of [`MAX_BYTES`] that is full of evidence has 1.9 million.
const MAX_PARTS: usize = 2 << 20;

/// Most characters of a note that is repeated as a warning.
const MAX_NOTE: usize = 400;

/// Most devices: they are looked for one by one.
const MAX_DEVICES: usize = 256;

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
    let (profile, warnings) = read_toml(&text(&source)?).map_err(|e| in_source(&source, &e))?;
    Ok(Loaded { profile, source, warnings })
}

/// An error about a source's text, with the source's name before it.
pub(crate) fn in_source(source: &Source, e: &Error) -> Error {
    Error::new(e.code(), format!("{source}: {}", e.detail()))
}

/// The text of a source, of at most [`MAX_BYTES`]. Errors: `ProfileNotFound`, `Io`, and `ProfileParse` if it is no text.
pub fn text(source: &Source) -> Result<Cow<'static, str>> {
    match source {
        Source::File(path) => read(path).map(Cow::Owned),
        Source::Preset(name) => preset_text(name).map(Cow::Borrowed),
        Source::Embedded => preset_text("always-cpu").map(Cow::Borrowed),
    }
}

/// False only where there is surely no such file. A folder that may not be entered or a link to nowhere is for the reader to
/// complain of: whoever put a profile there counts on it.
pub(crate) fn may_be_there(path: &Path) -> bool {
    use std::io::ErrorKind::{NotADirectory, NotFound};
    let found = std::fs::symlink_metadata(path);
    // The latter is the home `/dev/null` of accounts that have none.
    !found.is_err_and(|e| matches!(e.kind(), NotFound | NotADirectory))
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
    let mut bytes = Vec::new();
    let file = std::fs::File::open(path).map_err(|e| named(Code::Io, e))?;
    // The limit holds for what is read, whatever the file system says about the length.
    file.take(MAX_BYTES + 1).read_to_end(&mut bytes).map_err(|e| named(Code::Io, e))?;
    if bytes.len() as u64 > MAX_BYTES {
        let why = format!("{}: {} bytes or more; a profile has at most {MAX_BYTES}", path.display(), bytes.len());
        return Err(Error::new(Code::ProfileParse, why));
    }
    String::from_utf8(bytes).map_err(|e| {
        let at = e.utf8_error().valid_up_to();
        let hint = if e.as_bytes().starts_with(&[0xff, 0xfe]) { " (UTF-16: save it as UTF-8)" } else { "" };
        Error::new(Code::ProfileParse, format!("{}: not UTF-8 text from byte {at} on{hint}", path.display()))
            .caused_by(e)
    })
}

/// Writes a profile: completely or not at all.
pub fn save(profile: &Profile, path: &Path) -> Result<()> {
    write(path, &profile.to_toml()?)
}

/// Replaces a file's text: completely or not at all. A link stays a link and the file keeps its permissions.
pub fn write(path: &Path, text: &str) -> Result<()> {
    let named = |e: std::io::Error| Error::new(Code::Io, path.display().to_string()).caused_by(e);
    let path = std::fs::canonicalize(path).unwrap_or_else(|_| path.to_path_buf());
    let old = std::fs::metadata(&path).ok();
    // Devices and pipes cannot be replaced by a rename.
    if old.as_ref().is_some_and(|m| !m.is_file()) {
        return std::fs::write(&path, text).map_err(named);
    }
    let fill = |file: &mut std::fs::File| {
        if let Some(old) = old {
            file.set_permissions(old.permissions())?;
        }
        file.write_all(text.as_bytes())?;
        file.sync_all()
    };
    os::replace(&path, "tmp", &mut std::fs::OpenOptions::new(), fill).map_err(named)
}

/// One entry as the file has it; as an array of one, so that the writer heads it with `[[entry]]`.
#[derive(Serialize)]
struct One<'e> {
    entry: [Sealed<'e>; 1],
}

#[derive(Serialize)]
struct Sealed<'e> {
    // First: what follows an entry's own tables would belong to them.
    #[serde(skip_serializing_if = "Option::is_none")]
    seal: Option<String>,
    #[serde(flatten)]
    entry: &'e Entry,
}

impl Profile {
    /// The file's text, closed by `[end]`. Refuses (`ProfileParse`) what [`Profile::from_toml`] would refuse.
    pub fn to_toml(&self) -> Result<String> {
        validate(self)?;
        evidence(self)?;
        let failed =
            |e: toml::ser::Error| Error::new(Code::ProfileParse, "the profile cannot be written as TOML").caused_by(e);
        let head = Profile { entries: Vec::new(), ..self.clone() };
        let table = toml::Table::try_from(&head).map_err(failed)?;
        let ground = seal::Ground::of(&table);
        let mut text = format!("{HEAD}{}", toml::to_string(&head).map_err(failed)?);
        for entry in &self.entries {
            let values = toml::Table::try_from(entry).map_err(failed)?;
            let seal = (self.kind == Kind::Calibrated).then(|| ground.seal(&values));
            text.push_str(if text.ends_with('\n') { "\n" } else { "\n\n" });
            text.push_str(&toml::to_string(&One { entry: [Sealed { seal, entry }] }).map_err(failed)?);
        }
        text.push_str(if text.ends_with('\n') { "" } else { "\n" });
        text.push_str(&format!("\n[end]\nentries = {}\npartial = {}\n", self.entries.len(), self.partial));
        Ok(seal::close(text))
    }

    /// Reads a file's text; warnings are dropped (see [`read_toml`]).
    ///
    /// Errors: `ProfileTruncated` without the end mark, `ProfileParse` for what is no TOML or no profile (with the line
    /// or the entry), `ProfileSchema` for a layout that this build does not know, `ProfileDigest` if a byte, an entry or
    /// the number of entries changed after writing.
    pub fn from_toml(text: &str) -> Result<Profile> {
        read_toml(text).map(|(profile, _)| profile)
    }
}

/// Reads a file's text and says what was noticed: unknown keys, a partial calibration, another version's numbers.
pub fn read_toml(text: &str) -> Result<(Profile, Vec<String>)> {
    if let Cow::Owned(plain) = seal::plain(text) {
        let what = if text.len() - plain.len() == 3 { "a byte order mark" } else { "line ends of Windows (CRLF)" };
        return Err(Error::new(Code::ProfileDigest, format!("an editor, or git's autocrlf, put in {what}")));
    }
    let digest = seal::check(text);
    let table = parse(text);
    // A later layout may close its files in another way; what to do about it is the same.
    if let Ok(table) = &table
        && migrate::is_later(table)
    {
        migrate::layout(table)?;
    }
    let digest = match digest {
        Err(e) if e.code() == Code::ProfileTruncated => return Err(e),
        other => other,
    };
    let mut table = table?;
    migrate::layout(&table)?;
    digest.map_err(|e| Error::new(e.code(), format!("{}{}", e.detail(), changed(&table))))?;
    migrate::migrate(&mut table)?;
    let mut warnings = unknown_keys(&table);
    let broken = seal::broken(&table);
    let (profile, counted) = of_table(table, text)?;
    if counted != profile.entries.len() as u64 {
        let why = format!("[end] says {counted} entries, there are {}", profile.entries.len());
        return Err(Error::new(Code::ProfileDigest, why));
    }
    validate(&profile)?;
    if let (Kind::Calibrated, Some(first)) = (profile.kind, broken.first()) {
        let why = format!("{}: it does not match its seal", label(&profile, *first));
        return Err(Error::new(Code::ProfileDigest, why));
    }
    evidence(&profile)?;
    if profile.partial {
        warnings.push("the calibration was cut short: what is missing runs on the CPU".into());
    }
    if profile.kind == Kind::Calibrated && profile.gpuctl != env!("CARGO_PKG_VERSION") {
        let (by, now) = (printable(&profile.gpuctl), env!("CARGO_PKG_VERSION"));
        warnings.push(format!("measured with gpuctl '{by}', this is {now}: kernels may be faster or slower now"));
    }
    for note in merge::other_versions(&profile, env!("CARGO_PKG_VERSION")) {
        let note: String = note.chars().take(MAX_NOTE).collect();
        warnings.push(format!("{}; kernels may be faster or slower now", printable(&note).replace('\n', " ")));
    }
    Ok((profile, warnings))
}

/// A text as TOML, whether it is signed or not. Errors name the line, and the entry if it lies in one.
pub(super) fn parse(text: &str) -> Result<toml::Table> {
    if text.len() as u64 > MAX_BYTES {
        return Err(Error::new(Code::ProfileParse, format!("{} bytes; a profile has at most {MAX_BYTES}", text.len())));
    }
    // Bounds the memory: what lies between these characters takes some 200 bytes while it is parsed.
    let parts = text.bytes().filter(|b| matches!(b, b',' | b'[' | b'{' | b'=' | b'.')).count();
    if parts > MAX_PARTS {
        return Err(Error::new(
            Code::ProfileParse,
            format!("{parts} values or parts of them; a profile has at most {MAX_PARTS}"),
        ));
    }
    text.parse().map_err(|e: toml::de::Error| parse_error(text, &e))
}

/// A file of this build's layout as a profile, and the number of entries that `[end]` states.
pub(super) fn of_table(mut table: toml::Table, text: &str) -> Result<(Profile, u64)> {
    let end = table.remove("end");
    let end = end.as_ref().and_then(toml::Value::as_table);
    let missing = |what: &str| Error::new(Code::ProfileTruncated, format!("[end] does not say {what}"));
    let counted = end.and_then(|t| t.get("entries")).and_then(toml::Value::as_integer);
    let counted = counted.and_then(|n| u64::try_from(n).ok()).ok_or_else(|| missing("how many entries there are"))?;
    let partial = end.and_then(|t| t.get("partial")).and_then(toml::Value::as_bool);
    let partial = partial.ok_or_else(|| missing("whether the profile is partial"))?;
    let profile: Profile = table.try_into().map_err(|e: toml::de::Error| type_error(text, &e))?;
    if profile.devices.len() > MAX_DEVICES {
        let why = format!("{} devices; a profile has at most {MAX_DEVICES}", profile.devices.len());
        return Err(Error::new(Code::ProfileParse, why));
    }
    Ok((Profile { partial, ..profile }, counted))
}

/// Which entries are not as they were sealed, as the end of a sentence; empty if none, or if that cannot be told.
fn changed(table: &toml::Table) -> String {
    let sealed = migrate::layout(table).is_ok_and(|v| v == SCHEMA)
        && table.get("kind").and_then(toml::Value::as_str) == Some(Kind::Calibrated.name());
    let broken = if sealed { seal::broken(table) } else { Vec::new() };
    let names: Vec<String> = broken.iter().take(3).map(|i| label_of(table, *i)).collect();
    match broken.len() {
        0 => String::new(),
        n if n > names.len() => format!("; changed: {} and {} more", names.join(", "), n - names.len()),
        _ => format!("; changed: {}", names.join(", ")),
    }
}

/// What is no profile: the line where the text itself tells it, and the first entry that cannot be read.
fn type_error(text: &str, e: &toml::de::Error) -> Error {
    let why = toml::from_str::<Profile>(text).err().map_or_else(|| parse_error(text, e), |e| parse_error(text, &e));
    let Ok(table) = text.parse::<toml::Table>() else { return why };
    let bad = seal::entries(&table).position(|e| Entry::deserialize(toml::Value::Table(e.clone())).is_err());
    match bad {
        Some(at) => Error::new(Code::ProfileParse, format!("{}: {}", label_of(&table, at), why.detail())),
        None => why,
    }
}

fn parse_error(text: &str, e: &toml::de::Error) -> Error {
    let message = e.message().lines().next().unwrap_or("not valid").to_string();
    let line = e.span().map(|s| text.as_bytes()[..s.start.min(text.len())].iter().filter(|b| **b == b'\n').count() + 1);
    let message = clip(&message);
    // Counted by the headers above the line: a text that cannot be parsed has no tables yet.
    let entry = |l: usize| text.lines().take(l).filter(|t| t.trim() == "[[entry]]").count();
    let place = line.map_or(String::new(), |l| match entry(l) {
        0 => format!("line {l}: "),
        n => format!("line {l}, in entry {n}: "),
    });
    Error::new(Code::ProfileParse, format!("{place}{message}"))
}

/// Checks every number and every combination that a lookup relies on. Errors name the entry or device.
pub fn validate(p: &Profile) -> Result<()> {
    let bad = |why: String| Err(Error::new(Code::ProfileParse, why));
    if p.schema != SCHEMA {
        return Err(Error::new(Code::ProfileSchema, format!("schema {}; this build reads {SCHEMA}", p.schema)));
    }
    if let Some(share) = p.host.as_ref().and_then(|h| h.disturbed).filter(|s| !(0.0..=1.0).contains(s)) {
        return bad(format!("host.disturbed {share}: expected a share of 0 to 1"));
    }
    if !(p.margin.is_finite() && (1.0..=100.0).contains(&p.margin)) {
        return bad(format!("margin {}: expected 1 to 100", p.margin));
    }
    if !p.created.is_empty() && !is_time(&p.created) {
        return bad(format!("created '{}': expected a time like 2026-01-31T12:00:00Z", clip(&p.created)));
    }
    let mut uids = HashSet::new();
    for d in &p.devices {
        let (id, uid) = (clip(&d.id), clip(&d.uid));
        if d.uid.is_empty() || d.uid == ANY || !uids.insert(d.uid.as_str()) {
            return bad(format!("device '{id}': the uid '{uid}' is empty, reserved or used twice"));
        }
        if ![&d.id, &d.uid].into_iter().all(|w| is_word(w)) {
            return bad(format!("device '{id}': id and uid must be words of at most {WORD} printable bytes: '{uid}'"));
        }
        if !Backend::ALL.iter().any(|b| b.name() == d.backend) {
            return bad(format!("device '{id}': unknown backend '{}'", clip(&d.backend)));
        }
    }
    for t in &p.transfers {
        let latencies = [t.h2d_latency_s, t.d2h_latency_s];
        let rates = [t.h2d_bytes_per_s, t.d2h_bytes_per_s];
        if latencies.iter().any(|v| !(v.is_finite() && *v >= 0.0)) || rates.iter().any(|v| !(v.is_finite() && *v > 0.0))
        {
            return bad(format!("transfer model of '{}': latencies must be >= 0, rates > 0", clip(&t.device)));
        }
    }
    for s in &p.states {
        let lost = (!uids.contains(s.device.as_str())).then(|| "the device has no [[device]]".to_string());
        if let Some(why) = lost.or_else(|| s.fault()) {
            return bad(format!("state of '{}', {}: {why}", clip(&s.device), clip(&s.residency)));
        }
    }
    let mut keys = HashSet::new();
    for (i, e) in p.entries.iter().enumerate() {
        let at = || label(p, i);
        if e.op.is_empty() || e.op == ANY {
            return bad(format!("{}: the op needs a name", at()));
        }
        if e.dtype != ANY && e.dtype.parse::<DType>().is_err() {
            return bad(format!("{}: unknown dtype", at()));
        }
        if work_of(&e.unit, 0).is_none() {
            return bad(format!("{}: unknown unit '{}'", at(), clip(&e.unit)));
        }
        let words = [&e.dtype, &e.family, &e.device, &e.residency, &e.cpu_variant];
        if words.iter().any(|w| w.is_empty()) {
            return bad(format!("{}: dtype, family, device, residency and cpu_variant must be named", at()));
        }
        if ![&e.op, &e.kernel].into_iter().chain(words).all(|w| is_word(w)) {
            return bad(format!("{}: names must be words of at most {WORD} printable bytes", at()));
        }
        if p.kind == Kind::Calibrated {
            if words.iter().any(|w| *w == ANY) || e.threads == 0 {
                return bad(format!("{}: only presets may say '{ANY}' or 0 threads", at()));
            }
            if !uids.contains(e.device.as_str()) {
                return bad(format!("{}: device '{}' has no [[device]]", at(), clip(&e.device)));
            }
            let wins = matches!(e.verdict, Verdict::Always | Verdict::Crossing);
            if wins && !e.edited && (e.points.is_empty() || !["ok", BY_CALLER].contains(&e.verify.as_str())) {
                return bad(format!("{}: verdict {} without points and verify = \"ok\"", at(), e.verdict));
            }
            if wins && e.edited && e.verify == "failed" {
                return bad(format!("{}: its results were wrong; no edit can send work there", at()));
            }
            if e.edited && *e != e.without_evidence() {
                return bad(format!("{}: edited by hand, so it can have no evidence", at()));
            }
        }
        match (e.verdict, e.threshold) {
            (Verdict::Crossing, None) => return bad(format!("{}: a crossing needs a threshold", at())),
            (_, Some(t)) if i64::try_from(t).is_err() => {
                return bad(format!("{}: threshold {t} is beyond 2^63 - 1", at()));
            }
            (_, Some(t)) if e.crossing.is_some_and(|c| c > t) => {
                return bad(format!("{}: threshold {t} is below the crossing", at()));
            }
            _ => {}
        }
        if e.ci.is_some_and(|[low, high]| low > high) {
            return bad(format!("{}: the interval's ends are swapped", at()));
        }
        if e.stake.is_some_and(|s| !(s.is_finite() && s >= 1.0)) {
            return bad(format!("{}: the stake must be finite and at least 1", at()));
        }
        for point in &e.points {
            let times = [point.cpu_s, point.gpu_s, point.ratio_ci[0], point.ratio_ci[1]];
            if times.iter().any(|v| !(v.is_finite() && *v > 0.0)) {
                return bad(format!("{}: size {}: times and ratios must be finite and above 0", at(), point.size));
            }
        }
        if e.points.windows(2).any(|w| w[0].size >= w[1].size) {
            return bad(format!("{}: the points' sizes do not grow", at()));
        }
        if let Some(why) = e.curve.as_ref().and_then(super::model::Curve::fault) {
            return bad(format!("{}: curve.{why}", at()));
        }
        if !keys.insert((&e.op, &e.dtype, &e.family, &e.device, &e.residency, e.threads, &e.cpu_variant)) {
            return bad(format!("{}: the key is listed twice", at()));
        }
    }
    Ok(())
}

const TOP: &[&str] = &[
    "schema", "kind", "name", "gpuctl", "created", "margin", "rule", "notes", "host", "device", "transfer", "state",
    "entry", "end",
];
const HOST: &[&str] = &["cpu", "isa", "blas", "cpus", "memory_bytes", "os", "awake", "disturbed"];
const DEVICE: &[&str] = &["id", "uid", "fingerprint", "backend", "name", "driver"];
const TRANSFER: &[&str] = &["device", "h2d_latency_s", "h2d_bytes_per_s", "d2h_latency_s", "d2h_bytes_per_s"];
const STATE: &[&str] =
    &["device", "residency", "threads", "looks", "cpu_s", "device_s", "stated_cpu_s", "stated_device_s"];
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
    "stake",
    "threshold",
    "edited",
    "n",
    "verify",
    "kernel",
    "reason",
    "points",
    "curve",
    seal::KEY,
];
const END: &[&str] = &["entries", "partial", "digest"];

/// Keys that this build does not know: a newer writer's, or a spelling mistake.
fn unknown_keys(table: &toml::Table) -> Vec<String> {
    let mut found = std::collections::BTreeSet::new();
    let mut look = |place: &str, table: &toml::Table, known: &[&str]| {
        found.extend(table.keys().filter(|k| !known.contains(&k.as_str())).map(|k| format!("{place}{k}")));
    };
    look("", table, TOP);
    let tables =
        [("host", HOST), ("device", DEVICE), ("transfer", TRANSFER), ("state", STATE), ("entry", ENTRY), ("end", END)];
    for (name, known) in tables {
        match table.get(name) {
            Some(toml::Value::Table(t)) => look(&format!("{name}."), t, known),
            Some(toml::Value::Array(list)) => {
                list.iter().filter_map(toml::Value::as_table).for_each(|t| look(&format!("{name}."), t, known));
            }
            _ => {}
        }
    }
    found.into_iter().map(|k| format!("unknown key '{}' is ignored", clip(&k))).collect()
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
