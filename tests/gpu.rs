//! `tests/gpu.sh` and `tests/report-from`, run here on the CPU and PoCL with tiny budgets, and the syntax of all scripts.

#![allow(clippy::print_stderr, reason = "skips are named")]

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn gpu_sh(args: &[&str]) -> Output {
    let mut c = Command::new("sh");
    c.arg(root().join("tests/gpu.sh")).args(args).env_remove("GPUCTL_REQUIRE");
    c.output().expect("sh starts")
}

fn there(program: &str) -> bool {
    Command::new(program).arg("--version").output().is_ok_and(|o| o.status.success())
}

/// The devices of the rehearsal: PoCL where it is, else the CPU alone.
fn devices(binary: &str) -> &'static str {
    let out = Command::new(binary).args(["devices", "--json", "-"]).output().unwrap();
    let value: Value = serde_json::from_slice(&out.stdout).unwrap();
    if value["devices"].as_array().unwrap().iter().any(|d| d["id"] == "opencl:0") {
        return "cpu,opencl:0";
    }
    let required = std::env::var("GPUCTL_REQUIRE").unwrap_or_default();
    assert!(!required.split(',').any(|r| r.trim() == "opencl"), "GPUCTL_REQUIRE names opencl, opencl:0 is not there");
    eprintln!("skipped: tests/gpu.sh on opencl:0, which is not there; it runs on the CPU alone");
    "cpu"
}

/// A stand-in that answers every subcommand at once; `verify` finds something, `stress` is killed at first.
fn stand_in(folder: &Path) -> PathBuf {
    let path = folder.join("gpuctl");
    let script = r#"#!/bin/sh
command=$1
while [ $# -gt 1 ]; do [ "$1" = --json ] && json=$2; shift; done
document='{"schema": 1, "gpuctl": "0", "command": ["/a/folder/gpuctl", "COMMAND", "--json", "/a/file"], "complete": true,
 "exit_code": 0, "host": {"cpu": "c", "cpus": 2, "memory_bytes": 1, "os": "o"}, "devices": [{"id": "cuda:0", "uid": "u",
 "name": "Synthetic GPU", "class": "discrete", "driver": "1", "api": "a", "memory_bytes": null}], "absent": [], "records": []}'
[ -n "$json" ] && printf '%s' "$document" | sed "s/COMMAND/$command/" > "$json"
case "$command" in
    verify) exit 1 ;;
    stress) if [ -f "$0.tried" ]; then exit 0; else touch "$0.tried"; kill -KILL $$; fi ;;
    calibrate) echo 'schema = 1' ;;
esac
"#;
    std::fs::write(&path, script).unwrap();
    let status = Command::new("chmod").arg("+x").arg(&path).status().unwrap();
    assert!(status.success());
    path
}

fn report(from: &Path, into: &Path) -> PathBuf {
    let out = Command::new("python3")
        .arg(root().join("tests/report-from"))
        .arg(from)
        .arg("--into")
        .arg(into)
        .output()
        .unwrap();
    assert!(out.status.success(), "{}", text(&out.stderr));
    PathBuf::from(text(&out.stdout).trim())
}

