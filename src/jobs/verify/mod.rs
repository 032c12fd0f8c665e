//! Whether the kernels' results are right: every case of the op table, on every device, against the exact oracle.
//!
//! The CPU's kernels are judged like any other. A case passes only if every element of every output keeps its bound
//! ([`Tolerance`](crate::op::Tolerance)), nothing was written beside the outputs, and no element was left out: outputs
//! are poisoned with a different pattern in each of two runs. The two runs are also compared bit by bit.

mod big;
mod cards;
mod compare;
mod config;
mod done;
mod faults;
mod faults_ops;
mod oracle;
mod own_bound;
mod save;
mod self_test;
mod station;

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rayon::prelude::*;

use crate::base::record::{Record, Status, VerifyRecord};
use crate::base::sink::{Cancel, Progress, Sink};
use crate::base::{Attrs, Case, Code, DType, Error, Result};
use crate::device::cpu;
use crate::device::probe::Rig;
use crate::device::telemetry::Telemetry;
use crate::engine::Runner;
use crate::op::{OpDesc, Role, Tier};

use cards::Cards;
use compare::at_text;
use station::{Answered, Station, plain};

pub use cards::card_line;
pub use config::{Detector, Mutant, VerifyConfig, VerifySummary};
pub use done::{Done, done_key};
pub use own_bound::OwnBound;
pub use self_test::{SelfTestSummary, line as self_test_line, self_test};

/// Verifies all cases on all devices of the rig and hands out the records as they come, in the order of the cases.
///
/// Devices work at the same time, each on its own thread, while the oracle answers for the next cases.
/// Errors concern the request (a case that its op does not have); what goes wrong on a device is a record.
pub fn run(cfg: &VerifyConfig, rig: &Rig, sink: &mut dyn Sink, cancel: &Cancel) -> Result<VerifySummary> {
    let cases = cases(cfg)?;
    known_variant(cfg)?;
    let mut stations: Vec<_> = rig.devices.iter().map(|d| Station::new(cfg, rig, d)).collect();
    let mut summary = VerifySummary::default();
    let threads = cpu::available_threads();
    // A pool of the oracle's own: never rayon's global one, which belongs to the program that uses the library.
    let pool = rayon::ThreadPoolBuilder::new()
        .num_threads(threads)
        .thread_name(|i| format!("gpuctl-oracle-{i}"))
        .build()
        .map_err(|e| Error::new(Code::Internal, "no threads for the oracle").caused_by(e))?;
    let cases: Vec<_> = match cfg.done.is_empty() {
        true => cases,
        // What all devices have done needs no oracle.
        false => cases.into_iter().filter(|(_, c)| !all_done(cfg, &mut stations, c)).collect(),
    };
    // What the CPU computes, for the comparison with it; judged only if the CPU is among the devices.
    let compared = stations.iter().any(|s| !s.is_cpu).then(|| Runner::new(Arc::clone(&rig.cpu)));
    let infos: Vec<_> = rig.devices.iter().map(|d| d.info().clone()).collect();
    let left_out = |op, case: &Case| oracle::too_long(op, case).or_else(|| big::refused_by_all(op, case, &infos));
    let ask = |(op, case): &(&'static OpDesc, Case)| match left_out(op, case) {
        Some(why) => Ok(Err(why)),
        None => oracle::ask(op, case).map(|oracle| {
            let huge = op.total_bytes(case).is_none_or(|b| b > big::HUGE);
            let cpu = compared.as_ref().filter(|_| !huge);
            let on_cpu = cpu.and_then(|cpu| plain(cpu, op, case, &oracle.inputs).ok());
            Ok(Answered { oracle, on_cpu })
        }),
    };
    let ask_all = |batch: &[_]| pool.install(|| batch.par_iter().map(ask).collect::<Result<Vec<_>>>());
    let batches: Vec<_> = cases.chunks(4 * threads).collect();
    let mut answers = batches.first().map(|b| ask_all(b)).transpose()?.unwrap_or_default();
    let alone = Mutex::new(());
    let mut asked: Vec<Telemetry> = cfg.telemetry.map_or_else(Vec::new, |of| infos.iter().map(|_| of()).collect());
    let mut cards = Cards::begin(&mut asked, &infos);
    let (mut done, begun) = (0, Instant::now());
    for (at, batch) in batches.iter().enumerate() {
        if cancel.raised() {
            summary.cancelled = true;
            break;
        }
        cards.tick();
        sink.progress(&Progress { doing: batch[0].1.to_string(), done, total: Some(cases.len() as u64) });
        if cfg.tier == Tier::Exhaustive && at % TOLD == 1 {
            sink.note(&time_left(done, cases.len() as u64, begun.elapsed()));
        }
        let (judged, next) = std::thread::scope(|scope| {
            let work = |station| scope.spawn(|| all_of(cfg, &alone, cancel, station, batch, &answers));
            let workers: Vec<_> = stations.iter_mut().map(work).collect();
            let next = batches.get(at + 1).map(|b| ask_all(b)).transpose();
            let judged: Vec<_> = workers.into_iter().map(std::thread::ScopedJoinHandle::join).collect();
            (judged, next)
        });
        let mut of_device = Vec::new();
        for records in judged {
            let records = records.map_err(|_| Error::new(Code::Internal, "a device's thread panicked"))?;
            summary.cancelled |= records.len() < batch.len();
            of_device.push(records.into_iter());
        }
        // Every device's records of a case, before those of the next one.
        for _ in 0..batch.len() {
            for record in of_device.iter_mut().filter_map(Iterator::next).flatten() {
                summary.count(&record);
                sink.record(&Record::Verify(Box::new(record)));
            }
        }
        done += batch.len() as u64;
        answers = next?.unwrap_or_default();
    }
    cards.end(&mut summary, sink);
    summary.resumed = stations.iter().map(|s| s.resumed).sum();
    summary.idle = stations.iter().filter(|s| s.compared + s.resumed == 0).map(Station::id).collect();
    Ok(summary)
}

