//! A BLAS opened at run time: found, asked what it is, checked, told its threads.
//!
//! Nothing here is linked; a program without `--cpu-blas` opens nothing. A library stays open as long as the process lives, and is
//! opened once, whatever number of devices use it: its number of threads is set for all of them together, so a device with another
//! number sets it anew before its call, when no other call is under way.

mod check;
mod symbols;

use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use libloading::Library;

use crate::base::blas::{BlasInfo, CpuBlas, weakness};
use crate::base::{Code, Error, Result};
use crate::kernel::Isa;
use crate::kernel::cpu::blas::{Gemm, Gemv, Routines};

use symbols::{Calls, Naming, Threads};

/// Where `auto` looks, in this order: OpenBLAS, MKL, BLIS; on macOS Accelerate before them.
#[cfg(target_os = "macos")]
const KNOWN: &[&str] = &[
    "/System/Library/Frameworks/Accelerate.framework/Accelerate",
    "libopenblas.dylib",
    "libmkl_rt.dylib",
    "libblis.dylib",
];
#[cfg(windows)]
const KNOWN: &[&str] = &["libopenblas.dll", "openblas.dll", "mkl_rt.3.dll", "mkl_rt.2.dll", "libblis.dll"];
#[cfg(not(any(target_os = "macos", windows)))]
const KNOWN: &[&str] = &[
    "libopenblas.so.0",
    "libopenblas.so",
    "libmkl_rt.so.3",
    "libmkl_rt.so.2",
    "libmkl_rt.so.1",
    "libmkl_rt.so",
    "libblis.so.4",
    "libblis.so",
];

/// A library that passed its check.
struct Opened {
    name: String,
    version: String,
    core: String,
    path: PathBuf,
    bits: u32,
    calls: Calls,
    threads: Threads,
    /// Built without threads and without locks: one call at a time.
    alone: bool,
    /// What it was told last. Held for reading during calls, for writing to tell it another number.
    told: RwLock<u32>,
}

/// A library for a device with so many threads.
pub(super) struct Blas {
    library: &'static Opened,
    threads: u32,
}

/// A library as it was asked for, and what is to be said of it.
pub(super) struct Found {
    /// For calls.
    pub(super) blas: Blas,
    /// What it is.
    pub(super) info: BlasInfo,
    /// Remarks: what `auto` passed over.
    pub(super) notes: Vec<String>,
}

/// Opens what is asked for, if anything is.
///
/// Errors: `LibraryNotFound` for what cannot be opened, `BadArgument` for what is no BLAS or none that can be called,
/// `ResultWrong` for one that computes wrong.
pub(super) fn open(asked: &CpuBlas, threads: usize) -> Result<Option<Found>> {
    let threads = u32::try_from(threads).unwrap_or(u32::MAX);
    let named = |path: &Path, e: Error| {
        let why = format!("--cpu-blas {}: {}", path.display(), e.detail());
        Error::new(e.code(), why)
    };
    match asked {
        CpuBlas::Own => Ok(None),
        CpuBlas::Path(path) => {
            let found = opened(path).and_then(|library| library.for_device(threads, Vec::new()));
            found.map(Some).map_err(|e| named(path, e))
        }
        CpuBlas::Auto => first(KNOWN, threads).map(Some),
    }
}

/// The first of these that can be used. What opens and cannot be used is said.
fn first(known: &[&str], threads: u32) -> Result<Found> {
    let mut notes = Vec::new();
    for name in known {
        match opened(Path::new(name)).and_then(|library| library.for_device(threads, notes.clone())) {
            Ok(found) => return Ok(found),
            Err(e) if e.code() == Code::LibraryNotFound => {}
            Err(e) => notes.push(format!("--cpu-blas auto passed over {name}: {}", e.detail())),
        }
    }
    let passed = if notes.is_empty() { String::new() } else { format!("; {}", notes.join("; ")) };
    let why =
        format!("--cpu-blas auto: none of {} can be used; a library's file can be named{passed}", known.join(" "));
    Err(Error::new(Code::LibraryNotFound, why))
}

/// The library of that name or file; each is opened once.
fn opened(path: &Path) -> Result<&'static Opened> {
    static ALL: Mutex<Vec<&'static Opened>> = Mutex::new(Vec::new());
    let mut all = ALL.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(known) = all.iter().find(|o| o.path == path) {
        return Ok(known);
    }
    let new: &'static Opened = Box::leak(Box::new(Opened::new(path)?));
    all.push(new);
    Ok(new)
}

/// A file of this folder is meant, not one that the loader would look for elsewhere.
fn file(path: &Path) -> PathBuf {
    let plain = path.components().count() == 1 && !path.has_root();
    if plain && path.exists() { Path::new(".").join(path) } else { path.to_path_buf() }
}

