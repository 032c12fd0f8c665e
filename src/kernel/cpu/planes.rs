//! Images as planes in which every window lies inside: padded, and with the columns that a stride meets next to each other, so
//! that one row of a convolution's result reads one run of elements for each position of the window.

use std::cell::Cell;
use std::ops::Range;

use bytemuck::{Pod, Zeroable};

use super::CpuCtx;
use super::conv::Sizes;
use super::product::{Element, Side, copy};
use super::simd::tile::Strip;

/// A cache line of scratch memory.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C, align(64))]
struct Line([u8; 64]);

thread_local! {
    /// Planes of the last image on this thread: fresh memory would cost more than a small convolution.
    static SPACE: Cell<Vec<Line>> = const { Cell::new(Vec::new()) };
}

/// Where an image's elements lie in its planes.
#[derive(Clone, Debug)]
pub(super) struct Layout {
    /// Distances of planes, of rows, and of the columns that follow each other in the result's rows from one start to another.
    pub(super) plane: usize,
    pub(super) row: usize,
    phase: usize,
    rows: usize,
    /// Of each row of the patches of a group, from the group's first plane on.
    pub(super) offsets: Vec<usize>,
    /// The planes are the image itself.
    pub(super) is_image: bool,
}

/// Planes may be so many times as large as the image, or so many elements.
const MOST_TIMES: usize = 8;
const MOST: usize = 1 << 20;

impl Layout {
    /// None where the windows reach so far beyond the image that planes would be mostly padding.
    pub(super) fn of(s: &Sizes) -> Option<Self> {
        let reach = |count: usize, step: usize, window: usize, dilation: usize| {
            count
                .checked_sub(1)?
                .checked_mul(step)?
                .checked_add((window.checked_sub(1)?).checked_mul(dilation)?)?
                .checked_add(1)
        };
        let (rows, cols) = (reach(s.ho, s.sh, s.kh, s.dh)?, reach(s.wo, s.sw, s.kw, s.dw)?);
        let is_image = !s.nhwc && (s.pt, s.pl, s.sw) == (0, 0, 1) && rows <= s.h && cols <= s.w;
        let phase = cols.div_ceil(s.sw);
        let (row, plane) = if is_image { (s.w, s.h * s.w) } else { (phase * s.sw, rows.checked_mul(phase * s.sw)?) };
        let whole = plane.checked_mul(s.c)?;
        if !is_image && whole > MOST && whole / MOST_TIMES > s.c * s.h * s.w {
            return None;
        }
        let at = |r: usize| {
            let (channel, ky, kx) = (r / (s.kh * s.kw), r / s.kw % s.kh, r % s.kw);
            let column = kx * s.dw;
            let column = if is_image { column } else { column % s.sw * phase + column / s.sw };
            channel * plane + ky * s.dh * row + column
        };
        Some(Layout { plane, row, phase, rows, offsets: (0..s.depth()).map(at).collect(), is_image })
    }

    /// Elements of the planes of an image of `channels`.
    pub(super) fn len(&self, channels: usize) -> usize {
        self.plane * channels
    }

    /// Where row `oy` of the result begins, from a row's offset on.
    pub(super) fn start(&self, s: &Sizes, oy: usize) -> usize {
        oy * s.sh * self.row
    }

    /// Calls `f(column of the image, place in the row)` with the runs of a row that an image has, as (first column, distance of the
    /// columns, first place, count).
    fn runs(&self, s: &Sizes, mut f: impl FnMut(usize, usize, usize)) {
        // Column `at` of the padded row lies at `at % sw * phase + at / sw`; the image begins at column pl.
        for phase in 0..s.sw {
            let first = s.pl.saturating_sub(phase).div_ceil(s.sw);
            let column = first * s.sw + phase - s.pl;
            if column >= s.w || first >= self.phase {
                continue;
            }
            let count = (s.w - column).div_ceil(s.sw).min(self.phase - first);
            f(column, phase * self.phase + first, count);
        }
    }

    /// Lays image `x` (of all channels) out in `planes`, which hold [`Layout::len`] elements: what windows meet of it.
    pub(super) fn fill<T: Element>(&self, ctx: &CpuCtx<'_>, s: &Sizes, x: &[T], planes: &mut [T]) {
        let [cs, ys, xs] = s.strides(s.c, s.h, s.w);
        let met = |count: usize, step: usize, window: usize, dilation: usize, at: usize| {
            (0..window)
                .any(|k| at.checked_sub(k * dilation).is_some_and(|o| o.is_multiple_of(step) && o / step < count))
        };
        let rows: Vec<bool> = (0..self.rows).map(|at| met(s.ho, s.sh, s.kh, s.dh, at)).collect();
        let phases: Vec<bool> = (0..s.sw).map(|phase| (0..s.kw).any(|k| k * s.dw % s.sw == phase)).collect();
        let parts = ctx.parts_for_bytes(2 * size_of_val(planes));
        ctx.split(planes, CpuCtx::chunk(s.c, parts, 1) * self.plane, |first, planes| {
            let first = first / self.plane;
            // Row by row, so that a row of pixels stays in the cache for all channels.
            for at in (0..self.rows).filter(|at| rows[*at]) {
                let iy = at.checked_sub(s.pt).filter(|iy| *iy < s.h);
                for (i, plane) in planes.chunks_exact_mut(self.plane).enumerate() {
                    let row = &mut plane[at * self.row..][..self.row];
                    let Some(iy) = iy else {
                        row.fill(T::ZERO);
                        continue;
                    };
                    let from = &x[(first + i) * cs + iy * ys..];
                    if s.pl > 0 || self.phase * s.sw > s.w {
                        row.fill(T::ZERO);
                    }
                    self.runs(s, |column, place, count| {
                        if !phases[place / self.phase] {
                            return;
                        }
                        let to = &mut row[place..place + count];
                        match xs * s.sw {
                            1 => copy(to, &from[column..column + count]),
                            step => {
                                for (to, v) in to.iter_mut().zip(from[column * xs..].iter().step_by(step)) {
                                    *to = *v;
                                }
                            }
                        }
                    });
                }
            }
        });
    }

