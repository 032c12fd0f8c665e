//! Which devices are one piece of hardware, and what else is in the machine. Pure: devices come from `inventory`, the rest
//! from `device::telemetry`.

use crate::base::facts::{Hardware, minimum};
use crate::base::telemetry::{Link, NotTold, Snapshot};
use crate::base::topology::{Pair, PciCard, Place, Topology};
use crate::base::{Backend, DeviceClass, DeviceInfo};
use crate::device::telemetry::{Machine, vendor};

/// Devices that are one piece of hardware, and what says so.
struct Group<'a> {
    devices: Vec<&'a DeviceInfo>,
    by: &'static str,
}

impl Group<'_> {
    /// The card's. What a driver calls the UUID of the host's processor is its own.
    fn uuid(&self) -> Option<&str> {
        self.devices.iter().find_map(|d| d.facts.uuid.as_deref()).filter(|_| !self.is_processor())
    }
    fn pci(&self) -> Option<&str> {
        self.devices.iter().find_map(|d| d.facts.pci.as_deref())
    }
    fn is_processor(&self) -> bool {
        self.devices.iter().any(|d| matches!(d.class, DeviceClass::Cpu | DeviceClass::Software))
    }
    /// What says that the device belongs here. A UUID that differs speaks against it only without a common address: parts of
    /// a divided card have a UUID each. An address that differs speaks against it always: drivers of
    /// Mesa have made UUIDs of a model's numbers ("since we never have more than one device"), which two cards of a model share.
    fn matches(&self, d: &DeviceInfo) -> Option<&'static str> {
        let same = |a: Option<&str>, b: &Option<String>| a.is_some() && a == b.as_deref();
        let processor = matches!(d.class, DeviceClass::Cpu | DeviceClass::Software);
        if processor || self.is_processor() {
            return (processor && self.is_processor()).then_some("processor");
        }
        let uuid = self.devices.iter().any(|o| same(o.facts.uuid.as_deref(), &d.facts.uuid));
        let pci = self.devices.iter().any(|o| same(o.facts.pci.as_deref(), &d.facts.pci));
        let elsewhere = d.facts.pci.is_some() && self.pci().is_some() && !pci;
        if elsewhere {
            None
        } else if uuid {
            Some("uuid")
        } else {
            pci.then_some("pci")
        }
    }
}

/// Groups devices; the order is that of each group's first device.
fn groups(devices: &[DeviceInfo]) -> Vec<Group<'_>> {
    let mut all: Vec<Group<'_>> = Vec::new();
    for d in devices {
        // A device that tells both a UUID and an address may join groups that were apart until now.
        let hits: Vec<(usize, &'static str)> =
            all.iter().enumerate().filter_map(|(i, g)| Some((i, g.matches(d)?))).collect();
        let Some(&(first, by)) = hits.first() else {
            all.push(Group { devices: vec![d], by: "alone" });
            continue;
        };
        for (other, _) in hits[1..].iter().rev() {
            let joined = all.remove(*other).devices;
            all[first].devices.extend(joined);
        }
        all[first].devices.push(d);
        all[first].by = by;
    }
    all
}

/// The hardware of this machine: a row for each card and one for the processor, with the devices through which APIs show it.
///
/// `asked` are the APIs that were asked, `cards` is what telemetry told, `machine` what the kernel lists. Cards that no API shows
/// are there without ids, if all were asked.
pub fn rows(devices: &[DeviceInfo], asked: &[Backend], cards: &[Snapshot], machine: &Machine) -> Vec<Hardware> {
    let mut rows: Vec<Hardware> = groups(devices).iter().map(|g| row(g, asked, cards, machine)).collect();
    if !APIS.iter().all(|b| asked.contains(b)) {
        return rows;
    }
    for card in &machine.cards {
        if !rows.iter().any(|r| r.pci.as_deref() == Some(card.pci.as_str())) {
            let told = cards.iter().find(|c| c.pci.as_deref() == Some(card.pci.as_str()));
            rows.push(unseen(card, told));
        }
    }
    for told in cards {
        let there = |r: &Hardware| r.pci.is_some() && r.pci == told.pci || r.uuid.is_some() && r.uuid == hex(&told.uid);
        if !rows.iter().any(there) {
            let pci = told.pci.clone().unwrap_or_default();
            rows.push(unseen(&PciCard { pci, ..PciCard::default() }, Some(told)));
        }
    }
    rows
}

/// The digits of `GPU-6d6f...`.
fn hex(uid: &str) -> Option<String> {
    let digits: String = uid.strip_prefix("GPU-")?.chars().filter(char::is_ascii_hexdigit).collect();
    (digits.len() == 32).then(|| digits.to_lowercase())
}

/// APIs that could show a GPU.
const APIS: [Backend; 3] = [Backend::Cuda, Backend::Opencl, Backend::Wgpu];

