//! Trial before trust: a kernel is tried at its first use, verdicts are kept, and what is unfit is listed and refused.
//!
//! The compiler that is wrong is built from tests/fixtures/icd/mutant.c around PoCL with the system's C compiler.

#![cfg(unix)]
#![allow(clippy::print_stderr, reason = "skips are named")]

#[path = "trial/store.rs"]
mod store;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use gpuctl::base::record::CalibratePoint;
use gpuctl::base::sink::{Cancel, Collect};
use gpuctl::base::{Attrs, Code, DType, DeviceInfo, Env, HostTensor};
use gpuctl::device::cpu::{CpuDevice, Pin, available_threads};
use gpuctl::device::faulty::{Fault, FaultPlan, Faulty, On, Rule, When};
use gpuctl::device::probe::Rig;
use gpuctl::device::spoilt::Spoilt;
use gpuctl::device::{Device, sim};
use gpuctl::engine::{Engine, EngineBuilder, Outcome, Placement, Trials};
use gpuctl::jobs::calibrate::{self, CalibrateConfig};
use gpuctl::kernel::Isa;
use gpuctl::measure::Residency;
use gpuctl::op;
use gpuctl::profile::{Entry, Host, Kind, Profile, ProfileDevice, Verdict};

/// An environment that keeps what it keeps in this folder.
fn env(cache: &Path) -> Env {
    Env { cache_dir: Some(cache.join("gpuctl")), ..Env::default() }
}

/// A device whose launches and builds are counted.
fn counted(device: Arc<dyn Device>) -> Arc<Faulty> {
    let count = |on| Rule { on, when: When::Every(1), fault: Fault::Slow(Duration::ZERO) };
    let plan =
        FaultPlan { text: "nothing, calls are counted".into(), rules: vec![count(On::Launch), count(On::Build)] };
    Arc::new(Faulty::new(device, plan))
}

/// The simulator behind a compiler that flips a bit of every result's first element, if `wrong`.
fn simulated(wrong: bool, driver: &str) -> (Arc<dyn Device>, Arc<Faulty>) {
    let count = counted(sim::open("h200").unwrap().1);
    let inner: Arc<dyn Device> = Arc::<Faulty>::clone(&count);
    let edit = move |bytes: &mut [u8], _| {
        if let (true, Some(byte)) = (wrong, bytes.get_mut(3)) {
            *byte ^= 0x40;
        }
    };
    let mut spoilt = Spoilt::new(inner, 0, edit);
    spoilt.info_mut().driver = driver.into();
    (Arc::new(spoilt), count)
}

/// Every square gemm goes to the device.
fn builder(device: &Arc<dyn Device>, env: Env) -> EngineBuilder {
    let cpu = CpuDevice::new(1, Isa::detect(), Pin::Free).unwrap();
    let point =
        |size| CalibratePoint { size, cpu_s: size as f64 * 1e-9, gpu_s: 1e-12, ratio_ci: [10.0, 1000.0], pairs: 5 };
    let mut p = Profile::new(Kind::Calibrated, "synthetic");
    p.host = Some(Host { cpu: cpu.info().name.clone(), isa: Isa::detect().name().into(), ..Host::default() });
    p.devices.push(ProfileDevice::of(device.info()));
    p.entries.push(Entry {
        op: "gemm".into(),
        dtype: "f32".into(),
        family: "square".into(),
        device: device.info().uid.clone(),
        residency: "always".into(),
        threads: available_threads() as u32,
        cpu_variant: "auto".into(),
        verdict: Verdict::Crossing,
        unit: "dim".into(),
        crossing: Some(16),
        threshold: Some(16),
        n: 2,
        verify: "ok".into(),
        points: vec![point(10), point(1000)],
        ..Entry::default()
    });
    Engine::builder().env(env).profile_value(p).device(Arc::clone(device))
}

fn matrix(n: u64) -> HostTensor {
    let values: Vec<f32> = (0..n * n).map(|i| (i % 7) as f32 - 3.0).collect();
    HostTensor::from_slice(&values, &[n, n]).unwrap()
}

fn gemm(engine: &Engine, n: u64) -> gpuctl::base::Result<Outcome> {
    engine.run("gemm", &[&matrix(n), &matrix(n)], &Attrs::new())
}

