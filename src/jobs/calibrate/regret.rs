//! What it costs to place calls by a profile, on shapes that the calibration did not see.
//!
//! Each shape is timed on both sides, in turns and in several processes, as calibration times. Beside the profile's own
//! choice stand both constant ones, the shipped default thresholds, the rule of GPU-BLOB (the first size at which the device
//! is faster, forgotten again where it loses against the CPU twice in a row) on the calibration's own medians, and the
//! threshold times 1.5, which must be seen to be worse. A dense sweep of sizes says whether there is a crossing at all.

use std::time::Duration;

use statrs::distribution::{ContinuousCDF, StudentsT};

use crate::base::record::{CalibratePoint, Record};
use crate::base::regret::{RegretDense, RegretPolicy, RegretRecord, RegretShape};
use crate::base::sink::{Cancel, Progress, Sink};
use crate::base::{Attrs, Case, Clock, Code, DType, Error, Features, Fill, Result, stats};
use crate::device::probe::Rig;
use crate::engine::KernelCache;
use crate::jobs::look::{Crew, Here, Looker, Order};
use crate::jobs::workers::Start;
use crate::measure::Residency;
use crate::op::{self, OpDesc};
use crate::profile::file::{Source, load_source};
use crate::profile::{Entry, Key, Place, Profile, Rule, Verdict, model};

use super::shapes::{shapes, size_of};

/// How much to measure.
#[derive(Clone, Debug)]
pub struct RegretConfig {
    /// Held-out shapes of a key.
    pub shapes: usize,
    /// Sizes of the dense sweep.
    pub dense: usize,
    /// Processes (or rounds in one) that measure each.
    pub processes: usize,
    /// Pairs of each look.
    pub pairs: usize,
    /// Looks of each process at a shape or size, at most; at least one, if the time suffices for that.
    pub looks: usize,
    /// Time for everything, on the rig's clock.
    pub budget: Duration,
    /// Chooses the shapes; another one than the calibration's, or they are not held out.
    pub seed: u64,
    /// CPU kernel that the profile was calibrated against; `None`: the engine's choice.
    pub cpu_variant: Option<String>,
}

impl RegretConfig {
    /// 32 shapes and 48 sizes in 5 processes, four times each.
    pub fn new(budget: Duration) -> Self {
        RegretConfig {
            shapes: 32,
            dense: 48,
            processes: 5,
            pairs: 7,
            looks: 4,
            budget,
            seed: 0x4E16_4E57,
            cpu_variant: None,
        }
    }
}

/// What auto may lose against a constant choice.
const ALLOWED: f64 = 0.01;

/// Judges a profile in this process; each rig is a process. At least one.
///
/// Errors: the first one that a key met, once all others are judged and recorded; `Cancelled` at once.
pub fn run_in(
    cfg: &RegretConfig,
    profile: &Profile,
    rigs: &[&Rig],
    sink: &mut dyn Sink,
    cancel: &Cancel,
) -> Result<Vec<RegretRecord>> {
    let Some(first) = rigs.first() else { return Err(Error::new(Code::BadArgument, "no rig to measure on")) };
    let mut here = Here::new(rigs, cfg.cpu_variant.as_deref(), &KernelCache::off());
    run_with(cfg, profile, first, &mut here, sink, cancel)
}

/// The same in fresh processes.
pub fn run_workers(
    cfg: &RegretConfig,
    profile: &Profile,
    rig: &Rig,
    start: &Start,
    sink: &mut dyn Sink,
    cancel: &Cancel,
) -> Result<Vec<RegretRecord>> {
    let mut crew = Crew::new(start, rig.cpu.clock());
    run_with(cfg, profile, rig, &mut crew, sink, cancel)
}

/// Keys that differ by residency only.
fn groups(profile: &Profile) -> Vec<Vec<&Entry>> {
    let mut groups: Vec<Vec<&Entry>> = Vec::new();
    let doubtful = |e: &Entry| matches!(e.verdict, Verdict::Unsafe | Verdict::Unmeasured) || e.points.is_empty();
    let group = |e: &Entry| (e.op.clone(), e.dtype.clone(), e.family.clone(), e.device.clone());
    for e in profile.entries.iter().filter(|e| !doubtful(e)) {
        match groups.last_mut() {
            Some(g) if group(g[0]) == group(e) => g.push(e),
            _ => groups.push(vec![e]),
        }
    }
    groups
}

