//! Freivalds' check of a whole matrix product: C·r against alpha·op(A)·(op(B)·r) + beta·C₀·r for random r of ±1.
//!
//! R. Freivalds, *Probabilistic machines can use less running time*, IFIP 1977. One product costs O(n²) instead of O(n³);
//! a wrong element survives a round only if the errors of its row cancel under the signs, so a single wrong element
//! never does. With integer data (or integer dtypes) every sum is exact and the smallest wrong bit anywhere shows. With
//! rounded data a row may be off by the sum of its elements' bounds, so only gross errors do: the sample of elements
//! that is judged beside it is the finer sieve. A row with infinities or NaN has no sum: those of its elements are judged one by
//! one, as far as that costs no more than the check, and the others are left to the sample.

use crate::base::rng::Philox;
use crate::base::{Case, DType, Exact, HostTensor};

use super::tolerance::Bound;

/// Rounds: chances that errors of several elements cancel are 2^-3 at most, over all rows of an output together far less.
const ROUNDS: u64 = 3;
/// Multiply-adds below which every element is judged anyway.
const SMALL: u64 = 14_000_000;

/// Elements of a row without a sum that are judged one by one.
const JUDGED: usize = 16;

/// One product of a batch.
#[derive(Clone, Copy, Debug)]
pub(super) struct Product {
    pub(super) m: u64,
    pub(super) n: u64,
    pub(super) k: u64,
    pub(super) trans_a: bool,
    pub(super) trans_b: bool,
    pub(super) alpha: Exact,
    pub(super) beta: Exact,
    /// Index of the product in its batch.
    pub(super) batch: u64,
}

/// The check of gemm and of every product of bmm.
pub(super) fn products(case: &Case, inputs: &[HostTensor], outputs: &[HostTensor], bounds: &[Bound]) -> Option<String> {
    let scalar = |name: &str, default: f64| {
        let v = case.attrs.float(name, default);
        match case.dtype.compute() {
            DType::F64 => Exact::f(v),
            DType::F32 => Exact::f(f64::from(v as f32)),
            _ => Exact::I(v as i128),
        }
    };
    let (got, bound) = (outputs.first()?, bounds.first()?);
    (0..case.dim("b")).find_map(|batch| {
        let product = Product {
            m: case.dim("m"),
            n: case.dim("n"),
            k: case.dim("k"),
            trans_a: case.attrs.int("transA", 0) == 1,
            trans_b: case.attrs.int("transB", 0) == 1,
            alpha: scalar("alpha", 1.0),
            beta: scalar("beta", 0.0),
            batch,
        };
        product.check(case, inputs, got, bound)
    })
}

/// What the check computes in: `Exact`, or f64 where that is exact or finer than the judged dtype by 2^29.
trait Field: Copy {
    const ZERO: Self;
    fn of(v: Exact) -> Self;
    fn add(self, b: Self) -> Self;
    fn mul(self, b: Self) -> Self;
    fn neg(self) -> Self;
    fn exact(self) -> Exact;
}

impl Field for f64 {
    const ZERO: f64 = 0.0;
    fn of(v: Exact) -> f64 {
        v.to_f64()
    }
    fn add(self, b: f64) -> f64 {
        self + b
    }
    fn mul(self, b: f64) -> f64 {
        self * b
    }
    fn neg(self) -> f64 {
        -self
    }
    fn exact(self) -> Exact {
        Exact::f(self)
    }
}

impl Field for Exact {
    // A mixed sum is a double-double.
    const ZERO: Exact = Exact::I(0);
    fn of(v: Exact) -> Exact {
        v
    }
    fn add(self, b: Exact) -> Exact {
        Exact::add(self, b)
    }
    fn mul(self, b: Exact) -> Exact {
        Exact::mul(self, b)
    }
    fn neg(self) -> Exact {
        Exact::neg(self)
    }
    fn exact(self) -> Exact {
        self
    }
}

impl Product {
    /// What is wrong with C, if anything. `inputs`: A, B and, where beta is not 0, C before. `None` for small products.
    pub(super) fn check(&self, case: &Case, inputs: &[HostTensor], got: &HostTensor, bound: &Bound) -> Option<String> {
        if self.m.saturating_mul(self.n).saturating_mul(self.k) < SMALL {
            return None;
        }
        match got.dtype {
            // Whole numbers stay below 2^53 in these sums; rounded ones have bounds 2^29 times f64's roundings.
            DType::F32 | DType::F16 | DType::BF16 => self.check_in::<f64>(case, inputs, got, bound),
            _ => self.check_in::<Exact>(case, inputs, got, bound),
        }
    }

