//! Ops that only move elements.

use crate::base::{Attrs, Code, DType, Error, Exact, Fill, HostTensor, host};
use crate::kernel::cpu::movement;
use crate::kernel::{Body, Kernel, Needs, plan_c, plan_native, plan_wgsl};

use super::{
    Binding, CaseSpec, DTypeRule, Family, Gap, Grad, OpDesc, Operand, Range, Reference, Role, ShapeClass, Tier,
    Tolerance, Unit,
};

const C_TEXT: &str = include_str!("../../kernels/movement.c");
const VECTORS_TEXT: &str = include_str!("../../kernels/opencl/movement_vectors.cl");
const WGSL_TEXT: &str = include_str!("../../kernels/movement.wgsl");
const WGSL_INPLACE: &str = include_str!("../../kernels/movement_inplace.wgsl");
const WGSL_PAIRS: &str = include_str!("../../kernels/movement_pairs.wgsl");
/// What the WGSL texts move as words and as pairs of words; the rest no device with WGSL holds.
const WORDS: &[DType] = &[DType::F32, DType::F64, DType::I32, DType::I64, DType::U32, DType::U64];
const PAIRS: &[DType] = &[DType::F16, DType::BF16];
const NO_VECTORS: &str = "vectors of 16 elements below 32 bits are no whole lines";
const NO_WORDS: &str = "the text moves whole words";
const NO_PAIRS: &str = "the text moves elements of 16 bits; WGSL has no type of 8 bits";

/// Ops of this file.
pub(super) static OPS: &[&OpDesc] = &[&TRANSPOSE, &TRANSPOSE_INPLACE];

const BASE: Kernel = Kernel {
    variant: "blocked",
    body: Body::Native(movement::transpose),
    dtypes: &DType::ALL,
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
    dtypes: &DType::ALL,
    operands: &[Operand::input("x"), Operand::output("y")],
    shapes: |c| {
        host::count(&[c.dim("m"), c.dim("n")])?;
        Ok(vec![vec![c.dim("m"), c.dim("n")], vec![c.dim("n"), c.dim("m")]])
    },
    bind: |shapes, _| match shapes {
        [x] if x.len() == 2 => Ok(Binding { dims: x.clone(), ..Binding::default() }),
        _ => Err(Error::new(Code::ShapeMismatch, format!("one matrix is expected, got the shapes {shapes:?}"))),
    },
    cost: |c| plan_native::matrix_cost(c, 0),
    oracle: |c, x| {
        let count = c.dim("m") * c.dim("n");
        moved(count, |i| x[0][source(c.dim("m"), c.dim("n"), i) as usize])
    },
    element: Some(|c, x, _, i| (Exact::read(&x[0], source(c.dim("m"), c.dim("n"), i)), 0.0)),
    whole: None,
    tolerance: Tolerance::Exact,
    domain: &[Range(-1000.0, 1000.0)],
    grad: Grad::None("the rule is transpose itself; there is no tape yet that could apply it"),
    kernels: &[
        Kernel {
            variant: "cpu-vectors",
            body: Body::Opencl(VECTORS_TEXT),
            dtypes: WORDS,
            dtypes_why: NO_VECTORS,
            plan: plan_c::transpose_vectors,
            ..BASE
        },
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
            dtypes: WORDS,
            dtypes_why: NO_WORDS,
            needs: Needs { local_elements: 16 * 17, group: 256, ..Needs::NONE },
            plan: plan_wgsl::transpose,
            ..BASE
        },
        Kernel {
            variant: "pairs",
            body: Body::Wgsl(WGSL_PAIRS),
            dtypes: PAIRS,
            dtypes_why: NO_PAIRS,
            needs: Needs { group: 256, ..Needs::NONE },
            plan: plan_wgsl::transpose_pairs,
            ..BASE
        },
        BASE,
        Kernel { variant: "naive", body: Body::Native(movement::transpose_naive), only_when_named: true, ..BASE },
    ],
    cases,
    gaps: &[],
};

