//! Ops that only move elements.

use crate::base::{Attrs, Case, Code, DType, Error, Exact, Fill, host};
use crate::kernel::cpu::movement;
use crate::kernel::{Body, Kernel, Needs, plan_c, plan_native, plan_wgsl};

use super::{CaseSpec, Family, Grad, OpDesc, Operand, Range, Reference, Tier, Tolerance, Unit};

const C_TEXT: &str = include_str!("../../kernels/movement.c");
const WGSL_TEXT: &str = include_str!("../../kernels/movement.wgsl");
const NUMBERS: &[DType] = &[DType::F32, DType::F64, DType::I32];

/// Ops of this file.
pub(super) static OPS: &[&OpDesc] = &[&TRANSPOSE];

const BASE: Kernel = Kernel {
    variant: "blocked",
    body: Body::Native(movement::transpose),
    dtypes: NUMBERS,
    dtypes_why: "",
    expr: "",
    needs: Needs::NONE,
    only_when_named: false,
    plan: plan_native::transpose,
};

/// Largest s with s·s <= n.
fn side(n: u64) -> u64 {
    n.isqrt()
}

static TRANSPOSE: OpDesc = OpDesc {
    name: "transpose",
    doc: "y[j, i] = x[i, j] of an m by n matrix.",
    tier: 1,
    onnx: Some("Transpose"),
    dims: &["m", "n"],
    families: &[Family {
        name: "matrix",
        doc: "any m by n, square in the sweep",
        matches: |_| true,
        sweep: |n| vec![side(n), side(n)],
    }],
    unit: Unit::Elements,
    work: |c| u128::from(c.dim("m")) * u128::from(c.dim("n")),
    attrs: &[],
    dtypes: NUMBERS,
    operands: &[Operand::input("x"), Operand::output("y")],
    shapes: |c| {
        host::count(&[c.dim("m"), c.dim("n")])?;
        Ok(vec![vec![c.dim("m"), c.dim("n")], vec![c.dim("n"), c.dim("m")]])
    },
    bind: |shapes, _| match shapes {
        [x] if x.len() == 2 => Ok((x.clone(), Attrs::new())),
        _ => Err(Error::new(Code::ShapeMismatch, format!("one matrix is expected, got the shapes {shapes:?}"))),
    },
    cost: |c| plan_native::matrix_cost(c, 0),
    oracle,
    tolerance: Tolerance::Exact,
    domain: &[Range(-1000.0, 1000.0)],
    grad: Grad::None("the rule is transpose itself; there is no tape yet that could apply it"),
    kernels: &[
        Kernel {
            variant: "tiled32",
            body: Body::C(C_TEXT),
            needs: Needs { local_elements: 2 * 32 * 33, group: 256, ..Needs::NONE },
            plan: plan_c::transpose,
            ..BASE
        },
        Kernel {
            variant: "tiled16",
            body: Body::Wgsl(WGSL_TEXT),
            needs: Needs { local_elements: 16 * 17, group: 256, ..Needs::NONE },
            plan: plan_wgsl::transpose,
            ..BASE
        },
        BASE,
        Kernel { variant: "naive", body: Body::Native(movement::transpose_naive), only_when_named: true, ..BASE },
    ],
    cases,
};

fn oracle(case: &Case, x: &[Vec<Exact>]) -> Vec<Reference> {
    let (m, n) = (case.dim("m") as usize, case.dim("n") as usize);
    let values: Vec<_> = (0..n).flat_map(|j| (0..m).map(move |i| (i, j))).map(|(i, j)| x[0][i * n + j]).collect();
    vec![Reference { scale: vec![0.0; values.len()], values }]
}

fn cases(tier: Tier) -> Vec<CaseSpec> {
    let mut shapes = vec![
        ([0, 3], Fill::Uniform),
        ([1, 1], Fill::Uniform),
        ([1, 257], Fill::Uniform),
        ([33, 65], Fill::Uniform),
        ([64, 96], Fill::Integer),
        ([31, 32], Fill::Special),
        ([127, 130], Fill::Uniform),
    ];
    if tier == Tier::Full {
        shapes.extend([
            ([257, 1], Fill::Uniform),
            ([16, 16], Fill::Uniform),
            ([15, 17], Fill::Uniform),
            ([1023, 1025], Fill::Uniform),
            ([2, 70_000], Fill::Uniform),
        ]);
    }
    shapes.into_iter().map(|(d, fill)| CaseSpec { dims: d.to_vec(), attrs: Attrs::new(), fill }).collect()
}
