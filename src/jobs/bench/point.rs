//! One point measured on all devices in this process.

use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::base::blas::{BlasInfo, VARIANT};
use crate::base::record::{Analysis, BenchRecord, KernelsRecord, Phases, Status, Subject as Row};
use crate::base::sink::{Cancel, Sink};
use crate::base::{Attrs, Case, Code, Cost, DType, DeviceClass, DeviceInfo, Error, Fill, HostTensor, Result, stats};
use crate::device::Device;
use crate::device::probe::Rig;
use crate::device::telemetry::{Telemetry, Told};
use crate::engine::{Prepared, Runner, cache};
use crate::jobs::ceilings::judge;
use crate::jobs::clocks::{self, Clocks};
use crate::jobs::gross;
use crate::measure::reference::Reference;
use crate::measure::{
    Cache, OpSubject, Residency, Series, StopRule, Subject, Sweep, kernel_again, phases, sample_between, stop,
};
use crate::op::{OpDesc, case};

use super::watched::Watched;
use super::{BenchConfig, judged};

/// A row with what a document leaves out.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Measured {
    pub(super) row: BenchRecord,
    /// All samples of the row, and those of the CPU that took turns with them; none on the CPU itself.
    pub(super) samples: Vec<f64>,
    pub(super) cpu_samples: Vec<f64>,
    /// Factor by which the machine's own speed changed meanwhile, where that is so much that the row means little.
    pub(super) drift: Option<f64>,
}

impl From<BenchRecord> for Measured {
    fn from(row: BenchRecord) -> Self {
        Measured { row, samples: Vec::new(), cpu_samples: Vec::new(), drift: None }
    }
}

/// What is measured at once on all devices.
pub(super) struct Point {
    pub(super) op: &'static OpDesc,
    pub(super) case: Case,
    pub(super) residency: Residency,
    /// One call per sample.
    pub(super) single: bool,
    /// See [`BenchConfig::region_s`].
    pub(super) region_s: f64,
    /// See [`BenchConfig::cache`].
    pub(super) cache: Cache,
}

pub(super) struct Bench<'a> {
    cfg: &'a BenchConfig,
    cpu: Runner,
    /// Runners of the devices other than the baseline.
    devices: Vec<Runner>,
    /// True if the baseline's rows are wanted.
    show_cpu: bool,
    /// Last measured call by (device, op, dtype, residency): seconds and cost, for predictions.
    known: HashMap<(String, &'static str, DType, Residency), (f64, Cost)>,
    /// Tells the machine's own speed. A simulated one's is not this machine's.
    reference: Option<Reference>,
    clocks: RefCell<Clocks>,
    /// What cards told between samples that speaks against the point.
    meanwhile: RefCell<Vec<Told>>,
}

/// One device at a point, between preparation and row.
struct Entry<'r> {
    runner: &'r Runner,
    row: BenchRecord,
    prepared: Option<Prepared>,
}

/// All points of a configuration, in order; the same in every process.
pub(super) fn points(cfg: &BenchConfig, sink: &mut dyn Sink) -> Result<Vec<Point>> {
    let mut points = Vec::new();
    for (op, case, single) in &cfg.cases {
        let (region_s, cache, single) = (cfg.region_s, cfg.cache, *single);
        let of = |r: &Residency| Point { op, case: case.clone(), residency: *r, single, region_s, cache };
        points.extend(cfg.residencies.iter().map(of));
    }
    for op in &cfg.ops {
        let attrs = case::parse_attrs(op, &cfg.attrs)?;
        let has: Vec<DType> = cfg.dtypes.iter().copied().filter(|d| op.dtypes.contains(d)).collect();
        // An op of one dtype (copies, launches) is measured in it whatever was asked for.
        let dtypes = if has.is_empty() && op.dtypes.len() == 1 { op.dtypes.to_vec() } else { has };
        if dtypes.is_empty() {
            let known: Vec<_> = op.dtypes.iter().map(|d| d.name()).collect();
            sink.note(&format!("{}: none of the asked dtypes; it has {}", op.name, known.join(" ")));
        }
        for dtype in dtypes {
            for case in cases(cfg, op, dtype, &attrs)? {
                // Where the op is a copy or a launch itself, there is no call that shares its copies.
                let takes = |r: &&Residency| r.takes(op.unit);
                for residency in cfg.residencies.iter().filter(takes) {
                    let (region_s, cache) = (cfg.region_s, cfg.cache);
                    points.push(Point {
                        op,
                        case: case.clone(),
                        residency: *residency,
                        single: false,
                        region_s,
                        cache,
                    });
                }
            }
        }
    }
    Ok(points)
}

