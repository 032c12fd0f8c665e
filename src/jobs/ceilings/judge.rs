//! Rows held against ceilings: shares, what bounds a row, what would help. Pure functions of numbers.

use crate::base::record::{Analysis, BenchRecord, CeilingRecord, Phases, Record, Status};
use crate::base::{DType, DeviceInfo, units};
use crate::op::{OpDesc, Unit};

use super::{BEYOND, beyond_cache};

/// Below this share of the ceilings a CPU kernel is called a weak baseline.
const WEAK: f64 = 0.25;
/// From this share on something is what bounds a row.
const BOUND: f64 = 0.4;
/// From this share on little is left to gain.
const GOOD: f64 = 0.8;

/// What devices were measured to reach.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Ceilings(Vec<(String, OfDevice)>);

/// What one device was measured to reach; 10^9 operations or bytes per second, seconds.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct OfDevice {
    /// Fused multiply-adds in f32, two operations each.
    pub f32: Option<f64>,
    /// The same in f64.
    pub f64: Option<f64>,
    /// Memory by the bytes of all operands, in ascending order.
    pub memory: Vec<(u64, f64)>,
    /// One launch of many.
    pub queued_s: Option<f64>,
}

impl Ceilings {
    /// From records; only what is `ok` counts.
    pub fn of(records: &[Record]) -> Self {
        let mut all = Ceilings::default();
        for record in records {
            if let Record::Ceiling(c) = record {
                all.add(c);
            }
        }
        all
    }

    /// Those of both.
    pub fn join(&mut self, other: Ceilings) {
        self.0.extend(other.0);
    }

    /// Of the device with that uid.
    pub fn device(&self, uid: &str) -> Option<&OfDevice> {
        self.0.iter().find(|(u, _)| u == uid).map(|(_, d)| d)
    }

    fn add(&mut self, c: &CeilingRecord) {
        let (Some(value), Status::Ok) = (c.value, c.status) else { return };
        if !(value.is_finite() && value > 0.0) {
            return;
        }
        let at = self.0.iter().position(|(u, _)| *u == c.uid).unwrap_or_else(|| {
            self.0.push((c.uid.clone(), OfDevice::default()));
            self.0.len() - 1
        });
        let device = &mut self.0[at].1;
        match (c.what.as_str(), c.dtype) {
            ("fma", Some(DType::F32)) => device.f32 = Some(value),
            ("fma", Some(DType::F64)) => device.f64 = Some(value),
            ("copy" | "read" | "write" | "d2d", _) => {
                device.memory.push((c.bytes, value));
                device.memory.sort_by_key(|(bytes, _)| *bytes);
            }
            ("launch-queued", _) => device.queued_s = Some(value),
            _ => {}
        }
    }
}

impl OfDevice {
    /// The arithmetic of a dtype; only f32 and f64 have a ceiling.
    fn arithmetic(&self, dtype: DType) -> Option<f64> {
        match dtype {
            DType::F32 => self.f32,
            DType::F64 => self.f64,
            _ => None,
        }
    }

    /// The fastest that operands of so many bytes can be moved: fewer bytes fit into nearer caches, so everything
    /// measured at as many or more counts, and the largest number below. Nothing is said of less than was measured.
    pub fn bandwidth(&self, bytes: u64) -> Option<f64> {
        let from = self.memory.iter().rev().find(|(b, _)| *b <= bytes)?.0;
        self.memory.iter().filter(|(b, _)| *b >= from).map(|(_, v)| *v).reduce(f64::max)
    }
}

/// What a row says about itself.
#[derive(Clone, Debug)]
pub struct Facts<'a> {
    /// Operations and bytes of a call.
    pub flops: f64,
    /// Compulsory traffic of a call.
    pub bytes: f64,
    /// Dtype of the arithmetic.
    pub dtype: DType,
    /// Seconds of a call.
    pub median_s: f64,
    /// The slow end of their interval.
    pub slow_s: f64,
    /// True if no operand crosses the link.
    pub resident: bool,
    /// Calls that share the copies, where some do.
    pub calls: u64,
    /// The phases of a call with operands in host memory.
    pub phases: &'a Phases,
    /// True if there are fewer groups than units.
    pub under_filled: bool,
    /// Time of the CPU over the time here, if both are known.
    pub speedup: Option<f64>,
}

