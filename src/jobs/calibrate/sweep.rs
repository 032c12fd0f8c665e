//! Measures one op, dtype and family on one device against the CPU: sizes from small to large in one process, then what
//! [`crossing::next`] asks for, in several; and, where that is known and time is left, other shapes for the curves. After the
//! first sizes all of it is done in turns of one look each, so that other keys can have theirs between them.

mod elsewhere;
mod swept;
mod visits;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::Arc;

use crate::base::record::CalibratePoint;
use crate::base::sink::Cancel;
use crate::base::{Attrs, Case, Class, Clock, Code, Cost, DType, Error, Fill, Result, stats, units};
use crate::jobs::look::{LEAST, Looker, Order, Timed};
use crate::measure::common::{Common, Whose};
use crate::measure::crossing::{self, Look, Outcome, Plan, Step};
use crate::measure::{Residency, processes, stop};
use crate::op::{Family, OpDesc};
use crate::profile::model::Sample;

use super::shapes::size_of;
use elsewhere::Elsewhere;
pub(super) use swept::Swept;
use visits::{Pair, Series, Visited, alone, looks};

/// Most pairs of a look that is for an interval; one that is for a verdict has the fewest.
const PAIRS: usize = 9;

/// The square root of this over the seconds of a pair is how many cost least: a look took 3 ms besides its pairs, and one pair
/// after the other scattered by three times what a look's pairs have in common (docs/measuring.md).
const EVEN_S: f64 = 30e-3;

/// Rounds before the pairs, to check and warm up.
const BEFORE: usize = 2;

/// Half of the share of the budget that a look at one size may take: the largest size is looked at three times, and smaller ones
/// more often, but they cost less.
const POINT: f64 = 0.05;

/// The same of new sizes. The budget is twice a key's even share there: five processes look at the largest within two fifths of it.
const NEW: f64 = 0.02;

/// The same of a size that was left out: twice that is all that a key has.
const NEXT: f64 = 0.5;

/// Share of the time for other shapes that one of them may take, as [`POINT`].
const OTHER: f64 = 0.2;

/// Why larger sizes are missing whose turn did not come.
const NO_TIME: &str = "the budget was spent";

fn left_out(from: u64, why: &str) -> String {
    format!("sizes from {from} on are left out: {why}")
}

/// Of what may be known with more time.
pub(super) const SPENT: &str = "the budget was spent before it was known";

/// How closely a crossing is looked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Depth {
    /// A verdict, however wide its interval.
    First,
    /// As `Full`, but until the interval is within [`crossing::WITHIN_15`].
    Near(usize),
    /// The same within [`crossing::WITHIN_10`].
    Close(usize),
    /// Until the interval is narrow or nothing helps, and so many processes have measured near a crossing.
    Full(usize),
}

/// What looks at all groups are off by in common.
pub(super) type Shared = RefCell<Common>;

/// What is swept.
pub(super) struct Sweep<'a> {
    /// Number of the group.
    pub(super) number: usize,
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
    /// Seconds on this clock for everything here but what is done once.
    pub(super) budget_s: f64,
    pub(super) seed: u64,
    pub(super) common: &'a Shared,
    pub(super) cancel: &'a Cancel,
}

/// What came of one residency.
#[derive(Debug)]
pub(super) struct Found {
    /// In ascending order of size.
    pub(super) points: Vec<CalibratePoint>,
    /// Sizes in the op's unit.
    pub(super) outcome: Outcome,
    /// Why larger sizes are missing, if they are.
    pub(super) cut: Option<String>,
}

/// What was measured, to go on from.
#[derive(Debug, Default)]
struct State {
    series: Vec<Series>,
    known: Option<Known>,
    /// Sizes of the first look, as the family's sweep takes them.
    grid: Vec<u64>,
    /// Looks at shapes besides the sweep, with the process and the samples by residency.
    others: Vec<(Case, usize, Vec<Pair>)>,
    elsewhere: Option<Elsewhere>,
}

/// Number of the visit, number of the process and a size: in this order, so that what a machine does for longer than a few looks
/// is the offset of a process, and visits of one process to one size lie apart.
type Visit = (usize, usize, u64);

/// One call each, for predictions.
#[derive(Clone, Copy, Debug)]
struct Known {
    cost: Cost,
    /// Seconds of one round: a CPU call and one device call per residency.
    round_s: f64,
    /// Seconds that operands took besides ([`Timed::made_s`]) where there was much to make.
    besides_s: f64,
}

/// Bytes of operands from which on making them is most of what a look takes besides its rounds.
const MUCH: u64 = 1 << 20;

/// Sweep, results and predictions while it runs.
struct Running<'s, 'a> {
    sweep: &'s Sweep<'a>,
    looker: &'s mut dyn Looker,
    begin: f64,
    /// Share of the budget that a look may take.
    share: f64,
    /// Most pairs of a look.
    pairs: usize,
    out: &'s mut Swept,
}

