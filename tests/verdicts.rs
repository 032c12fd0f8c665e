//! The verdicts of a soak: planted faults find their detectors, simulated sound soaks no alarm, and a broken detector is found.
#![cfg(feature = "cli")]

use std::path::PathBuf;

use gpuctl::base::sink::Collect;
use gpuctl::base::{Cancel, Record};
use gpuctl::jobs::stress::simulated::{clean_series, leaking_series, sound};
use gpuctl::jobs::stress::verdict::drift;
use gpuctl::jobs::stress::{Exe, Limits, SelfTestConfig, SelfTestSummary, Verdict, judge, self_test, self_test_line};

const MIB: f64 = 1024.0 * 1024.0;

fn tried(cfg: &SelfTestConfig) -> (SelfTestSummary, Vec<String>, Vec<String>) {
    let exe = Exe { path: PathBuf::from(env!("CARGO_BIN_EXE_gpuctl")) };
    let mut sink = Collect::default();
    let summary = self_test(cfg, &exe, &mut sink, &Cancel::new()).unwrap();
    let (mut right, mut wrong) = (Vec::new(), Vec::new());
    for record in &sink.records {
        let Record::SelfTest(r) = record else { panic!("{record:?}") };
        let good = matches!(r.outcome.as_str(), "caught" | "passed");
        (if good { &mut right } else { &mut wrong }).push(self_test_line(r));
    }
    assert_eq!((right.len() + wrong.len()) as u64, summary.caught + summary.passed + summary.wrong);
    (summary, right, wrong)
}

#[test]
fn every_planted_fault_ends_in_its_verdict_and_sound_runs_pass() {
    let (summary, right, wrong) = tried(&SelfTestConfig::default());
    assert_eq!(wrong, Vec::<String>::new());
    assert_eq!(summary.exit_code(), 0, "{summary:?}");
    assert!(summary.caught >= 25 && summary.passed >= 5, "{summary:?}");
    for verdict in Verdict::ALL {
        assert!(right.iter().any(|l| l.contains(verdict.name())), "no row for {}", verdict.name());
    }
}

/// With any one detector switched off, the self-test is red, and only because of that detector's rows.
#[test]
fn the_self_test_finds_every_broken_detector() {
    for off in Verdict::ALL.into_iter().filter(|v| *v != Verdict::Pass) {
        let limits = Limits { off: Some(off), ..Limits::default() };
        let cfg = SelfTestConfig { limits, only: Some(off), without_workers: true };
        let (summary, _, wrong) = tried(&cfg);
        assert_eq!(summary.exit_code(), 1, "{}: {summary:?}", off.name());
        assert!(wrong.iter().all(|l| l.contains(&format!("expected {}", off.name()))), "{wrong:?}");
    }
    let blind =
        Limits { rss_floor_bytes: f64::INFINITY, decay: 1.0, min_checked: 0.4, min_tested: 0.0, ..Limits::default() };
    let (summary, _, wrong) = tried(&SelfTestConfig { limits: blind, only: None, without_workers: true });
    assert_eq!((summary.exit_code(), summary.wrong), (1, 4), "{wrong:?}");
    // Limits that see faults everywhere are as red.
    let jumpy = Limits { min_checked: 1.1, ..Limits::default() };
    let (summary, _, wrong) =
        tried(&SelfTestConfig { limits: jumpy, only: Some(Verdict::Pass), without_workers: true });
    assert_eq!((summary.exit_code(), summary.wrong), (1, 3), "{wrong:?}");
    assert!(wrong.iter().all(|l| l.starts_with("ALARM")), "{wrong:?}");
}

/// Soaks to simulate: all with `GPUCTL_TEST_LONG`-like runs by the argument of `tests/run long`, a tenth of them else.
fn soaks() -> u64 {
    1000
}

#[test]
fn simulated_sound_soaks_raise_no_alarm() {
    let limits = Limits::default();
    let alarms: Vec<String> = (0..soaks())
        .filter_map(|seed| {
            let (verdict, why) = judge(&sound(clean_series(seed)), &limits);
            (verdict != Verdict::Pass).then(|| format!("{seed}: {}: {why}", verdict.name()))
        })
        .collect();
    assert!(alarms.len() as u64 <= soaks() / 100, "{} of {}: {alarms:#?}", alarms.len(), soaks());
}

/// 1 MiB a minute under noise of 20 MiB and one step of 200 MiB, anywhere, is found within two hours, with its slope.
#[test]
fn a_slow_leak_is_found_within_two_hours() {
    let limits = Limits::default();
    for seed in 0..soaks() / 10 {
        let series = leaking_series(seed, MIB, 20.0 * MIB);
        let (verdict, why) = judge(&sound(series.clone()), &limits);
        assert_eq!(verdict, Verdict::Leak, "seed {seed}: {why}");
        let points: Vec<_> = series.iter().filter_map(|s| s.rss_bytes.map(|b| (s.t, b as f64))).collect();
        let slope = drift(&points, limits.rss_floor_bytes, &limits).unwrap().slope * 60.0 / MIB;
        assert!((0.5..6.0).contains(&slope), "seed {seed}: {slope} MiB a minute");
        // The step alone, without the slope, is none.
        let flat = leaking_series(seed, 0.0, MIB);
        assert_eq!(judge(&sound(flat), &limits).0, Verdict::Pass, "seed {seed}");
    }
}
