//! Where helpers wait for jobs: one job after another is offered, whoever comes in time takes part, and none begins unless
//! the last one is over for everybody.
//!
//! One word says all: how many are inside, whether the gate is open, the number of the job, how many sleep. So a helper goes
//! in, or to sleep, in the same step in which it sees that it may.

use std::sync::PoisonError;

use super::sync::{AtomicU64, Condvar, Mutex, MutexGuard, Ordering, relax, yield_now};

/// Helpers inside: the lowest bits.
const INSIDE: u64 = (1 << 14) - 1;
/// No job will follow.
const ENDED: u64 = 1 << 14;
/// Helpers may come in.
const OPEN: u64 = 1 << 15;
/// Number of the job, 32 bits; it may begin anew.
const JOB: u64 = 1 << 16;
const JOBS: u64 = (u32::MAX as u64) << 16;
/// Helpers asleep: the highest bits.
const ASLEEP: u64 = 1 << 48;

/// Helpers that a gate can count.
pub(crate) const MOST_HELPERS: usize = INSIDE as usize;

/// Looks at the word while the last helper leaves, before the processor is given to whoever else needs it.
const LOOKS: u32 = 2000;

pub(crate) struct Gate {
    word: AtomicU64,
    bed: Mutex<()>,
    woken: Condvar,
}

/// Number of a job; the one before the first is 0.
fn job(word: u64) -> u64 {
    word & JOBS
}

fn lock(m: &Mutex<()>) -> MutexGuard<'_, ()> {
    m.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Gate {
    pub(crate) fn new() -> Self {
        Gate { word: AtomicU64::new(0), bed: Mutex::new(()), woken: Condvar::new() }
    }

    /// Offers the next job and wakes up to `wanted` sleepers. The caller is the only one who opens, and has closed the last
    /// job; what it wrote before is seen by those who come in.
    pub(crate) fn open(&self, wanted: usize) {
        let mut was = self.word.load(Ordering::Relaxed);
        loop {
            let next = was & !JOBS | job(was.wrapping_add(JOB)) | OPEN;
            match self.word.compare_exchange_weak(was, next, Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) => break,
                Err(now) => was = now,
            }
        }
        let asleep = (was / ASLEEP) as usize;
        if asleep > 0 {
            // With the lock a sleeper either has seen the new word or is in the wait.
            let _bed = lock(&self.bed);
            if asleep <= wanted {
                self.woken.notify_all();
            } else {
                (0..wanted).for_each(|_| self.woken.notify_one());
            }
        }
    }

    /// Lets nobody in any more and waits until all are out; what they wrote is seen from here on.
    pub(crate) fn close(&self) {
        let mut word = self.word.fetch_and(!OPEN, Ordering::AcqRel);
        let mut looks = 0;
        while word & INSIDE != 0 {
            looks += 1;
            if looks < LOOKS {
                relax()
            } else {
                yield_now()
            }
            word = self.word.load(Ordering::Acquire);
        }
    }

    /// Sends all helpers home.
    pub(crate) fn end(&self) {
        self.word.fetch_or(ENDED, Ordering::AcqRel);
        let _bed = lock(&self.bed);
        self.woken.notify_all();
    }

    /// Waits for a job other than `last` and goes in: true, and `last` is its number; false if there will be none. It looks
    /// as long as `awake` says so, then it sleeps.
    pub(crate) fn enter(&self, last: &mut u64, mut awake: impl FnMut() -> bool) -> bool {
        let mut word = self.word.load(Ordering::Acquire);
        loop {
            if word & ENDED != 0 {
                return false;
            }
            let offered = word & OPEN != 0 && job(word) != *last;
            if !offered && awake() {
                relax();
                word = self.word.load(Ordering::Acquire);
                continue;
            }
            let next = if offered { word + 1 } else { word + ASLEEP };
            if let Err(now) = self.word.compare_exchange(word, next, Ordering::AcqRel, Ordering::Acquire) {
                word = now;
                continue;
            }
            if offered {
                *last = job(word);
                return true;
            }
            word = self.sleep(*last);
        }
    }

    /// Until there is a job other than `last`, or the end; the word then.
    fn sleep(&self, last: u64) -> u64 {
        let mut bed = lock(&self.bed);
        let mut word = self.word.load(Ordering::Acquire);
        while word & ENDED == 0 && (word & OPEN == 0 || job(word) == last) {
            bed = self.woken.wait(bed).unwrap_or_else(PoisonError::into_inner);
            word = self.word.load(Ordering::Acquire);
        }
        drop(bed);
        self.word.fetch_sub(ASLEEP, Ordering::AcqRel) - ASLEEP
    }

    /// Goes out after [`Gate::enter`].
    pub(crate) fn leave(&self) {
        self.word.fetch_sub(1, Ordering::AcqRel);
    }

    /// How many sleep.
    #[cfg(test)]
    pub(crate) fn asleep(&self) -> usize {
        (self.word.load(Ordering::Acquire) / ASLEEP) as usize
    }
}
