//! The JSON document against its JSON Schema: made from records in code, and as the subcommands write it.

#![allow(clippy::print_stderr, reason = "skips are named")]

#[path = "schema/validate.rs"]
mod validate;

use std::process::Command;

use gpuctl::base::record::{
    Analysis, ArrayFile, BenchRecord, CalibratePoint, CalibrateRecord, CeilingRecord, ChangeRecord, Host, NoiseRecord,
    Phases, RunRecord, SCHEMA, StressRecord, StressSample, SupportRecord, ThresholdRecord, VerifyRecord, WorkloadCall,
    WorkloadRecord,
};
use gpuctl::base::regret::{RegretDense, RegretPolicy, RegretRecord, RegretShape};
use gpuctl::base::{
    Absence, Attr, Attrs, Backend, DType, DeviceClass, DeviceInfo, Document, Feature, Fill, HostTensor, Lang, Library,
    Record, Status, Subject, Theoretical, npy,
};
use gpuctl::op;
use serde_json::{Value, json};
use validate::validate;

fn schema() -> Value {
    serde_json::from_str(include_str!("schema/document.schema.json")).unwrap()
}

fn device() -> DeviceInfo {
    DeviceInfo {
        id: "cuda:0".into(),
        uid: "GPU-synthetic".into(),
        name: "synthetic".into(),
        vendor: "none".into(),
        backend: Backend::Cuda,
        class: DeviceClass::Discrete,
        driver: "1.0".into(),
        api: "CUDA 12.8, sm_90".into(),
        langs: vec![Lang::Native, Lang::OpenclC, Lang::Cuda, Lang::Wgsl],
        memory_bytes: Some(u64::MAX),
        max_alloc_bytes: u64::MAX,
        max_binding_bytes: 0,
        max_group: 1024,
        max_groups: [1, 2, u64::MAX],
        local_bytes: 48 << 10,
        compute_units: 132,
        compute_capability: Some((9, 0)),
        dtypes: DType::ALL.to_vec(),
        features: vec![Feature::Fp64, Feature::Int64, Feature::SmallInt, Feature::TensorBf16, Feature::Subgroups],
        libraries: vec![(Library::Cublas, "13.4".into())],
        unified_memory: false,
        cache_bytes: Some(50 << 20),
        theoretical: Some(Theoretical {
            f32_gflops: Some(66_900.0),
            source: "the driver".into(),
            ..Theoretical::default()
        }),
        notes: vec!["a note".into()],
    }
}

fn subject(status: Status, reason: &str) -> Subject {
    let attrs = Attrs::new().with("alpha", Attr::Float(0.5)).with("transA", Attr::Int(1));
    let case = op::find("gemm").unwrap().case(DType::F32, &[64, 64, 64], attrs, Fill::Uniform).unwrap();
    let mut s = Subject::of(&case, 64 * 64 * 64, "dim", &device());
    s.status = status;
    s.reason = reason.into();
    if status == Status::Ok {
        s.ran_on = "cuda:0".into();
        s.variant = "tiled64".into();
    }
    s
}

fn analysis() -> Analysis {
    Analysis {
        ceiling_fraction: Some(0.9),
        ceiling: "f32 FMA".into(),
        transfer_fraction: Some(0.1),
        launch_fraction: Some(0.0),
        bottleneck: "Compute".into(),
        action: "None".into(),
        advice: "90 % of the FMA peak: little is left to gain".into(),
        baseline: "packed, 2 threads, avx2".into(),
        cache: "hot".into(),
    }
}

fn bench(status: Status, reason: &str) -> BenchRecord {
    let ok = status == Status::Ok;
    BenchRecord {
        subject: subject(status, reason),
        residency: "always".into(),
        k: 1,
        threads: 2,
        samples: if ok { 3 } else { 0 },
        samples_s: if ok { vec![1e-3, 1.1e-3, 0.9e-3] } else { vec![] },
        process_medians_s: if ok { vec![1e-3] } else { vec![] },
        machine_speeds: if ok { vec![[1e10, 2e10]] } else { vec![] },
        between_processes: None,
        median_s: ok.then_some(1e-3),
        ci_s: ok.then_some([0.9e-3, 1.1e-3]),
        min_s: ok.then_some(0.9e-3),
        p95_s: ok.then_some(1.1e-3),
        p99_s: ok.then_some(1.1e-3),
        gflops: ok.then_some(0.5),
        gbps: ok.then_some(0.05),
        peak_fraction: None,
        analysis: if ok { analysis() } else { Analysis::default() },
        phases_s: Phases { kernel: Some(1e-4), ..Phases::default() },
        speedup_vs_cpu: None,
        speedup_ci: None,
    }
}

