//! Whether the kernels' results are right: every case of the op table, on every device, against the exact oracle.
//!
//! The CPU's kernels are judged like any other. A case passes only if every element of every output keeps its bound
//! ([`Tolerance`](crate::op::Tolerance)), nothing was written beside the outputs, and no element was left out: outputs
//! are poisoned with a different pattern in each of two runs. The two runs are also compared bit by bit.

mod compare;
mod config;
mod faults;
mod oracle;
mod own_bound;
mod save;
mod self_test;

use std::collections::HashMap;
use std::sync::Arc;

use rayon::prelude::*;

use crate::base::record::{Record, Status, Subject, VerifyRecord};
use crate::base::sink::{Cancel, Progress, Sink};
use crate::base::{Case, Class, Code, DType, Error, HostTensor, Lang, Result};
use crate::device::probe::Rig;
use crate::device::{DEADLINE, cpu};
use crate::engine::{Guard, Prepared, Runner};
use crate::kernel::{self, Body, Choice, Kernel};
use crate::op::tolerance::Bound;
use crate::op::{OpDesc, Role, Tier};

use compare::{Comparison, at_text};
use oracle::Oracle;
use own_bound::Judge;

pub use config::{Detector, Mutant, VerifyConfig, VerifySummary, done_key};
pub use own_bound::OwnBound;
pub use self_test::{SelfTestSummary, line as self_test_line, self_test};

/// Patterns of the two runs; the second is a large positive number in every float and integer.
const POISON: [u8; 2] = [0xFF, 0x5A];

/// Verifies all cases on all devices of the rig and hands out the records as they come.
///
/// Errors concern the request (a case that its op does not have); what goes wrong on a device is a record.
pub fn run(cfg: &VerifyConfig, rig: &Rig, sink: &mut dyn Sink, cancel: &Cancel) -> Result<VerifySummary> {
    let cases = cases(cfg)?;
    let mut session = Session::new(cfg, rig)?;
    let mut summary = VerifySummary::default();
    let threads = cpu::available_threads();
    // A pool of the oracle's own: never rayon's global one, which belongs to the program that uses the library.
    let pool = rayon::ThreadPoolBuilder::new()
        .num_threads(threads)
        .thread_name(|i| format!("gpuctl-oracle-{i}"))
        .build()
        .map_err(|e| Error::new(Code::Internal, "no threads for the oracle").caused_by(e))?;
    let mut done = 0;
    let uids: Vec<String> = rig.devices.iter().map(|d| d.info().uid.clone()).collect();
    let done_before = |case: &Case| {
        let name = case.to_string();
        uids.iter().all(|uid| cfg.done.contains(&done_key(&name, uid)))
    };
    let total = cases.len() as u64;
    let cases: Vec<_> = match cfg.done.is_empty() {
        true => cases,
        false => cases.into_iter().filter(|(_, c)| !done_before(c)).collect(),
    };
    summary.resumed = (total - cases.len() as u64) * uids.len() as u64;
    'all: for batch in cases.chunks(4 * threads) {
        let ask = |(op, case): &(&'static OpDesc, Case)| match oracle::too_long(op, case) {
            Some(why) => Ok(Err(why)),
            None => oracle::ask(op, case).map(Ok),
        };
        let oracles: Vec<_> = pool.install(|| batch.par_iter().map(ask).collect());
        for ((op, case), answer) in batch.iter().zip(oracles) {
            if cancel.raised() {
                summary.cancelled = true;
                break 'all;
            }
            sink.progress(&Progress { doing: case.to_string(), done, total: Some(cases.len() as u64) });
            done += 1;
            for record in session.case(op, case, answer?) {
                summary.count(&record);
                sink.record(&Record::Verify(Box::new(record)));
            }
        }
    }
    summary.idle = session.devices.iter().filter(|d| d.compared == 0).map(|d| d.id()).collect();
    Ok(summary)
}

