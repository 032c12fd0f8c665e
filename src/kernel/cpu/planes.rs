//! Images as planes in which every window lies inside: padded, and with the rows and columns that a stride meets next to each
//! other, so that for each position of the window the elements that it meets follow each other as the result's do.
//!
//! A padded image has as many phases as there are remainders of its rows and columns by the strides; of those that some window
//! meets, each is a plane of its own, whose rows are as far apart as all the others'. Element (y, x) of the result and position
//! (ky, kx) of the window meet at y · pitch + x behind the position's offset.

use std::cell::Cell;
use std::ops::Range;

use bytemuck::{Pod, Zeroable};

use super::CpuCtx;
use super::conv::Sizes;
use super::product::{Element, Side, copy};
use super::simd::sweep::{Rows, Sweeps, Swept};
use super::simd::{Job, Style, dispatch};

/// A cache line of scratch memory.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C, align(64))]
struct Line([u8; 64]);

thread_local! {
    /// Planes of the last image on this thread: fresh memory would cost more than a small convolution.
    static SPACE: Cell<Vec<Line>> = const { Cell::new(Vec::new()) };
}

/// A tensor of one image.
#[derive(Clone, Copy, Debug)]
pub(super) struct Image {
    pub(super) c: usize,
    pub(super) h: usize,
    pub(super) w: usize,
    pub(super) nhwc: bool,
}

impl Image {
    /// Distances of channels, rows and columns.
    pub(super) fn strides(&self) -> [usize; 3] {
        if self.nhwc { [1, self.w * self.c, self.c] } else { [self.h * self.w, self.w, 1] }
    }
    /// Elements.
    pub(super) fn len(&self) -> usize {
        self.c * self.h * self.w
    }
}

/// Rows or columns of a padded image.
#[derive(Clone, Debug)]
pub(super) struct Axis {
    /// The stride, and elements before the image's first.
    pub(super) step: usize,
    pub(super) pad: usize,
    /// From the first that a window meets to behind the last.
    pub(super) reach: usize,
    /// Remainders by the stride that windows meet, ascending.
    pub(super) phases: Vec<usize>,
}

impl Axis {
    /// What windows of `window` elements, `dilation` apart, meet at `count` places. None if that is beyond any memory.
    fn of(count: usize, step: usize, pad: usize, window: usize, dilation: usize) -> Option<Self> {
        let first = count.checked_sub(1)?.checked_mul(step)?;
        let reach = first.checked_add(window.checked_sub(1)?.checked_mul(dilation)?)?.checked_add(1)?;
        let mut phases: Vec<usize> = (0..window).map(|k| k * dilation % step).collect();
        phases.sort_unstable();
        phases.dedup();
        Some(Axis { step, pad, reach, phases })
    }
    /// Elements of a phase.
    fn len(&self) -> usize {
        self.reach.div_ceil(self.step)
    }
    /// Which phase has the element, and where; none if no window meets it.
    fn find(&self, at: usize) -> Option<(usize, usize)> {
        let phase = self.phases.iter().position(|p| *p == at % self.step)?;
        Some((phase, at / self.step))
    }
    /// Of phase `phase`, what an image of `len` elements has: the first place, its element of the image, how many.
    fn run(&self, phase: usize, len: usize) -> (usize, usize, usize) {
        let phase = self.phases[phase];
        let first = self.pad.saturating_sub(phase).div_ceil(self.step).min(self.len());
        let element = (first * self.step + phase).saturating_sub(self.pad);
        let count = len.saturating_sub(element).div_ceil(self.step).min(self.len() - first);
        (first, element, count)
    }
}

/// Where an image's elements lie in its planes.
#[derive(Clone, Debug)]
pub(super) struct Layout {
    pub(super) image: Image,
    /// Distances of channels and of rows.
    pub(super) plane: usize,
    pub(super) pitch: usize,
    down: Axis,
    across: Axis,
    /// Of each row of the patches of a group, from the group's first plane on.
    pub(super) offsets: Vec<usize>,
}

/// Planes may be so many times as large as the image, or so many elements.
const MOST_TIMES: usize = 8;
const MOST: usize = 1 << 20;
/// Elements behind the last plane that vectors may reach.
const SLACK: usize = 128;
/// Elements of a cache line or two: planes begin at lines.
const UNIT: usize = 16;

