//! Convolutions and their gradients for the image over planes (see `planes`), tensors in NCHW: tiles of the result, some channels by
//! some pixels that follow each other in the planes, are summed over all channels and positions of the window, whose elements
//! lie in a run for each.

use super::CpuCtx;
use super::conv::Sizes;
use super::number::Number;
use super::planes::{Axis, Image, Layout};
use super::product::{Element, copy};
use super::simd::sweep::{Hops, Sweeps, Swept};
use super::simd::tile::{Block, LARGEST};
use super::simd::{Job, Style, dispatch};

/// Pixels of the result that meet the same positions of the window.
pub(super) struct Phase {
    /// Of each term of a sum: where its element of the filters lies, from that of the result's channel on, and the image's in the
    /// planes of a group.
    pub(super) filters: Vec<usize>,
    pub(super) planes: Vec<usize>,
    /// Rows and columns of pixels.
    pub(super) rows: usize,
    pub(super) cols: usize,
    /// The result's row and column of the first, and the steps to the next.
    pub(super) first: (usize, usize),
    pub(super) step: (usize, usize),
}

/// How a result is summed from planes and filters.
pub(super) struct Plan {
    pub(super) layout: Layout,
    pub(super) phases: Vec<Phase>,
    /// Channels of the result, their rows and columns, and how many channels belong to a group.
    pub(super) to: Image,
    pub(super) group: usize,
    /// Distance of the filters of two groups, and of two channels of the result.
    pub(super) of_group: usize,
    pub(super) of_channel: usize,
    /// Planes of a group.
    pub(super) inputs: usize,
}

/// Steps in both directions may make so many phases.
const MOST_PHASES: usize = 64;

impl Plan {
    /// y from x. None where windows reach so far that planes would be mostly padding, or where a row of the result is short by
    /// what planes have between rows.
    pub(super) fn forward(s: &Sizes, layout: &Layout) -> Option<Self> {
        if s.nhwc || layout.pitch > MOST_PITCH * s.wo {
            return None;
        }
        let phase = Phase {
            filters: (0..s.depth()).collect(),
            planes: layout.offsets.clone(),
            rows: s.ho,
            cols: s.wo,
            first: (0, 0),
            step: (1, 1),
        };
        Some(Plan {
            layout: layout.clone(),
            phases: vec![phase],
            to: Image { c: s.co, h: s.ho, w: s.wo, nhwc: s.nhwc },
            group: s.og(),
            of_group: s.og() * s.depth(),
            of_channel: s.depth(),
            inputs: s.cg(),
        })
    }

    /// dx from g: for each remainder of its rows and columns by the strides, a convolution of g with the positions of the window that
    /// meet such pixels. None as for [`Plan::forward`].
    pub(super) fn backward(s: &Sizes) -> Option<Self> {
        if s.nhwc || s.sh.checked_mul(s.sw)? > MOST_PHASES {
            return None;
        }
        let down = meetings(s.h, s.sh, s.pt, s.kh, s.dh)?;
        let across = meetings(s.w, s.sw, s.pl, s.kw, s.dw)?;
        let image = Image { c: s.co, h: s.ho, w: s.wo, nhwc: s.nhwc };
        let axis = |m: &Meetings| Axis { step: 1, pad: m.pad, reach: m.reach, phases: vec![0] };
        let layout = Layout::new(image, axis(&down), axis(&across))?;
        if layout.pitch > MOST_PITCH * s.w.div_ceil(s.sw) {
            return None;
        }
        let window = s.kh * s.kw;
        let mut phases = Vec::new();
        for (ry, of_rows) in down.phases.iter().enumerate() {
            for (rx, of_cols) in across.phases.iter().enumerate() {
                let (rows, cols) = (s.h.saturating_sub(ry).div_ceil(s.sh), s.w.saturating_sub(rx).div_ceil(s.sw));
                if rows == 0 || cols == 0 {
                    continue;
                }
                let (mut filters, mut planes) = (Vec::new(), Vec::new());
                for o in 0..s.og() {
                    for (ky, y) in of_rows {
                        for (kx, x) in of_cols {
                            filters.push(o * s.depth() + ky * s.kw + kx);
                            planes.push(o * layout.plane + layout.find(*y, *x)?);
                        }
                    }
                }
                phases.push(Phase { filters, planes, rows, cols, first: (ry, rx), step: (s.sh, s.sw) });
            }
        }
        Some(Plan {
            layout,
            phases,
            to: Image { c: s.c, h: s.h, w: s.w, nhwc: s.nhwc },
            group: s.cg(),
            of_group: s.og() * s.depth(),
            of_channel: window,
            inputs: s.og(),
        })
    }

