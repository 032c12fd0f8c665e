//! What the ops over one run of n elements share: their family, oracle loops and cases.

use crate::base::{Attr, Attrs, Case, Exact, Fill, HostTensor};

use super::{CaseSpec, Family, Gap, Reference, ShapeClass, Tier};

/// One family: the cost depends on the number of elements alone.
pub(super) const FLAT: &[Family] =
    &[Family { name: "all", doc: "any number of elements", matches: |_| true, sweep: |n| vec![n] }];

/// What one dimension cannot show, and what would take gigabytes.
pub(super) const GAPS: &[Gap] = &[
    Gap::Shape(ShapeClass::Uneven, "one size only"),
    Gap::Shape(
        ShapeClass::ManyGroups,
        "groups take 1,024 elements on a GPU: 67 million; 16.8 million in WGSL's groups are in tests/wgpu.rs",
    ),
];

/// One element: the case and the read operands' elements -> exact value and scale.
pub(super) type Point = fn(&Case, &[Exact]) -> (Exact, f64);

/// All elements, one after another.
pub(super) fn oracle(case: &Case, x: &[Vec<Exact>], point: Point) -> Vec<Reference> {
    let n = case.dim("n") as usize;
    let (mut values, mut scale) = (Vec::with_capacity(n), Vec::with_capacity(n));
    let mut at = Vec::with_capacity(x.len());
    for i in 0..n {
        at.clear();
        at.extend(x.iter().map(|operand| operand[i]));
        let (v, s) = point(case, &at);
        values.push(v);
        scale.push(s);
    }
    vec![Reference { values, scale }]
}

/// Element `i` alone.
pub(super) fn element(case: &Case, x: &[HostTensor], i: u64, point: Point) -> (Exact, f64) {
    let at: Vec<_> = x.iter().map(|operand| Exact::read(operand, i)).collect();
    point(case, &at)
}

/// Sizes and data for ops of one dimension; each of `attrs` gets cases of its own besides the default's.
pub(super) fn cases(tier: Tier, attrs: &[(&str, f64)]) -> Vec<CaseSpec> {
    let mut specs = Vec::new();
    let mut push = |n: u64, fill, attrs: Attrs| specs.push(CaseSpec { dims: vec![n], attrs, fill });
    for n in [0, 1, 2, 257, 1025, 65_537] {
        push(n, Fill::Uniform, Attrs::new());
    }
    push(1000, Fill::Special, Attrs::new());
    push(1000, Fill::Wide, Attrs::new());
    for (name, value) in attrs {
        push(255, Fill::Uniform, Attrs::new().with(name, Attr::Float(*value)));
    }
    if tier != Tier::Full {
        return specs;
    }
    for n in [3, 31, 32, 33, 127, 128, 129, 255, 256, 1023, 65_535, 600_011] {
        push(n, Fill::Uniform, Attrs::new());
    }
    for (n, fill) in [
        (4099, Fill::Special),
        (4099, Fill::Wide),
        (1000, Fill::Positive),
        (1025, Fill::Integer),
        (257, Fill::Constant),
        (1000, Fill::Cancelling),
        (513, Fill::Onehot),
    ] {
        push(n, fill, Attrs::new());
    }
    for (name, value) in attrs {
        push(1025, Fill::Special, Attrs::new().with(name, Attr::Float(*value)));
        push(1001, Fill::Integer, Attrs::new().with(name, Attr::Float(*value)));
    }
    specs
}
