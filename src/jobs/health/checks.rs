//! The checks, each by itself. A check that has nothing to look at says so.

use crate::base::telemetry::{GpuProcess, HostSnapshot, KernelEvent, Lowered, Snapshot, throttle_words};
use crate::base::units;

use super::{Outcome, codes};

type Check = fn(&Snapshot, u32) -> Outcome;

/// Checks of a card, by name.
pub(super) const CARD: &[(&str, Check)] = &[
    ("driver", driver),
    ("memory errors", errors),
    ("memory repair", repair),
    ("temperature", temperature),
    ("clocks", clocks),
    ("power", power),
    ("link", link),
    ("processes", processes),
    ("mode", mode),
];

/// Checks of the host, by name.
pub(super) const HOST: &[(&str, fn(&HostSnapshot) -> Outcome)] =
    &[("driver against library", versions), ("drivers", drivers), ("kernel log", events), ("free space", space)];

/// Degrees below the slow-down from which on a card is called hot.
const NEAR_C: f64 = 5.0;
/// NVIDIA replaces cards from so many retired pages on; there is room for 64.
const MOST_PAGES: u32 = 60;
/// Share of the maker's power cap below which a cap was lowered; caps are set in steps.
const CAP: f64 = 0.99;
/// Share of the memory from which on its use by others disturbs.
const USED: f64 = 0.10;
/// A night's journals and caches need less.
const LEAST_FREE: u64 = 1 << 30;
/// Lines of the kernel's log that are shown of one kind.
const MOST_LINES: usize = 3;

fn driver(s: &Snapshot, _: u32) -> Outcome {
    let mut found = Vec::new();
    if s.lost {
        found.push(("gpu-lost", "the driver cannot reach the card any more".to_string()));
    }
    if s.reset_required {
        found.push(("reset-required", "the driver asks for a reset".into()));
    }
    if s.inforom_damaged {
        found.push(("inforom-damaged", "the card's configuration memory fails its checksum".into()));
    }
    // Any answer shows that the driver reaches the card.
    (s.driver.is_some() || !found.is_empty()).then_some(found)
}

fn errors(s: &Snapshot, _: u32) -> Outcome {
    let m = &s.memory;
    if m.ecc.is_none() && m.uncorrected.is_none() {
        return None;
    }
    let mut found = Vec::new();
    match m.uncorrected {
        Some(n) if n > 0 => {
            let ever = m.uncorrected_ever.map_or(String::new(), |e| format!(", {e} in the card's life"));
            found.push(("ecc-uncorrected", format!("{n} errors not corrected since the driver was loaded{ever}")));
        }
        _ => {}
    }
    if let Some(n) = m.corrected.filter(|n| *n > 0) {
        found.push(("ecc-corrected", format!("{n} errors corrected since the driver was loaded")));
    }
    if m.ecc == Some(false) {
        found.push(("ecc-off", "the memory could correct errors and does not".into()));
    }
    Some(found)
}

fn repair(s: &Snapshot, _: u32) -> Outcome {
    let m = &s.memory;
    let told = m.remap_pending.is_some()
        || m.remap_failed.is_some()
        || m.retired_pages.is_some()
        || m.retire_pending.is_some();
    let mut found = Vec::new();
    if m.remap_failed == Some(true) {
        found.push(("remap-failed", "a row of the memory could not be replaced".to_string()));
    }
    if m.remap_pending == Some(true) {
        found.push(("remap-pending", "a row of the memory waits to be replaced".into()));
    }
    match m.retired_pages {
        Some(n) if n >= MOST_PAGES => found.push(("pages-retired-many", format!("{n} pages of 64 are out of use"))),
        Some(n) if n > 0 => found.push(("pages-retired", format!("{n} pages are out of use"))),
        _ => {}
    }
    if m.retire_pending == Some(true) {
        found.push(("retire-pending", "a page waits to be taken out of use".into()));
    }
    told.then_some(found)
}

fn temperature(s: &Snapshot, _: u32) -> Outcome {
    let (now, limit) = (s.temperature_c?, s.slowdown_c.or(s.shutdown_c)?);
    // Also what is no number is no good temperature.
    let found = if !now.is_finite() || !limit.is_finite() {
        ("temperature-high", format!("the card reports {now} °C of {limit} °C"))
    } else if now >= limit {
        ("temperature-slowdown", format!("{now:.0} °C, slows down from {limit:.0} °C on"))
    } else if now >= limit - NEAR_C {
        ("temperature-high", format!("{now:.0} °C, slows down from {limit:.0} °C on"))
    } else {
        return Some(Vec::new());
    };
    Some(vec![found])
}

fn clocks(s: &Snapshot, _: u32) -> Outcome {
    let words = throttle_words(s.throttle?);
    let of = |what: Lowered| words.iter().filter(|w| w.1 == what).map(|w| w.0.as_str()).collect::<Vec<_>>().join(", ");
    let (protecting, limited) = (of(Lowered::Protecting), of(Lowered::Limited));
    let clock = match (s.clock_mhz, s.most_clock_mhz) {
        (Some(now), Some(most)) => format!(" at {now} of {most} MHz"),
        _ => String::new(),
    };
    let mut found = Vec::new();
    if !protecting.is_empty() {
        found.push(("clocks-protecting", format!("clocks are lowered{clock}: {protecting}")));
    }
    if !limited.is_empty() {
        found.push(("clocks-limited", format!("clocks are lowered{clock}: {limited}")));
    }
    Some(found)
}

