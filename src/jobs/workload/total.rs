//! Adds up a workload's times. Pure.
//!
//! A process gives one sum per way of placing; the interval is that of another process (`measure::processes`). What was
//! predicted instead of measured counts with a factor of two either way.

use crate::base::record::{WorkloadCall, WorkloadRecord};
use crate::base::{stats, units};
use crate::jobs::look::Timed;
use crate::measure::processes;
use crate::profile::{ProfileDevice, model};

/// How far a prediction may be off, as a factor.
const OFF: f64 = 2.0;
/// Least gain that is worth a GPU.
const GAIN: f64 = 1.01;

/// Where a row's times come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Basis {
    /// The recorded shape was timed in all processes.
    Measured,
    /// The calibrated curves.
    Predicted,
    /// Nothing is known.
    Unknown,
}

impl Basis {
    pub(super) fn name(self) -> &'static str {
        match self {
            Basis::Measured => "measured",
            Basis::Predicted => "predicted",
            Basis::Unknown => "unknown",
        }
    }
}

/// Seconds of one call of a row, by process and sample; one number where they are predicted.
#[derive(Clone, Debug)]
pub(super) struct Times {
    pub(super) basis: Basis,
    cpu: Vec<Vec<f64>>,
    devices: Vec<Vec<Vec<f64>>>,
}

impl Times {
    /// From what was timed, if that was done in all processes; else from predictions, if there is one for every device.
    pub(super) fn of(timed: &[Timed], predicted: &[Option<model::Times>], processes: usize) -> Times {
        if timed.len() == processes && processes > 0 {
            let device = |d: usize| timed.iter().map(|t| t.devices.get(d).cloned().unwrap_or_default()).collect();
            let devices = timed.first().map_or(0, |t| t.devices.len());
            return Times {
                basis: Basis::Measured,
                cpu: timed.iter().map(|t| t.cpu.clone()).collect(),
                devices: (0..devices).map(device).collect(),
            };
        }
        let same = |s: f64| vec![vec![s]; processes];
        let all: Option<Vec<model::Times>> = predicted.iter().copied().collect();
        match all.filter(|a| !a.is_empty()) {
            Some(all) => Times {
                basis: Basis::Predicted,
                cpu: same(all[0].cpu_s),
                devices: all.iter().map(|t| same(t.device_s)).collect(),
            },
            None => Times { basis: Basis::Unknown, cpu: Vec::new(), devices: Vec::new() },
        }
    }

    /// Without the devices that do not take the call.
    pub(super) fn only(mut self, takes: &[bool]) -> Times {
        self.devices.iter_mut().zip(takes).filter(|(_, takes)| !**takes).for_each(|(series, _)| series.clear());
        self
    }

    fn mean(series: &[Vec<f64>]) -> Option<f64> {
        let n = series.len() as f64;
        (n > 0.0).then(|| (series.iter().map(|s| stats::median(s).ln()).sum::<f64>() / n).exp())
    }

    /// Seconds on the CPU: geometric mean of the processes' medians.
    pub(super) fn cpu_s(&self) -> Option<f64> {
        Self::mean(&self.cpu)
    }

    /// The same on the fastest device.
    pub(super) fn best_device_s(&self) -> Option<f64> {
        self.devices.iter().filter_map(|d| Self::mean(d)).min_by(f64::total_cmp)
    }

    /// Where the geometric mean of the processes' medians is least.
    fn fastest(&self) -> Side {
        let devices = self.devices.iter().enumerate().filter_map(|(d, s)| Some((Side::Device(d), Self::mean(s)?)));
        let cpu = self.cpu_s().map(|s| (Side::Cpu, s));
        cpu.into_iter().chain(devices).min_by(|a, b| a.1.total_cmp(&b.1)).map_or(Side::Cpu, |(side, _)| side)
    }

