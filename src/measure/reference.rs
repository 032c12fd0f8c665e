//! How fast the machine itself is, told by two fixed loops that no change of ours makes faster or slower.
//!
//! Other programs on the same host, a lower clock and a hypervisor that takes cores away make every measurement slower. A
//! loop of arithmetic sees clocks, stolen cores and busy sibling threads, a copy between buffers larger than a core's own
//! caches sees others' traffic. Each runs on all threads at once, as kernels do.

use std::hint::black_box;
use std::sync::Barrier;
use std::time::Instant;

use crate::base::stats;

/// Threads beyond this add nothing but time.
const MOST_THREADS: usize = 16;

/// Bytes of each of a thread's two buffers.
const BUFFER: usize = 4 << 20;

/// Rounds of the arithmetic loop in one reading, about 1 ms.
const ROUNDS: usize = 150_000;

/// Numbers in flight: enough for the units of any core.
const LANES: usize = 32;

/// Readings whose median is the speed.
const READINGS: usize = 3;

/// Speeds that differ by more are another machine's.
const STEADY: f64 = 1.1;

/// Speeds of the machine, summed over its threads.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Speeds {
    /// Multiplications with additions a second.
    pub arithmetic: f64,
    /// Bytes copied a second.
    pub memory: f64,
}

impl Speeds {
    /// Geometric mean of two readings.
    pub fn between(self, other: Speeds) -> Speeds {
        let mean = |a: f64, b: f64| (a * b).sqrt();
        Speeds { arithmetic: mean(self.arithmetic, other.arithmetic), memory: mean(self.memory, other.memory) }
    }

    /// By how much the speed that changed more has changed, as a factor of at least 1; infinite where a speed is no
    /// positive number.
    pub fn change(self, other: Speeds) -> f64 {
        let known = [self.arithmetic, self.memory, other.arithmetic, other.memory].iter().all(|v| *v > 0.0);
        let of = |a: f64, b: f64| (a / b).max(b / a);
        let most = of(self.arithmetic, other.arithmetic).max(of(self.memory, other.memory));
        if known { most } else { f64::INFINITY }
    }

    /// True if the machine was another one before and after, so that what lay between means little.
    pub fn drifted(self, other: Speeds) -> bool {
        self.change(other) > STEADY
    }
}

/// The loops with their buffers.
#[derive(Debug)]
pub struct Reference {
    buffers: Vec<[Vec<u64>; 2]>,
}

impl Reference {
    /// For as many threads as the measured kernels use.
    pub fn new(threads: usize) -> Self {
        let words = BUFFER / size_of::<u64>();
        let buffers = || [vec![1u64; words], vec![2u64; words]];
        Reference { buffers: (0..threads.clamp(1, MOST_THREADS)).map(|_| buffers()).collect() }
    }

    /// The machine's speeds now: some milliseconds.
    pub fn read(&mut self) -> Speeds {
        let readings: Vec<Speeds> = (0..READINGS).map(|_| self.once()).collect();
        let median = |of: fn(&Speeds) -> f64| stats::median(&readings.iter().map(of).collect::<Vec<_>>());
        Speeds { arithmetic: median(|s| s.arithmetic), memory: median(|s| s.memory) }
    }

    fn once(&mut self) -> Speeds {
        let all = Barrier::new(self.buffers.len());
        let of_thread = |buffers: &mut [Vec<u64>; 2]| {
            all.wait();
            let begin = Instant::now();
            arithmetic();
            let between = begin.elapsed().as_secs_f64();
            all.wait();
            let begin = Instant::now();
            let [from, to] = buffers;
            to.copy_from_slice(black_box(from));
            black_box(to);
            let copied = begin.elapsed().as_secs_f64();
            Speeds { arithmetic: (ROUNDS * LANES) as f64 / between, memory: BUFFER as f64 / copied }
        };
        let speeds: Vec<Speeds> = std::thread::scope(|scope| {
            let threads: Vec<_> = self.buffers.iter_mut().map(|b| scope.spawn(|| of_thread(b))).collect();
            threads.into_iter().filter_map(|t| t.join().ok()).collect()
        });
        let sum = |of: fn(&Speeds) -> f64| speeds.iter().map(of).sum();
        Speeds { arithmetic: sum(|s| s.arithmetic), memory: sum(|s| s.memory) }
    }
}

fn arithmetic() {
    let mut lanes = [1.0f32; LANES];
    for _ in 0..ROUNDS {
        for lane in &mut lanes {
            *lane = *lane * 0.999 + 0.5;
        }
        // Without it the rounds would be done once, as they give the same in the end.
        lanes = black_box(lanes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn speeds_are_told_for_any_number_of_threads() {
        for threads in [0, 1, 3, 10_000] {
            let mut reference = Reference::new(threads);
            assert_eq!(reference.buffers.len(), threads.clamp(1, 16));
            if threads < 10 {
                let s = reference.read();
                // A megahertz and a megabyte a second: anything slower is a broken loop, anything of a petahertz, too.
                assert!((1e6..1e15).contains(&s.arithmetic) && (1e6..1e15).contains(&s.memory), "{s:?}");
            }
        }
    }

    #[test]
    fn drift_is_a_change_of_either_speed() {
        let s = |arithmetic, memory| Speeds { arithmetic, memory };
        let base = s(1e9, 1e10);
        assert!(!base.drifted(s(1.05e9, 0.95e10)));
        assert!(base.drifted(s(0.85e9, 1e10)) && s(0.85e9, 1e10).drifted(base));
        assert!(base.drifted(s(1e9, 1.2e10)));
        assert_eq!(base.change(base), 1.0);
        for broken in [s(0.0, 1e10), s(1e9, f64::NAN), s(f64::NAN, f64::NAN), s(-1.0, 1e10)] {
            assert!(base.drifted(broken), "{broken:?}");
        }
        assert_eq!(base.between(s(4e9, 1e10)), s(2e9, 1e10));
    }
}
