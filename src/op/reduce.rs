//! Reductions over one axis of [outer, n, inner].

use crate::base::{AttrDecl, AttrType, Attrs, Case, Code, DType, Error, Exact, Fill, Result, host};
use crate::kernel::cpu::reduce;
use crate::kernel::{Body, Kernel, Needs, plan_c, plan_native, plan_wgsl};

use super::{CaseSpec, DTypeRule, Family, Grad, OpDesc, Operand, Range, Reference, Role, Tier, Tolerance, Unit};

const C_TEXT: &str = include_str!("../../kernels/reduce.c");
const WGSL_TEXT: &str = include_str!("../../kernels/reduce.wgsl");
const NUMBERS: &[DType] = &[DType::F32, DType::F64, DType::I32];

/// Ops of this file.
pub(super) static OPS: &[&OpDesc] = &[&SUM];

const BASE: Kernel = Kernel {
    variant: "simd",
    body: Body::Native(reduce::sum),
    dtypes: NUMBERS,
    dtypes_why: "",
    expr: "",
    needs: Needs::NONE,
    only_when_named: false,
    plan: plan_native::sum,
};
const GROUP: Needs = Needs { local_elements: 256, group: 256, ..Needs::NONE };

static SUM: OpDesc = OpDesc {
    name: "sum",
    doc: "y[outer, inner] = sum over n of x[outer, n, inner]; integers sum to i64.",
    tier: 1,
    onnx: Some("ReduceSum"),
    dims: &["outer", "n", "inner"],
    families: &[
        Family {
            name: "full",
            doc: "all elements to one number",
            matches: |c| c.dim("outer") == 1 && c.dim("inner") == 1,
            sweep: |n| vec![1, n, 1],
        },
        Family {
            name: "rows",
            doc: "along the last axis, rows of 512 in the sweep",
            matches: |c| c.dim("inner") == 1,
            sweep: |n| vec![n.div_ceil(512).max(2), n.min(512), 1],
        },
        Family {
            name: "columns",
            doc: "along an earlier axis, 512 columns in the sweep",
            matches: |_| true,
            sweep: |n| vec![1, n.div_ceil(512), 512.min(n).max(2)],
        },
    ],
    unit: Unit::Elements,
    work: |c| u128::from(c.dim("outer")) * u128::from(c.dim("n")) * u128::from(c.dim("inner")),
    attrs: &[
        AttrDecl { name: "axes", kind: AttrType::Ints, doc: "axes to sum over, neighbours; none: all (library calls)" },
        AttrDecl { name: "keepdims", kind: AttrType::Int(1), doc: "keep summed axes with extent 1 (library calls)" },
    ],
    dtypes: NUMBERS,
    operands: &[Operand::input("x"), Operand { name: "y", role: Role::Out, dtype: DTypeRule::Sum }],
    shapes: |c| {
        let (o, n, i) = (c.dim("outer"), c.dim("n"), c.dim("inner"));
        host::count(&[o, n, i])?;
        Ok(vec![vec![o, n, i], vec![o, i]])
    },
    bind,
    cost: plan_native::sum_cost,
    oracle,
    tolerance: Tolerance::Gamma(|c| c.dim("n").max(1) - 1),
    domain: &[Range(-1.0, 1.0)],
    grad: Grad::None("the rule broadcasts g back over the summed axis, which needs an op of its own"),
    kernels: &[
        Kernel { variant: "tree", body: Body::C(C_TEXT), needs: GROUP, plan: plan_c::sum, ..BASE },
        Kernel { variant: "tree", body: Body::Wgsl(WGSL_TEXT), needs: GROUP, plan: plan_wgsl::sum, ..BASE },
        BASE,
        Kernel { variant: "naive", body: Body::Native(reduce::sum_naive), only_when_named: true, ..BASE },
    ],
    cases,
};

/// Axes of a user's call: neighbouring axes collapse to the middle one of [outer, n, inner].
fn bind(shapes: &[Vec<u64>], attrs: &Attrs) -> Result<(Vec<u64>, Attrs)> {
    let [x] = shapes else {
        return Err(Error::new(Code::ShapeMismatch, format!("{} operands given, 1 is expected", shapes.len())));
    };
    let rank = x.len() as i64;
    let mut axes = Vec::new();
    for a in attrs.ints("axes") {
        let at = if *a < 0 { a + rank } else { *a };
        if !(0..rank).contains(&at) {
            return Err(Error::new(Code::BadArgument, format!("axis {a} is outside of rank {rank}")));
        }
        axes.push(at as usize);
    }
    axes.sort_unstable();
    axes.dedup();
    let (first, last) = match (axes.first(), axes.last()) {
        (Some(f), Some(l)) => (*f, *l + 1),
        _ => (0, x.len()),
    };
    if !axes.is_empty() && axes.len() != last - first {
        return Err(Error::new(
            Code::OpUnsupported,
            format!("axes {axes:?} are not neighbours; sum them one after another"),
        ));
    }
    let product = |s: &[u64]| host::count(s);
    Ok((vec![product(&x[..first])?, product(&x[first..last])?, product(&x[last..])?], Attrs::new()))
}

fn oracle(case: &Case, x: &[Vec<Exact>]) -> Vec<Reference> {
    let (o, n, i) = (case.dim("outer"), case.dim("n"), case.dim("inner"));
    let (mut values, mut scale) = (Vec::new(), Vec::new());
    for row in 0..o {
        for column in 0..i {
            let mut s = Exact::zero(case.dtype);
            let mut magnitude = 0.0;
            for j in 0..n {
                let v = x[0][((row * n + j) * i + column) as usize];
                s = s.add(v);
                // Infinities and NaN decide the value; the scale tells whether finite terms could overflow as well.
                magnitude += Some(v.abs_f64()).filter(|m| m.is_finite()).unwrap_or(0.0);
            }
            values.push(s.wrap(DTypeRule::Sum.of(case.dtype)));
            scale.push(magnitude);
        }
    }
    vec![Reference { values, scale }]
}

fn cases(tier: Tier) -> Vec<CaseSpec> {
    let mut shapes = vec![
        ([1, 0, 1], Fill::Uniform),
        ([1, 1, 1], Fill::Uniform),
        ([1, 257, 1], Fill::Uniform),
        ([1, 100_003, 1], Fill::Uniform),
        // The bound of a long sum exceeds single elements; integers make it exact, so that a lost one shows.
        ([1, 4096, 1], Fill::Integer),
        ([1, 100_003, 1], Fill::Integer),
        ([1, 1000, 1], Fill::Special),
        ([33, 65, 1], Fill::Uniform),
        ([3, 129, 5], Fill::Uniform),
        ([2, 1031, 3], Fill::Integer),
        ([1, 65, 257], Fill::Positive),
    ];
    if tier == Tier::Full {
        shapes.extend([
            ([1, 255, 1], Fill::Uniform),
            ([1, 256, 1], Fill::Uniform),
            ([1, 65_537, 1], Fill::Positive),
            ([1, 1_000_003, 1], Fill::Uniform),
            ([70_000, 3, 1], Fill::Uniform),
            ([0, 4, 4], Fill::Uniform),
            ([4, 0, 4], Fill::Uniform),
            ([2, 5000, 3], Fill::Integer),
            ([7, 31, 33], Fill::Constant),
        ]);
    }
    shapes.into_iter().map(|(d, fill)| CaseSpec { dims: d.to_vec(), attrs: Attrs::new(), fill }).collect()
}
