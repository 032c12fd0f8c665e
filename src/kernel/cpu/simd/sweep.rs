//! Kernels of convolutions: sums over planes that are read where they lie, one shifted against the other.
//!
//! [`Sweeps::tile`] is a tile of a matrix product whose rows of B are runs of a plane, each with an offset of its own;
//! [`Sweeps::shifted`] the same for one row of A; [`Sweeps::dots`] multiplies runs with runs, for gradients of filters.

#![allow(unsafe_code)]

use super::tile::Tiled;
use super::vector::*;
use super::{Isa, Level};

/// Where the operands of each depth lie.
#[derive(Clone, Copy)]
pub struct Hops<'a> {
    a: &'a [usize],
    b: &'a [usize],
    furthest: [usize; 2],
}

impl<'a> Hops<'a> {
    /// Distances from the first element of a row of A, and from that of a tile in B. Panics if there are more of one than of the other.
    pub fn new(a: &'a [usize], b: &'a [usize]) -> Self {
        assert_eq!(a.len(), b.len(), "a hop has two ends");
        let furthest = [a, b].map(|hops| hops.iter().copied().max().unwrap_or(0));
        Hops { a, b, furthest }
    }
}

struct RawTile<T> {
    depth: usize,
    a: *const T,
    a_line: usize,
    a_hops: *const usize,
    b: *const T,
    b_hops: *const usize,
    out: *mut T,
}

/// Σ over depths of an element of A times vectors of B, ROWS × VECTORS of them.
///
/// # Safety
///
/// The processor has the vector's instruction set. From each hop on, elements of A can be read in ROWS lines and VECTORS vectors
/// of B; `out` has room for all sums.
#[inline(always)]
unsafe fn tile<V: Vector, const ROWS: usize, const VECTORS: usize>(t: &RawTile<V::E>) {
    // SAFETY: as the caller vouches.
    unsafe {
        let mut sums = [[V::zero(); VECTORS]; ROWS];
        for p in 0..t.depth {
            let b = t.b.add(*t.b_hops.add(p));
            let a = t.a.add(*t.a_hops.add(p));
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
        }
        for (i, sums) in sums.iter().enumerate() {
            for (j, sum) in sums.iter().enumerate() {
                sum.store(t.out.add((i * VECTORS + j) * V::LANES));
            }
        }
    }
}

/// Rows of shifted sums.
#[derive(Clone, Copy)]
pub struct Shifts<'a, T> {
    offsets: &'a [usize],
    factors: &'a [T],
    furthest: usize,
}

impl<'a, T> Shifts<'a, T> {
    /// Sums of `factors[t]` times the element `offsets[t]` behind. Panics if there are more of one than of the other.
    pub fn new(offsets: &'a [usize], factors: &'a [T]) -> Self {
        assert_eq!(offsets.len(), factors.len(), "each shift has a factor");
        Shifts { offsets, factors, furthest: offsets.iter().copied().max().unwrap_or(0) }
    }
}

/// Rows that are alike: how many, the distances of their first elements in the data and in the result, elements of each.
#[derive(Clone, Copy)]
pub struct Rows {
    /// Rows.
    pub count: usize,
    /// From a row of the data to the next.
    pub data: usize,
    /// From a row of the result to the next.
    pub out: usize,
    /// Elements.
    pub len: usize,
}

struct RawRows<T> {
    taps: usize,
    offsets: *const usize,
    factors: *const T,
    data: *const T,
    out: *mut T,
    rows: Rows,
}

/// Rows of shifted sums that are computed together.
const TOGETHER: usize = 4;

/// A vector, or the first `count` elements of one, of each of ROWS rows of shifted sums.
///
/// # Safety
///
/// The processor has the vector's instruction set; in each row a vector can be read from each offset behind `data` on, and as
/// many elements as are asked for be written at `out`.
#[inline(always)]
unsafe fn shifted_some<V: Floats, const ROWS: usize>(
    t: &RawRows<V::E>,
    data: *const V::E,
    out: *mut V::E,
    count: usize,
) {
    // SAFETY: as the caller vouches.
    unsafe {
        let mut sums = [V::zero(); ROWS];
        for tap in 0..t.taps {
            let factor = V::splat(t.factors.add(tap));
            let from = data.add(*t.offsets.add(tap));
            for (i, sum) in sums.iter_mut().enumerate() {
                *sum = factor.multiply_add(V::load(from.add(i * t.rows.data)), *sum);
            }
        }
        for (i, sum) in sums.iter().enumerate() {
            let out = out.add(i * t.rows.out);
            if count == V::LANES { sum.store(out) } else { sum.store_some(out, count) }
        }
    }
}

