//! What jobs put out: one record per result, the same in JSON, CSV, tables and charts.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::attr::Attrs;
use super::case::Case;
use super::device_info::{Absence, DeviceInfo};
use super::dtype::DType;

/// How a row ended. Only `Ok` rows carry results that may be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Status {
    /// Done; the result was checked where the job checks.
    Ok,
    /// The device cannot do it; the reason says why.
    Unsupported,
    /// Left out on purpose; the reason says why.
    Skipped,
    /// It failed; the reason says how.
    Failed,
    /// Done, but the numbers contradict each other or physics; not to be trusted.
    Suspect,
}

impl Status {
    /// The word used in every output.
    pub const fn name(self) -> &'static str {
        match self {
            Status::Ok => "ok",
            Status::Unsupported => "unsupported",
            Status::Skipped => "skipped",
            Status::Failed => "failed",
            Status::Suspect => "suspect",
        }
    }
}

/// What was run where; common to bench and verify records.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Subject {
    /// Op name.
    pub op: String,
    /// Dtype of the operands.
    pub dtype: DType,
    /// Sizes by dimension name.
    pub shape: BTreeMap<String, u64>,
    /// Sizes in declared order: `m64,n64,k64`.
    pub shape_text: String,
    /// The op's threshold measure of this shape (elements, m·n·k, ...).
    pub work: u64,
    /// Unit of `work`.
    pub work_unit: String,
    /// Attributes that differ from their defaults.
    pub attrs: Attrs,
    /// Device asked for.
    pub device: String,
    /// Its uid.
    pub uid: String,
    /// Device that did the work; empty if none did.
    pub ran_on: String,
    /// Kernel variant.
    pub variant: String,
    /// How it ended.
    pub status: Status,
    /// Why it did not end `ok`, or why this variant was chosen.
    pub reason: String,
    /// Remarks: `simulated`, `software`, `above-peak`, ...
    pub flags: Vec<String>,
}

impl Subject {
    /// The parts of a record that the case tells.
    pub fn of(case: &Case, work: u64, work_unit: &str, device: &DeviceInfo) -> Self {
        let mut flags = Vec::new();
        match device.class {
            super::device_info::DeviceClass::Software => flags.push("software".to_string()),
            super::device_info::DeviceClass::Simulated => flags.push("simulated".to_string()),
            _ => {}
        }
        Subject {
            op: case.op.to_string(),
            dtype: case.dtype,
            shape: case.dims.iter().map(|(n, v)| ((*n).to_string(), *v)).collect(),
            shape_text: case.shape_text(),
            work,
            work_unit: work_unit.to_string(),
            attrs: case.attrs.clone(),
            device: device.id.clone(),
            uid: device.uid.clone(),
            ran_on: String::new(),
            variant: String::new(),
            status: Status::Skipped,
            reason: String::new(),
            flags,
        }
    }
}

/// Median seconds of each phase of a call with operands in host memory; `None`: not measured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Phases {
    /// Allocation of all buffers.
    pub alloc: Option<f64>,
    /// Host to device copies.
    pub h2d: Option<f64>,
    /// Host time to submit the launches.
    pub launch: Option<f64>,
    /// The kernel on the device, by device events where the API has them, else submit to completion less `launch`.
    pub kernel: Option<f64>,
    /// Wait of the host after the kernel had ended.
    pub sync: Option<f64>,
    /// Device to host copies.
    pub d2h: Option<f64>,
}

/// One row of `bench`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct BenchRecord {
    /// What ran where.
    #[serde(flatten)]
    pub subject: Subject,
    /// `resident` or `always`.
    pub residency: String,
    /// Calls per transfer; 1 except for residency `once`.
    pub k: u64,
    /// CPU threads of the baseline.
    pub threads: u32,
    /// Number of samples.
    pub samples: u64,
    /// The samples in seconds per call, in order, at most 200.
    pub samples_s: Vec<f64>,
    /// Median seconds per call.
    pub median_s: Option<f64>,
    /// 95 % interval of the median.
    pub ci_s: Option<[f64; 2]>,
    /// Fastest sample.
    pub min_s: Option<f64>,
    /// 95th percentile.
    pub p95_s: Option<f64>,
    /// 99th percentile.
    pub p99_s: Option<f64>,
    /// Arithmetic rate at the median.
    pub gflops: Option<f64>,
    /// Compulsory traffic over the median, 10^9 bytes per second.
    pub gbps: Option<f64>,
    /// Share of the device's known peak; `None` where no peak is known.
    pub peak_fraction: Option<f64>,
    /// The phases apart.
    pub phases_s: Phases,
    /// Median of the CPU over the median here, sampled interleaved; `None` on the CPU itself.
    pub speedup_vs_cpu: Option<f64>,
    /// 95 % interval of the speed-up.
    pub speedup_ci: Option<[f64; 2]>,
}

/// One case of `verify`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct VerifyRecord {
    /// What ran where.
    #[serde(flatten)]
    pub subject: Subject,
    /// Full case name.
    pub case: String,
    /// Largest error in units in the last place of the oracle's value, in the output's dtype (integers: difference).
    #[serde(deserialize_with = "infinite_if_null")]
    pub max_ulp: f64,
    /// Largest relative error where the oracle's value is a normal number.
    #[serde(deserialize_with = "infinite_if_null")]
    pub max_rel: f64,
    /// Largest absolute error. All three are over elements where both values are finite.
    #[serde(deserialize_with = "infinite_if_null")]
