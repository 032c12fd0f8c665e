//! A call that the CPU makes on the caller's memory, with all that it needs side by side.
//!
//! A kernel that worked on more than the caches hold leaves nothing else there, so each place that the next call has to look at,
//! data or code, is a miss: what [`super::Engine`] goes through for any call took 0.5 to 0.8 us after a million elements, and 30 ns
//! after a thousand; this takes 0.1 to 0.4 us and 16 ns (`cargo bench --bench placement`, a virtual Xeon with two processors).
//! [`Fast::run`] asks one question for the same reason.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::base::{DType, HostTensor, Result};
use crate::kernel::cpu::Call as NativeCall;
use crate::kernel::{CpuCtx, NativeArgs, NativeFn};

use super::Engine;
use super::route::{Planned, lies};

/// Most operands, and most dimensions of one.
const MOST: usize = 5;

/// What an operand must be.
#[derive(Clone, Copy)]
struct Want {
    dtype: DType,
    dims: usize,
    shape: [u64; MOST],
}

impl Want {
    fn of((dtype, shape): &(DType, Vec<u64>)) -> Option<Self> {
        let mut all = [0; MOST];
        all.get_mut(..shape.len())?.copy_from_slice(shape);
        Some(Want { dtype: *dtype, dims: shape.len(), shape: all })
    }

    /// 0 if an operand is one.
    #[inline(always)]
    fn differs(&self, t: &HostTensor) -> u64 {
        let other = u64::from(t.dtype != self.dtype) | (t.shape.len() ^ self.dims) as u64;
        t.shape.iter().zip(&self.shape).fold(other, |other, (a, b)| other | (a ^ b))
    }
}

/// Such a call, while no device leaves or returns.
pub(super) struct Fast<'e> {
    run: NativeFn,
    call: NativeCall,
    ctx: CpuCtx<'e>,
    align: usize,
    changes: &'e AtomicU64,
    generation: u64,
    resting: &'e AtomicU64,
    calls: &'e AtomicU64,
    pub(super) on: &'e str,
    inputs: usize,
    outputs: usize,
    /// Inputs, then outputs.
    wants: [Want; MOST],
}

impl<'e> Fast<'e> {
    /// `None` where more is to do than to call a kernel with the operands as they are given: on a GPU, for a record or a trace,
    /// where results begin as inputs.
    pub(super) fn of(engine: &'e Engine, planned: &Planned) -> Option<Self> {
        if planned.gpu.is_some() || planned.counts.is_some() || planned.label.is_some() {
            return None;
        }
        let direct = planned.direct(engine)?.as_given()?;
        let all: Vec<Want> = planned.given.iter().chain(&planned.results).map(Want::of).collect::<Option<_>>()?;
        let mut wants = [Want { dtype: DType::F32, dims: 0, shape: [0; MOST] }; MOST];
        wants.get_mut(..all.len())?.copy_from_slice(&all);
        let cpu = engine.places.cpu.device();
        Some(Fast {
            run: direct.run,
            call: direct.call.clone(),
            ctx: cpu.host_ctx()?,
            align: direct.align,
            changes: &engine.places.common.changes,
            generation: planned.generation,
            resting: &engine.places.common.resting,
            calls: &engine.counts.cpu,
            on: &cpu.info().id,
            inputs: planned.given.len(),
            outputs: planned.results.len(),
            wants,
        })
    }

    /// The kernel's result; `None` if the operands are others, or a device left or may return: then the engine sees to it.
    #[inline]
    pub(super) fn run(&self, inputs: &[&HostTensor], outputs: &mut [HostTensor]) -> Option<Result<()>> {
        // One question at the end: each one by itself is a guess of the processor's that no earlier call has taught it, and the
        // wrong one waits for a miss.
        let operand = |t: &HostTensor, w: &Want| w.differs(t) | u64::from(!lies(t.bytes(), self.align));
        let changed = self.changes.load(Ordering::Acquire) ^ self.generation | self.resting.load(Ordering::Relaxed);
        let number = (inputs.len() ^ self.inputs) | (outputs.len() ^ self.outputs);
        let (ins, outs) = self.wants.split_at(self.inputs);
        let ins = inputs.iter().zip(ins).fold(0, |other, (t, w)| other | operand(t, w));
        let outs = outputs.iter().zip(outs).fold(0, |other, (t, w)| other | operand(t, w));
        if changed | number as u64 | ins | outs != 0 {
            return None;
        }
        let mut args = NativeArgs {
            ins: inputs.iter().map(|t| t.bytes()).collect(),
            outs: outputs.iter_mut().map(HostTensor::bytes_mut).collect(),
        };
        // Before the kernel: behind it, an atomic addition waits on x86 until all that the kernel wrote has left the store buffer.
        self.calls.fetch_add(1, Ordering::Relaxed);
        let ran = (self.run)(&self.ctx, &mut args, &self.call);
        if ran.is_err() {
            self.calls.fetch_sub(1, Ordering::Relaxed);
        }
        Some(ran)
    }
}
