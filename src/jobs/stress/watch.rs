//! One phase seen from the parent: a worker, perhaps several in turn, every wait bounded, all evidence kept.

use std::sync::mpsc::RecvTimeoutError;
use std::time::{Duration, Instant};

use crate::base::record::{StressRecord, StressSample};
use crate::base::sink::Live;
use crate::base::{DeviceInfo, Progress, units};

use crate::device::LedgerState;
use crate::device::telemetry::{Telemetry, Watch};

use super::clocks::{Clocks, Jump, Tick};
use super::heat::{Heat, below_floor, cooled};
use super::journal::{Entry, utc_now};
use super::post::{Event, Post, Stop};
use super::scenario::{Counts, Scenario};
use super::supervisor::{Spawn, await_end, ending, phase_task, reader, task_text};
use super::verdict::{Evidence, Verdict, judge, unsettled};
use super::worker::{Line, Phase};
use super::{Planted, StressConfig};

/// Workers that a phase may use up before it is given up.
const WORKERS: u64 = 3;
/// Seconds that a worker told to stop may take.
const GRACE: f64 = 2.0;
/// Samples kept per phase.
const SAMPLES: usize = 480;

/// One phase to be done.
pub(super) struct Job<'a> {
    pub(super) cfg: &'a StressConfig,
    pub(super) scenario: &'static Scenario,
    pub(super) device: &'a DeviceInfo,
    pub(super) threads: u32,
    pub(super) seconds: f64,
    pub(super) seed: u64,
    /// Devices of the run that are the same card, this one included.
    pub(super) sharing: u32,
    /// Start of the whole run.
    pub(super) start: Instant,
}

impl Job<'_> {
    /// What is planted into this device.
    fn inject(&self) -> Option<String> {
        Planted::on_device(self.cfg.inject.as_deref(), self.device)
    }
}

/// A series that thins itself: when it is full every other sample goes, and from then on half as many are taken.
#[derive(Default)]
struct Series {
    samples: Vec<StressSample>,
    every: u64,
    seen: u64,
}

impl Series {
    fn push(&mut self, sample: StressSample) {
        self.every = self.every.max(1);
        if self.seen.is_multiple_of(self.every) {
            self.samples.push(sample);
        }
        self.seen += 1;
        if self.samples.len() >= SAMPLES {
            let mut keep = false;
            self.samples.retain(|_| {
                keep = !keep;
                keep
            });
            self.every *= 2;
        }
    }
}

/// How one worker ended.
enum End {
    Finished,
    Stopped,
    /// It was told to stop because the card is hot; why.
    Paused(String),
    /// It was kept from working or from reporting by something that is nobody's fault.
    Disturbed(String),
    Refused(String),
    Crash(String),
    Hang(String),
}

/// What the workers of a phase said, all together.
#[derive(Default)]
struct Told<'t> {
    /// The device's card, asked from here: a worker's threads may be stuck in a driver.
    card: Option<Watch<'t>>,
    /// Counts of workers that are gone.
    before: Counts,
    /// Counts of the present one.
    now: Counts,
    tested_before: f64,
    tested: f64,
    /// Samples of the present worker: a new process starts with fresh memory.
    series: Series,
    /// Samples of those before.
    older: Vec<StressSample>,
    evidence: Evidence,
    record: StressRecord,
    doing: String,
    /// Process id of the present worker, where it is a process.
    pid: Option<u32>,
    /// Findings that are not in the journal yet: the counts say what they are.
    fresh: Vec<String>,
}

/// What the card told last, into a sample.
fn add_card(sample: &mut StressSample, card: &Watch<'_>, pid: Option<u32>) {
    let Some(told) = card.latest() else { return };
    sample.temperature_c = told.temperature_c;
    sample.power_w = told.power_w;
    sample.device_used_bytes = told.memory_used;
    let Some(processes) = &told.processes else { return };
    sample.device_own_bytes = processes.iter().find(|p| Some(p.pid) == pid).and_then(|p| p.bytes);
    let others = processes.iter().filter(|p| Some(p.pid) != pid).map(|p| p.bytes);
    sample.device_other_bytes = others.sum();
}

