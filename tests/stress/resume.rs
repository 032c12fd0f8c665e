//! `--resume` with workers in threads: what is taken over, what is run again, what is refused.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use gpuctl::base::sink::Collect;
use gpuctl::base::{Cancel, Code, Result};
use gpuctl::jobs::stress::journal::{self, Entry};
use gpuctl::jobs::stress::{Child, Spawn, StressConfig, StressSummary, Task, Verdict, run};

use super::{Threads, config};

/// Keeps count of the phases that are started.
#[derive(Default)]
struct Counted(Arc<Mutex<Vec<String>>>);

impl Spawn for Counted {
    fn spawn(&self, task: &str) -> Result<Box<dyn Child>> {
        let read: Task = serde_json::from_str(task).unwrap();
        if let Some(phase) = read.phase {
            self.0.lock().unwrap().push(phase.scenario);
        }
        Threads.spawn(task)
    }
}

/// Goes on with a journal; gives the phases that were started as well.
fn resume(at: &Path) -> Result<(StressSummary, Vec<String>)> {
    let spawn = Counted::default();
    let cfg = StressConfig { resume: Some(at.into()), ..StressConfig::default() };
    let summary = run(&cfg, &spawn, &mut Collect::default(), &Cancel::new())?;
    let started = spawn.0.lock().unwrap().clone();
    Ok((summary, started))
}

/// The lines of a finished run of two scenarios.
fn finished(dir: &Path) -> (PathBuf, Vec<String>) {
    static LINES: OnceLock<Vec<String>> = OnceLock::new();
    let path = dir.join("20260101T000000Z-1.jsonl");
    let lines = LINES.get_or_init(|| first(&path));
    std::fs::write(&path, lines.concat()).unwrap();
    (path, lines.clone())
}

fn first(path: &Path) -> Vec<String> {
    let cfg = StressConfig { journal: Some(path.into()), ..config(&["alloc-cycle", "concurrent"], 3.0) };
    let summary = run(&cfg, &Threads, &mut Collect::default(), &Cancel::new()).unwrap();
    assert_eq!(summary.exit_code, 0, "{}", summary.line());
    let text = std::fs::read_to_string(path).unwrap();
    let lines: Vec<String> = text.lines().map(|l| format!("{l}\n")).collect();
    assert_eq!(lines.len(), 5, "start, plan, two phases, end");
    lines
}

#[test]
fn a_run_that_was_cut_off_goes_on_where_it_was() {
    let dir = tempfile::tempdir().unwrap();
    let (path, lines) = finished(dir.path());
    let end = resume(&path).unwrap_err();
    assert_eq!(end.code(), Code::BadArgument);
    assert!(end.to_string().contains("its run is finished: pass (2 of"), "{end}");
    assert!(resume(dir.path()).unwrap_err().to_string().contains("no unfinished run"));

    // Killed in the second phase, while a line was written.
    let cut = format!("{}{}", lines[..3].concat(), &lines[3][..lines[3].len() / 2]);
    std::fs::write(&path, &cut).unwrap();
    let (summary, started) = resume(dir.path()).unwrap();
    assert_eq!(started, ["concurrent"], "the finished phase is not repeated");
    assert_eq!(
        (summary.verdict, summary.exit_code, summary.resumed_phases),
        (Verdict::Pass, 0, 1),
        "{}",
        summary.line()
    );
    let names: Vec<_> = summary.records.iter().map(|r| r.scenario.as_str()).collect();
    assert_eq!(names, ["alloc-cycle", "concurrent"], "the summary covers both");
    assert!(summary.line().contains("pass (2 of") && summary.line().contains("2 of 2 phases"), "{}", summary.line());
    assert_eq!(summary.records[1].planned_seconds, 2.0, "as it was planned");
    for phase in ["alloc-cycle", "concurrent"] {
        let drift = format!("{phase} on cpu: drift of memory");
        assert!(summary.not_tested.iter().any(|w| w.starts_with(&drift)), "{phase}: {:?}", summary.not_tested);
    }
    let (entries, damaged) = journal::read(&path).unwrap();
    assert!(!damaged, "the line that was cut off is gone");
    assert!(
        matches!(entries[3], Entry::Resume { .. }) && matches!(entries.last(), Some(Entry::End { complete: true, .. }))
    );
    assert!(resume(dir.path()).is_err(), "and now it is finished");

    // All phases done, only the end is missing: nothing is started.
    std::fs::write(&path, lines[..4].concat()).unwrap();
    let (summary, started) = resume(&path).unwrap();
    assert_eq!((summary.exit_code, started.len(), summary.resumed_phases), (0, 0, 2));

    // Before the plan was known: all of it is run.
    std::fs::write(&path, lines[0].replace("\"seconds\":3.0", "\"seconds\":3.0 ")).unwrap();
    let (summary, started) = resume(&path).unwrap();
    assert_eq!((summary.exit_code, started), (0, vec!["alloc-cycle".to_string(), "concurrent".into()]));
}

