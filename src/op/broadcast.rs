//! Functions of two numbers: with broadcasting, with a scalar, in place.  Each is a row over the templates of its form.

use crate::base::{
    Attr, AttrDecl, AttrType, Attrs, Case, Code, Cost, DType, Error, Exact, Fill, HostTensor, Result, host,
};
use crate::kernel::cpu::broadcast as cpu;
use crate::kernel::cpu::broadcast::{Binary, Integers};
use crate::kernel::cpu::math::Real;
use crate::kernel::cpu::simd::Style;
use crate::kernel::cpu::whole::Whole;
use crate::kernel::plan_native::{SCALAR, broadcast, scalar_of};
use crate::kernel::{Body, Kernel, Needs, plan_c, plan_native, plan_wgsl};

use super::elementwise::{
    C_TEXT, FLAT, NO_VECTORS, NUMBERS, UNEVEN, VECTORS, VECTORS_TEXT, WGSL_NO_SHORT, WGSL_NUMBERS, WGSL_TEXT,
    flat_cases,
};
use super::{
    Binding, CaseSpec, Family, Gap, Grad, OpDesc, Operand, Range, Reference, Role, ShapeClass, Tier, Tolerance, Unit,
};

const WGSL_BINARY: &str = include_str!("../../kernels/broadcast.wgsl");
const NO_RULE: &str = "the rule sums over broadcast axes of several ranks, which sum does not offer yet";
const NO_SCALAR_RULE: &str = "gradient rules are not written yet";
/// pow leaves out f64.
const WGSL_POW: &[DType] = &[DType::F32, DType::F16, DType::BF16, DType::I32, DType::I64, DType::U32, DType::U64];
const WGSL_POW_WHY: &str = "WGSL has no 8- and 16-bit integers, and SPIR-V's extended instructions no pow in f64";

/// Ops of this file, in the order in which they are listed.
pub(super) static OPS: &[&OpDesc] = &[
    &ADD,
    &SUB,
    &MUL,
    &DIV,
    &POW,
    &MAXIMUM,
    &MINIMUM,
    &ACCUMULATE,
    &ADD_SCALAR,
    &SUB_SCALAR,
    &RSUB_SCALAR,
    &MUL_SCALAR,
    &DIV_SCALAR,
    &RDIV_SCALAR,
    &POW_SCALAR,
];

/// A function of two numbers as the oracle knows it.
#[derive(Clone, Copy)]
struct Rule {
    value: fn(Exact, Exact) -> Exact,
    /// What the tolerance's limit refers to (see [`Reference::scale`]).
    scale: fn(Exact, Exact) -> f64,
}

impl Rule {
    fn point(self, case: &Case, a: Exact, b: Exact) -> (Exact, f64) {
        ((self.value)(a, b).wrap(case.dtype), (self.scale)(a, b))
    }
}

/// The sum of magnitudes.
fn both(a: Exact, b: Exact) -> f64 {
    a.abs_f64() + b.abs_f64()
}

/// Declares the CPU's form of a function of two numbers.
macro_rules! function {
    ($id:ident, $integers:ident, real |$a:ident, $b:ident| $real:expr, whole $whole:expr $(, but $leaves:expr)?) => {
        #[derive(Clone, Copy)]
        struct $id;
        impl Binary for $id {
            const INTEGERS: Integers = Integers::$integers;
            #[inline(always)]
            fn real<S: Style, R: Real>($a: R, $b: R) -> R {
                $real
            }
            $(
                const LEAVES_OUT: bool = true;
                const WORK: usize = 80;
                #[inline(always)]
                fn one_by_one<S: Style, R: Real>() -> bool {
                    !S::FMA || R::WIDE
                }
                #[inline(always)]
                fn leaves_out<R: Real>($a: R, $b: R) -> bool {
                    $leaves
                }
            )?
            #[inline(always)]
            fn whole<T: Whole>($a: T, $b: T) -> T {
                $whole
            }
        }
    };
}

