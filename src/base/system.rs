//! The host as Linux describes it in `/proc`, `/sys` and its cgroups: what a CPU baseline depends on. Elsewhere nothing is
//! known.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

/// A cache of the first processor.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cache {
    /// 1 is the nearest.
    pub level: u32,
    /// `Data`, `Instruction` or `Unified`.
    pub kind: String,
    /// Size in bytes.
    pub bytes: u64,
    /// Processors that share it.
    pub shared_by: u32,
}

/// What the host is made of and how much of it this process may use.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct System {
    /// Logical processors that are switched on.
    pub processors: Option<u32>,
    /// Processors' worth of time that the cgroup allows.
    pub quota: Option<f64>,
    /// Bytes of memory that the cgroup allows.
    pub memory_limit: Option<u64>,
    /// NUMA nodes.
    pub numa_nodes: Option<u32>,
    /// Caches that the first processor sees.
    pub caches: Vec<Cache>,
    /// How clocks are chosen (`performance`, `powersave`, ..); virtual machines do not tell.
    pub governor: Option<String>,
    /// Whether a hypervisor runs below.
    pub virtualised: Option<bool>,
    /// What contains this process, if it says so: `docker`, `podman`, ..
    pub container: Option<String>,
    /// Instruction sets of the processor that matter to kernels, in the kernel's words: `avx2`, `avx512f`, ..
    pub instruction_sets: Vec<String>,
    /// Variables by which drivers are told to hide devices, with their values.
    pub hiding: Vec<(String, String)>,
}

impl System {
    /// This system.
    pub fn read() -> Self {
        System { hiding: super::env::hiding(), ..Self::at(Path::new("/")) }
    }

    /// A tree that looks like `/`.
    pub fn at(root: &Path) -> Self {
        let cpus = root.join("sys/devices/system/cpu");
        let info = text(&root.join("proc/cpuinfo"));
        let flags = info.as_deref().and_then(|t| t.lines().find(|l| l.starts_with("flags")).map(str::to_string));
        System {
            processors: text(&cpus.join("online")).and_then(|t| counted(&t)),
            quota: quota_at(root),
            memory_limit: memory_limit(root),
            numa_nodes: text(&root.join("sys/devices/system/node/online")).and_then(|t| counted(&t)),
            caches: caches(&cpus.join("cpu0/cache")),
            governor: text(&cpus.join("cpu0/cpufreq/scaling_governor")),
            instruction_sets: sets(info.as_deref().unwrap_or_default()),
            hiding: Vec::new(),
            virtualised: flags.map(|f| f.split_whitespace().any(|w| w == "hypervisor")),
            container: container(root),
        }
    }
}

/// Instruction sets that the CPU's kernels use or could use.
const SETS: [&str; 17] = [
    "sse4_2",
    "avx",
    "f16c",
    "fma",
    "avx2",
    "avx_vnni",
    "avx512f",
    "avx512bw",
    "avx512dq",
    "avx512vl",
    "avx512_vnni",
    "avx512_bf16",
    "avx512_fp16",
    "amx_tile",
    "amx_bf16",
    "amx_int8",
    "asimd",
];

/// Those of [`SETS`] that the first processor has; Arm's are called features.
fn sets(info: &str) -> Vec<String> {
    let line = info.lines().find(|l| l.starts_with("flags") || l.starts_with("Features")).unwrap_or_default();
    let there: Vec<&str> = line.split_whitespace().collect();
    SETS.iter().filter(|s| there.contains(s)).map(|s| (*s).to_string()).collect()
}

fn text(path: &Path) -> Option<String> {
    Some(std::fs::read_to_string(path).ok()?.trim().to_string()).filter(|t| !t.is_empty())
}

/// How many numbers a list of the kernel holds: `0-3,8` are five.
fn counted(list: &str) -> Option<u32> {
    list.split(',').try_fold(0u32, |sum, part| {
        let (from, to) = part.trim().split_once('-').unwrap_or((part.trim(), part.trim()));
        let (from, to): (u32, u32) = (from.parse().ok()?, to.parse().ok()?);
        sum.checked_add(to.checked_sub(from)?.checked_add(1)?)
    })
}

/// Bytes of `512K` or `2M`.
fn size(text: &str) -> Option<u64> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let shift = match &text[digits.len()..] {
        "" => 0,
        "K" => 10,
        "M" => 20,
        "G" => 30,
        _ => return None,
    };
    digits.parse::<u64>().ok()?.checked_mul(1 << shift)
}

fn caches(folder: &Path) -> Vec<Cache> {
    let one = |i: u32| {
        let index = folder.join(format!("index{i}"));
        Some(Cache {
            level: text(&index.join("level"))?.parse().ok()?,
            kind: text(&index.join("type"))?,
            bytes: size(&text(&index.join("size"))?)?,
            shared_by: text(&index.join("shared_cpu_list")).and_then(|t| counted(&t)).unwrap_or(1),
        })
    };
    (0..16).map_while(one).collect()
}

/// This process's folders of a cgroup controller, from its own up to the root's: every one of them limits.
fn groups(root: &Path, controller: &str) -> Vec<PathBuf> {
    let Some(own) = text(&root.join("proc/self/cgroup")) else { return Vec::new() };
    let mut found = Vec::new();
    for line in own.lines() {
        let mut parts = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (parts.next(), parts.next()) else { continue };
        // Version 2 has one tree and names no controller.
        let top = if controllers.is_empty() {
            root.join("sys/fs/cgroup")
        } else if controllers.split(',').any(|c| c == controller) {
            root.join("sys/fs/cgroup").join(controller)
        } else {
            continue;
        };
        let path = Path::new(path.trim_start_matches('/'));
        // In a container the path may be that of the host, which is not visible: then the top is the process's own.
        found.extend(path.ancestors().map(|p| top.join(p)));
    }
    found
}

