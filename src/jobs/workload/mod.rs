//! Is a GPU worth it for this program? A recorded workload: its keys calibrated, its shapes timed, its time added up.
//!
//! First the keys (op, dtype, shape family, residency) of the recorded calls are calibrated, heaviest first, and no others.
//! Then the recorded shapes themselves are timed on the CPU and the devices, interleaved, in several processes, heaviest
//! first, as far as the budget goes; for the rest the calibrated curves predict, and the answer says for how much. Last
//! three times are added up: as it ran, as the new profile would place it, and with everything on a GPU.

mod total;

use std::time::Duration;

use crate::base::record::{Record, WorkloadCall, WorkloadRecord};
use crate::base::sink::{Cancel, Progress, Sink};
use crate::base::{Case, Code, Error, Result};
use crate::device::probe::Rig;
use crate::engine::{Workload, WorkloadRow};
use crate::jobs::calibrate::{self, CalibrateConfig, Calibrated, Wanted};
use crate::jobs::look::{Crew, Here, Looker, Order, Timed};
use crate::jobs::workers::Start;
use crate::measure::Residency;
use crate::op::{self, OpDesc, Unit};
use crate::profile::{CPU_AUTO, Call, Chooser, Operands, Place, Policy, model};

use total::{Side, Sums, Times};

/// Share of the budget for calibrating; the rest times the recorded shapes.
const CALIBRATING: f64 = 0.5;
/// Processes that time the recorded shapes: an interval needs at least two, and each costs the whole workload.
const PROCESSES: usize = 5;

/// Pairs in each process.
const PAIRS: usize = 9;

/// What came of it.
#[derive(Clone, Debug)]
pub struct Judged {
    /// The profile of the workload's keys.
    pub calibrated: Calibrated,
    /// The answer.
    pub record: WorkloadRecord,
}

impl Judged {
    /// The answer as lines for people.
    pub fn lines(&self) -> Vec<String> {
        total::lines(&self.record)
    }
}

/// Judges a workload in this process, in rounds. Of the configuration, ops, dtypes and residencies are the workload's.
///
/// Errors: those of [`calibrate::run`]; `BadArgument` for a workload without calls that could be placed.
pub fn run(
    cfg: &CalibrateConfig,
    workload: &Workload,
    rig: &Rig,
    sink: &mut dyn Sink,
    cancel: &Cancel,
) -> Result<Judged> {
    run_in(cfg, workload, &[rig], sink, cancel)
}

/// The same with each rig as a process: simulated machines as several processes meet them. At least one.
pub fn run_in(
    cfg: &CalibrateConfig,
    workload: &Workload,
    rigs: &[&Rig],
    sink: &mut dyn Sink,
    cancel: &Cancel,
) -> Result<Judged> {
    let Some(first) = rigs.first() else { return Err(Error::new(Code::BadArgument, "no rig to calibrate")) };
    let mut timer = Here::new(rigs, cfg.cpu_variant.as_deref(), &cfg.kernels);
    judge(cfg, workload, first, &mut timer, sink, cancel, &mut |cfg, keys, sink| {
        calibrate::run_keys_in(cfg, keys, rigs, sink, cancel)
    })
}

/// The same in fresh processes, which `start` says how to start; [`calibrate::worker`] is what they run.
pub fn run_workers(
    cfg: &CalibrateConfig,
    workload: &Workload,
    rig: &Rig,
    start: &Start,
    sink: &mut dyn Sink,
    cancel: &Cancel,
) -> Result<Judged> {
    let mut timer = Crew::new(start, rig.cpu.clock());
    judge(cfg, workload, rig, &mut timer, sink, cancel, &mut |cfg, keys, sink| {
        calibrate::run_keys_workers(cfg, keys, rig, start, sink, cancel)
    })
}

/// Calibrates keys.
type Calibrate<'a> = &'a mut dyn FnMut(&CalibrateConfig, &[Wanted], &mut dyn Sink) -> Result<Calibrated>;

/// One row of the workload with what is known of it.
struct Row<'w> {
    recorded: &'w WorkloadRow,
    op: &'static OpDesc,
    residency: Residency,
    /// By process; shorter where the budget ended.
    timed: Vec<Timed>,
    /// By device: why it cannot take it, or that it is wrong, if so.
    refused: Vec<Option<String>>,
    wrong: bool,
}

