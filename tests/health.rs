//! Health of cards: states as a file, trees like those of Linux, and the command itself.

use std::path::Path;
use std::process::Command;
use std::time::Instant;

use gpuctl::base::telemetry::{HealthRecord, HostSnapshot, Snapshot};
use gpuctl::device::telemetry;
use gpuctl::jobs::health;
use serde_json::Value;

/// Replaces what `change` names, deep within objects.
fn merged(base: &Value, change: &Value) -> Value {
    match (base, change) {
        (Value::Object(b), Value::Object(c)) => {
            let mut all = b.clone();
            for (key, value) in c {
                let old = b.get(key).unwrap_or(&Value::Null);
                all.insert(key.clone(), merged(old, value));
            }
            Value::Object(all)
        }
        _ => change.clone(),
    }
}

struct State {
    name: String,
    record: HealthRecord,
    expect: Vec<String>,
    verdict: String,
    exit: u64,
}

fn states() -> Vec<State> {
    let file: Value = serde_json::from_str(include_str!("fixtures/health/states.json")).unwrap();
    let state = |s: &Value| {
        let text = |key: &str| s[key].as_str().unwrap_or_else(|| panic!("{key} of {s}")).to_string();
        assert!(text("source").contains("synthetic"), "only what a machine gave is anything else: {s}");
        let record = match s.get("card") {
            Some(change) => {
                let card: Snapshot = serde_json::from_value(merged(&file["base"], change)).unwrap();
                health::card("cuda:0", &card, 1)
            }
            None => health::host(&serde_json::from_value::<HostSnapshot>(s["host"].clone()).unwrap()),
        };
        let expect = s["expect"].as_array().unwrap().iter().map(|c| c.as_str().unwrap().to_string()).collect();
        State { name: text("name"), record, expect, verdict: text("verdict"), exit: s["exit"].as_u64().unwrap() }
    };
    file["states"].as_array().unwrap().iter().map(state).collect()
}

#[test]
fn every_state_has_its_findings_and_exit_code() {
    let states = states();
    assert!(states.len() >= 40, "{} states", states.len());
    for s in &states {
        let mut found: Vec<&str> = s.record.findings.iter().map(|f| f.code.as_str()).collect();
        let mut expect: Vec<&str> = s.expect.iter().map(String::as_str).collect();
        found.sort_unstable();
        expect.sort_unstable();
        assert_eq!(found, expect, "{}: {:?}", s.name, s.record);
        assert_eq!(s.record.verdict, s.verdict, "{}: {:?}", s.name, s.record);
        assert_eq!(u64::from(health::exit_code(std::slice::from_ref(&s.record))), s.exit, "{}", s.name);
        for f in &s.record.findings {
            assert!(!f.detail.is_empty() && f.next.len() > 10, "{}: {f:?}", s.name);
        }
        // What had nothing to look at says why.
        for name in &s.record.unchecked {
            assert!(s.record.not_told.iter().any(|n| n.what == *name && !n.why.is_empty()), "{}: {name}", s.name);
        }
    }
}

/// Every kind of finding but a hanging driver's is met by a state, and none is made up outside of the table.
#[test]
fn every_kind_of_finding_has_a_state() {
    let states = states();
    let met: Vec<&str> = states.iter().flat_map(|s| s.record.findings.iter().map(|f| f.code.as_str())).collect();
    for kind in health::KINDS.iter().filter(|k| k.code != "telemetry-hangs") {
        assert!(met.contains(&kind.code), "no state for {}", kind.code);
    }
    assert!(met.iter().all(|code| health::find(code).is_some()));
    let hanging = health::hanging("host", "a driver", 1.5);
    assert_eq!(
        (hanging.findings[0].code.as_str(), health::exit_code(std::slice::from_ref(&hanging))),
        ("telemetry-hangs", 1)
    );
}

#[test]
fn the_gravest_comes_first_and_one_bad_card_is_enough() {
    let all: Vec<HealthRecord> = states().into_iter().map(|s| s.record).collect();
    let rank = |severity: &str| ["critical", "warning", "notice"].iter().position(|s| *s == severity).unwrap();
    for r in &all {
        assert!(r.findings.is_sorted_by_key(|f| rank(&f.severity)), "{r:?}");
    }
    let of = |verdict: &str| all.iter().find(|r| r.verdict == verdict && r.device != "host").unwrap().clone();
    assert_eq!(health::exit_code(&[of("healthy"), of("healthy")]), 0);
    assert_eq!(health::exit_code(&[of("healthy"), of("unknown")]), 4);
    assert_eq!(health::exit_code(&[of("unknown"), of("finding")]), 1);
    assert_eq!(health::exit_code(&[]), 4);
}

