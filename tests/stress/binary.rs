//! The binary: worker processes, signals, a terminal that closes, a disk that is full.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use gpuctl::jobs::stress::journal::{self, Entry};

/// Three scenarios that are quick to prepare.
const SHORT: &str = "soak,alloc-cycle,concurrent";

pub(crate) fn gpuctl(state: &Path, args: &[&str]) -> Command {
    let mut c = Command::new(env!("CARGO_BIN_EXE_gpuctl"));
    c.arg("stress").args(args).env("XDG_STATE_HOME", state).stdin(Stdio::null());
    c
}

#[test]
fn the_binary_soaks_in_worker_processes() {
    let dir = tempfile::tempdir().unwrap();
    let out = gpuctl(dir.path(), &["--seconds", "6", "--device", "cpu", "--scenario", SHORT, "--json", "-"])
        .output()
        .unwrap();
    let talk = String::from_utf8_lossy(&out.stderr);
    assert_eq!(out.status.code(), Some(0), "{talk}");
    let doc: serde_json::Value = serde_json::from_slice(&out.stdout).unwrap();
    let records = doc["records"].as_array().unwrap();
    assert_eq!(
        (records.len(), &records[3]["kind"], &records[3]["scenarios_passed"]),
        (4, &"stress-run".into(), &3.into())
    );
    assert_eq!(doc["devices"][0]["id"], "cpu");
    for r in &records[..3] {
        assert_eq!(r["verdict"], "pass");
        assert!(r["bytes_checked"].as_u64().unwrap() > 0);
    }
    assert!(talk.contains("journal: ") && talk.contains("3 of 3 phases passed"), "{talk}");
    // Of the processor only the ledger knows: said once, and in each record.
    assert_eq!(talk.matches("cpu: telemetry: none (the host's processor is no card)").count(), 1, "{talk}");
    for r in &records[..3] {
        assert_eq!((&r["telemetry"]["source"], &r["telemetry"]["asked"]), (&"none".into(), &0.into()), "{r}");
    }
}

#[test]
fn the_binary_reports_planted_faults() {
    let dir = tempfile::tempdir().unwrap();
    for (fault, scenario, code, verdict) in [
        ("leak", "soak", 1, "leak"),
        ("bitflip", "soak", 1, "corruption"),
        ("zero", "soak", 4, "inconclusive"),
        ("crash", "alloc-cycle", 5, "crash"),
    ] {
        let args = ["--seconds", "2", "--device", "cpu", "--scenario", scenario, "--inject", fault, "--json", "-"];
        let out = gpuctl(dir.path(), &args).output().unwrap();
        let talk = String::from_utf8_lossy(&out.stderr);
        assert_eq!(out.status.code(), Some(code), "{fault}: {talk}");
        let doc: serde_json::Value = serde_json::from_slice(&out.stdout).unwrap();
        let r = &doc["records"][0];
        assert_eq!(r["verdict"], verdict, "{fault}: {r}");
        if fault == "crash" {
            let reason = r["reason"].as_str().unwrap();
            assert!(reason.contains("last operation: allocation "), "{reason}");
            #[cfg(unix)]
            assert!(reason.contains("signal 6"), "{reason}");
        }
    }
}

/// Reads lines of the talk until one contains `what`.
#[cfg(unix)]
pub(crate) fn wait_for(talk: &mut impl BufRead, what: &str) -> String {
    let mut line = String::new();
    while talk.read_line(&mut line).unwrap() > 0 {
        if line.contains(what) {
            return line;
        }
        line.clear();
    }
    panic!("'{what}' was never said");
}

/// The only journal below a state folder, once its first line is there.
#[cfg(unix)]
pub(crate) fn journal_of(state: &Path) -> PathBuf {
    let folder = state.join("gpuctl/stress");
    std::fs::read_dir(folder).unwrap().next().unwrap().unwrap().path()
}