function!(Add, SameBits, real |a, b| a + b, whole a.add(b));
function!(Sub, SameBits, real |a, b| a - b, whole a.sub(b));
function!(Mul, SameBits, real |a, b| a * b, whole a.mul(b));
function!(Div, Each, real |a, b| a / b, whole a.div(b));
function!(Pow, Each, real |a, b| a.pow::<S>(b), whole a.power(b), but a.is_odd_power(b));
#[rustfmt::skip]
function!(Max, Each, real |a, b| if a >= b || a.is_unordered() { a } else { b }, whole if a >= b { a } else { b });
#[rustfmt::skip]
function!(Min, Each, real |a, b| if a <= b || a.is_unordered() { a } else { b }, whole if a <= b { a } else { b });

const ADD_RULE: Rule = Rule { value: Exact::add, scale: both };
const SUB_RULE: Rule = Rule { value: |a, b| a.add(b.neg()), scale: both };
const MUL_RULE: Rule = Rule { value: Exact::mul, scale: both };
const DIV_RULE: Rule = Rule {
    value: |a, b| match (a, b) {
        (_, Exact::I(0)) => a,
        (Exact::I(a), Exact::I(b)) => Exact::I(a / b),
        _ => a.div(b),
    },
    scale: |_, b| b.abs_f64(),
};
const POW_RULE: Rule = Rule {
    value: |a, b| match (a, b) {
        (Exact::I(a), Exact::I(b)) => Exact::I(Exact::int_pow(a, b)),
        _ => a.pow(b),
    },
    // |b| max(1, |log2 a|): how an error of the logarithm grows in the exponent.
    scale: |a, b| b.abs_f64() * a.abs_f64().log2().abs().max(1.0),
};
const MAX_RULE: Rule = Rule { value: |a, b| chosen(a, b, |a, b| a >= b), scale: both };
const MIN_RULE: Rule = Rule { value: |a, b| chosen(a, b, |a, b| a <= b), scale: both };

/// NaN if there is one, else the first operand if it is the better or equal.
fn chosen(a: Exact, b: Exact, better: fn(f64, f64) -> bool) -> Exact {
    let first = match (a, b) {
        // Integers beyond 2^53 are told apart by their difference.
        (Exact::I(a), Exact::I(b)) => better((a - b) as f64, 0.0),
        _ => a.to_f64().is_nan() || !b.to_f64().is_nan() && better(a.to_f64(), b.to_f64()),
    };
    if first { a } else { b }
}

const NUMERIC: Range = Range(-100.0, 100.0);
const GAPS: &[Gap] = &[
    UNEVEN,
    Gap::Shape(ShapeClass::ManyGroups, "same text as reciprocal in C; WGSL's groups beyond 65,535 are in accumulate"),
];

/// Declares a function of two numbers with broadcasting.
macro_rules! binary_op {
    ($id:ident $name:literal onnx $onnx:literal $doc:literal, $f:ident, $rule:expr, c $c:literal, wgsl $wgsl:literal on $wd:expr,
     why $why:expr, $tolerance:expr, over $a:expr, $b:expr) => {
        static $id: OpDesc = OpDesc {
            name: $name,
            doc: $doc,
            tier: 1,
            onnx: Some($onnx),
            dims: &["n"],
            // Broadcast operands move fewer bytes, so their crossing is their own; `sweep` has no shapes for them.
            families: &[Family {
                name: "same",
                doc: "both operands of one shape",
                matches: |c| c.attrs.is_empty(),
                sweep: |n| vec![n],
            }],
            unit: Unit::Elements,
            work: |c| u128::from(c.dim("n")),
            attrs: BROADCAST_ATTRS,
            dtypes: NUMBERS,
            operands: &[Operand::input("a"), Operand::input("b"), Operand::output("y")],
            shapes: binary_shapes,
            bind: bind_binary,
            cost: binary_cost,
            oracle: |c, x| binary_oracle(c, x, $rule),
            element: Some(|c, x, _, i| binary_element(c, x, i, $rule)),
            whole: None,
            tolerance: $tolerance,
            domain: &[$a, $b],
            grad: Grad::None(NO_RULE),
            kernels: &binary_kernels::<$f>($c, $wgsl, $wd, $why),
            cases: binary_cases,
            gaps: GAPS,
        };
    };
}

binary_op!(ADD "add" onnx "Add" "y = a + b with NumPy's broadcasting; integers wrap.", Add, ADD_RULE,
    c "N_ADD(x, b)", wgsl "x + b" on WGSL_NUMBERS, why WGSL_NO_SHORT, Tolerance::Rounded, over NUMERIC, NUMERIC);
