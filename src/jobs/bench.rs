//! Timings with their spread, phases, rates and the comparison with the CPU, in the same run and interleaved.
//!
//! Each point is predicted before it runs; what cannot fit the budget becomes a row that says so. Results of the
//! measured run are compared with the CPU's, so that a kernel that did nothing cannot look fast.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use crate::base::record::{BenchRecord, Phases, Record, Status, Subject as Row};
use crate::base::sink::{Cancel, Progress, Sink};
use crate::base::{Attrs, Case, Code, Cost, DType, Error, Exact, Fill, HostTensor, Result, stats};
use crate::device::Device;
use crate::device::probe::Rig;
use crate::engine::{Prepared, Runner};
use crate::jobs::gross;
use crate::measure::{OpSubject, Residency, Series, StopRule, Subject, phases, sample, stop};
use crate::op::{OpDesc, case};

/// What to measure.
#[derive(Clone, Debug)]
pub struct BenchConfig {
    /// Ops, in order.
    pub ops: Vec<&'static OpDesc>,
    /// Sizes in each op's unit; `None`: the op's default sweep.
    pub sizes: Option<Vec<u64>>,
    /// Sizes of every dimension instead of `sizes`.
    pub shape: Option<Vec<u64>>,
    /// Attributes as text, read by each op.
    pub attrs: String,
    /// Dtypes; those that an op does not have are left out with a note.
    pub dtypes: Vec<DType>,
    /// Where operands are.
    pub residencies: Vec<Residency>,
    /// Kernel variant on the devices other than the CPU.
    pub variant: Option<String>,
    /// Kernel variant on the CPU.
    pub cpu_variant: Option<String>,
    /// Seconds per point, for each device.
    pub budget_s: f64,
}

/// What came of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BenchSummary {
    /// Rows measured.
    pub ok: u64,
    /// Rows left out with a reason.
    pub skipped: u64,
    /// Rows that the device cannot do.
    pub unsupported: u64,
    /// Rows that failed or contradict themselves.
    pub failed: u64,
    /// True if the run was interrupted.
    pub cancelled: bool,
}

impl BenchSummary {
    /// 1: something failed; 4: nothing was measured; else 0.
    pub fn exit_code(&self) -> u8 {
        match self {
            s if s.failed > 0 => 1,
            s if s.ok == 0 => 4,
            _ => 0,
        }
    }
}

/// Runs all points and hands out their rows as they end.
pub fn run(cfg: &BenchConfig, rig: &Rig, sink: &mut dyn Sink, cancel: &Cancel) -> Result<BenchSummary> {
    let mut summary = BenchSummary::default();
    let mut bench = Bench::new(cfg, rig);
    let points = bench.points(sink)?;
    for (done, point) in points.iter().enumerate() {
        sink.progress(&Progress {
            doing: format!("{} {}", point.case.op, point.case.shape_text()),
            done: done as u64,
            total: Some(points.len() as u64),
        });
        if cancel.raised() {
            summary.cancelled = true;
            break;
        }
        let rows = match bench.point(point, cancel) {
            // What was finished before the interruption is kept and handed out.
            Err(e) if e.code() == Code::Cancelled => {
                summary.cancelled = true;
                break;
            }
            rows => rows?,
        };
        for row in rows {
            match row.subject.status {
                Status::Ok => summary.ok += 1,
                Status::Skipped => summary.skipped += 1,
                Status::Unsupported => summary.unsupported += 1,
                Status::Failed | Status::Suspect => summary.failed += 1,
            }
            sink.record(&Record::Bench(Box::new(row)));
        }
    }
    Ok(summary)
}

struct Point {
    op: &'static OpDesc,
    case: Case,
    residency: Residency,
}

struct Bench<'a> {
    cfg: &'a BenchConfig,
    cpu: Runner,
    /// Runners of the devices other than the baseline.
    devices: Vec<Runner>,
    /// True if the baseline's rows are wanted.
    show_cpu: bool,
    /// Last measured call by (device, op, dtype, residency): seconds and cost, for predictions.
    known: HashMap<(String, &'static str, DType, Residency), (f64, Cost)>,
}

/// One device at a point, between preparation and row.
struct Entry<'r> {
    runner: &'r Runner,
    row: BenchRecord,
    prepared: Option<Prepared>,
}

impl<'a> Bench<'a> {
    fn new(cfg: &'a BenchConfig, rig: &Rig) -> Self {
        let is_cpu = |d: &Arc<dyn Device>| d.serial() == rig.cpu.serial();
        Bench {
            cfg,
            cpu: Runner::new(Arc::clone(&rig.cpu)),
            devices: rig.devices.iter().filter(|d| !is_cpu(d)).map(|d| Runner::new(Arc::clone(d))).collect(),
            show_cpu: rig.devices.iter().any(is_cpu),
            known: HashMap::new(),
        }
    }

