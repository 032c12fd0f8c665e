//! Normalisation by mean and variance: layernorm, batchnorm in training and in use.
//!
//! How far a result may be. Kernels subtract a channel's first element s (0 if it is not finite) and sum the distances
//! d = x - s. Let m be their mean, D the mean of |d|, r² the mean of d², v the variance (mean of (d - m)²), t = v + epsilon.
//! No term of a sum goes through more roundings than `in_a_row` says, joints of segments included; g stands for their γ and
//! the limits of the divisions (Higham, *Accuracy and Stability of Numerical Algorithms*, 3.1). To first order:
//! - m is off by g·(D + |m|): sums and quotients. The mean s + m likewise, and rounded once.
//! - The squares' sum: a rounding of d enters as 2·√v·r (Cauchy and Schwarz); an error of a segment's mean drops out of that
//!   segment's sum to first order and enters the joint of the segments (Chan, Golub, LeVeque 1979) as 4·√v·r; roundings of
//!   the squares and sums as 2·v; second-order terms are at most 8·g·r². So v is off by g·V, V = 6·√v·r + 2·v + 8·g·r².
//! - rstd = 1/√t is off by rstd·g·(V/2t + 1), beside the limits of square root and division. The derivative grows with the
//!   error: the factor is (1 - q)^-1.5 with q = g·V/t; from q = 1/2 on nothing is claimed.
//! - y = (d - m)·rstd·gamma + beta is off by |gamma|·rstd·g·(D + |m| + |d| + |d - m|) (d and m above, and the difference)
//!   and |gamma·(d - m)·rstd|·g·(V/2t + 3), beside those limits.
//!
//! A large mean beside a small variance enters none of these: d, m and D are of the size of the spread.

use crate::base::exact::{max_finite, min_normal, ulp};
use crate::base::{Attr, AttrDecl, AttrType, Attrs, Case, Code, DType, Error, Exact, Fill, HostTensor, Result, host};
use crate::kernel::cpu::moments;
use crate::kernel::{Body, Kernel, Needs, plan_c_norm, plan_native, plan_wgsl_norm};

use super::tolerance::gamma;
use super::{
    Binding, CaseSpec, Family, Gap, Grad, OpDesc, Operand, Range, Reference, Role, ShapeClass, Tier, Tolerance, Unit,
    norm,
};

const C_TEXT: &str = include_str!("../../kernels/norm.c");
const WGSL_TEXT: &str = include_str!("../../kernels/moments.wgsl");
const FLOATS: &[DType] = &[DType::F32, DType::F64, DType::F16, DType::BF16];
const EPSILON: AttrDecl =
    AttrDecl { name: "epsilon", kind: AttrType::Float(plan_native::EPSILON), doc: "added to the variance" };
const NO_RULE: &str = "the rule sums over rows and columns of the same operands, which needs ops of its own";

const BASE: Kernel = Kernel {
    variant: "simd",
    body: Body::Native(moments::layernorm),
    dtypes: FLOATS,
    dtypes_why: "",
    expr: "",
    needs: Needs::NONE,
    only_when_named: false,
    plan: plan_native::layernorm,
};
const NAIVE: Kernel = Kernel { variant: "naive", only_when_named: true, ..BASE };
const C: Kernel = Kernel {
    variant: "parts",
    body: Body::C(C_TEXT),
    needs: Needs { local_elements: 256, group: 256, ..Needs::NONE },
    ..BASE
};
const WGSL: Kernel = Kernel { body: Body::Wgsl(WGSL_TEXT), ..C };
/// For OpenCL devices that are processors.
const VECTORS: Kernel = Kernel { variant: "cpu-vectors", body: Body::Opencl(norm::VECTORS_TEXT), ..BASE };

/// Roundings that one of n terms goes through: every kernel of a long sum keeps at least 16 sums side by side and joins at
/// most 512 of them (blocked summation, Higham 4.2). The textbook loops add one after the other; they are held to the same.
fn in_a_row(n: u64) -> u64 {
    n.min(n / 16 + 512).saturating_add(8)
}

