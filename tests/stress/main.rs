//! The soak: detectors against synthetic evidence and planted faults, scenarios on the CPU, the binary as a whole.

#![allow(clippy::print_stderr, reason = "skips are named")]

#[cfg(feature = "cli")]
mod binary;
#[cfg(all(feature = "cli", unix))]
mod killed;
mod node;
mod resume;

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use gpuctl::base::record::StressSample;
use gpuctl::base::rng::Philox;
use gpuctl::base::sink::Collect;
use gpuctl::base::{Cancel, Code, DeviceInfo, Env, Record, Result};
use gpuctl::device::LedgerState;
use gpuctl::jobs::stress::journal::{self, Entry};
use gpuctl::jobs::stress::scenario::SCENARIOS;
use gpuctl::jobs::stress::verdict::{degradation, drift, never_returns, unsettled};
use gpuctl::jobs::stress::{
    Child, Evidence, Exit, Limits, Line, Spawn, StressConfig, StressSummary, Task, Verdict, judge, run, run_task,
};

const MIB: f64 = 1024.0 * 1024.0;

// ---- verdicts -------------------------------------------------------------------------------------------------------

/// Two hours of one sample each 15 s: `base` plus a slope per minute, a step at half time, normal noise.
fn two_hours(seed: u64, per_minute: f64, step: f64, noise: f64) -> Vec<(f64, f64)> {
    let rng = Philox::new(seed);
    (0..480u64)
        .map(|i| {
            let minutes = i as f64 / 4.0;
            let stepped = if i >= 240 { step } else { 0.0 };
            (minutes * 60.0, 500.0 * MIB + per_minute * minutes + stepped + noise * rng.normal(0, i))
        })
        .collect()
}

#[test]
fn a_slow_leak_is_found_under_noise_and_beside_a_step() {
    let limits = Limits::default();
    for seed in 0..50 {
        for step in [0.0, 200.0 * MIB] {
            let d = drift(&two_hours(seed, MIB, step, 20.0 * MIB), limits.rss_floor_bytes, &limits);
            assert!(d.is_some_and(|d| d.growth > 60.0 * MIB), "seed {seed}, step {step}: {d:?}");
        }
    }
}

#[test]
fn flat_noise_is_not_called_a_leak() {
    let limits = Limits::default();
    let alarms = |noise: f64, keep: usize| {
        let run = |seed| drift(&two_hours(seed, 0.0, 0.0, noise)[..keep], limits.rss_floor_bytes, &limits).is_some();
        (0..1000).filter(|seed| run(*seed)).count()
    };
    for (noise, keep) in [(20.0 * MIB, 480), (20.0 * MIB, 60), (5.0 * MIB, 24)] {
        let n = alarms(noise, keep);
        assert!(n <= 10, "{n} of 1000 with noise of {} MiB over {keep} samples", noise / MIB);
    }
    // One step is growth, but none that goes on.
    let steps =
        (0..200).filter(|s| drift(&two_hours(*s, 0.0, 200.0 * MIB, MIB), 15.0 * MIB, &limits).is_some()).count();
    assert!(steps <= 2, "{steps} of 200 single steps");
}

#[test]
fn a_ledger_that_never_returns_is_a_leak_of_any_size() {
    let limits = Limits::default();
    let points = |f: fn(u64) -> u64| (0..40).map(|i| (i as f64, f(i) as f64)).collect::<Vec<_>>();
    assert_eq!(never_returns(&points(|i| 5 + i / 10), &limits), Some(2.0));
    assert_eq!(never_returns(&points(|_| 7), &limits), None);
    assert_eq!(never_returns(&points(|i| i % 10), &limits), None, "it comes back");
    assert_eq!(never_returns(&points(|i| i.min(3)), &limits), None, "warm-up is no leak");
    assert_eq!(never_returns(&points(|i| 5 + i / 25), &limits), None, "one step is something made late");
    assert_eq!(never_returns(&[], &limits), None);
}

