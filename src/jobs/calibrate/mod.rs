//! From which size on each op is faster on a GPU: a profile with its evidence.
//!
//! For every op, dtype, family and device: a correctness check first, then a sweep of interleaved CPU and device calls
//! (`sweep`) in several processes (`jobs::look`), as far as pure rules ask for it (`measure::crossing`); then other shapes,
//! for curves. Nothing is borrowed between keys; what was not measured says so. The budget counts the rig's clock, which is
//! virtual for simulated devices.

pub mod decide;
mod disturbed;
mod earlier;
mod job;
mod machine;
mod own;
pub mod regret;
mod schedule;
mod shapes;
mod slowed;
mod smoke;
mod states;
mod sweep;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crate::base::record::CalibrateRecord;
use crate::base::sink::{Cancel, Sink};
use crate::base::{Code, DType, Error, Result, os};
use crate::device::probe::Rig;
use crate::device::telemetry::Telemetry;
use crate::engine::KernelCache;
use crate::engine::trials::Finding;
use crate::jobs::look::{Crew, Here, Looker};
use crate::jobs::workers::Start;
use crate::measure::Residency;
use crate::measure::crossing::WITHIN_10;
use crate::op::{Family, OpDesc, Unit, find};
use crate::profile::diff::same_key;
use crate::profile::model::{Curve, Sample, fit};
use crate::profile::{Entry, Profile, ProfileDevice, State, Verdict};

use job::{Job, groups_of};
use machine::transfer;
use schedule::{BLOCK, Span, calibrate_block};

pub use super::look::worker;
pub use own::{Own, measure};
pub(in crate::jobs) use smoke::gross_error;

/// What to calibrate.
#[derive(Clone, Debug)]
pub struct CalibrateConfig {
    /// Ops; micro ops among them are left out, they have no CPU side.
    pub ops: Vec<&'static OpDesc>,
    /// Dtypes; those that an op does not have are left out.
    pub dtypes: Vec<DType>,
    /// Where operands are.
    pub residencies: Vec<Residency>,
    /// CPU kernel to compare with; `None`: the one that the engine would choose.
    pub cpu_variant: Option<String>,
    /// threshold over crossing, at least 1.
    pub margin: f64,
    /// Time for everything, on the rig's clock.
    pub budget: Duration,
    /// Smallest and largest size in each op's unit; `None`: the unit's default range.
    pub range: Option<(u64, u64)>,
    /// Whether software devices (GPU APIs on the host's processor) take part.
    pub allow_software: bool,
    /// Seed of the bootstrap.
    pub seed: u64,
    /// Most processes near a crossing, at least 3; rounds where there is one process.
    pub processes: usize,
    /// An earlier profile of this machine to add to. What it has stays, unless it is measured now; if it is partial, keys
    /// with a verdict are not measured again.
    pub earlier: Option<Profile>,
    /// States that thresholds are stated for where they can be, of this machine ([`crate::measure::state`]); of others, the run's own.
    pub states: Vec<State>,
    /// Where compiled kernels are kept. Nothing is fetched and written while something is measured.
    pub kernels: KernelCache,
    /// How cards are asked whether they lowered their clocks: [`Telemetry::cards`].
    pub telemetry: fn() -> Telemetry,
}

impl CalibrateConfig {
    /// Enough for a narrow interval where processes differ by a third.
    pub const PROCESSES: usize = 11;
}

/// What came of it.
#[derive(Clone, Debug)]
pub struct Calibrated {
    /// The profile, ready to be written.
    pub profile: Profile,
    /// One record per key that was asked for now, in order.
    pub records: Vec<CalibrateRecord>,
    /// Keys for which the budget did not suffice at all.
    pub unmeasured: u64,
    /// Keys with a verdict that sends work somewhere for a reason, but larger sizes were asked for than it knows of.
    pub cut: u64,
    /// Kernels that computed wrong when they were checked, for [`crate::engine::Trials::note`].
    pub wrong: Vec<Finding>,
    /// Keys that an earlier, partial profile had.
    pub kept: u64,
    /// Entries of the keys that were asked for: measured now, or kept of a profile that was cut short.
    pub asked: Vec<Entry>,
    /// True if it was interrupted; the profile then says that it is partial.
    pub interrupted: bool,
    /// Calls that were timed, those to warm up among them: for crossings, and at other shapes for the curves.
    pub calls: [u64; 2],
    /// True if every key was measured (or found unsafe or unsupported).
    pub complete: bool,
}

