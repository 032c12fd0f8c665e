//! Reductions over any set of axes: sum, mean, extremes and their places.

use crate::base::{Attr, AttrDecl, AttrType, Attrs, Case, Code, DType, Error, Exact, Fill, Result, host};
use crate::kernel::cpu::{extreme, reduce};
use crate::kernel::{Body, Kernel, NativeFn, Needs, plan_c_reduce, plan_native, plan_reduce, plan_wgsl_reduce};

use super::products::total;
use super::{
    Binding, CaseSpec, DTypeRule, Family, Grad, OpDesc, Operand, Range, Reference, Role, Tier, Tolerance, Unit, dot,
};

pub(super) const SUMS_C: &str = include_str!("../../kernels/reduce.c");
pub(super) const SUMS_WGSL: &str = include_str!("../../kernels/reduce.wgsl");
const EXTREMES_C: &str = include_str!("../../kernels/extreme.c");
const EXTREMES_WGSL: &str = include_str!("../../kernels/extreme.wgsl");
const NO_RULE: &str = "the rule broadcasts g back over the reduced axes, which needs an op of its own";

/// Reads memory.
pub(super) static PROBE: &OpDesc = &dot::DOT;

/// Ops of this file, and of those beside it.
pub(super) static OPS: &[&OpDesc] = &[&SUM, &MEAN, &MAX, &MIN, &ARGMAX, &ARGMIN, &dot::DOT, &dot::NRM2];

/// Declares a reduction: the parts in which they differ.
macro_rules! reduction {
    ($id:ident $name:literal onnx $onnx:literal $doc:literal, y $rule:expr, cpu $fast:path, $naive:path,
     c $c:expr, $c_plan:path, wgsl $wgsl:expr, $wgsl_plan:path, empty $empty:literal, places $places:literal,
     $oracle:expr, $tolerance:expr, grad $grad:expr) => {
        static $id: OpDesc = OpDesc {
            name: $name,
            doc: $doc,
            tier: 1,
            onnx: Some($onnx),
            dims: &["outer", "n", "inner"],
            families: FAMILIES,
            unit: Unit::Elements,
            work: |c| u128::from(c.dim("outer")) * u128::from(c.dim("n")) * u128::from(c.dim("inner")),
            attrs: ATTRS,
            dtypes: &DType::ALL,
            operands: &[Operand::input("x"), Operand { name: "y", role: Role::Out, dtype: $rule }],
            shapes: |c| shapes(c, $empty, $places),
            bind,
            cost: |c| plan_native::reduce_cost(c, $rule.of(c).size()),
            oracle: |c, x| reduced(c, &x[0], $oracle),
            element: None,
            whole: None,
            tolerance: $tolerance,
            domain: &[Range(-1.0, 1.0)],
            grad: $grad,
            kernels: &kernels($fast, $naive, [$c, $wgsl], $c_plan, $wgsl_plan),
            cases: |tier| cases(tier, $empty),
            gaps: &[],
        };
    };
}

type Planner = fn(&Kernel, &Case, &crate::base::DeviceInfo) -> Result<crate::kernel::Plan>;