    fn side(&self, side: Side) -> Option<&Vec<Vec<f64>>> {
        match side {
            Side::Cpu => Some(&self.cpu),
            Side::Device(d) => self.devices.get(d).filter(|series| !series.is_empty()),
        }
    }
}

/// Where a row goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Side {
    Cpu,
    Device(usize),
}

/// Sums over the rows so far of one way of placing.
#[derive(Clone, Debug)]
struct Sum {
    /// By process and number of the sample: sums of independent samples are samples of the sum.
    measured: Vec<Vec<f64>>,
    predicted: f64,
}

/// Samples that are added up; rows with fewer repeat theirs.
const SAMPLES: usize = 9;

impl Sum {
    fn new(processes: usize) -> Self {
        Sum { measured: vec![vec![0.0; SAMPLES]; processes], predicted: 0.0 }
    }

    fn add(&mut self, count: f64, basis: Basis, series: &[Vec<f64>]) {
        if basis == Basis::Predicted {
            self.predicted += count * series.first().and_then(|s| s.first()).copied().unwrap_or(0.0);
            return;
        }
        for (sum, samples) in self.measured.iter_mut().zip(series).filter(|(_, s)| !s.is_empty()) {
            for (i, s) in sum.iter_mut().enumerate() {
                *s += count * samples[i % samples.len()];
            }
        }
    }

    fn views(&self) -> Vec<&[f64]> {
        self.measured.iter().map(Vec::as_slice).collect()
    }

    /// Seconds with their interval. `None` if nothing was measured.
    fn total(&self) -> Option<(f64, [f64; 2])> {
        let e = processes::median(&self.views());
        match (e, self.predicted) {
            (Some(e), p) => Some((e.value + p, [e.ci[0] + p / OFF, e.ci[1] + p * OFF])),
            (None, p) if p > 0.0 => Some((p, [p / OFF, p * OFF])),
            (None, _) => None,
        }
    }
}

/// All ways of placing.
#[derive(Clone, Debug)]
pub(super) struct Sums {
    now: Sum,
    cpu: Sum,
    routed: Sum,
    best: Sum,
    gpu: Vec<Sum>,
    processes: usize,
    /// Rows by basis.
    rows: [u64; 3],
    calls: u64,
    /// Calls that go to a device, and calls that no device takes.
    on_device: u64,
    refused: u64,
}

impl Sums {
    pub(super) fn new(devices: usize, processes: usize) -> Self {
        let sum = || Sum::new(processes);
        Sums {
            now: sum(),
            cpu: sum(),
            routed: sum(),
            best: sum(),
            gpu: (0..devices).map(|_| sum()).collect(),
            processes,
            rows: [0; 3],
            calls: 0,
            on_device: 0,
            refused: 0,
        }
    }

    /// Adds a row: `gpu` of its `count` calls ran on a GPU when it was recorded; on a device that does not take it, it stays on the
    /// CPU.
    pub(super) fn add(&mut self, count: u64, gpu: u64, times: &Times, goes: Side, takes: &[bool]) {
        self.calls += count;
        self.rows[times.basis as usize] += 1;
        if times.basis == Basis::Unknown {
            return;
        }
        let (n, on_gpu) = (count as f64, gpu as f64);
        self.cpu.add(n, times.basis, &times.cpu);
        let first = takes.iter().position(|takes| *takes);
        self.refused += if first.is_none() && !takes.is_empty() { count } else { 0 };
        for (d, sum) in self.gpu.iter_mut().enumerate() {
            sum.add(n, times.basis, times.side(Side::Device(d)).unwrap_or(&times.cpu));
        }
        // Which GPU it was is not recorded: the first that takes it.
        self.now.add(n - on_gpu, times.basis, &times.cpu);
        self.now.add(on_gpu, times.basis, first.and_then(|d| times.side(Side::Device(d))).unwrap_or(&times.cpu));
        self.routed.add(n, times.basis, times.side(goes).unwrap_or(&times.cpu));
        self.best.add(n, times.basis, times.side(times.fastest()).unwrap_or(&times.cpu));
        if goes != Side::Cpu {
            self.on_device += count;
        }
    }

