//! Blocks of a matrix turned in registers.
//!
//! A block is read and written in whole cache lines, each of them once: rows that lie a power of two apart share a few places of the
//! first-level cache, which would lose a line before its next element is asked for.

use bytemuck::Pod;

#[cfg(target_arch = "x86_64")]
use super::Level;
use super::{Isa, past};

/// Turns a square block: rows `x_line` bytes apart into rows `y_line` bytes apart.
type Kernel = unsafe fn(x: *const u8, x_line: usize, y: *mut u8, y_line: usize);
/// Turns so many rows and columns of one.
type Part = unsafe fn(x: *const u8, x_line: usize, y: *mut u8, y_line: usize, some: (usize, usize));

/// How elements of one size are turned.
#[derive(Clone, Copy)]
struct Square {
    /// Rows and columns.
    edge: usize,
    kernel: Kernel,
    /// For what is less than a block; None: element by element.
    part: Option<Part>,
    /// Whole blocks with stores past the caches, if a row of the block is a cache line.
    past: Option<Kernel>,
}

impl Square {
    /// For elements of so many bytes; None where plain loops are all there is.
    fn of(isa: Isa, size: usize) -> Option<Self> {
        #[cfg(target_arch = "x86_64")]
        let found = {
            let square = |edge, kernel: Kernel, part, past| Some(Square { edge, kernel, part, past });
            let part = |part: Part| Some(part);
            match (isa.0, size) {
                (Level::Avx512, 1) => square(16, x86::bytes16, part(x86::bytes16_part), None),
                (Level::Avx512, 2) => square(16, x86::halves16, part(x86::halves16_part), None),
                (Level::Avx512, 4) => square(16, x86::words16, part(x86::words16_part), Some(x86::words16_past)),
                (Level::Avx512, 8) => square(8, x86::doubles8, part(x86::doubles8_part), Some(x86::doubles8_past)),
                (Level::Avx2, 4) => square(8, x86::words8, None, None),
                (Level::Avx2, 8) => square(4, x86::doubles4, None, None),
                _ => None,
            }
        };
        #[cfg(not(target_arch = "x86_64"))]
        let found = {
            let _ = (isa, size);
            None
        };
        found
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::*;

    /// Sixteen rows of sixteen 32-bit elements: pairs of rows, fours, then quarters of registers change places twice.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl")]
    fn sixteen(mut r: [__m512i; 16]) -> [__m512i; 16] {
        let mut t = r;
        for i in 0..8 {
            t[2 * i] = _mm512_unpacklo_epi32(r[2 * i], r[2 * i + 1]);
            t[2 * i + 1] = _mm512_unpackhi_epi32(r[2 * i], r[2 * i + 1]);
        }
        for i in 0..4 {
            for half in 0..2 {
                let (a, b) = (t[4 * i + half], t[4 * i + 2 + half]);
                r[4 * i + 2 * half] = _mm512_unpacklo_epi64(a, b);
                r[4 * i + 2 * half + 1] = _mm512_unpackhi_epi64(a, b);
            }
        }
        // r[4 i + j] has in its quarter q column 4 q + j of rows 4 i to 4 i + 3.
        for j in 0..4 {
            let a = _mm512_shuffle_i32x4::<0x88>(r[j], r[4 + j]);
            let b = _mm512_shuffle_i32x4::<0x88>(r[8 + j], r[12 + j]);
            let c = _mm512_shuffle_i32x4::<0xdd>(r[j], r[4 + j]);
            let d = _mm512_shuffle_i32x4::<0xdd>(r[8 + j], r[12 + j]);
            t[j] = _mm512_shuffle_i32x4::<0x88>(a, b);
            t[4 + j] = _mm512_shuffle_i32x4::<0x88>(c, d);
            t[8 + j] = _mm512_shuffle_i32x4::<0xdd>(a, b);
            t[12 + j] = _mm512_shuffle_i32x4::<0xdd>(c, d);
        }
        t
    }

    /// Eight rows of eight 64-bit elements.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl")]
    fn eight(r: [__m512i; 8]) -> [__m512i; 8] {
        let mut t = r;
        for i in 0..4 {
            t[2 * i] = _mm512_unpacklo_epi64(r[2 * i], r[2 * i + 1]);
            t[2 * i + 1] = _mm512_unpackhi_epi64(r[2 * i], r[2 * i + 1]);
        }
        // t[2 i + j] has in its quarter q column 2 q + j of rows 2 i and 2 i + 1.
        let mut y = t;
        for j in 0..2 {
            let a = _mm512_shuffle_i64x2::<0x88>(t[j], t[2 + j]);
            let b = _mm512_shuffle_i64x2::<0x88>(t[4 + j], t[6 + j]);
            let c = _mm512_shuffle_i64x2::<0xdd>(t[j], t[2 + j]);
            let d = _mm512_shuffle_i64x2::<0xdd>(t[4 + j], t[6 + j]);
            y[j] = _mm512_shuffle_i64x2::<0x88>(a, b);
            y[2 + j] = _mm512_shuffle_i64x2::<0x88>(c, d);
            y[4 + j] = _mm512_shuffle_i64x2::<0xdd>(a, b);
            y[6 + j] = _mm512_shuffle_i64x2::<0xdd>(c, d);
        }
        y
    }

    /// Eight rows of eight 32-bit elements.
    #[inline]
    #[target_feature(enable = "avx2")]
    fn eight_words(r: [__m256i; 8]) -> [__m256i; 8] {
        let (mut t, mut u) = (r, r);
        for i in 0..4 {
            t[2 * i] = _mm256_unpacklo_epi32(r[2 * i], r[2 * i + 1]);
            t[2 * i + 1] = _mm256_unpackhi_epi32(r[2 * i], r[2 * i + 1]);
        }
        for i in 0..2 {
            for half in 0..2 {
                let (a, b) = (t[4 * i + half], t[4 * i + 2 + half]);
                u[4 * i + 2 * half] = _mm256_unpacklo_epi64(a, b);
                u[4 * i + 2 * half + 1] = _mm256_unpackhi_epi64(a, b);
            }
        }
        for j in 0..4 {
            t[j] = _mm256_permute2x128_si256::<0x20>(u[j], u[4 + j]);
            t[4 + j] = _mm256_permute2x128_si256::<0x31>(u[j], u[4 + j]);
        }
        t
    }

    /// Four rows of four 64-bit elements.
    #[inline]
    #[target_feature(enable = "avx2")]
    fn four(r: [__m256i; 4]) -> [__m256i; 4] {
        let (a, b) = (_mm256_unpacklo_epi64(r[0], r[1]), _mm256_unpackhi_epi64(r[0], r[1]));
        let (c, d) = (_mm256_unpacklo_epi64(r[2], r[3]), _mm256_unpackhi_epi64(r[2], r[3]));
        [
            _mm256_permute2x128_si256::<0x20>(a, c),
            _mm256_permute2x128_si256::<0x20>(b, d),
            _mm256_permute2x128_si256::<0x31>(a, c),
            _mm256_permute2x128_si256::<0x31>(b, d),
        ]
    }

    /// A kernel from how a row is read, how rows are turned and how one is stored. No closures: those are not compiled into a
    /// function with features of its own.
    macro_rules! kernel {
        ($name:ident, $features:literal, $edge:literal, $zero:expr, |$p:ident| $load:expr, $turn:ident, |$q:ident, $v:ident| $store:expr) => {
            /// # Safety
            ///
            /// The processor has the instructions, the block's rows can be read and written, and if stores go past the caches
            /// each row begins where a cache line does.
            #[target_feature(enable = $features)]
            pub(super) unsafe fn $name(x: *const u8, x_line: usize, y: *mut u8, y_line: usize) {
                // SAFETY: as the caller vouches.
                unsafe {
                    let mut rows = [$zero; $edge];
                    for (i, row) in rows.iter_mut().enumerate() {
                        let $p = x.add(i * x_line).cast();
                        *row = $load;
                    }
                    for (i, row) in $turn(rows).iter().enumerate() {
                        let ($q, $v) = (y.add(i * y_line).cast(), *row);
                        $store;
                    }
                }
            }
        };
    }
    /// The same of a part of a block; `$load` and `$store` get a mask of elements.
    macro_rules! part {
        ($name:ident, $mask:ty, $edge:literal, |$m:ident, $p:ident| $load:expr, $turn:ident, |$q:ident, $n:ident, $v:ident| $store:expr) => {
            /// # Safety
            ///
            /// The processor has the instructions; `rows` rows of `cols` elements can be read, `cols` rows of `rows` elements
            /// be written, neither more than the edge.
            #[target_feature(enable = "avx512f,avx512bw,avx512vl")]
            pub(super) unsafe fn $name(
                x: *const u8,
                x_line: usize,
                y: *mut u8,
                y_line: usize,
                (rows, cols): (usize, usize),
            ) {
                let ($m, $n) = (((1u32 << cols) - 1) as $mask, ((1u32 << rows) - 1) as $mask);
                // SAFETY: as the caller vouches; what a mask leaves out is not touched.
                unsafe {
                    let mut all = [_mm512_setzero_si512(); $edge];
                    for (i, row) in all.iter_mut().enumerate().take(rows) {
                        let $p = x.add(i * x_line).cast();
                        *row = $load;
                    }
                    for (i, row) in $turn(all).iter().enumerate().take(cols) {
                        let ($q, $v) = (y.add(i * y_line).cast(), *row);
                        $store;
                    }
                }
            }
        };
    }
    kernel!(
        words16,
        "avx512f,avx512bw,avx512vl",
        16,
        _mm512_setzero_si512(),
        |p| _mm512_loadu_si512(p),
        sixteen,
        |p, v| _mm512_storeu_si512(p, v)
    );
    kernel!(
        words16_past,
        "avx512f,avx512bw,avx512vl",
        16,
        _mm512_setzero_si512(),
        |p| _mm512_loadu_si512(p),
        sixteen,
        |p, v| _mm512_stream_si512(p, v)
    );
    kernel!(
        doubles8,
        "avx512f,avx512bw,avx512vl",
        8,
        _mm512_setzero_si512(),
        |p| _mm512_loadu_si512(p),
        eight,
        |p, v| _mm512_storeu_si512(p, v)
    );
    kernel!(
        doubles8_past,
        "avx512f,avx512bw,avx512vl",
        8,
        _mm512_setzero_si512(),
        |p| _mm512_loadu_si512(p),
        eight,
        |p, v| _mm512_stream_si512(p, v)
    );
    kernel!(
        halves16,
        "avx512f,avx512bw,avx512vl",
        16,
        _mm512_setzero_si512(),
        |p| _mm512_cvtepu16_epi32(_mm256_loadu_si256(p)),
        sixteen,
        |p, v| _mm256_storeu_si256(p, _mm512_cvtepi32_epi16(v))
    );
    kernel!(
        bytes16,
        "avx512f,avx512bw,avx512vl",
        16,
        _mm512_setzero_si512(),
        |p| _mm512_cvtepu8_epi32(_mm_loadu_si128(p)),
        sixteen,
        |p, v| _mm_storeu_si128(p, _mm512_cvtepi32_epi8(v))
    );
    kernel!(words8, "avx2", 8, _mm256_setzero_si256(), |p| _mm256_loadu_si256(p), eight_words, |p, v| {
        _mm256_storeu_si256(p, v)
    });
    kernel!(doubles4, "avx2", 4, _mm256_setzero_si256(), |p| _mm256_loadu_si256(p), four, |p, v| _mm256_storeu_si256(
        p, v
    ));
    part!(words16_part, __mmask16, 16, |m, p| _mm512_maskz_loadu_epi32(m, p), sixteen, |q, n, v| {
        _mm512_mask_storeu_epi32(q, n, v)
    });
    part!(doubles8_part, __mmask8, 8, |m, p| _mm512_maskz_loadu_epi64(m, p), eight, |q, n, v| {
        _mm512_mask_storeu_epi64(q, n, v)
    });
    part!(
        halves16_part,
        __mmask16,
        16,
        |m, p| _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(m, p)),
        sixteen,
        |q, n, v| _mm256_mask_storeu_epi16(q, n, _mm512_cvtepi32_epi16(v))
    );
    part!(bytes16_part, __mmask16, 16, |m, p| _mm512_cvtepu8_epi32(_mm_maskz_loadu_epi8(m, p)), sixteen, |q, n, v| {
        _mm_mask_storeu_epi8(q, n, _mm512_cvtepi32_epi8(v))
    });
}

