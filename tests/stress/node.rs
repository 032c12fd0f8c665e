//! Several devices at once, cards that others use, cards that are hot: workers that say what a script says, and trees.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::PathBuf;
use std::sync::{Arc, Barrier, Mutex};
use std::time::{Duration, Instant};

use gpuctl::base::facts::Facts;
use gpuctl::base::record::{Speed, StressSample};
use gpuctl::base::sink::Collect;
use gpuctl::base::{Cancel, Code, DeviceClass, DeviceInfo, Env, Result};
use gpuctl::device::LedgerState;
use gpuctl::device::cpu::Pin;
use gpuctl::device::probe::{CpuConfig, Select, open_apart};
use gpuctl::jobs::stress::journal::{self, Entry};
use gpuctl::jobs::stress::scenario::Counts;
use gpuctl::jobs::stress::{Child, Exit, Line, Spawn, StressConfig, StressSummary, Task, Verdict, run};

use super::{OnCard, ScriptChild, Threads, card_tree, config};

/// Three cards of one model. Each worker waits until all three are there, then says how much it did in ten seconds: cycles, and
/// as many TFLOP/s.
struct Node {
    done: [u64; 3],
    crashes: Option<usize>,
    together: Arc<Barrier>,
}

fn cards() -> Vec<DeviceInfo> {
    let card = |i: usize| DeviceInfo {
        id: format!("cuda:{i}"),
        uid: format!("GPU-{i}"),
        name: "Model H".into(),
        ..DeviceInfo::ordinary_gpu()
    };
    (0..3).map(card).collect()
}

impl Spawn for Node {
    fn spawn(&self, task: &str) -> Result<Box<dyn Child>> {
        let (reader, mut writer) = std::io::pipe().unwrap();
        let task: Task = serde_json::from_str(task).unwrap();
        let mut exit = Exit { code: Some(0), signal: None };
        if task.phase.is_none() {
            let line = Line::Devices { devices: cards(), absent: Vec::new() };
            writeln!(writer, "{}", serde_json::to_string(&line).unwrap()).unwrap();
        } else {
            let at = cards().iter().position(|c| Some(&c.id) == task.device.as_ref()).unwrap();
            let counts =
                Counts { done: self.done[at], bytes_made: 1 << 20, bytes_checked: 1 << 20, ..Counts::default() };
            let sample = StressSample { rate: self.done[at] as f64 / 10.0, ..StressSample::default() };
            let ledger = (LedgerState::default(), LedgerState::default());
            let mut lines = vec![
                Line::Op { lane: 0, doing: "gemm/f32/m64,n64,k64/-/uniform".into() },
                Line::Sample { sample, counts, tested: 10.0 },
            ];
            if self.crashes == Some(at) {
                exit = Exit { code: None, signal: Some(11) };
            } else {
                let (counters, release_errors, unmet) = (BTreeMap::new(), Vec::new(), None);
                let speed = Speed { rate: 1e12 * self.done[at] as f64, unit: "FLOP".into(), samples: 9 };
                let speeds = BTreeMap::from([("gemm/f32".to_string(), speed)]);
                let tested = 10.0;
                lines.push(Line::Finished { counts, tested, counters, speeds, ledger, release_errors, unmet });
            }
            let together = Arc::clone(&self.together);
            std::thread::spawn(move || {
                together.wait();
                for line in lines {
                    writeln!(writer, "{}", serde_json::to_string(&line).unwrap()).unwrap();
                }
            });
        }
        Ok(Box::new(ScriptChild { output: Some(reader), open: None, exit: Some(exit) }))
    }
}

fn node(done: [u64; 3], crashes: Option<usize>) -> (StressSummary, Collect) {
    let node = Node { done, crashes, together: Arc::new(Barrier::new(3)) };
    // A worker that dies is not replaced: nobody would wait with it.
    let cfg = StressConfig { fail_early: crashes.is_some(), device: None, ..config(&["soak"], 10.0) };
    let tree = tempfile::tempdir().unwrap();
    let cfg = StressConfig { tree: Some(tree.path().into()), ..cfg };
    let mut sink = Collect::default();
    (run(&cfg, &node, &mut sink, &Cancel::new()).unwrap(), sink)
}

