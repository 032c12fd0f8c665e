//! Functions of one number: each is a row of names, expressions and an oracle over one template.

use crate::base::{Attrs, Case, Code, Cost, DType, Error, Exact, Fill, HostTensor, Result, host};
use crate::kernel::cpu::elementwise::{Unary, UnaryWhole, unary, unary_naive, unary_number, unary_number_naive};
use crate::kernel::cpu::math::Real;
use crate::kernel::cpu::simd::Style;
use crate::kernel::cpu::whole::Whole;
use crate::kernel::{Body, Kernel, NativeFn, Needs, plan_c, plan_native, plan_wgsl};

use super::{
    Binding, CaseSpec, Family, Gap, Grad, OpDesc, Operand, Range, Reference, ShapeClass, Tier, Tolerance, Unit,
};

pub(super) const C_TEXT: &str = include_str!("../../kernels/elementwise.c");
pub(super) const WGSL_TEXT: &str = include_str!("../../kernels/elementwise.wgsl");
pub(super) const VECTORS_TEXT: &str = include_str!("../../kernels/opencl/elementwise_vectors.cl");
const FLOATS: &[DType] = &[DType::F32, DType::F64, DType::F16, DType::BF16];
pub(super) const REAL: &[DType] = &[DType::F32, DType::F64];
/// What `VECTORS_TEXT` serves: arithmetic that takes no longer than memory does, on numbers that are stored as they are.
pub(super) const VECTORS: &[DType] = &[
    DType::F32,
    DType::F64,
    DType::I8,
    DType::I16,
    DType::I32,
    DType::I64,
    DType::U8,
    DType::U16,
    DType::U32,
    DType::U64,
];
pub(super) const NO_VECTORS: &str =
    "its arithmetic takes longer than memory does, or its numbers are not stored as they are (f16 and bf16)";
const WGSL_NO_F64: &str = "SPIR-V's extended instructions have no f64 form of the function";
pub(super) const WGSL_NO_SHORT: &str = "WGSL has no 8- and 16-bit integers";
const NO_RULE: &str = "gradient rules are not written yet";

/// Ops of this file, in the order in which they are listed.
pub(super) static OPS: &[&OpDesc] =
    &[&NEG, &ABS, &SIGN, &SQUARE, &RECIPROCAL, &SQRT, &EXP, &LOG, &SIN, &COS, &TAN, &TANH];

const OPERANDS: &[Operand] = &[Operand::input("x"), Operand::output("y")];

/// The dtypes N and H of the op catalogue, and the parts of them that some functions have.
pub(super) const NUMBERS: &[DType] = &DType::ALL;
const SIGNED: &[DType] =
    &[DType::F32, DType::F64, DType::F16, DType::BF16, DType::I8, DType::I16, DType::I32, DType::I64];
/// What WGSL holds of them.
pub(super) const WGSL_NUMBERS: &[DType] =
    &[DType::F32, DType::F64, DType::F16, DType::BF16, DType::I32, DType::I64, DType::U32, DType::U64];
const WGSL_FLOATS: &[DType] = &[DType::F32, DType::F16, DType::BF16];

/// The fields that every function of one number shares. Field by field in the callers' order: names and doc, dtypes,
/// oracle and its element, tolerance, range of data, operations per element, kernels, gaps.
#[allow(clippy::too_many_arguments, reason = "the fields of a record")]
const fn record(
    name: &'static str,
    onnx: Option<&'static str>,
    doc: &'static str,
    dtypes: &'static [DType],
    oracle: fn(&Case, &[Vec<Exact>]) -> Vec<Reference>,
    element: super::Element,
    tolerance: Tolerance,
    domain: &'static [Range],
    cost: fn(&Case) -> Cost,
    kernels: &'static [Kernel],
) -> OpDesc {
    OpDesc {
        name,
        doc,
        tier: 1,
        onnx,
        dims: &["n"],
        families: FLAT,
        unit: Unit::Elements,
        work: |c| u128::from(c.dim("n")),
        attrs: &[],
        dtypes,
        operands: OPERANDS,
        shapes: |c| Ok(vec![vec![c.dim("n")]; 2]),
        bind: bind_unary,
        cost,
        oracle,
        element: Some(element),
        whole: None,
        tolerance,
        domain,
        grad: Grad::None(NO_RULE),
        kernels,
        cases: unary_cases,
        gaps: GAPS,
    }
}

