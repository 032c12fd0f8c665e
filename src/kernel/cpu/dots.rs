//! Products with few columns and long sums: dot products along the rows of A as they lie in memory. Bound by memory, so A is read
//! once and never laid out.

use super::CpuCtx;
use super::product::{Element, Scale, View};
use super::simd::sweep::{DOTS, Rows, Swept};

/// Columns from which on tiles are better.
const FEW: usize = 8;
/// Columns up to which there may be as few rows.
const LEAST: usize = 4;
/// Sums from here on are long.
const LONG: usize = 96;
/// Elements of a cache line of the smaller floats.
const LINE: usize = 16;

/// C = alpha·A·B + beta·C by dot products, if the shape is one for them: few columns or few rows, the other operand's lines
/// with their depths next to each other. False if it is not: C is untouched.
pub(super) fn multiply<T: Element + Swept>(
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
    if n <= FEW && (m > n || n <= LEAST) && a.depth_stride == 1 {
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
fn by_lines<T: Element + Swept>(
    ctx: &CpuCtx<'_>,
    many: &View<'_, T>,
    few: &View<'_, T>,
    count: usize,
    k: usize,
    out: &mut [T],
    keep: impl Fn(&[T], &mut [T]) + Sync,
) {
    // The few lines with their depths next to each other, not a power of two apart.
    let long = k.next_multiple_of(LINE) + LINE;
    let mut lines = vec![T::ZERO; count * long];
    if few.line_stride == 1 {
        // Memory is read from beginning to end.
        for p in 0..k {
            let from = &few.data[p * few.depth_stride..][..count];
            lines[p..].iter_mut().step_by(long).zip(from).for_each(|(to, v)| *to = *v);
        }
    } else {
        for (i, line) in lines.chunks_exact_mut(long).enumerate() {
            let from = few.data[i * few.line_stride..].iter().step_by(few.depth_stride);
            line.iter_mut().zip(from).take(k).for_each(|(to, v)| *to = *v);
        }
    }
    let (set, offsets) = (T::sweeps(ctx.isa), std::array::from_fn::<_, FEW, _>(|i| i * long));
    let row = Rows { count: 1, data: 0, out: 0, len: k };
    let parts = ctx.parts_for_bytes(size_of::<T>() * k * (out.len() / count));
    ctx.split(out, CpuCtx::chunk(out.len() / count, parts, 4) * count, |first, out| {
        for (i, out) in out.chunks_exact_mut(count).enumerate() {
            let line = &many.data[(first / count + i) * many.line_stride..][..k];
            let mut sums = [T::ZERO; FEW];
            let mut at = 0;
            while at < count {
                let some = DOTS.into_iter().find(|d| at + d <= count).unwrap_or(1);
                set.dots(row, line, (&lines, &offsets[at..at + some]), &mut sums[at..]);
                at += some;
            }
            keep(&sums[..count], out);
        }
    });
}
