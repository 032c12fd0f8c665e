//! The JSON document against its JSON Schema: made from records in code, and as the subcommands write it.

#![allow(clippy::print_stderr, reason = "skips are named")]

#[path = "schema/fitness.rs"]
mod fitness;
#[path = "schema/made.rs"]
mod made;
#[path = "schema/validate.rs"]
mod validate;

use std::process::Command;

use gpuctl::base::record::{
    AblateRecord, CeilingRecord, HealthRecord, Host, NoiseRecord, SCHEMA, StressRecord, StressRunRecord, TrialRecord,
    WorkloadRecord,
};
use gpuctl::base::telemetry::Watched;
use gpuctl::base::{Absence, Backend, DType, Document, HostTensor, Record, Status, npy};
use gpuctl::op;
use serde_json::{Value, json};

use fitness::{health, system, trial};
use made::{
    ablate, bench, calibrate, ceiling, change, device, error, explain, hardware, kernels, noise, regret, run, stress,
    stress_run, support, threshold, topology, verify, watched, workload,
};
use validate::validate;

fn schema() -> Value {
    serde_json::from_str(include_str!("schema/document.schema.json")).unwrap()
}

fn document(records: Vec<Record>) -> Document {
    Document {
        schema: SCHEMA,
        gpuctl: env!("CARGO_PKG_VERSION").into(),
        command: vec!["gpuctl".into(), "bench".into()],
        complete: true,
        exit_code: 0,
        host: Host {
            cpu: "synthetic".into(),
            cpus: 2,
            memory_bytes: 1 << 34,
            os: "synthetic".into(),
            awake: true,
            system: Some(system()),
        },
        devices: vec![device()],
        absent: vec![Absence {
            backend: Backend::Wgpu,
            what: "libvulkan".into(),
            reason: "not found".into(),
            next: "install it".into(),
        }],
        records,
    }
}

fn faults(records: Vec<Record>) -> Vec<String> {
    validate(&schema(), &serde_json::to_value(document(records)).unwrap())
}

fn every_kind() -> Vec<Record> {
    let mut records = vec![
        Record::Bench(Box::new(bench(Status::Ok, ""))),
        Record::Bench(Box::new(bench(Status::Skipped, "predicted 31 s, budget 10 s"))),
        Record::Change(Box::new(change("SLOWER", ""))),
        Record::Change(Box::new(change("NOT COMPARABLE", "the baseline has no such row"))),
        Record::Threshold(Box::new(threshold("SAME", ""))),
        Record::Threshold(Box::new(threshold("MOVED", "+20 %: the intervals do not touch"))),
        Record::Verify(Box::new(verify(0.5, Status::Ok))),
        Record::Verify(Box::new(verify(f64::INFINITY, Status::Failed))),
        Record::Regret(Box::new(regret("ok"))),
        Record::Regret(Box::new(regret("always-cpu"))),
        Record::Stress(Box::new(stress("pass", 4096))),
        Record::Stress(Box::new(stress("inconclusive", 0))),
        Record::StressRun(Box::new(stress_run("pass", 0))),
        Record::StressRun(Box::new(stress_run("degradation", 1))),
        Record::StressRun(Box::new(StressRunRecord { interrupted: true, ..stress_run("inconclusive", 130) })),
        Record::Run(Box::new(run())),
        Record::Support(Box::new(support("yes", ""))),
        Record::Support(Box::new(support("no", "needs cl_khr_fp64"))),
        Record::Ceiling(Box::new(ceiling(Status::Ok, ""))),
        Record::Ceiling(Box::new(ceiling(Status::Unsupported, "no pinned memory"))),
        Record::Noise(Box::new(noise(""))),
        Record::Ablate(Box::new(ablate(Status::Ok, ""))),
        Record::Ablate(Box::new(ablate(Status::Unsupported, "no pinned memory"))),
        Record::Kernels(Box::new(kernels("on", 3))),
        Record::Kernels(Box::new(kernels("off", 0))),
        Record::Health(Box::new(health("healthy"))),
        Record::Health(Box::new(health("finding"))),
        Record::Health(Box::new(health("unknown"))),
        Record::Trial(Box::new(trial("fit"))),
        Record::Trial(Box::new(trial("unfit"))),
        Record::Trial(Box::new(trial("unjudged"))),
        Record::Hardware(Box::new(hardware(&["cuda:0"], &[]))),
        Record::Hardware(Box::new(hardware(&[], &["no driver has it"]))),
        Record::Topology(Box::new(topology("nvlink"))),
        Record::Explain(Box::new(explain("error"))),
        Record::Explain(Box::new(explain("status"))),
    ];
    let mut failed = bench(Status::Failed, "compile-failed: ..");
    failed.subject.error = Some(Box::new((&error()).into()));
    records.push(Record::Bench(Box::new(failed)));
    for v in ["always", "never", "crossing", "non-monotone", "inconclusive", "unmeasured", "unsafe"] {
        records.push(Record::Calibrate(Box::new(calibrate(v))));
    }
    records.extend(["yes", "no", "unclear"].map(|w| Record::Workload(Box::new(workload(w)))));
    records
}

