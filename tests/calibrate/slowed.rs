//! A card that lowers its clocks while it is calibrated, on a simulator that says that it is a card.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use gpuctl::base::telemetry::Snapshot;
use gpuctl::base::{DeviceClass, DeviceInfo};
use gpuctl::device::spoilt::Spoilt;
use gpuctl::device::telemetry::{Telemetry, Told};

use super::*;

fn told(throttle: Option<u64>) -> Told {
    Told { cards: vec![Snapshot { uid: "GPU-1".into(), throttle, ..Snapshot::default() }], ..Told::default() }
}

/// From the third answer on the card protects itself from heat (NVML's bit 0x40): after the first group's first look.
fn heats_up() -> Telemetry {
    let asked = AtomicUsize::new(0);
    Telemetry::new(move || told(Some(if asked.fetch_add(1, Ordering::Relaxed) < 2 { 0x1 } else { 0x40 })))
}

fn calibrated(telemetry: fn() -> Telemetry, class: DeviceClass) -> Calibrated {
    let (cpu, gpu) = sim::open_spec(sim::spec("h200").unwrap(), Compute::Real).unwrap();
    let info = DeviceInfo { uid: "GPU-1".into(), class, ..gpu.info().clone() };
    let cfg =
        CalibrateConfig { telemetry, range: Some((1024, 1 << 14)), processes: 3, ..config(&["add", "exp", "tanh"]) };
    calibrate(&cfg, &rig(cpu, vec![Arc::new(Spoilt::posing(gpu, info))]))
}

#[test]
fn thresholds_of_a_slowed_card_say_so() {
    let all = calibrated(heats_up, DeviceClass::Discrete);
    let slow = |r: &&_| {
        let r: &gpuctl::base::record::CalibrateRecord = r;
        r.reason.contains("the card had lowered its clocks (hw-thermal)")
    };
    let n = all.records.iter().filter(slow).count();
    assert!(n > 0, "{:#?}", all.records.iter().map(|r| &r.reason).collect::<Vec<_>>());
    let note = all.profile.notes.iter().find(|n| n.contains("lowered its clocks (hw-thermal)"));
    assert!(note.is_some_and(|t| t.contains(&format!(": {n} keys were measured"))), "{:?}", all.profile.notes);
    let entries = all.profile.entries.iter().filter(|e| e.reason.contains("hw-thermal")).count();
    assert_eq!(entries, n, "the file says it as well");
    assert!(
        all.profile.entries.iter().all(|e| e.threshold.is_none() || !e.points.is_empty()),
        "and keeps its evidence"
    );
}

#[test]
fn what_is_not_told_is_noted_once_and_other_devices_are_not_asked() {
    let silent = calibrated(|| Telemetry::new(|| told(None)), DeviceClass::Discrete);
    let notes: Vec<_> = silent.profile.notes.iter().filter(|n| n.contains("lowered its clocks")).collect();
    assert!(notes.len() == 1 && notes[0].contains("it does not tell"), "{notes:?}");
    assert!(silent.records.iter().all(|r| !r.reason.contains("clocks")));
    let sound = calibrated(|| Telemetry::new(|| told(Some(0x1))), DeviceClass::Discrete);
    assert!(sound.profile.notes.iter().all(|n| !n.contains("clocks")), "{:?}", sound.profile.notes);
    let simulated = calibrated(|| Telemetry::new(|| panic!("asked")), DeviceClass::Simulated);
    assert!(simulated.profile.notes.iter().all(|n| !n.contains("clocks")), "{:?}", simulated.profile.notes);
}
