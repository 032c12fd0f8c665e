//! What the phases of all devices mean together: a verdict each, cards of one model compared, the node. Pure.

use std::collections::BTreeMap;

use crate::base::record::{StressDevice, StressRecord};
use crate::base::stats::median;
use crate::base::{DeviceClass, DeviceInfo, units};
use crate::device::telemetry::cardless;

use super::verdict::Verdict;

/// From so many seconds on a run is one of hours: nearly all of it must be tested, for preparation is little then.
pub const LONG: f64 = 3600.0;
/// Part of such a run's seconds that must be tested for a pass.
pub const LONG_TESTED: f64 = 0.9;
/// Cards of one model below which none can be told apart: of two, either may be the slow one.
const TWINS: usize = 3;
/// Part below the median by which cards of one model may differ: within it lie coolers, slots and their silicon.
const SPREAD: f64 = 0.15;
/// Scaled median absolute deviations that a card must lie below the median.
const DEVIATIONS: f64 = 5.0;
/// The normal distribution's standard deviation in median absolute deviations.
const SCALE: f64 = 1.4826;

/// What the comparison of cards found.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Twins {
    /// By uid: own speed and median of its twins where it is slowest, in words.
    pub slower: Vec<(String, String)>,
    /// What was compared, or why not.
    pub remarks: Vec<String>,
    /// Enough cards of one model, and nothing to compare them by.
    pub not_tested: Vec<String>,
}

/// Compares devices of one model by the speeds of equal works. Cycles are not compared: they hold the host's part, and what is
/// done in one depends on what there was time to prepare.
pub fn twins(devices: &[DeviceInfo], records: &[StressRecord]) -> Twins {
    let mut models: BTreeMap<(&str, &str), Vec<&DeviceInfo>> = BTreeMap::new();
    for device in devices {
        models.entry((device.backend.name(), &device.name)).or_default().push(device);
    }
    let mut found = Twins::default();
    for ((backend, name), twins) in models.into_iter().filter(|(_, t)| t.len() > 1) {
        let ids: Vec<_> = twins.iter().map(|d| d.id.as_str()).collect();
        let who = format!("{} ({backend}, {name})", ids.join(" "));
        let shared = twins.iter().find(|d| d.class != DeviceClass::Simulated).and_then(|d| cardless(d));
        if let Some(why) = shared {
            found.remarks.push(format!("not compared with each other: {who}: {why}"));
            continue;
        }
        if twins.len() < TWINS {
            found.remarks.push(format!("not compared with each other: {who}: that needs {TWINS} of one model"));
            continue;
        }
        let (speeds, apart) = speeds(records, &twins);
        for device in &twins {
            let slow = speeds.iter().filter_map(|s| s.slow(&device.uid));
            let Some(worst) = slow.clone().min_by(|a, b| a.part().total_cmp(&b.part())) else { continue };
            let more = match slow.count() - 1 {
                0 => String::new(),
                n => format!("; in {n} more as well"),
            };
            found.slower.push((device.uid.clone(), format!("{} is slower than its twins: {worst}{more}", device.id)));
        }
        match speeds.len() {
            0 => found.not_tested.push(format!(
                "comparison with each other: {who}: no speed of one work was measured on {TWINS} of them (burn measures some)"
            )),
            _ => {
                let more = match speeds.len() - 1 {
                    0 => String::new(),
                    n => format!(" and {n} more"),
                };
                found.remarks.push(format!("compared with each other: {who}: by {}{more}", speeds[0].what));
            }
        }
        if apart > 0 && !speeds.is_empty() {
            found.remarks.push(format!("not compared: {who}: {apart} works that fewer than {TWINS} of them did"));
        }
    }
    found
}

/// One work on several devices of a model.
struct Compared<'a> {
    what: &'a str,
    unit: &'a str,
    /// Uid and speed.
    rates: Vec<(&'a str, f64)>,
}