/// What came of one look.
enum Looked {
    Timed(Timed),
    /// Why this size is left out, and all larger ones; `time`: more of it would do.
    LeftOut {
        why: String,
        time: bool,
    },
    /// The sweep is over: a device went wrong.
    Stopped,
}

impl Sweep<'_> {
    /// Looks at sizes from small to large in the first process, as far as the budget reaches. Errors only for interruption, here
    /// and below; what a device does wrong is part of the result.
    pub(super) fn begin(&self, looker: &mut dyn Looker, swept: &mut Swept) -> Result<()> {
        let mut running = Running::new(self, looker, NEW, swept);
        while running.next_size()? {}
        running.out.undecided = true;
        running.out.outcomes.resize(self.residencies.len(), (Outcome::Inconclusive(SPENT), 0));
        running.done()
    }

    /// Looks at the smallest size that was left out, in the first process.
    pub(super) fn larger(&self, looker: &mut dyn Looker, swept: &mut Swept) -> Result<()> {
        let mut running = Running::new(self, looker, NEXT, swept);
        running.out.waits = running.next_size()?;
        running.out.undecided = true;
        running.done()
    }

    /// Looks once more for the crossings, as deeply as that.
    pub(super) fn turn(&self, looker: &mut dyn Looker, swept: &mut Swept, depth: Depth) -> Result<()> {
        let mut running = Running::new(self, looker, POINT, swept);
        if depth != Depth::First {
            running.pairs = PAIRS;
        }
        let known = running.decide(depth)?;
        // An error takes nothing back that was known before.
        if !running.out.stopped() {
            running.out.outcomes = known;
        }
        running.done()
    }

    /// Looks at one shape besides the sweep, within the range that could be measured; the verdict stands.
    pub(super) fn look_elsewhere(&self, looker: &mut dyn Looker, swept: &mut Swept) -> Result<()> {
        let kernel = swept.kernel.clone();
        let mut running = Running::new(self, looker, OTHER, swept);
        running.out.waits = running.look_elsewhere()?;
        running.out.kernel = kernel;
        running.done()
    }

    /// What is known, one for each residency.
    pub(super) fn found(&self, swept: &Swept) -> Result<Vec<Found>> {
        let grid = &swept.state.grid;
        let of = |(which, (outcome, sizes)): (usize, &(Outcome, usize))| {
            // Larger ones may have been looked at without a verdict.
            let without = grid.get(*sizes).filter(|_| *sizes > 0);
            let known = swept.state.series[which].iter().filter(|(p, _)| without.is_none_or(|from| *p < from));
            let mut points = known.map(|(p, pairs)| self.point(*p, pairs)).collect::<Result<Vec<_>>>()?;
            // Neighbouring numbers may make sizes that are equal in the op's unit.
            points.dedup_by_key(|p| p.size);
            let cut = without.map_or_else(|| swept.cut.clone(), |from| Some(left_out(*from, NO_TIME)));
            Ok(Found { points, outcome: outcome.clone(), cut })
        };
        swept.outcomes.iter().enumerate().map(of).collect()
    }

    /// What the curve of residency number `which` rests on, and whether its calls copy operands.
    pub(super) fn samples(&self, swept: &Swept, which: usize) -> Result<(Vec<Sample>, bool)> {
        let state = &swept.state;
        let sample = |case: &Case, process: usize, (cpu, device): &Pair| Sample {
            call: self.op.features(case),
            process,
            cpu_s: stats::median(cpu),
            device_s: stats::median(device),
        };
        let mut samples = Vec::new();
        for (param, pairs) in &state.series[which] {
            let case = self.case(*param)?;
            samples.extend(pairs.iter().enumerate().map(|(process, v)| sample(&case, process, &v.pair)));
        }
        samples.extend(state.others.iter().map(|(case, process, pairs)| sample(case, *process, &pairs[which])));
        Ok((samples, self.residencies[which] != Residency::Resident))
    }

    fn case(&self, param: u64) -> Result<Case> {
        self.op.case(self.dtype, &(self.family.sweep)(param), Attrs::new(), Fill::Uniform)
    }

    /// [`total`] of a size; 0 if there is no such case.
    fn cost_of(&self, param: u64) -> u64 {
        self.case(param).map_or(0, |case| total(&(self.op.cost)(&case)))
    }

    /// The number that makes the same shape and is its size, if there is one: many numbers make one shape where sizes are
    /// rounded to whole rows.
    fn snap(&self, param: u64) -> u64 {
        let same = |size: &u64| (self.family.sweep)(*size) == (self.family.sweep)(param);
        self.size(param).ok().filter(same).unwrap_or(param)
    }

    fn size(&self, param: u64) -> Result<u64> {
        Ok(size_of(self.op.unit, (self.op.work)(&self.case(param)?)))
    }

    /// A number of the sweep in the op's unit, which may lie between two of those that were measured. Of images with 1100 and 1210
    /// elements, the sizes in between have none of their own, but the times of both say from where on a device wins.
    fn between(&self, param: u64, measured: &Series) -> Result<u64> {
        let (below, above) = (measured.range(..=param).next_back(), measured.range(param..).next());
        let (Some((&low, _)), Some((&high, _))) = (below, above) else { return self.size(param) };
        let sizes = [self.size(low)?, self.size(high)?].map(|size| (size as f64).ln());
        if low == high || sizes[0] == sizes[1] {
            return self.size(low);
        }
        let [low, high, at] = [low, high, param].map(|n| (n as f64).ln());
        Ok((sizes[0] + (sizes[1] - sizes[0]) * (at - low) / (high - low)).exp().round() as u64)
    }

    /// The same of what came of it.
    fn sized(&self, outcome: Outcome, measured: &Series) -> Result<Outcome> {
        let at = |param| self.between(param, measured);
        Ok(match outcome {
            Outcome::Crossing { size, ci: [low, high], stake, without } => {
                Outcome::Crossing { size: at(size)?, ci: [at(low)?, at(high)?], stake, without }
            }
            Outcome::NonMonotone(sure) => Outcome::NonMonotone(
                sure.into_iter().map(|(param, gpu)| Ok((self.size(param)?, gpu))).collect::<Result<_>>()?,
            ),
            other => other,
        })
    }

    fn point(&self, param: u64, visited: &[Visited]) -> Result<CalibratePoint> {
        let case = self.case(param)?;
        let pairs: Vec<&Pair> = visited.iter().map(|v| &v.pair).collect();
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

impl<'s, 'a> Running<'s, 'a> {
    fn new(sweep: &'s Sweep<'a>, looker: &'s mut dyn Looker, share: f64, out: &'s mut Swept) -> Self {
        out.state.series.resize(sweep.residencies.len(), Series::new());
        Running { sweep, looker, begin: sweep.clock.now(), share, pairs: LEAST, out }
    }

    fn done(self) -> Result<()> {
        if self.sweep.cancel.raised() {
            return Err(Error::new(Code::Cancelled, "interrupted"));
        }
        let goes_on = !self.out.stopped();
        self.out.waits &= goes_on;
        self.out.undecided &= goes_on;
        self.out.cut_short &= goes_on;
        Ok(())
    }

    fn left(&self) -> f64 {
        self.sweep.budget_s - (self.sweep.clock.now() - self.begin)
    }

    /// All residencies together in the first process, at the smallest size of the first look that has not been looked at. True if
    /// there is a larger one.
    fn next_size(&mut self) -> Result<bool> {
        let all: Vec<usize> = (0..self.out.state.series.len()).collect();
        let known = self.out.state.grid.last().copied().unwrap_or(0);
        let mut grid: Vec<u64> = crossing::grid(self.sweep.range).into_iter().map(|p| self.sweep.snap(p)).collect();
        grid.dedup();
        let mut left = grid.into_iter().filter(|p| *p > known);
        (self.out.cut_short, self.out.cut) = (false, None);
        let Some(param) = left.next() else { return Ok(false) };
        match self.sized_look(param, &all, 0)? {
            Looked::Timed(_) => {
                self.out.state.grid.push(param);
                // If there is no other turn.
                self.out.cut = left.next().map(|from| left_out(from, NO_TIME));
                self.out.cut_short = self.out.cut.is_some();
                Ok(self.out.cut_short)
            }
            Looked::Stopped => Ok(false),
            Looked::LeftOut { why, time } => {
                (self.out.cut_short, self.out.cut) = (time, Some(left_out(param, &why)));
                Ok(false)
            }
        }
    }

    /// Follows the plan of each residency by one look; what several ask for is measured together.
    fn decide(&mut self, depth: Depth) -> Result<Vec<(Outcome, usize)>> {
        (self.out.waits, self.out.undecided) = (false, false);
        let plan = self.plan(depth);
        let count = self.out.state.series.len();
        let nothing = || vec![(Outcome::Inconclusive("nothing was measured"), 0); count];
        if self.out.stopped() || plan.grid.is_empty() {
            return Ok(nothing());
        }
        let mut known: Vec<Option<(Outcome, usize)>> = vec![None; count];
        let wanted = self.wanted(&plan, depth, &mut known)?;
        if wanted.is_empty() && known.iter().any(Option::is_none) {
            return Err(Error::new(Code::Internal, "the plan of a crossing asks for nothing new"));
        }
        for ((_, process, size), mut which) in wanted {
            which.retain(|i| known[*i].is_none());
            if which.is_empty() {
                continue;
            }
            match self.sized_look(size, &which, process)? {
                Looked::Stopped => return Ok(nothing()),
                Looked::Timed(_) => {
                    self.out.waits = true;
                    break;
                }
                // Another residency may ask for less.
                Looked::LeftOut { time, .. } => {
                    self.out.undecided |= time;
                    for i in which {
                        known[i] = Some(self.so_far(&plan, i)?);
                    }
                }
            }
        }
        self.out.undecided |= self.out.waits;
        known.into_iter().enumerate().map(|(i, k)| k.map_or_else(|| self.so_far(&plan, i), Ok)).collect()
    }

    fn plan(&self, depth: Depth) -> Plan {
        let grid = self.out.state.grid.clone();
        match depth {
            Depth::First => Plan::first(grid, self.sweep.processes),
            Depth::Near(processes) => Plan::within(grid, processes, crossing::WITHIN_15),
            Depth::Close(processes) => Plan::within(grid, processes, crossing::WITHIN_10),
            Depth::Full(processes) => Plan::of_all(grid, processes),
        }
    }

    /// What is known of a residency so far, however wide its interval: of all sizes of the first look, or of as many as there was
    /// a verdict of before.
    fn so_far(&self, plan: &Plan, which: usize) -> Result<(Outcome, usize)> {
        let looks = looks(&self.out.state.series[which]);
        let before = self.out.outcomes.get(which).map_or(0, |(_, sizes)| *sizes);
        for sizes in [plan.grid.len(), before].into_iter().filter(|n| *n > 0) {
            let plan = Plan { grid: plan.grid[..sizes].to_vec(), ..plan.clone() };
            let within: Vec<Look> = looks.iter().filter(|l| plan.grid.last() >= Some(&l.size)).cloned().collect();
            if let Some(outcome) = crossing::so_far(&within, &plan, &|param| self.sweep.snap(param)) {
                let outcome = self.alone(outcome, &plan, which);
                return Ok((self.sweep.sized(outcome, &self.out.state.series[which])?, sizes));
            }
        }
        Ok((Outcome::Inconclusive(SPENT), 0))
    }

    /// A crossing where it is without what looks at other keys have in common with those of this residency, but within its interval.
    /// That stays: whatever all keys' looks are off by on average, all of them are off by, and their scatter without it does not tell.
    fn alone(&self, outcome: Outcome, plan: &Plan, which: usize) -> Outcome {
        let common = self.sweep.common.borrow();
        let Outcome::Crossing { size, ci, stake, without } = outcome else { return outcome };
        if !common.is_known() {
            return outcome;
        }
        let mut looks = alone(&self.out.state.series[which], &plan.grid, &common);
        looks.retain(|l| plan.grid.last() >= Some(&l.size));
        let size = match crossing::so_far(&looks, plan, &|param| self.sweep.snap(param)) {
            Some(Outcome::Crossing { size, .. }) => size.clamp(ci[0], ci[1]),
            _ => size,
        };
        Outcome::Crossing { size, ci, stake, without }
    }

    /// What the residencies that are not known yet ask for; or they are known now.
    fn wanted(
        &mut self,
        plan: &Plan,
        depth: Depth,
        known: &mut [Option<(Outcome, usize)>],
    ) -> Result<BTreeMap<Visit, Vec<usize>>> {
        let sweep = self.sweep;
        let mut wanted: BTreeMap<Visit, Vec<usize>> = BTreeMap::new();
        for (which, known) in known.iter_mut().enumerate() {
            let series = &self.out.state.series[which];
            // As they are: what is taken off changes with each look, and so would what is asked for.
            let looks = looks(series);
            match crossing::next(&looks, plan, &|param| sweep.snap(param)) {
                Step::Done(outcome) => {
                    let outcome = self.alone(outcome, plan, which);
                    self.out.undecided |= depth == Depth::First && plan.wants_more(&outcome);
                    *known = Some((sweep.sized(outcome, series)?, plan.grid.len()));
                }
                Step::Measure { sizes, processes, visits } => {
                    for (size, process) in sizes.iter().flat_map(|size| (0..processes).map(|p| (*size, p))) {
                        let had = series.get(&size).and_then(|all| all.get(process)).map_or(0, Visited::visits);
                        for visit in had..visits {
                            wanted.entry((visit, process, size)).or_default().push(which);
                        }
                    }
                }
            }
        }
        Ok(wanted)
    }

    /// A size of the sweep in one process; what is timed is kept.
    fn sized_look(&mut self, param: u64, which: &[usize], process: usize) -> Result<Looked> {
        let case = match self.sweep.case(param) {
            Ok(case) => case,
            Err(e) => return Ok(Looked::LeftOut { why: e.to_string(), time: false }),
        };
        let (clock, begin) = (&self.sweep.clock, self.sweep.clock.now());
        let looked = self.look(&case, which, process)?;
        if let Looked::Timed(timed) = &looked {
            let at = (begin + clock.now()) / 2.0;
            let common = &mut self.sweep.common.borrow_mut();
            self.out.calls[0] += timed.calls;
            for (i, device) in which.iter().zip(&timed.devices) {
                let processes = self.out.state.series[*i].entry(param).or_default();
                if processes.len() <= process {
                    processes.resize_with(process + 1, Visited::default);
                }
                let residency = (*i, self.sweep.residencies[*i] != Residency::Resident);
                let whose = Whose { group: self.sweep.number, residency, process, size: param };
                processes[process].add((at, whose), &timed.cpu, device, common);
            }
        }
        Ok(looked)
    }

    /// Measures one shape in one process. Errors for interruption.
    fn look(&mut self, case: &Case, which: &[usize], process: usize) -> Result<Looked> {
        let sweep = self.sweep;
        let left_s = self.left();
        if left_s <= 0.0 {
            let why = format!("the budget of {} is spent", units::seconds(sweep.budget_s));
            return Ok(Looked::LeftOut { why, time: true });
        }
        let cost = (sweep.op.cost)(case);
        let (mut budget_s, mut pairs) = (left_s, LEAST);
        if let Some(k) = self.out.state.known {
            let predicted = stop::predict(k.round_s, &k.cost, &cost);
            let besides = k.besides_s * cost.bytes() as f64 / k.cost.bytes().max(1) as f64;
            pairs = ((EVEN_S / predicted).sqrt() as usize).clamp(LEAST, self.pairs);
            let rounds = predicted * (pairs + BEFORE) as f64;
            // What was measured once is measured again as long as there is time at all: without it there is no verdict.
            let within = self.out.state.grid.last().is_some_and(|largest| sweep.cost_of(*largest) >= total(&cost));
            let most =
                if self.share < OTHER && within { left_s } else { (2.0 * self.share * sweep.budget_s).min(left_s) };
            if besides + rounds > most {
                let (p, b) = (units::seconds(predicted), units::seconds(sweep.budget_s));
                let m = units::seconds(besides);
                let why = format!("predicted {p} a pair and {m} to make it, the key has {b}");
                return Ok(Looked::LeftOut { why, time: true });
            }
            // Predictions are high rather than low, but not always.
            budget_s = left_s.min(3.0 * rounds).max(self.share * sweep.budget_s);
        }
        let order = Order {
            case: case.to_string(),
            places: which.iter().map(|i| (sweep.device.to_string(), sweep.residencies[*i])).collect(),
            pairs,
            budget_s,
        };
        match self.looker.look(&order, process, sweep.cancel) {
            Ok(None) => {
                Ok(Looked::LeftOut { why: format!("{} hold too few pairs", units::seconds(budget_s)), time: true })
            }
            Ok(Some(timed)) => {
                self.out.looks += 1;
                self.out.disturbed += usize::from(timed.disturbed);
                self.begin += timed.once_s;
                self.out.once_s += timed.once_s;
                self.keep(which, &timed, cost);
                Ok(if self.out.stopped() { Looked::Stopped } else { Looked::Timed(timed) })
            }
            Err(e) if e.code() == Code::Cancelled => Err(e),
            // Too large for a device or the host: the sizes below stand.
            Err(e) if matches!(e.class(), Class::Oom | Class::Unsupported) && self.out.state.known.is_some() => {
                Ok(Looked::LeftOut { why: e.to_string(), time: false })
            }
            Err(e) => {
                self.out.error = Some(e);
                Ok(Looked::Stopped)
            }
        }
    }

    fn keep(&mut self, which: &[usize], timed: &Timed, cost: Cost) {
        let mut besides_s = if cost.bytes() >= MUCH { timed.made_s } else { 0.0 };
        // A sample of several calls between copies is shown as one call's share.
        let calls = |i: &usize| self.sweep.residencies[*i].calls() as f64;
        let on_devices: f64 = which.iter().zip(&timed.devices).map(|(i, s)| calls(i) * stats::median(s)).sum();
        // A small size says little about a large one.
        if self.out.state.known.is_none_or(|k| total(&cost) >= total(&k.cost)) {
            // A process that has looked at this size before may have kept its operands.
            if let Some(k) = self.out.state.known.filter(|k| total(&k.cost) == total(&cost)) {
                besides_s = besides_s.max(k.besides_s);
            }
            self.out.state.known = Some(Known { cost, round_s: stats::median(&timed.cpu) + on_devices, besides_s });
            self.out.kernel.clone_from(&timed.kernel);
        }
        self.out.wrong = self.out.wrong.take().or(timed.wrong.clone());
    }
}

/// Operations and bytes, to compare costs by.
fn total(cost: &Cost) -> u64 {
    cost.flops.saturating_add(cost.bytes())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::base::VirtualClock;
    use crate::base::rng::Philox;
    use crate::measure::crossing::{OPEN_ABOVE, OPEN_BELOW};
    use crate::op::{self, case};

    /// Left to the last, keys of which only the smallest size was open had no curve on a real machine, and the CPU made calls that
    /// took it ten times as long as the device.
    #[test]
    fn a_winner_that_may_change_near_the_smallest_size_counts_as_a_crossing() {
        let with = |o: Outcome| Swept { outcomes: vec![(Outcome::Always, 3), (o, 3)], ..Swept::default() }.crosses();
        assert!(with(Outcome::Inconclusive(OPEN_BELOW)) && with(Outcome::NonMonotone(Vec::new())));
        assert!(with(Outcome::Crossing { size: 5, ci: [4, 6], stake: 1.1, without: None }));
        for o in [Outcome::Never, Outcome::Inconclusive(SPENT), Outcome::Inconclusive(OPEN_ABOVE)] {
            assert!(!with(o.clone()), "{o:?}");
        }
    }

    /// Every element takes so many seconds, on both sides, and every look so many besides for what is done once.
    struct Linear(Arc<VirtualClock>, f64, f64);

    impl Looker for Linear {
        fn look(&mut self, order: &Order, _: usize, _: &Cancel) -> Result<Option<Timed>> {
            let call_s = self.1 * case::parse(&order.case)?.dim("n") as f64;
            let rounds = (order.pairs + BEFORE) as f64;
            self.0.sleep(Duration::from_secs_f64(2.0 * rounds * call_s + self.2));
            let samples = vec![call_s; order.pairs];
            let (cpu, devices) = (samples.clone(), vec![samples]);
            Ok(Some(Timed { calls: 2 * rounds as u64, once_s: self.2, ..timed(cpu, devices) }))
        }
    }

    fn timed(cpu: Vec<f64>, devices: Vec<Vec<f64>>) -> Timed {
        let (kernel, wrong) = (String::new(), None);
        Timed { cpu, devices, calls: 6, kernel, wrong, made_s: 0.0, once_s: 0.0, disturbed: false }
    }

    /// `exp` with resident operands, with any sizes, processes and time.
    fn exp_sweep<'a>(clock: &Arc<VirtualClock>, cancel: &'a Cancel) -> Sweep<'a> {
        let op = op::find("exp").unwrap();
        Sweep {
            number: 0,
            op,
            dtype: DType::F32,
            family: &op.families[0],
            range: (1024, 1 << 23),
            device: "sim:none",
            residencies: &[Residency::Resident],
            processes: 5,
            clock: Arc::clone(clock) as Arc<dyn Clock>,
            budget_s: 100.0,
            seed: 1,
            common: Box::leak(Box::default()),
            cancel,
        }
    }

    /// On a machine that had built no kernel before, most keys had no second size, and half of the budget was waited away.
    #[test]
    fn what_is_done_once_takes_nothing_of_a_share() {
        let (clock, cancel) = (Arc::new(VirtualClock::new()), Cancel::new());
        let found = [0.0, 1.5].map(|once_s| {
            let begin = clock.now();
            let sweep = Sweep { budget_s: 0.1, ..exp_sweep(&clock, &cancel) };
            let mut swept = Swept::default();
            sweep.begin(&mut Linear(Arc::clone(&clock), 1e-9, once_s), &mut swept).unwrap();
            let took = clock.now() - begin - swept.once_s;
            assert_eq!(swept.once_s, once_s * swept.looks as f64);
            assert!(took <= 0.1, "{took}");
            swept.state.grid
        });
        assert!(found[0].len() > 4, "{found:?}");
        assert_eq!(found[0], found[1]);
    }

    /// The budget is twice a key's even share, and a verdict takes five looks at the largest size.
    #[test]
    fn a_new_size_leaves_time_for_a_verdict() {
        let (clock, cancel) = (Arc::new(VirtualClock::new()), Cancel::new());
        for budget_s in (0..12).map(|i| 0.05 * 1.3f64.powi(i)) {
            let sweep = Sweep { budget_s, ..exp_sweep(&clock, &cancel) };
            let mut swept = Swept::default();
            let mut looker = Linear(Arc::clone(&clock), 1e-9, 0.0);
            sweep.begin(&mut looker, &mut swept).unwrap();
            let largest = *swept.state.grid.last().unwrap();
            let looks = |size: u64| 5.0 * 2.0 * (LEAST + BEFORE) as f64 * 1e-9 * size as f64;
            let part = 0.4 * budget_s / 2.0;
            assert!(looks(largest) <= part, "{budget_s}: {largest}");
            // A factor of 3 further, and the rounds that warm up count once more, as what making operands takes.
            let next = crossing::grid(sweep.range).into_iter().find(|size| *size > largest).unwrap();
            assert!(looks(next) * 1.4 > part, "{budget_s}: {largest}");
            assert!(swept.cut_short && swept.cut.is_some());
        }
    }

    /// A device that wins from 40,000 elements on, until a worker dies.
    struct Dying(usize);

    impl Looker for Dying {
        fn look(&mut self, order: &Order, process: usize, _: &Cancel) -> Result<Option<Timed>> {
            self.0 = self.0.saturating_sub(1);
            if self.0 == 0 {
                return Err(Error::new(Code::WorkerCrashed, "killed"));
            }
            let n = case::parse(&order.case)?.dim("n") as f64;
            let (cpu, device) = (n * 1e-9, 4e-5 * (1.0 + 1e-3 * process as f64));
            let (cpu, devices) = (vec![cpu; order.pairs], vec![vec![device; order.pairs]]);
            Ok(Some(timed(cpu, devices)))
        }
    }

    #[test]
    fn an_error_takes_no_verdict_back() {
        let (clock, cancel) = (Arc::new(VirtualClock::new()), Cancel::new());
        let sweep = Sweep { range: (1024, 1 << 20), processes: 11, ..exp_sweep(&clock, &cancel) };
        let run = |looks: usize| {
            let (mut swept, mut looker) = (Swept::default(), Dying(looks));
            sweep.begin(&mut looker, &mut swept).unwrap();
            for depth in [Depth::First, Depth::Full(6), Depth::Full(11)] {
                swept.waits = !swept.stopped();
                while swept.waits {
                    sweep.turn(&mut looker, &mut swept, depth).unwrap();
                }
            }
            swept
        };
        let whole = run(usize::MAX);
        assert!(matches!(whole.outcomes[0].0, Outcome::Crossing { .. }) && !whole.is_void(), "{:?}", whole.outcomes);
        let sizes: Vec<usize> = whole.state.series[0].values().map(Vec::len).filter(|n| *n == 11).collect();
        assert!(sizes.len() >= 7, "eleven processes at the crossing: {:?}", whole.state.series[0].keys());
        // After the first verdict, and before.
        let late = run(80);
        assert!(late.stopped() && !late.is_void(), "{:?}", late.error);
        assert!(matches!(late.outcomes[0].0, Outcome::Crossing { .. }), "{:?}", late.outcomes);
        assert!(matches!(sweep.found(&late).unwrap()[0].outcome, Outcome::Crossing { .. }));
        let early = run(12);
        assert!(early.stopped() && early.is_void(), "{:?}", early.outcomes);
    }

    /// A device that takes longer and less for some hundredths of a second, whatever it is asked for: by so much.
    struct Wandering {
        by: f64,
        clock: Arc<VirtualClock>,
        rng: Philox,
        looks: u64,
        state: f64,
    }

    impl Looker for Wandering {
        fn look(&mut self, order: &Order, _: usize, _: &Cancel) -> Result<Option<Timed>> {
            self.clock.sleep(Duration::from_millis(5));
            self.looks += 1;
            self.state = 0.9 * self.state + (1.0_f64 - 0.81).sqrt() * self.rng.normal(1, self.looks);
            let n = case::parse(&order.case)?.dim("n") as f64;
            let device = 4e-5 * (self.by * self.state + 0.05 * self.rng.normal(2, self.looks)).exp();
            Ok(Some(timed(vec![n * 1e-9; order.pairs], vec![vec![device; order.pairs]])))
        }
    }

    #[test]
    fn what_a_device_does_to_all_keys_is_not_taken_for_theirs() {
        // Squares of what crossings are off by, and of what they differ by, where keys know of each other and where each is alone.
        let off = |seed: u64, by: f64, known: bool| -> [f64; 2] {
            let (clock, cancel) = (Arc::new(VirtualClock::new()), Cancel::new());
            let rng = Philox::new(seed);
            let mut looker = Wandering { by, clock: Arc::clone(&clock), rng, looks: 0, state: 0.0 };
            let all: Vec<Shared> = (0..12).map(|_| Shared::default()).collect();
            let sweep = |number: usize| Sweep {
                number,
                common: &all[if known { 0 } else { number }],
                range: (1024, 1 << 20),
                processes: 11,
                ..exp_sweep(&clock, &cancel)
            };
            let mut swept: Vec<(Sweep<'_>, Swept)> = (0..12).map(|i| (sweep(i), Swept::default())).collect();
            for (sweep, swept) in &mut swept {
                sweep.begin(&mut looker, swept).unwrap();
            }
            // In no fixed order: what keys that take even turns are off by, their neighbours are off by as well.
            let rng = Philox::new(seed);
            for (depth, turns) in [(Depth::First, 1000), (Depth::Full(11), 3000)] {
                swept.iter_mut().for_each(|(_, swept)| swept.waits = true);
                for i in 0..turns {
                    let (sweep, swept) = &mut swept[rng.u64(turns, i) as usize % 12];
                    if swept.waits {
                        sweep.turn(&mut looker, swept, depth).unwrap();
                    }
                }
            }
            let off = |swept: &Swept| match swept.outcomes[0].0 {
                Outcome::Crossing { size, .. } => (size as f64 / 4e4).ln(),
                ref other => panic!("{other:?}"),
            };
            let off: Vec<f64> = swept.iter().map(|(_, swept)| off(swept)).collect();
            let mean = off.iter().sum::<f64>() / off.len() as f64;
            [0.0, mean].map(|from| off.iter().map(|off| (off - from).powi(2)).sum())
        };
        let all = |by: f64| {
            let sum =
                |known: bool| (0..6).map(|seed| off(seed, by, known)).fold([0.0; 2], |a, b| [a[0] + b[0], a[1] + b[1]]);
            [sum(true), sum(false)]
        };
        let [known, alone] = all(0.2);
        assert!(known[0] < 0.9 * alone[0] && known[1] < 0.7 * alone[1], "{known:?} {alone:?}");
        let [known, alone] = all(0.0);
        assert_eq!(known, alone, "nothing in common");
    }

    /// A device that takes what the CPU takes for so many input elements, whatever it computes.
    struct Even(f64);

    impl Looker for Even {
        fn look(&mut self, order: &Order, _: usize, _: &Cancel) -> Result<Option<Timed>> {
            let case = case::parse(&order.case)?;
            let elements = (op::find(case.op)?.work)(&case) as f64;
            let (cpu, devices) = (vec![1e-9 * elements; order.pairs], vec![vec![1e-9 * self.0; order.pairs]]);
            Ok(Some(timed(cpu, devices)))
        }
    }

    /// Two runs of one machine called two neighbours among the sweep's images the crossing.
    #[test]
    fn a_crossing_between_two_images_is_known_between_them() {
        let (clock, cancel, op) = (Arc::new(VirtualClock::new()), Cancel::new(), op::find("conv2d").unwrap());
        let sweep = Sweep { op, family: &op.families[0], range: (1000, 1 << 20), ..exp_sweep(&clock, &cancel) };
        for size in [1150, 1255] {
            assert!(sweep.size(size).unwrap().abs_diff(size) >= 40, "no image of the sweep");
            let (mut swept, mut looker) = (Swept::default(), Even(size as f64));
            sweep.begin(&mut looker, &mut swept).unwrap();
            for depth in [Depth::First, Depth::Full(5)] {
                swept.waits = true;
                while swept.waits {
                    sweep.turn(&mut looker, &mut swept, depth).unwrap();
                }
            }
            let Outcome::Crossing { size: found, ci: [low, high], .. } = swept.outcomes[0].0 else {
                panic!("{swept:?}")
            };
            assert!(found.abs_diff(size) <= size / 50, "{found} instead of {size}");
            assert!(
                low <= size + size / 50 && size <= high + size / 50 && high < low + low / 10,
                "[{low}, {high}] around {size}"
            );
        }
    }

    /// Keeps how many pairs each look had.
    struct Counted(f64, Vec<usize>);

    impl Looker for Counted {
        fn look(&mut self, order: &Order, process: usize, cancel: &Cancel) -> Result<Option<Timed>> {
            self.1.push(order.pairs);
            let found = Dying(usize::MAX).look(order, process, cancel)?;
            let slower = |all: Vec<f64>| all.into_iter().map(|s| s * self.0).collect::<Vec<f64>>();
            Ok(found.map(|t| Timed { cpu: slower(t.cpu), devices: t.devices.into_iter().map(slower).collect(), ..t }))
        }
    }

    /// A pair takes about 80 us around the crossing, and so many times as long.
    #[test]
    fn short_calls_have_more_pairs_where_the_interval_is_what_matters() {
        let (clock, cancel) = (Arc::new(VirtualClock::new()), Cancel::new());
        let sweep = Sweep { range: (1024, 1 << 20), processes: 11, ..exp_sweep(&clock, &cancel) };
        for (slower, pairs) in [(1.0, 9..=9), (15.0, 4..=8), (1000.0, LEAST..=LEAST)] {
            let (mut swept, mut looker) = (Swept::default(), Counted(slower, Vec::new()));
            sweep.begin(&mut looker, &mut swept).unwrap();
            for depth in [Depth::First, Depth::Full(11)] {
                let before = looker.1.len();
                swept.waits = true;
                while swept.waits {
                    sweep.turn(&mut looker, &mut swept, depth).unwrap();
                }
                let want = if depth == Depth::First { LEAST..=LEAST } else { pairs.clone() };
                assert!(
                    looker.1.len() > before && looker.1[before..].iter().all(|n| want.contains(n)),
                    "{slower}: {looker:?}",
                    looker = looker.1
                );
            }
        }
    }
}
