//! The command line as a user meets it: exit codes, one-line errors, clean stdout.

use std::process::{Command, Output};

fn gpuctl(args: &[&str]) -> Command {
    let mut c = Command::new(env!("CARGO_BIN_EXE_gpuctl"));
    c.args(args);
    // Mesa's device-select layer otherwise remarks on stderr that XDG_RUNTIME_DIR is not set.
    c.env("NODEVICE_SELECT", "1");
    for name in ["GPUCTL_PROFILE", "GPUCTL_DISABLE_GPU", "GPUCTL_CPU_ISA", "GPUCTL_REQUIRE", "GPUCTL_AWAKE"] {
        c.env_remove(name);
    }
    c
}

fn run(args: &[&str]) -> Output {
    gpuctl(args).output().expect("the binary starts")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// A profile's notes reach people once, whether they were told at the start or stand in the summary.
#[test]
fn notes_of_a_calibration_are_told_once() {
    let made = run(&["calibrate", "--device", "cpu", "--threads", "1,1", "--budget", "1s"]);
    let (toml, said) = (text(&made.stdout), text(&made.stderr));
    let note = "no GPU takes part";
    assert_eq!((made.status.code(), toml.matches(note).count(), said.matches(note).count()), (Some(0), 1, 1), "{said}");
}

/// Bad input: one line on stderr that names the mistake, nothing on stdout, exit code 2 or 3.
#[test]
fn bad_input_gets_one_clear_line() {
    let broken = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(broken.path(), "schema = [[[").unwrap();
    let broken = broken.path().to_str().unwrap().to_string();
    let cases: &[(&[&str], &str, i32)] = &[
        (&["bench", "--sizes", "4096..128"], "128..4096", 2),
        (&["bench", "--sizes", "0"], "start at 1", 2),
        (&["bench", "--region", "10us"], "expected 50.0 us to 1 s", 2),
        (&["bench", "--region", "2s"], "expected 50.0 us to 1 s", 2),
        (&["bench", "--region", "soon"], "expected a positive duration", 2),
        (&["bench", "--sizes", "many"], "not a size", 2),
        (&["bench", "--op", "gemmm"], "unknown op 'gemmm'", 2),
        (&["bench", "--dtype", "f31"], "unknown dtype 'f31'", 2),
        (&["bench", "--shape", "4x4", "--device", "cpu"], "mxnxk", 2),
        (&["bench", "--attr", "gamma=1", "--device", "cpu"], "gamma", 2),
        (&["bench", "--budget", "soon"], "positive duration", 2),
        (&["bench", "--residency", "moon"], "resident always", 2),
        (&["bench", "--threads", "0"], "--threads", 2),
        (&["bench", "--device", "cuda:7"], "no device 'cuda:7'", 3),
        (&["bench", "--device", "tpu:0"], "no device 'tpu:0'", 3),
        (&["bench", "--device", "sim:cray"], "cray", 3),
        (&["calibrate", "--margin", "0.5"], "margin", 2),
        (&["calibrate", "--residency", "orbit"], "unknown residency 'orbit'", 2),
        (&["calibrate", "--merge", &broken], "profile-truncated", 2),
        (&["calibrate", "--merge", "high-end", "--device", "sim:laptop", "--op", "add"], "a preset holds no", 2),
        (&["calibrate", "--device", "sim:laptop", "--threads", "3,5"], "--threads 3: ", 2),
        (&["verify", "--device", "cpu", "--threads", "1,2"], "one number", 2),
        (&["calibrate", "--op", "nope"], "unknown op 'nope'", 2),
        (&["calibrate", "--op", "exp", "--dtype", "i32"], "one of these dtypes", 2),
        (&["calibrate", "--op", "h2d"], "a CPU side", 2),
        (&["calibrate", "--budget", "99999999999999999999"], "--budget 99999999999999999999", 2),
        (&["calibrate", "-o", "/does/not/exist/t.toml"], "its folder does not exist", 2),
        (&["calibrate", "--json", "/"], "is a folder", 2),
        (&["verify", "--case", "add/f32/m1/-/uniform"], "case", 2),
        (&["verify", "--tier", "heavy"], "smoke", 2),
        (&["verify", "--require", "huge"], "only big", 2),
        (&["verify", "--require", "big"], "--tier full", 2),
        (&["verify", "--require", "big", "--tier", "full", "--op", "add"], "op neg, dtype i8", 2),
        (&["verify", "--require", "big", "--tier", "full", "--op", "neg", "--dtype", "f32"], "op neg, dtype i8", 2),
        (&["verify", "--require", "big", "--case", "neg/i8/n4/-/uniform"], "op neg, dtype i8", 2),
        (&["verify", "--rtol", "nan"], "--rtol NaN", 2),
        (&["verify", "--atol=-1"], "--atol -1", 2),
        (&["stress", "--seconds", "0"], "seconds", 2),
        (&["stress", "--inject", "gremlins", "--device", "cpu"], "gremlins", 2),
        (&["stress", "--scenario", "nap"], "nap", 2),
        (&["profile", "why", "gemm", "--shape", "8x8x8", "--profile", &broken], "profile-truncated", 2),
        (&["profile", "diff", "default", "low-end", "--tolerance", "lots"], "--tolerance lots", 2),
        (&["profile", "diff", "default", &broken], "profile-truncated", 2),
        (&["profile", "merge", "default", "low-end"], "preset", 2),
        (&["profile", "set", "margin=2", "default"], "-o FILE", 2),
        (&["profile", "lint", "--seal", "default"], "part of gpuctl", 2),
        (&["profile", "lint", "--seal", &broken], "profile-parse", 2),
        (&["profile", "why", "gemm", "--shape", "8x8x8", "--profile", "/does/not/exist.toml"], "profile-not-found", 2),
    ];
    for (args, needle, code) in cases {
        let out = run(args);
        let (stdout, stderr) = (text(&out.stdout), text(&out.stderr));
        assert_eq!(out.status.code(), Some(*code), "{args:?}: {stderr}");
        assert!(stderr.contains(needle), "{args:?}: {stderr}");
        assert_eq!(stderr.trim_end().lines().count(), 1, "{args:?}: {stderr}");
        assert!(stdout.is_empty(), "{args:?}: {stdout}");
    }
    // The margin is the profile's.
    let out = run(&["calibrate", "--check", &broken, "--margin", "1.2"]);
    assert!(out.status.code() == Some(2) && text(&out.stderr).contains("cannot be used with"), "{}", text(&out.stderr));
}

#[test]
fn help_lists_the_five_subcommands_first() {
    let out = run(&["--help"]);
    assert!(out.status.success());
    let help = text(&out.stdout);
    let at = |name: &str| help.find(&format!("\n  {name} ")).unwrap_or_else(|| panic!("{name} is missing: {help}"));
    let order = ["devices", "bench", "calibrate", "verify", "stress", "profile"].map(at);
    assert!(order.windows(2).all(|w| w[0] < w[1]), "{help}");
    assert!(!help.contains("stress-worker"));
    assert_eq!(run(&[]).status.code(), Some(2));
}

#[test]
fn json_on_stdout_is_json_only() {
    let out = run(&["bench", "--op", "add", "--sizes", "1000", "--device", "cpu", "--budget", "200ms", "--json", "-"]);
    assert_eq!(out.status.code(), Some(0), "{}", text(&out.stderr));
    let doc: serde_json::Value = serde_json::from_slice(&out.stdout).expect("stdout is one JSON document");
    assert_eq!(doc["complete"], true);
    assert_eq!(doc["records"][0]["op"], "add");
    assert_eq!(doc["records"][0]["shape"]["n"], 1000);
    assert!(doc["records"][0]["median_s"].as_f64().unwrap() > 0.0);
    assert!(text(&out.stderr).is_empty(), "stderr is not a terminal: no progress; {}", text(&out.stderr));
}

/// Whether processors were kept awake stands with what was timed, and what is held against it is timed in the same way.
#[cfg(target_os = "linux")]
#[allow(clippy::print_stderr, reason = "a skip is named")]
#[test]
fn processors_are_kept_awake_as_asked_and_as_they_were() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name).to_str().unwrap().to_string();
    let bench = ["bench", "--op", "add", "--sizes", "1000", "--device", "cpu", "--budget", "200ms", "--json"];
    let awake = |path: &str| {
        let doc: serde_json::Value = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
        doc["host"]["awake"].as_bool().unwrap()
    };
    let quota = gpuctl::base::system::quota();
    for (asked, kept) in [("0", false), ("1", true)] {
        if let Some(q) = quota.filter(|q| kept && *q < gpuctl::base::os::allowed_cpus().len() as f64) {
            eprintln!("skipped: the quota of {q} processors would be used up");
            continue;
        }
        let first = at(asked);
        let out = gpuctl(&bench).arg(&first).env("GPUCTL_AWAKE", asked).output().unwrap();
        assert_eq!((out.status.code(), awake(&first)), (Some(0), kept), "{}", text(&out.stderr));
        let again = at("again");
        let out = gpuctl(&bench).args([&again, "--baseline", &first]).output().unwrap();
        assert_eq!((out.status.code(), awake(&again)), (Some(0), kept), "{}", text(&out.stderr));
        let other = if kept { "0" } else { "1" };
        let out = gpuctl(&bench).args(["-", "--baseline", &first]).env("GPUCTL_AWAKE", other).output().unwrap();
        assert_eq!((out.status.code(), text(&out.stdout).as_str()), (Some(2), ""));
        assert!(text(&out.stderr).contains("kept awake"), "{}", text(&out.stderr));

        let (made, json) = (at("made.toml"), at("calibrated"));
        let calibrate = |more: &[&str]| gpuctl(&[&["calibrate", "--device", "cpu", "--budget", "1s"], more].concat());
        let out = calibrate(&["-o", &made, "--json", &json]).env("GPUCTL_AWAKE", asked).output().unwrap();
        assert_eq!((out.status.code(), awake(&json)), (Some(0), kept), "{}", text(&out.stderr));
        let profile = gpuctl::profile::load(&made).unwrap().profile;
        assert_eq!(profile.host.unwrap().awake, kept);
        let shown = run(&["profile", "show", &made]);
        assert_eq!(text(&shown.stdout).contains("kept awake"), kept);
        assert!(!text(&shown.stderr).contains("awake"), "its reader knows the key: {}", text(&shown.stderr));
        for held in ["--merge", "--check"] {
            let out = calibrate(&[held, &made, "--json", &json]).output().unwrap();
            assert_eq!(awake(&json), kept, "{held}: {}", text(&out.stderr));
        }
    }
    // Simulated time passes as it always does.
    let sim = ["bench", "--op", "add", "--sizes", "1000", "--device", "sim:laptop", "--json"];
    let out = gpuctl(&sim).arg(at("sim")).env("GPUCTL_AWAKE", "1").output().unwrap();
    assert_eq!((out.status.code(), awake(&at("sim"))), (Some(0), false), "{}", text(&out.stderr));
    let bad = gpuctl(&["devices"]).env("GPUCTL_AWAKE", "often").output().unwrap();
    assert_eq!((bad.status.code(), bad.stdout.len()), (Some(2), 0), "{}", text(&bad.stderr));
}

