//! Recorded workloads against a simulator whose truth is known: the three totals, and what is answered.

#![allow(clippy::print_stdout, reason = "a test tells what it found")]

use std::sync::Arc;
use std::time::Duration;

use gpuctl::base::record::WorkloadRecord;
use gpuctl::base::sink::{Cancel, Collect};
use gpuctl::base::{Attrs, Code, DType, Fill, Record};
use gpuctl::device::Device;
use gpuctl::device::faulty::{FaultPlan, Faulty};
use gpuctl::device::probe::Rig;
use gpuctl::device::sim::{self, Compute, Model, Spec};
use gpuctl::engine::{Workload, WorkloadRow};
use gpuctl::jobs::calibrate::CalibrateConfig;
use gpuctl::jobs::workload::{Judged, run_in};
use gpuctl::measure::{Residency, stop};
use gpuctl::op::{Role, find};
use gpuctl::profile::Profile;

fn config(budget_s: f64) -> CalibrateConfig {
    CalibrateConfig {
        ops: Vec::new(),
        dtypes: Vec::new(),
        residencies: Vec::new(),
        cpu_variant: None,
        margin: 1.1,
        budget: Duration::from_secs_f64(budget_s),
        range: Some((1024, 1 << 20)),
        allow_software: false,
        seed: 1,
        processes: 5,
        earlier: None,
        kernels: gpuctl::engine::KernelCache::off(),
        states: Vec::new(),
        telemetry: gpuctl::device::telemetry::Telemetry::cards,
    }
}

/// A machine without noise, throttling or a bus that both sides share.
fn quiet(preset: &str) -> Spec {
    let mut spec = sim::spec(preset).unwrap();
    for side in [&mut spec.cpu, &mut spec.device] {
        side.noise = 0.0;
        side.process_noise = 0.0;
        side.throttle = None;
    }
    spec
}

fn rigs(spec: &Spec) -> Vec<Rig> {
    let open = |process| {
        let (cpu, gpu) = sim::open_spec(Spec { process, ..spec.clone() }, Compute::Real).unwrap();
        Rig { devices: vec![gpu], cpu, absent: Vec::new() }
    };
    (0..5).map(open).collect()
}

fn row(op: &str, dims: &[u64], residency: &str, count: u64, gpu: u64) -> WorkloadRow {
    let case = find(op).unwrap().case(DType::F32, dims, Attrs::new(), Fill::Uniform).unwrap();
    WorkloadRow { case, residency: residency.into(), count, gpu }
}

fn judge(workload: &Workload, rigs: &[Rig], budget_s: f64) -> Judged {
    let rigs: Vec<&Rig> = rigs.iter().collect();
    run_in(&config(budget_s), workload, &rigs, &mut Collect::default(), &Cancel::new()).unwrap()
}

/// What the cost model says one call takes when it is timed as the sampler times it, without noise.
fn true_seconds(model: &Model, row: &WorkloadRow, residency: Residency) -> f64 {
    let op = find(row.case.op).unwrap();
    let cost = (op.cost)(&row.case);
    let shapes = (op.shapes)(&row.case).unwrap();
    let bytes = |keep: fn(Role) -> bool| -> Vec<u64> {
        let of = |(i, s): (usize, &Vec<u64>)| {
            keep(op.operands[i].role).then(|| s.iter().product::<u64>() * op.operand_dtype(i, &row.case).size())
        };
        shapes.iter().enumerate().filter_map(of).collect()
    };
    match residency {
        Residency::Always => {
            model.call(&bytes(|r| r != Role::Out), &[cost], row.case.dtype, &bytes(|r| r != Role::In)).unwrap()
        }
        _ => {
            // Short calls of the CPU are timed in batches; each of a device's has its own wait.
            let one = !model.synchronous;
            let per_call = |n: u64| model.call(&[], &vec![cost; n as usize], row.case.dtype, &[]).unwrap() / n as f64;
            let region = |t: f64| stop::batch_for(t, 50e-6);
            if one { per_call(1) } else { per_call(region(per_call(region(per_call(1))))) }
        }
    }
}

