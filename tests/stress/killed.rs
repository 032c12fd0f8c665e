//! Processes that are killed and stopped at random moments. `GPUCTL_TEST_ALL=1` makes it 20 moments instead of 4.

use std::path::Path;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use gpuctl::base::rng::Philox;
use gpuctl::base::sink::Collect;
use gpuctl::base::{Cancel, Code, Error, Result};
use gpuctl::jobs::stress::journal::{self, Entry};
use gpuctl::jobs::stress::{Child as Worker, Exe, Spawn, StressConfig, run};

use super::binary::{gpuctl, until};
use super::config;

fn signal(pid: u32, name: &str) -> bool {
    std::process::Command::new("kill").args([name, &pid.to_string()]).stderr(Stdio::null()).status().unwrap().success()
}

fn start(dir: &Path, journal: &Path) -> Child {
    let journal = journal.display().to_string();
    let args = ["--seconds", "4", "--device", "cpu", "--scenario", "alloc-cycle,concurrent", "--journal", &journal];
    gpuctl(dir, &args).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
}

fn holds(journal: &Path, what: fn(&Entry) -> bool) -> bool {
    journal::read(journal).is_ok_and(|(all, _)| all.iter().any(what))
}

/// A worker of that supervisor: its child (`/proc/PID/stat`: the fourth field is the parent).
fn worker_of(parent: u32) -> Option<u32> {
    let of = |pid: u32| -> Option<u32> {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        stat.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse().ok()
    };
    let all = std::fs::read_dir("/proc").unwrap().filter_map(|e| e.ok()?.file_name().to_str()?.parse::<u32>().ok());
    all.into_iter().find(|pid| of(*pid) == Some(parent))
}

/// One moment: kills the supervisor, or first a worker and then the supervisor, and goes on. Gives the exit code.
fn killed(moment: u64, worker: bool) -> Option<i32> {
    let dir = tempfile::tempdir().unwrap();
    let journal = dir.path().join("j.jsonl");
    let rng = Philox::new(moment);
    let at = |i: u64, most: f64| Duration::from_secs_f64((rng.normal(0, i).abs() * most / 2.0).min(most));
    let mut child = start(dir.path(), &journal);
    if worker {
        // The worker that lists the devices is no part of a phase.
        until("a phase has begun", || holds(&journal, |e| matches!(e, Entry::Plan { .. })));
        std::thread::sleep(at(0, 2.5));
        until("a worker is killed", || worker_of(child.id()).is_some_and(|pid| signal(pid, "-KILL")));
        until("its end is noticed", || holds(&journal, |e| matches!(e, Entry::Finding { .. })));
    } else {
        until("the run has begun", || holds(&journal, |e| matches!(e, Entry::Start { .. })));
    }
    std::thread::sleep(at(1, 4.0));
    let mut ended = child.try_wait().unwrap();
    if ended.is_none() {
        signal(child.id(), "-KILL");
        child.wait().unwrap();
        let path = journal.display().to_string();
        let resumed = gpuctl(dir.path(), &["--resume", &path]).output().unwrap();
        ended = Some(resumed.status);
        let talk = String::from_utf8_lossy(&resumed.stderr).into_owned();
        assert!(resumed.status.code().is_some(), "{talk}");
    }
    let (entries, cut) = journal::read(&journal).unwrap();
    assert!(!cut);
    for scenario in ["alloc-cycle", "concurrent"] {
        let finished = |e: &&Entry| matches!(e, Entry::Phase { record, cut: false, .. } if record.scenario == scenario);
        assert_eq!(entries.iter().filter(finished).count(), 1, "moment {moment}: {scenario} is finished once");
    }
    ended.and_then(|e| e.code())
}

#[cfg(target_os = "linux")]
#[test]
fn whoever_is_killed_at_whatever_moment_the_verdict_is_the_same() {
    let moments = if std::env::var_os("GPUCTL_TEST_ALL").is_some() { 20 } else { 4 };
    let moments: Vec<u64> = (0..moments).collect();
    for two in moments.chunks(2) {
        std::thread::scope(|scope| {
            let both: Vec<_> = two.iter().map(|m| scope.spawn(move || (*m, killed(*m, m % 2 == 1)))).collect();
            for one in both {
                let (moment, code) = one.join().unwrap();
                // A worker that was killed crashed, and nothing that comes later makes that good.
                assert_eq!(code, Some(if moment % 2 == 1 { 5 } else { 0 }), "moment {moment}");
            }
        });
    }
}

