//! Adding to an earlier profile: what it has stays, and one that was cut short is resumed.

use crate::base::{Code, DeviceInfo, Error, Result};
use crate::profile::{Entry, Profile, Verdict};

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

/// True if both are of one op, dtype, family, device, residency, number of threads and CPU kernel.
fn same_key(a: &Entry, b: &Entry) -> bool {
    let key = |e: &Entry| {
        (e.op.clone(), e.dtype.clone(), e.family.clone(), e.device.clone(), e.residency.clone(), e.cpu_variant.clone())
    };
    a.threads == b.threads && key(a) == key(b)
}

/// The entries of these keys, if the earlier profile was cut short and all of them have a verdict in it.
pub(super) fn kept(earlier: &Profile, keys: &[Entry]) -> Option<Vec<Entry>> {
    let of = |key: &Entry| {
        let entry = earlier.entries.iter().find(|e| same_key(e, key))?;
        (entry.verdict != Verdict::Unmeasured).then(|| entry.clone())
    };
    if earlier.partial { keys.iter().map(of).collect() } else { None }
}

/// Adds what only the earlier profile has. What was asked for now but could not be measured does not replace a verdict.
pub(super) fn add(now: &mut Profile, earlier: &Profile) {
    for device in &earlier.devices {
        if !now.devices.iter().any(|d| d.uid == device.uid) {
            now.devices.push(device.clone());
            now.transfers.extend(earlier.transfers.iter().filter(|t| t.device == device.uid).cloned());
        }
    }
    for entry in &earlier.entries {
        match now.entries.iter_mut().find(|e| same_key(e, entry)) {
            None => now.entries.push(entry.clone()),
            Some(e) if e.verdict == Verdict::Unmeasured => *e = entry.clone(),
            Some(_) => {}
        }
    }
}