binary_op!(SUB "sub" onnx "Sub" "y = a - b with NumPy's broadcasting; integers wrap.", Sub, SUB_RULE,
    c "N_SUB(x, b)", wgsl "x - b" on WGSL_NUMBERS, why WGSL_NO_SHORT, Tolerance::Rounded, over NUMERIC, NUMERIC);
binary_op!(MUL "mul" onnx "Mul" "y = a · b with NumPy's broadcasting; integers wrap.", Mul, MUL_RULE,
    c "N_MUL(x, b)", wgsl "x * b" on WGSL_NUMBERS, why WGSL_NO_SHORT, Tolerance::Rounded, over NUMERIC, NUMERIC);
binary_op!(DIV "div" onnx "Div"
    "y = a / b with NumPy's broadcasting; integers truncate, x / 0 is x and the smallest integer / -1 is itself.", Div, DIV_RULE,
    c "N_DIV(x, b)", wgsl "x / b" on WGSL_NUMBERS, why WGSL_NO_SHORT, Tolerance::Function("divide"), over NUMERIC, Range(-8.0, 8.0));
binary_op!(POW "pow" onnx "Pow"
    "y = a^b with NumPy's broadcasting, special values as in C99; integers wrap, a negative exponent gives 0 unless |a| is 1, 0^0 is 1.",
    Pow, POW_RULE, c "N_POW(x, b)", wgsl "n_pow(x, b)" on WGSL_POW, why WGSL_POW_WHY, Tolerance::Function("pow"),
    over Range(-8.0, 8.0), Range(-4.0, 4.0));
binary_op!(MAXIMUM "maximum" onnx "Max" "y = the larger of a and b with NumPy's broadcasting; NaN if either is NaN, of equal numbers a.",
    Max, MAX_RULE, c "N_MAX(x, b)", wgsl "n_max(x, b)" on WGSL_NUMBERS, why WGSL_NO_SHORT, Tolerance::Selected, over NUMERIC, NUMERIC);
binary_op!(MINIMUM "minimum" onnx "Min" "y = the smaller of a and b with NumPy's broadcasting; NaN if either is NaN, of equal numbers a.",
    Min, MIN_RULE, c "N_MIN(x, b)", wgsl "n_min(x, b)" on WGSL_NUMBERS, why WGSL_NO_SHORT, Tolerance::Selected, over NUMERIC, NUMERIC);

const BROADCAST_ATTRS: &[AttrDecl] = &[
    AttrDecl { name: "a_shape", kind: AttrType::Ints, doc: "shape of a, if not [n]" },
    AttrDecl { name: "b_shape", kind: AttrType::Ints, doc: "shape of b, if not [n]; a scalar is 1" },
];

/// Parts that all kernels of this file share.
const BASE: Kernel = Kernel {
    variant: "simd",
    body: Body::C(C_TEXT),
    dtypes: NUMBERS,
    dtypes_why: "",
    expr: "",
    needs: Needs::NONE,
    only_when_named: false,
    plan: plan_native::binary,
};

/// For devices that are processors.
const fn vectors<B: Binary>() -> Kernel {
    let dtypes: &[DType] = if B::WORK == 0 { VECTORS } else { &[] };
    Kernel { variant: "cpu-vectors", body: Body::Opencl(VECTORS_TEXT), dtypes, dtypes_why: NO_VECTORS, ..BASE }
}

const fn binary_kernels<B: Binary>(
    c: &'static str,
    wgsl: &'static str,
    wgsl_dtypes: &'static [DType],
    dtypes_why: &'static str,
) -> [Kernel; 5] {
    let text = Kernel { variant: "flat", dtypes: wgsl_dtypes, dtypes_why, ..BASE };
    [
        Kernel { expr: c, plan: plan_c::binary_vectors, ..vectors::<B>() },
        Kernel { variant: "flat", expr: c, plan: plan_c::binary, ..BASE },
        Kernel { body: Body::Wgsl(WGSL_BINARY), expr: wgsl, plan: plan_wgsl::binary, ..text },
        Kernel { body: Body::Native(cpu::binary::<B>), ..BASE },
        Kernel { variant: "naive", body: Body::Native(cpu::binary_naive::<B>), only_when_named: true, ..BASE },
    ]
}

