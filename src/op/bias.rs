//! A bias per channel and its gradient: the last axis of rows, or the channels of NCHW.

use crate::base::{AttrDecl, AttrType, Attrs, Case, Code, DType, Error, Exact, Fill, HostTensor, Result, host};
use crate::kernel::cpu::bias;
use crate::kernel::{Body, Kernel, Needs, plan_bias, plan_bias_wgsl};

use super::{
    Binding, CaseSpec, Family, Gap, Grad, OpDesc, Operand, Range, Reference, ShapeClass, Tier, Tolerance, Unit,
};

const C_TEXT: &str = include_str!("../../kernels/bias.c");
const VECTORS_TEXT: &str = include_str!("../../kernels/opencl/bias_vectors.cl");
const REDUCE_TEXT: &str = include_str!("../../kernels/reduce.c");
const SUM_TEXT: &str = include_str!("../../kernels/bias_sum.c");
const WGSL_TEXT: &str = include_str!("../../kernels/bias.wgsl");
const FLOATS: &[DType] = &[DType::F32, DType::F64, DType::F16, DType::BF16];
const DIMS: &[&str] = &["outer", "c", "inner"];
const AXIS: &[AttrDecl] =
    &[AttrDecl { name: "axis", kind: AttrType::Int(-1), doc: "axis of the channels (library calls)" }];
const GROUP: Needs = Needs { local_elements: 256, group: 256, ..Needs::NONE };

/// Ops of this file.
pub(super) static OPS: &[&OpDesc] = &[&BIAS_ADD, &BIAS_ADD_BWD];

const FAMILIES: &[Family] = &[
    Family {
        name: "rows",
        doc: "along the last axis, 1,024 channels in the sweep",
        matches: |c| c.dim("inner") == 1,
        sweep: |n| vec![n.div_ceil(1024), n.min(1024), 1],
    },
    Family {
        name: "channels",
        doc: "planes of channels, 16 of 64 elements in the sweep",
        matches: |_| true,
        sweep: |n| vec![n.div_ceil(1024), 16, 64],
    },
];

const ADD: Kernel = Kernel {
    variant: "simd",
    body: Body::Native(bias::bias_add),
    dtypes: FLOATS,
    dtypes_why: "",
    expr: "",
    needs: Needs::NONE,
    only_when_named: false,
    plan: plan_bias::add_native,
};
const SUM: Kernel = Kernel { body: Body::Native(bias::bias_sum), plan: plan_bias::sum_native, ..ADD };

static BIAS_ADD: OpDesc = OpDesc {
    name: "bias_add",
    doc: "y[o, c, i] = x[o, c, i] + b[c].",
    tier: 1,
    onnx: None,
    dims: DIMS,
    families: FAMILIES,
    unit: Unit::Elements,
    work,
    attrs: AXIS,
    dtypes: FLOATS,
    operands: &[Operand::input("x"), Operand::input("b"), Operand::output("y")],
    shapes: |c| {
        let x = shape(c)?;
        Ok(vec![x.clone(), vec![c.dim("c")], x])
    },
    bind: |shapes, attrs| match shapes {
        [x, b] => {
            let (dims, at) = split(x, attrs)?;
            if *b != [x[at]] {
                return Err(Error::new(
                    Code::ShapeMismatch,
                    format!("a bias of the shape {b:?} for {} channels of {x:?}", x[at]),
                ));
            }
            Ok(Binding { dims, attrs: Attrs::new(), results: vec![x.clone()] })
        }
        _ => Err(Error::new(Code::ShapeMismatch, format!("{} operands given, 2 are expected", shapes.len()))),
    },
    cost: plan_bias::add_cost,
    oracle: |c, x| {
        let element = |i: u64| sum_of_two(x[0][i as usize], x[1][channel(c, i) as usize]);
        let (values, scale) = (0..plan_bias::elements(c)).map(element).unzip();
        vec![Reference { values, scale }]
    },
    element: Some(|c, x, _, i| sum_of_two(Exact::read(&x[0], i), Exact::read(&x[1], channel(c, i)))),
    // f16 and bf16: rounding a sum of two first to 24 bits changes nothing, for 24 >= 2·11 + 2 (Figueroa 1995).
    whole: None,
    tolerance: Tolerance::Rounded,
    domain: &[Range(-1.0, 1.0), Range(-1.0, 1.0)],
    grad: Grad::None("its rule is bias_add_bwd; there is no tape yet that could apply it"),
    kernels: &[
        Kernel { variant: "cpu-vectors", body: Body::Opencl(VECTORS_TEXT), plan: plan_bias::add_vectors, ..ADD },
        Kernel { variant: "flat", body: Body::C(C_TEXT), plan: plan_bias::add_c, ..ADD },
        Kernel { variant: "flat", body: Body::Wgsl(WGSL_TEXT), plan: plan_bias_wgsl::add, ..ADD },
        ADD,
        Kernel { variant: "naive", body: Body::Native(bias::bias_add_naive), only_when_named: true, ..ADD },
    ],
    cases,
    gaps: &[Gap::Shape(ShapeClass::ManyGroups, "groups take 1,024 elements on a GPU: 67 million")],
};

