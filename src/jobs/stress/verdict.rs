//! What the evidence of a phase means: pure functions of counts and series.
//!
//! A pass must be earned: enough work, nearly all of it checked, everything given back. Everything else has a name.

use crate::base::record::StressSample;
use crate::base::stats::{median, quantile, sorted};
use crate::device::LedgerState;

/// How a phase ended, from harmless to worst: the verdict of a run is the worst of its phases.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Verdict {
    /// Enough was done, all of it right, nothing was lost.
    Pass,
    /// Too little was done or checked to say anything.
    Inconclusive,
    /// Throughput fell.
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
    /// The word used in every output.
    pub const fn name(self) -> &'static str {
        match self {
            Verdict::Pass => "pass",
            Verdict::Inconclusive => "inconclusive",
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
}

/// Thresholds of the verdicts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Limits {
    /// Resident memory may grow by this much over a phase before it can be a leak.
    pub rss_floor_bytes: f64,
    /// File descriptors and threads may grow by this many.
    pub handle_floor: f64,
    /// Throughput may fall by this part.
    pub decay: f64,
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
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            rss_floor_bytes: 15.0 * 1024.0 * 1024.0,
            handle_floor: 8.0,
            decay: 0.2,
            warm_up: 0.25,
            min_samples: 16,
            min_seconds: 60.0,
            min_tested: 0.5,
            min_checked: 0.9,
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
    /// True if the user stopped the phase.
    pub interrupted: bool,
    /// The ledger before the first and after the last operation; `None` if the worker did not get there.
    pub ledger: Option<(LedgerState, LedgerState)>,
}

/// The verdict and its reason in words.
pub fn judge(e: &Evidence, limits: &Limits) -> (Verdict, String) {
    let first = e.finding.as_deref().unwrap_or("no details");
    if e.mismatches > 0 {
        return (Verdict::Corruption, format!("wrong results: {}; first: {first}", e.mismatches));
    }
    if let Some(how) = &e.crash {
        return (Verdict::Crash, how.clone());
    }
    if let Some(what) = &e.hang {
        return (Verdict::Hang, what.clone());
    }
    if let Some(what) = leaked(e, limits) {
        return (Verdict::Leak, what);
    }
    if let Some(what) = &e.card {
        return (Verdict::Error, what.clone());
    }
    if e.errors > 0 {
        return (Verdict::Error, format!("failed operations: {}; first: {first}", e.errors));
    }
    let rates: Vec<f64> = e.series.iter().map(|s| s.rate).collect();
    if span(&e.series) >= limits.min_seconds
        && let Some(drop) = degradation(&rates, limits)
    {
        return (
            Verdict::Degradation,
            format!("throughput fell by {:.0} % from the first to the last quarter", drop * 100.0),
        );
    }
    if let Some(why) = too_little(e, limits) {
        return (Verdict::Inconclusive, why);
    }
    (Verdict::Pass, "every result right, everything given back".into())
}

/// Why the evidence does not suffice for a pass.
fn too_little(e: &Evidence, limits: &Limits) -> Option<String> {
    if e.interrupted {
        return Some(format!("interrupted after {:.1} of {:.1} s; no fault until then", e.seconds, e.planned_seconds));
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
    if e.seconds < limits.min_tested * e.planned_seconds {
        return Some(format!("{:.1} of {:.1} planned seconds were tested", e.seconds, e.planned_seconds));
    }
    if e.series.is_empty() {
        return Some("no samples were taken".into());
    }
    e.ledger.is_none().then(|| "the worker ended without giving account of its allocations".into())
}

/// What was allocated and not given back, if anything.
fn leaked(e: &Evidence, limits: &Limits) -> Option<String> {
    if let Some((before, after)) = &e.ledger {
        let pairs = [
            ("buffers", before.buffers, after.buffers),
            ("pinned buffers", before.pinned, after.pinned),
            ("queues", before.queues, after.queues),
            ("programs", before.programs, after.programs),
            ("events", before.events, after.events),
        ];
        let left: Vec<String> =
            pairs.iter().filter(|(_, b, a)| a > b).map(|(what, b, a)| format!("{} {what}", a - b)).collect();
        if !left.is_empty() {
            let bytes = after.bytes.saturating_sub(before.bytes);
            return Some(format!("never given back: {} ({bytes} bytes)", left.join(", ")));
        }
    }
    let column = |f: fn(&StressSample) -> Option<u64>| -> Vec<(f64, f64)> {
        e.series.iter().filter_map(|s| f(s).map(|v| (s.t, v as f64))).collect()
    };
    for (what, f) in [
        ("live buffers at the same point of the cycle", (|s: &StressSample| Some(s.buffers)) as fn(&_) -> _),
        ("live queues, programs and events", |s: &StressSample| Some(s.objects)),
    ] {
        if let Some(growth) = never_returns(&column(f), limits) {
            return Some(format!("{what} grew by {growth:.0} and never went back"));
        }
    }
    if span(&e.series) < limits.min_seconds {
        return None;
    }
    let mib = 1024.0 * 1024.0;
    if let Some(d) = drift(&column(|s| s.rss_bytes), limits.rss_floor_bytes, limits) {
        return Some(format!("resident memory grew by {:.1} MiB, {:.3} MiB/min", d.growth / mib, d.slope * 60.0 / mib));
    }
    for (what, f) in [
        ("open file descriptors", (|s: &StressSample| s.fds) as fn(&_) -> _),
        ("threads", |s: &StressSample| s.threads),
    ] {
        if let Some(d) = drift(&column(f), limits.handle_floor, limits) {
            return Some(format!("{what} grew by {:.0}", d.growth));
        }
    }
    None
}

/// Seconds from the first to the last sample.
fn span(series: &[StressSample]) -> f64 {
    match (series.first(), series.last()) {
        (Some(a), Some(b)) => b.t - a.t,
        _ => 0.0,
    }
}

/// Growth of a count that is noise-free by construction (the ledger at quiet points): after warm-up it never falls, and
/// grows within the first half as well as within the second. Any such growth is a leak; a single step is not (something
/// made late and kept). `None` with fewer than eight points.
pub fn never_returns(points: &[(f64, f64)], limits: &Limits) -> Option<f64> {
    let kept = after_warm_up(points, limits);
    if kept.len() < 8 || kept.windows(2).any(|w| w[1].1 < w[0].1) {
        return None;
    }
    let grows = |part: &[(f64, f64)]| part[part.len() - 1].1 - part[0].1;
    let (first, second) = kept.split_at(kept.len() / 2);
    (grows(first) > 0.0 && grows(second) > 0.0).then(|| grows(kept))
}

/// A growth that is no noise.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Drift {
    /// Theil-Sen slope per second.
    pub slope: f64,
    /// Slope times the seconds observed.
    pub growth: f64,
}

