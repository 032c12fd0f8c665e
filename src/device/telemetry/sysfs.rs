//! Linux's files about GPUs: `/sys/class/drm` with `hwmon` (kernel documentation, "AMDGPU: GPU Power/Thermal Controls" and
//! "Naming and data format standards for sysfs files"), PCI links, `/proc/*/fdinfo` ("DRM client usage stats").

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use crate::base::telemetry::{GpuProcess, Snapshot};

use super::pci::hex;
use super::{Source, Told, card};

/// Files of a tree.
pub(super) struct Sysfs {
    root: PathBuf,
    /// Whether processes are looked into.
    processes: bool,
    /// Whether nothing but the clocks is read.
    clocks_alone: bool,
}

impl Sysfs {
    pub(super) fn system() -> Self {
        Self::at(Path::new("/"))
    }
    pub(super) fn at(root: &Path) -> Self {
        Sysfs { root: root.into(), processes: true, clocks_alone: false }
    }
    /// The same without looking into every process.
    pub(super) fn without_processes(self) -> Self {
        Sysfs { processes: false, ..self }
    }
    /// Why clocks are lowered, and nothing else: some small files of each card.
    pub(super) fn clocks_alone(self) -> Self {
        Sysfs { clocks_alone: true, ..self }
    }
}

pub(super) fn text(path: &Path) -> Option<String> {
    Some(std::fs::read_to_string(path).ok()?.trim().to_string()).filter(|t| !t.is_empty())
}

pub(super) fn number<T: std::str::FromStr>(path: &Path) -> Option<T> {
    text(path)?.parse().ok()
}

/// Names in a folder, in order.
pub(super) fn names(folder: &Path) -> Vec<String> {
    let Ok(read) = std::fs::read_dir(folder) else { return Vec::new() };
    let mut all: Vec<String> = read.filter_map(|e| e.ok()?.file_name().into_string().ok()).collect();
    all.sort_unstable();
    all
}

/// PCI Express generation of a speed as the kernel writes it, `16.0 GT/s PCIe`.
fn generation(speed: &str) -> Option<u32> {
    let gt: f64 = speed.split_whitespace().next()?.parse().ok()?;
    let speeds = [2.5, 5.0, 8.0, 16.0, 32.0, 64.0];
    speeds.iter().position(|s| (s - gt).abs() < 0.01).and_then(|at| u32::try_from(at + 1).ok())
}

/// Generation and width in a device's folder, now (`current`) or at most (`max`).
fn link(device: &Path, which: &str) -> (Option<u32>, Option<u32>) {
    let speed = text(&device.join(format!("{which}_link_speed"))).and_then(|t| generation(&t));
    // 0 and 255 stand for a link that is down or not known.
    let width = number(&device.join(format!("{which}_link_width"))).filter(|w| (1..=32).contains(w));
    (speed, width)
}

/// The count behind a word in a RAS file of amdgpu, `ue: 0`.
fn ras(device: &Path, word: &str) -> Option<u64> {
    let text = text(&device.join("ras/umc_err_count"))?;
    text.lines().find_map(|l| l.strip_prefix(word)?.strip_prefix(':')?.trim().parse().ok())
}

impl Source for Sysfs {
    fn ask(&mut self, told: &mut Told) {
        let class = self.root.join("sys/class/drm");
        for name in names(&class) {
            // `card0` is a card, `card0-DP-1` one of its sockets.
            if !name.strip_prefix("card").is_some_and(|n| !n.is_empty() && n.bytes().all(|b| b.is_ascii_digit())) {
                continue;
            }
            let device = class.join(&name).join("device");
            let Some(uevent) = text(&device.join("uevent")) else { continue };
            let value = |key: &str| uevent.lines().find_map(|l| l.strip_prefix(key)).map(str::to_string);
            // What has no PCI address is a graphics processor of a system on a chip or a pure display.
            let Some(pci) = value("PCI_SLOT_NAME=") else { continue };
            let card = card(&mut told.cards, &pci.to_ascii_lowercase());
            if card.source.is_empty() {
                card.source = "sysfs".into();
                card.driver = value("DRIVER=");
                let id = value("PCI_ID=").unwrap_or_default();
                if self.clocks_alone {
                    card.throttle = throttle(&class.join(&name), &device);
                    continue;
                }
                card.name = text(&device.join("product_name")).unwrap_or(format!("GPU {id}"));
                readings(&device, card);
                card.processes = self.processes.then(|| self.processes(&pci)).flatten();
            }
            if self.clocks_alone {
                continue;
            }
            card.throttle = card.throttle.or_else(|| throttle(&class.join(&name), &device));
            card.numa_node = number(&device.join("numa_node"));
            let edge = edge(&device);
            let (own, slot) = (link(&edge, "max"), slot(&edge));
            card.link.card_generation = card.link.card_generation.or(own.0);
            card.link.card_width = card.link.card_width.or(own.1);
            (card.link.slot_generation, card.link.slot_width) = slot;
        }
    }
}

