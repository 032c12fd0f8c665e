//! NVIDIA GPUs through the driver API; kernels compiled by NVRTC for the exact chip, products by cuBLAS where found.
//!
//! Invariants: nothing is loaded before the driver's library was seen to be there and complete, so a machine without a
//! GPU loses no time and nothing panics; every device is listed, the unusable ones with a reason. Not here yet: PTX
//! embedded in the binary for machines without NVRTC.

// Calls into the driver; each block says what makes it sound.
#![allow(unsafe_code)]

pub mod cubin;
mod cublas;
mod driver;
mod facts;
mod given;
mod graph;
mod launch;
pub mod libraries;
mod moves;
pub(super) mod nvml;
mod ordered;
mod peaks;
mod queue;

use std::ffi::{CStr, c_char, c_int};
use std::path::Path;
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use cudarc::driver::sys::{self, CUdevice_attribute as Attribute, CUresult};

use crate::base::{
    Absence, Backend, Clock, Code, DType, DeviceClass, DeviceInfo, Error, Feature, Lang, Library, RealClock, Result,
    env,
};
use crate::kernel::Routine;

use super::{
    Buffer, BuildStats, Device, Found, Health, Kind, Ledger, ManagedUse, MemoryKind, MemoryState, Probe, Program,
    Queue, Source, next_serial, probe,
};
use cublas::Cublas;
use driver::{Context, Memory, Module};
use libraries::{Nvrtc, Target};
use queue::{CudaQueue, Given, Limits, Loaded};

/// Asks the driver for its devices.
pub fn probe() -> Probe {
    if !driver::library_present() {
        // cudarc tries many spellings of old Windows and Linux releases; these are the ones that drivers install.
        let names = driver::library_names();
        let (usual, others): (Vec<_>, Vec<_>) =
            names.iter().partition(|n| matches!(n.as_str(), "libcuda.so" | "libcuda.so.1" | "nvcuda.dll"));
        let usual: Vec<&str> = usual.into_iter().map(String::as_str).collect();
        let reason =
            format!("the driver's library was not found (tried {} and {} other names)", usual.join(", "), others.len());
        return probe::absent(
            Backend::Cuda,
            &reason,
            "install NVIDIA's driver; in a container start it with `--gpus all`",
        );
    }
    let missing = driver::missing_symbols();
    if !missing.is_empty() {
        let reason = format!("the driver is too old: it lacks {}", missing.join(", "));
        return probe::absent(Backend::Cuda, &reason, Code::DriverTooOld.row().next);
    }
    // SAFETY: the symbol is there (checked above); 0 is the only flag there is.
    let rc = unsafe { sys::cuInit(0) };
    if rc != CUresult::CUDA_SUCCESS {
        return probe::absent(Backend::Cuda, &format!("cuInit: {}", driver::describe(rc)), after_init(rc as u32));
    }
    match devices() {
        Ok(probe) if probe.found.is_empty() && probe.absent.is_empty() => {
            probe::absent(Backend::Cuda, "the driver reports no device", Code::NoDevice.row().next)
        }
        Ok(probe) => probe,
        Err(e) => probe::absent(Backend::Cuda, e.detail(), e.next_step()),
    }
}

/// What to do when cuInit fails.
fn after_init(rc: u32) -> &'static str {
    match rc {
        34 => "the library is the toolkit's stub, not a driver: take its folder out of LD_LIBRARY_PATH",
        100 => "look at `nvidia-smi`, at /dev/nvidia*, at CUDA_VISIBLE_DEVICES and at the container's device flags",
        802 => "the system is not ready yet: look at `nvidia-smi -q`, on NVSwitch machines at nvidia-fabricmanager",
        803 => "the kernel module and the library are of different versions: reboot or reload the module",
        804 => "the forward-compatibility library does not suit this GPU: remove it from LD_LIBRARY_PATH",
        999 => "look at the kernel log (`dmesg`) for the NVIDIA module; reload it or reboot",
        _ => "look at `nvidia-smi` and at the kernel log",
    }
}

/// Compilers and vendor libraries; found once per process and never unloaded.
struct Libraries {
    nvrtc: Result<Nvrtc, String>,
    cublas: Result<Cublas, String>,
}

fn libraries_for(major: u32) -> &'static Libraries {
    static ONCE: OnceLock<Libraries> = OnceLock::new();
    ONCE.get_or_init(|| {
        let folders = libraries::folders(&env::of_other_tools, Path::new("/"));
        Libraries { nvrtc: Nvrtc::find(major, &folders), cublas: Cublas::find(major, &folders) }
    })
}

