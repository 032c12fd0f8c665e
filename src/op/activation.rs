//! Activations and their backward forms: each is a row of names, expressions and an oracle over the templates of its form.

use crate::base::exact::{max_finite, min_normal};
use crate::base::exact_erf::{density_at_0, sqrt_2, sqrt_2_over_pi};
use crate::base::{AttrDecl, Attrs, Case, Code, DType, Error, Exact, Result, host};
use crate::kernel::cpu::activation::{Act, Wide, activation, activation_naive, twice};
use crate::kernel::cpu::simd::Style;
use crate::kernel::{Body, Kernel, Needs, plan_activation, plan_activation_wgsl, plan_c};

use super::elementwise::{NO_VECTORS, REAL, VECTORS_TEXT};
use super::flat::{FLAT, GAPS, Point, cases, element, oracle};
use super::{Binding, Grad, OpDesc, Operand, Range, Tolerance};

const C_TEXT: &str = include_str!("../../kernels/activation.c");
const WGSL_TEXT: &str = include_str!("../../kernels/activation.wgsl");
const FLOATS: &[DType] = &[DType::F32, DType::F64, DType::F16, DType::BF16];
const NOT_F64: &[DType] = &[DType::F32, DType::F16, DType::BF16];
const WGSL_NO_F64: &str = "SPIR-V's extended instructions have no f64 form of exp";
const RULE: &str = "its rule is the backward op of its name; there is no tape yet that could apply it";
const SECOND: &str = "a backward form: derivatives of second order are not offered";
const ALPHA: &[AttrDecl] =
    &[AttrDecl { name: "alpha", kind: plan_activation::ALPHA, doc: "slope where x is negative" }];
const NONE: &[AttrDecl] = &[];
const X: &[Operand] = &[Operand::input("x"), Operand::output("y")];
const G_X: &[Operand] = &[Operand::input("g"), Operand::input("x"), Operand::output("dx")];
const G_Y: &[Operand] = &[Operand::input("g"), Operand::input("y"), Operand::output("dx")];

/// Ops of this file, in the order in which they are listed.
pub(super) static OPS: &[&OpDesc] = &[
    &RELU,
    &LEAKY_RELU,
    &SIGMOID,
    &GELU,
    &GELU_TANH,
    &RELU_BWD,
    &LEAKY_RELU_BWD,
    &SIGMOID_BWD,
    &TANH_BWD,
    &GELU_BWD,
    &GELU_TANH_BWD,
];

/// Declares an activation: expression on the CPU of x (or the forward result), the incoming gradient and alpha, in C and
/// WGSL with `x`, `b` and `alpha`; oracle of one element and its scale; rule for its error.
macro_rules! activation_op {
    ($id:ident $name:literal onnx $onnx:expr, $doc:literal, $operands:ident, attrs $attrs:expr,
     cpu |$x:ident, $g:ident, $alpha:ident| $body:expr $(, work $work:literal)?, c $c:literal, wgsl $wgsl:literal on $wd:ident,
     point $point:expr, $tolerance:expr, over $domain:expr, flops $flops:literal, $grad:ident) => {
        static $id: OpDesc = {
            #[derive(Clone, Copy)]
            struct F;
            impl Act for F {
                const BACKWARD: bool = $operands.len() == 3;
                $(const WORK: usize = $work;)?
                #[inline(always)]
                fn apply<S: Style, R: Wide>($x: R, $g: R, $alpha: R) -> R {
                    $body
                }
            }
            const POINT: Point = $point;
            OpDesc {
                name: $name,
                doc: $doc,
                tier: 1,
                onnx: $onnx,
                dims: &["n"],
                families: FLAT,
                unit: super::Unit::Elements,
                work: |c| u128::from(c.dim("n")),
                attrs: $attrs,
                dtypes: FLOATS,
                operands: $operands,
                shapes: |c| Ok(vec![vec![c.dim("n")]; $operands.len()]),
                bind: |shapes, attrs| bind(shapes, attrs, $operands.len() - 1),
                cost: |c| plan_activation::cost(c, $operands.len() as u64, $flops),
                oracle: |c, x| oracle(c, x, POINT),
                element: Some(|c, x, _, i| element(c, x, i, POINT)),
                whole: None,
                tolerance: $tolerance,
                domain: $domain,
                grad: Grad::None($grad),
                kernels: &kernels::<F>($c, $wgsl, $wd),
                cases: |tier| cases(tier, if $attrs.is_empty() { &[] } else { ALPHAS }),
                gaps: GAPS,
            }
        };
    };
}

