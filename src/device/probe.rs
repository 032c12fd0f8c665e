//! Finding devices: each backend is asked apart from the others, so that a broken one hides none.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::base::blas::CpuBlas;
use crate::base::telemetry::Snapshot;
use crate::base::{Absence, Backend, Code, DeviceClass, DeviceInfo, Env, Error, Result};
use crate::kernel::Isa;

use super::cpu::{CpuDevice, Pin};
use super::platform::Platform;
use super::{Device, sim};

/// A device that was seen. Opening it may take long and happens only on demand.
pub struct Found {
    /// What it says of itself.
    pub info: DeviceInfo,
    open: Box<dyn Fn() -> Result<Arc<dyn Device>> + Send + Sync>,
}

impl std::fmt::Debug for Found {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Found({} {})", self.info.id, self.info.name)
    }
}

impl Found {
    /// A seen device and how to open it.
    pub fn new(info: DeviceInfo, open: impl Fn() -> Result<Arc<dyn Device>> + Send + Sync + 'static) -> Self {
        Found { info, open: Box::new(open) }
    }
    /// Opens it; errors name the device.
    pub fn open(&self) -> Result<Arc<dyn Device>> {
        (self.open)().map_err(|e| e.device(&self.info.id))
    }
}

/// What one backend found.
#[derive(Debug, Default)]
pub struct Probe {
    /// Usable devices.
    pub found: Vec<Found>,
    /// What is not usable, and why.
    pub absent: Vec<Absence>,
    /// OpenCL's platforms in the order in which devices are numbered; other backends have none.
    pub platforms: Vec<Platform>,
}

/// What all backends found.
#[derive(Debug, Default)]
pub struct Inventory {
    /// Devices in order of listing, the CPU first.
    pub found: Vec<Found>,
    /// What is not there, and why.
    pub absent: Vec<Absence>,
}

/// How the CPU device is made.
#[derive(Clone, Copy, Debug)]
pub struct CpuConfig {
    /// Threads; 0 means all that are allowed.
    pub threads: usize,
    /// Pinning of the workers.
    pub pin: Pin,
}

/// Asks every backend. `GPUCTL_DISABLE_GPU` leaves only the CPU, or what it does not name, and lists the others as switched off.
pub fn inventory(env: &Env, cpu: CpuConfig) -> Result<Inventory> {
    inventory_of(&Backend::ALL, env, cpu)
}

/// Asks the given backends only; the CPU is always there.
pub fn inventory_of(backends: &[Backend], env: &Env, cpu: CpuConfig) -> Result<Inventory> {
    let isa = env.cpu_isa.as_deref().map_or_else(|| Ok(Isa::detect()), Isa::capped)?;
    let host: Arc<dyn Device> = Arc::new(CpuDevice::with_blas(cpu.threads, isa, cpu.pin, &env.cpu_blas)?);
    let mut all = Inventory::default();
    all.found.push(Found::new(host.info().clone(), move || Ok(Arc::clone(&host))));
    for backend in Backend::ALL.into_iter().filter(|b| !matches!(b, Backend::Cpu | Backend::Sim)) {
        if !backends.contains(&backend) {
            continue;
        }
        let left_out = env.left_out.iter().filter(|row| row.backend == backend).cloned();
        let without = env.without.contains(&backend);
        let probe = if env.disable_gpu || (without && left_out.clone().next().is_none()) {
            absent(backend, "GPUCTL_DISABLE_GPU is set", "unset GPUCTL_DISABLE_GPU")
        } else if without {
            Probe::default()
        } else {
            ask(backend)
        };
        all.found.extend(probe.found);
        all.absent.extend(probe.absent);
        all.absent.extend(left_out);
    }
    Ok(all)
}

/// A probe that found nothing, for one reason.
pub fn absent(backend: Backend, reason: &str, next: &str) -> Probe {
    Probe {
        found: Vec::new(),
        platforms: Vec::new(),
        absent: vec![Absence { backend, what: backend.name().into(), reason: reason.into(), next: next.into() }],
    }
}