impl Told<'_> {
    /// Puts findings into the journal once the counts that came after them say what they are.
    fn journal(&mut self, job: &Job<'_>, post: &Post) {
        let verdict = if self.counts().mismatches > 0 { Verdict::Corruption } else { Verdict::Error };
        for what in self.fresh.drain(..) {
            post.entry(finding(job, verdict, &what));
        }
    }

    fn counts(&self) -> Counts {
        let (a, b) = (self.before, self.now);
        // A counter that runs over must not come back as a small one.
        Counts {
            done: a.done.saturating_add(b.done),
            bytes_made: a.bytes_made.saturating_add(b.bytes_made),
            bytes_checked: a.bytes_checked.saturating_add(b.bytes_checked),
            mismatches: a.mismatches.saturating_add(b.mismatches),
            errors: a.errors.saturating_add(b.errors),
        }
    }

    fn hear(&mut self, line: Line) {
        match line {
            Line::Op { doing, .. } => self.doing = doing,
            Line::Sample { mut sample, counts, tested } => {
                (self.now, self.tested) = (counts, tested);
                self.card.iter().for_each(|card| add_card(&mut sample, card, self.pid));
                self.series.push(sample);
            }
            Line::Finding { what } => {
                if self.record.findings.len() < 20 {
                    self.fresh.push(what.clone());
                    self.record.findings.push(what);
                }
            }
            Line::NotTested { what } => {
                if !self.record.not_tested.contains(&what) {
                    self.record.not_tested.push(what);
                }
            }
            Line::Finished { counts, tested, counters, speeds, ledger, release_errors, unmet } => {
                (self.now, self.tested) = (counts, tested);
                for (name, n) in counters {
                    *self.record.counters.entry(name).or_default() += n;
                }
                for (what, speed) in speeds {
                    // Of several workers the one that measured most often.
                    let kept = self.record.speeds.entry(what).or_default();
                    if speed.samples > kept.samples {
                        *kept = speed;
                    }
                }
                self.evidence.unmet = unmet;
                // What an earlier worker left behind is not made good by a later one.
                let clean = |(b, a): &(LedgerState, LedgerState)| {
                    a.buffers <= b.buffers && a.pinned <= b.pinned && a.objects() <= b.objects()
                };
                if self.evidence.ledger.as_ref().is_none_or(clean) {
                    self.evidence.ledger = Some(ledger);
                }
                self.now.errors = self.now.errors.saturating_add(release_errors.len() as u64);
                self.record.findings.extend(release_errors.into_iter().map(|e| format!("on release: {e}")));
            }
            Line::Devices { .. } | Line::Stalled { .. } | Line::Refused(_) | Line::Lost { .. } => {}
        }
    }

    fn live(&self, job: &Job<'_>) -> Live {
        let (c, last) = (self.counts(), self.series.samples.last());
        Live {
            scenario: job.scenario.name.into(),
            device: job.device.id.clone(),
            uid: job.device.uid.clone(),
            seconds: self.tested_before + self.tested,
            done: c.done,
            bytes_checked: c.bytes_checked,
            mismatches: c.mismatches,
            errors: c.errors,
            restarts: self.record.restarts,
            temperature_c: last.and_then(|s| s.temperature_c),
            power_w: last.and_then(|s| s.power_w),
        }
    }

    /// The present worker is gone; the next starts from zero.
    fn next_worker(&mut self) {
        self.before = self.counts();
        self.now = Counts::default();
        self.tested_before += self.tested;
        self.tested = 0.0;
        self.older.append(&mut self.series.samples);
        self.series = Series::default();
    }
}

