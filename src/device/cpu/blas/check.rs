//! Whether a library computes what its names promise: small products with known results, before it is used for anything.

use crate::kernel::cpu::blas::{Blas, Gemm, Gemv, Routines};

/// Elements beside a result that must stay as they are.
const MARGIN: usize = 16;
/// Rows, columns and depth of products: none square, some beyond what one vector holds.
const SHAPES: [[usize; 3]; 4] = [[1, 1, 1], [5, 7, 3], [17, 9, 33], [3, 40, 70]];
/// Edge of a product that is large enough to be shared out.
const SHARED: usize = 384;
/// Lengths of vectors.
const LENGTHS: [usize; 4] = [1, 5, 37, 1000];

/// What a check needs of a type; all values in it are small whole numbers, so that sums are exact in any order.
trait Number: Copy + PartialEq + std::fmt::Display {
    const NAN: Self;
    const LETTER: char;
    fn whole(v: i64) -> Self;
    fn wide(self) -> f64;
}

impl Number for f32 {
    const NAN: Self = f32::NAN;
    const LETTER: char = 's';
    fn whole(v: i64) -> Self {
        v as f32
    }
    fn wide(self) -> f64 {
        self.into()
    }
}

impl Number for f64 {
    const NAN: Self = f64::NAN;
    const LETTER: char = 'd';
    fn whole(v: i64) -> Self {
        v as f64
    }
    fn wide(self) -> f64 {
        self
    }
}

/// Errors: what came out wrong.
pub(super) fn check(blas: &dyn Blas) -> Result<(), String> {
    type_is_right::<f32>(blas)?;
    type_is_right::<f64>(blas)
}

fn type_is_right<T: Number>(blas: &dyn Routines<T>) -> Result<(), String> {
    for [m, n, k] in SHAPES {
        for which in 0..8 {
            product(blas, [m, n, k], [which & 1 != 0, which & 2 != 0, which & 4 != 0])?;
        }
        for which in 0..4 {
            matrix_vector(blas, [m, n], [which & 1 != 0, which & 2 != 0])?;
        }
    }
    shared(blas)?;
    for n in LENGTHS {
        vectors(blas, n)?;
    }
    Ok(())
}

/// Small numbers without a pattern that a transposition would keep.
fn value(seed: usize, row: usize, column: usize) -> i64 {
    ((seed + 13 * row + 7 * column + row * column % 11) % 9) as i64 - 4
}

/// Rows of `rows` by `columns`, or their transpose.
fn matrix<T: Number>(seed: usize, rows: usize, columns: usize, transposed: bool) -> Vec<T> {
    let at = |i: usize| if transposed { (i % rows, i / rows) } else { (i / columns, i % columns) };
    (0..rows * columns).map(at).map(|(r, c)| T::whole(value(seed, r, c))).collect()
}

/// A result with a margin on both sides.
struct Framed<T>(Vec<T>);

impl<T: Number> Framed<T> {
    fn new(inner: Vec<T>) -> Self {
        let margin = vec![T::whole(77); MARGIN];
        Framed([margin.clone(), inner, margin].concat())
    }
    fn inner(&mut self) -> &mut [T] {
        let end = self.0.len() - MARGIN;
        &mut self.0[MARGIN..end]
    }
    /// What differs from `want`, element by element; the margins may not have changed.
    fn wrong(&self, want: impl Fn(usize) -> i64) -> Option<String> {
        let end = self.0.len() - MARGIN;
        let beside = self.0[..MARGIN].iter().chain(&self.0[end..]).any(|v| *v != T::whole(77));
        if beside {
            return Some("it wrote beside the result".into());
        }
        let of = |(i, v): (usize, &T)| {
            (*v != T::whole(want(i))).then(|| format!("element {i} is {v}, {} is right", want(i)))
        };
        self.0[MARGIN..end].iter().enumerate().find_map(of)
    }
}

fn named<T: Number>(routine: &str, what: String, wrong: Option<String>) -> Result<(), String> {
    wrong.map_or(Ok(()), |w| Err(format!("cblas_{}{routine} of {what}: {w}", T::LETTER)))
}