    fn points(&self, sink: &mut dyn Sink) -> Result<Vec<Point>> {
        let mut points = Vec::new();
        for op in &self.cfg.ops {
            let attrs = case::parse_attrs(op, &self.cfg.attrs)?;
            let has: Vec<DType> = self.cfg.dtypes.iter().copied().filter(|d| op.dtypes.contains(d)).collect();
            // An op of one dtype (copies, launches) is measured in it whatever was asked for.
            let dtypes = if has.is_empty() && op.dtypes.len() == 1 { op.dtypes.to_vec() } else { has };
            if dtypes.is_empty() {
                let known: Vec<_> = op.dtypes.iter().map(|d| d.name()).collect();
                sink.note(&format!("{}: none of the asked dtypes; it has {}", op.name, known.join(" ")));
            }
            for dtype in dtypes {
                for case in self.cases(op, dtype, &attrs)? {
                    for residency in &self.cfg.residencies {
                        points.push(Point { op, case: case.clone(), residency: *residency });
                    }
                }
            }
        }
        Ok(points)
    }

    fn cases(&self, op: &'static OpDesc, dtype: DType, attrs: &Attrs) -> Result<Vec<Case>> {
        if let Some(shape) = &self.cfg.shape {
            return Ok(vec![op.case(dtype, shape, attrs.clone(), Fill::Uniform)?]);
        }
        let (low, high) = op.unit.default_range();
        let sizes = self.cfg.sizes.clone().unwrap_or_else(|| {
            let factor = if high / low > 1000 { 8 } else { 2 };
            std::iter::successors(Some(low), |s| Some(s * factor)).take_while(|s| *s <= high).collect()
        });
        sizes.iter().map(|s| op.sized(dtype, *s, attrs.clone())).collect()
    }

    /// Measures one point on all devices, interleaved.
    fn point(&mut self, point: &Point, cancel: &Cancel) -> Result<Vec<BenchRecord>> {
        let inputs = case::inputs(point.op, &point.case)?;
        let deadline = Duration::from_secs_f64((self.cfg.budget_s * 4.0).max(30.0));
        let mut rows = Vec::new();
        let mut live: Vec<Entry<'_>> = Vec::new();
        let all = std::iter::once((&self.cpu, self.cfg.cpu_variant.as_deref()))
            .chain(self.devices.iter().map(|r| (r, self.cfg.variant.as_deref())));
        for (runner, variant) in all {
            let mut entry = Entry { runner, row: self.blank(point, runner.device()), prepared: None };
            if let Some(predicted) = self.predicted(point, runner, self.cfg.budget_s) {
                entry.row.subject.reason = format!(
                    "predicted {} a call, budget {} s",
                    crate::base::units::seconds(predicted),
                    self.cfg.budget_s
                );
                rows.push(entry.row);
                continue;
            }
            match runner.prepare(point.op, &point.case, variant) {
                Ok(p) => {
                    entry.row.subject.variant = p.variant.to_string();
                    entry.row.subject.reason = p.reason.clone();
                    entry.prepared = Some(p);
                    live.push(entry);
                }
                Err(e) => rows.push(refused(entry.row, &e)),
            }
        }
        let (measured, known) = self.measure(point, live, &inputs, deadline, cancel)?;
        rows.extend(measured);
        self.known.extend(known);
        let cpu = &self.cpu.device().info().id;
        let order = |id: &str| {
            if id == cpu {
                0
            } else {
                1 + self.devices.iter().position(|r| r.device().info().id == id).unwrap_or(usize::MAX - 1)
            }
        };
        rows.sort_by_key(|r| order(&r.subject.device));
        if !self.show_cpu {
            rows.retain(|r| r.subject.device != *cpu);
        }
        Ok(rows)
    }

    /// The predicted seconds of one call, if they exceed what the budget can hold (three calls).
    fn predicted(&self, point: &Point, runner: &Runner, budget_s: f64) -> Option<f64> {
        let key = (runner.device().info().id.clone(), point.op.name, point.case.dtype, point.residency);
        let (seconds, cost) = self.known.get(&key)?;
        let next = stop::predict(*seconds, cost, &(point.op.cost)(&point.case));
        (next * 3.0 > budget_s).then_some(next)
    }

