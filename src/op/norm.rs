//! Softmax along any axis.

use crate::base::{Attr, AttrDecl, AttrType, Attrs, Case, Code, DType, Error, Exact, Fill, host};
use crate::kernel::cpu::norm;
use crate::kernel::{Body, Kernel, Needs, plan_c_norm, plan_native, plan_wgsl_norm};

use super::{Binding, CaseSpec, Family, Grad, OpDesc, Operand, Range, Reference, Tier, Tolerance, Unit, moments};

const C_TEXT: &str = include_str!("../../kernels/norm.c");
/// For devices that are processors.
pub(super) const VECTORS_TEXT: &str = include_str!("../../kernels/opencl/norm_vectors.cl");
const WGSL_TEXT: &str = include_str!("../../kernels/norm.wgsl");
const FLOATS: &[DType] = &[DType::F32, DType::F64, DType::F16, DType::BF16];

/// Ops of this file, and of the one beside it.
pub(super) static OPS: &[&OpDesc] =
    &[&SOFTMAX, &moments::LAYERNORM, &moments::BATCHNORM_TRAIN, &moments::BATCHNORM_INFER];

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
    doc: "y = exp(x - max) / sum of the same along n of [m, n, inner]; NaN, +infinity or nothing but -infinity along it \
          give NaN.",
    tier: 1,
    onnx: Some("Softmax"),
    dims: &["m", "n"],
    families: &[Family {
        name: "rows",
        doc: "m rows of n, 1,024 columns in the sweep",
        matches: |c| c.attrs.is_empty(),
        sweep: |n| vec![n.div_ceil(1024), n.min(1024)],
    }],
    unit: Unit::Elements,
    work: |c| u128::from(c.dim("m")) * u128::from(c.dim("n")) * u128::from(inner(c)),
    attrs: &[
        AttrDecl { name: "axis", kind: AttrType::Int(-1), doc: "axis, negative from the end (library calls)" },
        AttrDecl { name: "inner", kind: AttrType::Int(1), doc: "extents behind the axis (set by library calls)" },
    ],
    dtypes: FLOATS,
    operands: &[Operand::input("x"), Operand::output("y")],
    shapes: |c| {
        if c.attrs.int("axis", -1) != -1 {
            return Err(Error::new(Code::BadArgument, "axis is for calls; a case is [m, n, inner], n being the axis"));
        }
        if c.attrs.int("inner", 1) < 0 {
            return Err(Error::new(Code::ShapeMismatch, "inner is negative"));
        }
        let mut shape = vec![c.dim("m"), c.dim("n")];
        if inner(c) != 1 {
            shape.push(inner(c));
        }
        host::count(&shape)?;
        Ok(vec![shape; 2])
    },
    bind: |shapes, attrs| {
        let [x] = shapes else {
            return Err(Error::new(Code::ShapeMismatch, format!("{} operands given, 1 is expected", shapes.len())));
        };
        let axis = attrs.int("axis", -1);
        let at = if axis < 0 { axis + x.len() as i64 } else { axis };
        let Some((at, n)) = usize::try_from(at).ok().and_then(|at| x.get(at).map(|n| (at, *n))) else {
            return Err(Error::new(Code::BadArgument, format!("axis {axis} is outside of rank {}", x.len())));
        };
        let inner = host::count(&x[at + 1..])?;
        let wide = |v: u64| {
            i64::try_from(v).map_err(|_| Error::new(Code::SizeOverflow, format!("{v} elements behind the axis")))
        };
        let attrs = if inner == 1 { Attrs::new() } else { Attrs::new().with("inner", Attr::Int(wide(inner)?)) };
        Ok(Binding { dims: vec![host::count(&x[..at])?, n], attrs, results: vec![x.clone()] })
    },
    cost: plan_native::softmax_cost,
    oracle,
    element: None,
    whole: None,
    tolerance: Tolerance::Softmax(|c| c.dim("n")),
    domain: &[Range(-5.0, 5.0)],
    grad: Grad::None("the rule sums g y along the axis and broadcasts it back, which needs an op of its own"),
    kernels: &[
        Kernel { variant: "cpu-lanes", body: Body::Opencl(VECTORS_TEXT), plan: plan_c_norm::softmax_lanes, ..BASE },
        Kernel { variant: "cpu-vectors", body: Body::Opencl(VECTORS_TEXT), plan: plan_c_norm::softmax_vectors, ..BASE },
        Kernel { variant: "row", body: Body::C(C_TEXT), needs: GROUP, plan: plan_c_norm::softmax, ..BASE },
        Kernel {
            variant: "row",
            body: Body::Wgsl(WGSL_TEXT),
            needs: GROUP,
            dtypes: &[DType::F32, DType::F16, DType::BF16],
            dtypes_why: "SPIR-V's extended instructions have no f64 form of exp",
            plan: plan_wgsl_norm::softmax,
            ..BASE
        },
        BASE,
        Kernel { variant: "naive", body: Body::Native(norm::softmax_naive), only_when_named: true, ..BASE },
    ],
    cases,
    gaps: &[],
};