impl VerifySummary {
    fn count(&mut self, r: &VerifyRecord) {
        self.compared += r.compared;
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

/// All cases of a request, in the table's order.
pub fn cases(cfg: &VerifyConfig) -> Result<Vec<(&'static OpDesc, Case)>> {
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
    (0..patterns / n)
        .map(|part| op.case(dtype, &[n], crate::base::Attrs::new(), crate::base::Fill::Bits(part as u32)))
        .collect()
}

struct Station {
    runner: Runner,
    is_cpu: bool,
    compared: u64,
    /// Set when the device is lost: nothing more is tried on it.
    lost: Option<String>,
}

impl Station {
    fn id(&self) -> String {
        self.runner.device().info().id.clone()
    }
}

struct Session<'a> {
    cfg: &'a VerifyConfig,
    cpu: Runner,
    devices: Vec<Station>,
    /// Kernels with a mutant's text, by the address of the one that they replace.
    mutated: HashMap<usize, &'static Kernel>,
    /// Both runs of the case judged last, if failing cases are saved.
    runs: Option<[Vec<HostTensor>; 2]>,
}

/// How a run ended before there was something to judge.
struct Stop(Status, String);

impl From<Error> for Stop {
    fn from(e: Error) -> Self {
        let status = match e.class() {
            Class::Unsupported => Status::Unsupported,
            // Not enough memory says nothing about the kernel.
            Class::Oom => Status::Skipped,
            _ => Status::Failed,
        };
        Stop(status, e.to_string())
    }
}

impl<'a> Session<'a> {
    fn new(cfg: &'a VerifyConfig, rig: &Rig) -> Result<Self> {
        if let Some(name) = &cfg.variant {
            let known = |op: &&'static OpDesc| op.kernels.iter().any(|k| k.variant == name);
            let of_case = cfg.case.as_ref().map(|c| crate::op::find(c.op)).transpose()?;
            if !cfg.ops.iter().chain(of_case.iter()).any(known) {
                return Err(Error::new(Code::BadArgument, format!("no kernel variant '{name}' among the chosen ops")));
            }
        }
        let station = |d: &Arc<dyn crate::device::Device>| Station {
            runner: match cfg.watch {
                true => Runner::new(Arc::clone(d)).watching(),
                false => Runner::new(Arc::clone(d)),
            },
            is_cpu: d.serial() == rig.cpu.serial(),
            compared: 0,
            lost: None,
        };
        Ok(Session {
            cfg,
            cpu: Runner::new(Arc::clone(&rig.cpu)),
            devices: rig.devices.iter().map(station).collect(),
            mutated: HashMap::new(),
            runs: None,
        })
    }

    /// All records of one case.
    fn case(&mut self, op: &'static OpDesc, case: &Case, answer: Result<Oracle, String>) -> Vec<VerifyRecord> {
        let mut records = Vec::new();
        let other = self.devices.iter().any(|d| !d.is_cpu);
        let on_cpu = answer.as_ref().ok().filter(|_| other).and_then(|o| plain(&self.cpu, op, case, &o.inputs).ok());
        for at in 0..self.devices.len() {
            for variant in self.variants(at, op) {
                let mut r = self.blank(at, op, case, variant.as_deref());
                let outcome = match (&answer, &self.devices[at].lost) {
                    (_, Some(why)) => Err(Stop(Status::Skipped, format!("the device was lost: {why}"))),
                    (Err(why), _) => Err(Stop(Status::Skipped, why.clone())),
                    (Ok(oracle), None) => {
                        self.judge(at, op, case, variant.as_deref(), oracle, on_cpu.as_deref(), &mut r)
                    }
                };
                if let Err(Stop(status, reason)) = outcome {
                    r.subject.status = status;
                    r.subject.reason = reason;
                }
                let runs = self.runs.take();
                if let (Some(dir), Status::Failed, Ok(oracle)) = (&self.cfg.save_failing, r.subject.status, &answer) {
                    let saved = save::save(dir, op, &r, oracle, runs.as_ref());
                    r.subject.reason.push_str(&match saved {
                        Ok(folder) => format!("; arrays in {}", folder.display()),
                        Err(e) => format!("; not saved: {e}"),
                    });
                }
                self.devices[at].compared += r.compared;
                records.push(r);
            }
        }
        records
    }

    /// Variants to run on a device: the chosen one (`None`), the named one, or all.
    fn variants(&self, at: usize, op: &OpDesc) -> Vec<Option<String>> {
        if !self.cfg.all_variants || self.cfg.variant.is_some() {
            return vec![self.cfg.variant.clone()];
        }
        let info = self.devices[at].runner.device().info();
        let fits = |k: &&Kernel| kernel::lang_for(&k.body, info).is_some();
        let all: Vec<_> = op.kernels.iter().filter(fits).map(|k| Some(k.variant.to_string())).collect();
        if all.is_empty() { vec![None] } else { all }
    }

    fn blank(&self, at: usize, op: &OpDesc, case: &Case, variant: Option<&str>) -> VerifyRecord {
        let info = self.devices[at].runner.device().info();
        let work = u64::try_from((op.work)(case)).unwrap_or(u64::MAX);
        let mut rerun = format!("gpuctl verify --case '{case}' --device {}", info.id);
        if let Some(v) = variant {
            rerun.push_str(&format!(" --variant {v}"));
        }
        if let Some(own) = self.cfg.own {
            rerun.push_str(&format!(" {}", own.options()));
        }
        let mut subject = Subject::of(case, work, op.unit.name(), info);
        subject.variant = variant.unwrap_or_default().to_string();
        VerifyRecord {
            subject,
            case: case.to_string(),
            max_ulp: 0.0,
            max_rel: 0.0,
            max_abs: 0.0,
            max_vs_cpu: None,
            worst_index: None,
            worst_at: Vec::new(),
            worst_got: None,
            worst_want: None,
            worst_error: None,
            worst_bound: None,
            compared: 0,
            wrong: 0,
            detectors: Vec::new(),
            undefined: 0,
            tolerance: String::new(),
            strict_met: None,
            rerun,
        }
    }

