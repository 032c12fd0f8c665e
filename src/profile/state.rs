//! In which state of the machine thresholds hold.

use serde::{Deserialize, Serialize};

use crate::base::{FAR_OFF, Reading};

/// The state of a device with operands in one place, and of the host beside it: how long what tells of it took on average
/// (`measure::state`), and how long it takes on the machine that thresholds are stated for.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct State {
    /// Device uid.
    pub device: String,
    /// Residency, as in entries.
    pub residency: String,
    /// Threads of the CPU side.
    pub threads: u32,
    /// Looks around which it was read.
    pub looks: u64,
    /// Seconds of a search on one thread of the CPU.
    pub cpu_s: f64,
    /// Seconds of a short call of the device.
    pub device_s: f64,
    /// `cpu_s` of the machine that thresholds are stated for.
    pub stated_cpu_s: f64,
    /// `device_s` of the machine that thresholds are stated for.
    pub stated_device_s: f64,
}

impl State {
    /// What was read.
    pub fn read(&self) -> Reading {
        Reading { cpu_s: self.cpu_s, device_s: self.device_s }
    }

    /// What thresholds are stated for.
    pub fn stated(&self) -> Reading {
        Reading { cpu_s: self.stated_cpu_s, device_s: self.stated_device_s }
    }

    /// True if both are of one device, residency and number of threads.
    pub fn same_key(&self, other: &State) -> bool {
        self.device == other.device && self.residency == other.residency && self.threads == other.threads
    }

    /// True if what this is stated for is too far from what `found` read to be of the same machine.
    pub fn is_far_from(&self, found: &State) -> bool {
        let change = self.stated().change(found.read());
        change.is_nan() || change > FAR_OFF
    }

    /// True if thresholds of both are stated for one state: within a hundredth, far less than is known of any.
    pub(super) fn as_stated(&self, other: &State) -> bool {
        self.stated().change(other.stated()) <= 1.01
    }

    /// Adds those of `more` whose keys are not there.
    pub fn join(all: &mut Vec<State>, more: &[State]) {
        for state in more {
            if !all.iter().any(|s| s.same_key(state)) {
                all.push(state.clone());
            }
        }
    }

    /// What is wrong with it, if anything is.
    pub(super) fn fault(&self) -> Option<String> {
        let sound = self.read().is_sound() && self.stated().is_sound();
        match () {
            () if !sound => Some("times must be finite and above 0".to_string()),
            () if self.threads == 0 => Some("0 threads".to_string()),
            () => None,
        }
    }
}
