//! Every scenario of the soak: quiet on devices that are sound, and finds what is planted in one that is not.

#![allow(clippy::print_stdout, reason = "the counts of each phase are for reading")]

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use gpuctl::base::{Backend, Cancel, Code, DType, Env, Fill};
use gpuctl::device::faulty::{Fault, FaultPlan, Faulty, On, Rule, When};
use gpuctl::device::probe::{self, CpuConfig, Select};
use gpuctl::device::spoilt::Spoilt;
use gpuctl::device::{Device, LedgerState, cpu::Pin};
use gpuctl::engine::KernelCache;
use gpuctl::jobs::stress::scenario::reference::{build, candidates};
use gpuctl::jobs::stress::scenario::{Counts, Ctx, Meter, Open, SCENARIOS, Scenario, find};
use gpuctl::jobs::stress::{Evidence, Limits, Line, Phase, Verdict, judge, run_phase, run_phase_opening};

/// What a phase said.
#[derive(Default, Debug)]
struct Told {
    counts: Counts,
    counters: BTreeMap<String, u64>,
    ledger: (LedgerState, LedgerState),
    findings: Vec<String>,
    not_tested: Vec<String>,
    verdict: Option<(Verdict, String)>,
}

impl Told {
    fn count(&self, name: &str) -> u64 {
        self.counters.get(name).copied().unwrap_or(0)
    }
    fn verdict(&self) -> Verdict {
        self.verdict.as_ref().map_or(Verdict::Crash, |v| v.0)
    }
}

const THREADS: u32 = 4;

/// Runs a phase in this thread and judges it as the parent would.
fn phase(scenario: &str, device: Arc<dyn Device>, open: Option<Open>, seconds: f64, heartbeat: f64) -> Told {
    told(Phase { scenario: scenario.into(), seconds, heartbeat, ..Phase::default() }, device, open)
}

