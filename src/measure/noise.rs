//! The sampler held against itself: two equal things, and a thing that does known times as much.

use std::sync::Arc;

use crate::base::sink::Cancel;
use crate::base::{Clock, Result, stats};

use super::stop::SINGLES;
use super::{StopRule, Subject, sample};

/// What the sampler finds where the answer is known.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Noise {
    /// Median time of a thing over that of the same thing, and the 95 % interval.
    pub null: (f64, [f64; 2]),
    /// Median time of [`TIMES`] as much work over that of once, and the 95 % interval.
    pub known: (f64, [f64; 2]),
    /// Pairs of samples of each comparison, at least.
    pub pairs: u64,
}

/// How many times as much the known ratio does.
pub const TIMES: u64 = 3;

/// A deviation that no interval excuses: caches and overlap make three calls cheaper than three times one, not by a third.
const GROSS: f64 = 1.0 / 3.0;

impl Noise {
    /// The largest relative difference that the interval of two equal things holds.
    pub fn floor(&self) -> f64 {
        let [low, high] = self.null.1;
        (high - 1.0).abs().max((1.0 - low).abs()).max((self.null.0 - 1.0).abs())
    }

    /// What is wrong with the sampler, if anything: equal things differ, or a known ratio is missed by more than the
    /// intervals and a tenth allow.
    pub fn fault(&self) -> Option<String> {
        let (null, [low, high]) = self.null;
        if !(null.is_finite() && self.known.0.is_finite()) {
            return Some("there are too few samples".into());
        }
        if low > 1.1 || high < 1.0 / 1.1 {
            return Some(format!("two equal things differ: {null:.3} times, interval {low:.3} to {high:.3}"));
        }
        let (found, [low, high]) = self.known;
        let (want, slack) = (TIMES as f64, 1.1 + self.floor());
        let within = low / slack <= want && want <= high * slack;
        let gross = (found / want - 1.0).abs() > GROSS + self.floor();
        (!within || gross)
            .then(|| format!("{TIMES} times the work takes {found:.2} times as long, interval {low:.2} to {high:.2}"))
    }
}

/// Does another subject's work several times per call.
struct Times<'a>(&'a mut dyn Subject, u64);

impl Subject for Times<'_> {
    fn run(&mut self, calls: u64) -> Result<()> {
        self.0.run(calls * self.1)
    }
    fn share(&self) -> u64 {
        self.0.share()
    }
    fn clock(&self) -> Arc<dyn Clock> {
        self.0.clock()
    }
    fn before(&mut self) -> Result<()> {
        self.0.before()
    }
    fn one_call(&self) -> bool {
        self.0.one_call()
    }
}

/// A region that is repeated for the known ratio lasts [`SINGLES`] single calls, or this many seconds, and this part of the budget:
/// what a wait costs, however much was launched before it, must be little beside it. Through wgpu on an H200 a wait takes 200 us,
/// and three launches took 1.12 times as long as one.
const LONG_S: f64 = 10e-3;
const LONG_PART: f64 = 0.01;

/// Most calls of a region.
const MOST: u64 = 4096;

/// Calls that take long enough for their wait not to count, and the seconds that they took.
fn long(s: &mut dyn Subject, budget_s: f64) -> Result<(u64, f64)> {
    let clock = s.clock();
    let (mut calls, mut single) = (1, f64::INFINITY);
    loop {
        s.before()?;
        let begin = clock.now();
        s.run(calls)?;
        let took = clock.now() - begin;
        single = single.min(took);
        let enough = LONG_S.min((SINGLES * single).max(LONG_PART * budget_s));
        if took >= enough || calls >= MOST || s.one_call() {
            return Ok((calls, took));
        }
        calls *= 2;
    }
}