/// Runs a phase to its verdict. Whatever happens to the workers, a record comes out.
pub(super) fn phase(
    job: &Job<'_>,
    spawn: &dyn Spawn,
    post: &Post,
    stop: Stop<'_>,
    telemetry: &mut Telemetry,
) -> (Verdict, StressRecord, bool) {
    let heartbeat = job.cfg.heartbeat.unwrap_or_else(|| job.seconds.clamp(10.0, 60.0));
    let start = Instant::now();
    let mut told = Told { card: Some(Watch::begin(telemetry, job.device)), ..Told::default() };
    let mut heat = Heat::new(job.cfg, job.device);
    let left = || job.seconds - start.elapsed().as_secs_f64();
    // The rest of the phase must be worth a new worker.
    let worth = (0.1 * job.seconds).max(0.5);
    loop {
        if !cooled(job, &mut heat, &mut told.card, post, stop, start) {
            told.evidence.interrupted = stop.raised();
            break;
        }
        let end = attempt(job, left(), heartbeat, spawn, post, stop, &mut told, &mut heat);
        told.journal(job, post);
        let fault = match end {
            End::Finished => break,
            End::Stopped => {
                told.evidence.interrupted = true;
                break;
            }
            End::Paused(why) => {
                told.next_worker();
                heat.why = why;
                continue;
            }
            End::Disturbed(what) => {
                told.next_worker();
                told.record.remarks.push(format!("{what}; a new worker went on"));
                if left() < worth {
                    break;
                }
                continue;
            }
            End::Refused(text) => {
                told.record.findings.push(text);
                told.now.errors = told.now.errors.saturating_add(1);
                break;
            }
            End::Crash(how) => {
                told.evidence.crash.get_or_insert(how.clone());
                how
            }
            End::Hang(what) => {
                told.evidence.hang.get_or_insert(what.clone());
                what
            }
        };
        told.record.findings.push(fault.clone());
        let verdict = if told.evidence.crash.is_some() { Verdict::Crash } else { Verdict::Hang };
        post.entry(finding(job, verdict, &fault));
        told.next_worker();
        let left = left();
        if stop.raised() || job.cfg.fail_early || left < worth {
            break;
        }
        if told.record.restarts + 1 >= WORKERS {
            told.record.not_tested.push(format!("the last {left:.0} s: {WORKERS} workers were lost"));
            break;
        }
        told.record.restarts += 1;
        post.note(&format!("{} on {}: {fault}; a new worker goes on", job.scenario.name, job.device.id));
    }
    let cut = told.evidence.interrupted;
    let (verdict, record) = conclude(job, told, &heat);
    (verdict, record, cut)
}

/// Something wrong, for the journal: the phase that it belongs to may never end.
fn finding(job: &Job<'_>, verdict: Verdict, what: &str) -> Entry {
    Entry::Finding {
        utc: utc_now(),
        scenario: job.scenario.name.into(),
        device: job.device.id.clone(),
        uid: job.device.uid.clone(),
        verdict: verdict.name().into(),
        what: what.into(),
    }
}

fn conclude(job: &Job<'_>, mut told: Told<'_>, heat: &Heat) -> (Verdict, StressRecord) {
    let counts = told.counts();
    let seconds = told.tested_before + told.tested;
    let mut telemetry = told.card.take().map(Watch::end).unwrap_or_default();
    if let Ok(Some(card)) = Planted::parse(job.inject().as_deref()).map(|p| p.card()) {
        telemetry.asked += 1;
        telemetry.take(&card);
    }
    let card = telemetry.fault();
    told.record.findings.extend(card.clone());
    if telemetry.answered > 0 && telemetry.answered < telemetry.asked {
        let (answered, asked) = (telemetry.answered, telemetry.asked);
        told.record.not_tested.push(format!("the card between answers: it answered {answered} of {asked} questions"));
    }
    let limits = job.cfg.limits;
    let planned = (job.scenario.floor)(job.seconds * limits.min_tested, job.threads);
    let evidence = Evidence {
        series: told.series.samples.clone(),
        seconds,
        planned_seconds: job.seconds,
        planned,
        done: counts.done,
        bytes_planned: counts.bytes_made,
        bytes_checked: counts.bytes_checked,
        mismatches: counts.mismatches,
        errors: counts.errors,
        finding: told.record.findings.first().cloned(),
        card,
        throttled: telemetry.throttled(),
        incredible: telemetry.incredible(),
        ..told.evidence
    };
    let (verdict, reason) = below_floor(job, judge(&evidence, &limits), heat);
    let mut record = told.record;
    record.not_tested.extend(unsettled(&evidence.series, &limits));
    let mut series = told.older;
    series.extend(evidence.series);
    if job.seconds < limits.min_seconds {
        record.not_tested.push(format!(
            "drift of memory and throughput: needs phases of {:.0} s, this one has {:.1} s",
            limits.min_seconds, job.seconds
        ));
    }
    if heat.pauses > 0 {
        let (n, seconds) = (heat.pauses, units::seconds(heat.paused));
        record.remarks.push(format!("paused {n} times, {seconds} in all: {}", heat.why));
        record.not_tested.push("drift over the whole phase: each pause begins with a new worker".into());
    }
    let inject = job.inject().map(|f| format!(" --inject {f}")).unwrap_or_default();
    let record = StressRecord {
        scenario: job.scenario.name.into(),
        device: job.device.id.clone(),
        uid: job.device.uid.clone(),
        verdict: verdict.name().into(),
        reason,
        seconds,
        planned_seconds: job.seconds,
        planned,
        done: counts.done,
        bytes_planned: counts.bytes_made,
        bytes_checked: counts.bytes_checked,
        mismatches: counts.mismatches,
        errors: counts.errors,
        paused_seconds: heat.paused,
        telemetry,
        series,
        rerun: format!(
            "gpuctl stress --seconds {:.0} --scenario {} --device {} --threads {}{inject}",
            job.seconds.ceil(),
            job.scenario.name,
            job.device.id,
            job.threads
        ),
        ..record
    };
    (verdict, record)
}

