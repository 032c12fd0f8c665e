//! Templates for elementwise ops; an op supplies one expression.

use half::slice::HalfFloatSliceExt;

use crate::base::{DType, Result};

use super::math::Real;
use super::simd::{Job, Style, Textbook, dispatch};
use super::{Call, CpuCtx, NativeArgs};

/// A function of one number.
pub trait Unary: Copy + Send + Sync + 'static {
    /// The expression.
    fn apply<S: Style, R: Real>(x: R) -> R;
}

/// A function of two numbers.
pub trait Binary: Copy + Send + Sync + 'static {
    /// On floats.
    fn real<R: Real>(a: R, b: R) -> R;
    /// On i32, with wrapping arithmetic.
    fn int(a: i32, b: i32) -> i32;
}

struct Map<'a, U, R> {
    x: &'a [R],
    y: &'a mut [R],
    f: std::marker::PhantomData<U>,
}

impl<U: Unary, R: Real> Job for Map<'_, U, R> {
    type Out = ();
    #[inline(always)]
    fn run<S: Style>(self) {
        for (y, x) in self.y.iter_mut().zip(self.x) {
            *y = U::apply::<S, R>(*x);
        }
    }
}

/// y = f(x). Params: n. Dtypes: the floats; f16 and bf16 are converted in blocks and computed in f32.
pub fn unary<U: Unary>(ctx: &CpuCtx<'_>, args: &mut NativeArgs<'_>, call: &Call) -> Result<()> {
    let isa = ctx.isa;
    unary_with(
        ctx,
        args,
        call,
        move |x, y| dispatch(isa, Map { x, y, f: std::marker::PhantomData::<U> }),
        move |x, y| {
            dispatch(isa, Map { x, y, f: std::marker::PhantomData::<U> });
        },
    )
}

/// The same as a textbook would write it: one thread, scalar library functions.
pub fn unary_naive<U: Unary>(ctx: &CpuCtx<'_>, args: &mut NativeArgs<'_>, call: &Call) -> Result<()> {
    let one = CpuCtx { threads: 1, pool: None, ..*ctx };
    unary_with(
        &one,
        args,
        call,
        |x, y| Map { x, y, f: std::marker::PhantomData::<U> }.run::<Textbook>(),
        |x, y| Map { x, y, f: std::marker::PhantomData::<U> }.run::<Textbook>(),
    )
}

fn unary_with(
    ctx: &CpuCtx<'_>,
    args: &mut NativeArgs<'_>,
    call: &Call,
    f32s: impl Fn(&[f32], &mut [f32]) + Sync,
    f64s: impl Fn(&[f64], &mut [f64]) + Sync,
) -> Result<()> {
    let n = call.size(0);
    let parts = ctx.parts_for_bytes(2 * n * call.dtype.size() as usize);
    let chunk = CpuCtx::chunk(n, parts, 1024);
    match call.dtype {
        DType::F32 => {
            let (x, y) = (args.input::<f32>(0, n)?, args.output::<f32>(0, n)?);
            ctx.split(y, chunk, |at, y| f32s(&x[at..at + y.len()], y));
        }
        DType::F64 => {
            let (x, y) = (args.input::<f64>(0, n)?, args.output::<f64>(0, n)?);
            ctx.split(y, chunk, |at, y| f64s(&x[at..at + y.len()], y));
        }
        DType::F16 => through_f32::<half::f16>(ctx, args, n, chunk, f32s)?,
        DType::BF16 => through_f32::<half::bf16>(ctx, args, n, chunk, f32s)?,
        _ => return Err(call.no_dtype()),
    }
    Ok(())
}

fn through_f32<H>(
    ctx: &CpuCtx<'_>,
    args: &mut NativeArgs<'_>,
    n: usize,
    chunk: usize,
    f: impl Fn(&[f32], &mut [f32]) + Sync,
) -> Result<()>
where
    H: bytemuck::Pod + Send + Sync,
    [H]: HalfFloatSliceExt,
{
    const BLOCK: usize = 1024;
    let (x, y) = (args.input::<H>(0, n)?, args.output::<H>(0, n)?);
    ctx.split(y, chunk, |at, y| {
        let (mut wide, mut done) = ([0f32; BLOCK], [0f32; BLOCK]);
        for (i, y) in y.chunks_mut(BLOCK).enumerate() {
            let from = at + i * BLOCK;
            let (wide, done) = (&mut wide[..y.len()], &mut done[..y.len()]);
            x[from..from + y.len()].convert_to_f32_slice(wide);
            f(wide, done);
            y.convert_from_f32_slice(done);
        }
    });
    Ok(())
}

struct Zip<'a, B, R> {
    a: &'a [R],
    b: &'a [R],
    y: &'a mut [R],
    f: std::marker::PhantomData<B>,
}

