//! Gradients for images by adding to the pixels that terms came from: the only way where a filter is not finite, since nothing is
//! multiplied that is not there.

use super::CpuCtx;
use super::conv::{Float, Sizes};
use super::number::Number;
use super::planes::{Layout, with_space};
use super::product::{Scale, View, multiply};
use super::simd::tile::Block;
use super::vector::Wide;

/// Elements of a tile of sums.
const TILE: usize = 1 << 16;

/// dx of one image: the filters' transpose times g, each row added to the pixels that it came from.
pub(super) fn image<E: Wide<Acc = T>, T: Float>(
    ctx: &CpuCtx<'_>,
    s: &Sizes,
    layout: &Layout,
    g: &[T],
    f: &[T],
    dx: &mut [E],
) {
    with_space(layout.len(), |planes: &mut [T]| {
        let planes = &mut planes[..s.c * layout.plane];
        let parts = ctx.parts_for_seconds(s.seconds() / s.n as f64);
        ctx.split(planes, CpuCtx::chunk(s.c, parts, 1) * layout.plane, |first, planes| {
            planes.fill(T::ZERO);
            channels(ctx, s, layout, first / layout.plane, g, f, planes);
        });
        layout.drain(ctx, planes, dx, E::store);
    });
}

/// The same for the channels from `first` on, whose planes `planes` are.
fn channels<T: Float>(ctx: &CpuCtx<'_>, s: &Sizes, layout: &Layout, first: usize, g: &[T], f: &[T], planes: &mut [T]) {
    let (alone, window, cg, og) = (ctx.alone(), s.kh * s.kw, s.cg(), s.og());
    let [row_stride, _, col_stride] = s.strides(s.co, s.ho, s.wo);
    let end = planes.len() / layout.plane;
    // Whole rows of the result at a time, and as many channels of one group as keep the tile small.
    let most = (TILE / s.wo / window).max(1);
    let mut tile = Vec::new();
    let mut at = 0;
    while at < end && og > 0 {
        let (group, ci) = ((first + at) / cg, (first + at) % cg);
        let channels = (cg - ci).min(end - at).min(most);
        let rows = (TILE / s.wo / window / channels).clamp(1, s.ho);
        for oy in (0..s.ho).step_by(rows) {
            let high = rows.min(s.ho - oy);
            let count = high * s.wo;
            tile.resize(channels * window * count, T::ZERO);
            let a = View { data: &f[group * og * s.depth() + ci * window..], line_stride: 1, depth_stride: s.depth() };
            let data = &g[group * og * row_stride + oy * s.wo * col_stride..];
            let b = View { data, line_stride: col_stride, depth_stride: row_stride };
            multiply(&alone, &a, &b, og, Scale::PLAIN, Block::new(&mut tile, channels * window, count, count));
            for (r, line) in tile.chunks_exact(count).enumerate() {
                let start = at * layout.plane + layout.offsets[r];
                for (y, line) in line.chunks_exact(s.wo).enumerate() {
                    let to = &mut planes[start + (oy + y) * layout.pitch..][..s.wo];
                    for (to, v) in to.iter_mut().zip(line) {
                        *to = Number::add(*to, *v);
                    }
                }
            }
        }
        at += channels;
    }
}
