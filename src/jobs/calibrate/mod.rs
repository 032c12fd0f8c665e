//! From which size on each op is faster on a GPU: a profile with its evidence.
//!
//! For every op, dtype, family and device: a correctness check first, then a sweep of interleaved CPU and device calls
//! (`sweep`) in several processes (`look`), as far as pure rules ask for it (`measure::crossing`). Nothing is borrowed between keys; what was not measured says
//! so. The budget counts the rig's clock, which is virtual for simulated devices.

pub mod decide;
mod earlier;
mod look;
mod machine;
mod own;
pub mod regret;
mod shapes;
mod smoke;
mod sweep;

use std::time::Duration;

use crate::base::record::{CalibrateRecord, Record};
use crate::base::sink::{Cancel, Progress, Sink};
use crate::base::{Attrs, Code, DType, DeviceClass, Error, Fill, Result, os};
use crate::device::probe::Rig;
use crate::device::sim;
use crate::engine::Runner;
use crate::jobs::workers::Start;
use crate::kernel;
use crate::measure::Residency;
use crate::op::{Family, OpDesc, Unit};
use crate::profile::model::Curve;
use crate::profile::{self, CPU_AUTO, Entry, Profile, ProfileDevice, Verdict};

use decide::Decision;
use look::{Crew, Here, Looker};
use machine::{transfer, utc};
use smoke::Trust;
use sweep::{Sweep, Swept};

pub use look::worker;
pub use own::{Own, measure};
pub(in crate::jobs) use smoke::gross_error;

const INTERRUPTED: &str = "interrupted before this key was known";

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
    /// Keys that an earlier, partial profile had.
    pub kept: u64,
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
        let open = [Verdict::Inconclusive.name(), Verdict::Unmeasured.name()];
        self.records.iter().filter(|r| !open.contains(&r.verdict.as_str())).count()
    }
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
    let mut here = Here::new(rigs, cfg.cpu_variant.as_deref());
    run_with(cfg, first, &mut here, How::here(&[], rigs), sink, cancel)
}

/// A study of simulated machines that were opened for timing only: as [`run_in`], but nothing is computed and nothing
/// checked, so the profile says so and cannot be written.
pub fn study_in(cfg: &CalibrateConfig, rigs: &[&Rig], sink: &mut dyn Sink, cancel: &Cancel) -> Result<Calibrated> {
    let Some(first) = rigs.first() else { return Err(Error::new(Code::BadArgument, "no rig to calibrate")) };
    let mut here = Here::new(rigs, cfg.cpu_variant.as_deref());
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
    let mut here = Here::new(rigs, cfg.cpu_variant.as_deref());
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
    for (done, group) in groups.iter().enumerate() {
        sink.progress(&Progress {
            doing: format!(
                "{} {} {} on {}",
                group.op.name,
                group.dtype,
                group.family.name,
                group.runner.device().info().id
            ),
            done: done as u64,
            total: Some(groups.len() as u64),
        });
        // Many keys need less than their share, so each may take twice as much; the last has what is left.
        let even = (end - clock.now()).max(0.0) / (groups.len() - done) as f64;
        let share = if done + 1 < groups.len() { 2.0 * even } else { even };
        job.group(group, share, looker, sink, cancel)?;
    }
    Ok(job.finish())
}

/// Calibrations of one machine that differ by their number of CPU threads, as one. Errors: `BadArgument` for none.
pub fn joined(parts: Vec<Calibrated>) -> Result<Calibrated> {
    let mut parts = parts.into_iter();
    let none = || Error::new(Code::BadArgument, "no calibration to join");
    let mut all = parts.next().ok_or_else(none)?;
    for part in parts {
        earlier::add(&mut all.profile, &part.profile);
        all.profile.partial |= part.profile.partial;
        for note in part.profile.notes {
            if !all.profile.notes.contains(&note) {
                all.profile.notes.push(note);
            }
        }
        all.records.extend(part.records);
        all.unmeasured += part.unmeasured;
        all.kept += part.kept;
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

fn groups_of<'d>(keys: &[Wanted], devices: &'d [Runner]) -> Vec<Group<'d>> {
    let of = |k: &Wanted| {
        let k = *k;
        devices.iter().map(move |runner| Group { op: k.op, dtype: k.dtype, family: k.family, runner })
    };
    keys.iter().flat_map(of).collect()
}

