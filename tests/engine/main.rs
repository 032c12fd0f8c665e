//! The engine from outside: routing by profile, its explanations, and what happens when a device fails.

#![allow(clippy::print_stdout, reason = "a test tells what it skipped and found")]

mod launch;

use std::sync::Arc;

use gpuctl::base::record::CalibratePoint;
use gpuctl::base::rng::Philox;
use gpuctl::base::{Attrs, Backend, Code, DType, DeviceClass, DeviceInfo, Env, Fill, HostTensor};
use gpuctl::device::Device;
use gpuctl::device::cpu::{CpuDevice, Pin, available_threads};
use gpuctl::device::faulty::{Fault, FaultPlan, Faulty, On, Rule, When};
use gpuctl::device::probe::{self, CpuConfig, Select};
use gpuctl::engine::{Engine, Placement, Why};
use gpuctl::kernel::Isa;
use gpuctl::op;
use gpuctl::profile::model::{Curve, Side};
use gpuctl::profile::{Entry, Host, Kind, Place, Profile, ProfileDevice, Reason, Verdict};

/// A CPU device under another identity: enough of a second device to route to on any machine.
struct Second {
    inner: CpuDevice,
    info: DeviceInfo,
}

impl Second {
    #[allow(clippy::new_ret_no_self, reason = "the device is only ever used behind the trait")]
    fn new(uid: &str, class: DeviceClass) -> Arc<dyn Device> {
        let inner = CpuDevice::new(1, Isa::detect(), Pin::Free).unwrap();
        let info = DeviceInfo {
            id: format!("opencl:{uid}"),
            uid: uid.into(),
            name: format!("second device {uid}"),
            backend: Backend::Opencl,
            class,
            ..inner.info().clone()
        };
        Arc::new(Second { inner, info })
    }
}

impl Device for Second {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }
    fn serial(&self) -> u64 {
        self.inner.serial()
    }
    fn clock(&self) -> Arc<dyn gpuctl::base::Clock> {
        self.inner.clock()
    }
    fn ledger(&self) -> &Arc<gpuctl::device::Ledger> {
        self.inner.ledger()
    }
    fn memory(&self) -> gpuctl::device::MemoryState {
        self.inner.memory()
    }
    fn alloc(&self, bytes: u64, kind: gpuctl::device::MemoryKind) -> gpuctl::base::Result<gpuctl::device::Buffer> {
        self.inner.alloc(bytes, kind)
    }
    fn build(
        &self,
        source: gpuctl::device::Source<'_>,
        cached: Option<&[u8]>,
    ) -> gpuctl::base::Result<gpuctl::device::Program> {
        self.inner.build(source, cached)
    }
    fn queue(&self) -> gpuctl::base::Result<Box<dyn gpuctl::device::Queue>> {
        self.inner.queue()
    }
    fn health(&self) -> gpuctl::device::Health {
        self.inner.health()
    }
}

fn env() -> Env {
    Env::default()
}

fn host() -> Host {
    let cpu = CpuDevice::new(1, Isa::detect(), Pin::Free).unwrap();
    Host { cpu: cpu.info().name.clone(), isa: Isa::detect().name().into(), ..Host::default() }
}

fn entry(op: &str, unit: &str, family: &str, uid: &str, threshold: u64) -> Entry {
    let point = |size: u64| CalibratePoint {
        size,
        cpu_s: size as f64 * 1e-9,
        gpu_s: 1e-6 + size as f64 * 1e-10,
        ratio_ci: [0.9, 1.1],
        pairs: 5,
    };
    Entry {
        op: op.into(),
        dtype: "f32".into(),
        family: family.into(),
        device: uid.into(),
        residency: "always".into(),
        threads: available_threads() as u32,
        cpu_variant: "auto".into(),
        verdict: Verdict::Crossing,
        unit: unit.into(),
        crossing: Some(threshold),
        threshold: Some(threshold),
        n: 2,
        verify: "ok".into(),
        points: vec![point(10), point(100_000)],
        ..Entry::default()
    }
}