#[test]
fn all_devices_work_at_once_and_the_slow_one_of_a_model_is_named() {
    let (summary, _) = node([1000, 1010, 990], None);
    assert_eq!((summary.verdict, summary.exit_code), (Verdict::Pass, 0), "{}", summary.line());
    assert_eq!(summary.findings, Vec::<String>::new());
    assert!(
        summary.line().ends_with(&tail(&summary)) || summary.line().contains("cuda:0 pass, cuda:1 pass, cuda:2 pass")
    );
    assert!(summary.remarks.iter().any(|r| r.starts_with("compared with each other")), "{:?}", summary.remarks);

    let (summary, sink) = node([1000, 1010, 600], None);
    assert_eq!((summary.verdict, summary.exit_code), (Verdict::Degradation, 1), "{}", summary.line());
    let verdicts: Vec<_> = summary.by_device.iter().map(|d| d.verdict.as_str()).collect();
    assert_eq!(verdicts, ["pass", "pass", "degradation"]);
    let finding = &summary.findings[0];
    for part in ["cuda:2 is slower", "gemm/f32 600 TFLOP/s", "median of 3 is 1.00 PFLOP/s"] {
        assert!(finding.contains(part), "'{part}' is not in: {finding}");
    }
    assert!(sink.notes.iter().any(|n| n.contains("slower than its twins")), "{:?}", sink.notes);
    // The phases themselves had nothing wrong.
    assert!(summary.records.iter().all(|r| r.verdict == "pass"));
}

fn tail(summary: &StressSummary) -> String {
    summary.not_tested.first().cloned().unwrap_or_default()
}

#[test]
fn each_device_has_its_own_verdict_and_the_node_the_worst() {
    let (summary, _) = node([1000, 1000, 1000], Some(1));
    assert_eq!((summary.verdict, summary.exit_code), (Verdict::Crash, 5));
    let of = |at: usize| summary.by_device[at].verdict.as_str();
    assert_eq!(of(1), "crash");
    assert_ne!(of(0), "crash");
    assert!(summary.line().contains("cuda:1 crash"), "{}", summary.line());
    assert_eq!(summary.scenarios_passed(), 0, "what did not pass on one device is not among those that passed");
}

/// Workers on the CPU for a card of a tree; keeps count of their tasks.
struct Counted<S>(S, Arc<Mutex<Vec<String>>>);

impl<S: Spawn> Spawn for Counted<S> {
    fn spawn(&self, task: &str) -> Result<Box<dyn Child>> {
        let read: Task = serde_json::from_str(task).unwrap();
        if let Some(phase) = read.phase {
            self.1.lock().unwrap().push(phase.scenario);
        }
        self.0.spawn(task)
    }
}

fn on_card(cfg: &StressConfig, tree: PathBuf) -> (StressSummary, usize) {
    let started = Arc::default();
    let spawn = Counted(OnCard(|| ()), Arc::clone(&started));
    let cfg = StressConfig { tree: Some(tree), device: None, ..cfg.clone() };
    let summary = run(&cfg, &spawn, &mut Collect::default(), &Cancel::new()).unwrap();
    let started = started.lock().unwrap().len();
    (summary, started)
}

#[cfg(unix)]
#[test]
fn a_card_that_others_use_is_left_alone_unless_it_may_be_shared() {
    let folder = tempfile::tempdir().unwrap();
    let (root, _) = card_tree(folder.path());
    let base = config(&["alloc-cycle"], 1.0);
    // Nobody may look into processes: that is said.
    let (summary, started) = on_card(&base, root.clone());
    assert_eq!((summary.exit_code, started), (0, 1), "{}", summary.line());
    let unknown = |s: &StressSummary| s.not_tested.iter().any(|n| n.contains("whether other processes use opencl:0"));
    assert!(unknown(&summary), "{:?}", summary.not_tested);

    let info = root.join("proc/4711/fdinfo");
    std::fs::create_dir_all(&info).unwrap();
    std::fs::write(
        info.join("5"),
        "drm-driver: amdgpu\ndrm-pdev: 0000:03:00.0\ndrm-client-id: 1\ndrm-memory-vram: 4 KiB\n",
    )
    .unwrap();
    let (summary, started) = on_card(&base, root.clone());
    assert_eq!((summary.verdict, summary.exit_code, started), (Verdict::Inconclusive, 4, 0));
    let line = summary.line();
    assert!(line.contains("opencl:0: pid 4711 (4.00 KiB)") && line.contains("--shared"), "{line}");

    let (summary, started) = on_card(&StressConfig { shared: true, ..base }, root);
    assert_eq!((summary.exit_code, started), (0, 1), "{}", summary.line());
    assert!(summary.remarks.iter().any(|r| r.contains("pid 4711")), "{:?}", summary.remarks);
    assert!(!unknown(&summary));
}

