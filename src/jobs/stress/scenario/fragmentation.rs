//! Thousands of sizes through one pool: what is idle stays below the cap, what is lent is lent to one, all of it is given back.

use std::collections::HashSet;

use crate::base::rng::Philox;
use crate::base::{Code, Error, Result};
use crate::device::{LedgerState, Queue};
use crate::engine::{Pool, PoolConfig, Rented, Retention};

use super::Ctx;

/// Most bytes that may lie idle: little, so that the cap is met all the time.
const CAP: u64 = 8 << 20;
/// Larger buffers are never kept.
const LARGE: u64 = 1 << 20;
/// Buffers lent at once.
const HELD: usize = 48;
/// Cycles between two looks at the ledger.
const LULL: u64 = 128;

pub(super) fn run(ctx: &Ctx<'_>) -> Result<()> {
    let runner = ctx.runner();
    // Kept until the cap, whatever is asked for: the worst case.
    let config =
        PoolConfig { max_bytes: CAP, max_buffer_bytes: LARGE, retention: Retention::KeepAll, ..PoolConfig::default() };
    let pool = Pool::new(ctx.device.clone(), config);
    let rng = Philox::new(ctx.seed);
    let before = ctx.device.ledger().state();
    let mut held: Vec<(Rented, u64)> = Vec::new();
    let mut sizes = HashSet::new();
    let mut fragmented = 0.0f64;
    ctx.repeat(&runner, |q, round| {
        // Nearly every cycle a size that was not there before; one in 16 is larger than what is kept.
        let most = if round.is_multiple_of(16) { 2 * LARGE } else { 1 << (10 + rng.u64(3, round) % 10) };
        let bytes = 16 + rng.u64(0, round) % most;
        if round.is_multiple_of(32) {
            ctx.meter.doing(0, &format!("renting {round}: {bytes} bytes"));
        }
        sizes.insert(bytes);
        let mut buffer = pool.rent(bytes)?;
        mark(q, &buffer, round).inspect_err(|_| buffer.discard())?;
        held.push((buffer, round));
        let mut looked = 0;
        while held.len() > HELD {
            let (mut old, of) = held.swap_remove((rng.u64(1, round + looked) % held.len() as u64) as usize);
            looked += look(ctx, q, &old, of).inspect_err(|_| old.discard())?;
        }
        if round.is_multiple_of(8) {
            q.finish(ctx.deadline())?;
        }
        if round % LULL == LULL - 1 {
            fragmented = fragmented.max(pool.stats().fragmentation());
            for (mut old, of) in held.drain(..) {
                looked += look(ctx, q, &old, of).inspect_err(|_| old.discard())?;
            }
            ctx.meter.quiet(fits(ctx, &pool, before)?);
        }
        Ok((looked, looked))
    })?;
    let mut lease = runner.lease()?;
    for (mut old, of) in held.drain(..) {
        look(ctx, lease.queue()?, &old, of).inspect_err(|_| old.discard())?;
    }
    let stats = pool.stats();
    pool.trim();
    for (name, n) in [
        ("distinct_sizes", sizes.len() as u64),
        ("pool_hits", stats.hits),
        ("pool_misses", stats.misses),
        ("pool_over_cap", stats.over_cap),
        ("pool_peak_bytes", stats.peak_bytes),
        // Bytes that nobody asked for, of those in use, where there were most of them.
        ("pool_fragmentation_percent", (100.0 * fragmented) as u64),
    ] {
        ctx.meter.count(name, n);
    }
    Ok(())
}

/// With nothing lent: the idle bytes are below the cap, and the ledger holds these and nothing else. Returns the ledger without
/// what lies idle, which comes and goes.
fn fits(ctx: &Ctx<'_>, pool: &Pool, before: LedgerState) -> Result<LedgerState> {
    let (stats, now) = (pool.stats(), ctx.device.ledger().state());
    let broken = |why: String| Err(Error::new(Code::Internal, why).device(&ctx.device.info().id));
    if stats.idle_bytes > CAP {
        return broken(format!("{} bytes lie idle in a pool with a cap of {CAP}", stats.idle_bytes));
    }
    let live = now.buffers.saturating_sub(before.buffers);
    let (lent, idle) = (stats.live, stats.idle);
    if lent != 0 || live != idle {
        return broken(format!("{live} buffers are allocated, the pool knows of {idle} idle and {lent} lent ones"));
    }
    // Page-locked memory of a queue is in the bytes as well.
    let bytes = now.bytes.saturating_sub(before.bytes);
    if now.pinned == before.pinned && bytes != stats.idle_bytes {
        return broken(format!("{bytes} bytes are allocated, the pool knows of {} idle ones", stats.idle_bytes));
    }
    let (buffers, bytes) = (now.buffers.saturating_sub(idle), now.bytes.saturating_sub(stats.idle_bytes));
    Ok(LedgerState { buffers, bytes, ..now })
}

/// Words at the front and at the end of a buffer's whole words that say which renting wrote them.
fn ends(bytes: u64, of: u64) -> [(u64, [u8; 8]); 2] {
    let last = (bytes / 4 * 4).saturating_sub(8);
    let word = |salt: u64| (of.wrapping_add(1).wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ salt).to_le_bytes();
    [(0, word(0)), (last, word(last))]
}

fn mark(q: &mut dyn Queue, buffer: &Rented, of: u64) -> Result<()> {
    for (at, word) in ends(buffer.bytes(), of) {
        q.write(buffer, at, &word)?;
    }
    Ok(())
}

/// Reads both ends back; returns the bytes compared.
fn look(ctx: &Ctx<'_>, q: &mut dyn Queue, buffer: &Rented, of: u64) -> Result<u64> {
    let ends = ends(buffer.bytes(), of);
    // The ends of the smallest buffers overlap: what was written last holds.
    let whole = ends.iter().skip(usize::from(ends[1].0 < 8));
    let mut looked = 0;
    for (at, want) in whole {
        let mut got = [0u8; 8];
        q.read(buffer, *at, &mut got)?;
        if got != *want {
            let (got, want) = (u64::from_le_bytes(got), u64::from_le_bytes(*want));
            let bytes = buffer.bytes();
            ctx.meter.mismatch(format!(
                "rented buffer {of} of {bytes} bytes: byte {at} on reads {got:#018x}, {want:#018x} was written"
            ));
        }
        looked += 8;
    }
    Ok(looked)
}
