//! Known peculiarities of drivers and cards, as data. A row is shown for every device that it applies to
//! (`gpuctl devices --why`, JSON, `docs/quirks.md`); what gpuctl does about it stands in the row, the code where it is done.

use crate::base::facts::Quirk;
use crate::base::{Backend, DeviceInfo};

/// A row.
pub struct Row {
    /// Its name.
    pub code: &'static str,
    /// `wrong-result`, `crash`, `limit`, `missing`, `slow`.
    pub kind: &'static str,
    /// API.
    pub backend: Backend,
    /// The driver's text contains this, in lower case.
    pub driver: &'static str,
    /// The first version that is free of it, if there is one: the first number with a dot in the driver's text.
    pub until: Option<(u32, u32)>,
    /// The device's name contains one of these, in lower case; empty: any.
    pub names: &'static [&'static str],
    /// Compute capabilities; empty: any.
    pub capabilities: &'static [(u32, u32)],
    /// What happens.
    pub what: &'static str,
    /// What gpuctl does about it.
    pub answer: &'static str,
    /// Where it is known from.
    pub source: &'static str,
}

impl Row {
    const ANY: Row = Row {
        code: "",
        kind: "limit",
        backend: Backend::Opencl,
        driver: "",
        until: None,
        names: &[],
        capabilities: &[],
        what: "",
        answer: "",
        source: "",
    };

    /// Whether it applies to a device.
    pub fn applies(&self, info: &DeviceInfo) -> bool {
        let driver = info.driver.to_lowercase();
        let name = info.name.to_lowercase();
        info.backend == self.backend
            && driver.contains(self.driver)
            && self.until.is_none_or(|until| version(&driver).is_none_or(|v| v < until))
            && (self.names.is_empty() || self.names.iter().any(|n| name.contains(n)))
            && (self.capabilities.is_empty() || info.compute_capability.is_some_and(|c| self.capabilities.contains(&c)))
    }
}

/// The first number with a dot: `PoCL 3.1, LLVM 15` -> (3, 1). A driver that tells none counts as concerned.
fn version(driver: &str) -> Option<(u32, u32)> {
    driver.split(|c: char| !c.is_ascii_digit() && c != '.').find_map(|word| {
        let mut parts = word.split('.');
        Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
    })
}

const POCL: &str = "portable computing language";

/// All rows.
pub const ROWS: [Row; 13] = [
    Row {
        code: "pocl-first-query",
        kind: "crash",
        driver: POCL,
        what: "the process ends if two threads ask the driver for the first time at once",
        answer: "gpuctl asks in one thread at a time",
        source: "seen with PoCL 3.1",
        ..Row::ANY
    },
    Row {
        code: "pocl-binary",
        kind: "crash",
        driver: POCL,
        what: "the process ends when a truncated program binary is loaded",
        answer: "binaries carry a checksum and are built anew if it is wrong",
        source: "seen with PoCL 3.1",
        ..Row::ANY
    },
    Row {
        code: "pocl-tanh-subnormal",
        kind: "wrong-result",
        driver: POCL,
        what: "tanh of an f64 subnormal is twice what it should be",
        answer: "the kernel returns the argument itself where tanh(x) = x in every bit",
        source: "seen with PoCL 3.1; found by `verify`",
        ..Row::ANY
    },
    Row {
        code: "pocl-unsteady",
        kind: "slow",
        driver: POCL,
        what: "the median time of one kernel differs up to twofold between processes",
        answer: "times come from several fresh processes, intervals allow for the difference",
        source: "seen with PoCL 3.1: 45 to 108 us in eight processes",
        ..Row::ANY
    },
    Row {
        code: "pocl-work-group-query",
        kind: "slow",
        driver: POCL,
        what: "asking for a kernel's properties compiles every kernel of the program, 0.2 to 0.5 s each",
        answer: "asked only where the answer is shown",
        source: "seen with PoCL 3.1",
        ..Row::ANY
    },
    Row {
        code: "oclgrind-simulates",
        kind: "slow",
        driver: "oclgrind",
        what: "this driver interprets kernels to find faults in them; it is hundreds of times slower than a processor",
        answer: "its times say nothing about hardware; it is flagged as software",
        source: "Oclgrind's documentation",
        ..Row::ANY
    },
    Row {
        code: "nvidia-opencl-groups",
        kind: "limit",
        driver: "nvidia",
        what: "at most 65,535 groups in the second and third axis, which OpenCL has no query for",
        answer: "launches stay below that on every OpenCL device",
        source: "CUDA Programming Guide, technical specifications per compute capability",
        ..Row::ANY
    },
    Row {
        code: "nvidia-opencl-fault",
        kind: "crash",
        driver: "nvidia",
        what: "after a kernel's fault every call fails with CL_INVALID_COMMAND_QUEUE",
        answer: "taken as a lost device: quarantined and opened anew",
        source: "reports of users; not met by gpuctl yet",
        ..Row::ANY
    },
    Row {
        code: "amd-opencl-items",
        kind: "limit",
        driver: "amd",
        what: "work-items of one axis must fit 32 bits, which OpenCL has no query for",
        answer: "launches stay below that on every OpenCL device",
        source: "reports of users; not met by gpuctl yet",
        ..Row::ANY
    },
    Row {
        code: "lavapipe-loops",
        kind: "wrong-result",
        backend: Backend::Wgpu,
        driver: "llvmpipe",
        what: "all loops of one invocation end after 65,535 iterations in all, without an error",
        answer: "kernels stay below that, long rows are split over invocations and launches",
        source: "seen with Mesa 22.3 (LP_MAX_TGSI_LOOP_ITERATIONS); found by `verify`",
        ..Row::ANY
    },
    Row {
        code: "no-tensor-cores",
        kind: "missing",
        backend: Backend::Cuda,
        names: &["gtx 16", "t500", "t550", "t600", "t1000", "t1200", "mx450", "mx550"],
        capabilities: &[(7, 5)],
        what: "a chip of compute capability 7.5 without tensor cores",
        answer: "none are listed, although the capability would have them",
        source: "NVIDIA, Turing TU116 and TU117",
        ..Row::ANY
    },
    Row {
        code: "f64-at-1-32",
        kind: "slow",
        backend: Backend::Cuda,
        capabilities: &[(5, 0), (5, 2), (5, 3), (6, 1), (6, 2), (7, 5)],
        what: "f64 runs at 1/32 of the rate of f32",
        answer: "calibrate measures f64 apart: its thresholds are its own",
        source: "CUDA Programming Guide, throughput of native arithmetic instructions",
        ..Row::ANY
    },
    Row {
        code: "f64-at-1-64",
        kind: "slow",
        backend: Backend::Cuda,
        capabilities: &[(8, 6), (8, 7), (8, 9), (12, 0)],
        what: "f64 runs at 1/64 of the rate of f32",
        answer: "calibrate measures f64 apart: its thresholds are its own",
        source: "CUDA Programming Guide, throughput of native arithmetic instructions",
        ..Row::ANY
    },
];

