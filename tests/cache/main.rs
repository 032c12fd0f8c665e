//! The kernel cache: what it loads is what was compiled, whatever becomes of its files; what it costs if it cannot work is
//! nothing but itself.
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "skips are named; the child process reports on stdout")]
#![cfg(unix)]

mod drivers;
mod figures;
mod files;
mod paper;
mod processes;

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::sync_channel;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use gpuctl::device::Device;
use gpuctl::engine::KernelCache;
use gpuctl::engine::cache::{FLUSH, LIMIT};

use paper::{OPS, Paper, built, cases, precompile};

/// Kernels of a folder, sorted.
fn files_in(root: &Path) -> Vec<PathBuf> {
    let Ok(all) = std::fs::read_dir(root.join("kernels/1")) else { return Vec::new() };
    let mut files: Vec<PathBuf> = all.flatten().map(|e| e.path()).collect();
    files.retain(|p| p.extension().is_some_and(|e| e == "kernel"));
    files.sort();
    files
}

#[test]
fn nothing_is_built_after_warm_up_nor_by_the_next_process() {
    let root = tempfile::tempdir().unwrap();
    let first = Arc::new(Paper::new(5000));
    let runner = built(&first, &KernelCache::at(root.path(), LIMIT), &OPS);
    let warm = runner.kernels();
    assert!(warm.builds >= OPS.len() as u64 && (warm.loads, warm.hits) == (0, 0), "{warm:?}");
    for _ in 0..3 {
        precompile(&runner, &OPS);
    }
    let later = runner.kernels();
    assert_eq!((later.builds, later.loads, later.hits), (warm.builds, 0, 3 * warm.builds));
    drop(runner);
    assert_eq!(files_in(root.path()).len() as u64, warm.builds);

    let second = Arc::new(Paper::new(5000));
    let next = built(&second, &KernelCache::at(root.path(), LIMIT), &OPS).kernels();
    assert_eq!((next.builds, next.loads, next.refused, next.kept), (0, warm.builds, 0, 0));
    assert_eq!(second.counts(), (0, 0), "nothing compiled, nothing wrong");
    assert_eq!((next.cache.as_str(), next.reason.as_str()), ("on", ""));

    let other = Arc::new(Paper::new(5000).with_driver("2"));
    let others = built(&other, &KernelCache::at(root.path(), LIMIT), &OPS).kernels();
    assert_eq!((others.builds, others.loads), (warm.builds, 0), "another driver's kernels are its own");
}

#[test]
fn off_and_read_only_write_nothing() {
    let root = tempfile::tempdir().unwrap();
    let folder = root.path().join("cache");
    let device = Arc::new(Paper::new(100));
    let off = built(&device, &KernelCache::off(), &OPS).kernels();
    assert_eq!((off.cache.as_str(), off.loads, off.kept), ("off", 0, 0));
    let kernels = KernelCache::at(&folder, LIMIT);
    let only = built(&device, &kernels.read_only(), &OPS).kernels();
    assert_eq!(only.cache, "read-only");
    assert!(kernels.flush(FLUSH) && !folder.exists());
    // And it does read.
    drop(built(&device, &kernels, &OPS));
    let only = built(&device, &kernels.read_only(), &OPS).kernels();
    assert_eq!((only.builds, device.counts().1), (0, 0));
    assert!(only.loads > 0);
}

/// A driver that takes its time to hand out a compiled form keeps nobody waiting but the writer.
#[test]
fn a_call_does_not_wait_for_the_writer_and_who_measures_is_left_alone() {
    let root = tempfile::tempdir().unwrap();
    let kernels = KernelCache::at(root.path(), LIMIT);
    let (go, gate) = sync_channel::<()>(64);
    let gate = Mutex::new(gate);
    let started = Arc::new(AtomicU64::new(0));
    let seen = Arc::clone(&started);
    let device = Arc::new(Paper::new(100).fetching(move || {
        started.fetch_add(1, Ordering::SeqCst);
        let _ = gate.lock().unwrap().recv();
    }));
    let hold = kernels.hold();
    // Returns though nothing can be fetched.
    let runner = built(&device, &kernels, &["relu", "exp"]);
    std::thread::sleep(Duration::from_millis(3300));
    go.try_send(()).unwrap();
    go.try_send(()).unwrap();
    std::thread::sleep(Duration::from_millis(100));
    assert_eq!((runner.kernels().kept, files_in(root.path()).len()), (0, 0), "held, whatever time passes");
    drop(hold);
    assert!(kernels.flush(FLUSH));
    assert_eq!((runner.kernels().kept, files_in(root.path()).len()), (2, 2));
    // One that never comes back costs the limit and no more.
    precompile(&runner, &["log", "sin"]);
    let begin = Instant::now();
    while seen.load(Ordering::SeqCst) < 3 && begin.elapsed() < Duration::from_secs(60) {
        std::thread::sleep(Duration::from_millis(5));
    }
    assert!(!kernels.flush(Duration::from_millis(50)));
    go.try_send(()).unwrap();
    kernels.flush(FLUSH);
    assert_eq!(files_in(root.path()).len(), 3, "what was left when the time was over is forgotten");
}

