//! Maxima and means over windows of images, and their gradients.

use crate::base::exact::max_finite;
use crate::base::{Attr, AttrDecl, AttrType, Attrs, Case, Code, DType, Error, Exact, Fill, Result, host};
use crate::kernel::cpu::pool;
use crate::kernel::window::Window;
use crate::kernel::{Body, Kernel, Needs, plan_pool, plan_wgsl_pool};

use super::conv::{LAYOUT, OUTPUT_SHAPE, PADS, STRIDES, agrees, axes, place, source, without};
use super::products::Dot;
use super::{
    Binding, CaseSpec, DTypeRule, Family, Gap, Grad, OpDesc, Operand, Range, Reference, Role, ShapeClass, Tier,
    Tolerance, Unit,
};

const C_TEXT: &str = include_str!("../../kernels/pool.c");
const VECTORS_TEXT: &str = include_str!("../../kernels/opencl/pool_vectors.cl");
const WGSL_TEXT: &str = include_str!("../../kernels/pool.wgsl");
const WGSL_MAX: &str = include_str!("../../kernels/pool_max.wgsl");
const FLOATS: &[DType] = &[DType::F32, DType::F64, DType::F16, DType::BF16];

/// Ops of this file.
pub(super) static OPS: &[&OpDesc] = &[&MAXPOOL2D, &AVGPOOL2D, &MAXPOOL2D_BWD, &AVGPOOL2D_BWD];

const BASE: Kernel = Kernel {
    variant: "lines",
    body: Body::Native(pool::maxpool2d),
    dtypes: MAX_DTYPES,
    dtypes_why: "",
    expr: "",
    needs: Needs::NONE,
    only_when_named: false,
    plan: plan_pool::max,
};
const MAX_DTYPES: &[DType] = &[DType::F32, DType::F64, DType::F16, DType::BF16, DType::I32];
const FLOAT: Kernel = Kernel { dtypes: FLOATS, ..BASE };
const GROUP: Needs = Needs { group: 64, ..Needs::NONE };
const C: Kernel = Kernel { variant: "direct", body: Body::C(C_TEXT), needs: GROUP, ..FLOAT };
/// For devices that are processors.
const VECTORS: Kernel = Kernel { variant: "cpu-vectors", body: Body::Opencl(VECTORS_TEXT), ..FLOAT };
const WGSL: Kernel = Kernel { variant: "direct", body: Body::Wgsl(WGSL_TEXT), needs: GROUP, ..FLOAT };

const KERNEL_SHAPE: AttrDecl =
    AttrDecl { name: "kernel_shape", kind: AttrType::Ints, doc: "rows:columns of a window; none: 2:2" };
const INCLUDE: AttrDecl = AttrDecl {
    name: "count_include_pad",
    kind: AttrType::Int(0),
    doc: "1: padding counts as zeros; 0: means are over the pixels of the image alone",
};

