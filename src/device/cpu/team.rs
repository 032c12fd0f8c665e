//! The CPU device's threads. They share out the pieces of one job at a time with the thread that calls.
//!
//! A helper that finds no job looks for the next one for a moment and then sleeps, so that it is there for calls that follow
//! each other and takes nothing from anybody else. The caller never waits for a sleeper: pieces that nobody has begun it
//! does itself. A second thread that calls meanwhile does its pieces alone.

#![allow(unsafe_code)]

use std::cell::UnsafeCell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, TryLockError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::base::{Code, Error, Result, os, stats};
use crate::kernel::cpu::Team;

use super::gate::{Gate, MOST_HELPERS};

/// How long a helper looks for the next job before it sleeps: longer than a program needs between two calls, and too short to
/// make another program look slow.
const AWAKE: Duration = Duration::from_micros(50);

/// Empty jobs by which a hand-over is measured.
const TRIES: usize = 32;

/// How long new threads are waited for; those that come later help later.
const START: Duration = Duration::from_millis(20);

/// Pieces that one thread begins with: the next one and the end. A cache line (and the one that is fetched with it) each.
#[repr(align(128))]
#[derive(Default)]
struct Lane {
    next: AtomicUsize,
    end: AtomicUsize,
}

struct Shared {
    gate: Gate,
    /// One per thread, the caller's first.
    lanes: Vec<Lane>,
    job: UnsafeCell<Option<&'static (dyn Fn(usize) + Sync)>>,
    panicked: AtomicBool,
}

// SAFETY: `job` is the only part that is not `Sync` by itself. It is written by the one thread that holds the `turn` while
// nobody is inside the gate, and read by those inside; entering and leaving order these accesses.
unsafe impl Sync for Shared {}

/// Threads that help a caller.
pub(super) struct Helpers {
    shared: Arc<Shared>,
    /// Whose job it is.
    turn: Mutex<()>,
    threads: Vec<JoinHandle<()>>,
    handover_s: f64,
}

impl Shared {
    /// Does pieces until none is left: those of the own lane first, then what others have not begun.
    fn work(&self, me: usize, job: &(dyn Fn(usize) + Sync)) {
        let count = self.lanes.len();
        for k in 0..count {
            let lane = &self.lanes[(me + k) % count];
            let end = lane.end.load(Ordering::Relaxed);
            // Looked at first, so that a finished lane's line stays where it is.
            while lane.next.load(Ordering::Relaxed) < end {
                let i = lane.next.fetch_add(1, Ordering::Relaxed);
                if i >= end {
                    break;
                }
                job(i);
            }
        }
    }

    fn help(&self, me: usize) {
        let mut last = 0;
        loop {
            let (mut since, mut looks) = (None, 0u32);
            let awake = || {
                looks += 1;
                // The clock is slower than a look.
                looks % 64 != 0 || since.get_or_insert_with(Instant::now).elapsed() < AWAKE
            };
            if !self.gate.enter(&mut last, awake) {
                return;
            }
            // SAFETY: inside the gate the job is not written (see `Sync` above), and whoever lent it waits in
            // `Gate::close` until this thread has left.
            let job = unsafe { *self.job.get() };
            if let Some(job) = job
                && catch_unwind(AssertUnwindSafe(|| self.work(me, job))).is_err()
            {
                self.panicked.store(true, Ordering::Relaxed);
            }
            self.gate.leave();
        }
    }
}

/// Closes the gate even if the caller's own piece panics: the job ends with its frame.
struct Closing<'a>(&'a Gate);

impl Drop for Closing<'_> {
    fn drop(&mut self) {
        self.0.close();
    }
}