fn run_with(
    cfg: &RegretConfig,
    profile: &Profile,
    rig: &Rig,
    looker: &mut dyn Looker,
    sink: &mut dyn Sink,
    cancel: &Cancel,
) -> Result<Vec<RegretRecord>> {
    if cfg.shapes < 4 || cfg.dense < 4 || cfg.processes < 2 || cfg.pairs < 3 {
        return Err(Error::new(Code::BadArgument, "regret needs at least 4 shapes, 4 sizes, 2 processes and 3 pairs"));
    }
    let assumed = load_source(Source::Preset("default".into()))?.profile;
    let clock = rig.cpu.clock();
    let end = clock.now() + cfg.budget.as_secs_f64();
    let groups = groups(profile);
    let keys: usize = groups.iter().map(Vec::len).sum();
    let (mut records, mut failed) = (Vec::new(), None);
    for (done, group) in groups.iter().enumerate() {
        let entry = group[0];
        sink.progress(&Progress {
            doing: format!("regret of {} {} {}", entry.op, entry.dtype, entry.family),
            done: done as u64,
            total: Some(groups.len() as u64),
        });
        let share = (end - clock.now()).max(0.0) / (groups.len() - done) as f64;
        let judge = Judge { cfg, profile, assumed: &assumed, clock: clock.as_ref(), end: clock.now() + share, cancel };
        match judge.group(group, keys, looker, sink) {
            Ok(some) => {
                some.iter().for_each(|r| sink.record(&Record::Regret(Box::new(r.clone()))));
                records.extend(some);
            }
            Err(e) if e.code() == Code::Cancelled => return Err(e),
            // The other keys can be judged.
            Err(e) => {
                sink.note(&format!("regret of {} {} {}: {e}", entry.op, entry.dtype, entry.family));
                failed.get_or_insert(e);
            }
        }
    }
    failed.map_or(Ok(records), Err)
}

/// What judges keys that differ by residency only.
struct Judge<'a> {
    cfg: &'a RegretConfig,
    profile: &'a Profile,
    assumed: &'a Profile,
    clock: &'a dyn Clock,
    end: f64,
    cancel: &'a Cancel,
}

impl Judge<'_> {
    fn group(
        &self,
        group: &[&Entry],
        keys: usize,
        looker: &mut dyn Looker,
        sink: &mut dyn Sink,
    ) -> Result<Vec<RegretRecord>> {
        let (cfg, entry) = (self.cfg, group[0]);
        let op = op::find(&entry.op)?;
        let dtype: DType = entry.dtype.parse()?;
        let device = self.profile.devices.iter().find(|d| d.uid == entry.device);
        let device = device.map(|d| d.id.clone()).ok_or_else(|| {
            Error::new(Code::ProfileParse, format!("device '{}' of {} is not listed", entry.device, entry.op))
        })?;
        let mut timer = Timer {
            cfg,
            op,
            device: &device,
            residencies: group.iter().map(|e| e.residency.parse()).collect::<Result<_>>()?,
            clock: self.clock,
            end: self.end,
            looker,
            cancel: self.cancel,
            left_out: 0,
            calls: 0,
        };
        let family =
            op.families.iter().find(|f| f.name == entry.family).ok_or_else(|| {
                Error::new(Code::ProfileParse, format!("{} has no family '{}'", op.name, entry.family))
            })?;
        let sizes = |of: fn(&Entry) -> Option<&CalibratePoint>| group.iter().filter_map(move |e| of(e)).map(|p| p.size);
        let low = sizes(|e| e.points.first()).min().unwrap_or(1);
        let high = sizes(|e| e.points.last()).max().unwrap_or(low);
        let held_out = shapes(op, dtype, family, (low, high), cfg.seed, cfg.shapes, false)?;
        let dense = dense(op, dtype, family, (low, high), cfg.dense)?;
        let share = held_out.len() as f64 / (held_out.len() + dense.len()) as f64;
        let timed = timer.all(held_out, share)?;
        let dense_from = timer.calls;
        let dense = timer.all(dense, 1.0)?;
        let dense_calls = timer.calls - dense_from;
        let left_out = timer.left_out;
        let mut records = Vec::new();
        for (which, entry) in group.iter().enumerate() {
            if timed.is_empty() {
                sink.note(&format!(
                    "{} {} {}: no held-out shape fitted the budget",
                    entry.op, entry.dtype, entry.family
                ));
                continue;
            }
            let (rule, assumed) = (self.profile.rule, self.assumed);
            let subject = Subject { entry, op, rule, assumed, shapes: of(&timed, which) };
            let dense = RegretDense {
                sizes: dense.len() as u64,
                smallest: dense.iter().map(|t| t.size).min(),
                crossing: brute_force(&of(&dense, which)),
                calls: dense_calls,
            };
            let mut record = subject.record(&device, dtype, dense, left_out, keys);
            record.processes = cfg.processes as u64;
            records.push(record);
        }
        Ok(records)
    }
}

