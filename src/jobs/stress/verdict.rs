//! What the evidence of a phase means: pure functions of counts and series.
//!
//! A pass must be earned: enough work, nearly all of it checked, everything given back. Everything else has a name.

use crate::base::record::StressSample;
use crate::base::{DeviceInfo, units};
use crate::device::LedgerState;

pub use super::drift::{Drift, degradation, drift, never_returns};

/// How a phase ended, from harmless to worst: the verdict of a run is the worst of its phases.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Verdict {
    /// Enough was done, all of it right, nothing was lost.
    Pass,
    /// Too little was done or checked to say anything.
    Inconclusive,
    /// The card lowered its clocks to protect itself: its figures are not its own.
    Throttled,
    /// Throughput fell, or slow cycles became slower.
    Degradation,
    /// Operations returned errors, or the card told of one.
    Error,
    /// Something is allocated and never given back.
    Leak,
    /// The device or worker stopped answering.
    Hang,
    /// The worker process died.
    Crash,
    /// A result was wrong.
    Corruption,
}

impl Verdict {
    /// All, from harmless to worst.
    pub const ALL: [Verdict; 9] = [
        Verdict::Pass,
        Verdict::Inconclusive,
        Verdict::Throttled,
        Verdict::Degradation,
        Verdict::Error,
        Verdict::Leak,
        Verdict::Hang,
        Verdict::Crash,
        Verdict::Corruption,
    ];

    /// The verdict of that word.
    pub fn parse(word: &str) -> Option<Self> {
        Verdict::ALL.into_iter().find(|v| v.name() == word)
    }

    /// The word used in every output.
    pub const fn name(self) -> &'static str {
        match self {
            Verdict::Pass => "pass",
            Verdict::Inconclusive => "inconclusive",
            Verdict::Throttled => "throttled",
            Verdict::Degradation => "degradation",
            Verdict::Error => "error",
            Verdict::Leak => "leak",
            Verdict::Hang => "hang",
            Verdict::Crash => "crash",
            Verdict::Corruption => "corruption",
        }
    }

    /// Exit code of a run with this verdict: 0 pass, 1 a finding, 4 inconclusive, 5 a crashed worker.
    pub const fn exit_code(self) -> u8 {
        match self {
            Verdict::Pass => 0,
            Verdict::Inconclusive => 4,
            Verdict::Crash => 5,
            _ => 1,
        }
    }

    /// The same of a run that may have been interrupted: what was found before stays found.
    pub const fn exit_code_of(self, interrupted: bool) -> u8 {
        match self {
            Verdict::Pass | Verdict::Inconclusive if interrupted => INTERRUPTED,
            _ => self.exit_code(),
        }
    }
}

/// Exit code of a run that was interrupted before anything was found (128 + SIGINT).
pub const INTERRUPTED: u8 = 130;

/// Thresholds of the verdicts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Limits {
    /// Resident memory may grow by this much over a phase before it can be a leak.
    pub rss_floor_bytes: f64,
    /// File descriptors and threads may grow by this many.
    pub handle_floor: f64,
    /// The device's memory may grow by this much: drivers take it in large pieces.
    pub device_floor_bytes: f64,
    /// Throughput may fall by this part.
    pub decay: f64,
    /// The 99th percentile of the cycles' time may become so many times as long.
    pub p99_growth: f64,
    /// Leading part of a phase that is warm-up for memory and throughput.
    pub warm_up: f64,
    /// Fewest samples after warm-up for a statement about drift.
    pub min_samples: usize,
    /// Shortest phase, in seconds, for a statement about drift.
    pub min_seconds: f64,
    /// Part of the planned seconds that must be tested.
    pub min_tested: f64,
    /// Part of the results made that must be checked.
    pub min_checked: f64,
    /// A verdict that is never given: a detector switched off, for the test of the self-test.
    pub off: Option<Verdict>,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            rss_floor_bytes: 15.0 * 1024.0 * 1024.0,
            device_floor_bytes: 32.0 * 1024.0 * 1024.0,
            handle_floor: 8.0,
            decay: 0.2,
            p99_growth: 2.0,
            warm_up: 0.25,
            min_samples: 16,
            min_seconds: 60.0,
            min_tested: 0.5,
            min_checked: 0.9,
            off: None,
        }
    }
}

