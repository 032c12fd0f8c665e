//! Ops that stream their operands once: axpy, scal, triad, copy, fill.

use crate::base::{AttrDecl, AttrType, Attrs, Case, Code, DType, Error, Exact, Fill, Result, host};
use crate::kernel::cpu::stream;
use crate::kernel::plan_stream::{AXPY_ALPHA, SCAL_ALPHA, TRIAD_ALPHA};
use crate::kernel::{Body, Kernel, Needs, plan_blas, plan_c, plan_stream, plan_stream_wgsl};

use super::cast::rounded;
use super::elementwise::{self, REAL};
use super::flat::{FLAT, GAPS, Point, cases, element, oracle};
use super::{Binding, Gap, Grad, OpDesc, Operand, Range, Role, ShapeClass, Tolerance, Unit};

const C_TEXT: &str = include_str!("../../kernels/stream.c");
const VECTORS_TEXT: &str = include_str!("../../kernels/opencl/stream_vectors.cl");
const WGSL_TEXT: &str = include_str!("../../kernels/stream.wgsl");
const WGSL_HALF: &str = include_str!("../../kernels/stream_half.wgsl");
const WGSL_WORDS: &str = include_str!("../../kernels/stream_words.wgsl");
const HALF: &[DType] = &[DType::F16, DType::BF16];
const FLOATS: &[DType] = &[DType::F32, DType::F64, DType::F16, DType::BF16];
const IN_PLACE: &str = "works in place: a tape keeps no overwritten operand";

/// Ops of this file.
pub(super) static OPS: &[&OpDesc] = &[&AXPY, &SCAL, &TRIAD, &COPY, &FILL];

/// Memory read and written; written alone.
pub(super) static PROBES: [&OpDesc; 2] = [&COPY, &FILL];

const BASE: Kernel = Kernel {
    variant: "simd",
    body: Body::Native(stream::axpy),
    dtypes: FLOATS,
    dtypes_why: "",
    expr: "",
    needs: Needs::NONE,
    only_when_named: false,
    plan: plan_stream::axpy_native,
};
const NAIVE: Kernel = Kernel { variant: "naive", only_when_named: true, ..BASE };
const FLAT_C: Kernel = Kernel { variant: "flat", body: Body::C(C_TEXT), ..BASE };
/// For devices that are processors.
const VECTORS: Kernel =
    Kernel { variant: "cpu-vectors", body: Body::Opencl(VECTORS_TEXT), dtypes: &DType::ALL, ..BASE };
const FLAT_WGSL: Kernel = Kernel { variant: "flat", body: Body::Wgsl(WGSL_TEXT), ..BASE };

const fn alpha(default: f64) -> AttrDecl {
    AttrDecl { name: "alpha", kind: AttrType::Float(default), doc: "the factor" }
}

/// Factors to verify besides the default.
const ALPHAS: &[(&str, f64)] = &[("alpha", 2.5), ("alpha", -3.0), ("alpha", 0.1), ("alpha", 0.0)];

/// The factor as the kernels get it: rounded to the type of the arithmetic.
fn factor(case: &Case, default: f64) -> Exact {
    let a = case.attrs.float("alpha", default);
    Exact::f(if case.dtype.compute() == DType::F64 { a } else { f64::from(a as f32) })
}

/// a + alpha·b and the magnitudes of its finite terms; infinite if the product of finite numbers leaves f64.
fn fused(a: Exact, factor: Exact, b: Exact) -> (Exact, f64) {
    let size = |v: Exact| Some(v.abs_f64()).filter(|m| m.is_finite()).unwrap_or(0.0);
    let product = factor.mul(b);
    if product.abs_f64().is_infinite() && b.abs_f64().is_finite() && factor.abs_f64().is_finite() {
        // The sum may be finite all the same, or another infinity: it is taken 2^-600 times as large.
        let small = Exact::f(2f64.powi(-600));
        let sum = a.mul(small).add(factor.mul(small).mul(b));
        return (sum.mul(Exact::f(2f64.powi(600))), f64::INFINITY);
    }
    (a.add(product), size(a) + size(product))
}

