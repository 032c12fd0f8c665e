//! Matrix products, one or many: tiles for floats (see `product`), blocked loops for integers, textbook loops as the weak
//! baseline.

use half::slice::HalfFloatSliceExt;

use crate::base::{DType, Result};

use super::math::Real;
use super::number::{Element as Stored, Number, with_element};
use super::product::{Element, FLOPS_PER_S, Scale, View, multiply};
use super::simd::tile::Block;
use super::simd::{Job, Style, dispatch};
use super::{Call, CpuCtx, NativeArgs};

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
        let (line_stride, depth_stride) = if self.trans_a { (1, self.m) } else { (self.k, 1) };
        View { data: &data[batch * self.m * self.k..][..self.m * self.k], line_stride, depth_stride }
    }
    /// B of one product: its columns are lines.
    fn b<'a, T>(&self, data: &'a [T], batch: usize) -> View<'a, T> {
        let (line_stride, depth_stride) = if self.trans_b { (self.k, 1) } else { (1, self.n) };
        View { data: &data[batch * self.k * self.n..][..self.k * self.n], line_stride, depth_stride }
    }
    fn scale<T: Real>(&self) -> Scale<T> {
        Scale { alpha: T::of(self.alpha), beta: T::of(self.beta) }
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
            product::<f32>(ctx, &p, a, b, c, p.scale());
            Ok(())
        }
        DType::F64 => {
            let (a, b, c) = p.operands(args)?;
            product::<f64>(ctx, &p, a, b, c, p.scale());
            Ok(())
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
/// of them, as `Problem` says.
fn product<T: Element + Number>(ctx: &CpuCtx<'_>, p: &Problem, a: &[T], b: &[T], c: &mut [T], scale: Scale<T>) {
    if c.is_empty() {
        return;
    }
    if p.batches == 1 {
        if c.len() <= FEW && p.k >= 2 * LONG_SUM {
            return by_sums(ctx, p, a, b, c, scale);
        }
        return multiply(ctx, &p.a(a, 0), &p.b(b, 0), p.k, scale, Block::new(c, p.m, p.n, p.n));
    }
    let one = p.m * p.n;
    let parts = ctx.parts_for_seconds(p.flops() / FLOPS_PER_S);
    if parts > 1 && p.batches < ctx.threads {
        for (batch, c) in c.chunks_exact_mut(one).enumerate() {
            multiply(ctx, &p.a(a, batch), &p.b(b, batch), p.k, scale, Block::new(c, p.m, p.n, p.n));
        }
        return;
    }
    let ctx_one = ctx.alone();
    ctx.split(c, CpuCtx::chunk(p.batches, parts, 1) * one, |first, c| {
        for (i, c) in c.chunks_exact_mut(one).enumerate() {
            let batch = first / one + i;
            multiply(&ctx_one, &p.a(a, batch), &p.b(b, batch), p.k, scale, Block::new(c, p.m, p.n, p.n));
        }
    });
}

/// Cuts k, the same for any number of threads: each part sums for all of C, into numbers of its own, which are then added in
/// order.
fn by_sums<T: Element + Number>(ctx: &CpuCtx<'_>, p: &Problem, a: &[T], b: &[T], c: &mut [T], scale: Scale<T>) {
    let parts = p.k.div_ceil(LONG_SUM);
    let mut sums = vec![T::ZERO; parts * c.len()];
    let (a, b) = (p.a(a, 0), p.b(b, 0));
    let alone = ctx.alone();
    ctx.split(&mut sums, c.len(), |first, sums| {
        let from = first / sums.len() * LONG_SUM;
        let a = View { data: &a.data[from * a.depth_stride..], ..a };
        let b = View { data: &b.data[from * b.depth_stride..], ..b };
        multiply(&alone, &a, &b, LONG_SUM.min(p.k - from), Scale::PLAIN, Block::new(sums, p.m, p.n, p.n));
    });
    for (i, c) in c.iter_mut().enumerate() {
        let sum = (0..parts).fold(T::ZERO, |s, part| Number::add(s, sums[part * p.m * p.n + i]));
        *c = scale.of(sum, *c);
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
    let (a, b, c) = p.operands::<H, H>(args)?;
    let mut acc = if p.beta == 0.0 { vec![0f32; c.len()] } else { wide(c) };
    product::<f32>(ctx, p, &wide(a), &wide(b), &mut acc, p.scale());
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
                let a = self.a.data[(self.first + i) * self.a.line_stride + q * self.a.depth_stride];
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
    with_element!(floats call.dtype, T => naive::<T, T, <T as Stored>::Acc>(args, call, Stored::load, Stored::store),
        else Err(call.no_dtype()))
}

fn naive<T: bytemuck::Pod, O: Stored<Acc = A>, A: Number>(
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
                    let x = load(a.data[i * a.line_stride + q * a.depth_stride]);
                    s = s.add(x.mul(load(b.data[j * b.line_stride + q * b.depth_stride])));
                }
                let c = &mut c[(batch * p.m + i) * p.n + j];
                let old = if p.beta == 0.0 { A::default() } else { beta.mul(c.load()) };
                *c = store(alpha.mul(s).add(old));
            }
        }
    }
    Ok(())
}