    fn blank(&self, point: &Point, device: &Arc<dyn Device>) -> BenchRecord {
        let work = u64::try_from((point.op.work)(&point.case)).unwrap_or(u64::MAX);
        BenchRecord {
            subject: Row::of(&point.case, work, point.op.unit.name(), device.info()),
            residency: point.residency.name().into(),
            k: 1,
            threads: self.cpu.device().info().compute_units,
            samples: 0,
            samples_s: Vec::new(),
            median_s: None,
            ci_s: None,
            min_s: None,
            p95_s: None,
            p99_s: None,
            gflops: None,
            gbps: None,
            peak_fraction: None,
            phases_s: Phases::default(),
            speedup_vs_cpu: None,
            speedup_ci: None,
        }
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
    ) -> Result<(Vec<BenchRecord>, Vec<((String, &'static str, DType, Residency), (f64, Cost))>)> {
        let mut rows = Vec::new();
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
                        rows.push(row);
                    } else {
                        index += 1;
                    }
                }
                Err(e) => rows.push(refused(live.remove(index).row, &e)),
            }
        }
        let mut owned = Vec::new();
        for entry in &live {
            let Some(prepared) = &entry.prepared else { continue };
            owned.push(OpSubject::new(entry.runner, prepared, inputs, point.residency, deadline)?);
        }
        let mut subjects: Vec<&mut dyn Subject> = owned.iter_mut().map(|s| s as &mut dyn Subject).collect();
        let rule = StopRule::with_budget(self.cfg.budget_s * live.len().max(1) as f64);
        let series = sample(&mut subjects, &rule, cancel)?;
        let cpu_id = self.cpu.device().info().id.clone();
        let baseline = live.iter().position(|e| e.runner.device().info().id == cpu_id);
        let cpu_series = baseline.map(|i| series[i].clone());
        let reference = match baseline {
            Some(i) => Some(owned[i].outputs()?),
            None => None,
        };
        for ((entry, series), subject) in live.iter().zip(series).zip(&mut owned) {
            let mut row = entry.row.clone();
            let is_cpu = entry.runner.device().info().id == cpu_id;
            self.fill(point, entry, &mut row, &series, cpu_series.as_ref().filter(|_| !is_cpu));
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
                }
                (Ok(got), Some(want)) if !is_cpu => {
                    if let Some(why) = grossly_different(got, want) {
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
                && kernel > 2.0 * median
                && row.subject.status == Status::Ok
                && kernel > 1e-4
            {
                // A call cannot be shorter than its kernel: the wait or the device's clock is wrong.
                row.subject.status = Status::Suspect;
                row.subject.reason = format!(
                    "the kernel's own time {} exceeds the whole call {}",
                    crate::base::units::seconds(kernel),
                    crate::base::units::seconds(median)
                );
            }
            rows.push(row);
        }
        Ok((rows, known))
    }

    /// Seconds of the second of two calls: the first one compiles and warms up.
    fn try_alone(&self, point: &Point, entry: &Entry<'_>, inputs: &[HostTensor], deadline: Duration) -> Result<f64> {
        let Some(prepared) = &entry.prepared else { return Err(Error::new(Code::Internal, "not prepared")) };
        let mut subject = OpSubject::new(entry.runner, prepared, inputs, point.residency, deadline)?;
        let clock = subject.clock();
        let start = clock.now();
        subject.run(1)?;
        let first = clock.now() - start;
        // The first call may hold a driver's late compilation; only one that fills the budget by itself is final.
        if first > self.cfg.budget_s {
            return Ok(first);
        }
        let start = clock.now();
        subject.run(1)?;
        Ok(clock.now() - start)
    }

    fn fill(&self, point: &Point, entry: &Entry<'_>, row: &mut BenchRecord, series: &Series, cpu: Option<&Series>) {
        let sorted = stats::sorted(&series.samples);
        let median = stats::quantile(&sorted, 0.5);
        row.samples = series.samples.len() as u64;
        row.samples_s = series.samples.iter().copied().take(200).collect();
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
            if under && crate::kernel::is_text_backend(info.backend) {
                row.subject.flags.push("under-filled".into());
            }
        }
        let errors = entry.runner.device().ledger().release_errors();
        if !errors.is_empty() {
            row.subject.flags.push(format!("release-errors: {}", errors.len()));
        }
    }
}

