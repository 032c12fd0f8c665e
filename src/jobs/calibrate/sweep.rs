//! Measures one op, dtype and family on one device against the CPU: sizes from small to large in one process, then what
//! [`crossing::next`] asks for, in several.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::base::record::CalibratePoint;
use crate::base::sink::Cancel;
use crate::base::{Attrs, Case, Class, Clock, Code, Cost, DType, Error, Fill, Result, stats, units};
use crate::measure::crossing::{self, Look, Outcome, Plan, Step};
use crate::measure::{Residency, processes, stop};
use crate::op::{Family, OpDesc, Unit};

use super::look::{Looker, Order, Timed};

/// Pairs of the first look at a size, and of each look where several processes measure.
const PAIRS: [usize; 2] = [7, 15];

/// Rounds before the pairs, to check and warm up.
const BEFORE: usize = 2;

/// Share of the budget that a look at one size may take: the largest size is looked at three times, and smaller ones more
/// often, but they cost less. With the fewest pairs it may take twice as much.
const POINT: f64 = 0.05;

/// Fewest pairs.
const LEAST: usize = 3;

/// What is swept.
pub(super) struct Sweep<'a> {
    pub(super) op: &'static OpDesc,
    pub(super) dtype: DType,
    pub(super) family: &'a Family,
    /// Smallest and largest size of the sweep, as `Family::sweep` takes them.
    pub(super) range: (u64, u64),
    /// Id of the device.
    pub(super) device: &'a str,
    pub(super) residencies: &'a [Residency],
    /// Most processes.
    pub(super) processes: usize,
    pub(super) clock: Arc<dyn Clock>,
    /// Seconds on this clock for everything here.
    pub(super) budget_s: f64,
    pub(super) seed: u64,
    pub(super) cancel: &'a Cancel,
}

/// What came of one residency.
#[derive(Debug)]
pub(super) struct Found {
    /// In ascending order of size.
    pub(super) points: Vec<CalibratePoint>,
    /// Sizes in the op's unit.
    pub(super) outcome: Outcome,
}

/// What came of it.
#[derive(Debug, Default)]
pub(super) struct Swept {
    /// One for each residency.
    pub(super) found: Vec<Found>,
    /// Kernel on the device at the largest size.
    pub(super) kernel: String,
    /// Why larger sizes are missing, if they are.
    pub(super) cut: Option<String>,
    /// A measured run whose result is grossly wrong.
    pub(super) wrong: Option<String>,
    /// The error that ended the sweep, if one did.
    pub(super) error: Option<Error>,
}

/// A size in one process: samples of the CPU and of the device.
type Pair = (Vec<f64>, Vec<f64>);

/// What was measured of one residency, by the number that the size is made from; the processes in order.
type Series = BTreeMap<u64, Vec<Pair>>;

/// One call each, for predictions.
#[derive(Clone, Copy)]
struct Known {
    cost: Cost,
    /// Seconds of one round: a CPU call and one device call per residency.
    round_s: f64,
    /// Seconds that the look took besides (making operands, building kernels) where there was much to make.
    besides_s: f64,
}

/// Bytes of operands from which on making them is most of what a look takes besides its rounds.
const MUCH: u64 = 1 << 20;

/// Sweep, results and predictions while it runs.
struct Running<'s, 'a> {
    sweep: &'s Sweep<'a>,
    looker: &'s mut dyn Looker,
    begin: f64,
    series: Vec<Series>,
    known: Option<Known>,
    out: Swept,
}

