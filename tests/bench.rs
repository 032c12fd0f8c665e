//! `gpuctl bench` in several processes, and against an earlier run, on simulated machines, whose times are known.

use std::process::{Command, Output};

use serde_json::Value;

const BENCH: [&str; 7] = ["bench", "--op", "add,gemm", "--sizes", "64,512", "--device", "sim:laptop:timing"];

fn gpuctl(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_gpuctl"));
    command.args(args);
    command
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn document(out: &Output) -> Value {
    serde_json::from_slice(&out.stdout).unwrap_or_else(|e| panic!("{e}: {}", text(&out.stderr)))
}

fn records<'a>(doc: &'a Value, kind: &str) -> Vec<&'a Value> {
    doc["records"].as_array().unwrap().iter().filter(|r| r["kind"] == kind).collect()
}

/// Rows of a run with the medians of `processes` processes.
fn run(processes: &str, more: &[&str]) -> Output {
    gpuctl(&BENCH).args(["--processes", processes, "--json", "-"]).args(more).output().unwrap()
}

#[test]
fn every_row_comes_from_as_many_processes_as_asked() {
    let out = run("3", &[]);
    assert_eq!(out.status.code(), Some(0), "{}", text(&out.stderr));
    let doc = document(&out);
    let rows = records(&doc, "bench");
    assert_eq!(rows.len(), 4);
    for row in rows {
        let medians: Vec<f64> =
            row["process_medians_s"].as_array().unwrap().iter().map(|v| v.as_f64().unwrap()).collect();
        assert_eq!(medians.len(), 3);
        // The preset's processes differ, and so do these.
        assert!(medians.iter().any(|m| *m != medians[0]), "{medians:?}");
        let ci = [&row["ci_s"][0], &row["ci_s"][1]].map(|v| v.as_f64().unwrap());
        let median = row["median_s"].as_f64().unwrap();
        assert!(ci[0] < median && median < ci[1], "{ci:?} {median}");
        assert!(row["between_processes"].as_f64().is_some());
        let samples = row["samples"].as_u64().unwrap() as usize;
        assert!(samples >= 21 && row["samples_s"].as_array().unwrap().len() <= 200);
    }
    let alone = document(&run("1", &[]));
    assert_eq!(records(&alone, "bench")[0]["between_processes"], Value::Null);
}

#[test]
fn a_run_is_judged_against_an_earlier_one() {
    let dir = tempfile::tempdir().unwrap();
    let (path, slow) = (dir.path().join("old.json"), dir.path().join("fast.json"));
    let old = run("3", &[]);
    std::fs::write(&path, &old.stdout).unwrap();
    let baseline = |path: &std::path::Path, more: &[&str]| {
        let path = path.to_str().unwrap().to_string();
        run("3", &[&["--baseline", &path, "--fail-on-regression"], more].concat())
    };
    // The simulator repeats itself.
    let same = baseline(&path, &[]);
    assert_eq!(same.status.code(), Some(0), "{}", text(&same.stderr));
    let doc = document(&same);
    let changes = records(&doc, "change");
    assert_eq!(changes.len(), 4);
    assert!(changes.iter().all(|c| c["verdict"] != "SLOWER" && c["verdict"] != "FASTER"), "{changes:?}");
    // An earlier run that was twice as fast at one row: that row is slower now, and no other.
    let mut earlier = document(&old);
    let row = earlier["records"].as_array_mut().unwrap().iter_mut().find(|r| r["op"] == "gemm").unwrap();
    for m in row["process_medians_s"].as_array_mut().unwrap() {
        *m = (m.as_f64().unwrap() / 2.0).into();
    }
    std::fs::write(&slow, earlier.to_string()).unwrap();
    let slower = baseline(&slow, &[]);
    assert_eq!(slower.status.code(), Some(1), "{}", text(&slower.stderr));
    let doc = document(&slower);
    let found: Vec<_> = records(&doc, "change").into_iter().filter(|c| c["verdict"] == "SLOWER").collect();
    assert_eq!(found.len(), 1, "{found:?}");
    assert_eq!(found[0]["op"], "gemm");
    assert!((found[0]["ratio"].as_f64().unwrap() - 2.0).abs() < 0.1, "{}", found[0]);
    // Another machine is refused, unless that is allowed.
    earlier["host"]["cpu"] = "another one".into();
    std::fs::write(&slow, earlier.to_string()).unwrap();
    let refused = baseline(&slow, &[]);
    assert_eq!(refused.status.code(), Some(2));
    assert!(refused.stdout.is_empty() && text(&refused.stderr).contains("another one"), "{}", text(&refused.stderr));
    let allowed = baseline(&slow, &["--allow-mismatch"]);
    assert_eq!(allowed.status.code(), Some(1), "{}", text(&allowed.stderr));
}

