//! Traces against the records of the same run.

use gpuctl::base::record::BenchRecord;
use gpuctl::base::sink::{Cancel, Collect};
use gpuctl::base::{DType, Env, Fill, Record, stats};
use gpuctl::device::cpu::Pin;
use gpuctl::device::probe::{CpuConfig, Rig, Select, open};
use gpuctl::device::tap::{KEPT, Tracer};
use gpuctl::device::traced;
use gpuctl::jobs::bench::{self, BenchConfig};
use gpuctl::jobs::ceilings::judge::Ceilings;
use gpuctl::measure::{Cache, PHASES, Residency, SAMPLE};
use gpuctl::op::{self, Role};
use serde_json::Value;

use crate::format::{Ev, ROUNDING, document, parse};

/// Events of an op on a device in one process that begin in a region.
fn inside<'e>(events: &'e [Ev], region: &Ev, cat: &str) -> Vec<&'e Ev> {
    let within = |e: &&Ev| {
        e.pid == region.pid
            && e.cat == cat
            && ["device", "op", "shape"].iter().all(|a| e.args[*a] == region.args[*a])
            && e.ts >= region.ts - ROUNDING
            && e.ts < region.end() - ROUNDING
    };
    events.iter().filter(within).collect()
}

/// The regions of a row's last series in one process: its samples, and the calls whose phases are apart. What was measured
/// again began with a warm-up.
fn series<'e>(events: &'e [Ev], row: &BenchRecord, pid: u64) -> (Vec<&'e Ev>, Vec<&'e Ev>) {
    let s = &row.subject;
    let of = |e: &&Ev| {
        e.pid == pid
            && e.cat == "region"
            && (e.text("device"), e.text("op"), e.text("shape")) == (&s.device, &s.op, &s.shape_text)
    };
    let mut regions: Vec<&Ev> = events.iter().filter(of).collect();
    regions.sort_by(|a, b| a.ts.total_cmp(&b.ts));
    let from = regions.iter().rposition(|e| e.name.contains("warm-up")).map_or(0, |i| i + 1);
    let last = &regions[from.min(regions.len())..];
    let named = |word: &str| last.iter().copied().filter(|e| e.name.contains(word)).collect::<Vec<_>>();
    (named(SAMPLE), named(PHASES))
}

fn near(a: f64, b: f64) -> bool {
    (a - b).abs() <= 0.02 * b.abs()
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    stats::median(&values.collect::<Vec<_>>())
}

