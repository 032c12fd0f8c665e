//! Gradients of filters as products over pixels: a row for each filter, a column for each channel at each position of the window.
//! Of each pixel all channels lie together, so that a position's columns are read where they lie.

use std::ops::Range;

use super::CpuCtx;
use super::conv::{Float, Sizes};
use super::number::Number;
use super::planes::{Layout, Patches, Positions, with_space};
use super::product::{Element, Scale, View, copy, multiply};
use super::simd::sweep::{Hops, Rows, Sweeps, Swept};
use super::simd::tile::{Block, LARGEST};
use super::simd::turn::{Lines, turn};
use super::simd::{Isa, Job, Style, dispatch};

/// Pixels of a padded image, with the channels of each together.
pub(super) struct Pixels {
    down: Axis,
    across: Axis,
    /// Distance of two pixels.
    pitch: usize,
    /// Of each pixel of the result: where g has it, and where the window's first position lies.
    g: Vec<usize>,
    x: Vec<usize>,
    /// From there to each position of the window, or to each of its rows, whose positions lie together.
    taps: Vec<usize>,
    /// Columns of each.
    cols: usize,
    /// The image itself has its pixels so: nothing is laid out.
    direct: bool,
}

/// Rows or columns.
struct Axis {
    /// How many are kept, the step from one to the next in the image, and elements before the image's first.
    len: usize,
    step: usize,
    pad: usize,
    /// The result's stride and the window's dilation among those that are kept.
    stride: usize,
    dilation: usize,
    /// Of those that are kept, how many a window reaches over.
    reach: usize,
}

impl Axis {
    /// None if windows reach beyond any memory.
    fn of(count: usize, stride: usize, pad: usize, window: usize, dilation: usize) -> Option<Self> {
        if window == 1 {
            return Some(Axis { len: count, step: stride, pad, stride: 1, dilation: 0, reach: 1 });
        }
        let reach = (window - 1).checked_mul(dilation)?.checked_add(1)?;
        let len = count.checked_sub(1)?.checked_mul(stride)?.checked_add(reach)?;
        Some(Axis { len, step: 1, pad, stride, dilation, reach })
    }
    /// The element of an image of `len` that is kept at place `at`, if it is not padding.
    fn element(&self, at: usize, len: usize) -> Option<usize> {
        (at * self.step).checked_sub(self.pad).filter(|e| *e < len)
    }
}

/// Padded images may be so many times as large as they are, or have so many elements.
const MOST_TIMES: usize = 8;
const MOST: usize = 1 << 20;
/// Elements of a cache line.
const UNIT: usize = 16;
/// Elements behind the last pixel that vectors may reach.
const SLACK: usize = 64;

impl Pixels {
    /// None where windows reach far beyond the image, or where vectors would be mostly empty.
    pub(super) fn of<T: Swept>(s: &Sizes, set: &Sweeps<T>) -> Option<Self> {
        // A few channels, and the window's next pixel behind them.
        let rows = s.group == 1 && s.dw == 1 && s.kw > 1 && s.c < set.lanes;
        let cols = if rows { s.kw * s.c } else { s.cg() };
        if 2 * cols < set.lanes {
            return None;
        }
        let down = Axis::of(s.ho, s.sh, s.pt, s.kh, s.dh)?;
        let across = Axis::of(s.wo, s.sw, s.pl, s.kw, s.dw)?;
        let direct = s.nhwc && s.is_pointwise() && cols.is_multiple_of(set.lanes);
        let mut pitch = if rows || direct { s.c } else { s.c.next_multiple_of(UNIT) };
        // Pixels a large power of two apart would share a few places in the caches.
        if !rows && !direct && (pitch / UNIT).is_multiple_of(4) {
            pitch += UNIT;
        }
        let whole = down.len.checked_mul(across.len)?.checked_mul(pitch)?;
        if whole > MOST && whole / MOST_TIMES > s.c * s.h * s.w {
            return None;
        }
        let [_, gy, gx] = s.strides(s.co, s.ho, s.wo);
        let row = across.len * pitch;
        let each = |high: usize, wide: usize, y: usize, x: usize| {
            (0..high).flat_map(move |i| (0..wide).map(move |j| i * y + j * x)).collect::<Vec<_>>()
        };
        Some(Pixels {
            g: each(s.ho, s.wo, gy, gx),
            x: each(s.ho, s.wo, down.stride * row, across.stride * pitch),
            taps: each(s.kh, if rows { 1 } else { s.kw }, down.dilation * row, across.dilation * pitch),
            cols,
            direct,
            down,
            across,
            pitch,
        })
    }

