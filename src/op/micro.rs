//! What surrounds every kernel: copies, allocation, the launch itself, waits, builds. Measured and verified like ops.

use crate::base::{Attr, AttrDecl, AttrType, Attrs, Case, Code, Cost, DType, Error, Exact, Fill, Result, host};
use crate::kernel::{self, ALLOC_TOKEN, Action, Body, Kernel, LAUNCH_TOKEN, Needs, plan_native};

use super::{
    Binding, CaseSpec, Family, Gap, Grad, OpDesc, Operand, Range, Reference, ShapeClass, Tier, Tolerance, Unit,
};

const NO_GRAD: &str = "moves bytes or measures overhead; there is nothing to differentiate";
const BYTES: &[DType] = &[DType::I32];
const NO_ATTRS: &[AttrDecl] = &[];
const NO_DATA: &str = "no operand is read, so there are no data";

/// Ops of this file.
pub(super) static OPS: &[&OpDesc] = &[&H2D, &D2H, &D2D, &LAUNCH, &ALLOC, &SYNC, &COMPILE];

/// Copies on the device, to it and from it; launches.
pub(super) static PROBES: [&OpDesc; 4] = [&D2D, &H2D, &D2H, &LAUNCH];

const fn action(action: Action) -> Kernel {
    Kernel {
        variant: "queue",
        body: Body::Action(action),
        dtypes: BYTES,
        dtypes_why: "",
        expr: "",
        needs: Needs::NONE,
        only_when_named: false,
        plan: plan_native::action,
    }
}

const COPY_FAMILY: &[Family] = &[Family {
    name: "pageable",
    doc: "n elements of i32 in ordinary memory",
    matches: |c| c.attrs.is_empty(),
    sweep: |bytes| vec![bytes.div_ceil(4)],
}];

const CALLS_FAMILY: &[Family] =
    &[Family { name: "calls", doc: "n in a row", matches: |c| c.attrs.is_empty(), sweep: |n| vec![n] }];

const HOST_MEMORY: &[AttrDecl] = &[AttrDecl {
    name: "memory",
    kind: AttrType::Word(&["pageable", "pinned", "mapped", "managed"]),
    doc: "kind of the host's memory, if the device's API has it",
}];

const DEVICE_MEMORY: &[AttrDecl] = &[AttrDecl {
    name: "memory",
    kind: AttrType::Word(&["device", "pinned", "mapped", "managed"]),
    doc: "kind of memory, if the device's API has it",
}];

const MODE: &[AttrDecl] = &[AttrDecl {
    name: "mode",
    kind: AttrType::Word(&["cold", "warm"]),
    doc: "cold: a text that no cache has seen; warm: the same again, from its compiled form or the driver's cache",
}];

const COPY_GAPS: &[Gap] =
    &[Gap::Shape(ShapeClass::Uneven, "one size only"), Gap::Shape(ShapeClass::ManyGroups, "a copy launches no groups")];

const ALLOC_GAPS: &[Gap] = &[
    Gap::Shape(ShapeClass::Uneven, "one size only"),
    Gap::Shape(ShapeClass::ManyGroups, "an allocation launches no groups"),
    Gap::Data(Fill::Positive, NO_DATA),
    Gap::Data(Fill::Integer, NO_DATA),
    Gap::Data(Fill::Special, NO_DATA),
    Gap::Data(Fill::Constant, NO_DATA),
    Gap::Data(Fill::Wide, NO_DATA),
    Gap::Data(Fill::Cancelling, NO_DATA),
    Gap::Data(Fill::Onehot, NO_DATA),
];

const BUILD_GAPS: &[Gap] = &[
    Gap::Shape(ShapeClass::Empty, "nothing to measure without a call"),
    Gap::Shape(ShapeClass::Tile, "a number of builds is no index"),
    Gap::Shape(ShapeClass::TileEdge, "a number of builds is no index"),
    Gap::Shape(ShapeClass::Uneven, "one size only"),
    Gap::Shape(ShapeClass::LongRow, "at most 65,536 calls in a row"),
    Gap::Shape(ShapeClass::ManyGroups, "each build is run by one group"),
    Gap::Data(Fill::Positive, NO_DATA),
    Gap::Data(Fill::Integer, NO_DATA),
    Gap::Data(Fill::Special, NO_DATA),
    Gap::Data(Fill::Constant, NO_DATA),
    Gap::Data(Fill::Wide, NO_DATA),
    Gap::Data(Fill::Cancelling, NO_DATA),
    Gap::Data(Fill::Onehot, NO_DATA),
];

