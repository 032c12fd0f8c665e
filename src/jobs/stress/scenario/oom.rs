//! Allocate until memory runs out, work on meanwhile, release half, go on.
//!
//! Where the device computes in the host's memory the end is a limit of this file's own ([`Capped`]), so that the machine
//! lives; a card's memory runs out for real ([`fills`]). A counter says which it was.

use std::sync::Arc;
use std::time::Instant;

use crate::base::rng::Philox;
use crate::base::{Backend, Class, Clock, Code, DeviceClass, DeviceInfo, Error, Result, os};
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
/// Buffers of one size in a row after which the next is twice as large. No more than two of them fit where one of twice their size
/// did not, unless somebody has given memory back: that is not to be filled by the million of smallest buffers.
const ROW: u32 = 4;
/// Seconds after which memory that is not full yet never will be: somebody gives it back as fast as it is taken. No less than
/// the first, and no more than the second.
const FULL: (f64, f64) = (1.0, 30.0);
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

/// Whether the memory of such a device runs out for real, all of its card's. Interfaces that do not tell how much is free could
/// not say whether it ran out too early, so there the end is a limit of this file's.
pub(super) fn fills(info: &DeviceInfo) -> bool {
    let tells = !matches!(info.backend, Backend::Opencl | Backend::Wgpu);
    tells && info.class == DeviceClass::Discrete && !info.unified_memory
}

pub(super) fn run(ctx: &Ctx<'_>) -> Result<()> {
    let runner = ctx.runner();
    let there = ctx.device.memory().free.filter(|_| fills(ctx.device.info()));
    let own = there.is_some();
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
    // Told before the first round: later on a driver may still keep what was released, and tell that nothing is free.
    let fill = Fill { device: &*device, own, all: there.unwrap_or(limit), rng: &rng };
    let mut filled = false;
    let ended = ctx.repeat_some(&runner, |q, round| {
        let mut held = Vec::new();
        if !fill.full(ctx, q, &mut held, round)? {
            ctx.meter.count("rounds_not_full", 1);
            return Ok(None);
        }
        filled = true;
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
        release_half(&mut held);
        engines.iter().try_for_each(|e| works(ctx, e, &known))?;
        checked += 4 * known.bytes() + look(ctx, q, &held)?;
        drop(held);
        Ok(Some((checked, checked)))
    });
    if ended.is_ok() && !filled && !ctx.meter.stop.raised() {
        ctx.meter.not_tested("calls with the memory full: it was given back as fast as it was taken".into());
    }
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

/// Releases the last buffers until half of the bytes are free: of the buffers themselves the first hold nearly all of them.
fn release_half(held: &mut Vec<Chunk>) {
    let mut keep = held.iter().map(|c| c.buffer.bytes()).sum::<u64>() / 2;
    let fit = held.iter().take_while(|c| {
        let fits = c.buffer.bytes() <= keep;
        keep = keep.saturating_sub(c.buffer.bytes());
        fits
    });
    let fit = fit.count();
    held.truncate(fit);
}

/// How memory is filled.
struct Fill<'a> {
    device: &'a dyn Device,
    /// All of a card's.
    own: bool,
    /// Bytes that are to be had, about.
    all: u64,
    rng: &'a Philox,
}

