//! `devices --trial`: whether a device compiles and computes right, by the smoke tier of `verify` in a process of its own, so
//! that a driver that crashes or hangs is an unfit device and not the end.
//!
//! Not here: where verdicts are kept (`engine::trials`), single kernels at their first use (`engine::judge`).

use std::collections::{BTreeSet, HashMap};
use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::mpsc::RecvTimeoutError;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::base::record::{Status, TrialRecord, VerifyRecord};
use crate::base::sink::{Cancel, Progress, Sink};
use crate::base::{Backend, Class, Code, DType, DeviceInfo, Env, Error, Fill, Record, Result, os};
use crate::device::cpu::Pin;
use crate::device::probe::{self, CpuConfig, Rig, Select};
use crate::device::sim;
use crate::engine::judge;
use crate::engine::trials::{self, Program, Trials, Verdict};
use crate::jobs::inventory::{self, GRACE, STEP};
use crate::jobs::verify::{self, VerifyConfig};
use crate::kernel;
use crate::op::{self, OpDesc, Tier, case};

/// A process that has said nothing for so long hangs: twice what a launch may take, for a driver's compiler has no deadline.
pub const SILENCE: Duration = Duration::from_secs(120);

/// What to try.
#[derive(Clone, Debug)]
pub struct TrialConfig {
    /// Ops, in order.
    pub ops: Vec<&'static OpDesc>,
    /// Dtypes; `None`: all of each op.
    pub dtypes: Option<Vec<DType>>,
}

impl TrialConfig {
    fn wants(&self, op: &OpDesc, dtype: DType) -> bool {
        self.ops.iter().any(|o| o.name == op.name) && self.dtypes.as_ref().is_none_or(|d| d.contains(&dtype))
    }
}

/// What the process that tries says, a line each.
#[derive(Debug, Serialize, Deserialize)]
enum Said {
    /// The device is open.
    Opened(Box<DeviceInfo>),
    /// From here on this op and dtype.
    Begun(String, DType),
    /// A case.
    Judged(Box<VerifyRecord>),
    /// It was not the device that kept it from going on.
    GaveUp(String),
    /// All of it.
    Ended,
}

/// Opens one device without asking other backends' drivers than its own.
///
/// Errors: `DeviceMissing`, and those of opening it.
pub fn open(backend: &str, name: &str, env: &Env) -> Result<Rig> {
    let cpu = CpuConfig { threads: 0, pin: Pin::Free };
    if name.starts_with("sim:") {
        return probe::open(&Select::Named(vec![name.into()]), env, cpu);
    }
    let backend = Backend::ALL
        .into_iter()
        .find(|b| b.name() == backend)
        .ok_or_else(|| Error::new(Code::BadArgument, format!("unknown backend '{backend}'")))?;
    let seen = probe::inventory_of(&[backend], env, cpu)?;
    let host = seen.found[0].open()?;
    let found = seen.found.iter().find(|f| f.info.uid == name);
    let found = found.ok_or_else(|| Error::new(Code::DeviceMissing, format!("no device '{name}'")))?;
    let device = if found.info.uid == host.info().uid { Arc::clone(&host) } else { found.open()? };
    Ok(Rig { devices: vec![device], cpu: host, absent: seen.absent })
}

