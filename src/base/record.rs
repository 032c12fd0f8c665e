//! What jobs put out: one record per result, the same in JSON, CSV, tables and charts.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::attr::Attrs;
use super::case::Case;
use super::device_info::{Absence, DeviceInfo};
use super::dtype::DType;
use super::error::Told;
use super::regret::RegretRecord;
use super::system::System;

pub use super::ablate::{AblateRecord, PoolUse};
pub use super::analysis::{Analysis, CeilingRecord, NoiseRecord};
pub use super::call::{ArrayFile, RunRecord};
pub use super::explain::ExplainRecord;
pub use super::facts::Hardware;
pub use super::kernels::KernelsRecord;
pub use super::soak::{Speed, StressDevice, StressRecord, StressRunRecord, StressSample};
pub use super::telemetry::{Finding, HealthRecord};
pub use super::topology::Topology;
pub use super::trial::TrialRecord;
pub use super::worth::{WorkloadCall, WorkloadRecord};

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
    /// The error behind `reason`, with kernel, launch, memory and the compiler's whole log; `None` if there was none.
    #[serde(default)]
    pub error: Option<Box<Told>>,
    /// Remarks: `simulated`, `software`, `above-peak`, ...
    pub flags: Vec<String>,
}

impl Subject {
    /// The kernel variant, and with `blas` which library that is.
    pub fn ran_variant(&mut self, variant: &str, device: &DeviceInfo) {
        self.variant = variant.to_string();
        if let (true, Some(blas)) = (variant == super::blas::VARIANT, &device.facts.blas) {
            self.flags.push(format!("blas: {}", blas.text()));
        }
    }

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
            error: None,
            flags,
        }
    }
}

/// Median seconds of each phase of a call with operands in host memory; `None`: not measured.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
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
    /// Who timed `kernel`: `device` (its own events) or `host`; all other phases are timed by the host. Empty: nobody.
    pub kernel_clock: String,
}

/// One row of `bench`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct BenchRecord {
    /// What ran where.
    #[serde(flatten)]
    pub subject: Subject,
    /// `resident`, `always`, `always-pinned`, `once`, `managed` or `managed-prefetched`.
    pub residency: String,
    /// Calls per transfer; 1 except for residency `once`.
    pub k: u64,
    /// Timed region in seconds: shorter resident calls follow each other and share one wait.
    #[serde(default = "first_region_s")]
    pub region_s: f64,
    /// CPU threads of the baseline.
    pub threads: u32,
    /// Number of samples.
    pub samples: u64,
    /// The samples in seconds per call, in order, at most 200; those of several processes one behind the other.
    pub samples_s: Vec<f64>,
    /// Median of each process that measured the row.
    #[serde(default)]
    pub process_medians_s: Vec<f64>,
    /// How fast the machine itself was while each process measured: multiplications with additions a second, bytes copied
    /// a second. Only where the host's processor does the row's work and its clock is not a simulated one.
    #[serde(default)]
    pub machine_speeds: Vec<[f64; 2]>,
    /// Share of the variance among these medians that the samples within the processes do not explain; `None` with one process.
    #[serde(default)]
    pub between_processes: Option<f64>,
    /// Median seconds per call; of several processes the geometric mean of theirs.
    pub median_s: Option<f64>,
    /// 95 % interval of it, for another process where there were several.
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
    /// Share of the device's theoretical peak (of arithmetic or of memory, whichever is nearer); `None` where none is known.
    pub peak_fraction: Option<f64>,
    /// What bounds the row, and how near it comes to what was measured as possible.
    #[serde(default)]
    pub analysis: Analysis,
    /// The phases apart.
    pub phases_s: Phases,
    /// Median of the CPU over the median here, sampled interleaved; `None` on the CPU itself.
    pub speedup_vs_cpu: Option<f64>,
    /// 95 % interval of the speed-up.
    pub speedup_ci: Option<[f64; 2]>,
}

/// That of all rows from before it was told.
fn first_region_s() -> f64 {
    50e-6
}

/// A row of `bench --baseline`: what became of a row since.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ChangeRecord {
    /// Op name.
    pub op: String,
    /// Dtype of the operands.
    pub dtype: DType,
    /// Sizes in declared order.
    pub shape_text: String,
    /// Attributes that differ from their defaults.
    pub attrs: Attrs,
    /// Device.
    pub device: String,
    /// Where operands were.
    pub residency: String,
    /// CPU threads.
    pub threads: u32,
    /// Seconds per call then.
    pub old_s: Option<f64>,
    /// Seconds per call now.
    pub new_s: Option<f64>,
    /// Now over then, all processes of both; `None` where not comparable.
    pub ratio: Option<f64>,
    /// 95 % interval of it, of this row alone.
    pub ratio_ci: Option<[f64; 2]>,
    /// How fast the machine itself was now over then; of its two speeds the one that changed more. Where it is told.
    #[serde(default)]
    pub machine_ratio: Option<f64>,
    /// Chance of so much slower a row among as many rows of which none has changed.
    pub p_slower: f64,
    /// `SAME`, `FASTER`, `SLOWER`, `AMBIGUOUS` or `NOT COMPARABLE`.
    pub verdict: String,
    /// Why it is not comparable.
    pub reason: String,
}

