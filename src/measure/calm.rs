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
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::Builder;
use std::time::Instant;

use crate::base::{os, stats};

/// Numbers that are searched: they fit into a core's first cache, beside what is measured.
const NUMBERS: u32 = 4096;

/// Times that they are searched, some microseconds in all.
const PASSES: usize = 4;

/// Readings that say how fast a processor is that nothing disturbs: those of some seconds.
const RECENT: usize = 256;

/// The share of them that are as fast at least, even in an hour in which most are disturbed. What is slow for good, as where clocks
/// were lowered, is no disturbance.
const FAST: f64 = 0.05;

/// So many times as slow is disturbed. Readings of a processor that is left alone differ by a hundredth.
const DISTURBED: f64 = 1.1;

/// A processor's readings of late.
#[derive(Clone, Debug, Default)]
struct Readings(VecDeque<f64>);

impl Readings {
    /// Whether something disturbs a processor that took so many seconds.
    fn judge(&mut self, seconds: f64) -> bool {
        if self.0.len() == RECENT {
            self.0.pop_front();
        }
        self.0.push_back(seconds);
        let sorted = stats::sorted(self.0.make_contiguous());
        seconds > DISTURBED * stats::quantile(&sorted, FAST)
    }
}

/// Reads two processors: that which the calling thread runs on, and another one, if the program may run on several. A device that
/// is the processor itself has threads on all of them.
#[derive(Debug)]
pub struct Calm {
    numbers: Arc<[f32]>,
    own: Readings,
    other: Option<(Other, Readings)>,
}

impl Default for Calm {
    /// A thread of its own waits for the readings of the other processor; without one only the own is read.
    fn default() -> Self {
        // Scattered, so that a new largest one is rare after the first few (Knuth's multiplicative hash).
        let number = |i: u32| (i.wrapping_mul(2_654_435_761) >> 8) as f32;
        let numbers: Arc<[f32]> = (0..NUMBERS).map(number).collect();
        let several = os::allowed_cpus().len() > 1;
        let other = several.then(|| Other::new(Arc::clone(&numbers))).flatten();
        Calm { numbers, own: Readings::default(), other: other.map(|o| (o, Readings::default())) }
    }
}

impl Calm {
    /// The share of the processors read now that something disturbs: 0, 0.5 or 1.
    pub fn disturbed(&mut self) -> f64 {
        let asked = self.other.as_ref().is_some_and(|(other, _)| other.ask());
        let own = self.own.judge(search(&self.numbers));
        let other =
            self.other.as_mut().filter(|_| asked).and_then(|(other, readings)| Some(readings.judge(other.told()?)));
        let share = |disturbed: bool| f64::from(u8::from(disturbed));
        other.map_or(share(own), |other| (share(own) + share(other)) / 2.0)
    }
}

/// Seconds of the search.
fn search(numbers: &[f32]) -> f64 {
    let begin = Instant::now();
    for _ in 0..PASSES {
        let numbers = black_box(numbers);
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

/// A thread that searches at the same time, and so on another processor. It ends with this.
#[derive(Debug)]
struct Other {
    ask: Sender<()>,
    told: Receiver<f64>,
}

impl Other {
    /// `None` where no thread can be started.
    fn new(numbers: Arc<[f32]>) -> Option<Other> {
        let ((ask, asked), (tell, told)) = (channel(), channel());
        let search_on = move || while asked.recv().is_ok() && tell.send(search(&numbers)).is_ok() {};
        Builder::new().name("gpuctl-calm".into()).spawn(search_on).ok()?;
        Some(Other { ask, told })
    }

    fn ask(&self) -> bool {
        self.ask.send(()).is_ok()
    }

    fn told(&self) -> Option<f64> {
        self.told.recv().ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// So many of these readings are disturbed.
    fn count(readings: impl Iterator<Item = f64>) -> usize {
        let mut known = Readings::default();
        readings.filter(|seconds| known.judge(*seconds)).count()
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
        // Most of the time, as in some hours.
        let found = count((0..1000).map(|i| near(i) * if i % 10 == 0 { 1.0 } else { 1.4 }));
        assert_eq!(found, 900);
        // Nor is anything disturbed where nearly everything is, but for the first few.
        let found = count((0..1000).map(|i| near(i) * if i % 50 == 0 { 1.0 } else { 1.4 }));
        assert!(found <= 40, "{found}");
        assert_eq!(count([0.0, f64::NAN, 0.0].into_iter()), 0, "a clock that stands still");
    }

    #[test]
    fn a_reading_takes_time() {
        // Anything faster is a loop that was optimized away, anything slower a broken one.
        let mut calm = Calm::default();
        let seconds = (0..20).map(|_| search(&calm.numbers)).fold(f64::INFINITY, f64::min);
        assert!((1e-6..1e-2).contains(&seconds), "{seconds}");
        assert_eq!(calm.other.is_some(), os::allowed_cpus().len() > 1, "another processor");
        let shares: Vec<f64> = (0..20).map(|_| calm.disturbed()).collect();
        assert!(shares.iter().all(|s| [0.0, 0.5, 1.0].contains(s)), "{shares:?}");
        assert!(calm.own.0.len() == 20 && calm.other.is_none_or(|(_, known)| known.0.len() == 20), "both are read");
    }
}
