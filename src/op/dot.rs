//! Sums of products over one axis: dot product and Euclidean norm.

use crate::base::{Attrs, Case, Code, DType, Error, Exact, Fill, host};
use crate::kernel::cpu::reduce;
use crate::kernel::{Body, Kernel, Needs, plan_blas, plan_c_reduce, plan_native, plan_wgsl_reduce};

use super::products::Dot;
use super::reduce::{SUMS_C, SUMS_WGSL};
use super::{
    Binding, CaseSpec, DTypeRule, Family, Gap, Grad, OpDesc, Operand, Range, Reference, Role, ShapeClass, Tier,
    Tolerance, Unit,
};

const FLOATS: &[DType] = &[DType::F32, DType::F64, DType::F16, DType::BF16];
const WGSL_DTYPES: &[DType] =
    &[DType::F32, DType::F64, DType::F16, DType::BF16, DType::I32, DType::I64, DType::U32, DType::U64];
const GROUP: Needs = Needs { local_elements: 768, group: 256, ..Needs::NONE };
const FAMILIES: &[Family] =
    &[Family { name: "all", doc: "any number of elements", matches: |_| true, sweep: |n| vec![n] }];
const GAPS: &[Gap] = &[
    Gap::Shape(ShapeClass::Uneven, "one size only"),
    Gap::Shape(
        ShapeClass::ManyGroups,
        "a group takes 16,384 elements, so these were 10^9; sum has such groups of this text",
    ),
];

const BASE: Kernel = Kernel {
    variant: "simd",
    body: Body::Native(reduce::dot),
    dtypes: &DType::ALL,
    dtypes_why: "",
    expr: "",
    needs: Needs::NONE,
    only_when_named: false,
    plan: plan_native::dot,
};

pub(super) static DOT: OpDesc = OpDesc {
    name: "dot",
    doc: "y = sum of a[i] b[i], 0 for no elements; integers give i64 or u64, which wrap.",
    tier: 1,
    onnx: None,
    dims: &["n"],
    families: FAMILIES,
    unit: Unit::Elements,
    work: |c| u128::from(c.dim("n")),
    attrs: &[],
    dtypes: &DType::ALL,
    operands: &[
        Operand::input("a"),
        Operand::input("b"),
        Operand { name: "y", role: Role::Out, dtype: DTypeRule::Sum },
    ],
    shapes: |c| Ok(vec![vec![c.dim("n")], vec![c.dim("n")], vec![]]),
    bind: |shapes, _| {
        let [a, b] = shapes else {
            return Err(Error::new(Code::ShapeMismatch, format!("{} operands given, 2 are expected", shapes.len())));
        };
        if a != b {
            return Err(Error::new(Code::ShapeMismatch, format!("{a:?} and {b:?}: dot takes equal shapes")));
        }
        Ok(Binding { dims: vec![host::count(a)?], attrs: Attrs::new(), results: vec![vec![]] })
    },
    cost: |c| plan_native::dot_cost(c, DTypeRule::Sum.of(c).size()),
    oracle: |c, x| {
        let mut dot = Dot::new(c.dtype);
        x[0].iter().zip(&x[1]).for_each(|(a, b)| dot.add(*a, *b));
        let (s, magnitude) = dot.end();
        vec![Reference { values: vec![s.wrap(DTypeRule::Sum.of(c))], scale: vec![magnitude] }]
    },
    element: None,
    whole: None,
    tolerance: Tolerance::Gamma(|c| c.dim("n")),
    domain: &[Range(-1.0, 1.0), Range(-1.0, 1.0)],
    grad: Grad::None("the rule multiplies each operand by g, a scalar on the device"),
    kernels: &[
        Kernel { variant: "tree", body: Body::C(SUMS_C), needs: GROUP, plan: plan_c_reduce::dot, ..BASE },
        Kernel {
            variant: "tree",
            body: Body::Wgsl(SUMS_WGSL),
            needs: GROUP,
            plan: plan_wgsl_reduce::dot,
            dtypes: WGSL_DTYPES,
            dtypes_why: "WGSL has no numbers of 8 or 16 bits; f16 and bf16 are read in words of two",
            ..BASE
        },
        plan_blas::dot(BASE),
        BASE,
        Kernel { variant: "naive", body: Body::Native(reduce::dot_naive), only_when_named: true, ..BASE },
    ],
    cases,
    gaps: GAPS,
};

const NORM: Kernel = Kernel { body: Body::Native(reduce::nrm2), dtypes: FLOATS, plan: plan_native::nrm2, ..BASE };

