//! Kernels of real drivers: what is loaded computes what was built, in every bit.

use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use gpuctl::base::record::{Document, KernelsRecord, Record};
use gpuctl::base::{Attrs, Case, DType, Env, Fill, HostTensor};
use gpuctl::device::cpu::Pin;
use gpuctl::device::probe::{CpuConfig, Select, open};
use gpuctl::device::{DEADLINE, Device};
use gpuctl::engine::cache::{FLUSH, LIMIT};
use gpuctl::engine::{Engine, KernelCache, Placement, Runner};
use gpuctl::op::{self, OpDesc};
use gpuctl::profile::Profile;

use super::files_in;

pub(crate) fn device(backend: &str, test: &str) -> Option<Arc<dyn Device>> {
    let select = Select::Named(vec![format!("{backend}:0")]);
    match open(&select, &Env::default(), CpuConfig { threads: 1, pin: Pin::Free }) {
        Ok(rig) => rig.devices.into_iter().next(),
        Err(e) => {
            let required = Env::read().unwrap().require.iter().any(|b| b == backend);
            assert!(!required, "GPUCTL_REQUIRE names {backend}, but: {e}");
            eprintln!("skipped: cache::{test}: {e}");
            None
        }
    }
}

pub(crate) fn cases() -> Vec<(&'static OpDesc, Case)> {
    [
        ("gemm", DType::F32, vec![33, 47, 65]),
        ("softmax", DType::F32, vec![7, 500]),
        ("layernorm", DType::F32, vec![5, 300]),
        ("sum", DType::F32, vec![3, 4000, 1]),
        ("relu", DType::F32, vec![1000]),
        ("mul", DType::I32, vec![999]),
        ("exp", DType::F32, vec![1001]),
        ("transpose", DType::F32, vec![31, 65]),
    ]
    .into_iter()
    .map(|(name, dtype, dims)| {
        let op = op::find(name).unwrap();
        (op, op.case(dtype, &dims, Attrs::new(), Fill::Uniform).unwrap())
    })
    .collect()
}

fn computed(runner: &Runner) -> Vec<Vec<HostTensor>> {
    let one = |(op, case): (&'static OpDesc, Case)| {
        let p = runner.prepare(op, &case, None).unwrap();
        let mut lease = runner.lease().unwrap();
        p.call(lease.queue().unwrap(), &op::case::inputs(op, &case).unwrap(), DEADLINE).unwrap()
    };
    cases().into_iter().map(one).collect()
}

/// Built and kept, then loaded by a second device, with results equal in every bit.
fn twice(backend: &str, test: &str) -> Option<(KernelsRecord, KernelsRecord)> {
    let root = tempfile::tempdir().unwrap();
    let kernels = || KernelCache::at(root.path(), LIMIT);
    let runner = |d, kernels| Runner::new(d).keeping(kernels);
    let kept = kernels();
    let first = runner(device(backend, test)?, kept.clone());
    let built = computed(&first);
    let warm = first.kernels();
    assert_eq!(computed(&first), built);
    assert_eq!(first.kernels().builds, warm.builds, "nothing is compiled after warm-up");
    // Who goes waits no longer than some seconds, which are not enough beside other tests on a slow machine.
    assert!(kept.flush(Duration::from_secs(120)));
    drop(first);
    let second = runner(device(backend, test)?, kernels());
    assert_eq!(computed(&second), built, "the kept kernels compute the same bits");
    let told = second.kernels();
    println!("{backend}: {} files, first {warm:?}, second {told:?}", files_in(root.path()).len());
    Some((warm, told))
}

#[test]
fn opencl_loads_what_it_built() {
    let Some((first, second)) = twice("opencl", "opencl_loads_what_it_built") else { return };
    assert!(first.builds >= 8 && first.loads == 0);
    assert_eq!((second.builds, second.loads, second.refused), (0, first.builds, 0));
}

/// Whether the driver keeps anything is its own affair; either all of it is there again, or all is built.
#[test]
fn wgpu_loads_what_its_driver_keeps() {
    let Some((first, second)) = twice("wgpu", "wgpu_loads_what_its_driver_keeps") else { return };
    assert!(first.builds >= 8 && second.refused == 0);
    assert_eq!(second.builds + second.loads, first.builds);
    assert!(second.loads == 0 || second.builds == 0, "{second:?}");
}

