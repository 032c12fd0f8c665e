//! Device memory that is used again instead of being made anew for every call.
//!
//! A buffer is rented by size, rounded up to a class, and comes back when its [`Rented`] is dropped: nobody can give it back
//! twice, and nobody can keep it after. What comes back while somebody still holds a clone of it, or after work that may
//! not have ended ([`Rented::discard`]), is released instead of being lent again.
//!
//! An engine has one pool for each device, shared by all of its queues: a buffer comes back only when the work that used it
//! has been waited for, so that any queue may have it next. Not here: who needs how much (`run`); how much is kept and what
//! goes first (`shelves`).

use std::ops::Deref;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use crate::base::{Class, Code, Error, Result};
use crate::device::{Buffer, DEADLINE, Device, Mark, MemoryKind, Queue, Waited};

pub use super::shelves::Retention;
use super::shelves::Shelves;

/// Bytes of an element, as the classes count them.
const ELEMENT: u64 = 4;
/// Room in every class besides its elements, so that 1,024 of them fit with the guards around an operand.
const ROOM: u64 = 256;
/// The classes of the first sizes, in elements of four bytes; beyond them the powers of two.
const CLASSES: [u64; 5] = [1 << 10, 10 << 10, 100 << 10, 1 << 20, 10 << 20];

/// Whether what one user of a buffer left is there for the next.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ClearPolicy {
    /// Contents are undefined: what the last user left, or what the driver gave. For calls of an engine that is enough:
    /// every byte that comes out of one was written in it.
    #[default]
    Never,
    /// A rented buffer is all zeros. It is cleared when it comes back, so that nothing stays readable in idle memory, and
    /// when it is new.
    Zero,
}

/// Settings of a pool.
#[derive(Clone, Debug, PartialEq)]
pub struct PoolConfig {
    /// Most bytes that lie idle, over all classes: 1 GB.
    pub max_bytes: u64,
    /// Buffers larger than this many bytes are made and released each time: 100 MB.
    pub max_buffer_bytes: u64,
    /// After about so long without use memory is released: 5 minutes.
    pub trim_after: Duration,
    /// What is kept.
    pub retention: Retention,
    /// Whether buffers are cleared.
    pub clear: ClearPolicy,
}

impl Default for PoolConfig {
    fn default() -> Self {
        PoolConfig {
            max_bytes: 1_000_000_000,
            max_buffer_bytes: 100_000_000,
            trim_after: Duration::from_secs(300),
            retention: Retention::default(),
            clear: ClearPolicy::default(),
        }
    }
}

/// What a pool did so far and holds now.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct PoolStats {
    /// Buffers that were lent from the shelf.
    pub hits: u64,
    /// Buffers that had to be made, among them those that are too large to be kept.
    pub misses: u64,
    /// Buffers that came back.
    pub returns: u64,
    /// Buffers in use.
    pub live: u64,
    /// Buffers lying idle.
    pub idle: u64,
    /// Bytes of those.
    pub idle_bytes: u64,
    /// Bytes in use, as asked for.
    pub asked_bytes: u64,
    /// Bytes in use, as made.
    pub live_bytes: u64,
    /// Most bytes in use and idle together.
    pub peak_bytes: u64,
    /// Buffers released for the cap.
    pub over_cap: u64,
    /// Buffers released by trims: idle too long, or memory was short.
    pub trimmed: u64,
    /// Buffers that could not be made.
    pub failed: u64,
    /// Seconds spent making buffers.
    pub alloc_s: f64,
}

impl PoolStats {
    /// Share of the requests that found a buffer; 0 before the first.
    pub fn hit_rate(&self) -> f64 {
        let all = self.hits + self.misses;
        if all == 0 { 0.0 } else { self.hits as f64 / all as f64 }
    }

    /// Share of the bytes in use that nobody asked for; 0 with nothing in use.
    pub fn fragmentation(&self) -> f64 {
        if self.live_bytes == 0 { 0.0 } else { 1.0 - self.asked_bytes as f64 / self.live_bytes as f64 }
    }
}

/// The queue that clears buffers, the first, second, ... one.
#[derive(Default)]
struct Clearing {
    queue: Option<Box<dyn Queue>>,
    number: u64,
}

impl Clearing {
    fn give_up(&mut self) {
        self.queue = None;
        self.number += 1;
    }
}

/// A point of a clearing queue, and which queue: its successor counts from the beginning again.
type Cleared = (u64, Mark);

