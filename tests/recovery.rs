//! What becomes of a call, and of the device, when something fails: every fault at every kind of call, on the simulator and on
//! real drivers. Prints the matrix; docs/recovery.md holds it.

#![allow(clippy::print_stdout, reason = "the matrix is for reading")]

use std::fmt::Write as _;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::{Duration, Instant};

use gpuctl::base::{Attr, Attrs, Backend, Code, DType, Env, Error, HostTensor};
use gpuctl::device::faulty::{Fault, FaultPlan, Faulty, On, Rule, When};
use gpuctl::device::probe::{self, CpuConfig, Found, Select};
use gpuctl::device::wgpu::WgpuDevice;
use gpuctl::device::{Device, cpu::Pin, sim};
use gpuctl::engine::{Engine, EngineBuilder, Placement, RecoveryConfig, State};

const CALLS: [(On, &str); 7] = [
    (On::Alloc, "alloc"),
    (On::Write, "write"),
    (On::Build, "build"),
    (On::Launch, "launch"),
    (On::Wait, "wait"),
    (On::Read, "read"),
    (On::Release, "release"),
];

/// What is planted: its name, the fault, and the code that a failing call then tells.
fn faults(on: On) -> [(&'static str, Fault, Code); 5] {
    let queue = matches!(on, On::Launch | On::Wait | On::Read);
    [
        ("lost", Fault::Lose, Code::DeviceLost),
        ("out of memory", Fault::Fail(Code::OutOfDeviceMemory), Code::OutOfDeviceMemory),
        // Where a queue works it stands still; elsewhere the call itself runs into its deadline.
        ("hang", if queue { Fault::Hang } else { Fault::Fail(Code::LaunchTimeout) }, Code::LaunchTimeout),
        // Drivers that compile at the first launch tell there.
        ("wrong build", Fault::Fail(Code::CompileFailed), Code::CompileFailed),
        ("queue error", Fault::Fail(Code::LaunchFailed), Code::LaunchFailed),
    ]
}

/// How a device is opened, as often as it takes.
struct Source {
    name: &'static str,
    open: Box<dyn Fn() -> Arc<dyn Device> + Send + Sync>,
    simulated: bool,
}

fn found(backend: Backend) -> Option<Found> {
    let config = CpuConfig { threads: 1, pin: Pin::Free };
    let seen = probe::inventory_of(&[backend], &Env::default(), config).unwrap();
    let found = seen.found.into_iter().find(|f| f.info.backend == backend);
    if found.is_none() {
        let required = Env::read().unwrap().require;
        assert!(!required.iter().any(|b| b == backend.name()), "{:?}", seen.absent);
        println!("skipped: {backend}: {:?}", seen.absent);
    }
    found
}

fn sources() -> Vec<Source> {
    // One machine, whose devices share its clock.
    let machine = sim::open("textbook").unwrap().1;
    let mut all = vec![Source { name: "sim", open: Box::new(move || Arc::clone(&machine)), simulated: true }];
    for (backend, name) in [(Backend::Opencl, "opencl"), (Backend::Wgpu, "wgpu")] {
        if let Some(found) = found(backend) {
            all.push(Source { name, open: Box::new(move || found.open().unwrap()), simulated: false });
        }
    }
    all
}

/// Small integers, so that every device computes the same bits; C is read and written.
fn operands() -> ([HostTensor; 3], Attrs, Vec<f32>) {
    let n = 24usize;
    let value = |i: usize| (i % 7) as f32 - 3.0;
    let (a, b, c) = (0..n * n).fold((vec![], vec![], vec![]), |(mut a, mut b, mut c), i| {
        a.push(value(i));
        b.push(value(i + 2));
        c.push(value(i + 5));
        (a, b, c)
    });
    let mut wanted = vec![0f32; n * n];
    for (i, w) in wanted.iter_mut().enumerate() {
        let (row, column) = (i / n, i % n);
        *w = (0..n).map(|k| a[row * n + k] * b[k * n + column]).sum::<f32>() + c[i];
    }
    let tensor = |v: &[f32]| HostTensor::from_slice(v, &[n as u64, n as u64]).unwrap();
    ([tensor(&a), tensor(&b), tensor(&c)], Attrs::new().with("beta", Attr::Float(1.0)), wanted)
}

/// An engine on a device that fails by `rule` when it is opened for the first time and works when it is opened again, and
/// every device that was opened.
fn engine(source: &Arc<Source>, rule: Rule) -> (Engine, Arc<Mutex<Vec<Arc<dyn Device>>>>) {
    let opened: Arc<Mutex<Vec<Arc<dyn Device>>>> = Arc::default();
    let (list, from) = (Arc::clone(&opened), Arc::clone(source));
    let engine = base(source, move || {
        let device = (from.open)();
        let mut list = list.lock().unwrap();
        list.push(Arc::clone(&device));
        let rules = if list.len() == 1 { vec![rule] } else { Vec::new() };
        let plan = FaultPlan { text: "a test".into(), rules };
        Ok(Arc::new(Faulty::new(device, plan)) as Arc<dyn Device>)
    });
    (engine.build().unwrap(), opened)
}

fn base(
    source: &Source,
    open: impl Fn() -> gpuctl::base::Result<Arc<dyn Device>> + Send + Sync + 'static,
) -> EngineBuilder {
    let id = (source.open)().info().id.clone();
    let recovery = RecoveryConfig { first: Duration::from_millis(30), ..RecoveryConfig::default() };
    let quiet = Env::default();
    let engine = Engine::builder().env(quiet).without_trials().recovery(recovery).deadline(Duration::from_millis(400));
    engine.device_from(open).devices(Select::Named(vec!["none".into()])).placement(Placement::ForceGpu(id))
}

/// Calls until the device is in use again; virtual time passes with the calls.
fn comes_back(engine: &Engine, source: &Source) -> bool {
    let ([a, b, c], attrs, wanted) = operands();
    let start = Instant::now();
    while start.elapsed() < Duration::from_secs(30) {
        let out = engine.run("gemm", &[&a, &b, &c], &attrs).unwrap();
        assert_eq!(out.outputs[0].to_vec::<f32>().unwrap(), wanted);
        if out.ran_on != "cpu" {
            return true;
        }
        if source.simulated {
            (source.open)().clock().sleep(Duration::from_millis(5));
        } else {
            std::thread::sleep(Duration::from_millis(5));
        }
    }
    false
}

/// One cell: what the user got, and what became of the device.
fn cell(source: &Arc<Source>, on: On, fault: Fault, code: Code) -> String {
    let ([a, b, c], attrs, wanted) = operands();
    let place = format!("{} {on:?} {fault:?}", source.name);
    // The simulated machine is one for all cells.
    let errors = |d: &Arc<dyn Device>| d.ledger().release_errors().len();
    let before = if source.simulated { errors(&(source.open)()) } else { 0 };
    let (engine, opened) = engine(source, Rule { on, when: When::Nth(1), fault });
    let run = || engine.run("gemm", &[&a, &b, &c], &attrs);
    let out = run().unwrap_or_else(|e| panic!("{place}: {e}"));
    // Twice the product, or twice C, would be a call that was made twice on one C.
    assert_eq!(out.outputs[0].to_vec::<f32>().unwrap(), wanted, "{place}");
    let stats = engine.stats();
    let lost = matches!(code, Code::DeviceLost | Code::LaunchTimeout);
    let released = on == On::Release && fault != Fault::Lose;
    let text = if released {
        assert_eq!((out.ran_on != "cpu", stats.retries, stats.fallbacks), (true, 0, 0), "{place}");
        "result from the device; the failed release is noted in the ledger"
    } else if lost {
        let why = out.fallback.unwrap_or_else(|| panic!("{place}: no fallback"));
        assert!(why.contains(code.name()) || why.contains(Code::DeviceLost.name()), "{place}: {why}");
        assert_eq!((out.ran_on.as_str(), stats.fallbacks), ("cpu", 1), "{place}");
        assert_eq!(engine.status().gpus[0].state.unwrap().name(), "resting", "{place}");
        assert!(comes_back(&engine, source), "{place}: the device did not come back: {}", engine.status());
        assert_eq!(engine.stats().recoveries, 1, "{place}");
        "result from the CPU; the device is opened again"
    } else {
        assert_eq!((out.fallback.as_deref(), stats.fallbacks), (None, 0), "{place}");
        assert_ne!(out.ran_on, "cpu", "{place}");
        // A pool meets the lack of memory itself.
        assert_eq!(stats.retries, u64::from(on != On::Alloc || code != Code::OutOfDeviceMemory), "{place}");
        "tried once more: result from the device"
    };
    drop(engine);
    // What a lost device holds is released in a thread of its own.
    let opened = opened.lock().unwrap();
    let start = Instant::now();
    let live = |d: &Arc<dyn Device>| d.ledger().state().buffers;
    while opened.iter().any(|d| live(d) > 0) && start.elapsed() < Duration::from_secs(20) {
        std::thread::sleep(Duration::from_millis(2));
    }
    for device in opened.iter() {
        assert_eq!(live(device), 0, "{place}: {:?}", device.ledger().state());
    }
    let failed: usize = if source.simulated { errors(&opened[0]) } else { opened.iter().map(errors).sum() };
    assert_eq!(failed - before, usize::from(on == On::Release), "{place}");
    text.into()
}

/// Every fault at every kind of call on every device: none may be left out, hang, leak, or give a wrong result.
#[test]
fn the_matrix_of_faults() {
    let sources: Vec<Arc<Source>> = sources().into_iter().map(Arc::new).collect();
    let mut table = String::from("| fault | at | here | outcome |\n|---|---|---|---|\n");
    let mut cells = 0;
    for (on, at) in CALLS {
        for (name, fault, code) in faults(on) {
            let mut outcomes: Vec<(String, &str)> = Vec::new();
            for source in &sources {
                let (tell, told) = mpsc::channel();
                let from = Arc::clone(source);
                std::thread::spawn(move || tell.send(cell(&from, on, fault, code)));
                let told = told.recv_timeout(Duration::from_secs(120));
                outcomes.push((told.unwrap_or_else(|e| panic!("{} {at} {name}: {e}", source.name)), source.name));
                cells += 1;
            }
            let (text, _) = &outcomes[0];
            assert!(outcomes.iter().all(|(t, _)| t == text), "{at} {name}: {outcomes:?}");
            writeln!(table, "| {name} | {at} | injected | {text} |").unwrap();
        }
    }
    println!("{table}");
    assert_eq!(cells, 35 * sources.len());
    let page = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/recovery.md")).unwrap();
    assert!(page.contains(&table), "docs/recovery.md must hold this table:\n{table}");
}

/// A device that fails at every call: each call has its result from the CPU, and the device is given up in the end.
#[test]
fn a_device_that_stays_lost_is_given_up() {
    let source = Arc::new(sources().remove(0));
    let from = Arc::clone(&source);
    let opens = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&opens);
    let engine = base(&source, move || {
        counted.fetch_add(1, Ordering::SeqCst);
        let rules = vec![Rule { on: On::Launch, when: When::From(1), fault: Fault::Lose }];
        let plan = FaultPlan { text: "a test".into(), rules };
        Ok(Arc::new(Faulty::new((from.open)(), plan)) as Arc<dyn Device>)
    });
    let engine = engine.build().unwrap();
    let ([a, b, c], attrs, wanted) = operands();
    let start = Instant::now();
    while engine.status().gpus.first().is_none_or(|g| g.state != Some(State::Disabled)) {
        let out = engine.run("gemm", &[&a, &b, &c], &attrs).unwrap();
        assert_eq!((out.ran_on.as_str(), out.outputs[0].to_vec::<f32>().unwrap()), ("cpu", wanted.clone()));
        (source.open)().clock().sleep(Duration::from_millis(50));
        std::thread::sleep(Duration::from_millis(1));
        assert!(start.elapsed() < Duration::from_secs(60), "{}", engine.status());
    }
    assert_eq!(opens.load(Ordering::SeqCst), 1 + 5, "six failures: the first, and five attempts");
    let status = engine.status();
    assert_eq!((status.gpus[0].failures, status.calls.recoveries, status.calls.fallbacks), (6, 0, 1));
    assert!(status.to_string().contains("disabled (") && status.to_string().contains("device-lost"), "{status}");
    // From now on it costs nothing.
    let opened = opens.load(Ordering::SeqCst);
    (source.open)().clock().sleep(Duration::from_secs(3600));
    engine.run("gemm", &[&a, &b, &c], &attrs).unwrap();
    assert_eq!(opens.load(Ordering::SeqCst), opened);
}

