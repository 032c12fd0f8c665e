//! One device under judgement: runs a case twice, compares with the oracle, fills the record.

use std::collections::HashMap;
use std::sync::Arc;

use crate::base::record::{Status, Subject, VerifyRecord};
use crate::base::{Case, Class, Code, Error, HostTensor, Lang, Result, Told};
use crate::device::probe::Rig;
use crate::device::{DEADLINE, Device};
use crate::engine::{Guard, Prepared, Runner};
use crate::kernel::{self, Choice, Kernel};
use crate::op::tolerance::Bound;
use crate::op::{OpDesc, Role};

use super::big;
use super::compare::{self, Comparison, at_text};
use super::config::{Detector, VerifyConfig};
use super::done::done_key;
use super::oracle::Oracle;
use super::own_bound::{self, Judge};
use super::save;

/// Patterns of the two runs; the second is a large positive number in every float and integer.
pub(super) const POISON: [u8; 2] = [0xFF, 0x5A];

/// The reason of a case that ran and proved nothing.
const OPEN: &str = "it ran, and its bound leaves every result open";

/// What a case's results are held against, the same for every device.
pub(super) struct Answered {
    pub(super) oracle: Oracle,
    /// The CPU's own results, if there is another device.
    pub(super) on_cpu: Option<Vec<HostTensor>>,
}

/// A device, with what verifying keeps about it.
pub(super) struct Station {
    runner: Runner,
    pub(super) is_cpu: bool,
    /// Elements judged.
    pub(super) compared: u64,
    /// Cases that were done before.
    pub(super) resumed: u64,
    /// Set when the device is lost: nothing more is tried on it.
    lost: Option<String>,
    /// Kernels with a mutant's text, by the address of the one that they replace.
    mutated: HashMap<usize, &'static Kernel>,
    /// Both runs of the case judged last, if failing cases are saved.
    runs: Option<[Vec<HostTensor>; 2]>,
}

/// How a run ended before there was something to judge.
struct Stop(Status, String, Option<Box<Told>>);

impl Stop {
    fn new(status: Status, why: String) -> Self {
        Stop(status, why, None)
    }
}

impl From<Error> for Stop {
    fn from(e: Error) -> Self {
        let status = match e.class() {
            Class::Unsupported => Status::Unsupported,
            // Not enough memory says nothing about the kernel.
            Class::Oom => Status::Skipped,
            _ => Status::Failed,
        };
        Stop(status, e.to_string(), Some(Box::new((&e).into())))
    }
}

impl Station {
    pub(super) fn new(cfg: &VerifyConfig, rig: &Rig, device: &Arc<dyn Device>) -> Self {
        let runner = Runner::new(Arc::clone(device)).keeping(cfg.kernels.read_only());
        Station {
            runner: if cfg.watch { runner.watching() } else { runner },
            is_cpu: device.serial() == rig.cpu.serial(),
            compared: 0,
            resumed: 0,
            lost: None,
            mutated: HashMap::new(),
            runs: None,
        }
    }

    pub(super) fn id(&self) -> String {
        self.runner.device().info().id.clone()
    }

    /// Whether the case of this name is done on this device.
    pub(super) fn has_done(&self, cfg: &VerifyConfig, case: &str) -> bool {
        !cfg.done.is_empty() && cfg.done.contains(&done_key(cfg, case, self.runner.device().info()))
    }

    /// The records of one case: one per variant; none if it is done.
    pub(super) fn records(
        &mut self,
        cfg: &VerifyConfig,
        op: &'static OpDesc,
        case: &Case,
        answer: &Result<Answered, String>,
    ) -> Vec<VerifyRecord> {
        let mut records = Vec::new();
        if self.has_done(cfg, &case.to_string()) {
            self.resumed += 1;
            return records;
        }
        for variant in self.variants(cfg, op) {
            let mut r = self.blank(cfg, op, case, variant.as_deref());
            let outcome = match (answer, &self.lost) {
                (_, Some(why)) => Err(Stop::new(Status::Skipped, format!("the device was lost: {why}"))),
                (Err(why), None) => {
                    // What the device's API does not hold is no skip.
                    let choice = self.choose(op, case, variant.as_deref());
                    choice.and_then(|_| Err(Stop::new(Status::Skipped, why.clone())))
                }
                (Ok(answered), None) => self.judge(cfg, op, case, variant.as_deref(), answered, &mut r),
            };
            if let Err(Stop(mut status, mut reason, error)) = outcome {
                if cfg.require_big && big::is(op, case) && status != Status::Failed {
                    status = Status::Failed;
                    reason = format!("did not run, and --require big asks for it: {reason}");
                }
                r.subject.status = status;
                r.subject.reason = reason;
                r.subject.error = error;
            }
            // What is wrong may be what was kept: the next try builds the text.
            if r.subject.status == Status::Failed && cfg.mutant.is_none() {
                let _ = self.runner.distrust(op, case, variant.as_deref());
            }
            let runs = self.runs.take();
            if let (Some(dir), Status::Failed, Ok(a)) = (&cfg.save_failing, r.subject.status, answer) {
                let saved = save::save(dir, op, &r, &a.oracle, runs.as_ref());
                r.subject.reason.push_str(&match saved {
                    Ok(folder) => format!("; arrays in {}", folder.display()),
                    Err(e) => format!("; not saved: {e}"),
                });
            }
            self.compared += r.compared - r.undefined;
            records.push(r);
        }
        records
    }

