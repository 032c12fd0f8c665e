//! What each API's own statuses mean, as data: one row for every constant of its headers.
//!
//! A status without a row has no known meaning: it is `unknown-status`, whose class is sticky. Guessing that it is
//! transient would run work again on a context that may be broken, which gives wrong results at worst; taking it for sticky
//! costs at worst that the CPU does for the rest of the process what the device could have done.

mod cuda;
mod opencl;
mod wgpu;

use super::{ApiStatus, Class, Code, Error};

/// Whose status it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Api {
    /// CUDA's driver API (`CUresult`).
    Cuda,
    /// NVIDIA's run-time compiler (`nvrtcResult`).
    Nvrtc,
    /// cuBLAS (`cublasStatus_t`).
    Cublas,
    /// OpenCL (`cl_int`).
    Opencl,
    /// wgpu (Rust enums).
    Wgpu,
}

/// What a status means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Meaning {
    /// The same in every call.
    Is(Code),
    /// What the call was about: the call was refused or could not be done.
    OfCall,
}

/// One status of an API.
#[derive(Clone, Copy, Debug)]
pub struct Row {
    /// Its number; wgpu has none.
    pub number: Option<i32>,
    /// Its name in the API's header.
    pub name: &'static str,
    /// What it means.
    pub meaning: Meaning,
}

const fn is(number: i32, name: &'static str, code: Code) -> Row {
    Row { number: Some(number), name, meaning: Meaning::Is(code) }
}

const fn call(number: i32, name: &'static str) -> Row {
    Row { number: Some(number), name, meaning: Meaning::OfCall }
}

const fn named(name: &'static str, code: Code) -> Row {
    Row { number: None, name, meaning: Meaning::Is(code) }
}

const fn of_call(name: &'static str) -> Row {
    Row { number: None, name, meaning: Meaning::OfCall }
}

impl Row {
    /// The code in a call whose failure in general means `call`. A refused call is refused again: where the call's own code
    /// promises that trying again may help, it is `InvalidCall`.
    pub fn code(&self, call: Code) -> Code {
        match self.meaning {
            Meaning::Is(code) => code,
            Meaning::OfCall if call.row().class == Class::Transient => Code::InvalidCall,
            Meaning::OfCall => call,
        }
    }
}

impl Api {
    /// All of them.
    pub const ALL: [Api; 5] = [Api::Cuda, Api::Nvrtc, Api::Cublas, Api::Opencl, Api::Wgpu];

