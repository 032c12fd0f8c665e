//! The host's processor. Owns its threads: several devices with different numbers of threads may exist side by side.
//!
//! Launches run at once on the calling thread plus the device's workers; a queue therefore never has unfinished work.

use std::collections::VecDeque;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::Duration;

use bytemuck::{Pod, Zeroable};

use crate::base::blas::{CpuBlas, Fit, fit};
use crate::base::facts::Facts;
use crate::base::{
    Backend, Clock, Code, DType, DeviceClass, DeviceInfo, Error, Feature, Lang, Library, RealClock, Result, os, system,
};
use crate::kernel::cpu::blas::Blas;
use crate::kernel::cpu::{Call, Team};
use crate::kernel::{CpuCtx, Isa, NativeArgs, NativeFn};

mod blas;
mod gate;
mod sync;
mod team;

use super::{
    Buffer, BuildStats, Device, Health, Kind, Launch, Ledger, Mark, MemoryKind, MemoryState, Program, Queue, Source,
    Span, Waited, next_serial, no_memory_kind,
};
use team::Helpers;

/// Whether the workers stay on one CPU each. Measuring wants it; a library inside somebody's program does not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pin {
    /// Worker i runs on the (i+1)th allowed CPU, leaving the first to the caller.
    Workers,
    /// The operating system decides.
    Free,
}

/// The processor as a device.
pub struct CpuDevice {
    info: DeviceInfo,
    serial: u64,
    clock: Arc<dyn Clock>,
    ledger: Arc<Ledger>,
    core: Arc<Core>,
}

struct Core {
    threads: usize,
    isa: Isa,
    helpers: Option<Helpers>,
    blas: Option<blas::Blas>,
}

/// Storage is allocated in lines so that every dtype and vector is aligned.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C, align(64))]
struct Line([u8; 64]);

/// Buffers from here on get large pages, where the system has some.
const LARGE: u64 = 4 << 20;

struct CpuBuffer(RwLock<Vec<Line>>);

impl CpuBuffer {
    fn address(&self) -> usize {
        std::ptr::from_ref(self).addr()
    }
}

struct CpuProgram {
    run: NativeFn,
    dtype: DType,
}

/// Threads that this process may have at work at once: the processors that its affinity and cpuset leave it, and no more than
/// the quota of its cgroup, which would stop all of them together.
pub fn available_threads() -> usize {
    let processors = match os::allowed_cpus().len() {
        0 => std::thread::available_parallelism().map_or(1, usize::from),
        n => n,
    };
    within(processors, system::quota())
}

/// So many of the processors as a quota keeps busy.
fn within(processors: usize, quota: Option<f64>) -> usize {
    quota.map_or(processors, |q| (q.ceil() as usize).clamp(1, processors))
}

/// What kernels in Rust can do.
fn facts() -> Facts {
    let stored = [DType::F16, DType::BF16];
    Facts {
        arithmetic: DType::ALL.into_iter().filter(|d| !stored.contains(d)).collect(),
        atomics: ["i32 add", "i64 add"].map(String::from).to_vec(),
        memory_kinds: vec!["device".into()],
        ..Facts::default()
    }
}

impl CpuDevice {
    /// A device with `threads` threads (0: all that are allowed), the caller's included.
    pub fn new(threads: usize, isa: Isa, pin: Pin) -> Result<Self> {
        Self::with_blas(threads, isa, pin, &CpuBlas::Own)
    }