/// Slopes to verify besides the default.
const ALPHAS: &[(&str, f64)] = &[("alpha", 0.25), ("alpha", -1.5), ("alpha", 0.0)];

const fn kernels<A: Act>(c: &'static str, wgsl: &'static str, wgsl_dtypes: &'static [DType]) -> [Kernel; 5] {
    let native = if A::BACKWARD { plan_activation::backward_native } else { plan_activation::forward_native };
    let base = Kernel {
        variant: "simd",
        body: Body::Native(activation::<A>),
        dtypes: FLOATS,
        dtypes_why: "",
        expr: "",
        needs: Needs::NONE,
        only_when_named: false,
        plan: native,
    };
    [
        Kernel {
            variant: "cpu-vectors",
            body: Body::Opencl(VECTORS_TEXT),
            expr: c,
            dtypes: if A::WORK == 0 { REAL } else { &[] },
            dtypes_why: NO_VECTORS,
            plan: if A::BACKWARD { plan_c::backward_vectors } else { plan_c::forward_vectors },
            ..base
        },
        Kernel {
            variant: "flat",
            body: Body::C(C_TEXT),
            expr: c,
            plan: if A::BACKWARD { plan_activation::backward_c } else { plan_activation::forward_c },
            ..base
        },
        Kernel {
            variant: "flat",
            body: Body::Wgsl(WGSL_TEXT),
            expr: wgsl,
            dtypes: wgsl_dtypes,
            dtypes_why: WGSL_NO_F64,
            plan: if A::BACKWARD { plan_activation_wgsl::backward } else { plan_activation_wgsl::forward },
            ..base
        },
        base,
        Kernel { variant: "naive", body: Body::Native(activation_naive::<A>), only_when_named: true, ..base },
    ]
}

fn bind(shapes: &[Vec<u64>], attrs: &Attrs, inputs: usize) -> Result<Binding> {
    match shapes {
        [x, rest @ ..] if shapes.len() == inputs && rest.iter().all(|s| s == x) => {
            Ok(Binding { dims: vec![host::count(x)?], attrs: attrs.clone(), results: vec![x.clone()] })
        }
        _ => Err(Error::new(
            Code::ShapeMismatch,
            format!("{inputs} operands of one shape are expected, got the shapes {shapes:?}"),
        )),
    }
}

activation_op!(RELU "relu" onnx Some("Relu"), "y = 0 where x < 0, else x; so NaN stays NaN and -0 stays -0.", X, attrs NONE,
    cpu |x, _g, _alpha| if x < R::of(0.0) { R::of(0.0) } else { x },
    c "(x) < (ACC)0 ? (ACC)0 : (x)", wgsl "select(x, {{ACC}}(0), negative(x))" on FLOATS,
    point |_, x| (if x[0].to_f64() < 0.0 { Exact::f(0.0) } else { x[0] }, x[0].abs_f64()),
    Tolerance::Selected, over &[Range(-1.0, 1.0)], flops 1, RULE);

activation_op!(LEAKY_RELU "leaky_relu" onnx Some("LeakyRelu"), "y = alpha·x where x < 0, else x.", X, attrs ALPHA,
    cpu |x, _g, alpha| if x < R::of(0.0) { alpha * x } else { x },
    c "(x) < (ACC)0 ? alpha * (x) : (x)", wgsl "select(x, alpha * x, negative(x))" on FLOATS,
    point |c, x| scaled(if x[0].to_f64() < 0.0 { alpha(c).mul(x[0]) } else { x[0] }),
    // The product's rounding is the last one of the arithmetic.
    Tolerance::Formula { functions: &[], roundings: 0.0 }, over &[Range(-1.0, 1.0)], flops 2, RULE);

