//! All twelve number types as the CPU's templates see them: how an element is stored, in what it is computed, and the
//! number rules of its arithmetic (integers wrap; see each method).

use half::{bf16, f16};

use super::math::Real;
use crate::kernel::Param;

/// A type of arithmetic: f32, f64 and the integers.
pub trait Number: bytemuck::Pod + Send + Sync + PartialOrd + Default {
    /// 1.
    const ONE: Self;
    /// a + b; integers wrap.
    fn add(self, b: Self) -> Self;
    /// a - b; integers wrap.
    fn sub(self, b: Self) -> Self;
    /// a · b; integers wrap.
    fn mul(self, b: Self) -> Self;
    /// a / b; integers truncate, x / 0 = x and MIN / -1 = MIN, as in WGSL.
    fn div(self, b: Self) -> Self;
    /// True for NaN.
    fn is_nan(self) -> bool;
    /// A scalar of a call.
    fn of(p: Param) -> Self;
    /// From a count, rounded or wrapped.
    fn of_usize(n: usize) -> Self;
}

macro_rules! int_number {
    ($($t:ident)*) => {$(
        impl Number for $t {
            const ONE: $t = 1;
            #[inline(always)]
            fn add(self, b: $t) -> $t {
                self.wrapping_add(b)
            }
            #[inline(always)]
            fn sub(self, b: $t) -> $t {
                self.wrapping_sub(b)
            }
            #[inline(always)]
            fn mul(self, b: $t) -> $t {
                self.wrapping_mul(b)
            }
            #[inline(always)]
            fn div(self, b: $t) -> $t {
                if b == 0 { self } else { self.wrapping_div(b) }
            }
            #[inline(always)]
            fn is_nan(self) -> bool {
                false
            }
            fn of(p: Param) -> $t {
                p.int() as $t
            }
            fn of_usize(n: usize) -> $t {
                n as $t
            }
        }
        impl Element for $t {
            type Acc = $t;
            #[inline(always)]
            fn load(self) -> $t {
                self
            }
            #[inline(always)]
            fn store(v: $t) -> $t {
                v
            }
        }
    )*};
}
int_number!(i8 i16 i32 i64 u8 u16 u32 u64);

macro_rules! float_number {
    ($($t:ident)*) => {$(
        impl Number for $t {
            const ONE: $t = 1.0;
            #[inline(always)]
            fn add(self, b: $t) -> $t {
                self + b
            }
            #[inline(always)]
            fn sub(self, b: $t) -> $t {
                self - b
            }
            #[inline(always)]
            fn mul(self, b: $t) -> $t {
                self * b
            }
            #[inline(always)]
            fn div(self, b: $t) -> $t {
                self / b
            }
            #[inline(always)]
            fn is_nan(self) -> bool {
                self != self
            }
            fn of(p: Param) -> $t {
                <$t as Real>::of(p.f64())
            }
            fn of_usize(n: usize) -> $t {
                n as $t
            }
        }
        impl Element for $t {
            type Acc = $t;
            #[inline(always)]
            fn load(self) -> $t {
                self
            }
            #[inline(always)]
            fn store(v: $t) -> $t {
                v
            }
        }
    )*};
}
float_number!(f32 f64);

/// A type of storage: all twelve. f16 and bf16 are computed in f32 and rounded to nearest even when stored.
pub trait Element: bytemuck::Pod + Send + Sync {
    /// The type of the arithmetic.
    type Acc: Number;
    /// To arithmetic, exactly.
    fn load(self) -> Self::Acc;
    /// To storage, rounded.
    fn store(v: Self::Acc) -> Self;
}

impl Element for f16 {
    type Acc = f32;
    #[inline(always)]
    fn load(self) -> f32 {
        self.to_f32()
    }
    #[inline(always)]
    fn store(v: f32) -> f16 {
        f16::from_f32(v)
    }
}

impl Element for bf16 {
    type Acc = f32;
    #[inline(always)]
    fn load(self) -> f32 {
        self.to_f32()
    }
    #[inline(always)]
    fn store(v: f32) -> bf16 {
        bf16::from_f32(v)
    }
}

/// `with_element!(dtype, T => expression)`: the expression with `T` standing for the dtype's type of storage.
/// `with_element!(floats dtype, T => expression, else other)`: f32, f64, f16, bf16; `real`: f32 and f64; `ints`: the eight.
#[allow(unused_macros, reason = "the families of kernels take it up one after another")]
macro_rules! with_element {
    (@arms $dtype:expr, $T:ident => $body:expr, [$($d:ident $t:ty),*], $($rest:tt)*) => {
        match $dtype {
            $($crate::base::DType::$d => {
                type $T = $t;
                $body
            })*
            $($rest)*
        }
    };
    (real $dtype:expr, $T:ident => $body:expr, else $none:expr) => {
        $crate::kernel::cpu::number::with_element!(@arms $dtype, $T => $body, [F32 f32, F64 f64], _ => $none,)
    };
    (floats $dtype:expr, $T:ident => $body:expr, else $none:expr) => {
        $crate::kernel::cpu::number::with_element!(@arms $dtype, $T => $body,
            [F32 f32, F64 f64, F16 half::f16, BF16 half::bf16], _ => $none,)
    };
    (ints $dtype:expr, $T:ident => $body:expr, else $none:expr) => {
        $crate::kernel::cpu::number::with_element!(@arms $dtype, $T => $body,
            [I8 i8, I16 i16, I32 i32, I64 i64, U8 u8, U16 u16, U32 u32, U64 u64], _ => $none,)
    };
    ($dtype:expr, $T:ident => $body:expr) => {
        $crate::kernel::cpu::number::with_element!(@arms $dtype, $T => $body,
            [F32 f32, F64 f64, F16 half::f16, BF16 half::bf16,
             I8 i8, I16 i16, I32 i32, I64 i64, U8 u8, U16 u16, U32 u32, U64 u64],)
    };
}
#[allow(unused_imports, reason = "as above")]
pub(crate) use with_element;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::DType;

    #[test]
    fn the_macro_covers_every_dtype() {
        for d in DType::ALL {
            assert_eq!(with_element!(d, T => size_of::<T>() as u64), d.size(), "{d}");
            let floats = with_element!(floats d, T => size_of::<T>() as u64, else 0);
            let ints = with_element!(ints d, T => size_of::<T>() as u64, else 0);
            let real = with_element!(real d, T => size_of::<T>() as u64, else 0);
            assert_eq!((floats > 0, ints > 0), (d.is_float(), !d.is_float()), "{d}");
            assert_eq!(real > 0, matches!(d, DType::F32 | DType::F64));
        }
    }

    #[test]
    fn integers_follow_the_number_rules() {
        assert_eq!((7i32.div(0), i8::MIN.div(-1), (-7i64).div(2), 200u8.add(100)), (7, i8::MIN, -3, 44));
        assert_eq!(<u64 as Number>::of(Param::Wide(u64::MAX)), u64::MAX);
        assert_eq!(<i64 as Number>::of(Param::I64(i64::MIN)), i64::MIN);
    }
}
