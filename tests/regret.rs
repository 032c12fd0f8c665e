//! Cost curves against simulated machines whose truth is known and has another form; what placing by them costs; how few
//! calls a calibration times.

#![allow(clippy::print_stdout, reason = "a test tells what it found")]

use std::time::Duration;

use gpuctl::base::regret::{RegretPolicy, RegretRecord, RegretShape};
use gpuctl::base::sink::{Cancel, Collect};
use gpuctl::base::{Attrs, DType, Fill, HostTensor};
use gpuctl::device::probe::Rig;
use gpuctl::device::sim::{self, Compute, Spec};
use gpuctl::engine::Runner;
use gpuctl::jobs::calibrate::regret::{self, RegretConfig};
use gpuctl::jobs::calibrate::{CalibrateConfig, Calibrated, study_in};
use gpuctl::measure::{OpSubject, Residency, StopRule, Subject, processes, sample};
use gpuctl::op::{OpDesc, Role, Unit, find};
use gpuctl::profile::{Entry, Profile, Rule, Verdict};

const OPS: [&str; 8] = ["gemm", "gemv", "bmm", "conv2d", "add", "exp", "sum", "softmax"];

/// Whose cost has none of the fitted forms.
const ROUGH: [&str; 3] = ["steps", "cliffs", "bands"];

/// `REGRET_SEED`, or 1.
fn seed() -> u64 {
    std::env::var("REGRET_SEED").ok().and_then(|v| v.parse().ok()).unwrap_or(1)
}

fn config(op: &str) -> CalibrateConfig {
    let op = find(op).unwrap();
    CalibrateConfig {
        ops: vec![op],
        dtypes: vec![DType::F32],
        residencies: vec![Residency::Always, Residency::Resident],
        cpu_variant: None,
        margin: 1.1,
        budget: Duration::from_secs(600),
        range: Some(if op.unit == Unit::Dim { (16, 1024) } else { (1024, 2 << 20) }),
        allow_software: false,
        seed: 1,
        processes: CalibrateConfig::PROCESSES,
        earlier: None,
        kernels: gpuctl::engine::KernelCache::off(),
        states: Vec::new(),
        telemetry: gpuctl::device::telemetry::Telemetry::cards,
    }
}

/// A machine that computes nothing, as one process meets it.
fn rig(spec: &Spec, process: u64) -> Rig {
    let (cpu, gpu) = sim::open_spec(Spec { process, ..spec.clone() }, Compute::None).unwrap();
    Rig { devices: vec![gpu], cpu, absent: Vec::new() }
}

fn study(spec: &Spec, cfg: &CalibrateConfig, processes: u64) -> Calibrated {
    let rigs: Vec<Rig> = (0..processes).map(|p| rig(spec, p)).collect();
    study_in(cfg, &rigs.iter().collect::<Vec<_>>(), &mut Collect::default(), &Cancel::new()).unwrap()
}

fn judge(profile: &Profile, cfg: &RegretConfig, rigs: &[Rig]) -> Vec<RegretRecord> {
    let rigs: Vec<&Rig> = rigs.iter().collect();
    regret::run_in(cfg, profile, &rigs, &mut Collect::default(), &Cancel::new()).unwrap()
}

/// Regret by the machine's own noise-free times.
fn truth(spec: &Spec, profile: &Profile, shapes: usize) -> Vec<RegretRecord> {
    let cfg = RegretConfig {
        shapes,
        dense: 4,
        processes: 2,
        pairs: 3,
        looks: 1,
        ..RegretConfig::new(Duration::from_secs(9000))
    };
    judge(profile, &cfg, &[rig(&spec.clone().quiet(), 0)])
}

fn policy<'a>(r: &'a RegretRecord, name: &str) -> &'a RegretPolicy {
    r.policies.iter().find(|p| p.name == name).unwrap()
}

