//! What a calibrated key says, in words and numbers.

use crate::measure::crossing::Outcome;
use crate::profile::Verdict;

pub use crate::profile::with_margin;

/// The points hold what all processes measured, so they may differ by more than the interval says.
const LEFT_OUT: &str = "; one process was apart from all others and does not count";

/// What the points say.
#[derive(Clone, Debug, PartialEq)]
pub struct Decision {
    /// Verdict.
    pub verdict: Verdict,
    /// Size from which on the device wins, at every larger one, too.
    pub crossing: Option<u64>,
    /// 95 % interval of the crossing.
    pub ci: Option<[u64; 2]>,
    /// How many times as long a call takes on the wrong side, at most, at sizes within that interval.
    pub stake: Option<f64>,
    /// ceil(crossing × margin); for `always` the smallest measured size, below which nothing is known.
    pub threshold: Option<u64>,
    /// The evidence in words.
    pub reason: String,
}

impl Decision {
    /// One without numbers.
    pub fn none(verdict: Verdict, reason: impl Into<String>) -> Self {
        Decision { verdict, crossing: None, ci: None, stake: None, threshold: None, reason: reason.into() }
    }
}

/// The decision for measured sizes in ascending order.
pub fn decide(outcome: &Outcome, sizes: &[u64], margin: f64) -> Decision {
    let (Some(first), Some(last)) = (sizes.first().copied(), sizes.last().copied()) else {
        return Decision::none(Verdict::Unmeasured, "no size was measured");
    };
    let range = format!("{first} to {last}");
    match outcome {
        Outcome::Always => Decision {
            verdict: Verdict::Always,
            crossing: Some(first),
            ci: None,
            stake: None,
            threshold: Some(first),
            reason: format!("the device wins at all sizes from {range}"),
        },
        Outcome::Never => Decision::none(Verdict::Never, format!("the device wins at no size from {range}")),
        Outcome::Crossing { size, ci, stake, without } => Decision {
            verdict: Verdict::Crossing,
            crossing: Some(*size),
            ci: Some(*ci),
            stake: Some(*stake),
            threshold: Some(with_margin(*size, margin)),
            reason: format!("the device wins from {size} to {last}{}", if without.is_some() { LEFT_OUT } else { "" }),
        },
        Outcome::NonMonotone(sure) => {
            Decision::none(Verdict::NonMonotone, format!("the winner changes more than once: {}", bands(sure)))
        }
        Outcome::Inconclusive(why) => Decision::none(Verdict::Inconclusive, format!("{why}; sizes {range}")),
    }
}

/// Who surely wins where; true is the device.
fn bands(sure: &[(u64, bool)]) -> String {
    let mut bands: Vec<(bool, u64, u64)> = Vec::new();
    for (size, gpu) in sure {
        match bands.last_mut() {
            Some(b) if b.0 == *gpu => b.2 = *size,
            _ => bands.push((*gpu, *size, *size)),
        }
    }
    let text = |(gpu, a, b): &(bool, u64, u64)| {
        let who = if *gpu { "device" } else { "CPU" };
        if a == b { format!("{who} at {a}") } else { format!("{who} {a} to {b}") }
    };
    bands.iter().map(text).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZES: [u64; 3] = [100, 1000, 10_000];

    #[test]
    fn outcomes_become_verdicts() {
        let of = |o| decide(&o, &SIZES, 1.1);
        for (without, said) in [(None, false), (Some(4), true)] {
            let d = of(Outcome::Crossing { size: 500, ci: [450, 560], stake: 1.1, without });
            assert_eq!(
                (d.verdict, d.crossing, d.ci, d.stake, d.threshold),
                (Verdict::Crossing, Some(500), Some([450, 560]), Some(1.1), Some(550))
            );
            assert_eq!(d.reason.contains("does not count"), said, "{}", d.reason);
        }
        let d = of(Outcome::Always);
        assert_eq!((d.verdict, d.crossing, d.ci, d.threshold), (Verdict::Always, Some(100), None, Some(100)));
        for (outcome, verdict) in [
            (Outcome::Never, Verdict::Never),
            (Outcome::NonMonotone(vec![(100, true), (1000, false)]), Verdict::NonMonotone),
            (Outcome::Inconclusive("noise"), Verdict::Inconclusive),
        ] {
            let d = of(outcome);
            assert_eq!((d.verdict, d.crossing, d.ci, d.threshold), (verdict, None, None, None));
        }
        assert_eq!(decide(&Outcome::Always, &[], 1.1).verdict, Verdict::Unmeasured);
    }

    #[test]
    fn bands_are_named() {
        let sure = [(100, false), (200, false), (400, true), (800, true), (1600, false)];
        assert_eq!(bands(&sure), "CPU 100 to 200, device 400 to 800, CPU at 1600");
    }

    #[test]
    fn margins_round_up_without_an_extra_one() {
        assert_eq!(with_margin(1000, 1.1), 1100);
        assert_eq!(with_margin(1001, 1.1), 1102);
        assert_eq!(with_margin(7, 1.0), 7);
        assert_eq!(with_margin(u64::MAX, 1.1), u64::MAX);
    }
}
