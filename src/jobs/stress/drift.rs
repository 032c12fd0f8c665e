//! Whether a series over time grows or falls for good: robust, pure functions of points.

use crate::base::stats::{median, quantile, sorted};

use super::verdict::Limits;

/// Growth of a count that is noise-free by construction (the ledger at quiet points): after warm-up it never falls, and
/// grows within the first half as well as within the second. Any such growth is a leak; a single step is not (something
/// made late and kept). `None` with fewer than eight points.
pub fn never_returns(points: &[(f64, f64)], limits: &Limits) -> Option<f64> {
    let kept = after_warm_up(points, limits);
    if kept.len() < 8 || kept.windows(2).any(|w| w[1].1 < w[0].1) {
        return None;
    }
    let grows = |part: &[(f64, f64)]| part[part.len() - 1].1 - part[0].1;
    let (first, second) = kept.split_at(kept.len() / 2);
    (grows(first) > 0.0 && grows(second) > 0.0).then(|| grows(kept))
}

/// A growth that is no noise.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Drift {
    /// Theil-Sen slope per second.
    pub slope: f64,
    /// Slope times the seconds observed.
    pub growth: f64,
    /// Given where the second half surely grows less than the first.
    pub settles: Option<Settles>,
}

/// How a series settles.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Settles {
    /// Theil-Sen slope of the second half, per second.
    pub slope: f64,
    /// Which part of the first half's slope that is.
    pub part: f64,
}

/// Level shifts that are no drift: something made late and kept. More of them are a staircase, and that is one.
const STEPS: usize = 2;
/// Part of a step that is seen as well in windows of half the length.
const SUDDEN: f64 = 0.8;
/// Part of its even share of the growth by which each quarter must exceed the one before.
const SHARE: f64 = 0.2;
/// What settles: its second half grows by less than this part of its first. A leak has 1. A heap whose largest size of a random
/// mix is met ever more rarely grows as the logarithm of time and has 0.51, however long it is watched (warm-up left out).
const SETTLES: f64 = 0.75;
/// Deviations to each side of a half's slope: no leak may be taken for what settles.
const APART: f64 = 3.0;
/// What a curve leaves over of what a line does.
const CURVED: f64 = 0.8;

/// A drift of a noisy series: after warm-up, and with at most two steps taken out, the lower end of the 95 % interval of the
/// Theil-Sen slope (Sen 1968, by Kendall's S) times the time observed exceeds `floor`, and the median of every quarter lies
/// above that of the one before by a part of its share. `None` also for too few samples.
pub fn drift(points: &[(f64, f64)], floor: f64, limits: &Limits) -> Option<Drift> {
    let mut kept = thinned(after_warm_up(points, limits));
    if kept.len() < limits.min_samples {
        return None;
    }
    for _ in 0..STEPS {
        take_out_step(&mut kept, floor);
    }
    let mids: Vec<f64> = quarters(&kept).iter().map(|q| median(&q.iter().map(|p| p.1).collect::<Vec<_>>())).collect();
    let whole = Slope::of(&kept, 1.959_964)?;
    let seconds = kept.last()?.0 - kept.first()?.0;
    let (slope, growth) = (whole.slope, whole.slope * seconds);
    let everywhere = mids.windows(2).all(|w| w[1] - w[0] > SHARE * growth / 4.0);
    (whole.low * seconds > floor && everywhere).then(|| Drift { slope, growth, settles: settles(&kept) })
}

/// Whether a growing series settles: its second half is slower than its first, and either the intervals of both are apart or the
/// logarithm of time explains the series far better than time does (the curve of a series without noise widens both intervals).
fn settles(points: &[(f64, f64)]) -> Option<Settles> {
    let (first, second) = points.split_at(points.len() / 2);
    let (first, second) = (Slope::of(first, APART)?, Slope::of(second, APART)?);
    let slow: Vec<(f64, f64)> = points.iter().filter(|p| p.0 > 0.0).map(|p| (p.0.ln(), p.1)).collect();
    let sure = second.high < first.low || left_over(&slow)? < CURVED * left_over(points)?;
    (sure && second.slope < SETTLES * first.slope)
        .then(|| Settles { slope: second.slope, part: second.slope / first.slope })
}

/// Mean distance of points from their Theil-Sen line.
fn left_over(points: &[(f64, f64)]) -> Option<f64> {
    let slope = Slope::of(points, 0.0)?.slope;
    let left: Vec<f64> = points.iter().map(|p| p.1 - slope * p.0).collect();
    let level = median(&left);
    Some(left.iter().map(|v| (v - level).abs()).sum::<f64>() / left.len() as f64)
}

/// The Theil-Sen slope with its interval.
struct Slope {
    slope: f64,
    low: f64,
    high: f64,
}

