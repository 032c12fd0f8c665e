//! Convolutions as products of pixels with filters: a lane for each filter, a row of a tile for each pixel. The image is laid out with
//! its channels together (see `pixels`), so that a tile's elements of A are the pixels' own, and no patch is ever made.

use std::cmp::Reverse;
use std::ops::Range;

use super::CpuCtx;
use super::conv::Sizes;
use super::number::Number;
use super::pixels::{Pixels, SLACK};
use super::planes::with_space;
use super::product::{Element, copy};
use super::simd::sweep::{Hops, Sweeps, Swept};
use super::simd::tile::{Block, LARGEST};
use super::simd::turn::{Lines, turn};
use super::simd::{Isa, Job, Style, dispatch};

/// Terms of a sum that are taken at once: as many elements of a panel of filters as a second-level cache keeps beside the pixels.
const DEEP: usize = 320;
/// Sums that are kept at once.
const SUMS: usize = 1 << 16;
/// Pixels whose sums are turned together.
const TURNED: usize = 64;

/// Where the filters' elements come from.
#[derive(Clone, Copy)]
pub(super) enum Filters<'a, T> {
    /// [filters, channels of a group, window].
    Forward(&'a [T]),
    /// [channels of the result's group, filters, window] with the window turned around, which makes a gradient for the image.
    Backward(&'a [T]),
}

/// A convolution whose operands are known.
pub(super) struct Convolution<'a, T> {
    s: &'a Sizes,
    pixels: Pixels,
    set: Sweeps<T>,
    /// Of each term of a sum its place from a pixel's first position on.
    hops: Vec<usize>,
    /// Panels of filters, for each term a row.
    panels: Vec<T>,
}

/// True if this is the way for such a convolution: vectors of filters would not be mostly empty.
pub(super) fn suits<T: Swept>(s: &Sizes, set: &Sweeps<T>) -> bool {
    s.og() >= set.lanes && s.kh * s.kw > 1 && s.depth() >= set.lanes
}

impl<'a, T: Element + Swept> Convolution<'a, T> {
    /// None where windows reach far beyond the image.
    pub(super) fn new(ctx: &CpuCtx<'_>, s: &'a Sizes, filters: Filters<'_, T>) -> Option<Self> {
        let (pixels, set) = (Pixels::thick(s)?, T::sweeps(ctx.isa));
        let (window, depth) = (s.kh * s.kw, s.depth());
        let taps: Vec<usize> = match filters {
            Filters::Forward(_) => pixels.taps.clone(),
            Filters::Backward(_) => pixels.taps.iter().rev().copied().collect(),
        };
        let hops = (0..s.cg()).flat_map(|channel| taps.iter().map(move |tap| tap + channel)).collect();
        let wide = set.vectors * set.lanes;
        let of_group = s.og().div_ceil(wide);
        let mut panels = vec![T::ZERO; s.group * of_group * depth * wide];
        let parts = ctx.parts_for_bytes(4 * size_of_val(&panels[..]));
        ctx.split(&mut panels, CpuCtx::chunk(s.group * of_group, parts, 1) * depth * wide, |first, panels| {
            let first = first / (depth * wide);
            for (i, panel) in panels.chunks_exact_mut(depth * wide).enumerate() {
                let (group, j) = ((first + i) / of_group, (first + i) % of_group * wide);
                let count = wide.min(s.og() - j);
                match filters {
                    Filters::Forward(f) => {
                        let f = &f[(group * s.og() + j) * depth..];
                        turn(ctx.isa, f, (count, depth), Lines { x: depth, y: wide }, panel, false);
                    }
                    Filters::Backward(f) => {
                        for (channel, panel) in panel.chunks_exact_mut(window * wide).enumerate() {
                            let f = &f[((group * s.cg() + channel) * s.og() + j) * window..];
                            turn(ctx.isa, f, (count, window), Lines { x: window, y: wide }, panel, false);
                        }
                    }
                }
            }
        });
        Some(Convolution { s, pixels, set, hops, panels })
    }

