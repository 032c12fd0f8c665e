//! The CPU's kernels: what they are called with, and how they split work.
//!
//! A kernel is a [`NativeFn`]: bytes in, bytes out, no allocation of buffers, no global state. Threads belong to the
//! device that calls it and arrive in [`CpuCtx`].

pub mod activation;
pub mod bias;
pub mod blas;
pub mod broadcast;
pub mod cast;
mod channels;
mod combine;
pub mod conv;
mod depthwise;
mod dots;
mod elementary;
pub mod elementwise;
pub mod extreme;
mod gradient;
mod implicit;
mod lanes;
mod large;
pub mod load;
pub mod math;
pub mod matmul;
pub mod micro;
pub mod moments;
pub mod movement;
pub mod norm;
pub mod number;
pub mod peak;
mod pixels;
mod planes;
pub mod pool;
mod product;
pub mod reduce;
pub mod simd;
mod sparse;
mod spread;
pub mod stream;
mod sweep;
pub mod vector;
pub mod whole;

use bytemuck::Pod;

use crate::base::{Code, DType, Error, Result};

use super::Param;
pub use simd::Isa;

/// Threads that help the one that calls.
pub trait Team: Sync {
    /// Calls `job(i)` once for each `i` in `0..pieces`, on this thread and on those of helpers, and returns when all are done.
    fn run(&self, pieces: usize, job: &(dyn Fn(usize) + Sync));
    /// Measured seconds that a job costs besides its pieces, if the helpers are awake.
    fn handover_s(&self) -> f64;
}

/// What a kernel may use of the processor.
#[derive(Clone, Copy)]
pub struct CpuCtx<'a> {
    /// Threads that may compute at once, the caller's included; at least 1.
    pub threads: usize,
    /// Instruction set to use.
    pub isa: Isa,
    /// Helpers beside the caller (`threads - 1` of them); `None` for one thread.
    pub team: Option<&'a dyn Team>,
    /// The library of the variant `blas`, if one was opened.
    pub blas: Option<&'a dyn blas::Blas>,
}

/// Buffers of one call: inputs in the order of the step's read arguments, outputs in the order of its written ones.
#[derive(Debug)]
pub struct NativeArgs<'a> {
    /// Read-only arguments.
    pub ins: Vec<&'a [u8]>,
    /// Written arguments; they hold their previous contents.
    pub outs: Vec<&'a mut [u8]>,
}

/// Scalars of one call.
#[derive(Clone, Debug)]
pub struct Call {
    /// Dtype of the operands.
    pub dtype: DType,
    /// Scalars in declared order.
    pub params: Vec<Param>,
}

/// A kernel on the CPU. It must not panic on any sizes that fit the buffers.
pub type NativeFn = fn(&CpuCtx<'_>, &mut NativeArgs<'_>, &Call) -> Result<()>;

impl Call {
    /// Size number `i` as usize.
    pub fn size(&self, i: usize) -> usize {
        self.params.get(i).map_or(0, |p| p.u64() as usize)
    }
    /// Scalar number `i`.
    pub fn scalar(&self, i: usize) -> f64 {
        self.params.get(i).map_or(0.0, |p| p.f64())
    }
    /// The error for a dtype that the kernel has no code for.
    pub fn no_dtype(&self) -> Error {
        Error::new(Code::DTypeUnsupported, format!("the CPU kernel has no {}", self.dtype))
    }
}

impl<'a> NativeArgs<'a> {
    /// Input `i` as numbers, at least `len` of them.
    pub fn input<T: Pod>(&self, i: usize, len: usize) -> Result<&'a [T]> {
        let bytes = *self.ins.get(i).ok_or_else(|| short("input", i, len, 0))?;
        let all: &'a [T] = bytemuck::try_cast_slice(bytes_for::<T>(bytes)).map_err(|e| cast(&e))?;
        all.get(..len).ok_or_else(|| short("input", i, len, all.len()))
    }
    /// Output `i` as numbers, at least `len` of them, taken out of the arguments (each output once).
    pub fn output<T: Pod>(&mut self, i: usize, len: usize) -> Result<&'a mut [T]> {
        let bytes = std::mem::take(self.outs.get_mut(i).ok_or_else(|| short("output", i, len, 0))?);
        let whole = bytes.len() / size_of::<T>() * size_of::<T>();
        let all: &'a mut [T] = bytemuck::try_cast_slice_mut(&mut bytes[..whole]).map_err(|e| cast(&e))?;
        let have = all.len();
        all.get_mut(..len).ok_or_else(|| short("output", i, len, have))
    }
}

