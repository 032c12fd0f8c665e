//! Vulkan's drivers as its loader finds them: files (`.json`, manifests) that name one library each. Only text is read here; no
//! driver is loaded.
//!
//! Where the loader looks is told by Khronos, *Driver interface to the Vulkan Loader* (LoaderDriverInterface.md of
//! Vulkan-Loader), "Driver Discovery" and "Linux Driver Discovery".

use std::path::{Path, PathBuf};

use crate::base::env::of_other_tools;
use crate::base::{Absence, Backend, Code};

use super::probe::{ending, text_at};

const END: &str = ".json";
/// Below each of the folders.
const UNDER: &str = "vulkan/icd.d";

/// A driver that the loader is told of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Manifest {
    /// The file.
    pub path: PathBuf,
    /// The library's name as the loader will use it, or why there is none.
    pub library: Result<String, String>,
}

impl Manifest {
    fn at(path: PathBuf) -> Self {
        let library = match text_at(&path) {
            Ok(text) => library(&text),
            Err(e) => Err(format!("it cannot be read: {e}")),
        };
        Manifest { path, library }
    }

    /// The reason for which it cannot be used, as a row of the list.
    pub fn absence(&self, code: Code, reason: &str, next: &str) -> Absence {
        Absence {
            backend: Backend::Wgpu,
            what: self.path.display().to_string(),
            reason: format!("{}: {reason}", code.name()),
            next: next.to_string(),
        }
    }

    /// The row of a file that names no library.
    pub fn nameless(&self) -> Option<Absence> {
        let why = self.library.as_ref().err()?;
        Some(self.absence(Code::LibraryNotFound, why, "reinstall the driver's package, or remove the file"))
    }
}

/// The library that a manifest names.
fn library(text: &str) -> Result<String, String> {
    let read: serde_json::Value = serde_json::from_str(text).map_err(|e| format!("it is no JSON: {e}"))?;
    match read["ICD"]["library_path"].as_str() {
        Some(library) if !library.is_empty() => Ok(library.to_string()),
        _ => Err("it names no library: ICD.library_path is missing".into()),
    }
}

/// What the loader of this process finds, in its order. Elsewhere than on Linux drivers are registered in other ways: nothing.
pub fn listing() -> Vec<Manifest> {
    if cfg!(target_os = "linux") { listing_by(of_other_tools) } else { Vec::new() }
}

/// The same with variables from anywhere.
fn listing_by(variable: impl Fn(&str) -> Option<String>) -> Vec<Manifest> {
    let paths = |text: String| text.split(':').filter(|p| !p.is_empty()).map(PathBuf::from).collect::<Vec<_>>();
    let told = |name| variable(name).map(paths);
    let places = match told("VK_DRIVER_FILES").or_else(|| told("VK_ICD_FILENAMES")) {
        Some(only) => only,
        None => {
            let home = |below: &str| variable("HOME").map(|home| Path::new(&home).join(below));
            let one = |name: &str, usual: Option<PathBuf>| variable(name).map(PathBuf::from).or(usual).into_iter();
            let some = |name: &str, usual: &str| paths(variable(name).unwrap_or_else(|| usual.into())).into_iter();
            let folders = one("XDG_CONFIG_HOME", home(".config"))
                .chain(some("XDG_CONFIG_DIRS", "/etc/xdg"))
                .chain(["/usr/local/etc".into(), "/etc".into()])
                .chain(one("XDG_DATA_HOME", home(".local/share")))
                .chain(some("XDG_DATA_DIRS", "/usr/local/share:/usr/share"));
            told("VK_ADD_DRIVER_FILES").into_iter().flatten().chain(folders.map(|f| f.join(UNDER))).collect()
        }
    };
    let mut files: Vec<PathBuf> = Vec::new();
    for place in places {
        // What is no folder is one driver's file; a folder that is not there has none.
        let found = match ending(&place, END) {
            Ok(found) => found,
            Err(_) if place.to_string_lossy().ends_with(END) => vec![place],
            Err(_) => Vec::new(),
        };
        for file in found {
            if !files.contains(&file) {
                files.push(file);
            }
        }
    }
    files.into_iter().map(Manifest::at).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_manifest_names_its_library_or_says_why_not() {
        let text =
            r#"{"file_format_version": "1.0.0", "ICD": {"library_path": "libvulkan_x.so", "api_version": "1.3.0"}}"#;
        assert_eq!(library(text).as_deref(), Ok("libvulkan_x.so"));
        assert!(library("").unwrap_err().contains("no JSON"));
        for none in ["{}", "[]", r#"{"ICD": {"library_path": ""}}"#, r#"{"ICD": {"library_path": 3}}"#] {
            assert!(library(none).unwrap_err().contains("names no library"), "{none}");
        }
    }

    #[test]
    fn drivers_are_found_where_the_loader_finds_them() {
        let dir = tempfile::tempdir().unwrap();
        let at = |path: &str| dir.path().join(path);
        for (folder, file) in [("conf", "b"), ("data/one", "a"), ("data/two", "c"), ("home/.config", "h")] {
            std::fs::create_dir_all(at(folder).join(UNDER)).unwrap();
            let text = format!("{{\"ICD\": {{\"library_path\": \"lib{file}.so\"}}}}");
            std::fs::write(at(folder).join(UNDER).join(format!("{file}.json")), text).unwrap();
        }
        std::fs::write(at("conf").join(UNDER).join("readme.txt"), "no driver").unwrap();
        let text = |path: PathBuf| path.display().to_string();
        let of = |set: &[(&str, String)]| -> Vec<String> {
            let found = listing_by(|name| set.iter().find(|(n, _)| *n == name).map(|(_, v)| v.clone()));
            let ours = found.into_iter().filter(|m| m.path.starts_with(dir.path()));
            ours.map(|m| m.library.unwrap_or_else(|why| format!("{}: {why}", text(m.path)))).collect()
        };
        let data = format!("{}:{}", text(at("data/two")), text(at("data/one")));
        let usual = [("XDG_CONFIG_DIRS", text(at("conf"))), ("XDG_DATA_DIRS", data), ("HOME", text(at("home")))];
        assert_eq!(of(&usual), ["libh.so", "libb.so", "libc.so", "liba.so"]);
        let folder = text(at("conf").join(UNDER));
        let file = text(at("data/one").join(UNDER).join("a.json"));
        let more = [&usual[..], &[("VK_ADD_DRIVER_FILES", file.clone())]].concat();
        assert_eq!(of(&more), ["liba.so", "libh.so", "libb.so", "libc.so"], "each once");
        let only = [("VK_ICD_FILENAMES", file.clone()), ("VK_DRIVER_FILES", folder), ("HOME", text(at("home")))];
        assert_eq!(of(&only), ["libb.so"], "a folder, and nothing else");
        assert_eq!(of(&only[..1]), ["liba.so"]);
        let gone = text(at("gone.json"));
        assert!(of(&[("VK_DRIVER_FILES", gone)])[0].contains("cannot be read"));
    }
}
