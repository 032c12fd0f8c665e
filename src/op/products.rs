//! Matrix by vector and batched products; the exact sum of products that all of them and the convolutions are judged by.

use crate::base::{
    Attr, AttrDecl, AttrType, Attrs, Case, Code, DType, Error, Exact, Fill, HostTensor, Library, Result, host,
};
use crate::kernel::cpu::{matmul, vector};
use crate::kernel::{
    Body, Kernel, Needs, Routine, plan_blas, plan_c, plan_cuda, plan_native, plan_products, plan_wgsl,
    plan_wgsl_products,
};

use super::freivalds;
use super::matmul::{BLOCKS_TEXT, C_TEXT, WGSL_TEXT, tiles};
use super::{
    Binding, CaseSpec, DTypeRule, Family, Grad, OpDesc, Operand, Range, Reference, Role, Tier, Tolerance, Unit,
};

const VECTOR_C: &str = include_str!("../../kernels/matmul_vector.c");
const VECTOR_WGSL: &str = include_str!("../../kernels/matmul_vector.wgsl");
const SMALL_WGSL: &str = include_str!("../../kernels/matmul_small.wgsl");
const DTYPES: &[DType] = &[DType::F32, DType::F64, DType::F16, DType::BF16];

/// Ops of this file.
pub(super) static OPS: &[&OpDesc] = &[&GEMV, &BMM];

/// An exact sum of products with the sum of their magnitudes.
pub(super) struct Dot {
    sum: Exact,
    decisive: Option<Exact>,
    magnitude: f64,
    /// The sum of the products of factors times [`SHRINK`].
    shrunk: f64,
}

/// Makes any f64 so small that products, and sums of 2^100 of them, stay finite: 2^-600.
const SHRINK: f64 = f64::from_bits((1023 - 600) << 52);

impl Dot {
    pub(super) fn new(dtype: DType) -> Self {
        Dot { sum: Exact::zero(dtype), decisive: None, magnitude: 0.0, shrunk: 0.0 }
    }

    pub(super) fn add(&mut self, a: Exact, b: Exact) {
        // Infinities and NaN decide the value; the scale tells whether finite terms could overflow as well.
        if a.to_f64().is_finite() && b.to_f64().is_finite() {
            self.sum = self.sum.add(a.mul(b));
            self.magnitude += a.abs_f64() * b.abs_f64();
            self.shrunk += (a.to_f64() * SHRINK) * (b.to_f64() * SHRINK);
        } else {
            let term = a.mul(b);
            self.decisive = Some(self.decisive.map_or(term, |d| d.add(term)));
        }
    }

    /// The value and its scale.
    pub(super) fn end(self) -> (Exact, f64) {
        let sum = if self.sum.to_f64().is_finite() { self.sum } else { grown(self.shrunk / SHRINK) };
        (self.decisive.unwrap_or(sum), self.magnitude)
    }
}

/// What was shrunk, grown again: finite terms near the end of f64's range may overflow on the oracle's way as well, although
/// their sum does not. Good to f64's own digits; where terms are that large no rule claims more (`Bound::judge`).
fn grown(x: f64) -> Exact {
    Exact::f(x / SHRINK)
}

/// The sum of the numbers divided by `parts`, which is 1 for integers; infinities and NaN among them decide it.
pub(super) fn total(dtype: DType, x: &[Exact], parts: Option<f64>) -> Exact {
    let s = x.iter().fold(Exact::zero(dtype), |s, v| s.add(*v));
    let divided = |s: Exact| parts.map_or(s, |n| Exact::f(0.0).add(s).div(Exact::f(n)));
    if s.to_f64().is_finite() || x.iter().any(|v| !v.to_f64().is_finite()) {
        return divided(s);
    }
    grown(divided(Exact::f(x.iter().map(|v| v.to_f64() * SHRINK).sum())).to_f64())
}

/// Dtype of a product's result.
pub(super) fn result(case: &Case) -> DType {
    if case.dtype == DType::I8 { DType::I32 } else { case.dtype }
}

