//! What a series of measured sizes says: pure functions, so that the rules are tested on series with a known truth.

use crate::base::record::CalibratePoint;
use crate::profile::Verdict;

/// Who surely wins at a size, by the interval of cpu/gpu.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Winner {
    /// The whole interval lies below 1.
    Cpu,
    /// The whole interval lies above 1.
    Gpu,
    /// The interval contains 1.
    Open,
}

/// What the points say.
#[derive(Clone, Debug, PartialEq)]
pub struct Decision {
    /// Verdict.
    pub verdict: Verdict,
    /// Smallest measured size at which the GPU surely wins, as it does at every larger measured one.
    pub crossing: Option<u64>,
    /// The largest smaller size at which the CPU surely wins (the smallest measured size if there is none), and the
    /// crossing.
    pub ci: Option<[u64; 2]>,
    /// ceil(crossing × margin); for `always` the smallest measured size, below which nothing is known.
    pub threshold: Option<u64>,
    /// The evidence in words.
    pub reason: String,
}

/// Pairs of the first look at a size.
pub const FIRST: usize = 7;

/// Pairs added where the first look is not clear. A fixed number, taken at once: it must not depend on what they show.
pub const SECOND: usize = 24;

/// Ratio beyond which the first look is enough: no interval of more pairs would come back to 1.
const CLEAR: f64 = 1.5;

/// True if the first look at a size leaves its winner in doubt.
pub fn doubtful(ratio_ci: [f64; 2]) -> bool {
    !(ratio_ci[0] > CLEAR || ratio_ci[1] < 1.0 / CLEAR)
}

/// Neighbouring sizes around a crossing are refined until they are this close.
pub const NEAR: f64 = 1.1;

/// Above a crossing, sizes up to [`OCTAVE`] times larger are refined until they are this close, so that a band in which
/// the CPU wins again does not hide between two sizes.
pub const ABOVE: f64 = 1.25;

/// How far below a crossing bands count as ripple of it (tiles and waves make steps) and do not void it.
pub const OCTAVE: f64 = 2.0;

/// Sizes whose winner is open that are worth measuring around one crossing; more of them show the same noise.
const OPEN_ENOUGH: usize = 3;

/// The winner at a point.
pub fn winner(p: &CalibratePoint) -> Winner {
    match p.ratio_ci {
        [low, _] if low > 1.0 => Winner::Gpu,
        [_, high] if high < 1.0 => Winner::Cpu,
        _ => Winner::Open,
    }
}

/// First index of the longest run of GPU wins that reaches the last point. An open point inside does not end the run if
/// its median still says GPU and both neighbours are sure: a lost sample is no evidence for the CPU.
fn final_run(points: &[CalibratePoint]) -> usize {
    let sure = |i: usize| points.get(i).is_some_and(|p| winner(p) == Winner::Gpu);
    let mut start = points.len();
    for i in (0..points.len()).rev() {
        let forgiven = || {
            let p = &points[i];
            winner(p) == Winner::Open && p.cpu_s > p.gpu_s && i > 0 && sure(i - 1) && sure(i + 1)
        };
        if sure(i) {
            start = i;
        } else if !forgiven() {
            break;
        }
    }
    start
}

