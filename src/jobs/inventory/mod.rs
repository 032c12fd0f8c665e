//! What is there, asked in processes of their own: a driver that hangs or crashes takes only the process with it that asked
//! it, and everything else is listed. The process that lists loads no driver.
//!
//! OpenCL's loader loads all drivers at once, so one bad driver takes the others with it. Then each driver is asked alone,
//! and those that answered once more together: devices have the ids and uids that they would have without the bad driver.

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
use crate::device::icd::{self, Apart, Icd};
use crate::device::platform::{self, Platform};
use crate::device::probe::{self, CpuConfig};

/// After this a driver counts as hung. A server with eight cards whose driver is not kept loaded takes more than ten seconds
/// to wake them; nobody should wait much longer for a list.
const LIMIT: Duration = Duration::from_secs(20);
/// After this each of OpenCL's drivers is asked alone while the wait for all of them goes on, so that a hang costs little more
/// than one limit. Healthy drivers answer within a second.
const PATIENCE: Duration = Duration::from_secs(3);

/// How long drivers are waited for.
#[derive(Clone, Copy, Debug)]
pub struct Waits {
    /// After this a driver counts as hung.
    limit: Duration,
    /// After this OpenCL's drivers are asked one by one.
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
    let devices = probe.found.into_iter().map(|f| f.info).collect();
    let answer = Answer { devices, absent: probe.absent, platforms: probe.platforms };
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
    let host = probe::inventory_of(&[Backend::Cpu], env, cpu)?;
    let mut all = of_inventory(host);
    let asker = &Asker { program: program.to_path_buf(), waits };
    let asked = |b: &Backend| backends.contains(b) && !matches!(b, Backend::Cpu | Backend::Sim);
    let backends = Backend::ALL.into_iter().filter(asked);
    std::thread::scope(|scope| {
        let asked: Vec<_> = backends.map(|b| (b, scope.spawn(move || asker.backend(b)))).collect();
        for (backend, thread) in asked {
            all.add(thread.join().unwrap_or_else(|_| {
                let died = Outcome::Unasked("its thread panicked".into());
                Answer::only_absent(vec![died.of_backend(backend)])
            }));
        }
    });
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

    /// The row of one of OpenCL's drivers that gave no answer.
    fn of_driver(&self, icd: &Icd) -> Option<Absence> {
        let library = icd.library.as_deref().unwrap_or_default();
        let (code, why) = self.fault(&format!("the driver's library {}", printable(library)))?;
        let next = "update or remove this driver; every other command loads it too, unless OCL_ICD_VENDORS names a folder \
                    with the other .icd files only";
        Some(icd.absence(code, &why, next))
    }
}

struct Asker {
    program: PathBuf,
    waits: Waits,
}

impl Asker {
    fn backend(&self, backend: Backend) -> Answer {
        if backend == Backend::Opencl {
            return self.opencl(&icd::listing().icds);
        }
        match self.ask(backend, None, &AtomicBool::new(false)) {
            Outcome::Answered(answer) => answer,
            other => Answer::only_absent(vec![other.of_backend(backend)]),
        }
    }

    fn opencl(&self, icds: &[Icd]) -> Answer {
        let stop = AtomicBool::new(false);
        let never = AtomicBool::new(false);
        let (say, heard) = channel();
        let (together, alone) = std::thread::scope(|scope| {
            let all = scope.spawn(|| {
                let outcome = self.ask(Backend::Opencl, None, &never);
                let answered = matches!(outcome, Outcome::Answered(_));
                stop.store(answered, Ordering::Relaxed);
                let _ = say.send(answered);
                outcome
            });
            // With one driver there is nothing to tell apart.
            let settled = icds.len() < 2 || heard.recv_timeout(self.waits.patience).is_ok_and(|answered| answered);
            let alone = if settled { Vec::new() } else { self.each(icds, &stop) };
            (all.join().unwrap_or_else(|_| Outcome::Unasked("its thread panicked".into())), alone)
        });
        match together {
            Outcome::Answered(answer) => answer,
            outcome => match icds {
                [] => Answer::only_absent(vec![outcome.of_backend(Backend::Opencl)]),
                [one] => Answer::only_absent(outcome.of_driver(one).into_iter().collect()),
                several => self.sorted_out(&outcome, several, alone),
            },
        }
    }