/// ROWS rows of shifted sums.
///
/// # Safety
///
/// As for [`shifted`].
#[inline(always)]
unsafe fn shifted_rows<V: Floats, const ROWS: usize>(t: &RawRows<V::E>, data: *const V::E, out: *mut V::E) {
    // SAFETY: as the caller vouches: nothing is written beyond a row's last element, and less than a vector is read beyond it.
    unsafe {
        let mut at = 0;
        while at + V::LANES <= t.rows.len {
            shifted_some::<V, ROWS>(t, data.add(at), out.add(at), V::LANES);
            at += V::LANES;
        }
        if at < t.rows.len {
            shifted_some::<V, ROWS>(t, data.add(at), out.add(at), t.rows.len - at);
        }
    }
}

/// Rows of shifted sums.
///
/// # Safety
///
/// The processor has the vector's instruction set; a row's elements can be read from each offset on and written, and behind the
/// last row's, from each offset on, a vector can be read.
#[inline(always)]
unsafe fn shifted<V: Floats>(t: &RawRows<V::E>) {
    // SAFETY: as the caller vouches.
    unsafe {
        let mut row = 0;
        while row + TOGETHER <= t.rows.count {
            shifted_rows::<V, TOGETHER>(t, t.data.add(row * t.rows.data), t.out.add(row * t.rows.out));
            row += TOGETHER;
        }
        while row < t.rows.count {
            shifted_rows::<V, 1>(t, t.data.add(row * t.rows.data), t.out.add(row * t.rows.out));
            row += 1;
        }
    }
}

/// Copies rows, every second element of `data`.
///
/// # Safety
///
/// The processor has the vector's instruction set; elements 0, 2 .. 2 · (len - 1) of the rows of `data` can be read, and `len`
/// elements of those of `out` be written.
#[inline(always)]
unsafe fn halved<V: Floats>(rows: Rows, data: *const V::E, out: *mut V::E) {
    // SAFETY: as the caller vouches: a pair of vectors is read only where its last element is one of those.
    unsafe {
        for row in 0..rows.count {
            let (data, out) = (data.add(row * rows.data), out.add(row * rows.out));
            let mut at = 0;
            while at + V::LANES < rows.len {
                V::load_evens(data.add(2 * at)).store(out.add(at));
                at += V::LANES;
            }
            while at < rows.len {
                out.add(at).write(data.add(2 * at).read());
                at += 1;
            }
        }
    }
}

/// Copies rows.
///
/// # Safety
///
/// The processor has the vector's instruction set; all elements of the rows can be read and written.
#[inline(always)]
unsafe fn copied<V: Floats>(rows: Rows, data: *const V::E, out: *mut V::E) {
    // SAFETY: as the caller vouches: nothing beyond a row's last element is touched.
    unsafe {
        for row in 0..rows.count {
            let (data, out) = (data.add(row * rows.data), out.add(row * rows.out));
            let mut at = 0;
            while at + V::LANES <= rows.len {
                V::load(data.add(at)).store(out.add(at));
                at += V::LANES;
            }
            if at < rows.len {
                V::load_some(data.add(at), rows.len - at).store_some(out.add(at), rows.len - at);
            }
        }
    }
}

struct RawDots<T> {
    a: *const T,
    b: *const T,
    offsets: *const usize,
    rows: Rows,
    out: *mut T,
}