/// Declares a function of one float: expression on the CPU, in C, in WGSL; oracle; rule for its error.
macro_rules! unary_op {
    ($id:ident $name:literal onnx $onnx:literal $doc:literal, cpu |$x:ident| $body:expr $(, but $measure:ident above $most:ident $(=> $instead:expr)?)?
     $(, alone |$real:ident| $alone:expr)?, work $work:literal, c $c:literal, wgsl $wgsl:literal on $wd:expr, oracle $oracle:expr, $tolerance:expr, over $low:literal..$high:literal, flops $flops:literal) => {
        static $id: OpDesc = {
            #[derive(Clone, Copy)]
            struct F;
            impl Unary for F {
                #[inline(always)]
                fn apply<S: Style, R: Real>($x: R) -> R {
                    $body
                }
                const WORK: usize = $work;
                $(
                    #[inline(always)]
                    fn one_by_one<S: Style, $real: Real>() -> bool {
                        $alone
                    }
                )?
                $(
                    const LEAVES_OUT: bool = true;
                    #[inline(always)]
                    fn measure<R: Real>(x: R) -> R::Bits {
                        x.$measure()
                    }
                    #[inline(always)]
                    fn most<R: Real>() -> R::Bits {
                        R::$most
                    }
                    $(
                        const WHOLE: bool = true;
                        #[inline(always)]
                        fn instead<S: Style, R: Real>($x: R) -> R {
                            $instead
                        }
                    )?
                )?
            }
            record(
                $name,
                Some($onnx),
                $doc,
                FLOATS,
                |c, x| map_oracle(c, &x[0], $oracle),
                |c, x, _, i| one_oracle(c, x, i, $oracle),
                $tolerance,
                &[Range($low, $high)],
                |c| unary_cost(c, $flops),
                &unary_kernels(unary::<F>, unary_naive::<F>, FLOATS, &[], $c, $wgsl, $wd, WGSL_NO_F64),
            )
        };
    };
}

/// The same for a function that integers have, too; `same_bits` as in [`UnaryWhole`]. WGSL's f64 follows f32.
macro_rules! number_op {
    ($id:ident $name:literal onnx $onnx:expr, $doc:literal, on $dtypes:expr, cpu |$x:ident| $body:expr $(, work $work:literal)?,
     whole |$w:ident| $whole:expr, same_bits $same:literal, c $c:literal, wgsl $wgsl:literal,
     oracle $oracle:expr, $tolerance:expr, over $low:literal..$high:literal) => {
        static $id: OpDesc = {
            #[derive(Clone, Copy)]
            struct F;
            impl Unary for F {
                #[inline(always)]
                fn apply<S: Style, R: Real>($x: R) -> R {
                    $body
                }
                $(const WORK: usize = $work;)?
            }
            impl UnaryWhole for F {
                const SAME_BITS: bool = $same;
                #[inline(always)]
                fn whole<T: Whole>($w: T) -> T {
                    $whole
                }
            }
            const WIDE: &[DType] = if F::WORK == 0 { VECTORS } else { REAL };
            record(
                $name,
                $onnx,
                $doc,
                $dtypes,
                |c, x| map_oracle(c, &x[0], $oracle),
                |c, x, _, i| one_oracle(c, x, i, $oracle),
                $tolerance,
                &[Range($low, $high)],
                |c| unary_cost(c, 1),
                &unary_kernels(
                    unary_number::<F>,
                    unary_number_naive::<F>,
                    $dtypes,
                    WIDE,
                    $c,
                    $wgsl,
                    WGSL_NUMBERS,
                    WGSL_NO_SHORT,
                ),
            )
        };
    };
}

number_op!(NEG "neg" onnx Some("Neg"), "y = -x; the smallest integer stays itself.", on SIGNED,
    cpu |x| -x, whole |x| x.negate(), same_bits true, c "N_NEG(x)", wgsl "n_neg(x)",
    oracle Exact::neg, Tolerance::Exact, over -100.0..100.0);

number_op!(ABS "abs" onnx Some("Abs"), "y = |x|; the smallest integer stays itself.", on SIGNED,
    cpu |x| x.abs(), whole |x| x.magnitude(), same_bits false, c "N_ABS(x)", wgsl "n_abs(x)",
    oracle |x| if x.to_f64().is_sign_negative() { x.neg() } else { x }, Tolerance::Exact, over -100.0..100.0);

number_op!(SIGN "sign" onnx Some("Sign"), "y = 1, 0 or -1 as x is above, at or below 0; NaN stays NaN.", on NUMBERS,
    cpu |x| if x > R::of(0.0) { R::of(1.0) } else if x < R::of(0.0) { R::of(-1.0) } else if x.is_unordered() { x } else { R::of(0.0) },
    whole |x| x.signum(), same_bits false, c "N_SIGN(x)", wgsl "n_sign(x)",
    oracle |x| match x {
        Exact::I(v) => Exact::I(v.signum()),
        Exact::F(_) if x.to_f64().is_nan() => x,
        Exact::F(_) => Exact::f(f64::from(i8::from(x.to_f64() > 0.0) - i8::from(x.to_f64() < 0.0))),
    },
    Tolerance::Selected, over -100.0..100.0);

