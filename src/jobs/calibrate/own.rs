//! A threshold for functions of one's own: any two that do the same on the CPU and on a device.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::base::record::CalibratePoint;
use crate::base::sink::Cancel;
use crate::base::{Clock, Code, DType, Error, Result, stats, units};
use crate::measure::crossing::{self, Look, Outcome, Plan, Step};
use crate::measure::{REGION_S, StopRule, Subject, processes, sample};
use crate::profile::{self, BY_CALLER, CPU_AUTO, Call, Entry, ProfileDevice, UNITS, Verdict};

use super::decide;

/// Pairs of each look, and fewest of one that counts.
const PAIRS: usize = 9;
const LEAST: usize = 3;
/// Share of the budget that a look may take.
const POINT: f64 = 0.05;

/// What a pair of functions is called, and how it is measured.
#[derive(Clone)]
pub struct Own {
    /// The name that [`profile::Profile::choose`] is asked for; not that of an op.
    pub name: String,
    /// Where the second function computes.
    pub device: ProfileDevice,
    /// threshold over crossing, at least 1.
    pub margin: f64,
    /// Seconds on the clock for everything.
    pub budget_s: f64,
    /// The clock that the functions' time passes on.
    pub clock: Arc<dyn Clock>,
}

impl std::fmt::Debug for Own {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Own({} on {}, margin {}, {} s)", self.name, self.device.id, self.margin, self.budget_s)
    }
}

/// A function at one size.
struct Side<'f> {
    call: &'f mut dyn FnMut(u64) -> Result<()>,
    size: u64,
    clock: Arc<dyn Clock>,
}

impl Subject for Side<'_> {
    fn run(&mut self, calls: u64) -> Result<()> {
        (0..calls).try_for_each(|_| (self.call)(self.size))
    }
    fn clock(&self) -> Arc<dyn Clock> {
        Arc::clone(&self.clock)
    }
}

/// From which size on `gpu` is faster than `cpu`, as an entry for a profile ([`profile::Profile::put`]).
///
/// Both are called with a size in `unit` between `sizes` and return when the result is there. What they make once per size is
/// made in the first call, which is not measured. Sizes are looked at in interleaved pairs, in rounds in this process, and
/// the entry's remark says so: another process may find other times. Whether the two compute the same is the caller's matter,
/// and the entry says that, too.
///
/// Errors: `BadArgument` for a name without letters or that of an op, an unknown unit, sizes that do not grow, a margin below
/// 1 or no budget; the first error of a function; `Cancelled`.
pub fn measure(
    own: &Own,
    unit: &str,
    sizes: (u64, u64),
    cpu: &mut dyn FnMut(u64) -> Result<()>,
    gpu: &mut dyn FnMut(u64) -> Result<()>,
    cancel: &Cancel,
) -> Result<Entry> {
    let bad = |why: String| Err(Error::new(Code::BadArgument, format!("measuring '{}': {why}", own.name)));
    if own.name.trim().is_empty() || own.name == profile::ANY || crate::op::find(&own.name).is_ok() {
        return bad("the name is empty, reserved, or that of an op".into());
    }
    if !UNITS.contains(&unit) {
        return bad(format!("unknown unit '{unit}'; known: {}", UNITS.join(" ")));
    }
    if sizes.0 == 0 || sizes.0 >= sizes.1 || i64::try_from(sizes.1).is_err() {
        return bad(format!("sizes {} to {}: expected 1 <= smallest < largest < 2^63", sizes.0, sizes.1));
    }
    if !(own.margin.is_finite() && (1.0..=100.0).contains(&own.margin)) {
        return bad(format!("margin {}: expected 1 to 100", own.margin));
    }
    if !(own.budget_s > 0.0 && own.budget_s.is_finite()) {
        return bad("no budget".into());
    }
    let mut measuring =
        Measuring { own, begin: own.clock.now(), series: BTreeMap::new(), round_s: None, cpu, gpu, cancel };
    let (outcome, cut) = measuring.run(sizes)?;
    let points = measuring.points();
    let measured: Vec<u64> = points.iter().map(|p| p.size).collect();
    let decision = decide::decide(&outcome, &measured, own.margin);
    let mut reason =
        format!("{}; measured in rounds in one process: another one may find other times", decision.reason);
    if let Some(cut) = cut {
        reason.push_str(&format!("; {cut}"));
    }
    Ok(Entry {
        op: own.name.clone(),
        dtype: DType::F32.name().into(),
        family: Call::OWN_FAMILY.into(),
        device: own.device.uid.clone(),
        residency: profile::choose::ALWAYS.into(),
        threads: 1,
        cpu_variant: CPU_AUTO.into(),
        verdict: if measured.is_empty() { Verdict::Unmeasured } else { decision.verdict },
        unit: unit.into(),
        crossing: decision.crossing,
        ci: decision.ci,
        stake: decision.stake,
        threshold: decision.threshold,
        n: points.len() as u64,
        verify: BY_CALLER.into(),
        reason,
        points,
        ..Entry::default()
    })
}