/// Everything that is known about one phase.
#[derive(Clone, Debug, Default)]
pub struct Evidence {
    /// Samples of the last worker, in order of time.
    pub series: Vec<StressSample>,
    /// Seconds tested.
    pub seconds: f64,
    /// Seconds planned.
    pub planned_seconds: f64,
    /// Cycles planned at least.
    pub planned: u64,
    /// Cycles done.
    pub done: u64,
    /// Result bytes made.
    pub bytes_planned: u64,
    /// Result bytes checked.
    pub bytes_checked: u64,
    /// Wrong results.
    pub mismatches: u64,
    /// Operations that returned an error.
    pub errors: u64,
    /// The first finding in words.
    pub finding: Option<String>,
    /// How the worker died, with its last operation.
    pub crash: Option<String>,
    /// What stopped answering, with its last operation.
    pub hang: Option<String>,
    /// What the card told that makes its work untrustworthy.
    pub card: Option<String>,
    /// What the card told of clocks that it lowered to protect itself.
    pub throttled: Option<String>,
    /// Why what the card told cannot be true.
    pub incredible: Option<String>,
    /// True if the user stopped the phase.
    pub interrupted: bool,
    /// What was planted and never came up: nothing is known about its detector.
    pub unmet: Option<String>,
    /// The ledger before the first and after the last operation; `None` if the worker did not get there.
    pub ledger: Option<(LedgerState, LedgerState)>,
}

/// The verdict and its reason in words: the gravest of what the evidence shows.
pub fn judge(e: &Evidence, limits: &Limits) -> (Verdict, String) {
    let first = e.finding.as_deref().unwrap_or("no details");
    let wrong = (e.mismatches > 0).then(|| format!("wrong results: {}; first: {first}", e.mismatches));
    let failed = (e.errors > 0).then(|| format!("failed operations: {}; first: {first}", e.errors));
    let rules: [(Verdict, &dyn Fn() -> Option<String>); 9] = [
        (Verdict::Corruption, &|| wrong.clone()),
        (Verdict::Crash, &|| e.crash.clone()),
        (Verdict::Hang, &|| e.hang.clone()),
        (Verdict::Leak, &|| leaked(e, limits)),
        (Verdict::Error, &|| e.card.clone()),
        (Verdict::Error, &|| failed.clone()),
        (Verdict::Throttled, &|| e.throttled.clone()),
        (Verdict::Degradation, &|| slower(&e.series, limits)),
        (Verdict::Inconclusive, &|| too_little(e, limits)),
    ];
    let mut applied = rules.into_iter().filter(|(verdict, _)| limits.off != Some(*verdict));
    let found = applied.find_map(|(verdict, rule)| rule().map(|why| (verdict, why)));
    found.unwrap_or_else(|| (Verdict::Pass, "every result right, everything given back".into()))
}

/// The verdict of a whole run: the worst of its phases, each with the id of its device. It passes only if every planned
/// phase was run to its end on a device that is known by name.
pub fn overall(
    devices: &[DeviceInfo],
    phases: &[(String, Verdict)],
    planned: usize,
    interrupted: bool,
    limits: &Limits,
) -> Verdict {
    let known = |id: &String| devices.iter().any(|d| d.id == *id && !d.name.is_empty() && !d.uid.is_empty());
    let whole = !interrupted && phases.len() >= planned && phases.iter().all(|(id, _)| known(id));
    match phases.iter().map(|p| p.1).max() {
        Some(Verdict::Pass) if !whole && limits.off != Some(Verdict::Inconclusive) => Verdict::Inconclusive,
        Some(worst) => worst,
        None => Verdict::Inconclusive,
    }
}

/// Throughput that fell, or a tail that became longer.
fn slower(series: &[StressSample], limits: &Limits) -> Option<String> {
    if span(series) < limits.min_seconds {
        return None;
    }
    let rates: Vec<f64> = series.iter().map(|s| s.rate).collect();
    if let Some(drop) = degradation(&rates, limits.decay, limits) {
        return Some(format!("throughput fell by {:.0} % from the first to the last quarter", drop * 100.0));
    }
    // A time that becomes n times as long is a rate that falls to an nth.
    let tail: Vec<f64> = series.iter().filter_map(|s| s.p99_s).filter(|p| *p > 0.0).map(|p| 1.0 / p).collect();
    let drop = degradation(&tail, 1.0 - 1.0 / limits.p99_growth, limits)?;
    Some(format!(
        "the 99th percentile of a cycle's time grew {:.1} times from the first to the last quarter",
        1.0 / (1.0 - drop)
    ))
}