static MAXPOOL2D: OpDesc = OpDesc {
    name: "maxpool2d",
    doc: "y = maximum over each window, indices = its flat place in the h by w plane; the first maximum wins, or the first NaN.",
    tier: 1,
    onnx: Some("MaxPool"),
    dims: &["n", "c", "h", "w"],
    families: &[Family {
        name: "image",
        doc: "any; in the sweep 16 channels of a square image",
        matches: |_| true,
        sweep: |n| vec![1, 16, (n / 16).isqrt().max(2), (n / 16).isqrt().max(2)],
    }],
    unit: Unit::InputElements,
    work: |c| ["n", "c", "h", "w"].iter().fold(1u128, |all, d| all.saturating_mul(u128::from(c.dim(d)))),
    attrs: &[KERNEL_SHAPE, LAYOUT, PADS, STRIDES],
    dtypes: MAX_DTYPES,
    operands: &[
        Operand::input("x"),
        Operand::output("y"),
        Operand { name: "indices", role: Role::Out, dtype: DTypeRule::Fixed(DType::I32) },
    ],
    shapes: |c| checked(c, |w| vec![w.x(), w.y(), w.y()]),
    bind: |shapes, attrs| bind_forward(&MAXPOOL2D, shapes, attrs),
    cost: plan_pool::max_cost,
    oracle: |c, x| {
        whole(c, false, |w, i| top(w, &|i| x[0][i as usize], i)).map_or_else(Vec::new, |found| {
            let outputs = [found.iter().map(|f| f.0).collect(), found.iter().map(|f| f.1).collect()];
            outputs.map(|values: Vec<Exact>| Reference { scale: vec![0.0; values.len()], values }).to_vec()
        })
    },
    element: Some(|c, x, output, i| {
        one(c, |w| {
            let (value, place) = top(w, &|i| Exact::read(&x[0], i), i);
            (if output == 0 { value } else { place }, 0.0)
        })
    }),
    whole: None,
    tolerance: Tolerance::Exact,
    domain: &[Range(-1000.0, 1000.0)],
    grad: Grad::None("maxpool2d_bwd is the rule; there is no tape yet that could apply it"),
    kernels: &[
        Kernel { dtypes: MAX_DTYPES, plan: plan_pool::max_vectors, ..VECTORS },
        Kernel { dtypes: MAX_DTYPES, plan: plan_pool::max_c, ..C },
        Kernel { dtypes: MAX_DTYPES, body: Body::Wgsl(WGSL_MAX), plan: plan_wgsl_pool::max, ..WGSL },
        BASE,
        Kernel { variant: "naive", body: Body::Native(pool::maxpool2d_naive), only_when_named: true, ..BASE },
    ],
    cases: |tier| {
        let mut list = cases(tier, &[]);
        if tier == Tier::Full {
            // 64 results per group.
            let attrs = Attrs::new().with("kernel_shape", Attr::Ints(vec![1, 1]));
            list.push(CaseSpec { dims: vec![1, 1, 2051, 2050], attrs, fill: Fill::Uniform });
        }
        list
    },
    gaps: &[],
};

const MANY_GROUPS: Gap = Gap::Shape(ShapeClass::ManyGroups, "same text and index arithmetic as maxpool2d");

/// One of each term or sum; integers have no exact ones.
const QUOTIENT: &[(&str, f64)] = &[("divide", 1.0)];

static AVGPOOL2D: OpDesc = OpDesc {
    name: "avgpool2d",
    doc: "y = sum over each window divided by its number of pixels, or of all its places with count_include_pad = 1.",
    onnx: Some("AveragePool"),
    attrs: &[INCLUDE, KERNEL_SHAPE, LAYOUT, PADS, STRIDES],
    dtypes: FLOATS,
    operands: &[Operand::input("x"), Operand::output("y")],
    shapes: |c| flagged(c).and_then(|()| checked(c, |w| vec![w.x(), w.y()])),
    bind: |shapes, attrs| bind_forward(&AVGPOOL2D, shapes, attrs),
    cost: plan_pool::mean_cost,
    oracle: |c, x| reference(whole(c, false, |w, i| mean(c, w, &|i| x[0][i as usize], i))),
    element: Some(|c, x, _, i| one(c, |w| mean(c, w, &|i| Exact::read(&x[0], i), i))),
    // Additions in any order, and a quotient.
    whole: None,
    tolerance: Tolerance::Analysis { functions: QUOTIENT, roundings: |c| Window::pool(c).map_or(0, |w| w.kh * w.kw) },
    domain: &[Range(-1.0, 1.0)],
    grad: Grad::None("avgpool2d_bwd is the rule; there is no tape yet that could apply it"),
    kernels: &[
        Kernel { plan: plan_pool::mean_vectors, ..VECTORS },
        Kernel { plan: plan_pool::mean_c, ..C },
        Kernel { plan: plan_wgsl_pool::mean, ..WGSL },
        Kernel { body: Body::Native(pool::avgpool2d), plan: plan_pool::mean, ..FLOAT },
        Kernel {
            variant: "naive",
            body: Body::Native(pool::avgpool2d_naive),
            only_when_named: true,
            plan: plan_pool::mean,
            ..FLOAT
        },
    ],
    cases: |tier| means(cases(tier, &[])),
    gaps: &[MANY_GROUPS],
    ..MAXPOOL2D
};