/// What became of it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Judgement {
    /// Shares, bottleneck and advice.
    pub analysis: Analysis,
    /// Share of the theoretical peak.
    pub peak_fraction: Option<f64>,
    /// Why the row cannot be believed.
    pub suspect: Option<String>,
}

/// The nearer of two ceilings for a rate each: its share and name.
fn nearest(arithmetic: Option<f64>, memory: Option<f64>, dtype: DType) -> Option<(f64, String)> {
    let a = arithmetic.map(|v| (v, format!("{dtype} FMA")));
    let m = memory.map(|v| (v, "memory".to_string()));
    match (a, m) {
        (Some(a), Some(m)) => Some(if a.0 >= m.0 { a } else { m }),
        (a, m) => a.or(m),
    }
}

/// Seconds of the phases of one call: its share of the copies, overhead (submitting and waiting while no kernel runs),
/// kernel.
fn parts(p: &Phases, calls: u64) -> Option<[f64; 3]> {
    let kernel = p.kernel?;
    let overhead = p.sync? + (p.launch? - kernel).max(0.0);
    Some([(p.h2d? + p.d2h?) / calls.max(1) as f64, overhead, kernel])
}

/// Judges one row. `info` and `ceilings` are those of its device.
pub fn judge(f: &Facts<'_>, info: &DeviceInfo, ceilings: Option<&OfDevice>) -> Judgement {
    let share = |amount: f64, seconds: f64, ceiling: Option<f64>| {
        ceiling.filter(|_| amount > 0.0 && seconds > 0.0).map(|c| amount * 1e-9 / seconds / c)
    };
    let arithmetic = ceilings.and_then(|c| c.arithmetic(f.dtype));
    let bandwidth = ceilings.and_then(|c| c.bandwidth(f.bytes as u64));
    let shares = |s: f64| (share(f.flops, s, arithmetic), share(f.bytes, s, bandwidth));
    let mut out = Judgement::default();
    let of_call = shares(f.median_s);
    if let Some((fraction, name)) = nearest(of_call.0, of_call.1, f.dtype) {
        out.analysis.ceiling_fraction = Some(fraction);
        out.analysis.ceiling = name;
    }
    let known = info.theoretical.as_ref();
    let peak = known.and_then(|t| match f.dtype {
        DType::F32 => t.f32_gflops,
        DType::F64 => t.f64_gflops,
        _ => None,
    });
    let memory_peak = known.and_then(|t| t.memory_gbps).filter(|_| beyond_cache(info, f.bytes as u64));
    let theoretical = |s: f64| nearest(share(f.flops, s, peak), share(f.bytes, s, memory_peak), f.dtype);
    out.peak_fraction = theoretical(f.median_s).map(|(v, _)| v);
    // Even the slow end of its interval is faster than what is possible.
    let slow = shares(f.slow_s);
    let too_fast =
        [(nearest(slow.0, slow.1, f.dtype), "measured ceiling"), (theoretical(f.slow_s), "theoretical peak")];
    out.suspect = too_fast.into_iter().find_map(|(found, of)| {
        let (fraction, name) = found.filter(|(v, _)| *v > BEYOND)?;
        let percent = 100.0 * fraction;
        Some(format!("{percent:.0} % of the {of} ({name}): the work was skipped, or the ceiling is wrong"))
    });
    fractions(f, ceilings, &mut out.analysis);
    let kernel_s = if f.resident { f.median_s } else { f.phases.kernel.unwrap_or(f.median_s) };
    let (compute, memory) = shares(kernel_s);
    decide(f, compute, memory, ceilings.is_some(), &mut out.analysis);
    out
}

/// The shares of copies and of overhead in a call.
fn fractions(f: &Facts<'_>, ceilings: Option<&OfDevice>, analysis: &mut Analysis) {
    let queued = ceilings.and_then(|c| c.queued_s).map(|s| (s / f.median_s).min(1.0));
    let Some([copies, overhead, kernel]) = parts(f.phases, f.calls) else {
        analysis.transfer_fraction = f.resident.then_some(0.0);
        analysis.launch_fraction = queued.filter(|_| f.resident);
        return;
    };
    if f.resident {
        // Calls follow each other: what a call takes beyond its kernel, and no less than an empty launch takes.
        let idle = (1.0 - kernel / f.median_s).max(0.0);
        analysis.transfer_fraction = Some(0.0);
        analysis.launch_fraction = Some(queued.map_or(idle, |q| q.max(idle)));
        return;
    }
    let total = copies + overhead + kernel;
    if total > 0.0 {
        analysis.transfer_fraction = Some(copies / total);
        analysis.launch_fraction = Some(overhead / total);
    }
}

