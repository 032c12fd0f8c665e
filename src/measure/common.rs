//! What looks at different keys are off by in common.
//!
//! On a virtual machine with two processors whatever a device was asked for took longer for some hundredths of a second and less for
//! the next: of looks at different keys that lie within 20 ms of each other, the others foretell a third of a look's variance
//! (docs/measuring.md). That much is taken off each look here, so that a key's looks scatter less about what it takes. Nothing is
//! taken off where looks have nothing in common, as on a machine that is left alone, or a simulated one; nor what processes differ
//! by as a whole, nor what lasts as long as a calibration: neither can be told from what a key takes. What was read of the machine's
//! state goes first ([`super::state`]), and that knows what lasts.

use std::collections::BTreeMap;

use super::state::{self, State, States};
use crate::base::{Reading, stats};

/// Seconds from which on looks have nothing in common any more; what they have falls evenly until then.
const REACH: f64 = 0.06;

/// How much a look counts whose operands are copied, for one whose are not, and the other way around.
const OTHER_KIND: f64 = 0.5;

/// Pairs of a look from which on more of them make it no better: what they have in common is most of what it is off by.
const PAIRS: f64 = 4.0;

/// Weight of nothing in common, in looks: with few others near, little is known.
const NOTHING: f64 = 1.0;

/// Looks at a cell without which it is not known what one of them is off by.
const KNOWN: usize = 3;

/// So many standard deviations count at most: one preempted look says nothing about others.
const FAR: f64 = 3.0;

/// Standard deviation of normal numbers over the median of what they are off by.
const DEVIATION: f64 = 1.4826;

/// Standard errors from zero at which what looks have in common counts.
const SURE: f64 = 3.0;

/// Looks from which on it is judged how well others foretell them.
const LEARN: usize = 64;

/// The most that is taken off, for what is foretold with [`NOTHING`] to hold it back.
const MOST: f64 = 1.5;

/// Of whom a look is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Whose {
    /// Number of what is looked at; what it has in common with itself is what it takes.
    pub group: usize,
    /// Which of its residencies, and whether operands are copied there.
    pub residency: (usize, bool),
    /// Number of the device and residency, of all groups.
    pub kind: usize,
    /// Number of the process.
    pub process: usize,
    /// What distinguishes cases that are looked at.
    pub size: u64,
}

#[derive(Clone, Copy, Debug)]
struct Seen {
    /// Seconds, ascending.
    at: f64,
    whose: Whose,
    /// Number of the residency, of all groups.
    key: usize,
    cell: usize,
    log: f64,
    weight: f64,
    reading: Option<Reading>,
}

/// All looks at one size of one residency of a group.
#[derive(Clone, Copy, Debug, Default)]
struct Cell {
    looks: usize,
    /// Of their logarithms, times their weights.
    sum: f64,
    weight: f64,
}

/// Looks in the order in which they were made.
#[derive(Debug, Default)]
pub struct Common {
    looks: Vec<Seen>,
    cells: Vec<Cell>,
    /// By group and residency.
    key_of: BTreeMap<(usize, usize), usize>,
    /// By group, residency and size.
    cell_of: BTreeMap<(usize, usize, u64), usize>,
    states: States,
    learned: Learned,
}

/// What is known of the looks.
#[derive(Debug, Default)]
struct Learned {
    /// What the others near it are off by, look by look.
    said: Vec<f64>,
    /// What a process's looks are off by on average, without and with copies.
    processes: Vec<[f64; 2]>,
    /// What is [`FAR`].
    far: f64,
    /// What a look is off by for each that the others are; 0 if nothing for sure.
    slope: f64,
}

/// What a look is off by, and what it counts.
type Off = (f64, f64);

impl Common {
    /// One more look: when, in seconds, ln(CPU seconds / device seconds) of it, its pairs, and what was read around it. Gives its number.
    pub fn add(&mut self, at: f64, whose: Whose, log: f64, pairs: usize, reading: Option<Reading>) -> usize {
        let (group, residency) = (whose.group, whose.residency.0);
        let count = self.key_of.len();
        let key = *self.key_of.entry((group, residency)).or_insert(count);
        let count = self.cell_of.len();
        let cell = *self.cell_of.entry((group, residency, whose.size)).or_insert(count);
        let weight = if log.is_finite() { (pairs as f64 / PAIRS).min(1.0) } else { 0.0 };
        self.looks.push(Seen { at, whose, key, cell, log: if log.is_finite() { log } else { 0.0 }, weight, reading });
        self.looks.len() - 1
    }

