//! Records of every kind with made-up numbers (synthetic).

use gpuctl::base::blas::BlasInfo;
use gpuctl::base::facts::{Facts, Hardware, Matrix, Minimum, Quirk};
use gpuctl::base::record::{
    AblateRecord, Analysis, ArrayFile, BenchRecord, CalibratePoint, CalibrateRecord, CeilingRecord, ChangeRecord,
    ExplainRecord, KernelsRecord, NoiseRecord, Phases, PoolUse, RunRecord, Speed, StressDevice, StressRecord,
    StressRunRecord, StressSample, SupportRecord, ThresholdRecord, VerifyRecord, WorkloadCall, WorkloadRecord,
};
use gpuctl::base::regret::{RegretDense, RegretPolicy, RegretRecord, RegretShape};
use gpuctl::base::telemetry::{Link, NotTold, Range, Watched};
use gpuctl::base::topology::{NumaNode, Pair, Place, Topology};
use gpuctl::base::{
    ApiStatus, Attr, Attrs, Backend, Code, DType, DeviceClass, DeviceInfo, Error, Feature, Fill, Lang, LaunchShape,
    Library, MemorySnapshot, Status, Subject, Theoretical,
};
use gpuctl::op;

pub(crate) fn device() -> DeviceInfo {
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
        facts: Facts {
            uuid: Some("6d6f00112233445566778899aabbccdd".into()),
            pci: Some("0000:3b:00.0".into()),
            arithmetic: DType::ALL.to_vec(),
            atomics: vec!["i32 add".into()],
            memory_kinds: vec!["device".into(), "pinned".into()],
            subgroup: Some([32, 32]),
            matrix: vec![Matrix { precision: "f16".into(), shapes: vec![[16, 8, 16]], sparse: true }],
            async_copies: Some(true),
            peers: vec!["cuda:1".into()],
            quirks: vec![Quirk {
                code: "a-quirk".into(),
                kind: "slow".into(),
                what: "something".into(),
                answer: "something else".into(),
            }],
            blas: Some(BlasInfo {
                name: "OpenBLAS".into(),
                core: "Prescott".into(),
                int_bits: 32,
                path: "libopenblas.so.0".into(),
                ..BlasInfo::default()
            }),
        },
        notes: vec!["a note".into()],
    }
}

pub(crate) fn hardware(ids: &[&str], notes: &[&str]) -> Hardware {
    Hardware {
        name: "synthetic".into(),
        class: DeviceClass::Discrete,
        uuid: None,
        pci: Some("0000:3b:00.0".into()),
        ids: ids.iter().map(|i| (*i).into()).collect(),
        matched_by: "alone".into(),
        memory_bytes: Some(8 << 30),
        memory_free: None,
        memory_free_why: "no driver tells".into(),
        minimum: Minimum { met: "yes".into(), why: String::new() },
        link: Some(Link { generation: Some(5), ..Link::default() }),
        numa_node: Some(0),
        mig: Some(false),
        kernel_driver: None,
        not_seen_by: vec![NotTold { what: "wgpu".into(), why: "no driver".into() }],
        notes: notes.iter().map(|n| (*n).into()).collect(),
    }
}

pub(crate) fn topology(path: &str) -> Topology {
    let pci = |n: u32| format!("0000:{n:02x}:00.0");
    let place = |n: u32| Place {
        name: "synthetic".into(),
        ids: vec![format!("cuda:{n}")],
        pci: Some(pci(n)),
        numa_node: Some(0),
        cpus: None,
    };
    Topology {
        nodes: vec![NumaNode { node: 0, cpus: "0-7".into(), memory_bytes: Some(1 << 34), distances: vec![10] }],
        cards: vec![place(1), place(2)],
        pairs: vec![Pair { between: [pci(1), pci(2)], path: path.into(), nvlinks: Some(18), peers: Some(true) }],
    }
}