/// Dot products of rows of A with what lies at COLS offsets in B.
///
/// # Safety
///
/// The processor has the vector's instruction set; all rows of A (`rows.out` apart) and of each offset in B (`rows.data` apart) can
/// be read; `out` has room for all sums.
#[inline(always)]
unsafe fn dots<V: Floats, const COLS: usize>(t: &RawDots<V::E>) {
    // SAFETY: as the caller vouches: nothing beyond a row's last element is touched.
    unsafe {
        let mut sums = [V::zero(); COLS];
        let mut offsets = [0; COLS];
        for (j, o) in offsets.iter_mut().enumerate() {
            *o = *t.offsets.add(j);
        }
        for row in 0..t.rows.count {
            let (a, b) = (t.a.add(row * t.rows.out), t.b.add(row * t.rows.data));
            let mut at = 0;
            while at + V::LANES <= t.rows.len {
                let factor = V::load(a.add(at));
                for (sum, offset) in sums.iter_mut().zip(offsets) {
                    *sum = factor.multiply_add(V::load(b.add(at + offset)), *sum);
                }
                at += V::LANES;
            }
            if at < t.rows.len {
                let factor = V::load_some(a.add(at), t.rows.len - at);
                for (sum, offset) in sums.iter_mut().zip(offsets) {
                    *sum = factor.multiply_add(V::load_some(b.add(at + offset), t.rows.len - at), *sum);
                }
            }
        }
        for (j, sum) in sums.iter().enumerate() {
            t.out.add(j).write(sum.sum());
        }
    }
}

type TileKernel<T> = unsafe fn(&RawTile<T>);
type RowsKernel<T> = unsafe fn(&RawRows<T>);
type CopyKernel<T> = unsafe fn(Rows, *const T, *mut T);
type DotsKernel<T> = unsafe fn(&RawDots<T>);

/// Vectors of the widest tile.
pub const WIDEST: usize = 4;

/// The kernels of an instruction set.
#[derive(Clone, Copy)]
pub struct Sweeps<T> {
    /// Rows of the largest tile of so many vectors, from one on.
    pub rows: [usize; WIDEST],
    /// Vectors of the tiles that are fastest.
    pub vectors: usize,
    /// Elements of a vector.
    pub lanes: usize,
    pick: fn(usize, usize) -> TileKernel<T>,
    shifted: RowsKernel<T>,
    copied: CopyKernel<T>,
    halved: CopyKernel<T>,
    /// Of each of [`DOTS`] columns.
    dots: [DotsKernel<T>; DOTS.len()],
}

/// Columns of tiles of dot products.
pub const DOTS: [usize; 5] = [9, 4, 3, 2, 1];

