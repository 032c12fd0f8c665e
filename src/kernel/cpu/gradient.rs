//! Gradients of filters as products over pixels: a row for each filter, a column for each channel at each position of the window.
//! Of each pixel all channels lie together, so that a position's columns are read where they lie.

use std::ops::Range;

use super::CpuCtx;
use super::conv::{Float, Sizes};
use super::number::Number;
use super::pixels::{Pixels, SLACK, UNIT};
use super::planes::{Layout, Patches, Positions, with_space};
use super::product::{Element, Scale, View, copy, multiply};
use super::simd::sweep::{Hops, Sweeps, Swept};
use super::simd::tile::{Block, LARGEST};
use super::simd::{Job, Style, dispatch};

/// Bytes of a panel of pixels that stay in a second-level cache while filters pass by.
const PANEL: usize = 128 << 10;

/// Sums over pixels are made in up to so many pieces, if there are enough of them that each has so many pixels, and all of them no
/// more elements than this. The shape alone says how many, so that the bits do not depend on the threads; each piece is one thread's,
/// whose cache holds it.
const PIECES: std::ops::RangeInclusive<usize> = 4..=16;
const LEAST: usize = 768;
const MOST_SUMS: usize = 1 << 19;

/// The gradient of all filters from all images: of filter o, position t and channel i of its group at
/// `sums[(o · positions + t) · channels + i]`.
pub(super) fn weight<T: Element + Swept>(
    ctx: &CpuCtx<'_>,
    s: &Sizes,
    pixels: &Pixels,
    set: &Sweeps<T>,
    g: &[T],
    x: &[T],
    sums: &mut [T],
) {
    let (all, len) = (s.n * s.ho, sums.len());
    let pieces = (MOST_SUMS / len.max(1)).min(s.n * s.pixels() / LEAST).min(all).min(*PIECES.end());
    let whole = Whole { s, pixels, set, g, x };
    if !PIECES.contains(&pieces) {
        return whole.piece(ctx, 0..all, sums);
    }
    let each = all.div_ceil(pieces);
    let pieces = all.div_ceil(each);
    let mut parts = vec![T::ZERO; pieces * len];
    let rows = |piece: usize| piece * each..all.min((piece + 1) * each);
    if pieces >= 2 * ctx.threads {
        let alone = ctx.alone();
        ctx.split(&mut parts, len, |first, sums| whole.piece(&alone, rows(first / len), sums));
    } else {
        parts.chunks_exact_mut(len).enumerate().for_each(|(piece, sums)| whole.piece(ctx, rows(piece), sums));
    }
    let shares = ctx.parts_for_bytes(size_of_val(&parts[..]));
    ctx.split(sums, CpuCtx::chunk(len, shares, UNIT), |first, sums| {
        copy(sums, &parts[first..][..sums.len()]);
        for part in parts.chunks_exact(len).skip(1) {
            sums.iter_mut().zip(&part[first..]).for_each(|(sum, v)| *sum = Number::add(*sum, *v));
        }
    });
}

/// All images with their gradients.
struct Whole<'a, T> {
    s: &'a Sizes,
    pixels: &'a Pixels,
    set: &'a Sweeps<T>,
    g: &'a [T],
    x: &'a [T],
}

impl<T: Element + Swept> Whole<'_, T> {
    /// Sums over some rows of the result, counted through all images.
    fn piece(&self, ctx: &CpuCtx<'_>, rows: Range<usize>, sums: &mut [T]) {
        let Whole { s, pixels, set, g, x } = *self;
        let [line, down, _] = s.strides(s.co, s.ho, s.wo);
        let mut at = rows.start;
        while at < rows.end {
            let image = at / s.ho;
            let some = at - image * s.ho..s.ho.min(rows.end - image * s.ho);
            let (x, g) = (&x[image * s.c * s.h * s.w..], &g[image * s.co * s.pixels()..]);
            let g = &g[some.start * down..s.co * s.pixels()];
            let seconds = s.seconds() * some.len() as f64 / (s.n * s.ho) as f64;
            // Strips of one height for every thread.
            let parts = ctx.parts_for_seconds(seconds);
            let chunk = CpuCtx::chunk(s.co, parts, set.rows[set.vectors - 1].min(s.og().max(1)));
            let (count, add) = (some.len() * s.wo, at > rows.start);
            let mut filters = |x: &[T]| {
                ctx.split(sums, chunk * s.depth(), |first, sums| {
                    let first = first / s.depth();
                    dispatch(ctx.isa, Filters { s, pixels, set, g, line, x, first, sums, count, add });
                });
            };
            if pixels.direct {
                filters(&x[some.start * pixels.row()..s.c * s.h * s.w]);
            } else {
                with_space(pixels.kept(&some).len() * pixels.row() + SLACK, |space| {
                    pixels.fill(ctx, s, x, &some, space);
                    filters(space);
                });
            }
            at += some.len();
        }
    }
}

