//! Products of large float matrices by the `gemm` crates' routine, one call for each thread.

use std::sync::{Mutex, PoisonError};

use crate::base::{Error, Result};

use super::CpuCtx;
use super::product::{Element, Scale, View};
use super::simd::Isa;
use super::simd::routine::{GemmElement, Product, View as Matrix, gemm_by_columns, gemm_part};

/// From here on a product is shared out. Not by what a hand-over was measured to cost: how C is cut can change its last bits, and
/// those must not depend on a measurement.
const SHARED_FLOPS: f64 = 300e3;
/// Products of fewer operations are better off with tiles, and those of so few rows.
const LARGE_FLOPS: f64 = 100e3;
const FEW_ROWS: usize = 4;

/// True if the routine is the best way for a product of this shape with this instruction set.
pub(super) fn suits(isa: Isa, (m, n, k): (usize, usize, usize)) -> bool {
    // It takes the best set that it finds, whatever `isa` says.
    isa == Isa::detect() && m > FEW_ROWS && n > 0 && 2.0 * m as f64 * n as f64 * k as f64 >= LARGE_FLOPS
}

/// C = alpha·A·B + beta·C, row-major.
///
/// Fails if a view does not cover its matrix.
pub(super) fn multiply<T: Element + GemmElement>(
    ctx: &CpuCtx<'_>,
    a: &View<'_, T>,
    b: &View<'_, T>,
    (m, n, k): (usize, usize, usize),
    Scale { alpha, beta }: Scale<T>,
    c: &mut [T],
) -> Result<()> {
    let a = Matrix { data: a.data, row_stride: a.line_stride, col_stride: a.depth_stride };
    let b = Matrix { data: b.data, row_stride: b.depth_stride, col_stride: b.line_stride };
    // One piece for each thread: every piece packs the other operand again.
    let flops = 2.0 * m as f64 * n as f64 * k as f64;
    let parts = if flops < SHARED_FLOPS { 1 } else { ctx.threads };
    let Some(team) = ctx.team.filter(|_| parts > 1) else {
        return gemm_part(Product { m, n, k, alpha, a, b, beta, c });
    };
    // Columns, where rows are few or, if there are as many, sums are long: with short sums most of the time goes into
    // writing C, which goes faster row by row.
    if k >= 8 && (n >= 2 * m || n >= m && k >= 64 && c.len() > 64 * 64) {
        let width = CpuCtx::chunk(n, parts, 16);
        return gemm_by_columns(team, width, Product { m, n, k, alpha, a, b, beta, c });
    }
    let failed = Failure::default();
    ctx.split(c, CpuCtx::chunk(m, parts, 16) * n, |first, c| {
        let skip = (first / n * a.row_stride).min(a.data.len());
        let a = Matrix { data: &a.data[skip..], ..a };
        failed.note(gemm_part(Product { m: c.len() / n, n, k, alpha, a, b, beta, c }));
    });
    failed.end()
}

/// Errors of parallel pieces; the last one wins.
#[derive(Default)]
pub(super) struct Failure(Mutex<Option<Error>>);

impl Failure {
    /// Keeps the error of a piece, if it is one.
    pub(super) fn note(&self, r: Result<()>) {
        if let Err(e) = r {
            *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(e);
        }
    }
    /// The error that was kept.
    pub(super) fn end(self) -> Result<()> {
        self.0.into_inner().unwrap_or_else(PoisonError::into_inner).map_or(Ok(()), Err)
    }
}
