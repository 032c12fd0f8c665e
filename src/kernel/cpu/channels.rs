//! Convolutions with one channel and one filter in each group, of tensors whose channels lie together (NHWC), and their gradients.
//!
//! Nothing is laid out first: pixels of a row that meet the same positions of the window are summed together, and those beside the
//! image's borders meet fewer. Zeros of the padding, which count for y and the filters' gradient, make no difference but beside a
//! number that is not finite: such operands go another way.

use super::CpuCtx;
use super::conv::Sizes;
use super::math::Real;
use super::product::Element;
use super::simd::channels::{Beside, Pixels, Taps};
use super::simd::turn::{Lines, turn};

/// Windows of more positions along an axis go another way.
const MOST: usize = u64::BITS as usize;

/// Places along one axis that meet the same positions of the window.
struct Run {
    /// The first one, the step to the next, and how many.
    first: usize,
    step: usize,
    count: usize,
    /// The positions, each with the element that the first one meets there.
    met: Vec<(usize, usize)>,
}

/// The runs of an axis of `len` places, of which those `step` apart follow each other: `meets` tells which element a place meets at a
/// position of the window, if any.
fn runs(len: usize, step: usize, window: usize, meets: impl Fn(usize, usize) -> Option<usize>) -> Vec<Run> {
    let mut runs: Vec<Run> = Vec::new();
    for phase in 0..step.min(len) {
        let mut last = None;
        for place in (phase..len).step_by(step) {
            let mask = (0..window).filter(|k| meets(place, *k).is_some()).fold(0u64, |mask, k| mask | 1 << k);
            match runs.last_mut().filter(|_| last == Some(mask)) {
                Some(run) => run.count += 1,
                None => runs.push(Run {
                    first: place,
                    step,
                    count: 1,
                    met: (0..window).filter_map(|k| Some((k, meets(place, k)?))).collect(),
                }),
            }
            last = Some(mask);
        }
    }
    runs
}

/// How a result's pixels meet an image.
struct Meeting {
    down: Vec<Run>,
    across: Vec<Run>,
    /// From a place to the next of its run, in the image.
    steps: (usize, usize),
    /// Rows and columns of the result and columns of the image.
    to: (usize, usize),
    width: usize,
    /// Columns of the window.
    kw: usize,
    channels: usize,
}

/// What `run` is of pixels in one row.
struct RowOf<'a> {
    pixels: Pixels,
    taps: Taps<'a>,
    /// The first pixel's first channel in the row.
    first: usize,
}

impl Meeting {
    /// y with x.
    fn forward(s: &Sizes) -> Option<Self> {
        let meets = |len: usize, step: usize, pad: usize, dilation: usize| {
            move |place: usize, k: usize| (place * step + k * dilation).checked_sub(pad).filter(|at| *at < len)
        };
        (s.kh <= MOST && s.kw <= MOST).then(|| Meeting {
            down: runs(s.ho, 1, s.kh, meets(s.h, s.sh, s.pt, s.dh)),
            across: runs(s.wo, 1, s.kw, meets(s.w, s.sw, s.pl, s.dw)),
            steps: (s.sh, s.sw),
            to: (s.ho, s.wo),
            width: s.w,
            kw: s.kw,
            channels: s.c,
        })
    }

    /// dx with g.
    fn backward(s: &Sizes) -> Option<Self> {
        let meets = |len: usize, step: usize, pad: usize, dilation: usize| {
            move |place: usize, k: usize| {
                let at = (place + pad).checked_sub(k * dilation)?;
                (at.is_multiple_of(step) && at / step < len).then(|| at / step)
            }
        };
        (s.kh <= MOST && s.kw <= MOST).then(|| Meeting {
            down: runs(s.h, s.sh, s.kh, meets(s.ho, s.sh, s.pt, s.dh)),
            across: runs(s.w, s.sw, s.kw, meets(s.wo, s.sw, s.pl, s.dw)),
            steps: (1, 1),
            to: (s.h, s.w),
            width: s.wo,
            kw: s.kw,
            channels: s.c,
        })
    }