    /// The result of one image from its planes; `y` is in NCHW.
    pub(super) fn run<T: Element + Swept>(&self, ctx: &CpuCtx<'_>, planes: &[T], f: &[T], y: &mut [T], seconds: f64) {
        let (set, pixels) = (T::sweeps(ctx.isa), self.to.h * self.to.w);
        let of_group = |g: usize| (&f[g * self.of_group..], &planes[g * self.inputs * self.layout.plane..]);
        let groups = self.to.c / self.group.max(1);
        let all = self.group * pixels;
        if groups < ctx.threads {
            for (g, y) in y.chunks_exact_mut(all).enumerate() {
                let (f, planes) = of_group(g);
                self.share(ctx, &set, planes, f, y, seconds / groups as f64);
            }
            return;
        }
        ctx.split(y, CpuCtx::chunk(groups, ctx.parts_for_seconds(seconds), 1) * all, |first, y| {
            for (i, y) in y.chunks_exact_mut(all).enumerate() {
                let (f, planes) = of_group(first / all + i);
                let c = Block::new(y, self.group, pixels, pixels);
                dispatch(ctx.isa, Piece { plan: self, set: &set, planes, f, at: (0, 0), c });
            }
        });
    }

    /// One group's channels, shared out among threads by rows of pixels or by channels.
    fn share<T: Element + Swept>(
        &self,
        ctx: &CpuCtx<'_>,
        set: &Sweeps<T>,
        planes: &[T],
        f: &[T],
        y: &mut [T],
        seconds: f64,
    ) {
        let pixels = self.to.h * self.to.w;
        let c = Block::new(y, self.group, pixels, pixels);
        let parts = ctx.parts_for_seconds(seconds);
        if parts < 2 {
            dispatch(ctx.isa, Piece { plan: self, set, planes, f, at: (0, 0), c });
            return;
        }
        // The steps of all phases are the same.
        let unit = self.phases.first().map_or(1, |p| p.step.0);
        let mut cut = if self.to.h >= LEAST_ROWS * unit * parts {
            c.cut(self.group, CpuCtx::chunk(self.to.h, parts, unit) * self.to.w)
        } else {
            c.cut(CpuCtx::chunk(self.group, parts, set.rows[set.vectors - 1]), pixels)
        };
        ctx.split(&mut cut, 1, |_, pieces| {
            for (at, c) in pieces {
                dispatch(ctx.isa, Piece { plan: self, set, planes, f, at: *at, c: c.reborrow() });
            }
        });
    }
}

/// A result whose rows have this part of the planes' pitch is better off with patches that are laid out.
const MOST_PITCH: usize = 2;
/// Rows of pixels that a thread gets at least.
const LEAST_ROWS: usize = 4;

/// How the pixels of dx along one axis meet g.
struct Meetings {
    /// Padding before g, and from there to behind the last element that is met.
    pad: usize,
    reach: usize,
    /// Of each remainder by the stride: positions of the window, and where in padded g the first pixel meets them.
    phases: Vec<Vec<(usize, usize)>>,
}

fn meetings(len: usize, step: usize, pad: usize, window: usize, dilation: usize) -> Option<Meetings> {
    let signed = |v: usize| i64::try_from(v).ok().filter(|v| *v < 1 << 40);
    let (len, step, pad) = (signed(len)?, signed(step)?, signed(pad)?);
    signed(window.checked_mul(dilation)?)?;
    // Pixel r + step · t and position k meet g's element t + place.
    let place = |r: i64, k: usize| {
        let at = r + pad - (k * dilation) as i64;
        (at.rem_euclid(step) == 0).then(|| at.div_euclid(step))
    };
    let places: Vec<Vec<(usize, i64)>> =
        (0..step.min(len)).map(|r| (0..window).filter_map(|k| Some((k, place(r, k)?))).collect()).collect();
    let all = || places.iter().flatten().map(|(_, p)| *p);
    let before = (-all().min().unwrap_or(0)).max(0);
    let count = (len + step - 1) / step;
    let reach = all().max().unwrap_or(0).max(0) + before + count;
    let found = |p: &(usize, i64)| Some((p.0, usize::try_from(p.1 + before).ok()?));
    Some(Meetings {
        pad: usize::try_from(before).ok()?,
        reach: usize::try_from(reach).ok()?,
        phases: places.iter().map(|p| p.iter().map(found).collect()).collect::<Option<_>>()?,
    })
}