    /// Elements of a row that is kept.
    fn row(&self) -> usize {
        self.across.len * self.pitch
    }

    /// The rows that are kept which so many rows of the result meet.
    fn kept(&self, rows: &Range<usize>) -> Range<usize> {
        let first = rows.start * self.down.stride;
        first..first + (rows.len() - 1) * self.down.stride + self.down.reach
    }

    /// Lays out what some rows of the result meet of an image.
    fn fill<T: Element + Swept>(&self, ctx: &CpuCtx<'_>, s: &Sizes, x: &[T], rows: &Range<usize>, to: &mut [T]) {
        let (row, kept) = (self.row(), self.kept(rows));
        let to = &mut to[..kept.len() * row];
        let parts = ctx.parts_for_bytes(4 * size_of_val(to));
        ctx.split(to, CpuCtx::chunk(kept.len(), parts, 1) * row, |first, to| {
            lay(ctx.isa, self, s, x, kept.start + first / row, to);
        });
    }
}

/// Rows of pixels from `first` on, laid out with the channels of each pixel together.
fn lay<T: Element + Swept>(isa: Isa, pixels: &Pixels, s: &Sizes, x: &[T], first: usize, to: &mut [T]) {
    let (pitch, across) = (pixels.pitch, &pixels.across);
    let [cs, ys, xs] = s.strides(s.c, s.h, s.w);
    // What is kept of a row and is not padding.
    let inside = |at: &usize| across.element(*at, s.w).is_some();
    let (low, high) = match ((0..across.len).find(inside), (0..across.len).rfind(inside)) {
        (Some(low), Some(high)) => (low, high + 1),
        _ => (0, 0),
    };
    let column = across.element(low, s.w).unwrap_or(0);
    let (set, mut few) = (T::sweeps(isa), Vec::new());
    for (i, to) in to.chunks_exact_mut(across.len * pitch).enumerate() {
        let Some(y) = pixels.down.element(first + i, s.h).filter(|_| low < high) else {
            to.fill(T::ZERO);
            continue;
        };
        to[..low * pitch].fill(T::ZERO);
        to[high * pitch..].fill(T::ZERO);
        let (from, to) = (&x[y * ys + column * xs..], &mut to[low * pitch..high * pitch]);
        let len = high - low;
        if s.nhwc {
            for (to, from) in to.chunks_exact_mut(pitch).zip(from.chunks(across.step * xs)) {
                copy(&mut to[..s.c], &from[..s.c]);
            }
            continue;
        }
        if across.step == 1 {
            turn(isa, from, (s.c, len), Lines { x: cs, y: pitch }, to, false);
            continue;
        }
        // First the columns of some channels side by side.
        few.resize(FEW * len, T::ZERO);
        for c0 in (0..s.c).step_by(FEW) {
            let rows = FEW.min(s.c - c0);
            let of = &from[c0 * cs..];
            if across.step == 2 {
                set.halve(Rows { count: rows, data: cs, out: len, len }, of, &mut few);
            } else {
                for (few, of) in few.chunks_exact_mut(len).zip(of.chunks(cs)).take(rows) {
                    few.iter_mut().zip(of.iter().step_by(across.step)).for_each(|(to, v)| *to = *v);
                }
            }
            turn(isa, &few, (rows, len), Lines { x: len, y: pitch }, &mut to[c0..], false);
        }
    }
}

/// Channels that are taken at once where columns lie apart.
const FEW: usize = 16;

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
