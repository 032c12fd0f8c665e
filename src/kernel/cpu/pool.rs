//! Pooling: the inner loops run along a row of results (NCHW) or along the channels (NHWC), one pixel of the windows
//! after the other. Params: those of a convolution (`kernel::plan_window`), then whether the padding counts in means.

use crate::base::{DType, Result};

use super::conv::Sizes;
use super::number::{Element, Number, with_element};
use super::simd::{Job, Style, dispatch};
use super::{Call, CpuCtx, NativeArgs};

impl Sizes {
    /// Pixels of the window at row `oy` of y, and at column `ox`.
    fn rows(&self, oy: usize) -> std::ops::Range<usize> {
        (oy * self.sh).saturating_sub(self.pt)..(oy * self.sh + self.kh - self.pt).min(self.h)
    }
    fn columns(&self, ox: usize) -> std::ops::Range<usize> {
        (ox * self.sw).saturating_sub(self.pl)..(ox * self.sw + self.kw - self.pl).min(self.w)
    }
    fn x_image(&self) -> usize {
        self.c * self.h * self.w
    }
    fn y_image(&self) -> usize {
        self.c * self.pixels()
    }
    /// Elements of x that belong to one piece of the gradients' work, and of y: a plane, or for NHWC an image.
    fn piece(&self) -> (usize, usize, usize) {
        let channels = if self.nhwc { self.c } else { 1 };
        (channels, channels * self.h * self.w, channels * self.pixels())
    }
    /// Length and number of the rows of y that the forward loops make at once.
    fn lines(&self) -> (usize, usize) {
        if self.nhwc { (self.c, self.n * self.pixels()) } else { (self.wo, self.n * self.c * self.ho) }
    }
    /// For line `at` of y: calls `f(part of the line, first element of x, step, place of it, step of places)` for every
    /// pixel of the windows, in the order of the windows' rows and columns.
    #[inline(always)]
    fn visit(&self, spans: &[Span], at: usize, mut f: impl FnMut(std::ops::Range<usize>, usize, usize, usize, usize)) {
        if self.nhwc {
            let (n, p) = (at / self.pixels(), at % self.pixels());
            for row in self.rows(p / self.wo) {
                for column in self.columns(p % self.wo) {
                    let place = row * self.w + column;
                    f(0..self.c, n * self.x_image() + place * self.c, 1, place, 0);
                }
            }
            return;
        }
        let (plane, oy) = (at / self.ho, at % self.ho);
        for row in self.rows(oy) {
            for span in spans {
                let place = row * self.w + span.column;
                f(span.low..span.high, plane * self.h * self.w + place, self.sw, place, self.sw);
            }
        }
    }
    /// Where the columns of the windows meet the image: what [`Sizes::visit`] divides for, once.
    fn spans(&self) -> Vec<Span> {
        let span = |kx: usize| {
            let low = self.pl.saturating_sub(kx).div_ceil(self.sw).min(self.wo);
            let high = (self.w + self.pl).saturating_sub(kx).div_ceil(self.sw).clamp(low, self.wo);
            (low < high).then(|| Span { low, high, column: low * self.sw + kx - self.pl })
        };
        (0..self.kw).filter_map(span).collect()
    }
}

/// Few results in lines shorter than this are made one after the other.
const SHORT: usize = 8;
const FEW: usize = 64;

impl Sizes {
    /// For results `first .. first + count` of y: calls `f(number, first element of the plane, step of pixels, (oy, ox))`.
    #[inline(always)]
    fn results(&self, first: usize, count: usize, mut f: impl FnMut(usize, usize, usize, (usize, usize))) {
        let channels = if self.nhwc { self.c } else { 1 };
        let (p, mut channel) = (first / channels, first % channels);
        let (mut plane, p) = (p / self.pixels(), p % self.pixels());
        let (mut oy, mut ox) = (p / self.wo, p % self.wo);
        for k in 0..count {
            f(k, plane * channels * self.h * self.w + channel, channels, (oy, ox));
            channel += 1;
            if channel == channels {
                (channel, ox) = (0, ox + 1);
                if ox == self.wo {
                    (ox, oy) = (0, oy + 1);
                    if oy == self.ho {
                        (oy, plane) = (0, plane + 1);
                    }
                }
            }
        }
    }
}

/// Positions whose windows have a certain column inside the image, and the image's column that the first of them meets.
struct Span {
    low: usize,
    high: usize,
    column: usize,
}

