//! Errors from outside: each code is raised by something, handlers and strategies of a program are asked, and what drivers
//! say late or by a panic comes out as a typed error.

#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a test tells what it skipped and found")]

mod late;
mod raised;

use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use gpuctl::base::api::Api;
use gpuctl::base::{Attrs, Class, Code, DType, Env, HostTensor};
use gpuctl::device::faulty::{Fault, FaultPlan, Faulty, On, Rule, When};
use gpuctl::device::{Device, sim};
use gpuctl::engine::{Engine, EngineBuilder, Placement, Strategy, Taken};

const ID: &str = "sim:textbook";

/// A simulated device of which calls fail, so that pauses cost no time.
fn planted(on: On, when: When, fault: Fault) -> Arc<Faulty> {
    let plan = FaultPlan { text: "test".into(), rules: vec![Rule { on, when, fault }] };
    Arc::new(Faulty::new(sim::open("textbook").unwrap().1, plan))
}

fn builder(device: &Arc<Faulty>) -> EngineBuilder {
    let device: Arc<dyn Device> = Arc::clone(device) as _;
    Engine::builder()
        .env(Env::default())
        .profile("preset:always-cpu")
        .placement(Placement::ForceGpu(ID.into()))
        .device(device)
        .without_trials()
        // Its pool asks for memory twice.
        .without_pool()
}

fn x() -> HostTensor {
    HostTensor::from_slice(&[-1.0f32, 0.0, 2.5], &[3]).unwrap()
}

fn relu(engine: &Engine) -> gpuctl::base::Result<gpuctl::engine::Outcome> {
    engine.run("relu", &[&x()], &Attrs::new())
}

#[test]
fn a_handler_is_told_once_per_error_and_may_use_the_engine() {
    let device = planted(On::Launch, When::From(1), Fault::Fail(Code::LaunchFailed));
    let told = Arc::new(Mutex::new(Vec::new()));
    let engine_of = Arc::new(OnceLock::<Arc<Engine>>::new());
    let (heard, within) = (Arc::clone(&told), Arc::clone(&engine_of));
    let panicked = Arc::new(AtomicU32::new(0));
    let panics = Arc::clone(&panicked);
    let engine = builder(&device)
        .on_error(move |_| {
            panics.fetch_add(1, Ordering::SeqCst);
            panic!("planted: a handler that panics");
        })
        .on_error(move |e| {
            // Deadlocks here if any lock of the engine is held.
            let engine = within.get().unwrap();
            assert!(engine.stats().gpu == 0 && engine.device_info(ID).is_ok());
            heard.lock().unwrap().push((e.error.code(), e.attempt, e.taken, e.quarantined, e.to_string()));
        })
        .build()
        .unwrap();
    let engine = Arc::new(engine);
    assert!(engine_of.set(Arc::clone(&engine)).is_ok());
    let out = relu(&engine).unwrap();
    assert_eq!(out.outputs[0].to_vec::<f32>().unwrap(), [0.0, 0.0, 2.5]);
    assert!(out.fallback.as_ref().unwrap().contains("launch-failed"), "{:?}", out.fallback);
    let told = told.lock().unwrap();
    let taken: Vec<_> = told.iter().map(|t| (t.0, t.1, t.2, t.3)).collect();
    assert_eq!(
        taken,
        [(Code::LaunchFailed, 0, Taken::Retry(Duration::ZERO), false), (Code::LaunchFailed, 1, Taken::Fallback, false),]
    );
    assert!(told[0].4.ends_with("; tried again"), "{}", told[0].4);
    assert_eq!(panicked.load(Ordering::SeqCst), 2, "each error, and none of the panics ended the call");
    assert_eq!(device.hits(), [2], "tried twice on the device");
    assert_eq!((engine.stats().fallbacks, engine.stats().retries), (1, 1));
}

#[test]
fn a_clean_run_tells_no_handler() {
    let device = planted(On::Launch, When::Nth(1000), Fault::Lose);
    let engine = builder(&device).on_error(|e| panic!("nothing failed, but: {e}")).build().unwrap();
    for _ in 0..5 {
        let out = relu(&engine).unwrap();
        assert_eq!((out.ran_on.as_str(), out.fallback), (ID, None));
    }
}

