//! Which OpenCL devices there are, what they can do, and why the rest cannot be used.

use std::sync::{Arc, Mutex, PoisonError};

use opencl3::device::{
    CL_DEVICE_ADDRESS_BITS, CL_DEVICE_AVAILABLE, CL_DEVICE_COMPILER_AVAILABLE, CL_DEVICE_DOUBLE_FP_CONFIG,
    CL_DEVICE_ENDIAN_LITTLE, CL_DEVICE_EXTENSIONS, CL_DEVICE_GLOBAL_MEM_CACHE_SIZE, CL_DEVICE_GLOBAL_MEM_SIZE,
    CL_DEVICE_HOST_UNIFIED_MEMORY, CL_DEVICE_LOCAL_MEM_SIZE, CL_DEVICE_MAX_COMPUTE_UNITS, CL_DEVICE_MAX_MEM_ALLOC_SIZE,
    CL_DEVICE_MAX_NUM_SUB_GROUPS, CL_DEVICE_MAX_WORK_GROUP_SIZE, CL_DEVICE_NAME, CL_DEVICE_OPENCL_C_VERSION,
    CL_DEVICE_PROFILE, CL_DEVICE_SINGLE_FP_CONFIG, CL_DEVICE_TYPE, CL_DEVICE_TYPE_ALL, CL_DEVICE_TYPE_CPU,
    CL_DEVICE_TYPE_CUSTOM, CL_DEVICE_VENDOR, CL_DEVICE_VERSION, CL_DRIVER_VERSION, CL_FP_DENORM, get_device_ids,
};
use opencl3::platform::platform::{CL_PLATFORM_NAME, CL_PLATFORM_VENDOR, CL_PLATFORM_VERSION, get_platform_ids};

use crate::base::{Absence, Backend, Code, DType, DeviceClass, DeviceInfo, Feature, Lang};
use crate::device::platform::{self, Platform, Seen};
use crate::device::{Found, Probe, icd, quirks};

use super::drivers;
use super::facts::{self, facts};
use super::sys::{self, NO_PLATFORM, NOT_LOADED, Raw};
use super::{ClId, OpenclDevice};

const INSTALL_LOADER: &str = "install the OpenCL loader (Debian and Ubuntu: ocl-icd-libopencl1) and the GPU's driver";
const INSTALL_DRIVER: &str = "install the GPU's OpenCL driver (Debian and Ubuntu: nvidia-opencl-icd, intel-opencl-icd, \
                              mesa-opencl-icd; pocl-opencl-icd runs OpenCL on the processor)";