/// A device that opens again but computes wrong stays out.
#[test]
fn only_a_known_answer_brings_a_device_back() {
    let source = Arc::new(sources().remove(0));
    let from = Arc::clone(&source);
    let opens = AtomicU64::new(0);
    let engine = base(&source, move || {
        let rule = match opens.fetch_add(1, Ordering::SeqCst) {
            0 => Rule { on: On::Launch, when: When::Nth(1), fault: Fault::Lose },
            _ => Rule { on: On::Read, when: When::From(1), fault: Fault::FlipBit },
        };
        let plan = FaultPlan { text: "a test".into(), rules: vec![rule] };
        Ok(Arc::new(Faulty::new((from.open)(), plan)) as Arc<dyn Device>)
    });
    let engine = engine.build().unwrap();
    let ([a, b, c], attrs, wanted) = operands();
    let start = Instant::now();
    while !engine.status().to_string().contains("is wrong") {
        let out = engine.run("gemm", &[&a, &b, &c], &attrs).unwrap();
        assert_eq!((out.ran_on.as_str(), out.outputs[0].to_vec::<f32>().unwrap()), ("cpu", wanted.clone()));
        (source.open)().clock().sleep(Duration::from_millis(10));
        std::thread::sleep(Duration::from_millis(1));
        assert!(start.elapsed() < Duration::from_secs(60), "{}", engine.status());
    }
    assert_eq!(engine.stats().recoveries, 0);
}

