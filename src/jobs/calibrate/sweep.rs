//! Measures one op, dtype and family on one device against the CPU: a logarithmic sweep, then refinement around each
//! crossing.

use std::time::Duration;

use crate::base::record::CalibratePoint;
use crate::base::sink::Cancel;
use crate::base::{Attrs, Case, Code, Cost, DType, Error, Fill, Result, stats, units};
use crate::engine::Runner;
use crate::measure::{OpSubject, Residency, StopRule, Subject, sample, stop};
use crate::op::{Family, OpDesc, Unit, case};

use super::decide::{self, FIRST, SECOND};
use super::smoke::gross_error;

/// Fewest pairs that are evidence.
const LEAST: usize = 3;

/// Share of the remaining budget that one size may take.
const POINT: f64 = 0.7;

/// Most sizes added to a sweep by refinement, per residency.
const REFINEMENTS: usize = 16;

/// What is swept.
pub(super) struct Sweep<'a> {
    pub(super) op: &'static OpDesc,
    pub(super) dtype: DType,
    pub(super) family: &'a Family,
    /// Smallest and largest size of the sweep, as `Family::sweep` takes them.
    pub(super) range: (u64, u64),
    pub(super) cpu: &'a Runner,
    pub(super) cpu_variant: Option<&'a str>,
    pub(super) device: &'a Runner,
    pub(super) residencies: &'a [Residency],
    /// Seconds on the baseline's clock for everything here.
    pub(super) budget_s: f64,
    pub(super) seed: u64,
    pub(super) cancel: &'a Cancel,
}

/// What came of it.
#[derive(Debug, Default)]
pub(super) struct Swept {
    /// Points of each residency in ascending order of size.
    pub(super) points: Vec<Vec<CalibratePoint>>,
    /// Kernel on the device at the largest size.
    pub(super) kernel: String,
    /// Why larger sizes are missing, if they are.
    pub(super) cut: Option<String>,
    /// A measured run whose result is grossly wrong.
    pub(super) wrong: Option<String>,
    /// The error that ended the sweep, if one did.
    pub(super) error: Option<Error>,
}

/// A measured size with the number that the family's sweep makes it from.
struct Measured {
    param: u64,
    point: CalibratePoint,
}

/// One call each, for predictions.
#[derive(Clone, Copy)]
struct Known {
    cost: Cost,
    /// Seconds of one round: a CPU call and one device call per residency.
    round_s: f64,
}