/// Asks every platform for its devices. Never panics and never hides one platform behind another's failure.
pub fn probe() -> Probe {
    /// Drivers set themselves up at the first query; PoCL 3.1 aborts the process when two threads make it at once.
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    let _guard = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let mut probe = Probe::default();
    let absence = |what: &str, reason: String, next: &str| Absence {
        backend: Backend::Opencl,
        what: what.to_string(),
        reason,
        next: next.to_string(),
    };
    let platforms = match get_platform_ids() {
        Ok(platforms) => platforms,
        Err(NOT_LOADED) => {
            let reason = format!("{}: libOpenCL could not be loaded", Code::LibraryNotFound.name());
            probe.absent.push(absence("libOpenCL", reason, INSTALL_LOADER));
            return probe;
        }
        Err(NO_PLATFORM) => Vec::new(),
        Err(status) => {
            let e = sys::error("clGetPlatformIDs", status, Code::LibraryNotFound);
            let reason = format!("{}: {}", e.code().name(), e.detail());
            probe.absent.push(absence("libOpenCL", reason, INSTALL_LOADER));
            return probe;
        }
    };
    // Only after the loader, which has now loaded every driver that can be loaded and says nothing of the others.
    let listing = icd::listing();
    let looked = drivers::look(&listing.icds);
    if platforms.is_empty() && looked.absent.is_empty() {
        let where_to = if listing.icds.is_empty() { "in" } else { "that gives it a platform in" };
        let reason = format!(
            "{}: the loader libOpenCL is there but found no driver (ICD) {where_to} {}",
            Code::NoPlatform.name(),
            listing.place
        );
        probe.absent.push(absence("opencl", reason, INSTALL_DRIVER));
    }
    let asked: Vec<_> = platforms.into_iter().map(|p| (p, get_device_ids(p, CL_DEVICE_TYPE_ALL))).collect();
    let handles: Vec<_> = asked.iter().map(|(p, devices)| (*p, devices.clone().unwrap_or_default())).collect();
    let first = platform::once(&handles);
    let asked: Vec<_> = asked.into_iter().zip(first).filter_map(|(one, first)| first.then_some(one)).collect();
    let texts: Vec<Platform> = asked.iter().map(|(p, devices)| text_of(*p, devices, looked.file_of(*p))).collect();
    // Ids count over all platforms, unusable devices included, so that a repaired driver does not renumber the others.
    for place in platform::places(&texts) {
        let name = &texts[place.platform].name;
        let devices = match &asked[place.platform].1 {
            Ok(devices) => devices,
            Err(status) => {
                let e = sys::error("clGetDeviceIDs", *status, Code::NoDevice);
                probe.absent.push(absence(name, format!("{}: {}", e.code().name(), e.detail()), INSTALL_DRIVER));
                continue;
            }
        };
        if devices.is_empty() {
            let reason = format!("{}: the platform has no device", Code::NoDevice.name());
            probe.absent.push(absence(name, reason, after_no_device(name)));
        }
        for (index, (device, uid)) in devices.iter().copied().zip(place.uids).enumerate() {
            let id = format!("opencl:{}", place.first + index);
            match unusable(device) {
                Some((reason, next)) => {
                    let what = format!("{id} {}", sys::device_text(device, CL_DEVICE_NAME));
                    probe.absent.push(absence(&what, reason, next));
                }
                None => {
                    let mut info = describe(device, id, uid, name);
                    info.facts.quirks = quirks::of(&info);
                    let (ids, opened) = (ClId(device), info.clone());
                    probe.found.push(Found::new(info, move || {
                        Ok(Arc::new(OpenclDevice::open(ids, opened.clone())?) as Arc<dyn crate::device::Device>)
                    }));
                }
            }
        }
        probe.platforms.push(texts[place.platform].clone());
    }
    probe.absent.extend(looked.absent);
    probe
}

/// What a platform and its devices say of themselves.
fn text_of(platform: Raw, devices: &Result<Vec<Raw>, i32>, file: Option<String>) -> Platform {
    let seen = |device: &Raw| Seen {
        name: sys::device_text(*device, CL_DEVICE_NAME),
        driver: sys::device_text(*device, CL_DRIVER_VERSION),
        hardware: hardware(*device),
    };
    let processor = |device: &Raw| sys::device_number(*device, CL_DEVICE_TYPE).unwrap_or(0) & CL_DEVICE_TYPE_CPU != 0;
    Platform {
        software: devices.iter().flatten().all(processor),
        name: sys::platform_text(platform, CL_PLATFORM_NAME),
        vendor: sys::platform_text(platform, CL_PLATFORM_VENDOR),
        version: sys::platform_text(platform, CL_PLATFORM_VERSION),
        devices: devices.iter().flatten().map(seen).collect(),
        file,
    }
}

/// What makes a platform without devices show one. Mesa's Rusticl shows those only that a variable names.
fn after_no_device(platform: &str) -> &'static str {
    match platform.to_lowercase().as_str() {
        "rusticl" => "name Mesa's driver of the GPU: RUSTICL_ENABLE=radeonsi (AMD), iris (Intel) or nouveau (NVIDIA)",
        "clover" => "Mesa's Clover is no longer made: install the vendor's driver, or Mesa's Rusticl",
        _ => "check that the GPU is visible (lspci), that /dev nodes may be opened, and that containers get the device",
    }
}

