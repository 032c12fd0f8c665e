//! Ops that stream their operands once: axpy, scal, triad, copy, fill.

use half::slice::HalfFloatSliceExt;

use crate::base::{DType, Result};

use super::lanes::{both, onto};
use super::math::Real;
use super::simd::{Job, Style, Textbook, dispatch, past};
use super::{Call, CpuCtx, NativeArgs};

/// y += alpha·x.
struct Axpy<'a, R> {
    x: &'a [R],
    y: &'a mut [R],
    alpha: R,
}

impl<R: Real> Job for Axpy<'_, R> {
    type Out = ();
    #[inline(always)]
    fn run<S: Style>(self) {
        if S::TEXTBOOK {
            for (y, x) in self.y.iter_mut().zip(self.x) {
                *y = x.fma::<S>(self.alpha, *y);
            }
        } else {
            onto(self.x, self.y, |y, x| x.fma::<S>(self.alpha, y));
        }
    }
}

/// x *= alpha.
struct Scal<'a, R> {
    x: &'a mut [R],
    alpha: R,
}

impl<R: Real> Job for Scal<'_, R> {
    type Out = ();
    #[inline(always)]
    fn run<S: Style>(self) {
        for x in self.x {
            *x = self.alpha * *x;
        }
    }
}

/// y = a + alpha·b.
struct Triad<'a, R> {
    a: &'a [R],
    b: &'a [R],
    y: &'a mut [R],
    alpha: R,
}

impl<R: Real> Job for Triad<'_, R> {
    type Out = ();
    #[inline(always)]
    fn run<S: Style>(self) {
        if S::TEXTBOOK {
            for ((y, a), b) in self.y.iter_mut().zip(self.a).zip(self.b) {
                *y = b.fma::<S>(self.alpha, *a);
            }
        } else {
            both!(self.a, self.b, self.y, |a, b| b.fma::<S>(self.alpha, a));
        }
    }
}

fn go<J: Job<Out = ()>>(ctx: &CpuCtx<'_>, textbook: bool, job: J) {
    if textbook { job.run::<Textbook>() } else { dispatch(ctx.isa, job) }
}

/// y += alpha·x. Params: n, alpha. Dtypes: the floats; f16 and bf16 are converted in blocks and computed in f32.
pub fn axpy(ctx: &CpuCtx<'_>, args: &mut NativeArgs<'_>, call: &Call) -> Result<()> {
    axpy_with(ctx, args, call, false)
}

/// The same on one thread with scalar code.
pub fn axpy_naive(ctx: &CpuCtx<'_>, args: &mut NativeArgs<'_>, call: &Call) -> Result<()> {
    axpy_with(&ctx.alone(), args, call, true)
}

fn axpy_with(ctx: &CpuCtx<'_>, args: &mut NativeArgs<'_>, call: &Call, textbook: bool) -> Result<()> {
    match call.dtype {
        DType::F32 => axpy_real::<f32>(ctx, args, call, textbook),
        DType::F64 => axpy_real::<f64>(ctx, args, call, textbook),
        DType::F16 => axpy_half::<half::f16>(ctx, args, call, textbook),
        DType::BF16 => axpy_half::<half::bf16>(ctx, args, call, textbook),
        _ => Err(call.no_dtype()),
    }
}

fn axpy_real<R: Real>(ctx: &CpuCtx<'_>, args: &mut NativeArgs<'_>, call: &Call, textbook: bool) -> Result<()> {
    let (n, alpha) = (call.size(0), R::of(call.scalar(1)));
    let (x, y) = (args.input::<R>(0, n)?, args.output::<R>(0, n)?);
    let parts = ctx.parts_for_bytes(2 * size_of_val(x));
    ctx.split(y, CpuCtx::chunk(n, parts, 1024), |at, y| {
        go(ctx, textbook, Axpy { x: &x[at..at + y.len()], y, alpha });
    });
    Ok(())
}

fn axpy_half<H>(ctx: &CpuCtx<'_>, args: &mut NativeArgs<'_>, call: &Call, textbook: bool) -> Result<()>
where
    H: bytemuck::Pod + Send + Sync,
    [H]: HalfFloatSliceExt,
{
    const BLOCK: usize = 1024;
    let (n, alpha) = (call.size(0), call.scalar(1) as f32);
    let (x, y) = (args.input::<H>(0, n)?, args.output::<H>(0, n)?);
    let parts = ctx.parts_for_bytes(2 * size_of_val(x));
    ctx.split(y, CpuCtx::chunk(n, parts, BLOCK), |at, y| {
        let (mut wide_x, mut wide_y) = ([0f32; BLOCK], [0f32; BLOCK]);
        for (i, y) in y.chunks_mut(BLOCK).enumerate() {
            let from = at + i * BLOCK;
            let (wide_x, wide_y) = (&mut wide_x[..y.len()], &mut wide_y[..y.len()]);
            x[from..from + y.len()].convert_to_f32_slice(wide_x);
            y.convert_to_f32_slice(wide_y);
            go(ctx, textbook, Axpy { x: wide_x, y: wide_y, alpha });
            y.convert_from_f32_slice(wide_y);
        }
    });
    Ok(())
}

/// x *= alpha. Params: n, alpha. Dtypes f32, f64.
pub fn scal(ctx: &CpuCtx<'_>, args: &mut NativeArgs<'_>, call: &Call) -> Result<()> {
    scal_with(ctx, args, call, false)
}