/// Filters from `first` on, of some rows of one image.
struct Filters<'a, T> {
    s: &'a Sizes,
    pixels: &'a Pixels,
    set: &'a Sweeps<T>,
    g: &'a [T],
    /// Distance of g's channels.
    line: usize,
    x: &'a [T],
    first: usize,
    sums: &'a mut [T],
    /// Pixels.
    count: usize,
    add: bool,
}

impl<T: Element + Swept> Job for Filters<'_, T> {
    type Out = ();
    #[inline(always)]
    fn run<S: Style>(self) {
        let Filters { s, pixels, set, g, line, x, first, sums, count: all, add } = self;
        let (og, cg, cols, row) = (s.og(), s.cg(), pixels.cols, s.depth());
        let count = sums.len() / row;
        let mut scratch = [T::ZERO; LARGEST];
        let most = (PANEL / size_of::<T>() / (set.vectors * set.lanes)).max(1);
        let deep = all.div_ceil(all.div_ceil(most));
        let mut c = Block::new(sums, count, row, row);
        for p in (0..all).step_by(deep) {
            let end = all.min(p + deep);
            let hops = Hops::new(&pixels.g[p..end], &pixels.x[p..end]);
            let add = add || p > 0;
            let mut at = 0;
            while at < count {
                // Filters of one group.
                let group = (first + at) / og;
                let filters = (og - (first + at) % og).min(count - at);
                for (t, tap) in pixels.taps.iter().enumerate() {
                    for j in (0..cols).step_by(set.vectors * set.lanes) {
                        let wide = (cols - j).min(set.vectors * set.lanes);
                        let vectors = wide.div_ceil(set.lanes);
                        let high = filters.div_ceil(filters.div_ceil(set.rows[vectors - 1]));
                        for i in (0..filters).step_by(high) {
                            let rows = high.min(filters - i);
                            let a = (&g[(first + at + i) * line..], line, rows);
                            set.tile(hops, a, &x[tap + group * cg + j..], vectors, &mut scratch);
                            for (r, made) in scratch.chunks_exact(vectors * set.lanes).take(rows).enumerate() {
                                let to = &mut c.row(at + i + r)[t * cols + j..][..wide];
                                if add {
                                    to.iter_mut().zip(made).for_each(|(to, v)| *to = Number::add(*to, *v));
                                } else {
                                    copy(to, &made[..wide]);
                                }
                            }
                        }
                    }
                }
                at += filters;
            }
        }
    }
}

/// Gradients of the filters, in the order of NCHW or as a matrix that lies across: then true.
pub(super) fn by_products<T: Float>(
    ctx: &CpuCtx<'_>,
    s: &Sizes,
    layout: &Layout,
    g: &[T],
    x: &[T],
    sums: &mut [T],
) -> bool {
    let (depth, og, pixels) = (s.depth(), s.og(), s.pixels());
    // Filters by positions of the window, or the other way round: whichever lays out less.
    let straight = s.n * depth * pixels <= s.n * og * pixels + 2 * og * depth;
    let (from, of_g) = (s.c * s.h * s.w, s.co * pixels);
    let [line_stride, _, depth_stride] = s.strides(s.co, s.ho, s.wo);
    with_space(layout.len(), |planes| {
        for n in 0..s.n {
            let (g, x) = (&g[n * of_g..][..of_g], &x[n * from..][..from]);
            let scale = if n == 0 { Scale::PLAIN } else { Scale::ADDED };
            layout.fill(ctx, x, planes);
            for (group, sums) in sums.chunks_exact_mut(og * depth).enumerate() {
                let filters = View { data: &g[group * og * line_stride..], line_stride, depth_stride };
                let planes = &planes[group * s.cg() * layout.plane..];
                let positions = Positions(Patches { s, layout, planes });
                if straight {
                    multiply(ctx, &filters, &positions, pixels, scale, Block::new(sums, og, depth, depth));
                } else {
                    multiply(ctx, &positions, &filters, pixels, scale, Block::new(sums, depth, og, og));
                }
            }
        }
    });
    !straight
}
