//! Allocate until memory runs out, work on meanwhile, release half, go on.
//!
//! Where the device computes in the host's memory the end is a limit of this file's own ([`Capped`]), so that the machine
//! lives; a card's memory runs out for real. A counter says which it was.

use std::sync::Arc;

use crate::base::rng::Philox;
use crate::base::{Class, Clock, Code, DeviceClass, DeviceInfo, Error, Result, os};
use crate::device::tap::Tap;
use crate::device::{Buffer, Device, Health, Ledger, MemoryKind, MemoryState, Program, Queue, Source};
use crate::engine::Engine;

use super::Ctx;
use super::known::{Known, engine};

/// Part of the host's free memory that may be held, and these bytes at most.
const PART: f64 = 0.25;
const MOST: u64 = 512 << 20;
/// Bytes per second of the phase: a round must end.
const PACE: f64 = 100e6;
/// Buffers until the memory is full, about.
const CHUNKS: u64 = 24;
/// The last gaps are filled with buffers down to this size: an operand of a call must not fit.
const SMALLEST: u64 = 512;
/// Bytes written at each end of a buffer; all of it on a card.
const END: u64 = 4096;
/// A card that has less than this part free when it is full by its own word told the truth.
const HONEST: f64 = 0.5;

/// A device of which no more than some bytes can be had.
struct Capped {
    inner: Arc<dyn Device>,
    limit: u64,
    before: u64,
}

impl Capped {
    fn held(&self) -> u64 {
        self.inner.ledger().state().bytes.saturating_sub(self.before)
    }
}

impl Device for Capped {
    fn info(&self) -> &DeviceInfo {
        self.inner.info()
    }
    fn serial(&self) -> u64 {
        self.inner.serial()
    }
    fn clock(&self) -> Arc<dyn Clock> {
        self.inner.clock()
    }
    fn ledger(&self) -> &Arc<Ledger> {
        self.inner.ledger()
    }
    fn memory(&self) -> MemoryState {
        self.inner.memory()
    }
    fn alloc(&self, bytes: u64, kind: MemoryKind) -> Result<Buffer> {
        let held = self.held();
        // Larger than any buffer may be is the device's own affair.
        if bytes <= self.info().max_alloc_bytes && held.saturating_add(bytes) > self.limit {
            let why = format!("{bytes} bytes with {held} held: the limit of this test is {}", self.limit);
            return Err(Error::new(Code::OutOfDeviceMemory, why).device(&self.info().id));
        }
        self.inner.alloc(bytes, kind)
    }
    fn build(&self, source: Source<'_>, cached: Option<&[u8]>) -> Result<Program> {
        self.inner.build(source, cached)
    }
    fn queue(&self) -> Result<Box<dyn Queue>> {
        self.inner.queue()
    }
    fn health(&self) -> Health {
        self.inner.health()
    }
    fn tap(&self) -> Option<&Tap> {
        self.inner.tap()
    }
}

/// One buffer with what was written to it.
struct Chunk {
    buffer: Buffer,
    mark: u8,
    whole: bool,
}

pub(super) fn run(ctx: &Ctx<'_>) -> Result<()> {
    let runner = ctx.runner();
    let info = ctx.device.info();
    let own = matches!(info.class, DeviceClass::Discrete) && !info.unified_memory && ctx.device.memory().free.is_some();
    let free = os::memory().map_or(MOST, |m| m.1);
    let room = ((PART * free as f64) as u64).min((PACE * ctx.seconds) as u64).clamp(4 << 20, MOST);
    let limit = if own { u64::MAX } else { room };
    let before = ctx.device.ledger().state().bytes;
    let device: Arc<dyn Device> = Arc::new(Capped { inner: Arc::clone(&ctx.device), limit, before });
    let known = Known::new(ctx.seed)?;
    let on_it = || {
        let again = Arc::clone(&device);
        engine(ctx, Arc::new(move || Ok(Arc::clone(&again))))
    };
    // One that has idle memory of its own when all is gone, and one that has none.
    let engines = [on_it().build()?, on_it().without_pool().build()?];
    // Kernels are built while there is memory.
    engines.iter().try_for_each(|e| works(ctx, e, &known))?;
    let rng = Philox::new(ctx.seed);
    ctx.meter.count("limit_bytes", if own { 0 } else { limit });
    let ended = ctx.repeat(&runner, |q, round| {
        let mut held = Vec::new();
        full(ctx, q, &*device, limit, &mut held, &rng, round)?;
        // Work goes on, here or on the CPU, and is right either way.
        ctx.meter.doing(0, &format!("round {round}: calls with the memory full"));
        for (engine, pooled) in engines.iter().zip([true, false]) {
            let out = known.call(ctx, engine)?;
            let internal = |why: String| Err(Error::new(Code::Internal, why).device(&ctx.device.info().id));
            match &out.fallback {
                Some(why) if why.contains("memory") => ctx.meter.count("fallbacks_when_full", 1),
                Some(why) => return internal(format!("no lack of memory made it fall back: {why}")),
                None if !pooled && !own => return internal("a call found memory that is not there".into()),
                None => ctx.meter.count("calls_when_full", 1),
            }
        }
        too_large(ctx, &*device)?;
        let mut checked = look(ctx, q, &held)?;
        ctx.meter.doing(0, &format!("round {round}: releasing half"));
        let half = held.len() / 2;
        held.truncate(half);
        engines.iter().try_for_each(|e| works(ctx, e, &known))?;
        checked += 4 * known.bytes() + look(ctx, q, &held)?;
        drop(held);
        Ok((checked, checked))
    });
    drop(engines);
    ctx.meter.quiet(ctx.device.ledger().state());
    ended
}

