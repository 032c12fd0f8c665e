//! What the cache gains on an OpenCL driver, with the driver's own cache emptied before each process:
//! `cargo test --test cache figures -- --ignored --nocapture`.

use std::path::Path;
use std::process::Command;
use std::time::Instant;

use gpuctl::base::DType;
use gpuctl::base::os::rss_bytes;
use gpuctl::base::rng::fnv1a64;
use gpuctl::base::stats::median;
use gpuctl::device::DEADLINE;
use gpuctl::engine::cache::LIMIT;
use gpuctl::engine::{KernelCache, Runner};
use gpuctl::op::{self, OpDesc, Tier};

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

/// Makes the kernels of every op's smoke cases in f32 and runs them; tells what the process's memory grew by.
#[test]
#[ignore = "started by the test below"]
fn memory_worker() {
    let Ok(root) = std::env::var("GPUCTL_TEST_MEMORY") else { return };
    let Some((backend, folder)) = root.split_once('=') else { panic!("BACKEND=FOLDER") };
    let Some(device) = device(backend, "memory_worker") else { return };
    let runner = Runner::new(device).keeping(KernelCache::at(Path::new(folder), LIMIT));
    let run = |op: &'static OpDesc| {
        for spec in op.specs(Tier::Smoke, DType::F32) {
            let case = op.case(DType::F32, &spec.dims, spec.attrs, spec.fill).unwrap();
            let Ok(p) = runner.prepare(op, &case, None) else { continue };
            let mut lease = runner.lease().unwrap();
            p.call(lease.queue().unwrap(), &op::case::inputs(op, &case).unwrap(), DEADLINE).unwrap();
        }
    };
    // What the driver needs for any kernel is no kernel.
    run(op::find("relu").unwrap());
    let before = rss_bytes().unwrap();
    op::all().filter(|op| op.dtypes.contains(&DType::F32)).for_each(run);
    let k = runner.kernels();
    println!("\ntold {} {} {}", k.builds, k.loads, rss_bytes().unwrap().saturating_sub(before));
}

/// All ops' kernels at once take less than 100 MB of the process's memory (requirements N3). A driver's compiler keeps much
/// more than its results, so the kernels are those that earlier processes kept, where the driver gives them away.
#[test]
#[ignore = "builds every kernel, in several processes"]
fn memory_of_every_kernel() {
    for backend in ["opencl", "wgpu"] {
        if device(backend, "memory_of_every_kernel").is_none() {
            continue;
        }
        let kept = tempfile::tempdir().unwrap();
        let process = || {
            let mut command = Command::new(std::env::current_exe().unwrap());
            command.args(["figures::memory_worker", "--exact", "--ignored", "--nocapture"]);
            let root = format!("{backend}={}", kept.path().display());
            let out = command.env("GPUCTL_TEST_MEMORY", root).output().unwrap();
            assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
            let text = String::from_utf8_lossy(&out.stdout);
            let told = text.lines().find_map(|l| l.strip_prefix("told ")).expect("the worker's line");
            let numbers: Vec<u64> = told.split(' ').map(|n| n.parse().unwrap()).collect();
            println!("{backend}: {} built, {} loaded, {:.1} MB", numbers[0], numbers[1], numbers[2] as f64 / 1e6);
            (numbers[0], numbers[1], numbers[2])
        };
        let (all, _, mut bytes) = process();
        assert!(all > 100, "{all} kernels");
        // A process ends without waiting long for what it has not kept yet.
        for _ in 0..12 {
            let (built, loaded, now) = process();
            bytes = now;
            if loaded == 0 || built == 0 {
                break;
            }
        }
        assert!(bytes < 100_000_000, "{backend}: {bytes} bytes");
    }
}