/// A synthetic profile: gemm from 48³ and softmax from 5,000 elements on go to each of the devices.
fn profile(devices: &[&DeviceInfo]) -> Profile {
    let mut p = Profile::new(Kind::Calibrated, "synthetic");
    p.host = Some(host());
    for d in devices {
        p.devices.push(ProfileDevice::of(d));
        p.entries.push(entry("gemm", "dim", "square", &d.uid, 48));
        p.entries.push(entry("softmax", "elements", "rows", &d.uid, 5_000));
    }
    p
}

fn engine_with(device: &Arc<dyn Device>) -> Engine {
    let p = profile(&[device.info()]);
    Engine::builder().env(env()).profile_value(p).device(Arc::clone(device)).build().unwrap()
}

fn matrix(n: u64) -> HostTensor {
    let values: Vec<f32> = (0..n * n).map(|i| (i % 7) as f32 - 3.0).collect();
    HostTensor::from_slice(&values, &[n, n]).unwrap()
}

fn gemm(engine: &Engine, n: u64) -> gpuctl::engine::Outcome {
    engine.run("gemm", &[&matrix(n), &matrix(n)], &Attrs::new()).unwrap()
}

#[test]
fn both_sides_of_a_threshold() {
    let device = Second::new("a", DeviceClass::Discrete);
    let engine = engine_with(&device);
    let small = gemm(&engine, 47);
    assert_eq!((small.ran_on.as_str(), small.fallback.as_deref()), ("cpu", None));
    assert_eq!(small.decision.why, Why::Profile(Reason::BelowThreshold));
    let large = gemm(&engine, 48);
    assert_eq!(large.ran_on, "opencl:a");
    assert_eq!(large.decision.why, Why::Profile(Reason::ReachesThreshold));
    // Small integers: both sides compute the same bits.
    let cpu = Engine::builder().env(env()).placement(Placement::ForceCpu).build().unwrap();
    assert_eq!(gemm(&cpu, 48).outputs, large.outputs);
    assert_eq!(engine.stats(), gpuctl::engine::Stats { cpu: 1, gpu: 1, ..Default::default() });
    // Not a square: no evidence, so the CPU, however large.
    let (a, b) = (HostTensor::zeros(DType::F32, &[512, 64]).unwrap(), HostTensor::zeros(DType::F32, &[64, 8]).unwrap());
    let narrow = engine.run("gemm", &[&a, &b], &Attrs::new()).unwrap();
    assert_eq!((narrow.ran_on.as_str(), narrow.outputs[0].shape.as_slice()), ("cpu", &[512, 8][..]));
    assert_eq!(narrow.decision.why, Why::Profile(Reason::NoFamily));
}

/// A curve that is stretched takes nothing from a device that wins from some size on, and `profile why` tells who decided.
#[test]
fn far_beyond_what_was_measured_the_threshold_decides() {
    let device = Second::new("a", DeviceClass::Discrete);
    let side = |flop_s| Side { fixed_s: 1e-6, flop_s, ..Side::default() };
    let span = [[1.0, 1e5], [1.0, 1e9], [1.0, 1e9], [1.0, 1e9]];
    let mut p = profile(&[device.info()]);
    p.rule = gpuctl::profile::Rule::Curve;
    p.entries[0].curve = Some(Curve { span, cpu: side(1e-9), device: side(2e-9), ..Curve::default() });
    let engine = Engine::builder().env(env()).profile_value(p).device(device).build().unwrap();
    for (n, ran_on, reason) in [(36, "cpu", Reason::PredictedSlower), (64, "opencl:a", Reason::ReachesThreshold)] {
        let done = gemm(&engine, n);
        assert_eq!((done.ran_on.as_str(), &done.decision.why), (ran_on, &Why::Profile(reason)), "{n}");
        let why = gpuctl::jobs::profile::why(&engine, "gemm", DType::F32, &[n; 3], Attrs::new()).unwrap();
        let lines = gpuctl::jobs::profile::why_lines(&engine, &why);
        let told = lines.iter().any(|l| l.starts_with("curve: far more operations than were measured"));
        assert_eq!(told, n == 64, "{lines:?}");
    }
}

