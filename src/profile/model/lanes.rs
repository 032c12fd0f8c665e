//! Four numbers side by side: what a choice by curves calculates for both sides at once. That takes 409 instructions instead of
//! 490 (`cargo test --test choose instructions -- --nocapture`).
//!
//! On x86-64 each operation is one or a few of SSE2, which all of these processors have; elsewhere the same in plain numbers.

/// The largest biased exponent of a finite f32.
pub(super) const MOST_EXPONENT: u8 = 254;

#[cfg(any(test, not(target_arch = "x86_64")))]
mod plain {
    /// Four numbers.
    #[derive(Clone, Copy, Debug, PartialEq)]
    pub(in crate::profile::model) struct F4([f32; 4]);

    #[cfg_attr(target_arch = "x86_64", allow(dead_code, reason = "here to be compared with the other"))]
    impl F4 {
        fn with(self, other: F4, f: impl Fn(f32, f32) -> f32) -> F4 {
            F4(std::array::from_fn(|i| f(self.0[i], other.0[i])))
        }
        fn mask(self, other: F4, f: impl Fn(f32, f32) -> bool) -> u32 {
            (0..4).filter(|i| f(self.0[*i], other.0[*i])).map(|i| 1 << i).sum()
        }
        pub(in crate::profile::model) fn of(numbers: [u64; 4]) -> F4 {
            F4(numbers.map(|n| n as f64 as f32))
        }
        pub(in crate::profile::model) fn upper_halves(bytes: [u8; 8]) -> F4 {
            let half = |i: usize| u32::from(u16::from_le_bytes([bytes[2 * i], bytes[2 * i + 1]]));
            F4(std::array::from_fn(|i| f32::from_bits(half(i) << 16)))
        }
        pub(in crate::profile::model) fn powers(exponents: [u8; 8]) -> [F4; 2] {
            let power = |i: usize| f32::from_bits(u32::from(exponents[i]) << 23);
            [F4(std::array::from_fn(power)), F4(std::array::from_fn(|i| power(i + 4)))]
        }
        pub(in crate::profile::model) fn splat(v: f32) -> F4 {
            F4([v; 4])
        }
        pub(in crate::profile::model) fn pairs(a: f32, b: f32) -> F4 {
            F4([a, a, b, b])
        }
        pub(in crate::profile::model) fn lower_twice(self) -> F4 {
            Self::pairs(self.0[0], self.0[1])
        }
        pub(in crate::profile::model) fn upper_twice(self) -> F4 {
            Self::pairs(self.0[2], self.0[3])
        }
        pub(in crate::profile::model) fn upper(self) -> F4 {
            F4([self.0[2], self.0[3], self.0[2], self.0[3]])
        }
        pub(in crate::profile::model) fn first(self) -> f32 {
            self.0[0]
        }
        pub(in crate::profile::model) fn with_last(self, v: f32) -> F4 {
            F4([self.0[0], self.0[1], self.0[2], v])
        }
        pub(in crate::profile::model) fn times(self, other: F4) -> F4 {
            self.with(other, |a, b| a * b)
        }
        pub(in crate::profile::model) fn plus(self, other: F4) -> F4 {
            self.with(other, |a, b| a + b)
        }
        pub(in crate::profile::model) fn max(self, other: F4) -> F4 {
            self.with(other, |a, b| if a > b { a } else { b })
        }
        pub(in crate::profile::model) fn at_least(self, other: F4) -> u32 {
            self.mask(other, |a, b| a >= b)
        }
        pub(in crate::profile::model) fn below(self, other: F4) -> u32 {
            self.mask(other, |a, b| a < b)
        }
    }
}

#[cfg(target_arch = "x86_64")]
mod sse {
    use std::arch::x86_64::__m128;

    use pulp::core_arch::x86::{Sse, Sse2};

    /// Four numbers.
    #[derive(Clone, Copy, Debug)]
    pub(in crate::profile::model) struct F4(__m128);

    /// Both are part of the target: known when it is compiled.
    #[inline(always)]
    fn sse() -> (Sse, Sse2) {
        match (Sse::try_new(), Sse2::try_new()) {
            (Some(one), Some(two)) => (one, two),
            _ => unreachable!("x86-64 has SSE2"),
        }
    }