impl Slope {
    /// With an interval of `z` deviations to each side. `None` for points of one time alone.
    fn of(points: &[(f64, f64)], z: f64) -> Option<Slope> {
        let mut slopes = Vec::new();
        for (i, a) in points.iter().enumerate() {
            for b in &points[i + 1..] {
                if b.0 > a.0 {
                    slopes.push((b.1 - a.1) / (b.0 - a.0));
                }
            }
        }
        if slopes.is_empty() {
            return None;
        }
        slopes.sort_by(f64::total_cmp);
        let n = points.len() as f64;
        let slope = quantile(&slopes, 0.5);
        // Noise that remembers counts for fewer points (Hamed and Rao 1998, first lag alone).
        let memory = remembered(points, slope);
        let c = z * (n * (n - 1.0) * (2.0 * n + 5.0) / 18.0 * (1.0 + memory) / (1.0 - memory)).sqrt();
        let (count, last) = (slopes.len() as f64, slopes.len() - 1);
        let low = slopes[(((count - c) / 2.0).floor().max(0.0) as usize).min(last)];
        let high = slopes[(((count + c) / 2.0).ceil() as usize).min(last)];
        Some(Slope { slope, low, high })
    }
}

/// Correlation of neighbours in what a slope leaves over, 0 to 0.95.
fn remembered(points: &[(f64, f64)], slope: f64) -> f64 {
    let left: Vec<f64> = points.iter().map(|p| p.1 - slope * p.0).collect();
    let level = median(&left);
    let square: f64 = left.iter().map(|v| (v - level).powi(2)).sum();
    let product: f64 = left.windows(2).map(|w| (w[0] - level) * (w[1] - level)).sum();
    if square > 0.0 { (product / square).clamp(0.0, 0.95) } else { 0.0 }
}

/// Takes the largest step out of a series, if it has one: where the medians of a few points before and after lie further
/// apart than noise (six deviations, from the median absolute difference of neighbours) and half of `floor` explain, and do so
/// at once.
fn take_out_step(points: &mut [(f64, f64)], floor: f64) {
    let side = (points.len() / 10).max(3);
    let apart: Vec<f64> = points.windows(2).map(|w| (w[1].1 - w[0].1).abs()).collect();
    // The median of |N(0, 2 s^2)| is 0.6745 * sqrt(2) * s; a median of n has 1.2533 / sqrt(n) times the deviation of one.
    let one = median(&apart) / 0.954;
    let noise = one * 1.2533 * (2.0 / side as f64).sqrt();
    let of = |part: &[(f64, f64)]| median(&part.iter().map(|p| p.1).collect::<Vec<_>>());
    let shifts: Vec<f64> = (side..=points.len().saturating_sub(side))
        .map(|i| of(&points[i..i + side]) - of(&points[i - side..i]))
        .collect();
    // What is everywhere is the drift's; a step is what one place has beyond it. Looked for with a quarter of it: the rest may
    // be steps, too (of simulated soaks with and without leaks this part is told right most often; tests/verdicts.rs).
    let usual = median(&shifts);
    let beyond = shifts.iter().map(|s| s - 0.25 * usual).enumerate();
    let Some((at, shift)) = beyond.max_by(|a, b| a.1.abs().total_cmp(&b.1.abs())) else { return };
    // A step is there from one point to the next, somewhere near; what a stretch of fast growth has is halved with the windows.
    let half = side / 2;
    let places = (at + side - half)..=(at + side + half).min(points.len() - half);
    let sudden = places.map(|i| of(&points[i..i + half]) - of(&points[i - half..i])).any(|near| near / shift > SUDDEN);
    if sudden && shift.abs() > (6.0 * noise).max(0.5 * floor) {
        points[at + side..].iter_mut().for_each(|p| p.1 -= shift - 0.25 * usual);
    }
}

/// The part by which a rate fell: the median of the last quarter after warm-up lies more than `decay` below that of the
/// first, each quarter below the one before, and nine tenths of the last quarter lie below nine tenths of the first. `None`
/// also for too few samples.
pub fn degradation(rates: &[f64], decay: f64, limits: &Limits) -> Option<f64> {
    let points: Vec<(f64, f64)> = rates.iter().enumerate().map(|(i, r)| (i as f64, *r)).collect();
    let kept = after_warm_up(&points, limits);
    if kept.len() < limits.min_samples {
        return None;
    }
    let quarters: Vec<Vec<f64>> =
        quarters(kept).iter().map(|q| sorted(&q.iter().map(|p| p.1).collect::<Vec<_>>())).collect();
    let mids: Vec<f64> = quarters.iter().map(|q| quantile(q, 0.5)).collect();
    let drop = 1.0 - mids[3] / mids[0];
    let apart = quantile(&quarters[3], 0.9) < quantile(&quarters[0], 0.1);
    (mids[0] > 0.0 && drop > decay && apart && mids.windows(2).all(|w| w[1] < w[0])).then_some(drop)
}

fn after_warm_up<'p>(points: &'p [(f64, f64)], limits: &Limits) -> &'p [(f64, f64)] {
    let skip = (points.len() as f64 * limits.warm_up).ceil() as usize;
    &points[skip.min(points.len())..]
}

fn quarters(points: &[(f64, f64)]) -> [&[(f64, f64)]; 4] {
    let at = |i: usize| points.len() * i / 4;
    [0, 1, 2, 3].map(|i| &points[at(i)..at(i + 1)])
}

/// At most 240 points, each the medians of a run of samples: the slope looks at every pair.
fn thinned(points: &[(f64, f64)]) -> Vec<(f64, f64)> {
    const MOST: usize = 240;
    let run = points.len().div_ceil(MOST).max(1);
    points
        .chunks(run)
        .map(|c| {
            let column = |f: fn(&(f64, f64)) -> f64| median(&c.iter().map(f).collect::<Vec<_>>());
            (column(|p| p.0), column(|p| p.1))
        })
        .collect()
}
