//! What a device has handed out and not got back. OpenCL and wgpu cannot say how much memory is free; this can.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// Kinds of objects that are counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "each variant is the object of its name")]
pub enum Kind {
    Buffer,
    Pinned,
    Queue,
    Program,
    Event,
}

const KINDS: usize = 5;

/// Counters of one device. Cheap: one atomic addition per allocation and release.
#[derive(Debug, Default)]
pub struct Ledger {
    live: [AtomicU64; KINDS],
    bytes: AtomicU64,
    peak_bytes: AtomicU64,
    made: [AtomicU64; KINDS],
    errors: Mutex<Vec<String>>,
    watched: AtomicBool,
    watches: Watches,
}

/// Hears of every change of the bytes that a ledger counts.
pub trait Watch: Send + Sync {
    /// So many bytes came (or went, below 0); there are `bytes` now. False: it need not hear of more.
    fn changed(&self, moved: i64, bytes: u64) -> bool;
}

#[derive(Default)]
struct Watches(Mutex<Vec<Box<dyn Watch>>>);

impl std::fmt::Debug for Watches {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Watches")
    }
}

/// A ledger at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct LedgerState {
    /// Live device buffers.
    pub buffers: u64,
    /// Bytes of live buffers, pinned ones included.
    pub bytes: u64,
    /// Most bytes ever live at once.
    pub peak_bytes: u64,
    /// Live pinned host buffers.
    pub pinned: u64,
    /// Live queues.
    pub queues: u64,
    /// Live programs.
    pub programs: u64,
    /// Live events.
    pub events: u64,
    /// Buffers made since the device was opened.
    pub buffers_made: u64,
    /// Programs made since the device was opened.
    pub programs_made: u64,
}

impl LedgerState {
    /// Live objects that are not buffers.
    pub fn objects(&self) -> u64 {
        self.queues + self.programs + self.events
    }
}

/// Proof of an entry; giving it up (drop) strikes the entry off.
#[derive(Debug)]
pub struct Ticket {
    ledger: Arc<Ledger>,
    kind: Kind,
    bytes: u64,
}

impl Ledger {
    /// An empty ledger.
    pub fn new() -> Arc<Self> {
        Arc::default()
    }

    /// Enters one object.
    pub fn enter(self: &Arc<Self>, kind: Kind, bytes: u64) -> Ticket {
        self.live[kind as usize].fetch_add(1, Ordering::Relaxed);
        self.made[kind as usize].fetch_add(1, Ordering::Relaxed);
        let now = self.bytes.fetch_add(bytes, Ordering::Relaxed) + bytes;
        self.peak_bytes.fetch_max(now, Ordering::Relaxed);
        self.tell(kind, bytes as i64, now);
        Ticket { ledger: Arc::clone(self), kind, bytes }
    }

    /// From now on changes of the bytes are told to `watch`, by the thread that makes them.
    pub fn watch(&self, watch: Box<dyn Watch>) {
        self.watches.0.lock().unwrap_or_else(PoisonError::into_inner).push(watch);
        self.watched.store(true, Ordering::Release);
    }

    fn tell(&self, kind: Kind, moved: i64, bytes: u64) {
        if self.watched.load(Ordering::Acquire) && matches!(kind, Kind::Buffer | Kind::Pinned) {
            let mut watches = self.watches.0.lock().unwrap_or_else(PoisonError::into_inner);
            watches.retain(|w| w.changed(moved, bytes));
        }
    }

    /// The counters.
    pub fn state(&self) -> LedgerState {
        let live = |k: Kind| self.live[k as usize].load(Ordering::Relaxed);
        let made = |k: Kind| self.made[k as usize].load(Ordering::Relaxed);
        LedgerState {
            buffers: live(Kind::Buffer),
            bytes: self.bytes.load(Ordering::Relaxed),
            peak_bytes: self.peak_bytes.load(Ordering::Relaxed),
            pinned: live(Kind::Pinned),
            queues: live(Kind::Queue),
            programs: live(Kind::Program),
            events: live(Kind::Event),
            buffers_made: made(Kind::Buffer),
            programs_made: made(Kind::Program),
        }
    }

    /// Keeps an error of a release, which has nobody to return to. At most 100 are kept.
    pub fn release_failed(&self, what: String) {
        let mut errors = self.errors.lock().unwrap_or_else(PoisonError::into_inner);
        if errors.len() < 100 {
            errors.push(what);
        }
    }

    /// Errors of releases so far.
    pub fn release_errors(&self) -> Vec<String> {
        self.errors.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.ledger.live[self.kind as usize].fetch_sub(1, Ordering::Relaxed);
        let before = self.ledger.bytes.fetch_sub(self.bytes, Ordering::Relaxed);
        self.ledger.tell(self.kind, -(self.bytes as i64), before.saturating_sub(self.bytes));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_come_and_go() {
        let ledger = Ledger::new();
        let a = ledger.enter(Kind::Buffer, 100);
        let b = ledger.enter(Kind::Program, 0);
        assert_eq!((ledger.state().buffers, ledger.state().bytes, ledger.state().objects()), (1, 100, 1));
        drop((a, b));
        let s = ledger.state();
        assert_eq!((s.buffers, s.bytes, s.peak_bytes, s.objects(), s.buffers_made), (0, 0, 100, 0, 1));
    }
}
