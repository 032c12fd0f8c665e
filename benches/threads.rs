//! Calls in a second with 1, 2, 4, 8 and 128 threads on one engine: `cargo bench --bench threads [-- DEVICE..]`.
//!
//! Every round makes the same calls, so the same bytes, shared out among the threads; the rounds of all thread counts take
//! turns, five of them, and the median counts. Then what renting costs: from the pool, and made and released by the driver.

#![allow(clippy::print_stdout, reason = "a benchmark prints its table")]

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Barrier};
use std::time::Instant;

use gpuctl::base::{Attrs, DType, Env, Fill, HostTensor, Result, stats};
use gpuctl::device::cpu::Pin;
use gpuctl::device::probe::{self, CpuConfig, Select};
use gpuctl::device::{DEADLINE, Device, MemoryKind};
use gpuctl::engine::{Engine, Placement, Pool, PoolConfig};
use gpuctl::op;

const THREADS: [usize; 5] = [1, 2, 4, 8, 128];
const ROUNDS: usize = 5;

/// Seconds that `calls` calls of a mix take on so many threads, from the moment at which all of them are there.
fn round(engine: &Engine, mix: &[(&str, Vec<HostTensor>)], calls: usize, threads: usize) -> f64 {
    let next = AtomicUsize::new(0);
    let all_there = Barrier::new(threads + 1);
    std::thread::scope(|s| {
        for _ in 0..threads {
            s.spawn(|| {
                all_there.wait();
                loop {
                    let i = next.fetch_add(1, Ordering::Relaxed);
                    if i >= calls {
                        return;
                    }
                    let (op, inputs) = &mix[i % mix.len()];
                    let inputs: Vec<&HostTensor> = inputs.iter().collect();
                    if let Err(e) = engine.run(op, &inputs, &Attrs::new()) {
                        println!("{op}: {e}");
                    }
                }
            });
        }
        all_there.wait();
        Instant::now()
    })
    .elapsed()
    .as_secs_f64()
}

fn throughput(device: &Arc<dyn Device>) -> Result<()> {
    let id = device.info().id.clone();
    let builder = Engine::builder().env(Env::default()).device(Arc::clone(device)).without_trials();
    let engine = builder.placement(Placement::ForceGpu(id.clone())).no_fallback().build()?;
    let mut mix = Vec::new();
    let cases: [(&str, &[u64]); 5] = [
        ("gemm", &[64, 64, 64]),
        ("relu", &[50_000]),
        ("add", &[1000]),
        ("sum", &[1, 30_000, 1]),
        ("softmax", &[64, 100]),
    ];
    for (name, dims) in cases {
        let op = op::find(name)?;
        mix.push((name, op::case::inputs(op, &op.case(DType::F32, dims, Attrs::new(), Fill::Uniform)?)?));
    }
    // The second time: the first one builds the kernels. Two seconds for each round.
    let seconds = (round(&engine, &mix, 100, 1), round(&engine, &mix, 1000, 8)).1;
    let calls = ((2000.0 / seconds) as usize).clamp(1000, 1_000_000);
    let mut times = vec![Vec::new(); THREADS.len()];
    for _ in 0..ROUNDS {
        for (times, threads) in times.iter_mut().zip(THREADS) {
            times.push(round(&engine, &mix, calls, threads));
        }
    }
    let rates: Vec<f64> = times.iter().map(|t| calls as f64 / stats::median(t)).collect();
    let best = rates[..4].iter().copied().fold(0.0, f64::max);
    for (threads, rate) in THREADS.iter().zip(&rates) {
        println!("{id}: {threads:>4} threads {rate:>9.0} calls/s, {:.2} of the best of 1 to 8", rate / best);
    }
    // One thread, warm: the whole of a small call.
    let x = HostTensor::from_slice(&[1.0f32; 1000], &[1000])?;
    let mut each = Vec::new();
    for _ in 0..3000 {
        let start = Instant::now();
        engine.run("relu", &[&x], &Attrs::new())?;
        each.push(start.elapsed().as_secs_f64());
    }
    each.sort_by(f64::total_cmp);
    let at = |q: f64| 1e6 * each[(q * (each.len() - 1) as f64) as usize];
    println!("{id}: relu of 1,000 elements, copies included: p50 {:.0} us, p99 {:.0} us", at(0.5), at(0.99));
    Ok(())
}

/// Nanoseconds of one cycle, the median of interleaved rounds.
fn renting(device: &Arc<dyn Device>) -> Result<()> {
    let id = device.info().id.clone();
    let pool = Pool::new(Arc::clone(device), PoolConfig::default());
    let mut q = device.queue()?;
    for bytes in [4096u64, 1 << 20] {
        drop(pool.rent(bytes)?);
        let (mut rent, mut raw, mut rent_fill, mut raw_fill) = (vec![], vec![], vec![], vec![]);
        let time = |n: u32, f: &mut dyn FnMut() -> Result<()>| -> Result<f64> {
            let start = Instant::now();
            for _ in 0..n {
                f()?;
            }
            Ok(start.elapsed().as_secs_f64() * 1e9 / f64::from(n))
        };
        for _ in 0..9 {
            rent.push(time(20_000, &mut || pool.rent(bytes).map(drop))?);
            raw.push(time(500, &mut || device.alloc(bytes, MemoryKind::Device).map(drop))?);
        }
        // Call by call in turn: how long the driver's threads take to wake differs more from one moment to the next.
        for _ in 0..3000 {
            rent_fill.push(time(1, &mut || {
                let b = pool.rent(bytes)?;
                q.fill(&b, 0, bytes, 1)?;
                q.finish(DEADLINE)
            })?);
            raw_fill.push(time(1, &mut || {
                let b = device.alloc(bytes, MemoryKind::Device)?;
                q.fill(&b, 0, bytes, 1)?;
                q.finish(DEADLINE)
            })?);
        }
        let m = |v: &Vec<f64>| stats::median(v);
        println!(
            "{id}: {bytes} B: rent and return {:.0} ns, allocate and release {:.0} ns ({:.1} times); with a fill {:.0} ns and {:.0} ns",
            m(&rent),
            m(&raw),
            m(&raw) / m(&rent),
            m(&rent_fill),
            m(&raw_fill)
        );
    }
    Ok(())
}

fn main() -> Result<()> {
    let named: Vec<String> = std::env::args().skip(1).filter(|a| !a.starts_with('-')).collect();
    let names = if named.is_empty() { vec!["opencl:0".to_string(), "wgpu:0".into()] } else { named };
    let rig = probe::open(&Select::Named(names), &Env::default(), CpuConfig { threads: 1, pin: Pin::Free })?;
    for device in &rig.devices {
        renting(device)?;
        throughput(device)?;
    }
    Ok(())
}
