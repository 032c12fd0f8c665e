//! Convolutions: patches of the image are laid out as a matrix, tile by tile, and multiplied by the filters.
//!
//! All three directions cut their result into pieces that one thread makes alone, in f32 or f64 and in the order of the
//! product; a second pass stores it in the dtype and layout that was asked for. Params: see `kernel::plan_window`.

use crate::base::Result;

use super::number::{Element, Number, with_element};
use super::simd::{GemmElement, Product, View, gemm_part};
use super::vector::Wide;
use super::{Call, CpuCtx, Failure, NativeArgs};

/// Elements of a tile of patches: with the filters it stays in a second-level cache.
const TILE: usize = 1 << 16;

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
    dh: usize,
    dw: usize,
    group: usize,
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
    fn cg(&self) -> usize {
        self.c / self.group
    }
    fn og(&self) -> usize {
        self.co / self.group
    }
    pub(super) fn pixels(&self) -> usize {
        self.ho * self.wo
    }
    /// Rows of the matrix of patches of one group.
    fn depth(&self) -> usize {
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
    /// Pixels of a tile `rows` deep.
    fn width(&self, rows: usize) -> usize {
        (TILE / rows.max(1)).clamp(64, 1024).min(self.pixels().max(1))
    }
    fn flops(&self) -> usize {
        2 * self.y_len() * self.depth()
    }
    /// Calls `f(pixel - first, ox, count)` for the parts of pixels `first..end` that lie in one row of y each, with the
    /// row of the image that kernel row `ky` meets there, if it is inside.
    fn runs(&self, (first, end): (usize, usize), ky: usize, mut f: impl FnMut(usize, usize, usize, Option<usize>)) {
        let mut p = first;
        while p < end {
            let (oy, ox) = (p / self.wo, p % self.wo);
            let count = (self.wo - ox).min(end - p);
            let row = (oy * self.sh + ky * self.dh).checked_sub(self.pt).filter(|r| *r < self.h);
            f(p - first, ox, count, row);
            p += count;
        }
    }
    /// The part of columns `ox..ox + count` of y in which kernel column `kx` meets the image, as offsets from `ox`, and
    /// the column of the image that it begins with.
    fn inside(&self, ox: usize, count: usize, kx: usize) -> (usize, usize, usize) {
        let at = ox * self.sw + kx * self.dw;
        let low = self.pl.saturating_sub(at).div_ceil(self.sw).min(count);
        let high = (self.w + self.pl).saturating_sub(at).div_ceil(self.sw).clamp(low, count);
        (low, high, (at + low * self.sw).saturating_sub(self.pl))
    }
}

/// Row `r` of the patches of a group counts channel, kernel row, kernel column.
fn unpack(s: &Sizes, r: usize) -> (usize, usize, usize) {
    (r / (s.kh * s.kw), r / s.kw % s.kh, r % s.kw)
}

/// Lays rows `rows` of the patches of group `g` at pixels `first..end` of image `n` out in `tile`.
fn patches<T: Number>(
    s: &Sizes,
    x: &[T],
    (n, g): (usize, usize),
    rows: std::ops::Range<usize>,
    span: (usize, usize),
    tile: &mut [T],
) {
    let [cs, ys, xs] = s.strides(s.c, s.h, s.w);
    let width = span.1 - span.0;
    for (r, line) in rows.zip(tile.chunks_exact_mut(width)) {
        let (ci, ky, kx) = unpack(s, r);
        let base = n * s.c * s.h * s.w + (g * s.cg() + ci) * cs;
        s.runs(span, ky, |at, ox, count, row| {
            let out = &mut line[at..at + count];
            let Some(row) = row else {
                out.fill(T::default());
                return;
            };
            let (low, high, column) = s.inside(ox, count, kx);
            out[..low].fill(T::default());
            out[high..].fill(T::default());
            if low == high {
                return;
            }
            let from = &x[base + row * ys + column * xs..];
            match s.sw * xs {
                1 => out[low..high].copy_from_slice(&from[..high - low]),
                step => {
                    for (o, v) in out[low..high].iter_mut().zip(from.iter().step_by(step)) {
                        *o = *v;
                    }
                }
            }
        });
    }
}

