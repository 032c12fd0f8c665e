//! Convolutions: sums swept over planes (see `sweep`), or over pixels for the filters' gradient (`gradient`); with one channel in
//! each group sums of shifted rows (`depthwise`); a window of one pixel is a plain product. Where those do not fit, products whose
//! patches are laid out where they are used (`planes`, `product`). Params: see `kernel::plan_window`.

use std::borrow::Cow;

use crate::base::Result;

use super::channels;
use super::depthwise;
use super::gradient;
use super::implicit::{self, Convolution, Filters};
use super::large::Failure;
use super::math::Real;
use super::number::{Element as Stored, Number, with_element};
use super::pixels::Pixels;
use super::planes::{Layout, Patches, with_space};
use super::product::{Element, FLOPS_PER_S, Scale, Side, View, multiply};
use super::simd::channels::Beside;
use super::simd::routine::GemmElement;
use super::simd::sweep::Swept;
use super::simd::tile::Block;
use super::sparse;
use super::spread;
use super::sweep::Plan;
use super::vector::Wide;
use super::{Call, CpuCtx, NativeArgs};

/// Floats that convolutions are summed in.
pub(super) trait Float: Element + Real + GemmElement + Swept + Beside {}
impl<T: Element + Real + GemmElement + Swept + Beside> Float for T {}

/// Sizes of a call; names as in `kernel::window::Window`.
#[derive(Clone, Copy)]
pub(super) struct Sizes {
    pub(super) n: usize,
    pub(super) c: usize,
    pub(super) h: usize,
    pub(super) w: usize,
    pub(super) co: usize,
    pub(super) kh: usize,
    pub(super) kw: usize,
    pub(super) ho: usize,
    pub(super) wo: usize,
    pub(super) sh: usize,
    pub(super) sw: usize,
    pub(super) pt: usize,
    pub(super) pl: usize,
    pub(super) dh: usize,
    pub(super) dw: usize,
    pub(super) group: usize,
    pub(super) nhwc: bool,
}

impl Sizes {
    pub(super) fn of(call: &Call) -> Self {
        let s = |i| call.size(i);
        Sizes {
            n: s(0),
            c: s(1),
            h: s(2),
            w: s(3),
            co: s(4),
            kh: s(5),
            kw: s(6),
            ho: s(7),
            wo: s(8),
            sh: s(9),
            sw: s(10),
            pt: s(11),
            pl: s(12),
            dh: s(13),
            dw: s(14),
            group: s(15),
            nhwc: s(16) != 0,
        }
    }
    /// Channels of a group.
    pub(super) fn cg(&self) -> usize {
        self.c / self.group
    }
    /// Filters of a group.
    pub(super) fn og(&self) -> usize {
        self.co / self.group
    }
    pub(super) fn pixels(&self) -> usize {
        self.ho * self.wo
    }
    /// Rows of the matrix of patches of one group.
    pub(super) fn depth(&self) -> usize {
        self.cg() * self.kh * self.kw
    }
    /// Distances of channels, rows and columns in a tensor of that many.
    pub(super) fn strides(&self, nc: usize, nh: usize, nw: usize) -> [usize; 3] {
        if self.nhwc { [1, nw * nc, nc] } else { [nh * nw, nw, 1] }
    }
    fn x_len(&self) -> usize {
        self.n * self.c * self.h * self.w
    }
    fn y_len(&self) -> usize {
        self.n * self.co * self.pixels()
    }
    fn f_len(&self) -> usize {
        self.co * self.depth()
    }
    /// Seconds that one thread needs for so much, about.
    pub(super) fn seconds(&self) -> f64 {
        2.0 * self.y_len() as f64 * self.depth() as f64 / FLOPS_PER_S
    }
    /// One channel and one filter in each group.
    pub(super) fn is_depthwise(&self) -> bool {
        self.cg() == 1 && self.og() == 1
    }
    /// Windows of one pixel that leave some of an image in NCHW out: products of what they meet.
    fn is_sparse(&self) -> bool {
        (self.kh, self.kw, self.pt, self.pl, self.group) == (1, 1, 0, 0, 1)
            && self.sh * self.sw > 1
            && !self.nhwc
            && (self.ho - 1) * self.sh < self.h
            && (self.wo - 1) * self.sw < self.w
    }
    /// Every pixel is its own window.
    pub(super) fn is_pointwise(&self) -> bool {
        (self.kh, self.kw, self.sh, self.sw, self.pt, self.pl) == (1, 1, 1, 1, 0, 0)
            && (self.ho, self.wo) == (self.h, self.w)
    }
}

