//! Adding to an earlier profile: what it has stays, and one that was cut short is resumed.

use crate::base::{Code, DeviceInfo, Error, Result};
use crate::profile::diff::same_key;
use crate::profile::{Entry, Profile, State, Verdict};

/// Refuses (`BadArgument`) a profile that was made against another CPU, another margin or other devices under the same
/// identity: its thresholds mean something else.
pub(super) fn fits(earlier: &Profile, now: &Profile, devices: &[&DeviceInfo]) -> Result<()> {
    let bad = |why: String| Err(Error::new(Code::BadArgument, format!("the earlier profile: {why}")));
    if earlier.kind != now.kind {
        return bad("a preset holds no measurements to add to".into());
    }
    if let Some(host) = &now.host
        && let Some(why) = earlier.other_host(host)
    {
        return bad(why);
    }
    if earlier.margin != now.margin {
        return bad(format!("margin {}, now {}", earlier.margin, now.margin));
    }
    for device in devices {
        let (then, now) = (earlier.devices.iter().find(|d| d.uid == device.uid), device.fingerprint());
        if let Some(then) = then.filter(|d| d.fingerprint != now) {
            return bad(format!("{}: '{}' then, '{now}' now", device.id, then.fingerprint));
        }
    }
    Ok(())
}

/// The entries of these keys, if the earlier profile was cut short and all of them have a verdict in it.
pub(super) fn kept(earlier: &Profile, keys: &[Entry]) -> Option<Vec<Entry>> {
    let of = |key: &Entry| {
        let entry = earlier.entries.iter().find(|e| same_key(e, key))?;
        (entry.verdict != Verdict::Unmeasured).then(|| entry.clone())
    };
    if earlier.partial { keys.iter().map(of).collect() } else { None }
}

/// Adds what only the earlier profile has. What was asked for now but could not be measured does not replace what it says, nor do
/// keys whose time was `spent` before they were known; their number is told.
///
/// The profile stays partial while it has keys from a part that was not reached.
pub(super) fn add(now: &mut Profile, earlier: &Profile, spent: &[Entry]) -> usize {
    add_devices(now, earlier);
    State::join(&mut now.states, &earlier.states);
    let mut stay = 0;
    for entry in &earlier.entries {
        let measured = entry.verdict != Verdict::Unmeasured;
        match now.entries.iter_mut().find(|e| same_key(e, entry)) {
            None => {
                now.partial |= earlier.partial && !measured;
                now.entries.push(entry.clone());
            }
            Some(e) if e.verdict == Verdict::Unmeasured => *e = entry.clone(),
            Some(e) if measured && spent.iter().any(|s| same_key(s, e)) => {
                *e = entry.clone();
                stay += 1;
            }
            Some(_) => {}
        }
    }
    stay
}

/// Adds another part of the same calibration: what it measured itself counts, whatever both have of an earlier profile.
pub(super) fn join(all: &mut Profile, part: &Profile, own: &[Entry]) {
    add_devices(all, part);
    for entry in &part.entries {
        let new = entry.verdict != Verdict::Unmeasured && own.iter().any(|o| same_key(o, entry));
        match all.entries.iter_mut().find(|e| same_key(e, entry)) {
            None => all.entries.push(entry.clone()),
            Some(e) if new || e.verdict == Verdict::Unmeasured => *e = entry.clone(),
            Some(_) => {}
        }
    }
}

fn add_devices(now: &mut Profile, other: &Profile) {
    for device in &other.devices {
        if !now.devices.iter().any(|d| d.uid == device.uid) {
            now.devices.push(device.clone());
            now.transfers.extend(other.transfers.iter().filter(|t| t.device == device.uid).cloned());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profile::Kind;

    fn entry(op: &str, threads: u32, verdict: Verdict, threshold: u64) -> Entry {
        Entry { op: op.into(), threads, verdict, threshold: Some(threshold), ..Entry::default() }
    }

    fn profile(partial: bool, entries: Vec<Entry>) -> Profile {
        Profile { entries, partial, ..Profile::new(Kind::Calibrated, "x") }
    }

    fn thresholds(p: &Profile) -> Vec<(&str, u32, u64)> {
        p.entries.iter().map(|e| (e.op.as_str(), e.threads, e.threshold.unwrap_or(0))).collect()
    }

    #[test]
    fn what_the_time_did_not_suffice_for_replaces_nothing() {
        use Verdict::{Crossing, Inconclusive, Unmeasured};
        let earlier = profile(
            false,
            vec![entry("exp", 2, Crossing, 1), entry("add", 2, Crossing, 2), entry("sum", 2, Crossing, 3)],
        );
        let found =
            vec![entry("exp", 2, Inconclusive, 10), entry("add", 2, Inconclusive, 20), entry("sum", 2, Unmeasured, 30)];
        let mut now = profile(false, found.clone());
        // Of `add` enough was measured to say that nobody can say.
        assert_eq!(add(&mut now, &earlier, &found[..1]), 1);
        assert_eq!(thresholds(&now), [("exp", 2, 1), ("add", 2, 20), ("sum", 2, 3)]);
        // Nor did an earlier one know more.
        let mut now = profile(false, found.clone());
        assert_eq!(add(&mut now, &profile(false, vec![entry("exp", 2, Unmeasured, 1)]), &found), 0);
        assert_eq!(thresholds(&now)[0], ("exp", 2, 10));
    }

    #[test]
    fn a_profile_is_partial_while_keys_are_missing() {
        let cut = |verdict| profile(true, vec![entry("exp", 2, Verdict::Never, 1), entry("add", 2, verdict, 2)]);
        let with = |earlier: &Profile, op: &str| {
            let mut now = profile(false, vec![entry(op, 2, Verdict::Never, 3)]);
            add(&mut now, earlier, &[]);
            now.partial
        };
        assert!(with(&cut(Verdict::Unmeasured), "exp"), "add was not reached, then or now");
        assert!(!with(&cut(Verdict::Unmeasured), "add"));
        assert!(!with(&cut(Verdict::Never), "exp"));
    }

    /// Of two numbers of threads each part brings along what the earlier profile says of the other.
    #[test]
    fn each_part_counts_for_what_it_measured() {
        let earlier =
            profile(false, vec![entry("exp", 1, Verdict::Crossing, 1), entry("exp", 2, Verdict::Crossing, 2)]);
        let part = |threads: u32, threshold: u64| {
            let own = entry("exp", threads, Verdict::Crossing, threshold);
            let mut now = profile(false, vec![own.clone()]);
            add(&mut now, &earlier, &[]);
            (now, own)
        };
        let ((mut all, _), (second, own)) = (part(1, 10), part(2, 20));
        join(&mut all, &second, &[own]);
        assert_eq!(thresholds(&all), [("exp", 1, 10), ("exp", 2, 20)]);
    }
}
