//! The verdicts of a soak: planted faults find their detectors, simulated sound soaks no alarm, and a broken detector is found.
#![cfg(feature = "cli")]

use std::path::PathBuf;

use gpuctl::base::sink::Collect;
use gpuctl::base::{Cancel, Record};
use gpuctl::jobs::stress::simulated::{clean_series, leaking_series, settling_series, sound};
use gpuctl::jobs::stress::verdict::{drift, unsettled};
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

/// Soaks to simulate; they take no time to speak of.
const SOAKS: u64 = 1000;

#[test]
fn simulated_sound_soaks_raise_no_alarm() {
    let limits = Limits::default();
    let alarms: Vec<String> = (0..SOAKS)
        .filter_map(|seed| {
            let (verdict, why) = judge(&sound(clean_series(seed)), &limits);
            (verdict != Verdict::Pass).then(|| format!("{seed}: {}: {why}", verdict.name()))
        })
        .collect();
    assert!(alarms.len() as u64 <= SOAKS / 100, "{} of {}: {alarms:#?}", alarms.len(), SOAKS);
}

/// 1 MiB a minute under noise of 20 MiB and one step of 200 MiB, anywhere, is found within two hours, with its slope.
#[test]
fn a_slow_leak_is_found_within_two_hours() {
    let limits = Limits::default();
    for seed in 0..SOAKS / 10 {
        let series = leaking_series(seed, MIB, 20.0 * MIB);
        let (verdict, why) = judge(&sound(series.clone()), &limits);
        assert_eq!(verdict, Verdict::Leak, "seed {seed}: {why}");
        let points: Vec<_> = series.iter().filter_map(|s| s.rss_bytes.map(|b| (s.t, b as f64))).collect();
        let slope = drift(&points, limits.rss_floor_bytes, &limits).unwrap().slope * 60.0 / MIB;
        assert!((0.3..2.0).contains(&slope), "seed {seed}: {slope} MiB a minute");
        // The step alone, without the slope, is none.
        let flat = leaking_series(seed, 0.0, MIB);
        assert_eq!(judge(&sound(flat), &limits).0, Verdict::Pass, "seed {seed}");
    }
}

/// Growth that slows down as a heap's does is no leak, in a phase of a minute as in one of two hours, under noise of up to a
/// twentieth of it, and the record says what it hides; a leak that outgrows it is one.
#[test]
fn growth_that_settles_is_no_leak_and_hides_none_that_outgrows_it() {
    let limits = Limits::default();
    let (mut alarms, mut told, mut missed) = (Vec::new(), 0, Vec::new());
    for seed in 0..SOAKS {
        let pick = |of: &[f64], i: u64| of[(seed / i) as usize % of.len()];
        let (seconds, per_fold) = (pick(&[66.0, 86.0, 600.0, 7200.0], 1), pick(&[15.0, 25.0, 60.0, 200.0], 4) * MIB);
        let (noise, thin) = (pick(&[0.05, 0.5, 1.0], 16) * MIB, pick(&[1.0, 5.0, 7.0], 3) as usize);
        let made = |leak: f64| -> Vec<_> {
            settling_series(seed, seconds, per_fold, leak, noise).into_iter().step_by(thin).collect()
        };
        let series = made(0.0);
        told += u64::from(unsettled(&series, &limits).iter().any(|t| t.contains("MiB/min")));
        let (verdict, why) = judge(&sound(series), &limits);
        if verdict != Verdict::Pass {
            alarms.push(format!("{seed}: {why}"));
        }
        // The heap alone grows by 1.4 folds after warm-up, the leak by four.
        let leak = 4.0 * per_fold.max(15.0 * MIB) / 0.75 / seconds * 60.0;
        let (verdict, why) = judge(&sound(made(leak)), &limits);
        if verdict != Verdict::Leak {
            missed.push(format!("{seed}: {} {why}", verdict.name()));
        }
    }
    assert!(alarms.len() as u64 <= SOAKS / 100, "{} of {SOAKS}: {alarms:#?}", alarms.len());
    assert!(missed.is_empty(), "{} of {SOAKS}: {missed:#?}", missed.len());
    assert!(told > SOAKS / 2, "{told}");
    assert!(unsettled(&leaking_series(1, MIB, MIB), &limits).is_empty(), "a leak does not settle");
}

