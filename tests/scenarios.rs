//! Every scenario of the soak: quiet on devices that are sound, and finds what is planted in one that is not.

#![allow(clippy::print_stdout, reason = "the counts of each phase are for reading")]

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use gpuctl::base::{Backend, Cancel, Code, Env};
use gpuctl::device::faulty::{Fault, FaultPlan, Faulty, On, Rule, When};
use gpuctl::device::probe::{self, CpuConfig, Select};
use gpuctl::device::{Device, LedgerState, cpu::Pin};
use gpuctl::engine::KernelCache;
use gpuctl::jobs::stress::scenario::{Counts, Open, SCENARIOS, Scenario, find};
use gpuctl::jobs::stress::{Evidence, Limits, Line, Phase, Verdict, judge, run_phase, run_phase_opening};

/// What a phase said.
#[derive(Default)]
struct Told {
    counts: Counts,
    counters: BTreeMap<String, u64>,
    ledger: (LedgerState, LedgerState),
    findings: Vec<String>,
    not_tested: Vec<String>,
    verdict: Option<(Verdict, String)>,
}

impl Told {
    fn verdict(&self) -> Verdict {
        self.verdict.as_ref().map_or(Verdict::Crash, |v| v.0)
    }
}

const THREADS: u32 = 4;

/// Runs a phase in this thread and judges it as the parent would.
fn phase(scenario: &str, device: Arc<dyn Device>, open: Option<Open>, seconds: f64, heartbeat: f64) -> Told {
    let phase =
        Phase { scenario: scenario.into(), seconds, threads: THREADS, heartbeat, seed: 7, inject: None, trace: None };
    let mut out = Vec::new();
    let kernels = KernelCache::off();
    match open {
        Some(open) => run_phase_opening(device, open, &phase, kernels, &mut out, Cancel::new()),
        None => run_phase(device, &phase, kernels, &mut out, Cancel::new()),
    }
    .unwrap();
    let mut told = Told::default();
    let row = find(scenario).unwrap();
    let limits = Limits::default();
    let mut evidence = Evidence {
        planned_seconds: seconds,
        planned: (row.floor)(seconds * limits.min_tested, THREADS),
        ..Evidence::default()
    };
    for line in String::from_utf8(out).unwrap().lines() {
        match serde_json::from_str(line).unwrap() {
            Line::Sample { sample, .. } => evidence.series.push(sample),
            Line::Finding { what } => told.findings.push(what),
            Line::NotTested { what } => told.not_tested.push(what),
            Line::Stalled { doing, .. } => evidence.hang = Some(doing),
            Line::Finished { counts, tested, counters, ledger, release_errors } => {
                assert!(release_errors.is_empty(), "{scenario}: {release_errors:?}");
                (evidence.seconds, evidence.ledger) = (tested, Some(ledger));
                (told.counts, told.counters, told.ledger) = (counts, counters, ledger);
            }
            _ => {}
        }
    }
    let c = told.counts;
    (evidence.done, evidence.mismatches, evidence.errors) = (c.done, c.mismatches, c.errors);
    (evidence.bytes_planned, evidence.bytes_checked) = (c.bytes_made, c.bytes_checked);
    evidence.finding = told.findings.first().cloned();
    told.verdict = Some(judge(&evidence, &limits));
    told
}

/// Opens a device by its id, as a worker does; `None` where it is not, unless it is required.
fn opener(id: &'static str) -> Option<Open> {
    let config = CpuConfig { threads: 2, pin: Pin::Free };
    let open = move || {
        let rig = probe::open(&Select::Named(vec![id.into()]), &Env::default(), config)?;
        Ok(rig.devices.into_iter().next().unwrap())
    };
    match open() {
        Ok(_) => Some(Arc::new(open)),
        Err(e) => {
            let required = Env::read().unwrap().require;
            let backend = Backend::ALL.into_iter().find(|b| id.starts_with(b.name())).unwrap();
            assert!(!required.iter().any(|b| b == backend.name()), "{e}");
            println!("skipped: {e}");
            None
        }
    }
}