/// One op, dtype and family on one device; its keys differ by residency only.
struct Group<'d> {
    op: &'static OpDesc,
    dtype: DType,
    family: &'static Family,
    runner: &'d Runner,
}

struct Job<'a> {
    cfg: &'a CalibrateConfig,
    rig: &'a Rig,
    profile: Profile,
    records: Vec<CalibrateRecord>,
    unmeasured: u64,
    calls: [u64; 2],
    /// Devices that compute nothing take part, and only they.
    study: bool,
    /// Last correctness check: op, dtype, device serial. Groups with equal parts follow each other.
    checked: Option<((&'static str, DType, u64), Result<Trust>)>,
    /// Devices that were lost, by serial, and how.
    lost: Vec<(u64, String)>,
    kept: u64,
    interrupted: bool,
}

impl<'a> Job<'a> {
    fn new(cfg: &'a CalibrateConfig, rig: &'a Rig, study: bool) -> Result<Self> {
        let info = rig.cpu.info();
        if let Some(variant) = &cfg.cpu_variant {
            let has = |op: &&&OpDesc| {
                op.kernels.iter().any(|k| k.variant == variant && kernel::lang_for(&k.body, info).is_some())
            };
            if cfg.ops.iter().filter(has).count() == 0 {
                return Err(Error::new(
                    Code::BadArgument,
                    format!("no op has a CPU variant '{variant}'; `naive` is in every op"),
                ));
            }
        }
        let mut profile = Profile::new(profile::Kind::Calibrated, "calibrated");
        profile.margin = cfg.margin;
        profile.rule = profile::Rule::Curve;
        profile.created =
            utc(std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(0, |d| d.as_secs()));
        profile.host = Some(profile::Host {
            cpu: info.name.clone(),
            // The CPU's api text reads `THREADS threads, ISA`.
            isa: info.api.rsplit(", ").next().unwrap_or_default().to_string(),
            cpus: u32::try_from(os::allowed_cpus().len()).unwrap_or(0),
            memory_bytes: info.memory_bytes.unwrap_or(0),
            os: os::os_name(),
        });
        if info.class == DeviceClass::Simulated {
            profile.notes.push("simulated: no number here was measured on a device".into());
        }
        Ok(Job {
            cfg,
            rig,
            profile,
            records: Vec::new(),
            unmeasured: 0,
            calls: [0; 2],
            study,
            checked: None,
            lost: Vec::new(),
            kept: 0,
            interrupted: false,
        })
    }

    /// The devices that take part; the others leave a note in the profile.
    fn devices(&mut self, sink: &mut dyn Sink) -> Vec<Runner> {
        let mut notes = Vec::new();
        let mut devices = Vec::new();
        for d in self.rig.devices.iter().filter(|d| d.serial() != self.rig.cpu.serial()) {
            let info = d.info();
            if info.class == DeviceClass::Cpu {
                continue;
            }
            if info.is_software() && !self.cfg.allow_software {
                notes.push(format!(
                    "{} ({}) is a software device and was left out (--allow-software)",
                    info.id, info.name
                ));
            } else if self.study != sim::timing_only(info) {
                let why = if self.study { "a study takes what computes nothing" } else { sim::TIMING_ONLY };
                notes.push(format!("{} was left out: {why}", info.id));
            } else {
                devices.push(Runner::new(std::sync::Arc::clone(d)));
            }
        }
        if devices.is_empty() {
            notes.push("no GPU takes part: everything runs on the CPU".into());
            notes.extend(self.rig.absent.iter().map(|a| format!("{}: {}", a.what, a.reason)));
        }
        for n in &notes {
            sink.note(n);
        }
        self.profile.notes.extend(notes);
        devices
    }

    fn groups<'d>(&self, devices: &'d [Runner]) -> Vec<Group<'d>> {
        let mut groups = Vec::new();
        let mut ops: Vec<_> =
            self.cfg.ops.iter().filter(|op| !matches!(op.unit, Unit::Bytes | Unit::Calls | Unit::Flops)).collect();
        // The more arithmetic for each byte, the more a device gains, and the more is lost if the budget ends before.
        ops.sort_by(|a, b| intensity(b).total_cmp(&intensity(a)));
        for op in ops {
            for dtype in self.cfg.dtypes.iter().copied().filter(|d| op.dtypes.contains(d)) {
                for runner in devices {
                    groups.extend(op.families.iter().map(|family| Group { op, dtype, family, runner }));
                }
            }
        }
        groups
    }

    /// Checks, sweeps and judges one group within `share` seconds.
    fn group(
        &mut self,
        g: &Group<'_>,
        share: f64,
        looker: &mut dyn Looker,
        sink: &mut dyn Sink,
        cancel: &Cancel,
    ) -> Result<()> {
        let device = g.runner.device();
        if let Some(entries) = self.cfg.earlier.as_ref().and_then(|e| earlier::kept(e, &self.keys(g))) {
            self.kept += entries.len() as u64;
            self.profile.entries.extend(entries);
            return Ok(());
        }
        if self.interrupted || cancel.raised() {
            self.interrupted = true;
            self.without(g, Verdict::Unmeasured, INTERRUPTED, sink);
            return Ok(());
        }
        let lost = self.lost.iter().find(|(serial, _)| *serial == device.serial()).map(|(_, why)| why.clone());
        if let Some(why) = lost {
            self.without(g, Verdict::Unmeasured, &format!("the device was lost before: {why}"), sink);
            return Ok(());
        }
        let deadline = Duration::from_secs_f64((share * 4.0).clamp(10.0, 600.0));
        let begin = self.rig.cpu.clock().now();
        if share <= 0.0 {
            self.unmeasured += self.cfg.residencies.len() as u64;
            self.without(g, Verdict::Unmeasured, "the budget was spent before this key", sink);
            return Ok(());
        }
        let key = (g.op.name, g.dtype, device.serial());
        if self.checked.as_ref().is_none_or(|(k, _)| *k != key) {
            let trust = if self.study { Ok(Trust::Ok) } else { smoke::check(g.runner, g.op, g.dtype, deadline) };
            self.checked = Some((key, trust));
        }
        match self.checked.as_ref().map(|(_, trust)| trust) {
            Some(Ok(Trust::Ok)) => {}
            Some(Ok(Trust::Wrong(why))) => {
                let why = format!(
                    "wrong result: {why}; rerun: gpuctl verify --op {} --dtype {} --device {}",
                    g.op.name,
                    g.dtype,
                    device.info().id
                );
                self.without(g, Verdict::Unsafe, &why, sink);
                return Ok(());
            }
            Some(Ok(Trust::Unjudged(why))) => {
                let why = why.clone();
                self.without(g, Verdict::Unmeasured, &why, sink);
                return Ok(());
            }
            Some(Err(e)) => {
                let why = e.to_string();
                if smoke::fatal(e) {
                    self.lost.push((device.serial(), why.clone()));
                }
                self.without(g, Verdict::Unmeasured, &why, sink);
                return Ok(());
            }
            None => return Err(Error::new(Code::Internal, "the check left no result")),
        }
        let clock = self.rig.cpu.clock();
        let sweep = Sweep {
            op: g.op,
            dtype: g.dtype,
            family: g.family,
            range: self.cfg.range.unwrap_or(g.op.unit.default_range()),
            device: &device.info().id,
            residencies: &self.cfg.residencies,
            processes: self.cfg.processes,
            budget_s: share - (clock.now() - begin),
            clock,
            seed: self.cfg.seed,
            cancel,
        };
        let swept = match sweep.run(looker) {
            Err(e) if e.code() == Code::Cancelled => {
                self.interrupted = true;
                self.without(g, Verdict::Unmeasured, INTERRUPTED, sink);
                return Ok(());
            }
            swept => swept?,
        };
        if let Some(e) = swept.error.as_ref().filter(|e| smoke::fatal(e)) {
            self.lost.push((device.serial(), e.to_string()));
        }
        self.judge(g, swept, sink);
        Ok(())
    }

    /// Verdicts of a swept group, one per residency.
    fn judge(&mut self, g: &Group<'_>, swept: Swept, sink: &mut dyn Sink) {
        for (all, some) in self.calls.iter_mut().zip(swept.calls) {
            *all += some;
        }
        if let Some(why) = swept.wrong {
            return self.without(g, Verdict::Unsafe, &format!("wrong result: {why}"), sink);
        }
        if let Some(e) = swept.error {
            return self.without(g, Verdict::Unmeasured, &e.to_string(), sink);
        }
        for (residency, found) in self.cfg.residencies.clone().into_iter().zip(swept.found) {
            let sizes: Vec<u64> = found.points.iter().map(|p| p.size).collect();
            let mut decision = decide::decide(&found.outcome, &sizes, self.cfg.margin);
            if let Some(cut) = &swept.cut {
                decision.reason.push_str(&format!("; {cut}"));
            }
            if sizes.is_empty() {
                self.unmeasured += 1;
            }
            let mut record = self.blank(g, residency, decision);
            record.kernel = swept.kernel.clone();
            record.points = found.points;
            self.push(record, found.curve, true, sink);
        }
    }

    /// The keys of a group as entries without results.
    fn keys(&self, g: &Group<'_>) -> Vec<Entry> {
        let blank = |r: &Residency| Entry::from(&self.blank(g, *r, Decision::none(Verdict::Unmeasured, "")));
        self.cfg.residencies.iter().map(blank).collect()
    }

    /// Keys of a group that have no points, for one reason.
    fn without(&mut self, g: &Group<'_>, verdict: Verdict, why: &str, sink: &mut dyn Sink) {
        for residency in self.cfg.residencies.clone() {
            let record = self.blank(g, residency, Decision::none(verdict, why));
            self.push(record, None, false, sink);
        }
    }

    fn blank(&self, g: &Group<'_>, residency: Residency, d: Decision) -> CalibrateRecord {
        let info = g.runner.device().info();
        CalibrateRecord {
            op: g.op.name.into(),
            dtype: g.dtype,
            family: g.family.name.into(),
            device: info.id.clone(),
            uid: info.uid.clone(),
            residency: residency.name().into(),
            threads: self.rig.cpu.info().compute_units,
            cpu_variant: self.cfg.cpu_variant.clone().unwrap_or_else(|| CPU_AUTO.into()),
            kernel: String::new(),
            verdict: d.verdict.name().into(),
            unit: g.op.unit.name().into(),
            crossing: d.crossing,
            ci: d.ci,
            threshold: d.threshold,
            points: Vec::new(),
            reason: d.reason,
        }
    }

    fn push(&mut self, record: CalibrateRecord, curve: Option<Curve>, checked: bool, sink: &mut dyn Sink) {
        let mut entry = Entry { curve, ..Entry::from(&record) };
        if self.study {
            entry.verify = sim::TIMING_ONLY.into();
        } else if !checked && entry.verdict != Verdict::Unsafe {
            entry.verify = "not run".into();
        }
        self.profile.entries.push(entry);
        sink.record(&Record::Calibrate(Box::new(record.clone())));
        self.records.push(record);
    }

    fn finish(mut self) -> Calibrated {
        if self.unmeasured > 0 {
            self.profile.notes.push(format!("{} keys are unmeasured: the budget was spent", self.unmeasured));
        }
        if self.interrupted {
            self.profile.notes.push("interrupted: keys without a verdict are unmeasured".into());
            self.profile.partial = true;
        }
        if let Some(earlier) = &self.cfg.earlier {
            earlier::add(&mut self.profile, earlier);
        }
        Calibrated {
            profile: self.profile,
            records: self.records,
            unmeasured: self.unmeasured,
            kept: self.kept,
            interrupted: self.interrupted,
            calls: self.calls,
            complete: self.unmeasured == 0 && !self.interrupted,
        }
    }
}

/// Operations for each byte at the largest size of the op's first family.
fn intensity(op: &OpDesc) -> f64 {
    let largest = op.families.first().map(|f| (f.sweep)(op.unit.default_range().1));
    let case = largest
        .zip(op.dtypes.first())
        .and_then(|(dims, dtype)| op.case(*dtype, &dims, Attrs::new(), Fill::Uniform).ok());
    case.map_or(0.0, |c| (op.cost)(&c).flops as f64 / (op.cost)(&c).bytes().max(1) as f64)
}
