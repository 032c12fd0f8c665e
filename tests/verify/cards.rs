//! What a card tells while cases run, on the CPU that says that it is a card. The trees are synthetic.

#![cfg(unix)]

use std::path::Path;

use gpuctl::base::record::HealthRecord;
use gpuctl::base::{DeviceClass, DeviceInfo};
use gpuctl::device::telemetry::{Telemetry, ask_tree};

use super::*;

/// Asks a tree in which `happens` before the second answer; verify asks at its beginning and at its end.
fn tree(happens: fn(&Path, &Path)) -> Telemetry {
    let dir = tempfile::tempdir().unwrap();
    let card = dir.path().join("sys/devices/pci0000:00/0000:03:00.0");
    std::fs::create_dir_all(card.join("ras")).unwrap();
    std::fs::create_dir_all(card.join("tile0/gt0/freq0/throttle")).unwrap();
    std::fs::write(card.join("uevent"), "DRIVER=amdgpu\nPCI_SLOT_NAME=0000:03:00.0\n").unwrap();
    std::fs::write(card.join("ras/umc_err_count"), "ue: 1\nce: 5\n").unwrap();
    let class = dir.path().join("sys/class/drm/card0");
    std::fs::create_dir_all(&class).unwrap();
    std::os::unix::fs::symlink(&card, class.join("device")).unwrap();
    let mut asked = 0;
    Telemetry::new(move || {
        asked += 1;
        if asked == 2 {
            happens(&card, &class);
        }
        ask_tree(dir.path())
    })
}

fn quiet() -> Telemetry {
    tree(|_, _| ())
}
fn errors() -> Telemetry {
    tree(|card, _| std::fs::write(card.join("ras/umc_err_count"), "ue: 3\nce: 9\n").unwrap())
}
fn gone() -> Telemetry {
    tree(|_, class| std::fs::remove_file(class.join("device")).unwrap())
}
fn silent() -> Telemetry {
    Telemetry::new(Default::default)
}

fn on(telemetry: fn() -> Telemetry, class: DeviceClass) -> (VerifySummary, Vec<HealthRecord>, Vec<String>) {
    let inner = cpu();
    let (id, uid) = ("opencl:0".into(), "opencl/pci/0000:03:00.0".into());
    let info = DeviceInfo { id, uid, class, ..inner.info().clone() };
    let rig = Rig { devices: vec![Arc::new(Spoilt::posing(inner, info))], cpu: cpu(), absent: Vec::new() };
    let cfg = VerifyConfig {
        ops: vec![op::find("neg").unwrap()],
        dtypes: Some(vec![DType::I32]),
        telemetry: Some(telemetry),
        ..config()
    };
    let mut sink = Collect::default();
    let summary = verify::run(&cfg, &rig, &mut sink, &Cancel::new()).unwrap();
    assert!(summary.passed > 0 && summary.failed == 0, "{summary:?}");
    let health = sink.records.into_iter().filter_map(|r| if let Record::Health(h) = r { Some(*h) } else { None });
    (summary, health.collect(), sink.notes)
}

#[test]
fn right_results_of_a_failing_card_prove_nothing() {
    let card = DeviceClass::Discrete;
    let (summary, health, notes) = on(quiet, card);
    assert_eq!((summary.exit_code(), summary.faults, health.len()), (0, 0, 0));
    assert!(!notes.iter().any(|n| n.contains("telemetry") || n.contains("errors")), "{notes:?}");

    for (telemetry, code, detail) in [
        (errors as fn() -> Telemetry, "ecc-uncorrected", "2 more errors that were not corrected"),
        (gone, "gpu-lost", "the card was lost"),
    ] {
        let (summary, health, _) = on(telemetry, card);
        assert_eq!((summary.exit_code(), summary.faults), (1, 1), "{code}");
        let [record] = &health[..] else { panic!("{health:?}") };
        assert_eq!((record.device.as_str(), record.verdict.as_str()), ("opencl:0", "finding"));
        assert_eq!(record.findings[0].code, code);
        let line = verify::card_line(record);
        assert!(
            line.starts_with("FAIL opencl:0  ") && line.contains(detail) && line.contains("while cases ran"),
            "{line}"
        );
    }
    let (_, _, notes) = on(errors, card);
    assert!(notes.iter().any(|n| n.contains("corrected 4 more errors")), "{notes:?}");
}

#[test]
fn who_tells_nothing_is_named_with_the_reason() {
    let (summary, health, notes) = on(silent, DeviceClass::Discrete);
    assert_eq!((summary.exit_code(), health.len()), (0, 0));
    let said = notes.iter().find(|n| n.starts_with("opencl:0: telemetry: none (")).expect("a note");
    assert!(said.contains("no card that tells anything"), "{said}");
    let (_, _, notes) = on(|| Telemetry::new(|| panic!("asked")), DeviceClass::Software);
    assert!(notes.iter().any(|n| n.contains("telemetry: none (a software device")), "{notes:?}");
}
