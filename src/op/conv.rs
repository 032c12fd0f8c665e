//! Convolution of images and its two gradients.

use crate::base::{Attr, AttrDecl, AttrType, Attrs, Case, Code, DType, Error, Exact, Fill, HostTensor, Result, host};
use crate::kernel::cpu::conv;
use crate::kernel::window::Window;
use crate::kernel::{Body, Kernel, Needs, plan_wgsl_window, plan_window};

use super::products::{Dot, gather};
use super::{Binding, CaseSpec, Family, Gap, Grad, OpDesc, Operand, Range, ShapeClass, Tier, Tolerance, Unit};

const C_TEXT: &str = include_str!("../../kernels/conv.c");
const WGSL_TEXT: &str = include_str!("../../kernels/conv.wgsl");
const TILED_TEXT: &str = include_str!("../../kernels/conv_tiled.wgsl");
const DTYPES: &[DType] = &[DType::F32, DType::F64, DType::F16, DType::BF16];

/// Ops of this file.
pub(super) static OPS: &[&OpDesc] = &[&CONV2D, &CONV2D_BWD_DATA, &CONV2D_BWD_WEIGHT];

const BASE: Kernel = Kernel {
    variant: "im2col",
    body: Body::Native(conv::conv2d),
    dtypes: DTYPES,
    dtypes_why: "",
    expr: "",
    needs: Needs::NONE,
    only_when_named: false,
    plan: plan_window::forward,
};
const NAIVE: Kernel = Kernel { variant: "naive", only_when_named: true, ..BASE };
/// A product whose one factor is gathered tile by tile (implicit im2col): two tiles of 16 by 64 numbers, their rows one apart.
const TILED_C: Kernel = Kernel {
    variant: "tiled",
    body: Body::C(C_TEXT),
    needs: Needs { local_elements: 2 * 16 * 65, group: 256, ..Needs::NONE },
    plan: plan_window::tiled_c,
    ..BASE
};
const TILED_WGSL: Kernel = Kernel {
    variant: "tiled",
    body: Body::Wgsl(TILED_TEXT),
    needs: Needs { local_elements: 2 * 16 * 64, group: 256, ..Needs::NONE },
    plan: plan_wgsl_window::forward_tiled,
    ..BASE
};
const DIRECT_C: Kernel =
    Kernel { variant: "direct", body: Body::C(C_TEXT), needs: GROUP, plan: plan_window::forward_c, ..BASE };
const DIRECT_WGSL: Kernel =
    Kernel { variant: "direct", body: Body::Wgsl(WGSL_TEXT), needs: GROUP, plan: plan_wgsl_window::forward, ..BASE };
/// The text's largest need: one number per work-item.
const GROUP: Needs = Needs { local_elements: 64, group: 64, ..Needs::NONE };

pub(super) const LAYOUT: AttrDecl = AttrDecl {
    name: "layout",
    kind: AttrType::Word(&["NCHW", "NHWC"]),
    doc: "order of the axes; filters are [co, c/group, kh, kw], for NHWC [co, kh, kw, c/group]",
};
pub(super) const PADS: AttrDecl =
    AttrDecl { name: "pads", kind: AttrType::Ints, doc: "top:left:bottom:right, or rows:columns; none: 0" };
pub(super) const STRIDES: AttrDecl = AttrDecl { name: "strides", kind: AttrType::Ints, doc: "rows:columns; none: 1:1" };
const DILATIONS: AttrDecl = AttrDecl { name: "dilations", kind: AttrType::Ints, doc: "rows:columns; none: 1:1" };
const FILTER_GROUPS: AttrDecl =
    AttrDecl { name: "group", kind: AttrType::Int(1), doc: "parts of the channels that do not mix" };
pub(super) const OUTPUT_SHAPE: AttrDecl = AttrDecl {
    name: "output_shape",
    kind: AttrType::Ints,
    doc: "rows:columns of dx (library calls; none: the fewest that g can come from)",
};
const KERNEL_SHAPE: AttrDecl = AttrDecl {
    name: "kernel_shape",
    kind: AttrType::Ints,
    doc: "rows:columns of a filter (library calls; none: the largest that g can come from)",
};

