//! What a queue or device does itself, measured and verified like an op: copies between host and device, copies on the
//! device, allocations, waits, builds.
//!
//! Every action leaves something that can be judged: the bytes that arrived, the fill of the new buffer, or the number of
//! waits and builds that did what they should.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::base::{Attrs, Case, Code, Error, HostTensor, Result};
use crate::device::{Buffer, DEADLINE, Device, Launch, MemoryKind, Queue, Slice, Source, Waited};
use crate::kernel::{self, ALLOC_TOKEN, Action, Choice, LAUNCH_TOKEN, micro, source};

use super::run::OperandBuffer;

/// An action with what it keeps between calls.
pub(super) struct Acting {
    action: Action,
    /// The host's side of a copy with pageable memory, or the count of an action without data.
    host: Vec<u8>,
    /// The host's side of a copy with another kind of memory, or the buffer that `alloc` made last.
    buffer: Option<Buffer>,
    build: Option<Build>,
}

/// What `compile` builds.
struct Build {
    choice: Choice,
    warm: bool,
    /// The compiled form of the first build, for warm ones.
    binary: Option<Vec<u8>>,
}

/// The memory named by the attribute `memory`; `None`: ordinary host memory.
fn memory_of(attrs: &Attrs, default: &str) -> Option<MemoryKind> {
    match attrs.word("memory", default) {
        "device" => Some(MemoryKind::Device),
        "pinned" => Some(MemoryKind::Pinned),
        "mapped" => Some(MemoryKind::Mapped),
        "managed" => Some(MemoryKind::Managed),
        _ => None,
    }
}

impl Acting {
    /// Prepares an action. A kind of memory that the device does not have is refused here, with the API's reason.
    pub(super) fn new(
        action: Action,
        device: &Arc<dyn Device>,
        case: &Case,
        operands: &[OperandBuffer],
    ) -> Result<Self> {
        let mut acting = Acting { action, host: Vec::new(), buffer: None, build: None };
        match action {
            Action::Upload | Action::Download => {
                if let Some(kind) = memory_of(&case.attrs, "pageable") {
                    acting.buffer = Some(device.alloc(round16(operands[0].bytes), kind)?);
                }
            }
            Action::Allocate => {
                let kind = memory_of(&case.attrs, "device").unwrap_or(MemoryKind::Device);
                device.alloc(16, kind)?;
            }
            Action::Build => {
                let choice = kernel::choose(micro::TOKEN, case, device.info(), None)?;
                let warm = case.attrs.word("mode", "cold") == "warm";
                acting.build = Some(Build { choice, warm, binary: None });
            }
            Action::Copy | Action::Wait => {}
        }
        Ok(acting)
    }

    /// Spoils what an earlier call left, so that a copy that does nothing is found.
    pub(super) fn poison(&mut self, q: &mut dyn Queue, byte: u8) -> Result<()> {
        self.host.fill(byte);
        match (&self.buffer, self.action) {
            (Some(b), _) => q.fill(b, 0, round16(b.bytes()), byte),
            _ => Ok(()),
        }
    }

    /// Takes over the host's data of an upload; false if the operand itself must receive it.
    pub(super) fn take(&mut self, q: &mut dyn Queue, bytes: &[u8]) -> Result<bool> {
        if self.action != Action::Upload {
            return Ok(false);
        }
        match &self.buffer {
            Some(staging) => q.write(staging, 0, bytes)?,
            None => self.host = bytes.to_vec(),
        }
        Ok(true)
    }