/// The newest CUDA that the driver supports: 12080 for 12.8.
fn driver_version() -> Result<u32> {
    let mut version: c_int = 0;
    // SAFETY: `version` lives through the call.
    driver::plain(unsafe { sys::cuDriverGetVersion(&raw mut version) }, "cuDriverGetVersion")?;
    Ok(version.max(0) as u32)
}

fn devices() -> Result<Probe> {
    let version = driver_version()?;
    let mut count: c_int = 0;
    // SAFETY: `count` lives through the call.
    driver::plain(unsafe { sys::cuDeviceGetCount(&raw mut count) }, "cuDeviceGetCount")?;
    let mut out = Probe::default();
    for ordinal in 0..count {
        match describe(ordinal, version) {
            Ok((info, limits)) => {
                let opened = info.clone();
                out.found.push(Found::new(info, move || {
                    let device = CudaDevice::open(ordinal, opened.clone(), limits, version / 1000)?;
                    Ok(Arc::new(device) as Arc<dyn Device>)
                }));
            }
            Err(e) => out.absent.push(Absence {
                backend: Backend::Cuda,
                what: format!("cuda:{ordinal}"),
                reason: e.detail().into(),
                next: e.next_step().into(),
            }),
        }
    }
    Ok(out)
}

/// Everything that the driver tells about a device without a context.
fn describe(ordinal: c_int, version: u32) -> Result<(DeviceInfo, Limits)> {
    let mut device = 0;
    // SAFETY: `device` lives through the call.
    driver::plain(unsafe { sys::cuDeviceGet(&raw mut device, ordinal) }, "cuDeviceGet")?;
    let attribute = |a: Attribute| -> Result<u32> {
        let mut value: c_int = 0;
        // SAFETY: `value` lives through the call; the device was given by the driver.
        driver::plain(unsafe { sys::cuDeviceGetAttribute(&raw mut value, a, device) }, "cuDeviceGetAttribute")?;
        Ok(value.max(0) as u32)
    };
    // CU_COMPUTEMODE_PROHIBITED
    if attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_MODE)? == 2 {
        return Err(Error::new(Code::NoDevice, "its compute mode prohibits contexts (`nvidia-smi -c` changes it)"));
    }
    let text = |get: unsafe fn(*mut c_char, c_int, sys::CUdevice) -> CUresult, what: &str| -> Result<String> {
        let mut buffer = [0 as c_char; 256];
        // SAFETY: the driver writes at most as many bytes as told, NUL included.
        driver::plain(unsafe { get(buffer.as_mut_ptr(), 255, device) }, what)?;
        // SAFETY: the last byte was left out above and is NUL.
        Ok(unsafe { CStr::from_ptr(buffer.as_ptr()) }.to_string_lossy().into_owned())
    };
    let name = text(sys::cuDeviceGetName, "cuDeviceGetName")?;
    let pci = text(sys::cuDeviceGetPCIBusId, "cuDeviceGetPCIBusId").unwrap_or_else(|_| "unknown".into());
    let mut uuid = sys::CUuuid { bytes: [0; 16] };
    // The second form tells the parts of a card in MIG mode apart.
    let get_uuid =
        if driver::has_symbol("cuDeviceGetUuid_v2") { sys::cuDeviceGetUuid_v2 } else { sys::cuDeviceGetUuid };
    // SAFETY: `uuid` lives through the call; the symbol chosen is there.
    driver::plain(unsafe { get_uuid(&raw mut uuid, device) }, "cuDeviceGetUuid")?;
    let mut total = 0usize;
    // SAFETY: `total` lives through the call.
    driver::plain(unsafe { sys::cuDeviceTotalMem_v2(&raw mut total, device) }, "cuDeviceTotalMem")?;
    let total = total as u64;
    let cc = (
        attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?,
        attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?,
    );
    let limits = Limits {
        group: attribute(Attribute::CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK)?,
        group_axes: [
            attribute(Attribute::CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X)?,
            attribute(Attribute::CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Y)?,
            attribute(Attribute::CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z)?,
        ],
        groups: [
            u64::from(attribute(Attribute::CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X)?),
            u64::from(attribute(Attribute::CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y)?),
            u64::from(attribute(Attribute::CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z)?),
        ],
    };
    let mut features = vec![Feature::Fp64, Feature::Int64, Feature::SmallInt, Feature::Subgroups];
    if cc >= (8, 0) {
        features.push(Feature::TensorBf16);
    }
    let mut notes = vec![
        format!("PCI {pci}"),
        "f16 and bf16 are stored, arithmetic is f32; cuBLAS and tensor cores add bf16 and f16 products in f32".into(),
    ];
    let found = libraries_for(version / 1000);
    let langs = match &found.nvrtc {
        Ok(nvrtc) => match Target::choose(chip(cc), &nvrtc.archs) {
            Ok(_) => {
                notes.push(format!("kernels by NVRTC {}.{} ({})", nvrtc.version.0, nvrtc.version.1, nvrtc.path));
                vec![Lang::Cuda]
            }
            Err(why) => {
                notes.push(format!("no kernels: NVRTC {}.{}: {why}", nvrtc.version.0, nvrtc.version.1));
                Vec::new()
            }
        },
        Err(why) => {
            notes.push(format!("no kernels: {why}; `pip install nvidia-cuda-nvrtc` or the CUDA toolkit brings NVRTC"));
            Vec::new()
        }
    };
    let libraries = match &found.cublas {
        Ok(cublas) => {
            notes.push(format!("cuBLAS {} ({})", cublas.version, cublas.path));
            vec![(Library::Cublas, cublas.version.clone())]
        }
        Err(why) => {
            notes.push(format!("no cuBLAS: {why}"));
            Vec::new()
        }
    };
    let integrated = attribute(Attribute::CU_DEVICE_ATTRIBUTE_INTEGRATED)? == 1;
    let facts = facts::facts(device, uuid.bytes.map(|b| b as u8), &pci, cc, lacks_tensor_cores(&name));
    let mut info = DeviceInfo {
        id: format!("cuda:{ordinal}"),
        uid: uid(uuid.bytes.map(|b| b as u8)),
        name,
        vendor: "NVIDIA".into(),
        backend: Backend::Cuda,
        class: if integrated { DeviceClass::Integrated } else { DeviceClass::Discrete },
        driver: kernel_module().map_or_else(|| format!("CUDA {}", dotted(version)), |v| format!("NVIDIA {v}")),
        api: format!("CUDA {}, sm_{}", dotted(version), chip(cc)),
        langs,
        memory_bytes: Some(total),
        max_alloc_bytes: total,
        max_binding_bytes: total,
        max_group: limits.group,
        max_groups: limits.groups,
        local_bytes: attribute(Attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK)?,
        compute_units: attribute(Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?,
        compute_capability: Some(cc),
        facts,
        dtypes: DType::ALL.to_vec(),
        features,
        libraries,
        unified_memory: integrated,
        cache_bytes: attribute(Attribute::CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE).ok().map(u64::from).filter(|b| *b > 0),
        theoretical: peaks::theoretical(&peaks::Figures {
            compute_capability: cc,
            units: attribute(Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?,
            clock_khz: attribute(Attribute::CU_DEVICE_ATTRIBUTE_CLOCK_RATE).unwrap_or(0),
            memory_khz: attribute(Attribute::CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE).unwrap_or(0),
            bus_bits: attribute(Attribute::CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH).unwrap_or(0),
        }),
        notes,
    };
    info.facts.quirks = super::quirks::of(&info);
    Ok((info, limits))
}

/// 90 for compute capability 9.0.
fn chip(cc: (u32, u32)) -> u32 {
    cc.0 * 10 + cc.1
}

/// 12080 -> `12.8`.
fn dotted(version: u32) -> String {
    format!("{}.{}", version / 1000, version % 1000 / 10)
}

/// Chips of capability 7.5 without tensor cores; the table of quirks knows their names.
fn lacks_tensor_cores(name: &str) -> bool {
    let without = super::quirks::ROWS.iter().find(|r| r.code == "no-tensor-cores");
    without.is_some_and(|r| r.names.iter().any(|n| name.to_lowercase().contains(n)))
}

/// `GPU-` and the UUID in nvidia-smi's form.
fn uid(bytes: [u8; 16]) -> String {
    let mut out = String::from("GPU");
    let mut rest = bytes.iter();
    for len in [4, 2, 2, 2, 6] {
        out.push('-');
        rest.by_ref().take(len).for_each(|b| out.push_str(&format!("{b:02x}")));
    }
    out
}

/// Version of the kernel module, e.g. `580.159.03`; the driver API tells only the CUDA version it supports.
fn kernel_module() -> Option<String> {
    let plain = probe::text_of("/sys/module/nvidia/version");
    let line = || probe::text_of("/proc/driver/nvidia/version");
    let version = plain.or_else(|| {
        let is_version = |w: &&str| w.contains('.') && w.chars().all(|c| c.is_ascii_digit() || c == '.');
        line()?.split_whitespace().find(is_version).map(String::from)
    })?;
    let version = version.trim();
    (!version.is_empty()).then(|| version.to_string())
}

/// The cudarc whose contexts [`CudaDevice::from_cuda`] takes: of another release they are other types.
pub use cudarc;

/// One opened GPU.
pub struct CudaDevice {
    info: DeviceInfo,
    serial: u64,
    clock: Arc<dyn Clock>,
    ledger: Arc<Ledger>,
    ctx: Arc<Context>,
    limits: Limits,
    libraries: &'static Libraries,
    /// The one stream of all queues, if the program made it.
    given: Option<Given>,
}

// SAFETY: the only field that is not Send and Sync by itself is the handle of a given stream, which the thread-safe driver API
// takes from any thread.
unsafe impl Send for CudaDevice {}
// SAFETY: as above.
unsafe impl Sync for CudaDevice {}

impl std::fmt::Debug for CudaDevice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "CudaDevice({})", self.info.id)
    }
}

