//! Row-wise softmax.

use crate::base::{DType, Result};

use super::math::Real;
use super::simd::{Job, Style, Textbook, dispatch};
use super::{Call, CpuCtx, NativeArgs};

const LANES: usize = 32;

/// NaN is the only number that is not equal to itself.
#[inline(always)]
#[allow(clippy::eq_op, reason = "the comparison with itself is the test, and becomes one vector instruction")]
fn is_nan<R: Real>(x: R) -> bool {
    x != x
}

struct Rows<'a, R> {
    x: &'a [R],
    y: &'a mut [R],
    n: usize,
}

impl<R: Real> Job for Rows<'_, R> {
    type Out = ();
    /// Per row: the maximum, exp(x - maximum) with its sum, and the division. NaN anywhere makes the row NaN.
    #[inline(always)]
    fn run<S: Style>(self) {
        for (x, y) in self.x.chunks(self.n).zip(self.y.chunks_mut(self.n)) {
            let mut top = [x[0]; LANES];
            for block in x.chunks(LANES) {
                for (t, v) in top.iter_mut().zip(block) {
                    // NaN stays once there; a NaN in v fails the comparison and is taken.
                    *t = if *t >= *v || is_nan(*t) { *t } else { *v };
                }
            }
            let top = top.iter().fold(top[0], |a, b| if a >= *b || is_nan(a) { a } else { *b });
            let mut sums = [R::of(0.0); LANES];
            for (x, y) in x.chunks(LANES).zip(y.chunks_mut(LANES)) {
                for ((x, y), s) in x.iter().zip(y).zip(&mut sums) {
                    let e = (*x - top).exp::<S>();
                    *y = e;
                    *s = *s + e;
                }
            }
            let mut width = LANES;
            while width > 1 {
                width /= 2;
                for i in 0..width {
                    sums[i] = sums[i] + sums[i + width];
                }
            }
            for y in y.iter_mut() {
                *y = *y / sums[0];
            }
        }
    }
}

/// y[i, :] = exp(x[i, :] - max) / sum(exp(x[i, :] - max)). Params: m rows, n columns. Dtypes f32, f64.
pub fn softmax(ctx: &CpuCtx<'_>, args: &mut NativeArgs<'_>, call: &Call) -> Result<()> {
    let isa = ctx.isa;
    match call.dtype {
        DType::F32 => rows::<f32>(ctx, args, call, |job| dispatch(isa, job)),
        DType::F64 => rows::<f64>(ctx, args, call, |job| dispatch(isa, job)),
        _ => Err(call.no_dtype()),
    }
}

/// One thread, scalar library functions.
pub fn softmax_naive(ctx: &CpuCtx<'_>, args: &mut NativeArgs<'_>, call: &Call) -> Result<()> {
    let one = CpuCtx { threads: 1, pool: None, ..*ctx };
    match call.dtype {
        DType::F32 => rows::<f32>(&one, args, call, |job| job.run::<Textbook>()),
        DType::F64 => rows::<f64>(&one, args, call, |job| job.run::<Textbook>()),
        _ => Err(call.no_dtype()),
    }
}

fn rows<R: Real>(
    ctx: &CpuCtx<'_>,
    args: &mut NativeArgs<'_>,
    call: &Call,
    run: impl Fn(Rows<'_, R>) + Sync,
) -> Result<()> {
    let (m, n) = (call.size(0), call.size(1));
    let x = args.input::<R>(0, m * n)?;
    let y = args.output::<R>(0, m * n)?;
    if m * n == 0 {
        return Ok(());
    }
    let parts = ctx.parts_for_bytes(4 * m * n * size_of::<R>());
    ctx.split(y, CpuCtx::chunk(m, parts, 1) * n, |first, y| run(Rows { x: &x[first..first + y.len()], y, n }));
    Ok(())
}
