//! Matrix products, one or many: tiles for floats (see `product`), blocked loops for integers, textbook loops as the weak
//! baseline.

use std::ops::Range;

use half::slice::HalfFloatSliceExt;

use crate::base::{DType, Result};

use super::combine;
use super::dots;
use super::large::{self, Failure};
use super::math::Real;
use super::number::{Element as Stored, Number, with_element};
use super::product::{Element, FLOPS_PER_S, Scale, Side, View, multiply, multiply_by};
use super::simd::routine::GemmElement;
use super::simd::sweep::Swept;
use super::simd::tile::{Block, Bytes};
use super::{Call, CpuCtx, NativeArgs};

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
            byte_product(ctx, Bytes::of(ctx.isa), &p, a, b, c);
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
    let tiny_each = p.flops() < SOME && p.flops() < TINY_EACH * p.batches as f64;
    if p.flops() < TINY || tiny_each {
        return bmm_naive(ctx, args, call);
    }
    match call.dtype {
        DType::F32 => {
            let (a, b, c) = p.operands(args)?;
            product::<f32>(ctx, &p, a, b, c, p.scale())
        }
        DType::F64 => {
            let (a, b, c) = p.operands(args)?;
            product::<f64>(ctx, &p, a, b, c, p.scale())
        }
        DType::F16 => half_product::<half::f16>(ctx, args, &p),
        DType::BF16 => half_product::<half::bf16>(ctx, args, &p),
        _ => Err(call.no_dtype()),
    }
}

/// C with so few elements and a long sum for each is shared out by cutting the sums: pieces of C would be small, and each would
/// lay out all of the other operand.
const FEW: usize = 32 * 32;
/// Pieces of the sums, the same for any number of threads, and the least depth of one.
const PIECES: usize = 16;
const LEAST: usize = 512;
/// Fewer operations are done by plain loops; of products with fewer than `TINY_EACH` also up to `SOME` in all, since each would
/// take longer to begin than to compute.
const TINY: f64 = 1000.0;
const TINY_EACH: f64 = 256.0;
const SOME: f64 = 20_000.0;

/// The products of floats, row-major and one behind the other, each computed and shared out in the way that fits its shape. The
/// slices hold all of them, as `Problem` says.
fn product<T: Element + Real + GemmElement + Swept>(
    ctx: &CpuCtx<'_>,
    p: &Problem,
    a: &[T],
    b: &[T],
    c: &mut [T],
    scale: Scale<T>,
) -> Result<()> {
    if c.is_empty() {
        return Ok(());
    }
    let one = p.m * p.n;
    let shape = (p.m, p.n, p.k);
    let parts = ctx.parts_for_seconds(p.flops() / FLOPS_PER_S);
    if p.batches < ctx.threads || parts == 1 {
        for (batch, c) in c.chunks_exact_mut(one).enumerate() {
            single(ctx, &p.a(a, batch), &p.b(b, batch), shape, scale, c)?;
        }
        return Ok(());
    }
    let (alone, failed) = (ctx.alone(), Failure::default());
    ctx.split(c, CpuCtx::chunk(p.batches, parts, 1) * one, |first, c| {
        for (i, c) in c.chunks_exact_mut(one).enumerate() {
            let batch = first / one + i;
            failed.note(single(&alone, &p.a(a, batch), &p.b(b, batch), shape, scale, c));
        }
    });
    failed.end()
}

/// One product of floats.
pub(super) fn single<T: Element + Real + GemmElement + Swept>(
    ctx: &CpuCtx<'_>,
    a: &View<'_, T>,
    b: &View<'_, T>,
    (m, n, k): (usize, usize, usize),
    scale: Scale<T>,
    c: &mut [T],
) -> Result<()> {
    if c.len() <= FEW && k >= 2 * LEAST && k >= 16 * m.max(n) {
        by_sums(ctx, a, b, (m, n, k), scale, c);
    } else if m == 1 && n >= combine::LEAST && b.line_stride == 1 {
        combine::row(ctx, a, b, k, scale, c);
    } else if (n > 1 || m == 1) && dots::multiply(ctx, a, b, (m, n, k), scale, c) {
        // Done.
    } else if large::suits(ctx.isa, (m, n, k)) {
        return large::multiply(ctx, a, b, (m, n, k), scale, c);
    } else {
        multiply(ctx, a, b, k, scale, Block::new(c, m, n, n));
    }
    Ok(())
}

