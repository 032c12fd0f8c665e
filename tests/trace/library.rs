//! Traces of a program's own engine and devices.

use std::sync::Arc;
use std::time::Duration;

use gpuctl::base::record::BenchRecord;
use gpuctl::base::trace::{Kind, Process, Trace};
use gpuctl::base::{Attrs, DType, Env, Fill, HostTensor};
use gpuctl::device::cpu::{CpuDevice, Pin};
use gpuctl::device::faulty::{Fault, FaultPlan, Faulty, On, Rule, When};
use gpuctl::device::tap::{KEPT, Tracer};
use gpuctl::device::{DEADLINE, Device, MemoryKind, sim, traced};
use gpuctl::engine::{Engine, Placement, Runner, trace};
use gpuctl::kernel::Isa;
use gpuctl::measure::Residency;
use gpuctl::op::{self, case};

use crate::format::{Ev, document, parse};
use crate::records::{config, disagreements, has, measured, rig};

/// What the events of a process add up to is what was counted, but that launches behind each other share an event.
fn assert_recounted(p: &Process) {
    let shared: Vec<(Kind, u32, u32)> =
        p.events.iter().filter(|e| e.count > 1).map(|e| (e.kind, e.device, e.label)).collect();
    let recounted = Trace::recount(p);
    assert_eq!(recounted.len(), p.totals.len());
    for (mine, counted) in recounted.iter().zip(&p.totals) {
        let key = (mine.kind, mine.device, mine.label);
        assert_eq!(key, (counted.kind, counted.device, counted.label));
        assert_eq!(
            (mine.count, mine.failed, mine.bytes, mine.timed),
            (counted.count, counted.failed, counted.bytes, counted.timed),
            "{counted:?}"
        );
        assert!((mine.device_s - counted.device_s).abs() <= 1e-9 * counted.device_s, "{mine:?} {counted:?}");
        if !shared.contains(&key) {
            assert!((mine.seconds - counted.seconds).abs() <= 1e-9 * counted.seconds, "{mine:?} {counted:?}");
        }
    }
}

fn tensor(values: &[f32], shape: &[u64]) -> HostTensor {
    HostTensor::from_slice(values, shape).unwrap()
}

#[test]
fn an_engine_tells_what_it_did() {
    let env = Env::default();
    let plain = Engine::builder().env(env.clone()).profile("always-cpu").build().unwrap();
    let x = tensor(&[1.0, -2.0, 3.0, -4.0], &[2, 2]);
    plain.run("relu", &[&x], &Attrs::new()).unwrap();
    assert_eq!(plain.trace(), None, "not asked for");

    let engine = Engine::builder().env(env).profile("always-cpu").trace().build().unwrap();
    for _ in 0..3 {
        engine.run("relu", &[&x], &Attrs::new()).unwrap();
        engine.run("gemm", &[&x, &x], &Attrs::new()).unwrap();
    }
    let trace = engine.trace().unwrap();
    assert_recounted(&trace.processes[0]);
    let summary = trace.summary();
    for op in ["relu", "gemm"] {
        let line = summary.ops.iter().find(|o| o.op == op).unwrap();
        assert_eq!((line.launches, line.timed, line.device.as_str()), (3, 3, "cpu"));
        assert!(line.device_s > 0.0 && line.median_s.is_some() && line.host_s >= line.device_s * 0.999);
    }
    let events = parse(&document(&trace)).unwrap();
    let placed: Vec<&str> = events.iter().filter(|e| e.cat == "placement").map(|e| e.text("note")).collect();
    assert_eq!(placed.len(), 2, "each call is placed once");
    assert!(placed.iter().all(|p| p.contains("-> cpu")), "{placed:?}");
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("t.json");
    assert_eq!(trace::write(&trace, &file).unwrap(), 0);
    assert_eq!(parse(&serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap()).unwrap().len(), events.len());
    let e = trace::write(&trace, &folder.path().join("none/t.json")).unwrap_err();
    assert!(e.to_string().contains("none/t.json"), "{e}");
}

