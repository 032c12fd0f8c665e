//! The BLAS that the CPU's products may run on: which one is asked for, what an opened one says of itself, and whether it fits
//! the processor. Opening one is `device/cpu/blas`.

use std::fmt;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::error::{Code, Error, Result};

/// The kernel variant that calls the library.
pub const VARIANT: &str = "blas";

/// Whose routines the CPU's products are by default.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum CpuBlas {
    /// Ours.
    #[default]
    Own,
    /// The first library of a known name that can be opened.
    Auto,
    /// This library.
    Path(PathBuf),
}

impl CpuBlas {
    /// Reads `--cpu-blas`: `own`, `auto`, or a library's file.
    pub fn parse(text: &str) -> Result<Self> {
        match text {
            "own" => Ok(CpuBlas::Own),
            "auto" => Ok(CpuBlas::Auto),
            "" => Err(Error::new(Code::BadArgument, "--cpu-blas is empty; expected own, auto or a library's file")),
            path => Ok(CpuBlas::Path(path.into())),
        }
    }
}

impl fmt::Display for CpuBlas {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CpuBlas::Own => f.write_str("own"),
            CpuBlas::Auto => f.write_str("auto"),
            CpuBlas::Path(path) => write!(f, "{}", path.display()),
        }
    }
}

/// What an opened BLAS says of itself, and what was found out about it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BlasInfo {
    /// `OpenBLAS`, `MKL`, `BLIS`, `Accelerate`; the file's name if it does not tell.
    pub name: String,
    /// Version; empty if it does not tell.
    pub version: String,
    /// The processors that its kernels are written for; empty if it does not tell.
    pub core: String,
    /// Threads that it uses; `None` if it does not tell.
    pub threads: Option<u32>,
    /// Bits of its integers, by a call that tells 32 from 64.
    pub int_bits: u32,
    /// What was opened.
    pub path: String,
    /// Why it is slower than this processor; empty if nothing says so.
    pub weak: String,
}

impl BlasInfo {
    /// Name, version and core type: what makes another CPU side of a threshold.
    pub fn identity(&self) -> String {
        let version = if self.version.is_empty() { String::new() } else { format!(" {}", self.version) };
        let core = if self.core.is_empty() { "core type not told" } else { &self.core };
        format!("{}{version}, {core}", self.name)
    }

    /// True for libraries that start their threads once, and so have them before the thread that calls is pinned.
    pub fn keeps_threads(&self) -> bool {
        matches!(self.name.as_str(), "OpenBLAS" | "MKL")
    }

    /// What is said where it is weak.
    pub fn weakness(&self) -> String {
        format!("weak BLAS: {}: {}", self.identity(), self.weak)
    }

    /// [`BlasInfo::identity`] with its threads.
    pub fn text(&self) -> String {
        match self.threads {
            Some(1) => format!("{}, 1 thread", self.identity()),
            Some(n) => format!("{}, {n} threads", self.identity()),
            None => format!("{}, threads not told", self.identity()),
        }
    }
}

/// Vector instructions, by the width of what they lead to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Vectors {
    Sse,
    Avx,
    Avx2,
    Avx512,
}

impl Vectors {
    const fn name(self) -> &'static str {
        match self {
            Vectors::Sse => "SSE",
            Vectors::Avx => "AVX",
            Vectors::Avx2 => "AVX2",
            Vectors::Avx512 => "AVX-512",
        }
    }
}

/// Core types as OpenBLAS and BLIS name them, and instruction sets as MKL does. For x86-64 only: elsewhere no two of them differ by
/// the width of their vectors.
const CORES: [(Vectors, &[&str]); 4] = [
    (
        Vectors::Sse,
        &[
            "katmai",
            "coppermine",
            "northwood",
            "prescott",
            "banias",
            "core2",
            "penryn",
            "dunnington",
            "nehalem",
            "atom",
            "nano",
            "athlon",
            "opteron",
            "opteron_sse3",
            "barcelona",
            "bobcat",
            "sse2",
            "sse4.2",
            "generic",
        ],
    ),
    (Vectors::Avx, &["sandybridge", "bulldozer", "piledriver", "steamroller", "excavator", "avx"]),
    (Vectors::Avx2, &["haswell", "zen", "zen2", "zen3", "avx2"]),
    (Vectors::Avx512, &["skylakex", "skx", "knl", "cooperlake", "sapphirerapids", "zen4", "zen5", "avx-512", "avx10"]),
];

/// How a library's kernels fit a processor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fit {
    /// They use the widest vectors that the processor has.
    Full,
    /// They do not, and how far they stay behind.
    Narrow(String),
    /// The core type is not in the table.
    Unknown,
}

