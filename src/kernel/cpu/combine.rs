//! Sums of rows, each with a factor: what a vector times a matrix is whose rows lie in memory. Several rows pass at once, so that sums
//! are read and written once for all of them.

use super::CpuCtx;
use super::lanes::onto;
use super::math::Real;
use super::product::{Element, Scale, View};
use super::simd::{Isa, Job, Style, dispatch};

/// Rows that pass at once: as many streams as the processor's prefetchers follow.
pub(super) const ROWS: usize = 8;
/// Columns from which on a single row is better off without tiles, which keep so few sums in registers.
pub(super) const LEAST: usize = 128;
/// Sums that stay in half of the first-level cache, whatever their type.
const COLUMNS: usize = 2048;

/// sums += Σ x[j]·rows[j], in this order; rows are at least as long as the sums.
#[inline(always)]
fn together<S: Style, R: Real>(rows: [&[R]; ROWS], x: [R; ROWS], sums: &mut [R]) {
    // One by one: of a loop over the rows no vectors are made.
    let n = sums.len();
    let [a, b, c, d, e, f, g, h] = rows;
    let (a, b, c, d, e, f, g, h) = (&a[..n], &b[..n], &c[..n], &d[..n], &e[..n], &f[..n], &g[..n], &h[..n]);
    for (i, sum) in sums.iter_mut().enumerate() {
        let s = b[i].fma::<S>(x[1], a[i].fma::<S>(x[0], *sum));
        let s = d[i].fma::<S>(x[3], c[i].fma::<S>(x[2], s));
        let s = f[i].fma::<S>(x[5], e[i].fma::<S>(x[4], s));
        *sum = h[i].fma::<S>(x[7], g[i].fma::<S>(x[6], s));
    }
}

struct Together<'a, R> {
    rows: [&'a [R]; ROWS],
    x: [R; ROWS],
    sums: &'a mut [R],
}

impl<R: Real> Job for Together<'_, R> {
    type Out = ();
    #[inline(always)]
    fn run<S: Style>(self) {
        together::<S, R>(self.rows, self.x, self.sums);
    }
}

/// y += a·x for a number x.
struct Axpy<'a, R>(&'a [R], R, &'a mut [R]);

impl<R: Real> Job for Axpy<'_, R> {
    type Out = ();
    #[inline(always)]
    fn run<S: Style>(self) {
        onto(self.0, self.2, |y, a| a.fma::<S>(self.1, y));
    }
}

/// sums += Σ x[j]·rows[j], in this order; rows are at least as long as the sums.
pub(super) fn add_rows<R: Real>(isa: Isa, rows: [&[R]; ROWS], x: [R; ROWS], sums: &mut [R]) {
    dispatch(isa, Together { rows, x, sums });
}

/// sums += x·row.
pub(super) fn add_row<R: Real>(isa: Isa, row: &[R], x: R, sums: &mut [R]) {
    dispatch(isa, Axpy(row, x, sums));
}

/// sums += a·B for columns of B that begin at `at`.
struct Row<'a, 'b, T> {
    a: &'a View<'b, T>,
    b: &'a View<'b, T>,
    at: usize,
    k: usize,
    sums: &'a mut [T],
}

impl<T: Element + Real> Job for Row<'_, '_, T> {
    type Out = ();
    #[inline(always)]
    fn run<S: Style>(self) {
        let (n, a, b) = (self.sums.len(), self.a, self.b);
        let whole = self.k / ROWS * ROWS;
        for first in (0..whole).step_by(ROWS) {
            let (mut rows, mut x) = ([&b.data[..0]; ROWS], [T::ZERO; ROWS]);
            for (i, (row, x)) in rows.iter_mut().zip(&mut x).enumerate() {
                *row = &b.data[(first + i) * b.depth_stride + self.at..][..n];
                *x = a.data[(first + i) * a.depth_stride];
            }
            together::<S, T>(rows, x, self.sums);
        }
        for j in whole..self.k {
            let (row, x) = (&b.data[j * b.depth_stride + self.at..][..n], a.data[j * a.depth_stride]);
            onto(row, self.sums, |y, b| b.fma::<S>(x, y));
        }
    }
}

/// The only row of C = alpha·A·B + beta·C, rows of B lying in memory. Sums are taken in the order of the depths, however C is cut.
pub(super) fn row<T: Element + Real>(
    ctx: &CpuCtx<'_>,
    a: &View<'_, T>,
    b: &View<'_, T>,
    k: usize,
    scale: Scale<T>,
    c: &mut [T],
) {
    let parts = ctx.parts_for_bytes(size_of::<T>() * k * c.len());
    ctx.split(c, CpuCtx::chunk(c.len(), parts, 32), |first, c| {
        let mut sums = [T::ZERO; COLUMNS];
        for (block, c) in c.chunks_mut(COLUMNS).enumerate() {
            let sums = &mut sums[..c.len()];
            sums.fill(T::ZERO);
            dispatch(ctx.isa, Row { a, b, at: first + block * COLUMNS, k, sums });
            c.iter_mut().zip(sums).for_each(|(c, s)| *c = scale.of(*s, *c));
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every number of rows around eight, columns around a block: each sum in the order of the depths, with what C was.
    #[test]
    fn every_row_counts_once_and_in_order() {
        for k in (0..19).chain([1000]) {
            for n in [1, 31, COLUMNS - 1, COLUMNS + 33] {
                let a: Vec<f32> = (0..2 * k).map(|i| 1.0 / (i as f32 + 1.0)).collect();
                let b: Vec<f32> = (0..k * n).map(|i| ((i * 37 + i / n) % 101) as f32 - 50.5).collect();
                let a = View { data: &a, line_stride: 1, depth_stride: 2 };
                let b = View { data: &b, line_stride: 1, depth_stride: n };
                for isa in ["baseline", "avx2", "avx512"].map(|name| Isa::capped(name).unwrap()) {
                    let ctx = CpuCtx { threads: 1, isa, team: None, blas: None };
                    let mut c = vec![3.0; n];
                    row(&ctx, &a, &b, k, Scale { alpha: 2.0, beta: 0.5 }, &mut c);
                    for (j, c) in c.iter().enumerate() {
                        let sum = (0..k).fold(0f64, |s, p| s + f64::from(a.data[2 * p]) * f64::from(b.data[p * n + j]));
                        let (want, size) = (2.0 * sum + 1.5, k as f64 * 51.0);
                        assert!((f64::from(*c) - want).abs() <= 1e-6 * size + 1e-9, "{k} {n} {j}: {c} {want}");
                    }
                }
            }
        }
    }
}