const SECOND_ORDER: Grad = Grad::None("a gradient itself; second derivatives are not offered");

static MAXPOOL2D_BWD: OpDesc = OpDesc {
    name: "maxpool2d_bwd",
    doc: "dx of maxpool2d: every x sums g of the windows that hold it and whose index names it; other indices are nobody's.",
    onnx: None,
    attrs: &[KERNEL_SHAPE, LAYOUT, OUTPUT_SHAPE, PADS, STRIDES],
    dtypes: FLOATS,
    operands: &[
        Operand::input("g"),
        Operand { name: "indices", role: Role::In, dtype: DTypeRule::Fixed(DType::I32) },
        Operand::output("dx"),
    ],
    shapes: |c| {
        agrees(c, "output_shape", ["h", "w"])?;
        checked(c, |w| vec![w.y(), w.y(), w.x()])
    },
    bind: |shapes, attrs| match shapes {
        [g, places] if g == places => bind_back(&MAXPOOL2D_BWD, shapes, attrs),
        _ => Err(Error::new(Code::ShapeMismatch, format!("g and indices of one shape are expected, got {shapes:?}"))),
    },
    cost: plan_pool::max_bwd_cost,
    oracle: |c, x| reference(whole(c, true, |w, i| spread(c, w, &|t, i| x[t][i as usize], true, i))),
    element: Some(|c, x, _, i| one(c, |w| spread(c, w, &|t, i| Exact::read(&x[t], i), true, i))),
    whole: None,
    tolerance: Tolerance::Gamma(over),
    // The places are small, for every plane has the first ones: planes of about 36 pixels meet most of them.
    domain: &[Range(-1.0, 1.0), Range(0.0, 36.0)],
    grad: SECOND_ORDER,
    kernels: &[
        Kernel { plan: plan_pool::max_bwd_vectors, ..VECTORS },
        Kernel { plan: plan_pool::max_bwd_c, ..C },
        Kernel { plan: plan_wgsl_pool::max_bwd, ..WGSL },
        Kernel { body: Body::Native(pool::maxpool2d_bwd), plan: plan_pool::max_bwd, ..FLOAT },
        Kernel {
            variant: "naive",
            body: Body::Native(pool::maxpool2d_bwd_naive),
            only_when_named: true,
            plan: plan_pool::max_bwd,
            ..FLOAT
        },
    ],
    cases: |tier| {
        cases(
            tier,
            &[
                ([7, 5, 6, 6], Fill::Uniform),
                ([40, 3, 5, 7], Fill::Integer),
                ([3, 9, 4, 9], Fill::Positive),
                ([2, 65, 6, 6], Fill::Cancelling),
            ],
        )
    },
    gaps: &[MANY_GROUPS],
    ..MAXPOOL2D
};

