//! Where kernels run. Each backend is one file (or folder) that implements [`Device`] and [`Queue`]; nothing above this
//! layer knows an API.
//!
//! Invariants: the traits know no op and never grow when one is added; every library is opened at run time; a panic or
//! late error of a driver crate stays inside its file and leaves as a typed [`Error`]; every wait has a deadline; every
//! allocation is in the [`Ledger`]. Not here: which device an op should use (`engine::place`).

pub mod cpu;
#[cfg(feature = "cuda")]
pub mod cuda;
pub mod faulty;
pub mod icd;
pub mod ledger;
pub mod managed;
pub mod manifest;
#[cfg(feature = "opencl")]
pub mod opencl;
pub mod platform;
pub mod probe;
pub mod quirks;
mod rows;
pub mod sequence;
pub mod sim;
pub mod spoilt;
pub mod tap;
pub mod telemetry;
pub mod traced;
#[cfg(feature = "wgpu")]
pub mod wgpu;

use std::any::Any;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use crate::base::{Clock, Code, Cost, DType, DeviceInfo, Error, Result};
use crate::kernel::cpu::Call as NativeCall;
use crate::kernel::source::Text;
use crate::kernel::{CpuCtx, NativeArgs, NativeFn, Param, Routine};

pub use ledger::{Kind, Ledger, LedgerState, Ticket};
pub use managed::{Advice, ManagedUse, Place};
pub use probe::{Found, Inventory, Probe};
pub use rows::{Block, Pitch};
pub use sequence::Sequence;

/// How long a wait may take before the device counts as hung, unless the caller knows better.
pub const DEADLINE: Duration = Duration::from_secs(60);

/// Where a buffer lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemoryKind {
    /// The device's own memory.
    Device,
    /// Page-locked host memory, for copies that need no detour.
    Pinned,
    /// Host memory that kernels address where it lies; the host reaches it without a copy of the driver's.
    Mapped,
    /// Memory that migrates on demand.
    Managed,
}

/// What is known about a device's memory now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryState {
    /// Total bytes, if the API tells.
    pub total: Option<u64>,
    /// Free bytes on the whole device, if the API tells (other processes included).
    pub free: Option<u64>,
}

/// Whether a device can be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Health {
    /// Nothing speaks against it.
    Usable,
    /// It is lost or its context poisoned; the reason.
    Lost(String),
}

/// A program to build.
#[derive(Clone, Copy, Debug)]
pub enum Source<'a> {
    /// Kernel text with its entry point.
    Text(&'a Text),
    /// A function of this binary, for operands of this dtype.
    Native(NativeFn, DType),
    /// A vendor routine for operands of this dtype.
    Routine(Routine, DType),
}

/// One device. Object-safe; shared between threads.
pub trait Device: Send + Sync {
    /// What it is and can do.
    fn info(&self) -> &DeviceInfo;
    /// Identity of this opened device within the process; buffers and programs carry it.
    fn serial(&self) -> u64;
    /// The clock its time passes on: the real one, or the simulator's.
    fn clock(&self) -> Arc<dyn Clock>;
    /// Everything that is allocated through it and not yet released.
    fn ledger(&self) -> &Arc<Ledger>;
    /// Its memory.
    fn memory(&self) -> MemoryState;
    /// A buffer of at least `bytes` bytes (0 is allowed), contents undefined.
    ///
    /// Errors: `AllocTooLarge` beyond the device's limit, `OutOfDeviceMemory`, `FeatureUnsupported` for a kind of
    /// memory that the API does not have.
    fn alloc(&self, bytes: u64, kind: MemoryKind) -> Result<Buffer>;
    /// Builds a program; `cached` is what [`Program::binary`] gave earlier for the same source on the same driver.
    ///
    /// Errors: `CompileFailed` with the compiler's log, `FeatureUnsupported` for a source it does not take.
    fn build(&self, source: Source<'_>, cached: Option<&[u8]>) -> Result<Program>;
    /// An in-order queue. Queues are leased by the engine, not made per call.
    fn queue(&self) -> Result<Box<dyn Queue>>;
    /// Whether it can be used.
    fn health(&self) -> Health;
    /// Runs a native function on the host's own memory, without buffers and queues. `None` from devices that do not compute
    /// there, or whose time does not pass by itself.
    fn native(&self, run: NativeFn, args: &mut NativeArgs<'_>, call: &NativeCall) -> Option<Result<()>> {
        self.host_ctx().map(|ctx| run(&ctx, args, call))
    }
    /// What [`Device::native`] gives such a function, where calling it with that is all there is to it.
    fn host_ctx(&self) -> Option<CpuCtx<'_>> {
        None
    }
    /// How much managed memory is in use; `None` where the API has none.
    fn managed(&self) -> Option<ManagedUse> {
        None
    }
    /// Managed buffers may have more bytes together than the device has memory, from now on. That can make a card crawl, or
    /// hang: nothing in gpuctl asks for it by itself. False where there is no such memory.
    fn oversubscribe(&self) -> bool {
        false
    }
    /// Loses the device for real, where the API has a call for that: every later call fails with `DeviceLost`. False where
    /// it has none. For tests of recovery: whoever else uses the opened device loses it, too.
    fn destroy(&self) -> bool {
        false
    }
    /// Where its events go, if it is traced ([`traced`]).
    fn tap(&self) -> Option<&tap::Tap> {
        None
    }
}