    /// Judges all looks so far, for a machine that reads like that, by kind ([`States::learn`]). Until then nothing is taken off.
    pub fn settle(&mut self, asked: &[Option<Reading>]) {
        let of = |s: &Seen| {
            let Seen { at, whose, key, cell, log, weight, reading } = *s;
            state::Look { at, kind: whose.kind, key, cell, log, weight, reading }
        };
        let looks: Vec<state::Look> = self.looks.iter().map(of).collect();
        self.states = States::learn(&looks, asked);
        self.cells = vec![Cell::default(); self.cell_of.len()];
        for i in 0..self.looks.len() {
            let (seen, log) = (self.looks[i], self.log(i));
            let known = &mut self.cells[seen.cell];
            known.looks += usize::from(seen.weight > 0.0);
            known.sum += seen.weight * log;
            known.weight += seen.weight;
        }
        self.learned = Learned::default();
        if self.looks.len() >= LEARN {
            self.learn();
        }
    }

    /// What was read of a kind, and what its looks are stated at; `None` where too little was read.
    pub fn state(&self, kind: usize) -> Option<State> {
        self.states.of(kind)
    }

    /// The same of a group's residency, whose looks are of that kind: with the error of its own slope. `None` also for one without looks.
    pub fn state_of(&self, kind: usize, group: usize, residency: usize) -> Option<State> {
        let key = self.key_of.get(&(group, residency))?;
        self.states.of_key(kind, *key)
    }

    /// Whether looks are off by anything in common, beyond the machine's state.
    pub fn is_known(&self) -> bool {
        self.learned.slope > 0.0
    }

    /// What the look of this number is off by in common with others near it, once the machine's state is taken off: to be taken off its
    /// logarithm, too.
    pub fn off_in_common(&self, number: usize) -> f64 {
        self.learned.slope * self.learned.said.get(number).copied().unwrap_or(0.0)
    }

    /// What it is off by as far as readings say.
    pub fn off_by_state(&self, number: usize) -> f64 {
        self.states.off(number)
    }

    /// Of a look in the state that all are stated at.
    fn log(&self, number: usize) -> f64 {
        self.looks[number].log - self.states.off(number)
    }

    /// What a look differs by from all others of its cell, beyond its process.
    fn differs(&self, number: usize) -> Off {
        let seen = &self.looks[number];
        let cell = &self.cells[seen.cell];
        let others = cell.weight - seen.weight;
        if cell.looks < KNOWN || seen.weight == 0.0 || others <= 0.0 {
            return (0.0, 0.0);
        }
        let log = self.log(number);
        let mean = (cell.sum - seen.weight * log) / others;
        let of_process = self.learned.processes.get(seen.whose.process);
        let process = of_process.map_or(0.0, |kinds| kinds[usize::from(seen.whose.residency.1)]);
        let far = self.learned.far;
        ((log - mean - process).clamp(-far, far), seen.weight * others / cell.weight)
    }

    /// What others near it are off by, on average.
    fn foretold(&self, number: usize, differs: impl Fn(usize) -> Off) -> f64 {
        let this = &self.looks[number];
        let near = |i: &usize| (self.looks[*i].at - this.at).abs() < REACH;
        let (before, after) = ((0..number).rev(), number + 1..self.looks.len());
        let (mut sum, mut weight) = (0.0, NOTHING);
        for i in before.take_while(near).chain(after.take_while(near)) {
            let seen = &self.looks[i];
            if seen.whose.group == this.whose.group {
                continue;
            }
            let (off, counts) = differs(i);
            let alike = if seen.whose.residency.1 == this.whose.residency.1 { 1.0 } else { OTHER_KIND };
            let counts = counts * alike * (1.0 - (seen.at - this.at).abs() / REACH);
            sum += counts * off;
            weight += counts;
        }
        sum / weight
    }

