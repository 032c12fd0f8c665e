//! The library without the command line: what it pulls in, and a program of its own that uses it.

#![allow(clippy::print_stdout, reason = "a test tells what it skipped and found")]

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

/// Crates of a build with only the OpenCL backend on the machine that builds: 68 dependencies (with that which opens a
/// BLAS at run time) and ours.
const MOST_CRATES: usize = 69;

fn cargo(dir: &Path, args: &[&str]) -> String {
    let out = Command::new(env!("CARGO")).args(args).current_dir(dir).env_remove("CARGO_TARGET_DIR").output().unwrap();
    let (text, errors) = (String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr));
    assert!(out.status.success(), "cargo {}: {errors}", args.join(" "));
    text.into_owned()
}

fn crates(features: &[&str]) -> BTreeSet<String> {
    let mut args = vec!["tree", "--offline", "--locked", "-e", "normal,build", "--prefix", "none", "-f", "{p}"];
    args.extend(features);
    let text = cargo(Path::new(env!("CARGO_MANIFEST_DIR")), &args);
    let name = |line: &str| line.split_whitespace().take(2).collect::<Vec<_>>().join(" ");
    text.lines().filter(|l| !l.trim().is_empty()).map(name).collect()
}

#[test]
fn the_library_is_light() {
    let light = crates(&["--no-default-features", "--features", "opencl"]);
    println!("{} crates with --no-default-features --features opencl", light.len());
    let named = |set: &BTreeSet<String>, name: &str| set.iter().any(|c| c.split(' ').next() == Some(name));
    let full = crates(&[]);
    for heavy in ["clap", "indicatif", "comfy-table", "plotters", "anyhow", "wgpu"] {
        assert!(named(&full, heavy), "the full build should use {heavy}: has it been renamed?");
        assert!(!named(&light, heavy), "the light build pulls in {heavy}");
    }
    assert!(named(&light, "opencl3"));
    assert!(
        light.len() <= MOST_CRATES,
        "{} crates:\n{}",
        light.len(),
        light.into_iter().collect::<Vec<_>>().join("\n")
    );
}

/// Builds `tests/consumer` outside of the source tree, with our lock file, and runs it.
#[test]
fn a_program_of_its_own_loads_a_profile_and_runs_an_op() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let source = root.join("tests/consumer");
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join("../consumer");
    std::fs::create_dir_all(dir.join("src")).unwrap();
    let manifest = std::fs::read_to_string(source.join("Cargo.toml")).unwrap();
    assert!(manifest.contains("default-features = false, features = [\"opencl\"]"));
    let absolute = manifest.replace("path = \"../..\"", &format!("path = {:?}", root.display().to_string()));
    assert_ne!(manifest, absolute);
    std::fs::write(dir.join("Cargo.toml"), absolute).unwrap();
    std::fs::copy(root.join("Cargo.lock"), dir.join("Cargo.lock")).unwrap();
    std::fs::copy(source.join("src/main.rs"), dir.join("src/main.rs")).unwrap();
    cargo(&dir, &["build", "--offline"]);

    let program = dir.join("target/debug").join(format!("gpuctl-consumer{}", std::env::consts::EXE_SUFFIX));
    let run = |spec: &str| {
        let mut command = Command::new(&program);
        // Nothing of the machine's own settings may decide.
        command.env_remove("GPUCTL_PROFILE").env("GPUCTL_DISABLE_GPU", "1").arg(spec).output().unwrap()
    };
    let good = run("preset:default");
    assert_eq!(String::from_utf8_lossy(&good.stdout).trim(), "default cpu [7.0, 10.0, 15.0, 22.0]");
    let bad = run("/nonexistent.toml");
    assert!(!bad.status.success());
    assert!(String::from_utf8_lossy(&bad.stderr).contains("ProfileNotFound"), "{bad:?}");
}

/// The example runs to its end, its own assertions included.
#[test]
fn the_example_of_an_own_function_runs() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let text = cargo(root, &["run", "--offline", "--locked", "--quiet", "--example", "own_function"]);
    assert!(text.contains("blur: crossing") && text.contains("200000 elements: Gpu"), "{text}");
}
