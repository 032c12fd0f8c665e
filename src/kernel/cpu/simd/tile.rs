//! Tiles of a matrix product: sums that stay in registers while rows of B pass by, compiled for each instruction set.
//!
//! A tile has a few rows and one, two or four vectors of columns. For every depth p it multiplies each row's element of A with the
//! vectors of B's row p. The element of A is loaded into all lanes, so that A can lie in any way; B's columns lie together.

#![allow(unsafe_code)]

use std::marker::PhantomData;

use super::{Isa, Level};

/// A vector register of numbers.
trait Vector: Copy {
    type E: Copy;
    const LANES: usize;
    /// # Safety
    /// The processor has the vector's instruction set; so for all functions here.
    unsafe fn zero() -> Self;
    /// # Safety
    /// One element can be read at `p`.
    unsafe fn splat(p: *const Self::E) -> Self;
    /// # Safety
    /// `LANES` elements can be read at `p`.
    unsafe fn load(p: *const Self::E) -> Self;
    /// # Safety
    /// `LANES` elements can be written at `p`.
    unsafe fn store(self, p: *mut Self::E);
    /// self · b + c.
    ///
    /// # Safety
    /// As for all.
    unsafe fn multiply_add(self, b: Self, c: Self) -> Self;
    /// # Safety
    /// As for all.
    unsafe fn add(self, b: Self) -> Self;
}

/// Asks for the cache line at `p`; any address will do.
#[inline(always)]
fn ask<T>(p: *const T) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: every x86-64 processor has the instruction, which changes nothing and ignores what is no address.
    unsafe {
        std::arch::x86_64::_mm_prefetch(p.cast(), std::arch::x86_64::_MM_HINT_T0);
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = p;
}

#[cfg(target_arch = "x86_64")]
macro_rules! vector {
    ($vector:ident, $e:ident, $lanes:literal, $zero:ident, $splat:ident, $load:ident, $store:ident, $fma:ident, $add:ident) => {
        impl Vector for std::arch::x86_64::$vector {
            type E = $e;
            const LANES: usize = $lanes;
            #[inline(always)]
            unsafe fn zero() -> Self {
                // SAFETY: the caller vouches for the instruction set.
                unsafe { std::arch::x86_64::$zero() }
            }
            #[inline(always)]
            unsafe fn splat(p: *const $e) -> Self {
                // SAFETY: the caller vouches for it and for `p`.
                unsafe { std::arch::x86_64::$splat(p.read()) }
            }
            #[inline(always)]
            unsafe fn load(p: *const $e) -> Self {
                // SAFETY: as above; the instruction takes any address.
                unsafe { std::arch::x86_64::$load(p) }
            }
            #[inline(always)]
            unsafe fn store(self, p: *mut $e) {
                // SAFETY: as above.
                unsafe { std::arch::x86_64::$store(p, self) }
            }
            #[inline(always)]
            unsafe fn multiply_add(self, b: Self, c: Self) -> Self {
                // SAFETY: the caller vouches for the instruction set.
                unsafe { std::arch::x86_64::$fma(self, b, c) }
            }
            #[inline(always)]
            unsafe fn add(self, b: Self) -> Self {
                // SAFETY: as above.
                unsafe { std::arch::x86_64::$add(self, b) }
            }
        }
    };
}
#[cfg(target_arch = "x86_64")]
vector!(
    __m512,
    f32,
    16,
    _mm512_setzero_ps,
    _mm512_set1_ps,
    _mm512_loadu_ps,
    _mm512_storeu_ps,
    _mm512_fmadd_ps,
    _mm512_add_ps
);
#[cfg(target_arch = "x86_64")]
vector!(
    __m512d,
    f64,
    8,
    _mm512_setzero_pd,
    _mm512_set1_pd,
    _mm512_loadu_pd,
    _mm512_storeu_pd,
    _mm512_fmadd_pd,
    _mm512_add_pd
);
#[cfg(target_arch = "x86_64")]
vector!(
    __m256,
    f32,
    8,
    _mm256_setzero_ps,
    _mm256_set1_ps,
    _mm256_loadu_ps,
    _mm256_storeu_ps,
    _mm256_fmadd_ps,
    _mm256_add_ps
);
#[cfg(target_arch = "x86_64")]
vector!(
    __m256d,
    f64,
    4,
    _mm256_setzero_pd,
    _mm256_set1_pd,
    _mm256_loadu_pd,
    _mm256_storeu_pd,
    _mm256_fmadd_pd,
    _mm256_add_pd
);

