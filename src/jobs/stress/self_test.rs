//! The detectors of a soak detected: plants faults, and asks for each whether it ends in its verdict and exit code.
//!
//! As much of the real thing as seconds allow: workers do scenarios on the CPU with a fault planted, in threads and where the
//! fault kills in a process; the supervisor listens to workers that say what hours would have shown; the rest goes to the judge
//! alone. Each row says which. Sound runs must pass, or a finding means nothing.

use std::io::{BufRead, BufReader, PipeReader, PipeWriter, Write};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

use crate::base::record::{Record, SelfTestRecord};
use crate::base::sink::{Cancel, Collect, Progress, Sink};
use crate::base::{Code, Env, Error, Result};

use super::StressConfig;
use super::faults::{By, CARDS, ROWS, Row};
use super::run::run;
use super::supervisor::{Child, Exit, Spawn};
use super::verdict::{Limits, Verdict, judge};
use super::worker::{Line, Task, run_task};

/// How the self-test is done.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct SelfTestConfig {
    /// The limits that are tested; other than the default ones in the tests of this test.
    pub limits: Limits,
    /// Only the rows with this verdict; `None`: all.
    pub only: Option<Verdict>,
    /// Leave out the rows with real workers, which take most of the time.
    pub without_workers: bool,
}

/// What came of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SelfTestSummary {
    /// Faults that ended in their verdict and exit code.
    pub caught: u64,
    /// Sound runs that passed.
    pub passed: u64,
    /// Faults that ended otherwise, and sound runs that did not pass.
    pub wrong: u64,
    /// True if it was interrupted.
    pub cancelled: bool,
}

impl SelfTestSummary {
    /// 0: every fault found and every sound run passed; 1: not so; 4: interrupted, or nothing planted.
    pub fn exit_code(&self) -> u8 {
        match self {
            s if s.wrong > 0 => 1,
            s if s.cancelled || s.caught == 0 => 4,
            _ => 0,
        }
    }
}

/// Rows that run at once: most of their time is waiting.
const LANES: usize = 4;
/// Seconds of a phase with a real worker.
const SECONDS: f64 = 0.8;

/// Of phases in which three of them share the machine.
const NODE_SECONDS: f64 = 2.0;

/// How much longer each further try of a row with a real worker is that had too little time, and how many there are.
const LONGER: f64 = 4.0;
const TRIES: i32 = 4;

/// Plants every fault and hands out one record each, in order. `processes` starts workers for the faults that kill.
///
/// Errors: those of starting workers; a fault that is missed is no error but in the summary.
pub fn self_test(
    cfg: &SelfTestConfig,
    processes: &(dyn Spawn + Sync),
    sink: &mut dyn Sink,
    cancel: &Cancel,
) -> Result<SelfTestSummary> {
    let wanted = |r: &&Row| cfg.only.is_none_or(|v| v == r.want) && !(cfg.without_workers && r.by.works());
    let rows: Vec<&Row> = ROWS.iter().filter(wanted).collect();
    let (next, done) = (AtomicUsize::new(0), Mutex::new((0..rows.len()).map(|_| None).collect::<Vec<_>>()));
    let locked = || done.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let mut summary = SelfTestSummary::default();
    std::thread::scope(|scope| -> Result<()> {
        let lane = || {
            loop {
                let at = next.fetch_add(1, Ordering::SeqCst);
                let Some(row) = rows.get(at).filter(|_| !cancel.raised()) else { return };
                let record = tried(row, cfg, processes);
                if let Some(slot) = locked().get_mut(at) {
                    *slot = Some(record);
                }
            }
        };
        let lanes: Vec<_> = (0..LANES).map(|_| scope.spawn(lane)).collect();
        for (at, row) in rows.iter().enumerate() {
            let total = Some(rows.len() as u64);
            sink.progress(&Progress { doing: row.name.into(), done: at as u64, total });
            let record = loop {
                if let Some(record) = locked().get_mut(at).and_then(Option::take) {
                    break record?;
                }
                // A lane that panicked, or all of them after an interruption, leave a row behind.
                if lanes.iter().all(|l| l.is_finished()) && locked().get(at).is_none_or(Option::is_none) {
                    summary.cancelled = cancel.raised();
                    let code = if summary.cancelled { return Ok(()) } else { Code::Internal };
                    return Err(Error::new(code, format!("the row '{}' came to no end", row.name)));
                }
                std::thread::sleep(std::time::Duration::from_millis(2));
            };
            match record.outcome.as_str() {
                "caught" => summary.caught += 1,
                "passed" => summary.passed += 1,
                _ => summary.wrong += 1,
            }
            sink.record(&Record::SelfTest(Box::new(record)));
        }
        Ok(())
    })?;
    Ok(summary)
}

