//! What was under way when an error arose: kernel, launch, memory, the compiler's log and the API's own status.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::dtype::DType;
use super::units::bytes;

/// The circumstances of an error, as far as they are known; `None` where nothing is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Context {
    /// Dtype of the operands.
    pub dtype: Option<DType>,
    /// Kernel variant.
    pub variant: Option<String>,
    /// The kernel's entry points, separated by `, `.
    pub entry: Option<String>,
    /// The largest launch of the call.
    pub launch: Option<LaunchShape>,
    /// The device's memory when the error was seen.
    pub memory: Option<MemorySnapshot>,
    /// What the API itself said.
    pub status: Option<ApiStatus>,
    /// Everything that the compiler said.
    pub log: Option<String>,
}

/// Sizes of a launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LaunchShape {
    /// Groups (CUDA: blocks) on each axis.
    pub groups: [u64; 3],
    /// Work-items (CUDA: threads) of a group on each axis.
    pub group: [u32; 3],
}

/// A device's memory at one moment, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemorySnapshot {
    /// The device's, if the API tells.
    pub total: Option<u64>,
    /// Free on the whole device, if the API tells.
    pub free: Option<u64>,
    /// Held by this process through gpuctl, by its own ledger.
    pub held: u64,
    /// The most that was ever held at once.
    pub peak: u64,
    /// Buffers that are held.
    pub buffers: u64,
}

/// An API's own status.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ApiStatus {
    /// `cuda`, `nvrtc`, `cublas`, `opencl` or `wgpu`.
    pub api: String,
    /// The API's number; wgpu has none.
    pub number: Option<i32>,
    /// The API's name; empty if its number is in no header that gpuctl knows.
    pub name: String,
}

impl fmt::Display for MemorySnapshot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} held in {} buffers, {} at most", bytes(self.held), self.buffers, bytes(self.peak))?;
        match (self.free, self.total) {
            (Some(free), Some(total)) => write!(f, "; {} of {} free", bytes(free), bytes(total)),
            (None, Some(total)) => write!(f, "; the device has {}", bytes(total)),
            _ => Ok(()),
        }
    }
}

impl fmt::Display for Context {
    /// The parts that are known, one line each; the log is left out.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut lines = Vec::new();
        if let Some(s) = &self.status {
            let number = s.number.map_or(String::new(), |n| format!(" ({n})"));
            let name = if s.name.is_empty() { "a status of no known name" } else { &s.name };
            lines.push(format!("status: {} {name}{number}", s.api));
        }
        let kernel = [self.variant.as_deref(), self.entry.as_deref()].into_iter().flatten().collect::<Vec<_>>();
        if !kernel.is_empty() {
            let dtype = self.dtype.map_or(String::new(), |d| format!(" in {d}"));
            lines.push(format!("kernel: {}{dtype}", kernel.join(", entry ")));
        }
        if let Some(l) = &self.launch {
            let three = |a: &[u64; 3]| format!("{}x{}x{}", a[0], a[1], a[2]);
            lines.push(format!("launch: {} groups of {}", three(&l.groups), three(&l.group.map(u64::from))));
        }
        if let Some(m) = &self.memory {
            lines.push(format!("memory: {m}"));
        }
        f.write_str(&lines.join("\n"))
    }
}

/// Longest part of a log that a message shows, in characters.
const SHOWN: usize = 240;

/// The first lines of a compiler's log on one line, from its first error on, and how many more there are.
pub(super) fn excerpt(log: &str) -> String {
    let lines: Vec<&str> = log.lines().map(str::trim).filter(|l| !l.is_empty()).collect();
    // Warnings may come first.
    let first = lines.iter().position(|l| l.to_ascii_lowercase().contains("error")).unwrap_or(0);
    let mut text = String::new();
    let mut shown = 0;
    for line in lines.iter().skip(first).take(3) {
        let left = SHOWN.saturating_sub(text.chars().count());
        if left < 20 {
            break;
        }
        if shown > 0 {
            text.push_str(" | ");
        }
        // Columns that compilers align with spaces.
        let words = line.split_whitespace().collect::<Vec<_>>().join(" ");
        text.extend(words.chars().take(left));
        if words.chars().count() > left {
            text.push_str("..");
        }
        shown += 1;
    }
    match lines.len() - shown {
        0 => text,
        1 => format!("{text} [1 more line]"),
        more => format!("{text} [{more} more lines]"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_is_shortened_to_one_line_and_says_what_is_left_out() {
        assert_eq!(excerpt(""), "");
        assert_eq!(excerpt("\n  error:   no x\n\n"), "error: no x");
        assert_eq!(excerpt("a\nb\nc\nd\ne"), "a | b | c [2 more lines]");
        assert_eq!(excerpt("warning: a\n1 Error: b"), "1 Error: b [1 more line]");
        let long = excerpt(&format!("{}\nsecond", "x".repeat(1000)));
        assert!(long.ends_with(".. [1 more line]") && long.chars().count() < SHOWN + 30, "{long}");
        // Characters, not bytes, are counted.
        assert!(excerpt(&"ü".repeat(500)).ends_with("ü.."));
    }

    #[test]
    fn a_context_says_what_is_known_and_no_more() {
        assert_eq!(Context::default().to_string(), "");
        let c = Context {
            dtype: Some(DType::F32),
            variant: Some("tiled".into()),
            entry: Some("gemm".into()),
            launch: Some(LaunchShape { groups: [4, 2, 1], group: [16, 16, 1] }),
            memory: Some(MemorySnapshot {
                total: Some(80 << 30),
                free: Some(1 << 30),
                held: 4096,
                peak: 8192,
                buffers: 3,
            }),
            status: Some(ApiStatus { api: "cuda".into(), number: Some(2), name: "CUDA_ERROR_OUT_OF_MEMORY".into() }),
            log: Some("never shown here".into()),
        };
        let text = c.to_string();
        assert_eq!(
            text,
            "status: cuda CUDA_ERROR_OUT_OF_MEMORY (2)\nkernel: tiled, entry gemm in f32\n\
             launch: 4x2x1 groups of 16x16x1\n\
             memory: 4.00 KiB held in 3 buffers, 8.00 KiB at most; 1.00 GiB of 80.0 GiB free"
        );
        let again: Context = serde_json::from_str(&serde_json::to_string(&c).unwrap()).unwrap();
        assert_eq!(again, c);
    }
}
