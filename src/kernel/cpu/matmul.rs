//! Matrix products, one or many: the `gemm` crate per thread for floats, blocked loops for integers, textbook loops as
//! the weak baseline.

use half::slice::HalfFloatSliceExt;

use crate::base::{DType, Result};

use super::math::Real;
use super::number::{Element, Number, with_element};
use super::simd::{GemmElement, Job, Product, Style, View, dispatch, gemm_by_columns, gemm_part};
use super::{Call, CpuCtx, Failure, NativeArgs};

/// From here on a product of floats is shared out. Not by what a hand-over was measured to cost: how C is cut can change its last
/// bits, and those must not depend on a measurement.
const SHARED_FLOPS: f64 = 300e3;
/// Operations on integers that a thread does in a second, to guess how long a product takes.
const INT_OPS_PER_S: f64 = 10e9;

/// Sizes and scalars of products that lie one behind the other, read from params m, n, k, transA, transB, alpha, beta
/// and, for more than one product, their number.
struct Problem {
    m: usize,
    n: usize,
    k: usize,
    trans_a: bool,
    trans_b: bool,
    alpha: f64,
    beta: f64,
    batches: usize,
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
            batches: if call.params.len() > 7 { call.size(7) } else { 1 },
        }
    }
    fn flops(&self) -> f64 {
        2.0 * self.batches as f64 * self.m as f64 * self.n as f64 * self.k.max(1) as f64
    }
    /// A of one product from those of all.
    fn a<'a, T>(&self, data: &'a [T], batch: usize) -> View<'a, T> {
        let (row_stride, col_stride) = if self.trans_a { (1, self.m) } else { (self.k, 1) };
        View { data: &data[batch * self.m * self.k..][..self.m * self.k], row_stride, col_stride }
    }
    fn b<'a, T>(&self, data: &'a [T], batch: usize) -> View<'a, T> {
        let (row_stride, col_stride) = if self.trans_b { (1, self.k) } else { (self.n, 1) };
        View { data: &data[batch * self.k * self.n..][..self.k * self.n], row_stride, col_stride }
    }
    /// The operands of all products.
    fn operands<'a, T: bytemuck::Pod, O: bytemuck::Pod>(
        &self,
        args: &mut NativeArgs<'a>,
    ) -> Result<(&'a [T], &'a [T], &'a mut [O])> {
        let (m, n, k, b) = (self.m, self.n, self.k, self.batches);
        Ok((args.input(0, b * m * k)?, args.input(1, b * k * n)?, args.output(0, b * m * n)?))
    }
}

/// C = alpha·op(A)·op(B) + beta·C, row-major; C is not read when beta is 0.
/// Params: m, n, k, transA, transB (U64), alpha, beta. Dtypes f32, f64, f16 and bf16 (computed in f32), i32, i8 (C is i32).
pub fn gemm(ctx: &CpuCtx<'_>, args: &mut NativeArgs<'_>, call: &Call) -> Result<()> {
    let p = Problem::of(call);
    match call.dtype {
        DType::I8 => {
            let (a, b, c) = p.operands::<i8, i32>(args)?;
            let wide = |v: &[i8]| v.iter().map(|v| i32::from(*v)).collect::<Vec<_>>();
            int_product(ctx, &p, &wide(a), &wide(b), c);
            Ok(())
        }
        DType::I32 => {
            let (a, b, c) = p.operands::<i32, i32>(args)?;
            int_product(ctx, &p, a, b, c);
            Ok(())
        }
        _ => bmm(ctx, args, call),
    }
}

/// Products of floats that lie one behind the other. Params as [`gemm()`], then their number.
pub fn bmm(ctx: &CpuCtx<'_>, args: &mut NativeArgs<'_>, call: &Call) -> Result<()> {
    let p = Problem::of(call);
    match call.dtype {
        DType::F32 => {
            let (a, b, c) = p.operands(args)?;
            product::<f32>(ctx, &p, a, b, c, p.alpha as f32, p.beta as f32)
        }
        DType::F64 => {
            let (a, b, c) = p.operands(args)?;
            product::<f64>(ctx, &p, a, b, c, p.alpha, p.beta)
        }
        DType::F16 => half_product::<half::f16>(ctx, args, &p),
        DType::BF16 => half_product::<half::bf16>(ctx, args, &p),
        _ => Err(call.no_dtype()),
    }
}

/// C with few elements and a long sum for each: rows and columns would make no two pieces worth their while.
const FEW: usize = 256;
/// A piece of such a sum.
const LONG_SUM: usize = 8192;