#[test]
fn csv_and_markdown_have_one_row_per_point() {
    for (flag, header) in [("--csv", "op,dtype,shape"), ("--markdown", "| op | dtype")] {
        let out = run(&["bench", "--op", "relu", "--sizes", "100,200", "--device", "cpu", "--budget", "200ms", flag]);
        let stdout = text(&out.stdout);
        assert!(stdout.starts_with(header), "{stdout}");
        assert_eq!(stdout.lines().filter(|l| l.contains("relu")).count(), 2, "{stdout}");
    }
}

/// What `verify` writes besides its table, from one failing run: no exp is exact to the last bit.
#[test]
fn verify_writes_junit_and_failing_arrays() {
    let dir = tempfile::tempdir().unwrap();
    let (xml, failing) = (dir.path().join("out.xml"), dir.path().join("failing"));
    let case = ["verify", "--case", "exp/f32/n1025/-/uniform", "--device", "cpu", "--rtol", "0"];
    let out = gpuctl(&case).arg("--junit").arg(&xml).arg("--save-failing").arg(&failing).output().unwrap();
    assert_eq!(out.status.code(), Some(1), "{}", text(&out.stderr));
    let said = text(&out.stdout);
    assert!(
        said.contains("; asked for: |got - want| <= 0e0 + 0e0 |want|, 0 passed beyond gpuctl's own bound"),
        "{said}"
    );
    let xml = std::fs::read_to_string(xml).unwrap();
    assert!(
        xml.starts_with("<?xml") && xml.contains("failures=\"1\"") && xml.contains("--rtol 0e0 --atol 0e0"),
        "{xml}"
    );
    let folders: Vec<_> = std::fs::read_dir(&failing).unwrap().flatten().collect();
    assert_eq!(folders.len(), 1);
    assert!(folders[0].path().join("want0-y.npy").exists() && folders[0].path().join("case.txt").exists());
}

