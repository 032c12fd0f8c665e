//! What a device tells of itself beyond what launch plans need, and the pieces of hardware behind the devices. Data only; the
//! backends fill in [`Facts`], `jobs::hardware` finds out which devices are one card.

use serde::{Deserialize, Serialize};

use super::blas::BlasInfo;
use super::device_info::{DeviceClass, DeviceInfo};
use super::dtype::DType;
use super::telemetry::{Link, NotTold};

/// What matrix units (tensor cores) multiply, by the smallest instruction.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Matrix {
    /// Precision of the factors: `f16`, `bf16`, `tf32`, `f64`, `i8`, `i4`, `b1`, `f8`, `f6`, `f4`.
    pub precision: String,
    /// Rows, columns and depth of one instruction.
    pub shapes: Vec<[u32; 3]>,
    /// Whether one factor may be stored at half its size, every other value being zero.
    pub sparse: bool,
}

/// What a device tells of itself, where its API tells it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Facts {
    /// UUID of the hardware as 32 hexadecimal digits; equal through all APIs that tell it.
    pub uuid: Option<String>,
    /// PCI address, `0000:3b:00.0`.
    pub pci: Option<String>,
    /// Dtypes that the device computes in by itself. Others that it stores are computed in f32.
    pub arithmetic: Vec<DType>,
    /// Atomic operations on memory, `i32 add`, `f64 add`, ..
    pub atomics: Vec<String>,
    /// Kinds of memory that can be allocated for it: `device`, `pinned`, `managed`.
    pub memory_kinds: Vec<String>,
    /// Work-items that run in step, at least and at most.
    pub subgroup: Option<[u32; 2]>,
    /// What its matrix units multiply. Empty: it has none, or the API does not tell.
    pub matrix: Vec<Matrix>,
    /// Copies from and to host memory that go on beside kernels.
    pub async_copies: Option<bool>,
    /// Ids of devices of the same API whose memory it can read and write directly.
    pub peers: Vec<String>,
    /// Known peculiarities of its driver; `docs/quirks.md` lists all.
    pub quirks: Vec<Quirk>,
    /// The BLAS that the processor's products run on, if one was opened.
    pub blas: Option<BlasInfo>,
}

/// A known peculiarity of a driver.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Quirk {
    /// Its name.
    pub code: String,
    /// `wrong-result`, `crash`, `limit`, `missing`, `slow`.
    pub kind: String,
    /// What happens.
    pub what: String,
    /// What gpuctl does about it.
    pub answer: String,
}

/// Whether a device reaches what gpuctl asks for at least.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Minimum {
    /// `yes`, `no`, `unknown`, or `host` for the processor itself.
    pub met: String,
    /// What is below, or not told.
    pub why: String,
}

/// Compute capability that a CUDA device needs.
const CAPABILITY: (u32, u32) = (3, 5);
/// OpenCL's version that a device needs.
const OPENCL: (u32, u32) = (1, 2);
/// Bytes of memory that a GPU needs; cards sold as 4 GB hold some less than 4 GiB for programs.
const MEMORY: u64 = 4_000_000_000;

/// Judges a device against the least that gpuctl is made for: compute capability 3.5, OpenCL 1.2, 4 GB of memory.
pub fn minimum(info: &DeviceInfo) -> Minimum {
    let of = |met: &str, why: String| Minimum { met: met.into(), why };
    if info.class == DeviceClass::Cpu {
        return of("host", String::new());
    }
    let mut below = Vec::new();
    let mut open = Vec::new();
    if let Some(cc) = info.compute_capability.filter(|cc| *cc < CAPABILITY) {
        below.push(format!("compute capability {}.{} of {}.{}", cc.0, cc.1, CAPABILITY.0, CAPABILITY.1));
    }
    if let Some(version) = opencl_version(&info.api).filter(|v| *v < OPENCL) {
        below.push(format!("OpenCL {}.{} of {}.{}", version.0, version.1, OPENCL.0, OPENCL.1));
    }
    match info.memory_bytes {
        Some(bytes) if bytes < MEMORY => below.push(format!("{:.1} GB of memory of 4 GB", bytes as f64 / 1e9)),
        Some(_) => {}
        None => open.push("its API does not tell how much memory there is".to_string()),
    }
    match (below.is_empty(), open.is_empty()) {
        (false, _) => of("no", below.join("; ")),
        (true, false) => of("unknown", open.join("; ")),
        (true, true) => of("yes", String::new()),
    }
}

/// The version in `OpenCL 3.0, OpenCL C 1.2`.
fn opencl_version(api: &str) -> Option<(u32, u32)> {
    let text = api.strip_prefix("OpenCL ")?;
    let (major, rest) = text.split_once('.')?;
    let minor: String = rest.chars().take_while(char::is_ascii_digit).collect();
    Some((major.parse().ok()?, minor.parse().ok()?))
}