static AVGPOOL2D_BWD: OpDesc = OpDesc {
    name: "avgpool2d_bwd",
    doc: "dx of avgpool2d: every x sums g / count of the windows that hold it.",
    onnx: None,
    attrs: &[INCLUDE, KERNEL_SHAPE, LAYOUT, OUTPUT_SHAPE, PADS, STRIDES],
    dtypes: FLOATS,
    operands: &[Operand::input("g"), Operand::output("dx")],
    shapes: |c| {
        flagged(c)?;
        agrees(c, "output_shape", ["h", "w"])?;
        checked(c, |w| vec![w.y(), w.x()])
    },
    bind: |shapes, attrs| bind_back(&AVGPOOL2D_BWD, shapes, attrs),
    cost: plan_pool::mean_bwd_cost,
    oracle: |c, x| reference(whole(c, true, |w, i| spread(c, w, &|t, i| x[t][i as usize], false, i))),
    element: Some(|c, x, _, i| one(c, |w| spread(c, w, &|t, i| Exact::read(&x[t], i), false, i))),
    // As avgpool2d; the quotient comes first.
    whole: None,
    tolerance: Tolerance::Analysis { functions: QUOTIENT, roundings: over },
    domain: &[Range(-1.0, 1.0)],
    grad: SECOND_ORDER,
    kernels: &[
        Kernel { plan: plan_pool::mean_bwd_vectors, ..VECTORS },
        Kernel { plan: plan_pool::mean_bwd_c, ..C },
        Kernel { plan: plan_wgsl_pool::mean_bwd, ..WGSL },
        Kernel { body: Body::Native(pool::avgpool2d_bwd), plan: plan_pool::mean_bwd, ..FLOAT },
        Kernel {
            variant: "naive",
            body: Body::Native(pool::avgpool2d_bwd_naive),
            only_when_named: true,
            plan: plan_pool::mean_bwd,
            ..FLOAT
        },
    ],
    cases: |tier| means(cases(tier, &[])),
    gaps: &[MANY_GROUPS],
    ..MAXPOOL2D
};

fn checked(case: &Case, shapes: fn(&Window) -> Vec<Vec<u64>>) -> Result<Vec<Vec<u64>>> {
    let w = Window::pool(case)?;
    if w.h.saturating_mul(w.w) > i32::MAX as u64 {
        return Err(Error::new(Code::ShapeMismatch, format!("planes of {} by {} exceed i32 indices", w.h, w.w)));
    }
    let all = shapes(&w);
    all.iter().try_for_each(|s| host::count(s).map(|_| ()))?;
    Ok(all)
}

fn flagged(case: &Case) -> Result<()> {
    match case.attrs.int("count_include_pad", 0) {
        0 | 1 => Ok(()),
        v => Err(Error::new(Code::BadArgument, format!("count_include_pad = {v}; it must be 0 or 1"))),
    }
}

/// Most windows that hold one pixel.
fn over(case: &Case) -> u64 {
    Window::pool(case).map_or(0, |w| w.kh.div_ceil(w.sh) * w.kw.div_ceil(w.sw))
}

/// `f` of every element of y, or of x for a gradient.
fn whole<T>(case: &Case, back: bool, f: impl Fn(&Window, u64) -> T) -> Option<Vec<T>> {
    let w = Window::pool(case).ok()?;
    let count: u64 = if back { w.x() } else { w.y() }.iter().product();
    Some((0..count).map(|i| f(&w, i)).collect())
}

fn one(case: &Case, f: impl Fn(&Window) -> (Exact, f64)) -> (Exact, f64) {
    Window::pool(case).map_or((Exact::f(f64::NAN), f64::NAN), |w| f(&w))
}

fn reference(values: Option<Vec<(Exact, f64)>>) -> Vec<Reference> {
    let (values, scale) = values.unwrap_or_default().into_iter().unzip();
    vec![Reference { values, scale }]
}

/// Pixels (row, column) of the window at (oy, ox), row by row: those of its places that lie in the image.
fn pixels(w: &Window, oy: u64, ox: u64) -> impl Iterator<Item = (u64, u64)> {
    let (w, places) = (*w, (0..w.kh).flat_map(move |k| (0..w.kw).map(move |l| (k, l))).collect::<Vec<_>>());
    places.into_iter().filter_map(move |(k, l)| {
        let row = (oy * w.sh + k).checked_sub(w.pt).filter(|r| *r < w.h)?;
        Some((row, (ox * w.sw + l).checked_sub(w.pl).filter(|c| *c < w.w)?))
    })
}

