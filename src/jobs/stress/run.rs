//! A soak from start to end: what is asked, what fits, who works at the same time, what it all means.
//!
//! Each device has a thread that sees its phases through one after the other; all devices work at once, but that whoever fills
//! a card's memory has the card alone. One thread writes the journal and talks.

use std::path::PathBuf;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use crate::base::record::{StressRecord, StressRunRecord};
use crate::base::rng::fnv1a64;
use crate::base::units;
use crate::base::{Cancel, Code, DeviceInfo, Error, Progress, Record, Result, Sink};
use crate::device::telemetry::Telemetry;

use super::cards::Cards;
use super::clocks::{Clocks, Jump, Tick};
use super::journal::{Asked, Entry, Journal, PlanOf, utc_now};
use super::plan::{Planned, on_card};
use super::post::{Event, Post, Stop};
use super::resume::{self, Resumed};
use super::supervisor::{Spawn, host, list};
use super::verdict::{Verdict, overall};
use super::watch::{Job, phase};
use super::{Planted, StressConfig, StressSummary, guard, node, scenario};

/// Runs the whole soak: lists the devices through a child, then all phases, the devices at the same time. With
/// [`StressConfig::resume`] it goes on with an earlier run. Records, remarks and progress go to `sink` as they come; `cancel`
/// ends the run early and keeps what there is.
///
/// Errors: `BadArgument` for a configuration that makes no sense or a run that cannot be resumed, `DeviceMissing` for a
/// device that is not there, `FeatureUnsupported` for a limit of temperature that cannot be kept, `WorkerCrashed` if not
/// even the devices can be listed. Findings are no errors: they are in the summary.
pub fn run(cfg: &StressConfig, spawn: &dyn Spawn, sink: &mut dyn Sink, cancel: &Cancel) -> Result<StressSummary> {
    let resumed = cfg.resume.as_deref().map(|at| resume::load(at, &host())).transpose()?;
    let cfg = &resumed.as_ref().map_or_else(|| cfg.clone(), |r| r.config(cfg));
    let resolved = cfg.resolve()?;
    let mut log = Log::open(cfg, resumed.as_ref(), sink);
    let ended = from_the_list(cfg, &resolved, resumed.as_ref(), spawn, &mut log, sink, cancel);
    // What never began is no run to go on with; what began may go on once the reason is gone.
    if let (Err(e), None, false) = (&ended, &resumed, cancel.raised()) {
        let (verdict, exit_code) = (Verdict::Inconclusive.name().into(), Verdict::Inconclusive.exit_code());
        let summary = format!("not begun: {e}");
        log.entry(&Entry::End { utc: utc_now(), verdict, exit_code, summary, complete: true }, sink);
    }
    ended
}

