//! An in-order queue with profiling.
//!
//! A mark is no command of its own: it keeps the event of the last command before it (in an in-order queue, that one
//! done means all done) and of the first command after it, so that a span's device time runs from the start of the
//! first command to the end of the last and holds no idle time before them. Waiting polls the event's status, because
//! neither clFinish nor clWaitForEvents takes a deadline.

use std::collections::VecDeque;
use std::ffi::c_void;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use opencl3::command_queue::{
    enqueue_copy_buffer, enqueue_copy_buffer_rect, enqueue_fill_buffer, enqueue_map_buffer, enqueue_nd_range_kernel,
    enqueue_read_buffer, enqueue_read_buffer_rect, enqueue_unmap_mem_object, enqueue_write_buffer,
    enqueue_write_buffer_rect, flush,
};
use opencl3::event::{
    CL_COMPLETE, CL_EVENT_COMMAND_EXECUTION_STATUS, CL_PROFILING_COMMAND_END, CL_PROFILING_COMMAND_START,
    get_event_info, get_event_profiling_info, release_event,
};
use opencl3::kernel::set_kernel_arg;
use opencl3::memory::{
    CL_BUFFER_CREATE_TYPE_REGION, CL_MAP_READ, CL_MAP_WRITE_INVALIDATE_REGION, cl_buffer_region, create_sub_buffer,
    release_mem_object,
};
use opencl3::types::{CL_BLOCKING, cl_event, cl_map_flags};

use crate::base::{Code, Error, Result};
use crate::device::{
    Advice, Block, Buffer, DEADLINE, Kind, Launch, Mark, Pitch, Place, Queue, Slice, Span, Ticket, Waited, rows,
};
use crate::kernel::Param;

use super::sys::{Handle, Raw};
use super::{ClBuffer, ClProgram, Host, Shared};

/// Marks that are remembered.
const MARKS: usize = 64;
/// A short kernel takes 10 to 60 microseconds; until then the waiting thread does not give its core away.
const SPIN: Duration = Duration::from_micros(20);
/// Then it lets others run (the driver's own threads, on a software device) ...
const YIELD: Duration = Duration::from_micros(200);
/// ... and then sleeps for a sixteenth of the time waited, so that oversleeping stays within a few percent.
const SLEEP: (Duration, Duration) = (Duration::from_micros(20), Duration::from_millis(1));

struct Event {
    handle: Handle,
    _ticket: Ticket,
}

/// A mark and what surrounds it.
struct Stamp {
    /// Host time of the call.
    host: f64,
    /// The last command before; none if there was none.
    before: Option<Arc<Event>>,
    /// The first command after, once there is one.
    after: Option<Arc<Event>>,
}

/// One queue of a device.
pub(super) struct OpenclQueue {
    pub(super) shared: Arc<Shared>,
    pub(super) queue: Handle,
    last: Option<Arc<Event>>,
    marks: VecDeque<Stamp>,
    /// Number of the first mark in `marks`.
    first: u64,
    unflushed: bool,
    _ticket: Ticket,
}

impl OpenclQueue {
    pub(super) fn new(shared: Arc<Shared>, queue: Handle) -> Self {
        let ticket = shared.ledger.enter(Kind::Queue, 0);
        OpenclQueue { shared, queue, last: None, marks: VecDeque::new(), first: 0, unflushed: false, _ticket: ticket }
    }

    fn mem(&self, buffer: &Buffer) -> Result<Raw> {
        Ok(buffer.raw::<ClBuffer>(self.shared.serial)?.mem.raw())
    }

    /// Whether the host's side of a buffer is reached by mapping it.
    fn is_mapped(&self, buffer: &Buffer) -> Result<bool> {
        Ok(!matches!(buffer.raw::<ClBuffer>(self.shared.serial)?.host, Host::Copied))
    }

