//! The variant `blas`: products by a library that the device has opened. A kernel here only takes its arguments apart; the
//! library is behind [`Blas`], so that tests may put anything in its place.

use bytemuck::Pod;

use crate::base::{Code, DType, Error, Result};

use super::{Call, CpuCtx, NativeArgs};

/// C = alpha·op(A)·op(B) + beta·C, row-major without gaps; no size is 0.
#[derive(Debug)]
pub struct Gemm<'a, T> {
    /// Rows of C.
    pub m: usize,
    /// Columns of C.
    pub n: usize,
    /// Length of the sums.
    pub k: usize,
    /// A is stored k by m.
    pub trans_a: bool,
    /// B is stored n by k.
    pub trans_b: bool,
    /// Factor of the product.
    pub alpha: T,
    /// A.
    pub a: &'a [T],
    /// B.
    pub b: &'a [T],
    /// Factor of C; with 0 it is not read.
    pub beta: T,
    /// C.
    pub c: &'a mut [T],
}

/// y = alpha·op(A)·x + beta·y; no size is 0.
#[derive(Debug)]
pub struct Gemv<'a, T> {
    /// Elements of y.
    pub m: usize,
    /// Elements of x.
    pub n: usize,
    /// A is stored n by m.
    pub trans: bool,
    /// Factor of the product.
    pub alpha: T,
    /// A.
    pub a: &'a [T],
    /// x.
    pub x: &'a [T],
    /// Factor of y; with 0 it is not read.
    pub beta: T,
    /// y.
    pub y: &'a mut [T],
}

/// A library's routines for one type. Errors: `SizeOverflow` for a size beyond the library's integers, `BufferBounds` for slices
/// that are shorter than the sizes say.
pub trait Routines<T>: Sync {
    /// `?gemm`.
    fn gemm(&self, p: Gemm<'_, T>) -> Result<()>;
    /// `?gemv`.
    fn gemv(&self, p: Gemv<'_, T>) -> Result<()>;
    /// `?dot` of slices of one length.
    fn dot(&self, a: &[T], b: &[T]) -> Result<T>;
    /// `?nrm2`.
    fn nrm2(&self, x: &[T]) -> Result<T>;
    /// `?axpy`: y += alpha·x, of one length.
    fn axpy(&self, alpha: T, x: &[T], y: &mut [T]) -> Result<()>;
}

/// A library's routines.
pub trait Blas: Routines<f32> + Routines<f64> {}

impl<B: Routines<f32> + Routines<f64>> Blas for B {}

/// A type that a BLAS has.
trait Scalar: Pod {
    fn of(v: f64) -> Self;
    fn routines(blas: &dyn Blas) -> &dyn Routines<Self>;
}

impl Scalar for f32 {
    fn of(v: f64) -> Self {
        v as f32
    }
    fn routines(blas: &dyn Blas) -> &dyn Routines<Self> {
        blas
    }
}

impl Scalar for f64 {
    fn of(v: f64) -> Self {
        v
    }
    fn routines(blas: &dyn Blas) -> &dyn Routines<Self> {
        blas
    }
}

fn routines<'a, T: Scalar>(ctx: &CpuCtx<'a>) -> Result<&'a dyn Routines<T>> {
    let none = || Error::new(Code::LibraryNotFound, "no BLAS was opened");
    ctx.blas.map(T::routines).ok_or_else(none)
}

/// Runs the function for the type of the operands.
macro_rules! typed {
    ($f:ident, $ctx:ident, $args:ident, $call:ident) => {
        match $call.dtype {
            DType::F32 => $f::<f32>($ctx, $args, $call),
            DType::F64 => $f::<f64>($ctx, $args, $call),
            _ => Err($call.no_dtype()),
        }
    };
}

/// One product, or many that lie one behind the other: a call of the library for each, as NumPy's `matmul` does it. Params:
/// m, n, k, transA, transB, alpha, beta and, for more than one, their number.
pub fn gemm(ctx: &CpuCtx<'_>, args: &mut NativeArgs<'_>, call: &Call) -> Result<()> {
    typed!(gemm_of, ctx, args, call)
}

