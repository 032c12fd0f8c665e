//! Is it slower than it was? Verdicts on rows that were measured twice. Pure functions of samples.
//!
//! Processes differ more than the samples of one: the same kernel has medians a factor of two apart in eight processes. So
//! a process gives one number, the logarithm of its median, and a row's change is a difference of means of these. A few
//! processes say little about how far processes lie apart, but many rows do together: a row's variance is drawn towards
//! that of all rows as far as the rows themselves agree about it (Smyth 2004, *Linear models and empirical Bayes methods*,
//! 3 and 6.2). Among many rows some always look slower by chance; the chance that any row is called so without being so is
//! kept below [`Rule::alpha`] (Holm 1979).

use statrs::distribution::{ContinuousCDF, StudentsT};
use statrs::function::gamma::digamma;

use crate::base::stats::median;

/// What was measured of a row: seconds per call by process, and the device's clock while it ran.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Measured {
    /// Samples of each process.
    pub processes: Vec<Vec<f64>>,
    /// Mean clock in any unit, where the device tells it.
    pub clock: Option<f64>,
}

/// How strict to be.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rule {
    /// Changes of time up to this factor are none: 1.01.
    pub margin: f64,
    /// Intervals within this factor show that nothing changed that matters: 1.05.
    pub same: f64,
    /// Largest chance that any of the rows is called slower (or any faster) without being so.
    pub alpha: f64,
}

impl Default for Rule {
    fn default() -> Self {
        Rule { margin: 1.01, same: 1.05, alpha: 0.05 }
    }
}

/// The verdict on a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// The interval of the ratio lies within [`Rule::same`].
    Same,
    /// Less time, beyond the margin and beyond chance.
    Faster,
    /// More time, beyond the margin and beyond chance.
    Slower,
    /// The measurements allow both no change and one that matters.
    Ambiguous,
    /// One side has fewer than two processes with samples, or a time that is no positive number.
    NotComparable,
}

impl Change {
    /// The word in tables and records.
    pub const fn name(self) -> &'static str {
        match self {
            Change::Same => "SAME",
            Change::Faster => "FASTER",
            Change::Slower => "SLOWER",
            Change::Ambiguous => "AMBIGUOUS",
            Change::NotComparable => "NOT COMPARABLE",
        }
    }
}

/// A row's verdict with its numbers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Judged {
    /// The verdict.
    pub change: Change,
    /// New time over old time; NaN where not comparable.
    pub ratio: f64,
    /// 95 % interval of it, of this row alone.
    pub ci: [f64; 2],
    /// Chance of so much slower a row among as many rows without any change beyond the margin.
    pub p_slower: f64,
    /// The same for faster.
    pub p_faster: f64,
    /// New clock over old clock, where both are told.
    pub clock: Option<f64>,
}

/// Difference of mean log times, its processes, and the variance among the processes of either side.
#[derive(Clone, Copy)]
struct Row {
    change: f64,
    clock: Option<f64>,
    counts: [f64; 2],
    variance: f64,
}

impl Row {
    fn of(old: &Measured, new: &Measured) -> Option<Row> {
        let logs = |m: &Measured| -> Option<Vec<f64>> {
            let all: Vec<f64> = m.processes.iter().filter(|s| !s.is_empty()).map(|s| median(s).ln()).collect();
            (all.len() >= 2 && all.iter().all(|v| v.is_finite())).then_some(all)
        };
        let (a, b) = (logs(old)?, logs(new)?);
        let mean = |v: &[f64]| v.iter().sum::<f64>() / v.len() as f64;
        let squares = |v: &[f64]| v.iter().map(|x| (x - mean(v)).powi(2)).sum::<f64>();
        let clock = match (old.clock, new.clock) {
            (Some(o), Some(n)) if o > 0.0 && n > 0.0 => Some(n / o),
            _ => None,
        };
        let counts = [a.len() as f64, b.len() as f64];
        Some(Row {
            change: mean(&b) - mean(&a),
            clock,
            counts,
            variance: (squares(&a) + squares(&b)) / (counts[0] + counts[1] - 2.0),
        })
    }

    fn freedom(&self) -> f64 {
        self.counts[0] + self.counts[1] - 2.0
    }
}