    /// Takes over the event of a command that was just enqueued.
    pub(super) fn enqueued(
        &mut self,
        call: &str,
        event: std::result::Result<cl_event, i32>,
        otherwise: Code,
    ) -> Result<()> {
        let raw = event.map_err(|status| self.shared.fail(call, status, otherwise))?;
        let ledger = &self.shared.ledger;
        let event = Arc::new(Event {
            handle: Handle::new(raw, "event", release_event, ledger),
            _ticket: ledger.enter(Kind::Event, 0),
        });
        #[cfg(test)]
        leak::one_of_a_thousand(self.shared.serial, &event);
        for stamp in self.marks.iter_mut().rev().take_while(|s| s.after.is_none()) {
            stamp.after = Some(Arc::clone(&event));
        }
        self.last = Some(event);
        self.unflushed = true;
        Ok(())
    }

    /// True when the command is done; an error if it failed.
    fn done(&self, event: &Event) -> Result<bool> {
        // The conversion cannot panic: cl3 answers this query with an int.
        match get_event_info(event.handle.raw(), CL_EVENT_COMMAND_EXECUTION_STATUS).map(i32::from) {
            Ok(CL_COMPLETE) => Ok(true),
            Ok(status) if status < 0 => Err(self.shared.fail("a command failed", status, Code::LaunchFailed)),
            Ok(_) => Ok(false),
            Err(status) => Err(self.shared.fail("clGetEventInfo", status, Code::LaunchFailed)),
        }
    }

    fn wait_for(&mut self, event: &Event, deadline: Duration) -> Result<Waited> {
        self.flush()?;
        let start = Instant::now();
        loop {
            if self.done(event)? {
                return Ok(Waited::Done);
            }
            let waited = start.elapsed();
            if waited >= deadline {
                return Ok(Waited::Timeout);
            }
            if waited < SPIN {
                std::hint::spin_loop();
            } else if waited < YIELD {
                std::thread::yield_now();
            } else {
                std::thread::sleep((waited / 16).clamp(SLEEP.0, SLEEP.1).min(deadline - waited));
            }
        }
    }

    /// Waits for all earlier work. Blocking transfers have no deadline of their own; after this only the transfer is
    /// left to wait for.
    fn drain(&mut self) -> Result<()> {
        let Some(event) = self.last.clone() else { return Ok(()) };
        match self.wait_for(&event, DEADLINE)? {
            Waited::Done => Ok(()),
            Waited::Timeout => {
                let why = format!("work before a transfer was not finished within {:.0} s", DEADLINE.as_secs_f64());
                Err(Error::new(Code::LaunchTimeout, why).device(&self.shared.info.id))
            }
        }
    }

    /// Maps a region of a buffer for the host, lets `touch` have it, and unmaps it. All earlier work is done.
    fn with_mapped(
        &mut self,
        mem: Raw,
        offset: u64,
        bytes: usize,
        how: cl_map_flags,
        touch: impl FnOnce(*mut u8),
    ) -> Result<()> {
        let mut host = std::ptr::null_mut();
        // SAFETY: the region lies inside the buffer; the call blocks, so `host` is the region's address at return.
        let event = unsafe {
            enqueue_map_buffer(
                self.queue.raw(),
                mem,
                CL_BLOCKING,
                how,
                offset as usize,
                bytes,
                &mut host,
                0,
                std::ptr::null(),
            )
        };
        self.enqueued("clEnqueueMapBuffer", event, Code::MapFailed)?;
        touch(host.cast());
        // SAFETY: mapped just above, unmapped once.
        let event = unsafe { enqueue_unmap_mem_object(self.queue.raw(), mem, host, 0, std::ptr::null()) };
        self.enqueued("clEnqueueUnmapMemObject", event, Code::MapFailed)
    }

    fn stamp(&self, mark: Mark) -> Result<&Stamp> {
        let index = mark.0.checked_sub(self.first).and_then(|i| self.marks.get(usize::try_from(i).ok()?));
        index.ok_or_else(|| {
            Error::new(Code::Internal, format!("mark {} is forgotten or belongs to another queue", mark.0))
        })
    }