fn binary_shapes(case: &Case) -> Result<Vec<Vec<u64>>> {
    let b = broadcast(case)?;
    Ok(vec![b.a_shape, b.b_shape, b.y_shape])
}

fn bind_binary(shapes: &[Vec<u64>], _: &Attrs) -> Result<Binding> {
    let [a, b] = shapes else {
        return Err(Error::new(Code::ShapeMismatch, format!("{} operands given, 2 are expected", shapes.len())));
    };
    if a == b {
        return Ok(Binding { dims: vec![host::count(a)?], attrs: Attrs::new(), results: vec![a.clone()] });
    }
    let y = plan_native::broadcast_shape(a, b)?;
    // A scalar operand is written as the shape 1, which broadcasts alike.
    let list = |s: &[u64]| Attr::Ints(if s.is_empty() { vec![1] } else { s.iter().map(|d| *d as i64).collect() });
    let attrs = Attrs::new().with("a_shape", list(a)).with("b_shape", list(b));
    Ok(Binding { dims: vec![host::count(&y)?], attrs, results: vec![y] })
}

fn binary_cost(case: &Case) -> Cost {
    let n = case.dim("n");
    let size = case.dtype.size();
    let count = |shape: &[u64]| shape.iter().fold(1u64, |all, d| all.saturating_mul(*d));
    let read = broadcast(case).map_or(n.saturating_mul(2), |b| count(&b.a_shape).saturating_add(count(&b.b_shape)));
    Cost { flops: n, read: read.saturating_mul(size), written: n.saturating_mul(size) }
}

/// Where the operands of result number `i` lie: coordinates in the full shapes, aligned at the last axis. Shares nothing
/// with the collapsed strides of the kernels.
fn places(shapes: &[Vec<u64>], i: u64) -> (u64, u64) {
    let [a, b, y] = shapes else { return (0, 0) };
    let (mut rest, mut at, mut steps) = (i, [0, 0], [1, 1]);
    for (k, extent) in y.iter().rev().enumerate() {
        let coordinate = rest % extent;
        rest /= extent;
        for (operand, s) in [a, b].into_iter().enumerate() {
            let own = s.len().checked_sub(k + 1).map_or(1, |axis| s[axis]);
            at[operand] += steps[operand] * if own == 1 { 0 } else { coordinate };
            steps[operand] *= own;
        }
    }
    (at[0], at[1])
}

fn binary_oracle(case: &Case, x: &[Vec<Exact>], rule: Rule) -> Vec<Reference> {
    let shapes = binary_shapes(case).unwrap_or_default();
    let total = shapes.last().map_or(0, |y| y.iter().product());
    let point = |i| {
        let (a, b) = places(&shapes, i);
        rule.point(case, x[0][a as usize], x[1][b as usize])
    };
    let (values, scale) = (0..total).map(point).unzip();
    vec![Reference { values, scale }]
}

fn binary_element(case: &Case, x: &[HostTensor], i: u64, rule: Rule) -> (Exact, f64) {
    let (a, b) = places(&binary_shapes(case).unwrap_or_default(), i);
    rule.point(case, Exact::read(&x[0], a), Exact::read(&x[1], b))
}

/// Every alignment of axes (requirements C3.5): operands of one shape are among the flat cases.
const GRID: &[(&[i64], &[i64])] = &[
    // Scalar, last axis, channel, two-sided, rank extension.
    (&[33, 65], &[1]),
    (&[33, 65], &[65]),
    (&[2, 3, 5, 7], &[1, 3, 1, 1]),
    (&[33, 1], &[1, 17]),
    (&[3], &[4, 5, 3]),
    (&[33, 1], &[33, 65]),
    // The same with the operands exchanged, rows and columns, leading and middle axes.
    (&[1], &[129]),
    (&[65], &[33, 65]),
    (&[1, 3, 1, 1], &[2, 3, 5, 7]),
    (&[1, 17], &[33, 1]),
    (&[5, 4, 3], &[4, 3]),
    (&[33, 65], &[33, 1]),
    (&[33, 65], &[1, 65]),
    (&[5, 4, 3], &[5, 1, 1]),
    (&[5, 4, 3], &[1, 4, 1]),
    (&[1, 4, 1], &[5, 4, 3]),
    (&[5, 1, 3], &[1, 4, 1]),
    (&[2, 1, 5, 1], &[1, 3, 1, 7]),
    (&[1, 3, 1, 7], &[2, 1, 5, 1]),
    (&[2, 3, 4, 5, 6], &[3, 1, 5, 6]),
    // Extents of 1 and 0, operands of one shape and several axes, rows longer than a block of the CPU's.
    (&[1, 1, 5], &[5, 1, 1]),
    (&[1, 1], &[1]),
    (&[0, 4], &[4]),
    (&[3, 1], &[1, 0]),
    (&[4, 5, 3], &[4, 5, 3]),
    (&[2, 9001], &[2, 1]),
];