struct Measuring<'a, 'f> {
    own: &'a Own,
    begin: f64,
    /// Samples of both by size; the rounds in order.
    series: BTreeMap<u64, Vec<(Vec<f64>, Vec<f64>)>>,
    /// Size of the last look and seconds of a pair there.
    round_s: Option<(u64, f64)>,
    cpu: &'f mut dyn FnMut(u64) -> Result<()>,
    gpu: &'f mut dyn FnMut(u64) -> Result<()>,
    cancel: &'a Cancel,
}

impl Measuring<'_, '_> {
    /// What is known, and why larger sizes are missing, if they are.
    fn run(&mut self, sizes: (u64, u64)) -> Result<(Outcome, Option<String>)> {
        let (mut grid, mut cut) = (Vec::new(), None);
        for size in crossing::grid(sizes) {
            if let Some(why) = self.look(size)? {
                cut = Some(format!("sizes from {size} on are left out: {why}"));
                break;
            }
            grid.push(size);
        }
        // A round is what a process is elsewhere; the functions' operands are the caller's.
        let plan = Plan { visits: 1, ..Plan::new(grid) };
        loop {
            let looks: Vec<Look> = self.series.iter().map(|(size, pairs)| Look::of(*size, pairs)).collect();
            let (sizes, rounds) = match crossing::next(&looks, &plan, &|size| size) {
                _ if plan.grid.is_empty() => return Ok((Outcome::Inconclusive("nothing was measured"), cut)),
                Step::Done(outcome) => return Ok((outcome, cut)),
                Step::Measure { sizes, processes, .. } => (sizes, processes),
            };
            for round in 0..rounds {
                for size in &sizes {
                    let have = self.series.get(size).map_or(0, Vec::len);
                    if have <= round && self.look(*size)?.is_some() {
                        return Ok((Outcome::Inconclusive("the budget was spent before it was known"), cut));
                    }
                }
            }
        }
    }

    /// Measures a size once more, or says why not.
    fn look(&mut self, size: u64) -> Result<Option<String>> {
        let clock = &self.own.clock;
        let left = self.own.budget_s - (clock.now() - self.begin);
        // Nothing is known of the functions but that larger sizes take longer: in proportion, at least.
        let expected = self.round_s.map_or(0.0, |(known, s)| s * (size as f64 / known as f64).max(1.0));
        if left <= expected * LEAST as f64 {
            return Ok(Some(format!("the budget of {} does not hold it", units::seconds(self.own.budget_s))));
        }
        let pairs =
            if expected > 0.0 { ((POINT * self.own.budget_s / expected) as usize).clamp(LEAST, PAIRS) } else { PAIRS };
        let rule = StopRule {
            min_samples: pairs,
            max_samples: pairs,
            spread: 0.0,
            soft_s: left,
            budget_s: left,
            region_s: REGION_S,
        };
        let mut cpu = Side { call: &mut *self.cpu, size, clock: Arc::clone(clock) };
        let mut gpu = Side { call: &mut *self.gpu, size, clock: Arc::clone(clock) };
        let series = sample(&mut [&mut cpu, &mut gpu], &rule, self.cancel)?;
        if self.cancel.raised() {
            return Err(Error::new(Code::Cancelled, "interrupted"));
        }
        let mut samples = series.into_iter().map(|s| s.samples);
        let pair = (samples.next().unwrap_or_default(), samples.next().unwrap_or_default());
        if pair.0.len() < LEAST || pair.1.len() < LEAST {
            return Ok(Some("the budget holds too few pairs".into()));
        }
        self.round_s = Some((size, stats::median(&pair.0) + stats::median(&pair.1)));
        self.series.entry(size).or_default().push(pair);
        Ok(None)
    }

