//! The keys of a calibration one after the other: a correctness check, a sweep, a verdict.

use std::time::Duration;

use crate::base::record::{CalibrateRecord, Record};
use crate::base::sink::{Cancel, Sink};
use crate::base::{Attrs, Code, DType, DeviceClass, Error, Fill, Result, os};
use crate::device::probe::Rig;
use crate::device::sim;
use crate::engine::Runner;
use crate::engine::trials::Finding;
use crate::jobs::look::Looker;
use crate::kernel;
use crate::measure::Residency;
use crate::measure::crossing::Outcome;
use crate::op::{Family, OpDesc};
use crate::profile::model::{Curve, Sample};
use crate::profile::{self, CPU_AUTO, Entry, Profile, Verdict};

use super::decide::{self, Decision};
use super::disturbed::Disturbed;
use super::machine::utc;
use super::slowed::Slowed;
use super::smoke::{self, Trust};
use super::sweep::{Depth, SPENT, Shared, Sweep, Swept};
use super::{CalibrateConfig, Calibrated, Wanted, earlier};

const INTERRUPTED: &str = "interrupted before this key was known";

/// Of what had no place beside the kernels that were built.
const BUILT: &str = "building kernels took the time for this key; another run finds those built that are kept";

/// Share of the budget from which on it is told how much of it went into what is done once.
const MUCH: f64 = 0.25;

pub(super) fn groups_of<'d>(keys: &[Wanted], devices: &'d [Runner]) -> Vec<Group<'d>> {
    let of = |k: &Wanted| {
        let k = *k;
        devices.iter().map(move |runner| Group { number: 0, op: k.op, dtype: k.dtype, family: k.family, runner })
    };
    numbered(keys.iter().flat_map(of).collect())
}

fn numbered(mut groups: Vec<Group<'_>>) -> Vec<Group<'_>> {
    groups.iter_mut().enumerate().for_each(|(i, g)| g.number = i);
    groups
}

/// One op, dtype and family on one device; its keys differ by residency only.
pub(super) struct Group<'d> {
    /// In the order in which they are asked for.
    pub(super) number: usize,
    pub(super) op: &'static OpDesc,
    pub(super) dtype: DType,
    pub(super) family: &'static Family,
    pub(super) runner: &'d Runner,
}

/// What more time is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum More {
    /// Verdicts that are open: one look.
    Decide(Depth),
    /// The next larger size: one look.
    Larger,
    /// Another shape, for the curves.
    Shapes,
}

impl More {
    /// What a progress line says before the group's name.
    pub(super) fn doing(self) -> &'static str {
        match self {
            More::Decide(Depth::First) => "crossing of ",
            More::Decide(_) => "a narrower crossing of ",
            More::Larger => "larger sizes of ",
            More::Shapes => "other shapes of ",
        }
    }

    /// Whether it is for intervals rather than for verdicts.
    pub(super) fn narrows(self) -> bool {
        matches!(self, More::Decide(depth) if depth != Depth::First)
    }

    /// Whether it may help a group.
    pub(super) fn helps(self, swept: &Swept) -> bool {
        !swept.stopped()
            && match self {
                More::Decide(Depth::First) => swept.undecided,
                More::Decide(_) => swept.is_open(),
                More::Larger => swept.cut_short,
                More::Shapes => true,
            }
    }
}

