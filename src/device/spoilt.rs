//! A decorator that spoils results on their way back, or memory around them, by any rule that a test can write: for the
//! judge's own tests and `verify --self-test`. `faulty` plants the faults that have names and schedules.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::base::{Clock, DeviceClass, DeviceInfo, Result};

use super::{
    Buffer, Device, Health, Launch, Ledger, Mark, MemoryKind, MemoryState, Program, Queue, Source, Span, Waited,
};

/// Changes what is read: the bytes, and how many reads of results came before.
pub type Edit = Arc<dyn Fn(&mut [u8], u64) + Send + Sync>;

/// A device whose results are spoilt.
pub struct Spoilt {
    inner: Arc<dyn Device>,
    info: DeviceInfo,
    edit: Edit,
    /// Reads at this offset are of results.
    at: u64,
    reads: Arc<AtomicU64>,
    /// After each launch four zero bytes go to this byte of the last operand's buffer.
    overrun: Option<u64>,
}

impl std::fmt::Debug for Spoilt {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Spoilt({})", self.info.id)
    }
}

impl Spoilt {
    /// Spoils reads that begin at byte `at` of a buffer (where operands begin).
    pub fn new(inner: Arc<dyn Device>, at: u64, edit: impl Fn(&mut [u8], u64) + Send + Sync + 'static) -> Self {
        let mut info = inner.info().clone();
        info.id = "spoilt:0".into();
        info.uid = "spoilt:0".into();
        info.notes.push("results are spoilt on purpose".into());
        Spoilt { inner, info, edit: Arc::new(edit), at, reads: Arc::default(), overrun: None }
    }

    /// The device as it is, but that it says this of itself.
    pub fn posing(inner: Arc<dyn Device>, info: DeviceInfo) -> Spoilt {
        Spoilt { info, ..Spoilt::new(inner, u64::MAX, |_, _| {}) }
    }

    /// The same as a GPU: so that kernels as planned for GPUs run on a processor's driver.
    pub fn as_gpu(inner: Arc<dyn Device>) -> Spoilt {
        let notes = vec!["planned for as a GPU".into()];
        // No record of the real device's may be taken for one of these kernels.
        let uid = "spoilt:0".into();
        let info = DeviceInfo { class: DeviceClass::Discrete, notes, uid, ..inner.info().clone() };
        Spoilt::posing(inner, info)
    }

    /// Writes four zero bytes at this byte of the last operand's buffer after each launch.
    pub fn overrun(mut self, at: u64) -> Self {
        self.overrun = Some(at);
        self
    }

    /// What it says of itself, to be changed.
    pub fn info_mut(&mut self) -> &mut DeviceInfo {
        &mut self.info
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
        Ok(Box::new(SpoiltQueue {
            inner: self.inner.queue()?,
            edit: Arc::clone(&self.edit),
            at: self.at,
            reads: Arc::clone(&self.reads),
            overrun: self.overrun,
        }))
    }
    fn tap(&self) -> Option<&super::tap::Tap> {
        self.inner.tap()
    }
    fn health(&self) -> Health {
        self.inner.health()
    }
}

struct SpoiltQueue {
    inner: Box<dyn Queue>,
    edit: Edit,
    at: u64,
    reads: Arc<AtomicU64>,
    overrun: Option<u64>,
}

impl Queue for SpoiltQueue {
    fn write(&mut self, dst: &Buffer, offset: u64, data: &[u8]) -> Result<()> {
        self.inner.write(dst, offset, data)
    }
    fn read(&mut self, src: &Buffer, offset: u64, out: &mut [u8]) -> Result<()> {
        self.inner.read(src, offset, out)?;
        if offset == self.at {
            (self.edit)(out, self.reads.fetch_add(1, Ordering::SeqCst));
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
    fn copy_peer(&mut self, src: &Buffer, from: u64, dst: &Buffer, to: u64, bytes: u64) -> Result<()> {
        self.inner.copy_peer(src, from, dst, to, bytes)
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