/// Cuts k, the same for any number of threads: each part sums for all of C, into numbers of its own, which are then added in
/// order.
fn by_sums<T: Element + Swept>(
    ctx: &CpuCtx<'_>,
    a: &View<'_, T>,
    b: &View<'_, T>,
    (m, n, k): (usize, usize, usize),
    scale: Scale<T>,
    c: &mut [T],
) {
    let long = k.div_ceil(PIECES).max(LEAST);
    let parts = k.div_ceil(long);
    let mut sums = vec![T::ZERO; parts * c.len()];
    let alone = ctx.alone();
    ctx.split(&mut sums, c.len(), |first, sums| {
        let from = first / sums.len() * long;
        let a = View { data: &a.data[from * a.depth_stride..], ..*a };
        let b = View { data: &b.data[from * b.depth_stride..], ..*b };
        let shape = (m, n, long.min(k - from));
        if !((m == 1 || n == 1) && dots::multiply(&alone, &a, &b, shape, Scale::PLAIN, sums)) {
            multiply(&alone, &a, &b, shape.2, Scale::PLAIN, Block::new(sums, m, n, n));
        }
    });
    for (i, c) in c.iter_mut().enumerate() {
        let sum = (0..parts).fold(T::ZERO, |s, part| Number::add(s, sums[part * m * n + i]));
        *c = scale.of(sum, *c);
    }
}

/// A matrix of half-precision numbers, laid out as f32.
struct Halves<'a, H>(View<'a, H>);

impl<H> Side<f32> for Halves<'_, H>
where
    H: bytemuck::Pod + Send + Sync,
    [H]: HalfFloatSliceExt,
{
    fn pack(&self, first: usize, count: usize, depths: Range<usize>, width: usize, out: &mut [f32]) {
        let v = &self.0;
        if v.line_stride == 1 {
            for (p, out) in depths.zip(out.chunks_exact_mut(width)) {
                let (used, rest) = out.split_at_mut(count);
                v.data[first + p * v.depth_stride..][..count].convert_to_f32_slice(used);
                rest.fill(0.0);
            }
            return;
        }
        out.fill(0.0);
        let mut line = vec![0.0; depths.len()];
        for i in 0..count {
            v.data[(first + i) * v.line_stride + depths.start..][..depths.len()].convert_to_f32_slice(&mut line);
            for (out, v) in out[i..].iter_mut().step_by(width).zip(&line) {
                *out = *v;
            }
        }
    }

    fn pack_rows(&self, first: usize, count: usize, depths: Range<usize>, out: &mut [f32]) -> bool {
        let (v, len) = (&self.0, depths.len());
        if v.depth_stride != 1 {
            self.pack(first, count, depths, count, &mut out[..count * len]);
            return false;
        }
        for (i, out) in out.chunks_exact_mut(len).take(count).enumerate() {
            v.data[(first + i) * v.line_stride + depths.start..][..len].convert_to_f32_slice(out);
        }
        true
    }
}

/// Products of f16 or bf16: converted to f32 where they are laid out, summed in f32, rounded once at the end.
fn half_product<H>(ctx: &CpuCtx<'_>, args: &mut NativeArgs<'_>, p: &Problem) -> Result<()>
where
    H: bytemuck::Pod + Send + Sync,
    [H]: HalfFloatSliceExt,
{
    let (a, b, c) = p.operands::<H, H>(args)?;
    let mut sums = vec![0f32; c.len()];
    if p.beta != 0.0 {
        c.convert_to_f32_slice(&mut sums);
    }
    for (batch, sums) in sums.chunks_exact_mut((p.m * p.n).max(1)).enumerate() {
        let (a, b) = (Halves(p.a(a, batch)), Halves(p.b(b, batch)));
        multiply(ctx, &a, &b, p.k, p.scale(), Block::new(sums, p.m, p.n, p.n));
    }
    let parts = ctx.parts_for_bytes(2 * size_of_val(&sums[..]));
    ctx.split(c, CpuCtx::chunk(sums.len(), parts, 64), |first, c| {
        c.convert_from_f32_slice(&sums[first..first + c.len()]);
    });
    Ok(())
}

/// Products of i32; sums wrap.
fn int_product(ctx: &CpuCtx<'_>, p: &Problem, a: &[i32], b: &[i32], c: &mut [i32]) {
    let scale = Scale { alpha: p.alpha as i32, beta: p.beta as i32 };
    multiply(ctx, &p.a(a, 0), &p.b(b, 0), p.k, scale, Block::new(c, p.m, p.n, p.n));
}

