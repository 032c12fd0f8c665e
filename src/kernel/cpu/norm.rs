//! Softmax over the middle axis of [m, n, inner].

use crate::base::Result;

use super::load::{BLOCK, Store, View};
use super::math::Real;
use super::number::with_element;
use super::simd::{Job, Style, Textbook, dispatch};
use super::{Call, CpuCtx, NativeArgs};

const LANES: usize = 32;
const HALF: usize = LANES / 2;

/// NaN is the only number that is not equal to itself.
#[inline(always)]
#[allow(clippy::eq_op, reason = "the comparison with itself is the test, and becomes one vector instruction")]
fn is_nan<R: Real>(x: R) -> bool {
    x != x
}

/// The larger; NaN if one is NaN.
#[inline(always)]
fn larger<R: Real>(a: R, b: R) -> R {
    // NaN stays once there; a NaN in b fails the comparison and is taken.
    if a >= b || is_nan(a) { a } else { b }
}

/// One row, `inner` being 1.
struct Row<'a, R> {
    x: &'a [R],
    y: &'a mut [R],
}

impl<R: Real> Job for Row<'_, R> {
    type Out = ();
    /// The maximum, exp(x - maximum) with its sum, and the division. NaN anywhere makes the row NaN.
    #[inline(always)]
    fn run<S: Style>(self) {
        let (top, low) = R::extremes(self.x);
        let sum = if (low - top).magnitude() <= R::NEAR {
            self.y.exps(self.x, |x| (x - top).exp_near::<S>())
        } else {
            self.y.exps(self.x, |x| (x - top).exp::<S>())
        };
        let inverse = <R as Real>::of(1.0) / sum;
        for y in self.y.iter_mut() {
            *y = if S::FMA {
                // The quotient's error, found exactly and divided, too: with fused steps cheaper than a division.
                let q = *y * inverse;
                (-q).fma::<S>(sum, *y).fma::<S>(inverse, q)
            } else {
                *y / sum
            };
        }
    }
}

/// Begins at a cache line: the sums stay in memory, and a vector that lies in two lines is slow to come back.
#[repr(align(64))]
struct Line<T>(T);

trait Exps<R> {
    /// Writes f of every x; their sum.
    fn exps(&mut self, x: &[R], f: impl Fn(R) -> R) -> R;
}

impl<R: Real> Exps<R> for [R] {
    #[inline(always)]
    fn exps(&mut self, x: &[R], f: impl Fn(R) -> R) -> R {
        let mut sums = Line([<R as Real>::of(0.0); LANES]);
        let sums = &mut sums.0;
        let ((from, x_rest), (to, y_rest)) = (x.as_chunks::<LANES>(), self.as_chunks_mut::<LANES>());
        for (x, y) in from.iter().zip(to) {
            for i in 0..LANES {
                y[i] = f(x[i]);
                sums[i] = sums[i] + y[i];
            }
        }
        let few = x_rest.len() >= HALF;
        let ((half, x_rest), (to, y_rest)) = (x_rest.as_chunks::<HALF>(), y_rest.as_chunks_mut::<HALF>());
        for (x, y) in half.iter().zip(to) {
            for i in 0..HALF {
                y[i] = f(x[i]);
                sums[i] = sums[i] + y[i];
            }
        }
        let mut rest = <R as Real>::of(0.0);
        for (x, y) in x_rest.iter().zip(y_rest) {
            *y = f(*x);
            rest = rest + *y;
        }
        if from.is_empty() && !few {
            return rest;
        }
        let mut width = LANES;
        while width > 1 {
            width /= 2;
            for i in 0..width {
                sums[i] = sums[i] + sums[i + width];
            }
        }
        sums[0] + rest
    }
}

/// Columns side by side: raises tops, adds to sums, or writes results, for one row of them.
enum Step<'a, R> {
    Top { x: &'a [R], top: &'a mut [R] },
    Sum { x: &'a [R], top: &'a [R], sum: &'a mut [R] },
    Write { x: &'a [R], top: &'a [R], sum: &'a [R], y: &'a mut [R] },
}

impl<R: Real> Job for Step<'_, R> {
    type Out = ();
    #[inline(always)]
    fn run<S: Style>(self) {
        match self {
            Step::Top { x, top } => {
                for (t, v) in top.iter_mut().zip(x) {
                    *t = larger(*t, *v);
                }
            }
            Step::Sum { x, top, sum } => {
                for ((s, t), v) in sum.iter_mut().zip(top).zip(x) {
                    *s = *s + (*v - *t).exp::<S>();
                }
            }
            Step::Write { x, top, sum, y } => {
                for (((y, s), t), v) in y.iter_mut().zip(sum).zip(top).zip(x) {
                    *y = (*v - *t).exp::<S>() / *s;
                }
            }
        }
    }
}

