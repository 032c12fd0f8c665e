//! Real threads on the parts of the engine and of the CPU device that are all locks and atomics, under ThreadSanitizer.
//!
//! Without arguments: runs itself with each of the parts, which must give no report, and with a race planted in each, which must
//! be reported. `right PART` and `wrong PART` are such runs.
#![allow(dead_code, reason = "the checked files have more than is used here")]

mod sync;

use std::cell::UnsafeCell;
use std::process::{Command, ExitCode, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// What the writer of the kernel cache is given; its value is read by the thread that keeps it.
pub(crate) struct Program(Box<u64>);
pub(crate) type Key = u64;

const PARTS: [&str; 5] = ["shelves", "recover", "turns", "writer", "gate"];
const THREADS: usize = 4;
const ROUNDS: u64 = 2000;
/// How long one run may take.
const LIMIT: Duration = Duration::from_secs(120);

/// The files as they are, and with locks that let everybody in; the gate's has a fault of its own.
macro_rules! copies {
    ($name:ident, $locks:ident) => {
        mod $name {
            use crate::sync::$locks as sync;
            pub(crate) mod recover {
                include!(concat!(env!("OUT_DIR"), "/", stringify!($name), "/recover.rs"));
            }
            pub(crate) mod shelves {
                include!(concat!(env!("OUT_DIR"), "/", stringify!($name), "/shelves.rs"));
            }
            pub(crate) mod turns {
                include!(concat!(env!("OUT_DIR"), "/", stringify!($name), "/turns.rs"));
            }
            pub(crate) mod writer {
                include!(concat!(env!("OUT_DIR"), "/", stringify!($name), "/writer.rs"));
            }
            pub(crate) mod gates {
                use crate::sync::shut as sync;
                pub(crate) mod gate {
                    include!(concat!(env!("OUT_DIR"), "/", stringify!($name), "/gate.rs"));
                }
            }
        }
    };
}

copies!(right, shut);
copies!(wrong, open);

/// A thread whose handle is never dropped: what the standard library does then is not seen by the sanitizer.
pub(crate) fn start(work: impl FnOnce() + Send + 'static) -> bool {
    std::thread::Builder::new().spawn(work).map(std::mem::forget).is_ok()
}

/// The same work by several threads at once; all are done at return.
fn together(work: impl Fn(u64) + Send + Sync + 'static) {
    let work: &'static _ = Box::leak(Box::new(work));
    let done: &'static AtomicUsize = Box::leak(Box::default());
    for number in 0..THREADS as u64 {
        assert!(start(move || {
            work(number);
            done.fetch_add(1, Ordering::Release);
        }));
    }
    while done.load(Ordering::Acquire) < THREADS {
        std::thread::yield_now();
    }
}

/// What one owner writes and a helper reads, kept apart by the gate alone.
struct Job(UnsafeCell<u64>);
// SAFETY: the gate keeps the two apart; that it does is what is tested.
unsafe impl Sync for Job {}

macro_rules! parts {
    ($name:ident) => {
        fn $name(part: &str) {
            use $name::recover::{Failure, Recovery, RecoveryConfig};
            use $name::shelves::{Retention, Shelves};
            match part {
                "shelves" => {
                    let s = Shelves::new(&[10, 15], 60, Retention::Adaptive);
                    together(move |number| {
                        for i in 0..ROUNDS {
                            let class = (i + number) as usize % 2;
                            let item = s.take(class, 1).unwrap_or_else(|| Box::new(i));
                            drop(s.put(class, 1, item, false));
                            if i % 64 == number {
                                drop(s.trim());
                            }
                        }
                        assert!(s.idle_bytes() <= 60);
                    });
                }
                "recover" => {
                    let r = Recovery::new(RecoveryConfig { failures: u32::MAX, ..RecoveryConfig::default() });
                    together(move |number| {
                        for i in 0..ROUNDS {
                            let now = i as f64 * 1e3;
                            match (i + number) % 3 {
                                0 => drop(r.failed(now, Failure::Lost, "lost")),
                                1 => r.succeeded(),
                                _ => {
                                    if let Some(attempt) = r.claim(now + 500.0) {
                                        r.ended(attempt, now + 501.0, Ok(()), || ());
                                    }
                                }
                            }
                            let _ = (r.state(), r.out());
                        }
                    });
                }
                "turns" => {
                    let turns = $name::turns::Turns::<Box<u64>>::new(2);
                    together(move |number| {
                        for i in 0..ROUNDS {
                            if let Ok(thing) = turns.take_in_turn(Duration::from_secs(60)) {
                                // Written by one after the other: what is on loan is nobody else's.
                                let mut thing = thing.unwrap_or_default();
                                *thing += 1;
                                turns.give(Some(thing), || i % 7 == number);
                            }
                        }
                    });
                }
                "writer" => {
                    let write = Box::new(|job: &$name::writer::Job| {
                        assert_eq!(*job.program.0, job.key);
                        (job.kept)();
                    });
                    let writer = $name::writer::Writer::new(write);
                    together(move |number| {
                        for i in 0..ROUNDS / 4 {
                            let key = i * THREADS as u64 + number;
                            let program = Program(Box::new(key));
                            writer.push($name::writer::Job { key, program, kept: Box::new(|| ()) });
                            if i % 16 == 0 {
                                drop(writer.hold());
                                writer.flush(Duration::from_secs(5));
                            }
                        }
                    });
                }
                "gate" => {
                    let gate: &'static _ = Box::leak(Box::new($name::gates::gate::Gate::new()));
                    let job: &'static Job = Box::leak(Box::new(Job(UnsafeCell::new(0))));
                    let out: &'static AtomicUsize = Box::leak(Box::default());
                    // Without an order of its own, so that it hides nothing.
                    let came: &'static AtomicUsize = Box::leak(Box::default());
                    for _ in 1..THREADS {
                        start(move || {
                            let mut last = 0;
                            while gate.enter(&mut last, || false) {
                                came.fetch_add(1, Ordering::Relaxed);
                                for _ in 0..4 {
                                    // SAFETY: what is tested: the owner writes only while nobody is inside.
                                    assert!(unsafe { std::ptr::read(job.0.get()) } < u64::MAX);
                                    std::thread::yield_now();
                                }
                                gate.leave();
                            }
                            out.fetch_add(1, Ordering::Release);
                        });
                    }
                    for number in 1..=ROUNDS {
                        // SAFETY: as above; all are out.
                        unsafe { std::ptr::write(job.0.get(), number) };
                        let before = came.load(Ordering::Relaxed);
                        gate.open(THREADS - 1);
                        for _ in 0..100 {
                            std::thread::yield_now();
                            if came.load(Ordering::Relaxed) > before {
                                break;
                            }
                        }
                        gate.close();
                    }
                    gate.end();
                    while out.load(Ordering::Acquire) < THREADS - 1 {
                        std::thread::yield_now();
                    }
                }
                other => panic!("no part '{other}'"),
            }
        }
    };
}

parts!(right);
parts!(wrong);

/// Reports of the sanitizer in a run of this program, and how it ended.
fn reports(kind: &str, part: &str) -> (usize, String) {
    let me = std::env::current_exe().expect("this program");
    let told = std::env::temp_dir().join(format!("gpuctl-tsan-{}-{kind}-{part}", std::process::id()));
    let file = std::fs::File::create(&told).expect("a file for what it tells");
    let options = if kind == "wrong" { "halt_on_error=1 report_thread_leaks=0" } else { "report_thread_leaks=0" };
    let mut child = Command::new(me)
        .args([kind, part])
        .env("TSAN_OPTIONS", options)
        .stderr(Stdio::from(file))
        .spawn()
        .expect("this program starts");
    let begin = Instant::now();
    let ended = loop {
        match child.try_wait().expect("a child") {
            Some(status) => break status.to_string(),
            None if begin.elapsed() > LIMIT => {
                let _ = child.kill();
                let _ = child.wait();
                break format!("not ended within {} s", LIMIT.as_secs());
            }
            None => std::thread::sleep(Duration::from_millis(20)),
        }
    };
    let text = std::fs::read_to_string(&told).unwrap_or_default();
    let _ = std::fs::remove_file(&told);
    let count = text.matches("WARNING: ThreadSanitizer").count();
    if kind == "right" && count > 0 {
        eprintln!("{text}");
    }
    (count, ended)
}

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["right", part] => right(part),
        ["wrong", part] => wrong(part),
        _ => {
            let mut good = true;
            for part in PARTS {
                let ((none, ended), (found, _)) = (reports("right", part), reports("wrong", part));
                println!("{part}: {none} reports ({ended}); with a planted race {found}");
                good &= none == 0 && ended.contains("exit status: 0") && found > 0;
            }
            if !good {
                println!("a report, a run that did not end well, or a planted race that was not found");
                return ExitCode::FAILURE;
            }
        }
    }
    ExitCode::SUCCESS
}