    /// Does it once.
    pub(super) fn act(
        &mut self,
        q: &mut dyn Queue,
        device: &Arc<dyn Device>,
        case: &Case,
        operands: &[OperandBuffer],
    ) -> Result<()> {
        let (first, last) = (&operands[0], &operands[operands.len() - 1]);
        match (self.action, &self.buffer) {
            (Action::Upload, None) => q.write(&last.buffer, last.head, &self.host),
            (Action::Upload, Some(from)) => q.copy(from, 0, &last.buffer, last.head, last.bytes),
            (Action::Download, None) => {
                self.host.resize(first.bytes as usize, 0);
                q.read(&first.buffer, first.head, &mut self.host)
            }
            (Action::Download, Some(to)) => q.copy(&first.buffer, first.head, to, 0, first.bytes),
            (Action::Copy, _) => q.copy(&first.buffer, first.head, &last.buffer, last.head, first.bytes),
            (Action::Allocate, _) => {
                // The buffer of the call before goes first: one allocation and one release per call.
                self.buffer = None;
                let kind = memory_of(&case.attrs, "device").unwrap_or(MemoryKind::Device);
                let fresh = device.alloc(round16(last.bytes), kind)?;
                q.fill(&fresh, 0, round16(last.bytes), ALLOC_TOKEN)?;
                self.buffer = Some(fresh);
                Ok(())
            }
            (Action::Wait, _) => {
                let mut done = 0i32;
                for _ in 0..case.dim("n") {
                    let mark = q.mark()?;
                    q.flush()?;
                    done += i32::from(q.wait(mark, DEADLINE)? == Waited::Done);
                }
                self.host = done.to_le_bytes().to_vec();
                Ok(())
            }
            (Action::Build, _) => {
                let mut right = 0i32;
                for _ in 0..case.dim("n") {
                    right += i32::from(self.build_and_run(q, device, last)?);
                }
                self.host = right.to_le_bytes().to_vec();
                Ok(())
            }
        }
    }

    /// Builds the token kernel and runs it once; true if it stored the token of this very text.
    fn build_and_run(&mut self, q: &mut dyn Queue, device: &Arc<dyn Device>, y: &OperandBuffer) -> Result<bool> {
        let none = || Error::new(Code::Internal, "nothing to build");
        let build = self.build.as_mut().ok_or_else(none)?;
        let mut step = build.choice.plan.steps.first().ok_or_else(none)?.clone();
        let token = if build.warm { LAUNCH_TOKEN } else { micro::with_token(&mut step, fresh_token()) };
        let text;
        let src = match build.choice.kernel.body {
            kernel::Body::Native(f) => Source::Native(f, step.dtype),
            _ => {
                text = source::assemble(build.choice.kernel, &step, build.choice.lang)?;
                Source::Text(&text)
            }
        };
        // What the build before stored must not pass for this one's.
        q.fill(&y.buffer, y.head, 4, 0xFF)?;
        let program = device.build(src, build.binary.as_deref())?;
        if build.warm && build.binary.is_none() {
            build.binary = program.binary().map(<[u8]>::to_vec);
        }
        q.launch(&Launch {
            program,
            group: step.group,
            groups: step.groups,
            args: vec![Slice { buffer: y.buffer.clone(), offset: y.head, bytes: round16(y.bytes) }],
            writes: step.writes,
            params: step.params,
            cost: step.cost,
        })?;
        let mut stored = [0u8; 4];
        q.read(&y.buffer, y.head, &mut stored)?;
        Ok(i32::from_le_bytes(stored) == token)
    }

    /// Puts what the action left into `out`; false if the operand itself holds it.
    pub(super) fn give(&self, q: &mut dyn Queue, out: &mut HostTensor) -> Result<bool> {
        match (self.action, &self.buffer) {
            (Action::Download | Action::Wait | Action::Build, None) => {
                if self.host.len() != out.bytes().len() {
                    return Err(Error::new(Code::Internal, "the action has not been done"));
                }
                out.bytes_mut().copy_from_slice(&self.host);
                Ok(true)
            }
            (Action::Download | Action::Allocate, Some(from)) => {
                if !out.is_empty() {
                    q.read(from, 0, out.bytes_mut())?;
                }
                Ok(true)
            }
            _ => Ok(false),
        }
    }
}

/// A token that no earlier build has had, in this process or another: drivers keep caches on disk.
fn fresh_token() -> i32 {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    let begun = since.map_or(0, |d| d.as_micros() as u32);
    let count = NEXT.fetch_add(1, Ordering::Relaxed);
    // Positive, so that every language spells it as one literal.
    (begun.wrapping_add(count.wrapping_mul(0x9E37_79B1)) >> 1) as i32
}

/// Whole words.
pub(super) fn round4(bytes: u64) -> u64 {
    bytes.div_ceil(4) * 4
}

/// Whole lines of 16 bytes, at least one.
pub(super) fn round16(bytes: u64) -> u64 {
    bytes.max(1).div_ceil(16) * 16
}
