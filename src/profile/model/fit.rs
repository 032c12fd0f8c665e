//! Finds the curve of a key from its samples.
//!
//! Linear terms come from non-negative least squares of relative errors (Lawson and Hanson 1974, *Solving least squares
//! problems*, chapter 23), where waves, caches and the like begin from a search; each of them must earn its place (Schwarz
//! 1978, *Estimating the dimension of a model*). What is then left along the size of the work is smoothed by a penalised
//! spline (Eilers and Marx 1996), as stiff as leaving out one shape at a time says. What a process does to all its times
//! alike is estimated apart. Pure functions; nothing here knows how any device is simulated.

use super::curve::{Curve, Extent, Shape, Side};
use crate::base::Features;
use crate::base::stats::inverse;

/// Both times of a shape in one process.
#[derive(Clone, Copy, Debug)]
pub struct Sample {
    /// The call.
    pub call: Features,
    /// Number of the process.
    pub process: usize,
    /// Median seconds on the CPU.
    pub cpu_s: f64,
    /// Median seconds on the device.
    pub device_s: f64,
}

/// Fewest shapes that a curve rests on.
const LEAST: usize = 8;

/// Knots of the correction.
const KNOTS: usize = 12;

/// Errors below this are not worth a term.
const FLOOR: f64 = 0.003;

/// Shapes whose times are so far apart (as logarithm of the ratio) count half as much: who is faster there is plain.
const NEAR: f64 = 1.4;

/// Fits the curves of both sides; `copies`: operands cross the bus in every call on the device. `None` for fewer than 8
/// shapes, or where a time is no positive number.
pub fn fit(samples: &[Sample], copies: bool) -> Option<Curve> {
    let positive = |s: &Sample| [s.cpu_s, s.device_s].iter().all(|t| t.is_finite() && *t > 0.0);
    let mut calls: Vec<Features> = Vec::new();
    for s in samples {
        if !calls.contains(&s.call) {
            calls.push(s.call);
        }
    }
    if calls.len() < LEAST || !samples.iter().all(positive) {
        return None;
    }
    let shapes: Vec<Shape> = calls.iter().map(Shape::of).collect();
    let rows = |of: fn(&Sample) -> f64| -> Vec<(usize, usize, f64)> {
        let at = |s: &Sample| Some((calls.iter().position(|c| *c == s.call)?, s.process, of(s).ln()));
        samples.iter().filter_map(at).collect()
    };
    let cpu = levels(&rows(|s| s.cpu_s), shapes.len());
    let device = levels(&rows(|s| s.device_s), shapes.len());
    let weights: Vec<f64> = cpu.iter().zip(&device).map(|(c, d)| 1.0 / (1.0 + ((c - d) / NEAR).powi(2))).collect();
    let mut span = [[f64::INFINITY, 0.0]; 4];
    for s in &shapes {
        for (range, v) in span.iter_mut().zip(s.axes()) {
            *range = [range[0].min(v), range[1].max(v)];
        }
    }
    let side = |logs: &[f64], copies: bool, queued: bool| {
        let rates: Vec<f64> = logs.iter().map(|l| (-l).exp()).collect();
        Data { shapes: &shapes, logs, rates: &rates, weights: &weights, copies, queued }.side()
    };
    let curve = Curve { span, cpu: side(&cpu, false, false), device: side(&device, copies, true) };
    curve.fault().is_none().then_some(curve)
}

/// The level of each shape, the offsets of the processes taken off; rows are (shape, process, value). Offsets are zero on
/// average over the processes.
fn levels(rows: &[(usize, usize, f64)], shapes: usize) -> Vec<f64> {
    let processes = rows.iter().map(|r| r.1 + 1).max().unwrap_or(0);
    let mut level = vec![0.0; shapes];
    let mut offset = vec![0.0; processes];
    let mean = |n: usize, of: &dyn Fn(&(usize, usize, f64)) -> (usize, f64)| -> Vec<Option<f64>> {
        let mut sums = vec![(0.0, 0.0); n];
        for (i, v) in rows.iter().map(of) {
            sums[i] = (sums[i].0 + 1.0, sums[i].1 + v);
        }
        sums.into_iter().map(|(n, sum)| (n > 0.0).then(|| sum / n)).collect()
    };
    for _ in 0..30 {
        level = mean(shapes, &|r| (r.0, r.2 - offset[r.1])).into_iter().map(Option::unwrap_or_default).collect();
        let found = mean(processes, &|r| (r.1, r.2 - level[r.0]));
        let there: Vec<f64> = found.iter().flatten().copied().collect();
        let centre = there.iter().sum::<f64>() / there.len().max(1) as f64;
        offset = found.into_iter().map(|o| o.map_or(0.0, |o| o - centre)).collect();
    }
    mean(shapes, &|r| (r.0, r.2 - offset[r.1])).into_iter().map(Option::unwrap_or_default).collect()
}