/// Terms of a sum that are taken at once: elements of the filters and of the planes that fit the first-level cache.
const DEEP: usize = 320;

/// Channels and rows of pixels of one group's result.
struct Piece<'a, 'c, T> {
    plan: &'a Plan,
    set: &'a Sweeps<T>,
    planes: &'a [T],
    f: &'a [T],
    /// The first channel of the group, and the first pixel.
    at: (usize, usize),
    c: Block<'c, T>,
}

/// Sums of a tile that are pixels: the first of them, where it belongs, how many.
type Run = (usize, usize, usize);

impl<T: Element + Swept> Job for Piece<'_, '_, T> {
    type Out = ();
    #[inline(always)]
    fn run<S: Style>(mut self) {
        let width = self.plan.to.w.max(1);
        let (top, rows) = (self.at.1 / width, self.c.cols() / width);
        let mut runs = Vec::new();
        for phase in &self.plan.phases {
            let place = |y: usize| y.saturating_sub(phase.first.0).div_ceil(phase.step.0).min(phase.rows);
            let (from, to) = (place(top), place(top + rows));
            if from == to {
                continue;
            }
            let deep = phase.planes.len().div_ceil(phase.planes.len().div_ceil(DEEP).max(1)).max(1);
            for depth in (0..phase.planes.len().max(1)).step_by(deep) {
                let depths = depth..(depth + deep).min(phase.planes.len());
                let hops = Hops::new(&phase.filters[depths.clone()], &phase.planes[depths]);
                self.pixels(phase, (from, to), hops, depth > 0, &mut runs);
            }
        }
    }
}

impl<T: Element + Swept> Piece<'_, '_, T> {
    /// Sums of the phase's rows `from..to` over some terms.
    #[inline(always)]
    fn pixels(&mut self, phase: &Phase, (from, to): (usize, usize), hops: Hops<'_>, add: bool, runs: &mut Vec<Run>) {
        let (pitch, lanes, channels) = (self.plan.layout.pitch, self.set.lanes, self.c.rows());
        let end = (to - 1) * pitch + phase.cols;
        let mut sums = [T::ZERO; LARGEST];
        for at in (from * pitch..end).step_by(self.set.vectors * lanes) {
            let vectors = (end - at).div_ceil(lanes).min(self.set.vectors);
            let wide = vectors * lanes;
            // Tiles of nearly the same height.
            let high = channels.div_ceil(channels.div_ceil(self.set.rows[vectors - 1]).max(1)).max(1);
            self.runs(phase, at..(at + wide).min(end), runs);
            if runs.is_empty() {
                continue;
            }
            for i in (0..channels).step_by(high) {
                let rows = high.min(channels - i);
                let f = &self.f[(self.at.0 + i) * self.plan.of_channel..];
                self.set.tile(hops, (f, self.plan.of_channel, rows), &self.planes[at..], vectors, &mut sums);
                for (row, sums) in sums.chunks_exact(wide).take(rows).enumerate() {
                    let to = self.c.row(i + row);
                    for (first, place, count) in runs.iter().copied() {
                        put(&sums[first..first + count], &mut to[place..], phase.step.1, add);
                    }
                }
            }
        }
    }

    /// Which of the planes' elements are pixels of this piece, and where in its rows.
    #[inline(always)]
    fn runs(&self, phase: &Phase, elements: std::ops::Range<usize>, runs: &mut Vec<Run>) {
        let (pitch, width) = (self.plan.layout.pitch, self.plan.to.w);
        runs.clear();
        let mut at = elements.start;
        while at < elements.end {
            let (row, column) = (at / pitch, at % pitch);
            let next = ((row + 1) * pitch).min(elements.end);
            if column < phase.cols {
                let count = (phase.cols - column).min(next - at);
                let y = phase.first.0 + row * phase.step.0;
                let place = y * width + phase.first.1 + column * phase.step.1 - self.at.1;
                runs.push((at - elements.start, place, count));
            }
            at = next;
        }
    }
}

/// Sums to their places, `step` apart, added to what is there or not.
#[inline(always)]
pub(super) fn put<T: Element>(sums: &[T], to: &mut [T], step: usize, add: bool) {
    match (step, add) {
        (1, false) => copy(&mut to[..sums.len()], sums),
        (1, true) => to.iter_mut().zip(sums).for_each(|(to, s)| *to = Number::add(*to, *s)),
        (_, false) => to.iter_mut().step_by(step).zip(sums).for_each(|(to, s)| *to = *s),
        (_, true) => to.iter_mut().step_by(step).zip(sums).for_each(|(to, s)| *to = Number::add(*to, *s)),
    }
}
