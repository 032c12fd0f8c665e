//! What a card tells of itself while it works: temperatures, clocks, power, errors, link, processes. Data only; who asks whom is
//! `device::telemetry`, what it means is `jobs::health`.

use serde::{Deserialize, Serialize};

use super::DeviceInfo;

/// A fact that a source does not tell, and why.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NotTold {
    /// What is not told.
    pub what: String,
    /// Why.
    pub why: String,
}

/// Errors of a card's memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct MemoryErrors {
    /// Whether the memory corrects errors (ECC).
    pub ecc: Option<bool>,
    /// Corrected since the driver was loaded.
    pub corrected: Option<u64>,
    /// Not corrected since the driver was loaded.
    pub uncorrected: Option<u64>,
    /// Not corrected in the card's life.
    pub uncorrected_ever: Option<u64>,
    /// Rows replaced for good (Ampere and later).
    pub remapped_rows: Option<u32>,
    /// A row waits for a reset to be replaced.
    pub remap_pending: Option<bool>,
    /// A row could not be replaced.
    pub remap_failed: Option<bool>,
    /// Pages taken out of use (before Ampere).
    pub retired_pages: Option<u32>,
    /// A page waits for a restart to be taken out of use.
    pub retire_pending: Option<bool>,
}

/// The link between card and host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Link {
    /// PCI Express generation now.
    pub generation: Option<u32>,
    /// Lanes now.
    pub width: Option<u32>,
    /// Generation that the card can.
    pub card_generation: Option<u32>,
    /// Lanes that the card has.
    pub card_width: Option<u32>,
    /// Generation that the slot can.
    pub slot_generation: Option<u32>,
    /// Lanes that the slot has.
    pub slot_width: Option<u32>,
    /// True if copies ran while the link was read: an idle card lowers its link to save power.
    pub under_load: bool,
}

/// A process that uses a card.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GpuProcess {
    /// Process id.
    pub pid: u32,
    /// Bytes of the card's memory, if told.
    pub bytes: Option<u64>,
}

/// For how long a card's clocks have been lowered since its driver was loaded, in nanoseconds: counters that miss nothing between
/// two looks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Slowed {
    /// By its limit of power.
    pub power_ns: Option<u64>,
    /// By its limits of temperature.
    pub heat_ns: Option<u64>,
}

/// What one card told at one moment. Everything may be missing; [`Snapshot::not_told`] says why.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Snapshot {
    /// Who told: `nvml`, `sysfs`.
    pub source: String,
    /// Uid of the card: NVIDIA's UUID, else `pci:` and the address.
    pub uid: String,
    /// PCI address, `0000:3b:00.0`.
    pub pci: Option<String>,
    /// The card's name.
    pub name: String,
    /// Version of the kernel's driver.
    pub driver: Option<String>,
    /// True if the driver lost the card ("fallen off the bus").
    pub lost: bool,
    /// True if the card wants a reset before it is used again.
    pub reset_required: bool,
    /// True if the card's configuration memory (infoROM) is damaged.
    pub inforom_damaged: bool,
    /// Degrees Celsius of the processor.
    pub temperature_c: Option<f64>,
    /// Degrees at which the card slows itself down.
    pub slowdown_c: Option<f64>,
    /// Degrees at which the card switches itself off.
    pub shutdown_c: Option<f64>,
    /// Why clocks are lowered, a bit each ([`THROTTLE`]).
    pub throttle: Option<u64>,
    /// For how long clocks have been lowered.
    pub slowed: Slowed,
    /// Clock of the processor in MHz.
    pub clock_mhz: Option<u32>,
    /// Highest clock of the processor in MHz.
    pub most_clock_mhz: Option<u32>,
    /// Watts drawn.
    pub power_w: Option<f64>,
    /// Watts allowed now.
    pub power_cap_w: Option<f64>,
    /// Watts allowed as the card was made.
    pub default_cap_w: Option<f64>,
    /// Memory used in bytes.
    pub memory_used: Option<u64>,
    /// Memory in bytes.
    pub memory_total: Option<u64>,
    /// Share of the time that the processor was busy, 0 to 1.
    pub busy: Option<f64>,
    /// Errors of the memory.
    pub memory: MemoryErrors,
    /// The link.
    pub link: Link,
    /// Processes that use the card.
    pub processes: Option<Vec<GpuProcess>>,
    /// Whether the driver stays loaded without users.
    pub persistence: Option<bool>,
    /// Who may use the card: `default`, `exclusive`, `prohibited`.
    pub compute_mode: Option<String>,
    /// Whether the card is divided (Multi-Instance GPU).
    pub mig: Option<bool>,
    /// PCI addresses of what its active NVLinks lead to, one for each link.
    pub nvlinks: Option<Vec<String>>,
    /// NUMA node of the card's slot.
    pub numa_node: Option<u32>,
    /// What is missing here, and why.
    pub not_told: Vec<NotTold>,
}