/// Decides from points in ascending order of size (design.md 7).
pub fn decide(points: &[CalibratePoint], margin: f64) -> Decision {
    let none =
        |verdict: Verdict, reason: String| Decision { verdict, crossing: None, ci: None, threshold: None, reason };
    let (Some(first), Some(last)) = (points.first(), points.last()) else {
        return none(Verdict::Unmeasured, "no size was measured".into());
    };
    let wins: Vec<Winner> = points.iter().map(winner).collect();
    let range = format!("{} to {}", first.size, last.size);
    let (gpu, cpu) = (wins.contains(&Winner::Gpu), wins.contains(&Winner::Cpu));
    let start = final_run(points);
    if let Some(bands) = bands(points, &wins, start) {
        return none(Verdict::NonMonotone, format!("the winner changes more than once: {bands}"));
    }
    if start == 0 {
        return Decision {
            verdict: Verdict::Always,
            crossing: Some(first.size),
            ci: None,
            threshold: Some(first.size),
            reason: format!("the device wins at all sizes from {range}"),
        };
    }
    if start < points.len() {
        let crossing = points[start].size;
        let below = (0..start).rev().find(|i| wins[*i] == Winner::Cpu).map(|i| points[i].size);
        let mut reason = if start + 1 == points.len() {
            format!("the device wins at {crossing}, the largest size; one size alone shows it")
        } else {
            format!("the device wins from {crossing} to {}", last.size)
        };
        if below.is_none() {
            reason.push_str(&format!("; the CPU surely wins nowhere from {} on", first.size));
        }
        return Decision {
            verdict: Verdict::Crossing,
            crossing: Some(crossing),
            ci: Some([below.unwrap_or(first.size), crossing]),
            threshold: Some(with_margin(crossing, margin)),
            reason,
        };
    }
    match (gpu, cpu, wins.last()) {
        (false, true, Some(Winner::Cpu)) => none(Verdict::Never, format!("the device wins at no size from {range}")),
        (false, false, _) => none(Verdict::Inconclusive, format!("the difference stays within the noise from {range}")),
        _ => none(Verdict::Inconclusive, format!("nobody surely wins at the largest size, {}", last.size)),
    }
}

/// crossing × margin, rounded up; products that are whole but for the rounding of the margin stay whole.
pub fn with_margin(crossing: u64, margin: f64) -> u64 {
    let exact = crossing as f64 * margin;
    let up = (exact - exact * 1e-12).ceil() as u64;
    up.max(crossing)
}

/// The bands of the winners if the GPU surely wins somewhere and the CPU at a larger size; open sizes end no band.
/// Wins less than [`OCTAVE`] below the final run are no band of their own: the crossing is the end of the ripple.
fn bands(points: &[CalibratePoint], wins: &[Winner], start: usize) -> Option<String> {
    let first_gpu = wins.iter().position(|w| *w == Winner::Gpu)?;
    wins[first_gpu..].iter().position(|w| *w == Winner::Cpu)?;
    if points.get(start).is_some_and(|s| points[first_gpu].size as f64 * OCTAVE > s.size as f64) {
        return None;
    }
    let mut bands: Vec<(Winner, u64, u64)> = Vec::new();
    for (p, w) in points.iter().zip(wins).filter(|(_, w)| **w != Winner::Open) {
        match bands.last_mut() {
            Some(b) if b.0 == *w => b.2 = p.size,
            _ => bands.push((*w, p.size, p.size)),
        }
    }
    let text = |(w, a, b): &(Winner, u64, u64)| {
        let who = if *w == Winner::Gpu { "device" } else { "CPU" };
        if a == b { format!("{who} at {a}") } else { format!("{who} {a} to {b}") }
    };
    Some(bands.iter().map(text).collect::<Vec<_>>().join(", "))
}

/// The gap (index of its lower point) to be halved next, or `None` if the crossing is known well enough.
///
/// First between the last sure CPU win and the first size of the final run, the widest gap beyond [`NEAR`]; then within
/// one [`OCTAVE`] above, the widest beyond [`ABOVE`].
pub fn refine(points: &[CalibratePoint]) -> Option<usize> {
    let start = final_run(points);
    if start == 0 || start == points.len() {
        return None;
    }
    let below = (0..start).rev().find(|i| winner(&points[*i]) == Winner::Cpu).unwrap_or(0);
    let open = points[below..start].iter().filter(|p| winner(p) == Winner::Open).count();
    let ratio = |i: usize| points[i + 1].size as f64 / points[i].size.max(1) as f64;
    let widest = |gaps: std::ops::Range<usize>, beyond: f64| {
        let wide = |i: &usize| ratio(*i) > beyond && points[i + 1].size > points[*i].size + 1;
        gaps.filter(wide).max_by(|a, b| ratio(*a).total_cmp(&ratio(*b)))
    };
    let around = if open < OPEN_ENOUGH { widest(below..start, NEAR) } else { None };
    around.or_else(|| {
        let limit = points[start].size as f64 * OCTAVE;
        let above = (start..points.len() - 1).take_while(|i| (points[*i].size as f64) < limit).last();
        widest(start..above.map_or(start, |i| i + 1), ABOVE)
    })
}