/// A picture of nothing is no reason to lose what a run found.
#[test]
fn a_calibration_without_a_picture_is_one_all_the_same() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("none.svg");
    let out = gpuctl(&["calibrate", "--device", "cpu", "--json", "-", "--plot"]).arg(&path).output().unwrap();
    let (doc, said) = (text(&out.stdout), text(&out.stderr));
    assert_eq!(out.status.code(), Some(0), "{said}");
    assert!(doc.contains("\"exit_code\": 0") && said.contains("nothing was measured") && !path.exists(), "{said}");
}

#[test]
fn a_chart_is_an_svg_with_readable_text() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("chart.svg");
    let args = ["bench", "--op", "relu", "--sizes", "1000..8000", "--device", "cpu", "--budget", "200ms", "--plot"];
    let out = gpuctl(&args).arg(&path).output().unwrap();
    assert!(out.status.success(), "{}", text(&out.stderr));
    let svg = std::fs::read_to_string(path).unwrap();
    assert!(svg.starts_with("<svg") && svg.contains("<text") && svg.contains("relu f32 cpu simd"), "{svg}");
}

#[test]
fn an_output_that_cannot_be_written_is_an_error() {
    let out = run(&["devices", "--json", "/nonexistent-folder/x.json"]);
    assert_ne!(out.status.code(), Some(0));
    assert!(text(&out.stderr).contains("/nonexistent-folder/x.json"));
    #[cfg(target_os = "linux")]
    {
        let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
        let out = gpuctl(&["devices", "--json", "-"]).stdout(full).output().unwrap();
        assert_eq!(out.status.code(), Some(5), "a full disk is not success");
        assert!(text(&out.stderr).contains("io: stdout"), "{}", text(&out.stderr));
    }
}

