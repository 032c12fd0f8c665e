//! NVRTC, and how NVIDIA's libraries are opened at run time wherever they lie: the loader's own path, a CUDA toolkit, or the
//! wheels of a Python environment.
//!
//! Not through cudarc, because the names it tries depend on the CUDA version it was built for (it would miss
//! `libnvrtc.so.13`). Invariants: a library that is not there is a reason in words; one newer than the driver's CUDA
//! version is passed over; libraries are never unloaded, since they keep threads and exit handlers of their own.

// Calls through function pointers of C libraries; each block says what makes it sound.
#![allow(unsafe_code)]

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::path::{Path, PathBuf};
use std::ptr;
use std::sync::{Mutex, PoisonError};

use libloading::Library as Dl;

use crate::base::api::Api;
use crate::base::{Code, Error, Result};
use crate::device::probe::entries;

/// Folders that may hold NVIDIA's libraries besides those that the loader searches, best first, existing ones only.
///
/// `var` looks up other tools' variables (see [`crate::base::env::of_other_tools`]); `root` is `/` except in tests.
pub fn folders(var: &dyn Fn(&str) -> Option<String>, root: &Path) -> Vec<PathBuf> {
    let set = |name: &str| var(name).filter(|v| !v.is_empty()).map(PathBuf::from);
    let mut toolkits: Vec<PathBuf> = ["CUDA_PATH", "CUDA_HOME"].iter().filter_map(|n| set(n)).collect();
    for base in ["usr/local", "opt"] {
        toolkits.extend(entries(&root.join(base), "cuda"));
    }
    let mut out = Vec::new();
    for kit in toolkits {
        out.extend([kit.join("lib64"), kit.join("lib"), kit.join("bin").join("x64"), kit.join("bin")]);
        out.extend(entries(&kit.join("targets"), "").into_iter().map(|t| t.join("lib")));
    }
    let mut prefixes: Vec<PathBuf> = ["VIRTUAL_ENV", "CONDA_PREFIX"].iter().filter_map(|n| set(n)).collect();
    // The Python that a user would start; its environment need not be activated.
    let path = var("PATH").unwrap_or_default();
    let python = std::env::split_paths(&path).find(|d| d.join("python3").exists());
    prefixes.extend(python.as_deref().and_then(Path::parent).map(Path::to_path_buf));
    prefixes.extend(set("HOME").map(|h| h.join(".local")));
    prefixes.extend([root.join("usr/local"), root.join("usr")]);
    for prefix in prefixes {
        for python in entries(&prefix.join("lib"), "python3") {
            for packages in ["site-packages", "dist-packages"] {
                out.extend(wheels(&python.join(packages)));
            }
        }
        // Conda puts the libraries themselves there.
        out.push(prefix.join("lib"));
    }
    let mut seen = std::collections::HashSet::new();
    out.retain(|p| p.is_dir() && seen.insert(p.clone()));
    out
}

/// The library folders of NVIDIA's wheels below a folder of Python packages: `nvidia/cu13/lib`,
/// `nvidia/cuda_nvrtc/lib`, `nvidia/cublas/lib`, ...
pub fn wheels(packages: &Path) -> Vec<PathBuf> {
    let found = entries(&packages.join("nvidia"), "").into_iter().map(|p| p.join("lib"));
    found.filter(|p| p.is_dir()).collect()
}

/// File names of a library for CUDA's major versions 13, 12 and 11 up to `major`, newest first, then the bare name.
fn names(stem: &str, major: u32) -> Vec<String> {
    let versions: &[(u32, &str)] = match (stem, cfg!(windows)) {
        ("nvrtc", true) => &[(13, "64_130_0"), (12, "64_120_0"), (11, "64_112_0")],
        (_, true) => &[(13, "64_13"), (12, "64_12"), (11, "64_11")],
        ("nvrtc", false) => &[(13, "13"), (12, "12"), (11, "11.2")],
        (_, false) => &[(13, "13"), (12, "12"), (11, "11")],
    };
    let fitting = versions.iter().filter(|(v, _)| *v <= major);
    let name = |v: &str| if cfg!(windows) { format!("{stem}{v}.dll") } else { format!("lib{stem}.so.{v}") };
    let mut out: Vec<String> = fitting.map(|(_, v)| name(v)).collect();
    if !cfg!(windows) {
        out.push(format!("lib{stem}.so"));
    }
    out
}

