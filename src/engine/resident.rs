//! Arrays that stay in a device's memory: copied there once, computed with often, copied back when somebody wants to see them.
//!
//! ```
//! use gpuctl::base::Attrs;
//! use gpuctl::engine::Engine;
//!
//! # fn main() -> gpuctl::base::Result<()> {
//! let engine = Engine::builder().profile("preset:always-cpu").build()?;
//! let device = engine.on("cpu")?; // or `opencl:0`, `cuda:0`, ...
//! let x = device.upload(&[-1.0f32, 0.0, 2.5])?;
//! let y = device.run("relu", &[&x], &Attrs::new())?.remove(0).typed::<f32>()?;
//! let mut out = [0.0; 3];
//! y.download(&mut out)?;
//! assert_eq!(out, [0.0, 0.0, 2.5]);
//! # Ok(())
//! # }
//! ```
//!
//! Invariants: an array keeps its memory and its device alive, as long as any view of it lives; every call has ended when it
//! returns, so that any thread may make the next one with the same arrays; who writes an array waits for those who read it, and
//! the other way round. Not here: ops on arrays (`target`), copies that nobody waits in and between devices (`transfer`).

use std::marker::PhantomData;
use std::ops::{Deref, Range};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::Duration;

use crate::base::{Class, Code, DType, Element, Error, HostTensor, Result, host};
use crate::device::{Advice, Block, Buffer, MemoryKind, Pitch, Place, Queue};

use super::operand::{round4, round16};
use super::pool::Rented;
use super::run::{self, Runner};

/// Bytes behind every array, as behind every operand.
const TAIL: u64 = 64;

/// Copies of an engine's arrays so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Transfers {
    /// Copies from the host to a device.
    pub uploads: u64,
    /// Their bytes.
    pub upload_bytes: u64,
    /// Copies from a device to the host.
    pub downloads: u64,
    /// Their bytes.
    pub download_bytes: u64,
    /// Copies within a device.
    pub copies: u64,
    /// Their bytes.
    pub copy_bytes: u64,
    /// How many of all these no call asked for by name: operands that an op changes in place, views that begin where the device
    /// allows no operand to, pairs of [`super::Synced`] that were brought up to date.
    pub implicit: u64,
}

#[derive(Debug, Default)]
pub(super) struct Traffic {
    counts: [AtomicU64; 7],
}

/// A kind of copy.
#[derive(Clone, Copy)]
pub(super) enum Way {
    Up = 0,
    Down = 2,
    Within = 4,
}

impl Traffic {
    pub(super) fn add(&self, way: Way, bytes: u64) {
        self.counts[way as usize].fetch_add(1, Ordering::Relaxed);
        self.counts[way as usize + 1].fetch_add(bytes, Ordering::Relaxed);
    }

    /// A copy that was counted was nobody's wish.
    pub(super) fn implicit(&self) {
        self.counts[6].fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn all(&self) -> Transfers {
        let [uploads, upload_bytes, downloads, download_bytes, copies, copy_bytes, implicit] =
            std::array::from_fn(|i| self.counts[i].load(Ordering::Relaxed));
        Transfers { uploads, upload_bytes, downloads, download_bytes, copies, copy_bytes, implicit }
    }
}

/// An opened device as arrays need it.
#[derive(Clone)]
pub(super) struct Home {
    pub(super) runner: Arc<Runner>,
    pub(super) traffic: Arc<Traffic>,
    pub(super) deadline: Duration,
}

impl Home {
    pub(super) fn id(&self) -> &str {
        &self.runner.device().info().id
    }

    pub(super) fn is(&self, other: &Home) -> bool {
        self.runner.device().serial() == other.runner.device().serial()
    }

    /// Work on a queue of the device; all of it has ended at return.
    pub(super) fn queued<T>(&self, work: impl FnOnce(&mut dyn Queue) -> Result<T>) -> Result<T> {
        let mut lease = self.runner.lease_in_turn(self.deadline.saturating_mul(2))?;
        let all = || {
            let q = lease.queue()?;
            let done = work(q)?;
            q.finish(self.deadline)?;
            Ok(done)
        };
        all().map_err(|e: Error| {
            // What the queue still holds is unknown, unless it took nothing.
            if e.class() != Class::Usage {
                lease.discard();
            }
            if e.class() == Class::Lost {
                run::bury((), lease);
            }
            e.device(self.id())
        })
    }