number_op!(SQUARE "square" onnx None, "y = x · x; integers wrap.", on NUMBERS,
    cpu |x| x * x, whole |x| x.mul(x), same_bits true, c "N_MUL(x, x)", wgsl "x * x",
    oracle |x| x.mul(x), Tolerance::Rounded, over -100.0..100.0);

number_op!(SQRT "sqrt" onnx Some("Sqrt"),
    "y = square root of x; integers are rounded down; of a negative number NaN, of a negative integer 0.", on NUMBERS,
    cpu |x| x.sqrt(), work 30, whole |x| x.root(), same_bits false, c "N_ROOT(x)", wgsl "n_sqrt(x)",
    oracle |x| match x {
        Exact::I(v) => Exact::I(v.max(0).isqrt()),
        Exact::F(_) => x.sqrt(),
    },
    Tolerance::Function("sqrt"), over -1.0..100.0);

static RECIPROCAL: OpDesc = {
    #[derive(Clone, Copy)]
    struct F;
    impl Unary for F {
        #[inline(always)]
        fn apply<S: Style, R: Real>(x: R) -> R {
            R::of(1.0) / x
        }
        const WORK: usize = 30;
    }
    OpDesc {
        // One op of this text has a launch of more than 65,535 groups.
        cases: reciprocal_cases,
        gaps: &[UNEVEN],
        ..record(
            "reciprocal",
            Some("Reciprocal"),
            "y = 1 / x, elementwise.",
            FLOATS,
            |c, x| map_oracle(c, &x[0], |x| Exact::f(1.0).div(x)),
            |c, x, _, i| one_oracle(c, x, i, |x| Exact::f(1.0).div(x)),
            Tolerance::Function("divide"),
            &[Range(-4.0, 4.0)],
            |c| unary_cost(c, 1),
            &unary_kernels(unary::<F>, unary_naive::<F>, FLOATS, REAL, "(ACC)1 / (x)", "{{ACC}}(1) / x", FLOATS, ""),
        )
    }
};

unary_op!(EXP "exp" onnx "Exp" "y = e^x, elementwise.",
    cpu |x| x.exp_near::<S>(), but magnitude above NEAR => x.exp::<S>(), work 20, c "exp(x)", wgsl "exp(x)" on WGSL_FLOATS,
    oracle Exact::exp, Tolerance::Function("exp"), over -10.0..10.0, flops 1);

unary_op!(LOG "log" onnx "Log" "y = natural logarithm of x; -infinity at 0, NaN below.",
    cpu |x| x.ln_normal::<S>(), but above_least above FINITE => x.ln::<S>(), alone |R| !S::FMA || R::WIDE, work 20, c "log(x)", wgsl "log(x)" on WGSL_FLOATS,
    oracle Exact::log, Tolerance::Function("log"), over 0.0..10.0, flops 1);

unary_op!(SIN "sin" onnx "Sin" "y = sine of x in radians; of an infinity NaN.",
    cpu |x| x.sin::<S>(), but magnitude above ANGLE, alone |R| !S::FMA || R::WIDE, work 20, c "sin(x)", wgsl "sin(x)" on WGSL_FLOATS,
    oracle Exact::sin, Tolerance::Function("sin"), over -3.0..3.0, flops 1);

unary_op!(COS "cos" onnx "Cos" "y = cosine of x in radians; of an infinity NaN.",
    cpu |x| x.cos::<S>(), but magnitude above ANGLE, alone |R| !S::FMA || R::WIDE, work 20, c "cos(x)", wgsl "cos(x)" on WGSL_FLOATS,
    oracle Exact::cos, Tolerance::Function("cos"), over -3.0..3.0, flops 1);

unary_op!(TAN "tan" onnx "Tan" "y = tangent of x in radians; of an infinity NaN.",
    cpu |x| x.tan(), alone |R| true, work 500, c "tan(x)", wgsl "tan(x)" on WGSL_FLOATS,
    oracle Exact::tan, Tolerance::Function("tan"), over -3.0..3.0, flops 1);

// In C, tanh x = x where x² is below the last place of every dtype: PoCL 3.1 doubles f64's subnormals.
unary_op!(TANH "tanh" onnx "Tanh" "y = hyperbolic tangent of x.",
    cpu |x| x.tanh::<S>(), work 20, c "(x) * (x) < (ACC)1e-16 ? (x) : tanh(x)", wgsl "tanh(x)" on WGSL_FLOATS,
    oracle Exact::tanh, Tolerance::Function("tanh"), over -5.0..5.0, flops 1);

/// One family: elementwise cost depends on the number of elements alone.
pub(super) const FLAT: &[Family] =
    &[Family { name: "all", doc: "any number of elements", matches: |_| true, sweep: |n| vec![n] }];