/// A poisoned context is not opened again: only a new process helps.
#[test]
fn a_poisoned_context_ends_the_device_at_once() {
    let source = Arc::new(sources().remove(0));
    let fault = Fault::Fail(Code::ContextPoisoned);
    let (engine, opened) = engine(&source, Rule { on: On::Launch, when: When::Nth(1), fault });
    let ([a, b, c], attrs, wanted) = operands();
    for _ in 0..3 {
        let out = engine.run("gemm", &[&a, &b, &c], &attrs).unwrap();
        assert_eq!((out.ran_on.as_str(), out.outputs[0].to_vec::<f32>().unwrap()), ("cpu", wanted.clone()));
        (source.open)().clock().sleep(Duration::from_secs(100));
    }
    assert_eq!(engine.status().gpus[0].state, Some(State::Disabled));
    assert_eq!(opened.lock().unwrap().len(), 1);
}

/// Without fallback the device's error comes out, and the device still comes back.
#[test]
fn a_strict_engine_tells_and_recovers() {
    let source = Arc::new(sources().remove(0));
    let from = Arc::clone(&source);
    let opens = AtomicU64::new(0);
    let open = move || {
        let first = opens.fetch_add(1, Ordering::SeqCst) == 0;
        let rules = if first { vec![Rule { on: On::Launch, when: When::Nth(1), fault: Fault::Lose }] } else { vec![] };
        let plan = FaultPlan { text: "a test".into(), rules };
        Ok(Arc::new(Faulty::new((from.open)(), plan)) as Arc<dyn Device>)
    };
    let engine = base(&source, open).no_fallback().build().unwrap();
    let ([a, b, c], attrs, _) = operands();
    let run = || engine.run("gemm", &[&a, &b, &c], &attrs);
    assert_eq!(run().unwrap_err().code(), Code::DeviceLost);
    assert!(comes_back(&engine, &source));
    assert_eq!(engine.stats().fallbacks, 0);
}