/// An earlier run whose rows of this op took half as long.
fn twice_as_fast(old: &Output, op: &str) -> Value {
    let mut earlier = document(old);
    for row in earlier["records"].as_array_mut().unwrap().iter_mut().filter(|r| r["kind"] == "bench" && r["op"] == op) {
        for m in row["process_medians_s"].as_array_mut().unwrap() {
            *m = (m.as_f64().unwrap() / 2.0).into();
        }
    }
    earlier
}

/// What has become so slow that it is left out has no time that could be called slower, and is no pass either.
#[test]
fn a_row_that_is_left_out_now_is_no_pass() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("old.json");
    let bench = |more: &[&str]| {
        let device = ["bench", "--op", "gemm", "--sizes", "64,2048", "--device", "sim:laptop:timing"];
        gpuctl(&device).args(["--processes", "2", "--json", "-"]).args(more).output().unwrap()
    };
    let old = bench(&["--budget", "40s"]);
    let rows = document(&old);
    let status = |doc: &Value, size: usize| records(doc, "bench")[size]["status"].as_str().unwrap().to_string();
    assert_eq!((status(&rows, 0), status(&rows, 1)), ("ok".into(), "ok".into()), "{}", text(&old.stderr));
    std::fs::write(&path, &old.stdout).unwrap();
    let new = bench(&["--budget", "20ms", "--baseline", path.to_str().unwrap(), "--fail-on-regression"]);
    let rows = document(&new);
    assert_eq!((status(&rows, 0), status(&rows, 1)), ("ok".into(), "skipped".into()), "{}", text(&new.stderr));
    assert_eq!(new.status.code(), Some(4), "{}", text(&new.stderr));
    let said = text(&new.stderr);
    let line = said.lines().find(|l| l.contains("measured in the baseline and not now")).expect("a line that names it");
    assert!(line.contains("gemm f32") && line.contains("sim:laptop") && line.contains("skipped"), "{line}");
}

#[test]
fn rows_with_cold_caches_are_not_held_against_hot_ones() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("hot.json");
    std::fs::write(&path, &run("2", &[]).stdout).unwrap();
    let cold = run("2", &["--cache", "cold", "--baseline", path.to_str().unwrap(), "--fail-on-regression"]);
    assert_eq!(cold.status.code(), Some(4), "{}", text(&cold.stderr));
    let doc = document(&cold);
    let changes = records(&doc, "change");
    assert!(!changes.is_empty() && changes.iter().all(|c| c["verdict"] == "NOT COMPARABLE"), "{changes:?}");
}

