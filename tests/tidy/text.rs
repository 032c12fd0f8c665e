//! Rules about what may be written where.

use crate::scan::{Name, Source};
use crate::tree::{Fault, File};

/// Longest file, test modules not counted. At about 500 lines a file probably has two reasons to change; the rest is
/// slack.
pub(crate) const MAX_LINES: usize = 600;

/// Marks of unfinished work, spelled so that this file does not contain them.
pub(crate) const UNDONE: &[&str] = &[
    concat!("to", "do!()"),
    concat!("unimpl", "emented!()"),
    concat!("place", "holder"),
    concat!("FIX", "ME"),
    concat!("TO", "DO"),
];

/// Paths of build machines and hosts of private package registries, spelled likewise.
pub(crate) const MACHINE: &[&str] = &[
    concat!("/wo", "rk/"),
    concat!("/tm", "p/wt"),
    concat!("/ro", "ot/"),
    concat!("--index", "-url"),
    concat!("--extra-index", "-url"),
    concat!("arti", "factory"),
    concat!("http", "://127."),
    concat!("http", "://10."),
    concat!("http", "://localhost"),
];

/// Where `unsafe` may be written.
const UNSAFE: &[&str] = &[
    "src/base/os.rs",
    "src/device/cpu/",
    "src/device/cuda.rs",
    "src/device/cuda/",
    "src/device/opencl.rs",
    "src/device/opencl/",
    "src/device/wgpu.rs",
    "src/device/wgpu/",
    "src/kernel/cpu/simd.rs",
    "src/kernel/cpu/simd/",
];

/// Where files may be read or written. `engine/record` writes what a program called, from within that program;
/// `engine/trials` keeps which kernels may be trusted, for the next program, `engine/answered` which drivers answered; `engine/private` are the checks of whose a file is
/// that it shares with `engine/cache`. `base/os`
/// and `base/system` read /proc and /sys only; `device/cuda` looks for NVIDIA's libraries and reads the driver's version.
const FILES: &[&str] = &[
    "src/main.rs",
    "src/cli/",
    "src/profile/file.rs",
    "src/base/npy.rs",
    "src/base/os.rs",
    "src/base/system.rs",
    "src/engine/cache.rs",
    "src/engine/answered.rs",
    "src/engine/private.rs",
    "src/engine/record.rs",
    "src/engine/trace.rs",
    "src/engine/trials.rs",
    "src/jobs/stress/journal.rs",
    "src/jobs/verify/save.rs",
    "src/device/probe.rs",
    "src/device/telemetry/",
    "src/device/cuda/mod.rs",
    "src/device/cuda/libraries.rs",
];

/// Where variables of the environment may be read. `device/cuda` looks where other tools installed NVIDIA's libraries
/// (CUDA_PATH, VIRTUAL_ENV, ...), no variable of ours. `base/os` sets those that drivers read.
const ENVIRONMENT: &[&str] = &["src/base/env.rs", "src/base/os.rs", "src/device/cuda/mod.rs"];

/// Where the talking is done.
const PRINT: &[&str] = &["src/main.rs", "src/cli/"];

/// Where a process may end itself: in `stress`'s workers, which a supervisor watches.
const ABORT: &[&str] = &["src/jobs/stress/worker.rs", "src/jobs/stress/scenario/mod.rs"];

fn lies_in(path: &str, list: &[&str]) -> bool {
    list.iter().any(|p| if p.ends_with('/') { path.starts_with(p) } else { path == *p })
}

/// Faults of the names that `bad` rejects, outside tests and the files of `list`.
fn names(source: &Source, list: &[&str], bad: impl Fn(&Name) -> Option<String>) -> Vec<Fault> {
    if lies_in(&source.path, list) {
        return Vec::new();
    }
    let of = |n: &Name| bad(n).map(|what| Fault { path: source.path.clone(), line: n.line, what });
    source.names.iter().filter(|n| !n.test).filter_map(of).collect()
}

fn ends(name: &Name, tail: &[&str]) -> bool {
    let have: Vec<&str> = name.segments.iter().map(String::as_str).collect();
    have.ends_with(tail)
}

/// Printing and exiting below the command line.
pub(crate) fn prints(source: &Source) -> Vec<Fault> {
    names(source, PRINT, |n| {
        let last = n.segments.last()?;
        let macros = ["print", "println", "eprint", "eprintln", "dbg"];
        if n.is_macro && macros.contains(&last.as_str()) {
            return Some(format!("{last}!: only the command line prints; hand records and notes to the Sink"));
        }
        let leaves = ends(n, &["process", "exit"]) || (ends(n, &["process", "abort"]) && !lies_in(&source.path, ABORT));
        let speaks = ["stdout", "stderr"].iter().any(|f| ends(n, &["io", f]));
        (leaves || speaks).then(|| format!("{}: only the command line talks and exits", n.segments.join("::")))
    })
}