/// alpha s + beta old for a sum s with its scale; `old` is asked for only if beta is not 0.
fn scaled(case: &Case, dot: Dot, old: impl Fn() -> Exact) -> (Exact, f64) {
    // Scalars reach every kernel in the arithmetic type, so the oracle uses them rounded to it.
    let scalar = |name: &str, default: f64| {
        let v = case.attrs.float(name, default);
        match case.dtype.compute() {
            DType::F64 => Exact::f(v),
            DType::F32 => Exact::f(f64::from(v as f32)),
            _ => Exact::I(v as i128),
        }
    };
    let (alpha, beta) = (scalar("alpha", 1.0), scalar("beta", 0.0));
    let (sum, magnitude) = dot.end();
    let mut v = alpha.mul(sum);
    let mut bound = alpha.abs_f64() * magnitude;
    if beta.to_f64() != 0.0 {
        let old = old();
        let term = beta.mul(old);
        if old.to_f64().is_finite() {
            bound += term.abs_f64();
        }
        v = v.add(term);
    }
    (v.wrap(result(case)), bound)
}

/// Element (i, j) of product number `batch`; `x(t, at)` reads element `at` of operand t. For gemm and bmm.
pub(super) fn one(case: &Case, x: &impl Fn(usize, u64) -> Exact, batch: u64, i: u64, j: u64) -> (Exact, f64) {
    let (m, n, k) = (case.dim("m"), case.dim("n"), case.dim("k"));
    let (ta, tb) = (case.attrs.int("transA", 0) == 1, case.attrs.int("transB", 0) == 1);
    let mut dot = Dot::new(case.dtype);
    for p in 0..k {
        let a = if ta { p * m + i } else { i * k + p };
        let b = if tb { j * k + p } else { p * n + j };
        dot.add(x(0, batch * m * k + a), x(1, batch * k * n + b));
    }
    scaled(case, dot, || x(2, i * n + j))
}

/// All elements of all products, in order.
pub(super) fn every(case: &Case, f: impl Fn(u64, u64, u64) -> (Exact, f64)) -> Vec<Reference> {
    let (b, m, n) = (case.dim("b"), case.dim("m"), case.dim("n"));
    gather(b * m * n, |at| f(at / (m * n), at / n % m, at % n))
}

/// One output of `count` elements.
pub(super) fn gather(count: u64, f: impl Fn(u64) -> (Exact, f64)) -> Vec<Reference> {
    let (values, scale) = (0..count).map(f).unzip();
    vec![Reference { values, scale }]
}

/// One element of gemm or bmm.
pub(super) fn element(case: &Case, x: &[HostTensor], _: usize, at: u64) -> (Exact, f64) {
    let (m, n) = (case.dim("m"), case.dim("n"));
    one(case, &|t, i| Exact::read(&x[t], i), at / (m * n), at / n % m, at % n)
}

/// One element of gemv.
fn row(case: &Case, x: &impl Fn(usize, u64) -> Exact, i: u64) -> (Exact, f64) {
    let (m, n) = (case.dim("m"), case.dim("n"));
    let trans = case.attrs.int("transA", 0) == 1;
    let mut dot = Dot::new(case.dtype);
    for j in 0..n {
        dot.add(x(0, if trans { j * m + i } else { i * n + j }), x(1, j));
    }
    scaled(case, dot, || x(2, i))
}

fn is_flag(case: &Case, name: &str) -> Result<bool> {
    match case.attrs.int(name, 0) {
        0 => Ok(false),
        1 => Ok(true),
        _ => Err(Error::new(Code::BadArgument, format!("{name} must be 0 or 1"))),
    }
}

fn wrong(why: String) -> Error {
    Error::new(Code::ShapeMismatch, why)
}

const VECTOR: Kernel = Kernel {
    variant: "simd",
    body: Body::Native(vector::gemv),
    dtypes: DTYPES,
    dtypes_why: "",
    expr: "",
    needs: Needs::NONE,
    only_when_named: false,
    plan: plan_native::gemv,
};