impl Helpers {
    /// So many threads beside the caller's; `place` is called in each with its number, from 1 on.
    pub(super) fn new(count: usize, place: impl Fn(usize) + Send + Sync + 'static) -> Result<Self> {
        if count > MOST_HELPERS {
            return Err(Error::new(Code::BadArgument, format!("{count} threads: at most {MOST_HELPERS} can help")));
        }
        let shared = Arc::new(Shared {
            gate: Gate::new(),
            lanes: (0..=count).map(|_| Lane::default()).collect(),
            job: UnsafeCell::new(None),
            panicked: AtomicBool::new(false),
        });
        // Made first, so that the threads that are there go home if one cannot be made.
        let mut helpers = Helpers { shared, turn: Mutex::new(()), threads: Vec::new(), handover_s: 0.0 };
        let (place, there) = (Arc::new(place), Arc::new(AtomicUsize::new(0)));
        for me in 1..=count {
            let (shared, place, there) = (Arc::clone(&helpers.shared), Arc::clone(&place), Arc::clone(&there));
            let thread = std::thread::Builder::new().name(format!("gpuctl-cpu-{me}"));
            let started = thread.spawn(move || {
                place(me);
                there.fetch_add(1, Ordering::Relaxed);
                shared.help(me);
            });
            let none = |e| Error::new(Code::KernelFailed, "no worker threads").caused_by(e);
            helpers.threads.push(started.map_err(none)?);
        }
        let begun = Instant::now();
        while there.load(Ordering::Relaxed) < count && begun.elapsed() < START {
            std::thread::sleep(AWAKE);
        }
        helpers.handover_s = helpers.measured();
        Ok(helpers)
    }

    /// Seconds until all helpers have begun a job and ended it. Helpers whose processor is busy are not waited for, so that a
    /// loaded machine delays nobody; and the faster tries count, because they are what a quiet one does.
    fn measured(&self) -> f64 {
        let pieces = self.shared.lanes.len();
        let mut times = Vec::new();
        for _ in 0..TRIES {
            let there = AtomicUsize::new(0);
            let begun = Instant::now();
            self.run(pieces, &|_| {
                there.fetch_add(1, Ordering::Relaxed);
                while there.load(Ordering::Relaxed) < pieces && begun.elapsed() < AWAKE {
                    std::hint::spin_loop();
                }
            });
            times.push(begun.elapsed().as_secs_f64());
        }
        stats::quantile(&stats::sorted(&times), 0.25)
    }
}

