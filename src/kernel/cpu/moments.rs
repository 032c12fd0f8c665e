//! Normalisation by mean and variance: layernorm and batchnorm.
//!
//! All sums are of distances from the channel's first element (0 where that is not finite), so that a large mean costs no
//! digits: mean of the distances first, squares of the deviations from it second.

use crate::base::Result;

use super::lanes::{LANES, each, summed};
use super::load::{Acc, BLOCK, Store, View};
use super::math::Real;
use super::number::{Number, with_element};
use super::simd::{Job, Style, dispatch};
use super::{Call, CpuCtx, NativeArgs};

/// Sum of x - shift, or of its squares.
struct Deviations<'a, A> {
    x: &'a [A],
    shift: A,
    mean: A,
    squares: bool,
}

impl<A: Acc> Job for Deviations<'_, A> {
    type Out = A;
    #[inline(always)]
    fn run<S: Style>(self) -> A {
        let (shift, mean) = (self.shift, self.mean);
        if self.squares {
            summed(self.x, self.x, |s: A, v, _| {
                let d = v.sub(shift).sub(mean);
                s.add(d.mul(d))
            })
        } else {
            summed(self.x, self.x, |s: A, v, _| s.add(v.sub(shift)))
        }
    }
}

/// What is known of a channel. y = ((x - shift) - distance) * rstd * gamma + beta.
#[derive(Clone, Copy, Default)]
struct Moments<A> {
    shift: A,
    distance: A,
    rstd: A,
    mean: A,
    variance: A,
}

/// x seen as [n / inner, channels, inner].
#[derive(Clone, Copy)]
struct Channels {
    channels: usize,
    inner: usize,
    n: usize,
}

impl Channels {
    /// Calls `f` with all elements of a channel, block by block.
    fn blocks<A: Acc>(&self, x: &View<'_, A>, channel: usize, mut f: impl FnMut(&[A])) {
        let images = self.n / self.inner.max(1);
        let start = |image: usize| (image * self.channels + channel) * self.inner;
        if let Some(x) = x.direct()
            && (images == 1 || self.inner >= LANES)
        {
            (0..images).for_each(|image| f(&x[start(image)..][..self.inner]));
            return;
        }
        let mut buffer = [A::default(); BLOCK];
        if images == 1 || self.inner >= LANES {
            for image in 0..images {
                for at in (0..self.inner).step_by(BLOCK) {
                    f(x.block(start(image) + at, BLOCK.min(self.inner - at), &mut buffer));
                }
            }
            return;
        }
        for first in (0..self.n).step_by(BLOCK) {
            let len = BLOCK.min(self.n - first);
            for (i, b) in (first..).zip(&mut buffer[..len]) {
                *b = x.get(start(i / self.inner) + i % self.inner);
            }
            f(&buffer[..len]);
        }
    }

    fn moments<A: Acc + Real>(&self, ctx: &CpuCtx<'_>, x: &View<'_, A>, epsilon: A, naive: bool) -> Vec<Moments<A>> {
        let mut all = vec![Moments::default(); self.channels];
        let parts = if naive { 1 } else { ctx.parts_for_bytes(self.channels * self.n * size_of::<A>()) };
        let zero = A::default();
        ctx.split(&mut all, CpuCtx::chunk(self.channels, parts, 1), |first, all| {
            for (i, m) in all.iter_mut().enumerate() {
                let lead = x.get((first + i) * self.inner);
                let shift = if Number::sub(lead, lead) == zero { lead } else { zero };
                let sum = |mean: A, squares: bool| {
                    let mut s = zero;
                    self.blocks(x, first + i, |x| {
                        if naive {
                            for v in x {
                                let d = Number::sub(Number::sub(*v, shift), mean);
                                s = Number::add(s, if squares { Number::mul(d, d) } else { d });
                            }
                        } else {
                            s = Number::add(s, dispatch(ctx.isa, Deviations { x, shift, mean, squares }));
                        }
                    });
                    Number::div(s, A::of_usize(self.n))
                };
                let distance = sum(zero, false);
                let variance = sum(distance, true);
                let rstd = Number::div(A::ONE, root(Number::add(variance, epsilon)));
                *m = Moments { shift, distance, rstd, mean: Number::add(shift, distance), variance };
            }
        });
        all
    }
}

