//! What a soak does, and what every scenario shares: the meter, the lanes, the clock.
//!
//! A scenario is a row of [`SCENARIOS`]: its name, its floor of work, its function. It works until [`Ctx::running`] says
//! no, reports through the [`Meter`], and has given everything back when it returns.

mod alloc;
mod astray;
mod burn;
mod churn;
mod concurrent;
mod engines;
mod fragmentation;
mod known;
mod loss;
mod memory;
mod meter;
mod oom;
pub mod reference;
mod soak;
mod storm;
#[cfg(test)]
mod testing;
mod train;
mod transfer;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::base::{Code, DeviceInfo, Error, Result};
use crate::device::{Device, Queue};
use crate::engine::{KernelCache, Runner};

pub(super) use astray::victim;
pub use meter::{Counts, Lane, Meter};

/// Part of a phase's seconds that is tested whatever the references took.
const LEAST_TESTED: f64 = 0.6;

/// One scenario.
#[derive(Debug)]
pub struct Scenario {
    /// Name in `--scenario` and records.
    pub name: &'static str,
    /// One sentence.
    pub doc: &'static str,
    /// Seconds that a phase needs at least to mean something, on a software device as well.
    pub least_seconds: f64,
    /// Cycles that a phase of so many seconds with so many threads must at least reach to pass. Deliberately far below
    /// what any usable device does: it catches standstill, not slowness.
    pub floor: fn(f64, u32) -> u64,
    /// Threads that work at once, given what was asked for.
    pub lanes: fn(u32) -> u32,
    /// Whether it takes all memory of the device's card, so that others on the card have none meanwhile.
    pub fills: fn(&DeviceInfo) -> bool,
    /// Does it.
    pub run: fn(&Ctx<'_>) -> Result<()>,
}

/// So many cycles per second, and these at least.
macro_rules! floor {
    ($per_second:expr, $least:expr) => {
        |seconds, _| ($per_second * seconds) as u64 + $least
    };
}

/// All scenarios, the most important first; they run in this order.
pub static SCENARIOS: &[Scenario] = &[
    Scenario {
        name: "soak",
        doc: "A mix over the ops, dtypes and sizes of the table and training steps of growing depth; every result is checked.",
        least_seconds: 2.0,
        floor: floor!(10.0, 10),
        lanes: |_| 1,
        fills: |_| false,
        run: soak::run,
    },
    Scenario {
        name: "burn",
        doc: "Large matrix products without a pause, each equal to the bit to a result that the oracle has judged.",
        least_seconds: 2.0,
        floor: floor!(0.5, 2),
        lanes: |_| 1,
        fills: |_| false,
        run: burn::run,
    },
    Scenario {
        name: "memory",
        doc: "Patterns over a part of the device's memory, read back at once, in random order and a pass later.",
        least_seconds: 2.0,
        floor: floor!(1.0, 4),
        lanes: |_| 1,
        fills: |_| false,
        run: memory::run,
    },
    Scenario {
        name: "concurrent",
        doc: "Many threads share one device, its queues and an engine that is replaced meanwhile; every result is checked, a stuck thread is a hang.",
        least_seconds: 2.0,
        floor: |seconds, threads| ((2.0 * seconds) as u64).max(u64::from(threads)),
        lanes: |threads| threads,
        fills: |_| false,
        run: concurrent::run,
    },
    Scenario {
        name: "transfer-integrity",
        doc: "Patterns of odd sizes at odd offsets through every kind of memory that there is; nothing beside them may change.",
        least_seconds: 1.0,
        floor: floor!(2.0, 4),
        lanes: |_| 1,
        fills: |_| false,
        run: transfer::run,
    },
    Scenario {
        name: "alloc-cycle",
        doc: "Allocate, fill, spot-check and free buffers of random sizes, raw and pooled; the ledger must return to its baseline.",
        least_seconds: 1.0,
        floor: floor!(100.0, 10),
        lanes: |_| 1,
        fills: |_| false,
        run: alloc::run,
    },
    Scenario {
        name: "device-loss",
        doc: "The device is lost at every kind of call: results stay right, it is opened again, gives a known answer and is used.",
        least_seconds: 2.0,
        floor: floor!(0.2, 1),
        lanes: |_| 1,
        fills: |_| false,
        run: loss::run,
    },
    Scenario {
        name: "oom",
        doc: "Allocate until memory runs out, work on meanwhile, release half: what is held stays as it was and calls run there again.",
        least_seconds: 2.0,
        floor: floor!(0.2, 1),
        lanes: |_| 1,
        fills: oom::fills,
        run: oom::run,
    },
    Scenario {
        name: "churn",
        doc: "Allocate, launch and free without waiting; what the freed buffers' work made is checked at the end of each batch.",
        least_seconds: 1.0,
        floor: floor!(1.0, 1),
        lanes: |_| 1,
        fills: |_| false,
        run: churn::run,
    },
    Scenario {
        name: "launch-storm",
        doc: "Hundreds of tiny launches in a row; the result tells whether each of them ran once.",
        least_seconds: 1.0,
        floor: floor!(2.0, 2),
        lanes: |_| 1,
        fills: |_| false,
        run: storm::run,
    },
    Scenario {
        name: "fragmentation",
        doc: "Thousands of sizes through one pool: its cap holds, its counts fit the ledger, contents stay apart.",
        least_seconds: 1.0,
        floor: floor!(50.0, 10),
        lanes: |_| 1,
        fills: |_| false,
        run: fragmentation::run,
    },
    Scenario {
        name: "engine-cycle",
        doc: "Open the device, build an engine, use it, drop it: nothing of it stays.",
        least_seconds: 2.0,
        floor: floor!(0.2, 1),
        lanes: |_| 1,
        fills: |_| false,
        run: engines::cycle,
    },
    Scenario {
        name: "pulse",
        doc: "Load and idle in turns of changing length; the first result after each edge is checked as all others.",
        least_seconds: 2.0,
        floor: floor!(1.0, 4),
        lanes: |_| 1,
        fills: |_| false,
        run: burn::pulse,
    },
    Scenario {
        name: "error-storm",
        doc: "Wrong calls in a row, each of which must give its own error; then a right one, which must work.",
        least_seconds: 1.0,
        floor: floor!(1.0, 1),
        lanes: |_| 1,
        fills: |_| false,
        run: engines::errors,
    },
];

/// The scenario of that name.
pub fn find(name: &str) -> Result<&'static Scenario> {
    SCENARIOS.iter().find(|s| s.name == name).ok_or_else(|| {
        let known: Vec<_> = SCENARIOS.iter().map(|s| s.name).collect();
        Error::new(Code::BadArgument, format!("unknown scenario '{name}'; known: {}", known.join(" ")))
    })
}