#[test]
fn documents_made_in_code_fit() {
    let found = faults(every_kind());
    assert!(found.is_empty(), "{}", found.join("\n"));
    assert!(faults(Vec::new()).is_empty());
}

/// What cannot be written as a JSON number must not make the document unreadable.
#[test]
fn documents_survive_a_round_trip() {
    let before = document(every_kind());
    let text = serde_json::to_string(&before).unwrap();
    let after: Document = serde_json::from_str(&text).unwrap();
    let again = serde_json::to_string(&after).unwrap();
    assert_eq!(text, again);
    assert_eq!(after.records.len(), before.records.len());
}

/// The invariants of a record are in the schema too: a row that counts has a time, a pass has checked something.
#[test]
fn contradictions_are_found() {
    let mut no_time = bench(Status::Ok, "");
    no_time.median_s = None;
    let mut nowhere = bench(Status::Ok, "");
    nowhere.subject.ran_on = String::new();
    let mut many = bench(Status::Ok, "");
    many.samples_s = vec![1.0; 201];
    let mut passed_wrong = verify(0.5, Status::Ok);
    passed_wrong.wrong = 1;
    let mut run_nowhere = run();
    run_nowhere.subject.ran_on = String::new();
    let mut no_threshold = calibrate("crossing");
    no_threshold.threshold = None;
    let mut unsafe_threshold = calibrate("unsafe");
    unsafe_threshold.threshold = Some(1);
    for (record, word) in [
        (Record::Bench(Box::new(no_time)), "median_s"),
        (Record::Bench(Box::new(nowhere)), "ran_on"),
        (Record::Bench(Box::new(many)), "maxItems"),
        (Record::Bench(Box::new(bench(Status::Skipped, ""))), "reason"),
        (Record::Change(Box::new(change("NOT COMPARABLE", ""))), "reason"),
        (Record::Change(Box::new(change("SAME", "one process"))), "ratio"),
        (Record::Change(Box::new(change("perhaps", ""))), "perhaps"),
        (Record::Threshold(Box::new(threshold("MOVED", ""))), "reason"),
        (Record::Threshold(Box::new(threshold("perhaps", ""))), "perhaps"),
        (Record::Verify(Box::new(passed_wrong)), "wrong"),
        (Record::Run(Box::new(run_nowhere)), "ran_on"),
        (Record::Support(Box::new(support("undefined", ""))), "reason"),
        (Record::Ceiling(Box::new(ceiling(Status::Skipped, ""))), "reason"),
        (Record::Ceiling(Box::new(CeilingRecord { value: None, ..ceiling(Status::Ok, "") })), "value"),
        (Record::Noise(Box::new(NoiseRecord { sound: false, ..noise("") })), "reason"),
        (Record::Ablate(Box::new(ablate(Status::Failed, ""))), "reason"),
        (Record::Ablate(Box::new(AblateRecord { gain: None, ..ablate(Status::Ok, "") })), "gain"),
        (Record::Hardware(Box::new(hardware(&[], &[]))), "notes"),
        (Record::Topology(Box::new(topology("a wire"))), "a wire"),
        (Record::Health(Box::new(health("fine"))), "fine"),
        (Record::Health(Box::new(HealthRecord { findings: Vec::new(), ..health("finding") })), "findings"),
        (Record::Health(Box::new(HealthRecord { checked: Vec::new(), ..health("healthy") })), "checked"),
        (Record::Trial(Box::new(trial("well"))), "well"),
        (Record::Trial(Box::new(TrialRecord { passed: 0, ..trial("fit") })), "passed"),
        (Record::Trial(Box::new(TrialRecord { failed: 1, ..trial("fit") })), "failed"),
        (Record::Trial(Box::new(TrialRecord { found: None, ..trial("unfit") })), "found"),
        (Record::Trial(Box::new(TrialRecord { reason: String::new(), ..trial("unjudged") })), "reason"),
        (Record::Calibrate(Box::new(no_threshold)), "threshold"),
        (Record::Calibrate(Box::new(unsafe_threshold)), "threshold"),
        (Record::Calibrate(Box::new(calibrate("perhaps"))), "perhaps"),
        (Record::Regret(Box::new(regret("perhaps"))), "perhaps"),
        (Record::Workload(Box::new(workload("perhaps"))), "perhaps"),
        (Record::Workload(Box::new(WorkloadRecord { gain_ci: None, ..workload("yes") })), "gain_ci"),
        (Record::Workload(Box::new(WorkloadRecord { unknown: 1, ..workload("yes") })), "unknown"),
        (Record::Stress(Box::new(stress("pass", 0))), "bytes_checked"),
        (Record::StressRun(Box::new(stress_run("pass", 1))), "exit_code"),
        (Record::StressRun(Box::new(StressRunRecord { interrupted: true, ..stress_run("pass", 0) })), "interrupted"),
        (Record::StressRun(Box::new(StressRunRecord { interrupted: true, ..stress_run("crash", 130) })), "verdict"),
        (
            Record::StressRun(Box::new(StressRunRecord { findings: vec!["slow".into()], ..stress_run("pass", 0) })),
            "findings",
        ),
        (Record::Stress(Box::new(StressRecord { telemetry: Watched::default(), ..stress("pass", 1) })), "telemetry"),
        (
            Record::Stress(Box::new(StressRecord {
                telemetry: Watched { lost: true, ..watched() },
                ..stress("pass", 1)
            })),
            "lost",
        ),
    ] {
        let found = faults(vec![record]).join("; ");
        assert!(found.contains(word), "'{word}' is not in: {found}");
    }
}