/// The leading bytes that make whole elements.
fn bytes_for<T>(bytes: &[u8]) -> &[u8] {
    &bytes[..bytes.len() / size_of::<T>() * size_of::<T>()]
}

fn short(what: &str, i: usize, want: usize, have: usize) -> Error {
    Error::new(Code::BufferBounds, format!("{what} {i} holds {have} elements, {want} are needed"))
}

fn cast(e: &bytemuck::PodCastError) -> Error {
    Error::new(Code::KernelFailed, format!("a buffer is not aligned for its dtype: {e}"))
}

/// What one thread reads and writes in a second where data lie in its caches: only used to guess how long work takes.
const BYTES_PER_S: f64 = 100e9;
/// Work that takes less than so many hand-overs stays with one thread.
const WORTH: f64 = 3.0;
/// A hand-over is believed to lie between these: a machine that was busy when it was measured is not busy for ever.
const LEAST_HANDOVER_S: f64 = 0.3e-6;
const MOST_HANDOVER_S: f64 = 10e-6;
/// Less traffic than this stays with one thread, whatever a hand-over costs.
const LEAST_BYTES: f64 = WORTH * LEAST_HANDOVER_S * BYTES_PER_S;
/// A part that takes so long is worth being cut further, up to so many parts for each thread.
const LONG_S: f64 = 25e-6;
const SHARES: usize = 4;

impl<'a> CpuCtx<'a> {
    /// The same processor for one thread alone.
    pub fn alone(&self) -> CpuCtx<'a> {
        CpuCtx { threads: 1, team: None, ..*self }
    }

    /// How many parts `bytes` of traffic deserve.
    pub fn parts_for_bytes(&self, bytes: usize) -> usize {
        if (bytes as f64) < LEAST_BYTES {
            return 1;
        }
        self.parts_for_seconds(bytes as f64 / BYTES_PER_S)
    }

    /// How many parts work deserves that takes one thread so many seconds: one where a hand-over would cost a good part of
    /// it; as many as there are threads; more, for those who begin late or are slow, where the parts stay long.
    pub fn parts_for_seconds(&self, seconds: f64) -> usize {
        let Some(team) = self.team else { return 1 };
        let handover = team.handover_s().clamp(LEAST_HANDOVER_S, MOST_HANDOVER_S);
        if seconds < WORTH * handover {
            return 1;
        }
        let longs = (seconds / self.threads as f64 / LONG_S) as usize;
        self.threads * longs.clamp(1, SHARES)
    }

    /// Runs `f(first, chunk)` over `out` cut into pieces of `chunk` elements (the last may be shorter), in parallel;
    /// `first` is the index of the piece's first element. The caller's thread takes the first piece.
    pub fn split<T: Send>(&self, out: &mut [T], chunk: usize, f: impl Fn(usize, &mut [T]) + Sync) {
        self.split_with(out, chunk, &f);
    }

    /// [`CpuCtx::split`] over two outputs of one length, cut alike.
    pub fn split_two<T: Send, U: Send>(
        &self,
        (a, b): (&mut [T], &mut [U]),
        chunk: usize,
        f: impl Fn(usize, &mut [T], &mut [U]) + Sync,
    ) {
        let chunk = chunk.max(1);
        if a.len() <= chunk && b.len() <= chunk {
            return f(0, a, b);
        }
        let mut pairs: Vec<_> = a.chunks_mut(chunk).zip(b.chunks_mut(chunk)).collect();
        self.split(&mut pairs, 1, |i, pair| {
            for (a, b) in pair {
                f(i * chunk, a, b);
            }
        });
    }

    /// One function for all closures: hundreds of kernels call it, each with a closure of its own.
    fn split_with<T: Send>(&self, out: &mut [T], chunk: usize, f: &(dyn Fn(usize, &mut [T]) + Sync)) {
        let chunk = chunk.max(1);
        match self.team {
            Some(team) if out.len() > chunk => {
                simd::share_out(team, out, chunk, f);
            }
            _ => {
                for (i, piece) in out.chunks_mut(chunk).enumerate() {
                    f(i * chunk, piece);
                }
            }
        }
    }

    /// Size of the pieces that cut `len` elements into `parts`, rounded up to a multiple of `unit`; of one part, all.
    pub fn chunk(len: usize, parts: usize, unit: usize) -> usize {
        if parts <= 1 {
            return len.max(1);
        }
        let unit = unit.max(1);
        len.div_ceil(parts.max(1)).div_ceil(unit) * unit
    }
}