/// y and the places of the maxima: the first of them, or the first NaN. Dtypes: floats and i32.
pub fn maxpool2d(ctx: &CpuCtx<'_>, args: &mut NativeArgs<'_>, call: &Call) -> Result<()> {
    match call.dtype {
        DType::I32 => max::<i32>(ctx, args, call),
        _ => with_element!(floats call.dtype, T => max::<T>(ctx, args, call), else Err(call.no_dtype())),
    }
}

/// Lines of y from number `first` on, with the places of the maxima.
struct MaxLines<'a, E> {
    s: &'a Sizes,
    x: &'a [E],
    first: usize,
    y: &'a mut [E],
    places: &'a mut [i32],
}

/// Raises maxima by every STEPth element of `x`; its first one lies at `place`, the next ones `place_step` further each.
#[inline(always)]
fn raise<E: Element, const STEP: usize>(
    x: &[E],
    tops: &mut [E::Acc],
    places: &mut [i32],
    (place, place_step): (usize, usize),
) {
    let n = tops.len();
    let (x, places) = (&x.as_chunks::<STEP>().0[..n], &mut places[..n]);
    for k in 0..n {
        let (v, top, best) = (x[k][0].load(), tops[k], places[k]);
        let higher = (best < 0) | (v > top) | (v.is_nan() & !top.is_nan());
        tops[k] = if higher { v } else { top };
        places[k] = if higher { (place + k * place_step) as i32 } else { best };
    }
}

/// Adds every STEPth element of `x`.
#[inline(always)]
fn add<E: Element, const STEP: usize>(x: &[E], sums: &mut [E::Acc]) {
    let n = sums.len();
    let x = &x.as_chunks::<STEP>().0[..n];
    for k in 0..n {
        sums[k] = sums[k].add(x[k][0].load());
    }
}

/// Does `body` for a run of elements of x, `step` apart, with the step known when it is compiled, so that it becomes vector
/// code; in groups of a step each, and the last element by itself where its group would end outside of x.
macro_rules! by_step {
    ($step:expr, $len:expr, $room:expr, |$n:ident, $part:ident| $body:expr) => {{
        let (step, len) = ($step, $len);
        let whole = if len * step <= $room { len } else { len - 1 };
        macro_rules! go {
            ($value:literal, $range:expr) => {{
                const $n: usize = $value;
                let $part = $range;
                $body;
            }};
        }
        match step {
            1 => go!(1, 0..whole),
            2 => go!(2, 0..whole),
            3 => go!(3, 0..whole),
            _ => (0..whole).for_each(|k| go!(1, k..k + 1)),
        }
        if whole < len {
            go!(1, whole..len);
        }
    }};
}

impl<E: Element> Job for MaxLines<'_, E> {
    type Out = ();
    #[inline(always)]
    fn run<S: Style>(self) {
        let (line, _) = self.s.lines();
        let (mut tops, spans) = (vec![E::Acc::default(); line], self.s.spans());
        let lines = self.places.chunks_exact_mut(line).zip(self.y.chunks_exact_mut(line));
        for (i, (places, y)) in lines.enumerate() {
            places.fill(-1);
            self.s.visit(&spans, self.first / line + i, |part, from, step, place, place_step| {
                let (tops, places) = (&mut tops[part.clone()], &mut places[part]);
                let room = self.x.len() - from;
                by_step!(step, tops.len(), room, |STEP, part| {
                    let at = part.start;
                    let (tops, places) = (&mut tops[part.clone()], &mut places[part]);
                    raise::<E, STEP>(&self.x[from + at * step..], tops, places, (place + at * place_step, place_step));
                });
            });
            for (y, top) in y.iter_mut().zip(&tops) {
                *y = E::store(*top);
            }
        }
    }
}

impl<E: Element> MaxLines<'_, E> {
    fn one_by_one(self) {
        let s = self.s;
        s.results(self.first, self.y.len(), |k, from, step, (oy, ox)| {
            let (mut top, mut best) = (E::Acc::default(), -1);
            for row in s.rows(oy) {
                for place in s.columns(ox).map(|column| row * s.w + column) {
                    let v = self.x[from + place * step].load();
                    if best < 0 || v > top || v.is_nan() && !top.is_nan() {
                        (top, best) = (v, place as i32);
                    }
                }
            }
            (self.y[k], self.places[k]) = (E::store(top), best);
        });
    }
}