#[test]
fn a_strategy_decides_for_its_errors() {
    let oom = || planted(On::Alloc, When::From(1), Fault::Fail(Code::OutOfDeviceMemory));
    let device = oom();
    let fails = builder(&device).strategy(|e| (e.class() == Class::Oom).then_some(Strategy::Fail)).build().unwrap();
    assert_eq!(relu(&fails).unwrap_err().code(), Code::OutOfDeviceMemory);
    assert_eq!(device.hits(), [1]);

    let device = oom();
    let before = device.clock().now();
    let often = Strategy::Retry { times: 7, backoff: Duration::from_millis(500) };
    let patient = builder(&device).strategy(move |_| Some(often)).build().unwrap();
    assert!(relu(&patient).unwrap().fallback.is_some());
    assert_eq!(device.hits(), [8], "once, and seven times more");
    let waited = device.clock().now() - before;
    assert!((6.5..7.0).contains(&waited), "0.5 + 6 x 1 s on the device's clock: {waited}");

    let device = planted(On::Alloc, When::Nth(1), Fault::Lose);
    let stubborn = builder(&device).strategy(move |_| Some(often)).build().unwrap();
    assert!(relu(&stubborn).unwrap().fallback.unwrap().contains("device-lost"));
    assert_eq!(device.hits(), [1], "what is lost is not tried again, whatever the program says");
}

/// Everything that is known of a call when it fails comes with its error, whichever step fails.
#[test]
fn errors_know_kernel_launch_and_memory() {
    for (on, code) in [
        (On::Alloc, Code::OutOfDeviceMemory),
        (On::Build, Code::CompileFailed),
        (On::Write, Code::TransferFailed),
        (On::Launch, Code::LaunchFailed),
        (On::Read, Code::TransferFailed),
    ] {
        let device = planted(on, When::From(1), Fault::Fail(code));
        let engine = builder(&device).no_fallback().build().unwrap();
        let e = relu(&engine).unwrap_err();
        assert_eq!((e.code(), e.op_name(), e.shape_text(), e.device_id()), (code, Some("relu"), Some("n3"), Some(ID)));
        let c = e.context();
        assert_eq!(c.dtype, Some(DType::F32), "{on:?}");
        assert!(c.variant.is_some() && c.entry.is_some() && c.launch.is_some(), "{on:?}: {c:?}");
        let memory = c.memory.unwrap();
        assert!(memory.total.is_some() && memory.free.is_some(), "{on:?}: the simulator tells: {memory:?}");
        assert!(on == On::Alloc || memory.held > 0, "{on:?}: operands are held: {memory:?}");
        assert!(!e.to_string().contains('\n') && c.to_string().lines().count() == 3, "{c}");
    }
}

fn explained(args: &[&str]) -> String {
    let out = Command::new(env!("CARGO_BIN_EXE_gpuctl")).arg("explain").args(args).output().unwrap();
    assert!(out.status.success(), "{args:?}: {}", String::from_utf8_lossy(&out.stderr));
    String::from_utf8(out.stdout).unwrap()
}

/// The page is the tables that the library works by.
#[test]
fn the_page_of_errors_is_the_table() {
    let page = include_str!("../../docs/errors.md");
    let mut tables = vec![explained(&["--markdown"])];
    tables.extend(Api::ALL.map(|api| explained(&[api.name(), "--markdown"])));
    for table in tables {
        assert!(table.lines().count() > 8, "{table}");
        let lacks = table.lines().find(|line| !page.contains(line));
        assert!(
            page.contains(&table),
            "docs/errors.md is old: make the table anew; the first line that it lacks: {lacks:?}"
        );
    }
    for class in
        [Class::Usage, Class::Unsupported, Class::Oom, Class::Transient, Class::Sticky, Class::Lost, Class::Internal]
    {
        let of = Code::ALL.iter().filter(|c| c.row().class == class);
        for text in of.map(|c| Strategy::text(*c)) {
            assert!(page.contains(text), "{class:?}: {text}");
        }
    }
}

#[test]
fn codes_are_explained_on_the_command_line() {
    let all = explained(&[]);
    for name in ["illegal-address", "ecc-off", "pocl-binary", "non-monotone"] {
        assert!(all.contains(name), "{name}");
    }
    let one = explained(&["opencl:-5"]);
    assert!(one.starts_with("CL_OUT_OF_RESOURCES (opencl -5): a status\n"), "{one}");
    assert!(one.contains("error     out-of-resources\n") && one.contains("class     oom\n"), "{one}");
    assert_eq!(explained(&["-5"]), one);
    let document: serde_json::Value = serde_json::from_str(&explained(&["cuda:700", "--json", "-"])).unwrap();
    let record = &document["records"][0];
    assert_eq!((&record["kind"], &record["code"]), (&"explain".into(), &"illegal-address".into()), "{record}");
    let unknown = Command::new(env!("CARGO_BIN_EXE_gpuctl")).args(["explain", "ilegal-adress"]).output().unwrap();
    assert_eq!((unknown.status.code(), unknown.stdout.len()), (Some(2), 0));
    assert!(String::from_utf8_lossy(&unknown.stderr).contains("near: illegal-address"));
}