/// Processors' worth of time that the cgroup allows this process.
pub fn quota() -> Option<f64> {
    quota_at(Path::new("/"))
}

/// The least of the quotas above this process.
fn quota_at(root: &Path) -> Option<f64> {
    let second = |folder: PathBuf| {
        let (quota, period) = match text(&folder.join("cpu.max")) {
            Some(both) => {
                let (quota, period) = both.split_once(' ')?;
                (quota.to_string(), period.to_string())
            }
            None => (text(&folder.join("cpu.cfs_quota_us"))?, text(&folder.join("cpu.cfs_period_us"))?),
        };
        // `max` and -1 stand for no quota.
        let (quota, period): (f64, f64) = (quota.parse().ok()?, period.parse().ok()?);
        (quota > 0.0 && period > 0.0).then_some(quota / period)
    };
    groups(root, "cpu").into_iter().filter_map(second).min_by(f64::total_cmp)
}

/// The least of the limits of memory above this process.
fn memory_limit(root: &Path) -> Option<u64> {
    /// Version 1 writes the largest number of pages where there is no limit.
    const NO_LIMIT: u64 = 1 << 60;
    let limit = |folder: PathBuf| {
        let read = text(&folder.join("memory.max")).or_else(|| text(&folder.join("memory.limit_in_bytes")))?;
        read.parse::<u64>().ok().filter(|b| *b < NO_LIMIT)
    };
    groups(root, "memory").into_iter().filter_map(limit).min()
}

fn container(root: &Path) -> Option<String> {
    if root.join(".dockerenv").exists() {
        return Some("docker".into());
    }
    if root.join("run/.containerenv").exists() {
        return Some("podman".into());
    }
    // systemd's convention for containers of any kind.
    text(&root.join("run/systemd/container"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Synthetic; forms of "cgroup-v2", "CPU bandwidth control" and "sysfs-devices-system-cpu" of the kernel's documentation.
    fn tree(files: &[(&str, &str)]) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let file = folder.path().join(path);
            std::fs::create_dir_all(file.parent().unwrap()).unwrap();
            std::fs::write(file, text).unwrap();
        }
        folder
    }

    #[test]
    fn a_container_of_version_2() {
        let t = tree(&[
            ("proc/self/cgroup", "0::/a/b\n"),
            ("sys/fs/cgroup/a/cpu.max", "150000 100000\n"),
            ("sys/fs/cgroup/a/b/cpu.max", "max 100000\n"),
            ("sys/fs/cgroup/a/b/memory.max", "1073741824\n"),
            ("sys/fs/cgroup/a/memory.max", "max\n"),
            ("sys/devices/system/cpu/online", "0-3,8\n"),
            ("sys/devices/system/node/online", "0-1\n"),
            ("sys/devices/system/cpu/cpu0/cpufreq/scaling_governor", "powersave\n"),
            ("sys/devices/system/cpu/cpu0/cache/index0/level", "1\n"),
            ("sys/devices/system/cpu/cpu0/cache/index0/type", "Data\n"),
            ("sys/devices/system/cpu/cpu0/cache/index0/size", "48K\n"),
            ("sys/devices/system/cpu/cpu0/cache/index0/shared_cpu_list", "0,8\n"),
            ("proc/cpuinfo", "processor : 0\nflags : fpu sse avx512f hypervisor avx2\nflags : fma\n"),
            ("run/.containerenv", ""),
        ]);
        let s = System::at(t.path());
        assert_eq!((s.quota, s.memory_limit, s.processors, s.numa_nodes), (Some(1.5), Some(1 << 30), Some(5), Some(2)));
        assert_eq!(s.caches, [Cache { level: 1, kind: "Data".into(), bytes: 48 << 10, shared_by: 2 }]);
        assert_eq!(
            (s.governor.as_deref(), s.virtualised, s.container.as_deref()),
            (Some("powersave"), Some(true), Some("podman"))
        );
        assert_eq!(s.instruction_sets, ["avx2", "avx512f"]);
        assert_eq!(sets("Features\t: fp asimd evtstrm\n"), ["asimd"]);
    }

    #[test]
    fn version_1_and_nothing_at_all() {
        let t = tree(&[
            ("proc/self/cgroup", "4:memory:/x\n2:cpu,cpuacct:/x\n0::/\n"),
            ("sys/fs/cgroup/cpu/cpu.cfs_quota_us", "-1\n"),
            ("sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n"),
            ("sys/fs/cgroup/cpu/x/cpu.cfs_quota_us", "50000\n"),
            ("sys/fs/cgroup/cpu/x/cpu.cfs_period_us", "100000\n"),
            ("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n"),
            ("proc/cpuinfo", "flags : fpu sse\n"),
        ]);
        let s = System::at(t.path());
        assert_eq!((s.quota, s.memory_limit, s.virtualised), (Some(0.5), None, Some(false)));
        assert_eq!(System::at(&t.path().join("nowhere")), System::default());
    }

    #[test]
    fn hostile_lists_and_sizes() {
        assert_eq!(
            [counted("0-3,8"), counted("7"), counted("5-2"), counted("0-4294967295"), counted("x")],
            [Some(5), Some(1), None, None, None]
        );
        assert_eq!(
            [size("2M"), size("12"), size("9T"), size("99999999999999999999K"), size("K")],
            [Some(2 << 20), Some(12), None, None, None]
        );
    }
}
