//! Finds the form that one side's times have.
//!
//! Linear terms come from non-negative least squares of relative errors, where waves, caches and the like begin from a search;
//! each of them must earn its place (Schwarz 1978, *Estimating the dimension of a model*). What is then left along the size of
//! the work is smoothed by a penalised spline (Eilers and Marx 1996), as stiff as leaving out one shape at a time says. Pure
//! functions; nothing here knows how any device is simulated.

use super::curve::{Extent, Shape, Side};
use super::least::{TERMS, non_negative};
use crate::base::stats::inverse;

/// Knots of the correction.
const KNOTS: usize = 12;

/// Errors below this are not worth a term.
const FLOOR: f64 = 0.003;

/// Forms that are looked at closely.
const TOP: usize = 3;

/// Places at which a team is tried at first, at most; then those beside the best of them.
const SPLITS: usize = 24;

/// Extents nearer to each other than this are one.
const APART: f64 = 1.0005;

/// Scores take what a form leaves to be independent from shape to shape. Tiles, waves and clocks that fall make it less so: a difference
/// of two scores counts as so many times smaller.
const ALIKE: f64 = 2.0;

/// Forms of less weight than this are not asked.
const LIGHT: f64 = 1e-3;

/// Fewest shapes on either side of where something begins.
const FEW: usize = 3;

/// What a side is fitted to.
pub(super) struct Data<'a> {
    pub(super) shapes: &'a [Shape],
    /// Logarithms of seconds.
    pub(super) logs: &'a [f64],
    /// 1 over seconds.
    pub(super) rates: &'a [f64],
    pub(super) weights: &'a [f64],
    pub(super) copies: bool,
    /// Whether parts of a wave may take as long as whole ones.
    pub(super) queued: bool,
}

/// A fitted side and its score; lower is better.
#[derive(Clone, Debug)]
struct Scored {
    side: Side,
    score: f64,
}

