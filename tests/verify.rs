//! The judge judged: every planted fault is caught, a clean run is quiet, a legal difference passes.

use std::sync::Arc;
use std::time::Duration;

use gpuctl::base::record::{Record, Status, VerifyRecord};
use gpuctl::base::sink::{Cancel, Collect};
use gpuctl::base::{Clock, DType, DeviceInfo, Exact, HostTensor, Lang, Result};
use gpuctl::device::cpu::{CpuDevice, Pin};
use gpuctl::device::probe::Rig;
use gpuctl::device::{
    Buffer, Device, Health, Launch, Ledger, Mark, MemoryKind, MemoryState, Program, Queue, Source, Span, Waited,
};
use gpuctl::jobs::verify::{self, VerifyConfig, VerifySummary, line};
use gpuctl::kernel::Isa;
use gpuctl::op::{self, Tier, case};

fn cpu() -> Arc<dyn Device> {
    Arc::new(CpuDevice::new(2, Isa::detect(), Pin::Free).unwrap())
}

fn config() -> VerifyConfig {
    VerifyConfig {
        ops: op::all().collect(),
        dtypes: None,
        tier: Tier::Smoke,
        case: None,
        variant: None,
        all_variants: false,
        mutant: None,
    }
}

fn one(name: &str) -> VerifyConfig {
    VerifyConfig { case: Some(case::parse(name).unwrap()), ..config() }
}

fn run(cfg: &VerifyConfig, devices: Vec<Arc<dyn Device>>) -> (VerifySummary, Vec<VerifyRecord>) {
    let rig = Rig { devices, cpu: cpu(), absent: Vec::new() };
    let mut sink = Collect::default();
    let summary = verify::run(cfg, &rig, &mut sink, &Cancel::new()).unwrap();
    let records = sink.records.into_iter().filter_map(|r| match r {
        Record::Verify(v) => Some(*v),
        _ => None,
    });
    (summary, records.collect())
}

/// Changes an output on its way from the device; the first argument counts the reads of this output.
type Edit = Arc<dyn Fn(&mut [u8]) + Send + Sync>;

/// A device that computes on the CPU and spoils what is read back.
struct Spoilt {
    inner: CpuDevice,
    info: DeviceInfo,
    edit: Edit,
    /// Write one word behind the last operand after each launch.
    overrun: Option<u64>,
}

impl Spoilt {
    fn device(edit: impl Fn(&mut [u8]) + Send + Sync + 'static) -> Arc<dyn Device> {
        Arc::new(Self::new(edit))
    }
    fn new(edit: impl Fn(&mut [u8]) + Send + Sync + 'static) -> Self {
        let inner = CpuDevice::new(1, Isa::detect(), Pin::Free).unwrap();
        let info = DeviceInfo { id: "spoilt:0".into(), uid: "spoilt:0".into(), ..inner.info().clone() };
        Spoilt { inner, info, edit: Arc::new(edit), overrun: None }
    }
}