impl Sweep<'_> {
    /// Runs the sweep. Errors only for interruption; what a device does wrong is part of the result.
    pub(super) fn run(&self, looker: &mut dyn Looker) -> Result<Swept> {
        let mut running = Running {
            sweep: self,
            looker,
            begin: self.clock.now(),
            series: vec![Series::new(); self.residencies.len()],
            known: None,
            out: Swept::default(),
        };
        let grid = running.first_look()?;
        for which in 0..self.residencies.len() {
            let outcome = running.decide(which, &grid)?;
            let mut points =
                running.series[which].iter().map(|(p, pairs)| self.point(*p, pairs)).collect::<Result<Vec<_>>>()?;
            // Neighbouring numbers may make sizes that are equal in the op's unit.
            points.dedup_by_key(|p| p.size);
            running.out.found.push(Found { points, outcome });
        }
        if self.cancel.raised() {
            return Err(Error::new(Code::Cancelled, "interrupted"));
        }
        Ok(running.out)
    }

    fn case(&self, param: u64) -> Result<Case> {
        self.op.case(self.dtype, &(self.family.sweep)(param), Attrs::new(), Fill::Uniform)
    }

    fn size(&self, param: u64) -> Result<u64> {
        Ok(size_of(self.op.unit, (self.op.work)(&self.case(param)?)))
    }

    /// The same in the op's unit.
    fn sized(&self, outcome: Outcome) -> Result<Outcome> {
        Ok(match outcome {
            Outcome::Crossing { size, ci: [low, high] } => {
                Outcome::Crossing { size: self.size(size)?, ci: [self.size(low)?, self.size(high)?] }
            }
            Outcome::NonMonotone(sure) => Outcome::NonMonotone(
                sure.into_iter().map(|(param, gpu)| Ok((self.size(param)?, gpu))).collect::<Result<_>>()?,
            ),
            other => other,
        })
    }

    fn point(&self, param: u64, pairs: &[Pair]) -> Result<CalibratePoint> {
        let case = self.case(param)?;
        let geometric = |of: fn(&Pair) -> &Vec<f64>| {
            (pairs.iter().map(|p| stats::median(of(p)).ln()).sum::<f64>() / pairs.len() as f64).exp()
        };
        let views: Vec<(&[f64], &[f64])> = pairs.iter().map(|(c, d)| (&c[..], &d[..])).collect();
        let alone = || pairs.first().map_or([f64::NAN; 2], |(c, d)| stats::ratio_ci(c, d, case.seed() ^ self.seed));
        Ok(CalibratePoint {
            size: size_of(self.op.unit, (self.op.work)(&case)),
            cpu_s: geometric(|p| &p.0),
            gpu_s: geometric(|p| &p.1),
            ratio_ci: processes::ratio(&views).map_or_else(alone, |e| e.ci),
            pairs: pairs.iter().map(|p| p.0.len() as u64).sum(),
        })
    }
}

impl Running<'_, '_> {
    fn left(&self) -> f64 {
        self.sweep.budget_s - (self.sweep.clock.now() - self.begin)
    }

    fn stopped(&self) -> bool {
        self.out.wrong.is_some() || self.out.error.is_some()
    }

    /// All residencies together in the first process, from small to large; gives the sizes that were measured.
    fn first_look(&mut self) -> Result<Vec<u64>> {
        let all: Vec<usize> = (0..self.series.len()).collect();
        let mut grid = Vec::new();
        for param in crossing::grid(self.sweep.range) {
            if let Some(why) = self.look(param, &all, 0, PAIRS[0])? {
                self.out.cut = Some(format!("sizes from {param} on are left out: {why}"));
                break;
            }
            if self.stopped() {
                break;
            }
            grid.push(param);
        }
        Ok(grid)
    }

    /// Follows the plan for one residency.
    fn decide(&mut self, which: usize, grid: &[u64]) -> Result<Outcome> {
        let n = self.sweep.processes;
        let plan = Plan { processes: [3.min(n), 5.min(n), n], ..Plan::new(grid.to_vec()) };
        loop {
            if self.stopped() || grid.is_empty() {
                return Ok(Outcome::Inconclusive("nothing was measured"));
            }
            let looks: Vec<Look> = self.series[which].iter().map(|(size, pairs)| Look::of(*size, pairs)).collect();
            let (sizes, processes) = match crossing::next(&looks, &plan) {
                Step::Done(outcome) => return self.sweep.sized(outcome),
                Step::Measure { sizes, processes } => (sizes, processes),
            };
            for size in sizes {
                for process in self.series[which].get(&size).map_or(0, Vec::len)..processes {
                    if self.look(size, &[which], process, PAIRS[1])?.is_some() {
                        return Ok(Outcome::Inconclusive("the budget was spent before it was known"));
                    }
                    if self.stopped() {
                        return Ok(Outcome::Inconclusive("nothing was measured"));
                    }
                }
            }
        }
    }