/// An error if the request names a variant that none of its ops has.
fn known_variant(cfg: &VerifyConfig) -> Result<()> {
    let Some(name) = &cfg.variant else { return Ok(()) };
    let known = |op: &&'static OpDesc| op.kernels.iter().any(|k| k.variant == name);
    let of_case = cfg.case.as_ref().map(|c| crate::op::find(c.op)).transpose()?;
    if cfg.ops.iter().chain(of_case.iter()).any(known) {
        return Ok(());
    }
    Err(Error::new(Code::BadArgument, format!("no kernel variant '{name}' among the chosen ops")))
}

/// Batches from one word about the time left to the next.
const TOLD: usize = 100;

/// How long the rest of so many cases takes at the rate of those that are done: an exhaustive run can take days.
fn time_left(done: u64, cases: u64, taken: Duration) -> String {
    let left = taken.as_secs_f64() / done.max(1) as f64 * cases.saturating_sub(done) as f64;
    let (number, unit) = match left {
        s if s < 120.0 => (s, "s"),
        s if s < 7_200.0 => (s / 60.0, "min"),
        s if s < 172_800.0 => (s / 3_600.0, "h"),
        s => (s / 86_400.0, "days"),
    };
    format!(
        "{done} of {cases} cases done, about {number:.0} {unit} left at this rate; --resume FILE goes on with what a run left"
    )
}

/// Whether a case is done on every device; each then counts it.
fn all_done(cfg: &VerifyConfig, stations: &mut [Station], case: &Case) -> bool {
    let name = case.to_string();
    let all = stations.iter().all(|s| s.has_done(cfg, &name));
    stations.iter_mut().filter(|_| all).for_each(|s| s.resumed += 1);
    all
}

