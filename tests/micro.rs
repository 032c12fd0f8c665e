//! Copies, waits and builds as ops: kinds of memory that a device lacks, and devices that do not do what they say.

#![allow(clippy::print_stderr, reason = "skips are named")]

use std::sync::{Arc, Mutex};
use std::time::Duration;

use gpuctl::base::record::{Record, Status, VerifyRecord};
use gpuctl::base::sink::{Cancel, Collect};
use gpuctl::base::{Clock, Code, DeviceInfo, Env, Result};
use gpuctl::device::cpu::{CpuDevice, Pin};
use gpuctl::device::probe::{self, CpuConfig, Rig, Select};
use gpuctl::device::{
    Buffer, Device, Health, Launch, Ledger, Mark, MemoryKind, MemoryState, Program, Queue, Source, Span, Waited,
};
use gpuctl::engine::Runner;
use gpuctl::jobs::verify::{self, VerifyConfig};
use gpuctl::kernel::Isa;
use gpuctl::op::{case, find};

/// What a device does wrong.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Lie {
    Nothing,
    /// Copies on the device do nothing.
    Copies,
    /// Every build gives the first program again, whatever its text.
    Builds,
    /// Waits end by their deadline.
    Waits,
}

struct Liar {
    inner: Arc<dyn Device>,
    lie: Lie,
    built: Mutex<Option<Program>>,
}

struct LiarQueue(Box<dyn Queue>, Lie);

impl Device for Liar {
    fn info(&self) -> &DeviceInfo {
        self.inner.info()
    }
    fn serial(&self) -> u64 {
        self.inner.serial()
    }
    fn clock(&self) -> Arc<dyn Clock> {
        self.inner.clock()
    }
    fn ledger(&self) -> &Arc<Ledger> {
        self.inner.ledger()
    }
    fn memory(&self) -> MemoryState {
        self.inner.memory()
    }
    fn alloc(&self, bytes: u64, _: MemoryKind) -> Result<Buffer> {
        // Ordinary memory under any name: the paths of all kinds can then be walked on every machine.
        self.inner.alloc(bytes, MemoryKind::Device)
    }
    fn build(&self, source: Source<'_>, cached: Option<&[u8]>) -> Result<Program> {
        let mut first = self.built.lock().unwrap();
        match (&*first, self.lie) {
            (Some(p), Lie::Builds) => Ok(p.clone()),
            _ => Ok(first.insert(self.inner.build(source, cached)?).clone()),
        }
    }
    fn queue(&self) -> Result<Box<dyn Queue>> {
        Ok(Box::new(LiarQueue(self.inner.queue()?, self.lie)))
    }
    fn health(&self) -> Health {
        self.inner.health()
    }
}

impl Queue for LiarQueue {
    fn write(&mut self, dst: &Buffer, offset: u64, data: &[u8]) -> Result<()> {
        self.0.write(dst, offset, data)
    }
    fn read(&mut self, src: &Buffer, offset: u64, out: &mut [u8]) -> Result<()> {
        self.0.read(src, offset, out)
    }
    fn copy(&mut self, src: &Buffer, from: u64, dst: &Buffer, to: u64, bytes: u64) -> Result<()> {
        if self.1 == Lie::Copies { Ok(()) } else { self.0.copy(src, from, dst, to, bytes) }
    }
    fn fill(&mut self, dst: &Buffer, offset: u64, bytes: u64, value: u8) -> Result<()> {
        self.0.fill(dst, offset, bytes, value)
    }
    fn launch(&mut self, launch: &Launch) -> Result<()> {
        self.0.launch(launch)
    }
    fn mark(&mut self) -> Result<Mark> {
        self.0.mark()
    }
    fn flush(&mut self) -> Result<()> {
        self.0.flush()
    }
    fn wait(&mut self, mark: Mark, deadline: Duration) -> Result<Waited> {
        if self.1 == Lie::Waits { Ok(Waited::Timeout) } else { self.0.wait(mark, deadline) }
    }
    fn span(&mut self, from: Mark, to: Mark) -> Result<Span> {
        self.0.span(from, to)
    }
}