impl CudaDevice {
    fn open(ordinal: c_int, info: DeviceInfo, limits: Limits, major: u32) -> Result<Self> {
        let ledger = Ledger::new();
        Ok(CudaDevice {
            info,
            serial: next_serial(),
            clock: Arc::new(RealClock::new()),
            ctx: Context::open(ordinal, Arc::clone(&ledger))?,
            ledger,
            limits,
            libraries: libraries_for(major),
            given: None,
        })
    }

    /// Bytes that managed buffers may have together.
    fn limit(&self) -> u64 {
        self.info.memory_bytes.unwrap_or(self.info.max_alloc_bytes)
    }

    fn named<T>(&self, result: Result<T>) -> Result<T> {
        result.map_err(|e| e.device(&self.info.id))
    }

    fn build_text(&self, text: &str, entry: &str, cached: Option<&[u8]>) -> Result<Program> {
        let start = Instant::now();
        // A cached binary that does not load is no failure: the text is compiled instead.
        let loaded = cached.filter(|c| cubin::whole_cubin(c)).and_then(|c| {
            // SAFETY: the image was just seen to be whole.
            let module = unsafe { Module::load(&self.ctx, c, entry) }.ok()?;
            Some((module, Some(c.to_vec()), String::new()))
        });
        let from_cache = loaded.is_some();
        let (module, binary, remarks) = match loaded {
            Some(loaded) => loaded,
            None => {
                let nvrtc = self
                    .libraries
                    .nvrtc
                    .as_ref()
                    .map_err(|why| Error::new(Code::LibraryNotFound, format!("kernels need NVRTC: {why}")))?;
                let cc = self.info.compute_capability.unwrap_or_default();
                let target = Target::choose(chip(cc), &nvrtc.archs).map_err(|why| {
                    Error::new(Code::CompileFailed, format!("NVRTC {}.{}: {why}", nvrtc.version.0, nvrtc.version.1))
                })?;
                let image = nvrtc.compile(text, entry, target)?;
                // SAFETY: NVRTC gave the image: a cubin, or PTX with its NUL.
                let module = unsafe { Module::load(&self.ctx, &image.bytes, entry) }?;
                // PTX is compiled by the driver, which caches it itself.
                let binary = matches!(target, Target::Cubin(_)).then_some(image.bytes);
                (module, binary, image.log)
            }
        };
        let [registers, local, shared, _] = module.attributes;
        let mut log =
            format!("{registers} registers, {local} B of local memory per thread, {shared} B of shared memory");
        if !remarks.is_empty() {
            log.push_str(&format!("\n{remarks}"));
        }
        let stats = BuildStats { seconds: start.elapsed().as_secs_f64(), from_cache, log };
        let ticket = self.ledger.enter(Kind::Program, 0);
        Ok(Program::new(Loaded::Kernel(module), self.serial, ticket, binary, stats))
    }
}

