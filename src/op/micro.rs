//! What surrounds every kernel: copies, allocation, the launch itself. Measured and verified like ops.

use crate::base::{AttrDecl, Attrs, Case, Code, Cost, DType, Error, Exact, Fill, Result, host};
use crate::kernel::cpu::micro;
use crate::kernel::{ALLOC_TOKEN, Action, Body, Kernel, LAUNCH_TOKEN, Needs, plan_c, plan_native, plan_wgsl};

use super::{CaseSpec, DTypeRule, Family, Grad, OpDesc, Operand, Range, Reference, Role, Tier, Tolerance, Unit};

const C_TEXT: &str = include_str!("../../kernels/micro.c");
const WGSL_TEXT: &str = include_str!("../../kernels/micro.wgsl");
const NO_GRAD: &str = "moves bytes or measures overhead; there is nothing to differentiate";
const BYTES: &[DType] = &[DType::I32];
const NO_ATTRS: &[AttrDecl] = &[];

/// Ops of this file.
pub(super) static OPS: &[&OpDesc] = &[&H2D, &D2H, &LAUNCH, &ALLOC];

const ACTION: Kernel = Kernel {
    variant: "queue",
    body: Body::Action(Action::Upload),
    dtypes: BYTES,
    dtypes_why: "",
    expr: "",
    needs: Needs::NONE,
    only_when_named: false,
    plan: plan_native::action,
};

const COPY_FAMILY: &[Family] = &[Family {
    name: "pageable",
    doc: "n elements of i32 in ordinary host memory",
    matches: |_| true,
    sweep: |bytes| vec![bytes.div_ceil(4)],
}];

static H2D: OpDesc = OpDesc {
    name: "h2d",
    doc: "Copy n elements from pageable host memory to the device.",
    tier: 1,
    onnx: None,
    dims: &["n"],
    families: COPY_FAMILY,
    unit: Unit::Bytes,
    work: |c| u128::from(c.dim("n")) * 4,
    attrs: NO_ATTRS,
    dtypes: BYTES,
    operands: &[Operand::input("x"), Operand::output("y")],
    shapes: |c| Ok(vec![vec![c.dim("n")]; 2]),
    bind: bind_copy,
    cost: copy_cost,
    oracle: |_, x| vec![Reference { values: x[0].clone(), scale: vec![0.0; x[0].len()] }],
    tolerance: Tolerance::Exact,
    domain: &[Range(-2e9, 2e9)],
    grad: Grad::None(NO_GRAD),
    kernels: &[Kernel { body: Body::Action(Action::Upload), ..ACTION }],
    cases: sizes,
};

static D2H: OpDesc = OpDesc {
    name: "d2h",
    doc: "Copy n elements from the device to pageable host memory.",
    tier: 1,
    onnx: None,
    dims: &["n"],
    families: COPY_FAMILY,
    unit: Unit::Bytes,
    work: |c| u128::from(c.dim("n")) * 4,
    attrs: NO_ATTRS,
    dtypes: BYTES,
    operands: &[Operand::input("x"), Operand::output("y")],
    shapes: |c| Ok(vec![vec![c.dim("n")]; 2]),
    bind: bind_copy,
    cost: copy_cost,
    oracle: |_, x| vec![Reference { values: x[0].clone(), scale: vec![0.0; x[0].len()] }],
    tolerance: Tolerance::Exact,
    domain: &[Range(-2e9, 2e9)],
    grad: Grad::None(NO_GRAD),
    kernels: &[Kernel { body: Body::Action(Action::Download), ..ACTION }],
    cases: sizes,
};

