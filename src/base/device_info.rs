//! What a device is and can do, as plain data: read by launch plans, records and profiles.

use serde::{Deserialize, Serialize};
use std::fmt;

use super::dtype::DType;
use super::facts::Facts;

/// The API through which a device is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Backend {
    /// The host's processor, through our own kernels.
    Cpu,
    /// NVIDIA's driver API.
    Cuda,
    /// Any OpenCL 1.2+ platform.
    Opencl,
    /// Vulkan, Metal or Direct3D 12 through wgpu.
    Wgpu,
    /// The simulator: computes on the host, prices by a cost model on a virtual clock.
    Sim,
}

impl Backend {
    /// All backends, in the order in which they are listed.
    pub const ALL: [Backend; 5] = [Backend::Cpu, Backend::Cuda, Backend::Opencl, Backend::Wgpu, Backend::Sim];

    /// The prefix of device ids.
    pub const fn name(self) -> &'static str {
        match self {
            Backend::Cpu => "cpu",
            Backend::Cuda => "cuda",
            Backend::Opencl => "opencl",
            Backend::Wgpu => "wgpu",
            Backend::Sim => "sim",
        }
    }
}

impl fmt::Display for Backend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// The language or form in which a device takes kernels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Lang {
    /// A Rust function of this binary.
    Native,
    /// OpenCL C (the common C dialect under `prelude.cl`).
    OpenclC,
    /// CUDA C++ (the common C dialect under `prelude.cu`, or a CUDA-only text).
    Cuda,
    /// WGSL.
    Wgsl,
}

/// What kind of thing computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DeviceClass {
    /// The host's processor as the baseline.
    Cpu,
    /// A GPU with its own memory.
    Discrete,
    /// A GPU that shares the host's memory.
    Integrated,
    /// A GPU passed through or shared by a hypervisor.
    Virtual,
    /// A GPU API implemented on the host's processor (PoCL, lavapipe, ...). Never a default device.
    Software,
    /// The simulator.
    Simulated,
}

/// An optional ability that a kernel may need.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Feature {
    /// f64 arithmetic.
    Fp64,
    /// 64-bit integers.
    Int64,
    /// 8- and 16-bit integers in storage.
    SmallInt,
    /// Matrix units that multiply bf16 with f32 accumulation (`mma.sync.m16n8k16`).
    TensorBf16,
    /// Subgroup (warp) operations.
    Subgroups,
}

/// A vendor library that a kernel may call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Library {
    /// cuBLAS.
    Cublas,
    /// The BLAS of the processor ([`super::blas`]).
    Blas,
}

/// The most that a device's published figures allow.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Theoretical {
    /// Fused multiply-adds in f32 without matrix units, 10^9 operations per second (two each).
    pub f32_gflops: Option<f64>,
    /// The same in f64.
    pub f64_gflops: Option<f64>,
    /// Its own memory, 10^9 bytes per second.
    pub memory_gbps: Option<f64>,
    /// Where the figures come from.
    pub source: String,
}

/// Everything that is known about a device without running anything on it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DeviceInfo {
    /// The id that `--device` takes: `cpu`, `cuda:0`, `opencl:0`, `wgpu:0`, `sim:h200`.
    pub id: String,
    /// Identity that survives reordering: a UUID, a PCI address, or platform and index.
    pub uid: String,
    /// The name the API gives.
    pub name: String,
    /// Vendor.
    pub vendor: String,
    /// API.
    pub backend: Backend,
    /// What kind of thing it is.
    pub class: DeviceClass,
    /// Driver name and version.
    pub driver: String,
    /// API version, e.g. `OpenCL 3.0`, `Vulkan 1.3.230`, `CUDA 12.8, sm_90`.
    pub api: String,
    /// Languages it takes.
    pub langs: Vec<Lang>,
    /// Total memory in bytes, if the API tells.
    pub memory_bytes: Option<u64>,
    /// Largest single buffer in bytes.
    pub max_alloc_bytes: u64,
    /// Largest slice of a buffer that one kernel argument may cover, in bytes.
    pub max_binding_bytes: u64,
    /// Largest number of work-items in a group.
    pub max_group: u32,
    /// Largest number of groups per axis.
    pub max_groups: [u64; 3],
    /// Group-local (shared) memory in bytes.
    pub local_bytes: u32,
    /// Compute units (CPU: threads used).
    pub compute_units: u32,
    /// CUDA compute capability.
    pub compute_capability: Option<(u32, u32)>,
    /// Dtypes that buffers and kernels can hold.
    pub dtypes: Vec<DType>,
    /// Optional abilities.
    pub features: Vec<Feature>,
    /// Vendor libraries that were found, with their versions.
    pub libraries: Vec<(Library, String)>,
    /// True if host and device share one memory.
    pub unified_memory: bool,
    /// Size of the last cache in bytes, if the API or the system tells.
    #[serde(default)]
    pub cache_bytes: Option<u64>,
    /// Theoretical peaks, where they are known.
    #[serde(default)]
    pub theoretical: Option<Theoretical>,
    /// What plans do not need to know.
    #[serde(default)]
    pub facts: Facts,
    /// Remarks: what is missing and why.
    pub notes: Vec<String>,
}