/// The shape that loses most by the profile's choice: its times, measured and predicted.
fn worst(r: &RegretRecord) -> String {
    let lost = |s: &RegretShape| (if s.gpu { s.gpu_s } else { s.cpu_s }) / s.cpu_s.min(s.gpu_s);
    let s = r.shapes.iter().max_by(|a, b| lost(a).total_cmp(&lost(b))).unwrap();
    format!(
        "{} (size {}): CPU {:e} s, predicted {:?}, device {:e} s, predicted {:?}",
        s.shape_text, s.size, s.cpu_s, s.predicted_cpu_s, s.gpu_s, s.predicted_gpu_s
    )
}

fn mean(values: impl Iterator<Item = f64>) -> f64 {
    let all: Vec<f64> = values.collect();
    all.iter().sum::<f64>() / all.len() as f64
}

fn percent(v: f64) -> String {
    format!("{:.2} %", 100.0 * v)
}

/// The goals are printed key by key, met or not. What is asserted holds today and must not get worse. `REGRET_SHAPES=300`
/// for more shapes, `REGRET_SEED=2` for other noise and other measured shapes.
#[test]
fn placing_by_curves_costs_little_on_every_simulated_machine() {
    let shapes = std::env::var("REGRET_SHAPES").ok().and_then(|v| v.parse().ok()).unwrap_or(60);
    let (mut keys, mut missed, mut all) = (0, 0, Vec::new());
    for preset in sim::presets() {
        let spec = sim::spec(preset).unwrap();
        let mut of_preset = Vec::new();
        for op in OPS {
            let cal = study(&spec, &CalibrateConfig { seed: seed(), ..config(op) }, 11);
            let records = truth(&spec, &cal.profile, shapes);
            assert!(records.len() >= 2, "{preset} {op}");
            for r in records {
                assert_eq!(r.left_out, 0, "{preset} {op}");
                let auto = policy(&r, "auto");
                let near = auto.near.unwrap_or(0.0);
                keys += 1;
                if auto.mean > 0.01 || near > 0.03 || auto.worst > 0.10 {
                    missed += 1;
                    println!(
                        "not met: {preset} {op} {} {} ({}): mean {}, near the crossing {}, worst {}; threshold: mean {}",
                        r.family,
                        r.residency,
                        r.verdict,
                        percent(auto.mean),
                        percent(near),
                        percent(auto.worst),
                        percent(policy(&r, "threshold").mean)
                    );
                    println!("   at worst {}", worst(&r));
                }
                // The bound on any one key; the goal is 1 %. One shape that is far off may be most of it.
                assert!(auto.mean < 0.10, "{preset} {op} {} {}: {}", r.family, r.residency, percent(auto.mean));
                of_preset.push(r);
            }
        }
        let line: Vec<String> =
            ["auto", "threshold", "always-cpu", "always-gpu", "default", "gpu-blob", "threshold x1.5"]
                .iter()
                .map(|name| format!("{name} {}", percent(mean(of_preset.iter().map(|r| policy(r, name).mean)))))
                .collect();
        println!("{preset}: mean regret of {} keys: {}", of_preset.len(), line.join(", "));
        all.extend(of_preset);
    }
    println!("goals (1 % of all, 3 % near the crossing, 10 % at worst) met on {} of {keys} keys", keys - missed);
    let of = |name: &str| mean(all.iter().map(|r| policy(r, name).mean));
    let near = mean(all.iter().filter_map(|r| policy(r, "auto").near));
    assert!(of("auto") < 0.01, "over all: {}", percent(of("auto")));
    assert!(near < 0.03, "near the crossings: {}", percent(near));
    assert!(missed * 40 <= keys, "the goals are missed on {missed} of {keys} keys");
    for other in ["threshold", "always-cpu", "always-gpu", "default", "gpu-blob"] {
        assert!(of("auto") < of(other), "{other}: {}", percent(of(other)));
    }
    // The planted mistake must be seen, on every machine that has crossings.
    let crossing: Vec<&RegretRecord> = all.iter().filter(|r| r.verdict == "crossing").collect();
    assert!(crossing.len() >= 30);
    let seen = |r: &&&RegretRecord| policy(r, "threshold x1.5").mean > policy(r, "auto").mean;
    let worse = crossing.iter().filter(seen).count();
    println!(
        "the threshold times 1.5 is worse than the profile's choice on {worse} of {} keys that cross",
        crossing.len()
    );
    assert!(worse * 10 >= crossing.len() * 9, "{worse} of {}", crossing.len());
}

