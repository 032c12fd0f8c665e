//! What a call costs at least: arithmetic and compulsory traffic (requirements C2).

use serde::{Deserialize, Serialize};

/// Work of one call. Every op states all three numbers; each input is charged once, each output once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cost {
    /// Floating-point (or integer) operations; a fused multiply-add is two, a transcendental one (nominal).
    pub flops: u64,
    /// Bytes read.
    pub read: u64,
    /// Bytes written.
    pub written: u64,
}

impl Cost {
    /// Bytes moved in both directions.
    pub fn bytes(&self) -> u64 {
        self.read.saturating_add(self.written)
    }
}

/// Most dimensions that any op names.
pub const MOST_DIMS: usize = 8;

/// What a cost curve knows of a call; all of it follows from op, dtype and shape.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Features {
    /// Size of the work: elements, m·n·k, ... in the op's unit.
    pub work: u128,
    /// Arithmetic and traffic.
    pub cost: Cost,
    /// Sizes in the op's order of dimensions; zero beyond them.
    pub dims: [u64; MOST_DIMS],
}