fn run<R: Real, J: Job<Out = ()>>(ctx: &CpuCtx<'_>, naive: bool, job: J, _: R) {
    if naive { job.run::<Textbook>() } else { dispatch(ctx.isa, job) }
}

/// y = exp(x - max) / sum of the same over the middle axis. Params: m, n, inner. The floats.
pub fn softmax(ctx: &CpuCtx<'_>, args: &mut NativeArgs<'_>, call: &Call) -> Result<()> {
    with_element!(floats call.dtype, T => typed::<T>(ctx, args, call, false), else Err(call.no_dtype()))
}

/// One thread, scalar library functions.
pub fn softmax_naive(ctx: &CpuCtx<'_>, args: &mut NativeArgs<'_>, call: &Call) -> Result<()> {
    let one = ctx.alone();
    with_element!(floats call.dtype, T => typed::<T>(&one, args, call, true), else Err(call.no_dtype()))
}

fn typed<T: Store<Of: Real>>(ctx: &CpuCtx<'_>, args: &mut NativeArgs<'_>, call: &Call, naive: bool) -> Result<()> {
    let (m, n, inner) = (call.size(0), call.size(1), call.size(2));
    let x = View::<T::Of>::of(args, call, 0, m * n * inner)?;
    let y = args.output::<T>(0, m * n * inner)?;
    if y.is_empty() {
        return Ok(());
    }
    let parts = ctx.parts_for_bytes(4 * size_of_val(y));
    if inner == 1 {
        ctx.split(y, CpuCtx::chunk(m, parts, 1) * n, |first, y| rows(ctx, &x, first, n, y, naive));
    } else {
        columns(ctx, &x, [m, n, inner], y, naive);
    }
    Ok(())
}

fn rows<T: Store<Of: Real>>(ctx: &CpuCtx<'_>, x: &View<'_, T::Of>, first: usize, n: usize, y: &mut [T], naive: bool) {
    let zero = <T::Of as Real>::of(0.0);
    let (mut wide, mut done) = (Vec::new(), Vec::new());
    if x.direct().is_none() {
        (wide, done) = (vec![zero; n], vec![zero; n]);
    }
    for (i, y) in y.chunks_mut(n).enumerate() {
        let x = x.block(first + i * n, n, &mut wide);
        match T::direct(y) {
            Some(y) => run(ctx, naive, Row { x, y }, zero),
            None => {
                run(ctx, naive, Row { x, y: &mut done }, zero);
                T::put(&done, y);
            }
        }
    }
}

/// Maxima and sums of all columns, then the results row by row.
fn columns<T: Store<Of: Real>>(ctx: &CpuCtx<'_>, x: &View<'_, T::Of>, sizes: [usize; 3], y: &mut [T], naive: bool) {
    let [m, n, inner] = sizes;
    let zero = <T::Of as Real>::of(0.0);
    let parts = ctx.parts_for_bytes(4 * size_of_val(y));
    let mut pairs = vec![[zero; 2]; m * inner];
    ctx.split(&mut pairs, CpuCtx::chunk(m * inner, parts, 64), |first, pairs| {
        let (mut wide, mut tops, mut sums) = ([zero; BLOCK], [zero; BLOCK], [zero; BLOCK]);
        let mut at = 0;
        while at < pairs.len() {
            let (o, c) = ((first + at) / inner, (first + at) % inner);
            let width = (inner - c).min(pairs.len() - at).min(BLOCK);
            let start = o * n * inner + c;
            let (top, sum) = (&mut tops[..width], &mut sums[..width]);
            top.copy_from_slice(x.block(start, width, &mut wide));
            sum.fill(zero);
            for j in 1..n {
                run(ctx, naive, Step::Top { x: x.block(start + j * inner, width, &mut wide), top }, zero);
            }
            for j in 0..n {
                run(ctx, naive, Step::Sum { x: x.block(start + j * inner, width, &mut wide), top, sum }, zero);
            }
            for ((pair, t), s) in pairs[at..].iter_mut().zip(top.iter()).zip(sum.iter()) {
                *pair = [*t, *s];
            }
            at += width;
        }
    });
    let (tops, sums): (Vec<_>, Vec<_>) = pairs.iter().map(|[t, s]| (*t, *s)).unzip();
    ctx.split(y, CpuCtx::chunk(m * n * inner, parts, inner), |first, y| {
        let (mut wide, mut done) = ([zero; BLOCK], [zero; BLOCK]);
        for (i, y) in y.chunks_mut(inner).enumerate() {
            let row = first / inner + i;
            for (k, y) in y.chunks_mut(BLOCK).enumerate() {
                let column = row / n * inner + k * BLOCK;
                let range = column..column + y.len();
                let x = x.block(row * inner + k * BLOCK, y.len(), &mut wide);
                let done = &mut done[..y.len()];
                run(ctx, naive, Step::Write { x, top: &tops[range.clone()], sum: &sums[range], y: done }, zero);
                T::put(done, y);
            }
        }
    });
}
