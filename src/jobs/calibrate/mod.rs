//! From which size on each op is faster on a GPU: a profile with its evidence.
//!
//! For every op, dtype, family and device: a correctness check first, then a sweep of interleaved CPU and device calls
//! (`sweep`) in several processes (`jobs::look`), as far as pure rules ask for it (`measure::crossing`); then other shapes,
//! for curves. Nothing is borrowed between keys; what was not measured says so. The budget counts the rig's clock, which is
//! virtual for simulated devices.

pub mod decide;
mod earlier;
mod job;
mod machine;
mod own;
pub mod regret;
mod shapes;
mod slowed;
mod smoke;
mod sweep;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crate::base::record::CalibrateRecord;
use crate::base::sink::{Cancel, Progress, Sink};
use crate::base::{Clock, Code, DType, Error, Result, os};
use crate::device::probe::Rig;
use crate::device::telemetry::Telemetry;
use crate::engine::KernelCache;
use crate::engine::trials::Finding;
use crate::jobs::look::{Crew, Here, Looker};
use crate::jobs::workers::Start;
use crate::measure::Residency;
use crate::measure::crossing::Plan;
use crate::op::{Family, OpDesc, Unit};
use crate::profile::model::{Curve, Sample, fit};
use crate::profile::{Entry, Profile, ProfileDevice, Verdict};

use job::{Group, Job, More, groups_of};
use machine::transfer;
use sweep::{Depth, Swept};

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

    /// The same as a line for people.
    pub fn summary(&self) -> String {
        let part = match self.cut {
            0 => String::new(),
            n => format!(", {n} of them up to a smaller size than asked for (a longer budget reaches further)"),
        };
        format!("{} of {} keys decided{part}", self.decided(), self.records.len())
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
    Ok(job.finish())
}

/// Groups whose samples are in memory together.
const BLOCK: usize = 256;

/// Groups that have their first verdicts together: enough for their turns to lie apart, and few enough for a budget that does
/// not suffice to give some of them all rather than all of them some.
const TOGETHER: usize = 24;

/// Seconds from the end of a turn of a group to its next: what a machine does for some tenths of a second should not be what
/// all its looks find. Measured once, on a virtual machine with two processors (docs/measuring.md).
const APART: f64 = 0.25;

/// So many times counts the time of a group in which no winner changes for sure, once all had their first looks: mostly nobody
/// surely wins its largest size, which is a matter of a few percent and of the dearest calls.
const OPEN: f64 = 4.0;

/// Looks that a group alone is to have time for: a crossing takes about half as many, at least.
const LOOKS: f64 = 200.0;

/// Share of the time that is kept for shapes besides the sweeps, once the verdicts are known.
const SHAPES: f64 = 0.25;

/// Share of what is left for sizes that had no place in a key's share: before wide intervals become narrow ones, and in the end,
/// when only curves that decide little would come after them.
const LARGER: [f64; 2] = [0.3, 0.8];

/// Share of the time that is kept for fitting curves, at most, and seconds that a curve takes, five times what was measured
/// (1.8 s for 172 on two processors).
const FITTING: f64 = 0.1;
/// See [`FITTING`].
const FIT: f64 = 0.05;

/// The time that is left.
struct Span<'a> {
    clock: &'a dyn Clock,
    end: f64,
}

impl Span<'_> {
    fn left(&self) -> f64 {
        (self.end - self.clock.now()).max(0.0)
    }

    fn wait_until(&self, time: f64) {
        let wait = time.min(self.end) - self.clock.now();
        // A simulated machine has no states that pass.
        if wait > 0.0 && !self.clock.is_virtual() {
            self.clock.sleep(Duration::from_secs_f64(wait));
        }
    }
}

