//! The simulator: a CPU and a GPU of a described machine on one virtual clock.
//!
//! Both compute for real on the host's processor (unless opened for timing only) and charge the virtual clock what the
//! cost model says; nothing here measures anything. Launches return after the submit time, the device is busy until
//! its price has passed, and waits and reads move the clock there. Threads that share a simulated machine add their
//! times up on its one clock.

mod model;
mod presets;
mod rough;

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::base::facts::Facts;
use crate::base::{
    Backend, Clock, Code, DType, DeviceClass, DeviceInfo, Error, Feature, Lang, Result, Theoretical, VirtualClock,
};
use crate::kernel::{Isa, Param};

use super::cpu::{CpuDevice, Pin};
use super::{
    Buffer, BuildStats, Device, Health, Kind, Launch, Ledger, Mark, MemoryKind, MemoryState, Place, Program, Queue,
    Slice, Source, Span, Ticket, Waited, managed, next_serial, no_memory_kind,
};

pub use model::{Model, Spec, Throttle};
pub use presets::{open, open_process, presets, spec};
pub use rough::Rough;

/// The note of a device that was opened for timing only. Rows of such a device may never be called verified.
pub const TIMING_ONLY: &str = "timing only: nothing is computed, so no result of this device is verified";

/// Whether a device was opened for timing only.
pub fn timing_only(info: &DeviceInfo) -> bool {
    info.notes.iter().any(|n| n == TIMING_ONLY)
}

/// Whether a simulated machine computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compute {
    /// On the host's processor, so that results can be checked.
    Real,
    /// Not at all: for timing studies at sizes that would take too long.
    None,
}

/// Opens any machine; see [`open`].
pub fn open_spec(spec: Spec, compute: Compute) -> Result<(Arc<dyn Device>, Arc<dyn Device>)> {
    let host = Arc::new(CpuDevice::new(0, Isa::detect(), Pin::Free)?);
    let clock = Arc::new(VirtualClock::new());
    let spec = Arc::new(spec);
    let part = |part: Part| -> Arc<dyn Device> {
        Arc::new(SimDevice {
            info: info(&spec, part, compute),
            serial: next_serial(),
            ledger: Ledger::new(),
            shared: Arc::new(Shared {
                spec: Arc::clone(&spec),
                part,
                compute,
                clock: Arc::clone(&clock),
                host: Arc::clone(&host),
                busy: Mutex::new(0.0),
                times: AtomicU64::new(0),
                cache: Mutex::default(),
                fixed: Mutex::default(),
            }),
        })
    };
    Ok((part(Part::Cpu), part(Part::Device)))
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    Cpu,
    Device,
}

fn info(spec: &Spec, part: Part, compute: Compute) -> DeviceInfo {
    let (model, backend) = match part {
        Part::Cpu => (&spec.cpu, Backend::Cpu),
        Part::Device => (&spec.device, Backend::Sim),
    };
    let suffix = if compute == Compute::None { ":timing" } else { "" };
    let card = spec.card.map(|n| format!(":{n}")).unwrap_or_default();
    let machine = format!("sim:{}{suffix}{card}", spec.name);
    let has = |d: DType| model.rates.contains_key(&d);
    let mut features = Vec::new();
    if has(DType::F64) {
        features.push(Feature::Fp64);
    }
    if has(DType::I32) {
        features.push(Feature::Int64);
    }
    let mut notes = vec!["simulated: times come from a cost model on a virtual clock, not from a device".to_string()];
    if compute == Compute::None {
        notes.push(TIMING_ONLY.to_string());
    }
    DeviceInfo {
        id: if part == Part::Cpu { "cpu".to_string() } else { machine.clone() },
        uid: if part == Part::Cpu { format!("{machine}/cpu") } else { machine },
        name: model.name.clone(),
        vendor: model.vendor.clone(),
        backend,
        class: DeviceClass::Simulated,
        driver: format!("gpuctl simulator {}", env!("CARGO_PKG_VERSION")),
        api: format!("cost model, {} units, seed {}", model.units, spec.seed),
        langs: vec![Lang::Native],
        memory_bytes: Some(model.memory_bytes),
        max_alloc_bytes: model.memory_bytes,
        max_binding_bytes: model.memory_bytes,
        max_group: 1024,
        max_groups: [u64::from(u32::MAX); 3],
        local_bytes: 0,
        compute_units: model.units,
        compute_capability: None,
        dtypes: DType::ALL.into_iter().filter(|d| has(*d)).collect(),
        features,
        libraries: Vec::new(),
        unified_memory: part == Part::Cpu || spec.link_shared,
        cache_bytes: Some(model.cache_bytes),
        theoretical: Some(Theoretical {
            f32_gflops: model.rates.get(&DType::F32).map(|r| r * 1e-9),
            f64_gflops: model.rates.get(&DType::F64).map(|r| r * 1e-9),
            memory_gbps: Some(model.bandwidth * 1e-9),
            source: "the cost model".into(),
        }),
        facts: Facts::default(),
        notes,
    }
}

