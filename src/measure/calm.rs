//! Whether something else slows a processor down while a program measures on it.
//!
//! A search for the largest of some numbers, which no change of ours makes faster or slower, issues as many plain instructions as
//! a core can. On one virtual machine it took up to twice as long, in episodes of some hundredths or tenths of a second, and so did
//! kernels that are not vectorized; a loop of vectorized arithmetic hardly did (docs/measuring.md): a neighbour on the core's second
//! thread would do that, which nobody here can see. Whoever times a call reads it before and after.
//!
//! Not here: how fast a machine is, of two that were measured on ([`super::reference`]).

use std::collections::VecDeque;
use std::hint::black_box;
use std::time::Instant;

use crate::base::stats;

/// Numbers that are searched: they fit into a core's first cache, beside what is measured.
const NUMBERS: u32 = 4096;

/// Times that they are searched, some microseconds in all.
const PASSES: usize = 4;

/// Readings that say how fast a processor is that nothing disturbs.
const RECENT: usize = 64;

/// The share of them that are as fast: what is slow for good, as where clocks were lowered, is no disturbance.
const FAST: f64 = 0.25;

/// So many times as slow is disturbed. Readings of a processor that is left alone differ by a hundredth.
pub const DISTURBED: f64 = 1.1;

/// A processor's readings.
#[derive(Clone, Debug)]
pub struct Calm {
    numbers: Vec<f32>,
    recent: VecDeque<f64>,
}

impl Default for Calm {
    fn default() -> Self {
        // Scattered, so that a new largest one is rare after the first few (Knuth's multiplicative hash).
        let number = |i: u32| (i.wrapping_mul(2_654_435_761) >> 8) as f32;
        Calm { numbers: (0..NUMBERS).map(number).collect(), recent: VecDeque::new() }
    }
}

impl Calm {
    /// Reads the processor that this thread runs on now: whether something disturbs it, and [`Calm::seconds`].
    pub fn read(&mut self) -> (bool, f64) {
        let seconds = self.seconds();
        (self.judge(seconds), seconds)
    }

    /// Seconds of the search, some microseconds: what a processor that is disturbed takes longer for.
    pub fn seconds(&self) -> f64 {
        let begin = Instant::now();
        for _ in 0..PASSES {
            let numbers = black_box(&self.numbers[..]);
            let mut largest = 0;
            for i in 1..numbers.len() {
                if numbers[i] > numbers[largest] {
                    largest = i;
                }
            }
            black_box(largest);
        }
        begin.elapsed().as_secs_f64()
    }

    /// The same of a reading, in seconds.
    fn judge(&mut self, seconds: f64) -> bool {
        if self.recent.len() == RECENT {
            self.recent.pop_front();
        }
        self.recent.push_back(seconds);
        let sorted = stats::sorted(self.recent.make_contiguous());
        seconds > DISTURBED * stats::quantile(&sorted, FAST)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// So many of these readings are disturbed.
    fn count(readings: impl Iterator<Item = f64>) -> usize {
        let mut calm = Calm::default();
        readings.filter(|seconds| calm.judge(*seconds)).count()
    }

    #[test]
    fn episodes_are_disturbed_and_what_stays_slow_is_not() {
        let near = |i: usize| 20e-6 * (1.0 + 0.01 * (i % 3) as f64);
        assert_eq!(count((0..500).map(near)), 0, "left alone");
        // A quarter of the time, as on a virtual machine with a busy neighbour: 25 of each hundred, and from the start.
        let episodes = |i: usize| near(i) * if i % 100 < 25 { 1.4 } else { 1.0 };
        let found = count((0..1000).map(episodes));
        assert!((225..=250).contains(&found), "{found}: the first episode has nothing to be held against");
        // Clocks that are lowered for good.
        let lowered = |i: usize| near(i) * if i < 500 { 1.0 } else { 1.4 };
        let found = count((0..1000).map(lowered));
        assert!((1..=RECENT).contains(&found), "{found}: soon it is how the machine is");
        // Nor is anything disturbed where nearly everything is, but for the first few.
        let found = count((0..500).map(|i| near(i) * if i % 10 == 0 { 1.0 } else { 1.4 }));
        assert!(found <= 3, "{found}");
        assert_eq!(count([0.0, f64::NAN, 0.0].into_iter()), 0, "a clock that stands still");
    }

    #[test]
    fn a_reading_takes_time() {
        // Anything faster is a loop that was optimized away, anything slower a broken one.
        let calm = Calm::default();
        let seconds = (0..20).map(|_| calm.seconds()).fold(f64::INFINITY, f64::min);
        assert!((1e-6..1e-2).contains(&seconds), "{seconds}");
    }
}
