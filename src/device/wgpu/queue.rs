//! The in-order queue: operations are collected and encoded at a flush, so that small launches share one submission.
//!
//! Scalars of the collected launches lie in one uniform buffer per queue, a slot each; it is rewritten before every
//! submission, which the API orders behind the submission before. Copies are moved in words of 4 bytes, as WebGPU asks.

use std::collections::{HashMap, VecDeque};
use std::num::NonZeroU64;
use std::sync::mpsc;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use wgpu::{BufferUsages, SubmissionIndex};

use crate::base::{Clock, Code, Result};
use crate::device::{Buffer, DEADLINE, Kind, Launch, Mark, Queue, Span, Ticket, Waited};
use crate::kernel::Param;

use super::core::Core;
use super::launch::{checked, encode_params};
use super::mapping;
use super::program::{Access, RawProgram, build};

/// Launches in one submission; also the slots of the uniform buffer.
const BATCH: usize = 128;
/// Marks that are remembered.
const MARKS: usize = 128;
/// Bytes of the values of all marks, in two parts that begin where the API lets them.
const RESOLVED: u64 = 8 * MARKS as u64 + wgpu::QUERY_RESOLVE_BUFFER_ALIGNMENT;
/// Bind groups that are kept for reuse.
const BINDS: usize = 256;
/// Bytes of host data that may wait for a submission.
const STAGED: u64 = 32 << 20;
/// Largest piece that is read back at once.
const PIECE: u64 = 64 << 20;

const FILL: &str = "
struct Params { first: u32, end: u32, value: u32 }
@group(0) @binding(0) var<storage, read_write> y: array<u32>;
@group(0) @binding(1) var<uniform> p: Params;
@compute @workgroup_size(256)
fn fill(@builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>,
        @builtin(local_invocation_index) local: u32) {
    let i = p.first + (group.y * groups.x + group.x) * 256u + local;
    if (i < p.end) { y[i] = p.value; }
}";

/// A storage buffer, rounded up to 16 bytes.
pub(super) struct RawBuffer {
    pub(super) buffer: wgpu::Buffer,
    /// A number that no other buffer of the device has.
    pub(super) number: u64,
}

impl RawBuffer {
    pub(super) fn new(core: &Core, bytes: u64) -> Result<Self> {
        let usage = BufferUsages::STORAGE | BufferUsages::COPY_SRC | BufferUsages::COPY_DST;
        let buffer = raw_buffer(core, bytes.max(1).div_ceil(16) * 16, usage, Code::AllocTooLarge)?;
        Ok(RawBuffer { buffer, number: core.buffer_number() })
    }
}

impl Drop for RawBuffer {
    /// Bind groups that are kept for reuse hold the buffer; its memory must not wait for them. Submitted work that
    /// uses it is finished first.
    fn drop(&mut self) {
        self.buffer.destroy();
    }
}

fn raw_buffer(core: &Core, size: u64, usage: BufferUsages, code: Code) -> Result<wgpu::Buffer> {
    core.guarded(code, || {
        core.device.create_buffer(&wgpu::BufferDescriptor { label: None, size, usage, mapped_at_creation: false })
    })
}

/// Something to encode.
enum Op {
    Launch { pipeline: wgpu::ComputePipeline, bind: wgpu::BindGroup, params: Option<u32>, groups: [u32; 3] },
    Copy { src: wgpu::Buffer, src_offset: u64, dst: wgpu::Buffer, dst_offset: u64, bytes: u64 },
    Clear { dst: wgpu::Buffer, offset: u64, bytes: u64 },
    Stamp(u32),
    Resolve { slots: std::ops::Range<u32>, offset: u64 },
}

/// A mark's host time and, once it is submitted, the last submission before it (`None`: nothing was ever submitted).
struct MarkAt {
    host: f64,
    submitted: Option<Option<SubmissionIndex>>,
}

/// Query set and the buffer that its values are resolved into.
struct Stamps {
    set: wgpu::QuerySet,
    resolved: wgpu::Buffer,
}

/// A host-readable buffer.
struct Staging {
    buffer: wgpu::Buffer,
    _ticket: Ticket,
}

type BindKey = (u64, Vec<(u32, u64, u64, u64)>);