/// A group of 256 with its tree in local memory.
const TREE: Needs = Needs { local_elements: 64 * 5, group: 256, ..Needs::NONE };

static GEMV: OpDesc = OpDesc {
    name: "gemv",
    doc: "y = alpha op(A) x + beta y with op(A) of m by n; beta = 0 does not read y.",
    tier: 1,
    onnx: None,
    dims: &["m", "n"],
    families: &[
        Family {
            name: "square",
            doc: "no dimension more than four times the other",
            matches: |c| c.dim("m").max(c.dim("n")) <= c.dim("m").min(c.dim("n")).saturating_mul(4),
            sweep: |n| vec![n, n],
        },
        Family {
            name: "narrow",
            doc: "one dimension more than four times the other; 4 columns in the sweep",
            matches: |_| true,
            sweep: |n| vec![(n.saturating_mul(n) / 4).max(17), 4],
        },
    ],
    unit: Unit::Dim,
    // A square matrix of dimension t has the work t³, as the unit wants it, though only t² is done.
    work: |c| {
        let elements = u128::from(c.dim("m")) * u128::from(c.dim("n"));
        elements.saturating_mul(elements.isqrt())
    },
    attrs: &[
        AttrDecl { name: "alpha", kind: AttrType::Float(1.0), doc: "factor of the product" },
        AttrDecl { name: "beta", kind: AttrType::Float(0.0), doc: "factor of y" },
        AttrDecl { name: "transA", kind: AttrType::Int(0), doc: "1: A is stored n by m" },
    ],
    dtypes: DTYPES,
    operands: &[
        Operand::input("A"),
        Operand::input("x"),
        Operand { name: "y", role: Role::InOut, dtype: DTypeRule::Same },
    ],
    shapes: |c| {
        let (m, n) = (c.dim("m"), c.dim("n"));
        host::count(&[m, n])?;
        let a = if is_flag(c, "transA")? { vec![n, m] } else { vec![m, n] };
        Ok(vec![a, vec![n], vec![m]])
    },
    bind: |shapes, attrs| {
        let (a, x, y) = match shapes {
            [a, x] => (a, x, None),
            [a, x, y] => (a, x, Some(y)),
            _ => return Err(wrong(format!("{} operands given; A, x and optionally y are expected", shapes.len()))),
        };
        let (&[rows, columns], &[n]) = (a.as_slice(), x.as_slice()) else {
            return Err(wrong(format!("A {a:?} must be a matrix and x {x:?} a vector")));
        };
        let (m, inner) = if attrs.int("transA", 0) == 1 { (columns, rows) } else { (rows, columns) };
        if inner != n {
            return Err(wrong(format!("op(A) is {m} by {inner}, x has {n} elements")));
        }
        match y {
            Some(y) if *y != [m] => return Err(wrong(format!("y is {y:?}, [{m}] is expected"))),
            None if attrs.float("beta", 0.0) != 0.0 => return Err(wrong("beta is not 0, so y must be given".into())),
            _ => {}
        }
        Ok(Binding { dims: vec![m, n], attrs: attrs.clone(), ..Binding::default() })
    },
    cost: plan_native::gemv_cost,
    oracle: |c, x| gather(c.dim("m"), |i| row(c, &|t, at| x[t][at as usize], i)),
    element: Some(|c, x, _, i| row(c, &|t, at| Exact::read(&x[t], at), i)),
    // n products and n - 1 additions in any order, alpha, beta and the last addition.
    whole: None,
    tolerance: Tolerance::Gamma(|c| c.dim("n") + 3),
    domain: &[Range(-1.0, 1.0), Range(-1.0, 1.0), Range(-1.0, 1.0)],
    grad: Grad::None("dA is an outer product and dx a gemv; there is no tape yet that could apply the rule"),
    kernels: &[
        Kernel { variant: "lanes", body: Body::C(VECTOR_C), needs: TREE, plan: plan_products::gemv, ..VECTOR },
        Kernel {
            variant: "lanes",
            body: Body::Wgsl(VECTOR_WGSL),
            needs: TREE,
            plan: plan_wgsl_products::gemv,
            ..VECTOR
        },
        plan_blas::gemv(VECTOR),
        VECTOR,
        Kernel { variant: "naive", body: Body::Native(vector::gemv_naive), only_when_named: true, ..VECTOR },
    ],
    cases: vector_cases,
    gaps: &[],
};

