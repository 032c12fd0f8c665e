//! The error function and the constants of its neighbours, in double-doubles. Nothing here is shared with a kernel.

use twofloat::TwoFloat;

use super::exact::Exact;

/// sqrt(2) as a double-double.
pub fn sqrt_2() -> Exact {
    Exact::F(TwoFloat::new_add(std::f64::consts::SQRT_2, -9.667_293_313_452_913e-17))
}

/// 1 / sqrt(2 pi), the normal density at 0.
pub fn density_at_0() -> Exact {
    Exact::F(TwoFloat::new_add(0.398_942_280_401_432_7, -2.492_327_202_277_73e-17))
}

/// sqrt(2 / pi).
pub fn sqrt_2_over_pi() -> Exact {
    Exact::F(TwoFloat::new_add(0.797_884_560_802_865_4, -4.984_654_404_555_46e-17))
}

impl Exact {
    /// The error function: 2/sqrt(pi) · e^-x² · sum over n of 2^n x^(2n+1) / (2n+1)!! (Abramowitz and Stegun 7.1.6). All
    /// terms have one sign, so nothing cancels. Relative error below 2^-88 (tested).
    pub fn erf(self) -> Self {
        let x = self.to_f64();
        // erfc(9) is 4e-37, beyond the last place of a double-double.
        if x.is_nan() || x.abs() > 9.0 {
            return Exact::f(if x.is_nan() { x } else { x.signum() });
        }
        let two_over_root_pi = Exact::F(TwoFloat::new_add(std::f64::consts::FRAC_2_SQRT_PI, 1.533_545_961_316_588e-17));
        if x == 0.0 {
            return self;
        }
        if x.abs() < 1e-100 {
            // x - x^3/3 + ...: the second term is 10^200 times smaller.
            return self.mul(two_over_root_pi);
        }
        let d = self.dd();
        let square = d * d;
        let (mut term, mut sum) = (d, d);
        let mut n = 1.0;
        while term.hi().abs() > sum.hi().abs() * 1e-34 {
            term = term * square * 2.0 / (2.0 * n + 1.0);
            sum += term;
            n += 1.0;
        }
        Exact::F(sum).mul(Exact::F(-square).exp()).mul(two_over_root_pi)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Values of mpmath 1.3 at 60 digits, as double-doubles.
    #[test]
    fn erf_agrees_with_a_multi_precision_library() {
        let known = [
            (2f64.powi(-60), 9.787_129_154_818_71e-19, 1.330_139_090_292_653e-35),
            (1e-3, 0.001_128_378_790_969_236_5, -7.887_353_579_452_36e-20),
            (0.25, 0.276_326_390_168_236_96, -2.422_707_622_118_416_3e-17),
            (0.5, 0.520_499_877_813_046_5, 1.900_077_467_916_287e-17),
            (0.92, 0.806_767_721_547_761_7, 3.446_682_237_880_579_7e-17),
            (1.0, 0.842_700_792_949_714_9, -2.480_101_178_911_860_2e-17),
            (1.5, 0.966_105_146_475_310_8, -3.386_703_144_168_069_6e-17),
            (2.0, 0.995_322_265_018_952_7, 2.207_198_583_297_65e-17),
            (3.0, 0.999_977_909_503_001_4, 5.363_397_058_636_269e-17),
            (4.5, 0.999_999_999_803_383_9, 1.261_472_797_505_494_7e-17),
            (6.0, 1.0, -2.151_973_671_249_891_3e-17),
            (8.5, 1.0, -2.762_324_071_333_771_6e-33),
        ];
        for (x, hi, lo) in known {
            let want = Exact::F(TwoFloat::new_add(hi, lo));
            for (x, want) in [(x, want), (-x, want.neg())] {
                let off = Exact::f(x).erf().add(want.neg()).abs_f64() / hi;
                assert!(off < 2f64.powi(-88), "erf({x}) is off by 2^{}", off.log2());
            }
        }
        assert_eq!(Exact::f(f64::NEG_INFINITY).erf().to_f64(), -1.0);
        assert!(Exact::f(f64::NAN).erf().to_f64().is_nan());
        assert_eq!(Exact::f(0.0).erf().to_f64(), 0.0);
        assert!(Exact::f(-0.0).erf().to_f64().is_sign_negative());
    }

    #[test]
    fn the_constants_are_what_they_say() {
        let far = |a: Exact, b: f64| a.add(Exact::f(-b)).abs_f64();
        assert!(far(sqrt_2().mul(sqrt_2()), 2.0) < 2f64.powi(-100));
        // (2/pi) / (1/(2 pi)) = 4.
        let ratio = sqrt_2_over_pi().div(density_at_0());
        assert!(far(ratio, 2.0) < 2f64.powi(-100), "{:?}", ratio.to_f64());
        let pi = 2.0 / (sqrt_2_over_pi().to_f64() * sqrt_2_over_pi().to_f64());
        assert!((pi - std::f64::consts::PI).abs() < 1e-15);
    }
}