/// Each kind of record in a document of its own, with the paths that it is there for: everything of the first, of the others
/// the record. Spoiling one of them is judged without looking at all others again.
fn each_with_paths() -> Vec<(Value, Vec<String>)> {
    let of = |(i, record): (usize, Record)| {
        let whole = serde_json::to_value(document(vec![record])).unwrap();
        let mut paths = Vec::new();
        collect(&whole, String::new(), &mut paths);
        paths.retain(|p| i == 0 || p.starts_with("/records/"));
        (whole, paths)
    };
    every_kind().into_iter().enumerate().map(of).collect()
}

/// Every value of every field is looked at: replace each in turn by something of another type.
#[test]
fn a_wrong_type_anywhere_is_found() {
    let schema = schema();
    let mut looked = 0;
    for (whole, paths) in each_with_paths() {
        looked += paths.len();
        for path in paths {
            let mut broken = whole.clone();
            // No field may hold a list that holds an object.
            *broken.pointer_mut(&path).unwrap() = json!([{"planted": true}]);
            assert!(!validate(&schema, &broken).is_empty(), "{path} is not checked");
        }
    }
    assert!(looked > 1000, "{looked}");
}

#[test]
fn a_missing_or_a_surplus_field_is_found() {
    let schema = schema();
    let mut looked = 0;
    for (i, (whole, paths)) in each_with_paths().into_iter().enumerate() {
        let objects = paths
            .into_iter()
            .chain((i == 0).then(String::new))
            .filter(|p| whole.pointer(p).is_some_and(Value::is_object))
            // These have names of the op's or the scenario's own choosing.
            .filter(|p| !["/shape", "/attrs", "/counters", "/speeds"].iter().any(|own| p.ends_with(own)));
        for path in objects {
            looked += 1;
            let mut more = whole.clone();
            more.pointer_mut(&path).unwrap().as_object_mut().unwrap().insert("planted".into(), json!(1));
            assert!(!validate(&schema, &more).is_empty(), "{path}: a surplus field is not found");
            let names: Vec<String> = whole.pointer(&path).unwrap().as_object().unwrap().keys().cloned().collect();
            for name in names {
                let mut less = whole.clone();
                less.pointer_mut(&path).unwrap().as_object_mut().unwrap().remove(&name);
                assert!(!validate(&schema, &less).is_empty(), "{path}/{name} may be missing");
            }
        }
    }
    assert!(looked > 60, "{looked}");
}

fn collect(value: &Value, at: String, out: &mut Vec<String>) {
    let children: Vec<(String, &Value)> = match value {
        // Names as in RFC 6901: a case has strokes in its own.
        Value::Object(o) => o.iter().map(|(k, v)| (k.replace('~', "~0").replace('/', "~1"), v)).collect(),
        Value::Array(a) => a.iter().enumerate().map(|(i, v)| (i.to_string(), v)).collect(),
        _ => Vec::new(),
    };
    for (name, child) in children {
        let path = format!("{at}/{name}");
        out.push(path.clone());
        collect(child, path, out);
    }
}

