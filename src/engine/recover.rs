//! When a device that failed is asked again: a state machine that knows no device.
//!
//! ```text
//!            failed (lost, or the last of several in a row)           due, claimed by one thread
//!  Serving ------------------------------------------------> Resting ---------------------------> Trying
//!     ^                                                         ^                                    |
//!     |                                                         |  failed: twice as long             |
//!     |                                                         +------------------------------------+
//!     +----------------------------------------------------------------------------------------------+
//!                                 the known answer came back                                         |
//!                                                                                                    v
//!  Disabled, for good: a poisoned context, or as many failures without a success between as are allowed
//! ```
//!
//! Time is an argument. An attempt that does not come back counts as failed when its time is over; what it says later is not
//! heard. A success of ordinary work, not that of an attempt, takes the failures back.

use std::time::Duration;

use super::sync::{AtomicU64, Mutex, MutexGuard, Ordering};

/// Settings of the recovery from a device's failures.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RecoveryConfig {
    /// Rest after the first failure; doubled for each one more without a success between: 1 s.
    pub first: Duration,
    /// Longest rest: 60 s.
    pub most: Duration,
    /// Failures without a success between after which the device is not asked again: 6.
    pub failures: u32,
    /// Calls that fail one after the other, without the device being lost, after which it rests: 3.
    pub streak: u32,
    /// How long an attempt may take: 60 s.
    pub patience: Duration,
}

impl Default for RecoveryConfig {
    fn default() -> Self {
        RecoveryConfig {
            first: Duration::from_secs(1),
            most: Duration::from_secs(60),
            failures: 6,
            streak: 3,
            patience: Duration::from_secs(60),
        }
    }
}

impl RecoveryConfig {
    /// Seconds of rest after so many failures.
    fn rest(&self, failures: u32) -> f64 {
        let doubled = self.first.as_secs_f64() * 2f64.powi(failures.saturating_sub(1).min(64) as i32);
        doubled.min(self.most.as_secs_f64())
    }
}

/// Whether a device is used.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum State {
    /// It is.
    Serving,
    /// Not until this time, in seconds.
    Resting {
        /// Seconds of the engine's clock.
        until: f64,
    },
    /// It is being opened again; given up at this time.
    Trying {
        /// Seconds of the engine's clock.
        until: f64,
    },
    /// Not any more in this process.
    Disabled,
}

impl State {
    /// One word.
    pub fn name(&self) -> &'static str {
        match self {
            State::Serving => "serving",
            State::Resting { .. } => "resting",
            State::Trying { .. } => "trying",
            State::Disabled => "disabled",
        }
    }
}

/// How a call failed, for the device's state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Failure {
    /// The device may work again at once.
    Call,
    /// It is lost, or hangs.
    Lost,
    /// Its context is poisoned: only a new process helps.
    Poisoned,
}

/// What happened so far.
struct Inner {
    state: State,
    /// Failures since the last success.
    failures: u32,
    /// Failed calls since the last success.
    streak: u32,
    /// Number of the attempt that counts.
    attempt: u64,
    why: String,
}

/// The state of one device. Shared between threads.
pub(super) struct Recovery {
    config: RecoveryConfig,
    inner: Mutex<Inner>,
    /// 0: serving, with nothing to take back. Looked at by every call.
    troubled: AtomicU64,
}

