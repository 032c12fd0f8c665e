//! Who works with one of a device's things (its queues) at once, and who waits for a turn.
//!
//! Nothing but a lock and a condition variable, so that `tests/loom` can model-check it. Invariants: at most so many of those
//! who take turns hold one; nobody waits forever: while places are free, either half of them are taken, and whoever gives one of
//! those back looks again, or one who waits is woken; one who gives and comes again does not outrun the waiting forever. One
//! who gives may take again at once, because waking another for each turn costs more than a small call: a place is handed
//! over only from time to time, and else somebody is woken only when less than half are at work.

use std::time::{Duration, Instant};

use super::sync::{Condvar, Mutex, MutexGuard};

/// Things on loan, each to one at a time.
pub(super) struct Turns<Q> {
    most: usize,
    state: Mutex<State<Q>>,
    freed: Condvar,
}

struct State<Q> {
    idle: Vec<Q>,
    /// Those who hold a place, and places handed over to one who has not woken yet.
    busy: usize,
    /// Those who wait.
    waiting: usize,
    /// One of them was woken and has not looked yet.
    waking: bool,
    /// Places that none but a waiting one may take.
    handed: usize,
}

fn lock<T>(m: &Mutex<T>) -> MutexGuard<'_, T> {
    m.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

impl<Q> Turns<Q> {
    /// Turns for at most `most` at once.
    pub(super) fn new(most: usize) -> Self {
        let state = State { idle: Vec::new(), busy: 0, waiting: 0, waking: false, handed: 0 };
        Turns { most, state: Mutex::new(state), freed: Condvar::new() }
    }

    /// Takes a place at once, however many there are. An idle thing if there is one; it is up to the caller to make one. Each
    /// taking is followed by one [`Turns::give`].
    pub(super) fn take(&self) -> Option<Q> {
        let mut state = lock(&self.state);
        state.busy += 1;
        state.idle.pop()
    }

    /// The same when it is the caller's turn; `Err` if it was not within `patience`.
    pub(super) fn take_in_turn(&self, patience: Duration) -> Result<Option<Q>, ()> {
        let mut state = lock(&self.state);
        if state.busy < self.most {
            state.busy += 1;
            return Ok(state.idle.pop());
        }
        let start = Instant::now();
        state.waiting += 1;
        loop {
            let left = patience.saturating_sub(start.elapsed());
            let waited = self.freed.wait_timeout(state, left);
            state = waited.unwrap_or_else(std::sync::PoisonError::into_inner).0;
            state.waking = false;
            if state.handed > 0 {
                state.handed -= 1;
            } else if state.busy < self.most {
                state.busy += 1;
            } else if start.elapsed() < patience {
                continue;
            } else {
                state.waiting -= 1;
                return Err(());
            }
            state.waiting -= 1;
            // Room for more than one, of which only one was told.
            if state.busy < self.most && state.waiting > state.handed && !state.waking {
                state.waking = true;
                self.freed.notify_one();
            }
            return Ok(state.idle.pop());
        }
    }

    /// Gives a place back, and the thing unless it is broken. With others waiting `fair` says whether one of them gets the
    /// place now, or whoever comes first.
    pub(super) fn give(&self, thing: Option<Q>, fair: impl FnOnce() -> bool) {
        let mut state = lock(&self.state);
        state.idle.extend(thing);
        let told = if state.waiting > state.handed && state.busy <= self.most && fair() {
            state.handed += 1;
            true
        } else {
            state.busy -= 1;
            let tell = state.waiting > state.handed && !state.waking && state.busy <= self.most / 2;
            state.waking |= tell;
            tell
        };
        drop(state);
        if told {
            self.freed.notify_one();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    /// Many threads that come again at once, and one that comes now and then: it gets its turns.
    #[test]
    fn nobody_is_outrun_forever() {
        let turns = Turns::new(4);
        let (at_once, most, over) = (AtomicUsize::new(0), AtomicUsize::new(0), AtomicUsize::new(0));
        let turn = |fair: bool| {
            let thing = turns.take_in_turn(Duration::from_secs(60)).unwrap().unwrap_or(0u64);
            let now = at_once.fetch_add(1, Ordering::SeqCst) + 1;
            most.fetch_max(now, Ordering::SeqCst);
            at_once.fetch_sub(1, Ordering::SeqCst);
            turns.give(Some(thing + 1), || fair);
        };
        std::thread::scope(|s| {
            for _ in 0..16 {
                s.spawn(|| {
                    let mut n = 0;
                    while over.load(Ordering::SeqCst) == 0 {
                        n += 1;
                        turn(n % 64 == 0);
                    }
                });
            }
            s.spawn(|| {
                (0..50).for_each(|_| turn(false));
                over.store(1, Ordering::SeqCst);
            });
        });
        assert!(most.into_inner() <= 4 && at_once.into_inner() == 0);
        sound(turns, 4);
    }

    /// None that gives comes back: those who wait are woken all the same, nobody handing over anything.
    #[test]
    fn turns_that_are_taken_once() {
        let turns = Turns::new(4);
        std::thread::scope(|s| {
            for _ in 0..64 {
                s.spawn(|| {
                    let thing = turns.take_in_turn(Duration::from_secs(60)).unwrap().unwrap_or(1);
                    std::thread::yield_now();
                    turns.give(Some(thing), || false);
                });
            }
        });
        sound(turns, 4);
    }

    fn sound<Q>(turns: Turns<Q>, most: usize) {
        let state = turns.state.into_inner().unwrap();
        assert_eq!((state.busy, state.waiting, state.handed), (0, 0, 0));
        assert!((1..=most).contains(&state.idle.len()), "things are taken up again");
    }

    #[test]
    fn a_turn_that_does_not_come_is_told() {
        let turns: Turns<u8> = Turns::new(1);
        assert_eq!(turns.take_in_turn(Duration::ZERO), Ok(None));
        assert_eq!(turns.take_in_turn(Duration::from_millis(20)), Err(()));
        assert_eq!(turns.take(), None, "one that does not wait goes beyond the number");
        turns.give(None, || true);
        assert_eq!(turns.take_in_turn(Duration::ZERO), Err(()));
        turns.give(Some(7), || true);
        assert_eq!(turns.take_in_turn(Duration::ZERO), Ok(Some(7)));
    }
}
