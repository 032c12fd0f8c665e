//! When to stop sampling, and how many calls to time at once. Pure.

use crate::base::stats;

/// When a set of interleaved series is good enough.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StopRule {
    /// Fewest samples per series.
    pub min_samples: usize,
    /// Most samples per series.
    pub max_samples: usize,
    /// Relative half width of the median's interval that is good enough.
    pub spread: f64,
    /// Seconds after which a set with `min_samples` stops even if it is noisier.
    pub soft_s: f64,
    /// Seconds after which sampling stops whatever there is.
    pub budget_s: f64,
    /// Timed regions last [`REGION_S`], or this long if that is more and no more than [`SINGLES`] single calls: calls that are shorter
    /// are timed several at once.
    pub region_s: f64,
}

/// So many single calls, each with its wait: where that many launches share one, it does not count.
pub const SINGLES: f64 = 30.0;

/// Shortest timed region of calls in seconds: about 2,000 steps of the clock (24 ns here).
pub const REGION_S: f64 = 50e-6;

impl StopRule {
    /// 2 % spread, 7 to 200 samples, one second; never beyond `budget_s`.
    pub fn with_budget(budget_s: f64) -> Self {
        StopRule {
            min_samples: 7,
            max_samples: 200,
            spread: 0.02,
            soft_s: budget_s.min(1.0),
            budget_s,
            region_s: REGION_S,
        }
    }
}

/// What to do after a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Take another round.
    Continue,
    /// All series are narrow enough, or their noise no longer shrinks.
    Settled,
    /// Time or number of samples is used up.
    Spent,
}

impl StopRule {
    /// Decides from the samples of all series (equal lengths) and the seconds spent.
    pub fn decide(&self, series: &[&[f64]], elapsed_s: f64) -> Verdict {
        let n = series.iter().map(|s| s.len()).min().unwrap_or(0);
        if n >= self.max_samples || elapsed_s >= self.budget_s {
            return Verdict::Spent;
        }
        if n < self.min_samples {
            return Verdict::Continue;
        }
        if series.iter().all(|s| stats::relative_spread(s) <= self.spread) {
            return Verdict::Settled;
        }
        // nvbench's second criterion: the estimate of the noise itself has become stable, more samples show the same.
        if n >= 32 && series.iter().all(|s| stable_noise(s)) {
            return Verdict::Settled;
        }
        if elapsed_s >= self.soft_s { Verdict::Spent } else { Verdict::Continue }
    }
}

/// True if the interquartile range of the first half and of all samples agree within 10 %.
fn stable_noise(samples: &[f64]) -> bool {
    let iqr = |s: &[f64]| {
        let s = stats::sorted(s);
        stats::quantile(&s, 0.75) - stats::quantile(&s, 0.25)
    };
    let (half, all) = (iqr(&samples[..samples.len() / 2]), iqr(samples));
    all > 0.0 && (half / all - 1.0).abs() < 0.1
}

/// Calls per timed region so that the region lasts at least `region_s`; 1 for calls that last longer.
pub fn batch_for(call_s: f64, region_s: f64) -> u64 {
    if call_s <= 0.0 || !call_s.is_finite() {
        return 1;
    }
    ((region_s / call_s - 1e-6).ceil() as u64).clamp(1, 4096)
}

