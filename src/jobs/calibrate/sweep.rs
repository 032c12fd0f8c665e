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
use crate::profile::model::{Curve, Sample, fit};

use super::look::{Looker, Order, Timed};
use super::shapes::shapes;

/// Pairs of the first look at a size, and of each look where several processes measure.
const PAIRS: [usize; 2] = [7, 15];

/// Rounds before the pairs, to check and warm up.
const BEFORE: usize = 2;

/// Share of the budget that a look at one size may take: the largest size is looked at three times, and smaller ones more
/// often, but they cost less. With the fewest pairs it may take twice as much.
const POINT: f64 = 0.05;

/// Fewest pairs.
const LEAST: usize = 3;

/// Shapes besides the sweep that curves rest on: where there is one dimension, and where there are more.
const OTHERS: [usize; 2] = [10, 32];

/// Share of the budget that they may take.
const OTHERS_SHARE: f64 = 0.25;

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
    /// Times of any shape, if enough shapes were measured.
    pub(super) curve: Option<Curve>,
}

/// What was measured, to go on from.
#[derive(Clone, Debug, Default)]
pub(super) struct State {
    series: Vec<Series>,
    known: Option<Known>,
    /// Sizes of the first look, as the family's sweep takes them.
    grid: Vec<u64>,
    /// Shapes besides the sweep, with the process and the samples by residency.
    others: Vec<(Case, usize, Vec<Pair>)>,
    /// Of these shapes so many were looked at.
    looked: usize,
    calls: [u64; 2],
}

/// What came of it.
#[derive(Debug, Default)]
pub(super) struct Swept {
    /// What more time could go on from, and true if it may decide more.
    pub(super) state: State,
    pub(super) open: bool,
    /// One for each residency.
    pub(super) found: Vec<Found>,
    /// Kernel on the device at the largest size.
    pub(super) kernel: String,
    /// Calls that were timed, those to warm up among them: for the crossings, and at other shapes for the curves.
    pub(super) calls: [u64; 2],
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
#[derive(Clone, Copy, Debug)]
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
    state: State,
    /// True if more time would have led further.
    open: bool,
    out: Swept,
}

/// What came of one look.
enum Looked {
    Timed(Timed),
    /// Why this size is left out, and all larger ones.
    LeftOut {
        why: String,
        /// True if more time would do.
        time: bool,
    },
    /// The sweep is over: a device went wrong.
    Stopped,
}