/// What a uid is made of, for people.
pub fn uid_explained(uid: &str) -> &'static str {
    const FORMS: [(&str, &str); 10] = [
        ("GPU-", "the card's UUID, from CUDA; the same on every machine that the card is put into"),
        ("MIG-", "the UUID of a part of a divided card (MIG), from CUDA"),
        ("opencl/pci/", "the PCI address, from OpenCL; stays until the card is moved to another slot"),
        ("opencl/uuid/", "the card's UUID, from OpenCL"),
        (
            "opencl/",
            "OpenCL's platform, its version where several have one name, and the place in its list: the driver tells \
                     neither UUID nor PCI address",
        ),
        ("vulkan:pci:", "the PCI address, from Vulkan; stays until the card is moved to another slot"),
        ("vulkan:uuid:", "the card's UUID, from Vulkan: the driver tells no PCI address"),
        (
            "vulkan:",
            "numbers of vendor and device, from Vulkan: the driver tells neither PCI address nor a card's UUID",
        ),
        ("cpu", "the host's processor; its model is in the fingerprint"),
        ("sim", "a simulated machine"),
    ];
    let form = FORMS.iter().find(|(start, _)| uid.starts_with(start));
    form.map_or("the API and its place in the API's list", |(_, words)| words)
}

/// A piece of hardware with the devices through which APIs show it: a row of `gpuctl devices`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Hardware {
    /// Name.
    pub name: String,
    /// What it is; devices that APIs make of the host's processor belong to the processor.
    pub class: DeviceClass,
    /// UUID, if any API tells it.
    pub uuid: Option<String>,
    /// PCI address, if any API tells it.
    pub pci: Option<String>,
    /// Ids of the devices; empty if no API shows the hardware.
    pub ids: Vec<String>,
    /// What says that the devices are one piece of hardware: `uuid`, `pci`, `processor`, `alone`.
    pub matched_by: String,
    /// Memory in bytes.
    pub memory_bytes: Option<u64>,
    /// Bytes of memory that nobody uses now.
    pub memory_free: Option<u64>,
    /// Why `memory_free` is missing.
    pub memory_free_why: String,
    /// Whether it reaches what gpuctl asks for at least, through the API through which it comes off best.
    pub minimum: Minimum,
    /// Its link to the host, if the system tells.
    pub link: Option<Link>,
    /// NUMA node of its slot.
    pub numa_node: Option<u32>,
    /// Whether it is divided (Multi-Instance GPU).
    pub mig: Option<bool>,
    /// The kernel's driver, if the system tells.
    pub kernel_driver: Option<String>,
    /// APIs that do not show it, and why, as far as that is known.
    pub not_seen_by: Vec<NotTold>,
    /// Remarks.
    pub notes: Vec<String>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::Backend;

    #[test]
    fn the_least_is_judged_by_what_is_told() {
        let gpu = DeviceInfo::ordinary_gpu();
        let met = |info: &DeviceInfo| minimum(info).met;
        assert_eq!(met(&gpu), "yes");
        // OpenCL 1.2 itself is enough.
        let api = |api: &str| DeviceInfo { api: api.into(), ..gpu.clone() };
        assert_eq!(met(&api("OpenCL 1.2, OpenCL C 1.2")), "yes");
        assert_eq!(met(&api("OpenCL 1.1, OpenCL C 1.1")), "no");
        assert_eq!(met(&api("OpenCL 3.0 CUDA, OpenCL C 1.2")), "yes");
        let cc = |cc| DeviceInfo { compute_capability: Some(cc), backend: Backend::Cuda, ..api("CUDA 12.8") };
        assert_eq!((met(&cc((3, 5))), met(&cc((3, 0))), met(&cc((10, 0)))), ("yes".into(), "no".into(), "yes".into()));
        let memory = |memory_bytes| DeviceInfo { memory_bytes, ..gpu.clone() };
        assert_eq!(met(&memory(None)), "unknown");
        assert_eq!(met(&memory(Some(4_042_000_000))), "yes");
        let small = minimum(&DeviceInfo { memory_bytes: Some(2 << 30), ..api("OpenCL 1.0") });
        assert_eq!(small.met, "no");
        assert_eq!(small.why, "OpenCL 1.0 of 1.2; 2.1 GB of memory of 4 GB");
    }

    #[test]
    fn every_form_of_a_uid_is_explained() {
        for (uid, word) in [
            ("GPU-6d6f", "UUID"),
            ("opencl/pci/0000:3b:00.0", "PCI"),
            ("opencl/uuid/00ff", "UUID"),
            ("opencl/portable-computing-language/1", "place"),
            ("vulkan:pci:0000:3b:00.0", "PCI"),
            ("vulkan:uuid:00ff", "UUID"),
            ("vulkan:10005:0000", "numbers"),
            ("cpu", "processor"),
        ] {
            assert!(uid_explained(uid).contains(word), "{uid}: {}", uid_explained(uid));
        }
    }
}
