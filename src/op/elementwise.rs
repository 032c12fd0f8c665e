//! Elementwise ops: each is a row of names, expressions and an oracle over the templates of its form.

use crate::base::{Attr, AttrDecl, AttrType, Attrs, Case, Code, Cost, DType, Error, Exact, Fill, Result, host};
use crate::kernel::cpu::elementwise::{Binary, Unary, binary, binary_naive, unary, unary_naive};
use crate::kernel::cpu::math::Real;
use crate::kernel::cpu::simd::Style;
use crate::kernel::plan_native::broadcast;
use crate::kernel::{Body, Kernel, Needs, plan_c, plan_native, plan_wgsl};

use super::{CaseSpec, Family, Grad, OpDesc, Operand, Range, Reference, Tier, Tolerance, Unit};

const C_TEXT: &str = include_str!("../../kernels/elementwise.c");
const WGSL_TEXT: &str = include_str!("../../kernels/elementwise.wgsl");
const WGSL_BINARY: &str = include_str!("../../kernels/broadcast.wgsl");
const FLOATS: &[DType] = &[DType::F32, DType::F64, DType::F16, DType::BF16];
const WGSL_NO_F64: &str = "SPIR-V's extended instructions have no f64 form of the function";
const NO_RULE: &str = "the rule needs mul, which the table does not have yet";

/// Ops of this file, in the order in which they are listed.
pub(super) static OPS: &[&OpDesc] = &[&ADD, &RELU, &EXP, &TANH, &SIGMOID];

/// Declares a function of one number: expression on the CPU, in C, in WGSL; oracle; rule for its error.
macro_rules! unary_op {
    ($id:ident $name:literal onnx $onnx:literal $doc:literal, cpu |$x:ident| $body:expr, c $c:literal, wgsl $wgsl:literal on $wd:expr,
     oracle $oracle:expr, $tolerance:expr, over $low:literal..$high:literal, flops $flops:literal) => {
        static $id: OpDesc = {
            #[derive(Clone, Copy)]
            struct F;
            impl Unary for F {
                #[inline(always)]
                fn apply<S: Style, R: Real>($x: R) -> R {
                    $body
                }
            }
            OpDesc {
                name: $name,
                doc: $doc,
                tier: 1,
                onnx: Some($onnx),
                dims: &["n"],
                families: FLAT,
                unit: Unit::Elements,
                work: |c| u128::from(c.dim("n")),
                attrs: &[],
                dtypes: FLOATS,
                operands: &[Operand::input("x"), Operand::output("y")],
                shapes: |c| Ok(vec![vec![c.dim("n")]; 2]),
                bind: bind_unary,
                cost: |c| Cost {
                    flops: $flops * c.dim("n"),
                    read: c.dim("n") * c.dtype.size(),
                    written: c.dim("n") * c.dtype.size(),
                },
                oracle: |_, x| map_oracle(&x[0], $oracle),
                tolerance: $tolerance,
                domain: &[Range($low, $high)],
                grad: Grad::None(NO_RULE),
                kernels: &unary_kernels::<F>($c, $wgsl, $wd),
                cases: unary_cases,
            }
        };
    };
}

unary_op!(RELU "relu" onnx "Relu" "y = 0 where x < 0, else x; so NaN stays NaN and -0 stays -0.",
    cpu |x| if x < R::of(0.0) { R::of(0.0) } else { x },
    c "(x) < (ACC)0 ? (ACC)0 : (x)", wgsl "select(x, {{ACC}}(0), x < {{ACC}}(0))" on FLOATS,
    oracle |x| if x.to_f64() < 0.0 { Exact::f(0.0) } else { x }, Tolerance::Selected, over -1.0..1.0, flops 1);

unary_op!(EXP "exp" onnx "Exp" "y = e^x, elementwise.",
    cpu |x| x.exp::<S>(), c "exp(x)", wgsl "exp(x)" on &[DType::F32, DType::F16, DType::BF16],
    oracle Exact::exp, Tolerance::Function("exp"), over -10.0..10.0, flops 1);