/// Nominal seconds, to order what nothing is known of: 10 Gflop/s and 10 GB/s.
fn nominal(op: &OpDesc, case: &Case) -> f64 {
    let cost = (op.cost)(case);
    cost.flops.max(cost.bytes()).max(1) as f64 * 1e-10
}

fn judge(
    cfg: &CalibrateConfig,
    workload: &Workload,
    rig: &Rig,
    timer: &mut dyn Looker,
    sink: &mut dyn Sink,
    cancel: &Cancel,
    calibrate: Calibrate<'_>,
) -> Result<Judged> {
    let mut rows = Vec::new();
    for recorded in &workload.rows {
        let op = op::find(recorded.case.op)?;
        if !matches!(op.unit, Unit::Bytes | Unit::Calls) {
            let residency = recorded.residency.parse()?;
            rows.push(Row { recorded, op, residency, timed: Vec::new(), refused: Vec::new(), wrong: false });
        }
    }
    if rows.is_empty() {
        return Err(Error::new(Code::BadArgument, "the workload has no call that could be placed"));
    }
    rows.sort_by(|a, b| {
        let weight = |r: &Row<'_>| r.recorded.count as f64 * nominal(r.op, &r.recorded.case);
        weight(b).total_cmp(&weight(a))
    });
    let clock = rig.cpu.clock();
    let end = clock.now() + cfg.budget.as_secs_f64();
    let calibrated = keys(cfg, &rows, calibrate, sink)?;
    let devices: Vec<String> = calibrated.profile.devices.iter().map(|d| d.id.clone()).collect();
    let curves = Curves::new(&calibrated);
    curves.sort(&mut rows);
    if !devices.is_empty() && !calibrated.interrupted {
        let total = rows.len() as u64;
        for (done, row) in rows.iter_mut().enumerate() {
            let doing = format!("{} as recorded", row.recorded.case);
            sink.progress(&Progress { doing, done: done as u64, total: Some(total) });
            let left = end - clock.now();
            if left <= 0.0 || cancel.raised() {
                break;
            }
            time(cfg.processes.min(PROCESSES), row, &devices, left / (total - done as u64) as f64, timer, cancel);
        }
    }
    let record = curves.answer(cfg, &rows, rig);
    sink.record(&Record::Workload(Box::new(record.clone())));
    Ok(Judged { calibrated, record })
}

