//! Two profiles of one machine as one.

use std::collections::HashMap;

use crate::base::text::printable;
use crate::base::{Code, Error, Result};

use super::diff::key;
use super::{Entry, Kind, Profile, State, Verdict};

/// Joins the devices and entries of two calibrated profiles of one host, and says what was decided on the way.
///
/// Where both have a key, the newer profile's entry stays (of two of the same second, the second's), except that an entry
/// that was not measured never takes the place of one that was. Entries of a device that the newer profile met with
/// another fingerprint are left out. The result is partial if one of them is. A note says which entries another gpuctl
/// measured, and a reader warns of it.
///
/// The result has the date of the newer one. Of several profiles the oldest are merged first ([`by_age`]): else an entry would
/// pass for as new as what it was merged with.
///
/// Errors, all `BadArgument`: a preset; a profile without host or date; another CPU or instruction set, against which
/// thresholds mean nothing; another margin.
pub fn merge(a: &Profile, b: &Profile) -> Result<(Profile, Vec<String>)> {
    let refuse = |why: String| Err(Error::new(Code::BadArgument, printable(&why).into_owned()));
    if let Some(p) = [a, b].into_iter().find(|p| p.kind == Kind::Preset) {
        return refuse(format!("'{}' is a preset: only what was measured can be merged", p.name));
    }
    let (Some(x), Some(y)) = (&a.host, &b.host) else {
        return refuse("a profile that does not name its host cannot be merged".into());
    };
    let mixed = x.awake != y.awake;
    let (x, y) = (x.side(), y.side());
    if x != y {
        return refuse(format!("measured against '{x}' and '{y}': thresholds against another CPU are void"));
    }
    if a.created.is_empty() || b.created.is_empty() {
        return refuse("a profile that does not say when it was created cannot be merged".into());
    }
    if a.margin != b.margin {
        let (m, n) = (a.margin, b.margin);
        return refuse(format!("margins {m} and {n}: first `gpuctl profile set margin={m} FILE` for the second"));
    }
    let (old, new) = if b.created >= a.created { (a, b) } else { (b, a) };
    let mut notes = Vec::new();
    let mut merged = Profile { partial: a.partial || b.partial, name: a.name.clone(), ..new.clone() };
    merged.notes = a.notes.clone();
    merged.notes.extend(b.notes.iter().filter(|n| !a.notes.contains(n)).cloned());
    if mixed {
        let awake = if old.host.as_ref().is_some_and(|h| h.awake) { &old.created } else { &new.created };
        let note = format!(
            "only what was measured {awake} was measured with processors kept awake: short calls differ by that"
        );
        merged.notes.extend((!merged.notes.contains(&note)).then(|| note.clone()));
        notes.push(note);
    }
    let mut void = Vec::new();
    for d in &old.devices {
        match new.devices.iter().find(|n| n.uid == d.uid) {
            None => merged.devices.push(d.clone()),
            Some(n) if n.fingerprint != d.fingerprint => {
                let (then, now) = (&d.fingerprint, &n.fingerprint);
                notes.push(format!("{}: entries of {} are left out: '{then}' became '{now}'", n.id, old.created));
                void.push(d.uid.as_str());
            }
            Some(_) => {}
        }
    }
    let taken = |uid: &str| new.transfers.iter().any(|t| t.device == uid) || void.contains(&uid);
    merged.transfers.extend(old.transfers.iter().filter(|t| !taken(&t.device)).cloned());
    let states: Vec<State> = old.states.iter().filter(|s| !void.contains(&s.device.as_str())).cloned().collect();
    State::join(&mut merged.states, &states);
    let mut kept: Vec<String> = Vec::new();
    let newer: HashMap<_, usize> = new.entries.iter().enumerate().map(|(at, e)| (key(e), at)).collect();
    for e in old.entries.iter().filter(|e| !void.contains(&e.device.as_str())) {
        match newer.get(&key(e)).and_then(|at| merged.entries.get_mut(*at)) {
            None => {
                kept.push(name(e));
                merged.entries.push(e.clone());
            }
            Some(n) if n == e => {}
            Some(n) if n.verdict == Verdict::Unmeasured && e.verdict != Verdict::Unmeasured => {
                notes.push(format!("{}: {} stays, the newer profile did not measure it", name(e), stated(e)));
                kept.push(name(e));
                *n = e.clone();
            }
            Some(n) => notes.push(format!("{}: {} gives way to {} of {}", name(e), stated(e), stated(n), new.created)),
        }
    }
    if !kept.is_empty() && a.host.as_ref().map(|h| h.disturbed) != b.host.as_ref().map(|h| h.disturbed) {
        // It was told of one's looks only.
        merged.host.iter_mut().for_each(|h| h.disturbed = None);
    }
    let otherwise = |s: &&State| new.states.iter().any(|n| n.same_key(s) && !n.as_stated(s));
    if let Some(s) = states.iter().find(otherwise).filter(|_| !kept.is_empty()) {
        let note = format!(
            "thresholds of {}, {} that are of {} are stated for another state of the machine than the newer ones",
            s.device, s.residency, old.created
        );
        merged.notes.extend((!merged.notes.contains(&note)).then(|| note.clone()));
        notes.push(note);
    }
    if kept.is_empty() {
        merged.notes.retain(|n| version_of(n).is_none() || new.notes.contains(n));
    } else if old.gpuctl != new.gpuctl {
        let note = measured_with(&old.gpuctl, &old.created, &kept);
        notes.push(note.clone());
        merged.notes.retain(|n| *n != note);
        merged.notes.push(note);
    }
    if merged.partial {
        let which = if a.partial && b.partial { "both were" } else { "one was" };
        notes.push(format!("{which} cut short, so the merged profile counts as partial"));
    }
    Ok((merged, notes.iter().map(|n| printable(n).into_owned()).collect()))
}