/// One line of a record: `caught  corruption (exit 1)  worker: soak --inject nan  NaN in the output`.
pub fn self_test_line(r: &SelfTestRecord) -> String {
    let got = r.detectors.join(", ");
    let ok = r.outcome == "caught" || r.outcome == "passed";
    let end = if ok { format!("{got:<22}") } else { format!("{got}, expected {}", r.expected) };
    let detail = if ok || r.detail.is_empty() { String::new() } else { format!("  ({})", r.detail) };
    format!(
        "{:<7} {end} {}  [{}]{detail}",
        if ok { r.outcome.clone() } else { r.outcome.to_uppercase() },
        r.fault,
        r.case
    )
}

fn tried(row: &Row, cfg: &SelfTestConfig, processes: &(dyn Spawn + Sync)) -> Result<SelfTestRecord> {
    let mut tries = 0;
    let (verdict, exit, why) = loop {
        let (verdict, exit, why) = outcome(row, &cfg.limits, processes, LONGER.powi(tries))?;
        tries += 1;
        // On a busy machine a fault may not have come up, or too little work was done. More time changes no other verdict.
        let short = verdict == Verdict::Inconclusive && row.want != Verdict::Inconclusive;
        if !(row.by.works() && short) || tries == TRIES {
            break (verdict, exit, why);
        }
    };
    let right = (verdict, exit) == (row.want, row.exit);
    let sound = row.want == Verdict::Pass;
    let outcome = match (right, sound) {
        (true, false) => "caught",
        (true, true) => "passed",
        (false, false) => "missed",
        (false, true) => "alarm",
    };
    let words = |v: Verdict, code: u8| format!("{} (exit {code})", v.name());
    Ok(SelfTestRecord {
        fault: row.name.into(),
        case: row.by.words(),
        device: match row.by {
            By::Evidence(_) | By::Run(_) => String::new(),
            By::Node { .. } => CARDS.into(),
            _ => "cpu".into(),
        },
        expected: words(row.want, row.exit),
        outcome: outcome.into(),
        detectors: vec![words(verdict, exit)],
        detail: why,
    })
}