impl Sweep<'_> {
    /// Runs the sweep. Errors only for interruption; what a device does wrong is part of the result.
    pub(super) fn run(&self) -> Result<Swept> {
        let clock = self.cpu.device().clock();
        let begin = clock.now();
        let left = || self.budget_s - (clock.now() - begin);
        let mut out = Swept::default();
        let mut series: Vec<Vec<Measured>> = self.residencies.iter().map(|_| Vec::new()).collect();
        let all: Vec<usize> = (0..series.len()).collect();
        let mut known = None;
        for param in self.grid() {
            if let Err(why) = self.fits(param, &mut out, &mut series, &mut known, &all, left()) {
                out.cut = Some(why);
                break;
            }
            if out.wrong.is_some() || out.error.is_some() {
                break;
            }
        }
        if out.wrong.is_none() && out.error.is_none() {
            for which in all {
                self.refine(which, &mut out, &mut series, &mut known, &left)?;
            }
        }
        if self.cancel.raised() {
            return Err(Error::new(Code::Cancelled, "interrupted"));
        }
        out.points = series.into_iter().map(|s| s.into_iter().map(|m| m.point).collect()).collect();
        Ok(out)
    }

    fn grid(&self) -> Vec<u64> {
        let (low, high) = self.range;
        let mut sizes: Vec<u64> =
            std::iter::successors(Some(low.max(1)), |s| s.checked_mul(2)).take_while(|s| *s < high).collect();
        sizes.push(high.max(1));
        sizes
    }

    /// Measures one size of the sweep, or says why it and all larger ones are left out.
    fn fits(
        &self,
        param: u64,
        out: &mut Swept,
        series: &mut [Vec<Measured>],
        known: &mut Option<Known>,
        which: &[usize],
        left_s: f64,
    ) -> Result<(), String> {
        let size = || format!("sizes from {param} on are left out");
        if left_s <= 0.0 {
            return Err(format!("{}: the budget of {} is spent", size(), units::seconds(self.budget_s)));
        }
        let c = self.case(param).map_err(|e| format!("{}: {e}", size()))?;
        if let Some(k) = known {
            let predicted = stop::predict(k.round_s, &k.cost, &(self.op.cost)(&c));
            // Two rounds to check and warm up, and the fewest pairs.
            if predicted * (LEAST + 2) as f64 > left_s * POINT {
                let (p, l) = (units::seconds(predicted), units::seconds(left_s));
                return Err(format!("{}: predicted {p} a pair, {l} left", size()));
            }
        }
        match self.measure(&c, which, FIRST, left_s * POINT, out) {
            Ok(None) => Err(format!("{}: {} left hold too few pairs", size(), units::seconds(left_s))),
            Ok(Some((points, round_s))) => {
                *known = Some(Known { cost: (self.op.cost)(&c), round_s });
                for (i, point) in which.iter().zip(points) {
                    insert(&mut series[*i], Measured { param, point });
                }
                Ok(())
            }
            // Too large for a device or the host: the sizes below stand.
            Err(e)
                if matches!(e.class(), crate::base::Class::Oom | crate::base::Class::Unsupported)
                    && known.is_some() =>
            {
                Err(format!("{}: {e}", size()))
            }
            Err(e) => {
                out.error = Some(e);
                Ok(())
            }
        }
    }

    /// Halves gaps around the crossing of one residency, then measures contradicting sizes again.
    fn refine(
        &self,
        which: usize,
        out: &mut Swept,
        series: &mut [Vec<Measured>],
        known: &mut Option<Known>,
        left: &dyn Fn() -> f64,
    ) -> Result<()> {
        for step in 0..REFINEMENTS {
            if self.cancel.raised() || left() <= 0.0 || out.error.is_some() || out.wrong.is_some() {
                return Ok(());
            }
            let points: Vec<CalibratePoint> = series[which].iter().map(|m| m.point.clone()).collect();
            // Doubts first: a size that contradicts both neighbours hides the crossing.
            if step == 0 {
                for odd in decide::odd_ones(&points) {
                    let c = self.case(series[which][odd].param)?;
                    match self.measure(&c, &[which], SECOND, left() / 4.0, out) {
                        Ok(Some((mut again, _))) => series[which][odd].point = again.remove(0),
                        Ok(None) => {}
                        Err(e) => out.error = Some(e),
                    }
                }
                continue;
            }
            let Some(gap) = decide::refine(&points) else { return Ok(()) };
            let (a, b) = (series[which][gap].param, series[which][gap + 1].param);
            let middle = (u128::from(a) * u128::from(b)).isqrt() as u64;
            if middle <= a || middle >= b {
                return Ok(());
            }
            let before = series[which].len();
            if self.fits(middle, out, series, known, &[which], left()).is_err() || series[which].len() == before {
                return Ok(());
            }
        }
        Ok(())
    }

    fn case(&self, param: u64) -> Result<Case> {
        self.op.case(self.dtype, &(self.family.sweep)(param), Attrs::new(), Fill::Uniform)
    }

    /// One point per residency, from interleaved calls, and the seconds of a round of single calls; `None` if the budget
    /// holds too few pairs.
    fn measure(
        &self,
        c: &Case,
        which: &[usize],
        pairs: usize,
        budget_s: f64,
        out: &mut Swept,
    ) -> Result<Option<(Vec<CalibratePoint>, f64)>> {
        let inputs = case::inputs(self.op, c)?;
        let deadline = Duration::from_secs_f64((budget_s * 4.0).clamp(10.0, 600.0));
        let on_cpu = self.cpu.prepare(self.op, c, self.cpu_variant)?;
        let on_device = self.device.prepare(self.op, c, None)?;
        out.kernel = on_device.variant.to_string();
        // The CPU computes where the operands are in either residency.
        let mut cpu = OpSubject::new(self.cpu, &on_cpu, &inputs, Residency::Resident, deadline)?;
        let mut devices = which
            .iter()
            .map(|i| OpSubject::new(self.device, &on_device, &inputs, self.residencies[*i], deadline))
            .collect::<Result<Vec<_>>>()?;
        let clock = self.cpu.device().clock();
        let end = clock.now() + budget_s;
        let mut rule = StopRule { min_samples: pairs, max_samples: pairs, spread: 0.0, soft_s: budget_s, budget_s };
        let mut samples = self.sample(&mut cpu, &mut devices, &rule)?;
        let seed = c.seed() ^ self.seed;
        let doubtful = |s: &[Vec<f64>]| (1..s.len()).any(|i| decide::doubtful(stats::ratio_ci(&s[0], &s[i], seed)));
        if pairs == FIRST && samples[0].len() == FIRST && doubtful(&samples) {
            // What is left, and never so little that nothing is sampled.
            let left = (end - clock.now()).max(budget_s / 10.0);
            rule = StopRule { min_samples: SECOND, max_samples: SECOND, soft_s: left, budget_s: left, ..rule };
            for (all, more) in samples.iter_mut().zip(self.sample(&mut cpu, &mut devices, &rule)?) {
                all.extend(more);
            }
        }
        if samples[0].len() < LEAST {
            return Ok(None);
        }
        let want = cpu.outputs()?;
        for d in &mut devices {
            out.wrong = out.wrong.take().or(gross_error(c, &d.outputs()?, &want));
        }
        let work = (self.op.work)(c);
        let cpu_s = stats::median(&samples[0]);
        let points = samples[1..]
            .iter()
            .map(|device| CalibratePoint {
                size: size_of(self.op.unit, work),
                cpu_s,
                gpu_s: stats::median(device),
                ratio_ci: stats::ratio_ci(&samples[0], device, seed),
                pairs: samples[0].len() as u64,
            })
            .collect();
        Ok(Some((points, samples.iter().map(|s| stats::median(s)).sum())))
    }

    /// Samples of the CPU, then of each device subject; all of equal length.
    fn sample(&self, cpu: &mut OpSubject<'_>, devices: &mut [OpSubject<'_>], rule: &StopRule) -> Result<Vec<Vec<f64>>> {
        let mut subjects: Vec<&mut dyn Subject> = vec![cpu];
        subjects.extend(devices.iter_mut().map(|d| d as &mut dyn Subject));
        let series = sample(&mut subjects, rule, self.cancel)?;
        if self.cancel.raised() {
            return Err(Error::new(Code::Cancelled, "interrupted"));
        }
        Ok(series.into_iter().map(|s| s.samples).collect())
    }
}

