//! The probe of a device's arithmetic: chains of fused multiply-adds that touch memory only at their ends.

use crate::base::{AttrDecl, AttrType, Attrs, Case, Code, Cost, DType, Error, Exact, Result};
use crate::kernel::cpu::peak;
use crate::kernel::plan_peak::{FACTOR, STEPS, TERM, steps};
use crate::kernel::{Body, Kernel, Needs, plan_peak};

use super::flat::{GAPS, Point, cases, element, oracle};
use super::{Binding, CaseSpec, Family, Grad, OpDesc, Operand, Range, Tier, Tolerance, Unit};

const C_TEXT: &str = include_str!("../../kernels/peak.c");
const WGSL_TEXT: &str = include_str!("../../kernels/peak.wgsl");
const REAL: &[DType] = &[DType::F32, DType::F64];

/// Most steps of one call; lavapipe ends loops after 65,535 iterations.
const MOST_STEPS: u64 = 1 << 15;

const FAMILY: &[Family] = &[Family {
    name: "all",
    doc: "any number of elements",
    matches: |_| true,
    sweep: |flops| vec![flops.div_ceil(2 * STEPS as u64)],
}];

/// Ops of this file.
pub(super) static OPS: &[&OpDesc] = &[&FMA];

/// Multiplies and adds.
pub(super) static PROBE: &OpDesc = &FMA;

const CHAINS: Kernel = Kernel {
    variant: "chains",
    body: Body::Native(peak::fma),
    dtypes: REAL,
    dtypes_why: "",
    expr: "",
    needs: Needs::NONE,
    only_when_named: false,
    plan: plan_peak::native,
};

/// One step after the other, and the magnitude that each may be wrong by one rounding of: no value of the chain exceeds
/// the larger of |x| and 1, to which it runs.
const POINT: Point = |case, x| {
    let (a, b) = (Exact::f(FACTOR), Exact::f(TERM));
    let end = (0..steps(case)).fold(x[0], |y, _| y.mul(a).add(b));
    (end, Some(x[0].abs_f64()).filter(|m| m.is_finite()).unwrap_or(0.0).max(1.0))
};

static FMA: OpDesc = OpDesc {
    name: "fma",
    doc: "y = x after `steps` steps x = x·(1 - 2^-10) + 2^-10: the probe of the arithmetic's peak. The end depends on the \
          number of steps, so that none can be left out.",
    tier: 1,
    onnx: None,
    dims: &["n"],
    families: FAMILY,
    unit: Unit::Flops,
    work: |c| u128::from(c.dim("n")) * 2 * u128::from(steps(c)),
    attrs: &[AttrDecl { name: "steps", kind: AttrType::Int(STEPS), doc: "multiply-adds per element" }],
    dtypes: REAL,
    operands: &[Operand::input("x"), Operand::output("y")],
    shapes: |c| {
        let asked = c.attrs.int("steps", STEPS);
        match u64::try_from(asked) {
            Ok(1..=MOST_STEPS) => Ok(vec![vec![c.dim("n")]; 2]),
            _ => Err(Error::new(Code::BadArgument, format!("steps={asked}: expected 1 to {MOST_STEPS}"))),
        }
    },
    bind: |_: &[Vec<u64>], _: &Attrs| -> Result<Binding> {
        Err(Error::new(Code::OpUnsupported, "fma is a measurement, not a library call"))
    },
    cost,
    oracle: |c, x| oracle(c, x, POINT),
    element: Some(|c, x, _, i| element(c, x, i, POINT)),
    whole: None,
    // A product and a sum each step, fused or not; what was lost before shrinks with every step.
    tolerance: Tolerance::Analysis { functions: &[], roundings: |c| 2 * steps(c) },
    domain: &[Range(-2.0, 2.0)],
    grad: Grad::None("a probe of arithmetic; networks use mul and add"),
    kernels: &[
        Kernel { body: Body::C(C_TEXT), plan: plan_peak::c, ..CHAINS },
        Kernel { body: Body::Wgsl(WGSL_TEXT), plan: plan_peak::wgsl, ..CHAINS },
        CHAINS,
        Kernel { variant: "naive", body: Body::Native(peak::fma_naive), only_when_named: true, ..CHAINS },
    ],
    cases: specs,
    gaps: GAPS,
};

fn cost(case: &Case) -> Cost {
    plan_peak::cost(case)
}

/// Short chains of many elements, and a long one.
fn specs(tier: Tier) -> Vec<CaseSpec> {
    use crate::base::{Attr, Fill};
    let mut specs = cases(tier, &[]);
    for (n, steps) in [(1025, 1), (257, 4096)] {
        let attrs = Attrs::new().with("steps", Attr::Int(steps));
        specs.push(CaseSpec { dims: vec![n], attrs, fill: Fill::Uniform });
    }
    specs
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::{Attr, Fill};

    fn case(n: i64) -> Result<Case> {
        FMA.case(DType::F32, &[3], Attrs::new().with("steps", Attr::Int(n)), Fill::Uniform)
    }

    #[test]
    fn the_end_tells_the_number_of_steps() {
        let c = case(1024).unwrap();
        let end = POINT(&c, &[Exact::f(2.0)]).0.to_f64();
        let want = 1.0 + (1.0 - 2f64.powi(-10)).powi(1024);
        assert!((end - want).abs() < 1e-12, "{end} {want}");
        let fewer = POINT(&case(1023).unwrap(), &[Exact::f(2.0)]).0.to_f64();
        let allowed = crate::op::tolerance::gamma(2 * 1024, DType::F32.unit_roundoff()) * 2.0;
        assert!(fewer - end > allowed, "one step less is {:e}, allowed are {allowed:e}", fewer - end);
        assert_eq!((FMA.cost)(&c).flops, 2 * 3 * 1024);
    }

    #[test]
    fn steps_have_a_range() {
        assert!(case(1).is_ok() && case(1 << 15).is_ok());
        for bad in [0, -1, (1 << 15) + 1, i64::MIN] {
            assert_eq!(case(bad).unwrap_err().code(), Code::BadArgument);
        }
    }
}