#[test]
fn an_interrupted_run_forgets_what_waits() {
    let root = tempfile::tempdir().unwrap();
    let kernels = KernelCache::at(root.path(), LIMIT);
    let hold = kernels.hold();
    let runner = built(&Arc::new(Paper::new(100)), &kernels, &OPS);
    kernels.abandon();
    drop(hold);
    drop(runner);
    assert!(files_in(root.path()).is_empty());
}

#[test]
fn a_driver_that_does_not_take_its_own_form_builds_anew() {
    let root = tempfile::tempdir().unwrap();
    let kernels = KernelCache::at(root.path(), LIMIT);
    drop(built(&Arc::new(Paper::new(100)), &kernels, &["relu"]));
    let device = Arc::new(Paper::new(100).refusing());
    let told = built(&device, &kernels, &["relu"]).kernels();
    assert_eq!((told.builds, told.loads, told.refused), (1, 0, 1));
    assert_eq!(files_in(root.path()).len(), 1, "and keeps what it built");
    let silent = Arc::new(Paper::new(100).silent());
    let kernels = KernelCache::at(&root.path().join("other"), LIMIT);
    let runner = built(&silent, &kernels, &["relu"]);
    assert!(kernels.flush(FLUSH));
    let told = runner.kernels();
    assert_eq!((told.builds, told.kept, told.reason.as_str()), (1, 0, ""), "a driver that gives nothing is no trouble");
}

#[test]
fn what_computes_wrong_is_not_kept() {
    let root = tempfile::tempdir().unwrap();
    let kernels = KernelCache::at(root.path(), LIMIT);
    let device = Arc::new(Paper::new(100));
    let runner = built(&device, &kernels, &["relu", "exp"]);
    let (op, case) = cases(&["relu"]).remove(0);
    // Still in line, and written before.
    runner.distrust(op, &case, None).unwrap();
    assert!(kernels.flush(FLUSH));
    assert_eq!(files_in(root.path()).len(), 1);
    runner.precompile(op, &case, None).unwrap();
    assert_eq!(runner.kernels().builds, 3, "built of its text again");
    drop(runner);
    assert_eq!(files_in(root.path()).len(), 1, "and not kept by this process");
    let runner = built(&device, &KernelCache::at(root.path(), LIMIT), &["exp"]);
    assert_eq!(runner.kernels().loads, 1);
    let (op, case) = cases(&["exp"]).remove(0);
    runner.distrust(op, &case, None).unwrap();
    assert!(files_in(root.path()).is_empty());
}

/// The limit holds after every write, and what was used last stays.
#[test]
fn the_files_that_were_used_last_stay_within_the_limit() {
    let root = tempfile::tempdir().unwrap();
    let limit = 60_000;
    let kernels = || KernelCache::at(root.path(), limit);
    let device = Arc::new(Paper::new(10_000));
    let size = || files_in(root.path()).iter().map(|f| std::fs::metadata(f).unwrap().len()).sum::<u64>();
    for some in OPS.chunks(1) {
        drop(built(&device, &kernels(), some));
        assert!(size() <= limit, "{} bytes", size());
        // Kept kernels stay in the order in which they were used, whatever a clock of whole milliseconds makes of it.
        drop(built(&device, &kernels(), &["relu"]));
    }
    assert!(size() > limit / 2, "{} bytes", size());
    let before = device.counts().0;
    let last = built(&device, &kernels(), &["relu", "gelu"]).kernels();
    assert_eq!((last.builds, last.loads, device.counts().0), (0, 2, before), "used all the time, and newest");
    let oldest = built(&device, &kernels(), &["exp"]).kernels();
    assert_eq!(oldest.builds, 1);
    // One that is larger than everything together is not kept, and throws nothing out.
    let count = files_in(root.path()).len();
    drop(built(&Arc::new(Paper::new(100_000).with_driver("2")), &kernels(), &["relu"]));
    assert_eq!(files_in(root.path()).len(), count);
}

#[test]
fn a_device_is_given_back_with_its_programs() {
    let root = tempfile::tempdir().unwrap();
    let device = Arc::new(Paper::new(100));
    drop(built(&device, &KernelCache::at(root.path(), LIMIT), &OPS));
    assert_eq!(device.ledger().state().objects(), 0, "the writer holds no program of a runner that went");
}
