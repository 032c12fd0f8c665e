//! Memory that migrates on demand: where it lies, and what the driver is told of its use.

use crate::base::{Code, Error};

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