/// Filters as numbers, [co, c/group, kh, kw] whatever the layout.
fn filters<E: Element>(s: &Sizes, f: &[E]) -> Vec<E::Acc> {
    let [cs, ys, xs] = s.strides(s.cg(), s.kh, s.kw);
    let at = |o: usize, r: usize| {
        let (ci, ky, kx) = unpack(s, r);
        o * s.depth() + ci * cs + ky * ys + kx * xs
    };
    (0..s.co).flat_map(|o| (0..s.depth()).map(move |r| f[at(o, r)].load())).collect()
}

/// g of one image and group as a matrix of filters by pixels, from pixel `first` on.
fn gradients<'a, T>(s: &Sizes, g: &'a [T], (n, group): (usize, usize), first: usize) -> View<'a, T> {
    let [row_stride, _, col_stride] = s.strides(s.co, s.ho, s.wo);
    let from = n * s.co * s.pixels() + group * s.og() * row_stride + first * col_stride;
    View { data: &g[from..], row_stride, col_stride }
}

/// Pieces to cut the work into: more than threads, so that an uneven end costs little; one for little work. Not by what a
/// hand-over was measured to cost: sums could depend on it.
fn parts(ctx: &CpuCtx<'_>, s: &Sizes) -> usize {
    if s.flops() < 500_000 || ctx.threads == 1 { 1 } else { 4 * ctx.threads }
}

/// y = x convolved with the filters.
pub fn conv2d(ctx: &CpuCtx<'_>, args: &mut NativeArgs<'_>, call: &Call) -> Result<()> {
    with_element!(floats call.dtype, T => forward::<T, <T as Element>::Acc>(ctx, args, call), else Err(call.no_dtype()))
}

fn forward<E: Wide<Acc = T>, T: GemmElement + Number>(
    ctx: &CpuCtx<'_>,
    args: &mut NativeArgs<'_>,
    call: &Call,
) -> Result<()> {
    let s = Sizes::of(call);
    let (x, f) = (args.input::<E>(0, s.x_len())?, args.input::<E>(1, s.f_len())?);
    let y = args.output::<E>(0, s.y_len())?;
    if y.is_empty() {
        return Ok(());
    }
    let mut buffer = Vec::new();
    let (x, f) = (E::wide(x, &mut buffer), filters(&s, f));
    let (depth, og, pixels) = (s.depth(), s.og(), s.pixels());
    let width = s.width(depth);
    let per_image = pixels.div_ceil(width);
    let tiles = s.n * s.group * per_image;
    let span = |tile: usize| (tile * width, ((tile + 1) * width).min(pixels));
    // Tile after tile: filters of the group by pixels of the tile.
    let mut made = vec![T::ZERO; tiles * og * width];
    let failed = Failure::default();
    ctx.split(&mut made, CpuCtx::chunk(tiles, parts(ctx, &s), 1) * og * width, |first, piece| {
        let mut tile = vec![T::ZERO; depth * width];
        for (i, out) in piece.chunks_exact_mut(og * width).enumerate() {
            let number = first / (og * width) + i;
            let (which, span) = (number / per_image, span(number % per_image));
            let (n, g) = (which / s.group, which % s.group);
            let count = span.1 - span.0;
            patches(&s, x, (n, g), 0..depth, span, &mut tile[..depth * count]);
            let left = View { data: &f[g * og * depth..(g + 1) * og * depth], row_stride: depth, col_stride: 1 };
            let right = View { data: &tile[..depth * count], row_stride: count, col_stride: 1 };
            failed.note(gemm_part(Product {
                m: og,
                n: count,
                k: depth,
                alpha: T::ONE,
                a: left,
                b: right,
                beta: T::ZERO,
                c: &mut out[..og * count],
            }));
        }
    });
    failed.end()?;
    // Element (filter, pixel) of image n.
    let tile_of = |n: usize, o: usize, tile: usize| {
        let (from, to) = span(tile);
        let start = ((n * s.group + o / og) * per_image + tile) * og * width + o % og * (to - from);
        &made[start..start + to - from]
    };
    let parts = ctx.parts_for_bytes(size_of_val(y));
    if s.nhwc {
        ctx.split(y, CpuCtx::chunk(s.n * pixels, parts, 1) * s.co, |first, piece| {
            for (i, out) in piece.chunks_exact_mut(s.co).enumerate() {
                let at = first / s.co + i;
                let (n, p) = (at / pixels, at % pixels);
                for (o, out) in out.iter_mut().enumerate() {
                    *out = E::store(tile_of(n, o, p / width)[p % width]);
                }
            }
        });
    } else {
        ctx.split(y, CpuCtx::chunk(s.n * s.co, parts, 1) * pixels, |first, piece| {
            for (i, row) in piece.chunks_exact_mut(pixels).enumerate() {
                let at = first / pixels + i;
                for (tile, run) in row.chunks_mut(width).enumerate() {
                    for (out, v) in run.iter_mut().zip(tile_of(at / s.co, at % s.co, tile)) {
                        *out = E::store(*v);
                    }
                }
            }
        });
    }
    Ok(())
}