/// The tried process's side: every smoke case op by op, then what was found wrong before; a line for each.
///
/// Errors: `Io` where nobody reads the lines.
pub fn worker(cfg: &TrialConfig, rig: &Rig, kept: &Trials, out: &mut dyn Write) -> Result<()> {
    let [device] = &rig.devices[..] else {
        return Err(Error::new(Code::BadArgument, format!("a trial is of one device, not of {}", rig.devices.len())));
    };
    let info = device.info().clone();
    let before = kept.wrong(&info);
    let idle = sim::timing_only(&info);
    let mut lines = Lines { out, failed: None, lost: false };
    lines.say(&Said::Opened(Box::new(info)));
    if idle {
        return lines.end();
    }
    let cancel = Cancel::new();
    for op in &cfg.ops {
        for dtype in op.dtypes.iter().copied().filter(|d| cfg.wants(op, *d)) {
            lines.say(&Said::Begun(op.name.into(), dtype));
            let one = VerifyConfig { ops: vec![op], dtypes: Some(vec![dtype]), ..VerifyConfig::default() };
            verify::run(&one, rig, &mut lines, &cancel)?;
            if lines.over() {
                return lines.end();
            }
        }
    }
    for fault in before {
        let Ok(case) = case::parse(&fault.case) else { continue };
        let Ok(op) = op::find(case.op) else { continue };
        if !cfg.wants(op, case.dtype) {
            continue;
        }
        lines.say(&Said::Begun(op.name.into(), case.dtype));
        let one =
            VerifyConfig { case: Some(case), variant: Some(fault.program.variant.clone()), ..VerifyConfig::default() };
        verify::run(&one, rig, &mut lines, &cancel)?;
        if lines.over() {
            break;
        }
    }
    lines.end()
}

/// The tried process's side where it cannot go on for a reason that says nothing of kernels: the device does not open, or this
/// program fails.
///
/// Errors: `Io` where nobody reads the line.
pub fn give_up(why: &Error, out: &mut dyn Write) -> Result<()> {
    let mut lines = Lines { out, failed: None, lost: false };
    lines.say(&Said::GaveUp(why.to_string()));
    lines.end()
}

/// Writes what is said as it comes.
struct Lines<'a> {
    out: &'a mut dyn Write,
    failed: Option<Error>,
    /// The device is of no use any more: each further case would only wait for its deadline.
    lost: bool,
}

impl Lines<'_> {
    fn say(&mut self, said: &Said) {
        let text = serde_json::to_string(said).map_err(|e| Error::new(Code::Internal, "a line").caused_by(e));
        // A line of its own, whatever a driver has written before.
        let written = text.and_then(|text| {
            let written = write!(self.out, "\n{text}\n").and_then(|()| self.out.flush());
            written.map_err(|e| Error::new(Code::Io, "nobody reads what the trial says").caused_by(e))
        });
        if let Err(e) = written {
            self.failed.get_or_insert(e);
        }
    }

    fn over(&self) -> bool {
        self.lost || self.failed.is_some()
    }

    fn end(mut self) -> Result<()> {
        self.say(&Said::Ended);
        self.failed.map_or(Ok(()), Err)
    }
}

impl Sink for Lines<'_> {
    fn record(&mut self, record: &Record) {
        if let Record::Verify(v) = record {
            self.lost |= v.subject.status == Status::Failed && is_loss(&v.subject.reason);
            self.say(&Said::Judged(v.clone()));
        }
    }
    fn progress(&mut self, _: &Progress) {}
    fn note(&mut self, _: &str) {}
}

/// True for an error, as text, after which the device is of no use to the process.
fn is_loss(text: &str) -> bool {
    let fatal = Code::ALL.iter().filter(|c| matches!(c.row().class, Class::Lost | Class::Sticky));
    fatal.into_iter().any(|c| text.starts_with(c.name()))
}

/// How to start the process that tries.
#[derive(Clone, Debug)]
pub struct Start {
    /// The program (gpuctl).
    pub program: PathBuf,
    /// Its arguments; [`worker`] is what they run.
    pub arguments: Vec<String>,
    /// After so long without a word it hangs; [`SILENCE`].
    pub silence: Duration,
}

/// What came of one device.
#[derive(Clone, Debug)]
pub struct Tried {
    /// For the document.
    pub record: TrialRecord,
    /// The device as the process saw it, else as it was listed.
    pub info: DeviceInfo,
    /// For [`Trials::note`].
    pub verdicts: Vec<(Program, Verdict)>,
}

/// How the process ended.
#[derive(Debug, PartialEq, Eq)]
enum End {
    Finished,
    /// How, and its last words.
    Died(String, String),
    /// Somebody else ended it: a person, or the system for want of memory. How.
    Stopped(String),
    Hung(Duration),
    Unasked(String),
    Cancelled,
}

