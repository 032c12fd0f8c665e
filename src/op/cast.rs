//! Conversion between number types.

use crate::base::exact::{max_finite, ulp};
use crate::base::{Attr, AttrDecl, AttrType, Attrs, Code, DType, Error, Exact, Fill, host};
use crate::kernel::cpu::cast;
use crate::kernel::plan_cast::{self, CODES};
use crate::kernel::{Body, Kernel, Needs, plan_stream_wgsl};

use super::flat::{FLAT, GAPS, Point, element, oracle};
use super::{Binding, CaseSpec, DTypeRule, Grad, OpDesc, Operand, Range, Role, Tier, Tolerance, Unit};

const DIRECT_C: &str = include_str!("../../kernels/cast.c");
const INT_HALF_C: &str = include_str!("../../kernels/cast_int_half.c");
const F64_HALF_C: &str = include_str!("../../kernels/cast_f64_half.c");
const WGSL_TEXT: &str = include_str!("../../kernels/cast.wgsl");

/// Ops of this file.
pub(super) static OPS: &[&OpDesc] = &[&CAST];

const BASE: Kernel = Kernel {
    variant: "blocks",
    body: Body::Native(cast::cast),
    dtypes: &DType::ALL,
    dtypes_why: "",
    expr: "",
    needs: Needs::NONE,
    only_when_named: false,
    plan: plan_cast::native,
};

const POINT: Point = |c, x| (converted(x[0], plan_cast::to(c)), 0.0);

static CAST: OpDesc = OpDesc {
    name: "cast",
    doc: "y = x in the number type `to`: integers wrap, floats become integers by truncation, saturated and NaN 0, and what \
          becomes a float is rounded once, to nearest even.",
    tier: 1,
    onnx: Some("Cast"),
    dims: &["n"],
    families: FLAT,
    unit: Unit::Elements,
    work: |c| u128::from(c.dim("n")),
    attrs: &[AttrDecl {
        name: "to",
        kind: AttrType::Int(1),
        doc: "ONNX's code: 1 f32, 2 u8, 3 i8, 4 u16, 5 i16, 6 i32, 7 i64, 10 f16, 11 f64, 12 u32, 13 u64, 16 bf16",
    }],
    dtypes: &DType::ALL,
    operands: &[Operand::input("x"), Operand { name: "y", role: Role::Out, dtype: DTypeRule::By(plan_cast::to) }],
    shapes: |c| {
        let code = c.attrs.int("to", 1);
        if plan_cast::dtype_of(code).is_none() {
            let known: Vec<_> = CODES.iter().map(|(code, d)| format!("{code} {d}")).collect();
            return Err(Error::new(Code::BadArgument, format!("to = {code} is no type; known: {}", known.join(", "))));
        }
        Ok(vec![vec![c.dim("n")]; 2])
    },
    bind: |shapes, attrs| match shapes {
        [x] => Ok(Binding { dims: vec![host::count(x)?], attrs: attrs.clone(), results: vec![x.clone()] }),
        _ => Err(Error::new(Code::ShapeMismatch, format!("{} operands given, 1 is expected", shapes.len()))),
    },
    cost: plan_cast::cost,
    oracle: |c, x| oracle(c, x, POINT),
    element: Some(|c, x, _, i| element(c, x, i, POINT)),
    whole: None,
    tolerance: Tolerance::Exact,
    domain: &[Range(-1000.0, 1000.0)],
    grad: Grad::None("the rule is cast back; there is no tape yet that could apply it"),
    kernels: &[
        Kernel { variant: "direct", body: Body::C(DIRECT_C), plan: plan_cast::direct_c, ..BASE },
        Kernel { variant: "sticky", body: Body::C(INT_HALF_C), plan: plan_cast::int_half_c, ..BASE },
        Kernel { variant: "magic", body: Body::C(F64_HALF_C), plan: plan_cast::f64_half_c, ..BASE },
        Kernel { variant: "bits", body: Body::Wgsl(WGSL_TEXT), plan: plan_stream_wgsl::cast, ..BASE },
        BASE,
        Kernel { variant: "naive", body: Body::Native(cast::cast_naive), only_when_named: true, ..BASE },
    ],
    cases,
    gaps: GAPS,
};

/// The number rules of a conversion.
fn converted(v: Exact, to: DType) -> Exact {
    let Some((low, high)) = to.int_range() else { return rounded(v, to) };
    match v {
        Exact::I(_) => v.wrap(to),
        Exact::F(_) => {
            let x = v.to_f64();
            // Rust's own conversion to 128 bits truncates, saturates and makes NaN 0, too.
            Exact::I((x as i128).clamp(low, high))
        }
    }
}