/// Row `r` of the patches of a group counts channel, kernel row, kernel column.
fn unpack(s: &Sizes, r: usize) -> (usize, usize, usize) {
    (r / (s.kh * s.kw), r / s.kw % s.kh, r % s.kw)
}

/// Filters as numbers, [co, c/group, kh, kw] whatever the layout.
fn filters<'a, E: Wide>(s: &Sizes, f: &'a [E], buffer: &'a mut Vec<E::Acc>) -> Cow<'a, [E::Acc]> {
    if !s.nhwc {
        return E::wide(f, buffer).into();
    }
    let [cs, ys, xs] = s.strides(s.cg(), s.kh, s.kw);
    let at = |o: usize, r: usize| {
        let (ci, ky, kx) = unpack(s, r);
        o * s.depth() + ci * cs + ky * ys + kx * xs
    };
    (0..s.co).flat_map(|o| (0..s.depth()).map(move |r| f[at(o, r)].load())).collect::<Vec<_>>().into()
}

/// Calls `f` with memory for the numbers of `out`, and stores them: in `out` itself where it holds such numbers.
fn with_numbers<E: Stored, R>(ctx: &CpuCtx<'_>, out: &mut [E], f: impl FnOnce(&mut [E::Acc]) -> R) -> R {
    // A slice of halves of an even length could be taken for one of floats, too.
    if size_of::<E>() == size_of::<E::Acc>()
        && let Ok(numbers) = bytemuck::try_cast_slice_mut(out)
    {
        return f(numbers);
    }
    let mut numbers = vec![E::Acc::default(); out.len()];
    let result = f(&mut numbers);
    let parts = ctx.parts_for_bytes(size_of_val(&numbers[..]));
    ctx.split(out, CpuCtx::chunk(numbers.len(), parts, 64), |first, out| {
        for (out, v) in out.iter_mut().zip(&numbers[first..]) {
            *out = E::store(*v);
        }
    });
    result
}

/// y = x convolved with the filters.
pub fn conv2d(ctx: &CpuCtx<'_>, args: &mut NativeArgs<'_>, call: &Call) -> Result<()> {
    with_element!(floats call.dtype, T => forward::<T, <T as Stored>::Acc>(ctx, args, call), else Err(call.no_dtype()))
}

fn forward<E: Wide<Acc = T>, T: Float>(ctx: &CpuCtx<'_>, args: &mut NativeArgs<'_>, call: &Call) -> Result<()> {
    let s = Sizes::of(call);
    if s.seconds() < TINY_S {
        return naive::<E>(args, call, Makes::Y);
    }
    let Some(layout) = Layout::of(&s) else { return naive::<E>(args, call, Makes::Y) };
    let (x, f) = (args.input::<E>(0, s.x_len())?, args.input::<E>(1, s.f_len())?);
    let y = args.output::<E>(0, s.y_len())?;
    if y.is_empty() {
        return Ok(());
    }
    let (mut x_buffer, mut f_buffer) = (Vec::new(), Vec::new());
    let (x, f) = (E::wide(x, &mut x_buffer), filters(&s, f, &mut f_buffer));
    with_numbers(ctx, y, |y| convolve(ctx, &s, layout, x, &f, y))
}

/// Less work than this (by [`Sizes::seconds`]) is done by plain loops.
const TINY_S: f64 = 20e-9;