/// wgpu's own loss, at each kind of call: `destroy()` is what a driver's reset does to a program.
#[test]
fn a_real_loss_of_a_wgpu_device() {
    let Some(_) = found(Backend::Wgpu) else { return };
    let ([a, b, c], attrs, wanted) = operands();
    for (on, at) in CALLS {
        let source =
            Source { name: "wgpu", open: Box::new(|| Arc::new(WgpuDevice::open(0).unwrap())), simulated: false };
        let opens = AtomicU64::new(0);
        let engine = base(&source, move || {
            let device = Arc::new(WgpuDevice::open(0)?);
            let first = opens.fetch_add(1, Ordering::SeqCst) == 0;
            let rules = if first { vec![Rule { on, when: When::Nth(1), fault: Fault::Do }] } else { vec![] };
            let target = Arc::clone(&device);
            let faulty = Faulty::new(device, FaultPlan { text: "destroyed".into(), rules });
            Ok(Arc::new(faulty.doing(move || target.destroy_for_test())) as Arc<dyn Device>)
        });
        let engine = engine.build().unwrap();
        let out = engine.run("gemm", &[&a, &b, &c], &attrs).unwrap();
        assert_eq!(out.outputs[0].to_vec::<f32>().unwrap(), wanted, "{at}");
        assert!(out.fallback.as_deref().is_some_and(|f| f.contains("device-lost")), "{at}: {:?}", out.fallback);
        assert!(comes_back(&engine, &source), "{at}: {}", engine.status());
        assert_eq!(engine.stats().recoveries, 1, "{at}");
        println!("real loss of wgpu at {at}: CPU, then the device again");
    }
}

