//! Arithmetic on arrays of any number type: 128-bit integers, decimals, big integers, or a type of your own.
//!
//! Supported is not accelerated: these are textbook loops on the CPU, on the calling thread, in row-major order from left
//! to right. No device, profile or kernel takes part, and no command of the tool uses them. The dtypes of [`crate::base::DType`]
//! belong into `engine::Engine`, which runs them on every device.
//!
//! A type takes part by [`Num`]. One that another crate defines needs a wrapper of your own (Rust's orphan rule):
//!
//! ```
//! use gpuctl::num::{self, Array, Num};
//!
//! /// Money in cents that must not overflow.
//! #[derive(Clone, Debug, PartialEq)]
//! struct Cents(i64);
//!
//! impl Num for Cents {
//!     fn zero() -> Self {
//!         Cents(0)
//!     }
//!     fn try_add(&self, other: &Self) -> Option<Self> {
//!         self.0.checked_add(other.0).map(Cents)
//!     }
//!     fn try_sub(&self, other: &Self) -> Option<Self> {
//!         self.0.checked_sub(other.0).map(Cents)
//!     }
//!     fn try_mul(&self, other: &Self) -> Option<Self> {
//!         self.0.checked_mul(other.0).map(Cents)
//!     }
//!     fn try_div(&self, other: &Self) -> Option<Self> {
//!         self.0.checked_div(other.0).map(Cents)
//!     }
//! }
//!
//! # fn main() -> gpuctl::base::Result<()> {
//! let prices = Array::new(&[2, 2], vec![Cents(150), Cents(250), Cents(5), Cents(7)])?;
//! assert_eq!(num::sum(&prices, &[1])?.values(), [Cents(400), Cents(12)]);
//! let most = Array::new(&[1], vec![Cents(i64::MAX)])?;
//! assert!(num::add(&most, &most).is_err()); // `number-range`, never a panic or a wrong number
//! # Ok(())
//! # }
//! ```

use crate::base::{Code, Error, Result, host};

/// A number type. `None` says that the result is not a number of the type: too large, or a division by zero.
pub trait Num: Clone {
    /// The neutral element of addition.
    fn zero() -> Self;
    /// Sum.
    fn try_add(&self, other: &Self) -> Option<Self>;
    /// Difference.
    fn try_sub(&self, other: &Self) -> Option<Self>;
    /// Product.
    fn try_mul(&self, other: &Self) -> Option<Self>;
    /// Quotient.
    fn try_div(&self, other: &Self) -> Option<Self>;
}

/// The rules of all our integers: sums and products wrap, x/0 = x, MIN/-1 = MIN.
macro_rules! integers {
    ($($t:ty)*) => { $(impl Num for $t {
        fn zero() -> Self { 0 }
        fn try_add(&self, other: &Self) -> Option<Self> { Some(self.wrapping_add(*other)) }
        fn try_sub(&self, other: &Self) -> Option<Self> { Some(self.wrapping_sub(*other)) }
        fn try_mul(&self, other: &Self) -> Option<Self> { Some(self.wrapping_mul(*other)) }
        fn try_div(&self, other: &Self) -> Option<Self> {
            Some(if *other == 0 { *self } else { self.wrapping_div(*other) })
        }
    })* }
}
integers!(i8 i16 i32 i64 i128 isize u8 u16 u32 u64 u128 usize);

/// A dense array in row-major order.
#[derive(Clone, Debug, PartialEq)]
pub struct Array<T> {
    shape: Vec<u64>,
    values: Vec<T>,
}

impl<T: Num> Array<T> {
    /// An array of these extents, outermost first; `ShapeMismatch` if their product is not the number of values.
    pub fn new(shape: &[u64], values: Vec<T>) -> Result<Self> {
        if host::count(shape)? != values.len() as u64 {
            return Err(Error::new(Code::ShapeMismatch, format!("{} values for the shape {shape:?}", values.len())));
        }
        Ok(Array { shape: shape.to_vec(), values })
    }
    /// Extents, outermost first; empty for a scalar.
    pub fn shape(&self) -> &[u64] {
        &self.shape
    }
    /// The values in row-major order.
    pub fn values(&self) -> &[T] {
        &self.values
    }
    /// The values alone.
    pub fn into_values(self) -> Vec<T> {
        self.values
    }
}