#[cfg(unix)]
#[test]
fn a_closed_pipe_is_no_error() {
    let mut child = gpuctl(&["devices", "--why"]).stdout(std::process::Stdio::piped()).spawn().unwrap();
    drop(child.stdout.take());
    assert!(child.wait().unwrap().success());
}

#[cfg(unix)]
#[test]
fn ctrl_c_keeps_the_rows_and_exits_130() {
    let dir = tempfile::tempdir().unwrap();
    let json = dir.path().join("out.json");
    let child = gpuctl(&["bench", "--op", "add,exp,tanh,sum", "--device", "cpu", "--json"])
        .arg(&json)
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    // The first row is awaited, not a time.
    use std::io::{BufRead, BufReader};
    let mut child = child;
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    for _ in 0..2 {
        lines.next().unwrap().unwrap();
    }
    let killed = Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
    assert!(killed.success());
    for _ in lines {}
    assert_eq!(child.wait().unwrap().code(), Some(130));
    let doc: serde_json::Value = serde_json::from_str(&std::fs::read_to_string(json).unwrap()).unwrap();
    assert_eq!(doc["complete"], false);
    assert!(!doc["records"].as_array().unwrap().is_empty());
}

/// Interrupted in the first of three passes: what that one measured is there, and no row is there twice.
#[cfg(unix)]
#[test]
fn ctrl_c_in_the_first_process_keeps_its_rows() {
    let ops = "add,sub,mul,exp,log,sin,cos,tan,tanh,sqrt,sum,max";
    let child = gpuctl(&["bench", "--op", ops, "--sizes", "1024..1048576", "--device", "cpu", "--json", "-"])
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    // Some of the 132 points of a process.
    std::thread::sleep(std::time::Duration::from_secs(2));
    let killed = Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
    assert!(killed.success());
    let out = child.wait_with_output().unwrap();
    assert_eq!(out.status.code(), Some(130));
    let doc: serde_json::Value = serde_json::from_slice(&out.stdout).unwrap();
    assert_eq!(doc["complete"], false);
    let rows = doc["records"].as_array().unwrap().iter().filter(|r| r["kind"] == "bench");
    let mut named: Vec<_> = rows.map(|r| (r["op"].as_str(), r["shape_text"].as_str())).collect();
    let count = named.len();
    named.sort_unstable();
    named.dedup();
    assert!(count == named.len() && (1..132).contains(&count), "{named:?}");
}

/// A calibration that is interrupted writes a whole file, which says that it is partial.
#[cfg(unix)]
#[test]
fn ctrl_c_leaves_a_partial_profile() {
    let child = gpuctl(&["calibrate", "--device", "sim:laptop", "--processes", "1"])
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    // The simulated machine's two minutes take much longer than this.
    std::thread::sleep(std::time::Duration::from_secs(2));
    let killed = Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
    assert!(killed.success());
    let out = child.wait_with_output().unwrap();
    assert_eq!(out.status.code(), Some(130), "{}", text(&out.stderr));
    let profile = gpuctl::profile::Profile::from_toml(&text(&out.stdout)).unwrap();
    assert!(profile.partial && profile.entries.iter().any(|e| e.reason.contains("interrupted")));
}