/// `inputs` operands of one shape; attributes stay.
fn bind(shapes: &[Vec<u64>], attrs: &Attrs, inputs: usize) -> Result<Binding> {
    match shapes {
        [x, rest @ ..] if shapes.len() == inputs && rest.iter().all(|s| s == x) => {
            Ok(Binding { dims: vec![host::count(x)?], attrs: attrs.clone(), results: vec![x.clone()] })
        }
        _ => Err(Error::new(
            Code::ShapeMismatch,
            format!("{inputs} operands of one shape are expected, got the shapes {shapes:?}"),
        )),
    }
}

const AXPY_POINT: Point = |c, x| fused(x[1], factor(c, AXPY_ALPHA), x[0]);

static AXPY: OpDesc = OpDesc {
    name: "axpy",
    doc: "y += alpha·x, in place.",
    tier: 1,
    onnx: None,
    dims: &["n"],
    families: FLAT,
    unit: Unit::Elements,
    work: |c| u128::from(c.dim("n")),
    attrs: &[alpha(AXPY_ALPHA)],
    dtypes: FLOATS,
    operands: &[Operand::input("x"), Operand { role: Role::InOut, ..Operand::output("y") }],
    shapes: |c| Ok(vec![vec![c.dim("n")]; 2]),
    bind: |shapes, attrs| bind(shapes, attrs, 2),
    cost: |c| plan_stream::cost(c, 2, 2, 1),
    oracle: |c, x| oracle(c, x, AXPY_POINT),
    element: Some(|c, x, _, i| element(c, x, i, AXPY_POINT)),
    // One product; the sum's rounding is the last.
    whole: None,
    tolerance: Tolerance::Gamma(|_| 1),
    domain: &[Range(-1.0, 1.0), Range(-1.0, 1.0)],
    grad: Grad::None(IN_PLACE),
    kernels: &[
        Kernel { plan: plan_stream::axpy_c, ..FLAT_C },
        Kernel {
            dtypes: REAL,
            dtypes_why: "the variant packed takes halves",
            plan: plan_stream_wgsl::axpy,
            ..FLAT_WGSL
        },
        Kernel {
            variant: "packed",
            body: Body::Wgsl(WGSL_HALF),
            dtypes: HALF,
            dtypes_why: "the variant flat takes f32 and f64",
            plan: plan_stream_wgsl::axpy,
            ..BASE
        },
        plan_blas::axpy(BASE),
        BASE,
        Kernel { body: Body::Native(stream::axpy_naive), ..NAIVE },
    ],
    cases: |tier| cases(tier, ALPHAS),
    gaps: GAPS,
};

const SCAL_POINT: Point = |c, x| {
    let y = factor(c, SCAL_ALPHA).mul(x[0]);
    (y, y.abs_f64())
};

static SCAL: OpDesc = OpDesc {
    name: "scal",
    doc: "x *= alpha, in place.",
    tier: 1,
    onnx: None,
    dims: &["n"],
    families: FLAT,
    unit: Unit::Elements,
    work: |c| u128::from(c.dim("n")),
    attrs: &[alpha(SCAL_ALPHA)],
    dtypes: REAL,
    operands: &[Operand { role: Role::InOut, ..Operand::output("x") }],
    shapes: |c| Ok(vec![vec![c.dim("n")]]),
    bind: |shapes, attrs| bind(shapes, attrs, 1),
    cost: |c| plan_stream::cost(c, 1, 1, 1),
    oracle: |c, x| oracle(c, x, SCAL_POINT),
    element: Some(|c, x, _, i| element(c, x, i, SCAL_POINT)),
    whole: None,
    tolerance: Tolerance::Rounded,
    domain: &[Range(-1.0, 1.0)],
    grad: Grad::None(IN_PLACE),
    kernels: &[
        Kernel { dtypes: REAL, plan: plan_stream::scal_c, ..FLAT_C },
        Kernel { dtypes: REAL, plan: plan_stream_wgsl::scal, ..FLAT_WGSL },
        Kernel { body: Body::Native(stream::scal), dtypes: REAL, plan: plan_stream::scal_native, ..BASE },
        Kernel { body: Body::Native(stream::scal_naive), dtypes: REAL, plan: plan_stream::scal_native, ..NAIVE },
    ],
    cases: |tier| cases(tier, ALPHAS),
    gaps: GAPS,
};

const TRIAD_POINT: Point = |c, x| fused(x[0], factor(c, TRIAD_ALPHA), x[1]);

