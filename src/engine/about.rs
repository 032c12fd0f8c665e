//! What an error of a call is told about: op, shape, device, kernel, launch and the device's memory.

use std::sync::Arc;

use crate::base::{Case, Class, Error, LaunchShape, MemorySnapshot};
use crate::device::{Device, MemoryState};
use crate::kernel::Choice;
use crate::op::OpDesc;

/// The kernel and launch of a call, cheap to make for calls that do not fail.
#[derive(Clone, Debug)]
pub(super) struct About {
    variant: &'static str,
    entries: Vec<&'static str>,
    launch: Option<LaunchShape>,
}

impl About {
    /// Of the largest step of a plan.
    pub(super) fn of(choice: &Choice) -> Self {
        let largest = choice.plan.steps.iter().max_by_key(|s| s.groups.iter().product::<u64>());
        About {
            variant: choice.kernel.variant,
            entries: choice.plan.steps.iter().map(|s| s.entry).collect(),
            launch: largest.map(|s| LaunchShape { groups: s.groups, group: s.group }),
        }
    }

    /// All entry points.
    pub(super) fn entries(&self) -> String {
        self.entries.join(", ")
    }

    /// Tells an error what it was about.
    pub(super) fn tell(&self, e: Error, device: &Arc<dyn Device>, op: &OpDesc, case: &Case) -> Error {
        let memory = snapshot(device, e.class());
        let e = e.op(op.name).shape(&case.shape_text()).device(&device.info().id).dtype(case.dtype).memory(memory);
        let e = e.kernel(self.variant, &self.entries());
        match self.launch {
            Some(launch) => e.launch(launch),
            None => e,
        }
    }
}

/// A device's memory now. One that may be lost or hang is not asked; the ledger is ours.
fn snapshot(device: &Arc<dyn Device>, class: Class) -> MemorySnapshot {
    let told = match class {
        Class::Lost | Class::Sticky => MemoryState { total: device.info().memory_bytes, free: None },
        _ => device.memory(),
    };
    let ours = device.ledger().state();
    MemorySnapshot {
        total: told.total,
        free: told.free,
        held: ours.bytes,
        peak: ours.peak_bytes,
        buffers: ours.buffers + ours.pinned,
    }
}