/// A queue of a [`super::WgpuDevice`].
pub(super) struct WgpuQueue {
    core: Arc<Core>,
    ops: Vec<Op>,
    /// Buffers of `ops`.
    keep: Vec<Buffer>,
    /// Launches among `ops`.
    launches: usize,
    /// Bytes written since the last submission; they wait for the next one.
    staged: u64,
    last: Option<SubmissionIndex>,
    /// Bytes from slot to slot, and the scalars of `ops`.
    slot: u64,
    scalars: Vec<u8>,
    uniform: wgpu::Buffer,
    binds: HashMap<BindKey, wgpu::BindGroup>,
    staging: Option<Staging>,
    stamps: Option<Stamps>,
    marks: VecDeque<MarkAt>,
    /// Number of the first entry of `marks`.
    first_mark: u64,
    _ticket: Ticket,
}

impl WgpuQueue {
    pub(super) fn new(core: &Arc<Core>) -> Result<Self> {
        core.pump()?;
        let slot = u64::from(core.limits.min_uniform_buffer_offset_alignment).max(256);
        let usage = BufferUsages::UNIFORM | BufferUsages::COPY_DST;
        let uniform = raw_buffer(core, slot * BATCH as u64, usage, Code::Internal)?;
        let stamps = if core.tick.is_some() {
            Some(core.guarded(Code::Internal, || Stamps {
                set: core.device.create_query_set(&wgpu::QuerySetDescriptor {
                    label: None,
                    ty: wgpu::QueryType::Timestamp,
                    count: MARKS as u32,
                }),
                resolved: core.device.create_buffer(&wgpu::BufferDescriptor {
                    label: None,
                    size: RESOLVED,
                    usage: BufferUsages::QUERY_RESOLVE | BufferUsages::COPY_SRC,
                    mapped_at_creation: false,
                }),
            })?)
        } else {
            None
        };
        Ok(WgpuQueue {
            ops: Vec::new(),
            keep: Vec::new(),
            launches: 0,
            staged: 0,
            last: None,
            slot,
            scalars: Vec::new(),
            uniform,
            binds: HashMap::new(),
            staging: None,
            stamps,
            marks: VecDeque::new(),
            first_mark: 0,
            _ticket: core.ledger.enter(Kind::Queue, 0),
            core: Arc::clone(core),
        })
    }

