//! What a soak leaves behind whatever happens: one JSON object per line, appended and synced.
//!
//! Invariants: a line is written whole or is the last one; a journal that cannot be written never stops the soak.

use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
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
        /// All that was asked for, for `--resume`.
        #[serde(default)]
        asked: Option<Box<Asked>>,
    },
    /// What is to be done, once the devices are known.
    Plan {
        /// UTC.
        utc: String,
        /// Each device with its phases.
        devices: Vec<PlanOf>,
        /// What has no place in the plan, with the reason.
        left_out: Vec<String>,
    },
    /// The run goes on in another process.
    Resume {
        /// UTC.
        utc: String,
        /// Process id of the supervisor.
        pid: u32,
        /// The command line.
        command: Vec<String>,
    },
    /// Something wrong in a phase that is not over yet.
    Finding {
        /// UTC.
        utc: String,
        /// Scenario.
        scenario: String,
        /// Device id.
        device: String,
        /// Device uid.
        uid: String,
        /// What verdict it leads to.
        verdict: String,
        /// In words.
        what: String,
    },
    /// Something happened to the time: the machine `slept`, this program was `stopped`, the wall clock was `set`.
    Clock {
        /// UTC.
        utc: String,
        /// Which of them.
        what: String,
        /// Seconds.
        seconds: f64,
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
        /// True if it was ended before its time: `--resume` runs it again.
        #[serde(default)]
        cut: bool,
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
        /// True if all that was planned is done; otherwise `--resume` goes on.
        #[serde(default)]
        complete: bool,
    },
}

/// What a run was asked for, as far as its results depend on it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Asked {
    /// Seconds in all.
    pub seconds: f64,
    /// Scenarios by name; empty for what fits.
    pub scenarios: Vec<String>,
    /// Devices as `--device` named them.
    pub device: Option<String>,
    /// Threads of the scenarios that use many.
    pub threads: u32,
    /// A planted fault.
    pub inject: Option<String>,
    /// End at the first finding.
    pub fail_early: bool,
    /// Heartbeat in seconds.
    pub heartbeat: Option<f64>,
    /// Cards may be in use by others.
    pub shared: bool,
    /// Degrees Celsius above which a card's phases pause.
    pub max_temp: Option<f64>,
}

/// The phases of one device.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PlanOf {
    /// Device id at the time.
    pub id: String,
    /// Device uid.
    pub uid: String,
    /// Its name.
    pub name: String,
    /// Its driver.
    pub driver: String,
    /// Scenarios with the seconds of their phases.
    pub phases: Vec<(String, f64)>,
}

/// An open journal, or none.
#[derive(Debug)]
pub struct Journal {
    path: Option<PathBuf>,
    file: Option<File>,
    /// Bytes that are whole lines.
    good: u64,
    /// Lines lost since the last one that was written.
    lost: u64,
}

impl Journal {
    /// Opens a journal. A path with an extension, or one that exists and is no folder, is the file itself; any other is
    /// a folder in which a file named by UTC and process id is made. The error is for a remark: the returned journal then
    /// keeps nothing.
    pub fn open(at: Option<&Path>) -> (Self, Option<Error>) {
        let Some(at) = at else { return (Journal::none(), None) };
        let path = if !at.is_dir() && (at.extension().is_some() || at.exists()) {
            at.to_path_buf()
        } else {
            at.join(format!("{}-{}.jsonl", utc_now(), std::process::id()))
        };
        let open = || -> std::io::Result<File> {
            if let Some(folder) = path.parent() {
                std::fs::create_dir_all(folder)?;
            }
            // Read only where there is something to read: a pipe that is opened for reading, too, takes lines that nobody reads.
            let file = OpenOptions::new().read(path.is_file()).create(true).append(true).open(&path)?;
            // The file's name is on the disk only when its folder is. Not every file system knows that.
            if let Some(Ok(folder)) = path.parent().map(File::open) {
                let _ = folder.sync_all();
            }
            Ok(file)
        };
        match open() {
            Ok(file) => Journal::holding(path, file, whole_lines),
            Err(e) => (Journal::none(), Some(unwritable(&path, e))),
        }
    }

    /// Opens a journal that is there, to go on after its first `good` bytes; what follows them is a line that was cut off.
    pub fn reopen(path: &Path, good: u64) -> (Self, Option<Error>) {
        match OpenOptions::new().read(true).append(true).open(path) {
            Ok(file) => Journal::holding(path.to_path_buf(), file, |file| {
                // Between the reading of a journal and its lock another process may have gone on with it.
                if parsed(&bytes(file)?).good == good {
                    return Ok(good);
                }
                Err(std::io::Error::other("another run wrote to it meanwhile"))
            }),
            Err(e) => (Journal::none(), Some(unwritable(path, e))),
        }
    }

