//! Workers as the parent sees them: how they are started, heard, told to stop and ended. The parent runs nothing on a device;
//! cards' telemetry is asked for in threads that nobody waits for.

use std::io::{BufRead, BufReader, Read};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::base::{Absence, Cancel, Code, DeviceInfo, Error, Result, os, record};
use crate::jobs::inventory::ended;
use crate::jobs::workers::GONE;

use super::StressConfig;
use super::scenario::Scenario;
use super::worker::{Line, Phase, Task};

/// How a worker ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Exit {
    /// Exit code, if it ended by itself.
    pub code: Option<i32>,
    /// Signal, if one ended it.
    pub signal: Option<i32>,
}

impl Exit {
    /// True for exit code 0.
    pub fn success(&self) -> bool {
        self.code == Some(0)
    }
    /// In words: `signal 11`, `exit code 101`.
    pub fn words(&self) -> String {
        match (self.signal, self.code) {
            (Some(s), _) => format!("signal {s}"),
            (None, Some(c)) => format!("exit code {c}"),
            (None, None) => "an unknown end".into(),
        }
    }
}

/// A running worker.
pub trait Child: Send {
    /// Its standard output; given once.
    fn output(&mut self) -> Option<Box<dyn BufRead + Send>>;
    /// Asks it to end soon.
    fn stop(&mut self);
    /// Ends it at once.
    fn kill(&mut self);
    /// How it ended; `None` while it runs.
    fn ended(&mut self) -> Option<Exit>;
    /// The last of what it wrote to standard error.
    fn errors(&self) -> String;
    /// Its process id, if it is a process.
    fn pid(&self) -> Option<u32> {
        None
    }
}

/// Starts workers: processes in real use, threads in tests. Several threads ask at once, one per device.
pub trait Spawn: Sync {
    /// Starts a worker on a task (the JSON of a [`Task`]).
    fn spawn(&self, task: &str) -> Result<Box<dyn Child>>;
    /// The program that it starts, if workers are processes.
    fn program(&self) -> Option<PathBuf> {
        None
    }
}

/// Starts `path stress-worker TASK`.
#[derive(Clone, Debug)]
pub struct Exe {
    /// The binary.
    pub path: PathBuf,
}

impl Exe {
    /// This binary.
    pub fn current() -> Result<Self> {
        let path = std::env::current_exe().map_err(|e| Error::new(Code::Io, "no path to this program").caused_by(e))?;
        Ok(Exe { path })
    }
}

struct Process {
    child: std::process::Child,
    errors: Arc<Mutex<Vec<u8>>>,
}

/// Bytes of a worker's standard error that are kept.
const ERRORS_KEPT: usize = 4096;

impl Spawn for Exe {
    fn spawn(&self, task: &str) -> Result<Box<dyn Child>> {
        let mut command = Command::new(&self.path);
        command.arg("stress-worker").arg(task);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        // A group of its own: Ctrl-C at the terminal reaches the parent alone, which then tells the worker.
        #[cfg(unix)]
        std::os::unix::process::CommandExt::process_group(&mut command, 0);
        let mut child = command.spawn().map_err(|e| {
            Error::new(Code::Io, format!("cannot start the worker {}", self.path.display())).caused_by(e)
        })?;
        let errors = Arc::new(Mutex::new(Vec::new()));
        if let Some(mut pipe) = child.stderr.take() {
            let kept = Arc::clone(&errors);
            std::thread::spawn(move || {
                let mut part = [0u8; 1024];
                while let Ok(n) = pipe.read(&mut part) {
                    if n == 0 {
                        break;
                    }
                    let mut kept = kept.lock().unwrap_or_else(PoisonError::into_inner);
                    kept.extend_from_slice(&part[..n]);
                    let surplus = kept.len().saturating_sub(ERRORS_KEPT);
                    kept.drain(..surplus);
                }
            });
        }
        Ok(Box::new(Process { child, errors }))
    }
    fn program(&self) -> Option<PathBuf> {
        Some(self.path.clone())
    }
}

impl Child for Process {
    fn output(&mut self) -> Option<Box<dyn BufRead + Send>> {
        self.child.stdout.take().map(|o| Box::new(BufReader::new(o)) as Box<dyn BufRead + Send>)
    }
    fn stop(&mut self) {
        // The worker reads its end of this pipe.
        drop(self.child.stdin.take());
    }
    fn kill(&mut self) {
        // An error means that it is gone already.
        let _ = self.child.kill();
    }
    fn pid(&self) -> Option<u32> {
        Some(self.child.id())
    }
    fn ended(&mut self) -> Option<Exit> {
        let status = self.child.try_wait().ok()??;
        #[cfg(unix)]
        let signal = std::os::unix::process::ExitStatusExt::signal(&status);
        #[cfg(not(unix))]
        let signal = None;
        Some(Exit { code: status.code(), signal })
    }
    fn errors(&self) -> String {
        String::from_utf8_lossy(&self.errors.lock().unwrap_or_else(PoisonError::into_inner)).trim().to_string()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if matches!(self.child.try_wait(), Ok(None)) {
            let _ = self.child.kill();
        }
        // Without this a killed worker stays behind as a zombie for as long as the parent runs. One that hangs in the kernel
        // does not even end of that; it is left behind.
        ended(&mut self.child, GONE);
    }
}

