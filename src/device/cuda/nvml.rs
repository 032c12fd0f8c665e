//! What NVML, the library of NVIDIA's driver, tells of cards.

use nvml_wrapper::enum_wrappers::device::{
    Clock, ComputeMode, EccCounter, MemoryError, PerformancePolicy, RetirementCause, TemperatureSensor,
    TemperatureThreshold,
};
use nvml_wrapper::enums::device::UsedGpuMemory;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::{Device, Nvml};

use crate::base::telemetry::{GpuProcess, MemoryErrors, NotTold, Slowed, Snapshot};
use crate::device::telemetry::{Source, Told, pci_address};

/// NVIDIA's cards, by a library that stays open.
#[derive(Default)]
pub(in crate::device) struct Nvidia {
    library: Option<Nvml>,
    clocks_alone: bool,
}

impl Nvidia {
    /// Cards are known by uid and address, and tell of their clocks alone.
    pub(in crate::device) fn clocks_alone() -> Self {
        Nvidia { library: None, clocks_alone: true }
    }
}

/// Drivers install the first name; the second is that of developers' packages.
const LIBRARIES: [&str; 2] = ["libnvidia-ml.so.1", "libnvidia-ml.so"];

fn open() -> Result<Nvml, NvmlError> {
    let mut last = NvmlError::LibraryNotFound;
    for name in LIBRARIES {
        match Nvml::builder().lib_path(name.as_ref()).init() {
            Err(e @ (NvmlError::LibloadingError(_) | NvmlError::LibraryNotFound)) => last = e,
            other => return other,
        }
    }
    Err(last)
}

impl Source for Nvidia {
    fn ask(&mut self, told: &mut Told) {
        told.host.module = crate::device::probe::text_of("/sys/module/nvidia/version").map(|v| v.trim().to_string());
        let silent = |why: String| NotTold { what: "NVIDIA's cards".into(), why };
        let opened = self.library.take().map_or_else(open, Ok);
        let nvml = match opened {
            Ok(nvml) => self.library.insert(nvml),
            Err(NvmlError::LibRmVersionMismatch) => {
                told.host.mismatch = true;
                return told.host.not_told.push(silent("the library does not fit the kernel's module".into()));
            }
            Err(e) => return told.host.not_told.push(silent(format!("NVML: {e}"))),
        };
        if !self.clocks_alone {
            told.host.library = nvml.sys_driver_version().ok();
        }
        match nvml.device_count() {
            Err(e) => told.host.not_told.push(silent(format!("NVML: {e}"))),
            Ok(count) => {
                for index in 0..count {
                    let card = match nvml.device_by_index(index) {
                        Ok(device) if self.clocks_alone => clocks(&device),
                        Ok(device) => snapshot(&device, told.host.library.clone()),
                        Err(e) => {
                            let mut card = Snapshot { uid: format!("nvml:{index}"), ..Snapshot::default() };
                            note(&mut card, "card", e);
                            card
                        }
                    };
                    told.cards.push(Snapshot { source: "nvml".into(), ..card });
                }
            }
        }
    }
}

/// Errors that say something of the card itself; all others only that a fact is not told.
fn note(card: &mut Snapshot, what: &str, e: NvmlError) {
    match e {
        NvmlError::GpuLost => card.lost = true,
        NvmlError::ResetRequired => card.reset_required = true,
        NvmlError::CorruptedInfoROM => card.inforom_damaged = true,
        _ => {}
    }
    card.not_told.push(NotTold { what: what.into(), why: format!("NVML: {e}") });
}

/// The value, or the reason noted.
fn told<T>(card: &mut Snapshot, what: &str, value: Result<T, NvmlError>) -> Option<T> {
    value.map_err(|e| note(card, what, e)).ok()
}

/// Who the card is, and what it says of its clocks.
fn clocks(d: &Device<'_>) -> Snapshot {
    let mut card = Snapshot::default();
    let c = &mut card;
    c.uid = told(c, "uuid", d.uuid()).unwrap_or_default();
    c.pci = told(c, "pci address", d.pci_info()).map(|p| pci_address(&p.bus_id));
    c.throttle = told(c, "clocks", throttle(d));
    c.slowed = slowed(d);
    card
}

/// NVML's times of violated limits, in nanoseconds.
fn slowed(d: &Device<'_>) -> Slowed {
    let time = |limit| d.violation_status(limit).ok().map(|v| v.violation_time);
    Slowed { power_ns: time(PerformancePolicy::Power), heat_ns: time(PerformancePolicy::Thermal) }
}