/// Seconds of the whole workload: as recorded, as the answer routes it, all on the CPU, all on the device.
fn truth(spec: &Spec, workload: &Workload, answer: &WorkloadRecord) -> [f64; 4] {
    let mut sums = [0.0; 4];
    for r in &workload.rows {
        let cpu = true_seconds(&spec.cpu, r, Residency::Resident);
        let gpu = true_seconds(&spec.device, r, r.residency.parse().unwrap());
        let said = answer
            .rows
            .iter()
            .find(|a| (a.op.as_str(), &a.shape_text, &a.residency) == (r.case.op, &r.case.shape_text(), &r.residency));
        let routed = if said.unwrap().goes == "cpu" { cpu } else { gpu };
        let (n, there) = (r.count as f64, r.gpu as f64);
        for (sum, add) in sums.iter_mut().zip([(n - there) * cpu + there * gpu, n * routed, n * cpu, n * gpu]) {
            *sum += add;
        }
    }
    sums
}

fn totals(r: &WorkloadRecord) -> [(f64, [f64; 2]); 4] {
    let of = |s: Option<f64>, ci: Option<[f64; 2]>| (s.unwrap(), ci.unwrap());
    [of(r.now_s, r.now_ci_s), of(r.routed_s, r.routed_ci_s), of(r.cpu_s, r.cpu_ci_s), of(r.gpu_s, r.gpu_ci_s)]
}

/// Functions that a server's card wins, small calls that it loses, operands on either side, calls that ran on the card.
fn mixed() -> Workload {
    Workload {
        rows: vec![
            row("exp", &[1 << 20], "always", 400, 0),
            row("exp", &[700_001], "always", 10, 0),
            row("exp", &[5_000], "always", 90, 10),
            row("exp", &[1 << 22], "resident", 30, 0),
            row("relu", &[100], "always", 1_000, 0),
        ],
    }
}

fn small() -> Workload {
    Workload { rows: vec![row("add", &[2_000], "always", 5_000, 0), row("relu", &[3_000], "always", 100, 0)] }
}

#[test]
fn totals_are_the_simulators_and_the_answer_follows() {
    let spec = quiet("h200");
    for (workload, worth) in [(mixed(), "yes"), (small(), "no")] {
        let judged = judge(&workload, &rigs(&spec), 2.0);
        let r = &judged.record;
        println!("{}", judged.lines().join("\n"));
        let n = workload.rows.len() as u64;
        assert_eq!((r.measured, r.predicted, r.unknown, r.processes), (n, 0, 0, 5), "{r:?}");
        assert_eq!(r.calls, workload.rows.iter().map(|r| r.count).sum::<u64>());
        for ((value, [low, high]), want) in totals(r).into_iter().zip(truth(&spec, &workload, r)) {
            // The virtual clock counts picoseconds.
            assert!(low * (1.0 - 1e-4) <= want && want <= high * (1.0 + 1e-4), "{low} {want} {high}: {r:?}");
            assert!((value / want - 1.0).abs() < 1e-4 && high / low < 1.001, "{value} {want}");
        }
        assert_eq!(r.worth, worth, "{}", r.reason);
        let [now, routed, _, gpu] = totals(r).map(|t| t.0);
        if worth == "yes" {
            let [low, high] = r.gain_ci.unwrap();
            let gain = now / routed;
            assert!(low <= gain * 1.0001 && gain <= high * 1.0001 && low > 1.01, "{gain} {:?}", r.gain_ci);
            assert!(routed < gpu, "small calls stay on the CPU");
            assert!(r.on_device > 0 && r.on_device < r.calls);
        } else {
            assert_eq!((r.on_device, routed), (0, now));
            assert!(gpu > 2.0 * now, "all on the card is worse: {gpu} {now}");
        }
        // Exactly the workload's keys are calibrated.
        let mut keys: Vec<(String, String, String)> = judged
            .calibrated
            .profile
            .entries
            .iter()
            .map(|e| (e.op.clone(), e.family.clone(), e.residency.clone()))
            .collect();
        let mut want: Vec<_> = workload
            .rows
            .iter()
            .filter_map(|r| {
                let family = find(r.case.op).unwrap().family(&r.case)?.name;
                Some((r.case.op.to_string(), family.to_string(), r.residency.clone()))
            })
            .collect();
        keys.sort();
        want.sort();
        want.dedup();
        assert_eq!(keys, want);
        assert!(Profile::from_toml(&judged.calibrated.profile.to_toml().unwrap()).is_ok());
    }
}