#[test]
fn an_engine_keeps_its_kernels_and_builds_them_before_they_are_needed() {
    let test = "an_engine_keeps_its_kernels_and_builds_them_before_they_are_needed";
    if device("opencl", test).is_none() {
        return;
    }
    let root = tempfile::tempdir().unwrap();
    let engine = || {
        let env = Env { cache_dir: Some(root.path().into()), ..Env::default() };
        let placement = Placement::ForceGpu("opencl:0".into());
        Engine::builder().env(env).placement(placement).without_trials().build().unwrap()
    };
    let relu = op::find("relu").unwrap().case(DType::F32, &[100], Attrs::new(), Fill::Uniform).unwrap();
    let x = HostTensor::from_slice(&[-1.0f32, 2.0], &[2]).unwrap();
    for builds in [1, 0] {
        let engine = engine();
        assert_eq!(engine.precompile(std::slice::from_ref(&relu)).unwrap(), 1);
        let out = engine.run("relu", &[&x], &Attrs::new()).unwrap();
        assert_eq!((out.outputs[0].to_vec::<f32>().unwrap(), out.ran_on.as_str()), (vec![0.0, 2.0], "opencl:0"));
        let told = engine.kernels().into_iter().find(|k| k.device == "opencl:0").unwrap();
        assert_eq!((told.builds, told.loads, told.hits), (builds, 1 - builds, 1));
    }
    assert_eq!(files_in(root.path()).len(), 1);
    let off = Engine::builder().env(Env { cache_dir: Some(root.path().into()), ..Env::default() });
    let off = off.placement(Placement::ForceGpu("opencl:0".into())).kernel_cache(KernelCache::off()).without_trials();
    let off = off.build().unwrap();
    off.precompile(&[relu]).unwrap();
    assert!(off.kernels().iter().any(|k| (k.builds, k.cache.as_str()) == (1, "off")), "{:?}", off.kernels());
}

/// The document and stdout.
fn gpuctl(arguments: &[&str], cache: &Path) -> (Document, String) {
    let json = tempfile::NamedTempFile::new().unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_gpuctl"));
    command.args(arguments).args(["--quiet", "--json"]).arg(json.path());
    let out = command.env("GPUCTL_CACHE", cache).env("NODEVICE_SELECT", "1").output().unwrap();
    let (text, said) = (std::fs::read_to_string(json.path()).unwrap(), String::from_utf8_lossy(&out.stderr));
    let doc = serde_json::from_str(&text).unwrap_or_else(|e| panic!("{e}: {said}"));
    (doc, String::from_utf8_lossy(&out.stdout).into_owned())
}

fn told(doc: &Document, device: &str) -> KernelsRecord {
    let kernels = |r: &Record| match r {
        Record::Kernels(k) if k.device == device => Some((**k).clone()),
        _ => None,
    };
    doc.records.iter().find_map(kernels).unwrap_or_else(|| panic!("no counters in {:?}", doc.records))
}

/// On the command line: the first of the processes of `bench` builds, all others load; `stress` reads and adds nothing.
#[test]
fn processes_of_the_program_load_what_the_first_built() {
    let test = "processes_of_the_program_load_what_the_first_built";
    if device("opencl", test).is_none() {
        return;
    }
    let root = tempfile::tempdir().unwrap();
    let cache = root.path().join("cache");
    let bench = ["bench", "--op", "relu,exp", "--sizes", "1000", "--device", "opencl:0", "--budget", "300ms"];
    let bench = |processes, cache: &Path| {
        told(&gpuctl(&[&bench[..], &["--processes", processes]].concat(), cache).0, "opencl:0")
    };
    let off = bench("1", Path::new("off"));
    assert_eq!((off.builds, off.loads, off.cache.as_str()), (2, 0, "off"));
    let first = bench("3", &cache);
    assert_eq!((first.builds, first.loads, first.kept, first.refused), (2, 4, 2, 0), "{first:?}");
    let second = bench("1", &cache);
    assert_eq!((second.builds, second.loads, second.kept), (0, 2, 0), "{second:?}");
    let files = files_in(&cache).len();
    assert_eq!(files, 2);
    let stress = ["stress", "--seconds", "3", "--scenario", "soak", "--device", "opencl:0", "--no-journal"];
    let (doc, text) = gpuctl(&stress, &cache);
    let Some(Record::Stress(soak)) = doc.records.first() else { panic!("{:?}", doc.records) };
    let of = |name: &str| soak.counters.get(name).copied().unwrap_or_else(|| panic!("no {name}: {:?}", soak.counters));
    assert_eq!(of("kernels_refused"), 0);
    let row = format!("; kernels: {} built, {} loaded", of("kernel_builds"), of("kernel_loads"));
    assert!(text.contains(&row), "{text}");
    assert!(of("kernel_builds") + of("kernel_loads") > 0);
    assert_eq!(files_in(&cache).len(), files);
    assert!(KernelCache::at(&cache, LIMIT).flush(FLUSH));
}