/// Something idle: a buffer, and the point of the clearing queue from which on it is zeros.
struct Idle {
    buffer: Buffer,
    cleared: Option<Cleared>,
}

struct Inner {
    device: Arc<dyn Device>,
    config: PoolConfig,
    /// Bytes of each class, ascending, and 0 for what is no class's.
    sizes: Vec<u64>,
    shelves: Shelves<Idle>,
    /// The queue that clears.
    clearing: Mutex<Clearing>,
    made_bytes: AtomicU64,
    peak_bytes: AtomicU64,
    failed: AtomicU64,
    alloc_nanos: AtomicU64,
    /// Whether a thread looks after what lies idle.
    kept: AtomicBool,
    bell: Arc<Bell>,
}

/// Wakes the keeper when the pool goes.
#[derive(Default)]
struct Bell {
    rung: Mutex<bool>,
    waiting: Condvar,
}

/// Buffers of one device for use again and again. Clones are the same pool; shared between threads.
#[derive(Clone)]
pub struct Pool(Arc<Inner>);

impl std::fmt::Debug for Pool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Pool({}, {:?})", self.0.device.info().id, self.stats())
    }
}

fn lock<T>(m: &Mutex<T>) -> MutexGuard<'_, T> {
    m.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Pool {
    /// An empty pool for buffers of `device`.
    pub fn new(device: Arc<dyn Device>, config: PoolConfig) -> Self {
        let largest = config.max_buffer_bytes.min(device.info().max_alloc_bytes);
        let few = CLASSES.iter().map(|n| n * ELEMENT + ROOM);
        let many = (24..u64::BITS - 1).map(|p| (1 << p) + ROOM).filter(|b| *b > CLASSES[4] * ELEMENT + ROOM);
        let mut sizes: Vec<u64> = few.chain(many).take_while(|b| *b <= largest).collect();
        sizes.push(0);
        Pool(Arc::new(Inner {
            shelves: Shelves::new(&sizes, config.max_bytes, config.retention),
            sizes,
            device,
            config,
            clearing: Mutex::default(),
            made_bytes: AtomicU64::new(0),
            peak_bytes: AtomicU64::new(0),
            failed: AtomicU64::new(0),
            alloc_nanos: AtomicU64::new(0),
            kept: AtomicBool::new(false),
            bell: Arc::default(),
        }))
    }

    /// A buffer of `bytes` bytes in the device's memory, idle or new.
    ///
    /// If memory is short, everything idle is released and it is tried once more. Errors: those of [`Device::alloc`].
    pub fn rent(&self, bytes: u64) -> Result<Rented> {
        let pool = &self.0;
        let classes = &pool.sizes[..pool.sizes.len() - 1];
        let mut class = classes.partition_point(|size| *size < bytes);
        let rented = |buffer: Buffer, class| {
            let buffer = buffer.first(bytes);
            Rented { buffer, home: Some(Home { pool: Arc::clone(pool), class, asked: bytes }) }
        };
        while let Some(idle) = pool.shelves.take(class, bytes) {
            if pool.is_cleared(&idle) {
                pool.device.tap().inspect(|tap| tap.hit("buffer", bytes));
                return Ok(rented(idle.buffer, class));
            }
            // Its fill failed or hangs: nobody gets it.
            pool.release([idle]);
            pool.shelves.unmade(class, bytes);
        }
        let made = pool.make(class, bytes).or_else(|e| {
            if e.class() != Class::Oom {
                return Err(e);
            }
            pool.release(pool.shelves.clear());
            // As small as can be, then: not a whole class.
            let large = pool.sizes.len() - 1;
            if class != large {
                pool.shelves.unmade(class, bytes);
                class = large;
                let _ = pool.shelves.take(class, bytes);
            }
            pool.make(class, bytes)
        });
        match made {
            Ok(buffer) => Ok(rented(buffer, class)),
            Err(e) => {
                pool.shelves.unmade(class, bytes);
                pool.failed.fetch_add(1, Ordering::Relaxed);
                Err(e)
            }
        }
    }

    /// Makes buffers of these sizes in bytes, so that the first calls find them.
    ///
    /// Errors: those of [`Device::alloc`]; what was made before stays.
    pub fn prewarm(&self, sizes: &[u64]) -> Result<()> {
        sizes.iter().map(|bytes| self.rent(*bytes)).collect::<Result<Vec<_>>>().map(|_| ())
    }

    /// Releases everything idle, and says how many bytes that were.
    pub fn trim(&self) -> u64 {
        let before = self.0.shelves.idle_bytes();
        self.0.release(self.0.shelves.clear());
        before
    }

    /// Releases what the retention does not keep any longer. A thread of the pool's does the same every half of
    /// [`PoolConfig::trim_after`].
    pub fn trim_idle(&self) {
        self.0.release(self.0.shelves.trim());
    }

    /// What the pool did so far and holds now.
    pub fn stats(&self) -> PoolStats {
        let pool = &self.0;
        let mut s = PoolStats {
            idle_bytes: pool.shelves.idle_bytes(),
            peak_bytes: pool.peak_bytes.load(Ordering::Relaxed),
            failed: pool.failed.load(Ordering::Relaxed),
            alloc_s: pool.alloc_nanos.load(Ordering::Relaxed) as f64 * 1e-9,
            ..PoolStats::default()
        };
        for (bytes, idle, count) in pool.shelves.counts() {
            s.hits += count.hits;
            s.misses += count.misses;
            s.returns += count.returns;
            s.live += count.live;
            s.idle += idle;
            s.asked_bytes += count.asked;
            s.live_bytes += if bytes == 0 { count.asked } else { count.live * bytes };
            s.over_cap += count.over_cap;
            s.trimmed += count.trimmed;
        }
        s
    }

    /// Its settings.
    pub fn config(&self) -> &PoolConfig {
        &self.0.config
    }
}