    /// The same with a library for its products, which is told the number of threads. Its threads are its own: they are neither
    /// pinned nor parked.
    ///
    /// Errors: `LibraryNotFound` for a library that cannot be opened, `BadArgument` for one that is no BLAS, `ResultWrong` for one
    /// that computes wrong.
    pub fn with_blas(threads: usize, isa: Isa, pin: Pin, asked: &CpuBlas) -> Result<Self> {
        let available = available_threads();
        let threads = if threads == 0 { available } else { threads };
        let cpus = os::allowed_cpus();
        let helpers = match (threads, pin) {
            (1, _) => None,
            (_, Pin::Workers) => Some(Helpers::new(threads - 1, team::pinned(cpus))?),
            (_, Pin::Free) => Some(Helpers::new(threads - 1, |_| {})?),
        };
        let memory = os::memory().map(|m| m.0);
        let mut info = DeviceInfo {
            id: "cpu".into(),
            uid: "cpu".into(),
            name: os::cpu_name(),
            vendor: String::new(),
            backend: Backend::Cpu,
            class: DeviceClass::Cpu,
            driver: format!("gpuctl {}", env!("CARGO_PKG_VERSION")),
            api: format!("{} threads, {}", threads, isa.name()),
            langs: vec![Lang::Native],
            memory_bytes: memory,
            max_alloc_bytes: memory.unwrap_or(i64::MAX as u64),
            max_binding_bytes: memory.unwrap_or(i64::MAX as u64),
            max_group: 1,
            max_groups: [u64::MAX; 3],
            local_bytes: 0,
            compute_units: threads as u32,
            compute_capability: None,
            dtypes: DType::ALL.to_vec(),
            features: vec![Feature::Fp64, Feature::Int64, Feature::SmallInt],
            libraries: vec![],
            unified_memory: true,
            cache_bytes: os::last_cache_bytes(),
            // The clock under load is not told.
            theoretical: None,
            facts: facts(),
            notes: vec!["f16 and bf16 are stored, arithmetic is f32".into()],
        };
        let blas = blas::open(asked, threads)?.map(|found| {
            tell_of(&mut info, &found);
            found.blas
        });
        Ok(CpuDevice {
            info,
            serial: next_serial(),
            clock: Arc::new(RealClock::new()),
            ledger: Ledger::new(),
            core: Arc::new(Core { threads, isa, helpers, blas }),
        })
    }
}

/// Enters a library into what a device says of itself.
fn tell_of(info: &mut DeviceInfo, found: &blas::Found) {
    let blas = &found.info;
    info.libraries.push((Library::Blas, blas.text()));
    info.notes.push(format!("products run on {} ({}), integers of {} bits", blas.text(), blas.path, blas.int_bits));
    if !blas.weak.is_empty() {
        info.notes.push(blas.weakness());
    }
    if fit(&blas.core, Isa::detect().name()) == Fit::Unknown {
        info.notes
            .push("whether the BLAS's kernels fit this processor is not known: its core type does not tell".into());
    }
    info.notes.extend(found.notes.iter().cloned());
    info.facts.blas = Some(blas.clone());
}

impl Device for CpuDevice {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }
    fn serial(&self) -> u64 {
        self.serial
    }
    fn clock(&self) -> Arc<dyn Clock> {
        Arc::clone(&self.clock)
    }
    fn ledger(&self) -> &Arc<Ledger> {
        &self.ledger
    }
    fn memory(&self) -> MemoryState {
        let now = os::memory();
        MemoryState { total: now.map(|m| m.0), free: now.map(|m| m.1) }
    }

    fn alloc(&self, bytes: u64, kind: MemoryKind) -> Result<Buffer> {
        if kind != MemoryKind::Device {
            return Err(no_memory_kind(kind, "the CPU computes in ordinary memory").device(&self.info.id));
        }
        if bytes > self.info.max_alloc_bytes {
            return Err(Error::new(
                Code::AllocTooLarge,
                format!("{bytes} bytes asked, the limit is {}", self.info.max_alloc_bytes),
            )
            .device(&self.info.id));
        }
        let lines = bytes.div_ceil(64) as usize;
        let mut storage = Vec::new();
        let none = |e| Error::new(Code::OutOfDeviceMemory, format!("{bytes} bytes")).device(&self.info.id).caused_by(e);
        storage.try_reserve_exact(lines).map_err(none)?;
        if bytes >= LARGE {
            // Before the memory is touched for the first time.
            os::prefer_large_pages(storage.spare_capacity_mut());
        }
        storage.resize(lines, Line([0; 64]));
        let ticket = self.ledger.enter(Kind::Buffer, bytes);
        Ok(Buffer::new(CpuBuffer(RwLock::new(storage)), bytes, self.serial, ticket))
    }

    fn build(&self, source: Source<'_>, _: Option<&[u8]>) -> Result<Program> {
        let Source::Native(run, dtype) = source else {
            return Err(
                Error::new(Code::FeatureUnsupported, "the CPU takes native functions only").device(&self.info.id)
            );
        };
        let ticket = self.ledger.enter(Kind::Program, 0);
        Ok(Program::new(CpuProgram { run, dtype }, self.serial, ticket, None, BuildStats::default()))
    }

    fn queue(&self) -> Result<Box<dyn Queue>> {
        Ok(Box::new(CpuQueue {
            serial: self.serial,
            clock: Arc::clone(&self.clock),
            core: Arc::clone(&self.core),
            marks: VecDeque::new(),
            first: 0,
            _ticket: self.ledger.enter(Kind::Queue, 0),
        }))
    }

    fn health(&self) -> Health {
        Health::Usable
    }

    fn host_ctx(&self) -> Option<CpuCtx<'_>> {
        Some(self.core.ctx())
    }
}