    impl F4 {
        /// The nearest numbers, or nearly.
        #[inline(always)]
        pub(in crate::profile::model) fn of([a, b, c, d]: [u64; 4]) -> F4 {
            let (one, two) = sse();
            // As halves of 32 bits in the mantissas of 2^52 and 2^84, from which these are taken again: exact but for the last sum.
            let pair = |a: u64, b: u64| {
                let both = two._mm_set_epi64x(b as i64, a as i64);
                let lower = two._mm_and_si128(both, two._mm_set1_epi64x(0xFFFF_FFFF));
                let lower = two._mm_or_si128(lower, two._mm_set1_epi64x(2f64.powi(52).to_bits() as i64));
                let upper = two._mm_srli_epi64::<32>(both);
                let upper = two._mm_or_si128(upper, two._mm_set1_epi64x(2f64.powi(84).to_bits() as i64));
                let surplus = two._mm_set1_pd(2f64.powi(84) + 2f64.powi(52));
                let upper = two._mm_sub_pd(two._mm_castsi128_pd(upper), surplus);
                two._mm_cvtpd_ps(two._mm_add_pd(upper, two._mm_castsi128_pd(lower)))
            };
            F4(one._mm_movelh_ps(pair(a, b), pair(c, d)))
        }
        /// Those of which these are the upper halves, in the order of the bytes.
        #[inline(always)]
        pub(in crate::profile::model) fn upper_halves(bytes: [u8; 8]) -> F4 {
            let (_, two) = sse();
            let halves = two._mm_set_epi64x(0, i64::from_le_bytes(bytes));
            F4(two._mm_castsi128_ps(two._mm_unpacklo_epi16(two._mm_setzero_si128(), halves)))
        }
        /// Powers of two by their biased exponents, up to [`super::MOST_EXPONENT`]; 0 is 0.
        #[inline(always)]
        pub(in crate::profile::model) fn powers(exponents: [u8; 8]) -> [F4; 2] {
            let (_, two) = sse();
            let zero = two._mm_setzero_si128();
            let halves = two._mm_unpacklo_epi8(zero, two._mm_set_epi64x(0, i64::from_le_bytes(exponents)));
            let whole = [two._mm_unpacklo_epi16(zero, halves), two._mm_unpackhi_epi16(zero, halves)];
            // Exponents end a bit lower than bytes do.
            whole.map(|w| F4(two._mm_castsi128_ps(two._mm_srli_epi32::<1>(w))))
        }
        /// This one, four times.
        #[inline(always)]
        pub(in crate::profile::model) fn splat(v: f32) -> F4 {
            F4(sse().0._mm_set1_ps(v))
        }
        /// Each twice.
        #[inline(always)]
        pub(in crate::profile::model) fn pairs(a: f32, b: f32) -> F4 {
            let (one, _) = sse();
            F4(one._mm_unpacklo_ps(one._mm_set_ss(a), one._mm_set_ss(b))).lower_twice()
        }
        /// The first two, each twice.
        #[inline(always)]
        pub(in crate::profile::model) fn lower_twice(self) -> F4 {
            F4(sse().0._mm_unpacklo_ps(self.0, self.0))
        }
        /// The last two, each twice.
        #[inline(always)]
        pub(in crate::profile::model) fn upper_twice(self) -> F4 {
            F4(sse().0._mm_unpackhi_ps(self.0, self.0))
        }
        /// The last two in the place of the first two.
        #[inline(always)]
        pub(in crate::profile::model) fn upper(self) -> F4 {
            F4(sse().0._mm_movehl_ps(self.0, self.0))
        }
        /// The first.
        #[inline(always)]
        pub(in crate::profile::model) fn first(self) -> f32 {
            sse().0._mm_cvtss_f32(self.0)
        }
        /// Another one in the last place.
        #[inline(always)]
        pub(in crate::profile::model) fn with_last(self, v: f32) -> F4 {
            let (one, _) = sse();
            let upper = one._mm_unpacklo_ps(self.upper().0, one._mm_set_ss(v));
            F4(one._mm_movelh_ps(self.0, upper))
        }
        /// Products.
        #[inline(always)]
        pub(in crate::profile::model) fn times(self, other: F4) -> F4 {
            F4(sse().0._mm_mul_ps(self.0, other.0))
        }
        /// Sums.
        #[inline(always)]
        pub(in crate::profile::model) fn plus(self, other: F4) -> F4 {
            F4(sse().0._mm_add_ps(self.0, other.0))
        }
        /// The larger of two, neither of which is NaN.
        #[inline(always)]
        pub(in crate::profile::model) fn max(self, other: F4) -> F4 {
            F4(sse().0._mm_max_ps(self.0, other.0))
        }
        /// A bit for each that is no less.
        #[inline(always)]
        pub(in crate::profile::model) fn at_least(self, other: F4) -> u32 {
            let (one, _) = sse();
            one._mm_movemask_ps(one._mm_cmpge_ps(self.0, other.0)) as u32
        }
        /// A bit for each that is less.
        #[inline(always)]
        pub(in crate::profile::model) fn below(self, other: F4) -> u32 {
            let (one, _) = sse();
            one._mm_movemask_ps(one._mm_cmplt_ps(self.0, other.0)) as u32
        }
    }
}