static ALLOC: OpDesc = OpDesc {
    name: "alloc",
    doc: "Allocate a device buffer of n elements, fill it so that it is really backed, release it.",
    tier: 1,
    onnx: None,
    dims: &["n"],
    families: COPY_FAMILY,
    unit: Unit::Bytes,
    work: |c| u128::from(c.dim("n")) * 4,
    attrs: NO_ATTRS,
    dtypes: BYTES,
    operands: &[Operand::output("y")],
    shapes: |c| Ok(vec![vec![c.dim("n")]]),
    bind: |_, _| Err(Error::new(Code::OpUnsupported, "alloc is a measurement, not a library call")),
    cost: |c| Cost { flops: 0, read: 0, written: c.dim("n") * 4 },
    oracle: |c, _| {
        let token = i32::from_le_bytes([ALLOC_TOKEN; 4]);
        vec![Reference {
            values: vec![Exact::I(i128::from(token)); c.dim("n") as usize],
            scale: vec![0.0; c.dim("n") as usize],
        }]
    },
    tolerance: Tolerance::Exact,
    domain: &[],
    grad: Grad::None(NO_GRAD),
    kernels: &[Kernel { body: Body::Action(Action::Allocate), ..ACTION }],
    cases: sizes,
};

const TOKEN_KERNEL: Kernel = Kernel {
    variant: "token",
    body: Body::Native(micro::launch),
    dtypes: BYTES,
    dtypes_why: "",
    expr: "",
    needs: Needs::NONE,
    only_when_named: false,
    plan: plan_native::launch,
};

static LAUNCH: OpDesc = OpDesc {
    name: "launch",
    doc: "n launches of one work-item that stores a token, then one wait.",
    tier: 1,
    onnx: None,
    dims: &["n"],
    families: &[Family { name: "calls", doc: "n launches in one submission", matches: |_| true, sweep: |n| vec![n] }],
    unit: Unit::Calls,
    work: |c| u128::from(c.dim("n")),
    attrs: NO_ATTRS,
    dtypes: BYTES,
    operands: &[Operand { name: "y", role: Role::Out, dtype: DTypeRule::Same }],
    shapes: |c| {
        if (1..=1 << 16).contains(&c.dim("n")) {
            Ok(vec![vec![1]])
        } else {
            Err(Error::new(Code::BadArgument, "1 to 65,536 launches make one submission"))
        }
    },
    bind: |_, _| Err(Error::new(Code::OpUnsupported, "launch is a measurement, not a library call")),
    cost: |c| Cost { flops: 0, read: 0, written: 4 * c.dim("n") },
    oracle: |_, _| vec![Reference { values: vec![Exact::I(i128::from(LAUNCH_TOKEN))], scale: vec![0.0] }],
    tolerance: Tolerance::Exact,
    domain: &[],
    grad: Grad::None(NO_GRAD),
    kernels: &[
        Kernel { body: Body::C(C_TEXT), plan: plan_c::launch, ..TOKEN_KERNEL },
        Kernel { body: Body::Wgsl(WGSL_TEXT), plan: plan_wgsl::launch, ..TOKEN_KERNEL },
        TOKEN_KERNEL,
    ],
    cases: |_| {
        [1, 7].into_iter().map(|n| CaseSpec { dims: vec![n], attrs: Attrs::new(), fill: Fill::Uniform }).collect()
    },
};

fn bind_copy(shapes: &[Vec<u64>], _: &Attrs) -> Result<(Vec<u64>, Attrs)> {
    match shapes {
        [x] => Ok((vec![host::count(x)?], Attrs::new())),
        _ => Err(Error::new(Code::ShapeMismatch, format!("{} operands given, 1 is expected", shapes.len()))),
    }
}

fn copy_cost(case: &Case) -> Cost {
    Cost { flops: 0, read: case.dim("n") * 4, written: case.dim("n") * 4 }
}

fn sizes(tier: Tier) -> Vec<CaseSpec> {
    let mut sizes = vec![1, 3, 1025, 65_537];
    if tier == Tier::Full {
        sizes.extend([2, 255, 4096, 1_000_003]);
    }
    sizes.into_iter().map(|n| CaseSpec { dims: vec![n], attrs: Attrs::new(), fill: Fill::Uniform }).collect()
}