fn flat(w: &Window, shape: [u64; 2], n: u64, c: u64, y: u64, x: u64) -> u64 {
    let [h, width] = shape;
    if w.nhwc { ((n * h + y) * width + x) * w.c + c } else { ((n * w.c + c) * h + y) * width + x }
}

/// Maximum of window number `i` and its place in the plane.
fn top(w: &Window, x: &impl Fn(u64) -> Exact, i: u64) -> (Exact, Exact) {
    let [n, c, oy, ox] = place(w.nhwc, [w.c, w.ho, w.wo], i);
    let mut best = None::<(Exact, u64)>;
    for (row, column) in pixels(w, oy, ox) {
        let v = x(flat(w, [w.h, w.w], n, c, row, column));
        let (new, old) = (v.to_f64(), best.map(|b| b.0.to_f64()));
        if old.is_none_or(|old| !old.is_nan() && (new.is_nan() || new > old)) {
            best = Some((v, row * w.w + column));
        }
    }
    best.map_or((Exact::f(f64::NAN), Exact::I(-1)), |(v, at)| (v, Exact::I(i128::from(at))))
}

/// What the sum over the window at (oy, ox) is divided by.
fn count(case: &Case, w: &Window, oy: u64, ox: u64) -> f64 {
    let all = case.attrs.int("count_include_pad", 0) == 1;
    if all { (w.kh * w.kw) as f64 } else { pixels(w, oy, ox).count() as f64 }
}

/// Mean over window number `i`.
fn mean(case: &Case, w: &Window, x: &impl Fn(u64) -> Exact, i: u64) -> (Exact, f64) {
    let [n, c, oy, ox] = place(w.nhwc, [w.c, w.ho, w.wo], i);
    let mut dot = Dot::new(case.dtype);
    for (row, column) in pixels(w, oy, ox) {
        dot.add(x(flat(w, [w.h, w.w], n, c, row, column)), Exact::f(1.0));
    }
    let (sum, magnitude) = dot.end();
    let count = count(case, w, oy, ox);
    // The sum may overflow although the mean does not: the scale says so (Bound::judge).
    let most = max_finite(case.dtype.compute());
    let scale = if magnitude >= most { (magnitude / count).max(most) } else { magnitude / count };
    (sum.div(Exact::f(count)), scale)
}

/// What pixel number `i` gets from the windows that hold it: g where the index names it, or a share of every g.
fn spread(case: &Case, w: &Window, x: &impl Fn(usize, u64) -> Exact, named: bool, i: u64) -> (Exact, f64) {
    let [n, c, row, column] = place(w.nhwc, [w.c, w.h, w.w], i);
    // Windows near the pixel, and only those of them that hold it.
    let near = |at: u64, pad: u64, k: u64, s: u64, all: u64| {
        ((at + pad + 1).saturating_sub(k)) / s..all.min((at + pad) / s + 1)
    };
    let mut dot = Dot::new(case.dtype);
    for oy in near(row, w.pt, w.kh, w.sh, w.ho) {
        for ox in near(column, w.pl, w.kw, w.sw, w.wo) {
            if !pixels(w, oy, ox).any(|p| p == (row, column)) {
                continue;
            }
            let at = flat(w, [w.ho, w.wo], n, c, oy, ox);
            if !named {
                let part = Exact::f(1.0).div(Exact::f(count(case, w, oy, ox)));
                dot.add(x(0, at), part);
            } else if x(1, at) == Exact::I(i128::from(row * w.w + column)) {
                dot.add(x(0, at), Exact::f(1.0));
            }
        }
    }
    dot.end()
}

/// The case of a call, if the shapes that it then has are those that were given.
fn bound(op: &OpDesc, dims: [u64; 4], attrs: Attrs, given: &[Vec<u64>]) -> Result<Binding> {
    let case = op.case(op.dtypes[0], &dims, attrs.clone(), Fill::Uniform)?;
    let shapes = (op.shapes)(&case)?;
    if shapes[..given.len()] != *given {
        return Err(Error::new(
            Code::ShapeMismatch,
            format!("the operands are {given:?}; with these attributes {:?} are expected", &shapes[..given.len()]),
        ));
    }
    Ok(Binding { dims: dims.to_vec(), attrs, ..Binding::default() })
}

