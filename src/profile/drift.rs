//! What became of a profile's keys when they are measured again; a difference must show twice before it is a finding. Pure
//! functions.
//!
//! An interval holds what its seconds held. What something else does to a machine for a few seconds lies in all samples of a short
//! look, and a second look at another time, in fresh processes, tells it from a change that stays. `bench --baseline` does the same.

use crate::base::record::ThresholdRecord;

use super::diff::{self, Winner, changed, compare, other_winner};
use super::{Entry, Profile, Verdict};

/// Thresholds that lie closer than this have not drifted, whatever their intervals: of hundreds of keys some always part by
/// chance.
const TOLERANCE: f64 = 0.15;

/// What became of the keys that had a verdict. Those without one now are unknown: that is no drift.
pub fn drift(made: &Profile, now: &Profile) -> Vec<ThresholdRecord> {
    let mut records = diff::diff(made, now, TOLERANCE);
    records.retain(|r| !is_open(r.old_verdict.as_deref()));
    records.iter_mut().for_each(unknown_if_open);
    records
}

fn is_open(verdict: Option<&str>) -> bool {
    verdict.is_none_or(|v| [Verdict::Inconclusive, Verdict::Unmeasured].iter().any(|o| o.name() == v))
}

fn unknown_if_open(r: &mut ThresholdRecord) {
    if is_open(r.new_verdict.as_deref()) {
        r.reason = format!("now {}", r.new_verdict.as_deref().unwrap_or("not measured"));
        r.verdict = diff::UNKNOWN.into();
    }
}

/// Entries of `now` that [`drift`] finds to differ by what was timed, those that differ most first: what another look may not
/// show. A result that is wrong, or an entry that somebody edited to another verdict, needs none.
pub fn suspects<'e>(made: &Profile, now: &'e Profile) -> Vec<&'e Entry> {
    let mut found: Vec<(f64, &Entry)> =
        now.entries.iter().filter_map(|e| Some((Moved::surely(made, e)?.by, e))).collect();
    found.sort_by(|a, b| b.0.total_cmp(&a.0));
    found.into_iter().map(|(_, e)| e).collect()
}

/// How an entry differs from the one of its key in an earlier profile.
struct Moved<'e> {
    /// The earlier one.
    then: &'e Entry,
    /// Whether the device wins more than then.
    toward_device: bool,
    /// As a factor, of thresholds or of CPU / device.
    by: f64,
    /// The size at which the winner is another one; `None`: the threshold is.
    at: Option<u64>,
}

impl<'e> Moved<'e> {
    /// By [`drift`]'s rule, beyond both intervals.
    fn surely(made: &'e Profile, now: &Entry) -> Option<Self> {
        let then = made.entries.iter().find(|e| diff::same_key(e, now))?;
        if is_open(Some(then.verdict.name())) || is_open(Some(now.verdict.name())) {
            return None;
        }
        let record = compare((made, Some(then)), (made, Some(now)), TOLERANCE)?;
        match record.verdict.as_str() {
            diff::MOVED => Self::threshold(then, now),
            diff::VERDICT => match other_winner(then, now, TOLERANCE)? {
                Winner::Changes(p, q) => Some(Moved {
                    then,
                    toward_device: diff::ratio(q) > 1.0,
                    by: changed(p, q, TOLERANCE)?,
                    at: Some(p.size),
                }),
                Winner::Stays => None,
            },
            _ => None,
        }
    }

    /// Thresholds that lie further apart than the tolerance, whatever their intervals.
    fn threshold(then: &'e Entry, now: &Entry) -> Option<Self> {
        let (s, t) = (then.threshold? as f64, now.threshold? as f64);
        let by = s.max(t) / s.min(t);
        (then.verdict == now.verdict && by > 1.0 + TOLERANCE).then_some(Moved {
            then,
            toward_device: t < s,
            by,
            at: None,
        })
    }

    /// Whether another look says the same: the value alone, beyond the tolerance, to the same side.
    fn shows_in(&self, again: &Entry) -> bool {
        match self.at {
            None => Self::threshold(self.then, again).is_some_and(|m| m.toward_device == self.toward_device),
            Some(size) => {
                let of = |e: &'_ Entry| e.points.iter().find(|p| p.size == size).cloned();
                let pair = of(self.then).zip(of(again));
                pair.is_some_and(|(p, q)| {
                    changed(&p, &q, TOLERANCE).is_some() && (diff::ratio(&q) > 1.0) == self.toward_device
                })
            }
        }
    }
}