    /// Runs one case with one variant on one device and fills its record.
    #[allow(clippy::too_many_arguments, reason = "what is judged, with what, against what, into what")]
    fn judge(
        &mut self,
        at: usize,
        op: &'static OpDesc,
        case: &Case,
        variant: Option<&str>,
        oracle: &Oracle,
        on_cpu: Option<&[HostTensor]>,
        r: &mut VerifyRecord,
    ) -> Result<(), Stop> {
        let info = self.devices[at].runner.device().info();
        let choice = kernel::choose(op.kernels, case, info, variant).map_err(|e| match e.code() {
            // The op has the variant, but not in a language of this device.
            Code::BadArgument => Stop(Status::Unsupported, e.to_string()),
            _ => Stop::from(e),
        })?;
        r.subject.variant = choice.kernel.variant.to_string();
        let bounds = bounds(op, case, choice.lang)?;
        r.tolerance = bounds.iter().map(|b| b.words.as_str()).collect::<Vec<_>>().join(" | ");
        let own = self.cfg.own;
        if let Some(own) = own {
            r.tolerance = format!("{} (instead of: {})", own.words(), r.tolerance);
        }
        let choice = self.mutate(choice);
        let station = &mut self.devices[at];
        let prepared = station.runner.prepare_choice(op, case, choice, Guard::WIDE)?;
        let off = self.cfg.off;
        let (runs, overrun) = twice(&station.runner, &prepared, &oracle.inputs).inspect_err(|e| {
            if matches!(e.class(), Class::Lost | Class::Sticky) {
                station.lost = Some(e.to_string());
            }
        })?;
        r.subject.ran_on = station.id();
        r.subject.reason = prepared.reason.clone();
        let flushed = if prepared.lang == Lang::Wgsl { oracle.flushed(op, case) } else { None };
        r.max_vs_cpu = on_cpu
            .filter(|_| !station.is_cpu)
            .and_then(|cpu| runs[0].iter().zip(cpu).filter_map(|(a, b)| compare::distance(a, b)).reduce(f64::max));
        let outputs: Vec<_> = op.operands.iter().filter(|o| o.role != Role::In).collect();
        if oracle.answers.len() != outputs.len() || runs[0].len() != outputs.len() {
            return Err(Stop(Status::Failed, format!("the oracle has {} outputs", oracle.answers.len())));
        }
        let mut complaints = Vec::new();
        let mut fired: Vec<Detector> = Vec::new();
        let mut strict = Some(true);
        if let Some(why) = overrun.filter(|_| off != Some(Detector::Guards)) {
            complaints.push(why);
            fired.push(Detector::Guards);
        }
        for (i, operand) in outputs.iter().enumerate() {
            let prefix = if outputs.len() > 1 { format!("{}: ", operand.name) } else { String::new() };
            let (first, second) = (&runs[0][i], &runs[1][i]);
            let alternative = flushed.and_then(|f| f.get(i));
            let judged =
                |got| compare::compare(&Judge { bound: &bounds[i], own }, got, &oracle.answers[i], alternative, off);
            let mut c = judged(first)?;
            if operand.role == Role::Out {
                let (count, index) = compare::unwritten((first, POISON[0]), (second, POISON[1]));
                if count > 0 && off != Some(Detector::Unwritten) {
                    fired.push(Detector::Unwritten);
                    let place = at_text(&compare::coordinates(&first.shape, index));
                    complaints.push(format!("{prefix}{count} elements were never written, the first at {place}"));
                }
            }
            if first.bytes() != second.bytes() {
                if !r.subject.flags.iter().any(|f| f == "nondeterministic") {
                    r.subject.flags.push("nondeterministic".into());
                }
                let again = judged(second)?;
                if again.wrong > c.wrong && off != Some(Detector::Repeat) {
                    if c.wrong == 0 {
                        fired.push(Detector::Repeat);
                    }
                    c = again;
                }
            }
            if c.wrong > 0 {
                complaints.push(format!("{prefix}{}", c.pattern(&first.shape)));
                fired.extend(&c.fired);
            }
            strict = match (strict, bounds[i].strict()) {
                (Some(s), Some(limit)) => Some(s && c.wrong == 0 && c.max_scaled < limit),
                _ => None,
            };
            if c.beyond > 0 && !r.subject.flags.iter().any(|f| f == own_bound::BEYOND) {
                r.subject.flags.push(own_bound::BEYOND.into());
            }
            if c.compared < c.total {
                r.subject.flags.push(format!("sampled-{}-of-{}", c.compared, c.total));
            }
            merge(r, &c);
        }
        if let Some(whole) = op.whole
            && off != Some(Detector::Whole)
            && let Some(why) = whole(case, &oracle.inputs, &runs[0], &bounds)
        {
            fired.push(Detector::Whole);
            // A sample alone could miss what this check found, so it fails whatever bound was asked for.
            complaints.push(if own.is_some() { format!("by the derived bound: {why}") } else { why });
            r.wrong = r.wrong.max(1);
        }
        fired.sort_unstable();
        fired.dedup();
        r.detectors = fired.iter().map(|d| d.name().to_string()).collect();
        r.strict_met = strict;
        if r.undefined > 0 {
            r.subject.flags.push("undefined-in-wgsl".into());
        }
        r.subject.status = if complaints.is_empty() { Status::Ok } else { Status::Failed };
        if !complaints.is_empty() {
            r.subject.reason = complaints.join("; ");
        } else if r.compared == 0 {
            r.subject.reason = "empty output: it ran, there was nothing to compare".into();
        }
        self.runs = self.cfg.save_failing.is_some().then_some(runs);
        Ok(())
    }

