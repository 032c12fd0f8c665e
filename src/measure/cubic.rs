//! Means of sizes over processes with their errors, and a cubic through them: where it crosses zero, and how surely.

use statrs::distribution::{ContinuousCDF, FisherSnedecor, StudentsT};

use super::crossing::Look;
use crate::base::stats::inverse;

pub(super) fn mean(values: impl Iterator<Item = f64>) -> f64 {
    let (n, sum) = values.fold((0.0, 0.0), |(n, s), v| (n + 1.0, s + v));
    sum / n
}

/// A variance and its degrees of freedom.
#[derive(Clone, Copy, Debug)]
pub(super) struct Variance {
    pub(super) size: f64,
    pub(super) freedom: f64,
}

impl Variance {
    fn at_least(self, floor: Variance) -> Variance {
        if floor.size > self.size { floor } else { self }
    }
}

/// Half of the 95 % interval of a number with these two independent errors (Satterthwaite 1946 for the freedom).
fn half_width(a: Variance, b: Variance) -> f64 {
    let of = |v: Variance| if v.freedom > 0.0 { v.size * v.size / v.freedom } else { 0.0 };
    let (sum, d) = (a.size + b.size, of(a) + of(b));
    if sum <= 0.0 {
        return 0.0;
    }
    let freedom = if d > 0.0 { (sum * sum / d).clamp(1.0, 1e6) } else { 1e6 };
    StudentsT::new(0.0, 1.0, freedom).map_or(f64::INFINITY, |t| t.inverse_cdf(0.975) * sum.sqrt())
}

/// The variance of a size's mean over these processes if it came from their visits alone.
fn by_visits(looks: &[&Look], who: &[usize]) -> Variance {
    let all = || looks.iter().flat_map(|l| who.iter().map(|i| (l.visits[*i], l.squares[*i])));
    let freedom = all().map(|(visits, _)| visits.saturating_sub(1) as f64).sum::<f64>();
    if freedom < 1.0 {
        return Variance { size: 0.0, freedom: 0.0 };
    }
    let one = all().map(|(_, squares)| squares).sum::<f64>() / freedom;
    Variance { size: one * mean(all().map(|(visits, _)| 1.0 / visits as f64)) / who.len() as f64, freedom }
}

/// A process is apart if its numbers are so unlikely among the others'. Of a hundred calibrations whose processes are all alike
/// about one loses one of them, which the others can spare.
const APART: f64 = 0.01;

/// The variance of a ratio of times known to a millionth. None is known better, and rounding is no scatter.
const EXACT: f64 = 1e-12;

/// The process that is apart from all others, if one is: as a whole, or by how it scatters from size to size, as one does whose
/// device is slowed part-way (externally studentized residuals, with Bonferroni's bound for the one that is furthest off). Where
/// all processes differ widely, none is.
fn apart(looks: &[&Look], processes: usize) -> Option<usize> {
    let (n, p) = (looks.len() as f64, processes as f64);
    let chance = |one: usize| {
        let others = Table::among(looks, (0..processes).filter(|i| *i != one).collect())?;
        let off: Vec<f64> = looks.iter().zip(&others.y).map(|(l, y)| l.logs[one] - y).collect();
        let whole = mean(off.iter().copied());
        let scatter = off.iter().map(|o| (o - whole).powi(2)).sum::<f64>() / (n - 1.0);
        // A mean of fewer visits than the others' scatters more.
        let each =
            |who: &[usize]| mean(looks.iter().flat_map(|l| who.iter().map(|i| 1.0 / l.visits[*i].max(1) as f64)));
        let fewer = (each(&[one]) / each(&others.who)).max(1.0);
        // Others that agree by chance differ by their sizes' errors at least, and are no more of them for it.
        let common = Variance { size: others.common.size.max(fewer * others.own.size / n), freedom: p - 2.0 };
        // A number has p - 1 times the variance of the others' mean, which has an error as well: p times in all.
        let tail = |square: f64, freedom: f64, error: Variance, fewer: f64| {
            let times = square / (((p - 1.0) * fewer + 1.0) * error.size.max(EXACT));
            FisherSnedecor::new(freedom, error.freedom)
                .map_or(1.0, |f| if times.is_finite() { f.sf(times) } else { 1.0 })
        };
        Some((one, tail(whole * whole, 1.0, common, 1.0).min(tail(scatter, n - 1.0, others.own, fewer))))
    };
    let (one, chance) = (0..processes).filter_map(chance).min_by(|a, b| a.1.total_cmp(&b.1))?;
    // Two ways to be apart for each process.
    (chance * 2.0 * p < APART).then_some(one)
}

