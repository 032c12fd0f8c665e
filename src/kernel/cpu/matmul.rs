//! Matrix product: the `gemm` crate per thread for floats, blocked loops for i32, textbook loops as the weak baseline.

use half::slice::HalfFloatSliceExt;

use crate::base::{DType, Error, Result};

use super::simd::{GemmElement, Job, Style, View, dispatch, gemm_part};
use super::{Call, CpuCtx, NativeArgs};

/// Sizes and scalars of one product, read from params m, n, k, transA, transB, alpha, beta.
struct Problem {
    m: usize,
    n: usize,
    k: usize,
    trans_a: bool,
    trans_b: bool,
    alpha: f64,
    beta: f64,
}

impl Problem {
    fn of(call: &Call) -> Self {
        Problem {
            m: call.size(0),
            n: call.size(1),
            k: call.size(2),
            trans_a: call.size(3) != 0,
            trans_b: call.size(4) != 0,
            alpha: call.scalar(5),
            beta: call.scalar(6),
        }
    }
    fn a<'a, T>(&self, data: &'a [T]) -> View<'a, T> {
        let (row_stride, col_stride) = if self.trans_a { (1, self.m) } else { (self.k, 1) };
        View { data, row_stride, col_stride }
    }
    fn b<'a, T>(&self, data: &'a [T]) -> View<'a, T> {
        let (row_stride, col_stride) = if self.trans_b { (1, self.k) } else { (self.n, 1) };
        View { data, row_stride, col_stride }
    }
}

/// C = alpha·op(A)·op(B) + beta·C, row-major; C is not read when beta is 0.
/// Params: m, n, k, transA, transB (U64), alpha, beta. Dtypes f32, f64, i32, f16 and bf16 (computed in f32).
pub fn gemm(ctx: &CpuCtx<'_>, args: &mut NativeArgs<'_>, call: &Call) -> Result<()> {
    let p = Problem::of(call);
    match call.dtype {
        DType::F32 => {
            let (a, b, c) = (args.input(0, p.m * p.k)?, args.input(1, p.k * p.n)?, args.output(0, p.m * p.n)?);
            product::<f32>(ctx, &p, a, b, c, p.alpha as f32, p.beta as f32)
        }
        DType::F64 => {
            let (a, b, c) = (args.input(0, p.m * p.k)?, args.input(1, p.k * p.n)?, args.output(0, p.m * p.n)?);
            product::<f64>(ctx, &p, a, b, c, p.alpha, p.beta)
        }
        DType::F16 => half_product::<half::f16>(ctx, args, &p),
        DType::BF16 => half_product::<half::bf16>(ctx, args, &p),
        DType::I32 => {
            let (a, b, c) = (args.input(0, p.m * p.k)?, args.input(1, p.k * p.n)?, args.output(0, p.m * p.n)?);
            int_product(ctx, &p, a, b, c);
            Ok(())
        }
        _ => Err(call.no_dtype()),
    }
}

/// Runs the product in pieces of whole rows of C, one per thread.
fn product<T: GemmElement>(
    ctx: &CpuCtx<'_>,
    p: &Problem,
    a: &[T],
    b: &[T],
    c: &mut [T],
    alpha: T,
    beta: T,
) -> Result<()> {
    let flops = 2 * p.m * p.n * p.k.max(1);
    // Below about 4 MFLOP one thread is done before a second one has woken up.
    let parts = if flops < 4_000_000 { 1 } else { ctx.threads };
    let rows = CpuCtx::chunk(p.m, parts, 16);
    let failed = std::sync::Mutex::new(None::<Error>);
    let view = p.a(a);
    ctx.split(c, rows * p.n.max(1), |first, c| {
        let row = first / p.n.max(1);
        let from = (row * view.row_stride).min(view.data.len());
        let part = View { data: &view.data[from..], ..view };
        if let Err(e) = gemm_part(c.len() / p.n.max(1), p.n, p.k, alpha, part, p.b(b), beta, c) {
            *failed.lock().unwrap_or_else(std::sync::PoisonError::into_inner) = Some(e);
        }
    });
    match failed.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner) {
        Some(e) => Err(e),
        None => Ok(()),
    }
}

fn half_product<H>(ctx: &CpuCtx<'_>, args: &mut NativeArgs<'_>, p: &Problem) -> Result<()>
where
    H: bytemuck::Pod + Send + Sync,
    [H]: HalfFloatSliceExt,
{
    let wide = |h: &[H]| {
        let mut v = vec![0f32; h.len()];
        h.convert_to_f32_slice(&mut v);
        v
    };
    let (a, b) = (args.input::<H>(0, p.m * p.k)?, args.input::<H>(1, p.k * p.n)?);
    let c = args.output::<H>(0, p.m * p.n)?;
    let mut acc = if p.beta == 0.0 { vec![0f32; c.len()] } else { wide(c) };
    product::<f32>(ctx, p, &wide(a), &wide(b), &mut acc, p.alpha as f32, p.beta as f32)?;
    c.convert_from_f32_slice(&acc);
    Ok(())
}

struct IntRows<'a> {
    p: &'a Problem,
    a: View<'a, i32>,
    b: &'a [i32],
    first: usize,
    c: &'a mut [i32],
}

