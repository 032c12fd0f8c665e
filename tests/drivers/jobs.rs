//! Jobs beside broken drivers: each leaves them out and goes on with the others.

use serde_json::Value;

use super::*;

/// Jobs on PoCL beside drivers that would take the job's process with them: each says what it leaves out and goes on, by the ids that
/// `devices` shows.
#[test]
fn jobs_go_on_beside_broken_drivers() {
    let test = "jobs_go_on_beside_broken_drivers";
    let Some((healthy, drivers)) = good(test) else { return };
    if !drivers.build("hangs", "hangs", &["WHILE_LOADING"]) {
        return skipped(test, "cc", "no C compiler 'cc'");
    }
    drivers.build("aborts", "crashes", &["ABORTS"]);
    let files = ["hangs", "aborts"].map(|name| drivers.path().join(format!("{name}.icd")).display().to_string());
    let (listed, _) = drivers.said(0, &["devices", "--json", "-"]);
    let listed: Value = serde_json::from_str(&listed).unwrap();
    assert_eq!(listed["devices"], healthy["devices"]);
    let uid = opencl(&listed, "devices", "uid")[0].clone();

    let npy = drivers.path().join("x.npy");
    let mut bytes = b"\x93NUMPY\x01\x00\x76\x00{'descr': '<f4', 'fortran_order': False, 'shape': (4,), }".to_vec();
    bytes.resize(127, b' ');
    bytes.push(b'\n');
    bytes.extend([-1.0f32, 2.0, -3.0, 4.0].iter().flat_map(|x| x.to_le_bytes()));
    std::fs::write(&npy, bytes).unwrap();
    let (x, y) = (npy.display().to_string(), drivers.path().join("y.npy").display().to_string());
    let profile = drivers.path().join("profile.toml").display().to_string();
    let jobs: [&[&str]; 6] = [
        &["bench", "--op", "relu", "--sizes", "4096", "--budget", "0.5", "--device", "opencl:0", "--processes", "2"],
        &["bench", "--op", "relu", "--sizes", "4096", "--budget", "0.5", "--device", &uid, "--processes", "1"],
        &["verify", "--case", "add/i32/n7/-/wide", "--device", "opencl:0"],
        &["calibrate", "--op", "relu", "--dtype", "f32", "--device", "opencl:0", "--budget", "3s", "-o", &profile],
        &["stress", "--seconds", "3", "--scenario", "alloc-cycle", "--device", "opencl:0", "--no-journal"],
        &["devices", "--trial", "--op", "neg", "--dtype", "i32", "--device", "opencl:0"],
    ];
    for (i, job) in jobs.into_iter().enumerate() {
        // A hang costs each job its wait: two of them meet one.
        let bad = if i < 2 { &files[..] } else { &files[1..] };
        if i == 2 {
            std::fs::remove_file(&files[0]).unwrap();
        }
        let args = [job, &["--json", "-"]].concat();
        let (out, err) = drivers.said(0, &args);
        for file in bad {
            let how = if *file == files[0] { "hung: no answer within 20 s" } else { "crashed the process" };
            let line = err.lines().find(|l| l.contains("left out") && l.contains(file.as_str()));
            assert!(line.is_some_and(|l| l.contains(how)), "{job:?}: {file}: {err}");
        }
        let doc: Value = serde_json::from_str(&out).unwrap_or_else(|e| panic!("{job:?}: {e}: {out}"));
        assert_eq!(opencl(&doc, "devices", "uid"), std::slice::from_ref(&uid), "{job:?}");
        assert_eq!(opencl(&doc, "devices", "id"), ["opencl:0"], "{job:?}");
        bad.iter().for_each(|file| assert!(row(&doc, file).0.contains("the driver's library")));
        let on = |key: &str, r: &Value| r[key] == "opencl:0" && r["status"] == "ok";
        let records = doc["records"].as_array().unwrap();
        assert!(records.iter().any(|r| on("ran_on", r)) || !matches!(job[0], "bench" | "verify"), "{job:?}: {out}");
        assert!(records.iter().all(|r| r["kind"] != "trial" || r["fitness"] == "fit"), "{out}");
    }
    drivers.said(0, &["run", "relu", "--in", &x, "--out", &y, "--device", "opencl:0"]);
    let computed = std::fs::read(&y).unwrap();
    assert!(computed.ends_with(&[0.0f32, 2.0, 0.0, 4.0].map(f32::to_le_bytes).concat()));

    // The only driver: a named device is missing, with the reason; what needs no GPU goes on without OpenCL.
    let lone = Drivers::new();
    lone.build("aborts", "crashes", &["ABORTS"]);
    let (_, err) = lone.said(3, &["verify", "--case", "add/i32/n7/-/wide", "--device", "opencl:0"]);
    assert!(
        err.contains("no device 'opencl:0'") && err.matches("libaborts.so crashed the process").count() > 1,
        "{err}"
    );
    let (out, _) = lone.said(0, &["verify", "--case", "add/i32/n7/-/wide", "--device", "cpu", "--json", "-"]);
    let doc: Value = serde_json::from_str(&out).unwrap();
    assert_eq!(doc["absent"], serde_json::json!([]), "who names the CPU asks no driver");
    let args = ["bench", "--op", "relu", "--sizes", "4096", "--budget", "0.5", "--device", "all", "--json", "-"];
    let (out, _) = lone.said(0, &args);
    let doc: Value = serde_json::from_str(&out).unwrap();
    assert!(opencl(&doc, "devices", "id").is_empty() && row(&doc, "aborts.icd").0.contains("crashed"), "{out}");
}

