//! A queue on a CUDA device: one stream of its own.
//!
//! Invariants: no call blocks on unfinished work without a deadline (copies from and to pageable memory block inside
//! the driver, so they start only when the stream is empty); none returns while a copy may still use the caller's memory;
//! buffers and programs of unfinished work stay alive.

// Calls into the driver; each block says what makes it sound.
#![allow(unsafe_code)]

use std::any::Any;
use std::collections::VecDeque;
use std::ffi::c_void;
use std::ptr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use cudarc::driver::sys;

use crate::base::{Clock, Code, DType, Error, Result};
use crate::device::{
    Advice, Block, Buffer, DEADLINE, Launch, Mark, Pitch, Place, Program, Queue, Sequence, Span, Ticket, Waited,
};

use super::cublas::{Cublas, GemmCall, Handle};
use super::driver::{Context, Event, Memory, Module};
use super::graph::Graph;
use super::launch;

/// What a program is on this device.
pub(super) enum Loaded {
    /// A kernel.
    Kernel(Module),
    /// cuBLAS's matrix product of this dtype.
    Gemm(DType),
}

/// Largest launch of the device.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    pub(super) group: u32,
    pub(super) group_axes: [u32; 3],
    pub(super) groups: [u64; 3],
}

/// Marks that are remembered; the trait promises 64.
const MARKS: usize = 128;
/// After so many commands, or commands that touched so many bytes, a fence lets finished work's buffers go.
const FENCE_COMMANDS: u64 = 256;
const FENCE_BYTES: u64 = 256 << 20;

/// What unfinished work needs.
#[allow(dead_code, reason = "kept for their drop")]
pub(super) enum Keep {
    Buffer(Buffer),
    Program(Program),
    Graph(Arc<Graph>),
}

struct Marked {
    id: u64,
    event: Event,
    /// Commands issued before the mark.
    issued: u64,
    host: f64,
}

/// A stream that the program made, and what keeps it alive.
pub(super) struct Given {
    pub(super) stream: sys::CUstream,
    pub(super) owner: Arc<dyn Any + Send + Sync>,
}

pub(super) struct CudaQueue {
    pub(super) ctx: Arc<Context>,
    pub(super) serial: u64,
    clock: Arc<dyn Clock>,
    limits: Limits,
    pub(super) stream: sys::CUstream,
    /// What keeps the stream alive, if the program made it.
    owner: Option<Arc<dyn Any + Send + Sync>>,
    library: Option<&'static Cublas>,
    /// Made at the first product: a handle takes tens of MiB on the device.
    cublas: Option<Handle>,
    idle: Vec<Event>,
    marks: VecDeque<Marked>,
    next: u64,
    /// Commands issued, and how many of them are known to be done.
    issued: u64,
    done: u64,
    held: VecDeque<(u64, Keep)>,
    fences: VecDeque<(u64, Event)>,
    fenced: u64,
    unfenced_bytes: u64,
    _ticket: Ticket,
}

// SAFETY: the driver API is thread-safe, and the queue is used by one thread at a time (&mut self).
unsafe impl Send for CudaQueue {}

impl CudaQueue {
    pub(super) fn new(
        ctx: &Arc<Context>,
        serial: u64,
        clock: Arc<dyn Clock>,
        limits: Limits,
        library: Option<&'static Cublas>,
        given: Option<&Given>,
        ticket: Ticket,
    ) -> Result<CudaQueue> {
        let mut stream = given.map_or(ptr::null_mut(), |g| g.stream);
        if given.is_none() {
            let _bound = ctx.bind()?;
            // CU_STREAM_NON_BLOCKING: no hidden waits for the legacy default stream of other code in the process.
            // SAFETY: `stream` lives through the call; the context is current.
            ctx.check(unsafe { sys::cuStreamCreate(&raw mut stream, 1) }, "cuStreamCreate", Code::Internal)?;
        }
        Ok(CudaQueue {
            ctx: Arc::clone(ctx),
            serial,
            clock,
            limits,
            stream,
            owner: given.map(|g| Arc::clone(&g.owner)),
            library,
            cublas: None,
            idle: Vec::new(),
            marks: VecDeque::new(),
            next: 0,
            issued: 0,
            done: 0,
            held: VecDeque::new(),
            fences: VecDeque::new(),
            fenced: 0,
            unfenced_bytes: 0,
            _ticket: ticket,
        })
    }