pub(super) struct Job<'a> {
    pub(super) cfg: &'a CalibrateConfig,
    pub(super) rig: &'a Rig,
    pub(super) profile: Profile,
    /// With the number of the group: groups are judged in another order than they were asked for.
    records: Vec<(usize, CalibrateRecord)>,
    entries: Vec<(usize, Entry)>,
    /// Keys whose time was spent before they were known.
    spent: Vec<Entry>,
    unmeasured: u64,
    /// Decided keys whose larger sizes were left out.
    cut: u64,
    /// Keys whose curve was not fitted, because the time was up.
    pub(super) without_curve: usize,
    calls: [u64; 2],
    disturbed: Disturbed,
    /// What looks are off by in common.
    pub(super) shared: Shared,
    /// Seconds so far of what is done once: checks, and kernels that are built and called for the first time.
    pub(super) once_s: f64,
    /// Devices that compute nothing take part, and only they.
    study: bool,
    /// Last correctness check: op, dtype, device serial. Groups with equal parts follow each other.
    checked: Option<((&'static str, DType, u64), Result<Trust>)>,
    /// Devices that were lost, by serial, and how.
    lost: Vec<(u64, String)>,
    /// Kernels that computed wrong.
    wrong: Vec<Finding>,
    slowed: Slowed,
    kept: u64,
    pub(super) interrupted: bool,
    /// By serial of the device: the residencies that it offers, and why it does not offer the others.
    residencies: Vec<(u64, Vec<Residency>, Vec<(Residency, String)>)>,
}

impl<'a> Job<'a> {
    pub(super) fn new(cfg: &'a CalibrateConfig, rig: &'a Rig, study: bool) -> Result<Self> {
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
            cpus: u32::try_from(os::allowed_cpus().len()).unwrap_or(0),
            memory_bytes: info.memory_bytes.unwrap_or(0),
            os: os::os_name(),
            ..profile::Host::of(info)
        });
        if let Some(blas) = info.facts.blas.as_ref().filter(|b| !b.weak.is_empty()) {
            profile.notes.push(format!("{}; a faster CPU side needs larger sizes to lose", blas.weakness()));
        }
        if info.class == DeviceClass::Simulated {
            profile.notes.push("simulated: no number here was measured on a device".into());
        }
        Ok(Job {
            cfg,
            rig,
            profile,
            records: Vec::new(),
            entries: Vec::new(),
            spent: Vec::new(),
            unmeasured: 0,
            cut: 0,
            without_curve: 0,
            calls: [0; 2],
            disturbed: Disturbed::default(),
            shared: Shared::default(),
            once_s: 0.0,
            study,
            checked: None,
            lost: Vec::new(),
            wrong: Vec::new(),
            slowed: Slowed::new((cfg.telemetry)()),
            kept: 0,
            interrupted: false,
            residencies: Vec::new(),
        })
    }

    /// The devices that take part; the others leave a note in the profile.
    pub(super) fn devices(&mut self, sink: &mut dyn Sink) -> Vec<Runner> {
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
                // Judges kernels; whoever times them keeps them.
                devices.push(Runner::new(std::sync::Arc::clone(d)).keeping(self.cfg.kernels.read_only()));
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
        self.residencies = devices.iter().map(|runner| residencies(&self.cfg.residencies, runner)).collect();
        devices
    }

    /// The residencies that a group's device offers.
    pub(super) fn offered(&self, g: &Group<'_>) -> &[Residency] {
        let serial = g.runner.device().serial();
        self.residencies.iter().find(|(known, ..)| *known == serial).map_or(&self.cfg.residencies, |(_, some, _)| some)
    }

    /// Keys that the device cannot have.
    fn not_offered(&mut self, g: &Group<'_>, sink: &mut dyn Sink) {
        let serial = g.runner.device().serial();
        let missing = self.residencies.iter().find(|(known, ..)| *known == serial).map(|(.., missing)| missing.clone());
        for (residency, why) in missing.into_iter().flatten() {
            let record = self.blank(g, residency, Decision::none(Verdict::Unmeasured, why));
            self.push(g, record, None, false, sink);
        }
    }

    pub(super) fn groups<'d>(&self, devices: &'d [Runner]) -> Vec<Group<'d>> {
        let mut groups = Vec::new();
        let mut ops: Vec<_> = self.cfg.ops.iter().filter(|op| super::can(op, &self.cfg.dtypes)).collect();
        // The more arithmetic for each byte, the more a device gains, and the more is lost if the budget ends before.
        ops.sort_by(|a, b| intensity(b).total_cmp(&intensity(a)));
        for op in ops {
            for dtype in self.cfg.dtypes.iter().copied().filter(|d| op.dtypes.contains(d)) {
                for runner in devices {
                    groups.extend(op.families.iter().map(|family| Group { number: 0, op, dtype, family, runner }));
                }
            }
        }
        numbered(groups)
    }

    /// Checks a group and looks at its sizes in one process within `share` seconds, besides what is done once; but within `most`
    /// in all. `None` if it is judged already, or if it has no share.
    pub(super) fn group(
        &mut self,
        g: &Group<'_>,
        (share, most): (f64, f64),
        looker: &mut dyn Looker,
        sink: &mut dyn Sink,
        cancel: &Cancel,
    ) -> Result<Option<Swept>> {
        let device = g.runner.device();
        if let Some(entries) = self.cfg.earlier.as_ref().and_then(|e| earlier::kept(e, &self.keys(g))) {
            self.kept += entries.len() as u64;
            self.entries.extend(entries.into_iter().map(|e| (g.number, e)));
            return Ok(None);
        }
        self.not_offered(g, sink);
        if self.interrupted || cancel.raised() {
            self.interrupted = true;
            self.without(g, Verdict::Unmeasured, INTERRUPTED, sink);
            return Ok(None);
        }
        let lost = self.lost.iter().find(|(serial, _)| *serial == device.serial()).map(|(_, why)| why.clone());
        if let Some(why) = lost {
            self.without(g, Verdict::Unmeasured, &format!("the device was lost before: {why}"), sink);
            return Ok(None);
        }
        let deadline = Duration::from_secs_f64((share * 4.0).clamp(10.0, 600.0));
        let begin = self.rig.cpu.clock().now();
        if share <= 0.0 {
            self.unmeasured += self.offered(g).len() as u64;
            let why = if most > 0.0 { BUILT } else { "the budget was spent before this key" };
            self.without(g, Verdict::Unmeasured, why, sink);
            return Ok(None);
        }
        let key = (g.op.name, g.dtype, device.serial());
        if self.checked.as_ref().is_none_or(|(k, _)| *k != key) {
            let trust = if self.study { Ok(Trust::Ok) } else { smoke::check(g.runner, g.op, g.dtype, deadline) };
            if let Ok(Trust::Wrong(_, finding)) = &trust {
                self.wrong.push(finding.clone());
            }
            self.checked = Some((key, trust));
        }
        match self.checked.as_ref().map(|(_, trust)| trust) {
            Some(Ok(Trust::Ok)) => {}
            Some(Ok(Trust::Wrong(why, _))) => {
                let why = format!(
                    "wrong result: {why}; rerun: gpuctl verify --op {} --dtype {} --device {}",
                    g.op.name,
                    g.dtype,
                    device.info().id
                );
                self.without(g, Verdict::Unsafe, &why, sink);
                return Ok(None);
            }
            Some(Ok(Trust::Unjudged(why))) => {
                let why = why.clone();
                self.without(g, Verdict::Unmeasured, &why, sink);
                return Ok(None);
            }
            Some(Err(e)) => {
                let why = e.to_string();
                if smoke::fatal(e) {
                    self.lost.push((device.serial(), why.clone()));
                }
                self.without(g, Verdict::Unmeasured, &why, sink);
                return Ok(None);
            }
            None => return Err(Error::new(Code::Internal, "the check left no result")),
        }
        self.slowed.look(g.number, device.info());
        let checking_s = self.rig.cpu.clock().now() - begin;
        let budget_s = share.min(most - checking_s);
        let mut swept = Swept::default();
        let begun = self.sweep(g, budget_s, cancel).begin(looker, &mut swept);
        self.once_s += checking_s + std::mem::take(&mut swept.once_s);
        self.slowed.look(g.number, device.info());
        match begun {
            Err(e) if e.code() == Code::Cancelled => {
                self.interrupted = true;
                self.without(g, Verdict::Unmeasured, INTERRUPTED, sink);
                Ok(None)
            }
            begun => {
                begun?;
                self.note_loss(g, &swept);
                Ok(Some(swept))
            }
        }
    }

    /// Goes on with a group within `share` seconds, in one way or another; what was known before stays where it is interrupted.
    pub(super) fn go_on(
        &mut self,
        (g, how): (&Group<'_>, More),
        swept: &mut Swept,
        share: f64,
        looker: &mut dyn Looker,
        cancel: &Cancel,
    ) -> Result<()> {
        if !how.helps(swept) || share <= 0.0 || cancel.raised() || self.is_lost(g) {
            swept.waits = false;
            self.interrupted |= cancel.raised();
            return Ok(());
        }
        self.slowed.look(g.number, g.runner.device().info());
        let sweep = self.sweep(g, share, cancel);
        let more = match how {
            More::Decide(depth) => sweep.turn(looker, swept, depth),
            More::Larger => sweep.larger(looker, swept),
            More::Shapes => sweep.look_elsewhere(looker, swept),
        };
        self.once_s += std::mem::take(&mut swept.once_s);
        self.slowed.look(g.number, g.runner.device().info());
        match more {
            Err(e) if e.code() == Code::Cancelled => self.interrupted = true,
            more => {
                more?;
                self.note_loss(g, swept);
            }
        }
        Ok(())
    }

    fn sweep<'s>(&'s self, g: &'s Group<'_>, budget_s: f64, cancel: &'s Cancel) -> Sweep<'s> {
        Sweep {
            number: g.number,
            op: g.op,
            dtype: g.dtype,
            family: g.family,
            range: self.cfg.range.unwrap_or(g.op.unit.default_range()),
            device: &g.runner.device().info().id,
            residencies: self.offered(g),
            processes: self.cfg.processes,
            budget_s,
            clock: self.rig.cpu.clock(),
            seed: self.cfg.seed,
            shared: &self.shared,
            cancel,
        }
    }

    fn is_lost(&self, g: &Group<'_>) -> bool {
        self.lost.iter().any(|(serial, _)| *serial == g.runner.device().serial())
    }

    fn note_loss(&mut self, g: &Group<'_>, swept: &Swept) {
        if let Some(e) = swept.error.as_ref().filter(|e| smoke::fatal(e)) {
            self.lost.push((g.runner.device().serial(), e.to_string()));
        }
    }

    /// What the curves of a swept group rest on, one per residency; nothing where a device went wrong.
    pub(super) fn samples(&self, g: &Group<'_>, swept: &Swept) -> Result<Vec<(Vec<Sample>, bool)>> {
        let residencies = if swept.is_void() { 0 } else { self.offered(g).len() };
        let cancel = Cancel::default();
        let sweep = self.sweep(g, 0.0, &cancel);
        (0..residencies).map(|which| sweep.samples(swept, which)).collect()
    }

    /// Verdicts of a swept group, one per residency, with their curves.
    pub(super) fn judge(
        &mut self,
        g: &Group<'_>,
        swept: Swept,
        curves: Vec<Option<Curve>>,
        sink: &mut dyn Sink,
    ) -> Result<()> {
        for (all, some) in self.calls.iter_mut().zip(swept.calls) {
            *all += some;
        }
        self.disturbed.add(&swept);
        if let Some(why) = swept.wrong {
            self.without(g, Verdict::Unsafe, &format!("wrong result: {why}"), sink);
            return Ok(());
        }
        if let Some(e) = swept.error.as_ref().filter(|_| swept.is_void()) {
            self.without(g, Verdict::Unmeasured, &e.to_string(), sink);
            return Ok(());
        }
        let ended = swept.error.as_ref().map(|e| format!("measuring it ended with an error: {e}"));
        let slowed = self.slowed.reason(g.number, g.runner.device().info(), self.offered(g).len());
        let found = self.sweep(g, 0.0, &Cancel::default()).found(&swept)?;
        for ((residency, found), curve) in self.offered(g).to_vec().into_iter().zip(found).zip(curves) {
            let sizes: Vec<u64> = found.points.iter().map(|p| p.size).collect();
            let spent = matches!(found.outcome, Outcome::Inconclusive(SPENT));
            let mut decision = match found.outcome {
                // More time would tell; who resumes it has that.
                Outcome::Inconclusive(SPENT) if self.interrupted => Decision::none(Verdict::Unmeasured, INTERRUPTED),
                outcome => decide::decide(&outcome, &sizes, self.cfg.margin),
            };
            for more in found.cut.iter().chain(&slowed).chain(&ended) {
                decision.reason.push_str(&format!("; {more}"));
            }
            if sizes.is_empty() {
                self.unmeasured += 1;
            }
            let mut record = self.blank(g, residency, decision);
            self.cut += u64::from(found.cut.is_some() && super::is_decided(&record.verdict));
            record.kernel = swept.kernel.clone();
            record.points = found.points;
            if spent {
                self.spent.push(Entry::from(&record));
            }
            self.push(g, record, curve.map(|c| Curve { change: found.change, ..c }), true, sink);
        }
        Ok(())
    }

    /// The keys of a group as entries without results.
    fn keys(&self, g: &Group<'_>) -> Vec<Entry> {
        let blank = |r: &Residency| Entry::from(&self.blank(g, *r, Decision::none(Verdict::Unmeasured, "")));
        self.offered(g).iter().map(blank).collect()
    }

    /// Keys of a group that have no points, for one reason.
    fn without(&mut self, g: &Group<'_>, verdict: Verdict, why: &str, sink: &mut dyn Sink) {
        for residency in self.offered(g).to_vec() {
            let record = self.blank(g, residency, Decision::none(verdict, why));
            self.push(g, record, None, false, sink);
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
            cpu_blas: self.rig.cpu.info().facts.blas.as_ref().map(|b| b.text()).unwrap_or_default(),
            kernel: String::new(),
            verdict: d.verdict.name().into(),
            unit: g.op.unit.name().into(),
            crossing: d.crossing,
            ci: d.ci,
            stake: d.stake,
            threshold: d.threshold,
            points: Vec::new(),
            reason: d.reason,
        }
    }

    fn push(
        &mut self,
        g: &Group<'_>,
        record: CalibrateRecord,
        curve: Option<Curve>,
        checked: bool,
        sink: &mut dyn Sink,
    ) {
        let mut entry = Entry { curve, ..Entry::from(&record) };
        if self.study {
            entry.verify = sim::TIMING_ONLY.into();
        } else if !checked && entry.verdict != Verdict::Unsafe {
            entry.verify = "not run".into();
        }
        self.entries.push((g.number, entry));
        sink.record(&Record::Calibrate(Box::new(record.clone())));
        self.records.push((g.number, record));
    }

    /// What cards told of their clocks, for people and for the profile.
    pub(super) fn note_clocks(&mut self, sink: &mut dyn Sink) {
        for note in self.slowed.notes() {
            sink.note(&note);
            self.profile.notes.push(note);
        }
    }

    pub(super) fn finish(mut self) -> Calibrated {
        self.entries.sort_by_key(|(number, _)| *number);
        self.records.sort_by_key(|(number, _)| *number);
        self.profile.entries = self.entries.into_iter().map(|(_, entry)| entry).collect();
        let asked = self.profile.entries.clone();
        if self.unmeasured > 0 {
            self.profile.notes.push(format!("{} keys are unmeasured: the budget was spent", self.unmeasured));
        }
        if self.cut > 0 {
            self.profile.notes.push(format!("{} keys are decided up to a smaller size than asked for", self.cut));
        }
        let budget_s = self.cfg.budget.as_secs_f64();
        if self.once_s > MUCH * budget_s {
            self.profile.notes.push(format!(
                "{:.3} of {budget_s:.3} s went into building kernels and checking them: another run finds those built that are kept",
                self.once_s
            ));
        }
        self.disturbed.tell(&mut self.profile, !self.rig.cpu.clock().is_virtual());
        if self.without_curve > 0 {
            let n = self.without_curve;
            self.profile
                .notes
                .push(format!("{n} keys have no cost curve, for the budget was spent: thresholds decide"));
        }
        if self.interrupted {
            self.profile.notes.push("interrupted: keys without a verdict are unmeasured".into());
            self.profile.partial = true;
        }
        if let Some(earlier) = &self.cfg.earlier {
            let stay = earlier::add(&mut self.profile, earlier, &self.spent);
            if stay > 0 {
                self.profile
                    .notes
                    .push(format!("{stay} keys stay as they were: the budget was spent before they were known"));
            }
        }
        Calibrated {
            profile: self.profile,
            records: self.records.into_iter().map(|(_, record)| record).collect(),
            unmeasured: self.unmeasured,
            cut: self.cut,
            wrong: self.wrong,
            kept: self.kept,
            asked,
            interrupted: self.interrupted,
            calls: self.calls,
            complete: self.unmeasured == 0 && !self.interrupted,
        }
    }
}

/// Which of these a device offers, and why it does not offer the others.
fn residencies(asked: &[Residency], runner: &Runner) -> (u64, Vec<Residency>, Vec<(Residency, String)>) {
    let device = runner.device();
    let (mut offered, mut missing) = (Vec::new(), Vec::new());
    for residency in asked {
        match residency.offered(device.as_ref()) {
            Ok(()) => offered.push(*residency),
            Err(e) => missing.push((*residency, e.to_string())),
        }
    }
    (device.serial(), offered, missing)
}

/// Operations for each byte at the largest size of the op's first family.
fn intensity(op: &OpDesc) -> f64 {
    let largest = op.families.first().map(|f| (f.sweep)(op.unit.default_range().1));
    let case = largest
        .zip(op.dtypes.first())
        .and_then(|(dims, dtype)| op.case(*dtype, &dims, Attrs::new(), Fill::Uniform).ok());
    case.map_or(0.0, |c| (op.cost)(&c).flops as f64 / (op.cost)(&c).bytes().max(1) as f64)
}