fn cases(cfg: &BenchConfig, op: &'static OpDesc, dtype: DType, attrs: &Attrs) -> Result<Vec<Case>> {
    if let Some(shape) = &cfg.shape {
        return Ok(vec![op.case(dtype, shape, attrs.clone(), Fill::Uniform)?]);
    }
    let (low, high) = op.unit.default_range();
    let sizes = cfg.sizes.clone().unwrap_or_else(|| {
        let factor = if high / low > 1000 { 8 } else { 2 };
        std::iter::successors(Some(low), |s| Some(s * factor)).take_while(|s| *s <= high).collect()
    });
    sizes.iter().map(|s| op.sized(dtype, *s, attrs.clone())).collect()
}

/// A row without results.
pub(super) fn blank(point: &Point, device: &DeviceInfo, threads: u32) -> BenchRecord {
    let work = u64::try_from((point.op.work)(&point.case)).unwrap_or(u64::MAX);
    BenchRecord {
        subject: Row::of(&point.case, work, point.op.unit.name(), device),
        residency: point.residency.name().into(),
        k: point.residency.calls(),
        region_s: point.region_s,
        threads,
        samples: 0,
        samples_s: Vec::new(),
        process_medians_s: Vec::new(),
        machine_speeds: Vec::new(),
        between_processes: None,
        median_s: None,
        ci_s: None,
        min_s: None,
        p95_s: None,
        p99_s: None,
        gflops: None,
        gbps: None,
        peak_fraction: None,
        phases_s: Phases::default(),
        analysis: Analysis { cache: point.cache.name().into(), ..Analysis::default() },
        speedup_vs_cpu: None,
        speedup_ci: None,
    }
}

impl<'a> Bench<'a> {
    pub(super) fn new(cfg: &'a BenchConfig, rig: &Rig) -> Self {
        let is_cpu = |d: &Arc<dyn Device>| d.serial() == rig.cpu.serial();
        let runner = |d: &Arc<dyn Device>| Runner::new(Arc::clone(d)).keeping(cfg.kernels.clone());
        Bench {
            cfg,
            cpu: runner(&rig.cpu),
            devices: rig.devices.iter().filter(|d| !is_cpu(d)).map(runner).collect(),
            show_cpu: rig.devices.iter().any(is_cpu),
            known: HashMap::new(),
            reference: (!rig.cpu.clock().is_virtual())
                .then(|| Reference::new(rig.cpu.info().compute_units.try_into().unwrap_or(1))),
            clocks: RefCell::new(Clocks::new(Telemetry::clocks())),
            meanwhile: RefCell::default(),
        }
    }

    /// With other cards' words, asked between any two samples.
    #[cfg(test)]
    pub(super) fn told_by(self, telemetry: Telemetry) -> Self {
        Bench { clocks: RefCell::new(Clocks::new(telemetry).without_pace()), ..self }
    }