/// Verdict, exit code and reason. Real workers get so many times the usual seconds.
fn outcome(row: &Row, limits: &Limits, processes: &(dyn Spawn + Sync), times: f64) -> Result<(Verdict, u8, String)> {
    let base = StressConfig {
        device: Some("cpu".into()),
        threads: 8,
        limits: *limits,
        below_floor: true,
        ..StressConfig::default()
    };
    let stop = Cancel::new();
    let soak = |cfg: &StressConfig, spawn: &dyn Spawn| -> Result<(Verdict, u8, String)> {
        let summary = run(cfg, spawn, &mut Collect::default(), &stop)?;
        let why = summary.records.iter().map(|r| r.reason.clone()).chain(summary.findings);
        let why = why.filter(|w| !w.is_empty()).collect::<Vec<_>>().join("; ");
        Ok((summary.verdict, summary.exit_code, why))
    };
    let phase = |scenario: &str, inject: Option<&str>, seconds: f64, heartbeat: f64| StressConfig {
        scenarios: vec![scenario.into()],
        seconds,
        inject: inject.map(str::to_string),
        heartbeat: Some(heartbeat),
        ..base.clone()
    };
    match &row.by {
        By::Worker { scenario, inject, heartbeat } => {
            // One cycle under many threads on a loaded machine takes its time.
            let seconds = if *heartbeat < 1.0 { 0.4 } else { SECONDS };
            soak(&phase(scenario, *inject, times * seconds, *heartbeat), &Threads)
        }
        By::Node { scenario, inject } => {
            let cfg =
                StressConfig { device: Some(CARDS.into()), ..phase(scenario, *inject, times * NODE_SECONDS, 30.0) };
            soak(&cfg, &Threads)
        }
        By::Process { scenario, inject } => soak(&phase(scenario, Some(inject), times * 0.4, 30.0), processes),
        By::Script { says, exit, seconds, interrupt } => {
            let interrupt = interrupt.then(|| stop.clone());
            let script = Scripted { says: *says, exit: *exit, interrupt, started: AtomicU32::new(0) };
            // Silence is waited for; whoever speaks does so at once.
            let heartbeat = if exit.is_none() { 0.3 } else { 30.0 };
            soak(&phase("soak", None, *seconds, heartbeat), &script)
        }
        By::Evidence(of) => {
            let (verdict, why) = judge(&of()?, limits);
            Ok((verdict, verdict.exit_code(), why))
        }
        By::Run(of) => {
            let verdict = of(limits);
            Ok((verdict, verdict.exit_code(), String::new()))
        }
    }
}

/// Workers as threads of this process, on the CPU and simulated devices alone.
#[derive(Clone, Copy, Debug)]
pub struct Threads;

struct Thread {
    output: Option<PipeReader>,
    stop: Cancel,
    handle: std::thread::JoinHandle<Result<()>>,
    killed: bool,
}

fn pipe() -> Result<(PipeReader, PipeWriter)> {
    std::io::pipe().map_err(|e| Error::new(Code::Io, "no pipe to a worker").caused_by(e))
}

fn lines(output: &mut Option<PipeReader>) -> Option<Box<dyn BufRead + Send>> {
    output.take().map(|r| Box::new(BufReader::new(r)) as Box<dyn BufRead + Send>)
}

impl Spawn for Threads {
    fn spawn(&self, task: &str) -> Result<Box<dyn Child>> {
        let (reader, mut writer) = pipe()?;
        let (task, stop) = (task.to_string(), Cancel::new());
        let flag = stop.clone();
        let env = Env { disable_gpu: true, ..Env::default() };
        let handle = std::thread::spawn(move || run_task(&task, &mut writer, &env, flag));
        Ok(Box::new(Thread { output: Some(reader), stop, handle, killed: false }))
    }
}

impl Child for Thread {
    fn output(&mut self) -> Option<Box<dyn BufRead + Send>> {
        lines(&mut self.output)
    }
    fn stop(&mut self) {
        self.stop.raise();
    }
    fn kill(&mut self) {
        // A thread cannot be killed: it ends when its waits do, and nobody listens any more.
        self.stop.raise();
        self.killed = true;
    }
    fn ended(&mut self) -> Option<Exit> {
        (self.killed || self.handle.is_finished()).then_some(Exit { code: Some(0), signal: None })
    }
    fn errors(&self) -> String {
        String::new()
    }
}

/// Workers that say what they are told to, and then end, or fall silent for ever.
struct Scripted {
    says: fn(u32) -> Vec<Line>,
    exit: Option<Exit>,
    interrupt: Option<Cancel>,
    started: AtomicU32,
}

struct Speaker {
    output: Option<PipeReader>,
    /// Kept open by whoever falls silent.
    open: Option<PipeWriter>,
    exit: Option<Exit>,
}

