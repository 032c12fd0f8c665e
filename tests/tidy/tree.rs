//! The project's files, as text.

use std::fmt;
use std::path::Path;
use std::process::Command;
use std::sync::OnceLock;

/// A text file of the project.
#[derive(Clone, Debug)]
pub(crate) struct File {
    /// Path from the project's root, with slashes.
    pub(crate) path: String,
    /// Contents.
    pub(crate) text: String,
}

/// A broken rule at a place.
#[derive(Clone, Debug)]
pub(crate) struct Fault {
    /// Path from the project's root.
    pub(crate) path: String,
    /// Line, from 1; 0 for the file as a whole.
    pub(crate) line: usize,
    /// What is wrong and what would be right.
    pub(crate) what: String,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.path, self.line, self.what)
    }
}

/// The project's root.
pub(crate) fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// One file's text.
pub(crate) fn read(path: &str) -> String {
    std::fs::read_to_string(root().join(path)).unwrap_or_else(|e| panic!("{path}: {e}"))
}

/// Every text file that git tracks or would track; without git, every file outside `target` and hidden folders.
pub(crate) fn files() -> &'static [File] {
    static FILES: OnceLock<Vec<File>> = OnceLock::new();
    FILES.get_or_init(|| {
        let mut paths = from_git().unwrap_or_default();
        if paths.is_empty() {
            walk(root(), "", &mut paths);
        }
        paths.sort();
        let text = |path: &String| {
            let text = std::fs::read_to_string(root().join(path)).ok()?;
            Some(File { path: path.clone(), text })
        };
        paths.iter().filter_map(text).collect()
    })
}

fn from_git() -> Option<Vec<String>> {
    let out = Command::new("git")
        .args(["ls-files", "--cached", "--others", "--exclude-standard", "-z"])
        .current_dir(root())
        .output()
        .ok()?;
    if !out.status.success() {
        return None;
    }
    let text = String::from_utf8(out.stdout).ok()?;
    Some(text.split('\0').filter(|p| !p.is_empty()).map(str::to_string).collect())
}

fn walk(dir: &Path, prefix: &str, out: &mut Vec<String>) {
    let Ok(entries) = std::fs::read_dir(dir) else { return };
    for entry in entries.flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let path = if prefix.is_empty() { name.clone() } else { format!("{prefix}/{name}") };
        match entry.file_type() {
            Ok(t) if t.is_dir() && name != "target" && (!name.starts_with('.') || name == ".ci") => {
                walk(&entry.path(), &path, out);
            }
            Ok(t) if t.is_file() => out.push(path),
            _ => {}
        }
    }
}