#[test]
fn a_fallback_is_an_event_with_its_reason() {
    let gpu = Arc::new(Faulty::new(sim::open("h200").unwrap().1, FaultPlan::parse("lost@nth=2").unwrap()));
    let engine = Engine::builder()
        .env(Env::default())
        .profile("always-cpu")
        .placement(Placement::ForceGpu("sim:h200".into()))
        .device(gpu)
        .without_trials()
        .trace()
        .build()
        .unwrap();
    let x = tensor(&[1.0, -2.0], &[2]);
    let first = engine.run("relu", &[&x], &Attrs::new()).unwrap();
    assert_eq!((first.ran_on.as_str(), first.fallback), ("sim:h200", None));
    let second = engine.run("relu", &[&x], &Attrs::new()).unwrap();
    let why = second.fallback.unwrap();
    let trace = engine.trace().unwrap();
    assert_recounted(&trace.processes[0]);
    let summary = trace.summary();
    assert_eq!((summary.fallbacks, summary.failed), (engine.stats().fallbacks, 1));
    let events = parse(&document(&trace)).unwrap();
    let fallback: Vec<&Ev> = events.iter().filter(|e| e.cat == "fallback").collect();
    assert_eq!(fallback.len(), 1);
    assert_eq!((fallback[0].text("note"), fallback[0].text("op")), (why.as_str(), "relu"));
    let failed: Vec<&Ev> = events.iter().filter(|e| !e.text("error").is_empty()).collect();
    assert_eq!(failed.len(), 1);
    assert_eq!((failed[0].cat.as_str(), failed[0].text("error")), ("launch", "device-lost"));
}

/// Devices to look at through a runner of their own.
fn devices() -> Vec<Arc<dyn Device>> {
    let mut all: Vec<Arc<dyn Device>> =
        vec![Arc::new(CpuDevice::new(1, Isa::detect(), Pin::Free).unwrap()), sim::open("h200").unwrap().1];
    for id in ["opencl:0", "wgpu:0"] {
        if has(id) {
            all.extend(rig(id).devices);
        }
    }
    all
}