activation_op!(SIGMOID "sigmoid" onnx Some("Sigmoid"), "y = 1 / (1 + e^-x), elementwise.", X, attrs NONE,
    cpu |x, _g, _alpha| x.logistic::<S>(), work 30,
    c "LOGISTIC(x)", wgsl "select(logistic(x), x, is_nan(x))" on NOT_F64,
    point |_, x| (exact_logistic(x[0]), x[0].abs_f64()),
    Tolerance::Around { function: "exp", extra_ulps: 1.0 }, over &[Range(-10.0, 10.0)], flops 3, RULE);

// Intermediates: x/sqrt 2 (a rounded constant and a product), erf, the sum, the product.
activation_op!(GELU "gelu" onnx Some("Gelu"), "y = x·(1 + erf(x / sqrt 2)) / 2; -0 below -40.", X, attrs NONE,
    cpu |x, _g, _alpha| x.gelu::<S>(), work 40,
    c "FLOORED(x) * NORMAL(x)", wgsl "select(max(x, -40.0) * normal(x), x, is_nan(x))" on NOT_F64,
    point |_, x| {
        let x = exact_floored(x[0]);
        let z = x.div(sqrt_2());
        let e = z.erf();
        let y = x.mul(Exact::f(0.5).mul(Exact::f(1.0).add(e)));
        let (size, e, z) = (x.abs_f64(), e.to_f64(), z.abs_f64());
        (y, spread(0.5 * size * e.abs() + finite(size) * bell(z) + 0.5 * size * (1.0 + e)))
    },
    Tolerance::Formula { functions: &[("erf", 1.0)], roundings: 2.0 }, over &[Range(-5.0, 5.0)], flops 8, RULE);

// (1 + tanh u) / 2 = s = 1 / (1 + e^-v) with v = 2u loses nothing where tanh is near -1. Intermediates: v with 7 roundings
// (two constants, x², its product, the sum, two products) and the exponential, whose errors count (1 - s) times; the sum;
// the quotient.
activation_op!(GELU_TANH "gelu_tanh" onnx Some("Gelu"),
    "y = x·(1 + tanh(sqrt(2/pi)·(x + 0.044715·x³))) / 2; -0 below -40.", X, attrs NONE,
    cpu |x, _g, _alpha| x.gelu_tanh::<S>(), work 40,
    c "FLOORED(x) * LOGISTIC(TWICE(FLOORED(x)))",
    wgsl "select(max(x, -40.0) * logistic(twice(x)), x, is_nan(x))" on NOT_F64,
    point |c, x| {
        let x = exact_floored(x[0]);
        let v = exact_twice(x);
        let (s, rest) = (exact_logistic(v), exact_logistic(v.neg()).to_f64());
        let y = x.mul(s);
        let scale = y.abs_f64() * (1.0 + rest * (1.0 + finite(v.abs_f64())));
        (y, spread(scale + min_normal(c.dtype.compute()) * x.abs_f64()))
    },
    Tolerance::Formula { functions: &[("exp", 1.0), ("divide", 1.0)], roundings: 7.0 },
    over &[Range(-5.0, 5.0)], flops 8, RULE);

activation_op!(RELU_BWD "relu_bwd" onnx None, "dx = 0 where x <= 0, else g; a NaN of x lets g pass.", G_X, attrs NONE,
    cpu |x, g, _alpha| if x <= R::of(0.0) { R::of(0.0) } else { g },
    c "(x) <= (ACC)0 ? (ACC)0 : (b)", wgsl "select(b, {{ACC}}(0), dead(x))" on FLOATS,
    point |_, x| (if x[1].to_f64() <= 0.0 { Exact::f(0.0) } else { x[0] }, 0.0),
    Tolerance::Exact, over &[Range(-1.0, 1.0), Range(-1.0, 1.0)], flops 1, SECOND);

activation_op!(LEAKY_RELU_BWD "leaky_relu_bwd" onnx None, "dx = alpha·g where x <= 0, else g; a NaN of x lets g pass.",
    G_X, attrs ALPHA,
    cpu |x, g, alpha| if x <= R::of(0.0) { alpha * g } else { g },
    c "(x) <= (ACC)0 ? alpha * (b) : (b)", wgsl "select(b, alpha * b, dead(x))" on FLOATS,
    point |c, x| scaled(if x[1].to_f64() <= 0.0 { alpha(c).mul(x[0]) } else { x[0] }),
    Tolerance::Formula { functions: &[], roundings: 0.0 }, over &[Range(-1.0, 1.0), Range(-1.0, 1.0)], flops 2, SECOND);

