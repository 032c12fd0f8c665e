//! The environment variables gpuctl reads: this list and no other. Read once, passed on as a value.

use super::blas::CpuBlas;
use super::error::{Code, Error};

/// Values of the `GPUCTL_*` variables; unset and empty are the same.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Env {
    /// `GPUCTL_PROFILE`: a profile file, or `preset:NAME`.
    pub profile: Option<String>,
    /// `GPUCTL_DISABLE_GPU=1`: no GPU is probed, listed as usable, or run on any path.
    pub disable_gpu: bool,
    /// `GPUCTL_CPU_ISA`: caps the CPU kernels' instruction set: `baseline`, `avx2`, `avx512`.
    pub cpu_isa: Option<String>,
    /// `GPUCTL_DEBUG_KERNELS=1`: `verify` runs C kernels that check their own accesses.
    pub debug_kernels: bool,
    /// `GPUCTL_RECORD`: file that engines record their calls in, for `calibrate --workload`; `%p` is the process's number.
    pub record: Option<std::path::PathBuf>,
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
            Some(other) => Err(Error::new(Code::BadArgument, format!("{name}='{other}': expected 1 or 0"))),
        };
        let dir = |xdg: &str, below: &str| {
            let base = var(xdg)
                .map(std::path::PathBuf::from)
                .filter(|p| p.is_absolute())
                .or_else(|| var("HOME").map(|h| std::path::Path::new(&h).join(below)));
            base.map(|b| b.join("gpuctl"))
        };
        Ok(Env {
            cpu_blas: CpuBlas::Own,
            process: 0,
            profile: var("GPUCTL_PROFILE"),
            disable_gpu: flag("GPUCTL_DISABLE_GPU")?,
            cpu_isa: var("GPUCTL_CPU_ISA"),
            debug_kernels: flag("GPUCTL_DEBUG_KERNELS")?,
            record: var("GPUCTL_RECORD").map(Into::into),
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
        let bad = Env::from_lookup(|n| (n == "GPUCTL_DISABLE_GPU").then(|| "maybe".into()));
        assert!(bad.unwrap_err().to_string().contains("maybe"));
    }
}