/// Opens the first library that `accept` takes, by each name first in the loader's path, then in the folders.
///
/// The error lists the names, and of files that were there why they did not serve.
pub(super) fn find<T>(
    stem: &str,
    companion: &str,
    major: u32,
    folders: &[PathBuf],
    accept: impl Fn(&'static Dl, &str) -> Result<T, String>,
) -> Result<T, String> {
    let names = names(stem, major);
    let mut refused = Vec::new();
    for name in &names {
        let bare = std::iter::once(PathBuf::from(name));
        for path in bare.chain(folders.iter().map(|f| f.join(name)).filter(|p| p.exists())) {
            let by_name = path.parent().is_none_or(|p| p.as_os_str().is_empty());
            // A library opened by its full path may not find its sisters beside it; opened before, they count as found.
            if let Some(folder) = path.parent().filter(|_| !by_name) {
                for sister in entries(folder, companion) {
                    // SAFETY: NVIDIA's own library; its initialisers may run in any process. Failing is no harm.
                    if let Ok(dl) = unsafe { Dl::new(&sister) } {
                        Box::leak(Box::new(dl));
                    }
                }
            }
            // SAFETY: as above: the names searched are those of NVIDIA's libraries only.
            match unsafe { Dl::new(&path) } {
                Ok(dl) => match accept(Box::leak(Box::new(dl)), &path.display().to_string()) {
                    Ok(found) => return Ok(found),
                    Err(why) => refused.push(format!("{}: {why}", path.display())),
                },
                Err(_) if by_name => {}
                Err(e) => refused.push(format!("{}: {e}", path.display())),
            }
        }
    }
    let mut text = format!(
        "no usable {stem} library (tried {} in the loader's path and in {} folders of CUDA toolkits and Python wheels)",
        names.join(", "),
        folders.len()
    );
    if !refused.is_empty() {
        text.push_str(&format!("; {}", refused.join("; ")));
    }
    Err(text)
}

/// A function of the library by name.
///
/// # Safety
/// `F` must be the type of a pointer to that function as NVIDIA's header declares it.
pub(super) unsafe fn symbol<F: Copy>(dl: &'static Dl, name: &str) -> Result<F, String> {
    // SAFETY: the caller vouches for the type.
    unsafe { dl.get::<F>(name) }.map(|s| *s).map_err(|_| format!("lacks {name}"))
}

type NvrtcProgram = *mut c_void;
type GetSize = unsafe extern "C" fn(NvrtcProgram, *mut usize) -> c_int;
type GetBytes = unsafe extern "C" fn(NvrtcProgram, *mut c_char) -> c_int;
type NvrtcCreate = unsafe extern "C" fn(
    *mut NvrtcProgram,
    *const c_char,
    *const c_char,
    c_int,
    *const *const c_char,
    *const *const c_char,
) -> c_int;

/// NVIDIA's run-time compiler.
pub struct Nvrtc {
    /// Where it was found.
    pub path: String,
    /// Its version, e.g. (12, 9).
    pub version: (u32, u32),
    /// Chips it compiles for, as 90 for sm_90; empty if it cannot tell (before 11.2).
    pub archs: Vec<u32>,
    create: NvrtcCreate,
    compile: unsafe extern "C" fn(NvrtcProgram, c_int, *const *const c_char) -> c_int,
    destroy: unsafe extern "C" fn(*mut NvrtcProgram) -> c_int,
    error: unsafe extern "C" fn(c_int) -> *const c_char,
    log: (GetSize, GetBytes),
    cubin: (GetSize, GetBytes),
    ptx: (GetSize, GetBytes),
    /// Releases before 12.3 share state between compilations (NVRTC's page "Thread safety").
    one: Mutex<()>,
}

impl std::fmt::Debug for Nvrtc {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Nvrtc({}.{} at {})", self.version.0, self.version.1, self.path)
    }
}

/// What a text is compiled to; the numbers are as in sm_90.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// Machine code of one chip.
    Cubin(u32),
    /// The intermediate language, which the driver compiles; for chips newer than the compiler.
    Ptx(u32),
}

