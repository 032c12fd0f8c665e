//! Two profiles of one machine as one.

use std::collections::HashMap;

use crate::base::text::printable;
use crate::base::{Code, Error, Result};

use super::diff::key;
use super::{Entry, Kind, Profile, Verdict};

/// Joins the devices and entries of two calibrated profiles of one host, and says what was decided on the way.
///
/// Where both have a key, the newer profile's entry stays (of two of the same second, the second's), except that an entry
/// that was not measured never takes the place of one that was. Entries of a device that the newer profile met with
/// another fingerprint are left out. The result is partial if one of them is.
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
    let newer: HashMap<_, usize> = new.entries.iter().enumerate().map(|(at, e)| (key(e), at)).collect();
    for e in old.entries.iter().filter(|e| !void.contains(&e.device.as_str())) {
        match newer.get(&key(e)).and_then(|at| merged.entries.get_mut(*at)) {
            None => merged.entries.push(e.clone()),
            Some(n) if n == e => {}
            Some(n) if n.verdict == Verdict::Unmeasured && e.verdict != Verdict::Unmeasured => {
                notes.push(format!("{}: {} stays, the newer profile did not measure it", name(e), stated(e)));
                *n = e.clone();
            }
            Some(n) => notes.push(format!("{}: {} gives way to {} of {}", name(e), stated(e), stated(n), new.created)),
        }
    }
    if merged.partial {
        let which = if a.partial && b.partial { "both were" } else { "one was" };
        notes.push(format!("{which} cut short, so the merged profile counts as partial"));
    }
    Ok((merged, notes.iter().map(|n| printable(n).into_owned()).collect()))
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
