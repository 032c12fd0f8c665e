//! What OpenCL tells of a device beyond launch limits, through the extensions that tell it.

use opencl3::device::{CL_DEVICE_PCI_BUS_INFO_KHR, CL_DEVICE_TYPE, CL_DEVICE_TYPE_CPU, CL_DEVICE_UUID_KHR};

use crate::base::DType;
use crate::base::facts::Facts;

use super::svm;
use super::sys::{self, Raw};

// Of extensions that opencl3 has no names for: cl_nv_device_attribute_query, cl_amd_device_attribute_query,
// cl_intel_required_subgroup_size.
const WARP_SIZE_NV: u32 = 0x4003;
const PCI_BUS_NV: u32 = 0x4008;
const PCI_SLOT_NV: u32 = 0x4009;
const PCI_DOMAIN_NV: u32 = 0x400A;
const TOPOLOGY_AMD: u32 = 0x4037;
const WAVEFRONT_AMD: u32 = 0x4043;
const SUB_GROUPS_INTEL: u32 = 0x4108;

/// Everything. `dtypes` are those that its buffers hold.
pub(super) fn facts(device: Raw, extensions: &[&str], dtypes: &[DType]) -> Facts {
    let has = |name: &str| extensions.contains(&name);
    let computes = |d: &DType| match d {
        DType::F16 => has("cl_khr_fp16"),
        DType::BF16 => false,
        _ => true,
    };
    let mut atomics = vec!["i32 add".to_string()];
    atomics.extend(has("cl_khr_int64_base_atomics").then(|| "i64 add".into()));
    let mut kinds = vec!["device".to_string(), "mapped".into()];
    kinds.extend(svm::has(device).then(|| "managed".into()));
    Facts {
        uuid: uuid(device, extensions),
        pci: pci(device, extensions),
        arithmetic: dtypes.iter().copied().filter(computes).collect(),
        atomics,
        memory_kinds: kinds,
        subgroup: subgroup(device, extensions),
        ..Facts::default()
    }
}

/// 32 hexadecimal digits. Drivers without a real one report zeros, and those of a processor one for all of its devices.
pub(super) fn uuid(device: Raw, extensions: &[&str]) -> Option<String> {
    let cpu = sys::device_number(device, CL_DEVICE_TYPE).unwrap_or(0) & CL_DEVICE_TYPE_CPU != 0;
    if cpu || !extensions.contains(&"cl_khr_device_uuid") {
        return None;
    }
    let bytes = sys::device_bytes(device, CL_DEVICE_UUID_KHR)?;
    let real = bytes.len() == 16 && bytes.iter().any(|b| *b != 0);
    real.then(|| bytes.iter().map(|b| format!("{b:02x}")).collect())
}

/// Its address on PCI.
pub(super) fn pci(device: Raw, extensions: &[&str]) -> Option<String> {
    let number = |what| sys::device_number(device, what);
    if extensions.contains(&"cl_khr_pci_bus_info")
        && let Some(bytes) = sys::device_bytes(device, CL_DEVICE_PCI_BUS_INFO_KHR)
        && let [domain, bus, slot, function] = bytemuck::pod_collect_to_vec::<u8, u32>(&bytes)[..]
    {
        return Some(address(domain, bus, slot, function));
    }
    if extensions.contains(&"cl_nv_device_attribute_query")
        && let (Some(bus), Some(slot)) = (number(PCI_BUS_NV), number(PCI_SLOT_NV))
    {
        // Slot and function share a number: five bits and three.
        let domain = number(PCI_DOMAIN_NV).unwrap_or(0);
        return Some(address(domain as u32, bus as u32, (slot >> 3) as u32, (slot & 7) as u32));
    }
    if extensions.contains(&"cl_amd_device_attribute_query") {
        return topology_amd(&sys::device_bytes(device, TOPOLOGY_AMD)?);
    }
    None
}

/// AMD's answer: a word that says 1 for PCI Express, and bus, slot and function in the last three of 24 bytes.
fn topology_amd(bytes: &[u8]) -> Option<String> {
    let [1, 0, 0, 0, .., bus, slot, function] = bytes else { return None };
    (bytes.len() == 24).then(|| address(0, (*bus).into(), (*slot).into(), (*function).into()))
}

fn address(domain: u32, bus: u32, slot: u32, function: u32) -> String {
    format!("{domain:04x}:{bus:02x}:{slot:02x}.{function}")
}

fn subgroup(device: Raw, extensions: &[&str]) -> Option<[u32; 2]> {
    let one = |what| sys::device_number(device, what).and_then(|n| u32::try_from(n).ok()).map(|n| [n, n]);
    if extensions.contains(&"cl_intel_required_subgroup_size") {
        let bytes = sys::device_bytes(device, SUB_GROUPS_INTEL)?;
        let sizes: Vec<u64> = bytemuck::pod_collect_to_vec::<u8, u64>(&bytes);
        let least = sizes.iter().min().and_then(|n| u32::try_from(*n).ok())?;
        let most = sizes.iter().max().and_then(|n| u32::try_from(*n).ok())?;
        return Some([least, most]);
    }
    if extensions.contains(&"cl_nv_device_attribute_query") {
        return one(WARP_SIZE_NV);
    }
    if extensions.contains(&"cl_amd_device_attribute_query") {
        return one(WAVEFRONT_AMD);
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_written_as_the_system_writes_them() {
        assert_eq!(address(0, 0x3b, 0, 0), "0000:3b:00.0");
        assert_eq!(address(1, 0xff, 0x1f, 7), "0001:ff:1f.7");
        let mut amd = [0u8; 24];
        amd[0] = 1;
        amd[21..].copy_from_slice(&[0x83, 0x00, 0x01]);
        assert_eq!(topology_amd(&amd).unwrap(), "0000:83:00.1");
        amd[0] = 2;
        assert_eq!(topology_amd(&amd), None, "not PCI Express");
        assert_eq!(topology_amd(&[1, 0, 0, 0, 0x83, 0, 0]), None, "too short");
        assert_eq!(topology_amd(&[]), None);
    }
}