impl Calibrated {
    /// Keys with a verdict that sends work somewhere for a reason: all but `inconclusive` and `unmeasured`.
    pub fn decided(&self) -> usize {
        self.records.iter().filter(|r| is_decided(&r.verdict)).count()
    }

    /// True if there were keys, and none was measured.
    pub fn nothing(&self) -> bool {
        !self.records.is_empty() && self.records.iter().all(|r| r.verdict == Verdict::Unmeasured.name())
    }

    /// The profile with the keys that were asked for, and no others that an earlier one brought along.
    pub fn as_asked(&self) -> Profile {
        Profile { entries: self.asked.clone(), ..self.profile.clone() }
    }

    /// Puts what [`again`] found of these entries in their place, as far as it found a verdict.
    pub fn replace(&mut self, entries: &[Entry], found: &Calibrated) {
        for entry in entries {
            let is = |e: &Entry| same_key(e, entry);
            let Some(new) = found.asked.iter().find(|e| is(e) && is_decided(e.verdict.name())) else { continue };
            let all = self.profile.entries.iter_mut().chain(&mut self.asked);
            all.filter(|e| is(e)).for_each(|e| *e = new.clone());
            if let Some(record) = found.records.iter().find(|r| is(&Entry::from(*r))) {
                self.records.iter_mut().filter(|r| is(&Entry::from(&**r))).for_each(|r| r.clone_from(record));
            }
        }
        self.wrong.extend(found.wrong.iter().cloned());
        self.calls = [self.calls[0] + found.calls[0], self.calls[1] + found.calls[1]];
    }

    /// Crossings; how many of them are known within 10 %, the upper end of the interval being at most [`WITHIN_10`] times the lower
    /// one; and within the intervals of how many a call on the wrong side takes at most 10 % longer.
    pub fn crossings(&self) -> [usize; 3] {
        let all = || self.records.iter().filter(|r| r.verdict == Verdict::Crossing.name());
        let close = |r: &&CalibrateRecord| r.ci.is_some_and(|[low, high]| high as f64 <= WITHIN_10 * low as f64);
        let cheap = |r: &&CalibrateRecord| r.stake.is_some_and(|s| s <= 1.1);
        [all().count(), all().filter(close).count(), all().filter(cheap).count()]
    }

    /// The same as a line for people.
    pub fn summary(&self) -> String {
        let part = match self.cut {
            0 => String::new(),
            n => format!(", {n} of them up to a smaller size than asked for (a longer budget reaches further)"),
        };
        let close = match self.crossings() {
            [0, ..] => String::new(),
            [all, close, cheap] => format!(
                "; {close} of {all} crossings known within 10 %, {cheap} so that a call on the wrong side takes at most 10 % longer"
            ),
        };
        format!("{} of {} keys decided{part}{close}", self.decided(), self.records.len())
    }
}

/// Whether an op has keys of these dtypes: micro ops have no CPU side.
pub fn can(op: &OpDesc, dtypes: &[DType]) -> bool {
    !matches!(op.unit, Unit::Bytes | Unit::Calls | Unit::Flops) && dtypes.iter().any(|d| op.dtypes.contains(d))
}

fn is_decided(verdict: &str) -> bool {
    ![Verdict::Inconclusive, Verdict::Unmeasured].iter().any(|open| open.name() == verdict)
}