#[test]
fn memory_and_copies_are_the_ledgers_and_the_programs_own() {
    for inner in devices() {
        let tracer = Tracer::new("test", KEPT);
        let device = traced::device(Arc::clone(&inner), &tracer);
        let id = device.info().id.clone();
        let runner = Runner::new(Arc::clone(&device));
        let op = op::find("gemm").unwrap();
        let case = op.case(DType::F32, &[32, 16, 8], Attrs::new(), Fill::Uniform).unwrap();
        let inputs = case::inputs(op, &case).unwrap();
        let held = device.alloc(1 << 20, MemoryKind::Device).unwrap();
        for round in 0..3 {
            let prepared = runner.prepare(op, &case, None).unwrap();
            let mut lease = runner.lease().unwrap();
            let q = lease.queue().unwrap();
            for _ in 0..2 {
                prepared.call(q, &inputs, DEADLINE).unwrap();
            }
            if round == 1 {
                q.fill(&held, 0, 4096, 7).unwrap();
                q.copy(&held, 0, &held, 8192, 1024).unwrap();
                q.finish(DEADLINE).unwrap();
            }
        }
        let p = tracer.process();
        assert_recounted(&p);
        let ledger = inner.ledger().state();
        assert_eq!(p.devices[0].peak_bytes, ledger.peak_bytes, "{id}");
        assert_eq!(p.memory.iter().map(|m| m.bytes).max(), Some(ledger.peak_bytes), "{id}");
        assert_eq!(p.memory.last().map(|m| m.bytes), Some(ledger.bytes), "{id}");
        let total = |kind: Kind| {
            let of = p.totals.iter().filter(|t| t.kind == kind);
            of.fold((0, 0), |sum, t| (sum.0 + t.count, sum.1 + t.bytes))
        };
        let bytes = |shape: u64| 4 * shape;
        // Three operands go there, one comes back.
        assert_eq!(total(Kind::H2d), (18, 6 * bytes(32 * 8 + 8 * 16 + 32 * 16)), "{id}");
        assert_eq!(total(Kind::D2h), (6, 6 * bytes(32 * 16)), "{id}");
        assert_eq!((total(Kind::Fill), total(Kind::D2d)), ((1, 4096), (1, 1024)), "{id}");
        assert_eq!(total(Kind::Compile).0, ledger.programs_made, "{id}");
        // What was made for the queue itself (a place to read from) is in the ledger, and no allocation of the program's.
        assert!(total(Kind::Alloc).0 <= ledger.buffers_made, "{id}");
        assert_eq!(total(Kind::Alloc).0, 3 * 3 + 1 + scratch(&runner, op, &case) * 3, "{id}");
        let launches = total(Kind::Launch).0;
        assert!(launches >= 6 && launches % 6 == 0, "{id}: {launches}");
        let hits = p.totals.iter().filter(|t| t.kind == Kind::Hit).map(|t| t.count).sum::<u64>();
        assert!(hits >= 2, "{id}: the second and third time nothing was built");
        let doc = document(&tracer.trace());
        let events = parse(&doc).unwrap();
        let counter: Vec<u64> = events.iter().filter(|e| e.ph == "C").map(|e| e.number("bytes")).collect();
        assert_eq!(counter.iter().max(), Some(&ledger.peak_bytes), "{id}");
        let launch = events.iter().find(|e| e.cat == "launch").unwrap();
        assert!(launch.args["grid"].is_array() && launch.args["block"].is_array(), "{id}: {launch:?}");
        let timed = events.iter().filter(|e| e.cat == "launch").all(|e| e.args["device_us"].is_number());
        let said = events.iter().filter(|e| e.cat == "launch").all(|e| !e.text("no_device_time").is_empty());
        // Where marks cost time launches have them now and then.
        let costly = id.starts_with("wgpu") || id.starts_with("opencl");
        assert!(if costly { !said && (timed || said_or_timed(&events)) } else { timed }, "{id}");
        drop((held, runner));
        let p = tracer.process();
        assert_recounted(&p);
        let timed: u64 = p.totals.iter().filter(|t| t.kind == Kind::Kernel).map(|t| t.timed).sum();
        match id.as_str() {
            "cpu" => assert_eq!(timed, 0, "its time is the host's"),
            // Now and then: the first one surely.
            _ if costly => assert!((1..=launches).contains(&timed), "{id}: {timed} of {launches}"),
            _ => assert_eq!(timed, launches, "{id}: each launch has its time"),
        }
        assert_eq!(tracer.process().memory.last().map(|m| m.bytes), Some(inner.ledger().state().bytes), "{id}");
    }
}

/// Whether each launch has a device time, or says why not.
fn said_or_timed(events: &[Ev]) -> bool {
    let mut launches = events.iter().filter(|e| e.cat == "launch");
    launches.all(|e| e.args["device_us"].is_number() || !e.text("no_device_time").is_empty())
}

fn scratch(runner: &Runner, op: &'static op::OpDesc, case: &gpuctl::base::Case) -> u64 {
    let choice = gpuctl::kernel::choose(op.kernels, case, runner.device().info(), None).unwrap();
    choice.plan.scratch.len() as u64
}

/// A device is followed until its tracer is gone, by every tracer that it was given to.
#[test]
fn tracers_do_not_disturb_each_other() {
    let inner = sim::open("h200").unwrap().1;
    let (one, two) = (Tracer::new("one", KEPT), Tracer::new("two", KEPT));
    let (a, b) = (traced::device(Arc::clone(&inner), &one), traced::device(Arc::clone(&inner), &two));
    let x = a.alloc(100, MemoryKind::Device).unwrap();
    let releases =
        |t: &Tracer| t.process().totals.iter().filter(|t| t.kind == Kind::Release).map(|t| t.count).sum::<u64>();
    assert_eq!((one.process().devices[0].peak_bytes, two.process().devices[0].peak_bytes), (100, 100));
    drop(x);
    assert_eq!((releases(&one), releases(&two)), (1, 1));
    drop((a, one));
    drop(b.alloc(100, MemoryKind::Device).unwrap());
    assert_eq!(releases(&two), 2);
}