/// Healthy drivers are asked once: what they answered is kept, and holds until something changes.
#[test]
fn healthy_drivers_are_asked_once() {
    let test = "healthy_drivers_are_asked_once";
    let Some((_, drivers)) = good(test) else { return };
    let args = ["verify", "--case", "add/i32/n7/-/wide", "--device", "opencl:0"];
    let kept = drivers.cache.path().join("drivers/opencl.json");
    assert!(!kept.exists(), "a list keeps nothing: it asks each time");
    drivers.said(0, &args);
    let first: Value = serde_json::from_slice(&std::fs::read(&kept).unwrap()).unwrap();
    let pocl = |f: &Value| f["path"].as_str().unwrap().contains("libpocl");
    assert!(first["files"].as_array().unwrap().iter().any(pocl), "{first}");
    drivers.said(0, &args);
    assert_eq!(serde_json::from_slice::<Value>(&std::fs::read(&kept).unwrap()).unwrap(), first, "not asked again");
    // A driver more, and the list is another.
    if !drivers.build("aborts", "crashes", &["ABORTS"]) {
        return skipped(test, "cc", "no C compiler 'cc'");
    }
    let (_, err) = drivers.said(0, &args);
    assert!(err.contains("left out") && err.contains("aborts.icd"), "{err}");
    std::fs::remove_file(drivers.path().join("aborts.icd")).unwrap();
    let (_, err) = drivers.said(0, &args);
    assert!(!err.contains("left out"), "{err}");
}

/// A job on lavapipe beside Vulkan drivers that hang and crash.
#[test]
fn jobs_go_on_beside_broken_vulkan_drivers() {
    let test = "jobs_go_on_beside_broken_vulkan_drivers";
    let Some(good) = lavapipe() else { return skipped(test, "wgpu", "no manifest of lavapipe") };
    let mut drivers = Drivers::new();
    let Some(hangs) = drivers.manifest("hangs", &["HANGS"]) else {
        return skipped(test, "cc", "no C compiler 'cc'");
    };
    let crashes = drivers.manifest("crashes", &["CRASHES"]).unwrap();
    drivers.variables =
        ["VK_DRIVER_FILES", "VK_ICD_FILENAMES"].map(|name| (name, [&*hangs, &*crashes, &*good].join(":"))).to_vec();
    let args = ["verify", "--case", "add/i32/n7/-/wide", "--device", "wgpu:0", "--json", "-"];
    let (out, err) = drivers.said(0, &args);
    let doc: Value = serde_json::from_str(&out).unwrap();
    assert_eq!((&doc["records"][0]["status"], &doc["records"][0]["ran_on"]), (&"ok".into(), &"wgpu:0".into()), "{out}");
    for (file, how) in [(&hangs, "hung: no answer within 20 s"), (&crashes, "crashed the process")] {
        let line = err.lines().find(|l| l.contains("left out") && l.contains(file.as_str()));
        assert!(line.is_some_and(|l| l.contains(how)), "{file}: {err}");
    }
    // The processes that try devices load the same drivers.
    let args = ["devices", "--trial", "--op", "neg", "--dtype", "i32", "--device", "wgpu:0", "--json", "-"];
    let (out, err) = drivers.said(0, &args);
    let doc: Value = serde_json::from_str(&out).unwrap();
    assert_eq!(doc["records"][0]["fitness"], "fit", "{out}");
    assert!(err.contains(hangs.as_str()), "{err}");
}