/// The explanation is the decision: over random cases of every op, `why` names the device on which `run` then runs.
#[test]
fn explanations_are_what_happens() {
    let device = Second::new("a", DeviceClass::Discrete);
    // A threshold for every op, so that both sides are met often.
    let mut p = profile(&[device.info()]);
    let measured = op::all().filter(|o| !matches!(o.unit, op::Unit::Bytes | op::Unit::Calls));
    p.entries = measured
        .map(|o| {
            let threshold = if o.unit == op::Unit::Dim { 48 } else { 2_000 };
            entry(o.name, o.unit.name(), o.families[0].name, &device.info().uid, threshold)
        })
        .collect();
    let engine = Engine::builder().env(env()).profile_value(p).device(device).build().unwrap();
    let rng = Philox::new(3);
    let (mut runs, mut gpu) = (0, 0);
    for (stream, op) in op::all().enumerate() {
        for i in 0..12 {
            let size = 1 + rng.u64(stream as u64, i) % 96;
            let size = if op.unit == op::Unit::Dim { size } else { size * size };
            for dtype in op.dtypes.iter().filter(|d| matches!(d, DType::F32 | DType::I32)) {
                let case = op.case(*dtype, &(op.families[0].sweep)(size), Attrs::new(), Fill::Uniform).unwrap();
                let inputs = op::case::inputs(op, &case).unwrap();
                let inputs: Vec<&HostTensor> = inputs.iter().collect();
                let Ok(outcome) = engine.run(op.name, &inputs, &Attrs::new()) else { continue };
                // What a call without attributes is bound to may be another case of the same operands.
                let bound = op::case::parse(&format!("{}/uniform", outcome.decision.case)).unwrap();
                let why = engine.why(&bound).unwrap();
                assert_eq!(why, *outcome.decision, "{case}");
                assert_eq!(why.device, outcome.ran_on, "{case}");
                assert_eq!(why.place == Place::Gpu, outcome.ran_on == "opencl:a", "{case}");
                runs += 1;
                gpu += usize::from(why.place == Place::Gpu);
            }
        }
    }
    assert!(
        runs > 1000 && gpu * 5 > runs && gpu * 5 < 4 * runs,
        "{runs} runs, {gpu} of them on the device: too few to mean much"
    );
}

#[test]
fn the_faster_of_two_winners_is_chosen() {
    let (a, b) = (Second::new("a", DeviceClass::Discrete), Second::new("b", DeviceClass::Discrete));
    let mut p = profile(&[a.info(), b.info()]);
    for point in p.entries.iter_mut().filter(|e| e.device == "b").flat_map(|e| &mut e.points) {
        point.gpu_s /= 4.0;
    }
    let engine = Engine::builder().env(env()).profile_value(p).device(a).device(b).build().unwrap();
    assert_eq!(gemm(&engine, 64).ran_on, "opencl:b");
}

#[test]
fn other_machines_profiles_are_not_believed() {
    let device = Second::new("a", DeviceClass::Discrete);
    let build = |p: Profile| Engine::builder().env(env()).profile_value(p).device(Arc::clone(&device)).build().unwrap();

    let mut p = profile(&[device.info()]);
    p.host.as_mut().unwrap().cpu = "another CPU".into();
    let out = gemm(&build(p), 64);
    assert!(out.ran_on == "cpu" && matches!(out.decision.why, Why::OtherHost(_)), "{}", out.decision);
    assert!(out.decision.to_string().contains("another CPU"));

    let other = DeviceInfo { name: "another chip".into(), ..device.info().clone() };
    let out = gemm(&build(profile(&[&other])), 64);
    assert!(out.ran_on == "cpu" && out.decision.to_string().contains("profile-stale"), "{}", out.decision);

    let driver = DeviceInfo { driver: "older".into(), ..device.info().clone() };
    let out = gemm(&build(profile(&[&driver])), 64);
    assert!(out.ran_on == "opencl:a" && out.decision.to_string().contains("other driver"), "{}", out.decision);

    let mut p = profile(&[device.info()]);
    p.entries.iter_mut().for_each(|e| e.threads += 1);
    let out = gemm(&build(p), 64);
    assert_eq!((out.ran_on.as_str(), out.decision.why.clone()), ("cpu", Why::Profile(Reason::OtherThreads)));

    let engine = Engine::builder().env(env()).profile_value(profile(&[device.info()])).device(Arc::clone(&device));
    let out = gemm(&engine.cpu_variant("naive").build().unwrap(), 64);
    assert_eq!((out.variant, out.decision.why.clone()), ("naive", Why::Profile(Reason::OtherCpuVariant)));
}