/// Images are shared out where there are enough of them; else the work within each. `one` makes an image's result.
fn images<T: Float>(
    ctx: &CpuCtx<'_>,
    s: &Sizes,
    (x, from): (&[T], usize),
    (y, to): (&mut [T], usize),
    one: impl Fn(&CpuCtx<'_>, &[T], &mut [T]) -> Result<()> + Sync,
) -> Result<()> {
    let parts = ctx.parts_for_seconds(s.seconds());
    if parts > 1 && s.n > 1 && (s.n.is_multiple_of(ctx.threads) || s.n >= 4 * ctx.threads) {
        let (alone, failed) = (ctx.alone(), Failure::default());
        ctx.split(y, CpuCtx::chunk(s.n, parts, 1) * to, |first, y| {
            for (x, y) in x[first / to * from..].chunks_exact(from.max(1)).zip(y.chunks_exact_mut(to)) {
                failed.note(one(&alone, x, y));
            }
        });
        return failed.end();
    }
    y.chunks_exact_mut(to).enumerate().try_for_each(|(n, y)| one(ctx, &x[n * from..][..from], y))
}

fn convolve<T: Float>(ctx: &CpuCtx<'_>, s: &Sizes, layout: Layout, x: &[T], f: &[T], y: &mut [T]) -> Result<()> {
    if channels::forward(ctx, s, x, f, y) {
        return Ok(());
    }
    let (x, y) = ((x, s.c * s.h * s.w), (y, s.co * s.pixels()));
    if s.is_pointwise() && !s.is_depthwise() {
        return images(ctx, s, x, y, |ctx, x, y| pointwise(ctx, s, x, f, y));
    }
    if s.is_sparse() {
        return images(ctx, s, x, y, |ctx, x, y| sparse::forward(ctx, s, x, f, y));
    }
    if implicit::suits(s, &T::sweeps(ctx.isa))
        && let Some(c) = Convolution::new(ctx, s, Filters::Forward(f))
    {
        c.run(ctx, x.0, y.0);
        return Ok(());
    }
    if let Some(plan) = Plan::forward(s, &layout) {
        return images(ctx, s, x, y, |ctx, x, y| swept(ctx, s, &plan, x, f, y));
    }
    images(ctx, s, x, y, |ctx, x, y| {
        with_space(layout.len(), |planes| {
            layout.fill(ctx, x, planes);
            let (of_group, planes) = (s.cg() * layout.plane, &*planes);
            groups(ctx, s, f, y, |g| Patches { s, layout: &layout, planes: &planes[g * of_group..] });
        });
        Ok(())
    })
}

/// One image by a plan.
fn swept<T: Float>(ctx: &CpuCtx<'_>, s: &Sizes, plan: &Plan, x: &[T], f: &[T], y: &mut [T]) -> Result<()> {
    if s.is_depthwise() {
        depthwise::apply(ctx, plan, x, f, y);
        return Ok(());
    }
    with_space(plan.layout.len(), |planes| {
        plan.layout.fill(ctx, x, planes);
        plan.run(ctx, planes, f, y, s.seconds() / s.n as f64);
    });
    Ok(())
}

fn pointwise<T: Float>(ctx: &CpuCtx<'_>, s: &Sizes, x: &[T], f: &[T], y: &mut [T]) -> Result<()> {
    let (line_stride, depth_stride) = if s.nhwc { (s.c, 1) } else { (1, s.pixels()) };
    if s.group == 1 && !s.nhwc {
        return sparse::sums(ctx, s, x, f, y);
    }
    let first = if s.nhwc { s.cg() } else { s.cg() * s.pixels() };
    groups(ctx, s, f, y, |g| View { data: x.get(g * first..).unwrap_or(&[]), line_stride, depth_stride });
    Ok(())
}

/// Products of one image: the filters of each group with the patches that `side` makes of its channels.
fn groups<T: Float, P: Side<T>>(ctx: &CpuCtx<'_>, s: &Sizes, f: &[T], y: &mut [T], side: impl Fn(usize) -> P + Sync) {
    let (og, depth, pixels) = (s.og(), s.depth(), s.pixels());
    let filters = |g: usize| View { data: &f[g * og * depth..][..og * depth], line_stride: depth, depth_stride: 1 };
    if s.nhwc {
        for g in 0..s.group {
            multiply(ctx, &side(g), &filters(g), depth, Scale::PLAIN, Block::new(&mut y[g * og..], pixels, og, s.co));
        }
        return;
    }
    let one = |ctx: &CpuCtx<'_>, g: usize, y: &mut [T]| {
        multiply(ctx, &filters(g), &side(g), depth, Scale::PLAIN, Block::new(y, og, pixels, pixels));
    };
    if s.group < ctx.threads {
        y.chunks_exact_mut(og * pixels).enumerate().for_each(|(g, y)| one(ctx, g, y));
        return;
    }
    let (parts, alone) = (ctx.parts_for_seconds(s.seconds() / s.n as f64), ctx.alone());
    ctx.split(y, CpuCtx::chunk(s.group, parts, 1) * og * pixels, |first, y| {
        let first = first / (og * pixels);
        y.chunks_exact_mut(og * pixels).enumerate().for_each(|(i, y)| one(&alone, first + i, y));
    });
}