impl Opened {
    fn new(path: &Path) -> Result<Self> {
        let file = file(path);
        let library = symbols::open(&file).map_err(|why| Error::new(Code::LibraryNotFound, why))?;
        let naming = symbols::naming(library).ok_or_else(|| {
            Error::new(Code::BadArgument, "it is no BLAS with C's interface: it has no cblas_sgemm and cblas_dgemm")
        })?;
        let said = Said::of(library, naming, &file)?;
        let (calls, bits) = Calls::of(library, naming)?;
        let new = Opened {
            name: said.name,
            version: said.version,
            core: said.core,
            path: path.to_path_buf(),
            bits,
            calls,
            threads: said.threads,
            alone: said.alone,
            told: RwLock::new(0),
        };
        Ok(new)
    }

    /// Tells it the number of threads and sees whether it computes right with them.
    fn for_device(&'static self, threads: u32, notes: Vec<String>) -> Result<Found> {
        let blas = Blas { library: self, threads };
        check::check(&blas).map_err(|why| Error::new(Code::ResultWrong, why))?;
        let uses = self.threads.ask();
        let info = BlasInfo {
            name: self.name.clone(),
            version: self.version.clone(),
            core: self.core.clone(),
            threads: uses,
            int_bits: self.bits,
            path: self.path.display().to_string(),
            weak: weakness(&self.core, Isa::detect().name(), threads, uses),
        };
        Ok(Found { blas, info, notes })
    }
}

/// What a library says of itself.
struct Said {
    name: String,
    version: String,
    core: String,
    threads: Threads,
    alone: bool,
}

impl Said {
    fn of(library: &'static Library, naming: Naming, file: &Path) -> Result<Self> {
        let config = symbols::word(library, &naming.of("openblas_get_config"));
        let core = symbols::word(library, &naming.of("openblas_get_corename"));
        if !config.is_empty() || !core.is_empty() {
            let threads =
                Threads::ints(library, &naming.of("openblas_set_num_threads"), &naming.of("openblas_get_num_threads"));
            // 0: built without threads.
            let parallel = symbols::count(library, &naming.of("openblas_get_parallel"));
            let version = version_in(&config);
            return Ok(Said { name: "OpenBLAS".into(), version, core, threads, alone: parallel == Some(0) });
        }
        if symbols::has(library, "MKL_Get_Version") {
            return mkl(library, file);
        }
        let version = symbols::word(library, "bli_info_get_version_str");
        if !version.is_empty() {
            let threads = Threads::longs(library, "bli_thread_set_num_threads", "bli_thread_get_num_threads");
            let core = symbols::blis_core(library);
            return Ok(Said { name: "BLIS".into(), version, core, threads, alone: false });
        }
        let name = if symbols::has(library, "appleblas_sgeadd") {
            "Accelerate".into()
        } else {
            file.file_name().map_or_else(|| file.display().to_string(), |n| n.to_string_lossy().into_owned())
        };
        Ok(Said { name, version: String::new(), core: String::new(), threads: Threads::NONE, alone: false })
    }
}

/// `OpenBLAS 0.3.21 NO_LAPACKE DYNAMIC_ARCH ..`
fn version_in(config: &str) -> String {
    let mut words = config.split_whitespace();
    words.find(|w| *w == "OpenBLAS").and_then(|_| words.next()).unwrap_or_default().to_string()
}

/// MKL's library that chooses the others. Its parts must be beside it: it ends the process if one is missing.
fn mkl(library: &'static Library, file: &Path) -> Result<Said> {
    const INTEGERS_OF_32_BITS: i32 = 0;
    const GNU: i32 = 3;
    const SEQUENTIAL: i32 = 1;
    let bad = |why: &str| Err(Error::new(Code::BadArgument, why));
    if !symbols::has(library, "MKL_Set_Interface_Layer") {
        return bad("it is a part of MKL; name libmkl_rt, which chooses the parts");
    }
    for part in ["mkl_core", "mkl_intel_lp64"] {
        if !is_beside(file, part) {
            return bad(&format!("MKL's {part} is not beside it, without which it ends the process"));
        }
    }
    // What computes with the compiler's usual OpenMP; Intel's own waits for work for 0.2 s after each call.
    if cfg!(target_os = "linux") {
        let gnu = is_beside(file, "mkl_gnu_thread") && symbols::open(Path::new("libgomp.so.1")).is_ok();
        if !gnu && !is_beside(file, "mkl_sequential") {
            return bad("MKL's mkl_gnu_thread (with libgomp.so.1) and mkl_sequential are both missing");
        }
        let layer = if gnu { GNU } else { SEQUENTIAL };
        if symbols::choose(library, "MKL_Set_Threading_Layer", layer) != Some(layer) {
            return bad("MKL keeps to another threading layer; unset MKL_THREADING_LAYER");
        }
    }
    let integers = symbols::choose(library, "MKL_Set_Interface_Layer", INTEGERS_OF_32_BITS);
    if integers.is_none_or(|layer| layer & 1 != 0) {
        return bad("MKL keeps to integers of 64 bits; unset MKL_INTERFACE_LAYER");
    }
    symbols::choose(library, "MKL_Set_Dynamic", 0);
    let (version, processor) = symbols::mkl_version(library);
    let threads = Threads::ints(library, "MKL_Set_Num_Threads", "MKL_Get_Max_Threads");
    Ok(Said { name: "MKL".into(), version, core: mkl_core(&processor), threads, alone: false })
}