#[cfg(not(target_arch = "x86_64"))]
pub(super) use plain::F4;
#[cfg(target_arch = "x86_64")]
pub(super) use sse::F4;

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use super::*;
    use crate::base::rng::Philox;

    /// The bits of four numbers of either kind.
    macro_rules! bits {
        ($v:expr) => {{
            let [a, b] = [$v.lower_twice(), $v.upper_twice()];
            [a.first(), a.upper().first(), b.first(), b.upper().first()].map(f32::to_bits)
        }};
    }

    /// Bit by bit.
    fn same(a: F4, b: plain::F4, what: &str) {
        assert_eq!(bits!(a), bits!(b), "{what}");
    }

    #[test]
    fn both_calculate_the_same() {
        let rng = Philox::new(5);
        let special = [0, 1, 2, 3, 1 << 24, (1 << 24) + 1, u64::from(u32::MAX), 1 << 52, (1 << 53) + 1, u64::MAX];
        for round in 0..20_000u64 {
            let number = |at: u64| {
                let bits = rng.u64(round, at);
                let kind = bits >> 58;
                if kind < 8 { special[(bits % special.len() as u64) as usize] } else { bits >> kind.min(63) }
            };
            let four = |at: u64| std::array::from_fn(|i| number(4 * at + i as u64));
            let (x, y) = (four(0), four(1));
            let (a, b) = (F4::of(x), F4::of(y));
            let (p, q) = (plain::F4::of(x), plain::F4::of(y));
            same(a, p, "of");
            same(a.plus(b), p.plus(q), "plus");
            same(a.times(b), p.times(q), "times");
            same(a.max(b), p.max(q), "max");
            same(a.with_last(b.first()), p.with_last(q.first()), "with_last");
            same(F4::pairs(a.first(), b.first()), plain::F4::pairs(p.first(), q.first()), "pairs");
            same(F4::splat(b.first()), plain::F4::splat(q.first()), "splat");
            same(a.upper(), p.upper(), "upper");
            assert_eq!((a.at_least(b), a.below(b)), (p.at_least(q), p.below(q)));
            assert_eq!(a.at_least(b) ^ a.below(b), 15);
            let bytes = x[0].to_le_bytes();
            // Of numbers: what is none has no one form.
            let finite = bytes.map(|b| b & 0x7E);
            same(F4::upper_halves(finite), plain::F4::upper_halves(finite), "upper_halves");
            let exponents = bytes.map(|b| b.min(MOST_EXPONENT));
            for (a, p) in F4::powers(exponents).into_iter().zip(plain::F4::powers(exponents)) {
                same(a, p, "powers");
            }
        }
        same(F4::powers([127; 8])[1], plain::F4::splat(1.0), "2^0");
        same(F4::powers([MOST_EXPONENT; 8])[0], plain::F4::splat(2f32.powi(127)), "the largest");
        same(F4::powers([0; 8])[0], plain::F4::splat(0.0), "none");
    }
}