/// Samples `a` against `b`, which does the same, and then `a` against [`TIMES`] as much of `b`, as often as their waits ask for;
/// for at most `budget_s` in all, or a third of a second more where a wait takes long.
///
/// Errors: those of the subjects; `Cancelled`.
pub fn noise(a: &mut dyn Subject, b: &mut dyn Subject, budget_s: f64, cancel: &Cancel) -> Result<Noise> {
    let rule = StopRule { max_samples: 64, ..StopRule::with_budget(budget_s / 2.0) };
    let equal = sample(&mut [&mut *a, &mut *b], &rule, cancel)?;
    let (once, took) = long(a, budget_s)?;
    // A wait may make the regions longer than the budget is: it must hold the fewest samples.
    let least = (rule.min_samples + 2) as f64 * (1 + TIMES) as f64 * took;
    let budget_s = rule.budget_s.max(least.min(32.0 * LONG_S));
    let rule = StopRule { max_samples: 64, ..StopRule::with_budget(budget_s) };
    let more = sample(&mut [&mut Times(&mut *a, once), &mut Times(b, TIMES * once)], &rule, cancel)?;
    let ratio =
        |above: &[f64], below: &[f64]| (stats::median(above) / stats::median(below), stats::ratio_ci(above, below, 1));
    Ok(Noise {
        null: ratio(&equal[0].samples, &equal[1].samples),
        known: ratio(&more[1].samples, &more[0].samples),
        pairs: equal[0].samples.len().min(more[0].samples.len()) as u64,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::{VirtualClock, rng::Philox};

    /// Takes 100 us a call with that much lognormal noise, and so long for the wait; `skip`: leaves out every call but the first of
    /// a region.
    struct Fake {
        clock: Arc<VirtualClock>,
        sd: f64,
        factor: f64,
        wait_s: f64,
        skip: bool,
        calls: u64,
        stream: u64,
    }

    impl Subject for Fake {
        fn run(&mut self, calls: u64) -> Result<()> {
            self.clock.advance(self.wait_s);
            for _ in 0..if self.skip { 1 } else { calls } {
                self.calls += 1;
                let z = Philox::new(11).normal(self.stream, self.calls);
                self.clock.advance(1e-4 * self.factor * (self.sd * z).exp());
            }
            Ok(())
        }
        fn clock(&self) -> Arc<dyn Clock> {
            self.clock.clone()
        }
    }

    fn found(sd: f64, factor: f64, skip: bool) -> Noise {
        found_with(sd, factor, skip, 0.0)
    }

    fn found_with(sd: f64, factor: f64, skip: bool, wait_s: f64) -> Noise {
        let clock = Arc::new(VirtualClock::new());
        let fake = |stream, factor, skip| Fake { clock: clock.clone(), sd, factor, wait_s, skip, calls: 0, stream };
        noise(&mut fake(1, 1.0, false), &mut fake(2, factor, skip), 0.3, &Cancel::new()).unwrap()
    }

    #[test]
    fn equal_things_and_a_known_ratio_are_found() {
        let quiet = found(0.0, 1.0, false);
        assert!(quiet.floor() < 1e-6 && (quiet.known.0 - 3.0).abs() < 1e-6 && quiet.fault().is_none(), "{quiet:?}");
        assert!(quiet.pairs >= 7);
        let noisy = found(0.05, 1.0, false);
        assert!(noisy.floor() > 0.002 && noisy.floor() < 0.08 && noisy.fault().is_none(), "{noisy:?}");
        assert!(noisy.floor() > quiet.floor());
    }

    #[test]
    fn a_sampler_that_prefers_one_side_and_work_that_is_left_out_are_found() {
        let unequal = found(0.02, 1.3, false);
        assert!(unequal.fault().unwrap().contains("two equal things differ"), "{unequal:?}");
        assert!(unequal.floor() > 0.2);
        let skipped = found(0.02, 1.0, true);
        assert!(skipped.fault().unwrap().contains("3 times the work takes"), "{skipped:?}");
    }
    #[test]
    fn a_long_wait_hides_neither_the_known_ratio_nor_work_that_is_left_out() {
        let patient = found_with(0.02, 1.0, false, 2e-3);
        assert!(patient.fault().is_none() && patient.known.0 > 2.4, "{patient:?}");
        let skipped = found_with(0.02, 1.0, true, 2e-3);
        assert!(skipped.fault().unwrap().contains("3 times the work takes"), "{skipped:?}");
    }
}