/// A device far below the median of its twins.
struct Slow<'a> {
    of: &'a Compared<'a>,
    rate: f64,
    median: f64,
}

impl Compared<'_> {
    fn slow(&self, uid: &str) -> Option<Slow<'_>> {
        let at = self.rates.iter().position(|r| r.0 == uid)?;
        let rates: Vec<f64> = self.rates.iter().map(|r| r.1).collect();
        let (_, median) = slower(&rates).into_iter().find(|(slow, _)| *slow == at)?;
        Some(Slow { of: self, rate: rates[at], median })
    }
}

impl Slow<'_> {
    /// Part of the median that it reaches.
    fn part(&self) -> f64 {
        self.rate / self.median
    }
}

impl std::fmt::Display for Slow<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let per = |rate| units::rate(rate, self.of.unit);
        let (own, all, n) = (per(self.rate), per(self.median), self.of.rates.len());
        write!(f, "{} {own}, the median of {n} is {all}", self.of.what)
    }
}

/// The works that enough of the devices did, and the number of those that fewer did.
fn speeds<'a>(records: &'a [StressRecord], twins: &[&DeviceInfo]) -> (Vec<Compared<'a>>, usize) {
    let mut all: BTreeMap<&str, Compared<'a>> = BTreeMap::new();
    for r in records.iter().filter(|r| steady(r) && twins.iter().any(|d| d.uid == r.uid)) {
        for (what, speed) in r.speeds.iter().filter(|(_, s)| s.rate > 0.0 && s.rate.is_finite()) {
            let of = all.entry(what).or_insert_with(|| Compared { what, unit: &speed.unit, rates: Vec::new() });
            if !of.rates.iter().any(|(uid, _)| *uid == r.uid) {
                of.rates.push((&r.uid, speed.rate));
            }
        }
    }
    let (enough, few): (Vec<_>, Vec<_>) = all.into_values().partition(|c| c.rates.len() >= TWINS);
    (enough, few.len())
}

/// Whether a phase says something about speed.
fn steady(r: &StressRecord) -> bool {
    [Verdict::Pass, Verdict::Degradation, Verdict::Throttled].iter().any(|v| v.name() == r.verdict)
}

/// Places of the rates that lie far below the median, with the median.
fn slower(rates: &[f64]) -> Vec<(usize, f64)> {
    let middle = median(rates);
    let deviations: Vec<f64> = rates.iter().map(|r| (r - middle).abs()).collect();
    let bound = middle - (DEVIATIONS * SCALE * median(&deviations)).max(SPREAD * middle);
    rates.iter().enumerate().filter(|(_, r)| **r < bound).map(|(at, _)| (at, middle)).collect()
}

/// The verdict of one device and what it rests on. `planned` are the seconds asked for, `phases` those of the plan.
pub fn device(
    info: &DeviceInfo,
    records: &[StressRecord],
    planned: f64,
    phases: usize,
    interrupted: bool,
    twins: &Twins,
) -> StressDevice {
    let own: Vec<_> = records.iter().filter(|r| r.uid == info.uid).collect();
    let worst = own.iter().filter_map(|r| Verdict::parse(&r.verdict)).max();
    let tested: f64 = own.iter().map(|r| r.seconds).sum();
    let passed = own.iter().filter(|r| r.verdict == Verdict::Pass.name()).count();
    let (mut verdict, mut reason) = (worst.unwrap_or(Verdict::Inconclusive), String::new());
    if verdict == Verdict::Pass {
        if interrupted || passed < phases {
            (verdict, reason) = (Verdict::Inconclusive, format!("{passed} of {phases} phases were run"));
        } else if planned >= LONG && tested < LONG_TESTED * planned {
            verdict = Verdict::Inconclusive;
            reason = format!(
                "{} were tested; a pass of an hour or more needs {:.0} % of them",
                of(tested, planned),
                LONG_TESTED * 100.0
            );
        }
    }
    if let Some((_, what)) = twins.slower.iter().find(|(uid, _)| *uid == info.uid)
        && verdict < Verdict::Degradation
    {
        (verdict, reason) = (Verdict::Degradation, what.clone());
    }
    StressDevice {
        device: info.id.clone(),
        uid: info.uid.clone(),
        name: info.name.clone(),
        verdict: verdict.name().into(),
        reason,
        planned_seconds: planned,
        tested_seconds: tested,
        passed: passed as u64,
        phases: own.len() as u64,
    }
}