/// Sizes of the sweep, equal factors apart.
fn dense(op: &OpDesc, dtype: DType, family: &op::Family, range: (u64, u64), n: usize) -> Result<Vec<Case>> {
    let span = (range.1 as f64 / range.0 as f64).ln();
    let mut cases: Vec<Case> = Vec::new();
    for i in 0..n {
        let size = (range.0 as f64 * (span * i as f64 / (n - 1) as f64).exp()).round() as u64;
        let case = op.case(dtype, &(family.sweep)(size.max(1)), Attrs::new(), Fill::Uniform)?;
        if cases.last().is_none_or(|c| c.dims != case.dims) {
            cases.push(case);
        }
    }
    Ok(cases)
}

/// A case's times, look by look of each process: of the CPU, and of the device in each residency.
struct Timed {
    case: Case,
    call: Features,
    size: u64,
    cpu: Vec<Vec<f64>>,
    devices: Vec<Vec<Vec<f64>>>,
}

/// A shape with its times in one residency, by process.
#[derive(Clone, Debug)]
struct Held {
    text: String,
    call: Features,
    size: u64,
    cpu: Vec<f64>,
    gpu: Vec<f64>,
}

fn geometric(v: &[f64]) -> f64 {
    (v.iter().map(|t| t.ln()).sum::<f64>() / v.len() as f64).exp()
}

impl Held {
    fn seconds(&self, gpu: bool) -> f64 {
        geometric(if gpu { &self.gpu } else { &self.cpu })
    }

    fn regret(&self, gpu: bool) -> f64 {
        self.seconds(gpu) / self.seconds(false).min(self.seconds(true)) - 1.0
    }
}

fn of(timed: &[Timed], which: usize) -> Vec<Held> {
    let mut held: Vec<Held> = timed
        .iter()
        .map(|t| Held {
            text: t.case.shape_text(),
            call: t.call,
            size: t.size,
            cpu: t.cpu.iter().map(|looks| geometric(looks)).collect(),
            gpu: t.devices[which].iter().map(|looks| geometric(looks)).collect(),
        })
        .collect();
    held.sort_by_key(|h| h.size);
    held
}

struct Timer<'a> {
    cfg: &'a RegretConfig,
    op: &'static OpDesc,
    device: &'a str,
    residencies: Vec<Residency>,
    clock: &'a dyn Clock,
    end: f64,
    looker: &'a mut dyn Looker,
    cancel: &'a Cancel,
    left_out: u64,
    calls: u64,
}