    /// The result of all images.
    pub(super) fn run(&self, ctx: &CpuCtx<'_>, x: &[T], y: &mut [T]) {
        let (s, pixels) = (self.s, self.s.pixels());
        let parts = ctx.parts_for_seconds(s.seconds());
        // Rows of an image for each thread; where those do not suffice, filters, too.
        let panels = if s.group > 1 { 1 } else { s.co.div_ceil(self.set.vectors * self.set.lanes) };
        let rows = rows(s.ho, ctx.threads, parts.div_ceil(s.n), panels);
        let pieces = s.n * s.ho.div_ceil(rows);
        let wide = self.set.vectors * self.set.lanes;
        let filters = if s.group > 1 { s.co } else { CpuCtx::chunk(s.co, parts.div_ceil(pieces), wide) };
        let mut jobs = Vec::new();
        for (n, y) in y.chunks_exact_mut(s.co * pixels).enumerate() {
            let cut = match s.nhwc {
                true => Block::new(y, pixels, s.co, s.co).cut(rows * s.wo, filters),
                false => Block::new(y, s.co, pixels, pixels).cut(filters, rows * s.wo),
            };
            jobs.extend(cut.into_iter().map(|((down, across), y)| {
                let (first, pixel) = if s.nhwc { (across, down) } else { (down, across) };
                (n, first, pixel / s.wo, y)
            }));
        }
        let image = s.c * s.h * s.w;
        ctx.split(&mut jobs, 1, |_, jobs| {
            for (n, first, row, y) in jobs {
                let (co, count) = if s.nhwc { (y.cols(), y.rows()) } else { (y.rows(), y.cols()) };
                let piece = Piece {
                    all: self,
                    isa: ctx.isa,
                    x: &x[*n * image..][..image],
                    rows: *row..*row + count / s.wo,
                    filters: *first..*first + co,
                    y: y.reborrow(),
                };
                piece.run(&ctx.alone());
            }
        });
    }
}

/// Rows of pixels that a thread gets at least, beside which it lays out some more.
const LEAST_ROWS: usize = 6;

/// Rows of each piece of `all`, of which there are at most `most`: as many for every thread, and all of them the same where that can be.
/// Where rows are too few for that, so many that with `panels` of filters to each all threads have work.
fn rows(all: usize, threads: usize, most: usize, panels: usize) -> usize {
    if most >= threads && all / LEAST_ROWS < threads {
        return all.div_ceil(threads.div_ceil(panels.max(1)).clamp(1, all.max(1)));
    }
    let counts = (threads..=most.min(all / LEAST_ROWS)).step_by(threads.max(1));
    // Of those that leave as little over, the largest number: threads do not all begin at once.
    let best = counts.min_by_key(|count| (all.div_ceil(*count) * count - all, Reverse(*count)));
    all.div_ceil(best.unwrap_or(1)).max(1)
}

/// Some rows of an image's result, of some filters.
struct Piece<'a, 'c, T> {
    all: &'a Convolution<'a, T>,
    isa: Isa,
    x: &'a [T],
    rows: Range<usize>,
    filters: Range<usize>,
    y: Block<'c, T>,
}

impl<T: Element + Swept> Piece<'_, '_, T> {
    /// In blocks of rows whose sums stay in a second-level cache.
    fn run(mut self, ctx: &CpuCtx<'_>) {
        let wide = self.all.set.vectors * self.all.set.lanes;
        let most = (SUMS / (self.all.s.wo * wide).max(1)).max(1);
        let each = self.rows.len().div_ceil(self.rows.len().div_ceil(most).max(1));
        for first in self.rows.clone().step_by(each.max(1)) {
            self.block(ctx, first..self.rows.end.min(first + each));
        }
    }