/// Dimensions for so many elements, as nearly as images of about as many channels as rows come to it.
fn image(n: u64) -> Vec<u64> {
    let root = (n as f64).cbrt().round() as u64;
    let sides = (root.saturating_sub(1)..=root + 1).map(|side| side.max(3));
    let all = sides.flat_map(|side| {
        let fewest = if side > 3 { side - 1 } else { 1 };
        (fewest..=side + 1)
            .map(move |channels| (side.saturating_mul(side).saturating_mul(channels).abs_diff(n), side, channels))
    });
    let (_, side, channels) = all.min().unwrap_or((0, 3, 1));
    vec![1, channels, side, side, channels, 3, 3]
}

static CONV2D: OpDesc = OpDesc {
    name: "conv2d",
    doc: "y[n, o, i, j] = sum over c, k, l of x[n, c, i sh + k dh - top, j sw + l dw - left] f[o, c, k, l]; zeros pad x.",
    tier: 1,
    onnx: Some("Conv"),
    dims: &["n", "c", "h", "w", "co", "kh", "kw"],
    families: &[Family {
        name: "image",
        doc: "any; in the sweep one image, 3 by 3 filters, as many channels as rows and columns, or one more or less",
        matches: |_| true,
        sweep: image,
    }],
    unit: Unit::InputElements,
    work: |c| ["n", "c", "h", "w"].iter().fold(1u128, |all, d| all.saturating_mul(u128::from(c.dim(d)))),
    attrs: &[DILATIONS, FILTER_GROUPS, LAYOUT, PADS, STRIDES],
    dtypes: DTYPES,
    operands: &[Operand::input("x"), Operand::input("f"), Operand::output("y")],
    shapes: |c| checked(c, |w| [w.x(), w.filters(), w.y()]),
    bind: bind_forward,
    cost: plan_window::forward_cost,
    oracle: |c, x| whole(c, Makes::Y, x),
    element: Some(|c, x, _, i| one(c, Makes::Y, x, i)),
    whole: None,
    tolerance: Tolerance::Gamma(|c| terms(c, Makes::Y)),
    domain: &[Range(-1.0, 1.0), Range(-1.0, 1.0)],
    grad: Grad::None("conv2d_bwd_data and conv2d_bwd_weight are the rule; there is no tape yet that could apply it"),
    kernels: &[
        TILED_C,
        DIRECT_C,
        TILED_WGSL,
        DIRECT_WGSL,
        BASE,
        Kernel { body: Body::Native(conv::conv2d_naive), ..NAIVE },
    ],
    cases: |tier| cases(tier, true),
    gaps: &[],
};

const SECOND_ORDER: Grad = Grad::None("a gradient itself; second derivatives are not offered");
const SAME_INDEX: &[Gap] = &[Gap::Shape(ShapeClass::ManyGroups, "same text and index arithmetic as conv2d")];

static CONV2D_BWD_DATA: OpDesc = OpDesc {
    name: "conv2d_bwd_data",
    doc: "dx of conv2d: every x collects f g from the results that it took part in.",
    onnx: Some("ConvTranspose"),
    attrs: &[DILATIONS, FILTER_GROUPS, LAYOUT, OUTPUT_SHAPE, PADS, STRIDES],
    operands: &[Operand::input("g"), Operand::input("f"), Operand::output("dx")],
    shapes: |c| {
        agrees(c, "output_shape", ["h", "w"])?;
        checked(c, |w| [w.y(), w.filters(), w.x()])
    },
    bind: bind_data,
    cost: plan_window::data_cost,
    oracle: |c, x| whole(c, Makes::X, x),
    element: Some(|c, x, _, i| one(c, Makes::X, x, i)),
    whole: None,
    tolerance: Tolerance::Gamma(|c| terms(c, Makes::X)),
    grad: SECOND_ORDER,
    kernels: &[
        // Not for CUDA: its sums would lie in memory (64 bytes of stack), since a loop around them mends those that are NaN.
        Kernel { body: Body::Opencl(C_TEXT), plan: plan_window::data_tiled_c, ..TILED_C },
        Kernel { plan: plan_window::data_c, ..DIRECT_C },
        Kernel { plan: plan_wgsl_window::data_tiled, ..TILED_WGSL },
        Kernel { plan: plan_wgsl_window::data, ..DIRECT_WGSL },
        Kernel { body: Body::Native(conv::bwd_data), plan: plan_window::data, ..BASE },
        Kernel { body: Body::Native(conv::bwd_data_naive), plan: plan_window::data, ..NAIVE },
    ],
    cases: |tier| cases(tier, false),
    gaps: SAME_INDEX,
    ..CONV2D
};

