//! What `stress` puts out: a record per phase, one of the whole run, samples over time.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::telemetry::Watched;

/// One scenario of `stress` on one device.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct StressRecord {
    /// Scenario name.
    pub scenario: String,
    /// Device id.
    pub device: String,
    /// Device uid.
    pub uid: String,
    /// `pass | leak | degradation | throttled | corruption | crash | hang | error | inconclusive`.
    pub verdict: String,
    /// Why.
    pub reason: String,
    /// Seconds tested: the device worked and its results were checked.
    pub seconds: f64,
    /// Seconds planned, the making of the references included.
    #[serde(default)]
    pub planned_seconds: f64,
    /// Cycles (ops, allocations or rounds) planned at least.
    pub planned: u64,
    /// Cycles done.
    pub done: u64,
    /// Result bytes that the cycles made and that should be compared.
    #[serde(default)]
    pub bytes_planned: u64,
    /// Result bytes compared with verified references.
    pub bytes_checked: u64,
    /// Comparisons that failed.
    pub mismatches: u64,
    /// Operations that returned an error.
    #[serde(default)]
    pub errors: u64,
    /// Workers that had to be replaced.
    #[serde(default)]
    pub restarts: u64,
    /// Counts of the scenario's own: cases, distinct sizes, threads, ...
    #[serde(default)]
    pub counters: BTreeMap<String, u64>,
    /// How fast the device did works that were the same each time, by their names: what cards of one model are compared by.
    #[serde(default)]
    pub speeds: BTreeMap<String, Speed>,
    /// The first findings in words: which case, which element, which error.
    #[serde(default)]
    pub findings: Vec<String>,
    /// What this phase left out, and why.
    #[serde(default)]
    pub not_tested: Vec<String>,
    /// What happened that is no fault: the machine slept, a clock was set, the phase was paused.
    #[serde(default)]
    pub remarks: Vec<String>,
    /// Seconds in which the phase was paused because the card was hot; no tested time.
    #[serde(default)]
    pub paused_seconds: f64,
    /// What the device's card told meanwhile.
    #[serde(default)]
    pub telemetry: Watched,
    /// Samples over time, thinned to at most some hundred.
    pub series: Vec<StressSample>,
    /// The command that repeats the run.
    pub rerun: String,
}

/// How fast a device did one work again and again: launches alone, nothing of the host's between them, on the device's clock.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Speed {
    /// Units of work per second: the median.
    pub rate: f64,
    /// `FLOP`: floating-point operations; `op`: those of whole numbers.
    pub unit: String,
    /// Times that it was measured.
    pub samples: u64,
}

/// A run of `stress` as a whole: all devices of the node.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct StressRunRecord {
    /// As in [`StressRecord`]; the worst of all devices.
    pub verdict: String,
    /// Exit code.
    pub exit_code: u8,
    /// The last line.
    pub line: String,
    /// Seconds asked for; each device has them to itself.
    pub planned_seconds: f64,
    /// Seconds tested on the device on which the fewest were.
    pub tested_seconds: f64,
    /// Scenarios that passed on every device.
    pub scenarios_passed: u64,
    /// Scenarios that there are.
    pub scenarios: u64,
    /// True if the run was stopped before its end.
    pub interrupted: bool,
    /// Phases that an earlier run had finished, taken over from its journal.
    pub resumed_phases: u64,
    /// Each device.
    pub devices: Vec<StressDevice>,
    /// Findings of the comparison between cards of one model.
    pub findings: Vec<String>,
    /// What happened that is no fault.
    pub remarks: Vec<String>,
    /// What was not tested, with reasons.
    pub not_tested: Vec<String>,
}

/// One device of a run of `stress`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct StressDevice {
    /// Device id.
    pub device: String,
    /// Device uid.
    pub uid: String,
    /// Its name.
    pub name: String,
    /// The worst verdict of its phases and of its comparison with others of its model.
    pub verdict: String,
    /// Why, where no phase says so.
    pub reason: String,
    /// Seconds planned.
    pub planned_seconds: f64,
    /// Seconds tested.
    pub tested_seconds: f64,
    /// Phases that passed.
    pub passed: u64,
    /// Phases.
    pub phases: u64,
}

/// State of a soak at one moment. The ledger is read at quiet points, where a scenario holds nothing on purpose.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct StressSample {
    /// Seconds since the start.
    pub t: f64,
    /// Live device buffers in the ledger.
    pub buffers: u64,
    /// Their bytes.
    pub buffer_bytes: u64,
    /// Other live objects in the ledger: queues, programs, events.
    pub objects: u64,
    /// Live pinned host buffers in the ledger.
    #[serde(default)]
    pub pinned: u64,
    /// Live queues.
    #[serde(default)]
    pub queues: u64,
    /// Live programs.
    #[serde(default)]
    pub programs: u64,
    /// Live events.
    #[serde(default)]
    pub events: u64,
    /// Resident memory of the worker.
    pub rss_bytes: Option<u64>,
    /// Open file descriptors of the worker.
    pub fds: Option<u64>,
    /// Threads of the worker.
    #[serde(default)]
    pub threads: Option<u64>,
    /// Cycles since the sample before, per second.
    pub rate: f64,
    /// Median seconds of a cycle since the sample before.
    #[serde(default)]
    pub p50_s: Option<f64>,
    /// 99th percentile of the same.
    #[serde(default)]
    pub p99_s: Option<f64>,
    /// Bytes of the card's memory in use by all processes, as last told.
    #[serde(default)]
    pub device_used_bytes: Option<u64>,
    /// Of these the worker's own, where the card tells of each process.
    #[serde(default)]
    pub device_own_bytes: Option<u64>,
    /// Of these those of other processes; `None` where the card does not tell all of them.
    #[serde(default)]
    pub device_other_bytes: Option<u64>,
    /// Degrees Celsius of the card, as last told.
    #[serde(default)]
    pub temperature_c: Option<f64>,
    /// Watts that the card draws, as last told.
    #[serde(default)]
    pub power_w: Option<f64>,
}
