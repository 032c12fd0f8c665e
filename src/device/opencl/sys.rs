//! The thin layer over the C API: handles that release themselves, error codes, queries.
//!
//! opencl3's own wrapper types are not used: their `Drop` panics when a release fails, which happens after a device is
//! lost. The functions below them (cl3, re-exported by opencl3) return codes and are enough.

use std::ffi::c_void;
use std::sync::Arc;

use opencl3::device::get_device_data;
use opencl3::error_codes::error_text;
use opencl3::platform::platform::get_platform_data;

use crate::base::api::Api;
use crate::base::{Code, Error};
use crate::device::Ledger;

/// An OpenCL object; all of them are pointers to something opaque.
pub(super) type Raw = *mut c_void;

/// Loads `libOpenCL` failed (cl3's own code).
pub(super) const NOT_LOADED: i32 = -2000;
/// The loaded library lacks the function (cl3's own code).
pub(super) const NO_FUNCTION: i32 = -2001;
/// The loader found no driver (`cl_khr_icd`).
pub(super) const NO_PLATFORM: i32 = -1001;

/// An owned OpenCL object. A release that fails has nobody to return to; the ledger keeps it.
pub(super) struct Handle {
    raw: Raw,
    kind: &'static str,
    release: unsafe fn(Raw) -> Result<(), i32>,
    ledger: Arc<Ledger>,
}

// SAFETY: OpenCL objects may be used and released from any thread (OpenCL 1.2, appendix A.2); the one exception,
// clSetKernelArg, is guarded by the lock around each kernel.
unsafe impl Send for Handle {}
// SAFETY: as above.
unsafe impl Sync for Handle {}

impl Handle {
    /// Takes over one reference to `raw`, which `release` gives up.
    pub(super) fn new(
        raw: Raw,
        kind: &'static str,
        release: unsafe fn(Raw) -> Result<(), i32>,
        ledger: &Arc<Ledger>,
    ) -> Self {
        Handle { raw, kind, release, ledger: Arc::clone(ledger) }
    }

    /// The object, for a call that does not outlive `self`.
    pub(super) fn raw(&self) -> Raw {
        self.raw
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        // SAFETY: `raw` is a live object of the kind that `release` takes, and this is the only owner of the reference.
        if let Err(status) = unsafe { (self.release)(self.raw) } {
            self.ledger.release_failed(format!("OpenCL {}: {} ({status})", self.kind, error_text(status)));
        }
    }
}

/// A failed call as an error. `otherwise` is what a failure of the call means in general.
pub(super) fn error(call: &str, status: i32, otherwise: Code) -> Error {
    Api::Opencl.error(call, status, otherwise)
}

/// A text property of a platform; empty if it cannot be read.
pub(super) fn platform_text(platform: Raw, what: u32) -> String {
    get_platform_data(platform, what).map(text).unwrap_or_default()
}

/// A text property of a device; empty if it cannot be read.
pub(super) fn device_text(device: Raw, what: u32) -> String {
    get_device_data(device, what).map(text).unwrap_or_default()
}

/// An integer property of a device (bool, uint, ulong, size_t, bit field); `None` if the driver does not know it.
pub(super) fn device_number(device: Raw, what: u32) -> Option<u64> {
    number(&get_device_data(device, what).ok()?)
}

/// The bytes of a property, if the driver knows it.
pub(super) fn device_bytes(device: Raw, what: u32) -> Option<Vec<u8>> {
    get_device_data(device, what).ok()
}

fn text(bytes: Vec<u8>) -> String {
    String::from_utf8_lossy(&bytes).trim_matches(|c: char| c == '\0' || c.is_whitespace()).to_string()
}

fn number(bytes: &[u8]) -> Option<u64> {
    Some(match *bytes {
        [a] => u64::from(a),
        [a, b, c, d] => u64::from(u32::from_ne_bytes([a, b, c, d])),
        [a, b, c, d, e, f, g, h] => u64::from_ne_bytes([a, b, c, d, e, f, g, h]),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each constant that cl3 knows has its row with its name, and there are no others but those listed here.
    #[test]
    fn the_table_is_the_header() {
        // Direct3D 10's are in no list of cl3's, and NVIDIA's has no name in any header.
        let others = [-1002, -1003, -1004, -1005, -9999];
        for status in (-32_000..0).rev() {
            let name = error_text(status);
            match Api::Opencl.find(status) {
                Some(row) => assert!(row.name == name || others.contains(&status), "{status}: {} or {name}", row.name),
                None => assert_eq!(name, "UNKNOWN_ERROR", "{status} has no row"),
            }
        }
        let e = error("clCreateBuffer", -61, Code::Internal);
        assert!(e.detail().contains("CL_INVALID_BUFFER_SIZE (-61)"), "{e}");
    }

    /// A release that fails must neither panic nor be lost.
    #[test]
    fn a_failed_release_is_recorded() {
        unsafe fn refuses(_: Raw) -> Result<(), i32> {
            Err(-36)
        }
        let ledger = Ledger::new();
        drop(Handle::new(std::ptr::null_mut(), "queue", refuses, &ledger));
        assert_eq!(ledger.release_errors(), ["OpenCL queue: CL_INVALID_COMMAND_QUEUE (-36)"]);
    }

    #[test]
    fn properties_of_odd_sizes_are_not_numbers() {
        assert_eq!(number(&[1, 0, 0, 0]), Some(1));
        assert_eq!(number(&[1, 0, 0, 0, 1, 0, 0, 0]), Some((1 << 32) + 1));
        assert_eq!(number(&[1, 2, 3]), None);
        assert_eq!(text(b"PoCL \0".to_vec()), "PoCL");
    }
}