#[test]
fn presets_use_real_gpus_only_and_say_that_they_assume() {
    let build = |class| {
        let disabled = Env { ..env() };
        let device = Second::new("a", class);
        // Only the device given: no driver of this machine takes part.
        let select = Select::Named(vec!["opencl:a".into()]);
        let builder = Engine::builder().env(disabled).profile("preset:always-gpu").device(device);
        (builder.clone().devices(select).build().unwrap(), builder)
    };
    let (engine, _) = build(DeviceClass::Discrete);
    let out = gemm(&engine, 4);
    assert_eq!(out.ran_on, "opencl:a");
    assert!(out.decision.assumed && out.decision.to_string().contains("assumed, not measured"), "{}", out.decision);
    let (named, builder) = build(DeviceClass::Software);
    assert_eq!(gemm(&named, 4).ran_on, "opencl:a", "a software device runs when named");
    let unnamed = gemm(&builder.build().unwrap(), 4);
    assert_ne!(unnamed.ran_on, "opencl:a", "and never otherwise");
}

#[test]
fn disabled_and_forced() {
    let device = Second::new("a", DeviceClass::Discrete);
    let p = profile(&[device.info()]);
    let off = Env { disable_gpu: true, ..env() };
    let base = Engine::builder().profile_value(p).device(Arc::clone(&device));
    let out = gemm(&base.clone().env(off.clone()).build().unwrap(), 64);
    assert_eq!((out.ran_on.as_str(), out.decision.why.clone()), ("cpu", Why::Disabled));
    let force = |id: &str, env: Env| base.clone().env(env).placement(Placement::ForceGpu(id.into())).build();
    assert_eq!(force("opencl:a", off).unwrap_err().code(), Code::DeviceDisabled);
    assert_eq!(force("cuda:77", env()).unwrap_err().code(), Code::DeviceMissing);
    let forced = gemm(&force("opencl:a", env()).unwrap(), 2);
    assert_eq!((forced.ran_on.as_str(), forced.decision.why.clone()), ("opencl:a", Why::Forced));
    let cpu = gemm(&base.env(env()).placement(Placement::ForceCpu).build().unwrap(), 64);
    assert_eq!((cpu.ran_on.as_str(), cpu.decision.why.clone()), ("cpu", Why::Forced));
}

#[test]
fn the_profile_is_searched_in_order() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("profile.toml");
    let auto = |env: &Env| Engine::builder().env(env.clone()).build();
    let nowhere = Env { config_dir: Some(dir.path().into()), ..env() };
    assert_eq!(auto(&nowhere).unwrap().profile().name, "always-cpu");
    std::fs::write(&file, Profile::new(Kind::Calibrated, "mine").to_toml().unwrap()).unwrap();
    assert_eq!(auto(&nowhere).unwrap().profile().name, "mine");
    let named = Env { profile: Some("preset:high-end".into()), ..nowhere.clone() };
    assert_eq!(auto(&named).unwrap().profile().name, "high-end");
    let argument = Engine::builder().env(named).profile("low-end").build().unwrap();
    assert_eq!(argument.profile().name, "low-end");
    // A damaged file is an error, never a silent always-cpu.
    std::fs::write(&file, "schema = 1\n").unwrap();
    assert_eq!(auto(&nowhere).unwrap_err().code(), Code::ProfileTruncated);
    // Nor is one that cannot be reached: a link to nowhere, a folder that nobody can enter. What is not there at all is no
    // mistake.
    #[cfg(unix)]
    {
        use std::os::unix::fs::symlink;
        std::fs::remove_file(&file).unwrap();
        symlink(dir.path().join("elsewhere.toml"), &file).unwrap();
        let e = auto(&nowhere).unwrap_err();
        assert!(e.code() == Code::ProfileNotFound && e.to_string().contains("profile.toml"), "{e}");
        let round = dir.path().join("round");
        symlink(&round, &round).unwrap();
        let e = auto(&Env { config_dir: Some(round), ..env() }).unwrap_err();
        assert!(e.code() == Code::Io && e.to_string().contains("round"), "{e}");
        for none in [dir.path().join("none"), "/dev/null/.config".into()] {
            let homeless = Env { config_dir: Some(none), ..env() };
            assert_eq!(auto(&homeless).unwrap().profile().name, "always-cpu");
        }
    }
    let missing = Env { profile: Some("/nonexistent.toml".into()), ..env() };
    let e = auto(&missing).unwrap_err();
    assert_eq!((e.code(), e.class()), (Code::ProfileNotFound, gpuctl::base::Class::Usage));
}

