//! The judge judged: plants faults that real libraries had and asks for each whether its detector finds it.
//!
//! Most faults are planted into the CPU's results on their way back, so that they can be had on every machine; others are
//! one changed place in a kernel's text and need a device that takes it. Each case must pass without the fault first. A few
//! deviations are legal (another order of summation): those must pass, by the rule that is named.

use std::collections::HashMap;
use std::sync::Arc;

use crate::base::record::{Record, SelfTestRecord, VerifyRecord};
use crate::base::sink::{Cancel, Collect, Progress, Sink};
use crate::base::{Case, Code, Error, HostTensor, Lang, Result};
use crate::device::Device;
use crate::device::probe::Rig;
use crate::device::spoilt::Spoilt;
use crate::engine::Guard;
use crate::kernel;
use crate::op::{self, case};

use super::faults;
use super::{Detector, Mutant, VerifyConfig};

/// A fault and what must become of it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Planted {
    /// Name in the output.
    pub(super) name: &'static str,
    /// The case that meets it.
    pub(super) case: &'static str,
    /// What must happen.
    pub(super) expect: Expect,
    /// How it is planted.
    pub(super) fault: Fault,
}

/// What must become of a fault.
#[derive(Clone, Copy, Debug)]
pub(super) enum Expect {
    /// This rule finds it.
    Caught(Detector),
    /// It is legal: the reason.
    Allowed(&'static str),
}

/// How a fault is planted.
#[derive(Clone, Copy)]
pub(super) enum Fault {
    /// The CPU's results are changed by what this makes of the case's inputs; the second argument of the change counts the
    /// results read so far.
    Results(fn(&Case, &[HostTensor]) -> Change),
    /// Four bytes are written so far behind the end (or, negative, in front of the beginning) of the last operand.
    Around(i64),
    /// In the kernel's text for this language the first place that reads `from` reads `to`. `race`: it shows every time
    /// only where work-items of a group take turns, on software devices.
    Text { lang: Lang, from: &'static str, to: &'static str, race: bool },
}

/// A change of a result.
pub(super) type Change = Box<dyn Fn(&mut [u8], u64) + Send + Sync>;

impl std::fmt::Debug for Fault {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Fault::Results(_) => "Results",
            Fault::Around(_) => "Around",
            Fault::Text { .. } => "Text",
        })
    }
}

/// What came of all faults.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SelfTestSummary {
    /// Found by the rule that exists for them.
    pub caught: u64,
    /// Legal deviations that passed.
    pub allowed: u64,
    /// Not found, found by another rule only, refused although legal, or the case failed without the fault.
    pub wrong: u64,
    /// For which there was no device.
    pub not_run: u64,
    /// True if the run was interrupted.
    pub cancelled: bool,
}

impl SelfTestSummary {
    /// 1: a fault is not accounted for; 4: some did not run; else 0.
    pub fn exit_code(&self) -> u8 {
        match self {
            s if s.wrong > 0 => 1,
            s if s.not_run > 0 || s.cancelled || s.caught == 0 => 4,
            _ => 0,
        }
    }
}

/// Plants every fault on the rig's CPU or on the first of its devices that takes the text, and hands out one record each.
/// `off` is a rule that is not applied, for the test of this test; `only`: just the faults that this rule must find.
pub fn self_test(
    rig: &Rig,
    off: Option<Detector>,
    only: Option<Detector>,
    sink: &mut dyn Sink,
    cancel: &Cancel,
) -> Result<SelfTestSummary> {
    let mut summary = SelfTestSummary::default();
    let mut clean = HashMap::new();
    let wanted = |p: &&Planted| only.is_none_or(|d| matches!(p.expect, Expect::Caught(by) if by == d));
    for (done, planted) in faults::all().filter(wanted).enumerate() {
        if cancel.raised() {
            summary.cancelled = true;
            break;
        }
        sink.progress(&Progress {
            doing: planted.name.into(),
            done: done as u64,
            total: Some(faults::all().count() as u64),
        });
        let record = plant(rig, planted, off, &mut clean)?;
        match record.outcome.as_str() {
            "caught" => summary.caught += 1,
            "allowed" => summary.allowed += 1,
            "not-run" => summary.not_run += 1,
            _ => summary.wrong += 1,
        }
        sink.record(&Record::SelfTest(Box::new(record)));
    }
    Ok(summary)
}

/// One line of a record: `caught  one-ulp-f32  by bound on spoilt:0  add/f32/n257/-/uniform`.
pub fn line(r: &SelfTestRecord) -> String {
    let by = if r.detectors.is_empty() { String::new() } else { format!(" by {}", r.detectors.join(", ")) };
    let place = if r.device.is_empty() { String::new() } else { format!(" on {}", r.device) };
    let detail = if r.detail.is_empty() { String::new() } else { format!("  ({})", r.detail) };
    format!("{:<8} {:<34}{by}{place}  {}{detail}", r.outcome, r.fault, r.case)
}