struct SimDevice {
    info: DeviceInfo,
    serial: u64,
    ledger: Arc<Ledger>,
    shared: Arc<Shared>,
}

/// What a device and its queues share.
struct Shared {
    spec: Arc<Spec>,
    part: Part,
    compute: Compute,
    clock: Arc<VirtualClock>,
    /// Does the arithmetic.
    host: Arc<CpuDevice>,
    /// When the device will have done everything submitted so far.
    busy: Mutex<f64>,
    /// Number of times charged so far; the counter of the noise.
    times: AtomicU64,
    /// What the last cache has lost.
    cache: Mutex<Evicted>,
    fixed: Mutex<HashMap<LaunchKey, Seen>>,
}

/// Buffers are in the cache, as far as they fit, until a launch that moves twice its size has pushed everything else out.
#[derive(Default)]
struct Evicted {
    /// Number of launches so far, and of the last one that swept the cache.
    now: u64,
    swept: u64,
    /// Launch that last touched a buffer; none: before all launches.
    touched: HashMap<u64, u64>,
}

impl Evicted {
    /// Notes a launch that moves `bytes` through these buffers; the share of their bytes that had been pushed out.
    fn launch(&mut self, buffers: &[(u64, u64)], bytes: u64, cache: u64) -> f64 {
        self.now += 1;
        let out = |id: &u64| self.swept > 0 && self.touched.get(id).is_none_or(|t| *t < self.swept);
        let (mut lost, mut all) = (0, 0);
        for (id, bytes) in buffers {
            all += bytes;
            lost += if out(id) { *bytes } else { 0 };
        }
        if bytes >= cache.saturating_mul(2) {
            self.swept = self.now;
        }
        let now = self.now;
        self.touched.extend(buffers.iter().map(|(id, _)| (*id, now)));
        if all == 0 { 0.0 } else { lost as f64 / all as f64 }
    }

    /// A copy from the host leaves what it wrote in the cache.
    fn write(&mut self, id: u64) {
        self.touched.insert(id, self.now);
    }
}

/// What identifies a launch: program, buffers with their ranges, scalars.
type LaunchKey = Vec<u64>;

/// A launch seen before: versions of its buffers after it ran, and whether a repetition left them as they were.
struct Seen {
    versions: Vec<u64>,
    fixed_point: bool,
}

struct SimBuffer {
    inner: Buffer,
    id: u64,
    /// Changes whenever the contents do.
    version: AtomicU64,
    /// Page-locked memory of the host.
    pinned: bool,
    /// Managed memory: whether it lies on the device. It moves as a whole.
    migrates: Option<AtomicBool>,
}

impl SimBuffer {
    /// Managed memory that lies on the host.
    fn on_host(&self) -> bool {
        self.migrates.as_ref().is_some_and(|there| !there.load(Ordering::SeqCst))
    }

    /// Puts managed memory on a side; true if it lay on the other one. Errors: `FeatureUnsupported` for other memory.
    fn put(&self, to: Place) -> Result<bool> {
        let there = self.migrates.as_ref().ok_or_else(managed::none)?;
        let to = to == Place::Device;
        Ok(there.swap(to, Ordering::SeqCst) != to)
    }
}