/// dx from g and the filters.
pub fn bwd_data(ctx: &CpuCtx<'_>, args: &mut NativeArgs<'_>, call: &Call) -> Result<()> {
    with_element!(floats call.dtype, T => data::<T, <T as Stored>::Acc>(ctx, args, call), else Err(call.no_dtype()))
}

/// The convolution of g that makes dx, if it is one: for a stride of 1, with the window turned around.
fn turned(s: &Sizes) -> Option<Sizes> {
    let pad = |window: usize, dilation: usize, pad: usize| ((window - 1) * dilation).checked_sub(pad);
    if (s.sh, s.sw) != (1, 1) {
        return None;
    }
    let (pt, pl) = (pad(s.kh, s.dh, s.pt)?, pad(s.kw, s.dw, s.pl)?);
    Some(Sizes { c: s.co, h: s.ho, w: s.wo, co: s.c, ho: s.h, wo: s.w, pt, pl, ..*s })
}

fn data<E: Wide<Acc = T>, T: Float>(ctx: &CpuCtx<'_>, args: &mut NativeArgs<'_>, call: &Call) -> Result<()> {
    let s = Sizes::of(call);
    if s.seconds() < TINY_S {
        return naive::<E>(args, call, Makes::X);
    }
    let Some(layout) = Layout::of(&s) else { return naive::<E>(args, call, Makes::X) };
    let (g, f) = (args.input::<E>(0, s.y_len())?, args.input::<E>(1, s.f_len())?);
    let dx = args.output::<E>(0, s.x_len())?;
    if dx.is_empty() {
        return Ok(());
    }
    let (mut g_buffer, mut f_buffer) = (Vec::new(), Vec::new());
    let (g, f) = (E::wide(g, &mut g_buffer), filters(&s, f, &mut f_buffer));
    let (of_g, of_x) = (s.co * s.pixels(), s.c * s.h * s.w);
    if s.is_depthwise() && s.nhwc && with_numbers(ctx, dx, |dx| channels::backward(ctx, &s, g, &f, dx)) {
        return Ok(());
    }
    if s.pixels() > 0 && s.is_sparse() {
        return with_numbers(ctx, dx, |dx| {
            images(ctx, &s, (g, of_g), (dx, of_x), |ctx, g, dx| sparse::backward(ctx, &s, g, &f, dx))
        });
    }
    // A filter that is not finite would make NaN of the zeros around g, which are not there.
    if f.iter().fold(true, |all, v| all & (*v * T::ZERO == T::ZERO)) {
        if s.is_pointwise() && s.group == 1 && !s.nhwc {
            return with_numbers(ctx, dx, |dx| {
                images(ctx, &s, (g, of_g), (dx, of_x), |ctx, g, dx| sparse::products(ctx, &s, g, &f, dx))
            });
        }
        if let Some(t) = turned(&s)
            && implicit::suits(&t, &T::sweeps(ctx.isa))
            && let Some(c) = Convolution::new(ctx, &t, Filters::Backward(&f))
        {
            return with_numbers(ctx, dx, |dx| {
                c.run(ctx, g, dx);
                Ok(())
            });
        }
        if let Some(plan) = Plan::backward(&s) {
            return with_numbers(ctx, dx, |dx| {
                images(ctx, &s, (g, of_g), (dx, of_x), |ctx, g, dx| swept(ctx, &s, &plan, g, &f, dx))
            });
        }
        if let Some((t, layout)) = turned(&s).and_then(|t| Some((t, Layout::of(&t)?))) {
            let around = turned_around(ctx, &s, &f);
            return with_numbers(ctx, dx, |dx| convolve(ctx, &t, layout, g, &around, dx));
        }
    }
    let parts = ctx.parts_for_seconds(s.seconds());
    let layout = &layout;
    if parts > 1 && s.n > 1 && (s.n.is_multiple_of(ctx.threads) || s.n >= 4 * ctx.threads) {
        let alone = ctx.alone();
        ctx.split(dx, CpuCtx::chunk(s.n, parts, 1) * of_x, |first, dx| {
            for (i, dx) in dx.chunks_exact_mut(of_x).enumerate() {
                spread::image::<E, T>(&alone, &s, layout, &g[(first / of_x + i) * of_g..][..of_g], &f, dx);
            }
        });
    } else {
        for (n, dx) in dx.chunks_exact_mut(of_x).enumerate() {
            spread::image::<E, T>(ctx, &s, layout, &g[n * of_g..][..of_g], &f, dx);
        }
    }
    Ok(())
}