/// Time in which a worker may still tell of a standstill that was this program's own.
const SETTLE: Duration = Duration::from_secs(5);

/// One worker from start to end.
#[allow(clippy::too_many_arguments, reason = "the state of a phase, passed on by its only caller")]
fn attempt(
    job: &Job<'_>,
    seconds: f64,
    heartbeat: f64,
    spawn: &dyn Spawn,
    post: &Post,
    stop: Stop<'_>,
    told: &mut Told<'_>,
    heat: &mut Heat,
) -> End {
    told.doing = "starting".into();
    let phase = Phase {
        scenario: String::new(),
        seconds,
        threads: job.threads,
        heartbeat,
        seed: job.seed,
        inject: job.inject(),
        sharing: job.sharing,
        trace: job.cfg.trace.clone(),
        // Some services that share a card among processes end all of them for one's fault.
        victim: spawn.program().filter(|_| !job.cfg.shared),
    };
    let task = phase_task(job.device, job.scenario, phase);
    let mut child = match task_text(&task).and_then(|t| spawn.spawn(&t)) {
        Ok(child) => child,
        Err(e) => return End::Refused(e.to_string()),
    };
    told.pid = child.pid();
    let lines = reader(child.as_mut());
    let mut start = Instant::now();
    let (mut heard, mut journaled, mut shown) = (start, start, start);
    let mut stopped: Option<Instant> = None;
    // Why the worker was told to stop, if the card is too hot.
    let mut hot: Option<String> = None;
    let mut clocks = Clocks::default();
    let mut gap: Option<(Instant, Jump)> = None;
    let mut finished = false;
    let who = format!("{} on {}", job.scenario.name, job.device.id);
    loop {
        let line = lines.recv_timeout(Duration::from_millis(20));
        for jump in clocks.tick(Tick::now()) {
            if let Jump::Stopped(seconds) = jump {
                // The worker may have waited for us: every wait for it begins anew.
                let away = Duration::from_secs_f64(seconds);
                (start, heard) = (start + away, Instant::now());
                stopped = stopped.map(|s| s + away);
                gap = Some((Instant::now(), jump));
                told.record.remarks.push(jump.words());
                post.event(Event::Jump(jump));
            } else if !told.record.remarks.contains(&jump.words()) {
                told.record.remarks.push(jump.words());
            }
        }
        match line {
            Ok(Line::Stalled { doing, seconds }) => {
                child.kill();
                // A standstill no longer than our own, told right after it, is that one.
                let explains =
                    |g: &(Instant, Jump)| g.0.elapsed() < SETTLE && seconds < g.1.seconds() + SETTLE.as_secs_f64();
                if let Some((_, jump)) = gap.filter(explains) {
                    return End::Disturbed(jump.words());
                }
                return End::Hang(format!("no progress for {seconds:.1} s in: {doing}"));
            }
            Ok(Line::Refused(told)) => return End::Refused(told.error().to_string()),
            Ok(line) => {
                heard = Instant::now();
                finished |= matches!(line, Line::Finished { .. });
                let counted = matches!(line, Line::Sample { .. } | Line::Finished { .. });
                told.hear(line);
                if counted {
                    told.journal(job, post);
                }
            }
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) if finished => {
                // What comes after the account is the driver's own clean-up: it may crash or hang as well.
                let exit = await_end(child.as_mut(), Duration::from_secs_f64(heartbeat));
                return match exit {
                    Some(e) if e.success() => match (stopped, hot) {
                        (Some(_), Some(why)) if !stop.raised() => End::Paused(why),
                        (Some(_), _) => End::Stopped,
                        (None, _) => End::Finished,
                    },
                    Some(e) => End::Crash(format!("{} at the end of the process", e.words())),
                    None => End::Hang(format!("the process did not end within {heartbeat:.1} s")),
                };
            }
            Err(RecvTimeoutError::Disconnected) => {
                let how = ending(child.as_mut());
                return if stopped.is_some() && (hot.is_none() || stop.raised()) {
                    End::Stopped
                } else {
                    End::Crash(format!("the worker ended by {how}; last operation: {}", told.doing))
                };
            }
        }
        let now = Instant::now();
        told.card.iter_mut().for_each(Watch::tick);
        if stop.raised() && stopped.is_none() {
            stopped = Some(now);
            child.stop();
        }
        if stopped.is_none()
            && !finished
            && let Some(why) = heat.too_hot(told.card.as_ref())
        {
            (stopped, hot) = (Some(now), Some(why));
            child.stop();
        }
        if job.cfg.fail_early && stopped.is_none() && told.now.mismatches.saturating_add(told.now.errors) > 0 {
            stopped = Some(now);
            child.stop();
        }
        if stopped.is_some_and(|s| (now - s).as_secs_f64() > GRACE.max(0.5 * heartbeat).min(5.0)) {
            child.kill();
            return match hot {
                Some(why) if !stop.raised() => {
                    told.record
                        .not_tested
                        .push("what the last operation before a pause left: it did not end in time".into());
                    End::Paused(why)
                }
                _ => End::Stopped,
            };
        }
        if (now - heard).as_secs_f64() > heartbeat {
            child.kill();
            return End::Hang(format!("the worker was silent for {heartbeat:.1} s; last operation: {}", told.doing));
        }
        if !finished && (now - start).as_secs_f64() > 2.0 * seconds + heartbeat + 5.0 {
            child.kill();
            return End::Hang(format!("the worker did not end long after its time; last operation: {}", told.doing));
        }
        if (now - journaled).as_secs_f64() >= 60.0
            && let Some(sample) = told.series.samples.last()
        {
            journaled = now;
            let c = told.counts();
            let entry = Entry::Running {
                utc: utc_now(),
                scenario: job.scenario.name.into(),
                device: job.device.id.clone(),
                done: c.done,
                bytes_checked: c.bytes_checked,
                mismatches: c.mismatches,
                sample: sample.clone(),
                telemetry: Box::new(told.card.as_ref().map(|c| c.so_far().clone()).unwrap_or_default()),
            };
            post.entry(entry);
        }
        if (now - shown).as_secs_f64() >= 0.5 {
            shown = now;
            let c = told.counts();
            post.event(Event::Live(Box::new(told.live(job))));
            post.progress(Progress {
                doing: status(&who, &c, told.series.samples.last()),
                done: job.start.elapsed().as_secs(),
                total: Some(job.cfg.seconds.ceil() as u64),
            });
        }
    }
}

/// The status line: what was done, how fast, what the card tells, what went wrong.
fn status(who: &str, c: &Counts, sample: Option<&StressSample>) -> String {
    let mut text = format!("{who}: {} cycles", c.done);
    if let Some(s) = sample {
        text.push_str(&format!(", {}/s", units::three(s.rate)));
    }
    text.push_str(&format!(", {} checked", units::bytes(c.bytes_checked)));
    if let Some(t) = sample.and_then(|s| s.temperature_c) {
        text.push_str(&format!(", {t:.0} °C"));
    }
    if let Some(w) = sample.and_then(|s| s.power_w) {
        text.push_str(&format!(", {w:.0} W"));
    }
    let (wrong, failed) = (c.mismatches, c.errors);
    text.push_str(&if wrong == 0 && failed == 0 {
        ", no errors".into()
    } else {
        format!(", {wrong} WRONG, {failed} FAILED")
    });
    text
}