    /// now over routed with its interval, from pairs of the same process.
    fn gain(&self) -> Option<(f64, [f64; 2])> {
        let pairs: Vec<(&[f64], &[f64])> = self.now.views().into_iter().zip(self.routed.views()).collect();
        let (now, routed) = (self.now.total()?, self.routed.total()?);
        let value = now.0 / routed.0;
        let Some(e) = processes::ratio(&pairs) else {
            return Some((value, [now.1[0] / routed.1[1], now.1[1] / routed.1[0]]));
        };
        let measured = |s: &Sum| s.total().map_or(0.0, |t| t.0 - s.predicted);
        let (n, r) = (measured(&self.now), measured(&self.routed));
        let (np, rp) = (self.now.predicted, self.routed.predicted);
        // The measured parts move together, the predicted ones against each other.
        let low = (n * e.ci[0] / e.value + np / OFF) / (r + rp * OFF);
        let high = (n * e.ci[1] / e.value + np * OFF) / (r + rp / OFF);
        Some((value, [low, high]))
    }

    /// Yes, no or unclear, and why.
    fn worth(&self, gain: Option<(f64, [f64; 2])>) -> (&'static str, String) {
        let unknown = self.rows[Basis::Unknown as usize];
        let Some((_, [low, high])) = gain else {
            return ("unclear", "nothing could be measured".into());
        };
        if self.gpu.is_empty() {
            return ("no", "no GPU takes part".into());
        }
        if unknown > 0 {
            return ("unclear", format!("nothing is known of {unknown} of the recorded shapes"));
        }
        match () {
            () if self.on_device == 0 => ("no", "every call is faster, or not surely slower, on the CPU".into()),
            () if low >= GAIN => ("yes", format!("it takes 1/{low:.2} to 1/{high:.2} of the time")),
            () if high < GAIN => ("no", format!("it would gain less than {:.0} %", (GAIN - 1.0) * 100.0)),
            () => ("unclear", format!("the gain lies between {low:.3} and {high:.3}")),
        }
    }

    pub(super) fn record(&self, calls: Vec<WorkloadCall>, devices: &[ProfileDevice], threads: u32) -> WorkloadRecord {
        let of = |s: &Sum| s.total();
        let totals: Vec<_> = self.gpu.iter().map(of).collect();
        let best = (0..totals.len()).filter_map(|d| Some((d, totals[d]?))).min_by(|a, b| a.1.0.total_cmp(&b.1.0));
        let gain = self.gain();
        let (worth, reason) = self.worth(gain);
        let (now, cpu, routed) = (of(&self.now), of(&self.cpu), of(&self.routed));
        let [measured, predicted, unknown] = self.rows;
        WorkloadRecord {
            calls: self.calls,
            measured,
            predicted,
            unknown,
            refused: self.refused,
            on_device: self.on_device,
            processes: self.processes as u64,
            threads,
            now_s: now.map(|t| t.0),
            now_ci_s: now.map(|t| t.1),
            cpu_s: cpu.map(|t| t.0),
            cpu_ci_s: cpu.map(|t| t.1),
            routed_s: routed.map(|t| t.0),
            routed_ci_s: routed.map(|t| t.1),
            gpu_s: best.map(|(_, t)| t.0),
            gpu_ci_s: best.map(|(_, t)| t.1),
            gpu: best.and_then(|(d, _)| devices.get(d)).map_or_else(String::new, |d| d.id.clone()),
            best_s: of(&self.best).map(|t| t.0),
            gain: gain.map(|g| g.0),
            gain_ci: gain.map(|g| g.1),
            worth: worth.into(),
            reason,
            rows: calls,
        }
    }
}

