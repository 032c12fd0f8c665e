//! The cost curve of an entry: what its evidence says about shapes that were not measured.

use crate::base::Features;
use crate::base::record::CalibratePoint;

mod bounds;
mod curve;
mod doubt;
mod fit;
mod lanes;
mod least;
mod search;

use super::{Entry, Verdict, work_of};

pub(super) use bounds::Plain;
pub use curve::{Curve, Extent, Shape, Side};
pub use doubt::doubtful;
pub use fit::{Sample, fit};

/// Seconds at an amount of work, by straight lines through the evidence on doubly logarithmic axes; beyond either end the
/// nearest line goes on. `None` with fewer than two usable points, or for no work at all.
pub fn seconds(entry: &Entry, work: u128, of: fn(&CalibratePoint) -> f64) -> Option<f64> {
    if work == 0 {
        return None;
    }
    let x = (work as f64).ln();
    let at = |p: &CalibratePoint| Some(((work_of(&entry.unit, p.size)? as f64).ln(), of(p).ln()));
    let mut lines = entry.points.windows(2).filter_map(|w| Some((at(&w[0])?, at(&w[1])?)));
    let usable = |((x0, _), (x1, _)): &((f64, f64), (f64, f64))| x0.is_finite() && x1 > x0;
    let mut line = lines.by_ref().find(usable)?;
    for next in lines.filter(usable) {
        if x < next.0.0 {
            break;
        }
        line = next;
    }
    let ((x0, y0), (x1, y1)) = line;
    let y = y0 + (y1 - y0) * (x - x0) / (x1 - x0);
    Some(y.exp()).filter(|s| s.is_finite())
}

/// Seconds on the device at an amount of work.
pub fn gpu_seconds(entry: &Entry, work: u128) -> Option<f64> {
    seconds(entry, work, |p| p.gpu_s)
}

/// Seconds on the CPU at an amount of work.
pub fn cpu_seconds(entry: &Entry, work: u128) -> Option<f64> {
    seconds(entry, work, |p| p.cpu_s)
}

/// Predicted seconds of one call on either side.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Times {
    /// On the CPU.
    pub cpu_s: f64,
    /// On the entry's device, with the copies that its residency needs.
    pub device_s: f64,
}

/// What the entry's evidence says of a call: its curve, or without one lines through the measured sizes. `None` if there is
/// too little evidence, or none of such shapes. Pure; allocates nothing.
pub fn predict(entry: &Entry, call: &Features) -> Option<Times> {
    if let Some(curve) = &entry.curve {
        let shape = Shape::of(call);
        let times = Times { cpu_s: curve.cpu.seconds(&shape), device_s: curve.device.seconds(&shape) };
        return curve.covers(&shape).then_some(times);
    }
    Some(Times { cpu_s: cpu_seconds(entry, call.work)?, device_s: gpu_seconds(entry, call.work)? })
}

/// Whether the entry's curve says that the device is faster: by what was found ([`Curve::change`]), or by both times. `None` without a
/// curve, for shapes that it does not cover or whose place the threshold knows better ([`exceeds`]), and where the device's results were
/// wrong or nobody looked. Pure; allocates nothing.
pub fn device_wins(entry: &Entry, call: &Features) -> Option<bool> {
    let curve = deciding(entry)?;
    if exceeds(entry, curve, call) {
        return None;
    }
    let shape = Shape::of(call);
    let predicted = || curve.device.seconds(&shape) < curve.cpu.seconds(&shape);
    curve.covers(&shape).then(|| curve.outside(&shape).unwrap_or_else(predicted))
}

/// How far beyond the measured operations a curve may send to the CPU what the threshold sends to the device, as a factor: as far
/// as the next size of a sweep lies, about.
const OVERRULES: f64 = 2.0;

/// Most operations for which the entry's curve decides. Where the device was found to win at every size from some on, a curve that
/// is stretched says less than that.
fn most_operations(entry: &Entry, curve: &Curve) -> f64 {
    let wins_on = matches!(entry.verdict, Verdict::Always | Verdict::Crossing);
    curve.span[0][1] * if wins_on { OVERRULES } else { curve::BEYOND }
}

/// Whether a call has so many more operations than the measured ones that the entry's threshold decides and not its curve.
pub fn exceeds(entry: &Entry, curve: &Curve, call: &Features) -> bool {
    call.cost.flops as f64 > most_operations(entry, curve)
}