fn launches(count: &Faulty) -> u64 {
    count.hits()[0]
}

#[test]
fn a_wrong_kernel_is_not_used() {
    let cache = tempfile::tempdir().unwrap();
    let cpu = Engine::builder().env(Env::default()).placement(Placement::ForceCpu).build().unwrap();
    let want = gemm(&cpu, 40).unwrap().outputs;

    // The device is really wrong: nothing else would notice.
    let (device, _) = simulated(true, "1");
    let trusting = builder(&device, env(cache.path())).without_trials().build().unwrap();
    let got = gemm(&trusting, 40).unwrap();
    assert!(got.ran_on == "spoilt:0" && got.outputs != want);
    assert!(!cache.path().join("gpuctl").exists(), "without trials nothing is kept");

    let (device, count) = simulated(true, "1");
    let engine = builder(&device, env(cache.path())).build().unwrap();
    let out = gemm(&engine, 40).unwrap();
    assert_eq!((out.ran_on.as_str(), out.decision.device.as_str()), ("cpu", "spoilt:0"));
    assert_eq!(out.outputs, want);
    let said = out.fallback.unwrap();
    for part in ["result-wrong: gemm on spoilt:0", "gemm/f32/m", "element 0 is", "expected", "gpuctl verify --case '"] {
        assert!(said.contains(part), "'{part}' is not in: {said}");
    }
    assert_eq!(launches(&count), 1, "the trial, and no call");
    // Other shapes take the same kernel, and so does a route.
    assert!(gemm(&engine, 41).unwrap().fallback.is_some());
    let (a, b) = (matrix(40), matrix(40));
    let route = engine.route("gemm", &[&a, &b], &Attrs::new()).unwrap();
    let mut y = route.outputs().unwrap();
    let ran = route.run_into(&[&a, &b], &mut y).unwrap();
    assert_eq!((ran.on, ran.fallback, &y), ("cpu", true, &want));
    assert_eq!(launches(&count), 1);
    assert_eq!(engine.stats(), gpuctl::engine::Stats { cpu: 3, fallbacks: 3, ..Default::default() });

    // Who forces the device, or allows no fallback, gets an error and no result of another device.
    for engine in [
        builder(&device, env(cache.path())).placement(Placement::ForceGpu("spoilt:0".into())).build().unwrap(),
        builder(&device, Env::default()).no_fallback().build().unwrap(),
    ] {
        let e = gemm(&engine, 40).unwrap_err();
        assert_eq!(e.code(), Code::ResultWrong);
        assert!(e.to_string().contains("gpuctl verify --case '"), "{e}");
        assert_eq!(engine.stats(), gpuctl::engine::Stats::default());
    }
}

#[test]
fn verdicts_last_as_long_as_the_driver() {
    let cache = tempfile::tempdir().unwrap();
    let (device, count) = simulated(false, "1");
    let engine = builder(&device, env(cache.path())).build().unwrap();
    assert_eq!(gemm(&engine, 40).unwrap().ran_on, "spoilt:0");
    assert_eq!(count.hits(), [2, 1], "a trial and a call, of one program");
    for n in [40, 41] {
        assert_eq!(gemm(&engine, n).unwrap().ran_on, "spoilt:0");
    }
    assert_eq!(count.hits(), [4, 1], "it is tried once");
    drop(engine);

    // The next program does not try it again.
    let (device, count) = simulated(false, "1");
    assert_eq!(gemm(&builder(&device, env(cache.path())).build().unwrap(), 40).unwrap().ran_on, "spoilt:0");
    assert_eq!(launches(&count), 1);
    // Nor does it find out that the driver would now be wrong, until it says to be another one.
    let (device, count) = simulated(true, "1");
    assert!(gemm(&builder(&device, env(cache.path())).build().unwrap(), 40).unwrap().fallback.is_none());
    assert_eq!(launches(&count), 1);
    let (device, count) = simulated(true, "2");
    assert!(gemm(&builder(&device, env(cache.path())).build().unwrap(), 40).unwrap().fallback.is_some());
    assert_eq!(launches(&count), 1);
    // A wrong one stays wrong, too.
    let (device, count) = simulated(false, "2");
    let engine = builder(&device, env(cache.path())).build().unwrap();
    assert!(gemm(&engine, 40).unwrap().fallback.is_some());
    assert_eq!(launches(&count), 0, "nothing runs on it");
    assert_eq!(Trials::of(&env(cache.path())).wrong(device.info()).len(), 1);
    let (device, _) = simulated(false, "3");
    assert!(gemm(&builder(&device, env(cache.path())).build().unwrap(), 40).unwrap().fallback.is_none());
    // Without a cache folder each program tries for itself, and no file is written.
    let (device, count) = simulated(false, "3");
    for launched in [2, 4] {
        gemm(&builder(&device, Env::default()).build().unwrap(), 40).unwrap();
        assert_eq!(launches(&count), launched);
    }
}