// In C, tanh x = x where x² is below the last place of every dtype: PoCL 3.1 doubles f64's subnormals.
unary_op!(TANH "tanh" onnx "Tanh" "y = hyperbolic tangent of x.",
    cpu |x| x.tanh::<S>(), c "(x) * (x) < (ACC)1e-16 ? (x) : tanh(x)", wgsl "tanh(x)" on &[DType::F32, DType::F16, DType::BF16],
    oracle Exact::tanh, Tolerance::Function("tanh"), over -5.0..5.0, flops 1);

unary_op!(SIGMOID "sigmoid" onnx "Sigmoid" "y = 1 / (1 + e^-x), elementwise.",
    cpu |x| {
        let e = (if x < R::of(0.0) { x } else { -x }).exp::<S>();
        (if x < R::of(0.0) { e } else { R::of(1.0) }) / (R::of(1.0) + e)
    },
    c "((x) < (ACC)0 ? exp(x) : (ACC)1) / ((ACC)1 + exp((x) < (ACC)0 ? (x) : -(x)))",
    wgsl "select({{ACC}}(1), exp(x), x < {{ACC}}(0)) / ({{ACC}}(1) + exp(-abs(x)))" on &[DType::F32, DType::F16, DType::BF16],
    oracle |x| {
        let e = if x.to_f64() < 0.0 { x.exp() } else { x.neg().exp() };
        (if x.to_f64() < 0.0 { e } else { Exact::f(1.0) }).div(Exact::f(1.0).add(e))
    },
    Tolerance::Around { function: "exp", extra_ulps: 1.0 }, over -10.0..10.0, flops 4);

/// One family: elementwise cost depends on the number of elements alone.
const FLAT: &[Family] = &[Family { name: "all", doc: "any number of elements", matches: |_| true, sweep: |n| vec![n] }];

const fn unary_kernels<U: Unary>(c: &'static str, wgsl: &'static str, wgsl_dtypes: &'static [DType]) -> [Kernel; 4] {
    let base = Kernel {
        variant: "simd",
        body: Body::Native(unary::<U>),
        dtypes: FLOATS,
        dtypes_why: "",
        expr: "",
        needs: Needs::NONE,
        only_when_named: false,
        plan: plan_native::unary,
    };
    [
        Kernel { variant: "flat", body: Body::C(C_TEXT), expr: c, plan: plan_c::unary, ..base },
        Kernel {
            variant: "flat",
            body: Body::Wgsl(WGSL_TEXT),
            expr: wgsl,
            dtypes: wgsl_dtypes,
            dtypes_why: WGSL_NO_F64,
            plan: plan_wgsl::unary,
            ..base
        },
        base,
        Kernel { variant: "naive", body: Body::Native(unary_naive::<U>), only_when_named: true, ..base },
    ]
}

fn bind_unary(shapes: &[Vec<u64>], _: &Attrs) -> Result<(Vec<u64>, Attrs)> {
    let [x] = shapes else {
        return Err(Error::new(Code::ShapeMismatch, format!("{} operands given, 1 is expected", shapes.len())));
    };
    Ok((vec![host::count(x)?], Attrs::new()))
}

fn map_oracle(x: &[Exact], f: fn(Exact) -> Exact) -> Vec<Reference> {
    vec![Reference { values: x.iter().map(|v| f(*v)).collect(), scale: x.iter().map(|v| v.abs_f64()).collect() }]
}

