//! Which other shapes a curve should rest on: those whose place is in doubt, because forms that explain what was measured
//! about equally well disagree there (Seung, Opper and Sompolinsky 1992, *Query by committee*). Pure functions.

use super::curve::{Shape, Side};
use super::fit::{Levels, Sample};
use crate::base::Features;

/// How near (squared distance of logarithms) another measured shape halves the worth of a candidate: a little beside what was
/// measured before, more beside what is about to be.
const BESIDE: [f64; 2] = [0.02, 0.1];

/// Less expected regret than this is not worth a look.
const WORTH: f64 = 1e-3;

/// Numbers of at most `most` candidates that are worth measuring, by the expected regret of placing them now, those of most
/// worth first; `keys`: the samples of each residency that will be measured, and whether its calls copy operands.
pub fn doubtful(keys: &[(Vec<Sample>, bool)], candidates: &[Features], most: usize) -> Vec<usize> {
    let shapes: Vec<Shape> = candidates.iter().map(Shape::of).collect();
    let mut worth = vec![0.0f64; shapes.len()];
    let mut measured: Vec<Shape> = Vec::new();
    for (samples, copies) in keys {
        let Some(levels) = Levels::of(samples, *copies) else { continue };
        let [cpu, device] = levels.sides(|data| data.committee());
        for (worth, s) in worth.iter_mut().zip(&shapes) {
            *worth = worth.max(expected(&cpu, &device, s));
        }
        measured.extend(levels.shapes);
    }
    let halved = |d: f64, at: f64| d / (d + at);
    // Most are plainly faster on one side. What is near others only loses worth.
    let mut left: Vec<(usize, f64)> = worth.into_iter().enumerate().filter(|(_, w)| *w >= WORTH).collect();
    for (i, worth) in &mut left {
        let nearest = measured.iter().map(|m| apart(m, &shapes[*i])).fold(f64::INFINITY, f64::min);
        *worth *= if nearest.is_finite() { halved(nearest, BESIDE[0]) } else { 1.0 };
    }
    let mut chosen = Vec::new();
    while chosen.len() < most {
        let best = left.iter().copied().max_by(|a, b| a.1.total_cmp(&b.1));
        let Some((best, _)) = best.filter(|(_, w)| *w >= WORTH) else { break };
        chosen.push(best);
        for (i, worth) in &mut left {
            *worth *= halved(apart(&shapes[best], &shapes[*i]), BESIDE[1]);
        }
    }
    chosen
}

/// Squared distance of the logarithms of operations and bytes.
fn apart(a: &Shape, b: &Shape) -> f64 {
    a.axes().iter().zip(b.axes()).take(3).map(|(a, b)| (a / b).ln().powi(2)).sum()
}

/// What a curve says of a shape.
#[derive(Clone, Copy, Debug)]
struct Said {
    /// Logarithm of the seconds.
    ln: f64,
    /// Square of its error.
    square: f64,
    weight: f64,
}

/// Points of a normal distribution about what a pair of curves says, in standard deviations.
const POINTS: [f64; 4] = [-1.5, -0.5, 0.5, 1.5];

/// What the better of both decisions is expected to lose at a shape.
fn expected(cpu: &[(Side, f64)], device: &[(Side, f64)], s: &Shape) -> f64 {
    let said =
        |(side, weight): &(Side, f64)| Said { ln: side.seconds(s).ln(), square: side.error.powi(2), weight: *weight };
    let [cpu, device] = [cpu, device].map(|side| side.iter().map(said).collect::<Vec<_>>());
    if agreed(&cpu, &device) { 0.0 } else { lost(&cpu, &device) }
}

/// Whether all pairs of curves place a shape alike, at all their points: nothing is expected to be lost there then. It is so at
/// most shapes, and the outermost curves alone tell.
fn agreed(cpu: &[Said], device: &[Said]) -> bool {
    let largest = |side: &[Said], of: fn(&Said) -> f64| side.iter().map(of).fold(f64::NEG_INFINITY, f64::max);
    let [cpu, device] =
        [cpu, device].map(|side| [-largest(side, |s| -s.ln), largest(side, |s| s.ln), largest(side, |s| s.square)]);
    let widest = POINTS[3] * (cpu[2] + device[2]).sqrt();
    cpu[1] - device[0] + widest < 0.0 || cpu[0] - device[1] - widest > 0.0
}

