//! Instruction sets: one generic body compiled three times, chosen at run time; and the call into the `gemm` crates.
//!
//! All unsafe code of the CPU kernels is here: entering a function compiled for an instruction set that was detected,
//! and handing checked pointers to `gemm`.

#![allow(unsafe_code)]

use crate::base::{Code, Error, Result};

/// An instruction set that this processor has. Values exist only for what was detected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Isa(Level);

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Level {
    Baseline,
    Avx2,
    Avx512,
}

impl Isa {
    /// What every processor of the target has.
    pub const BASELINE: Isa = Isa(Level::Baseline);

    /// The best set of this processor.
    pub fn detect() -> Self {
        #[cfg(target_arch = "x86_64")]
        {
            if is_x86_feature_detected!("avx512f")
                && is_x86_feature_detected!("avx512vl")
                && is_x86_feature_detected!("avx512bw")
                && is_x86_feature_detected!("avx512dq")
                && is_x86_feature_detected!("fma")
            {
                return Isa(Level::Avx512);
            }
            if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
                return Isa(Level::Avx2);
            }
        }
        Isa::BASELINE
    }

    /// The best set of this processor, but not above the named one (`GPUCTL_CPU_ISA`).
    pub fn capped(name: &str) -> Result<Self> {
        let cap = match name {
            "baseline" => Level::Baseline,
            "avx2" => Level::Avx2,
            "avx512" => Level::Avx512,
            other => {
                return Err(Error::new(
                    Code::BadArgument,
                    format!("GPUCTL_CPU_ISA='{other}': expected baseline, avx2 or avx512"),
                ));
            }
        };
        Ok(Isa(cap.min(Self::detect().0)))
    }

    /// `baseline`, `avx2` or `avx512`.
    pub const fn name(self) -> &'static str {
        match self.0 {
            Level::Baseline => "baseline",
            Level::Avx2 => "avx2",
            Level::Avx512 => "avx512",
        }
    }
}

/// How a generic body multiplies and adds, and whether it uses the standard library's scalar functions.
pub trait Style: Copy + Send + Sync + 'static {
    /// Fused multiply-add exists as an instruction.
    const FMA: bool;
    /// Use `std`'s scalar functions: the textbook form.
    const TEXTBOOK: bool;
}

/// Vector code with fused multiply-add.
#[derive(Clone, Copy, Debug)]
pub struct Fused;
/// Vector code without it.
#[derive(Clone, Copy, Debug)]
pub struct Plain;
/// Scalar code as in a textbook.
#[derive(Clone, Copy, Debug)]
pub struct Textbook;

impl Style for Fused {
    const FMA: bool = true;
    const TEXTBOOK: bool = false;
}
impl Style for Plain {
    const FMA: bool = cfg!(target_arch = "aarch64");
    const TEXTBOOK: bool = false;
}
impl Style for Textbook {
    const FMA: bool = false;
    const TEXTBOOK: bool = true;
}

/// A piece of work whose body is compiled once per instruction set. Mark `run` `#[inline(always)]`.
pub trait Job {
    /// Result.
    type Out;
    /// The body.
    fn run<S: Style>(self) -> Self::Out;
}

/// Runs a job with the instruction set.
pub fn dispatch<J: Job>(isa: Isa, job: J) -> J::Out {
    #[cfg(target_arch = "x86_64")]
    {
        #[target_feature(enable = "avx512f,avx512vl,avx512bw,avx512dq,avx2,fma,f16c")]
        fn avx512<J: Job>(job: J) -> J::Out {
            job.run::<Fused>()
        }
        #[target_feature(enable = "avx2,fma")]
        fn avx2<J: Job>(job: J) -> J::Out {
            job.run::<Fused>()
        }
        match isa.0 {
            // SAFETY: an `Isa` of this level exists only if `detect` saw these features on this processor (every
            // processor with AVX-512 has F16C).
            Level::Avx512 => return unsafe { avx512(job) },
            // SAFETY: as above.
            Level::Avx2 => return unsafe { avx2(job) },
            Level::Baseline => {}
        }
    }
    let _ = isa;
    job.run::<Plain>()
}

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
pub trait GemmElement: bytemuck::Pod + PartialEq + Send + Sync {
    /// 0.
    const ZERO: Self;
    /// The routine for this processor.
    fn routine() -> GemmRoutine<Self>;
}
impl GemmElement for f32 {
    const ZERO: f32 = 0.0;
    fn routine() -> GemmRoutine<f32> {
        gemm_f32::gemm::f32::get_gemm_fn()
    }
}
impl GemmElement for f64 {
    const ZERO: f64 = 0.0;
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

/// C = alpha·A·B + beta·C on the calling thread; C is row-major m×n and is not read when beta is 0.
///
/// Fails if a view does not cover its matrix.
#[allow(clippy::too_many_arguments, reason = "BLAS's own list of arguments")]
pub fn gemm_part<T: GemmElement>(
    m: usize,
    n: usize,
    k: usize,
    alpha: T,
    a: View<'_, T>,
    b: View<'_, T>,
    beta: T,
    c: &mut [T],
) -> Result<()> {
    let c_view = View { data: &*c, row_stride: n, col_stride: 1 };
    if !a.covers(m, k) || !b.covers(k, n) || !c_view.covers(m, n) {
        return Err(Error::new(Code::BufferBounds, format!("gemm {m}x{n}x{k}: an operand is shorter than its matrix")));
    }
    if m == 0 || n == 0 {
        return Ok(());
    }
    // SAFETY: every element addressed lies in its slice, as checked above; C is borrowed mutably and so overlaps
    // neither A nor B; strides fit isize because the last offsets do.
    // Transposed, Cᵀ = alpha·Bᵀ·Aᵀ + beta·Cᵀ, so that the routine finds columns that lie together.
    unsafe {
        T::routine()(
            n,
            m,
            k,
            c.as_mut_ptr(),
            n as isize,
            1,
            beta != T::ZERO,
            b.data.as_ptr(),
            b.row_stride as isize,
            b.col_stride as isize,
            a.data.as_ptr(),
            a.row_stride as isize,
            a.col_stride as isize,
            beta,
            alpha,
            false,
            false,
            false,
            gemm_common::Parallelism::None,
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn isa_is_never_above_the_processor() {
        assert!(Isa::capped("avx512").unwrap() <= Isa::detect());
        assert_eq!(Isa::capped("baseline").unwrap(), Isa::BASELINE);
        assert!(Isa::capped("neon9").is_err());
    }

    #[test]
    fn short_views_are_refused() {
        let a = [1.0f32; 3];
        let v = View { data: &a[..], row_stride: 2, col_stride: 1 };
        let mut c = [0.0f32; 4];
        assert!(gemm_part(2, 2, 2, 1.0, v, v, 0.0, &mut c).is_err());
    }
}
