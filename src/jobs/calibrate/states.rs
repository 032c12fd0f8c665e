//! In which state of the machine thresholds hold: what is asked for, and what the profile says of it.

use crate::base::Reading;
use crate::measure::Residency;
use crate::profile::{Profile, State};

use super::job::Job;

/// Judges all looks so far, for the states that were asked for: those of the earlier profile that is added to come first.
pub(super) fn settle(job: &mut Job<'_>) {
    let threads = job.rig.cpu.info().compute_units;
    let earlier = job.cfg.earlier.iter().flat_map(|p| &p.states);
    let known: Vec<&State> = earlier.chain(&job.cfg.states).collect();
    let devices = &job.profile.devices;
    let uid = |id: &str| devices.iter().find(|d| d.id == id).map(|d| d.uid.clone()).unwrap_or_default();
    let asked = |id: &str, residency: Residency| -> Option<Reading> {
        let key = State { device: uid(id), residency: residency.name().into(), threads, ..State::default() };
        known.iter().find(|s| s.same_key(&key)).map(|s| s.stated())
    };
    job.shared.settle(asked);
    let state = |(id, residency, state): (String, Residency, crate::measure::state::State)| State {
        device: uid(&id),
        residency: residency.name().into(),
        threads,
        looks: state.looks as u64,
        cpu_s: round(state.read.cpu_s),
        device_s: round(state.read.device_s),
        stated_cpu_s: round(state.stated.cpu_s),
        stated_device_s: round(state.stated.device_s),
    };
    let states: Vec<State> = job.shared.states().into_iter().map(state).collect();
    job.profile.states = states;
}

/// To five digits: nothing is known as well.
fn round(seconds: f64) -> f64 {
    format!("{seconds:.4e}").parse().unwrap_or(seconds)
}

/// A line for people where thresholds are stated for a state that this run was far from.
pub(super) fn notes(profile: &Profile) -> Vec<String> {
    let note = |s: &State| {
        let off = s.read().change(s.stated());
        let id = profile.devices.iter().find(|d| d.uid == s.device).map_or(s.device.as_str(), |d| d.id.as_str());
        (off > NOTED).then(|| {
            format!(
                "{id} {}: the machine reads {:.0} % off the state that thresholds are stated for (`profile show` tells it)",
                s.residency,
                100.0 * (off - 1.0)
            )
        })
    };
    profile.states.iter().filter_map(note).collect()
}

/// So many times as slow or fast is told.
const NOTED: f64 = 1.05;