fn snapshot(d: &Device<'_>, driver: Option<String>) -> Snapshot {
    let mut card = Snapshot { driver, ..Snapshot::default() };
    let c = &mut card;
    c.uid = told(c, "uuid", d.uuid()).unwrap_or_default();
    c.name = told(c, "name", d.name()).unwrap_or_default();
    c.pci = told(c, "pci address", d.pci_info()).map(|p| pci_address(&p.bus_id));
    if c.lost {
        return card;
    }
    c.temperature_c = told(c, "temperature", d.temperature(TemperatureSensor::Gpu)).map(f64::from);
    c.slowdown_c = d.temperature_threshold(TemperatureThreshold::Slowdown).ok().map(f64::from);
    c.shutdown_c = d.temperature_threshold(TemperatureThreshold::Shutdown).ok().map(f64::from);
    c.throttle = told(c, "clocks", throttle(d));
    c.slowed = slowed(d);
    c.clock_mhz = d.clock_info(Clock::SM).ok();
    c.most_clock_mhz = d.max_clock_info(Clock::SM).ok();
    let watts = |mw: u32| f64::from(mw) / 1e3;
    c.power_w = d.power_usage().ok().map(watts);
    c.power_cap_w = told(c, "power", d.enforced_power_limit()).map(watts);
    c.default_cap_w = d.power_management_limit_default().ok().map(watts);
    if let Some(m) = told(c, "memory", d.memory_info()) {
        (c.memory_used, c.memory_total) = (Some(m.used), Some(m.total));
    }
    c.busy = d.utilization_rates().ok().map(|u| f64::from(u.gpu) / 100.0);
    c.memory = errors(d, c);
    c.link.generation = d.current_pcie_link_gen().ok();
    c.link.width = d.current_pcie_link_width().ok();
    c.link.card_generation = d.max_pcie_link_gen().ok();
    c.link.card_width = d.max_pcie_link_width().ok();
    c.processes = told(c, "processes", processes(d));
    c.persistence = d.is_in_persistent_mode().ok();
    c.compute_mode = told(c, "mode", d.compute_mode()).map(|m| {
        match m {
            ComputeMode::Default => "default",
            ComputeMode::Prohibited => "prohibited",
            ComputeMode::ExclusiveThread | ComputeMode::ExclusiveProcess => "exclusive",
        }
        .into()
    });
    c.nvlinks = nvlinks(d);
    c.mig = d.mig_mode().ok().map(|m| m.current != 0);
    card
}

/// Where the active NVLinks lead to; `None` for a card that has none. The other side may not tell its address.
fn nvlinks(d: &Device<'_>) -> Option<Vec<String>> {
    // More than any card has; a card refuses numbers beyond its own.
    let states = (0..32).map_while(|n| d.link_wrapper_for(n).is_active().ok().map(|active| (n, active)));
    let states: Vec<(u32, bool)> = states.collect();
    let remote =
        |n| d.link_wrapper_for(n).remote_pci_info().map_or_else(|_| "unknown".into(), |p| pci_address(&p.bus_id));
    (!states.is_empty()).then(|| states.into_iter().filter(|(_, active)| *active).map(|(n, _)| remote(n)).collect())
}

fn errors(d: &Device<'_>, c: &mut Snapshot) -> MemoryErrors {
    let count = |kind, since| d.total_ecc_errors(kind, since).ok();
    let ecc = told(c, "memory errors", d.is_ecc_enabled()).map(|e| e.currently_enabled);
    let pages = |cause| d.retired_pages(cause).ok().map(|p| p.len() as u32);
    let retired = [RetirementCause::MultipleSingleBitEccErrors, RetirementCause::DoubleBitEccError].map(pages);
    let rows = remapped(d);
    MemoryErrors {
        ecc,
        corrected: count(MemoryError::Corrected, EccCounter::Volatile),
        uncorrected: count(MemoryError::Uncorrected, EccCounter::Volatile),
        uncorrected_ever: count(MemoryError::Uncorrected, EccCounter::Aggregate),
        remapped_rows: rows.map(|r| r[0].saturating_add(r[1])),
        remap_pending: rows.map(|r| r[2] != 0),
        remap_failed: rows.map(|r| r[3] != 0),
        retired_pages: retired[0].zip(retired[1]).map(|(a, b)| a + b),
        retire_pending: d.are_pages_pending_retired().ok(),
    }
}

fn processes(d: &Device<'_>) -> Result<Vec<GpuProcess>, NvmlError> {
    let mut all: Vec<GpuProcess> = Vec::new();
    for p in d.running_compute_processes()?.into_iter().chain(d.running_graphics_processes().unwrap_or_default()) {
        let bytes = match p.used_gpu_memory {
            UsedGpuMemory::Used(bytes) => Some(bytes),
            UsedGpuMemory::Unavailable => None,
        };
        if !all.iter().any(|q| q.pid == p.pid) {
            all.push(GpuProcess { pid: p.pid, bytes });
        }
    }
    Ok(all)
}

/// The mask itself: the wrapper drops bits that it does not know.
fn throttle(d: &Device<'_>) -> Result<u64, NvmlError> {
    let lib = d.nvml().lib();
    let Ok(function) = &lib.nvmlDeviceGetCurrentClocksThrottleReasons else {
        return Err(NvmlError::FunctionNotFound);
    };
    let mut mask = 0;
    // SAFETY: the device lives while the library is open, and the mask is writable.
    nvml_wrapper::error::nvml_try(unsafe { function(d.handle(), &raw mut mask) })?;
    Ok(mask)
}

/// Rows replaced after corrected and after other errors, whether one waits, whether one failed. The wrapper lacks it.
fn remapped(d: &Device<'_>) -> Option<[u32; 4]> {
    let function = d.nvml().lib().nvmlDeviceGetRemappedRows.as_ref().ok()?;
    let [mut corrected, mut uncorrected, mut pending, mut failed] = [0; 4];
    // SAFETY: the device lives while the library is open, and all four numbers are writable.
    let code =
        unsafe { function(d.handle(), &raw mut corrected, &raw mut uncorrected, &raw mut pending, &raw mut failed) };
    nvml_wrapper::error::nvml_try(code).ok()?;
    Some([corrected, uncorrected, pending, failed])
}