/// What computes nothing can be neither right nor wrong.
#[test]
fn a_device_that_computes_nothing_is_not_judged() {
    let cache = tempfile::tempdir().unwrap();
    let device = sim::open("h200:timing").unwrap().1;
    let engine = builder(&device, env(cache.path())).build().unwrap();
    assert_eq!(gemm(&engine, 40).unwrap().ran_on, device.info().id);
    let kept = Trials::of(&env(cache.path()));
    assert_eq!((kept.passed(device.info()), kept.wrong(device.info()).len()), (0, 0));
}

/// A trial takes the call's own program: on a real driver nothing is compiled twice.
#[cfg(feature = "opencl")]
#[test]
fn a_trial_compiles_nothing_more() {
    use gpuctl::device::probe::{self, CpuConfig, Select};
    let select = Select::Named(vec!["opencl:0".into()]);
    let rig = match probe::open(&select, &Env::default(), CpuConfig { threads: 1, pin: Pin::Free }) {
        Ok(rig) => rig,
        Err(e) => return skipped("a_trial_compiles_nothing_more", "opencl", &e.to_string()),
    };
    for wrong in [false, true] {
        let count = counted(Arc::clone(&rig.devices[0]));
        let inner: Arc<dyn Device> = Arc::<Faulty>::clone(&count);
        let edit = move |bytes: &mut [u8], _| bytes.iter_mut().take(4).for_each(|b| *b ^= if wrong { 0x40 } else { 0 });
        let device: Arc<dyn Device> = Arc::new(Spoilt::new(inner, 0, edit));
        let engine = builder(&device, Env::default()).build().unwrap();
        let out = gemm(&engine, 64).unwrap();
        assert_eq!(out.fallback.is_some(), wrong, "{:?}", out.fallback);
        assert_eq!(count.hits()[1], 1, "one program");
    }
}

/// What `calibrate` finds wrong is there for those who ask later.
#[test]
fn calibrate_tells_what_it_found_wrong() {
    let cache = tempfile::tempdir().unwrap();
    let cfg = CalibrateConfig {
        ops: vec![op::find("relu").unwrap()],
        dtypes: vec![DType::F32],
        residencies: vec![Residency::Always],
        cpu_variant: None,
        margin: 1.1,
        budget: Duration::from_secs(5),
        range: Some((1024, 4096)),
        allow_software: false,
        seed: 1,
        processes: 3,
        earlier: None,
        kernels: gpuctl::engine::KernelCache::off(),
        states: Vec::new(),
        telemetry: gpuctl::device::telemetry::Telemetry::cards,
    };
    for wrong in [false, true] {
        let (device, _) = simulated(wrong, "1");
        let rig = Rig { devices: vec![Arc::clone(&device)], cpu: sim::open("h200").unwrap().0, absent: Vec::new() };
        let done = calibrate::run(&cfg, &rig, &mut Collect::default(), &Cancel::new()).unwrap();
        assert_eq!(done.wrong.len(), usize::from(wrong), "{:?}", done.wrong);
        let kept = Trials::of(&env(cache.path()));
        for finding in &done.wrong {
            let all: Vec<_> = finding.programs.iter().map(|p| (p.clone(), finding.verdict.clone())).collect();
            kept.note(device.info(), &all);
        }
        let faults = Trials::of(&env(cache.path())).wrong(device.info());
        assert_eq!(faults.len(), usize::from(wrong), "{faults:?}");
        assert!(faults.iter().all(|f| f.program.op == "relu" && f.case.starts_with("relu/f32/n")), "{faults:?}");
    }
}

