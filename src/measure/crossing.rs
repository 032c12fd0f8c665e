//! From which size on does the device win? Pure functions of what was measured.
//!
//! A size looked at in one process gives one number, the logarithm of the CPU's time over the device's. Processes differ as
//! a whole (placement, clocks), so a few of them measure the same sizes, and what is said of a size counts both errors:
//! that of the processes' mean, with as many degrees of freedom as there are processes beyond the first, and that of the
//! size within them. Around the crossing a cubic in the logarithm of the size is fitted to the means; the interval holds
//! the sizes at which its own interval contains 1 (Fieller 1954), and the crossing within it is where a cubic is 1 whose
//! bends are expected to be small. If it is wide and the processes are not why, each of them visits the sizes again. Visits
//! count as independent, so whoever measures lets some tenths of a second pass between them: what a machine does for so
//! long, all visits meet that lie within it. Where the cubic misses the means by more than their noise (tiles, waves,
//! caches), the misses are the error, and the interval is that of a single size: the last of several changes of the winner
//! lies within the ripple. A wide interval is halved then, size by size, each judged by its own interval.
//!
//! A process that is apart from all others, as one whose device is slowed from some moment on, is no sample of what the others
//! do: more of them measure the same sizes, and it is left out. Among few it counts, and the interval is wide.
//!
//! [`next`] says what to measure from what there is, so a calibration can be interrupted, continued and repeated.

use super::cubic::{Fit, Found, Table, mean};
use crate::base::stats::median;

/// A size with what the first processes measured there.
#[derive(Clone, Debug, PartialEq)]
pub struct Look {
    /// The size, at least 1.
    pub size: u64,
    /// ln(CPU seconds / device seconds) of process 0, 1, ..., each the mean of its visits.
    pub logs: Vec<f64>,
    /// How many of each process.
    pub visits: Vec<usize>,
    /// Of each process, the squares of what its visits differ by from their mean, summed.
    pub squares: Vec<f64>,
}

impl Look {
    /// A size with the samples of the CPU and the device by process, each of one visit.
    pub fn of(size: u64, pairs: &[(Vec<f64>, Vec<f64>)]) -> Self {
        let logs: Vec<f64> = pairs.iter().map(|(cpu, device)| log_ratio(cpu, device)).collect();
        Look { size, visits: vec![1; logs.len()], squares: vec![0.0; logs.len()], logs }
    }

    /// The same of processes that visited it several times: [`log_ratio`] of each visit.
    pub fn visited<'a>(size: u64, processes: impl Iterator<Item = &'a [f64]> + Clone) -> Self {
        let squares = |visits: &[f64]| {
            let all = mean(visits.iter().copied());
            visits.iter().map(|v| (v - all).powi(2)).sum()
        };
        Look {
            size,
            logs: processes.clone().map(|visits| mean(visits.iter().copied())).collect(),
            visits: processes.clone().map(<[f64]>::len).collect(),
            squares: processes.map(squares).collect(),
        }
    }
}

/// ln(CPU seconds / device seconds) of the samples of one visit, by their medians.
pub fn log_ratio(cpu: &[f64], device: &[f64]) -> f64 {
    (median(cpu) / median(device)).ln()
}

/// Upper over lower end of the interval of a crossing that is known within 10 %.
pub const WITHIN_10: f64 = 1.21;

/// The same within 15 %: two such calibrations of a machine that stays as it is mostly agree as closely.
pub const WITHIN_15: f64 = 1.33;

/// How much to measure.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// Sizes of the first look, ascending.
    pub grid: Vec<u64>,
    /// Processes that a verdict rests on, near the crossing, and at most.
    pub processes: [usize; 3],
    /// Processes that measure near a crossing even where fewer make its interval narrow: those that begin later meet what a
    /// machine did not do before.
    pub later: usize,
    /// Upper over lower end of the interval that is narrow enough.
    pub narrow: f64,
    /// Most sizes around the crossing.
    pub sizes: usize,
    /// Most visits of a process to each of them.
    pub visits: usize,
}

impl Plan {
    /// 3 processes, 5 near the crossing, at most 11; until the interval is within 1.10, or 15 sizes lie around it and each
    /// process visited them 36 times.
    pub fn new(grid: Vec<u64>) -> Self {
        Plan { grid, processes: [3, 5, 11], later: 0, narrow: 1.1, sizes: 15, visits: 36 }
    }

    /// For a first verdict, however wide its interval: one visit each by 5 of so many processes at most.
    pub fn first(grid: Vec<u64>, most: usize) -> Self {
        let plan = Plan::new(grid);
        let most = most.min(plan.processes[1]);
        Plan { visits: 1, ..plan.at_most(most) }
    }

    /// So many processes, all of which measure near a crossing.
    pub fn of_all(grid: Vec<u64>, processes: usize) -> Self {
        Plan { later: processes, ..Plan::new(grid).at_most(processes) }
    }