/// Those that apply to a device.
pub fn of(info: &DeviceInfo) -> Vec<Quirk> {
    let quirk =
        |r: &Row| Quirk { code: r.code.into(), kind: r.kind.into(), what: r.what.into(), answer: r.answer.into() };
    ROWS.iter().filter(|r| r.applies(info)).map(quirk).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn device(backend: Backend, driver: &str, name: &str, cc: Option<(u32, u32)>) -> DeviceInfo {
        DeviceInfo {
            backend,
            driver: driver.into(),
            name: name.into(),
            compute_capability: cc,
            ..DeviceInfo::ordinary_gpu()
        }
    }

    fn codes(info: &DeviceInfo) -> Vec<String> {
        of(info).into_iter().map(|q| q.code).collect()
    }

    /// Synthetic devices: each row applies to at least one, and the clean ones have none of them.
    #[test]
    fn every_row_applies_to_its_devices_only() {
        let pocl = device(Backend::Opencl, "Portable Computing Language 3.1", "pthread-x", None);
        let nvidia = device(Backend::Opencl, "NVIDIA CUDA 570.86", "NVIDIA H200", None);
        let amd = device(Backend::Opencl, "AMD Accelerated Parallel Processing 3580.0", "gfx90a", None);
        let oclgrind = device(Backend::Opencl, "Oclgrind 21.10", "Oclgrind Simulator", None);
        let lavapipe = device(Backend::Wgpu, "llvmpipe Mesa 22.3.6 (LLVM 15.0.6)", "llvmpipe", None);
        let gtx = device(Backend::Cuda, "NVIDIA 570.86", "NVIDIA GeForce GTX 1660 Ti", Some((7, 5)));
        let rtx = device(Backend::Cuda, "NVIDIA 570.86", "NVIDIA GeForce RTX 2080", Some((7, 5)));
        let ada = device(Backend::Cuda, "NVIDIA 570.86", "NVIDIA L4", Some((8, 9)));
        let hopper = device(Backend::Cuda, "NVIDIA 570.86", "NVIDIA H200", Some((9, 0)));
        let radv = device(Backend::Wgpu, "radv Mesa 24.1", "AMD Radeon", None);
        let all = [&pocl, &nvidia, &amd, &oclgrind, &lavapipe, &gtx, &rtx, &ada, &hopper, &radv];
        for row in &ROWS {
            assert!(all.iter().any(|d| row.applies(d)), "{} applies to nothing", row.code);
            assert!(all.iter().any(|d| !row.applies(d)), "{} applies to everything", row.code);
            assert!(["wrong-result", "crash", "limit", "missing", "slow"].contains(&row.kind), "{}", row.code);
            assert!(!row.what.is_empty() && !row.answer.is_empty() && !row.source.is_empty(), "{}", row.code);
            assert_eq!(row.driver, row.driver.to_lowercase(), "compared with lower case");
        }
        assert_eq!(codes(&hopper), Vec::<String>::new());
        assert_eq!(codes(&radv), Vec::<String>::new());
        assert_eq!(codes(&gtx), ["no-tensor-cores", "f64-at-1-32"]);
        assert_eq!(codes(&rtx), ["f64-at-1-32"]);
        assert_eq!(codes(&ada), ["f64-at-1-64"]);
        assert_eq!(codes(&lavapipe), ["lavapipe-loops"]);
        assert!(codes(&pocl).iter().filter(|c| c.starts_with("pocl-")).count() == 5);
    }

    #[test]
    fn the_page_has_every_row() {
        let page = include_str!("../../docs/quirks.md");
        for r in &ROWS {
            let row =
                format!("| `{}` | {} | {} | {} | {} | {} |\n", r.code, r.kind, r.backend, r.what, r.answer, r.source);
            assert!(page.contains(&row), "docs/quirks.md lacks: {row}");
        }
        assert_eq!(page.lines().filter(|l| l.starts_with("| `")).count(), ROWS.len());
    }

    #[test]
    fn a_quirk_ends_with_the_version_that_lacks_it() {
        let row = Row { driver: "x", until: Some((4, 2)), code: "c", ..Row::ANY };
        let applies = |driver: &str| row.applies(&device(Backend::Opencl, driver, "", None));
        assert!(applies("X 3.9") && applies("x 4.1.7") && applies("x without a number"));
        assert!(!applies("x 4.2") && !applies("X 10.0") && !applies("y 1.0"));
    }
}