static CONV2D_BWD_WEIGHT: OpDesc = OpDesc {
    name: "conv2d_bwd_weight",
    doc: "df of conv2d: every filter element collects x g over all images and positions; zeros pad x.",
    onnx: None,
    attrs: &[DILATIONS, FILTER_GROUPS, KERNEL_SHAPE, LAYOUT, PADS, STRIDES],
    operands: &[Operand::input("g"), Operand::input("x"), Operand::output("df")],
    shapes: |c| {
        agrees(c, "kernel_shape", ["kh", "kw"])?;
        checked(c, |w| [w.y(), w.x(), w.filters()])
    },
    bind: bind_weight,
    cost: plan_window::weight_cost,
    oracle: |c, x| whole(c, Makes::Filters, x),
    element: Some(|c, x, _, i| one(c, Makes::Filters, x, i)),
    whole: None,
    tolerance: Tolerance::Gamma(|c| terms(c, Makes::Filters)),
    grad: SECOND_ORDER,
    kernels: &[
        Kernel { plan: plan_window::weight_tiled_c, ..TILED_C },
        Kernel { plan: plan_window::weight_c, ..DIRECT_C },
        Kernel { plan: plan_wgsl_window::weight_tiled, ..TILED_WGSL },
        Kernel { plan: plan_wgsl_window::weight, ..DIRECT_WGSL },
        Kernel { body: Body::Native(conv::bwd_weight), plan: plan_window::weight, ..BASE },
        Kernel { body: Body::Native(conv::bwd_weight_naive), plan: plan_window::weight, ..NAIVE },
    ],
    cases: |tier| cases(tier, false),
    gaps: SAME_INDEX,
    ..CONV2D
};

/// Which tensor an op makes from the other two.
#[derive(Clone, Copy)]
enum Makes {
    Y,
    X,
    Filters,
}

fn checked(case: &Case, shapes: fn(&Window) -> [Vec<u64>; 3]) -> Result<Vec<Vec<u64>>> {
    let all = shapes(&Window::conv(case)?).to_vec();
    all.iter().try_for_each(|s| host::count(s).map(|_| ()))?;
    Ok(all)
}

/// An attribute that only shapes a call must say what the sizes say.
pub(super) fn agrees(case: &Case, name: &str, dims: [&str; 2]) -> Result<()> {
    let given = case.attrs.ints(name);
    if given.is_empty() || given.iter().map(|v| *v as u64).eq(dims.map(|d| case.dim(d))) {
        return Ok(());
    }
    Err(Error::new(Code::BadArgument, format!("{name} is {given:?}, but the sizes say otherwise")))
}

/// Products and additions of one element, in any order; the im2col form multiplies the sum by gemm's alpha, which is 1.
fn terms(case: &Case, makes: Makes) -> u64 {
    let d = |name: &str| case.dim(name);
    let group = case.attrs.int("group", 1).max(1) as u64;
    match makes {
        Makes::Y => d("c") / group * d("kh") * d("kw") + 1,
        Makes::X => d("co") / group * d("kh") * d("kw") + 1,
        Makes::Filters => Window::conv(case).map_or(0, |w| w.n * w.ho * w.wo) + 1,
    }
}

fn whole(case: &Case, makes: Makes, x: &[Vec<Exact>]) -> Vec<super::Reference> {
    let Ok(w) = Window::conv(case) else { return Vec::new() };
    let shape = match makes {
        Makes::Y => w.y(),
        Makes::X => w.x(),
        Makes::Filters => w.filters(),
    };
    gather(shape.iter().product(), |i| at(case, &w, makes, &|t, i| x[t][i as usize], i))
}

fn one(case: &Case, makes: Makes, x: &[HostTensor], i: u64) -> (Exact, f64) {
    match Window::conv(case) {
        Ok(w) => at(case, &w, makes, &|t, i| Exact::read(&x[t], i), i),
        Err(_) => (Exact::f(f64::NAN), f64::NAN),
    }
}

