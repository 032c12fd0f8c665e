//! Measures one op, dtype and family on one device against the CPU: sizes from small to large in one process, then what
//! [`crossing::next`] asks for, in several; and, where that is known and time is left, other shapes for the curves. After the
//! first sizes all of it is done in turns of one look each, so that other keys can have theirs between them.

mod elsewhere;
mod settled;
mod shared;
mod swept;
mod visits;

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::base::record::CalibratePoint;
use crate::base::sink::Cancel;
use crate::base::{Attrs, Case, Class, Clock, Code, Cost, DType, Error, Fill, Result, stats, units};
use crate::jobs::look::{LEAST, Looker, Order, Timed};
use crate::measure::common::Whose;
use crate::measure::crossing::{self, Look, Outcome, Plan, Step};
use crate::measure::{Residency, processes, stop};
use crate::op::{Family, OpDesc};
use crate::profile::model::Sample;

use super::shapes::size_of;
use elsewhere::Elsewhere;
use settled::settled;
pub(super) use shared::Shared;
pub(super) use swept::Swept;
use visits::{Pair, Series, Visited, looks};

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
    pub(super) shared: &'a Shared,
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
    /// [`Curve::change`](crate::profile::model::Curve::change), as measured.
    pub(super) change: Option<[f64; 2]>,
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
        let common = self.shared.common();
        let of = |(which, (outcome, sizes)): (usize, &(Outcome, usize))| {
            let series = &swept.state.series[which];
            let plan = Plan::of_all(grid[..*sizes].to_vec(), self.processes);
            let kind = self.shared.kind(self.device, self.residencies[which]);
            let state = common.state_of(kind, self.number, which);
            let found = settled(outcome.clone(), (series, &plan), (&common, state), &|param| self.snap(param));
            // Larger ones may have been looked at without a verdict.
            let without = grid.get(*sizes).filter(|_| *sizes > 0);
            let known = series.iter().filter(|(p, _)| without.is_none_or(|from| *p < from));
            let mut points = known.map(|(p, pairs)| self.point(*p, pairs)).collect::<Result<Vec<_>>>()?;
            // Neighbouring numbers may make sizes that are equal in the op's unit.
            points.dedup_by_key(|p| p.size);
            let cut = without.map_or_else(|| swept.cut.clone(), |from| Some(left_out(*from, NO_TIME)));
            Ok(Found { points, outcome: self.sized(found, series)?, cut, change: self.change(outcome)? })
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

    /// Bytes at both ends of a crossing's interval where sizes are all there is.
    fn change(&self, outcome: &Outcome) -> Result<Option<[f64; 2]>> {
        let Outcome::Crossing { ci: [low, high], .. } = outcome else { return Ok(None) };
        let bytes = |param: u64| Ok((self.op.cost)(&self.case(param)?).bytes() as f64);
        if self.op.has_one_dimension() { Ok(Some([bytes(*low)?, bytes(*high)?])) } else { Ok(None) }
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
                return Ok((outcome, sizes));
            }
        }
        Ok((Outcome::Inconclusive(SPENT), 0))
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
            let looks = looks(series);
            match crossing::next(&looks, plan, &|param| sweep.snap(param)) {
                Step::Done(outcome) => {
                    self.out.undecided |= depth == Depth::First && plan.wants_more(&outcome);
                    *known = Some((outcome, plan.grid.len()));
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
        let looked = self.look(&case, which, process, true)?;
        if let Looked::Timed(timed) = &looked {
            let at = (begin + clock.now()) / 2.0;
            let common = &mut self.sweep.shared.common_mut();
            self.out.calls[0] += timed.calls;
            for (place, (i, device)) in which.iter().zip(&timed.devices).enumerate() {
                let processes = self.out.state.series[*i].entry(param).or_default();
                if processes.len() <= process {
                    processes.resize_with(process + 1, Visited::default);
                }
                let residency = (*i, self.sweep.residencies[*i] != Residency::Resident);
                let kind = self.sweep.shared.kind(self.sweep.device, self.sweep.residencies[*i]);
                let whose = Whose { group: self.sweep.number, residency, kind, process, size: param };
                let reading = timed.readings.get(place).copied();
                processes[process].add((at, whose), (&timed.cpu, device), reading, common);
            }
        }
        Ok(looked)
    }

    /// Measures one shape in one process; `read`: with the machine's state. Errors for interruption.
    fn look(&mut self, case: &Case, which: &[usize], process: usize, read: bool) -> Result<Looked> {
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
            read,
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
mod tests;