static TRIAD: OpDesc = OpDesc {
    name: "triad",
    doc: "y = a + alpha·b: STREAM's probe of the memory's bandwidth.",
    tier: 1,
    onnx: None,
    dims: &["n"],
    families: FLAT,
    unit: Unit::Elements,
    work: |c| u128::from(c.dim("n")),
    attrs: &[alpha(TRIAD_ALPHA)],
    dtypes: REAL,
    operands: &[Operand::input("a"), Operand::input("b"), Operand::output("y")],
    shapes: |c| Ok(vec![vec![c.dim("n")]; 3]),
    bind: |shapes, attrs| bind(shapes, attrs, 2),
    cost: |c| plan_stream::cost(c, 2, 2, 1),
    oracle: |c, x| oracle(c, x, TRIAD_POINT),
    element: Some(|c, x, _, i| element(c, x, i, TRIAD_POINT)),
    // One product; the sum's rounding is the last.
    whole: None,
    tolerance: Tolerance::Gamma(|_| 1),
    domain: &[Range(-1.0, 1.0), Range(-1.0, 1.0)],
    grad: Grad::None("a probe of bandwidth; networks use add and mul_scalar"),
    kernels: &[
        Kernel { body: Body::Opencl(elementwise::VECTORS_TEXT), dtypes: REAL, plan: plan_c::triad_vectors, ..VECTORS },
        Kernel { dtypes: REAL, plan: plan_stream::triad_c, ..FLAT_C },
        Kernel { dtypes: REAL, plan: plan_stream_wgsl::triad, ..FLAT_WGSL },
        Kernel { body: Body::Native(stream::triad), dtypes: REAL, plan: plan_stream::triad_native, ..BASE },
        Kernel { body: Body::Native(stream::triad_naive), dtypes: REAL, plan: plan_stream::triad_native, ..NAIVE },
    ],
    cases: |tier| cases(tier, ALPHAS),
    gaps: GAPS,
};

const COPY_POINT: Point = |_, x| (x[0], 0.0);

static COPY: OpDesc = OpDesc {
    name: "copy",
    doc: "y = x by a kernel on the device, every bit kept.",
    tier: 1,
    onnx: Some("Identity"),
    dims: &["n"],
    families: FLAT,
    unit: Unit::Elements,
    work: |c| u128::from(c.dim("n")),
    attrs: &[],
    dtypes: &DType::ALL,
    operands: &[Operand::input("x"), Operand::output("y")],
    shapes: |c| Ok(vec![vec![c.dim("n")]; 2]),
    bind: |shapes, attrs| bind(shapes, attrs, 1),
    cost: |c| plan_stream::cost(c, 0, 1, 1),
    oracle: |c, x| oracle(c, x, COPY_POINT),
    element: Some(|c, x, _, i| element(c, x, i, COPY_POINT)),
    whole: None,
    tolerance: Tolerance::Exact,
    domain: &[Range(-1000.0, 1000.0)],
    grad: Grad::None("the rule is copy itself; there is no tape yet that could apply it"),
    kernels: &[
        Kernel { plan: plan_stream::copy_vectors, ..VECTORS },
        Kernel { dtypes: &DType::ALL, plan: plan_stream::copy_c, ..FLAT_C },
        Kernel { body: Body::Wgsl(WGSL_WORDS), dtypes: &DType::ALL, plan: plan_stream_wgsl::copy, ..FLAT_WGSL },
        Kernel {
            variant: "memcpy",
            body: Body::Native(stream::copy),
            dtypes: &DType::ALL,
            plan: plan_stream::copy_native,
            ..BASE
        },
        Kernel { body: Body::Native(stream::copy_naive), dtypes: &DType::ALL, plan: plan_stream::copy_native, ..NAIVE },
    ],
    cases: |tier| cases(tier, &[]),
    gaps: GAPS,
};

const FILL_POINT: Point = |c, _| (rounded(Exact::f(c.attrs.float("value", 0.0)), c.dtype), 0.0);

/// `fill` reads nothing, so no class of data but the one that means none.
const fn no_data(fill: Fill) -> Gap {
    Gap::Data(fill, "no operand is read")
}