    /// Whether the program made the stream.
    pub(super) fn is_given(&self) -> bool {
        self.owner.is_some()
    }

    /// An event recorded behind everything issued. The context must be current.
    fn record(&mut self) -> Result<Event> {
        let event = match self.idle.pop() {
            Some(event) => event,
            None => Event::new(&self.ctx)?,
        };
        // SAFETY: event and stream are alive and of the current context.
        let rc = unsafe { sys::cuEventRecord(event.raw, self.stream) };
        self.ctx.check(rc, "cuEventRecord", Code::LaunchFailed)?;
        Ok(event)
    }

    /// Notes one issued command and keeps what it needs.
    pub(super) fn issue(&mut self, buffers: impl IntoIterator<Item = Buffer>, program: Option<&Program>) -> Result<()> {
        self.issued += 1;
        for buffer in buffers {
            self.unfenced_bytes = self.unfenced_bytes.saturating_add(buffer.bytes());
            self.held.push_back((self.issued, Keep::Buffer(buffer)));
        }
        if let Some(program) = program {
            self.held.push_back((self.issued, Keep::Program(program.clone())));
        }
        if self.issued - self.fenced >= FENCE_COMMANDS || self.unfenced_bytes >= FENCE_BYTES {
            let event = self.record()?;
            self.fences.push_back((self.issued, event));
            (self.fenced, self.unfenced_bytes) = (self.issued, 0);
            while let Some((issued, event)) = self.fences.pop_front() {
                if !event.done()? {
                    self.fences.push_front((issued, event));
                    break;
                }
                self.idle.push(event);
                self.finished(issued);
            }
        }
        Ok(())
    }

    /// Keeps what the next command needs until it is done.
    pub(super) fn keep(&mut self, what: Keep) {
        self.held.push_back((self.issued + 1, what));
    }

    /// Everything up to command number `issued` is done: what it needed may go.
    fn finished(&mut self, issued: u64) {
        self.done = self.done.max(issued);
        while self.held.front().is_some_and(|(n, _)| *n <= self.done) {
            self.held.pop_front();
        }
        while self.fences.front().is_some_and(|(n, _)| *n <= self.done) {
            if let Some((_, event)) = self.fences.pop_front() {
                self.idle.push(event);
            }
        }
    }

    /// Waits for everything issued; the error `LaunchTimeout` after `deadline`.
    fn drain(&mut self, deadline: Duration) -> Result<()> {
        if self.done == self.issued { Ok(()) } else { self.wait_for_all(deadline) }
    }

    /// Waits until the stream is empty; the error `LaunchTimeout` after `deadline`. What the program put into a stream of its
    /// own is in none of our numbers.
    pub(super) fn clear(&mut self, deadline: Duration) -> Result<()> {
        if self.is_given() { self.wait_for_all(deadline) } else { self.drain(deadline) }
    }

    /// Notes the copy just enqueued, which uses the caller's memory and `buffer`, and waits for it. The caller does with that
    /// memory as it likes afterwards, so that nothing ends the wait but the copy or the context: it began on an empty stream,
    /// and what stops it for longer than the deadline stops a copy of pageable memory inside the driver, too.
    pub(super) fn landed(&mut self, buffer: &Buffer) -> Result<()> {
        let landed = self.issue([buffer.clone()], None).and_then(|()| self.drain(DEADLINE));
        if landed.is_err() {
            // What it answers adds nothing to the error at hand: the copy is over, or the context with all its work.
            // SAFETY: the stream is alive and of the current context.
            let _ = unsafe { sys::cuStreamSynchronize(self.stream) };
        }
        landed
    }

