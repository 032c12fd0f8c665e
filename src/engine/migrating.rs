//! Calls with operands in memory that migrates between host and device.

use crate::base::Result;
use crate::device::{Buffer, MemoryKind, Place, Queue};
use crate::kernel;
use crate::op::Role;

use super::operand::round16;
use super::run::{Guard, Prepared, Runner};

impl Runner {
    /// The same case with the same kernel, its operands in managed memory; its scratch stays in the device's own.
    ///
    /// Errors: `FeatureUnsupported` where the API has no such memory; otherwise as [`Runner::prepare`].
    pub fn prepare_migrating(&self, like: &Prepared) -> Result<Prepared> {
        let (op, case) = (like.op(), like.case());
        let given = like
            .operand_bytes()
            .map(|bytes| Ok(Some((self.device().alloc(round16(bytes) + Guard::LIGHT.tail, MemoryKind::Managed)?, 0))))
            .collect::<Result<Vec<Option<(Buffer, u64)>>>>()
            .map_err(|e| like.named(e))?;
        let choice = kernel::choose(op.kernels, case, self.device().info(), Some(like.variant))?;
        self.prepare_with(op, case, choice, Guard::LIGHT, &given)
    }
}

impl Prepared {
    /// Bytes of each operand, in order.
    fn operand_bytes(&self) -> impl Iterator<Item = u64> {
        self.operands.iter().map(|o| o.bytes)
    }

    /// Sends the operands whose role `which` accepts to a side, after all work enqueued before; enqueued.
    ///
    /// Errors: `FeatureUnsupported` where they do not lie in managed memory, or the driver moves it only when it is touched.
    pub fn send(&self, q: &mut dyn Queue, to: Place, which: fn(Role) -> bool) -> Result<()> {
        self.begin();
        let _scope = self.scope();
        let sent = self.operands.iter().filter(|o| which(o.role));
        sent.into_iter().try_for_each(|o| q.prefetch(&o.buffer, to)).map_err(|e| self.named(e))
    }
}