/// Products of i8 as [`Bytes`] has them: several that are neighbours in k make one element, zeros behind the last.
fn byte_product(ctx: &CpuCtx<'_>, bytes: Bytes, p: &Problem, a: &[i8], b: &[i8], c: &mut [i32]) {
    let (a, b) = (p.a(a, 0), p.b(b, 0));
    let (set, together) = match &bytes {
        Bytes::Pairs(set) => (set, 2),
        Bytes::Quads(set) => (set, 4),
    };
    let k = p.k.div_ceil(together);
    // Element `q` of a line: `together` numbers of it.
    let of = |v: &View<'_, i8>, line: usize, q: usize| {
        let number = |i: usize| {
            let at = q * together + i;
            if at < p.k { v.data[line * v.line_stride + at * v.depth_stride] } else { 0 }
        };
        match bytes {
            Bytes::Pairs(_) => Bytes::pair(number(0), number(1)),
            Bytes::Quads(_) => i32::from_le_bytes(std::array::from_fn(|i| number(i) as u8)),
        }
    };
    let mut left = vec![0; p.m * k];
    let mut right = vec![0; k * p.n];
    let parts = ctx.parts_for_bytes(4 * size_of_val(&left[..]));
    ctx.split(&mut left, CpuCtx::chunk(p.m, parts, 1) * k.max(1), |first, left| {
        for (at, out) in left.iter_mut().enumerate() {
            *out = of(&a, (first + at) / k, (first + at) % k);
            if matches!(bytes, Bytes::Quads(_)) {
                *out ^= i32::from_le_bytes([0x80; 4]);
            }
        }
    });
    let parts = ctx.parts_for_bytes(4 * size_of_val(&right[..]));
    ctx.split(&mut right, CpuCtx::chunk(k, parts, 1) * p.n.max(1), |first, right| {
        for (at, out) in right.iter_mut().enumerate() {
            *out = of(&b, (first + at) % p.n, (first + at) / p.n);
        }
    });
    let (alpha, beta) = (p.alpha as i32, p.beta as i32);
    let a = View { data: &left[..], line_stride: k, depth_stride: 1 };
    let b = View { data: &right[..], line_stride: 1, depth_stride: p.n };
    if let Bytes::Quads(_) = bytes {
        // What raising A by 128 adds to the sums of a column, taken from C before they come.
        let mut raised = vec![0i32; p.n];
        for row in right.chunks_exact(p.n.max(1)) {
            for (sum, quad) in raised.iter_mut().zip(row) {
                let four: i32 = quad.to_le_bytes().iter().map(|v| i32::from(*v as i8)).sum();
                *sum = sum.wrapping_add(four << 7);
            }
        }
        for row in c.chunks_exact_mut(p.n.max(1)) {
            for (c, raised) in row.iter_mut().zip(&raised) {
                let old = if beta == 0 { 0 } else { beta.wrapping_mul(*c) };
                *c = old.wrapping_sub(alpha.wrapping_mul(*raised));
            }
        }
        return multiply_by(ctx, set, &a, &b, k, Scale { alpha, beta: 1 }, Block::new(c, p.m, p.n, p.n));
    }
    multiply_by(ctx, set, &a, &b, k, Scale { alpha, beta }, Block::new(c, p.m, p.n, p.n));
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::Param;
    use crate::kernel::cpu::{Isa, NativeFn};

    fn isas() -> Vec<Isa> {
        ["baseline", "avx2", "avx512"].iter().map(|name| Isa::capped(name).unwrap()).collect()
    }

    fn run<I: bytemuck::Pod, O: bytemuck::Pod>(
        f: NativeFn,
        isa: Isa,
        call: &Call,
        ab: (&[I], &[I]),
        c: &[O],
    ) -> Vec<O> {
        let mut c = c.to_vec();
        let mut args = NativeArgs {
            ins: vec![bytemuck::cast_slice(ab.0), bytemuck::cast_slice(ab.1)],
            outs: vec![bytemuck::cast_slice_mut(&mut c)],
        };
        f(&CpuCtx { threads: 1, isa, team: None, blas: None }, &mut args, call).unwrap();
        c
    }

    fn call(dtype: DType, [m, n, k]: [u64; 3], trans: (bool, bool), (alpha, beta): (f64, f64)) -> Call {
        let mut params: Vec<Param> = [m, n, k, trans.0.into(), trans.1.into()].map(Param::U64).to_vec();
        params.extend([Param::scalar(dtype, alpha), Param::scalar(dtype, beta)]);
        Call { dtype, params }
    }

    const SHAPES: [[u64; 3]; 14] = [
        [1, 1, 1],
        [3, 2, 5],
        [5, 9, 4],
        [16, 16, 16],
        [33, 65, 17],
        [70, 3, 200],
        [70, 8, 97],
        [1, 50, 1000],
        [50, 1, 1000],
        [4, 70, 129],
        [8, 8, 3001],
        [20, 30, 1025],
        [12, 40, 3],
        [130, 70, 66],
    ];
    const SCALES: [(f64, f64); 4] = [(1.0, 0.0), (2.0, 1.0), (-1.0, 3.0), (1.0, 1.0)];

    #[test]
    fn products_of_integers_are_those_of_plain_loops() {
        for (i, shape) in SHAPES.into_iter().enumerate() {
            for trans in [(false, false), (true, false), (false, true), (true, true)] {
                let [m, n, k] = shape.map(|v| v as usize);
                let wide = |len: usize, seed: usize| {
                    (0..len).map(|i| (i * 2_654_435_761 + seed * 97) as i32).collect::<Vec<i32>>()
                };
                let (a, b, c) = (wide(m * k, 1), wide(k * n, 2), wide(m * n, 3));
                // All bytes, -128 among them.
                let (a8, b8): (Vec<i8>, Vec<i8>) =
                    (a.iter().map(|v| (v >> 7) as i8).collect(), b.iter().map(|v| (v >> 9) as i8).collect());
                let (of_32, of_8) =
                    (call(DType::I32, shape, trans, SCALES[i % 4]), call(DType::I8, shape, trans, SCALES[i % 4]));
                let want = run(gemm_naive, Isa::BASELINE, &of_32, (&a, &b), &c);
                let want_8 = run(gemm_naive, Isa::BASELINE, &of_8, (&a8, &b8), &c);
                for isa in isas() {
                    assert_eq!(run(gemm, isa, &of_32, (&a, &b), &c), want, "i32 {shape:?} {trans:?} {}", isa.name());
                    assert_eq!(run(gemm, isa, &of_8, (&a8, &b8), &c), want_8, "i8 {shape:?} {trans:?} {}", isa.name());
                    let mut pairs = c.clone();
                    let ctx = CpuCtx { threads: 1, isa, team: None, blas: None };
                    byte_product(&ctx, Bytes::in_pairs(isa), &Problem::of(&of_8), &a8, &b8, &mut pairs);
                    assert_eq!(pairs, want_8, "i8 in pairs {shape:?} {trans:?} {}", isa.name());
                }
            }
        }
    }

    /// Small integers: exact in every order, so that each way of computing a product gives the bits of the plain loops.
    #[test]
    fn every_way_of_a_float_product_is_right() {
        let small = |len: usize, seed: usize| (0..len).map(move |i| ((i * 7 + seed * 13 + i / 5) % 9) as f32 - 4.0);
        for (i, shape) in SHAPES.into_iter().enumerate() {
            for trans in [(false, false), (true, false), (false, true), (true, true)] {
                let [m, n, k] = shape.map(|v| v as usize);
                let (a, b, c) = (small(m * k, 1), small(k * n, 2), small(m * n, 3));
                let (a, b, c): (Vec<f32>, Vec<f32>, Vec<f32>) = (a.collect(), b.collect(), c.collect());
                let half = |v: &[f32]| v.iter().map(|v| half::bf16::from_f32(*v)).collect::<Vec<_>>();
                let (ah, bh, ch) = (half(&a), half(&b), half(&c));
                let of = |dtype| call(dtype, shape, trans, SCALES[i % 4]);
                let want = run(gemm_naive, Isa::BASELINE, &of(DType::F32), (&a, &b), &c);
                let want_h = run(gemm_naive, Isa::BASELINE, &of(DType::BF16), (&ah, &bh), &ch);
                for isa in isas() {
                    assert_eq!(
                        run(gemm, isa, &of(DType::F32), (&a, &b), &c),
                        want,
                        "f32 {shape:?} {trans:?} {}",
                        isa.name()
                    );
                    let got = run(gemm, isa, &of(DType::BF16), (&ah, &bh), &ch);
                    assert_eq!(got, want_h, "bf16 {shape:?} {trans:?} {}", isa.name());
                }
            }
        }
    }
}