// Roundings: 1 - y and g·y, each relative; then the last product.
activation_op!(SIGMOID_BWD "sigmoid_bwd" onnx None, "dx = g·y·(1 - y) with the forward result y.", G_Y, attrs NONE,
    cpu |y, g, _alpha| g * y * (R::of(1.0) - y),
    c "(b) * (x) * ((ACC)1 - (x))", wgsl "b * x * ({{ACC}}(1) - x)" on FLOATS,
    point |c, x| product(c, x[0], x[1], Exact::f(1.0).add(x[1].neg())),
    Tolerance::Formula { functions: &[], roundings: 2.0 }, over &[Range(-1.0, 1.0), Range(0.0, 1.0)], flops 3, SECOND);

// (1 - y)(1 + y) loses nothing where y is near 1, as 1 - y² would; beyond 1 the product with g comes first, so that no
// infinity meets a zero. Roundings: 1 - y, 1 + y, the first product, each relative; then the last product.
activation_op!(TANH_BWD "tanh_bwd" onnx None, "dx = g·(1 - y²) with the forward result y.", G_Y, attrs NONE,
    cpu |y, g, _alpha| {
        let (less, more) = (R::of(1.0) - y, R::of(1.0) + y);
        if less * more >= R::of(0.0) { g * (less * more) } else { g * less * more }
    },
    c "((ACC)1 - (x)) * ((ACC)1 + (x)) >= (ACC)0 ? (b) * (((ACC)1 - (x)) * ((ACC)1 + (x))) : (b) * ((ACC)1 - (x)) * ((ACC)1 + (x))",
    wgsl "select(b * ({{ACC}}(1) - x) * ({{ACC}}(1) + x), b * (({{ACC}}(1) - x) * ({{ACC}}(1) + x)), abs(x) <= {{ACC}}(1))" on FLOATS,
    point |c, x| product(c, x[0], Exact::f(1.0).add(x[1].neg()), Exact::f(1.0).add(x[1])),
    Tolerance::Formula { functions: &[], roundings: 3.0 }, over &[Range(-1.0, 1.0), Range(-1.0, 1.0)], flops 3, SECOND);

// Intermediates: x/sqrt 2, erf, their sum; the density (a rounded constant, the argument, two products); the sum.
activation_op!(GELU_BWD "gelu_bwd" onnx None,
    "dx = g·(P(x) + x·p(x)) with the normal distribution P(x) = (1 + erf(x / sqrt 2)) / 2 and its density p.",
    G_X, attrs NONE,
    cpu |x, g, _alpha| {
        let w = x.clamped(40.0);
        g * (normal::<S, R>(x) + w * (R::of(0.398_942_280_401_432_7) * (R::of(-0.5) * w * w).exp::<S>()))
    }, work 60,
    c "(b) * (NORMAL(x) + X_DENSITY(WITHIN_40(x)))",
    wgsl "select(b * (normal(x) + x_density(x)), x, is_nan(x))" on NOT_F64,
    point |_, x| {
        let (g, x) = (x[0], x[1]);
        let z = x.div(sqrt_2());
        let e = z.erf();
        let normal = Exact::f(0.5).mul(Exact::f(1.0).add(e));
        // e^-800 is zero in every dtype.
        let bump = match x.abs_f64() > 40.0 {
            true => Exact::f(0.0),
            false => x.mul(density_at_0().mul(z.mul(z).neg().exp())),
        };
        let (size, e) = (bump.abs_f64(), e.to_f64());
        let square = if size == 0.0 { 0.0 } else { z.to_f64() * z.to_f64() };
        let sum = normal.add(bump);
        let terms = 0.5 * e.abs() + bell(z.abs_f64()) + 0.5 * (1.0 + e) + size * (1.0 + square) + sum.abs_f64();
        (g.mul(sum), spread(g.abs_f64() * terms))
    },
    Tolerance::Formula { functions: &[("erf", 1.0), ("exp", 1.0)], roundings: 4.0 },
    over &[Range(-1.0, 1.0), Range(-5.0, 5.0)], flops 12, SECOND);