/// Entries of a folder whose names start so, in descending order, so that newer versions come first; empty if there is
/// no such folder.
#[cfg(feature = "cuda")]
pub(super) fn entries(folder: &Path, start: &str) -> Vec<PathBuf> {
    let Ok(read) = std::fs::read_dir(folder) else { return Vec::new() };
    let starts = |p: &PathBuf| p.file_name().and_then(|n| n.to_str()).is_some_and(|n| n.starts_with(start));
    let mut all: Vec<_> = read.filter_map(|e| e.ok().map(|e| e.path())).filter(starts).collect();
    all.sort_unstable_by(|a, b| b.cmp(a));
    all
}

/// Files of a folder whose names end so, sorted by name. Errors: there is no such folder, or it may not be read.
pub(super) fn ending(folder: &Path, end: &str) -> std::io::Result<Vec<PathBuf>> {
    let mut all = Vec::new();
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        // As the loader does it: what has no name before the ending is none.
        if path.file_name().is_some_and(|n| n.len() > end.len() && n.to_string_lossy().ends_with(end)) {
            all.push(path);
        }
    }
    all.sort_unstable();
    Ok(all)
}

/// The text of a file, whatever its bytes are.
pub(super) fn text_at(path: &Path) -> std::io::Result<String> {
    std::fs::read(path).map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
}

/// The same file's path without symbolic links, if it is there.
#[cfg(feature = "opencl")]
pub(super) fn real_path(path: &str) -> Option<String> {
    std::fs::canonicalize(path).ok().map(|p| p.display().to_string())
}

/// A new folder for temporary files, removed when dropped.
#[derive(Debug)]
pub(super) struct Folder(pub(super) PathBuf);

impl Folder {
    /// Makes it, with files of these names and texts.
    pub(super) fn with(files: &[(String, &str)]) -> std::io::Result<Self> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("gpuctl-drivers-{}-{number}", std::process::id()));
        // Fails if somebody else made it: then its contents are not ours.
        std::fs::create_dir(&path)?;
        let folder = Folder(path);
        for (name, text) in files {
            std::fs::write(folder.0.join(name), text)?;
        }
        Ok(folder)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // What cannot be removed stays in the folder for temporary files.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// What a small file of the system says, if it is there.
#[cfg(feature = "cuda")]
pub(super) fn text_of(path: &str) -> Option<String> {
    std::fs::read_to_string(path).ok()
}

/// Asks one backend; a panic inside a driver crate becomes a reason.
pub fn ask(backend: Backend) -> Probe {
    guarded(backend, probe)
}

fn guarded(backend: Backend, probe: fn(Backend) -> Probe) -> Probe {
    let result = std::panic::catch_unwind(|| probe(backend));
    result.unwrap_or_else(|panic| {
        let text = panic
            .downcast_ref::<String>()
            .map(String::as_str)
            .or_else(|| panic.downcast_ref::<&str>().copied())
            .unwrap_or("no message");
        absent(backend, &format!("the probe panicked: {text}"), "update or remove the driver")
    })
}

fn probe(backend: Backend) -> Probe {
    match backend {
        #[cfg(feature = "cuda")]
        Backend::Cuda => super::cuda::probe(),
        #[cfg(feature = "opencl")]
        Backend::Opencl => super::opencl::probe(),
        #[cfg(feature = "wgpu")]
        Backend::Wgpu => super::wgpu::probe(),
        other => absent(other, "this build leaves the backend out", "build with the cargo feature of that name"),
    }
}

/// Which devices a job runs on, as `--device` says it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Select {
    /// The CPU and every real GPU.
    Default,
    /// Everything, software devices too.
    All,
    /// These ids, uids or PCI addresses, in this order; `BACKEND:*` stands for all of a backend.
    Named(Vec<String>),
}

impl Select {
    /// Reads `--device`: `all`, or ids, uids, PCI addresses and `BACKEND:*` separated by commas.
    pub fn parse(text: &str) -> Result<Self> {
        let names: Vec<String> = text.split(',').map(|s| s.trim().to_string()).filter(|s| !s.is_empty()).collect();
        match names.as_slice() {
            [] => Err(Error::new(Code::BadArgument, "--device names no device")),
            [one] if one == "all" => Ok(Select::All),
            _ => Ok(Select::Named(names)),
        }
    }

    /// Backends that must be asked for this selection: naming `cpu` alone loads no driver.
    pub fn backends(&self) -> Vec<Backend> {
        match self {
            Select::Default | Select::All => Backend::ALL.to_vec(),
            Select::Named(names) => {
                let by_id =
                    |n: &str| Backend::ALL.into_iter().find(|b| n == b.name() || n.starts_with(&format!("{b}:")));
                let wanted: Option<Vec<_>> = names.iter().map(|n| by_id(n)).collect();
                // A uid may belong to any backend.
                wanted.unwrap_or_else(|| Backend::ALL.to_vec())
            }
        }
    }
}