/// All that needs the devices.
fn from_the_list(
    cfg: &StressConfig,
    resolved: &super::Resolved,
    resumed: Option<&Resumed>,
    spawn: &dyn Spawn,
    log: &mut Log,
    sink: &mut dyn Sink,
    cancel: &Cancel,
) -> Result<StressSummary> {
    let (devices, absent) = list(cfg, spawn, cancel)?;
    if let Some(r) = resumed {
        r.check(&devices)?;
    }
    Planted::check(cfg.inject.as_deref(), &devices)?;
    let mut summary = StressSummary {
        verdict: Verdict::Inconclusive,
        exit_code: Verdict::Inconclusive.exit_code(),
        planned_seconds: cfg.seconds,
        tested_seconds: 0.0,
        interrupted: false,
        records: Vec::new(),
        not_tested: Vec::new(),
        findings: Vec::new(),
        remarks: Vec::new(),
        resumed_phases: resumed.map_or(0, |r| r.finished() as u64),
        by_device: Vec::new(),
        devices,
        absent,
        journal: log.journal.path().map(PathBuf::from),
    };
    let allowed = allowed(cfg, resumed.is_some(), &mut summary, cancel)?;
    // A run that goes on keeps what it found and can be gone on with again; one that never began has nothing to keep.
    if !allowed && resumed.is_none() {
        return Ok(finish(cfg, summary, &[], true, log, sink));
    }
    let plans = plans(cfg, resolved, resumed, &mut summary)?;
    if allowed && resumed.is_none_or(|r| r.plan.is_none()) {
        let of = |(device, phases): (&DeviceInfo, &Vec<Planned>)| PlanOf {
            id: device.id.clone(),
            uid: device.uid.clone(),
            name: device.name.clone(),
            driver: device.driver.clone(),
            phases: phases.iter().map(|p| (p.scenario.name.to_string(), p.seconds)).collect(),
        };
        let devices = summary.devices.iter().zip(&plans).map(of).collect();
        log.entry(&Entry::Plan { utc: utc_now(), devices, left_out: summary.not_tested.clone() }, sink);
    }
    let cards = Cards::new(&summary.devices);
    let floors = cards.least_seconds(&summary.devices, &resolved.scenarios);
    if !cfg.scenarios.is_empty() && floors > cfg.seconds {
        let (has, needs) = (units::seconds(cfg.seconds), units::seconds(floors));
        sink.note(&format!("{has} cannot end in a pass: the scenarios that were asked for need {needs} together"));
    }
    summary.remarks.extend(cards.remarks(&summary.devices, &plans));
    // Who waits for others is planned for less.
    let part = |(phases, waits): (&Vec<Planned>, f64)| Part {
        phases: phases.len(),
        seconds: if waits > 0.0 { phases.iter().map(|p| p.seconds).sum() } else { cfg.seconds },
    };
    let parts: Vec<Part> = plans.iter().zip(cards.waits(&summary.devices, &plans)).map(part).collect();
    if let Some(r) = resumed {
        let (done, cut) = (r.finished(), r.cut.len());
        let planned: usize = parts.iter().map(|p| p.phases).sum();
        let how = if allowed { "goes on" } else { "cannot go on yet" };
        sink.note(&format!("the run of {} {how}: {done} of {planned} phases were finished before", r.utc));
        if cut > 0 {
            sink.note(&format!("{cut} phases were cut off after something had gone wrong; that stays in the verdict"));
        }
        for record in r.records.iter().chain(&r.cut) {
            sink.record(&Record::Stress(Box::new(record.clone())));
            take(&mut summary, record.clone());
        }
    }
    let todo: Vec<(DeviceInfo, Vec<Planned>)> = summary
        .devices
        .iter()
        .zip(plans)
        .map(|(device, mut phases)| {
            phases.retain(|p| resumed.is_none_or(|r| !r.is_finished(p.scenario.name, &device.uid)));
            (device.clone(), phases)
        })
        .collect();
    if allowed {
        work(cfg, resolved.threads, &todo, &cards, spawn, cancel, &mut summary, log, sink);
    }
    summary.interrupted = cancel.raised();
    let complete = allowed && !summary.interrupted;
    Ok(finish(cfg, summary, &parts, complete, log, sink))
}

/// What is planned for one device.
struct Part {
    phases: usize,
    seconds: f64,
}

/// The journal, and what becomes of errors with it.
struct Log {
    journal: Journal,
}

impl Log {
    fn open(cfg: &StressConfig, resumed: Option<&Resumed>, sink: &mut dyn Sink) -> Self {
        let (journal, mut trouble) = match resumed {
            Some(r) => Journal::reopen(&r.path, r.good),
            None => Journal::open(cfg.journal.as_deref()),
        };
        if let Some(path) = journal.path() {
            sink.note(&format!("journal: {}", path.display()));
        }
        if let Some(e) = trouble.take() {
            sink.note(&e.to_string());
        }
        let mut log = Log { journal };
        let (utc, pid, command) = (utc_now(), std::process::id(), cfg.command.clone());
        let Some(r) = resumed else {
            let entry = Entry::Start {
                gpuctl: env!("CARGO_PKG_VERSION").into(),
                command,
                utc,
                pid,
                host: host(),
                seconds: cfg.seconds,
                scenarios: cfg.scenarios.clone(),
                asked: Some(Box::new(asked(cfg))),
            };
            log.entry(&entry, sink);
            return log;
        };
        log.entry(&Entry::Resume { utc, pid, command }, sink);
        for record in &r.cut {
            log.entry(&Entry::Phase { utc: utc_now(), record: Box::new(record.clone()), cut: true }, sink);
        }
        log
    }

    fn entry(&mut self, entry: &Entry, sink: &mut dyn Sink) {
        if let Some(e) = self.journal.append(entry) {
            sink.note(&e.to_string());
        }
    }
}

fn asked(cfg: &StressConfig) -> Asked {
    Asked {
        seconds: cfg.seconds,
        scenarios: cfg.scenarios.clone(),
        device: cfg.device.clone(),
        threads: cfg.threads,
        inject: cfg.inject.clone(),
        fail_early: cfg.fail_early,
        heartbeat: cfg.heartbeat,
        shared: cfg.shared,
        max_temp: cfg.max_temp,
    }
}

