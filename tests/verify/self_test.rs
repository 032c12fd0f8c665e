//! `verify --self-test` on the CPU, and that it fails when a detector is missing.

use gpuctl::base::record::SelfTestRecord;
use gpuctl::jobs::verify::{Detector, SelfTestSummary, self_test, self_test_line};

use super::*;

fn planted(off: Option<Detector>, only: Option<Detector>) -> (SelfTestSummary, Vec<SelfTestRecord>) {
    let rig = Rig { devices: vec![cpu()], cpu: cpu(), absent: Vec::new() };
    let mut sink = Collect::default();
    let summary = self_test(&rig, off, only, &mut sink, &Cancel::new()).unwrap();
    let records = sink.records.into_iter().filter_map(|r| if let Record::SelfTest(s) = r { Some(*s) } else { None });
    (summary, records.collect())
}

#[test]
fn every_fault_of_results_is_caught_and_texts_without_a_device_are_not_run() {
    let (summary, records) = planted(None, None);
    let bad: Vec<_> = records
        .iter()
        .filter(|r| !matches!(r.outcome.as_str(), "caught" | "allowed" | "not-run"))
        .map(self_test_line)
        .collect();
    assert!(bad.is_empty(), "{}", bad.join("\n"));
    assert!(summary.caught >= 50 && summary.caught + summary.not_run >= 58 && summary.allowed >= 2, "{summary:?}");
    // Nothing here takes OpenCL C or WGSL: those faults are named, and the run is not a pass.
    assert!(summary.not_run > 0 && summary.exit_code() == 4, "{summary:?}");
    for r in records.iter().filter(|r| r.outcome == "not-run") {
        assert!(r.detail.contains("no ") && r.device.is_empty(), "{r:?}");
    }
}

#[test]
fn a_detector_that_is_switched_off_is_noticed() {
    for detector in Detector::ALL {
        let (summary, records) = planted(Some(detector), Some(detector));
        let missed = records.iter().filter(|r| r.outcome == "missed").count() as u64;
        assert!(missed > 0 && summary.wrong == missed, "{}: {summary:?}", detector.name());
        assert_eq!(summary.exit_code(), 1);
    }
}