/// The selected devices, opened, and the baseline CPU.
pub struct Rig {
    /// Devices of the run, in order; the CPU is among them if selected.
    pub devices: Vec<Arc<dyn Device>>,
    /// The CPU that GPUs are compared with: the host's, or the simulator's when simulated devices are selected.
    pub cpu: Arc<dyn Device>,
    /// What is not there, and why.
    pub absent: Vec<Absence>,
}

impl std::fmt::Debug for Rig {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let ids: Vec<_> = self.devices.iter().map(|d| d.info().id.clone()).collect();
        write!(f, "Rig({})", ids.join(" "))
    }
}

/// Opens the selected devices. A named device that is not there is `DeviceMissing`, with the reason its backend gives;
/// in the default selection a device that does not open is listed as absent instead.
pub fn open(select: &Select, env: &Env, cpu: CpuConfig) -> Result<Rig> {
    if let (Select::Named(names), false) = (select, env.cpu_blas == CpuBlas::Own)
        && let Some(sim) = names.iter().find(|n| n.starts_with("sim:"))
    {
        let why = format!("--cpu-blas {}: {sim} brings a simulated CPU, which calls no library", env.cpu_blas);
        return Err(Error::new(Code::BadArgument, why));
    }
    let mut seen = inventory_of(&select.backends(), env, cpu)?;
    let host = seen.found[0].open()?;
    let mut rig = Rig { devices: Vec::new(), cpu: Arc::clone(&host), absent: std::mem::take(&mut seen.absent) };
    match select {
        Select::Default | Select::All => {
            for found in &seen.found {
                if *select == Select::Default && found.info.class == DeviceClass::Software {
                    continue;
                }
                match found.open() {
                    Ok(device) => rig.devices.push(device),
                    Err(e) => rig.absent.push(Absence {
                        backend: found.info.backend,
                        what: found.info.id.clone(),
                        reason: e.to_string(),
                        next: e.next_step().into(),
                    }),
                }
            }
        }
        Select::Named(names) => {
            one_clock(names)?;
            let mut simulated = None;
            for name in names {
                if let Some(preset) = name.strip_prefix("sim:") {
                    if rig.devices.iter().any(|d| d.info().id == *name) {
                        continue;
                    }
                    let (cpu, device) = sim::open_process(preset, env.process)?;
                    simulated.get_or_insert(cpu);
                    rig.devices.push(device);
                    continue;
                }
                let found = named(name, &seen.found);
                if found.is_empty() {
                    return Err(missing(name, &seen, &rig.absent));
                }
                // Named twice, by a pattern and by its number, it is still one device.
                for found in found {
                    if !rig.devices.iter().any(|d| d.info().id == found.info.id) {
                        rig.devices.push(found.open()?);
                    }
                }
            }
            if let Some(cpu) = simulated {
                // On the virtual clock only the simulated CPU can be compared with.
                let host_id = host.info().id.clone();
                for d in rig.devices.iter_mut().filter(|d| d.info().id == host_id) {
                    *d = Arc::clone(&cpu);
                }
                rig.cpu = cpu;
            }
        }
    }
    Ok(rig)
}

/// The devices of a selection for a job that works with each of them in a process of its own, where no clock is compared with
/// another: the same as [`open`], but simulated ones may be several, and be named beside real ones.
pub fn open_apart(select: &Select, env: &Env, cpu: CpuConfig) -> Result<Rig> {
    let Select::Named(names) = select else { return open(select, env, cpu) };
    let (simulated, real): (Vec<_>, Vec<_>) = names.iter().cloned().partition(|n| n.starts_with("sim:"));
    let apart = simulated.into_iter().map(|n| vec![n]);
    let mut groups = std::iter::once(real).filter(|r| !r.is_empty()).chain(apart);
    let mut rig = open(&Select::Named(groups.next().unwrap_or_default()), env, cpu)?;
    for names in groups {
        rig.devices.extend(open(&Select::Named(names), env, cpu)?.devices);
    }
    Ok(rig)
}