/// Measures everything in this process, in rounds; what another process would measure stays unknown, and the profile says
/// so. Without a GPU the result is a valid profile that keeps everything on the CPU and says why.
///
/// An interruption leaves what was measured, and the profile says that it is partial.
///
/// Errors: `BadArgument` for a margin below 1, fewer than 3 processes, a CPU variant that no op has or an earlier profile of
/// another machine.
pub fn run(cfg: &CalibrateConfig, rig: &Rig, sink: &mut dyn Sink, cancel: &Cancel) -> Result<Calibrated> {
    run_in(cfg, &[rig], sink, cancel)
}

/// The same with each rig as a process: simulated machines as several processes meet them. At least one.
pub fn run_in(cfg: &CalibrateConfig, rigs: &[&Rig], sink: &mut dyn Sink, cancel: &Cancel) -> Result<Calibrated> {
    let Some(first) = rigs.first() else { return Err(Error::new(Code::BadArgument, "no rig to calibrate")) };
    let mut here = Here::new(rigs, cfg.cpu_variant.as_deref(), &cfg.kernels);
    run_with(cfg, first, &mut here, How::here(&[], rigs), sink, cancel)
}

/// A study of simulated machines that were opened for timing only: as [`run_in`], but nothing is computed and nothing
/// checked, so the profile says so and cannot be written.
pub fn study_in(cfg: &CalibrateConfig, rigs: &[&Rig], sink: &mut dyn Sink, cancel: &Cancel) -> Result<Calibrated> {
    let Some(first) = rigs.first() else { return Err(Error::new(Code::BadArgument, "no rig to calibrate")) };
    let mut here = Here::new(rigs, cfg.cpu_variant.as_deref(), &cfg.kernels);
    run_with(cfg, first, &mut here, How { study: true, ..How::default() }, sink, cancel)
}

/// The same for these keys alone, in this order, whatever ops and dtypes the configuration names.
pub(super) fn run_keys_in(
    cfg: &CalibrateConfig,
    keys: &[Wanted],
    rigs: &[&Rig],
    sink: &mut dyn Sink,
    cancel: &Cancel,
) -> Result<Calibrated> {
    let Some(first) = rigs.first() else { return Err(Error::new(Code::BadArgument, "no rig to calibrate")) };
    let mut here = Here::new(rigs, cfg.cpu_variant.as_deref(), &cfg.kernels);
    run_with(cfg, first, &mut here, How::here(keys, rigs), sink, cancel)
}

/// The same in fresh processes.
pub(super) fn run_keys_workers(
    cfg: &CalibrateConfig,
    keys: &[Wanted],
    rig: &Rig,
    start: &Start,
    sink: &mut dyn Sink,
    cancel: &Cancel,
) -> Result<Calibrated> {
    let mut crew = Crew::new(start, rig.cpu.clock());
    run_with(cfg, rig, &mut crew, How { keys, ..How::default() }, sink, cancel)
}

/// Measures the keys of these entries once more, in this order, within the configuration's budget: in fresh processes, or in this
/// one for want of a `start`. Keys of a program's own functions, and of devices that the rig does not have, are left out.
/// `None` if nothing is left.
///
/// Errors: as [`run`].
pub fn again(
    cfg: &CalibrateConfig,
    entries: &[&Entry],
    rig: &Rig,
    start: Option<&Start>,
    sink: &mut dyn Sink,
    cancel: &Cancel,
) -> Result<Option<Calibrated>> {
    let mut keys: Vec<Wanted> = Vec::new();
    for entry in entries {
        let Ok(op) = find(&entry.op) else { continue };
        let family = op.families.iter().find(|f| f.name == entry.family);
        let (Some(family), Ok(dtype)) = (family, entry.dtype.parse()) else { continue };
        if !keys.iter().any(|k| k.op.name == op.name && k.dtype == dtype && k.family.name == family.name) {
            keys.push(Wanted { op, dtype, family });
        }
    }
    let asked = |of: &dyn Fn(&Entry) -> bool| entries.iter().any(|e| of(e));
    let devices: Vec<_> = rig.devices.iter().filter(|d| asked(&|e| e.device == d.info().uid)).cloned().collect();
    if keys.is_empty() || devices.is_empty() {
        return Ok(None);
    }
    let rig = Rig { devices, cpu: rig.cpu.clone(), absent: Vec::new() };
    let residencies = cfg.residencies.iter().filter(|r| asked(&|e| e.residency == r.name())).copied().collect();
    let cfg = CalibrateConfig { residencies, earlier: None, ..cfg.clone() };
    match start {
        Some(start) => run_keys_workers(&cfg, &keys, &rig, start, sink, cancel).map(Some),
        None => run_keys_in(&cfg, &keys, &[&rig], sink, cancel).map(Some),
    }
}

