//! In which state of the machine thresholds hold: what is asked for, and what the profile says of it.

use crate::base::Reading;
use crate::measure::Residency;
use crate::measure::state::State as Known;
use crate::profile::State;

use super::job::Job;

/// The state that thresholds of a device are to be stated for: that of the earlier profile that is added to comes first.
fn asked(job: &Job<'_>, id: &str, residency: Residency) -> Option<Reading> {
    let key = key(job, id, residency);
    let earlier = job.cfg.earlier.iter().flat_map(|p| &p.states);
    earlier.chain(&job.cfg.states).find(|s| s.same_key(&key)).map(State::stated)
}

fn key(job: &Job<'_>, id: &str, residency: Residency) -> State {
    let uid = job.profile.devices.iter().find(|d| d.id == id).map(|d| d.uid.clone()).unwrap_or_default();
    let threads = job.rig.cpu.info().compute_units;
    State { device: uid, residency: residency.name().into(), threads, ..State::default() }
}

/// Judges all looks so far, for the states that were asked for.
pub(super) fn settle(job: &mut Job<'_>) {
    job.shared.settle(|id, residency| asked(job, id, residency));
    let state = |(id, residency, state): (String, Residency, Known)| State {
        looks: state.looks as u64,
        cpu_s: round(state.read.cpu_s),
        device_s: round(state.read.device_s),
        stated_cpu_s: round(state.stated.cpu_s),
        stated_device_s: round(state.stated.device_s),
        ..key(job, &id, residency)
    };
    let states: Vec<State> = job.shared.states().into_iter().map(state).collect();
    job.profile.states = states;
}

/// To five digits: nothing is known as well.
fn round(seconds: f64) -> f64 {
    format!("{seconds:.4e}").parse().unwrap_or(seconds)
}

/// So many times as slow or fast is told.
const NOTED: f64 = 1.05;

/// Lines for people where this run was far from the state that thresholds are stated for, or they could not be stated for it.
pub(super) fn notes(job: &Job<'_>) -> Vec<String> {
    let states = job.shared.states();
    let note =
        |(id, residency, known): &(String, Residency, Known)| remark(id, *residency, asked(job, id, *residency), known);
    states.iter().filter_map(note).collect()
}

fn remark(id: &str, residency: Residency, asked: Option<Reading>, known: &Known) -> Option<String> {
    let asked = asked?;
    let percent = 100.0 * (known.read.change(asked) - 1.0);
    let residency = residency.name();
    match known.stated == asked {
        false => Some(format!(
            "{id} {residency}: the machine reads {percent:.0} % off the state that thresholds were to be stated for, which is too far, or too \
             little is known of what that does: they are stated for what it reads now"
        )),
        true => (percent > 100.0 * (NOTED - 1.0)).then(|| {
            format!(
                "{id} {residency}: the machine reads {percent:.0} % off the state that thresholds are stated for (`profile show` tells it)"
            )
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_state_that_thresholds_are_not_stated_for_is_told() {
        let of = |device_s| Reading { cpu_s: 1e-5, device_s };
        let said = |asked: Option<f64>, read: f64, stated: f64| {
            let known = Known { looks: 2000, read: of(read), stated: of(stated), error: 0.0 };
            remark("opencl:0", Residency::Always, asked.map(of), &known)
        };
        assert_eq!((said(None, 1e-4, 1e-4), said(Some(1e-4), 1.04e-4, 1e-4)), (None, None));
        let off = said(Some(1e-4), 1.2e-4, 1e-4).unwrap();
        assert!(off.starts_with("opencl:0 always: the machine reads 20 % off the state that thresholds are"), "{off}");
        for read in [1.02e-4, 1.5e-4] {
            let own = said(Some(1e-4), read, read).unwrap();
            assert!(own.contains("they are stated for what it reads now"), "{own}");
        }
    }
}