/// Square root; f32's of an f64 rounded once more is that of f32.
fn root<A: Real>(v: A) -> A {
    <A as Real>::of(v.to_f64().sqrt())
}

/// y = ((x - shift) - distance) * rstd * gamma + beta, element by element; operands of length one are repeated.
struct Apply<'a, A> {
    x: &'a [A],
    y: &'a mut [A],
    shift: &'a [A],
    distance: &'a [A],
    rstd: &'a [A],
    gamma: &'a [A],
    beta: &'a [A],
}

impl<A: Acc> Job for Apply<'_, A> {
    type Out = ();
    #[inline(always)]
    fn run<S: Style>(self) {
        let n = self.y.len();
        let one = |x: A, s: A, d: A, r: A, g: A, b: A| x.sub(s).sub(d).mul(r).mul(g).add(b);
        match (self.shift, self.distance, self.rstd, self.gamma, self.beta) {
            ([s], [d], [r], [g], [b]) => {
                let (s, d, r, g, b) = (*s, *d, *r, *g, *b);
                each!(self.x, self.y, |x| one(x, s, d, r, g, b));
            }
            ([s], [d], [r], g, b) => {
                for (((y, x), g), b) in self.y.iter_mut().zip(self.x).zip(&g[..n]).zip(&b[..n]) {
                    *y = one(*x, *s, *d, *r, *g, *b);
                }
            }
            (s, d, r, g, b) => {
                let (s, d, r, g, b) = (&s[..n], &d[..n], &r[..n], &g[..n], &b[..n]);
                for (i, y) in self.y.iter_mut().enumerate() {
                    *y = one(self.x[i], s[i], d[i], r[i], g[i], b[i]);
                }
            }
        }
    }
}

/// Per-channel values as vectors: shift, distance, rstd.
fn vectors<A: Acc>(moments: &[Moments<A>]) -> [Vec<A>; 3] {
    let of = |f: fn(&Moments<A>) -> A| moments.iter().map(f).collect();
    [of(|m| m.shift), of(|m| m.distance), of(|m| m.rstd)]
}

/// How gamma, beta and the moments belong to the elements of [.., channels, inner].
#[derive(Clone, Copy, PartialEq)]
enum Belongs {
    /// Moments to rows of `inner`, gamma and beta to columns.
    Layer,
    /// All to channels.
    Batch,
}

struct Parts<A> {
    moments: [Vec<A>; 3],
    gamma: Vec<A>,
    beta: Vec<A>,
}

