//! Records of what devices reach at most, and of how near a row comes to it.

use serde::{Deserialize, Serialize};

use super::dtype::DType;

/// What bounds a row of `bench`. Shares are of 1.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Analysis {
    /// The row's rate over the nearest measured ceiling (`devices --measure`); `None` without one.
    pub ceiling_fraction: Option<f64>,
    /// That ceiling: `f32 FMA`, `f64 FMA`, `memory`, `link to the device`, `link to the host`; empty without one.
    pub ceiling: String,
    /// Share of copies between host and device in a call; 0 where operands are resident.
    pub transfer_fraction: Option<f64>,
    /// Share of submitting and waiting in a call.
    pub launch_fraction: Option<f64>,
    /// `LaunchOverhead`, `MemoryBandwidth`, `Compute`, `Transfer`, `Occupancy` or `Unknown`; empty without a measurement.
    pub bottleneck: String,
    /// What would help: `None`, `BatchOperations`, `UseCpu`, `OptimizeTiling`, `IncreaseOccupancy`, `Vectorize` or `AutoTune`;
    /// empty without a measurement.
    pub action: String,
    /// The same as a sentence with the figures behind it.
    pub advice: String,
    /// The CPU kernel that the row is compared with: its variant, instruction set and threads.
    pub baseline: String,
    /// `hot` (calls one after the other) or `cold` (caches swept before each call).
    pub cache: String,
}

/// One ceiling of a device.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CeilingRecord {
    /// Device id.
    pub device: String,
    /// Device uid.
    pub uid: String,
    /// `copy`, `read` and `write` (by kernels), `d2d` (by the API), `fma`, `h2d`, `d2h`, `launch` (one, and its wait), `launch-queued`
    /// (one of many).
    pub what: String,
    /// Dtype of the arithmetic; `None` where it does not matter.
    pub dtype: Option<DType>,
    /// Bytes touched by one call: all operands.
    pub bytes: u64,
    /// Kind of the host's memory, of `h2d` and `d2h`; else empty.
    pub memory: String,
    /// `GB/s`, `GFLOP/s` or `s`.
    pub unit: String,
    /// Median; `None` where it could not be measured.
    pub value: Option<f64>,
    /// 95 % interval of it, for another process where there were several.
    pub ci: Option<[f64; 2]>,
    /// Theoretical peak in the same unit, where one is known.
    pub theoretical: Option<f64>,
    /// Number of samples.
    pub samples: u64,
    /// Number of processes.
    pub processes: u64,
    /// Kernel variant.
    pub variant: String,
    /// `ok`, `suspect` (above what is possible), `unsupported`, `skipped` or `failed`.
    pub status: super::record::Status,
    /// Why it is not `ok`.
    pub reason: String,
}

/// The self-calibration of a device's sampling: equal things compared, and a known ratio.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct NoiseRecord {
    /// Device id.
    pub device: String,
    /// Device uid.
    pub uid: String,
    /// Time of a thing over the time of the same thing.
    pub null_ratio: f64,
    /// 95 % interval of it.
    pub null_ci: [f64; 2],
    /// Largest relative difference that the interval holds: what two equal things differ by here.
    pub floor: f64,
    /// How many times as much work the second thing did.
    pub known: f64,
    /// The ratio found.
    pub known_ratio: f64,
    /// 95 % interval of it.
    pub known_ci: [f64; 2],
    /// Pairs of samples.
    pub pairs: u64,
    /// True if the known ratio was found within the floor and the interval.
    pub sound: bool,
    /// What is wrong where it is not.
    pub reason: String,
}
