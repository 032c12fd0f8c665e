//! Kernels of convolutions with one channel in each group, where all channels of a pixel lie together: a lane is a channel.

#![allow(unsafe_code)]

use super::tile::Tiled;
use super::vector::*;
use super::{Isa, Level};

/// Pixels that follow each other in the result and meet the same positions of the window.
#[derive(Clone, Copy, Debug)]
pub struct Pixels {
    /// How many.
    pub count: usize,
    /// From one to the next in the image.
    pub data: usize,
    /// From one to the next in the result.
    pub out: usize,
    /// Channels of each.
    pub channels: usize,
}

/// Positions of the window: where each lies in the image for the first pixel, and where its factors do, a factor for each channel.
#[derive(Clone, Copy, Debug)]
pub struct Taps<'a> {
    /// Elements of the image.
    pub data: &'a [usize],
    /// Elements of the factors or their gradients.
    pub factors: &'a [usize],
}

struct Raw<T> {
    pixels: Pixels,
    taps: usize,
    data_at: *const usize,
    factors_at: *const usize,
    data: *const T,
    factors: *const T,
    out: *mut T,
}

/// Pixels whose sums are made together.
const TOGETHER: usize = 4;

/// `count` channels from `at` on of the pixels from `first` on, PIXELS of them.
///
/// # Safety
///
/// The processor has the vector's instruction set; those channels can be read at each tap's place and be written.
#[inline(always)]
unsafe fn sums_some<V: Floats, const PIXELS: usize>(t: &Raw<V::E>, first: usize, at: usize, count: usize) {
    // SAFETY: as the caller vouches.
    unsafe {
        let load = |p: *const V::E| if count == V::LANES { V::load(p) } else { V::load_some(p, count) };
        let mut sums = [V::zero(); PIXELS];
        for tap in 0..t.taps {
            let factor = load(t.factors.add(*t.factors_at.add(tap) + at));
            let from = t.data.add(*t.data_at.add(tap) + first * t.pixels.data + at);
            for (i, sum) in sums.iter_mut().enumerate() {
                *sum = factor.multiply_add(load(from.add(i * t.pixels.data)), *sum);
            }
        }
        for (i, sum) in sums.iter().enumerate() {
            let out = t.out.add((first + i) * t.pixels.out + at);
            if count == V::LANES { sum.store(out) } else { sum.store_some(out, count) }
        }
    }
}

/// All channels of PIXELS pixels.
///
/// # Safety
///
/// As for [`sums`].
#[inline(always)]
unsafe fn sums_of<V: Floats, const PIXELS: usize>(t: &Raw<V::E>, first: usize) {
    let mut at = 0;
    while at < t.pixels.channels {
        let count = V::LANES.min(t.pixels.channels - at);
        // SAFETY: as the caller vouches.
        unsafe { sums_some::<V, PIXELS>(t, first, at, count) };
        at += count;
    }
}

/// Of each pixel and channel the sum of the taps' products.
///
/// # Safety
///
/// The processor has the vector's instruction set; of each pixel all channels can be read at each tap's place and be written.
#[inline(always)]
unsafe fn sums<V: Floats>(t: &Raw<V::E>) {
    let mut first = 0;
    // SAFETY: as the caller vouches.
    unsafe {
        while first + TOGETHER <= t.pixels.count {
            sums_of::<V, TOGETHER>(t, first);
            first += TOGETHER;
        }
        while first < t.pixels.count {
            sums_of::<V, 1>(t, first);
            first += 1;
        }
    }
}

/// Adds to `count` channels from `at` on of the gradients of TAPS positions, from `tap` on, the products of all pixels. `out` is read
/// here: it is the gradient of the result; `factors` is written.
///
/// # Safety
///
/// As for [`products`].
#[inline(always)]
unsafe fn products_some<V: Floats, const TAPS: usize>(t: &Raw<V::E>, tap: usize, at: usize, count: usize) {
    // SAFETY: as the caller vouches.
    unsafe {
        let load = |p: *const V::E| if count == V::LANES { V::load(p) } else { V::load_some(p, count) };
        let sum_at = |j: usize| t.factors.add(*t.factors_at.add(tap + j) + at).cast_mut();
        let mut sums = [V::zero(); TAPS];
        let mut from = [t.data; TAPS];
        for j in 0..TAPS {
            sums[j] = load(sum_at(j));
            from[j] = t.data.add(*t.data_at.add(tap + j) + at);
        }
        for p in 0..t.pixels.count {
            let g = load(t.out.add(p * t.pixels.out + at));
            for j in 0..TAPS {
                sums[j] = g.multiply_add(load(from[j].add(p * t.pixels.data)), sums[j]);
            }
        }
        for (j, sum) in sums.iter().enumerate() {
            if count == V::LANES { sum.store(sum_at(j)) } else { sum.store_some(sum_at(j), count) }
        }
    }
}

/// Adds to the gradient of each position and channel the products of all pixels.
///
/// # Safety
///
/// The processor has the vector's instruction set; of each pixel all channels can be read at each tap's place and of the result's
/// gradient, and those of each position be written in `factors`.
#[inline(always)]
unsafe fn products<V: Floats>(t: &Raw<V::E>) {
    let mut at = 0;
    while at < t.pixels.channels {
        let count = V::LANES.min(t.pixels.channels - at);
        let mut tap = 0;
        // SAFETY: as the caller vouches.
        unsafe {
            while tap + 9 <= t.taps {
                products_some::<V, 9>(t, tap, at, count);
                tap += 9;
            }
            while tap + 3 <= t.taps {
                products_some::<V, 3>(t, tap, at, count);
                tap += 3;
            }
            while tap < t.taps {
                products_some::<V, 1>(t, tap, at, count);
                tap += 1;
            }
        }
        at += count;
    }
}