fn lost(cpu: &[Said], device: &[Said]) -> f64 {
    let (mut all, mut lost) = (0.0, [0.0; 2]);
    for (c, d) in cpu.iter().flat_map(|c| device.iter().map(move |d| (c, d))) {
        let (ratio, deviation, weight) = (c.ln - d.ln, (c.square + d.square).sqrt(), c.weight * d.weight);
        all += weight;
        for (lost, sign) in lost.iter_mut().zip([1.0, -1.0]) {
            // Nothing counts as more than 20 times as slow.
            let at = |z: f64| (sign * (ratio + z * deviation)).clamp(0.0, 3.0).exp_m1() / 4.0;
            *lost += weight * POINTS.map(at).iter().sum::<f64>();
        }
    }
    lost[0].min(lost[1]) / all
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::rng::Philox;
    use crate::base::{Cost, MOST_DIMS};

    /// What is skipped is nothing else than what nothing would be lost at.
    #[test]
    fn what_all_curves_agree_on_loses_nothing() {
        let rng = Philox::new(3);
        let mut skipped = 0;
        for i in 0..2000 {
            let side = |stream: u64, at: f64| -> Vec<Said> {
                let of = |k: u64| Said {
                    ln: at + 0.3 * rng.normal(stream, 8 * i + k),
                    square: 0.02 * rng.unit(stream + 2, 8 * i + k),
                    weight: 1.0,
                };
                (0..3).map(of).collect()
            };
            let (cpu, device) = (side(1, 3.0 * rng.unit(7, i) - 1.5), side(2, 0.0));
            let lost = lost(&cpu, &device);
            if agreed(&cpu, &device) {
                skipped += 1;
                assert_eq!(lost, 0.0, "{cpu:?} {device:?}");
            }
        }
        assert!((400..1600).contains(&skipped), "{skipped}");
    }

    fn call(m: u64, n: u64, k: u64) -> Features {
        let mut dims = [0; MOST_DIMS];
        dims[..3].copy_from_slice(&[m, n, k]);
        let cost = Cost { flops: 2 * m * n * k, read: 4 * (m * k + k * n), written: 4 * m * n };
        Features { work: u128::from(m * n * k), cost, dims }
    }

    /// Threads start at 60,000 bytes; the device is as fast as one and a half of them.
    fn sample(call: Features) -> Sample {
        let alone = call.cost.read.max(call.cost.written) < 60_000;
        let flops = call.cost.flops as f64;
        let cpu_s = 1e-6 + flops * if alone { 16e-11 } else { 1e-11 };
        Sample { call, process: 0, cpu_s, device_s: 2e-6 + flops * 5e-11 }
    }

    /// Threads start at 60,000 bytes, which the measured shapes tell to a factor of three only; a device that is as fast as one
    /// and a half threads is in doubt just there, and nowhere else.
    #[test]
    fn shapes_are_asked_for_where_threads_may_start() {
        let sides = [10, 14, 20, 28, 40, 50, 110, 160, 220, 320, 450, 640];
        let samples: Vec<Sample> = sides.iter().map(|n| sample(call(*n, *n, *n))).collect();
        let candidates: Vec<Features> = (10..640).map(|n| call(n, n, n)).collect();
        let chosen = doubtful(&[(samples.clone(), false)], &candidates, 4);
        assert!(!chosen.is_empty());
        let at = |i: &usize| candidates[*i].dims[0];
        assert!(chosen.iter().all(|i| (45..=115).contains(&at(i))), "{:?}", chosen.iter().map(at).collect::<Vec<_>>());
        // Where the device is plainly faster or slower nothing is in doubt.
        let plain: Vec<Sample> = samples.iter().map(|s| Sample { device_s: 100.0 * s.device_s, ..*s }).collect();
        assert!(doubtful(&[(plain, false)], &candidates, 4).is_empty());
        assert!(doubtful(&[(samples[..5].to_vec(), false)], &candidates, 4).is_empty(), "too little to fit");
    }

    /// The measured shapes tell to 3 % where threads start; what lies between them is in doubt.
    #[test]
    fn what_is_left_of_a_narrow_gap_is_in_doubt() {
        let sides = [10, 14, 20, 28, 40, 50, 84, 85, 86, 88, 89, 90, 110, 160, 220, 320, 450, 640];
        let samples: Vec<Sample> = sides.iter().map(|n| sample(call(*n, *n, *n))).collect();
        let between: Vec<Features> = (40..200).map(|m| call(m, 87, 87)).collect();
        let inside = |c: &Features| (59_168..61_952).contains(&c.cost.read.max(c.cost.written));
        let chosen = doubtful(&[(samples, false)], &between, 4);
        assert!(chosen.iter().any(|i| inside(&between[*i])), "{chosen:?}");
    }
}