/// Filters with the window turned around, [c, co/group, kh, kw].
fn turned_around<T: Float>(ctx: &CpuCtx<'_>, s: &Sizes, f: &[T]) -> Vec<T> {
    let (og, cg, window) = (s.og(), s.cg(), s.kh * s.kw);
    let mut around = vec![T::ZERO; f.len()];
    let parts = ctx.parts_for_bytes(8 * size_of_val(&around[..]));
    ctx.split(&mut around, CpuCtx::chunk(s.c, parts, 1) * og * window, |first, around| {
        let first = first / (og * window);
        let channels = around.len() / (og * window);
        // In squares, so that what is read across stays in the cache.
        for o0 in (0..og).step_by(SQUARE) {
            for i in 0..channels {
                let (group, ci) = ((first + i) / cg, (first + i) % cg);
                for o in o0..og.min(o0 + SQUARE) {
                    let from = &f[((group * og + o) * cg + ci) * window..][..window];
                    for (out, v) in around[(i * og + o) * window..][..window].iter_mut().zip(from.iter().rev()) {
                        *out = *v;
                    }
                }
            }
        }
    });
    around
}

/// The filters' gradient from g and x: patches times g, summed over images and pixels.
pub fn bwd_weight(ctx: &CpuCtx<'_>, args: &mut NativeArgs<'_>, call: &Call) -> Result<()> {
    with_element!(floats call.dtype, T => weight::<T, <T as Stored>::Acc>(ctx, args, call), else Err(call.no_dtype()))
}

fn weight<E: Wide<Acc = T>, T: Float>(ctx: &CpuCtx<'_>, args: &mut NativeArgs<'_>, call: &Call) -> Result<()> {
    let s = Sizes::of(call);
    if s.seconds() < TINY_S {
        return naive::<E>(args, call, Makes::Filters);
    }
    let Some(layout) = Layout::of(&s) else { return naive::<E>(args, call, Makes::Filters) };
    let (g, x) = (args.input::<E>(0, s.y_len())?, args.input::<E>(1, s.x_len())?);
    let df = args.output::<E>(0, s.f_len())?;
    if df.is_empty() {
        return Ok(());
    }
    let (mut g_buffer, mut x_buffer) = (Vec::new(), Vec::new());
    let (g, x) = (E::wide(g, &mut g_buffer), E::wide(x, &mut x_buffer));
    let (depth, og, cg) = (s.depth(), s.og(), s.cg());
    if s.n == 0 || s.pixels() == 0 {
        df.fill(E::store(T::ZERO));
        return Ok(());
    }
    if s.is_depthwise() && s.nhwc && with_numbers(ctx, df, |df| channels::weight(ctx, &s, g, x, df)) {
        return Ok(());
    }
    if s.is_depthwise() && !s.nhwc && layout.pitch <= 2 * s.wo {
        return with_numbers(ctx, df, |df| {
            depthwise::weight(ctx, &s, &layout, g, x, df);
            Ok(())
        });
    }
    let set = T::sweeps(ctx.isa);
    if let Some(pixels) = Pixels::of(&s, &set) {
        // With channels last, or one position, sums are where they belong.
        if s.nhwc || s.kh * s.kw == 1 {
            return with_numbers(ctx, df, |df| {
                gradient::weight(ctx, &s, &pixels, &set, g, x, df);
                Ok(())
            });
        }
        let mut sums = vec![T::ZERO; df.len()];
        gradient::weight(ctx, &s, &pixels, &set, g, x, &mut sums);
        let window = s.kh * s.kw;
        let parts = ctx.parts_for_bytes(4 * size_of_val(&sums[..]));
        ctx.split(df, CpuCtx::chunk(s.co, parts, 1) * depth, |first, df| {
            for (df, sums) in df.chunks_exact_mut(depth).zip(sums[first..].chunks_exact(depth)) {
                for (t, sums) in sums.chunks_exact(cg).enumerate() {
                    for (to, v) in df[t..].iter_mut().step_by(window).zip(sums) {
                        *to = E::store(*v);
                    }
                }
            }
        });
        return Ok(());
    }
    let mut sums = vec![T::ZERO; df.len()];
    let across = gradient::by_products(ctx, &s, &layout, g, x, &mut sums);
    store_filters(ctx, &s, df, |o, r| {
        let sums = &sums[o / og * og * depth..];
        if across { sums[r * og + o % og] } else { sums[o % og * depth + r] }
    });
    Ok(())
}