    /// The same until the upper end of the interval is so many times the lower one only: [`WITHIN_10`], [`WITHIN_15`].
    pub fn within(grid: Vec<u64>, processes: usize, narrow: f64) -> Self {
        Plan { narrow, ..Plan::of_all(grid, processes) }
    }

    fn at_most(self, most: usize) -> Self {
        let [verdict, near, _] = self.processes;
        Plan { processes: [verdict.min(most), near.min(most), most], ..self }
    }

    /// Parts of the time after the first verdicts.
    pub const PARTS: usize = 6;

    /// How many of so many processes measure in part 1, 2, ..., [`PARTS`](Self::PARTS) of that time: others join one after the
    /// other, so that what a machine does for minutes is a difference between processes, too.
    pub fn in_part(processes: usize, part: usize) -> usize {
        let first = processes.min(Plan::new(Vec::new()).processes[1]);
        first + ((processes - first) * part).div_ceil(Self::PARTS)
    }

    /// Whether more processes or visits might say more than this.
    pub fn wants_more(&self, outcome: &Outcome) -> bool {
        match outcome {
            Outcome::Inconclusive(_) => true,
            Outcome::Crossing { ci: [low, high], .. } => *high as f64 > self.narrow * *low as f64,
            Outcome::Always | Outcome::Never | Outcome::NonMonotone(_) => false,
        }
    }
}

/// What to do next.
#[derive(Clone, Debug, PartialEq)]
pub enum Step {
    /// Measure these sizes, ascending, in the first processes, as far as they have not been.
    Measure {
        /// Sizes.
        sizes: Vec<u64>,
        /// In how many processes.
        processes: usize,
        /// How often in each of them.
        visits: usize,
    },
    /// Nothing more: this is known.
    Done(Outcome),
}