impl Target {
    /// The best that a compiler for `archs` can do for a chip; the error says why it can do nothing.
    pub fn choose(chip: u32, archs: &[u32]) -> Result<Target, String> {
        if archs.is_empty() || archs.contains(&chip) {
            return Ok(Target::Cubin(chip));
        }
        match archs.iter().filter(|a| **a < chip).max() {
            Some(below) => Ok(Target::Ptx(*below)),
            None => {
                Err(format!("it compiles for sm_{} and later, not for sm_{chip}", archs.iter().min().unwrap_or(&0)))
            }
        }
    }
}

/// A compiled text.
#[derive(Clone, Debug)]
pub struct Image {
    /// A cubin, or PTX ending in NUL.
    pub bytes: Vec<u8>,
    /// Remarks of the compiler.
    pub log: String,
}

impl Nvrtc {
    /// Finds the newest NVRTC that is not newer than CUDA `major`. The error says what was tried.
    pub fn find(major: u32, folders: &[PathBuf]) -> Result<Nvrtc, String> {
        find("nvrtc", "libnvrtc-builtins.so", major, folders, |dl, path| Nvrtc::open(dl, path, major))
    }

    fn open(dl: &'static Dl, path: &str, major: u32) -> Result<Nvrtc, String> {
        type Version = unsafe extern "C" fn(*mut c_int, *mut c_int) -> c_int;
        type Count = unsafe extern "C" fn(*mut c_int) -> c_int;
        // SAFETY: nvrtc.h declares `nvrtcResult nvrtcVersion(int *major, int *minor)`; the enum is an int.
        let version: Version = unsafe { symbol(dl, "nvrtcVersion") }?;
        let (mut a, mut b) = (0, 0);
        // SAFETY: both point to ints that live through the call.
        if unsafe { version(&raw mut a, &raw mut b) } != 0 {
            return Err("nvrtcVersion failed".into());
        }
        let version = (a.max(0) as u32, b.max(0) as u32);
        if version.0 > major {
            return Err(format!("NVRTC {}.{} is newer than the driver's CUDA {major}", version.0, version.1));
        }
        // SAFETY: `nvrtcResult nvrtcGetNumSupportedArchs(int *numArchs)` and `nvrtcGetSupportedArchs(int *archs)`.
        let counts: [Result<Count, String>; 2] =
            unsafe { [symbol(dl, "nvrtcGetNumSupportedArchs"), symbol(dl, "nvrtcGetSupportedArchs")] };
        let mut archs: Vec<c_int> = Vec::new();
        if let [Ok(count), Ok(list)] = counts {
            let mut n = 0;
            // SAFETY: `n` is an int that lives through the call.
            if unsafe { count(&raw mut n) } == 0 && (1..=1000).contains(&n) {
                archs.resize(n as usize, 0);
                // SAFETY: the array holds as many ints as the library said that it writes.
                if unsafe { list(archs.as_mut_ptr()) } != 0 {
                    archs.clear();
                }
            }
        }
        let pair = |size: &str, bytes: &str| -> Result<(GetSize, GetBytes), String> {
            // SAFETY: nvrtc.h declares all pairs as (nvrtcProgram, size_t *) and (nvrtcProgram, char *).
            unsafe { Ok((symbol(dl, size)?, symbol(dl, bytes)?)) }
        };
        Ok(Nvrtc {
            path: path.to_string(),
            version,
            archs: archs.into_iter().map(|a| a as u32).collect(),
            // SAFETY: nvrtcResult nvrtcCreateProgram(nvrtcProgram *, const char *src, const char *name, int,
            // const char *const *headers, const char *const *includeNames).
            create: unsafe { symbol(dl, "nvrtcCreateProgram") }?,
            // SAFETY: nvrtcResult nvrtcCompileProgram(nvrtcProgram, int numOptions, const char *const *options).
            compile: unsafe { symbol(dl, "nvrtcCompileProgram") }?,
            // SAFETY: nvrtcResult nvrtcDestroyProgram(nvrtcProgram *).
            destroy: unsafe { symbol(dl, "nvrtcDestroyProgram") }?,
            // SAFETY: const char *nvrtcGetErrorString(nvrtcResult).
            error: unsafe { symbol(dl, "nvrtcGetErrorString") }?,
            log: pair("nvrtcGetProgramLogSize", "nvrtcGetProgramLog")?,
            cubin: pair("nvrtcGetCUBINSize", "nvrtcGetCUBIN")?,
            ptx: pair("nvrtcGetPTXSize", "nvrtcGetPTX")?,
            one: Mutex::new(()),
        })
    }