fn gemm_of<T: Scalar>(ctx: &CpuCtx<'_>, args: &mut NativeArgs<'_>, call: &Call) -> Result<()> {
    let blas = routines::<T>(ctx)?;
    let (m, n, k) = (call.size(0), call.size(1), call.size(2));
    let (trans_a, trans_b) = (call.size(3) != 0, call.size(4) != 0);
    let (alpha, beta) = (T::of(call.scalar(5)), T::of(call.scalar(6)));
    let batches = if call.params.len() > 7 { call.size(7) } else { 1 };
    let (a, b) = (args.input::<T>(0, batches * m * k)?, args.input::<T>(1, batches * k * n)?);
    let c = args.output::<T>(0, batches * m * n)?;
    for (i, c) in c.chunks_exact_mut((m * n).max(1)).enumerate() {
        let (a, b) = (&a[i * m * k..][..m * k], &b[i * k * n..][..k * n]);
        blas.gemm(Gemm { m, n, k, trans_a, trans_b, alpha, a, b, beta, c })?;
    }
    Ok(())
}

/// Params: m, n, transA, alpha, beta.
pub fn gemv(ctx: &CpuCtx<'_>, args: &mut NativeArgs<'_>, call: &Call) -> Result<()> {
    typed!(gemv_of, ctx, args, call)
}

fn gemv_of<T: Scalar>(ctx: &CpuCtx<'_>, args: &mut NativeArgs<'_>, call: &Call) -> Result<()> {
    let blas = routines::<T>(ctx)?;
    let (m, n, trans) = (call.size(0), call.size(1), call.size(2) != 0);
    let (alpha, beta) = (T::of(call.scalar(3)), T::of(call.scalar(4)));
    let (a, x) = (args.input::<T>(0, m * n)?, args.input::<T>(1, n)?);
    let y = args.output::<T>(0, m)?;
    blas.gemv(Gemv { m, n, trans, alpha, a, x, beta, y })
}

/// Params: n.
pub fn dot(ctx: &CpuCtx<'_>, args: &mut NativeArgs<'_>, call: &Call) -> Result<()> {
    typed!(dot_of, ctx, args, call)
}

fn dot_of<T: Scalar>(ctx: &CpuCtx<'_>, args: &mut NativeArgs<'_>, call: &Call) -> Result<()> {
    let blas = routines::<T>(ctx)?;
    let n = call.size(0);
    let (a, b) = (args.input::<T>(0, n)?, args.input::<T>(1, n)?);
    args.output::<T>(0, 1)?[0] = blas.dot(a, b)?;
    Ok(())
}

/// Params: n.
pub fn nrm2(ctx: &CpuCtx<'_>, args: &mut NativeArgs<'_>, call: &Call) -> Result<()> {
    typed!(nrm2_of, ctx, args, call)
}

fn nrm2_of<T: Scalar>(ctx: &CpuCtx<'_>, args: &mut NativeArgs<'_>, call: &Call) -> Result<()> {
    let blas = routines::<T>(ctx)?;
    let x = args.input::<T>(0, call.size(0))?;
    args.output::<T>(0, 1)?[0] = blas.nrm2(x)?;
    Ok(())
}

/// Params: n, alpha.
pub fn axpy(ctx: &CpuCtx<'_>, args: &mut NativeArgs<'_>, call: &Call) -> Result<()> {
    typed!(axpy_of, ctx, args, call)
}

fn axpy_of<T: Scalar>(ctx: &CpuCtx<'_>, args: &mut NativeArgs<'_>, call: &Call) -> Result<()> {
    let blas = routines::<T>(ctx)?;
    let (n, alpha) = (call.size(0), T::of(call.scalar(1)));
    let (x, y) = (args.input::<T>(0, n)?, args.output::<T>(0, n)?);
    blas.axpy(alpha, x, y)
}
