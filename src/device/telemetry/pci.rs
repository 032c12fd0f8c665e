//! Linux's list of PCI devices and NUMA nodes: cards that no driver has are there, too.

use std::path::Path;

use crate::base::topology::{NumaNode, PciCard};

use super::sysfs::{names, number, text};

/// Displays that compute nothing: of virtual machines and of servers' management processors, by vendor and device.
const DISPLAYS: [(u16, Option<u16>); 9] = [
    (0x1234, Some(0x1111)), // Bochs, QEMU's standard display
    (0x1b36, Some(0x0100)), // QXL
    (0x1013, Some(0x00b8)), // Cirrus, emulated
    (0x15ad, Some(0x0405)), // VMware SVGA
    (0x80ee, Some(0xbeef)), // VirtualBox
    (0x1af4, Some(0x1050)), // virtio
    (0x1414, Some(0x5353)), // Hyper-V
    (0x1a03, None),         // ASPEED
    (0x102b, None),         // Matrox
];

/// Classes of PCI: displays (VGA, 3D, other) and processing accelerators.
fn computes(class: u32) -> bool {
    matches!(class >> 8, 0x0300 | 0x0302 | 0x0380 | 0x1200)
}

/// Vendors by their PCI number.
pub(crate) fn vendor(id: u16) -> Option<&'static str> {
    Some(match id {
        0x10de => "NVIDIA",
        0x1002 => "AMD",
        0x8086 => "Intel",
        0x13b5 => "Arm",
        0x5143 => "Qualcomm",
        0x106b => "Apple",
        0x1414 => "Microsoft",
        _ => return None,
    })
}

pub(super) fn hex<T: TryFrom<u64>>(path: &Path) -> Option<T> {
    let text = text(path)?;
    T::try_from(u64::from_str_radix(text.trim_start_matches("0x"), 16).ok()?).ok()
}

/// Cards in a tree that looks like `/`, by address.
pub(super) fn cards(root: &Path) -> Vec<PciCard> {
    let folder = root.join("sys/bus/pci/devices");
    let card = |pci: String| {
        let at = folder.join(&pci);
        let (vendor, device) = (hex(&at.join("vendor"))?, hex(&at.join("device"))?);
        let display = DISPLAYS.iter().any(|(v, d)| *v == vendor && d.is_none_or(|d| d == device));
        if display || !computes(hex(&at.join("class"))?) {
            return None;
        }
        let place = std::fs::canonicalize(&at).ok();
        let parts: Vec<String> =
            place.iter().flat_map(|p| p.components()).map(|c| c.as_os_str().to_string_lossy().into()).collect();
        let from = parts.iter().position(|p| p.starts_with("pci") && p.contains(':'));
        let bridges = from.map_or(&[][..], |from| &parts[from + 1..parts.len() - 1]).to_vec();
        Some(PciCard {
            vendor,
            device,
            driver: std::fs::read_link(at.join("driver"))
                .ok()
                .and_then(|d| Some(d.file_name()?.to_string_lossy().into())),
            // -1 where the firmware does not tell.
            numa_node: number(&at.join("numa_node")),
            root: from.map(|at| parts[at].clone()).unwrap_or_default(),
            bridges,
            pci: pci.to_ascii_lowercase(),
        })
    };
    names(&folder).into_iter().filter_map(card).collect()
}