type Kernel<T> = unsafe fn(&Raw<T>);

/// The kernels of an instruction set.
#[derive(Clone, Copy)]
pub struct Channels<T> {
    sums: Kernel<T>,
    products: Kernel<T>,
}

macro_rules! channels {
    ($name:ident, $vector:ty, $e:ident, $($features:literal)?) => {
        fn $name() -> Channels<$e> {
            // SAFETY: callers have a processor with the features, and vouch for `t`.
            $(#[target_feature(enable = $features)])?
            unsafe fn of_sums(t: &Raw<$e>) {
                // SAFETY: the caller vouches for the instruction set and for `t`.
                unsafe { sums::<$vector>(t) }
            }
            // SAFETY: as above.
            $(#[target_feature(enable = $features)])?
            unsafe fn of_products(t: &Raw<$e>) {
                // SAFETY: the caller vouches for the instruction set and for `t`.
                unsafe { products::<$vector>(t) }
            }
            Channels { sums: of_sums, products: of_products }
        }
    };
}
#[cfg(target_arch = "x86_64")]
channels!(avx512_f32, std::arch::x86_64::__m512, f32, "avx512f,avx512vl,avx512bw,avx512dq,avx2,fma");
#[cfg(target_arch = "x86_64")]
channels!(avx512_f64, std::arch::x86_64::__m512d, f64, "avx512f,avx512vl,avx512bw,avx512dq,avx2,fma");
#[cfg(target_arch = "x86_64")]
channels!(avx2_f32, std::arch::x86_64::__m256, f32, "avx2,fma");
#[cfg(target_arch = "x86_64")]
channels!(avx2_f64, std::arch::x86_64::__m256d, f64, "avx2,fma");
channels!(short_f32, Short<f32, 4>, f32,);
channels!(short_f64, Short<f64, 2>, f64,);

/// Floats that there are such kernels of.
pub trait Beside: Tiled {
    /// The kernels for an instruction set.
    fn channels(isa: Isa) -> Channels<Self>;
}

macro_rules! beside {
    ($e:ident, $avx512:ident, $avx2:ident, $short:ident) => {
        impl Beside for $e {
            fn channels(isa: Isa) -> Channels<$e> {
                by_isa!(isa, $avx512, $avx2, $short)
            }
        }
    };
}
beside!(f32, avx512_f32, avx2_f32, short_f32);
beside!(f64, avx512_f64, avx2_f64, short_f64);

/// The end of what pixels `distance` apart reach from the furthest of some places on; None beyond any memory.
fn end(pixels: &Pixels, distance: usize, places: &[usize]) -> Option<usize> {
    let furthest = places.iter().copied().max().unwrap_or(0);
    let last = pixels.count.saturating_sub(1).checked_mul(distance)?;
    last.checked_add(furthest)?.checked_add(pixels.channels)
}

fn raw<T>(pixels: Pixels, taps: Taps<'_>, data: &[T], factors: *const T, out: *mut T) -> Raw<T> {
    Raw {
        pixels,
        taps: taps.data.len(),
        data_at: taps.data.as_ptr(),
        factors_at: taps.factors.as_ptr(),
        data: data.as_ptr(),
        factors,
        out,
    }
}

impl<T: Tiled> Channels<T> {
    fn check(pixels: &Pixels, taps: &Taps<'_>, data: &[T], factors: usize, out: usize) {
        assert_eq!(taps.data.len(), taps.factors.len(), "each position has its factors");
        let fits = |end: Option<usize>, len: usize| end.is_some_and(|end| end <= len);
        assert!(fits(end(pixels, pixels.data, taps.data), data.len()), "pixels beyond their image");
        assert!(fits(end(pixels, 0, taps.factors), factors), "positions beyond their factors");
        assert!(fits(end(pixels, pixels.out, &[]), out), "pixels beyond their result");
    }

    /// `out[p · pixels.out + c]` = Σ over taps `data[p · pixels.data + data place + c]` · `factors[factors place + c]`. Panics if
    /// anything of that does not lie in its slice.
    pub fn sums(&self, pixels: Pixels, taps: Taps<'_>, data: &[T], factors: &[T], out: &mut [T]) {
        if pixels.count == 0 {
            return;
        }
        Self::check(&pixels, &taps, data, factors.len(), out.len());
        // SAFETY: all elements lie in their slices, as just checked; an `Isa` exists only for what the processor has.
        unsafe { (self.sums)(&raw(pixels, taps, data, factors.as_ptr(), out.as_mut_ptr())) }
    }

    /// `sums[factors place + c]` += Σ over pixels `g[p · pixels.out + c]` · `data[p · pixels.data + data place + c]`, for each tap. Panics
    /// if anything of that does not lie in its slice.
    pub fn products(&self, pixels: Pixels, taps: Taps<'_>, data: &[T], g: &[T], sums: &mut [T]) {
        if pixels.count == 0 {
            return;
        }
        Self::check(&pixels, &taps, data, sums.len(), g.len());
        // SAFETY: as above; the kernel reads `g` where it has a result, and writes to `sums` where it has factors.
        unsafe { (self.products)(&raw(pixels, taps, data, sums.as_mut_ptr(), g.as_ptr().cast_mut())) }
    }
}
