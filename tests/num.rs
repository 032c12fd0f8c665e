//! `gpuctl::num` with number types of other crates: all seven functions on decimals, big integers and i128.

use gpuctl::base::Code;
use gpuctl::num::{self, Array, Num};
use num_bigint::BigInt;
use rust_decimal::Decimal;

/// A decimal; overflow and division by zero are no number.
#[derive(Clone, Debug, PartialEq)]
struct Dec(Decimal);

impl Num for Dec {
    fn zero() -> Self {
        Dec(Decimal::ZERO)
    }
    fn try_add(&self, other: &Self) -> Option<Self> {
        self.0.checked_add(other.0).map(Dec)
    }
    fn try_sub(&self, other: &Self) -> Option<Self> {
        self.0.checked_sub(other.0).map(Dec)
    }
    fn try_mul(&self, other: &Self) -> Option<Self> {
        self.0.checked_mul(other.0).map(Dec)
    }
    fn try_div(&self, other: &Self) -> Option<Self> {
        self.0.checked_div(other.0).map(Dec)
    }
}

/// An integer without bounds.
#[derive(Clone, Debug, PartialEq)]
struct Big(BigInt);

impl Num for Big {
    fn zero() -> Self {
        Big(BigInt::ZERO)
    }
    fn try_add(&self, other: &Self) -> Option<Self> {
        Some(Big(&self.0 + &other.0))
    }
    fn try_sub(&self, other: &Self) -> Option<Self> {
        Some(Big(&self.0 - &other.0))
    }
    fn try_mul(&self, other: &Self) -> Option<Self> {
        Some(Big(&self.0 * &other.0))
    }
    fn try_div(&self, other: &Self) -> Option<Self> {
        self.0.checked_div(&other.0).map(Big)
    }
}

/// All seven functions on two matrices of small whole numbers, given as the type's own.
fn seven<T: Num + PartialEq + std::fmt::Debug>(from: impl Fn(i64) -> T) {
    let array = |shape: &[u64], v: &[i64]| Array::new(shape, v.iter().map(|x| from(*x)).collect()).unwrap();
    let a = array(&[2, 2], &[6, -8, 10, 12]);
    let b = array(&[2, 2], &[3, 2, -5, 4]);
    assert_eq!(num::add(&a, &b).unwrap(), array(&[2, 2], &[9, -6, 5, 16]));
    assert_eq!(num::sub(&a, &b).unwrap(), array(&[2, 2], &[3, -10, 15, 8]));
    assert_eq!(num::mul(&a, &b).unwrap(), array(&[2, 2], &[18, -16, -50, 48]));
    assert_eq!(num::div(&a, &b).unwrap(), array(&[2, 2], &[2, -4, -2, 3]));
    assert_eq!(num::gemm(&a, &b).unwrap(), array(&[2, 2], &[58, -20, -30, 68]));
    assert_eq!(num::sum(&a, &[0]).unwrap(), array(&[2], &[16, 4]));
    assert_eq!(num::sum(&a, &[]).unwrap(), array(&[], &[20]));
    assert_eq!(num::transpose(&a).unwrap(), array(&[2, 2], &[6, 10, -8, 12]));
}

#[test]
fn all_seven_functions_run_in_every_type() {
    seven(i128::from);
    seven(|v| Dec(Decimal::from(v)));
    seven(|v| Big(BigInt::from(v)));
}

/// What the types are for: decimals that binary floats cannot hold, products beyond 128 bits.
#[test]
fn the_types_keep_their_promise() {
    let dec = |text: &str| Dec(text.parse().unwrap());
    let tenths = Array::new(&[10], vec![dec("0.1"); 10]).unwrap();
    assert_eq!(num::sum(&tenths, &[]).unwrap().values(), [dec("1.0")]);
    assert_ne!((0..10).fold(0.0, |acc, _| acc + 0.1), 1.0, "f64 does not");

    let power = Big(BigInt::from(2).pow(200));
    let row = Array::new(&[1, 3], vec![power.clone(); 3]).unwrap();
    let product = num::gemm(&row, &num::transpose(&row).unwrap()).unwrap();
    assert_eq!(product.values(), [Big(BigInt::from(3) * BigInt::from(2).pow(400))]);

    // 128 bits: sums that i64 would lose.
    let large = Array::new(&[4], vec![i128::from(i64::MAX); 4]).unwrap();
    assert_eq!(num::sum(&large, &[]).unwrap().values(), [4 * i128::from(i64::MAX)]);
}

#[test]
fn what_is_no_number_is_a_typed_error() {
    let most = Array::new(&[2], vec![Dec(Decimal::ONE), Dec(Decimal::MAX)]).unwrap();
    let e = num::add(&most, &most).unwrap_err();
    assert_eq!(e.code(), Code::NumberRange);
    assert!(e.to_string().contains("add: element [1]"), "{e}");
    let nothing = Array::new(&[2], vec![Dec(Decimal::ONE), Dec(Decimal::ZERO)]).unwrap();
    assert_eq!(num::div(&most, &nothing).unwrap_err().code(), Code::NumberRange);
    assert_eq!(num::sum(&num::mul(&most, &nothing).unwrap(), &[]).unwrap().values(), [Dec(Decimal::ONE)]);
    let zero = Array::new(&[1], vec![Big(BigInt::ZERO)]).unwrap();
    assert_eq!(num::div(&zero, &zero).unwrap_err().code(), Code::NumberRange);
}
