//! Allocate, fill, spot-check, free, in random order and sizes, every other time through a pool; at every lull the ledger must
//! be where it was. Between them bare cycles without contents, by the thousand: what loses a few bytes each time shows after
//! millions.

use std::collections::HashSet;
use std::time::Instant;

use crate::base::Result;
use crate::base::rng::Philox;
use crate::device::{Buffer, MemoryKind, Queue};
use crate::engine::{Pool, PoolConfig, Rented};

use super::Ctx;

/// Largest buffer. Sizes are spread evenly over the powers of two.
const MAX_BYTES: u64 = 1 << 20;
/// Buffers held at once at most, and their bytes.
const HELD: usize = 64;
const HELD_BYTES: u64 = 64 << 20;
/// Cycles between two lulls.
const LULL: u64 = 128;
/// Bytes looked at in each of three places of a buffer.
const SPOT: u64 = 64;
/// Bare cycles between two looks at the clock, of which the first goes past the pool.
const BURST: u64 = 32;

struct Held {
    buffer: Rented,
    mark: u64,
}

pub(super) fn run(ctx: &Ctx<'_>) -> Result<()> {
    let runner = ctx.runner();
    let mut lease = runner.lease()?;
    let pool = Pool::new(ctx.device.clone(), PoolConfig::default());
    let rng = Philox::new(ctx.seed);
    let mut held: Vec<Held> = Vec::new();
    let mut held_bytes = 0u64;
    let mut sizes = HashSet::new();
    let mut cycle = 0u64;
    let mut bare = Bare::default();
    let baseline = ctx.device.ledger().state();
    ctx.meter.testing();
    ctx.meter.doing(0, "allocating");
    while ctx.running() {
        let from = Instant::now();
        let bytes = size(&rng, cycle);
        // A name for a crash, but not one line per allocation.
        if cycle.is_multiple_of(16) {
            ctx.meter.doing(0, &format!("allocation {cycle}: {bytes} bytes"));
        }
        let q = lease.queue()?;
        let done = (|| -> Result<u64> {
            let mut buffer = match cycle % 2 {
                0 => ctx.device.alloc(bytes, MemoryKind::Device)?.into(),
                _ => pool.rent(bytes)?,
            };
            // Work that uses it may be under way after a failure.
            put(q, &buffer, cycle).inspect_err(|_| buffer.discard())?;
            if cycle.is_multiple_of(16) {
                q.finish(ctx.deadline())?;
            }
            held_bytes += bytes;
            held.push(Held { buffer, mark: cycle });
            let mut checked = 0;
            while held.len() > HELD || held_bytes > HELD_BYTES {
                let pick = (rng.u64(1, cycle + checked) % held.len() as u64) as usize;
                let old = held.swap_remove(pick);
                held_bytes -= old.buffer.bytes();
                checked += last_look(ctx, q, old)?;
            }
            Ok(checked)
        })();
        match done {
            Ok(checked) => ctx.meter.cycle(0, checked, checked, from.elapsed().as_secs_f64()),
            Err(e) => {
                lease.discard();
                if !ctx.meter.failed(&e) {
                    return Err(e);
                }
                drop(lease);
                lease = runner.lease()?;
            }
        }
        sizes.insert(bytes);
        cycle += 1;
        if cycle.is_multiple_of(LULL) {
            let q = lease.queue()?;
            held_bytes = 0;
            for old in std::mem::take(&mut held) {
                if let Err(e) = last_look(ctx, q, old)
                    && !ctx.meter.failed(&e)
                {
                    return Err(e);
                }
            }
            bare.catch_up(ctx, &pool, &rng, cycle).or_else(|e| ctx.meter.survive(e))?;
            pool.trim();
            let now = ctx.device.ledger().state();
            ctx.meter.quiet(now);
            if now.buffers > baseline.buffers {
                ctx.meter.count("lulls_above_baseline", 1);
            }
            ctx.meter.count("lulls", 1);
        }
    }
    // What came since the last lull.
    if !ctx.meter.stop.raised() {
        bare.catch_up(ctx, &pool, &rng, cycle).or_else(|e| ctx.meter.survive(e))?;
    }
    let q = lease.queue()?;
    for old in held.drain(..) {
        if let Err(e) = last_look(ctx, q, old)
            && !ctx.meter.failed(&e)
        {
            return Err(e);
        }
    }
    let cycles = cycle + bare.raw + bare.pooled;
    if (cycles as f64) < aim(ctx.seconds) && !ctx.meter.stop.raised() {
        ctx.meter.not_tested(format!("{:.0} cycles: there was time for {cycles}", aim(ctx.seconds)));
    }
    ctx.meter.count("cycles", cycles);
    ctx.meter.count("cycles_bare_raw", bare.raw);
    ctx.meter.count("cycles_bare_pooled", bare.pooled);
    let pooled = pool.stats();
    ctx.meter.count("pool_hits", pooled.hits);
    ctx.meter.count("pool_misses", pooled.misses);
    ctx.meter.count("pool_peak_bytes", pooled.peak_bytes);
    ctx.meter.count("distinct_sizes", sizes.len() as u64);
    Ok(())
}

