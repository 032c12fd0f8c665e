//! Vector registers of each instruction set, as far as products need them.

#![allow(unsafe_code)]

/// A vector register of numbers.
pub(super) trait Vector: Copy {
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

/// A vector of floats.
pub(super) trait Floats: Vector {
    /// The sum of its elements, halves joined first.
    ///
    /// # Safety
    /// As for all.
    unsafe fn sum(self) -> Self::E;
    /// The first `count` < LANES elements at `p`, and zeros.
    ///
    /// # Safety
    /// As for all; so many can be read.
    unsafe fn load_some(p: *const Self::E, count: usize) -> Self;
    /// The first `count` < LANES elements to `p`.
    ///
    /// # Safety
    /// As for all; so many can be written.
    unsafe fn store_some(self, p: *mut Self::E, count: usize);
    /// Every second one of the 2 · LANES elements at `p`, from the first on.
    ///
    /// # Safety
    /// As for all; so many can be read.
    unsafe fn load_evens(p: *const Self::E) -> Self;
}

/// [`Floats::load_some`] and [`Floats::store_some`] by way of memory.
macro_rules! some_by_memory {
    ($e:ident, $lanes:literal) => {
        // SAFETY: callers vouch for what the trait asks of them.
        #[inline(always)]
        unsafe fn load_some(p: *const $e, count: usize) -> Self {
            let mut all = [0.0; $lanes];
            for (i, v) in all.iter_mut().enumerate().take(count) {
                // SAFETY: the caller vouches for `count` elements.
                *v = unsafe { p.add(i).read() };
            }
            // SAFETY: the caller vouches for the instruction set; `all` is a vector of elements.
            unsafe { Self::load(all.as_ptr()) }
        }
        // SAFETY: as above.
        #[inline(always)]
        unsafe fn load_evens(p: *const $e) -> Self {
            let mut all = [0.0; $lanes];
            for (i, v) in all.iter_mut().enumerate() {
                // SAFETY: the caller vouches for twice as many elements.
                *v = unsafe { p.add(2 * i).read() };
            }
            // SAFETY: the caller vouches for the instruction set; `all` is a vector of elements.
            unsafe { Self::load(all.as_ptr()) }
        }
        // SAFETY: as above.
        #[inline(always)]
        unsafe fn store_some(self, p: *mut $e, count: usize) {
            let mut all = [0.0; $lanes];
            // SAFETY: the caller vouches for the instruction set; `all` has room for the vector.
            unsafe { self.store(all.as_mut_ptr()) };
            for (i, v) in all.iter().enumerate().take(count) {
                // SAFETY: the caller vouches for `count` elements.
                unsafe { p.add(i).write(*v) };
            }
        }
    };
}

/// The same with masks of AVX-512.
#[cfg(target_arch = "x86_64")]
macro_rules! some_by_mask {
    ($e:ident, $mask:ident, $load:ident, $store:ident, $join:ident, $index:ident($($even:literal)*)) => {
        // SAFETY: callers vouch for what the trait asks of them.
        #[inline(always)]
        unsafe fn load_evens(p: *const $e) -> Self {
            // SAFETY: the caller vouches for the instruction set and for two vectors of elements.
            unsafe {
                let (low, high) = (Self::load(p), Self::load(p.add(Self::LANES)));
                std::arch::x86_64::$join(low, std::arch::x86_64::$index($($even),*), high)
            }
        }
        // SAFETY: callers vouch for what the trait asks of them.
        #[inline(always)]
        unsafe fn load_some(p: *const $e, count: usize) -> Self {
            // SAFETY: the caller vouches for the instruction set, and for the elements that the mask names.
            unsafe { std::arch::x86_64::$load(((1u32 << count) - 1) as std::arch::x86_64::$mask, p) }
        }
        // SAFETY: as above.
        #[inline(always)]
        unsafe fn store_some(self, p: *mut $e, count: usize) {
            // SAFETY: as above.
            unsafe { std::arch::x86_64::$store(p, ((1u32 << count) - 1) as std::arch::x86_64::$mask, self) }
        }
    };
}

#[cfg(target_arch = "x86_64")]
macro_rules! floats {
    ($vector:ident, $e:ident, sum $sum:expr, $($some:tt)*) => {
        impl Floats for std::arch::x86_64::$vector {
            $($some)*
            // SAFETY: callers vouch for what the trait asks of them.
            #[inline(always)]
            unsafe fn sum(self) -> $e {
                // SAFETY: the caller vouches for the instruction set.
                unsafe { $sum(self) }
            }
        }
    };
}

/// The sum of a vector's elements by way of memory, halves joined first.
///
/// # Safety
/// As for [`Vector`].
#[cfg(target_arch = "x86_64")]
#[inline(always)]
unsafe fn sum_in_memory<V: Vector<E: std::ops::Add<Output = V::E> + Default + Copy>>(v: V) -> V::E {
    let mut all = [V::E::default(); 8];
    debug_assert!(V::LANES <= all.len(), "no room for a vector");
    // SAFETY: the caller vouches for the instruction set; `all` has room for the vectors that this is called with.
    unsafe { v.store(all.as_mut_ptr()) };
    let mut width = V::LANES;
    while width > 1 {
        width /= 2;
        for i in 0..width {
            all[i] = all[i] + all[i + width];
        }
    }
    all[0]
}
#[cfg(target_arch = "x86_64")]
floats!(__m512, f32, sum std::arch::x86_64::_mm512_reduce_add_ps, some_by_mask!(f32, __mmask16, _mm512_maskz_loadu_ps, _mm512_mask_storeu_ps,
    _mm512_permutex2var_ps, _mm512_setr_epi32(0 2 4 6 8 10 12 14 16 18 20 22 24 26 28 30)););
#[cfg(target_arch = "x86_64")]
floats!(__m512d, f64, sum std::arch::x86_64::_mm512_reduce_add_pd, some_by_mask!(f64, __mmask8, _mm512_maskz_loadu_pd, _mm512_mask_storeu_pd,
    _mm512_permutex2var_pd, _mm512_setr_epi64(0 2 4 6 8 10 12 14)););
#[cfg(target_arch = "x86_64")]
floats!(__m256, f32, sum sum_in_memory, some_by_memory!(f32, 8););
#[cfg(target_arch = "x86_64")]
floats!(__m256d, f64, sum sum_in_memory, some_by_memory!(f64, 4););

#[cfg(target_arch = "x86_64")]
macro_rules! vector {
    ($vector:ident, $e:ident, $lanes:literal, $zero:ident, $splat:ident, $load:ident, $store:ident, $fma:ident, $add:ident) => {
        impl Vector for std::arch::x86_64::$vector {
            type E = $e;
            const LANES: usize = $lanes;
            // SAFETY: callers vouch for what the trait asks of them.
            #[inline(always)]
            unsafe fn zero() -> Self {
                // SAFETY: the caller vouches for the instruction set.
                unsafe { std::arch::x86_64::$zero() }
            }
            // SAFETY: callers vouch for what the trait asks of them.
            #[inline(always)]
            unsafe fn splat(p: *const $e) -> Self {
                // SAFETY: the caller vouches for it and for `p`.
                unsafe { std::arch::x86_64::$splat(p.read()) }
            }
            // SAFETY: callers vouch for what the trait asks of them.
            #[inline(always)]
            unsafe fn load(p: *const $e) -> Self {
                // SAFETY: as above; the instruction takes any address.
                unsafe { std::arch::x86_64::$load(p) }
            }
            // SAFETY: callers vouch for what the trait asks of them.
            #[inline(always)]
            unsafe fn store(self, p: *mut $e) {
                // SAFETY: as above.
                unsafe { std::arch::x86_64::$store(p, self) }
            }
            // SAFETY: callers vouch for what the trait asks of them.
            #[inline(always)]
            unsafe fn multiply_add(self, b: Self, c: Self) -> Self {
                // SAFETY: the caller vouches for the instruction set.
                unsafe { std::arch::x86_64::$fma(self, b, c) }
            }
            // SAFETY: callers vouch for what the trait asks of them.
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
pub(super) struct Short<T, const N: usize>([T; N]);

macro_rules! short {
    ($e:ident, $lanes:literal) => {
        impl Vector for Short<$e, $lanes> {
            type E = $e;
            const LANES: usize = $lanes;
            // SAFETY: callers vouch for what the trait asks of them.
            #[inline(always)]
            unsafe fn zero() -> Self {
                Short([0.0; $lanes])
            }
            // SAFETY: callers vouch for what the trait asks of them.
            #[inline(always)]
            unsafe fn splat(p: *const $e) -> Self {
                // SAFETY: the caller vouches for `p`.
                Short([unsafe { p.read() }; $lanes])
            }
            // SAFETY: callers vouch for what the trait asks of them.
            #[inline(always)]
            unsafe fn load(p: *const $e) -> Self {
                // SAFETY: the caller vouches for so many elements.
                Short(unsafe { p.cast::<[$e; $lanes]>().read() })
            }
            // SAFETY: callers vouch for what the trait asks of them.
            #[inline(always)]
            unsafe fn store(self, p: *mut $e) {
                // SAFETY: as above.
                unsafe { p.cast::<[$e; $lanes]>().write(self.0) }
            }
            // SAFETY: callers vouch for what the trait asks of them.
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
            // SAFETY: callers vouch for what the trait asks of them.
            #[inline(always)]
            unsafe fn add(self, b: Self) -> Self {
                Short(std::array::from_fn(|i| self.0[i] + b.0[i]))
            }
        }
    };
}
short!(f32, 4);
short!(f64, 2);
impl Floats for Short<f32, 4> {
    some_by_memory!(f32, 4);
    // SAFETY: callers vouch for what the trait asks of them.
    #[inline(always)]
    unsafe fn sum(self) -> f32 {
        (self.0[0] + self.0[2]) + (self.0[1] + self.0[3])
    }
}
impl Floats for Short<f64, 2> {
    some_by_memory!(f64, 2);
    // SAFETY: callers vouch for what the trait asks of them.
    #[inline(always)]
    unsafe fn sum(self) -> f64 {
        self.0[0] + self.0[1]
    }
}

/// A vector of i32 whose elements are multiplied in a way of its own.
#[cfg(target_arch = "x86_64")]
macro_rules! int_vector {
    ($(#[$doc:meta])* $name:ident, $vector:ident, $lanes:literal, $zero:ident, $splat:ident, $load:ident, $store:ident, $add:ident,
     |$a:ident, $b:ident, $c:ident| $product:expr) => {
        $(#[$doc])*
        #[derive(Clone, Copy)]
        pub(super) struct $name(std::arch::x86_64::$vector);
        impl Vector for $name {
            type E = i32;
            const LANES: usize = $lanes;
            // SAFETY: callers vouch for what the trait asks of them.
            #[inline(always)]
            unsafe fn zero() -> Self {
                // SAFETY: the caller vouches for the instruction set.
                $name(unsafe { std::arch::x86_64::$zero() })
            }
            // SAFETY: callers vouch for what the trait asks of them.
            #[inline(always)]
            unsafe fn splat(p: *const i32) -> Self {
                // SAFETY: the caller vouches for it and for `p`.
                $name(unsafe { std::arch::x86_64::$splat(p.read()) })
            }
            // SAFETY: callers vouch for what the trait asks of them.
            #[inline(always)]
            unsafe fn load(p: *const i32) -> Self {
                // SAFETY: as above; the instruction takes any address.
                $name(unsafe { std::arch::x86_64::$load(p.cast()) })
            }
            // SAFETY: callers vouch for what the trait asks of them.
            #[inline(always)]
            unsafe fn store(self, p: *mut i32) {
                // SAFETY: as above.
                unsafe { std::arch::x86_64::$store(p.cast(), self.0) }
            }
            // SAFETY: callers vouch for what the trait asks of them.
            #[inline(always)]
            unsafe fn multiply_add(self, b: Self, c: Self) -> Self {
                use std::arch::x86_64::*;
                let ($a, $b, $c) = (self.0, b.0, c.0);
                // SAFETY: the caller vouches for the instruction set.
                $name(unsafe { $product })
            }
            // SAFETY: callers vouch for what the trait asks of them.
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
pub(super) fn pair(first: i16, second: i16) -> i32 {
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
        pub(super) struct $name([i32; 4]);
        impl Vector for $name {
            type E = i32;
            const LANES: usize = 4;
            // SAFETY: callers vouch for what the trait asks of them.
            #[inline(always)]
            unsafe fn zero() -> Self {
                $name([0; 4])
            }
            // SAFETY: callers vouch for what the trait asks of them.
            #[inline(always)]
            unsafe fn splat(p: *const i32) -> Self {
                // SAFETY: the caller vouches for `p`.
                $name([unsafe { p.read() }; 4])
            }
            // SAFETY: callers vouch for what the trait asks of them.
            #[inline(always)]
            unsafe fn load(p: *const i32) -> Self {
                // SAFETY: the caller vouches for so many elements.
                $name(unsafe { p.cast::<[i32; 4]>().read() })
            }
            // SAFETY: callers vouch for what the trait asks of them.
            #[inline(always)]
            unsafe fn store(self, p: *mut i32) {
                // SAFETY: as above.
                unsafe { p.cast::<[i32; 4]>().write(self.0) }
            }
            // SAFETY: callers vouch for what the trait asks of them.
            #[inline(always)]
            unsafe fn multiply_add(self, b: Self, c: Self) -> Self {
                let one = |i: usize| {
                    let ($a, $b) = (self.0[i], b.0[i]);
                    c.0[i].wrapping_add($product)
                };
                $name(std::array::from_fn(one))
            }
            // SAFETY: callers vouch for what the trait asks of them.
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