/// Verdicts on rows of (old, new), in order. Where clocks are told, a row is slower only if it took more time and more
/// cycles: a chip that ran at another clock is not another program.
pub fn judge(pairs: &[(&Measured, &Measured)], rule: &Rule) -> Vec<Judged> {
    let rows: Vec<Option<Row>> = pairs.iter().map(|(old, new)| Row::of(old, new)).collect();
    let known: Vec<Row> = rows.iter().copied().flatten().collect();
    let prior = prior(&known);
    let mut judged: Vec<Judged> = rows.iter().map(|r| r.map_or(NOT_COMPARABLE, |r| alone(&r, prior, rule))).collect();
    correct(&mut judged, |j| &mut j.p_slower);
    correct(&mut judged, |j| &mut j.p_faster);
    for j in &mut judged {
        if j.change == Change::NotComparable {
            continue;
        }
        j.change = match j {
            _ if j.p_slower <= rule.alpha => Change::Slower,
            _ if j.p_faster <= rule.alpha => Change::Faster,
            _ if j.ci[0] >= 1.0 / rule.same && j.ci[1] <= rule.same => Change::Same,
            _ => Change::Ambiguous,
        };
    }
    judged
}

const NOT_COMPARABLE: Judged = Judged {
    change: Change::NotComparable,
    ratio: f64::NAN,
    ci: [f64::NAN; 2],
    p_slower: 1.0,
    p_faster: 1.0,
    clock: None,
};

/// A row by itself: its interval, and the chances before the correction for the number of rows.
fn alone(row: &Row, prior: Prior, rule: &Rule) -> Judged {
    let (variance, freedom) = prior.applied(row.variance, row.freedom());
    let error = (variance * (1.0 / row.counts[0] + 1.0 / row.counts[1])).sqrt();
    let t = StudentsT::new(0.0, 1.0, freedom.min(1e6));
    // The chance of a difference beyond `by` and more, if there is none beyond the margin.
    let chance = |by: f64| match &t {
        Ok(t) if error > 0.0 => t.sf((by - rule.margin.ln()) / error),
        _ => f64::from(u8::from(by <= rule.margin.ln())),
    };
    let half = t.as_ref().map_or(f64::INFINITY, |t| t.inverse_cdf(0.975) * error);
    // Cycles are time times clock.
    let cycles = row.change + row.clock.map_or(0.0, f64::ln);
    Judged {
        change: Change::Ambiguous,
        ratio: row.change.exp(),
        ci: [(row.change - half).exp(), (row.change + half).exp()],
        p_slower: chance(row.change.min(cycles)),
        p_faster: chance(-row.change.max(cycles)),
        clock: row.clock,
    }
}

/// Holm's step-down correction of one kind of chance over all comparable rows.
fn correct(rows: &mut [Judged], of: impl Fn(&mut Judged) -> &mut f64) {
    let mut order: Vec<usize> = (0..rows.len()).filter(|i| rows[*i].change != Change::NotComparable).collect();
    order.sort_by(|a, b| (*of(&mut rows[*a])).total_cmp(of(&mut rows[*b])));
    let mut floor: f64 = 0.0;
    for (rank, i) in order.iter().enumerate() {
        let p = of(&mut rows[*i]);
        floor = floor.max((*p * (order.len() - rank) as f64).min(1.0));
        *p = floor;
    }
}

/// What all rows say about the variance among processes: its size, and as how many processes that counts.
#[derive(Clone, Copy, Debug)]
struct Prior {
    variance: f64,
    freedom: f64,
}

impl Prior {
    /// A row's own variance, joined with it.
    fn applied(&self, variance: f64, freedom: f64) -> (f64, f64) {
        match self.freedom {
            f if f == f64::INFINITY => (self.variance, f),
            f => ((f * self.variance + freedom * variance) / (f + freedom), f + freedom),
        }
    }
}

/// Smyth's estimate by the moments of log variances. A row alone has only itself.
fn prior(rows: &[Row]) -> Prior {
    let with: Vec<(f64, f64)> =
        rows.iter().filter(|r| r.variance > 0.0).map(|r| (r.variance.ln(), r.freedom() / 2.0)).collect();
    let n = with.len() as f64;
    if with.len() < 2 {
        return Prior { variance: 0.0, freedom: 0.0 };
    }
    let e: Vec<f64> = with.iter().map(|(z, half)| z - digamma(*half) + half.ln()).collect();
    let mean = e.iter().sum::<f64>() / n;
    let spread = e.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / (n - 1.0);
    let excess = spread - with.iter().map(|(_, half)| trigamma(*half)).sum::<f64>() / n;
    if excess <= 0.0 {
        // The rows differ by no more than chance: all have one variance.
        return Prior { variance: mean.exp(), freedom: f64::INFINITY };
    }
    let half = inverse_trigamma(excess);
    Prior { variance: (mean + digamma(half) - half.ln()).exp(), freedom: 2.0 * half }
}