impl Snapshot {
    /// Whether a device of an API is this card: by the PCI address that both tell, by the card's own uid, or by the PCI address
    /// within the device's.
    pub fn is_of(&self, info: &DeviceInfo) -> bool {
        let alone = |text: &str, at: usize, pci: &str| {
            let ends = |c: Option<char>| c.is_none_or(|c| !c.is_ascii_alphanumeric());
            ends(text[..at].chars().next_back()) && ends(text[at + pci.len()..].chars().next())
        };
        let within = |pci: &str| info.uid.match_indices(pci).any(|(at, _)| alone(&info.uid, at, pci));
        if info.facts.pci.is_some() && self.pci.is_some() {
            return info.facts.pci == self.pci;
        }
        info.uid == self.uid || self.pci.as_deref().is_some_and(|pci| !pci.is_empty() && within(pci))
    }
}

/// What a lowered clock means for whoever trusts the card.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lowered {
    /// As it should be: the card has nothing to do, or follows a setting.
    Normal,
    /// The card works at its limits; figures may vary.
    Limited,
    /// The card protects itself.
    Protecting,
}

/// Reasons for lowered clocks, by NVML's bits (`nvml.h`, "Clocks Event Reasons"): bit, word, meaning.
pub const THROTTLE: [(u64, &str, Lowered); 9] = [
    (0x001, "gpu-idle", Lowered::Normal),
    (0x002, "applications-clocks", Lowered::Normal),
    (0x004, "sw-power-cap", Lowered::Limited),
    (0x008, "hw-slowdown", Lowered::Protecting),
    (0x010, "sync-boost", Lowered::Normal),
    (0x020, "sw-thermal", Lowered::Protecting),
    (0x040, "hw-thermal", Lowered::Protecting),
    (0x080, "hw-power-brake", Lowered::Protecting),
    (0x100, "display-clocks", Lowered::Normal),
];

/// A mask's reasons in words; bits that the table lacks in hexadecimal.
pub fn throttle_words(mask: u64) -> Vec<(String, Lowered)> {
    let known = THROTTLE.iter().filter(|(bit, ..)| mask & bit != 0).map(|(_, word, what)| (word.to_string(), *what));
    let rest = THROTTLE.iter().fold(mask, |rest, (bit, ..)| rest & !bit);
    // Nobody knows what a bit of a newer driver means; it is told, not judged.
    known.chain((rest != 0).then(|| (format!("unknown bits {rest:#x}"), Lowered::Limited))).collect()
}

/// What is wrong with trusting a card's figures now: the words of [`THROTTLE`] that are not normal, from any of the moments, which
/// are in order, or from the time between them.
pub fn lowered(moments: &[&Snapshot]) -> Vec<String> {
    let grew = |of: fn(&Slowed) -> Option<u64>| {
        let mut told = moments.iter().filter_map(|s| of(&s.slowed));
        told.next().zip(told.next_back()).is_some_and(|(first, last)| last > first)
    };
    // The two words that say it without more.
    let between = [(grew(|s| s.power_ns), 0x004), (grew(|s| s.heat_ns), 0x040)];
    let between = between.into_iter().filter(|(grew, _)| *grew).fold(0, |all, (_, bit)| all | bit);
    let mask = moments.iter().filter_map(|s| s.throttle).fold(between, |all, mask| all | mask);
    throttle_words(mask).into_iter().filter(|(_, what)| *what != Lowered::Normal).map(|(word, _)| word).collect()
}

