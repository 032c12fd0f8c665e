//! Vulkan (Linux), Metal (macOS) and Direct3D 12 (Windows) through wgpu. WGSL is the only language.
//!
//! Only these APIs are asked for: OpenGL would show the same GPU twice. wgpu loads the system's loader at run time; its
//! absence is a reason, not an error. Known noise: Debian's Vulkan device-select layer prints a line on stderr when
//! `XDG_RUNTIME_DIR` is unset; `NODEVICE_SELECT=1` in the environment silences it, which a process cannot soundly set
//! for itself once threads run.

mod core;
mod given;
#[cfg(test)]
mod late_tests;
mod launch;
mod mapping;
mod pipelines;
mod program;
mod queue;
mod uuid;

use std::sync::Arc;

use crate::base::facts::Facts;
use crate::base::{Backend, Clock, Code, DType, DeviceClass, DeviceInfo, Error, Feature, Lang, Result};

use super::probe::absent;
use super::{
    Buffer, BuildStats, Device, Found, Health, Kind, Ledger, MemoryKind, MemoryState, Probe, Program, Queue, Source,
    no_memory_kind,
};

use self::core::{Core, Owner};

pub use self::given::OnLost;
/// The wgpu whose devices [`WgpuDevice::from_wgpu`] takes: of another release they are other types.
pub use ::wgpu;

/// The API of this platform.
const API: wgpu::Backends = if cfg!(target_os = "macos") {
    wgpu::Backends::METAL
} else if cfg!(windows) {
    wgpu::Backends::DX12
} else {
    wgpu::Backends::VULKAN
};

/// Features that are asked for where the adapter has them; asking for others is refused or panics.
fn wanted(has: wgpu::Features) -> wgpu::Features {
    use wgpu::Features as F;
    has & (F::SHADER_F64
        | F::SHADER_INT64
        | F::TIMESTAMP_QUERY
        | F::TIMESTAMP_QUERY_INSIDE_ENCODERS
        | F::PIPELINE_CACHE)
}

fn adapters() -> Vec<wgpu::Adapter> {
    let instance = wgpu::Instance::new(wgpu::InstanceDescriptor {
        backends: API,
        // Validation layers, which debug builds would switch on, change timing and print.
        flags: wgpu::InstanceFlags::empty(),
        ..wgpu::InstanceDescriptor::new_without_display_handle()
    });
    pollster::block_on(instance.enumerate_adapters(API))
}

/// All adapters, or why there is none.
pub fn probe() -> Probe {
    let adapters = adapters();
    if adapters.is_empty() {
        let (reason, next) = why_none();
        return absent(Backend::Wgpu, &reason, next);
    }
    let mut probe = Probe::default();
    let mut uids = Vec::new();
    for (i, adapter) in adapters.into_iter().enumerate() {
        let mut info = describe(&adapter, i, &mut uids);
        info.facts.quirks = super::quirks::of(&info);
        let seen = info.clone();
        probe.found.push(Found::new(info, move || Ok(Arc::new(WgpuDevice::new(&adapter, seen.clone())?))));
    }
    probe
}

/// Asks the loader itself why no adapter came of it.
#[cfg(all(unix, not(target_os = "macos")))]
#[allow(unsafe_code, reason = "the only way to the loader's own message")]
fn why_none() -> (String, &'static str) {
    use wgpu::hal::Instance as _;
    let descriptor = wgpu::hal::InstanceDescriptor {
        name: "gpuctl",
        flags: wgpu::InstanceFlags::empty(),
        memory_budget_thresholds: Default::default(),
        backend_options: Default::default(),
        telemetry: None,
        display: None,
    };
    // SAFETY: creating an instance has no precondition beyond a loader that keeps its ABI; it is dropped at once.
    match unsafe { wgpu::hal::vulkan::Instance::init(&descriptor) } {
        Ok(_) => ("Vulkan reports no device".into(), "install a Vulkan driver (Debian: mesa-vulkan-drivers)"),
        Err(e) => {
            let mut text = e.to_string();
            let mut cause = std::error::Error::source(&e);
            while let Some(c) = cause {
                text.push_str(&format!(": {c}"));
                cause = c.source();
            }
            (
                format!("Vulkan cannot be used: {}", core::one_line(&text)),
                "install the Vulkan loader and a driver (Debian: libvulkan1, mesa-vulkan-drivers)",
            )
        }
    }
}

#[cfg(not(all(unix, not(target_os = "macos"))))]
fn why_none() -> (String, &'static str) {
    (format!("{API:?} reports no device"), "install or update the graphics driver")
}

/// What an adapter says of itself.
fn describe(adapter: &wgpu::Adapter, index: usize, uids: &mut Vec<String>) -> DeviceInfo {
    let mut told = told_of(adapter.get_info(), &adapter.limits(), adapter.features());
    told.id = format!("wgpu:{index}");
    told.facts.uuid = uuid::of(adapter);
    if let (Some(uuid), None, false) = (&told.facts.uuid, &told.facts.pci, told.is_software()) {
        // Vendor and device are the same for two cards of a kind.
        told.uid = format!("{}:uuid:{uuid}", adapter.get_info().backend.to_str());
    }
    if uids.contains(&told.uid) {
        told.uid = format!("{}#{index}", told.uid);
    }
    uids.push(told.uid.clone());
    told
}

