//! Templates for functions of one number; an op supplies one expression.  Two operands: `broadcast`.

use half::slice::HalfFloatSliceExt;

use crate::base::{Code, DType, Error, Result};

use super::lanes::each;
use super::math::Real;
use super::simd::{Isa, Job, Style, Textbook, dispatch, past};
use super::whole::Whole;
use super::{Call, CpuCtx, NativeArgs};

/// A function of one number.
pub trait Unary: Copy + Send + Sync + 'static {
    /// True if there are arguments that the expression is not for.
    const LEAVES_OUT: bool = false;
    /// What computing an element takes beyond reading and writing it: so many bytes could be moved meanwhile.
    const WORK: usize = 0;
    /// The expression.
    fn apply<S: Style, R: Real>(x: R) -> R;
    /// What is looked at: the expression is not for arguments of which it is above [`Unary::most`]. So a loop keeps the largest
    /// and compares once.
    #[inline(always)]
    fn measure<R: Real>(_: R) -> R::Bits {
        R::Bits::default()
    }
    /// See [`Unary::measure`].
    #[inline(always)]
    fn most<R: Real>() -> R::Bits {
        R::Bits::default()
    }
    /// What is used for them, one at a time; or, as a whole, for the block that one of them is in.
    #[inline(always)]
    fn instead<S: Style, R: Real>(x: R) -> R {
        Self::apply::<Textbook, R>(x)
    }
    /// True if no vectors can be made of the expression.
    #[inline(always)]
    fn one_by_one<S: Style, R: Real>() -> bool {
        false
    }
    /// Whether [`Unary::instead`] is vector code for whole blocks.
    const WHOLE: bool = false;
}

/// A function of one integer.
pub trait UnaryWhole: Copy + Send + Sync + 'static {
    /// True if signed and unsigned operands of the same bits give the same bits: then one body serves both.
    const SAME_BITS: bool;
    /// The expression.
    fn whole<T: Whole>(x: T) -> T;
}

/// Elements after which it is looked for arguments that were left out.
pub(super) const LOOK: usize = 2048;

struct Map<'a, U, R> {
    x: &'a [R],
    y: &'a mut [R],
    f: std::marker::PhantomData<U>,
}

impl<U: Unary, R: Real> Job for Map<'_, U, R> {
    type Out = ();
    #[inline(always)]
    fn run<S: Style>(self) {
        let leaves_out = |x: R| U::measure(x) > U::most::<R>();
        if S::TEXTBOOK || U::one_by_one::<S, R>() {
            for (y, x) in self.y.iter_mut().zip(self.x) {
                let leave = !S::TEXTBOOK && leaves_out(*x);
                *y = if leave { U::instead::<S, R>(*x) } else { U::apply::<S, R>(*x) };
            }
            return;
        }
        if !U::LEAVES_OUT {
            each!(self.x, self.y, |x| U::apply::<S, R>(x));
            return;
        }
        // Blocks that are still in the first-level cache when it is known whether one of their arguments was left out.
        for (y, x) in self.y.chunks_mut(LOOK).zip(self.x.chunks(LOOK)) {
            let mut largest = U::most::<R>();
            each!(x, &mut *y, |x| {
                largest = largest.max(U::measure(x));
                U::apply::<S, R>(x)
            });
            if largest > U::most::<R>() {
                for (y, x) in y.iter_mut().zip(x) {
                    if U::WHOLE || leaves_out(*x) {
                        *y = U::instead::<S, R>(*x);
                    }
                }
            }
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
        // Where blocks are looked at as a whole, they must not depend on where memory begins.
        (U::WORK, !U::LEAVES_OUT),
        move |x, y| dispatch(isa, Map { x, y, f: std::marker::PhantomData::<U> }),
        move |x, y| {
            dispatch(isa, Map { x, y, f: std::marker::PhantomData::<U> });
        },
    )
}

/// The same as a textbook would write it: one thread, scalar library functions.
pub fn unary_naive<U: Unary>(ctx: &CpuCtx<'_>, args: &mut NativeArgs<'_>, call: &Call) -> Result<()> {
    let one = ctx.alone();
    unary_with(
        &one,
        args,
        call,
        (U::WORK, false),
        |x, y| Map { x, y, f: std::marker::PhantomData::<U> }.run::<Textbook>(),
        |x, y| Map { x, y, f: std::marker::PhantomData::<U> }.run::<Textbook>(),
    )
}

