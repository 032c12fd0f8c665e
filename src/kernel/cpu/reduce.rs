//! Sums, means, dot products and norms.

use crate::base::{DType, Result};
use crate::kernel::plan_reduce::{Block, Pass, passes};

use super::lanes::LANES;
use super::load::{Acc, AddRows, BLOCK, Products, Squares, Total, View};
use super::simd::dispatch;
use super::{Call, CpuCtx, NativeArgs};

/// Elements of a long row that are summed by themselves.
const PIECE: usize = 1 << 14;

/// The index space in a call's params: extent and mark of each block.
pub(super) fn blocks(call: &Call) -> Vec<Block> {
    call.params.chunks_exact(2).map(|p| (p[0].u64(), p[1].u64() != 0)).collect()
}

/// The only pass of a call with one reduced block at most, without the lists of the general case.
pub(super) fn only_pass(call: &Call) -> Option<Pass> {
    let (mut p, mut seen) = (Pass::of(1, 1, 1), false);
    for pair in call.params.chunks_exact(2) {
        let (extent, reduced) = (pair[0].u64(), pair[1].u64() != 0);
        match (reduced, seen) {
            (true, true) => return None,
            (true, false) => (p.n, seen) = (extent, true),
            (false, false) => p.outer = p.outer.saturating_mul(extent),
            (false, true) => p.inner = p.inner.saturating_mul(extent),
        }
    }
    Some(p)
}

/// Products of the extents of the reduced and of the kept blocks.
pub(super) fn counts(blocks: &[Block]) -> (usize, usize) {
    let product = |mark: bool| blocks.iter().filter(|b| b.1 == mark).map(|b| b.0 as usize).product();
    (product(true), product(false))
}

/// Calls `f(result, element)` for every element in row-major order with the flat index of its result.
pub(super) fn walk(blocks: &[Block], mut f: impl FnMut(usize, usize)) {
    let total: usize = blocks.iter().map(|b| b.0 as usize).product();
    let mut index = vec![0u64; blocks.len()];
    for at in 0..total {
        let kept = blocks.iter().zip(&index).filter(|(b, _)| !b.1);
        f(kept.fold(0, |acc, (b, i)| acc * b.0 as usize + *i as usize), at);
        for d in (0..blocks.len()).rev() {
            index[d] += 1;
            if index[d] < blocks[d].0 {
                break;
            }
            index[d] = 0;
        }
    }
}

/// Sum over the reduced blocks; integers in i64 or u64. Params: `blocks`. All dtypes.
pub fn sum(ctx: &CpuCtx<'_>, args: &mut NativeArgs<'_>, call: &Call) -> Result<()> {
    match call.dtype {
        DType::F32 | DType::F16 | DType::BF16 => run::<f32>(ctx, args, call, false, false),
        DType::F64 => run::<f64>(ctx, args, call, false, false),
        _ => run::<i64>(ctx, args, call, false, false),
    }
}

/// One accumulator per result, one thread, in order.
pub fn sum_naive(ctx: &CpuCtx<'_>, args: &mut NativeArgs<'_>, call: &Call) -> Result<()> {
    match call.dtype {
        DType::F32 | DType::F16 | DType::BF16 => run::<f32>(ctx, args, call, false, true),
        DType::F64 => run::<f64>(ctx, args, call, false, true),
        _ => run::<i64>(ctx, args, call, false, true),
    }
}

/// Sum divided by the number of elements; integers in f64.
pub fn mean(ctx: &CpuCtx<'_>, args: &mut NativeArgs<'_>, call: &Call) -> Result<()> {
    match call.dtype {
        DType::F32 | DType::F16 | DType::BF16 => run::<f32>(ctx, args, call, true, false),
        _ => run::<f64>(ctx, args, call, true, false),
    }
}

/// One accumulator per result, one thread, in order.
pub fn mean_naive(ctx: &CpuCtx<'_>, args: &mut NativeArgs<'_>, call: &Call) -> Result<()> {
    match call.dtype {
        DType::F32 | DType::F16 | DType::BF16 => run::<f32>(ctx, args, call, true, true),
        _ => run::<f64>(ctx, args, call, true, true),
    }
}