/// The same of an adapter, or of a device that uses part of it; without an id.
fn told_of(info: wgpu::AdapterInfo, limits: &wgpu::Limits, can: wgpu::Features) -> DeviceInfo {
    let features = wanted(can);
    let api = info.backend.to_str();
    let (f64s, i64s) = (features.contains(wgpu::Features::SHADER_F64), features.contains(wgpu::Features::SHADER_INT64));
    let mut notes = vec!["f16 and bf16 are stored two to a word, arithmetic is f32".to_string()];
    let mut dtypes = vec![DType::F32];
    let mut has = Vec::new();
    if f64s {
        dtypes.push(DType::F64);
        has.push(Feature::Fp64);
    } else {
        notes.push("no f64: the adapter lacks SHADER_F64".into());
    }
    dtypes.extend([DType::F16, DType::BF16]);
    dtypes.extend([DType::I32, DType::U32]);
    if i64s {
        dtypes.extend([DType::I64, DType::U64]);
        has.push(Feature::Int64);
    } else {
        notes.extend(["i64", "u64"].map(|d| format!("no {d}: the adapter lacks SHADER_INT64")));
    }
    notes.extend(["i8", "u8", "i16", "u16"].map(|d| format!("no {d}: WGSL stores no integers below 32 bits")));
    if !features.contains(wgpu::Features::PIPELINE_CACHE) {
        notes.push("compiled kernels cannot be kept: the adapter lacks PIPELINE_CACHE".into());
    }
    notes.push("total and free memory: the API does not tell".into());
    notes.push("compute units: the API does not tell".into());
    let class = match info.device_type {
        wgpu::DeviceType::Cpu => DeviceClass::Software,
        wgpu::DeviceType::DiscreteGpu => DeviceClass::Discrete,
        wgpu::DeviceType::IntegratedGpu => DeviceClass::Integrated,
        wgpu::DeviceType::VirtualGpu => DeviceClass::Virtual,
        wgpu::DeviceType::Other => {
            notes.push("the driver does not say what kind of device it is".into());
            DeviceClass::Virtual
        }
    };
    if !features.contains(wgpu::Features::TIMESTAMP_QUERY_INSIDE_ENCODERS) {
        notes.push("no device clock: the adapter lacks timestamp queries between commands".into());
    }
    // The API is part of the identity: results and speed differ between APIs on one chip.
    let place = if info.device_pci_bus_id.is_empty() {
        format!("{:04x}:{:04x}", info.vendor, info.device)
    } else {
        format!("pci:{}", info.device_pci_bus_id.to_lowercase())
    };
    let facts = facts(can, &info, &dtypes);
    DeviceInfo {
        id: String::new(),
        uid: format!("{api}:{place}"),
        name: info.name,
        vendor: vendor(info.vendor),
        backend: Backend::Wgpu,
        class,
        driver: [info.driver.as_str(), info.driver_info.as_str()].join(" ").trim().to_string(),
        api: format!("{api} through wgpu"),
        langs: vec![Lang::Wgsl],
        memory_bytes: None,
        max_alloc_bytes: limits.max_buffer_size & !15,
        // A binding may not end off a word.
        max_binding_bytes: limits.max_storage_buffer_binding_size & !15,
        max_group: limits.max_compute_invocations_per_workgroup.min(limits.max_compute_workgroup_size_x),
        max_groups: [u64::from(limits.max_compute_workgroups_per_dimension); 3],
        local_bytes: limits.max_compute_workgroup_storage_size,
        compute_units: 0,
        compute_capability: None,
        dtypes,
        features: has,
        libraries: vec![],
        unified_memory: matches!(class, DeviceClass::Software | DeviceClass::Integrated),
        cache_bytes: None,
        theoretical: None,
        facts,
        notes,
    }
}

/// What an adapter can beyond what WGSL kernels of gpuctl use.
fn facts(can: wgpu::Features, info: &wgpu::AdapterInfo, stored: &[DType]) -> Facts {
    use wgpu::Features as F;
    let computes = |d: &DType| match d {
        DType::F16 => can.contains(F::SHADER_F16),
        DType::BF16 => false,
        _ => true,
    };
    let mut atomics = vec!["i32 add".to_string()];
    atomics.extend(can.contains(F::SHADER_INT64_ATOMIC_ALL_OPS).then(|| "i64 add".into()));
    atomics.extend(can.contains(F::SHADER_FLOAT32_ATOMIC).then(|| "f32 add".into()));
    let subgroup = can.contains(F::SUBGROUP).then_some([info.subgroup_min_size, info.subgroup_max_size]);
    let pci = Some(info.device_pci_bus_id.to_ascii_lowercase()).filter(|p| !p.is_empty());
    Facts {
        pci,
        arithmetic: stored.iter().copied().filter(computes).collect(),
        atomics,
        memory_kinds: vec!["device".into()],
        subgroup: subgroup.filter(|s| s[0] > 0),
        ..Facts::default()
    }
}