fn layer_roundings(case: &Case) -> u64 {
    in_a_row(case.dim("n"))
}

fn batch_roundings(case: &Case) -> u64 {
    in_a_row(case.dim("n").saturating_mul(case.dim("inner")))
}

pub(super) static LAYERNORM: OpDesc = OpDesc {
    name: "layernorm",
    doc: "y = (x - mean)·rstd·gamma + beta along the last axis; mean, and rstd = 1/sqrt(variance + epsilon) with the biased \
          variance (the reciprocal, not the variance).",
    tier: 1,
    onnx: Some("LayerNormalization"),
    dims: &["m", "n"],
    families: &[Family {
        name: "rows",
        doc: "m rows of n, 1,024 columns in the sweep",
        matches: |_| true,
        sweep: |n| vec![n.div_ceil(1024), n.min(1024)],
    }],
    unit: Unit::Elements,
    work: |c| u128::from(c.dim("m")) * u128::from(c.dim("n")),
    attrs: &[EPSILON, AttrDecl { name: "axis", kind: AttrType::Int(-1), doc: "only the last axis (library calls)" }],
    dtypes: FLOATS,
    operands: &[
        Operand::input("x"),
        Operand::input("gamma"),
        Operand::input("beta"),
        Operand::output("y"),
        Operand::output("mean"),
        Operand::output("rstd"),
    ],
    shapes: |c| {
        let (m, n) = (c.dim("m"), c.dim("n"));
        host::count(&[m, n])?;
        if c.attrs.int("axis", -1) != -1 {
            return Err(Error::new(Code::OpUnsupported, "layernorm is along the last axis; transpose first"));
        }
        some(n, c)?;
        Ok(vec![vec![m, n], vec![n], vec![n], vec![m, n], vec![m], vec![m]])
    },
    bind: |shapes, attrs| {
        let [x, gamma, beta] = shapes else {
            return Err(Error::new(Code::ShapeMismatch, format!("{} operands given, 3 are expected", shapes.len())));
        };
        let Some((n, outer)) = x.split_last() else {
            return Err(Error::new(Code::ShapeMismatch, "layernorm of a scalar: at least one axis is needed"));
        };
        let axis = attrs.int("axis", -1);
        if axis != -1 && axis != x.len() as i64 - 1 {
            return Err(Error::new(Code::OpUnsupported, "layernorm is along the last axis; transpose first"));
        }
        per_channel(&[gamma, beta], *n)?;
        let dims = vec![host::count(outer)?, *n];
        let mut kept = Attrs::new();
        if let Some(v) = attrs.get("epsilon") {
            kept = kept.with("epsilon", v.clone());
        }
        Ok(Binding { dims, attrs: kept, results: vec![x.clone(), outer.to_vec(), outer.to_vec()] })
    },
    cost: plan_native::layernorm_cost,
    oracle: layer_oracle,
    element: None,
    whole: None,
    tolerance: Tolerance::PerOutput(&[
        Tolerance::Analysis { functions: &[("divide", 4.0), ("sqrt", 1.0)], roundings: layer_roundings },
        Tolerance::Analysis { functions: &[("divide", 2.0)], roundings: layer_roundings },
        Tolerance::Analysis { functions: &[("divide", 4.0), ("sqrt", 1.0)], roundings: layer_roundings },
    ]),
    domain: &[Range(-1.0, 1.0), Range(-1.5, 1.5), Range(-1.0, 1.0)],
    grad: Grad::None(NO_RULE),
    kernels: &[
        Kernel { plan: plan_c_norm::layernorm_vectors, ..VECTORS },
        Kernel { plan: plan_c_norm::layernorm, ..C },
        Kernel { plan: plan_wgsl_norm::layernorm, ..WGSL },
        BASE,
        Kernel { body: Body::Native(moments::layernorm_naive), ..NAIVE },
    ],
    cases: layer_cases,
    gaps: &[],
};