fn binary_cases(tier: Tier) -> Vec<CaseSpec> {
    let flat = |n, fill| CaseSpec { dims: vec![n], attrs: Attrs::new(), fill };
    let mut cases = vec![
        flat(0, Fill::Uniform),
        flat(1, Fill::Uniform),
        flat(257, Fill::Uniform),
        flat(1000, Fill::Special),
        flat(1000, Fill::Wide),
        flat(1025, Fill::Integer),
    ];
    if tier == Tier::Full {
        cases.extend([2, 31, 32, 33, 255, 256, 1023, 600_011].map(|n| flat(n, Fill::Uniform)));
        cases.extend([
            flat(4099, Fill::Special),
            flat(4099, Fill::Wide),
            flat(257, Fill::Positive),
            flat(257, Fill::Constant),
            flat(258, Fill::Cancelling),
            flat(33, Fill::Onehot),
        ]);
    }
    let grid = if tier == Tier::Full { GRID } else { &GRID[..6] };
    cases.extend(grid.iter().map(|(a, b)| broadcast_case(a, b)));
    cases
}

fn broadcast_case(a: &[i64], b: &[i64]) -> CaseSpec {
    let attrs = Attrs::new().with("a_shape", Attr::Ints(a.to_vec())).with("b_shape", Attr::Ints(b.to_vec()));
    let unsigned = |s: &[i64]| s.iter().map(|d| *d as u64).collect::<Vec<_>>();
    let n = plan_native::broadcast_shape(&unsigned(a), &unsigned(b)).map_or(0, |y| y.iter().product());
    CaseSpec { dims: vec![n], attrs, fill: Fill::Uniform }
}

const FLOATS: &[DType] = &[DType::F32, DType::F64, DType::F16, DType::BF16];

static ACCUMULATE: OpDesc = OpDesc {
    name: "accumulate",
    doc: "a = a + b in place; operands of one shape, b before a.",
    tier: 1,
    onnx: None,
    dims: &["n"],
    families: FLAT,
    unit: Unit::Elements,
    work: |c| u128::from(c.dim("n")),
    attrs: &[],
    dtypes: FLOATS,
    operands: &[Operand::input("b"), Operand { role: Role::InOut, ..Operand::input("a") }],
    shapes: |c| Ok(vec![vec![c.dim("n")]; 2]),
    bind: bind_accumulate,
    cost: |c| {
        let bytes = c.dim("n").saturating_mul(c.dtype.size());
        Cost { flops: c.dim("n"), read: bytes.saturating_mul(2), written: bytes }
    },
    oracle: |c, x| {
        let sums = x[0].iter().zip(&x[1]).map(|(b, a)| ADD_RULE.point(c, *a, *b));
        let (values, scale) = sums.unzip();
        vec![Reference { values, scale }]
    },
    element: Some(|c, x, _, i| ADD_RULE.point(c, Exact::read(&x[1], i), Exact::read(&x[0], i))),
    whole: None,
    tolerance: Tolerance::Rounded,
    domain: &[NUMERIC, NUMERIC],
    grad: Grad::None("it writes over its operand, which a tape must not do"),
    kernels: &[
        Kernel { variant: "flat", dtypes: FLOATS, expr: "N_ADD(x, b)", plan: plan_c::accumulate, ..BASE },
        Kernel {
            variant: "flat",
            body: Body::Wgsl(WGSL_BINARY),
            dtypes: FLOATS,
            expr: "x + b",
            plan: plan_wgsl::accumulate,
            ..BASE
        },
        Kernel { body: Body::Native(cpu::accumulate::<Add>), dtypes: FLOATS, plan: plan_native::accumulate, ..BASE },
        Kernel {
            variant: "naive",
            body: Body::Native(cpu::accumulate_naive::<Add>),
            dtypes: FLOATS,
            only_when_named: true,
            plan: plan_native::accumulate,
            ..BASE
        },
    ],
    cases: accumulate_cases,
    gaps: GAPS,
};