/// Filters from `sum(filter, row of the patches)`, in the call's layout.
fn store_filters<E: Wide<Acc = T>, T: Float>(
    ctx: &CpuCtx<'_>,
    s: &Sizes,
    df: &mut [E],
    sum: impl Fn(usize, usize) -> T + Sync,
) {
    let depth = s.depth();
    let [cs, ys, xs] = s.strides(s.cg(), s.kh, s.kw);
    let parts = ctx.parts_for_bytes(4 * size_of::<T>() * df.len());
    ctx.split(df, CpuCtx::chunk(s.co, parts, 1) * depth, |first, df| {
        let first = first / depth;
        let filters = df.len() / depth;
        // In squares, so that what is read across stays in the cache.
        for r0 in (0..depth).step_by(SQUARE) {
            for o in 0..filters {
                for r in r0..depth.min(r0 + SQUARE) {
                    let to = if s.nhwc {
                        let (ci, ky, kx) = unpack(s, r);
                        ci * cs + ky * ys + kx * xs
                    } else {
                        r
                    };
                    df[o * depth + to] = E::store(sum(first + o, r));
                }
            }
        }
    });
}

/// Side of the squares in which a matrix is turned.
const SQUARE: usize = 16;

/// Which tensor the textbook's loops add to.
#[derive(Clone, Copy, PartialEq)]
enum Makes {
    Y,
    X,
    Filters,
}

/// The textbook's seven loops on one thread.
pub fn conv2d_naive(_: &CpuCtx<'_>, args: &mut NativeArgs<'_>, call: &Call) -> Result<()> {
    with_element!(floats call.dtype, T => naive::<T>(args, call, Makes::Y), else Err(call.no_dtype()))
}

/// The same, adding to dx.
pub fn bwd_data_naive(_: &CpuCtx<'_>, args: &mut NativeArgs<'_>, call: &Call) -> Result<()> {
    with_element!(floats call.dtype, T => naive::<T>(args, call, Makes::X), else Err(call.no_dtype()))
}

/// The same, adding to the filters' gradient.
pub fn bwd_weight_naive(_: &CpuCtx<'_>, args: &mut NativeArgs<'_>, call: &Call) -> Result<()> {
    with_element!(floats call.dtype, T => naive::<T>(args, call, Makes::Filters), else Err(call.no_dtype()))
}