    fn none() -> Self {
        Journal { path: None, file: None, good: 0, lost: 0 }
    }

    /// Locks the file for as long as this process lives, so that no other one goes on with it, and only then cuts it back to
    /// `kept` bytes: until then the half line at its end may be one that another process is about to end.
    fn holding(
        path: PathBuf,
        mut file: File,
        kept: impl FnOnce(&mut File) -> std::io::Result<u64>,
    ) -> (Self, Option<Error>) {
        let cut_back = || -> std::io::Result<u64> {
            if matches!(file.try_lock(), Err(std::fs::TryLockError::WouldBlock)) {
                return Err(std::io::Error::other("another run writes to it"));
            }
            let there = file.metadata()?;
            // Pipes, terminals and `/dev/full` hold nothing.
            let good = if there.is_file() && there.len() > 0 { kept(&mut file)? } else { 0 };
            if there.is_file() && good < there.len() {
                file.set_len(good)?;
            }
            Ok(good)
        };
        match cut_back() {
            Ok(good) => (Journal { path: Some(path), file: Some(file), good, lost: 0 }, None),
            Err(e) => (Journal::none(), Some(unwritable(&path, e))),
        }
    }

    /// Where it is, if there is one.
    pub fn path(&self) -> Option<&Path> {
        self.path.as_deref()
    }

    /// Appends one line and waits until it is on the disk. A failure is returned, for a remark, once: later lines are tried
    /// as well, silently, for a disk that was full may have room again. A journal that cannot be cut back to whole lines is
    /// given up.
    pub fn append(&mut self, entry: &Entry) -> Option<Error> {
        let (Some(file), Some(path)) = (self.file.as_mut(), self.path.as_ref()) else { return None };
        let mut line = match serde_json::to_vec(entry) {
            Ok(line) => line,
            Err(e) => return Some(unwritable(path, e.into())),
        };
        line.push(b'\n');
        let written = file.write_all(&line).and_then(|()| file.sync_data());
        // A pipe or terminal cannot be synced; what was written to it is written.
        let Some(error) = written.err().filter(|e| e.kind() != std::io::ErrorKind::InvalidInput) else {
            self.good += line.len() as u64;
            self.lost = 0;
            return None;
        };
        self.lost += 1;
        let error = (self.lost == 1).then(|| unwritable(path, error));
        if file.set_len(self.good).is_err() {
            self.file = None;
        }
        error
    }
}

/// What every line begins with.
const HEAD: &[u8] = b"{\"line\":";

/// Bytes of a file's whole lines. What follows them is cut off only in a journal: other files are not ours to shorten.
fn whole_lines(file: &mut File) -> std::io::Result<u64> {
    let text = bytes(file)?;
    let good = text.iter().rposition(|b| *b == b'\n').map_or(0, |at| at + 1);
    if good < text.len() && !text.starts_with(HEAD) && !HEAD.starts_with(&text) {
        return Err(std::io::Error::other("it is no journal, and its last line does not end"));
    }
    Ok(good as u64)
}

fn bytes(file: &mut File) -> std::io::Result<Vec<u8>> {
    let mut text = Vec::new();
    file.seek(SeekFrom::Start(0))?;
    file.read_to_end(&mut text)?;
    Ok(text)
}

fn unwritable(path: &Path, e: std::io::Error) -> Error {
    Error::new(Code::Io, format!("the journal {} cannot be written; the soak goes on without it", path.display()))
        .caused_by(e)
}

fn unreadable(path: &Path, e: std::io::Error) -> Error {
    Error::new(Code::Io, format!("the journal {} cannot be read", path.display())).caused_by(e)
}

/// A journal as it was read.
#[derive(Clone, Debug, PartialEq)]
pub struct Contents {
    /// Its lines, as far as they can be read.
    pub entries: Vec<Entry>,
    /// Bytes of these lines.
    pub good: u64,
    /// True if something follows that is no whole line: cut off by a crash or a full disk.
    pub cut: bool,
    /// True if whole lines follow one that cannot be read: that was no crash.
    pub damaged: bool,
}

/// Reads a journal.
pub fn contents(path: &Path) -> Result<Contents> {
    std::fs::read(path).map(|text| parsed(&text)).map_err(|e| unreadable(path, e))
}