impl Sweep<'_> {
    /// Runs the sweep, from where an earlier one ended. Errors only for interruption; what a device does wrong is part of
    /// the result.
    pub(super) fn run(&self, looker: &mut dyn Looker, mut state: State) -> Result<Swept> {
        state.series.resize(self.residencies.len(), Series::new());
        let begin = self.clock.now();
        let mut running = Running { sweep: self, looker, begin, state, open: false, out: Swept::default() };
        running.first_look()?;
        let outcomes = (0..self.residencies.len()).map(|which| running.decide(which)).collect::<Result<Vec<_>>>()?;
        running.look_elsewhere()?;
        for (which, outcome) in outcomes.into_iter().enumerate() {
            let mut points = running.state.series[which]
                .iter()
                .map(|(p, pairs)| self.point(*p, pairs))
                .collect::<Result<Vec<_>>>()?;
            // Neighbouring numbers may make sizes that are equal in the op's unit.
            points.dedup_by_key(|p| p.size);
            let curve = running.curve(which)?;
            running.out.found.push(Found { points, outcome, curve });
        }
        if self.cancel.raised() {
            return Err(Error::new(Code::Cancelled, "interrupted"));
        }
        let open = running.open && !running.stopped();
        Ok(Swept { calls: running.state.calls, open, state: running.state, ..running.out })
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

    /// All residencies together in the first process, from small to large.
    fn first_look(&mut self) -> Result<()> {
        let all: Vec<usize> = (0..self.state.series.len()).collect();
        let known = self.state.grid.last().copied().unwrap_or(0);
        for param in crossing::grid(self.sweep.range).into_iter().filter(|p| *p > known) {
            match self.sized_look(param, &all, 0, PAIRS[0])? {
                Looked::Timed(_) => self.state.grid.push(param),
                Looked::Stopped => break,
                Looked::LeftOut { why, time } => {
                    self.open |= time;
                    self.out.cut = Some(format!("sizes from {param} on are left out: {why}"));
                    break;
                }
            }
        }
        Ok(())
    }

    /// Follows the plan for one residency.
    fn decide(&mut self, which: usize) -> Result<Outcome> {
        let n = self.sweep.processes;
        let plan = Plan { processes: [3.min(n), 5.min(n), n], ..Plan::new(self.state.grid.clone()) };
        loop {
            if self.stopped() || plan.grid.is_empty() {
                return Ok(Outcome::Inconclusive("nothing was measured"));
            }
            let looks: Vec<Look> =
                self.state.series[which].iter().map(|(size, pairs)| Look::of(*size, pairs)).collect();
            let (sizes, processes) = match crossing::next(&looks, &plan) {
                Step::Done(outcome) => return self.sweep.sized(outcome),
                Step::Measure { sizes, processes } => (sizes, processes),
            };
            for size in sizes {
                for process in self.state.series[which].get(&size).map_or(0, Vec::len)..processes {
                    match self.sized_look(size, &[which], process, PAIRS[1])? {
                        Looked::Timed(_) => {}
                        Looked::Stopped => return Ok(Outcome::Inconclusive("nothing was measured")),
                        Looked::LeftOut { time, .. } => {
                            self.open |= time;
                            return Ok(Outcome::Inconclusive("the budget was spent before it was known"));
                        }
                    }
                }
            }
        }
    }

    /// Shapes besides the sweep, for the curves, within the range that could be measured.
    fn look_elsewhere(&mut self) -> Result<()> {
        let (Some(low), Some(high)) = (self.state.grid.first().copied(), self.state.grid.last().copied()) else {
            return Ok(());
        };
        let sweep = self.sweep;
        let range = (sweep.size(low)?, sweep.size(high)?);
        let n = OTHERS[usize::from(sweep.op.dims.len() > 1)];
        let all: Vec<usize> = (0..self.state.series.len()).collect();
        let end = sweep.clock.now() + OTHERS_SHARE * sweep.budget_s;
        for (i, case) in shapes(sweep.op, sweep.dtype, sweep.family, range, sweep.seed, n, true)?
            .into_iter()
            .enumerate()
            .skip(self.state.looked)
        {
            if self.stopped() || self.left() <= 0.0 || sweep.clock.now() >= end {
                break;
            }
            self.state.looked = i + 1;
            let process = i % sweep.processes.min(3);
            if let Looked::Timed(timed) = self.look(&case, &all, process, PAIRS[0])? {
                self.state.calls[1] += timed.calls;
                let pairs = timed.devices.into_iter().map(|d| (timed.cpu.clone(), d)).collect();
                self.state.others.push((case, process, pairs));
            }
        }
        Ok(())
    }

    /// The curves of one residency.
    fn curve(&self, which: usize) -> Result<Option<Curve>> {
        let op = self.sweep.op;
        let sample = |case: &Case, process: usize, (cpu, device): &Pair| Sample {
            call: op.features(case),
            process,
            cpu_s: stats::median(cpu),
            device_s: stats::median(device),
        };
        let mut samples = Vec::new();
        for (param, pairs) in &self.state.series[which] {
            let case = self.sweep.case(*param)?;
            samples.extend(pairs.iter().enumerate().map(|(process, pair)| sample(&case, process, pair)));
        }
        samples.extend(self.state.others.iter().map(|(case, process, pairs)| sample(case, *process, &pairs[which])));
        Ok(fit(&samples, self.sweep.residencies[which] != Residency::Resident))
    }

    /// A size of the sweep in one process; what is timed is kept.
    fn sized_look(&mut self, param: u64, which: &[usize], process: usize, pairs: usize) -> Result<Looked> {
        let case = match self.sweep.case(param) {
            Ok(case) => case,
            Err(e) => return Ok(Looked::LeftOut { why: e.to_string(), time: false }),
        };
        let looked = self.look(&case, which, process, pairs)?;
        if let Looked::Timed(timed) = &looked {
            self.state.calls[0] += timed.calls;
            for (i, device) in which.iter().zip(&timed.devices) {
                self.state.series[*i].entry(param).or_default().push((timed.cpu.clone(), device.clone()));
            }
        }
        Ok(looked)
    }

    /// Measures one shape in one process. Errors for interruption.
    fn look(&mut self, case: &Case, which: &[usize], process: usize, pairs: usize) -> Result<Looked> {
        let sweep = self.sweep;
        let left_s = self.left();
        if left_s <= 0.0 {
            let why = format!("the budget of {} is spent", units::seconds(sweep.budget_s));
            return Ok(Looked::LeftOut { why, time: true });
        }
        let cost = (sweep.op.cost)(case);
        let mut budget_s = left_s;
        let mut pairs = pairs;
        if let Some(k) = self.state.known {
            let predicted = stop::predict(k.round_s, &k.cost, &cost);
            let besides = k.besides_s * cost.bytes() as f64 / k.cost.bytes().max(1) as f64;
            let least = besides + predicted * (LEAST + BEFORE) as f64;
            if least > (2.0 * POINT * sweep.budget_s).min(left_s) {
                let (p, b) = (units::seconds(predicted), units::seconds(sweep.budget_s));
                let m = units::seconds(besides);
                let why = format!("predicted {p} a pair and {m} to make it, the key has {b}");
                return Ok(Looked::LeftOut { why, time: true });
            }
            let fit = ((POINT * sweep.budget_s - besides) / predicted) as usize;
            pairs = fit.saturating_sub(BEFORE).clamp(LEAST, pairs);
            // Predictions are high rather than low, but not always.
            budget_s = left_s.min(3.0 * predicted * (pairs + BEFORE) as f64).max(POINT * sweep.budget_s);
        }
        let order = Order {
            op: sweep.op.name.into(),
            dtype: sweep.dtype,
            device: sweep.device.into(),
            dims: case.dims.iter().map(|(_, size)| *size).collect(),
            residencies: which.iter().map(|i| sweep.residencies[*i]).collect(),
            pairs,
            budget_s,
        };
        let begin = sweep.clock.now();
        match self.looker.look(&order, process, sweep.cancel) {
            Ok(None) => {
                Ok(Looked::LeftOut { why: format!("{} hold too few pairs", units::seconds(budget_s)), time: true })
            }
            Ok(Some(timed)) => {
                self.keep(which, &timed, cost, sweep.clock.now() - begin);
                Ok(if self.stopped() { Looked::Stopped } else { Looked::Timed(timed) })
            }
            Err(e) if e.code() == Code::Cancelled => Err(e),
            // Too large for a device or the host: the sizes below stand.
            Err(e) if matches!(e.class(), Class::Oom | Class::Unsupported) && self.state.known.is_some() => {
                Ok(Looked::LeftOut { why: e.to_string(), time: false })
            }
            Err(e) => {
                self.out.error = Some(e);
                Ok(Looked::Stopped)
            }
        }
    }

    fn keep(&mut self, which: &[usize], timed: &Timed, cost: Cost, took_s: f64) {
        let all = || std::iter::once(&timed.cpu).chain(&timed.devices);
        let in_rounds: f64 = all().map(|s| s.iter().sum::<f64>()).sum();
        let besides_s = if cost.bytes() >= MUCH { (took_s - in_rounds).max(0.0) } else { 0.0 };
        // A sample of several calls between copies is shown as one call's share.
        let calls = |i: &usize| self.sweep.residencies[*i].calls() as f64;
        let on_devices: f64 = which.iter().zip(&timed.devices).map(|(i, s)| calls(i) * stats::median(s)).sum();
        self.state.known = Some(Known { cost, round_s: stats::median(&timed.cpu) + on_devices, besides_s });
        self.out.kernel.clone_from(&timed.kernel);
        self.out.wrong = self.out.wrong.take().or(timed.wrong.clone());
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
