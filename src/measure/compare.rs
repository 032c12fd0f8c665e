//! Is it slower than it was? Verdicts on rows that were measured twice. Pure functions of samples.
//!
//! Processes differ more than the samples of one: the same kernel has medians a factor of two apart in eight processes. So
//! a process gives one number, the logarithm of its median, and a row's change is a difference of means of these. What a
//! process does to all its rows alike is known from as few numbers as there are processes. Of what it does to single rows
//! a few processes say little, but many rows do together: a row's variance is drawn towards that of all rows as far as the
//! rows themselves agree about it (Smyth 2004, *Linear models and empirical Bayes methods*, 3 and 6.2). Among many rows
//! some always look slower by chance; the chance that any row is called so without being so is kept below [`Rule::alpha`]
//! (Holm 1979).
//!
//! A machine that has become slower is not slower code. Where speeds of the machine itself are told (the device's clock,
//! [`super::reference`]), a row is slower only if it is so in seconds and in seconds times each of these speeds.

use std::collections::BTreeMap;

use statrs::distribution::{ContinuousCDF, StudentsT};
use statrs::function::gamma::digamma;

use crate::base::stats::median;

/// What was measured of a row: seconds per call by process, and how fast the machine itself was meanwhile.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Measured {
    /// Samples of each process.
    pub processes: Vec<Vec<f64>>,
    /// Speeds of the machine while each process measured, in units of their own; none where they are not told. Kinds that
    /// not every process of both sides has are not used.
    pub speeds: Vec<Vec<f64>>,
}

/// How strict to be.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rule {
    /// Changes of time up to this factor are none: 1.01.
    pub margin: f64,
    /// Intervals within this factor show that nothing changed that matters: 1.05.
    pub same: f64,
    /// Largest chance that any of the rows is called slower or faster without being so, half of it for either.
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
    /// New speed of the machine over its old one, where it is told; of several kinds the one that changed most.
    pub machine: Option<f64>,
}

/// Two measurements of one row.
#[derive(Clone, Copy, Debug)]
pub struct Pair<'a> {
    /// The earlier one.
    pub old: &'a Measured,
    /// The later one.
    pub new: &'a Measured,
    /// Rows of one group were measured by the same processes on the same device.
    pub group: &'a str,
}

/// Logarithms of one number for each process of a row, old and new.
struct Row<'a> {
    group: &'a str,
    logs: [Vec<f64>; 2],
    /// What processes do to all rows of the group alike, and to this one besides.
    common: Variance,
    own: Variance,
}

/// A row's processes as logarithms of their medians and speeds: of each process its median, then its speeds.
fn processes(m: &Measured) -> Option<Vec<Vec<f64>>> {
    let of = |(i, samples): (usize, &Vec<f64>)| {
        let speeds = m.speeds.get(i).map_or(&[][..], Vec::as_slice);
        std::iter::once(median(samples).ln()).chain(speeds.iter().map(|v| v.ln())).collect::<Vec<f64>>()
    };
    let all: Vec<Vec<f64>> = m.processes.iter().enumerate().filter(|(_, s)| !s.is_empty()).map(of).collect();
    (all.len() >= 2 && all.iter().all(|p| p[0].is_finite())).then_some(all)
}

/// A variance and as how many numbers beyond the first it counts.
#[derive(Clone, Copy, Debug)]
struct Variance {
    size: f64,
    freedom: f64,
}

fn mean(v: &[f64]) -> f64 {
    v.iter().sum::<f64>() / v.len() as f64
}