/// The nearest number of a float dtype, ties to even; integer dtypes keep the value, which they hold.
pub(super) fn rounded(v: Exact, to: DType) -> Exact {
    let Some(digits) = to.mantissa_bits() else { return Exact::I(v.to_f64() as i128) };
    let nearest = match v {
        Exact::I(i) => {
            let size = i.unsigned_abs();
            let drop = (128 - size.leading_zeros() as i32 - digits).max(0);
            let (kept, rest) = (size >> drop, size & ((1u128 << drop) - 1));
            // Twice the rest against the place: above, or at the tie and odd.
            let (twice, place) = (rest << 1, 1u128 << drop);
            let up = drop > 0 && (twice > place || twice == place && kept & 1 == 1);
            let size = ((kept + u128::from(up)) << drop) as f64;
            if i < 0 { -size } else { size }
        }
        Exact::F(d) => {
            let x = d.hi();
            let place = ulp(to, x);
            // Dividing by a power of two is exact, or so far below 1/2 that it does not matter.
            if to == DType::F64 || !x.is_finite() || x == 0.0 {
                x
            } else {
                ((x / place).round_ties_even() * place).copysign(x)
            }
        }
    };
    Exact::f(if nearest.abs() > max_finite(to) { f64::INFINITY.copysign(nearest) } else { nearest })
}

fn cases(tier: Tier) -> Vec<CaseSpec> {
    let mut specs = Vec::new();
    let mut push = |n: u64, to: i64, fill| {
        let attrs = if to == 1 { Attrs::new() } else { Attrs::new().with("to", Attr::Int(to)) };
        specs.push(CaseSpec { dims: vec![n], attrs, fill });
    };
    for (code, _) in CODES {
        push(1000, code, Fill::Special);
    }
    for (n, to) in [(0, 1), (1, 10), (257, 16), (1025, 6)] {
        push(n, to, Fill::Uniform);
    }
    if tier == Tier::Full {
        for (code, _) in CODES {
            push(4099, code, Fill::Wide);
        }
        for (n, to) in
            [(2, 3), (3, 10), (31, 16), (32, 2), (33, 4), (255, 5), (256, 11), (1023, 7), (65_537, 13), (600_011, 12)]
        {
            push(n, to, Fill::Uniform);
        }
        // Long enough for some values near the ties of f16 and bf16, where rounding twice goes wrong.
        push(200_003, 10, Fill::Uniform);
        push(200_003, 16, Fill::Wide);
        for (to, fill) in
            [(10, Fill::Positive), (3, Fill::Integer), (7, Fill::Constant), (16, Fill::Cancelling), (12, Fill::Onehot)]
        {
            push(1000, to, fill);
        }
    }
    specs
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounding_is_to_nearest_even() {
        let f = |x: f64, to| rounded(Exact::f(x), to).to_f64();
        assert_eq!(f(1.0 + 2f64.powi(-11), DType::F16), 1.0);
        assert_eq!(f(1.0 + 3.0 * 2f64.powi(-11), DType::F16), 1.0 + 2f64.powi(-9));
        assert_eq!(f(1.0 + 2f64.powi(-11) + 2f64.powi(-50), DType::F16), 1.0 + 2f64.powi(-10));
        assert_eq!((f(65_519.0, DType::F16), f(65_520.0, DType::F16)), (65_504.0, f64::INFINITY));
        assert_eq!(f(2f64.powi(-25), DType::F16).to_bits(), 0.0f64.to_bits());
        assert!(f(-2f64.powi(-26), DType::F16).is_sign_negative());
        assert_eq!(f(1e-40, DType::F32), f64::from(1e-40f32));
        assert_eq!(f(f64::MIN_POSITIVE / 3.0, DType::BF16), 0.0);
        assert!(f(f64::NAN, DType::F32).is_nan());
        let i = |x: i128, to| rounded(Exact::I(x), to).to_f64();
        assert_eq!(
            (i(257, DType::BF16), i(259, DType::BF16), i(-(1 << 24) - 3, DType::F32)),
            (256.0, 260.0, -16_777_220.0)
        );
        assert_eq!(i((1 << 40) + (1 << 32) + 1, DType::BF16), ((1i64 << 40) + (1i64 << 33)) as f64);
        assert_eq!((i(70_000, DType::F16), i(u64::MAX.into(), DType::F64)), (f64::INFINITY, 2f64.powi(64)));
        for x in (-3000i64..3000).map(|x| x * 7_777_777_777_777) {
            assert_eq!((i(x.into(), DType::F32), i(x.into(), DType::F64)), (f64::from(x as f32), x as f64), "{x}");
        }
    }

    #[test]
    fn integers_wrap_and_floats_saturate() {
        let i = |v, to| converted(v, to);
        assert_eq!(i(Exact::I(-1), DType::U8), Exact::I(255));
        assert_eq!(i(Exact::f(-1.5), DType::U8), Exact::I(0));
        assert_eq!(i(Exact::f(-1.9), DType::I8), Exact::I(-1));
        assert_eq!(i(Exact::f(f64::INFINITY), DType::I64), Exact::I(i64::MAX.into()));
        assert_eq!(i(Exact::f(f64::NAN), DType::I64), Exact::I(0));
        assert_eq!(i(Exact::f(1e30), DType::U64), Exact::I(u64::MAX.into()));
    }
}