    fn raw<'b>(&self, b: &'b Buffer) -> Result<&'b RawBuffer> {
        b.raw::<RawBuffer>(self.core.serial)
    }

    /// Encodes and submits what was collected.
    fn submit(&mut self) -> Result<()> {
        if self.ops.is_empty() && self.staged == 0 {
            self.settle();
            return self.core.usable();
        }
        let ops = std::mem::take(&mut self.ops);
        let scalars = std::mem::take(&mut self.scalars);
        let keep = std::mem::take(&mut self.keep);
        (self.launches, self.staged) = (0, 0);
        let core = &self.core;
        let result = core.guarded(Code::LaunchFailed, || {
            if !scalars.is_empty() {
                core.queue.write_buffer(&self.uniform, 0, &scalars);
            }
            if ops.is_empty() {
                return core.queue.submit([]);
            }
            let mut encoder = core.device.create_command_encoder(&Default::default());
            encode(&mut encoder, &ops, self.stamps.as_ref());
            core.queue.submit([encoder.finish()])
        });
        // Only now: a released buffer must not go before the submission that uses it.
        drop((ops, keep));
        let result = result.map(|index| self.last = Some(index));
        self.settle();
        result
    }

    /// Ties marks that wait for a submission to the last one.
    fn settle(&mut self) {
        for mark in self.marks.iter_mut().rev().take_while(|m| m.submitted.is_none()) {
            mark.submitted = Some(self.last.clone());
        }
    }

    /// Records a launch; buffers are (binding, handle, number, offset, bytes).
    fn record(
        &mut self,
        program: &RawProgram,
        buffers: &[(u32, wgpu::Buffer, u64, u64, u64)],
        scalars: &[u8],
        groups: [u32; 3],
    ) -> Result<()> {
        if self.launches == BATCH {
            self.submit()?;
        }
        let key = (program.number, buffers.iter().map(|(i, _, number, o, b)| (*i, *number, *o, *b)).collect());
        let bind = match self.binds.get(&key) {
            Some(bind) => bind.clone(),
            None => {
                let bind = self.bind(program, buffers)?;
                if self.binds.len() == BINDS {
                    self.binds.clear();
                }
                self.binds.entry(key).or_insert(bind).clone()
            }
        };
        let params = if scalars.is_empty() {
            None
        } else {
            let at = self.scalars.len();
            self.scalars.extend_from_slice(scalars);
            self.scalars.resize(at + self.slot as usize, 0);
            Some(at as u32)
        };
        self.launches += 1;
        self.ops.push(Op::Launch { pipeline: program.pipeline.clone(), bind, params, groups });
        Ok(())
    }

    fn bind(&self, program: &RawProgram, buffers: &[(u32, wgpu::Buffer, u64, u64, u64)]) -> Result<wgpu::BindGroup> {
        let part = |buffer, offset, bytes| {
            wgpu::BindingResource::Buffer(wgpu::BufferBinding { buffer, offset, size: NonZeroU64::new(bytes) })
        };
        let mut entries = Vec::with_capacity(program.bindings.len());
        for (binding, access) in &program.bindings {
            let resource = match access {
                Access::Params(bytes) => part(&self.uniform, 0, *bytes),
                _ => match buffers.iter().find(|b| b.0 == *binding) {
                    Some((_, buffer, _, offset, bytes)) => part(buffer, *offset, *bytes),
                    None => {
                        let why = format!("the text uses binding {binding}, the launch gives {}", buffers.len());
                        return Err(self.core.fail(Code::Internal, why));
                    }
                },
            };
            entries.push(wgpu::BindGroupEntry { binding: *binding, resource });
        }
        self.core.guarded(Code::LaunchFailed, || {
            self.core.device.create_bind_group(&wgpu::BindGroupDescriptor {
                label: None,
                layout: &program.layout,
                entries: &entries,
            })
        })
    }

    /// The program that fills; built once per device.
    fn filler(&self) -> Result<Arc<RawProgram>> {
        let mut slot = self.core.filler.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(p) = &*slot {
            return Ok(Arc::clone(p));
        }
        let program = Arc::new(build(&self.core, FILL, "fill", None)?);
        *slot = Some(Arc::clone(&program));
        Ok(program)
    }

    /// Copies device bytes to the host: `gather` records the copies into the staging buffer it is given.
    fn fetch(&mut self, out: &mut [u8], gather: impl FnOnce(&mut Vec<Op>, &wgpu::Buffer)) -> Result<()> {
        let bytes = (out.len() as u64).div_ceil(4) * 4;
        let staging = match self.staging.take().filter(|s| s.buffer.size() >= bytes) {
            Some(s) => s,
            None => {
                let size = bytes.next_power_of_two().max(1 << 16);
                let usage = BufferUsages::MAP_READ | BufferUsages::COPY_DST;
                let buffer = raw_buffer(&self.core, size, usage, Code::TransferFailed)?;
                Staging { buffer, _ticket: self.core.ledger.enter(Kind::Pinned, size) }
            }
        };
        gather(&mut self.ops, &staging.buffer);
        self.submit()?;
        let (tell, told) = mpsc::channel();
        self.core.guarded(Code::TransferFailed, || {
            staging.buffer.map_async(wgpu::MapMode::Read, ..bytes, move |r| {
                // The receiver is gone only after a timeout, when nobody wants to know.
                let _ = tell.send(r);
            });
        })?;
        let submission = self.last.clone().ok_or_else(|| self.core.fail(Code::Internal, "nothing was submitted"))?;
        // On a timeout or loss the staging buffer stays half mapped; it is given up with the error.
        if self.core.wait(&submission, DEADLINE)? == Waited::Timeout {
            let why = format!("data did not arrive within {:.1} s", DEADLINE.as_secs_f64());
            return Err(self.core.fail(Code::LaunchTimeout, why));
        }
        mapping::take(&self.core, &staging.buffer, &told, out)?;
        staging.buffer.unmap();
        self.staging = Some(staging);
        Ok(())
    }

    /// Hands words to the device; offset and length are multiples of 4.
    fn write_words(&mut self, dst: &Buffer, offset: u64, words: &[u8]) -> Result<()> {
        let raw = self.raw(dst)?;
        self.core.guarded(Code::TransferFailed, || self.core.queue.write_buffer(&raw.buffer, offset, words))?;
        self.staged += words.len() as u64;
        if self.staged > STAGED { self.submit() } else { Ok(()) }
    }

    /// The remembered mark.
    fn at(&self, mark: Mark) -> Result<&MarkAt> {
        let index = mark.0.checked_sub(self.first_mark).and_then(|i| self.marks.get(i as usize));
        index.ok_or_else(|| self.core.fail(Code::Internal, format!("mark {} is forgotten or foreign", mark.0)))
    }
}