fn told(phase: Phase, device: Arc<dyn Device>, open: Option<Open>) -> Told {
    let phase = Phase { threads: THREADS, seed: 7, ..phase };
    let (scenario, seconds) = (phase.scenario.as_str(), phase.seconds);
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
            Line::Finished { counts, tested, counters, ledger, release_errors, .. } => {
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

/// Counts that show that a scenario did what its name says, each at least 1.
const SHOWN: [(&str, &[&str]); 14] = [
    ("soak", &["cases", "trainings", "deepest_network"]),
    ("burn", &["products"]),
    ("memory", &["passes", "memory_bytes", "random_reads"]),
    ("concurrent", &["threads", "engine_calls", "engines", "scaling_percent"]),
    ("transfer-integrity", &["kinds_of_memory"]),
    ("alloc-cycle", &["lulls", "distinct_sizes", "pool_hits", "cycles_bare_raw", "cycles_bare_pooled"]),
    ("device-loss", &["recoveries", "fallbacks"]),
    ("oom", &["ends_of_memory_injected", "fallbacks_when_full", "calls_when_full", "too_large_refused"]),
    ("churn", &["calls"]),
    ("launch-storm", &["launches", "launches_per_second"]),
    ("fragmentation", &["distinct_sizes", "pool_hits", "pool_fragmentation_percent"]),
    ("engine-cycle", &["engines", "devices_opened"]),
    ("pulse", &["edges", "idle_milliseconds", "products"]),
    (
        "error-storm",
        &["refused_alloc_too_large", "refused_buffer_bounds", "refused_buffer_foreign", "refused_unknown_op"],
    ),
];

/// All scenarios on a sound device: enough work, all of it right and checked, everything given back.
fn quiet(id: &'static str, seconds: f64) {
    let Some(open) = opener(id) else { return };
    let mut loud = Vec::new();
    for Scenario { name, .. } in SCENARIOS {
        let device = open().unwrap();
        let start = Instant::now();
        let mut told = phase(name, Arc::clone(&device), Some(Arc::clone(&open)), seconds, 60.0);
        let (_, shown) = SHOWN.iter().find(|(s, _)| s == name).unwrap();
        let hidden = |told: &Told| shown.iter().filter(|c| told.count(c) == 0).collect::<Vec<_>>();
        // What other tests leave of the machine may not suffice for a floor, so there are two more tries; a finding, a
        // wrong result or an error stays one.
        for _ in 0..2 {
            let short = match told.verdict() {
                Verdict::Inconclusive => true,
                Verdict::Pass => !hidden(&told).is_empty(),
                _ => false,
            };
            if !short || !told.findings.is_empty() || (told.counts.mismatches, told.counts.errors) != (0, 0) {
                break;
            }
            println!("{id} {name}: once more: {:?}", told.verdict);
            told = phase(name, Arc::clone(&device), Some(Arc::clone(&open)), 3.0 * seconds, 60.0);
        }
        let (c, ledger) = (told.counts, told.ledger);
        println!(
            "{id} {name}: {:.2} s, {c:?} {:?} {:?}",
            start.elapsed().as_secs_f64(),
            told.counters,
            told.not_tested
        );
        let right = (c.mismatches, c.errors) == (0, 0) && told.findings.is_empty() && c.bytes_checked > 0;
        let back = ledger.1.buffers + ledger.1.objects() + ledger.1.pinned + device.ledger().state().bytes == 0;
        let hidden = hidden(&told);
        if !right || !back || !hidden.is_empty() || told.verdict() != Verdict::Pass {
            loud.push(format!("{name}: {:?} {c:?} {ledger:?} {:?}, none: {hidden:?}", told.verdict, told.findings));
        }
        if *name == "device-loss" {
            // Of wgpu's devices the first losses are real.
            let kinds = [told.count("losses_real"), told.count("losses_injected")].map(|n| n > 0);
            assert_eq!(kinds, [id.starts_with("wgpu"), !id.starts_with("wgpu")], "{id}: {:?}", told.counters);
            assert_eq!(told.not_tested.iter().any(|n| n.contains("a real loss")), !kinds[0], "{:?}", told.not_tested);
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
        ("buffers are never released", rule(On::Release, When::Every(2), Fault::Leak), Verdict::Leak),
        ("allocations fail", rule(On::Alloc, When::Every(2), Fault::Fail(Code::OutOfDeviceMemory)), Verdict::Error),
        ("launches fail", rule(On::Launch, When::Every(2), Fault::Fail(Code::LaunchFailed)), Verdict::Error),
        ("a queue hangs", rule(On::Wait, When::From(3), Fault::Hang), Verdict::Hang),
        ("the device is lost", rule(On::Launch, When::Nth(2), Fault::Lose), Verdict::Error),
    ]
}

/// Scenarios without kernels: faults of launches do not meet them.
const NO_LAUNCHES: [&str; 4] = ["memory", "transfer-integrity", "alloc-cycle", "fragmentation"];

/// What else is right: scenario, fault, verdict, and why.
const OTHERWISE: [(&str, &str, Verdict, &str); 9] = [
    ("burn", "writes are lost", Verdict::Pass, "it sends the same operands each time"),
    ("pulse", "writes are lost", Verdict::Pass, "it sends the same operands each time"),
    ("fragmentation", "allocations fail", Verdict::Pass, "a pool releases what is idle and tries once more"),
    ("engine-cycle", "allocations fail", Verdict::Pass, "the engine's pool does the same"),
    ("device-loss", "allocations fail", Verdict::Pass, "the engine's pool does the same"),
    ("device-loss", "a bit flips in what is read", Verdict::Error, "a wrong known answer keeps the device out"),
    ("device-loss", "what is read is no number", Verdict::Error, "a wrong known answer keeps the device out"),
    ("device-loss", "a queue hangs", Verdict::Error, "to the engine it is one more loss"),
    ("error-storm", "a queue hangs", Verdict::Error, "the engine makes the call on the CPU"),
];

/// All faults in every second scenario, on the simulator: there a hang takes no time. The scenarios' own device is the only one.
fn find_all(half: usize) {
    let open = opener("sim:h200").unwrap();
    let mut missed = Vec::new();
    for Scenario { name, .. } in SCENARIOS.iter().skip(half).step_by(2) {
        for (what, rule, verdict) in faults() {
            if rule.on == On::Launch && NO_LAUNCHES.contains(name) {
                continue;
            }
            let plan = FaultPlan { text: what.into(), rules: vec![rule] };
            let faulty = Arc::new(Faulty::new(open().unwrap(), plan));
            let hits = Arc::clone(&faulty);
            let start = Instant::now();
            let told = phase(name, faulty, None, 0.06, 0.5);
            let hit = hits.hits()[0];
            println!("{name}, {what}: {:.2} s, {hit} hits, {:?}", start.elapsed().as_secs_f64(), told.verdict);
            let right = |v| v == verdict || OTHERWISE.iter().any(|o| (o.0, o.1, o.2) == (*name, what, v));
            if hit == 0 || !right(told.verdict()) {
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

/// Data with subnormal numbers, infinities and NaN: what WGSL leaves open is no corruption.
#[test]
fn references_of_special_data_are_right_with_wgpu() {
    const OPS: [&str; 6] = ["log", "pow", "pow_scalar", "div", "sqrt", "exp"];
    let Some(open) = opener("wgpu:0") else { return };
    let device = open().unwrap();
    let mut out = Vec::new();
    let meter = Meter::new(&mut out, 1, Cancel::new(), Duration::from_secs(60), None);
    let ctx = Ctx {
        device: Arc::clone(&device),
        open,
        seconds: 600.0,
        threads: 1,
        sharing: 1,
        seed: 1,
        start: Instant::now(),
        kernels: KernelCache::off(),
        victim: None,
        meter: &meter,
    };
    let runner = ctx.runner();
    let mut all = candidates(&runner, 1 << 14);
    all.cases.retain(|(op, case)| {
        OPS.contains(&op.name) && case.fill == Fill::Special && matches!(case.dtype, DType::F32 | DType::BF16)
    });
    all.left_out.clear();
    let count = all.cases.len();
    let goldens = build(&ctx, &runner, all, 600.0, 1 << 30).unwrap();
    let said = String::from_utf8(out).unwrap();
    assert!(count >= 2 * OPS.len() && goldens.len() == count, "{} of {count}: {said}", goldens.len());
    assert!(!said.contains("\"finding\""), "{said}");
}

/// A driver whose compiler takes its time: programs that come one by one over the whole phase are no leak.
#[test]
fn slow_builds_are_no_leak() {
    let rules = vec![Rule { on: On::Build, when: When::Every(1), fault: Fault::Slow(Duration::from_millis(60)) }];
    let device = opener("cpu").unwrap()().unwrap();
    let told =
        phase("soak", Arc::new(Faulty::new(device, FaultPlan { text: "slow builds".into(), rules })), None, 2.0, 60.0);
    assert_ne!(told.verdict(), Verdict::Leak, "{:?}", told.verdict);
    assert!(told.count("trainings") > 1, "{:?}", told.counters);
}

/// A result that is wrong in the same way each time equals itself: only the oracle finds it.
#[test]
fn a_stable_wrong_result_is_found() {
    for name in ["burn", "pulse", "soak", "launch-storm"] {
        let inner = opener("sim:h200").unwrap()().unwrap();
        let wrong = Spoilt::new(inner, 0, |bytes, _| {
            if let Some(byte) = bytes.get_mut(18) {
                *byte ^= 0x20;
            }
        });
        let told = phase(name, Arc::new(wrong), None, 0.1, 1.0);
        assert_eq!(told.verdict(), Verdict::Corruption, "{name}: {:?}", told.verdict);
    }
}

/// The word, both values, the mask; one bit apart from many.
#[test]
fn wrong_memory_is_named_by_its_bits() {
    for (mask, counter) in [([0u8, 4], "words_with_one_wrong_bit"), ([1, 4], "words_with_more_wrong_bits")] {
        let inner = opener("sim:h200").unwrap()().unwrap();
        let wrong = Spoilt::new(inner, 0, move |bytes, reads| {
            if reads % 2 == 1 && bytes.len() > 64 {
                bytes[16] ^= mask[0];
                bytes[18] ^= mask[1];
            }
        });
        let told = phase("memory", Arc::new(wrong), None, 0.1, 1.0);
        assert_eq!((told.verdict(), told.count(counter)), (Verdict::Corruption, told.counts.mismatches));
        let bits = format!("mask {:#018x}", u64::from(mask[0]) | u64::from(mask[1]) << 16);
        assert!(told.findings[0].contains(&bits) && told.findings[0].contains("0010 reads"), "{:?}", told.findings[0]);
    }
}

/// The phase's own device is sound; those that are opened besides keep buffers.
#[test]
fn a_leak_of_a_device_opened_besides_is_found() {
    for name in ["engine-cycle", "device-loss"] {
        let open = opener("sim:h200").unwrap();
        let device = open().unwrap();
        let leaking: Open = Arc::new(move || {
            let rules = vec![Rule { on: On::Release, when: When::Nth(2), fault: Fault::Leak }];
            Ok(Arc::new(Faulty::new(open()?, FaultPlan { text: "a test".into(), rules })))
        });
        let told = phase(name, device, Some(leaking), 0.1, 1.0);
        assert_eq!(told.verdict(), Verdict::Leak, "{name}: {:?}", told.verdict);
    }
}

/// A kernel that leaves its buffer ends its process, or loses the device there; here the device works on.
#[test]
fn a_kernel_that_goes_astray_loses_the_device_elsewhere() {
    let Some(open) = opener("opencl:0") else { return };
    let lose = |victim: &str| {
        let phase = Phase {
            scenario: "device-loss".into(),
            seconds: 1.0,
            heartbeat: 60.0,
            victim: Some(victim.into()),
            ..Phase::default()
        };
        told(phase, open().unwrap(), Some(Arc::clone(&open)))
    };
    let sound = lose(env!("CARGO_BIN_EXE_gpuctl"));
    let lost = sound.count("losses_ended_the_process") + sound.count("losses_told");
    assert!(sound.verdict() == Verdict::Pass && lost > 0 && sound.count("losses_real") == lost, "{sound:?}");
    assert!(!sound.not_tested.iter().any(|n| n.contains("a real loss")), "{:?}", sound.not_tested);
    // Programs that end before a kernel was launched have lost nothing.
    for victim in ["/bin/true", "/bin/false"].into_iter().filter(|p| std::path::Path::new(p).exists()) {
        let nothing = lose(victim);
        assert_eq!((nothing.verdict(), nothing.count("losses_real")), (Verdict::Error, 0), "{nothing:?}");
        assert!(nothing.findings[0].contains("did not get that far"), "{:?}", nothing.findings);
    }
}

/// Where no kernel can leave its buffer none is tried.
#[test]
fn a_device_without_stray_kernels_is_lost_by_other_means() {
    for id in ["cpu", "sim:h200"] {
        let open = opener(id).unwrap();
        let phase = Phase {
            scenario: "device-loss".into(),
            seconds: 0.2,
            heartbeat: 60.0,
            victim: Some("/nowhere".into()),
            ..Phase::default()
        };
        let told = told(phase, open().unwrap(), Some(open));
        assert_eq!((told.verdict(), told.count("losses_real")), (Verdict::Pass, 0), "{id}: {told:?}");
        assert!(told.count("losses_injected") > 0 && told.not_tested.iter().any(|n| n.contains("a real loss")));
    }
}

#[test]
fn the_page_lists_the_scenarios() {
    let page = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/stress-scenarios.md")).unwrap();
    let rows: Vec<&str> = page.lines().filter(|l| l.starts_with("| `")).collect();
    assert_eq!(rows.len(), SCENARIOS.len());
    for (row, s) in rows.iter().zip(SCENARIOS) {
        assert!(row.starts_with(&format!("| `{}` | {} s |", s.name, s.least_seconds)), "{row}: {} s", s.least_seconds);
        assert!((1.0..=10.0).contains(&s.least_seconds) && (s.floor)(s.least_seconds, 1) > 0);
    }
}