/// In full also more elements than 65,535 groups of WGSL's take, f16 and bf16 two to a work-item, in at most 128 MiB.
fn accumulate_cases(tier: Tier) -> Vec<CaseSpec> {
    let mut cases = flat_cases(tier);
    if tier == Tier::Full {
        cases.push((33_554_431, Fill::Uniform));
    }
    cases.into_iter().map(|(n, fill)| CaseSpec { dims: vec![n], attrs: Attrs::new(), fill }).collect()
}

fn bind_accumulate(shapes: &[Vec<u64>], _: &Attrs) -> Result<Binding> {
    match shapes {
        [b, a] if a == b => Ok(Binding { dims: vec![host::count(a)?], attrs: Attrs::new(), results: vec![a.clone()] }),
        [b, a] => Err(Error::new(Code::ShapeMismatch, format!("b has shape {b:?}, a has {a:?}; they must be equal"))),
        _ => Err(Error::new(Code::ShapeMismatch, format!("{} operands given, 2 are expected", shapes.len()))),
    }
}

/// Declares a function of one number and a scalar; `first`: the scalar is the first operand.
macro_rules! scalar_op {
    ($id:ident $name:literal $doc:literal, $f:ident, $rule:expr, c $c:literal, wgsl $wgsl:literal on $wd:expr, why $why:expr,
     $tolerance:expr, over $x:expr, first $first:literal) => {
        static $id: OpDesc = OpDesc {
            name: $name,
            doc: $doc,
            tier: 1,
            onnx: None,
            dims: &["n"],
            families: FLAT,
            unit: Unit::Elements,
            work: |c| u128::from(c.dim("n")),
            attrs: &[AttrDecl {
                name: "scalar",
                kind: AttrType::Float(SCALAR),
                doc: "the scalar; cast to the dtype, out of its range is an error",
            }],
            dtypes: NUMBERS,
            operands: &[Operand::input("x"), Operand::output("y")],
            shapes: |c| scalar_of(c).map(|_| vec![vec![c.dim("n")]; 2]),
            bind: bind_scalar,
            cost: |c| {
                let bytes = c.dim("n").saturating_mul(c.dtype.size());
                Cost { flops: c.dim("n"), read: bytes, written: bytes }
            },
            oracle: |c, x| scalar_oracle(c, &x[0], $rule, $first),
            element: Some(|c, x, _, i| scalar_point(c, Exact::read(&x[0], i), scalar_exact(c), $rule, $first)),
            whole: None,
            tolerance: $tolerance,
            domain: &[$x],
            grad: Grad::None(NO_SCALAR_RULE),
            kernels: &scalar_kernels::<$f>($c, $wgsl, $wd, $why, $first),
            cases: scalar_cases,
            gaps: GAPS,
        };
    };
}

scalar_op!(ADD_SCALAR "add_scalar" "y = x + scalar; integers wrap.", Add, ADD_RULE, c "N_ADD(x, b)", wgsl "x + b" on WGSL_NUMBERS,
    why WGSL_NO_SHORT, Tolerance::Rounded, over NUMERIC, first false);
scalar_op!(SUB_SCALAR "sub_scalar" "y = x - scalar; integers wrap.", Sub, SUB_RULE, c "N_SUB(x, b)", wgsl "x - b" on WGSL_NUMBERS,
    why WGSL_NO_SHORT, Tolerance::Rounded, over NUMERIC, first false);
scalar_op!(RSUB_SCALAR "rsub_scalar" "y = scalar - x; integers wrap.", Sub, SUB_RULE, c "N_SUB(x, b)", wgsl "x - b" on WGSL_NUMBERS,
    why WGSL_NO_SHORT, Tolerance::Rounded, over NUMERIC, first true);