/// Says why a test cannot run. What `GPUCTL_REQUIRE` names must be there; a C compiler, too, where it names anything.
fn skipped(test: &str, needs: &str, why: &str) {
    let require = std::env::var("GPUCTL_REQUIRE").unwrap_or_default();
    let required = if needs == "cc" { !require.is_empty() } else { require.split(',').any(|r| r == needs) };
    assert!(!required, "GPUCTL_REQUIRE is '{require}', but: {why}");
    eprintln!("skipped: trial::{test}: {why}");
}

/// Through the command line, with drivers in a folder of our own.
#[cfg(all(target_os = "linux", feature = "cli", feature = "opencl"))]
mod command {
    use super::skipped;
    use std::path::{Path, PathBuf};
    use std::process::Command;
    use std::time::Duration;

    use gpuctl::base::sink::{Cancel, Collect};
    use gpuctl::base::{DeviceInfo, HostTensor, npy};
    use gpuctl::jobs::trial;
    use serde_json::Value;

    /// The text of relu, and the same with another number for what is below 0.
    const TEXT: [&str; 2] = ["(x) < (ACC)0 ? (ACC)0 : (x)", "(x) < (ACC)0 ? (ACC)1 : (x)"];

    struct Drivers {
        folder: tempfile::TempDir,
        /// What the good driver's file names.
        pocl: PathBuf,
    }

    impl Drivers {
        fn new(test: &str) -> Option<Self> {
            let installed = std::fs::read_dir("/etc/OpenCL/vendors").into_iter().flatten().flatten().map(|e| e.path());
            let name = |p: &PathBuf| p.file_name().unwrap_or_default().to_string_lossy().into_owned();
            let Some(file) = installed.into_iter().find(|p| name(p).starts_with("pocl") && name(p).ends_with(".icd"))
            else {
                skipped(test, "opencl", "no PoCL in /etc/OpenCL/vendors");
                return None;
            };
            let text = std::fs::read_to_string(file).unwrap();
            let drivers = Drivers { folder: tempfile::tempdir().unwrap(), pocl: text.trim().into() };
            drivers.use_library(&drivers.pocl);
            let cc = Command::new("cc").arg("--version").output();
            if cc.is_err() {
                skipped(test, "cc", "no C compiler 'cc'");
                return None;
            }
            Some(drivers)
        }

        fn path(&self, name: &str) -> PathBuf {
            self.folder.path().join(name)
        }

        /// From now on this is the only driver.
        fn use_library(&self, library: &Path) {
            let vendors = self.path("vendors");
            std::fs::create_dir_all(&vendors).unwrap();
            std::fs::write(vendors.join("only.icd"), format!("{}\n", library.display())).unwrap();
        }

        /// PoCL with a compiler that is wrong is the only driver.
        fn use_mutant(&self, name: &str, define: Option<&str>) {
            let library = self.path(&format!("lib{name}.so"));
            let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/icd/mutant.c");
            let mut cc = Command::new("cc");
            cc.args(["-shared", "-fPIC", "-o"]).arg(&library).arg(source);
            cc.arg(format!("-DPOCL=\"{}\"", self.pocl.display()));
            cc.args([format!("-DFROM=\"{}\"", TEXT[0]), format!("-DTO=\"{}\"", TEXT[1])]);
            cc.args(define.map(|d| format!("-D{d}"))).arg("-ldl");
            let out = cc.output().unwrap();
            assert!(out.status.success(), "{name}: {}", String::from_utf8_lossy(&out.stderr));
            self.use_library(&library);
        }

        fn command(&self, args: &[&str]) -> Command {
            let mut command = Command::new(env!("CARGO_BIN_EXE_gpuctl"));
            command
                .args(args)
                .env("OCL_ICD_VENDORS", self.path("vendors"))
                .env("XDG_CACHE_HOME", self.path("cache"))
                .env("POCL_CACHE_DIR", Path::new(env!("CARGO_TARGET_TMPDIR")).join("pocl"))
                .env("NODEVICE_SELECT", "1");
            for name in
                ["OPENCL_VENDOR_PATH", "OCL_ICD_FILENAMES", "GPUCTL_DISABLE_GPU", "GPUCTL_REQUIRE", "GPUCTL_CACHE"]
            {
                command.env_remove(name);
            }
            command
        }