/// With factors 2 and -3, or with beta 0 and NaN in C, which must not be read.
fn product<T: Number>(
    blas: &dyn Routines<T>,
    [m, n, k]: [usize; 3],
    [trans_a, trans_b, fresh]: [bool; 3],
) -> Result<(), String> {
    let (a, b) = (matrix::<T>(1, m, k, trans_a), matrix::<T>(2, k, n, trans_b));
    let (alpha, beta) = if fresh { (1, 0) } else { (2, -3) };
    let mut c = Framed::new(if fresh { vec![T::NAN; m * n] } else { matrix(3, m, n, false) });
    let what = format!("{m} by {n} by {k}, transA={} transB={} beta={beta}", u8::from(trans_a), u8::from(trans_b));
    let (alpha_t, beta_t) = (T::whole(alpha), T::whole(beta));
    let p = Gemm { m, n, k, trans_a, trans_b, alpha: alpha_t, a: &a, b: &b, beta: beta_t, c: c.inner() };
    blas.gemm(p).map_err(|e| format!("{what}: {e}"))?;
    let want = |i: usize| {
        let (row, column) = (i / n, i % n);
        let sum: i64 = (0..k).map(|q| value(1, row, q) * value(2, q, column)).sum();
        alpha * sum + beta * value(3, row, column)
    };
    named::<T>("gemm", what, c.wrong(want))
}

fn matrix_vector<T: Number>(
    blas: &dyn Routines<T>,
    [m, n]: [usize; 2],
    [trans, fresh]: [bool; 2],
) -> Result<(), String> {
    let (a, x) = (matrix::<T>(4, m, n, trans), matrix::<T>(5, 1, n, false));
    let (alpha, beta) = if fresh { (1, 0) } else { (2, -3) };
    let mut y = Framed::new(if fresh { vec![T::NAN; m] } else { matrix(6, 1, m, false) });
    let what = format!("{m} by {n}, transA={} beta={beta}", u8::from(trans));
    let p = Gemv { m, n, trans, alpha: T::whole(alpha), a: &a, x: &x, beta: T::whole(beta), y: y.inner() };
    blas.gemv(p).map_err(|e| format!("{what}: {e}"))?;
    let want = |i: usize| {
        let sum: i64 = (0..n).map(|j| value(4, i, j) * value(5, 0, j)).sum();
        alpha * sum + beta * value(6, 0, i)
    };
    named::<T>("gemv", what, y.wrong(want))
}

/// A product that takes all threads; it also starts them, before anybody measures. Of matrices of rank 1, whose product is known
/// without multiplying them.
fn shared<T: Number>(blas: &dyn Routines<T>) -> Result<(), String> {
    let n = SHARED;
    // Never 0, so that no result is: an element that was left out shows.
    let of = |seed: usize, i: usize| 1 + ((seed + i * i + 3 * i) % 5) as i64;
    let outer = |left: usize, right: usize| -> Vec<T> {
        (0..n * n).map(|i| T::whole(of(left, i / n) * of(right, i % n))).collect()
    };
    let (a, b) = (outer(1, 2), outer(3, 4));
    let mut c = Framed::new(vec![T::NAN; n * n]);
    let (alpha, beta) = (T::whole(1), T::whole(0));
    let p = Gemm { m: n, n, k: n, trans_a: false, trans_b: false, alpha, a: &a, b: &b, beta, c: c.inner() };
    let what = format!("{n} by {n} by {n}");
    blas.gemm(p).map_err(|e| format!("{what}: {e}"))?;
    let middle: i64 = (0..n).map(|q| of(2, q) * of(3, q)).sum();
    named::<T>("gemm", what, c.wrong(|i| of(1, i / n) * middle * of(4, i % n)))
}