// ---- reports --------------------------------------------------------------------------------------------------------

/// A run with a planted fault and all reports; its folder, exit code and document.
fn reported(inject: Option<&str>, scenarios: &str) -> (tempfile::TempDir, Option<i32>, serde_json::Value) {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name).display().to_string();
    // An older state, which a collector of a group may read.
    std::fs::write(at("r.prom"), "old\n").unwrap();
    #[cfg(unix)]
    std::fs::set_permissions(at("r.prom"), std::os::unix::fs::PermissionsExt::from_mode(0o640)).unwrap();
    let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_gpuctl"));
    command.args([
        "stress",
        "--no-journal",
        "--seconds",
        "3",
        "--device",
        "cpu",
        "--scenario",
        scenarios,
        "--json",
        "-",
    ]);
    command.args(["--html", &at("r.html"), "--junit", &at("r.xml"), "--prometheus", &at("r.prom")]);
    command.args(inject.iter().flat_map(|f| ["--inject", *f]));
    let out = command.stdin(std::process::Stdio::null()).output().unwrap();
    let doc =
        serde_json::from_slice(&out.stdout).unwrap_or_else(|e| panic!("{e}: {}", String::from_utf8_lossy(&out.stderr)));
    (dir, out.status.code(), doc)
}

/// The records of phases; one of the whole run follows them.
fn phases(doc: &serde_json::Value) -> impl Iterator<Item = &serde_json::Value> {
    doc["records"].as_array().unwrap().iter().filter(|r| r["kind"] == "stress")
}

/// The samples of a text exposition: each of a family with HELP and TYPE, its name and labels as the format has them.
fn samples(text: &str) -> std::collections::BTreeMap<String, f64> {
    let (mut all, mut family) = (std::collections::BTreeMap::new(), String::new());
    let named = |name: &str| name.chars().all(|c| c.is_ascii_lowercase() || c == '_');
    for line in text.lines() {
        if let Some(help) = line.strip_prefix("# HELP ") {
            family = help.split(' ').next().unwrap().to_string();
            assert!(help.ends_with('.') && named(&family), "{line}");
        } else if let Some(kind) = line.strip_prefix("# TYPE ") {
            let (name, kind) = kind.split_once(' ').unwrap();
            assert_eq!((name, kind == "counter"), (&*family, family.ends_with("_total")), "{line}");
        } else {
            let (series, value) = line.rsplit_once(' ').unwrap();
            let (name, labels) = series.split_once('{').unwrap_or((series, "}"));
            assert!(name == family && labels.ends_with('}'), "{line}");
            assert!(all.insert(series.to_string(), value.parse().unwrap()).is_none(), "twice: {line}");
        }
    }
    assert!(text.ends_with('\n'));
    all
}

#[test]
fn reports_tell_a_pass() {
    let (dir, code, doc) = reported(None, "alloc-cycle,concurrent");
    assert_eq!(code, Some(0), "{doc}");
    let read = |name: &str| std::fs::read_to_string(dir.path().join(name)).unwrap();
    let metrics = samples(&read("r.prom"));
    #[cfg(unix)]
    {
        let mode =
            std::os::unix::fs::PermissionsExt::mode(&dir.path().join("r.prom").metadata().unwrap().permissions());
        assert_eq!(mode & 0o777, 0o640, "who could read the old file can read the new one, and nobody else");
    }
    let uid = doc["devices"][0]["uid"].as_str().unwrap();
    let of = |name: &str, more: &str| metrics[&format!("gpuctl_stress_{name}{{device=\"cpu\",uid=\"{uid}\"{more}}}")];
    let sum = |field: &str| phases(&doc).map(|r| r[field].as_f64().unwrap()).sum::<f64>();
    assert_eq!((metrics["gpuctl_stress_running"], metrics["gpuctl_stress_exit_code"]), (0.0, 0.0));
    assert_eq!((of("cycles_total", ""), of("checked_bytes_total", "")), (sum("done"), sum("bytes_checked")));
    assert_eq!((of("verdict", ",verdict=\"pass\""), of("verdict", ",verdict=\"leak\"")), (1.0, 0.0));
    assert_eq!((of("mismatches_total", ""), of("device_up", ""), of("phases_total", "")), (0.0, 1.0, 2.0));
    assert!(Verdict::ALL.iter().all(|v| of("verdict", &format!(",verdict=\"{}\"", v.name())) <= 1.0), "one for each");
    let junit = read("r.xml");
    assert!(junit.contains("tests=\"2\" failures=\"0\" errors=\"0\" skipped=\"0\""), "{junit}");
    let page = read("r.html");
    assert_eq!((page.matches("<svg ").count(), page.matches("</svg>").count()), (2, 2));
    assert!(!page.contains("<script") && !page.contains("src=") && !page.contains("href="));
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 3, "no temporary file is left");
}