impl Data<'_> {
    /// One form of each kind, with its begins of waves, caches and so on.
    fn starts(&self) -> Vec<Scored> {
        let mut all = Vec::new();
        for serial in [false, true] {
            for extent in [Extent::Larger, Extent::Output] {
                // A team found too early may stand in the way of better forms.
                for teams in if self.queued { &[false][..] } else { &[false, true] } {
                    let plain = self.scored(Side { serial, extent, ..Side::default() });
                    // Waves that are tried first and alone may stand in the way, too.
                    let joint = self.queued.then(|| self.joint(plain.clone()));
                    for mut found in std::iter::once(plain).chain(joint) {
                        self.search(&mut found, *teams);
                        all.push(found);
                    }
                }
            }
        }
        all
    }

    /// The forms that explain the times best.
    fn best(&self) -> Vec<Scored> {
        let mut all = self.starts();
        all.sort_by(|a, b| a.score.total_cmp(&b.score));
        all.truncate(TOP);
        for found in &mut all {
            // Once more: what was found first may lie elsewhere beside what was found last.
            let teams = found.side.teamed;
            self.search(found, teams);
            self.refine(found);
        }
        all
    }

    /// The one that explains them best.
    pub(super) fn side(&self) -> Side {
        let Some(mut best) = self.best().into_iter().min_by(|a, b| a.score.total_cmp(&b.score)) else {
            return Side::default();
        };
        self.centre(&mut best.side);
        self.correct(&mut best.side);
        best.side
    }

    /// All that explain them about as well, with their weights: other forms, and waves and caches that begin elsewhere.
    pub(super) fn committee(&self) -> Vec<(Side, f64)> {
        let mut members: Vec<Scored> = Vec::new();
        for found in self.best() {
            let score = self.scored(found.side.clone()).score.min(found.score);
            // As far as the times allow.
            let moved = |mut side: Side, times: &dyn Fn(&mut Side)| {
                let mut last = None;
                for _ in 0..24 {
                    times(&mut side);
                    let moved = self.scored(side.clone());
                    if moved.score > score + 2.0 * ALIKE {
                        break;
                    }
                    last = Some(moved);
                }
                last
            };
            for by in [1.04, 1.0 / 1.04] {
                let mut side = found.side.clone();
                // A team anywhere between the two shapes that tell.
                let mut told = None;
                if side.teamed {
                    side.wave = self.beside(&side, by > 1.0);
                    told = Some(self.scored(side.clone()));
                }
                if side.wave > 0.0 {
                    members.extend(moved(side, &|s| s.wave *= by).or(told));
                }
                if found.side.cache > 0.0 {
                    members.extend(moved(found.side.clone(), &|s| s.cache *= by));
                }
            }
            members.push(Scored { score, ..found });
        }
        let least = members.iter().map(|m| m.score).fold(f64::INFINITY, f64::min);
        let weighted = |mut m: Scored| {
            let weight = (-(m.score - least) / (2.0 * ALIKE)).exp();
            (weight >= LIGHT).then(|| {
                self.correct(&mut m.side);
                (m.side, weight)
            })
        };
        members.into_iter().filter_map(weighted).collect()
    }

    /// Waves together with workers that share a result: where a result takes many operations, either alone explains little.
    fn joint(&self, mut found: Scored) -> Scored {
        let extent = found.side.extent;
        let (least, most) = self.range(|s| s.extent(extent));
        let (low, high) = self.range(|s| s.depth());
        for (wave, deep) in steps(least, most, 8).flat_map(|wave| steps(low, high, 4).map(move |deep| (wave, deep))) {
            for hinged in [false, true] {
                self.try_on(&mut found, |s| (s.wave, s.deep, s.hinged, s.stepped) = (wave, deep, hinged, true));
            }
        }
        found
    }

    /// Where waves, caches and so on begin, one after the other; `teams`: of the CPU's threads, too.
    fn search(&self, found: &mut Scored, teams: bool) {
        let extent = found.side.extent;
        // Any number above 0: it is fitted.
        self.try_on(found, |s| s.outer_s = 1.0);
        let (least, most) = self.range(|s| s.extent(extent));
        let (low, high) = self.range(|s| s.bytes());
        if self.queued {
            for wave in steps(least, most, 28) {
                self.try_on(found, |s| s.wave = wave);
                self.try_on(found, |s| (s.wave, s.stepped) = (wave, true));
            }
        } else {
            for wave in steps(least, most, 10) {
                for workers in [2.0, 6.0, 20.0, 60.0] {
                    self.try_on(found, |s| (s.wave, s.wave_most, s.teamed) = (wave, workers, false));
                }
            }
            let splits = if teams { self.splits(extent) } else { Vec::new() };
            let every = splits.len().div_ceil(SPLITS).max(1);
            for wave in splits.iter().copied().step_by(every) {
                for workers in [4.0, 14.0, 48.0] {
                    let team = (wave, workers, workers / 1.5, 0.0, true);
                    self.try_on(found, |s| (s.wave, s.wave_most, s.fill_most, s.fill, s.teamed) = team);
                }
            }
            // And those between it and the next ones that were tried.
            if found.side.teamed {
                let at = splits.partition_point(|wave| *wave < found.side.wave);
                for wave in &splits[(at + 1).saturating_sub(every)..splits.len().min(at + every)] {
                    self.try_on(found, |s| s.wave = *wave);
                }
            }
        }
        for cache in steps(low, high, 10) {
            self.try_on(found, |s| s.cache = cache);
        }
        for fill in steps(least, most, 8) {
            for limit in [2.0, 8.0, 0.0] {
                if !found.side.teamed {
                    self.try_on(found, |s| (s.fill, s.fill_most) = (fill, limit));
                }
            }
        }
        if found.side.wave > 0.0 && self.queued {
            let (low, high) = self.range(|s| s.depth());
            for deep in steps(low, high, 8) {
                for hinged in [false, true] {
                    self.try_on(found, |s| (s.deep, s.hinged) = (deep, hinged));
                }
            }
        }
        for tile in [8, 16, 32, 64] {
            self.try_on(found, |s| s.tile = tile);
        }
        self.try_on(found, |s| s.outer_s = 1.0);
        self.try_on(found, |s| s.outer_s = 0.0);
    }

    /// Extents between those of neighbouring shapes.
    fn splits(&self, extent: Extent) -> Vec<f64> {
        let mut all: Vec<f64> = self.shapes.iter().map(|s| s.extent(extent)).collect();
        all.sort_by(f64::total_cmp);
        let apart = |w: &[f64]| (w[1] > w[0] * APART).then(|| (w[0] * w[1]).sqrt());
        all.windows(2).filter_map(apart).collect()
    }

    /// Where a team begins at the latest, or at the earliest, if the same shapes have one.
    fn beside(&self, side: &Side, latest: bool) -> f64 {
        let all = self.shapes.iter().map(|s| s.extent(side.extent));
        if latest {
            let next = all.filter(|e| *e >= side.wave).fold(f64::INFINITY, f64::min);
            if next.is_finite() { next } else { side.wave }
        } else {
            let last = all.filter(|e| *e < side.wave).fold(0.0, f64::max);
            if last > 0.0 { last.next_up() } else { side.wave }
        }
    }

    /// A team begins at the one power of two between the two shapes that tell, which is what programs have for limits, or else in
    /// the middle.
    fn centre(&self, side: &mut Side) {
        if side.teamed {
            side.wave = round([false, true].map(|latest| self.beside(side, latest)));
        }
    }

    fn range(&self, of: impl Fn(&Shape) -> f64) -> (f64, f64) {
        let values = self.shapes.iter().map(of);
        values.fold((f64::INFINITY, 0.0), |(low, high), v| (low.min(v), high.max(v)))
    }

    /// Keeps a change if it scores better.
    fn try_on(&self, best: &mut Scored, change: impl Fn(&mut Side)) -> bool {
        let mut side = best.side.clone();
        change(&mut side);
        let found = self.scored(side);
        let better = found.score < best.score;
        if better {
            *best = found;
        }
        better
    }

    /// Begins of waves, caches and fills between the steps of the search.
    fn refine(&self, best: &mut Scored) {
        // A team begins between two neighbouring shapes. The search tried only some of these gaps, and the steps below may jump
        // over a narrow one, or stop before it where the shapes between explain less.
        let gaps = if best.side.teamed { self.splits(best.side.extent) } else { Vec::new() };
        for wave in gaps {
            self.try_on(best, |s| s.wave = wave);
        }
        for step in [1.5, 1.25, 1.12, 1.25, 1.12, 1.06, 1.03, 1.015, 1.007] {
            for by in [step, 1.0 / step] {
                self.try_on(best, |s| s.wave *= by);
                self.try_on(best, |s| s.cache *= by);
                self.try_on(best, |s| s.fill *= by);
                self.try_on(best, |s| s.deep *= by);
                self.try_on(best, |s| s.wave_most = (s.wave_most * by).max(s.wave_most.min(1.0)));
                self.try_on(best, |s| s.fill_most = (s.fill_most * by).max(s.fill_most.min(1.0)));
            }
        }
        // Relative errors are nearly, but not quite, errors of the logarithm.
        let mut error = self.error(&best.side);
        for step in [1.1, 1.03, 1.01, 1.003] {
            for _ in 0..4 {
                for term in 0..TERMS {
                    for by in [step, 1.0 / step] {
                        let mut side = best.side.clone();
                        *coefficient(&mut side, term) *= by;
                        let e = self.error(&side);
                        if e < error {
                            (error, best.side) = (e, side);
                        }
                    }
                }
            }
        }
    }

    /// Weighted mean square of what is left of the logarithms.
    fn error(&self, side: &Side) -> f64 {
        let mut sum = 0.0;
        for ((s, log), w) in self.shapes.iter().zip(self.logs).zip(self.weights) {
            sum += w * (side.terms(s).max(f64::MIN_POSITIVE).ln() - log).powi(2);
        }
        sum / self.weights.iter().sum::<f64>()
    }

    /// Finds the linear terms for given begins of waves, caches and so on.
    fn scored(&self, mut side: Side) -> Scored {
        // One or two shapes tell nothing of what begins there.
        let told = |of: &dyn Fn(&Shape) -> f64, at: f64| {
            let beyond = self.shapes.iter().filter(|s| of(s) > at).count();
            beyond >= FEW && beyond + FEW <= self.shapes.len()
        };
        if side.cache > 0.0 && !told(&|s| s.bytes(), side.cache * 1.02)
            || side.teamed && !told(&|s| s.extent(side.extent), side.wave)
        {
            return Scored { side, score: f64::INFINITY };
        }
        let n = self.shapes.len() as f64;
        let options = [
            side.wave > 0.0,
            side.wave_most > 0.0,
            side.stepped || side.teamed,
            side.cache > 0.0,
            side.fill > 0.0 || side.teamed,
            side.fill_most > 0.0,
            side.tile > 1,
            side.deep > 0.0,
            side.outer_s > 0.0,
        ];
        let extra: f64 =
            options.iter().map(|on| f64::from(u8::from(*on))).sum::<f64>() + f64::from(u8::from(side.cache > 0.0));
        let score = |e: f64, side: &Side| {
            n * (e + FLOOR * FLOOR).ln() + (extra + f64::from(u8::from(side.result_s > 0.0))) * n.ln()
        };
        let outer = side.outer_s > 0.0;
        // One second per operation and byte: what the terms multiply.
        let unit = Side { flop_s: 1.0, byte_s: 1.0, miss_s: 0.0, result_s: 0.0, ..side.clone() };
        let missing = Side { flop_s: 0.0, byte_s: 0.0, miss_s: 1.0, result_s: 1.0, ..side.clone() };
        let columns: Vec<[f64; TERMS]> = self
            .shapes
            .iter()
            .map(|s| {
                let [arithmetic, traffic] = unit.parts(s);
                let copied = |bytes: f64| if self.copies { bytes } else { 0.0 };
                let [read, written] = s.copies();
                let team = if side.team(s) { 1.0 } else { 0.0 };
                let m = missing.parts(s);
                let each = if outer { s.outer() } else { 0.0 };
                [1.0, copied(read), copied(written), arithmetic, traffic, m[1], team, m[0], each]
            })
            .collect();
        // With and without what a result costs. All terms; then, where arithmetic hides traffic or the other way round, only the longer of the two.
        let mut hidden = vec![[false, false]; self.shapes.len()];
        let mut best: Option<(Side, f64)> = None;
        for results in if self.queued && side.wave > 0.0 { &[false, true][..] } else { &[false] } {
            for _ in 0..if side.serial { 1 } else { 5 } {
                let found = self.solve(&columns, &hidden, *results);
                for (term, v) in found.into_iter().enumerate() {
                    *coefficient(&mut side, term) = v;
                }
                let e = self.error(&side);
                let e = score(e, &side);
                if best.as_ref().is_none_or(|(_, least)| e < *least) {
                    best = Some((side.clone(), e));
                }
                let longer = |s: &Shape| {
                    let [arithmetic, traffic] = side.parts(s);
                    [arithmetic < traffic, arithmetic >= traffic]
                };
                let next: Vec<[bool; 2]> = self.shapes.iter().map(longer).collect();
                if next == hidden {
                    break;
                }
                hidden = next;
            }
        }
        let (side, score) = best.unwrap_or((side, f64::INFINITY));
        Scored { side, score }
    }

    /// Non-negative factors of the columns that make their sums the seconds, by relative error; hidden ones (arithmetic,
    /// traffic) do not count in their row.
    fn solve(&self, columns: &[[f64; TERMS]], hidden: &[[bool; 2]], results: bool) -> [f64; TERMS] {
        let (mut normal, mut right) = ([[0.0; TERMS]; TERMS], [0.0; TERMS]);
        for (((row, hidden), rate), w) in columns.iter().zip(hidden).zip(self.rates).zip(self.weights) {
            let mut row = row.map(|v| v * rate);
            if !results {
                row[7] = 0.0;
            }
            if hidden[0] {
                (row[3], row[7]) = (0.0, 0.0);
            }
            if hidden[1] {
                (row[4], row[5]) = (0.0, 0.0);
            }
            for i in 0..TERMS {
                let weighted = w * row[i];
                right[i] += weighted;
                for j in i..TERMS {
                    normal[i][j] += weighted * row[j];
                }
            }
        }
        for (i, j) in (0..TERMS).flat_map(|i| (0..i).map(move |j| (i, j))) {
            normal[i][j] = normal[j][i];
        }
        non_negative(&normal, &right)
    }

    /// Smooths what is left along the work, if that predicts shapes that were left out better.
    fn correct(&self, side: &mut Side) {
        let left: Vec<f64> =
            self.shapes.iter().zip(self.logs).map(|(s, log)| log - side.terms(s).max(f64::MIN_POSITIVE).ln()).collect();
        let (first, high) = self.range(|s| s.place());
        let step = ((high - first) / (KNOTS - 1) as f64).max(1e-3);
        let rows: Vec<Vec<f64>> = self.shapes.iter().map(|s| hats((s.place() - first) / step)).collect();
        let total: f64 = self.weights.iter().sum();
        let mut least: f64 = left.iter().zip(self.weights).map(|(r, w)| w * r * r).sum();
        for stiffness in [0.03, 0.3, 3.0, 30.0] {
            let mut normal = vec![vec![0.0; KNOTS]; KNOTS];
            let mut right = vec![0.0; KNOTS];
            for ((row, r), w) in rows.iter().zip(&left).zip(self.weights) {
                for i in 0..KNOTS {
                    right[i] += w * row[i] * r;
                    for j in 0..KNOTS {
                        normal[i][j] += w * row[i] * row[j];
                    }
                }
            }
            for (i, row) in normal.iter_mut().enumerate() {
                row[i] += 0.05;
            }
            for i in 1..KNOTS - 1 {
                let bend = [(i - 1, 1.0), (i, -2.0), (i + 1, 1.0)];
                for (a, x) in bend {
                    for (b, y) in bend {
                        normal[a][b] += stiffness * x * y;
                    }
                }
            }
            let Some(inverse) = inverse(normal) else { continue };
            let times = |v: &[f64]| -> Vec<f64> {
                inverse.iter().map(|row| row.iter().zip(v).map(|(a, b)| a * b).sum()).collect()
            };
            let found = times(&right);
            // Each shape's error if it had been left out, by its leverage.
            let out: f64 = rows
                .iter()
                .zip(&left)
                .zip(self.weights)
                .map(|((row, r), w)| {
                    let dot = |v: &[f64]| row.iter().zip(v).map(|(a, b)| a * b).sum::<f64>();
                    let leverage = (w * dot(&times(row))).min(0.999);
                    w * ((r - dot(&found)) / (1.0 - leverage)).powi(2)
                })
                .sum();
            if out < 0.9 * least {
                least = out;
                side.knots = [first, step];
                side.factors = found.iter().map(|v| v.clamp(-3.0, 3.0).exp()).collect();
            }
        }
        side.error = (least / total).sqrt();
    }
}