fn row(group: &Group<'_>, asked: &[Backend], cards: &[Snapshot], machine: &Machine) -> Hardware {
    let devices = &group.devices;
    let first = devices[0];
    let (uuid, pci) = (group.uuid().map(str::to_string), group.pci().map(str::to_string));
    let told = cards.iter().find(|c| c.pci.is_some() && c.pci == pci || uuid.is_some() && hex(&c.uid) == uuid);
    let listed = machine.cards.iter().find(|c| Some(c.pci.as_str()) == pci.as_deref());
    let processor = group.is_processor();
    let best = |met: &str| devices.iter().map(|d| minimum(d)).find(|m| m.met == met);
    let judged = ["host", "yes", "unknown", "no"].into_iter().find_map(best);
    let free = told.and_then(|c| c.memory_total?.checked_sub(c.memory_used?));
    let memory_free_why = match (free, processor) {
        (Some(_), _) => String::new(),
        (None, true) => "the host's own memory".into(),
        (None, false) if devices.iter().any(|d| d.backend == Backend::Cuda) => "NVML did not tell".into(),
        (None, false) => "neither the system nor OpenCL or Vulkan tells".into(),
    };
    let vendors: Vec<&str> = devices.iter().map(|d| d.vendor.as_str()).collect();
    let nvidia = vendors.iter().any(|v| v.to_lowercase().contains("nvidia"));
    let missing = |b: &&Backend| {
        asked.contains(b) && !devices.iter().any(|d| d.backend == **b) && (**b != Backend::Cuda || nvidia)
    };
    let not_seen_by = match processor {
        true => Vec::new(),
        false => APIS
            .iter()
            .filter(missing)
            .map(|b| NotTold { what: b.name().into(), why: how_to_show(*b, nvidia).into() })
            .collect(),
    };
    let mut notes = Vec::new();
    let mig = told.and_then(|c| c.mig);
    let parts = devices.iter().filter(|d| d.backend == Backend::Cuda).count();
    if mig == Some(true) || parts > 1 {
        notes.push("the card is divided (MIG); CUDA shows a process one part".into());
    }
    let drivers = APIS.iter().find(|b| **b != Backend::Cuda && devices.iter().filter(|d| d.backend == **b).count() > 1);
    if let Some(api) = drivers.filter(|_| !processor) {
        notes.push(format!(
            "several drivers of {} show this one card: choose by the driver, not by the count",
            api.name()
        ));
    }
    Hardware {
        name: first.name.clone(),
        class: if processor { DeviceClass::Cpu } else { class(devices) },
        ids: devices.iter().map(|d| d.id.clone()).collect(),
        matched_by: group.by.into(),
        memory_bytes: devices.iter().filter(|d| !d.is_software()).find_map(|d| d.memory_bytes).or(first.memory_bytes),
        memory_free: free,
        memory_free_why,
        minimum: judged.unwrap_or_else(|| minimum(first)),
        link: told.map(|c| c.link).filter(|l| *l != Link::default()),
        numa_node: told.and_then(|c| c.numa_node).or(listed.and_then(|c| c.numa_node)),
        mig,
        kernel_driver: listed.and_then(|c| c.driver.clone()),
        not_seen_by,
        notes,
        uuid,
        pci,
    }
}

/// The most certain of what the APIs say; Vulkan drivers of containers say `virtual` where CUDA says `discrete`.
fn class(devices: &[&DeviceInfo]) -> DeviceClass {
    let order = [DeviceClass::Discrete, DeviceClass::Integrated, DeviceClass::Virtual];
    order.into_iter().find(|c| devices.iter().any(|d| d.class == *c)).unwrap_or(devices[0].class)
}

/// What makes an API show a card.
fn how_to_show(api: Backend, nvidia: bool) -> &'static str {
    match (api, nvidia) {
        (Backend::Cuda, _) => {
            "CUDA does not show it: CUDA_VISIBLE_DEVICES, the container's device flags, or the driver"
        }
        (Backend::Opencl, true) => {
            "its driver is not among the .icd files: NVIDIA's comes with the driver's OpenCL package"
        }
        (Backend::Opencl, false) => {
            "its driver is not among the .icd files: intel-opencl-icd, ROCm's or Mesa's rusticl"
        }
        (_, true) => "no Vulkan driver shows it: containers need NVIDIA_DRIVER_CAPABILITIES with `graphics`",
        _ => "no Vulkan driver shows it: mesa-vulkan-drivers, or the vendor's",
    }
}