    /// New memory for so many bytes.
    pub(super) fn memory(&self, bytes: u64, kind: MemoryKind) -> Result<Arc<Memory>> {
        let wide = bytes.checked_add(TAIL + 16);
        wide.ok_or_else(|| Error::new(Code::SizeOverflow, format!("{bytes} bytes")).device(self.id()))?;
        let size = round16(bytes) + TAIL;
        let buffer = match kind {
            MemoryKind::Device => self.runner.memory(size),
            other => self.runner.device().alloc(size, other).map(Rented::from),
        };
        Ok(self.holding(buffer.map_err(|e| e.device(self.id()))?, kind))
    }

    pub(super) fn holding(&self, buffer: Rented, kind: MemoryKind) -> Arc<Memory> {
        let (unsettled, kept) = (AtomicBool::new(false), AtomicBool::new(false));
        Arc::new(Memory { buffer, kind, lock: RwLock::default(), unsettled, kept, home: self.clone() })
    }
}

/// Memory of one device; it goes back when the last array that lies in it goes.
pub(super) struct Memory {
    pub(super) buffer: Rented,
    kind: MemoryKind,
    /// Held by whoever reads or writes the bytes.
    lock: RwLock<()>,
    /// Work on it failed, and may go on.
    unsettled: AtomicBool,
    /// It is a version of a [`super::Synced`], which nobody may change behind its back.
    kept: AtomicBool,
    pub(super) home: Home,
}

impl Drop for Memory {
    fn drop(&mut self) {
        if *self.unsettled.get_mut() {
            self.buffer.discard();
        }
    }
}

impl Memory {
    /// From now on nobody writes here but its keeper.
    pub(super) fn keep(&self) {
        self.kept.store(true, Ordering::Release);
    }

    /// Work on it failed, and may go on: it is not lent again.
    pub(super) fn fail(&self) {
        self.unsettled.store(true, Ordering::Release);
    }

    /// The same for a failure, but for one of the request itself.
    pub(super) fn tell<T>(&self, result: Result<T>) -> Result<T> {
        if result.as_ref().is_err_and(|e| e.class() != Class::Usage) {
            self.fail();
        }
        result
    }
}

/// Keeps others from memory while it is worked on.
pub(super) enum Hold<'m> {
    Read(#[allow(dead_code, reason = "held, not looked at")] RwLockReadGuard<'m, ()>),
    Write(#[allow(dead_code, reason = "held, not looked at")] RwLockWriteGuard<'m, ()>),
}

/// Holds all of this memory, each once, always in the same order, so that no two callers wait for each other.
pub(super) fn hold<'m>(read: &[&'m Resident], written: impl IntoIterator<Item = &'m Resident>) -> Vec<Hold<'m>> {
    let mut all: Vec<(&'m Memory, bool)> = read.iter().map(|r| (&*r.memory, false)).collect();
    all.extend(written.into_iter().map(|w| (&*w.memory, true)));
    // Of one that is both read and written the write comes first and stands for both.
    all.sort_by_key(|(m, write)| (std::ptr::from_ref(*m).addr(), !*write));
    all.dedup_by_key(|(m, _)| std::ptr::from_ref(*m).addr());
    all.into_iter()
        .map(|(m, write)| match write {
            true => Hold::Write(m.lock.write().unwrap_or_else(PoisonError::into_inner)),
            false => Hold::Read(m.lock.read().unwrap_or_else(PoisonError::into_inner)),
        })
        .collect()
}

/// An array in a device's memory, or a part of one: dense, row-major. Clones and views are the same memory.
#[derive(Clone)]
pub struct Resident {
    pub(super) memory: Arc<Memory>,
    /// First byte.
    pub(super) offset: u64,
    pub(super) bytes: u64,
    pub(super) dtype: DType,
    pub(super) shape: Vec<u64>,
}

impl std::fmt::Debug for Resident {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Resident({} {:?} on {})", self.dtype, self.shape, self.device_id())
    }
}

impl Resident {
    /// Uninitialised.
    pub(super) fn new(home: &Home, dtype: DType, shape: &[u64], kind: MemoryKind) -> Result<Self> {
        let bytes = host::count(shape)?
            .checked_mul(dtype.size())
            .ok_or_else(|| Error::new(Code::SizeOverflow, format!("{shape:?} of {dtype}")).device(home.id()))?;
        Ok(Resident { memory: home.memory(bytes, kind)?, offset: 0, bytes, dtype, shape: shape.to_vec() })
    }

    /// Number type of the elements.
    pub fn dtype(&self) -> DType {
        self.dtype
    }
    /// Extents, outermost first.
    pub fn shape(&self) -> &[u64] {
        &self.shape
    }
    /// Number of elements.
    pub fn len(&self) -> usize {
        (self.bytes / self.dtype.size()) as usize
    }
    /// True if there is no element.
    pub fn is_empty(&self) -> bool {
        self.bytes == 0
    }
    /// Id of the device that it lies on.
    pub fn device_id(&self) -> &str {
        self.memory.home.id()
    }
    /// The kind of memory that it lies in.
    pub fn kind(&self) -> MemoryKind {
        self.memory.kind
    }