/// A point in a queue's order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Mark(pub u64);

/// How a wait ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Waited {
    /// Everything up to the mark is done.
    Done,
    /// The deadline passed first.
    Timeout,
}

impl Waited {
    /// The error `LaunchTimeout` if the deadline passed first.
    fn in_time(self, deadline: Duration) -> Result<()> {
        match self {
            Waited::Done => Ok(()),
            Waited::Timeout => {
                Err(Error::new(Code::LaunchTimeout, format!("not finished within {:.1} s", deadline.as_secs_f64())))
            }
        }
    }
}

/// Time between two marks, in seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Span {
    /// By the device's own clock, where the API has one.
    pub device: Option<f64>,
    /// By the host's clock, between the calls that set the marks.
    pub host: f64,
}

/// An in-order stream of work on one device, used by one thread at a time.
///
/// Buffers and programs must come from the same device (`BufferForeign` otherwise); ranges are checked
/// (`BufferBounds`). Buffers used by unfinished work are kept alive by the queue.
pub trait Queue: Send {
    /// Copies host bytes to `dst` at `offset`; `data` may be reused at return, the copy may still be under way.
    fn write(&mut self, dst: &Buffer, offset: u64, data: &[u8]) -> Result<()>;
    /// Copies device bytes to the host after all earlier work; returns when they have arrived.
    fn read(&mut self, src: &Buffer, offset: u64, out: &mut [u8]) -> Result<()>;
    /// Copies `bytes` bytes between two buffers of the device.
    fn copy(&mut self, src: &Buffer, src_offset: u64, dst: &Buffer, dst_offset: u64, bytes: u64) -> Result<()>;
    /// Sets `bytes` bytes from `offset` to `value`. Offsets and lengths are multiples of 4.
    fn fill(&mut self, dst: &Buffer, offset: u64, bytes: u64, value: u8) -> Result<()>;
    /// Enqueues a launch.
    fn launch(&mut self, launch: &Launch) -> Result<()>;
    /// Sets a mark after everything enqueued so far.
    fn mark(&mut self) -> Result<Mark>;
    /// Hands everything enqueued so far to the device.
    fn flush(&mut self) -> Result<()>;
    /// Waits until everything before the mark is done, at most `deadline`.
    fn wait(&mut self, mark: Mark, deadline: Duration) -> Result<Waited>;
    /// Time between two marks that were waited for; marks older than the last 64 may be forgotten (`Internal`).
    fn span(&mut self, from: Mark, to: Mark) -> Result<Span>;
    /// [`Queue::span`] of several pairs, in their order; for queues that answer many as fast as one.
    fn spans(&mut self, pairs: &[(Mark, Mark)]) -> Vec<Result<Span>> {
        pairs.iter().map(|(from, to)| self.span(*from, *to)).collect()
    }

    /// Copies rows of host bytes to rows of `dst`, as [`Queue::write`] does for one. Errors: `BadArgument` for rows that overlap,
    /// `SizeOverflow`, `BufferBounds`.
    fn write_rows(&mut self, dst: &Buffer, to: Pitch, data: &[u8], from: Pitch, block: Block) -> Result<()> {
        rows::write(self, dst, to, data, from, block)
    }
    /// Copies rows of `src` to rows of host bytes, as [`Queue::read`] does for one. What lies between the rows stays as it is.
    fn read_rows(&mut self, src: &Buffer, from: Pitch, out: &mut [u8], to: Pitch, block: Block) -> Result<()> {
        rows::read(self, src, from, out, to, block)
    }
    /// Copies rows of `src` to rows of `dst`, two buffers of the device, as [`Queue::copy`] does for one.
    fn copy_rows(&mut self, src: &Buffer, from: Pitch, dst: &Buffer, to: Pitch, block: Block) -> Result<()> {
        rows::copy(self, src, from, dst, to, block)
    }

