//! What drivers do besides returning an error: releases that fail, functions and libraries that are missing, cards that do not
//! open. Libraries below gpuctl panic at some of these; none of it may come out but as a typed error.
//!
//! Stand-ins are built from tests/fixtures with the system's C compiler. What wgpu does late is tested in
//! `device::wgpu::late_tests`, where its handles are at hand.

#![cfg(target_os = "linux")]

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;

/// Says why a test cannot run. With anything in `GPUCTL_REQUIRE` a C compiler must be there.
fn skipped(test: &str, why: &str) {
    let require = std::env::var("GPUCTL_REQUIRE").unwrap_or_default();
    assert!(require.is_empty(), "GPUCTL_REQUIRE is '{require}', but: {why}");
    eprintln!("skipped: errors::{test}: {why}");
}

/// Builds a library from `tests/fixtures/SOURCE`. False without a C compiler.
fn build(library: &Path, source: &str, defines: &[String]) -> bool {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(source);
    let mut cc = Command::new("cc");
    cc.args(["-w", "-shared", "-fPIC", "-o"]).arg(library).arg(source).args(defines.iter().map(|d| format!("-D{d}")));
    let Ok(out) = cc.args(["-ldl"]).output() else { return false };
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    true
}

fn gpuctl(args: &[&str], variables: &[(&str, &Path)]) -> (Output, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_gpuctl"));
    command.args(args).env_remove("GPUCTL_REQUIRE").env("GPUCTL_CACHE", "off").env("RUST_BACKTRACE", "0");
    command.envs(variables.iter().copied());
    let out = command.output().unwrap();
    let talk = String::from_utf8_lossy(&out.stderr).into_owned();
    assert!(!talk.contains("panicked"), "{args:?}: {talk}");
    (out, talk)
}

fn pocl() -> Option<String> {
    let files = std::fs::read_dir("/etc/OpenCL/vendors").ok()?.flatten().map(|e| e.path());
    let name = |p: &PathBuf| p.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let file = files.into_iter().find(|p| name(p).starts_with("pocl") && name(p).ends_with(".icd"))?;
    Some(std::fs::read_to_string(file).ok()?.lines().next()?.trim().to_string())
}

/// opencl3's own types panic when a release fails; gpuctl's keep the error and the row is flagged.
#[test]
fn releases_that_fail_are_flags_not_panics() {
    let Some(driver) = pocl() else { return skipped("releases_that_fail_are_flags_not_panics", "no PoCL") };
    let folder = tempfile::tempdir().unwrap();
    let library = folder.path().join("librefuses.so");
    if !build(&library, "icd/refuses.c", &[format!("DRIVER=\"{driver}\"")]) {
        return skipped("releases_that_fail_are_flags_not_panics", "no C compiler");
    }
    std::fs::write(folder.path().join("refuses.icd"), format!("{}\n", library.display())).unwrap();
    let args = ["bench", "--op", "relu", "--sizes", "1000", "--device", "opencl:0", "--processes", "1"];
    let args = [&args[..], &["--budget", "200ms", "--json", "-", "--quiet"]].concat();
    let flags = |vendors: &Path| {
        let (out, talk) = gpuctl(&args, &[("OCL_ICD_VENDORS", vendors)]);
        assert!(out.status.success(), "{}: {talk}", out.status);
        let doc: Value = serde_json::from_slice(&out.stdout).unwrap();
        let rows = doc["records"].as_array().unwrap().clone();
        let row = rows.into_iter().find(|r| r["device"] == "opencl:0").unwrap();
        assert_eq!(row["status"], "ok", "{row}");
        row["flags"].to_string()
    };
    let refused = flags(folder.path());
    assert!(refused.contains("release-errors"), "{refused}");
    // The driver itself releases what it is told to.
    let clean = flags(Path::new("/etc/OpenCL/vendors"));
    assert!(!clean.contains("release-errors"), "{clean}");
}

/// cudarc panics where a library or a function is missing, and knows no driver that fails at once.
#[test]
fn drivers_of_cuda_that_fail_are_reasons_not_panics() {
    let folder = tempfile::tempdir().unwrap();
    let library = folder.path().join("libcuda.so.1");
    let devices = |defines: &[&str]| -> Option<(Output, String)> {
        let defines: Vec<String> = defines.iter().map(|d| (*d).to_string()).collect();
        build(&library, "cuda/stub.c", &defines).then(|| {
            let (out, _) = gpuctl(
                &["devices", "--why", "--backend", "cuda"],
                &[("LD_LIBRARY_PATH", folder.path()), ("HOME", folder.path())],
            );
            let text = String::from_utf8_lossy(&out.stdout).into_owned();
            (out, text)
        })
    };
    let Some((out, text)) = devices(&["INCOMPLETE"]) else {
        return skipped("drivers_of_cuda_that_fail_are_reasons_not_panics", "no C compiler");
    };
    assert!(out.status.success() && text.contains("too old") && text.contains("cuLaunchKernel"), "{text}");
    for (number, name) in [(999, "CUDA_ERROR_UNKNOWN"), (803, "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH")] {
        let (out, text) = devices(&[&format!("INIT={number}")]).unwrap();
        let said = format!("cuInit: {name} ({number})");
        assert!(out.status.success() && text.contains(&said), "{text}");
    }
    // A card that is listed and does not open: the error of the call is that of the status, with its class's exit code.
    for (number, code, name, exit) in [
        (46, "device-busy", "CUDA_ERROR_DEVICE_UNAVAILABLE", 1),
        (2, "out-of-device-memory", "CUDA_ERROR_OUT_OF_MEMORY", 1),
        (800, "permission-denied", "CUDA_ERROR_NOT_PERMITTED", 2),
    ] {
        let (_, text) = devices(&[&format!("OPEN={number}")]).unwrap();
        assert!(text.contains("Synthetic Card"), "{text}");
        let args = ["verify", "--op", "relu", "--device", "cuda:0"];
        let (out, talk) = gpuctl(&args, &[("LD_LIBRARY_PATH", folder.path()), ("HOME", folder.path())]);
        let said = format!("{name} ({number})");
        assert!(talk.contains(code) && talk.contains(&said), "{number}: {talk}");
        assert_eq!(out.status.code(), Some(exit), "{talk}");
    }
}
