//! What came of a device's trial.

use serde::{Deserialize, Serialize};

/// One device of `devices --trial`; in a plain list of devices, what earlier trials left on record.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TrialRecord {
    /// Device id.
    pub device: String,
    /// Device uid.
    pub uid: String,
    /// What the verdict is about: API, name, driver.
    pub fingerprint: String,
    /// `fit`, `unfit` or `unjudged`.
    pub fitness: String,
    /// Cases that passed now.
    pub passed: u64,
    /// Cases that failed now.
    pub failed: u64,
    /// Cases that were left out now: the device does not have the dtype, or no limit is published.
    pub left_out: u64,
    /// Ops of which a case was compared now.
    pub ops: u64,
    /// Kernels that an earlier trial found wrong and nothing has cleared since, before this one.
    pub wrong_before: u64,
    /// The case that shows an unfit device; `None` if it failed before the first.
    pub case: Option<String>,
    /// What was wrong with it: element and values, or how the driver ended.
    pub found: Option<String>,
    /// When that was, in seconds since 1970 (UTC).
    pub when: Option<u64>,
    /// The command that shows it again.
    pub rerun: Option<String>,
    /// Why it is not judged; empty unless `unjudged`.
    pub reason: String,
}
