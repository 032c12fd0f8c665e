//! Broken OpenCL and Vulkan drivers beside a good one: each is a row with its reason, none hides another, and nothing waits for long.
//! Good ones beside each other: each device once, with an id and a uid that no order of listing changes.
//!
//! The broken ones are built from tests/fixtures/icd with the system's C compiler; the good ones are PoCL and lavapipe.

#![cfg(target_os = "linux")]
#![allow(clippy::print_stderr, reason = "skips are named")]

mod jobs;

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

/// A folder of drivers, and variables to start gpuctl with.
struct Drivers {
    folder: TempDir,
    /// Where gpuctl keeps what it found out.
    cache: TempDir,
    variables: Vec<(&'static str, String)>,
}

impl Drivers {
    fn new() -> Self {
        let (folder, cache) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        Drivers { folder, cache, variables: Vec::new() }
    }

    fn path(&self) -> &Path {
        self.folder.path()
    }

    /// Writes `NAME.icd`.
    fn icd(&self, name: &str, text: &str) {
        std::fs::write(self.path().join(format!("{name}.icd")), text).unwrap();
    }

    /// Builds a driver from `tests/fixtures/icd/SOURCE.c` and names it in `NAME.icd`. False without a C compiler.
    fn build(&self, name: &str, source: &str, defines: &[&str]) -> bool {
        let library = self.library(name, source, defines);
        library.is_some_and(|library| {
            self.icd(name, &format!("{}\n", library.display()));
            true
        })
    }

    /// Builds a Vulkan driver and names it in `NAME.json`, whose path it gives. `None` without a C compiler.
    fn manifest(&self, name: &str, defines: &[&str]) -> Option<String> {
        let library = self.library(name, "vulkan", defines)?;
        let icd = serde_json::json!({ "library_path": library, "api_version": "1.1.0" });
        let text = serde_json::json!({ "file_format_version": "1.0.0", "ICD": icd }).to_string();
        let path = self.path().join(format!("{name}.json"));
        std::fs::write(&path, text).unwrap();
        Some(path.display().to_string())
    }

    /// `libNAME.so`, made of `tests/fixtures/icd/SOURCE.c`. `None` without a C compiler.
    fn library(&self, name: &str, source: &str, defines: &[&str]) -> Option<PathBuf> {
        let library = self.path().join(format!("lib{name}.so"));
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/fixtures/icd/{source}.c"));
        let mut cc = Command::new("cc");
        cc.args(["-shared", "-fPIC", "-o"]).arg(&library).arg(source).args(defines.iter().map(|d| format!("-D{d}")));
        let out = cc.output().ok()?;
        assert!(out.status.success(), "{name}: {}", String::from_utf8_lossy(&out.stderr));
        Some(library)
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
        self.gpuctl_ending(0, args)
    }

    /// The same with another exit code.
    fn gpuctl_ending(&self, code: i32, args: &[&str]) -> String {
        self.said(code, args).0
    }