/// Tries one device in a process of its own. `doubt` says why a process that ends before the device is open tells nothing of
/// this device: another driver that is loaded with its own may be the cause.
///
/// Errors: `Cancelled`.
pub fn run(
    info: &DeviceInfo,
    start: &Start,
    doubt: Option<&str>,
    sink: &mut dyn Sink,
    cancel: &Cancel,
) -> Result<Tried> {
    let mut course = Course::new(info);
    let end = listen(start, cancel, &mut |said| {
        if let Said::Begun(op, dtype) = &said {
            let doing = format!("{}: {op} {dtype}", info.id);
            sink.progress(&Progress { doing, done: course.passed + course.failed, total: None });
        }
        course.hear(said);
    });
    if end == End::Cancelled {
        return Err(Error::new(Code::Cancelled, format!("interrupted while {} was tried", info.id)));
    }
    Ok(course.tried(end, doubt))
}

/// What was heard so far.
struct Course {
    info: DeviceInfo,
    opened: bool,
    begun: Option<(String, DType)>,
    passed: u64,
    failed: u64,
    left_out: u64,
    ops: BTreeSet<String>,
    verdicts: HashMap<Program, Verdict>,
    /// Case, what was wrong, and the command that shows it again.
    first: Option<(Option<String>, String, String)>,
    /// Why the last case that was left out was.
    why: String,
    /// It did not come to its end, for a reason that says nothing of the device.
    cut: bool,
}

impl Course {
    fn new(info: &DeviceInfo) -> Self {
        Course {
            info: info.clone(),
            opened: false,
            begun: None,
            passed: 0,
            failed: 0,
            left_out: 0,
            ops: BTreeSet::new(),
            verdicts: HashMap::new(),
            first: None,
            why: "there was no case to run".into(),
            cut: false,
        }
    }

    fn hear(&mut self, said: Said) {
        match said {
            Said::Opened(info) => {
                // Its id counts as this process lists devices.
                self.info = DeviceInfo { id: self.info.id.clone(), ..*info };
                self.opened = true;
                if sim::timing_only(&self.info) {
                    self.why = sim::TIMING_ONLY.into();
                }
            }
            Said::Begun(op, dtype) => self.begun = Some((op, dtype)),
            Said::Judged(r) => self.judged(&r),
            Said::GaveUp(why) => (self.cut, self.why) = (true, why),
            Said::Ended => self.begun = None,
        }
    }

    fn judged(&mut self, r: &VerifyRecord) {
        let verdict = match r.subject.status {
            Status::Ok if r.compared > 0 => {
                self.passed += 1;
                self.ops.insert(r.subject.op.clone());
                Verdict::Passed { case: r.case.clone() }
            }
            // Of an empty result nothing is right or wrong.
            Status::Ok => return,
            Status::Failed | Status::Suspect => {
                self.failed += 1;
                let found = found(r);
                self.first.get_or_insert_with(|| (Some(r.case.clone()), found.clone(), r.rerun.clone()));
                Verdict::Wrong { case: r.case.clone(), found }
            }
            Status::Unsupported | Status::Skipped => {
                self.left_out += 1;
                self.why.clone_from(&r.subject.reason);
                return;
            }
        };
        for program in programs_of(&self.info, &r.case, &r.subject.variant) {
            self.keep(program, verdict.clone());
        }
    }

    /// One wrong case is enough, however many are right.
    fn keep(&mut self, program: Program, verdict: Verdict) {
        match self.verdicts.get(&program) {
            Some(Verdict::Wrong { .. }) => {}
            _ => {
                self.verdicts.insert(program, verdict);
            }
        }
    }