    /// Measures one point on all devices, interleaved, and the machine's own speed before and after.
    pub(super) fn point(&mut self, point: &Point, cancel: &Cancel) -> Result<Vec<Measured>> {
        let hold = self.cfg.kernels.hold();
        self.meanwhile.take();
        let clocks = self.look();
        let before = self.reference.as_mut().map(Reference::read);
        let mut rows = self.interleaved(point, cancel)?;
        let after = self.reference.as_mut().map(Reference::read);
        if let (Some(before), Some(after)) = (before, after) {
            let speeds = before.between(after);
            for m in rows.iter_mut().filter(|m| m.row.subject.status == Status::Ok && self.is_host(&m.row)) {
                m.row.machine_speeds = vec![[speeds.arithmetic, speeds.memory]];
                m.drift = before.drifted(after).then(|| before.change(after));
            }
        }
        let told: Vec<_> = clocks.into_iter().chain(self.meanwhile.take()).chain(self.look()).collect();
        for m in rows.iter_mut().filter(|m| m.row.subject.status == Status::Ok) {
            let info = self.devices.iter().map(|r| r.device().info()).find(|i| i.id == m.row.subject.device);
            m.row.subject.flags.extend(info.and_then(|info| clocks::flag(&told, info)));
        }
        drop(hold);
        // Between two points, when nothing is measured: what this one compiled.
        if cancel.raised() {
            self.cfg.kernels.abandon();
        } else {
            self.cfg.kernels.flush(cache::FLUSH);
        }
        Ok(rows)
    }

    /// What became of the programs so far, the CPU's first.
    pub(super) fn kernels(&self) -> Vec<KernelsRecord> {
        std::iter::once(&self.cpu).chain(&self.devices).map(Runner::kernels).collect()
    }

    fn look(&self) -> Option<Told> {
        self.clocks.borrow_mut().look(self.devices.iter().map(|r| r.device().info()))
    }

    /// True for rows whose work the host's processor does.
    fn is_host(&self, row: &BenchRecord) -> bool {
        let all = std::iter::once(&self.cpu).chain(&self.devices);
        all.map(|r| r.device().info())
            .any(|i| i.id == row.subject.device && matches!(i.class, DeviceClass::Cpu | DeviceClass::Software))
    }

    fn interleaved(&mut self, point: &Point, cancel: &Cancel) -> Result<Vec<Measured>> {
        // What this host cannot hold leaves rows that say so; other points may be smaller.
        let (inputs, lacks) = match case::inputs(point.op, &point.case) {
            Ok(inputs) => (inputs, None),
            Err(e) => (Vec::new(), Some(e)),
        };
        let deadline = Duration::from_secs_f64((self.cfg.budget_s * 4.0).max(30.0));
        let mut rows: Vec<Measured> = Vec::new();
        let mut live: Vec<Entry<'_>> = Vec::new();
        let all = std::iter::once((&self.cpu, self.cfg.cpu_variant.as_deref()))
            .chain(self.devices.iter().map(|r| (r, self.cfg.variant.as_deref())));
        for (runner, variant) in all {
            let mut entry = Entry {
                runner,
                row: blank(point, runner.device().info(), self.cpu.device().info().compute_units),
                prepared: None,
            };
            if let Some(e) = &lacks {
                rows.push(refused(entry.row, e).into());
                continue;
            }
            if let Some(predicted) = self.predicted(point, runner, self.cfg.budget_s) {
                entry.row.subject.reason = format!(
                    "predicted {} a call, budget {} s",
                    crate::base::units::seconds(predicted),
                    self.cfg.budget_s
                );
                rows.push(entry.row.into());
                continue;
            }
            match runner.prepare(point.op, &point.case, variant) {
                Ok(p) => {
                    entry.row.subject.ran_variant(p.variant, entry.runner.device().info());
                    entry.row.subject.reason = p.reason.clone();
                    entry.prepared = Some(p);
                    live.push(entry);
                }
                Err(e) => rows.push(refused(entry.row, &e).into()),
            }
        }
        let (measured, known) = self.measure(point, live, &inputs, deadline, cancel)?;
        rows.extend(measured);
        self.name_baseline(point, &mut rows);
        let runners = std::iter::once(&self.cpu).chain(&self.devices);
        let infos: Vec<&DeviceInfo> = runners.map(|r| r.device().info()).collect();
        judged(point, rows.iter_mut().map(|m| &mut m.row), &infos, &self.cfg.ceilings);
        self.known.extend(known);
        let cpu = &self.cpu.device().info().id;
        let order = |id: &str| {
            if id == cpu {
                0
            } else {
                1 + self.devices.iter().position(|r| r.device().info().id == id).unwrap_or(usize::MAX - 1)
            }
        };
        rows.sort_by_key(|m| order(&m.row.subject.device));
        if !self.show_cpu {
            rows.retain(|m| m.row.subject.device != *cpu);
        }
        Ok(rows)
    }

