//! Threshold profiles: which calls go to a GPU, and on what evidence.
//!
//! A profile is made by `gpuctl calibrate` (kind `calibrated`: every entry was measured on the devices it names) or is
//! one of the shipped presets (kind `preset`: assumed numbers, used only when named). [`Profile::choose`] places one call
//! and [`Chooser`] many: pure, without allocation, and never borrowing from another key. Anything that was not measured
//! runs on the CPU.
//! Not here: the op table (`op`), opening devices (`engine`).

pub mod chain;
mod check;
pub mod choose;
pub mod diff;
pub mod drift;
pub mod edit;
pub mod file;
mod host;
mod index;
mod merge;
mod migrate;
pub mod model;
mod notice;
mod seal;
mod slot;
mod state;

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::base::record::{CalibratePoint, CalibrateRecord};
use crate::base::text::printable;
use crate::base::{Backend, DType, DeviceInfo};

pub use choose::{Call, Operands, Placed, Policy, Rule};
pub use file::{PRESETS, Source, load};
pub use host::Host;
pub use index::Chooser;
pub use merge::{by_age, merge};
pub use state::State;

/// Version of the file's layout.
pub const SCHEMA: u32 = 2;

/// The word that matches anything; only presets may use it.
pub const ANY: &str = "any";

/// `verify` of an entry whose two functions are the caller's own: the caller answers for their results.
pub const BY_CALLER: &str = "by the caller";

/// `cpu_variant` of a baseline that used the CPU kernel that the engine would choose by itself.
pub const CPU_AUTO: &str = "auto";

/// Where a profile's numbers come from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// Measured on the machine that the profile names.
    #[default]
    Calibrated,
    /// Assumed; every decision from it says so.
    Preset,
}

impl Kind {
    /// The word in files.
    pub const fn name(self) -> &'static str {
        match self {
            Kind::Calibrated => "calibrated",
            Kind::Preset => "preset",
        }
    }
}

/// What calibration found about one key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// The device wins at every measured size.
    Always,
    /// The CPU wins at every measured size.
    Never,
    /// The device wins from the threshold on.
    Crossing,
    /// The device wins at some sizes and loses again at larger ones: no threshold describes it.
    NonMonotone,
    /// The intervals never separate.
    Inconclusive,
    /// Nothing was measured.
    #[default]
    Unmeasured,
    /// The device's results were wrong, so its speed does not matter.
    Unsafe,
}

impl Verdict {
    /// All verdicts.
    pub const ALL: [Verdict; 7] = [
        Verdict::Always,
        Verdict::Never,
        Verdict::Crossing,
        Verdict::NonMonotone,
        Verdict::Inconclusive,
        Verdict::Unmeasured,
        Verdict::Unsafe,
    ];

    /// The word in files and records.
    pub const fn name(self) -> &'static str {
        match self {
            Verdict::Always => "always",
            Verdict::Never => "never",
            Verdict::Crossing => "crossing",
            Verdict::NonMonotone => "non-monotone",
            Verdict::Inconclusive => "inconclusive",
            Verdict::Unmeasured => "unmeasured",
            Verdict::Unsafe => "unsafe",
        }
    }

    /// The verdict of that name.
    pub fn parse(name: &str) -> Option<Verdict> {
        Verdict::ALL.into_iter().find(|v| v.name() == name)
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// A device that took part.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ProfileDevice {
    /// Id at the time of measuring; ids may be reordered later, so nothing is compared with it.
    pub id: String,
    /// Identity; entries name devices by it.
    pub uid: String,
    /// [`DeviceInfo::fingerprint`] at the time of measuring.
    pub fingerprint: String,
    /// Backend name.
    pub backend: String,
    /// The name the API gave.
    pub name: String,
    /// Driver name and version.
    pub driver: String,
}

impl ProfileDevice {
    /// The parts of a device's description that a profile keeps.
    pub fn of(info: &DeviceInfo) -> Self {
        ProfileDevice {
            id: info.id.clone(),
            uid: info.uid.clone(),
            fingerprint: info.fingerprint(),
            backend: info.backend.name().into(),
            name: info.name.clone(),
            driver: info.driver.clone(),
        }
    }
}

/// Time of a copy as latency plus bytes over rate, per device.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Transfer {
    /// Device uid.
    pub device: String,
    /// Seconds before the first byte, host to device.
    pub h2d_latency_s: f64,
    /// Bytes per second, host to device.
    pub h2d_bytes_per_s: f64,
    /// Seconds before the first byte, device to host.
    pub d2h_latency_s: f64,
    /// Bytes per second, device to host.
    pub d2h_bytes_per_s: f64,
}