impl Device for Spoilt {
    fn info(&self) -> &DeviceInfo {
        &self.info
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
    fn alloc(&self, bytes: u64, kind: MemoryKind) -> Result<Buffer> {
        self.inner.alloc(bytes, kind)
    }
    fn build(&self, source: Source<'_>, cached: Option<&[u8]>) -> Result<Program> {
        self.inner.build(source, cached)
    }
    fn queue(&self) -> Result<Box<dyn Queue>> {
        let inner = self.inner.queue()?;
        Ok(Box::new(SpoiltQueue { inner, edit: Arc::clone(&self.edit), overrun: self.overrun }))
    }
    fn health(&self) -> Health {
        self.inner.health()
    }
}

struct SpoiltQueue {
    inner: Box<dyn Queue>,
    edit: Edit,
    overrun: Option<u64>,
}

impl Queue for SpoiltQueue {
    fn write(&mut self, dst: &Buffer, offset: u64, data: &[u8]) -> Result<()> {
        self.inner.write(dst, offset, data)
    }
    fn read(&mut self, src: &Buffer, offset: u64, out: &mut [u8]) -> Result<()> {
        self.inner.read(src, offset, out)?;
        if offset == 0 {
            (self.edit)(out);
        }
        Ok(())
    }
    fn copy(&mut self, src: &Buffer, from: u64, dst: &Buffer, to: u64, bytes: u64) -> Result<()> {
        self.inner.copy(src, from, dst, to, bytes)
    }
    fn fill(&mut self, dst: &Buffer, offset: u64, bytes: u64, value: u8) -> Result<()> {
        self.inner.fill(dst, offset, bytes, value)
    }
    fn launch(&mut self, launch: &Launch) -> Result<()> {
        self.inner.launch(launch)?;
        if let (Some(at), Some(last)) = (self.overrun, launch.args.last()) {
            self.inner.write(&last.buffer, at, &[0, 0, 0, 0])?;
        }
        Ok(())
    }
    fn mark(&mut self) -> Result<Mark> {
        self.inner.mark()
    }
    fn flush(&mut self) -> Result<()> {
        self.inner.flush()
    }
    fn wait(&mut self, mark: Mark, deadline: Duration) -> Result<Waited> {
        self.inner.wait(mark, deadline)
    }
    fn span(&mut self, from: Mark, to: Mark) -> Result<Span> {
        self.inner.span(from, to)
    }
}

/// Verifies one case on a device with this fault; the clean device must pass the same case.
fn plant(name: &str, edit: impl Fn(&mut [u8]) + Send + Sync + 'static) -> VerifyRecord {
    let (clean, records) = run(&one(name), vec![Spoilt::device(|_| {})]);
    assert_eq!(clean.exit_code(), 0, "clean {}", line(&records[0]));
    let (summary, mut records) = run(&one(name), vec![Spoilt::device(edit)]);
    assert_eq!(records.len(), 1);
    let r = records.remove(0);
    assert_eq!(summary.exit_code() == 1, r.subject.status == Status::Failed);
    r
}

fn caught(name: &str, edit: impl Fn(&mut [u8]) + Send + Sync + 'static) -> VerifyRecord {
    let r = plant(name, edit);
    let text = line(&r);
    assert_eq!(r.subject.status, Status::Failed, "not caught: {text}");
    assert!(text.starts_with(&format!("FAIL {name} spoilt:0 ")), "{text}");
    assert!(text.contains(&format!("rerun: gpuctl verify --case '{name}' --device spoilt:0")), "{text}");
    r
}

fn f32s(f: impl Fn(&mut [f32]) + Send + Sync + 'static) -> impl Fn(&mut [u8]) + Send + Sync + 'static {
    move |bytes| {
        let mut v: Vec<f32> = bytemuck::pod_collect_to_vec(bytes);
        f(&mut v);
        bytes.copy_from_slice(bytemuck::cast_slice(&v));
    }
}

fn f64s(f: impl Fn(&mut [f64]) + Send + Sync + 'static) -> impl Fn(&mut [u8]) + Send + Sync + 'static {
    move |bytes| {
        let mut v: Vec<f64> = bytemuck::pod_collect_to_vec(bytes);
        f(&mut v);
        bytes.copy_from_slice(bytemuck::cast_slice(&v));
    }
}

fn data(name: &str) -> Vec<HostTensor> {
    let c = case::parse(name).unwrap();
    case::inputs(op::find(c.op).unwrap(), &c).unwrap()
}

#[test]
fn the_smoke_tier_is_clean_on_the_cpu_in_every_variant() {
    let cfg = VerifyConfig { all_variants: true, ..config() };
    let (summary, records) = run(&cfg, vec![cpu()]);
    let bad: Vec<_> = records.iter().filter(|r| r.subject.status != Status::Ok).map(line).collect();
    assert!(bad.is_empty(), "{}", bad.join("\n"));
    assert_eq!(summary.exit_code(), 0);
    assert!(records.iter().any(|r| r.subject.variant == "naive"));
    for op in op::all() {
        for dtype in op.dtypes {
            let of = |r: &&VerifyRecord| r.subject.op == op.name && r.subject.dtype == *dtype;
            let compared: u64 = records.iter().filter(of).map(|r| r.compared).sum();
            assert!(compared > 0, "{} {dtype}: nothing was compared", op.name);
        }
    }
    assert!(records.iter().all(|r| r.undefined == 0), "only WGSL leaves results open");
}