    /// Makes a sequence of launches that can be enqueued again and again. Nothing is enqueued yet. Where the API records no
    /// sequences it keeps the launches, and says so.
    fn sequence(&mut self, launches: Vec<Launch>) -> Result<Sequence> {
        Ok(Sequence::replayed(launches, "the API records no launches"))
    }
    /// Enqueues all launches of a sequence.
    fn replay(&mut self, sequence: &Sequence) -> Result<()> {
        sequence.launches().iter().try_for_each(|l| self.launch(l))
    }
    /// Copies `bytes` bytes of a buffer of another device to one of this queue's, without the host. All earlier work on `src`
    /// must be done. `FeatureUnsupported` where the two have no such way.
    fn copy_peer(
        &mut self,
        _src: &Buffer,
        _src_offset: u64,
        _dst: &Buffer,
        _dst_offset: u64,
        _bytes: u64,
    ) -> Result<()> {
        Err(Error::new(Code::FeatureUnsupported, "the API has no copies between devices"))
    }
    /// Moves managed memory to a side before it is used there. `FeatureUnsupported` for other memory.
    fn prefetch(&mut self, _buffer: &Buffer, _to: Place) -> Result<()> {
        Err(managed::none())
    }
    /// Tells the driver how managed memory will be used. `FeatureUnsupported` for other memory.
    fn advise(&mut self, _buffer: &Buffer, _advice: Advice) -> Result<()> {
        Err(managed::none())
    }
    /// Where managed memory was last sent; `None` if nowhere as a whole. `FeatureUnsupported` for other memory.
    fn location(&mut self, _buffer: &Buffer) -> Result<Option<Place>> {
        Err(managed::none())
    }

    /// Waits for everything enqueued; a passed deadline is the error `LaunchTimeout`.
    fn finish(&mut self, deadline: Duration) -> Result<()> {
        let mark = self.mark()?;
        self.flush()?;
        self.wait(mark, deadline)?.in_time(deadline)
    }
}

/// One launch with its buffers.
#[derive(Clone, Debug)]
pub struct Launch {
    /// The program.
    pub program: Program,
    /// Work-items per group.
    pub group: [u32; 3],
    /// Groups per axis, each at least 1.
    pub groups: [u64; 3],
    /// Buffer arguments in the entry's order.
    pub args: Vec<Slice>,
    /// Which of `args` are written.
    pub writes: Vec<bool>,
    /// Scalar arguments after the buffers.
    pub params: Vec<Param>,
    /// Work, for the simulator.
    pub cost: Cost,
}

/// A range of a buffer.
#[derive(Clone, Debug)]
pub struct Slice {
    /// The buffer.
    pub buffer: Buffer,
    /// First byte.
    pub offset: u64,
    /// Number of bytes.
    pub bytes: u64,
}

impl Slice {
    /// The whole buffer.
    pub fn whole(buffer: &Buffer) -> Self {
        Slice { buffer: buffer.clone(), offset: 0, bytes: buffer.bytes() }
    }
}

/// A type-erased buffer, or the first part of one; released when the last clone goes.
#[derive(Clone)]
pub struct Buffer {
    held: Arc<Held>,
    bytes: u64,
}

/// A built program; released when the last clone goes.
#[derive(Clone)]
pub struct Program {
    held: Arc<Held>,
    binary: Arc<Binary>,
    stats: Arc<BuildStats>,
}

/// A program's compiled form, fetched when first asked for: on some drivers that takes longer than the build.
struct Binary {
    bytes: OnceLock<Option<Vec<u8>>>,
    fetch: Box<dyn Fn() -> Option<Vec<u8>> + Send + Sync>,
}

/// What is known about a build.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct BuildStats {
    /// Seconds the build took.
    pub seconds: f64,
    /// True if a cached binary was used.
    pub from_cache: bool,
    /// Remarks of the compiler: registers, spills, warnings.
    pub log: String,
}

struct Held {
    raw: Box<dyn Any + Send + Sync>,
    bytes: u64,
    serial: u64,
    /// Told by who traces: copies from and to page-locked memory are no copies on the device.
    pinned: AtomicBool,
    _ticket: Ticket,
}

