//! The record of `calibrate --workload`: what a recorded program gains from a GPU.

use serde::{Deserialize, Serialize};

use super::{Attrs, DType};

/// The answer of `calibrate --workload`: a program's time as it ran, as the profile places it, and all on a GPU.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct WorkloadRecord {
    /// Calls in all.
    pub calls: u64,
    /// Shapes that were timed themselves.
    pub measured: u64,
    /// Shapes whose times the calibrated curves predict.
    pub predicted: u64,
    /// Shapes of which nothing is known; they are part of no sum.
    pub unknown: u64,
    /// Calls that no GPU takes, or gets right.
    pub refused: u64,
    /// Calls that the profile sends to a GPU.
    pub on_device: u64,
    /// Processes (or rounds) that timed the shapes.
    pub processes: u64,
    /// CPU threads.
    pub threads: u32,
    /// Seconds as the program ran when it was recorded.
    pub now_s: Option<f64>,
    /// 95 % interval for another process.
    pub now_ci_s: Option<[f64; 2]>,
    /// Seconds with every call on the CPU.
    pub cpu_s: Option<f64>,
    /// 95 % interval.
    pub cpu_ci_s: Option<[f64; 2]>,
    /// Seconds as the profile places the calls.
    pub routed_s: Option<f64>,
    /// 95 % interval.
    pub routed_ci_s: Option<[f64; 2]>,
    /// Seconds with every call on the best GPU that takes it.
    pub gpu_s: Option<f64>,
    /// 95 % interval.
    pub gpu_ci_s: Option<[f64; 2]>,
    /// Id of that GPU; empty without one.
    pub gpu: String,
    /// Seconds with each shape where it is fastest, by the same times: what no placement can beat.
    pub best_s: Option<f64>,
    /// Now over routed.
    pub gain: Option<f64>,
    /// 95 % interval.
    pub gain_ci: Option<[f64; 2]>,
    /// `yes | no | unclear`.
    pub worth: String,
    /// Why.
    pub reason: String,
    /// The shapes, heaviest first.
    pub rows: Vec<WorkloadCall>,
}

impl WorkloadRecord {
    /// What a way of placing costs beyond the best one, as a share of it: regret, weighted by time.
    pub fn regret(&self, seconds: Option<f64>) -> Option<f64> {
        let best = self.best_s.filter(|b| *b > 0.0)?;
        seconds.map(|s| s / best - 1.0)
    }
}

/// One shape of a workload.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct WorkloadCall {
    /// Op name.
    pub op: String,
    /// Dtype.
    pub dtype: DType,
    /// Sizes: `m64,n64,k64`.
    pub shape_text: String,
    /// Attributes that differ from their defaults.
    pub attrs: Attrs,
    /// `always` or `resident`.
    pub residency: String,
    /// Calls.
    pub count: u64,
    /// How many of them a GPU computed when they were recorded.
    pub gpu: u64,
    /// `measured | predicted | unknown`.
    pub basis: String,
    /// Seconds of one call on the CPU.
    pub cpu_s: Option<f64>,
    /// Seconds of one call on the fastest device.
    pub device_s: Option<f64>,
    /// Id of the device that the profile sends it to.
    pub goes: String,
    /// True if a device's result was wrong.
    pub wrong: bool,
    /// Why it goes there.
    pub why: String,
}