/// Sorts by date, of the same second as they were; what is sorted comes with names or the like.
pub fn by_age<T>(profiles: &mut [(T, Profile)]) {
    profiles.sort_by(|(_, a), (_, b)| a.created.cmp(&b.created));
}

/// How the note begins that tells of another gpuctl's entries; its version in quotes follows.
const MEASURED_WITH: &str = "measured with gpuctl '";

/// Most entries that it names.
const NAMED: usize = 3;

fn measured_with(version: &str, created: &str, entries: &[String]) -> String {
    let (first, more) = entries.split_at(entries.len().min(NAMED));
    let more = if more.is_empty() { String::new() } else { format!(" and {} more", more.len()) };
    // A version is quoted text of a file: it must not end the quotes.
    let version = printable(version).replace('\'', "");
    format!("{MEASURED_WITH}{version}', not after {created}: {}{more}", first.join(", "))
}

fn version_of(note: &str) -> Option<&str> {
    note.strip_prefix(MEASURED_WITH)?.split_once('\'').map(|(version, _)| version)
}

/// Notes of a merged profile that tell of entries which another gpuctl than this version measured.
pub(super) fn other_versions<'p>(p: &'p Profile, version: &str) -> impl Iterator<Item = &'p str> {
    p.notes.iter().map(String::as_str).filter(move |n| version_of(n).is_some_and(|v| v != version))
}

fn name(e: &Entry) -> String {
    format!("{} {} {} {}", e.op, e.dtype, e.family, e.residency)
}