/// Distances of rows, in elements.
#[derive(Clone, Copy, Debug)]
pub(in crate::kernel::cpu) struct Lines {
    /// From a row of x to the next.
    pub(in crate::kernel::cpu) x: usize,
    /// From a row of y to the next.
    pub(in crate::kernel::cpu) y: usize,
}

/// Rows and columns of x whose blocks are turned one after the other, along the rows: their lines stay in the first-level cache and
/// few pages are open at a time.
const NEAR: (usize, usize) = (32, 256);
/// The same where stores go past the caches: one row of blocks, as long as it is.
const FAR: (usize, usize) = (16, usize::MAX);

/// y\[j · lines.y + i\] = x\[i · lines.x + j\] for i < rows, j < cols. Panics if anything does not lie in its slice, or if rows of y
/// overlap.
pub(in crate::kernel::cpu) fn turn<T: Pod>(
    isa: Isa,
    x: &[T],
    (rows, cols): (usize, usize),
    lines: Lines,
    y: &mut [T],
    far: bool,
) {
    if rows == 0 || cols == 0 {
        return;
    }
    let end = |count: usize, line: usize, len: usize| (count - 1).checked_mul(line).and_then(|v| v.checked_add(len));
    assert!(end(rows, lines.x, cols).is_some_and(|e| e <= x.len()), "{rows}x{cols}, {lines:?}: x has {}", x.len());
    assert!(end(cols, lines.y, rows).is_some_and(|e| e <= y.len()), "{rows}x{cols}, {lines:?}: y has {}", y.len());
    assert!(lines.y >= rows || cols == 1, "rows of y overlap");
    let size = size_of::<T>();
    let Some(square) = Square::of(isa, size) else { return plain(x, (0..rows, 0..cols), lines, y) };
    let edge = square.edge;
    let aligned = y.as_ptr().align_offset(64) == 0 && (lines.y * size).is_multiple_of(64);
    let past = square.past.filter(|_| far && aligned);
    // Blocks at the right and lower edges are parts, if there are kernels for those.
    let blocks = |count: usize| if square.part.is_some() { count } else { count / edge * edge };
    let (high, wide) = (blocks(rows), blocks(cols));
    let (down, along) = if past.is_some() { FAR } else { NEAR };
    for j0 in (0..wide).step_by(along) {
        for i0 in (0..high).step_by(down) {
            for i in (i0..high.min(i0 + down)).step_by(edge) {
                for j in (j0..wide.min(j0.saturating_add(along))).step_by(edge) {
                    let some = (edge.min(rows - i), edge.min(cols - j));
                    let from = x[i * lines.x + j..].as_ptr().cast();
                    let to = y[j * lines.y + i..].as_mut_ptr().cast();
                    let (x_line, y_line) = (lines.x * size, lines.y * size);
                    // SAFETY: the block's rows lie within both matrices, which were checked to lie in their slices; a square exists
                    // only for what the processor has; where stores go past the caches, y and its rows begin with a line, and a
                    // block's edge is one.
                    unsafe {
                        match square.part.filter(|_| some != (edge, edge)) {
                            Some(part) => part(from, x_line, to, y_line, some),
                            None => past.unwrap_or(square.kernel)(from, x_line, to, y_line),
                        }
                    }
                }
            }
        }
    }
    if past.is_some() {
        past::fence();
    }
    plain(x, (high..rows, 0..wide), lines, y);
    plain(x, (0..rows, wide..cols), lines, y);
}