/// What bounds a row whose kernel reaches these shares of the ceilings, and what would help.
fn decide(f: &Facts<'_>, compute: Option<f64>, memory: Option<f64>, measured: bool, a: &mut Analysis) {
    let percent = |v: f64| format!("{:.0} %", 100.0 * v);
    let (transfer, launch) = (a.transfer_fraction.unwrap_or(0.0), a.launch_fraction.unwrap_or(0.0));
    let slower = f.speedup.is_some_and(|s| s < 1.0);
    let (c, m) = (compute.unwrap_or(0.0), memory.unwrap_or(0.0));
    let best = c.max(m);
    let (bottleneck, action, advice) = if transfer >= 0.5 {
        let action = if slower { "UseCpu" } else { "BatchOperations" };
        let what = if slower { "use the CPU, or keep operands on the device" } else { "keep operands on the device" };
        ("Transfer", action, format!("copies take {} of a call: {what}", percent(transfer)))
    } else if launch >= 0.5 {
        let action = if slower { "UseCpu" } else { "BatchOperations" };
        let what = if slower { "use the CPU for calls this small" } else { "do more per call" };
        ("LaunchOverhead", action, format!("launching takes {} of a call: {what}", percent(launch)))
    } else if f.under_filled && best < BOUND {
        ("Occupancy", "IncreaseOccupancy", "fewer groups than units: a larger shape, or smaller groups".into())
    } else if c >= m && c >= BOUND {
        let rest = if c >= GOOD {
            ("None", "little is left to gain")
        } else {
            ("OptimizeTiling", "larger tiles in registers")
        };
        ("Compute", rest.0, format!("{} of the FMA peak: {}", percent(c), rest.1))
    } else if m >= BOUND {
        let rest =
            if m >= GOOD { ("None", "only fewer bytes would help") } else { ("Vectorize", "wider loads and stores") };
        ("MemoryBandwidth", rest.0, format!("{} of the memory's bandwidth: {}", percent(m), rest.1))
    } else if measured && (compute.is_some() || memory.is_some()) {
        let text = format!(
            "at {} of the nearest ceiling neither memory nor FMA bounds it: latency, or other arithmetic",
            percent(best)
        );
        ("Unknown", "AutoTune", text)
    } else {
        ("Unknown", "None", "no ceiling is known for it; `gpuctl devices --measure` measures them".into())
    };
    a.bottleneck = bottleneck.into();
    a.action = action.into();
    a.advice = advice;
}

/// Why a CPU row is a weak baseline: how far it stays below what the same processor was measured to do. Not said of calls
/// that are mostly overhead.
pub fn weak(f: &Facts<'_>, ceilings: Option<&OfDevice>) -> Option<String> {
    let c = ceilings?;
    let by = |amount: f64, rate: Option<f64>| rate.map_or(0.0, |r| amount * 1e-9 / r);
    let possible = by(f.flops, c.arithmetic(f.dtype)).max(by(f.bytes, c.bandwidth(f.bytes as u64)));
    let overhead = c.queued_s.unwrap_or(0.0);
    let reached = (possible + overhead) / f.median_s;
    (possible > 0.0 && reached < WEAK).then(|| {
        format!(
            "the CPU takes {}, its ceilings allow {}",
            units::seconds(f.median_s),
            units::seconds(possible + overhead)
        )
    })
}

