//! Medians, quantiles, intervals: pure functions of samples.

use super::rng::Philox;

/// Quantile by linear interpolation of the order statistics (type 7 of Hyndman and Fan); NaN for no samples.
/// `sorted` must be in ascending order.
pub fn quantile(sorted: &[f64], q: f64) -> f64 {
    if sorted.is_empty() {
        return f64::NAN;
    }
    let at = q.clamp(0.0, 1.0) * (sorted.len() - 1) as f64;
    let (low, part) = (at.floor() as usize, at.fract());
    let high = (low + 1).min(sorted.len() - 1);
    sorted[low] + (sorted[high] - sorted[low]) * part
}

/// A sorted copy.
pub fn sorted(samples: &[f64]) -> Vec<f64> {
    let mut s = samples.to_vec();
    s.sort_by(f64::total_cmp);
    s
}

/// Median; NaN for no samples.
pub fn median(samples: &[f64]) -> f64 {
    quantile(&sorted(samples), 0.5)
}

/// Distribution-free 95 % interval of the median from order statistics (Conover, *Practical Nonparametric Statistics*,
/// 3.2): ranks n/2 ± 1.96·√n/2, rounded outwards. Below six samples no such interval exists, and these are all.
pub fn median_ci(sorted: &[f64]) -> [f64; 2] {
    let n = sorted.len();
    if n == 0 {
        return [f64::NAN; 2];
    }
    let (mid, half) = (n as f64 / 2.0, 1.959_964 * (n as f64).sqrt() / 2.0);
    // Negative ranks are the first.
    let low = (mid - half).floor() as usize;
    let high = ((mid + half).ceil() as usize).min(n - 1);
    [sorted[low], sorted[high]]
}

/// Relative half width of the 95 % interval of the median; infinite without samples.
pub fn relative_spread(samples: &[f64]) -> f64 {
    let s = sorted(samples);
    let m = quantile(&s, 0.5);
    let ci = median_ci(&s);
    let r = (ci[1] - ci[0]) / 2.0 / m;
    if r.is_finite() { r } else { f64::INFINITY }
}

/// 95 % percentile-bootstrap interval of median(a)/median(b) (Efron and Tibshirani, 13.3), resampling pairs when both
/// series were taken interleaved and have the same length, else independently. Deterministic for a seed.
pub fn ratio_ci(a: &[f64], b: &[f64], seed: u64) -> [f64; 2] {
    if a.is_empty() || b.is_empty() {
        return [f64::NAN; 2];
    }
    const ROUNDS: u64 = 400;
    let rng = Philox::new(seed);
    let pick = |stream: u64, i: usize, n: usize| (rng.u64(stream, i as u64) % n as u64) as usize;
    let paired = a.len() == b.len();
    let mut ratios: Vec<f64> = (0..ROUNDS)
        .map(|round| {
            let left: Vec<f64> = (0..a.len()).map(|i| a[pick(2 * round, i, a.len())]).collect();
            let stream = if paired { 2 * round } else { 2 * round + 1 };
            let right: Vec<f64> = (0..b.len()).map(|i| b[pick(stream, i, b.len())]).collect();
            median(&left) / median(&right)
        })
        .collect();
    ratios.sort_by(f64::total_cmp);
    [quantile(&ratios, 0.025), quantile(&ratios, 0.975)]
}

/// Theil-Sen slope: the median of all pairwise slopes of (x, y); 0 for fewer than two points.
pub fn theil_sen(points: &[(f64, f64)]) -> f64 {
    let mut slopes = Vec::new();
    for (i, (x0, y0)) in points.iter().enumerate() {
        for (x1, y1) in &points[i + 1..] {
            if x1 != x0 {
                slopes.push((y1 - y0) / (x1 - x0));
            }
        }
    }
    if slopes.is_empty() { 0.0 } else { median(&slopes) }
}

