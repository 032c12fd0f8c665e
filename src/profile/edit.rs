//! Changes by hand: one value at a time ([`set`]), or in an editor and then signed ([`seal`]).
//!
//! What a person changes is that person's word: the entry says `edited`, and its evidence goes, because it no longer
//! speaks for what the entry says. Everything else keeps its evidence.

use crate::base::{Code, Error, Result};

use super::check::label;
use super::{Entry, Kind, Profile, Rule, SCHEMA, Verdict, file, migrate, seal as seals, with_margin};

impl Entry {
    /// The key, the verdict and the threshold alone, marked as edited. Results that were wrong stay wrong.
    pub fn without_evidence(&self) -> Entry {
        let Entry { op, dtype, family, device, residency, cpu_variant, unit, kernel, verify, .. } = self.clone();
        Entry {
            op,
            dtype,
            family,
            device,
            residency,
            threads: self.threads,
            cpu_variant,
            verdict: self.verdict,
            unit,
            threshold: self.threshold,
            edited: true,
            verify: if verify == "failed" { verify } else { "not run".into() },
            kernel,
            ..Entry::default()
        }
    }
}

/// Which of several entries is meant; `None` is any.
#[derive(Clone, Debug, Default)]
pub struct Which {
    /// Device id or uid.
    pub device: Option<String>,
    /// Residency.
    pub residency: Option<String>,
    /// CPU threads.
    pub threads: Option<u32>,
    /// Kernel of the CPU side.
    pub cpu_variant: Option<String>,
}

/// Sets one value: `name=TEXT`, `margin=1.2`, `rule=curve`, `rule=threshold`, or `OP[.DTYPE[.FAMILY]].FIELD=VALUE` with FIELD `threshold` or `verdict`.
/// Gives what was done, for people.
///
/// A margin sets every measured threshold from its crossing and leaves the evidence. A threshold makes the entry a
/// crossing; the verdict can be `always`, `never` or `unmeasured`. Errors: `BadArgument` for a key or value that does not
/// exist, and, with the candidates, for a key that more than one entry has or none; those of [`file::validate`].
pub fn set(profile: &mut Profile, assignment: &str, which: &Which) -> Result<Vec<String>> {
    let bad = |why: String| Error::new(Code::BadArgument, why);
    let (key, value) = assignment.split_once('=').ok_or_else(|| bad(format!("'{assignment}': expected KEY=VALUE")))?;
    let (key, value) = (key.trim(), value.trim());
    let mut next = profile.clone();
    let done = match key.rsplit_once('.') {
        None if key == "name" => {
            next.name = value.into();
            vec![format!("name: '{}' -> '{value}'", profile.name)]
        }
        None if key == "margin" => margin(&mut next, value)?,
        None if key == "rule" => {
            let known = [Rule::Threshold, Rule::Curve].into_iter().find(|r| r.name() == value);
            next.rule = known.ok_or_else(|| bad(format!("no rule '{value}'; known: threshold curve")))?;
            vec![format!("rule: {} -> {value}", profile.rule.name())]
        }
        Some((address, field @ ("threshold" | "verdict"))) => {
            let at = find(profile, address, which)?;
            let Some(entry) = next.entries.get_mut(at) else { return Err(bad(format!("no entry {}", at + 1))) };
            let was = stated(entry);
            change(entry, field, value).map_err(|why| bad(format!("{}: {why}", label(profile, at))))?;
            // A preset has no evidence, and no entry that was anything but somebody's word.
            if profile.kind == Kind::Calibrated {
                *entry = entry.without_evidence();
            }
            vec![format!("{}: {was} -> {}", label(profile, at), stated(entry))]
        }
        _ => {
            let known = "name, margin, rule, OP[.DTYPE[.FAMILY]].threshold and OP[.DTYPE[.FAMILY]].verdict";
            return Err(bad(format!("no key '{key}' can be set; there are {known}")));
        }
    };
    file::validate(&next)?;
    *profile = next;
    Ok(done)
}

fn stated(e: &Entry) -> String {
    let edited = if e.edited { ", edited" } else { "" };
    match e.threshold {
        Some(t) => format!("{}, threshold {t} {}{edited}", e.verdict, e.unit),
        None => format!("{}{edited}", e.verdict),
    }
}

fn margin(profile: &mut Profile, value: &str) -> Result<Vec<String>> {
    let margin = value.parse::<f64>().ok().filter(|m| (1.0..=100.0).contains(m));
    let margin = margin.ok_or_else(|| Error::new(Code::BadArgument, format!("margin {value}: expected 1 to 100")))?;
    let mut done = vec![format!("margin: {} -> {margin}", profile.margin)];
    profile.margin = margin;
    for at in 0..profile.entries.len() {
        let Some(e) = profile.entries.get_mut(at) else { continue };
        if let (Verdict::Crossing, Some(c), Some(old), false) = (e.verdict, e.crossing, e.threshold, e.edited) {
            let new = with_margin(c, margin);
            e.threshold = Some(new);
            if new != old {
                done.push(format!("{}: threshold {old} -> {new}", label(profile, at)));
            }
        }
    }
    Ok(done)
}

