//! Drivers that the loader knows of and leaves out without a word.

use std::ffi::{CStr, c_char, c_void};

use dlopen2::raw::Library;
use opencl3::error_codes::error_text;

use crate::base::text::printable;
use crate::base::{Absence, Code};
use crate::device::icd::Icd;

/// `clGetExtensionFunctionAddress` of cl.h.
type Address = unsafe extern "C" fn(*const c_char) -> *mut c_void;
/// `clIcdGetPlatformIDsKHR` of cl_ext.h.
type Platforms = unsafe extern "C" fn(u32, *mut *mut c_void, *mut u32) -> i32;

/// A reason for each driver that gives the loader no platform.
pub(super) fn absences(icds: &[Icd]) -> Vec<Absence> {
    icds.iter().filter_map(absence).collect()
}

fn absence(icd: &Icd) -> Option<Absence> {
    let name = match &icd.library {
        Ok(name) => name,
        Err(_) => return icd.nameless(),
    };
    let shown = printable(name);
    // A driver that the loader was told to load, and has loaded if it can be: its initialisers have run.
    let library = match Library::open(name) {
        Ok(library) => library,
        Err(e) => {
            let next = if name.trim() == name {
                "reinstall the driver's package, or remove what names the library"
            } else {
                "write the library's name without blanks and carriage returns around it"
            };
            // The system's own words, which name the library that a library lacks.
            let said = match e {
                dlopen2::Error::OpeningLibraryError(system) => system.to_string(),
                other => other.to_string(),
            };
            let why = format!("the driver's library {shown} cannot be loaded: {}", printable(&said));
            return Some(icd.absence(Code::LibraryNotFound, &why, next));
        }
    };
    let count = platforms(&library);
    // Drivers have threads and exit handlers of their own: they are never unloaded.
    std::mem::forget(library);
    match count {
        Some(Ok(1..)) => None,
        Some(Ok(0)) => Some(no_device(icd, &format!("{shown} has no platform"))),
        Some(Err(status)) => {
            let what = format!("{shown} has no platform: {} ({status})", error_text(status));
            Some(no_device(icd, &what))
        }
        None => {
            let why = format!("{shown} is no OpenCL driver: it lacks clIcdGetPlatformIDsKHR");
            Some(icd.absence(
                Code::LibraryNotFound,
                &why,
                "reinstall the driver's package, or remove what names the library",
            ))
        }
    }
}

fn no_device(icd: &Icd, why: &str) -> Absence {
    let next =
        "check that the GPU is visible (lspci), that /dev nodes may be opened, and that containers get the device";
    icd.absence(Code::NoDevice, why, next)
}

/// Number of the driver's platforms, or the status of asking for it; `None` if that cannot be asked.
fn platforms(library: &Library) -> Option<Result<u32, i32>> {
    const NAME: &CStr = c"clIcdGetPlatformIDsKHR";
    // SAFETY: cl.h declares `void *clGetExtensionFunctionAddress(const char *)`.
    let address = unsafe { library.symbol::<Address>("clGetExtensionFunctionAddress") }.ok()?;
    // SAFETY: the name ends with a zero and outlives the call.
    let found = unsafe { address(NAME.as_ptr()) };
    let ask: Platforms = if found.is_null() {
        // SAFETY: cl_ext.h declares `cl_int clIcdGetPlatformIDsKHR(cl_uint, cl_platform_id *, cl_uint *)`.
        unsafe { library.symbol::<Platforms>("clIcdGetPlatformIDsKHR") }.ok()?
    } else {
        // SAFETY: the driver says that this is the function of that name; its type is as above.
        unsafe { std::mem::transmute::<*mut c_void, Platforms>(found) }
    };
    let mut count = 0;
    // SAFETY: no list is asked for, and `count` lives through the call.
    match unsafe { ask(0, std::ptr::null_mut(), &raw mut count) } {
        0 => Some(Ok(count)),
        status => Some(Err(status)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::icd::Named;

    #[test]
    fn each_broken_driver_has_a_reason() {
        let icd = |library: &str| Icd { named: Named::By("/a/b.icd".into()), library: Ok(library.into()) };
        let reason = |library: &str| {
            let row = absence(&icd(library)).unwrap();
            assert_eq!(row.what, "/a/b.icd");
            (row.reason, row.next)
        };
        let (why, _) = reason("libno-such-driver.so");
        assert!(why.starts_with("library-not-found: ") && why.contains("libno-such-driver.so"), "{why}");
        assert!(!cfg!(target_os = "linux") || why.contains("cannot open shared object file"), "{why}");
        let (why, next) = reason("libno-such-driver.so\r");
        assert!(!why.contains('\r') && next.contains("carriage returns"), "{why}; {next}");
        if cfg!(target_os = "linux") {
            let (why, _) = reason("libm.so.6");
            assert!(why.contains("libm.so.6 is no OpenCL driver"), "{why}");
        }
        let empty = Icd { library: Err("it is empty".into()), ..icd("") };
        assert_eq!(absences(&[empty]).len(), 1);
    }
}