/// Reasons of Intel's drivers by the bits of NVML, which all sources share: limits of power and current, of heat, and a signal
/// from outside of the card.
const INTEL: [(&str, u64); 8] = [
    ("pl1", 0x004),
    ("pl2", 0x004),
    ("pl4", 0x004),
    ("vr_tdc", 0x004),
    ("thermal", 0x040),
    ("ratl", 0x040),
    ("vr_thermalert", 0x040),
    ("prochot", 0x008),
];

/// Why clocks are lowered: i915 tells it in `gt/gt0/throttle_reason_*` of the card (Linux 5.18), xe in
/// `tile0/gt0/freq0/throttle/reason_*` of the device ("Xe GT Throttle"), amdgpu in `gpu_metrics`.
fn throttle(card: &Path, device: &Path) -> Option<u64> {
    let parts = |folder: &Path, start: &str| -> Vec<PathBuf> {
        names(folder).into_iter().filter(|n| n.starts_with(start)).map(|n| folder.join(n)).collect()
    };
    let i915 = parts(&card.join("gt"), "gt").into_iter().map(|gt| gt.join("throttle_reason_"));
    let tiles = parts(device, "tile").into_iter().flat_map(|tile| parts(&tile, "gt"));
    let xe = tiles.map(|gt| gt.join("freq0/throttle/reason_"));
    let mut told = None;
    for start in i915.chain(xe) {
        for (word, bit) in INTEL {
            let mut file = start.clone().into_os_string();
            file.push(word);
            if let Some(on) = number::<u64>(Path::new(&file)) {
                *told.get_or_insert(0) |= if on != 0 { bit } else { 0 };
            }
        }
    }
    told.or_else(|| gpu_metrics(&std::fs::read(device.join("gpu_metrics")).ok()?))
}

/// Why amdgpu lowers clocks, from version 1.3 of its table (kernel source, kgd_pp_interface.h, `gpu_metrics_v1_3`): the reasons that
/// are the same for all chips (amdgpu_smu.h, `SMU_THROTTLER_*`) are a word at byte 112.
fn gpu_metrics(table: &[u8]) -> Option<u64> {
    let size = u16::from_le_bytes(table.get(..2)?.try_into().ok()?);
    if table.get(2..4)? != [1, 3] || size < 120 {
        return None;
    }
    let reasons = u64::from_le_bytes(table.get(112..120)?.try_into().ok()?);
    // All bits set: this chip does not tell it.
    if reasons == u64::MAX {
        return None;
    }
    // Limits of power and current, of temperatures and what signals heat; what is above is neither.
    let groups = [(0x0000_0000_ffff_ffff, 0x004), (0x00ff_ffff_0000_0000, 0x040), (0xff00_0000_0000_0000, 0x008)];
    Some(groups.into_iter().filter(|(bits, _)| reasons & bits != 0).fold(0, |all, (_, bit)| all | bit))
}

/// AMD's number as a maker of cards. The root ports of its processors have another one (0x1022).
const AMD: u16 = 0x1002;

/// The folder whose link is the one in the slot. AMD's cards since Vega carry a switch: the link of the processor behind it never
/// leaves the card, that of the switch's upper port does.
fn edge(device: &Path) -> PathBuf {
    let Ok(mut at) = std::fs::canonicalize(device) else { return device.into() };
    let maker = |folder: &Path| hex::<u16>(&folder.join("vendor"));
    while let Some(bridge) = at.parent().filter(|b| maker(b) == Some(AMD)) {
        // What nothing is above of is a root port: those of old chipsets have the same number.
        if bridge.parent().and_then(maker).is_none() {
            break;
        }
        at = bridge.into();
    }
    at
}

/// What the port that the card sits in can: the folder above that of its edge.
fn slot(edge: &Path) -> (Option<u32>, Option<u32>) {
    edge.parent().map_or((None, None), |port| link(port, "max"))
}