    /// Compiles a text. Errors: `CompileFailed` with the compiler's log.
    pub fn compile(&self, text: &str, name: &str, target: Target) -> Result<Image> {
        let fail = |why: String| Error::new(Code::CompileFailed, why);
        let c = |s: &str| CString::new(s).map_err(|_| fail("the text holds a NUL byte".into()));
        let (source, file) = (c(text)?, c(&format!("{name}.cu"))?);
        let option = match target {
            Target::Cubin(chip) => c(&format!("--gpu-architecture=sm_{chip}"))?,
            Target::Ptx(chip) => c(&format!("--gpu-architecture=compute_{chip}"))?,
        };
        let _one = (self.version < (12, 3)).then(|| self.one.lock().unwrap_or_else(PoisonError::into_inner));
        let mut raw: NvrtcProgram = ptr::null_mut();
        // SAFETY: both strings end in NUL and live through the call; no headers are given, so their arrays may be null.
        let rc = unsafe { (self.create)(&raw mut raw, source.as_ptr(), file.as_ptr(), 0, ptr::null(), ptr::null()) };
        if rc != 0 {
            return Err(self.failed("nvrtcCreateProgram", rc));
        }
        let program = Compilation { nvrtc: self, raw };
        let options = [option.as_ptr()];
        // SAFETY: the program is alive; the array holds as many strings as the count says and lives through the call.
        let rc = unsafe { (self.compile)(program.raw, options.len() as c_int, options.as_ptr()) };
        let log = program.take(self.log).map(text_of).unwrap_or_default();
        if rc != 0 {
            let option = option.to_string_lossy();
            return Err(self.failed(&format!("{name} ({option})"), rc).log(log.trim_end()));
        }
        let bytes = program.take(if matches!(target, Target::Cubin(_)) { self.cubin } else { self.ptx })?;
        Ok(Image { bytes, log: log.trim().to_string() })
    }

    /// A failed call as an error, in the library's own words.
    fn failed(&self, what: &str, rc: c_int) -> Error {
        let code = Api::Nvrtc.code(rc, Code::CompileFailed);
        Error::new(code, format!("{what}: {}", self.name(rc))).status(Api::Nvrtc.status(rc))
    }

    fn name(&self, code: c_int) -> String {
        // SAFETY: the function gives a static string for every number.
        let text = unsafe { (self.error)(code) };
        if text.is_null() {
            return format!("NVRTC error {code}");
        }
        // SAFETY: not null, static and ending in NUL.
        unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
    }
}

/// One use of the compiler; released when dropped.
struct Compilation<'n> {
    nvrtc: &'n Nvrtc,
    raw: NvrtcProgram,
}

impl Compilation<'_> {
    fn take(&self, (size, bytes): (GetSize, GetBytes)) -> Result<Vec<u8>> {
        let mut n = 0usize;
        // SAFETY: the program is alive and `n` lives through the call.
        let rc = unsafe { size(self.raw, &raw mut n) };
        let mut out = vec![0u8; n];
        // SAFETY: the buffer has the size that the library just gave for it.
        let rc = if rc != 0 { rc } else { unsafe { bytes(self.raw, out.as_mut_ptr().cast()) } };
        if rc != 0 || n == 0 {
            return Err(match rc {
                0 => Error::new(Code::CompileFailed, "NVRTC gives an empty result"),
                rc => self.nvrtc.failed("NVRTC gives no result", rc),
            });
        }
        Ok(out)
    }
}

impl Drop for Compilation<'_> {
    fn drop(&mut self) {
        // SAFETY: the program was made by this library and is released once. Its only failure is an invalid handle.
        unsafe { (self.nvrtc.destroy)(&raw mut self.raw) };
    }
}

fn text_of(mut bytes: Vec<u8>) -> String {
    bytes.retain(|b| *b != 0);
    String::from_utf8_lossy(&bytes).into_owned()
}