    pub(super) fn home(&self) -> &Home {
        &self.memory.home
    }

    pub(super) fn fail(&self, code: Code, why: impl Into<String>) -> Error {
        Error::new(code, why).device(self.device_id())
    }

    /// The same elements in another shape. Errors: `ShapeMismatch` if the numbers of elements differ.
    pub fn reshape(&self, shape: &[u64]) -> Result<Resident> {
        if host::count(shape)? != self.len() as u64 {
            let why = format!("{:?} holds {} elements, {shape:?} does not", self.shape, self.len());
            return Err(self.fail(Code::ShapeMismatch, why));
        }
        Ok(Resident { shape: shape.to_vec(), ..self.clone() })
    }

    /// Elements `range`, as a one-dimensional array in the same memory: nothing is copied, what is written to the one is seen in
    /// the other, and the memory stays as long as either lives.
    ///
    /// Errors: `BadArgument` for a range that is not inside.
    pub fn view(&self, range: Range<usize>) -> Result<Resident> {
        if range.start > range.end || range.end > self.len() {
            let why = format!("elements {}..{} of an array of {}", range.start, range.end, self.len());
            return Err(self.fail(Code::BadArgument, why));
        }
        let size = self.dtype.size();
        Ok(Resident {
            offset: self.offset + range.start as u64 * size,
            bytes: range.len() as u64 * size,
            shape: vec![range.len() as u64],
            ..self.clone()
        })
    }

    /// Moves the array's memory to a side before it is used there: managed memory alone ([`super::Target::zeros`]).
    ///
    /// Errors: `FeatureUnsupported` with the reason for other memory, and where the driver moves none on request.
    pub fn prefetch(&self, to: Place) -> Result<()> {
        let _hold = hold(&[self], None);
        self.memory.tell(self.home().queued(|q| q.prefetch(&self.memory.buffer, to)))
    }

    /// Tells the driver how the array's managed memory will be used. It changes speed, never results. Errors: as
    /// [`Resident::prefetch`].
    pub fn advise(&self, advice: Advice) -> Result<()> {
        let _hold = hold(&[self], None);
        self.home().queued(|q| q.advise(&self.memory.buffer, advice))
    }

    /// Where the array's managed memory was last sent; `None` if nowhere as a whole. Errors: as [`Resident::prefetch`].
    pub fn location(&self) -> Result<Option<Place>> {
        let _hold = hold(&[self], None);
        self.home().queued(|q| q.location(&self.memory.buffer))
    }

    /// The array with its dtype in the type. Errors: `DTypeMismatch`.
    pub fn typed<T: Element>(self) -> Result<DeviceVec<T>> {
        if self.dtype != T::DTYPE {
            let why = format!("the array holds {}, {} was asked for", self.dtype, T::DTYPE);
            return Err(self.fail(Code::DTypeMismatch, why));
        }
        Ok(DeviceVec { array: self, of: PhantomData })
    }

    /// The elements as a tensor in host memory.
    pub fn to_tensor(&self) -> Result<HostTensor> {
        let mut t = HostTensor::zeros(self.dtype, &self.shape)?;
        self.get(t.bytes_mut())?;
        Ok(t)
    }

    /// Copies all bytes to the host.
    pub(super) fn get(&self, out: &mut [u8]) -> Result<()> {
        let _hold = hold(&[self], None);
        if !out.is_empty() {
            self.memory.tell(self.home().queued(|q| q.read(&self.memory.buffer, self.offset, out)))?;
        }
        self.home().traffic.add(Way::Down, self.bytes);
        Ok(())
    }

    /// Copies all bytes from the host.
    pub(super) fn set(&self, data: &[u8]) -> Result<()> {
        let _hold = hold(&[], Some(self));
        if !data.is_empty() {
            self.memory.tell(self.home().queued(|q| q.write(&self.memory.buffer, self.offset, data)))?;
        }
        self.home().traffic.add(Way::Up, self.bytes);
        Ok(())
    }

    /// The error of a host slice that is not as long as the array.
    pub(super) fn fits(&self, len: usize) -> Result<()> {
        if len == self.len() {
            return Ok(());
        }
        let why = format!("the array has {} elements, the host's slice {len}", self.len());
        Err(self.fail(Code::ShapeMismatch, why))
    }