    /// The same, and its stderr.
    fn said(&self, code: i32, args: &[&str]) -> (String, String) {
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
            .env("DRIVERS_TEST", work.path())
            .env("GPUCTL_CACHE", self.cache.path());
        for name in
            ["OPENCL_VENDOR_PATH", "OCL_ICD_FILENAMES", "GPUCTL_DISABLE_GPU", "GPUCTL_CPU_ISA", "GPUCTL_REQUIRE"]
        {
            command.env_remove(name);
        }
        command.envs(self.variables.iter().map(|(name, value)| (*name, value.as_str())));
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
        assert_eq!(status.code(), Some(code), "{args:?}: {status}: {}", read("stderr"));
        assert_eq!(processes_of(work.path()), Vec::<String>::new());
        let left: Vec<_> = std::fs::read_dir(&temporary).unwrap().flatten().map(|e| e.path()).collect();
        assert!(!left.iter().any(|p| p.to_string_lossy().contains("gpuctl")), "{left:?}");
        (read("stdout"), read("stderr"))
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
    if !drivers.build("hangs", "hangs", &[]) {
        return skipped(test, "cc", "no C compiler 'cc'");
    }
    drivers.build("hangs-loading", "hangs", &["WHILE_LOADING"]);
    drivers.build("crashes", "crashes", &[]);
    drivers.build("aborts", "crashes", &["ABORTS"]);
    drivers.build("old", "old", &[]);
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

    // Health waits for none of them, and tells of those that would take a command with them.
    let health: Value =
        serde_json::from_str(&drivers.gpuctl_ending(1, &["devices", "--health", "--json", "-"])).unwrap();
    assert_eq!(uids(&health), uids(&healthy));
    let broken: Vec<&Value> = health["records"]
        .as_array()
        .unwrap()
        .iter()
        .flat_map(|r| r["findings"].as_array().unwrap())
        .filter(|f| f["code"] == "driver-broken")
        .collect();
    assert_eq!(broken.len(), 4, "{}", health["records"]);
    let told = |words: &str| broken.iter().filter(|f| f["detail"].as_str().unwrap().contains(words)).count();
    assert_eq!((told("no answer within 1.5 s"), told("crashed the process")), (2, 2), "{broken:?}");
}

/// Vulkan's loader asks all drivers at once as well.
#[test]
fn no_broken_vulkan_driver_hides_the_rest() {
    let test = "no_broken_vulkan_driver_hides_the_rest";
    let Some(good) = lavapipe() else {
        return skipped(test, "wgpu", "no manifest of lavapipe");
    };
    let mut drivers = Drivers::new();
    let with = |files: &[&str]| ["VK_DRIVER_FILES", "VK_ICD_FILENAMES"].map(|name| (name, files.join(":"))).to_vec();
    drivers.variables = with(&[&good]);
    let wgpu = |doc: &Value| -> Vec<Value> {
        doc["devices"].as_array().unwrap().iter().filter(|d| d["backend"] == "wgpu").cloned().collect()
    };
    let healthy = wgpu(&drivers.document());
    if healthy.is_empty() {
        return skipped(test, "wgpu", "lavapipe gives no device");
    }
    let Some(hangs) = drivers.manifest("hangs", &["HANGS"]) else {
        return skipped(test, "cc", "no C compiler 'cc'");
    };
    let crashes = drivers.manifest("crashes", &["CRASHES"]).unwrap();
    let refuses = drivers.manifest("refuses", &[]).unwrap();
    drivers.variables = with(&[&hangs, &crashes, &refuses, &good]);
    let doc = drivers.document();
    assert_eq!(wgpu(&doc), healthy, "what was there before, with its ids, and nothing else");
    for (file, reason) in
        [(&hangs, "launch-timeout: the driver's library "), (&crashes, "worker-crashed: the driver's library ")]
    {
        let (said, next) = row(&doc, file);
        assert!(said.starts_with(reason) && next.contains("VK_DRIVER_FILES"), "{said}; {next}");
    }
    assert!(row(&doc, &hangs).0.ends_with("libhangs.so hung: no answer within 20 s"));
    assert!(row(&doc, &crashes).0.ends_with("(signal SIGABRT); its last words: fake driver: firmware not found"));

    // The only driver.
    drivers.variables = with(&[&crashes]);
    let doc = drivers.document();
    assert!(wgpu(&doc).is_empty() && row(&doc, &crashes).0.contains("crashed the process"), "{}", doc["absent"]);
    // One that refuses its loader is no fault of ours to find: it has no device.
    drivers.variables = with(&[&refuses]);
    let doc = drivers.document();
    assert!(wgpu(&doc).is_empty() && !strings(&doc, "absent", "reason", |r| r["backend"] == "wgpu").is_empty());
}

/// The manifest of lavapipe, if it is installed.
fn lavapipe() -> Option<String> {
    let folders = ["/usr/share/vulkan/icd.d", "/etc/vulkan/icd.d"];
    let files = folders.into_iter().flat_map(|f| std::fs::read_dir(f).into_iter().flatten().flatten());
    let mut lavapipe = files.filter(|f| f.file_name().to_string_lossy().starts_with("lvp"));
    lavapipe.next().map(|f| f.path().display().to_string())
}

/// Without the bad driver the loader would list the same devices with the same ids: they keep those.
#[test]
fn ids_are_those_without_the_bad_driver() {
    let test = "ids_are_those_without_the_bad_driver";
    let Some((_, drivers)) = good(test) else { return };
    if !drivers.build("old", "old", &[]) {
        return skipped(test, "cc", "no C compiler 'cc'");
    }
    let before = drivers.document();
    drivers.build("aborts", "crashes", &["ABORTS"]);
    let doc = drivers.document();
    assert_eq!(doc["devices"], before["devices"]);
    let old = |doc: &Value| opencl(doc, "absent", "what").into_iter().find(|w| w.contains("Old Card")).unwrap();
    assert_eq!(old(&doc), old(&before));

    // A bad driver that is the only one.
    let lone = Drivers::new();
    lone.build("aborts", "crashes", &["ABORTS"]);
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

/// What a list says of OpenCL's devices: id and uid; of those that cannot be used, which still take a number, id and name.
fn numbering(doc: &Value) -> Vec<String> {
    let mut all: Vec<_> = opencl(doc, "devices", "id")
        .into_iter()
        .zip(opencl(doc, "devices", "uid"))
        .map(|(i, u)| format!("{i} {u}"))
        .collect();
    all.extend(opencl(doc, "absent", "what").into_iter().filter(|what| what.starts_with("opencl:")));
    all.sort_unstable();
    all
}

impl Drivers {
    /// A folder with the same drivers under other names, in an order of its own.
    fn shuffled(&self, seed: usize) -> Drivers {
        let ends = |p: &PathBuf| p.extension().is_some_and(|e| e == "icd");
        let mut files: Vec<_> =
            std::fs::read_dir(self.path()).unwrap().flatten().map(|e| e.path()).filter(ends).collect();
        files.sort_unstable();
        let count = files.len();
        files.rotate_left(seed % count);
        if seed % 2 == 1 {
            files.reverse();
        }
        let other = Drivers { variables: self.variables.clone(), ..Drivers::new() };
        for (i, file) in files.iter().enumerate() {
            other.icd(&format!("{}{i}", ["a", "Z", "m"][(i + seed) % 3]), &std::fs::read_to_string(file).unwrap());
        }
        other
    }
}

#[test]
fn ids_do_not_depend_on_the_order_of_the_files() {
    let test = "ids_do_not_depend_on_the_order_of_the_files";
    let Some((_, drivers)) = good(test) else { return };
    if !drivers.build("old", "old", &[]) {
        return skipped(test, "cc", "no C compiler 'cc'");
    }
    // One platform's name, each with one card: another version, the very same, and one card behind two drivers.
    drivers.build("two", "old", &["USABLE", "VERSION=\"2.0\""]);
    drivers.build("twin", "old", &["USABLE", "VERSION=\"2.0\""]);
    drivers.build("three", "old", &["USABLE", "VERSION=\"3.0\"", "ADDRESS=3"]);
    drivers.build("four", "old", &["USABLE", "VERSION=\"4.0\"", "ADDRESS=3"]);
    let doc = drivers.document();
    let expected = [
        "opencl:0 Old Card",
        "opencl:1 opencl/old-platform/2-0/0",
        "opencl:2 opencl/old-platform/2-0/2/0",
        "opencl:3 opencl/pci/0000:03:00.0/old-platform/3-0/0",
        "opencl:4 opencl/pci/0000:03:00.0/old-platform/4-0/0",
        "opencl:5 opencl/portable-computing-language/0",
    ];
    assert_eq!(numbering(&doc), expected);
    for seed in 1..5 {
        let shuffled = drivers.shuffled(seed).document();
        assert_eq!(shuffled["devices"], doc["devices"], "{seed}");
        assert_eq!(numbering(&shuffled), expected, "{seed}");
    }
    // Jobs open by the same numbers.
    let shuffled = drivers.shuffled(5);
    for name in ["opencl:5", "opencl/portable-computing-language/0"] {
        // A file: the fake drivers write to stdout, in the process of the job, too.
        let file = shuffled.path().join("records.json");
        let args = ["verify", "--case", "add/i32/n7/-/wide", "--device", name, "--json", file.to_str().unwrap()];
        shuffled.gpuctl(&args);
        let doc: Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
        let record = &doc["records"][0];
        assert_eq!((record["status"].as_str(), record["ran_on"].as_str()), (Some("ok"), Some("opencl:5")), "{record}");
    }
}

#[test]
fn a_driver_that_is_named_twice_is_listed_once() {
    let test = "a_driver_that_is_named_twice_is_listed_once";
    let Some((_, mut drivers)) = good(test) else { return };
    if !drivers.build("new", "old", &["USABLE"]) {
        return skipped(test, "cc", "no C compiler 'cc'");
    }
    let library = drivers.path().join("libnew.so");
    let once = numbering(&drivers.document());
    assert_eq!(once, ["opencl:0 opencl/old-platform/0", "opencl:1 opencl/portable-computing-language/0"]);
    let pocl = std::fs::read_to_string(drivers.path().join("pocl.icd")).unwrap();
    drivers.icd("again", &pocl);
    drivers.icd("new-again", &format!("{}\n", library.display()));
    let link = drivers.path().join("liblink.so");
    std::os::unix::fs::symlink(&library, &link).unwrap();
    drivers.icd("link", &format!("{}\n", link.display()));
    drivers.variables.push(("OCL_ICD_FILENAMES", library.display().to_string()));
    assert_eq!(numbering(&drivers.document()), once);
    // Also where the drivers had to be asked apart from a bad one.
    drivers.build("aborts", "crashes", &["ABORTS"]);
    assert_eq!(numbering(&drivers.document()), once);
    std::fs::remove_file(drivers.path().join("aborts.icd")).unwrap();
    // A copy of a library is another driver.
    let copy = drivers.path().join("libcopy.so");
    std::fs::copy(&library, &copy).unwrap();
    drivers.icd("copy", &format!("{}\n", copy.display()));
    assert_eq!(
        numbering(&drivers.document()),
        [
            "opencl:0 opencl/old-platform/1-0/0",
            "opencl:1 opencl/old-platform/1-0/2/0",
            "opencl:2 opencl/portable-computing-language/0"
        ]
    );
}

/// Each of OpenCL's devices and lavapipe's is one of software.
fn all_software(doc: &Value) {
    let gpu = |row: &Value| row["backend"] == "opencl" || row["name"].as_str().unwrap().contains("llvmpipe");
    let classes = strings(doc, "devices", "class", gpu);
    assert!(!classes.is_empty() && classes.iter().all(|c| c == "software"), "{classes:?}");
}

#[test]
fn identical_devices_are_told_apart() {
    let Some((_, mut drivers)) = good("identical_devices_are_told_apart") else { return };
    drivers.variables.push(("POCL_DEVICES", "pthread pthread".into()));
    let doc = drivers.document();
    let pocl = "opencl/portable-computing-language";
    assert_eq!(numbering(&doc), [format!("opencl:0 {pocl}/0"), format!("opencl:1 {pocl}/1")]);
    let names = opencl(&doc, "devices", "name");
    assert_eq!(names[0], names[1], "identical but for id and uid");
    all_software(&doc);
    assert_eq!(drivers.shuffled(1).document()["devices"], doc["devices"]);
}

/// The host's processor by four ways: our own, two OpenCL drivers, Vulkan.
#[test]
fn several_drivers_of_one_processor_are_listed_once_each() {
    let test = "several_drivers_of_one_processor_are_listed_once_each";
    let Some((_, drivers)) = good(test) else { return };
    // Where tests/fetch-intel-opencl puts it, if it did.
    let target = std::env::var_os("CARGO_TARGET_DIR")
        .map_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("target"), PathBuf::from);
    let intel = target.join("intel-opencl/icd/intel.icd");
    if std::fs::copy(&intel, drivers.path().join("intel.icd")).is_err() {
        return skipped(test, "intel-opencl", "tests/fetch-intel-opencl installs it");
    }
    let doc = drivers.document();
    let expected = ["opencl:0 opencl/intel-r-opencl/0", "opencl:1 opencl/portable-computing-language/0"];
    assert_eq!(numbering(&doc), expected);
    assert_eq!(opencl(&doc, "absent", "what"), Vec::<String>::new());
    all_software(&doc);
    let subgroups = |row: &Value| row["features"].as_array().unwrap().contains(&"subgroups".into());
    assert_eq!(strings(&doc, "devices", "id", |row| row["backend"] == "opencl" && subgroups(row)), ["opencl:0"]);
    let ids = strings(&doc, "devices", "id", |_| true);
    assert_eq!(ids.iter().filter(|id| *id == "cpu").count(), 1, "{ids:?}");
    let lavapipe = strings(&doc, "devices", "uid", |row| row["name"].as_str().unwrap().contains("llvmpipe"));
    if lavapipe.is_empty() {
        skipped(test, "wgpu", "no lavapipe");
    }
    assert!(lavapipe.len() < 2, "{lavapipe:?}");
    // They are named as one piece of hardware.
    let processor = doc["records"].as_array().unwrap().iter().find(|r| r["matched_by"] == "processor");
    assert_eq!(processor.map(|r| &r["ids"]), Some(&ids.clone().into()), "{doc}");
    let mut uids = uids(&doc);
    uids.sort_unstable();
    uids.dedup();
    assert_eq!(uids.len(), ids.len(), "{uids:?}");
    for seed in 1..4 {
        assert_eq!(drivers.shuffled(seed).document()["devices"], doc["devices"], "{seed}");
    }
    // The second OpenCL compiler runs our kernels.
    let said =
        drivers.gpuctl(&["verify", "--case", "softmax/f32/m7,n33/-/uniform", "--device", "opencl:0", "--json", "-"]);
    let doc: Value = serde_json::from_str(&said).unwrap();
    assert_eq!(
        (&doc["records"][0]["status"], &doc["records"][0]["ran_on"]),
        (&"ok".into(), &"opencl:0".into()),
        "{said}"
    );
}