struct SimProgram {
    inner: Program,
    id: u64,
    dtype: DType,
}

fn lock<T>(m: &Mutex<T>) -> MutexGuard<'_, T> {
    m.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shared {
    fn model(&self) -> &Model {
        match self.part {
            Part::Cpu => &self.spec.cpu,
            Part::Device => &self.spec.device,
        }
    }
    /// A price with noise.
    fn noisy(&self, seconds: f64) -> f64 {
        let index = self.times.fetch_add(1, Ordering::Relaxed);
        seconds * self.model().noise_factor(self.spec.seed, self.part as u64, self.spec.process, index)
    }
    /// How much a launch is late beyond the mean.
    fn late(&self) -> f64 {
        let index = self.times.load(Ordering::Relaxed);
        self.model().jitter(self.spec.seed, self.part as u64, self.spec.process, index)
    }
    fn throttled(&self, seconds: f64) -> f64 {
        match self.model().throttle {
            Some(t) if self.clock.now() >= t.after_s => seconds * t.factor,
            _ => seconds,
        }
    }
    /// Occupies the device for `seconds` after everything before.
    fn occupy(&self, seconds: f64) {
        if self.model().synchronous {
            self.clock.advance(seconds);
            return;
        }
        let mut busy = lock(&self.busy);
        *busy = busy.max(self.clock.now()) + seconds;
    }
    /// When everything submitted so far is done.
    fn done_at(&self) -> f64 {
        lock(&self.busy).max(self.clock.now())
    }
}

fn next_id() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

impl Device for SimDevice {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }
    fn serial(&self) -> u64 {
        self.serial
    }
    fn clock(&self) -> Arc<dyn Clock> {
        Arc::<VirtualClock>::clone(&self.shared.clock)
    }
    fn ledger(&self) -> &Arc<Ledger> {
        &self.ledger
    }
    fn memory(&self) -> MemoryState {
        let total = self.shared.model().memory_bytes;
        MemoryState { total: Some(total), free: Some(total.saturating_sub(self.ledger.state().bytes)) }
    }

    fn alloc(&self, bytes: u64, kind: MemoryKind) -> Result<Buffer> {
        let named = |e: Error| e.device(&self.info.id);
        let pinned = kind == MemoryKind::Pinned && self.shared.model().link_pinned.is_some();
        let migrates = kind == MemoryKind::Managed && self.shared.model().link_managed.is_some();
        if kind != MemoryKind::Device && !pinned && !migrates {
            return Err(named(no_memory_kind(kind, "the simulated machine has no such memory")));
        }
        if bytes > self.info.max_alloc_bytes {
            let why = format!("{bytes} bytes asked, the limit is {}", self.info.max_alloc_bytes);
            return Err(named(Error::new(Code::AllocTooLarge, why)));
        }
        let used = self.ledger.state().bytes;
        if !pinned && bytes > self.shared.model().memory_bytes.saturating_sub(used) {
            let why = format!("{bytes} bytes asked, {used} of {} are in use", self.shared.model().memory_bytes);
            return Err(named(Error::new(Code::OutOfDeviceMemory, why)));
        }
        // The host may be smaller than the machine that it plays. What is never computed with takes no room.
        let held = if self.shared.compute == Compute::Real { bytes } else { bytes.min(16) };
        let inner = self.shared.host.alloc(held, MemoryKind::Device).map_err(|e| {
            named(Error::new(Code::OutOfDeviceMemory, "the host that computes for the simulator has too little memory"))
                .caused_by(e)
        })?;
        self.shared.clock.advance(self.shared.noisy(self.shared.model().allocation(bytes)));
        let ticket = self.ledger.enter(if pinned { Kind::Pinned } else { Kind::Buffer }, bytes);
        // It lies where it is touched first; the host is what touches it.
        let migrates = migrates.then(|| AtomicBool::new(false));
        let raw = SimBuffer { inner, id: next_id(), version: AtomicU64::new(0), pinned, migrates };
        Ok(Buffer::new(raw, bytes, self.serial, ticket))
    }

    fn build(&self, source: Source<'_>, cached: Option<&[u8]>) -> Result<Program> {
        let Source::Native(_, dtype) = source else {
            return Err(
                Error::new(Code::FeatureUnsupported, "the simulator takes native functions only").device(&self.info.id)
            );
        };
        let inner = self.shared.host.build(source, cached)?;
        let ticket = self.ledger.enter(Kind::Program, 0);
        let raw = SimProgram { inner, id: next_id(), dtype };
        Ok(Program::new(raw, self.serial, ticket, None, BuildStats::default()))
    }

    fn queue(&self) -> Result<Box<dyn Queue>> {
        Ok(Box::new(SimQueue {
            serial: self.serial,
            inner: self.shared.host.queue()?,
            shared: Arc::clone(&self.shared),
            marks: VecDeque::new(),
            first_mark: 0,
            _ticket: self.ledger.enter(Kind::Queue, 0),
        }))
    }

    fn health(&self) -> Health {
        Health::Usable
    }
}

