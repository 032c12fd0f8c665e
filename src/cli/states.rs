//! The state of this machine that thresholds are stated for: remembered from its first calibration, one file for each device.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::base::{Code, DeviceInfo, Error, Result, rng};
use crate::profile::{Host, Profile, State};

use super::commands::Ctx;
use super::{kept, output};

/// Version of the file's layout.
const LAYOUT: u32 = 1;

/// Largest file that is read.
const LARGEST: u64 = 1 << 20;

/// Looks of a calibration from which on what it read is remembered: those of a short one may all lie in an unusual minute.
const ENOUGH: u64 = 1000;

/// What a file holds.
#[derive(Debug, Serialize, Deserialize)]
struct Kept {
    layout: u32,
    /// The machine: the CPU, the device with its driver, and whether processors were kept awake.
    machine: String,
    states: Vec<State>,
}

/// What is remembered of one machine, and where.
pub(super) struct Remembered {
    /// By device uid: its file and what identifies the machine.
    files: Vec<(String, PathBuf, String)>,
    pub(super) states: Vec<State>,
}

impl Ctx<'_> {
    /// What is remembered of these devices beside this CPU. A file that cannot be read is remarked on and made anew.
    pub(super) fn remembered(&self, cpu: &DeviceInfo, devices: &[DeviceInfo], awake: bool) -> Remembered {
        let (mut files, mut states) = (Vec::new(), Vec::new());
        for info in devices {
            let awake = if awake { " | awake" } else { "" };
            let machine = format!("{} | {} | {}{awake}", Host::of(cpu).side(), info.uid, info.chip());
            let key = rng::fnv1a64(machine.as_bytes());
            let Some(folder) = self.env.cache_dir.as_ref() else { continue };
            let path = folder.join("states").join(format!("{key:016x}.json"));
            if path.exists() {
                match read(&path, &machine) {
                    Ok(found) => states.extend(found),
                    Err(e) => output::talk(&format!("{}: the state that is remembered is not used: {e}", info.id)),
                }
            }
            files.push((info.uid.clone(), path, machine));
        }
        Remembered { files, states }
    }
}

impl Remembered {
    /// Remembers what a calibration read where nothing was remembered, or where it was too far from that to be stated for it. A
    /// remark for each file that cannot be written.
    pub(super) fn keep(&self, found: &Profile) -> Vec<String> {
        let mut faults = Vec::new();
        for (uid, path, machine) in &self.files {
            let mine = |s: &&State| s.device == *uid;
            let new: Vec<State> = found.states.iter().filter(mine).filter(|s| self.is_news(s)).map(at_itself).collect();
            if new.is_empty() {
                continue;
            }
            let mut states = new;
            let old: Vec<State> = self.states.iter().filter(mine).cloned().collect();
            State::join(&mut states, &old);
            let all = Kept { layout: LAYOUT, machine: machine.clone(), states };
            if let Err(e) = write(path, &all) {
                faults.push(format!("the state of {uid} is not remembered: {e}"));
            }
        }
        faults
    }

    fn is_news(&self, found: &State) -> bool {
        found.looks >= ENOUGH
            && self.states.iter().find(|s| s.same_key(found)).is_none_or(|known| known.is_far_from(found))
    }
}

/// What was read, to be stated for.
fn at_itself(s: &State) -> State {
    State { stated_cpu_s: s.cpu_s, stated_device_s: s.device_s, ..s.clone() }
}

fn write(path: &std::path::Path, all: &Kept) -> Result<()> {
    let text = serde_json::to_string_pretty(all)
        .map_err(|e| Error::new(Code::Internal, "a state cannot be written").caused_by(e))?;
    kept::write(path, &(text + "\n"))
}

fn read(path: &std::path::Path, machine: &str) -> Result<Vec<State>> {
    let bad = |why: String| Error::new(Code::BadArgument, format!("{}: {why}", path.display()));
    let text = kept::read(path, LARGEST)?;
    let all: Kept = serde_json::from_str(&text).map_err(|e| bad(e.to_string()))?;
    if all.layout != LAYOUT {
        return Err(bad(format!("layout {}, this gpuctl reads {LAYOUT}", all.layout)));
    }
    if all.machine != machine {
        return Err(bad("of another machine".into()));
    }
    if all.states.iter().any(|s| !s.stated().is_sound()) {
        return Err(bad("times must be finite and above 0".into()));
    }
    Ok(all.states)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profile::Kind;

    fn state(residency: &str, device_s: f64) -> State {
        State {
            device: "pci:1".into(),
            residency: residency.into(),
            threads: 2,
            looks: 2000,
            cpu_s: 1e-5,
            device_s,
            stated_cpu_s: 1.1e-5,
            stated_device_s: 2.0 * device_s,
        }
    }

    fn found(states: &[State]) -> Profile {
        Profile { states: states.to_vec(), ..Profile::new(Kind::Calibrated, "x") }
    }

    #[test]
    fn the_first_state_of_a_machine_stays_until_it_is_another_machine() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("states").join("1.json");
        let of = |states: Vec<State>| Remembered { files: vec![("pci:1".into(), path.clone(), "m".into())], states };
        assert!(of(Vec::new()).keep(&found(&[])).is_empty() && !path.exists(), "nothing was read");
        let short = State { looks: 999, ..state("always", 1e-4) };
        assert!(of(Vec::new()).keep(&found(&[short])).is_empty() && !path.exists(), "too little was read");
        let other = State { device: "pci:2".into(), ..state("always", 1e-4) };
        assert!(of(Vec::new()).keep(&found(&[state("always", 1e-4), other])).is_empty());
        let first = read(&path, "m").unwrap();
        assert_eq!(first, [at_itself(&state("always", 1e-4))], "what was read, whatever it was stated for");
        // Nearly the same, and a residency more.
        let now = [state("always", 1.2e-4), state("resident", 3e-5)];
        assert!(of(first.clone()).keep(&found(&now)).is_empty());
        let both = read(&path, "m").unwrap();
        assert_eq!(both, [at_itself(&now[1]), first[0].clone()]);
        // Another machine.
        assert!(of(both.clone()).keep(&found(&[state("always", 1.4e-4)])).is_empty());
        let later = read(&path, "m").unwrap();
        assert_eq!(later, [at_itself(&state("always", 1.4e-4)), both[0].clone()]);
        for (text, why) in [("", "EOF"), ("{}", "missing field"), ("[1]", "")] {
            std::fs::write(&path, text).unwrap();
            assert!(read(&path, "m").unwrap_err().to_string().contains(why), "{text}");
        }
        of(Vec::new()).keep(&found(&now));
        assert!(read(&path, "another").unwrap_err().to_string().contains("of another machine"));
    }

    #[test]
    fn what_cannot_be_remembered_is_said() {
        let root = tempfile::tempdir().unwrap();
        let file = root.path().join("file");
        std::fs::write(&file, "").unwrap();
        let files = vec![("pci:1".into(), file.join("states").join("1.json"), "m".into())];
        let faults = Remembered { files, states: Vec::new() }.keep(&found(&[state("always", 1e-4)]));
        assert!(faults.len() == 1 && faults[0].contains("the state of pci:1 is not remembered"), "{faults:?}");
    }
}