fn inner(case: &Case) -> u64 {
    case.attrs.int("inner", 1) as u64
}

fn oracle(case: &Case, x: &[Vec<Exact>]) -> Vec<Reference> {
    let (n, inner) = (case.dim("n") as usize, inner(case) as usize);
    let (mut values, mut scale) = (vec![Exact::f(0.0); x[0].len()], vec![0.0; x[0].len()]);
    for first in (0..x[0].len()).filter(|i| i / inner % n == 0) {
        let row: Vec<Exact> = (0..n).map(|j| x[0][first + j * inner]).collect();
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
        for (j, (v, e)) in row.iter().zip(e).enumerate() {
            values[first + j * inner] = e.div(total);
            scale[first + j * inner] = distance(v) + average;
        }
    }
    vec![Reference { values, scale }]
}

fn cases(tier: Tier) -> Vec<CaseSpec> {
    let mut shapes = vec![
        ([0, 5, 1], Fill::Uniform),
        ([1, 1, 1], Fill::Uniform),
        ([7, 33, 1], Fill::Uniform),
        ([3, 257, 1], Fill::Uniform),
        ([65, 100, 1], Fill::Positive),
        ([5, 64, 1], Fill::Constant),
        ([9, 40, 1], Fill::Special),
        ([37, 5, 1], Fill::Special),
        ([2, 129, 5], Fill::Uniform),
        ([3, 5, 400], Fill::Uniform),
        ([2, 100, 1], Fill::Wide),
    ];
    if tier == Tier::Full {
        shapes.extend([
            ([5, 0, 1], Fill::Uniform),
            ([5, 3, 0], Fill::Uniform),
            ([5, 1, 1], Fill::Special),
            ([30, 2, 1], Fill::Special),
            ([2, 255, 1], Fill::Uniform),
            ([2, 256, 1], Fill::Wide),
            // One vector and a part of another are left of the whole pairs.
            ([5, 127, 1], Fill::Wide),
            ([257, 31, 1], Fill::Uniform),
            ([70, 31, 1], Fill::Wide),
            ([70, 16, 1], Fill::Wide),
            ([70, 33, 1], Fill::Wide),
            // Several work-items of many rows each, and rows that end within a pair of vectors.
            ([400, 40, 1], Fill::Wide),
            ([3, 5000, 1], Fill::Uniform),
            ([2, 50_257, 1], Fill::Uniform),
            ([1, 50_257, 1], Fill::Wide),
            ([1, 600_000, 1], Fill::Uniform),
            // More than a core's cache holds, in whole lines and not.
            ([257, 4096, 1], Fill::Uniform),
            ([130, 4097, 1], Fill::Uniform),
            ([66_000, 2, 1], Fill::Uniform),
            ([33, 129, 1], Fill::Integer),
            ([3, 128, 1], Fill::Cancelling),
            ([4, 1000, 1], Fill::Onehot),
            ([3, 16_384, 1], Fill::Onehot),
            ([2, 16_385, 2], Fill::Uniform),
            ([2, 33, 1030], Fill::Special),
            ([1, 17, 257], Fill::Special),
            ([1, 5, 1031], Fill::Wide),
            ([1, 20_000, 3], Fill::Uniform),
            ([1024, 3, 2], Fill::Cancelling),
        ]);
    }
    let spec = |([m, n, inner], fill): ([u64; 3], Fill)| {
        let attrs = if inner == 1 { Attrs::new() } else { Attrs::new().with("inner", Attr::Int(inner as i64)) };
        CaseSpec { dims: vec![m, n], attrs, fill }
    };
    shapes.into_iter().map(spec).collect()
}
