//! What state a machine was in when it was looked at, as far as it can be read.
//!
//! Thresholds of two calibrations of one machine differ as all of a kind move together: for seconds or an hour the CPU's calls are
//! slower, or a device's, or only those that copy operands. Right before and after a look two things that are always the same are
//! timed: the search that says what disturbs the processor ([`super::calm`]), and a short call of the device with its operands where the
//! look has them. How much a look goes by them is learned in the run, and thresholds are stated for a machine that reads as the
//! remembered one does (docs/measuring.md).

use std::collections::BTreeMap;

use crate::base::{FAR_OFF, Reading, stats};

/// Seconds over which readings are averaged: what lasts longer is read from many of them, and so without their own noise, which makes
/// a look seem to go by a single one less than it does (regression dilution).
const SMOOTH: f64 = 1.0;

/// Looks of a kind without which it is not known what they go by.
const LEAST: usize = 300;

/// Looks at a cell without which it is not known what one of them is off by.
const KNOWN: usize = 3;

/// So many standard deviations of looks count at most: one preempted look says nothing about others.
const FAR: f64 = 4.0;

/// Logarithms by which a reading differs at most, for what looks go by: a factor of two.
const FURTHEST: f64 = 0.7;

/// Standard deviation of normal numbers over the median of what they are off by.
const DEVIATION: f64 = 1.4826;

/// Blocks of [`SMOOTH`] that count as one observation of what readings leave unexplained.
const LASTS: u64 = 4;

/// Standard error of ln(CPU seconds / device seconds) at the state asked for, from which on the run's own is taken.
const SURE: f64 = 0.02;

/// A look, for what its state did to it.
#[derive(Clone, Copy, Debug)]
pub struct Look {
    /// Seconds, ascending.
    pub at: f64,
    /// Which device and residency.
    pub kind: usize,
    /// Number of what goes by the CPU's reading in one way: an op's cases in a residency. Of one kind.
    pub key: usize,
    /// Number of what has one ratio where the state is one: a case in a residency. Of one key.
    pub cell: usize,
    /// ln(CPU seconds / device seconds).
    pub log: f64,
    /// What it counts.
    pub weight: f64,
    /// What was read.
    pub reading: Option<Reading>,
}

/// What is known of a kind's state.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct State {
    /// Looks that were read.
    pub looks: usize,
    /// What was read on average.
    pub read: Reading,
    /// What looks are stated at.
    pub stated: Reading,
    /// Standard error of what all looks of the kind are off by from there: of ln(CPU seconds / device seconds).
    pub error: f64,
}

/// What states did to looks.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct States {
    /// To be taken off the logarithm of each look; empty if nothing is.
    offs: Vec<f64>,
    /// By kind; `None` where too little was read.
    kinds: Vec<Option<State>>,
    /// By key: standard error of what its looks are off by beyond those of its kind.
    keys: Vec<f64>,
}

impl States {
    /// What these looks are off by from those of a machine that reads like `asked`, by kind. Where that is not known, or would lie further
    /// than can be said with a standard error of 0.02, they are stated at what they read on average.
    pub fn learn(looks: &[Look], asked: &[Option<Reading>]) -> States {
        let kinds = looks.iter().map(|l| l.kind + 1).max().unwrap_or(0);
        let keys = looks.iter().map(|l| l.key + 1).max().unwrap_or(0);
        let mut states = States { offs: vec![0.0; looks.len()], kinds: vec![None; kinds], keys: vec![0.0; keys] };
        for kind in 0..kinds {
            let of = |l: &&Look| {
                l.kind == kind && l.weight > 0.0 && l.log.is_finite() && l.reading.is_some_and(Reading::is_sound)
            };
            let mine: Vec<Look> = looks.iter().filter(of).copied().collect();
            let Some(line) = Line::of(&mine) else { continue };
            let read = line.read();
            let wanted = asked.get(kind).copied().flatten().filter(|r| r.is_sound() && r.change(read) <= FAR_OFF);
            let stated = wanted.filter(|to| line.error(*to) <= SURE).unwrap_or(read);
            let error = if stated == read { 0.0 } else { line.error(stated) };
            let offs = line.offs(&mine, stated);
            let numbers = (0..looks.len()).filter(|i| of(&&looks[*i]));
            numbers.zip(offs).for_each(|(i, off)| states.offs[i] = off);
            let [from, _] = line.from(line.mean, stated);
            mine.iter().for_each(|l| states.keys[l.key] = line.own(l.key).error * from.abs());
            states.kinds[kind] = Some(State { looks: mine.len(), read, stated, error });
        }
        states
    }