fn change(verdict: &str, reason: &str) -> ChangeRecord {
    let known = reason.is_empty();
    ChangeRecord {
        op: "gemm".into(),
        dtype: DType::F32,
        shape_text: "m64,n64,k64".into(),
        attrs: Attrs::new(),
        device: "cuda:0".into(),
        residency: "always".into(),
        threads: 2,
        old_s: Some(1e-3),
        new_s: known.then_some(1.1e-3),
        ratio: known.then_some(1.1),
        ratio_ci: known.then_some([1.05, 1.15]),
        machine_ratio: known.then_some(0.9),
        p_slower: if known { 0.01 } else { 1.0 },
        verdict: verdict.into(),
        reason: reason.into(),
    }
}

fn verify(max: f64, status: Status) -> VerifyRecord {
    VerifyRecord {
        subject: subject(status, if status == Status::Ok { "" } else { "1 of 4096 elements" }),
        case: "gemm/f32/m64,n64,k64/alpha=0.5,transA=1/uniform".into(),
        max_ulp: max,
        max_rel: max,
        max_abs: max,
        max_vs_cpu: None,
        worst_index: Some(7),
        worst_at: vec![0, 7],
        worst_got: Some("NaN".into()),
        worst_want: Some("1.0".into()),
        worst_error: None,
        worst_bound: Some(1e-6),
        compared: 4096,
        detectors: vec![],
        wrong: u64::from(status != Status::Ok),
        undefined: 0,
        tolerance: "gamma_64 (|A||B|)".into(),
        strict_met: Some(true),
        rerun: "gpuctl verify --case ...".into(),
    }
}

fn regret(finding: &str) -> RegretRecord {
    RegretRecord {
        op: "gemm".into(),
        dtype: DType::F32,
        family: "square".into(),
        device: "cuda:0".into(),
        uid: "GPU-synthetic".into(),
        residency: "resident".into(),
        threads: 2,
        cpu_variant: "auto".into(),
        verdict: "crossing".into(),
        unit: "dim".into(),
        crossing: Some(100),
        threshold: Some(110),
        processes: 3,
        shapes: vec![RegretShape {
            shape_text: "m64,n64,k64".into(),
            size: 64,
            cpu_s: 1e-4,
            gpu_s: 2e-4,
            predicted_cpu_s: Some(1.1e-4),
            predicted_gpu_s: None,
            gpu: false,
        }],
        policies: vec![RegretPolicy { name: "auto".into(), mean: 0.0, near: None, worst: 0.0, time: 0.0 }],
        dense: RegretDense { sizes: 48, smallest: Some(16), crossing: Some(99), calls: 5000 },
        left_out: 0,
        finding: finding.into(),
    }
}

fn workload(worth: &str) -> WorkloadRecord {
    let known = worth != "unclear";
    let ci = known.then_some([0.9, 1.1]);
    WorkloadRecord {
        calls: 12,
        measured: u64::from(known),
        predicted: 0,
        unknown: u64::from(!known),
        refused: 0,
        on_device: if worth == "yes" { 12 } else { 0 },
        processes: 5,
        threads: 2,
        now_s: known.then_some(1.0),
        now_ci_s: ci,
        cpu_s: known.then_some(1.0),
        cpu_ci_s: ci,
        routed_s: known.then_some(1.0),
        routed_ci_s: ci,
        gpu_s: known.then_some(1.0),
        gpu_ci_s: ci,
        gpu: "cuda:0".into(),
        gain: known.then_some(1.0),
        gain_ci: ci,
        worth: worth.into(),
        reason: "synthetic".into(),
        rows: vec![WorkloadCall {
            op: "gemm".into(),
            dtype: DType::F32,
            shape_text: "m64,n64,k64".into(),
            attrs: Attrs::new(),
            residency: "always".into(),
            count: 12,
            gpu: 0,
            basis: if known { "measured" } else { "unknown" }.into(),
            cpu_s: known.then_some(0.1),
            device_s: known.then_some(0.1),
            goes: "cpu".into(),
            wrong: false,
            why: "the work is below the threshold".into(),
        }],
    }
}

