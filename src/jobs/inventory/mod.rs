//! What is there, asked in processes of their own: a driver that hangs or crashes takes only the process with it that asked
//! it, and everything else is listed. The process that lists loads no driver.
//!
//! The loaders of OpenCL and Vulkan load all drivers at once, so one bad driver takes the others with it. Then each driver is
//! asked alone, and those that answered once more together: devices have the ids and uids that they would have without the bad
//! driver (`apart`).

mod apart;
mod sound;

use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::base::text::printable;
use crate::base::{Absence, Backend, Code, DeviceInfo, Env, Error, Result, os};
use crate::device::platform::Platform;
use crate::device::probe::{self, CpuConfig};
use crate::device::{icd, manifest};

pub use sound::{Sound, sound};

/// After this a driver counts as hung. A server with eight cards whose driver is not kept loaded takes more than ten seconds
/// to wake them; nobody should wait much longer for a list.
const LIMIT: Duration = Duration::from_secs(20);
/// After this each driver of OpenCL or Vulkan is asked alone while the wait for all of them goes on, so that a hang costs little more
/// than one limit. Healthy drivers answer within a second.
const PATIENCE: Duration = Duration::from_secs(3);

/// How long drivers are waited for.
#[derive(Clone, Copy, Debug)]
pub struct Waits {
    /// After this a driver counts as hung.
    limit: Duration,
    /// After this a loader's drivers are asked one by one.
    patience: Duration,
}

impl Waits {
    /// For a list: a slow driver is worth waiting for.
    pub const LONG: Waits = Waits { limit: LIMIT, patience: PATIENCE };
    /// For an answer within 5 seconds, whatever drivers do.
    pub const SHORT: Waits = Waits { limit: Duration::from_millis(1500), patience: Duration::from_millis(600) };
}

/// For a process to end that should end by itself: some drivers hang in their exit handlers.
pub(super) const GRACE: Duration = Duration::from_secs(1);
/// How often a wait looks around.
pub(super) const STEP: Duration = Duration::from_millis(10);
/// Bytes of a process's standard error that are kept.
const ERRORS_KEPT: usize = 4096;

/// What there is.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Answer {
    /// Usable devices in order of listing.
    pub devices: Vec<DeviceInfo>,
    /// What is not usable, and why.
    pub absent: Vec<Absence>,
    /// OpenCL's platforms in the order in which their devices are numbered.
    #[serde(default)]
    pub platforms: Vec<Platform>,
    /// Files that were mapped as code when a process answered; not told of answers that were joined.
    #[serde(default)]
    pub mapped: Vec<String>,
}

impl Answer {
    fn only_absent(absent: Vec<Absence>) -> Self {
        Answer { absent, ..Answer::default() }
    }

    fn add(&mut self, other: Answer) {
        self.devices.extend(other.devices);
        self.absent.extend(other.absent);
        self.platforms.extend(other.platforms);
    }
}

/// The asked process's side: asks one backend, in this process, which may end of it. Gives the answer as a line.
pub fn answer(backend: Backend) -> Result<String> {
    os::expendable();
    let probe = probe::ask(backend);
    // While the devices are there: loaders let go of drivers with the last of them.
    let mapped = os::mapped_files();
    let devices = probe.found.into_iter().map(|f| f.info).collect();
    let answer = Answer { devices, absent: probe.absent, platforms: probe.platforms, mapped };
    let text = serde_json::to_string(&answer)
        .map_err(|e| Error::new(Code::Internal, "an answer cannot be written").caused_by(e))?;
    // A line of its own, whatever a driver has written before.
    Ok(format!("\n{text}\n"))
}