pub(super) static BATCHNORM_TRAIN: OpDesc = OpDesc {
    name: "batchnorm_train",
    doc: "y = (x - mean)·gamma/sqrt(var + epsilon) + beta per channel of x[n, c, inner], with mean and biased var of this \
          batch; running statistics become momentum·running + (1 - momentum)·new, of the biased variance, too.",
    tier: 1,
    onnx: Some("BatchNormalization"),
    dims: &["n", "c", "inner"],
    families: BATCH_FAMILIES,
    unit: Unit::Elements,
    work: batch_work,
    attrs: &[
        EPSILON,
        AttrDecl {
            name: "momentum",
            kind: AttrType::Float(plan_native::MOMENTUM),
            doc: "share of the running statistics that stays",
        },
    ],
    dtypes: FLOATS,
    operands: &[
        Operand::input("x"),
        Operand::input("gamma"),
        Operand::input("beta"),
        Operand::output("y"),
        Operand::output("mean"),
        Operand::output("var"),
        Operand { role: Role::InOut, ..Operand::input("running_mean") },
        Operand { role: Role::InOut, ..Operand::input("running_var") },
    ],
    shapes: |c| {
        let (n, channels, inner) = (c.dim("n"), c.dim("c"), c.dim("inner"));
        host::count(&[n, channels, inner])?;
        some(n.saturating_mul(inner), c)?;
        let (x, per) = (vec![n, channels, inner], vec![channels]);
        Ok(vec![x.clone(), per.clone(), per.clone(), x, per.clone(), per.clone(), per.clone(), per])
    },
    bind: |shapes, attrs| {
        let ([x, gamma, beta] | [x, gamma, beta, _, _]) = shapes else {
            return Err(Error::new(
                Code::ShapeMismatch,
                format!("{} operands given, 3 or 5 are expected", shapes.len()),
            ));
        };
        let dims = batch_dims(x)?;
        per_channel(&[gamma, beta], dims[1])?;
        for running in &shapes[3..] {
            per_channel(&[running], dims[1])?;
        }
        let per = vec![dims[1]];
        let results = vec![x.clone(), per.clone(), per.clone(), per.clone(), per];
        Ok(Binding { dims, attrs: attrs.clone(), results })
    },
    cost: plan_native::batchnorm_train_cost,
    oracle: train_oracle,
    element: None,
    whole: None,
    tolerance: Tolerance::PerOutput(&[
        Tolerance::Analysis { functions: &[("divide", 4.0), ("sqrt", 1.0)], roundings: batch_roundings },
        Tolerance::Analysis { functions: &[("divide", 2.0)], roundings: batch_roundings },
        Tolerance::Analysis { functions: &[("divide", 3.0)], roundings: batch_roundings },
        Tolerance::Analysis { functions: &[("divide", 2.0)], roundings: batch_roundings },
        Tolerance::Analysis { functions: &[("divide", 3.0)], roundings: batch_roundings },
    ]),
    domain: &[Range(-1.0, 1.0), Range(-1.5, 1.5), Range(-1.0, 1.0), Range(-1.0, 1.0), Range(0.0, 2.0)],
    grad: Grad::None(NO_RULE),
    kernels: &[
        Kernel { plan: plan_c_norm::batchnorm_train_vectors, ..VECTORS },
        Kernel { plan: plan_c_norm::batchnorm_train, ..C },
        Kernel { plan: plan_wgsl_norm::batchnorm_train, ..WGSL },
        Kernel { body: Body::Native(moments::batchnorm_train), plan: plan_native::batchnorm_train, ..BASE },
        Kernel { body: Body::Native(moments::batchnorm_train_naive), plan: plan_native::batchnorm_train, ..NAIVE },
    ],
    cases: train_cases,
    gaps: &[],
};

