//! `gpuctl stress`: works a device for hours, checks every result, and says what that proves.
//!
//! The parent ([`run`]) never touches a driver: it starts workers ([`worker()`]), one per scenario and device, bounds
//! every wait, replaces workers that die or hang, and keeps a journal. Verdicts are pure functions ([`verdict`]).

mod cards;
pub mod clocks;
mod drift;
mod faults;
pub mod guard;
mod heat;
pub mod journal;
pub mod node;
pub mod plan;
mod planted;
mod post;
pub mod resume;
mod run;
pub mod scenario;
mod self_test;
pub mod simulated;
mod supervisor;
pub mod verdict;
mod watch;
pub mod worker;

use std::path::PathBuf;

use crate::base::record::{StressDevice, StressRecord};
use crate::base::{Absence, Code, DeviceInfo, Env, Error, Result, units};
use crate::device::cpu::available_threads;

pub use planted::Planted;
pub use run::run;
pub use self_test::{SelfTestConfig, SelfTestSummary, Threads, self_test, self_test_line};
pub use supervisor::{Child, Exe, Exit, Spawn};
pub use verdict::{Evidence, Limits, Verdict, judge};
pub use worker::{Line, Phase, Task, run_phase, run_phase_opening, run_task, worker};

/// What to do.
#[derive(Clone, Debug, PartialEq)]
pub struct StressConfig {
    /// Seconds in all, for each device; its scenarios share them ([`plan`]).
    pub seconds: f64,
    /// Scenarios in this order; empty means as many as fit.
    pub scenarios: Vec<String>,
    /// Devices as `--device` names them; `None` for the default ones.
    pub device: Option<String>,
    /// Threads of the scenarios that use many; 0 means [`MANY_THREADS`] in a run of [`LONG_RUN`] seconds or more, else four per
    /// CPU, at least 8 and at most 16.
    pub threads: u32,
    /// Journal: a file, or a folder (a path without an extension) in which one is made; `None` for none.
    /// [`default_journal`] is the usual place.
    pub journal: Option<PathBuf>,
    /// Go on with an earlier run: its journal, or a folder of which the newest unfinished one is taken. What was asked for
    /// then replaces what is asked here.
    pub resume: Option<PathBuf>,
    /// Work on cards that other processes use.
    pub shared: bool,
    /// Degrees Celsius of a card above which its phases pause; they go on [`guard::COOLER`] below.
    pub max_temp: Option<f64>,
    /// Judge phases below their scenario's floor of seconds like others: for whoever tests detectors, not devices.
    pub below_floor: bool,
    /// A fault to plant, as [`Planted::parse`] reads it.
    pub inject: Option<String>,
    /// End at the first finding.
    pub fail_early: bool,
    /// Seconds without any sign of progress after which a worker counts as hung; `None` means the length of a phase,
    /// at least 10 and at most 60.
    pub heartbeat: Option<f64>,
    /// A tree that looks like `/` from which cards' telemetry is read; `None`: this system's sources.
    pub tree: Option<PathBuf>,
    /// Folder into which workers write their parts of a trace ([`crate::engine::trace`]); `None`: nothing is traced.
    pub trace: Option<PathBuf>,
    /// Thresholds of the verdicts.
    pub limits: Limits,
    /// The command line, for the journal.
    pub command: Vec<String>,
}

impl Default for StressConfig {
    fn default() -> Self {
        StressConfig {
            seconds: 60.0,
            scenarios: Vec::new(),
            device: None,
            threads: 0,
            journal: None,
            resume: None,
            shared: false,
            max_temp: None,
            below_floor: false,
            inject: None,
            fail_early: false,
            heartbeat: None,
            tree: None,
            trace: None,
            limits: Limits::default(),
            command: Vec::new(),
        }
    }
}

/// What came of it.
#[derive(Clone, Debug)]
pub struct StressSummary {
    /// The worst verdict of all phases and of the comparison between cards; `Inconclusive` if there was none.
    pub verdict: Verdict,
    /// 0 pass, 1 a finding, 4 inconclusive or nothing checked, 5 a crashed worker, 130 interrupted before anything was found.
    pub exit_code: u8,
    /// Seconds asked for, for each device.
    pub planned_seconds: f64,
    /// Seconds really tested, on the device with the fewest.
    pub tested_seconds: f64,
    /// True if the run was stopped before its end.
    pub interrupted: bool,
    /// One record per phase.
    pub records: Vec<StressRecord>,
    /// What was not tested, with reasons.
    pub not_tested: Vec<String>,
    /// What the comparison between cards of one model found.
    pub findings: Vec<String>,
    /// What happened that is no fault.
    pub remarks: Vec<String>,
    /// Phases taken over from the journal of an earlier run.
    pub resumed_phases: u64,
    /// The verdict of each device.
    pub by_device: Vec<StressDevice>,
    /// Devices that took part.
    pub devices: Vec<DeviceInfo>,
    /// Devices and backends that are not there, with reasons.
    pub absent: Vec<Absence>,
    /// Where the journal is, if one was kept.
    pub journal: Option<PathBuf>,
}

