//! Broken OpenCL drivers beside a good one: each is a row with its reason, none hides another, and nothing waits for long.
//!
//! The broken ones are built from tests/fixtures/icd with the system's C compiler; the good one is PoCL.

#![cfg(target_os = "linux")]
#![allow(clippy::print_stderr, reason = "skips are named")]

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use tempfile::TempDir;

/// A bound on hanging, not on speed: a hung driver is given 20 s, and the machine may be busy.
const LIMIT: Duration = Duration::from_secs(120);

/// Says why a test cannot run. What `GPUCTL_REQUIRE` names must be there; a C compiler, too, where it names anything.
fn skipped(test: &str, needs: &str, why: &str) {
    let require = std::env::var("GPUCTL_REQUIRE").unwrap_or_default();
    let required = if needs == "cc" { !require.is_empty() } else { require.split(',').any(|r| r == needs) };
    assert!(!required, "GPUCTL_REQUIRE is '{require}', but: {why}");
    eprintln!("skipped: drivers::{test}: {why}");
}

/// A folder of drivers.
struct Drivers(TempDir);

impl Drivers {
    fn new() -> Self {
        Drivers(tempfile::tempdir().unwrap())
    }

    fn path(&self) -> &Path {
        self.0.path()
    }

    /// Writes `NAME.icd`.
    fn icd(&self, name: &str, text: &str) {
        std::fs::write(self.path().join(format!("{name}.icd")), text).unwrap();
    }

    /// Builds a driver from `tests/fixtures/icd/SOURCE.c` and names it in `NAME.icd`. False without a C compiler.
    fn build(&self, name: &str, source: &str, define: Option<&str>) -> bool {
        let library = self.path().join(format!("lib{name}.so"));
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/fixtures/icd/{source}.c"));
        let mut cc = Command::new("cc");
        cc.args(["-shared", "-fPIC", "-o"]).arg(&library).arg(source).args(define.map(|d| format!("-D{d}")));
        let Ok(out) = cc.output() else { return false };
        assert!(out.status.success(), "{name}: {}", String::from_utf8_lossy(&out.stderr));
        self.icd(name, &format!("{}\n", library.display()));
        true
    }

    /// Copies PoCL's file. False if there is none.
    fn pocl(&self) -> bool {
        let installed = std::fs::read_dir("/etc/OpenCL/vendors").into_iter().flatten().flatten().map(|e| e.path());
        let name = |p: &PathBuf| p.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let pocl = installed.into_iter().find(|p| name(p).starts_with("pocl") && name(p).ends_with(".icd"));
        pocl.is_some_and(|p| std::fs::copy(&p, self.path().join("pocl.icd")).is_ok())
    }

    /// Runs `gpuctl` with these drivers and no others; gives its stdout. The exit code must be 0, and nothing may be left:
    /// no process, no temporary file.
    fn gpuctl(&self, args: &[&str]) -> String {
        let work = tempfile::tempdir().unwrap();
        let temporary = work.path().join("temporary");
        std::fs::create_dir(&temporary).unwrap();
        let file = |name: &str| std::fs::File::create(work.path().join(name)).unwrap();
        let read = |name: &str| String::from_utf8_lossy(&std::fs::read(work.path().join(name)).unwrap()).into_owned();
        let mut command = Command::new(env!("CARGO_BIN_EXE_gpuctl"));
        command
            .args(args)
            .env("OCL_ICD_VENDORS", self.path())
            .env("TMPDIR", &temporary)
            .env("DRIVERS_TEST", work.path());
        for name in
            ["OPENCL_VENDOR_PATH", "OCL_ICD_FILENAMES", "GPUCTL_DISABLE_GPU", "GPUCTL_CPU_ISA", "GPUCTL_REQUIRE"]
        {
            command.env_remove(name);
        }
        let mut child = command
            .stdin(Stdio::null())
            .stdout(file("stdout"))
            .stderr(file("stderr"))
            .spawn()
            .expect("the binary starts");
        let begun = Instant::now();
        let status = loop {
            if let Some(status) = child.try_wait().unwrap() {
                break status;
            }
            if begun.elapsed() > LIMIT {
                let _ = child.kill();
                let _ = child.wait();
                panic!("{args:?}: not over after {LIMIT:?}");
            }
            std::thread::sleep(Duration::from_millis(20));
        };
        eprintln!("{args:?}: {:.1} s", begun.elapsed().as_secs_f64());
        assert_eq!(status.code(), Some(0), "{args:?}: {status}: {}", read("stderr"));
        assert_eq!(processes_of(work.path()), Vec::<String>::new());
        let left: Vec<_> = std::fs::read_dir(&temporary).unwrap().flatten().map(|e| e.path()).collect();
        assert!(!left.iter().any(|p| p.to_string_lossy().contains("gpuctl")), "{left:?}");
        read("stdout")
    }