/// Inverse of a small symmetric matrix by Gauss and Jordan with pivots; `None` where it is singular.
pub fn inverse(matrix: Vec<Vec<f64>>) -> Option<Vec<Vec<f64>>> {
    let n = matrix.len();
    let unit = |i: usize| (0..n).map(move |j| f64::from(u8::from(i == j)));
    let mut rows: Vec<Vec<f64>> =
        matrix.into_iter().enumerate().map(|(i, r)| r.into_iter().chain(unit(i)).collect()).collect();
    for column in 0..n {
        let pivot = (column..n).max_by(|a, b| rows[*a][column].abs().total_cmp(&rows[*b][column].abs()))?;
        rows.swap(column, pivot);
        let by = rows[column][column];
        if by.abs() < 1e-12 || !by.is_finite() {
            return None;
        }
        rows[column].iter_mut().for_each(|v| *v /= by);
        let base = rows[column].clone();
        for (_, row) in rows.iter_mut().enumerate().filter(|(i, _)| *i != column) {
            let by = row[column];
            row.iter_mut().zip(&base).for_each(|(v, b)| *v -= by * b);
        }
    }
    Some(rows.into_iter().map(|r| r[n..].to_vec()).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_and_intervals() {
        assert_eq!(median(&[3.0, 1.0, 2.0]), 2.0);
        assert!(median(&[]).is_nan());
        let s: Vec<f64> = (0..100).map(f64::from).collect();
        let ci = median_ci(&s);
        assert!(ci[0] < 49.5 && ci[1] > 49.5 && ci[1] - ci[0] < 25.0, "{ci:?}");
        assert_eq!(median_ci(&[1.0, 2.0]), [1.0, 2.0]);
    }

    /// The stated 95 % must hold: of 1,000 lognormal series of 31 samples at least 93 % cover the true median.
    #[test]
    fn the_interval_of_the_median_covers() {
        let rng = Philox::new(7);
        let covered = (0..1000u64)
            .filter(|run| {
                let s: Vec<f64> = (0..31).map(|i| (0.3 * rng.normal(*run, i)).exp()).collect();
                let ci = median_ci(&sorted(&s));
                ci[0] <= 1.0 && 1.0 <= ci[1]
            })
            .count();
        assert!(covered >= 930, "{covered} of 1000");
    }

    #[test]
    fn ratio_interval_contains_the_truth_and_excludes_one() {
        let rng = Philox::new(3);
        let a: Vec<f64> = (0..40).map(|i| 2.0 * (0.05 * rng.normal(0, i)).exp()).collect();
        let b: Vec<f64> = (0..40).map(|i| (0.05 * rng.normal(1, i)).exp()).collect();
        let ci = ratio_ci(&a, &b, 1);
        assert!(ci[0] > 1.5 && ci[0] < 2.0 && ci[1] > 2.0 && ci[1] < 2.5, "{ci:?}");
    }

    #[test]
    fn slope_ignores_one_outlier() {
        let mut p: Vec<(f64, f64)> = (0..20).map(|i| (f64::from(i), 2.0 * f64::from(i))).collect();
        p[10].1 = 1e9;
        assert!((theil_sen(&p) - 2.0).abs() < 0.2);
    }

    #[test]
    fn spreads_by_hand() {
        // Ranks 3.5 ± 1.96·√7/2, rounded outwards: the first and the last of seven.
        let s = [1.0, 1.0, 1.9, 2.0, 2.2, 2.4, 4.0];
        assert_eq!(median_ci(&s), [1.0, 4.0]);
        assert_eq!(relative_spread(&s), 0.75);
        assert_eq!(relative_spread(&[2.0, 2.0]), 0.0);
        assert!(relative_spread(&[]).is_infinite() && relative_spread(&[0.0, 0.0]).is_infinite());
        let hundred: Vec<f64> = (0..100).map(f64::from).collect();
        assert_eq!(median_ci(&hundred), [40.0, 60.0]);
        assert_eq!((quantile(&[1.0, 3.0], 0.25), quantile(&[1.0, 3.0], 2.0), quantile(&[5.0], 0.9)), (1.5, 3.0, 5.0));
    }

    #[test]
    fn ratios_of_pairs_and_of_independent_series() {
        // Pairs that move together have a ratio without any noise; taken apart the same numbers have much.
        let a: Vec<f64> = (1..=30).map(f64::from).collect();
        let b: Vec<f64> = a.iter().map(|x| x / 2.0).collect();
        assert_eq!(ratio_ci(&a, &b, 5), [2.0, 2.0]);
        let apart = ratio_ci(&a, &b[..29], 5);
        assert!(apart[0] < 1.7 && apart[1] > 2.3, "{apart:?}");
        assert_eq!(ratio_ci(&a, &b[..29], 5), apart, "the same for a seed");
        assert_ne!(ratio_ci(&a, &b[..29], 6), apart);
        for (x, y) in [(&a[..], &[][..]), (&[], &b), (&[], &[])] {
            assert!(ratio_ci(x, y, 1).iter().all(|v| v.is_nan()));
        }
        // Every round draws anew: of 400 medians many differ.
        let wide = ratio_ci(&a, &[1.0; 30], 5);
        assert!(wide[0] > 8.0 && wide[0] < 13.0 && wide[1] > 18.0 && wide[1] < 23.0, "{wide:?}");
    }
}
