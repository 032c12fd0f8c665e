//! Windows of one pixel, tensors in NCHW and one group: plain products of the pixels that they meet, which are laid out first where a
//! stride leaves some out.

use crate::base::Result;

use super::CpuCtx;
use super::conv::{Float, Sizes};
use super::matmul::single;
use super::planes::with_space;
use super::product::{Scale, View};
use super::simd::sweep::Rows;

/// y of an image whose pixels are all met, [c, ho, wo].
pub(super) fn sums<T: Float>(ctx: &CpuCtx<'_>, s: &Sizes, x: &[T], f: &[T], y: &mut [T]) -> Result<()> {
    let filters = View { data: f, line_stride: s.c, depth_stride: 1 };
    let pixels = View { data: x, line_stride: 1, depth_stride: s.pixels() };
    single(ctx, &filters, &pixels, (s.co, s.pixels(), s.c), Scale::PLAIN, y)
}

/// dx of an image whose pixels are all met, [c, ho, wo].
pub(super) fn products<T: Float>(ctx: &CpuCtx<'_>, s: &Sizes, g: &[T], f: &[T], dx: &mut [T]) -> Result<()> {
    let across = View { data: f, line_stride: 1, depth_stride: s.c };
    let pixels = View { data: g, line_stride: 1, depth_stride: s.pixels() };
    single(ctx, &across, &pixels, (s.c, s.pixels(), s.co), Scale::PLAIN, dx)
}

/// y of an image.
pub(super) fn forward<T: Float>(ctx: &CpuCtx<'_>, s: &Sizes, x: &[T], f: &[T], y: &mut [T]) -> Result<()> {
    let met = s.c * s.pixels();
    with_space(met, |space| {
        gather(ctx, s, x, &mut space[..met]);
        sums(ctx, s, &space[..met], f, y)
    })
}

/// dx of an image.
pub(super) fn backward<T: Float>(ctx: &CpuCtx<'_>, s: &Sizes, g: &[T], f: &[T], dx: &mut [T]) -> Result<()> {
    let met = s.c * s.pixels();
    with_space(met, |space| {
        products(ctx, s, g, f, &mut space[..met])?;
        scatter(ctx, s, &space[..met], dx);
        Ok(())
    })
}

/// The pixels that are met, [c, ho, wo].
fn gather<T: Float>(ctx: &CpuCtx<'_>, s: &Sizes, x: &[T], dense: &mut [T]) {
    let set = T::sweeps(ctx.isa);
    let parts = ctx.parts_for_bytes(8 * size_of_val(dense));
    ctx.split(dense, CpuCtx::chunk(s.c, parts, 1) * s.pixels(), |first, dense| {
        for (i, plane) in dense.chunks_exact_mut(s.pixels()).enumerate() {
            let x = &x[(first / s.pixels() + i) * s.h * s.w..][..s.h * s.w];
            if s.sw == 2 {
                set.halve(Rows { count: s.ho, data: s.sh * s.w, out: s.wo, len: s.wo }, x, plane);
                continue;
            }
            for (row, x) in plane.chunks_exact_mut(s.wo).zip(x.chunks(s.sh * s.w)) {
                row.iter_mut().zip(x.iter().step_by(s.sw)).for_each(|(to, v)| *to = *v);
            }
        }
    });
}

/// The inverse of [`gather`]: an image with zeros where no window meets it.
fn scatter<T: Float>(ctx: &CpuCtx<'_>, s: &Sizes, dense: &[T], x: &mut [T]) {
    let parts = ctx.parts_for_bytes(2 * size_of_val(x));
    ctx.split(x, CpuCtx::chunk(s.c, parts, 1) * s.h * s.w, |first, x| {
        let first = first / (s.h * s.w) * s.pixels();
        for (x, plane) in x.chunks_exact_mut(s.h * s.w).zip(dense[first..].chunks_exact(s.pixels())) {
            x.fill(T::ZERO);
            for (x, row) in x.chunks_mut(s.sh * s.w).zip(plane.chunks_exact(s.wo)) {
                for (to, v) in x.iter_mut().step_by(s.sw).zip(row) {
                    *to = *v;
                }
            }
        }
    });
}