/// What finds no room is counted; totals and peaks are those of everything.
#[test]
fn events_beyond_the_limit_are_counted() {
    let tracer = Tracer::new("test", 50);
    let device = traced::device(sim::open("h200").unwrap().1, &tracer);
    let runner = Runner::new(Arc::clone(&device));
    let op = op::find("relu").unwrap();
    let case = op.case(DType::F32, &[64], Attrs::new(), Fill::Uniform).unwrap();
    let inputs = case::inputs(op, &case).unwrap();
    let prepared = runner.prepare(op, &case, None).unwrap();
    let mut lease = runner.lease().unwrap();
    for _ in 0..100 {
        prepared.call(lease.queue().unwrap(), &inputs, DEADLINE).unwrap();
    }
    let p = tracer.process();
    assert_eq!(p.events.len() + p.memory.len(), 50);
    let total = |kind: Kind| p.totals.iter().find(|t| t.kind == kind).map(|t| (t.count, t.bytes));
    assert_eq!((total(Kind::Launch), total(Kind::H2d)), (Some((100, 0)), Some((100, 100 * 256))));
    let all: u64 = p.totals.iter().map(|t| t.count).sum();
    assert_eq!(p.dropped, all + device.ledger().state().buffers_made + 1 - 50, "and a sample for each allocation");
    let doc = document(&tracer.trace());
    assert_eq!((&doc["gpuctl"]["dropped_events"], &doc["gpuctl"]["complete"]), (&p.dropped.into(), &false.into()));
    assert!(gpuctl::report::trace::summary(&tracer.trace().summary()).contains("events were not kept"));
}

/// Marks that cost a device time are set for a share of the launches, so that a trace slows down nothing; those that cost
/// nothing for all.
#[test]
fn marks_take_a_small_share_of_the_time() {
    let timed = |slow: Duration, traced: bool| {
        let inner = sim::open("h200").unwrap().1;
        let plan = FaultPlan {
            text: "slow marks".into(),
            rules: vec![Rule { on: On::Mark, when: When::From(1), fault: Fault::Slow(slow) }],
        };
        let tracer = Tracer::new("test", KEPT);
        let plain: Arc<dyn Device> = Arc::new(Faulty::new(inner, plan));
        let device = if traced { traced::device(plain, &tracer) } else { plain };
        let clock = device.clock();
        let runner = Runner::new(device);
        let op = op::find("relu").unwrap();
        let case = op.case(DType::F32, &[64], Attrs::new(), Fill::Uniform).unwrap();
        let prepared = runner.prepare(op, &case, None).unwrap();
        let mut lease = runner.lease().unwrap();
        let q = lease.queue().unwrap();
        let begun = clock.now();
        for _ in 0..2_000 {
            prepared.launch(q).unwrap();
            clock.sleep(Duration::from_micros(100));
            q.finish(DEADLINE).unwrap();
        }
        let seconds = clock.now() - begun;
        drop((lease, prepared));
        drop(runner);
        (tracer.trace().summary().ops.iter().map(|o| o.timed).sum::<u64>(), seconds)
    };
    assert_eq!(timed(Duration::ZERO, true).0, 2_000);
    // Two marks of a launch take as long as the launch itself; each wait sets one of its own, traced or not.
    let slow = Duration::from_micros(50);
    let ((some, with), without) = (timed(slow, true), timed(slow, false).1);
    assert!((50..500).contains(&some), "{some} launches have times");
    assert!(with > without && with - without < 0.0052 + 0.005 * with, "{with} s, {without} s without");
}

