//! `gpuctl devices` as a user sees it, on whatever this machine has.

#![cfg(feature = "cli")]

use std::process::{Command, Output};

use gpuctl::base::facts::uid_explained;
use serde_json::Value;

fn gpuctl(args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_gpuctl"));
    command.args(args).env_remove("GPUCTL_REQUIRE").output().expect("gpuctl starts")
}

fn text(args: &[&str]) -> String {
    let out = gpuctl(args);
    assert!(out.status.success(), "{args:?}: {}", String::from_utf8_lossy(&out.stderr));
    String::from_utf8(out.stdout).expect("UTF-8")
}

fn ids(value: &Value) -> Vec<&str> {
    value.as_array().expect("a list").iter().map(|v| v.as_str().expect("a text")).collect()
}

/// One run of each form tells the same devices.
#[test]
fn every_form_tells_the_same_devices() {
    let doc: Value = serde_json::from_str(&text(&["devices", "--json", "-"])).expect("JSON");
    let devices: Vec<&Value> = doc["devices"].as_array().expect("devices").iter().collect();
    let (records, trials): (Vec<&Value>, Vec<&Value>) =
        doc["records"].as_array().expect("records").iter().partition(|r| r["kind"] == "hardware");
    // Of each device what trials have left on record.
    assert!(trials.iter().all(|r| r["kind"] == "trial"), "{trials:?}");
    let pairs = trials.iter().map(|r| &r["device"]).zip(devices.iter().map(|d| &d["id"]));
    assert!(trials.len() == devices.len() && pairs.into_iter().all(|(a, b)| a == b), "{trials:?}");

    // Each device belongs to one piece of hardware: nothing twice, nothing left out.
    let mut of_hardware: Vec<&str> = records.iter().flat_map(|r| ids(&r["ids"])).collect();
    let mut listed: Vec<&str> = devices.iter().map(|d| d["id"].as_str().expect("an id")).collect();
    of_hardware.sort_unstable();
    listed.sort_unstable();
    assert_eq!(of_hardware, listed);
    let mut uids: Vec<&str> = devices.iter().map(|d| d["uid"].as_str().expect("a uid")).collect();
    assert!(uids.iter().all(|u| !uid_explained(u).is_empty()));
    uids.sort_unstable();
    uids.dedup();
    assert_eq!(uids.len(), devices.len());

    // What computes on the processor is the processor, and is flagged.
    let processor = records.iter().find(|r| r["class"] == "cpu").expect("the processor");
    assert!(ids(&processor["ids"]).contains(&"cpu"));
    for d in &devices {
        let soft = d["class"] == "software";
        let there = ids(&processor["ids"]).contains(&d["id"].as_str().expect("an id"));
        assert_eq!(there, soft || d["class"] == "cpu", "{d}");
    }

    let table = text(&["devices"]);
    let wide = text(&["devices", "--wide"]);
    let lines = text(&["devices", "--line"]);
    for d in &devices {
        let (id, uid) = (d["id"].as_str().expect("an id"), d["uid"].as_str().expect("a uid"));
        assert!(table.contains(id) && wide.contains(id) && wide.contains(uid), "{id}");
        let line = lines.lines().find(|l| l.starts_with(&format!("{id} "))).expect("a line");
        let words: Vec<&str> = line.splitn(5, ' ').collect();
        let name = d["name"].as_str().expect("a name");
        assert_eq!([words[1], words[3], words[4]], [d["class"].as_str().expect("a class"), uid, name]);
        assert!(["yes", "no", "unknown", "host"].contains(&words[2]), "{line}");
    }
    assert_eq!(lines.lines().count(), devices.len() + records.iter().filter(|r| ids(&r["ids"]).is_empty()).count());
    let rows: Vec<&str> = table.lines().filter(|l| l.starts_with('|')).collect();
    assert!(rows.len() > devices.len());
    assert!(rows.iter().all(|l| l.chars().count() <= 100), "the table fits 100 columns:\n{table}");
    // And so does all that stands around it, but for what has no blanks.
    for said in [&table, &text(&["devices", "--why"])] {
        let over = |l: &&str| l.chars().count() > 100 && l.split_whitespace().all(|word| word.chars().count() < 80);
        assert_eq!(said.lines().find(over), None, "wider than 100 columns");
    }
    assert!(wide.lines().next().expect("a header").len() > 200, "the wide table has everything:\n{wide}");
}