fn calibrate(verdict: &str) -> CalibrateRecord {
    let crossing = (verdict == "crossing").then_some(100);
    CalibrateRecord {
        op: "gemm".into(),
        dtype: DType::F32,
        family: "square".into(),
        device: "cuda:0".into(),
        uid: "GPU-synthetic".into(),
        residency: "always".into(),
        threads: 2,
        cpu_variant: "packed".into(),
        kernel: "tiled64".into(),
        verdict: verdict.into(),
        unit: "dim".into(),
        crossing,
        ci: crossing.map(|c| [c - 10, c + 10]),
        threshold: crossing.map(|c| c * 11 / 10),
        points: [64, 128]
            .map(|size| CalibratePoint { size, cpu_s: 1e-3, gpu_s: 2e-3, ratio_ci: [0.4, 0.6], pairs: 9 })
            .to_vec(),
        reason: "a reason".into(),
    }
}

fn stress(verdict: &str, bytes_checked: u64) -> StressRecord {
    StressRecord {
        scenario: "soak".into(),
        device: "cuda:0".into(),
        uid: "GPU-synthetic".into(),
        verdict: verdict.into(),
        reason: "a reason".into(),
        seconds: 36.0,
        planned_seconds: 36.0,
        planned: 10,
        done: 10,
        bytes_planned: bytes_checked,
        bytes_checked,
        mismatches: 0,
        errors: 0,
        restarts: 0,
        counters: [("cases".to_string(), 4)].into(),
        findings: vec!["a finding".into()],
        not_tested: vec!["f64: the device has none".into()],
        series: vec![StressSample { t: 1.0, rss_bytes: Some(1), ..StressSample::default() }],
        rerun: "gpuctl stress --scenario soak".into(),
    }
}

fn run() -> RunRecord {
    let array = |operand: &str, path: &str| ArrayFile {
        operand: operand.into(),
        path: path.into(),
        dtype: DType::F32,
        shape: vec![64, 64],
    };
    RunRecord {
        subject: subject(Status::Ok, ""),
        seconds: 1e-3,
        inputs: vec![array("A", "a.npy"), array("B", "b.npy")],
        outputs: vec![array("C", "c.npy")],
        fallback: None,
    }
}

fn support(answer: &str, reason: &str) -> SupportRecord {
    SupportRecord {
        op: "gemm".into(),
        dtype: DType::F64,
        device: "cuda:0".into(),
        uid: "GPU-synthetic".into(),
        support: answer.into(),
        variant: if answer == "yes" { "tiled64".into() } else { String::new() },
        reason: reason.into(),
        detail: String::new(),
    }
}

fn ceiling(status: Status, reason: &str) -> CeilingRecord {
    let ok = status == Status::Ok;
    CeilingRecord {
        device: "cuda:0".into(),
        uid: "GPU-synthetic".into(),
        what: "fma".into(),
        dtype: Some(DType::F32),
        bytes: 16_384,
        memory: String::new(),
        unit: "GFLOP/s".into(),
        value: ok.then_some(60_000.0),
        ci: ok.then_some([59_000.0, 61_000.0]),
        theoretical: Some(66_900.0),
        samples: if ok { 21 } else { 0 },
        processes: 3,
        variant: "chains".into(),
        status,
        reason: reason.into(),
    }
}

fn noise(reason: &str) -> NoiseRecord {
    NoiseRecord {
        device: "cuda:0".into(),
        uid: "GPU-synthetic".into(),
        null_ratio: 1.001,
        null_ci: [0.99, 1.01],
        floor: 0.01,
        known: 3.0,
        known_ratio: 2.98,
        known_ci: [2.95, 3.01],
        pairs: 32,
        sound: reason.is_empty(),
        reason: reason.into(),
    }
}