/// Sizes measured in the same processes: means by size, and what their errors are.
#[derive(Debug)]
pub(super) struct Table {
    /// Logarithms of the sizes.
    pub(super) x: Vec<f64>,
    /// Means over the processes that count.
    pub(super) y: Vec<f64>,
    /// The processes that count.
    pub(super) who: Vec<usize>,
    /// Whether one of them is apart from the others, and counts because too few would remain.
    pub(super) mixed: bool,
    /// Offset of each process, counted or not.
    pub(super) offsets: Vec<f64>,
    /// Of the mean of all numbers.
    pub(super) common: Variance,
    /// Of a size's mean apart from that.
    pub(super) own: Variance,
}

impl Table {
    /// Looks in at least `processes` processes, of which the first so many count, but for one that is apart if at least `least`
    /// remain: its error is not theirs. `None` for fewer than two of either.
    pub(super) fn of<'a>(looks: impl Iterator<Item = &'a Look>, processes: usize, least: usize) -> Option<Table> {
        let looks: Vec<&Look> = looks.filter(|l| l.logs.len() >= processes).collect();
        let all = Table::among(&looks, (0..processes).collect())?;
        match apart(&looks, processes) {
            None => Some(all),
            Some(_) if processes <= least => Some(Table { mixed: true, ..all }),
            Some(one) => Table::among(&looks, (0..processes).filter(|i| *i != one).collect()),
        }
    }

    /// Which of so many processes does not count.
    pub(super) fn left_out(&self, processes: usize) -> Option<usize> {
        (0..processes).find(|i| !self.who.contains(i))
    }

    /// Looks in which all of these processes measured.
    fn among(looks: &[&Look], who: Vec<usize>) -> Option<Table> {
        if looks.len() < 2 || who.len() < 2 {
            return None;
        }
        let measured = looks.iter().map(|l| l.logs.len()).min().unwrap_or(0);
        let (n, p) = (looks.len() as f64, who.len() as f64);
        let y: Vec<f64> = looks.iter().map(|l| mean(who.iter().map(|i| l.logs[*i]))).collect();
        let all = mean(y.iter().copied());
        let offsets: Vec<f64> = (0..measured).map(|i| mean(looks.iter().map(|l| l.logs[i])) - all).collect();
        let squares =
            |i: &usize| looks.iter().zip(&y).map(|(l, y)| (l.logs[*i] - y - offsets[*i]).powi(2)).sum::<f64>();
        let freedom = (p - 1.0) * (n - 1.0);
        let mut own = Variance { size: who.iter().map(squares).sum::<f64>() / freedom / p, freedom };
        let between: f64 = who.iter().map(|i| offsets[*i].powi(2)).sum();
        let mut common = Variance { size: between / (p - 1.0) / p, freedom: p - 1.0 };
        // Whoever visits until an interval is narrow stops where chance made these small. Visits know better what is the least
        // that each can be: what they scatter by.
        let visits = by_visits(looks, &who);
        if visits.freedom > 0.0 {
            own = own.at_least(visits);
            common = common.at_least(Variance { size: own.size / n, ..own });
        }
        let x = looks.iter().map(|l| (l.size as f64).ln()).collect();
        Some(Table { x, y, who, mixed: false, offsets, common, own })
    }

    /// The share of a size's own error that the mean of all does not hold already.
    fn apart(&self) -> f64 {
        1.0 - 1.0 / self.x.len() as f64
    }

    /// Half of the interval of a size measured in `processes` processes, the others' offsets taken off.
    pub(super) fn half(&self, processes: usize) -> f64 {
        let more = self.who.len() as f64 / processes.clamp(1, self.who.len()) as f64;
        half_width(self.common, Variance { size: self.own.size * self.apart() * more, ..self.own })
    }
}

/// Sizes from which on a cubic leaves enough of them to check it by. In the middle of the window it is as sure as a parabola.
const CUBIC: usize = 7;

/// Misses that are so unlikely if there is only noise are no noise. More than the usual 5 %: a miss that is taken for noise makes
/// an interval too narrow, noise that is taken for a miss one that is wide and measured once more.
const MISSED: f64 = 0.25;

