//! Instruction sets: one generic body compiled three times, chosen at run time.
//!
//! All unsafe code of the CPU kernels is here and in the modules below: entering a function compiled for an instruction set that was
//! detected, the registers of such a set, stores past the caches, and handing checked pointers to the `gemm` crates.

#![allow(unsafe_code)]

/// What an instruction set has of something that is there in three forms; those of x86-64 are compiled only there.
macro_rules! by_isa {
    ($isa:expr, $avx512:ident, $avx2:ident, $short:ident) => {
        match $isa.0 {
            #[cfg(target_arch = "x86_64")]
            Level::Avx512 => $avx512(),
            #[cfg(target_arch = "x86_64")]
            Level::Avx2 => $avx2(),
            _ => $short(),
        }
    };
}

pub mod channels;
pub(super) mod past;
pub mod routine;
pub mod sweep;
pub mod tile;
pub(super) mod turn;
mod vector;

use std::sync::atomic::{AtomicBool, Ordering};

use crate::base::{Code, Error, Result};

use super::Team;

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

    /// The set whose vectors are half as wide, if there is one: AVX-512 comes with AVX2 and FMA.
    pub fn narrower(self) -> Self {
        match self.0 {
            Level::Avx512 => Isa(Level::Avx2),
            _ => self,
        }
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

/// The beginning of what threads share, each of them elements of its own.
struct Shared<T>(*mut T);
// SAFETY: whoever uses the pointer in several threads keeps their elements apart.
unsafe impl<T: Send> Sync for Shared<T> {}
impl<T> Shared<T> {
    fn start(&self) -> *mut T {
        self.0
    }
}

/// Marks of a job with no more pieces lie on the stack.
const MARKS: usize = 64;

/// Calls `f(first, piece)` once for each piece of `chunk` elements of `out`, shared out among a team; `first` is the index of
/// the piece's first element.
pub(super) fn share_out<T: Send>(team: &dyn Team, out: &mut [T], chunk: usize, f: &(dyn Fn(usize, &mut [T]) + Sync)) {
    let chunk = chunk.max(1);
    let (len, pieces) = (out.len(), out.len().div_ceil(chunk));
    let (few, mut many) = ([const { AtomicBool::new(false) }; MARKS], Vec::new());
    let taken = if pieces <= MARKS {
        &few[..pieces]
    } else {
        many.resize_with(pieces, AtomicBool::default);
        &many[..]
    };
    let start = Shared(out.as_mut_ptr());
    team.run(pieces, &|i| {
        // Whatever a team does: no piece is begun twice, and none that is not there.
        if taken.get(i).is_some_and(|t| !t.swap(true, Ordering::Relaxed)) {
            let (from, to) = (i * chunk, len.min((i + 1) * chunk));
            // SAFETY: `from..to` lies within `out`, which is borrowed mutably here; pieces do not overlap, and this one has
            // just been taken, so no other reference to its elements exists.
            f(from, unsafe { std::slice::from_raw_parts_mut(start.start().add(from), to - from) });
        }
    });
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
    fn a_piece_is_done_once_whatever_the_team_does() {
        /// Calls for pieces twice, and for one that is not there.
        struct Careless;
        impl Team for Careless {
            fn run(&self, pieces: usize, job: &(dyn Fn(usize) + Sync)) {
                (0..=pieces).chain(0..pieces).for_each(job);
            }
            fn handover_s(&self) -> f64 {
                1e-6
            }
        }
        for (len, chunk) in [(0, 1), (1, 1), (10, 3), (63, 1), (64, 1), (65, 1), (1000, 7)] {
            let mut out = vec![0usize; len];
            share_out(&Careless, &mut out, chunk, &|first, piece| {
                for (i, v) in (first..).zip(piece) {
                    *v += i + 1;
                }
            });
            assert!(out.iter().zip(1..).all(|(v, i)| *v == i), "{len} {chunk}: {out:?}");
        }
    }
}