/// The answer as lines for people.
pub(super) fn lines(r: &WorkloadRecord) -> Vec<String> {
    let time = |s: Option<f64>, ci: Option<[f64; 2]>| match (s, ci) {
        (Some(s), Some([low, high])) => {
            format!("{} ({} to {})", units::seconds(s), units::seconds(low), units::seconds(high))
        }
        _ => "unknown".into(),
    };
    let gpu = if r.gpu.is_empty() { "all on a GPU".to_string() } else { format!("all on {}", r.gpu) };
    let left = match r.refused {
        0 => String::new(),
        n => format!(", {n} calls that no GPU takes on the CPU"),
    };
    let beyond = |s: Option<f64>| r.regret(s).map_or_else(|| "unknown".into(), |x| format!("+{:.1} %", 100.0 * x));
    vec![
        format!("time now: {}", time(r.now_s, r.now_ci_s)),
        format!("routed: {}, {} of {} calls on a GPU", time(r.routed_s, r.routed_ci_s), r.on_device, r.calls),
        format!("{gpu}: {}{left}", time(r.gpu_s, r.gpu_ci_s)),
        format!(
            "{} shapes measured, {} predicted (each taken to be within a factor of {OFF}), {} unknown",
            r.measured, r.predicted, r.unknown
        ),
        format!(
            "beyond the best placement of these shapes ({}): now {}, routed {}, all on the CPU {}, {gpu} {}",
            r.best_s.map_or_else(|| "unknown".into(), units::seconds),
            beyond(r.now_s),
            beyond(r.routed_s),
            beyond(r.cpu_s),
            beyond(r.gpu_s)
        ),
        format!("worth it: {} ({})", r.worth, r.reason),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn timed(cpu: f64, device: f64) -> Vec<Timed> {
        // Three processes, each as a whole 1 % slower than the one before.
        let of = |i: i32| {
            let slow = 1.01f64.powi(i);
            Timed {
                cpu: vec![cpu * slow; 9],
                devices: vec![vec![device * slow; 9]],
                calls: 18,
                kernel: String::new(),
                wrong: None,
                made_s: 0.0,
                once_s: 0.0,
                disturbed: false,
                readings: Vec::new(),
            }
        };
        (0..3).map(of).collect()
    }

    fn device() -> ProfileDevice {
        ProfileDevice { id: "cuda:0".into(), ..ProfileDevice::default() }
    }

    #[test]
    fn sums_and_answers() {
        let mut sums = Sums::new(1, 3);
        let t = Times::of(&timed(2.0, 1.0), &[], 3);
        assert_eq!(t.basis, Basis::Measured);
        sums.add(10, 4, &t, Side::Device(0), &[true]);
        sums.add(5, 0, &Times::of(&timed(1.0, 3.0), &[], 3), Side::Cpu, &[true]);
        let r = sums.record(Vec::new(), &[device()], 1);
        let near =
            |got: Option<f64>, want: f64| assert!((got.unwrap() / want / 1.01 - 1.0).abs() < 1e-9, "{got:?} {want}");
        near(r.now_s, 6.0 * 2.0 + 4.0 * 1.0 + 5.0);
        near(r.cpu_s, 25.0);
        near(r.routed_s, 15.0);
        near(r.gpu_s, 25.0);
        near(r.best_s, 15.0);
        assert!(r.regret(r.routed_s).unwrap().abs() < 1e-12 && (r.regret(r.cpu_s).unwrap() - 2.0 / 3.0).abs() < 1e-9);
        let [low, high] = r.now_ci_s.unwrap();
        assert!(low < 21.0 && 21.42 < high && high / low < 1.1, "{low} {high}");
        // What slows a whole process drops out of the gain.
        let [low, high] = r.gain_ci.unwrap();
        assert!((low - 1.4).abs() < 1e-9 && (high - 1.4).abs() < 1e-9, "{low} {high}");
        assert_eq!((r.worth.as_str(), r.on_device, r.gpu.as_str()), ("yes", 10, "cuda:0"));
    }

    #[test]
    fn predictions_widen_and_what_is_unknown_leaves_it_open() {
        let predicted = [Some(model::Times { cpu_s: 3.0, device_s: 1.0 })];
        let p = Times::of(&timed(9.0, 9.0)[..2], &predicted, 3);
        assert_eq!(p.basis, Basis::Predicted, "one process is missing");
        assert!((p.cpu_s().unwrap() - 3.0).abs() < 1e-9 && (p.best_device_s().unwrap() - 1.0).abs() < 1e-9);
        let mut sums = Sums::new(1, 3);
        sums.add(10, 0, &p, Side::Device(0), &[true]);
        let r = sums.record(Vec::new(), &[device()], 1);
        assert_eq!((r.now_s, r.now_ci_s, r.routed_ci_s), (Some(30.0), Some([15.0, 60.0]), Some([5.0, 20.0])));
        assert_eq!(r.worth, "unclear", "three times as fast, but each within a factor of two: {}", r.reason);
        // A little of it beside much that was measured does not hide the answer.
        let mut sums = Sums::new(1, 3);
        sums.add(100, 0, &Times::of(&timed(3.0, 1.0), &[], 3), Side::Device(0), &[true]);
        sums.add(1, 0, &p, Side::Device(0), &[true]);
        assert_eq!(sums.record(Vec::new(), &[device()], 1).worth, "yes");
        let unknown = Times::of(&[], &[None], 3);
        assert_eq!(unknown.basis, Basis::Unknown);
        sums.add(1, 0, &unknown, Side::Cpu, &[true]);
        let r = sums.record(Vec::new(), &[device()], 1);
        assert_eq!((r.worth.as_str(), r.unknown, r.predicted, r.measured), ("unclear", 1, 1, 1));
    }

    #[test]
    fn what_no_device_takes_stays_on_the_cpu() {
        let mut sums = Sums::new(1, 3);
        sums.add(10, 0, &Times::of(&timed(2.0, 1.0), &[], 3).only(&[false]), Side::Cpu, &[false]);
        let r = sums.record(Vec::new(), &[device()], 1);
        assert_eq!((r.worth.as_str(), r.refused, r.on_device), ("no", 10, 0));
        assert_eq!((r.gpu_s, r.best_s), (r.cpu_s, r.cpu_s), "a device that is faster but cannot take it is no choice");
        let none = Sums::new(0, 3).record(Vec::new(), &[], 1);
        assert_eq!((none.worth.as_str(), none.now_s), ("unclear", None));
        // Nothing predicted, nothing measured: no sum is made of nothing.
        assert_eq!(Sums::new(1, 3).record(Vec::new(), &[device()], 1).gain, None);
    }

    /// The second one, a card in its own right.
    #[test]
    fn what_one_device_does_not_take_another_may() {
        let mut both = timed(2.0, 9.0);
        both.iter_mut().for_each(|t| t.devices = vec![Vec::new(), vec![1.0; 9]]);
        let times = Times::of(&both, &[], 3).only(&[false, true]);
        assert_eq!((times.best_device_s(), times.fastest()), (Some(1.0), Side::Device(1)));
        let mut sums = Sums::new(2, 3);
        sums.add(10, 10, &times, Side::Device(1), &[false, true]);
        let second = ProfileDevice { id: "opencl:1".into(), ..ProfileDevice::default() };
        let r = sums.record(Vec::new(), &[device(), second], 1);
        let near = |got: Option<f64>, want: f64| assert!((got.unwrap() / want - 1.0).abs() < 1e-9, "{got:?} {want}");
        assert_eq!((r.refused, r.on_device, r.gpu.as_str()), (0, 10, "opencl:1"));
        near(r.routed_s, 10.0);
        near(r.gpu_s, 10.0);
        near(r.now_s, 10.0);
    }
}