fn max<E: Element>(ctx: &CpuCtx<'_>, args: &mut NativeArgs<'_>, call: &Call) -> Result<()> {
    let s = Sizes::of(call);
    let x = args.input::<E>(0, s.n * s.x_image())?;
    let y = args.output::<E>(0, s.n * s.y_image())?;
    let places = args.output::<i32>(1, s.n * s.y_image())?;
    if y.is_empty() {
        return Ok(());
    }
    let (line, lines) = s.lines();
    let chunk = CpuCtx::chunk(lines, ctx.parts_for_bytes(size_of_val(x)), 1) * line;
    ctx.split_two((y, places), chunk, |first, y, places| {
        let job = MaxLines { s: &s, x, first, y, places };
        if line < SHORT && lines * line < FEW { job.one_by_one() } else { dispatch(ctx.isa, job) }
    });
    Ok(())
}

/// Means over the windows. Dtypes: floats.
pub fn avgpool2d(ctx: &CpuCtx<'_>, args: &mut NativeArgs<'_>, call: &Call) -> Result<()> {
    with_element!(floats call.dtype, T => mean::<T>(ctx, args, call), else Err(call.no_dtype()))
}

/// Which pixels of a window a mean counts.
#[derive(Clone, Copy, PartialEq)]
enum Window {
    /// All, those in the padding too.
    Whole,
    /// Those of the image.
    Inside,
}

impl Window {
    fn of(call: &Call) -> Self {
        if call.size(17) == 1 { Self::Whole } else { Self::Inside }
    }
    fn height(self, s: &Sizes, oy: usize) -> usize {
        if self == Self::Whole { s.kh } else { s.rows(oy).len() }
    }
    fn width(self, s: &Sizes, ox: usize) -> usize {
        if self == Self::Whole { s.kw } else { s.columns(ox).len() }
    }
    /// What the sum over the window at (oy, ox) is divided by.
    fn count(self, s: &Sizes, (oy, ox): (usize, usize)) -> usize {
        self.height(s, oy) * self.width(s, ox)
    }
}

/// Lines of y from number `first` on.
struct MeanLines<'a, E> {
    s: &'a Sizes,
    window: Window,
    x: &'a [E],
    first: usize,
    y: &'a mut [E],
}

impl<E: Element> Job for MeanLines<'_, E> {
    type Out = ();
    #[inline(always)]
    fn run<S: Style>(self) {
        let s = self.s;
        let ((line, _), spans) = (s.lines(), s.spans());
        let (mut sums, mut counts) = (vec![E::Acc::default(); line], vec![E::Acc::default(); line]);
        let widths: Vec<usize> = (0..s.wo).map(|ox| self.window.width(s, ox)).collect();
        // Height of the windows and the line's column (NHWC) that the counts are of.
        let mut counted = None;
        for (i, y) in self.y.chunks_exact_mut(line).enumerate() {
            let at = self.first / line + i;
            sums.fill(E::Acc::default());
            s.visit(&spans, at, |part, from, step, _, _| {
                let sums = &mut sums[part];
                let room = self.x.len() - from;
                by_step!(step, sums.len(), room, |STEP, part| {
                    add::<E, STEP>(&self.x[from + part.start * step..], &mut sums[part]);
                });
            });
            let (oy, ox) = if s.nhwc { (at % s.pixels() / s.wo, Some(at % s.wo)) } else { (at % s.ho, None) };
            let high = self.window.height(s, oy);
            let width = ox.map(|ox| widths[ox]);
            if counted != Some((high, width)) {
                counted = Some((high, width));
                match width {
                    Some(wide) => counts.fill(E::Acc::of_usize(high * wide)),
                    None => {
                        for (c, wide) in counts.iter_mut().zip(&widths) {
                            *c = E::Acc::of_usize(high * wide);
                        }
                    }
                }
            }
            for ((y, sum), c) in y.iter_mut().zip(&sums).zip(&counts) {
                *y = E::store(sum.div(*c));
            }
        }
    }
}

impl<E: Element> MeanLines<'_, E> {
    fn one_by_one(self) {
        let s = self.s;
        s.results(self.first, self.y.len(), |k, from, step, (oy, ox)| {
            let (rows, columns) = (s.rows(oy), s.columns(ox));
            let count = if self.window == Window::Whole { s.kh * s.kw } else { rows.len() * columns.len() };
            let mut sum = E::Acc::default();
            for row in rows {
                for column in columns.clone() {
                    sum = sum.add(self.x[from + (row * s.w + column) * step].load());
                }
            }
            self.y[k] = E::store(sum.div(E::Acc::of_usize(count)));
        });
    }
}