/// The size in the op's unit of an amount of work: the work itself, or its cube root rounded down for `Dim`.
pub(super) fn size_of(unit: Unit, work: u128) -> u64 {
    if unit != Unit::Dim {
        return u64::try_from(work).unwrap_or(u64::MAX);
    }
    let mut root = (work as f64).cbrt() as u128;
    while root.pow(3) > work {
        root -= 1;
    }
    while (root + 1).pow(3) <= work {
        root += 1;
    }
    root as u64
}

/// Inserts by size; a size that is there already is replaced.
fn insert(series: &mut Vec<Measured>, m: Measured) {
    match series.binary_search_by_key(&m.point.size, |x| x.point.size) {
        Ok(at) => series[at] = m,
        Err(at) => series.insert(at, m),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_of_work() {
        for n in [1u64, 2, 16, 999, 2048, 1 << 20] {
            assert_eq!(size_of(Unit::Dim, u128::from(n).pow(3)), n);
            assert_eq!(size_of(Unit::Dim, u128::from(n).pow(3) + 1), n);
            assert_eq!(size_of(Unit::Dim, u128::from(n + 1).pow(3) - 1), n);
        }
        assert_eq!(size_of(Unit::Dim, 0), 0);
        assert_eq!(size_of(Unit::Elements, 77), 77);
        assert_eq!(size_of(Unit::Elements, u128::MAX), u64::MAX);
    }
}