    fn wait_for_all(&mut self, deadline: Duration) -> Result<()> {
        let event = self.record()?;
        let waited = poll(&event, deadline);
        self.idle.push(event);
        match waited? {
            Waited::Done => {
                self.finished(self.issued);
                Ok(())
            }
            Waited::Timeout => Err(Error::new(
                Code::LaunchTimeout,
                format!("earlier work did not finish within {:.1} s", deadline.as_secs_f64()),
            )),
        }
    }

    pub(super) fn address(&self, buffer: &Buffer, offset: u64) -> Result<u64> {
        Ok(buffer.raw::<Memory>(self.serial)?.address + offset)
    }

    fn launch_kernel(&mut self, module: &Module, launch: &Launch) -> Result<()> {
        let ctx = Arc::clone(&self.ctx);
        let _bound = ctx.bind()?;
        self.enqueue_kernel(module, launch)?;
        self.issue(launch.args.iter().map(|s| s.buffer.clone()), Some(&launch.program))
    }

    /// Checks a launch and puts it in the stream. The context must be current; the caller keeps what the launch names.
    pub(super) fn enqueue_kernel(&self, module: &Module, launch: &Launch) -> Result<()> {
        let mut words = launch::words(launch, module, self.limits, self.serial)?;
        let mut pointers: Vec<*mut c_void> = words.iter_mut().map(|w| ptr::from_mut(w).cast()).collect();
        let ([gx, gy, gz], [x, y, z]) = (launch.groups.map(|g| g as u32), launch.group);
        // SAFETY: function and stream are alive and of the current context; the pointers lead to as many values, of the
        // sizes, as the kernel takes (checked by `words` where the driver can tell, by tests of texts against plans
        // otherwise); slices lie inside their buffers, which the caller keeps alive.
        let rc = unsafe {
            sys::cuLaunchKernel(
                module.function,
                gx,
                gy,
                gz,
                x,
                y,
                z,
                0,
                self.stream,
                pointers.as_mut_ptr(),
                ptr::null_mut(),
            )
        };
        self.ctx.check(rc, "cuLaunchKernel", Code::LaunchFailed)
    }

    fn launch_gemm(&mut self, dtype: DType, launch: &Launch) -> Result<()> {
        let (3, [m, n, k, ta, tb, alpha, beta, rest @ ..]) = (launch.args.len(), launch.params.as_slice()) else {
            return Err(Error::new(Code::Internal, "a product takes A, B, C and m, n, k, transA, transB, alpha, beta"));
        };
        launch::check_apart(launch, self.serial)?;
        let [m, n, k] = [m, n, k].map(|p| p.u64());
        // Of many products one more: how many.
        let batches = rest.first().map_or(1, |b| b.u64());
        let mut addresses = [0; 3];
        for (i, (slice, (rows, columns))) in launch.args.iter().zip([(m, k), (k, n), (m, n)]).enumerate() {
            slice.buffer.check(slice.offset, slice.bytes)?;
            let needed = [columns, batches, dtype.size()].iter().try_fold(rows, |all, n| all.checked_mul(*n));
            if needed.is_none_or(|b| b > slice.bytes) {
                return Err(Error::new(
                    Code::BufferBounds,
                    format!("{batches} matrices of {rows} by {columns} {dtype} in {} bytes", slice.bytes),
                ));
            }
            addresses[i] = self.address(&slice.buffer, slice.offset)?;
        }
        let call = GemmCall {
            dtype,
            batches,
            sizes: [m, n, k],
            trans: [ta.u64() == 1, tb.u64() == 1],
            alpha: alpha.f64(),
            beta: beta.f64(),
            a: addresses[0],
            b: addresses[1],
            c: addresses[2],
        };
        let Some(library) = self.library else {
            return Err(Error::new(Code::LibraryNotFound, "cuBLAS was not found"));
        };
        let ctx = Arc::clone(&self.ctx);
        let _bound = ctx.bind()?;
        let handle = match &mut self.cublas {
            Some(handle) => handle,
            // SAFETY: the context is current, and the queue drops the handle before its stream.
            none => none.insert(unsafe { Handle::new(library, self.stream.cast()) }?),
        };
        // SAFETY: the context is current; the slices were checked to hold the matrices and are kept alive below.
        unsafe { handle.gemm(&call) }?;
        self.issue(launch.args.iter().map(|s| s.buffer.clone()), Some(&launch.program))
    }
}