#[test]
fn reports_tell_a_fault_and_a_run_that_proves_nothing() {
    for (fault, scenario, code, verdict, counts, tag) in [
        ("bitflip", "soak", 1, "corruption", "failures=\"1\" errors=\"0\"", "<failure type=\"corruption\""),
        ("zero", "alloc-cycle", 4, "inconclusive", "failures=\"0\" errors=\"1\"", "<error type=\"inconclusive\""),
    ] {
        let (dir, got, doc) = reported(Some(fault), scenario);
        assert_eq!((got, doc["records"][0]["verdict"].as_str()), (Some(code), Some(verdict)));
        let read = |name: &str| std::fs::read_to_string(dir.path().join(name)).unwrap();
        let junit = read("r.xml");
        assert!(junit.contains(counts) && junit.contains(tag) && junit.contains("rerun: gpuctl stress"), "{junit}");
        let metrics = samples(&read("r.prom"));
        assert_eq!(metrics["gpuctl_stress_exit_code"], f64::from(code));
        let held: Vec<&String> =
            metrics.iter().filter(|(n, v)| n.contains("verdict=") && **v == 1.0).map(|m| m.0).collect();
        assert!(held.len() == 1 && held[0].contains(&format!("verdict=\"{verdict}\"")), "{held:?}");
        assert!(read("r.html").contains(&format!("<strong>{verdict} (0 of ")));
    }
}

/// What names and reasons of drivers hold stays text.
#[cfg(feature = "plot")]
#[test]
fn nothing_from_outside_is_markup() {
    use gpuctl::base::record::{Host, SCHEMA, StressRecord};
    use gpuctl::base::{DeviceInfo, Document};
    let nasty = "<script>alert(\"1\")</script>&\u{1b}[2J\u{202e}\\\n";
    let r = StressRecord {
        scenario: nasty.into(),
        device: nasty.into(),
        uid: nasty.into(),
        verdict: "corruption".into(),
        reason: nasty.into(),
        findings: vec![nasty.into()],
        series: clean_series(1),
        rerun: nasty.into(),
        ..StressRecord::default()
    };
    let host = Host { cpu: nasty.into(), cpus: 1, memory_bytes: 1, os: nasty.into(), awake: true, system: None };
    let device = DeviceInfo { id: nasty.into(), uid: nasty.into(), name: nasty.into(), ..DeviceInfo::ordinary_gpu() };
    let doc = Document {
        schema: SCHEMA,
        gpuctl: nasty.into(),
        command: vec![nasty.into()],
        complete: false,
        exit_code: 1,
        host,
        devices: vec![device],
        absent: Vec::new(),
        records: vec![Record::Stress(Box::new(r.clone()))],
    };
    let page = gpuctl::report::html::stress(&doc, nasty, &[nasty.into()]).unwrap();
    assert!(page.contains("&lt;script&gt;") && page.contains("\\u{202e}"));
    assert!(!page.contains("<script") && !page.contains('\u{1b}') && !page.contains('\u{202e}'));
    let junit = gpuctl::report::junit::stress(&doc.records, nasty, false);
    assert!(!junit.contains("<script") && junit.contains("tests=\"2\" failures=\"1\" errors=\"1\""), "{junit}");
    let mut metrics = gpuctl::report::prometheus::Metrics::default();
    metrics.record(&r);
    let text = metrics.text(None);
    assert!(text.lines().all(|l| l.starts_with('#') || l.starts_with("gpuctl_")), "{text}");
    assert!(text.contains("alert(\\\"1\\\")") && text.contains("gpuctl_stress_running 1"), "{text}");
}