fn document(records: Vec<Record>) -> Document {
    Document {
        schema: SCHEMA,
        gpuctl: env!("CARGO_PKG_VERSION").into(),
        command: vec!["gpuctl".into(), "bench".into()],
        complete: true,
        exit_code: 0,
        host: Host { cpu: "synthetic".into(), cpus: 2, memory_bytes: 1 << 34, os: "synthetic".into() },
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

fn threshold(verdict: &str, reason: &str) -> ThresholdRecord {
    ThresholdRecord {
        op: "gemm".into(),
        dtype: "f32".into(),
        family: "square".into(),
        device: "cuda:0".into(),
        uid: "GPU-synthetic".into(),
        residency: "always".into(),
        threads: 8,
        cpu_variant: "auto".into(),
        unit: "dim".into(),
        old_verdict: Some("crossing".into()),
        new_verdict: None,
        old_threshold: Some(77),
        old_ci: Some([65, 76]),
        verdict: verdict.into(),
        reason: reason.into(),
        ..ThresholdRecord::default()
    }
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
        Record::Run(Box::new(run())),
        Record::Support(Box::new(support("yes", ""))),
        Record::Support(Box::new(support("no", "needs cl_khr_fp64"))),
        Record::Ceiling(Box::new(ceiling(Status::Ok, ""))),
        Record::Ceiling(Box::new(ceiling(Status::Unsupported, "no pinned memory"))),
        Record::Noise(Box::new(noise(""))),
    ];
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
        (Record::Calibrate(Box::new(no_threshold)), "threshold"),
        (Record::Calibrate(Box::new(unsafe_threshold)), "threshold"),
        (Record::Calibrate(Box::new(calibrate("perhaps"))), "perhaps"),
        (Record::Regret(Box::new(regret("perhaps"))), "perhaps"),
        (Record::Workload(Box::new(workload("perhaps"))), "perhaps"),
        (Record::Workload(Box::new(WorkloadRecord { gain_ci: None, ..workload("yes") })), "gain_ci"),
        (Record::Workload(Box::new(WorkloadRecord { unknown: 1, ..workload("yes") })), "unknown"),
        (Record::Stress(Box::new(stress("pass", 0))), "bytes_checked"),
    ] {
        let found = faults(vec![record]).join("; ");
        assert!(found.contains(word), "'{word}' is not in: {found}");
    }
}

/// Every value of every field is looked at: replace each in turn by something of another type.
#[test]
fn a_wrong_type_anywhere_is_found() {
    let schema = schema();
    let whole = serde_json::to_value(document(every_kind())).unwrap();
    let mut paths = Vec::new();
    collect(&whole, String::new(), &mut paths);
    assert!(paths.len() > 200, "{}", paths.len());
    for path in paths {
        let mut broken = whole.clone();
        // No field may hold a list that holds an object.
        *broken.pointer_mut(&path).unwrap() = json!([{"planted": true}]);
        assert!(!validate(&schema, &broken).is_empty(), "{path} is not checked");
    }
}

#[test]
fn a_missing_or_a_surplus_field_is_found() {
    let schema = schema();
    let whole = serde_json::to_value(document(every_kind())).unwrap();
    let mut paths = Vec::new();
    collect(&whole, String::new(), &mut paths);
    let objects: Vec<String> = paths
        .into_iter()
        .chain([String::new()])
        .filter(|p| whole.pointer(p).is_some_and(Value::is_object))
        // These have names of the op's own choosing.
        .filter(|p| !p.ends_with("/shape") && !p.ends_with("/attrs") && !p.ends_with("/counters"))
        .collect();
    assert!(objects.len() > 20);
    for path in objects {
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

fn collect(value: &Value, at: String, out: &mut Vec<String>) {
    let children: Vec<(String, &Value)> = match value {
        Value::Object(o) => o.iter().map(|(k, v)| (k.clone(), v)).collect(),
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