fn cpu() -> Arc<dyn Device> {
    Arc::new(CpuDevice::new(1, Isa::detect(), Pin::Free).unwrap())
}

fn opencl() -> Option<Arc<dyn Device>> {
    let config = CpuConfig { threads: 1, pin: Pin::Free };
    match probe::open(&Select::Named(vec!["opencl:0".into()]), &Env::default(), config) {
        Ok(rig) => rig.devices.into_iter().next(),
        Err(e) => {
            assert!(!std::env::var("GPUCTL_REQUIRE").unwrap_or_default().contains("opencl"), "{e}");
            eprintln!("skipped: builds on opencl:0: {e}");
            None
        }
    }
}

fn judged(inner: Arc<dyn Device>, lie: Lie, name: &str) -> VerifyRecord {
    let device: Arc<dyn Device> = Arc::new(Liar { inner, lie, built: Mutex::default() });
    let rig = Rig { devices: vec![device], cpu: cpu(), absent: Vec::new() };
    let cfg = VerifyConfig { case: Some(case::parse(name).unwrap()), ..VerifyConfig::default() };
    let mut sink = Collect::default();
    verify::run(&cfg, &rig, &mut sink, &Cancel::new()).unwrap();
    match sink.records.remove(0) {
        Record::Verify(v) => *v,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_kind_of_memory_that_is_not_there_is_refused_with_the_apis_reason() {
    let runner = Runner::new(cpu());
    for (op, kinds) in [("h2d", 3), ("d2h", 3), ("alloc", 3)] {
        let op = find(op).unwrap();
        let mut refused = 0;
        for spec in (op.cases)(gpuctl::op::Tier::Full) {
            let case = op.case(op.dtypes[0], &spec.dims, spec.attrs, spec.fill).unwrap();
            match runner.prepare(op, &case, None) {
                Ok(_) => assert!(case.attrs.is_empty(), "{case}"),
                Err(e) => {
                    refused += 1;
                    assert_eq!(e.code(), Code::FeatureUnsupported);
                    assert!(e.to_string().contains("the CPU computes in ordinary memory"), "{e}");
                }
            }
        }
        assert_eq!(refused, 3 * kinds, "{}", op.name);
    }
    assert_eq!(runner.device().ledger().state().buffers, 0);
}

#[test]
fn copies_that_do_nothing_are_found() {
    for name in [
        "d2d/i32/n1025/-/uniform",
        "h2d/i32/n1025/memory=pinned/uniform",
        "d2h/i32/n1025/memory=mapped/uniform",
        "d2h/i32/n1025/memory=managed/uniform",
    ] {
        let fine = judged(cpu(), Lie::Nothing, name);
        assert_eq!((fine.subject.status, fine.compared), (Status::Ok, 1025), "{}", fine.subject.reason);
        let idle = judged(cpu(), Lie::Copies, name);
        assert_eq!(idle.subject.status, Status::Failed, "{name}");
    }
}

#[test]
fn waits_that_do_not_end_are_found() {
    assert_eq!(judged(cpu(), Lie::Nothing, "sync/i32/n7/-/uniform").subject.status, Status::Ok);
    assert_eq!(judged(cpu(), Lie::Waits, "sync/i32/n7/-/uniform").subject.status, Status::Failed);
}

/// A compiler's cache that gives the program of another text.
#[test]
fn a_stale_program_is_found() {
    assert_eq!(judged(cpu(), Lie::Nothing, "compile/i32/n2/-/uniform").subject.status, Status::Ok);
    let Some(device) = opencl() else { return };
    for name in ["compile/i32/n2/-/uniform", "compile/i32/n2/mode=warm/uniform"] {
        let fine = judged(device.clone(), Lie::Nothing, name);
        assert_eq!(fine.subject.status, Status::Ok, "{}", fine.subject.reason);
    }
    let stale = judged(device, Lie::Builds, "compile/i32/n2/-/uniform");
    assert_eq!((stale.subject.status, stale.worst_want.as_deref()), (Status::Failed, Some("2")));
}
