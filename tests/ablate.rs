//! `bench --suite ablate`: each part's absence is seen where it costs something, and nothing is seen where nothing is left out.

#![allow(clippy::print_stdout, reason = "a test tells what it found")]

use std::process::{Command, Output};

use gpuctl::base::record::{AblateRecord, Document};
use gpuctl::base::sink::{Cancel, Collect};
use gpuctl::base::{Env, Record, Status};
use gpuctl::device::cpu::Pin;
use gpuctl::device::probe::{CpuConfig, Select, open};
use gpuctl::jobs::ablate::{AblateConfig, PARTS, run};
use gpuctl::op;

fn rows(records: &[Record]) -> Vec<&AblateRecord> {
    assert!(records.iter().all(|r| matches!(r, Record::Ablate(_))));
    records.iter().filter_map(|r| if let Record::Ablate(r) = r { Some(&**r) } else { None }).collect()
}

fn on(device: &str, ops: &[&str], sizes: &[u64], env: Env) -> Vec<Record> {
    within(0.3, device, ops, sizes, env)
}

fn within(budget_s: f64, device: &str, ops: &[&str], sizes: &[u64], env: Env) -> Vec<Record> {
    let rig = open(&Select::parse(device).unwrap(), &env, CpuConfig { threads: 1, pin: Pin::Free }).unwrap();
    let cfg = AblateConfig {
        ops: ops.iter().map(|o| op::find(o).unwrap()).collect(),
        sizes: Some(sizes.to_vec()),
        budget_s,
        env,
    };
    let mut sink = Collect::default();
    let summary = run(&cfg, &rig, &mut sink, &Cancel::new()).unwrap();
    let ok = rows(&sink.records).iter().filter(|r| r.status == Status::Ok).count();
    assert_eq!((summary.ok, summary.failed), (ok as u64, 0));
    sink.records
}

/// On PoCL a kernel takes milliseconds to build, whatever else the machine does: the absence of the cache must show.
#[test]
fn building_in_every_call_is_seen_to_cost() {
    if !Env::read().unwrap().require.iter().any(|r| r == "opencl") {
        println!("skipped: GPUCTL_REQUIRE does not name opencl");
        return;
    }
    // Enough for several builds in a row, also where the driver has never seen the kernel and other tests run.
    let records = within(2.0, "cpu,opencl:0", &["relu"], &[1000], Env::default());
    let rows = rows(&records);
    let of = |part: &str| *rows.iter().find(|r| r.without == part).unwrap();
    let cache = of("no-kernel-cache");
    assert!(cache.gain_ci.is_some_and(|ci| ci[0] > 3.0), "{cache:?}");
    let pool = of("no-pool");
    assert!(pool.gain.is_some_and(f64::is_finite), "{pool:?}");
    // Two buffers of 4 KB a call: the first call makes them, all later ones find them.
    let did = pool.pool.unwrap();
    assert!(did.misses <= 4 && did.hits >= 2 * pool.pairs && did.peak_bytes >= 8000, "{did:?} in {} pairs", pool.pairs);
    assert_eq!(cache.pool, None);
    let pageable = of("pageable");
    assert_eq!(pageable.status, Status::Unsupported, "OpenCL 1.2 has no page-locked memory: {pageable:?}");
    let threshold = of("no-threshold");
    assert!(threshold.status == Status::Unsupported && threshold.reason.contains("calibrate"), "{threshold:?}");
}

/// On the simulator, whose clock has no noise of the machine's: what is not left out costs nothing, and a threshold that keeps
/// small calls on the CPU is worth what the model says.
#[test]
fn a_threshold_is_worth_what_it_saves() {
    let env = Env { profile: Some("preset:always-gpu".into()), ..Env::default() };
    let all = on("cpu,sim:textbook", &["gemm"], &[8, 256], env);
    let of = |records: &[Record]| rows(records).into_iter().find(|r| r.without == "no-threshold").unwrap().clone();
    let nothing = of(&all);
    assert_eq!(nothing.status, Status::Ok, "{nothing:?}");
    // The same calls on the same device, both times.
    assert!((nothing.gain.unwrap() - 1.0).abs() < 0.05, "{nothing:?}");
    assert_eq!(rows(&all).len(), 2 * 3 + 1);
}

/// One pair has no interval.
#[test]
fn too_few_pairs_are_no_result() {
    // Of the simulated machine's time.
    let records = within(1e-9, "cpu,sim:textbook", &["relu"], &[1000], Env::default());
    let row = rows(&records).into_iter().find(|r| r.without == "no-pool").unwrap();
    assert_eq!((row.status, row.gain, row.pairs), (Status::Skipped, None, 0), "{row:?}");
    assert!(row.reason.contains("--budget"), "{row:?}");
}

fn gpuctl(args: &[&str]) -> Output {
    let dir = tempfile::tempdir().unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_gpuctl"));
    command.env("XDG_CONFIG_HOME", dir.path()).env("GPUCTL_CACHE", "off").env_remove("GPUCTL_PROFILE");
    command.args(args).output().unwrap()
}

#[test]
fn the_command_line() {
    let suite = ["bench", "--suite", "ablate", "--device", "cpu,sim:textbook", "--op", "relu", "--sizes", "1000"];
    let out = gpuctl(&[&suite[..], &["--budget", "200ms", "--json", "-"]].concat());
    assert_eq!(out.status.code(), Some(0), "{}", String::from_utf8_lossy(&out.stderr));
    let doc: Document = serde_json::from_slice(&out.stdout).unwrap();
    let rows = rows(&doc.records);
    let parts: Vec<&str> = rows.iter().map(|r| r.without.as_str()).collect();
    assert_eq!(parts, PARTS.map(|p| p.0));
    let out = gpuctl(&[&suite[..], &["--budget", "200ms", "--quiet"]].concat());
    let text = String::from_utf8_lossy(&out.stdout);
    assert_eq!((text.lines().count(), text.lines().next().unwrap().starts_with("without")), (5, true), "{text}");
    for (wrong, word) in [
        (&["bench", "--suite", "ablation"][..], "ablate"),
        (&["bench", "--suite", "ablate", "--csv"], "--csv"),
        (&["bench", "--suite", "ablate", "--device", "cpu"], "GPU"),
        (&["bench", "--suite", "ablate", "--op", "gemn", "--device", "sim:textbook"], "gemn"),
    ] {
        let out = gpuctl(wrong);
        let said = String::from_utf8_lossy(&out.stderr);
        assert!(out.status.code() == Some(2) && said.contains(word) && out.stdout.is_empty(), "{wrong:?}: {said}");
    }
}
