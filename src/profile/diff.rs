//! What two profiles say differently, key by key.

use std::collections::HashMap;

use crate::base::record::{CalibratePoint, ThresholdRecord};

use super::{Entry, Profile, State, Verdict};

/// The word for a key that both profiles have and place alike.
pub const SAME: &str = "SAME";
/// Thresholds differ by no more than their intervals, or the tolerance, allow.
pub const WITHIN: &str = "WITHIN";
/// Thresholds differ by more.
pub const MOVED: &str = "MOVED";
/// Verdicts differ, and somewhere the winner surely changed; or one was not measured.
pub const VERDICT: &str = "VERDICT";
/// One profile alone has the key.
pub const ALONE: &str = "ALONE";
/// Nothing can be said: one calibration was cut short before this key, the units differ, or verdicts differ although no size that both
/// measured says so.
pub const UNKNOWN: &str = "UNKNOWN";

/// All words, findings first.
pub const WORDS: [&str; 6] = [MOVED, VERDICT, ALONE, UNKNOWN, WITHIN, SAME];

/// True if the word is a finding.
pub fn is_finding(word: &str) -> bool {
    [MOVED, VERDICT, ALONE].contains(&word)
}

/// One record per key: those of `a` in its order, then those that only `b` has. Devices are the same if their uids are.
///
/// Two measured thresholds differ if the 95 % intervals of the crossings do not touch and the thresholds lie more than
/// `tolerance` apart (0.15: the larger is more than 1.15 times the smaller); two that have no interval, if they are not
/// within the tolerance. Intervals of equal width that hold the truth in 95 of 100 cases part by chance in 6 of 1,000.
/// Verdicts that were measured differ if at a size of both, by the same rule for CPU / device, the winner is another one: where calls
/// take alike on both, two short calibrations of a machine that stays as it is may call a key `never` and `non-monotone`.
/// A key that a profile cut short (`partial`) does not have, or that it lists as unmeasured, is unknown there.
pub fn diff(a: &Profile, b: &Profile, tolerance: f64) -> Vec<ThresholdRecord> {
    fn by_key(p: &Profile) -> HashMap<Key<'_>, &Entry> {
        p.entries.iter().map(|e| (key(e), e)).collect()
    }
    let (in_a, in_b) = (by_key(a), by_key(b));
    let of_a = a.entries.iter().map(|x| (Some(x), in_b.get(&key(x)).copied()));
    let of_b = b.entries.iter().filter(|y| !in_a.contains_key(&key(y))).map(|y| (None, Some(y)));
    of_a.chain(of_b).filter_map(|(x, y)| compare((a, x), (b, y), tolerance)).collect()
}

/// Shares of disturbed looks that lie closer than this are the same.
const ALIKE: f64 = 0.1;

/// What to say of two calibrations of which something else disturbed one far more often: calls on the CPU and those of devices are
/// slowed down by different amounts, and thresholds may move with that (docs/measuring.md).
pub fn disturbed(a: &Profile, b: &Profile) -> Option<String> {
    let share = |p: &Profile| p.host.as_ref()?.disturbed;
    let (x, y) = (share(a)?, share(b)?);
    let (x, y, apart) = (100.0 * x, 100.0 * y, (x - y).abs() >= ALIKE);
    apart.then(|| {
        format!("something else slowed the processor down in {x:.0} % of the first one's looks and {y:.0} % of the second's: thresholds may differ by that alone")
    })
}

/// What to say of two calibrations whose thresholds are stated for different states of the machine: a line for each device, residency
/// and number of threads.
pub fn states(a: &Profile, b: &Profile) -> Vec<String> {
    let line = |x: &State| {
        let y = b.states.iter().find(|y| y.same_key(x) && !y.as_stated(x))?;
        let off = 100.0 * (x.stated().change(y.stated()) - 1.0);
        let id = b.devices.iter().find(|d| d.uid == x.device).map_or(x.device.as_str(), |d| d.id.as_str());
        Some(format!(
            "{id} {} at {} threads: thresholds are stated for states of the machine that are {off:.0} % apart, and may differ by that alone",
            x.residency, x.threads
        ))
    };
    a.states.iter().filter_map(line).collect()
}