scalar_op!(MUL_SCALAR "mul_scalar" "y = x · scalar; integers wrap.", Mul, MUL_RULE, c "N_MUL(x, b)", wgsl "x * b" on WGSL_NUMBERS,
    why WGSL_NO_SHORT, Tolerance::Rounded, over NUMERIC, first false);
scalar_op!(DIV_SCALAR "div_scalar" "y = x / scalar; integers truncate, x / 0 is x and the smallest integer / -1 is itself.",
    Div, DIV_RULE, c "N_DIV(x, b)", wgsl "x / b" on WGSL_NUMBERS, why WGSL_NO_SHORT, Tolerance::Function("divide"), over NUMERIC, first false);
scalar_op!(RDIV_SCALAR "rdiv_scalar" "y = scalar / x; integers truncate, scalar / 0 is the scalar and the smallest integer / -1 is itself.",
    Div, DIV_RULE, c "N_DIV(x, b)", wgsl "x / b" on WGSL_NUMBERS, why WGSL_NO_SHORT, Tolerance::Function("divide"), over NUMERIC, first true);
scalar_op!(POW_SCALAR "pow_scalar"
    "y = x^scalar, special values as in C99; integers wrap, a negative exponent gives 0 unless |x| is 1, 0^0 is 1.",
    Pow, POW_RULE, c "N_POW(x, b)", wgsl "n_pow(x, b)" on WGSL_POW, why WGSL_POW_WHY, Tolerance::Function("pow"),
    over Range(-8.0, 8.0), first false);

const fn scalar_kernels<B: Binary>(
    c: &'static str,
    wgsl: &'static str,
    wgsl_dtypes: &'static [DType],
    dtypes_why: &'static str,
    first: bool,
) -> [Kernel; 5] {
    let native = Kernel { plan: plan_native::scalar, ..BASE };
    let naive = Kernel { variant: "naive", only_when_named: true, ..native };
    let flat = Kernel { variant: "flat", expr: c, ..BASE };
    let text = Kernel { body: Body::Wgsl(WGSL_TEXT), dtypes: wgsl_dtypes, dtypes_why, expr: wgsl, ..flat };
    if first {
        return [
            Kernel { expr: c, plan: plan_c::scalar_first_vectors, ..vectors::<B>() },
            Kernel { plan: plan_c::scalar_first, ..flat },
            Kernel { plan: plan_wgsl::scalar_first, ..text },
            Kernel { body: Body::Native(cpu::scalar_first::<B>), ..native },
            Kernel { body: Body::Native(cpu::scalar_first_naive::<B>), ..naive },
        ];
    }
    [
        Kernel { expr: c, plan: plan_c::scalar_vectors, ..vectors::<B>() },
        Kernel { plan: plan_c::scalar, ..flat },
        Kernel { plan: plan_wgsl::scalar, ..text },
        Kernel { body: Body::Native(cpu::scalar::<B>), ..native },
        Kernel { body: Body::Native(cpu::scalar_naive::<B>), ..naive },
    ]
}

fn bind_scalar(shapes: &[Vec<u64>], attrs: &Attrs) -> Result<Binding> {
    let [x] = shapes else {
        return Err(Error::new(Code::ShapeMismatch, format!("{} operands given, 1 is expected", shapes.len())));
    };
    Ok(Binding { dims: vec![host::count(x)?], attrs: attrs.clone(), results: vec![x.clone()] })
}

/// The scalar as every kernel gets it. NaN for one that `shapes` has refused.
fn scalar_exact(case: &Case) -> Exact {
    let s = scalar_of(case).unwrap_or(f64::NAN);
    if case.dtype.is_float() { Exact::f(s) } else { Exact::I(s as i128) }
}

fn scalar_point(case: &Case, x: Exact, s: Exact, rule: Rule, first: bool) -> (Exact, f64) {
    if first { rule.point(case, s, x) } else { rule.point(case, x, s) }
}

fn scalar_oracle(case: &Case, x: &[Exact], rule: Rule, first: bool) -> Vec<Reference> {
    let s = scalar_exact(case);
    let (values, scale) = x.iter().map(|x| scalar_point(case, *x, s, rule, first)).unzip();
    vec![Reference { values, scale }]
}