/// The README's table of what has run where is made from the reports and from nothing else.
#[test]
fn the_table_of_the_readme_is_that_of_the_reports() {
    if !there("python3") {
        eprintln!("skipped: tests/report-from --table: no python3");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let project = folder.path();
    std::fs::create_dir_all(project.join("tests")).unwrap();
    std::fs::copy(root().join("tests/report-from"), project.join("tests/report-from")).unwrap();
    for entry in std::fs::read_dir(root().join("reports")).unwrap().flatten() {
        let to = project.join("reports").join(entry.file_name());
        std::fs::create_dir_all(&to).unwrap();
        for name in ["records.json", "environment.json"] {
            std::fs::copy(entry.path().join(name), to.join(name)).unwrap();
        }
    }
    let readme = std::fs::read_to_string(root().join("README.md")).unwrap();
    let (head, rest) = readme.split_once("<!-- status:").unwrap();
    let (_, tail) = rest.split_once("<!-- /status -->").unwrap();
    let made = || {
        let blank = format!("{head}<!-- status: made by tests/report-from --table -->\n\n<!-- /status -->{tail}");
        std::fs::write(project.join("README.md"), blank).unwrap();
        let out = Command::new("python3").arg(project.join("tests/report-from")).arg("--table").output().unwrap();
        assert!(out.status.success(), "{}", text(&out.stderr));
        std::fs::read_to_string(project.join("README.md")).unwrap()
    };
    assert_eq!(made(), readme, "the table is stale: tests/report-from --table");

    // A calibration says how many keys it measured; what was cut off or found something does not count.
    let document = |command: &str, name: &str, exit_code: u8, records: &str| {
        format!(
            r#"{{"command": ["gpuctl", "{command}"], "complete": false, "exit_code": {exit_code}, "records": [{records}],
            "devices": [{{"class": "discrete", "backend": "cuda", "name": "{name}"}}]}}"#
        )
    };
    let key = |verdict: &str| format!(r#"{{"kind": "calibrate", "verdict": "{verdict}"}}"#);
    let documents = [
        document("calibrate", "Half card", 0, &[key("never"), key("unmeasured")].join(",")),
        document("calibrate", "Idle card", 0, &key("unmeasured")),
        document("calibrate", "Odd card", 1, &key("never")),
        document("bench", "Cut card", 0, ""),
    ];
    let report = project.join("reports/synthetic");
    std::fs::create_dir_all(&report).unwrap();
    std::fs::write(report.join("environment.json"), "{}").unwrap();
    let records = format!(r#"{{"phases": [{{"phase": "a", "documents": [{}]}}]}}"#, documents.join(","));
    std::fs::write(report.join("records.json"), records).unwrap();
    let table = made();
    assert!(table.contains("measured: Half card, 1 of 2 keys ([undated](reports/synthetic/README.md))"), "{table}");
    assert!(!table.contains("Idle card") && !table.contains("Odd card") && !table.contains("Cut card"), "{table}");
}

#[cfg(unix)]
#[test]
fn a_failed_phase_is_reported_and_tried_again() {
    let folder = tempfile::tempdir().unwrap();
    let binary = stand_in(folder.path());
    let out = folder.path().join("out");
    let args = [binary.to_str().unwrap(), out.to_str().unwrap()];
    let first = gpu_sh(&args);
    let said = text(&first.stdout);
    assert_eq!(first.status.code(), Some(1), "{said}");
    assert!(said.contains("did not end as they should: verify-smoke stress verify-full"), "{said}");
    assert!(said.contains("stress: out of time (exit code 137"), "{said}");
    // Findings stand, the killed phase is tried again, the rest is skipped.
    let second = gpu_sh(&args);
    let said = text(&second.stdout);
    assert_eq!(second.status.code(), Some(1), "{said}");
    assert!(said.contains("stress: as it should") && said.contains("verify-smoke: ended before"), "{said}");
    assert!(said.contains("did not end as they should: verify-smoke verify-full\n"), "{said}");
    // One phase alone is run again on demand.
    let third = gpu_sh(&[args[0], args[1], "--phase", "bench"]);
    assert_eq!(third.status.code(), Some(0), "{}", text(&third.stdout));
    assert_eq!(std::fs::read_to_string(out.join("thresholds.toml")).unwrap(), "schema = 1\n");
    let files: Vec<_> = std::fs::read_dir(&out).unwrap().flatten().collect();
    assert!(files.len() <= 8, "{files:?}");
    if !there("python3") {
        eprintln!("skipped: tests/report-from: no python3");
        return;
    }
    let made = report(&out, &folder.path().join("reports"));
    assert!(made.file_name().unwrap().to_str().unwrap().ends_with("synthetic-gpu"), "{made:?}");
    let readme = std::fs::read_to_string(made.join("README.md")).unwrap();
    assert!(readme.contains("| verify-smoke | finding | 1 |"), "{readme}");
    assert!(readme.contains("real hardware") && !readme.contains("/a/"), "{readme}");
    let records: Value = serde_json::from_str(&std::fs::read_to_string(made.join("records.json")).unwrap()).unwrap();
    let names: Vec<&str> = records["phases"].as_array().unwrap().iter().filter_map(|p| p["phase"].as_str()).collect();
    // Each phase once: the last try counts.
    assert_eq!(names.len(), 10, "{names:?}");
    assert_eq!(records["phases"][0]["documents"].as_array().unwrap().len(), 2);
}

#[cfg(unix)]
#[test]
fn time_may_run_out_between_phases_and_usage_is_checked() {
    let folder = tempfile::tempdir().unwrap();
    let binary = stand_in(folder.path());
    let out = folder.path().join("out");
    let (binary, out) = (binary.to_str().unwrap(), out.to_str().unwrap());
    let none = gpu_sh(&[binary, out, "--for", "0"]);
    assert_eq!(none.status.code(), Some(3), "{}", text(&none.stdout));
    assert!(text(&none.stdout).contains("left for another call: devices verify-smoke"), "{}", text(&none.stdout));
    for args in [&[][..], &[binary, out, "--phase", "nap"], &["/none", out], &[binary, out, "--for", "soon"]] {
        assert_eq!(gpu_sh(args).status.code(), Some(2), "{args:?}");
    }
    // Known by its name alone, and no part of a plain run.
    for soak in ["stress-20", "stress-hour"] {
        let said = text(&gpu_sh(&[binary, out, "--phase", soak]).stdout);
        assert!(said.contains(&format!("{soak}: ")) && !said.contains("bench"), "{said}");
        assert!(!text(&gpu_sh(&["--list"]).stdout).contains(soak));
    }
}

/// Every phase with the real binary. Nothing but the exit codes of the phases and the files is asserted.
#[cfg(unix)]
#[test]
fn every_phase_runs_here() {
    let Some(binary) = option_env!("CARGO_BIN_EXE_gpuctl") else {
        eprintln!("skipped: tests/gpu.sh: built without the feature cli");
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("out");
    let run = gpu_sh(&[binary, out.to_str().unwrap(), "--quick", "--device", devices(binary)]);
    let said = text(&run.stdout);
    let journal = std::fs::read_to_string(out.join("phases.txt")).unwrap();
    // A finding or an inconclusive phase is possible on a busy machine; a crash or a usage error is not.
    assert!(!journal.contains("broken "), "{said}\n{journal}");
    assert_eq!(journal.lines().count(), 10, "{journal}");
    for name in ["environment.txt", "records.json", "output.txt", "thresholds.toml", "profile.toml"] {
        assert!(out.join(name).exists(), "{name}: {said}");
    }
    if !there("python3") {
        eprintln!("skipped: tests/report-from: no python3");
        return;
    }
    let made = report(&out, &folder.path().join("reports"));
    let readme = std::fs::read_to_string(made.join("README.md")).unwrap();
    assert!(readme.contains("a rehearsal, not a measurement") && readme.contains("--quick"), "{readme}");
    for heading in ["## Verify", "## Thresholds", "## Stress", "## Bench"] {
        let after = readme.split(heading).nth(1).unwrap();
        assert!(after.trim_start().starts_with('|'), "{heading} is empty:\n{readme}");
    }
    assert!(readme.contains(" phases passed, "), "the last line of a soak: {readme}");
}

#[test]
fn every_script_parses() {
    let scripts = [
        ("sh", "tests/gpu.sh"),
        ("sh", ".ci/run"),
        ("sh", "tests/fetch-cuda-compilers"),
        ("sh", "tests/fetch-intel-opencl"),
        ("sh", "benches/compare/fetch-mkl"),
        ("sh", "benches/compare/fetch-rivals"),
        ("bash", "tests/run"),
    ];
    for (shell, path) in scripts.into_iter().filter(|(shell, _)| *shell == "sh" || there(shell)) {
        let out = Command::new(shell).arg("-n").arg(root().join(path)).output().unwrap();
        assert!(out.status.success(), "{path}: {}", text(&out.stderr));
    }
    if !there("python3") {
        eprintln!("skipped: Python scripts: no python3");
        return;
    }
    for path in [
        "tests/report-from",
        "tests/reference.py",
        "benches/compare/opencl.py",
        "benches/compare/race_clblast.py",
        "benches/compare/race_copy.py",
        "benches/compare/race_cpu.py",
        "benches/compare/race_mkl.py",
        "benches/compare/race_torch.py",
        "benches/compare/records.py",
    ] {
        let program = "import ast, sys; ast.parse(open(sys.argv[1]).read())";
        let out = Command::new("python3").args(["-c", program]).arg(root().join(path)).output().unwrap();
        assert!(out.status.success(), "{path}: {}", text(&out.stderr));
    }
}