/// Heavier rows are measured before lighter ones; what is predicted says so, and its interval is wide enough for the truth.
#[test]
fn a_short_budget_predicts_the_lighter_shapes() {
    let spec = quiet("h200");
    let workload = mixed();
    let mut seen = [false; 2];
    for budget in [1e-6, 0.01, 0.1, 0.3] {
        let judged = judge(&workload, &rigs(&spec), budget);
        let r = &judged.record;
        assert_eq!(r.measured + r.predicted + r.unknown, workload.rows.len() as u64);
        if r.unknown > 0 {
            assert_eq!(r.worth, "unclear", "{budget}: {}", r.reason);
            seen[0] = true;
            continue;
        }
        seen[1] |= r.predicted > 0;
        for ((_, [low, high]), want) in totals(r).into_iter().zip(truth(&spec, &workload, r)) {
            assert!(low * (1.0 - 1e-4) <= want && want <= high * (1.0 + 1e-4), "{budget}: {low} {want} {high}: {r:?}");
        }
    }
    assert!(seen[0], "no budget was too short: the test sees nothing");
    println!("predicted rows seen: {}", seen[1]);
}

/// With noise of samples and processes the intervals hold the truth as often as they say, within what 24 runs can show.
#[test]
fn intervals_hold_the_truth() {
    let mut spec = quiet("laptop");
    let workload =
        Workload { rows: vec![row("exp", &[256_000], "always", 40, 5), row("add", &[100_000], "always", 200, 0)] };
    let (mut held, mut all) = (0, 0);
    for seed in 0..6 {
        for side in [&mut spec.cpu, &mut spec.device] {
            side.noise = 0.05;
            side.process_noise = 0.1;
        }
        spec.seed = 100 + seed;
        let judged = judge(&workload, &rigs(&spec), 1.0);
        for ((_, [low, high]), want) in totals(&judged.record).into_iter().zip(truth(&spec, &workload, &judged.record))
        {
            held += usize::from(low <= want && want <= high);
            all += 1;
            assert!(high / low < 2.0, "{low} {high}");
        }
    }
    println!("{held} of {all} intervals hold the truth");
    assert!(held * 100 >= all * 80, "{held} of {all}");
}

#[test]
fn a_device_that_errs_gets_nothing() {
    let spec = quiet("h200");
    let (cpu, gpu) = sim::open_spec(spec, Compute::Real).unwrap();
    let faulty: Arc<dyn Device> = Arc::new(Faulty::new(gpu, FaultPlan::parse("bitflip@every=1").unwrap()));
    let rig = Rig { devices: vec![faulty], cpu, absent: Vec::new() };
    let judged = judge(&mixed(), &[rig], 2.0);
    let r = &judged.record;
    assert_eq!((r.on_device, r.worth.as_str()), (0, "no"), "{}", r.reason);
    assert!(r.rows.iter().all(|row| row.goes == "cpu"), "{:?}", r.rows);
    assert!(!judged.calibrated.profile.may_use_gpu());
}

#[test]
fn without_a_device_or_without_calls() {
    let (cpu, _) = sim::open("h200").unwrap();
    let rig = Rig { devices: Vec::new(), cpu, absent: Vec::new() };
    let mut sink = Collect::default();
    let judged = run_in(&config(1.0), &mixed(), &[&rig], &mut sink, &Cancel::new()).unwrap();
    assert_ne!(judged.record.worth, "yes");
    assert!(matches!(sink.records.last(), Some(Record::Workload(r)) if **r == judged.record));
    let e = run_in(&config(1.0), &Workload::default(), &[&rig], &mut sink, &Cancel::new()).unwrap_err();
    assert_eq!(e.code(), Code::BadArgument);
}