macro_rules! sweeps {
    ($name:ident, $vector:ty, $e:ident, $($features:literal)?, vectors $vectors:literal,
     $([$($one:literal)*], [$($two:literal)*], [$($three:literal)*], [$($four:literal)*])?) => {
        fn $name() -> Sweeps<$e> {
            // SAFETY: callers have a processor with the features, and vouch for `t`.
            $(#[target_feature(enable = $features)])?
            unsafe fn kernel<const ROWS: usize, const VECTORS: usize>(t: &RawTile<$e>) {
                // SAFETY: the caller vouches for the instruction set and for `t`.
                unsafe { tile::<$vector, ROWS, VECTORS>(t) }
            }
            fn pick(rows: usize, vectors: usize) -> TileKernel<$e> {
                match (rows, vectors) {
                    $($(($one, 1) => kernel::<$one, 1>,)*
                    $(($two, 2) => kernel::<$two, 2>,)*
                    $(($three, 3) => kernel::<$three, 3>,)*
                    $(($four, 4) => kernel::<$four, 4>,)*)?
                    _ => unreachable!("no tile of {rows} rows and {vectors} vectors"),
                }
            }
            // SAFETY: as above.
            $(#[target_feature(enable = $features)])?
            unsafe fn rows(t: &RawRows<$e>) {
                // SAFETY: the caller vouches for the instruction set and for `t`.
                unsafe { shifted::<$vector>(t) }
            }
            // SAFETY: as above.
            $(#[target_feature(enable = $features)])?
            unsafe fn copy(rows: Rows, data: *const $e, out: *mut $e) {
                // SAFETY: the caller vouches for the instruction set and for the rows.
                unsafe { copied::<$vector>(rows, data, out) }
            }
            // SAFETY: as above.
            $(#[target_feature(enable = $features)])?
            unsafe fn halve(rows: Rows, data: *const $e, out: *mut $e) {
                // SAFETY: the caller vouches for the instruction set and for the rows.
                unsafe { halved::<$vector>(rows, data, out) }
            }
            // SAFETY: as above.
            $(#[target_feature(enable = $features)])?
            unsafe fn dot<const COLS: usize>(t: &RawDots<$e>) {
                // SAFETY: the caller vouches for the instruction set and for `t`.
                unsafe { dots::<$vector, COLS>(t) }
            }
            $(let most = [[$($one),*].len(), [$($two),*].len(), [$($three),*].len(), [$($four),*].len()];)?
            Sweeps {
                rows: most,
                vectors: $vectors,
                lanes: <$vector>::LANES,
                pick,
                shifted: rows,
                copied: copy,
                halved: halve,
                dots: [
                    dot::<{ DOTS[0] }>,
                    dot::<{ DOTS[1] }>,
                    dot::<{ DOTS[2] }>,
                    dot::<{ DOTS[3] }>,
                    dot::<{ DOTS[4] }>,
                ],
            }
        }
    };
}
// With AVX-512 tiles of six rows and four vectors: of twelve and two, whose elements of A need as many loads as the sums need
// steps, a processor that reads one vector a cycle made half as many operations a second.
#[cfg(target_arch = "x86_64")]
sweeps!(avx512_f32, std::arch::x86_64::__m512, f32, "avx512f,avx512vl,avx512bw,avx512dq,avx2,fma", vectors 4,
    [1 2 3 4 5 6 7 8], [1 2 3 4 5 6 7 8], [1 2 3 4 5 6 7 8], [1 2 3 4 5 6]);
#[cfg(target_arch = "x86_64")]
sweeps!(avx512_f64, std::arch::x86_64::__m512d, f64, "avx512f,avx512vl,avx512bw,avx512dq,avx2,fma", vectors 4,
    [1 2 3 4 5 6 7 8], [1 2 3 4 5 6 7 8], [1 2 3 4 5 6 7 8], [1 2 3 4 5 6]);
#[cfg(target_arch = "x86_64")]
sweeps!(avx2_f32, std::arch::x86_64::__m256, f32, "avx2,fma", vectors 2,
    [1 2 3 4 5 6], [1 2 3 4 5 6], [1 2 3 4], [1 2]);
#[cfg(target_arch = "x86_64")]
sweeps!(avx2_f64, std::arch::x86_64::__m256d, f64, "avx2,fma", vectors 2,
    [1 2 3 4 5 6], [1 2 3 4 5 6], [1 2 3 4], [1 2]);
sweeps!(short_f32, Short<f32, 4>, f32, , vectors 2, [1 2 3 4], [1 2 3 4], [1 2 3], [1 2]);
sweeps!(short_f64, Short<f64, 2>, f64, , vectors 2, [1 2 3 4], [1 2 3 4], [1 2 3], [1 2]);

/// Floats that there are sweeps of.
pub trait Swept: Tiled {
    /// The kernels for an instruction set.
    fn sweeps(isa: Isa) -> Sweeps<Self>;
}

macro_rules! swept {
    ($e:ident, $avx512:ident, $avx2:ident, $short:ident) => {
        impl Swept for $e {
            fn sweeps(isa: Isa) -> Sweeps<$e> {
                by_isa!(isa, $avx512, $avx2, $short)
            }
        }
    };
}
swept!(f32, avx512_f32, avx2_f32, short_f32);
swept!(f64, avx512_f64, avx2_f64, short_f64);

/// The end of `count` runs of `len` elements, `distance` apart, if it is a number.
fn end(count: usize, distance: usize, len: usize) -> usize {
    if count == 0 {
        return 0;
    }
    count.saturating_sub(1).saturating_mul(distance).saturating_add(len)
}

impl<T: Swept> Sweeps<T> {
    /// Sums of `rows` × (`vectors` · lanes) to `out`, row after row: at (i, j) Σ a[i · a_line + hop of A] · b[j + hop of B]. Panics if
    /// anything of that does not lie in its slice.
    pub fn tile(
        &self,
        hops: Hops<'_>,
        (a, a_line, rows): (&[T], usize, usize),
        b: &[T],
        vectors: usize,
        out: &mut [T],
    ) {
        let most = vectors.checked_sub(1).and_then(|v| self.rows.get(v)).copied().unwrap_or(0);
        assert!((1..=most).contains(&rows), "a tile of {rows}x{vectors}");
        let width = vectors * self.lanes;
        assert!(end(rows, a_line, 1).saturating_add(hops.furthest[0]) <= a.len(), "A is shorter than its tile");
        assert!(hops.furthest[1].saturating_add(width) <= b.len(), "B is shorter than its tile");
        assert!(rows * width <= out.len(), "no room for a tile's sums");
        let raw = RawTile {
            depth: hops.b.len(),
            a: a.as_ptr(),
            a_line,
            a_hops: hops.a.as_ptr(),
            b: b.as_ptr(),
            b_hops: hops.b.as_ptr(),
            out: out.as_mut_ptr(),
        };
        // SAFETY: all elements lie in their slices, as checked above, and there are as many hops of A as of B; an `Isa` exists only
        // for what the processor has, and kernels are picked by one.
        unsafe { (self.pick)(rows, vectors)(&raw) }
    }

    /// `out[r · rows.out + i]` = Σ factor · `data[r · rows.data + offset + i]`. Panics if anything does not lie in its slice, or
    /// if `data` does not have another vector behind.
    pub fn shifted(&self, shifts: Shifts<'_, T>, data: &[T], rows: Rows, out: &mut [T]) {
        let read = end(rows.count, rows.data, rows.len).saturating_add(shifts.furthest).saturating_add(self.lanes);
        assert!(read <= data.len() && end(rows.count, rows.out, rows.len) <= out.len(), "rows beyond their planes");
        let raw = RawRows {
            taps: shifts.offsets.len(),
            offsets: shifts.offsets.as_ptr(),
            factors: shifts.factors.as_ptr(),
            data: data.as_ptr(),
            out: out.as_mut_ptr(),
            rows,
        };
        // SAFETY: as checked above; an `Isa` exists only for what the processor has.
        unsafe { (self.shifted)(&raw) }
    }

    /// Copies rows of `data` to `out`. Panics if anything does not lie in its slice.
    pub fn copy(&self, rows: Rows, data: &[T], out: &mut [T]) {
        assert!(end(rows.count, rows.data, rows.len) <= data.len(), "rows beyond their image");
        assert!(end(rows.count, rows.out, rows.len) <= out.len(), "rows beyond their planes");
        // SAFETY: as checked above; an `Isa` exists only for what the processor has.
        unsafe { (self.copied)(rows, data.as_ptr(), out.as_mut_ptr()) }
    }

    /// Copies every second element of rows of `data`, from their first on, to rows of `out`, which have `rows.len` elements. Panics if
    /// anything does not lie in its slice.
    pub fn halve(&self, rows: Rows, data: &[T], out: &mut [T]) {
        let of_data = (2 * rows.len).saturating_sub(1);
        assert!(end(rows.count, rows.data, of_data) <= data.len(), "rows beyond their image");
        assert!(end(rows.count, rows.out, rows.len) <= out.len(), "rows beyond their planes");
        // SAFETY: as checked above; an `Isa` exists only for what the processor has.
        unsafe { (self.halved)(rows, data.as_ptr(), out.as_mut_ptr()) }
    }

    /// Dot products of A, whose rows are `rows.out` apart, with what lies at each of the offsets in B, `rows.data` apart. Panics if
    /// anything does not lie in its slice, or if there is no tile of so many offsets (see [`DOTS`]).
    pub fn dots(&self, rows: Rows, a: &[T], (b, offsets): (&[T], &[usize]), out: &mut [T]) {
        let kernel = DOTS.iter().position(|d| *d == offsets.len());
        let furthest = offsets.iter().copied().max().unwrap_or(0);
        assert!(end(rows.count, rows.out, rows.len) <= a.len(), "A is shorter than its rows");
        assert!(furthest.saturating_add(end(rows.count, rows.data, rows.len)) <= b.len(), "B is shorter than its rows");
        assert!(offsets.len() <= out.len(), "no room for dot products");
        let raw = RawDots { a: a.as_ptr(), b: b.as_ptr(), offsets: offsets.as_ptr(), rows, out: out.as_mut_ptr() };
        // SAFETY: as checked above; an `Isa` exists only for what the processor has.
        unsafe { (self.dots[kernel.expect("a tile of dot products")])(&raw) }
    }
}