/// The devices that a name means: one by its id, uid or PCI address (of a card that several APIs show, through the first
/// that is listed), or with `BACKEND:*` all of a backend.
fn named<'f>(name: &str, found: &'f [Found]) -> Vec<&'f Found> {
    if let Some(backend) = name.strip_suffix(":*") {
        return found.iter().filter(|f| f.info.backend.name() == backend).collect();
    }
    let is = |f: &&Found| f.info.id == name || f.info.uid.eq_ignore_ascii_case(name);
    let card = Snapshot { pci: pci_address(name), ..Snapshot::default() };
    let at = |f: &&Found| card.pci.is_some() && card.is_of(&f.info);
    found.iter().find(is).or_else(|| found.iter().find(at)).into_iter().collect()
}

/// `0000:01:00.0`, or the same without its domain as tools print it, in the kernel's spelling.
fn pci_address(name: &str) -> Option<String> {
    let hex = |text: &str, digits: usize| text.len() == digits && text.bytes().all(|b| b.is_ascii_hexdigit());
    let (place, function) = name.rsplit_once('.')?;
    let parts: Vec<&str> = place.split(':').collect();
    let (domain, bus, slot) = match parts[..] {
        [domain, bus, slot] => (domain, bus, slot),
        [bus, slot] => ("0000", bus, slot),
        _ => return None,
    };
    // nvidia-smi writes domains with eight digits; behind some controllers there are more than four.
    let short = domain.trim_start_matches('0');
    let domain = if (4..=8).contains(&domain.len()) { &domain[domain.len() - short.len().max(4)..] } else { domain };
    let fits = (4..=8).any(|n| hex(domain, n)) && hex(bus, 2) && hex(slot, 2) && hex(function, 1);
    fits.then(|| format!("{domain}:{bus}:{slot}.{function}").to_ascii_lowercase())
}

/// Simulated time and real time cannot be compared, nor the times of two simulations.
fn one_clock(names: &[String]) -> Result<()> {
    let Some(sim) = names.iter().find(|n| n.starts_with("sim:")) else { return Ok(()) };
    match names.iter().find(|n| *n != sim && *n != "cpu") {
        None => Ok(()),
        Some(other) => Err(Error::new(
            Code::BadArgument,
            format!("{sim} passes its own virtual time and cannot be compared with {other}; run them apart"),
        )),
    }
}