/// The same in fresh processes, which `start` says how to start; [`worker`] is what they run. `rig` holds the same devices.
pub fn run_workers(
    cfg: &CalibrateConfig,
    rig: &Rig,
    start: &Start,
    sink: &mut dyn Sink,
    cancel: &Cancel,
) -> Result<Calibrated> {
    let mut crew = Crew::new(start, rig.cpu.clock());
    run_with(cfg, rig, &mut crew, How::default(), sink, cancel)
}

/// How a calibration differs from the usual one.
#[derive(Default)]
struct How<'a> {
    /// The keys, in order; empty: those that the configuration names.
    keys: &'a [Wanted],
    /// A remark for the profile.
    note: Option<&'static str>,
    /// Devices that compute nothing take part, and only they.
    study: bool,
}

impl<'a> How<'a> {
    /// In this program.
    fn here(keys: &'a [Wanted], rigs: &[&Rig]) -> Self {
        How { keys, note: (rigs.len() == 1).then_some(ONE_PROCESS), study: false }
    }
}

fn run_with(
    cfg: &CalibrateConfig,
    rig: &Rig,
    looker: &mut dyn Looker,
    how: How<'_>,
    sink: &mut dyn Sink,
    cancel: &Cancel,
) -> Result<Calibrated> {
    if !(cfg.margin.is_finite() && (1.0..=100.0).contains(&cfg.margin)) {
        return Err(Error::new(Code::BadArgument, format!("margin {}: expected 1 to 100", cfg.margin)));
    }
    if !(3..=64).contains(&cfg.processes) {
        return Err(Error::new(Code::BadArgument, format!("{} processes: expected 3 to 64", cfg.processes)));
    }
    if let Some((low, high)) = cfg.range
        && (low == 0 || low > high)
    {
        return Err(Error::new(Code::BadArgument, format!("sizes {low} to {high}: expected 1 <= smallest <= largest")));
    }
    let mut job = Job::new(cfg, rig, how.study)?;
    let devices = job.devices(sink);
    if let Some(earlier) = &cfg.earlier {
        let infos: Vec<_> = devices.iter().map(|d| d.device().info()).collect();
        earlier::fits(earlier, &job.profile, &infos)?;
    }
    if !devices.is_empty() {
        job.profile.notes.extend(how.note.map(str::to_string));
    }
    let groups = if how.keys.is_empty() { job.groups(&devices) } else { groups_of(how.keys, &devices) };
    let clock = rig.cpu.clock();
    let end = clock.now() + cfg.budget.as_secs_f64();
    for device in &devices {
        job.profile.devices.push(ProfileDevice::of(device.device().info()));
        match transfer(device.device().as_ref()) {
            Ok(t) => job.profile.transfers.push(t),
            Err(e) => job.profile.notes.push(format!("no transfer model: {e}")),
        }
    }
    let mut done = 0;
    for block in groups.chunks(BLOCK) {
        let left = (end - clock.now()).max(0.0);
        let share = left * block.len() as f64 / (groups.len() - done) as f64;
        let span = Span { clock: clock.as_ref(), end: clock.now() + share };
        calibrate_block(&mut job, block, &span, looker, sink, cancel)?;
        done += block.len();
    }
    job.note_clocks(sink);
    let notes = states::notes(&job);
    job.profile.notes.extend(notes);
    Ok(job.finish())
}