struct SimQueue {
    serial: u64,
    inner: Box<dyn Queue>,
    shared: Arc<Shared>,
    /// (host time, device time) of the marks from `first_mark` on.
    marks: VecDeque<(f64, f64)>,
    first_mark: u64,
    _ticket: Ticket,
}

/// Marks kept; the trait promises 64.
const MARKS: usize = 1024;

/// Launches remembered for [`SimQueue::compute`].
const REMEMBERED: usize = 256;

impl SimQueue {
    fn buffer<'b>(&self, b: &'b Buffer) -> Result<&'b SimBuffer> {
        b.raw(self.serial)
    }

    /// Lets the host wait for the device, then for a copy.
    fn blocking(&self, seconds: f64) {
        self.shared.clock.advance_to(self.shared.done_at());
        self.shared.clock.advance(self.shared.noisy(seconds));
    }

    fn at(&self, mark: Mark) -> Result<(f64, f64)> {
        let index = mark.0.checked_sub(self.first_mark).and_then(|i| usize::try_from(i).ok());
        index
            .and_then(|i| self.marks.get(i).copied())
            .ok_or_else(|| Error::new(Code::Internal, "the mark is forgotten or belongs to another queue"))
    }

    /// True if the buffer holds exactly `data` at `offset`.
    fn holds(&mut self, dst: &Buffer, offset: u64, data: &[u8]) -> Result<bool> {
        let mut piece = vec![0u8; data.len().min(1 << 16)];
        for (i, want) in data.chunks(1 << 16).enumerate() {
            let have = &mut piece[..want.len()];
            self.inner.read(dst, offset + (i as u64) * (1 << 16), have)?;
            if have != want {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Runs the launch on the host, unless that would change nothing.
    ///
    /// Kernels are deterministic, so a launch that reproduced its own outputs from unchanged buffers is at a fixed
    /// point: repeating it on the same contents has no effect and is left out. Timed repetitions then cost the host
    /// nothing, while every result that is read is a computed one.
    fn compute(&mut self, launch: &Launch, program: &SimProgram) -> Result<()> {
        let mut key: LaunchKey = vec![program.id];
        let mut inner = launch.clone();
        inner.program = program.inner.clone();
        let mut buffers = Vec::with_capacity(launch.args.len());
        for (slice, arg) in launch.args.iter().zip(&mut inner.args) {
            let b: &SimBuffer = slice.buffer.raw(self.serial)?;
            key.extend([b.id, slice.offset, slice.bytes]);
            *arg = Slice { buffer: b.inner.clone(), offset: slice.offset, bytes: slice.bytes };
            buffers.push(b);
        }
        for p in &launch.params {
            key.push(match p {
                Param::U64(v) => *v,
                Param::F32(_) | Param::F64(_) => p.f64().to_bits(),
                whole => whole.int() as u64,
            });
        }
        let before: Vec<u64> = buffers.iter().map(|b| b.version.load(Ordering::SeqCst)).collect();
        let repeated = match lock(&self.shared.fixed).get(&key) {
            Some(seen) if seen.versions == before => Some(seen.fixed_point),
            _ => None,
        };
        if repeated == Some(true) {
            return Ok(());
        }
        let written = |i: &usize| launch.writes.get(*i).copied().unwrap_or(false);
        let outputs: Vec<usize> = (0..buffers.len()).filter(written).collect();
        let mut snapshot = Vec::new();
        if repeated.is_some() {
            for i in &outputs {
                let slice = &inner.args[*i];
                let mut bytes = vec![0u8; slice.bytes as usize];
                self.inner.read(&slice.buffer, slice.offset, &mut bytes)?;
                snapshot.push(bytes);
            }
        }
        self.inner.launch(&inner)?;
        let mut fixed_point = repeated.is_some();
        for (i, bytes) in outputs.iter().zip(&snapshot) {
            let slice = inner.args[*i].clone();
            fixed_point &= self.holds(&slice.buffer, slice.offset, bytes)?;
        }
        let mut versions = before;
        if !fixed_point {
            for i in outputs {
                versions[i] = buffers[i].version.fetch_add(1, Ordering::SeqCst) + 1;
            }
        }
        let mut seen = lock(&self.shared.fixed);
        if seen.len() >= REMEMBERED {
            seen.clear();
        }
        seen.insert(key, Seen { versions, fixed_point });
        Ok(())
    }
}

impl Queue for SimQueue {
    fn write(&mut self, dst: &Buffer, offset: u64, data: &[u8]) -> Result<()> {
        dst.check(offset, data.len() as u64)?;
        let b = self.buffer(dst)?;
        if self.shared.compute == Compute::Real && !self.holds(&b.inner, offset, data)? {
            self.inner.write(&b.inner, offset, data)?;
            b.version.fetch_add(1, Ordering::SeqCst);
        }
        lock(&self.shared.cache).write(b.id);
        let (n, own, model) = (data.len() as u64, self.shared.spec.cpu.bandwidth, self.shared.model());
        self.blocking(if b.on_host() { n as f64 / own } else { model.upload(n) });
        Ok(())
    }

    fn read(&mut self, src: &Buffer, offset: u64, out: &mut [u8]) -> Result<()> {
        src.check(offset, out.len() as u64)?;
        let b = self.buffer(src)?;
        match self.shared.compute {
            Compute::Real => self.inner.read(&b.inner, offset, out)?,
            Compute::None => out.fill(0),
        }
        let (n, own, model) = (out.len() as u64, self.shared.spec.cpu.bandwidth, self.shared.model());
        self.blocking(if b.on_host() { n as f64 / own } else { model.download(n) });
        Ok(())
    }

    fn copy(&mut self, src: &Buffer, src_offset: u64, dst: &Buffer, dst_offset: u64, bytes: u64) -> Result<()> {
        src.check(src_offset, bytes)?;
        dst.check(dst_offset, bytes)?;
        let (from, to) = (self.buffer(src)?, self.buffer(dst)?);
        if self.shared.compute == Compute::Real {
            self.inner.copy(&from.inner, src_offset, &to.inner, dst_offset, bytes)?;
        }
        to.version.fetch_add(1, Ordering::SeqCst);
        self.shared.clock.advance(self.shared.model().submit_s);
        let model = self.shared.model();
        let price = match model.pinned(bytes) {
            Some(over_the_link) if from.pinned != to.pinned => over_the_link,
            _ => model.local(bytes.saturating_mul(2)),
        };
        self.shared.occupy(self.shared.noisy(price));
        Ok(())
    }

    fn fill(&mut self, dst: &Buffer, offset: u64, bytes: u64, value: u8) -> Result<()> {
        dst.check(offset, bytes)?;
        let b = self.buffer(dst)?;
        if self.shared.compute == Compute::Real {
            self.inner.fill(&b.inner, offset, bytes, value)?;
        }
        b.version.fetch_add(1, Ordering::SeqCst);
        self.shared.clock.advance(self.shared.model().submit_s);
        self.shared.occupy(self.shared.noisy(self.shared.model().local(bytes)));
        Ok(())
    }

    fn launch(&mut self, launch: &Launch) -> Result<()> {
        let program = launch.program.raw::<SimProgram>(self.serial)?;
        let mut buffers = Vec::with_capacity(launch.args.len());
        let model = self.shared.model();
        let mut migration = 0.0;
        for slice in &launch.args {
            slice.buffer.check(slice.offset, slice.bytes)?;
            let b = self.buffer(&slice.buffer)?;
            buffers.push((b.id, slice.bytes));
            if b.on_host() && b.put(Place::Device)? {
                migration += model.migrated(slice.bytes).unwrap_or(0.0);
            }
        }
        if migration > 0.0 {
            self.shared.occupy(self.shared.noisy(migration));
        }
        let lost = lock(&self.shared.cache).launch(&buffers, launch.cost.bytes(), model.cache_bytes);
        let price = model.launch_from(&launch.cost, program.dtype, lost).ok_or_else(|| {
            Error::new(Code::DTypeUnsupported, format!("the simulated machine has no rate for {}", program.dtype))
        })?;
        self.shared.clock.advance(model.submit_s);
        self.shared.occupy(self.shared.throttled(self.shared.noisy(price)) + self.shared.late());
        match self.shared.compute {
            Compute::Real => self.compute(launch, program),
            Compute::None => Ok(()),
        }
    }

    fn prefetch(&mut self, buffer: &Buffer, to: Place) -> Result<()> {
        let moves = self.buffer(buffer)?.put(to)?;
        let model = self.shared.model();
        self.shared.clock.advance(model.submit_s);
        if moves {
            let n = buffer.bytes();
            let price = if to == Place::Device { model.upload(n) } else { model.download(n) };
            self.shared.occupy(self.shared.noisy(price));
        }
        Ok(())
    }

    fn location(&mut self, buffer: &Buffer) -> Result<Option<Place>> {
        let b = self.buffer(buffer)?;
        b.migrates.as_ref().ok_or_else(managed::none)?;
        Ok(Some(if b.on_host() { Place::Host } else { Place::Device }))
    }

    fn mark(&mut self) -> Result<Mark> {
        if self.marks.len() == MARKS {
            self.marks.pop_front();
            self.first_mark += 1;
        }
        self.marks.push_back((self.shared.clock.now(), self.shared.done_at()));
        Ok(Mark(self.first_mark + self.marks.len() as u64 - 1))
    }

    fn flush(&mut self) -> Result<()> {
        Ok(())
    }

    fn wait(&mut self, mark: Mark, deadline: Duration) -> Result<Waited> {
        let (_, done) = self.at(mark)?;
        let limit = self.shared.clock.now() + deadline.as_secs_f64();
        if done > limit {
            self.shared.clock.advance_to(limit);
            return Ok(Waited::Timeout);
        }
        self.shared.clock.advance_to(done);
        self.shared.clock.advance(self.shared.noisy(self.shared.model().sync_s));
        Ok(Waited::Done)
    }

    fn span(&mut self, from: Mark, to: Mark) -> Result<Span> {
        let (from, to) = (self.at(from)?, self.at(to)?);
        Ok(Span { device: Some(to.1 - from.1), host: to.0 - from.0 })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::Cost;
    use crate::kernel::NativeArgs;
    use crate::kernel::cpu::{Call, CpuCtx};

    static RUNS: AtomicU64 = AtomicU64::new(0);

    fn double(_: &CpuCtx<'_>, args: &mut NativeArgs<'_>, call: &Call) -> Result<()> {
        RUNS.fetch_add(1, Ordering::SeqCst);
        let x = args.input::<f32>(0, call.size(0))?;
        for (y, x) in args.output::<f32>(0, call.size(0))?.iter_mut().zip(x) {
            *y = 2.0 * x;
        }
        Ok(())
    }

    fn increment(_: &CpuCtx<'_>, args: &mut NativeArgs<'_>, call: &Call) -> Result<()> {
        for y in args.output::<f32>(0, call.size(0))? {
            *y += 1.0;
        }
        Ok(())
    }

    fn launch(d: &dyn Device, f: crate::kernel::NativeFn, args: &[(&Buffer, bool)], n: u64, flops: u64) -> Launch {
        Launch {
            program: d.build(Source::Native(f, DType::F32), None).unwrap(),
            group: [1; 3],
            groups: [1; 3],
            args: args.iter().map(|(b, _)| Slice::whole(b)).collect(),
            writes: args.iter().map(|(_, w)| *w).collect(),
            params: vec![Param::U64(n)],
            cost: Cost { flops, read: 4 * n, written: 4 * n },
        }
    }

    #[test]
    fn both_parts_share_the_clock_and_say_that_they_are_simulated() {
        for name in presets() {
            let (cpu, gpu) = open(name).unwrap();
            assert_eq!((cpu.info().id.as_str(), gpu.info().id.as_str()), ("cpu", format!("sim:{name}").as_str()));
            for d in [&cpu, &gpu] {
                assert!(d.info().name.contains("simulated") && d.clock().is_virtual());
                assert_eq!(d.info().class, DeviceClass::Simulated);
            }
            cpu.clock().sleep(Duration::from_secs(3));
            assert_eq!(gpu.clock().now(), 3.0);
        }
        let e = open("h900").err().unwrap();
        assert!(e.code() == Code::DeviceMissing && e.to_string().contains("sim:h200 sim:laptop"), "{e}");
    }

    #[test]
    fn a_machine_has_as_many_cards_as_are_asked_for() {
        let ids = |preset: &str| {
            let (cpu, card) = open(preset).unwrap();
            [cpu.info().uid.clone(), card.info().id.clone(), card.info().name.clone()]
        };
        let ([one_cpu, one, model], [other_cpu, other, same]) = (ids("h200:0"), ids("h200:1"));
        assert_eq!((one.as_str(), other.as_str(), model), ("sim:h200:0", "sim:h200:1", same));
        assert_eq!([one_cpu.as_str(), other_cpu.as_str()], ["sim:h200:0/cpu", "sim:h200:1/cpu"]);
        assert_eq!(ids("h200:timing:3")[1], "sim:h200:timing:3");
        for wrong in ["h200:x", "h200:-1", "h200:70000", "h200:1:1", "h200:1:timing"] {
            assert_eq!(open(wrong).err().unwrap().code(), Code::DeviceMissing, "{wrong}");
        }
        // Each has noise of its own; without a number it is the first of them.
        let paid = |preset: &str| {
            let (_, d) = open(preset).unwrap();
            d.alloc(1 << 20, MemoryKind::Device).map(|_| d.clock().now()).unwrap()
        };
        assert_ne!(paid("h200:0"), paid("h200:1"));
        assert_eq!(paid("h200"), paid("h200:0"));
    }

    #[test]
    fn queue_times_are_the_models_prices() {
        let spec = spec("h200").unwrap().quiet();
        for part in ["cpu", "device"] {
            let (cpu, gpu) = open_spec(spec.clone(), Compute::Real).unwrap();
            let (d, model) = if part == "cpu" { (cpu, &spec.cpu) } else { (gpu, &spec.device) };
            let n = 300_000u64;
            let (x, y) = (d.alloc(4 * n, MemoryKind::Device).unwrap(), d.alloc(4 * n, MemoryKind::Device).unwrap());
            let mut q = d.queue().unwrap();
            let l = launch(d.as_ref(), double, &[(&x, false), (&y, true)], n, n);
            let start = d.clock().now();
            assert!(start > 0.0, "allocations cost time");
            q.write(&x, 0, &vec![0; 4 * n as usize]).unwrap();
            q.launch(&l).unwrap();
            q.launch(&l).unwrap();
            q.finish(Duration::from_secs(1)).unwrap();
            q.read(&y, 0, &mut vec![0; 4 * n as usize]).unwrap();
            let want = model.call(&[4 * n], &[l.cost, l.cost], DType::F32, &[4 * n]).unwrap();
            let got = d.clock().now() - start;
            assert!((got / want - 1.0).abs() < 1e-6, "{part}: {got} {want}");
        }
    }

    #[test]
    fn launches_are_asynchronous_and_waits_have_deadlines() {
        let (_, d) = open_spec(spec("textbook").unwrap(), Compute::Real).unwrap();
        let y = d.alloc(4, MemoryKind::Device).unwrap();
        let l = launch(d.as_ref(), increment, &[(&y, true)], 1, 10_000_000_000);
        let mut q = d.queue().unwrap();
        let a = q.mark().unwrap();
        q.launch(&l).unwrap();
        let b = q.mark().unwrap();
        assert_eq!(d.clock().now(), 0.0, "the host goes on");
        assert_eq!(q.wait(b, Duration::from_millis(200)).unwrap(), Waited::Timeout);
        assert!((d.clock().now() - 0.2).abs() < 1e-9, "a timeout takes the deadline's time");
        assert_eq!(q.wait(b, Duration::from_secs(2)).unwrap(), Waited::Done);
        assert!((d.clock().now() - 1.00009).abs() < 1e-9, "{}", d.clock().now());
        assert!((q.span(a, b).unwrap().device.unwrap() - 1.00009).abs() < 1e-9);
        assert_eq!(q.span(a, Mark(99)).unwrap_err().code(), Code::Internal);
    }

    #[test]
    fn repetitions_are_skipped_only_where_nothing_can_change() {
        let (_, d) = open("textbook").unwrap();
        let (x, y) = (d.alloc(8, MemoryKind::Device).unwrap(), d.alloc(8, MemoryKind::Device).unwrap());
        let mut q = d.queue().unwrap();
        let l = launch(d.as_ref(), double, &[(&x, false), (&y, true)], 2, 2);
        let read = |q: &mut Box<dyn Queue>, b: &Buffer| {
            let mut out = [0f32; 2];
            q.read(b, 0, bytemuck::cast_slice_mut(&mut out)).unwrap();
            out
        };
        q.write(&x, 0, bytemuck::cast_slice(&[1f32, 2.0])).unwrap();
        let before = RUNS.load(Ordering::SeqCst);
        for _ in 0..100 {
            q.launch(&l).unwrap();
        }
        // `double` also runs in the test of prices, once or twice per part.
        assert!(RUNS.load(Ordering::SeqCst) - before <= 6, "repetitions are left out");
        assert_eq!(read(&mut q, &y), [2.0, 4.0]);
        q.fill(&y, 0, 8, 0xFF).unwrap();
        q.launch(&l).unwrap();
        assert_eq!(read(&mut q, &y), [2.0, 4.0], "a poisoned output is computed again");
        q.write(&x, 0, bytemuck::cast_slice(&[5f32, 7.0])).unwrap();
        q.launch(&l).unwrap();
        assert_eq!(read(&mut q, &y), [10.0, 14.0], "new inputs are seen");
        q.fill(&y, 0, 8, 0).unwrap();
        let inc = launch(d.as_ref(), increment, &[(&y, true)], 2, 2);
        for _ in 0..10 {
            q.launch(&inc).unwrap();
        }
        assert_eq!(read(&mut q, &y), [10.0, 10.0], "a launch that changes its buffer is never skipped");
    }

    #[test]
    fn timing_only_says_so_and_computes_nothing() {
        let (_, d) = open("h200:timing").unwrap();
        assert!(d.info().notes.iter().any(|n| n == TIMING_ONLY) && d.info().id == "sim:h200:timing");
        let y = d.alloc(8, MemoryKind::Device).unwrap();
        let mut q = d.queue().unwrap();
        q.launch(&launch(d.as_ref(), increment, &[(&y, true)], 2, 2)).unwrap();
        let mut out = [0u8; 8];
        q.read(&y, 0, &mut out).unwrap();
        assert_eq!(out, [0; 8]);
        assert!(d.clock().now() > 0.0);
    }

    #[test]
    fn memory_is_the_simulated_machines() {
        let (_, d) = open("laptop").unwrap();
        let total = d.memory().total.unwrap();
        assert_eq!(d.alloc(total + 1, MemoryKind::Device).unwrap_err().code(), Code::AllocTooLarge);
        let b = d.alloc(1000, MemoryKind::Device).unwrap();
        assert_eq!(d.memory().free, Some(total - 1000));
        assert_eq!(d.alloc(total, MemoryKind::Device).unwrap_err().code(), Code::OutOfDeviceMemory);
        drop(b);
        assert_eq!(d.ledger().state().bytes, 0);
    }
}
