//! Several processes on one folder, some of which are killed while they write.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use gpuctl::base::rng::Philox;
use gpuctl::engine::KernelCache;
use gpuctl::engine::cache::{FLUSH, LIMIT};

use super::files_in;
use super::paper::{OPS, Paper, built};

/// So much that a writer is often killed in the middle of a file.
const BYTES: usize = 1 << 20;

/// The worker: builds all kernels again and again, or once, and says after each time how many it built and how many kept ones
/// were not what the compiler makes of their text.
#[test]
#[ignore = "started by other tests"]
fn worker() {
    let Ok(task) = std::env::var("GPUCTL_TEST_CACHE") else { return };
    let [times, root] = task.splitn(2, ' ').collect::<Vec<_>>()[..] else { panic!("{task}") };
    for round in 0..times.parse().unwrap() {
        // What another one is writing counts as well: every round removes some.
        if round > 0 {
            files_in(Path::new(root)).iter().step_by(3).for_each(|f| drop(std::fs::remove_file(f)));
        }
        let device = Arc::new(Paper::new(BYTES));
        let kernels = KernelCache::at(Path::new(root), LIMIT);
        let runner = built(&device, &kernels, &OPS);
        println!("\nwriting");
        assert!(kernels.flush(FLUSH));
        let told = runner.kernels();
        println!("\nround {} {} {} {}", told.builds, told.loads, told.refused, device.counts().1);
    }
}

fn start(times: u32, root: &Path) -> Child {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["processes::worker", "--exact", "--ignored", "--nocapture"]);
    command.env("GPUCTL_TEST_CACHE", format!("{times} {}", root.display()));
    command.stdout(Stdio::piped()).stderr(Stdio::inherit()).spawn().unwrap()
}

/// Builds, loads, refused and wrong kernels of each round that a worker told.
fn rounds(text: &str) -> Vec<[u64; 4]> {
    let numbers = |line: &str| {
        let all: Vec<u64> = line.strip_prefix("round ")?.split(' ').map(|n| n.parse().unwrap()).collect();
        Some(all.try_into().unwrap())
    };
    text.lines().filter_map(numbers).collect()
}

#[test]
fn killed_writers_leave_no_wrong_kernel_and_no_failed_start() {
    let root = tempfile::tempdir().unwrap();
    // One that shares the folder all the time, and is let alone.
    let steady = start(20, root.path());
    let rng = Philox::new(6);
    let mut killed_while_writing = 0;
    for kill in 0..20 {
        let mut child = start(1000, root.path());
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut text = String::new();
        // It writes now, and goes on to.
        while !text.contains("writing") {
            text.push_str(&lines.next().expect("the start does not fail").unwrap());
            text.push('\n');
        }
        std::thread::sleep(Duration::from_micros(rng.u64(0, kill) % 60_000));
        child.kill().unwrap();
        lines.map_while(Result::ok).for_each(|l| text.push_str(&(l + "\n")));
        child.wait().unwrap();
        let all = rounds(&text);
        killed_while_writing += u32::from(text.matches("writing").count() > all.len());
        for [_, _, refused, wrong] in all {
            assert_eq!((refused, wrong), (0, 0), "kill {kill}: a file was met half written");
        }
    }
    let out = steady.wait_with_output().unwrap();
    assert!(out.status.success());
    let all = rounds(&String::from_utf8_lossy(&out.stdout));
    assert_eq!(all.len(), 20);
    assert!(all.iter().all(|[.., refused, wrong]| (*refused, *wrong) == (0, 0)), "{all:?}");
    let parts = std::fs::read_dir(root.path().join("kernels/1")).unwrap().flatten();
    let parts = parts.filter(|e| e.path().extension().is_some_and(|e| e == "part")).count();
    println!(
        "{killed_while_writing} of 20 were killed between the first and the last file of a round, {parts} within one"
    );
    assert!(killed_while_writing > 0, "else the test shows nothing");

    // Whoever comes next gets everything, all of it right.
    let texts = OPS.len() as u64;
    for (times, fresh) in [(1, false), (1, true)] {
        let out = start(times, root.path()).wait_with_output().unwrap();
        assert!(out.status.success());
        let [[builds, loads, refused, wrong]] = rounds(&String::from_utf8_lossy(&out.stdout))[..] else { panic!() };
        assert_eq!((refused, wrong), (0, 0));
        assert!(builds + loads >= texts);
        assert!(!fresh || builds == 0, "{builds} built");
    }
}

#[test]
fn processes_that_start_together_share_what_they_build() {
    let root = tempfile::tempdir().unwrap();
    let all: Vec<Child> = (0..4).map(|_| start(1, root.path())).collect();
    for child in all {
        let out = child.wait_with_output().unwrap();
        assert!(out.status.success());
        let told = rounds(&String::from_utf8_lossy(&out.stdout));
        assert!(matches!(told[..], [[_, _, 0, 0]]), "{told:?}");
    }
    let device = Arc::new(Paper::new(BYTES));
    let told = built(&device, &KernelCache::at(root.path(), LIMIT), &OPS).kernels();
    assert_eq!((told.builds, device.counts().1), (0, 0));
}

/// Files of at most 4 KiB, as on a disk that is full in the middle of a file.
#[test]
fn a_full_disk_costs_the_cache_alone() {
    let root = tempfile::tempdir().unwrap();
    let mut command = Command::new("sh");
    command.args(["-c", "trap '' XFSZ; ulimit -f 8; exec \"$0\" \"$@\""]);
    command.arg(std::env::current_exe().unwrap()).args(["processes::worker", "--exact", "--ignored", "--nocapture"]);
    command.env("GPUCTL_TEST_CACHE", format!("1 {}", root.path().display()));
    let out = command.stdout(Stdio::piped()).output().unwrap();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    let told = rounds(&String::from_utf8_lossy(&out.stdout));
    assert!(matches!(told[..], [[_, 0, 0, 0]]), "{told:?}");
    let left = std::fs::read_dir(root.path().join("kernels/1")).unwrap().count();
    assert_eq!(left, 0, "nothing half written stays");
}