/// Standard deviation of the second and third derivative of a ratio by the logarithm of the size, before anything is measured. A
/// time with one part that is fixed and one that grows with the size bends by at most a quarter; noise bends a cubic by far more.
const BEND: f64 = 0.25;

/// A polynomial through the means of a table.
#[derive(Debug)]
pub(super) struct Fit<'a> {
    pub(super) table: &'a Table,
    centre: f64,
    scale: f64,
    coefficients: Vec<f64>,
    /// The same, as far as bends are likely: [`BEND`].
    likely: Vec<f64>,
    inverse: Vec<Vec<f64>>,
    pub(super) own: Variance,
    /// 1 where the polynomial misses the means: then a single size may lie as far off it.
    pub(super) ripple: f64,
}

impl<'a> Fit<'a> {
    /// A cubic, a parabola where there are fewer than [`CUBIC`] sizes, or less where there are too few to check one.
    pub(super) fn of(table: &'a Table) -> Option<Fit<'a>> {
        let n = table.x.len();
        let terms = if n < CUBIC { 3.min(n - 1) } else { 4 };
        let (low, high) = (table.x[0], table.x[n - 1]);
        let mut fit = Fit {
            table,
            centre: (low + high) / 2.0,
            scale: ((high - low) / 2.0).max(f64::MIN_POSITIVE),
            coefficients: vec![0.0; terms],
            likely: Vec::new(),
            inverse: Vec::new(),
            own: table.own,
            ripple: 0.0,
        };
        let rows: Vec<Vec<f64>> = table.x.iter().map(|x| fit.powers(*x)).collect();
        let sum = |i: usize, j: usize| rows.iter().map(|r| r[i] * r[j]).sum::<f64>();
        let normal: Vec<Vec<f64>> = (0..terms).map(|i| (0..terms).map(|j| sum(i, j)).collect()).collect();
        let right: Vec<f64> = (0..terms).map(|i| rows.iter().zip(&table.y).map(|(r, y)| r[i] * y).sum()).collect();
        let solved = |inverse: &[Vec<f64>]| -> Vec<f64> {
            inverse.iter().map(|row| row.iter().zip(&right).map(|(a, b)| a * b).sum()).collect()
        };
        fit.inverse = inverse(normal.clone())?;
        fit.coefficients = solved(&fit.inverse);
        let misses: f64 = table.x.iter().zip(&table.y).map(|(x, y)| (y - fit.value(*x)).powi(2)).sum();
        if n > terms {
            let freedom = (n - terms) as f64;
            let size = misses / freedom;
            let chance = match FisherSnedecor::new(freedom, table.own.freedom) {
                Ok(f) if table.own.size > 0.0 => f.sf(size / table.own.size),
                _ => 0.0,
            };
            if size > table.own.size && chance < MISSED {
                fit.own = Variance { size, freedom };
                fit.ripple = 1.0;
            }
        }
        let mut expected = normal;
        for (power, row) in expected.iter_mut().enumerate() {
            row[power] += table.own.size / fit.expected(power);
        }
        let likely = inverse(expected).filter(|_| fit.ripple == 0.0);
        fit.likely = likely.map_or_else(|| fit.coefficients.clone(), |inverse| solved(&inverse));
        Some(fit)
    }

    /// Variance of a coefficient before anything is measured, from [`BEND`]: of levels and slopes nothing is known.
    fn expected(&self, power: usize) -> f64 {
        match power {
            2 => (BEND * self.scale.powi(2) / 2.0).powi(2),
            3 => (BEND * self.scale.powi(3) / 6.0).powi(2),
            _ => f64::INFINITY,
        }
    }

    fn powers(&self, x: f64) -> Vec<f64> {
        let u = (x - self.centre) / self.scale;
        (0..self.coefficients.len()).map(|i| u.powi(i as i32)).collect()
    }

    fn value(&self, x: f64) -> f64 {
        self.powers(x).iter().zip(&self.coefficients).map(|(a, b)| a * b).sum()
    }

    /// The value that is most likely, without an interval of its own.
    fn likely(&self, x: f64) -> f64 {
        self.powers(x).iter().zip(&self.likely).map(|(a, b)| a * b).sum()
    }

    /// How many times as long a call takes on the wrong side, at most, between these logarithms of sizes: as the polynomial that is
    /// likely has it, and where polynomials miss the means, as those of the sizes there have it, too.
    pub(super) fn stake(&self, [low, high]: [f64; 2]) -> f64 {
        let steps = (0..=8).map(|i| self.likely(low + (high - low) * f64::from(i) / 8.0));
        let within =
            self.table.x.iter().zip(&self.table.y).filter(|(x, _)| self.ripple > 0.0 && (low..=high).contains(*x));
        steps.chain(within.map(|(_, y)| *y)).fold(0.0, |most: f64, y| most.max(y.abs())).exp()
    }

    /// Lower end, value and upper end at the logarithm of a size.
    pub(super) fn at(&self, x: f64) -> [f64; 3] {
        let v = self.powers(x);
        let leverage: f64 =
            self.inverse.iter().zip(&v).map(|(row, a)| a * row.iter().zip(&v).map(|(b, c)| b * c).sum::<f64>()).sum();
        let apart = (leverage - 1.0 / self.table.x.len() as f64).max(0.0);
        // A single size lies off the polynomial by what it misses beyond the noise.
        let single = self.ripple * (self.own.size - self.table.own.size);
        let half = half_width(self.table.common, Variance { size: self.own.size * apart + single, ..self.own });
        let y = self.value(x);
        [y - half, y, y + half]
    }
}

/// Where a fit crosses zero, and where its interval leaves zero on either side.
pub(super) struct Found {
    pub(super) root: Option<f64>,
    pub(super) below: Option<f64>,
    pub(super) above: Option<f64>,
}

impl Found {
    pub(super) fn of(fit: &Fit<'_>, a: f64, b: f64) -> Found {
        const STEPS: usize = 200;
        let x: Vec<f64> = (0..=STEPS).map(|i| a + (b - a) * i as f64 / STEPS as f64).collect();
        let y: Vec<f64> = x.iter().map(|x| fit.value(*x)).collect();
        // Between two steps the curves are straight enough.
        let between = |i: usize, [at, next]: [f64; 2]| x[i] + (x[i + 1] - x[i]) * at / (at - next);
        let zero = |i: usize, of: usize| between(i, [fit.at(x[i])[of], fit.at(x[i + 1])[of]]);
        // A half takes far longer than a value, and is asked for only where the value leaves it open.
        let below = (0..=STEPS).rev().find(|i| y[*i] < 0.0 && fit.at(x[*i])[2] < 0.0);
        let sure = |i: usize| y[i] > 0.0 && fit.at(x[i])[0] > 0.0;
        let above = (below.unwrap_or(0)..=STEPS).find(|i| sure(*i));
        let last = |y: &[f64]| (0..STEPS).rev().find(|i| y[*i] <= 0.0 && y[i + 1] > 0.0);
        let root = |y: &[f64]| last(y).map(|i| between(i, [y[i], y[i + 1]]));
        let below = below.filter(|i| *i < STEPS).map(|i| zero(i, 2));
        let above = above.map(|i| if i > 0 && !sure(i - 1) { zero(i - 1, 0) } else { x[i] });
        let likely: Vec<f64> = x.iter().map(|x| fit.likely(*x)).collect();
        // The interval is that of the cubic, and holds whatever is said to be likely.
        let within = |at: f64| at.max(below.unwrap_or(a)).min(above.unwrap_or(b));
        Found { root: root(&y).map(|at| root(&likely).map_or(at, within)), below, above }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::rng::Philox;

    /// A ratio that rises with the size, so that the ends of the interval are what is at stake. Where means lie off every
    /// polynomial, they are at stake as well.
    #[test]
    fn at_stake_is_the_most_that_a_wrong_side_takes_longer() {
        let at = 1700f64.ln();
        let stake = |mean: &dyn Fn(f64, usize) -> f64, ends: [f64; 2]| {
            let looks = looks(4, mean);
            let table = Table::of(looks.iter(), 5, 5).unwrap();
            let fit = Fit::of(&table).unwrap();
            (fit.stake(ends.map(|e| at + f64::ln(e))), fit.ripple)
        };
        let even = |x: f64, process: usize| x - at + 0.01 * (process as f64 - 2.0);
        for (ends, want) in [([0.8, 1.1], 1.25), ([0.95, 1.5], 1.5), ([1.0, 1.0], 1.0)] {
            let (found, ripple) = stake(&even, ends);
            assert!((found / want - 1.0).abs() < 0.01 && ripple == 0.0, "{found} instead of {want}");
        }
        // Some hundreds are even.
        let saw = |x: f64, process: usize| {
            let tooth = if ((x.exp() / 100.0).round() as u64).is_multiple_of(2) { 0.3 } else { -0.3 };
            0.1 * even(x, process) + tooth
        };
        let (found, ripple) = stake(&saw, [0.6, 1.7]);
        assert!(ripple == 1.0 && (1.3..1.6).contains(&found), "{found}");
    }

    /// Seven sizes in five processes, of so many visits that scatter by 0.1; their means are these.
    fn looks(visits: usize, mean: &dyn Fn(f64, usize) -> f64) -> Vec<Look> {
        let squares = (visits - 1) as f64 * 0.01;
        let look = |size: u64| Look {
            size,
            logs: (0..5).map(|process| mean((size as f64).ln(), process)).collect(),
            visits: vec![visits; 5],
            squares: vec![squares; 5],
        };
        [1000, 1200, 1400, 1700, 2000, 2400, 2900].into_iter().map(look).collect()
    }

    #[test]
    fn an_error_is_at_least_what_visits_scatter_by() {
        // The processes agree by chance.
        let agree = looks(4, &|x, process| x - 7.4 + 1e-6 * ((process * 3) % 5) as f64 * x);
        let table = Table::of(agree.iter(), 5, 5).unwrap();
        let least = 0.01 / 4.0 / 5.0;
        assert!((table.own.size / least - 1.0).abs() < 1e-9, "{:?}", table.own);
        assert!((table.common.size / (least / 7.0) - 1.0).abs() < 1e-9, "{:?}", table.common);
        assert_eq!((table.own.freedom, table.common.freedom), (105.0, 105.0));
        // Processes that differ by more say so themselves, and one visit each says nothing.
        let differ = looks(4, &|x, process| x - 7.4 + process as f64);
        let table = Table::of(differ.iter(), 5, 5).unwrap();
        assert!((table.common.size - 0.5).abs() < 1e-9 && table.common.freedom == 4.0, "{:?}", table.common);
        let once = looks(1, &|x, process| x - 7.4 + 1e-6 * ((process * 3) % 5) as f64 * x);
        assert!(Table::of(once.iter(), 5, 5).unwrap().own.size < 1e-9);
    }

    /// Noise of numbers and offsets of processes, as standard deviations.
    fn noisy(run: u64, number: f64, process: f64) -> impl Fn(f64, usize) -> f64 {
        let rng = Philox::new(run);
        move |x, i| x - 7.4 + number * rng.normal(i as u64, (x * 1e6) as u64) + process * rng.normal(100, i as u64)
    }

    #[test]
    fn a_process_that_is_slowed_is_left_out_if_enough_remain() {
        let slowed_from = |slow: f64| {
            move |x: f64, process: usize| {
                noisy(1, 0.01, 0.01)(x, process) - if process == 2 && x >= slow { 0.4 } else { 0.0 }
            }
        };
        // All the time, from a size in the middle on, at the last two.
        for slow in [0.0, 7.3, 7.7] {
            let all = looks(1, &slowed_from(slow));
            let table = Table::of(all.iter(), 5, 4).unwrap();
            assert_eq!((&table.who, table.mixed), (&vec![0, 1, 3, 4], false), "{slow}");
            assert_eq!((table.common.freedom, table.own.freedom), (3.0, 18.0));
            assert!(table.common.size < 0.001 && table.own.size < 0.001, "{slow}: {table:?}");
            // Its offset is that from the others, for sizes that only it measured.
            let off = mean(all.iter().map(|l| l.logs[2])) - mean(table.y.iter().copied());
            assert!((table.offsets[2] - off).abs() < 1e-12 && table.offsets.len() == 5);
            let sizes = |who: &[usize]| mean(who.iter().map(|i| all[0].logs[*i]));
            assert!((table.y[0] - sizes(&[0, 1, 3, 4])).abs() < 1e-12);
            // A size that one of four processes measured has four times the variance apart from the common one.
            let alone = Variance { size: table.own.size * (6.0 / 7.0) * 4.0, ..table.own };
            assert!((table.half(1) - half_width(table.common, alone)).abs() < 1e-12);
            let table = Table::of(all.iter(), 5, 5).unwrap();
            assert!(
                table.mixed && table.who.len() == 5 && table.own.size + table.common.size > 0.0015,
                "{slow}: {table:?}"
            );
        }
        // Its visits count no more than its means.
        let mut all = looks(4, &slowed_from(0.0));
        all.iter_mut().for_each(|l| l.squares[2] = 100.0);
        assert!(Table::of(all.iter(), 5, 4).unwrap().own.size < 0.001);
    }

    #[test]
    fn processes_that_are_alike_or_all_differ_are_seldom_apart() {
        for (number, process) in [(0.03, 0.0), (0.03, 0.02), (0.03, 0.3), (0.0, 0.3)] {
            let apart = (0..1000).filter(|run| {
                let all = looks(1, &noisy(1000 + run, number, process));
                Table::of(all.iter(), 5, 5).unwrap().mixed
            });
            let apart = apart.count();
            // Three standard deviations above APART.
            assert!(apart < 20, "{apart} of 1000 at {number} {process}");
        }
        // Rounding is not scatter, and without any there is nothing to be apart from.
        let same = looks(1, &|x, process| x - 7.4 + 1e-15 * (process * process) as f64);
        assert!(!Table::of(same.iter(), 5, 5).unwrap().mixed);
        let exact = looks(1, &|x, process| x - 7.4 - if process == 4 { 0.001 } else { 0.0 });
        assert_eq!(Table::of(exact.iter(), 5, 4).unwrap().who, [0, 1, 2, 3]);
        let none = looks(1, &|_, process| if process == 4 { f64::NAN } else { 0.0 });
        assert!(!Table::of(none.iter(), 5, 4).unwrap().mixed);
    }

    #[test]
    fn a_cubic_is_followed_and_a_jump_is_a_miss() {
        let noise = |x: f64, process: usize| 0.001 * ((x * 1e4) as usize * (process + 2) % 7) as f64;
        let cubic = |x: f64, process: usize| {
            let u = x - 7.4;
            u + 0.4 * u * u - 0.8 * u * u * u + noise(x, process)
        };
        let all = looks(1, &cubic);
        let table = Table::of(all.iter(), 5, 5).unwrap();
        let fit = Fit::of(&table).unwrap();
        assert_eq!(fit.ripple, 0.0, "{:?} {:?}", fit.own, table.own);
        let found = Found::of(&fit, table.x[0], table.x[6]);
        let (root, half) = (found.root.unwrap(), (found.above.unwrap() - found.below.unwrap()) / 2.0);
        assert!((root - 7.4).abs() < 0.01 && half < 0.01, "{root} {half}");
        let jump = looks(1, &|x, process| cubic(x, process) + if x > 7.5 { 0.2 } else { 0.0 });
        let table = Table::of(jump.iter(), 5, 5).unwrap();
        assert_eq!(Fit::of(&table).unwrap().ripple, 1.0);
    }

    /// What noise bends a cubic by moves the crossing that is said to be likely less, and its interval not at all.
    #[test]
    fn the_likely_crossing_follows_bends_as_far_as_they_are_likely() {
        let roots = |all: &[Look]| {
            let table = Table::of(all.iter(), 5, 5).unwrap();
            let fit = Fit::of(&table).unwrap();
            let found = Found::of(&fit, table.x[0], table.x[6]);
            let of_cubic = Found::of(&Fit { likely: fit.coefficients.clone(), ..fit }, table.x[0], table.x[6]);
            assert_eq!((found.below, found.above), (of_cubic.below, of_cubic.above));
            let within =
                found.below.is_none_or(|b| found.root >= Some(b)) && found.above.is_none_or(|a| found.root <= Some(a));
            assert!(within || found.root.is_none());
            found.root.zip(of_cubic.root)
        };
        let mut off = [0.0; 2];
        for run in 0..300 {
            if let Some((likely, cubic)) = roots(&looks(1, &noisy(run, 0.15, 0.01))) {
                off = [off[0] + (likely - 7.4).powi(2), off[1] + (cubic - 7.4).powi(2)];
            }
        }
        assert!(off[0] < 0.75 * off[1], "{off:?}");
        // A bend that is surely there is followed, likely or not.
        let bent = |x: f64, process: usize| {
            let u = x - 7.3;
            u + 1.5 * u * u + 1e-4 * ((x * 1e4) as usize * (process + 2) % 7) as f64
        };
        let (likely, cubic) = roots(&looks(1, &bent)).unwrap();
        assert!((likely - 7.3).abs() < 0.002 && (cubic - 7.3).abs() < 0.002, "{likely} {cubic}");
    }
}