impl Device for CudaDevice {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }
    fn serial(&self) -> u64 {
        self.serial
    }
    fn clock(&self) -> Arc<dyn Clock> {
        Arc::clone(&self.clock)
    }
    fn ledger(&self) -> &Arc<Ledger> {
        &self.ledger
    }

    fn memory(&self) -> MemoryState {
        match self.ctx.memory() {
            Ok((free, total)) => MemoryState { total: Some(total), free: Some(free) },
            Err(_) => MemoryState { total: self.info.memory_bytes, free: None },
        }
    }

    fn alloc(&self, bytes: u64, kind: MemoryKind) -> Result<Buffer> {
        let more = kind == MemoryKind::Managed && self.ctx.managed.is_lifted();
        if bytes > self.info.max_alloc_bytes && !more {
            let why = format!("{bytes} bytes asked, the device has {}", self.info.max_alloc_bytes);
            return self.named(Err(Error::new(Code::AllocTooLarge, why)));
        }
        // Whole 16-byte lines, and never nothing: the driver refuses empty allocations.
        let size = (bytes.max(1).div_ceil(16) * 16) as usize;
        let (memory, counted) = match kind {
            MemoryKind::Device => (Memory::device(&self.ctx, size), Kind::Buffer),
            MemoryKind::Pinned => (Memory::host(&self.ctx, size, false), Kind::Pinned),
            MemoryKind::Mapped => (Memory::host(&self.ctx, size, true), Kind::Pinned),
            MemoryKind::Managed => (Memory::managed(&self.ctx, size, self.limit()), Kind::Buffer),
        };
        let memory = memory.map_err(|e| {
            if e.code() != Code::OutOfDeviceMemory {
                return e;
            }
            let free = self.ctx.memory().map_or_else(|_| "unknown".into(), |(free, _)| free.to_string());
            Error::new(Code::OutOfDeviceMemory, format!("{bytes} bytes asked, {free} free: {}", e.detail()))
        });
        let memory = self.named(memory)?;
        Ok(Buffer::new(memory, bytes, self.serial, self.ledger.enter(counted, bytes)))
    }

    fn build(&self, source: Source<'_>, cached: Option<&[u8]>) -> Result<Program> {
        self.named(match source {
            Source::Text(text) if text.lang == Lang::Cuda => self.build_text(&text.text, &text.entry, cached),
            Source::Text(text) => {
                Err(Error::new(Code::FeatureUnsupported, format!("CUDA takes no {:?} text", text.lang)))
            }
            Source::Native(..) => Err(Error::new(Code::FeatureUnsupported, "CUDA takes no native functions")),
            Source::Routine(Routine::Gemm | Routine::GemmStridedBatched, dtype) => match &self.libraries.cublas {
                Ok(_) => {
                    let ticket = self.ledger.enter(Kind::Program, 0);
                    Ok(Program::new(Loaded::Gemm(dtype), self.serial, ticket, None, BuildStats::default()))
                }
                Err(why) => Err(Error::new(Code::LibraryNotFound, format!("products by cuBLAS: {why}"))),
            },
        })
    }

    fn queue(&self) -> Result<Box<dyn Queue>> {
        let queue = CudaQueue::new(
            &self.ctx,
            self.serial,
            Arc::clone(&self.clock),
            self.limits,
            self.libraries.cublas.as_ref().ok(),
            self.given.as_ref(),
            self.ledger.enter(Kind::Queue, 0),
        );
        Ok(Box::new(self.named(queue)?))
    }

    fn managed(&self) -> Option<ManagedUse> {
        Some(self.ctx.managed.now(self.limit()))
    }

    fn oversubscribe(&self) -> bool {
        self.ctx.managed.lift();
        true
    }

    fn health(&self) -> Health {
        match self.ctx.poison() {
            None => Health::Usable,
            Some(why) => Health::Lost(why.to_string()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_nvidias() {
        let bytes = [0x8a, 0x5b, 0x00, 0x01, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 0xff];
        assert_eq!(uid(bytes), "GPU-8a5b0001-0203-0405-0607-08090a0b0cff");
        assert_eq!((dotted(12080), dotted(13000), chip((12, 1))), ("12.8".into(), "13.0".into(), 121));
    }

    #[test]
    fn the_target_follows_the_compiler() {
        let archs = [75, 80, 90];
        assert_eq!(Target::choose(90, &archs), Ok(Target::Cubin(90)));
        assert_eq!(Target::choose(103, &archs), Ok(Target::Ptx(90)), "a newer chip is left to the driver");
        assert!(Target::choose(70, &archs).unwrap_err().contains("sm_75 and later"));
        assert_eq!(Target::choose(70, &[]), Ok(Target::Cubin(70)));
    }
}