fn stated(e: &Entry) -> String {
    let edited = if e.edited { " (edited by hand)" } else { "" };
    match e.threshold {
        Some(t) => format!("{} {t}{edited}", e.verdict),
        None => format!("{}{edited}", e.verdict),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profile::{Host, ProfileDevice, file};

    fn measured(gpuctl: &str, day: u32, ops: &[&str]) -> Profile {
        let mut p = Profile::new(Kind::Calibrated, "test");
        p.gpuctl = gpuctl.into();
        p.created = format!("2026-01-{day:02}T12:00:00Z");
        p.host = Some(Host { cpu: "CPU".into(), isa: "avx2".into(), ..Host::default() });
        p.devices.push(ProfileDevice {
            id: "opencl:0".into(),
            uid: "pci:1".into(),
            backend: "opencl".into(),
            ..ProfileDevice::default()
        });
        let entry = |op: &&str| Entry {
            op: (*op).into(),
            dtype: "f32".into(),
            family: "all".into(),
            device: "pci:1".into(),
            residency: "always".into(),
            threads: 2,
            cpu_variant: "auto".into(),
            verdict: Verdict::Never,
            unit: "elements".into(),
            reason: gpuctl.into(),
            ..Entry::default()
        };
        p.entries = ops.iter().map(entry).collect();
        p
    }

    /// What a file of a profile makes its reader say.
    fn warnings(p: &Profile) -> Vec<String> {
        file::read_toml(&p.to_toml().unwrap()).unwrap().1
    }

    #[test]
    fn how_often_one_of_two_was_disturbed_is_not_said_of_both() {
        let of = |day, op, share| {
            let mut p = measured("1", day, &[op]);
            p.host.as_mut().unwrap().disturbed = share;
            p
        };
        let share = |a: &Profile, b: &Profile| merge(a, b).unwrap().0.host.unwrap().disturbed;
        let old = of(1, "a", Some(0.5));
        assert_eq!(share(&old, &of(2, "b", Some(0.1))), None);
        assert_eq!(share(&old, &of(2, "a", Some(0.1))), Some(0.1), "all of the older one gave way");
        assert_eq!(share(&old, &of(2, "b", Some(0.5))), Some(0.5));
    }

    #[test]
    fn states_of_both_are_kept_and_two_of_one_device_are_noted() {
        let of = |day, op, states: &[(&str, f64)]| {
            let mut p = measured("1", day, &[op]);
            let state = |(residency, seconds): &(&str, f64)| State {
                device: "pci:1".into(),
                residency: (*residency).into(),
                threads: 2,
                looks: 2000,
                cpu_s: 1e-5,
                device_s: 5e-5,
                stated_cpu_s: 1e-5,
                stated_device_s: *seconds,
            };
            p.states = states.iter().map(state).collect();
            p
        };
        let merged = |a: &Profile, b: &Profile| {
            let (p, notes) = merge(a, b).unwrap();
            let states: Vec<(String, f64)> =
                p.states.iter().map(|s| (s.residency.clone(), s.stated_device_s)).collect();
            assert_eq!(Profile::from_toml(&p.to_toml().unwrap()).unwrap().states, p.states);
            (states, notes.iter().filter(|n| n.contains("another state")).count())
        };
        let old = of(1, "a", &[("always", 4e-5), ("resident", 3e-5)]);
        let both = vec![("always".to_string(), 4e-5), ("resident".to_string(), 3e-5)];
        assert_eq!(merged(&old, &of(2, "b", &[("always", 4e-5)])), (both, 0));
        let newer = vec![("always".to_string(), 5e-5), ("resident".to_string(), 3e-5)];
        assert_eq!(merged(&old, &of(2, "b", &[("always", 5e-5)])), (newer.clone(), 1));
        assert_eq!(merged(&old, &of(2, "a", &[("always", 5e-5)])), (newer, 0), "nothing is left of the older one");
    }

    /// A result has one host, so what half of it was measured otherwise is a note that stays with it.
    #[test]
    fn processors_kept_awake_in_one_of_two_are_told_and_noted() {
        let awake = |day, op, awake| {
            let mut p = measured("1", day, &[op]);
            p.host.as_mut().unwrap().awake = awake;
            p
        };
        let said = |a: &Profile, b: &Profile| {
            let (merged, told) = merge(a, b).unwrap();
            let about = |all: &[String]| all.iter().filter(|n| n.contains("kept awake")).cloned().collect::<Vec<_>>();
            assert_eq!(about(&merged.notes), about(&told));
            about(&told)
        };
        let (first, second) = (awake(1, "a", true), awake(2, "b", false));
        for told in [said(&first, &second), said(&second, &first)] {
            assert!(told.len() == 1 && told[0].contains("2026-01-01T12:00:00Z"), "{told:?}");
        }
        assert_eq!(said(&first, &awake(2, "b", true)), [""; 0]);
    }

    /// The newer file's version stands for all of the result; what another one measured is told as long as it is there.
    #[test]
    fn entries_of_another_version_are_told_after_merging() {
        let now = env!("CARGO_PKG_VERSION");
        let old = measured("0.0.9'; x", 1, &["a", "b", "c", "d", "e"]);
        let new = measured(now, 2, &["a"]);
        for (x, y) in [(&old, &new), (&new, &old)] {
            let (merged, notes) = merge(x, y).unwrap();
            assert_eq!(merged.gpuctl, now);
            let told = warnings(&merged);
            assert_eq!(told.len(), 1, "{told:?}");
            let part = "measured with gpuctl '0.0.9; x', not after 2026-01-01T12:00:00Z: \
                        b f32 all always, c f32 all always, d f32 all always and 1 more";
            assert!(told[0].starts_with(part) && notes.iter().any(|n| n == part), "{told:?} {notes:?}");
            // Measured again in part, then all of them.
            let (again, _) = merge(&merged, &measured(now, 3, &["b", "c"])).unwrap();
            assert_eq!(warnings(&again).len(), 1);
            let (whole, _) = merge(&again, &measured(now, 4, &["a", "b", "c", "d", "e"])).unwrap();
            assert_eq!(warnings(&whole), Vec::<String>::new());
        }
        // Of one version there is nothing to tell; all of another one is told as ever.
        let (same, _) = merge(&measured(now, 1, &["b"]), &new).unwrap();
        assert_eq!(warnings(&same), Vec::<String>::new());
        let (other, _) = merge(&measured(now, 1, &["b"]), &measured("0.0.9", 2, &["a"])).unwrap();
        assert!(warnings(&other)[0].starts_with("measured with gpuctl '0.0.9', this is"), "{other:?}");
        assert_eq!(warnings(&other).len(), 1);
    }
}
