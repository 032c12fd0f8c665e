//! What a soak leaves behind whatever happens: one JSON object per line, appended and synced.
//!
//! Invariants: a line is written whole or is the last one; a journal that cannot be written never stops the soak.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

use crate::base::record::{Host, StressRecord, StressSample};
use crate::base::telemetry::Watched;
use crate::base::{Code, Error, Result};

/// One line of a journal.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "line", rename_all = "lowercase")]
pub enum Entry {
    /// The first line: what was asked, by which version, where.
    Start {
        /// Version of gpuctl.
        gpuctl: String,
        /// The command line.
        command: Vec<String>,
        /// UTC, `20261231T235959Z`.
        utc: String,
        /// Process id of the supervisor.
        pid: u32,
        /// The host.
        host: Host,
        /// Seconds asked for.
        seconds: f64,
        /// Scenarios asked for.
        scenarios: Vec<String>,
    },
    /// At least once a minute while a phase runs.
    Running {
        /// UTC.
        utc: String,
        /// Scenario.
        scenario: String,
        /// Device id.
        device: String,
        /// Cycles done so far.
        done: u64,
        /// Result bytes checked so far.
        bytes_checked: u64,
        /// Wrong results so far.
        mismatches: u64,
        /// The last sample.
        sample: StressSample,
        /// What the card told so far.
        #[serde(default)]
        telemetry: Box<Watched>,
    },
    /// A finished phase.
    Phase {
        /// UTC.
        utc: String,
        /// Its result.
        record: Box<StressRecord>,
    },
    /// The last line.
    End {
        /// UTC.
        utc: String,
        /// Verdict of the run.
        verdict: String,
        /// Exit code of the run.
        exit_code: u8,
        /// The summary line.
        summary: String,
    },
}

/// An open journal, or none.
#[derive(Debug)]
pub struct Journal {
    path: Option<PathBuf>,
    file: Option<File>,
}

impl Journal {
    /// Opens a journal. A path with an extension, or one that exists and is no folder, is the file itself; any other is
    /// a folder in which a file named by UTC and process id is made. The error is for a remark: the returned journal then
    /// keeps nothing.
    pub fn open(at: Option<&Path>) -> (Self, Option<Error>) {
        let none = Journal { path: None, file: None };
        let Some(at) = at else { return (none, None) };
        let path = if !at.is_dir() && (at.extension().is_some() || at.exists()) {
            at.to_path_buf()
        } else {
            at.join(format!("{}-{}.jsonl", utc_now(), std::process::id()))
        };
        let open = || -> std::io::Result<File> {
            if let Some(folder) = path.parent() {
                std::fs::create_dir_all(folder)?;
            }
            OpenOptions::new().create(true).append(true).open(&path)
        };
        match open() {
            Ok(file) => (Journal { path: Some(path), file: Some(file) }, None),
            Err(e) => (none, Some(unwritable(&path, e))),
        }
    }

    /// Where it is, if there is one.
    pub fn path(&self) -> Option<&Path> {
        self.path.as_deref()
    }

    /// Appends one line and waits until it is on the disk. The first failure closes the journal and is returned, for a
    /// remark; afterwards nothing is kept and nothing fails.
    pub fn append(&mut self, entry: &Entry) -> Option<Error> {
        let (Some(file), Some(path)) = (self.file.as_mut(), self.path.as_ref()) else { return None };
        let mut write = || -> std::io::Result<()> {
            let mut line = serde_json::to_vec(entry)?;
            line.push(b'\n');
            file.write_all(&line)?;
            file.sync_data()
        };
        // A pipe or terminal cannot be synced; what was written to it is written.
        let error = write().err().filter(|e| e.kind() != std::io::ErrorKind::InvalidInput)?;
        let error = unwritable(path, error);
        self.file = None;
        Some(error)
    }
}

fn unwritable(path: &Path, e: std::io::Error) -> Error {
    Error::new(Code::Io, format!("the journal {} cannot be written; the soak goes on without it", path.display()))
        .caused_by(e)
}

/// Reads a journal back. A line cut off by a crash or a full disk ends it: the flag says whether one was.
pub fn read(path: &Path) -> Result<(Vec<Entry>, bool)> {
    let text = std::fs::read(path)
        .map_err(|e| Error::new(Code::Io, format!("the journal {} cannot be read", path.display())).caused_by(e))?;
    let mut entries = Vec::new();
    for line in text.split(|b| *b == b'\n').filter(|l| !l.is_empty()) {
        match serde_json::from_slice(line) {
            Ok(entry) => entries.push(entry),
            Err(_) => return Ok((entries, true)),
        }
    }
    Ok((entries, text.last().is_some_and(|b| *b != b'\n')))
}

/// Now in UTC, `20261231T235959Z`.
pub fn utc_now() -> String {
    utc(SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs()))
}

/// Seconds since 1970 as `YYYYMMDDThhmmssZ` (Hinnant, "chrono-compatible low-level date algorithms", civil_from_days).
pub fn utc(seconds: u64) -> String {
    let (days, rest) = (seconds / 86_400, seconds % 86_400);
    let z = days + 719_468;
    let (era, doe) = (z / 146_097, z % 146_097);
    let yoe = (doe - doe / 1_460 + doe / 36_524 - doe / 146_096) / 365;
    let doy = doe - (365 * yoe + yoe / 4 - yoe / 100);
    let mp = (5 * doy + 2) / 153;
    let day = doy - (153 * mp + 2) / 5 + 1;
    let month = if mp < 10 { mp + 3 } else { mp - 9 };
    let year = yoe + era * 400 + u64::from(month <= 2);
    format!("{year:04}{month:02}{day:02}T{:02}{:02}{:02}Z", rest / 3_600, rest / 60 % 60, rest % 60)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_right() {
        assert_eq!(utc(0), "19700101T000000Z");
        assert_eq!(utc(951_782_400), "20000229T000000Z");
        assert_eq!(utc(1_798_761_599), "20261231T235959Z");
    }

    fn end(summary: &str) -> Entry {
        Entry::End { utc: utc(0), verdict: "pass".into(), exit_code: 0, summary: summary.into() }
    }

    #[test]
    fn a_line_cut_in_the_middle_loses_only_itself() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("deep/er/j.jsonl");
        let (mut journal, error) = Journal::open(Some(&path));
        assert!(error.is_none());
        for text in ["one", "two", "three"] {
            assert!(journal.append(&end(text)).is_none());
        }
        assert_eq!(read(&path).unwrap(), (vec![end("one"), end("two"), end("three")], false));
        let whole = std::fs::read(&path).unwrap();
        for cut in whole.len() - 20..whole.len() - 1 {
            std::fs::write(&path, &whole[..cut]).unwrap();
            assert_eq!(read(&path).unwrap(), (vec![end("one"), end("two")], true), "cut at {cut}");
        }
    }

    #[test]
    fn a_full_disk_is_reported_once() {
        // /dev/full takes every open and fails every write with ENOSPC.
        if !Path::new("/dev/full").exists() {
            return;
        }
        let (mut journal, error) = Journal::open(Some(Path::new("/dev/full")));
        assert!(error.is_none());
        assert!(journal.append(&end("one")).is_some_and(|e| e.code() == Code::Io));
        assert!(journal.append(&end("two")).is_none());
    }
}
