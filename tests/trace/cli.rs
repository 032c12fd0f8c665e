//! `--trace FILE` on every job, workers that die, files that cannot be written.

use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use gpuctl::base::record::BenchRecord;
use gpuctl::base::trace::{Kind, Process};
use gpuctl::base::{HostTensor, Record};
use gpuctl::device::tap::{KEPT, Tracer};
use gpuctl::device::{MemoryKind, sim, traced};
use gpuctl::measure::Residency;
use serde_json::Value;

use crate::format::parse;
use crate::records::disagreements;

struct Ran {
    code: Option<i32>,
    stdout: String,
    stderr: String,
}

fn gpuctl(folder: &Path, args: &[&str]) -> Ran {
    let out = Command::new(env!("CARGO_BIN_EXE_gpuctl"))
        .args(args)
        .current_dir(folder)
        .env("XDG_STATE_HOME", folder)
        .env("XDG_CONFIG_HOME", folder)
        .env("XDG_CACHE_HOME", folder)
        .env_remove("GPUCTL_REQUIRE")
        .output()
        .unwrap();
    let text = |b: &[u8]| String::from_utf8_lossy(b).into_owned();
    Ran { code: out.status.code(), stdout: text(&out.stdout), stderr: text(&out.stderr) }
}

pub(crate) fn json(path: &Path) -> Value {
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

/// Nothing but what was asked for is left beside the file.
fn files(folder: &Path) -> Vec<String> {
    let mut names: Vec<String> =
        std::fs::read_dir(folder).unwrap().map(|e| e.unwrap().file_name().to_string_lossy().into_owned()).collect();
    names.retain(|n| n != "gpuctl");
    names.sort();
    names
}

#[test]
fn workers_parts_are_joined_and_agree_with_the_document() {
    let folder = tempfile::tempdir().unwrap();
    let args = "bench --op gemm,relu,sum --sizes 256 --device sim:h200,cpu --budget 2s --processes 3 --trace t.json --json b.json";
    let ran = gpuctl(folder.path(), &args.split(' ').collect::<Vec<_>>());
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    assert_eq!(files(folder.path()), ["b.json", "t.json"]);
    let doc = json(&folder.path().join("t.json"));
    let events = parse(&doc).unwrap();
    assert_eq!(doc["gpuctl"]["complete"], true, "{}", doc["gpuctl"]);
    let records = json(&folder.path().join("b.json"));
    let rows: Vec<BenchRecord> = records["records"]
        .as_array()
        .unwrap()
        .iter()
        .filter_map(|r| serde_json::from_value::<Record>(r.clone()).ok())
        .filter_map(|r| match r {
            Record::Bench(b) => Some(*b),
            _ => None,
        })
        .collect();
    assert_eq!(rows.len(), 6);
    assert!(rows.iter().all(|r| r.process_medians_s.len() == 3));
    let rows: Vec<&BenchRecord> = rows.iter().collect();
    assert_eq!(disagreements(&events, &rows, Residency::Resident), [""; 0]);
    let workers = doc["gpuctl"]["processes"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|p| p["name"].as_str().unwrap().contains("worker"));
    assert_eq!(workers.count(), 3);
    assert!(ran.stderr.contains("trace: op") && ran.stderr.contains("gemm"), "{}", ran.stderr);
    assert!(!ran.stdout.contains("trace:"), "stdout is data");
}

#[test]
fn every_job_that_runs_kernels_traces() {
    let folder = tempfile::tempdir().unwrap();
    let x = HostTensor::from_slice(&[1.0f32, -2.0, 3.0], &[3]).unwrap();
    gpuctl::base::npy::write(&[(&folder.path().join("x.npy"), &x)]).unwrap();
    for args in [
        "verify --op relu --dtype f32 --device cpu,sim:h200",
        "calibrate --op relu --device sim:h200 --budget 20s --processes 3",
        "run relu --in x.npy --out y.npy --device cpu",
        "run relu --in x.npy --out y.npy --profile always-cpu",
        "stress --seconds 3 --scenario concurrent --device cpu --no-journal",
        "devices --trial --op relu --dtype f32 --device cpu",
        "devices --measure --device sim:laptop:timing --budget 300ms --processes 2",
    ] {
        let ran = gpuctl(folder.path(), &format!("{args} --trace t.json").split(' ').collect::<Vec<_>>());
        assert_eq!(ran.code, Some(0), "{args}: {}", ran.stderr);
        let doc = json(&folder.path().join("t.json"));
        let events = parse(&doc).unwrap();
        let launches = events.iter().filter(|e| e.cat == "launch" && e.text("op") == "relu").count();
        let other = args.starts_with("stress") || args.contains("measure");
        assert!(launches > 0 || other, "{args}: {}", ran.stderr);
        assert!(events.iter().any(|e| e.cat == "launch"), "{args}: {}", ran.stderr);
        assert!(ran.stderr.contains("trace: op"), "{args}: {}", ran.stderr);
        assert_eq!(doc["gpuctl"]["summary"]["cut"], serde_json::json!({}), "{args}");
        std::fs::remove_file(folder.path().join("t.json")).unwrap();
    }
    assert_eq!(files(folder.path()), ["x.npy", "y.npy"]);
}

/// A worker that dies leaves what it did until shortly before; the one after it is whole; both are said.
#[test]
fn a_crashed_worker_leaves_its_part() {
    let folder = tempfile::tempdir().unwrap();
    let args =
        "stress --seconds 6 --scenario soak --device cpu --no-journal --inject crash --fail-early --trace t.json";
    let ran = gpuctl(folder.path(), &args.split(' ').collect::<Vec<_>>());
    assert_eq!(ran.code, Some(5), "{}", ran.stderr);
    let doc = json(&folder.path().join("t.json"));
    let events = parse(&doc).unwrap();
    let cut: Vec<u64> = doc["gpuctl"]["processes"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|p| p["cut"] != "")
        .map(|p| p["pid"].as_u64().unwrap())
        .collect();
    assert!(!cut.is_empty() && doc["gpuctl"]["complete"] == false, "{}", doc["gpuctl"]);
    assert!(events.iter().filter(|e| e.pid == cut[0] && e.cat == "launch").count() > 20);
    assert!(ran.stderr.contains("its end is missing"), "{}", ran.stderr);
    assert_eq!(files(folder.path()), ["t.json"]);
}

#[test]
fn a_file_that_cannot_be_written_is_refused_before_anything_runs() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir(folder.path().join("taken")).unwrap();
    for file in ["-", "no/such/folder/t.json", "taken", "/dev/null"] {
        let args = ["bench", "--op", "relu", "--sizes", "64", "--device", "sim:h200", "--trace", file];
        let ran = gpuctl(folder.path(), &args);
        assert_eq!((ran.code, ran.stdout.as_str()), (Some(2), ""), "{file}: {}", ran.stderr);
        assert!(ran.stderr.contains("--trace"), "{file}: {}", ran.stderr);
    }
    assert_eq!(files(folder.path()), ["taken"]);
}