fn encode(encoder: &mut wgpu::CommandEncoder, ops: &[Op], stamps: Option<&Stamps>) {
    let mut pass: Option<wgpu::ComputePass<'static>> = None;
    for op in ops {
        if let Op::Launch { pipeline, bind, params, groups: [x, y, z] } = op {
            let pass = pass.get_or_insert_with(|| encoder.begin_compute_pass(&Default::default()).forget_lifetime());
            pass.set_pipeline(pipeline);
            pass.set_bind_group(0, bind, params.as_slice());
            pass.dispatch_workgroups(*x, *y, *z);
            continue;
        }
        // The encoder is locked while a pass is open.
        pass = None;
        match op {
            Op::Launch { .. } => {}
            Op::Copy { src, src_offset, dst, dst_offset, bytes } => {
                encoder.copy_buffer_to_buffer(src, *src_offset, dst, *dst_offset, *bytes);
            }
            Op::Clear { dst, offset, bytes } => encoder.clear_buffer(dst, *offset, Some(*bytes)),
            Op::Stamp(slot) => {
                if let Some(s) = stamps {
                    encoder.write_timestamp(&s.set, *slot);
                }
            }
            Op::Resolve { slots, offset } => {
                if let Some(s) = stamps {
                    encoder.resolve_query_set(&s.set, slots.clone(), &s.resolved, *offset);
                }
            }
        }
    }
    drop(pass);
}

impl Queue for WgpuQueue {
    fn write(&mut self, dst: &Buffer, offset: u64, data: &[u8]) -> Result<()> {
        self.core.usable()?;
        dst.check(offset, data.len() as u64)?;
        self.raw(dst)?;
        if data.is_empty() {
            return Ok(());
        }
        // Host writes happen at the head of the next submission: earlier work must be in one of its own.
        if !self.ops.is_empty() {
            self.submit()?;
        }
        let (head, end) = (offset % 4, offset + data.len() as u64);
        if head == 0 && end % 4 == 0 {
            return self.write_words(dst, offset, data);
        }
        if head != 0 {
            let from = offset - head;
            let mut words = vec![0u8; (end.div_ceil(4) * 4 - from) as usize];
            let known = (dst.bytes() - from).min(words.len() as u64) as usize;
            self.read(dst, from, &mut words[..known])?;
            words[head as usize..head as usize + data.len()].copy_from_slice(data);
            return self.write_words(dst, from, &words);
        }
        let body = data.len() & !3;
        if body > 0 {
            self.write_words(dst, offset, &data[..body])?;
        }
        // The last word's other bytes stay as they are, unless they are padding behind the buffer's own.
        let mut word = [0u8; 4];
        let at = offset + body as u64;
        let known = (dst.bytes() - at).min(4) as usize;
        if known > data.len() - body {
            self.read(dst, at, &mut word[..known])?;
        }
        word[..data.len() - body].copy_from_slice(&data[body..]);
        self.write_words(dst, at, &word)
    }

    fn read(&mut self, src: &Buffer, offset: u64, out: &mut [u8]) -> Result<()> {
        self.core.usable()?;
        src.check(offset, out.len() as u64)?;
        let raw = self.raw(src)?.buffer.clone();
        let head = offset % 4;
        if head != 0 {
            let mut words = vec![0u8; out.len() + head as usize];
            self.read(src, offset - head, &mut words)?;
            out.copy_from_slice(&words[head as usize..]);
            return Ok(());
        }
        let mut at = offset;
        for piece in out.chunks_mut(PIECE as usize) {
            // Rounded up to whole words: the buffer itself is.
            let bytes = (piece.len() as u64).div_ceil(4) * 4;
            let (src, src_offset) = (raw.clone(), at);
            self.fetch(piece, |ops, staging| {
                ops.push(Op::Copy { src, src_offset, dst: staging.clone(), dst_offset: 0, bytes });
            })?;
            at += bytes;
        }
        Ok(())
    }