/// Indices of points that contradict both neighbours, who agree with each other: worth a second measurement before a
/// threshold is given up for them.
pub fn odd_ones(points: &[CalibratePoint]) -> Vec<usize> {
    let opposite = |a: Winner, b: Winner| matches!((a, b), (Winner::Cpu, Winner::Gpu) | (Winner::Gpu, Winner::Cpu));
    let wins: Vec<Winner> = points.iter().map(winner).collect();
    (1..points.len().saturating_sub(1))
        .filter(|i| wins[i - 1] == wins[i + 1] && opposite(wins[*i], wins[i + 1]))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One letter per size 1, 2, 4, ...: C, G, or an open point that leans to the CPU (c) or the GPU (g).
    fn points(series: &str) -> Vec<CalibratePoint> {
        let of = |(i, c): (usize, char)| {
            let (ratio, half) = match c {
                'C' => (0.5, 0.1),
                'G' => (2.0, 0.1),
                'c' => (0.95, 0.2),
                _ => (1.05, 0.2),
            };
            CalibratePoint {
                size: 100 << i,
                cpu_s: ratio,
                gpu_s: 1.0,
                ratio_ci: [ratio * (1.0 - half), ratio * (1.0 + half)],
                pairs: 31,
            }
        };
        series.chars().enumerate().map(of).collect()
    }

    fn verdict(series: &str) -> (Verdict, Option<u64>, Option<[u64; 2]>, Option<u64>) {
        let d = decide(&points(series), 1.1);
        (d.verdict, d.crossing, d.ci, d.threshold)
    }

    #[test]
    fn a_crossing_is_the_first_of_the_final_wins() {
        assert_eq!(verdict("CCCGGG"), (Verdict::Crossing, Some(800), Some([400, 800]), Some(880)));
        assert_eq!(verdict("CCcgGG"), (Verdict::Crossing, Some(1600), Some([200, 1600]), Some(1760)));
        // The last size alone may set it, and says so.
        assert_eq!(verdict("CCCCG"), (Verdict::Crossing, Some(1600), Some([800, 1600]), Some(1760)));
        assert!(decide(&points("CCCCG"), 1.1).reason.contains("one size alone"));
        // Without a sure CPU win the interval reaches down to the smallest size.
        assert_eq!(verdict("cgGG"), (Verdict::Crossing, Some(400), Some([100, 400]), Some(440)));
    }

    #[test]
    fn one_lost_sample_is_forgiven_and_two_are_not() {
        assert_eq!(verdict("CCGGgGG"), (Verdict::Crossing, Some(400), Some([200, 400]), Some(440)));
        assert_eq!(verdict("CCGGggGG").1, Some(6400), "two open sizes in a row may be the truth");
        assert_eq!(verdict("CCGGcGG").1, Some(3200), "a size that leans to the CPU is not forgiven");
    }

    #[test]
    fn all_of_one_kind() {
        assert_eq!(verdict("CCCC"), (Verdict::Never, None, None, None));
        assert_eq!(verdict("CcgC").0, Verdict::Never);
        assert_eq!(verdict("GGGG"), (Verdict::Always, Some(100), None, Some(100)));
        assert_eq!(verdict("G").0, Verdict::Always);
        assert_eq!(verdict("").0, Verdict::Unmeasured);
    }

    #[test]
    fn noise_is_not_a_win() {
        assert_eq!(verdict("ggg").0, Verdict::Inconclusive);
        assert_eq!(verdict("CCCg").0, Verdict::Inconclusive);
        assert_eq!(verdict("CGGg").0, Verdict::Inconclusive, "the largest size is open");
        let mut nan = points("CCG");
        nan[2].ratio_ci = [f64::NAN; 2];
        assert_eq!(decide(&nan, 1.1).verdict, Verdict::Inconclusive);
    }

    #[test]
    fn bands_are_non_monotone_and_named() {
        for series in ["CGGC", "GC", "CGCG", "CGgC", "GGCGG"] {
            let d = decide(&points(series), 1.1);
            assert_eq!((d.verdict, d.threshold), (Verdict::NonMonotone, None), "{series}");
        }
        let d = decide(&points("CCGGCC"), 1.1);
        assert!(d.reason.ends_with("CPU 100 to 200, device 400 to 800, CPU 1600 to 3200"), "{}", d.reason);
    }

    #[test]
    fn margins_round_up_without_an_extra_one() {
        assert_eq!(with_margin(1000, 1.1), 1100);
        assert_eq!(with_margin(1001, 1.1), 1102);
        assert_eq!(with_margin(7, 1.0), 7);
        assert_eq!(with_margin(u64::MAX, 1.1), u64::MAX);
    }

    fn sized(series: &str, sizes: &[u64]) -> Vec<CalibratePoint> {
        points(series).into_iter().zip(sizes).map(|(p, size)| CalibratePoint { size: *size, ..p }).collect()
    }

    #[test]
    fn ripple_moves_the_crossing_up_and_does_not_void_it() {
        let d = decide(&sized("CCGCGG", &[100, 200, 330, 400, 500, 1000]), 1.1);
        assert_eq!((d.verdict, d.crossing, d.ci), (Verdict::Crossing, Some(500), Some([400, 500])));
        let d = decide(&sized("CCGCGG", &[100, 200, 230, 400, 500, 1000]), 1.1);
        assert_eq!(d.verdict, Verdict::NonMonotone);
        let d = decide(&sized("CCGC", &[100, 200, 330, 400]), 1.1);
        assert_eq!(d.verdict, Verdict::NonMonotone, "the CPU wins at the end");
    }

    #[test]
    fn refinement_halves_the_widest_gap_around_the_crossing_first() {
        assert_eq!(refine(&points("CCGG")), Some(1));
        assert_eq!(refine(&points("CCgGG")), Some(2), "the last of equal gaps");
        for settled in ["CCCC", "GGGG", "gggg", "CGCC"] {
            assert_eq!(refine(&points(settled)), None, "{settled}");
        }
        assert_eq!(refine(&points("CCgggG")), None, "more open sizes show the same noise");
        assert_eq!(refine(&sized("CG", &[100, 109])), None);
        assert_eq!(refine(&sized("CG", &[100, 112])), Some(0));
        assert_eq!(refine(&sized("CG", &[9, 10])), None, "nothing lies between");
        // Then above: 109 to 218 has holes beyond a quarter, and 400 is too far to matter.
        assert_eq!(refine(&sized("CGGG", &[100, 109, 200, 400])), Some(2));
        assert_eq!(refine(&sized("CGGGG", &[100, 109, 134, 165, 220])), Some(3));
        assert_eq!(refine(&sized("CGGGGG", &[100, 109, 134, 165, 200, 240])), None);
    }

    #[test]
    fn odd_ones_contradict_both_neighbours() {
        assert_eq!(odd_ones(&points("CCGCCGGCG")), [2, 7]);
        assert!(odd_ones(&points("CCgGG")).is_empty());
        assert!(odd_ones(&points("G")).is_empty());
    }

    #[test]
    fn doubt_ends_beyond_one_and_a_half() {
        for clear in [[1.6, 2.0], [0.1, 0.6], [1.51, 9.0], [0.1, 0.66]] {
            assert!(!doubtful(clear), "{clear:?}");
        }
        for open in [[1.5, 2.0], [0.9, 1.1], [0.5, 0.7], [1.4, 9.0], [0.5, 1.0 / 1.5], [f64::NAN; 2]] {
            assert!(doubtful(open), "{open:?}");
        }
    }

    #[test]
    fn winners_and_refinement_at_their_borders() {
        let of = |ci: [f64; 2]| winner(&CalibratePoint { ratio_ci: ci, ..points("C").remove(0) });
        assert_eq!(
            [of([1.0, 2.0]), of([0.5, 1.0]), of([1.1, 1.2]), of([0.8, 0.9])],
            [Winner::Open, Winner::Open, Winner::Gpu, Winner::Cpu]
        );
        // Gaps of exactly the wanted ratio are narrow enough.
        assert_eq!(refine(&sized("CG", &[100, 110])), None);
        assert_eq!(refine(&sized("CGG", &[100, 109, 136])), None);
        assert_eq!(refine(&sized("CGGG", &[100, 108, 135, 270])), Some(2));
        assert_eq!(refine(&sized("CGGG", &[100, 108, 216, 432])), Some(1), "an octave above ends the search");
        assert_eq!(odd_ones(&points("GCG")), [1]);
        assert_eq!(odd_ones(&points("CGC")), [1]);
        assert!(odd_ones(&points("CG")).is_empty() && odd_ones(&points("GCC")).is_empty());
    }
}