/// A planted fault: the process must die as a driver would kill it, without unwinding.
fn die() -> ! {
    std::process::abort();
}

/// Opens the device of a phase once more.
pub type Open = Arc<dyn Fn() -> Result<Arc<dyn Device>> + Send + Sync>;

/// What a scenario works with.
pub struct Ctx<'a> {
    /// The device; every object is made through it and given back.
    pub device: Arc<dyn Device>,
    /// Opens it once more, beside the one that is open; gives the same one where it cannot.
    pub open: Open,
    /// Seconds from [`Ctx::start`] on that the phase may take, references included.
    pub seconds: f64,
    /// Threads for scenarios that use many.
    pub threads: u32,
    /// Devices of the run that are the same card, this one included: what one of them takes of its memory the others lack.
    pub sharing: u32,
    /// Seed of everything random.
    pub seed: u64,
    /// When the phase began.
    pub start: Instant,
    /// Compiled kernels that earlier processes kept. None is added: fetching them is work that a soak would take for the
    /// device's, and memory that it would take for a leak.
    pub kernels: KernelCache,
    /// The program whose worker may lose the device for real, in a process of its own; `None` where that is not wanted.
    pub victim: Option<PathBuf>,
    /// Where work is reported.
    pub meter: &'a Meter<'a>,
}

impl std::fmt::Debug for Ctx<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Ctx({} for {} s)", self.device.info().id, self.seconds)
    }
}

impl Ctx<'_> {
    /// False once the time is over, the parent asked to stop, or the parent is gone. A slow machine that spent the time
    /// on references goes on: a phase is never all preparation.
    pub fn running(&self) -> bool {
        let late = self.elapsed() >= self.seconds && self.meter.tested_seconds() >= LEAST_TESTED * self.seconds;
        !self.meter.stop.raised() && !late
    }
    /// Longest wait for the device.
    pub fn deadline(&self) -> Duration {
        self.meter.deadline
    }
    /// A runner of the phase's device.
    pub fn runner(&self) -> Runner {
        Runner::new(Arc::clone(&self.device)).keeping(self.kernels.clone())
    }
    /// Counts what became of a runner's programs.
    pub fn count_kernels(&self, runner: &Runner) {
        let k = runner.kernels();
        for (name, n) in [
            ("kernel_builds", k.builds),
            ("kernel_loads", k.loads),
            ("kernel_hits", k.hits),
            ("kernels_refused", k.refused),
        ] {
            self.meter.count(name, n);
        }
    }
    /// Repeats `cycle` on a queue of `runner` while there is time; it says how many bytes of results it made and checked. One
    /// that fails is counted and costs its queue; a lost device ends the phase.
    fn repeat(&self, runner: &Runner, mut cycle: impl FnMut(&mut dyn Queue, u64) -> Result<(u64, u64)>) -> Result<()> {
        self.repeat_some(runner, |q, round| cycle(q, round).map(Some))
    }
    /// The same with cycles that may come to nothing: those are not counted.
    fn repeat_some(
        &self,
        runner: &Runner,
        mut cycle: impl FnMut(&mut dyn Queue, u64) -> Result<Option<(u64, u64)>>,
    ) -> Result<()> {
        let mut lease = runner.lease()?;
        let mut round = 0;
        self.meter.testing();
        while self.running() {
            let from = Instant::now();
            match lease.queue().and_then(|q| cycle(q, round)) {
                Ok(Some((made, checked))) => self.meter.cycle(0, made, checked, from.elapsed().as_secs_f64()),
                Ok(None) => {}
                Err(e) => {
                    lease.discard();
                    self.meter.survive(e)?;
                    drop(lease);
                    lease = runner.lease()?;
                }
            }
            round += 1;
        }
        Ok(())
    }
    /// Seconds since the phase began.
    pub fn elapsed(&self) -> f64 {
        self.start.elapsed().as_secs_f64()
    }
}