fn change(e: &mut Entry, field: &str, value: &str) -> Result<(), String> {
    if e.verdict == Verdict::Unsafe || e.verify == "failed" {
        return Err("its results were wrong on that device; calibrate again once `gpuctl verify` passes".into());
    }
    if field == "threshold" {
        let t = value.parse::<u64>().ok().filter(|t| i64::try_from(*t).is_ok());
        e.threshold = Some(t.ok_or_else(|| format!("threshold {value}: expected a whole number below 2^63"))?);
        e.verdict = Verdict::Crossing;
    } else {
        e.verdict = match Verdict::parse(value) {
            Some(v @ (Verdict::Always | Verdict::Never | Verdict::Unmeasured)) => v,
            Some(Verdict::Crossing) => return Err("set its threshold instead".into()),
            Some(v) => return Err(format!("{v} is something only a measurement can find")),
            None => return Err(format!("no verdict '{value}'; expected always, never or unmeasured")),
        };
        e.threshold = (e.verdict == Verdict::Always).then_some(0);
    }
    (e.crossing, e.ci, e.stake) = (None, None, None);
    Ok(())
}

/// The one entry at an address.
fn find(p: &Profile, address: &str, which: &Which) -> Result<usize> {
    let is = |e: &Entry| {
        let named = |name: String| name == address;
        named(e.op.clone())
            || named(format!("{}.{}", e.op, e.dtype))
            || named(format!("{}.{}.{}", e.op, e.dtype, e.family))
    };
    let device = |e: &Entry, d: &String| e.device == *d || p.devices.iter().any(|x| x.uid == e.device && x.id == *d);
    let fits = |e: &Entry| {
        which.device.as_ref().is_none_or(|d| device(e, d))
            && which.residency.as_ref().is_none_or(|r| e.residency == *r)
            && which.threads.is_none_or(|t| e.threads == t)
            && which.cpu_variant.as_ref().is_none_or(|v| e.cpu_variant == *v)
    };
    let all = |keep: &dyn Fn(&Entry) -> bool| -> Vec<usize> {
        p.entries.iter().enumerate().filter(|(_, e)| keep(e)).map(|(i, _)| i).collect()
    };
    let list = |found: &[usize]| {
        let full = |i: &usize| match p.entries.get(*i) {
            Some(e) if e.threads > 0 => format!("{} against {} threads ({})", label(p, *i), e.threads, e.cpu_variant),
            _ => label(p, *i),
        };
        let names: Vec<String> = found.iter().take(12).map(full).collect();
        let more = found.len().saturating_sub(names.len());
        format!("{}{}", names.join(", "), if more > 0 { format!(" and {more} more") } else { String::new() })
    };
    let bad = |why: String| Err(Error::new(Code::BadArgument, why));
    match all(&|e| is(e) && fits(e)).as_slice() {
        [one] => Ok(*one),
        [] => {
            let near = all(&is);
            let op = all(&|e| address.split('.').next() == Some(e.op.as_str()));
            match (near.as_slice(), op.as_slice()) {
                ([], []) => bad(format!("no entry '{address}', and none of that op")),
                ([], other) => bad(format!("no entry '{address}'; of that op there are: {}", list(other))),
                (other, _) => bad(format!("no entry '{address}' with these options; there are: {}", list(other))),
            }
        }
        several => bad(format!(
            "'{address}' is {} entries; add dtype and family, --device, --residency, --threads or --cpu-variant: {}",
            several.len(),
            list(several)
        )),
    }
}

/// A file signed anew.
#[derive(Clone, Debug)]
pub struct Sealed {
    /// What it says now: changed entries are marked and have no evidence.
    pub profile: Profile,
    /// Entries that were changed by hand, and what else was noticed, for people.
    pub remarks: Vec<String>,
    /// Number of entries that were changed.
    pub changed: usize,
}

/// Reads a file that was edited by hand: refuses what is no valid profile, voids the evidence of the changed entries.
///
/// Files of an earlier layout have no seals: they are brought to this build's as they are if their digest holds, and
/// otherwise count as changed in every entry. So do all entries of a device or host whose description was changed.
/// Errors as of [`Profile::from_toml`], less those that the digest and the seals give.
pub fn seal(text: &str) -> Result<Sealed> {
    let text = &*seals::plain(text);
    let digest = seals::check(text);
    let mut table = file::parse(text)?;
    let layout = migrate::layout(&table)?;
    // Seals are made anew on the way only for a file whose digest vouches for it.
    let trusted = layout == SCHEMA || digest.is_ok();
    migrate::migrate(&mut table)?;
    let broken = if trusted { seals::broken(&table) } else { (0..seals::entries(&table).count()).collect() };
    let (mut profile, counted) = file::of_table(table, text)?;
    profile.schema = SCHEMA;
    let mut remarks = Vec::new();
    if layout != SCHEMA {
        remarks.push(format!("layout {layout} becomes {SCHEMA}"));
    }
    let now = profile.entries.len() as u64;
    if counted != now {
        remarks.push(format!("there are {now} entries, {counted} were written"));
    }
    let broken = if profile.kind == Kind::Calibrated { broken } else { Vec::new() };
    for at in &broken {
        remarks.push(format!("{} was changed: marked as edited, without evidence", label(&profile, *at)));
        if let Some(entry) = profile.entries.get_mut(*at) {
            *entry = entry.without_evidence();
        }
    }
    if broken.is_empty() && digest.is_err() {
        remarks.push("no entry was changed".into());
    }
    // What cannot be written cannot be sealed.
    profile.to_toml()?;
    Ok(Sealed { profile, remarks, changed: broken.len() })
}
