//! The UUID of an adapter's hardware, which wgpu itself does not tell.

/// 32 hexadecimal digits; the same that CUDA and OpenCL tell of the card. Drivers without a real one report zeros.
fn digits(bytes: [u8; 16]) -> Option<String> {
    bytes.iter().any(|b| *b != 0).then(|| bytes.iter().map(|b| format!("{b:02x}")).collect())
}

/// The UUID, if the adapter is Vulkan's and has one. Asked for as Vulkan 1.1 does; what is older tells none.
#[cfg(not(target_os = "macos"))]
#[allow(unsafe_code, reason = "the only way to Vulkan's own query")]
pub(super) fn of(adapter: &wgpu::Adapter) -> Option<String> {
    use ash::vk;
    // SAFETY: nothing that the guard gives is destroyed or kept beyond it.
    let guard = unsafe { adapter.as_hal::<wgpu::hal::api::Vulkan>() }?;
    let (shared, card) = (guard.shared_instance(), guard.raw_physical_device());
    let instance = shared.raw_instance();
    // SAFETY: the physical device is one of this instance's, which lives as long as the guard.
    let told = unsafe { instance.get_physical_device_properties(card) };
    if shared.instance_api_version().min(told.api_version) < vk::API_VERSION_1_1 {
        return None;
    }
    let mut ids = vk::PhysicalDeviceIDProperties::default();
    let mut all = vk::PhysicalDeviceProperties2::default().push_next(&mut ids);
    // SAFETY: as above; instance and device are of a version that has the call and the structure, and both structures live
    // through it.
    unsafe { instance.get_physical_device_properties2(card, &mut all) };
    digits(ids.device_uuid)
}

/// Metal has registry numbers instead.
#[cfg(target_os = "macos")]
pub(super) fn of(_: &wgpu::Adapter) -> Option<String> {
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_uuid_is_digits_and_zeros_are_none() {
        assert_eq!(digits([0; 16]), None);
        let mut bytes = [0; 16];
        (bytes[0], bytes[15]) = (0x6d, 0x0f);
        assert_eq!(digits(bytes).as_deref(), Some("6d00000000000000000000000000000f"));
    }

    /// Whatever this machine has: adapters of Vulkan 1.1 have one, and two cards never share it.
    #[test]
    fn adapters_tell_their_own() {
        let mut seen = Vec::new();
        for f in crate::device::wgpu::probe().found.iter().filter(|f| f.info.api.starts_with("vulkan")) {
            let uuid = f.info.facts.uuid.clone().expect("a driver of Vulkan 1.1");
            assert!(uuid.len() == 32 && uuid.bytes().all(|b| b.is_ascii_hexdigit()), "{uuid}");
            assert!(!seen.contains(&(uuid.clone(), f.info.facts.pci.clone())), "{uuid}");
            seen.push((uuid, f.info.facts.pci.clone()));
        }
    }
}