    /// The same choice with the mutant's text, if the kernel has the text that it replaces.
    fn mutate(&mut self, choice: Choice) -> Choice {
        let Some(m) = self.cfg.mutant else { return choice };
        let body = match choice.kernel.body {
            Body::C(t) if t == m.replaces => Body::C(m.with),
            Body::Cuda(t) if t == m.replaces => Body::Cuda(m.with),
            Body::Wgsl(t) if t == m.replaces => Body::Wgsl(m.with),
            _ => return choice,
        };
        // Leaked once per kernel and run: only tests of the judge come here.
        let key = std::ptr::from_ref(choice.kernel).addr();
        let original = choice.kernel;
        let kernel = *self.mutated.entry(key).or_insert_with(|| Box::leak(Box::new(Kernel { body, ..*original })));
        Choice { kernel, ..choice }
    }
}

/// The bounds of all outputs, or that there is none.
fn bounds(op: &OpDesc, case: &Case, lang: Lang) -> Result<Vec<Bound>, Stop> {
    let none =
        || Stop(Status::Unsupported, format!("no published limit for {} in {lang:?} with {}", op.name, case.dtype));
    op.bounds(case, lang).ok_or_else(none)
}

/// Two calls with outputs poisoned differently, and what was written around the operands in either.
fn twice(
    runner: &Runner,
    prepared: &Prepared,
    inputs: &[HostTensor],
) -> Result<([Vec<HostTensor>; 2], Option<String>)> {
    let mut lease = runner.lease()?;
    let mut overrun = None;
    let mut once = |poison: u8| {
        let q = lease.queue()?;
        prepared.poison_with(q, poison)?;
        let out = prepared.call(q, inputs, DEADLINE)?;
        match prepared.check_guards(q) {
            Err(e) if e.code() == Code::ResultWrong => overrun = Some(e.to_string()),
            other => other?,
        }
        Ok(out)
    };
    let result = once(POISON[0]).and_then(|first| Ok([first, once(POISON[1])?]));
    if result.is_err() {
        lease.discard();
    }
    Ok((result?, overrun))
}

/// One plain call, for the comparison with the CPU.
fn plain(runner: &Runner, op: &'static OpDesc, case: &Case, inputs: &[HostTensor]) -> Result<Vec<HostTensor>> {
    let prepared = runner.prepare(op, case, None)?;
    let mut lease = runner.lease()?;
    prepared.call(lease.queue()?, inputs, DEADLINE)
}

fn merge(r: &mut VerifyRecord, c: &Comparison) {
    r.compared += c.compared;
    r.undefined += c.undefined;
    r.max_ulp = r.max_ulp.max(c.max_ulp);
    r.max_rel = r.max_rel.max(c.max_rel);
    r.max_abs = r.max_abs.max(c.max_abs);
    // The worst element of the first output that has a wrong one, else of the first with any error.
    if let Some(w) = &c.worst
        && (r.worst_index.is_none() || r.wrong == 0 && c.wrong > 0)
    {
        r.worst_index = Some(w.index);
        r.worst_at = w.at.clone();
        r.worst_got = Some(w.got.clone());
        r.worst_want = Some(w.want.clone());
        r.worst_error = w.error;
        r.worst_bound = Some(w.bound).filter(|b| b.is_finite());
    }
    r.wrong += c.wrong;
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