/// A run with a finding is gone on with while others use its card: it is refused, or interrupted while it waits for them. Neither
/// ends it, and neither loses the finding.
#[cfg(unix)]
#[test]
fn a_run_that_cannot_go_on_yet_keeps_what_it_found_and_stays_open() {
    let meets_others = |interrupt: bool| {
        let folder = tempfile::tempdir().unwrap();
        let (root, _) = card_tree(folder.path());
        let path = folder.path().join("j.jsonl");
        let cfg = StressConfig { journal: Some(path.clone()), ..config(&["alloc-cycle", "concurrent"], 3.0) };
        assert_eq!(on_card(&cfg, root.clone()).0.exit_code, 0);
        // Cut off after the first phase, which had a wrong result.
        let mut entries = journal::read(&path).unwrap().0;
        entries.truncate(3);
        let Some(Entry::Phase { record, .. }) = entries.last_mut() else { panic!("{entries:?}") };
        (record.verdict, record.mismatches) = (Verdict::Corruption.name().into(), 1);
        let lines = entries.iter().map(|e| serde_json::to_string(e).unwrap() + "\n");
        std::fs::write(&path, lines.collect::<String>()).unwrap();
        let others = root.join("proc/4711/fdinfo");
        std::fs::create_dir_all(&others).unwrap();
        std::fs::write(others.join("5"), "drm-driver: amdgpu\ndrm-pdev: 0000:03:00.0\ndrm-client-id: 1\n").unwrap();

        let again = |cancel: &Cancel| {
            let started = Arc::default();
            let spawn = Counted(OnCard(|| ()), Arc::clone(&started));
            let cfg = StressConfig { resume: Some(path.clone()), tree: Some(root.clone()), ..StressConfig::default() };
            let summary = run(&cfg, &spawn, &mut Collect::default(), cancel).unwrap();
            assert_eq!((summary.verdict, summary.exit_code), (Verdict::Corruption, 1), "{}", summary.line());
            let started = started.lock().unwrap().clone();
            (summary, started)
        };
        let cancel = Cancel::new();
        let raise = cancel.clone();
        let user = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_secs(2));
            if interrupt {
                raise.raise();
            }
        });
        let (summary, started) = again(&cancel);
        user.join().unwrap();
        assert_eq!((summary.interrupted, summary.records.len(), started.len()), (interrupt, 1, 0));
        assert!(summary.not_tested[0].contains("what is left: other processes use opencl:0: pid 4711"));
        let last = journal::read(&path).unwrap().0.pop();
        assert!(matches!(last, Some(Entry::End { complete: false, exit_code: 1, .. })), "{last:?}");

        std::fs::remove_dir_all(root.join("proc/4711")).unwrap();
        let (summary, started) = again(&Cancel::new());
        assert_eq!((summary.records.len(), started), (2, vec!["concurrent".to_string()]), "{}", summary.line());
        let last = journal::read(&path).unwrap().0.pop();
        assert!(matches!(last, Some(Entry::End { complete: true, exit_code: 1, .. })), "{last:?}");
    };
    std::thread::scope(|scope| {
        scope.spawn(|| meets_others(true));
        meets_others(false);
    });
}