    /// What the rows are compared with, and whether it is weak.
    fn name_baseline(&self, point: &Point, rows: &mut [Measured]) {
        let info = self.cpu.device().info();
        let cost = (point.op.cost)(&point.case);
        let cpu = rows.iter().map(|m| &m.row).find(|r| r.subject.device == info.id && r.subject.status == Status::Ok);
        let (baseline, weak): (String, Vec<String>) = match cpu {
            Some(cpu) => {
                let facts = judge::facts(cpu, point.op, cost.flops, cost.bytes());
                let weak = facts.and_then(|f| judge::weak(&f, self.cfg.ceilings.device(&info.uid)));
                let blas = info.facts.blas.as_ref().filter(|_| cpu.subject.variant == VARIANT);
                let of = blas.map_or_else(String::new, |b| format!(" ({})", b.text()));
                let narrow = blas.filter(|b| !b.weak.is_empty()).map(BlasInfo::weakness);
                (format!("{}{of}, {}", cpu.subject.variant, info.api), narrow.into_iter().chain(weak).collect())
            }
            None => (String::new(), Vec::new()),
        };
        for row in rows.iter_mut().map(|m| &mut m.row) {
            row.analysis.baseline.clone_from(&baseline);
            if row.subject.status == Status::Ok {
                row.subject.flags.extend(weak.iter().map(|why| format!("weak-baseline: {why}")));
            }
        }
    }

    /// The predicted seconds of one call, if they exceed what the budget can hold (three calls).
    fn predicted(&self, point: &Point, runner: &Runner, budget_s: f64) -> Option<f64> {
        let key = (runner.device().info().id.clone(), point.op.name, point.case.dtype, point.residency);
        let (seconds, cost) = self.known.get(&key)?;
        let next = stop::predict(*seconds, cost, &(point.op.cost)(&point.case));
        (next * 3.0 > budget_s).then_some(next)
    }