/// dx from g and the filters: the filters' transpose times g, each row added to the pixels that it came from.
pub fn bwd_data(ctx: &CpuCtx<'_>, args: &mut NativeArgs<'_>, call: &Call) -> Result<()> {
    with_element!(floats call.dtype, T => data::<T, <T as Element>::Acc>(ctx, args, call), else Err(call.no_dtype()))
}

fn data<E: Wide<Acc = T>, T: GemmElement + Number>(
    ctx: &CpuCtx<'_>,
    args: &mut NativeArgs<'_>,
    call: &Call,
) -> Result<()> {
    let s = Sizes::of(call);
    let (g, f) = (args.input::<E>(0, s.y_len())?, args.input::<E>(1, s.f_len())?);
    let dx = args.output::<E>(0, s.x_len())?;
    if dx.is_empty() {
        return Ok(());
    }
    let mut buffer = Vec::new();
    let (g, f) = (E::wide(g, &mut buffer), filters(&s, f));
    let (depth, og, cg, pixels, plane) = (s.depth(), s.og(), s.cg(), s.pixels(), s.h * s.w);
    let window = s.kh * s.kw;
    let failed = Failure::default();
    let mut made = vec![T::ZERO; dx.len()];
    ctx.split(&mut made, CpuCtx::chunk(s.n * s.c, parts(ctx, &s), 1) * plane, |first, piece| {
        let (mut at, end) = (first / plane, (first + piece.len()) / plane);
        let mut tile = Vec::new();
        while at < end && og > 0 {
            let (n, channel) = (at / s.c, at % s.c);
            let (group, ci) = (channel / cg, channel % cg);
            // As many channels of one group as a tile of 64 pixels can hold.
            let channels = (cg - ci).min(end - at).min((TILE / 64 / window).max(1));
            let width = s.width(channels * window);
            let planes = &mut piece[(at - first / plane) * plane..][..channels * plane];
            for p in (0..pixels).step_by(width) {
                let count = width.min(pixels - p);
                tile.resize(channels * window * count, T::ZERO);
                let from = group * og * depth + ci * window;
                let left = View { data: &f[from..], row_stride: 1, col_stride: depth };
                let right = gradients(&s, g, (n, group), p);
                failed.note(gemm_part(Product {
                    m: channels * window,
                    n: count,
                    k: og,
                    alpha: T::ONE,
                    a: left,
                    b: right,
                    beta: T::ZERO,
                    c: &mut tile,
                }));
                for (r, line) in tile.chunks_exact(count).enumerate() {
                    let (channel, ky, kx) = unpack(&s, r);
                    s.runs((p, p + count), ky, |at, ox, count, row| {
                        let Some(row) = row else { return };
                        let (low, high, column) = s.inside(ox, count, kx);
                        if low == high {
                            return;
                        }
                        let to = &mut planes[channel * plane + row * s.w + column..];
                        for (d, v) in to.iter_mut().step_by(s.sw).zip(&line[at + low..at + high]) {
                            *d = d.add(*v);
                        }
                    });
                }
            }
            at += channels;
        }
    });
    failed.end()?;
    let [cs, _, xs] = s.strides(s.c, s.h, s.w);
    // Planes of channels to the layout: the same order, or pixels first.
    let parts = ctx.parts_for_bytes(size_of_val(dx));
    ctx.split(dx, CpuCtx::chunk(s.n, parts, 1) * s.c * plane, |first, piece| {
        for (out, from) in piece.chunks_exact_mut(s.c * plane).zip(made[first..].chunks_exact(s.c * plane)) {
            for (channel, from) in from.chunks_exact(plane).enumerate() {
                for (out, v) in out[channel * cs..].iter_mut().step_by(xs).zip(from) {
                    *out = E::store(*v);
                }
            }
        }
    });
    Ok(())
}