const fn kernels(fast: NativeFn, naive: NativeFn, texts: [&'static str; 2], c: Planner, wgsl: Planner) -> [Kernel; 4] {
    let base = Kernel {
        variant: "simd",
        body: Body::Native(fast),
        dtypes: &DType::ALL,
        dtypes_why: "",
        expr: "",
        needs: Needs::NONE,
        only_when_named: false,
        plan: plan_native::reduce,
    };
    let group = Needs { local_elements: 768, group: 256, ..Needs::NONE };
    [
        Kernel { variant: "tree", body: Body::C(texts[0]), needs: group, plan: c, ..base },
        Kernel {
            variant: "tree",
            body: Body::Wgsl(texts[1]),
            needs: group,
            plan: wgsl,
            dtypes: WGSL_DTYPES,
            dtypes_why: "WGSL has no numbers of 8 or 16 bits; f16 and bf16 are read in words of two",
            ..base
        },
        base,
        Kernel { variant: "naive", body: Body::Native(naive), only_when_named: true, ..base },
    ]
}

const WGSL_DTYPES: &[DType] =
    &[DType::F32, DType::F64, DType::F16, DType::BF16, DType::I32, DType::I64, DType::U32, DType::U64];

reduction!(SUM "sum" onnx "ReduceSum"
    "y = sum of x over the reduced axes, 0 where they are empty; integers sum to i64 or u64, which wrap.",
    y DTypeRule::Sum, cpu reduce::sum, reduce::sum_naive,
    c SUMS_C, plan_c_reduce::sum, wgsl SUMS_WGSL, plan_wgsl_reduce::sum, empty true, places false,
    sum_of, Tolerance::Gamma(|c| c.dim("n").max(1) - 1), grad Grad::None(NO_RULE));

reduction!(MEAN "mean" onnx "ReduceMean"
    "y = sum of x over the reduced axes / number of elements, NaN where they are empty; integers are summed in f64 and \
     give f64.",
    y MEAN_TYPE, cpu reduce::mean, reduce::mean_naive,
    c SUMS_C, plan_c_reduce::mean, wgsl SUMS_WGSL, plan_wgsl_reduce::mean, empty true, places false,
    // Every conversion of a long integer rounds once, and so does that of the count.
    mean_of, Tolerance::Mean(|c| c.dim("n") + 1), grad Grad::None(NO_RULE));

const MEAN_TYPE: DTypeRule = DTypeRule::By(|c| if c.dtype.is_float() { c.dtype } else { DType::F64 });

reduction!(MAX "max" onnx "ReduceMax"
    "y = largest x over the reduced axes; NaN if there is one, -0 counts as less than +0; empty axes are an error.",
    y DTypeRule::Same, cpu extreme::max, extreme::max_naive,
    c EXTREMES_C, plan_c_reduce::max, wgsl EXTREMES_WGSL, plan_wgsl_reduce::max, empty false, places false,
    |c, x| extreme_of(c, x, false), Tolerance::Exact, grad Grad::None("the rule scatters g to the places of the maxima"));

reduction!(MIN "min" onnx "ReduceMin"
    "y = smallest x over the reduced axes; NaN if there is one, -0 counts as less than +0; empty axes are an error.",
    y DTypeRule::Same, cpu extreme::min, extreme::min_naive,
    c EXTREMES_C, plan_c_reduce::min, wgsl EXTREMES_WGSL, plan_wgsl_reduce::min, empty false, places false,
    |c, x| extreme_of(c, x, true), Tolerance::Exact, grad Grad::None("the rule scatters g to the places of the minima"));

reduction!(ARGMAX "argmax" onnx "ArgMax"
    "y = place (i32, row by row over the reduced axes) of the first largest x, of the first NaN if there is one; zeros of \
     both signs are equal; empty axes and more than 2^31 elements are errors.",
    y DTypeRule::Fixed(DType::I32), cpu extreme::argmax, extreme::argmax_naive,
    c EXTREMES_C, plan_c_reduce::argmax, wgsl EXTREMES_WGSL, plan_wgsl_reduce::argmax, empty false, places true,
    |_, x| place_of(x, false), Tolerance::Exact, grad Grad::None("places are integers"));

reduction!(ARGMIN "argmin" onnx "ArgMin"
    "y = place (i32, row by row over the reduced axes) of the first smallest x, of the first NaN if there is one; zeros of \
     both signs are equal; empty axes and more than 2^31 elements are errors.",
    y DTypeRule::Fixed(DType::I32), cpu extreme::argmin, extreme::argmin_naive,
    c EXTREMES_C, plan_c_reduce::argmin, wgsl EXTREMES_WGSL, plan_wgsl_reduce::argmin, empty false, places true,
    |_, x| place_of(x, true), Tolerance::Exact, grad Grad::None("places are integers"));

// Axes that lie apart are unmeasured: their thresholds would depend on all extents.
const FAMILIES: &[Family] = &[
    Family {
        name: "full",
        doc: "all elements to one number",
        matches: |c| c.attrs.is_empty() && c.dim("outer") == 1 && c.dim("inner") == 1,
        sweep: |n| vec![1, n, 1],
    },
    Family {
        name: "rows",
        doc: "along the last axis, rows of 512 in the sweep",
        matches: |c| c.attrs.is_empty() && c.dim("inner") == 1,
        sweep: |n| vec![n.div_ceil(512).max(2), n.min(512), 1],
    },
    Family {
        name: "columns",
        doc: "along an earlier axis, 512 columns in the sweep",
        matches: |c| c.attrs.is_empty(),
        sweep: |n| vec![1, n.div_ceil(512), 512.min(n).max(2)],
    },
];

const ATTRS: &[AttrDecl] = &[
    AttrDecl { name: "axes", kind: AttrType::Ints, doc: "axes to reduce; none: all (a case: those of x_shape)" },
    AttrDecl { name: "keepdims", kind: AttrType::Int(1), doc: "keep reduced axes with extent 1 (library calls)" },
    AttrDecl {
        name: "x_shape",
        kind: AttrType::Ints,
        doc: "shape of x where the axes lie apart (set by library calls)",
    },
];

fn shapes(c: &Case, empty: bool, places: bool) -> Result<Vec<Vec<u64>>> {
    plan_reduce::blocks(c)?;
    let (o, n, i) = (c.dim("outer"), c.dim("n"), c.dim("inner"));
    host::count(&[o, n, i])?;
    if n == 0 && !empty {
        return Err(Error::new(
            Code::ShapeMismatch,
            "no elements along the reduced axes: there is no extreme of nothing",
        ));
    }
    if places && n > 1 << 31 {
        return Err(Error::new(Code::SizeOverflow, format!("places among {n} elements do not fit i32")));
    }
    let shape = c.attrs.ints("x_shape");
    let x = if shape.is_empty() { vec![o, n, i] } else { shape.iter().map(|d| *d as u64).collect() };
    Ok(vec![x, vec![o, i]])
}

fn bind(shapes: &[Vec<u64>], attrs: &Attrs) -> Result<Binding> {
    let [x] = shapes else {
        return Err(Error::new(Code::ShapeMismatch, format!("{} operands given, 1 is expected", shapes.len())));
    };
    if !attrs.ints("x_shape").is_empty() {
        return Err(Error::new(Code::BadArgument, "x_shape is for cases; a call has its tensor's shape"));
    }
    let marks = plan_reduce::reduced(attrs.ints("axes"), x.len())?;
    let keep = attrs.int("keepdims", 1) != 0;
    let extent = |(n, reduced): (&u64, bool)| if reduced { keep.then_some(1) } else { Some(*n) };
    let result = x.iter().zip(marks).filter_map(extent).collect();
    let (dims, attrs) = plan_reduce::bind(x, attrs.ints("axes"))?;
    Ok(Binding { dims, attrs, results: vec![result] })
}

/// Walks the whole shape and hands each result its elements in order; shares no index arithmetic with the kernels.
fn reduced(case: &Case, x: &[Exact], f: fn(&Case, &[Exact]) -> (Exact, f64)) -> Vec<Reference> {
    let ints = case.attrs.ints("x_shape");
    let (shape, axes): (Vec<u64>, Vec<usize>) = match ints.is_empty() {
        true => (vec![case.dim("outer"), case.dim("n"), case.dim("inner")], vec![1]),
        false => (ints.iter().map(|d| *d as u64).collect(), axes_of(case, ints.len())),
    };
    let results = (case.dim("outer") * case.dim("inner")) as usize;
    let mut groups: Vec<Vec<Exact>> = vec![Vec::new(); results];
    for (at, v) in x.iter().enumerate() {
        let (mut rest, mut result, mut step) = (at as u64, 0, 1);
        for (d, extent) in shape.iter().enumerate().rev() {
            if !axes.contains(&d) {
                result += rest % extent * step;
                step *= extent;
            }
            rest /= extent;
        }
        groups[result as usize].push(*v);
    }
    let (values, scale) = groups.iter().map(|g| f(case, g)).unzip();
    vec![Reference { values, scale }]
}

fn axes_of(case: &Case, rank: usize) -> Vec<usize> {
    case.attrs.ints("axes").iter().map(|a| if *a < 0 { (*a + rank as i64) as usize } else { *a as usize }).collect()
}

/// Infinities and NaN decide the value; the scale tells whether finite terms could overflow as well.
fn sum_of(case: &Case, x: &[Exact]) -> (Exact, f64) {
    let s = total(case.dtype, x, None);
    let magnitude = x.iter().map(|v| v.abs_f64()).filter(|m| m.is_finite()).sum();
    (s.wrap(DTypeRule::Sum.of(case)), magnitude)
}

fn mean_of(case: &Case, x: &[Exact]) -> (Exact, f64) {
    let magnitude: f64 = x.iter().map(|v| v.abs_f64()).filter(|m| m.is_finite()).sum();
    let n = x.len() as f64;
    (total(case.dtype, x, Some(n)), if n == 0.0 { 0.0 } else { magnitude / n })
}

/// True if a wins over b: NaN over all else.
fn wins(a: Exact, b: Exact, minimum: bool) -> bool {
    if let (Exact::I(a), Exact::I(b)) = (a, b) {
        return if minimum { a < b } else { a > b };
    }
    let (a, b) = (a.to_f64(), b.to_f64());
    !b.is_nan() && (a.is_nan() || if minimum { a < b } else { a > b })
}

fn extreme_of(case: &Case, x: &[Exact], minimum: bool) -> (Exact, f64) {
    let mut best = x.first().copied().unwrap_or(Exact::zero(case.dtype));
    for v in x {
        let zeros = case.dtype.is_float() && v.to_f64() == 0.0 && best.to_f64() == 0.0;
        if wins(*v, best, minimum) || zeros && v.to_f64().is_sign_negative() == minimum {
            best = *v;
        }
    }
    (best, best.abs_f64())
}

fn place_of(x: &[Exact], minimum: bool) -> (Exact, f64) {
    let mut best = 0;
    for (i, v) in x.iter().enumerate() {
        if wins(*v, x[best], minimum) {
            best = i;
        }
    }
    (Exact::I(best as i128), 0.0)
}

fn cases(tier: Tier, empty: bool) -> Vec<CaseSpec> {
    let mut shapes = vec![
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
        ([0, 5, 3], Fill::Uniform),
    ];
    // Axes that lie apart: shape and axes.
    let mut apart: Vec<(&[i64], &[i64], Fill)> = vec![(&[3, 5, 7, 2], &[0, 2], Fill::Uniform)];
    if empty {
        shapes.push(([1, 0, 1], Fill::Uniform));
    }
    if tier == Tier::Full {
        shapes.extend([
            ([1, 255, 1], Fill::Uniform),
            ([1, 256, 1], Fill::Wide),
            ([5, 64, 1], Fill::Cancelling),
            ([5, 65, 1], Fill::Special),
            ([3, 128, 1], Fill::Constant),
            ([1, 16_384, 1], Fill::Onehot),
            ([1, 16_385, 1], Fill::Onehot),
            ([1, 65_537, 1], Fill::Positive),
            ([1, 1_000_003, 1], Fill::Uniform),
            ([1, 600_000, 1], Fill::Integer),
            ([70_000, 3, 1], Fill::Uniform),
            ([2, 5000, 3], Fill::Integer),
            ([7, 31, 33], Fill::Constant),
            ([2, 40, 3], Fill::Special),
            ([8000, 2, 1], Fill::Special),
            ([1, 20_001, 2], Fill::Wide),
            ([3, 40_001, 1], Fill::Uniform),
            ([2, 20_003, 3], Fill::Positive),
            ([2, 1, 5], Fill::Special),
            ([4, 17, 1000], Fill::Cancelling),
        ]);
        apart.extend::<[(&[i64], &[i64], Fill); 6]>([
            (&[2, 3, 5, 7, 2], &[0, 2, 4], Fill::Special),
            (&[3, 300, 257], &[0, 2], Fill::Integer),
            (&[2, 3, 4, 5], &[1, 3], Fill::Constant),
            (&[4, 5, 6, 7], &[-4, -2], Fill::Uniform),
            (&[3, 0, 4], &[0, 2], Fill::Uniform),
            (&[33, 2, 17], &[2, 0], Fill::Wide),
        ]);
        if empty {
            shapes.push(([4, 0, 4], Fill::Uniform));
            apart.extend::<[(&[i64], &[i64], Fill); 2]>([
                (&[3, 4, 0], &[0, 2], Fill::Uniform),
                (&[0, 4, 3], &[0, 2], Fill::Uniform),
            ]);
        }
    }
    let plain = shapes.into_iter().map(|(d, fill)| CaseSpec { dims: d.to_vec(), attrs: Attrs::new(), fill });
    let split = apart.into_iter().map(|(shape, axes, fill)| {
        let reduced = |d: usize| axes.iter().any(|a| a.rem_euclid(shape.len() as i64) == d as i64);
        let count = |mark: bool| {
            let chosen = shape.iter().enumerate().filter(|(d, _)| reduced(*d) == mark);
            chosen.map(|(_, n)| *n as u64).product()
        };
        let attrs = Attrs::new().with("x_shape", Attr::Ints(shape.to_vec())).with("axes", Attr::Ints(axes.to_vec()));
        CaseSpec { dims: vec![count(false), count(true), 1], attrs, fill }
    });
    plain.chain(split).collect()
}