#[test]
fn everything_known_is_told_with_its_reason() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_gpuctl"));
    command
        .args(["devices", "--why", "--backend", "cpu"])
        .env("CUDA_VISIBLE_DEVICES", "2")
        .env_remove("GPUCTL_REQUIRE");
    let why = String::from_utf8(command.output().expect("gpuctl starts").stdout).expect("UTF-8");
    assert!(why.contains("hides devices  CUDA_VISIBLE_DEVICES=2"), "{why}");
    for part in [
        "host  ",
        "    processors ",
        "uid            cpu (the host's processor",
        "dtypes         stored f32",
        "free memory",
    ] {
        assert!(why.contains(part), "{part} in\n{why}");
    }
    assert!(!why.contains("cuda"), "only the processor was asked for:\n{why}");
    let map: Value =
        serde_json::from_str(&text(&["devices", "--topology", "--backend", "cpu", "--json", "-"])).expect("JSON");
    assert_eq!(map["records"][0]["kind"], "topology");
    if cfg!(target_os = "linux") {
        let nodes = map["records"][0]["nodes"].as_array().expect("nodes");
        assert!(nodes.iter().all(|n| !n["cpus"].is_null()), "{nodes:?}");
        assert!(text(&["devices", "--topology", "--backend", "cpu"]).contains("NUMA node"));
    }
}

#[test]
fn the_live_view_ends_when_told_to() {
    let view = text(&["devices", "--watch", "--interval", "50ms", "--count", "3"]);
    assert_eq!(view.lines().filter(|l| l.contains(" host  load")).count(), 3, "{view}");
    assert!(!view.contains('\x1b'), "no terminal, no control sequences");
    assert_eq!(view.lines().count() % 3, 0, "each look has the same lines:\n{view}");
}

/// `gpuctl devices --watch | head -1` ends, too.
#[test]
fn the_live_view_ends_with_its_reader() {
    use std::io::{BufRead, BufReader};
    let mut command = Command::new(env!("CARGO_BIN_EXE_gpuctl"));
    command.args(["devices", "--watch", "--interval", "20ms"]).stdout(std::process::Stdio::piped());
    let mut child = command.spawn().expect("gpuctl starts");
    let mut line = String::new();
    BufReader::new(child.stdout.take().expect("a pipe")).read_line(&mut line).expect("a line");
    assert!(line.contains(" host  load"), "{line}");
    // The reader is gone now.
    assert_eq!(child.wait().expect("it ends").code(), Some(0));
}

#[test]
fn bad_arguments_are_refused_in_one_line() {
    for (args, word) in [
        (&["devices", "--backend", "vulkan"][..], "vulkan"),
        (&["devices", "--backend", "sim"], "sim"),
        (&["devices", "--watch", "--interval", "0"], "--interval"),
        (&["devices", "--watch", "--interval=-1s"], "--interval"),
        (&["devices", "--watch", "--count", "0"], "--count"),
        (&["devices", "--count", "2"], "--watch"),
        (&["devices", "--topology", "--line"], "--line"),
        (&["devices", "--watch", "--json", "-"], "--json"),
    ] {
        let out = gpuctl(args);
        let said = String::from_utf8_lossy(&out.stderr);
        assert_eq!(out.status.code(), Some(2), "{args:?}: {said}");
        assert!(said.contains(word) && out.stdout.is_empty(), "{args:?}: {said}");
    }
}