impl Timer<'_> {
    /// Times cases in all processes within this share of the time that is left, all of them before any is timed again: what a
    /// machine does for some tenths of a second should not be what all looks at a case find. Cases that do not fit are
    /// counted.
    fn all(&mut self, cases: Vec<Case>, share: f64) -> Result<Vec<Timed>> {
        let none = || vec![Vec::new(); self.cfg.processes];
        let timed = |case: Case| Timed {
            call: self.op.features(&case),
            size: size_of(self.op.unit, (self.op.work)(&case)),
            case,
            cpu: none(),
            devices: vec![none(); self.residencies.len()],
        };
        let mut all: Vec<Timed> = cases.into_iter().map(timed).collect();
        // What does not fit is large: the small ones come first.
        all.sort_by_key(|timed| timed.size);
        let begin = self.clock.now();
        let span = share * (self.end - begin).max(0.0);
        let passes = self.cfg.processes * self.cfg.looks.max(1);
        // What the first process looks at the others are to look at, too.
        let first = begin + span / self.cfg.processes as f64;
        for pass in 0..passes {
            let (process, until) = (pass % self.cfg.processes, if pass == 0 { first } else { begin + span });
            let again = pass >= self.cfg.processes;
            // Looks that have to come within that time.
            let passes = if pass == 0 || again { 1 } else { self.cfg.processes - pass };
            let mut looks = all.len() * passes;
            for timed in &mut all {
                let left = until - self.clock.now();
                // Large shapes take many times as long as others.
                let budget_s = (8.0 * left / looks.max(1) as f64).min(left);
                looks -= 1;
                let here = timed.cpu[..process].iter().all(|looks| !looks.is_empty());
                if left > 0.0 && here && !(again && timed.cpu.iter().any(Vec::is_empty)) {
                    let kept = self.look(timed, process, budget_s)?;
                    if pass == 0 && !kept {
                        break;
                    }
                }
            }
        }
        let before = all.len();
        all.retain(|timed| timed.cpu.iter().all(|looks| !looks.is_empty()));
        self.left_out += (before - all.len()) as u64;
        Ok(all)
    }

    /// One look of a process; false, and nothing is kept, where the time held too few pairs.
    fn look(&mut self, timed: &mut Timed, process: usize, budget_s: f64) -> Result<bool> {
        let order = Order {
            case: timed.case.to_string(),
            places: self.residencies.iter().map(|r| (self.device.to_string(), *r)).collect(),
            pairs: self.cfg.pairs,
            budget_s,
            read: false,
        };
        let Some(found) = self.looker.look(&order, process, self.cancel)? else { return Ok(false) };
        if let Some(why) = found.wrong {
            return Err(Error::new(Code::ResultWrong, format!("{}: wrong result: {why}", timed.case)));
        }
        self.calls += found.calls;
        timed.cpu[process].push(stats::median(&found.cpu));
        for (all, one) in timed.devices.iter_mut().zip(&found.devices) {
            all[process].push(stats::median(one));
        }
        Ok(true)
    }
}

/// The smallest size from which on the device is faster at every larger one; `None` if it is not at the largest.
fn brute_force(sweep: &[Held]) -> Option<u64> {
    let lost = sweep.iter().rposition(|h| h.seconds(true) >= h.seconds(false));
    sweep.get(lost.map_or(0, |i| i + 1)).map(|h| h.size)
}

/// GPU-BLOB's offload threshold (doGemm.hh, `updateOffloadStructs`): set at the first size at which the device's rate is
/// higher; cleared where the CPU's is at least the device's at this size and at the one before.
fn gpu_blob(points: &[CalibratePoint], unit: &str) -> Option<u64> {
    let rate = |p: &CalibratePoint, s: f64| crate::profile::work_of(unit, p.size).map_or(0.0, |w| w as f64 / s);
    let mut found = None;
    let mut before = 0.0;
    for p in points {
        let (cpu, gpu) = (rate(p, p.cpu_s), rate(p, p.gpu_s));
        if gpu > cpu {
            found = found.or(Some(p.size));
        } else if cpu >= before {
            found = None;
        }
        before = gpu;
    }
    found
}

/// What is judged.
struct Subject<'a> {
    entry: &'a Entry,
    op: &'static OpDesc,
    rule: Rule,
    assumed: &'a Profile,
    shapes: Vec<Held>,
}