pub(crate) fn subject(status: Status, reason: &str) -> Subject {
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

/// An error with everything that an error can tell.
pub(crate) fn error() -> Error {
    Error::new(Code::CompileFailed, "gemm_f32: clBuildProgram: CL_BUILD_PROGRAM_FAILURE (-11)")
        .op("gemm")
        .device("opencl:0")
        .shape("m64,n64,k64")
        .dtype(DType::F32)
        .kernel("tiled64", "gemm_f32")
        .launch(LaunchShape { groups: [1, 1, 1], group: [16, 16, 1] })
        .memory(MemorySnapshot { total: Some(1 << 34), free: Some(1 << 33), held: 12, peak: 34, buffers: 1 })
        .status(ApiStatus { api: "opencl".into(), number: Some(-11), name: "CL_BUILD_PROGRAM_FAILURE".into() })
        .log("gemm.cl:1: error: synthetic\n1 error")
}

pub(crate) fn explain(what: &str) -> ExplainRecord {
    let status = what == "status";
    ExplainRecord {
        name: if status { "CL_OUT_OF_RESOURCES" } else { "out-of-resources" }.into(),
        what: what.into(),
        api: status.then(|| "opencl".into()),
        number: status.then_some(-5),
        code: status.then(|| "out-of-resources".into()),
        class: Some("oom".into()),
        severity: Some("error".into()),
        means: "synthetic".into(),
        does: "synthetic".into(),
        next: String::new(),
        statuses: if status { vec![] } else { vec!["opencl:-5 CL_OUT_OF_RESOURCES".into()] },
    }
}

pub(crate) fn analysis() -> Analysis {
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

pub(crate) fn bench(status: Status, reason: &str) -> BenchRecord {
    let ok = status == Status::Ok;
    BenchRecord {
        subject: subject(status, reason),
        residency: "always".into(),
        k: 1,
        region_s: 50e-6,
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

pub(crate) fn change(verdict: &str, reason: &str) -> ChangeRecord {
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

pub(crate) fn verify(max: f64, status: Status) -> VerifyRecord {
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

pub(crate) fn regret(finding: &str) -> RegretRecord {
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

pub(crate) fn workload(worth: &str) -> WorkloadRecord {
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
        best_s: known.then_some(1.0),
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

pub(crate) fn calibrate(verdict: &str) -> CalibrateRecord {
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
        cpu_blas: "OpenBLAS 0.3.21, Prescott, 2 threads".into(),
        kernel: "tiled64".into(),
        verdict: verdict.into(),
        unit: "dim".into(),
        crossing,
        ci: crossing.map(|c| [c - 10, c + 10]),
        stake: crossing.map(|_| 1.04),
        threshold: crossing.map(|c| c * 11 / 10),
        points: [64, 128]
            .map(|size| CalibratePoint { size, cpu_s: 1e-3, gpu_s: 2e-3, ratio_ci: [0.4, 0.6], pairs: 9 })
            .to_vec(),
        reason: "a reason".into(),
    }
}

pub(crate) fn watched() -> Watched {
    let range = Some(Range { first: 1.0, last: 3.0, least: 0.5, most: 4.0 });
    Watched {
        source: "nvml".into(),
        reason: String::new(),
        asked: 4,
        answered: 3,
        temperature_c: range,
        power_w: range,
        clock_mhz: range,
        memory_used: range,
        corrected: range,
        uncorrected: range,
        throttle: vec!["sw-power-cap".into()],
        protecting: 0,
        lost: false,
        reset_required: false,
    }
}

pub(crate) fn stress(verdict: &str, bytes_checked: u64) -> StressRecord {
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
        speeds: [("gemm/f32".to_string(), Speed { rate: 5e13, unit: "FLOP".into(), samples: 9 })].into(),
        findings: vec!["a finding".into()],
        not_tested: vec!["f64: the device has none".into()],
        remarks: vec!["the machine slept for 3.0 s".into()],
        paused_seconds: 0.0,
        telemetry: if verdict == "pass" { watched() } else { Watched::none("a software device") },
        series: vec![StressSample { t: 1.0, rss_bytes: Some(1), ..StressSample::default() }],
        rerun: "gpuctl stress --scenario soak".into(),
    }
}

pub(crate) fn stress_run(verdict: &str, exit_code: u8) -> StressRunRecord {
    let device = StressDevice {
        device: "cuda:0".into(),
        uid: "GPU-synthetic".into(),
        name: "synthetic".into(),
        verdict: verdict.into(),
        reason: "a reason".into(),
        planned_seconds: 60.0,
        tested_seconds: 50.0,
        passed: 1,
        phases: 1,
    };
    StressRunRecord {
        verdict: verdict.into(),
        exit_code,
        line: "the last line".into(),
        planned_seconds: 60.0,
        tested_seconds: 50.0,
        scenarios_passed: 1,
        scenarios: 14,
        interrupted: false,
        resumed_phases: 0,
        devices: vec![device],
        findings: Vec::new(),
        remarks: vec!["a remark".into()],
        not_tested: vec!["memory: no room".into()],
    }
}

pub(crate) fn run() -> RunRecord {
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

pub(crate) fn support(answer: &str, reason: &str) -> SupportRecord {
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

pub(crate) fn ceiling(status: Status, reason: &str) -> CeilingRecord {
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

pub(crate) fn ablate(status: Status, reason: &str) -> AblateRecord {
    let of = |v: f64| (status == Status::Ok).then_some(v);
    AblateRecord {
        without: "no-pool".into(),
        device: "opencl:0".into(),
        uid: "synthetic".into(),
        calls: "relu/f32/n1000".into(),
        status,
        reason: reason.into(),
        with_s: of(1e-4),
        without_s: of(2e-4),
        gain: of(2.0),
        gain_ci: (status == Status::Ok).then_some([1.9, 2.1]),
        pairs: if status == Status::Ok { 32 } else { 0 },
        pool: of(1.0).map(|_| PoolUse { hits: 62, misses: 2, idle_bytes: 8192, peak_bytes: 8192 }),
    }
}

pub(crate) fn kernels(cache: &str, loads: u64) -> KernelsRecord {
    KernelsRecord {
        device: "opencl:0".into(),
        uid: "synthetic".into(),
        builds: 2,
        build_s: 0.4,
        loads,
        load_s: 0.01,
        hits: 7,
        refused: loads.min(1),
        kept: loads.min(2),
        cache: cache.into(),
        reason: String::new(),
    }
}

pub(crate) fn noise(reason: &str) -> NoiseRecord {
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

pub(crate) fn threshold(verdict: &str, reason: &str) -> ThresholdRecord {
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