/// The filters' gradient from g and x: patches times g's transpose, summed over images and tiles.
pub fn bwd_weight(ctx: &CpuCtx<'_>, args: &mut NativeArgs<'_>, call: &Call) -> Result<()> {
    with_element!(floats call.dtype, T => weight::<T, <T as Element>::Acc>(ctx, args, call), else Err(call.no_dtype()))
}

fn weight<E: Wide<Acc = T>, T: GemmElement + Number>(
    ctx: &CpuCtx<'_>,
    args: &mut NativeArgs<'_>,
    call: &Call,
) -> Result<()> {
    let s = Sizes::of(call);
    let (g, x) = (args.input::<E>(0, s.y_len())?, args.input::<E>(1, s.x_len())?);
    let df = args.output::<E>(0, s.f_len())?;
    if df.is_empty() {
        return Ok(());
    }
    let (mut first_buffer, mut second) = (Vec::new(), Vec::new());
    let (g, x) = (E::wide(g, &mut first_buffer), E::wide(x, &mut second));
    let (depth, og, pixels) = (s.depth(), s.og(), s.pixels());
    let failed = Failure::default();
    // Group by group: rows of patches by filters.
    let mut made = vec![T::ZERO; df.len()];
    ctx.split(&mut made, CpuCtx::chunk(s.group * depth, parts(ctx, &s), 1) * og, |first, piece| {
        let (mut at, end) = (first / og, (first + piece.len()) / og);
        let mut tile = Vec::new();
        while at < end {
            let (group, row) = (at / depth, at % depth);
            let rows = (depth - row).min(end - at).min(TILE / 64);
            let width = s.width(rows);
            let out = &mut piece[(at - first / og) * og..][..rows * og];
            for n in 0..s.n {
                for p in (0..pixels).step_by(width) {
                    let count = width.min(pixels - p);
                    tile.resize(rows * count, T::ZERO);
                    patches(&s, x, (n, group), row..row + rows, (p, p + count), &mut tile);
                    let left = View { data: &tile[..], row_stride: count, col_stride: 1 };
                    let g = gradients(&s, g, (n, group), p);
                    let right = View { data: g.data, row_stride: g.col_stride, col_stride: g.row_stride };
                    failed.note(gemm_part(Product {
                        m: rows,
                        n: og,
                        k: count,
                        alpha: T::ONE,
                        a: left,
                        b: right,
                        beta: T::ONE,
                        c: out,
                    }));
                }
            }
            at += rows;
        }
    });
    failed.end()?;
    let [cs, ys, xs] = s.strides(s.cg(), s.kh, s.kw);
    for (at, sums) in made.chunks_exact(og).enumerate() {
        let (group, (ci, ky, kx)) = (at / depth, unpack(&s, at % depth));
        for (o, v) in sums.iter().enumerate() {
            df[(group * og + o) * depth + ci * cs + ky * ys + kx * xs] = E::store(*v);
        }
    }
    Ok(())
}

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

fn naive<E: Element>(args: &mut NativeArgs<'_>, call: &Call, makes: Makes) -> Result<()> {
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