/// All scenarios on a sound device: enough work, all of it right and checked, everything given back.
fn quiet(id: &'static str, seconds: f64) {
    let Some(open) = opener(id) else { return };
    let mut loud = Vec::new();
    for Scenario { name, .. } in SCENARIOS {
        let device = open().unwrap();
        let start = Instant::now();
        let told = phase(name, Arc::clone(&device), Some(Arc::clone(&open)), seconds, 60.0);
        let (c, ledger) = (told.counts, told.ledger);
        println!(
            "{id} {name}: {:.2} s, {c:?} {:?} {:?}",
            start.elapsed().as_secs_f64(),
            told.counters,
            told.not_tested
        );
        let right = (c.mismatches, c.errors) == (0, 0) && told.findings.is_empty() && c.bytes_checked > 0;
        let back = ledger.1.buffers + ledger.1.objects() + ledger.1.pinned + device.ledger().state().bytes == 0;
        if !right || !back || told.verdict() != Verdict::Pass {
            loud.push(format!("{name}: {:?} {c:?} {ledger:?} {:?}", told.verdict, told.findings));
        }
    }
    assert!(loud.is_empty(), "{id}: {}", loud.join("\n"));
}

#[test]
fn every_scenario_is_quiet_on_the_cpu() {
    quiet("cpu", 0.2);
}

#[test]
fn every_scenario_is_quiet_on_the_simulator() {
    quiet("sim:h200", 0.2);
}

#[test]
fn every_scenario_is_quiet_with_opencl() {
    quiet("opencl:0", 0.3);
}

#[test]
fn every_scenario_is_quiet_with_wgpu() {
    quiet("wgpu:0", 0.3);
}

/// What is planted, and what it must be called.
fn faults() -> Vec<(&'static str, Rule, Verdict)> {
    let rule = |on, when, fault| Rule { on, when, fault };
    vec![
        ("a bit flips in what is read", rule(On::Read, When::Every(3), Fault::FlipBit), Verdict::Corruption),
        ("what is read is no number", rule(On::Read, When::Every(3), Fault::Nan), Verdict::Corruption),
        ("writes are lost", rule(On::Write, When::Every(3), Fault::Skip), Verdict::Corruption),
        ("launches are lost", rule(On::Launch, When::Every(3), Fault::Skip), Verdict::Corruption),
        ("buffers are never released", rule(On::Release, When::Every(3), Fault::Leak), Verdict::Leak),
        ("allocations fail", rule(On::Alloc, When::Every(7), Fault::Fail(Code::OutOfDeviceMemory)), Verdict::Error),
        ("launches fail", rule(On::Launch, When::Every(5), Fault::Fail(Code::LaunchFailed)), Verdict::Error),
        ("a queue hangs", rule(On::Wait, When::From(3), Fault::Hang), Verdict::Hang),
        ("the device is lost", rule(On::Launch, When::Nth(7), Fault::Lose), Verdict::Error),
    ]
}

/// Scenarios that launch nothing, or that live through a fault by design: the fault and why it is not theirs to find.
const NOT_THEIRS: [(&str, &str, &str); 0] = [];

/// All faults in every second scenario, on the simulator: there a hang takes no time. The scenarios' own device is the only one.
fn find_all(half: usize) {
    let open = opener("sim:h200").unwrap();
    let mut missed = Vec::new();
    for Scenario { name, .. } in SCENARIOS.iter().skip(half).step_by(2) {
        for (what, rule, verdict) in faults() {
            let plan = FaultPlan { text: what.into(), rules: vec![rule] };
            let faulty = Arc::new(Faulty::new(open().unwrap(), plan));
            let hits = Arc::clone(&faulty);
            let start = Instant::now();
            let told = phase(name, faulty, None, 0.06, 1.0);
            let hit = hits.hits()[0];
            println!("{name}, {what}: {:.2} s, {hit} hits, {:?}", start.elapsed().as_secs_f64(), told.verdict);
            let excused = NOT_THEIRS.iter().any(|(s, f, _)| s == name && *f == what);
            if (told.verdict() == verdict) == excused {
                missed.push(format!(
                    "{name}, {what}: {:?} after {hit} hits, {:?}",
                    told.verdict,
                    told.findings.first()
                ));
            }
        }
    }
    assert!(missed.is_empty(), "{}", missed.join("\n"));
}

#[test]
fn every_scenario_finds_what_is_planted() {
    find_all(0);
}

#[test]
fn every_other_scenario_finds_what_is_planted() {
    find_all(1);
}
