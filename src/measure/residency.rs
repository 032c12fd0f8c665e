//! Where operands are, and what caches hold, when a call begins.

use serde::{Deserialize, Serialize};

use crate::base::{Backend, Code, Error, Result};
use crate::device::{DEADLINE, Device, MemoryKind, Place};
use crate::op::Unit;

/// Where the operands are when a call begins, and where its result must be when it ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Residency {
    /// On the device: the call is the launch, and the wait for it or a share of one.
    Resident,
    /// In ordinary host memory: the call copies inputs there, launches, copies outputs back, into memory that was there before.
    Always,
    /// The same in page-locked host memory, where the device's API has it: copies need no detour. On the CPU that is ordinary
    /// memory, for nothing reads it but the processor.
    AlwaysPinned,
    /// In ordinary host memory, for [`Residency::calls`] calls between the copies in and out: each call's share of them.
    Once,
    /// In memory that migrates on demand and lies on the host: the device fetches what it uses, results are copied out.
    Managed,
    /// The same, sent to the device before the launch and back after it.
    ManagedPrefetched,
}

impl Residency {
    /// All residencies.
    pub const ALL: [Residency; 6] = [
        Residency::Resident,
        Residency::Always,
        Residency::AlwaysPinned,
        Residency::Once,
        Residency::Managed,
        Residency::ManagedPrefetched,
    ];

    /// Those of which placement asks: operands on the device, or in host memory.
    pub const PLACED: [Residency; 2] = [Residency::Resident, Residency::Always];

    /// Calls between copies (requirements C6: k = 10).
    pub const fn calls(self) -> u64 {
        match self {
            Residency::Once => 10,
            _ => 1,
        }
    }

    /// Whether a device offers it. Errors: the reason why not.
    pub fn offered(self, device: &dyn Device) -> Result<()> {
        // The processor reads any of these where it is.
        if device.info().backend == Backend::Cpu {
            return Ok(());
        }
        match self {
            Residency::Resident | Residency::Always | Residency::Once => Ok(()),
            Residency::AlwaysPinned => device.alloc(16, MemoryKind::Pinned).map(|_| ()),
            // Before each sample the operands go back to the host: without that only the first one would migrate.
            Residency::Managed | Residency::ManagedPrefetched => {
                let buffer = device.alloc(16, MemoryKind::Managed)?;
                let mut q = device.queue()?;
                q.prefetch(&buffer, Place::Host)?;
                q.finish(DEADLINE)
            }
        }
    }

    /// Whether it means something for ops in this unit: copies and waits are timed as they are.
    pub const fn takes(self, unit: Unit) -> bool {
        match self {
            Residency::Resident | Residency::Always => true,
            Residency::AlwaysPinned | Residency::Once | Residency::Managed | Residency::ManagedPrefetched => {
                !matches!(unit, Unit::Bytes | Unit::Calls)
            }
        }
    }

    /// The word in profiles and records.
    pub const fn name(self) -> &'static str {
        match self {
            Residency::Resident => "resident",
            Residency::Always => "always",
            Residency::AlwaysPinned => "always-pinned",
            Residency::Once => "once",
            Residency::Managed => "managed",
            Residency::ManagedPrefetched => "managed-prefetched",
        }
    }
}

impl std::str::FromStr for Residency {
    type Err = Error;
    fn from_str(s: &str) -> Result<Self> {
        Residency::ALL.into_iter().find(|r| r.name() == s).ok_or_else(|| {
            let known = Residency::ALL.map(Residency::name).join(" ");
            Error::new(Code::BadArgument, format!("unknown residency '{s}'; known: {known}"))
        })
    }
}

/// What caches hold when a timed region begins.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Cache {
    /// What the call before left there.
    #[default]
    Hot,
    /// Nothing of the operands: each sample is one call, after a sweep over more memory than the last cache holds.
    Cold,
}

impl Cache {
    /// The word on the command line and in records.
    pub const fn name(self) -> &'static str {
        match self {
            Cache::Hot => "hot",
            Cache::Cold => "cold",
        }
    }
}

impl std::str::FromStr for Cache {
    type Err = Error;
    fn from_str(s: &str) -> Result<Self> {
        [Cache::Hot, Cache::Cold]
            .into_iter()
            .find(|c| c.name() == s)
            .ok_or_else(|| Error::new(Code::BadArgument, format!("unknown cache state '{s}'; known: hot cold")))
    }
}