fn run<A: Acc>(ctx: &CpuCtx<'_>, args: &mut NativeArgs<'_>, call: &Call, mean: bool, naive: bool) -> Result<()> {
    if !naive
        && A::kept(call.dtype)
        && let Some(p) = only_pass(call)
    {
        let results = p.results() as usize;
        let x = View::<A>::of(args, call, 0, p.n as usize * results)?;
        let y = args.output::<A>(0, results)?;
        pass(ctx, &x, p, y);
        if mean {
            divide(y, p.n as usize);
        }
        return Ok(());
    }
    let blocks = blocks(call);
    let (count, results) = counts(&blocks);
    let x = View::<A>::of(args, call, 0, count * results)?;
    let mut y = vec![A::default(); results];
    if naive {
        walk(&blocks, |result, at| y[result] = y[result].add(x.get(at)));
    } else {
        let list = passes(&blocks);
        let mut between = Vec::new();
        for (i, p) in list.iter().enumerate() {
            let mut next =
                if i + 1 == list.len() { std::mem::take(&mut y) } else { vec![A::default(); p.results() as usize] };
            let from = if i == 0 { x } else { View::plain(&between) };
            pass(ctx, &from, *p, &mut next);
            if i + 1 == list.len() { y = next } else { between = next }
        }
    }
    if mean {
        divide(&mut y, count);
    }
    A::narrow(&y, args, 0, call.dtype)
}

fn divide<A: Acc>(y: &mut [A], count: usize) {
    let count = A::of_usize(count);
    for v in y {
        *v = v.div(count);
    }
}

/// Sum of what `part(from, to)` says of the pieces of `n` elements with `bytes` of traffic: merged in order, so the bits are the
/// same for any number of threads.
fn by_pieces<A: Acc>(ctx: &CpuCtx<'_>, n: usize, bytes: usize, part: impl Fn(usize, usize) -> A + Sync) -> A {
    if n <= PIECE {
        return part(0, n);
    }
    let mut partial = vec![A::default(); n.div_ceil(PIECE)];
    let chunk = CpuCtx::chunk(partial.len(), ctx.parts_for_bytes(bytes), 1);
    ctx.split(&mut partial, chunk, |first, out| {
        for (i, out) in (first..).zip(out) {
            *out = part(i * PIECE, n.min((i + 1) * PIECE));
        }
    });
    partial.into_iter().fold(A::default(), A::add)
}

/// Sum of the elements `from .. to`.
fn total<A: Acc>(ctx: &CpuCtx<'_>, x: &View<'_, A>, from: usize, to: usize) -> A {
    if let Some(x) = x.direct() {
        return dispatch(ctx.isa, Total(&x[from..to]));
    }
    let mut buffer = [A::default(); BLOCK];
    let mut s = A::default();
    for at in (from..to).step_by(BLOCK) {
        s = s.add(dispatch(ctx.isa, Total(x.block(at, BLOCK.min(to - at), &mut buffer))));
    }
    s
}

/// Sums over the middle axis of one pass.
fn pass<A: Acc>(ctx: &CpuCtx<'_>, x: &View<'_, A>, p: Pass, y: &mut [A]) {
    let (outer, n, inner) = (p.outer as usize, p.n as usize, p.inner as usize);
    let bytes = outer * n * inner * size_of::<A>();
    if inner == 1 && outer == 1 {
        y[0] = by_pieces(ctx, n, bytes, |from, to| total(ctx, x, from, to));
        return;
    }
    let parts = ctx.parts_for_bytes(bytes);
    if inner == 1 {
        ctx.split(y, CpuCtx::chunk(outer, parts, 1), |first, y| {
            for (i, y) in y.iter_mut().enumerate() {
                *y = total(ctx, x, (first + i) * n, (first + i + 1) * n);
            }
        });
    } else {
        // A piece is a run of outputs; within it each outer index contributes one run of columns.
        ctx.split(y, CpuCtx::chunk(outer * inner, parts, LANES), |first, y| {
            let mut buffer = [A::default(); BLOCK];
            let mut at = first;
            let mut rest = y;
            while !rest.is_empty() {
                let (o, c) = (at / inner, at % inner);
                let width = (inner - c).min(rest.len());
                let (run, tail) = rest.split_at_mut(if x.direct().is_some() { width } else { width.min(BLOCK) });
                run.fill(A::default());
                at += run.len();
                let start = o * n * inner + c;
                match x.direct() {
                    Some(x) if n > 0 => {
                        dispatch(ctx.isa, AddRows { x: &x[start..(o + 1) * n * inner], stride: inner, y: run });
                    }
                    _ => {
                        for i in 0..n {
                            let row = x.block(start + i * inner, run.len(), &mut buffer);
                            dispatch(ctx.isa, AddRows { x: row, stride: inner, y: &mut *run });
                        }
                    }
                }
                rest = tail;
            }
        });
    }
}

/// y = Σ a·b; integers in i64 or u64. Params: n. All dtypes.
pub fn dot(ctx: &CpuCtx<'_>, args: &mut NativeArgs<'_>, call: &Call) -> Result<()> {
    match call.dtype {
        DType::F32 | DType::F16 | DType::BF16 => dot_typed::<f32>(ctx, args, call, false),
        DType::F64 => dot_typed::<f64>(ctx, args, call, false),
        _ => dot_typed::<i64>(ctx, args, call, false),
    }
}