    /// How far looks are off, and how well those near them foretell it: a line through zero, by least squares.
    fn learn(&mut self) {
        self.learned = Learned { far: f64::MAX, ..Learned::default() };
        let all = 0..self.looks.len();
        let mut processes: Vec<[Off; 2]> = Vec::new();
        let mut sizes = Vec::with_capacity(all.len());
        for i in all.clone() {
            let (off, counts) = self.differs(i);
            if counts > 0.0 {
                let Whose { process, residency: (_, copied), .. } = self.looks[i].whose;
                if processes.len() <= process {
                    processes.resize(process + 1, [(0.0, 0.0); 2]);
                }
                let (sum, weight) = &mut processes[process][usize::from(copied)];
                *sum += counts * off;
                *weight += counts;
                sizes.push(off.abs());
            }
        }
        let mean = |(sum, weight): Off| if weight > 0.0 { sum / weight } else { 0.0 };
        self.learned.processes = processes.into_iter().map(|kinds| kinds.map(mean)).collect();
        self.learned.far = if sizes.is_empty() { 0.0 } else { FAR * DEVIATION * stats::median(&sizes) };
        let differs: Vec<Off> = all.clone().map(|i| self.differs(i)).collect();
        let said: Vec<f64> = all.map(|i| self.foretold(i, |j| differs[j])).collect();
        let known = || differs.iter().zip(&said).filter(|((_, counts), _)| *counts > 0.0);
        let both: f64 = known().map(|((off, _), said)| off * said).sum();
        let [squares, foretold]: [f64; 2] =
            [known().map(|((off, _), _)| off * off).sum(), known().map(|(_, said)| said * said).sum()];
        let (slope, error) = (both / foretold, (squares / known().count() as f64 / foretold).sqrt());
        // Not a number where nothing was foretold.
        self.learned.slope = if slope > SURE * error { slope.min(MOST) } else { 0.0 };
        self.learned.said = said;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::rng::Philox;

    const KEYS: usize = 40;
    const SIZES: u64 = 5;
    const LOOKS: usize = 8000;

    /// What a machine does to looks: with others near in time, by process, and each alone.
    struct Noise {
        common: f64,
        process: f64,
        own: f64,
    }

    /// Looks at all keys in turns, 5 ms apart, in two residencies; each with what it would be without noise, and what comes of it:
    /// its logarithm, and what is taken off.
    fn looks(seed: u64, noise: &Noise) -> (Common, Vec<(Whose, f64, f64, f64)>) {
        let rng = Philox::new(seed);
        let (mut common, mut all, mut state) = (Common::default(), Vec::new(), 0.0);
        for i in 0..LOOKS {
            let n = i as u64;
            // It forgets half of itself within four looks.
            state = 0.84 * state + (1.0_f64 - 0.84 * 0.84).sqrt() * rng.normal(1, n);
            let copied = rng.u64(2, n).is_multiple_of(2);
            let [size, process] = [3, 4].map(|stream| rng.u64(stream, n));
            let whose = Whose {
                group: i % KEYS,
                residency: (usize::from(copied), copied),
                kind: usize::from(copied),
                process: (process % 5) as usize,
                size: 1000 + size % SIZES,
            };
            let truth = whose.group as f64 * 0.1 - 2.0 + whose.size as f64 * 0.01;
            let process = noise.process * (whose.process as f64 - 2.0);
            let log = truth + process + noise.common * state + noise.own * rng.normal(5, n);
            common.add(i as f64 * 0.005, whose, log, 9, None);
            all.push((whose, truth + process, log, 0.0));
        }
        common.settle(&[]);
        for (i, look) in all.iter_mut().enumerate() {
            look.3 = common.off_in_common(i);
        }
        (common, all)
    }

    fn variance(all: &[(Whose, f64, f64, f64)], of: impl Fn(&(Whose, f64, f64, f64)) -> f64) -> f64 {
        all.iter().map(|look| of(look).powi(2)).sum::<f64>() / all.len() as f64
    }

    #[test]
    fn what_looks_have_in_common_is_taken_off() {
        for seed in 0..4 {
            let (_, all) = looks(seed, &Noise { common: 0.15, process: 0.0, own: 0.1 });
            let before = variance(&all, |(_, truth, log, _)| log - truth);
            let after = variance(&all, |(_, truth, log, off)| log - off - truth);
            // Of 0.0325, 0.0225 is common, of which neighbours that scatter themselves tell most.
            assert!(after < 0.65 * before, "{seed}: {before} {after}");
        }
    }

    #[test]
    fn nothing_is_taken_off_where_nothing_is_in_common() {
        for seed in 0..20 {
            let (common, all) = looks(seed, &Noise { common: 0.0, process: 0.0, own: 0.2 });
            assert_eq!(common.learned.slope, 0.0, "{seed}");
            assert!(all.iter().all(|(.., off)| *off == 0.0));
        }
    }

    /// How far processes lie apart is an error of the crossing, and must show.
    #[test]
    fn what_processes_differ_by_stays() {
        for (seed, common) in [(0, 0.0), (1, 0.15)] {
            let (_, all) = looks(seed, &Noise { common, process: 0.1, own: 0.1 });
            for p in 0..5 {
                let of: Vec<_> = all.iter().filter(|(whose, ..)| whose.process == p).collect();
                let off = of.iter().map(|(.., off)| off).sum::<f64>() / of.len() as f64;
                assert!(off.abs() < 0.012, "{common}: process {p}, off by {}, loses {off}", 0.1 * (p as f64 - 2.0));
            }
        }
    }

    #[test]
    fn it_holds_what_no_clock_can_show_and_what_is_alone() {
        let mut common = Common::default();
        let whose = |group| Whose { group, residency: (0, false), kind: 0, process: 0, size: 8 };
        let all: Vec<usize> = [f64::NAN, f64::INFINITY, -1e300, 0.0]
            .into_iter()
            .cycle()
            .take(300)
            .enumerate()
            .map(|(i, log)| common.add(0.0, whose(i % 7), log, 3, None))
            .collect();
        common.settle(&[]);
        assert!(all.iter().all(|number| common.off_in_common(*number).is_finite()));
        let mut alone = Common::default();
        for i in 0..300 {
            alone.add(i as f64 * 1e-3, whose(1), (i % 10) as f64, 9, None);
        }
        alone.settle(&[]);
        assert_eq!(alone.off_in_common(299), 0.0, "nobody is near but itself");
    }
}