/// The first thing that rules a device out, and what to do about it.
fn unusable(device: Raw) -> Option<(String, &'static str)> {
    let is = |what| sys::device_number(device, what) != Some(0);
    let version = sys::device_text(device, CL_DEVICE_VERSION);
    let unsupported = Code::FeatureUnsupported.name();
    if sys::device_number(device, CL_DEVICE_TYPE).unwrap_or(0) & CL_DEVICE_TYPE_CUSTOM != 0 {
        return Some((format!("{unsupported}: a custom device takes no kernels"), "use another device"));
    }
    if version_of(&version).is_none_or(|v| v < (1, 2)) {
        return Some((
            format!("{}: the device reports '{version}', 1.2 is needed", Code::DriverTooOld.name()),
            "update the driver",
        ));
    }
    if !is(CL_DEVICE_AVAILABLE) {
        return Some((
            format!("{}: the driver says that the device is not available", Code::NoDevice.name()),
            "see the driver's log; another process may hold the device exclusively",
        ));
    }
    if !is(CL_DEVICE_COMPILER_AVAILABLE) {
        return Some((format!("{unsupported}: the driver has no compiler"), "install the driver's compiler package"));
    }
    if sys::device_text(device, CL_DEVICE_PROFILE) != "FULL_PROFILE" {
        return Some((format!("{unsupported}: an embedded profile lacks 64-bit integers"), "use another device"));
    }
    if !is(CL_DEVICE_ENDIAN_LITTLE) {
        return Some((format!("{unsupported}: a big-endian device"), "use another device"));
    }
    None
}

/// `OpenCL 3.0 PoCL ...` -> (3, 0).
fn version_of(text: &str) -> Option<(u32, u32)> {
    let (major, minor) = text.strip_prefix("OpenCL ")?.split_whitespace().next()?.split_once('.')?;
    Some((major.parse().ok()?, minor.parse().ok()?))
}

/// The first `words` words of a text.
fn words(text: &str, words: usize) -> String {
    text.split_whitespace().take(words).collect::<Vec<_>>().join(" ")
}

/// The identity that the hardware itself has, if it has one.
fn hardware(device: Raw) -> Option<String> {
    let extensions = sys::device_text(device, CL_DEVICE_EXTENSIONS);
    let extensions: Vec<&str> = extensions.split_whitespace().collect();
    let address = facts::pci(device, &extensions).map(|pci| format!("pci/{pci}"));
    address.or_else(|| Some(format!("uuid/{}", facts::uuid(device, &extensions)?)))
}