#[test]
fn throughput_that_falls_is_found_and_noise_is_not() {
    let limits = Limits::default();
    let rates = |seed: u64, fall: f64| -> Vec<f64> {
        let rng = Philox::new(seed);
        (0..120).map(|i| 1000.0 * (1.0 - fall * i as f64 / 119.0) * (0.05 * rng.normal(0, i)).exp()).collect()
    };
    for seed in 0..100 {
        assert!(degradation(&rates(seed, 0.5), limits.decay, &limits).is_some_and(|d| d > 0.2), "seed {seed}");
    }
    let alarms = (0..1000).filter(|s| degradation(&rates(*s, 0.0), limits.decay, &limits).is_some()).count();
    assert!(alarms <= 10, "{alarms} of 1000");
    assert_eq!(degradation(&[1.0, 0.1], limits.decay, &limits), None);
}

/// A phase that deserves its pass.
fn sound() -> Evidence {
    let sample = |i: u64| StressSample { t: i as f64, rate: 100.0, ..StressSample::default() };
    Evidence {
        series: (0..40).map(sample).collect(),
        seconds: 40.0,
        planned_seconds: 40.0,
        planned: 100,
        done: 4000,
        bytes_planned: 1 << 20,
        bytes_checked: 1 << 20,
        ledger: Some((LedgerState::default(), LedgerState::default())),
        ..Evidence::default()
    }
}

#[test]
fn only_proven_work_passes() {
    let limits = Limits::default();
    assert_eq!(judge(&sound(), &limits).0, Verdict::Pass);
    let left = LedgerState { buffers: 1, bytes: 16, ..LedgerState::default() };
    let cases: [(&str, Evidence, Verdict); 14] = [
        ("a fault of the card", Evidence { card: Some("it was lost".into()), ..sound() }, Verdict::Error),
        ("nothing at all", Evidence::default(), Verdict::Inconclusive),
        ("no work", Evidence { done: 0, ..sound() }, Verdict::Inconclusive),
        ("nothing checked", Evidence { bytes_checked: 0, ..sound() }, Verdict::Inconclusive),
        ("a tenth unchecked", Evidence { bytes_checked: 900_000, ..sound() }, Verdict::Inconclusive),
        ("below the floor", Evidence { done: 99, ..sound() }, Verdict::Inconclusive),
        ("a third of the time", Evidence { seconds: 13.0, ..sound() }, Verdict::Inconclusive),
        ("no samples", Evidence { series: Vec::new(), ..sound() }, Verdict::Inconclusive),
        ("no account", Evidence { ledger: None, ..sound() }, Verdict::Inconclusive),
        ("interrupted", Evidence { interrupted: true, ..sound() }, Verdict::Inconclusive),
        ("one wrong result", Evidence { mismatches: 1, ..sound() }, Verdict::Corruption),
        ("one error", Evidence { errors: 1, ..sound() }, Verdict::Error),
        ("one buffer left", Evidence { ledger: Some((LedgerState::default(), left)), ..sound() }, Verdict::Leak),
        ("all at once", Evidence { mismatches: 1, errors: 1, crash: Some("x".into()), ..sound() }, Verdict::Corruption),
    ];
    for (what, evidence, verdict) in cases {
        let (got, why) = judge(&evidence, &limits);
        assert_eq!(got, verdict, "{what}: {why}");
        assert_ne!(got.exit_code(), 0, "{what}");
    }
}