pub(super) static BATCHNORM_INFER: OpDesc = OpDesc {
    name: "batchnorm_infer",
    doc: "y = (x - mean)·(1/sqrt(var + epsilon))·gamma + beta per channel of x[n, c, inner], mean and var being given.",
    tier: 1,
    onnx: Some("BatchNormalization"),
    dims: &["n", "c", "inner"],
    families: BATCH_FAMILIES,
    unit: Unit::Elements,
    work: batch_work,
    attrs: &[EPSILON],
    dtypes: FLOATS,
    operands: &[
        Operand::input("x"),
        Operand::input("gamma"),
        Operand::input("beta"),
        Operand::input("mean"),
        Operand::input("var"),
        Operand::output("y"),
    ],
    shapes: |c| {
        let (n, channels, inner) = (c.dim("n"), c.dim("c"), c.dim("inner"));
        host::count(&[n, channels, inner])?;
        some(1, c)?;
        let (x, per) = (vec![n, channels, inner], vec![channels]);
        Ok(vec![x.clone(), per.clone(), per.clone(), per.clone(), per, x])
    },
    bind: |shapes, attrs| {
        let [x, gamma, beta, mean, var] = shapes else {
            return Err(Error::new(Code::ShapeMismatch, format!("{} operands given, 5 are expected", shapes.len())));
        };
        let dims = batch_dims(x)?;
        per_channel(&[gamma, beta, mean, var], dims[1])?;
        Ok(Binding { dims, attrs: attrs.clone(), results: vec![x.clone()] })
    },
    cost: plan_native::batchnorm_infer_cost,
    oracle: |c, x| {
        let one = |i: u64| infer(c, i, |operand, at| x[operand][at as usize]);
        let (values, scale) = (0..x[0].len() as u64).map(one).unzip();
        vec![Reference { values, scale }]
    },
    element: Some(|c: &Case, x: &[HostTensor], _, i| infer(c, i, |operand, at| Exact::read(&x[operand], at))),
    whole: None,
    // Sum with epsilon, difference, two products; the last sum is the final rounding.
    tolerance: Tolerance::Analysis { functions: &[("divide", 1.0), ("sqrt", 1.0)], roundings: |_| 4 },
    domain: &[Range(-1.0, 1.0), Range(-1.5, 1.5), Range(-1.0, 1.0), Range(-1.0, 1.0), Range(0.1, 2.0)],
    grad: Grad::None(NO_RULE),
    kernels: &[
        Kernel { plan: plan_c_norm::batchnorm_infer_vectors, ..VECTORS },
        Kernel { plan: plan_c_norm::batchnorm_infer, variant: "flat", ..C },
        Kernel { plan: plan_wgsl_norm::batchnorm_infer, variant: "flat", ..WGSL },
        Kernel { body: Body::Native(moments::batchnorm_infer), plan: plan_native::batchnorm_infer, ..BASE },
        Kernel { body: Body::Native(moments::batchnorm_infer_naive), plan: plan_native::batchnorm_infer, ..NAIVE },
    ],
    cases: infer_cases,
    gaps: &[Gap::Shape(
        ShapeClass::ManyGroups,
        "an item an element, so these were 16.8 million; softmax has such groups of the same text",
    )],
};

const BATCH_FAMILIES: &[Family] = &[Family {
    name: "images",
    doc: "32 channels of 16 by 16 in the sweep",
    matches: |_| true,
    sweep: |n| vec![n.div_ceil(8192), n.div_ceil(256).min(32), n.min(256)],
}];

fn batch_work(c: &Case) -> u128 {
    u128::from(c.dim("n")) * u128::from(c.dim("c")) * u128::from(c.dim("inner"))
}