    /// What the look of this number is off by: to be taken off its logarithm.
    pub fn off(&self, number: usize) -> f64 {
        self.offs.get(number).copied().unwrap_or(0.0)
    }

    /// What is known of a kind.
    pub fn of(&self, kind: usize) -> Option<State> {
        self.kinds.get(kind).copied().flatten()
    }

    /// The same of a key of that kind, whose error is larger: it also holds what is not known of the key's own slope.
    pub fn of_key(&self, kind: usize, key: usize) -> Option<State> {
        let own = self.keys.get(key).copied().unwrap_or(0.0);
        self.of(kind).map(|state| State { error: state.error.hypot(own), ..state })
    }
}

/// How a kind's looks go by what is read, within cells.
struct Line {
    /// By look: its readings on average of [`SMOOTH`].
    smooth: Vec<[f64; 2]>,
    /// Of these, as much as looks count.
    mean: [f64; 2],
    /// By readings on average, and by what a single one differs from that.
    slopes: [[f64; 2]; 2],
    /// Variances and covariances of the former.
    spread: [[f64; 2]; 2],
    /// What keys go by the CPU's reading beyond that.
    own: BTreeMap<usize, Own>,
    /// The same of a key of which too little is known: as far as keys differ.
    unknown: Own,
}

/// How much more a key's looks go by the CPU's reading than all do, and the standard error of it.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Own {
    slope: f64,
    error: f64,
}

impl Line {
    /// `None` where too little is known.
    fn of(looks: &[Look]) -> Option<Line> {
        if looks.len() < LEAST {
            return None;
        }
        let readings: Vec<[f64; 2]> = looks.iter().filter_map(|l| Some(l.reading?.logs())).collect();
        let smooth = smoothed(looks, &readings);
        let local = smooth.iter().zip(&readings).map(|(s, r)| [0, 1].map(|a| bounded(r[a] - s[a])));
        let terms: Vec<[f64; 4]> = smooth.iter().zip(local).map(|(s, l)| [s[0], s[1], l[0], l[1]]).collect();
        let off: Vec<Off> = within_cells(looks, &terms);
        if off.len() < LEAST {
            return None;
        }
        // By blocks, of what looks are off by as well as of readings: both are then averages over the same time.
        let begin = looks[0].at;
        let mut blocks: BTreeMap<u64, Block> = BTreeMap::new();
        for o in &off {
            let block = blocks.entry(((o.at - begin) / SMOOTH) as u64).or_default();
            block.weight += o.weight;
            block.log += o.weight * o.log;
            (0..2).for_each(|a| block.read[a] += o.weight * (o.terms[a] + o.terms[a + 2]));
        }
        let means = || blocks.values().map(|b| (b.weight, b.log / b.weight, b.read.map(|r| r / b.weight)));
        let (by_average, inverse) = slopes(means())?;
        // What is not read lasts, too: blocks near each other are one observation (Liang & Zeger 1986).
        let mut left: BTreeMap<u64, [f64; 2]> = BTreeMap::new();
        for (number, (weight, log, read)) in blocks.keys().zip(means()) {
            let by = weight * (log - times(by_average, read));
            let sums = left.entry(number / LASTS).or_default();
            (0..2).for_each(|a| sums[a] += by * read[a]);
        }
        let count = left.len() as f64;
        let mut spread = [[0.0; 2]; 2];
        for sums in left.values() {
            let moved = inverse.map(|row| times(row, *sums));
            (0..2).for_each(|a| (0..2).for_each(|b| spread[a][b] += moved[a] * moved[b] * count / (count - 1.0)));
        }
        let rest = |o: &Off| (o.weight, o.log - times(by_average, [o.terms[0], o.terms[1]]), [o.terms[2], o.terms[3]]);
        let (by_single, _) = slopes(off.iter().map(rest))?;
        let (own, differ) = own(off.iter().map(|o| {
            let (weight, left, single) = rest(o);
            (o.key, weight, left - times(by_single, single), o.terms[0] + o.terms[2])
        }));
        let weight: f64 = looks.iter().map(|l| l.weight).sum();
        let mean = [0, 1].map(|a| smooth.iter().zip(looks).map(|(s, l)| l.weight * s[a]).sum::<f64>() / weight);
        let unknown = Own { slope: 0.0, error: differ.sqrt() };
        Some(Line { smooth, mean, slopes: [by_average, by_single], spread, own, unknown })
    }