    fn copy(&mut self, src: &Buffer, src_offset: u64, dst: &Buffer, dst_offset: u64, bytes: u64) -> Result<()> {
        self.core.usable()?;
        src.check(src_offset, bytes)?;
        dst.check(dst_offset, bytes)?;
        let (from, to) = (self.raw(src)?, self.raw(dst)?);
        if !(src_offset | dst_offset | bytes).is_multiple_of(4) {
            let why = format!("copies move whole words: offsets {src_offset} and {dst_offset}, {bytes} bytes");
            return Err(self.core.fail(Code::FeatureUnsupported, why));
        }
        if bytes == 0 {
            return Ok(());
        }
        self.keep.extend([src.clone(), dst.clone()]);
        let (a, b) = (from.buffer.clone(), to.buffer.clone());
        if from.number != to.number {
            self.ops.push(Op::Copy { src: a, src_offset, dst: b, dst_offset, bytes });
            return Ok(());
        }
        // WebGPU has no copy within one buffer.
        let aside = RawBuffer::new(&self.core, bytes)?;
        let middle = aside.buffer.clone();
        self.keep.push(Buffer::new(aside, bytes, self.core.serial, self.core.ledger.enter(Kind::Buffer, bytes)));
        self.ops.push(Op::Copy { src: a, src_offset, dst: middle.clone(), dst_offset: 0, bytes });
        self.ops.push(Op::Copy { src: middle, src_offset: 0, dst: b, dst_offset, bytes });
        Ok(())
    }

    fn fill(&mut self, dst: &Buffer, offset: u64, bytes: u64, value: u8) -> Result<()> {
        self.core.usable()?;
        dst.check(offset, bytes)?;
        let (buffer, number) = (self.raw(dst)?.buffer.clone(), self.raw(dst)?.number);
        if !(offset | bytes).is_multiple_of(4) {
            let why = format!("fills are whole words: {offset} + {bytes}");
            return Err(self.core.fail(Code::BadArgument, why));
        }
        if bytes == 0 {
            return Ok(());
        }
        self.keep.push(dst.clone());
        if value == 0 {
            self.ops.push(Op::Clear { dst: buffer, offset, bytes });
            return Ok(());
        }
        let program = self.filler()?;
        let limits = &self.core.limits;
        let align = u64::from(limits.min_storage_buffer_offset_alignment);
        let most = limits.max_storage_buffer_binding_size / align * align;
        let across = limits.max_compute_workgroups_per_dimension.min(1 << 15);
        let (mut at, end) = (offset, offset + bytes);
        while at < end {
            let from = at - at % align;
            let to = end.min(from + most);
            let (first, last) = ((at - from) / 4, (to - from) / 4);
            let groups = u32::try_from((last - first).div_ceil(256))
                .map_err(|_| self.core.fail(Code::LaunchTooLarge, format!("a fill of {bytes} bytes")))?;
            let scalars = encode_params(
                &self.core,
                self.slot,
                &[Param::U64(first), Param::U64(last), Param::I32(i32::from_le_bytes([value; 4]))],
                1,
                &program,
            )?;
            let grid = if groups <= across { [groups, 1, 1] } else { [across, groups.div_ceil(across), 1] };
            self.record(&program, &[(0, buffer.clone(), number, from, to - from)], &scalars, grid)?;
            // A full batch was submitted and forgot its buffers.
            self.keep.push(dst.clone());
            at = to;
        }
        Ok(())
    }

    fn launch(&mut self, launch: &Launch) -> Result<()> {
        self.core.usable()?;
        let program = launch.program.raw::<RawProgram>(self.core.serial)?;
        let buffers = checked(&self.core, launch, program)?;
        let scalars = encode_params(&self.core, self.slot, &launch.params, launch.args.len(), program)?;
        let groups = launch.groups.map(|g| g as u32);
        self.record(program, &buffers, &scalars, groups)?;
        self.keep.extend(launch.args.iter().map(|s| s.buffer.clone()));
        Ok(())
    }