/// Statistics of nothing are refused, and so are an epsilon and a momentum that are no numbers.
fn some(n: u64, c: &Case) -> Result<()> {
    if n == 0 {
        return Err(Error::new(Code::ShapeMismatch, "mean and variance of no elements"));
    }
    let (epsilon, momentum) = (c.attrs.float("epsilon", 0.0), c.attrs.float("momentum", 0.0));
    if !(epsilon >= 0.0 && epsilon.is_finite() && (0.0..=1.0).contains(&momentum)) {
        return Err(Error::new(Code::BadArgument, "epsilon is at least 0, momentum between 0 and 1"));
    }
    Ok(())
}

fn per_channel(operands: &[&Vec<u64>], n: u64) -> Result<()> {
    match operands.iter().find(|s| ***s != vec![n]) {
        Some(s) => Err(Error::new(Code::ShapeMismatch, format!("{s:?} where [{n}] is expected"))),
        None => Ok(()),
    }
}

/// [n, c, ..] as n, c, inner.
fn batch_dims(x: &[u64]) -> Result<Vec<u64>> {
    let [n, c, rest @ ..] = x else {
        return Err(Error::new(Code::ShapeMismatch, format!("{x:?}: batchnorm takes [n, c, ..]")));
    };
    Ok(vec![*n, *c, host::count(rest)?])
}

/// A scalar attribute as the kernels get it: in the type of the arithmetic.
fn scalar(case: &Case, value: f64) -> f64 {
    if case.dtype == DType::F64 { value } else { f64::from(value as f32) }
}

/// What the oracle knows of a channel: exact mean, variance and rstd, and what their errors are judged against.
struct Channel {
    mean: Exact,
    variance: Exact,
    rstd: Exact,
    shift: f64,
    /// D + |m|; V; V/2t with the growth of the derivative.
    of_mean: f64,
    of_variance: f64,
    of_rstd: f64,
}

impl Channel {
    fn new(case: &Case, x: &[Exact], roundings: u64) -> Self {
        let count = Exact::f(x.len() as f64);
        let sum = |f: &dyn Fn(Exact) -> Exact| x.iter().fold(Exact::f(0.0), |s, v| s.add(f(*v))).div(count);
        let mean = sum(&|v| v);
        let variance = sum(&|v| {
            let d = v.add(mean.neg());
            d.mul(d)
        });
        let t = variance.add(Exact::f(scalar(case, case.attrs.float("epsilon", plan_native::EPSILON))));
        let rstd = Exact::f(1.0).div(t.sqrt());
        let first = x.first().map_or(0.0, |v| v.to_f64());
        let shift = if first.is_finite() { first } else { 0.0 };
        let (n, v, t) = (x.len() as f64, variance.to_f64(), t.to_f64());
        let distance = |x: &Exact| (x.to_f64() - shift).abs();
        let (d, top) = x.iter().map(distance).fold((0.0, 0.0), |(s, top): (f64, f64), d| (s + d, top.max(d)));
        // Scaled, for squares of what is far from 1.
        let r = top * (x.iter().map(|x| (distance(x) / top.max(f64::MIN_POSITIVE)).powi(2)).sum::<f64>() / n).sqrt();
        // Twice the unit roundoff is WGSL's; the limits of its divisions are a few of them.
        let g = gamma(roundings + 64, 2.0 * case.dtype.compute().unit_roundoff());
        let most = max_finite(case.dtype.compute());
        let of_variance = 6.0 * v.sqrt() * r + 2.0 * v + 8.0 * g * r * r;
        let q = g * of_variance / t;
        // Squares that leave the range leave nothing to claim.
        let lost = top * top * n >= most / 4.0;
        let of_rstd = if lost || q >= 0.5 { f64::INFINITY } else { of_variance / (2.0 * t) * (1.0 - q).powf(-1.5) };
        Channel {
            mean,
            variance,
            rstd,
            shift,
            // The sum of the distances may leave the range although their mean does not.
            of_mean: if d >= most { f64::INFINITY } else { d / n + (mean.to_f64() - shift).abs() },
            of_variance: if lost { f64::INFINITY } else { of_variance },
            of_rstd,
        }
    }