/// Many threads meet one loss: it is one failure, everyone has a result, one thread opens the device again.
#[test]
fn a_loss_met_by_many_threads_is_one() {
    for source in sources().into_iter().map(Arc::new) {
        let (engine, opened) = engine(&source, Rule { on: On::Launch, when: When::Nth(40), fault: Fault::Lose });
        let ([a, b, c], attrs, wanted) = operands();
        std::thread::scope(|s| {
            for _ in 0..16 {
                s.spawn(|| {
                    for _ in 0..10 {
                        let out = engine.run("gemm", &[&a, &b, &c], &attrs).unwrap();
                        assert_eq!(out.outputs[0].to_vec::<f32>().unwrap(), wanted);
                    }
                });
            }
        });
        assert!(comes_back(&engine, &source), "{}", engine.status());
        let stats = engine.stats();
        assert_eq!((stats.recoveries, opened.lock().unwrap().len()), (1, 2), "{}: {stats:?}", source.name);
        assert!(stats.fallbacks >= 1 && stats.gpu >= 30, "{}: {stats:?}", source.name);
    }
}

/// A dtype that the device lacks, a shape that does not fit: no failure of the device.
#[test]
fn mistakes_and_limits_leave_the_device_in_service() {
    let source = Arc::new(sources().remove(0));
    let (engine, _) = engine(&source, Rule { on: On::Launch, when: When::Nth(u64::MAX), fault: Fault::Lose });
    let x = HostTensor::zeros(DType::F32, &[3, 4]).unwrap();
    for _ in 0..10 {
        let e: Error = engine.run("gemm", &[&x, &x], &Attrs::new()).unwrap_err();
        assert_eq!(e.code(), Code::ShapeMismatch);
    }
    let ([a, b, c], attrs, _) = operands();
    assert_ne!(engine.run("gemm", &[&a, &b, &c], &attrs).unwrap().ran_on, "cpu");
    assert_eq!(engine.status().gpus[0].failures, 0);
}

/// The driver's own lack of memory, in a process whose address space is limited: a typed error, and after half is given back
/// everything works again. Not with PoCL 3.1, which ends the process (`p->mem_ptr != NULL`).
#[cfg(target_os = "linux")]
#[test]
fn a_real_lack_of_memory() {
    for backend in [Backend::Wgpu] {
        let Some(_) = found(backend) else { continue };
        let me = std::env::current_exe().unwrap();
        let script = "ulimit -v 6000000; exec \"$0\" --exact memory_runs_out_here --ignored --nocapture";
        let mut child = std::process::Command::new("sh");
        child.args(["-c", script]).arg(me).env("GPUCTL_REQUIRE", backend.name());
        let out = child.output().unwrap();
        let text = String::from_utf8_lossy(&out.stdout);
        let told = text.lines().find(|l| l.starts_with("real lack of memory"));
        println!("{backend}: {}", told.unwrap_or("nothing told"));
        assert!(out.status.success() && told.is_some(), "{backend}: {text}{}", String::from_utf8_lossy(&out.stderr));
    }
}

#[test]
#[ignore = "run by the test above, with little memory"]
fn memory_runs_out_here() {
    let named = Env::read().unwrap().require;
    let backend = Backend::ALL.into_iter().find(|b| named.iter().any(|n| n == b.name())).unwrap();
    let found = found(backend).unwrap();
    let device = found.open().unwrap();
    let mut held = Vec::new();
    let mut q = device.queue().unwrap();
    let size = 256u64 << 20;
    let e = loop {
        assert!(held.len() < 64, "16 GiB within 6 GB of address space");
        let mut one = || -> gpuctl::base::Result<gpuctl::device::Buffer> {
            let buffer = device.alloc(size, gpuctl::device::MemoryKind::Device)?;
            // Drivers that allocate at the first use do it here.
            q.fill(&buffer, 0, size, 0)?;
            q.finish(Duration::from_secs(60))?;
            Ok(buffer)
        };
        match one() {
            Ok(buffer) => held.push(buffer),
            Err(e) => break e,
        }
    };
    assert_eq!(e.class(), gpuctl::base::Class::Oom, "after {} MiB: {e}", held.len() * 256);
    let most = held.len();
    held.truncate(most / 2);
    let again = Arc::clone(&device);
    let source = Source { name: "real", open: Box::new(move || Arc::clone(&again)), simulated: false };
    let engine = base(&source, move || Ok(Arc::clone(&device))).build().unwrap();
    let ([a, b, c], attrs, wanted) = operands();
    let out = engine.run("gemm", &[&a, &b, &c], &attrs).unwrap();
    assert_eq!((out.fallback.as_deref(), out.outputs[0].to_vec::<f32>().unwrap()), (None, wanted));
    println!(
        "real lack of memory after {} MiB: {}; with half given back gemm runs on {}",
        most * 256,
        e.code().name(),
        out.ran_on
    );
}