/// The same on one thread with scalar code.
pub fn scal_naive(ctx: &CpuCtx<'_>, args: &mut NativeArgs<'_>, call: &Call) -> Result<()> {
    scal_with(&ctx.alone(), args, call, true)
}

fn scal_with(ctx: &CpuCtx<'_>, args: &mut NativeArgs<'_>, call: &Call, textbook: bool) -> Result<()> {
    fn typed<R: Real>(ctx: &CpuCtx<'_>, args: &mut NativeArgs<'_>, call: &Call, textbook: bool) -> Result<()> {
        let (n, alpha) = (call.size(0), R::of(call.scalar(1)));
        let x = args.output::<R>(0, n)?;
        let parts = ctx.parts_for_bytes(size_of_val(x));
        ctx.split(x, CpuCtx::chunk(n, parts, 1024), |_, x| go(ctx, textbook, Scal { x, alpha }));
        Ok(())
    }
    match call.dtype {
        DType::F32 => typed::<f32>(ctx, args, call, textbook),
        DType::F64 => typed::<f64>(ctx, args, call, textbook),
        _ => Err(call.no_dtype()),
    }
}

/// y = a + alpha·b. Params: n, alpha. Dtypes f32, f64.
pub fn triad(ctx: &CpuCtx<'_>, args: &mut NativeArgs<'_>, call: &Call) -> Result<()> {
    triad_with(ctx, args, call, false)
}

/// The same on one thread with scalar code.
pub fn triad_naive(ctx: &CpuCtx<'_>, args: &mut NativeArgs<'_>, call: &Call) -> Result<()> {
    triad_with(&ctx.alone(), args, call, true)
}

fn triad_with(ctx: &CpuCtx<'_>, args: &mut NativeArgs<'_>, call: &Call, textbook: bool) -> Result<()> {
    fn typed<R: Real>(ctx: &CpuCtx<'_>, args: &mut NativeArgs<'_>, call: &Call, textbook: bool) -> Result<()> {
        let (n, alpha) = (call.size(0), R::of(call.scalar(1)));
        let (a, b, y) = (args.input::<R>(0, n)?, args.input::<R>(1, n)?, args.output::<R>(0, n)?);
        let parts = ctx.parts_for_bytes(3 * size_of_val(a));
        let (size, far) = (size_of::<R>(), !textbook && past::is_far(ctx.isa, size_of_val(a)));
        ctx.split(y, CpuCtx::chunk(n, parts, 1024), |at, y| {
            let part = |at: usize, y: &mut [R]| {
                let range = at..at + y.len();
                go(ctx, textbook, Triad { a: &a[range.clone()], b: &b[range], y, alpha });
            };
            if far {
                past::fill(ctx.isa, bytemuck::cast_slice_mut(y), |from, y| {
                    part(at + from / size, bytemuck::cast_slice_mut(y))
                });
            } else {
                part(at, y);
            }
        });
        Ok(())
    }
    match call.dtype {
        DType::F32 => typed::<f32>(ctx, args, call, textbook),
        DType::F64 => typed::<f64>(ctx, args, call, textbook),
        _ => Err(call.no_dtype()),
    }
}

/// Bytes of a page: pieces of a copy end at pages.
const PAGE: usize = 4096;

/// y = x, byte by byte. Params: n. Every dtype.
pub fn copy(ctx: &CpuCtx<'_>, args: &mut NativeArgs<'_>, call: &Call) -> Result<()> {
    let bytes = call.size(0) * call.dtype.size() as usize;
    let (x, y) = (args.input::<u8>(0, bytes)?, args.output::<u8>(0, bytes)?);
    let parts = ctx.parts_for_bytes(2 * bytes);
    ctx.split(y, CpuCtx::chunk(bytes, parts, PAGE), |at, y| y.copy_from_slice(&x[at..at + y.len()]));
    Ok(())
}

/// The same element by element on one thread.
pub fn copy_naive(_: &CpuCtx<'_>, args: &mut NativeArgs<'_>, call: &Call) -> Result<()> {
    let size = call.dtype.size() as usize;
    let bytes = call.size(0) * size;
    let (x, y) = (args.input::<u8>(0, bytes)?, args.output::<u8>(0, bytes)?);
    for (y, x) in y.chunks_exact_mut(size).zip(x.chunks_exact(size)) {
        y.copy_from_slice(x);
    }
    Ok(())
}

/// Every element becomes the pattern. Params: n, its bits. Every dtype.
pub fn fill(ctx: &CpuCtx<'_>, args: &mut NativeArgs<'_>, call: &Call) -> Result<()> {
    let bits = call.params.get(1).map_or(0, |p| p.int() as u64);
    match call.dtype.size() {
        1 => fill_typed(ctx, args, call, bits as u8),
        2 => fill_typed(ctx, args, call, bits as u16),
        4 => fill_typed(ctx, args, call, bits as u32),
        _ => fill_typed(ctx, args, call, bits),
    }
}

/// The same on one thread.
pub fn fill_naive(ctx: &CpuCtx<'_>, args: &mut NativeArgs<'_>, call: &Call) -> Result<()> {
    fill(&ctx.alone(), args, call)
}

fn fill_typed<T: bytemuck::Pod + Send + Sync>(
    ctx: &CpuCtx<'_>,
    args: &mut NativeArgs<'_>,
    call: &Call,
    bits: T,
) -> Result<()> {
    let n = call.size(0);
    let y = args.output::<T>(0, n)?;
    let parts = ctx.parts_for_bytes(size_of_val(y));
    ctx.split(y, CpuCtx::chunk(n, parts, PAGE), |_, y| y.fill(bits));
    Ok(())
}