/// Judges a core type by the instruction set that the processor has (`baseline`, `avx2`, `avx512`, as the CPU's kernels name them).
pub fn fit(core: &str, isa: &str) -> Fit {
    let wanted = core.to_ascii_lowercase();
    let of = |(vectors, names): &(Vectors, &[&str])| names.contains(&wanted.as_str()).then_some(*vectors);
    let Some(vectors) = CORES.iter().find_map(of) else { return Fit::Unknown };
    let processor = match isa {
        "avx512" => Vectors::Avx512,
        "avx2" => Vectors::Avx2,
        _ => Vectors::Sse,
    };
    if vectors >= processor {
        return Fit::Full;
    }
    let why = format!(
        "its core type {core} stands for {} on a processor that has {}",
        if vectors == Vectors::Sse { "SSE at most" } else { vectors.name() },
        processor.name()
    );
    let behind = match (vectors, processor) {
        (Vectors::Avx2, _) => ": half the width of its vectors",
        (Vectors::Avx, Vectors::Avx2) => ": no fused multiply-add, or none at full width",
        (_, Vectors::Avx512) => ": a quarter of the width of its vectors, or no fused multiply-add",
        _ => ": half the width of its vectors, and no fused multiply-add",
    };
    Fit::Narrow(why + behind)
}

/// Why a BLAS is weaker than the processor allows: a core type that fell back, or fewer threads than it was told to use. Empty if
/// nothing says so.
pub fn weakness(core: &str, isa: &str, told: u32, uses: Option<u32>) -> String {
    let mut all = Vec::new();
    if let Fit::Narrow(why) = fit(core, isa) {
        all.push(why);
    }
    if let Some(n) = uses.filter(|n| *n < told) {
        all.push(format!("it uses {n} of {told} threads"));
    }
    all.join("; ")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Names as the libraries gave them: Debian's OpenBLAS 0.3.21 and NumPy's 0.3.31 on a processor with AVX-512.
    #[test]
    fn a_core_type_that_fell_back_is_weak() {
        let narrow = |core: &str, isa: &str| match fit(core, isa) {
            Fit::Narrow(why) => why,
            other => panic!("{core} on {isa}: {other:?}"),
        };
        let prescott = narrow("Prescott", "avx512");
        assert!(prescott.contains("Prescott stands for SSE at most on a processor that has AVX-512"), "{prescott}");
        assert!(narrow("Nehalem", "avx2").contains("AVX2"));
        assert!(narrow("Sandybridge", "avx2").contains("fused"));
        assert!(narrow("Sandybridge", "avx512").contains("quarter"));
        let haswell = narrow("Haswell", "avx512");
        assert!(haswell.contains("half the width"), "half is weak, and said to be half: {haswell}");
        assert!(narrow("Zen", "avx512").contains("half the width"));
        for (core, isa) in [
            ("SkylakeX", "avx512"),
            ("SAPPHIRERAPIDS", "avx512"),
            ("Haswell", "avx2"),
            ("Zen", "avx2"),
            ("skx", "avx512"),
            ("AVX-512", "avx512"),
            ("SkylakeX", "avx2"),
            ("Prescott", "baseline"),
        ] {
            assert_eq!(fit(core, isa), Fit::Full, "{core} on {isa}");
        }
        for core in ["", "NEOVERSEN1", "ARMV8", "POWER9"] {
            assert_eq!(fit(core, "avx512"), Fit::Unknown, "{core}");
        }
    }

    #[test]
    fn threads_that_are_not_used_are_a_weakness() {
        assert_eq!(weakness("SkylakeX", "avx512", 2, Some(2)), "");
        assert_eq!(weakness("SkylakeX", "avx512", 2, Some(1)), "it uses 1 of 2 threads");
        assert_eq!(weakness("", "avx512", 2, None), "", "nothing is made up about what is not told");
        let both = weakness("Prescott", "avx512", 8, Some(1));
        assert!(both.contains("Prescott") && both.ends_with("; it uses 1 of 8 threads"), "{both}");
    }

    #[test]
    fn an_option_is_a_word_or_a_file() {
        assert_eq!(CpuBlas::parse("own").unwrap(), CpuBlas::Own);
        assert_eq!(CpuBlas::parse("auto").unwrap(), CpuBlas::Auto);
        assert_eq!(CpuBlas::parse("./libx.so").unwrap(), CpuBlas::Path("./libx.so".into()));
        assert_eq!(CpuBlas::parse("").unwrap_err().code(), Code::BadArgument);
        for text in ["own", "auto", "./libx.so"] {
            assert_eq!(CpuBlas::parse(text).unwrap().to_string(), text);
        }
    }

    #[test]
    fn an_identity_has_no_threads() {
        let info = BlasInfo {
            name: "OpenBLAS".into(),
            version: "0.3.21".into(),
            core: "Prescott".into(),
            threads: Some(2),
            ..BlasInfo::default()
        };
        assert_eq!(info.identity(), "OpenBLAS 0.3.21, Prescott");
        assert_eq!(info.text(), "OpenBLAS 0.3.21, Prescott, 2 threads");
        let silent = BlasInfo { name: "libsome.so".into(), ..BlasInfo::default() };
        assert_eq!(silent.text(), "libsome.so, core type not told, threads not told");
    }
}