fn unary_with(
    ctx: &CpuCtx<'_>,
    args: &mut NativeArgs<'_>,
    call: &Call,
    (work, past): (usize, bool),
    f32s: impl Fn(&[f32], &mut [f32]) + Sync,
    f64s: impl Fn(&[f64], &mut [f64]) + Sync,
) -> Result<()> {
    let n = call.size(0);
    let far = past && past::is_far(ctx.isa, n * call.dtype.size() as usize);
    let isa = far.then_some(ctx.isa);
    let parts = ctx.parts_for_bytes(n * (2 * call.dtype.size() as usize + work));
    let chunk = CpuCtx::chunk(n, parts, 1024);
    match call.dtype {
        DType::F32 => {
            let (x, y) = (args.input::<f32>(0, n)?, args.output::<f32>(0, n)?);
            ctx.split(y, chunk, |at, y| filled(isa, &x[at..at + y.len()], y, &f32s));
        }
        DType::F64 => {
            let (x, y) = (args.input::<f64>(0, n)?, args.output::<f64>(0, n)?);
            ctx.split(y, chunk, |at, y| filled(isa, &x[at..at + y.len()], y, &f64s));
        }
        DType::F16 => through_f32::<half::f16>(ctx, args, n, chunk, f32s)?,
        DType::BF16 => through_f32::<half::bf16>(ctx, args, n, chunk, f32s)?,
        _ => return Err(call.no_dtype()),
    }
    Ok(())
}

/// y = f(x), past the caches with this instruction set.
fn filled<R: Real>(past: Option<Isa>, x: &[R], y: &mut [R], f: &impl Fn(&[R], &mut [R])) {
    let Some(isa) = past else { return f(x, y) };
    let size = size_of::<R>();
    past::fill(isa, bytemuck::cast_slice_mut(y), |at, y| {
        f(&x[at / size..(at + y.len()) / size], bytemuck::cast_slice_mut(y))
    });
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

/// y = f(x) for floats and integers. Params: n.
pub fn unary_number<U: Unary + UnaryWhole>(ctx: &CpuCtx<'_>, args: &mut NativeArgs<'_>, call: &Call) -> Result<()> {
    if call.dtype.is_float() { unary::<U>(ctx, args, call) } else { unary_whole::<U>(ctx, args, call) }
}

/// The same as a textbook would write it: one thread.
pub fn unary_number_naive<U: Unary + UnaryWhole>(
    ctx: &CpuCtx<'_>,
    args: &mut NativeArgs<'_>,
    call: &Call,
) -> Result<()> {
    let one = ctx.alone();
    if call.dtype.is_float() { unary_naive::<U>(ctx, args, call) } else { unary_whole::<U>(&one, args, call) }
}

/// Integers are compiled once, and only the innermost loop for each width: the compiler makes vectors of it with what
/// every processor has.
fn unary_whole<U: UnaryWhole>(ctx: &CpuCtx<'_>, args: &mut NativeArgs<'_>, call: &Call) -> Result<()> {
    fn inner<U: UnaryWhole, T: Whole>(x: &[u8], y: &mut [u8]) {
        let (x, y): (&[T], &mut [T]) = (bytemuck::cast_slice(x), bytemuck::cast_slice_mut(y));
        for (y, x) in y.iter_mut().zip(x) {
            *y = U::whole(*x);
        }
    }
    let f: fn(&[u8], &mut [u8]) = match (call.dtype, U::SAME_BITS) {
        (DType::I8, false) => inner::<U, i8>,
        (DType::I16, false) => inner::<U, i16>,
        (DType::I32, false) => inner::<U, i32>,
        (DType::I64, false) => inner::<U, i64>,
        (DType::U8 | DType::I8, _) => inner::<U, u8>,
        (DType::U16 | DType::I16, _) => inner::<U, u16>,
        (DType::U32 | DType::I32, _) => inner::<U, u32>,
        (DType::U64 | DType::I64, _) => inner::<U, u64>,
        _ => return Err(call.no_dtype()),
    };
    let (n, size) = (call.size(0), call.dtype.size() as usize);
    let (x, y) = (args.input::<u8>(0, n * size)?, args.output::<u8>(0, n * size)?);
    aligned(x, size)?;
    aligned(y, size)?;
    let chunk = CpuCtx::chunk(n, ctx.parts_for_bytes(2 * n * size), 1024);
    ctx.split(y, chunk * size, |at, y| f(&x[at..at + y.len()], y));
    Ok(())
}

/// Refuses bytes that do not begin where an element may.
pub(super) fn aligned(bytes: &[u8], size: usize) -> Result<()> {
    if bytes.is_empty() || (bytes.as_ptr() as usize).is_multiple_of(size) {
        return Ok(());
    }
    Err(Error::new(Code::KernelFailed, format!("a buffer is not aligned for elements of {size} B")))
}