fn readings(device: &Path, card: &mut Snapshot) {
    (card.link.generation, card.link.width) = link(&edge(device), "current");
    card.memory_used = number(&device.join("mem_info_vram_used"));
    card.memory_total = number(&device.join("mem_info_vram_total"));
    card.busy = number::<f64>(&device.join("gpu_busy_percent")).map(|p| p / 100.0);
    card.memory.uncorrected = ras(device, "ue");
    card.memory.corrected = ras(device, "ce");
    let folder = device.join("hwmon");
    let Some(monitor) = names(&folder).first().map(|n| folder.join(n)) else { return };
    // Thousandths of degrees, millionths of watts, hertz.
    let thousandth = |name: &str| number::<f64>(&monitor.join(name)).map(|v| v / 1e3);
    let millionth = |name: &str| number::<f64>(&monitor.join(name)).map(|v| v / 1e6);
    card.temperature_c = thousandth("temp1_input");
    card.slowdown_c = thousandth("temp1_crit");
    card.shutdown_c = thousandth("temp1_emergency");
    card.power_w = millionth("power1_average").or_else(|| millionth("power1_input"));
    card.power_cap_w = millionth("power1_cap");
    card.default_cap_w = millionth("power1_cap_default");
    card.clock_mhz = millionth("freq1_input").map(|mhz| mhz as u32);
}

impl Sysfs {
    /// Processes with an open file of the card. `None` if no process may be looked into.
    fn processes(&self, pci: &str) -> Option<Vec<GpuProcess>> {
        let folder = self.root.join("proc");
        let mut looked = false;
        // Bytes by process and client: a client's files repeat its figures.
        let mut clients: BTreeMap<(u32, String), Option<u64>> = BTreeMap::new();
        for pid in names(&folder).iter().filter_map(|n| n.parse::<u32>().ok()) {
            let files = folder.join(pid.to_string()).join("fdinfo");
            for file in names(&files) {
                let Some(info) = text(&files.join(file)) else { continue };
                looked = true;
                if let Some((client, bytes)) = client(&info, pci) {
                    clients.insert((pid, client), bytes);
                }
            }
        }
        let mut all: BTreeMap<u32, Option<u64>> = BTreeMap::new();
        for ((pid, _), bytes) in clients {
            let sum = all.entry(pid).or_default();
            *sum = sum.map_or(bytes, |s| Some(s + bytes.unwrap_or(0)));
        }
        looked.then(|| all.into_iter().map(|(pid, bytes)| GpuProcess { pid, bytes }).collect())
    }
}

/// The client and its bytes of the card's memory, if the file is one of the card's.
fn client(info: &str, pci: &str) -> Option<(String, Option<u64>)> {
    let value = |key: &str| info.lines().find_map(|l| l.strip_prefix(key)?.strip_prefix(':')).map(str::trim);
    if !value("drm-pdev")?.eq_ignore_ascii_case(pci) {
        return None;
    }
    // amdgpu says `drm-memory-vram`; the common keys since Linux 6.5 are `drm-total-REGION`, i915 and xe name `vram0` or
    // `local0` what lies on the card.
    let keys = ["drm-memory-vram", "drm-total-vram", "drm-total-vram0", "drm-total-local0"];
    let bytes = keys.iter().find_map(|k| value(k)).and_then(size);
    Some((value("drm-client-id").unwrap_or_default().to_string(), bytes))
}