/// The curve of an entry, unless the device's results were wrong or nobody looked.
fn deciding(entry: &Entry) -> Option<&Curve> {
    entry.curve.as_ref().filter(|_| !matches!(entry.verdict, Verdict::Unsafe | Verdict::Unmeasured))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(unit: &str) -> Entry {
        let point = |size: u64, gpu_s: f64| CalibratePoint { size, cpu_s: 1.0, gpu_s, ratio_ci: [1.0, 1.0], pairs: 1 };
        Entry {
            unit: unit.into(),
            points: vec![point(10, 1.0), point(100, 10.0), point(1000, 1000.0)],
            ..Entry::default()
        }
    }

    #[test]
    fn powers_are_met_between_and_beyond_the_points() {
        let e = entry("elements");
        for (work, want) in [(10, 1.0), (31, 3.1), (100, 10.0), (300, 90.0), (1000, 1000.0), (2000, 4000.0), (1, 0.1)] {
            let got = gpu_seconds(&e, work).unwrap();
            assert!((got / want - 1.0).abs() < 1e-9, "{work}: {got} instead of {want}");
        }
        assert_eq!(cpu_seconds(&e, 500), Some(1.0));
    }

    /// A key whose budget ended at 9,702 had lost 405 % at a larger size, which its curve sent to the CPU.
    #[test]
    fn a_stretched_curve_takes_nothing_from_a_device_that_wins_from_some_size_on() {
        let side = |flop_s: f64| Side { fixed_s: 1e-5, flop_s, ..Side::default() };
        let curve = Curve {
            span: [[1e3, 1e4], [1.0, 1e4], [1.0, 1e4], [1.0, 1e3]],
            change: None,
            cpu: side(1e-9),
            device: side(2e-9),
        };
        let call = |flops: u64| Features {
            work: flops.into(),
            cost: crate::base::Cost { flops, read: 5000, written: 1000 },
            ..Features::default()
        };
        let at = |verdict, flops| {
            device_wins(&Entry { verdict, curve: Some(curve.clone()), ..entry("flops") }, &call(flops))
        };
        for verdict in [Verdict::Always, Verdict::Crossing] {
            assert_eq!([5_000, 19_000, 21_000, 80_000].map(|n| at(verdict, n)), [Some(false), Some(false), None, None]);
        }
        for verdict in [Verdict::Never, Verdict::NonMonotone, Verdict::Inconclusive] {
            assert_eq!([5_000, 80_000].map(|n| at(verdict, n)), [Some(false); 2], "{verdict}");
        }
    }

    /// A curve that says the opposite of what was found at every size: what was found decides, but for between its two ends, beyond
    /// far more than was measured, and of shapes that are not like those.
    #[test]
    fn where_a_size_says_all_what_was_found_decides() {
        let side = |flop_s: f64| Side { fixed_s: 1e-5, flop_s, ..Side::default() };
        let slow_above = Side { fixed_s: 1e-6, ..side(3e-9) };
        let span = [[1e3, 1e6], [4e3, 4e6], [4e3, 4e6], [1.0, 1.0]];
        let curve = Curve { span, change: Some([80e3, 88e3]), cpu: side(1e-9), device: slow_above };
        let call = |n: u64| Features {
            work: n.into(),
            cost: crate::base::Cost { flops: n, read: 4 * n, written: 4 * n },
            ..Features::default()
        };
        let at = |curve: &Curve, n| {
            let entry = Entry { verdict: Verdict::Crossing, curve: Some(curve.clone()), ..entry("elements") };
            device_wins(&entry, &call(n))
        };
        let sizes = [2_000, 9_990, 10_010, 10_990, 11_000, 900_000];
        assert_eq!(sizes.map(|n| at(&curve, n)), [false, false, false, false, true, true].map(Some));
        let alone = Curve { change: None, ..curve.clone() };
        assert_eq!(sizes.map(|n| at(&alone, n)), [true, false, false, false, false, false].map(Some));
        assert_eq!([3, 2_100_000].map(|n| at(&curve, n)), [None; 2]);
    }

    #[test]
    fn a_dim_is_cubed_and_too_little_evidence_says_nothing() {
        let e = entry("dim");
        assert!((gpu_seconds(&e, 100 * 100 * 100).unwrap() / 10.0 - 1.0).abs() < 1e-9);
        assert_eq!(gpu_seconds(&e, 0), None);
        assert_eq!(gpu_seconds(&Entry { points: e.points[..1].to_vec(), ..e.clone() }, 5), None);
        assert!(gpu_seconds(&e, u128::MAX).is_some());
        let call = Features { work: 100 * 100 * 100, ..Features::default() };
        let times = predict(&e, &call).unwrap();
        assert!((times.device_s / 10.0 - 1.0).abs() < 1e-9 && times.cpu_s == 1.0, "{times:?}");
        assert_eq!(predict(&e, &Features::default()), None);
    }
}
