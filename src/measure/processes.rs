//! What samples from several processes say together. Pure functions.
//!
//! The same kernel has medians a factor of two apart in different processes (placement of memory and threads, clocks), so
//! samples of one process, however many, do not tell the next one's time. A process gives one number, the logarithm of its
//! median or of a ratio of medians, with the error that its own samples leave. Their mean is the estimate. Its error is
//! taken from how far the processes lie apart, with Student's t for their few degrees of freedom, and is at least what the
//! samples within them leave: three processes that agree by chance do not make a certain number. Resampling three processes
//! with replacement instead (the bootstrap) gives intervals that hold the truth in about 75 of 100 cases.

use statrs::distribution::{ContinuousCDF, StudentsT};

use crate::base::stats;

/// Half of a two-sided 95 % interval of a normal number, in standard deviations.
const NORMAL: f64 = 1.959_964;

/// An estimate from several processes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Estimate {
    /// Geometric mean over the processes.
    pub value: f64,
    /// 95 % interval.
    pub ci: [f64; 2],
    /// Share of the variance among the processes' numbers that their own samples do not explain, 0 to 1.
    pub between: f64,
}

/// Standard error of the logarithm of a median, by the ranks of its 95 % interval.
fn error(samples: &[f64]) -> f64 {
    let [low, high] = stats::median_ci(&stats::sorted(samples));
    (high / low).ln() / (2.0 * NORMAL)
}

/// Joins numbers with their own standard errors, both logarithms. `None` for fewer than two, or where one is not finite.
fn joined(values: &[(f64, f64)]) -> Option<Estimate> {
    let n = values.len() as f64;
    let t = StudentsT::new(0.0, 1.0, n - 1.0).ok()?.inverse_cdf(0.975);
    let mean = values.iter().map(|v| v.0).sum::<f64>() / n;
    let within = values.iter().map(|v| v.1 * v.1).sum::<f64>() / n;
    let spread = values.iter().map(|v| (v.0 - mean).powi(2)).sum::<f64>() / (n - 1.0);
    let half = (NORMAL * within.sqrt()).max(t * spread.sqrt()) / n.sqrt();
    let between = if spread > within { 1.0 - within / spread } else { 0.0 };
    let e = Estimate { value: mean.exp(), ci: [(mean - half).exp(), (mean + half).exp()], between };
    [e.value, e.ci[0], e.ci[1]].iter().all(|v| v.is_finite()).then_some(e)
}

/// The median of samples by process. `None` for fewer than two processes, or where a process has no positive samples.
pub fn median(processes: &[&[f64]]) -> Option<Estimate> {
    let values: Vec<(f64, f64)> = processes.iter().map(|s| (stats::median(s).ln(), error(s))).collect();
    joined(&values)
}

/// median(a) / median(b) of samples by process, in the same processes and interleaved. `None` as for [`median`].
pub fn ratio(pairs: &[(&[f64], &[f64])]) -> Option<Estimate> {
    let of = |(a, b): &(&[f64], &[f64])| {
        ((stats::median(a) / stats::median(b)).ln(), (error(a).powi(2) + error(b).powi(2)).sqrt())
    };
    joined(&pairs.iter().map(of).collect::<Vec<_>>())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::rng::Philox;

    /// Samples of `processes` at 1 s: offsets of processes and noise of samples, both lognormal.
    fn samples(seed: u64, processes: u64, offset: f64, noise: f64) -> Vec<Vec<f64>> {
        let rng = Philox::new(seed);
        let of = |p: u64| {
            let shift = offset * rng.normal(0, p);
            (0..20).map(|i| (shift + noise * rng.normal(1 + p, i)).exp()).collect()
        };
        (0..processes).map(of).collect()
    }

    /// Whatever processes do to the time, intervals hold the truth in at least 93 of 100 cases. With two processes and no
    /// offset they are wider than need be: two numbers cannot tell that there is none.
    #[test]
    fn intervals_hold_the_truth() {
        for (processes, most) in [(2, 0.999), (3, 0.995), (5, 0.995)] {
            for offset in [0.0, 0.003, 0.01, 0.03, 0.3] {
                let holds = |seed: &u64| {
                    let all = samples(*seed, processes, offset, 0.03);
                    let e = median(&all.iter().map(Vec::as_slice).collect::<Vec<_>>()).unwrap();
                    e.ci[0] <= 1.0 && 1.0 <= e.ci[1]
                };
                let share = (0..2_000).filter(holds).count() as f64 / 2_000.0;
                assert!((0.93..=most).contains(&share), "{processes} processes, {offset}: {share}");
            }
        }
    }

    /// An offset of the whole process drops out of a ratio taken within it.
    #[test]
    fn ratios_are_of_the_same_process() {
        let a = samples(1, 3, 0.3, 0.01);
        let b: Vec<Vec<f64>> = a.iter().map(|s| s.iter().rev().map(|v| v / 2.0).collect()).collect();
        let pairs: Vec<(&[f64], &[f64])> = a.iter().zip(&b).map(|(a, b)| (&a[..], &b[..])).collect();
        let e = ratio(&pairs).unwrap();
        assert!((e.value - 2.0).abs() < 1e-9 && e.ci[0] > 1.97 && e.ci[1] < 2.03, "{e:?}");
        let views: Vec<&[f64]> = a.iter().map(Vec::as_slice).collect();
        let alone = median(&views).unwrap();
        assert!(alone.ci[1] / alone.ci[0] > 1.5 && alone.between > 0.9, "{alone:?}");
    }

    #[test]
    fn what_says_nothing_gives_nothing() {
        assert_eq!(median(&[]), None);
        assert_eq!(median(&[&[1.0, 1.0]]), None, "one process");
        assert_eq!(median(&[&[1.0], &[]]), None);
        assert_eq!(median(&[&[1.0], &[0.0]]), None);
        let same = median(&[&[2.0; 9], &[2.0; 9]]).unwrap();
        assert_eq!((same.ci, same.between), ([2.0f64.ln().exp(); 2], 0.0));
    }
}