type Key<'e> = (&'e str, &'e str, &'e str, &'e str, &'e str, u32, &'e str);

/// What makes an entry's identity.
pub(super) fn key(e: &Entry) -> Key<'_> {
    (&e.op, &e.dtype, &e.family, &e.device, &e.residency, e.threads, &e.cpu_variant)
}

pub(super) fn compare(
    a: (&Profile, Option<&Entry>),
    b: (&Profile, Option<&Entry>),
    tolerance: f64,
) -> Option<ThresholdRecord> {
    let one = a.1.or(b.1)?;
    let (verdict, reason) = judge(a, b, tolerance);
    let known = |p: &Profile| p.devices.iter().find(|d| d.uid == one.device).map(|d| d.id.clone());
    Some(ThresholdRecord {
        op: one.op.clone(),
        dtype: one.dtype.clone(),
        family: one.family.clone(),
        device: known(b.0).or_else(|| known(a.0)).unwrap_or_else(|| one.device.clone()),
        uid: one.device.clone(),
        residency: one.residency.clone(),
        threads: one.threads,
        cpu_variant: one.cpu_variant.clone(),
        unit: one.unit.clone(),
        old_verdict: a.1.map(|e| e.verdict.name().into()),
        new_verdict: b.1.map(|e| e.verdict.name().into()),
        old_threshold: a.1.and_then(|e| e.threshold),
        new_threshold: b.1.and_then(|e| e.threshold),
        old_ci: a.1.and_then(|e| e.ci),
        new_ci: b.1.and_then(|e| e.ci),
        old_edited: a.1.is_some_and(|e| e.edited),
        new_edited: b.1.is_some_and(|e| e.edited),
        verdict: verdict.into(),
        reason,
    })
}

/// True if both entries are of one op, dtype, family, device, residency, number of threads and CPU kernel.
pub fn same_key(a: &Entry, b: &Entry) -> bool {
    key(a) == key(b)
}

fn judge(a: (&Profile, Option<&Entry>), b: (&Profile, Option<&Entry>), tolerance: f64) -> (&'static str, String) {
    let (x, y) = match (a.1, b.1) {
        (Some(x), Some(y)) => (x, y),
        (None, _) if a.0.partial => return (UNKNOWN, "the first was cut short".into()),
        (_, None) if b.0.partial => return (UNKNOWN, "the second was cut short".into()),
        (None, _) => return (ALONE, "only the second has this key".into()),
        (_, None) => return (ALONE, "only the first has this key".into()),
    };
    let open = |p: &Profile, e: &Entry| p.partial && e.verdict == Verdict::Unmeasured;
    if open(a.0, x) || open(b.0, y) {
        return (UNKNOWN, "unmeasured in a calibration that was cut short".into());
    }
    if x.unit != y.unit {
        return (UNKNOWN, format!("in {} and in {}", x.unit, y.unit));
    }
    if x.verdict != y.verdict {
        let verdicts = format!("{} and {}", x.verdict, y.verdict);
        return match other_winner(x, y, tolerance) {
            Some(Winner::Stays) => {
                (UNKNOWN, format!("{verdicts}, but at no size of both did the winner surely change"))
            }
            Some(Winner::Changes(p, q)) => (
                VERDICT,
                format!("{verdicts}: CPU / device at {} {}: {:.2} and {:.2}", p.size, x.unit, ratio(p), ratio(q)),
            ),
            None => (VERDICT, verdicts),
        };
    }
    let (Some(s), Some(t)) = (x.threshold, y.threshold) else {
        return if x.threshold == y.threshold { (SAME, String::new()) } else { (MOVED, "one has a threshold".into()) };
    };
    if s == t {
        return (SAME, String::new());
    }
    let ratio = s.max(t) as f64 / s.min(t) as f64;
    let percent = match s {
        0 => format!("{t} instead of 0"),
        _ => format!("{:+.1} %", (t as f64 / s as f64 - 1.0) * 100.0),
    };
    match (x.ci, y.ci) {
        (Some([_, high]), Some([low, _])) if high < low && ratio > 1.0 + tolerance => {
            (MOVED, format!("{percent}: the intervals do not touch"))
        }
        (Some([low, _]), Some([_, high])) if high < low && ratio > 1.0 + tolerance => {
            (MOVED, format!("{percent}: the intervals do not touch"))
        }
        (Some([a_low, a_high]), Some([b_low, b_high])) if a_high >= b_low && b_high >= a_low => {
            (WITHIN, format!("{percent}: the intervals overlap"))
        }
        _ if ratio <= 1.0 + tolerance => (WITHIN, format!("{percent}: within the tolerance")),
        _ => (MOVED, format!("{percent}, without intervals")),
    }
}