    fn check_in<F: Field>(
        &self,
        case: &Case,
        inputs: &[HostTensor],
        got: &HostTensor,
        bound: &Bound,
    ) -> Option<String> {
        let (m, n, k) = (self.m, self.n, self.k);
        let part = |t: &HostTensor, from: u64, len: u64| -> Vec<F> {
            (from..from + len).map(|i| F::of(Exact::read(t, i))).collect()
        };
        let a = part(&inputs[0], self.batch * m * k, m * k);
        let b = part(&inputs[1], self.batch * k * n, k * n);
        let c = &part(got, self.batch * m * n, m * n)[..];
        let beta = F::of(self.beta);
        let old = if self.beta.to_f64() == 0.0 { None } else { Some(part(&inputs[2], self.batch * m * n, m * n)) };
        let (m, n, k) = (m as usize, n as usize, k as usize);
        let at_a = |i: usize, p: usize| a[if self.trans_a { p * m + i } else { i * k + p }];
        let at_b = |p: usize, j: usize| b[if self.trans_b { j * k + p } else { p * n + j }];
        let size = |v: F| v.exact().abs_f64();
        let top = |v: &[F]| v.iter().map(|v| size(*v)).fold(0.0, f64::max);
        let element =
            self.alpha.abs_f64() * k as f64 * top(&a) * top(&b) + self.beta.abs_f64() * old.as_deref().map_or(0.0, top);
        let exact = !got.dtype.is_float() || bound.exact_below(element);
        let summed = |i: usize| c[i * n..(i + 1) * n].iter().all(|v| v.exact().abs_f64().is_finite());
        // An infinity may be right, and a NaN where sums overflow: that depends on the element's own terms.
        let open = |i: usize| (0..n).filter(move |j| !c[i * n + *j].exact().abs_f64().is_finite()).take(JUDGED);
        for i in 0..m {
            for j in open(i) {
                let (mut want, mut scale) = (F::ZERO, 0.0);
                for p in 0..k {
                    let v = at_a(i, p).mul(at_b(p, j));
                    want = want.add(v);
                    scale += size(v);
                }
                want = F::of(self.alpha).mul(want);
                scale *= self.alpha.abs_f64();
                if let Some(old) = &old {
                    let v = beta.mul(old[i * n + j]);
                    want = want.add(v);
                    scale += size(v);
                }
                if !bound.judge(c[i * n + j].exact(), want.exact(), scale).ok {
                    return Some(format!(
                        "element [{i},{j}] of product {} is {:e}, expected {:e}",
                        self.batch,
                        c[i * n + j].exact().to_f64(),
                        want.exact().to_f64()
                    ));
                }
            }
        }
        // |op(B)|·1, for the bounds of rows.
        let sums_b: Vec<f64> = (0..k).map(|p| (0..n).map(|j| size(at_b(p, j))).sum()).collect();
        let rng = Philox::new(case.seed() ^ 0x0046_7265_6976_616C);
        for round in 0..ROUNDS {
            let signs: Vec<bool> = (0..n as u64).map(|j| rng.u64(round, j / 64) >> (j % 64) & 1 == 1).collect();
            let signed = |v: F, j: usize| if signs[j] { v } else { v.neg() };
            let sum = |row: &dyn Fn(usize) -> F| (0..n).fold(F::ZERO, |s, j| s.add(signed(row(j), j)));
            let br: Vec<F> = (0..k).map(|p| sum(&|j| at_b(p, j))).collect();
            for i in (0..m).filter(|i| summed(*i)) {
                let (mut want, mut scale) = (F::ZERO, 0.0);
                for p in 0..k {
                    let v = at_a(i, p);
                    want = want.add(v.mul(br[p]));
                    scale += size(v) * sums_b[p];
                }
                want = F::of(self.alpha).mul(want);
                scale *= self.alpha.abs_f64();
                if let Some(old) = &old {
                    want = want.add(beta.mul(sum(&|j| old[i * n + j])));
                    scale += self.beta.abs_f64() * old[i * n..(i + 1) * n].iter().map(|v| size(*v)).sum::<f64>();
                }
                let difference = sum(&|j| c[i * n + j]).add(want.neg()).exact().wrap(got.dtype).abs_f64();
                let allowed = match exact {
                    true => 0.0,
                    false => 2.0 * bound.allowed(scale, scale) + n as f64 * bound.allowed(0.0, 0.0),
                };
                // A NaN or an infinity in the terms makes the difference NaN, which is not within anything.
                if difference.is_nan() || difference > allowed {
                    return Some(format!(
                        "Freivalds, round {}: row {i} of product {} is off by {difference:e}, at most {allowed:e} is allowed",
                        round + 1,
                        self.batch
                    ));
                }
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::{Attrs, DType, Fill, Lang};
    use crate::op::{self, Tolerance, case};

    /// A product of 250³ by plain f64 loops, rounded to f32.
    fn product(fill: Fill) -> (Case, Vec<HostTensor>, HostTensor, Bound) {
        let gemm = op::find("gemm").unwrap();
        let c = gemm.case(DType::F32, &[250, 250, 250], Attrs::new(), fill).unwrap();
        let inputs = case::inputs(gemm, &c).unwrap();
        let (a, b) = (inputs[0].to_vec::<f32>().unwrap(), inputs[1].to_vec::<f32>().unwrap());
        let mut y = vec![0f32; 62_500];
        for i in 0..250 {
            let mut row = [0f64; 250];
            for p in 0..250 {
                let v = f64::from(a[i * 250 + p]);
                row.iter_mut().zip(&b[p * 250..]).for_each(|(s, b)| *s += v * f64::from(*b));
            }
            y[i * 250..][..250].iter_mut().zip(row).for_each(|(y, s)| *y = s as f32);
        }
        let bound = Tolerance::Gamma(|_| 253).bound(&c, Lang::Native, DType::F32).unwrap();
        (c, inputs, HostTensor::from_slice(&y, &[250, 250]).unwrap(), bound)
    }

    fn plain() -> Product {
        Product {
            m: 250,
            n: 250,
            k: 250,
            trans_a: false,
            trans_b: false,
            alpha: Exact::f(1.0),
            beta: Exact::f(0.0),
            batch: 0,
        }
    }

    #[test]
    fn the_right_product_passes_and_any_flipped_bit_of_an_integer_product_shows() {
        let (c, inputs, y, bound) = product(Fill::Integer);
        assert_eq!(plain().check(&c, &inputs, &y, &bound), None);
        for bit in [0, 7, 15, 22, 23, 30, 31] {
            let mut bad = y.clone();
            let at = 4 * (133 * 250 + 77);
            bad.bytes_mut()[at + bit / 8] ^= 1 << (bit % 8);
            let why = plain().check(&c, &inputs, &bad, &bound).expect("a flipped bit passed");
            assert!(why.contains("row 133"), "{why}");
        }
    }

    #[test]
    fn rounded_data_pass_and_gross_errors_show() {
        let (c, inputs, y, bound) = product(Fill::Uniform);
        assert_eq!(plain().check(&c, &inputs, &y, &bound), None);
        let mut bad = y.clone();
        bad.bytes_mut()[4 * 62_499..].copy_from_slice(&1e6f32.to_le_bytes());
        assert!(plain().check(&c, &inputs, &bad, &bound).is_some_and(|w| w.contains("row 249")));
        bad.bytes_mut()[4 * 62_499..].copy_from_slice(&f32::NAN.to_le_bytes());
        assert!(plain().check(&c, &inputs, &bad, &bound).is_some());
        // A transposed result has other row sums.
        let v = y.to_vec::<f32>().unwrap();
        let t: Vec<f32> = (0..62_500).map(|i| v[i % 250 * 250 + i / 250]).collect();
        let (c, inputs, y, bound) = product(Fill::Integer);
        assert_ne!(y.to_vec::<f32>().unwrap(), t);
        let t = HostTensor::from_slice(&t, &[250, 250]).unwrap();
        assert!(plain().check(&c, &inputs, &t, &bound).is_some());
    }

    /// Sums of positive terms that f16 does not hold, beside one that it does.
    #[test]
    fn infinities_pass_where_they_are_right_and_nowhere_else() {
        let k = 250_000;
        let gemm = op::find("gemm").unwrap();
        let c = gemm.case(DType::F16, &[8, 8, k], Attrs::new(), Fill::Positive).unwrap();
        let ones = |rows: u64, columns: u64, small: &dyn Fn(u64) -> bool| {
            let v: Vec<f32> = (0..rows * columns).map(|i| if small(i) { 0.125 } else { 1.0 }).collect();
            HostTensor::from_slice(&v.into_iter().map(half::f16::from_f32).collect::<Vec<_>>(), &[rows, columns])
                .unwrap()
        };
        // Row 5 adds up to an eighth: 31,250; all others to 250,000.
        let inputs = [ones(8, k, &|i| i / k == 5), ones(k, 8, &|_| false)];
        let right: Vec<half::f16> =
            (0..64).map(|i| if i / 8 == 5 { half::f16::from_f32(31_250.0) } else { half::f16::INFINITY }).collect();
        let bound = Tolerance::Gamma(|_| 250_003).bound(&c, Lang::OpenclC, DType::F16).unwrap();
        let product = Product { m: 8, n: 8, k, ..plain() };
        let checked = |at: usize, value: half::f16| {
            let mut y = right.clone();
            y[at] = value;
            product.check(&c, &inputs, &HostTensor::from_slice(&y, &[8, 8]).unwrap(), &bound)
        };
        assert_eq!(checked(0, right[0]), None);
        for (at, value, says) in [
            (43, half::f16::INFINITY, "element [5,3]"),
            (43, half::f16::NAN, "element [5,3]"),
            (43, half::f16::ZERO, "row 5"),
            (17, half::f16::NEG_INFINITY, "element [2,1]"),
            (17, half::f16::NAN, "element [2,1]"),
        ] {
            let why = checked(at, value).unwrap_or_else(|| panic!("{value} at {at} passed"));
            assert!(why.contains(says), "{why}");
        }
    }

    #[test]
    fn small_products_are_judged_element_by_element() {
        let (c, inputs, y, bound) = product(Fill::Integer);
        let small = Product { m: 10, n: 10, k: 10, ..plain() };
        assert_eq!(small.check(&c, &inputs, &y, &bound), None);
    }
}