fn plant(
    rig: &Rig,
    planted: &Planted,
    off: Option<Detector>,
    clean: &mut HashMap<(String, String), Option<String>>,
) -> Result<SelfTestRecord> {
    let c = case::parse(planted.case)?;
    let inputs = case::inputs(op::find(c.op)?, &c)?;
    let expected = match planted.expect {
        Expect::Caught(d) => d.name().to_string(),
        Expect::Allowed(_) => "allowed".into(),
    };
    let mut record = SelfTestRecord {
        fault: planted.name.into(),
        case: planted.case.into(),
        device: String::new(),
        expected,
        outcome: "not-run".into(),
        detectors: Vec::new(),
        detail: String::new(),
    };
    let mut cfg = VerifyConfig { case: Some(c.clone()), off, ..VerifyConfig::default() };
    let cpu = || Arc::clone(&rig.cpu);
    let head = Guard::WIDE.head;
    let (sound, spoilt): (Arc<dyn Device>, Arc<dyn Device>) = match planted.fault {
        Fault::Results(make) => {
            let change = make(&c, &inputs);
            (cpu(), Arc::new(Spoilt::new(cpu(), head, move |bytes, reads| change(bytes, reads))))
        }
        Fault::Around(distance) => {
            let op = op::find(c.op)?;
            let last = (op.shapes)(&c)?.len() - 1;
            let bytes: u64 = (op.shapes)(&c)?[last].iter().product::<u64>() * op.operand_dtype(last, &c).size();
            let at =
                if distance < 0 { head.checked_add_signed(distance) } else { Some(head + bytes + distance as u64) };
            let at = at.ok_or_else(|| Error::new(Code::Internal, "the fault lies in front of the buffer"))?;
            (cpu(), Arc::new(Spoilt::new(cpu(), head, |_, _| {}).overrun(at)))
        }
        Fault::Text { lang, from, to, race } => {
            let fits = |d: &&Arc<dyn Device>| d.info().takes(lang) && (!race || d.info().is_software());
            let Some(device) = rig.devices.iter().find(fits) else {
                let kind = if race { "software device" } else { "device" };
                record.detail = format!("no {kind} here takes {lang:?}");
                return Ok(record);
            };
            // The faults are in the texts as GPUs get them, and those show on a processor, too.
            let device: Arc<dyn Device> = match lang {
                Lang::OpenclC => Arc::new(Spoilt::as_gpu(Arc::clone(device))),
                _ => Arc::clone(device),
            };
            cfg.mutant = Some(mutant(&c, device.as_ref(), from, to)?);
            (Arc::clone(&device), device)
        }
    };
    record.device = spoilt.info().id.clone();
    let on = |device: Arc<dyn Device>, cfg: &VerifyConfig| -> Result<VerifyRecord> {
        let rig = Rig { devices: vec![device], cpu: cpu(), absent: Vec::new() };
        let mut sink = Collect::default();
        super::run(cfg, &rig, &mut sink, &Cancel::new())?;
        let found = sink.records.into_iter().find_map(|r| if let Record::Verify(v) = r { Some(*v) } else { None });
        found.ok_or_else(|| Error::new(Code::Internal, "verify gave no record"))
    };
    // Without the fault the case must pass, or its failure means nothing. Asked once per device and case.
    let key = (sound.info().id.clone(), planted.case.to_string());
    if !clean.contains_key(&key) {
        let r = on(sound, &VerifyConfig { mutant: None, off: None, ..cfg.clone() })?;
        let passed = r.subject.status == crate::base::record::Status::Ok && r.compared > 0;
        clean.insert(key.clone(), (!passed).then(|| super::line(&r)));
    }
    if let Some(Some(why)) = clean.get(&key) {
        record.outcome = "unsound".into();
        record.detail = format!("without the fault: {why}");
        return Ok(record);
    }
    let r = on(spoilt, &cfg)?;
    let failed = r.subject.status == crate::base::record::Status::Failed;
    record.detectors = r.detectors.clone();
    record.outcome = match planted.expect {
        Expect::Caught(d) if failed && r.detectors.iter().any(|n| n == d.name()) => "caught",
        Expect::Allowed(why) if !failed && r.compared > 0 => {
            record.detail = why.into();
            "allowed"
        }
        Expect::Allowed(_) => "refused",
        Expect::Caught(_) => "missed",
    }
    .into();
    if matches!(record.outcome.as_str(), "refused" | "missed") {
        record.detail = super::line(&r);
    }
    Ok(record)
}

/// The text of the kernel that the device would take, with one place changed.
fn mutant(c: &Case, device: &dyn Device, from: &str, to: &str) -> Result<Mutant> {
    let op = op::find(c.op)?;
    let choice = kernel::choose(op.kernels, c, device.info(), None)?;
    let Some(text) = choice.kernel.body.text() else {
        return Err(Error::new(Code::Internal, format!("{c}: the kernel has no text")));
    };
    if !text.contains(from) {
        return Err(Error::new(Code::Internal, format!("{c}: the kernel's text no longer has '{from}'")));
    }
    // Leaked once per fault: a kernel's text is static.
    Ok(Mutant { replaces: text, with: Box::leak(text.replacen(from, to, 1).into_boxed_str()) })
}
