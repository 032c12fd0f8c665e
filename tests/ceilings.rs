//! Ceilings, bottlenecks, cold caches, pictures: on simulated machines, whose truth is known.

use std::path::Path;
use std::process::{Command, Output};
use std::sync::Arc;
use std::time::Duration;

use gpuctl::base::record::{CeilingRecord, Record};
use gpuctl::base::sink::{Cancel, Collect};
use gpuctl::base::{Attrs, Clock, DType, Fill, Result, Status};
use gpuctl::device::Device;
use gpuctl::device::probe::Rig;
use gpuctl::device::sim::{self, Compute};
use gpuctl::engine::Runner;
use gpuctl::jobs::ceilings;
use gpuctl::measure::{OpSubject, Residency, StopRule, Subject, Sweep, sample};
use gpuctl::op::{self, case};
use serde_json::Value;

fn gpuctl(cache: &Path, args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_gpuctl")).args(args).env("GPUCTL_CACHE", cache).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn records(out: &Output, kind: &str) -> Vec<Value> {
    let doc: Value = serde_json::from_slice(&out.stdout).unwrap_or_else(|e| panic!("{e}: {}", text(&out.stderr)));
    doc["records"].as_array().unwrap().iter().filter(|r| r["kind"] == kind).cloned().collect()
}

/// A machine without noise whose device has that many times the bandwidth and rates.
fn machine(scale: f64) -> (sim::Spec, Rig) {
    let mut spec = sim::spec("laptop").unwrap().quiet();
    spec.device.bandwidth *= scale;
    spec.device.rates.values_mut().for_each(|r| *r *= scale);
    let (cpu, device) = sim::open_spec(spec.clone(), Compute::None).unwrap();
    (spec, Rig { devices: vec![device], cpu, absent: Vec::new() })
}

fn measured(rig: &Rig) -> Vec<CeilingRecord> {
    let mut sink = Collect::default();
    ceilings::run(rig, 0.2, &mut sink, &Cancel::new()).unwrap();
    let ceiling = |r| match r {
        Record::Ceiling(c) => *c,
        other => panic!("{other:?}"),
    };
    sink.records.into_iter().map(ceiling).collect()
}

/// What is found is the machine's, and moves with it; what exceeds a theoretical peak is suspect, as it is.
#[test]
fn ceilings_are_those_of_the_machine() {
    for scale in [1.0, 0.5] {
        let (spec, mut rig) = machine(scale);
        // The slower machine claims half of its own peak.
        if scale < 1.0 {
            let mut info = rig.devices[0].info().clone();
            let peaks = info.theoretical.as_mut().unwrap();
            peaks.f32_gflops = peaks.f32_gflops.map(|v| v / 2.0);
            rig.devices[0] = Arc::new(Relabelled { inner: Arc::clone(&rig.devices[0]), info });
        }
        let found = measured(&rig);
        let value = |what: &str, dtype: Option<DType>, least: u64| {
            let is_it =
                |c: &&CeilingRecord| c.what == what && c.dtype == dtype && c.bytes >= least && c.memory != "pinned";
            let one = found.iter().rfind(is_it).unwrap_or_else(|| panic!("{what}"));
            let (value, ci) = (one.value.unwrap(), one.ci.unwrap());
            assert!(ci[0] <= value && value <= ci[1], "{one:?}");
            value
        };
        let near = |got: f64, want: f64, what: &str| assert!((got / want - 1.0).abs() < 0.05, "{what}: {got} {want}");
        let d = &spec.device;
        for what in ["copy", "read", "write", "d2d"] {
            near(value(what, None, 64 << 20), d.bandwidth * 1e-9, what);
        }
        near(value("fma", Some(DType::F32), 0), d.rates[&DType::F32] * 1e-9, "f32");
        near(value("fma", Some(DType::F64), 0), d.rates[&DType::F64] * 1e-9, "f64");
        near(value("h2d", None, 0), d.link_upload * 1e-9, "h2d");
        near(value("d2h", None, 0), d.link_download * 1e-9, "d2h");
        near(value("launch", None, 0), d.submit_s + d.launch_s + d.sync_s, "launch");
        assert!(value("launch-queued", None, 0) < value("launch", None, 0));
        // This machine has no pinned memory, and says so.
        let pinned = found.iter().find(|c| c.memory == "pinned").unwrap();
        assert!(pinned.value.is_none() && pinned.reason.contains("Pinned"), "{pinned:?}");
        let suspects: Vec<_> = found.iter().filter(|c| c.status == Status::Suspect).collect();
        if scale < 1.0 {
            assert_eq!(suspects.len(), 1, "{suspects:?}");
            assert!(
                suspects[0].dtype == Some(DType::F32) && suspects[0].reason.contains("theoretical"),
                "{suspects:?}"
            );
            assert!(suspects[0].value.unwrap() > 1.8 * suspects[0].theoretical.unwrap(), "never clipped");
        } else {
            assert!(suspects.is_empty(), "{suspects:?}");
        }
    }
}