fn vector_cases(tier: Tier) -> Vec<CaseSpec> {
    let plain = Attrs::new;
    let f = |name: &str, v: f64| Attrs::new().with(name, Attr::Float(v));
    let t = || Attrs::new().with("transA", Attr::Int(1));
    let both = || f("alpha", 2.0).with("beta", Attr::Float(-3.0));
    let mut list = vec![
        ([0, 3], plain(), Fill::Uniform),
        ([3, 0], plain(), Fill::Uniform),
        ([1, 1], plain(), Fill::Uniform),
        ([17, 257], plain(), Fill::Uniform),
        ([65, 64], plain(), Fill::Integer),
        ([33, 130], t(), Fill::Uniform),
        ([130, 33], t(), Fill::Integer),
        ([63, 31], both(), Fill::Uniform),
        ([31, 65], both().with("transA", Attr::Int(1)), Fill::Uniform),
        // y is full of special values here and must not be read.
        ([9, 5], plain(), Fill::Special),
    ];
    if tier == Tier::Full {
        list.extend([
            ([5, 4], t(), Fill::Special),
            ([3, 0], f("beta", 2.0), Fill::Uniform),
            ([7, 3], f("beta", 1.0), Fill::Special),
            ([40, 13], t().with("beta", Attr::Float(1.0)), Fill::Uniform),
            ([13, 11], plain(), Fill::Constant),
            ([48, 80], plain(), Fill::Wide),
            ([48, 80], t(), Fill::Wide),
            ([20, 64], plain(), Fill::Cancelling),
            ([21, 66], t(), Fill::Cancelling),
            ([15, 17], plain(), Fill::Onehot),
            ([1, 5000], plain(), Fill::Positive),
            ([5000, 1], t(), Fill::Positive),
            ([255, 511], plain(), Fill::Integer),
            ([513, 255], t(), Fill::Integer),
            ([257, 1], plain(), Fill::Uniform),
            ([1, 600_001], plain(), Fill::Integer),
            ([2, 600_001], t(), Fill::Integer),
            // Four results per group.
            ([270_001, 1], plain(), Fill::Uniform),
            ([270_001, 3], t(), Fill::Uniform),
        ]);
    }
    list.into_iter().map(|(d, attrs, fill)| CaseSpec { dims: d.to_vec(), attrs, fill }).collect()
}

const BATCHED: Kernel =
    Kernel { variant: "blocked", body: Body::Native(matmul::bmm), plan: plan_native::bmm, ..VECTOR };