/// Asks these backends, side by side, each in a process of its own that `program` (gpuctl) starts as. The CPU is always there.
///
/// Errors: those of the environment's settings for the CPU. What happens to a driver is a row of the answer.
pub fn ask(backends: &[Backend], waits: Waits, env: &Env, cpu: CpuConfig, program: &Path) -> Result<Answer> {
    if env.disable_gpu {
        // No driver is asked at all.
        return Ok(of_inventory(probe::inventory_of(backends, env, cpu)?));
    }
    let off = |b: &Backend| backends.contains(b) && env.without.contains(b);
    let unasked: Vec<Backend> = Backend::ALL.into_iter().filter(off).collect();
    let host = probe::inventory_of(&unasked, env, cpu)?;
    let mut all = of_inventory(host);
    let asker = &Asker { program: program.to_path_buf(), waits };
    let asked = |b: &Backend| backends.contains(b) && !off(b) && !matches!(b, Backend::Cpu | Backend::Sim);
    let asked = Backend::ALL.into_iter().filter(asked);
    std::thread::scope(|scope| {
        let asked: Vec<_> = asked.map(|b| (b, scope.spawn(move || asker.backend(b)))).collect();
        for (backend, thread) in asked {
            all.add(thread.join().unwrap_or_else(|_| {
                let died = Outcome::Unasked("its thread panicked".into());
                Answer::only_absent(vec![died.of_backend(backend)])
            }));
        }
    });
    let known = |row: &&Absence| backends.contains(&row.backend) && !env.without.contains(&row.backend);
    all.absent.extend(env.left_out.iter().filter(known).cloned());
    Ok(all)
}

fn of_inventory(all: probe::Inventory) -> Answer {
    Answer { devices: all.found.into_iter().map(|f| f.info).collect(), ..Answer::only_absent(all.absent) }
}

/// How asking went.
#[derive(Clone, Debug, PartialEq)]
enum Outcome {
    Answered(Answer),
    /// No answer within this time.
    Hung(Duration),
    /// The process ended without an answer; how, and the last that it said.
    Died {
        how: String,
        said: String,
    },
    /// It could not be asked.
    Unasked(String),
    /// Nobody waits for the answer any more.
    Stopped,
}

impl Outcome {
    /// What went wrong with `who`, if anything did.
    fn fault(&self, who: &str) -> Option<(Code, String)> {
        match self {
            Outcome::Answered(_) => None,
            Outcome::Hung(limit) => {
                let seconds = limit.as_secs_f64();
                Some((Code::LaunchTimeout, format!("{who} hung: no answer within {seconds} s")))
            }
            Outcome::Died { how, said } => {
                let said = if said.is_empty() { String::new() } else { format!("; its last words: {said}") };
                Some((
                    Code::WorkerCrashed,
                    format!("{who} crashed the process that asked for its devices ({how}){said}"),
                ))
            }
            Outcome::Unasked(why) => Some((Code::Io, format!("{who} could not be asked: {why}"))),
            Outcome::Stopped => Some((Code::Cancelled, format!("{who} was not asked to the end"))),
        }
    }

    /// The row of a backend that gave no answer.
    fn of_backend(&self, backend: Backend) -> Absence {
        let (code, why) = self.fault("its driver").unwrap_or((Code::Internal, "it answered".into()));
        let next = match backend {
            Backend::Wgpu => {
                "update or remove the Vulkan driver and see the kernel's log (dmesg); VK_DRIVER_FILES=FILE.json keeps \
                 every command to one driver"
            }
            Backend::Opencl => "update or remove the OpenCL driver and see the kernel's log (dmesg)",
            _ => "update the driver and see the kernel's log (dmesg); a hung card needs a restart of the machine",
        };
        Absence { backend, what: backend.name().into(), reason: format!("{}: {why}", code.name()), next: next.into() }
    }
}

struct Asker {
    program: PathBuf,
    waits: Waits,
}

impl Asker {
    fn backend(&self, backend: Backend) -> Answer {
        match backend {
            Backend::Opencl => self.drivers(&icd::listing().icds).0,
            Backend::Wgpu => self.drivers(&manifest::listing()).0,
            _ => self.whole(backend).0,
        }
    }

    /// A backend whose drivers cannot be told apart, and whether it may be loaded.
    fn whole(&self, backend: Backend) -> (Answer, bool) {
        match self.ask(backend, &|_| {}, &AtomicBool::new(false)) {
            Outcome::Answered(answer) => (answer, true),
            other => (Answer::only_absent(vec![other.of_backend(backend)]), false),
        }
    }