/// A device that says something else about itself.
struct Relabelled {
    inner: Arc<dyn Device>,
    info: gpuctl::base::DeviceInfo,
}

impl Device for Relabelled {
    fn info(&self) -> &gpuctl::base::DeviceInfo {
        &self.info
    }
    fn serial(&self) -> u64 {
        self.inner.serial()
    }
    fn clock(&self) -> Arc<dyn Clock> {
        self.inner.clock()
    }
    fn ledger(&self) -> &Arc<gpuctl::device::Ledger> {
        self.inner.ledger()
    }
    fn memory(&self) -> gpuctl::device::MemoryState {
        self.inner.memory()
    }
    fn alloc(&self, bytes: u64, kind: gpuctl::device::MemoryKind) -> Result<gpuctl::device::Buffer> {
        self.inner.alloc(bytes, kind)
    }
    fn build(&self, source: gpuctl::device::Source<'_>, cached: Option<&[u8]>) -> Result<gpuctl::device::Program> {
        self.inner.build(source, cached)
    }
    fn queue(&self) -> Result<Box<dyn gpuctl::device::Queue>> {
        self.inner.queue()
    }
    fn health(&self) -> gpuctl::device::Health {
        self.inner.health()
    }
}

/// A subject whose sweep does nothing.
struct Idle<'a>(OpSubject<'a>);

impl Subject for Idle<'_> {
    fn run(&mut self, calls: u64) -> Result<()> {
        self.0.run(calls)
    }
    fn clock(&self) -> Arc<dyn Clock> {
        self.0.clock()
    }
    fn one_call(&self) -> bool {
        self.0.one_call()
    }
}

/// The price of the model's cliff is seen with cold caches, and not without a sweep.
#[test]
fn cold_caches_are_slower_and_a_sweep_that_does_nothing_is_seen() {
    for part in ["cpu", "device"] {
        let spec = sim::spec("laptop").unwrap().quiet();
        let (cpu, device) = sim::open_spec(spec.clone(), Compute::None).unwrap();
        let (device, model) = if part == "cpu" { (cpu, &spec.cpu) } else { (device, &spec.device) };
        let runner = Runner::new(device);
        let copy = op::find("copy").unwrap();
        let n = model.cache_bytes / 16;
        let case = copy.case(DType::F32, &[n], Attrs::new(), Fill::Uniform).unwrap();
        let inputs = case::inputs(copy, &case).unwrap();
        let prepared = runner.prepare(copy, &case, None).unwrap();
        let sweep = Sweep::new(&runner).unwrap();
        let wait = Duration::from_secs(60);
        let subject = || OpSubject::new(&runner, &prepared, &inputs, Residency::Resident, wait).unwrap();
        let rule = StopRule::with_budget(5.0);
        let median = |s: &mut dyn Subject| sample(&mut [s], &rule, &Cancel::new()).unwrap()[0].median();
        let hot = median(&mut subject());
        let cold = median(&mut subject().cold(&sweep));
        let idle = median(&mut Idle(subject().cold(&sweep)));
        let bytes = 8.0 * n as f64;
        let want = bytes / model.bandwidth - bytes / model.cache_bandwidth;
        assert!(((cold - idle) / want - 1.0).abs() < 0.02, "{part}: cold {cold} idle {idle}, {want} apart");
        assert!(cold > 1.3 * hot, "{part}: cold {cold} hot {hot}");
        assert!(idle < cold / 1.3, "{part}: a sweep that does nothing must be seen: {idle} {cold}");
    }
}

