//! Many threads on one engine: mixed ops, every result compared bit by bit, a watchdog against standstill.
//!
//! `GPUCTL_TEST_ALL=1` makes it a minute for each device instead of two seconds.

#![allow(clippy::print_stdout, reason = "a test tells what it skipped and counted")]

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use gpuctl::base::{Attrs, Backend, Case, DType, Env, Fill, HostTensor};
use gpuctl::device::cpu::Pin;
use gpuctl::device::probe::{self, CpuConfig};
use gpuctl::device::{Device, sim};
use gpuctl::engine::{Engine, Placement};
use gpuctl::op;

const THREADS: u64 = 128;

/// The simulator, and what drivers of OpenCL and wgpu are here; a missing one fails if `GPUCTL_REQUIRE` names it.
fn devices() -> Vec<Arc<dyn Device>> {
    let mut all = vec![sim::open("textbook").unwrap().1];
    let required = Env::read().unwrap().require;
    for backend in [Backend::Opencl, Backend::Wgpu] {
        let config = CpuConfig { threads: 1, pin: Pin::Free };
        let seen = probe::inventory_of(&[backend], &Env::default(), config).unwrap();
        match seen.found.iter().find(|f| f.info.backend == backend) {
            Some(found) => all.push(found.open().unwrap()),
            None => {
                assert!(!required.iter().any(|b| b == backend.name()), "{:?}", seen.absent);
                println!("skipped: {backend}: {:?}", seen.absent);
            }
        }
    }
    all
}

struct Work {
    case: Case,
    inputs: Vec<HostTensor>,
    wanted: Vec<HostTensor>,
}

/// A mix over families and sizes, with what one thread alone gets from the device.
fn mix(engine: &Engine) -> Vec<Work> {
    let cases: [(&str, &[u64]); 8] = [
        ("gemm", &[64, 64, 64]),
        ("gemm", &[17, 33, 5]),
        ("relu", &[50_000]),
        ("add", &[1000]),
        ("exp", &[4096]),
        ("sum", &[1, 30_000, 1]),
        ("softmax", &[64, 100]),
        ("transpose", &[100, 70]),
    ];
    let of = |(name, dims): (&str, &[u64])| {
        let op = op::find(name).unwrap();
        let case = op.case(DType::F32, dims, Attrs::new(), Fill::Uniform).unwrap();
        let inputs = op::case::inputs(op, &case).unwrap();
        let out = engine.run(name, &inputs.iter().collect::<Vec<_>>(), &case.attrs).unwrap();
        assert_eq!((out.fallback.as_deref(), out.ran_on == "cpu"), (None, false), "{case}");
        Work { case, inputs, wanted: out.outputs }
    };
    cases.into_iter().map(of).collect()
}

/// Runs the mix on all threads for a while; the number of calls. Panics on a wrong result, a fallback, or standstill.
fn storm(engine: &Arc<Engine>, mix: &Arc<Vec<Work>>, seconds: f64) -> u64 {
    let (calls, stop) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
    let (tell, told) = mpsc::channel();
    for thread in 0..THREADS {
        let (engine, mix, calls, stop, tell) =
            (Arc::clone(engine), Arc::clone(mix), Arc::clone(&calls), Arc::clone(&stop), tell.clone());
        std::thread::spawn(move || {
            let mut at = thread as usize;
            let mut wrong = None;
            while !stop.load(Ordering::Relaxed) && wrong.is_none() {
                let work = &mix[at % mix.len()];
                let inputs: Vec<&HostTensor> = work.inputs.iter().collect();
                match engine.run(work.case.op, &inputs, &work.case.attrs) {
                    Ok(out) if out.outputs == work.wanted && out.fallback.is_none() => {}
                    Ok(out) => wrong = Some(format!("{}: {:?}", work.case, out.fallback)),
                    Err(e) => wrong = Some(e.to_string()),
                }
                calls.fetch_add(1, Ordering::Relaxed);
                at += 1;
            }
            // The receiver is gone only when the test has failed already.
            let _ = tell.send(wrong);
        });
    }
    // The watchdog: some call must end every half minute.
    let (start, mut before, mut since) = (Instant::now(), 0, Instant::now());
    while start.elapsed().as_secs_f64() < seconds {
        std::thread::sleep(Duration::from_millis(20));
        let now = calls.load(Ordering::Relaxed);
        if now != before {
            (before, since) = (now, Instant::now());
        }
        assert!(since.elapsed() < Duration::from_secs(30), "standstill after {now} calls");
    }
    stop.store(true, Ordering::Relaxed);
    for _ in 0..THREADS {
        let wrong = told.recv_timeout(Duration::from_secs(60)).expect("a thread is stuck");
        assert_eq!(wrong, None);
    }
    calls.load(Ordering::Relaxed)
}

#[test]
fn many_threads_share_an_engine() {
    let seconds = if std::env::var_os("GPUCTL_TEST_ALL").is_some() { 60.0 } else { 2.0 };
    for device in devices() {
        let id = device.info().id.clone();
        let builder = Engine::builder().env(Env::default()).device(Arc::clone(&device)).without_trials();
        let engine = Arc::new(builder.placement(Placement::ForceGpu(id.clone())).build().unwrap());
        let mix = Arc::new(mix(&engine));
        let programs = device.ledger().state().programs_made;
        let calls = storm(&engine, &mix, seconds);
        let (ledger, pool) = (device.ledger().state(), engine.status().gpus[0].pool.unwrap());
        println!(
            "{id}: {calls} calls of {THREADS} threads, {:.1} % pool hits, {} queues",
            100.0 * pool.hit_rate(),
            ledger.queues
        );
        assert!(calls >= THREADS, "{id}: {calls}");
        assert_eq!(ledger.programs_made, programs, "{id}: nothing is compiled after the first calls");
        assert!(ledger.queues <= 8, "{id}: {} queues", ledger.queues);
        assert_eq!((pool.live, engine.stats().fallbacks), (0, 0), "{id}");
        drop(engine);
        // The last threads may still be on their way out with it.
        let start = Instant::now();
        while device.ledger().state().buffers > 0 && start.elapsed() < Duration::from_secs(20) {
            std::thread::sleep(Duration::from_millis(2));
        }
        assert_eq!(device.ledger().state().buffers, 0, "{id}");
    }
}