/// NUMA nodes of a tree that looks like `/`, by number.
pub(super) fn nodes(root: &Path) -> Vec<NumaNode> {
    let folder = root.join("sys/devices/system/node");
    let node = |name: String| {
        let node = name.strip_prefix("node")?.parse().ok()?;
        let at = folder.join(name);
        let kib = text(&at.join("meminfo")).and_then(|t| {
            let line = t.lines().find(|l| l.contains("MemTotal:"))?.to_string();
            line.split_whitespace().rev().nth(1)?.parse::<u64>().ok()
        });
        let distances = text(&at.join("distance")).unwrap_or_default();
        Some(NumaNode {
            node,
            cpus: text(&at.join("cpulist")).unwrap_or_default(),
            memory_bytes: kib.map(|k| k * 1024),
            distances: distances.split_whitespace().filter_map(|d| d.parse().ok()).collect(),
        })
    };
    let mut all: Vec<NumaNode> = names(&folder).into_iter().filter_map(node).collect();
    all.sort_unstable_by_key(|n| n.node);
    all
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;

    /// A tree with a card behind a switch, one that no driver has, a management display and a network card (synthetic).
    fn tree(root: &Path) {
        let real = root.join("sys/devices/pci0000:3a/0000:3a:00.0/0000:3b:00.0");
        let other = root.join("sys/devices/pci0000:80/0000:81:00.0");
        let display = root.join("sys/devices/pci0000:00/0000:02:00.0");
        let network = root.join("sys/devices/pci0000:00/0000:03:00.0");
        let bus = root.join("sys/bus/pci/devices");
        let driver = root.join("sys/bus/pci/drivers/nvidia");
        for d in [&real, &other, &display, &network, &bus, &driver] {
            std::fs::create_dir_all(d).unwrap();
        }
        for (d, class, vendor, device, node) in [
            (&real, "0x030200", "0x10de", "0x2335", "1"),
            (&other, "0x120000", "0x1002", "0x740f", "-1"),
            (&display, "0x030000", "0x1a03", "0x2000", "0"),
            (&network, "0x020000", "0x8086", "0x1592", "0"),
        ] {
            for (file, value) in [("class", class), ("vendor", vendor), ("device", device), ("numa_node", node)] {
                std::fs::write(d.join(file), format!("{value}\n")).unwrap();
            }
            std::os::unix::fs::symlink(d, bus.join(d.file_name().unwrap())).unwrap();
        }
        std::os::unix::fs::symlink(&driver, real.join("driver")).unwrap();
        let nodes = root.join("sys/devices/system/node");
        for (node, cpus) in [("node0", "0-3"), ("node1", "4-7")] {
            std::fs::create_dir_all(nodes.join(node)).unwrap();
            std::fs::write(nodes.join(node).join("cpulist"), cpus).unwrap();
            std::fs::write(nodes.join(node).join("distance"), "10 21\n").unwrap();
            let memory = format!("Node {} MemTotal:  1024 kB\nNode {} MemFree: 1 kB\n", &node[4..], &node[4..]);
            std::fs::write(nodes.join(node).join("meminfo"), memory).unwrap();
        }
        std::fs::write(nodes.join("online"), "0-1").unwrap();
    }

    #[test]
    fn cards_are_found_with_and_without_a_driver() {
        let dir = tempfile::tempdir().unwrap();
        tree(dir.path());
        let all = cards(dir.path());
        let [nvidia, amd] = &all[..] else { panic!("{all:?}") };
        assert_eq!((nvidia.pci.as_str(), nvidia.driver.as_deref()), ("0000:3b:00.0", Some("nvidia")));
        assert_eq!(
            (nvidia.bridges.as_slice(), nvidia.root.as_str()),
            (&["0000:3a:00.0".to_string()][..], "pci0000:3a")
        );
        assert_eq!((nvidia.numa_node, amd.numa_node), (Some(1), None));
        assert_eq!((vendor(amd.vendor), amd.driver.as_deref()), (Some("AMD"), None));
        assert!(cards(&dir.path().join("nowhere")).is_empty());
    }

    #[test]
    fn nodes_are_read_in_order() {
        let dir = tempfile::tempdir().unwrap();
        tree(dir.path());
        let all = nodes(dir.path());
        assert_eq!(all.len(), 2);
        assert_eq!((all[1].node, all[1].cpus.as_str(), all[1].memory_bytes), (1, "4-7", Some(1 << 20)));
        assert_eq!(all[0].distances, [10, 21]);
    }
}