/// Where a size says all, what was found decides, even beside sums that are off: planted here, for it is rare. The same sums without
/// what was found are seen to lose.
#[test]
fn what_was_found_decides_where_a_size_says_all() {
    let spec = sim::spec("cliffs").unwrap();
    for seed in [4, 11, 17] {
        let mut profile = study(&spec, &CalibrateConfig { seed, ..config("exp") }, 11).profile;
        let resident = |p: &Profile| {
            let records = truth(&spec, p, 60);
            let r = records.iter().find(|r| r.residency == "resident").unwrap().clone();
            assert_eq!(r.verdict, "crossing");
            policy(&r, "auto").worst
        };
        let worst = resident(&profile);
        assert!(worst <= 0.10, "seed {seed}: {}", percent(worst));
        let mut curves: Vec<_> = profile.entries.iter_mut().filter_map(|e| e.curve.as_mut()).collect();
        assert!(curves.iter().any(|c| c.change.is_some()));
        curves.iter_mut().for_each(|c| c.device.fixed_s *= 4.0);
        let beside = resident(&profile);
        assert!(beside <= 0.10, "seed {seed}: {} beside sums that are off", percent(beside));
        profile.entries.iter_mut().filter_map(|e| e.curve.as_mut()).for_each(|c| c.change = None);
        let without = resident(&profile);
        assert!(without > 0.15, "seed {seed}: nothing was to be lost: {}", percent(without));
    }
}

/// The rough machines are no exercise in fitting what was put in: on exact, noise-free times something is left.
#[test]
fn no_curve_has_the_form_of_the_rough_machines() {
    for (preset, op) in ROUGH.iter().flat_map(|p| ["gemm", "add", "conv2d"].map(|op| (*p, op))) {
        let spec = sim::spec(preset).unwrap().quiet();
        let cal = study(&spec, &config(op), 1);
        let off = |r: &RegretRecord| {
            let of = |predicted: Option<f64>, s: f64| predicted.map_or(0.0, |p| (p / s).ln().abs());
            let both = |s: &RegretShape| of(s.predicted_cpu_s, s.cpu_s).max(of(s.predicted_gpu_s, s.gpu_s));
            r.shapes.iter().map(both).fold(0.0, f64::max)
        };
        let largest = truth(&spec, &cal.profile, 40).iter().map(off).fold(0.0, f64::max);
        println!("{preset} {op}: largest error of a prediction {}", percent(largest));
        assert!(largest >= 0.05, "{preset} {op}: {largest}");
    }
    // The two straight lines of the textbook are of the fitted form, and are found.
    let spec = sim::spec("textbook").unwrap();
    let cal = study(&spec, &config("add"), 1);
    for e in &cal.profile.entries {
        let curve = e.curve.as_ref().unwrap();
        assert!(curve.cpu.error < 1e-3 && curve.device.error < 1e-3, "{curve:?}");
    }
}

/// A study says that nothing was checked, and its profile cannot be written.
#[test]
fn a_study_cannot_be_mistaken_for_a_calibration() {
    let spec = sim::spec("h200").unwrap();
    let cal = study(&spec, &config("exp"), 3);
    let winner = cal.profile.entries.iter().find(|e| e.verdict == Verdict::Crossing).unwrap();
    assert_eq!(winner.verify, sim::TIMING_ONLY);
    assert!(cal.profile.to_toml().unwrap_err().to_string().contains("verify"));
    let (cpu, gpu) = sim::open("textbook").unwrap();
    let real = Rig { devices: vec![gpu], cpu, absent: Vec::new() };
    let cal = study_in(&config("exp"), &[&real], &mut Collect::default(), &Cancel::new()).unwrap();
    assert!(cal.records.is_empty(), "a device that computes takes no part in a study");
}

