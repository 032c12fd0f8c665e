//! What to verify, by which rules, and what came of it.

use std::collections::HashSet;
use std::path::PathBuf;

use crate::base::{Case, DType};
use crate::device::telemetry::Telemetry;
use crate::engine::KernelCache;
use crate::op::{OpDesc, Tier};

use super::OwnBound;

/// What to verify.
#[derive(Clone, Debug)]
pub struct VerifyConfig {
    /// Ops, in order.
    pub ops: Vec<&'static OpDesc>,
    /// Dtypes; those that an op does not have are left out. `None`: all of each op.
    pub dtypes: Option<Vec<DType>>,
    /// How many cases.
    pub tier: Tier,
    /// This case alone; `ops`, `dtypes` and `tier` are then not looked at.
    pub case: Option<Case>,
    /// This kernel variant alone.
    pub variant: Option<String>,
    /// Cases that are done on a device, as [`done_key`](super::done_key) names them: they are counted and not run there again.
    pub done: HashSet<String>,
    /// Every variant that a device takes, the weak baseline too; else the one that the engine would choose.
    pub all_variants: bool,
    /// Kernels check their own accesses (`GPUCTL_DEBUG_KERNELS`).
    pub watch: bool,
    /// Judge by this bound instead of the derived ones.
    pub own: Option<OwnBound>,
    /// The case beyond 2^31 bytes fails where it cannot run; else that is a skip with its reason.
    pub require_big: bool,
    /// Save the arrays of failing cases in this folder.
    pub save_failing: Option<PathBuf>,
    /// Compiled kernels that an engine would load are loaded from here and judged; none is added.
    pub kernels: KernelCache,
    /// Whom to ask about the cards meanwhile, one for each device; `None`: nobody.
    pub telemetry: Option<fn() -> Telemetry>,
    /// For the judge's own tests: a kernel text that is replaced by a wrong one.
    pub mutant: Option<Mutant>,
    /// For the judge's own tests: a rule that is not applied.
    pub off: Option<Detector>,
}

/// The rules by which a result is found wrong; a failed record names those that fired.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Detector {
    /// A finite value further from the oracle's than its bound.
    Bound,
    /// A value that must match in every bit and does not.
    Bits,
    /// NaN or infinity where there should be none, or none where there should be one.
    Class,
    /// An element that shows the poison of each run.
    Unwritten,
    /// Bytes around an operand that were overwritten.
    Guards,
    /// A second run that is wrong where the first was right.
    Repeat,
    /// A check of the whole result (Freivalds').
    Whole,
}

impl Detector {
    /// All of them.
    pub const ALL: [Detector; 7] = [
        Detector::Bound,
        Detector::Bits,
        Detector::Class,
        Detector::Unwritten,
        Detector::Guards,
        Detector::Repeat,
        Detector::Whole,
    ];

    /// The word in records.
    pub const fn name(self) -> &'static str {
        match self {
            Detector::Bound => "bound",
            Detector::Bits => "bits",
            Detector::Class => "class",
            Detector::Unwritten => "unwritten",
            Detector::Guards => "guards",
            Detector::Repeat => "repeat",
            Detector::Whole => "whole",
        }
    }

    /// The rule that a wrong element broke.
    pub(super) fn of(j: &crate::op::tolerance::Judged) -> Self {
        match j.error {
            None => Detector::Class,
            Some(_) if j.allowed == 0.0 => Detector::Bits,
            Some(_) => Detector::Bound,
        }
    }
}

/// A text that stands in for another, in every kernel that has it.
#[derive(Clone, Copy, Debug)]
pub struct Mutant {
    /// The text of the kernel file.
    pub replaces: &'static str,
    /// The text that is run instead.
    pub with: &'static str,
}

impl Default for VerifyConfig {
    /// The smoke tier of every op.
    fn default() -> Self {
        VerifyConfig {
            ops: crate::op::all().collect(),
            dtypes: None,
            tier: Tier::Smoke,
            case: None,
            variant: None,
            done: HashSet::new(),
            all_variants: false,
            watch: false,
            own: None,
            require_big: false,
            save_failing: None,
            kernels: KernelCache::off(),
            telemetry: None,
            mutant: None,
            off: None,
        }
    }
}

/// What came of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VerifySummary {
    /// Cases within their bounds.
    pub passed: u64,
    /// Cases beyond their bounds, or that could not be finished.
    pub failed: u64,
    /// Cases that a device cannot run, or for which no limit is published.
    pub unsupported: u64,
    /// Cases left out with a reason, and those that ran without one result that could be judged.
    pub skipped: u64,
    /// Cases that had passed on a device in the run that this one continues.
    pub resumed: u64,
    /// Cases that passed by the user's bound with elements that the derived one rejects.
    pub beyond: u64,
    /// Elements judged: what a bound or the language leaves open is not among them.
    pub compared: u64,
    /// Cards that were lost meanwhile, or met errors that they could not correct.
    pub faults: u64,
    /// Devices on which not one element was judged, now or before.
    pub idle: Vec<String>,
    /// True if the run was interrupted.
    pub cancelled: bool,
}

impl VerifySummary {
    /// 1: a case failed, or a card did; 4: on some device nothing was judged, now or in the run that this one continues; else 0.
    pub fn exit_code(&self) -> u8 {
        match self {
            s if s.failed + s.faults > 0 => 1,
            s if !s.idle.is_empty() => 4,
            // Everything may have passed before.
            s if s.compared == 0 && (s.resumed == 0 || s.cancelled) => 4,
            _ => 0,
        }
    }
}
