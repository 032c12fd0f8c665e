//! Calls that are launched without waiting, and calls that are spread over several devices.

use std::sync::{Condvar, Mutex};

use gpuctl::engine::Distribution;

use super::*;

fn forced(device: Arc<dyn Device>) -> Arc<Engine> {
    let id = device.info().id.clone();
    let engine = Engine::builder().env(env()).device(device).without_trials().placement(Placement::ForceGpu(id));
    Arc::new(engine.build().unwrap())
}

#[test]
fn launched_calls_give_what_run_gives() {
    let engine = forced(Second::new("a", DeviceClass::Discrete));
    let wanted: Vec<_> = (1..40).map(|n| gemm(&engine, n).outputs).collect();
    let handles: Vec<_> = (1..40).map(|n| engine.launch("gemm", vec![matrix(n), matrix(n)], &Attrs::new())).collect();
    assert!(Engine::wait_all(&handles, std::time::Duration::from_secs(60)));
    for (handle, wanted) in handles.into_iter().zip(wanted) {
        assert!(handle.is_done());
        assert_eq!(handle.wait().unwrap().outputs, wanted);
    }
    // Awaited, without a runtime.
    let two = async {
        let a = engine.launch("gemm", vec![matrix(8), matrix(8)], &Attrs::new());
        let b = engine.launch("gemm", vec![matrix(9), matrix(9)], &Attrs::new());
        (b.await, a.await)
    };
    let (b, a) = pollster::block_on(two);
    assert_eq!((a.unwrap().outputs, b.unwrap().outputs), (gemm(&engine, 8).outputs, gemm(&engine, 9).outputs));
    // Mistakes come out of the handle.
    let e = engine.launch("gemm", vec![matrix(8), matrix(9)], &Attrs::new()).wait().unwrap_err();
    assert_eq!(e.code(), Code::ShapeMismatch);
}

#[test]
fn launched_calls_can_be_waited_for_in_part_and_cancelled() {
    let slow = || faulty(On::Launch, When::From(1), Fault::Slow(std::time::Duration::from_millis(150)));
    let engine = forced(slow());
    let launch = || engine.launch("gemm", vec![matrix(8), matrix(8)], &Attrs::new());
    let first = launch();
    assert!(first.wait_for(std::time::Duration::from_millis(1)).is_none(), "it takes 150 ms");
    // More than there are threads: the last ones wait for their turn, and never get it.
    let handles: Vec<_> = (0..12).map(|_| launch()).collect();
    handles[8..].iter().for_each(gpuctl::engine::Handle::cancel);
    let codes: Vec<_> = handles.into_iter().map(|h| h.wait().map_err(|e| e.code())).collect();
    assert!(codes[..8].iter().all(Result::is_ok), "{codes:?}");
    assert!(codes[8..].iter().all(|c| c.as_ref().is_err_and(|c| *c == Code::Cancelled)), "{codes:?}");
    let done = first.wait_for(std::time::Duration::from_secs(60)).unwrap();
    assert_eq!(done.unwrap().outputs, gemm(&engine, 8).outputs);
    assert_eq!(first.wait().unwrap_err().code(), Code::BadArgument, "its results were taken");
    assert_eq!((engine.stats().fallbacks, engine.stats().retries), (0, 0), "a cancelled call is no failure");
    assert_eq!(engine.status().gpus[0].failures, 0);
}

