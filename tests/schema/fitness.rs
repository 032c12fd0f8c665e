//! Records of a machine's fitness with made-up numbers (synthetic).

use gpuctl::base::record::{Finding, HealthRecord, TrialRecord};
use gpuctl::base::system::{Cache, System};
use gpuctl::base::telemetry::{GpuProcess, NotTold, Snapshot};

pub(crate) fn health(verdict: &str) -> HealthRecord {
    let found = verdict == "finding";
    HealthRecord {
        device: "cuda:0".into(),
        uid: "GPU-synthetic".into(),
        name: "a card".into(),
        source: "nvml".into(),
        verdict: verdict.into(),
        checked: if verdict == "unknown" { Vec::new() } else { vec!["temperature".into()] },
        unchecked: vec!["link".into()],
        not_told: vec![NotTold { what: "link".into(), why: "nothing opens the card".into() }],
        findings: Vec::from_iter(found.then(|| Finding {
            code: "gpu-lost".into(),
            severity: "critical".into(),
            category: "driver".into(),
            detail: "gone".into(),
            next: "restart".into(),
        })),
        snapshot: Some(Snapshot {
            source: "nvml".into(),
            temperature_c: Some(40.0),
            processes: Some(vec![GpuProcess { pid: 7, bytes: None }]),
            not_told: vec![NotTold { what: "power".into(), why: "NVML: not supported".into() }],
            ..Snapshot::default()
        }),
    }
}

pub(crate) fn trial(fitness: &str) -> TrialRecord {
    let unfit = fitness == "unfit";
    let text = |t: &str| unfit.then(|| t.to_string());
    TrialRecord {
        device: "cuda:0".into(),
        uid: "GPU-synthetic".into(),
        fingerprint: "cuda | a card | 570".into(),
        fitness: fitness.into(),
        passed: if fitness == "unjudged" { 0 } else { 7 },
        failed: u64::from(unfit),
        left_out: 2,
        ops: if fitness == "unjudged" { 0 } else { 3 },
        wrong_before: 0,
        case: text("add/f32/n257/-/uniform"),
        found: text("element 0 is 1e0, expected 2e0"),
        when: unfit.then_some(1_767_225_600),
        rerun: text("gpuctl verify --case add/f32/n257/-/uniform --device cuda:0"),
        reason: if fitness == "unjudged" { "no kernel fits".into() } else { String::new() },
    }
}

pub(crate) fn system() -> System {
    System {
        quota: Some(1.5),
        instruction_sets: vec!["avx2".into()],
        hiding: vec![("CUDA_VISIBLE_DEVICES".into(), String::new())],
        caches: vec![Cache { level: 2, kind: "Unified".into(), bytes: 2 << 20, shared_by: 1 }],
        ..System::default()
    }
}