        /// Runs `gpuctl`; gives its exit code, stdout and stderr.
        fn gpuctl(&self, args: &[&str]) -> (i32, String, String) {
            let out = self.command(args).output().unwrap();
            let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
            let (said, talk) = (text(&out.stdout), text(&out.stderr));
            (out.status.code().unwrap_or_else(|| panic!("{args:?}: {}: {talk}", out.status)), said, talk)
        }

        fn trial(&self, more: &[&str]) -> (i32, String, String) {
            let args = ["devices", "--trial", "--device", "opencl:0", "--op", "relu,leaky_relu", "--dtype", "f32"];
            self.gpuctl(&[&args[..], more].concat())
        }

        /// The line about unfit devices in the plain list, if there is one.
        fn listed(&self) -> Option<String> {
            let (code, said, talk) = self.gpuctl(&["devices"]);
            assert_eq!(code, 0, "{talk}");
            assert!(said.contains("opencl:0"), "{said}");
            let begins = |l: &&str| l.starts_with("unfit: ");
            assert!(said.lines().filter(begins).count() < 2, "{said}");
            // With the lines that it is folded to.
            let mut lines = said.lines().skip_while(|l| !begins(l));
            let first = lines.next()?;
            let more = lines.take_while(|l| l.starts_with("    ")).map(str::trim_start);
            Some(std::iter::once(first).chain(more).collect::<Vec<_>>().join(" "))
        }
    }

    const CALIBRATE: [&str; 12] = [
        "calibrate",
        "--device",
        "cpu,opencl:0",
        "--allow-software",
        "--op",
        "relu",
        "--residency",
        "always",
        "--processes",
        "1",
        "--budget",
        "1s",
    ];

    #[test]
    fn a_wrong_compiler_makes_an_unfit_device() {
        let Some(drivers) = Drivers::new("a_wrong_compiler_makes_an_unfit_device") else { return };
        // The good driver: nothing is said of it.
        let (code, said, talk) = drivers.trial(&[]);
        assert_eq!((code, talk.as_str()), (0, ""), "{said}");
        assert!(said.starts_with("fit: opencl:0: ") && said.contains(" cases of 2 ops passed"), "{said}");
        assert_eq!(said.lines().count(), 1, "{said}");
        assert_eq!(drivers.listed(), None);
        let (code, profile, talk) = drivers.gpuctl(&CALIBRATE);
        assert_eq!(code, 0, "{talk}");
        assert!(profile.contains("device = \"opencl/") && !talk.contains("unfit"), "{profile}{talk}");

        drivers.use_mutant("mutant", None);
        let (code, said, talk) = drivers.trial(&[]);
        assert_eq!((code, talk.as_str()), (1, ""), "{said}");
        let first = said.lines().next().unwrap();
        assert!(first.starts_with("unfit: opencl:0: relu/f32/n") && first.contains(" is 1, expected 0"), "{said}");
        assert!(said.contains("rerun: gpuctl verify --case 'relu/f32/n"), "{said}");
        let listed = drivers.listed().unwrap();
        assert!(
            listed.contains("relu/f32/n") && listed.contains("`gpuctl devices --trial --device opencl:0`"),
            "{listed}"
        );
        let (code, profile, talk) = drivers.gpuctl(&CALIBRATE);
        assert_eq!(code, 1, "{talk}");
        assert!(talk.contains("refused, unfit: opencl:0: relu/f32/n"), "{talk}");
        assert!(!profile.contains("[[device]]"), "{profile}");
        // The user's own arrays are not given to it, and nothing is written.
        let (x, y) = (drivers.path("x.npy"), drivers.path("y.npy"));
        npy::write(&[(&x, &HostTensor::from_slice(&[-1.0f32, 2.0], &[2]).unwrap())]).unwrap();
        let (x, y_text) = (x.to_str().unwrap(), y.to_str().unwrap());
        let run = ["run", "relu", "--in", x, "--out", y_text, "--device", "opencl:0"];
        let (code, said, talk) = drivers.gpuctl(&run);
        assert_eq!((code, said.as_str(), y.exists()), (1, "", false), "{talk}");
        assert!(talk.contains("result-wrong: relu on opencl:0") && talk.contains("gpuctl verify --case '"), "{talk}");
        // In the document, too.
        let doc: Value = serde_json::from_str(&drivers.gpuctl(&["devices", "--json", "-"]).1).unwrap();
        let records = doc["records"].as_array().unwrap();
        let of = |id: &str| records.iter().find(|r| r["kind"] == "trial" && r["device"] == id).unwrap();
        assert_eq!((&of("opencl:0")["fitness"], &of("opencl:0")["wrong_before"]), (&"unfit".into(), &1.into()));
        assert_eq!((&of("cpu")["fitness"], &of("cpu")["case"]), (&"unjudged".into(), &Value::Null));

        // Repaired, but listed as unfit until it is tried: a trial of other ops does not clear it.
        drivers.use_library(&drivers.pocl);
        assert_eq!(
            drivers.gpuctl(&["devices", "--trial", "--device", "opencl:0", "--op", "neg", "--dtype", "f32"]).0,
            0
        );
        assert_eq!(drivers.listed(), Some(listed));
        let (code, said, _) = drivers.trial(&["--json", "-"]);
        let doc: Value = serde_json::from_str(&said).unwrap();
        assert_eq!((code, &doc["exit_code"]), (0, &0.into()));
        let record = &doc["records"][0];
        assert_eq!(
            (&record["fitness"], &record["wrong_before"], &record["failed"]),
            (&"fit".into(), &1.into(), &0.into())
        );
        assert_eq!(drivers.listed(), None);
        let (code, said, talk) = drivers.gpuctl(&run);
        assert!(code == 0 && said.contains("ran on opencl:0") && y.exists(), "{said}{talk}");
    }