    /// The device's driver ended the process, or will never give an answer.
    fn broke(&mut self, how: String) {
        self.failed += 1;
        let device = &self.info.id;
        let Some((op, dtype)) = self.begun.take() else {
            let rerun = format!("gpuctl verify --op copy --dtype f32 --device {device}");
            self.first.get_or_insert((None, how, rerun));
            return;
        };
        let rerun = format!("gpuctl verify --op {op} --dtype {dtype} --device {device}");
        let case = first_case(&op, dtype, &self.info);
        if let Some((case, programs)) = &case {
            for program in programs {
                self.keep(program.clone(), Verdict::Wrong { case: case.clone(), found: how.clone() });
            }
        }
        self.first.get_or_insert((case.map(|(case, _)| case), format!("{op} {dtype}: {how}"), rerun));
    }

    fn tried(mut self, end: End, doubt: Option<&str>) -> Tried {
        let how = match end {
            End::Finished | End::Cancelled => None,
            End::Unasked(why) => {
                (self.cut, self.why) = (true, why);
                None
            }
            End::Stopped(how) => {
                (self.cut, self.why) = (true, format!("the process that tried it was ended from outside ({how})"));
                None
            }
            End::Died(how, said) => {
                let said = if said.is_empty() { String::new() } else { format!("; its last words: {said}") };
                Some(format!("the process that tried it ended ({how}){said}"))
            }
            End::Hung(silence) => Some(format!("no answer within {:.0} s", silence.as_secs_f64())),
        };
        match (how, doubt) {
            (Some(how), Some(doubt)) if !self.opened => {
                (self.cut, self.why) = (true, format!("{how} before the device was open; {doubt}"));
            }
            (Some(how), _) => self.broke(how),
            (None, _) => {}
        }
        let fitness = match () {
            () if self.first.is_some() => "unfit",
            () if self.passed > 0 && !self.cut => "fit",
            () => "unjudged",
        };
        let (case, found, rerun) = match self.first {
            Some((case, found, rerun)) => (case, Some(found), Some(rerun)),
            None => (None, None, None),
        };
        let record = TrialRecord {
            device: self.info.id.clone(),
            uid: self.info.uid.clone(),
            fingerprint: self.info.fingerprint(),
            fitness: fitness.into(),
            passed: self.passed,
            failed: self.failed,
            left_out: self.left_out,
            ops: self.ops.len() as u64,
            wrong_before: 0,
            when: found.is_some().then(trials::now),
            case,
            found,
            rerun,
            reason: if fitness == "unjudged" { self.why } else { String::new() },
        };
        Tried { record, info: self.info, verdicts: self.verdicts.into_iter().collect() }
    }
}

/// What a failed case showed, in a line.
fn found(r: &VerifyRecord) -> String {
    match (&r.worst_got, &r.worst_want, r.worst_index) {
        (Some(got), Some(want), Some(i)) if r.wrong > 0 => {
            format!("element {i} is {got}, expected {want}; {}", r.subject.reason)
        }
        _ => r.subject.reason.clone(),
    }
}

/// What a case is built of on a device; nothing for one that it does not run.
fn programs_of(info: &DeviceInfo, case: &str, variant: &str) -> Vec<Program> {
    let programs = || -> Result<Vec<Program>> {
        let case = case::parse(case)?;
        let op = op::find(case.op)?;
        let choice = kernel::choose(op.kernels, &case, info, Some(variant))?;
        judge::programs(op, &case, &choice, info)
    };
    programs().unwrap_or_default()
}

/// The first case that a device builds something for, and what.
fn first_case(op: &str, dtype: DType, info: &DeviceInfo) -> Option<(String, Vec<Program>)> {
    let op = op::find(op).ok()?;
    op.specs(Tier::Smoke, dtype).into_iter().filter(|s| s.fill != Fill::Special).find_map(|s| {
        let case = op.case(dtype, &s.dims, s.attrs, s.fill).ok()?;
        let choice = kernel::choose(op.kernels, &case, info, None).ok()?;
        let programs = judge::programs(op, &case, &choice, info).ok()?;
        (!programs.is_empty()).then(|| (case.to_string(), programs))
    })
}

/// Ends that no driver brings about: SIGHUP and SIGINT (1 and 2) among them.
const OUTSIDE: [&str; 4] = ["signal SIGKILL", "signal SIGTERM", "signal 1", "signal 2"];