/// The facts of a row, if it has any and its op does arithmetic or moves memory by a kernel.
pub fn facts<'a>(row: &'a BenchRecord, op: &OpDesc, flops: u64, bytes: u64) -> Option<Facts<'a>> {
    if matches!(op.unit, Unit::Bytes | Unit::Calls) || row.subject.status != Status::Ok {
        return None;
    }
    let median_s = row.median_s.filter(|s| s.is_finite() && *s > 0.0)?;
    Some(Facts {
        flops: flops as f64,
        bytes: bytes as f64,
        dtype: row.subject.dtype,
        median_s,
        slow_s: row.ci_s.map_or(median_s, |c| c[1].max(median_s)),
        resident: row.residency == "resident",
        calls: row.k,
        phases: &row.phases_s,
        under_filled: row.subject.flags.iter().any(|f| f == "under-filled"),
        speedup: row.speedup_vs_cpu,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 1,000 GFLOP/s, 400 GB/s in the cache, 100 beyond; 10 us a launch.
    fn device() -> OfDevice {
        OfDevice {
            f32: Some(1000.0),
            f64: Some(500.0),
            memory: vec![(1 << 15, 200.0), (1 << 20, 400.0), (1 << 28, 100.0)],
            queued_s: Some(1e-5),
        }
    }

    fn phases(copies: f64, overhead: f64, kernel: f64) -> Phases {
        Phases {
            h2d: Some(copies / 2.0),
            d2h: Some(copies / 2.0),
            launch: Some(0.0),
            kernel: Some(kernel),
            sync: Some(overhead),
            ..Phases::default()
        }
    }

    fn row<'a>(flops: f64, bytes: f64, median_s: f64, phases: &'a Phases) -> Facts<'a> {
        Facts {
            flops,
            bytes,
            dtype: DType::F32,
            median_s,
            slow_s: median_s,
            resident: true,
            calls: 1,
            phases,
            under_filled: false,
            speedup: None,
        }
    }

    fn judged(f: &Facts<'_>) -> Judgement {
        judge(f, &DeviceInfo::ordinary_gpu(), Some(&device()))
    }

    /// Bottleneck and action.
    fn words(j: &Judgement) -> (&str, &str) {
        (&j.analysis.bottleneck, &j.analysis.action)
    }

    #[test]
    fn each_bottleneck_is_found_where_it_was_planted() {
        let busy = phases(0.0, 0.0, 1e-3);
        assert_eq!(words(&judged(&row(0.9e9, 1e6, 1e-3, &busy))), ("Compute", "None"));
        assert_eq!(words(&judged(&row(0.5e9, 1e6, 1e-3, &busy))), ("Compute", "OptimizeTiling"));
        let long = phases(0.0, 0.0, 1e-2);
        assert_eq!(words(&judged(&row(1e6, 0.9e9, 1e-2, &long))), ("MemoryBandwidth", "None"));
        assert_eq!(words(&judged(&row(1e6, 0.5e9, 1e-2, &long))), ("MemoryBandwidth", "Vectorize"));
        assert_eq!(words(&judged(&row(1e7, 1e6, 1e-3, &busy))), ("Unknown", "AutoTune"));
        let under = Facts { under_filled: true, ..row(1e7, 1e6, 1e-3, &busy) };
        assert_eq!(words(&judged(&under)), ("Occupancy", "IncreaseOccupancy"));
        let full = Facts { under_filled: true, ..row(0.9e9, 1e6, 1e-3, &busy) };
        assert_eq!(words(&judged(&full)).0, "Compute", "few groups that reach the peak lack nothing");
        let short = phases(0.0, 1e-5, 2e-6);
        let tiny = row(1e3, 4e4, 1.2e-5, &short);
        assert_eq!(words(&judged(&tiny)), ("LaunchOverhead", "BatchOperations"));
        assert_eq!(words(&judged(&Facts { speedup: Some(0.1), ..tiny })), ("LaunchOverhead", "UseCpu"));
        let copied = phases(3e-3, 1e-5, 1e-3);
        let far = Facts { resident: false, ..row(0.9e9, 1e6, 4e-3, &copied) };
        let j = judged(&far);
        assert_eq!(words(&j), ("Transfer", "BatchOperations"));
        assert!((j.analysis.transfer_fraction.unwrap() - 0.748).abs() < 1e-3, "{j:?}");
        // Ten calls that share the copies are not bound by them.
        assert_eq!(words(&judged(&Facts { calls: 10, ..far.clone() })).0, "Compute");
        assert_eq!(words(&judged(&Facts { speedup: Some(0.5), ..far })), ("Transfer", "UseCpu"));
    }

    #[test]
    fn nothing_is_said_without_ceilings() {
        let busy = phases(0.0, 0.0, 1e-3);
        let j = judge(&row(0.9e9, 1e6, 1e-3, &busy), &DeviceInfo::ordinary_gpu(), None);
        assert_eq!((words(&j), j.analysis.ceiling_fraction, j.suspect.clone()), (("Unknown", "None"), None, None));
        assert!(j.analysis.advice.contains("devices --measure"), "{}", j.analysis.advice);
        // Phases alone tell a transfer.
        let copied = phases(3e-3, 1e-5, 1e-3);
        let far = Facts { resident: false, ..row(0.9e9, 1e6, 4e-3, &copied) };
        assert_eq!(words(&judge(&far, &DeviceInfo::ordinary_gpu(), None)).0, "Transfer");
        // Integers have no ceiling of arithmetic.
        let ints = Facts { dtype: DType::I32, ..row(0.9e9, 1e3, 1e-3, &busy) };
        assert_eq!(judged(&ints).analysis.ceiling_fraction, None);
    }

    #[test]
    fn what_is_too_fast_is_suspect_and_never_clipped() {
        let busy = phases(0.0, 0.0, 1e-3);
        let near = judged(&row(1.04e9, 1e6, 1e-3, &busy));
        assert!(near.suspect.is_none() && near.analysis.ceiling_fraction.unwrap() > 1.0);
        let j = judged(&row(1.2e9, 1e6, 1e-3, &busy));
        assert!(j.suspect.as_ref().unwrap().contains("120 % of the measured ceiling (f32 FMA)"), "{j:?}");
        assert!((j.analysis.ceiling_fraction.unwrap() - 1.2).abs() < 1e-9);
        // The interval reaches what is possible: not proven.
        let unsure = Facts { slow_s: 1.3e-3, ..row(1.2e9, 1e6, 1e-3, &busy) };
        assert_eq!(judged(&unsure).suspect, None);
        // Memory: 100 GB/s beyond the cache, 400 within.
        let stream = judged(&row(0.0, 2e8 * 4.0, 4e-3, &busy));
        assert!(stream.suspect.unwrap().contains("(memory)"));
        assert_eq!(judged(&row(0.0, 2e6, 6e-6, &busy)).suspect, None);
        // The theoretical peak is a ceiling, too.
        let mut info = DeviceInfo::ordinary_gpu();
        info.theoretical = Some(crate::base::Theoretical { f32_gflops: Some(800.0), ..Default::default() });
        let j = judge(&row(0.9e9, 1e6, 1e-3, &busy), &info, Some(&device()));
        assert!(j.suspect.unwrap().contains("theoretical"));
        assert!((j.peak_fraction.unwrap() - 1.125).abs() < 1e-9);
    }

    #[test]
    fn smaller_operands_may_use_nearer_caches() {
        let d = device();
        assert_eq!([1 << 14, 1 << 15, 1 << 19].map(|b| d.bandwidth(b)), [None, Some(400.0), Some(400.0)]);
        assert_eq!([1 << 20, 1 << 27, 1 << 30].map(|b| d.bandwidth(b)), [Some(400.0), Some(400.0), Some(100.0)]);
        assert_eq!(OfDevice::default().bandwidth(1 << 20), None);
    }

    #[test]
    fn weak_baselines_are_named() {
        let p = Phases::default();
        let d = device();
        assert_eq!(weak(&row(1e9, 1e6, 1.5e-3, &p), Some(&d)), None);
        let text = weak(&row(1e9, 1e6, 2e-2, &p), Some(&d)).unwrap();
        assert!(text.contains("20.0 ms") && text.contains("1.01 ms"), "{text}");
        assert_eq!(weak(&row(1e9, 1e6, 2e-2, &p), None), None);
        assert_eq!(weak(&row(1e2, 1e2, 2e-5, &p), Some(&d)), None, "an empty call is not weak");
    }

    #[test]
    fn records_that_are_not_ok_are_no_ceilings() {
        let record = |status, value| {
            Record::Ceiling(Box::new(CeilingRecord {
                device: "d".into(),
                uid: "u".into(),
                what: "fma".into(),
                dtype: Some(DType::F32),
                bytes: 8,
                memory: String::new(),
                unit: "GFLOP/s".into(),
                value,
                ci: None,
                theoretical: None,
                samples: 1,
                processes: 1,
                variant: String::new(),
                status,
                reason: String::new(),
            }))
        };
        let of = |r| Ceilings::of(&[r]).device("u").and_then(|d| d.f32);
        assert_eq!(of(record(Status::Ok, Some(5.0))), Some(5.0));
        for (status, value) in [(Status::Suspect, Some(5.0)), (Status::Ok, None), (Status::Ok, Some(f64::NAN))] {
            assert_eq!(of(record(status, value)), None);
        }
    }
}