/// Hot for some seconds in the middle of the phase: it pauses and goes on, and the pause is no tested time.
#[cfg(unix)]
#[test]
fn a_hot_card_gets_a_pause() {
    let folder = tempfile::tempdir().unwrap();
    let (root, card) = card_tree(folder.path());
    let sensor = card.join("hwmon/hwmon0/temp1_input");
    let base = StressConfig { max_temp: Some(80.0), ..config(&["alloc-cycle"], 10.0) };
    // Asked every 2 s: cool, hot at the second answer, cool again at the third.
    let heat = std::thread::spawn(move || {
        for (after, text) in [(1000, "90000\n"), (2200, "78000\n"), (2000, "74000\n")] {
            std::thread::sleep(Duration::from_millis(after));
            std::fs::write(&sensor, text).unwrap();
        }
    });
    let (summary, started) = on_card(&base, root.clone());
    heat.join().unwrap();
    let r = &summary.records[0];
    assert_eq!((r.verdict.as_str(), started), ("pass", 2), "a new worker after the pause: {r:?}");
    // 78 degrees are below the limit, but not by 5: it goes on only at 74.
    assert!(r.paused_seconds > 2.5 && r.paused_seconds < 7.0, "{}", r.paused_seconds);
    assert!(r.seconds < 10.0 - r.paused_seconds + 0.5, "{} tested, {} paused", r.seconds, r.paused_seconds);
    assert!(r.remarks.iter().any(|t| t.contains("paused 1 times") && t.contains("90 C")), "{:?}", r.remarks);
    assert_eq!((r.restarts, r.findings.len()), (0, 0));

    // Hot all the time: nothing is done, and that is no pass.
    let (root, card) = card_tree(&folder.path().join("hot"));
    std::fs::write(card.join("hwmon/hwmon0/temp1_input"), "95000\n").unwrap();
    let (summary, started) = on_card(&StressConfig { seconds: 1.0, ..base.clone() }, root);
    let r = &summary.records[0];
    assert_eq!((summary.exit_code, started, r.done), (4, 0, 0), "{r:?}");
    assert!(r.reason.contains("paused for") && r.reason.contains("the limit is 80 C"), "{}", r.reason);

    let cpu = StressConfig { device: Some("cpu".into()), ..base };
    let e = run(&cpu, &Threads, &mut Collect::default(), &Cancel::new()).unwrap_err();
    assert_eq!(e.code(), Code::FeatureUnsupported);
    assert!(e.to_string().contains("the host's processor is no card"), "{e}");
}

/// A phase: its device, its scenario, when it began, and when it ended.
type Span = (String, String, Instant, Option<Instant>);

/// Workers on three simulated devices, of which the first two are one card. The first of them and the one on a card of its own are
/// such that `oom` fills their card.
#[derive(Default)]
struct OneCard(Arc<Mutex<Vec<Span>>>);

struct Timed {
    child: Box<dyn Child>,
    spans: Arc<Mutex<Vec<Span>>>,
    at: usize,
}

const SIMULATED: &str = "sim:textbook:0,sim:textbook:1,sim:textbook:2";

fn posed() -> Vec<DeviceInfo> {
    let cpu = CpuConfig { threads: 1, pin: Pin::Free };
    let rig = open_apart(&Select::parse(SIMULATED).unwrap(), &Env::default(), cpu).unwrap();
    let of = |device: &DeviceInfo, class, pci: &str| DeviceInfo {
        class,
        unified_memory: false,
        facts: Facts { pci: Some(pci.into()), ..Facts::default() },
        ..device.clone()
    };
    let [a, b, c] = [0, 1, 2].map(|at| rig.devices[at].info());
    vec![
        of(a, DeviceClass::Discrete, "0000:3b:00.0"),
        of(b, DeviceClass::Virtual, "0000:3b:00.0"),
        of(c, DeviceClass::Discrete, "0000:5e:00.0"),
    ]
}

impl Spawn for OneCard {
    fn spawn(&self, task: &str) -> Result<Box<dyn Child>> {
        let read: Task = serde_json::from_str(task).unwrap();
        let Some(phase) = read.phase else {
            let (reader, mut writer) = std::io::pipe().unwrap();
            let line = Line::Devices { devices: posed(), absent: Vec::new() };
            writeln!(writer, "{}", serde_json::to_string(&line).unwrap()).unwrap();
            let exit = Some(Exit { code: Some(0), signal: None });
            return Ok(Box::new(ScriptChild { output: Some(reader), open: None, exit }));
        };
        let mut spans = self.0.lock().unwrap();
        spans.push((read.device.unwrap(), phase.scenario, Instant::now(), None));
        let at = spans.len() - 1;
        Ok(Box::new(Timed { child: Threads.spawn(task)?, spans: Arc::clone(&self.0), at }))
    }
}

