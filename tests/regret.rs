//! Cost curves against simulated machines whose truth is known and has another form; what placing by them costs.

#![allow(clippy::print_stdout, reason = "a test tells what it found")]

use std::time::Duration;

use gpuctl::base::DType;
use gpuctl::base::regret::{RegretPolicy, RegretRecord};
use gpuctl::base::sink::{Cancel, Collect};
use gpuctl::device::probe::Rig;
use gpuctl::device::sim::{self, Compute, Spec};
use gpuctl::jobs::calibrate::regret::{self, RegretConfig};
use gpuctl::jobs::calibrate::{CalibrateConfig, Calibrated, study_in};
use gpuctl::measure::Residency;
use gpuctl::op::find;

const OPS: [&str; 8] = ["gemm", "gemv", "bmm", "conv2d", "add", "exp", "sum", "softmax"];

fn config(op: &str) -> CalibrateConfig {
    CalibrateConfig {
        ops: vec![find(op).unwrap()],
        dtypes: vec![DType::F32],
        residencies: vec![Residency::Always, Residency::Resident],
        cpu_variant: None,
        margin: 1.1,
        budget: Duration::from_secs(600),
        range: Some(if find(op).unwrap().unit == gpuctl::op::Unit::Dim { (16, 1024) } else { (1024, 2 << 20) }),
        allow_software: false,
        seed: 1,
        processes: CalibrateConfig::PROCESSES,
        earlier: None,
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

/// Regret by the machine's noise-free times.
fn truth(spec: &Spec, cal: &Calibrated, cfg: &RegretConfig) -> Vec<RegretRecord> {
    let quiet = rig(&spec.clone().quiet(), 0);
    regret::run_in(cfg, &cal.profile, &[&quiet], &mut Collect::default(), &Cancel::new()).unwrap()
}

fn policy<'a>(r: &'a RegretRecord, name: &str) -> &'a RegretPolicy {
    r.policies.iter().find(|p| p.name == name).unwrap()
}

#[test]
fn explore() {
    let only = std::env::var("PRESET").unwrap_or_default();
    let ops = std::env::var("OPS").unwrap_or_default();
    for preset in sim::presets().iter().filter(|p| only.is_empty() || only.contains(**p)) {
        let spec = sim::spec(preset).unwrap();
        for op in OPS.iter().filter(|o| ops.is_empty() || ops.split(',').any(|p| p == **o)) {
            let begin = std::time::Instant::now();
            let cal = study(&spec, &config(op), 11);
            let t = begin.elapsed();
            let cfg = RegretConfig {
                shapes: 100,
                dense: 4,
                processes: 2,
                pairs: 3,
                ..RegretConfig::new(Duration::from_secs(6000))
            };
            let got = truth(&spec, &cal, &cfg);
            println!("{preset} {op}: {:?} {:?}", t, begin.elapsed());
            for r in &got {
                let e =
                    cal.profile.entries.iter().find(|e| e.family == r.family && e.residency == r.residency).unwrap();
                let c = e.curve.as_ref();
                println!(
                    "  {} {} {} {:?} shapes {} left {} error {:?} {:?}",
                    r.family,
                    r.residency,
                    r.verdict,
                    r.crossing,
                    r.shapes.len(),
                    r.left_out,
                    c.map(|c| c.cpu.error),
                    c.map(|c| c.device.error)
                );
                for p in &r.policies {
                    println!(
                        "      {:16} mean {:8.4} near {:8.4} worst {:8.4} time {:8.4}",
                        p.name,
                        p.mean,
                        p.near.unwrap_or(f64::NAN),
                        p.worst,
                        p.time
                    );
                }
                if std::env::var_os("SHAPES").is_some() {
                    if let Some(c) = c {
                        println!("{:?}\n{:?}", c.cpu, c.device);
                    }
                    for s in &r.shapes {
                        let (pc, pg) = (s.predicted_cpu_s.unwrap_or(f64::NAN), s.predicted_gpu_s.unwrap_or(f64::NAN));
                        let best = s.cpu_s.min(s.gpu_s);
                        let chosen = if s.gpu { s.gpu_s } else { s.cpu_s };
                        println!(
                            "        {:24} size {:8} cpu {:.3e} ({:+.3}) gpu {:.3e} ({:+.3}) regret {:.3}",
                            s.shape_text,
                            s.size,
                            s.cpu_s,
                            (pc / s.cpu_s).ln(),
                            s.gpu_s,
                            (pg / s.gpu_s).ln(),
                            chosen / best - 1.0
                        );
                    }
                }
            }
        }
    }
    let _ = policy;
}