/// A call that must run on the device, at once: with the memory full calls are made again, with memory to be had none is.
fn works(ctx: &Ctx<'_>, engine: &Engine, known: &Known) -> Result<()> {
    let before = engine.stats().retries;
    let out = known.call(ctx, engine)?;
    let again = engine.stats().retries - before;
    match out.fallback {
        Some(why) => Err(Error::new(Code::OutOfDeviceMemory, format!("with memory to be had: {why}"))),
        None if again > 0 => Err(Error::new(Code::LaunchFailed, "with memory to be had a call was made twice")),
        None => Ok(()),
    }
}

/// Allocates until nothing more is to be had.
fn full(
    ctx: &Ctx<'_>,
    q: &mut dyn Queue,
    device: &dyn Device,
    limit: u64,
    held: &mut Vec<Chunk>,
    rng: &Philox,
    round: u64,
) -> Result<()> {
    let own = limit == u64::MAX;
    let free = ctx.device.memory().free;
    let all = if own { free.unwrap_or(MOST) } else { limit };
    let most = (all / CHUNKS).clamp(1 << 16, device.info().max_alloc_bytes.max(1 << 16));
    let mut size = most;
    let mut bytes = 0u64;
    // Three in four of the size; sizes of real programs differ.
    let next = |size: u64, n: u64| (size - rng.u64(round, n) % (size / 4).max(1)).next_multiple_of(16);
    let mut ends = 0;
    while size >= SMALLEST && !ctx.meter.stop.raised() {
        let want = next(size, held.len() as u64);
        ctx.meter.doing(0, &format!("round {round}: allocation {} of {want} bytes", held.len()));
        match device.alloc(want, MemoryKind::Device) {
            Ok(buffer) => {
                let chunk = Chunk { buffer, mark: (held.len() % 251) as u8 + 1, whole: own };
                put(q, &chunk)?;
                q.finish(ctx.deadline())?;
                bytes += want;
                held.push(chunk);
            }
            Err(e) if e.class() == Class::Oom => {
                ends += 1;
                expected(ctx, own, &e, bytes)?;
                size /= 2;
            }
            Err(e) => return Err(e),
        }
    }
    if ends > 0 {
        ctx.meter.count(if own { "ends_of_memory_real" } else { "ends_of_memory_injected" }, 1);
    }
    ctx.meter.count("bytes_allocated", bytes);
    Ok(())
}

/// Whether a lack of memory is the one that was to come.
fn expected(ctx: &Ctx<'_>, own: bool, e: &Error, bytes: u64) -> Result<()> {
    let early = |why: String| Err(Error::new(e.code(), format!("{why}: {}", e.detail())).device(&ctx.device.info().id));
    if !own && !e.detail().contains("the limit of this test") {
        return early(format!("no memory after {bytes} bytes, before the limit"));
    }
    let total = ctx.device.info().memory_bytes.unwrap_or(0);
    if own && (bytes as f64) < HONEST * ctx.device.memory().free.unwrap_or(0) as f64 {
        return early(format!("no memory after {bytes} of {total} bytes, with more free than held"));
    }
    Ok(())
}

/// A buffer larger than the device's limit: a typed error, and no buffer.
fn too_large(ctx: &Ctx<'_>, device: &dyn Device) -> Result<()> {
    let bytes = device.info().max_alloc_bytes.saturating_add(4096);
    match device.alloc(bytes, MemoryKind::Device) {
        Err(e) if e.code() == Code::AllocTooLarge || e.class() == Class::Oom => {
            ctx.meter.count("too_large_refused", 1);
            Ok(())
        }
        Err(e) => Err(e),
        Ok(_) => {
            let why = format!("a buffer of {bytes} bytes was given, the limit is {}", device.info().max_alloc_bytes);
            Err(Error::new(Code::Internal, why).device(&device.info().id))
        }
    }
}

/// First byte and length of what is written to a buffer.
fn spots(chunk: &Chunk) -> Vec<(u64, u64)> {
    let bytes = chunk.buffer.bytes() / 4 * 4;
    if chunk.whole || bytes <= 2 * END {
        return vec![(0, bytes)];
    }
    vec![(0, END), (bytes - END, END)]
}

fn put(q: &mut dyn Queue, chunk: &Chunk) -> Result<()> {
    spots(chunk).into_iter().try_for_each(|(at, len)| q.fill(&chunk.buffer, at, len, chunk.mark))
}

/// Reads the ends of all buffers back; returns the bytes compared.
fn look(ctx: &Ctx<'_>, q: &mut dyn Queue, held: &[Chunk]) -> Result<u64> {
    let mut looked = 0;
    for (n, chunk) in held.iter().enumerate() {
        ctx.meter.step(0);
        for (at, len) in spots(chunk) {
            let mut got = vec![0u8; len.min(END) as usize];
            // The end of a filled buffer: what overlaps another one shows there or at the front.
            for at in [at, at + len - got.len() as u64] {
                q.read(&chunk.buffer, at, &mut got)?;
                looked += got.len() as u64;
                if let Some(i) = got.iter().position(|b| *b != chunk.mark) {
                    let (bytes, mark, got) = (chunk.buffer.bytes(), chunk.mark, got[i]);
                    let byte = at + i as u64;
                    ctx.meter.mismatch(format!(
                        "buffer {n} of {}, {bytes} bytes: byte {byte} is {got:#04x}, {mark:#04x} was written",
                        held.len()
                    ));
                }
            }
        }
    }
    Ok(looked)
}