    /// How a key goes by the CPU's reading beyond what all do.
    fn own(&self, key: usize) -> Own {
        self.own.get(&key).copied().unwrap_or(self.unknown)
    }

    fn read(&self) -> Reading {
        let [cpu_s, device_s] = self.mean.map(f64::exp);
        Reading { cpu_s, device_s }
    }

    /// Standard error of what looks are off by from that state, on average. Not a number where there was one block.
    fn error(&self, to: Reading) -> f64 {
        let from = self.from(self.mean, to);
        times(from, self.spread.map(|row| times(row, from))).sqrt()
    }

    fn from(&self, read: [f64; 2], to: Reading) -> [f64; 2] {
        let to = to.logs();
        [read[0] - to[0], read[1] - to[1]]
    }

    fn offs(&self, looks: &[Look], stated: Reading) -> Vec<f64> {
        let off = |(smooth, look): (&[f64; 2], &Look)| {
            let read = look.reading.map_or(*smooth, Reading::logs);
            let single = [0, 1].map(|a| bounded(read[a] - smooth[a]));
            let from = self.from(*smooth, stated);
            let own = self.own(look.key).slope * (from[0] + single[0]);
            times(self.slopes[0], from) + times(self.slopes[1], single) + own
        };
        self.smooth.iter().zip(looks).map(off).collect()
    }
}

/// What is averaged over [`SMOOTH`].
#[derive(Clone, Copy, Debug, Default)]
struct Block {
    weight: f64,
    log: f64,
    read: [f64; 2],
}

/// What a look differs by from all of its cell: its logarithm, its readings on average, and what it differs by from these.
struct Off {
    at: f64,
    key: usize,
    weight: f64,
    log: f64,
    terms: [f64; 4],
}

fn times(a: [f64; 2], b: [f64; 2]) -> f64 {
    a[0] * b[0] + a[1] * b[1]
}

fn bounded(off: f64) -> f64 {
    off.clamp(-FURTHEST, FURTHEST)
}

/// Least squares through zero of (weight, value, terms), and the inverse of the terms' squares; `None` where terms do not differ.
fn slopes(all: impl Iterator<Item = (f64, f64, [f64; 2])>) -> Option<([f64; 2], [[f64; 2]; 2])> {
    let (mut squares, mut both) = (vec![vec![0.0; 2]; 2], [0.0; 2]);
    for (weight, value, terms) in all {
        for a in 0..2 {
            both[a] += weight * terms[a] * value;
            (0..2).for_each(|b| squares[a][b] += weight * terms[a] * terms[b]);
        }
    }
    let inverse = stats::inverse(squares)?;
    let inverse = [[inverse[0][0], inverse[0][1]], [inverse[1][0], inverse[1][1]]];
    Some((inverse.map(|row| times(row, both)), inverse))
}