    /// The memory object of a kernel argument: the buffer itself, or a part of it that lives until the launch is
    /// enqueued (OpenCL keeps it until the launch is done).
    fn argument(&self, slice: &Slice) -> Result<(Raw, Option<Handle>)> {
        let s = &self.shared;
        slice.buffer.check(slice.offset, slice.bytes)?;
        let whole = self.mem(&slice.buffer)?;
        if slice.offset == 0 {
            return Ok((whole, None));
        }
        if !slice.offset.is_multiple_of(s.align) || slice.bytes == 0 {
            let why = format!("slices start at multiples of {} bytes and are not empty", s.align);
            return Err(Error::new(Code::BufferBounds, why).device(&s.info.id));
        }
        let region = cl_buffer_region { origin: slice.offset as usize, size: slice.bytes as usize };
        // SAFETY: `region` matches the type given and lives through the call; 0 inherits the buffer's flags.
        let part =
            unsafe { create_sub_buffer(whole, 0, CL_BUFFER_CREATE_TYPE_REGION, (&raw const region).cast::<c_void>()) };
        let part = part.map_err(|status| s.fail("clCreateSubBuffer", status, Code::BufferBounds))?;
        Ok((part, Some(Handle::new(part, "sub-buffer", release_mem_object, &s.ledger))))
    }

    /// Checks what the driver would report badly or not at all.
    fn check_launch(&self, launch: &Launch, takes: u32) -> Result<[usize; 3]> {
        let info = &self.shared.info;
        let bad = |code: Code, why: String| Err(Error::new(code, why).device(&info.id));
        let given = launch.args.len() + launch.params.len();
        if given != takes as usize {
            return bad(Code::Internal, format!("the kernel takes {takes} arguments, {given} are given"));
        }
        for (i, a) in launch.args.iter().enumerate() {
            let written = |i: usize| launch.writes.get(i).copied().unwrap_or(false);
            for (j, b) in launch.args.iter().enumerate().take(i) {
                if self.mem(&a.buffer)? == self.mem(&b.buffer)? && (written(i) || written(j)) {
                    return bad(Code::BadArgument, "a written buffer may appear only once in a launch".into());
                }
            }
        }
        let items = launch.group.iter().map(|g| u64::from(*g)).product::<u64>();
        if items == 0 || items > u64::from(info.max_group) {
            return bad(Code::LaunchTooLarge, format!("groups of {items}; the device allows {}", info.max_group));
        }
        let mut global = [0usize; 3];
        #[allow(clippy::needless_range_loop, reason = "four arrays share the index")]
        for d in 0..3 {
            let fits = (1..=info.max_groups[d]).contains(&launch.groups[d]);
            let size = launch.groups[d].checked_mul(u64::from(launch.group[d])).and_then(|s| usize::try_from(s).ok());
            match size {
                Some(size) if fits => global[d] = size,
                _ => {
                    let why = format!("{:?} groups; the device takes 1 to {:?}", launch.groups, info.max_groups);
                    return bad(Code::LaunchTooLarge, why);
                }
            }
        }
        Ok(global)
    }
}

/// A block's first byte and its sides as OpenCL takes them: bytes, rows, slices; and the bytes from row to row, which must be a
/// row's at least, even of one row.
fn rect(at: Pitch, block: Block) -> ([usize; 3], [usize; 3], usize) {
    let pitch = if block.rows > 1 { at.pitch } else { block.row_bytes };
    // An origin is a row and a byte in it; PoCL wants the byte within the row.
    let (row, byte) = (at.offset / pitch, at.offset % pitch);
    ([byte as usize, row as usize, 0], [block.row_bytes as usize, block.rows as usize, 1], pitch as usize)
}

/// Whether a block of rows may be given to the driver in one call: of rows that wrap around a pitch it knows nothing.
fn in_one(at: Pitch, block: Block) -> bool {
    block.rows <= 1 || at.offset % at.pitch + block.row_bytes <= at.pitch
}

/// Sets one argument by value.
fn set<T>(kernel: Raw, index: u32, value: &T) -> std::result::Result<(), i32> {
    // SAFETY: the pointer is valid for the size given; the driver compares the size with the argument's and copies.
    unsafe { set_kernel_arg(kernel, index, size_of::<T>(), std::ptr::from_ref(value).cast::<c_void>()) }
}