/// Vendors by their PCI number; Mesa's is a Khronos number.
fn vendor(id: u32) -> String {
    let known = u16::try_from(id).ok().and_then(super::telemetry::vendor);
    match (known, id) {
        (Some(name), _) => name.into(),
        (None, 0x10005) => "Mesa".into(),
        (None, other) => format!("{other:#06x}"),
    }
}

/// A GPU, or a software rasteriser, through wgpu.
///
/// Dropping it waits for unfinished work, except after a wait that timed out: then the driver's objects are left
/// behind. On a GPU that hangs for good end the process with `exit`; some drivers wait even when `main` returns.
pub struct WgpuDevice {
    info: DeviceInfo,
    core: Arc<Core>,
}

impl WgpuDevice {
    /// Opens adapter number `index` (as in `wgpu:0`).
    pub fn open(index: usize) -> Result<Self> {
        let adapters = adapters();
        let mut uids = Vec::new();
        for (i, adapter) in adapters.iter().enumerate() {
            let info = describe(adapter, i, &mut uids);
            if i == index {
                return Self::new(adapter, info);
            }
        }
        let why = if adapters.is_empty() { why_none().0 } else { format!("there are {}", adapters.len()) };
        Err(Error::new(Code::DeviceMissing, format!("no device wgpu:{index}: {why}")))
    }

    fn new(adapter: &wgpu::Adapter, info: DeviceInfo) -> Result<Self> {
        let features = wanted(adapter.features());
        let request = adapter.request_device(&wgpu::DeviceDescriptor {
            label: Some("gpuctl"),
            required_features: features,
            // All that the adapter has: the defaults allow bindings of 128 MiB only.
            required_limits: adapter.limits(),
            ..Default::default()
        });
        let (device, queue) = pollster::block_on(request).map_err(|e| core::not_given(&e).device(&info.id))?;
        let timestamps = features.contains(wgpu::Features::TIMESTAMP_QUERY_INSIDE_ENCODERS);
        let core = Arc::new(Core::new(info.id.clone(), device, queue, timestamps, Owner::Gpuctl));
        Ok(WgpuDevice { info, core })
    }

    /// Loses the device for real, through the API's own call: work under way ends, memory is released, every later
    /// call fails with `DeviceLost`. For tests of recovery.
    pub fn destroy_for_test(&self) {
        self.core.device.destroy();
    }
}

impl Device for WgpuDevice {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }
    fn serial(&self) -> u64 {
        self.core.serial
    }
    fn clock(&self) -> Arc<dyn Clock> {
        self.core.clock.clone()
    }
    fn ledger(&self) -> &Arc<Ledger> {
        &self.core.ledger
    }
    fn memory(&self) -> MemoryState {
        MemoryState::default()
    }

    fn alloc(&self, bytes: u64, kind: MemoryKind) -> Result<Buffer> {
        if kind != MemoryKind::Device {
            let why = match kind {
                MemoryKind::Mapped => {
                    "a buffer of WebGPU's cannot be used while it is mapped; copies are staged instead"
                }
                _ => "WebGPU's kernels see device memory only",
            };
            return Err(no_memory_kind(kind, why).device(&self.info.id));
        }
        if bytes > self.info.max_alloc_bytes {
            let why = format!("{bytes} bytes asked, the limit is {}", self.info.max_alloc_bytes);
            return Err(self.core.fail(Code::AllocTooLarge, why));
        }
        self.core.pump()?;
        let raw = queue::RawBuffer::new(&self.core, bytes)?;
        let ticket = self.core.ledger.enter(Kind::Buffer, bytes);
        Ok(Buffer::new(raw, bytes, self.core.serial, ticket))
    }

    fn build(&self, source: Source<'_>, cached: Option<&[u8]>) -> Result<Program> {
        let text = match source {
            Source::Text(text) if text.lang == Lang::Wgsl => text,
            _ => return Err(self.core.fail(Code::FeatureUnsupported, "wgpu takes WGSL texts only")),
        };
        let pipelines = pipelines::Pipelines::new(&self.core, cached);
        let raw = program::build(&self.core, &text.text, &text.entry, pipelines.as_ref())?;
        let from_cache = pipelines.as_ref().is_some_and(|p| p.given);
        let stats = BuildStats { seconds: raw.seconds, from_cache, ..Default::default() };
        let ticket = self.core.ledger.enter(Kind::Program, 0);
        let program = Program::new(raw, self.core.serial, ticket, None, stats);
        Ok(match pipelines {
            Some(pipelines) => program.with_binary(move || pipelines.data()),
            None => program,
        })
    }

    fn queue(&self) -> Result<Box<dyn Queue>> {
        Ok(Box::new(queue::WgpuQueue::new(&self.core)?))
    }

    fn destroy(&self) -> bool {
        self.destroy_for_test();
        true
    }

    fn health(&self) -> Health {
        // The poll's own failure is a loss and told as one.
        let _ = self.core.look();
        self.core.told.lost().map_or(Health::Usable, Health::Lost)
    }
}