fn apply<T: Store>(
    ctx: &CpuCtx<'_>,
    x: &View<'_, T::Of>,
    c: Channels,
    how: Belongs,
    p: &Parts<T::Of>,
    y: &mut [T],
    naive: bool,
) {
    let zero = T::Of::default();
    let parts = if naive { 1 } else { ctx.parts_for_bytes(3 * size_of_val(y)) };
    let [shift, distance, rstd] = &p.moments;
    // Elements that one job takes: a row of one channel, or of all channels where each has one element.
    let across = how == Belongs::Batch && c.inner == 1;
    let row = if across { c.channels } else { c.inner };
    ctx.split(y, CpuCtx::chunk(y.len(), parts, row), |first, y| {
        let converted = if x.direct().is_some() { 0 } else { BLOCK };
        let (mut wide, mut done) = (vec![zero; converted], vec![zero; converted]);
        for (i, y) in y.chunks_mut(row).enumerate() {
            let start = first + i * row;
            for (k, y) in y.chunks_mut(BLOCK).enumerate() {
                let (from, len) = (k * BLOCK, y.len());
                let x = x.block(start + from, len, &mut wide);
                let columns = from..from + len;
                let channel = start / row % c.channels;
                let own = if across { columns.clone() } else { channel..channel + 1 };
                let affine = if how == Belongs::Layer { columns } else { own.clone() };
                let run = |y: &mut [T::Of]| {
                    let job = Apply {
                        x,
                        y,
                        shift: &shift[own.clone()],
                        distance: &distance[own.clone()],
                        rstd: &rstd[own],
                        gamma: &p.gamma[affine.clone()],
                        beta: &p.beta[affine],
                    };
                    if naive { job.run::<super::simd::Textbook>() } else { dispatch(ctx.isa, job) }
                };
                match T::direct(y) {
                    Some(y) => run(y),
                    None => {
                        let done = &mut done[..len];
                        run(&mut *done);
                        T::put(done, y);
                    }
                }
            }
        }
    });
}

/// All of a short operand.
fn whole<A: Acc>(args: &NativeArgs<'_>, call: &Call, i: usize, n: usize) -> Result<Vec<A>> {
    let mut v = vec![A::default(); n];
    let view = View::<A>::of(args, call, i, n)?;
    if let Some(x) = view.direct() {
        v.copy_from_slice(x);
    } else {
        view.block(0, n, &mut v);
    }
    Ok(v)
}

/// y, mean and rstd of rows. Params: m, n, epsilon. The floats.
pub fn layernorm(ctx: &CpuCtx<'_>, args: &mut NativeArgs<'_>, call: &Call) -> Result<()> {
    with_element!(floats call.dtype, T => layer::<T>(ctx, args, call, false), else Err(call.no_dtype()))
}

/// One thread, one accumulator.
pub fn layernorm_naive(ctx: &CpuCtx<'_>, args: &mut NativeArgs<'_>, call: &Call) -> Result<()> {
    with_element!(floats call.dtype, T => layer::<T>(ctx, args, call, true), else Err(call.no_dtype()))
}

fn layer<T: Store<Of: Real>>(ctx: &CpuCtx<'_>, args: &mut NativeArgs<'_>, call: &Call, naive: bool) -> Result<()> {
    let (m, n) = (call.size(0), call.size(1));
    let c = Channels { channels: m, inner: n, n };
    let x = View::<T::Of>::of(args, call, 0, m * n)?;
    let (gamma, beta) = (whole(args, call, 1, n)?, whole(args, call, 2, n)?);
    let moments = c.moments(ctx, &x, <T::Of as Real>::of(call.scalar(2)), naive);
    let y = args.output::<T>(0, m * n)?;
    if !y.is_empty() {
        apply(ctx, &x, c, Belongs::Layer, &Parts { moments: vectors(&moments), gamma, beta }, y, naive);
    }
    store::<T>(args, 1, moments.iter().map(|m| m.mean))?;
    store::<T>(args, 2, moments.iter().map(|m| m.rstd))
}

fn store<T: Store>(args: &mut NativeArgs<'_>, output: usize, values: impl Iterator<Item = T::Of>) -> Result<()> {
    let values: Vec<T::Of> = values.collect();
    T::put(&values, args.output::<T>(output, values.len())?);
    Ok(())
}

/// y, mean, variance and running statistics. Params: n, c, inner, epsilon, momentum. The floats.
pub fn batchnorm_train(ctx: &CpuCtx<'_>, args: &mut NativeArgs<'_>, call: &Call) -> Result<()> {
    with_element!(floats call.dtype, T => train::<T>(ctx, args, call, false), else Err(call.no_dtype()))
}

/// One thread, one accumulator.
pub fn batchnorm_train_naive(ctx: &CpuCtx<'_>, args: &mut NativeArgs<'_>, call: &Call) -> Result<()> {
    with_element!(floats call.dtype, T => train::<T>(ctx, args, call, true), else Err(call.no_dtype()))
}