fn mean<E: Element>(ctx: &CpuCtx<'_>, args: &mut NativeArgs<'_>, call: &Call) -> Result<()> {
    let s = Sizes::of(call);
    let x = args.input::<E>(0, s.n * s.x_image())?;
    let y = args.output::<E>(0, s.n * s.y_image())?;
    if y.is_empty() {
        return Ok(());
    }
    let (line, lines) = s.lines();
    ctx.split(y, CpuCtx::chunk(lines, ctx.parts_for_bytes(size_of_val(x)), 1) * line, |first, y| {
        let job = MeanLines { s: &s, window: Window::of(call), x, first, y };
        if line < SHORT && lines * line < FEW { job.one_by_one() } else { dispatch(ctx.isa, job) }
    });
    Ok(())
}

/// g to the pixel of its window that `places` names. Dtypes: floats.
pub fn maxpool2d_bwd(ctx: &CpuCtx<'_>, args: &mut NativeArgs<'_>, call: &Call) -> Result<()> {
    with_element!(floats call.dtype, T => {
        let s = Sizes::of(call);
        let places = args.input::<i32>(1, s.n * s.y_image())?;
        let (channels, ..) = s.piece();
        scatter::<T>(ctx, args, call, |(oy, ox), channel, g, at, sums| {
            // A place outside of its window is nobody's.
            let place = usize::try_from(places[at]).unwrap_or(usize::MAX);
            let columns = s.columns(ox);
            // Without a division: by the few rows of the window.
            if s.rows(oy).any(|row| columns.contains(&place.wrapping_sub(row * s.w))) {
                let to = &mut sums[place * channels + channel];
                *to = to.add(g);
            }
        })
    }, else Err(call.no_dtype()))
}

/// An equal share of g to every pixel of its window. Dtypes: floats.
pub fn avgpool2d_bwd(ctx: &CpuCtx<'_>, args: &mut NativeArgs<'_>, call: &Call) -> Result<()> {
    with_element!(floats call.dtype, T => {
        let (s, window) = (Sizes::of(call), Window::of(call));
        let (channels, ..) = s.piece();
        scatter::<T>(ctx, args, call, |(oy, ox), channel, g, _, sums| {
            let share = g.div(<T as Element>::Acc::of_usize(window.count(&s, (oy, ox))));
            for row in s.rows(oy) {
                for column in s.columns(ox) {
                    let to = &mut sums[(row * s.w + column) * channels + channel];
                    *to = to.add(share);
                }
            }
        })
    }, else Err(call.no_dtype()))
}

/// Calls `add((oy, ox), channel, g, index of g, sums)` for every g of a plane (NHWC: an image) and stores the sums as dx.
fn scatter<E: Element>(
    ctx: &CpuCtx<'_>,
    args: &mut NativeArgs<'_>,
    call: &Call,
    add: impl Fn((usize, usize), usize, E::Acc, usize, &mut [E::Acc]) + Sync,
) -> Result<()> {
    let s = Sizes::of(call);
    let g = args.input::<E>(0, s.n * s.y_image())?;
    let dx = args.output::<E>(0, s.n * s.x_image())?;
    if dx.is_empty() {
        return Ok(());
    }
    let (channels, from, to) = s.piece();
    let parts = ctx.parts_for_bytes(size_of_val(dx));
    ctx.split(dx, CpuCtx::chunk(dx.len() / from, parts, 1) * from, |first, piece| {
        let mut sums = vec![E::Acc::default(); from];
        for (i, out) in piece.chunks_exact_mut(from).enumerate() {
            let start = (first / from + i) * to;
            sums.fill(E::Acc::default());
            let mut at = start;
            for oy in 0..s.ho {
                for ox in 0..s.wo {
                    for channel in 0..channels {
                        add((oy, ox), channel, g[at].load(), at, &mut sums);
                        at += 1;
                    }
                }
            }
            for (out, sum) in out.iter_mut().zip(&sums) {
                *out = E::store(*sum);
            }
        }
    });
    Ok(())
}

/// Index of (n, c, y, x) in an image of that many rows and columns.
fn at(s: &Sizes, (h, w): (usize, usize), [n, c, y, x]: [usize; 4]) -> usize {
    let [cs, ys, xs] = s.strides(s.c, h, w);
    n * s.c * h * w + c * cs + y * ys + x * xs
}

/// Calls `f` with (n, c, oy, ox) of every window.
fn windows(s: &Sizes, mut f: impl FnMut([usize; 4])) {
    for n in 0..s.n {
        for c in 0..s.c {
            for oy in 0..s.ho {
                for ox in 0..s.wo {
                    f([n, c, oy, ox]);
                }
            }
        }
    }
}