impl Job for IntRows<'_> {
    type Out = ();
    /// i-k-j order: the inner loop runs along rows of B and C.
    #[inline(always)]
    fn run<S: Style>(self) {
        let (p, n) = (self.p, self.p.n);
        let mut row = vec![0i32; n];
        for (i, c) in self.c.chunks_mut(n).enumerate() {
            row.fill(0);
            for q in 0..p.k {
                let a = self.a.data[(self.first + i) * self.a.row_stride + q * self.a.col_stride];
                for (r, b) in row.iter_mut().zip(&self.b[q * n..(q + 1) * n]) {
                    *r = r.wrapping_add(a.wrapping_mul(*b));
                }
            }
            scale_rows(c, &row, p.alpha as i32, p.beta as i32);
        }
    }
}

fn scale_rows(c: &mut [i32], sums: &[i32], alpha: i32, beta: i32) {
    for (c, s) in c.iter_mut().zip(sums) {
        let old = if beta == 0 { 0 } else { beta.wrapping_mul(*c) };
        *c = alpha.wrapping_mul(*s).wrapping_add(old);
    }
}

fn int_product(ctx: &CpuCtx<'_>, p: &Problem, a: &[i32], b: &[i32], c: &mut [i32]) {
    if p.n == 0 || p.m == 0 {
        return;
    }
    // A transposed B is laid out by rows first, so that one loop serves both.
    let rows_of_b: std::borrow::Cow<'_, [i32]> = if p.trans_b {
        (0..p.k * p.n).map(|i| b[i % p.n * p.k + i / p.n]).collect::<Vec<_>>().into()
    } else {
        b.into()
    };
    let parts = if 2 * p.m * p.n * p.k < 1_000_000 { 1 } else { ctx.threads };
    ctx.split(c, CpuCtx::chunk(p.m, parts, 1) * p.n, |first, c| {
        dispatch(ctx.isa, IntRows { p, a: p.a(a), b: &rows_of_b, first: first / p.n, c });
    });
}

/// The textbook's three loops over i, j, k on one thread. Params and dtypes as [`gemm()`].
pub fn gemm_naive(_: &CpuCtx<'_>, args: &mut NativeArgs<'_>, call: &Call) -> Result<()> {
    let p = Problem::of(call);
    match call.dtype {
        DType::F32 => naive(args, &p, 0f32, |s, a, b| s + a * b, |s, c| p.alpha as f32 * s + c, |c| p.beta as f32 * c),
        DType::F64 => naive(args, &p, 0f64, |s, a, b| s + a * b, |s, c| p.alpha * s + c, |c| p.beta * c),
        DType::I32 => naive(
            args,
            &p,
            0i32,
            |s, a, b| s.wrapping_add(a.wrapping_mul(b)),
            |s, c| (p.alpha as i32).wrapping_mul(s).wrapping_add(c),
            |c| (p.beta as i32).wrapping_mul(c),
        ),
        DType::F16 => naive_half::<half::f16>(args, &p),
        DType::BF16 => naive_half::<half::bf16>(args, &p),
        _ => Err(call.no_dtype()),
    }
}

fn naive<T: bytemuck::Pod>(
    args: &mut NativeArgs<'_>,
    p: &Problem,
    zero: T,
    step: impl Fn(T, T, T) -> T,
    finish: impl Fn(T, T) -> T,
    scaled: impl Fn(T) -> T,
) -> Result<()> {
    let (a, b) = (p.a(args.input::<T>(0, p.m * p.k)?), p.b(args.input::<T>(1, p.k * p.n)?));
    let c = args.output::<T>(0, p.m * p.n)?;
    for i in 0..p.m {
        for j in 0..p.n {
            let mut s = zero;
            for q in 0..p.k {
                let (x, y) = (a.data[i * a.row_stride + q * a.col_stride], b.data[q * b.row_stride + j * b.col_stride]);
                s = step(s, x, y);
            }
            let c = &mut c[i * p.n + j];
            *c = finish(s, if p.beta == 0.0 { zero } else { scaled(*c) });
        }
    }
    Ok(())
}

fn naive_half<H>(args: &mut NativeArgs<'_>, p: &Problem) -> Result<()>
where
    H: bytemuck::Pod + Into<f32>,
    [H]: HalfFloatSliceExt,
{
    let (a, b) = (p.a(args.input::<H>(0, p.m * p.k)?), p.b(args.input::<H>(1, p.k * p.n)?));
    let c = args.output::<H>(0, p.m * p.n)?;
    for i in 0..p.m {
        for j in 0..p.n {
            let mut s = 0f32;
            for q in 0..p.k {
                let x: f32 = a.data[i * a.row_stride + q * a.col_stride].into();
                let y: f32 = b.data[q * b.row_stride + j * b.col_stride].into();
                s += x * y;
            }
            let at = i * p.n + j;
            let old: f32 = if p.beta == 0.0 { 0.0 } else { p.beta as f32 * c[at].into() };
            c[at..=at].convert_from_f32_slice(&[p.alpha as f32 * s + old]);
        }
    }
    Ok(())
}
