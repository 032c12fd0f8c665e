//! Images with the channels of each pixel together, padded: what convolutions read whose sums run over channels or over pixels.

use std::ops::Range;

use super::CpuCtx;
use super::conv::Sizes;
use super::product::{Element, copy};
use super::simd::Isa;
use super::simd::sweep::{Rows, Sweeps, Swept};
use super::simd::turn::{Lines, turn};

/// Pixels of a padded image, with the channels of each together.
pub(super) struct Pixels {
    down: Axis,
    across: Axis,
    /// Distance of two pixels.
    pitch: usize,
    /// Of each pixel of the result: where g has it, and where the window's first position lies.
    pub(super) g: Vec<usize>,
    pub(super) x: Vec<usize>,
    /// From there to each position of the window, or to each of its rows, whose positions lie together.
    pub(super) taps: Vec<usize>,
    /// Columns of each.
    pub(super) cols: usize,
    /// The image itself has its pixels so: nothing is laid out.
    pub(super) direct: bool,
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
pub(super) const UNIT: usize = 16;
/// Elements behind the last pixel that vectors may reach.
pub(super) const SLACK: usize = 64;

impl Pixels {
    /// For sums over pixels, with a vector's lane for each channel. None where windows reach far beyond the image, or where vectors would
    /// be mostly empty.
    pub(super) fn of<T: Swept>(s: &Sizes, set: &Sweeps<T>) -> Option<Self> {
        // A few channels, and the window's next pixel behind them.
        let rows = s.group == 1 && s.dw == 1 && s.kw > 1 && s.c < set.lanes;
        let cols = if rows { s.kw * s.c } else { s.cg() };
        if 2 * cols < set.lanes {
            return None;
        }
        let direct = s.nhwc && s.is_pointwise() && cols.is_multiple_of(set.lanes);
        let mut pitch = if rows || direct { s.c } else { s.c.next_multiple_of(UNIT) };
        // Pixels a large power of two apart would share a few places in the caches.
        if !rows && !direct && (pitch / UNIT).is_multiple_of(4) {
            pitch += UNIT;
        }
        Some(Pixels { direct, ..Self::apart(s, pitch, if rows { 1 } else { s.kw }, cols)? })
    }

    /// For sums over channels and positions, one for each pixel. None where windows reach far beyond the image.
    pub(super) fn thick(s: &Sizes) -> Option<Self> {
        let apart = s.c.is_multiple_of(4 * UNIT);
        Self::apart(s, if apart { s.c + UNIT } else { s.c }, s.kw, s.cg())
    }

    /// With pixels so far apart, and so many taps in a row of the window.
    fn apart(s: &Sizes, pitch: usize, wide: usize, cols: usize) -> Option<Self> {
        let down = Axis::of(s.ho, s.sh, s.pt, s.kh, s.dh)?;
        let across = Axis::of(s.wo, s.sw, s.pl, s.kw, s.dw)?;
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
            taps: each(s.kh, wide, down.dilation * row, across.dilation * pitch),
            cols,
            direct: false,
            down,
            across,
            pitch,
        })
    }

    /// From a pixel of the result to the next one in its row, in what is laid out.
    pub(super) fn step(&self) -> usize {
        self.across.stride * self.pitch
    }

    /// Elements of a row that is kept.
    pub(super) fn row(&self) -> usize {
        self.across.len * self.pitch
    }

    /// The rows that are kept which so many rows of the result meet.
    pub(super) fn kept(&self, rows: &Range<usize>) -> Range<usize> {
        let first = rows.start * self.down.stride;
        first..first + (rows.len() - 1) * self.down.stride + self.down.reach
    }

    /// Lays out what some rows of the result meet of an image.
    pub(super) fn fill<T: Element + Swept>(
        &self,
        ctx: &CpuCtx<'_>,
        s: &Sizes,
        x: &[T],
        rows: &Range<usize>,
        to: &mut [T],
    ) {
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