/// What settles is no leak of descriptors, threads or the card's memory either, and the record says what that hides.
#[test]
fn growth_that_settles_is_told_of_each_kind() {
    type Grow = fn(&mut StressSample, u64);
    let limits = Limits::default();
    // Two hours; n is the logarithm of time, or time.
    let made = |grow: Grow, of: fn(f64) -> f64| -> Vec<StressSample> {
        let one = |i: u64| {
            let mut sample = StressSample { t: 15.0 * i as f64, rate: 100.0, ..StressSample::default() };
            grow(&mut sample, of(i as f64) as u64);
            sample
        };
        (1..=480).map(one).collect()
    };
    let kinds: [(&str, Grow); 5] = [
        ("resident memory", |s, n| s.rss_bytes = Some(n << 20)),
        ("open file descriptors", |s, n| s.fds = Some(n)),
        ("threads", |s, n| s.threads = Some(n)),
        ("memory on the card", |s, n| s.device_own_bytes = Some(n << 20)),
        ("memory on the card", |s, n| s.device_used_bytes = Some(n << 20)),
    ];
    for (what, grow) in kinds {
        let settling = made(grow, |i| 60.0 * i.ln());
        let hidden = unsettled(&settling, &limits);
        assert!(hidden.len() == 1 && hidden[0].starts_with(&format!("leaks of {what} below ")), "{what}: {hidden:?}");
        assert_eq!(judge(&Evidence { series: settling, ..sound() }, &limits).0, Verdict::Pass, "{what}");
        let lasting = made(grow, |i| i);
        assert_eq!(unsettled(&lasting, &limits), Vec::<String>::new(), "{what}");
        assert_ne!(judge(&Evidence { series: lasting, ..sound() }, &limits).0, Verdict::Pass, "{what}");
        assert_eq!(unsettled(&made(grow, |_| 100.0), &limits), Vec::<String>::new(), "{what}");
    }
}

// ---- the supervisor with workers in threads -------------------------------------------------------------------------

/// Workers as threads of the test.
pub(crate) struct Threads;

pub(crate) struct ThreadChild {
    output: Option<std::io::PipeReader>,
    stop: Cancel,
    handle: std::thread::JoinHandle<Result<()>>,
    killed: bool,
}

impl Spawn for Threads {
    fn spawn(&self, task: &str) -> Result<Box<dyn Child>> {
        let (reader, mut writer) = std::io::pipe().unwrap();
        let (task, stop) = (task.to_string(), Cancel::new());
        let flag = stop.clone();
        let env = Env { disable_gpu: true, ..Env::default() };
        let handle = std::thread::spawn(move || run_task(&task, &mut writer, &env, flag));
        Ok(Box::new(ThreadChild { output: Some(reader), stop, handle, killed: false }))
    }
}

