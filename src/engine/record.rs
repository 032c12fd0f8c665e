//! What a program called: ops, shapes and counts, for `calibrate --workload`.
//!
//! Calls are counted in memory and written when an engine is dropped, or when [`super::Engine::write_record`] asks: whole or
//! not at all. What cannot be written is a warning; the program goes on.
//!
//! The file is JSON lines: a head, one row per op, dtype, shape, attributes and residency, an end with the number of rows.
//!
//! ```text
//! {"gpuctl_workload":1,"gpuctl":"0.1.0"}
//! {"op":"gemm","dtype":"f32","shape":{"m":64,"n":64,"k":64},"attrs":{},"residency":"always","count":12,"gpu":0}
//! {"end":1}
//! ```
//! JSON has no numbers for what is infinite or none: scalars of that kind are the words `inf`, `-inf` and `NaN`.

use std::collections::{BTreeMap, HashMap};
use std::fs::OpenOptions;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde::{Deserialize, Serialize};

use crate::base::{Attr, AttrType, Attrs, Case, Code, DType, Error, Fill, Result, os};
use crate::op::{self, OpDesc};
use crate::profile::choose::{ALWAYS, RESIDENT};

/// Version of the layout.
const LAYOUT: u32 = 1;
/// Most rows that are read.
const MOST_ROWS: usize = 1 << 20;
/// Longest line that is read, in bytes.
const MOST_LINE: usize = 1 << 16;

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Head {
    gpuctl_workload: u32,
    gpuctl: String,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Line {
    op: String,
    dtype: DType,
    shape: BTreeMap<String, u64>,
    attrs: Attrs,
    residency: String,
    count: u64,
    gpu: u64,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct End {
    end: u64,
}

/// Calls of one case with operands in one place.
#[derive(Clone, Debug, PartialEq)]
pub struct WorkloadRow {
    /// Op, dtype, sizes and attributes; its `fill` means nothing.
    pub case: Case,
    /// `always`: operands in host memory; `resident`: on a device.
    pub residency: String,
    /// Calls, at least 1.
    pub count: u64,
    /// How many of them a GPU computed.
    pub gpu: u64,
}

/// What a program called.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Workload {
    /// Rows; no two have the same case and residency.
    pub rows: Vec<WorkloadRow>,
}

impl Workload {
    /// Reads a record. Errors: `BadArgument` with the line's number for anything that is no whole, sound record: another
    /// layout, an unknown op, impossible sizes, a case listed twice, counts beyond 2^63, a missing end.
    pub fn parse(text: &str) -> Result<Workload> {
        let bad = |line: usize, why: String| Error::new(Code::BadArgument, format!("workload, line {line}: {why}"));
        let mut lines = text.lines().enumerate().map(|(i, l)| (i + 1, l)).filter(|(_, l)| !l.trim().is_empty());
        let (at, head) = lines.next().ok_or_else(|| bad(1, "the file is empty".into()))?;
        let head: Head = read(head).map_err(|e| bad(at, format!("no head of a workload: {e}")))?;
        if head.gpuctl_workload != LAYOUT {
            return Err(bad(at, format!("layout {}; this build reads {LAYOUT}", head.gpuctl_workload)));
        }
        let mut rows: Vec<WorkloadRow> = Vec::new();
        let mut seen = std::collections::HashSet::new();
        let mut total = 0u64;
        for (at, line) in lines.by_ref() {
            if let Ok(End { end }) = read(line) {
                if end != rows.len() as u64 {
                    return Err(bad(at, format!("{} rows, the end says {end}", rows.len())));
                }
                return match lines.next() {
                    Some((at, _)) => Err(bad(at, "something follows the end".into())),
                    None => Ok(Workload { rows }),
                };
            }
            if rows.len() == MOST_ROWS {
                return Err(bad(at, format!("more than {MOST_ROWS} rows")));
            }
            let row = row(line).map_err(|e| bad(at, e.to_string()))?;
            total = total
                .checked_add(row.count)
                .filter(|t| i64::try_from(*t).is_ok())
                .ok_or_else(|| bad(at, "more than 2^63 calls".into()))?;
            if !seen.insert(format!("{} {}", row.case, row.residency)) {
                return Err(bad(at, "the case is listed twice".into()));
            }
            rows.push(row);
        }
        Err(bad(text.lines().count(), "the record is truncated: no end".into()))
    }

    /// The record as text; [`Workload::parse`] reads it back.
    pub fn to_text(&self) -> Result<String> {
        let mut text = json(&Head { gpuctl_workload: LAYOUT, gpuctl: env!("CARGO_PKG_VERSION").into() })?;
        for r in &self.rows {
            text.push_str(&json(&Line {
                op: r.case.op.into(),
                dtype: r.case.dtype,
                shape: r.case.dims.iter().map(|(n, v)| ((*n).to_string(), *v)).collect(),
                attrs: in_words(&r.case.attrs),
                residency: r.residency.clone(),
                count: r.count,
                gpu: r.gpu,
            })?);
        }
        text.push_str(&json(&End { end: self.rows.len() as u64 })?);
        Ok(text)
    }
}

fn json(value: &impl Serialize) -> Result<String> {
    let text = serde_json::to_string(value)
        .map_err(|e| Error::new(Code::Internal, "a workload cannot be written").caused_by(e))?;
    Ok(text + "\n")
}

/// The attributes with words for the numbers that JSON does not have.
fn in_words(attrs: &Attrs) -> Attrs {
    attrs.iter().fold(Attrs::new(), |all, (name, value)| match value {
        Attr::Float(v) if !v.is_finite() => all.with(name, Attr::Word(v.to_string())),
        other => all.with(name, other.clone()),
    })
}

/// The reverse, for attributes that are declared as numbers. Errors: `BadArgument` for a word that is none.
fn in_numbers(op: &OpDesc, attrs: &Attrs) -> Result<Attrs> {
    let mut all = Attrs::new();
    for (name, value) in attrs.iter() {
        let number = op.attrs.iter().find(|d| d.name == name && matches!(d.kind, AttrType::Float(_)));
        all = match (number, value) {
            (Some(decl), Attr::Word(word)) => all.with(name, decl.parse(word)?),
            _ => all.with(name, value.clone()),
        };
    }
    Ok(all)
}

fn read<'t, T: Deserialize<'t>>(line: &'t str) -> Result<T> {
    if line.len() > MOST_LINE {
        return Err(Error::new(Code::BadArgument, format!("longer than {MOST_LINE} bytes")));
    }
    serde_json::from_str(line).map_err(|e| Error::new(Code::BadArgument, e.to_string()))
}

fn row(line: &str) -> Result<WorkloadRow> {
    let bad = |why: String| Err(Error::new(Code::BadArgument, why));
    let l: Line = read(line)?;
    let op = op::find(&l.op)?;
    let sizes: Option<Vec<u64>> = op.dims.iter().map(|d| l.shape.get(*d).copied()).collect();
    let Some(sizes) = sizes.filter(|s| s.len() == l.shape.len()) else {
        return bad(format!("{} has the sizes {}", op.name, op.dims.join(", ")));
    };
    if ![ALWAYS, RESIDENT].contains(&l.residency.as_str()) {
        return bad("residency: expected always or resident".into());
    }
    if l.count == 0 || l.gpu > l.count {
        return bad(format!("{} calls, {} of them on a GPU", l.count, l.gpu));
    }
    let case = op.case(l.dtype, &sizes, in_numbers(op, &l.attrs)?, Fill::Uniform)?;
    Ok(WorkloadRow { case, residency: l.residency, count: l.count, gpu: l.gpu })
}

/// Calls of one case so far.
#[derive(Debug, Default)]
pub(super) struct Counts {
    calls: AtomicU64,
    gpu: AtomicU64,
}

impl Counts {
    pub(super) fn add(&self, calls: u64, on_gpu: bool) {
        self.calls.fetch_add(calls, Ordering::Relaxed);
        if on_gpu {
            self.gpu.fetch_add(calls, Ordering::Relaxed);
        }
    }
}

/// The calls of all engines of this process that record to one file.
#[derive(Debug)]
pub(super) struct Recorder {
    path: PathBuf,
    rows: Mutex<HashMap<(String, bool), (Case, Arc<Counts>)>>,
    /// Calls that the file holds.
    written: Mutex<Option<u64>>,
}

fn lock<T>(m: &Mutex<T>) -> MutexGuard<'_, T> {
    m.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Recorder {
    /// The recorder of a file; `%p` in its name is the process's number. Engines that name the same file share it for as
    /// long as the process lives, so that none overwrites what another has counted.
    pub(super) fn open(path: &Path) -> Arc<Recorder> {
        static OPEN: Mutex<Vec<Arc<Recorder>>> = Mutex::new(Vec::new());
        let path = match path.to_str() {
            Some(text) if text.contains("%p") => PathBuf::from(text.replace("%p", &std::process::id().to_string())),
            _ => path.to_path_buf(),
        };
        let mut open = lock(&OPEN);
        if let Some(r) = open.iter().find(|r| r.path == path) {
            return Arc::clone(r);
        }
        let fresh = Arc::new(Recorder { path, rows: Mutex::default(), written: Mutex::default() });
        open.push(Arc::clone(&fresh));
        fresh
    }

    /// Where calls of a case are counted.
    pub(super) fn counts(&self, case: &Case, resident: bool) -> Arc<Counts> {
        let case = Case { fill: Fill::Uniform, ..case.clone() };
        let mut rows = lock(&self.rows);
        let (_, counts) = rows.entry((case.to_string(), resident)).or_insert_with(|| (case, Arc::default()));
        Arc::clone(counts)
    }

    /// What was counted so far, most calls first.
    pub(super) fn workload(&self) -> Workload {
        let mut rows: Vec<WorkloadRow> = lock(&self.rows)
            .iter()
            .map(|((_, resident), (case, counts))| {
                let count = counts.calls.load(Ordering::Relaxed);
                WorkloadRow {
                    case: case.clone(),
                    residency: if *resident { RESIDENT } else { ALWAYS }.into(),
                    count,
                    // A call in another thread may be between its two counts.
                    gpu: counts.gpu.load(Ordering::Relaxed).min(count),
                }
            })
            .filter(|r| r.count > 0)
            .collect();
        rows.sort_by_cached_key(|r| (std::cmp::Reverse(r.count), r.case.to_string(), r.residency.clone()));
        Workload { rows }
    }

    /// Writes what was counted, if there is anything new. Errors: `Io`; the file is then as it was.
    pub(super) fn write(&self) -> Result<()> {
        let mut written = lock(&self.written);
        let workload = self.workload();
        let calls = workload.rows.iter().map(|r| r.count).sum();
        if *written == Some(calls) {
            return Ok(());
        }
        let failed = |e: std::io::Error| {
            Error::new(Code::Io, format!("the workload cannot be recorded in {}", self.path.display())).caused_by(e)
        };
        let text = workload.to_text()?;
        os::replace(&self.path, "part", &mut OpenOptions::new(), |file| file.write_all(text.as_bytes()))
            .map_err(failed)?;
        *written = Some(calls);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Workload {
        let gemm = op::find("gemm").unwrap();
        let attrs = Attrs::new().with("alpha", crate::base::Attr::Float(2.5)).with("transA", crate::base::Attr::Int(1));
        let case = |attrs| gemm.case(DType::F64, &[1, 2, 3], attrs, Fill::Uniform).unwrap();
        let row = |case, residency: &str, count, gpu| WorkloadRow { case, residency: residency.into(), count, gpu };
        Workload {
            rows: vec![
                row(case(Attrs::new()), "always", 7, 3),
                row(case(Attrs::new()), "resident", 1, 0),
                row(case(attrs), "always", u64::MAX >> 2, 0),
            ],
        }
    }

    #[test]
    fn records_are_read_back() {
        let text = sample().to_text().unwrap();
        assert_eq!(Workload::parse(&text).unwrap(), sample());
        assert_eq!(Workload::parse(&text.replace('\n', "\r\n\r\n")).unwrap(), sample());
        assert_eq!(Workload::parse(&Workload::default().to_text().unwrap()).unwrap(), Workload::default());
    }

    /// Programs pass infinities on purpose, and NaN by mistake; neither may cost what else was counted.
    #[test]
    fn scalars_that_json_cannot_write_are_read_back() {
        let gemm = op::find("gemm").unwrap();
        let row = |alpha: f64| {
            let attrs = Attrs::new().with("alpha", Attr::Float(alpha));
            let case = gemm.case(DType::F32, &[4, 4, 4], attrs, Fill::Uniform).unwrap();
            WorkloadRow { case, residency: "always".into(), count: 1, gpu: 0 }
        };
        let mut rows = sample().rows;
        rows.extend([f64::INFINITY, f64::NEG_INFINITY, f64::NAN].map(row));
        let text = Workload { rows: rows.clone() }.to_text().unwrap();
        assert!(text.contains("\"alpha\":\"-inf\"") && !text.contains("null"), "{text}");
        let back = Workload::parse(&text).unwrap();
        let alpha = |r: &WorkloadRow| r.case.attrs.float("alpha", 1.0).to_bits();
        assert_eq!(back.rows.len(), 6);
        assert!(
            back.rows.iter().zip(&rows).all(|(a, b)| alpha(a) == alpha(b) && a.case.to_string() == b.case.to_string())
        );
        let word = text.replacen("\"alpha\":\"inf\"", "\"alpha\":\"endless\"", 1);
        assert!(Workload::parse(&word).unwrap_err().to_string().contains("'endless' is not a number"));
    }

    /// Every shortened record and every one with a part replaced is refused, with its line; none panics.
    #[test]
    fn hostile_records_are_refused() {
        let text = sample().to_text().unwrap();
        for cut in 0..text.trim_end().len() {
            let e = Workload::parse(&text[..cut]).unwrap_err();
            assert!(e.code() == Code::BadArgument && e.to_string().contains("workload, line"), "{cut}: {e}");
        }
        let first = text.lines().nth(1).unwrap().to_string() + "\n";
        let long = format!("\"op\":\"{}\"", "g".repeat(MOST_LINE));
        for (from, to) in [
            ("\"gpuctl_workload\":1", "\"gpuctl_workload\":2"),
            ("\"op\":\"gemm\"", "\"op\":\"gem\""),
            ("\"op\":\"gemm\"", long.as_str()),
            ("\"f64\"", "\"f65\""),
            ("\"m\":1", "\"m\":-1"),
            ("\"m\":1", "\"x\":1"),
            ("\"m\":1,", ""),
            ("\"m\":1", "\"m\":18446744073709551615"),
            ("\"count\":7", "\"count\":0"),
            ("\"count\":7", "\"count\":1e99"),
            ("\"count\":7", "\"count\":9223372036854775807"),
            ("\"gpu\":3", "\"gpu\":8"),
            ("\"gpu\":3", "\"gpu\":3,\"more\":1"),
            ("\"always\"", "\"sometimes\""),
            ("\"attrs\":{}", "\"attrs\":{\"gamma\":1}"),
            ("{\"end\":3}", "{\"end\":2}"),
            ("{\"end\":3}", "{\"end\":3}\n{\"end\":3}"),
            (first.as_str(), ""),
            ("{\"end\":3}", &format!("{first}{{\"end\":4}}")),
        ] {
            assert!(text.contains(from), "{from}");
            let e = Workload::parse(&text.replacen(from, to, 1)).unwrap_err();
            let short = &to[..to.len().min(80)];
            assert!(e.code() == Code::BadArgument && e.to_string().contains("line"), "{from} -> {short}: {e}");
        }
    }
}