fn power(s: &Snapshot, _: u32) -> Outcome {
    let (cap, made) = (s.power_cap_w?, s.default_cap_w?);
    let lowered = cap.is_nan() || cap < made * CAP;
    Some(Vec::from_iter(
        lowered.then(|| ("power-cap-lowered", format!("{cap:.0} W are allowed, {made:.0} W by default"))),
    ))
}

/// Only under load: an idle card lowers its link, and that is no finding.
fn link(s: &Snapshot, _: u32) -> Outcome {
    let l = &s.link;
    if !l.under_load {
        return None;
    }
    let least = |card: Option<u32>, slot: Option<u32>| match (card, slot) {
        (Some(c), Some(s)) => Some(c.min(s)),
        (c, s) => c.or(s),
    };
    let generation = l.generation.zip(least(l.card_generation, l.slot_generation));
    let width = l.width.zip(least(l.card_width, l.slot_width));
    if generation.is_none() && width.is_none() {
        return None;
    }
    let mut found = Vec::new();
    if let Some((now, could)) = generation.filter(|(now, could)| now < could) {
        found.push(("link-slow", format!("PCI Express {now} under load, card and slot can {could}")));
    }
    if let Some((now, could)) = width.filter(|(now, could)| now < could) {
        found.push(("link-narrow", format!("{now} lanes under load, card and slot have {could}")));
    }
    Some(found)
}

fn processes(s: &Snapshot, own: u32) -> Outcome {
    let others: Vec<_> = s.processes.as_ref()?.iter().filter(|p| p.pid != own).collect();
    let mut found = Vec::new();
    if !others.is_empty() {
        let text =
            |p: &&GpuProcess| p.bytes.map_or_else(|| p.pid.to_string(), |b| format!("{} ({})", p.pid, units::bytes(b)));
        found.push(("other-processes", format!("used by {}", others.iter().map(text).collect::<Vec<_>>().join(", "))));
    } else if let (Some(used), Some(total)) = (s.memory_used, s.memory_total)
        && used as f64 > USED * total as f64
    {
        found.push(("memory-used", format!("{} of {} are in use", units::bytes(used), units::bytes(total))));
    }
    Some(found)
}

fn mode(s: &Snapshot, _: u32) -> Outcome {
    if s.compute_mode.is_none() && s.persistence.is_none() && s.mig.is_none() {
        return None;
    }
    let mut found = Vec::new();
    match s.compute_mode.as_deref() {
        Some("prohibited") => found.push(("compute-prohibited", "no program may compute on the card".to_string())),
        Some("exclusive") => found.push(("exclusive", "the card is set to one process at a time".into())),
        _ => {}
    }
    if s.persistence == Some(false) {
        found.push(("persistence-off", "the driver unloads when nobody uses the card".into()));
    }
    if s.mig == Some(true) {
        found.push(("divided", "the card is divided into instances (MIG)".into()));
    }
    Some(found)
}

/// A driver that hangs or crashes takes every command with it that loads it.
fn drivers(h: &HostSnapshot) -> Outcome {
    let all = h.broken_drivers.as_ref()?;
    Some(all.iter().map(|what| ("driver-broken", what.clone())).collect())
}

fn versions(h: &HostSnapshot) -> Outcome {
    if h.mismatch {
        let told = |v: &Option<String>| v.clone().unwrap_or_else(|| "unknown".into());
        let detail = format!("kernel module {}, library {}", told(&h.module), told(&h.library));
        return Some(vec![("driver-mismatch", detail)]);
    }
    h.module.is_some().then(Vec::new)
}

fn events(h: &HostSnapshot) -> Outcome {
    let events = h.events.as_ref()?;
    let mut found: Vec<(&'static str, Vec<&KernelEvent>)> = Vec::new();
    for event in events {
        let code = event.xid.map_or("event-reset", codes::xid);
        match found.iter_mut().find(|f| f.0 == code) {
            Some(f) => f.1.push(event),
            None => found.push((code, vec![event])),
        }
    }
    let text = |(code, lines): (&'static str, Vec<&KernelEvent>)| {
        let shown: Vec<&str> = lines.iter().rev().take(MOST_LINES).map(|e| e.text.as_str()).collect();
        (code, format!("{} lines, the last: {}", lines.len(), shown.join(" | ")))
    };
    Some(found.into_iter().map(text).collect())
}

fn space(h: &HostSnapshot) -> Outcome {
    if h.free.is_empty() {
        return None;
    }
    let low = h.free.iter().filter(|f| f.bytes < LEAST_FREE);
    Some(
        low.map(|f| ("disk-low", format!("{} left for the {} in {}", units::bytes(f.bytes), f.of, f.folder))).collect(),
    )
}