/// Scalars that not every dtype holds (fractions, negative and large numbers) are cases of those that do
/// ([`OpDesc::specs`]).
fn scalar_cases(tier: Tier) -> Vec<CaseSpec> {
    let with = |n, s: f64, fill| CaseSpec { dims: vec![n], attrs: Attrs::new().with("scalar", Attr::Float(s)), fill };
    let mut cases = vec![
        with(0, 2.0, Fill::Uniform),
        with(1, 3.0, Fill::Uniform),
        with(257, 2.0, Fill::Uniform),
        with(1000, 3.0, Fill::Special),
        with(1000, -1.0, Fill::Special),
        with(1000, 0.0, Fill::Integer),
        with(1025, 0.1, Fill::Uniform),
        with(1000, 0.5, Fill::Special),
        with(1025, 2.0, Fill::Wide),
        with(1025, -3.0, Fill::Uniform),
    ];
    if tier == Tier::Full {
        cases.extend([2, 31, 32, 33, 255, 256, 1023, 1_000_003].map(|n| with(n, 5.0, Fill::Uniform)));
        cases.extend([
            with(258, 100.0, Fill::Cancelling),
            with(33, 7.0, Fill::Onehot),
            with(257, 3.0, Fill::Constant),
            with(257, 3.0, Fill::Positive),
            with(1025, 1.0, Fill::Integer),
            with(1025, 3.0, Fill::Integer),
            with(1025, -2.0, Fill::Integer),
            with(1000, 0.0, Fill::Special),
            with(1000, 1.0, Fill::Special),
            with(1000, 127.0, Fill::Wide),
            with(1000, -128.0, Fill::Special),
            with(1000, 255.0, Fill::Special),
            with(1000, 60_000.0, Fill::Wide),
            with(1000, 2_147_483_648.0, Fill::Special),
            with(1000, 0.1, Fill::Special),
            with(1000, -2.25, Fill::Wide),
            with(1000, 1e-4, Fill::Wide),
        ]);
    }
    cases
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn maximum_propagates_nan_and_keeps_the_first_of_equals() {
        let (nan, zero, minus) = (Exact::f(f64::NAN), Exact::f(0.0), Exact::f(-0.0));
        let max = |a, b| (MAX_RULE.value)(a, b).to_f64();
        assert!(max(nan, zero).is_nan() && max(zero, nan).is_nan());
        assert!(max(minus, zero).is_sign_negative() && max(zero, minus).is_sign_positive());
        let (a, b) = (Exact::I(i128::from(u64::MAX)), Exact::I(i128::from(u64::MAX) - 1));
        assert_eq!(((MAX_RULE.value)(b, a), (MIN_RULE.value)(b, a)), (a, b), "beyond an f64's digits");
    }

    #[test]
    fn division_by_zero_gives_the_dividend() {
        let div = |a, b| (DIV_RULE.value)(Exact::I(a), Exact::I(b));
        assert_eq!((div(7, 0), div(-7, 2), div(-128, -1).wrap(DType::I8)), (Exact::I(7), Exact::I(-3), Exact::I(-128)));
    }

    #[test]
    fn places_follow_numpys_alignment() {
        let shapes = [vec![3, 1, 2], vec![4, 1], vec![3, 4, 2]];
        // Result (2, 3, 1): a's (2, 0, 1), b's (3, 0).
        assert_eq!(places(&shapes, 2 * 8 + 3 * 2 + 1), (5, 3));
        assert_eq!(places(&[vec![], vec![2], vec![2]], 1), (0, 1));
    }

    #[test]
    fn a_scalar_out_of_range_is_refused_where_the_case_is_made() {
        let of = |dtype, s| ADD_SCALAR.case(dtype, &[4], Attrs::new().with("scalar", Attr::Float(s)), Fill::Uniform);
        assert!(of(DType::F32, 0.5).is_ok() && of(DType::I8, 127.0).is_ok());
        for (dtype, s) in [(DType::I8, 128.0), (DType::U64, -1.0), (DType::I32, 0.5), (DType::F16, 1e6)] {
            let e = of(dtype, s).unwrap_err();
            assert!(e.code() == Code::BadArgument && e.to_string().contains("scalar"), "{e}");
        }
    }
}