/// A profile measured again is itself; one whose threshold somebody tripled has drifted; another machine's is refused.
#[test]
fn a_profile_is_checked() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("made.toml");
    let path = path.to_str().unwrap();
    let made = run(&["calibrate", "--device", "sim:textbook", "--op", "relu", "--budget", "20s", "-o", path]);
    assert_eq!(made.status.code(), Some(0), "{}", text(&made.stderr));
    let profile = gpuctl::profile::load(path).unwrap().profile;
    let crossing = profile.entries.iter().find(|e| e.threshold.is_some()).expect("a key that crosses");
    let same = run(&["calibrate", "--check", path, "--budget", "20s"]);
    assert_eq!(same.status.code(), Some(0), "{}{}", text(&same.stdout), text(&same.stderr));
    assert!(text(&same.stdout).contains("0 MOVED"), "{}", text(&same.stdout));
    let (key, tripled) = (format!("relu.threshold={}", 3 * crossing.threshold.unwrap()), crossing.residency.clone());
    let set = run(&["profile", "set", &key, path, "--residency", &tripled]);
    assert_eq!(set.status.code(), Some(0), "{}", text(&set.stderr));
    let moved = run(&["calibrate", "--check", path, "--budget", "20s", "--json", "-"]);
    assert_eq!(moved.status.code(), Some(1), "{}", text(&moved.stderr));
    let doc: serde_json::Value = serde_json::from_slice(&moved.stdout).unwrap();
    let found: Vec<_> = doc["records"].as_array().unwrap().iter().filter(|r| r["verdict"] == "MOVED").collect();
    assert_eq!(found.len(), 1, "{found:?}");
    let preset = run(&["calibrate", "--check", "default"]);
    assert_eq!(preset.status.code(), Some(2), "{}", text(&preset.stderr));
    let elsewhere = run(&["calibrate", "--check", path, "--device", "sim:laptop", "--budget", "20s"]);
    assert_eq!(elsewhere.status.code(), Some(2), "{}", text(&elsewhere.stderr));
    assert!(elsewhere.stdout.is_empty());
}

#[test]
fn gpus_can_be_switched_off_and_required() {
    let out = gpuctl(&["devices", "--json", "-"]).env("GPUCTL_DISABLE_GPU", "1").output().unwrap();
    let doc: serde_json::Value = serde_json::from_slice(&out.stdout).unwrap();
    let ids: Vec<_> = doc["devices"].as_array().unwrap().iter().map(|d| d["id"].as_str().unwrap()).collect();
    assert_eq!(ids, ["cpu"]);
    assert_eq!(doc["absent"].as_array().unwrap().len(), 3, "three reasons");
    let out = gpuctl(&["bench", "--device", "opencl:0"]).env("GPUCTL_DISABLE_GPU", "1").output().unwrap();
    assert_eq!(out.status.code(), Some(3));
    assert!(text(&out.stderr).contains("GPUCTL_DISABLE_GPU"), "{}", text(&out.stderr));
    let out = gpuctl(&["devices"]).env("GPUCTL_DISABLE_GPU", "1").env("GPUCTL_REQUIRE", "cuda").output().unwrap();
    assert_eq!(out.status.code(), Some(3));
}

#[test]
fn bad_environment_is_refused() {
    let out = gpuctl(&["devices"]).env("GPUCTL_CPU_ISA", "mmx").output().unwrap();
    assert_eq!(out.status.code(), Some(2));
    assert!(text(&out.stderr).contains("mmx"));
    let out =
        gpuctl(&["bench", "--device", "cpu", "--op", "exp", "--sizes", "100", "--json", "-", "--budget", "100ms"])
            .env("GPUCTL_CPU_ISA", "baseline")
            .output()
            .unwrap();
    let doc: serde_json::Value = serde_json::from_slice(&out.stdout).unwrap();
    assert!(doc["devices"][0]["api"].as_str().unwrap().contains("baseline"));
}

/// The driver thread is pinned for timing; the CPU device must still get every CPU that the process may use.
#[test]
fn bench_uses_every_cpu_by_default() {
    let out = run(&["bench", "--device", "cpu", "--op", "add", "--sizes", "64", "--budget", "100ms", "--json", "-"]);
    let value: serde_json::Value = serde_json::from_str(&text(&out.stdout)).unwrap();
    let cpus = std::thread::available_parallelism().unwrap().get() as u64;
    assert_eq!(value["devices"][0]["compute_units"].as_u64(), Some(cpus), "{}", value["devices"]);
    assert_eq!(value["records"][0]["threads"].as_u64(), Some(cpus));
}