fn faulty(on: On, when: When, fault: Fault) -> Arc<dyn Device> {
    let plan = FaultPlan { text: "test".into(), rules: vec![Rule { on, when, fault }] };
    Arc::new(Faulty::new(Second::new("a", DeviceClass::Discrete), plan))
}

#[test]
fn a_failing_device_is_replaced_by_the_cpu_with_fresh_operands() {
    let good = gemm(&Engine::builder().env(env()).placement(Placement::ForceCpu).build().unwrap(), 64);
    let faults = [
        (On::Alloc, Fault::Fail(Code::OutOfDeviceMemory), "out-of-device-memory"),
        (On::Build, Fault::Fail(Code::CompileFailed), "compile-failed"),
        (On::Launch, Fault::Fail(Code::LaunchFailed), "launch-failed"),
        (On::Read, Fault::Fail(Code::TransferFailed), "transfer-failed"),
    ];
    for (on, fault, word) in faults {
        let engine = engine_with(&faulty(on, When::From(1), fault));
        let out = gemm(&engine, 64);
        assert_eq!(out.ran_on, "cpu", "{word}");
        assert_eq!(out.decision.device, "opencl:a", "the decision was the device");
        assert!(out.fallback.as_deref().unwrap().contains(word), "{:?}", out.fallback);
        assert_eq!(out.outputs, good.outputs);
        assert_eq!((engine.stats().fallbacks, engine.stats().retries), (1, 1), "{word}");
        // Planted once: the call is made again, there.
        let engine = engine_with(&faulty(on, When::Nth(1), fault));
        let out = gemm(&engine, 64);
        assert_eq!((out.ran_on.as_str(), out.fallback.as_deref()), ("opencl:a", None), "{word}");
        assert_eq!(out.outputs, good.outputs);
    }
    // C is read and written; after a launch that may have begun to write it, the CPU still starts from the user's C.
    let engine = engine_with(&faulty(On::Read, When::From(1), Fault::Fail(Code::TransferFailed)));
    let attrs = Attrs::new().with("beta", gpuctl::base::Attr::Float(1.0));
    let (zero, c) = (HostTensor::zeros(DType::F32, &[64, 64]).unwrap(), matrix(64));
    let out = engine.run("gemm", &[&zero, &zero, &c], &attrs).unwrap();
    assert!(out.fallback.is_some());
    assert_eq!(out.outputs[0].to_vec::<f32>().unwrap(), c.to_vec::<f32>().unwrap());
}

#[test]
fn a_lost_device_is_not_asked_again() {
    let engine = engine_with(&faulty(On::Launch, When::Nth(3), Fault::Lose));
    assert_eq!(gemm(&engine, 64).ran_on, "opencl:a");
    assert!(gemm(&engine, 64).fallback.unwrap().contains("device-lost"));
    let later = gemm(&engine, 64);
    assert_eq!((later.ran_on.as_str(), later.fallback), ("cpu", None));
    assert!(matches!(later.decision.why, Why::Quarantined(_)), "{}", later.decision);
    assert_eq!(engine.stats(), gpuctl::engine::Stats { cpu: 2, gpu: 1, fallbacks: 1, ..Default::default() });
}