/// A key of `profile diff`: what two profiles say about it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ThresholdRecord {
    /// Op name.
    pub op: String,
    /// Dtype, or `any` in presets.
    pub dtype: String,
    /// Shape family, or `any` in presets.
    pub family: String,
    /// Device id; the uid if no profile lists the device.
    pub device: String,
    /// Device uid.
    pub uid: String,
    /// Where operands are.
    pub residency: String,
    /// CPU threads; 0 is any, in presets.
    pub threads: u32,
    /// Kernel of the CPU side.
    pub cpu_variant: String,
    /// Unit of thresholds and intervals.
    pub unit: String,
    /// The first profile's verdict; `None` if it does not have the key.
    pub old_verdict: Option<String>,
    /// The second's.
    pub new_verdict: Option<String>,
    /// The first profile's threshold.
    pub old_threshold: Option<u64>,
    /// The second's.
    pub new_threshold: Option<u64>,
    /// 95 % interval of the first profile's crossing.
    pub old_ci: Option<[u64; 2]>,
    /// Of the second's.
    pub new_ci: Option<[u64; 2]>,
    /// True if the first profile's entry was edited by hand.
    pub old_edited: bool,
    /// True if the second's was.
    pub new_edited: bool,
    /// `SAME`, `WITHIN`, `MOVED`, `VERDICT`, `ALONE` or `UNKNOWN`.
    pub verdict: String,
    /// Why.
    pub reason: String,
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
    pub max_abs: f64,
    /// Largest absolute difference from the CPU's result, where both ran and are finite.
    pub max_vs_cpu: Option<f64>,
    /// Flat index of the element whose error is the largest share of its bound.
    pub worst_index: Option<u64>,
    /// That element's coordinates in its output; empty for a scalar.
    pub worst_at: Vec<u64>,
    /// That element's computed value, as text (NaN, infinities and 64-bit integers have no JSON number).
    pub worst_got: Option<String>,
    /// That element's oracle value.
    pub worst_want: Option<String>,
    /// That element's error; `None` where one of the values is not finite.
    pub worst_error: Option<f64>,
    /// That element's bound (absolute).
    pub worst_bound: Option<f64>,
    /// Number of elements compared.
    pub compared: u64,
    /// Number of elements beyond their bound.
    pub wrong: u64,
    /// The rules that found it wrong: bound, bits, class, unwritten, guards, repeat, whole.
    pub detectors: Vec<String>,
    /// Number of elements whose value the kernel's language leaves open (WGSL: infinities and NaN); not in `wrong`.
    pub undefined: u64,
    /// The bound in words, with its source.
    pub tolerance: String,
    /// True if the seeds' strict line (1e-6 f32, 1e-12 f64, scaled error) holds; `None` for other dtypes.
    pub strict_met: Option<bool>,
    /// The command that reruns this case alone.
    pub rerun: String,
}

/// One cell of the matrix of `devices --ops`: an op in a dtype on a device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SupportRecord {
    /// Op name.
    pub op: String,
    /// Dtype.
    pub dtype: DType,
    /// Device id.
    pub device: String,
    /// Device uid.
    pub uid: String,
    /// `yes`, `no` (the op has the dtype, the device does not run it), or `undefined` (the op is not made for the dtype).
    pub support: String,
    /// The kernel variant that runs; empty unless `yes`.
    pub variant: String,
    /// Why not; empty for `yes`.
    pub reason: String,
    /// What each kernel of the device's languages lacks, where that is more than the reason.
    pub detail: String,
}

/// One planted fault and what became of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SelfTestRecord {
    /// Name of the fault.
    pub fault: String,
    /// The case that meets it; of `stress` the way it took.
    pub case: String,
    /// Device that it was planted on; empty if there was none.
    pub device: String,
    /// The rule that must find it, or `allowed`; of `stress` verdict and exit code.
    pub expected: String,
    /// `caught`, `allowed`; `missed`, `refused` (legal, but not passed), `unsound` (fails without the fault); `not-run`. Of
    /// `stress` also `passed` (a sound run) and `alarm` (a sound run that did not pass).
    pub outcome: String,
    /// The rules that fired.
    pub detectors: Vec<String>,
    /// Why, where it needs a word.
    pub detail: String,
}