    /// Measures one size in one process, or says why it and all larger ones are left out. Errors for interruption.
    fn look(&mut self, param: u64, which: &[usize], process: usize, pairs: usize) -> Result<Option<String>> {
        let sweep = self.sweep;
        let left_s = self.left();
        if left_s <= 0.0 {
            return Ok(Some(format!("the budget of {} is spent", units::seconds(sweep.budget_s))));
        }
        let case = match sweep.case(param) {
            Ok(case) => case,
            Err(e) => return Ok(Some(e.to_string())),
        };
        let cost = (sweep.op.cost)(&case);
        let mut budget_s = left_s;
        let mut pairs = pairs;
        if let Some(k) = self.known {
            let predicted = stop::predict(k.round_s, &k.cost, &cost);
            let besides = k.besides_s * cost.bytes() as f64 / k.cost.bytes().max(1) as f64;
            let least = besides + predicted * (LEAST + BEFORE) as f64;
            if least > (2.0 * POINT * sweep.budget_s).min(left_s) {
                let (p, b) = (units::seconds(predicted), units::seconds(sweep.budget_s));
                let m = units::seconds(besides);
                return Ok(Some(format!("predicted {p} a pair and {m} to make it, the key has {b}")));
            }
            let fit = ((POINT * sweep.budget_s - besides) / predicted) as usize;
            pairs = fit.saturating_sub(BEFORE).clamp(LEAST, pairs);
            // Predictions are high rather than low, but not always.
            budget_s = left_s.min(3.0 * predicted * (pairs + BEFORE) as f64).max(POINT * sweep.budget_s);
        }
        let order = Order {
            op: sweep.op.name.into(),
            dtype: sweep.dtype,
            family: sweep.family.name.into(),
            device: sweep.device.into(),
            param,
            residencies: which.iter().map(|i| sweep.residencies[*i]).collect(),
            pairs,
            budget_s,
        };
        let begin = sweep.clock.now();
        match self.looker.look(&order, process, sweep.cancel) {
            Ok(None) => Ok(Some(format!("{} hold too few pairs", units::seconds(budget_s)))),
            Ok(Some(timed)) => {
                self.keep(param, which, timed, cost, sweep.clock.now() - begin);
                Ok(None)
            }
            Err(e) if e.code() == Code::Cancelled => Err(e),
            // Too large for a device or the host: the sizes below stand.
            Err(e) if matches!(e.class(), Class::Oom | Class::Unsupported) && self.known.is_some() => {
                Ok(Some(e.to_string()))
            }
            Err(e) => {
                self.out.error = Some(e);
                Ok(None)
            }
        }
    }

    fn keep(&mut self, param: u64, which: &[usize], timed: Timed, cost: Cost, took_s: f64) {
        let all = || std::iter::once(&timed.cpu).chain(&timed.devices);
        let in_rounds: f64 = all().map(|s| s.iter().sum::<f64>()).sum();
        let besides_s = if cost.bytes() >= MUCH { (took_s - in_rounds).max(0.0) } else { 0.0 };
        // A sample of several calls between copies is shown as one call's share.
        let calls = |i: &usize| self.sweep.residencies[*i].calls() as f64;
        let on_devices: f64 = which.iter().zip(&timed.devices).map(|(i, s)| calls(i) * stats::median(s)).sum();
        self.known = Some(Known { cost, round_s: stats::median(&timed.cpu) + on_devices, besides_s });
        self.out.kernel = timed.kernel;
        self.out.wrong = self.out.wrong.take().or(timed.wrong);
        for (i, device) in which.iter().zip(timed.devices) {
            self.series[*i].entry(param).or_default().push((timed.cpu.clone(), device));
        }
    }
}

/// The size in the op's unit of an amount of work: the work itself, or its cube root rounded down for `Dim`.
pub(super) fn size_of(unit: Unit, work: u128) -> u64 {
    if unit != Unit::Dim {
        return u64::try_from(work).unwrap_or(u64::MAX);
    }
    let mut root = (work as f64).cbrt() as u128;
    while root.pow(3) > work {
        root -= 1;
    }
    while (root + 1).pow(3) <= work {
        root += 1;
    }
    root as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_of_work() {
        for n in [1u64, 2, 16, 999, 2048, 1 << 20] {
            assert_eq!(size_of(Unit::Dim, u128::from(n).pow(3)), n);
            assert_eq!(size_of(Unit::Dim, u128::from(n).pow(3) + 1), n);
            assert_eq!(size_of(Unit::Dim, u128::from(n + 1).pow(3) - 1), n);
        }
        assert_eq!(size_of(Unit::Dim, 0), 0);
        assert_eq!(size_of(Unit::Elements, 77), 77);
        assert_eq!(size_of(Unit::Elements, u128::MAX), u64::MAX);
    }
}