/// The products of floats, row-major and one behind the other, shared out in the way that fits their shape. The slices hold all
/// of them, as `Problem` says; C is not read when beta is 0.
fn product<T: GemmElement + Number + Real>(
    ctx: &CpuCtx<'_>,
    p: &Problem,
    a: &[T],
    b: &[T],
    c: &mut [T],
    alpha: T,
    beta: T,
) -> Result<()> {
    if c.is_empty() {
        return Ok(());
    }
    // One piece for each thread: every piece packs the other operand again.
    let parts = if p.flops() < SHARED_FLOPS { 1 } else { ctx.threads };
    let single = p.batches == 1 && parts > 1;
    if p.batches == 1 && c.len() <= FEW && p.k >= 2 * LONG_SUM {
        return by_sums(ctx, p, a, b, c, (alpha, beta));
    }
    if p.m == 1 && p.batches == 1 && !p.trans_b {
        one_row(ctx, p, parts, a, b, c, (alpha, beta));
        return Ok(());
    }
    // Columns, where rows are few or, if there are as many, sums are long: with short sums most of the time goes into
    // writing C, which goes faster row by row.
    let across = p.n >= 2 * p.m || p.n >= p.m && p.k >= 64 && c.len() > 64 * 64;
    if single
        && across
        && p.k >= 8
        && let Some(team) = ctx.team
    {
        let width = CpuCtx::chunk(p.n, parts, 16);
        let (a, b) = (p.a(a, 0), p.b(b, 0));
        return gemm_by_columns(team, width, Product { m: p.m, n: p.n, k: p.k, alpha, a, b, beta, c });
    }
    by_rows(ctx, p, parts, a, b, c, (alpha, beta))
}

/// Adds four rows of B at a time, each times its element of A, to sums.
struct FourRows<'a, T> {
    a: &'a [T],
    /// From the first column of the sums on.
    b: &'a [T],
    stride: usize,
    sums: &'a mut [T],
}

impl<T: Real> Job for FourRows<'_, T> {
    type Out = ();
    #[inline(always)]
    fn run<S: Style>(self) {
        let n = self.sums.len();
        let row = |q: usize| &self.b[q * self.stride..][..n];
        let (fours, rest) = self.a.as_chunks::<4>();
        for (q, a) in fours.iter().enumerate() {
            let (r0, r1, r2, r3) = (row(4 * q), row(4 * q + 1), row(4 * q + 2), row(4 * q + 3));
            for j in 0..n {
                let s = r1[j].fma::<S>(a[1], r0[j].fma::<S>(a[0], self.sums[j]));
                self.sums[j] = r3[j].fma::<S>(a[3], r2[j].fma::<S>(a[2], s));
            }
        }
        for (q, a) in rest.iter().enumerate() {
            let r = row(4 * fours.len() + q);
            for (s, r) in self.sums.iter_mut().zip(r) {
                *s = r.fma::<S>(*a, *s);
            }
        }
    }
}

/// C of one row, B as it is stored: bound by memory, so B is read once and never copied.
fn one_row<T: GemmElement + Number + Real>(
    ctx: &CpuCtx<'_>,
    p: &Problem,
    parts: usize,
    a: &[T],
    b: &[T],
    c: &mut [T],
    (alpha, beta): (T, T),
) {
    // A transposed A of one row lies as this one does.
    let a = &a[..p.k];
    ctx.split(c, CpuCtx::chunk(p.n, parts, 64), |first, c| {
        let mut sums = vec![T::ZERO; c.len()];
        if p.k > 0 {
            dispatch(ctx.isa, FourRows { a, b: &b[first..], stride: p.n, sums: &mut sums });
        }
        for (c, s) in c.iter_mut().zip(sums) {
            let old = if beta == T::ZERO { T::ZERO } else { Number::mul(beta, *c) };
            *c = Number::add(Number::mul(alpha, s), old);
        }
    });
}