impl DeviceInfo {
    /// An ordinary discrete GPU with OpenCL that exists nowhere: for plans that are looked at and never run.
    pub fn ordinary_gpu() -> Self {
        DeviceInfo {
            id: "opencl:ordinary".into(),
            uid: "ordinary".into(),
            name: "ordinary GPU".into(),
            vendor: String::new(),
            backend: Backend::Opencl,
            class: DeviceClass::Discrete,
            driver: String::new(),
            api: "OpenCL 1.2".into(),
            langs: vec![Lang::OpenclC],
            memory_bytes: Some(8 << 30),
            max_alloc_bytes: 8 << 30,
            max_binding_bytes: 8 << 30,
            max_group: 1024,
            max_groups: [u64::from(u32::MAX), 65_535, 65_535],
            local_bytes: 48 * 1024,
            compute_units: 64,
            compute_capability: None,
            dtypes: DType::ALL.to_vec(),
            features: vec![Feature::Fp64, Feature::Int64, Feature::SmallInt],
            libraries: vec![],
            unified_memory: false,
            cache_bytes: None,
            theoretical: None,
            facts: Facts::default(),
            notes: vec![],
        }
    }

    /// True if kernels in this language can be given to the device.
    pub fn takes(&self, lang: Lang) -> bool {
        self.langs.contains(&lang)
    }
    /// True if the device has the feature.
    pub fn has(&self, feature: Feature) -> bool {
        self.features.contains(&feature)
    }
    /// True if both are one card that two APIs show: they tell one PCI address, or one UUID and no two addresses. What computes on
    /// the host's processor is no card.
    pub fn same_card(&self, other: &DeviceInfo) -> bool {
        let processor = |d: &DeviceInfo| matches!(d.class, DeviceClass::Cpu | DeviceClass::Software);
        let same = |a: &Option<String>, b: &Option<String>| a.as_ref().zip(b.as_ref()).map(|(a, b)| a == b);
        if processor(self) || processor(other) {
            return false;
        }
        match same(&self.facts.pci, &other.facts.pci) {
            Some(same) => same,
            None => same(&self.facts.uuid, &other.facts.uuid) == Some(true),
        }
    }
    /// True for devices that run on the host's processor behind a GPU API.
    pub fn is_software(&self) -> bool {
        self.class == DeviceClass::Software
    }
    /// The compiler of kernels that is no part of the driver, with its version (`NVRTC 12.8`), where the remarks name one: it
    /// may be exchanged while all else stays.
    pub fn compiler(&self) -> Option<&str> {
        let said = self.notes.iter().find_map(|n| n.strip_prefix("kernels by "))?;
        // Where it lies changes nothing.
        Some(said.split_once(" (").map_or(said, |(name, _)| name))
    }
    /// What a profile compares: changes when results or speed may have changed.
    pub fn fingerprint(&self) -> String {
        let blas = self.facts.blas.as_ref().map_or_else(String::new, |b| format!(" | {}", b.text()));
        self.chip() + &blas
    }
    /// The same without the library that products run on: what the device itself can reach does not depend on it.
    pub fn chip(&self) -> String {
        format!("{} | {} | {} | {}", self.backend, self.name, self.driver, self.api)
    }
}

/// A backend or device that is not usable, and why.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Absence {
    /// The backend.
    pub backend: Backend,
    /// The device or library concerned, if one can be named.
    pub what: String,
    /// What was tried and what came of it.
    pub reason: String,
    /// What the user can do.
    pub next: String,
}
