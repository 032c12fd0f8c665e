//! What became of a device's programs.

use serde::{Deserialize, Serialize};

/// Programs of one device in a run, over all its processes. After warm-up `builds` and `loads` stand still.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct KernelsRecord {
    /// Device id.
    pub device: String,
    /// Device uid.
    pub uid: String,
    /// Programs that were built: texts compiled, and functions and library calls looked up.
    pub builds: u64,
    /// Seconds that took.
    pub build_s: f64,
    /// Programs loaded from the kernel cache.
    pub loads: u64,
    /// Seconds that took.
    pub load_s: f64,
    /// Times that a program was there already.
    pub hits: u64,
    /// Kept programs that were damaged, or that the driver did not take; each was then built.
    pub refused: u64,
    /// Programs written to the kernel cache.
    pub kept: u64,
    /// The kernel cache: `on`, `read-only` or `off`.
    pub cache: String,
    /// What first stood in its way; empty if nothing did.
    pub reason: String,
}

impl KernelsRecord {
    /// Adds what another process did with the same device.
    pub fn join(&mut self, other: &KernelsRecord) {
        self.builds += other.builds;
        self.build_s += other.build_s;
        self.loads += other.loads;
        self.load_s += other.load_s;
        self.hits += other.hits;
        self.refused += other.refused;
        self.kept += other.kept;
        if self.reason.is_empty() {
            self.reason.clone_from(&other.reason);
        }
    }
}