/// Starts the process and hears it out.
fn listen(start: &Start, cancel: &Cancel, hear: &mut dyn FnMut(Said)) -> End {
    let mut command = Command::new(&start.program);
    command.args(&start.arguments).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    // A group of its own: Ctrl-C at the terminal reaches the parent alone, and is no crash of a driver.
    #[cfg(unix)]
    std::os::unix::process::CommandExt::process_group(&mut command, 0);
    let mut child = match command.spawn() {
        Ok(child) => child,
        Err(e) => return End::Unasked(format!("cannot start {}: {e}", start.program.display())),
    };
    let said = inventory::lines_of::<Said>(&mut child);
    let errors = inventory::errors_of(&mut child);
    let mut heard = Instant::now();
    let end = loop {
        match said.recv_timeout(STEP) {
            // A driver may hang or crash while it is unloaded: all has been said.
            Ok(Said::Ended) => {
                hear(Said::Ended);
                break End::Finished;
            }
            Ok(word) => {
                heard = Instant::now();
                hear(word);
            }
            Err(RecvTimeoutError::Disconnected) => {
                let ended = inventory::ended(&mut child, GRACE);
                let how = ended.map_or_else(|| "it closed its output and went on".into(), os::ending);
                break match () {
                    () if cancel.raised() => End::Cancelled,
                    () if OUTSIDE.contains(&how.as_str()) => End::Stopped(how),
                    () => End::Died(how, errors.last_line()),
                };
            }
            Err(RecvTimeoutError::Timeout) if cancel.raised() => break End::Cancelled,
            Err(RecvTimeoutError::Timeout) if heard.elapsed() >= start.silence => break End::Hung(start.silence),
            Err(RecvTimeoutError::Timeout) => {}
        }
    };
    if end == End::Finished {
        inventory::ended(&mut child, GRACE);
    }
    let _ = child.kill();
    // A process that hangs in the kernel does not even end of that; it is left behind.
    inventory::ended(&mut child, GRACE);
    end
}

/// What trials have left on record of a listed device.
pub fn on_record(info: &DeviceInfo, kept: &Trials) -> TrialRecord {
    let wrong = kept.wrong(info);
    let record = TrialRecord {
        device: info.id.clone(),
        uid: info.uid.clone(),
        fingerprint: info.fingerprint(),
        wrong_before: wrong.len() as u64,
        ..TrialRecord::default()
    };
    match wrong.into_iter().next() {
        Some(fault) => TrialRecord {
            fitness: "unfit".into(),
            rerun: Some(fault.rerun(info)),
            case: Some(fault.case),
            found: Some(fault.found),
            when: Some(fault.when),
            ..record
        },
        None => {
            let reason = match kept.passed(info) {
                0 => "no kernel was tried yet".to_string(),
                n => format!("no kernel is on record as wrong, {n} as right"),
            };
            TrialRecord { fitness: "unjudged".into(), reason, ..record }
        }
    }
}