impl Spawn for Scripted {
    fn spawn(&self, task: &str) -> Result<Box<dyn Child>> {
        let read: Task = serde_json::from_str(task)
            .map_err(|e| Error::new(Code::Internal, "the supervisor's task is not valid").caused_by(e))?;
        if read.phase.is_none() {
            return Threads.spawn(task);
        }
        self.interrupt.iter().for_each(Cancel::raise);
        let said = (self.says)(self.started.fetch_add(1, Ordering::SeqCst));
        let (reader, mut writer) = pipe()?;
        let exit = self.exit;
        let open = if exit.is_none() {
            Some(writer)
        } else {
            // More than a pipe holds: somebody must write while the supervisor reads.
            std::thread::spawn(move || {
                for line in &said {
                    let Ok(text) = serde_json::to_string(line) else { return };
                    if writeln!(writer, "{text}").is_err() {
                        return;
                    }
                }
                // Cut off, as by a crash: it must not count.
                let _ = write!(writer, "{{\"say\":\"find");
            });
            None
        };
        Ok(Box::new(Speaker { output: Some(reader), open, exit }))
    }
}

impl Child for Speaker {
    fn output(&mut self) -> Option<Box<dyn BufRead + Send>> {
        lines(&mut self.output)
    }
    fn stop(&mut self) {}
    fn kill(&mut self) {
        self.open = None;
        self.exit = Some(Exit { code: None, signal: Some(9) });
    }
    fn ended(&mut self) -> Option<Exit> {
        self.exit
    }
    fn errors(&self) -> String {
        String::new()
    }
}

#[cfg(all(test, feature = "opencl"))]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::base::Env;
    use crate::device::cpu::Pin;
    use crate::device::opencl::leak;
    use crate::device::probe::{CpuConfig, Select, open};
    use crate::device::{Device, LedgerState};
    use crate::engine::KernelCache;
    use crate::jobs::stress::{Evidence, Phase, run_phase};

    /// What the judge says of a phase on this device, and what was left of events.
    fn judged(device: Arc<dyn Device>) -> (Verdict, String, u64) {
        let phase = Phase {
            scenario: "alloc-cycle".into(),
            seconds: 1.5,
            threads: 1,
            heartbeat: 60.0,
            seed: 1,
            ..Phase::default()
        };
        let mut out = Vec::new();
        run_phase(device, &phase, KernelCache::off(), &mut out, Cancel::new()).unwrap();
        let mut e = Evidence { planned_seconds: 0.1, planned: 1, ..Evidence::default() };
        for line in String::from_utf8(out).unwrap().lines() {
            match serde_json::from_str(line).unwrap() {
                Line::Sample { sample, .. } => e.series.push(sample),
                Line::Finished { counts, tested, ledger, .. } => {
                    (e.done, e.bytes_planned, e.bytes_checked) = (counts.done, counts.bytes_made, counts.bytes_checked);
                    (e.mismatches, e.errors, e.seconds) = (counts.mismatches, counts.errors, tested);
                    e.ledger = Some(ledger);
                }
                _ => {}
            }
        }
        let (before, after): (LedgerState, LedgerState) = e.ledger.unwrap();
        let (verdict, why) = judge(&e, &Limits::default());
        (verdict, why, after.events - before.events)
    }

    /// A real leak of a real driver's objects: the event of every thousandth command is not released. Found, by its kind.
    #[test]
    fn unreleased_events_of_opencl_are_found_by_their_kind() {
        let env = Env::read().unwrap();
        let cpu = CpuConfig { threads: 1, pin: Pin::Free };
        let opened = || open(&Select::parse("opencl:0").unwrap(), &env, cpu).map(|rig| rig.devices[0].clone());
        let device = match opened() {
            Ok(device) => device,
            Err(e) => {
                assert!(!env.require.iter().any(|b| b == "opencl"), "{e}");
                return;
            }
        };
        assert_eq!(judged(Arc::clone(&device)).0, Verdict::Pass, "without the leak it passes");
        leak::OF.store(device.serial(), Ordering::SeqCst);
        let (verdict, why, events) = judged(device);
        leak::OF.store(0, Ordering::SeqCst);
        assert_eq!(verdict, Verdict::Leak, "{why}");
        assert!(events > 0 && why.contains(&format!("{events} events")), "{events}: {why}");
    }
}