/// What is known about one key.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Entry {
    /// Op name. Names that this build does not have are kept; they are simply never asked for.
    pub op: String,
    /// Dtype name, or `any` in presets.
    pub dtype: String,
    /// Shape family, or `any` in presets.
    pub family: String,
    /// Device uid, or `any` in presets.
    pub device: String,
    /// `always` (operands cross the bus in every call), `resident`, ..., or `any` in presets.
    pub residency: String,
    /// Threads of the CPU side; 0 means any, in presets only.
    pub threads: u32,
    /// Kernel of the CPU side: [`CPU_AUTO`], a variant's name, or `any` in presets.
    pub cpu_variant: String,
    /// What was found.
    pub verdict: Verdict,
    /// Unit of crossing, ci, threshold and the points' sizes: `elements`, `dim`, ...
    pub unit: String,
    /// Smallest size from which the device wins at every larger one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub crossing: Option<u64>,
    /// 95 % interval of the crossing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ci: Option<[u64; 2]>,
    /// How many times as long a call takes on the wrong side, at most, at sizes within that interval.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stake: Option<f64>,
    /// crossing × margin; the first size that goes to the device.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub threshold: Option<u64>,
    /// True if a person changed the entry after it was measured: what is left is that person's word, without evidence.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub edited: bool,
    /// Number of measured sizes.
    #[serde(default)]
    pub n: u64,
    /// How the device's results were checked: `ok`, [`BY_CALLER`], or what is wrong; empty in presets.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub verify: String,
    /// Kernel variant on the device.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub kernel: String,
    /// Remarks.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub reason: String,
    /// The evidence, in order of size; in the file one array each: size, cpu_s, gpu_s, ratio low, ratio high, pairs.
    #[serde(default, skip_serializing_if = "Vec::is_empty", with = "file::points")]
    pub points: Vec<CalibratePoint>,
    /// Times of any shape of the family, where enough shapes were measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub curve: Option<model::Curve>,
}

impl From<&CalibrateRecord> for Entry {
    fn from(r: &CalibrateRecord) -> Self {
        Entry {
            op: r.op.clone(),
            dtype: r.dtype.name().into(),
            family: r.family.clone(),
            device: r.uid.clone(),
            residency: r.residency.clone(),
            threads: r.threads,
            cpu_variant: r.cpu_variant.clone(),
            verdict: Verdict::parse(&r.verdict).unwrap_or(Verdict::Unmeasured),
            unit: r.unit.clone(),
            crossing: r.crossing,
            ci: r.ci,
            stake: r.stake,
            threshold: r.threshold,
            edited: false,
            n: r.points.len() as u64,
            verify: if r.verdict == Verdict::Unsafe.name() { "failed".into() } else { "ok".into() },
            kernel: r.kernel.clone(),
            reason: r.reason.clone(),
            points: r.points.clone(),
            curve: None,
        }
    }
}

/// A whole profile.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Profile {
    /// Layout version, [`SCHEMA`].
    pub schema: u32,
    /// Measured or assumed.
    pub kind: Kind,
    /// A word for people; the preset's name.
    pub name: String,
    /// Version of gpuctl that wrote it.
    #[serde(default)]
    pub gpuctl: String,
    /// When, in UTC: `2026-01-31T12:00:00Z`; empty in presets.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub created: String,
    /// threshold over crossing.
    pub margin: f64,
    /// What decides.
    #[serde(default, skip_serializing_if = "Rule::is_threshold")]
    pub rule: Rule,
    /// Remarks: what was left out and why.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
    /// Where it was measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<Host>,
    /// The devices.
    #[serde(default, rename = "device", skip_serializing_if = "Vec::is_empty")]
    pub devices: Vec<ProfileDevice>,
    /// The transfer model, per device.
    #[serde(default, rename = "transfer", skip_serializing_if = "Vec::is_empty")]
    pub transfers: Vec<Transfer>,
    /// In which state of the machine thresholds hold, per device, residency and number of threads; none where nobody read it.
    #[serde(default, rename = "state", skip_serializing_if = "Vec::is_empty")]
    pub states: Vec<State>,
    /// The entries.
    #[serde(default, rename = "entry", skip_serializing_if = "Vec::is_empty")]
    pub entries: Vec<Entry>,
    /// True if the calibration was cut short: what is here holds, what is missing is unmeasured. In the file below
    /// `[end]`.
    #[serde(skip)]
    pub partial: bool,
}

/// One call's identity.
#[derive(Clone, Copy, Debug)]
pub struct Key<'a> {
    /// Op name.
    pub op: &'a str,
    /// Dtype.
    pub dtype: DType,
    /// Shape family; `None` is a shape outside every family, for which nothing was measured.
    pub family: Option<&'a str>,
    /// Unit of the work that is looked up.
    pub unit: &'a str,
    /// Device in question.
    pub device_uid: &'a str,
    /// Where the operands are.
    pub residency: &'a str,
    /// Threads of the CPU that would run it otherwise.
    pub threads: u32,
    /// Kernel of that CPU, [`CPU_AUTO`] if none was named.
    pub cpu_variant: &'a str,
}