    fn block(&mut self, ctx: &CpuCtx<'_>, rows: Range<usize>) {
        let Convolution { s, pixels, set, .. } = self.all;
        let wide = set.vectors * set.lanes;
        let laid = pixels.kept(&rows).len() * pixels.row() + SLACK;
        let count = rows.len() * s.wo;
        let pixel = (rows.start - self.rows.start) * s.wo;
        with_space(laid + count * wide + TURNED * wide, |space| {
            let (image, rest) = space.split_at_mut(laid);
            let (sums, turned) = rest.split_at_mut(count * wide);
            pixels.fill(ctx, s, self.x, &rows, image);
            let mut at = self.filters.start;
            while at < self.filters.end {
                // Filters of one panel of one group.
                let (group, j) = (at / s.og(), at % s.og());
                let some = (wide - j % wide).min(s.og() - j).min(self.filters.end - at);
                let panel = (group * s.og().div_ceil(wide) + j / wide) * s.depth() * wide;
                let panel = &self.all.panels[panel..][..s.depth() * wide];
                dispatch(self.isa, Sums { all: self.all, image: &image[group * s.cg()..], panel, some, sums });
                let first = at - self.filters.start;
                self.store((first, some), pixel, &sums[..count * wide], &mut turned[..TURNED * wide]);
                at += some;
            }
        });
    }

    /// The sums of `some` filters, [pixels, wide], to their places.
    fn store(&mut self, (first, some): (usize, usize), pixel: usize, sums: &[T], turned: &mut [T]) {
        let wide = self.all.set.vectors * self.all.set.lanes;
        if self.all.s.nhwc {
            for (i, sums) in sums.chunks_exact(wide).enumerate() {
                copy(&mut self.y.row(pixel + i)[first..first + some], &sums[..some]);
            }
            return;
        }
        for (p, sums) in sums.chunks(TURNED * wide).enumerate() {
            let count = sums.len() / wide;
            turn(self.isa, sums, (count, some), Lines { x: wide, y: TURNED }, turned, false);
            for (i, turned) in turned.chunks_exact(TURNED).take(some).enumerate() {
                copy(&mut self.y.row(first + i)[pixel + p * TURNED..][..count], &turned[..count]);
            }
        }
    }
}

/// Sums of rows of pixels with `some` filters of a panel, [pixels, wide].
struct Sums<'a, T> {
    all: &'a Convolution<'a, T>,
    image: &'a [T],
    panel: &'a [T],
    some: usize,
    sums: &'a mut [T],
}

impl<T: Element + Swept> Job for Sums<'_, T> {
    type Out = ();
    #[inline(always)]
    fn run<S: Style>(self) {
        let Sums { all: Convolution { s, pixels, set, hops, .. }, image, panel, some, sums } = self;
        let wide = set.vectors * set.lanes;
        let vectors = some.div_ceil(set.lanes);
        let (width, most) = (vectors * set.lanes, set.rows[vectors - 1]);
        // Tiles of nearly the same height, each of pixels of one row.
        let high = s.wo.div_ceil(s.wo.div_ceil(most));
        let deep = s.depth().div_ceil(s.depth().div_ceil(DEEP));
        let b_hops: Vec<usize> = (0..deep).map(|p| p * wide).collect();
        let mut scratch = [T::ZERO; LARGEST];
        for depth in (0..s.depth()).step_by(deep) {
            let end = s.depth().min(depth + deep);
            let hops = Hops::new(&hops[depth..end], &b_hops[..end - depth]);
            let panel = &panel[depth * wide..];
            for (row, sums) in sums.chunks_exact_mut(s.wo * wide).enumerate() {
                for left in (0..s.wo).step_by(high) {
                    let rows = high.min(s.wo - left);
                    let a = (&image[pixels.x[row * s.wo + left]..], pixels.step(), rows);
                    set.tile(hops, a, panel, vectors, &mut scratch);
                    let to = sums[left * wide..].chunks_exact_mut(wide).zip(scratch.chunks_exact(width));
                    for (to, made) in to.take(rows) {
                        if depth == 0 {
                            copy(&mut to[..width], made);
                        } else {
                            to.iter_mut().zip(made).for_each(|(to, v)| *to = Number::add(*to, *v));
                        }
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_get_as_many_rows() {
        assert_eq!([14, 28, 56, 112].map(|all| rows(all, 2, 8, 1)), [7, 7, 7, 14]);
        assert_eq!(rows(30, 2, 8, 1), 15, "four would get eight rows or six");
        assert_eq!((rows(56, 2, 1, 1), rows(1, 1, 1, 1)), (56, 1), "enough images, or nothing to cut");
        assert_eq!((rows(56, 16, 64, 1), rows(14, 16, 64, 4), rows(7, 2, 8, 1), rows(7, 2, 8, 8)), (4, 4, 4, 7));
    }
}
