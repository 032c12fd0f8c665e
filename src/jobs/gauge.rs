//! What tells the state that a device is in: a short call that is always the same, timed right before and after a look.

use std::cell::Cell;
use std::time::Duration;

use crate::base::{Attrs, DType, Fill, HostTensor, Result};
use crate::engine::{Prepared, Runner};
use crate::measure::{OpSubject, Residency, Subject};
use crate::op::{self, case};

/// Elements of it: 256 KiB to read and as much to write, which a device has in its caches.
const ELEMENTS: u64 = 65_536;

/// Calls of which the fastest counts: the first one finds a device as whatever came before has left it.
const CALLS: usize = 2;

/// The call on one device: `relu`, which every backend has and which does next to nothing but read and write.
#[derive(Debug)]
pub(super) struct Gauge {
    kernel: Prepared,
    inputs: Vec<HostTensor>,
    /// Whether its operands are there.
    filled: Cell<bool>,
}

impl Gauge {
    /// Errors: those of building it.
    pub(super) fn new(runner: &Runner) -> Result<Self> {
        let op = op::find("relu")?;
        let case = op.case(DType::F32, &[ELEMENTS], Attrs::new(), Fill::Uniform)?;
        Ok(Gauge {
            kernel: runner.prepare(op, &case, None)?,
            inputs: case::inputs(op, &case)?,
            filled: Cell::new(false),
        })
    }

    /// Its operands where those of a look are. Errors: those of the device.
    pub(super) fn subject<'a>(
        &'a self,
        runner: &'a Runner,
        residency: Residency,
        deadline: Duration,
    ) -> Result<OpSubject<'a>> {
        // What migrates has memory of its own each time.
        let there = self.filled.get() && !matches!(residency, Residency::Managed | Residency::ManagedPrefetched);
        let make = if there { OpSubject::again } else { OpSubject::new };
        let subject = make(runner, &self.kernel, &self.inputs, residency, deadline)?.single();
        self.filled.set(true);
        Ok(subject)
    }
}

/// Seconds of a call. Errors: those of the device.
pub(super) fn seconds(subject: &mut OpSubject<'_>) -> Result<f64> {
    let clock = subject.clock();
    let mut least = f64::INFINITY;
    for _ in 0..CALLS {
        subject.before()?;
        let begin = clock.now();
        subject.run(1)?;
        least = least.min((clock.now() - begin) / subject.share() as f64);
    }
    Ok(least)
}