/// Calibrates the keys of the rows, one residency after the other, each with its share of the rows.
fn keys(cfg: &CalibrateConfig, rows: &[Row<'_>], calibrate: Calibrate<'_>, sink: &mut dyn Sink) -> Result<Calibrated> {
    let mut parts = Vec::new();
    let budget = cfg.budget.as_secs_f64() * CALIBRATING;
    for residency in Residency::ALL {
        let mut keys: Vec<Wanted> = Vec::new();
        let own = rows.iter().filter(|r| r.residency == residency);
        let share = own.clone().count() as f64 / rows.len() as f64;
        for row in own {
            // A shape outside every family has no key; it is timed all the same.
            let Some(family) = row.op.family(&row.recorded.case) else { continue };
            let (op, dtype) = (row.op, row.recorded.case.dtype);
            if !keys.iter().any(|k| k.op.name == op.name && k.dtype == dtype && k.family.name == family.name) {
                keys.push(Wanted { op, dtype, family });
            }
        }
        if keys.is_empty() {
            continue;
        }
        let budget = Duration::from_secs_f64(budget * share);
        let cfg = CalibrateConfig { residencies: vec![residency], budget, ..cfg.clone() };
        parts.push(calibrate(&cfg, &keys, sink)?);
    }
    if parts.is_empty() {
        return Err(Error::new(Code::BadArgument, "no call of the workload belongs to a family of shapes"));
    }
    calibrate::joined(parts)
}

/// Times one row in all processes within `budget_s`, as many as it holds, on the CPU and each device that takes it.
fn time(
    processes: usize,
    row: &mut Row<'_>,
    devices: &[String],
    budget_s: f64,
    timer: &mut dyn Looker,
    cancel: &Cancel,
) {
    row.refused.resize(devices.len(), None);
    let mut all: Vec<usize> = (0..devices.len()).collect();
    let order = |of: &[usize]| Order {
        case: row.recorded.case.to_string(),
        places: of.iter().map(|d| (devices[*d].clone(), row.residency)).collect(),
        pairs: PAIRS,
        budget_s: budget_s / processes as f64,
        read: false,
    };
    // Where none is left, the CPU's time is worth knowing all the same.
    while row.timed.len() < processes {
        let process = row.timed.len();
        let why = match timer.look(&order(&all), process, cancel) {
            Ok(Some(timed)) if timed.wrong.is_none() => {
                let mut by_device = vec![Vec::new(); devices.len()];
                all.iter().zip(timed.devices).for_each(|(d, samples)| by_device[*d] = samples);
                row.timed.push(Timed { devices: by_device, ..timed });
                continue;
            }
            Ok(Some(timed)) => {
                row.wrong = true;
                format!("wrong result: {}", timed.wrong.unwrap_or_default())
            }
            Ok(None) => return,
            Err(e) if e.code() == Code::Cancelled => return,
            // Too large for a device, or it has no kernel: the call goes elsewhere.
            Err(e) => e.to_string(),
        };
        // What the others found stood beside one that does not count.
        row.timed.clear();
        if all.is_empty() {
            return;
        }
        if let [one] = all[..] {
            row.refused[one] = Some(why);
            all.clear();
            continue;
        }
        // Whose fault it was only each alone can tell.
        let before = all.len();
        for d in std::mem::take(&mut all) {
            match timer.look(&order(&[d]), process, cancel) {
                Ok(Some(timed)) => match timed.wrong {
                    None => all.push(d),
                    Some(wrong) => {
                        row.wrong = true;
                        row.refused[d] = Some(format!("wrong result: {wrong}"));
                    }
                },
                Ok(None) => return,
                Err(e) if e.code() == Code::Cancelled => return,
                Err(e) => row.refused[d] = Some(e.to_string()),
            }
        }
        if all.len() == before {
            // Together they fail and alone they do not: nobody takes it, rather than that it is tried for ever.
            row.refused.iter_mut().for_each(|r| *r = Some(why.clone()));
            all.clear();
        }
    }
}

/// What the calibrated profile says of calls.
struct Curves {
    chooser: Chooser,
    threads: u32,
    variant: String,
}

impl Curves {
    fn new(calibrated: &Calibrated) -> Self {
        let first = calibrated.profile.entries.first();
        Curves {
            threads: first.map_or(1, |e| e.threads),
            variant: first.map_or(CPU_AUTO.into(), |e| e.cpu_variant.clone()),
            chooser: Chooser::knowing(calibrated.profile.clone(), op::words()),
        }
    }

    fn call<'c>(&'c self, row: &'c Row<'_>) -> Call<'c> {
        let case = &row.recorded.case;
        let first = self.chooser.profile().devices.first();
        Call {
            op: row.op.name,
            dtype: case.dtype,
            family: row.op.family(case).map(|f| f.name),
            unit: row.op.unit.name(),
            features: row.op.features(case),
            operands: match (row.residency, first) {
                (Residency::Resident, Some(d)) => Operands::Device(&d.uid),
                _ => Operands::Host,
            },
            threads: self.threads,
            cpu_variant: &self.variant,
        }
    }

    /// Predicted seconds of one call on the CPU and on each device, `None` where the evidence does not tell.
    fn predicted(&self, row: &Row<'_>) -> Vec<Option<model::Times>> {
        let call = self.call(row);
        let of = |d: &crate::profile::ProfileDevice| {
            let entry = self.chooser.entry(&call, d, row.residency.name())?;
            model::predict(entry, &call.features)
        };
        self.chooser.profile().devices.iter().map(of).collect()
    }

    /// Heaviest first by count and predicted time on the CPU.
    fn sort(&self, rows: &mut [Row<'_>]) {
        let weight = |r: &Row<'_>| {
            let known = self.predicted(r).into_iter().flatten().next().map(|t| t.cpu_s);
            r.recorded.count as f64 * known.unwrap_or_else(|| nominal(r.op, &r.recorded.case))
        };
        rows.sort_by(|a, b| weight(b).total_cmp(&weight(a)));
    }

    fn answer(&self, cfg: &CalibrateConfig, rows: &[Row<'_>], rig: &Rig) -> WorkloadRecord {
        let devices = &self.chooser.profile().devices;
        let complete = cfg.processes.min(PROCESSES);
        let mut calls = Vec::new();
        let mut sums = Sums::new(devices.len(), complete);
        for row in rows {
            let predicted = self.predicted(row);
            let takes: Vec<bool> = (0..devices.len()).map(|d| !matches!(row.refused.get(d), Some(Some(_)))).collect();
            let times = Times::of(&row.timed, &predicted, complete).only(&takes);
            let placed = self.chooser.choose(Policy::Automatic, &self.call(row));
            let number = placed.device.and_then(|d| devices.iter().position(|x| x.uid == d.uid));
            let goes = match number {
                Some(d) if takes[d] && placed.place == Place::Gpu => Side::Device(d),
                _ => Side::Cpu,
            };
            let refused =
                devices.iter().zip(&row.refused).filter_map(|(d, r)| Some(format!("{}: {}", d.id, r.as_ref()?)));
            let refused: Vec<String> = refused.collect();
            let why = if refused.is_empty() { placed.why.text().to_string() } else { refused.join("; ") };
            sums.add(row.recorded.count, row.recorded.gpu, &times, goes, &takes);
            calls.push(WorkloadCall {
                op: row.op.name.into(),
                dtype: row.recorded.case.dtype,
                shape_text: row.recorded.case.shape_text(),
                attrs: row.recorded.case.attrs.clone(),
                residency: row.residency.name().into(),
                count: row.recorded.count,
                gpu: row.recorded.gpu,
                basis: times.basis.name().into(),
                cpu_s: times.cpu_s(),
                device_s: times.best_device_s(),
                goes: match goes {
                    Side::Cpu => "cpu".into(),
                    Side::Device(d) => devices.get(d).map_or_else(|| "cpu".into(), |d| d.id.clone()),
                },
                wrong: row.wrong,
                why,
            });
        }
        sums.record(calls, devices, rig.cpu.info().compute_units)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::{Attrs, DType, Fill};

    /// Devices by what they do: `ok`, `small` (too little memory) or `wrong`.
    struct Scripted(Vec<String>);

    impl Looker for Scripted {
        fn look(&mut self, order: &Order, process: usize, _: &Cancel) -> Result<Option<Timed>> {
            let ids: Vec<&str> = order.places.iter().map(|(id, _)| id.as_str()).collect();
            self.0.push(format!("{process} {}", ids.join("+")));
            if ids.contains(&"small") {
                return Err(Error::new(Code::OutOfDeviceMemory, "too large"));
            }
            let wrong = ids.contains(&"wrong").then(|| "3 instead of 4".to_string());
            let devices = ids.iter().map(|id| vec![id.len() as f64; PAIRS]).collect();
            let cpu = vec![1.0; PAIRS];
            Ok(Some(Timed {
                cpu,
                devices,
                calls: 1,
                kernel: String::new(),
                wrong,
                made_s: 0.0,
                once_s: 0.0,
                disturbed: false,
                readings: Vec::new(),
            }))
        }
    }

    #[test]
    fn a_device_that_refuses_takes_no_other_with_it() {
        let op = op::find("exp").unwrap();
        let case = op.case(DType::F32, &[1024], Attrs::new(), Fill::Uniform).unwrap();
        let recorded = WorkloadRow { case, residency: "always".into(), count: 1, gpu: 0 };
        let timed = |ids: &[&str]| {
            let mut row = Row {
                recorded: &recorded,
                op,
                residency: Residency::Always,
                timed: Vec::new(),
                refused: Vec::new(),
                wrong: false,
            };
            let ids: Vec<String> = ids.iter().map(|id| id.to_string()).collect();
            let mut looker = Scripted(Vec::new());
            time(3, &mut row, &ids, 1.0, &mut looker, &Cancel::new());
            (row.timed, row.refused, row.wrong, looker.0)
        };
        let (all, refused, wrong, asked) = timed(&["small", "ok", "wrong"]);
        assert_eq!(all.len(), 3);
        assert!(all.iter().all(|t| t.devices[0].is_empty() && t.devices[1] == [2.0; PAIRS] && t.devices[2].is_empty()));
        assert!(refused[0].as_ref().unwrap().contains("too large") && refused[1].is_none() && wrong);
        assert_eq!(refused[2].as_deref(), Some("wrong result: 3 instead of 4"));
        assert_eq!(asked, ["0 small+ok+wrong", "0 small", "0 ok", "0 wrong", "0 ok", "1 ok", "2 ok"]);
        let (all, refused, wrong, asked) = timed(&["small"]);
        assert!(all.len() == 3 && all.iter().all(|t| t.devices[0].is_empty() && t.cpu == [1.0; PAIRS]));
        assert!(refused[0].is_some() && !wrong && asked == ["0 small", "0 ", "1 ", "2 "], "{asked:?}");
        let (all, refused, ..) = timed(&["ok", "fine"]);
        assert!(all.len() == 3 && refused == [None, None]);
    }
}