fn unary_cases(tier: Tier) -> Vec<CaseSpec> {
    let mut cases = Vec::new();
    let mut push = |n: u64, fill| cases.push(CaseSpec { dims: vec![n], attrs: Attrs::new(), fill });
    for n in [0, 1, 2, 257, 1025] {
        push(n, Fill::Uniform);
    }
    push(1000, Fill::Special);
    push(65_537, Fill::Uniform);
    if tier == Tier::Full {
        for n in [3, 31, 32, 33, 127, 128, 129, 255, 256, 1023, 65_535] {
            push(n, Fill::Uniform);
        }
        push(4099, Fill::Special);
        push(257, Fill::Constant);
        push(1025, Fill::Integer);
        push(1_000_003, Fill::Uniform);
    }
    cases
}

#[derive(Clone, Copy)]
struct Add;
impl Binary for Add {
    #[inline(always)]
    fn real<R: Real>(a: R, b: R) -> R {
        a + b
    }
    #[inline(always)]
    fn int(a: i32, b: i32) -> i32 {
        a.wrapping_add(b)
    }
}

static ADD: OpDesc = OpDesc {
    name: "add",
    doc: "y = a + b with NumPy's broadcasting; integers wrap.",
    tier: 1,
    onnx: Some("Add"),
    dims: &["n"],
    families: &[
        Family { name: "same", doc: "both operands of one shape", matches: |c| c.attrs.is_empty(), sweep: |n| vec![n] },
        // Broadcast operands move fewer bytes, so their crossing is their own; `sweep` is not used without attributes.
    ],
    unit: Unit::Elements,
    work: |c| u128::from(c.dim("n")),
    attrs: BROADCAST_ATTRS,
    dtypes: NUMBERS,
    operands: &[Operand::input("a"), Operand::input("b"), Operand::output("y")],
    shapes: binary_shapes,
    bind: bind_binary,
    cost: binary_cost,
    oracle: |c, x| binary_oracle(c, x, Exact::add),
    tolerance: Tolerance::Rounded,
    domain: &[Range(-1.0, 1.0), Range(-1.0, 1.0)],
    grad: Grad::None("the rule sums over broadcast axes of several ranks, which sum does not offer yet"),
    kernels: &binary_kernels::<Add>("(x) + (b)", "x + b"),
    cases: binary_cases,
};

const NUMBERS: &[DType] = &[DType::F32, DType::F64, DType::I32];
const BROADCAST_ATTRS: &[AttrDecl] = &[
    AttrDecl { name: "a_shape", kind: AttrType::Ints, doc: "shape of a, if not [n]" },
    AttrDecl { name: "b_shape", kind: AttrType::Ints, doc: "shape of b, if not [n]; a scalar is 1" },
];

const fn binary_kernels<B: Binary>(c: &'static str, wgsl: &'static str) -> [Kernel; 4] {
    let base = Kernel {
        variant: "simd",
        body: Body::Native(binary::<B>),
        dtypes: NUMBERS,
        dtypes_why: "",
        expr: "",
        needs: Needs::NONE,
        only_when_named: false,
        plan: plan_native::binary,
    };
    [
        Kernel { variant: "flat", body: Body::C(C_TEXT), expr: c, plan: plan_c::binary, ..base },
        Kernel { variant: "flat", body: Body::Wgsl(WGSL_BINARY), expr: wgsl, plan: plan_wgsl::binary, ..base },
        base,
        Kernel { variant: "naive", body: Body::Native(binary_naive::<B>), only_when_named: true, ..base },
    ]
}

fn binary_shapes(case: &Case) -> Result<Vec<Vec<u64>>> {
    let b = broadcast(case)?;
    Ok(vec![b.a_shape, b.b_shape, b.y_shape])
}

fn bind_binary(shapes: &[Vec<u64>], _: &Attrs) -> Result<(Vec<u64>, Attrs)> {
    let [a, b] = shapes else {
        return Err(Error::new(Code::ShapeMismatch, format!("{} operands given, 2 are expected", shapes.len())));
    };
    if a == b {
        return Ok((vec![host::count(a)?], Attrs::new()));
    }
    let y = plan_native::broadcast_shape(a, b)?;
    // A scalar operand is written as the shape 1, which broadcasts alike.
    let list = |s: &[u64]| Attr::Ints(if s.is_empty() { vec![1] } else { s.iter().map(|d| *d as i64).collect() });
    Ok((vec![host::count(&y)?], Attrs::new().with("a_shape", list(a)).with("b_shape", list(b))))
}