// dx = g·s·(1 + a) with a = x·(1 - s)·v', 1 - s = 1 / (1 + e^v). v has 7 roundings, whose and the exponentials' errors count
// 1 - s times in s and s times in 1 - s; a has up to 10 (6 of v', the sum, the quotient, two products), 1 + a one, then g's.
activation_op!(GELU_TANH_BWD "gelu_tanh_bwd" onnx None,
    "dx = g·(1 + t + x·(1 - t²)·sqrt(2/pi)·(1 + 0.134145·x²)) / 2 with gelu_tanh's t = tanh(...).", G_X, attrs NONE,
    cpu |x, g, _alpha| {
        let w = x.clamped(40.0);
        let v = twice(w);
        let slope = R::of(1.595_769_121_605_730_8) * (R::of(1.0) + R::of(0.134_145) * w * w);
        g * (v.logistic::<S>() * (R::of(1.0) + w * (-v).logistic::<S>() * slope))
    }, work 80,
    c "(b) * TANH_SLOPE(WITHIN_40(x))", wgsl "select(b * tanh_slope(x), x, is_nan(x))" on NOT_F64,
    point |c, x| {
        let (g, one) = (x[0], Exact::f(1.0));
        // e^-4000 is zero in every dtype.
        let w = if x[1].abs_f64() > 40.0 { Exact::f(x[1].to_f64().signum() * 40.0) } else { x[1] };
        let v = exact_twice(w);
        let (s, rest) = (exact_logistic(v), exact_logistic(v.neg()));
        let slope = sqrt_2_over_pi().mul(one.add(Exact::f(0.134_145).mul(w).mul(w))).mul(Exact::f(2.0));
        let a = w.mul(rest).mul(slope);
        let sum = one.add(a);
        let (size, steep, v) = (a.abs_f64(), (w.to_f64() * slope.to_f64()).abs(), v.abs_f64());
        let (s_f64, rest) = (s.to_f64(), rest.to_f64());
        let terms = s_f64 * (1.0 + size + sum.abs_f64() * rest * (1.0 + v) + size * s_f64 * (1.0 + v));
        let least = min_normal(c.dtype.compute()) * (1.0 + size + s_f64 * steep);
        (g.mul(s.mul(sum)), spread(g.abs_f64() * (terms + least)))
    },
    Tolerance::Formula { functions: &[("exp", 1.0), ("divide", 2.0)], roundings: 10.0 },
    over &[Range(-1.0, 1.0), Range(-5.0, 5.0)], flops 14, SECOND);

/// The standard normal distribution on the CPU.
#[inline(always)]
fn normal<S: Style, R: Wide>(x: R) -> R {
    R::of(0.5) * (R::of(1.0) + (x * R::of(std::f64::consts::FRAC_1_SQRT_2)).erf::<S>())
}

fn exact_floored(x: Exact) -> Exact {
    if x.to_f64() < -40.0 { Exact::f(-40.0) } else { x }
}

fn exact_twice(x: Exact) -> Exact {
    let cubic = Exact::f(1.0).add(Exact::f(0.044_715).mul(x).mul(x));
    sqrt_2_over_pi().mul(x).mul(cubic).mul(Exact::f(2.0))
}

fn exact_logistic(v: Exact) -> Exact {
    let e = if v.to_f64() < 0.0 { v.exp() } else { v.neg().exp() };
    let top = if v.to_f64() < 0.0 { e } else { Exact::f(1.0) };
    top.div(Exact::f(1.0).add(e))
}

/// The attribute as the kernels get it: rounded to the type of the arithmetic.
fn alpha(case: &Case) -> Exact {
    let a = case.attrs.float("alpha", 0.01);
    Exact::f(if case.dtype.compute() == DType::F64 { a } else { f64::from(a as f32) })
}

/// A value whose roundings are relative to itself.
fn scaled(v: Exact) -> (Exact, f64) {
    (v, v.abs_f64())
}