/// Bytes of `123 KiB`.
fn size(text: &str) -> Option<u64> {
    let mut parts = text.split_whitespace();
    let n: u64 = parts.next()?.parse().ok()?;
    let unit = match parts.next() {
        None => 1,
        Some("KiB") => 1 << 10,
        Some("MiB") => 1 << 20,
        Some("GiB") => 1 << 30,
        Some(_) => return None,
    };
    n.checked_mul(unit)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Synthetic trees, with the names that the drivers' sources have.
    #[test]
    fn reasons_for_lowered_clocks_are_told_by_each_driver() {
        let dir = tempfile::tempdir().unwrap();
        let (card, device) = (dir.path().join("card"), dir.path().join("device"));
        let write = |path: PathBuf, bytes: &[u8]| {
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, bytes).unwrap();
        };
        assert_eq!(throttle(&card, &device), None, "nobody tells");
        let mut table = vec![0u8; 120];
        table[..4].copy_from_slice(&[120, 0, 1, 3]);
        write(device.join("gpu_metrics"), &table);
        assert_eq!(throttle(&card, &device), Some(0));
        for (bit, mask) in [(0, 0x4), (16, 0x4), (23, 0x4), (32, 0x40), (36, 0x40), (47, 0x40), (56, 0x8)] {
            table[112..].copy_from_slice(&(1u64 << bit).to_le_bytes());
            assert_eq!(gpu_metrics(&table), Some(mask), "{bit}");
        }
        table[112..].copy_from_slice(&((1u64 << 3) | (1 << 34)).to_le_bytes());
        assert_eq!(gpu_metrics(&table), Some(0x44), "both");
        table[112..].fill(0xff);
        assert_eq!(gpu_metrics(&table), None, "not told");
        table[3] = 4;
        assert_eq!((gpu_metrics(&table), gpu_metrics(&table[..100]), gpu_metrics(&[])), (None, None, None));

        for reason in ["pl1", "thermal", "prochot"] {
            write(device.join(format!("tile0/gt0/freq0/throttle/reason_{reason}")), b"0\n");
        }
        assert_eq!(throttle(&card, &device), Some(0));
        write(device.join("tile0/gt0/freq0/throttle/reason_thermal"), b"1\n");
        assert_eq!(throttle(&card, &device), Some(0x40));
        write(card.join("gt/gt1/throttle_reason_pl1"), b"1\n");
        assert_eq!(throttle(&card, &device), Some(0x44), "parts of one card");
    }

    /// A card with a switch of its own in a bad slot, one without, and one in a root port that has AMD's number as well
    /// (synthetic trees).
    #[cfg(unix)]
    #[test]
    fn the_link_of_a_card_with_a_switch_is_that_of_its_edge() {
        let told = |ports: &[(&str, &str, &str, &str)]| {
            let dir = tempfile::tempdir().unwrap();
            let mut at = dir.path().join("sys/devices/pci0000:00");
            for (folder, vendor, now, most) in ports {
                at = at.join(folder);
                std::fs::create_dir_all(&at).unwrap();
                let link =
                    [("current", now), ("max", most)].map(|(which, text)| (which, text.split_once(" x").unwrap()));
                for (which, (speed, width)) in link {
                    std::fs::write(at.join(format!("{which}_link_speed")), format!("{speed} GT/s PCIe\n")).unwrap();
                    std::fs::write(at.join(format!("{which}_link_width")), format!("{width}\n")).unwrap();
                }
                std::fs::write(at.join("vendor"), format!("{vendor}\n")).unwrap();
            }
            std::fs::write(at.join("uevent"), "DRIVER=amdgpu\nPCI_SLOT_NAME=0000:03:00.0\n").unwrap();
            let class = dir.path().join("sys/class/drm/card0");
            std::fs::create_dir_all(&class).unwrap();
            std::os::unix::fs::symlink(&at, class.join("device")).unwrap();
            let l = crate::device::telemetry::ask_tree(dir.path()).cards[0].link;
            [l.generation, l.width, l.card_generation, l.card_width, l.slot_generation, l.slot_width]
                .map(|n| n.unwrap_or(0))
        };
        let upper = ("0000:01:00.0", "0x1002", "8.0 x4", "16.0 x16");
        let lower = ("0000:02:00.0", "0x1002", "16.0 x16", "16.0 x16");
        let card = ("0000:03:00.0", "0x1002", "16.0 x16", "16.0 x16");
        let root = |vendor| ("0000:00:01.1", vendor, "8.0 x4", "8.0 x16");
        for vendor in ["0x1022", "0x8086", "0x1002"] {
            assert_eq!(told(&[root(vendor), upper, lower, card]), [3, 4, 4, 16, 3, 16], "a switch below {vendor}");
            assert_eq!(told(&[root(vendor), card]), [4, 16, 4, 16, 3, 16], "no switch, {vendor}");
        }
        let other = ("0000:03:00.0", "0x10de", "16.0 x8", "16.0 x16");
        assert_eq!(told(&[root("0x8086"), other]), [4, 8, 4, 16, 3, 16]);
    }

    #[test]
    fn units_of_the_kernel() {
        assert_eq!(
            [generation("16.0 GT/s PCIe"), generation("2.5 GT/s"), generation("Unknown")],
            [Some(4), Some(1), None]
        );
        assert_eq!(
            [size("12 KiB"), size("7"), size("3 XB"), size("99999999999999999 GiB")],
            [Some(12288), Some(7), None, None]
        );
        let info =
            "pos:\t0\ndrm-driver:\tamdgpu\ndrm-pdev:\t0000:03:00.0\ndrm-client-id:\t9\ndrm-memory-vram:\t4 KiB\n";
        assert_eq!(client(info, "0000:03:00.0"), Some(("9".into(), Some(4096))));
        assert_eq!(client(info, "0000:04:00.0"), None);
        assert_eq!(client("pos: 0", "0000:03:00.0"), None);
    }
}