/// Second derivative of ln Γ for x > 0: its recurrence up to 20, then the asymptotic series (Abramowitz and Stegun, 6.4.6
/// and 6.4.12), whose first term left out is below 1e-14 there.
fn trigamma(x: f64) -> f64 {
    let (mut x, mut sum) = (x, 0.0);
    while x < 20.0 {
        sum += 1.0 / (x * x);
        x += 1.0;
    }
    let y = 1.0 / (x * x);
    sum + 1.0 / x + y / 2.0 + y / x * (1.0 / 6.0 - y * (1.0 / 30.0 - y * (1.0 / 42.0 - y / 30.0)))
}

/// Where trigamma is `y`, by bisection of its logarithm: it falls from infinity to 0.
fn inverse_trigamma(y: f64) -> f64 {
    let (mut low, mut high) = (-20.0f64, 20.0f64);
    for _ in 0..100 {
        let mid = (low + high) / 2.0;
        if trigamma(mid.exp()) > y { low = mid } else { high = mid }
    }
    low.exp()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::rng::Philox;

    /// `processes` of `samples` each at time `at`: offsets of processes and noise of samples, both lognormal.
    fn measured(rng: &Philox, stream: u64, at: f64, [processes, samples]: [u64; 2], offset: f64, noise: f64) -> Measured {
        let of = |p: u64| {
            let shift = offset * rng.normal(stream, 1_000_000 + p);
            (0..samples).map(|i| at * (shift + noise * rng.normal(stream, p * samples + i)).exp()).collect()
        };
        Measured { processes: (0..processes).map(of).collect(), clock: None }
    }

    /// Rows of a run against a run before it; row i has the time of the run before it times `factor(i)`.
    fn run(seed: u64, rows: u64, shape: [u64; 2], offset: f64, noise: f64, factor: impl Fn(u64) -> f64) -> Vec<Judged> {
        let rng = Philox::new(seed);
        let sides: Vec<(Measured, Measured)> = (0..rows)
            .map(|r| {
                let at = 1e-6 * 1.3f64.powi(r as i32);
                let side = |s, f| measured(&rng, 2 * r + s, at * f, shape, offset, noise);
                (side(0, 1.0), side(1, factor(r)))
            })
            .collect();
        let pairs: Vec<_> = sides.iter().map(|(a, b)| (a, b)).collect();
        judge(&pairs, &Rule::default())
    }

    fn count(judged: &[Judged], change: Change) -> usize {
        judged.iter().filter(|j| j.change == change).count()
    }

    #[test]
    fn special_functions_have_their_known_values() {
        // Abramowitz and Stegun, table 6.1: trigamma(1) = pi^2/6, trigamma(1/2) = pi^2/2.
        let sixth = std::f64::consts::PI.powi(2) / 6.0;
        assert!((trigamma(1.0) - sixth).abs() < 1e-13 && (trigamma(0.5) - 3.0 * sixth).abs() < 1e-12);
        for x in [0.01, 0.5, 3.0, 77.0] {
            assert!((inverse_trigamma(trigamma(x)) / x - 1.0).abs() < 1e-9, "{x}");
        }
    }

    /// Of 200 runs of 50 rows without any change at most 5 % call any row slower, whatever the processes' offsets.
    #[test]
    fn runs_without_a_change_call_nothing_slower() {
        for (offset, noise) in [(0.0, 0.03), (0.1, 0.03), (0.3, 0.2)] {
            let wrong = |change| {
                (0..200).filter(|r| count(&run(*r, 50, [3, 20], offset, noise, |_| 1.0), change) > 0).count()
            };
            assert!(wrong(Change::Slower) <= 10, "{offset} {noise}: {} of 200", wrong(Change::Slower));
            assert!(wrong(Change::Faster) <= 10, "{offset} {noise}: {} of 200", wrong(Change::Faster));
        }
    }

    /// A slow-down of 5 % at 3 % of noise is found in at least 95 of 100 runs with 60 samples a row.
    #[test]
    fn a_slow_down_of_five_percent_is_found() {
        let slow = |r: u64| if r == 7 { 1.05 } else { 1.0 };
        let found = (0..200).filter(|s| run(*s, 50, [3, 20], 0.0, 0.03, slow)[7].change == Change::Slower).count();
        assert!(found >= 190, "{found} of 200");
        let fast = |r: u64| if r == 7 { 1.0 / 1.05 } else { 1.0 };
        let found = (0..200).filter(|s| run(*s, 50, [3, 20], 0.0, 0.03, fast)[7].change == Change::Faster).count();
        assert!(found >= 190, "{found} of 200");
    }

    #[test]
    fn noise_is_neither_the_same_nor_slower() {
        let quiet = run(1, 50, [3, 20], 0.0, 0.01, |_| 1.0);
        assert!(count(&quiet, Change::Same) >= 48, "{}", count(&quiet, Change::Same));
        let loud = run(1, 50, [3, 20], 0.3, 0.03, |_| 1.05);
        assert!(count(&loud, Change::Ambiguous) >= 45, "{}", count(&loud, Change::Ambiguous));
    }

    /// The interval of a single row holds the true ratio in 95 of 100 runs, with three processes a side.
    #[test]
    fn intervals_hold_the_truth() {
        let holds = |j: &Judged| j.ci[0] <= 1.2 && 1.2 <= j.ci[1];
        let all: Vec<Judged> = (0..100).flat_map(|s| run(s, 20, [3, 20], 0.2, 0.05, |_| 1.2)).collect();
        let share = all.iter().filter(|j| holds(j)).count() as f64 / all.len() as f64;
        assert!((0.93..=0.97).contains(&share), "{share}");
        let single: Vec<Judged> = (0..1000).flat_map(|s| run(s, 1, [3, 20], 0.2, 0.05, |_| 1.2)).collect();
        let share = single.iter().filter(|j| holds(j)).count() as f64 / 1000.0;
        assert!((0.93..=0.97).contains(&share), "{share}");
    }

    /// A clock 12 % lower with as many cycles is no regression; one that also takes more cycles is.
    #[test]
    fn a_lower_clock_is_not_slower() {
        let rng = Philox::new(3);
        let sides: Vec<(Measured, Measured)> = (0..50u64)
            .map(|r| {
                let more = if r == 5 { 1.2 } else { 1.0 };
                let mut old = measured(&rng, 2 * r, 1e-3, [3, 20], 0.0, 0.02);
                let mut new = measured(&rng, 2 * r + 1, 1e-3 / 0.88 * more, [3, 20], 0.0, 0.02);
                (old.clock, new.clock) = (Some(1980.0), Some(0.88 * 1980.0));
                (old, new)
            })
            .collect();
        let pairs: Vec<_> = sides.iter().map(|(a, b)| (a, b)).collect();
        let judged = judge(&pairs, &Rule::default());
        let slower: Vec<usize> = (0..50).filter(|i| judged[*i].change == Change::Slower).collect();
        assert_eq!(slower, [5]);
        assert!((judged[0].clock.unwrap() - 0.88).abs() < 1e-12);
    }

    #[test]
    fn what_cannot_be_compared_is_not() {
        let good = Measured { processes: vec![vec![1.0, 1.1], vec![1.05], vec![0.99]], clock: None };
        for bad in [vec![], vec![vec![1.0; 50]], vec![vec![1.0], vec![]], vec![vec![0.0], vec![1.0]], vec![vec![f64::NAN], vec![1.0]]] {
            let bad = Measured { processes: bad, clock: None };
            let judged = judge(&[(&good, &bad), (&bad, &good), (&good, &good)], &Rule::default());
            assert_eq!(judged[0].change, Change::NotComparable);
            assert_eq!(judged[1].change, Change::NotComparable);
            assert_ne!(judged[2].change, Change::NotComparable);
        }
        // Without any spread a difference is certain.
        let flat = |t: f64| Measured { processes: vec![vec![t]; 3], clock: None };
        let judged = judge(&[(&flat(1.0), &flat(1.02)), (&flat(1.0), &flat(1.0))], &Rule::default());
        assert_eq!([judged[0].change, judged[1].change], [Change::Slower, Change::Same]);
        assert!(judge(&[], &Rule::default()).is_empty());
    }
}