static TRANSPOSE_INPLACE: OpDesc = OpDesc {
    name: "transpose_inplace",
    doc: "x[j, i] and x[i, j] of an n by n matrix change places.",
    onnx: None,
    dims: &["n"],
    families: &[Family { name: "matrix", doc: "any n by n", matches: |_| true, sweep: |n| vec![side(n)] }],
    work: |c| u128::from(c.dim("n")) * u128::from(c.dim("n")),
    operands: &[Operand { name: "x", role: Role::InOut, dtype: DTypeRule::Same }],
    shapes: |c| {
        host::count(&[c.dim("n"), c.dim("n")])?;
        Ok(vec![vec![c.dim("n"), c.dim("n")]])
    },
    bind: |shapes, _| match shapes {
        [x] if x.len() == 2 && x[0] == x[1] => Ok(Binding { dims: vec![x[0]], ..Binding::default() }),
        _ => Err(Error::new(Code::ShapeMismatch, format!("one square matrix is expected, got the shapes {shapes:?}"))),
    },
    cost: plan_native::square_cost,
    oracle: |c, x| {
        let n = c.dim("n");
        moved(n * n, |i| x[0][source(n, n, i) as usize])
    },
    element: Some(|c, x: &[HostTensor], _, i| (Exact::read(&x[0], source(c.dim("n"), c.dim("n"), i)), 0.0)),
    kernels: &[
        Kernel {
            variant: "cpu-vectors",
            body: Body::Opencl(VECTORS_TEXT),
            dtypes: WORDS,
            dtypes_why: NO_VECTORS,
            plan: plan_c::transpose_inplace_vectors,
            ..INPLACE
        },
        Kernel {
            variant: "tiled32",
            body: Body::C(C_TEXT),
            needs: Needs { local_elements: 2 * 32 * 33, group: 256, ..Needs::NONE },
            plan: plan_c::transpose_inplace,
            ..INPLACE
        },
        Kernel {
            variant: "tiled16",
            body: Body::Wgsl(WGSL_INPLACE),
            dtypes: WORDS,
            dtypes_why: NO_WORDS,
            needs: Needs { local_elements: 2 * 16 * 17, group: 256, ..Needs::NONE },
            plan: plan_wgsl::transpose_inplace,
            ..INPLACE
        },
        Kernel {
            variant: "pairs",
            body: Body::Wgsl(WGSL_PAIRS),
            dtypes: PAIRS,
            dtypes_why: NO_PAIRS,
            needs: Needs { group: 256, ..Needs::NONE },
            plan: plan_wgsl::transpose_inplace_pairs,
            ..INPLACE
        },
        INPLACE,
        Kernel {
            variant: "naive",
            body: Body::Native(movement::transpose_inplace_naive),
            only_when_named: true,
            ..INPLACE
        },
    ],
    cases: inplace_cases,
    gaps: &[
        Gap::Shape(ShapeClass::Uneven, "one size only"),
        Gap::Shape(ShapeClass::LongRow, "a square matrix of that side exceeds every memory"),
        Gap::Shape(ShapeClass::ManyGroups, "same text and index arithmetic as transpose"),
    ],
    ..TRANSPOSE
};

const INPLACE: Kernel =
    Kernel { body: Body::Native(movement::transpose_inplace), plan: plan_native::transpose_inplace, ..BASE };

/// Flat index into x, m by n, of element i of its transpose.
fn source(m: u64, n: u64, i: u64) -> u64 {
    let (row, column) = (i / m, i % m);
    column * n + row
}

fn moved(count: u64, value: impl Fn(u64) -> Exact) -> Vec<Reference> {
    let values: Vec<_> = (0..count).map(value).collect();
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
        ([5, 7], Fill::Special),
        ([127, 130], Fill::Uniform),
    ];
    if tier == Tier::Full {
        shapes.extend([
            ([3, 0], Fill::Uniform),
            ([257, 1], Fill::Uniform),
            ([16, 16], Fill::Uniform),
            ([15, 17], Fill::Wide),
            ([32, 33], Fill::Positive),
            ([2, 3], Fill::Cancelling),
            ([31, 29], Fill::Onehot),
            ([48, 17], Fill::Constant),
            ([128, 256], Fill::Wide),
            ([255, 129], Fill::Special),
            ([511, 513], Fill::Uniform),
            ([2, 70_000], Fill::Uniform),
            ([600_001, 1], Fill::Integer),
            // More than a core's cache holds, in whole lines, and in lines and one element.
            ([1040, 530], Fill::Uniform),
            ([1041, 530], Fill::Uniform),
            // One column: a tile of 32 by 32 is a group, so 65,626 of them.
            ([2_100_001, 1], Fill::Uniform),
        ]);
    }
    shapes.into_iter().map(|(d, fill)| CaseSpec { dims: d.to_vec(), attrs: Attrs::new(), fill }).collect()
}

fn inplace_cases(tier: Tier) -> Vec<CaseSpec> {
    let mut sizes = vec![
        (0, Fill::Uniform),
        (1, Fill::Uniform),
        (2, Fill::Uniform),
        (31, Fill::Special),
        (32, Fill::Integer),
        (33, Fill::Uniform),
        (65, Fill::Uniform),
        (130, Fill::Wide),
    ];
    if tier == Tier::Full {
        sizes.extend([
            (3, Fill::Special),
            (5, Fill::Positive),
            (15, Fill::Cancelling),
            (16, Fill::Constant),
            (17, Fill::Onehot),
            (48, Fill::Uniform),
            (63, Fill::Wide),
            (64, Fill::Special),
            (127, Fill::Uniform),
            (256, Fill::Uniform),
            (257, Fill::Uniform),
            (511, Fill::Uniform),
        ]);
    }
    sizes.into_iter().map(|(n, fill)| CaseSpec { dims: vec![n], attrs: Attrs::new(), fill }).collect()
}
