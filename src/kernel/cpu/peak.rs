//! The probe of arithmetic.

use crate::base::{DType, Result};

use super::math::Real;
use super::simd::{Job, Style, Textbook, dispatch};
use super::{Call, CpuCtx, NativeArgs};

/// Elements whose steps are taken in turns: they stay in the first-level cache.
const BLOCK: usize = 640;
/// Steps of one element before the next one's turn. Vectors of the elements after it do not wait for it.
const TURN: usize = 16;

/// y = x after the steps.
struct Chains<'a, R> {
    x: &'a [R],
    y: &'a mut [R],
    steps: usize,
    factor: R,
    term: R,
}

impl<R: Real> Job for Chains<'_, R> {
    type Out = ();
    #[inline(always)]
    fn run<S: Style>(self) {
        let (factor, term) = (self.factor, self.term);
        for (y, x) in self.y.chunks_mut(BLOCK).zip(self.x.chunks(BLOCK)) {
            y.copy_from_slice(x);
            for _ in 0..self.steps / TURN {
                for y in y.iter_mut() {
                    let mut v = *y;
                    for _ in 0..TURN {
                        v = v.fma::<S>(factor, term);
                    }
                    *y = v;
                }
            }
            for _ in 0..self.steps % TURN {
                for y in y.iter_mut() {
                    *y = y.fma::<S>(factor, term);
                }
            }
        }
    }
}

/// y = x after `steps` steps x = x·factor + term. Params: n, steps, factor, term. Dtypes: f32, f64.
pub fn fma(ctx: &CpuCtx<'_>, args: &mut NativeArgs<'_>, call: &Call) -> Result<()> {
    match call.dtype {
        DType::F32 => chains::<f32>(ctx, args, call),
        DType::F64 => chains::<f64>(ctx, args, call),
        _ => Err(call.no_dtype()),
    }
}

fn chains<R: Real>(ctx: &CpuCtx<'_>, args: &mut NativeArgs<'_>, call: &Call) -> Result<()> {
    let (n, steps) = (call.size(0), call.size(1));
    let (factor, term) = (R::of(call.scalar(2)), R::of(call.scalar(3)));
    let (x, y) = (args.input::<R>(0, n)?, args.output::<R>(0, n)?);
    // What a thread is worth is decided by the work, not by the bytes.
    let parts = ctx.parts_for_bytes(n.saturating_mul(steps));
    ctx.split(y, CpuCtx::chunk(n, parts, BLOCK), |at, y| {
        dispatch(ctx.isa, Chains { x: &x[at..at + y.len()], y, steps, factor, term });
    });
    Ok(())
}

/// The same on one thread, one element after the other.
pub fn fma_naive(_: &CpuCtx<'_>, args: &mut NativeArgs<'_>, call: &Call) -> Result<()> {
    match call.dtype {
        DType::F32 => naive::<f32>(args, call),
        DType::F64 => naive::<f64>(args, call),
        _ => Err(call.no_dtype()),
    }
}

fn naive<R: Real>(args: &mut NativeArgs<'_>, call: &Call) -> Result<()> {
    let n = call.size(0);
    let (factor, term) = (R::of(call.scalar(2)), R::of(call.scalar(3)));
    let (x, y) = (args.input::<R>(0, n)?, args.output::<R>(0, n)?);
    for (y, x) in y.iter_mut().zip(x) {
        *y = (0..call.size(1)).fold(*x, |v, _| v.fma::<Textbook>(factor, term));
    }
    Ok(())
}
