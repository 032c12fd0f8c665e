//! Tiles of a matrix product: sums that stay in registers while rows of B pass by, compiled for each instruction set.
//!
//! A tile has a few rows and one to four vectors of columns. For every depth p it multiplies each row's element of A with the
//! vectors of B's row p. The element of A is loaded into all lanes, so that A can lie in any way; B's columns lie together.

#![allow(unsafe_code)]

use std::marker::PhantomData;

use super::vector::*;
use super::{Isa, Level};

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

type Kernel<T> = unsafe fn(&Raw<T>);

/// The kernels of an instruction set. With AVX-512 the tiles have six rows of four vectors: those of twelve rows and two vectors load
/// an element of A for every two steps, and a processor that loads one vector in a cycle did 55 to 97 % of its operations with them.
#[derive(Clone, Copy)]
pub struct Set<T> {
    /// Rows of the largest tile of one or two vectors.
    pub rows: usize,
    /// Rows of the largest tile of three or four.
    pub wide_rows: usize,
    /// Elements of a vector.
    pub lanes: usize,
    pick: fn(usize, usize) -> Kernel<T>,
}

/// Elements of the largest tile.
pub const LARGEST: usize = 6 * 4 * 16;

macro_rules! set {
    ($name:ident, $vector:ty, $e:ident, $($features:literal)?, rows $($row:literal)*, wide $($wide:literal)*) => {
        fn $name() -> Set<$e> {
            // SAFETY: callers have a processor with the features, and vouch for `t`.
            $(#[target_feature(enable = $features)])?
            unsafe fn kernel<const ROWS: usize, const VECTORS: usize>(t: &Raw<$e>) {
                // SAFETY: the caller vouches for the instruction set and for `t`.
                unsafe { tile::<$vector, ROWS, VECTORS>(t) }
            }
            fn pick(rows: usize, vectors: usize) -> Kernel<$e> {
                match (rows, vectors) {
                    $(($row, 1) => kernel::<$row, 1>,)*
                    $(($row, 2) => kernel::<$row, 2>,)*
                    $(($wide, 3) => kernel::<$wide, 3>,)*
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
    rows 1 2 3 4 5 6 7 8 9 10 11 12, wide 1 2 3 4 5 6);
#[cfg(target_arch = "x86_64")]
set!(avx512_f64, std::arch::x86_64::__m512d, f64, "avx512f,avx512vl,avx512bw,avx512dq,avx2,fma",
    rows 1 2 3 4 5 6 7 8 9 10 11 12, wide 1 2 3 4 5 6);
#[cfg(target_arch = "x86_64")]
set!(avx2_f32, std::arch::x86_64::__m256, f32, "avx2,fma", rows 1 2 3 4 5 6, wide 1 2);
#[cfg(target_arch = "x86_64")]
set!(avx2_f64, std::arch::x86_64::__m256d, f64, "avx2,fma", rows 1 2 3 4 5 6, wide 1 2);
set!(short_f32, Short<f32, 4>, f32, , rows 1 2 3 4, wide 1 2);
set!(short_f64, Short<f64, 2>, f64, , rows 1 2 3 4, wide 1 2);

#[cfg(target_arch = "x86_64")]
set!(avx512_i32, Ints512, i32, "avx512f,avx512vl,avx512bw,avx512dq,avx2,fma",
    rows 1 2 3 4 5 6 7 8 9 10 11 12, wide 1 2 3 4 5 6);
#[cfg(target_arch = "x86_64")]
set!(avx512_pairs, Pairs512, i32, "avx512f,avx512vl,avx512bw,avx512dq,avx2,fma",
    rows 1 2 3 4 5 6 7 8 9 10 11 12, wide 1 2 3 4 5 6);
#[cfg(target_arch = "x86_64")]
set!(avx512_quads, Quads512, i32, "avx512f,avx512vl,avx512bw,avx512dq,avx512vnni,avx2,fma",
    rows 1 2 3 4 5 6 7 8 9 10 11 12, wide 1 2 3 4 5 6);
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
                by_isa!(isa, $avx512, $avx2, $short)
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
        let most = if vectors > 2 { self.wide_rows } else { self.rows };
        assert!((1..=most).contains(&rows) && (1..=4).contains(&vectors) && depth > 0, "a tile of {rows}x{vectors}");
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