impl Child for Timed {
    fn output(&mut self) -> Option<Box<dyn std::io::BufRead + Send>> {
        self.child.output()
    }
    fn stop(&mut self) {
        self.child.stop();
    }
    fn kill(&mut self) {
        self.child.kill();
    }
    fn ended(&mut self) -> Option<Exit> {
        self.child.ended()
    }
    fn errors(&self) -> String {
        self.child.errors()
    }
}

impl Drop for Timed {
    fn drop(&mut self) {
        self.spans.lock().unwrap()[self.at].3 = Some(Instant::now());
    }
}

/// Runs two scenarios on these devices; gives what each device did and when.
fn one_card(cfg: &StressConfig) -> (StressSummary, Vec<Span>) {
    let (spawn, tree) = (OneCard::default(), tempfile::tempdir().unwrap());
    let cfg = StressConfig { tree: Some(tree.path().into()), device: Some(SIMULATED.into()), ..cfg.clone() };
    let summary = run(&cfg, &spawn, &mut Collect::default(), &Cancel::new()).unwrap();
    let spans = spawn.0.lock().unwrap().clone();
    (summary, spans)
}

fn meet(a: &Span, b: &Span) -> bool {
    a.2 < b.3.unwrap() && b.2 < a.3.unwrap()
}

/// One interface of a card fills its memory: others had failed operations on a sound card meanwhile. It is alone there now, other
/// cards work on, and all of it ends in the time that was asked for.
#[test]
fn who_fills_a_card_is_alone_on_it() {
    let dir = tempfile::tempdir().unwrap();
    let journal = dir.path().join("run.jsonl");
    let cfg = StressConfig { journal: Some(journal.clone()), ..config(&["oom", "alloc-cycle"], 9.0) };
    let check = |summary: &StressSummary, spans: &[Span]| {
        let planned: Vec<f64> = summary.by_device.iter().map(|d| d.planned_seconds).collect();
        assert_eq!(planned, [9.0, 6.0, 9.0], "{summary:?}");
        assert_eq!((summary.verdict, summary.exit_code), (Verdict::Pass, 0), "{}", summary.line());
        assert_eq!(
            summary.remarks.iter().filter(|r| r.contains("fills the card's memory alone")).collect::<Vec<_>>(),
            ["sim:textbook:1: planned for 3.00 s less: sim:textbook:0 fills the card's memory alone (oom)"]
        );
        let of = |device: usize| spans.iter().filter(move |s| s.0.ends_with(&format!(":{device}")));
        let filling = of(0).find(|s| s.1 == "oom").unwrap();
        assert!(of(1).all(|s| !meet(filling, s)), "{spans:?}");
        assert!(of(2).any(|s| meet(filling, s)), "{spans:?}");
    };
    let (summary, spans) = one_card(&cfg);
    check(&summary, &spans);
    let names = |device: &str| -> Vec<&str> {
        summary.records.iter().filter(|r| r.device == device).map(|r| r.scenario.as_str()).collect()
    };
    assert_eq!([names("sim:textbook:0"), names("sim:textbook:1")], [["alloc-cycle", "oom"], ["oom", "alloc-cycle"]]);

    // Cut off: what is left is done by the same plan, again one after the other.
    let text = std::fs::read_to_string(&journal).unwrap();
    let lost = |l: &&str| l.contains(r#""scenario":"oom""#) || l.contains(r#""scenario": "oom""#);
    let kept: Vec<&str> = text.lines().filter(|l| !lost(l)).collect();
    let (end, kept) = kept.split_last().unwrap();
    assert!(end.contains("pass (2 of") && kept.len() == 5, "{kept:?}");
    std::fs::write(&journal, kept.join("\n") + "\n").unwrap();
    let (summary, spans) = one_card(&StressConfig { resume: Some(journal), ..StressConfig::default() });
    assert_eq!(spans.iter().map(|s| s.1.as_str()).collect::<Vec<_>>(), ["oom"; 3]);
    check(&summary, &spans);
}