/// a + b, with NumPy's broadcasting. Errors: `ShapeMismatch`, `NumberRange`.
pub fn add<T: Num>(a: &Array<T>, b: &Array<T>) -> Result<Array<T>> {
    binary("add", a, b, T::try_add)
}

/// a - b, with NumPy's broadcasting. Errors: `ShapeMismatch`, `NumberRange`.
pub fn sub<T: Num>(a: &Array<T>, b: &Array<T>) -> Result<Array<T>> {
    binary("sub", a, b, T::try_sub)
}

/// a · b element by element, with NumPy's broadcasting. Errors: `ShapeMismatch`, `NumberRange`.
pub fn mul<T: Num>(a: &Array<T>, b: &Array<T>) -> Result<Array<T>> {
    binary("mul", a, b, T::try_mul)
}

/// a / b, with NumPy's broadcasting. Errors: `ShapeMismatch`, `NumberRange` (division by zero, where the type refuses it).
pub fn div<T: Num>(a: &Array<T>, b: &Array<T>) -> Result<Array<T>> {
    binary("div", a, b, T::try_div)
}

/// The matrix product A B of m by k and k by n. Errors: `ShapeMismatch`, `NumberRange`.
pub fn gemm<T: Num>(a: &Array<T>, b: &Array<T>) -> Result<Array<T>> {
    let ([m, k], [kb, n]) = (matrix("gemm", "A", a)?, matrix("gemm", "B", b)?);
    if k != kb {
        return Err(mismatch("gemm", format!("A is {m} by {k}, B is {kb} by {n}: the inner sizes differ")));
    }
    let mut values = room("gemm", &[m as u64, n as u64])?;
    for i in 0..m {
        for j in 0..n {
            let mut sum = T::zero();
            for p in 0..k {
                let product = a.values[i * k + p].try_mul(&b.values[p * n + j]);
                let next = product.and_then(|x| sum.try_add(&x));
                sum = next.ok_or_else(|| range("gemm", &[i as u64, j as u64]))?;
            }
            values.push(sum);
        }
    }
    Array::new(&[m as u64, n as u64], values)
}

/// The sum over these axes, which go; over all where none is named. Negative axes count from the end.
/// Errors: `BadArgument` for an axis that is not there, `NumberRange`.
pub fn sum<T: Num>(x: &Array<T>, axes: &[i64]) -> Result<Array<T>> {
    let rank = x.shape.len();
    let mut gone = vec![axes.is_empty(); rank];
    for axis in axes {
        let at = if *axis < 0 { axis.checked_add(rank as i64) } else { Some(*axis) };
        match at.and_then(|a| usize::try_from(a).ok()).and_then(|a| gone.get_mut(a)) {
            Some(g) => *g = true,
            None => {
                let why = format!("axis {axis} is outside of rank {rank}");
                return Err(Error::new(Code::BadArgument, why).op("sum"));
            }
        }
    }
    let kept = |d: &[u64]| -> Vec<u64> { d.iter().zip(&gone).filter(|(_, g)| !**g).map(|(v, _)| *v).collect() };
    let shape = kept(&x.shape);
    let mut values: Vec<T> = room("sum", &shape)?;
    values.resize(host::count(&shape)? as usize, T::zero());
    let mut at = vec![0u64; rank];
    for v in &x.values {
        let to = kept(&at);
        let flat = to.iter().zip(&shape).fold(0, |acc, (i, d)| acc * d + i) as usize;
        values[flat] = values[flat].try_add(v).ok_or_else(|| range("sum", &to))?;
        step(&mut at, &x.shape);
    }
    Array::new(&shape, values)
}