/// What does not agree between a trace and the rows that were measured meanwhile: samples and their times, launches, bytes,
/// kernels. A row of one process names it by its median.
pub(crate) fn disagreements(events: &[Ev], rows: &[&BenchRecord], residency: Residency) -> Vec<String> {
    let mut faults = Vec::new();
    let mut pids: Vec<u64> = events.iter().filter(|e| e.name.contains(SAMPLE)).map(|e| e.pid).collect();
    pids.sort_unstable();
    pids.dedup();
    for row in rows {
        let s = &row.subject;
        let mut fault = |why: String| faults.push(format!("{} {} on {}: {why}", s.op, s.shape_text, s.device));
        let op = op::find(&s.op).unwrap();
        let sizes: Vec<u64> = op.dims.iter().map(|d| s.shape[*d]).collect();
        let case = op.case(s.dtype, &sizes, s.attrs.clone(), Fill::Uniform).unwrap();
        let bytes = |keep: fn(Role) -> bool| -> u64 {
            let shapes = (op.shapes)(&case).unwrap();
            let of = |i: usize| shapes[i].iter().product::<u64>() * op.operand_dtype(i, &case).size();
            (0..shapes.len()).filter(|i| keep(op.operands[*i].role)).map(of).sum()
        };
        let (mut samples, mut kernels) = (0, Vec::new());
        let mut medians = Vec::new();
        for pid in &pids {
            let (timed, phases) = series(events, row, *pid);
            // The process that starts the workers; a worker that is missing has no median.
            if timed.is_empty() && phases.is_empty() {
                continue;
            }
            if timed.is_empty() || phases.is_empty() {
                fault(format!("process {pid} has {} samples and {} phases", timed.len(), phases.len()));
                continue;
            }
            samples += timed.len() as u64;
            medians.push(median(
                timed.iter().map(|r| r.args["measured_us"].as_f64().unwrap() * 1e-6 / r.number("count") as f64),
            ));
            let sum = |r: &Ev, cat, arg| inside(events, r, cat).iter().map(|e| e.number(arg)).sum::<u64>();
            let per_call = sum(phases[0], "launch", "count");
            if per_call == 0 {
                fault("no launch in a call".into());
            }
            for r in phases.iter().chain(&timed) {
                let (calls, launches) = (r.number("count"), sum(r, "launch", "count"));
                if launches != calls * per_call {
                    fault(format!("{launches} launches in {calls} calls of {per_call}"));
                }
                let copied = residency != Residency::Resident || r.name.contains(PHASES);
                for (cat, want) in [("h2d", bytes(|r| r != Role::Out)), ("d2h", bytes(|r| r != Role::In))] {
                    let (got, want) = (sum(r, cat, "bytes"), if copied { calls * want } else { 0 });
                    if got != want {
                        fault(format!("{cat}: {got} bytes, {calls} calls move {want}"));
                    }
                }
            }
            // Several launches of one call have gaps between them, which the record's span counts and no launch's own time does.
            if per_call == 1 && row.phases_s.kernel_clock == "device" {
                // On the host's processor a launch is its own kernel; elsewhere each has an event on the device's row.
                let host = s.device == "cpu" && !s.flags.iter().any(|f| f == "simulated");
                let seconds = |r: &Ev, cat| -> Option<f64> {
                    let of = |e: &&Ev| if cat == "kernel" { Some(e.dur) } else { e.args["device_us"].as_f64() };
                    let all: Vec<f64> = inside(events, r, cat).iter().filter_map(of).collect();
                    (!all.is_empty()).then(|| all.iter().sum::<f64>() * 1e-6)
                };
                let all: Vec<f64> =
                    phases.iter().filter_map(|r| seconds(r, if host { "launch" } else { "kernel" })).collect();
                if all.len() == phases.len() {
                    kernels.push(stats::median(&all));
                } else {
                    fault(format!("{} of {} phases have a kernel time", all.len(), phases.len()));
                }
            }
        }
        if samples != row.samples {
            fault(format!("{samples} samples, the record has {}", row.samples));
        }
        let mut want = row.process_medians_s.clone();
        want.sort_by(f64::total_cmp);
        medians.sort_by(f64::total_cmp);
        if medians.len() != want.len() || medians.iter().zip(&want).any(|(a, b)| !near(*a, *b)) {
            fault(format!("medians {medians:?}, the record has {want:?}"));
        }
        if let Some(want) = row.phases_s.kernel.filter(|_| !kernels.is_empty()) {
            let got = stats::median(&kernels);
            // There the record has the time between two looks at the host's clock, with what a queue does besides the launch.
            let besides = if s.device == "cpu" && !s.flags.iter().any(|f| f == "simulated") { 5e-6 } else { 0.0 };
            if !near(got, want) && (got - want).abs() > besides {
                fault(format!("kernels take {got:e} s, the record has {want:e}"));
            }
        }
    }
    faults
}

pub(crate) fn config(ops: &[&str], size: u64, residency: Residency) -> BenchConfig {
    BenchConfig {
        ops: ops.iter().map(|o| op::find(o).unwrap()).collect(),
        sizes: Some(vec![size]),
        shape: None,
        attrs: String::new(),
        dtypes: vec![DType::F32],
        residencies: vec![residency],
        variant: None,
        cpu_variant: None,
        budget_s: 0.5,
        region_s: gpuctl::measure::REGION_S,
        cache: Cache::Hot,
        cases: Vec::new(),
        ceilings: Ceilings::default(),
        kernels: gpuctl::engine::KernelCache::off(),
    }
}

pub(crate) fn rig(devices: &str) -> Rig {
    let cpu = CpuConfig { threads: 1, pin: Pin::Free };
    open(&Select::parse(devices).unwrap(), &Env::default(), cpu).unwrap()
}

/// Rows of a run in this process, traced or not.
pub(crate) fn measured(cfg: &BenchConfig, rig: &Rig) -> Vec<BenchRecord> {
    let mut sink = Collect::default();
    bench::run(cfg, rig, &mut sink, &Cancel::new()).unwrap();
    let rows = sink.records.into_iter().filter_map(|r| match r {
        Record::Bench(b) => Some(*b),
        _ => None,
    });
    rows.collect()
}

const MIXED: [&str; 5] = ["gemm", "relu", "sum", "softmax", "transpose"];