    /// Enqueues a copy of these bytes to the beginning of `to`, which nobody else has yet; false if the device cannot.
    pub(super) fn enqueue_copy(&self, q: &mut dyn Queue, to: &Buffer) -> Result<bool> {
        if self.bytes == 0 {
            return Ok(true);
        }
        // Whole words where the beginning allows: there is room behind every array.
        let bytes = if self.offset.is_multiple_of(4) { round4(self.bytes) } else { self.bytes };
        match q.copy(&self.memory.buffer, self.offset, to, 0, bytes) {
            Err(e) if e.code() == Code::FeatureUnsupported => Ok(false),
            other => other.map(|()| true),
        }
    }
}

/// An array of `T` in a device's memory: a [`Resident`] with its dtype in the type.
///
/// [`super::Target::upload`] makes one of a slice, [`DeviceVec::download`] copies it to a slice.
pub struct DeviceVec<T: Element> {
    pub(super) array: Resident,
    pub(super) of: PhantomData<T>,
}

impl<T: Element> Clone for DeviceVec<T> {
    fn clone(&self) -> Self {
        DeviceVec { array: self.array.clone(), of: PhantomData }
    }
}

impl<T: Element> std::fmt::Debug for DeviceVec<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.array.fmt(f)
    }
}

impl<T: Element> Deref for DeviceVec<T> {
    type Target = Resident;
    fn deref(&self) -> &Resident {
        &self.array
    }
}

impl<T: Element> From<DeviceVec<T>> for Resident {
    fn from(typed: DeviceVec<T>) -> Resident {
        typed.array
    }
}

/// Where rows lie in an array or a slice, in elements.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rows {
    /// First element of the first row.
    pub first: usize,
    /// Elements from the beginning of one row to that of the next; at least a row's length.
    pub pitch: usize,
}

impl Rows {
    fn bytes(self, size: u64, offset: u64) -> Result<Pitch> {
        let overflow = || Error::new(Code::SizeOverflow, format!("{self:?} of elements of {size} bytes"));
        let times = |n: usize| (n as u64).checked_mul(size).ok_or_else(overflow);
        Ok(Pitch { offset: times(self.first)?.checked_add(offset).ok_or_else(overflow)?, pitch: times(self.pitch)? })
    }
}

/// Rows × columns, in bytes.
fn block(rows: usize, columns: usize, size: u64) -> Result<Block> {
    let overflow = || Error::new(Code::SizeOverflow, format!("{rows} rows of {columns} elements of {size} bytes"));
    let row_bytes = (columns as u64).checked_mul(size).ok_or_else(overflow)?;
    (rows as u64).checked_mul(row_bytes).ok_or_else(overflow)?;
    Ok(Block { rows: rows as u64, row_bytes })
}

impl<T: Element> DeviceVec<T> {
    /// Copies all elements to `out`. Errors: `ShapeMismatch` with both lengths if `out` is not as long.
    pub fn download(&self, out: &mut [T]) -> Result<()> {
        self.fits(out.len())?;
        self.get(bytemuck::cast_slice_mut(out))
    }

    /// All elements, copied.
    pub fn to_vec(&self) -> Result<Vec<T>> {
        let mut out = Vec::new();
        out.try_reserve_exact(self.len())
            .map_err(|_| self.fail(Code::OutOfHostMemory, format!("{} bytes", self.array.bytes)))?;
        out.resize(self.len(), T::zeroed());
        self.download(&mut out)?;
        Ok(out)
    }

    /// Copies `data` over all elements; views of the same memory see them. Errors: `ShapeMismatch` with both lengths,
    /// `BadArgument` for a copy that a [`super::Synced`] keeps: its data are changed there.
    pub fn overwrite(&mut self, data: &[T]) -> Result<()> {
        self.fits(data.len())?;
        self.free()?;
        self.set(bytemuck::cast_slice(data))
    }

    /// [`Resident::view`].
    pub fn view(&self, range: Range<usize>) -> Result<DeviceVec<T>> {
        Ok(DeviceVec { array: self.array.view(range)?, of: PhantomData })
    }

    /// [`Resident::reshape`].
    pub fn reshape(&self, shape: &[u64]) -> Result<DeviceVec<T>> {
        Ok(DeviceVec { array: self.array.reshape(shape)?, of: PhantomData })
    }

    /// Whether it may be written.
    pub(super) fn free(&self) -> Result<()> {
        if self.memory.kept.load(Ordering::Acquire) {
            return Err(
                self.fail(Code::BadArgument, "a Synced keeps the array; change the data by Synced::host_mut or ::set")
            );
        }
        Ok(())
    }