    /// Asks a backend in a process of its own, whose environment `limit` may change.
    fn ask(&self, backend: Backend, limit: &(dyn Fn(&mut Command) + Sync), stop: &AtomicBool) -> Outcome {
        let mut command = Command::new(&self.program);
        command.args(["probe-worker", "--backend", backend.name()]);
        // In our process group: Ctrl-C at the terminal ends it, too.
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        limit(&mut command);
        let mut child = match command.spawn() {
            Ok(child) => child,
            Err(e) => return Outcome::Unasked(format!("cannot start {}: {e}", self.program.display())),
        };
        let answers = lines_of::<Answer>(&mut child);
        let errors = errors_of(&mut child);
        let begun = Instant::now();
        let outcome = loop {
            match answers.recv_timeout(STEP) {
                Ok(answer) => {
                    ended(&mut child, GRACE);
                    break Outcome::Answered(answer);
                }
                // Its output is closed: it has ended, or is about to.
                Err(RecvTimeoutError::Disconnected) => break died(ended(&mut child, GRACE), &errors),
                Err(RecvTimeoutError::Timeout) => {}
            }
            if let Ok(Some(status)) = child.try_wait() {
                // The answer may still be in the pipe, which a process that the driver started may keep open.
                break match answers.recv_timeout(GRACE) {
                    Ok(answer) => Outcome::Answered(answer),
                    Err(_) => died(Some(status), &errors),
                };
            }
            if stop.load(Ordering::Relaxed) {
                break Outcome::Stopped;
            }
            if begun.elapsed() >= self.waits.limit {
                break Outcome::Hung(self.waits.limit);
            }
        };
        let _ = child.kill();
        // A process that hangs in the kernel does not even end of that; it is left behind.
        ended(&mut child, GRACE);
        outcome
    }
}

fn died(status: Option<ExitStatus>, errors: &Errors) -> Outcome {
    let how = status.map_or_else(|| "it closed its output and went on".into(), os::ending);
    Outcome::Died { how, said: errors.last_line() }
}

/// How a process ended, if it does so in time.
pub(super) fn ended(child: &mut Child, within: Duration) -> Option<ExitStatus> {
    let begun = Instant::now();
    loop {
        match child.try_wait() {
            Ok(Some(status)) => return Some(status),
            Ok(None) if begun.elapsed() < within => std::thread::sleep(STEP),
            _ => return None,
        }
    }
}

/// What a process says, line by line as it comes. Lines that are nothing of ours are a driver's chatter.
pub(super) fn lines_of<T: DeserializeOwned + Send + 'static>(child: &mut Child) -> Receiver<T> {
    let (send, said) = channel();
    if let Some(output) = child.stdout.take() {
        std::thread::spawn(move || {
            let mut output = BufReader::new(output);
            let mut line = Vec::new();
            while output.read_until(b'\n', &mut line).is_ok_and(|n| n > 0) {
                if let Ok(word) = serde_json::from_slice(&line)
                    && send.send(word).is_err()
                {
                    break;
                }
                line.clear();
            }
        });
    }
    said
}

/// The last of what a process wrote to standard error.
pub(super) struct Errors {
    kept: Arc<Mutex<Vec<u8>>>,
    closed: Receiver<()>,
}

pub(super) fn errors_of(child: &mut Child) -> Errors {
    let kept = Arc::new(Mutex::new(Vec::new()));
    let (close, closed) = channel();
    if let Some(mut pipe) = child.stderr.take() {
        let kept = Arc::clone(&kept);
        std::thread::spawn(move || {
            let mut part = [0u8; 1024];
            while let Ok(n @ 1..) = pipe.read(&mut part) {
                let mut kept = kept.lock().unwrap_or_else(PoisonError::into_inner);
                kept.extend_from_slice(&part[..n]);
                let surplus = kept.len().saturating_sub(ERRORS_KEPT);
                kept.drain(..surplus);
            }
            let _ = close.send(());
        });
    }
    Errors { kept, closed }
}