/// Cycles that a phase should reach. A run of an hour gives each scenario 257 s: 10 million; one of a minute 4 s: 160,000.
fn aim(seconds: f64) -> f64 {
    (40_000.0 * seconds).min(1e7)
}

/// Cycles that only allocate and free.
#[derive(Default)]
struct Bare {
    raw: u64,
    pooled: u64,
    seconds: f64,
}

impl Bare {
    /// As many as the pace of [`aim`] asks for by now, in at most half of the phase's time.
    fn catch_up(&mut self, ctx: &Ctx<'_>, pool: &Pool, rng: &Philox, full: u64) -> Result<()> {
        let from = Instant::now();
        let behind =
            |bare: &Bare| ((full + bare.raw + bare.pooled) as f64) < aim(ctx.seconds) * ctx.elapsed() / ctx.seconds;
        let more = |bare: &Bare| bare.seconds + from.elapsed().as_secs_f64() < ctx.elapsed() / 2.0;
        while behind(self) && more(self) && !ctx.meter.stop.raised() {
            let at = self.raw + self.pooled;
            drop(ctx.device.alloc(size(rng, at), MemoryKind::Device)?);
            self.raw += 1;
            for i in 1..BURST {
                drop(pool.rent(size(rng, at + i))?);
                self.pooled += 1;
            }
            ctx.meter.step(0);
        }
        self.seconds += from.elapsed().as_secs_f64();
        Ok(())
    }
}

/// 1 to [`MAX_BYTES`] bytes, every power of two as likely as the next.
fn size(rng: &Philox, cycle: u64) -> u64 {
    let top = MAX_BYTES.ilog2();
    let power = rng.u64(2, cycle) % u64::from(top);
    (1 << power) + rng.u64(3, cycle) % (1 << power) + 1
}

/// The byte a buffer is filled with; never zero, so that fresh memory does not pass for it.
fn value(mark: u64) -> u8 {
    (mark % 251) as u8 + 1
}

/// Fills all of a buffer and writes its mark at the front.
fn put(q: &mut dyn Queue, buffer: &Buffer, mark: u64) -> Result<()> {
    let whole = buffer.bytes() / 4 * 4;
    q.fill(buffer, 0, whole, value(mark))?;
    if buffer.bytes() >= 8 {
        q.write(buffer, 0, &mark.to_le_bytes())?;
    }
    Ok(())
}

/// [`look`] at a buffer that then goes back: its reads have waited for all work that uses it, unless they failed.
fn last_look(ctx: &Ctx<'_>, q: &mut dyn Queue, mut held: Held) -> Result<u64> {
    look(ctx, q, &held).inspect_err(|_| held.buffer.discard())
}

/// Reads front, middle and end back and compares; returns the bytes compared.
fn look(ctx: &Ctx<'_>, q: &mut dyn Queue, held: &Held) -> Result<u64> {
    let whole = held.buffer.bytes() / 4 * 4;
    let len = SPOT.min(whole);
    if len == 0 {
        // Fills work in words of four bytes: the smallest buffers are only allocated and freed.
        return Ok(0);
    }
    let mut spots = vec![0, (whole - len) / 8 * 4, whole - len];
    spots.dedup();
    let mut out = vec![0u8; len as usize];
    for at in &spots {
        q.read(&held.buffer, *at, &mut out)?;
        let mark = held.mark.to_le_bytes();
        let want = |i: u64| if i < 8 && held.buffer.bytes() >= 8 { mark[i as usize] } else { value(held.mark) };
        if let Some(i) = (0..len).find(|i| out[*i as usize] != want(at + i)) {
            ctx.meter.mismatch(format!(
                "buffer {} of {} bytes: byte {} is {:#04x}, {:#04x} was written",
                held.mark,
                held.buffer.bytes(),
                at + i,
                out[i as usize],
                want(at + i)
            ));
        }
    }
    Ok(len * spots.len() as u64)
}

#[cfg(test)]
mod tests {
    use super::aim;

    #[test]
    fn an_hour_has_ten_million_cycles_and_a_minute_a_hundred_thousand() {
        // Alone, and as one of fourteen scenarios.
        let shares = [3600.0, 3600.0 / 14.0, 60.0, 60.0 / 14.0].map(aim);
        assert!(shares[0] >= 1e7 && shares[1] >= 1e7 && shares[2] >= 1e5 && shares[3] >= 1e5, "{shares:?}");
    }
}