/// Workers of a run that was killed end themselves within this time ([`super::worker()`]).
const ORPHANS: Duration = Duration::from_secs(15);

/// Whether the cards may be worked on: not if others use them, and not hotter than can be watched.
fn allowed(cfg: &StressConfig, resumed: bool, summary: &mut StressSummary, cancel: &Cancel) -> Result<bool> {
    let start = Instant::now();
    let (told, before) = loop {
        let told = guard::ask(&summary.devices, cfg.tree.as_deref());
        let before = guard::users(&summary.devices, told.as_ref(), std::process::id());
        let orphans = resumed && !cfg.shared && !before.used.is_empty() && start.elapsed() < ORPHANS;
        if !orphans || cancel.raised() {
            break (told, before);
        }
        std::thread::sleep(Duration::from_millis(500));
    };
    summary.not_tested.extend(before.unknown.iter().cloned());
    if let Some(max) = cfg.max_temp {
        summary.remarks.extend(guard::temperatures(&summary.devices, told.as_ref(), max)?);
    }
    match before.words() {
        Some(who) if !cfg.shared => {
            let what = if resumed { "what is left" } else { "anything" };
            let text = format!("{what}: other processes use {who}; end them, or share the card with --shared");
            summary.not_tested.insert(0, text);
            Ok(false)
        }
        Some(who) => {
            summary.remarks.push(format!("shared with other processes, whose work is in the figures: {who}"));
            Ok(true)
        }
        None => Ok(true),
    }
}

/// The phases of each device: those of the journal, or what fits.
fn plans(
    cfg: &StressConfig,
    resolved: &super::Resolved,
    resumed: Option<&Resumed>,
    summary: &mut StressSummary,
) -> Result<Vec<Vec<Planned>>> {
    let Some((devices, left_out)) = resumed.and_then(|r| r.plan.as_ref()) else {
        let mut plans = vec![Vec::new(); summary.devices.len()];
        for group in Cards::new(&summary.devices).groups() {
            let devices: Vec<_> = group.iter().map(|at| &summary.devices[*at]).collect();
            let own = on_card(&resolved.scenarios, !cfg.scenarios.is_empty(), cfg.seconds, &devices);
            for (at, plan) in group.iter().zip(own) {
                plans[*at] = plan.phases;
                plan.left_out.into_iter().for_each(|what| add(&mut summary.not_tested, what));
            }
        }
        return Ok(plans);
    };
    for what in left_out {
        if !summary.not_tested.contains(what) {
            summary.not_tested.push(what.clone());
        }
    }
    // What the selection holds besides was not part of the run.
    summary.devices.retain(|d| devices.iter().any(|p| p.uid == d.uid));
    let of = |d: &DeviceInfo| -> Result<Vec<Planned>> {
        let planned = devices.iter().find(|p| p.uid == d.uid).map_or(&[][..], |p| &p.phases[..]);
        planned
            .iter()
            .map(|(name, seconds)| Ok(Planned { scenario: scenario::find(name)?, seconds: *seconds }))
            .collect()
    };
    summary.devices.iter().map(of).collect()
}