/// Calibrates these groups: first every verdict that the time suffices for, then narrow ones, then the shapes that curves
/// rest on.
fn calibrate_block(
    job: &mut Job<'_>,
    groups: &[Group<'_>],
    span: &Span<'_>,
    looker: &mut dyn Looker,
    sink: &mut dyn Sink,
    cancel: &Cancel,
) -> Result<()> {
    let whole = span;
    let keys: usize = groups.iter().map(|g| job.offered(g).len()).sum();
    let fitting = if span.clock.is_virtual() { 0.0 } else { (FITTING * span.left()).min(FIT * keys as f64) };
    let span = &Span { end: span.end - fitting, ..*span };
    let deciding = Span { end: span.end - SHAPES * span.left(), ..*span };
    let mut all: Vec<(&Group<'_>, Swept)> = Vec::new();
    let mut done = 0;
    for some in groups.chunks(TOGETHER) {
        let from = all.len();
        let even = deciding.left() * some.len() as f64 / (groups.len() - done) as f64;
        let span = Span { end: span.clock.now() + even, ..*span };
        for (i, group) in some.iter().enumerate() {
            sink.progress(&at("", group, done, groups.len()));
            // Many need less than their share, so each may take twice as much.
            let share = (2.0 * span.left() / (some.len() - i) as f64).min(span.left());
            all.extend(job.group(group, share, looker, sink, cancel)?.map(|swept| (group, swept)));
            done += 1;
        }
        let apart = apart(span.left());
        turns(job, (More::Decide(Depth::First), apart), &span, &mut all[from..], looker, sink, cancel)?;
    }
    // Where the winner changes, larger sizes hardly change the place of a call.
    let (mut all, mut others): (Vec<_>, Vec<_>) = all.into_iter().partition(|(_, s)| s.crosses());
    larger(job, (&deciding, LARGER[0]), &mut others, looker, sink, cancel)?;
    all.append(&mut others);
    // What the others did not need goes to those that it was not enough for.
    let (begin, left) = (span.clock.now(), span.left());
    let share = if left > 0.0 { deciding.left() / left } else { 0.0 };
    let apart = apart(left);
    for part in 1..=Plan::PARTS {
        let depth = Depth::Full(Plan::in_part(job.cfg.processes, part));
        let span = Span { end: begin + left * part as f64 / Plan::PARTS as f64, ..*span };
        let deciding = Span { end: span.clock.now() + share * span.left(), ..span };
        turns(job, (More::Decide(depth), apart), &deciding, &mut all, looker, sink, cancel)?;
        let (mut some, mut others): (Vec<_>, Vec<_>) = all.into_iter().partition(|(_, s)| s.crosses());
        turns(job, (More::Shapes, apart), &span, &mut some, looker, sink, cancel)?;
        some.append(&mut others);
        all = some;
        larger(job, (&span, LARGER[1]), &mut all, looker, sink, cancel)?;
        // Where the winner never changes, a curve decides little.
        turns(job, (More::Shapes, apart), &span, &mut all, looker, sink, cancel)?;
        turns(job, (More::Decide(depth), apart), &span, &mut all, looker, sink, cancel)?;
    }
    let work: Vec<_> = all.iter().map(|(g, s)| Ok((job.samples(g, s)?, s.crosses()))).collect::<Result<_>>()?;
    let (curves, left_out) = fits(work, whole, cancel);
    job.without_curve += left_out;
    for ((group, swept), curves) in all.into_iter().zip(curves) {
        job.judge(group, swept, curves, sink)?;
    }
    Ok(())
}

/// Larger sizes for this share of the time, and first verdicts with them.
fn larger(
    job: &mut Job<'_>,
    (span, share): (&Span<'_>, f64),
    all: &mut [(&Group<'_>, Swept)],
    looker: &mut dyn Looker,
    sink: &mut dyn Sink,
    cancel: &Cancel,
) -> Result<()> {
    let some = Span { end: span.clock.now() + share * span.left(), ..*span };
    let apart = apart(some.left());
    turns(job, (More::Larger, apart), &some, all, looker, sink, cancel)?;
    turns(job, (More::Decide(Depth::First), apart), span, all, looker, sink, cancel)
}

/// Seconds between the looks of a group: [`APART`], or less where so much time is too short for that.
fn apart(time: f64) -> f64 {
    APART.min(time / LOOKS)
}

fn at(what: &str, group: &Group<'_>, done: usize, total: usize) -> Progress {
    Progress {
        doing: format!(
            "{what}{} {} {} on {}",
            group.op.name,
            group.dtype,
            group.family.name,
            group.runner.device().info().id
        ),
        done: done as u64,
        total: Some(total as u64),
    }
}

/// Groups look one after the other, one look at a time, whoever has had the least time next, until none waits any more or
/// the time is up. Looks of one group lie so many seconds apart.
fn turns(
    job: &mut Job<'_>,
    (how, apart): (More, f64),
    span: &Span<'_>,
    all: &mut [(&Group<'_>, Swept)],
    looker: &mut dyn Looker,
    sink: &mut dyn Sink,
    cancel: &Cancel,
) -> Result<()> {
    // Which, the time it had, and when it may look again.
    let mut queue: Vec<(usize, f64, f64)> =
        (0..all.len()).filter(|i| how.helps(&all[*i].1)).map(|i| (i, 0.0, 0.0)).collect();
    let total = queue.len();
    while span.left() > 0.0 && !queue.is_empty() && !cancel.raised() {
        let now = span.clock.now();
        let ready = queue.iter().enumerate().filter(|(_, q)| q.2 <= now || span.clock.is_virtual());
        let Some((place, _)) = ready.min_by(|(_, a), (_, b)| a.1.total_cmp(&b.1)) else {
            span.wait_until(queue.iter().map(|q| q.2).fold(f64::INFINITY, f64::min));
            continue;
        };
        let (i, had, _) = queue.swap_remove(place);
        let (group, swept) = &mut all[i];
        sink.progress(&at(how.doing(), group, total - queue.len() - 1, total));
        let share = span.left().min(1.5 * span.left() / (queue.len() + 1) as f64);
        job.go_on((*group, how), swept, share, looker, cancel)?;
        if swept.waits {
            let end = span.clock.now();
            let counts = if matches!(how, More::Decide(Depth::Full(_))) && !swept.crosses() { OPEN } else { 1.0 };
            queue.push((i, had + counts * (end - now), end + apart));
        }
    }
    job.interrupted |= cancel.raised();
    Ok(())
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
