//! Softmax over rows.

use crate::base::{AttrDecl, AttrType, Attrs, Case, Code, DType, Error, Exact, Fill, host};
use crate::kernel::cpu::norm;
use crate::kernel::{Body, Kernel, Needs, plan_c, plan_native, plan_wgsl};

use super::{CaseSpec, Family, Grad, OpDesc, Operand, Range, Reference, Tier, Tolerance, Unit};

const C_TEXT: &str = include_str!("../../kernels/norm.c");
const WGSL_TEXT: &str = include_str!("../../kernels/norm.wgsl");
const FLOATS: &[DType] = &[DType::F32, DType::F64];

/// Ops of this file.
pub(super) static OPS: &[&OpDesc] = &[&SOFTMAX];

const BASE: Kernel = Kernel {
    variant: "simd",
    body: Body::Native(norm::softmax),
    dtypes: FLOATS,
    dtypes_why: "",
    expr: "",
    needs: Needs::NONE,
    only_when_named: false,
    plan: plan_native::softmax,
};
const GROUP: Needs = Needs { local_elements: 256, group: 256, ..Needs::NONE };

static SOFTMAX: OpDesc = OpDesc {
    name: "softmax",
    doc: "y[i, j] = exp(x[i, j] - max of row i) / sum over row i of the same.",
    tier: 1,
    onnx: Some("Softmax"),
    dims: &["m", "n"],
    families: &[Family {
        name: "rows",
        doc: "m rows of n, 1,024 columns in the sweep",
        matches: |_| true,
        sweep: |n| vec![n.div_ceil(1024), n.min(1024)],
    }],
    unit: Unit::Elements,
    work: |c| u128::from(c.dim("m")) * u128::from(c.dim("n")),
    attrs: &[AttrDecl { name: "axis", kind: AttrType::Int(-1), doc: "axis; only the last one (library calls)" }],
    dtypes: FLOATS,
    operands: &[Operand::input("x"), Operand::output("y")],
    shapes: |c| {
        host::count(&[c.dim("m"), c.dim("n")])?;
        if c.attrs.int("axis", -1) != -1 {
            return Err(Error::new(Code::OpUnsupported, "only the last axis is supported; transpose first"));
        }
        Ok(vec![vec![c.dim("m"), c.dim("n")]; 2])
    },
    bind: |shapes, attrs| {
        let [x] = shapes else {
            return Err(Error::new(Code::ShapeMismatch, format!("{} operands given, 1 is expected", shapes.len())));
        };
        let axis = attrs.int("axis", -1);
        let Some((n, outer)) = x.split_last() else {
            return Err(Error::new(Code::ShapeMismatch, "softmax of a scalar: at least one axis is needed"));
        };
        if axis != -1 && axis != x.len() as i64 - 1 {
            return Err(Error::new(Code::OpUnsupported, "only the last axis is supported; transpose first"));
        }
        Ok((vec![host::count(outer)?, *n], Attrs::new()))
    },
    cost: |c| plan_native::matrix_cost(c, 4),
    oracle,
    tolerance: Tolerance::Softmax(|c| c.dim("n")),
    domain: &[Range(-5.0, 5.0)],
    grad: Grad::None("the rule needs mul, which the table does not have yet"),
    kernels: &[
        Kernel { variant: "row", body: Body::C(C_TEXT), needs: GROUP, plan: plan_c::softmax, ..BASE },
        Kernel {
            variant: "row",
            body: Body::Wgsl(WGSL_TEXT),
            needs: GROUP,
            dtypes: &[DType::F32],
            dtypes_why: "SPIR-V's extended instructions have no f64 form of exp",
            plan: plan_wgsl::softmax,
            ..BASE
        },
        BASE,
        Kernel { variant: "naive", body: Body::Native(norm::softmax_naive), only_when_named: true, ..BASE },
    ],
    cases,
};

fn oracle(case: &Case, x: &[Vec<Exact>]) -> Vec<Reference> {
    let n = case.dim("n") as usize;
    let (mut values, mut scale) = (Vec::new(), Vec::new());
    for row in x[0].chunks(n.max(1)) {
        let top = row
            .iter()
            .map(|v| v.to_f64())
            .fold(f64::NEG_INFINITY, |a, b| if a.is_nan() || b.is_nan() { f64::NAN } else { a.max(b) });
        let e: Vec<Exact> = row.iter().map(|v| v.add(Exact::f(-top)).exp()).collect();
        let mut total = Exact::f(0.0);
        for v in &e {
            total = total.add(*v);
        }
        // How the rounding of x - max enters the term, plus how it enters the sum: |x - max| averaged with the weights of
        // the sum. A weight of zero counts nothing, whatever its distance.
        let distance = |v: &Exact| (v.to_f64() - top).abs();
        let parts = row.iter().zip(&e).map(|(v, e)| if e.to_f64() == 0.0 { 0.0 } else { e.to_f64() * distance(v) });
        let average = parts.sum::<f64>() / total.to_f64();
        for (v, e) in row.iter().zip(e) {
            values.push(e.div(total));
            scale.push(distance(v) + average);
        }
    }
    vec![Reference { values, scale }]
}

fn cases(tier: Tier) -> Vec<CaseSpec> {
    let mut shapes = vec![
        ([0, 5], Fill::Uniform),
        ([1, 1], Fill::Uniform),
        ([7, 33], Fill::Uniform),
        ([3, 257], Fill::Uniform),
        ([65, 100], Fill::Positive),
        ([5, 64], Fill::Constant),
        ([9, 40], Fill::Special),
    ];
    if tier == Tier::Full {
        shapes.extend([
            ([5, 0], Fill::Uniform),
            ([2, 255], Fill::Uniform),
            ([2, 256], Fill::Uniform),
            ([257, 31], Fill::Uniform),
            ([3, 5000], Fill::Uniform),
            ([66_000, 2], Fill::Uniform),
            ([33, 129], Fill::Integer),
        ]);
    }
    shapes.into_iter().map(|(d, fill)| CaseSpec { dims: d.to_vec(), attrs: Attrs::new(), fill }).collect()
}