/// CPU or GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// The host's processor.
    Cpu,
    /// The device of the key.
    Gpu,
}

/// Why a lookup answered as it did. In order of how far the key matched.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Reason {
    /// No entry of this op.
    NoOp,
    /// Entries of the op, none of this dtype.
    NoDtype,
    /// None of this shape family.
    NoFamily,
    /// None for this device.
    NoDevice,
    /// None for this residency.
    NoResidency,
    /// None with this number of CPU threads.
    OtherThreads,
    /// None against this CPU kernel.
    OtherCpuVariant,
    /// An entry in another unit than the op's.
    OtherUnit,
    /// The key is listed, but was not measured.
    Unmeasured,
    /// The key was measured: the CPU always wins.
    Never,
    /// The key was measured: no single threshold describes it.
    NonMonotone,
    /// The key was measured: the difference never left the noise.
    Inconclusive,
    /// The device's results were wrong.
    Unsafe,
    /// The work is below the threshold.
    BelowThreshold,
    /// The work reaches the threshold.
    ReachesThreshold,
    /// The device wins at every size.
    Always,
    /// The entry is too little evidence to predict a time.
    NoPrediction,
    /// The predicted time on the CPU is less.
    PredictedSlower,
    /// The predicted time on the device is less.
    PredictedFaster,
    /// The operands are there.
    OperandsThere,
    /// The policy names the side.
    Forced,
    /// The policy names the GPU, and there is none.
    NoGpu,
}

impl Reason {
    /// A clause for people.
    pub const fn text(self) -> &'static str {
        match self {
            Reason::NoOp => "the profile has no entry of this op",
            Reason::NoDtype => "the op was not measured for this dtype",
            Reason::NoFamily => "this shape belongs to no family that was measured",
            Reason::NoDevice => "the op was not measured on this device",
            Reason::NoResidency => "the op was not measured with operands where they are",
            Reason::OtherThreads => "the op was measured against another number of CPU threads",
            Reason::OtherCpuVariant => "the op was measured against another CPU kernel",
            Reason::OtherUnit => "the entry's unit is not the op's",
            Reason::Unmeasured => "the profile lists this key as unmeasured",
            Reason::Never => "the CPU wins at every size",
            Reason::NonMonotone => "the device wins and loses by turns; no threshold describes that",
            Reason::Inconclusive => "the difference stays within the noise",
            Reason::Unsafe => "the device's results were wrong",
            Reason::BelowThreshold => "the work is below the threshold",
            Reason::ReachesThreshold => "the work reaches the threshold",
            Reason::Always => "the device wins at every size",
            Reason::NoPrediction => "the evidence does not tell how long it would take",
            Reason::PredictedSlower => "it is predicted to be faster on the CPU",
            Reason::PredictedFaster => "it is predicted to be faster on the device",
            Reason::OperandsThere => "the operands are there",
            Reason::Forced => "the placement is forced",
            Reason::NoGpu => "a GPU was asked for, and the profile has none",
        }
    }
}

/// The answer of a lookup.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Decision<'p> {
    /// Where the call goes.
    pub place: Place,
    /// Why.
    pub why: Reason,
    /// The entry that decided; `None` if no entry has this key.
    pub entry: Option<&'p Entry>,
    /// True if the numbers are assumed (a preset).
    pub assumed: bool,
}

/// Whether a device of the profile is the one that is here now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fit {
    /// Same device, driver and API.
    Exact,
    /// Same chip behind another driver or API version: used, and said.
    OtherDriver {
        /// Fingerprint in the profile.
        then: String,
        /// Fingerprint now.
        now: String,
    },
    /// Another device under this identity: its entries are ignored (`ProfileStale`).
    Other {
        /// Fingerprint in the profile.
        then: String,
        /// Fingerprint now.
        now: String,
    },
    /// Not among the devices given.
    Absent,
}

impl Fit {
    /// True if the entries may be used.
    pub fn usable(&self) -> bool {
        matches!(self, Fit::Exact | Fit::OtherDriver { .. })
    }
    /// A clause for people.
    pub fn text(&self) -> String {
        match self {
            Fit::Exact => "the device that was measured".into(),
            Fit::OtherDriver { then, now } => {
                format!("same chip, other driver: measured '{}', now '{}'", printable(then), printable(now))
            }
            Fit::Other { then, now } => {
                let (then, now) = (printable(then), printable(now));
                format!("profile-stale: measured on another device: '{then}', now '{now}'; its entries are ignored")
            }
            Fit::Absent => "the device is not here".into(),
        }
    }
}

/// The units that thresholds may have.
pub const UNITS: [&str; 7] = ["elements", "dim", "bytes", "calls", "flops", "input_elements", "params"];