impl Held {
    fn new(raw: impl Any + Send + Sync, bytes: u64, serial: u64, ticket: Ticket) -> Arc<Self> {
        Arc::new(Held { raw: Box::new(raw), bytes, serial, pinned: AtomicBool::new(false), _ticket: ticket })
    }

    fn raw<T: 'static>(&self, serial: u64, what: &str) -> Result<&T> {
        match self.raw.downcast_ref::<T>() {
            Some(raw) if self.serial == serial => Ok(raw),
            _ => Err(Error::new(Code::BufferForeign, format!("the {what} was made by another device"))),
        }
    }
}

impl Buffer {
    /// Wraps a backend's own buffer. `serial` is the device's.
    pub fn new(raw: impl Any + Send + Sync, bytes: u64, serial: u64, ticket: Ticket) -> Self {
        Buffer { held: Held::new(raw, bytes, serial, ticket), bytes }
    }
    /// Bytes that can be reached: those asked for at allocation, or fewer.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }
    /// The first `bytes` bytes of it, as a buffer that keeps the memory alive; all of it if there are not so many.
    pub fn first(mut self, bytes: u64) -> Buffer {
        self.bytes = self.bytes.min(bytes);
        self
    }
    /// All of the memory that this is a part of.
    pub fn whole(&self) -> Buffer {
        Buffer { held: Arc::clone(&self.held), bytes: self.held.bytes }
    }
    /// Whether there are other clones, or other parts of the same memory.
    pub fn is_shared(&self) -> bool {
        Arc::strong_count(&self.held) > 1
    }
    /// The backend's own buffer; `BufferForeign` if another device made it.
    pub fn raw<T: 'static>(&self, serial: u64) -> Result<&T> {
        self.held.raw(serial, "buffer")
    }
    /// The backend's own buffer, of whichever device of the backend.
    pub fn raw_of_any<T: 'static>(&self) -> Option<&T> {
        self.held.raw.downcast_ref::<T>()
    }
    fn set_pinned(&self) {
        self.held.pinned.store(true, Ordering::Relaxed);
    }
    fn is_pinned(&self) -> bool {
        self.held.pinned.load(Ordering::Relaxed)
    }
    /// Checks that `offset .. offset + len` lies inside.
    pub fn check(&self, offset: u64, len: u64) -> Result<()> {
        match offset.checked_add(len) {
            Some(end) if end <= self.bytes() => Ok(()),
            _ => Err(Error::new(
                Code::BufferBounds,
                format!("bytes {offset}..{offset}+{len} of a buffer of {} bytes", self.bytes()),
            )),
        }
    }
}

impl std::fmt::Debug for Buffer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Buffer({} B of device {})", self.bytes, self.held.serial)
    }
}

impl Program {
    /// Wraps a backend's own program.
    pub fn new(
        raw: impl Any + Send + Sync,
        serial: u64,
        ticket: Ticket,
        binary: Option<Vec<u8>>,
        stats: BuildStats,
    ) -> Self {
        Program {
            held: Held::new(raw, 0, serial, ticket),
            binary: Arc::new(Binary { bytes: OnceLock::from(binary), fetch: Box::new(|| None) }),
            stats: Arc::new(stats),
        }
    }
    /// The same program with a binary that is fetched when first asked for.
    pub fn with_binary(self, fetch: impl Fn() -> Option<Vec<u8>> + Send + Sync + 'static) -> Self {
        Program { binary: Arc::new(Binary { bytes: OnceLock::new(), fetch: Box::new(fetch) }), ..self }
    }
    /// The backend's own program; `BufferForeign` if another device made it.
    pub fn raw<T: 'static>(&self, serial: u64) -> Result<&T> {
        self.held.raw(serial, "program")
    }
    /// The compiled form, if the API gives one.
    pub fn binary(&self) -> Option<&[u8]> {
        self.binary.bytes.get_or_init(|| (self.binary.fetch)()).as_deref()
    }
    /// What is known about the build.
    pub fn stats(&self) -> &BuildStats {
        &self.stats
    }
}

impl std::fmt::Debug for Program {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Program(of device {})", self.held.serial)
    }
}

/// A new serial for an opened device.
pub fn next_serial() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// The error for a kind of memory that an API does not have.
pub fn no_memory_kind(kind: MemoryKind, why: &str) -> Error {
    Error::new(Code::FeatureUnsupported, format!("no {kind:?} memory: {why}"))
}