impl Layout {
    /// What the windows of a convolution meet of one image. None where they reach so far beyond it that planes would be mostly
    /// padding.
    pub(super) fn of(s: &Sizes) -> Option<Self> {
        let image = Image { c: s.c, h: s.h, w: s.w, nhwc: s.nhwc };
        let down = Axis::of(s.ho, s.sh, s.pt, s.kh, s.dh)?;
        let across = Axis::of(s.wo, s.sw, s.pl, s.kw, s.dw)?;
        let mut layout = Self::new(image, down, across)?;
        let at = |r: usize| {
            let (channel, ky, kx) = (r / (s.kh * s.kw), r / s.kw % s.kh, r % s.kw);
            layout.find(ky * s.dh, kx * s.dw).map(|at| channel * layout.plane + at)
        };
        layout.offsets = (0..s.depth()).map(at).collect::<Option<_>>()?;
        Some(layout)
    }

    /// Planes without offsets; None as for [`Layout::of`].
    pub(super) fn new(image: Image, down: Axis, across: Axis) -> Option<Self> {
        let pitch = across.len();
        let phase = down.len().checked_mul(pitch)?;
        let all = phase.checked_mul(down.phases.len() * across.phases.len())?;
        let mut plane = all.checked_next_multiple_of(UNIT)?;
        // Planes a large power of two apart would share a few places in the caches.
        if (plane / UNIT).is_multiple_of(4) {
            plane += UNIT;
        }
        let whole = plane.checked_mul(image.c)?;
        if whole > MOST && whole / MOST_TIMES > image.len() {
            return None;
        }
        Some(Layout { image, plane, pitch, down, across, offsets: Vec::new() })
    }

    /// Elements of the planes of an image, and behind them.
    pub(super) fn len(&self) -> usize {
        self.plane * self.image.c + SLACK
    }

    /// Elements of one channel's planes, and behind them.
    pub(super) fn one(&self) -> usize {
        self.plane + SLACK
    }

    /// Where an element of the padded image lies in its channel's planes.
    pub(super) fn find(&self, y: usize, x: usize) -> Option<usize> {
        let ((row_phase, row), (phase, column)) = (self.down.find(y)?, self.across.find(x)?);
        Some(((row_phase * self.across.phases.len() + phase) * self.down.len() + row) * self.pitch + column)
    }

    /// Lays image `x` out in `planes`, which hold [`Layout::len`] elements.
    pub(super) fn fill<T: Element + Swept>(&self, ctx: &CpuCtx<'_>, x: &[T], planes: &mut [T]) {
        let (set, runs) = (T::sweeps(ctx.isa), self.runs());
        let (planes, slack) = planes.split_at_mut(self.plane * self.image.c);
        slack.fill(T::ZERO);
        let parts = ctx.parts_for_bytes(2 * size_of_val(planes));
        ctx.split(planes, CpuCtx::chunk(self.image.c, parts, 1) * self.plane, |first, planes| {
            let first = first / self.plane;
            dispatch(ctx.isa, Lay { layout: self, set: &set, runs: &runs, x, first, planes });
        });
    }

    /// What [`Layout::fill_one`] leaves alone: the padding.
    pub(super) fn clear<T: Element>(&self, planes: &mut [T]) {
        planes.fill(T::ZERO);
    }

    /// What the image has of each phase.
    pub(super) fn runs(&self) -> Vec<Run> {
        let phases = self.across.phases.len();
        let mut runs = Vec::new();
        for (i, _) in self.down.phases.iter().enumerate() {
            let (row, y, rows) = self.down.run(i, self.image.h);
            for j in 0..phases {
                let (column, x, cols) = self.across.run(j, self.image.w);
                if rows > 0 && cols > 0 {
                    let place = ((i * phases + j) * self.down.len() + row) * self.pitch + column;
                    runs.push(Run { place, y, x, rows, cols });
                }
            }
        }
        runs
    }

    /// Lays one channel out in planes that were cleared, or that held another channel, and hold [`Layout::one`] elements.
    #[inline(always)]
    pub(super) fn fill_one<T: Element + Swept>(
        &self,
        set: &Sweeps<T>,
        runs: &[Run],
        x: &[T],
        channel: usize,
        plane: &mut [T],
    ) {
        let [cs, ys, xs] = self.image.strides();
        let (down, across) = (self.down.step * ys, self.across.step * xs);
        for run in runs {
            let from = &x[channel * cs + run.y * ys + run.x * xs..];
            let to = &mut plane[run.place..];
            let rows = Rows { count: run.rows, data: down, out: self.pitch, len: run.cols };
            match across {
                1 => {
                    set.copy(rows, from, to);
                    continue;
                }
                2 => {
                    set.halve(rows, from, to);
                    continue;
                }
                _ => {}
            }
            for row in 0..run.rows {
                spread_out(&from[row * down..], across, &mut to[row * self.pitch..][..run.cols]);
            }
        }
    }