/// Number types of the binary template.
pub trait Number: bytemuck::Pod + Send + Sync {
    /// The op's expression for this type.
    fn apply<B: Binary>(a: Self, b: Self) -> Self;
}
impl Number for f32 {
    #[inline(always)]
    fn apply<B: Binary>(a: f32, b: f32) -> f32 {
        B::real(a, b)
    }
}
impl Number for f64 {
    #[inline(always)]
    fn apply<B: Binary>(a: f64, b: f64) -> f64 {
        B::real(a, b)
    }
}
impl Number for i32 {
    #[inline(always)]
    fn apply<B: Binary>(a: i32, b: i32) -> i32 {
        B::int(a, b)
    }
}

impl<B: Binary, R: Number> Job for Zip<'_, B, R> {
    type Out = ();
    /// Operands of length one are repeated.
    #[inline(always)]
    fn run<S: Style>(self) {
        match (self.a, self.b) {
            (a, [b]) if a.len() == self.y.len() => {
                for (y, a) in self.y.iter_mut().zip(a) {
                    *y = R::apply::<B>(*a, *b);
                }
            }
            ([a], b) => {
                for (y, b) in self.y.iter_mut().zip(b) {
                    *y = R::apply::<B>(*a, *b);
                }
            }
            (a, b) => {
                for ((y, a), b) in self.y.iter_mut().zip(a).zip(b) {
                    *y = R::apply::<B>(*a, *b);
                }
            }
        }
    }
}

/// y = f(a, b) over a four-dimensional index space with strides (0: broadcast).
/// Params: n, d0..d3, a's strides 0..3, b's strides 0..3. Dtypes f32, f64, i32.
pub fn binary<B: Binary>(ctx: &CpuCtx<'_>, args: &mut NativeArgs<'_>, call: &Call) -> Result<()> {
    match call.dtype {
        DType::F32 => binary_typed::<B, f32>(ctx, args, call, false),
        DType::F64 => binary_typed::<B, f64>(ctx, args, call, false),
        DType::I32 => binary_typed::<B, i32>(ctx, args, call, false),
        _ => Err(call.no_dtype()),
    }
}

/// The textbook form: one thread, no vector code.
pub fn binary_naive<B: Binary>(ctx: &CpuCtx<'_>, args: &mut NativeArgs<'_>, call: &Call) -> Result<()> {
    let one = CpuCtx { threads: 1, pool: None, ..*ctx };
    match call.dtype {
        DType::F32 => binary_typed::<B, f32>(&one, args, call, true),
        DType::F64 => binary_typed::<B, f64>(&one, args, call, true),
        DType::I32 => binary_typed::<B, i32>(&one, args, call, true),
        _ => Err(call.no_dtype()),
    }
}

fn binary_typed<B: Binary, R: Number>(
    ctx: &CpuCtx<'_>,
    args: &mut NativeArgs<'_>,
    call: &Call,
    textbook: bool,
) -> Result<()> {
    let n = call.size(0);
    let four = |at: usize| [call.size(at), call.size(at + 1), call.size(at + 2), call.size(at + 3)];
    let (d, sa, sb) = (four(1), four(5), four(9));
    let extent = |s: [usize; 4]| if n == 0 { 0 } else { (0..4).map(|i| (d[i] - 1) * s[i]).sum::<usize>() + 1 };
    let a = args.input::<R>(0, extent(sa))?;
    let b = args.input::<R>(1, extent(sb))?;
    let y = args.output::<R>(0, n)?;
    if n == 0 {
        return Ok(());
    }
    let row = d[3];
    let parts = ctx.parts_for_bytes(3 * n * size_of::<R>());
    // Pieces are whole rows, or parts of the only row.
    let chunk = if n == row { CpuCtx::chunk(n, parts, 1024) } else { CpuCtx::chunk(n, parts, row) };
    ctx.split(y, chunk, |first, y| {
        let mut at = first;
        for piece in y.chunks_mut(row) {
            let (line, column) = (at / row, at % row);
            let (i2, i1, i0) = (line % d[2], line / d[2] % d[1], line / d[2] / d[1]);
            let start = |s: [usize; 4]| i0 * s[0] + i1 * s[1] + i2 * s[2] + column * s[3];
            let run = |v: &'_ [R], s: [usize; 4]| {
                let from = start(s);
                from..if s[3] == 0 { from + 1 } else { (from + piece.len()).min(v.len()) }
            };
            let (ra, rb) = (run(a, sa), run(b, sb));
            at += piece.len();
            let job = Zip { a: &a[ra], b: &b[rb], y: piece, f: std::marker::PhantomData::<B> };
            if textbook { job.run::<Textbook>() } else { dispatch(ctx.isa, job) }
        }
    });
    Ok(())
}