static BIAS_ADD_BWD: OpDesc = OpDesc {
    name: "bias_add_bwd",
    doc: "db[c] = sum over o and i of g[o, c, i].",
    tier: 1,
    onnx: None,
    dims: DIMS,
    families: FAMILIES,
    unit: Unit::Elements,
    work,
    attrs: AXIS,
    dtypes: FLOATS,
    operands: &[Operand::input("g"), Operand::output("db")],
    shapes: |c| Ok(vec![shape(c)?, vec![c.dim("c")]]),
    bind: |shapes, attrs| match shapes {
        [g] => Ok(Binding { dims: split(g, attrs)?.0, ..Binding::default() }),
        _ => Err(Error::new(Code::ShapeMismatch, format!("{} operands given, 1 is expected", shapes.len()))),
    },
    cost: plan_bias::sum_cost,
    oracle: |c, x| {
        let (values, scale) = (0..c.dim("c")).map(|i| channel_sum(c, i, |at| x[0][at as usize])).unzip();
        vec![Reference { values, scale }]
    },
    element: Some(|c, x: &[HostTensor], _, i| channel_sum(c, i, |at| Exact::read(&x[0], at))),
    whole: None,
    tolerance: Tolerance::Gamma(|c| c.dim("outer").saturating_mul(c.dim("inner")).max(1) - 1),
    domain: &[Range(-1.0, 1.0)],
    grad: Grad::None("a backward form: derivatives of second order are not offered"),
    kernels: &[
        Kernel { variant: "cpu-sums", body: Body::C(REDUCE_TEXT), plan: plan_bias::sum_c_of_processor, ..SUM },
        Kernel { variant: "tree", body: Body::C(SUM_TEXT), needs: GROUP, plan: plan_bias::sum_c, ..SUM },
        Kernel { variant: "tree", body: Body::Wgsl(WGSL_TEXT), needs: GROUP, plan: plan_bias_wgsl::sum, ..SUM },
        SUM,
        Kernel { variant: "naive", body: Body::Native(bias::bias_sum_naive), only_when_named: true, ..SUM },
    ],
    cases,
    gaps: &[],
};

fn work(case: &Case) -> u128 {
    DIMS.iter().map(|d| u128::from(case.dim(d))).product()
}

fn shape(case: &Case) -> Result<Vec<u64>> {
    if case.attrs.int("axis", -1) != -1 {
        return Err(Error::new(Code::BadArgument, "the sizes outer, c, inner say where the channels are, not axis"));
    }
    let x: Vec<u64> = DIMS.iter().map(|d| case.dim(d)).collect();
    host::count(&x)?;
    Ok(x)
}

/// outer, c, inner of a user's shape, and which axis the channels are.
fn split(x: &[u64], attrs: &Attrs) -> Result<(Vec<u64>, usize)> {
    let (axis, rank) = (attrs.int("axis", -1), x.len() as i64);
    let at = if axis < 0 { axis + rank } else { axis };
    if !(0..rank).contains(&at) {
        return Err(Error::new(Code::BadArgument, format!("axis {axis} is outside of rank {rank}")));
    }
    let at = at as usize;
    Ok((vec![host::count(&x[..at])?, x[at], host::count(&x[at + 1..])?], at))
}