/// Flat index of (n, c, y, x) in a tensor of that many channels, rows and columns.
fn flat(nhwc: bool, [nc, nh, nw]: [u64; 3], [n, c, y, x]: [u64; 4]) -> u64 {
    if nhwc { ((n * nh + y) * nw + x) * nc + c } else { ((n * nc + c) * nh + y) * nw + x }
}

/// The reverse.
pub(super) fn place(nhwc: bool, [nc, nh, nw]: [u64; 3], i: u64) -> [u64; 4] {
    match nhwc {
        true => [i / nc / nw / nh, i % nc, i / nc / nw % nh, i / nc % nw],
        false => [i / nw / nh / nc, i / nw / nh % nc, i / nw % nh, i % nw],
    }
}

/// Element `i` of the result by the definition; `x(t, i)` reads operand t.
fn at(case: &Case, w: &Window, makes: Makes, x: &impl Fn(usize, u64) -> Exact, i: u64) -> (Exact, f64) {
    let (image, filter, result) = ([w.c, w.h, w.w], [w.cg(), w.kh, w.kw], [w.co, w.ho, w.wo]);
    // The pixel of x under element (k, l) of a filter at (i, j), if it is not padding.
    let under = |i: u64, j: u64, k: u64, l: u64| {
        let row = (i * w.sh + k * w.dh).checked_sub(w.pt).filter(|r| *r < w.h)?;
        Some((row, (j * w.sw + l * w.dw).checked_sub(w.pl).filter(|c| *c < w.w)?))
    };
    let zero = Exact::zero(case.dtype);
    let mut dot = Dot::new(case.dtype);
    match makes {
        Makes::Y => {
            let [n, o, i, j] = place(w.nhwc, result, i);
            for c in 0..w.cg() {
                for (k, l) in (0..w.kh).flat_map(|k| (0..w.kw).map(move |l| (k, l))) {
                    let channel = o / w.og() * w.cg() + c;
                    let v = under(i, j, k, l).map_or(zero, |(r, s)| x(0, flat(w.nhwc, image, [n, channel, r, s])));
                    dot.add(v, x(1, flat(w.nhwc, filter, [o, c, k, l])));
                }
            }
        }
        Makes::X => {
            let [n, channel, row, column] = place(w.nhwc, image, i);
            let group = channel / w.cg();
            for (k, l) in (0..w.kh).flat_map(|k| (0..w.kw).map(move |l| (k, l))) {
                // The one position at which element (k, l) lies on this pixel, if there is one.
                let position = |at: u64, pad: u64, step: u64, stride: u64, count: u64| {
                    let d = (at + pad).checked_sub(step)?;
                    (d % stride == 0 && d / stride < count).then(|| d / stride)
                };
                let Some(i) = position(row, w.pt, k * w.dh, w.sh, w.ho) else { continue };
                let Some(j) = position(column, w.pl, l * w.dw, w.sw, w.wo) else { continue };
                for o in group * w.og()..(group + 1) * w.og() {
                    let f = flat(w.nhwc, filter, [o, channel % w.cg(), k, l]);
                    dot.add(x(0, flat(w.nhwc, result, [n, o, i, j])), x(1, f));
                }
            }
        }
        Makes::Filters => {
            let [o, c, k, l] = place(w.nhwc, filter, i);
            let channel = o / w.og() * w.cg() + c;
            for n in 0..w.n {
                for (i, j) in (0..w.ho).flat_map(|i| (0..w.wo).map(move |j| (i, j))) {
                    let v = under(i, j, k, l).map_or(zero, |(r, s)| x(1, flat(w.nhwc, image, [n, channel, r, s])));
                    dot.add(x(0, flat(w.nhwc, result, [n, o, i, j])), v);
                }
            }
        }
    }
    dot.end()
}

/// A tensor of images or filters as [n, c, h, w], whatever the layout.
pub(super) fn axes(name: &str, shape: &[u64], attrs: &Attrs) -> Result<[u64; 4]> {
    let [a, b, c, d] = <[u64; 4]>::try_from(shape)
        .map_err(|_| Error::new(Code::ShapeMismatch, format!("{name} is {shape:?}; four axes are expected")))?;
    Ok(if attrs.word("layout", "NCHW") == "NHWC" { [a, d, b, c] } else { [a, b, c, d] })
}

