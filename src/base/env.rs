//! The environment variables gpuctl reads: this list and no other. Read once, passed on as a value.

use super::blas::CpuBlas;
use super::device_info::{Absence, Backend};
use super::error::{Code, Error};

/// Values of the `GPUCTL_*` variables; unset and empty are the same.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Env {
    /// `GPUCTL_PROFILE`: a profile file, or `preset:NAME`.
    pub profile: Option<String>,
    /// `GPUCTL_DISABLE_GPU=1`: no GPU is probed, listed as usable, or run on any path.
    pub disable_gpu: bool,
    /// `GPUCTL_DISABLE_GPU=cuda,wgpu`: none of these APIs is.
    pub without: Vec<Backend>,
    /// No variable: drivers that are not to be loaded, and why, as others have found out before this process loads any.
    pub left_out: Vec<Absence>,
    /// `GPUCTL_CPU_ISA`: caps the CPU kernels' instruction set: `baseline`, `avx2`, `avx512`.
    pub cpu_isa: Option<String>,
    /// `GPUCTL_DEBUG_KERNELS=1`: `verify` runs C kernels that check their own accesses.
    pub debug_kernels: bool,
    /// `GPUCTL_RECORD`: file that engines record their calls in, for `calibrate --workload`; `%p` is the process's number.
    pub record: Option<std::path::PathBuf>,
    /// `GPUCTL_AWAKE=1` or `0`: processors are kept from falling idle while something is timed, or are not; unset: as they
    /// were for what a run is held against, else not.
    pub awake: Option<bool>,
    /// No variable: `--cpu-blas`, whose routines the CPU's products are.
    pub cpu_blas: CpuBlas,
    /// No variable: number of this process among those that measure the same; simulated machines differ by it.
    pub process: u64,
    /// `GPUCTL_REQUIRE`: backends that must be there, comma separated; a missing one is an error.
    pub require: Vec<String>,
    /// `GPUCTL_CACHE`, else `$XDG_CACHE_HOME/gpuctl`, or its usual default below the home folder; none for
    /// `GPUCTL_CACHE=off`.
    pub cache_dir: Option<std::path::PathBuf>,
    /// `$XDG_CONFIG_HOME/gpuctl`, or its usual default below the home folder.
    pub config_dir: Option<std::path::PathBuf>,
    /// `$XDG_STATE_HOME/gpuctl`, or its usual default below the home folder.
    pub state_dir: Option<std::path::PathBuf>,
}

impl Env {
    /// Reads the process's environment.
    pub fn read() -> Result<Self, Error> {
        Self::from_lookup(|name| std::env::var(name).ok())
    }

    /// The same from any source of variables; used by tests.
    pub fn from_lookup(get: impl Fn(&str) -> Option<String>) -> Result<Self, Error> {
        let var = |name: &str| get(name).filter(|v| !v.is_empty());
        let flag = |name: &str| match var(name).as_deref() {
            None | Some("0" | "false" | "no" | "off") => Ok(false),
            Some("1" | "true" | "yes" | "on") => Ok(true),
            Some(other) => {
                let more = if name == "GPUCTL_DISABLE_GPU" { ", or of cuda opencl wgpu" } else { "" };
                Err(Error::new(Code::BadArgument, format!("{name}='{other}': expected 1 or 0{more}")))
            }
        };
        let dir = |xdg: &str, below: &str| {
            let base = var(xdg)
                .map(std::path::PathBuf::from)
                .filter(|p| p.is_absolute())
                .or_else(|| var("HOME").map(|h| std::path::Path::new(&h).join(below)));
            base.map(|b| b.join("gpuctl"))
        };
        let without = var("GPUCTL_DISABLE_GPU").and_then(|v| v.split(',').map(api).collect::<Option<Vec<_>>>());
        Ok(Env {
            cpu_blas: CpuBlas::Own,
            process: 0,
            profile: var("GPUCTL_PROFILE"),
            disable_gpu: without.is_none() && flag("GPUCTL_DISABLE_GPU")?,
            without: without.unwrap_or_default(),
            left_out: Vec::new(),
            cpu_isa: var("GPUCTL_CPU_ISA"),
            debug_kernels: flag("GPUCTL_DEBUG_KERNELS")?,
            record: var("GPUCTL_RECORD").map(Into::into),
            awake: var("GPUCTL_AWAKE").map(|_| flag("GPUCTL_AWAKE")).transpose()?,
            require: var("GPUCTL_REQUIRE")
                .map(|v| v.split(',').map(|s| s.trim().to_string()).filter(|s| !s.is_empty()).collect())
                .unwrap_or_default(),
            cache_dir: match var("GPUCTL_CACHE") {
                Some(off) if off == "off" => None,
                given => given.map(Into::into).or_else(|| dir("XDG_CACHE_HOME", ".cache")),
            },
            config_dir: dir("XDG_CONFIG_HOME", ".config"),
            state_dir: dir("XDG_STATE_HOME", ".local/state"),
        })
    }
}

/// An API by its name in `GPUCTL_DISABLE_GPU`.
fn api(name: &str) -> Option<Backend> {
    let apis = [Backend::Cuda, Backend::Opencl, Backend::Wgpu];
    apis.into_iter().find(|b| b.name() == name.trim())
}

/// Beginnings of the names of variables that drivers and their loaders read.
const OF_DRIVERS: [&str; 17] = [
    "CL_", "CUDA_", "GALLIUM_", "GPU_", "HIP_", "HSA_", "LD_", "LIBGL_", "LP_", "LVP_", "MESA_", "NVIDIA_", "OCL_",
    "OPENCL_", "POCL_", "VK_", "ZE_",
];