    /// The image that lies in `planes`, to `x`: the opposite of [`Layout::fill`], for any storage.
    pub(super) fn drain<T: Element, E: Send + Copy>(
        &self,
        ctx: &CpuCtx<'_>,
        planes: &[T],
        x: &mut [E],
        store: impl Fn(T) -> E + Sync,
    ) {
        let [cs, ys, xs] = self.image.strides();
        let Image { c, h, w, nhwc } = self.image;
        let parts = if nhwc { 1 } else { ctx.parts_for_bytes(2 * size_of_val(planes)) };
        // Planes of channels lie together, or all of them do at each pixel.
        let unit = if nhwc { x.len() } else { h * w };
        ctx.split(x, CpuCtx::chunk(x.len() / unit.max(1), parts, 1) * unit, |first, x| {
            let (first, channels) = if nhwc { (0, c) } else { (first / unit, x.len() / unit) };
            for channel in 0..channels {
                let plane = &planes[(first + channel) * self.plane..][..self.plane];
                for y in 0..h {
                    let to = &mut x[channel * cs + y * ys..];
                    // What no window meets stays zero.
                    to.iter_mut().step_by(xs).take(w).for_each(|to| *to = store(T::ZERO));
                    let Some((row_phase, row)) =
                        self.down.find(y + self.down.pad).filter(|(_, r)| *r < self.down.len())
                    else {
                        continue;
                    };
                    for phase in 0..self.across.phases.len() {
                        let at = (row_phase * self.across.phases.len() + phase) * self.down.len() + row;
                        let (first, column, count) = self.across.run(phase, w);
                        if count > 0 {
                            let to = to[column * xs..].iter_mut().step_by(xs * self.across.step);
                            let from = &plane[at * self.pitch + first..][..count];
                            to.zip(from).for_each(|(to, v)| *to = store(*v));
                        }
                    }
                }
            }
        });
    }
}

/// Rows and columns of the image that lie together in a plane: where there, the first of them in the image, how many.
pub(super) struct Run {
    place: usize,
    y: usize,
    x: usize,
    rows: usize,
    cols: usize,
}

/// Elements that are `step` apart.
#[inline(always)]
fn spread_out<T: Element>(from: &[T], step: usize, to: &mut [T]) {
    to.iter_mut().zip(from.iter().step_by(step)).for_each(|(to, v)| *to = *v);
}

/// Planes of the channels from `first` on.
struct Lay<'a, T> {
    layout: &'a Layout,
    set: &'a Sweeps<T>,
    runs: &'a [Run],
    x: &'a [T],
    first: usize,
    planes: &'a mut [T],
}

impl<T: Element + Swept> Job for Lay<'_, T> {
    type Out = ();
    #[inline(always)]
    fn run<S: Style>(self) {
        let Lay { layout, set, runs, x, first, planes } = self;
        if !layout.image.nhwc {
            for (i, plane) in planes.chunks_exact_mut(layout.plane).enumerate() {
                plane.fill(T::ZERO);
                layout.fill_one(set, runs, x, first + i, plane);
            }
            return;
        }
        // Row by row, where a row of pixels has all channels, so that it stays in the cache for them.
        planes.fill(T::ZERO);
        let [_, ys, xs] = layout.image.strides();
        for run in runs {
            for row in 0..run.rows {
                let from = &x[(run.y + row * layout.down.step) * ys + run.x * xs..];
                for (i, plane) in planes.chunks_exact_mut(layout.plane).enumerate() {
                    let to = &mut plane[run.place + row * layout.pitch..][..run.cols];
                    spread_out(&from[first + i..], layout.across.step * xs, to);
                }
            }
        }
    }
}

/// Calls `f` with memory for so many elements that stays with the thread. What it holds is left from earlier calls.
#[inline(always)]
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
            runs.push((p - pixels.start, oy * self.layout.pitch + ox, count));
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
}
