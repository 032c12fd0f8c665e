//! Convolutions with one channel and one filter in each group: sums of a plane's elements, shifted.

use super::CpuCtx;
use super::conv::Sizes;
use super::math::Real;
use super::planes::Layout;
use super::product::Element;
use super::simd::{Job, Style, dispatch};

/// Columns that are summed at once.
const LANES: usize = 32;

/// y of one image from its planes and the filters, in either layout.
pub(super) fn forward<T: Element + Real>(
    ctx: &CpuCtx<'_>,
    s: &Sizes,
    layout: &Layout,
    planes: &[T],
    f: &[T],
    y: &mut [T],
) {
    let pixels = s.pixels();
    let set = T::set(ctx.isa);
    let plane = |channel: usize, y: &mut [T]| {
        let (plane, filter) = (&planes[channel * layout.plane..], &f[channel * s.depth()..][..s.depth()]);
        for (oy, y) in y.chunks_exact_mut(s.wo).enumerate() {
            set.row(&layout.offsets[..s.depth()], filter, &plane[layout.start(s, oy)..], y);
        }
    };
    let parts = ctx.parts_for_bytes(2 * size_of_val(y));
    if !s.nhwc {
        ctx.split(y, CpuCtx::chunk(s.c, parts, 1) * pixels, |first, y| {
            y.chunks_exact_mut(pixels).enumerate().for_each(|(i, y)| plane(first / pixels + i, y));
        });
        return;
    }
    let mut made = vec![T::ZERO; y.len()];
    ctx.split(&mut made, CpuCtx::chunk(s.c, parts, 1) * pixels, |first, y| {
        y.chunks_exact_mut(pixels).enumerate().for_each(|(i, y)| plane(first / pixels + i, y));
    });
    ctx.split(y, CpuCtx::chunk(pixels, parts, 1) * s.c, |first, y| {
        for (i, y) in y.chunks_exact_mut(s.c).enumerate() {
            for (channel, y) in y.iter_mut().enumerate() {
                *y = made[channel * pixels + first / s.c + i];
            }
        }
    });
}

/// Adds rows of g, times the filter, to a plane.
struct Spread<'a, T> {
    s: &'a Sizes,
    layout: &'a Layout,
    g: &'a [T],
    filter: &'a [T],
    plane: &'a mut [T],
}

impl<T: Element + Real> Job for Spread<'_, T> {
    type Out = ();
    #[inline(always)]
    fn run<S: Style>(self) {
        for (oy, g) in self.g.chunks_exact(self.s.wo).enumerate() {
            for (offset, f) in self.layout.offsets.iter().zip(self.filter) {
                let to = &mut self.plane[offset + self.layout.start(self.s, oy)..][..self.s.wo];
                for (to, v) in to.iter_mut().zip(g) {
                    *to = v.fma::<S>(*f, *to);
                }
            }
        }
    }
}

/// Adds g times the filters to the planes of the channels from `first` on (NCHW).
pub(super) fn spread<T: Element + Real>(
    ctx: &CpuCtx<'_>,
    s: &Sizes,
    layout: &Layout,
    first: usize,
    g: &[T],
    f: &[T],
    planes: &mut [T],
) {
    for (i, plane) in planes.chunks_exact_mut(layout.plane).enumerate() {
        let channel = first + i;
        let (g, filter) = (&g[channel * s.pixels()..][..s.pixels()], &f[channel * s.depth()..][..s.depth()]);
        dispatch(ctx.isa, Spread { s, layout, g, filter, plane });
    }
}

/// Σ g · plane for each position of the window.
struct Sums<'a, T> {
    s: &'a Sizes,
    layout: &'a Layout,
    g: &'a [T],
    plane: &'a [T],
    sums: &'a mut [T],
    add: bool,
}

impl<T: Element + Real> Job for Sums<'_, T> {
    type Out = ();
    #[inline(always)]
    fn run<S: Style>(self) {
        let s = self.s;
        for (offset, out) in self.layout.offsets.iter().zip(self.sums) {
            let mut lanes = [T::ZERO; LANES];
            let mut few = [T::ZERO; 8];
            let mut rest = T::ZERO;
            for (oy, g) in self.g.chunks_exact(s.wo).enumerate() {
                let from = &self.plane[offset + self.layout.start(s, oy)..][..s.wo];
                let ((g, g_rest), (v, v_rest)) = (g.as_chunks::<LANES>(), from.as_chunks::<LANES>());
                for (g, v) in g.iter().zip(v) {
                    for i in 0..LANES {
                        lanes[i] = v[i].fma::<S>(g[i], lanes[i]);
                    }
                }
                let ((g, g_rest), (v, v_rest)) = (g_rest.as_chunks::<8>(), v_rest.as_chunks::<8>());
                for (g, v) in g.iter().zip(v) {
                    for i in 0..8 {
                        few[i] = v[i].fma::<S>(g[i], few[i]);
                    }
                }
                for (g, v) in g_rest.iter().zip(v_rest) {
                    rest = v.fma::<S>(*g, rest);
                }
            }
            let sum = lanes.iter().chain(&few).fold(rest, |s, v| s + *v);
            *out = if self.add { *out + sum } else { sum };
        }
    }
}

/// The filters' gradient of one image (NCHW), added to `sums` or not.
pub(super) fn weight<T: Element + Real>(
    ctx: &CpuCtx<'_>,
    s: &Sizes,
    layout: &Layout,
    planes: &[T],
    g: &[T],
    sums: &mut [T],
    add: bool,
) {
    let parts = ctx.parts_for_bytes(2 * size_of_val(g));
    let window = s.depth();
    ctx.split(sums, CpuCtx::chunk(s.c, parts, 1) * window, |first, sums| {
        for (i, sums) in sums.chunks_exact_mut(window).enumerate() {
            let channel = first / window + i;
            let (g, plane) =
                (&g[channel * s.pixels()..][..s.pixels()], &planes[channel * layout.plane..][..layout.plane]);
            dispatch(ctx.isa, Sums { s, layout, g, plane, sums, add });
        }
    });
}