/// All devices at once, a thread each; this one writes down what they hand in.
#[allow(clippy::too_many_arguments, reason = "the state of a run, passed on by its only caller")]
fn work(
    cfg: &StressConfig,
    threads: u32,
    todo: &[(DeviceInfo, Vec<Planned>)],
    cards: &Cards,
    spawn: &dyn Spawn,
    cancel: &Cancel,
    summary: &mut StressSummary,
    log: &mut Log,
    sink: &mut dyn Sink,
) {
    let finding = Cancel::new();
    let stop = Stop { user: cancel, finding: &finding };
    let start = Instant::now();
    std::thread::scope(|scope| {
        let (send, receive) = channel();
        for (at, (device, phases)) in todo.iter().enumerate() {
            let post = Post { at, send: send.clone() };
            scope.spawn(move || see_through(cfg, threads, device, phases, cards, spawn, stop, start, &post));
        }
        drop(send);
        let mut clocks = Clocks::default();
        let mut doing = vec![String::new(); todo.len()];
        let mut jumps: Vec<(Instant, Jump)> = Vec::new();
        loop {
            let event = receive.recv_timeout(Duration::from_millis(100));
            // That this thread was kept from looking says nothing; the others tell if they were.
            let own = clocks.tick(Tick::now()).into_iter().filter(|j| !matches!(j, Jump::Stopped(_)));
            for jump in own.chain(match event {
                Ok(Event::Jump(jump)) => Some(jump),
                _ => None,
            }) {
                // Each device's thread tells of the same jump.
                let known =
                    |(at, j): &(Instant, Jump)| at.elapsed() < Duration::from_secs(3) && j.name() == jump.name();
                if jumps.iter().any(known) {
                    continue;
                }
                jumps.push((Instant::now(), jump));
                sink.note(&jump.words());
                summary.remarks.push(jump.words());
                let (what, seconds) = (jump.name().to_string(), jump.seconds());
                log.entry(&Entry::Clock { utc: utc_now(), what, seconds }, sink);
            }
            match event {
                Ok(Event::Note(text)) => sink.note(&text),
                Ok(Event::Entry(entry)) => log.entry(&entry, sink),
                Ok(Event::NotTested(what)) => add(&mut summary.not_tested, what),
                Ok(Event::Live(live)) => sink.live(&live),
                Ok(Event::Progress(at, p)) => {
                    if let Some(doing) = doing.get_mut(at) {
                        *doing = p.doing;
                    }
                    let doing = doing.iter().filter(|d| !d.is_empty()).cloned().collect::<Vec<_>>().join(" | ");
                    sink.progress(&Progress { doing, ..p });
                }
                Ok(Event::Done(verdict, record, cut)) => {
                    // On the disk first: what is told may be read by somebody who then pulls the plug.
                    log.entry(&Entry::Phase { utc: utc_now(), record: record.clone(), cut }, sink);
                    sink.record(&Record::Stress(record.clone()));
                    take(summary, *record);
                    if cfg.fail_early && verdict > Verdict::Inconclusive {
                        finding.raise();
                    }
                }
                Ok(Event::Jump(_)) | Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    });
}

/// A phase of this process or an earlier one, with what it left untested.
fn take(summary: &mut StressSummary, record: StressRecord) {
    for what in &record.not_tested {
        add(&mut summary.not_tested, format!("{} on {}: {what}", record.scenario, record.device));
    }
    summary.records.push(record);
}

fn add(all: &mut Vec<String>, what: String) {
    if !all.contains(&what) {
        all.push(what);
    }
}

/// Seconds of waiting for a card that are worth a remark: workers begin and end within less.
const TOLD: f64 = 0.5;

/// The phases of one device, one after the other.
#[allow(clippy::too_many_arguments, reason = "the state of a run, passed on by its only caller")]
fn see_through(
    cfg: &StressConfig,
    threads: u32,
    device: &DeviceInfo,
    phases: &[Planned],
    cards: &Cards,
    spawn: &dyn Spawn,
    stop: Stop<'_>,
    start: Instant,
    post: &Post,
) {
    let mut telemetry = cfg.tree.clone().map_or_else(Telemetry::cards, Telemetry::tree);
    let mut silent = false;
    for Planned { scenario, seconds } in phases {
        let (name, id) = (scenario.name, &device.id);
        let alone = (scenario.fills)(device);
        let waits = || post.note(&format!("{name} on {id} waits for its turn on the card"));
        let turn = cards.gate(post.at).enter(alone, || stop.raised(), waits);
        // A run that ends begins nothing, though nobody is in the way.
        let Some(turn) = turn.filter(|_| !stop.raised()) else {
            post.event(Event::NotTested(format!("{name} on {id}: {}", stop.why())));
            continue;
        };
        let job = Job {
            cfg,
            scenario,
            device,
            threads,
            seconds: *seconds,
            seed: fnv1a64(format!("{name}@{id}").as_bytes()),
            sharing: cards.sharing(post.at),
            start,
        };
        let (verdict, mut record, cut) = phase(&job, spawn, post, stop, &mut telemetry);
        if turn.waited >= TOLD {
            let who = if alone { "others on the card" } else { "one that filled the card's memory" };
            record.remarks.push(format!("waited {} for {who} before it began", units::seconds(turn.waited)));
        }
        drop(turn);
        if record.telemetry.source == "none" && !std::mem::replace(&mut silent, true) {
            post.note(&format!("{id}: telemetry: none ({})", record.telemetry.reason));
        }
        if cfg.fail_early && verdict > Verdict::Inconclusive {
            stop.finding.raise();
        }
        post.event(Event::Done(verdict, Box::new(record), cut));
    }
}

/// The verdicts, the last lines of the journal and for people.
fn finish(
    cfg: &StressConfig,
    mut summary: StressSummary,
    planned: &[Part],
    complete: bool,
    log: &mut Log,
    sink: &mut dyn Sink,
) -> StressSummary {
    let phases: Vec<(String, Verdict)> = summary
        .records
        .iter()
        .map(|r| {
            // A device may have another number than when an earlier run began.
            let now = summary.devices.iter().find(|d| d.uid == r.uid).map_or(&r.device, |d| &d.id);
            (now.clone(), Verdict::parse(&r.verdict).unwrap_or(Verdict::Inconclusive))
        })
        .collect();
    let twins = node::twins(&summary.devices, &summary.records);
    let of = |(at, d): (usize, &DeviceInfo)| {
        let (seconds, phases) = planned.get(at).map_or((cfg.seconds, 0), |p| (p.seconds, p.phases));
        node::device(d, &summary.records, seconds, phases, summary.interrupted, &twins)
    };
    summary.by_device = summary.devices.iter().enumerate().map(of).collect();
    let planned: usize = planned.iter().map(|p| p.phases).sum();
    summary.findings.extend(twins.slower.into_iter().map(|s| s.1));
    summary.remarks.extend(twins.remarks);
    twins.not_tested.into_iter().for_each(|what| add(&mut summary.not_tested, what));
    let worst = summary.by_device.iter().filter_map(|d| Verdict::parse(&d.verdict)).max();
    summary.verdict = overall(&summary.devices, &phases, planned.max(1), summary.interrupted, &cfg.limits)
        .max(worst.filter(|w| Some(*w) != cfg.limits.off).unwrap_or(Verdict::Pass));
    summary.exit_code = summary.verdict.exit_code_of(summary.interrupted);
    let least = summary.by_device.iter().map(|d| d.tested_seconds).min_by(f64::total_cmp);
    summary.tested_seconds = least.unwrap_or(0.0);
    for d in summary.by_device.iter().filter(|d| !d.reason.is_empty() && d.verdict == Verdict::Inconclusive.name()) {
        add(&mut summary.not_tested, format!("{}: {}", d.device, d.reason));
    }
    for finding in &summary.findings {
        sink.note(&format!("finding: {finding}"));
    }
    for remark in &summary.remarks {
        sink.note(remark);
    }
    sink.record(&Record::StressRun(Box::new(whole(&summary))));
    let end = Entry::End {
        utc: utc_now(),
        verdict: summary.verdict.name().into(),
        exit_code: summary.exit_code,
        summary: summary.line(),
        complete,
    };
    log.entry(&end, sink);
    summary
}

fn whole(s: &StressSummary) -> StressRunRecord {
    StressRunRecord {
        verdict: s.verdict.name().into(),
        exit_code: s.exit_code,
        line: s.line(),
        planned_seconds: s.planned_seconds,
        tested_seconds: s.tested_seconds,
        scenarios_passed: s.scenarios_passed() as u64,
        scenarios: scenario::SCENARIOS.len() as u64,
        interrupted: s.interrupted,
        resumed_phases: s.resumed_phases,
        devices: s.by_device.clone(),
        findings: s.findings.clone(),
        remarks: s.remarks.clone(),
        not_tested: s.not_tested.clone(),
    }
}

impl StressSummary {
    /// Scenarios that passed on every device of the run.
    pub fn scenarios_passed(&self) -> usize {
        let passed = |name: &str, device: &DeviceInfo| {
            let mut own = self.records.iter().filter(|r| r.scenario == name && r.uid == device.uid).peekable();
            own.peek().is_some() && own.all(|r: &StressRecord| r.verdict == Verdict::Pass.name())
        };
        let everywhere = |name| !self.devices.is_empty() && self.devices.iter().all(|d| passed(name, d));
        scenario::SCENARIOS.iter().filter(|s| everywhere(s.name)).count()
    }
}

/// A limit of temperature that makes sense.
pub(super) fn check_limit(max: Option<f64>) -> Result<()> {
    match max {
        Some(c) if !(30.0..=120.0).contains(&c) => {
            Err(Error::new(Code::BadArgument, format!("--max-temp {c}: expected 30 to 120 degrees Celsius")))
        }
        _ => Ok(()),
    }
}