impl Queue for OpenclQueue {
    fn write(&mut self, dst: &Buffer, offset: u64, data: &[u8]) -> Result<()> {
        dst.check(offset, data.len() as u64)?;
        let mem = self.mem(dst)?;
        if data.is_empty() {
            return Ok(());
        }
        self.drain()?;
        if self.is_mapped(dst)? {
            return self.with_mapped(mem, offset, data.len(), CL_MAP_WRITE_INVALIDATE_REGION, |host| {
                // SAFETY: the region that was mapped is as long as `data`, and nobody else reads or writes it before it is
                // unmapped: this queue is idle, and memory that other queues work on is locked by whoever shares it.
                unsafe { std::ptr::copy_nonoverlapping(data.as_ptr(), host, data.len()) }
            });
        }
        // SAFETY: the range lies inside the buffer; the call blocks, so `data` outlives the copy.
        let event = unsafe {
            enqueue_write_buffer(
                self.queue.raw(),
                mem,
                CL_BLOCKING,
                offset as usize,
                data.len(),
                data.as_ptr().cast::<c_void>(),
                0,
                std::ptr::null(),
            )
        };
        self.enqueued("clEnqueueWriteBuffer", event, Code::TransferFailed)
    }

    fn read(&mut self, src: &Buffer, offset: u64, out: &mut [u8]) -> Result<()> {
        src.check(offset, out.len() as u64)?;
        let mem = self.mem(src)?;
        if out.is_empty() {
            return Ok(());
        }
        self.drain()?;
        if self.is_mapped(src)? {
            return self.with_mapped(mem, offset, out.len(), CL_MAP_READ, |host| {
                // SAFETY: the region that was mapped is as long as `out` and holds what the finished work wrote.
                unsafe { std::ptr::copy_nonoverlapping(host, out.as_mut_ptr(), out.len()) }
            });
        }
        // SAFETY: the range lies inside the buffer; the call blocks, so `out` is borrowed for the whole copy.
        let event = unsafe {
            enqueue_read_buffer(
                self.queue.raw(),
                mem,
                CL_BLOCKING,
                offset as usize,
                out.len(),
                out.as_mut_ptr().cast::<c_void>(),
                0,
                std::ptr::null(),
            )
        };
        self.enqueued("clEnqueueReadBuffer", event, Code::TransferFailed)
    }

    fn copy(&mut self, src: &Buffer, src_offset: u64, dst: &Buffer, dst_offset: u64, bytes: u64) -> Result<()> {
        src.check(src_offset, bytes)?;
        dst.check(dst_offset, bytes)?;
        let (from, to) = (self.mem(src)?, self.mem(dst)?);
        if bytes == 0 {
            return Ok(());
        }
        // SAFETY: both ranges lie inside their buffers, which the driver keeps until the copy is done.
        let event = unsafe {
            enqueue_copy_buffer(
                self.queue.raw(),
                from,
                to,
                src_offset as usize,
                dst_offset as usize,
                bytes as usize,
                0,
                std::ptr::null(),
            )
        };
        self.enqueued("clEnqueueCopyBuffer", event, Code::TransferFailed)
    }

    fn write_rows(&mut self, dst: &Buffer, to: Pitch, data: &[u8], from: Pitch, block: Block) -> Result<()> {
        rows::check_write(dst, to, data, from, block)?;
        if block.rows <= 1 || block.is_empty() || !in_one(to, block) {
            return rows::write(self, dst, to, data, from, block);
        }
        let mem = self.mem(dst)?;
        self.drain()?;
        let ((origin, region, pitch), data) = (rect(to, block), &data[from.offset as usize..]);
        // SAFETY: both blocks were checked to lie inside; the call blocks, so `data` outlives the copy; the arrays live through
        // the call.
        let event = unsafe {
            enqueue_write_buffer_rect(
                self.queue.raw(),
                mem,
                CL_BLOCKING,
                origin.as_ptr(),
                [0usize; 3].as_ptr(),
                region.as_ptr(),
                pitch,
                0,
                from.pitch as usize,
                0,
                data.as_ptr().cast::<c_void>(),
                0,
                std::ptr::null(),
            )
        };
        self.enqueued("clEnqueueWriteBufferRect", event, Code::TransferFailed)
    }

