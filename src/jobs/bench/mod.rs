//! Timings with their spread, phases, rates and the comparison with the CPU, in the same run and interleaved.
//!
//! Each point is predicted before it runs; what cannot fit the budget becomes a row that says so. Results of the
//! measured run are compared with the CPU's, so that a kernel that did nothing cannot look fast. The program measures every
//! point in several fresh processes ([`processes`]), since one says little about the next.

pub mod baseline;
mod point;
pub mod processes;
#[cfg(all(test, unix))]
mod suspect_tests;
mod watched;
#[cfg(all(test, unix))]
mod window_tests;

use crate::base::record::{Analysis, BenchRecord, KernelsRecord, Record, Status};
use crate::base::sink::{Cancel, Collect, Progress, Sink};
use crate::base::{Case, Code, DType, DeviceInfo, Result};
use crate::device::probe::Rig;
use crate::engine::KernelCache;
use crate::jobs::ceilings::judge::{self, Ceilings};
use crate::measure::{Cache, Residency};
use crate::op::OpDesc;

use point::{Bench, Measured, Point};

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
    /// Timed region in seconds ([`crate::measure::StopRule::region_s`]): resident calls that are shorter share a wait.
    pub region_s: f64,
    /// What caches hold when a call begins.
    pub cache: Cache,
    /// These cases before those of `ops` over sizes and dtypes; true: one call per sample, each with its own wait.
    pub cases: Vec<(&'static OpDesc, Case, bool)>,
    /// What devices were measured to reach; rows are held against it.
    pub ceilings: Ceilings,
    /// Where compiled kernels are kept. Nothing is fetched and written while something is measured.
    pub kernels: KernelCache,
}

/// What came of it.
#[derive(Clone, Debug, Default, PartialEq)]
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
    /// What became of the devices' programs, in all processes.
    pub kernels: Vec<KernelsRecord>,
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

/// Says what [`run`] would refuse, without running anything: sizes and attributes that an op does not take.
pub fn check(cfg: &BenchConfig) -> Result<()> {
    point::points(cfg, &mut Collect::default()).map(drop)
}

/// Runs all points in this process and hands out their rows as they end.
pub fn run(cfg: &BenchConfig, rig: &Rig, sink: &mut dyn Sink, cancel: &Cancel) -> Result<BenchSummary> {
    let points = point::points(cfg, sink)?;
    let mut bench = Bench::new(cfg, rig);
    let mut summary = BenchSummary::default();
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
        let mut measured = bench.point(point, cancel);
        // What is faster than possible is measured once more.
        let suspect = |m: &Measured| m.row.subject.status == Status::Suspect;
        if matches!(&measured, Ok(rows) if rows.iter().any(suspect)) && !cancel.raised() {
            measured = bench.point(point, cancel);
        }
        match measured {
            // What was finished before the interruption is kept and handed out.
            Err(e) if e.code() == Code::Cancelled => {
                summary.cancelled = true;
                break;
            }
            rows => summary.hand_out(rows?.into_iter().map(|m| m.row).collect(), sink),
        }
    }
    summary.joins(&bench.kernels());
    Ok(summary)
}

/// Holds the rows of a point against ceilings.
fn judged<'r>(
    point: &Point,
    rows: impl Iterator<Item = &'r mut BenchRecord>,
    infos: &[&DeviceInfo],
    ceilings: &Ceilings,
) {
    let cost = (point.op.cost)(&point.case);
    for row in rows {
        let Some(info) = infos.iter().find(|d| d.id == row.subject.device) else { continue };
        let Some(facts) = judge::facts(row, point.op, cost.flops, cost.bytes()) else { continue };
        let found = judge::judge(&facts, info, ceilings.device(&info.uid));
        let own = std::mem::take(&mut row.analysis);
        row.analysis = Analysis { baseline: own.baseline, cache: own.cache, ..found.analysis };
        row.peak_fraction = found.peak_fraction;
        if let Some(why) = found.suspect {
            row.subject.status = Status::Suspect;
            row.subject.reason = why;
        }
    }
}

impl BenchSummary {
    /// Adds what one process did with its programs.
    fn joins(&mut self, kernels: &[KernelsRecord]) {
        for of in kernels {
            match self.kernels.iter_mut().find(|k| k.uid == of.uid) {
                Some(known) => known.join(of),
                None => self.kernels.push(of.clone()),
            }
        }
    }

    fn hand_out(&mut self, rows: Vec<BenchRecord>, sink: &mut dyn Sink) {
        for row in rows {
            match row.subject.status {
                Status::Ok => self.ok += 1,
                Status::Skipped => self.skipped += 1,
                Status::Unsupported => self.unsupported += 1,
                Status::Failed | Status::Suspect => self.failed += 1,
            }
            sink.record(&Record::Bench(Box::new(row)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::{Attrs, Env, Fill};
    use crate::device::cpu::Pin;
    use crate::device::probe::{CpuConfig, Select, open};
    use crate::device::sim::{self, Compute};
    use crate::measure::REGION_S;
    use crate::op::find;

    /// A short run of one op on small shapes.
    pub(in crate::jobs::bench) fn config(op: &str) -> BenchConfig {
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
            region_s: REGION_S,
            cache: Cache::Hot,
            cases: Vec::new(),
            ceilings: Ceilings::default(),
            kernels: KernelCache::off(),
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

    /// On a simulated device whose wait takes 10 us, and a call of 1,000 numbers hardly any time.
    #[test]
    fn a_longer_region_shares_its_wait_among_more_calls() {
        let mut spec = sim::spec("laptop").unwrap().quiet();
        spec.device.sync_s = 10e-6;
        let median = |region_s| {
            let (cpu, device) = sim::open_spec(spec.clone(), Compute::Real).unwrap();
            let rig = Rig { devices: vec![device], cpu, absent: Vec::new() };
            let mut sink = Collect::default();
            let cfg = BenchConfig { sizes: Some(vec![1000]), region_s, ..config("exp") };
            run(&cfg, &rig, &mut sink, &Cancel::new()).unwrap();
            let Some(Record::Bench(row)) = sink.records.last() else { panic!("{:?}", sink.records) };
            assert_eq!((row.subject.device.as_str(), row.region_s), ("sim:laptop", region_s));
            row.median_s.unwrap()
        };
        let (short, long) = (median(REGION_S), median(5e-3));
        let op = find("exp").unwrap();
        let case = op.case(DType::F32, &[1000], Attrs::new(), Fill::Uniform).unwrap();
        let call = spec.device.call(&[], &[(op.cost)(&case)], DType::F32, &[]).unwrap();
        // Of 50 us a few calls share the wait, of thirty times a call so many that it does not count.
        assert!(long < short && short < call && call - long > 9e-6, "{long} {short} {call}");
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
        // Enough for the smaller one on a busy machine, and by far not for the larger one.
        cfg.budget_s = 2.0;
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
}