impl<'a> Row<'a> {
    /// In seconds (kind 0), or times the speed of a kind from 1 on. `None` where one of the numbers is not known.
    fn of(group: &'a str, sides: [&[Vec<f64>]; 2], kind: usize) -> Option<Row<'a>> {
        let log = |p: &Vec<f64>| Some(p[0] + if kind > 0 { *p.get(kind)? } else { 0.0 }).filter(|v| v.is_finite());
        let [old, new] = sides.map(|side| side.iter().map(log).collect::<Option<Vec<f64>>>());
        let unknown = Variance { size: 0.0, freedom: 0.0 };
        Some(Row { group, logs: [old?, new?], common: unknown, own: unknown })
    }

    /// Logarithm of new over old.
    fn change(&self) -> f64 {
        mean(&self.logs[1]) - mean(&self.logs[0])
    }

    fn counts(&self) -> [f64; 2] {
        [self.logs[0].len() as f64, self.logs[1].len() as f64]
    }

    fn freedom(&self) -> f64 {
        self.counts()[0] + self.counts()[1] - 2.0
    }

    /// By how much each process lies off the mean of its side, old ones first.
    fn offsets(&self) -> Vec<f64> {
        self.logs.iter().flat_map(|side| side.iter().map(|v| v - mean(side))).collect()
    }
}

/// Splits how far processes lie apart into what they do to all rows alike (one is slower as a whole: only as many numbers as
/// there are processes tell how far, however many rows there are) and the rest. `rows` have one group and as many processes.
fn split(rows: &mut [&mut Row<'_>]) {
    let n = rows.len() as f64;
    let offsets: Vec<Vec<f64>> = rows.iter().map(|r| r.offsets()).collect();
    let Some(first) = offsets.first() else { return };
    let common: Vec<f64> = (0..first.len()).map(|p| offsets.iter().map(|o| o[p]).sum::<f64>() / n).collect();
    for (row, offsets) in rows.iter_mut().zip(&offsets) {
        let freedom = row.freedom();
        let squares = |of: &dyn Fn(usize) -> f64| (0..common.len()).map(|p| of(p).powi(2)).sum::<f64>();
        row.common = Variance { size: squares(&|p| common[p]) / freedom, freedom };
        row.own = match rows_left(n) {
            Some(left) => Variance { size: squares(&|p| offsets[p] - common[p]) / (freedom * left), freedom },
            None => Variance { size: 0.0, freedom },
        };
    }
}

/// Share of a row's own variance that is left once the mean of all rows is taken away.
fn rows_left(n: f64) -> Option<f64> {
    (n > 1.0).then(|| 1.0 - 1.0 / n)
}

/// Verdicts on rows, in order.
pub fn judge(pairs: &[Pair<'_>], rule: &Rule) -> Vec<Judged> {
    let sides: Vec<_> = pairs.iter().map(|p| Some([processes(p.old)?, processes(p.new)?])).collect();
    let kinds = sides.iter().flatten().flatten().flatten().map(Vec::len).max().unwrap_or(1);
    let of_kind = |kind: usize| -> Vec<Option<Row<'_>>> {
        let sides = sides.iter().map(|s| s.as_ref());
        pairs.iter().zip(sides).map(|(p, s)| s.and_then(|[old, new]| Row::of(p.group, [old, new], kind))).collect()
    };
    let mut in_seconds = of_kind(0);
    let mut judged = by_itself(&mut in_seconds, rule);
    for kind in 1..kinds {
        let mut rows = of_kind(kind);
        let by_speed = by_itself(&mut rows, rule);
        for ((j, k), (seconds, row)) in judged.iter_mut().zip(by_speed).zip(in_seconds.iter().zip(&rows)) {
            let (Some(seconds), Some(row)) = (seconds, row) else { continue };
            // Slower by every measure: the largest of the chances is one for all of them (Berger 1982).
            j.p_slower = j.p_slower.max(k.p_slower);
            j.p_faster = j.p_faster.max(k.p_faster);
            let speed = row.change() - seconds.change();
            if j.machine.is_none_or(|m| m.ln().abs() < speed.abs()) {
                j.machine = Some(speed.exp());
            }
        }
    }
    let slower = correct(&judged, |j| j.p_slower);
    let faster = correct(&judged, |j| j.p_faster);
    for (j, (slower, faster)) in judged.iter_mut().zip(slower.into_iter().zip(faster)) {
        (j.p_slower, j.p_faster) = (slower, faster);
        if j.change == Change::NotComparable {
            continue;
        }
        j.change = match j {
            _ if j.p_slower <= rule.alpha / 2.0 => Change::Slower,
            _ if j.p_faster <= rule.alpha / 2.0 => Change::Faster,
            _ if j.ci[0] >= 1.0 / rule.same && j.ci[1] <= rule.same => Change::Same,
            _ => Change::Ambiguous,
        };
    }
    judged
}

/// Rows by one measure: their intervals, and the chances before the correction for their number.
fn by_itself(rows: &mut [Option<Row<'_>>], rule: &Rule) -> Vec<Judged> {
    let mut groups: BTreeMap<(&str, usize, usize), Vec<&mut Row<'_>>> = BTreeMap::new();
    for row in rows.iter_mut().flatten() {
        groups.entry((row.group, row.logs[0].len(), row.logs[1].len())).or_default().push(row);
    }
    for group in groups.values_mut() {
        split(group);
    }
    let own: Vec<Variance> = rows.iter().flatten().map(|r| r.own).collect();
    let prior = prior(&own);
    rows.iter().map(|r| r.as_ref().map_or(NOT_COMPARABLE, |r| alone(r, prior, rule))).collect()
}

const NOT_COMPARABLE: Judged = Judged {
    change: Change::NotComparable,
    ratio: f64::NAN,
    ci: [f64::NAN; 2],
    p_slower: 1.0,
    p_faster: 1.0,
    machine: None,
};

/// A row by itself: its interval, and the chances before the correction for the number of rows.
fn alone(row: &Row<'_>, prior: Variance, rule: &Rule) -> Judged {
    let own = prior.joined(row.own);
    let counts = row.counts();
    let error = ((row.common.size + own.size) * (1.0 / counts[0] + 1.0 / counts[1])).sqrt();
    let t = StudentsT::new(0.0, 1.0, freedom_of_sum(row.common, own).min(1e6));
    let change = row.change();
    // The chance of a difference beyond `by` and more, if there is none beyond the margin.
    let chance = |by: f64| match &t {
        Ok(t) if error > 0.0 => t.sf((by - rule.margin.ln()) / error),
        _ => f64::from(u8::from(by <= rule.margin.ln())),
    };
    let half = if error > 0.0 { t.as_ref().map_or(f64::INFINITY, |t| t.inverse_cdf(0.975) * error) } else { 0.0 };
    Judged {
        change: Change::Ambiguous,
        ratio: change.exp(),
        ci: [(change - half).exp(), (change + half).exp()],
        p_slower: chance(change),
        p_faster: chance(-change),
        machine: None,
    }
}

/// Freedom of the sum of two independent variances (Welch 1947, Satterthwaite 1946).
fn freedom_of_sum(a: Variance, b: Variance) -> f64 {
    let of = |v: Variance| if v.freedom > 0.0 { v.size * v.size / v.freedom } else { 0.0 };
    let sum = a.size + b.size;
    match of(a) + of(b) {
        0.0 => f64::INFINITY,
        d => sum * sum / d,
    }
}

/// Holm's step-down correction of one kind of chance over all comparable rows; the others keep theirs.
fn correct(rows: &[Judged], of: impl Fn(&Judged) -> f64) -> Vec<f64> {
    let mut out: Vec<f64> = rows.iter().map(&of).collect();
    let mut order: Vec<usize> = (0..rows.len()).filter(|i| rows[*i].change != Change::NotComparable).collect();
    order.sort_by(|a, b| of(&rows[*a]).total_cmp(&of(&rows[*b])));
    let mut floor: f64 = 0.0;
    for (rank, i) in order.iter().enumerate() {
        floor = floor.max((of(&rows[*i]) * (order.len() - rank) as f64).min(1.0));
        out[*i] = floor;
    }
    out
}

impl Variance {
    /// A row's own variance, joined with what all rows say.
    fn joined(&self, row: Variance) -> Variance {
        match self.freedom {
            f if f == f64::INFINITY => *self,
            f if f + row.freedom == 0.0 => row,
            f => {
                let freedom = f + row.freedom;
                Variance { size: (f * self.size + row.freedom * row.size) / freedom, freedom }
            }
        }
    }
}

/// What all rows say about the variance among processes, by Smyth's moments of log variances. A row alone has only itself.
fn prior(rows: &[Variance]) -> Variance {
    let with: Vec<(f64, f64)> = rows.iter().filter(|v| v.size > 0.0).map(|v| (v.size.ln(), v.freedom / 2.0)).collect();
    let n = with.len() as f64;
    if with.len() < 2 {
        return Variance { size: 0.0, freedom: 0.0 };
    }
    let e: Vec<f64> = with.iter().map(|(z, half)| z - digamma(*half) + half.ln()).collect();
    let spread = e.iter().map(|v| (v - mean(&e)).powi(2)).sum::<f64>() / (n - 1.0);
    let excess = spread - with.iter().map(|(_, half)| trigamma(*half)).sum::<f64>() / n;
    if excess <= 0.0 {
        // The rows differ by no more than chance: all have one variance.
        return Variance { size: mean(&e).exp(), freedom: f64::INFINITY };
    }
    let half = inverse_trigamma(excess);
    Variance { size: (mean(&e) + digamma(half) - half.ln()).exp(), freedom: 2.0 * half }
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
    fn measured(
        rng: &Philox,
        stream: u64,
        at: f64,
        [processes, samples]: [u64; 2],
        offset: f64,
        noise: f64,
    ) -> Measured {
        let of = |p: u64| {
            let shift = offset * rng.normal(stream, 1_000_000 + p);
            (0..samples).map(|i| at * (shift + noise * rng.normal(stream, p * samples + i)).exp()).collect()
        };
        Measured { processes: (0..processes).map(of).collect(), speeds: Vec::new() }
    }

    /// Rows of a run against a run before it; row i has the time of the run before it times `factor(i)`. `shared`: offsets
    /// of a process that all its rows have, each by its own part of it.
    struct Runs {
        rows: u64,
        shape: [u64; 2],
        offset: f64,
        noise: f64,
        shared: (f64, fn(u64) -> f64),
    }

    /// Three processes of 20 samples, with 3 % of noise.
    const QUIET: Runs = Runs { rows: 50, shape: [3, 20], offset: 0.0, noise: 0.03, shared: (0.0, |_| 1.0) };

    impl Runs {
        fn judged(&self, seed: u64, factor: impl Fn(u64) -> f64) -> Vec<Judged> {
            let rng = Philox::new(seed);
            let side = |r: u64, s: u64, f: f64| {
                let at = 1e-6 * 1.3f64.powi(r as i32);
                let mut all = measured(&rng, 2 * r + s, at * f, self.shape, self.offset, self.noise);
                for (p, samples) in all.processes.iter_mut().enumerate() {
                    let shift = self.shared.0 * self.shared.1(r) * rng.normal(9_000_000 + s, p as u64);
                    samples.iter_mut().for_each(|v| *v *= shift.exp());
                }
                all
            };
            let sides: Vec<_> = (0..self.rows).map(|r| (side(r, 0, 1.0), side(r, 1, factor(r)))).collect();
            judge(&paired(&sides), &Rule::default())
        }
    }

    fn paired(sides: &[(Measured, Measured)]) -> Vec<Pair<'_>> {
        sides.iter().map(|(old, new)| Pair { old, new, group: "sim:0" }).collect()
    }

    /// Rows with their own offsets and noise.
    fn run(seed: u64, rows: u64, shape: [u64; 2], offset: f64, noise: f64, factor: impl Fn(u64) -> f64) -> Vec<Judged> {
        Runs { rows, shape, offset, noise, ..QUIET }.judged(seed, factor)
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

    /// Of 200 runs of 50 rows without any change at most 5 % call any row slower, whatever processes do to their rows one by
    /// one or to all of them.
    #[test]
    fn runs_without_a_change_call_nothing_slower() {
        let alike: fn(u64) -> f64 = |_| 1.0;
        let by_row: fn(u64) -> f64 = |r| (r % 5) as f64 / 2.0;
        let none = (0.0, alike);
        for (offset, noise, shared) in [
            (0.0, 0.03, none),
            (0.1, 0.03, none),
            (0.3, 0.2, none),
            (0.0, 0.03, (0.3, alike)),
            (0.0, 0.03, (0.01, alike)),
            (0.02, 0.03, (0.3, by_row)),
        ] {
            let runs = Runs { offset, noise, shared, ..QUIET };
            let judged: Vec<Vec<Judged>> = (0..200).map(|r| runs.judged(r, |_| 1.0)).collect();
            for wrong in [Change::Slower, Change::Faster] {
                let n = judged.iter().filter(|j| count(j, wrong) > 0).count();
                assert!(n <= 10, "{offset} {noise} {}: {n} of 200 {}", shared.0, wrong.name());
            }
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
                (old.speeds, new.speeds) = (vec![vec![1980.0]; 3], vec![vec![0.88 * 1980.0]; 3]);
                (old, new)
            })
            .collect();
        let judged = judge(&paired(&sides), &Rule::default());
        let slower: Vec<usize> = (0..50).filter(|i| judged[*i].change == Change::Slower).collect();
        assert_eq!(slower, [5]);
        assert!((judged[0].machine.unwrap() - 0.88).abs() < 1e-12);
    }

    /// Runs of a machine whose speed at arithmetic and at memory wander from process to process, by 10 % each; every row
    /// depends on one of them. Row 5 is `slow` times as slow in the second run.
    fn drifting(seed: u64, slow: f64, told: bool) -> Vec<Judged> {
        let rng = Philox::new(seed);
        let side = |r: u64, s: u64, f: f64| {
            let mut all = measured(&rng, 2 * r + s, 1e-3 * f, [3, 20], 0.0, 0.02);
            for (p, samples) in all.processes.iter_mut().enumerate() {
                // What both runs' processes have in common is the run's own part.
                let speed = |kind: u64| {
                    let of = |stream| 0.1 * rng.normal(stream, kind);
                    (of(7_000_000 + s) + 0.3 * of(8_000_000 + 10 * s + p as u64)).exp()
                };
                let speeds = [speed(0), speed(1)];
                samples.iter_mut().for_each(|v| *v /= speeds[(r % 2) as usize]);
                if told {
                    let error = |kind: u64| (0.003 * rng.normal(6_000_000 + s, 1_000 * r + 10 * p as u64 + kind)).exp();
                    all.speeds.push(vec![speeds[0] * error(0), speeds[1] * error(1)]);
                }
            }
            all
        };
        let sides: Vec<_> = (0..20).map(|r| (side(r, 0, 1.0), side(r, 1, if r == 5 { slow } else { 1.0 }))).collect();
        judge(&paired(&sides), &Rule::default())
    }

    /// A machine that has become slower makes no row slower where its speed is told; slower code on it is found.
    #[test]
    fn a_drifting_machine_is_not_slower_code() {
        let any = |told| {
            let wrong = |s: &u64| drifting(*s, 1.0, told).iter().any(|j| j.change == Change::Slower);
            (0..200).filter(wrong).count()
        };
        assert!(any(true) <= 10, "{} of 200", any(true));
        assert!(any(false) > 60, "the drift would be seen otherwise: {} of 200", any(false));
        let found = (0..200).filter(|s| drifting(*s, 1.5, true)[5].change == Change::Slower).count();
        assert!(found >= 180, "{found} of 200");
    }

    #[test]
    fn what_cannot_be_compared_is_not() {
        let good = Measured { processes: vec![vec![1.0, 1.1], vec![1.05], vec![0.99]], speeds: Vec::new() };
        for bad in [
            vec![],
            vec![vec![1.0; 50]],
            vec![vec![1.0], vec![]],
            vec![vec![0.0], vec![1.0]],
            vec![vec![f64::NAN], vec![1.0]],
        ] {
            let bad = Measured { processes: bad, speeds: Vec::new() };
            let judged = judge(
                &paired(&[(good.clone(), bad.clone()), (bad.clone(), good.clone()), (good.clone(), good.clone())]),
                &Rule::default(),
            );
            assert_eq!(judged[0].change, Change::NotComparable);
            assert_eq!(judged[1].change, Change::NotComparable);
            assert_ne!(judged[2].change, Change::NotComparable);
        }
        // Without any spread a difference is certain.
        let flat = |t: f64| Measured { processes: vec![vec![t]; 3], speeds: Vec::new() };
        let judged = judge(&paired(&[(flat(1.0), flat(1.02)), (flat(1.0), flat(1.0))]), &Rule::default());
        assert_eq!([judged[0].change, judged[1].change], [Change::Slower, Change::Same]);
        assert!(judge(&[], &Rule::default()).is_empty());
    }
}