    /// y for one element, and its scale.
    fn apply(&self, case: &Case, x: Exact, gamma: Exact, beta: Exact) -> (Exact, f64) {
        let centred = x.add(self.mean.neg());
        let normal = centred.mul(self.rstd);
        let value = normal.mul(gamma).add(beta);
        let (g, d) = (gamma.abs_f64(), (x.to_f64() - self.shift).abs());
        let local = self.of_mean + d + centred.abs_f64() + vanishing(case, centred);
        let rest = normal.abs_f64() * (self.of_rstd + 3.0) + vanishing(case, normal);
        (value, g * self.rstd.abs_f64() * local + g * rest)
    }
}

fn layer_oracle(case: &Case, x: &[Vec<Exact>]) -> Vec<Reference> {
    let n = case.dim("n") as usize;
    let mut out = [(); 3].map(|()| Reference { values: Vec::new(), scale: Vec::new() });
    for row in x[0].chunks(n) {
        let c = Channel::new(case, row, layer_roundings(case));
        for ((v, gamma), beta) in row.iter().zip(&x[1]).zip(&x[2]) {
            push(&mut out[0], c.apply(case, *v, *gamma, *beta));
        }
        push(&mut out[1], (c.mean, c.of_mean));
        push(&mut out[2], (c.rstd, c.rstd.abs_f64() * (c.of_rstd + 1.0)));
    }
    out.into()
}

fn push(r: &mut Reference, (value, scale): (Exact, f64)) {
    r.values.push(value);
    r.scale.push(scale);
}

fn train_oracle(case: &Case, x: &[Vec<Exact>]) -> Vec<Reference> {
    let (n, channels, inner) = (case.dim("n") as usize, case.dim("c") as usize, case.dim("inner") as usize);
    let momentum = case.attrs.float("momentum", plan_native::MOMENTUM);
    let (keep, take) = (Exact::f(scalar(case, momentum)), Exact::f(scalar(case, 1.0 - momentum)));
    let mut out = [(); 5].map(|()| Reference { values: Vec::new(), scale: Vec::new() });
    out[0] = Reference { values: vec![Exact::f(0.0); x[0].len()], scale: vec![0.0; x[0].len()] };
    for c in 0..channels {
        let places: Vec<usize> =
            (0..n).flat_map(|image| (0..inner).map(move |i| (image * channels + c) * inner + i)).collect();
        let elements: Vec<Exact> = places.iter().map(|at| x[0][*at]).collect();
        let m = Channel::new(case, &elements, batch_roundings(case));
        for (at, v) in places.iter().zip(&elements) {
            (out[0].values[*at], out[0].scale[*at]) = m.apply(case, *v, x[1][c], x[2][c]);
        }
        push(&mut out[1], (m.mean, m.of_mean));
        push(&mut out[2], (m.variance, m.of_variance));
        for (slot, old, new, scale) in [(3, x[3][c], m.mean, m.of_mean), (4, x[4][c], m.variance, m.of_variance)] {
            let (kept, taken) = (keep.mul(old), take.mul(new));
            let own = kept.abs_f64() + taken.abs_f64() + take.abs_f64() * new.abs_f64();
            push(&mut out[slot], (kept.add(taken), own + take.abs_f64() * scale));
        }
    }
    out.into()
}