/// A figure over a stretch of time.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Range {
    /// When it was told first.
    pub first: f64,
    /// When it was told last.
    pub last: f64,
    /// The least.
    pub least: f64,
    /// The most.
    pub most: f64,
}

impl Range {
    fn add(range: &mut Option<Range>, value: Option<f64>) {
        let Some(v) = value else { return };
        *range = Some(match *range {
            None => Range { first: v, last: v, least: v, most: v },
            Some(r) => Range { last: v, least: r.least.min(v), most: r.most.max(v), ..r },
        });
    }
}

/// What a device's card told while a job ran.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Watched {
    /// Who told: `nvml`, `sysfs`; `none` where only the ledger knows of the device.
    pub source: String,
    /// Why nothing was told.
    pub reason: String,
    /// Questions.
    pub asked: u64,
    /// Answers that told of this card.
    pub answered: u64,
    /// Degrees Celsius of the processor.
    pub temperature_c: Option<Range>,
    /// Watts drawn.
    pub power_w: Option<Range>,
    /// Clock of the processor in MHz.
    pub clock_mhz: Option<Range>,
    /// Bytes of the card's memory in use, by all processes.
    pub memory_used: Option<Range>,
    /// Corrected errors of the memory since the driver was loaded.
    pub corrected: Option<Range>,
    /// Errors that were not corrected since the driver was loaded.
    pub uncorrected: Option<Range>,
    /// Why clocks were lowered at any moment, in the words of [`THROTTLE`].
    pub throttle: Vec<String>,
    /// Answers in which the card protected itself by lowering its clocks.
    pub protecting: u64,
    /// True if the driver lost the card, or no longer listed it at the end.
    pub lost: bool,
    /// True if the card wanted a reset.
    pub reset_required: bool,
}

impl Watched {
    /// Nothing is told of the device, for this reason.
    pub fn none(reason: &str) -> Self {
        Watched { source: "none".into(), reason: reason.into(), ..Watched::default() }
    }

    /// Takes in what the card told at one moment.
    pub fn take(&mut self, s: &Snapshot) {
        self.source.clone_from(&s.source);
        self.answered += 1;
        // Counts and bytes below 2^53: exact.
        let count = |n: Option<u64>| n.map(|n| n as f64);
        Range::add(&mut self.temperature_c, s.temperature_c);
        Range::add(&mut self.power_w, s.power_w);
        Range::add(&mut self.clock_mhz, s.clock_mhz.map(f64::from));
        Range::add(&mut self.memory_used, count(s.memory_used));
        Range::add(&mut self.corrected, count(s.memory.corrected));
        Range::add(&mut self.uncorrected, count(s.memory.uncorrected));
        let words = throttle_words(s.throttle.unwrap_or(0));
        self.protecting += u64::from(words.iter().any(|(_, what)| *what == Lowered::Protecting));
        for (word, _) in words {
            if !self.throttle.contains(&word) {
                self.throttle.push(word);
            }
        }
        self.lost |= s.lost;
        self.reset_required |= s.reset_required;
    }

    /// Why work on this card is not to be trusted, if anything speaks against it: it was lost, wants a reset, or has met more
    /// errors that it could not correct.
    pub fn fault(&self) -> Option<String> {
        let more = self.uncorrected.map_or(0.0, |r| r.last - r.first);
        if self.lost {
            Some("the card was lost".into())
        } else if self.reset_required {
            Some("the card wants a reset".into())
        } else {
            (more > 0.0).then(|| format!("the card's memory has met {more:.0} more errors that were not corrected"))
        }
    }