/// A device that is not there, a limit that cannot be kept: `--resume` would only meet them again.
#[test]
fn a_run_that_never_began_is_not_gone_on_with() {
    let dir = tempfile::tempdir().unwrap();
    let cfg = StressConfig { journal: Some(dir.path().into()), ..config(&["alloc-cycle"], 1.0) };
    for cfg in
        [StressConfig { max_temp: Some(80.0), ..cfg.clone() }, StressConfig { device: Some("cuda:7".into()), ..cfg }]
    {
        let refused = run(&cfg, &Threads, &mut Collect::default(), &Cancel::new()).unwrap_err();
        let e = resume(dir.path()).unwrap_err();
        assert!(e.to_string().contains("is finished: not begun") && e.code() == Code::BadArgument, "{refused}: {e}");
    }
}

#[test]
fn what_went_wrong_before_the_end_stays_in_the_verdict() {
    let dir = tempfile::tempdir().unwrap();
    let (path, lines) = finished(dir.path());
    let uid = match journal::read(&path).unwrap().0[1].clone() {
        Entry::Plan { devices, .. } => devices[0].uid.clone(),
        other => panic!("{other:?}"),
    };
    let finding = Entry::Finding {
        utc: "20260101T000001Z".into(),
        scenario: "concurrent".into(),
        device: "cpu".into(),
        uid,
        verdict: "corruption".into(),
        what: "add/f32/n1/-/uniform: element 0".into(),
    };
    let finding = format!("{}\n", serde_json::to_string(&finding).unwrap());
    std::fs::write(&path, format!("{}{finding}", lines[..3].concat())).unwrap();
    let (summary, started) = resume(&path).unwrap();
    assert_eq!(started, ["concurrent"], "it is run again, whole");
    assert_eq!((summary.verdict, summary.exit_code), (Verdict::Corruption, 1), "{}", summary.line());
    let reasons: Vec<_> = summary.records.iter().map(|r| (r.verdict.as_str(), r.reason.as_str())).collect();
    assert!(
        reasons.contains(&("corruption", "before the run was cut off: add/f32/n1/-/uniform: element 0")),
        "{reasons:?}"
    );
    // Cut off once more, after that phase had passed: it is still known.
    let text = std::fs::read_to_string(&path).unwrap();
    let whole: Vec<&str> = text.lines().collect();
    std::fs::write(&path, format!("{}\n", whole[..whole.len() - 1].join("\n"))).unwrap();
    let (summary, started) = resume(&path).unwrap();
    assert_eq!((summary.verdict, started.len()), (Verdict::Corruption, 0), "{}", summary.line());
}

#[test]
fn an_interrupted_run_goes_on_with_the_phase_it_was_in() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("j.jsonl");
    let cfg = StressConfig { journal: Some(path.clone()), ..config(&["alloc-cycle", "concurrent"], 3.0) };
    let cancel = Cancel::new();
    let raise = cancel.clone();
    let watched = path.clone();
    let user = std::thread::spawn(move || {
        let over = |e: &Entry| matches!(e, Entry::Phase { .. });
        while !journal::read(&watched).is_ok_and(|(all, _)| all.iter().any(over)) {
            std::thread::sleep(Duration::from_millis(20));
        }
        raise.raise();
    });
    let summary = run(&cfg, &Threads, &mut Collect::default(), &cancel).unwrap();
    user.join().unwrap();
    assert_eq!((summary.verdict, summary.interrupted), (Verdict::Inconclusive, true));
    let (summary, started) = resume(&path).unwrap();
    assert_eq!(started, ["concurrent"]);
    assert_eq!((summary.verdict, summary.records.len()), (Verdict::Pass, 2), "{}", summary.line());
}

#[test]
fn what_is_another_runs_or_damaged_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let (path, lines) = finished(dir.path());
    let open = lines[..3].concat();
    let version = format!("\"gpuctl\":\"{}\"", env!("CARGO_PKG_VERSION"));
    let uid = "\"uid\":\"";
    for (what, text, code, says) in [
        ("another version", open.replace(&version, "\"gpuctl\":\"0.0.0\""), Code::BadArgument, "by gpuctl 0.0.0"),
        ("another host", open.replace("\"cpu\":\"", "\"cpu\":\"Other "), Code::BadArgument, "another host"),
        ("another device", open.replace(uid, "\"uid\":\"GPU-gone"), Code::DeviceMissing, "GPU-gone"),
        ("another driver", open.replace("\"driver\":\"", "\"driver\":\"old "), Code::BadArgument, "with old "),
        ("a scenario", lines[..2].concat().replace("alloc-cycle", "nap"), Code::BadArgument, "nap"),
        ("damage", format!("{}xx\n{}", lines[0], lines[1]), Code::BadArgument, "line 2 is damaged"),
        ("nothing", String::new(), Code::BadArgument, "no run of"),
    ] {
        assert_ne!(text, open, "{what}: nothing was planted");
        std::fs::write(&path, text).unwrap();
        let e = resume(&path).unwrap_err();
        assert_eq!(e.code(), code, "{what}: {e}");
        assert!(e.to_string().contains(says), "{what}: {e}");
    }
    assert_eq!(resume(&dir.path().join("none.jsonl")).unwrap_err().code(), Code::Io);
    // A run that still goes on: its journal is locked.
    std::fs::write(&path, &open).unwrap();
    let (held, _) = journal::Journal::open(Some(&path));
    assert!(resume(&path).unwrap_err().to_string().contains("has not ended"));
    assert!(resume(dir.path()).unwrap_err().to_string().contains("no journal of a run"));
    drop(held);
    assert_eq!(resume(&path).unwrap().0.exit_code, 0);
}