/// One accumulator, one thread, in order.
pub fn dot_naive(ctx: &CpuCtx<'_>, args: &mut NativeArgs<'_>, call: &Call) -> Result<()> {
    match call.dtype {
        DType::F32 | DType::F16 | DType::BF16 => dot_typed::<f32>(ctx, args, call, true),
        DType::F64 => dot_typed::<f64>(ctx, args, call, true),
        _ => dot_typed::<i64>(ctx, args, call, true),
    }
}

fn dot_typed<A: Acc>(ctx: &CpuCtx<'_>, args: &mut NativeArgs<'_>, call: &Call, naive: bool) -> Result<()> {
    let n = call.size(0);
    let (a, b) = (View::<A>::of(args, call, 0, n)?, View::<A>::of(args, call, 1, n)?);
    let s =
        if naive { (0..n).fold(A::default(), |s, i| s.add(a.get(i).mul(b.get(i)))) } else { products(ctx, &a, &b, n) };
    A::narrow(&[s], args, 0, call.dtype)
}

fn products<A: Acc>(ctx: &CpuCtx<'_>, a: &View<'_, A>, b: &View<'_, A>, n: usize) -> A {
    by_pieces(ctx, n, 2 * n * size_of::<A>(), |from, to| {
        if let (Some(a), Some(b)) = (a.direct(), b.direct()) {
            return dispatch(ctx.isa, Products(&a[from..to], &b[from..to]));
        }
        let (mut left, mut right) = ([A::default(); BLOCK], [A::default(); BLOCK]);
        (from..to).step_by(BLOCK).fold(A::default(), |s, at| {
            let len = BLOCK.min(to - at);
            let job = Products(a.block(at, len, &mut left), b.block(at, len, &mut right));
            s.add(dispatch(ctx.isa, job))
        })
    })
}

/// y = √Σx². Params: n. The floats. All are squared in f64, where squares of the shorter ones neither overflow nor vanish.
pub fn nrm2(ctx: &CpuCtx<'_>, args: &mut NativeArgs<'_>, call: &Call) -> Result<()> {
    let n = call.size(0);
    if call.dtype == DType::F32 {
        let (x, y) = (args.input::<f32>(0, n)?, args.output::<f32>(0, 1)?);
        let squares = by_pieces(ctx, n, size_of_val(x), |from, to| dispatch(ctx.isa, Squares(&x[from..to])));
        y[0] = squares.sqrt() as f32;
        return Ok(());
    }
    let x = View::<f64>::of(args, call, 0, n)?;
    let mut s = products(ctx, &x, &x, n).sqrt();
    // Beyond these the squares of f64 may have overflowed or lost bits: again with numbers scaled by a power of two.
    if call.dtype == DType::F64 && n > 0 && !(1e-140..1e140).contains(&s) {
        let top = (0..n).map(|i| x.get(i).abs()).fold(0.0f64, |a, b| if a >= b || a.is_nan() { a } else { b });
        if top > 0.0 && top.is_finite() {
            let (down, up) =
                if top > 1.0 { (2f64.powi(-700), 2f64.powi(700)) } else { (2f64.powi(700), 2f64.powi(-700)) };
            let squares = (0..n).map(|i| x.get(i) * down).map(|v| v * v);
            s = squares.sum::<f64>().sqrt() * up;
        }
    }
    store_norm(s, args, call)
}

/// Largest and scaled sum of squares in one run (LAPACK's older dnrm2), one thread.
pub fn nrm2_naive(_: &CpuCtx<'_>, args: &mut NativeArgs<'_>, call: &Call) -> Result<()> {
    let n = call.size(0);
    let x = View::<f64>::of(args, call, 0, n)?;
    let (mut scale, mut squares) = (0.0f64, 1.0f64);
    for i in 0..n {
        let v = x.get(i).abs();
        if v.is_infinite() || v.is_nan() {
            // Quotients of infinities would be NaN.
            let nan = (i..n).any(|j| x.get(j).is_nan());
            return store_norm(if nan { f64::NAN } else { f64::INFINITY }, args, call);
        }
        if v > scale {
            squares = 1.0 + squares * (scale / v) * (scale / v);
            scale = v;
        } else if v > 0.0 {
            squares += (v / scale) * (v / scale);
        }
    }
    store_norm(scale * squares.sqrt(), args, call)
}

fn store_norm(s: f64, args: &mut NativeArgs<'_>, call: &Call) -> Result<()> {
    if call.dtype == DType::F64 {
        f64::narrow(&[s], args, 0, DType::F64)
    } else {
        f32::narrow(&[s as f32], args, 0, call.dtype)
    }
}