/// A crash that was found before Ctrl-C is in the exit code, the document, the metrics and the journal.
#[cfg(target_os = "linux")]
#[test]
fn an_interruption_hides_no_crash() {
    let dir = tempfile::tempdir().unwrap();
    let (journal, metrics) = (dir.path().join("j.jsonl"), dir.path().join("s.prom"));
    let [at, prom] = [&journal, &metrics].map(|p| p.display().to_string());
    let scenario = ["--scenario", "alloc-cycle,concurrent"];
    let args = ["--seconds", "120", "--device", "cpu", "--journal", &at, "--prometheus", &prom, "--json", "-"];
    let mut command = gpuctl(dir.path(), &[&args[..], &scenario[..]].concat());
    let child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    until("a phase has begun", || holds(&journal, |e| matches!(e, Entry::Plan { .. })));
    until("a worker is killed", || worker_of(child.id()).is_some_and(|pid| signal(pid, "-KILL")));
    until("its end is noticed", || holds(&journal, |e| matches!(e, Entry::Finding { .. })));
    assert!(signal(child.id(), "-INT"));
    let out = child.wait_with_output().unwrap();
    assert_eq!(out.status.code(), Some(5));
    let doc: serde_json::Value = serde_json::from_slice(&out.stdout).unwrap();
    let run = doc["records"].as_array().unwrap().last().unwrap();
    assert_eq!((&doc["exit_code"], &run["exit_code"], &run["interrupted"]), (&5.into(), &5.into(), &true.into()));
    assert!(std::fs::read_to_string(&metrics).unwrap().contains("gpuctl_stress_exit_code 5\n"));
    assert!(holds(&journal, |e| matches!(e, Entry::End { exit_code: 5, complete: false, .. })));
}

/// A worker that cannot be ended is left behind: whoever waited for its end would hang with it.
#[cfg(target_os = "linux")]
#[test]
fn a_worker_that_cannot_be_killed_holds_nobody() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/stress/held.py").into();
    // Where everything is required, this is as well.
    let skip = |why: &str| {
        let require = std::env::var("GPUCTL_REQUIRE").unwrap_or_default();
        assert!(require.is_empty(), "GPUCTL_REQUIRE is '{require}', but: {why}");
        eprintln!("skipped: {why}");
    };
    let Ok(mut child) = (Exe { path }).spawn("{}") else { return skip("no Python") };
    let mut line = String::new();
    child.output().unwrap().read_line(&mut line).unwrap();
    let held: Option<serde_json::Value> = serde_json::from_str(&line).ok();
    let Some(holder) = held.and_then(|h| h["held"].as_u64()) else { return skip("no process may be traced") };
    let begun = Instant::now();
    child.kill();
    assert_eq!(child.ended(), None, "nobody sees its end");
    drop(child);
    let took = begun.elapsed();
    assert!(signal(u32::try_from(holder).unwrap(), "-KILL"));
    assert!(took > Duration::from_secs(1) && took < Duration::from_secs(30), "{took:?}");
}

/// A supervisor that is stopped (Ctrl-Z, a debugger, a container that is frozen) is no hang of its worker, and the time is not
/// tested time.
#[test]
fn a_stopped_supervisor_is_no_hang() {
    let dir = tempfile::tempdir().unwrap();
    let journal = dir.path().join("j.jsonl");
    // A run that ended before it knew its devices, to say what the command line does not: a heartbeat far below the stop.
    struct Never;
    impl Spawn for Never {
        fn spawn(&self, _: &str) -> Result<Box<dyn Worker>> {
            Err(Error::new(Code::Io, "no worker here"))
        }
    }
    // Long enough that the stop and a slow start on a laden machine together stay below the half that makes a run no evidence.
    let cfg = StressConfig { journal: Some(journal.clone()), heartbeat: Some(2.0), ..config(&["concurrent"], 30.0) };
    assert!(run(&cfg, &Never, &mut Collect::default(), &Cancel::new()).is_err());
    // Such a run cannot be resumed; what it was asked for can.
    let text = std::fs::read_to_string(&journal).unwrap();
    std::fs::write(&journal, format!("{}\n", text.lines().next().unwrap())).unwrap();
    let path = journal.display().to_string();
    let mut child = gpuctl(dir.path(), &["--resume", &path, "--json", "-"])
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    until("a phase has begun", || holds(&journal, |e| matches!(e, Entry::Plan { .. })));
    std::thread::sleep(Duration::from_secs(1));
    assert!(signal(child.id(), "-STOP"));
    let stopped = Instant::now();
    std::thread::sleep(Duration::from_secs(4));
    assert!(signal(child.id(), "-CONT"));
    let stopped = stopped.elapsed().as_secs_f64();
    let doc: serde_json::Value = serde_json::from_reader(child.stdout.take().unwrap()).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(0), "{}", doc["records"][0]["reason"]);
    let r = &doc["records"][0];
    assert_eq!((r["verdict"].as_str(), r["restarts"].as_u64()), (Some("pass"), Some(0)), "{}", r["reason"]);
    assert!(r["remarks"].to_string().contains("this program was stopped for"), "{}", r["remarks"]);
    let told = |e: &Entry| matches!(e, Entry::Clock { what, seconds, .. } if what == "stopped" && *seconds > 3.0);
    assert!(holds(&journal, told), "{stopped} s");
}
