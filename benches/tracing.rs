//! What tracing costs: `cargo bench --bench tracing`, and `-- cpu,opencl:0` for these devices.
//!
//! The same prepared call on the same device, traced and not, sample by sample in turns: first without a trace twice, which
//! shows what the method cannot tell apart, then with one. Then what a traced call of the device costs, one kind at a time.

#![allow(clippy::print_stdout, reason = "a benchmark prints its table")]

use std::sync::Arc;

use gpuctl::base::sink::Cancel;
use gpuctl::base::{Attrs, DType, Env, Result, stats};
use gpuctl::device::cpu::Pin;
use gpuctl::device::probe::{CpuConfig, Select, open};
use gpuctl::device::tap::{KEPT, Tracer};
use gpuctl::device::{DEADLINE, Device, traced};
use gpuctl::engine::Runner;
use gpuctl::measure::{OpSubject, Residency, StopRule, sample};
use gpuctl::op::{self, case};

/// Seconds per call of two runners in turns; the ratio of the second to the first with its interval.
fn ratio(a: &Runner, b: &Runner, op: &str, size: u64, residency: Residency) -> Result<(f64, f64, [f64; 2])> {
    let op = op::find(op)?;
    let case = op.sized(DType::F32, size, Attrs::new())?;
    let inputs = case::inputs(op, &case)?;
    let (first, second) = (a.prepare(op, &case, None)?, b.prepare(op, &case, None)?);
    let mut first = OpSubject::new(a, &first, &inputs, residency, DEADLINE)?;
    let mut second = OpSubject::new(b, &second, &inputs, residency, DEADLINE)?;
    let rule = StopRule { min_samples: 200, max_samples: 200, spread: 0.0, soft_s: 10.0, budget_s: 10.0 };
    let series = sample(&mut [&mut first, &mut second], &rule, &Cancel::new())?;
    let ratios: Vec<f64> = series[1].samples.iter().zip(&series[0].samples).map(|(b, a)| b / a).collect();
    let sorted = stats::sorted(&ratios);
    Ok((series[0].median(), stats::quantile(&sorted, 0.5), stats::median_ci(&sorted)))
}

fn main() -> Result<()> {
    // Cargo's own `--bench` is no device.
    let named = std::env::args().skip(1).find(|a| !a.starts_with('-')).unwrap_or_else(|| "cpu,opencl:0,wgpu:0".into());
    println!("| device | op | size | operands | call | off/off | on/off | 95 % |");
    println!("| --- | --- | ---: | --- | ---: | ---: | ---: | --- |");
    for name in named.split(',') {
        let rig = open(&Select::parse(name)?, &Env::default(), CpuConfig { threads: 0, pin: Pin::Free });
        let Some(inner) = rig.as_ref().ok().and_then(|r| r.devices.first()) else {
            println!("| {name} | not here | | | | | | |");
            continue;
        };
        for (op, size) in [("relu", 1_000), ("relu", 1_000_000), ("gemm", 64), ("gemm", 256)] {
            for residency in [Residency::Resident, Residency::Always] {
                let plain = || Runner::new(Arc::clone(inner));
                let tracer = Tracer::new("bench", KEPT);
                let watched: Arc<dyn Device> = traced::device(Arc::clone(inner), &tracer);
                let (_, none, _) = ratio(&plain(), &plain(), op, size, residency)?;
                let (call, on, [low, high]) = ratio(&plain(), &Runner::new(watched), op, size, residency)?;
                println!(
                    "| {name} | {op} | {size} | {} | {:.2} us | {none:.4} | {on:.4} | {low:.4} to {high:.4} |",
                    residency.name(),
                    call * 1e6
                );
            }
        }
    }
    Ok(())
}