impl Subject<'_> {
    /// True if a threshold sends work to the device.
    fn reaches(&self, threshold: Option<u64>, call: &Features) -> bool {
        threshold.and_then(|t| crate::profile::work_of(&self.entry.unit, t)).is_some_and(|least| call.work >= least)
    }

    fn by_threshold(&self, call: &Features) -> bool {
        self.entry.sends(Rule::Threshold, call)
    }

    /// The profile's rule.
    fn auto(&self, call: &Features) -> bool {
        self.entry.sends(self.rule, call)
    }

    fn preset(&self, call: &Features) -> bool {
        let e = self.entry;
        let key = Key {
            op: self.op.name,
            dtype: e.dtype.parse().unwrap_or(DType::F32),
            family: Some(&e.family),
            unit: self.op.unit.name(),
            device_uid: &e.device,
            residency: &e.residency,
            threads: e.threads,
            cpu_variant: &e.cpu_variant,
        };
        self.assumed.lookup(&key, call.work).place == Place::Gpu
    }

    fn policy(&self, name: &str, gpu: &dyn Fn(&Features) -> bool) -> RegretPolicy {
        let regret = |h: &Held| h.regret(gpu(&h.call));
        let mean = |of: &[&Held]| of.iter().map(|h| regret(h)).sum::<f64>() / of.len() as f64;
        let all: Vec<&Held> = self.shapes.iter().collect();
        let near: Vec<&Held> = match self.entry.crossing {
            Some(c) => all.iter().copied().filter(|h| h.size.saturating_mul(4) >= c && h.size / 4 <= c).collect(),
            None => Vec::new(),
        };
        let between = |h: &Held| match (self.entry.crossing, self.entry.threshold) {
            (Some(c), Some(t)) => c <= h.size && h.size <= t,
            _ => false,
        };
        let total = |choice: &dyn Fn(&Held) -> f64| self.shapes.iter().map(choice).sum::<f64>();
        let best = total(&|h| h.seconds(true).min(h.seconds(false)));
        RegretPolicy {
            name: name.into(),
            mean: mean(&all),
            near: (!near.is_empty()).then(|| mean(&near)),
            worst: all.iter().filter(|h| !between(h)).map(|h| regret(h)).fold(0.0, f64::max),
            time: total(&|h| h.seconds(gpu(&h.call))) / best - 1.0,
        }
    }

    /// Mean over the shapes of ln(auto's time / the constant choice's), by process: its lower end at an error of one in 40,
    /// shared among `keys` keys.
    fn surely_worse_by(&self, gpu: bool, keys: usize) -> f64 {
        let n = self.shapes.first().map_or(0, |h| h.cpu.len());
        let of = |process: usize| {
            let log = |h: &Held| {
                let time = |gpu: bool| if gpu { h.gpu[process] } else { h.cpu[process] };
                (time(self.auto(&h.call)) / time(gpu)).ln()
            };
            self.shapes.iter().map(log).sum::<f64>() / self.shapes.len() as f64
        };
        let means: Vec<f64> = (0..n).map(of).collect();
        let mean = means.iter().sum::<f64>() / n as f64;
        let variance = means.iter().map(|m| (m - mean).powi(2)).sum::<f64>() / (n as f64 - 1.0);
        let t = StudentsT::new(0.0, 1.0, n as f64 - 1.0)
            .map_or(f64::INFINITY, |t| t.inverse_cdf(1.0 - 0.025 / (2 * keys.max(1)) as f64));
        mean - t * (variance / n as f64).sqrt()
    }

    fn record(&self, device: &str, dtype: DType, dense: RegretDense, left_out: u64, keys: usize) -> RegretRecord {
        let e = self.entry;
        let wrong = e.threshold.map(|t| t.saturating_add(t / 2));
        let blob = gpu_blob(&e.points, &e.unit);
        let ways: [(&str, &dyn Fn(&Features) -> bool); 7] = [
            ("auto", &|c| self.auto(c)),
            ("threshold", &|c| self.by_threshold(c)),
            ("always-cpu", &|_| false),
            ("always-gpu", &|_| true),
            ("default", &|c| self.preset(c)),
            ("gpu-blob", &|c| self.reaches(blob, c)),
            ("threshold x1.5", &|c| self.reaches(wrong, c)),
        ];
        let worse = [("always-cpu", false), ("always-gpu", true)];
        let finding = worse.iter().find(|(_, gpu)| self.surely_worse_by(*gpu, keys) > ALLOWED.ln_1p());
        let shape = |h: &Held| {
            let predicted = model::predict(e, &h.call);
            RegretShape {
                shape_text: h.text.clone(),
                size: h.size,
                cpu_s: h.seconds(false),
                gpu_s: h.seconds(true),
                predicted_cpu_s: predicted.map(|t| t.cpu_s),
                predicted_gpu_s: predicted.map(|t| t.device_s),
                gpu: self.auto(&h.call),
            }
        };
        RegretRecord {
            op: e.op.clone(),
            dtype,
            family: e.family.clone(),
            device: device.into(),
            uid: e.device.clone(),
            residency: e.residency.clone(),
            threads: e.threads,
            cpu_variant: e.cpu_variant.clone(),
            verdict: e.verdict.name().into(),
            unit: e.unit.clone(),
            crossing: e.crossing,
            threshold: e.threshold,
            processes: 0,
            shapes: self.shapes.iter().map(shape).collect(),
            policies: ways.iter().map(|(name, gpu)| self.policy(name, gpu)).collect(),
            dense,
            left_out,
            finding: finding.map_or("ok", |(name, _)| name).into(),
        }
    }
}