/// A card that no API shows.
fn unseen(card: &PciCard, told: Option<&Snapshot>) -> Hardware {
    let made_by = vendor(card.vendor);
    let nvidia = made_by == Some("NVIDIA") || told.is_some_and(|c| c.source == "nvml");
    let kernel_driver = card.driver.clone().or_else(|| told.and_then(|c| c.driver.clone()));
    let note = match kernel_driver.as_deref() {
        Some("vfio-pci" | "pci-stub") => "it was given to a virtual machine".into(),
        Some("nouveau") => "the kernel's driver nouveau has it; CUDA needs NVIDIA's own driver".into(),
        Some(driver) => format!("the kernel's driver {driver} has it, but no API shows it"),
        None => "no driver of the kernel has it: install the vendor's, then restart".to_string(),
    };
    let name = told.map(|c| c.name.clone()).filter(|n| !n.is_empty());
    let numbers = || format!("{} card {:04x}:{:04x}", made_by.unwrap_or("unknown"), card.vendor, card.device);
    let apis = APIS.iter().filter(|b| nvidia || **b != Backend::Cuda);
    Hardware {
        name: name.unwrap_or_else(numbers),
        class: DeviceClass::Discrete,
        uuid: told.and_then(|c| hex(&c.uid)),
        pci: Some(card.pci.clone()).filter(|p| !p.is_empty()),
        ids: Vec::new(),
        matched_by: "alone".into(),
        memory_bytes: told.and_then(|c| c.memory_total),
        memory_free: told.and_then(|c| c.memory_total?.checked_sub(c.memory_used?)),
        memory_free_why: if told.is_some_and(|c| c.memory_used.is_some()) {
            String::new()
        } else {
            "no driver tells".into()
        },
        minimum: crate::base::facts::Minimum { met: "unknown".into(), why: "no API shows it".into() },
        link: told.map(|c| c.link).filter(|l| *l != Link::default()),
        numa_node: card.numa_node.or(told.and_then(|c| c.numa_node)),
        mig: told.and_then(|c| c.mig),
        kernel_driver,
        not_seen_by: apis.map(|b| NotTold { what: b.name().into(), why: how_to_show(*b, nvidia).into() }).collect(),
        notes: vec![note],
    }
}

/// How the cards hang together.
pub fn topology(rows: &[Hardware], devices: &[DeviceInfo], cards: &[Snapshot], machine: Machine) -> Topology {
    let near = |node: Option<u32>| machine.nodes.iter().find(|n| Some(n.node) == node).map(|n| n.cpus.clone());
    let place = |r: &Hardware| Place {
        name: r.name.clone(),
        ids: r.ids.clone(),
        pci: r.pci.clone(),
        numa_node: r.numa_node,
        cpus: near(r.numa_node),
    };
    let places: Vec<Place> = rows.iter().filter(|r| r.class != DeviceClass::Cpu).map(place).collect();
    let mut pairs = Vec::new();
    for (i, a) in places.iter().enumerate() {
        for b in &places[i + 1..] {
            pairs.extend(pair(a, b, devices, cards, &machine.cards));
        }
    }
    Topology { nodes: machine.nodes, cards: places, pairs }
}

fn pair(a: &Place, b: &Place, devices: &[DeviceInfo], told: &[Snapshot], listed: &[PciCard]) -> Option<Pair> {
    let (pci_a, pci_b) = (a.pci.clone()?, b.pci.clone()?);
    let links = |pci: &str| told.iter().find(|c| c.pci.as_deref() == Some(pci)).and_then(|c| c.nvlinks.clone());
    let nvlinks = links(&pci_a).zip(links(&pci_b)).map(|(from_a, from_b)| {
        let direct = from_a.iter().filter(|to| **to == pci_b).count();
        // All links of a machine with switches lead to these.
        let switched = from_a.iter().filter(|to| *to != "unknown" && from_b.contains(to)).count();
        u32::try_from(if direct > 0 { direct } else { switched }).unwrap_or(u32::MAX)
    });
    let bus = |pci: &str| listed.iter().find(|c| c.pci == pci);
    let path = match (nvlinks, bus(&pci_a).zip(bus(&pci_b))) {
        (Some(1..), _) => "nvlink",
        (_, Some((a, b))) => bus_path(a, b),
        (_, None) => "unknown",
    };
    let cuda = |p: &Place| devices.iter().find(|d| d.backend == Backend::Cuda && p.ids.contains(&d.id));
    let reaches = |from: &DeviceInfo, to: &DeviceInfo| from.facts.peers.contains(&to.id);
    let peers = cuda(a).zip(cuda(b)).map(|(a, b)| reaches(a, b) && reaches(b, a));
    Some(Pair { between: [pci_a, pci_b], path: path.into(), nvlinks, peers })
}

/// What a transfer between two cards passes.
fn bus_path(a: &PciCard, b: &PciCard) -> &'static str {
    if a.root.is_empty() || b.root.is_empty() {
        return "unknown";
    }
    if a.root != b.root {
        let same = a.numa_node.is_some() && a.numa_node == b.numa_node;
        return if same { "node" } else { "system" };
    }
    let common = a.bridges.iter().zip(&b.bridges).take_while(|(x, y)| x == y).count();
    // A switch is a port to the host and one below it for each card; each of them is a bridge of its own.
    match common {
        0 => "host bridge",
        _ if a.bridges.len() <= common + 1 && b.bridges.len() <= common + 1 => "same switch",
        _ => "switches",
    }
}

#[cfg(test)]
#[path = "hardware_tests.rs"]
mod tests;