/// JSON has no infinity: an error that is not finite is written as null, and read back as infinite.
fn infinite_if_null<'de, D: serde::Deserializer<'de>>(d: D) -> Result<f64, D::Error> {
    Ok(Option::<f64>::deserialize(d)?.unwrap_or(f64::INFINITY))
}

/// One key of `calibrate`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CalibrateRecord {
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
    /// `always` or `resident`.
    pub residency: String,
    /// CPU threads.
    pub threads: u32,
    /// CPU variant.
    pub cpu_variant: String,
    /// The BLAS that the CPU's products ran on, with its version, core type and threads; empty if on our own kernels.
    #[serde(default)]
    pub cpu_blas: String,
    /// GPU kernel variant.
    pub kernel: String,
    /// `always | never | crossing | non-monotone | inconclusive | unmeasured | unsafe`.
    pub verdict: String,
    /// Unit of crossing, ci and threshold.
    pub unit: String,
    /// Smallest size from which the GPU wins at every larger one.
    pub crossing: Option<u64>,
    /// 95 % interval of the crossing.
    pub ci: Option<[u64; 2]>,
    /// How many times as long a call takes on the wrong side, at most, at sizes within that interval.
    #[serde(default)]
    pub stake: Option<f64>,
    /// crossing × margin.
    pub threshold: Option<u64>,
    /// The evidence.
    pub points: Vec<CalibratePoint>,
    /// Remarks.
    pub reason: String,
}

/// One measured size of a key.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CalibratePoint {
    /// Size in the op's unit.
    pub size: u64,
    /// Median seconds on the CPU.
    pub cpu_s: f64,
    /// Median seconds on the device.
    pub gpu_s: f64,
    /// 95 % interval of cpu/gpu.
    pub ratio_ci: [f64; 2],
    /// Number of interleaved pairs.
    pub pairs: u64,
}

/// Any result.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
pub enum Record {
    /// A row of `bench`.
    Bench(Box<BenchRecord>),
    /// A row of `bench --baseline`.
    Change(Box<ChangeRecord>),
    /// A case of `verify`.
    Verify(Box<VerifyRecord>),
    /// A fault of `verify --self-test`.
    #[serde(rename = "self-test")]
    SelfTest(Box<SelfTestRecord>),
    /// A key of `calibrate`.
    Calibrate(Box<CalibrateRecord>),
    /// A key of `calibrate --regret`.
    Regret(Box<RegretRecord>),
    /// A key of `profile diff`.
    Threshold(Box<ThresholdRecord>),
    /// The answer of `calibrate --workload`.
    Workload(Box<WorkloadRecord>),
    /// A scenario of `stress`.
    Stress(Box<StressRecord>),
    /// A run of `stress` as a whole.
    #[serde(rename = "stress-run")]
    StressRun(Box<StressRunRecord>),
    /// A call of `run`.
    Run(Box<RunRecord>),
    /// A cell of `devices --ops`.
    Support(Box<SupportRecord>),
    /// A ceiling of `devices --measure`.
    Ceiling(Box<CeilingRecord>),
    /// What the sampler finds where nothing is to be found.
    Noise(Box<NoiseRecord>),
    /// A row of `bench --suite ablate`.
    Ablate(Box<AblateRecord>),
    /// What became of a device's programs.
    Kernels(Box<KernelsRecord>),
    /// A card of `devices --health`, or the host.
    Health(Box<HealthRecord>),
    /// A device of `devices --trial`, or what is known of it from earlier ones.
    Trial(Box<TrialRecord>),
    /// A row of `devices`.
    Hardware(Box<Hardware>),
    /// The answer of `devices --topology`.
    Topology(Box<Topology>),
    /// A code of `explain`.
    Explain(Box<ExplainRecord>),
}

/// The host that measured.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Host {
    /// CPU model.
    pub cpu: String,
    /// CPUs this process may use.
    pub cpus: u32,
    /// Memory in bytes.
    pub memory_bytes: u64,
    /// Operating system and kernel.
    pub os: String,
    /// Whether processors were kept from falling idle while something was timed ([`crate::measure::Awake`]).
    #[serde(default)]
    pub awake: bool,
    /// More of it; `devices` alone tells.
    #[serde(default)]
    pub system: Option<System>,
}

/// The JSON document of a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Document {
    /// Version of this layout.
    pub schema: u32,
    /// gpuctl's version.
    pub gpuctl: String,
    /// The command line.
    pub command: Vec<String>,
    /// False if the run was cut short; what is here is still valid.
    pub complete: bool,
    /// Exit code of the run.
    pub exit_code: u8,
    /// The host.
    pub host: Host,
    /// Devices that took part (for `devices`: all).
    pub devices: Vec<DeviceInfo>,
    /// Backends and devices that are not usable, and why.
    pub absent: Vec<Absence>,
    /// The results.
    pub records: Vec<Record>,
}

/// Version of [`Document`]'s layout.
pub const SCHEMA: u32 = 1;