/// Variables of the environment read outside `base/env`.
pub(crate) fn environment(source: &Source) -> Vec<Fault> {
    names(source, ENVIRONMENT, |n| {
        let reads = ["var", "var_os", "vars", "vars_os", "set_var", "remove_var", "home_dir"];
        reads
            .iter()
            .any(|f| ends(n, &["env", f]))
            .then(|| format!("{}: read it in base/env and hand the value in", n.segments.join("::")))
    })
}

/// Files touched outside the list.
pub(crate) fn files(source: &Source) -> Vec<Fault> {
    names(source, FILES, |n| {
        let std_fs = n.segments.len() >= 2 && n.segments[0] == "std" && n.segments[1] == "fs";
        std_fs.then(|| format!("{}: this file may not touch files", n.segments.join("::")))
    })
}

/// `unsafe` outside the list, or without its argument.
pub(crate) fn unsafe_code(source: &Source) -> Vec<Fault> {
    let fault = |line: usize, what: &str| Fault { path: source.path.clone(), line, what: what.to_string() };
    let mut out = Vec::new();
    for u in &source.unsafes {
        if !lies_in(&source.path, UNSAFE) {
            out.push(fault(u.line, "unsafe: not in this file"));
        } else if u.argued && !(u.function && source.in_tests(u.line)) && !is_argued(&source.lines, u.line) {
            out.push(fault(u.line, "unsafe: no `// SAFETY:` above it"));
        }
    }
    out
}

/// A comment with the argument on the line itself or in the comments, attributes and statement head above it.
fn is_argued(lines: &[String], line: usize) -> bool {
    let holds = |l: &str| l.contains("SAFETY:") || l.contains("# Safety");
    let above = lines[..line - 1].iter().rev().enumerate();
    if holds(&lines[line - 1]) {
        return true;
    }
    for (i, text) in above {
        let t = text.trim();
        if holds(t) {
            return true;
        }
        // The head of the same statement may stand on the two lines between.
        if !(t.starts_with("//") || t.starts_with("#["))
            && (i >= 2 || t.ends_with(';') || t.ends_with('}') || t.is_empty())
        {
            return false;
        }
    }
    false
}

/// Files that are too long.
pub(crate) fn size(file: &File) -> Vec<Fault> {
    let code = [".rs", ".c", ".cl", ".cu", ".wgsl", ".sh", ".py"].iter().any(|e| file.path.ends_with(e));
    // A test module closes its file.
    let lines = file.text.lines().take_while(|l| *l != "#[cfg(test)]").count();
    if !code || lines <= MAX_LINES {
        return Vec::new();
    }
    vec![Fault { path: file.path.clone(), line: lines, what: format!("{lines} lines, at most {MAX_LINES}: split it") }]
}

/// Marks of unfinished work.
pub(crate) fn undone(file: &File) -> Vec<Fault> {
    if file.path.starts_with("reports/") || file.path.starts_with("tests/fixtures/") || file.path == "Cargo.lock" {
        return Vec::new();
    }
    let find = |line: &str| {
        let lower = line.to_lowercase();
        UNDONE.iter().find(|w| {
            let word = w.trim_end_matches("()");
            if word.chars().all(|c| c.is_ascii_uppercase()) {
                line.split(|c: char| !c.is_alphanumeric()).any(|x| x == word)
            } else {
                lower.contains(word)
            }
        })
    };
    let lines = file.text.lines().enumerate();
    lines
        .filter_map(|(i, l)| find(l).map(|w| (i + 1, w)))
        .map(|(line, w)| Fault { path: file.path.clone(), line, what: format!("'{w}' is left") })
        .collect()
}

/// Traces of the machine that built something.
pub(crate) fn machine(file: &File) -> Vec<Fault> {
    const INDEX: &str = "registry+https://github.com/rust-lang/crates.io-index";
    let bad = |line: &str| {
        let foreign = line.contains("source = \"registry+") && !line.contains(INDEX);
        // `framework/x` and the like are words of their own, not a path from the root.
        let starts_path = |at: usize| at == 0 || !line.as_bytes()[at - 1].is_ascii_alphanumeric();
        let trace = MACHINE.iter().find(|w| line.match_indices(**w).any(|(at, _)| starts_path(at)));
        if foreign { Some("a package from a private registry".to_string()) } else { trace.map(|w| format!("'{w}'")) }
    };
    let lines = file.text.lines().enumerate();
    lines.filter_map(|(i, l)| bad(l).map(|what| Fault { path: file.path.clone(), line: i + 1, what })).collect()
}
