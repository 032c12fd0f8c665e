//! Time as an argument: the real clock, and a virtual one that the simulator advances.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// A monotonic clock. Measuring, budgets, back-off and the simulator share one.
pub trait Clock: Send + Sync {
    /// Seconds since an arbitrary start; never decreases.
    fn now(&self) -> f64;
    /// Waits, or lets the virtual time pass.
    fn sleep(&self, d: Duration);
    /// Waits without giving the processor away, or lets the virtual time pass: a processor that was idle is another machine
    /// (docs/measuring.md). For fractions of a second.
    fn stay(&self, d: Duration) {
        self.sleep(d);
    }
    /// True when the time is simulated.
    fn is_virtual(&self) -> bool {
        false
    }
}

/// `std::time::Instant`.
#[derive(Debug)]
pub struct RealClock(Instant);

impl RealClock {
    /// A clock that starts at zero now.
    pub fn new() -> Self {
        RealClock(Instant::now())
    }
}

impl Default for RealClock {
    fn default() -> Self {
        Self::new()
    }
}

impl Clock for RealClock {
    fn now(&self) -> f64 {
        self.0.elapsed().as_secs_f64()
    }
    fn sleep(&self, d: Duration) {
        std::thread::sleep(d);
    }
    fn stay(&self, d: Duration) {
        let begin = Instant::now();
        while begin.elapsed() < d {
            std::hint::spin_loop();
        }
    }
}

/// A clock that only moves when told to; resolution one picosecond.
#[derive(Debug, Default)]
pub struct VirtualClock(AtomicU64);

impl VirtualClock {
    /// A virtual clock at zero.
    pub fn new() -> Self {
        Self::default()
    }
    /// Lets `seconds` pass; negative amounts are ignored.
    pub fn advance(&self, seconds: f64) {
        if seconds > 0.0 {
            self.0.fetch_add((seconds * 1e12) as u64, Ordering::SeqCst);
        }
    }
    /// Moves to `seconds` if that lies ahead.
    pub fn advance_to(&self, seconds: f64) {
        self.0.fetch_max((seconds * 1e12) as u64, Ordering::SeqCst);
    }
}

impl Clock for VirtualClock {
    fn now(&self) -> f64 {
        self.0.load(Ordering::SeqCst) as f64 * 1e-12
    }
    fn sleep(&self, d: Duration) {
        self.advance(d.as_secs_f64());
    }
    fn is_virtual(&self) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn staying_lasts_as_long_as_sleeping() {
        let clock = RealClock::new();
        let begin = clock.now();
        clock.stay(Duration::from_millis(2));
        assert!(clock.now() - begin >= 0.002);
        let clock = VirtualClock::new();
        clock.stay(Duration::from_millis(2));
        assert_eq!(clock.now(), 0.002);
    }
}