    /// Calls `f` with the runs of pixels of a row, of so many of their channels; factors of a position follow each other.
    fn row(&self, row: usize, channels: usize, places: &mut [Vec<usize>; 2], mut f: impl FnMut(RowOf<'_>)) {
        let has = |r: &&Run| row.checked_sub(r.first).is_some_and(|d| d % r.step == 0 && d / r.step < r.count);
        let Some(down) = self.down.iter().find(has) else { return };
        let below = (row - down.first) / down.step * self.steps.0;
        for across in &self.across {
            let [data, factors] = &mut *places;
            data.clear();
            factors.clear();
            for (ky, y) in &down.met {
                for (kx, x) in &across.met {
                    data.push(((y + below) * self.width + x) * self.channels);
                    factors.push((ky * self.kw + kx) * channels);
                }
            }
            let out = across.step * self.channels;
            let pixels = Pixels { count: across.count, data: self.steps.1 * self.channels, out, channels };
            f(RowOf { pixels, taps: Taps { data, factors }, first: across.first * self.channels });
        }
    }

    /// Elements of a row of the result.
    fn wide(&self) -> usize {
        self.to.1 * self.channels
    }
}

/// The result of all images, each of `from` elements, row by row. `f` has the window's positions of each channel together.
fn apply<T: Element + Beside>(
    ctx: &CpuCtx<'_>,
    s: &Sizes,
    m: &Meeting,
    (x, from): (&[T], usize),
    f: &[T],
    y: &mut [T],
) {
    let (set, wide, window) = (T::channels(ctx.isa), m.wide(), s.kh * s.kw);
    let mut factors = vec![T::ZERO; f.len()];
    turn(ctx.isa, f, (s.c, window), Lines { x: window, y: s.c }, &mut factors, false);
    let parts = ctx.parts_for_bytes(4 * size_of_val(y));
    ctx.split(y, CpuCtx::chunk(s.n * m.to.0, parts, 1) * wide, |first, y| {
        let mut places = [Vec::new(), Vec::new()];
        for (i, y) in y.chunks_exact_mut(wide).enumerate() {
            let row = first / wide + i;
            let x = &x[row / m.to.0 * from..][..from];
            m.row(row % m.to.0, s.c, &mut places, |r| set.sums(r.pixels, r.taps, x, &factors, &mut y[r.first..]));
        }
    });
}

/// True if all numbers are finite.
fn finite<T: Element + Real>(all: &[T]) -> bool {
    all.iter().fold(true, |finite, v| finite & (*v * T::ZERO == T::ZERO))
}

/// y of all images. False where it is none of these: y is to be written anew.
pub(super) fn forward<T: Element + Real + Beside>(ctx: &CpuCtx<'_>, s: &Sizes, x: &[T], f: &[T], y: &mut [T]) -> bool {
    let meeting = if s.nhwc && s.is_depthwise() && finite(f) { Meeting::forward(s) } else { None };
    meeting.map(|m| apply(ctx, s, &m, (x, s.c * s.h * s.w), f, y)).is_some()
}

/// dx of all images, as [`forward`].
pub(super) fn backward<T: Element + Beside>(ctx: &CpuCtx<'_>, s: &Sizes, g: &[T], f: &[T], dx: &mut [T]) -> bool {
    let meeting = if s.nhwc && s.is_depthwise() { Meeting::backward(s) } else { None };
    meeting.map(|m| apply(ctx, s, &m, (g, s.c * s.pixels()), f, dx)).is_some()
}

/// The filters' gradient of all images, as [`forward`]; where g is not finite, neither is a result. Threads share the channels, so that the bits do not depend on their number.
pub(super) fn weight<T: Element + Real + Beside>(ctx: &CpuCtx<'_>, s: &Sizes, g: &[T], x: &[T], df: &mut [T]) -> bool {
    let Some(m) = Some(s).filter(|s| s.nhwc && s.is_depthwise()).and_then(Meeting::forward) else { return false };
    if m.down.iter().chain(&m.across).any(|run| run.met.is_empty()) {
        return false;
    }
    let (set, wide, window, image) = (T::channels(ctx.isa), m.wide(), s.kh * s.kw, s.c * s.h * s.w);
    let parts = ctx.parts_for_bytes(4 * size_of_val(g));
    ctx.split(df, CpuCtx::chunk(s.c, parts, UNIT) * window, |first, df| {
        let (first, channels) = (first / window, df.len() / window);
        let (mut places, mut sums) = ([Vec::new(), Vec::new()], vec![T::ZERO; df.len()]);
        for row in 0..s.n * s.ho {
            let (x, g) = (&x[row / s.ho * image..][..image], &g[row * wide..][..wide]);
            m.row(row % s.ho, channels, &mut places, |r| {
                set.products(r.pixels, r.taps, &x[first..], &g[first + r.first..], &mut sums);
            });
        }
        turn(ctx.isa, &sums, (window, channels), Lines { x: channels, y: window }, df, false);
    });
    finite(df)
}

/// Channels of a cache line, at which threads' shares are cut.
const UNIT: usize = 16;