impl Core {
    fn ctx(&self) -> CpuCtx<'_> {
        let team = self.helpers.as_ref().map(|h| h as &dyn Team);
        let blas = self.blas.as_ref().map(|b| b as &dyn Blas);
        CpuCtx { threads: self.threads, isa: self.isa, team, blas }
    }
}

/// Marks that are remembered; the trait promises 64.
const MARKS: usize = 128;

struct CpuQueue {
    serial: u64,
    clock: Arc<dyn Clock>,
    core: Arc<Core>,
    /// Host times of the last marks.
    marks: VecDeque<f64>,
    /// Number of the first of them.
    first: u64,
    _ticket: super::Ticket,
}

/// An argument of a launch.
struct Used<'b> {
    buffer: &'b CpuBuffer,
    arg: usize,
    write: bool,
}

impl Used<'_> {
    fn address(&self) -> usize {
        self.buffer.address()
    }
}

enum Guard<'b> {
    Read(RwLockReadGuard<'b, Vec<Line>>),
    Write(RwLockWriteGuard<'b, Vec<Line>>),
}

enum View<'b> {
    Read(&'b [u8]),
    Write(&'b mut [u8]),
}

impl CpuQueue {
    /// What locks are ordered by.
    fn address(&self, b: &Buffer) -> Result<usize> {
        Ok(b.raw::<CpuBuffer>(self.serial)?.address())
    }
    fn read_guard<'b>(&self, b: &'b Buffer) -> Result<RwLockReadGuard<'b, Vec<Line>>> {
        Ok(b.raw::<CpuBuffer>(self.serial)?.0.read().unwrap_or_else(PoisonError::into_inner))
    }
    fn write_guard<'b>(&self, b: &'b Buffer) -> Result<RwLockWriteGuard<'b, Vec<Line>>> {
        Ok(b.raw::<CpuBuffer>(self.serial)?.0.write().unwrap_or_else(PoisonError::into_inner))
    }
}

fn range(offset: u64, len: u64) -> std::ops::Range<usize> {
    offset as usize..(offset + len) as usize
}

impl Queue for CpuQueue {
    fn write(&mut self, dst: &Buffer, offset: u64, data: &[u8]) -> Result<()> {
        dst.check(offset, data.len() as u64)?;
        let mut guard = self.write_guard(dst)?;
        bytemuck::cast_slice_mut::<Line, u8>(&mut guard)[range(offset, data.len() as u64)].copy_from_slice(data);
        Ok(())
    }

    fn read(&mut self, src: &Buffer, offset: u64, out: &mut [u8]) -> Result<()> {
        src.check(offset, out.len() as u64)?;
        let guard = self.read_guard(src)?;
        out.copy_from_slice(&bytemuck::cast_slice::<Line, u8>(&guard)[range(offset, out.len() as u64)]);
        Ok(())
    }

    fn copy(&mut self, src: &Buffer, src_offset: u64, dst: &Buffer, dst_offset: u64, bytes: u64) -> Result<()> {
        src.check(src_offset, bytes)?;
        dst.check(dst_offset, bytes)?;
        if std::ptr::eq(src.raw::<CpuBuffer>(self.serial)?, dst.raw::<CpuBuffer>(self.serial)?) {
            let mut guard = self.write_guard(dst)?;
            bytemuck::cast_slice_mut::<Line, u8>(&mut guard).copy_within(range(src_offset, bytes), dst_offset as usize);
            return Ok(());
        }
        // In order of address, as in a launch: a thread that copies the other way would wait for this one for ever.
        let (from, mut to);
        if self.address(src)? < self.address(dst)? {
            from = self.read_guard(src)?;
            to = self.write_guard(dst)?;
        } else {
            to = self.write_guard(dst)?;
            from = self.read_guard(src)?;
        }
        bytemuck::cast_slice_mut::<Line, u8>(&mut to)[range(dst_offset, bytes)]
            .copy_from_slice(&bytemuck::cast_slice::<Line, u8>(&from)[range(src_offset, bytes)]);
        Ok(())
    }

    fn fill(&mut self, dst: &Buffer, offset: u64, bytes: u64, value: u8) -> Result<()> {
        dst.check(offset, bytes)?;
        let mut guard = self.write_guard(dst)?;
        bytemuck::cast_slice_mut::<Line, u8>(&mut guard)[range(offset, bytes)].fill(value);
        Ok(())
    }

