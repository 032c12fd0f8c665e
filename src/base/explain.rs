//! What a code means.

use serde::{Deserialize, Serialize};

/// A row of `explain`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExplainRecord {
    /// The code as it is printed: `illegal-address`, `CUDA_ERROR_ILLEGAL_ADDRESS`, `ecc-uncorrected`, ...
    pub name: String,
    /// What it is: `error` (of gpuctl), `status` (of an API), `finding` (of `devices --health`), `quirk` (of a driver), or
    /// `verdict` (of `calibrate`).
    pub what: String,
    /// The API, of a status or a quirk.
    pub api: Option<String>,
    /// The API's number, of a status.
    pub number: Option<i32>,
    /// The error that a status becomes; `None` where that depends on the call.
    pub code: Option<String>,
    /// Class of the error.
    pub class: Option<String>,
    /// How grave: of an error or a finding.
    pub severity: Option<String>,
    /// What happened.
    pub means: String,
    /// What gpuctl does about it.
    pub does: String,
    /// What to do; empty where there is nothing to do.
    pub next: String,
    /// The statuses that become this error: `cuda:700 CUDA_ERROR_ILLEGAL_ADDRESS`.
    pub statuses: Vec<String>,
}