/// Columns of the linear terms: fixed, read, written, arithmetic, traffic, misses, starting a team.
const TERMS: usize = 7;

/// What a side is fitted to.
struct Data<'a> {
    shapes: &'a [Shape],
    /// Logarithms of seconds.
    logs: &'a [f64],
    /// 1 over seconds.
    rates: &'a [f64],
    weights: &'a [f64],
    copies: bool,
    /// Whether parts of a wave may take as long as whole ones.
    queued: bool,
}

/// A fitted side and its score; lower is better.
#[derive(Clone, Debug)]
struct Scored {
    side: Side,
    score: f64,
}

impl Data<'_> {
    fn side(&self) -> Side {
        let mut best: Option<Scored> = None;
        for serial in [false, true] {
            for extent in [Extent::Larger, Extent::Output] {
                let mut found = self.scored(Side { serial, extent, ..Side::default() });
                self.search(&mut found);
                if best.as_ref().is_none_or(|b| found.score < b.score) {
                    best = Some(found);
                }
            }
        }
        let Some(mut best) = best else { return Side::default() };
        // Once more: what was found first may lie elsewhere beside what was found last.
        self.search(&mut best);
        self.refine(&mut best);
        self.correct(&mut best.side);
        best.side
    }

    /// Where waves, caches and so on begin, one after the other.
    fn search(&self, found: &mut Scored) {
        let extent = found.side.extent;
        let (least, most) = self.range(|s| s.extent(extent));
        let (low, high) = self.range(|s| s.bytes());
        if self.queued {
            for wave in steps(least, most, 14) {
                self.try_on(found, |s| s.wave = wave);
                self.try_on(found, |s| (s.wave, s.stepped) = (wave, true));
            }
        } else {
            for wave in steps(least, most, 10) {
                for workers in [2.0, 6.0, 20.0, 60.0] {
                    self.try_on(found, |s| (s.wave, s.wave_most, s.teamed) = (wave, workers, false));
                    let team = (wave, workers, workers / 1.5, true);
                    self.try_on(found, |s| (s.wave, s.wave_most, s.fill_most, s.teamed) = team);
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
        for tile in [8, 16, 32, 64] {
            self.try_on(found, |s| s.tile = tile);
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
        for step in [1.5, 1.25, 1.12, 1.25, 1.12, 1.06, 1.03, 1.015, 1.007] {
            for by in [step, 1.0 / step] {
                self.try_on(best, |s| s.wave *= by);
                self.try_on(best, |s| s.cache *= by);
                self.try_on(best, |s| s.fill *= by);
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
        let n = self.shapes.len() as f64;
        let options = [
            side.wave > 0.0,
            side.wave_most > 0.0,
            side.stepped || side.teamed,
            side.cache > 0.0,
            side.fill > 0.0 || side.teamed,
            side.fill_most > 0.0,
            side.tile > 1,
        ];
        let extra: f64 =
            options.iter().map(|on| f64::from(u8::from(*on))).sum::<f64>() + f64::from(u8::from(side.cache > 0.0));
        let score = |e: f64| n * (e + FLOOR * FLOOR).ln() + extra * n.ln();
        // One second per operation and byte: what the terms multiply.
        let unit = Side { flop_s: 1.0, byte_s: 1.0, miss_s: 0.0, ..side.clone() };
        let missing = Side { flop_s: 0.0, byte_s: 0.0, miss_s: 1.0, ..side.clone() };
        let columns: Vec<[f64; TERMS]> = self
            .shapes
            .iter()
            .map(|s| {
                let [arithmetic, traffic] = unit.parts(s);
                let copied = |bytes: f64| if self.copies { bytes } else { 0.0 };
                let [read, written] = s.copies();
                let team = if side.team(s) { 1.0 } else { 0.0 };
                [1.0, copied(read), copied(written), arithmetic, traffic, missing.parts(s)[1], team]
            })
            .collect();
        // All terms; then, where arithmetic hides traffic or the other way round, only the longer of the two.
        let mut hidden = vec![[false, false]; self.shapes.len()];
        let mut best: Option<(Side, f64)> = None;
        for _ in 0..if side.serial { 1 } else { 5 } {
            let found = self.solve(&columns, &hidden);
            for (term, v) in found.into_iter().enumerate() {
                *coefficient(&mut side, term) = v;
            }
            let e = self.error(&side);
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
        let (side, e) = best.unwrap_or((side, f64::INFINITY));
        Scored { side, score: score(e) }
    }

    /// Non-negative factors of the columns that make their sums the seconds, by relative error; hidden ones (arithmetic,
    /// traffic) do not count in their row.
    fn solve(&self, columns: &[[f64; TERMS]], hidden: &[[bool; 2]]) -> [f64; TERMS] {
        let (mut normal, mut right) = ([[0.0; TERMS]; TERMS], [0.0; TERMS]);
        for (((row, hidden), rate), w) in columns.iter().zip(hidden).zip(self.rates).zip(self.weights) {
            let mut row = row.map(|v| v * rate);
            if hidden[0] {
                row[3] = 0.0;
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

fn coefficient(side: &mut Side, term: usize) -> &mut f64 {
    match term {
        0 => &mut side.fixed_s,
        1 => &mut side.read_s,
        2 => &mut side.written_s,
        3 => &mut side.flop_s,
        4 => &mut side.byte_s,
        5 => &mut side.miss_s,
        _ => &mut side.team_s,
    }
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

/// The non-negative solution of least squares by its normal equations.
fn non_negative(normal: &[[f64; TERMS]; TERMS], right: &[f64; TERMS]) -> [f64; TERMS] {
    let scale: [f64; TERMS] = std::array::from_fn(|i| if normal[i][i] > 0.0 { normal[i][i].sqrt() } else { 0.0 });
    let usable: Vec<usize> = (0..TERMS).filter(|i| scale[*i] > 0.0).collect();
    let a = |i: usize, j: usize| normal[i][j] / (scale[i] * scale[j]) + if i == j { 1e-9 } else { 0.0 };
    let b = |i: usize| right[i] / scale[i];
    let mut x = [0.0; TERMS];
    let mut active: Vec<usize> = Vec::new();
    for _ in 0..3 * TERMS {
        let pull = |i: usize| b(i) - active.iter().map(|j| a(i, *j) * x[*j]).sum::<f64>();
        let next = usable.iter().copied().filter(|i| !active.contains(i) && pull(*i) > 1e-9);
        let Some(next) = next.max_by(|i, j| pull(*i).total_cmp(&pull(*j))) else { break };
        active.push(next);
        while !active.is_empty() {
            let rows: Vec<Vec<f64>> = active.iter().map(|i| active.iter().map(|j| a(*i, *j)).collect()).collect();
            let Some(inverse) = inverse(rows) else {
                active.pop();
                break;
            };
            let z: Vec<f64> = inverse.iter().map(|row| row.iter().zip(&active).map(|(v, j)| v * b(*j)).sum()).collect();
            // As far towards the solution as all stay positive; who reaches zero leaves.
            let mut part = 1.0f64;
            for (i, z) in active.iter().zip(&z) {
                if *z <= 0.0 {
                    part = part.min(x[*i] / (x[*i] - z).max(f64::MIN_POSITIVE));
                }
            }
            for (i, z) in active.iter().zip(&z) {
                x[*i] += part * (z - x[*i]);
            }
            let zero: Vec<usize> =
                active.iter().zip(&z).filter(|(i, z)| **z <= 0.0 && x[**i] <= 1e-12).map(|(i, _)| *i).collect();
            if zero.is_empty() {
                break;
            }
            for i in zero {
                x[i] = 0.0;
                active.retain(|j| *j != i);
            }
        }
    }
    std::array::from_fn(|i| if scale[i] > 0.0 { x[i].max(0.0) / scale[i] } else { 0.0 })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::{Cost, MOST_DIMS};

    /// A product of matrices.
    fn call(m: u64, n: u64, k: u64) -> Features {
        let mut dims = [0; MOST_DIMS];
        dims[..3].copy_from_slice(&[m, n, k]);
        let cost = Cost { flops: 2 * m * n * k, read: 4 * (m * k + k * n), written: 4 * m * n };
        Features { work: u128::from(m * n * k), cost, dims }
    }

    fn calls() -> Vec<Features> {
        let sides = [17, 40, 90, 200, 450, 1000];
        let mut out: Vec<Features> = sides.iter().map(|n| call(*n, *n, *n)).collect();
        out.extend(
            [(1000, 20, 30), (30, 900, 40), (60, 50, 1500), (300, 100, 700), (800, 90, 200), (33, 65, 129)]
                .map(|(m, n, k)| call(m, n, k)),
        );
        out
    }

    fn samples(cpu: &dyn Fn(&Features) -> f64, device: &dyn Fn(&Features) -> f64) -> Vec<Sample> {
        let of = |c: Features| Sample { call: c, process: 0, cpu_s: cpu(&c), device_s: device(&c) };
        calls().into_iter().map(of).collect()
    }

    #[test]
    fn planted_terms_are_found() {
        let cpu = |c: &Features| 1e-6 + c.cost.flops as f64 * 2e-11;
        let device = |c: &Features| {
            4e-5 + c.cost.read as f64 * 1e-10 + c.cost.written as f64 * 3e-10 + c.cost.flops as f64 * 5e-13
        };
        let curve = fit(&samples(&cpu, &device), true).unwrap();
        let near = |a: f64, b: f64| (a / b - 1.0).abs() < 0.02;
        assert!(near(curve.cpu.fixed_s, 1e-6) && near(curve.cpu.flop_s, 2e-11), "{:?}", curve.cpu);
        assert!(near(curve.device.fixed_s, 4e-5) && near(curve.device.flop_s, 5e-13), "{:?}", curve.device);
        assert!(near(curve.device.read_s + curve.device.byte_s, 1e-10), "{:?}", curve.device);
        assert!(curve.cpu.error < 0.01 && curve.device.error < 0.01);
        for held_out in [call(123, 456, 78), call(7, 2000, 100), call(700, 700, 20)] {
            let s = Shape::of(&held_out);
            assert!(curve.covers(&s) && near(curve.cpu.seconds(&s), cpu(&held_out)));
            assert!(near(curve.device.seconds(&s), device(&held_out)), "{held_out:?}");
        }
    }

    #[test]
    fn teams_of_threads_are_found() {
        let cpu = |c: &Features| {
            let alone = c.cost.read.max(c.cost.written) < 60_000;
            c.cost.flops as f64 * if alone { 1.6e-10 } else { 1e-11 } + if alone { 1e-6 } else { 9e-6 }
        };
        let curve = fit(&samples(&cpu, &|_| 1e-3), false).unwrap();
        assert!(curve.cpu.teamed && curve.cpu.error < 0.05, "{:?}", curve.cpu);
        for (held_out, off) in [(call(25, 30, 28), 1.1), (call(600, 500, 400), 1.1)] {
            let ratio = curve.cpu.seconds(&Shape::of(&held_out)) / cpu(&held_out);
            assert!(ratio < off && ratio > 1.0 / off, "{ratio}");
        }
    }

    /// One process's device takes half as long again; the curve is that of the mean process.
    #[test]
    fn offsets_of_processes_are_taken_off() {
        let mut all = Vec::new();
        for (i, c) in calls().into_iter().enumerate() {
            let t = 1e-5 + c.cost.flops as f64 * 1e-11;
            all.push(Sample { call: c, process: 0, cpu_s: t, device_s: t });
            if i % 2 == 0 {
                all.push(Sample { call: c, process: 1, cpu_s: t, device_s: 1.5 * t });
            }
        }
        let curve = fit(&all, false).unwrap();
        for c in calls() {
            let s = Shape::of(&c);
            let ratio = curve.device.seconds(&s) / curve.cpu.seconds(&s);
            assert!((ratio / 1.5f64.sqrt() - 1.0).abs() < 0.02, "{ratio}");
        }
    }

    #[test]
    fn too_little_or_nonsense_gives_no_curve() {
        let all = samples(&|_| 1e-3, &|_| 1e-3);
        assert!(fit(&all[..LEAST - 1], true).is_none());
        let mut bad = all.clone();
        bad[3].device_s = f64::NAN;
        assert!(fit(&bad, true).is_none());
        bad[3].device_s = 0.0;
        assert!(fit(&bad, true).is_none());
        assert!(fit(&all, true).is_some());
    }

    #[test]
    fn the_solution_has_no_negative_part() {
        // y = 2 a - b: the best without the negative part is a alone.
        let mut normal = [[0.0; TERMS]; TERMS];
        let mut right = [0.0; TERMS];
        for i in 1..=5 {
            let (a, b) = (f64::from(i), f64::from(i * i) / 10.0);
            let y = 2.0 * a - b;
            for (r, v) in [a, b].into_iter().enumerate() {
                right[r] += v * y;
                normal[r][0] += v * a;
                normal[r][1] += v * b;
            }
        }
        let x = non_negative(&normal, &right);
        assert!(x[1] == 0.0 && (x[0] - right[0] / normal[0][0]).abs() < 1e-6, "{x:?}");
        right[1] = normal[1][0] + 3.0 * normal[1][1];
        right[0] = normal[0][0] + 3.0 * normal[0][1];
        let x = non_negative(&normal, &right);
        assert!((x[0] - 1.0).abs() < 1e-5 && (x[1] - 3.0).abs() < 1e-5, "{x:?}");
    }
}