#[test]
fn the_validator_refuses_keywords_it_does_not_know() {
    assert!(validate(&json!({"type": "string", "pattern": "a"}), &json!("a"))[0].contains("pattern"));
    assert!(!validate(&json!({"$ref": "#/$defs/none"}), &json!("a")).is_empty());
    assert!(
        !validate(&json!({"maximum": 1}), &json!(1.5)).is_empty()
            && validate(&json!({"maximum": 1}), &json!(1)).is_empty()
    );
    assert!(!validate(&json!({"type": "strnig"}), &json!("a")).is_empty());
    assert!(!validate(&json!({"oneOf": [{"type": "number"}, {"minimum": 0}]}), &json!(1)).is_empty());
}

/// What a subcommand writes fits; `None` if this build has no binary.
fn written(args: &[&str]) -> Option<Value> {
    let Some(binary) = option_env!("CARGO_BIN_EXE_gpuctl") else {
        eprintln!("skipped: gpuctl {}: built without the feature cli", args.join(" "));
        return None;
    };
    let out = Command::new(binary).args(args).output().unwrap();
    let text = String::from_utf8_lossy(&out.stdout);
    let talk = String::from_utf8_lossy(&out.stderr);
    let value: Value = serde_json::from_str(&text)
        .unwrap_or_else(|e| panic!("gpuctl {}: {e}\nstdout: {text}\nstderr: {talk}", args.join(" ")));
    let found = validate(&schema(), &value);
    assert!(found.is_empty(), "gpuctl {}:\n{}", args.join(" "), found.join("\n"));
    assert_eq!(value["exit_code"].as_i64(), out.status.code().map(i64::from), "the exit code in the document");
    serde_json::from_value::<Document>(value.clone()).unwrap();
    Some(value)
}

#[test]
fn devices_fits() {
    let Some(value) = written(&["devices", "--json", "-"]) else { return };
    assert!(value["devices"].as_array().unwrap().iter().any(|d| d["id"] == "cpu"));
    let Some(value) = written(&["devices", "--ops", "--json", "-"]) else { return };
    let cells = value["records"].as_array().unwrap().len();
    assert_eq!(cells, op::all().count() * DType::ALL.len() * value["devices"].as_array().unwrap().len());
}

#[test]
fn bench_fits() {
    let args = ["bench", "--device", "cpu", "--op", "gemm,add", "--sizes", "64..128", "--budget", "2s", "--json", "-"];
    let Some(value) = written(&args) else { return };
    let records = value["records"].as_array().unwrap();
    assert!(records.iter().any(|r| r["kind"] == "bench" && r["status"] == "ok"), "no row was measured");
}

#[test]
fn verify_fits() {
    let args = ["verify", "--device", "cpu", "--op", "relu", "--dtype", "f32", "--json", "-"];
    let Some(value) = written(&args) else { return };
    let records = value["records"].as_array().unwrap();
    assert!(records.iter().any(|r| r["kind"] == "verify" && r["status"] == "ok"), "no case was compared");
}

#[test]
fn calibrate_on_the_simulator_fits() {
    let args = ["calibrate", "--device", "sim:h200", "--op", "add", "--json", "-", "-o", "/dev/null"];
    let Some(value) = written(&args) else { return };
    let records = value["records"].as_array().unwrap();
    assert!(records.iter().any(|r| r["kind"] == "calibrate"), "no key was judged");
}

#[test]
fn stress_fits() {
    let args = ["stress", "--device", "cpu", "--seconds", "3", "--no-journal", "--json", "-"];
    let Some(value) = written(&args) else { return };
    let records = value["records"].as_array().unwrap();
    assert!(records.iter().any(|r| r["kind"] == "stress"), "no scenario was run");
}

#[test]
fn run_fits() {
    let folder = tempfile::tempdir().unwrap();
    let (x, y) = (folder.path().join("x.npy"), folder.path().join("y.npy"));
    let tensor = HostTensor::from_slice(&[-1.0f32, 2.0], &[2]).unwrap();
    npy::write(&[(&x, &tensor)]).unwrap();
    let (x, y) = (x.to_str().unwrap(), y.to_str().unwrap());
    let args = ["run", "relu", "--in", x, "--out", y, "--device", "cpu", "--json", "-"];
    let Some(value) = written(&args) else { return };
    assert_eq!((&value["records"][0]["kind"], &value["records"][0]["ran_on"]), (&json!("run"), &json!("cpu")));
}