const CALL_GAPS: &[Gap] = &[
    Gap::Shape(ShapeClass::Empty, "nothing to measure without a call"),
    Gap::Shape(ShapeClass::Uneven, "one size only"),
    Gap::Shape(ShapeClass::LongRow, "at most 65,536 calls in a row"),
    Gap::Shape(ShapeClass::ManyGroups, "each call is one group at most"),
    Gap::Data(Fill::Positive, NO_DATA),
    Gap::Data(Fill::Integer, NO_DATA),
    Gap::Data(Fill::Special, NO_DATA),
    Gap::Data(Fill::Constant, NO_DATA),
    Gap::Data(Fill::Wide, NO_DATA),
    Gap::Data(Fill::Cancelling, NO_DATA),
    Gap::Data(Fill::Onehot, NO_DATA),
];

static H2D: OpDesc = OpDesc {
    name: "h2d",
    doc: "Copy n elements from the host's memory to the device.",
    attrs: HOST_MEMORY,
    kernels: &[action(Action::Upload)],
    ..COPY
};

static D2H: OpDesc = OpDesc {
    name: "d2h",
    doc: "Copy n elements from the device to the host's memory.",
    attrs: HOST_MEMORY,
    kernels: &[action(Action::Download)],
    ..COPY
};

static D2D: OpDesc = OpDesc { cases: |tier| copies(tier, &[]), ..COPY };

/// What all copies share; as it stands, the one on the device.
const COPY: OpDesc = OpDesc {
    name: "d2d",
    doc: "Copy n elements from one buffer of the device to another.",
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
    element: None,
    whole: None,
    tolerance: Tolerance::Exact,
    domain: &[Range(-2e9, 2e9)],
    grad: Grad::None(NO_GRAD),
    kernels: &[action(Action::Copy)],
    cases: |tier| copies(tier, &["pinned", "mapped", "managed"]),
    gaps: COPY_GAPS,
};

static ALLOC: OpDesc = OpDesc {
    name: "alloc",
    doc: "Allocate a device buffer of n elements, fill it so that it is really backed, release it.",
    attrs: DEVICE_MEMORY,
    operands: &[Operand::output("y")],
    shapes: |c| Ok(vec![vec![c.dim("n")]]),
    bind: |_, _| no_call("alloc"),
    cost: |c| Cost { flops: 0, read: 0, written: c.dim("n") * 4 },
    oracle: |c, _| {
        let token = i32::from_le_bytes([ALLOC_TOKEN; 4]);
        vec![Reference {
            values: vec![Exact::I(i128::from(token)); c.dim("n") as usize],
            scale: vec![0.0; c.dim("n") as usize],
        }]
    },
    domain: &[],
    kernels: &[action(Action::Allocate)],
    cases: |tier| sizes(tier, &["pinned", "mapped", "managed"]),
    gaps: ALLOC_GAPS,
    ..COPY
};

static LAUNCH: OpDesc = OpDesc {
    name: "launch",
    doc: "n launches of one work-item that stores a token, then one wait.",
    bind: |_, _| no_call("launch"),
    cost: |c| Cost { flops: 0, read: 0, written: 4 * c.dim("n") },
    oracle: |_, _| vec![Reference { values: vec![Exact::I(i128::from(LAUNCH_TOKEN))], scale: vec![0.0] }],
    kernels: kernel::micro::TOKEN,
    ..CALLS
};

static SYNC: OpDesc = OpDesc { kernels: &[action(Action::Wait)], ..CALLS };