/// What the looks say.
#[derive(Clone, Debug, PartialEq)]
pub enum Outcome {
    /// The device wins at every size.
    Always,
    /// The CPU wins at every size.
    Never,
    /// The device wins from `size` on.
    Crossing {
        /// Smallest size from which on it most likely wins.
        size: u64,
        /// 95 % interval.
        ci: [u64; 2],
        /// How many times as long a call takes on the wrong side, at most, at sizes within that interval.
        stake: f64,
        /// The process that is apart from all others and does not count, if one is.
        without: Option<usize>,
    },
    /// The winner changes more than once: sizes at which the CPU or, true, the device surely wins.
    NonMonotone(Vec<(u64, bool)>),
    /// Nobody can say, for this reason.
    Inconclusive(&'static str),
}

/// Why nobody can say where the device surely wins the largest size: if the winner changes, it does so where calls take little.
pub const OPEN_BELOW: &str = "nobody surely wins at the smallest size";

/// The same where calls take longest.
pub const OPEN_ABOVE: &str = "nobody surely wins at the largest size";

const NOISE: &str = "the crossing cannot be told from the noise";

/// First sizes around a crossing.
const FIRST_SIZES: usize = 7;
/// So many times the noise's variance is a bend that is looked at closely.
const CLEAR: f64 = 30.0;
/// So close are sizes beside a bend looked at, in the logarithm.
const CLOSE: f64 = 0.01;
/// So many times its interval's half off 1 a size is likely to be sure.
const SURELY: f64 = 1.5;
/// And so many more than around other crossings.
const MORE_SIZES: usize = 7;
/// Most visits to sizes of the first look.
const MOST_OF_ALL: usize = 4;
/// So many more visits than an interval seems to need, for its width is an estimate as well.
const SPARE: f64 = 1.25;
/// Half of the first window at least and at most, as a factor: a wider one holds more steps and bends than a cubic follows.
const HALF: [f64; 2] = [1.25, 2.0];
/// How far below a crossing a sure win of the device counts as ripple of it (tiles and waves make steps).
const RIPPLE: f64 = 2.0;

/// Sizes of the first look: a factor of about 2 apart, or 3 over more than three decades.
pub fn grid((low, high): (u64, u64)) -> Vec<u64> {
    let (low, high) = (low.max(1), high.max(low).max(1));
    let span = (high as f64 / low as f64).ln();
    let factor = if span > 1000f64.ln() { 3f64 } else { 2.0 };
    let steps = (span / factor.ln()).round().max(1.0);
    let mut sizes: Vec<u64> =
        (0..=steps as u64).map(|i| (low as f64 * (span * i as f64 / steps).exp()).round() as u64).collect();
    sizes.dedup();
    sizes
}

/// Who surely wins at a size: 1 the device, -1 the CPU, 0 nobody.
fn sign(value: f64, half: f64) -> i8 {
    i8::from(value - half > 0.0) - i8::from(value + half < 0.0)
}

/// What to measure next, or what is known. `looks` ascend by size; `snap` gives the nearest size that there is.
pub fn next(looks: &[Look], plan: &Plan, snap: &dyn Fn(u64) -> u64) -> Step {
    next_as((looks, looks), plan, snap)
}

/// The same, a crossing being that of the second looks: the same sizes and processes as the first, which say where to look for it.
fn next_as((looks, told): (&[Look], &[Look]), plan: &Plan, snap: &dyn Fn(u64) -> u64) -> Step {
    let at = |size: u64| looks.iter().find(|l| l.size == size);
    let measured = |size: u64| at(size).map_or(0, |l| l.logs.len());
    let grid = &plan.grid;
    if let Some(size) = grid.iter().find(|s| measured(**s) == 0) {
        return Step::Measure { sizes: vec![*size], processes: 1, visits: 1 };
    }
    let coarse: Vec<&Look> = grid.iter().filter_map(|s| at(*s)).collect();
    if coarse.iter().any(|l| l.logs.iter().any(|v| !v.is_finite())) {
        return Step::Done(Outcome::Inconclusive("a time is no positive number"));
    }
    if coarse.len() < 2 {
        return Step::Done(Outcome::Inconclusive("fewer than two sizes were measured"));
    }
    // Where several processes are needed: at the ends, at the extremes and around each change of the winner.
    let first: Vec<f64> = coarse.iter().map(|l| l.logs[0]).collect();
    let key = decisive(&first);
    let mut processes = key.iter().map(|i| coarse[*i].logs.len()).min().unwrap_or(0);
    if processes < plan.processes[0] {
        processes = plan.processes[0];
        return Step::Measure { sizes: key.iter().map(|i| coarse[*i].size).collect(), processes, visits: 1 };
    }
    let Some(table) = Table::of(coarse.iter().copied(), processes, plan.processes[0]) else {
        return Step::Done(Outcome::Inconclusive("one size only"));
    };
    let values: Vec<f64> = coarse.iter().map(|l| level(l, &table)).collect();
    let mut by_count: Vec<Option<f64>> = vec![None; table.who.len() + 1];
    let half = |processes: usize| *by_count[processes].get_or_insert_with(|| table.half(processes));
    let halves: Vec<f64> = coarse.iter().map(|l| counted(l, &table).len()).map(half).collect();
    let signs: Vec<i8> = values.iter().zip(&halves).map(|(v, h)| sign(*v, *h)).collect();
    let sizes: Vec<u64> = coarse.iter().map(|l| l.size).collect();
    let more = Step::Measure {
        sizes: key.iter().map(|i| coarse[*i].size).collect(),
        processes: (processes + 3).min(plan.processes[2]),
        visits: 1,
    };
    let visits = key.iter().flat_map(|i| &coarse[*i].visits[..processes]).copied().min().unwrap_or(1);
    match pattern(&values, &signs, &sizes) {
        Pattern::Known(outcome) => Step::Done(outcome),
        Pattern::Open(_) if processes < plan.processes[2] => more,
        // The largest sizes take longest.
        Pattern::Open(_) if visits < plan.visits.min(MOST_OF_ALL) => Step::Measure {
            sizes: key.iter().map(|i| coarse[*i].size).collect(),
            processes,
            visits: MOST_OF_ALL.min(plan.visits),
        },
        Pattern::Open(why) => Step::Done(Outcome::Inconclusive(why)),
        Pattern::Between(below) => {
            let slope = (values[below + 1] - values[below]) / (sizes[below + 1] as f64 / sizes[below] as f64).ln();
            let part = -values[below] / (values[below + 1] - values[below]);
            let guess = (sizes[below] as f64).ln() + part * (sizes[below + 1] as f64 / sizes[below] as f64).ln();
            let half = (1.5 * halves[below].max(halves[below + 1]) / slope).clamp(HALF[0].ln(), HALF[1].ln());
            around((looks, told), plan, snap, guess, half)
        }
    }
}

/// What is known if nothing more is measured, however wide its interval; `None` if more must be measured for that.
pub fn so_far(looks: &[Look], plan: &Plan, snap: &dyn Fn(u64) -> u64) -> Option<Outcome> {
    so_far_as((looks, looks), plan, snap)
}

/// The same, a crossing being that of the second looks, which are the first ones with something taken off: whatever is taken off, what
/// was measured suffices for it.
pub fn so_far_as(looks: (&[Look], &[Look]), plan: &Plan, snap: &dyn Fn(u64) -> u64) -> Option<Outcome> {
    let [verdict, near, _] = plan.processes;
    // Nor are sizes added.
    let enough = Plan { processes: [verdict, near, near], later: 0, visits: 1, sizes: 0, ..plan.clone() };
    match next_as(looks, &enough, snap) {
        Step::Done(Outcome::Inconclusive(NOISE)) | Step::Measure { .. } => None,
        Step::Done(outcome) => Some(outcome),
    }
}

/// The sizes whose winner decides.
fn decisive(values: &[f64]) -> Vec<usize> {
    let last = values.len() - 1;
    let extreme =
        |sign: f64| (0..=last).max_by(|a, b| (sign * values[*a]).total_cmp(&(sign * values[*b]))).unwrap_or(0);
    let mut key = vec![0, last, extreme(1.0), extreme(-1.0)];
    for i in (0..last).filter(|i| (values[*i] > 0.0) != (values[i + 1] > 0.0)) {
        key.extend([i, i + 1]);
    }
    key.sort_unstable();
    key.dedup();
    key
}

/// The processes that measured a size and count, or else the first, which measured all.
fn counted(look: &Look, table: &Table) -> Vec<usize> {
    let who: Vec<usize> = table.who.iter().copied().filter(|i| *i < look.logs.len()).collect();
    if who.is_empty() { vec![0] } else { who }
}

/// A size's value with the offsets taken off of the processes that measured it.
fn level(look: &Look, table: &Table) -> f64 {
    mean(counted(look, table).into_iter().map(|i| look.logs[i] - table.offsets[i]))
}

enum Pattern {
    Known(Outcome),
    /// The last change to the device lies between this size and the next.
    Between(usize),
    Open(&'static str),
}

fn pattern(values: &[f64], signs: &[i8], sizes: &[u64]) -> Pattern {
    let last = values.len() - 1;
    let change = (0..last).rev().find(|i| values[*i] <= 0.0 && values[i + 1] > 0.0);
    if let Some(gpu) = signs.iter().position(|s| *s == 1)
        && signs[gpu..].contains(&-1)
        // What lies closely below the last change is ripple of it.
        && !change.is_some_and(|c| signs[c + 1..].iter().all(|s| *s != -1) && sizes[gpu] as f64 * RIPPLE > sizes[c + 1] as f64)
    {
        let sure = (0..=last).filter(|i| signs[*i] != 0).map(|i| (sizes[i], signs[i] == 1)).collect();
        return Pattern::Known(Outcome::NonMonotone(sure));
    }
    match (signs[0], signs[last], change) {
        (1, 1, None) if values.iter().all(|v| *v > 0.0) => Pattern::Known(Outcome::Always),
        (-1, -1, None) if !signs.contains(&1) && values.iter().all(|v| *v < 0.0) => Pattern::Known(Outcome::Never),
        (_, 1, Some(i)) => Pattern::Between(i),
        (_, 1, None) => Pattern::Open(OPEN_BELOW),
        _ => Pattern::Open(OPEN_ABOVE),
    }
}

/// The window around a crossing that is guessed at.
fn around((looks, told): (&[Look], &[Look]), plan: &Plan, snap: &dyn Fn(u64) -> u64, guess: f64, half: f64) -> Step {
    let (Some(first), Some(last)) = (plan.grid.first(), plan.grid.last()) else {
        return Step::Done(Outcome::Inconclusive("no size"));
    };
    let (low, high) = ((*first as f64).ln(), (*last as f64).ln());
    let processes = plan.processes[1];
    let mut inside: Vec<&Look> = looks.iter().filter(|l| l.logs.len() >= processes).collect();
    let window = |a: f64, b: f64, n: usize| -> Vec<u64> {
        let (a, b) = (a.max(low), b.min(high));
        let mut sizes: Vec<u64> =
            (0..n).map(|i| snap((a + (b - a) * i as f64 / (n - 1) as f64).exp().round() as u64)).collect();
        sizes.dedup();
        sizes
    };
    let wanted = window(guess - half, guess + half, FIRST_SIZES);
    // Decisive sizes of the first look may have that many processes, far from here.
    let coarse = |size: u64| !wanted.contains(&size) && plan.grid.contains(&size);
    inside.retain(|l| !coarse(l.size));
    let done = |s: &u64| inside.iter().any(|l| l.size == *s);
    if inside.len() < wanted.len() || !wanted.iter().all(done) && inside.len() < FIRST_SIZES {
        return Step::Measure { sizes: wanted, processes, visits: 1 };
    }
    let processes = inside.iter().map(|l| l.logs.len()).min().unwrap_or(0);
    let of = |p: usize| inside.iter().map(|l| l.visits.get(p).copied().unwrap_or(0)).min().unwrap_or(0);
    let visits = (0..processes).map(of).min().unwrap_or(0).max(1);
    // Whoever joins visits as often as those before: a mean of fewer visits scatters more, and would seem to be apart.
    let even = (0..processes).map(of).max().unwrap_or(0).max(1);
    if processes < plan.later || plan.later > 0 && visits < even {
        let sizes = inside.iter().map(|l| l.size).collect();
        return Step::Measure { sizes, processes: processes.max(plan.later), visits: even };
    }
    let told = told.iter().filter(|t| inside.iter().any(|l| l.size == t.size));
    let Some(table) = Table::of(told, processes, plan.processes[1]) else {
        return Step::Done(Outcome::Inconclusive("too few sizes around the crossing"));
    };
    // All at once: to stop at the first number of processes that looks narrow would favour those that agree by chance.
    let all = || {
        let sizes = inside.iter().map(|l| l.size).collect();
        Step::Measure { sizes, processes: plan.processes[2], visits }
    };
    if table.mixed && processes < plan.processes[2] {
        return all();
    }
    let Some(fit) = Fit::of(&table) else {
        return Step::Done(Outcome::Inconclusive("too few sizes around the crossing"));
    };
    let (a, b) = (table.x[0], table.x[table.x.len() - 1]);
    let found = Found::of(&fit, a, b);
    let full = inside.len() >= plan.sizes;
    let step = (b - a) / (FIRST_SIZES - 1) as f64;
    let again = |times: f64| Step::Measure {
        sizes: inside.iter().map(|l| l.size).collect(),
        processes,
        visits: ((visits as f64 * times).ceil() as usize).clamp(visits + 1, plan.visits.max(visits + 1)),
    };
    match found {
        Found { root: Some(root), below, above: Some(above) } if below.is_some() || a <= low + 1e-9 => {
            let ci = [below.unwrap_or(low), above];
            let wide = ci[1] - ci[0] > plan.narrow.ln();
            let common = table.common.size > fit.own.size;
            if wide && common && processes < plan.processes[2] {
                return all();
            }
            // Not where chance alone may look like a bend, nor where the processes are why it is wide.
            let clear = fit.ripple > 0.0 && fit.own.size > CLEAR * table.own.size;
            // Errors shrink with the root of the number of visits.
            if wide && !clear && table.own.size > table.common.size && visits < plan.visits {
                return again(SPARE * ((ci[1] - ci[0]) / plan.narrow.ln()).powi(2));
            }
            let mut best = (root, ci);
            let few = processes <= plan.processes[1].max(plan.later);
            if wide && clear && !common && (few || plan.sizes == 0) {
                let closer = Closer::of(&table, processes, best);
                // Sizes of the first look would not be among those around the crossing.
                let free = |s: &u64| !coarse(*s) && !looks.iter().any(|l| l.size == *s);
                let next = closer.next.iter().map(|at| snap(at.exp().round() as u64)).find(free);
                if let Some(size) = next.filter(|_| inside.len() < plan.sizes + MORE_SIZES) {
                    return Step::Measure { sizes: vec![size], processes, visits };
                }
                best = (closer.root, closer.ci);
            }
            let (root, ci) = best;
            Step::Done(Outcome::Crossing {
                size: root.exp().ceil() as u64,
                // The first whole size from each end on, as `size` is that from the root on.
                ci: ci.map(|end| end.exp().ceil() as u64),
                stake: fit.stake(ci),
                without: table.left_out(processes),
            })
        }
        _ if full && visits < plan.visits => again(2.0),
        _ if full => Step::Done(Outcome::Inconclusive(NOISE)),
        Found { below, above, .. } => {
            let down = below.is_none() && a > low + 1e-9;
            let up = above.is_none() && b < high - 1e-9;
            let mut sizes = Vec::new();
            if down {
                sizes.extend(window(a - 3.0 * step, a - step, 2));
            }
            if up {
                sizes.extend(window(b + step, b + 3.0 * step, 2));
            }
            sizes.iter_mut().filter(|s| coarse(**s)).for_each(|s| *s = snap(*s + 1));
            sizes.retain(|s| !inside.iter().any(|l| l.size == *s) && !coarse(*s) && s <= last);
            sizes.sort_unstable();
            sizes.dedup();
            if !sizes.is_empty() {
                return Step::Measure { sizes, processes, visits };
            }
            if processes < plan.processes[2] {
                let sizes = inside.iter().map(|l| l.size).collect();
                return Step::Measure { sizes, processes: (processes + 3).min(plan.processes[2]), visits };
            }
            if visits < plan.visits {
                return again(2.0);
            }
            Step::Done(Outcome::Inconclusive(NOISE))
        }
    }
}

/// A crossing and its interval where each size is judged by its own interval, because a cubic misses them.
struct Closer {
    root: f64,
    ci: [f64; 2],
    /// Logarithms of the sizes that would tell most, best first; none if nothing would.
    next: Vec<f64>,
}

impl Closer {
    /// Between the last size that is surely lost and the first from which on all are surely won, within what is known already.
    fn of(table: &Table, processes: usize, (root, ci): (f64, [f64; 2])) -> Closer {
        let (x, y, half) = (&table.x, &table.y, table.half(processes));
        let known = Closer { root, ci, next: Vec::new() };
        let won = y.iter().rposition(|y| y - half <= 0.0).map_or(0, |i| i + 1);
        let Some(lost) = y[..won].iter().rposition(|y| y + half < 0.0).filter(|_| won < y.len()) else { return known };
        let ci = [x[lost].max(ci[0]), x[won].min(ci[1])];
        let i = y.iter().rposition(|y| *y <= 0.0).unwrap_or(lost);
        let root = x[i] + (x[i + 1] - x[i]) * y[i] / (y[i] - y[i + 1]);
        if ci[0] >= ci[1] {
            return known;
        }
        let root = root.clamp(ci[0], ci[1]);
        if ci[1] - ci[0] <= 2.0 * CLOSE {
            return Closer { root, ci, next: Vec::new() };
        }
        // Between a sure size and a doubtful one: where it is just sure, by a straight line; between two sure ones half way.
        let beside = |sure: usize, doubtful: usize| {
            let part = (y[sure].abs() - SURELY * half) / (y[sure] - y[doubtful]).abs();
            let gap = (x[doubtful] - x[sure]).abs();
            let part = part.clamp(0.5, (1.0 - CLOSE / gap).max(0.5));
            x[sure] + part * (x[doubtful] - x[sure])
        };
        let mut next = if lost + 1 == won {
            vec![(x[won] - x[lost], (x[lost] + x[won]) / 2.0)]
        } else {
            vec![(x[lost + 1] - x[lost], beside(lost, lost + 1)), (x[won] - x[won - 1], beside(won, won - 1))]
        };
        next.retain(|(gap, _)| *gap > CLOSE);
        next.sort_by(|a, b| b.0.total_cmp(&a.0));
        Closer { root, ci, next: next.into_iter().map(|(_, at)| at).collect() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A device that wins from `at` on, its ratio rising as the root of the size; processes differ a little.
    fn log_ratio(size: u64, process: usize, at: f64) -> f64 {
        0.5 * (size as f64 / at).ln() + 0.01 * ((process * 7 + size as usize) % 5) as f64 - 0.02
    }

    /// Follows the plan to its end: the outcome, every look that was asked for, and how many of them an outcome was known from.
    fn follow(
        plan: &Plan,
        snap: &dyn Fn(u64) -> u64,
        log_ratio: &dyn Fn(u64, usize) -> f64,
    ) -> (Outcome, Vec<(u64, usize, usize)>, usize) {
        let mut looks: Vec<Look> = Vec::new();
        let mut asked = Vec::new();
        let mut known = None;
        for _ in 0..200 {
            match so_far(&looks, plan, snap) {
                Some(_) => _ = known.get_or_insert(asked.len()),
                None => assert!(known.is_none(), "what was known is no longer"),
            }
            match next(&looks, plan, snap) {
                Step::Done(outcome) => return (outcome, asked, known.unwrap_or(usize::MAX)),
                Step::Measure { sizes, processes, visits } => {
                    let before = asked.len();
                    for size in sizes {
                        let i = looks.iter().position(|l| l.size >= size).unwrap_or(looks.len());
                        if looks.get(i).is_none_or(|l| l.size != size) {
                            looks.insert(i, Look { size, logs: Vec::new(), visits: Vec::new(), squares: Vec::new() });
                        }
                        for process in looks[i].logs.len()..processes {
                            looks[i].logs.push(log_ratio(size, process));
                            looks[i].visits.push(0);
                            looks[i].squares.push(0.0);
                        }
                        // What these processes find at a size they find at every visit.
                        for (process, had) in looks[i].visits[..processes].iter_mut().enumerate() {
                            asked.extend((*had..visits).map(|visit| (size, process, visit)));
                            *had = visits.max(*had);
                        }
                    }
                    assert!(asked.len() > before, "a step that asks for nothing new never ends");
                }
            }
        }
        panic!("no end after {} looks", asked.len());
    }

    #[test]
    fn a_crossing_is_found_between_sizes_that_there_are() {
        for (rows, at) in [(1, 40_000.0), (1000, 40_000.0), (1000, 5200.0), (1000, 2100.0), (4000, 9000.0)] {
            let snap = move |size: u64| (size + rows / 2).max(rows) / rows * rows;
            let mut grid: Vec<u64> = grid((1000, 1 << 20)).into_iter().map(snap).collect();
            grid.dedup();
            let (outcome, asked, _) = follow(&Plan::new(grid), &snap, &|size, process| log_ratio(size, process, at));
            assert!(asked.iter().all(|(size, ..)| size.is_multiple_of(rows)), "{rows} {at}: {asked:?}");
            let mut once = asked.clone();
            once.sort_unstable();
            once.dedup();
            assert_eq!(once.len(), asked.len(), "no visit twice: {rows} {at}");
            let Outcome::Crossing { ci: [low, high], without, .. } = outcome else {
                panic!("{rows} {at}: {outcome:?}")
            };
            assert_eq!(without, None, "all processes count");
            assert!(low as f64 <= at * 1.02 && at <= high as f64 * 1.02, "{rows} {at}: {low} to {high}");
        }
    }

    /// The ratio bends at 38,000 and jumps at 60,000; both lie in the first window.
    #[test]
    fn an_interval_is_narrow_beside_a_bend_and_a_jump() {
        let bent = |size: u64, process: usize| {
            let x = (size as f64 / 40_000.0).ln();
            let kink = if size > 38_000 { 2.0 * (size as f64 / 38_000.0).ln() } else { 0.0 };
            let jump = if size > 60_000 { -0.3 } else { 0.0 };
            0.5 * x + kink + jump - 0.08 + 0.004 * (((process * 7 + size as usize) % 5) as f64 - 2.0)
        };
        let truth = (38_000..60_000).find(|n| bent(*n, 0) - 0.004 * ((*n as usize % 5) as f64 - 2.0) > 0.0).unwrap();
        let (outcome, asked, _) = follow(&Plan::new(grid((1000, 1 << 20))), &|s| s, &bent);
        let Outcome::Crossing { ci: [low, high], .. } = outcome else { panic!("{outcome:?}") };
        assert!(low <= truth && truth <= high, "{truth}: {low} to {high}");
        assert!((high as f64) < 1.1 * low as f64, "{truth}: {low} to {high}");
        assert!(asked.len() < 160, "{} looks", asked.len());
    }

    /// Time may end while more sizes are asked for, to make it narrow.
    #[test]
    fn a_wide_interval_is_known_before_a_narrow_one() {
        let rippled =
            |size: u64, process: usize| log_ratio(size, process, 40_000.0) / 2.0 + 0.05 * (size as f64 / 300.0).sin();
        let (outcome, asked, known) = follow(&Plan::new(grid((1000, 1 << 20))), &|s| s, &rippled);
        assert!(matches!(outcome, Outcome::Crossing { .. }), "{outcome:?}");
        assert!(known < asked.len(), "from look {known} of {}", asked.len());
    }

    /// From its look at a size in the first window on, a process's device takes half as long again.
    #[test]
    fn a_process_that_is_slowed_is_replaced() {
        let plan = |most: usize| Plan { processes: [3, 5, most], ..Plan::new(grid((1000, 1 << 20))) };
        for who in [0, 1, 4] {
            let slowed = |size: u64, process: usize| {
                log_ratio(size, process, 40_000.0) - if process == who && size > 36_000 { 0.4 } else { 0.0 }
            };
            let (outcome, asked, _) = follow(&plan(11), &|s| s, &slowed);
            let Outcome::Crossing { ci: [low, high], without, .. } = outcome else { panic!("{who}: {outcome:?}") };
            assert_eq!(without, Some(who), "and it says so");
            assert!(low <= 40_500 && 39_500 <= high && !plan(11).wants_more(&outcome), "{who}: {low} to {high}");
            assert!(asked.iter().any(|(_, process, _)| *process == 10), "{who}: the others are asked");
            assert!(asked.iter().all(|(.., visit)| *visit == 0), "{who}: once");
            // With no other processes it counts.
            let (outcome, ..) = follow(&Plan { visits: 1, ..plan(5) }, &|s| s, &slowed);
            assert!(plan(5).wants_more(&outcome), "{who}: {outcome:?}");
        }
    }

    #[test]
    fn fewer_processes_first_and_more_for_what_is_open() {
        let plan = |most: usize| Plan { processes: [3, 5, most], ..Plan::new(grid((1000, 1 << 20))) };
        let (outcome, asked, _) = follow(&plan(5), &|s| s, &|size, process| log_ratio(size, process, 40_000.0));
        assert!(asked.iter().all(|(_, process, _)| *process < 5));
        assert!(!plan(5).wants_more(&outcome), "narrow: {outcome:?}");
        let crossing = |ci| Outcome::Crossing { size: 100, ci, stake: 1.1, without: None };
        for (outcome, wants) in [
            (Outcome::Always, false),
            (Outcome::Never, false),
            (Outcome::NonMonotone(vec![(1, true), (2, false)]), false),
            (Outcome::Inconclusive("noise"), true),
            (crossing([100, 110]), false),
            (crossing([90, 110]), true),
        ] {
            assert_eq!(plan(5).wants_more(&outcome), wants, "{outcome:?}");
        }
        // Within 10 % is enough for now, and takes fewer looks where visits scatter.
        let close = Plan::within(grid((1000, 1 << 20)), 11, WITHIN_10);
        assert!(!close.wants_more(&crossing([100, 121])) && close.wants_more(&crossing([100, 122])));
        let full = Plan::of_all(grid((1000, 1 << 20)), 11);
        assert!(close.later == 11 && full.wants_more(&crossing([100, 121])), "of all processes, too");
        let near = Plan::within(grid((1000, 1 << 20)), 11, WITHIN_15);
        assert!(!near.wants_more(&crossing([100, 133])) && near.wants_more(&crossing([100, 134])));
        // Nobody wins at the largest size, or at the smallest: all processes are asked, then it stays open.
        for (at, why) in [(f64::from(1 << 20), OPEN_ABOVE), (985.0, OPEN_BELOW)] {
            let (outcome, asked, _) = follow(&plan(11), &|s| s, &|size, process| log_ratio(size, process, at));
            assert_eq!(outcome, Outcome::Inconclusive(why));
            assert!(asked.iter().any(|(_, process, _)| *process == 10));
        }
    }

    /// Looks at everything that a plan asks for, with what was looked at before.
    fn go_on(looks: &mut Vec<Look>, plan: &Plan, log_ratio: &dyn Fn(u64, usize) -> f64) -> Outcome {
        loop {
            let (sizes, processes) = match next(looks, plan, &|s| s) {
                Step::Done(outcome) => return outcome,
                Step::Measure { sizes, processes, .. } => (sizes, processes),
            };
            for size in sizes {
                let had = looks.iter().find(|l| l.size == size).map_or(0, |l| l.logs.len());
                let find = |p| vec![log_ratio(size, p)];
                let visits: Vec<Vec<f64>> = (0..processes.max(had)).map(find).collect();
                looks.retain(|l| l.size != size);
                looks.push(Look::visited(size, visits.iter().map(Vec::as_slice)));
            }
            looks.sort_by_key(|l| l.size);
        }
    }

    #[test]
    fn processes_join_until_all_have_measured() {
        let in_parts = |processes| (1..=Plan::PARTS).map(|p| Plan::in_part(processes, p)).collect::<Vec<_>>();
        assert_eq!(in_parts(11), [6, 7, 8, 9, 10, 11]);
        assert_eq!(in_parts(3), [3; 6]);
        assert_eq!(in_parts(64), [15, 25, 35, 45, 55, 64]);
    }

    /// The first five processes agree, and the interval is narrow. What the machine does when the others join moves the crossing by
    /// a third: all of them know.
    #[test]
    fn what_a_machine_does_later_counts() {
        let grid = || grid((1000, 1 << 20));
        let moved = |by: f64| {
            move |size: u64, process: usize| {
                log_ratio(size, process, if process < 5 { 40_000.0 } else { by * 40_000.0 })
            }
        };
        for by in [1.0, 1.33] {
            let mut looks = Vec::new();
            let first = go_on(&mut looks, &Plan::first(grid(), 11), &moved(by));
            let Outcome::Crossing { ci: [_, high], .. } = first else { panic!("{first:?}") };
            assert!(high < 44_000 && !Plan::first(grid(), 11).wants_more(&first), "{first:?}");
            for part in 1..=Plan::PARTS {
                let plan = Plan { visits: 1, ..Plan::of_all(grid(), Plan::in_part(11, part)) };
                let outcome = go_on(&mut looks, &plan, &moved(by));
                let Outcome::Crossing { size, ci: [low, high], without, .. } = outcome else { panic!("{outcome:?}") };
                let near = looks.iter().filter(|l| l.logs.len() == 5 + part).count();
                assert!(near >= FIRST_SIZES, "{near} sizes in {} processes", 5 + part);
                if part == Plan::PARTS {
                    assert_eq!(without, None);
                    let middle = 40_000.0 * by.powf(6.0 / 11.0);
                    assert!((0.97..1.03).contains(&(size as f64 / middle)), "{by}: {size}");
                    assert_eq!(plan.wants_more(&outcome), by > 1.0, "{by}: {low} to {high}");
                    assert!((low as f64) < middle && middle < high as f64, "{by}: {low} to {high}");
                }
            }
        }
    }

    /// The time may end while a process has looked at some sizes only.
    #[test]
    fn what_is_known_stays_while_a_process_joins() {
        let grid = || grid((1000, 1 << 20));
        let mut looks = Vec::new();
        let at = |size, process| log_ratio(size, process, 40_000.0);
        let first = go_on(&mut looks, &Plan::first(grid(), 11), &at);
        let plan = Plan::of_all(grid(), 6);
        let Step::Measure { sizes, processes: 6, visits: 1 } = next(&looks, &plan, &|s| s) else {
            panic!("a sixth process is to look")
        };
        let look = looks.iter_mut().find(|l| l.size == sizes[3]).unwrap();
        *look = Look::visited(
            look.size,
            (0..6).map(|p| vec![at(sizes[3], p)]).collect::<Vec<_>>().iter().map(Vec::as_slice),
        );
        assert_eq!(so_far(&looks, &plan, &|s| s), Some(first));
    }
}