fn channel(case: &Case, i: u64) -> u64 {
    i / case.dim("inner") % case.dim("c")
}

fn sum_of_two(a: Exact, b: Exact) -> (Exact, f64) {
    (a.add(b), a.abs_f64() + b.abs_f64())
}

fn channel_sum(case: &Case, channel: u64, g: impl Fn(u64) -> Exact) -> (Exact, f64) {
    let (mut sum, mut magnitude) = (Exact::f(0.0), 0.0);
    for o in 0..case.dim("outer") {
        for i in 0..case.dim("inner") {
            let v = g((o * case.dim("c") + channel) * case.dim("inner") + i);
            sum = sum.add(v);
            // Infinities and NaN decide the value; the scale tells whether finite terms could overflow as well.
            magnitude += Some(v.abs_f64()).filter(|m| m.is_finite()).unwrap_or(0.0);
        }
    }
    (sum, magnitude)
}

fn cases(tier: Tier) -> Vec<CaseSpec> {
    let mut shapes = vec![
        ([0, 4, 1], Fill::Uniform),
        ([1, 1, 1], Fill::Uniform),
        ([33, 65, 1], Fill::Uniform),
        ([257, 31, 1], Fill::Integer),
        ([2, 3, 49], Fill::Uniform),
        ([5, 7, 1000], Fill::Positive),
        ([1, 2, 40_000], Fill::Integer),
        ([3000, 5, 1], Fill::Integer),
        // Segments that begin within a channel's run.
        ([700, 4, 3], Fill::Uniform),
        ([9, 40, 3], Fill::Special),
        ([31, 17, 1], Fill::Wide),
    ];
    if tier == Tier::Full {
        shapes.extend([
            ([4, 0, 3], Fill::Uniform),
            ([4, 3, 0], Fill::Uniform),
            ([7, 11, 13], Fill::Uniform),
            ([9, 5, 2], Fill::Uniform),
            ([16, 32, 1], Fill::Uniform),
            ([1, 257, 1], Fill::Uniform),
            ([2, 16, 31], Fill::Uniform),
            ([2, 16, 32], Fill::Uniform),
            ([2, 15, 33], Fill::Uniform),
            ([8, 64, 196], Fill::Uniform),
            ([1023, 129, 1], Fill::Cancelling),
            ([4, 8, 2050], Fill::Cancelling),
            ([20, 30, 40], Fill::Onehot),
            ([65, 100, 1], Fill::Constant),
            ([3, 5, 300], Fill::Wide),
            ([6, 5, 64], Fill::Special),
            ([600_011, 1, 1], Fill::Integer),
            ([1, 600_011, 1], Fill::Uniform),
            ([1, 3, 600_011], Fill::Integer),
            ([1025, 1024, 1], Fill::Uniform),
            ([2, 66_000, 33], Fill::Uniform),
            // More than a core's cache holds, in whole lines of one channel.
            ([9, 16, 4096], Fill::Uniform),
            // The same, in rows of a line and one element.
            ([1, 20_000, 33], Fill::Uniform),
        ]);
    }
    shapes.into_iter().map(|(d, fill)| CaseSpec { dims: d.to_vec(), attrs: Attrs::new(), fill }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::Attr;

    #[test]
    fn the_axis_splits_the_shape() {
        let call = |shapes: &[Vec<u64>], axis| (BIAS_ADD.bind)(shapes, &Attrs::new().with("axis", Attr::Int(axis)));
        let nchw = call(&[vec![2, 3, 5, 7], vec![3]], 1).unwrap();
        assert_eq!((nchw.dims, nchw.results), (vec![2, 3, 35], vec![vec![2, 3, 5, 7]]));
        assert_eq!(call(&[vec![4, 6], vec![6]], -1).unwrap().dims, [4, 6, 1]);
        assert_eq!(call(&[vec![4, 6], vec![4]], -1).unwrap_err().code(), Code::ShapeMismatch);
        assert_eq!(call(&[vec![4, 6], vec![6]], 2).unwrap_err().code(), Code::BadArgument);
        assert_eq!((BIAS_ADD_BWD.bind)(&[vec![2, 3, 5]], &Attrs::new()).unwrap().dims, [6, 5, 1]);
    }
}