impl Team for Helpers {
    fn run(&self, pieces: usize, job: &(dyn Fn(usize) + Sync)) {
        let _turn = match self.turn.try_lock() {
            Ok(turn) => turn,
            Err(TryLockError::Poisoned(turn)) => PoisonError::into_inner(turn),
            Err(TryLockError::WouldBlock) => {
                (0..pieces).for_each(job);
                return;
            }
        };
        let shared = &*self.shared;
        let threads = shared.lanes.len();
        for (t, lane) in shared.lanes.iter().enumerate() {
            lane.next.store(t * pieces / threads, Ordering::Relaxed);
            lane.end.store((t + 1) * pieces / threads, Ordering::Relaxed);
        }
        // SAFETY: only the lifetime is changed. Helpers use the job inside the gate alone, and this frame outlives that:
        // `Closing` waits for them whichever way the frame is left.
        let lent = unsafe { std::mem::transmute::<&(dyn Fn(usize) + Sync), &'static (dyn Fn(usize) + Sync)>(job) };
        // SAFETY: this thread has the turn and nobody is inside the gate, so nobody else looks at the cell.
        unsafe { *shared.job.get() = Some(lent) };
        // A call that ended with a panic of the caller's own piece did not ask whether a helper's panicked, too.
        shared.panicked.store(false, Ordering::Relaxed);
        shared.gate.open(threads.min(pieces).saturating_sub(1));
        let closing = Closing(&shared.gate);
        shared.work(0, job);
        drop(closing);
        // SAFETY: as above; what was lent ends with this frame.
        unsafe { *shared.job.get() = None };
        if shared.panicked.swap(false, Ordering::Relaxed) {
            panic!("a kernel panicked in a helper thread; its message is above");
        }
    }

    fn handover_s(&self) -> f64 {
        self.handover_s
    }
}

impl Drop for Helpers {
    fn drop(&mut self) {
        self.shared.gate.end();
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

/// A helper's place: processor number `i` of the allowed ones, leaving the first to the caller. Not pinning is no failure: the
/// helper then runs wherever the system puts it.
pub(super) fn pinned(cpus: Vec<usize>) -> impl Fn(usize) + Send + Sync + 'static {
    move |i| {
        if !cpus.is_empty() {
            os::pin_current_thread(cpus[i % cpus.len()]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn helpers(count: usize) -> Helpers {
        Helpers::new(count, |_| {}).unwrap()
    }

    /// How often each piece was done.
    fn counts(team: &Helpers, pieces: usize) -> Vec<usize> {
        let done: Vec<AtomicUsize> = (0..pieces).map(|_| AtomicUsize::new(0)).collect();
        team.run(pieces, &|i| {
            done[i].fetch_add(1, Ordering::Relaxed);
        });
        done.into_iter().map(AtomicUsize::into_inner).collect()
    }

    #[test]
    fn every_piece_is_done_once() {
        let team = helpers(3);
        for pieces in (1..40).chain([1000]) {
            assert_eq!(counts(&team, pieces), vec![1; pieces]);
        }
        // Again after the helpers have fallen asleep.
        std::thread::sleep(20 * AWAKE);
        assert_eq!(counts(&team, 100), vec![1; 100]);
    }

    #[test]
    fn helpers_really_help() {
        let team = helpers(1);
        // A piece that waits for the other one ends only if another thread does that.
        for _ in 0..100 {
            let there = AtomicUsize::new(0);
            team.run(2, &|_| {
                there.fetch_add(1, Ordering::SeqCst);
                while there.load(Ordering::SeqCst) < 2 {
                    std::thread::yield_now();
                }
            });
        }
    }

    #[test]
    fn callers_at_once_and_calls_within_calls() {
        let team = helpers(2);
        std::thread::scope(|s| {
            for _ in 0..8 {
                s.spawn(|| (1..200).for_each(|pieces| assert_eq!(counts(&team, pieces), vec![1; pieces])));
            }
        });
        let inner = AtomicUsize::new(0);
        team.run(4, &|_| {
            team.run(5, &|_| {
                inner.fetch_add(1, Ordering::Relaxed);
            });
        });
        assert_eq!(inner.into_inner(), 20);
    }

    /// A panic reaches the caller after everybody is out, and the team works on.
    #[test]
    fn a_panic_reaches_the_caller() {
        let team = helpers(2);
        for bad in 0..6 {
            let out = catch_unwind(AssertUnwindSafe(|| {
                team.run(6, &|i| {
                    if i == bad {
                        std::panic::resume_unwind(Box::new("planted"))
                    }
                });
            }));
            assert!(out.is_err(), "piece {bad}");
            assert_eq!(counts(&team, 10), vec![1; 10]);
        }
    }

    /// Where the caller's piece and a helper's panic both, the next job is none the worse.
    #[test]
    fn a_panic_of_both_is_over_with_its_job() {
        let team = helpers(1);
        let there = AtomicUsize::new(0);
        let out = catch_unwind(AssertUnwindSafe(|| {
            team.run(2, &|_| {
                there.fetch_add(1, Ordering::SeqCst);
                while there.load(Ordering::SeqCst) < 2 {
                    std::thread::yield_now();
                }
                std::panic::resume_unwind(Box::new("planted"))
            });
        }));
        assert!(out.is_err());
        assert_eq!(counts(&team, 10), vec![1; 10]);
    }

    #[test]
    fn a_hand_over_is_measured() {
        let cost = helpers(1).handover_s();
        assert!(cost > 0.0 && cost < 0.1, "{cost}");
    }

    /// Whoever measures something else has the processors for itself.
    #[test]
    fn idle_helpers_sleep() {
        let team = helpers(3);
        for _ in 0..3 {
            counts(&team, 9);
            let begun = Instant::now();
            while team.shared.gate.asleep() < 3 {
                assert!(begun.elapsed() < Duration::from_secs(20), "{} of 3 asleep", team.shared.gate.asleep());
                std::thread::sleep(AWAKE);
            }
        }
    }
}