    /// Each driver alone, side by side. `None` for those that have no library.
    fn each(&self, icds: &[Icd], stop: &AtomicBool) -> Vec<Option<Outcome>> {
        std::thread::scope(|scope| {
            let one = |icd| scope.spawn(move || self.only(&[icd], stop));
            let asked: Vec<_> = icds.iter().map(|icd| icd.library.is_ok().then(|| one(icd))).collect();
            let done = asked.into_iter().map(|thread| {
                thread.map(|t| t.join().unwrap_or_else(|_| Outcome::Unasked("its thread panicked".into())))
            });
            done.collect()
        })
    }

    /// These drivers only.
    fn only(&self, icds: &[&Icd], stop: &AtomicBool) -> Outcome {
        let apart = match Apart::of(icds) {
            Ok(apart) => apart,
            Err(e) => return Outcome::Unasked(format!("no temporary folder: {e}")),
        };
        let mut outcome = self.ask(Backend::Opencl, Some(apart.path()), stop);
        if let Outcome::Answered(answer) = &mut outcome {
            for row in &mut answer.absent {
                row.what = apart.original(&row.what);
                row.reason = apart.original(&row.reason);
            }
        }
        outcome
    }

    /// What several drivers that gave no answer together give otherwise.
    fn sorted_out(&self, together: &Outcome, icds: &[Icd], alone: Vec<Option<Outcome>>) -> Answer {
        let mut all = Answer::default();
        let mut good = Vec::new();
        let mut answers = Vec::new();
        for (icd, outcome) in icds.iter().zip(alone) {
            match outcome {
                None => all.absent.extend(icd.nameless()),
                Some(Outcome::Answered(answer)) => {
                    good.push(icd);
                    answers.push(answer);
                }
                Some(other) => all.absent.extend(other.of_driver(icd)),
            }
        }
        let rest = if good.len() == icds.len() {
            together.clone()
        } else if let [only] = &mut answers[..] {
            Outcome::Answered(std::mem::take(only))
        } else if good.is_empty() {
            Outcome::Answered(Answer::default())
        } else {
            self.only(&good, &AtomicBool::new(false))
        };
        match rest {
            Outcome::Answered(answer) => all.add(answer),
            other => {
                if let Some((code, why)) = other.fault("the drivers") {
                    all.absent.push(Absence {
                        backend: Backend::Opencl,
                        what: Backend::Opencl.name().into(),
                        reason: format!("{}: each driver answers alone, but together {why}", code.name()),
                        next: "OCL_ICD_VENDORS=FOLDER with some of the .icd files keeps every command to those".into(),
                    });
                }
                all.add(joined(answers));
            }
        }
        all
    }

