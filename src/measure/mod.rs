//! Honest timing: warm-up, batches that drown the clock's step, interleaved samples, a stop rule.
//!
//! Decisions are pure functions of samples ([`stop`]); [`sampler`] only runs things and reads the subjects' clock, which
//! is the simulator's for simulated devices.

mod awake;
pub mod calm;
pub mod common;
pub mod compare;
pub mod crossing;
mod cubic;
pub mod noise;
pub mod processes;
pub mod reference;
pub mod residency;
pub mod sampler;
pub mod state;
pub mod stop;
pub mod subject;

pub use awake::Awake;
pub use residency::{Cache, Residency};
pub use sampler::{PHASES, SAMPLE, Series, Subject, sample, sample_between};
pub use stop::{REGION_S, StopRule, Verdict};
pub use subject::{OpSubject, Sweep, kernel_again, phases};