/// A profile that sends everything to the wrong side is found out, a good one is not accused.
#[test]
fn a_profile_that_is_worse_than_a_constant_choice_is_found() {
    let spec = sim::spec("h200").unwrap();
    let cal = study(&spec, &config("sum"), 5);
    let rigs: Vec<Rig> = (20..25).map(|p| rig(&spec, p)).collect();
    let cfg = RegretConfig { shapes: 24, dense: 8, looks: 1, ..RegretConfig::new(Duration::from_secs(900)) };
    for r in judge(&cal.profile, &cfg, &rigs) {
        assert_eq!((r.finding.as_str(), r.processes), ("ok", 5), "{} {}", r.family, r.residency);
    }
    let planted = |change: fn(&mut Entry)| {
        let mut p = cal.profile.clone();
        p.rule = Rule::Threshold;
        p.entries.iter_mut().for_each(change);
        judge(&p, &cfg, &rigs)
    };
    let small = planted(|e| (e.verdict, e.crossing, e.threshold) = (Verdict::Crossing, Some(1), Some(1)));
    let never = planted(|e| (e.verdict, e.crossing, e.threshold) = (Verdict::Never, None, None));
    // With operands on the host the CPU wins at every size.
    let host: Vec<_> = small.iter().filter(|r| r.residency == "always").collect();
    assert!(host.len() == 3 && host.iter().all(|r| r.finding == "always-cpu"), "{host:?}");
    assert!(never.iter().all(|r| r.finding != "always-cpu"), "always the CPU is no worse than itself");
}

/// A program's own function is in the profile as well, and nobody but the program can call it.
#[test]
fn a_key_that_cannot_be_judged_leaves_the_others() {
    let spec = sim::spec("h200").unwrap();
    let mut cfg = config("sum");
    cfg.budget = Duration::from_secs(60);
    let mut profile = study(&spec, &cfg, 3).profile;
    let keys = profile.entries.len();
    profile.entries.insert(0, Entry { op: "mine".into(), ..profile.entries[0].clone() });
    let rigs: Vec<Rig> = (20..22).map(|p| rig(&spec, p)).collect();
    let cfg =
        RegretConfig { shapes: 8, dense: 4, processes: 2, looks: 1, ..RegretConfig::new(Duration::from_secs(900)) };
    let mut told = Collect::default();
    let e = regret::run_in(&cfg, &profile, &rigs.iter().collect::<Vec<_>>(), &mut told, &Cancel::new()).unwrap_err();
    assert!(e.to_string().contains("mine"), "{e}");
    assert_eq!(told.records.len(), keys, "one record for each of the others");
    assert!(told.notes.iter().any(|n| n.contains("regret of mine")), "{:?}", told.notes);
}

/// Read operands of zeros: nothing is computed with them.
fn zeros(op: &OpDesc, size: u64) -> (gpuctl::base::Case, Vec<HostTensor>) {
    let case = op.case(DType::F32, &(op.families[0].sweep)(size), Attrs::new(), Fill::Uniform).unwrap();
    let shapes = (op.shapes)(&case).unwrap();
    let read = (0..shapes.len()).filter(|i| op.operands[*i].role != Role::Out);
    let tensors = read.map(|i| HostTensor::zeros(DType::F32, &shapes[i]).unwrap()).collect();
    (case, tensors)
}

/// Times a size on both sides in one process; also how many calls that took.
fn timed(rig: &Rig, op: &'static OpDesc, size: u64, residency: Residency, pairs: usize) -> (Vec<f64>, Vec<f64>, u64) {
    let (case, inputs) = zeros(op, size);
    let wait = Duration::from_secs(600);
    let sides = [Runner::new(rig.cpu.clone()), Runner::new(rig.devices[0].clone())];
    let prepared = sides.each_ref().map(|r| r.prepare(op, &case, None).unwrap());
    let subject = |i: usize, r| OpSubject::new(&sides[i], &prepared[i], &inputs, r, wait).unwrap();
    let (mut cpu, mut gpu) = (subject(0, Residency::Resident), subject(1, residency).single());
    let rule =
        StopRule { min_samples: pairs, max_samples: pairs, spread: 0.0, soft_s: 1e9, ..StopRule::with_budget(1e9) };
    let mut both: [&mut dyn Subject; 2] = [&mut cpu, &mut gpu];
    let mut found = sample(&mut both, &rule, &Cancel::new()).unwrap();
    let calls = found.iter().map(|s| s.calls).sum();
    let gpu = found.pop().unwrap().samples;
    (found.pop().unwrap().samples, gpu, calls)
}