/// Asks until the event is done: at first without pause, then ever more rarely, so that short work is seen at once and
/// long work costs no processor.
fn poll(event: &Event, deadline: Duration) -> Result<Waited> {
    let start = Instant::now();
    let mut pause = Duration::from_micros(10);
    loop {
        if event.done()? {
            return Ok(Waited::Done);
        }
        let waited = start.elapsed();
        if waited >= deadline {
            return Ok(Waited::Timeout);
        }
        if waited < Duration::from_micros(100) {
            std::hint::spin_loop();
        } else if waited < Duration::from_millis(1) {
            std::thread::yield_now();
        } else {
            std::thread::sleep(pause.min(deadline - waited));
            pause = (pause * 2).min(Duration::from_micros(500));
        }
    }
}

impl Queue for CudaQueue {
    fn write(&mut self, dst: &Buffer, offset: u64, data: &[u8]) -> Result<()> {
        dst.check(offset, data.len() as u64)?;
        let to = self.address(dst, offset)?;
        let pinned = dst.raw::<Memory>(self.serial)?.is_pinned();
        if data.is_empty() {
            return Ok(());
        }
        let ctx = Arc::clone(&self.ctx);
        let _bound = ctx.bind()?;
        self.clear(DEADLINE)?;
        if let Some(host) = dst.raw::<Memory>(self.serial)?.mapped() {
            // SAFETY: the range lies inside live memory that the host addresses, and all work of this queue that uses it is done.
            unsafe { ptr::copy_nonoverlapping(data.as_ptr(), host.add(offset as usize), data.len()) };
            return Ok(());
        }
        let from: *const c_void = data.as_ptr().cast();
        // SAFETY: the target lies inside a live buffer, the source is `data`. Pageable memory is staged before the call
        // returns; where a driver reads it later after all, `landed` keeps `data` borrowed until it is done.
        let rc = unsafe {
            if pinned {
                sys::cuMemcpyAsync(to, from.expose_provenance() as u64, data.len(), self.stream)
            } else {
                sys::cuMemcpyHtoDAsync_v2(to, from, data.len(), self.stream)
            }
        };
        ctx.check(rc, "copy to the device", Code::TransferFailed)?;
        self.landed(dst)
    }

    fn read(&mut self, src: &Buffer, offset: u64, out: &mut [u8]) -> Result<()> {
        src.check(offset, out.len() as u64)?;
        let from = self.address(src, offset)?;
        let pinned = src.raw::<Memory>(self.serial)?.is_pinned();
        if out.is_empty() {
            return Ok(());
        }
        let ctx = Arc::clone(&self.ctx);
        let _bound = ctx.bind()?;
        self.clear(DEADLINE)?;
        if let Some(host) = src.raw::<Memory>(self.serial)?.mapped() {
            // SAFETY: as in `write`.
            unsafe { ptr::copy_nonoverlapping(host.add(offset as usize), out.as_mut_ptr(), out.len()) };
            return Ok(());
        }
        let to: *mut c_void = out.as_mut_ptr().cast();
        // SAFETY: the source lies inside a live buffer, the target is `out`, which `landed` keeps borrowed until it is written.
        let rc = unsafe {
            if pinned {
                sys::cuMemcpyAsync(to.expose_provenance() as u64, from, out.len(), self.stream)
            } else {
                sys::cuMemcpyDtoHAsync_v2(to, from, out.len(), self.stream)
            }
        };
        ctx.check(rc, "copy from the device", Code::TransferFailed)?;
        self.landed(src)
    }