    #[test]
    fn a_compiler_that_crashes_makes_an_unfit_device() {
        let Some(drivers) = Drivers::new("a_compiler_that_crashes_makes_an_unfit_device") else { return };
        drivers.use_mutant("crashes", Some("CRASHES"));
        let (code, said, _) = drivers.trial(&[]);
        assert_eq!(code, 1, "{said}");
        assert!(said.contains("ended (signal SIGABRT); its last words: mutant: register allocation failed"), "{said}");
        assert!(said.contains("rerun: gpuctl verify --op relu --dtype f32 --device opencl:0"), "{said}");
        assert!(drivers.listed().unwrap().contains("SIGABRT"));
    }

    /// A driver whose compiler never returns, in the very process that a trial starts; only its patience is shorter here.
    #[test]
    fn a_compiler_that_hangs_makes_an_unfit_device() {
        let Some(drivers) = Drivers::new("a_compiler_that_hangs_makes_an_unfit_device") else { return };
        drivers.use_mutant("hangs", Some("HANGS"));
        let (code, said, talk) = drivers.gpuctl(&["devices", "--backend", "opencl", "--json", "-"]);
        assert_eq!(code, 0, "{talk}");
        let doc: serde_json::Value = serde_json::from_str(&said).unwrap();
        let of = |v: &serde_json::Value| serde_json::from_value::<DeviceInfo>(v.clone()).unwrap();
        let info = doc["devices"].as_array().unwrap().iter().map(of).find(|d| d.id == "opencl:0").unwrap();

        // As `devices --trial` starts it, through a shell that sets the environment and becomes it.
        let uid = format!("--uid={}", info.uid);
        let worker = drivers.command(&["trial-worker", "--backend=opencl", &uid, "--op=relu", "--dtype=f32"]);
        let quoted = |text: &std::ffi::OsStr| format!("'{}'", text.to_str().unwrap().replace('\'', "'\\''"));
        let set = worker.get_envs().filter_map(|(k, v)| Some(format!("{}={}", k.to_str()?, quoted(v?))));
        let unset = worker.get_envs().filter(|(_, v)| v.is_none()).map(|(k, _)| format!("-u {}", k.to_str().unwrap()));
        let words: Vec<String> = ["exec env".to_string()]
            .into_iter()
            .chain(unset)
            .chain(set)
            .chain(std::iter::once(quoted(worker.get_program())))
            .chain(worker.get_args().map(quoted))
            .collect();
        let start = trial::Start {
            program: "/bin/sh".into(),
            arguments: vec!["-c".into(), words.join(" ")],
            silence: Duration::from_secs(15),
        };
        let tried = trial::run(&info, &start, None, &mut Collect::default(), &Cancel::new()).unwrap();
        let record = tried.record;
        assert_eq!(record.fitness, "unfit", "{record:?}");
        assert!(record.found.as_deref().unwrap_or_default().contains("no answer within 15 s"), "{record:?}");
        assert!(record.rerun.as_deref().unwrap_or_default().contains("--op relu --dtype f32"), "{record:?}");
        assert!(!tried.verdicts.is_empty(), "it is kept");
    }