/// The work that corresponds to a size in a unit: the size itself, or its cube for `dim` (m·n·k ≥ t³), saturating at
/// 2^128 - 1. `None` for a unit that does not exist.
pub fn work_of(unit: &str, size: u64) -> Option<u128> {
    let s = u128::from(size);
    match unit {
        "dim" => Some(s.checked_pow(3).unwrap_or(u128::MAX)),
        known if UNITS.contains(&known) => Some(s),
        _ => None,
    }
}

/// crossing × margin, rounded up; products that are whole but for the rounding of the margin stay whole.
pub fn with_margin(crossing: u64, margin: f64) -> u64 {
    let exact = crossing as f64 * margin;
    let up = (exact - exact * 1e-12).ceil() as u64;
    up.max(crossing)
}

impl Entry {
    /// The least work that goes to the device; `None` if none does, whatever its size.
    pub fn threshold_work(&self) -> Option<u128> {
        match self.verdict {
            Verdict::Always => work_of(&self.unit, self.threshold.unwrap_or(0)),
            Verdict::Crossing => work_of(&self.unit, self.threshold?),
            _ => None,
        }
    }
}

impl Profile {
    /// An empty profile of this build, to be filled.
    pub fn new(kind: Kind, name: &str) -> Self {
        Profile {
            schema: SCHEMA,
            kind,
            name: name.into(),
            gpuctl: env!("CARGO_PKG_VERSION").into(),
            margin: 1.1,
            ..Profile::default()
        }
    }

    /// Puts an entry in, in place of one with the same key, and its device if that is not listed.
    pub fn put(&mut self, device: &ProfileDevice, entry: Entry) {
        if !self.devices.iter().any(|d| d.uid == device.uid) {
            self.devices.push(device.clone());
        }
        let key = |e: &Entry| {
            [&e.op, &e.dtype, &e.family, &e.device, &e.residency, &e.cpu_variant, &e.threads.to_string()]
                .map(String::clone)
        };
        match self.entries.iter_mut().find(|e| key(e) == key(&entry)) {
            Some(old) => *old = entry,
            None => self.entries.push(entry),
        }
    }

    /// True if some call could go to a GPU by the profile's own rule ([`Policy::Automatic`]); where it is false no driver need
    /// be opened.
    pub fn may_use_gpu(&self) -> bool {
        self.may_use_gpu_by(Policy::Automatic)
    }

    /// The same under a policy: predictions may send what no threshold sends.
    pub fn may_use_gpu_by(&self, policy: Policy) -> bool {
        self.entries.iter().any(|e| self.may_send(e, policy))
    }

    fn may_send(&self, entry: &Entry, policy: Policy) -> bool {
        match self.kind {
            // Of its curves and points nothing is asked.
            Kind::Preset => entry.threshold_work().is_some(),
            Kind::Calibrated => entry.may_send(self.rule, policy),
        }
    }

    /// Which of the profile's devices are here, in the profile's order.
    pub fn check(&self, devices: &[DeviceInfo]) -> Vec<(ProfileDevice, Fit)> {
        let fit = |d: &ProfileDevice| {
            let Some(info) = devices.iter().find(|i| i.uid == d.uid) else { return Fit::Absent };
            let (then, now) = (d.fingerprint.clone(), info.fingerprint());
            if then == now {
                Fit::Exact
            } else if d.name == info.name && d.backend == info.backend.name() {
                Fit::OtherDriver { then, now }
            } else {
                Fit::Other { then, now }
            }
        };
        self.devices.iter().map(|d| (d.clone(), fit(d))).collect()
    }

    /// Why the profile's CPU is not this one; `None` if it is, or if the profile names no host.
    pub fn other_host(&self, now: &Host) -> Option<String> {
        let (then, now) = (self.host.as_ref()?.side(), now.side());
        (then != now).then(|| {
            format!("profile-stale: measured against '{}', this CPU is '{}'", printable(&then), printable(&now))
        })
    }

    /// Backends of the devices that entries may send work to by the profile's own rule; every real backend for presets that
    /// use a GPU at all.
    pub fn backends(&self) -> Vec<Backend> {
        self.backends_by(Policy::Automatic)
    }

    /// The same under a policy.
    pub fn backends_by(&self, policy: Policy) -> Vec<Backend> {
        let used = |uid: &str| self.entries.iter().any(|e| e.device == uid && self.may_send(e, policy));
        let real = Backend::ALL.into_iter().filter(|b| !matches!(b, Backend::Cpu | Backend::Sim));
        match self.kind {
            Kind::Preset if self.may_use_gpu() => real.collect(),
            Kind::Preset => Vec::new(),
            Kind::Calibrated => {
                real.filter(|b| self.devices.iter().any(|d| d.backend == b.name() && used(&d.uid))).collect()
            }
        }
    }
}