/// `22.4 of 24.0 h`, in the unit that fits.
pub fn of(part: f64, whole: f64) -> String {
    let (unit, name) = match whole {
        w if w >= LONG => (LONG, "h"),
        w if w >= 600.0 => (60.0, "min"),
        _ => (1.0, "s"),
    };
    format!("{:.1} of {:.1} {name}", part / unit, whole / unit)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::record::Speed;

    fn card(at: usize) -> DeviceInfo {
        let (id, uid) = (format!("cuda:{at}"), format!("GPU-{at}"));
        DeviceInfo { id, uid, name: "H".into(), class: DeviceClass::Discrete, ..DeviceInfo::ordinary_gpu() }
    }

    fn row(at: usize, scenario: &str, verdict: Verdict, done: u64, seconds: f64) -> StressRecord {
        StressRecord {
            scenario: scenario.into(),
            uid: format!("GPU-{at}"),
            verdict: verdict.name().into(),
            done,
            seconds,
            ..StressRecord::default()
        }
    }

    /// Cards that did these works so fast; 0: not at all.
    fn rows(works: &[(&str, &[f64])]) -> Vec<StressRecord> {
        let speed = |rate: f64| Speed { rate, unit: "FLOP".into(), samples: 9 };
        let of = |at: usize| {
            let own = works.iter().filter(|w| w.1[at] > 0.0).map(|(what, rates)| (what.to_string(), speed(rates[at])));
            StressRecord { speeds: own.collect(), ..row(at, "burn", Verdict::Pass, 100, 10.0) }
        };
        (0..works[0].1.len()).map(of).collect()
    }

    #[test]
    fn the_slow_one_of_several_cards_is_named_with_both_figures() {
        let cards: Vec<_> = (0..4).map(card).collect();
        let (f32s, f64s) = ([50e12, 51e12, 35e12, 49e12], [25e12, 25.2e12, 20e12, 24.8e12]);
        let records = rows(&[("gemm/f32", &f32s), ("gemm/f64", &f64s), ("gemm/i8", &[1e12, 1e12, 0.99e12, 1e12])]);
        let found = twins(&cards, &records);
        assert_eq!(found.slower.len(), 1, "{found:?}");
        let (uid, text) = &found.slower[0];
        assert_eq!(uid, "GPU-2");
        for part in ["cuda:2", "gemm/f32 35.0 TFLOP/s", "median of 4 is 49.5 TFLOP/s", "in 1 more as well"] {
            assert!(text.contains(part), "'{part}' is not in: {text}");
        }
        assert!(found.remarks[0].ends_with("by gemm/f32 and 2 more"), "{:?}", found.remarks);
        let whole = |at: usize| device(&cards[at], &records, 10.0, 1, false, &found);
        assert_eq!((whole(2).verdict.as_str(), whole(1).verdict.as_str()), ("degradation", "pass"));
        assert!(whole(2).reason.contains("slower than its twins"));
    }

    /// What a cycle holds depends on what there was time to prepare: a card with larger products does fewer of them.
    #[test]
    fn only_equal_works_are_compared() {
        let cards: Vec<_> = (0..3).map(card).collect();
        let mut records = rows(&[("m2040", &[40e12, 40e12, 0.0]), ("m4090", &[0.0, 0.0, 50e12])]);
        (records[0].done, records[1].done, records[2].done) = (1000, 1000, 100);
        let found = twins(&cards, &records);
        assert_eq!((&found.slower[..], &found.remarks[..]), (&[][..], &[][..]), "{found:?}");
        assert!(found.not_tested[0].contains("cuda:0 cuda:1 cuda:2") && found.not_tested[0].contains("3 of them"));
        records.iter_mut().zip([50e9, 51e9, 30e9]).for_each(|(r, rate)| {
            r.speeds.insert("m60".into(), Speed { rate, unit: "op".into(), samples: 9 });
        });
        let found = twins(&cards, &records);
        assert!(found.slower[0].1.contains("cuda:2 is slower than its twins: m60 30.0 Gop/s"), "{found:?}");
        assert!(found.remarks[1].contains("2 works that fewer than 3 of them did"), "{found:?}");
    }

    #[test]
    fn nothing_is_said_of_cards_that_cannot_be_compared() {
        let burn = |rates: &[f64]| rows(&[("gemm/f32", rates)]);
        let cards: Vec<_> = (0..4).map(card).collect();
        assert_eq!(twins(&cards, &burn(&[1000.0, 900.0, 950.0, 1050.0])).slower, [], "a spread as coolers have it");
        // A wide spread has no outlier.
        assert_eq!(twins(&cards, &burn(&[1000.0, 600.0, 800.0, 1200.0])).slower, []);
        let two = twins(&cards[..2], &burn(&[1000.0, 100.0]));
        assert!(two.slower.is_empty() && two.remarks[0].contains("needs 3"), "{two:?}");
        let software: Vec<_> = (0..3).map(|at| DeviceInfo { class: DeviceClass::Software, ..card(at) }).collect();
        let found = twins(&software, &burn(&[1000.0, 100.0, 1000.0]));
        assert!(found.slower.is_empty() && found.remarks[0].contains("host's processor"), "{found:?}");
        let others: Vec<_> = (0..3).map(|at| DeviceInfo { name: format!("model {at}"), ..card(at) }).collect();
        assert_eq!(twins(&others, &burn(&[1000.0, 100.0, 1000.0])), Twins::default());
        // A phase that crashed says nothing of speed.
        let mut crashed = burn(&[1000.0, 1000.0, 10.0]);
        crashed[2].verdict = "crash".into();
        let found = twins(&cards[..3], &crashed);
        assert!(found.slower.is_empty() && found.not_tested.len() == 1, "{found:?}");
    }

    #[test]
    fn hours_pass_only_if_nearly_all_of_them_were_tested() {
        let none = Twins::default();
        let verdict = |tested: f64, planned: f64| {
            let records = [row(0, "soak", Verdict::Pass, 1, tested)];
            device(&card(0), &records, planned, 1, false, &none)
        };
        assert_eq!(verdict(21.7 * 3600.0, 24.0 * 3600.0).verdict, "pass");
        let short = verdict(21.5 * 3600.0, 24.0 * 3600.0);
        assert_eq!(short.verdict, "inconclusive");
        assert!(short.reason.contains("21.5 of 24.0 h"), "{}", short.reason);
        // Of a minute the making of references takes a part.
        assert_eq!(verdict(40.0, 60.0).verdict, "pass");
    }

    #[test]
    fn a_phase_that_is_missing_is_no_pass() {
        let none = Twins::default();
        let records = [row(0, "soak", Verdict::Pass, 1, 10.0)];
        assert_eq!(device(&card(0), &records, 20.0, 2, false, &none).verdict, "inconclusive");
        assert_eq!(device(&card(0), &records, 20.0, 1, true, &none).verdict, "inconclusive");
        assert_eq!(device(&card(1), &records, 20.0, 1, false, &none).verdict, "inconclusive", "another card's");
        let wrong = [row(0, "soak", Verdict::Corruption, 1, 10.0)];
        assert_eq!(device(&card(0), &wrong, 20.0, 2, false, &none).verdict, "corruption");
    }
}