    fn document(&self) -> Value {
        serde_json::from_str(&self.gpuctl(&["devices", "--json", "-"])).expect("stdout is one JSON document")
    }
}

/// Processes that were started with this value of our variable.
fn processes_of(mark: &Path) -> Vec<String> {
    let wanted = format!("DRIVERS_TEST={}", mark.display());
    let all = std::fs::read_dir("/proc").unwrap().flatten().map(|e| e.path());
    let ours = all.filter(|p| {
        let environment = std::fs::read(p.join("environ")).unwrap_or_default();
        environment.split(|b| *b == 0).any(|variable| variable == wanted.as_bytes())
    });
    ours.map(|p| format!("{}: {}", p.display(), std::fs::read_to_string(p.join("cmdline")).unwrap_or_default()))
        .collect()
}

fn strings(doc: &Value, list: &str, key: &str, keep: impl Fn(&Value) -> bool) -> Vec<String> {
    let rows = doc[list].as_array().unwrap().iter().filter(|row| keep(row));
    rows.map(|row| row[key].as_str().unwrap().to_string()).collect()
}

/// uids of all devices.
fn uids(doc: &Value) -> Vec<String> {
    strings(doc, "devices", "uid", |_| true)
}

fn opencl(doc: &Value, list: &str, key: &str) -> Vec<String> {
    strings(doc, list, key, |row| row["backend"] == "opencl")
}

/// The one row about a driver: its reason and the next step.
fn row(doc: &Value, what: &str) -> (String, String) {
    let of = |key: &str| {
        let found = strings(doc, "absent", key, |row| row["what"].as_str().unwrap().contains(what));
        assert_eq!(found.len(), 1, "{what}: {}", doc["absent"]);
        found[0].clone()
    };
    let (reason, next) = (of("reason"), of("next"));
    assert!(!next.is_empty() && !reason.contains('\n'), "{reason}");
    (reason, next)
}

/// What the good driver gives alone: document and drivers; `None` names the skip.
fn good(test: &str) -> Option<(Value, Drivers)> {
    let drivers = Drivers::new();
    if !drivers.pocl() {
        skipped(test, "opencl", "no PoCL in /etc/OpenCL/vendors");
        return None;
    }
    let doc = drivers.document();
    if opencl(&doc, "devices", "id").is_empty() {
        skipped(test, "opencl", &opencl(&doc, "absent", "reason").join("; "));
        return None;
    }
    assert_eq!(opencl(&doc, "absent", "what"), Vec::<String>::new());
    Some((doc, drivers))
}