/// Exact on the simulator; and a launch that is lost, a kernel or sample that is too long, a copy that is too small are seen.
#[test]
fn totals_agree_with_records_on_the_simulator() {
    for residency in [Residency::Resident, Residency::Always] {
        let tracer = Tracer::new("test", KEPT);
        let mut rig = rig("sim:h200,cpu");
        traced::rig(&mut rig, &tracer);
        let rows = measured(&config(&MIXED, 256, residency), &rig);
        assert_eq!(rows.len(), 2 * MIXED.len());
        let rows: Vec<&BenchRecord> = rows.iter().collect();
        let doc = document(&tracer.trace());
        let events = parse(&doc).unwrap();
        assert_eq!(disagreements(&events, &rows, residency), [""; 0]);

        // A fault of each kind, in one event.
        let spoilt = |cat: &str, remark: &str, change: fn(&mut Value)| {
            let mut doc = doc.clone();
            let list = doc["traceEvents"].as_array_mut().unwrap();
            let is = |e: &Value, cat: &str| {
                e["cat"] == cat && e["args"]["device"] == "sim:h200" && e["args"]["op"] == "gemm"
            };
            let region =
                list.iter().rfind(|e| is(e, "region") && e["name"].as_str().unwrap().contains(remark)).unwrap();
            let (from, to) =
                (region["ts"].as_f64().unwrap(), region["ts"].as_f64().unwrap() + region["dur"].as_f64().unwrap());
            let at = list.iter().position(|e| is(e, cat) && (from..=to).contains(&e["ts"].as_f64().unwrap())).unwrap();
            change(&mut list[at]);
            disagreements(&parse(&doc).unwrap(), &rows, residency)
        };
        let lost: fn(&mut Value) = |e| e["cat"] = "lost".into();
        let seen = spoilt("launch", SAMPLE, lost);
        assert!(seen.iter().any(|f| f.contains("launches in")), "{seen:?}");
        let seen = spoilt("region", SAMPLE, lost);
        assert!(seen.iter().any(|f| f.contains("samples, the record")), "{seen:?}");
        let seen = spoilt("h2d", PHASES, |e| e["args"]["bytes"] = 4.into());
        assert!(seen.iter().any(|f| f.contains("h2d")), "{seen:?}");
        let seen = spoilt("kernel", PHASES, lost);
        assert!(seen.iter().any(|f| f.contains("have a kernel time")), "{seen:?}");

        // A clock that runs 3 % fast, for kernels and for samples.
        for (cat, what) in [("kernel", "kernels take"), ("region", "medians")] {
            let mut slow = events.clone();
            for e in slow.iter_mut().filter(|e| e.cat == cat) {
                e.dur *= 1.03;
                if let Some(us) = e.args["measured_us"].as_f64() {
                    e.args["measured_us"] = (1.03 * us).into();
                }
            }
            let seen = disagreements(&slow, &rows, residency);
            assert!(seen.iter().any(|f| f.contains(what)), "{cat}: {seen:?}");
        }
    }
}

/// Nothing that the simulator's clock shows changes when it is looked at.
#[test]
fn tracing_changes_no_time() {
    let cfg = config(&MIXED, 512, Residency::Always);
    let plain = measured(&cfg, &rig("sim:h200,cpu"));
    let mut watched = rig("sim:h200,cpu");
    let tracer = Tracer::new("test", KEPT);
    traced::rig(&mut watched, &tracer);
    assert_eq!(measured(&cfg, &watched), plain);
    assert!(tracer.process().events.len() > 100);
}

pub(crate) fn has(backend: &str) -> bool {
    let env = Env { disable_gpu: false, ..Env::default() };
    let found = open(&Select::parse(backend).unwrap(), &env, CpuConfig { threads: 1, pin: Pin::Free }).is_ok();
    let required = std::env::var("GPUCTL_REQUIRE").unwrap_or_default();
    assert!(found || !required.split(',').any(|r| backend.starts_with(r)), "{backend} is required and not there");
    found
}

/// Real devices in one process, and two that are ended as soon as they have answered.
#[test]
fn totals_agree_with_records_on_devices() {
    let mut devices = vec!["cpu"];
    devices.extend(["opencl:0", "wgpu:0"].into_iter().filter(|d| has(d)));
    for residency in [Residency::Resident, Residency::Always] {
        let tracer = Tracer::new("test", KEPT);
        let mut rig = rig(&devices.join(","));
        traced::rig(&mut rig, &tracer);
        let cfg = BenchConfig { budget_s: 0.6, ..config(&["gemm", "softmax"], 128, residency) };
        let rows = measured(&cfg, &rig);
        let ok: Vec<&BenchRecord> = rows.iter().filter(|r| !r.process_medians_s.is_empty()).collect();
        // On a busy machine a call may take too long, and the row says so.
        for device in &devices {
            assert!(ok.iter().filter(|r| r.subject.device == *device).count() >= 1, "{device}: {rows:?}");
        }
        let events = parse(&document(&tracer.trace())).unwrap();
        assert_eq!(disagreements(&events, &ok, residency), [""; 0]);
    }
}