/// The same element by element for some rows and columns.
fn plain<T: Copy>(x: &[T], (rows, cols): (std::ops::Range<usize>, std::ops::Range<usize>), lines: Lines, y: &mut [T]) {
    const BLOCK: usize = 32;
    for j0 in cols.clone().step_by(BLOCK) {
        for i0 in rows.clone().step_by(BLOCK) {
            let end = rows.end.min(i0 + BLOCK);
            for j in j0..cols.end.min(j0 + BLOCK) {
                let to = &mut y[j * lines.y + i0..j * lines.y + end];
                for (to, i) in to.iter_mut().zip(i0..end) {
                    *to = x[i * lines.x + j];
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn agrees<T: Pod + PartialEq + std::fmt::Debug>(of: impl Fn(usize) -> T) {
        let isas = ["baseline", "avx2", "avx512"].map(|name| Isa::capped(name).unwrap());
        for (rows, cols) in
            [(0usize, 3usize), (1, 1), (3, 70), (16, 16), (17, 33), (64, 64), (65, 130), (100, 15), (4, 4), (128, 8)]
        {
            for (x_more, y_more, begin, far) in [(0, 0, 0, false), (3, 5, 1, true), (0, 0, 0, true), (16, 64, 0, true)]
            {
                let lines = Lines { x: cols + x_more, y: (rows + y_more).next_multiple_of(if far { 64 } else { 1 }) };
                let x: Vec<T> = (0..rows * lines.x + 1).map(|i| of(i * 7 + i / 3)).collect();
                for isa in isas {
                    let mut room = vec![of(1); cols * lines.y + 200];
                    let start = room.as_ptr().align_offset(64).min(64) + begin;
                    turn(isa, &x, (rows, cols), lines, &mut room[start..], far);
                    for (at, v) in room.iter().enumerate() {
                        let (j, i) = match at.checked_sub(start) {
                            Some(at) => (at / lines.y.max(1), at % lines.y.max(1)),
                            None => (cols, 0),
                        };
                        let want = if j < cols && i < rows { x[i * lines.x + j] } else { of(1) };
                        assert_eq!(*v, want, "{rows}x{cols} {lines:?} {} ({i}, {j})", isa.name());
                    }
                }
            }
        }
    }

    #[test]
    fn every_block_is_turned_and_nothing_beside_it() {
        agrees(|i| i as u8);
        agrees(|i| i as u16);
        agrees(|i| i as u32);
        agrees(|i| i as u64);
    }
}