/// One device's records of each case of a batch, none where it is done already; of fewer if the run is cancelled.
fn all_of(
    cfg: &VerifyConfig,
    alone: &Mutex<()>,
    cancel: &Cancel,
    station: &mut Station,
    batch: &[(&'static OpDesc, Case)],
    answers: &[Result<Answered, String>],
) -> Vec<Vec<VerifyRecord>> {
    let mut records = Vec::new();
    for ((op, case), answer) in batch.iter().zip(answers) {
        if cancel.raised() {
            break;
        }
        // Devices may be the same card under two names: what is large has its memory to itself.
        let large = op.total_bytes(case).is_none_or(|b| b > big::LARGE);
        let _alone = large.then(|| alone.lock().unwrap_or_else(PoisonError::into_inner));
        records.push(station.records(cfg, op, case, answer));
    }
    records
}

impl VerifySummary {
    fn count(&mut self, r: &VerifyRecord) {
        self.compared += r.compared - r.undefined;
        let passed = r.subject.status == Status::Ok;
        self.beyond += u64::from(passed && r.subject.flags.iter().any(|f| f == own_bound::BEYOND));
        match r.subject.status {
            Status::Ok => self.passed += 1,
            Status::Unsupported => self.unsupported += 1,
            Status::Skipped => self.skipped += 1,
            Status::Failed | Status::Suspect => self.failed += 1,
        }
    }
}

/// All cases of a request, in the table's order. Errors: `BadArgument` where the case beyond 2^31 bytes is required and not
/// among them.
pub fn cases(cfg: &VerifyConfig) -> Result<Vec<(&'static OpDesc, Case)>> {
    let all = selected(cfg)?;
    if cfg.require_big && !all.iter().any(|(op, case)| big::is(op, case)) {
        return Err(big::left_out());
    }
    Ok(all)
}

fn selected(cfg: &VerifyConfig) -> Result<Vec<(&'static OpDesc, Case)>> {
    if let Some(case) = &cfg.case {
        return Ok(vec![(crate::op::find(case.op)?, case.clone())]);
    }
    let mut all = Vec::new();
    for op in &cfg.ops {
        for dtype in op.dtypes {
            if cfg.dtypes.as_ref().is_some_and(|d| !d.contains(dtype)) {
                continue;
            }
            if cfg.tier == Tier::Exhaustive {
                all.extend(exhaustive(op, *dtype)?.into_iter().map(|c| (*op, c)));
                continue;
            }
            for spec in op.specs(cfg.tier, *dtype) {
                all.push((*op, op.case(*dtype, &spec.dims, spec.attrs, spec.fill)?));
            }
        }
    }
    // Last: most memory.
    if cfg.tier == Tier::Full {
        all.extend(big::case(cfg)?);
    }
    Ok(all)
}

/// Elements of one case of the exhaustive tier.
const PART: u64 = 1 << 20;

/// Cases that together hold every bit pattern of the dtype, for functions of one number in up to 32 bits; else none.
fn exhaustive(op: &OpDesc, dtype: DType) -> Result<Vec<Case>> {
    let one_to_one = op.dims == ["n"]
        && matches!(op.operands, [x, y] if x.role == Role::In && y.role == Role::Out)
        && op.unit == crate::op::Unit::Elements;
    if !one_to_one || !dtype.is_float() || dtype.size() > 4 {
        return Ok(Vec::new());
    }
    let patterns = 1u64 << (8 * dtype.size());
    let n = patterns.min(PART);
    let with = |attrs: Attrs| {
        (0..patterns / n).map(move |part| op.case(dtype, &[n], attrs.clone(), crate::base::Fill::Bits(part as u32)))
    };
    attributes(op, dtype)?.into_iter().flat_map(with).collect()
}

/// The attributes of an op's own cases, each once: every target of a cast, every exponent of a power.
fn attributes(op: &OpDesc, dtype: DType) -> Result<Vec<Attrs>> {
    let mut all = vec![Attrs::new()];
    for spec in op.specs(Tier::Full, dtype) {
        // Without those that say what holds anyway.
        let attrs = op.case(dtype, &spec.dims, spec.attrs, spec.fill)?.attrs;
        if !all.contains(&attrs) {
            all.push(attrs);
        }
    }
    Ok(all)
}

/// One line per record: `FAIL softmax/f32/m7,n33/-/uniform opencl:0 row  max err 3.1e-4 > 2.4e-7 at [6,32] (got 0.021,
/// want 0.0207); 1 of 231 elements beyond their bound  rerun: gpuctl verify ...`.
pub fn line(r: &VerifyRecord) -> String {
    let s = &r.subject;
    let word = match s.status {
        Status::Ok => "ok",
        Status::Failed => "FAIL",
        other => other.name(),
    };
    let variant = if s.variant.is_empty() { "-" } else { &s.variant };
    let mut out = format!("{word} {} {} {variant}  ", r.case, s.device);
    let (got, want) = (r.worst_got.as_deref().unwrap_or("-"), r.worst_want.as_deref().unwrap_or("-"));
    let place = at_text(&r.worst_at);
    match (s.status, r.worst_error) {
        (Status::Failed, error) if r.wrong > 0 => {
            match (error, r.worst_bound) {
                (Some(e), Some(b)) if e > b => out.push_str(&format!("max err {e:.2e} > {b:.2e} at {place}")),
                _ => out.push_str(&format!("wrong at {place}")),
            }
            out.push_str(&format!(" (got {got}, want {want}); {}", s.reason));
        }
        (Status::Ok, Some(e)) => {
            let bound = r.worst_bound.map_or("-".to_string(), |b| format!("{b:.2e}"));
            out.push_str(&format!("max err {e:.2e} of {bound} at {place}, {:.2} ulp", r.max_ulp));
        }
        (Status::Ok, None) if r.compared > 0 => out.push_str("every bit matches"),
        _ => out.push_str(&s.reason),
    }
    if s.status == Status::Ok {
        out.push_str(match r.strict_met {
            Some(true) => "; strict line met",
            Some(false) => "; strict line not met",
            None => "",
        });
        if !s.flags.is_empty() {
            out.push_str(&format!("; {}", s.flags.join(", ")));
        }
    }
    if s.status == Status::Failed {
        out.push_str(&format!("  rerun: {}", r.rerun));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_left_follows_the_rate() {
        let left = |done, cases, seconds| time_left(done, cases, Duration::from_secs(seconds));
        assert!(left(8, 4096, 40).starts_with("8 of 4096 cases done, about 6 h left"), "{}", left(8, 4096, 40));
        assert!(left(8, 65_536, 80).contains("about 8 days left"));
        assert!(left(10, 20, 10).contains("about 10 s left") && left(1, 11, 60).contains("about 10 min left"));
        assert!(left(5, 5, 100).contains("about 0 s left"));
    }
}
