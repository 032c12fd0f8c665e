//! The integers' number rules beyond add, sub, mul and div (`number`): powers, roots, signs.

use super::number::Number;

/// The eight integers.
pub trait Whole: Number + Ord {
    /// -x, wrapping.
    fn negate(self) -> Self;
    /// |x|; the smallest number stays itself.
    fn magnitude(self) -> Self;
    /// -1, 0 or 1.
    fn signum(self) -> Self;
    /// floor(sqrt(x)); of a negative number 0.
    fn root(self) -> Self;
    /// x^y with wrapping products. A negative y gives 0, but 1 or -1 where |x| = 1; 0^0 = 1.
    fn power(self, y: Self) -> Self;
}

macro_rules! whole {
    ($($t:ident $unsigned:ident $signed:expr;)*) => {$(
        impl Whole for $t {
            #[inline(always)]
            fn negate(self) -> $t {
                self.wrapping_neg()
            }
            #[inline(always)]
            #[allow(unused_comparisons, reason = "one text for signed and unsigned integers")]
            fn magnitude(self) -> $t {
                if self < 0 { self.wrapping_neg() } else { self }
            }
            #[inline(always)]
            #[allow(unused_comparisons, reason = "as above")]
            fn signum(self) -> $t {
                ((self > 0) as $t).wrapping_sub((self < 0) as $t)
            }
            #[inline(always)]
            fn root(self) -> $t {
                let x = self.max(0);
                // Up to 52 bits, f64's root of a square is exact and below the next square's otherwise.
                if size_of::<$t>() < 8 { (x as f64).sqrt() as $t } else { (x as $unsigned).isqrt() as $t }
            }
            #[inline(always)]
            #[allow(unused_comparisons, reason = "as above")]
            fn power(self, y: $t) -> $t {
                if y < 0 {
                    let odd = y & 1 == 1;
                    return if self == 1 || $signed && self == (0 as $t).wrapping_sub(1) && !odd {
                        1
                    } else if $signed && self == (0 as $t).wrapping_sub(1) {
                        self
                    } else {
                        0
                    };
                }
                let (mut power, mut base, mut rest) = (1 as $t, self, y);
                while rest != 0 {
                    if rest & 1 == 1 {
                        power = power.wrapping_mul(base);
                    }
                    base = base.wrapping_mul(base);
                    rest >>= 1;
                }
                power
            }
        }
    )*};
}
whole! {
    i8 u8 true;
    i16 u16 true;
    i32 u32 true;
    i64 u64 true;
    u8 u8 false;
    u16 u16 false;
    u32 u32 false;
    u64 u64 false;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::Exact;

    #[test]
    fn every_power_of_bytes_is_right() {
        for a in i8::MIN..=i8::MAX {
            for b in i8::MIN..=i8::MAX {
                let want = Exact::int_pow(i128::from(a), i128::from(b)) as i8;
                assert_eq!(a.power(b), want, "{a}^{b}");
                let (a, b) = (a as u8, b as u8);
                assert_eq!(a.power(b), Exact::int_pow(i128::from(a), i128::from(b)) as u8, "{a}^{b}");
            }
        }
        assert_eq!((3u64.power(u64::MAX), (-1i64).power(i64::MIN), 2i32.power(33)), (0xaaaa_aaaa_aaaa_aaab, 1, 0));
    }

    #[test]
    fn roots_floor_and_signs_wrap() {
        for x in (0..=u16::MAX).map(u64::from).chain([u64::from(u32::MAX), (1 << 52) - 1, u64::MAX]) {
            let r = u128::from(x.root());
            assert!(r * r <= u128::from(x) && (r + 1) * (r + 1) > u128::from(x), "{x}");
            if let Ok(small) = u32::try_from(x) {
                assert_eq!(u64::from(small.root()), x.root());
            }
        }
        assert_eq!(((-9i32).root(), i8::MAX.root(), i64::MIN.root()), (0, 11, 0));
        assert_eq!(
            (i8::MIN.magnitude(), i8::MIN.negate(), (-5i64).magnitude(), 5u8.negate()),
            (i8::MIN, i8::MIN, 5, 251)
        );
        assert_eq!((i16::MIN.signum(), 0i16.signum(), 7i16.signum(), u64::MAX.signum()), (-1, 0, 1, 1));
    }
}