    /// How the card protected itself by lowering its clocks, if it did more than for one moment among several.
    pub fn throttled(&self) -> Option<String> {
        if self.protecting == 0 || (self.protecting == 1 && self.answered > 1) {
            return None;
        }
        let protects =
            |word: &&String| THROTTLE.iter().any(|(_, known, what)| known == word && *what == Lowered::Protecting);
        let words: Vec<&str> = self.throttle.iter().filter(protects).map(String::as_str).collect();
        let (n, all) = (self.protecting, self.answered);
        Some(format!("the card lowered its clocks to protect itself in {n} of {all} answers: {}", words.join(" ")))
    }

    /// Why what the card told cannot be true, if it cannot: nothing else that it tells is then worth anything.
    pub fn incredible(&self) -> Option<String> {
        // Wider than what any card survives.
        let known =
            [("temperature", self.temperature_c, -60.0, 200.0, "C"), ("power", self.power_w, 0.0, 10_000.0, "W")];
        known.into_iter().find_map(|(what, range, low, high, unit)| {
            let bad = [range?.least, range?.most].into_iter().find(|v| !(low..=high).contains(v))?;
            Some(format!("the card's telemetry cannot be true: a {what} of {bad:e} {unit}"))
        })
    }
}

/// A line of the kernel's log about a GPU.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KernelEvent {
    /// PCI address of the card, if the line names it.
    pub pci: Option<String>,
    /// NVIDIA's number of the event (Xid).
    pub xid: Option<u32>,
    /// The line.
    pub text: String,
}

/// Free space where gpuctl writes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FreeSpace {
    /// What lies there: `cache`, `journal`.
    pub of: String,
    /// The folder.
    pub folder: String,
    /// Free bytes.
    pub bytes: u64,
}

/// What the host tells that concerns its cards.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct HostSnapshot {
    /// Version of NVIDIA's kernel module.
    pub module: Option<String>,
    /// Version of NVIDIA's library.
    pub library: Option<String>,
    /// What the library says of itself and the module: true if they do not fit.
    pub mismatch: bool,
    /// The kernel's lines about GPUs since the start of the machine; `None` if they may not be read.
    pub events: Option<Vec<KernelEvent>>,
    /// Free space.
    pub free: Vec<FreeSpace>,
    /// Drivers that hang or crash when they are asked for their devices: which and how; `None` if nobody asked.
    pub broken_drivers: Option<Vec<String>>,
    /// What is missing here, and why.
    pub not_told: Vec<NotTold>,
}

/// Something that was found wrong, or is worth knowing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Finding {
    /// Its name; `docs/health.md` lists all.
    pub code: String,
    /// `critical`, `warning` or `notice`; a notice is no reason to keep work away.
    pub severity: String,
    /// What it concerns: memory, thermal, power, link, driver, processes, host.
    pub category: String,
    /// What was seen.
    pub detail: String,
    /// What to do.
    pub next: String,
}

