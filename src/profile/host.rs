//! The CPU's side of every threshold in a profile.

use serde::{Deserialize, Serialize};

use crate::base::DeviceInfo;
use crate::base::blas::BlasInfo;

/// The machine that measured. The CPU is one side of every threshold, so another CPU voids them all.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Host {
    /// CPU model as `DeviceInfo::name` of the CPU gives it.
    pub cpu: String,
    /// Instruction set that the CPU kernels used: `baseline`, `avx2`, `avx512`.
    pub isa: String,
    /// The BLAS of the CPU's products, by name, version and core type; empty for our own kernels.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub blas: String,
    /// CPUs that the process could use.
    pub cpus: u32,
    /// Memory in bytes.
    pub memory_bytes: u64,
    /// Operating system and kernel.
    pub os: String,
    /// Whether its processors were kept from falling idle while they were timed ([`crate::measure::Awake`]).
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub awake: bool,
    /// Share of the looks, 0 to 1, before or after which something else was found to slow the processor down
    /// ([`crate::measure::calm`]); none where nobody looked. Of the last calibration where it added to an earlier profile.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub disturbed: Option<f64>,
}

impl Host {
    /// What a CPU device tells of it.
    pub fn of(cpu: &DeviceInfo) -> Self {
        Host {
            cpu: cpu.name.clone(),
            // The CPU's api text reads `THREADS threads, ISA`.
            isa: cpu.api.rsplit(", ").next().unwrap_or_default().to_string(),
            blas: cpu.facts.blas.as_ref().map(BlasInfo::identity).unwrap_or_default(),
            ..Host::default()
        }
    }

    /// The CPU's side of a threshold, in words; where it differs, thresholds do.
    pub fn side(&self) -> String {
        let blas = if self.blas.is_empty() { String::new() } else { format!(" with {}", self.blas) };
        format!("{}, {}{blas}", self.cpu, self.isa)
    }
}