fn naive<E: Stored>(args: &mut NativeArgs<'_>, call: &Call, makes: Makes) -> Result<()> {
    let s = Sizes::of(call);
    let lengths = match makes {
        Makes::Y => [s.x_len(), s.f_len(), s.y_len()],
        Makes::X => [s.y_len(), s.f_len(), s.x_len()],
        Makes::Filters => [s.y_len(), s.x_len(), s.f_len()],
    };
    let (a, b) = (args.input::<E>(0, lengths[0])?, args.input::<E>(1, lengths[1])?);
    let out = args.output::<E>(0, lengths[2])?;
    let mut sums = vec![E::Acc::default(); out.len()];
    let at = |[cs, ys, xs]: [usize; 3], c: usize, y: usize, x: usize| c * cs + y * ys + x * xs;
    let (sx, sy, sf) = (s.strides(s.c, s.h, s.w), s.strides(s.co, s.ho, s.wo), s.strides(s.cg(), s.kh, s.kw));
    for n in 0..s.n {
        for o in 0..s.co {
            for oy in 0..s.ho {
                for ox in 0..s.wo {
                    let y = n * s.co * s.pixels() + at(sy, o, oy, ox);
                    for ci in 0..s.cg() {
                        for ky in 0..s.kh {
                            for kx in 0..s.kw {
                                let f = o * s.depth() + at(sf, ci, ky, kx);
                                let row = (oy * s.sh + ky * s.dh).checked_sub(s.pt).filter(|r| *r < s.h);
                                let column = (ox * s.sw + kx * s.dw).checked_sub(s.pl).filter(|c| *c < s.w);
                                let channel = o / s.og() * s.cg() + ci;
                                let x = row.zip(column).map(|(r, c)| n * s.c * s.h * s.w + at(sx, channel, r, c));
                                let zero = E::Acc::default();
                                let (to, term) = match (makes, x) {
                                    (Makes::Y, x) => (y, x.map_or(zero, |x| a[x].load()).mul(b[f].load())),
                                    (Makes::X, Some(x)) => (x, a[y].load().mul(b[f].load())),
                                    (Makes::X, None) => continue,
                                    (Makes::Filters, x) => (f, a[y].load().mul(x.map_or(zero, |x| b[x].load()))),
                                };
                                sums[to] = sums[to].add(term);
                            }
                        }
                    }
                }
            }
        }
    }
    for (o, v) in out.iter_mut().zip(sums) {
        *o = E::store(v);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::DType;
    use crate::kernel::Param;
    use crate::kernel::cpu::{Isa, NativeFn};

    /// Sizes, steps and the rest of a convolution: n, c, h, w, co, kh, kw, strides, pads above and to the left, below and to the
    /// right, dilations, groups.
    type Shape = ([u64; 7], [u64; 2], [u64; 2], [u64; 2], [u64; 2], u64);

    const SHAPES: [Shape; 14] = [
        ([2, 3, 9, 11, 4, 3, 3], [1, 1], [1, 1], [1, 1], [1, 1], 1),
        ([1, 8, 7, 7, 40, 1, 1], [1, 1], [0, 0], [0, 0], [1, 1], 1),
        ([2, 4, 13, 9, 6, 1, 1], [2, 2], [0, 0], [0, 0], [1, 1], 2),
        ([1, 3, 23, 20, 8, 7, 7], [2, 2], [3, 3], [3, 3], [1, 1], 1),
        ([1, 4, 12, 12, 8, 5, 3], [1, 2], [2, 1], [2, 1], [1, 1], 4),
        ([2, 6, 10, 37, 6, 3, 3], [1, 1], [1, 1], [1, 1], [1, 1], 6),
        ([1, 5, 11, 8, 5, 3, 3], [2, 2], [1, 1], [1, 1], [1, 1], 5),
        ([1, 3, 15, 16, 7, 3, 3], [1, 1], [2, 2], [2, 2], [2, 2], 1),
        ([3, 2, 9, 9, 3, 3, 2], [3, 2], [0, 1], [1, 0], [2, 3], 1),
        ([1, 70, 6, 6, 33, 3, 3], [1, 1], [1, 1], [1, 1], [1, 1], 1),
        ([1, 2, 5, 5, 2, 3, 3], [1, 1], [4, 4], [4, 4], [1, 1], 1),
        ([2, 4, 8, 8, 8, 2, 2], [4, 4], [0, 0], [0, 0], [1, 1], 1),
        // Larger than a block of sums.
        ([1, 3, 60, 33, 17, 3, 3], [1, 1], [1, 1], [1, 1], [1, 1], 1),
        ([1, 2, 3, 3, 2, 3, 3], [4000, 4000], [4000, 4000], [8000, 8000], [2000, 2000], 1),
    ];

    fn call((sizes, strides, before, after, dilations, group): Shape, nhwc: bool) -> Option<Call> {
        let [n, c, h, w, co, kh, kw] = sizes;
        let out = |len: u64, window: u64, i: usize| {
            Some((len + before[i] + after[i]).checked_sub((window - 1) * dilations[i] + 1)? / strides[i] + 1)
        };
        let (ho, wo) = (out(h, kh, 0)?, out(w, kw, 1)?);
        let mut all = vec![n, c, h, w, co, kh, kw, ho, wo];
        all.extend(strides.into_iter().chain(before).chain(dilations).chain([group, nhwc.into()]));
        Some(Call { dtype: DType::F32, params: all.into_iter().map(Param::U64).collect() })
    }

    #[test]
    fn halves_are_no_floats() {
        let call = Call { dtype: DType::BF16, ..call(SHAPES[0], false).unwrap() };
        let s = Sizes::of(&call);
        let of = |len: usize| (0..len).map(|i| half::bf16::from_f32((i % 5) as f32 - 2.0)).collect::<Vec<_>>();
        let (x, f) = (of(s.x_len()), of(s.f_len()));
        let run = |f_: NativeFn| {
            let mut out = of(s.y_len());
            let mut args = NativeArgs {
                ins: vec![bytemuck::cast_slice(&x), bytemuck::cast_slice(&f)],
                outs: vec![bytemuck::cast_slice_mut(&mut out)],
            };
            f_(&CpuCtx { threads: 1, isa: Isa::detect(), team: None, blas: None }, &mut args, &call).unwrap();
            out
        };
        assert_eq!(run(conv2d), run(conv2d_naive));
    }

    /// Small integers are exact in every order; a filter that is not finite meets only what it is multiplied with.
    #[test]
    fn all_directions_agree_with_plain_loops() {
        let of = |len: usize, seed: usize| {
            (0..len).map(|i| ((i * 7 + seed * 5 + i / 3) % 9) as f32 - 4.0).collect::<Vec<_>>()
        };
        for shape in SHAPES {
            for nhwc in [false, true] {
                let call = call(shape, nhwc).unwrap();
                let s = Sizes::of(&call);
                let (x, mut f, mut g) = (of(s.x_len(), 1), of(s.f_len(), 2), of(s.y_len(), 3));
                for infinite in ["nothing", "a filter", "g, too"] {
                    match infinite {
                        "a filter" => f[0] = f32::INFINITY,
                        "g, too" => g[0] = f32::INFINITY,
                        _ => {}
                    }
                    let ways: [(NativeFn, NativeFn, &[f32], &[f32], usize); 3] = [
                        (conv2d, conv2d_naive, &x, &f, s.y_len()),
                        (bwd_data, bwd_data_naive, &g, &f, s.x_len()),
                        (bwd_weight, bwd_weight_naive, &g, &x, s.f_len()),
                    ];
                    for (number, (fast, plain, a, b, len)) in ways.into_iter().enumerate() {
                        let run = |f: NativeFn, isa: Isa| {
                            let mut out = vec![7f32; len];
                            let mut args = NativeArgs {
                                ins: vec![bytemuck::cast_slice(a), bytemuck::cast_slice(b)],
                                outs: vec![bytemuck::cast_slice_mut(&mut out)],
                            };
                            f(&CpuCtx { threads: 1, isa, team: None, blas: None }, &mut args, &call).unwrap();
                            out.into_iter().map(|v| if v.is_nan() { None } else { Some(v) }).collect::<Vec<_>>()
                        };
                        let want = run(plain, Isa::BASELINE);
                        for isa in ["baseline", "avx2", "avx512"].map(|name| Isa::capped(name).unwrap()) {
                            assert_eq!(
                                run(fast, isa),
                                want,
                                "{number} {shape:?} nhwc {nhwc} infinite {infinite} {}",
                                isa.name()
                            );
                        }
                    }
                }
            }
        }
    }
}