#[test]
fn without_fallback_the_error_comes_out() {
    let device = faulty(On::Alloc, When::From(1), Fault::Fail(Code::OutOfDeviceMemory));
    let p = profile(&[device.info()]);
    let engine = Engine::builder().env(env()).profile_value(p).device(device).no_fallback().build().unwrap();
    let e = engine.run("gemm", &[&matrix(64), &matrix(64)], &Attrs::new()).unwrap_err();
    assert_eq!(e.code(), Code::OutOfDeviceMemory);
    assert_eq!(engine.stats().fallbacks, 0);
}

#[test]
fn a_mistake_of_the_caller_is_no_fallback() {
    let engine = engine_with(&Second::new("a", DeviceClass::Discrete));
    let cases: [(&str, Vec<HostTensor>, Code); 3] = [
        ("gemm", vec![matrix(64), matrix(63)], Code::ShapeMismatch),
        ("gem", vec![matrix(64)], Code::UnknownOp),
        ("tanh", vec![HostTensor::zeros(DType::I32, &[4]).unwrap()], Code::DTypeUnsupported),
    ];
    for (op, inputs, code) in cases {
        let inputs: Vec<&HostTensor> = inputs.iter().collect();
        assert_eq!(engine.run(op, &inputs, &Attrs::new()).unwrap_err().code(), code, "{op}");
    }
    assert_eq!(engine.stats(), gpuctl::engine::Stats::default());
}

#[test]
fn threads_share_an_engine() {
    let engine = engine_with(&Second::new("a", DeviceClass::Discrete));
    let want = gemm(&engine, 64).outputs;
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| (0..5).for_each(|_| assert_eq!(gemm(&engine, 64).outputs, want)));
        }
    });
    assert_eq!(engine.stats().gpu, 21);
}

/// The same on a real driver: PoCL here, a GPU's driver elsewhere.
#[test]
fn routes_to_a_real_opencl_device() {
    let required = std::env::var("GPUCTL_REQUIRE").unwrap_or_default().split(',').any(|b| b.trim() == "opencl");
    let config = CpuConfig { threads: 1, pin: Pin::Free };
    let seen = probe::inventory_of(&[Backend::Opencl], &env(), config).unwrap();
    let Some(found) = seen.found.iter().find(|f| f.info.backend == Backend::Opencl) else {
        assert!(!required, "GPUCTL_REQUIRE lists opencl: {:?}", seen.absent);
        println!("skipped: routes_to_a_real_opencl_device: {:?}", seen.absent);
        return;
    };
    let engine = Engine::builder().env(env()).profile_value(profile(&[&found.info])).build().unwrap();
    let small = gemm(&engine, 32);
    assert_eq!(small.ran_on, "cpu");
    let large = gemm(&engine, 64);
    assert_eq!(
        (large.ran_on.as_str(), large.fallback.as_deref()),
        (found.info.id.as_str(), None),
        "{}",
        large.decision
    );
    let cpu = Engine::builder().env(env()).placement(Placement::ForceCpu).build().unwrap();
    assert_eq!(gemm(&cpu, 64).outputs, large.outputs);
    let lines = gpuctl::jobs::profile::why_lines(
        &engine,
        &gpuctl::jobs::profile::why(&engine, "gemm", DType::F32, &[64, 64, 64], Attrs::new()).unwrap(),
    );
    assert!(lines[0].contains(&found.info.id), "{lines:?}");
}

/// Simulated devices run when selected, against the CPU of the same virtual machine.
#[test]
fn a_simulated_device_runs_when_selected() {
    let select = Select::Named(vec!["sim:h200".into()]);
    let builder = Engine::builder().env(env()).profile("preset:always-gpu");
    let engine = builder.clone().devices(select).build().unwrap();
    let out = gemm(&engine, 16);
    assert_eq!(out.ran_on, "sim:h200");
    assert!(out.decision.to_string().contains("simulated"), "{}", out.decision);
    assert_ne!(gemm(&builder.build().unwrap(), 16).ran_on, "sim:h200");
}

