//! A profile measured again while the machine is slowed down for some seconds, and when it has become another one.

use gpuctl::base::sink::{Cancel, Collect};
use gpuctl::device::sim::{self, Compute, Spec, Throttle};
use gpuctl::jobs::calibrate::{Calibrated, again};
use gpuctl::profile::Entry;
use gpuctl::profile::drift;

use super::{calibrate, config, rig};
use gpuctl::device::probe::Rig;

/// The device of this machine takes so many times as long.
fn machine(factor: f64) -> Rig {
    let mut spec: Spec = sim::spec("textbook").unwrap();
    spec.device.throttle = Some(Throttle { after_s: 0.0, factor });
    let (cpu, gpu) = sim::open_spec(spec, Compute::Real).unwrap();
    rig(cpu, vec![gpu])
}

fn words(made: &Calibrated, first: &Calibrated, second: &Calibrated) -> Vec<String> {
    let (records, _) = drift::twice(&made.profile, &first.profile, &second.asked);
    records.into_iter().map(|r| r.verdict).collect()
}

#[test]
fn what_slows_a_device_down_during_one_look_is_no_drift() {
    let cfg = config(&["relu", "exp"]);
    let made = calibrate(&cfg, &machine(1.0));
    let usual = calibrate(&cfg, &machine(1.0));
    assert!(drift::suspects(&made.profile, &usual.profile).is_empty(), "a machine that stays as it is");
    let mut first = calibrate(&cfg, &machine(2.0));
    let suspects: Vec<Entry> = drift::suspects(&made.profile, &first.profile).into_iter().cloned().collect();
    let moved = drift::drift(&made.profile, &first.profile).iter().filter(|r| r.verdict == "MOVED").count();
    assert!(moved >= 2 && suspects.len() == moved, "{moved} moved, {} suspected", suspects.len());

    let look = |rig: &Rig| {
        let suspects: Vec<&Entry> = suspects.iter().collect();
        again(&cfg, &suspects, rig, None, &mut Collect::default(), &Cancel::new()).unwrap().expect("keys of ops")
    };
    // It stays slow: the change is found, each key once.
    let slow = words(&made, &first, &look(&machine(2.0)));
    assert_eq!(slow.iter().filter(|w| *w == "MOVED").count(), moved, "{slow:?}");
    // It is as it was, or the other way off.
    let found = look(&machine(1.0));
    let passed = words(&made, &first, &found);
    assert!(passed.iter().all(|w| w == "SAME" || w == "WITHIN"), "{passed:?}");
    let unsteady = words(&made, &first, &look(&machine(0.5)));
    assert_eq!(unsteady.iter().filter(|w| *w == "UNKNOWN").count(), moved, "{unsteady:?}");
    // What was found last is what is written.
    first.replace(&suspects, &found);
    assert!(drift::suspects(&made.profile, &first.profile).is_empty());
    assert_eq!(first.profile.entries.len(), made.profile.entries.len());
    for record in &first.records {
        let entry =
            first.profile.entries.iter().find(|e| e.op == record.op.as_str() && e.residency == record.residency);
        assert_eq!(entry.unwrap().threshold, record.threshold);
    }
}

#[test]
fn keys_that_no_device_has_are_not_measured_again() {
    let cfg = config(&["relu"]);
    let made = calibrate(&cfg, &machine(1.0));
    let own = Entry { op: "mine".into(), ..made.profile.entries[0].clone() };
    let elsewhere = Entry { device: "sim:another".into(), ..made.profile.entries[0].clone() };
    for entry in [own, elsewhere] {
        let found = again(&cfg, &[&entry], &machine(1.0), None, &mut Collect::default(), &Cancel::new());
        assert!(found.unwrap().is_none(), "{}", entry.op);
    }
}