impl Inner {
    /// A new buffer of a class, or of just so many bytes where it is no class's.
    fn make(&self, class: usize, bytes: u64) -> Result<Buffer> {
        let size = self.sizes.get(class).copied().filter(|s| *s > 0).unwrap_or(bytes);
        let start = Instant::now();
        let buffer = self.device.alloc(size, MemoryKind::Device)?;
        self.alloc_nanos.fetch_add(start.elapsed().as_nanos() as u64, Ordering::Relaxed);
        if self.config.clear == ClearPolicy::Zero {
            let mark = self.clear(&buffer);
            if !self.is_cleared(&Idle { buffer: buffer.clone(), cleared: mark }) {
                return Err(Error::new(Code::TransferFailed, "a new buffer could not be cleared"));
            }
        }
        let now = self.made_bytes.fetch_add(size, Ordering::Relaxed) + size;
        self.peak_bytes.fetch_max(now, Ordering::Relaxed);
        Ok(buffer)
    }

    /// Releases buffers; not called with a lock held.
    fn release(&self, all: impl IntoIterator<Item = Idle>) {
        for idle in all {
            self.made_bytes.fetch_sub(idle.buffer.whole().bytes(), Ordering::Relaxed);
        }
    }

    /// Enqueues zeros for a buffer; `None` if that fails.
    fn clear(&self, buffer: &Buffer) -> Option<Cleared> {
        let mut clearing = lock(&self.clearing);
        let fill = |q: &mut Box<dyn Queue>| -> Result<Mark> {
            // What its user could reach; the rest was cleared before, or never lent.
            let whole = buffer.whole();
            q.fill(&whole, 0, buffer.bytes().div_ceil(16).saturating_mul(16).min(whole.bytes() / 4 * 4), 0)?;
            let mark = q.mark()?;
            q.flush()?;
            Ok(mark)
        };
        if clearing.queue.is_none() {
            clearing.queue = self.device.queue().ok();
        }
        let mark = clearing.queue.as_mut().and_then(|q| fill(q).ok());
        if mark.is_none() {
            clearing.give_up();
        }
        mark.map(|mark| (clearing.number, mark))
    }

    /// Whether a buffer is zeros where it has to be; waits for that.
    fn is_cleared(&self, idle: &Idle) -> bool {
        if self.config.clear == ClearPolicy::Never {
            return true;
        }
        let (mut clearing, Some((number, mark))) = (lock(&self.clearing), idle.cleared) else { return false };
        // A queue that was given up may have left it as it was, and may write to it yet.
        if number != clearing.number {
            return false;
        }
        let done = clearing.queue.as_mut().is_some_and(|q| matches!(q.wait(mark, DEADLINE), Ok(Waited::Done)));
        if !done {
            clearing.give_up();
        }
        done
    }

