//! `--resume`: what a journal says was asked for, planned and done. Nothing is taken over that might be another machine's,
//! another version's, or unfinished.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use crate::base::record::{Host, StressRecord};
use crate::base::telemetry::Watched;
use crate::base::{Backend, Code, DeviceInfo, Error, Result};

use super::StressConfig;
use super::journal::{self, Asked, Entry, PlanOf};
use super::scenario;
use super::verdict::Verdict;

/// A run to go on with.
#[derive(Clone, Debug, PartialEq)]
pub struct Resumed {
    /// The journal.
    pub path: PathBuf,
    /// Its bytes that are whole lines.
    pub good: u64,
    /// When it began, in UTC.
    pub utc: String,
    /// What was asked for.
    pub asked: Asked,
    /// What was planned; `None` if it ended before that was known.
    pub plan: Option<(Vec<PlanOf>, Vec<String>)>,
    /// Finished phases, and those that were cut off after something had gone wrong.
    pub records: Vec<StressRecord>,
    /// Phases that were cut off without a record after something had gone wrong: a record each, for the journal.
    pub cut: Vec<StressRecord>,
    /// Scenario and uid of finished phases.
    finished: Vec<(String, String)>,
}

fn refused(path: &Path, why: &str) -> Error {
    Error::new(Code::BadArgument, format!("--resume {}: {why}", path.display()))
}

/// Finds the run to go on with: `at` is a journal, or a folder of which the newest unfinished one is taken. `host` is this
/// machine. Errors: `BadArgument` with the reason, `Io` for what cannot be read.
pub fn load(at: &Path, host: &Host) -> Result<Resumed> {
    if !at.is_dir() {
        if journal::in_use(at) {
            return Err(refused(at, "its run has not ended: another process writes to it"));
        }
        return of(at, host);
    }
    let mut last = None;
    for path in journal::journals(at)? {
        if journal::in_use(&path) {
            continue;
        }
        match state(&path) {
            Ok(State::Open) => return of(&path, host),
            Ok(State::Finished(summary)) => last = last.or(Some((path, summary))),
            // What is no journal is nobody's run.
            Ok(State::Empty) | Err(_) => {}
        }
    }
    Err(match last {
        Some((path, summary)) => {
            refused(at, &format!("no unfinished run; the last one, {}, is finished: {summary}", path.display()))
        }
        None => refused(at, "no journal of a run there"),
    })
}

enum State {
    Empty,
    Open,
    Finished(String),
}

fn state(path: &Path) -> Result<State> {
    let all = journal::contents(path)?;
    Ok(
        match all
            .entries
            .iter()
            .rev()
            .find(|e| matches!(e, Entry::Start { .. } | Entry::Resume { .. } | Entry::End { .. }))
        {
            None => State::Empty,
            Some(Entry::End { complete: true, summary, .. }) => State::Finished(summary.clone()),
            Some(_) => State::Open,
        },
    )
}

fn of(path: &Path, here: &Host) -> Result<Resumed> {
    let all = journal::contents(path)?;
    if all.damaged {
        let line = all.entries.len() + 1;
        return Err(refused(path, &format!("line {line} is damaged, and others follow it: no crash does that")));
    }
    // A file may hold several runs, one after the other; the last one counts.
    let start = all.entries.iter().rposition(|e| matches!(e, Entry::Start { .. }));
    let Some((Entry::Start { gpuctl, utc, host, asked, .. }, rest)) =
        start.and_then(|at| all.entries[at..].split_first())
    else {
        return Err(refused(path, "it holds no run of `gpuctl stress`"));
    };
    if gpuctl != env!("CARGO_PKG_VERSION") {
        let own = env!("CARGO_PKG_VERSION");
        return Err(refused(path, &format!("it was begun by gpuctl {gpuctl}, this is {own}; begin a new run")));
    }
    // Firmware and kernels take a little of the memory, not always the same.
    let near = |a: u64, b: u64| a.abs_diff(b) <= a.max(b) / 20;
    if host.cpu != here.cpu || !near(host.memory_bytes, here.memory_bytes) {
        return Err(refused(path, &format!("it was begun on another host ({}, this is {})", host.cpu, here.cpu)));
    }
    let Some(asked) = asked else {
        return Err(refused(path, "it does not say what was asked for"));
    };
    let mut run = Resumed {
        path: path.into(),
        good: all.good,
        utc: utc.clone(),
        asked: (**asked).clone(),
        plan: None,
        records: Vec::new(),
        cut: Vec::new(),
        finished: Vec::new(),
    };
    run.read(rest)?;
    Ok(run)
}