    fn launch(&mut self, launch: &Launch) -> Result<()> {
        let program = launch.program.raw::<CpuProgram>(self.serial)?;
        // Each buffer is locked once, in order of address, so that threads sharing buffers cannot deadlock.
        let mut used = Vec::with_capacity(launch.args.len());
        for (arg, slice) in launch.args.iter().enumerate() {
            slice.buffer.check(slice.offset, slice.bytes)?;
            if slice.offset % 64 != 0 {
                return Err(Error::new(Code::BufferBounds, "slices on the CPU start at multiples of 64 bytes"));
            }
            let buffer = slice.buffer.raw::<CpuBuffer>(self.serial)?;
            used.push(Used { buffer, arg, write: launch.writes.get(arg).copied().unwrap_or(false) });
        }
        used.sort_unstable_by_key(|u| (u.address(), u.arg));
        if used.windows(2).any(|w| w[0].address() == w[1].address() && (w[0].write || w[1].write)) {
            return Err(Error::new(Code::BadArgument, "a written buffer may appear only once in a launch"));
        }
        let mut guards = Vec::with_capacity(used.len());
        for same in used.chunk_by(|a, b| a.address() == b.address()) {
            let lock = &same[0].buffer.0;
            guards.push(if same[0].write {
                Guard::Write(lock.write().unwrap_or_else(PoisonError::into_inner))
            } else {
                Guard::Read(lock.read().unwrap_or_else(PoisonError::into_inner))
            });
        }
        let mut views: Vec<View<'_>> = used.iter().map(|_| View::Read(&[])).collect();
        for (same, guard) in used.chunk_by(|a, b| a.address() == b.address()).zip(&mut guards) {
            let of = |u: &Used<'_>| range(launch.args[u.arg].offset, launch.args[u.arg].bytes);
            match guard {
                Guard::Read(lines) => {
                    let bytes: &[u8] = bytemuck::cast_slice(lines.as_slice());
                    same.iter().for_each(|u| views[u.arg] = View::Read(&bytes[of(u)]));
                }
                Guard::Write(lines) => {
                    let bytes: &mut [u8] = bytemuck::cast_slice_mut(lines.as_mut_slice());
                    views[same[0].arg] = View::Write(&mut bytes[of(&same[0])]);
                }
            }
        }
        let mut args = NativeArgs { ins: Vec::with_capacity(used.len()), outs: Vec::with_capacity(1) };
        for view in views {
            match view {
                View::Read(bytes) => args.ins.push(bytes),
                View::Write(bytes) => args.outs.push(bytes),
            }
        }
        let ctx = self.core.ctx();
        let call = Call { dtype: program.dtype, params: launch.params.clone() };
        (program.run)(&ctx, &mut args, &call)
    }

    fn mark(&mut self) -> Result<Mark> {
        if self.marks.len() == MARKS {
            self.marks.pop_front();
            self.first += 1;
        }
        self.marks.push_back(self.clock.now());
        Ok(Mark(self.first + self.marks.len() as u64 - 1))
    }

    fn flush(&mut self) -> Result<()> {
        Ok(())
    }

    fn wait(&mut self, _: Mark, _: Duration) -> Result<Waited> {
        Ok(Waited::Done)
    }