fn binary_cost(case: &Case) -> Cost {
    let n = case.dim("n");
    let size = case.dtype.size();
    let read = broadcast(case).map_or(2 * n, |b| b.a_shape.iter().product::<u64>() + b.b_shape.iter().product::<u64>());
    Cost { flops: n, read: read * size, written: n * size }
}

/// Walks the output's index space with an odometer over the full shapes; shares nothing with the collapsed strides
/// of the kernels.
fn binary_oracle(case: &Case, x: &[Vec<Exact>], f: fn(Exact, Exact) -> Exact) -> Vec<Reference> {
    let shapes = binary_shapes(case).unwrap_or_default();
    let [sa, sb, sy] = &shapes[..] else { return Vec::new() };
    let at = |index: &[u64], s: &[u64]| {
        let skip = index.len() - s.len();
        s.iter().zip(&index[skip..]).fold(0u64, |acc, (d, i)| acc * d + if *d == 1 { 0 } else { *i }) as usize
    };
    let total: u64 = sy.iter().product();
    let mut index = vec![0u64; sy.len()];
    let (mut values, mut scale) = (Vec::new(), Vec::new());
    for _ in 0..total {
        let (a, b) = (x[0][at(&index, sa)], x[1][at(&index, sb)]);
        values.push(f(a, b).wrap(case.dtype));
        scale.push(a.abs_f64() + b.abs_f64());
        for d in (0..sy.len()).rev() {
            index[d] += 1;
            if index[d] < sy[d] {
                break;
            }
            index[d] = 0;
        }
    }
    vec![Reference { values, scale }]
}

fn binary_cases(tier: Tier) -> Vec<CaseSpec> {
    let mut cases = Vec::new();
    for (n, fill) in
        [(0, Fill::Uniform), (1, Fill::Uniform), (257, Fill::Uniform), (1000, Fill::Special), (65_537, Fill::Integer)]
    {
        cases.push(CaseSpec { dims: vec![n], attrs: Attrs::new(), fill });
    }
    // Scalar, last axis, channel, leading axis, two-sided, rank extension, middle axis (requirements C3.5, B6 8).
    let mut grid: Vec<(&[i64], &[i64])> = vec![
        (&[33, 65], &[1]),
        (&[1], &[129]),
        (&[33, 65], &[65]),
        (&[2, 3, 5, 7], &[1, 3, 1, 1]),
        (&[33, 1], &[1, 17]),
    ];
    if tier == Tier::Full {
        grid.extend::<[(&[i64], &[i64]); 5]>([
            (&[33, 65], &[33, 1]),
            (&[5, 4, 3], &[4, 3]),
            (&[3], &[4, 5, 3]),
            (&[2, 1, 5, 1], &[1, 3, 1, 7]),
            (&[0, 4], &[4]),
        ]);
        for n in [2, 31, 32, 33, 255, 256, 1023, 1_000_003] {
            cases.push(CaseSpec { dims: vec![n], attrs: Attrs::new(), fill: Fill::Uniform });
        }
    }
    for (a, b) in grid {
        let attrs = Attrs::new().with("a_shape", Attr::Ints(a.to_vec())).with("b_shape", Attr::Ints(b.to_vec()));
        let unsigned = |s: &[i64]| s.iter().map(|d| *d as u64).collect::<Vec<_>>();
        let n = plan_native::broadcast_shape(&unsigned(a), &unsigned(b)).map_or(0, |y| y.iter().product());
        cases.push(CaseSpec { dims: vec![n], attrs, fill: Fill::Uniform });
    }
    cases
}