/// True if another part of MKL lies where this one does: a file of the same folder, or one that the loader finds.
fn is_beside(file: &Path, part: &str) -> bool {
    let Some(name) = file.file_name().and_then(|n| n.to_str()) else { return false };
    let other = name.replacen("mkl_rt", part, 1);
    if other == name {
        // A link of another name: the loader knows where it leads, we do not.
        return true;
    }
    match file.parent().filter(|p| !p.as_os_str().is_empty()) {
        Some(folder) => folder.join(other).exists(),
        None => symbols::open(Path::new(&other)).is_ok(),
    }
}

/// The instruction set in `Intel(R) Advanced Vector Extensions 512 (Intel(R) AVX-512) enabled processors`.
fn mkl_core(processor: &str) -> String {
    const WORDS: [(&str, &str); 6] = [
        ("Extensions 512", "AVX-512"),
        ("AVX-512", "AVX-512"),
        ("Extensions 10", "AVX10"),
        ("Extensions 2", "AVX2"),
        ("Advanced Vector Extensions", "AVX"),
        ("Extensions 4.2", "SSE4.2"),
    ];
    let known = WORDS.iter().find(|(word, _)| processor.contains(word));
    known.map_or_else(|| processor.to_string(), |(_, name)| (*name).to_string())
}

/// A call that is under way.
#[expect(dead_code, reason = "held, and dropped when the call is over")]
enum Call<'a> {
    Beside(RwLockReadGuard<'a, u32>),
    Alone(RwLockWriteGuard<'a, u32>),
}

impl Blas {
    /// Begins a call: with the device's number of threads, and alone where the library needs it.
    fn enter(&self) -> Call<'static> {
        let lib = self.library;
        loop {
            if !lib.alone {
                let told = lib.told.read().unwrap_or_else(PoisonError::into_inner);
                if *told == self.threads {
                    return Call::Beside(told);
                }
            }
            let mut told = lib.told.write().unwrap_or_else(PoisonError::into_inner);
            if *told != self.threads {
                lib.threads.tell(self.threads);
                *told = self.threads;
            }
            if lib.alone {
                return Call::Alone(told);
            }
        }
    }
}

/// The functions of a type, whatever the library's integers.
macro_rules! routines {
    ($t:ty, $set:tt) => {
        impl Routines<$t> for Blas {
            fn gemm(&self, p: Gemm<'_, $t>) -> Result<()> {
                let _call = self.enter();
                match &self.library.calls {
                    Calls::Narrow(f32s, f64s) => (f32s, f64s).$set.gemm(p),
                    Calls::Wide(f32s, f64s) => (f32s, f64s).$set.gemm(p),
                }
            }
            fn gemv(&self, p: Gemv<'_, $t>) -> Result<()> {
                let _call = self.enter();
                match &self.library.calls {
                    Calls::Narrow(f32s, f64s) => (f32s, f64s).$set.gemv(p),
                    Calls::Wide(f32s, f64s) => (f32s, f64s).$set.gemv(p),
                }
            }
            fn dot(&self, a: &[$t], b: &[$t]) -> Result<$t> {
                let _call = self.enter();
                match &self.library.calls {
                    Calls::Narrow(f32s, f64s) => (f32s, f64s).$set.dot(a, b),
                    Calls::Wide(f32s, f64s) => (f32s, f64s).$set.dot(a, b),
                }
            }
            fn nrm2(&self, x: &[$t]) -> Result<$t> {
                let _call = self.enter();
                match &self.library.calls {
                    Calls::Narrow(f32s, f64s) => (f32s, f64s).$set.nrm2(x),
                    Calls::Wide(f32s, f64s) => (f32s, f64s).$set.nrm2(x),
                }
            }
            fn axpy(&self, alpha: $t, x: &[$t], y: &mut [$t]) -> Result<()> {
                let _call = self.enter();
                match &self.library.calls {
                    Calls::Narrow(f32s, f64s) => (f32s, f64s).$set.axpy(alpha, x, y),
                    Calls::Wide(f32s, f64s) => (f32s, f64s).$set.axpy(alpha, x, y),
                }
            }
        }
    };
}
routines!(f32, 0);
routines!(f64, 1);