fn refused(mut row: BenchRecord, e: &Error) -> BenchRecord {
    row.subject.status = match e.class() {
        crate::base::Class::Unsupported => Status::Unsupported,
        crate::base::Class::Oom => Status::Skipped,
        _ => Status::Failed,
    };
    row.subject.reason = e.to_string();
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
/// far above any legal rounding difference ([`gross::slack`]); judging accuracy is `verify`'s task.
fn grossly_different(got: &[HostTensor], want: &[HostTensor]) -> Option<String> {
    let largest: Vec<f64> = want.iter().map(|w| gross::largest(w, 0..w.len())).collect();
    for ((g, w), own) in got.iter().zip(want).zip(&largest) {
        if g.dtype != w.dtype || g.shape != w.shape {
            return Some(format!("shape {:?} instead of {:?}", g.shape, w.shape));
        }
        if unwritten(g) && !unwritten(w) {
            return Some("the output was not written".into());
        }
        let slack = gross::slack(w.dtype, *own, &largest);
        for i in 0..w.len() {
            let (a, b) = (Exact::read(g, i).to_f64(), Exact::read(w, i).to_f64());
            let same = a == b || a.is_nan() && b.is_nan() || (a - b).abs() <= slack;
            if !same {
                return Some(format!("element {i} is {a:e}, the CPU has {b:e}"));
            }
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::Env;
    use crate::base::sink::Collect;
    use crate::device::cpu::Pin;
    use crate::device::probe::{CpuConfig, Select, open};
    use crate::op::find;

    fn config(op: &str) -> BenchConfig {
        BenchConfig {
            ops: vec![find(op).unwrap()],
            sizes: Some(vec![16, 64]),
            shape: None,
            attrs: String::new(),
            dtypes: vec![DType::F32],
            residencies: vec![Residency::Resident],
            variant: None,
            cpu_variant: None,
            budget_s: 0.2,
        }
    }

    fn rig() -> Rig {
        open(&Select::Named(vec!["cpu".into()]), &Env::default(), CpuConfig { threads: 1, pin: Pin::Free }).unwrap()
    }

    fn rows(cfg: &BenchConfig) -> (BenchSummary, Vec<BenchRecord>) {
        let mut sink = Collect::default();
        let summary = run(cfg, &rig(), &mut sink, &Cancel::new()).unwrap();
        let rows = sink.records.into_iter().map(|r| match r {
            Record::Bench(b) => *b,
            other => panic!("{other:?}"),
        });
        (summary, rows.collect())
    }

    #[test]
    fn rows_are_complete() {
        let (summary, rows) = rows(&config("gemm"));
        assert_eq!((summary.ok, summary.exit_code()), (2, 0));
        for r in &rows {
            assert_eq!(r.subject.status, Status::Ok);
            assert_eq!(r.subject.ran_on, "cpu");
            let (median, ci) = (r.median_s.unwrap(), r.ci_s.unwrap());
            assert!(ci[0] <= median && median <= ci[1] && r.min_s.unwrap() <= median);
            assert!(r.gflops.unwrap() > 0.0 && r.gbps.unwrap() > 0.0);
            let p = &r.phases_s;
            assert!([p.alloc, p.h2d, p.launch, p.kernel, p.sync, p.d2h].iter().all(Option::is_some), "{p:?}");
        }
    }

    #[test]
    fn micro_ops_and_both_residencies_run() {
        let mut cfg = config("h2d");
        cfg.ops.extend([find("alloc").unwrap(), find("launch").unwrap(), find("d2h").unwrap()]);
        cfg.residencies = Residency::ALL.to_vec();
        let (summary, rows) = rows(&cfg);
        assert_eq!(
            (summary.ok, rows.len()),
            (16, 16),
            "{:?}",
            rows.iter().map(|r| &r.subject.reason).collect::<Vec<_>>()
        );
    }

    #[test]
    fn a_point_that_cannot_fit_is_left_out_with_its_prediction() {
        let mut cfg = config("gemm");
        cfg.cpu_variant = Some("naive".into());
        cfg.sizes = Some(vec![128, 4096]);
        let (summary, rows) = rows(&cfg);
        assert_eq!((summary.ok, summary.skipped), (1, 1));
        assert!(rows[1].subject.reason.starts_with("predicted "), "{}", rows[1].subject.reason);
    }

    #[test]
    fn an_unknown_variant_is_a_failed_row_not_a_silent_default() {
        let mut cfg = config("gemm");
        cfg.cpu_variant = Some("warp".into());
        let (summary, rows) = rows(&cfg);
        assert_eq!(summary.ok, 0);
        assert!(rows[0].subject.reason.contains("no variant 'warp'"), "{}", rows[0].subject.reason);
        assert_ne!(summary.exit_code(), 0);
    }

    #[test]
    fn gross_errors_are_seen_and_rounding_is_not() {
        let t = |v: &[f32]| HostTensor::from_slice(v, &[v.len() as u64]).unwrap();
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