/// Attributes of the case: those of the call without the one that only shapes it.
pub(super) fn without(attrs: &Attrs, name: &str) -> Attrs {
    attrs.iter().filter(|(n, _)| *n != name).fold(Attrs::new(), |all, (n, v)| all.with(n, v.clone()))
}

pub(super) fn two<'a>(shapes: &'a [Vec<u64>], names: &str) -> Result<(&'a [u64], &'a [u64])> {
    match shapes {
        [a, b] => Ok((a, b)),
        _ => Err(Error::new(Code::ShapeMismatch, format!("{} operands given; {names} are expected", shapes.len()))),
    }
}

fn pair(attrs: &Attrs, name: &str) -> Result<Option<[u64; 2]>> {
    let given = attrs.ints(name);
    if given.is_empty() {
        return Ok(None);
    }
    let wrong = || Error::new(Code::BadArgument, format!("{name} is {given:?}; rows:columns is expected"));
    let [a, b] = <[i64; 2]>::try_from(given).map_err(|_| wrong())?;
    Ok(Some([u64::try_from(a).map_err(|_| wrong())?, u64::try_from(b).map_err(|_| wrong())?]))
}

/// Rows and columns of x from which a g of that many comes: the given ones, or the fewest.
pub(super) fn source(attrs: &Attrs, g: [u64; 2], kernel: [u64; 2]) -> Result<[u64; 2]> {
    if let Some(given) = pair(attrs, "output_shape")? {
        return Ok(given);
    }
    let one = |axis: usize| {
        let get = |name: &str, default: i64| attrs.ints(name).get(axis).copied().unwrap_or(default).max(0) as u64;
        let pads = attrs.ints("pads");
        let after = if pads.len() == 4 { pads[axis + 2] } else { pads.get(axis).copied().unwrap_or(0) };
        let reach = get("dilations", 1).saturating_mul(kernel[axis].max(1) - 1) + 1;
        let all = g[axis].max(1).saturating_sub(1).saturating_mul(get("strides", 1)).saturating_add(reach);
        all.saturating_sub(get("pads", 0)).saturating_sub(after.max(0) as u64)
    };
    Ok([one(0), one(1)])
}

/// Rows and columns of a filter by which x becomes a g of that many: the given ones, or the largest.
fn kernel(attrs: &Attrs, g: [u64; 2], x: [u64; 2]) -> Result<[u64; 2]> {
    if let Some(given) = pair(attrs, "kernel_shape")? {
        return Ok(given);
    }
    let one = |axis: usize| {
        let get = |name: &str, default: i64| attrs.ints(name).get(axis).copied().unwrap_or(default).max(0) as u64;
        let pads = attrs.ints("pads");
        let after = if pads.len() == 4 { pads[axis + 2] } else { pads.get(axis).copied().unwrap_or(0) };
        let padded = x[axis].saturating_add(get("pads", 0)).saturating_add(after.max(0) as u64);
        let rest = padded.saturating_sub(g[axis].saturating_sub(1).saturating_mul(get("strides", 1)));
        rest.saturating_sub(1) / get("dilations", 1).max(1) + 1
    };
    Ok([one(0), one(1)])
}

/// The case of a call, if the shapes that it then has are those that were given.
fn bound(op: &OpDesc, dims: [u64; 7], attrs: Attrs, given: &[Vec<u64>]) -> Result<Binding> {
    let case = op.case(op.dtypes[0], &dims, attrs.clone(), Fill::Uniform)?;
    let shapes = (op.shapes)(&case)?;
    if shapes[..2] != *given {
        return Err(Error::new(
            Code::ShapeMismatch,
            format!("the operands are {given:?}; with these attributes {:?} are expected", &shapes[..2]),
        ));
    }
    Ok(Binding { dims: dims.to_vec(), attrs, ..Binding::default() })
}

fn bind_forward(shapes: &[Vec<u64>], attrs: &Attrs) -> Result<Binding> {
    let (x, f) = two(shapes, "x and f")?;
    let ([n, c, h, w], [co, _, kh, kw]) = (axes("x", x, attrs)?, axes("f", f, attrs)?);
    bound(&CONV2D, [n, c, h, w, co, kh, kw], attrs.clone(), shapes)
}