/// The health of one card, or of the host (`device` is then `host`).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct HealthRecord {
    /// Id of the device, or its uid if no API shows it.
    pub device: String,
    /// Uid.
    pub uid: String,
    /// Name.
    pub name: String,
    /// Who told.
    pub source: String,
    /// `healthy`, `finding`, or `unknown` where too little was told.
    pub verdict: String,
    /// Checks that had something to look at.
    pub checked: Vec<String>,
    /// Checks that had not.
    pub unchecked: Vec<String>,
    /// What is not known of the device, and why; each of the checks that had nothing to look at is there.
    pub not_told: Vec<NotTold>,
    /// What was found, the gravest first.
    pub findings: Vec<Finding>,
    /// All that the card told.
    pub snapshot: Option<Snapshot>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::facts::Facts;

    #[test]
    fn a_card_is_known_by_its_uid_or_address() {
        let card = Snapshot { uid: "GPU-1".into(), pci: Some("0000:01:00.0".into()), ..Snapshot::default() };
        let is = |uid: &str| card.is_of(&DeviceInfo { uid: uid.into(), ..DeviceInfo::ordinary_gpu() });
        let ours = ["GPU-1", "opencl/pci/0000:01:00.0", "opencl/pci/0000:01:00.0/pocl/0", "vulkan:pci:0000:01:00.0#1"];
        assert!(ours.into_iter().all(is));
        let others = ["GPU-12", "opencl/pci/0000:01:00.01", "vulkan:pci:10000:01:00.0", "opencl/pocl/0", "cpu"];
        assert!(!others.into_iter().any(is));
        let told = |pci: &str| {
            let facts = Facts { pci: Some(pci.into()), ..Facts::default() };
            card.is_of(&DeviceInfo { uid: "opencl/a/0".into(), facts, ..DeviceInfo::ordinary_gpu() })
        };
        assert!(told("0000:01:00.0") && !told("0000:02:00.0"));
        assert!(!Snapshot::default().is_of(&DeviceInfo { uid: "cpu".into(), ..DeviceInfo::ordinary_gpu() }));
    }

    #[test]
    fn a_stretch_of_time_has_its_range_and_faults() {
        let at = |temperature: f64, used: u64, uncorrected: u64, throttle: u64| Snapshot {
            source: "nvml".into(),
            temperature_c: Some(temperature),
            memory_used: Some(used),
            memory: MemoryErrors { uncorrected: Some(uncorrected), ..MemoryErrors::default() },
            throttle: Some(throttle),
            ..Snapshot::default()
        };
        let mut watched = Watched::default();
        for (t, used, throttle) in [(40.0, 100, 0x1), (90.0, 300, 0x60), (70.0, 200, 0x4)] {
            watched.take(&at(t, used, 2, throttle));
        }
        let range = |first, last, least, most| Some(Range { first, last, least, most });
        assert_eq!(watched.temperature_c, range(40.0, 70.0, 40.0, 90.0));
        assert_eq!(watched.memory_used, range(100.0, 200.0, 100.0, 300.0));
        assert_eq!(watched.throttle, ["gpu-idle", "sw-thermal", "hw-thermal", "sw-power-cap"]);
        assert_eq!((watched.power_w, watched.answered, watched.fault()), (None, 3, None), "2 errors are old ones");
        watched.take(&at(70.0, 200, 3, 0));
        assert!(watched.fault().unwrap().contains("1 more errors"), "{watched:?}");
        let faulty = |change: fn(&mut Snapshot)| {
            let (mut s, mut w) = (Snapshot::default(), Watched::default());
            change(&mut s);
            w.take(&s);
            w.fault()
        };
        assert!(faulty(|s| s.lost = true).is_some_and(|f| f.contains("lost")));
        assert!(faulty(|s| s.reset_required = true).is_some_and(|f| f.contains("reset")));
        assert_eq!(faulty(|_| ()), None);
    }

    #[test]
    fn only_clocks_that_are_not_as_they_should_be_are_flagged() {
        let at = |mask: u64| Snapshot { throttle: Some(mask), ..Snapshot::default() };
        assert_eq!(lowered(&[&at(0x1), &at(0x112)]), Vec::<String>::new(), "idle, settings, sync-boost, display");
        assert_eq!(lowered(&[&at(0x1), &at(0x44)]), ["sw-power-cap", "hw-thermal"]);
        assert_eq!(lowered(&[&at(0x8), &at(0x1)]), ["hw-slowdown"], "before counts as much as after");
        assert_eq!(lowered(&[&Snapshot::default()]), Vec::<String>::new());
    }

    #[test]
    fn combined_bits_are_told_apart() {
        let words = |mask| throttle_words(mask).into_iter().map(|w| w.0).collect::<Vec<_>>();
        assert_eq!(words(0), Vec::<String>::new());
        assert_eq!(words(0x48), ["hw-slowdown", "hw-thermal"]);
        assert_eq!(words(0x1ff).len(), 9);
        assert_eq!(words(0x4 | 0x1_0000), ["sw-power-cap", "unknown bits 0x10000"]);
        // Each bit once.
        assert_eq!(THROTTLE.iter().fold(0, |all, (bit, ..)| all ^ bit), 0x1ff);
    }
}
