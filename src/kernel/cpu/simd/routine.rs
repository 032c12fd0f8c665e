//! The `gemm` crates' matrix product, which is the fastest for large matrices on the best instruction set of a processor, and knows
//! no other.

#![allow(unsafe_code)]

use std::sync::atomic::{AtomicBool, Ordering};

use crate::base::{Code, Error, Result};

use super::Shared;
use crate::kernel::cpu::Team;

/// The routine of the `gemm` crates: m, n, k; dst, its column and row stride, whether it is read; lhs and rhs with their
/// strides; alpha (of dst) and beta (of the product); conjugations; threads. It prefers columns of dst that lie together.
pub type GemmRoutine<T> = unsafe fn(
    usize,
    usize,
    usize,
    *mut T,
    isize,
    isize,
    bool,
    *const T,
    isize,
    isize,
    *const T,
    isize,
    isize,
    T,
    T,
    bool,
    bool,
    bool,
    gemm_common::Parallelism,
);

/// Types that the `gemm` crates multiply.
pub trait GemmElement: super::tile::Tiled {
    /// The routine for this processor.
    fn routine() -> GemmRoutine<Self>;
}
impl GemmElement for f32 {
    fn routine() -> GemmRoutine<f32> {
        gemm_f32::gemm::f32::get_gemm_fn()
    }
}
impl GemmElement for f64 {
    fn routine() -> GemmRoutine<f64> {
        gemm_f64::gemm::f64::get_gemm_fn()
    }
}

/// A read-only matrix: element (i, j) at `data[i * row_stride + j * col_stride]`.
#[derive(Clone, Copy, Debug)]
pub struct View<'a, T> {
    /// Elements.
    pub data: &'a [T],
    /// Distance between rows.
    pub row_stride: usize,
    /// Distance between columns.
    pub col_stride: usize,
}

impl<T> View<'_, T> {
    fn covers(&self, rows: usize, cols: usize) -> bool {
        if rows == 0 || cols == 0 {
            return true;
        }
        let last = (rows - 1)
            .checked_mul(self.row_stride)
            .and_then(|r| (cols - 1).checked_mul(self.col_stride).and_then(|c| r.checked_add(c)));
        last.is_some_and(|l| l < self.data.len() && isize::try_from(l).is_ok())
    }
}

/// C = alpha·A·B + beta·C; C is row-major m×n and is not read when beta is 0.
pub struct Product<'a, T> {
    /// Rows of A and C.
    pub m: usize,
    /// Columns of B and C.
    pub n: usize,
    /// Columns of A, rows of B.
    pub k: usize,
    /// Factor of the product.
    pub alpha: T,
    /// A.
    pub a: View<'a, T>,
    /// B.
    pub b: View<'a, T>,
    /// Factor of the old C.
    pub beta: T,
    /// C.
    pub c: &'a mut [T],
}

impl<T: GemmElement> Product<'_, T> {
    fn check(&self) -> Result<()> {
        let (m, n, k) = (self.m, self.n, self.k);
        let c = View { data: &*self.c, row_stride: n, col_stride: 1 };
        if self.a.covers(m, k) && self.b.covers(k, n) && c.covers(m, n) {
            return Ok(());
        }
        Err(Error::new(Code::BufferBounds, format!("gemm {m}x{n}x{k}: an operand is shorter than its matrix")))
    }

    /// Columns `from..to` of C, which begins at `c`.
    ///
    /// # Safety
    ///
    /// The views cover their matrices (see `check`), `c` points to m·n elements, and nobody else uses these columns of it.
    unsafe fn columns(&self, c: *mut T, (from, to): (usize, usize)) {
        // Without a k the views are empty, and an offset into them would lie outside.
        let skip = if self.k == 0 { 0 } else { from * self.b.col_stride };
        // SAFETY: every element addressed lies in its slice, as the caller vouches; C overlaps neither A nor B, since it is
        // borrowed mutably; strides fit isize because the last offsets do.
        // Transposed, Cᵀ = alpha·Bᵀ·Aᵀ + beta·Cᵀ, so that the routine finds columns that lie together.
        unsafe {
            T::routine()(
                to - from,
                self.m,
                self.k,
                c.add(from),
                self.n as isize,
                1,
                self.beta != <T as super::tile::Tiled>::ZERO,
                self.b.data.as_ptr().add(skip),
                self.b.row_stride as isize,
                self.b.col_stride as isize,
                self.a.data.as_ptr(),
                self.a.row_stride as isize,
                self.a.col_stride as isize,
                self.beta,
                self.alpha,
                false,
                false,
                false,
                gemm_common::Parallelism::None,
            );
        }
    }
}

/// [`Product`] on the calling thread.
///
/// Fails if a view does not cover its matrix.
pub fn gemm_part<T: GemmElement>(p: Product<'_, T>) -> Result<()> {
    p.check()?;
    if p.m > 0 && p.n > 0 {
        let c = p.c.as_mut_ptr();
        // SAFETY: checked above; C is ours alone.
        unsafe { p.columns(c, (0, p.n)) };
    }
    Ok(())
}

/// [`Product`] by a team, which shares out the columns of C in pieces of `width`.
///
/// Fails if a view does not cover its matrix.
pub fn gemm_by_columns<T: GemmElement>(team: &dyn Team, width: usize, p: Product<'_, T>) -> Result<()> {
    p.check()?;
    if p.m == 0 || p.n == 0 {
        return Ok(());
    }
    let c = Shared(p.c.as_mut_ptr());
    let width = width.max(1);
    let taken: Vec<AtomicBool> = (0..p.n.div_ceil(width)).map(|_| AtomicBool::new(false)).collect();
    team.run(taken.len(), &|i| {
        let columns = (i * width, p.n.min((i + 1) * width));
        // Whatever a team does: no piece is begun twice.
        if !taken[i].swap(true, Ordering::Relaxed) {
            // SAFETY: checked above; pieces do not overlap, and this one has just been taken.
            unsafe { p.columns(c.start(), columns) };
        }
    });
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_views_are_refused() {
        let a = [1.0f32; 3];
        let v = View { data: &a[..], row_stride: 2, col_stride: 1 };
        let mut c = [0.0f32; 4];
        let p = Product { m: 2, n: 2, k: 2, alpha: 1.0, a: v, b: v, beta: 0.0, c: &mut c };
        assert!(gemm_part(p).is_err());
    }
}
