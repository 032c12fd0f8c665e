//! Products with few columns and long sums: dot products along the rows of A as they lie in memory. Bound by memory, so A is read
//! once and never laid out.

use super::CpuCtx;
use super::math::Real;
use super::product::{Element, Scale, View};
use super::simd::{Job, Style, dispatch};

/// Columns from which on tiles are better.
const FEW: usize = 8;
/// Sums from here on are long.
const LONG: usize = 96;
/// Partial sums of each element.
const LANES: usize = 32;

/// C = alpha·A·B + beta·C by dot products, if the shape is one for them: few columns or few rows, the other operand's lines
/// with their depths next to each other. False if it is not: C is untouched.
pub(super) fn multiply<T: Element + Real>(
    ctx: &CpuCtx<'_>,
    a: &View<'_, T>,
    b: &View<'_, T>,
    (m, n, k): (usize, usize, usize),
    scale: Scale<T>,
    c: &mut [T],
) -> bool {
    if k < LONG {
        return false;
    }
    if n <= FEW && m > n && a.depth_stride == 1 {
        by_lines(ctx, a, b, n, k, c, |sums, c| {
            for (c, s) in c.iter_mut().zip(sums) {
                *c = scale.of(*s, *c);
            }
        });
        return true;
    }
    if m <= FEW && n > m && b.depth_stride == 1 {
        let mut turned = vec![T::ZERO; c.len()];
        by_lines(ctx, b, a, m, k, &mut turned, |sums, c| c.copy_from_slice(sums));
        for (i, row) in c.chunks_exact_mut(n).enumerate() {
            for (j, c) in row.iter_mut().enumerate() {
                *c = scale.of(turned[j * m + i], *c);
            }
        }
        return true;
    }
    false
}

/// Dot products of each line of `many` with the `count` lines of `few`; `keep` gets those of one line and their places in `out`.
fn by_lines<T: Element + Real>(
    ctx: &CpuCtx<'_>,
    many: &View<'_, T>,
    few: &View<'_, T>,
    count: usize,
    k: usize,
    out: &mut [T],
    keep: impl Fn(&[T], &mut [T]) + Sync,
) {
    // The few lines with their depths next to each other, and zeros up to whole vectors.
    let long = k.next_multiple_of(LANES);
    let mut lines = vec![T::ZERO; count * long];
    for (i, line) in lines.chunks_exact_mut(long).enumerate() {
        let from = few.data[i * few.line_stride..].iter().step_by(few.depth_stride);
        line.iter_mut().zip(from).take(k).for_each(|(to, v)| *to = *v);
    }
    let parts = ctx.parts_for_bytes(size_of::<T>() * k * (out.len() / count));
    ctx.split(out, CpuCtx::chunk(out.len() / count, parts, 4) * count, |first, out| {
        for (i, out) in out.chunks_exact_mut(count).enumerate() {
            let line = &many.data[(first / count + i) * many.line_stride..][..k];
            let mut sums = [T::ZERO; FEW];
            dispatch(ctx.isa, Dots { line, lines: &lines, long, sums: &mut sums[..count] });
            keep(&sums[..count], out);
        }
    });
}

/// Dot products of one line with some others, four at a time.
struct Dots<'a, T> {
    line: &'a [T],
    lines: &'a [T],
    long: usize,
    sums: &'a mut [T],
}

impl<T: Element + Real> Dots<'_, T> {
    #[inline(always)]
    fn some<S: Style, const N: usize>(&mut self, first: usize) {
        let of: [&[T]; N] = std::array::from_fn(|j| &self.lines[(first + j) * self.long..][..self.long]);
        let mut lanes = [[T::ZERO; LANES]; N];
        let (whole, rest) = self.line.as_chunks::<LANES>();
        let mut last = [T::ZERO; LANES];
        last[..rest.len()].copy_from_slice(rest);
        for (q, x) in whole.iter().chain(std::iter::once(&last).take(usize::from(!rest.is_empty()))).enumerate() {
            for (lanes, of) in lanes.iter_mut().zip(&of) {
                if let Some(y) = of[q * LANES..].first_chunk::<LANES>() {
                    for i in 0..LANES {
                        lanes[i] = x[i].fma::<S>(y[i], lanes[i]);
                    }
                }
            }
        }
        for (j, lanes) in lanes.iter_mut().enumerate() {
            let mut half = LANES / 2;
            while half > 0 {
                for i in 0..half {
                    lanes[i] = lanes[i] + lanes[i + half];
                }
                half /= 2;
            }
            self.sums[first + j] = lanes[0];
        }
    }
}

impl<T: Element + Real> Job for Dots<'_, T> {
    type Out = ();
    #[inline(always)]
    fn run<S: Style>(mut self) {
        let mut at = 0;
        while at + 4 <= self.sums.len() {
            self.some::<S, 4>(at);
            at += 4;
        }
        while at + 2 <= self.sums.len() {
            self.some::<S, 2>(at);
            at += 2;
        }
        if at < self.sums.len() {
            self.some::<S, 1>(at);
        }
    }
}
