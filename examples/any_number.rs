//! Matrices of a number type that no device knows: fractions, exact to the last digit.
//!
//! `cargo run --example any_number`. Supported is not accelerated: `gpuctl::num` runs textbook loops on one CPU thread.
#![allow(clippy::print_stdout, reason = "an example shows its results")]

use gpuctl::base::Result;
use gpuctl::num::{self, Array, Num};

/// A fraction in lowest terms, with a positive denominator.
#[derive(Clone, Debug, PartialEq)]
struct Fraction(i128, i128);

impl Fraction {
    /// `None` if the denominator is zero or a part exceeds 128 bits.
    fn new(above: i128, below: i128) -> Option<Self> {
        let (mut a, mut b) = (above.checked_abs()?, below.checked_abs()?);
        while b != 0 {
            (a, b) = (b, a % b);
        }
        let sign = below.signum();
        (sign != 0).then(|| Fraction(sign * above / a, sign * below / a))
    }
}

impl Num for Fraction {
    fn zero() -> Self {
        Fraction(0, 1)
    }
    fn try_add(&self, o: &Self) -> Option<Self> {
        Fraction::new(self.0.checked_mul(o.1)?.checked_add(o.0.checked_mul(self.1)?)?, self.1.checked_mul(o.1)?)
    }
    fn try_sub(&self, o: &Self) -> Option<Self> {
        self.try_add(&Fraction(-o.0, o.1))
    }
    fn try_mul(&self, o: &Self) -> Option<Self> {
        Fraction::new(self.0.checked_mul(o.0)?, self.1.checked_mul(o.1)?)
    }
    fn try_div(&self, o: &Self) -> Option<Self> {
        self.try_mul(&Fraction::new(o.1, o.0)?)
    }
}

fn main() -> Result<()> {
    // The Hilbert matrix, which floating point inverts badly, times its exact inverse.
    let n = 4i128;
    let hilbert = (0..n * n).map(|i| Fraction(1, i / n + i % n + 1)).collect();
    let hilbert = Array::new(&[4, 4], hilbert)?;
    let inverse = [16, -120, 240, -140, -120, 1200, -2700, 1680, 240, -2700, 6480, -4200, -140, 1680, -4200, 2800];
    let inverse = Array::new(&[4, 4], inverse.map(|v| Fraction(v, 1)).to_vec())?;
    let product = num::gemm(&hilbert, &inverse)?;
    for row in product.values().chunks(4) {
        println!("{}", row.iter().map(|f| format!("{}/{}", f.0, f.1)).collect::<Vec<_>>().join("  "));
    }
    let one = |i: usize| Fraction(i128::from(i / 4 == i % 4), 1);
    assert!(product.values().iter().enumerate().all(|(i, f)| *f == one(i)), "the product is the identity, exactly");
    let halves = num::div(&hilbert, &Array::new(&[], vec![Fraction(2, 1)])?)?;
    println!("row sums of half of it: {:?}", num::sum(&halves, &[1])?.values());
    Ok(())
}