    fn points(&self) -> Vec<CalibratePoint> {
        let point = |(size, rounds): (&u64, &Vec<(Vec<f64>, Vec<f64>)>)| {
            let mean = |of: fn(&(Vec<f64>, Vec<f64>)) -> &Vec<f64>| {
                (rounds.iter().map(|r| stats::median(of(r)).ln()).sum::<f64>() / rounds.len() as f64).exp()
            };
            let views: Vec<(&[f64], &[f64])> = rounds.iter().map(|(c, g)| (&c[..], &g[..])).collect();
            let alone = || rounds.first().map_or([f64::NAN; 2], |(c, g)| stats::ratio_ci(c, g, *size));
            CalibratePoint {
                size: *size,
                cpu_s: mean(|r| &r.0),
                gpu_s: mean(|r| &r.1),
                ratio_ci: processes::ratio(&views).map_or_else(alone, |e| e.ci),
                pairs: rounds.iter().map(|r| r.0.len() as u64).sum(),
            }
        };
        // A time of zero is no evidence, and no profile may hold one.
        let sound =
            |p: &CalibratePoint| p.cpu_s > 0.0 && p.gpu_s > 0.0 && p.ratio_ci.iter().all(|v| v.is_finite() && *v > 0.0);
        self.series.iter().map(point).filter(sound).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::VirtualClock;
    use crate::base::rng::Philox;
    use crate::profile::{Kind, Place, Policy, Profile};

    fn device() -> ProfileDevice {
        ProfileDevice {
            id: "opencl:0".into(),
            uid: "pci:1".into(),
            backend: "opencl".into(),
            ..ProfileDevice::default()
        }
    }

    fn own(clock: &Arc<VirtualClock>) -> Own {
        Own { name: "blur".into(), device: device(), margin: 1.1, budget_s: 60.0, clock: clock.clone() }
    }

    /// 1 ns an element against 90 us and a tenth of it, with 5 % of noise: they cross at 100,000.
    fn timed(noise: f64, cpu_ns: f64, fixed_ns: f64, gpu_ns: f64) -> Result<Entry> {
        let clock = Arc::new(VirtualClock::new());
        let rng = Philox::new(9);
        let pass = |stream: u64, i: &mut u64, ns: f64| {
            *i += 1;
            clock.advance(ns * 1e-9 * (noise * rng.normal(stream, *i)).exp());
            Ok(())
        };
        let (mut a, mut b) = (0, 0);
        let mut cpu = |n: u64| pass(0, &mut a, n as f64 * cpu_ns);
        let mut gpu = |n: u64| pass(1, &mut b, fixed_ns + n as f64 * gpu_ns);
        measure(&own(&clock), "elements", (1_000, 10_000_000), &mut cpu, &mut gpu, &Cancel::new())
    }

    #[test]
    fn two_functions_get_a_threshold_that_a_profile_answers_with() {
        let entry = timed(0.05, 1.0, 90_000.0, 0.1).unwrap();
        let [low, high] = entry.ci.unwrap();
        assert!(low <= 100_000 && 100_000 <= high && high as f64 / low as f64 <= 1.25, "{:?}", entry.ci);
        assert_eq!(entry.threshold.unwrap(), decide::with_margin(entry.crossing.unwrap(), 1.1));
        assert!(entry.reason.contains("in one process"), "{}", entry.reason);
        let threshold = entry.threshold.unwrap();
        let mut p = Profile::new(Kind::Calibrated, "mine");
        p.put(&device(), entry.clone());
        p.put(&device(), entry);
        assert_eq!((p.devices.len(), p.entries.len()), (1, 1), "putting it again replaces it");
        let back = Profile::from_toml(&p.to_toml().unwrap()).unwrap();
        let at = |name: &str, unit: &str, n: u64| back.choose(Policy::Automatic, &Call::own(name, unit, n)).place;
        assert_eq!(at("blur", "elements", threshold), Place::Gpu);
        assert_eq!(at("blur", "elements", threshold - 1), Place::Cpu);
        assert_eq!(at("blur", "dim", 1 << 40), Place::Cpu, "another unit");
        assert_eq!(at("sharpen", "elements", 1 << 40), Place::Cpu);
        assert_eq!(
            back.choose(Policy::Automatic, &Call::own("blur", "elements", threshold)).device.unwrap().id,
            "opencl:0"
        );
    }

    #[test]
    fn the_other_verdicts_and_mistakes() {
        assert_eq!(timed(0.02, 1.0, 90_000.0, 1.5).unwrap().verdict, Verdict::Never);
        assert_eq!(timed(0.02, 1.0, 10.0, 0.5).unwrap().verdict, Verdict::Always);
        let clock = Arc::new(VirtualClock::new());
        let mut nothing = |_| Ok(());
        let mut fails = |_| Err(Error::new(Code::KernelFailed, "of its own"));
        let good = own(&clock);
        let cancel = Cancel::new();
        for (own, unit, sizes) in [
            (Own { name: "gemm".into(), ..good.clone() }, "elements", (1, 10)),
            (Own { name: " ".into(), ..good.clone() }, "elements", (1, 10)),
            (Own { margin: 0.5, ..good.clone() }, "elements", (1, 10)),
            (Own { budget_s: f64::NAN, ..good.clone() }, "elements", (1, 10)),
            (good.clone(), "pixels", (1, 10)),
            (good.clone(), "elements", (0, 10)),
            (good.clone(), "elements", (10, 10)),
        ] {
            let e = measure(&own, unit, sizes, &mut |_| Ok(()), &mut nothing, &cancel).unwrap_err();
            assert_eq!(e.code(), Code::BadArgument, "{e}");
        }
        let e = measure(&good, "elements", (1, 10), &mut |_| Ok(()), &mut fails, &cancel).unwrap_err();
        assert!(e.to_string().contains("of its own"), "{e}");
        // A clock that stands still measures nothing, and nothing goes to the device.
        let still = measure(&good, "elements", (1, 100), &mut |_| Ok(()), &mut nothing, &cancel).unwrap();
        assert!(still.threshold_work().is_none() && still.points.is_empty(), "{still:?}");
        // A budget that ends early leaves the sizes beyond out and says so.
        let c = clock.clone();
        let slow = Own { budget_s: 1.0, ..good };
        let mut cpu = |n: u64| {
            c.advance(n as f64 * 1e-3);
            Ok(())
        };
        let cut = measure(&slow, "elements", (1, 1_000_000), &mut cpu, &mut nothing, &cancel).unwrap();
        assert!(cut.reason.contains("left out") && clock.now() < 3.0, "{} at {}", cut.reason, clock.now());
    }
}