static BMM: OpDesc = OpDesc {
    name: "bmm",
    doc: "C[b] = op(A[b]) op(B[b]) for b products of row-major matrices that lie one behind the other.",
    tier: 1,
    onnx: Some("MatMul"),
    dims: &["b", "m", "n", "k"],
    families: &[Family {
        name: "matrices",
        doc: "any number of products; 8 square ones in the sweep",
        matches: |_| true,
        sweep: |n| vec![8, (n / 2).max(1), (n / 2).max(1), (n / 2).max(1)],
    }],
    unit: Unit::Dim,
    work: |c| ["b", "m", "n", "k"].iter().fold(1u128, |all, d| all.saturating_mul(u128::from(c.dim(d)))),
    attrs: &[
        AttrDecl { name: "transA", kind: AttrType::Int(0), doc: "1: every A is stored k by m" },
        AttrDecl { name: "transB", kind: AttrType::Int(0), doc: "1: every B is stored n by k" },
    ],
    dtypes: DTYPES,
    operands: &[Operand::input("A"), Operand::input("B"), Operand::output("C")],
    shapes: |c| {
        let (b, m, n, k) = (c.dim("b"), c.dim("m"), c.dim("n"), c.dim("k"));
        for s in [[b, m, k], [b, k, n], [b, m, n]] {
            host::count(&s)?;
        }
        let flip = |name: &str, r: u64, s: u64| -> Result<Vec<u64>> {
            Ok(if is_flag(c, name)? { vec![b, s, r] } else { vec![b, r, s] })
        };
        Ok(vec![flip("transA", m, k)?, flip("transB", k, n)?, vec![b, m, n]])
    },
    bind: bind_bmm,
    cost: plan_native::bmm_cost,
    oracle: |c, x| every(c, |batch, i, j| one(c, &|t, at| x[t][at as usize], batch, i, j)),
    element: Some(element),
    // k products and k - 1 additions in any order, and gemm's factor alpha, which is 1.
    whole: Some(freivalds::products),
    tolerance: Tolerance::Gamma(|c| c.dim("k") + 1),
    domain: &[Range(-1.0, 1.0), Range(-1.0, 1.0)],
    grad: Grad::None("dA and dB are bmms themselves; there is no tape yet that could apply the rule"),
    kernels: &[
        Kernel {
            variant: "cublas",
            body: Body::Routine(Routine::GemmStridedBatched),
            needs: Needs { library: Some(Library::Cublas), ..Needs::NONE },
            plan: plan_cuda::bmm_cublas,
            ..BATCHED
        },
        Kernel {
            variant: "cpu-tile",
            body: Body::Opencl(BLOCKS_TEXT),
            needs: plan_c::BLOCK_NEEDS,
            plan: plan_products::bmm_cpu_tile,
            ..BATCHED
        },
        Kernel {
            variant: "tiled128",
            body: Body::C(C_TEXT),
            needs: tiles(128, 128, 16, 256),
            plan: plan_products::bmm_tiled128,
            ..BATCHED
        },
        Kernel {
            variant: "tiled64",
            body: Body::C(C_TEXT),
            needs: tiles(64, 64, 16, 256),
            plan: plan_products::bmm_tiled64,
            ..BATCHED
        },
        Kernel {
            variant: "tiled16",
            body: Body::C(C_TEXT),
            needs: tiles(16, 16, 16, 256),
            plan: plan_products::bmm_tiled16,
            ..BATCHED
        },
        Kernel {
            variant: "tiled",
            body: Body::Wgsl(WGSL_TEXT),
            needs: Needs { local_elements: 2 * 16 * 64, group: 256, ..Needs::NONE },
            plan: plan_wgsl::bmm,
            ..BATCHED
        },
        Kernel {
            variant: "tiled16",
            body: Body::Wgsl(SMALL_WGSL),
            needs: Needs { local_elements: 2 * 16 * 16, group: 256, ..Needs::NONE },
            plan: plan_wgsl::bmm_small,
            ..BATCHED
        },
        plan_blas::bmm(BATCHED),
        BATCHED,
        Kernel { variant: "naive", body: Body::Native(matmul::bmm_naive), only_when_named: true, ..BATCHED },
    ],
    cases: batched_cases,
    gaps: &[],
};

/// Leading axes must agree; they are counted as one.
fn bind_bmm(shapes: &[Vec<u64>], attrs: &Attrs) -> Result<Binding> {
    let [a, b] = shapes else {
        return Err(wrong(format!("{} operands given, 2 are expected", shapes.len())));
    };
    let ([lead_a @ .., ra, ca], [lead_b @ .., rb, cb]) = (a.as_slice(), b.as_slice()) else {
        return Err(wrong(format!("A {a:?} and B {b:?} must hold matrices")));
    };
    if lead_a != lead_b {
        return Err(wrong(format!("A {a:?} and B {b:?} differ in the number of matrices")));
    }
    let (m, k) = if attrs.int("transA", 0) == 1 { (*ca, *ra) } else { (*ra, *ca) };
    let (inner, n) = if attrs.int("transB", 0) == 1 { (*cb, *rb) } else { (*rb, *cb) };
    if k != inner {
        return Err(wrong(format!("op(A) is {m} by {k}, op(B) is {inner} by {n}: the inner sizes differ")));
    }
    let result = [lead_a, &[m, n]].concat();
    Ok(Binding { dims: vec![host::count(lead_a)?, m, n, k], attrs: attrs.clone(), results: vec![result] })
}