fn train<T: Store<Of: Real>>(ctx: &CpuCtx<'_>, args: &mut NativeArgs<'_>, call: &Call, naive: bool) -> Result<()> {
    let (n, channels, inner) = (call.size(0), call.size(1), call.size(2));
    let c = Channels { channels, inner, n: n * inner };
    let x = View::<T::Of>::of(args, call, 0, n * channels * inner)?;
    let (gamma, beta) = (whole(args, call, 1, channels)?, whole(args, call, 2, channels)?);
    let of = <T::Of as Real>::of;
    let moments = c.moments(ctx, &x, of(call.scalar(3)), naive);
    let y = args.output::<T>(0, n * channels * inner)?;
    if !y.is_empty() {
        apply(ctx, &x, c, Belongs::Batch, &Parts { moments: vectors(&moments), gamma, beta }, y, naive);
    }
    store::<T>(args, 1, moments.iter().map(|m| m.mean))?;
    store::<T>(args, 2, moments.iter().map(|m| m.variance))?;
    let (keep, take) = (of(call.scalar(4)), of(1.0 - call.scalar(4)));
    running::<T>(args, call, 3, keep, take, moments.iter().map(|m| m.mean))?;
    running::<T>(args, call, 4, keep, take, moments.iter().map(|m| m.variance))
}

/// running = keep * running + take * new.
fn running<T: Store>(
    args: &mut NativeArgs<'_>,
    call: &Call,
    output: usize,
    keep: T::Of,
    take: T::Of,
    new: impl ExactSizeIterator<Item = T::Of>,
) -> Result<()> {
    let old = args.output::<T>(output, new.len())?;
    let Some(widen) = T::Of::widen(call.dtype) else { return Err(call.no_dtype()) };
    let mut values = vec![T::Of::default(); old.len()];
    widen(bytemuck::cast_slice(old), &mut values);
    for (v, new) in values.iter_mut().zip(new) {
        *v = keep.mul(*v).add(take.mul(new));
    }
    T::put(&values, old);
    Ok(())
}

/// y from given statistics. Params: n, c, inner, epsilon. The floats.
pub fn batchnorm_infer(ctx: &CpuCtx<'_>, args: &mut NativeArgs<'_>, call: &Call) -> Result<()> {
    with_element!(floats call.dtype, T => infer::<T>(ctx, args, call, false), else Err(call.no_dtype()))
}

/// One thread.
pub fn batchnorm_infer_naive(ctx: &CpuCtx<'_>, args: &mut NativeArgs<'_>, call: &Call) -> Result<()> {
    with_element!(floats call.dtype, T => infer::<T>(ctx, args, call, true), else Err(call.no_dtype()))
}

fn infer<T: Store<Of: Real>>(ctx: &CpuCtx<'_>, args: &mut NativeArgs<'_>, call: &Call, naive: bool) -> Result<()> {
    let (n, channels, inner) = (call.size(0), call.size(1), call.size(2));
    let x = View::<T::Of>::of(args, call, 0, n * channels * inner)?;
    let given = |i: usize| whole::<T::Of>(args, call, i, channels);
    let (gamma, beta, mean, variance) = (given(1)?, given(2)?, given(3)?, given(4)?);
    let epsilon = <T::Of as Real>::of(call.scalar(3));
    let rstd = variance.iter().map(|v| Number::div(T::Of::ONE, root(Number::add(*v, epsilon)))).collect();
    let y = args.output::<T>(0, n * channels * inner)?;
    if !y.is_empty() {
        let p = Parts { moments: [mean, vec![T::Of::default(); channels], rstd], gamma, beta };
        apply(ctx, &x, Channels { channels, inner, n: n * inner }, Belongs::Batch, &p, y, naive);
    }
    Ok(())
}
