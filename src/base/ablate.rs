//! What a part of the engine is worth.

use serde::{Deserialize, Serialize};

use super::record::Status;

/// The same calls with a part of the engine and without it, measured in turns.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct AblateRecord {
    /// What was left out: `no-pool`, `no-kernel-cache`, `pageable`, `no-threshold`.
    pub without: String,
    /// Device id.
    pub device: String,
    /// Device uid.
    pub uid: String,
    /// The calls: a case's name without its data, or how many calls of a mix.
    pub calls: String,
    /// Whether it was measured.
    pub status: Status,
    /// Why not, where it was not.
    pub reason: String,
    /// Median seconds of a call with everything.
    pub with_s: Option<f64>,
    /// Median seconds of a call without the part.
    pub without_s: Option<f64>,
    /// The second over the first: above 1 the part is worth having.
    pub gain: Option<f64>,
    /// 95 % interval of it, from pairs of samples of this one process.
    pub gain_ci: Option<[f64; 2]>,
    /// Pairs of samples.
    pub pairs: u64,
    /// What the pool did so far in the calls that had it, those of the device's earlier rows among them; of `no-pool` alone.
    #[serde(default)]
    pub pool: Option<PoolUse>,
}

/// What a pool of device memory did.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct PoolUse {
    /// Buffers that were lent from the shelf.
    pub hits: u64,
    /// Buffers that had to be made.
    pub misses: u64,
    /// Bytes lying idle at the end.
    pub idle_bytes: u64,
    /// Most bytes in use and idle together.
    pub peak_bytes: u64,
}