/// Launches behind each other share events, and lose nothing by it.
#[test]
fn many_launches_share_an_event() {
    for inner in devices() {
        let tracer = Tracer::new("test", KEPT);
        let device = traced::device(inner, &tracer);
        let id = device.info().id.clone();
        let runner = Runner::new(Arc::clone(&device));
        let op = op::find("relu").unwrap();
        let case = op.case(DType::F32, &[64], Attrs::new(), Fill::Uniform).unwrap();
        let prepared = runner.prepare(op, &case, None).unwrap();
        let mut lease = runner.lease().unwrap();
        let q = lease.queue().unwrap();
        prepared.upload(q, &case::inputs(op, &case).unwrap()).unwrap();
        for n in [1, 5, 16, 17, 500] {
            for _ in 0..n {
                prepared.launch(q).unwrap();
            }
            q.finish(DEADLINE).unwrap();
        }
        drop(lease);
        let p = tracer.process();
        assert_recounted(&p);
        let of = |kind: Kind| p.events.iter().filter(move |e| e.kind == kind);
        assert_eq!(of(Kind::Launch).map(|e| e.count).sum::<u64>(), 539, "{id}");
        assert!(of(Kind::Launch).count() <= 1 + 5 + 16 + 17 + 17, "{id}: {}", of(Kind::Launch).count());
        // Nor its time: those behind the sixteenth have one together.
        drop(prepared);
        drop(runner);
        let summary = tracer.trace().summary();
        let timed = summary.ops.iter().map(|o| o.timed).sum::<u64>();
        // Where marks cost time, now and then.
        let costly = id.starts_with("wgpu") || id.starts_with("opencl");
        assert!(timed == 539 || (costly && (1..539).contains(&timed)), "{id}: {timed}");
        parse(&document(&tracer.trace())).unwrap();
    }
}

/// Sixteen threads on one device: every row can be drawn, every call is counted.
#[test]
fn threads_have_rows_of_their_own() {
    let tracer = Tracer::new("test", KEPT);
    let device: Arc<dyn Device> = Arc::new(CpuDevice::new(1, Isa::detect(), Pin::Free).unwrap());
    let runner = Runner::new(traced::device(device, &tracer));
    let ops: Vec<_> = ["relu", "gemm", "sum", "softmax"].map(|n| op::find(n).unwrap()).into();
    std::thread::scope(|scope| {
        for i in 0..16 {
            let (runner, op) = (&runner, ops[i % 4]);
            scope.spawn(move || {
                let case = op.sized(DType::F32, 16, Attrs::new()).unwrap();
                let inputs = case::inputs(op, &case).unwrap();
                for _ in 0..20 {
                    let prepared = runner.prepare(op, &case, None).unwrap();
                    let mut lease = runner.lease().unwrap();
                    prepared.call(lease.queue().unwrap(), &inputs, DEADLINE).unwrap();
                }
            });
        }
    });
    let p = tracer.process();
    assert_recounted(&p);
    parse(&document(&tracer.trace())).unwrap();
    for op in &ops {
        let of =
            |e: &&gpuctl::base::trace::Event| e.kind == Kind::Wait && p.label(e.label).is_some_and(|l| l.op == op.name);
        assert_eq!(p.events.iter().filter(of).count(), 80, "{}: each call waits once", op.name);
    }
    assert!(p.tracks.len() <= 16 + 2 * 16, "rows of threads and queues that are gone are used again");
}

/// Page-locked memory is the host's: copies from and to it are no copies on the device.
#[test]
fn copies_of_pinned_memory_cross_the_link() {
    let tracer = Tracer::new("test", KEPT);
    let mut rig = rig("sim:h200,cpu");
    traced::rig(&mut rig, &tracer);
    let rows = measured(&config(&["gemm"], 128, Residency::AlwaysPinned), &rig);
    let row: Vec<&BenchRecord> = rows.iter().filter(|r| r.subject.device == "sim:h200").collect();
    assert_eq!(row[0].residency, "always-pinned", "{row:?}");
    let events = parse(&document(&tracer.trace())).unwrap();
    assert_eq!(disagreements(&events, &row, Residency::AlwaysPinned), [""; 0]);
}