/// g·a·b where the kernels round one product of two first (not below the smallest normal number), which may overflow alone.
fn product(case: &Case, g: Exact, a: Exact, b: Exact) -> (Exact, f64) {
    let arithmetic = case.dtype.compute();
    // The order in which no part of a finite product leaves f64.
    let y = if b.abs_f64() <= 3.0 { g.mul(a.mul(b)) } else { g.mul(a).mul(b) };
    let size = |v: Exact| v.abs_f64();
    let overflow = size(g) * size(a).max(size(b)) > max_finite(arithmetic);
    let scale = size(y) + min_normal(arithmetic) * size(g).max(size(a)).max(size(b));
    (y, if overflow { f64::INFINITY } else { spread(scale) })
}

/// z times erf's slope, over sqrt 2 and 2: what an error in z is worth in (1 + erf z) / 2.
fn bell(z: f64) -> f64 {
    if z > 40.0 { 0.0 } else { z * (-z * z).exp() * 0.5 * std::f64::consts::FRAC_2_SQRT_PI }
}

/// For factors that meet a zero where they are infinite.
fn finite(v: f64) -> f64 {
    v.min(f64::MAX.sqrt())
}

/// A scale that is no number says nothing: infinite.
fn spread(scale: f64) -> f64 {
    if scale.is_nan() { f64::INFINITY } else { scale }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::{Attr, Fill};
    use crate::op::{case, find};

    /// The backward forms are the slopes of the forward forms: differences of the oracles' own values.
    #[test]
    fn backward_forms_are_the_slopes() {
        for (forward, backward, of_result) in [
            (&RELU, &RELU_BWD, false),
            (&LEAKY_RELU, &LEAKY_RELU_BWD, false),
            (&SIGMOID, &SIGMOID_BWD, true),
            (find("tanh").unwrap(), &TANH_BWD, true),
            (&GELU, &GELU_BWD, false),
            (&GELU_TANH, &GELU_TANH_BWD, false),
        ] {
            let c = forward.case(DType::F64, &[1], Attrs::new(), Fill::Uniform).unwrap();
            let back = backward.case(DType::F64, &[1], Attrs::new(), Fill::Uniform).unwrap();
            let f = |x: f64| (forward.oracle)(&c, &[vec![Exact::f(x)]])[0].values[0];
            for x in [-3.1, -1.0, -0.3, 0.2, 1.7, 4.0] {
                let h = 1e-9;
                let slope = f(x + h).add(f(x - h).neg()).to_f64() / ((x + h) - (x - h));
                let at = if of_result { f(x) } else { Exact::f(x) };
                let dx = (backward.oracle)(&back, &[vec![Exact::f(2.0)], vec![at]])[0].values[0].to_f64();
                assert!((dx - 2.0 * slope).abs() < 1e-8, "{} at {x}: {dx}, {}", backward.name, 2.0 * slope);
            }
        }
    }

    #[test]
    fn an_element_is_what_the_oracle_says() {
        for op in OPS {
            let c = op.case(DType::F32, &[40], Attrs::new(), Fill::Special).unwrap();
            let inputs = case::inputs(op, &c).unwrap();
            let exact: Vec<_> = inputs.iter().map(Exact::read_all).collect();
            let want = (op.oracle)(&c, &exact).remove(0);
            let at = op.element.unwrap();
            for i in 0..40 {
                let (v, scale) = at(&c, &inputs, 0, i);
                let same = v == want.values[i as usize] || v.to_f64().is_nan();
                assert!(same && !scale.is_nan(), "{} {i}", op.name);
            }
        }
    }

    #[test]
    fn operands_must_agree() {
        let call = |op: &OpDesc, shapes: &[Vec<u64>]| (op.bind)(shapes, &Attrs::new().with("alpha", Attr::Float(0.5)));
        assert_eq!(call(&RELU, &[vec![2, 3]]).unwrap().results, [[2, 3]]);
        assert_eq!(call(&LEAKY_RELU_BWD, &[vec![6], vec![6]]).unwrap().attrs.float("alpha", 0.0), 0.5);
        assert_eq!(call(&RELU_BWD, &[vec![2, 3], vec![3, 2]]).unwrap_err().code(), Code::ShapeMismatch);
        assert!(call(&RELU, &[]).is_err() && call(&GELU_BWD, &[vec![1]]).is_err());
    }
}
