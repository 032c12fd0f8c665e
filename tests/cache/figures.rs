//! What the cache gains on an OpenCL driver, with the driver's own cache emptied before each process:
//! `cargo test --test cache figures -- --ignored --nocapture`.

use std::path::Path;
use std::process::Command;
use std::time::Instant;

use gpuctl::base::rng::fnv1a64;
use gpuctl::base::stats::median;
use gpuctl::device::DEADLINE;
use gpuctl::engine::cache::LIMIT;
use gpuctl::engine::{KernelCache, Runner};
use gpuctl::op;

use super::drivers::{cases, device};

/// Processes of each kind.
const ROUNDS: usize = 5;

/// What a process told.
#[derive(Debug, Default)]
struct Told {
    builds: u64,
    loads: u64,
    /// Hash of all results.
    results: u64,
    /// Seconds: programs, each case's first call, the sum of each case's shortest later one.
    prepare: f64,
    first: f64,
    steady: f64,
}

/// The worker: builds or loads all kernels, runs each case, and says what that took.
#[test]
#[ignore = "started by other tests"]
fn figures_worker() {
    let Ok(root) = std::env::var("GPUCTL_TEST_FIGURES") else { return };
    let Some(device) = device("opencl", "figures_worker") else { return };
    let kernels = KernelCache::at(Path::new(&root), LIMIT);
    // Nothing is fetched meanwhile; it is when the runner goes.
    let _hold = kernels.hold();
    let runner = Runner::new(device).keeping(kernels.clone());
    let (mut results, mut first, mut steady) = (Vec::new(), 0.0, 0.0);
    let begin = Instant::now();
    cases().iter().for_each(|(op, case)| assert!(runner.precompile(op, case, None).unwrap() > 0));
    let prepare = begin.elapsed().as_secs_f64();
    for (op, case) in cases() {
        let inputs = op::case::inputs(op, &case).unwrap();
        let p = runner.prepare(op, &case, None).unwrap();
        let mut lease = runner.lease().unwrap();
        let q = lease.queue().unwrap();
        let mut call = || {
            let begin = Instant::now();
            let out = p.call(q, &inputs, DEADLINE).unwrap();
            (begin.elapsed().as_secs_f64(), out)
        };
        let (seconds, out) = call();
        first += seconds;
        out.iter().for_each(|t| results.extend_from_slice(t.bytes()));
        steady += (0..200).map(|_| call().0).fold(f64::INFINITY, f64::min);
    }
    let k = runner.kernels();
    println!("\ntold {} {} {} {prepare} {first} {steady}", k.builds, k.loads, fnv1a64(&results));
}

fn process(cache: &Path) -> Told {
    let own = tempfile::tempdir().unwrap();
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["figures::figures_worker", "--exact", "--ignored", "--nocapture"]);
    command.env("GPUCTL_TEST_FIGURES", cache).env("POCL_CACHE_DIR", own.path());
    let out = command.output().unwrap();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    let text = String::from_utf8_lossy(&out.stdout);
    let line = text.lines().find_map(|l| l.strip_prefix("told ")).expect("the worker's line");
    let [builds, loads, results, prepare, first, steady] = line.split(' ').collect::<Vec<_>>()[..] else { panic!() };
    let (whole, number) = (|t: &str| t.parse::<u64>().unwrap(), |t: &str| t.parse::<f64>().unwrap());
    Told {
        builds: whole(builds),
        loads: whole(loads),
        results: whole(results),
        prepare: number(prepare),
        first: number(first),
        steady: number(steady),
    }
}

#[test]
#[ignore = "measures: for a quiet machine"]
fn figures_of_building_and_loading() {
    if device("opencl", "figures_of_building_and_loading").is_none() {
        return;
    }
    let kept = tempfile::tempdir().unwrap();
    let fill = process(kept.path());
    let (mut built, mut loaded) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        let empty = tempfile::tempdir().unwrap();
        built.push(process(empty.path()));
        loaded.push(process(kept.path()));
    }
    assert!(built.iter().all(|t| (t.builds, t.loads) == (fill.builds, 0)));
    assert!(loaded.iter().all(|t| (t.builds, t.loads) == (0, fill.builds)));
    assert!(built.iter().chain(&loaded).all(|t| t.results == fill.results), "equal in every bit");
    println!("{} programs, {ROUNDS} processes of each kind in turns, medians:", fill.builds);
    for (what, of) in [
        ("programs", (|t| t.prepare) as fn(&Told) -> f64),
        ("first calls", |t| t.first),
        ("programs and first calls", |t| t.prepare + t.first),
        ("later calls", |t| t.steady),
    ] {
        let of = |all: &[Told]| 1e3 * median(&all.iter().map(of).collect::<Vec<_>>());
        let (built, loaded) = (of(&built), of(&loaded));
        println!("{what}: built {built:.2} ms, loaded {loaded:.2} ms: {:.2} times", built / loaded);
    }
}