/// Fixed, read, written, arithmetic, traffic, misses, starting a team, results, rows: the order of the columns.
fn coefficient(side: &mut Side, term: usize) -> &mut f64 {
    match term {
        0 => &mut side.fixed_s,
        1 => &mut side.read_s,
        2 => &mut side.written_s,
        3 => &mut side.flop_s,
        4 => &mut side.byte_s,
        5 => &mut side.miss_s,
        6 => &mut side.team_s,
        7 => &mut side.result_s,
        _ => &mut side.outer_s,
    }
}

/// The one power of two between two numbers, which is what programs have for limits; or else the middle.
fn round([low, high]: [f64; 2]) -> f64 {
    let power = high.log2().floor().exp2();
    if low <= power && high < 2.0 * low { power } else { (low * high).sqrt() }
}

/// So many numbers from above one to another, a factor apart.
fn steps(low: f64, high: f64, n: usize) -> impl Iterator<Item = f64> {
    let span = (high / low).max(1.0).ln();
    (1..=n).map(move |i| low * (span * i as f64 / n as f64).exp())
}

/// Shares of the knots at a place counted in knots.
fn hats(at: f64) -> Vec<f64> {
    (0..KNOTS).map(|i| (1.0 - (at.clamp(0.0, (KNOTS - 1) as f64) - i as f64).abs()).max(0.0)).collect()
}