/// A drift of a noisy series: after warm-up the lower end of the 95 % interval of the Theil-Sen slope (Sen 1968, by
/// Kendall's S) times the time observed exceeds `floor`, and the median of every quarter exceeds that of the one before.
/// `None` also for too few samples. A single step is no drift: its slope's interval reaches zero.
pub fn drift(points: &[(f64, f64)], floor: f64, limits: &Limits) -> Option<Drift> {
    let kept = thinned(after_warm_up(points, limits));
    if kept.len() < limits.min_samples {
        return None;
    }
    let mids: Vec<f64> = quarters(&kept).iter().map(|q| median(&q.iter().map(|p| p.1).collect::<Vec<_>>())).collect();
    if mids.windows(2).any(|w| w[1] <= w[0]) {
        return None;
    }
    let mut slopes = Vec::new();
    for (i, a) in kept.iter().enumerate() {
        for b in &kept[i + 1..] {
            if b.0 > a.0 {
                slopes.push((b.1 - a.1) / (b.0 - a.0));
            }
        }
    }
    slopes.sort_by(f64::total_cmp);
    let n = kept.len() as f64;
    let c = 1.959_964 * (n * (n - 1.0) * (2.0 * n + 5.0) / 18.0).sqrt();
    let low = slopes.get((((slopes.len() as f64 - c) / 2.0).floor().max(0.0)) as usize).copied()?;
    let seconds = kept.last()?.0 - kept.first()?.0;
    let slope = quantile(&slopes, 0.5);
    (low * seconds > floor).then_some(Drift { slope, growth: slope * seconds })
}

/// The part by which throughput fell: the median of the last quarter after warm-up lies more than `limits.decay` below
/// that of the first, each quarter below the one before, and nine tenths of the last quarter lie below nine tenths of
/// the first. `None` also for too few samples.
pub fn degradation(rates: &[f64], limits: &Limits) -> Option<f64> {
    let points: Vec<(f64, f64)> = rates.iter().enumerate().map(|(i, r)| (i as f64, *r)).collect();
    let kept = after_warm_up(&points, limits);
    if kept.len() < limits.min_samples {
        return None;
    }
    let quarters: Vec<Vec<f64>> =
        quarters(kept).iter().map(|q| sorted(&q.iter().map(|p| p.1).collect::<Vec<_>>())).collect();
    let mids: Vec<f64> = quarters.iter().map(|q| quantile(q, 0.5)).collect();
    let drop = 1.0 - mids[3] / mids[0];
    let apart = quantile(&quarters[3], 0.9) < quantile(&quarters[0], 0.1);
    (mids[0] > 0.0 && drop > limits.decay && apart && mids.windows(2).all(|w| w[1] < w[0])).then_some(drop)
}

fn after_warm_up<'p>(points: &'p [(f64, f64)], limits: &Limits) -> &'p [(f64, f64)] {
    let skip = (points.len() as f64 * limits.warm_up).ceil() as usize;
    &points[skip.min(points.len())..]
}

fn quarters(points: &[(f64, f64)]) -> [&[(f64, f64)]; 4] {
    let at = |i: usize| points.len() * i / 4;
    [0, 1, 2, 3].map(|i| &points[at(i)..at(i + 1)])
}

/// At most 240 points, each the medians of a run of samples: the slope looks at every pair.
fn thinned(points: &[(f64, f64)]) -> Vec<(f64, f64)> {
    const MOST: usize = 240;
    let run = points.len().div_ceil(MOST).max(1);
    points
        .chunks(run)
        .map(|c| {
            let column = |f: fn(&(f64, f64)) -> f64| median(&c.iter().map(f).collect::<Vec<_>>());
            (column(|p| p.0), column(|p| p.1))
        })
        .collect()
}