#[test]
fn no_broken_driver_hides_the_rest() {
    let test = "no_broken_driver_hides_the_rest";
    let Some((healthy, drivers)) = good(test) else { return };
    if !drivers.build("hangs", "hangs", None) {
        return skipped(test, "cc", "no C compiler 'cc'");
    }
    drivers.build("hangs-loading", "hangs", Some("WHILE_LOADING"));
    drivers.build("crashes", "crashes", None);
    drivers.build("aborts", "crashes", Some("ABORTS"));
    drivers.build("old", "old", None);
    drivers.icd("missing", "libno-such-driver.so.1\n");
    drivers.icd("empty", "");
    let doc = drivers.document();

    assert_eq!(doc["complete"], true);
    assert_eq!(uids(&doc), uids(&healthy), "every device that was there before, and no other");
    for (name, reason) in [
        ("hangs", "libhangs.so hung: no answer within 20 s"),
        ("hangs-loading", "libhangs-loading.so hung: no answer within 20 s"),
        ("crashes", "libcrashes.so crashed the process that asked for its devices (signal SIGSEGV)"),
        ("aborts", "libaborts.so crashed the process that asked for its devices (signal SIGABRT)"),
        ("missing", "library-not-found: the driver's library libno-such-driver.so.1 cannot be loaded"),
        ("empty", "the file is empty"),
    ] {
        let file = drivers.path().join(format!("{name}.icd"));
        let (said, _) = row(&doc, file.to_str().unwrap());
        assert!(said.contains(reason), "{name}: {said}");
    }
    let (said, _) = row(&doc, "aborts.icd");
    assert!(said.ends_with("its last words: fake driver: firmware not found"), "{said}");
    let (said, next) = row(&doc, "Old Card");
    assert!(said.starts_with("driver-too-old: ") && said.contains("OpenCL 1.1"), "{said}");
    assert_eq!(next, "update the driver");
    assert_eq!(opencl(&doc, "absent", "what").len(), 7, "{}", doc["absent"]);
}

/// Without the bad driver the loader would list the same devices with the same ids: they keep those.
#[test]
fn ids_are_those_without_the_bad_driver() {
    let test = "ids_are_those_without_the_bad_driver";
    let Some((_, drivers)) = good(test) else { return };
    if !drivers.build("old", "old", None) {
        return skipped(test, "cc", "no C compiler 'cc'");
    }
    let before = drivers.document();
    drivers.build("aborts", "crashes", Some("ABORTS"));
    let doc = drivers.document();
    assert_eq!(doc["devices"], before["devices"]);
    let old = |doc: &Value| opencl(doc, "absent", "what").into_iter().find(|w| w.contains("Old Card")).unwrap();
    assert_eq!(old(&doc), old(&before));

    // A bad driver that is the only one.
    let lone = Drivers::new();
    lone.build("aborts", "crashes", Some("ABORTS"));
    let doc = lone.document();
    assert_eq!(opencl(&doc, "devices", "id"), Vec::<String>::new());
    assert!(row(&doc, "aborts.icd").0.contains("libaborts.so crashed"));

    // The other forms of the list.
    let table = drivers.gpuctl(&["devices", "--why"]);
    assert!(table.contains("aborts.icd: not usable: worker-crashed: ") && table.contains("| opencl:"), "{table}");
    let ops = drivers.gpuctl(&["devices", "--ops"]);
    assert!(ops.contains("opencl:") && ops.contains("aborts.icd: not usable: "), "{ops}");
}

#[test]
fn drivers_that_the_loader_leaves_out_are_rows() {
    let Some((healthy, drivers)) = good("drivers_that_the_loader_leaves_out_are_rows") else { return };
    drivers.icd("missing", "libno-such-driver.so.1\n");
    drivers.icd("dos", "libno-such-driver.so.1\r\n");
    drivers.icd("other", "libm.so.6\n");
    drivers.icd("empty", "");
    let doc = drivers.document();
    assert_eq!(doc["devices"], healthy["devices"]);
    let (said, _) = row(&doc, "missing.icd");
    let system = "libno-such-driver.so.1: cannot open shared object file: No such file or directory";
    assert!(said.ends_with(&format!("libno-such-driver.so.1 cannot be loaded: {system}")), "{said}");
    assert!(row(&doc, "dos.icd").1.contains("carriage returns"));
    assert!(row(&doc, "other.icd").0.contains("libm.so.6 is no OpenCL driver"));
    assert!(row(&doc, "empty.icd").0.contains("the file is empty"));

    let none = Drivers::new();
    let doc = none.document();
    assert_eq!(opencl(&doc, "devices", "id"), Vec::<String>::new());
    let (said, next) = row(&doc, "opencl");
    assert!(said.contains("no driver (ICD)") && said.contains(none.path().to_str().unwrap()), "{said}");
    assert!(next.contains("install"), "{next}");
}