/// Why the evidence does not suffice for a pass.
fn too_little(e: &Evidence, limits: &Limits) -> Option<String> {
    if e.interrupted {
        return Some(format!("interrupted after {:.1} of {:.1} s; no fault until then", e.seconds, e.planned_seconds));
    }
    if let Some(fault) = &e.unmet {
        return Some(format!("the planted fault never came up: {fault}; plant an earlier one, or give it more time"));
    }
    if e.done == 0 {
        return Some("no work was done".into());
    }
    if e.bytes_checked == 0 {
        return Some("nothing was checked".into());
    }
    if e.done < e.planned {
        return Some(format!("{} of at least {} planned cycles were done", e.done, e.planned));
    }
    if (e.bytes_checked as f64) < limits.min_checked * e.bytes_planned as f64 {
        return Some(format!("{} of {} result bytes were checked", e.bytes_checked, e.bytes_planned));
    }
    // As not-at-least, so that a time that is no number does not pass.
    let enough = e.seconds >= limits.min_tested * e.planned_seconds;
    if !enough {
        return Some(format!("{:.1} of {:.1} planned seconds were tested", e.seconds, e.planned_seconds));
    }
    if e.series.is_empty() {
        return Some("no samples were taken".into());
    }
    if e.series.iter().any(|s| !s.rate.is_finite() || s.rate < 0.0) {
        return Some("a sample's throughput is no number".into());
    }
    if e.series.iter().all(|s| s.rate == 0.0) {
        return Some(format!("{} cycles are said to be done, but no sample shows any throughput", e.done));
    }
    if let Some(why) = &e.incredible {
        return Some(why.clone());
    }
    if e.ledger.is_none() {
        return Some("the worker ended without giving account of its allocations".into());
    }
    match device_memory(&e.series, limits) {
        Some(Grown { ours: false, text }) => Some(text),
        _ => None,
    }
}

/// What was allocated and not given back, if anything.
fn leaked(e: &Evidence, limits: &Limits) -> Option<String> {
    if let Some((before, after)) = &e.ledger {
        let pairs = [
            ("buffers", before.buffers, after.buffers),
            ("bytes", before.bytes, after.bytes),
            ("pinned buffers", before.pinned, after.pinned),
            ("queues", before.queues, after.queues),
            ("programs", before.programs, after.programs),
            ("events", before.events, after.events),
        ];
        let left: Vec<String> =
            pairs.iter().filter(|(_, b, a)| a > b).map(|(what, b, a)| format!("{} {what}", a - b)).collect();
        if !left.is_empty() {
            return Some(format!("never given back: {}", left.join(", ")));
        }
    }
    let column = |f: fn(&StressSample) -> Option<u64>| -> Vec<(f64, f64)> {
        e.series.iter().filter_map(|s| f(s).map(|v| (s.t, v as f64))).collect()
    };
    for (what, f) in [
        ("buffers", (|s: &StressSample| Some(s.buffers)) as fn(&_) -> _),
        ("bytes of buffers", |s: &StressSample| Some(s.buffer_bytes)),
        ("pinned buffers", |s: &StressSample| Some(s.pinned)),
        ("queues", |s: &StressSample| Some(s.queues)),
        ("programs", |s: &StressSample| Some(s.programs)),
        ("events", |s: &StressSample| Some(s.events)),
        ("queues, programs and events", |s: &StressSample| Some(s.objects)),
    ] {
        if let Some(growth) = never_returns(&column(f), limits) {
            return Some(format!("live {what} at the same point of the cycle grew by {growth:.0} and never went back"));
        }
    }
    if span(&e.series) < limits.min_seconds {
        return None;
    }
    let mib = 1024.0 * 1024.0;
    if let Some(d) = lasting(&column(|s| s.rss_bytes), limits.rss_floor_bytes, limits) {
        return Some(format!("resident memory grew by {:.1} MiB, {:.3} MiB/min", d.growth / mib, d.slope * 60.0 / mib));
    }
    for (what, f) in [
        ("open file descriptors", (|s: &StressSample| s.fds) as fn(&_) -> _),
        ("threads", |s: &StressSample| s.threads),
    ] {
        if let Some(d) = lasting(&column(f), limits.handle_floor, limits) {
            return Some(format!("{what} grew by {:.0}", d.growth));
        }
    }
    match device_memory(&e.series, limits) {
        Some(Grown { ours: true, text }) => Some(text),
        _ => None,
    }
}

