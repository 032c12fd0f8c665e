//! Memory that migrates on demand: where it lies, and what the driver is told of its use.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::base::{Code, Error, Result};

/// A side that managed memory can lie on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// The device.
    Device,
    /// The host.
    Host,
}

/// What the driver is told of the use of managed memory. It changes speed, never results.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Advice {
    /// It is mostly read: each side may keep a copy (or may no longer).
    ReadMostly(bool),
    /// It should lie there and be reached from afar; `None`: wherever it is used.
    Preferred(Option<Place>),
    /// That side reaches it where it lies, without faults (or no longer).
    AccessedBy(Place, bool),
}

/// How much managed memory there is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ManagedUse {
    /// Bytes of live managed buffers.
    pub bytes: u64,
    /// Bytes that they may have together: the device's memory.
    pub limit: u64,
    /// Whether they may have more than that, on the program's word.
    pub oversubscribed: bool,
}

/// The error of an API without managed memory.
pub(super) fn none() -> Error {
    Error::new(Code::FeatureUnsupported, "the API has no memory that migrates")
}

/// How much managed memory is in use, and may be.
#[derive(Default)]
pub(super) struct Managed {
    bytes: AtomicU64,
    lifted: AtomicBool,
}

#[cfg_attr(not(any(feature = "cuda", feature = "opencl")), expect(dead_code, reason = "no backend has such memory"))]
impl Managed {
    /// Enters so many bytes, unless they are more than `limit` together.
    pub(super) fn enter(&self, bytes: u64, limit: u64) -> Result<()> {
        let before = self.bytes.fetch_add(bytes, Ordering::Relaxed);
        if before.saturating_add(bytes) <= limit || self.lifted.load(Ordering::Relaxed) {
            return Ok(());
        }
        self.leave(bytes);
        let why = format!(
            "{bytes} bytes of managed memory beside {before} are more than the device's {limit}; a program may ask for that \
             (Target::oversubscribe)"
        );
        Err(Error::new(Code::AllocTooLarge, why))
    }

    pub(super) fn leave(&self, bytes: u64) {
        self.bytes.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// From now on there may be more than the device has.
    pub(super) fn lift(&self) {
        self.lifted.store(true, Ordering::Relaxed);
    }

    pub(super) fn is_lifted(&self) -> bool {
        self.lifted.load(Ordering::Relaxed)
    }

    pub(super) fn now(&self, limit: u64) -> ManagedUse {
        ManagedUse { bytes: self.bytes.load(Ordering::Relaxed), limit, oversubscribed: self.is_lifted() }
    }
}