    fn read_rows(&mut self, src: &Buffer, from: Pitch, out: &mut [u8], to: Pitch, block: Block) -> Result<()> {
        rows::check_read(src, from, out, to, block)?;
        if block.rows <= 1 || block.is_empty() || !in_one(from, block) {
            return rows::read(self, src, from, out, to, block);
        }
        let mem = self.mem(src)?;
        self.drain()?;
        let ((origin, region, pitch), out) = (rect(from, block), &mut out[to.offset as usize..]);
        // SAFETY: both blocks were checked to lie inside; the call blocks, so `out` is borrowed for the whole copy; the arrays
        // live through the call.
        let event = unsafe {
            enqueue_read_buffer_rect(
                self.queue.raw(),
                mem,
                CL_BLOCKING,
                origin.as_ptr(),
                [0usize; 3].as_ptr(),
                region.as_ptr(),
                pitch,
                0,
                to.pitch as usize,
                0,
                out.as_mut_ptr().cast::<c_void>(),
                0,
                std::ptr::null(),
            )
        };
        self.enqueued("clEnqueueReadBufferRect", event, Code::TransferFailed)
    }

    fn copy_rows(&mut self, src: &Buffer, from: Pitch, dst: &Buffer, to: Pitch, block: Block) -> Result<()> {
        rows::check_copy(src, from, dst, to, block)?;
        let (a, b) = (self.mem(src)?, self.mem(dst)?);
        // Within one buffer the driver wants equal pitches, and more.
        if block.rows <= 1 || block.is_empty() || a == b || !in_one(from, block) || !in_one(to, block) {
            return rows::copy(self, src, from, dst, to, block);
        }
        let ((src_origin, region, src_pitch), (dst_origin, _, dst_pitch)) = (rect(from, block), rect(to, block));
        // SAFETY: both blocks were checked to lie inside their buffers, which the driver keeps until the copy is done; the arrays
        // live through the call.
        let event = unsafe {
            enqueue_copy_buffer_rect(
                self.queue.raw(),
                a,
                b,
                src_origin.as_ptr(),
                dst_origin.as_ptr(),
                region.as_ptr(),
                src_pitch,
                0,
                dst_pitch,
                0,
                0,
                std::ptr::null(),
            )
        };
        self.enqueued("clEnqueueCopyBufferRect", event, Code::TransferFailed)
    }

    fn prefetch(&mut self, buffer: &Buffer, to: Place) -> Result<()> {
        self.sent(buffer, to)
    }

    fn advise(&mut self, buffer: &Buffer, _: Advice) -> Result<()> {
        self.advised(buffer)
    }

    fn location(&mut self, buffer: &Buffer) -> Result<Option<Place>> {
        self.place_of(buffer)
    }

    fn fill(&mut self, dst: &Buffer, offset: u64, bytes: u64, value: u8) -> Result<()> {
        dst.check(offset, bytes)?;
        let mem = self.mem(dst)?;
        if !(offset | bytes).is_multiple_of(4) {
            return Err(Error::new(Code::BadArgument, "fills start and end at multiples of 4 bytes"));
        }
        if bytes == 0 {
            return Ok(());
        }
        // Offset and length must be multiples of the pattern's length; a longer pattern fills faster.
        let pattern = [value; 16];
        let length = if (offset | bytes).is_multiple_of(16) { 16 } else { 4 };
        // SAFETY: the range lies inside the buffer; the pattern is copied before the call returns.
        let event = unsafe {
            enqueue_fill_buffer(
                self.queue.raw(),
                mem,
                pattern.as_ptr().cast::<c_void>(),
                length,
                offset as usize,
                bytes as usize,
                0,
                std::ptr::null(),
            )
        };
        self.enqueued("clEnqueueFillBuffer", event, Code::TransferFailed)
    }