impl StressSummary {
    /// The last line: verdict, scenarios that passed of all that there are, time really tested, what was not tested.
    pub fn line(&self) -> String {
        let passed = self.records.iter().filter(|r| r.verdict == Verdict::Pass.name()).count();
        let checked = self.records.iter().fold(0u64, |sum, r| sum.saturating_add(r.bytes_checked));
        let mut text = format!(
            "{}{} ({} of {}): {passed} of {} phases passed, {} tested, {} of results checked",
            if self.interrupted { "interrupted; " } else { "" },
            self.verdict.name(),
            self.scenarios_passed(),
            scenario::SCENARIOS.len(),
            self.records.len(),
            node::of(self.tested_seconds, self.planned_seconds),
            units::bytes(checked),
        );
        if self.by_device.len() > 1 {
            let each: Vec<_> = self.by_device.iter().map(|d| format!("{} {}", d.device, d.verdict)).collect();
            text.push_str(&format!("; {}", each.join(", ")));
        }
        match &self.not_tested[..] {
            [] => {}
            [one] => text.push_str(&format!("; not tested: {one}")),
            [first, rest @ ..] => text.push_str(&format!("; not tested: {first}; and {} more", rest.len())),
        }
        text
    }
}

/// The folder in which journals are kept unless told otherwise; `None` where the user has no home.
pub fn default_journal(env: &Env) -> Option<PathBuf> {
    env.state_dir.as_ref().map(|d| d.join("stress"))
}

/// Threads of a run that has the time for them.
pub const MANY_THREADS: u32 = 128;
/// Seconds of such a run: on a slow device 128 threads need a while for a turn each.
pub const LONG_RUN: f64 = 600.0;

impl StressConfig {
    /// Scenario rows in order, threads and heartbeat made concrete. `BadArgument` for what makes no sense.
    fn resolve(&self) -> Result<Resolved> {
        // Ten years: beyond that a duration no longer fits the clock's arithmetic.
        if !(self.seconds > 0.0 && self.seconds < 3.2e8) {
            return Err(Error::new(Code::BadArgument, format!("{} seconds: expected more than 0", self.seconds)));
        }
        Planted::parse(self.inject.as_deref())?;
        run::check_limit(self.max_temp)?;
        let scenarios = if self.scenarios.is_empty() {
            scenario::SCENARIOS.iter().collect()
        } else {
            self.scenarios.iter().map(|s| scenario::find(s)).collect::<Result<Vec<_>>>()?
        };
        let threads = match self.threads {
            0 if self.seconds >= LONG_RUN => MANY_THREADS,
            0 => (4 * available_threads()).clamp(8, 16) as u32,
            n if n <= 1024 => n,
            n => return Err(Error::new(Code::BadArgument, format!("{n} threads: at most 1024"))),
        };
        if self.heartbeat.is_some_and(|h| !(h > 0.0 && h < 1e6)) {
            return Err(Error::new(Code::BadArgument, "the heartbeat must be more than 0 seconds"));
        }
        Ok(Resolved { scenarios, threads })
    }
}

struct Resolved {
    scenarios: Vec<&'static scenario::Scenario>,
    threads: u32,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_with_time_for_them_has_more_than_a_hundred_threads() {
        let threads = |seconds, threads| {
            StressConfig { seconds, threads, ..StressConfig::default() }.resolve().map(|r| r.threads).ok()
        };
        assert_eq!((threads(600.0, 0), threads(86_400.0, 0)), (Some(128), Some(128)));
        assert!(threads(60.0, 0).is_some_and(|n| (8..=16).contains(&n)));
        assert_eq!((threads(600.0, 4), threads(60.0, 300)), (Some(4), Some(300)), "what was asked for");
        assert_eq!(threads(600.0, 1025), None);
    }
}