fn bind_data(shapes: &[Vec<u64>], attrs: &Attrs) -> Result<Binding> {
    let (g, f) = two(shapes, "g and f")?;
    let ([n, co, ho, wo], [_, cg, kh, kw]) = (axes("g", g, attrs)?, axes("f", f, attrs)?);
    let c = cg.saturating_mul(attrs.int("group", 1).max(0) as u64);
    let [h, w] = source(attrs, [ho, wo], [kh, kw])?;
    bound(&CONV2D_BWD_DATA, [n, c, h, w, co, kh, kw], without(attrs, "output_shape"), shapes)
}

fn bind_weight(shapes: &[Vec<u64>], attrs: &Attrs) -> Result<Binding> {
    let (g, x) = two(shapes, "g and x")?;
    let ([_, co, ho, wo], [n, c, h, w]) = (axes("g", g, attrs)?, axes("x", x, attrs)?);
    let [kh, kw] = kernel(attrs, [ho, wo], [h, w])?;
    bound(&CONV2D_BWD_WEIGHT, [n, c, h, w, co, kh, kw], without(attrs, "kernel_shape"), shapes)
}

fn cases(tier: Tier, many_groups: bool) -> Vec<CaseSpec> {
    let ints = |name: &'static str, v: &[i64]| (name, Attr::Ints(v.to_vec()));
    let (strides, pads) = (|v: &[i64]| ints("strides", v), |v: &[i64]| ints("pads", v));
    let dilations = |v: &[i64]| ints("dilations", v);
    let group = |g: i64| ("group", Attr::Int(g));
    let nhwc = || ("layout", Attr::Word("NHWC".into()));
    let mut list: Vec<([u64; 7], Vec<(&str, Attr)>, Fill)> = vec![
        ([0, 2, 5, 5, 3, 3, 3], vec![], Fill::Uniform),
        ([1, 1, 1, 1, 1, 1, 1], vec![], Fill::Uniform),
        ([2, 3, 9, 8, 4, 3, 3], vec![pads(&[1, 1])], Fill::Uniform),
        ([1, 5, 11, 7, 3, 5, 2], vec![strides(&[2, 3]), pads(&[2, 0, 1, 1])], Fill::Uniform),
        ([2, 4, 10, 9, 6, 3, 3], vec![strides(&[2, 2]), pads(&[1, 1]), dilations(&[2, 1]), group(2)], Fill::Integer),
        ([1, 6, 8, 8, 6, 3, 3], vec![pads(&[1, 1]), group(6)], Fill::Uniform),
        ([2, 3, 9, 8, 4, 3, 3], vec![pads(&[1, 1]), nhwc()], Fill::Uniform),
        ([1, 8, 9, 10, 4, 3, 2], vec![strides(&[2, 1]), pads(&[1, 0]), group(2), nhwc()], Fill::Integer),
        ([1, 16, 15, 17, 8, 1, 1], vec![], Fill::Uniform),
        ([1, 2, 5, 4, 3, 2, 2], vec![pads(&[1, 1])], Fill::Special),
    ];
    if tier == Tier::Full {
        list.extend([
            ([2, 0, 5, 5, 3, 3, 3], vec![], Fill::Uniform),
            ([2, 3, 5, 5, 0, 3, 3], vec![], Fill::Uniform),
            ([2, 3, 7, 11, 5, 3, 5], vec![], Fill::Uniform),
            ([1, 3, 33, 31, 8, 7, 7], vec![strides(&[2, 2]), pads(&[3, 3])], Fill::Uniform),
            ([2, 16, 16, 16, 16, 3, 3], vec![pads(&[1, 1])], Fill::Positive),
            ([2, 32, 9, 9, 17, 3, 3], vec![strides(&[3, 2]), pads(&[1, 1])], Fill::Integer),
            ([1, 3, 12, 12, 4, 3, 3], vec![], Fill::Constant),
            ([2, 4, 7, 9, 5, 2, 3], vec![pads(&[1, 2])], Fill::Wide),
            ([1, 6, 10, 10, 6, 3, 3], vec![group(3), dilations(&[2, 3])], Fill::Cancelling),
            ([2, 4, 6, 6, 3, 3, 3], vec![pads(&[2, 2])], Fill::Onehot),
            ([1, 2, 4, 5, 2, 3, 2], vec![strides(&[2, 1]), pads(&[1, 1]), nhwc()], Fill::Special),
            ([2, 4, 6, 7, 4, 3, 3], vec![group(4), nhwc(), pads(&[1, 1])], Fill::Wide),
            ([1, 5, 13, 17, 7, 2, 2], vec![strides(&[4, 5]), nhwc()], Fill::Uniform),
            // A kernel that just fits, one larger than the image itself, and one that never meets it.
            ([3, 2, 4, 5, 2, 4, 5], vec![], Fill::Uniform),
            ([1, 2, 2, 2, 3, 5, 5], vec![pads(&[2, 2])], Fill::Integer),
            ([1, 2, 1, 1, 2, 2, 2], vec![pads(&[3, 3]), strides(&[4, 4])], Fill::Uniform),
            ([64, 1, 5, 5, 2, 3, 3], vec![], Fill::Uniform),
            ([1, 64, 6, 6, 65, 1, 1], vec![], Fill::Integer),
            ([1, 3, 64, 63, 16, 3, 3], vec![pads(&[1, 1])], Fill::Uniform),
            // Enough filters for tiles of 16, 32 and 64: just full, one more than that, and in between.
            ([1, 2, 7, 15, 65, 3, 3], vec![], Fill::Uniform),
            ([1, 3, 8, 8, 64, 1, 1], vec![], Fill::Uniform),
            ([2, 3, 9, 11, 17, 3, 3], vec![pads(&[1, 1])], Fill::Uniform),
            ([1, 5, 12, 9, 33, 3, 2], vec![strides(&[2, 1]), nhwc()], Fill::Integer),
            ([2, 4, 8, 10, 36, 2, 3], vec![group(2), dilations(&[2, 1]), pads(&[1, 2])], Fill::Special),
            ([1, 8, 17, 17, 70, 3, 3], vec![pads(&[1, 1])], Fill::Cancelling),
            ([2, 6, 7, 7, 48, 1, 1], vec![group(3), nhwc()], Fill::Wide),
            ([2, 4, 9, 8, 32, 3, 3], vec![group(2), nhwc(), strides(&[1, 2]), pads(&[2, 1])], Fill::Positive),
            // A filter of one element more than a tile of them.
            ([2, 13, 4, 9, 16, 1, 5], vec![], Fill::Uniform),
            // Filters that are not square, several tiles of their elements.
            ([2, 12, 8, 10, 33, 2, 3], vec![pads(&[1, 2])], Fill::Uniform),
            ([1, 24, 9, 8, 20, 3, 2], vec![nhwc(), dilations(&[1, 2])], Fill::Integer),
            // The same of channels, for the tiles of dx.
            ([1, 17, 9, 11, 3, 3, 3], vec![pads(&[1, 1])], Fill::Uniform),
            ([1, 33, 8, 7, 5, 3, 2], vec![nhwc()], Fill::Integer),
            ([2, 36, 8, 10, 4, 2, 3], vec![group(2), dilations(&[2, 1]), pads(&[1, 2])], Fill::Special),
            ([1, 65, 9, 9, 6, 3, 3], vec![pads(&[2, 2])], Fill::Cancelling),
            ([1, 16, 5, 13, 3, 2, 3], vec![pads(&[1, 1])], Fill::Uniform),
            ([1, 16, 6, 7, 5, 3, 3], vec![], Fill::Special),
            ([2, 48, 7, 7, 6, 3, 2], vec![group(3), nhwc(), dilations(&[1, 2])], Fill::Wide),
            ([1, 32, 13, 12, 9, 5, 4], vec![pads(&[2, 1, 0, 3])], Fill::Positive),
            ([1, 1, 1, 600_001, 1, 1, 3], vec![strides(&[1, 3]), pads(&[0, 1])], Fill::Integer),
        ]);
        if many_groups {
            // 64 results per group.
            list.push(([1, 1, 2051, 2050, 1, 1, 1], vec![], Fill::Uniform));
        }
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

    fn attrs(list: &[(&str, &[i64])]) -> Attrs {
        list.iter().fold(Attrs::new(), |a, (n, v)| a.with(n, Attr::Ints(v.to_vec())))
    }

    #[test]
    fn impossible_shapes_and_attributes_are_refused() {
        let case = |dims: &[u64], a: Attrs| CONV2D.case(DType::F32, dims, a, Fill::Uniform);
        let dims = [1, 4, 5, 5, 6, 3, 3];
        assert!(case(&dims, Attrs::new()).is_ok());
        for (dims, a, want) in [
            ([1, 4, 5, 2, 6, 3, 3], Attrs::new(), "spans 3 columns"),
            ([1, 4, 5, 5, 6, 3, 3], attrs(&[("dilations", &[3, 1])]), "spans 7 rows"),
            ([1, 4, 5, 5, 6, 0, 3], Attrs::new(), "has no element"),
            (dims, attrs(&[("strides", &[0, 1])]), "strides holds 0"),
            (dims, attrs(&[("strides", &[1])]), "strides takes 2"),
            (dims, attrs(&[("pads", &[1, 1, 1])]), "pads takes 2"),
            (dims, attrs(&[("pads", &[1, -1])]), "pads holds -1"),
            (dims, Attrs::new().with("group", Attr::Int(4)), "multiples"),
            (dims, Attrs::new().with("group", Attr::Int(0)), "group = 0"),
        ] {
            let e = case(&dims, a).unwrap_err();
            assert!(e.to_string().contains(want), "{e}");
        }
    }

    #[test]
    fn calls_of_the_gradients_find_the_sizes() {
        let a = attrs(&[("strides", &[2, 2]), ("pads", &[1, 1])]);
        let forward = (CONV2D.bind)(&[vec![2, 3, 9, 8], vec![4, 3, 3, 3]], &a).unwrap();
        assert_eq!(forward.dims, [2, 3, 9, 8, 4, 3, 3]);
        // y is 5 by 4; 9 by 7 is the least that gives it.
        let (g, f) = (vec![2, 4, 5, 4], vec![4, 3, 3, 3]);
        assert_eq!((CONV2D_BWD_DATA.bind)(&[g.clone(), f.clone()], &a).unwrap().dims, [2, 3, 9, 7, 4, 3, 3]);
        let given = a.clone().with("output_shape", Attr::Ints(vec![9, 8]));
        let b = (CONV2D_BWD_DATA.bind)(&[g.clone(), f.clone()], &given).unwrap();
        assert_eq!((b.dims, b.attrs), (vec![2, 3, 9, 8, 4, 3, 3], a.clone()));
        let wrong = a.clone().with("output_shape", Attr::Ints(vec![19, 8]));
        assert!((CONV2D_BWD_DATA.bind)(&[g.clone(), f], &wrong).is_err());
        let given = a.clone().with("kernel_shape", Attr::Ints(vec![3, 3]));
        let b = (CONV2D_BWD_WEIGHT.bind)(&[g, vec![2, 3, 9, 8]], &given).unwrap();
        assert_eq!((b.dims, b.attrs), (vec![2, 3, 9, 8, 4, 3, 3], a));
    }

    /// Why there is no Winograd kernel: F(2, 3), one row of F(2x2, 3x3), leaves the bound that direct sums keep.
    #[test]
    fn winograd_breaks_the_bound_of_the_sums() {
        // Two results of three taps each. The second tap of the second result meets the large pixel with weight 0.
        let (d, g) = ([1.0f32, 1e8, 1.0, 1.0], [0.0f32, 1.0, 1.0]);
        let m = [
            (d[0] - d[2]) * g[0],
            (d[1] + d[2]) * ((g[0] + g[1] + g[2]) / 2.0),
            (d[2] - d[1]) * ((g[0] - g[1] + g[2]) / 2.0),
            (d[1] - d[3]) * g[2],
        ];
        let winograd = m[1] - m[2] - m[3];
        let direct = d[1] * g[0] + d[2] * g[1] + d[3] * g[2];
        let magnitudes: f32 = d[1..].iter().zip(g).map(|(d, g)| (d * g).abs()).sum();
        let bound = 6.0 * f32::EPSILON * magnitudes;
        assert_eq!(direct, 2.0);
        assert!((winograd - direct).abs() > 1e5 * bound, "{winograd} instead of {direct}");
    }
}