    /// `calibrate` looks before it measures, and leaves on record what it found.
    #[test]
    fn what_calibrate_finds_wrong_is_on_record() {
        let Some(drivers) = Drivers::new("what_calibrate_finds_wrong_is_on_record") else { return };
        drivers.use_mutant("mutant", None);
        assert_eq!(drivers.listed(), None);
        let (code, profile, talk) = drivers.gpuctl(&CALIBRATE);
        assert_eq!(code, 1, "{talk}");
        assert!(profile.contains("verdict = \"unsafe\"") && !talk.contains("refused"), "{profile}{talk}");
        assert!(drivers.listed().unwrap().contains("relu/f32/n"));
        let (code, _, talk) = drivers.gpuctl(&CALIBRATE);
        assert!(code == 1 && talk.contains("refused, unfit: opencl:0"), "{talk}");
        // Off keeps nothing and knows nothing.
        let kept = || {
            let mut names: Vec<_> = walk(&drivers.path("cache"));
            names.sort();
            names
        };
        let before = kept();
        let off = |args: &[&str]| drivers.command(args).env("GPUCTL_CACHE", "off").output().unwrap();
        let out = off(&["devices", "--trial", "--device", "opencl:0", "--op", "neg", "--dtype", "f32"]);
        assert_eq!(out.status.code(), Some(0), "{}", String::from_utf8_lossy(&out.stderr));
        assert!(!String::from_utf8_lossy(&off(&["devices"]).stdout).contains("unfit"));
        assert_eq!(kept(), before);
        assert!(!Path::new("off").exists());
    }

    /// Files below a folder, with their lengths and contents' sums.
    fn walk(folder: &Path) -> Vec<(PathBuf, u64)> {
        let mut all = Vec::new();
        for path in std::fs::read_dir(folder).into_iter().flatten().flatten().map(|e| e.path()) {
            if path.is_dir() {
                all.extend(walk(&path));
            } else {
                let bytes = std::fs::read(&path).unwrap();
                all.push((path, bytes.iter().map(|b| u64::from(*b)).sum()));
            }
        }
        all
    }

    #[test]
    fn requests_that_cannot_be() {
        let Some(drivers) = Drivers::new("requests_that_cannot_be") else { return };
        for (args, code, word) in [
            (&["devices", "--trial", "--device", "opencl:7"][..], 3, "no device 'opencl:7'; there are: cpu"),
            (&["devices", "--trial", "--op", "nope"][..], 2, "unknown op 'nope'"),
            (&["devices", "--trial", "--measure"][..], 2, "--measure"),
            (&["devices", "--op", "relu"][..], 2, "--trial"),
        ] {
            let (got, said, talk) = drivers.gpuctl(args);
            assert!(got == code && said.is_empty() && talk.contains(word), "{args:?}: {got} {said}{talk}");
        }
        // Nothing that a simulator without arithmetic says is right or wrong.
        let (code, said, _) =
            drivers.gpuctl(&["devices", "--trial", "--device", "sim:h200:timing", "--op", "relu", "--dtype", "f32"]);
        assert!(code == 4 && said.starts_with("not judged: sim:h200:timing: "), "{code} {said}");
    }
}

/// For the tests of the store.
fn someone() -> DeviceInfo {
    DeviceInfo::ordinary_gpu()
}
