//! How the pieces of a machine hang together: NUMA nodes, links, peers. Data only; who reads it is `device::telemetry`, who
//! puts it together `jobs::hardware`.

use serde::{Deserialize, Serialize};

/// A NUMA node of the host.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NumaNode {
    /// Its number.
    pub node: u32,
    /// Processors, as the kernel lists them: `0-15,32-47`.
    pub cpus: String,
    /// Bytes of memory.
    pub memory_bytes: Option<u64>,
    /// Distances to all nodes in order of their numbers; 10 is its own.
    pub distances: Vec<u32>,
}

/// A device on the PCI bus that shows or computes, as the kernel lists it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct PciCard {
    /// Address, `0000:3b:00.0`.
    pub pci: String,
    /// Number of the vendor.
    pub vendor: u16,
    /// Number of the device.
    pub device: u16,
    /// The kernel's driver that has it, if one has.
    pub driver: Option<String>,
    /// NUMA node.
    pub numa_node: Option<u32>,
    /// Addresses of the bridges above it, the outermost first, without the host's own.
    pub bridges: Vec<String>,
    /// Name of the host bridge, `pci0000:3a`.
    pub root: String,
}

/// A piece of hardware in a topology.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Place {
    /// Name.
    pub name: String,
    /// Ids of its devices.
    pub ids: Vec<String>,
    /// PCI address.
    pub pci: Option<String>,
    /// NUMA node.
    pub numa_node: Option<u32>,
    /// Processors near it.
    pub cpus: Option<String>,
}

/// How two cards reach each other.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Pair {
    /// PCI addresses of both.
    pub between: [String; 2],
    /// `nvlink`, `same switch`, `switches`, `host bridge`, `node`, `system`, `unknown`; nearest first.
    pub path: String,
    /// NVLinks between them, or between each and the switch that both hang at.
    pub nvlinks: Option<u32>,
    /// Whether each can read and write the other's memory directly, if an API tells.
    pub peers: Option<bool>,
}

/// The machine.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Topology {
    /// NUMA nodes; empty if the system does not tell.
    pub nodes: Vec<NumaNode>,
    /// Hardware other than the processor.
    pub cards: Vec<Place>,
    /// Every two cards.
    pub pairs: Vec<Pair>,
}