/// By key, of (key, weight, value, term): the slope of a line through zero, drawn towards zero as far as keys do not differ by more than
/// chance (DerSimonian & Laird 1986, about a mean that is known: what all keys go by is taken off before). And the variance by which they do.
fn own(all: impl Iterator<Item = (usize, f64, f64, f64)>) -> (BTreeMap<usize, Own>, f64) {
    /// Weighted sums: of weights, squares of values, products and squares of terms.
    #[derive(Default)]
    struct Sums([f64; 4]);
    let mut keys: BTreeMap<usize, Sums> = BTreeMap::new();
    for (key, weight, value, term) in all {
        let Sums(sums) = keys.entry(key).or_default();
        let more = [1.0, value * value, term * value, term * term];
        sums.iter_mut().zip(more).for_each(|(sum, more)| *sum += weight * more);
    }
    // Each key by itself: its slope, and how many that is worth, one over its variance.
    let alone = |(key, Sums([weight, values, both, terms])): (usize, Sums)| {
        let worth = terms * weight / values;
        (worth.is_normal() && worth > 0.0).then_some((key, both / terms, worth))
    };
    let alone: Vec<(usize, f64, f64)> = keys.into_iter().filter_map(alone).collect();
    let worth: f64 = alone.iter().map(|(.., worth)| worth).sum();
    let beyond: f64 = alone.iter().map(|(_, slope, worth)| worth * slope * slope - 1.0).sum();
    let differ = if beyond > 0.0 { beyond / worth } else { 0.0 };
    let drawn = |(key, slope, worth): (usize, f64, f64)| {
        let share = differ * worth / (differ * worth + 1.0);
        (key, Own { slope: share * slope, error: (share / worth).sqrt() })
    };
    (alone.into_iter().map(drawn).collect(), differ)
}

/// Averages over [`SMOOTH`] to either side, nearer readings count more.
fn smoothed(looks: &[Look], readings: &[[f64; 2]]) -> Vec<[f64; 2]> {
    let (mut first, mut all) = (0, Vec::with_capacity(looks.len()));
    for look in looks {
        while looks[first].at < look.at - SMOOTH {
            first += 1;
        }
        let (mut sum, mut weight) = ([0.0; 2], 0.0);
        for (other, reading) in looks[first..].iter().zip(&readings[first..]) {
            let counts = 1.0 - (other.at - look.at).abs() / SMOOTH;
            if other.at > look.at && counts <= 0.0 {
                break;
            }
            let counts = counts.max(0.0) + f64::MIN_POSITIVE;
            (0..2).for_each(|a| sum[a] += counts * reading[a]);
            weight += counts;
        }
        all.push(sum.map(|s| s / weight));
    }
    all
}