    fn launch(&mut self, launch: &Launch) -> Result<()> {
        let shared = Arc::clone(&self.shared);
        let program = launch.program.raw::<ClProgram>(shared.serial)?;
        let global = self.check_launch(launch, program.args)?;
        let local = launch.group.map(|g| g as usize);
        let mems = launch.args.iter().map(|a| self.argument(a)).collect::<Result<Vec<_>>>()?;
        let kernel = program.kernel.lock().unwrap_or_else(PoisonError::into_inner);
        let raw = kernel.raw();
        let buffers = mems.iter().zip(0..).map(|((mem, _), i)| set(raw, i, mem));
        let scalars = launch.params.iter().zip(mems.len() as u32..).map(|(p, i)| match p {
            Param::U64(v) => set(raw, i, v),
            Param::F32(v) => set(raw, i, v),
            Param::F64(v) => set(raw, i, v),
            Param::I32(v) => set(raw, i, v),
            Param::U32(v) => set(raw, i, v),
            Param::I64(v) => set(raw, i, v),
            Param::Wide(v) => set(raw, i, v),
        });
        for (i, result) in buffers.chain(scalars).enumerate() {
            result.map_err(|s| shared.fail(&format!("clSetKernelArg {i}"), s, Code::LaunchFailed))?;
        }
        // SAFETY: kernel and queue belong to one context, all arguments are set, and the sizes are three each. The text
        // stays inside its buffers for these parameters (tests/opencl.rs checks the bytes behind every operand).
        let event = unsafe {
            enqueue_nd_range_kernel(
                self.queue.raw(),
                raw,
                3,
                std::ptr::null(),
                global.as_ptr(),
                local.as_ptr(),
                0,
                std::ptr::null(),
            )
        };
        drop(kernel);
        self.enqueued("clEnqueueNDRangeKernel", event, Code::LaunchFailed)
    }

    fn mark(&mut self) -> Result<Mark> {
        if self.marks.len() == MARKS {
            self.marks.pop_front();
            self.first += 1;
        }
        self.marks.push_back(Stamp { host: self.shared.clock.now(), before: self.last.clone(), after: None });
        Ok(Mark(self.first + self.marks.len() as u64 - 1))
    }

    fn flush(&mut self) -> Result<()> {
        if self.unflushed {
            flush(self.queue.raw()).map_err(|status| self.shared.fail("clFlush", status, Code::LaunchFailed))?;
            self.unflushed = false;
        }
        Ok(())
    }

    fn wait(&mut self, mark: Mark, deadline: Duration) -> Result<Waited> {
        // A forgotten mark lies before the oldest remembered one.
        let event = self.stamp(Mark(mark.0.max(self.first)))?.before.clone();
        event.map_or(Ok(Waited::Done), |event| self.wait_for(&event, deadline))
    }

    /// Without a mark: each would keep an event until 64 later ones, and a soak that counts events would see them grow.
    fn finish(&mut self, deadline: Duration) -> Result<()> {
        self.flush()?;
        match self.last.clone() {
            Some(event) => self.wait_for(&event, deadline)?.in_time(deadline),
            None => Ok(()),
        }
    }

    fn span(&mut self, from: Mark, to: Mark) -> Result<Span> {
        let (a, b) = (self.stamp(from)?, self.stamp(to)?);
        let host = b.host - a.host;
        let (Some(first), Some(last)) = (&a.after, &b.before) else {
            // No command lies between the marks.
            return Ok(Span { device: Some(0.0), host });
        };
        if from >= to || a.before.as_ref().is_some_and(|e| Arc::ptr_eq(e, last)) {
            return Ok(Span { device: Some(0.0), host });
        }
        if !self.done(last)? {
            return Err(Error::new(Code::Internal, "a span needs marks that were waited for"));
        }
        // Some drivers give no times for some commands; the host's time is then all there is. The conversion cannot
        // panic: cl3 answers these queries with a ulong.
        let at = |event: &Event, what| get_event_profiling_info(event.handle.raw(), what).map(u64::from).ok();
        let device = at(first, CL_PROFILING_COMMAND_START)
            .zip(at(last, CL_PROFILING_COMMAND_END))
            .and_then(|(start, end)| end.checked_sub(start))
            .map(|ns| ns as f64 * 1e-9);
        Ok(Span { device, host })
    }
}

/// A leak as a driver's user makes it, for the test of the detector of leaks: in test builds alone.
#[cfg(test)]
pub(crate) mod leak {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

    /// Serial number of the device whose events are not all released; 0: of none.
    pub(crate) static OF: AtomicU64 = AtomicU64::new(0);
    static COMMANDS: AtomicU64 = AtomicU64::new(0);

    /// The event of every thousandth command is never given to `clReleaseEvent`.
    pub(super) fn one_of_a_thousand(serial: u64, event: &Arc<super::Event>) {
        if OF.load(SeqCst) == serial && (COMMANDS.fetch_add(1, SeqCst) + 1).is_multiple_of(1000) {
            std::mem::forget(Arc::clone(event));
        }
    }
}