/// What the curves of a group rest on, one for each residency, with whether its calls copy operands; and whether the winner
/// changes.
type Fittable = (Vec<(Vec<Sample>, bool)>, bool);

/// How long an interrupted calibration goes on with its curves.
const PATIENCE: Duration = Duration::from_secs(2);

/// The curves of groups, on all processors, as far as the time suffices: those first whose winner changes, where a curve
/// decides most. And the number of those that were left out; such a key has its threshold.
fn fits(work: Vec<Fittable>, span: &Span<'_>, cancel: &Cancel) -> (Vec<Vec<Option<Curve>>>, usize) {
    let mut order: Vec<(usize, usize)> = Vec::new();
    for first in [true, false] {
        for (group, (residencies, _)) in work.iter().enumerate().filter(|(_, (_, crosses))| *crosses == first) {
            order.extend((0..residencies.len()).map(|which| (group, which)));
        }
    }
    let next = AtomicUsize::new(0);
    let begin = Instant::now();
    let some = || {
        let mut found = Vec::new();
        while let Some((group, which)) = order.get(next.fetch_add(1, Ordering::Relaxed)).copied() {
            let patient = !cancel.raised() || begin.elapsed() < PATIENCE;
            if patient && (span.clock.is_virtual() || span.left() > 0.0) {
                let (samples, copies) = &work[group].0[which];
                found.push((group, which, fit(samples, *copies)));
            }
        }
        found
    };
    let threads = os::allowed_cpus().len().clamp(1, order.len().max(1));
    let found: Vec<_> = std::thread::scope(|scope| {
        let started: Vec<_> = (0..threads).map(|_| scope.spawn(some)).collect();
        let joined = started.into_iter().map(|t| t.join().unwrap_or_else(|p| std::panic::resume_unwind(p)));
        joined.flatten().collect()
    });
    let mut curves: Vec<Vec<Option<Curve>>> = work.iter().map(|(r, _)| vec![None; r.len()]).collect();
    let left_out = order.len() - found.len();
    for (group, which, curve) in found {
        curves[group][which] = curve;
    }
    (curves, left_out)
}

/// Calibrations of one machine that differ by their number of CPU threads, as one. Errors: `BadArgument` for none.
pub fn joined(parts: Vec<Calibrated>) -> Result<Calibrated> {
    let mut parts = parts.into_iter();
    let none = || Error::new(Code::BadArgument, "no calibration to join");
    let mut all = parts.next().ok_or_else(none)?;
    for part in parts {
        let own: Vec<Entry> = part.records.iter().map(Entry::from).collect();
        earlier::join(&mut all.profile, &part.profile, &own);
        all.profile.partial |= part.profile.partial;
        let share = |p: &Profile| p.host.as_ref().and_then(|h| h.disturbed);
        let most = share(&all.profile).into_iter().chain(share(&part.profile)).max_by(f64::total_cmp);
        all.profile.host.iter_mut().for_each(|h| h.disturbed = most);
        State::join(&mut all.profile.states, &part.profile.states);
        for note in part.profile.notes {
            if !all.profile.notes.contains(&note) {
                all.profile.notes.push(note);
            }
        }
        all.records.extend(part.records);
        all.unmeasured += part.unmeasured;
        all.cut += part.cut;
        all.wrong.extend(part.wrong);
        all.kept += part.kept;
        all.asked.extend(part.asked);
        all.interrupted |= part.interrupted;
        all.calls = [all.calls[0] + part.calls[0], all.calls[1] + part.calls[1]];
        all.complete &= part.complete;
    }
    Ok(all)
}

const ONE_PROCESS: &str = "measured in one process: another one may find other times";

/// An op, dtype and family to calibrate on every device.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wanted {
    pub(super) op: &'static OpDesc,
    pub(super) dtype: DType,
    pub(super) family: &'static Family,
}