/// What the points of two entries with different verdicts say of who wins.
pub(super) enum Winner<'e> {
    /// The other one, at a size at which both have these points.
    Changes(&'e CalibratePoint, &'e CalibratePoint),
    /// At each size that both measured the same one, as far as can be told.
    Stays,
}

/// CPU / device.
pub(super) fn ratio(p: &CalibratePoint) -> f64 {
    p.cpu_s / p.gpu_s
}

/// By how much two points of a size differ if the winner does.
pub(super) fn changed(p: &CalibratePoint, q: &CalibratePoint, tolerance: f64) -> Option<f64> {
    let (r, s) = (ratio(p), ratio(q));
    let factor = r.max(s) / r.min(s);
    ((r > 1.0) != (s > 1.0) && factor > 1.0 + tolerance).then_some(factor)
}

/// `None` where the verdicts do not rest on points of the same sizes.
pub(super) fn other_winner<'e>(x: &'e Entry, y: &'e Entry, tolerance: f64) -> Option<Winner<'e>> {
    use Verdict::{Always, Crossing, Inconclusive, Never, NonMonotone};
    let measured = |e: &Entry| {
        !e.edited && matches!(e.verdict, Always | Crossing | Inconclusive | Never | NonMonotone) && !e.points.is_empty()
    };
    if !measured(x) || !measured(y) {
        return None;
    }
    let of: HashMap<u64, &CalibratePoint> = y.points.iter().map(|p| (p.size, p)).collect();
    let both: Vec<_> = x.points.iter().filter_map(|p| Some((p, *of.get(&p.size)?))).collect();
    let surely = |(p, q): &(&CalibratePoint, &CalibratePoint)| {
        let touch = p.ratio_ci[1] >= q.ratio_ci[0] && q.ratio_ci[1] >= p.ratio_ci[0];
        changed(p, q, tolerance).filter(|_| !touch)
    };
    let most = both.iter().filter_map(|pair| Some((surely(pair)?, pair))).max_by(|a, b| a.0.total_cmp(&b.0));
    match most {
        Some((_, (p, q))) => Some(Winner::Changes(p, q)),
        None => (!both.is_empty()).then_some(Winner::Stays),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profile::Kind;

    #[test]
    fn thresholds_for_different_states_of_the_machine_are_told() {
        let of = |residency: &str, seconds: f64| {
            let state = State {
                device: "pci:1".into(),
                residency: residency.into(),
                threads: 2,
                looks: 2000,
                cpu_s: 1e-5,
                device_s: 2e-5,
                stated_cpu_s: 1e-5,
                stated_device_s: seconds,
            };
            Profile { states: vec![state], ..Profile::new(Kind::Calibrated, "x") }
        };
        assert_eq!(states(&of("always", 1e-4), &of("always", 1.001e-4)), [""; 0]);
        assert_eq!(states(&of("always", 1e-4), &of("resident", 1.2e-4)), [""; 0]);
        let said = states(&of("always", 1e-4), &of("always", 1.2e-4));
        let line = "pci:1 always at 2 threads: thresholds are stated for states of the machine that are 20 % apart";
        assert!(said.len() == 1 && said[0].starts_with(line), "{said:?}");
    }
    #[test]
    fn verdicts_differ_only_where_the_winner_does() {
        // CPU / device with its interval at 100, 1000, ...
        let of = |verdict: Verdict, ratios: &[[f64; 3]]| {
            let point = |(i, [low, ratio, high]): (usize, &[f64; 3])| CalibratePoint {
                size: 10u64.pow(i as u32 + 2),
                cpu_s: 1e-5 * ratio,
                gpu_s: 1e-5,
                ratio_ci: [*low, *high],
                pairs: 15,
            };
            let points = ratios.iter().enumerate().map(point).collect();
            Entry { op: "sum".into(), verdict, unit: "elements".into(), points, ..Entry::default() }
        };
        let word = |x: &Entry, y: &Entry, tolerance: f64| {
            let of = |e: &Entry| Profile { entries: vec![e.clone()], ..Profile::new(Kind::Calibrated, "x") };
            let [a, b] =
                [diff(&of(x), &of(y), tolerance), diff(&of(y), &of(x), tolerance)].map(|d| d[0].verdict.clone());
            assert_eq!(a, b, "the other way round");
            a
        };
        let never = of(Verdict::Never, &[[0.2, 0.3, 0.4], [0.9, 0.97, 1.05], [0.2, 0.3, 0.4]]);
        let near = of(Verdict::NonMonotone, &[[0.2, 0.3, 0.4], [1.01, 1.06, 1.11], [0.2, 0.3, 0.4]]);
        let far = of(Verdict::NonMonotone, &[[0.2, 0.3, 0.4], [1.2, 1.3, 1.4], [0.2, 0.3, 0.4]]);
        assert_eq!(word(&never, &near, 0.0), UNKNOWN, "it may be the same machine");
        assert_eq!(word(&never, &far, 0.15), VERDICT);
        assert_eq!(word(&never, &far, 0.5), UNKNOWN, "within the tolerance");
        let slower = of(Verdict::Never, &[[0.2, 0.3, 0.4], [0.6, 0.7, 0.8], [0.2, 0.3, 0.4]]);
        assert_eq!(
            word(&of(Verdict::Inconclusive, &[[0.2, 0.3, 0.4], [0.9, 0.97, 1.0]]), &slower, 0.0),
            UNKNOWN,
            "slower still loses"
        );
        // What was measured further says nothing of a change.
        let short = of(Verdict::Never, &[[0.2, 0.3, 0.4]]);
        let long = of(Verdict::Crossing, &[[0.2, 0.3, 0.4], [1.5, 1.6, 1.7]]);
        assert_eq!(word(&short, &long, 0.0), UNKNOWN);
        let lost = of(Verdict::Never, &[[0.2, 0.3, 0.4], [0.6, 0.7, 0.8]]);
        assert_eq!(word(&long, &lost, 0.15), VERDICT);
        let d = diff(
            &Profile { entries: vec![long.clone()], ..Profile::new(Kind::Calibrated, "x") },
            &Profile { entries: vec![lost.clone()], ..Profile::new(Kind::Calibrated, "x") },
            0.15,
        );
        assert_eq!(d[0].reason, "crossing and never: CPU / device at 1000 elements: 1.60 and 0.70");
        // Verdicts that rest on something else.
        let edited = Entry { edited: true, ..near.clone() };
        let unsafe_ = Entry { verdict: Verdict::Unsafe, ..near.clone() };
        let elsewhere = Entry { points: near.points[1..2].to_vec(), ..near.clone() };
        for y in [&edited, &of(Verdict::Always, &[]), &unsafe_] {
            assert_eq!(word(&never, y, 0.0), VERDICT, "{y:?}");
        }
        assert_eq!(word(&short, &elsewhere, 0.0), VERDICT, "no size of both");
    }
}