/// [`drift`] with a second look at the [`suspects`]: `again` has what it found of each of them. A difference that it shows, too,
/// to the same side, stays a finding, by its intervals or beyond the tolerance at least; of others the record is that of the second
/// look, or unknown, where that could not tell or says the opposite, and names both. Besides, the number of these unknown ones: what
/// seemed to have changed and was not refuted is no pass.
pub fn twice(made: &Profile, first: &Profile, again: &[Entry]) -> (Vec<ThresholdRecord>, usize) {
    let (mut records, mut left_open) = (drift(made, first), 0);
    for e in suspects(made, first) {
        let Some(moved) = Moved::surely(made, e) else { continue };
        let of_key = |r: &&mut ThresholdRecord| {
            let key = (&*r.op, &*r.dtype, &*r.family, &*r.uid, &*r.residency, r.threads, &*r.cpu_variant);
            key == diff::key(e)
        };
        let Some(record) = records.iter_mut().find(of_key) else { continue };
        let second = again.iter().find(|a| diff::same_key(a, e));
        let Some(second) = second.filter(|a| a.verdict != Verdict::Unmeasured) else {
            let why = second.map_or("interrupted", |a| &a.reason);
            record.reason = format!("{} at first ({}), and not measured again: {why}", record.verdict, record.reason);
            record.verdict = diff::UNKNOWN.into();
            left_open += 1;
            continue;
        };
        let Some(mut now) = compare((made, Some(moved.then)), (first, Some(second)), TOLERANCE) else { continue };
        unknown_if_open(&mut now);
        let surely = Moved::surely(made, second);
        let opposite = surely.as_ref().is_some_and(|s| s.toward_device != moved.toward_device);
        if diff::is_finding(&now.verdict) && !opposite {
            if surely.is_some() {
                now.reason = format!("{}; so it was twice", now.reason);
            }
            *record = now;
        } else if !opposite && moved.shows_in(second) {
            record.reason = format!("{}; the same again within wider intervals", record.reason);
        } else {
            if opposite {
                now.verdict = diff::UNKNOWN.into();
            }
            let then = if now.reason.is_empty() { "the same".into() } else { now.reason };
            now.reason =
                format!("{} at first ({}), but not when it was measured again: {then}", record.verdict, record.reason);
            left_open += usize::from(now.verdict == diff::UNKNOWN);
            *record = now;
        }
    }
    (records, left_open)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::record::CalibratePoint;
    use crate::profile::{CPU_AUTO, Kind};

    fn entry(op: &str, verdict: Verdict, threshold: Option<u64>) -> Entry {
        Entry {
            op: op.into(),
            dtype: "f32".into(),
            family: "all".into(),
            device: "sim:x".into(),
            residency: "always".into(),
            threads: 2,
            cpu_variant: CPU_AUTO.into(),
            verdict,
            unit: "elements".into(),
            crossing: threshold.map(|t| t * 10 / 11),
            ci: threshold.map(|t| [t * 9 / 11, t]),
            threshold,
            ..Entry::default()
        }
    }

    /// With CPU / device at 100, 1000, ..., each within 5 % either way.
    fn timed(verdict: Verdict, ratios: &[f64]) -> Entry {
        let point = |(i, r): (usize, &f64)| CalibratePoint {
            size: 10u64.pow(i as u32 + 2),
            cpu_s: 1e-5 * r,
            gpu_s: 1e-5,
            ratio_ci: [r / 1.05, r * 1.05],
            pairs: 15,
        };
        let points = ratios.iter().enumerate().map(point).collect();
        Entry { points, ..entry("sum", verdict, None) }
    }

    fn profile(entries: Vec<Entry>) -> Profile {
        Profile { entries, ..Profile::new(Kind::Calibrated, "x") }
    }

    fn word(records: &[ThresholdRecord]) -> &str {
        assert_eq!(records.len(), 1);
        &records[0].verdict
    }

    #[test]
    fn drift_is_a_moved_threshold_or_another_verdict_and_not_a_missing_one() {
        let made = profile(vec![
            entry("add", Verdict::Crossing, Some(11_000)),
            entry("exp", Verdict::Crossing, Some(11_000)),
            entry("sum", Verdict::Never, None),
            entry("relu", Verdict::Inconclusive, None),
        ]);
        let with = |at: usize, e: Entry| {
            let mut now = made.clone();
            now.entries[at] = e;
            let records = drift(&made, &now);
            assert_eq!(records.len(), 3, "a key that had no verdict is not checked");
            records[at.min(2)].verdict.clone()
        };
        assert!(drift(&made, &made).iter().all(|r| r.verdict == "SAME"));
        assert_eq!(with(0, entry("add", Verdict::Crossing, Some(11_500))), "WITHIN");
        assert_eq!(with(0, entry("add", Verdict::Crossing, Some(22_000))), "MOVED");
        assert_eq!(with(1, entry("exp", Verdict::Unsafe, None)), "VERDICT");
        assert_eq!(with(2, entry("sum", Verdict::Inconclusive, None)), "UNKNOWN");
        let nothing = profile(made.entries.iter().map(|e| entry(&e.op, Verdict::Unmeasured, None)).collect());
        assert!(drift(&made, &nothing).iter().all(|r| r.verdict == "UNKNOWN"));
        assert!(drift(&profile(Vec::new()), &made).is_empty(), "nothing was checked");
    }

    #[test]
    fn what_differs_by_its_times_is_measured_again_and_nothing_else() {
        let made = profile(vec![
            entry("add", Verdict::Crossing, Some(11_000)),
            entry("exp", Verdict::Crossing, Some(11_000)),
            entry("relu", Verdict::Crossing, Some(11_000)),
            timed(Verdict::Never, &[0.3, 0.7]),
            entry("tanh", Verdict::Inconclusive, None),
        ]);
        let now = profile(vec![
            entry("add", Verdict::Crossing, Some(22_000)),
            entry("exp", Verdict::Crossing, Some(11_500)),
            entry("relu", Verdict::Unsafe, None),
            timed(Verdict::NonMonotone, &[0.3, 1.9]),
            entry("tanh", Verdict::Crossing, Some(11_000)),
        ]);
        let ops: Vec<_> = suspects(&made, &now).iter().map(|e| e.op.as_str()).collect();
        assert_eq!(ops, ["sum", "add"], "by 1.9 / 0.7 and by 2");
        assert!(suspects(&made, &made).is_empty());
    }

    /// What the machine did for the seconds of the first look is no finding; what stays is one.
    #[test]
    fn a_threshold_must_have_moved_twice() {
        let made = profile(vec![entry("add", Verdict::Crossing, Some(11_000))]);
        let first = profile(vec![entry("add", Verdict::Crossing, Some(22_000))]);
        let after = |e: Entry| {
            let (records, open) = twice(&made, &first, &[e]);
            assert_eq!(open == 1, word(&records) == "UNKNOWN");
            (word(&records).to_string(), records[0].reason.clone(), records[0].new_threshold)
        };
        let (said, why, threshold) = after(entry("add", Verdict::Crossing, Some(21_000)));
        assert_eq!((said.as_str(), threshold), ("MOVED", Some(21_000)));
        assert!(why.ends_with("so it was twice"), "{why}");
        let wide = Entry { ci: Some([9_000, 30_000]), ..entry("add", Verdict::Crossing, Some(18_000)) };
        let (said, why, threshold) = after(wide);
        assert_eq!((said.as_str(), threshold), ("MOVED", Some(22_000)));
        assert!(why.ends_with("the same again within wider intervals"), "{why}");
        let (said, why, threshold) = after(entry("add", Verdict::Crossing, Some(11_200)));
        assert_eq!((said.as_str(), threshold), ("WITHIN", Some(11_200)));
        assert!(why.starts_with("MOVED at first (+100.0 %") && why.contains("not when it was measured again"), "{why}");
        for opposite_or_open in [
            entry("add", Verdict::Crossing, Some(4_000)),
            entry("add", Verdict::Inconclusive, None),
            entry("add", Verdict::Unmeasured, None),
        ] {
            assert_eq!(after(opposite_or_open.clone()).0, "UNKNOWN", "{opposite_or_open:?}");
        }
        let (unfinished, open) = twice(&made, &first, &[]);
        assert_eq!((word(&unfinished), open), ("UNKNOWN", 1));
        assert!(unfinished[0].reason.ends_with("not measured again: interrupted"), "{}", unfinished[0].reason);
        // Wrong results are found whenever they show.
        assert_eq!(after(entry("add", Verdict::Unsafe, None)).0, "VERDICT");
        // Nothing was suspected: nothing changes.
        assert_eq!(word(&twice(&made, &made, &[entry("add", Verdict::Crossing, Some(22_000))]).0), "SAME");
    }

    #[test]
    fn another_winner_must_win_twice() {
        let made = profile(vec![timed(Verdict::Never, &[0.3, 0.76])]);
        let first = profile(vec![timed(Verdict::NonMonotone, &[0.3, 1.93])]);
        let after = |e: Entry| word(&twice(&made, &first, &[e]).0).to_string();
        assert_eq!(word(&drift(&made, &first)), "VERDICT");
        assert_eq!(after(timed(Verdict::NonMonotone, &[0.3, 1.5])), "VERDICT");
        assert_eq!(after(timed(Verdict::Never, &[0.3, 0.8])), "SAME");
        assert_eq!(after(timed(Verdict::Inconclusive, &[0.3, 0.97])), "UNKNOWN");
        // It cannot say a verdict, but at that size the device wins again.
        assert_eq!(after(timed(Verdict::Inconclusive, &[0.3, 1.3])), "VERDICT");
        assert_eq!(after(timed(Verdict::Inconclusive, &[0.3])), "UNKNOWN", "not that size");
    }
}