/// Whoever waits when the engine goes is told, while calls that began before it went are still under way: their threads may
/// not keep the engine for the calls that wait. Each call is held at its launch until it may go on.
#[test]
fn calls_that_wait_when_the_engine_goes_are_told() {
    let may = Arc::new((Mutex::new(0), Condvar::new()));
    let came = Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let (held, coming) = (Arc::clone(&may), Arc::clone(&came));
    let plan =
        FaultPlan { text: "hold".into(), rules: vec![Rule { on: On::Launch, when: When::From(1), fault: Fault::Do }] };
    let device = Faulty::new(Second::new("a", DeviceClass::Discrete), plan).doing(move || {
        coming.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
        *held.1.wait_while(held.0.lock().unwrap(), |may| *may == 0).unwrap() -= 1;
    });
    let allow = |calls| {
        *may.0.lock().unwrap() = calls;
        may.1.notify_all();
    };
    let engine = forced(Arc::new(device));
    let handles: Vec<_> = (0..12).map(|_| engine.launch("gemm", vec![matrix(8), matrix(8)], &Attrs::new())).collect();
    let within_20_s = |so: &dyn Fn() -> bool| {
        let start = std::time::Instant::now();
        while !so() && start.elapsed().as_secs() < 20 {
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
    };
    within_20_s(&|| came.load(std::sync::atomic::Ordering::SeqCst) == 4);
    drop(engine);
    allow(1);
    // One call goes on to its end; its thread then finds that only threads are left.
    let ended = || handles.iter().filter(|h| h.is_done()).count();
    within_20_s(&|| ended() >= 9);
    let told = ended();
    allow(12);
    assert!(told >= 9, "{told} of 12: three calls are held, and nobody else has to wait");
    let results: Vec<_> = handles.into_iter().map(|h| h.wait().map_err(|e| e.code())).collect();
    let cancelled = results.iter().filter(|r| r.as_ref().is_err_and(|c| *c == Code::Cancelled)).count();
    let done = results.iter().filter(|r| r.is_ok()).count();
    assert!(cancelled >= 8 && cancelled + done == 12, "{results:?}");
}

#[test]
fn calls_are_spread_over_devices() {
    let (a, b) = (Second::new("a", DeviceClass::Discrete), Second::new("b", DeviceClass::Discrete));
    let engine = Engine::builder().env(env()).device(a).device(b).without_trials().build().unwrap();
    let tensors: Vec<HostTensor> = (1..=24).map(matrix).collect();
    let calls: Vec<Vec<&HostTensor>> = tensors.iter().map(|t| vec![t, t]).collect();
    for how in [Distribution::RoundRobin, Distribution::MemoryBalanced, Distribution::ComputeBalanced] {
        let results = engine.spread("gemm", &calls, &Attrs::new(), &["opencl:a", "opencl:b"], how).unwrap();
        let mut ran = std::collections::BTreeMap::new();
        for (n, result) in (1..=24).zip(results) {
            let out = result.unwrap();
            assert_eq!(out.outputs, gemm(&engine, n).outputs, "{how:?}: {n}");
            *ran.entry(out.ran_on).or_insert(0) += 1;
        }
        assert!(ran.len() == 2 && ran.values().all(|n| *n >= 4), "{how:?}: {ran:?}");
    }
    let e = engine.spread("gemm", &calls, &Attrs::new(), &["opencl:c"], Distribution::RoundRobin).unwrap_err();
    assert_eq!(e.code(), Code::DeviceMissing);
    let e = engine.spread("gemm", &calls, &Attrs::new(), &[], Distribution::RoundRobin).unwrap_err();
    assert_eq!(e.code(), Code::BadArgument);
}

/// Two devices of one driver, in a process of its own: PoCL reads their number when it is loaded.
#[test]
fn calls_are_spread_over_two_pocl_devices() {
    let me = std::env::current_exe().unwrap();
    let alone = ["--exact", "launch::spread_over_what_pocl_shows", "--ignored", "--nocapture"];
    let out = std::process::Command::new(me).args(alone).env("POCL_DEVICES", "pthread pthread").output().unwrap();
    let text = String::from_utf8_lossy(&out.stdout);
    assert!(out.status.success(), "{text}{}", String::from_utf8_lossy(&out.stderr));
    text.lines().filter(|l| l.contains("skipped") || l.contains("spread")).for_each(|l| println!("{l}"));
}

#[test]
#[ignore = "run by the test above"]
fn spread_over_what_pocl_shows() {
    let required = std::env::var("GPUCTL_REQUIRE").unwrap_or_default().split(',').any(|b| b.trim() == "opencl");
    let config = CpuConfig { threads: 1, pin: Pin::Free };
    let seen = probe::inventory_of(&[Backend::Opencl], &env(), config).unwrap();
    let found: Vec<_> = seen.found.iter().filter(|f| f.info.name.contains("pthread")).collect();
    if found.len() < 2 {
        assert!(!required, "two PoCL devices: {:?}", seen.found);
        println!("skipped: {} PoCL devices", found.len());
        return;
    }
    let mut builder = Engine::builder().env(env()).without_trials();
    for f in &found {
        builder = builder.device(f.open().unwrap());
    }
    let engine = builder.build().unwrap();
    let tensors: Vec<HostTensor> = (1..=16).map(|i| matrix(4 * i)).collect();
    let calls: Vec<Vec<&HostTensor>> = tensors.iter().map(|t| vec![t, t]).collect();
    let ids: Vec<&str> = found.iter().map(|f| f.info.id.as_str()).collect();
    let results = engine.spread("gemm", &calls, &Attrs::new(), &ids, Distribution::RoundRobin).unwrap();
    for (i, result) in results.into_iter().enumerate() {
        let out = result.unwrap();
        assert_eq!((out.ran_on.as_str(), out.fallback.as_deref()), (ids[i % ids.len()], None));
        assert_eq!(out.outputs, gemm(&engine, 4 * (i as u64 + 1)).outputs);
    }
    println!("spread over {}", ids.join(" "));
}
