//! Calls with operands in page-locked memory, which the device copies without a detour.

use std::borrow::Borrow;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::base::{HostTensor, Result};
use crate::device::{Buffer, MemoryKind, Queue};
use crate::op::Role;

use super::operand::round16;
use super::run::Prepared;

/// Page-locked copies of a case's operands, in their order: those that are read, and those that are written.
pub struct Pins {
    read: Vec<Buffer>,
    written: Vec<Buffer>,
}

impl std::fmt::Debug for Pins {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Pins({} read, {} written)", self.read.len(), self.written.len())
    }
}

impl Prepared {
    /// Page-locked host memory for the operands, holding the inputs. Errors: `FeatureUnsupported` where the API has none.
    pub fn pin<T: Borrow<HostTensor>>(&self, q: &mut dyn Queue, inputs: &[T]) -> Result<Pins> {
        let _scope = self.scope();
        let pinned = |keep: fn(Role) -> bool| -> Result<Vec<Buffer>> {
            let kept = self.operands.iter().filter(|o| keep(o.role));
            kept.map(|o| self.device.alloc(round16(o.bytes), MemoryKind::Pinned)).collect()
        };
        let all =
            || -> Result<Pins> { Ok(Pins { read: pinned(|r| r != Role::Out)?, written: pinned(|r| r != Role::In)? }) };
        let pins = all().map_err(|e| self.named(e))?;
        for (pin, t) in pins.read.iter().zip(inputs.iter().map(Borrow::borrow)) {
            q.write(pin, 0, t.bytes()).map_err(|e| self.named(e))?;
        }
        Ok(pins)
    }

    /// [`Prepared::upload`] from page-locked memory; enqueued.
    pub fn upload_pinned(&self, q: &mut dyn Queue, pins: &Pins) -> Result<()> {
        self.begin();
        let _scope = self.scope();
        for (pin, o) in pins.read.iter().zip(self.operands.iter().filter(|o| o.role != Role::Out)) {
            q.copy(pin, 0, &o.buffer, o.head, o.bytes).map_err(|e| self.named(e))?;
        }
        Ok(())
    }

    /// [`Prepared::download`] to page-locked memory; enqueued.
    pub fn download_pinned(&self, q: &mut dyn Queue, pins: &Pins) -> Result<()> {
        let _scope = self.scope();
        for (pin, o) in pins.written.iter().zip(self.operands.iter().filter(|o| o.role != Role::In)) {
            q.copy(&o.buffer, o.head, pin, 0, o.bytes).map_err(|e| self.named(e))?;
        }
        Ok(())
    }

    /// One whole call with operands in page-locked memory: the results are there at return.
    pub fn call_pinned(&self, q: &mut dyn Queue, pins: &Pins, deadline: Duration) -> Result<()> {
        let _scope = self.scope();
        self.upload_pinned(q, pins)?;
        self.launch(q)?;
        self.download_pinned(q, pins)?;
        q.finish(deadline).map_err(|e| self.named(e))?;
        self.settled.store(true, Ordering::Release);
        Ok(())
    }
}