/// A drift that does not settle.
fn lasting(points: &[(f64, f64)], floor: f64, limits: &Limits) -> Option<Drift> {
    drift(points, floor, limits).filter(|d| d.settles.is_none())
}

/// What the samples cannot tell: whatever still grew at the end, but ever more slowly, hides leaks below that.
pub fn unsettled(series: &[StressSample], limits: &Limits) -> Vec<String> {
    if span(series) < limits.min_seconds {
        return Vec::new();
    }
    const MIB: f64 = 1024.0 * 1024.0;
    type Column = fn(&StressSample) -> Option<u64>;
    // As in `device_memory`: the worker's own part where the card tells it, else all that is in use.
    let own = series.iter().filter(|s| s.device_own_bytes.is_some()).count() >= limits.min_samples;
    let card: Column = if own { |s| s.device_own_bytes } else { |s| s.device_used_bytes };
    let rows: [(&str, Column, f64, f64, &str); 4] = [
        ("resident memory", |s| s.rss_bytes, limits.rss_floor_bytes, MIB, " MiB"),
        ("open file descriptors", |s| s.fds, limits.handle_floor, 1.0, ""),
        ("threads", |s| s.threads, limits.handle_floor, 1.0, ""),
        ("memory on the card", card, limits.device_floor_bytes, MIB, " MiB"),
    ];
    let of = |(what, f, floor, unit, name): &(&str, Column, f64, f64, &str)| {
        let points: Vec<(f64, f64)> = series.iter().filter_map(|s| Some((s.t, f(s)? as f64))).collect();
        let settles = drift(&points, *floor, limits)?.settles?;
        let (slope, part) = (settles.slope.max(0.0) * 60.0 / unit, settles.part.max(0.0));
        Some(format!(
            "leaks of {what} below {slope:.1}{name}/min: the second half still grew so fast, {part:.2} times as fast as the first"
        ))
    };
    rows.iter().filter_map(of).collect()
}

/// Device memory that grew for good.
struct Grown {
    /// True if it is the worker's; false if it may be that of other processes.
    ours: bool,
    text: String,
}

/// The worker's own memory on the card, where the card tells of each process; else the growth of all that is in use, which is
/// the worker's only if the others' share is told and stood still.
fn device_memory(series: &[StressSample], limits: &Limits) -> Option<Grown> {
    if span(series) < limits.min_seconds {
        return None;
    }
    let column = |f: fn(&StressSample) -> Option<u64>| -> Vec<(f64, f64)> {
        series.iter().filter_map(|s| f(s).map(|v| (s.t, v as f64))).collect()
    };
    let grown = |f: fn(&StressSample) -> Option<u64>| lasting(&column(f), limits.device_floor_bytes, limits);
    let mib = |d: &Drift| format!("{:.1} MiB", d.growth / (1024.0 * 1024.0));
    let own = column(|s| s.device_own_bytes);
    if own.len() >= limits.min_samples {
        let d = grown(|s| s.device_own_bytes)?;
        return Some(Grown { ours: true, text: format!("the worker's memory on the card grew by {}", mib(&d)) });
    }
    let d = grown(|s| s.device_used_bytes)?;
    let others = column(|s| s.device_other_bytes);
    let (least, most) = others.iter().fold((f64::INFINITY, 0f64), |(a, b), p| (a.min(p.1), b.max(p.1)));
    let told = others.len() >= limits.min_samples;
    let ours = told && most - least <= 0.5 * limits.device_floor_bytes;
    let text = match (ours, told) {
        (true, _) => format!("memory in use on the card grew by {}, that of other processes did not", mib(&d)),
        (false, true) => {
            let moved = units::bytes((most - least) as u64);
            format!(
                "memory in use on the card grew by {}, but other processes moved {moved} of it: no statement",
                mib(&d)
            )
        }
        (false, false) => format!("memory in use on the card grew by {}, and nobody tells whose it is", mib(&d)),
    };
    Some(Grown { ours, text })
}

/// Seconds from the first to the last sample.
fn span(series: &[StressSample]) -> f64 {
    match (series.first(), series.last()) {
        (Some(a), Some(b)) => b.t - a.t,
        _ => 0.0,
    }
}