    /// Copies `rows` rows of `columns` elements from `data` to here.
    ///
    /// Errors: `BadArgument` for rows that overlap or leave the array and as in [`DeviceVec::overwrite`], `ShapeMismatch` for a
    /// slice that is too short, `SizeOverflow`.
    pub fn upload_rows(&mut self, to: Rows, data: &[T], from: Rows, rows: usize, columns: usize) -> Result<()> {
        let (block, size) = (block(rows, columns, T::DTYPE.size())?, T::DTYPE.size());
        let (to, from) = (self.place(to, block)?, from.bytes(size, 0)?);
        self.free()?;
        let _hold = hold(&[], [&**self]);
        let data = bytemuck::cast_slice(data);
        self.memory.tell(self.home().queued(|q| q.write_rows(&self.memory.buffer, to, data, from, block)))?;
        self.home().traffic.add(Way::Up, block.rows * block.row_bytes);
        Ok(())
    }

    /// Copies `rows` rows of `columns` elements from here to `out`; what lies between its rows stays as it is. Errors: as
    /// [`DeviceVec::upload_rows`].
    pub fn download_rows(&self, from: Rows, out: &mut [T], to: Rows, rows: usize, columns: usize) -> Result<()> {
        let (block, size) = (block(rows, columns, T::DTYPE.size())?, T::DTYPE.size());
        let (from, to) = (self.place(from, block)?, to.bytes(size, 0)?);
        let _hold = hold(&[self], None);
        let out = bytemuck::cast_slice_mut(out);
        self.memory.tell(self.home().queued(|q| q.read_rows(&self.memory.buffer, from, out, to, block)))?;
        self.home().traffic.add(Way::Down, block.rows * block.row_bytes);
        Ok(())
    }

    /// Copies `rows` rows of `columns` elements of another array of the same device to here. Errors: as
    /// [`DeviceVec::upload_rows`]; `BufferForeign` for an array of another device; `BadArgument` within one memory, where they
    /// might overlap.
    pub fn copy_rows(&mut self, to: Rows, other: &DeviceVec<T>, from: Rows, rows: usize, columns: usize) -> Result<()> {
        let block = block(rows, columns, T::DTYPE.size())?;
        let (to, from) = (self.place(to, block)?, other.place(from, block)?);
        self.apart(other)?;
        self.free()?;
        let _hold = hold(&[other], [&**self]);
        let (src, dst) = (&other.memory.buffer, &self.memory.buffer);
        let copied = self.home().queued(|q| match q.copy_rows(src, from, dst, to, block) {
            // The API moves whole words only: by way of the host, then.
            Err(e) if e.code() == Code::FeatureUnsupported => {
                let dense = Pitch { offset: 0, pitch: block.row_bytes };
                let mut all = vec![0u8; (block.rows * block.row_bytes) as usize];
                q.read_rows(src, from, &mut all, dense, block)?;
                q.write_rows(dst, to, &all, dense, block)
            }
            other => other,
        });
        self.memory.tell(other.memory.tell(copied))?;
        self.home().traffic.add(Way::Within, block.rows * block.row_bytes);
        Ok(())
    }

    /// Copies all elements of another array of the same device, of whatever kind of memory, to here. Errors: `ShapeMismatch`
    /// with both lengths, `BufferForeign`, and `BadArgument` within one memory.
    pub fn copy_from(&mut self, other: &DeviceVec<T>) -> Result<()> {
        self.fits(other.len())?;
        let all = Rows { first: 0, pitch: self.len() };
        self.copy_rows(all, other, all, 1, self.len())
    }

    /// Rows of the array as rows of its memory; `BadArgument` if they leave the array.
    fn place(&self, rows: Rows, block: Block) -> Result<Pitch> {
        let within = rows.bytes(T::DTYPE.size(), 0)?;
        let span = within.span(block)?;
        if !block.is_empty() && within.offset + span > self.array.bytes {
            let why = format!(
                "rows up to element {} of an array of {}",
                (within.offset + span) / T::DTYPE.size(),
                self.len()
            );
            return Err(self.fail(Code::BadArgument, why));
        }
        rows.bytes(T::DTYPE.size(), self.array.offset)
    }

    fn apart(&self, other: &Resident) -> Result<()> {
        if !self.home().is(other.home()) {
            let why = format!("the other array lies on {}; `to` copies between devices", other.device_id());
            return Err(self.fail(Code::BufferForeign, why));
        }
        if Arc::ptr_eq(&self.memory, &other.memory) {
            return Err(self.fail(Code::BadArgument, "both arrays lie in the same memory"));
        }
        Ok(())
    }
}