/// Variables by which drivers and loaders may behave otherwise, sorted: compared, never read as settings.
pub fn of_drivers() -> Vec<String> {
    let text = |(name, value): (std::ffi::OsString, std::ffi::OsString)| {
        format!("{}={}", name.to_string_lossy(), value.to_string_lossy())
    };
    let mut all: Vec<String> =
        std::env::vars_os().map(text).filter(|v| OF_DRIVERS.iter().any(|start| v.starts_with(start))).collect();
    all.sort_unstable();
    all
}

/// Where other tools say that they are installed, and where the loaders of OpenCL and Vulkan are told to look for drivers; looked
/// up to find vendor libraries, never as settings of gpuctl.
pub const OTHER_TOOLS: [&str; 16] = [
    "CUDA_PATH",
    "CUDA_HOME",
    "VIRTUAL_ENV",
    "CONDA_PREFIX",
    "PATH",
    "HOME",
    "OCL_ICD_VENDORS",
    "OPENCL_VENDOR_PATH",
    "OCL_ICD_FILENAMES",
    "VK_DRIVER_FILES",
    "VK_ICD_FILENAMES",
    "VK_ADD_DRIVER_FILES",
    "XDG_CONFIG_HOME",
    "XDG_CONFIG_DIRS",
    "XDG_DATA_HOME",
    "XDG_DATA_DIRS",
];

/// By what drivers and loaders are told to hide devices, or to show others: told in `devices --why`, never settings of gpuctl.
pub const HIDING: [&str; 17] = [
    "CUDA_VISIBLE_DEVICES",
    "CUDA_DEVICE_ORDER",
    "NVIDIA_VISIBLE_DEVICES",
    "NVIDIA_DRIVER_CAPABILITIES",
    "HIP_VISIBLE_DEVICES",
    "ROCR_VISIBLE_DEVICES",
    "GPU_DEVICE_ORDINAL",
    "ZE_AFFINITY_MASK",
    "POCL_DEVICES",
    "RUSTICL_ENABLE",
    "OCL_ICD_VENDORS",
    "OPENCL_VENDOR_PATH",
    "OCL_ICD_FILENAMES",
    "VK_DRIVER_FILES",
    "VK_ICD_FILENAMES",
    "VK_LOADER_DRIVERS_SELECT",
    "MESA_VK_DEVICE_SELECT",
];

/// Those of [`HIDING`] that are set, with their values; an empty one may hide everything.
pub fn hiding() -> Vec<(String, String)> {
    let set = |name: &&str| Some(((*name).to_string(), std::env::var(name).ok()?));
    HIDING.iter().filter_map(set).collect()
}

/// A variable of [`OTHER_TOOLS`]; anything else is not looked up.
pub fn of_other_tools(name: &str) -> Option<String> {
    if !OTHER_TOOLS.contains(&name) {
        return None;
    }
    std::env::var(name).ok().filter(|v| !v.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_are_strict_and_dirs_follow_xdg() {
        let env = Env::from_lookup(|n| match n {
            "GPUCTL_DISABLE_GPU" => Some("1".into()),
            "HOME" => Some("/home/u".into()),
            "GPUCTL_RECORD" => Some("calls-%p.jsonl".into()),
            "GPUCTL_CACHE" => Some("/fast/cache".into()),
            "XDG_STATE_HOME" => Some("relative/is/ignored".into()),
            _ => None,
        })
        .unwrap();
        assert!(env.disable_gpu);
        assert_eq!(env.record.unwrap(), std::path::Path::new("calls-%p.jsonl"));
        assert_eq!(env.cache_dir.unwrap(), std::path::Path::new("/fast/cache"));
        let plain = Env::from_lookup(|n| (n == "HOME").then(|| "/home/u".into())).unwrap();
        assert_eq!(plain.cache_dir.unwrap(), std::path::Path::new("/home/u/.cache/gpuctl"));
        assert_eq!(env.config_dir.unwrap(), std::path::Path::new("/home/u/.config/gpuctl"));
        assert_eq!(env.state_dir.unwrap(), std::path::Path::new("/home/u/.local/state/gpuctl"));
        let off =
            |n: &str| (n == "GPUCTL_CACHE").then(|| "off".into()).or_else(|| (n == "HOME").then(|| "/home/u".into()));
        assert_eq!(Env::from_lookup(off).unwrap().cache_dir, None, "off keeps nothing, wherever the home folder is");
        let awake = |text: &'static str| Env::from_lookup(|n| (n == "GPUCTL_AWAKE").then(|| text.into()));
        assert_eq!(["", "0", "1"].map(|text| awake(text).unwrap().awake), [None, Some(false), Some(true)]);
        assert!(awake("always").unwrap_err().to_string().contains("GPUCTL_AWAKE='always'"));
        for text in ["maybe", "cuda,maybe", "sim", "cuda,"] {
            let bad = Env::from_lookup(|n| (n == "GPUCTL_DISABLE_GPU").then(|| text.into()));
            assert!(bad.unwrap_err().to_string().contains(text));
        }
        let some = Env::from_lookup(|n| (n == "GPUCTL_DISABLE_GPU").then(|| "cuda, wgpu".into())).unwrap();
        assert_eq!((some.disable_gpu, some.without), (false, vec![Backend::Cuda, Backend::Wgpu]));
    }
}
