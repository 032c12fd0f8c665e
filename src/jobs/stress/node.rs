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
    /// By uid: scenario, own rate and median of its twins, in words.
    pub slower: Vec<(String, String)>,
    /// What was compared, or why not.
    pub remarks: Vec<String>,
}

/// Compares devices of one model by their throughput in each scenario.
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
        let mut compared = Vec::new();
        for scenario in scenarios(records) {
            let rates: Vec<(&DeviceInfo, f64)> =
                twins.iter().filter_map(|d| Some((*d, rate(records, scenario, &d.uid)?))).collect();
            if rates.len() < TWINS {
                continue;
            }
            compared.push(scenario);
            for (at, median) in slower(&rates.iter().map(|r| r.1).collect::<Vec<_>>()) {
                let (device, rate) = rates[at];
                found.slower.push((
                    device.uid.clone(),
                    format!(
                        "{} is slower than its twins: {scenario} {}/s, the median of {} {name} is {}/s",
                        device.id,
                        units::three(rate),
                        rates.len(),
                        units::three(median)
                    ),
                ));
            }
        }
        found.remarks.push(match compared.len() {
            0 => format!("not compared with each other: {who}: no scenario has a rate of {TWINS} of them"),
            _ => format!("compared with each other: {who}: {}", compared.join(" ")),
        });
    }
    found
}

fn scenarios(records: &[StressRecord]) -> Vec<&str> {
    let mut all: Vec<&str> = Vec::new();
    for r in records {
        if !all.contains(&r.scenario.as_str()) {
            all.push(&r.scenario);
        }
    }
    all
}

/// Cycles per tested second; `None` for a phase that says nothing about speed.
fn rate(records: &[StressRecord], scenario: &str, uid: &str) -> Option<f64> {
    let r = records.iter().find(|r| r.scenario == scenario && r.uid == uid && r.seconds > 0.0 && r.done > 0)?;
    let steady = [Verdict::Pass, Verdict::Degradation, Verdict::Throttled].iter().any(|v| v.name() == r.verdict);
    steady.then(|| r.done as f64 / r.seconds)
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

    fn rows(scenario: &str, done: &[u64]) -> Vec<StressRecord> {
        done.iter().enumerate().map(|(at, n)| row(at, scenario, Verdict::Pass, *n, 10.0)).collect()
    }

    #[test]
    fn the_slow_one_of_several_cards_is_named_with_both_figures() {
        let cards: Vec<_> = (0..4).map(card).collect();
        let mut records = rows("burn", &[1000, 1010, 700, 990]);
        records.extend(rows("soak", &[500, 505, 495, 503]));
        let found = twins(&cards, &records);
        assert_eq!(found.slower.len(), 1, "{found:?}");
        let (uid, text) = &found.slower[0];
        assert_eq!(uid, "GPU-2");
        for part in ["cuda:2", "burn 70.0/s", "median of 4 H is 99.5/s"] {
            assert!(text.contains(part), "'{part}' is not in: {text}");
        }
        assert!(found.remarks[0].contains("burn soak"), "{:?}", found.remarks);
        let whole = |at: usize| device(&cards[at], &records, 20.0, 2, false, &found);
        assert_eq!((whole(2).verdict.as_str(), whole(1).verdict.as_str()), ("degradation", "pass"));
        assert!(whole(2).reason.contains("slower than its twins"));
    }

    #[test]
    fn nothing_is_said_of_cards_that_cannot_be_compared() {
        let even = rows("burn", &[1000, 900, 950, 1050]);
        let cards: Vec<_> = (0..4).map(card).collect();
        assert_eq!(twins(&cards, &even).slower, [], "a spread as coolers have it");
        // A wide spread has no outlier.
        assert_eq!(twins(&cards, &rows("burn", &[1000, 600, 800, 1200])).slower, []);
        let two = twins(&cards[..2], &rows("burn", &[1000, 100]));
        assert!(two.slower.is_empty() && two.remarks[0].contains("needs 3"), "{two:?}");
        let software: Vec<_> = (0..3).map(|at| DeviceInfo { class: DeviceClass::Software, ..card(at) }).collect();
        let found = twins(&software, &rows("burn", &[1000, 100, 1000]));
        assert!(found.slower.is_empty() && found.remarks[0].contains("host's processor"), "{found:?}");
        let others: Vec<_> = (0..3).map(|at| DeviceInfo { name: format!("model {at}"), ..card(at) }).collect();
        assert_eq!(twins(&others, &rows("burn", &[1000, 100, 1000])), Twins::default());
        // A phase that crashed says nothing of speed.
        let mut crashed = rows("burn", &[1000, 1000, 10]);
        crashed[2].verdict = "crash".into();
        let found = twins(&cards[..3], &crashed);
        assert!(found.slower.is_empty() && found.remarks[0].contains("no scenario"), "{found:?}");
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