    /// Its name in records and on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Api::Cuda => "cuda",
            Api::Nvrtc => "nvrtc",
            Api::Cublas => "cublas",
            Api::Opencl => "opencl",
            Api::Wgpu => "wgpu",
        }
    }

    /// All its rows.
    pub const fn rows(self) -> &'static [Row] {
        match self {
            Api::Cuda => cuda::DRIVER,
            Api::Nvrtc => cuda::NVRTC,
            Api::Cublas => cuda::CUBLAS,
            Api::Opencl => opencl::ROWS,
            Api::Wgpu => wgpu::ROWS,
        }
    }

    /// The row of a number.
    pub fn find(self, number: i32) -> Option<&'static Row> {
        self.rows().iter().find(|r| r.number == Some(number))
    }

    /// The row of a name.
    pub fn named(self, name: &str) -> Option<&'static Row> {
        self.rows().iter().find(|r| r.name == name)
    }

    /// The code of a number in a call whose failure in general means `call`; `UnknownStatus` for a number without a row.
    pub fn code(self, number: i32, call: Code) -> Code {
        self.find(number).map_or(Code::UnknownStatus, |r| r.code(call))
    }

    /// A number with its name, for [`Error::status`].
    pub fn status(self, number: i32) -> ApiStatus {
        let name = self.find(number).map_or_else(String::new, |r| r.name.into());
        ApiStatus { api: self.name().into(), number: Some(number), name }
    }

    /// A failed call as an error: `WHAT: NAME (NUMBER)`, with the status kept.
    pub fn error(self, what: &str, number: i32, call: Code) -> Error {
        let name = self.find(number).map_or("a status that gpuctl does not know", |r| r.name);
        Error::new(self.code(number, call), format!("{what}: {name} ({number})")).status(self.status(number))
    }

    /// The same for an API whose statuses have names only.
    pub fn named_error(self, name: &str, detail: impl Into<String>, call: Code) -> Error {
        let code = self.named(name).map_or(Code::UnknownStatus, |r| r.code(call));
        Error::new(code, detail).status(ApiStatus { api: self.name().into(), number: None, name: name.into() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_status_has_one_row() {
        for api in Api::ALL {
            let mut numbers: Vec<_> = api.rows().iter().filter_map(|r| r.number).collect();
            let mut names: Vec<_> = api.rows().iter().map(|r| r.name).collect();
            let rows = api.rows().len();
            assert_eq!(numbers.len(), if api == Api::Wgpu { 0 } else { rows });
            assert!(numbers.windows(2).all(|w| w[0].abs() < w[1].abs()), "{}: in order", api.name());
            numbers.sort_unstable();
            numbers.dedup();
            names.sort_unstable();
            names.dedup();
            assert!(names.len() == rows && (numbers.len() == rows || api == Api::Wgpu), "{}", api.name());
            assert!(!numbers.contains(&0), "success is no error");
        }
        let rows = |api: Api| api.rows().len();
        assert_eq!((rows(Api::Cuda), rows(Api::Nvrtc), rows(Api::Cublas)), (105, 18, 9));
    }

    /// A status that nobody knows must stop the use of the device, never repeat work on it.
    #[test]
    fn unknown_numbers_are_never_transient() {
        for api in [Api::Cuda, Api::Nvrtc, Api::Cublas, Api::Opencl] {
            for number in [-31_999, -73, 31_999, 123_456] {
                let e = api.error("someCall", number, Code::LaunchFailed);
                assert_eq!((e.code(), e.class()), (Code::UnknownStatus, Class::Sticky));
                assert!(e.detail().contains(&number.to_string()), "{e}");
                assert_eq!(e.context().status.as_ref().unwrap().number, Some(number));
            }
        }
        assert_eq!(Api::Wgpu.named_error("Error::New", "x", Code::LaunchFailed).code(), Code::UnknownStatus);
    }

    #[test]
    fn a_refused_call_is_not_tried_again() {
        assert_eq!(Api::Opencl.code(-30, Code::CompileFailed), Code::CompileFailed);
        assert_eq!(Api::Opencl.code(-30, Code::TransferFailed), Code::InvalidCall);
        assert_eq!(Api::Cuda.code(1, Code::LaunchFailed), Code::InvalidCall);
        let e = Api::Cuda.error("cuLaunchKernel", 700, Code::LaunchFailed);
        assert!(e.to_string().starts_with("illegal-address: cuLaunchKernel: CUDA_ERROR_ILLEGAL_ADDRESS (700)"), "{e}");
    }

    /// The statuses of which the driver API's reference says that the process or the context is finished.
    #[test]
    fn what_ends_a_context_is_sticky() {
        for number in [214, 220, 226, 700, 702, 709, 710, 714, 715, 716, 717, 718, 719, 721, 810, 911] {
            assert_eq!(Api::Cuda.code(number, Code::LaunchFailed).row().class, Class::Sticky, "{number}");
        }
        for number in [701, 720] {
            assert_eq!(Api::Cuda.code(number, Code::LaunchFailed), Code::LaunchTooLarge, "{number}");
        }
        for (number, class) in
            [(-4, Class::Oom), (-5, Class::Oom), (-6, Class::Oom), (-36, Class::Lost), (-9999, Class::Sticky)]
        {
            assert_eq!(Api::Opencl.code(number, Code::LaunchFailed).row().class, class, "{number}");
        }
    }
}
