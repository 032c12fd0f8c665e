//! Allocate, launch and free without waiting: a buffer that is freed while a kernel still reads it, and lent to the next one,
//! shows in what that kernel made.

use crate::base::rng::Philox;
use crate::base::{HostTensor, Result};
use crate::device::MemoryKind;
use crate::op::Unit;

use super::Ctx;
use super::reference::{Golden, build, candidates};

/// Operand bytes of one case at most, and of all together.
const MAX_CASE: u64 = 64 << 10;
const MAX_TOTAL: u64 = 16 << 20;
/// Cases of a phase: the order changes, not the kernels.
const CASES: usize = 48;
/// Calls between two looks.
const BATCH: u64 = 24;

pub(super) fn run(ctx: &Ctx<'_>) -> Result<()> {
    let runner = ctx.runner();
    let mut candidates = candidates(&runner, MAX_CASE);
    // Transfers and allocations by themselves are other scenarios' matter, and so is what they leave out.
    candidates.cases.retain(|(op, _)| !matches!(op.unit, Unit::Bytes | Unit::Calls));
    candidates.cases.truncate(CASES);
    candidates.left_out.clear();
    let goldens = build(ctx, &runner, candidates, 0.25 * ctx.seconds, MAX_TOTAL)?;
    ctx.meter.count("cases", goldens.len() as u64);
    if goldens.is_empty() {
        return Ok(());
    }
    let room: u64 = goldens.iter().map(Golden::room).max().unwrap_or(0);
    let rng = Philox::new(ctx.seed);
    ctx.repeat(&runner, |q, round| {
        ctx.meter.doing(0, &format!("batch {round} of {BATCH} calls"));
        let kept = ctx.device.alloc(BATCH * room, MemoryKind::Device)?;
        let picks: Vec<&Golden> =
            (0..BATCH).map(|i| &goldens[(rng.u64(round, i) % goldens.len() as u64) as usize]).collect();
        for (golden, slot) in picks.iter().zip(0..) {
            let prepared = runner.prepare(golden.op, &golden.case, None)?;
            prepared.poison(q)?;
            prepared.upload(q, &golden.inputs)?;
            prepared.launch(q)?;
            prepared.copy_results(q, &kept, slot * room)?;
            ctx.meter.step(0);
            // Its buffers go here, with all of its work still under way.
        }
        q.finish(ctx.deadline())?;
        let mut bytes = 0;
        for (golden, slot) in picks.iter().zip(0..) {
            let mut at = slot * room;
            let mut got = Vec::new();
            for want in &golden.want {
                let mut t = HostTensor::zeros(want.dtype, &want.shape)?;
                q.read(&kept, at, t.bytes_mut())?;
                at += rounded(want);
                got.push(t);
            }
            golden.wrong(&got).into_iter().for_each(|wrong| ctx.meter.mismatch(wrong));
            bytes += golden.bytes;
        }
        ctx.meter.count("calls", BATCH);
        drop(kept);
        ctx.meter.quiet(ctx.device.ledger().state());
        Ok((bytes, bytes))
    })?;
    ctx.count_kernels(&runner);
    Ok(())
}

/// Bytes that [`crate::engine::Prepared::copy_results`] sets aside for a result.
fn rounded(t: &HostTensor) -> u64 {
    (t.bytes().len() as u64).max(1).div_ceil(16) * 16
}

impl Golden {
    /// Bytes of all results side by side.
    fn room(&self) -> u64 {
        self.want.iter().map(rounded).sum()
    }
}