/// On the CPU a call works on the caller's memory; with buffers of a device it gives the same bits, for every op.
#[test]
fn calls_on_host_memory_give_what_buffers_give() {
    let engine = Engine::builder().env(env()).placement(Placement::ForceCpu).build().unwrap();
    let cpu = gpuctl::engine::Runner::new(Arc::new(CpuDevice::new(0, Isa::detect(), Pin::Free).unwrap()));
    let mut same = 0;
    for op in op::all() {
        for dtype in op.dtypes {
            for spec in op.specs(op::Tier::Smoke, *dtype) {
                let case = op.case(*dtype, &spec.dims, spec.attrs.clone(), spec.fill).unwrap();
                let inputs = op::case::inputs(op, &case).unwrap();
                let inputs: Vec<&HostTensor> = inputs.iter().collect();
                // A user's operands may mean another case than the one that they were made for; then both are asked so.
                let Ok(want) = cpu.run(op, &inputs, &spec.attrs, None) else { continue };
                let got = engine.run(op.name, &inputs, &spec.attrs).unwrap();
                let again = engine.run(op.name, &inputs, &spec.attrs).unwrap();
                let bytes = |t: &[HostTensor]| t.iter().map(|t| t.bytes().to_vec()).collect::<Vec<_>>();
                if !["compile", "sync", "launch", "alloc"].contains(&op.name) {
                    assert_eq!(bytes(&got.outputs), bytes(&want.outputs), "{case}");
                    assert_eq!(bytes(&again.outputs), bytes(&want.outputs), "{case}, again");
                    let route = engine.route(op.name, &inputs, &spec.attrs).unwrap();
                    let mut results = route.outputs().unwrap();
                    results.iter_mut().for_each(|t| t.bytes_mut().fill(0xAA));
                    route.run_into(&inputs, &mut results).unwrap();
                    assert_eq!(bytes(&results), bytes(&want.outputs), "{case}, by a route");
                }
                let shapes = |t: &[HostTensor]| t.iter().map(|t| (t.dtype, t.shape.clone())).collect::<Vec<_>>();
                assert_eq!(shapes(&got.outputs), shapes(&want.outputs), "{case}");
                assert_eq!((got.variant, &got.case), (want.variant, &want.case), "{case}");
                same += 1;
            }
        }
    }
    assert!(same > 1000, "{same} cases");
}

#[test]
fn routes_check_their_operands_and_follow_what_drops_out() {
    let engine = engine_with(&faulty(On::Launch, When::Nth(3), Fault::Lose));
    let x = matrix(64);
    let route = engine.route("gemm", &[&x, &x], &Attrs::new()).unwrap();
    assert_eq!(route.why().device, "opencl:a");
    let want = gemm(&Engine::builder().env(env()).placement(Placement::ForceCpu).build().unwrap(), 64).outputs;
    let mut y = route.outputs().unwrap();
    let mut call = |on: &str, fallback: bool| {
        y[0].bytes_mut().fill(0xAA);
        let ran = route.run_into(&[&x, &x], &mut y).unwrap();
        assert_eq!((ran.on, ran.fallback), (on, fallback));
        assert_eq!(y, want);
    };
    call("opencl:a", false);
    call("cpu", true);
    // Lost: it is not asked again.
    call("cpu", false);
    assert_eq!(engine.stats(), gpuctl::engine::Stats { cpu: 2, gpu: 1, fallbacks: 1, ..Default::default() });
    for (inputs, outputs) in [
        (vec![&x], vec![x.clone()]),
        (vec![&x, &x, &x], vec![x.clone()]),
        (vec![&x, &matrix(63)], vec![x.clone()]),
        (vec![&x, &x], vec![matrix(63)]),
        (vec![&x, &x], vec![]),
        (vec![&x, &x], vec![HostTensor::zeros(DType::F64, &[64, 64]).unwrap()]),
    ] {
        let mut outputs = outputs;
        assert_eq!(route.run_into(&inputs, &mut outputs).unwrap_err().code(), Code::ShapeMismatch);
    }
    // What is read and written begins as the caller's, whatever the result held before.
    let cpu = Engine::builder().env(env()).placement(Placement::ForceCpu).build().unwrap();
    let (a, b) =
        (HostTensor::from_slice(&[1.0f32, 2.0], &[2]).unwrap(), HostTensor::from_slice(&[10.0f32, 20.0], &[2]));
    let b = b.unwrap();
    let route = cpu.route("axpy", &[&a, &b], &Attrs::new()).unwrap();
    let mut y = route.outputs().unwrap();
    for _ in 0..3 {
        route.run_into(&[&a, &b], &mut y).unwrap();
        assert_eq!(y[0].to_vec::<f32>().unwrap(), [11.0, 22.0]);
    }
}

