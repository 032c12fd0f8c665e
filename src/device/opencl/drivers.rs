//! The drivers themselves: those that the loader knows of and leaves out without a word, and which file gave a platform.

use std::ffi::{CStr, c_char, c_void};

use dlopen2::raw::{AddressInfoObtainer, Library};
use opencl3::error_codes::error_text;

use crate::base::text::printable;
use crate::base::{Absence, Code};
use crate::device::icd::Icd;
use crate::device::probe::real_path;

use super::sys::Raw;

/// `clGetExtensionFunctionAddress` of cl.h.
type Address = unsafe extern "C" fn(*const c_char) -> *mut c_void;
/// `clIcdGetPlatformIDsKHR` of cl_ext.h.
type Platforms = unsafe extern "C" fn(u32, *mut *mut c_void, *mut u32) -> i32;

/// What a look at the drivers gave.
#[derive(Default)]
pub(super) struct Looked {
    /// A reason for each driver that gives the loader no platform.
    pub(super) absent: Vec<Absence>,
    /// The platforms of the others, each with the file of its driver's library.
    files: Vec<(Raw, String)>,
}

impl Looked {
    /// The file whose driver has this platform, if that is known.
    pub(super) fn file_of(&self, platform: Raw) -> Option<String> {
        self.files.iter().find(|(p, _)| *p == platform).map(|(_, file)| file.clone())
    }
}

/// Looks at each driver.
pub(super) fn look(icds: &[Icd]) -> Looked {
    let mut looked = Looked::default();
    for icd in icds {
        match platforms_of(icd) {
            Ok(platforms) => looked.files.extend(platforms),
            Err(row) => looked.absent.extend(row),
        }
    }
    looked
}

/// A driver's platforms, each with its library's file where the system tells it; or the reason why there are none.
fn platforms_of(icd: &Icd) -> Result<Vec<(Raw, String)>, Option<Absence>> {
    let name = icd.library.as_ref().map_err(|_| icd.nameless())?;
    let shown = printable(name);
    // A driver that the loader was told to load, and has loaded if it can be: its initialisers have run.
    let library = Library::open(name).map_err(|e| {
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
        icd.absence(Code::LibraryNotFound, &why, next)
    })?;
    let asked = platforms(&library);
    // Drivers have threads and exit handlers of their own: they are never unloaded.
    std::mem::forget(library);
    match asked {
        Some((ask, Ok(list))) if !list.is_empty() => {
            let file = file_of(ask);
            Ok(list.into_iter().filter_map(|p| Some((p, file.clone()?))).collect())
        }
        Some((_, Ok(_))) => Err(Some(no_device(icd, &format!("{shown} has no platform")))),
        Some((_, Err(status))) => {
            let what = format!("{shown} has no platform: {} ({status})", error_text(status));
            Err(Some(no_device(icd, &what)))
        }
        None => {
            let why = format!("{shown} is no OpenCL driver: it lacks clIcdGetPlatformIDsKHR");
            let next = "reinstall the driver's package, or remove what names the library";
            Err(Some(icd.absence(Code::LibraryNotFound, &why, next)))
        }
    }
}

/// The file of the library that has this function, without symbolic links.
fn file_of(function: Platforms) -> Option<String> {
    // SAFETY: only looked up in the system's table of loaded libraries, whatever it points to.
    let found = unsafe { AddressInfoObtainer::new().obtain(function as *const ()) }.ok()?;
    real_path(&found.dll_path)
}

fn no_device(icd: &Icd, why: &str) -> Absence {
    let next =
        "check that the GPU is visible (lspci), that /dev nodes may be opened, and that containers get the device";
    icd.absence(Code::NoDevice, why, next)
}

/// The driver's platforms, or the status of asking for them, and the function that was asked; `None` without one.
fn platforms(library: &Library) -> Option<(Platforms, Result<Vec<Raw>, i32>)> {
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
    let status = unsafe { ask(0, std::ptr::null_mut(), &raw mut count) };
    if status != 0 || count == 0 {
        return Some((ask, if status == 0 { Ok(Vec::new()) } else { Err(status) }));
    }
    let mut list: Vec<Raw> = vec![std::ptr::null_mut(); count as usize];
    // SAFETY: the list has room for `count` platforms, and no count is asked for.
    let status = unsafe { ask(count, list.as_mut_ptr(), std::ptr::null_mut()) };
    Some((ask, if status == 0 { Ok(list) } else { Err(status) }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::icd::Named;

    #[test]
    fn each_broken_driver_has_a_reason() {
        let icd = |library: &str| Icd { named: Named::By("/a/b.icd".into()), library: Ok(library.into()) };
        let reason = |library: &str| {
            let row = platforms_of(&icd(library)).unwrap_err().unwrap();
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
        assert_eq!(look(&[empty]).absent.len(), 1);
    }
}