/// 16 bytes of numbers, which every processor of the target has registers for.
#[derive(Clone, Copy)]
struct Short<T, const N: usize>([T; N]);

macro_rules! short {
    ($e:ident, $lanes:literal) => {
        impl Vector for Short<$e, $lanes> {
            type E = $e;
            const LANES: usize = $lanes;
            #[inline(always)]
            unsafe fn zero() -> Self {
                Short([0.0; $lanes])
            }
            #[inline(always)]
            unsafe fn splat(p: *const $e) -> Self {
                // SAFETY: the caller vouches for `p`.
                Short([unsafe { p.read() }; $lanes])
            }
            #[inline(always)]
            unsafe fn load(p: *const $e) -> Self {
                // SAFETY: the caller vouches for so many elements.
                Short(unsafe { p.cast::<[$e; $lanes]>().read() })
            }
            #[inline(always)]
            unsafe fn store(self, p: *mut $e) {
                // SAFETY: as above.
                unsafe { p.cast::<[$e; $lanes]>().write(self.0) }
            }
            #[inline(always)]
            unsafe fn multiply_add(self, b: Self, c: Self) -> Self {
                let one = |i: usize| {
                    // Fused where that is an instruction and not a call.
                    if cfg!(target_arch = "aarch64") {
                        self.0[i].mul_add(b.0[i], c.0[i])
                    } else {
                        self.0[i] * b.0[i] + c.0[i]
                    }
                };
                Short(std::array::from_fn(one))
            }
            #[inline(always)]
            unsafe fn add(self, b: Self) -> Self {
                Short(std::array::from_fn(|i| self.0[i] + b.0[i]))
            }
        }
    };
}
short!(f32, 4);
short!(f64, 2);

/// Addresses and distances of a tile, in elements.
struct Raw<T> {
    depth: usize,
    a: *const T,
    a_line: usize,
    a_depth: usize,
    b: *const T,
    b_depth: usize,
    c: *mut T,
    c_line: usize,
    /// C is added to; otherwise it is not read.
    add: bool,
}

/// From so many depths on a tile takes longer than memory needs to answer.
const FAR: usize = 32;

/// Rows × vectors of C.
///
/// # Safety
///
/// The processor has the vector's instruction set, and all elements that `t` speaks of lie in memory of the caller.
#[inline(always)]
unsafe fn tile<V: Vector, const ROWS: usize, const VECTORS: usize>(t: &Raw<V::E>) {
    // SAFETY: every address is one that the caller vouches for: rows below ROWS, depths below `depth`, columns below
    // VECTORS · LANES; the last step of `a` and `b` ends at most one step behind and is not read there.
    unsafe {
        let mut sums = [[V::zero(); VECTORS]; ROWS];
        let (mut a, mut b) = (t.a, t.b);
        if t.depth >= FAR {
            // C comes while the sums are made.
            for i in 0..ROWS {
                for j in (0..VECTORS * V::LANES * size_of::<V::E>()).step_by(64) {
                    ask(t.c.wrapping_add(i * t.c_line).wrapping_byte_add(j));
                }
            }
        }
        for _ in 0..t.depth {
            let mut row = [V::zero(); VECTORS];
            for (j, v) in row.iter_mut().enumerate() {
                *v = V::load(b.add(j * V::LANES));
            }
            for (i, sums) in sums.iter_mut().enumerate() {
                let factor = V::splat(a.add(i * t.a_line));
                for (sum, v) in sums.iter_mut().zip(row) {
                    *sum = factor.multiply_add(v, *sum);
                }
            }
            a = a.wrapping_add(t.a_depth);
            b = b.wrapping_add(t.b_depth);
        }
        for (i, sums) in sums.iter().enumerate() {
            for (j, sum) in sums.iter().enumerate() {
                let c = t.c.add(i * t.c_line + j * V::LANES);
                if t.add { sum.add(V::load(c)).store(c) } else { sum.store(c) }
            }
        }
    }
}