impl Fill<'_> {
    /// Allocates until nothing more is to be had: until a buffer of the smallest size is refused. False if that does not come
    /// in time, or the phase is told to end.
    fn full(&self, ctx: &Ctx<'_>, q: &mut dyn Queue, held: &mut Vec<Chunk>, round: u64) -> Result<bool> {
        let from = Instant::now();
        let most = (self.all / CHUNKS).clamp(1 << 16, self.device.info().max_alloc_bytes.max(1 << 16));
        let (mut size, mut row) = (most, 0);
        let mut bytes = 0u64;
        // Three in four of the size; sizes of real programs differ.
        let next = |size: u64, n: u64| (size - self.rng.u64(round, n) % (size / 4).max(1)).next_multiple_of(16);
        while size >= SMALLEST {
            if ctx.meter.stop.raised() || from.elapsed().as_secs_f64() > ctx.seconds.clamp(FULL.0, FULL.1) {
                return Ok(false);
            }
            let want = next(size, held.len() as u64);
            ctx.meter.doing(0, &format!("round {round}: allocation {} of {want} bytes", held.len()));
            match self.device.alloc(want, MemoryKind::Device) {
                Ok(buffer) => {
                    let chunk = Chunk { buffer, mark: (held.len() % 251) as u8 + 1, whole: self.own };
                    put(q, &chunk)?;
                    q.finish(ctx.deadline())?;
                    bytes += want;
                    held.push(chunk);
                    row += 1;
                    if row >= ROW {
                        (size, row) = (size.saturating_mul(2).min(most), 0);
                    }
                }
                Err(e) if e.class() == Class::Oom => {
                    expected(ctx, self.own, &e, bytes)?;
                    (size, row) = (size / 2, 0);
                }
                Err(e) => return Err(e),
            }
        }
        ctx.meter.count(if self.own { "ends_of_memory_real" } else { "ends_of_memory_injected" }, 1);
        ctx.meter.count("bytes_allocated", bytes);
        ctx.meter.count("buffers_allocated", held.len() as u64);
        Ok(true)
    }
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

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;
    use crate::base::Env;
    use crate::device::cpu::Pin;
    use crate::device::probe::{CpuConfig, Select, open};
    use crate::jobs::stress::scenario::testing::on;

    const ROOM: u64 = 24 << 20;

    /// A simulated card with little memory, of which others have a part, and a driver with habits.
    struct Card {
        inner: Arc<dyn Device>,
        info: DeviceInfo,
        habits: Habits,
        state: Mutex<State>,
    }

    #[derive(Clone, Copy, Default)]
    struct Habits {
        /// Bytes that others give back whenever the smallest buffers are asked for, and how often.
        given: (u64, u64),
        /// What was released is told as free only after a while, as of memory pools.
        kept: bool,
    }

    #[derive(Default)]
    struct State {
        room: u64,
        gifts: u64,
        most_bytes: u64,
        most_buffers: u64,
    }

    impl Device for Card {
        fn info(&self) -> &DeviceInfo {
            &self.info
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
            let (state, held) = (self.state.lock().unwrap(), self.ledger().state().bytes);
            let used = if self.habits.kept { state.most_bytes } else { held };
            MemoryState { total: self.info.memory_bytes, free: Some(state.room.saturating_sub(used)) }
        }
        fn alloc(&self, bytes: u64, kind: MemoryKind) -> Result<Buffer> {
            let mut state = self.state.lock().unwrap();
            if bytes <= 2 * SMALLEST && state.gifts < self.habits.given.1 && state.most_buffers > CHUNKS {
                (state.room, state.gifts) = (state.room + self.habits.given.0, state.gifts + 1);
            }
            let held = self.ledger().state().bytes;
            if held + bytes > state.room {
                return Err(Error::new(Code::OutOfDeviceMemory, format!("{bytes} bytes with {held} held")));
            }
            let made = self.inner.alloc(bytes, kind)?;
            let now = self.ledger().state();
            (state.most_bytes, state.most_buffers) =
                (state.most_bytes.max(now.bytes), state.most_buffers.max(now.buffers));
            Ok(made)
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
    }

    fn simulated() -> Arc<dyn Device> {
        let select = Select::parse("sim:h200").unwrap();
        let rig = open(&select, &Env::default(), CpuConfig { threads: 1, pin: Pin::Free }).unwrap();
        Arc::clone(&rig.devices[0])
    }

    /// A phase of a second on such a card: counters, what was said, cycles, most buffers held at once.
    fn phase(habits: Habits) -> (std::collections::BTreeMap<String, u64>, String, u64, u64) {
        let inner = simulated();
        let class = DeviceClass::Discrete;
        let info = DeviceInfo { class, unified_memory: false, memory_bytes: Some(ROOM), ..inner.info().clone() };
        assert!(fills(&info));
        let state = Mutex::new(State { room: ROOM, ..State::default() });
        let card = Arc::new(Card { inner, info, habits, state });
        let ((counters, counts), said) = on(Arc::clone(&card) as Arc<dyn Device>, |ctx| {
            run(ctx).unwrap();
            (ctx.meter.counters(), ctx.meter.counts())
        });
        assert_eq!((counts.errors, counts.mismatches), (0, 0), "{said}");
        let most = card.state.lock().unwrap().most_buffers;
        (counters, said, counts.done, most)
    }

    #[test]
    fn a_card_is_filled_by_some_large_buffers_and_ever_smaller_ones() {
        let (counters, said, done, most) = phase(Habits::default());
        assert!(done > 0 && counters["ends_of_memory_real"] == done, "{counters:?} {said}");
        assert!(counters["bytes_allocated"] > done * (ROOM - ROOM / 8), "{counters:?}");
        assert!((CHUNKS..4 * CHUNKS).contains(&most), "{most}");
    }

    /// What others give back while the last gaps are filled: a third of the card by buffers of 512 bytes took minutes on a real one.
    #[test]
    fn memory_that_comes_back_is_not_filled_by_the_smallest_buffers() {
        let (counters, said, done, most) = phase(Habits { given: (ROOM / 3, 1), ..Habits::default() });
        assert!(done > 0 && counters["ends_of_memory_real"] == done, "{counters:?} {said}");
        assert!(most < 10 * CHUNKS, "{most} buffers");
    }

    /// A driver's pool keeps what was released: from what is told as free then, buffers would be as small as they get.
    #[test]
    fn sizes_do_not_follow_what_is_free_between_rounds() {
        let (counters, _, done, most) = phase(Habits { kept: true, ..Habits::default() });
        assert!(done > 1 && counters["ends_of_memory_real"] == done, "{counters:?}");
        assert!(most < 4 * CHUNKS, "{most} buffers");
    }

    #[test]
    fn memory_that_is_never_full_ends_with_the_phase_and_proves_nothing() {
        let begun = Instant::now();
        let (counters, said, done, _) = phase(Habits { given: (64 << 10, u64::MAX), ..Habits::default() });
        assert!(begun.elapsed().as_secs() < 20, "{:?}", begun.elapsed());
        assert_eq!((done, counters.get("ends_of_memory_real")), (0, None), "{counters:?}");
        assert!(counters["rounds_not_full"] > 0 && said.contains("given back as fast as it was taken"));
    }

    /// Half of the bytes, not of the buffers: the first of these hold nearly all.
    #[test]
    fn half_of_the_bytes_is_released() {
        let (bytes, _) = on(simulated(), |ctx| {
            let chunk =
                |bytes| Chunk { buffer: ctx.device.alloc(bytes, MemoryKind::Device).unwrap(), mark: 1, whole: true };
            let mut held: Vec<Chunk> = [900u64, 1000, 800, 64, 32, 16, 16, 16].map(chunk).into();
            release_half(&mut held);
            held.iter().map(|c| c.buffer.bytes()).collect::<Vec<_>>()
        });
        assert_eq!(bytes, [900]);
    }

    #[test]
    fn only_what_tells_how_much_is_free_is_filled() {
        let of = |backend, class, unified_memory| {
            fills(&DeviceInfo { backend, class, unified_memory, ..DeviceInfo::ordinary_gpu() })
        };
        assert!(of(Backend::Cuda, DeviceClass::Discrete, false));
        assert!(!of(Backend::Cuda, DeviceClass::Integrated, true) && !of(Backend::Cuda, DeviceClass::Discrete, true));
        assert!(!of(Backend::Opencl, DeviceClass::Discrete, false) && !of(Backend::Wgpu, DeviceClass::Virtual, false));
        assert!(!of(Backend::Cpu, DeviceClass::Cpu, true) && !of(Backend::Sim, DeviceClass::Simulated, false));
    }
}