impl Recovery {
    pub(super) fn new(config: RecoveryConfig) -> Self {
        let inner = Inner { state: State::Serving, failures: 0, streak: 0, attempt: 0, why: String::new() };
        Recovery { config, inner: Mutex::new(inner), troubled: AtomicU64::new(0) }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// Why the device is not used, if it is not.
    pub(super) fn out(&self) -> Option<String> {
        if self.troubled.load(Ordering::Acquire) == 0 {
            return None;
        }
        let i = self.lock();
        (i.state != State::Serving).then(|| i.why.clone())
    }

    /// The state, the failures since the last success, and the last reason.
    pub(super) fn state(&self) -> (State, u32, String) {
        let i = self.lock();
        (i.state, i.failures, i.why.clone())
    }

    /// A call succeeded.
    pub(super) fn succeeded(&self) {
        if self.troubled.load(Ordering::Acquire) == 0 {
            return;
        }
        let mut i = self.lock();
        // A call that began before the device failed says nothing about it now.
        if i.state == State::Serving {
            (i.failures, i.streak) = (0, 0);
            self.troubled.store(0, Ordering::Release);
        }
    }

    /// A call failed. True if the device is not used any more, and was before.
    pub(super) fn failed(&self, now: f64, failure: Failure, why: &str) -> bool {
        let mut i = self.lock();
        self.troubled.store(1, Ordering::Release);
        match failure {
            Failure::Poisoned => {
                let was = i.state == State::Serving;
                i.state = State::Disabled;
                i.why = why.to_string();
                return was;
            }
            Failure::Call => {
                i.streak += 1;
                if i.streak < self.config.streak {
                    return false;
                }
            }
            Failure::Lost => {}
        }
        // Others may have met the same failure; it is one.
        if i.state != State::Serving {
            return false;
        }
        self.rest(&mut i, now, why);
        true
    }

    fn rest(&self, i: &mut Inner, now: f64, why: &str) {
        i.failures += 1;
        i.streak = 0;
        i.why = why.to_string();
        i.state = if i.failures >= self.config.failures {
            State::Disabled
        } else {
            State::Resting { until: now + self.config.rest(i.failures) }
        };
    }

    /// Claims an attempt, if it is time for one: its number. Nobody else gets one until it has ended.
    pub(super) fn claim(&self, now: f64) -> Option<u64> {
        let mut i = self.lock();
        if let State::Trying { until } = i.state
            && now >= until
        {
            self.rest(&mut i, now, "an attempt to open it again did not come back");
        }
        match i.state {
            State::Resting { until } if now >= until => {
                i.attempt += 1;
                i.state = State::Trying { until: now + self.config.patience.as_secs_f64() };
                Some(i.attempt)
            }
            _ => None,
        }
    }

    /// An attempt ended. True if the device serves now; false, too, if the attempt does not count any more. `install` is run
    /// before anyone can see the device serving.
    pub(super) fn ended(&self, attempt: u64, now: f64, result: Result<(), &str>, install: impl FnOnce()) -> bool {
        let mut i = self.lock();
        if i.attempt != attempt || !matches!(i.state, State::Trying { .. }) {
            return false;
        }
        match result {
            Ok(()) => {
                install();
                i.state = State::Serving;
                i.streak = 0;
                true
            }
            Err(why) => {
                self.rest(&mut i, now, why);
                false
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn recovery(failures: u32) -> Recovery {
        Recovery::new(RecoveryConfig { failures, ..RecoveryConfig::default() })
    }

    #[test]
    fn a_lost_device_rests_is_tried_and_serves_again() {
        let r = recovery(6);
        assert!(r.out().is_none());
        assert!(r.failed(10.0, Failure::Lost, "lost"));
        assert!(!r.failed(10.0, Failure::Lost, "another thread met it"), "one failure, not two");
        assert_eq!(r.out().as_deref(), Some("lost"));
        assert_eq!((r.claim(10.9), r.state().0), (None, State::Resting { until: 11.0 }));
        assert_eq!(r.claim(11.0), Some(1));
        assert_eq!(r.claim(11.0), None, "only one thread tries");
        let mut installed = false;
        assert!(r.ended(1, 11.1, Ok(()), || installed = true) && installed);
        assert_eq!((r.out(), r.state().1), (None, 1), "the failure is not forgotten yet");
        r.succeeded();
        assert_eq!((r.state().0, r.state().1), (State::Serving, 0));
    }

    #[test]
    fn rests_double_and_end_for_good() {
        let r = recovery(4);
        let mut now = 0.0;
        r.failed(now, Failure::Lost, "lost");
        for (attempt, rest) in [(1, 1.0), (2, 2.0), (3, 4.0)] {
            assert_eq!(r.claim(now + 0.99 * rest), None);
            now += rest;
            assert_eq!(r.claim(now), Some(attempt));
            assert!(!r.ended(attempt, now, Err("still lost"), || panic!("nothing to install")));
        }
        assert_eq!(r.state().0, State::Disabled);
        assert_eq!(r.claim(1e9), None);
        assert_eq!(r.out().as_deref(), Some("still lost"));
        let config = RecoveryConfig::default();
        assert_eq!([1, 2, 7, 8, 4_000_000].map(|n| config.rest(n)), [1.0, 2.0, 60.0, 60.0, 60.0]);
    }

    /// Without this a device that opens, passes and is lost at the next call would be tried for ever.
    #[test]
    fn a_device_that_only_passes_its_probes_is_disabled_all_the_same() {
        let r = recovery(3);
        let mut now = 0.0;
        for attempt in 1..=2 {
            assert!(r.failed(now, Failure::Lost, "lost"));
            now += 100.0;
            assert_eq!(r.claim(now), Some(attempt));
            assert!(r.ended(attempt, now, Ok(()), || ()));
        }
        assert!(r.failed(now, Failure::Lost, "lost"));
        assert_eq!(r.state().0, State::Disabled);
        // With successes between, each failure is the first.
        let r = recovery(3);
        for attempt in 1..=9 {
            assert!(r.failed(now, Failure::Lost, "lost"));
            now += 1.0;
            assert_eq!(r.claim(now), Some(attempt));
            assert!(r.ended(attempt, now, Ok(()), || ()));
            r.succeeded();
        }
        assert_eq!(r.state().0, State::Serving);
    }

    #[test]
    fn failed_calls_count_in_a_row_only() {
        let r = recovery(6);
        for _ in 0..5 {
            assert!(!r.failed(0.0, Failure::Call, "failed") && !r.failed(0.0, Failure::Call, "failed"));
            assert!(r.out().is_none());
            r.succeeded();
        }
        assert!(!r.failed(0.0, Failure::Call, "failed") && !r.failed(0.0, Failure::Call, "failed"));
        assert!(r.failed(0.0, Failure::Call, "failed thrice"));
        assert_eq!(r.out().as_deref(), Some("failed thrice"));
    }

    #[test]
    fn a_poisoned_context_is_not_tried_again() {
        let r = recovery(6);
        assert!(r.failed(0.0, Failure::Poisoned, "illegal address"));
        assert_eq!((r.state().0, r.claim(1e9)), (State::Disabled, None));
        r.succeeded();
        assert_eq!(r.state().0, State::Disabled, "a call that was under way does not bring it back");
    }

    #[test]
    fn an_attempt_that_hangs_is_given_up() {
        let r = recovery(6);
        r.failed(0.0, Failure::Lost, "lost");
        assert_eq!(r.claim(1.0), Some(1));
        assert_eq!(r.claim(60.9), None);
        assert_eq!(r.claim(61.0), None, "given up, and a rest begins");
        assert_eq!(r.claim(63.0), Some(2));
        assert!(!r.ended(1, 64.0, Ok(()), || panic!("too late")), "the first attempt is not heard any more");
        assert!(r.ended(2, 64.0, Ok(()), || ()));
    }
}