/// A vector of i32 whose elements are multiplied in a way of its own.
#[cfg(target_arch = "x86_64")]
macro_rules! int_vector {
    ($(#[$doc:meta])* $name:ident, $vector:ident, $lanes:literal, $zero:ident, $splat:ident, $load:ident, $store:ident, $add:ident,
     |$a:ident, $b:ident, $c:ident| $product:expr) => {
        $(#[$doc])*
        #[derive(Clone, Copy)]
        struct $name(std::arch::x86_64::$vector);
        impl Vector for $name {
            type E = i32;
            const LANES: usize = $lanes;
            #[inline(always)]
            unsafe fn zero() -> Self {
                // SAFETY: the caller vouches for the instruction set.
                $name(unsafe { std::arch::x86_64::$zero() })
            }
            #[inline(always)]
            unsafe fn splat(p: *const i32) -> Self {
                // SAFETY: the caller vouches for it and for `p`.
                $name(unsafe { std::arch::x86_64::$splat(p.read()) })
            }
            #[inline(always)]
            unsafe fn load(p: *const i32) -> Self {
                // SAFETY: as above; the instruction takes any address.
                $name(unsafe { std::arch::x86_64::$load(p.cast()) })
            }
            #[inline(always)]
            unsafe fn store(self, p: *mut i32) {
                // SAFETY: as above.
                unsafe { std::arch::x86_64::$store(p.cast(), self.0) }
            }
            #[inline(always)]
            unsafe fn multiply_add(self, b: Self, c: Self) -> Self {
                use std::arch::x86_64::*;
                let ($a, $b, $c) = (self.0, b.0, c.0);
                // SAFETY: the caller vouches for the instruction set.
                $name(unsafe { $product })
            }
            #[inline(always)]
            unsafe fn add(self, b: Self) -> Self {
                // SAFETY: as above.
                $name(unsafe { std::arch::x86_64::$add(self.0, b.0) })
            }
        }
    };
}
#[cfg(target_arch = "x86_64")]
int_vector!(
    Ints512,
    __m512i,
    16,
    _mm512_setzero_si512,
    _mm512_set1_epi32,
    _mm512_loadu_si512,
    _mm512_storeu_si512,
    _mm512_add_epi32,
    |a, b, c| _mm512_add_epi32(c, _mm512_mullo_epi32(a, b))
);
#[cfg(target_arch = "x86_64")]
int_vector!(
    /// Elements are two i16, whose products are added.
    Pairs512, __m512i, 16, _mm512_setzero_si512, _mm512_set1_epi32, _mm512_loadu_si512, _mm512_storeu_si512,
    _mm512_add_epi32, |a, b, c| _mm512_add_epi32(c, _mm512_madd_epi16(a, b)));
#[cfg(target_arch = "x86_64")]
int_vector!(
    /// Elements are four u8 of A and four i8 of B, whose products are added.
    Quads512, __m512i, 16, _mm512_setzero_si512, _mm512_set1_epi32, _mm512_loadu_si512, _mm512_storeu_si512,
    _mm512_add_epi32, |a, b, c| _mm512_dpbusd_epi32(c, a, b));
#[cfg(target_arch = "x86_64")]
int_vector!(
    Ints256,
    __m256i,
    8,
    _mm256_setzero_si256,
    _mm256_set1_epi32,
    _mm256_loadu_si256,
    _mm256_storeu_si256,
    _mm256_add_epi32,
    |a, b, c| _mm256_add_epi32(c, _mm256_mullo_epi32(a, b))
);
#[cfg(target_arch = "x86_64")]
int_vector!(
    /// As [`Pairs512`].
    Pairs256, __m256i, 8, _mm256_setzero_si256, _mm256_set1_epi32, _mm256_loadu_si256, _mm256_storeu_si256,
    _mm256_add_epi32, |a, b, c| _mm256_add_epi32(c, _mm256_madd_epi16(a, b)));

/// Two i16 in an i32, the first in its low half.
fn pair(first: i16, second: i16) -> i32 {
    i32::from(first as u16) | i32::from(second) << 16
}
/// Σ of the products of two pairs; wraps.
#[inline(always)]
fn pair_product(a: i32, b: i32) -> i32 {
    let (low, high) = (i32::from(a as i16) * i32::from(b as i16), (a >> 16) * (b >> 16));
    low.wrapping_add(high)
}

macro_rules! short_ints {
    ($(#[$doc:meta])* $name:ident, |$a:ident, $b:ident| $product:expr) => {
        $(#[$doc])*
        #[derive(Clone, Copy)]
        struct $name([i32; 4]);
        impl Vector for $name {
            type E = i32;
            const LANES: usize = 4;
            #[inline(always)]
            unsafe fn zero() -> Self {
                $name([0; 4])
            }
            #[inline(always)]
            unsafe fn splat(p: *const i32) -> Self {
                // SAFETY: the caller vouches for `p`.
                $name([unsafe { p.read() }; 4])
            }
            #[inline(always)]
            unsafe fn load(p: *const i32) -> Self {
                // SAFETY: the caller vouches for so many elements.
                $name(unsafe { p.cast::<[i32; 4]>().read() })
            }
            #[inline(always)]
            unsafe fn store(self, p: *mut i32) {
                // SAFETY: as above.
                unsafe { p.cast::<[i32; 4]>().write(self.0) }
            }
            #[inline(always)]
            unsafe fn multiply_add(self, b: Self, c: Self) -> Self {
                let one = |i: usize| {
                    let ($a, $b) = (self.0[i], b.0[i]);
                    c.0[i].wrapping_add($product)
                };
                $name(std::array::from_fn(one))
            }
            #[inline(always)]
            unsafe fn add(self, b: Self) -> Self {
                $name(std::array::from_fn(|i| self.0[i].wrapping_add(b.0[i])))
            }
        }
    };
}
short_ints!(ShortInts, |a, b| a.wrapping_mul(b));
short_ints!(
    /// As [`Pairs512`].
    ShortPairs, |a, b| pair_product(a, b));

type Kernel<T> = unsafe fn(&Raw<T>);

/// The kernels of an instruction set.
#[derive(Clone, Copy)]
pub struct Set<T> {
    /// Rows of the largest tile of one or two vectors.
    pub rows: usize,
    /// Rows of the largest tile of four.
    pub wide_rows: usize,
    /// Elements of a vector.
    pub lanes: usize,
    pick: fn(usize, usize) -> Kernel<T>,
}

/// Elements of the largest tile.
pub const LARGEST: usize = 12 * 2 * 16;

macro_rules! set {
    ($name:ident, $vector:ty, $e:ident, $($features:literal)?, rows $($row:literal)*, wide $($wide:literal)*) => {
        fn $name() -> Set<$e> {
            $(#[target_feature(enable = $features)])?
            unsafe fn kernel<const ROWS: usize, const VECTORS: usize>(t: &Raw<$e>) {
                // SAFETY: the caller vouches for the instruction set and for `t`.
                unsafe { tile::<$vector, ROWS, VECTORS>(t) }
            }
            fn pick(rows: usize, vectors: usize) -> Kernel<$e> {
                match (rows, vectors) {
                    $(($row, 1) => kernel::<$row, 1>,)*
                    $(($row, 2) => kernel::<$row, 2>,)*
                    $(($wide, 4) => kernel::<$wide, 4>,)*
                    _ => unreachable!("no tile of {rows} rows and {vectors} vectors"),
                }
            }
            Set { rows: [$($row),*].len(), wide_rows: [$($wide),*].len(), lanes: <$vector>::LANES, pick }
        }
    };
}
#[cfg(target_arch = "x86_64")]
set!(avx512_f32, std::arch::x86_64::__m512, f32, "avx512f,avx512vl,avx512bw,avx512dq,avx2,fma",
    rows 1 2 3 4 5 6 7 8 9 10 11 12, wide 1 2 3 4);
#[cfg(target_arch = "x86_64")]
set!(avx512_f64, std::arch::x86_64::__m512d, f64, "avx512f,avx512vl,avx512bw,avx512dq,avx2,fma",
    rows 1 2 3 4 5 6 7 8 9 10 11 12, wide 1 2 3 4);
#[cfg(target_arch = "x86_64")]
set!(avx2_f32, std::arch::x86_64::__m256, f32, "avx2,fma", rows 1 2 3 4 5 6, wide 1 2);
#[cfg(target_arch = "x86_64")]
set!(avx2_f64, std::arch::x86_64::__m256d, f64, "avx2,fma", rows 1 2 3 4 5 6, wide 1 2);
set!(short_f32, Short<f32, 4>, f32, , rows 1 2 3 4, wide 1 2);
set!(short_f64, Short<f64, 2>, f64, , rows 1 2 3 4, wide 1 2);

#[cfg(target_arch = "x86_64")]
set!(avx512_i32, Ints512, i32, "avx512f,avx512vl,avx512bw,avx512dq,avx2,fma",
    rows 1 2 3 4 5 6 7 8 9 10 11 12, wide 1 2 3 4);
#[cfg(target_arch = "x86_64")]
set!(avx512_pairs, Pairs512, i32, "avx512f,avx512vl,avx512bw,avx512dq,avx2,fma",
    rows 1 2 3 4 5 6 7 8 9 10 11 12, wide 1 2 3 4);
#[cfg(target_arch = "x86_64")]
set!(avx512_quads, Quads512, i32, "avx512f,avx512vl,avx512bw,avx512dq,avx512vnni,avx2,fma",
    rows 1 2 3 4 5 6 7 8 9 10 11 12, wide 1 2 3 4);
#[cfg(target_arch = "x86_64")]
set!(avx2_i32, Ints256, i32, "avx2,fma", rows 1 2 3 4 5 6, wide 1 2);
#[cfg(target_arch = "x86_64")]
set!(avx2_pairs, Pairs256, i32, "avx2,fma", rows 1 2 3 4 5 6, wide 1 2);
set!(short_i32, ShortInts, i32, , rows 1 2 3 4, wide 1 2);
set!(short_pairs, ShortPairs, i32, , rows 1 2 3 4, wide 1 2);

/// How products of i8 are computed: elements of A and B that hold several of them, side by side in k.
#[derive(Clone, Copy)]
pub enum Bytes {
    /// Two at a time, as [`Bytes::pair`] joins them.
    Pairs(Set<i32>),
    /// Four at a time: those of A as u8, raised by 128, which has to be taken from the sums again; those of B as they are.
    Quads(Set<i32>),
}

impl Bytes {
    /// The best way of the instruction set.
    pub fn of(isa: Isa) -> Self {
        match isa.0 {
            #[cfg(target_arch = "x86_64")]
            Level::Avx512 if is_x86_feature_detected!("avx512vnni") => Bytes::Quads(avx512_quads()),
            #[cfg(target_arch = "x86_64")]
            Level::Avx512 => Bytes::Pairs(avx512_pairs()),
            #[cfg(target_arch = "x86_64")]
            Level::Avx2 => Bytes::Pairs(avx2_pairs()),
            _ => Bytes::Pairs(short_pairs()),
        }
    }
    /// The way that does without the instructions for four at a time.
    #[cfg(test)]
    pub fn in_pairs(isa: Isa) -> Self {
        match isa.0 {
            #[cfg(target_arch = "x86_64")]
            Level::Avx512 => Bytes::Pairs(avx512_pairs()),
            _ => Self::of(isa),
        }
    }
    /// An element of A or B from two numbers.
    pub fn pair(first: i8, second: i8) -> i32 {
        pair(first.into(), second.into())
    }
}

/// Numbers that there are tiles of.
pub trait Tiled: bytemuck::Pod + PartialEq + Send + Sync {
    /// 0.
    const ZERO: Self;
    /// The kernels for an instruction set.
    fn set(isa: Isa) -> Set<Self>;
}

macro_rules! tiled {
    ($e:ident, $avx512:ident, $avx2:ident, $short:ident) => {
        impl Tiled for $e {
            const ZERO: $e = 0 as $e;
            fn set(isa: Isa) -> Set<$e> {
                match isa.0 {
                    #[cfg(target_arch = "x86_64")]
                    Level::Avx512 => $avx512(),
                    #[cfg(target_arch = "x86_64")]
                    Level::Avx2 => $avx2(),
                    _ => $short(),
                }
            }
        }
    };
}
tiled!(f32, avx512_f32, avx2_f32, short_f32);
tiled!(f64, avx512_f64, avx2_f64, short_f64);
tiled!(i32, avx512_i32, avx2_i32, short_i32);

/// Rows and columns of a matrix that nobody else uses: element (i, j) lies `stride` · i + j behind the first.
pub struct Block<'a, T> {
    start: *mut T,
    rows: usize,
    cols: usize,
    stride: usize,
    whole: PhantomData<&'a mut [T]>,
}

// SAFETY: a block is a mutable borrow of elements that no other block has, see `cut`.
unsafe impl<T: Send> Send for Block<'_, T> {}

impl<'a, T> Block<'a, T> {
    /// A whole matrix. Panics if `data` is shorter, or if rows overlap.
    pub fn new(data: &'a mut [T], rows: usize, cols: usize, stride: usize) -> Self {
        assert!(stride >= cols, "rows {stride} apart with {cols} columns");
        let last = rows.checked_sub(1).map_or(Some(0), |r| r.checked_mul(stride)?.checked_add(cols));
        assert!(cols == 0 || last.is_some_and(|l| l <= data.len()), "{rows}x{cols} of {} elements", data.len());
        Block { start: data.as_mut_ptr(), rows, cols, stride, whole: PhantomData }
    }
    /// Rows.
    pub fn rows(&self) -> usize {
        self.rows
    }
    /// Columns.
    pub fn cols(&self) -> usize {
        self.cols
    }
    /// Row `i`. Panics if there are fewer.
    pub fn row(&mut self, i: usize) -> &mut [T] {
        assert!(i < self.rows, "row {i} of {}", self.rows);
        // SAFETY: the row lies within what `new` checked, and this block alone has these columns of it.
        unsafe { std::slice::from_raw_parts_mut(self.start.add(i * self.stride), self.cols) }
    }
    /// The same block for a while.
    pub fn reborrow(&mut self) -> Block<'_, T> {
        Block { start: self.start, rows: self.rows, cols: self.cols, stride: self.stride, whole: PhantomData }
    }
    /// Pieces of at most so many rows and columns, each with its first row and column.
    pub fn cut(self, rows: usize, cols: usize) -> Vec<((usize, usize), Block<'a, T>)> {
        let (rows, cols) = (rows.max(1), cols.max(1));
        let firsts = (0..self.rows).step_by(rows).flat_map(|i| (0..self.cols).step_by(cols).map(move |j| (i, j)));
        let piece = |(i, j): (usize, usize)| {
            // SAFETY: within the block; the pieces share no element, and `self` is gone.
            let start = unsafe { self.start.add(i * self.stride + j) };
            let (rows, cols) = (rows.min(self.rows - i), cols.min(self.cols - j));
            ((i, j), Block { start, rows, cols, stride: self.stride, whole: PhantomData })
        };
        firsts.map(piece).collect()
    }
}

/// Elements of A for a tile: of row i at depth p at `data[i * line + p * depth]`.
#[derive(Clone, Copy)]
pub struct Strip<'a, T> {
    /// Elements.
    pub data: &'a [T],
    /// Distance between rows.
    pub line: usize,
    /// Distance between depths.
    pub depth: usize,
}

impl<T: Tiled> Set<T> {
    /// Computes or adds to a tile of `rows` × (`vectors` · lanes) of C at (row, col), from `depth` > 0 elements of A for each row and
    /// as many rows of B, `b_depth` apart. Panics if anything of that does not lie in its slice.
    #[expect(clippy::too_many_arguments, reason = "the innermost call of all products")]
    pub fn run(
        &self,
        depth: usize,
        (a, rows): (Strip<'_, T>, usize),
        (b, b_depth): (&[T], usize),
        vectors: usize,
        c: &mut Block<'_, T>,
        (row, col): (usize, usize),
        add: bool,
    ) {
        let most = if vectors == 4 { self.wide_rows } else { self.rows };
        assert!((1..=most).contains(&rows) && matches!(vectors, 1 | 2 | 4) && depth > 0, "a tile of {rows}x{vectors}");
        let last = (rows - 1).saturating_mul(a.line).saturating_add((depth - 1).saturating_mul(a.depth));
        assert!(last < a.data.len(), "A is shorter than its tile");
        let end = (depth - 1).saturating_mul(b_depth).saturating_add(vectors * self.lanes);
        assert!(end <= b.len(), "B is shorter than its tile");
        assert!(row + rows <= c.rows && col + vectors * self.lanes <= c.cols, "C is smaller than its tile");
        let raw = Raw {
            depth,
            a: a.data.as_ptr(),
            a_line: a.line,
            a_depth: a.depth,
            b: b.as_ptr(),
            b_depth,
            // SAFETY: within the block, as just checked.
            c: unsafe { c.start.add(row * c.stride + col) },
            c_line: c.stride,
            add,
        };
        // SAFETY: all elements lie in their slices, as checked above; an `Isa` exists only for what the processor has, and a set
        // is made from one; C is borrowed mutably and overlaps neither A nor B.
        unsafe { (self.pick)(rows, vectors)(&raw) }
    }
}