/// One element, each intermediate as the arithmetic would have it where it overflows.
fn infer(case: &Case, i: u64, x: impl Fn(usize, u64) -> Exact) -> (Exact, f64) {
    let channel = i / case.dim("inner") % case.dim("c");
    let most = max_finite(case.dtype.compute());
    let held = |v: Exact| {
        let f = v.to_f64();
        if f.abs() > most { Exact::f(f64::INFINITY.copysign(f)) } else { v }
    };
    let epsilon = Exact::f(scalar(case, case.attrs.float("epsilon", plan_native::EPSILON)));
    let rstd = Exact::f(1.0).div(held(x(4, channel).add(epsilon)).sqrt());
    let normal = held(held(x(0, i).add(x(3, channel).neg())).mul(rstd));
    // Not held: where the product is fused with the last sum, its overflow does not show.
    let product = normal.mul(x(1, channel));
    (product.add(x(2, channel)), product.abs_f64() + x(1, channel).abs_f64() * vanishing(case, normal))
}

/// What a subnormal intermediate may lose, as a multiple of the unit roundoff: a rounding, or all of it where the language
/// flushes.
fn vanishing(case: &Case, v: Exact) -> f64 {
    let dtype = case.dtype.compute();
    let lost = v.abs_f64().max(ulp(dtype, 0.0)) / dtype.unit_roundoff();
    if v.abs_f64() < min_normal(dtype) { lost } else { 0.0 }
}

fn layer_cases(tier: Tier) -> Vec<CaseSpec> {
    let mut list = vec![
        ([0, 5], Fill::Uniform, None),
        ([1, 1], Fill::Uniform, None),
        ([7, 33], Fill::Uniform, None),
        ([3, 257], Fill::Uniform, None),
        ([65, 100], Fill::Positive, Some(1e-3)),
        ([5, 64], Fill::Constant, None),
        ([9, 40], Fill::Special, None),
        ([40, 7], Fill::Special, None),
        ([4, 300], Fill::Integer, None),
        ([3, 129], Fill::Onehot, None),
    ];
    if tier == Tier::Full {
        list.extend([
            ([2, 2], Fill::Special, None),
            ([40, 3], Fill::Special, None),
            ([1, 5], Fill::Wide, None),
            ([2, 255], Fill::Cancelling, None),
            ([2, 256], Fill::Wide, None),
            ([5, 31], Fill::Uniform, Some(0.0)),
            ([257, 16], Fill::Uniform, None),
            ([3, 5000], Fill::Uniform, None),
            ([2, 16_384], Fill::Integer, None),
            ([2, 16_385], Fill::Positive, None),
            ([3, 40_001], Fill::Uniform, None),
            ([6, 200], Fill::Offset, None),
            ([2, 17_000], Fill::Offset, None),
            ([1, 50_257], Fill::Uniform, None),
            ([1, 600_000], Fill::Uniform, None),
            // More than a core's cache holds, in whole lines and not.
            ([257, 4096], Fill::Uniform, None),
            ([130, 4097], Fill::Uniform, None),
            ([66_000, 3], Fill::Uniform, None),
            ([17, 1], Fill::Uniform, None),
            ([3, 768], Fill::Positive, Some(1e-12)),
        ]);
    }
    let spec = |([m, n], fill, epsilon): ([u64; 2], Fill, Option<f64>)| {
        let attrs = epsilon.map_or(Attrs::new(), |e| Attrs::new().with("epsilon", Attr::Float(e)));
        CaseSpec { dims: vec![m, n], attrs, fill }
    };
    list.into_iter().map(spec).collect()
}

fn batch_spec(dims: [u64; 3], fill: Fill) -> CaseSpec {
    CaseSpec { dims: dims.to_vec(), attrs: Attrs::new(), fill }
}