pub(super) static NRM2: OpDesc = OpDesc {
    name: "nrm2",
    doc: "y = square root of the sum of x[i]^2, 0 for no elements; no square overflows or vanishes.",
    tier: 1,
    onnx: Some("ReduceL2"),
    dims: &["n"],
    families: FAMILIES,
    unit: Unit::Elements,
    work: |c| u128::from(c.dim("n")),
    attrs: &[],
    dtypes: FLOATS,
    operands: &[Operand::input("x"), Operand::output("y")],
    shapes: |c| Ok(vec![vec![c.dim("n")], vec![]]),
    bind: |shapes, _| {
        let [x] = shapes else {
            return Err(Error::new(Code::ShapeMismatch, format!("{} operands given, 1 is expected", shapes.len())));
        };
        Ok(Binding { dims: vec![host::count(x)?], attrs: Attrs::new(), results: vec![vec![]] })
    },
    cost: plan_native::nrm2_cost,
    oracle: norm,
    element: None,
    whole: None,
    // The square root halves the relative error of the sum: a rounding of each square and n - 1 of the sum; two of the
    // factors and one of the sum of the ranges; what vanishes in the combination of the ranges is below 2^-26 of it.
    tolerance: Tolerance::Analysis { functions: &[("sqrt", 1.0)], roundings: |c| c.dim("n") / 2 + 4 },
    domain: &[Range(-1.0, 1.0)],
    grad: Grad::None("the rule divides x by y and multiplies by g, scalars on the device"),
    kernels: &[
        Kernel { variant: "tree", body: Body::C(SUMS_C), needs: GROUP, plan: plan_c_reduce::nrm2, ..NORM },
        Kernel { variant: "tree", body: Body::Wgsl(SUMS_WGSL), needs: GROUP, plan: plan_wgsl_reduce::nrm2, ..NORM },
        plan_blas::nrm2(NORM),
        NORM,
        Kernel { variant: "naive", body: Body::Native(reduce::nrm2_naive), only_when_named: true, ..NORM },
    ],
    cases: norm_cases,
    gaps: GAPS,
};

/// Scaled by a power of two, so that no square leaves f64's range.
fn norm(_: &Case, x: &[Vec<Exact>]) -> Vec<Reference> {
    let top = x[0].iter().map(|v| v.abs_f64()).fold(0.0, f64::max);
    let nan = x[0].iter().any(|v| v.to_f64().is_nan());
    let value = if nan || top.is_infinite() || top == 0.0 {
        Exact::f(if nan { f64::NAN } else { top })
    } else {
        let e = (top.log2() as i32).clamp(-1000, 1000);
        let (down, up) = (Exact::f(2f64.powi(-e)), Exact::f(2f64.powi(e)));
        let squares = x[0].iter().map(|v| v.mul(down)).map(|v| v.mul(v));
        squares.fold(Exact::f(0.0), Exact::add).sqrt().mul(up)
    };
    vec![Reference { values: vec![value], scale: vec![value.abs_f64()] }]
}

/// As of dot, with numbers whose squares leave the dtype's range in either direction, or are on the verge of it.
fn norm_cases(tier: Tier) -> Vec<CaseSpec> {
    let sizes: &[u64] = if tier == Tier::Full { &[6, 33, 128, 512, 1024, 40_000] } else { &[1024] };
    let spec = |n: &u64, fill| CaseSpec { dims: vec![*n], attrs: Attrs::new(), fill };
    let mut list = cases(tier);
    list.extend(sizes.iter().flat_map(|n| [spec(n, Fill::Tiny), spec(n, Fill::Huge)]));
    list
}

fn cases(tier: Tier) -> Vec<CaseSpec> {
    let mut list = vec![
        (0, Fill::Uniform),
        (1, Fill::Uniform),
        (2, Fill::Positive),
        (257, Fill::Uniform),
        (1000, Fill::Special),
        (4096, Fill::Integer),
        (1023, Fill::Wide),
        (100_003, Fill::Uniform),
        (20_000, Fill::Integer),
        // Nearly all work-items find zeros, some of which a norm squares again: the one number must not be among those.
        (2_000, Fill::Onehot),
    ];
    if tier == Tier::Full {
        list.extend([
            (3, Fill::Special),
            (5, Fill::Special),
            (7, Fill::Wide),
            (31, Fill::Uniform),
            (32, Fill::Cancelling),
            (33, Fill::Onehot),
            (127, Fill::Constant),
            (129, Fill::Uniform),
            (255, Fill::Positive),
            (256, Fill::Wide),
            (1025, Fill::Cancelling),
            (16_384, Fill::Onehot),
            (16_385, Fill::Positive),
            (65_537, Fill::Constant),
            (70_001, Fill::Wide),
            (1_000_003, Fill::Uniform),
            (600_000, Fill::Integer),
        ]);
    }
    let spec = |(n, fill): (u64, Fill)| CaseSpec { dims: vec![n], attrs: Attrs::new(), fill };
    list.into_iter().map(spec).collect()
}