#[test]
fn parts_say_whether_they_are_whole() {
    use gpuctl::engine::trace::{Part, Target};
    let work = |tracer: &Arc<Tracer>| {
        let device = traced::device(sim::open("h200").unwrap().1, tracer);
        drop(device.alloc(64, MemoryKind::Device).unwrap());
    };
    let cut = |spoil: &dyn Fn(&Part, &Arc<Tracer>, &Path)| {
        let folder = tempfile::tempdir().unwrap();
        let target = Target::new(&folder.path().join("t.json")).unwrap();
        let tracer = Tracer::new("worker", KEPT);
        let part = Part::new(target.parts(), &tracer).unwrap();
        part.begin().unwrap();
        work(&tracer);
        part.write(true).unwrap();
        spoil(&part, &tracer, target.parts());
        let (trace, left_out) = target.finish(Process { pid: 1, ..Process::default() }).unwrap();
        assert_eq!((trace.processes.len(), left_out), (1, 0));
        parse(&json(&folder.path().join("t.json"))).unwrap();
        let p = &trace.processes[0];
        let allocs = p.events.iter().filter(|e| e.kind == Kind::Alloc).count();
        (allocs, !p.cut.is_empty())
    };
    assert_eq!(cut(&|_, _, _| {}), (1, false));
    let again = |part: &Part, tracer: &Arc<Tracer>| {
        part.begin().unwrap();
        work(tracer);
        part.write(true).unwrap();
    };
    assert_eq!(cut(&|part, tracer, _| again(part, tracer)), (2, false));
    assert_eq!(cut(&|part, _, _| part.begin().unwrap()), (1, true), "work that nobody heard of again");
    let shorten = |part: &Part, tracer: &Arc<Tracer>, parts: &Path| {
        again(part, tracer);
        let file = std::fs::read_dir(parts).unwrap().next().unwrap().unwrap().path();
        let bytes = std::fs::read(&file).unwrap();
        std::fs::write(&file, &bytes[..bytes.len() - 20]).unwrap();
    };
    assert_eq!(cut(&shorten), (1, true), "a line that ends early");
}