    fn span(&mut self, from: Mark, to: Mark) -> Result<Span> {
        let at = |m: Mark| {
            let at = m.0.checked_sub(self.first).and_then(|i| self.marks.get(i as usize)).copied();
            at.ok_or_else(|| Error::new(Code::Internal, "the mark is forgotten or belongs to another queue"))
        };
        let seconds = at(to)? - at(from)?;
        Ok(Span { device: Some(seconds), host: seconds })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::Cost;
    use crate::device::Slice;
    use crate::kernel::Param;
    use crate::kernel::cpu::movement;

    fn device() -> CpuDevice {
        CpuDevice::new(2, Isa::detect(), Pin::Free).unwrap()
    }

    fn launch(d: &CpuDevice, args: Vec<Slice>) -> Launch {
        Launch {
            program: d.build(Source::Native(movement::transpose, DType::F32), None).unwrap(),
            group: [1; 3],
            groups: [1; 3],
            writes: vec![false, true],
            args,
            params: vec![Param::U64(2), Param::U64(3)],
            cost: Cost::default(),
        }
    }

    /// A queue lives as long as its engine, and every call waits once: what it remembers of that must end.
    #[test]
    fn marks_are_bounded() {
        let d = device();
        let mut q = d.queue().unwrap();
        let marks: Vec<Mark> = (0..100_000).map(|_| q.mark().unwrap()).collect();
        let last = marks[marks.len() - 1];
        assert!(marks.windows(2).all(|w| w[0] < w[1]));
        assert_eq!(q.span(marks[0], last).unwrap_err().code(), Code::Internal);
        assert!(q.span(marks[marks.len() - 64], last).unwrap().host >= 0.0, "the last 64 are there");
        assert_eq!(q.span(last, Mark(last.0 + 1)).unwrap_err().code(), Code::Internal);
    }

    #[test]
    fn runs_a_kernel_and_keeps_the_ledger() {
        let d = device();
        let (x, y) = (d.alloc(24, MemoryKind::Device).unwrap(), d.alloc(24, MemoryKind::Device).unwrap());
        let mut q = d.queue().unwrap();
        q.write(&x, 0, bytemuck::cast_slice(&[1f32, 2.0, 3.0, 4.0, 5.0, 6.0])).unwrap();
        q.launch(&launch(&d, vec![Slice::whole(&x), Slice::whole(&y)])).unwrap();
        let mut out = [0f32; 6];
        q.read(&y, 0, bytemuck::cast_slice_mut(&mut out)).unwrap();
        assert_eq!(out, [1.0, 4.0, 2.0, 5.0, 3.0, 6.0]);
        assert_eq!((d.ledger().state().buffers, d.ledger().state().bytes), (2, 48));
        drop((x, y, q));
        assert_eq!((d.ledger().state().buffers, d.ledger().state().objects()), (0, 0));
    }

    /// Whoever waits for the buffer that lies first holds no other, whichever way it copies: two threads that copy to and fro
    /// cannot each wait for what the other one holds.
    #[test]
    fn copies_lock_in_order_of_address() {
        let d = device();
        let buffer = || d.alloc(64, MemoryKind::Device).unwrap();
        let lock = |b: &Buffer| b.raw::<CpuBuffer>(d.serial).unwrap().address();
        let (mut first, mut second) = (buffer(), buffer());
        if lock(&first) > lock(&second) {
            std::mem::swap(&mut first, &mut second);
        }
        for (src, dst) in [(&first, &second), (&second, &first)] {
            let held = first.raw::<CpuBuffer>(d.serial).unwrap().0.write().unwrap();
            std::thread::scope(|s| {
                let copying = s.spawn(|| d.queue().unwrap().copy(src, 0, dst, 0, 64));
                // Until it waits: a thread that is slow to come makes this test weaker, and never fail.
                std::thread::sleep(Duration::from_millis(50));
                let free = second.raw::<CpuBuffer>(d.serial).unwrap().0.try_write().is_ok();
                drop(held);
                copying.join().unwrap().unwrap();
                assert!(free, "the later buffer was locked before the earlier one");
            });
        }
        let mut q = d.queue().unwrap();
        q.write(&first, 0, &[7; 32]).unwrap();
        q.copy(&first, 0, &first, 16, 32).unwrap();
        let mut out = [0; 48];
        q.read(&first, 0, &mut out).unwrap();
        assert_eq!(out, [7; 48], "one buffer on both sides, ranges that overlap");
    }

    #[test]
    fn a_quota_limits_the_threads() {
        let cases = [(8, None, 8), (8, Some(2.0), 2), (8, Some(2.5), 3), (2, Some(16.0), 2), (4, Some(0.1), 1)];
        for (processors, quota, want) in cases {
            assert_eq!(within(processors, quota), want, "{processors} {quota:?}");
        }
    }

    #[test]
    fn misuse_is_a_typed_error() {
        let (d, other) = (device(), device());
        let x = d.alloc(24, MemoryKind::Device).unwrap();
        let mut q = d.queue().unwrap();
        assert_eq!(q.write(&x, 20, &[0; 8]).unwrap_err().code(), Code::BufferBounds);
        let both = launch(&d, vec![Slice::whole(&x), Slice::whole(&x)]);
        assert_eq!(q.launch(&both).unwrap_err().code(), Code::BadArgument);
        let foreign = other.alloc(24, MemoryKind::Device).unwrap();
        assert_eq!(q.write(&foreign, 0, &[0; 4]).unwrap_err().code(), Code::BufferForeign);
        let short = d.alloc(8, MemoryKind::Device).unwrap();
        let l = launch(&d, vec![Slice::whole(&x), Slice::whole(&short)]);
        assert_eq!(q.launch(&l).unwrap_err().code(), Code::BufferBounds, "the output is too short for 2x3");
        assert_eq!(d.alloc(4, MemoryKind::Pinned).unwrap_err().code(), Code::FeatureUnsupported);
        assert_eq!(d.alloc(u64::MAX, MemoryKind::Device).unwrap_err().code(), Code::AllocTooLarge);
    }
}