fn write(root: &Path, path: &str, text: &str) {
    let file = root.join(path);
    std::fs::create_dir_all(file.parent().unwrap()).unwrap();
    std::fs::write(file, text).unwrap();
}

/// A tree with the files of an amdgpu card behind a port, an xe card without a monitor, and things that are no cards.
/// Synthetic; names and units: kernel documentation, "GPU Power/Thermal Controls and Monitoring" (amdgpu), "sysfs-bus-pci",
/// "DRM client usage stats".
fn tree(root: &Path) {
    let port = "sys/devices/pci0000:00/0000:00:01.1";
    let amd = format!("{port}/0000:03:00.0");
    write(root, &format!("{port}/max_link_speed"), "8.0 GT/s PCIe\n");
    write(root, &format!("{port}/max_link_width"), "16\n");
    for (file, text) in [
        ("uevent", "DRIVER=amdgpu\nPCI_ID=1002:744C\nPCI_SLOT_NAME=0000:03:00.0\n"),
        ("current_link_speed", "2.5 GT/s PCIe\n"),
        ("current_link_width", "16\n"),
        ("max_link_speed", "16.0 GT/s PCIe\n"),
        ("max_link_width", "16\n"),
        ("mem_info_vram_total", "25753026560\n"),
        ("mem_info_vram_used", "27000000\n"),
        ("gpu_busy_percent", "3\n"),
        ("numa_node", "0\n"),
        ("ras/umc_err_count", "ue: 1\nce: 5\n"),
        ("hwmon/hwmon4/temp1_input", "99000\n"),
        ("hwmon/hwmon4/temp1_crit", "100000\n"),
        ("hwmon/hwmon4/temp1_emergency", "105000\n"),
        ("hwmon/hwmon4/power1_average", "33000000\n"),
        ("hwmon/hwmon4/power1_cap", "303000000\n"),
        ("hwmon/hwmon4/power1_cap_default", "303000000\n"),
        ("hwmon/hwmon4/freq1_input", "500000000\n"),
    ] {
        write(root, &format!("{amd}/{file}"), text);
    }
    let intel = "sys/devices/pci0000:00/0000:00:02.0";
    write(root, &format!("{intel}/uevent"), "DRIVER=xe\nPCI_ID=8086:56A0\nPCI_SLOT_NAME=0000:00:02.0\n");
    write(root, &format!("{intel}/current_link_width"), "255\n");
    write(root, "sys/devices/platform/simple/uevent", "DRIVER=simple-framebuffer\n");
    write(root, "sys/class/drm/version", "drm 1.1.0\n");
    write(root, "sys/class/drm/card1-DP-1/status", "connected\n");
    #[cfg(unix)]
    for (card, device) in [("card0", amd.as_str()), ("card1", intel), ("card2", "sys/devices/platform/simple")] {
        std::fs::create_dir_all(root.join("sys/class/drm").join(card)).unwrap();
        std::os::unix::fs::symlink(root.join(device), root.join("sys/class/drm").join(card).join("device")).unwrap();
    }
    let client = "pos:\t0\nflags:\t02\ndrm-driver:\tamdgpu\ndrm-pdev:\t0000:03:00.0\ndrm-client-id:\t7\n";
    // One client through two descriptors, and a second one.
    for (file, text) in [
        ("77/fdinfo/3", format!("{client}drm-memory-vram:\t2048 KiB\n")),
        ("77/fdinfo/4", format!("{client}drm-memory-vram:\t2048 KiB\n")),
        ("77/fdinfo/5", format!("{}drm-memory-vram:\t1024 KiB\n", client.replace("\t7\n", "\t8\n"))),
        ("78/fdinfo/1", "pos:\t0\nflags:\t02\n".to_string()),
    ] {
        write(root, &format!("proc/{file}"), &text);
    }
}