    fn mark(&mut self) -> Result<Mark> {
        self.core.usable()?;
        let number = self.first_mark + self.marks.len() as u64;
        if self.stamps.is_some() {
            self.ops.push(Op::Stamp((number % MARKS as u64) as u32));
        }
        if self.marks.len() == MARKS {
            self.marks.pop_front();
            self.first_mark += 1;
        }
        let idle = self.ops.is_empty() && self.staged == 0;
        self.marks.push_back(MarkAt { host: self.core.clock.now(), submitted: idle.then(|| self.last.clone()) });
        Ok(Mark(number))
    }

    fn flush(&mut self) -> Result<()> {
        self.submit()
    }

    fn wait(&mut self, mark: Mark, deadline: Duration) -> Result<Waited> {
        // A forgotten mark lies before the oldest remembered one.
        let mark = Mark(mark.0.max(self.first_mark));
        if self.at(mark)?.submitted.is_none() {
            self.submit()?;
        }
        match self.at(mark)?.submitted.clone().flatten() {
            Some(submission) => self.core.wait(&submission, deadline),
            None => self.core.usable().map(|()| Waited::Done),
        }
    }

    fn span(&mut self, from: Mark, to: Mark) -> Result<Span> {
        let mut one = self.spans(&[(from, to)]);
        one.pop().unwrap_or_else(|| Err(self.core.fail(Code::Internal, "no span was measured")))
    }

    /// In one submission, whatever their number.
    fn spans(&mut self, pairs: &[(Mark, Mark)]) -> Vec<Result<Span>> {
        let host = |(from, to): &(Mark, Mark)| -> Result<f64> { Ok(self.at(*to)?.host - self.at(*from)?.host) };
        let hosts: Vec<Result<f64>> = pairs.iter().map(host).collect();
        let known = pairs.iter().zip(&hosts).filter(|(_, h)| h.is_ok()).flat_map(|((a, b), _)| [a.0, b.0]);
        let (first, last) = known.fold((u64::MAX, 0), |(low, high), m| (low.min(m), high.max(m)));
        let (Some(tick), true) = (self.core.tick.filter(|_| self.stamps.is_some()), first <= last) else {
            return hosts.into_iter().map(|h| h.map(|host| Span { device: None, host })).collect();
        };
        let ticks = self.ticks(first, last);
        let span = |((from, to), host): (&(Mark, Mark), Result<f64>)| -> Result<Span> {
            let (host, ticks) = (host?, ticks.as_ref().map_err(|e| self.core.fail(e.code(), e.detail()))?);
            let (a, b) = (ticks[(from.0 - first) as usize], ticks[(to.0 - first) as usize]);
            // Some drivers leave zeros or run backwards; then there is no device time rather than a wrong one.
            let sane = a != 0 && b >= a;
            Ok(Span { device: sane.then(|| (b - a) as f64 * tick), host })
        };
        pairs.iter().zip(hosts).map(span).collect()
    }
}

impl WgpuQueue {
    /// The time stamps of these marks and of all between them. Every mark has one: those in between are as new as the first.
    fn ticks(&mut self, first: u64, last: u64) -> Result<Vec<u64>> {
        let Some(resolved) = self.stamps.as_ref().map(|s| s.resolved.clone()) else { return Ok(Vec::new()) };
        let slot = |m: u64| (m % MARKS as u64) as u32;
        let (from, to) = (slot(first), slot(last));
        // Slots are used in a ring.
        let parts = if from <= to { [from..to + 1, 0..0] } else { [from..MARKS as u32, 0..to + 1] };
        let mut ticks = vec![0u64; (last - first + 1) as usize];
        self.fetch(bytemuck::cast_slice_mut(&mut ticks), |ops, staging| {
            let (mut src_offset, mut dst_offset) = (0, 0);
            for slots in parts.into_iter().filter(|p| !p.is_empty()) {
                let bytes = 8 * u64::from(slots.end - slots.start);
                ops.push(Op::Resolve { slots, offset: src_offset });
                ops.push(Op::Copy { src: resolved.clone(), src_offset, dst: staging.clone(), dst_offset, bytes });
                src_offset += bytes.next_multiple_of(wgpu::QUERY_RESOLVE_BUFFER_ALIGNMENT);
                dst_offset += bytes;
            }
        })?;
        Ok(ticks)
    }
}