fn bind_forward(op: &OpDesc, shapes: &[Vec<u64>], attrs: &Attrs) -> Result<Binding> {
    let [x] = shapes else {
        return Err(Error::new(Code::ShapeMismatch, format!("{} operands given, 1 is expected", shapes.len())));
    };
    bound(op, axes("x", x, attrs)?, attrs.clone(), shapes)
}

fn bind_back(op: &OpDesc, shapes: &[Vec<u64>], attrs: &Attrs) -> Result<Binding> {
    let Some(g) = shapes.first() else {
        return Err(Error::new(Code::ShapeMismatch, "no operand given, g is expected"));
    };
    let [n, c, ho, wo] = axes("g", g, attrs)?;
    let given = attrs.ints("kernel_shape");
    let kernel = [0, 1].map(|i| given.get(i).map_or(2, |k| (*k).max(1) as u64));
    let [h, w] = source(attrs, [ho, wo], kernel)?;
    bound(op, [n, c, h, w], without(attrs, "output_shape"), &shapes[..1]).and_then(|b| match shapes.len() {
        1 | 2 => Ok(b),
        more => Err(Error::new(Code::ShapeMismatch, format!("{more} operands given"))),
    })
}

/// Half of the cases of means count the padding.
fn means(list: Vec<CaseSpec>) -> Vec<CaseSpec> {
    let flip = |(i, spec): (usize, CaseSpec)| CaseSpec {
        attrs: if i % 2 == 0 { spec.attrs } else { spec.attrs.with("count_include_pad", Attr::Int(1)) },
        ..spec
    };
    list.into_iter().enumerate().map(flip).collect()
}