    /// Asks a backend in a process of its own; of OpenCL's drivers those in a folder, if one is given.
    fn ask(&self, backend: Backend, vendors: Option<&Path>, stop: &AtomicBool) -> Outcome {
        let mut command = Command::new(&self.program);
        command.args(["probe-worker", "--backend", backend.name()]);
        // In our process group: Ctrl-C at the terminal ends it, too.
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        if let Some(folder) = vendors {
            command.env("OCL_ICD_VENDORS", folder);
            command.env_remove("OPENCL_VENDOR_PATH").env_remove("OCL_ICD_FILENAMES");
        }
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

/// Answers of drivers that were asked alone, numbered as if they had been asked together. Devices that cannot be used have
/// an id, too.
fn joined(answers: Vec<Answer>) -> Answer {
    let mut all = Answer::default();
    // Each platform with the answer that has it and the number of its first device there.
    let mut from: Vec<(usize, usize)> = Vec::new();
    for (i, answer) in answers.iter().enumerate() {
        let mut first = 0;
        for one in &answer.platforms {
            if !all.platforms.iter().any(|known| platform::same_driver(known, one)) {
                all.platforms.push(one.clone());
                from.push((i, first));
            }
            first += one.devices.len();
        }
    }
    let places = platform::places(&all.platforms);
    // The new number and uid of a device; nothing if the platform is that of an earlier answer.
    let place = |answer: usize, number: usize| {
        places.iter().find_map(|place| {
            let (of, first) = from[place.platform];
            let index = number.checked_sub(first).filter(|_| of == answer)?;
            place.uids.get(index).map(|uid| (place.first + index, uid.clone()))
        })
    };
    let mut devices = Vec::new();
    let mut numbered = Vec::new();
    let mut others = Vec::new();
    for (i, answer) in answers.into_iter().enumerate() {
        for device in answer.devices {
            let number = numbered_as(&device.id).map_or(0, |(number, _)| number);
            if let Some((number, uid)) = place(i, number) {
                devices.push((number, DeviceInfo { id: format!("opencl:{number}"), uid, ..device }));
            }
        }
        for row in answer.absent {
            let Some((old, name)) = numbered_as(&row.what) else {
                // A platform without devices is nameless but for its row: not twice either.
                if !others.contains(&row) {
                    others.push(row);
                }
                continue;
            };
            if let Some((number, _)) = place(i, old) {
                numbered.push((number, Absence { what: format!("opencl:{number}{name}"), ..row }));
            }
        }
    }
    devices.sort_by_key(|(number, _)| *number);
    numbered.sort_by_key(|(number, _)| *number);
    all.devices = devices.into_iter().map(|(_, device)| device).collect();
    all.absent = numbered.into_iter().map(|(_, row)| row).chain(others).collect();
    all.platforms = places.iter().map(|p| all.platforms[p.platform].clone()).collect();
    all
}

/// The number of `opencl:2 Some Card`, and what comes after it.
fn numbered_as(text: &str) -> Option<(usize, &str)> {
    let rest = text.strip_prefix("opencl:")?;
    let digits = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
    Some((rest[..digits].parse().ok()?, &rest[digits..]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::icd::Named;

    fn device(id: &str) -> DeviceInfo {
        DeviceInfo { id: id.into(), backend: Backend::Opencl, ..DeviceInfo::ordinary_gpu() }
    }

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

    fn platform(name: &str, devices: usize) -> Platform {
        let seen = platform::Seen { name: "a card".into(), driver: "1".into(), hardware: None };
        let file = Some(format!("/lib{name}.so"));
        Platform { name: name.into(), devices: vec![seen; devices], file, ..Platform::default() }
    }

    /// Drivers that were asked alone have the ids and uids of a loader that asks all of them, whatever their order.
    #[test]
    fn drivers_that_were_asked_alone_are_numbered_as_together() {
        let two = Answer {
            devices: vec![device("opencl:0")],
            absent: vec![row("opencl:1 Old"), row("/b.icd")],
            platforms: vec![platform("B", 2)],
        };
        let none = Answer::only_absent(vec![row("/a.icd")]);
        let first = Answer { devices: vec![device("opencl:0")], absent: vec![], platforms: vec![platform("A", 1)] };
        let last = Answer {
            devices: vec![device("opencl:0"), device("opencl:2")],
            absent: vec![row("opencl:1 Old"), row("opencl:3 Old")],
            platforms: vec![platform("B", 1), platform("C", 3)],
        };
        for answers in
            [[&two, &none, &first, &last, &two], [&last, &first, &two, &two, &none], [&none, &two, &last, &two, &first]]
        {
            // The last answer has a platform of B's name from another file.
            let mut answers = answers.map(Clone::clone);
            for answer in &mut answers {
                if let [b, _] = &mut answer.platforms[..] {
                    b.file = Some("/copy/libB.so".into());
                }
            }
            let all = joined(answers.to_vec());
            let ids: Vec<_> = all.devices.iter().map(|d| format!("{} {}", d.id, d.uid)).collect();
            assert_eq!(
                ids,
                ["opencl:0 opencl/a/0", "opencl:1 opencl/b/1/0", "opencl:2 opencl/b/1/2/0", "opencl:5 opencl/c/1"]
            );
            let mut rows: Vec<_> = all.absent.iter().map(|a| a.what.as_str()).collect();
            rows[3..].sort_unstable();
            assert_eq!(rows, ["opencl:3 Old", "opencl:4 Old", "opencl:6 Old", "/a.icd", "/b.icd"]);
            let names: Vec<_> = all.platforms.iter().map(|p| p.name.as_str()).collect();
            assert_eq!(names, ["A", "B", "B", "C"]);
        }
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
                None,
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
        let gone = Asker { program: dir.path().join("gone"), waits: Waits::LONG }.ask(Backend::Cuda, None, &never);
        assert!(matches!(&gone, Outcome::Unasked(why) if why.contains("gone")), "{gone:?}");
    }
}