    fn copy(&mut self, src: &Buffer, src_offset: u64, dst: &Buffer, dst_offset: u64, bytes: u64) -> Result<()> {
        src.check(src_offset, bytes)?;
        dst.check(dst_offset, bytes)?;
        let (from, to) = (self.address(src, src_offset)?, self.address(dst, dst_offset)?);
        if bytes == 0 {
            return Ok(());
        }
        if from < to + bytes && to < from + bytes {
            return Err(Error::new(Code::BadArgument, "the ranges of a copy overlap"));
        }
        let ctx = Arc::clone(&self.ctx);
        let _bound = ctx.bind()?;
        // SAFETY: both ranges lie inside live buffers, do not overlap, and the buffers are kept alive below. The driver
        // tells device from page-locked host memory by the address (one address space on all 64-bit systems).
        let rc = unsafe { sys::cuMemcpyAsync(to, from, bytes as usize, self.stream) };
        ctx.check(rc, "copy on the device", Code::TransferFailed)?;
        self.issue([src.clone(), dst.clone()], None)
    }

    fn fill(&mut self, dst: &Buffer, offset: u64, bytes: u64, value: u8) -> Result<()> {
        dst.check(offset, bytes)?;
        if !offset.is_multiple_of(4) || !bytes.is_multiple_of(4) {
            return Err(Error::new(Code::BadArgument, "offset and length of a fill are multiples of 4"));
        }
        let to = self.address(dst, offset)?;
        if bytes == 0 {
            return Ok(());
        }
        let ctx = Arc::clone(&self.ctx);
        let _bound = ctx.bind()?;
        let word = u32::from_ne_bytes([value; 4]);
        // SAFETY: the range lies inside a live buffer that is kept alive below; allocations are aligned to 256 bytes.
        let rc = unsafe { sys::cuMemsetD32Async(to, word, bytes as usize / 4, self.stream) };
        ctx.check(rc, "fill", Code::TransferFailed)?;
        self.issue([dst.clone()], None)
    }

    fn launch(&mut self, launch: &Launch) -> Result<()> {
        match launch.program.raw::<Loaded>(self.serial)? {
            Loaded::Kernel(module) => self.launch_kernel(module, launch),
            Loaded::Gemm(dtype) => self.launch_gemm(*dtype, launch),
        }
    }

    fn write_rows(&mut self, dst: &Buffer, to: Pitch, data: &[u8], from: Pitch, block: Block) -> Result<()> {
        self.write_block(dst, to, data, from, block)
    }
    fn read_rows(&mut self, src: &Buffer, from: Pitch, out: &mut [u8], to: Pitch, block: Block) -> Result<()> {
        self.read_block(src, from, out, to, block)
    }
    fn copy_rows(&mut self, src: &Buffer, from: Pitch, dst: &Buffer, to: Pitch, block: Block) -> Result<()> {
        self.copy_block(src, from, dst, to, block)
    }
    fn copy_peer(&mut self, src: &Buffer, src_offset: u64, dst: &Buffer, dst_offset: u64, bytes: u64) -> Result<()> {
        self.peer(src, src_offset, dst, dst_offset, bytes)
    }
    fn prefetch(&mut self, buffer: &Buffer, to: Place) -> Result<()> {
        self.prefetch_to(buffer, to)
    }
    fn advise(&mut self, buffer: &Buffer, advice: Advice) -> Result<()> {
        self.advised(buffer, advice)
    }
    fn location(&mut self, buffer: &Buffer) -> Result<Option<Place>> {
        self.located(buffer)
    }

    fn sequence(&mut self, launches: Vec<Launch>) -> Result<Sequence> {
        self.record_sequence(launches)
    }
    fn replay(&mut self, sequence: &Sequence) -> Result<()> {
        self.replay_sequence(sequence)
    }