fn describe(device: Raw, id: String, uid: String, platform: &str) -> DeviceInfo {
    let number = |what| sys::device_number(device, what);
    let extensions = sys::device_text(device, CL_DEVICE_EXTENSIONS);
    let extensions: Vec<&str> = extensions.split_whitespace().collect();
    let unified = number(CL_DEVICE_HOST_UNIFIED_MEMORY).unwrap_or(0) != 0;
    let class = match number(CL_DEVICE_TYPE).unwrap_or(0) {
        t if t & CL_DEVICE_TYPE_CPU != 0 => DeviceClass::Software,
        _ if unified => DeviceClass::Integrated,
        _ => DeviceClass::Discrete,
    };
    let mut notes = vec!["f16 and bf16 are stored, arithmetic is f32".to_string()];
    let mut dtypes = DType::ALL.to_vec();
    let mut features = vec![Feature::Int64, Feature::SmallInt];
    // The extension's name is not required from OpenCL 3.0 on, the configuration bits are.
    if number(CL_DEVICE_DOUBLE_FP_CONFIG).unwrap_or(0) != 0 || extensions.contains(&"cl_khr_fp64") {
        features.insert(0, Feature::Fp64);
    } else {
        dtypes.retain(|d| *d != DType::F64);
        notes.push("no f64: the device has no double precision (no cl_khr_fp64)".into());
    }
    // From OpenCL 3.0 on a number says so; Intel's driver for processors has subgroups without the extension's name.
    if number(CL_DEVICE_MAX_NUM_SUB_GROUPS).unwrap_or(0) > 0 || extensions.contains(&"cl_khr_subgroups") {
        features.push(Feature::Subgroups);
    }
    if number(CL_DEVICE_SINGLE_FP_CONFIG).unwrap_or(0) & CL_FP_DENORM == 0 {
        notes.push("f32 subnormals are flushed to zero".into());
    }
    if number(CL_DEVICE_ADDRESS_BITS) == Some(32) {
        notes.push("32-bit addresses".into());
    }
    let facts = facts(device, &extensions, &dtypes);
    let max_group = number(CL_DEVICE_MAX_WORK_GROUP_SIZE).unwrap_or(1).clamp(1, u64::from(u32::MAX));
    let max_alloc = number(CL_DEVICE_MAX_MEM_ALLOC_SIZE).unwrap_or(128 << 20);
    DeviceInfo {
        uid,
        id,
        name: sys::device_text(device, CL_DEVICE_NAME),
        vendor: sys::device_text(device, CL_DEVICE_VENDOR),
        backend: Backend::Opencl,
        class,
        driver: format!("{platform} {}", sys::device_text(device, CL_DRIVER_VERSION)),
        api: format!(
            "{}, {}",
            words(&sys::device_text(device, CL_DEVICE_VERSION), 2),
            words(&sys::device_text(device, CL_DEVICE_OPENCL_C_VERSION), 3)
        ),
        langs: vec![Lang::OpenclC],
        memory_bytes: number(CL_DEVICE_GLOBAL_MEM_SIZE),
        max_alloc_bytes: max_alloc,
        max_binding_bytes: max_alloc,
        max_group: max_group as u32,
        // OpenCL has no query. Work-items of one axis must fit 32 bits on AMD; NVIDIA takes 65,535 groups in y and z.
        max_groups: [u64::from(u32::MAX) / max_group, 65_535, 65_535],
        local_bytes: number(CL_DEVICE_LOCAL_MEM_SIZE).unwrap_or(0).min(u64::from(u32::MAX)) as u32,
        compute_units: number(CL_DEVICE_MAX_COMPUTE_UNITS).unwrap_or(1).min(u64::from(u32::MAX)) as u32,
        compute_capability: None,
        dtypes,
        features,
        libraries: vec![],
        unified_memory: unified,
        cache_bytes: number(CL_DEVICE_GLOBAL_MEM_CACHE_SIZE).filter(|b| *b > 0),
        // OpenCL tells clock and units, but not how wide a unit is.
        theoretical: None,
        facts,
        notes,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_and_names_are_read() {
        assert_eq!(version_of("OpenCL 3.0 PoCL HSTR: x"), Some((3, 0)));
        assert_eq!(version_of("OpenCL 1.1"), Some((1, 1)));
        assert_eq!(version_of("Vulkan 1.3"), None);
        assert!(after_no_device("rusticl").contains("RUSTICL_ENABLE") && after_no_device("x").contains("lspci"));
        assert_eq!(words("OpenCL C 1.2 PoCL", 3), "OpenCL C 1.2");
    }

    /// Asking must work whatever is installed; each device has an identity of its own.
    #[test]
    fn probing_gives_devices_or_reasons() {
        let p = probe();
        assert!(!p.found.is_empty() || !p.absent.is_empty());
        let mut uids: Vec<_> = p.found.iter().map(|f| f.info.uid.clone()).collect();
        uids.sort_unstable();
        uids.dedup();
        assert_eq!(uids.len(), p.found.len(), "{uids:?}");
        let files: Vec<_> = p.platforms.iter().map(|platform| &platform.file).collect();
        assert!(!cfg!(target_os = "linux") || files.iter().all(|f| f.is_some()), "{files:?}");
        for f in &p.found {
            assert!(!f.info.uid.contains([',', ' ']), "--device splits at commas: {}", f.info.uid);
            let has_f64 = f.info.dtypes.contains(&DType::F64);
            assert_eq!(has_f64, !f.info.notes.iter().any(|n| n.starts_with("no f64: ")));
        }
    }
}