/// The textbook's loops on one thread.
pub fn maxpool2d_naive(_: &CpuCtx<'_>, args: &mut NativeArgs<'_>, call: &Call) -> Result<()> {
    match call.dtype {
        DType::I32 => max_naive::<i32>(args, call),
        _ => with_element!(floats call.dtype, T => max_naive::<T>(args, call), else Err(call.no_dtype())),
    }
}

fn max_naive<E: Element>(args: &mut NativeArgs<'_>, call: &Call) -> Result<()> {
    let s = Sizes::of(call);
    let x = args.input::<E>(0, s.n * s.x_image())?;
    let y = args.output::<E>(0, s.n * s.y_image())?;
    let places = args.output::<i32>(1, s.n * s.y_image())?;
    windows(&s, |[n, c, oy, ox]| {
        let mut best = None::<(E, usize)>;
        for row in s.rows(oy) {
            for column in s.columns(ox) {
                let v = x[at(&s, (s.h, s.w), [n, c, row, column])];
                let better = |top: E| v.load() > top.load() || v.load().is_nan() && !top.load().is_nan();
                if best.is_none_or(|(top, _)| better(top)) {
                    best = Some((v, row * s.w + column));
                }
            }
        }
        if let Some((top, place)) = best {
            let to = at(&s, (s.ho, s.wo), [n, c, oy, ox]);
            (y[to], places[to]) = (top, place as i32);
        }
    });
    Ok(())
}

/// The same for means.
pub fn avgpool2d_naive(_: &CpuCtx<'_>, args: &mut NativeArgs<'_>, call: &Call) -> Result<()> {
    with_element!(floats call.dtype, T => mean_naive::<T>(args, call), else Err(call.no_dtype()))
}

fn mean_naive<E: Element>(args: &mut NativeArgs<'_>, call: &Call) -> Result<()> {
    let (s, window) = (Sizes::of(call), Window::of(call));
    let x = args.input::<E>(0, s.n * s.x_image())?;
    let y = args.output::<E>(0, s.n * s.y_image())?;
    windows(&s, |[n, c, oy, ox]| {
        let mut sum = E::Acc::default();
        for row in s.rows(oy) {
            for column in s.columns(ox) {
                sum = sum.add(x[at(&s, (s.h, s.w), [n, c, row, column])].load());
            }
        }
        let mean = sum.div(E::Acc::of_usize(window.count(&s, (oy, ox))));
        y[at(&s, (s.ho, s.wo), [n, c, oy, ox])] = E::store(mean);
    });
    Ok(())
}

/// The same for the gradient of maxima.
pub fn maxpool2d_bwd_naive(_: &CpuCtx<'_>, args: &mut NativeArgs<'_>, call: &Call) -> Result<()> {
    let s = Sizes::of(call);
    let places = args.input::<i32>(1, s.n * s.y_image())?;
    with_element!(floats call.dtype, T => back_naive::<T>(args, call, |window, place, g| {
        (places[at(&s, (s.ho, s.wo), window)] == place as i32).then_some(g)
    }), else Err(call.no_dtype()))
}

/// The same for the gradient of means.
pub fn avgpool2d_bwd_naive(_: &CpuCtx<'_>, args: &mut NativeArgs<'_>, call: &Call) -> Result<()> {
    let (s, window) = (Sizes::of(call), Window::of(call));
    with_element!(floats call.dtype, T => back_naive::<T>(args, call, |[_, _, oy, ox], _, g| {
        Some(g.div(<T as Element>::Acc::of_usize(window.count(&s, (oy, ox)))))
    }), else Err(call.no_dtype()))
}

/// `share(window, place, g)`: what a pixel of a window gets.
fn back_naive<E: Element>(
    args: &mut NativeArgs<'_>,
    call: &Call,
    share: impl Fn([usize; 4], usize, E::Acc) -> Option<E::Acc>,
) -> Result<()> {
    let s = Sizes::of(call);
    let g = args.input::<E>(0, s.n * s.y_image())?;
    let dx = args.output::<E>(0, s.n * s.x_image())?;
    let mut sums = vec![E::Acc::default(); dx.len()];
    windows(&s, |window| {
        let [n, c, oy, ox] = window;
        let g = g[at(&s, (s.ho, s.wo), window)].load();
        for row in s.rows(oy) {
            for column in s.columns(ox) {
                if let Some(part) = share(window, row * s.w + column, g) {
                    let to = &mut sums[at(&s, (s.h, s.w), [n, c, row, column])];
                    *to = to.add(part);
                }
            }
        }
    });
    for (out, sum) in dx.iter_mut().zip(sums) {
        *out = E::store(sum);
    }
    Ok(())
}