/// What ops in calls share; as it stands, the wait.
const CALLS: OpDesc = OpDesc {
    name: "sync",
    doc: "n waits on an idle queue; y counts those that ended as done.",
    families: CALLS_FAMILY,
    unit: Unit::Calls,
    work: |c| u128::from(c.dim("n")),
    operands: &[Operand::output("y")],
    shapes: |c| {
        if (1..=1 << 16).contains(&c.dim("n")) {
            Ok(vec![vec![1]])
        } else {
            Err(Error::new(Code::BadArgument, "1 to 65,536 calls in a row"))
        }
    },
    bind: |_, _| no_call("sync"),
    // No bytes: the one number that comes back says nothing about a rate.
    cost: |_| Cost { flops: 0, read: 0, written: 0 },
    oracle: |c, _| vec![Reference { values: vec![Exact::I(i128::from(c.dim("n")))], scale: vec![0.0] }],
    domain: &[],
    cases: calls,
    gaps: CALL_GAPS,
    ..COPY
};

static COMPILE: OpDesc = OpDesc {
    name: "compile",
    doc: "n builds of the kernel of launch, each run once; y counts those that stored their own token. On the CPU, whose \
          kernels are compiled into gpuctl, a build wraps a function.",
    attrs: MODE,
    bind: |_, _| no_call("compile"),
    kernels: &[action(Action::Build)],
    cases: builds,
    gaps: BUILD_GAPS,
    ..CALLS
};

fn no_call(op: &str) -> Result<Binding> {
    Err(Error::new(Code::OpUnsupported, format!("{op} is a measurement, not a library call")))
}

fn bind_copy(shapes: &[Vec<u64>], attrs: &Attrs) -> Result<Binding> {
    match shapes {
        [x] => Ok(Binding { dims: vec![host::count(x)?], attrs: attrs.clone(), results: vec![x.clone()] }),
        _ => Err(Error::new(Code::ShapeMismatch, format!("{} operands given, 1 is expected", shapes.len()))),
    }
}

fn copy_cost(case: &Case) -> Cost {
    let bytes = case.dim("n").saturating_mul(4);
    Cost { flops: 0, read: bytes, written: bytes }
}

fn spec(n: u64, attrs: Attrs, fill: Fill) -> CaseSpec {
    CaseSpec { dims: vec![n], attrs, fill }
}

/// Sizes, and in the full tier the other kinds of memory, which few devices have.
fn sizes(tier: Tier, memories: &[&str]) -> Vec<CaseSpec> {
    let mut all: Vec<CaseSpec> =
        [1, 3, 1025, 65_537].into_iter().map(|n| spec(n, Attrs::new(), Fill::Uniform)).collect();
    if tier == Tier::Full {
        all.extend([0, 2, 255, 4096, 1_000_003].map(|n| spec(n, Attrs::new(), Fill::Uniform)));
        for m in memories {
            let attrs = || Attrs::new().with("memory", Attr::Word((*m).into()));
            all.extend([1, 1025, 65_537].map(|n| spec(n, attrs(), Fill::Uniform)));
        }
    }
    all
}

fn copies(tier: Tier, memories: &[&str]) -> Vec<CaseSpec> {
    let mut all = sizes(tier, memories);
    if tier == Tier::Full {
        all.extend(Fill::ALL.into_iter().filter(|f| *f != Fill::Uniform).map(|f| spec(1025, Attrs::new(), f)));
    }
    all
}

fn calls(tier: Tier) -> Vec<CaseSpec> {
    let counts: &[u64] = if tier == Tier::Full { &[1, 7, 16, 17] } else { &[1, 7] };
    counts.iter().map(|n| spec(*n, Attrs::new(), Fill::Uniform)).collect()
}

/// Few: a build takes tens of milliseconds on some drivers.
fn builds(tier: Tier) -> Vec<CaseSpec> {
    let cold = if tier == Tier::Full { 5 } else { 2 };
    let warm = Attrs::new().with("mode", Attr::Word("warm".into()));
    vec![spec(1, Attrs::new(), Fill::Uniform), spec(cold, Attrs::new(), Fill::Uniform), spec(2, warm, Fill::Uniform)]
}
