//! The thread that fetches compiled kernels from drivers and hands them on to be written.
//!
//! Fetching can take longer than compiling did (PoCL compiles the kernel again, 50 to 400 ms, under a lock that its next build
//! waits for), so it is nobody's call that pays: a kernel waits here until nothing was built for [`SETTLE`] and nobody
//! measures ([`Writer::hold`]), or until somebody has time ([`Writer::flush`]). Late is also better: at a kernel's first launch
//! PoCL compiles it for that size of group, and what is fetched after that holds the result. Loaded, such a kernel is as fast
//! at its first call as at every other; one that was fetched before is compiled then.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::device::Program;

use super::entry::Key;

/// How long nothing must have been built before kernels are fetched: a program that starts builds its kernels in a row, and
/// launches them.
const SETTLE: Duration = Duration::from_secs(3);
/// Most kernels that wait. Those beyond are compiled again by the next process.
const MOST: usize = 512;

/// A kernel to be kept.
pub(super) struct Job {
    pub(super) key: Key,
    pub(super) program: Program,
    /// Told when it is kept.
    pub(super) kept: Box<dyn Fn() + Send>,
}

/// What is done with a kernel.
pub(super) type Write = Box<dyn Fn(&Job) + Send>;

#[derive(Default)]
struct State {
    jobs: VecDeque<Job>,
    write: Option<Write>,
    busy: bool,
    holds: u32,
    flushes: u32,
    last: Option<Instant>,
    ended: bool,
}

#[derive(Default)]
struct Inner {
    state: Mutex<State>,
    changed: Condvar,
}

impl Inner {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The thread, started with the first kernel.
pub(super) struct Writer(Arc<Inner>);

/// While it lives no kernel is fetched, unless somebody asks for it.
#[must_use]
pub struct Hold(Option<Arc<Inner>>);

impl std::fmt::Debug for Hold {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(if self.0.is_some() { "Hold" } else { "Hold(nothing)" })
    }
}

impl Hold {
    pub(super) fn nothing() -> Self {
        Hold(None)
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        if let Some(inner) = &self.0 {
            let mut state = inner.lock();
            state.holds = state.holds.saturating_sub(1);
            // Whoever measured may measure again soon.
            state.last = Some(Instant::now());
            inner.changed.notify_all();
        }
    }
}

impl Writer {
    pub(super) fn new(write: Write) -> Self {
        let inner = Inner::default();
        inner.lock().write = Some(write);
        Writer(Arc::new(inner))
    }

    /// Puts a kernel in line. Returns at once.
    pub(super) fn push(&self, job: Job) {
        let mut state = self.0.lock();
        if state.jobs.len() >= MOST || state.ended {
            return;
        }
        state.jobs.push_back(job);
        state.last = Some(Instant::now());
        if let Some(write) = state.write.take() {
            let inner = Arc::clone(&self.0);
            let thread = std::thread::Builder::new().name("gpuctl-kernels".into());
            // Without a thread nothing is kept, and nothing else is lost.
            state.ended = thread.spawn(move || work(&inner, &write)).is_err();
        }
        self.0.changed.notify_all();
    }

    pub(super) fn hold(&self) -> Hold {
        self.0.lock().holds += 1;
        Hold(Some(Arc::clone(&self.0)))
    }

    /// Has everything in line kept now. False if that takes longer than `limit`: what is left is forgotten.
    pub(super) fn flush(&self, limit: Duration) -> bool {
        let end = Instant::now() + limit;
        let mut state = self.0.lock();
        state.flushes += 1;
        self.0.changed.notify_all();
        while (state.busy || !state.jobs.is_empty()) && !state.ended {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            state = self.0.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        state.flushes -= 1;
        let left = std::mem::take(&mut state.jobs);
        let done = left.is_empty() && !state.busy;
        drop(state);
        // Outside of the lock: drivers release programs here.
        drop(left);
        done
    }

    /// Forgets what is in line.
    pub(super) fn clear(&self) {
        let left = std::mem::take(&mut self.0.lock().jobs);
        drop(left);
    }
}

impl Drop for Writer {
    /// The thread ends by itself after the kernel it is at: a driver may hang.
    fn drop(&mut self) {
        self.0.lock().ended = true;
        self.clear();
        self.0.changed.notify_all();
    }
}

/// Says that the thread ended, also where a driver's crate panicked.
struct End<'a>(&'a Inner);

impl Drop for End<'_> {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        (state.ended, state.busy) = (true, false);
        self.0.changed.notify_all();
    }
}

fn work(inner: &Inner, write: &Write) {
    let _end = End(inner);
    let mut state = inner.lock();
    loop {
        if state.ended {
            return;
        }
        let quiet = state.last.map_or(SETTLE, |at| at.elapsed());
        let free = state.flushes > 0 || (state.holds == 0 && quiet >= SETTLE);
        let wait = if state.jobs.is_empty() || state.holds > 0 { None } else { Some(SETTLE.saturating_sub(quiet)) };
        match if free { state.jobs.pop_front() } else { None } {
            Some(job) => {
                state.busy = true;
                drop(state);
                write(&job);
                drop(job);
                state = inner.lock();
                state.busy = false;
                inner.changed.notify_all();
            }
            None => {
                state = match wait {
                    None => inner.changed.wait(state).unwrap_or_else(PoisonError::into_inner),
                    Some(t) => inner.changed.wait_timeout(state, t).unwrap_or_else(PoisonError::into_inner).0,
                };
            }
        }
    }
}