fn parsed(text: &[u8]) -> Contents {
    let mut all = Contents { entries: Vec::new(), good: 0, cut: false, damaged: false };
    let mut lines = text.split_inclusive(|b| *b == b'\n');
    for line in lines.by_ref() {
        match serde_json::from_slice(line) {
            Ok(entry) if line.ends_with(b"\n") => {
                all.entries.push(entry);
                all.good += line.len() as u64;
            }
            _ if line.trim_ascii().is_empty() => all.good += line.len() as u64,
            _ => {
                all.cut = true;
                break;
            }
        }
    }
    all.damaged = lines.any(|l| !l.trim_ascii().is_empty());
    all
}

/// Reads a journal back. A line cut off by a crash or a full disk ends it: the flag says whether one was.
pub fn read(path: &Path) -> Result<(Vec<Entry>, bool)> {
    contents(path).map(|c| (c.entries, c.cut))
}

/// The journals of a folder, the newest first: they are named by the time at which they began.
pub fn journals(folder: &Path) -> Result<Vec<PathBuf>> {
    let entries = std::fs::read_dir(folder).map_err(|e| unreadable(folder, e))?;
    let mut all: Vec<_> = entries.filter_map(|e| e.ok().map(|e| e.path())).collect();
    all.retain(|p| p.extension().is_some_and(|e| e == "jsonl"));
    all.sort_unstable_by(|a, b| b.cmp(a));
    Ok(all)
}

/// True if a process writes to the journal now.
pub fn in_use(path: &Path) -> bool {
    File::open(path).is_ok_and(|f| matches!(f.try_lock(), Err(std::fs::TryLockError::WouldBlock)))
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
        Entry::End { utc: utc(0), verdict: "pass".into(), exit_code: 0, summary: summary.into(), complete: true }
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

    /// A crash tore the last line: a new run in the same file begins on a line of its own, as one that goes on does.
    #[test]
    fn a_torn_line_does_not_spoil_the_next_run() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("j.jsonl");
        let line = |text: &str| format!("{}\n", serde_json::to_string(&end(text)).unwrap());
        let write = |text: &str| std::fs::write(&path, text).unwrap();
        for torn in ["{\"li", &line("two")[..30], "\0\0\0"] {
            write(&format!("{}{torn}", line("one")));
            let (mut journal, error) = Journal::open(Some(&path));
            assert!(error.is_none() && journal.append(&end("three")).is_none());
            assert_eq!(read(&path).unwrap(), (vec![end("one"), end("three")], false), "{torn}");
        }
        // Nothing but the torn line, and nothing torn at all.
        for (before, after) in [("{\"line\":\"st".to_string(), vec![]), (line("one"), vec![end("one")])] {
            write(&before);
            let (mut journal, _) = Journal::open(Some(&path));
            assert!(journal.append(&end("two")).is_none());
            assert_eq!(read(&path).unwrap(), ([&after[..], &[end("two")]].concat(), false));
        }
        write("somebody's notes");
        let (journal, error) = Journal::open(Some(&path));
        assert!(journal.path().is_none() && error.is_some_and(|e| e.to_string().contains("cannot be written")));
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "somebody's notes");
    }

    /// A half line may be one that its writer is about to end: whoever does not hold the lock leaves it.
    #[test]
    fn a_journal_that_another_run_writes_to_is_not_cut_back() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("j.jsonl");
        let (mut held, _) = Journal::open(Some(&path));
        assert!(held.append(&end("one")).is_none());
        let good = contents(&path).unwrap().good;
        let half = |text: &[u8]| OpenOptions::new().append(true).open(&path).unwrap().write_all(text).unwrap();
        half(b"{\"line\":\"e");
        let whole = std::fs::read(&path).unwrap();
        for (journal, error) in [Journal::open(Some(&path)), Journal::reopen(&path, good)] {
            assert!(journal.path().is_none() && error.is_some());
            assert_eq!(std::fs::read(&path).unwrap(), whole);
        }
        drop(held);
        // What was written since the journal was read is somebody's as well.
        assert!(Journal::reopen(&path, good - 5).1.is_some());
        assert_eq!(std::fs::read(&path).unwrap(), whole);
        let (mut journal, error) = Journal::reopen(&path, good);
        assert!(error.is_none() && journal.append(&end("two")).is_none());
        assert_eq!(read(&path).unwrap(), (vec![end("one"), end("two")], false));
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