fn cases(tier: Tier, more: &[([u64; 4], Fill)]) -> Vec<CaseSpec> {
    let ints = |name: &'static str, v: &[i64]| (name, Attr::Ints(v.to_vec()));
    let kernel = |v: &[i64]| ints("kernel_shape", v);
    let (strides, pads) = (|v: &[i64]| ints("strides", v), |v: &[i64]| ints("pads", v));
    let nhwc = || ("layout", Attr::Word("NHWC".into()));
    let mut list: Vec<([u64; 4], Vec<(&str, Attr)>, Fill)> = vec![
        ([0, 2, 5, 5], vec![], Fill::Uniform),
        ([1, 1, 1, 1], vec![kernel(&[1, 1])], Fill::Uniform),
        ([2, 3, 6, 6], vec![strides(&[2, 2])], Fill::Uniform),
        ([1, 5, 7, 5], vec![kernel(&[3, 3]), pads(&[1, 1])], Fill::Uniform),
        ([2, 3, 7, 5], vec![kernel(&[3, 2]), strides(&[2, 1]), pads(&[1, 0, 2, 1])], Fill::Integer),
        ([2, 3, 6, 6], vec![kernel(&[3, 3]), strides(&[2, 2]), pads(&[1, 1]), nhwc()], Fill::Uniform),
        ([3, 16, 4, 9], vec![kernel(&[2, 4]), strides(&[3, 1]), nhwc()], Fill::Integer),
        ([2, 4, 6, 7], vec![kernel(&[3, 3]), pads(&[2, 2])], Fill::Special),
        ([1, 17, 33, 18], vec![kernel(&[3, 3]), strides(&[2, 2])], Fill::Uniform),
        // Several strips of neighbours and what is left beside them.
        ([1, 2, 9, 41], vec![kernel(&[3, 3]), strides(&[2, 2]), pads(&[1, 1])], Fill::Uniform),
        ([2, 1, 5, 70], vec![kernel(&[2, 3]), strides(&[1, 3])], Fill::Integer),
        ([1, 1, 7, 75], vec![kernel(&[1, 3]), pads(&[0, 1])], Fill::Special),
    ];
    list.extend(more.iter().map(|(d, fill)| (*d, vec![kernel(&[3, 3]), pads(&[1, 1])], *fill)));
    if tier == Tier::Full {
        list.extend([
            ([2, 0, 5, 5], vec![], Fill::Uniform),
            ([2, 3, 5, 7], vec![], Fill::Uniform),
            ([3, 5, 6, 6], vec![kernel(&[2, 3]), strides(&[1, 2])], Fill::Constant),
            ([2, 4, 5, 7], vec![kernel(&[3, 3]), strides(&[3, 3]), pads(&[1, 2])], Fill::Wide),
            ([2, 4, 6, 6], vec![kernel(&[4, 4]), pads(&[3, 3])], Fill::Cancelling),
            ([1, 3, 6, 6], vec![kernel(&[3, 3]), pads(&[1, 1])], Fill::Onehot),
            ([2, 3, 9, 4], vec![kernel(&[5, 3]), strides(&[4, 2])], Fill::Positive),
            ([1, 6, 6, 6], vec![kernel(&[2, 2]), strides(&[2, 2]), nhwc()], Fill::Special),
            ([2, 7, 5, 7], vec![kernel(&[3, 3]), pads(&[1, 1]), nhwc()], Fill::Wide),
            // The window is the image; windows apart from each other.
            ([3, 4, 6, 6], vec![kernel(&[6, 6])], Fill::Uniform),
            ([2, 4, 13, 11], vec![kernel(&[2, 2]), strides(&[5, 4])], Fill::Integer),
            ([2, 16, 64, 48], vec![strides(&[2, 2])], Fill::Uniform),
            ([1, 33, 31, 65], vec![kernel(&[3, 3]), strides(&[2, 2]), pads(&[1, 1]), nhwc()], Fill::Uniform),
            ([257, 2, 4, 4], vec![strides(&[2, 2])], Fill::Uniform),
            ([1, 2, 6, 150], vec![kernel(&[3, 6]), strides(&[2, 4]), pads(&[1, 3])], Fill::Uniform),
            ([1, 2, 5, 131], vec![kernel(&[1, 2]), strides(&[1, 4]), pads(&[0, 1])], Fill::Wide),
            ([1, 2, 5, 101], vec![kernel(&[2, 1]), strides(&[1, 2])], Fill::Uniform),
            ([1, 70, 3, 4], vec![kernel(&[2, 2]), pads(&[1, 1]), nhwc()], Fill::Uniform),
            // Wide enough for several vectors at once, with windows that overlap.
            ([1, 2, 7, 230], vec![kernel(&[3, 3]), pads(&[1, 1])], Fill::Uniform),
            ([1, 9, 7, 125], vec![kernel(&[2, 3]), pads(&[1, 1])], Fill::Uniform),
            ([1, 110, 3, 4], vec![kernel(&[2, 2]), pads(&[1, 1]), nhwc()], Fill::Uniform),
            ([1, 2, 5, 420], vec![kernel(&[3, 3]), strides(&[2, 2]), pads(&[1, 1])], Fill::Wide),
            ([1, 200, 3, 4], vec![kernel(&[2, 2]), pads(&[1, 1]), nhwc()], Fill::Uniform),
            ([1, 1, 40, 40], vec![kernel(&[31, 33]), strides(&[2, 3])], Fill::Uniform),
            ([1, 1, 1, 600_001], vec![kernel(&[1, 3]), strides(&[1, 3])], Fill::Uniform),
        ]);
    }
    list.into_iter()
        .map(|(dims, attrs, fill)| CaseSpec {
            dims: dims.to_vec(),
            attrs: attrs.into_iter().fold(Attrs::new(), |all, (n, v)| all.with(n, v)),
            fill,
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::HostTensor;

    /// Made-up indices meet windows often enough for the gradient's cases to say something.
    #[test]
    fn the_indices_of_the_cases_meet_their_windows() {
        let case = crate::op::case::parse("maxpool2d_bwd/f32/n7,c5,h6,w6/kernel_shape=3:3,pads=1:1/uniform").unwrap();
        assert!((MAXPOOL2D_BWD.cases)(Tier::Smoke).iter().any(|s| s.attrs == case.attrs && s.dims == [7, 5, 6, 6]));
        let inputs = crate::op::case::inputs(&MAXPOOL2D_BWD, &case).unwrap();
        let out = (MAXPOOL2D_BWD.oracle)(&case, &inputs.iter().map(Exact::read_all).collect::<Vec<_>>());
        let met = out[0].values.iter().filter(|v| v.to_f64() != 0.0).count();
        assert!(met > out[0].values.len() / 8, "{met} of {}", out[0].values.len());
    }

    #[test]
    fn impossible_windows_are_refused() {
        let ints = |name: &str, v: &[i64]| Attrs::new().with(name, Attr::Ints(v.to_vec()));
        for (dims, attrs, want) in [
            ([1, 2, 1, 5], Attrs::new(), "spans 2 rows"),
            ([1, 2, 5, 5], ints("kernel_shape", &[0, 2]), "kernel_shape holds 0"),
            ([1, 2, 5, 5], ints("pads", &[2, 0]), "padding only"),
            ([1, 2, 0, 5], Attrs::new(), "without pixels"),
            ([1, 2, 65_536, 65_536], Attrs::new(), "exceed i32"),
        ] {
            let e = MAXPOOL2D.case(DType::F32, &dims, attrs, Fill::Uniform).unwrap_err();
            assert!(e.to_string().contains(want), "{e}");
        }
        let two = Attrs::new().with("count_include_pad", Attr::Int(2));
        assert!(AVGPOOL2D.case(DType::F32, &[1, 1, 4, 4], two, Fill::Uniform).is_err());
        assert!(AVGPOOL2D.case(DType::I32, &[1, 1, 4, 4], Attrs::new(), Fill::Uniform).is_err());
    }

    #[test]
    fn calls_of_the_gradients_find_the_sizes() {
        let a = Attrs::new().with("strides", Attr::Ints(vec![2, 2]));
        let g = vec![2, 3, 4, 5];
        assert_eq!((AVGPOOL2D_BWD.bind)(std::slice::from_ref(&g), &a).unwrap().dims, [2, 3, 8, 10]);
        let given = a.clone().with("output_shape", Attr::Ints(vec![9, 11]));
        let b = (MAXPOOL2D_BWD.bind)(&[g.clone(), g.clone()], &given).unwrap();
        assert_eq!((b.dims, b.attrs), (vec![2, 3, 9, 11], a.clone()));
        assert!((MAXPOOL2D_BWD.bind)(&[g.clone(), vec![2, 3, 4, 4]], &a).is_err());
        assert!((AVGPOOL2D_BWD.bind)(&[g], &a.with("output_shape", Attr::Ints(vec![19, 11]))).is_err());
    }

    /// By hand: zeros of both signs tie, NaN wins, and the first of equals is named.
    #[test]
    fn the_oracle_names_the_first_maximum() {
        let case = MAXPOOL2D.case(DType::F32, &[1, 1, 2, 4], Attrs::new(), Fill::Uniform).unwrap();
        let x =
            HostTensor::from_slice(&[-0.0f32, 0.0, 3.0, f32::NAN, -1.0, 0.0, 3.0, f32::NAN], &[1, 1, 2, 4]).unwrap();
        let out = (MAXPOOL2D.oracle)(&case, &[Exact::read_all(&x)]);
        let places: Vec<f64> = out[1].values.iter().map(|v| v.to_f64()).collect();
        assert_eq!(places, [0.0, 2.0, 3.0]);
        assert!(out[0].values[0].to_f64().is_sign_negative() && out[0].values[2].to_f64().is_nan());
    }
}