/// Runs the products in pieces of whole rows of C; a piece may begin and end within a matrix.
fn by_rows<T: GemmElement>(
    ctx: &CpuCtx<'_>,
    p: &Problem,
    parts: usize,
    a: &[T],
    b: &[T],
    c: &mut [T],
    (alpha, beta): (T, T),
) -> Result<()> {
    let rows = CpuCtx::chunk(p.batches * p.m, parts, 16);
    let failed = Failure::default();
    ctx.split(c, rows * p.n, |first, mut c| {
        let mut row = first / p.n;
        while !c.is_empty() {
            let (batch, inside) = (row / p.m, row % p.m);
            let m = (p.m - inside).min(c.len() / p.n);
            let (own, rest) = std::mem::take(&mut c).split_at_mut(m * p.n);
            let view = p.a(a, batch);
            let skip = (inside * view.row_stride).min(view.data.len());
            let a = View { data: &view.data[skip..], ..view };
            let part = Product { m, n: p.n, k: p.k, alpha, a, b: p.b(b, batch), beta, c: own };
            failed.note(gemm_part(part));
            row += m;
            c = rest;
        }
    });
    failed.end()
}

/// Cuts k, the same for any number of threads: each part sums for all of C, into numbers of its own, which are then added in
/// order.
fn by_sums<T: GemmElement + Number>(
    ctx: &CpuCtx<'_>,
    p: &Problem,
    a: &[T],
    b: &[T],
    c: &mut [T],
    (alpha, beta): (T, T),
) -> Result<()> {
    let run = LONG_SUM;
    let parts = p.k.div_ceil(run);
    let mut sums = vec![T::ZERO; parts * c.len()];
    let failed = Failure::default();
    let (a, b) = (p.a(a, 0), p.b(b, 0));
    ctx.split(&mut sums, c.len(), |first, sums| {
        let from = first / sums.len() * run;
        let a = View { data: &a.data[from * a.col_stride..], ..a };
        let b = View { data: &b.data[from * b.row_stride..], ..b };
        let k = run.min(p.k - from);
        let part = Product { m: p.m, n: p.n, k, alpha, a, b, beta: T::ZERO, c: sums };
        failed.note(gemm_part(part));
    });
    failed.end()?;
    for (i, c) in c.iter_mut().enumerate() {
        let old = if beta == T::ZERO { T::ZERO } else { Number::mul(beta, *c) };
        *c = (0..parts).fold(old, |s, part| Number::add(s, sums[part * p.m * p.n + i]));
    }
    Ok(())
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
    let (a, b, c) = p.operands::<H, H>(args)?;
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
    let parts = ctx.parts_for_seconds(p.flops() / INT_OPS_PER_S).min(ctx.threads);
    ctx.split(c, CpuCtx::chunk(p.m, parts, 1) * p.n, |first, c| {
        dispatch(ctx.isa, IntRows { p, a: p.a(a, 0), b: &rows_of_b, first: first / p.n, c });
    });
}

/// The textbook's three loops over i, j, k on one thread. Params and dtypes as [`gemm()`].
pub fn gemm_naive(ctx: &CpuCtx<'_>, args: &mut NativeArgs<'_>, call: &Call) -> Result<()> {
    match call.dtype {
        DType::I8 => naive::<i8, i32, i32>(args, call, i32::from, |v| v),
        DType::I32 => naive::<i32, i32, i32>(args, call, |v| v, |v| v),
        _ => bmm_naive(ctx, args, call),
    }
}

/// The same for floats and many products.
pub fn bmm_naive(_: &CpuCtx<'_>, args: &mut NativeArgs<'_>, call: &Call) -> Result<()> {
    with_element!(floats call.dtype, T => naive::<T, T, <T as Element>::Acc>(args, call, Element::load, Element::store),
        else Err(call.no_dtype()))
}

fn naive<T: bytemuck::Pod, O: Element<Acc = A>, A: Number>(
    args: &mut NativeArgs<'_>,
    call: &Call,
    load: impl Fn(T) -> A,
    store: impl Fn(A) -> O,
) -> Result<()> {
    let p = Problem::of(call);
    let (alpha, beta) = (A::of(call.params[5]), A::of(call.params[6]));
    let (a, b, c) = p.operands::<T, O>(args)?;
    for batch in 0..p.batches {
        let (a, b) = (p.a(a, batch), p.b(b, batch));
        for i in 0..p.m {
            for j in 0..p.n {
                let mut s = A::default();
                for q in 0..p.k {
                    let x = load(a.data[i * a.row_stride + q * a.col_stride]);
                    s = s.add(x.mul(load(b.data[q * b.row_stride + j * b.col_stride])));
                }
                let c = &mut c[(batch * p.m + i) * p.n + j];
                let old = if p.beta == 0.0 { A::default() } else { beta.mul(c.load()) };
                *c = store(alpha.mul(s).add(old));
            }
        }
    }
    Ok(())
}