/// Also where nothing but the kernel is called.
#[test]
fn routes_on_the_cpu_check_their_operands_and_count() {
    let cpu = Engine::builder().env(env()).placement(Placement::ForceCpu).build().unwrap();
    let of = |shape: &[u64]| HostTensor::from_slice(&[-1.0f32, 2.0, -3.0, 4.0, -5.0, 6.0], shape).unwrap();
    let x = of(&[2, 3]);
    let route = cpu.route("relu", &[&x], &Attrs::new()).unwrap();
    let mut y = route.outputs().unwrap();
    let before = cpu.stats().cpu;
    for _ in 0..3 {
        y[0].bytes_mut().fill(0xAA);
        assert_eq!(route.run_into(&[&x], &mut y).unwrap().on, "cpu");
        assert_eq!(y[0].to_vec::<f32>().unwrap(), [0.0, 2.0, 0.0, 4.0, 0.0, 6.0]);
    }
    assert_eq!(cpu.stats(), gpuctl::engine::Stats { cpu: before + 3, ..Default::default() });
    let other = HostTensor::from_slice(&[1i32; 6], &[2, 3]).unwrap();
    for wrong in [of(&[3, 2]), of(&[6]), of(&[1, 2, 3]), other] {
        assert_eq!(route.run_into(&[&wrong], &mut y).unwrap_err().code(), Code::ShapeMismatch, "{:?}", wrong.shape);
        assert_eq!(route.run_into(&[&x], &mut [wrong]).unwrap_err().code(), Code::ShapeMismatch);
    }
    for (inputs, mut outputs) in [(vec![], y.clone()), (vec![&x, &x], y.clone()), (vec![&x], vec![])] {
        assert_eq!(route.run_into(&inputs, &mut outputs).unwrap_err().code(), Code::ShapeMismatch);
    }
    assert_eq!(cpu.stats().cpu, before + 3, "what fails does not count");
}

/// The policies that go by where operands are, and by predicted time alone.
#[test]
fn policies_of_the_engine() {
    let device = Second::new("a", DeviceClass::Discrete);
    let build = |placement| {
        let mut p = profile(&[device.info()]);
        p.entries[1].threshold = Some(50_000);
        Engine::builder().env(env()).profile_value(p).device(Arc::clone(&device)).placement(placement).build().unwrap()
    };
    let there = gemm(&build(Placement::MinimizeTransfers), 64);
    assert_eq!((there.ran_on.as_str(), there.decision.why.clone()), ("cpu", Why::Profile(Reason::OperandsThere)));
    // The synthetic evidence, from 10 to 100,000: 1 ns per element on the CPU, 1 to 11 us on the device.
    let by_cost = build(Placement::CostBased);
    assert_eq!(gemm(&by_cost, 64).decision.why, Why::Profile(Reason::PredictedSlower));
    let x = HostTensor::zeros(DType::F32, &[100, 100]).unwrap();
    let out = by_cost.run("softmax", &[&x], &Attrs::new()).unwrap();
    assert_eq!((out.ran_on.as_str(), out.decision.why.clone()), ("opencl:a", Why::Profile(Reason::PredictedFaster)));
    assert_eq!(build(Placement::Automatic).run("softmax", &[&x], &Attrs::new()).unwrap().ran_on, "cpu");
}
