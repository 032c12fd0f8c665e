//! Many threads on one device: shared programs and queues, and an engine that comes and goes; mixed ops, every result checked.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, Instant};

use crate::base::rng::Philox;
use crate::base::{Code, Error, Result};
use crate::engine::Engine;
use crate::engine::run::Runner;

use super::known::{Known, engine_here, settled};
use super::reference::{Golden, build, candidates};
use super::soak::{order, slice};
use super::{Ctx, Meter};

/// Small cases: the threads meet in the driver, not in the kernels.
const MAX_CASE: u64 = 256 << 10;
const MAX_TOTAL: u64 = 64 << 20;
const SLICE: Duration = Duration::from_millis(2);

/// Takes a lane off the watch however its thread ends.
struct Watched<'m, 'o>(&'m Meter<'o>, usize);
impl Drop for Watched<'_, '_> {
    fn drop(&mut self) {
        self.0.rest(self.1);
    }
}

/// Part of the phase in which one thread works alone, to compare with.
const ALONE: f64 = 0.08;
/// Cases of a thread between two calls of the shared engine.
const BETWEEN: usize = 8;

pub(super) fn run(ctx: &Ctx<'_>) -> Result<()> {
    let runner = ctx.runner();
    let budget = (0.15 * ctx.seconds).min(10.0);
    let goldens = build(ctx, &runner, candidates(&runner, MAX_CASE), budget, MAX_TOTAL)?;
    ctx.meter.count("cases", goldens.len() as u64);
    ctx.meter.rest(0);
    if goldens.is_empty() {
        return Ok(());
    }
    let work = Work { goldens: &goldens, runner: &runner, known: Known::new(ctx.seed)?, shared: Shared::new(ctx)? };
    // Its kernel is built before anything is compared.
    work.known.call(ctx, &work.shared.now())?;
    ctx.meter.testing();
    let alone = rate(ctx, || work.lanes(ctx, 1, Some(ALONE * ctx.seconds)))?;
    let all = rate(ctx, || work.lanes(ctx, ctx.threads as usize, None))?;
    ctx.meter.count("threads", u64::from(ctx.threads));
    ctx.meter.count("engines", work.shared.made.load(Ordering::Relaxed));
    if alone > 0.0 {
        // Throughput of all threads in percent of one thread's: 100 where they only take turns.
        ctx.meter.count("scaling_percent", (100.0 * all / alone) as u64);
    }
    drop(work);
    // All threads are back: what is allocated now is what nobody gave back.
    ctx.meter.quiet(ctx.device.ledger().state());
    ctx.count_kernels(&runner);
    Ok(())
}

/// Cycles per second while something runs.
fn rate(ctx: &Ctx<'_>, work: impl FnOnce() -> Result<()>) -> Result<f64> {
    let (start, before) = (Instant::now(), ctx.meter.counts().done);
    work()?;
    Ok((ctx.meter.counts().done - before) as f64 / start.elapsed().as_secs_f64().max(1e-9))
}

/// An engine that all threads call and that any of them replaces: it is made on one thread, used on others, dropped by the last.
struct Shared {
    engine: RwLock<Arc<Engine>>,
    made: AtomicU64,
}

impl Shared {
    fn new(ctx: &Ctx<'_>) -> Result<Self> {
        let engine = RwLock::new(Arc::new(engine_here(ctx).no_fallback().build()?));
        Ok(Shared { engine, made: AtomicU64::new(1) })
    }

    fn now(&self) -> Arc<Engine> {
        Arc::clone(&self.engine.read().unwrap_or_else(PoisonError::into_inner))
    }

    fn replace(&self, ctx: &Ctx<'_>) -> Result<()> {
        let fresh = Arc::new(engine_here(ctx).no_fallback().build()?);
        let old = std::mem::replace(&mut *self.engine.write().unwrap_or_else(PoisonError::into_inner), fresh);
        self.made.fetch_add(1, Ordering::Relaxed);
        // After the lock: others may still use it, and the last of them drops it.
        drop(old);
        Ok(())
    }
}

/// What the threads share.
struct Work<'a> {
    goldens: &'a [Golden],
    runner: &'a Runner,
    known: Known,
    shared: Shared,
}

impl Work<'_> {
    /// So many threads until the phase ends, or for so many seconds.
    fn lanes(&self, ctx: &Ctx<'_>, lanes: usize, seconds: Option<f64>) -> Result<()> {
        let start = Instant::now();
        let going = &|| ctx.running() && seconds.is_none_or(|s| start.elapsed().as_secs_f64() < s);
        std::thread::scope(|scope| {
            let threads: Vec<_> = (0..lanes).map(|lane| scope.spawn(move || self.lane(ctx, lane, going))).collect();
            let mut end = Ok(());
            for thread in threads {
                let one =
                    thread.join().unwrap_or_else(|_| Err(Error::new(Code::Internal, "a thread of the soak panicked")));
                end = end.and(one);
            }
            end
        })
    }

    fn lane(&self, ctx: &Ctx<'_>, lane: usize, going: &(dyn Fn() -> bool + Sync)) -> Result<()> {
        let _watched = Watched(ctx.meter, lane);
        let rng = Philox::new(ctx.seed ^ (lane as u64 + 1) << 32);
        let (mut round, mut turn) = (0, lane);
        while turn == lane || going() {
            for golden in order(self.goldens, &rng, round) {
                // Each thread works at least once, however slow the machine is.
                if turn > lane && !going() {
                    break;
                }
                slice(ctx, self.runner, golden, lane, SLICE)?;
                if turn.is_multiple_of(BETWEEN) {
                    self.call(ctx, lane)?;
                }
                // One in so many, whichever thread it is.
                if turn.is_multiple_of(4 * BETWEEN * ctx.threads.max(1) as usize) {
                    self.shared.replace(ctx).or_else(|e| ctx.meter.survive(e))?;
                }
                turn += 1;
            }
            round += 1;
        }
        Ok(())
    }

    /// A call of the shared engine.
    fn call(&self, ctx: &Ctx<'_>, lane: usize) -> Result<()> {
        ctx.meter.doing(lane, "a call of the shared engine");
        let from = Instant::now();
        let engine = self.shared.now();
        match self.known.call(ctx, &engine).and_then(|_| settled(&engine)) {
            Ok(()) => {
                ctx.meter.cycle(lane, self.known.bytes(), self.known.bytes(), from.elapsed().as_secs_f64());
                ctx.meter.count("engine_calls", 1);
                Ok(())
            }
            Err(e) => ctx.meter.survive(e),
        }
    }
}