/// What looks differ by from all of their cell, of cells that have enough of them to tell.
fn within_cells(looks: &[Look], terms: &[[f64; 4]]) -> Vec<Off> {
    #[derive(Clone, Default)]
    struct Cell {
        looks: usize,
        weight: f64,
        log: f64,
        terms: [f64; 4],
    }
    let mut cells = vec![Cell::default(); looks.iter().map(|l| l.cell + 1).max().unwrap_or(0)];
    for (look, x) in looks.iter().zip(terms) {
        let cell = &mut cells[look.cell];
        cell.looks += 1;
        cell.weight += look.weight;
        cell.log += look.weight * look.log;
        (0..4).for_each(|a| cell.terms[a] += look.weight * x[a]);
    }
    let differs = |(look, x): (&Look, &[f64; 4])| {
        let cell = &cells[look.cell];
        let terms = std::array::from_fn(|a| x[a] - cell.terms[a] / cell.weight);
        let log = look.log - cell.log / cell.weight;
        (cell.looks >= KNOWN).then_some(Off { at: look.at, key: look.key, weight: look.weight, log, terms })
    };
    let mut off: Vec<Off> = looks.iter().zip(terms).filter_map(differs).collect();
    let sizes: Vec<f64> = off.iter().map(|o| o.log.abs()).collect();
    let far = if sizes.is_empty() { 0.0 } else { FAR * DEVIATION * stats::median(&sizes) };
    off.iter_mut().for_each(|o| o.log = o.log.clamp(-far, far));
    off
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::rng::Philox;

    const LOOKS: usize = 6000;
    const CELLS: usize = 60;
    const KEYS: usize = 12;

    /// A machine: how slow its CPU and its device are now, as logarithms, 20 ms after the last time; for seconds and longer.
    struct Machine {
        rng: Philox,
        n: u64,
        slow: [f64; 2],
        /// What they come back to.
        usual: [f64; 2],
    }

    impl Machine {
        fn new(seed: u64, usual: [f64; 2]) -> Self {
            Machine { rng: Philox::new(seed), n: 0, slow: usual, usual }
        }

        fn step(&mut self) -> [f64; 2] {
            self.n += 1;
            for a in 0..2 {
                let keep: f64 = 0.98;
                let pull = self.usual[a] + keep * (self.slow[a] - self.usual[a]);
                self.slow[a] = pull + 0.1 * (1.0 - keep * keep).sqrt() * self.rng.normal(a as u64, self.n);
            }
            self.slow
        }

        fn noise(&self, stream: u64) -> f64 {
            self.rng.normal(10 + stream, self.n)
        }
    }

    /// Looks of a run: half of what slows the CPU down slows its calls down, and all of what slows the device down its calls. Each with
    /// what it would be on a machine that nothing slows down.
    fn run(seed: u64, usual: [f64; 2], read: bool) -> (Vec<Look>, Vec<f64>) {
        run_of(seed, usual, read, 0.0)
    }

    /// The same where so much more of it slows the last key down, and so much less the first.
    fn run_of(seed: u64, usual: [f64; 2], read: bool, differ: f64) -> (Vec<Look>, Vec<f64>) {
        let mut machine = Machine::new(seed, usual);
        let (mut looks, mut truth) = (Vec::new(), Vec::new());
        for i in 0..LOOKS {
            let [cpu, device] = machine.step();
            let cell = machine.rng.u64(5, i as u64) as usize % CELLS;
            let own = 0.03 * cell as f64 - 0.9;
            let goes_by = 0.5 + differ * ((cell % KEYS) as f64 / (KEYS - 1) as f64 * 2.0 - 1.0);
            // A single reading scatters by as much as the machine moves.
            let reading = Reading {
                cpu_s: 1e-5 * (cpu + 0.02 * machine.noise(0)).exp(),
                device_s: 4e-5 * (device + 0.1 * machine.noise(1)).exp(),
            };
            truth.push(own);
            looks.push(Look {
                at: 0.02 * i as f64,
                kind: 0,
                key: cell % KEYS,
                cell,
                log: own + goes_by * cpu - device + 0.1 * machine.noise(2),
                weight: 1.0,
                reading: read.then_some(reading),
            });
        }
        (looks, truth)
    }

    /// What looks lie above the truth on average, without what states did.
    fn above(looks: &[Look], truth: &[f64], states: &States) -> f64 {
        let sum: f64 = looks.iter().zip(truth).enumerate().map(|(i, (l, t))| l.log - states.off(i) - t).sum();
        sum / looks.len() as f64
    }

    #[test]
    fn looks_are_stated_for_the_machine_that_is_asked_for() {
        let asked = [Some(Reading { cpu_s: 1e-5, device_s: 4e-5 })];
        for seed in 0..20 {
            let rng = Philox::new(seed);
            let usual = [0.3 * (rng.unit(0, 0) - 0.5), 0.3 * (rng.unit(1, 0) - 0.5)];
            let (looks, truth) = run(seed, usual, true);
            let states = States::learn(&looks, &asked);
            let state = states.of(0).unwrap();
            assert_eq!(state.stated, asked[0].unwrap(), "{seed}");
            let (before, after) = (above(&looks, &truth, &States::default()), above(&looks, &truth, &states));
            assert!(
                after.abs() < 4.0 * state.error.max(0.005),
                "{seed}: {after} +- {} instead of {before}",
                state.error
            );
            assert!(after.abs() < 0.25 * before.abs() + 0.012, "{seed}: {after} instead of {before}");
            // At its own state it is where it is, and looks scatter less.
            let own = States::learn(&looks, &[]);
            let state = own.of(0).unwrap();
            assert!(state.stated == state.read && state.error == 0.0);
            assert!((above(&looks, &truth, &own) - before).abs() < 1e-3, "{seed}");
            let scatter = |states: &States| {
                let mean = above(&looks, &truth, states);
                let off = |(i, (l, t)): (usize, (&Look, &f64))| (l.log - states.off(i) - t - mean).powi(2);
                looks.iter().zip(&truth).enumerate().map(off).sum::<f64>() / LOOKS as f64
            };
            let (before, after) = (scatter(&States::default()), scatter(&own));
            assert!(after < 0.75 * before, "{seed}: {after} instead of {before}");
        }
    }

    /// A vectorised kernel goes less by what slows a search down than one that is not.
    #[test]
    fn each_key_goes_by_the_cpu_in_its_own_way() {
        let asked = [Some(Reading { cpu_s: 1e-5, device_s: 4e-5 })];
        let off_by_key = |looks: &[Look], truth: &[f64], states: &States| -> Vec<f64> {
            let of = |key: usize| {
                let off = |i: usize| looks[i].log - states.off(i) - truth[i];
                let mine: Vec<f64> = (0..looks.len()).filter(|i| looks[*i].key == key).map(off).collect();
                mine.iter().sum::<f64>() / mine.len() as f64
            };
            (0..KEYS).map(of).collect()
        };
        let (mut within, mut all) = (0, 0);
        for seed in 0..20 {
            let (mut looks, truth) = run_of(seed, [0.2, 0.0], true, 0.4);
            // And one of which two looks tell nothing: it may differ as much as any.
            looks.extend([0, 1].map(|i| Look {
                at: 0.02 * (LOOKS + i) as f64,
                key: KEYS,
                cell: CELLS,
                ..looks[LOOKS - 1]
            }));
            let states = States::learn(&looks, &asked);
            looks.truncate(LOOKS);
            let kind = states.of(0).unwrap();
            let errors: Vec<f64> = (0..=KEYS).map(|key| states.of_key(0, key).unwrap().error).collect();
            assert!(errors[..KEYS].iter().all(|e| *e < errors[KEYS]) && errors[KEYS] > 0.03, "{seed}: {errors:?}");
            assert_eq!(kind.stated, asked[0].unwrap(), "{seed}");
            let off = off_by_key(&looks, &truth, &states);
            // Were they all alike, the first and the last one would be off by 0.08 either way.
            let spread = (off.iter().map(|v| v * v).sum::<f64>() / KEYS as f64).sqrt();
            assert!(spread < 0.025, "{seed}: {off:?}");
            let known = |(key, off): (usize, &f64)| off.abs() < 2.0 * states.of_key(0, key).unwrap().error.max(0.005);
            within += off.iter().enumerate().filter(|o| known(*o)).count();
            all += KEYS;
            assert!((0..KEYS).all(|key| states.of_key(0, key).unwrap().error >= kind.error));
            // Where they are alike, no key goes its own way by more than chance.
            let (looks, truth) = run(seed, [0.2, 0.0], true);
            let states = States::learn(&looks, &asked);
            let off = off_by_key(&looks, &truth, &states);
            assert!(off.iter().all(|v| v.abs() < 0.03), "{seed}: {off:?}");
        }
        assert!(within * 100 >= all * 88, "{within} of {all}");
    }

    /// The standard error that is stated is one, but for what little noise is left in a second's readings: that makes what they do seem
    /// less than it is by 3 % here, which is as much as the error.
    #[test]
    fn what_is_not_known_of_a_state_is_stated() {
        let asked = [Some(Reading { cpu_s: 1e-5, device_s: 4e-5 })];
        let mut off: Vec<(f64, f64)> = Vec::new();
        for seed in 0..100 {
            let (looks, truth) = run(1000 + seed, [0.15, -0.15], true);
            let states = States::learn(&looks, &asked);
            let state = states.of(0).unwrap();
            if state.stated != state.read {
                off.push((above(&looks, &truth, &states), state.error));
            }
        }
        assert!(off.len() >= 90, "{}", off.len());
        let within = off.iter().filter(|(off, error)| off.abs() < 3.0 * error).count();
        assert!(within * 100 >= off.len() * 92, "{within} of {}: {off:?}", off.len());
        let errors: f64 = off.iter().map(|(_, error)| error).sum::<f64>() / off.len() as f64;
        let mean = off.iter().map(|(off, _)| off).sum::<f64>() / off.len() as f64;
        assert!(errors < 0.01 && mean.abs() < 0.01, "{mean} +- {errors}");
    }

    #[test]
    fn nothing_is_stated_for_another_machine_or_where_too_little_is_known() {
        let (looks, _) = run(1, [0.0; 2], true);
        let own = States::learn(&looks, &[]).of(0).unwrap();
        let with =
            |cpu: f64, device: f64| Some(Reading { cpu_s: cpu * own.read.cpu_s, device_s: device * own.read.device_s });
        for far in [with(1.4, 1.0), with(1.0, 0.7), with(f64::NAN, 1.0), with(-1.0, 1.0), None] {
            let state = States::learn(&looks, &[far]).of(0).unwrap();
            assert_eq!((state.stated, state.error), (own.read, 0.0), "{far:?}");
        }
        // Nobody read, too few looks, each cell once.
        assert_eq!(States::learn(&run(1, [0.0; 2], false).0, &[]).of(0), None);
        assert_eq!(States::learn(&looks[..LEAST - 1], &[]).of(0), None);
        let alone: Vec<Look> = looks.iter().enumerate().map(|(cell, l)| Look { cell, ..*l }).collect();
        assert_eq!(States::learn(&alone, &[]).of(0), None);
        assert_eq!(States::learn(&[], &[]), States::default());
    }

    /// What a state did to looks is not known of a machine whose state never changed in a run: then it is stated as it was.
    #[test]
    fn a_machine_that_stays_as_it_is_is_not_stated_for_another_state() {
        let rng = Philox::new(7);
        let look = |i: usize| {
            let [cpu, device, own] = [0, 1, 2].map(|stream| 0.01 * rng.normal(stream, i as u64));
            let reading = Some(Reading { cpu_s: 1e-5 * cpu.exp(), device_s: 4e-5 * device.exp() });
            Look { at: 0.02 * i as f64, kind: 0, key: i % KEYS, cell: i % CELLS, log: own, weight: 1.0, reading }
        };
        let looks: Vec<Look> = (0..LOOKS).map(look).collect();
        let states = States::learn(&looks, &[Some(Reading { cpu_s: 1.25e-5, device_s: 4e-5 })]);
        let state = states.of(0).unwrap();
        assert_eq!(state.stated, state.read, "{state:?}");
        assert!((0..LOOKS).all(|i| states.off(i).abs() < 0.02));
    }

    #[test]
    fn what_no_clock_can_show_is_held() {
        let (mut looks, _) = run(3, [0.0; 2], true);
        for (i, look) in looks.iter_mut().enumerate().step_by(7) {
            let bad = [f64::NAN, f64::INFINITY, 0.0, -1.0, 1e300, 1e-300][i / 7 % 6];
            look.reading = Some(Reading { cpu_s: bad, device_s: if i % 2 == 0 { bad } else { 4e-5 } });
        }
        looks.iter_mut().step_by(11).for_each(|l| l.log = f64::NAN);
        let states = States::learn(&looks, &[Some(Reading { cpu_s: f64::MIN_POSITIVE, device_s: f64::MAX })]);
        assert!((0..LOOKS).all(|i| states.off(i).is_finite()));
    }
}
