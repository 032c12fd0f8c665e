//! The record of `calibrate --regret`: what placing calls by a profile costs against the best placement.

use serde::{Deserialize, Serialize};

use super::DType;

/// Regret of a key's held-out shapes. A call's regret is the time of the side chosen over that of the faster side, less 1.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RegretRecord {
    /// Op name.
    pub op: String,
    /// Dtype.
    pub dtype: DType,
    /// Shape family.
    pub family: String,
    /// Device id.
    pub device: String,
    /// Device uid.
    pub uid: String,
    /// Where the operands are.
    pub residency: String,
    /// CPU threads.
    pub threads: u32,
    /// CPU variant.
    pub cpu_variant: String,
    /// The calibration's verdict.
    pub verdict: String,
    /// Unit of sizes, crossing and threshold.
    pub unit: String,
    /// The calibration's crossing.
    pub crossing: Option<u64>,
    /// The calibration's threshold.
    pub threshold: Option<u64>,
    /// Processes (or rounds in one process) that measured each shape.
    pub processes: u64,
    /// The shapes, in order of size.
    pub shapes: Vec<RegretShape>,
    /// What each way to choose costs; the profile's own (`auto`) first.
    pub policies: Vec<RegretPolicy>,
    /// The sweep of many sizes, each decided for itself.
    pub dense: RegretDense,
    /// Shapes and sizes that the budget left out.
    pub left_out: u64,
    /// `ok`, or the constant choice (`always-cpu`, `always-gpu`) that is better than `auto` by more than chance and 1 %.
    pub finding: String,
}

/// A held-out shape.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RegretShape {
    /// `1024x512x64`.
    pub shape_text: String,
    /// Size in the op's unit.
    pub size: u64,
    /// Seconds on the CPU, geometric mean of the processes' medians.
    pub cpu_s: f64,
    /// Seconds on the device.
    pub gpu_s: f64,
    /// What the profile predicts of the CPU.
    pub predicted_cpu_s: Option<f64>,
    /// What the profile predicts of the device.
    pub predicted_gpu_s: Option<f64>,
    /// True if the profile sends it to the device.
    pub gpu: bool,
}

/// What a way to choose costs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RegretPolicy {
    /// `auto`, `threshold`, `always-cpu`, `always-gpu`, `default`, `gpu-blob`, `threshold x1.5`.
    pub name: String,
    /// Mean regret of all shapes.
    pub mean: f64,
    /// Mean regret of the shapes within a factor of 4 of the crossing, if there is one and such shapes are.
    pub near: Option<f64>,
    /// Largest regret of the shapes whose size lies outside [crossing, threshold].
    pub worst: f64,
    /// Time of all shapes together over that of the best choices, less 1.
    pub time: f64,
}

/// A dense sweep.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RegretDense {
    /// Sizes measured.
    pub sizes: u64,
    /// The smallest of them.
    pub smallest: Option<u64>,
    /// The smallest of them from which on the device is faster at every larger one.
    pub crossing: Option<u64>,
    /// Calls that were timed for it.
    pub calls: u64,
}