#[test]
fn bench_holds_its_rows_against_kept_ceilings() {
    let cache = tempfile::tempdir().unwrap();
    let device = ["--device", "cpu,sim:laptop:timing"];
    let bench = |more: &[&str]| {
        let args =
            ["bench", "--op", "gemm,add", "--processes", "1", "--budget", "1s", "--residency", "all", "--json", "-"];
        gpuctl(cache.path(), &[&args[..], &device, more].concat())
    };
    let before = bench(&["--sizes", "64,1024"]);
    assert_eq!(text(&before.stderr), "", "the document has it all");
    assert_eq!(records(&before, "noise").len(), 2);
    let told =
        gpuctl(cache.path(), &[&["bench", "--op", "add", "--sizes", "64", "--processes", "1"][..], &device].concat());
    assert!(text(&told.stderr).contains("devices --measure"), "{}", text(&told.stderr));
    assert!(text(&told.stderr).contains("two equal things differ by up to"), "{}", text(&told.stderr));
    assert!(records(&before, "bench").iter().all(|r| r["analysis"]["ceiling_fraction"].is_null()));
    let measure = ["devices", "--measure", "--processes", "1", "--budget", "200ms", "--json", "-"];
    let out = gpuctl(cache.path(), &[&measure[..], &device].concat());
    assert_eq!(out.status.code(), Some(0), "{}", text(&out.stderr));
    let (found, noise) = (records(&out, "ceiling"), records(&out, "noise"));
    assert!(found.len() > 40 && noise.len() == 2, "{} {}", found.len(), noise.len());
    let link = found.iter().find(|c| c["device"] == "cpu" && c["what"] == "h2d").unwrap();
    assert!(link["value"].is_null() && link["reason"].as_str().unwrap().contains("no link"), "{link}");
    let after = bench(&["--sizes", "64,1024"]);
    assert!(!text(&after.stderr).contains("devices --measure"), "{}", text(&after.stderr));
    let rows = records(&after, "bench");
    let row = |op: &str, n: u64, residency: &str| {
        let it = |r: &&Value| {
            r["op"] == op
                && r["device"] == "sim:laptop:timing"
                && r["residency"] == residency
                && r["shape_text"].as_str().unwrap().contains(&n.to_string())
        };
        rows.iter().find(it).unwrap_or_else(|| panic!("{op} {n} {residency}"))["analysis"].clone()
    };
    assert_eq!(row("gemm", 1024, "resident")["bottleneck"], "Compute");
    assert_eq!(row("gemm", 64, "resident")["bottleneck"], "LaunchOverhead");
    assert_eq!(row("add", 1024, "resident")["bottleneck"], "LaunchOverhead");
    let far = row("gemm", 1024, "always");
    let shares = [&far["transfer_fraction"], &far["launch_fraction"]].map(|v| v.as_f64().unwrap());
    assert!(shares.iter().all(|s| (0.0..=1.0).contains(s)) && shares[0] > 0.05, "{far}");
    let share = row("gemm", 1024, "resident")["ceiling_fraction"].as_f64().unwrap();
    assert!(share > 0.5 && share < 1.05, "{share}");
    assert!(far["baseline"].as_str().unwrap().contains("cost model"), "{far}");
    // A kept peak that is far too low makes the rows suspect; a damaged file is said and not used.
    let folder = cache.path().join("ceilings");
    for file in std::fs::read_dir(&folder).unwrap().flatten() {
        let mut doc: Value = serde_json::from_str(&std::fs::read_to_string(file.path()).unwrap()).unwrap();
        for r in doc["records"].as_array_mut().unwrap().iter_mut().filter(|r| r["what"] == "fma") {
            r["value"] = (r["value"].as_f64().unwrap() / 3.0).into();
        }
        std::fs::write(file.path(), doc.to_string()).unwrap();
    }
    let low = bench(&["--sizes", "1024"]);
    assert_eq!(low.status.code(), Some(1), "{}", text(&low.stderr));
    let why = records(&low, "bench").iter().map(|r| r["reason"].to_string()).collect::<String>();
    assert!(why.contains("the work was skipped, or the ceiling is wrong"), "{why}");
    for file in std::fs::read_dir(&folder).unwrap().flatten() {
        std::fs::write(file.path(), "{").unwrap();
    }
    let damaged = bench(&["--sizes", "64"]);
    assert!(text(&damaged.stderr).contains("are not used"), "{}", text(&damaged.stderr));
}

#[cfg(feature = "plot")]
#[test]
fn pictures_are_drawn_in_both_formats() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).to_str().unwrap().to_string();
    let bench = |file: &str| {
        let args = ["bench", "--op", "gemm", "--sizes", "32,128,512,1024", "--residency", "all", "--processes", "1"];
        let more = ["--budget", "500ms", "--device", "cpu,sim:laptop:timing", "--plot", file];
        gpuctl(dir.path(), &[&args[..], &more].concat())
    };
    let (svg, png) = (path("a.svg"), path("a.png"));
    for file in [&svg, &png] {
        let out = bench(file);
        assert_eq!(out.status.code(), Some(0), "{}", text(&out.stderr));
    }
    let drawn = std::fs::read_to_string(&svg).unwrap();
    for word in ["median time", "Speed-up", "gemm f32 cpu", "resident", "kernel", "size (dim)", "128"] {
        assert!(drawn.contains(word), "{word}");
    }
    let bytes = std::fs::read(&png).unwrap();
    assert!(bytes.starts_with(b"\x89PNG\r\n\x1a\n") && bytes.len() > 20_000, "{}", bytes.len());
    let refused = bench(&path("a.jpg"));
    assert_eq!(refused.status.code(), Some(2), "{}", text(&refused.stderr));
    assert!(text(&refused.stderr).contains(".svg or .png"), "{}", text(&refused.stderr));
    let keys = path("k.svg");
    let args = [
        "calibrate",
        "--op",
        "add",
        "--device",
        "sim:laptop",
        "--processes",
        "1",
        "--budget",
        "500ms",
        "--plot",
        &keys,
    ];
    let out = gpuctl(dir.path(), &args);
    assert_eq!(out.status.code(), Some(0), "{}", text(&out.stderr));
    let drawn = std::fs::read_to_string(&keys).unwrap();
    assert!(drawn.contains("CPU time / device time") && drawn.contains("crossing, interval"), "no key was drawn");
}