/// Every size a step apart, each decided for itself: the sizes between which the crossing surely lies, and the calls timed.
fn brute_force(
    spec: &Spec,
    op: &'static OpDesc,
    residency: Residency,
    range: (u64, u64),
    step: f64,
    pairs: usize,
) -> ([u64; 2], u64) {
    let rigs: Vec<Rig> = (0..5).map(|p| rig(spec, 50 + p)).collect();
    let n = ((range.1 as f64 / range.0 as f64).ln() / step.ln()).ceil() as i32;
    let mut sizes: Vec<u64> = (0..=n).map(|i| (range.0 as f64 * step.powi(i)).round() as u64).collect();
    sizes.dedup();
    let mut calls = 0;
    let ratios: Vec<[f64; 2]> = sizes
        .iter()
        .map(|size| {
            let looks: Vec<(Vec<f64>, Vec<f64>)> = rigs
                .iter()
                .map(|rig| {
                    let (cpu, gpu, n) = timed(rig, op, *size, residency, pairs);
                    calls += n;
                    (cpu, gpu)
                })
                .collect();
            let views: Vec<(&[f64], &[f64])> = looks.iter().map(|(c, d)| (&c[..], &d[..])).collect();
            processes::ratio(&views).unwrap().ci
        })
        .collect();
    let lost = ratios.iter().rposition(|ci| ci[1] < 1.0).map_or(sizes[0], |i| sizes[i]);
    let won = ratios.iter().rposition(|ci| ci[0] <= 1.0).map_or(sizes[0], |i| sizes[(i + 1).min(sizes.len() - 1)]);
    ([lost, won], calls)
}

/// The adaptive search against a dense sweep with an interval that is as narrow; both count what they time in the sampler.
/// In bmm the CPU's ratio bends at the crossing, and a cubic misses the sizes around it.
#[test]
fn the_search_finds_what_a_dense_sweep_finds_with_a_twentieth_of_the_calls() {
    for (preset, name, range) in [
        ("h200", "add", (1 << 17, 1 << 22)),
        ("h200", "softmax", (1 << 18, 1 << 22)),
        ("textbook", "exp", (1 << 14, 1 << 18)),
        ("h200", "bmm", (16, 1024)),
    ] {
        let op = find(name).unwrap();
        let spec = sim::spec(preset).unwrap();
        let residency = Residency::Resident;
        assert_eq!(op.families.len(), 1, "the calls of one key are counted");
        let cfg = CalibrateConfig { residencies: vec![residency], range: Some(range), ..config(name) };
        let cal = study(&spec, &cfg, 11);
        let found = &cal.records[0];
        let ci = found.ci.unwrap_or_else(|| panic!("{preset} {name}: {}", found.reason));
        let width = ci[1] as f64 / ci[0] as f64;
        let (mut pairs, mut step) = (15, width.sqrt());
        let (dense, calls) = loop {
            let (dense, calls) = brute_force(&spec, op, residency, range, step, pairs);
            let wide = dense[1] as f64 / dense[0] as f64 > width * 1.0001;
            if !wide || pairs > 100 {
                break (dense, calls);
            }
            // Whichever was not enough.
            (pairs, step) = (pairs * 2, step.powf(0.8));
        };
        let [search, others] = cal.calls;
        let economy = calls as f64 / search as f64;
        println!(
            "{preset} {name}: crossing {:?} in {ci:?} ({width:.3}) by {search} calls, {others} more for the curves; \
             dense {dense:?} by {calls}, {economy:.1} times as many",
            found.crossing,
        );
        assert!(ci[0] <= dense[1] && dense[0] <= ci[1], "{preset} {name}: {ci:?} and {dense:?}");
        assert!(economy >= 20.0, "{preset} {name}: {economy}");
    }
}