fn train_cases(tier: Tier) -> Vec<CaseSpec> {
    let mut list = vec![
        batch_spec([3, 0, 5], Fill::Uniform),
        batch_spec([1, 1, 1], Fill::Uniform),
        batch_spec([2, 3, 49], Fill::Uniform),
        batch_spec([33, 5, 1], Fill::Uniform),
        batch_spec([4, 7, 64], Fill::Positive),
        batch_spec([3, 5, 17], Fill::Special),
        batch_spec([2, 4, 9], Fill::Constant),
        batch_spec([5, 2, 20], Fill::Integer),
    ];
    let with = |mut s: CaseSpec, name, v| {
        s.attrs = Attrs::new().with(name, Attr::Float(v));
        s
    };
    list.push(with(batch_spec([2, 3, 40], Fill::Uniform), "momentum", 0.25));
    if tier == Tier::Full {
        list.extend([
            batch_spec([2, 40, 1], Fill::Special),
            batch_spec([1, 30, 2], Fill::Special),
            batch_spec([5, 11, 7], Fill::Uniform),
            batch_spec([8, 16, 256], Fill::Uniform),
            batch_spec([3, 4, 255], Fill::Cancelling),
            batch_spec([2, 3, 33], Fill::Wide),
            batch_spec([2, 2, 129], Fill::Onehot),
            batch_spec([100, 3, 257], Fill::Positive),
            batch_spec([2, 1, 16_385], Fill::Uniform),
            batch_spec([3, 2, 9000], Fill::Uniform),
            batch_spec([4, 5, 60], Fill::Offset),
            batch_spec([1, 1, 600_000], Fill::Uniform),
            batch_spec([2, 66_000, 1], Fill::Uniform),
            batch_spec([70_001, 2, 1], Fill::Integer),
            // Whole vectors of many channels: of one part and of several.
            batch_spec([2, 512, 16], Fill::Uniform),
            batch_spec([3, 9, 48], Fill::Special),
            batch_spec([3, 10, 80], Fill::Offset),
            batch_spec([2, 8, 64], Fill::Cancelling),
            batch_spec([5, 8, 4096], Fill::Uniform),
            // More than a core's cache holds: runs of one piece, an odd number of vectors, and of several.
            batch_spec([41, 33, 784], Fill::Uniform),
            with(batch_spec([3, 40, 8960], Fill::Offset), "momentum", 0.25),
            with(batch_spec([3, 8, 16], Fill::Integer), "momentum", 0.25),
            with(batch_spec([7, 3, 31], Fill::Uniform), "epsilon", 1e-3),
            with(batch_spec([7, 3, 31], Fill::Uniform), "momentum", 0.0),
            with(batch_spec([7, 3, 31], Fill::Uniform), "momentum", 1.0),
        ]);
    }
    list
}

fn infer_cases(tier: Tier) -> Vec<CaseSpec> {
    let mut list = vec![
        batch_spec([0, 3, 5], Fill::Uniform),
        batch_spec([1, 1, 1], Fill::Uniform),
        batch_spec([2, 3, 49], Fill::Uniform),
        batch_spec([33, 5, 1], Fill::Uniform),
        batch_spec([4, 7, 64], Fill::Positive),
        batch_spec([3, 50, 17], Fill::Special),
        batch_spec([2, 4, 9], Fill::Constant),
        batch_spec([5, 2, 20], Fill::Integer),
    ];
    if tier == Tier::Full {
        list.extend([
            batch_spec([3, 0, 5], Fill::Uniform),
            batch_spec([2, 400, 3], Fill::Special),
            batch_spec([5, 11, 7], Fill::Uniform),
            batch_spec([8, 16, 256], Fill::Uniform),
            batch_spec([3, 4, 255], Fill::Cancelling),
            batch_spec([2, 30, 33], Fill::Wide),
            batch_spec([2, 2, 129], Fill::Onehot),
            batch_spec([2, 1, 65_537], Fill::Uniform),
            batch_spec([4, 5, 60], Fill::Offset),
            batch_spec([1, 1, 600_000], Fill::Uniform),
            // More than a core's cache holds, in pieces that are no whole vectors.
            batch_spec([2, 3, 87_385], Fill::Uniform),
            batch_spec([2, 66_000, 1], Fill::Uniform),
            CaseSpec {
                attrs: Attrs::new().with("epsilon", Attr::Float(1e-3)),
                ..batch_spec([7, 3, 31], Fill::Uniform)
            },
        ]);
    }
    list
}