    /// Sees to it that what lies idle is looked after.
    fn keep(this: &Arc<Inner>) {
        if this.kept.load(Ordering::Relaxed) || this.kept.swap(true, Ordering::AcqRel) {
            return;
        }
        let (pool, bell, every) = (Arc::downgrade(this), Arc::clone(&this.bell), this.config.trim_after / 2);
        let thread = std::thread::Builder::new().name("gpuctl-pool".into());
        if let Err(e) = thread.spawn(move || keeper(&pool, &bell, every)) {
            log::warn!("idle memory of {} is not released by itself: no thread: {e}", this.device.info().id);
        }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        *lock(&self.bell.rung) = true;
        self.bell.waiting.notify_all();
    }
}

/// Trims at even intervals until the pool is gone or empty.
fn keeper(pool: &Weak<Inner>, bell: &Bell, every: Duration) {
    loop {
        let rung = lock(&bell.rung);
        let waited = bell.waiting.wait_timeout_while(rung, every, |rung| !*rung);
        if *waited.unwrap_or_else(PoisonError::into_inner).0 {
            return;
        }
        let Some(pool) = pool.upgrade() else { return };
        pool.release(pool.shelves.trim());
        if pool.shelves.idle_bytes() == 0 {
            pool.kept.store(false, Ordering::Release);
            // Something may have come since; whoever brought it may have seen a keeper.
            if pool.shelves.idle_bytes() == 0 || pool.kept.swap(true, Ordering::AcqRel) {
                return;
            }
        }
    }
}

/// A buffer on loan, of as many bytes as were asked for; what lies behind them is out of reach. It goes back when dropped.
pub struct Rented {
    buffer: Buffer,
    /// `None`: it belongs to no pool, or not any more.
    home: Option<Home>,
}

/// Where a rented buffer goes back to.
struct Home {
    pool: Arc<Inner>,
    class: usize,
    asked: u64,
}

impl std::fmt::Debug for Rented {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Rented({:?})", self.buffer)
    }
}

impl Deref for Rented {
    type Target = Buffer;
    fn deref(&self) -> &Buffer {
        &self.buffer
    }
}

impl From<Buffer> for Rented {
    /// A buffer that belongs to no pool: dropping it drops the buffer.
    fn from(buffer: Buffer) -> Self {
        Rented { buffer, home: None }
    }
}

impl Rented {
    /// The buffer is released when dropped, not lent again: work that uses it may not have ended.
    pub fn discard(&mut self) {
        if let Some(home) = self.home.take() {
            home.back(Idle { buffer: self.buffer.whole(), cleared: None }, true);
        }
    }
}

impl Drop for Rented {
    fn drop(&mut self) {
        let Some(home) = self.home.take() else { return };
        let large = home.class + 1 == home.pool.sizes.len();
        // Held by somebody else, too: it must not be lent while they have it.
        let mut spent = large || self.buffer.is_shared();
        let mut cleared = None;
        if !spent && home.pool.config.clear == ClearPolicy::Zero {
            cleared = home.pool.clear(&self.buffer);
            spent = cleared.is_none();
        }
        home.back(Idle { buffer: self.buffer.whole(), cleared }, spent);
    }
}

impl Home {
    fn back(self, idle: Idle, spent: bool) {
        let pool = &self.pool;
        pool.release(pool.shelves.put(self.class, self.asked, idle, spent));
        if !spent {
            Inner::keep(pool);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::cpu::{CpuDevice, Pin};
    use crate::kernel::Isa;

    /// The next queue counts from the beginning: its marks say nothing of what the one before it was to clear.
    #[test]
    fn what_a_queue_that_was_given_up_was_to_clear_is_not_lent() {
        let device: Arc<dyn Device> = Arc::new(CpuDevice::new(1, Isa::detect(), Pin::Free).unwrap());
        let pool = Pool::new(Arc::clone(&device), PoolConfig { clear: ClearPolicy::Zero, ..PoolConfig::default() });
        let made = || device.ledger().state().buffers_made;
        drop(pool.rent(4096).unwrap());
        let before = made();
        drop(pool.rent(4096).unwrap());
        assert_eq!(made(), before, "it is kept and lent again");
        lock(&pool.0.clearing).give_up();
        for _ in 0..8 {
            drop(pool.rent(1 << 20).unwrap());
        }
        let before = made();
        drop(pool.rent(4096).unwrap());
        assert_eq!(made(), before + 1, "another one in its place");
    }
}
