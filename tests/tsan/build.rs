//! Copies the checked files without their own tests, as they are, and once more for the planted races.

use std::path::Path;

/// What a file has that this crate replaces.
const REPLACED: [(&str, &str); 6] = [
    (
        "use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};",
        "use std::sync::PoisonError;\nuse super::sync::{Arc, Condvar, Mutex, MutexGuard};",
    ),
    ("use crate::device::Program;\n", "use crate::Program;\n"),
    ("use super::entry::Key;\n", "use crate::Key;\n"),
    ("let thread = std::thread::Builder::new().name(\"gpuctl-kernels\".into());\n", ""),
    ("thread.spawn(move || work(&inner, &write)).is_err()", "!crate::start(move || work(&inner, &write))"),
    ("pub(super)", "pub(crate)"),
];

/// A helper stays inside of a job whose owner has gone on.
const FAULT: (&str, &str) = ("while word & INSIDE != 0 {", "while word & INSIDE > 1 {");

fn main() {
    let source = Path::new("../../src");
    let out = std::env::var("OUT_DIR").expect("cargo sets it");
    println!("cargo:rerun-if-changed=build.rs");
    for file in
        ["engine/shelves.rs", "engine/recover.rs", "engine/turns.rs", "engine/cache/writer.rs", "device/cpu/gate.rs"]
    {
        let path = source.join(file);
        println!("cargo:rerun-if-changed={}", path.display());
        let text = std::fs::read_to_string(&path).expect("the file is there");
        // A file's own comment cannot be included, and its tests need more than is here.
        let text: Vec<&str> =
            text.lines().take_while(|l| *l != "#[cfg(test)]").filter(|l| !l.starts_with("//!")).collect();
        let mut text = text.join("\n");
        for (has, gets) in REPLACED {
            text = text.replace(has, gets);
        }
        let name = file.rsplit('/').next().unwrap_or(file);
        if name == "writer.rs" {
            assert!(text.contains("crate::start(") && text.contains("use super::sync::{Arc"), "{name} has changed");
        }
        let wrong = if name == "gate.rs" {
            assert_eq!(text.matches(FAULT.0).count(), 1, "{name}: the place of the planted fault has changed");
            text.replace(FAULT.0, FAULT.1)
        } else {
            // Its locks let everybody in.
            text.clone()
        };
        for (folder, text) in [("right", &text), ("wrong", &wrong)] {
            let folder = Path::new(&out).join(folder);
            std::fs::create_dir_all(&folder).expect("cargo's folder");
            std::fs::write(folder.join(name), text).expect("cargo's folder");
        }
    }
}