impl Resumed {
    fn read(&mut self, rest: &[Entry]) -> Result<()> {
        let mut open: BTreeMap<(String, String), StressRecord> = BTreeMap::new();
        let mut ended = None;
        for entry in rest {
            match entry {
                Entry::Plan { devices, left_out, .. } => self.plan = Some((devices.clone(), left_out.clone())),
                Entry::Resume { .. } => ended = None,
                Entry::End { complete, summary, .. } => ended = complete.then(|| summary.clone()),
                Entry::Finding { scenario, device, uid, verdict, what, .. } => {
                    let key = (scenario.clone(), uid.clone());
                    let known = open.entry(key).or_insert_with(|| begun(scenario, device, uid));
                    known.findings.push(what.clone());
                    let (old, new) = (Verdict::parse(&known.verdict), Verdict::parse(verdict));
                    if new > old {
                        known.verdict.clone_from(verdict);
                        known.reason = format!("before the run was cut off: {what}");
                    }
                }
                Entry::Phase { record, cut, .. } => {
                    let key = (record.scenario.clone(), record.uid.clone());
                    open.remove(&key);
                    let verdict = Verdict::parse(&record.verdict);
                    let Some(verdict) = verdict else {
                        let why = format!("it has a verdict that this version does not know: {}", record.verdict);
                        return Err(refused(&self.path, &why));
                    };
                    if !cut {
                        self.finished.push(key);
                    }
                    // What was cut off without a finding is run again and leaves nothing.
                    if !cut || verdict > Verdict::Inconclusive {
                        self.records.push((**record).clone());
                    }
                }
                Entry::Start { .. } | Entry::Running { .. } | Entry::Clock { .. } => {}
            }
        }
        if let Some(summary) = ended {
            return Err(refused(&self.path, &format!("its run is finished: {summary}")));
        }
        self.cut = open.into_values().collect();
        Ok(())
    }

    /// The configuration of the run; what concerns only this process is taken from `now`.
    pub fn config(&self, now: &StressConfig) -> StressConfig {
        let a = self.asked.clone();
        StressConfig {
            seconds: a.seconds,
            scenarios: a.scenarios,
            device: self.selection().or(a.device),
            threads: a.threads,
            inject: a.inject,
            fail_early: a.fail_early,
            heartbeat: a.heartbeat,
            shared: a.shared || now.shared,
            max_temp: a.max_temp,
            ..now.clone()
        }
    }

    /// The planned devices by what does not change when they are numbered anew.
    fn selection(&self) -> Option<String> {
        let (devices, _) = self.plan.as_ref()?;
        let simulated = |id: &str| id.split(':').next() == Some(Backend::Sim.name());
        let names: Vec<_> = devices.iter().map(|d| if simulated(&d.id) { &*d.id } else { &*d.uid }).collect();
        Some(names.join(","))
    }

    /// Refuses devices that are not those of the plan.
    pub fn check(&self, devices: &[DeviceInfo]) -> Result<()> {
        let Some((planned, _)) = &self.plan else { return Ok(()) };
        for p in planned {
            let Some(d) = devices.iter().find(|d| d.uid == p.uid) else {
                return Err(refused(&self.path, &format!("{} ({}, {}) is not there any more", p.id, p.name, p.uid)));
            };
            if (&d.name, &d.driver) != (&p.name, &p.driver) {
                let why = format!(
                    "{} was {} with {}, now it is {} with {}: what was tested before is not what would be now",
                    p.id, p.name, p.driver, d.name, d.driver
                );
                return Err(refused(&self.path, &why));
            }
        }
        for (scenario, _) in planned.iter().flat_map(|p| &p.phases) {
            scenario::find(scenario)?;
        }
        Ok(())
    }

    /// True for a phase that need not be run again.
    pub fn is_finished(&self, scenario: &str, uid: &str) -> bool {
        self.finished.iter().any(|(s, u)| s == scenario && u == uid)
    }

    /// Finished phases.
    pub fn finished(&self) -> usize {
        self.finished.len()
    }
}

/// The record of a phase of which only findings are known.
fn begun(scenario: &str, device: &str, uid: &str) -> StressRecord {
    StressRecord {
        scenario: scenario.into(),
        device: device.into(),
        uid: uid.into(),
        verdict: Verdict::Inconclusive.name().into(),
        telemetry: Watched::none("the phase was cut off"),
        rerun: format!("gpuctl stress --scenario {scenario} --device {device}"),
        ..StressRecord::default()
    }
}