    /// The image that lies in `planes`, to `x`: the opposite of [`Layout::fill`], for any storage.
    pub(super) fn drain<T: Element, E: Send + Copy>(
        &self,
        ctx: &CpuCtx<'_>,
        s: &Sizes,
        planes: &[T],
        x: &mut [E],
        store: impl Fn(T) -> E + Sync,
    ) {
        let [cs, ys, xs] = s.strides(s.c, s.h, s.w);
        let parts = if s.nhwc { 1 } else { ctx.parts_for_bytes(2 * size_of_val(planes)) };
        // Planes of channels lie together, or all of them do at each pixel.
        let unit = if s.nhwc { x.len() } else { s.h * s.w };
        ctx.split(x, CpuCtx::chunk(x.len() / unit.max(1), parts, 1) * unit, |first, x| {
            let (first, channels) = if s.nhwc { (0, s.c) } else { (first / unit, x.len() / unit) };
            for channel in 0..channels {
                let plane = &planes[(first + channel) * self.plane..][..self.plane];
                for iy in 0..s.h {
                    let to = &mut x[channel * cs + iy * ys..];
                    if iy + s.pt >= self.rows {
                        // Rows that no window meets.
                        to.iter_mut().step_by(xs).take(s.w).for_each(|to| *to = store(T::ZERO));
                        continue;
                    }
                    let row = &plane[(iy + s.pt) * self.row..][..self.row];
                    if self.phase * s.sw < s.w + s.pl {
                        to.iter_mut().step_by(xs).take(s.w).for_each(|to| *to = store(T::ZERO));
                    }
                    self.runs(s, |column, place, count| {
                        let to = to[column * xs..].iter_mut().step_by(xs * s.sw);
                        for (to, v) in to.zip(&row[place..place + count]) {
                            *to = store(*v);
                        }
                    });
                }
            }
        });
    }
}

/// Calls `f` with the planes of each image in turn: the image itself where that will do, else laid out in memory that stays with
/// the thread.
pub(super) fn with_space<T: Element, R>(len: usize, f: impl FnOnce(&mut [T]) -> R) -> R {
    let mut space = SPACE.take();
    let lines = len.div_ceil(64 / size_of::<T>());
    if space.len() < lines {
        space.resize(lines, Line([0; 64]));
    }
    let result = f(&mut bytemuck::cast_slice_mut(&mut space)[..len]);
    // What a single large image needed is not kept for good.
    if space.len() * 64 <= KEPT {
        SPACE.set(space);
    }
    result
}

/// Bytes of planes that a thread keeps.
const KEPT: usize = 64 << 20;

/// The patches of a group as lines: for each pixel of the result the elements that its window meets.
pub(super) struct Patches<'a, T> {
    pub(super) s: &'a Sizes,
    pub(super) layout: &'a Layout,
    /// From the group's first plane on.
    pub(super) planes: &'a [T],
}

/// Parts of rows that some pixels of the result lie in: (place among them, where their elements begin, count).
type Runs = Vec<(usize, usize, usize)>;

impl<T: Element> Patches<'_, T> {
    fn runs(&self, pixels: Range<usize>) -> Runs {
        let mut runs = Runs::new();
        let mut p = pixels.start;
        while p < pixels.end {
            let (oy, ox) = (p / self.s.wo, p % self.s.wo);
            let count = (self.s.wo - ox).min(pixels.end - p);
            runs.push((p - pixels.start, self.layout.start(self.s, oy) + ox, count));
            p += count;
        }
        runs
    }
}

impl<T: Element> Side<T> for Patches<'_, T> {
    fn pack(&self, first: usize, count: usize, depths: Range<usize>, width: usize, out: &mut [T]) {
        let runs = self.runs(first..first + count);
        for (offset, out) in self.layout.offsets[depths].iter().zip(out.chunks_exact_mut(width)) {
            for (at, start, count) in &runs {
                copy(&mut out[*at..at + count], &self.planes[offset + start..][..*count]);
            }
            out[count..].fill(T::ZERO);
        }
    }
}

/// The same elements with the window's positions as lines, and pixels as depths.
pub(super) struct Positions<'a, T>(pub(super) Patches<'a, T>);

impl<T: Element> Side<T> for Positions<'_, T> {
    fn pack(&self, first: usize, count: usize, depths: Range<usize>, width: usize, out: &mut [T]) {
        if count < width {
            out.fill(T::ZERO);
        }
        let runs = self.0.runs(depths);
        for (i, offset) in self.0.layout.offsets[first..first + count].iter().enumerate() {
            for (at, start, count) in &runs {
                let from = &self.0.planes[offset + start..][..*count];
                for (out, v) in out[at * width + i..].iter_mut().step_by(width).zip(from) {
                    *out = *v;
                }
            }
        }
    }

    fn pack_rows(&self, first: usize, count: usize, depths: Range<usize>, out: &mut [T]) -> bool {
        let len = depths.len();
        let runs = self.0.runs(depths);
        for (offset, out) in self.0.layout.offsets[first..first + count].iter().zip(out.chunks_exact_mut(len)) {
            for (at, start, count) in &runs {
                copy(&mut out[*at..at + count], &self.0.planes[offset + start..][..*count]);
            }
        }
        true
    }

    fn in_place(&self, _: usize, _: usize) -> Option<Strip<'_, T>> {
        None
    }
}