fn vectors<T: Number>(blas: &dyn Routines<T>, n: usize) -> Result<(), String> {
    let (x, z) = (matrix::<T>(7, 1, n, false), matrix::<T>(8, 1, n, false));
    let what = || format!("{n} elements");
    let told = |e: crate::base::Error| format!("{n} elements: {e}");
    let sum: i64 = (0..n).map(|i| value(7, 0, i) * value(8, 0, i)).sum();
    let dot = blas.dot(&x, &z).map_err(told)?;
    let wrong = (dot != T::whole(sum)).then(|| format!("it is {dot}, {sum} is right"));
    named::<T>("dot", what(), wrong)?;
    let norm = blas.nrm2(&x).map_err(told)?.wide();
    let want = (0..n).map(|i| value(7, 0, i).pow(2)).sum::<i64>() as f64;
    let near = (norm - want.sqrt()).abs() <= 1e-5 * want.sqrt();
    named::<T>("nrm2", what(), (!near).then(|| format!("it is {norm}, {} is right", want.sqrt())))?;
    let mut y = Framed::new(z);
    blas.axpy(T::whole(3), &x, y.inner()).map_err(told)?;
    named::<T>("axpy", what(), y.wrong(|i| 3 * value(7, 0, i) + value(8, 0, i)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::Result as Done;

    /// Right, but for one planted fault.
    struct Textbook(&'static str);

    macro_rules! textbook {
        ($t:ty) => {
            impl Routines<$t> for Textbook {
                fn gemm(&self, p: Gemm<'_, $t>) -> Done<()> {
                    let (m, n, k) = (p.m, p.n, p.k);
                    let ta = p.trans_a && self.0 != "ignores transA";
                    let tb = p.trans_b && self.0 != "ignores transB";
                    for i in 0..m {
                        for j in 0..n {
                            let a = |q: usize| p.a[if ta { q * m + i } else { i * k + q }];
                            let b = |q: usize| p.b[if tb { j * k + q } else { q * n + j }];
                            let sum: $t = (0..k).map(|q| a(q) * b(q)).sum();
                            let reads = p.beta != 0.0 || self.0 == "reads C";
                            let old = if reads { p.beta * p.c[i * n + j] } else { 0.0 };
                            let alpha = if self.0 == "ignores alpha" { 1.0 } else { p.alpha };
                            p.c[i * n + j] = alpha * sum + old;
                        }
                    }
                    if self.0 == "loses a tile of large products" && m > 64 {
                        p.c[m * n - 1] = 0.0;
                    }
                    Ok(())
                }
                fn gemv(&self, p: Gemv<'_, $t>) -> Done<()> {
                    for i in 0..p.m {
                        let trans = p.trans && self.0 != "gemv ignores transA";
                        let a = |j: usize| p.a[if trans { j * p.m + i } else { i * p.n + j }];
                        let sum: $t = (0..p.n).map(|j| a(j) * p.x[j]).sum();
                        p.y[i] = p.alpha * sum + if p.beta == 0.0 { 0.0 } else { p.beta * p.y[i] };
                    }
                    Ok(())
                }
                fn dot(&self, a: &[$t], b: &[$t]) -> Done<$t> {
                    let n = if self.0 == "dot is short" { a.len() / 8 * 8 } else { a.len() };
                    Ok((0..n).map(|i| a[i] * b[i]).sum())
                }
                fn nrm2(&self, x: &[$t]) -> Done<$t> {
                    let s: $t = x.iter().map(|v| v * v).sum();
                    Ok(if self.0 == "nrm2 is squared" { s } else { s.sqrt() })
                }
                fn axpy(&self, alpha: $t, x: &[$t], y: &mut [$t]) -> Done<()> {
                    y.iter_mut().zip(x).for_each(|(y, x)| {
                        let old = if self.0 == "axpy overwrites" { 0.0 } else { *y };
                        *y = alpha * x + old;
                    });
                    Ok(())
                }
            }
        };
    }
    textbook!(f32);
    textbook!(f64);

    #[test]
    fn every_planted_fault_is_found() {
        assert_eq!(check(&Textbook("")), Ok(()));
        for (fault, routine) in [
            ("ignores transA", "cblas_sgemm"),
            ("ignores transB", "cblas_sgemm"),
            ("ignores alpha", "cblas_sgemm"),
            ("reads C", "NaN"),
            ("loses a tile of large products", "384 by 384"),
            ("gemv ignores transA", "cblas_sgemv"),
            ("dot is short", "cblas_sdot"),
            ("nrm2 is squared", "cblas_snrm2"),
            ("axpy overwrites", "cblas_saxpy"),
        ] {
            let why = check(&Textbook(fault)).unwrap_err();
            assert!(why.contains(routine), "{fault}: {why}");
        }
    }

    #[test]
    fn writing_beside_a_result_is_found() {
        let mut f = Framed::new(vec![1f32; 4]);
        assert_eq!(f.wrong(|_| 1), None);
        f.0[MARGIN + 4] = 0.0;
        assert!(f.wrong(|_| 1).unwrap().contains("beside"));
    }
}