#[cfg(unix)]
#[test]
fn sigint_and_sigterm_keep_the_report_and_kill_keeps_the_journal() {
    for (signal, code) in [("-INT", Some(130)), ("-TERM", Some(130)), ("-KILL", None)] {
        let dir = tempfile::tempdir().unwrap();
        let args = ["--seconds", "120", "--device", "cpu", "--scenario", "alloc-cycle,soak", "--json", "-"];
        let mut child = gpuctl(dir.path(), &args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut talk = BufReader::new(child.stderr.take().unwrap());
        wait_for(&mut talk, "journal: ");
        std::thread::sleep(Duration::from_secs(3));
        assert!(Command::new("kill").args([signal, &child.id().to_string()]).status().unwrap().success());
        let out = child.wait_with_output().unwrap();
        assert_eq!(out.status.code(), code);
        let (entries, cut) = journal::read(&journal_of(dir.path())).unwrap();
        assert!(!cut && matches!(entries[0], Entry::Start { .. }));
        if code.is_none() {
            continue;
        }
        let last = wait_for(&mut talk, "interrupted; ");
        assert!(last.contains("soak on cpu: interrupted") || last.contains("and "), "{last}");
        let doc: serde_json::Value = serde_json::from_slice(&out.stdout).unwrap();
        assert_eq!((&doc["complete"], &doc["exit_code"]), (&false.into(), &130.into()));
        assert_eq!(doc["records"].as_array().unwrap().last().unwrap()["exit_code"], 130);
        let r = &doc["records"][0];
        assert_eq!((r["scenario"].as_str(), r["verdict"].as_str()), (Some("alloc-cycle"), Some("inconclusive")));
        assert!(r["done"].as_u64().unwrap() > 0 && r["reason"].as_str().unwrap().contains("interrupted after"), "{r}");
        assert!(matches!(entries.last(), Some(Entry::End { complete: false, exit_code: 130, .. })));
    }
}

/// Whoever logs out finds the soak done: its terminal hangs up, nobody reads what it writes, the journal has all.
#[cfg(unix)]
#[test]
fn a_terminal_that_closes_ends_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let args = ["--seconds", "3", "--device", "cpu", "--scenario", "alloc-cycle,soak"];
    let mut child = gpuctl(dir.path(), &args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut talk = BufReader::new(child.stderr.take().unwrap());
    wait_for(&mut talk, "journal: ");
    drop((talk, child.stdout.take()));
    assert!(Command::new("kill").args(["-HUP", &child.id().to_string()]).status().unwrap().success());
    assert_eq!(child.wait().unwrap().code(), Some(0));
    let (entries, cut) = journal::read(&journal_of(dir.path())).unwrap();
    let whole = matches!(entries.last(), Some(Entry::End { exit_code: 0, complete: true, .. }));
    assert!(!cut && whole, "{:?}", entries.last());

    // A real terminal: it gives EIO, not EPIPE. `script` holds the other end of it until it is killed.
    let Ok(version) = Command::new("script").arg("--version").output() else { return };
    if !version.status.success() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let command = format!("exec {} stress {}", env!("CARGO_BIN_EXE_gpuctl"), args.join(" "));
    let mut script = Command::new("script")
        .args(["-qc", &command, "/dev/null"])
        .env("XDG_STATE_HOME", dir.path())
        .env("SHELL", "/bin/sh")
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let started = || std::fs::read_dir(dir.path().join("gpuctl/stress")).is_ok_and(|mut d| d.next().is_some());
    until("the journal is there", started);
    script.kill().unwrap();
    script.wait().unwrap();
    let path = journal_of(dir.path());
    until("the soak has ended", || matches!(journal::read(&path).unwrap().0.last(), Some(Entry::End { .. })));
    let (entries, _) = journal::read(&path).unwrap();
    let whole = matches!(entries.last(), Some(Entry::End { exit_code: 0, complete: true, .. }));
    assert!(whole, "{:?}", entries.last());
}

/// On a terminal a line that is drawn anew says how it goes; it is gone at the end, and the rows and the last line stay.
#[cfg(unix)]
#[allow(clippy::print_stderr, reason = "a skip must be seen")]
#[test]
fn a_terminal_shows_how_it_goes() {
    if !Command::new("script").arg("--version").output().is_ok_and(|v| v.status.success()) {
        eprintln!("skipped: a_terminal_shows_how_it_goes: no program 'script' to make a terminal with");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let exe = env!("CARGO_BIN_EXE_gpuctl");
    let soak = |how: &str| {
        let command =
            format!("stty cols 200; {exe} stress --seconds 3 --device cpu --scenario alloc-cycle --no-journal {how}");
        let out = Command::new("script")
            .args(["-qec", &command, "/dev/null"])
            .env("XDG_STATE_HOME", dir.path())
            .env("SHELL", "/bin/sh")
            .env("TERM", "xterm")
            .stdin(Stdio::null())
            .output()
            .unwrap();
        (out.status.code(), String::from_utf8_lossy(&out.stdout).into_owned())
    };
    let (code, seen) = soak("");
    assert_eq!(code, Some(0), "{seen}");
    // Drawn anew: the line's front and an erasure of what was there.
    let drawn: Vec<&str> = seen.split('\u{1b}').filter(|part| part.contains("alloc-cycle on cpu: ")).collect();
    assert!(drawn.len() >= 2 && seen.contains("\u{1b}[2K"), "{seen:?}");
    let last = drawn.last().unwrap();
    assert!([" cycles, ", "/s, ", " checked, no errors"].iter().all(|w| last.contains(w)), "{last:?}");
    assert!(seen.rfind("alloc-cycle on cpu: ") < seen.rfind("\u{1b}[2K"), "the last one is erased: {seen:?}");
    assert!(seen.contains("pass         alloc-cycle") && seen.contains("pass (1 of 14): 1 of 1"), "{seen:?}");
    // A fault shows in it.
    let (code, seen) = soak("--inject bitflip@every=50");
    assert!(code == Some(1) && seen.contains(" WRONG, 0 FAILED"), "{seen:?}");
    // Who wants silence gets it, and one who redirects sees no line that is drawn anew.
    let (code, seen) = soak("--quiet 2>/dev/null | cat");
    assert!(code == Some(0) && !seen.contains('\u{1b}'), "{seen:?}");
}

/// Waits for something that comes by itself; far longer than it takes, for loaded machines.
#[cfg(unix)]
pub(crate) fn until(what: &str, mut is: impl FnMut() -> bool) {
    for _ in 0..1200 {
        if is() {
            return;
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    panic!("never: {what}");
}

/// A disk that is full for what is long: that is said once, the soak goes on, and what is short is kept.
#[cfg(unix)]
#[test]
fn a_full_disk_costs_lines_and_not_the_soak() {
    let dir = tempfile::tempdir().unwrap();
    let journal = dir.path().join("j.jsonl");
    // Files of at most 4 blocks (of 512 or 1024 bytes, as the shell has it): too little for the record of a phase.
    let command = format!(
        "trap '' XFSZ; ulimit -f 4; exec {} stress --seconds 1 --scenario alloc-cycle --device cpu --json - --journal {}",
        env!("CARGO_BIN_EXE_gpuctl"),
        journal.display()
    );
    let out =
        Command::new("sh").args(["-c", &command]).env("GPUCTL_CACHE", "off").stdin(Stdio::null()).output().unwrap();
    let talk = String::from_utf8_lossy(&out.stderr);
    assert_eq!(out.status.code(), Some(0), "{talk}");
    assert_eq!(talk.matches("cannot be written").count(), 1, "{talk}");
    let doc: serde_json::Value = serde_json::from_slice(&out.stdout).unwrap();
    assert_eq!(doc["records"][0]["verdict"], "pass");
    let (entries, cut) = journal::read(&journal).unwrap();
    assert!(!cut, "what did not fit was cut back to whole lines");
    assert!(!entries.iter().any(|e| matches!(e, Entry::Phase { .. })), "{entries:?}");
    assert!(matches!(entries[..], [Entry::Start { .. }, Entry::Plan { .. }, Entry::End { .. }]), "{entries:?}");
}

/// Three real devices of one model at once, each with its worker: software devices, which are not compared.
#[cfg(feature = "opencl")]
#[test]
fn three_opencl_devices_work_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let args = ["--seconds", "3", "--device", "opencl:*", "--scenario", "alloc-cycle,soak", "--json", "-"];
    let out = gpuctl(dir.path(), &args).env("POCL_DEVICES", "pthread pthread pthread").output().unwrap();
    let talk = String::from_utf8_lossy(&out.stderr);
    if out.status.code() == Some(3) {
        let required = std::env::var("GPUCTL_REQUIRE").is_ok_and(|r| r.split(',').any(|b| b == "opencl"));
        assert!(!required, "GPUCTL_REQUIRE names opencl, but: {talk}");
        return;
    }
    assert_eq!(out.status.code(), Some(0), "{talk}");
    let doc: serde_json::Value = serde_json::from_slice(&out.stdout).unwrap();
    let records = doc["records"].as_array().unwrap();
    let whole = records.last().unwrap();
    let devices = whole["devices"].as_array().unwrap();
    let pocl: Vec<_> = devices.iter().filter(|d| d["name"] == devices[0]["name"]).collect();
    if pocl.len() < 3 {
        // Another driver than PoCL.
        return;
    }
    assert_eq!(records.len(), 2 * devices.len() + 1, "{talk}");
    assert!(devices.iter().all(|d| d["verdict"] == "pass" && d["passed"] == 2), "{whole}");
    let remarks = whole["remarks"].to_string();
    assert!(remarks.contains("not compared with each other: opencl:0 opencl:1 opencl:2"), "{remarks}");
    assert!(remarks.contains("the host's processor does its work"), "{remarks}");
    assert!(talk.contains("opencl:0 pass, opencl:1 pass, opencl:2 pass"), "{talk}");
}

/// Three simulated cards of one model, each in a process of its own: equal ones pass, and one that a fault makes slower is named.
/// Their clocks are the model's, so nothing depends on this machine.
#[test]
fn the_slow_card_of_a_node_is_named() {
    const CARDS: &str = "sim:textbook:0,sim:textbook:1,sim:textbook:2";
    let dir = tempfile::tempdir().unwrap();
    let base = ["--seconds", "4", "--device", CARDS, "--scenario", "burn", "--no-journal", "--json", "-"];
    let run = |more: &[&str]| {
        let out = gpuctl(dir.path(), &[&base[..], more].concat()).output().unwrap();
        let talk = String::from_utf8_lossy(&out.stderr).into_owned();
        let doc: serde_json::Value = serde_json::from_slice(&out.stdout).unwrap_or_else(|e| panic!("{e}: {talk}"));
        (out.status.code(), doc["records"].as_array().unwrap().clone(), talk)
    };
    let (code, records, talk) = run(&[]);
    assert_eq!(code, Some(0), "{talk}");
    let whole = records.last().unwrap();
    assert!(
        whole["remarks"].to_string().contains("compared with each other: sim:textbook:0 sim:textbook:1"),
        "{whole}"
    );
    assert!(records[..3].iter().all(|r| !r["speeds"].as_object().unwrap().is_empty()), "{talk}");

    // Each launch takes 2 ms longer on the last of them, from the first to the last: its own course shows nothing.
    let (code, records, talk) = run(&["--inject", "slow@from=1@device=sim:textbook:2"]);
    assert_eq!(code, Some(1), "{talk}");
    let whole = records.last().unwrap();
    let verdicts: Vec<_> =
        whole["devices"].as_array().unwrap().iter().map(|d| d["verdict"].as_str().unwrap()).collect();
    assert_eq!(verdicts, ["pass", "pass", "degradation"], "{whole}");
    let findings = whole["findings"].as_array().unwrap();
    assert_eq!(findings.len(), 1, "{whole}");
    assert!(findings[0].as_str().unwrap().starts_with("sim:textbook:2 is slower than its twins: gemm/"), "{whole}");
    let phases = records[..3].iter().map(|r| (r["device"].as_str().unwrap(), r["rerun"].as_str().unwrap()));
    for (device, rerun) in phases {
        assert_eq!(rerun.contains("--inject slow@from=1"), device == "sim:textbook:2", "{rerun}");
        assert!(!rerun.contains("@device="), "{rerun}");
    }

    let args = ["--seconds", "4", "--device", CARDS, "--no-journal", "--inject", "leak@device=sim:textbook:7"];
    let out = gpuctl(dir.path(), &args).output().unwrap();
    let talk = String::from_utf8_lossy(&out.stderr);
    assert_eq!((out.status.code(), out.stdout.len()), (Some(3), 0), "{talk}");
    assert!(talk.contains("takes no part"), "{talk}");
}