#[cfg(unix)]
#[test]
fn an_interruption_while_rows_are_measured_again_leaves_the_run_incomplete() {
    use std::io::{BufRead, Read};
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("fast.json");
    std::fs::write(&path, twice_as_fast(&run("3", &[]), "gemm").to_string()).unwrap();
    let mut child = gpuctl(&BENCH)
        .args(["--processes", "24", "--json", "-", "--baseline", path.to_str().unwrap()])
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let mut talk = std::io::BufReader::new(child.stderr.take().unwrap()).lines().map_while(Result::ok);
    assert!(talk.by_ref().any(|l| l.contains("once more")), "nothing was measured again");
    assert!(Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap().success());
    talk.for_each(drop);
    let mut said = String::new();
    child.stdout.take().unwrap().read_to_string(&mut said).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(130));
    let doc: Value = serde_json::from_str(&said).unwrap();
    assert_eq!((&doc["complete"], &doc["exit_code"]), (&false.into(), &130.into()));
    // What was finished before is kept.
    assert_eq!((records(&doc, "bench").len(), records(&doc, "change").len()), (4, 4));
}

#[test]
fn what_is_no_baseline_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("bad.json");
    for (content, says) in
        [("", "no document"), ("{}", "no document"), ("[1, 2", "no document"), ("{\"schema\": 1}", "no document")]
    {
        std::fs::write(&path, content).unwrap();
        let out = run("2", &["--baseline", path.to_str().unwrap()]);
        assert_eq!(out.status.code(), Some(2), "{content}");
        let said = text(&out.stderr);
        assert!(said.contains(says) && said.lines().count() == 1, "{said}");
        assert!(out.stdout.is_empty());
    }
    let out = run("2", &["--baseline", dir.path().join("none.json").to_str().unwrap()]);
    assert_eq!(out.status.code(), Some(2), "{}", text(&out.stderr));
    // A single process says too little.
    let one = run("1", &[]);
    std::fs::write(&path, &one.stdout).unwrap();
    let unknown = run("2", &["--baseline", path.to_str().unwrap(), "--fail-on-regression"]);
    assert_eq!(unknown.status.code(), Some(4), "nothing was compared: {}", text(&unknown.stderr));
    let doc = document(&unknown);
    let changes = records(&doc, "change");
    assert!(!changes.is_empty() && changes.iter().all(|c| c["verdict"] == "NOT COMPARABLE"), "{changes:?}");
    for bad in ["0", "65", "x"] {
        assert_eq!(run(bad, &[]).status.code(), Some(2), "{bad}");
    }
}

#[cfg(unix)]
#[test]
fn workers_that_die_leave_failed_rows() {
    let mut child =
        gpuctl(&["bench", "--op", "gemm", "--sizes", "64..1024", "--device", "cpu", "--budget", "9s", "--json", "-"])
            .stdout(std::process::Stdio::piped())
            .spawn()
            .unwrap();
    // The first worker that is seen is killed.
    let id = child.id().to_string();
    let worker = std::iter::repeat_with(|| {
        std::thread::sleep(std::time::Duration::from_millis(20));
        let out = Command::new("pgrep").args(["-P", &id]).output().unwrap();
        text(&out.stdout).lines().next().map(str::to_string)
    });
    let worker = worker.take(500).flatten().next().expect("a worker");
    assert!(Command::new("kill").args(["-KILL", &worker]).status().unwrap().success());
    let mut said = String::new();
    std::io::Read::read_to_string(&mut child.stdout.take().unwrap(), &mut said).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(1));
    let doc: Value = serde_json::from_str(&said).unwrap();
    let rows = records(&doc, "bench");
    assert_eq!(rows.len(), 5);
    let failed: Vec<_> = rows.iter().filter(|r| r["status"] == "failed").collect();
    assert_eq!(failed.len(), 1, "{failed:?}");
    assert!(failed[0]["reason"].as_str().unwrap().contains("process 1"), "{}", failed[0]["reason"]);
    // The others were measured by later processes, as far as the budget held on a busy machine.
    let others: Vec<_> =
        rows.iter().filter(|r| ["ok", "skipped", "suspect"].map(Some).contains(&r["status"].as_str())).collect();
    assert!(others.len() == 4 && others.iter().any(|r| r["status"] == "ok"), "{others:?}");
}
