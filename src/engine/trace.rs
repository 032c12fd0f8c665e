//! Traces as files: parts that processes write while they run, and the one file that they are joined into.
//!
//! A part is lines of JSON, each a [`Process`] that goes on where the line before ended, so that a process which dies leaves
//! what it had written. The joined file is complete or not there.
//!
//! ```
//! use gpuctl::base::{Attrs, HostTensor};
//! use gpuctl::engine::{Engine, trace};
//!
//! # fn main() -> gpuctl::base::Result<()> {
//! let engine = Engine::builder().profile("preset:always-cpu").trace().build()?;
//! let x = HostTensor::from_slice(&[-1.0f32, 0.0, 2.5], &[3])?;
//! engine.run("relu", &[&x], &Attrs::new())?;
//! let told = engine.trace().expect("it was asked for");
//! assert_eq!(told.summary().ops[0].launches, 1);
//! let file = std::env::temp_dir().join(format!("relu-{}.json", std::process::id()));
//! trace::write(&told, &file)?; // opens in Perfetto
//! # std::fs::remove_file(&file).ok();
//! # Ok(())
//! # }
//! ```

use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{BufRead, BufReader, BufWriter, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crate::base::chrome;
use crate::base::trace::{Kind, Process, Trace};
use crate::base::{Case, Code, Error, Result, os};
use crate::device::tap::{Labelled, Tracer};

use super::{Engine, Explanation};

/// Largest part that is read, in bytes: what a process keeps, several times over.
const LARGEST: u64 = 1 << 30;
/// Events of one part; later ones are dropped and counted.
const MOST: usize = 2 * crate::device::tap::KEPT;

impl Engine {
    /// What this engine's devices have done so far: every allocation, build, copy, launch and wait, and what the engine decided.
    /// `None` if it was built without [`super::EngineBuilder::trace`]. [`write()`] spells it for viewers.
    pub fn trace(&self) -> Option<Trace> {
        self.tracer.as_ref().map(|t| t.trace())
    }

    /// Tells where a call goes; gives what it is called from now on. `None` where nothing is traced.
    pub(super) fn tell_trace(&self, case: &Case, explanation: &Explanation) -> Option<Labelled> {
        let tap = self.places.cpu.device().tap()?;
        let label = tap.label(case, "");
        let _scope = label.enter();
        tap.moment(Kind::Placement, explanation.to_string());
        Some(label)
    }
}

/// Writes a trace in Chrome's format, whole or not at all; gives the number of events that found no room in it.
///
/// Errors: `Io`; an earlier file of that name is then as it was.
pub fn write(trace: &Trace, path: &Path) -> Result<u64> {
    let mut left_out = 0;
    let fill = |file: &mut File| {
        let mut out = BufWriter::new(&mut *file);
        left_out = chrome::write(trace, chrome::MOST_EVENTS, &mut out)?;
        out.into_inner().map_err(std::io::IntoInnerError::into_error)?;
        file.sync_all()
    };
    let failed = |e| Error::new(Code::Io, format!("the trace cannot be written to {}", path.display())).caused_by(e);
    os::replace(path, "part", &mut OpenOptions::new(), fill).map_err(failed)?;
    Ok(left_out)
}

/// Where the trace of a run goes: the file, and a folder beside it for the parts of its processes.
#[derive(Debug)]
pub struct Target {
    file: PathBuf,
    parts: PathBuf,
}

impl Target {
    /// Makes the folder. Errors: `BadArgument` for a file that could not be written there.
    pub fn new(file: &Path) -> Result<Self> {
        let bad = |why: String| Error::new(Code::BadArgument, format!("--trace {}: {why}", file.display()));
        if file.file_name().is_none() || file.is_dir() {
            return Err(bad("expected a file".into()));
        }
        // Not replaced by a rename.
        if file.exists() && !file.is_file() {
            return Err(bad("not a regular file".into()));
        }
        let parts = os::beside(file, "parts");
        let mut builder = DirBuilder::new();
        #[cfg(unix)]
        std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
        builder.create(&parts).map_err(|e| bad(format!("its folder cannot be written: {e}")))?;
        Ok(Target { file: file.to_path_buf(), parts })
    }

    /// The folder of the parts.
    pub fn parts(&self) -> &Path {
        &self.parts
    }

    /// Joins what this process did with the parts of the others, and writes the file. Gives the trace, and how many events
    /// found no room in the file.
    ///
    /// Errors: `Io`.
    pub fn finish(&self, own: Process) -> Result<(Trace, u64)> {
        let failed = |e: std::io::Error| {
            Error::new(Code::Io, format!("parts of the trace in {}", self.parts.display())).caused_by(e)
        };
        let mut paths: Vec<PathBuf> =
            std::fs::read_dir(&self.parts).map_err(failed)?.flatten().map(|e| e.path()).collect();
        paths.sort();
        let mut processes = vec![own];
        for path in paths {
            processes.extend(read(&path).map_err(failed)?);
        }
        // One that did nothing says nothing.
        processes.retain(|p| !p.events.is_empty() || !p.cut.is_empty() || !p.totals.is_empty());
        processes.sort_by_key(|p| p.began_ns);
        // The system may have used a number twice.
        for i in 1..processes.len() {
            while processes[..i].iter().any(|p| p.pid == processes[i].pid) {
                processes[i].pid = processes[i].pid.wrapping_add(1_000_000);
            }
        }
        let trace = Trace { processes };
        let left_out = write(&trace, &self.file)?;
        Ok((trace, left_out))
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        // What cannot be removed stays; its name says what it is.
        let _ = std::fs::remove_dir_all(&self.parts);
    }
}

/// One line of a part.
#[derive(serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Line {
    /// Work has begun of which nothing is written yet.
    Begun,
    /// What was done since the last line, and whether all of it is told.
    Did { settled: bool, process: Box<Process> },
}