    /// Samples the live entries; one that fails is taken out and the others are sampled again without it.
    #[allow(clippy::type_complexity, reason = "rows and predictions are used at once by the one caller")]
    fn measure(
        &self,
        point: &Point,
        mut live: Vec<Entry<'_>>,
        inputs: &[HostTensor],
        deadline: Duration,
        cancel: &Cancel,
    ) -> Result<(Vec<Measured>, Vec<((String, &'static str, DType, Residency), (f64, Cost))>)> {
        let mut rows: Vec<Measured> = Vec::new();
        let mut known = Vec::new();
        // Each device is tried alone first, so that one that fails or is far too slow does not hold up the others.
        let mut index = 0;
        while index < live.len() {
            let tried = self.try_alone(point, &live[index], inputs, deadline);
            match tried {
                Ok(seconds) => {
                    let id = live[index].runner.device().info().id.clone();
                    let cost = (point.op.cost)(&point.case);
                    known.push(((id, point.op.name, point.case.dtype, point.residency), (seconds, cost)));
                    if seconds * 2.0 > self.cfg.budget_s {
                        let mut row = live.remove(index).row;
                        row.subject.reason = format!(
                            "one call took {}, budget {} s",
                            crate::base::units::seconds(seconds),
                            self.cfg.budget_s
                        );
                        rows.push(row.into());
                    } else {
                        index += 1;
                    }
                }
                Err(e) => rows.push(refused(live.remove(index).row, &e).into()),
            }
        }
        loop {
            match self.together(point, &live, inputs, deadline, cancel) {
                Ok(measured) => {
                    rows.extend(measured);
                    return Ok((rows, known));
                }
                Err((Some(index), e)) if e.code() != Code::Cancelled => {
                    rows.push(refused(live.remove(index).row, &e).into());
                }
                Err((_, e)) => return Err(e),
            }
        }
    }

    /// Samples all of these in turn. An error comes with the number of the entry that failed, if it was one of them.
    fn together(
        &self,
        point: &Point,
        live: &[Entry<'_>],
        inputs: &[HostTensor],
        deadline: Duration,
        cancel: &Cancel,
    ) -> Result<Vec<Measured>, (Option<usize>, Error)> {
        let mut rows: Vec<Measured> = Vec::new();
        let mut sweeps = Vec::new();
        for (i, entry) in live.iter().enumerate() {
            let sweep = (point.cache == Cache::Cold).then(|| Sweep::new(entry.runner)).transpose();
            sweeps.push(sweep.map_err(|e| (Some(i), e))?);
        }
        let mut owned = Vec::new();
        for (i, (entry, sweep)) in live.iter().zip(&sweeps).enumerate() {
            let made = match &entry.prepared {
                Some(prepared) => OpSubject::new(entry.runner, prepared, inputs, point.residency, deadline),
                None => Err(Error::new(Code::Internal, "not prepared")),
            };
            let subject = made.map_err(|e| (Some(i), e))?;
            let subject = if point.single { subject.single() } else { subject };
            owned.push(match sweep {
                Some(sweep) => subject.cold(sweep),
                None => subject,
            });
        }
        let mut watched: Vec<Watched<'_, '_>> = owned.iter_mut().map(Watched::new).collect();
        let mut subjects: Vec<&mut dyn Subject> = watched.iter_mut().map(|s| s as &mut dyn Subject).collect();
        let budget_s = self.cfg.budget_s * live.len().max(1) as f64;
        let rule = StopRule { region_s: point.region_s, ..StopRule::with_budget(budget_s) };
        let mut between = || {
            let infos = self.devices.iter().map(|r| r.device().info());
            self.meanwhile.borrow_mut().extend(self.clocks.borrow_mut().between(infos));
        };
        let sampled = sample_between(&mut subjects, &rule, cancel, &mut between);
        let series = sampled.map_err(|e| (watched.iter().position(Watched::failed), e))?;
        let cpu_id = self.cpu.device().info().id.clone();
        let baseline = live.iter().position(|e| e.runner.device().info().id == cpu_id);
        let cpu_series = baseline.map(|i| series[i].clone());
        let reference = match baseline {
            Some(i) => Some(owned[i].outputs().map_err(|e| (Some(i), e))?.to_vec()),
            None => None,
        };
        for ((entry, series), subject) in live.iter().zip(series).zip(&mut owned) {
            let mut row = entry.row.clone();
            let is_cpu = entry.runner.device().info().id == cpu_id;
            let beside = cpu_series.as_ref().filter(|_| !is_cpu);
            self.fill(point, entry, &mut row, &series, beside);
            let bytes = operand_bytes(point.op, &point.case);
            match phases(entry.runner.device(), subject, &bytes, 9, self.cfg.budget_s / 4.0) {
                Ok(p) => row.phases_s = p,
                Err(e) => row.subject.flags.push(format!("no-phases: {}", e.code().name())),
            }
            row.subject.status = Status::Ok;
            row.subject.ran_on = entry.runner.device().info().id.clone();
            let outputs = subject.outputs();
            match (&outputs, &reference) {
                (Err(e), _) => {
                    row.subject.status = Status::Failed;
                    row.subject.reason = e.to_string();
                    row.subject.error = Some(Box::new(e.into()));
                }
                (Ok(got), Some(want)) if !is_cpu => {
                    if let Some(why) = grossly_different(&point.case, got, want) {
                        row.subject.status = Status::Failed;
                        row.subject.reason = format!("{}: {why}", Code::ResultWrong.name());
                    }
                }
                (Ok(got), None) if got.iter().any(unwritten) => {
                    row.subject.status = Status::Failed;
                    row.subject.reason = format!("{}: the output was not written", Code::ResultWrong.name());
                }
                (Ok(_), None) => row.subject.flags.push("unchecked".into()),
                _ => {}
            }
            if let (Some(kernel), Some(median)) = (row.phases_s.kernel, row.median_s)
                && point.residency == Residency::Resident
                && row.subject.status == Status::Ok
                && beyond(kernel, median)
            {
                // The phases' kernel comes after a copy of its operands: caches and pages are not what they are in a sample.
                match kernel_again(subject, 9) {
                    Ok(Some(again)) if beyond(again, median) => {
                        // A call cannot be shorter than its kernel: the wait or the device's clock is wrong.
                        row.subject.status = Status::Suspect;
                        row.subject.reason = format!(
                            "the kernel's own time {} exceeds the whole call {}",
                            crate::base::units::seconds(again),
                            crate::base::units::seconds(median)
                        );
                    }
                    Ok(_) => {}
                    Err(e) => row = refused(row, &e),
                }
            }
            let cpu_samples = beside.map_or_else(Vec::new, |s| s.samples.clone());
            rows.push(Measured { row, samples: series.samples, cpu_samples, drift: None });
        }
        Ok(rows)
    }

    /// Seconds of the second of two calls: the first one compiles and warms up. Where the second is too long for the budget, the
    /// faster of two.
    fn try_alone(&self, point: &Point, entry: &Entry<'_>, inputs: &[HostTensor], deadline: Duration) -> Result<f64> {
        let Some(prepared) = &entry.prepared else { return Err(Error::new(Code::Internal, "not prepared")) };
        let mut subject = OpSubject::new(entry.runner, prepared, inputs, point.residency, deadline)?;
        let clock = subject.clock();
        let start = clock.now();
        subject.run(1)?;
        let first = clock.now() - start;
        // The first call may hold what a driver or a library does once (cuBLAS: 50 to 130 ms on an H200); only one that fills the
        // budget by itself, and is longer than that, is final.
        if first > self.cfg.budget_s.max(ONCE_S) {
            return Ok(first);
        }
        let mut once = || -> Result<f64> {
            let start = clock.now();
            subject.run(1)?;
            Ok(clock.now() - start)
        };
        let second = once()?;
        if second * 2.0 > self.cfg.budget_s { Ok(second.min(once()?)) } else { Ok(second) }
    }

    fn fill(&self, point: &Point, entry: &Entry<'_>, row: &mut BenchRecord, series: &Series, cpu: Option<&Series>) {
        let sorted = stats::sorted(&series.samples);
        let median = stats::quantile(&sorted, 0.5);
        row.samples = series.samples.len() as u64;
        row.samples_s = series.samples.iter().copied().take(200).collect();
        row.process_medians_s = vec![median];
        row.median_s = Some(median);
        row.ci_s = Some(stats::median_ci(&sorted));
        row.min_s = sorted.first().copied();
        row.p95_s = Some(stats::quantile(&sorted, 0.95));
        row.p99_s = Some(stats::quantile(&sorted, 0.99));
        let cost = (point.op.cost)(&point.case);
        let rate = |amount: u64| (amount > 0 && median > 0.0).then(|| amount as f64 / median * 1e-9);
        row.gflops = rate(cost.flops);
        row.gbps = rate(cost.bytes());
        if let Some(cpu) = cpu {
            row.speedup_vs_cpu = Some(cpu.median() / median);
            row.speedup_ci = Some(stats::ratio_ci(&cpu.samples, &series.samples, point.case.seed()));
        }
        if stats::relative_spread(&series.samples) > 0.1 {
            row.subject.flags.push("noisy".into());
        }
        if let Some(p) = &entry.prepared {
            let info = entry.runner.device().info();
            let under = p.groups() > 0 && p.groups() < u64::from(info.compute_units);
            // A library divides its work as it likes, and tells nobody.
            let library = point.op.kernels.iter().any(|k| k.variant == p.variant && k.needs.library.is_some());
            if under && !library && crate::kernel::is_text_backend(info.backend) {
                row.subject.flags.push("under-filled".into());
            }
        }
        let errors = entry.runner.device().ledger().release_errors();
        if !errors.is_empty() {
            row.subject.flags.push(format!("release-errors: {}", errors.len()));
        }
    }
}

/// Seconds that a first call may take because of what is done once.
const ONCE_S: f64 = 0.5;

/// Whether a kernel takes longer than the call that it is a part of, by more than clocks and chance allow.
fn beyond(kernel_s: f64, call_s: f64) -> bool {
    kernel_s > 2.0 * call_s && kernel_s > 1e-4
}

fn refused(mut row: BenchRecord, e: &Error) -> BenchRecord {
    row.subject.status = match e.class() {
        crate::base::Class::Unsupported => Status::Unsupported,
        crate::base::Class::Oom => Status::Skipped,
        _ => Status::Failed,
    };
    row.subject.reason = e.to_string();
    row.subject.error = Some(Box::new(e.into()));
    row
}

fn operand_bytes(op: &OpDesc, case: &Case) -> Vec<u64> {
    let shapes = (op.shapes)(case).unwrap_or_default();
    let bytes = |(i, s): (usize, &Vec<u64>)| s.iter().product::<u64>() * op.operand_dtype(i, case).size();
    shapes.iter().enumerate().map(bytes).collect()
}

/// True if the tensor is still as the poison left it.
fn unwritten(t: &HostTensor) -> bool {
    !t.is_empty() && t.bytes().iter().all(|b| *b == 0xFF)
}

/// Compares a device's outputs with the CPU's for gross errors: skipped work, shifted or stale data, NaN. The bound is
/// far above any legal rounding difference ([`gross::wrong`]); judging accuracy is `verify`'s task.
fn grossly_different(c: &Case, got: &[HostTensor], want: &[HostTensor]) -> Option<String> {
    for (g, w) in got.iter().zip(want) {
        if g.dtype != w.dtype || g.shape != w.shape {
            return Some(format!("shape {:?} instead of {:?}", g.shape, w.shape));
        }
        if unwritten(g) && !unwritten(w) {
            return Some("the output was not written".into());
        }
    }
    let of =
        |w: gross::Wrong| format!("element {} is {:e}, the CPU has {:e}", w.element, w.got.to_f64(), w.want.to_f64());
    gross::wrong(c, got, want, u64::MAX).map(of)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gross_errors_are_seen_and_rounding_is_not() {
        let t = |v: &[f32]| HostTensor::from_slice(v, &[v.len() as u64]).unwrap();
        // No oracle knows this op.
        let fill = crate::base::Fill::Uniform;
        let c = Case { op: "none", dtype: DType::F32, dims: Vec::new(), attrs: crate::base::Attrs::new(), fill };
        let grossly_different = |got: &[HostTensor], want: &[HostTensor]| grossly_different(&c, got, want);
        let want = [t(&[1.0, 2.0, 3.0])];
        assert_eq!(grossly_different(&[t(&[1.0, 2.0, 3.000_001])], &want), None);
        // A mean that almost cancels is as exact as what it was taken of, not as its own few digits.
        let norm = |mean| [t(&[1.7, -1.7]), t(&[mean])];
        assert_eq!(grossly_different(&norm(-4.597902e-4), &norm(-4.590154e-4)), None);
        assert!(grossly_different(&norm(0.0), &norm(-4.590154e-4)).is_some());
        assert!(grossly_different(&[t(&[1.0, 3.0, 2.0])], &want).unwrap().contains("element 1"));
        assert!(grossly_different(&[t(&[1.0, f32::NAN, 3.0])], &want).is_some());
        let poison = f32::from_bits(u32::MAX);
        assert!(grossly_different(&[t(&[poison; 3])], &want).unwrap().contains("not written"));
        let ints = |v: &[i32]| HostTensor::from_slice(v, &[v.len() as u64]).unwrap();
        assert!(grossly_different(&[ints(&[1_000_001])], &[ints(&[1_000_000])]).is_some());
    }
}