    fn mark(&mut self) -> Result<Mark> {
        let ctx = Arc::clone(&self.ctx);
        let _bound = ctx.bind()?;
        if self.marks.len() >= MARKS
            && let Some(old) = self.marks.pop_front()
        {
            self.idle.push(old.event);
        }
        let event = self.record()?;
        let id = self.next;
        self.next += 1;
        self.marks.push_back(Marked { id, event, issued: self.issued, host: self.clock.now() });
        Ok(Mark(id))
    }

    fn flush(&mut self) -> Result<()> {
        // The driver hands work over at once; there is nothing to push.
        Ok(())
    }

    fn wait(&mut self, mark: Mark, deadline: Duration) -> Result<Waited> {
        if mark.0 >= self.next {
            return Err(Error::new(Code::Internal, "the mark belongs to another queue"));
        }
        let ctx = Arc::clone(&self.ctx);
        let _bound = ctx.bind()?;
        // A forgotten mark lies before the oldest known one: waiting for that is enough.
        let Some(marked) = self.marks.iter().find(|m| m.id >= mark.0) else {
            return Err(Error::new(Code::Internal, "no mark is remembered"));
        };
        let issued = marked.issued;
        let waited = poll(&marked.event, deadline)?;
        if waited == Waited::Done {
            self.finished(issued);
        }
        Ok(waited)
    }

    /// The mark is nobody's: its event serves the next one, so that a soak that counts events sees none grow.
    fn finish(&mut self, deadline: Duration) -> Result<()> {
        let mark = self.mark()?;
        self.wait(mark, deadline)?.in_time(deadline)?;
        if let Some(own) = self.marks.pop_back_if(|m| m.id == mark.0) {
            self.idle.push(own.event);
        }
        Ok(())
    }

    fn span(&mut self, from: Mark, to: Mark) -> Result<Span> {
        let find = |mark: Mark| {
            self.marks
                .iter()
                .find(|m| m.id == mark.0)
                .ok_or_else(|| Error::new(Code::Internal, format!("mark {} is forgotten or of another queue", mark.0)))
        };
        let (first, last) = (find(from)?, find(to)?);
        let _bound = self.ctx.bind()?;
        let mut milliseconds = 0f32;
        // The old symbol on purpose: drivers before 12.8 lack its successor, and every driver keeps this one.
        // SAFETY: both events are alive and recorded; the number lives through the call.
        let rc = unsafe { sys::cuEventElapsedTime(&raw mut milliseconds, first.event.raw, last.event.raw) };
        if rc == sys::CUresult::CUDA_ERROR_NOT_READY {
            return Err(Error::new(Code::Internal, "the marks were not waited for"));
        }
        self.ctx.check(rc, "cuEventElapsedTime", Code::Internal)?;
        Ok(Span { device: Some(f64::from(milliseconds) * 1e-3), host: last.host - first.host })
    }
}

/// How long dropping a queue waits for its work.
const FAREWELL: Duration = Duration::from_secs(10);

impl Drop for CudaQueue {
    fn drop(&mut self) {
        let ctx = Arc::clone(&self.ctx);
        let drained = ctx.bind().and_then(|_bound| self.drain(FAREWELL));
        if let Err(e) = drained {
            // Releasing what a hung or broken device still uses could block for ever or free memory under it: it is
            // left to the end of the process instead.
            if ctx.poison().is_none() {
                ctx.ledger.release_failed(format!("a queue was dropped with unfinished work: {e}"));
            }
            std::mem::forget((std::mem::take(&mut self.held), self.cublas.take()));
            std::mem::forget((std::mem::take(&mut self.fences), std::mem::take(&mut self.marks)));
            return;
        }
        if let Ok(_bound) = ctx.bind() {
            // Before its stream, with the context current.
            self.cublas = None;
        }
        if self.owner.is_none() {
            // SAFETY: made by cuStreamCreate, released once; nothing is pending.
            ctx.release("cuStreamDestroy", || unsafe { sys::cuStreamDestroy_v2(self.stream) });
        }
    }
}