pub(super) fn host() -> record::Host {
    record::Host {
        cpu: os::cpu_name(),
        cpus: os::allowed_cpus().len() as u32,
        memory_bytes: os::memory().map_or(0, |m| m.0),
        os: os::os_name(),
        awake: false,
        system: None,
    }
}

/// The devices of the selection, through a child: the probe itself may crash or hang.
pub(super) fn list(cfg: &StressConfig, spawn: &dyn Spawn, cancel: &Cancel) -> Result<(Vec<DeviceInfo>, Vec<Absence>)> {
    let task = task_text(&Task { device: cfg.device.clone(), phase: None, lose: false })?;
    let mut child = spawn.spawn(&task)?;
    let lines = reader(child.as_mut());
    // Creating the contexts of a node full of GPUs takes seconds; a minute means that a driver is wedged.
    let limit = Duration::from_secs(60);
    let start = Instant::now();
    loop {
        match lines.recv_timeout(Duration::from_millis(50)) {
            Ok(Line::Devices { mut devices, absent }) => {
                // Named twice, worked on once.
                let mut seen = Vec::new();
                devices.retain(|d| {
                    !seen.contains(&d.uid) && {
                        seen.push(d.uid.clone());
                        true
                    }
                });
                return Ok((devices, absent));
            }
            Ok(Line::Refused(told)) => return Err(told.error()),
            Ok(_) => {}
            Err(std::sync::mpsc::RecvTimeoutError::Disconnected) => {
                let how = ending(child.as_mut());
                return Err(Error::new(Code::WorkerCrashed, format!("the worker that lists the devices: {how}")));
            }
            Err(std::sync::mpsc::RecvTimeoutError::Timeout) => {}
        }
        if cancel.raised() || start.elapsed() > limit {
            child.kill();
            let (code, text) = if cancel.raised() {
                (Code::Cancelled, "before a device was opened")
            } else {
                (Code::LaunchTimeout, "the devices could not be listed within a minute")
            };
            return Err(Error::new(code, text));
        }
    }
}

/// The task as JSON.
pub(super) fn task_text(task: &Task) -> Result<String> {
    serde_json::to_string(task).map_err(|e| Error::new(Code::Internal, "a task cannot be written").caused_by(e))
}

/// The task of one phase.
pub(super) fn phase_task(device: &DeviceInfo, scenario: &Scenario, phase: Phase) -> Task {
    let phase = Some(Phase { scenario: scenario.name.into(), ..phase });
    Task { device: Some(device.id.clone()), phase, lose: false }
}

/// Reads a worker's lines on a thread of its own, so that every wait of the parent can be bounded. Lines that are no
/// message (a driver's chatter) are skipped; a line cut off by a crash is lost.
pub(super) fn reader(child: &mut dyn Child) -> std::sync::mpsc::Receiver<Line> {
    let (send, receive) = std::sync::mpsc::sync_channel(1024);
    if let Some(mut output) = child.output() {
        std::thread::spawn(move || {
            let mut text = Vec::new();
            while output.read_until(b'\n', &mut text).is_ok_and(|n| n > 0) {
                if let Ok(line) = serde_json::from_slice(&text)
                    && send.send(line).is_err()
                {
                    break;
                }
                text.clear();
            }
        });
    }
    receive
}

/// Waits briefly for a worker whose output has ended, kills it if need be, and says how it ended.
pub(super) fn ending(child: &mut dyn Child) -> String {
    let exit = await_end(child, Duration::from_secs(2));
    let errors = child.errors();
    let tail = errors.lines().rev().take(3).collect::<Vec<_>>().into_iter().rev().collect::<Vec<_>>().join(" | ");
    let how = exit.map_or_else(|| "its output ended but it did not".to_string(), |e| e.words());
    if tail.is_empty() { how } else { format!("{how}; it wrote: {tail}") }
}

/// Waits for a worker's end for at most `limit`, then kills it.
pub(super) fn await_end(child: &mut dyn Child, limit: Duration) -> Option<Exit> {
    let start = Instant::now();
    loop {
        if let Some(exit) = child.ended() {
            return Some(exit);
        }
        if start.elapsed() > limit {
            child.kill();
            return None;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}