#[cfg(unix)]
#[test]
fn trees_of_linux_are_read() {
    let folder = tempfile::tempdir().unwrap();
    tree(folder.path());
    let told = telemetry::ask_tree(folder.path());
    let uids: Vec<&str> = told.cards.iter().map(|c| c.uid.as_str()).collect();
    assert_eq!(uids, ["pci:0000:03:00.0", "pci:0000:00:02.0"]);
    let amd = &told.cards[0];
    assert_eq!((amd.driver.as_deref(), amd.temperature_c, amd.slowdown_c), (Some("amdgpu"), Some(99.0), Some(100.0)));
    assert_eq!((amd.power_w, amd.power_cap_w, amd.clock_mhz), (Some(33.0), Some(303.0), Some(500)));
    assert_eq!((amd.memory.uncorrected, amd.memory.corrected, amd.numa_node), (Some(1), Some(5), Some(0)));
    assert_eq!((amd.link.generation, amd.link.card_generation, amd.link.slot_generation), (Some(1), Some(4), Some(3)));
    let used: Vec<_> = amd.processes.as_ref().unwrap().iter().map(|p| (p.pid, p.bytes)).collect();
    assert_eq!(used, [(77, Some(3 << 20))]);
    let record = health::card("opencl:0", amd, 1);
    let codes: Vec<&str> = record.findings.iter().map(|f| f.code.as_str()).collect();
    assert_eq!(codes, ["ecc-uncorrected", "temperature-high", "ecc-corrected", "other-processes"]);
    // The link was read without load.
    assert!(record.unchecked.contains(&"link".to_string()));
    let intel = health::card("opencl:1", &told.cards[1], 1);
    assert_eq!((intel.verdict.as_str(), told.cards[1].link.width), ("unknown", None), "{intel:?}");
    // An empty tree has no cards.
    assert!(telemetry::ask_tree(&folder.path().join("nowhere")).cards.is_empty());
}

/// Each process sees its own home, so that what is free there is told.
fn devices(args: &[&str]) -> (Option<i32>, String, String, f64) {
    let begin = Instant::now();
    let out = Command::new(env!("CARGO_BIN_EXE_gpuctl")).arg("devices").args(args).output().unwrap();
    let text = |b: &[u8]| String::from_utf8_lossy(b).into_owned();
    (out.status.code(), text(&out.stdout), text(&out.stderr), begin.elapsed().as_secs_f64())
}

#[test]
fn the_command_says_what_it_looked_at() {
    let (code, stdout, stderr, _) = devices(&["--health", "--json", "-"]);
    let doc: Value = serde_json::from_str(&stdout).unwrap_or_else(|e| panic!("{e}: {stdout} {stderr}"));
    let records = doc["records"].as_array().unwrap();
    let host = records.iter().find(|r| r["device"] == "host").unwrap();
    assert!(host["checked"].as_array().unwrap().iter().any(|c| c == "free space"), "{host}");
    assert_eq!(doc["exit_code"].as_i64().map(|c| c as i32), code);
    let cards = records.len() - 1;
    let found = records.iter().any(|r| r["verdict"] == "finding");
    // Without a card nothing is known, and that is not 0.
    assert!(cards > 0 || code == Some(if found { 1 } else { 4 }), "{code:?} {stdout}");
    let (again, lines, ..) = devices(&["--health", "--line", "--quiet"]);
    assert_eq!((again, lines.lines().count()), (code, records.len()), "{lines}");
    assert!(lines.lines().all(|l| l.split(' ').count() == 3), "{lines}");
    let (_, table, talk, _) = devices(&["--health"]);
    assert!(table.contains("verdict") && table.contains("host"), "{table}");
    assert_eq!(cards == 0, talk.contains("no card tells its health"), "{talk}");
    for wrong in [&["--health", "--ops"][..], &["--health", "--line", "--json", "-"]] {
        assert_eq!(devices(wrong).0, Some(2), "{wrong:?}");
    }
}

#[test]
fn the_page_lists_every_finding() {
    let page = include_str!("../docs/health.md");
    for kind in health::KINDS {
        let row = format!("| `{}` | {} | {} | {} |", kind.code, kind.grade.name(), kind.category, kind.next);
        assert!(page.contains(&row), "docs/health.md lacks: {row}");
    }
    assert_eq!(page.matches("\n| `").count(), health::KINDS.len());
}

#[test]
fn the_host_is_described() {
    let (code, stdout, ..) = devices(&["--json", "-"]);
    let doc: Value = serde_json::from_str(&stdout).unwrap();
    let (host, system) = (&doc["host"], &doc["host"]["system"]);
    assert_eq!(code, Some(0));
    if cfg!(target_os = "linux") {
        let on = system["processors"].as_u64().unwrap();
        assert!(on >= 1 && host["cpus"].as_u64().unwrap() <= on, "{host}");
        assert!(system["numa_nodes"].is_null() || system["numa_nodes"].as_u64() >= Some(1), "{host}");
    }
    let (_, text, ..) = devices(&["--why"]);
    for word in ["host  ", "processors", "cgroup quota", "caches", "governor", "virtualised"] {
        assert!(text.contains(word), "{word} is not in: {text}");
    }
}
