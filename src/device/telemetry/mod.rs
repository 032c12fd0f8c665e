//! Asking cards for what they tell of themselves: NVML for NVIDIA's, Linux's sysfs for all. Where neither speaks, nothing is
//! known but what the ledger counts, and that is said. Jobs ask through [`Telemetry`], which never waits for long, or have a
//! device's card watched by [`Watch`].

mod asker;
mod log;
mod pci;
mod sysfs;

use std::path::{Path, PathBuf};

#[cfg(not(feature = "cuda"))]
use crate::base::telemetry::NotTold;
use crate::base::telemetry::{FreeSpace, HostSnapshot, Snapshot};
use crate::base::topology::{NumaNode, PciCard};

pub use asker::{ANSWER, FIRST, Telemetry, Watch, card_of, cardless};
pub use log::parse as parse_log;
pub(crate) use pci::vendor;

/// What was told.
#[derive(Clone, Debug, Default)]
pub struct Told {
    /// A card each.
    pub cards: Vec<Snapshot>,
    /// The host.
    pub host: HostSnapshot,
}

/// What the kernel lists of the machine, without asking a driver. Elsewhere than on Linux nothing.
#[derive(Clone, Debug, Default)]
pub struct Machine {
    /// Cards on the PCI bus, also those that no driver has.
    pub cards: Vec<PciCard>,
    /// NUMA nodes.
    pub nodes: Vec<NumaNode>,
}

impl Machine {
    /// A tree that looks like `/`.
    pub fn at(root: &Path) -> Self {
        Machine { cards: pci::cards(root), nodes: pci::nodes(root) }
    }
}

/// A way to ask.
pub trait Source {
    /// Asks once; adds cards, or facts to cards that are there.
    fn ask(&mut self, told: &mut Told);
}

impl Telemetry {
    /// All sources of this system. `folders` are what is written to and where: their free space is told.
    pub fn system(folders: Vec<(&'static str, PathBuf)>) -> Self {
        Telemetry::new(move || {
            let folders: Vec<(&str, &Path)> = folders.iter().map(|(of, folder)| (*of, folder.as_path())).collect();
            ask(&folders)
        })
    }

    /// This system's cards alone, without their processes: libraries stay open, so that asking often costs little.
    pub fn cards() -> Self {
        #[cfg(feature = "cuda")]
        let mut nvidia = super::cuda::nvml::Nvidia::default();
        let mut sysfs = sysfs::Sysfs::system().without_processes();
        Telemetry::new(move || {
            let mut told = Told::default();
            #[cfg(feature = "cuda")]
            nvidia.ask(&mut told);
            sysfs.ask(&mut told);
            told
        })
    }

    /// Why this system's cards lower their clocks, and for how long they have: the cheapest question, for looks while something is
    /// measured.
    pub fn clocks() -> Self {
        #[cfg(feature = "cuda")]
        let mut nvidia = super::cuda::nvml::Nvidia::clocks_alone();
        let mut sysfs = sysfs::Sysfs::system().clocks_alone();
        Telemetry::new(move || {
            let mut told = Told::default();
            #[cfg(feature = "cuda")]
            nvidia.ask(&mut told);
            sysfs.ask(&mut told);
            told
        })
    }

    /// The same of a tree that looks like `/`.
    pub fn clocks_of_tree(root: &Path) -> Self {
        let mut sysfs = sysfs::Sysfs::at(root).clocks_alone();
        Telemetry::new(move || {
            let mut told = Told::default();
            sysfs.ask(&mut told);
            told
        })
    }

    /// This system's cards with the processes that use them: each process is looked into.
    pub fn users() -> Self {
        #[cfg(feature = "cuda")]
        let mut nvidia = super::cuda::nvml::Nvidia::default();
        let mut sysfs = sysfs::Sysfs::system();
        Telemetry::new(move || {
            let mut told = Told::default();
            #[cfg(feature = "cuda")]
            nvidia.ask(&mut told);
            sysfs.ask(&mut told);
            told
        })
    }

    /// A tree that looks like `/` ([`ask_tree`]).
    pub fn tree(root: PathBuf) -> Self {
        Telemetry::new(move || ask_tree(&root))
    }
}

/// Asks all sources of this system. `folders` are what is written to and where: their free space is told.
pub fn ask(folders: &[(&str, &Path)]) -> Told {
    let mut told = Told::default();
    #[cfg(feature = "cuda")]
    super::cuda::nvml::Nvidia::default().ask(&mut told);
    #[cfg(not(feature = "cuda"))]
    told.host
        .not_told
        .push(NotTold { what: "NVIDIA's cards".into(), why: "this build leaves the backend cuda out".into() });
    sysfs::Sysfs::system().ask(&mut told);
    log::Kernel.ask(&mut told);
    told.host.free = folders.iter().filter_map(|(of, folder)| free(of, folder)).collect();
    told
}

/// What a tree that looks like `/` tells through sysfs and procfs, for tests and for trees copied from other machines.
pub fn ask_tree(root: &Path) -> Told {
    let mut told = Told::default();
    sysfs::Sysfs::at(root).ask(&mut told);
    told
}

/// Free space of the nearest folder that is there.
fn free(of: &str, folder: &Path) -> Option<FreeSpace> {
    let there = folder.ancestors().find(|f| f.is_dir())?;
    let bytes = crate::base::os::free_bytes(there)?;
    Some(FreeSpace { of: of.into(), folder: folder.display().to_string(), bytes })
}

/// The card at that address, or a new one.
fn card<'t>(cards: &'t mut Vec<Snapshot>, pci: &str) -> &'t mut Snapshot {
    if let Some(at) = cards.iter().position(|c| c.pci.as_deref() == Some(pci)) {
        return &mut cards[at];
    }
    cards.push(Snapshot { uid: format!("pci:{pci}"), pci: Some(pci.into()), ..Snapshot::default() });
    let last = cards.len() - 1;
    &mut cards[last]
}

/// NVML writes domains with 8 digits, Linux with 4, and either may use capitals.
#[cfg(feature = "cuda")]
pub(super) fn pci_address(text: &str) -> String {
    let text = text.to_ascii_lowercase();
    match text.split_once(':') {
        Some((domain, rest)) if domain.len() == 8 && domain.starts_with("0000") => format!("{}:{rest}", &domain[4..]),
        _ => text,
    }
}