fn batched_cases(tier: Tier) -> Vec<CaseSpec> {
    let plain = Attrs::new;
    let t = |a: i64, b: i64| Attrs::new().with("transA", Attr::Int(a)).with("transB", Attr::Int(b));
    let mut list = vec![
        ([0, 2, 3, 4], plain(), Fill::Uniform),
        ([2, 3, 4, 0], plain(), Fill::Uniform),
        ([1, 1, 1, 1], plain(), Fill::Uniform),
        ([3, 17, 5, 7], plain(), Fill::Uniform),
        ([2, 33, 65, 18], plain(), Fill::Uniform),
        ([5, 16, 16, 16], plain(), Fill::Integer),
        ([2, 66, 70, 31], t(1, 0), Fill::Uniform),
        ([3, 20, 33, 18], t(0, 1), Fill::Uniform),
        ([7, 31, 29, 5], t(1, 1), Fill::Integer),
        ([2, 9, 11, 5], plain(), Fill::Special),
    ];
    if tier == Tier::Full {
        list.extend([
            ([2, 0, 3, 4], plain(), Fill::Uniform),
            ([3, 5, 4, 2], t(1, 1), Fill::Special),
            ([2, 130, 129, 20], plain(), Fill::Uniform),
            ([2, 64, 64, 64], t(1, 1), Fill::Positive),
            ([4, 13, 11, 7], plain(), Fill::Constant),
            ([3, 21, 19, 40], plain(), Fill::Wide),
            ([3, 8, 70, 64], t(1, 0), Fill::Cancelling),
            ([4, 20, 21, 22], t(0, 1), Fill::Onehot),
            ([31, 1, 33, 65], plain(), Fill::Uniform),
            ([31, 33, 1, 65], plain(), Fill::Uniform),
            ([2, 15, 17, 1], plain(), Fill::Wide),
            ([257, 3, 2, 5], t(0, 1), Fill::Integer),
            ([1, 600_001, 1, 1], plain(), Fill::Uniform),
            // A tile per product.
            ([66_001, 1, 2, 1], plain(), Fill::Uniform),
        ]);
    }
    list.into_iter().map(|(d, attrs, fill)| CaseSpec { dims: d.to_vec(), attrs, fill }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_are_bound_and_wrong_ones_refused() {
        let t = Attrs::new().with("transB", Attr::Int(1));
        let b = (BMM.bind)(&[vec![2, 3, 4, 5], vec![2, 3, 6, 5]], &t).unwrap();
        assert_eq!((b.dims, b.results), (vec![6, 4, 6, 5], vec![vec![2, 3, 4, 6]]));
        for shapes in [vec![vec![2, 4, 5], vec![3, 5, 6]], vec![vec![4, 5], vec![4, 5]], vec![vec![5], vec![5]]] {
            assert!((BMM.bind)(&shapes, &Attrs::new()).is_err(), "{shapes:?}");
        }
        assert_eq!((GEMV.bind)(&[vec![4, 5], vec![5]], &Attrs::new()).unwrap().dims, [4, 5]);
        assert!((GEMV.bind)(&[vec![4, 5], vec![4]], &Attrs::new()).is_err());
        assert!((GEMV.bind)(&[vec![4, 5], vec![5]], &Attrs::new().with("beta", Attr::Float(1.0))).is_err());
        assert!(GEMV.case(DType::F32, &[2, 2], Attrs::new().with("transA", Attr::Int(2)), Fill::Uniform).is_err());
    }
}
