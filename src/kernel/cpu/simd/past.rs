//! Results that are written past the caches.
//!
//! A store to memory first reads the line that it writes into, so a loop over two operands moves four times its length where three
//! would do. Stores past the caches save that. They are worth it where the result is larger than the last-level cache, whose next
//! reader would not find it there anyway.

use super::{Isa, Level};

/// Bytes that are computed in the first-level cache and then written out: longer blocks leave the memory idle meanwhile.
const BLOCK: usize = 1024;
/// Bytes of a line, which is written as a whole.
const LINE: usize = 64;
/// Results from here on are larger than a core's share of most last-level caches.
const FAR: usize = 32 << 20;

/// True if a result of so many bytes is better written past the caches.
pub(in crate::kernel::cpu) fn is_far(isa: Isa, bytes: usize) -> bool {
    cfg!(target_arch = "x86_64") && isa.0 >= Level::Avx2 && bytes >= FAR
}

/// A block that begins with a line.
#[repr(align(64))]
struct Aligned([u8; BLOCK]);

/// Fills `y`, piece by piece: `f(at, piece)` computes the bytes from `at` on. Pieces begin at multiples of 64 bytes in memory but for the
/// first one, which ends there, and so do elements of any size in them.
pub(in crate::kernel::cpu) fn fill(isa: Isa, y: &mut [u8], mut f: impl FnMut(usize, &mut [u8])) {
    let head = y.as_ptr().align_offset(LINE).min(y.len());
    let lines = head + (y.len() - head) / LINE * LINE;
    if head > 0 {
        f(0, &mut y[..head]);
    }
    let mut block = Aligned([0; BLOCK]);
    let mut at = head;
    while at < lines {
        let len = BLOCK.min(lines - at);
        let block = &mut block.0[..len];
        f(at, block);
        store(isa, block, &mut y[at..at + len]);
        at += len;
    }
    if lines < y.len() {
        f(lines, &mut y[lines..]);
    }
    fence();
}

/// Copies whole lines to where a line begins, past the caches.
fn store(isa: Isa, from: &[u8], to: &mut [u8]) {
    assert!(from.len() == to.len() && from.len().is_multiple_of(LINE) && to.as_ptr().align_offset(LINE) == 0);
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_mm256_loadu_si256, _mm256_stream_si256, _mm512_loadu_si512, _mm512_stream_si512};
        #[target_feature(enable = "avx512f")]
        fn avx512(from: &[u8], to: &mut [u8]) {
            for (from, to) in from.chunks_exact(LINE).zip(to.chunks_exact_mut(LINE)) {
                // SAFETY: both are 64 bytes long, and `to` begins at a multiple of 64, as `store` has checked.
                unsafe { _mm512_stream_si512(to.as_mut_ptr().cast(), _mm512_loadu_si512(from.as_ptr().cast())) }
            }
        }
        #[target_feature(enable = "avx2")]
        fn avx2(from: &[u8], to: &mut [u8]) {
            for (from, to) in from.chunks_exact(LINE / 2).zip(to.chunks_exact_mut(LINE / 2)) {
                // SAFETY: both are 32 bytes long, and `to` begins at a multiple of 32, as `store` has checked.
                unsafe { _mm256_stream_si256(to.as_mut_ptr().cast(), _mm256_loadu_si256(from.as_ptr().cast())) }
            }
        }
        match isa.0 {
            // SAFETY: an `Isa` of this level exists only where these instructions do.
            Level::Avx512 => return unsafe { avx512(from, to) },
            // SAFETY: as above.
            Level::Avx2 => return unsafe { avx2(from, to) },
            Level::Baseline => {}
        }
    }
    let _ = isa;
    to.copy_from_slice(from);
}

/// Such stores are seen by others in no order of their own: what follows this is seen after them.
pub(super) fn fence() {
    #[cfg(target_arch = "x86_64")]
    {
        // SAFETY: every processor of the target has it (SSE).
        unsafe { std::arch::x86_64::_mm_sfence() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_is_computed_once_wherever_the_result_begins() {
        let mut room = vec![0u8; 5000];
        for isa in [Isa::BASELINE, Isa::capped("avx2").unwrap(), Isa::detect()] {
            for (begin, len) in [(0, 0), (1, 5), (8, 3000), (3, 64), (63, 1025), (0, 4096), (17, 4900), (64, 1088)] {
                room.fill(0);
                let mut times = vec![0u8; len];
                fill(isa, &mut room[begin..begin + len], |at, piece| {
                    for (i, b) in (at..).zip(piece) {
                        *b = (i % 251) as u8 + 1;
                        times[i] += 1;
                    }
                });
                assert!(times.iter().all(|t| *t == 1), "{begin} {len}");
                let got = room[begin..begin + len].iter().enumerate().all(|(i, b)| *b == (i % 251) as u8 + 1);
                assert!(got && room[..begin].iter().chain(&room[begin + len..]).all(|b| *b == 0), "{begin} {len}");
            }
        }
        assert!(!is_far(Isa::detect(), FAR - 1) && !is_far(Isa::BASELINE, usize::MAX));
    }
}