/// Kernels of a function of one number: the native one and its textbook form, the expressions in C, those of `vectors` past the
/// caches of processors, and in WGSL.
#[allow(clippy::too_many_arguments, reason = "the fields of a record")]
const fn unary_kernels(
    native: NativeFn,
    naive: NativeFn,
    dtypes: &'static [DType],
    vectors: &'static [DType],
    c: &'static str,
    wgsl: &'static str,
    wgsl_dtypes: &'static [DType],
    wgsl_why: &'static str,
) -> [Kernel; 5] {
    let base = Kernel {
        variant: "simd",
        body: Body::Native(native),
        dtypes,
        dtypes_why: "",
        expr: "",
        needs: Needs::NONE,
        only_when_named: false,
        plan: plan_native::unary,
    };
    [
        Kernel {
            variant: "cpu-vectors",
            body: Body::Opencl(VECTORS_TEXT),
            dtypes: vectors,
            dtypes_why: NO_VECTORS,
            expr: c,
            plan: plan_c::unary_vectors,
            ..base
        },
        Kernel { variant: "flat", body: Body::C(C_TEXT), expr: c, plan: plan_c::unary, ..base },
        Kernel {
            variant: "flat",
            body: Body::Wgsl(WGSL_TEXT),
            expr: wgsl,
            dtypes: wgsl_dtypes,
            dtypes_why: wgsl_why,
            plan: plan_wgsl::unary,
            ..base
        },
        base,
        Kernel { variant: "naive", body: Body::Native(naive), only_when_named: true, ..base },
    ]
}

fn bind_unary(shapes: &[Vec<u64>], _: &Attrs) -> Result<Binding> {
    let [x] = shapes else {
        return Err(Error::new(Code::ShapeMismatch, format!("{} operands given, 1 is expected", shapes.len())));
    };
    Ok(Binding { dims: vec![host::count(x)?], attrs: Attrs::new(), results: vec![x.clone()] })
}

fn unary_cost(case: &Case, flops: u64) -> Cost {
    let n = case.dim("n");
    let bytes = n.saturating_mul(case.dtype.size());
    Cost { flops: n.saturating_mul(flops), read: bytes, written: bytes }
}

/// The exact value, and |x|.
fn point(case: &Case, x: Exact, f: fn(Exact) -> Exact) -> (Exact, f64) {
    (f(x).wrap(case.dtype), x.abs_f64())
}

fn map_oracle(case: &Case, x: &[Exact], f: fn(Exact) -> Exact) -> Vec<Reference> {
    let (values, scale) = x.iter().map(|v| point(case, *v, f)).unzip();
    vec![Reference { values, scale }]
}

fn one_oracle(case: &Case, x: &[HostTensor], i: u64, f: fn(Exact) -> Exact) -> (Exact, f64) {
    point(case, Exact::read(&x[0], i), f)
}

pub(super) const UNEVEN: Gap = Gap::Shape(ShapeClass::Uneven, "one size only");
const GAPS: &[Gap] = &[UNEVEN, Gap::Shape(ShapeClass::ManyGroups, "same text and index arithmetic as reciprocal")];

/// Sizes around the kernels' groups and words, and every kind of data.
pub(super) fn flat_cases(tier: Tier) -> Vec<(u64, Fill)> {
    let mut cases = vec![
        (0, Fill::Uniform),
        (1, Fill::Uniform),
        (2, Fill::Uniform),
        (257, Fill::Uniform),
        (1025, Fill::Uniform),
        (1000, Fill::Special),
        (1000, Fill::Wide),
        (65_537, Fill::Uniform),
    ];
    if tier == Tier::Full {
        cases.extend([3, 31, 32, 33, 127, 128, 129, 255, 256, 1023].map(|n| (n, Fill::Uniform)));
        cases.extend([
            (4099, Fill::Special),
            (257, Fill::Constant),
            (1025, Fill::Integer),
            (1023, Fill::Positive),
            (4099, Fill::Wide),
            (258, Fill::Cancelling),
            (33, Fill::Onehot),
            (1_000_003, Fill::Uniform),
        ]);
    }
    cases
}

fn unary_cases(tier: Tier) -> Vec<CaseSpec> {
    let spec = |(n, fill)| CaseSpec { dims: vec![n], attrs: Attrs::new(), fill };
    flat_cases(tier).into_iter().map(spec).collect()
}

/// In full also more elements than 65,535 groups take: of 1,024 on a GPU; of 256 or, as words of two, 512 in WGSL, in at
/// most 128 MiB.
fn reciprocal_cases(tier: Tier) -> Vec<CaseSpec> {
    let mut cases = unary_cases(tier);
    if tier == Tier::Full {
        let spec = |n| CaseSpec { dims: vec![n], attrs: Attrs::new(), fill: Fill::Uniform };
        cases.extend([33_554_431, 67_109_003].map(spec));
    }
    cases
}
