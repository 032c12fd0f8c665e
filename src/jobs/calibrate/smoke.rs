//! Whether a device's results may be trusted before its speed is looked at.

use std::time::Duration;

use crate::base::{Case, DType, Error, Fill, HostTensor, Result};
use crate::engine::Runner;
use crate::engine::judge::{self, Judged};
use crate::engine::trials::{Finding, Verdict};
use crate::jobs::gross;
use crate::kernel;
use crate::op::{OpDesc, Tier};

/// Elements of all operands beyond which a case is left to `verify`: the oracle takes microseconds per element.
const SMALL: u64 = 8192;

/// Elements of an output that are compared at each measured size, some milliseconds' work; all of a shorter one.
const PROBES: u64 = 1 << 16;

/// What the check found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Trust {
    /// All cases within their bounds.
    Ok,
    /// A result is wrong: case, element, values and bound; and the same for those who ask later.
    Wrong(String, Finding),
    /// Nothing can be judged, and why.
    Unjudged(String),
}

/// Runs the op's small smoke cases on the device and compares every element with the oracle's, within the op's bound.
/// Non-finite data is left to `verify`, which knows what each language leaves open.
pub(super) fn check(runner: &Runner, op: &'static OpDesc, dtype: DType, deadline: Duration) -> Result<Trust> {
    let info = runner.device().info();
    let mut judged = 0u64;
    for spec in op.specs(Tier::Smoke, dtype).into_iter().filter(|s| s.fill != Fill::Special) {
        let c = op.case(dtype, &spec.dims, spec.attrs, spec.fill)?;
        let elements: u64 = (op.shapes)(&c)?.iter().map(|s| s.iter().product::<u64>()).sum();
        if elements > SMALL {
            continue;
        }
        let choice = kernel::choose(op.kernels, &c, info, None)?;
        let programs = judge::programs(op, &c, &choice, info)?;
        match judge::judge(runner, op, &c, choice, deadline)? {
            Judged::Right(compared) => judged += compared,
            Judged::Wrong(found) => {
                let verdict = Verdict::Wrong { case: c.to_string(), found: found.clone() };
                return Ok(Trust::Wrong(format!("{c}: {found}"), Finding { uid: info.uid.clone(), programs, verdict }));
            }
            Judged::Unjudged(why) => return Ok(Trust::Unjudged(why)),
        }
    }
    Ok(if judged > 0 { Trust::Ok } else { Trust::Unjudged("the op has no small case to judge".into()) })
}

/// Compares a measured run's outputs with the CPU's at evenly spread elements, for gross errors only: skipped work,
/// shifted or stale data ([`gross::wrong`]).
pub(in crate::jobs) fn gross_error(c: &Case, got: &[HostTensor], want: &[HostTensor]) -> Option<String> {
    let of = |w: gross::Wrong| {
        let (i, a, b) = (w.element, w.got.to_f64(), w.want.to_f64());
        format!("{c}: element {i} is {a:e} in the measured run, the CPU has {b:e}")
    };
    gross::wrong(c, got, want, PROBES).map(of)
}

/// True for errors after which the device is of no use to this process.
pub(super) fn fatal(e: &Error) -> bool {
    matches!(e.class(), crate::base::Class::Sticky | crate::base::Class::Lost)
}