impl Child for ThreadChild {
    fn output(&mut self) -> Option<Box<dyn BufRead + Send>> {
        self.output.take().map(|r| Box::new(BufReader::new(r)) as Box<dyn BufRead + Send>)
    }
    fn stop(&mut self) {
        self.stop.raise();
    }
    fn kill(&mut self) {
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

pub(crate) fn config(scenarios: &[&str], seconds: f64) -> StressConfig {
    StressConfig {
        seconds,
        scenarios: scenarios.iter().map(|s| s.to_string()).collect(),
        device: Some("cpu".into()),
        heartbeat: Some(20.0),
        ..StressConfig::default()
    }
}

pub(crate) fn soak(cfg: &StressConfig) -> (StressSummary, Collect) {
    let mut sink = Collect::default();
    let summary = run(cfg, &Threads, &mut sink, &Cancel::new()).unwrap();
    (summary, sink)
}

#[test]
fn every_scenario_works_checks_and_gives_everything_back() {
    let (summary, sink) = soak(&config(&["soak", "alloc-cycle", "concurrent"], 6.0));
    assert_eq!(summary.records.len(), 3);
    // And one of the whole run.
    assert_eq!(sink.records.len(), 4);
    for r in &summary.records {
        assert_eq!(r.verdict, "pass", "{}: {} {:?}", r.scenario, r.reason, r.findings);
        assert!(r.done >= r.planned && r.planned > 0 && r.bytes_checked > 0, "{r:?}");
        assert_eq!((r.mismatches, r.errors, r.restarts), (0, 0, 0));
        assert_eq!(r.bytes_checked, r.bytes_planned);
        assert!(r.series.len() >= 10, "{}: {} samples", r.scenario, r.series.len());
        assert!(r.series.iter().any(|s| s.p50_s.is_some_and(|p| p > 0.0)));
        assert!(r.rerun.starts_with("gpuctl stress --seconds 2 --scenario"), "{}", r.rerun);
    }
    let count = |i: usize, name: &str| summary.records[i].counters.get(name).copied().unwrap_or(0);
    assert!(count(0, "cases") > 50, "the mix spans the table: {}", count(0, "cases"));
    assert!(count(1, "distinct_sizes") > 100);
    assert!(count(2, "threads") >= 8 && count(2, "cases") > 20);
    assert_eq!((summary.verdict, summary.exit_code), (Verdict::Pass, 0));
    assert!(summary.tested_seconds > 3.0);
    let line = summary.line();
    let of = format!("pass (3 of {}): 3 of 3 phases passed, ", SCENARIOS.len());
    assert!(line.contains(&of) && line.contains(" of 6.0 s tested") && line.contains("not tested: "), "{line}");
    let Some(Record::StressRun(whole)) = sink.records.last() else { panic!("{:?}", sink.records.last()) };
    assert_eq!((whole.line.as_str(), whole.scenarios_passed, whole.exit_code), (line.as_str(), 3, 0));
    assert_eq!((whole.devices.len(), whole.devices[0].verdict.as_str(), whole.devices[0].passed), (1, "pass", 3));
}

#[test]
fn planted_device_faults_get_their_verdict() {
    for (scenario, fault, verdict) in [
        ("soak", "leak", Verdict::Leak),
        ("alloc-cycle", "leak", Verdict::Leak),
        ("concurrent", "leak", Verdict::Leak),
        ("soak", "bitflip", Verdict::Corruption),
        ("alloc-cycle", "bitflip", Verdict::Corruption),
        ("concurrent", "bitflip", Verdict::Corruption),
        ("soak", "bitflip@nth=1000", Verdict::Corruption),
        ("soak", "nan", Verdict::Corruption),
        ("alloc-cycle", "alloc", Verdict::Error),
        ("soak", "lost", Verdict::Error),
        ("soak", "zero", Verdict::Inconclusive),
        ("alloc-cycle", "zero", Verdict::Inconclusive),
        ("concurrent", "zero", Verdict::Inconclusive),
    ] {
        let cfg = StressConfig { inject: Some(fault.into()), ..config(&[scenario], 1.5) };
        let (summary, _) = soak(&cfg);
        let r = &summary.records[0];
        assert_eq!(summary.verdict, verdict, "{scenario} with {fault}: {} {:?}", r.reason, r.findings);
        assert_eq!(summary.exit_code, if fault == "zero" { 4 } else { 1 });
        assert!(r.rerun.ends_with(&format!("--inject {fault}")), "{}", r.rerun);
    }
}

#[test]
fn a_wrong_result_is_named() {
    let cfg = StressConfig {
        inject: Some("bitflip@nth=900".into()),
        fail_early: true,
        ..config(&["soak", "alloc-cycle"], 4.0)
    };
    let (summary, _) = soak(&cfg);
    let r = &summary.records[0];
    assert_eq!(summary.verdict, Verdict::Corruption);
    // The case's name reruns with `gpuctl verify --case`; the element and both values or the byte are there.
    assert!(r.reason.contains('/') && (r.reason.contains("element") || r.reason.contains("byte")), "{}", r.reason);
    assert_eq!(summary.records.len(), 1, "--fail-early leaves the second scenario out");
    assert!(summary.not_tested.iter().any(|n| n.contains("alloc-cycle")), "{:?}", summary.not_tested);
}

#[test]
fn a_hang_ends_within_the_timeout() {
    for scenario in ["soak", "concurrent", "alloc-cycle"] {
        let mut cfg = StressConfig { inject: Some("hang@nth=10".into()), ..config(&[scenario], 0.5) };
        cfg.heartbeat = Some(2.0);
        let start = Instant::now();
        let (summary, _) = soak(&cfg);
        assert_eq!(
            (summary.verdict, summary.exit_code),
            (Verdict::Hang, 1),
            "{scenario}: {:?}",
            summary.records[0].reason
        );
        assert!(summary.records[0].reason.contains("no progress for 2."), "{}", summary.records[0].reason);
        // Far above timeout + 2 s, for loaded machines; the bound itself is in the reason above.
        assert!(start.elapsed() < Duration::from_secs(60));
    }
}

/// Workers that say what a script says and then end, or stay silent for ever.
pub(crate) struct Script {
    lines: Vec<Line>,
    exit: Option<Exit>,
    started: Arc<Mutex<u32>>,
}

pub(crate) struct ScriptChild {
    pub(crate) output: Option<std::io::PipeReader>,
    pub(crate) open: Option<std::io::PipeWriter>,
    pub(crate) exit: Option<Exit>,
}

impl Spawn for Script {
    fn spawn(&self, task: &str) -> Result<Box<dyn Child>> {
        let task: Task = serde_json::from_str(task).unwrap();
        if task.phase.is_none() {
            return Threads.spawn(&serde_json::to_string(&task).unwrap());
        }
        *self.started.lock().unwrap() += 1;
        let (reader, mut writer) = std::io::pipe().unwrap();
        for line in &self.lines {
            writeln!(writer, "{}", serde_json::to_string(line).unwrap()).unwrap();
        }
        write!(writer, "a line that was cut off").unwrap();
        let open = self.exit.is_none().then_some(writer);
        Ok(Box::new(ScriptChild { output: Some(reader), open, exit: self.exit }))
    }
}

impl Child for ScriptChild {
    fn output(&mut self) -> Option<Box<dyn BufRead + Send>> {
        self.output.take().map(|r| Box::new(BufReader::new(r)) as Box<dyn BufRead + Send>)
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
        "Segmentation fault in libdriver.so".into()
    }
}

#[test]
fn a_crash_is_reported_with_its_last_operation_and_the_worker_replaced() {
    let started = Arc::new(Mutex::new(0));
    let lines = vec![
        Line::Op { lane: 0, doing: "add/f32/n1/-/uniform".into() },
        Line::Op { lane: 0, doing: "gemm/f32/m64,n64,k64/-/uniform".into() },
    ];
    let exit = Some(Exit { code: None, signal: Some(11) });
    let script = Script { lines, exit, started: Arc::clone(&started) };
    let mut sink = Collect::default();
    let summary = run(&config(&["soak"], 30.0), &script, &mut sink, &Cancel::new()).unwrap();
    assert_eq!((summary.verdict, summary.exit_code), (Verdict::Crash, 5));
    let r = &summary.records[0];
    for part in ["signal 11", "last operation: gemm/f32/m64", "libdriver.so"] {
        assert!(r.reason.contains(part), "{}", r.reason);
    }
    assert_eq!((*started.lock().unwrap(), r.restarts), (3, 2), "replaced, but not for ever");
    assert!(summary.not_tested.iter().any(|n| n.contains("3 workers were lost")), "{:?}", summary.not_tested);
}

#[test]
fn a_silent_worker_is_a_hang() {
    let script = Script { lines: Vec::new(), exit: None, started: Arc::default() };
    let cfg = StressConfig { heartbeat: Some(0.5), ..config(&["soak"], 0.4) };
    let summary = run(&cfg, &script, &mut Collect::default(), &Cancel::new()).unwrap();
    assert_eq!((summary.verdict, summary.exit_code), (Verdict::Hang, 1));
    assert!(summary.records[0].reason.contains("silent for 0.5 s"), "{}", summary.records[0].reason);
}

/// A device that is a card of a tree like Linux's; the CPU does its work. What happens to the card happens when a worker's
/// work is done.
pub(crate) struct OnCard<F>(pub(crate) F);

pub(crate) const CARD: &str = "sys/devices/pci0000:00/0000:03:00.0";

impl<F: Fn() + Clone + Send + Sync + 'static> Spawn for OnCard<F> {
    fn spawn(&self, task: &str) -> Result<Box<dyn Child>> {
        let (reader, mut writer) = std::io::pipe().unwrap();
        let mut task: Task = serde_json::from_str(task).unwrap();
        if task.phase.is_none() {
            let uid = "opencl/pci/0000:03:00.0".into();
            let devices = vec![DeviceInfo { id: "opencl:0".into(), uid, ..DeviceInfo::ordinary_gpu() }];
            let line = serde_json::to_string(&Line::Devices { devices, absent: Vec::new() }).unwrap();
            writeln!(writer, "{line}").unwrap();
            return Ok(Box::new(ScriptChild { output: Some(reader), open: Some(writer), exit: None }));
        }
        task.device = Some("cpu".into());
        let (text, stop, happens) = (serde_json::to_string(&task).unwrap(), Cancel::new(), self.0.clone());
        let flag = stop.clone();
        let env = Env { disable_gpu: true, ..Env::default() };
        let handle = std::thread::spawn(move || {
            let ended = run_task(&text, &mut writer, &env, flag);
            happens();
            ended
        });
        Ok(Box::new(ThreadChild { output: Some(reader), stop, handle, killed: false }))
    }
}

/// A tree with one card of 61 degrees that has met an error on an earlier day; gives the tree and the card's folder.
#[cfg(unix)]
pub(crate) fn card_tree(root: &Path) -> (PathBuf, PathBuf) {
    let card = root.join(CARD);
    for (file, text) in [
        ("uevent", "DRIVER=amdgpu\nPCI_SLOT_NAME=0000:03:00.0\n"),
        ("ras/umc_err_count", "ue: 1\nce: 5\n"),
        ("mem_info_vram_used", "1000\n"),
        ("hwmon/hwmon0/temp1_input", "61000\n"),
    ] {
        std::fs::create_dir_all(card.join(file).parent().unwrap()).unwrap();
        std::fs::write(card.join(file), text).unwrap();
    }
    let class = root.join("sys/class/drm/card0");
    std::fs::create_dir_all(&class).unwrap();
    std::os::unix::fs::symlink(&card, class.join("device")).unwrap();
    (root.to_path_buf(), card)
}

/// Faults of the card that its work does not show: found in a tree that changes, and nothing where it does not.
#[cfg(unix)]
#[test]
fn what_happens_to_the_card_is_a_finding() {
    let errors = "ras/umc_err_count";
    for (what, verdict, part) in [
        ("nothing", Verdict::Pass, "everything given back"),
        ("an error", Verdict::Error, "1 more errors that were not corrected"),
        ("it is gone", Verdict::Error, "the card was lost"),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let (root, card) = card_tree(folder.path());
        let class = root.join("sys/class/drm/card0");
        let happens = move || match what {
            "an error" => std::fs::write(card.join(errors), "ue: 2\nce: 5\n").unwrap(),
            "it is gone" => std::fs::remove_file(class.join("device")).unwrap(),
            _ => std::fs::write(card.join("hwmon/hwmon0/temp1_input"), "85000\n").unwrap(),
        };
        let cfg = StressConfig { tree: Some(root), device: None, ..config(&["alloc-cycle"], 1.0) };
        let mut sink = Collect::default();
        let summary = run(&cfg, &OnCard(happens), &mut sink, &Cancel::new()).unwrap();
        let r = &summary.records[0];
        assert_eq!((summary.verdict, summary.exit_code), (verdict, verdict.exit_code()), "{what}: {r:?}");
        assert!(r.reason.contains(part), "{what}: {}", r.reason);
        assert_eq!(r.findings.is_empty(), verdict == Verdict::Pass, "{what}: {:?}", r.findings);
        let told = &r.telemetry;
        assert_eq!((told.source.as_str(), told.answered >= 1), ("sysfs", true), "{told:?}");
        let most = if what == "nothing" { 85.0 } else { 61.0 };
        assert_eq!(told.temperature_c.map(|t| (t.first, t.most)), Some((61.0, most)), "{what}");
        assert!(!sink.notes.iter().any(|n| n.contains("telemetry: none")), "{:?}", sink.notes);
    }
}

#[test]
fn the_journal_tells_the_run_and_an_unwritable_one_does_not_stop_it() {
    let dir = tempfile::tempdir().unwrap();
    let cfg = StressConfig { journal: Some(dir.path().join("state")), ..config(&["alloc-cycle"], 1.0) };
    let (summary, sink) = soak(&cfg);
    let path = summary.journal.clone().unwrap();
    assert!(sink.notes[0].contains(path.to_str().unwrap()), "{:?}", sink.notes);
    let (entries, cut) = journal::read(&path).unwrap();
    assert!(!cut);
    assert!(matches!(&entries[0], Entry::Start { scenarios, .. } if scenarios == &["alloc-cycle"]));
    assert!(matches!(&entries[1], Entry::Plan { devices, .. } if devices[0].phases == [("alloc-cycle".into(), 1.0)]));
    assert!(matches!(&entries[2], Entry::Phase { record, cut: false, .. } if **record == summary.records[0]));
    assert!(matches!(&entries[3], Entry::End { exit_code: 0, complete: true, .. }));

    let blocked = dir.path().join("file");
    std::fs::write(&blocked, "in the way").unwrap();
    let mut places = vec![blocked.join("j.jsonl")];
    if Path::new("/dev/full").exists() {
        places.push("/dev/full".into());
    }
    for place in places {
        let (summary, sink) = soak(&StressConfig { journal: Some(place.clone()), ..config(&["alloc-cycle"], 1.0) });
        assert_eq!(summary.exit_code, 0, "{}", place.display());
        let told = sink.notes.iter().filter(|n| n.contains("cannot be written")).count();
        assert_eq!(told, 1, "{}: {:?}", place.display(), sink.notes);
    }
}

/// Who asks for nothing gets what fits, and reads what did not; who asks for something gets it, but no pass for too little.
#[test]
fn the_plan_fits_the_time_and_says_what_has_no_room() {
    let (summary, sink) = soak(&config(&[], 3.0));
    let names: Vec<_> = summary.records.iter().map(|r| r.scenario.as_str()).collect();
    assert!(names.len() == 2 && names[0] == "soak", "{names:?}");
    let line = summary.line();
    assert_eq!(summary.verdict, Verdict::Pass, "{line}");
    assert!(line.starts_with(&format!("pass (2 of {})", SCENARIOS.len())), "{line}");
    assert!(line.contains("concurrent (") || line.contains("concurrent,"), "left out by name: {line}");
    assert!(line.contains("no room for their floors"), "{line}");
    let Some(Record::StressRun(whole)) = sink.records.last() else { panic!("{:?}", sink.records.last()) };
    assert_eq!((whole.scenarios_passed, whole.scenarios), (2, SCENARIOS.len() as u64));

    assert!(!sink.notes.iter().any(|n| n.contains("cannot end in a pass")), "{:?}", sink.notes);
    let (summary, sink) = soak(&config(&["alloc-cycle"], 0.5));
    assert_eq!((summary.verdict, summary.exit_code), (Verdict::Inconclusive, 4));
    let early = "cannot end in a pass: the scenarios that were asked for need 1.00 s together";
    assert!(sink.notes.iter().any(|n| n.contains(early)), "{:?}", sink.notes);
    assert!(summary.records[0].reason.contains("below the scenario's floor of 1.0 s"), "{}", summary.records[0].reason);
}

#[test]
fn nonsense_is_refused_before_a_worker_starts() {
    struct Never;
    impl Spawn for Never {
        fn spawn(&self, _: &str) -> Result<Box<dyn Child>> {
            panic!("no worker may start")
        }
    }
    let base = config(&["soak"], 1.0);
    for cfg in [
        StressConfig { seconds: 0.0, ..base.clone() },
        StressConfig { seconds: f64::NAN, ..base.clone() },
        StressConfig { scenarios: vec!["nap".into()], ..base.clone() },
        StressConfig { inject: Some("gremlins".into()), ..base.clone() },
        StressConfig { heartbeat: Some(-1.0), ..base.clone() },
        StressConfig { max_temp: Some(5.0), ..base.clone() },
        StressConfig { max_temp: Some(f64::NAN), ..base.clone() },
    ] {
        let e = run(&cfg, &Never, &mut Collect::default(), &Cancel::new()).unwrap_err();
        assert_eq!(e.code(), Code::BadArgument, "{e}");
    }
    let missing = StressConfig { device: Some("cuda:7".into()), ..base };
    let e = run(&missing, &Threads, &mut Collect::default(), &Cancel::new()).unwrap_err();
    assert_eq!(e.code(), Code::DeviceMissing);
    assert_eq!(e.to_string().matches("(next:").count(), 1, "{e}");
}