/// What a calibration reads of a machine is remembered, and the next one states its thresholds for it; a damaged file is said, and nothing
/// else.
#[test]
fn the_state_of_a_machine_is_remembered() {
    const OPS: &str = "relu,exp,tanh,sigmoid,sqrt,log,abs,neg,add,mul,sub,max,sum,mean";
    let test = "the_state_of_a_machine_is_remembered";
    if device("opencl", test).is_none() {
        return;
    }
    let root = tempfile::tempdir().unwrap();
    let cache = root.path().join("cache");
    let run = |budget: &str, cache: &Path| -> (Profile, String) {
        let mut command = Command::new(env!("CARGO_BIN_EXE_gpuctl"));
        command.args(["calibrate", "--device", "opencl:0", "--allow-software"]);
        // Many keys, for each looks four times a second at most.
        command.args(["--op", OPS, "--residency", "resident", "--cpu-variant", "naive"]);
        let out = command.args(["--budget", budget]).env("GPUCTL_CACHE", cache).env("NODEVICE_SELECT", "1").output();
        let out = out.unwrap();
        let said = String::from_utf8_lossy(&out.stderr).into_owned();
        // 4: too short a time to measure anything.
        assert!(matches!(out.status.code(), Some(0 | 4)), "{said}");
        (Profile::from_toml(&String::from_utf8(out.stdout).unwrap()).unwrap(), said)
    };
    let files = || -> Vec<_> {
        let folder = std::fs::read_dir(cache.join("states")).into_iter().flatten();
        folder.flatten().map(|file| file.path()).collect()
    };
    let (short, _) = run("2s", &cache);
    assert!(short.states.iter().all(|s| s.looks < 1000) && files().is_empty(), "{:?}", short.states);
    // As long as it takes here: tests run beside each other.
    let budgets = ["15s", "30s", "60s", "120s", "240s"];
    let enough = |(p, _): &(Profile, String)| p.states.iter().any(|s| s.looks >= 1000);
    let (first, _) = budgets.iter().map(|budget| run(budget, &cache)).find(enough).expect("1000 looks");
    for s in &first.states {
        assert_eq!(s.read(), s.stated(), "there was nothing to state it for");
        assert!((1e-6..1e-3).contains(&s.cpu_s) && (1e-6..1e-1).contains(&s.device_s), "{s:?}");
    }
    let [kept] = &files()[..] else { panic!("{:?}", files()) };
    let text = std::fs::read_to_string(kept).unwrap();
    // Where the machine reads too far from that, or it is not known well enough what that does, it is stated as it is.
    let (second, said) = run("10s", &cache);
    for s in &second.states {
        let remembered = first.states.iter().find(|f| f.same_key(s) && f.looks >= 1000);
        assert!(s.stated() == s.read() || remembered.is_some_and(|f| s.stated() == f.read()), "{s:?}: {said}");
        assert!(s.stated() == s.read() || remembered.is_some_and(|f| !f.is_far_from(s)), "{s:?}: {said}");
    }
    if !second.states.iter().any(|s| first.states.iter().any(|f| f.same_key(s) && f.is_far_from(s))) {
        assert_eq!(std::fs::read_to_string(kept).unwrap(), text, "what is remembered stays");
    }
    for bad in [
        "{}",
        "",
        &text.replacen("\"layout\": 1", "\"layout\": 9", 1),
        &text.replace("\"stated_cpu_s\": ", "\"stated_cpu_s\": -"),
    ] {
        std::fs::write(kept, bad).unwrap();
        let (third, said) = run("1s", &cache);
        assert!(said.contains("the state that is remembered is not used") && bad != text, "{bad}: {said}");
        assert!(third.states.iter().all(|s| s.read() == s.stated()));
    }
    let off = run("1s", Path::new("off")).0;
    assert!(!off.entries.is_empty() && !Path::new("off").exists());
}