    /// Variants to run on a device: the chosen one (`None`), the named one, or all.
    fn variants(&self, cfg: &VerifyConfig, op: &OpDesc) -> Vec<Option<String>> {
        if !cfg.all_variants || cfg.variant.is_some() {
            return vec![cfg.variant.clone()];
        }
        let info = self.runner.device().info();
        let fits = |k: &&Kernel| kernel::lang_for(&k.body, info).is_some();
        let all: Vec<_> = op.kernels.iter().filter(fits).map(|k| Some(k.variant.to_string())).collect();
        if all.is_empty() { vec![None] } else { all }
    }

    fn blank(&self, cfg: &VerifyConfig, op: &OpDesc, case: &Case, variant: Option<&str>) -> VerifyRecord {
        let info = self.runner.device().info();
        let work = u64::try_from((op.work)(case)).unwrap_or(u64::MAX);
        let mut rerun = format!("gpuctl verify --case '{case}' --device {}", info.id);
        if let Some(v) = variant {
            rerun.push_str(&format!(" --variant {v}"));
        }
        if let Some(own) = cfg.own {
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

    fn choose(&self, op: &'static OpDesc, case: &Case, variant: Option<&str>) -> Result<Choice, Stop> {
        let info = self.runner.device().info();
        kernel::choose(op.kernels, case, info, variant).map_err(|e| match e.code() {
            // The op has the variant, but not in a language of this device.
            Code::BadArgument => Stop::new(Status::Unsupported, e.to_string()),
            _ => Stop::from(e),
        })
    }

    /// Runs one case with one variant on one device and fills its record.
    fn judge(
        &mut self,
        cfg: &VerifyConfig,
        op: &'static OpDesc,
        case: &Case,
        variant: Option<&str>,
        answered: &Answered,
        r: &mut VerifyRecord,
    ) -> Result<(), Stop> {
        let choice = self.choose(op, case, variant)?;
        r.subject.ran_variant(choice.kernel.variant, self.runner.device().info());
        if let Some(why) = big::lacks(op, case, self.runner.device().info()) {
            return Err(Stop::new(Status::Skipped, why));
        }
        let bounds = bounds(op, case, choice.lang)?;
        r.tolerance = bounds.iter().map(|b| b.words.as_str()).collect::<Vec<_>>().join(" | ");
        let own = cfg.own;
        if let Some(own) = own {
            r.tolerance = format!("{} (instead of: {})", own.words(), r.tolerance);
        }
        let choice = self.mutate(cfg, choice);
        let oracle = &answered.oracle;
        let prepared = self.runner.prepare_choice(op, case, choice, Guard::WIDE)?;
        let off = cfg.off;
        let (runs, overrun) = twice(&self.runner, &prepared, &oracle.inputs).inspect_err(|e| {
            if matches!(e.class(), Class::Lost | Class::Sticky) {
                self.lost = Some(e.to_string());
            }
        })?;
        r.subject.ran_on = self.id();
        r.subject.reason = prepared.reason.clone();
        let flushed = if prepared.lang == Lang::Wgsl { oracle.flushed(op, case) } else { None };
        r.max_vs_cpu = (answered.on_cpu.as_deref())
            .filter(|_| !self.is_cpu)
            .and_then(|cpu| runs[0].iter().zip(cpu).filter_map(|(a, b)| compare::distance(a, b)).reduce(f64::max));
        let outputs: Vec<_> = op.operands.iter().filter(|o| o.role != Role::In).collect();
        if oracle.answers.len() != outputs.len() || runs[0].len() != outputs.len() {
            return Err(Stop::new(Status::Failed, format!("the oracle has {} outputs", oracle.answers.len())));
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
            // What an overflow of an intermediate result, or WGSL's rule for infinities, leaves open.
            let flag = if prepared.lang == Lang::Wgsl { "undefined-in-wgsl" } else { "open-by-overflow" };
            r.subject.flags.push(flag.into());
        }
        r.subject.status = if complaints.is_empty() { Status::Ok } else { Status::Failed };
        if !complaints.is_empty() {
            r.subject.reason = complaints.join("; ");
        } else if r.compared > 0 && r.undefined == r.compared {
            // A kernel that writes anything at all would pass.
            r.subject.status = Status::Skipped;
            r.strict_met = None;
            r.subject.reason = format!("{OPEN}: {}", r.tolerance);
        } else if r.compared == 0 {
            r.subject.reason = "empty output: it ran, there was nothing to compare".into();
        }
        self.runs = cfg.save_failing.is_some().then_some(runs);
        Ok(())
    }

    /// The same choice with the mutant's text, if the kernel has the text that it replaces.
    fn mutate(&mut self, cfg: &VerifyConfig, choice: Choice) -> Choice {
        let Some(m) = cfg.mutant else { return choice };
        if choice.kernel.body.text() != Some(m.replaces) {
            return choice;
        }
        let body = choice.kernel.body.with_text(m.with);
        // Leaked once per kernel and run: only tests of the judge come here.
        let key = std::ptr::from_ref(choice.kernel).addr();
        let original = choice.kernel;
        let kernel = *self.mutated.entry(key).or_insert_with(|| Box::leak(Box::new(Kernel { body, ..*original })));
        Choice { kernel, ..choice }
    }
}

/// The bounds of all outputs, or that there is none.
fn bounds(op: &OpDesc, case: &Case, lang: Lang) -> Result<Vec<Bound>, Stop> {
    let none = || {
        Stop::new(Status::Unsupported, format!("no published limit for {} in {lang:?} with {}", op.name, case.dtype))
    };
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
pub(super) fn plain(
    runner: &Runner,
    op: &'static OpDesc,
    case: &Case,
    inputs: &[HostTensor],
) -> Result<Vec<HostTensor>> {
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
