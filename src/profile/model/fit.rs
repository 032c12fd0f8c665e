//! The curve of a key from its samples: each shape's level on both sides, and the forms that explain them.
//!
//! What a process does to all its times alike is estimated apart. Pure functions.

use super::curve::{Curve, Shape};
use super::search::Data;
use crate::base::Features;

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

/// Shapes whose times are so far apart (as logarithm of the ratio) count half as much: who is faster there is plain.
const NEAR: f64 = 1.4;

/// Fits the curves of both sides; `copies`: operands cross the bus in every call on the device. `None` for fewer than 8
/// shapes, or where a time is no positive number.
pub fn fit(samples: &[Sample], copies: bool) -> Option<Curve> {
    let levels = Levels::of(samples, copies)?;
    let mut span = [[f64::INFINITY, 0.0]; 4];
    for s in &levels.shapes {
        for (range, v) in span.iter_mut().zip(s.axes()) {
            *range = [range[0].min(v), range[1].max(v)];
        }
    }
    let [cpu, device] = levels.sides(|data| data.side());
    let curve = Curve { span, change: None, cpu, device };
    curve.fault().is_none().then_some(curve)
}

/// What the times of each shape are on both sides.
pub(super) struct Levels {
    pub(super) shapes: Vec<Shape>,
    /// Logarithms of seconds.
    cpu: Vec<f64>,
    device: Vec<f64>,
    weights: Vec<f64>,
    copies: bool,
}

impl Levels {
    /// `None` as [`fit`].
    pub(super) fn of(samples: &[Sample], copies: bool) -> Option<Self> {
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
        let rows = |of: fn(&Sample) -> f64| -> Vec<(usize, usize, f64)> {
            let at = |s: &Sample| Some((calls.iter().position(|c| *c == s.call)?, s.process, of(s).ln()));
            samples.iter().filter_map(at).collect()
        };
        let cpu = levels(&rows(|s| s.cpu_s), calls.len());
        let device = levels(&rows(|s| s.device_s), calls.len());
        let weights = cpu.iter().zip(&device).map(|(c, d)| 1.0 / (1.0 + ((c - d) / NEAR).powi(2))).collect();
        Some(Levels { shapes: calls.iter().map(Shape::of).collect(), cpu, device, weights, copies })
    }

    /// Something of the CPU and of the device.
    pub(super) fn sides<T>(&self, of: impl Fn(Data<'_>) -> T) -> [T; 2] {
        [(&self.cpu, false, false), (&self.device, self.copies, true)].map(|(logs, copies, queued)| {
            let rates: Vec<f64> = logs.iter().map(|l| (-l).exp()).collect();
            of(Data { shapes: &self.shapes, logs, rates: &rates, weights: &self.weights, copies, queued })
        })
    }
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

    /// Rows that cost something each: short ones are dear on the device.
    #[test]
    fn rows_are_found() {
        let rows = |m: u64, n: u64| {
            let mut dims = [0; MOST_DIMS];
            (dims[0], dims[1]) = (m, n);
            let n = m * n;
            Features { work: u128::from(n), cost: Cost { flops: 5 * n, read: 4 * n, written: 4 * n }, dims }
        };
        let cpu = |c: &Features| 1e-6 + c.cost.flops as f64 * 1e-9;
        let device = |c: &Features| 2e-5 + c.dims[0] as f64 * 1.3e-7 + c.cost.flops as f64 * 2e-11;
        let seen = [1, 3, 9, 27, 100, 300].map(|m| rows(m, 1024));
        let seen = seen.into_iter().chain([(4000, 30), (200, 9), (90, 3000), (1500, 64)].map(|(m, n)| rows(m, n)));
        let of = |c: Features| Sample { call: c, process: 0, cpu_s: cpu(&c), device_s: device(&c) };
        let curve = fit(&seen.map(of).collect::<Vec<_>>(), false).unwrap();
        assert!((curve.device.outer_s / 1.3e-7 - 1.0).abs() < 0.05, "{:?}", curve.device);
        assert!(curve.cpu.outer_s < 1e-9, "{:?}", curve.cpu);
        for held_out in [rows(3159, 5), rows(622, 41), rows(2, 5000)] {
            let ratio = curve.device.seconds(&Shape::of(&held_out)) / device(&held_out);
            assert!((0.9..1.1).contains(&ratio), "{held_out:?}: {ratio}");
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

    /// Threads start between the only two of many shapes that tell where; no larger one is near.
    #[test]
    fn teams_are_found_in_a_narrow_gap() {
        let below = [16, 18, 20, 22, 25, 28, 31, 35, 39, 44, 49, 55, 58, 61, 64, 67, 70, 73, 76, 79, 82, 85, 87, 90];
        let beyond = [93, 128, 150, 180, 210, 256, 330, 420, 512, 700, 1024];
        let cpu = |c: &Features| {
            let alone = c.cost.read.max(c.cost.written) < 67_000;
            c.cost.flops as f64 * if alone { 1.6e-10 } else { 1e-11 } + if alone { 1e-6 } else { 7e-6 }
        };
        let sample = |n: &u64| {
            let call = call(*n, *n, *n);
            Sample { call, process: 0, cpu_s: cpu(&call), device_s: 2e-4 }
        };
        let all: Vec<Sample> = below.iter().chain(&beyond).map(sample).collect();
        let curve = fit(&all, false).unwrap();
        assert!(curve.cpu.teamed && (64_800.0..69_192.0).contains(&curve.cpu.wave), "{:?}", curve.cpu);
        for s in &all {
            let ratio = curve.cpu.seconds(&Shape::of(&s.call)) / s.cpu_s;
            assert!((0.9..1.1).contains(&ratio), "{:?}: {ratio}", s.call.dims);
        }
    }

    /// Shapes that were asked for where threads may start lie within a few per cent of it and of each other. Of what is left open
    /// between the last two, programs mostly mean the power of two.
    #[test]
    fn teams_are_found_among_many_shapes_that_lie_close() {
        let bytes = [62_560, 62_688, 63_432, 63_960, 64_152, 64_600, 65_360, 65_688, 66_528];
        let wide = (0..40).map(|i| (4096.0 * 1.2f64.powi(i)) as u64);
        let row = |bytes: u64, depth: u64| {
            let n = bytes / 4;
            let mut dims = [0; MOST_DIMS];
            dims[0] = n;
            let cost = Cost { flops: n * depth, read: 4 * n, written: 2 * n };
            Features { work: u128::from(n), cost, dims }
        };
        let calls = bytes.into_iter().chain(wide).enumerate().map(|(i, b)| row(b, 200 + 60 * (i as u64 % 5)));
        let cpu = |c: &Features| {
            let alone = c.cost.read < 65_536;
            c.cost.flops as f64 * if alone { 1.6e-11 } else { 1e-12 } + if alone { 4e-7 } else { 6e-6 }
        };
        let of = |c: Features| Sample { call: c, process: 0, cpu_s: cpu(&c), device_s: 2e-5 };
        let all: Vec<Sample> = calls.map(of).collect();
        let curve = fit(&all, false).unwrap();
        assert!(curve.cpu.teamed && curve.cpu.error < 0.05, "{:?}", curve.cpu);
        assert_eq!(curve.cpu.wave, 65_536.0, "between 65,360 and 65,688");
        for s in &all {
            let ratio = curve.cpu.seconds(&Shape::of(&s.call)) / s.cpu_s;
            assert!((0.85..1.15).contains(&ratio), "{:?}: {ratio}", s.call.cost);
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
}