/// y[j, i] = x[i, j]. Errors: `ShapeMismatch` unless x is a matrix.
pub fn transpose<T: Num>(x: &Array<T>) -> Result<Array<T>> {
    let [m, n] = matrix("transpose", "x", x)?;
    let values = (0..n).flat_map(|j| (0..m).map(move |i| (i, j))).map(|(i, j)| x.values[i * n + j].clone());
    Array::new(&[n as u64, m as u64], values.collect())
}

fn binary<T: Num>(op: &str, a: &Array<T>, b: &Array<T>, f: fn(&T, &T) -> Option<T>) -> Result<Array<T>> {
    let rank = a.shape.len().max(b.shape.len());
    let (da, db) = (padded(&a.shape, rank), padded(&b.shape, rank));
    let mut shape = Vec::with_capacity(rank);
    for (x, y) in da.iter().zip(&db) {
        match (x, y) {
            (x, y) if x == y || *y == 1 => shape.push(*x),
            (1, y) => shape.push(*y),
            _ => return Err(mismatch(op, format!("a is {:?}, b is {:?}: they do not broadcast", a.shape, b.shape))),
        }
    }
    let mut values = room(op, &shape)?;
    let mut at = vec![0u64; rank];
    for _ in 0..host::count(&shape)? {
        let (x, y) = (&a.values[place(&at, &da)], &b.values[place(&at, &db)]);
        values.push(f(x, y).ok_or_else(|| range(op, &at))?);
        step(&mut at, &shape);
    }
    Array::new(&shape, values)
}

/// Extents with ones in front.
fn padded(shape: &[u64], rank: usize) -> Vec<u64> {
    let mut out = vec![1; rank - shape.len()];
    out.extend_from_slice(shape);
    out
}

/// Flat index of an element of the result in an operand of extents `d`: axes of extent 1 are repeated.
fn place(at: &[u64], d: &[u64]) -> usize {
    at.iter().zip(d).fold(0, |acc, (i, d)| acc * d + if *d == 1 { 0 } else { *i }) as usize
}

/// The next index in row-major order.
fn step(at: &mut [u64], shape: &[u64]) {
    for (i, d) in at.iter_mut().zip(shape).rev() {
        *i += 1;
        if *i < *d {
            return;
        }
        *i = 0;
    }
}

fn matrix<T: Num>(op: &str, name: &str, x: &Array<T>) -> Result<[usize; 2]> {
    match x.shape[..] {
        // Each extent is at most the number of values, or the array is empty; either way it was counted in 64 bits.
        [m, n] => Ok([m as usize, n as usize]),
        _ => Err(mismatch(op, format!("{name} is {:?}, a matrix is expected", x.shape))),
    }
}

/// Room for an array's values; an error where there is not that much.
fn room<T>(op: &str, shape: &[u64]) -> Result<Vec<T>> {
    let n = usize::try_from(host::count(shape)?).unwrap_or(usize::MAX);
    let mut values = Vec::new();
    let none = |_| Error::new(Code::OutOfHostMemory, format!("{n} values for a result {shape:?}")).op(op);
    values.try_reserve_exact(n).map_err(none)?;
    Ok(values)
}

fn mismatch(op: &str, why: String) -> Error {
    Error::new(Code::ShapeMismatch, why).op(op)
}

