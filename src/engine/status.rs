//! What an engine got, and why: its profile, devices and their states, and what they did so far.

use std::fmt;

use crate::base::Absence;

use super::pool::PoolStats;
use super::{Engine, Placement, State, Stats};

/// A device of an engine.
#[derive(Clone, Debug, PartialEq)]
pub struct DeviceStatus {
    /// Id, as [`super::Outcome::ran_on`] names it.
    pub id: String,
    /// Identity that stays.
    pub uid: String,
    /// What it calls itself.
    pub name: String,
    /// Whether it has been opened: devices are, at their first call.
    pub opened: bool,
    /// Whether it is used; `None` if it could not be opened.
    pub state: Option<State>,
    /// Failures since its last successful call.
    pub failures: u32,
    /// Why it is not used, or was not the last time.
    pub why: String,
    /// Programs built so far, and the seconds that took.
    pub builds: (u64, f64),
    /// Its pool of memory, if it has one.
    pub pool: Option<PoolStats>,
}

/// What an engine got, and why.
#[derive(Clone, Debug, PartialEq)]
pub struct Status {
    /// Where the profile came from.
    pub profile: String,
    /// Who decides.
    pub placement: Placement,
    /// The CPU.
    pub cpu: DeviceStatus,
    /// GPUs; empty as long as no call could go to one, for until then none is looked for.
    pub gpus: Vec<DeviceStatus>,
    /// What is not there, and why.
    pub absent: Vec<Absence>,
    /// Calls so far.
    pub calls: Stats,
}

impl fmt::Display for DeviceStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = match (&self.state, self.opened) {
            (None, _) => "did not open",
            (Some(State::Serving), false) => "not opened yet",
            (Some(state), _) => state.name(),
        };
        write!(f, "{} {}: {state}", self.id, self.name)?;
        if !self.why.is_empty() {
            write!(f, " ({})", self.why)?;
        }
        if self.builds.0 > 0 {
            write!(f, "; {} programs in {:.3} s", self.builds.0, self.builds.1)?;
        }
        if let Some(p) = self.pool.filter(|p| p.hits + p.misses > 0) {
            let (mb, percent) = (1e-6, 100.0 * p.hit_rate());
            write!(f, "; pool {percent:.0} % hits, {:.1} MB idle", p.idle_bytes as f64 * mb)?;
        }
        Ok(())
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "profile {}, placement {:?}", self.profile, self.placement)?;
        writeln!(f, "{}", self.cpu)?;
        self.gpus.iter().try_for_each(|g| writeln!(f, "{g}"))?;
        self.absent.iter().try_for_each(|a| writeln!(f, "{}: {} (next: {})", a.what, a.reason, a.next))?;
        let c = &self.calls;
        write!(
            f,
            "calls: {} on the CPU, {} on GPUs, {} fallbacks, {} retries, {} recoveries",
            c.cpu, c.gpu, c.fallbacks, c.retries, c.recoveries
        )
    }
}

impl Engine {
    /// What the engine got, and why. Opens nothing.
    ///
    /// ```
    /// # fn main() -> gpuctl::base::Result<()> {
    /// let engine = gpuctl::engine::Engine::builder().profile("preset:always-cpu").build()?;
    /// println!("{}", engine.status());
    /// assert_eq!(engine.status().cpu.id, "cpu");
    /// # Ok(())
    /// # }
    /// ```
    pub fn status(&self) -> Status {
        let runner = &self.places.cpu;
        let info = runner.device().info();
        let cpu = DeviceStatus {
            id: info.id.clone(),
            uid: info.uid.clone(),
            name: info.name.clone(),
            opened: true,
            state: Some(State::Serving),
            failures: 0,
            why: String::new(),
            builds: runner.builds(),
            pool: runner.pool().map(|p| p.stats()),
        };
        let seen = self.places.gpus.get();
        let mut gpus = seen.map_or_else(Vec::new, |g| g.all.iter().map(|gpu| gpu.status()).collect());
        let beyond = self.places.beyond.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        gpus.extend(beyond.iter().map(|gpu| gpu.status()));
        Status {
            profile: self.source.to_string(),
            placement: self.places.placement.clone(),
            cpu,
            gpus,
            absent: seen.map_or_else(Vec::new, |g| g.absent.clone()),
            calls: self.stats(),
        }
    }
}