static FILL: OpDesc = OpDesc {
    name: "fill",
    doc: "y = value everywhere, rounded to the dtype; an integer dtype refuses a value that it does not hold.",
    tier: 1,
    onnx: None,
    dims: &["n"],
    families: FLAT,
    unit: Unit::Elements,
    work: |c| u128::from(c.dim("n")),
    attrs: &[AttrDecl { name: "value", kind: AttrType::Float(0.0), doc: "the value" }],
    dtypes: &DType::ALL,
    operands: &[Operand::output("y")],
    shapes: |c| {
        let value = c.attrs.float("value", 0.0);
        if !c.dtype.holds(value) {
            return Err(Error::new(Code::BadArgument, format!("{} does not hold the value {value}", c.dtype)));
        }
        Ok(vec![vec![c.dim("n")]])
    },
    bind: |shapes, _| {
        let given = shapes.len();
        Err(Error::new(Code::ShapeMismatch, format!("fill has no operand to read; {given} given, sizes are expected")))
    },
    cost: |c| plan_stream::cost(c, 0, 0, 1),
    oracle: |c, x| oracle(c, x, FILL_POINT),
    element: Some(|c, x, _, i| element(c, x, i, FILL_POINT)),
    whole: None,
    tolerance: Tolerance::Exact,
    domain: &[],
    grad: Grad::None("there is no operand to differentiate by"),
    kernels: &[
        Kernel { plan: plan_stream::fill_vectors, ..VECTORS },
        Kernel { dtypes: &DType::ALL, plan: plan_stream::fill_c, ..FLAT_C },
        Kernel { body: Body::Wgsl(WGSL_WORDS), dtypes: &DType::ALL, plan: plan_stream_wgsl::fill, ..FLAT_WGSL },
        Kernel { body: Body::Native(stream::fill), dtypes: &DType::ALL, plan: plan_stream::fill_native, ..BASE },
        Kernel { body: Body::Native(stream::fill_naive), dtypes: &DType::ALL, plan: plan_stream::fill_native, ..NAIVE },
    ],
    // Values that all dtypes hold.
    cases: |tier| {
        let mut specs = cases(tier, &[("value", 1.0), ("value", 42.0), ("value", 127.0)]);
        specs.retain(|s| s.fill == Fill::Uniform);
        specs
    },
    gaps: &[
        GAPS[0],
        Gap::Shape(ShapeClass::ManyGroups, "as copy, which has the same text and index arithmetic"),
        no_data(Fill::Positive),
        no_data(Fill::Integer),
        no_data(Fill::Special),
        no_data(Fill::Constant),
        no_data(Fill::Wide),
        no_data(Fill::Cancelling),
        no_data(Fill::Onehot),
    ],
};

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::Attr;

    #[test]
    fn a_product_beyond_f64_does_not_spoil_the_sum() {
        let (max, f) = (f64::MAX, Exact::f);
        let sum = |a: f64, alpha: f64, b: f64| fused(f(a), f(alpha), f(b)).0.to_f64();
        assert_eq!((sum(-max, 1.5, max), sum(1.0, -3.0, max)), (max / 2.0, f64::NEG_INFINITY));
        assert_eq!((sum(f64::NEG_INFINITY, 2.5, max), sum(1.0, 2.0, 3.0)), (f64::NEG_INFINITY, 7.0));
        assert!(sum(f64::NEG_INFINITY, 2.5, f64::INFINITY).is_nan());
        assert_eq!(fused(f(1.0), f(2.0), f(max)).1, f64::INFINITY);
        assert_eq!(fused(f(-1.0), f(2.0), f(3.0)).1, 7.0);
    }

    #[test]
    fn fill_refuses_what_the_dtype_does_not_hold() {
        let with = |v| Attrs::new().with("value", Attr::Float(v));
        assert_eq!(FILL.case(DType::U8, &[3], with(256.0), Fill::Uniform).unwrap_err().code(), Code::BadArgument);
        assert!(FILL.case(DType::I32, &[3], with(0.5), Fill::Uniform).is_err());
        let c = FILL.case(DType::F16, &[3], with(0.1), Fill::Uniform).unwrap();
        let want = f64::from(half::f16::from_f32(0.1));
        assert_eq!((FILL.oracle)(&c, &[])[0].values[2].to_f64(), want);
        assert_eq!(plan_stream::pattern(&c), u64::from(half::f16::from_f32(0.1).to_bits()));
    }
}