/// Seconds that a call of cost `next` will take, from a measured call of cost `known` of the same kernel: the larger of
/// the two ratios (arithmetic, bytes) is assumed, so that a doubtful point is rather left out than started.
pub fn predict(known_s: f64, known: &crate::base::Cost, next: &crate::base::Cost) -> f64 {
    let ratio = |a: u64, b: u64| if b == 0 { 1.0 } else { a as f64 / b as f64 };
    known_s * ratio(next.flops, known.flops).max(ratio(next.bytes(), known.bytes())).max(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::{Cost, rng::Philox};

    const RULE: StopRule =
        StopRule { min_samples: 7, max_samples: 200, spread: 0.02, soft_s: 1.0, budget_s: 10.0, region_s: REGION_S };

    #[test]
    fn quiet_series_settle_and_noisy_ones_go_on() {
        let quiet = [1.0; 7];
        assert_eq!(RULE.decide(&[&quiet[..6]], 0.1), Verdict::Continue);
        assert_eq!(RULE.decide(&[&quiet], 0.1), Verdict::Settled);
        let noisy = [1.0, 2.0, 1.0, 2.0, 1.0, 2.0, 1.5];
        assert_eq!(RULE.decide(&[&quiet, &noisy], 0.1), Verdict::Continue);
        assert_eq!(RULE.decide(&[&quiet, &noisy], 1.1), Verdict::Spent);
        assert_eq!(RULE.decide(&[&quiet[..2]], 11.0), Verdict::Spent, "the budget holds without samples too");
        assert_eq!(RULE.decide(&[&[f64::NAN; 8]], 0.1), Verdict::Continue, "NaN never settles");
    }

    #[test]
    fn constant_noise_ends_before_the_sample_limit() {
        let rng = Philox::new(5);
        let s: Vec<f64> = (0..200).map(|i| 1.0 + 0.5 * rng.unit(0, i)).collect();
        let stop = (7..200).find(|n| RULE.decide(&[&s[..*n]], 0.5) != Verdict::Continue).unwrap();
        assert!(stop < 200, "{stop}");
    }

    #[test]
    fn batches_and_predictions() {
        assert_eq!(batch_for(1e-3, 1e-4), 1);
        assert_eq!(batch_for(1e-7, 1e-4), 1000);
        assert_eq!(batch_for(0.0, 1e-4), 1);
        let cost = |n: u64| Cost { flops: 2 * n * n * n, read: 8 * n * n, written: 4 * n * n };
        assert!((predict(1.0, &cost(512), &cost(1024)) - 8.0).abs() < 1e-9);
    }

    #[test]
    fn noise_is_stable_if_half_the_samples_show_it() {
        let wave: Vec<f64> = (0..32).map(|i| 1.0 + f64::from(i % 4)).collect();
        assert!(stable_noise(&wave));
        let mut growing = wave.clone();
        growing[16..].iter_mut().for_each(|v| *v *= 3.0);
        assert!(!stable_noise(&growing));
        assert!(!stable_noise(&[1.0; 32]), "no noise at all is no stable noise");
        let mut shrinking = wave.clone();
        shrinking[..16].iter_mut().for_each(|v| *v *= 3.0);
        assert!(!stable_noise(&shrinking));
        assert_eq!(RULE.decide(&[&wave], 0.1), Verdict::Settled);
        assert_eq!(RULE.decide(&[&wave[..31]], 0.1), Verdict::Continue, "too few to tell");
        assert_eq!(RULE.decide(&[&wave, &growing], 0.1), Verdict::Continue, "all series must be stable");
        assert_eq!(RULE.decide(&[&[1.0, 9.0].repeat(100)], 0.1), Verdict::Spent);
        assert_eq!(RULE.decide(&[&[1.0, 9.0].repeat(4)], 1.0), Verdict::Spent, "softly, with the fewest samples");
        assert_eq!(RULE.decide(&[], 0.1), Verdict::Continue);
    }

    #[test]
    fn rules_batches_and_predictions_at_their_borders() {
        let rule = StopRule::with_budget(0.25);
        assert_eq!((rule.min_samples, rule.max_samples, rule.soft_s, rule.budget_s), (7, 200, 0.25, 0.25));
        assert_eq!(StopRule::with_budget(9.0).soft_s, 1.0);
        assert_eq!([batch_for(f64::NAN, 1.0), batch_for(-1.0, 1.0), batch_for(1e-12, 1.0)], [1, 1, 4096]);
        assert_eq!([batch_for(0.3e-4, 1e-4), batch_for(0.25e-4, 1e-4)], [4, 4]);
        let cost = |flops, read| Cost { flops, read, written: 0 };
        assert_eq!(predict(2.0, &cost(10, 10), &cost(20, 50)), 10.0, "the larger ratio");
        assert_eq!(predict(2.0, &cost(0, 10), &cost(5, 5)), 2.0, "without a base nothing is scaled");
    }
}