/// The process that a part tells of; `None` for an empty one.
fn read(path: &Path) -> std::io::Result<Option<Process>> {
    let file = File::open(path)?;
    let mut lines = BufReader::new(file.take(LARGEST)).lines();
    let mut whole: Option<Process> = None;
    let mut open = true;
    let mut broken = false;
    for line in lines.by_ref() {
        // The last line of a process that was ended while it wrote.
        let Some(line) = line.ok().and_then(|l| serde_json::from_str::<Line>(&l).ok()) else {
            broken = true;
            break;
        };
        match line {
            Line::Begun => open = true,
            Line::Did { settled, process } => {
                open = !settled;
                match &mut whole {
                    Some(whole) => whole.extend(*process),
                    None => whole = Some(*process),
                }
            }
        }
    }
    // Begun, and never heard of again.
    let number = path.file_name().and_then(|s| s.to_str()).and_then(|s| s.split('-').next()?.parse().ok()).unwrap_or(0);
    let mut process = whole.unwrap_or_else(|| Process { pid: number, name: "worker".into(), ..Process::default() });
    if open || broken {
        process.cut = "it ended in the middle of its work".into();
    }
    let extra = process.events.len().saturating_sub(MOST);
    process.events.truncate(MOST);
    process.dropped += extra as u64;
    Ok(Some(process))
}

/// The part of a process that may be ended at any time.
#[derive(Clone, Debug)]
pub struct Part(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    tracer: Arc<Tracer>,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    file: File,
    /// True while there is work that is not settled.
    open: bool,
    written: Instant,
    events: usize,
    /// Events that were left out since the part holds enough.
    left_out: u64,
}

impl Part {
    /// The part of this process in the folder of a [`Target`]. Errors: `Io`.
    pub fn new(parts: &Path, tracer: &Arc<Tracer>) -> Result<Self> {
        // The system may use a number twice.
        let since = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_nanos());
        let path = parts.join(format!("{}-{since}.jsonl", std::process::id()));
        let failed = |e| Error::new(Code::Io, format!("the part of a trace: {}", path.display())).caused_by(e);
        let file = OpenOptions::new().create_new(true).append(true).open(&path).map_err(failed)?;
        let state = State { file, open: false, written: Instant::now(), events: 0, left_out: 0 };
        Ok(Part(Arc::new(Inner { tracer: Arc::clone(tracer), state: Mutex::new(state) })))
    }

    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Work begins: a part that says no more was cut. Errors: `Io`.
    pub fn begin(&self) -> std::io::Result<()> {
        let mut state = self.state();
        if std::mem::replace(&mut state.open, true) {
            return Ok(());
        }
        put(&mut state.file, &Line::Begun)
    }

    /// Writes what was collected. `settled`: all work that began is told now. Errors: those of writing.
    pub fn write(&self, settled: bool) -> std::io::Result<()> {
        let mut state = self.state();
        let mut process = self.0.tracer.take();
        let room = MOST.saturating_sub(state.events);
        state.left_out += process.events.len().saturating_sub(room) as u64;
        process.events.truncate(room);
        process.dropped += state.left_out;
        state.events += process.events.len();
        (state.open, state.written) = (!settled, Instant::now());
        put(&mut state.file, &Line::Did { settled, process: Box::new(process) })
    }

    /// The same for work that must not end because its trace cannot be written: the part is then cut short.
    fn try_write(&self, settled: bool) {
        if let Err(e) = self.write(settled) {
            log::warn!("the part of a trace cannot be written: {e}");
        }
    }
}

fn put(file: &mut File, line: &Line) -> std::io::Result<()> {
    let mut text = serde_json::to_vec(line)?;
    text.push(b'\n');
    file.write_all(&text)
}

/// A worker's orders: work begins with each line that is read.
#[derive(Debug)]
pub struct Orders<R>(pub R, pub Part);

impl<R: BufRead> Read for Orders<R> {
    fn read(&mut self, buf: &mut [u8]) -> std::io::Result<usize> {
        let n = self.0.read(buf)?;
        if n > 0 {
            self.1.begin()?;
        }
        Ok(n)
    }
}

impl<R: BufRead> BufRead for Orders<R> {
    fn fill_buf(&mut self) -> std::io::Result<&[u8]> {
        self.0.fill_buf()
    }
    fn consume(&mut self, amount: usize) {
        if amount > 0
            && let Err(e) = self.1.begin()
        {
            log::warn!("the part of a trace cannot be written: {e}");
        }
        self.0.consume(amount);
    }
}

/// A worker's answers: what was traced is written before an answer goes out, for the parent may end the process then.
#[derive(Debug)]
pub struct Answers<W>(pub W, pub Part);

impl<W: Write> Write for Answers<W> {
    fn write(&mut self, buf: &[u8]) -> std::io::Result<usize> {
        let open = self.1.state().open;
        if open {
            self.1.try_write(true);
        }
        self.0.write(buf)
    }
    fn flush(&mut self) -> std::io::Result<()> {
        self.0.flush()
    }
}

/// A worker's talk while it works: what was traced is written now and then.
#[derive(Debug)]
pub struct Talk<W>(pub W, pub Part, pub Duration);

impl<W: Write> Write for Talk<W> {
    fn write(&mut self, buf: &[u8]) -> std::io::Result<usize> {
        if self.1.state().written.elapsed() >= self.2 {
            self.1.try_write(false);
        }
        self.0.write(buf)
    }
    fn flush(&mut self) -> std::io::Result<()> {
        self.0.flush()
    }
}