/// 1: a device is unfit; 4: one, or all, could not be judged; else 0.
pub fn exit_code(records: &[TrialRecord]) -> u8 {
    match () {
        () if records.iter().any(|r| r.fitness == "unfit") => 1,
        () if records.is_empty() || records.iter().any(|r| r.fitness != "fit") => 4,
        () => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn verdict_of(script: &str, silence: u64, doubt: Option<&str>) -> Tried {
        let info = DeviceInfo::ordinary_gpu();
        let start = Start {
            program: "sh".into(),
            arguments: vec!["-c".into(), script.into()],
            silence: Duration::from_millis(silence),
        };
        run(&info, &start, doubt, &mut crate::base::sink::Collect::default(), &Cancel::new()).unwrap()
    }

    fn passing() -> VerifyRecord {
        let case = case::parse("relu/f32/n257/-/uniform").unwrap();
        let mut subject = crate::base::Subject::of(&case, 257, "elements", &DeviceInfo::ordinary_gpu());
        (subject.status, subject.variant) = (Status::Ok, "flat".into());
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
            rerun: String::new(),
        }
    }

    /// Programs in place of gpuctl: each way in which a trial can fail to end.
    #[cfg(unix)]
    #[test]
    fn a_driver_that_crashes_or_hangs_is_an_unfit_device() {
        let opened = serde_json::to_string(&Said::Opened(Box::new(DeviceInfo::ordinary_gpu()))).unwrap();
        let begun = serde_json::to_string(&Said::Begun("relu".into(), DType::F32)).unwrap();
        let say = |lines: &[&String]| lines.iter().map(|l| format!("echo '{l}'; ")).collect::<String>();

        let crashed = verdict_of(&format!("{}echo oh no >&2; kill -SEGV $$", say(&[&opened, &begun])), 60_000, None);
        let r = &crashed.record;
        assert_eq!((r.fitness.as_str(), r.failed, exit_code(std::slice::from_ref(r))), ("unfit", 1, 1));
        assert!(
            r.found.as_ref().unwrap().contains("relu f32: the process that tried it ended (signal SIGSEGV)"),
            "{r:?}"
        );
        assert!(r.found.as_ref().unwrap().ends_with("its last words: oh no"), "{r:?}");
        assert_eq!(r.rerun.as_deref(), Some("gpuctl verify --op relu --dtype f32 --device opencl:ordinary"));
        let (program, verdict) = &crashed.verdicts[0];
        assert!(program.op == "relu" && matches!(verdict, Verdict::Wrong { .. }), "{program:?}");

        let hung = verdict_of(&format!("{}exec sleep 60", say(&[&opened, &begun])), 300, None);
        assert!(hung.record.found.unwrap().contains("no answer within 0 s"));

        // Before the device is open another driver may be the cause.
        let early = verdict_of("exit 3", 60_000, Some("x.icd is broken")).record;
        assert_eq!((early.fitness.as_str(), exit_code(std::slice::from_ref(&early))), ("unjudged", 4));
        assert!(early.reason.contains("exit code 3") && early.reason.ends_with("x.icd is broken"), "{early:?}");
        assert_eq!(verdict_of("exit 3", 60_000, None).record.fitness, "unfit");

        // Killed from outside, or stopped by a fault of our own: neither is the driver's, and what passed before is not all.
        let case = VerifyRecord { compared: 1, ..passing() };
        let passed = serde_json::to_string(&Said::Judged(Box::new(case))).unwrap();
        let killed = verdict_of(&format!("{}kill -9 $$", say(&[&opened, &begun, &passed])), 60_000, None);
        assert_eq!((killed.record.fitness.as_str(), killed.record.passed, killed.verdicts.len()), ("unjudged", 1, 1));
        assert!(killed.record.reason.ends_with("was ended from outside (signal SIGKILL)"), "{:?}", killed.record);
        let mut line = Vec::new();
        give_up(&Error::new(Code::OutOfHostMemory, "no threads"), &mut line).unwrap();
        let line = String::from_utf8(line).unwrap();
        let own = verdict_of(&format!("cat <<'X'{line}X\nexit 5"), 60_000, None).record;
        assert!(own.fitness == "unjudged" && own.reason.contains("no threads"), "{own:?}");

        let ended = serde_json::to_string(&Said::Ended).unwrap();
        let nothing = verdict_of(&format!("echo chatter; {}", say(&[&opened, &ended])), 60_000, None).record;
        assert_eq!((nothing.fitness.as_str(), nothing.reason.as_str()), ("unjudged", "there was no case to run"));
    }

    #[test]
    fn exit_codes() {
        let of = |words: &[&str]| {
            let record = |w: &&str| TrialRecord { fitness: (*w).into(), ..TrialRecord::default() };
            exit_code(&words.iter().map(record).collect::<Vec<_>>())
        };
        assert_eq!((of(&["fit", "fit"]), of(&["fit", "unfit", "unjudged"])), (0, 1));
        assert_eq!((of(&[]), of(&["unjudged"]), of(&["fit", "unjudged"])), (4, 4, 4));
    }
}