fn range(op: &str, at: &[u64]) -> Error {
    Error::new(Code::NumberRange, format!("element {at:?} is no number of this type")).op(op)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn array(shape: &[u64], values: &[i128]) -> Array<i128> {
        Array::new(shape, values.to_vec()).unwrap()
    }

    #[test]
    fn integers_follow_the_rules_of_all_ops() {
        let (max, min) = (i128::MAX, i128::MIN);
        let (a, b) = (array(&[3], &[max, min, 7]), array(&[3], &[1, -1, 0]));
        assert_eq!(add(&a, &b).unwrap().values(), [min, max, 7]);
        assert_eq!(sub(&a, &b).unwrap().values(), [max - 1, min + 1, 7]);
        assert_eq!(mul(&a, &b).unwrap().values(), [max, min, 0]);
        assert_eq!(div(&a, &b).unwrap().values(), [max, min, 7], "MIN/-1 = MIN, x/0 = x");
        let u = Array::new(&[1], vec![u128::MAX]).unwrap();
        assert_eq!(add(&u, &Array::new(&[1], vec![2]).unwrap()).unwrap().values(), [1]);
    }

    #[test]
    fn shapes_broadcast_as_in_numpy() {
        let column = array(&[2, 1], &[10, 20]);
        let row = array(&[3], &[1, 2, 3]);
        let y = add(&column, &row).unwrap();
        assert_eq!((y.shape(), y.values()), (&[2, 3][..], &[11, 12, 13, 21, 22, 23][..]));
        let one = array(&[], &[5]);
        assert_eq!(mul(&one, &row).unwrap().values(), [5, 10, 15]);
        assert!(add(&array(&[0, 3], &[]), &row).unwrap().values().is_empty());
        let e = add(&array(&[2], &[1, 2]), &row).unwrap_err();
        assert!(e.code() == Code::ShapeMismatch && e.to_string().contains("add: a is [2], b is [3]"), "{e}");
    }

    #[test]
    fn products_sums_and_transposes() {
        let a = array(&[2, 3], &[1, 2, 3, 4, 5, 6]);
        let t = transpose(&a).unwrap();
        assert_eq!((t.shape(), t.values()), (&[3, 2][..], &[1, 4, 2, 5, 3, 6][..]));
        let c = gemm(&a, &t).unwrap();
        assert_eq!((c.shape(), c.values()), (&[2, 2][..], &[14, 32, 32, 77][..]));
        assert_eq!(gemm(&array(&[2, 0], &[]), &array(&[0, 2], &[])).unwrap().values(), [0; 4], "an empty sum is zero");
        assert_eq!(sum(&a, &[]).unwrap(), array(&[], &[21]));
        assert_eq!(sum(&a, &[0]).unwrap(), array(&[3], &[5, 7, 9]));
        assert_eq!(sum(&a, &[-1]).unwrap(), array(&[2], &[6, 15]));
        let cube = array(&[2, 2, 2], &[1, 2, 3, 4, 5, 6, 7, 8]);
        assert_eq!(sum(&cube, &[0, 2]).unwrap(), array(&[2], &[1 + 2 + 5 + 6, 3 + 4 + 7 + 8]));
        assert_eq!(sum(&array(&[2, 0], &[]), &[1]).unwrap(), array(&[2], &[0, 0]));
    }

    #[test]
    fn mistakes_have_their_codes() {
        let a = array(&[2, 3], &[0; 6]);
        assert_eq!(gemm(&a, &a).unwrap_err().code(), Code::ShapeMismatch);
        assert_eq!(transpose(&array(&[3], &[0; 3])).unwrap_err().code(), Code::ShapeMismatch);
        assert_eq!(Array::new(&[2, 2], vec![1i128]).unwrap_err().code(), Code::ShapeMismatch);
        for axis in [2, -3, i64::MIN, i64::MAX] {
            assert_eq!(sum(&a, &[axis]).unwrap_err().code(), Code::BadArgument);
        }
        // Two empty arrays whose product would have 2^80 elements.
        let (tall, wide) = (array(&[1 << 40, 0], &[]), array(&[0, 1 << 40], &[]));
        assert_eq!(gemm(&tall, &wide).unwrap_err().code(), Code::SizeOverflow);
        let (tall, wide) = (array(&[1 << 29, 0], &[]), array(&[0, 1 << 30], &[]));
        assert_eq!(gemm(&tall, &wide).unwrap_err().code(), Code::OutOfHostMemory);
    }
}