impl Errors {
    pub(super) fn last_line(&self) -> String {
        // All of it, unless a process that the driver started keeps the pipe open.
        let _ = self.closed.recv_timeout(GRACE);
        last_line(&self.kept.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// The last line that says something, at most 200 characters of it, fit for a terminal.
fn last_line(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes);
    let line = text.lines().map(str::trim).rfind(|l| !l.is_empty()).unwrap_or_default();
    let line: String = line.chars().take(200).collect();
    printable(&line).replace('\t', " ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::icd::{Icd, Named};

    fn row(what: &str) -> Absence {
        Absence { backend: Backend::Opencl, what: what.into(), reason: "old".into(), next: "new".into() }
    }

    #[test]
    fn outcomes_are_told_apart() {
        let icd = Icd { named: Named::By("/etc/OpenCL/vendors/x.icd".into()), library: Ok("libx.so".into()) };
        let hung = Outcome::Hung(Duration::from_secs(20)).of_driver(&icd).unwrap();
        assert_eq!(hung.what, "/etc/OpenCL/vendors/x.icd");
        assert!(hung.reason.contains("libx.so hung: no answer within 20 s"), "{hung:?}");
        let died = Outcome::Died { how: "signal SIGSEGV".into(), said: "oh no".into() };
        let died = died.of_backend(Backend::Cuda);
        assert_eq!(died.what, "cuda");
        assert!(died.reason.contains("(signal SIGSEGV); its last words: oh no"), "{died:?}");
        assert_eq!(Outcome::Answered(Answer::default()).of_driver(&icd), None);
    }

    #[test]
    fn last_words_are_one_plain_line() {
        assert_eq!(last_line(b"one\n\ttwo\tthree\x1b[2J\n\n  \n"), "two three\\u{1b}[2J");
        assert_eq!(last_line(b""), "");
        assert_eq!(last_line(&[b'x'; 5000]).len(), 200);
    }

    /// Programs in place of gpuctl: each way in which a process can fail to answer.
    #[cfg(unix)]
    #[test]
    fn a_process_that_does_not_answer_is_an_outcome() {
        let dir = tempfile::tempdir().unwrap();
        let never = AtomicBool::new(false);
        let ask = |script: &str, limit: u64| {
            let program = dir.path().join("program");
            // Written by another process: while a test beside this one starts a process, that one may hold every file that is
            // open here, and a program that is open for writing cannot be started.
            let write = r#"printf '#!/bin/sh\n%s\n' "$1" > "$2" && chmod 755 "$2""#;
            let written = Command::new("sh").args(["-c", write, "sh", script]).arg(&program).status().unwrap();
            assert!(written.success());
            Asker { program, waits: Waits { limit: Duration::from_millis(limit), ..Waits::LONG } }.ask(
                Backend::Cuda,
                &|_| {},
                &never,
            )
        };
        let line = serde_json::to_string(&Answer::only_absent(vec![row("x")])).unwrap();
        let Outcome::Answered(answer) = ask(&format!("echo chatter; echo '{line}'; kill -9 $$"), 60_000) else {
            panic!("an answer counts whatever comes after it");
        };
        assert_eq!(answer.absent, [row("x")]);
        assert_eq!(ask("exec sleep 60", 300), Outcome::Hung(Duration::from_millis(300)));
        let died = |how: &str, said: &str| Outcome::Died { how: how.into(), said: said.into() };
        assert_eq!(ask("echo some >&2; echo words >&2; kill -SEGV $$", 60_000), died("signal SIGSEGV", "words"));
        assert_eq!(ask("echo no answer; exit 3", 60_000), died("exit code 3", ""));
        let gone = Asker { program: dir.path().join("gone"), waits: Waits::LONG }.ask(Backend::Cuda, &|_| {}, &never);
        assert!(matches!(&gone, Outcome::Unasked(why) if why.contains("gone")), "{gone:?}");
    }
}