fn missing(name: &str, seen: &Inventory, absent: &[Absence]) -> Error {
    let backend = name.split(':').next().unwrap_or(name);
    let known: Vec<_> = seen.found.iter().map(|f| f.info.id.as_str()).collect();
    let why: Vec<_> =
        absent.iter().filter(|a| a.backend.name() == backend).map(|a| format!("{}: {}", a.what, a.reason)).collect();
    let mut text = format!("no device '{name}'; there are: {}", known.join(" "));
    if !why.is_empty() {
        text.push_str(&format!("; {}", why.join("; ")));
    }
    Error::new(Code::DeviceMissing, text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn simulated_and_real_time_are_never_mixed() {
        let names = |s: &str| match Select::parse(s).unwrap() {
            Select::Named(n) => n,
            other => panic!("{other:?}"),
        };
        assert!(one_clock(&names("cpu,sim:h200")).is_ok());
        assert!(one_clock(&names("cpu,opencl:0")).is_ok());
        assert!(one_clock(&names("sim:h200,opencl:0")).unwrap_err().to_string().contains("opencl:0"));
        assert!(one_clock(&names("sim:h200,sim:laptop")).is_err());
    }

    #[test]
    fn simulated_cards_are_opened_apart_for_whoever_compares_no_clocks() {
        let opened = |text: &str| {
            let env = Env { disable_gpu: true, ..Env::default() };
            let config = CpuConfig { threads: 1, pin: Pin::Free };
            let rig = open_apart(&Select::parse(text).unwrap(), &env, config).unwrap();
            rig.devices.iter().map(|d| format!("{} {}", d.info().id, d.info().backend)).collect::<Vec<_>>()
        };
        assert_eq!(opened("sim:h200:0,sim:h200:1"), ["sim:h200:0 sim", "sim:h200:1 sim"]);
        assert_eq!(opened("sim:laptop,cpu,sim:h200"), ["cpu cpu", "sim:laptop sim", "sim:h200 sim"]);
        assert_eq!(opened("cpu"), ["cpu cpu"]);
    }

    #[test]
    fn a_device_that_is_named_twice_is_one() {
        let env = Env { disable_gpu: true, ..Env::default() };
        let config = CpuConfig { threads: 1, pin: Pin::Free };
        for names in ["cpu,cpu,cpu:*", "sim:h200,sim:h200"] {
            let rig = open(&Select::parse(names).unwrap(), &env, config).unwrap();
            assert_eq!(rig.devices.len(), 1, "{names}");
        }
    }

    #[test]
    fn a_simulated_cpu_calls_no_library() {
        let env = Env { disable_gpu: true, cpu_blas: CpuBlas::Auto, ..Env::default() };
        let config = CpuConfig { threads: 1, pin: Pin::Free };
        let e = open(&Select::Named(vec!["sim:h200".into()]), &env, config).unwrap_err();
        assert_eq!(e.code(), Code::BadArgument);
        assert!(e.to_string().contains("sim:h200 brings a simulated CPU"), "{e}");
    }

    #[test]
    fn a_panic_is_a_reason() {
        let probe = guarded(Backend::Wgpu, |_| panic!("{} is not there", "vkCreateInstance"));
        assert!(probe.found.is_empty());
        assert_eq!((probe.absent[0].backend, probe.absent[0].what.as_str()), (Backend::Wgpu, "wgpu"));
        assert!(probe.absent[0].reason.contains("panicked: vkCreateInstance is not there"), "{:?}", probe.absent);
    }

    #[test]
    fn a_name_is_an_id_a_uid_an_address_or_all_of_a_backend() {
        let device = |id: &str, uid: &str, backend| {
            let info = DeviceInfo { id: id.into(), uid: uid.into(), backend, ..DeviceInfo::ordinary_gpu() };
            Found::new(info, || Err(Error::new(Code::DeviceMissing, "not opened here")))
        };
        let mut found = vec![
            device("cuda:0", "GPU-aa", Backend::Cuda),
            device("cuda:1", "GPU-bb", Backend::Cuda),
            device("opencl:0", "opencl/pci/0000:41:00.0", Backend::Opencl),
            device("wgpu:0", "vulkan:pci:0000:41:00.0", Backend::Wgpu),
        ];
        found[1].info.facts.pci = Some("0000:81:00.0".into());
        let ids = |name: &str| -> Vec<String> { named(name, &found).iter().map(|f| f.info.id.clone()).collect() };
        assert_eq!(ids("cuda:1"), ["cuda:1"]);
        assert_eq!(ids("gpu-AA"), ["cuda:0"]);
        assert_eq!(ids("cuda:*"), ["cuda:0", "cuda:1"]);
        assert_eq!(ids("0000:81:00.0"), ["cuda:1"]);
        assert_eq!(ids("41:00.0"), ["opencl:0"], "the first API that shows it");
        assert_eq!(ids("00000000:81:00.0"), ["cuda:1"], "as nvidia-smi writes it");
        found[0].info.facts.pci = Some("10000:03:00.0".into());
        let ids = |name: &str| -> Vec<String> { named(name, &found).iter().map(|f| f.info.id.clone()).collect() };
        assert_eq!(ids("10000:03:00.0"), ["cuda:0"], "a domain behind a controller");
        for nobody in ["cuda:2", "metal:*", "0000:82:00.0", "41:00", "", "*", "1:00.0"] {
            assert_eq!(ids(nobody), Vec::<String>::new(), "{nobody}");
        }
    }

    #[test]
    fn naming_the_cpu_asks_no_driver() {
        assert_eq!(Select::parse("cpu").unwrap().backends(), [Backend::Cpu]);
        assert_eq!(Select::parse("cpu, cuda:1").unwrap().backends(), [Backend::Cpu, Backend::Cuda]);
        assert_eq!(Select::parse("GPU-1234").unwrap().backends(), Backend::ALL);
        assert!(Select::parse(" , ").is_err());
    }

    #[test]
    fn a_missing_device_is_named_with_the_reason_of_its_backend() {
        let env = Env { disable_gpu: true, ..Env::default() };
        let cpu = CpuConfig { threads: 1, pin: Pin::Free };
        let e = open(&Select::Named(vec!["cuda:7".into()]), &env, cpu).unwrap_err();
        assert_eq!(e.code(), Code::DeviceMissing);
        assert!(e.to_string().contains("GPUCTL_DISABLE_GPU"), "{e}");
    }
}
