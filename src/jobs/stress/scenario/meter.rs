//! What a phase did: counted by its threads, looked at by the sampler, told to the parent.

use std::collections::BTreeMap;
use std::io::Write;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use crate::base::record::Speed;
use crate::base::stats::median;
use crate::base::{Cancel, Code, Error, Result};
use crate::device::LedgerState;
use crate::jobs::stress::worker::Line;

/// One thread's progress, watched for standstill.
#[derive(Debug, Default)]
pub struct Lane {
    steps: AtomicU64,
    active: AtomicBool,
    doing: Mutex<String>,
}

/// Counts of a phase, shared by its threads and the sampler, and the way out to the parent.
pub struct Meter<'a> {
    /// Raised to end the phase.
    pub stop: Cancel,
    lanes: Vec<Lane>,
    done: AtomicU64,
    bytes_made: AtomicU64,
    bytes_checked: AtomicU64,
    mismatches: AtomicU64,
    errors: AtomicU64,
    crash_after: Option<u64>,
    pub(super) deadline: Duration,
    quiet: Mutex<Option<LedgerState>>,
    left: Mutex<LedgerState>,
    times: Mutex<Vec<f64>>,
    counters: Mutex<BTreeMap<String, u64>>,
    speeds: Mutex<BTreeMap<String, Speeds>>,
    testing: OnceLock<Instant>,
    /// Nanoseconds since then in which this process did not run or was kept from reporting.
    away: AtomicU64,
    out: Mutex<&'a mut (dyn Write + Send)>,
}

impl std::fmt::Debug for Meter<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Meter({:?})", self.counts())
    }
}

/// Counts at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Counts {
    /// Cycles done.
    pub done: u64,
    /// Result bytes made.
    pub bytes_made: u64,
    /// Result bytes checked.
    pub bytes_checked: u64,
    /// Wrong results.
    pub mismatches: u64,
    /// Failed operations.
    pub errors: u64,
}

/// Speeds of one work that are kept.
const MEASURED: u64 = 1024;

/// The speeds of one work.
struct Speeds {
    unit: &'static str,
    rates: Vec<f64>,
    count: u64,
}

/// Findings beyond this many are only counted.
const TOLD: u64 = 20;

/// Adds to a counter that stays at its end: one that ran over would come back as a small one.
fn add(counter: &AtomicU64, by: u64) -> u64 {
    let sum = |n: u64| Some(n.saturating_add(by));
    counter.fetch_update(Ordering::Relaxed, Ordering::Relaxed, sum).unwrap_or(u64::MAX)
}

/// Two ledgers as one: what is live in both.
fn sum(a: LedgerState, b: LedgerState) -> LedgerState {
    LedgerState {
        buffers: a.buffers + b.buffers,
        bytes: a.bytes + b.bytes,
        pinned: a.pinned + b.pinned,
        queues: a.queues + b.queues,
        programs: a.programs + b.programs,
        events: a.events + b.events,
        ..a
    }
}

fn lock<T: ?Sized>(m: &Mutex<T>) -> MutexGuard<'_, T> {
    m.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<'a> Meter<'a> {
    /// A meter for so many lanes whose waits end after `deadline`. With `crash_after` the process aborts itself after
    /// that many cycles.
    pub fn new(
        out: &'a mut (dyn Write + Send),
        lanes: u32,
        stop: Cancel,
        deadline: Duration,
        crash_after: Option<u64>,
    ) -> Self {
        Meter {
            stop,
            lanes: (0..lanes.max(1)).map(|_| Lane::default()).collect(),
            done: AtomicU64::new(0),
            bytes_made: AtomicU64::new(0),
            bytes_checked: AtomicU64::new(0),
            mismatches: AtomicU64::new(0),
            errors: AtomicU64::new(0),
            crash_after,
            deadline,
            quiet: Mutex::default(),
            left: Mutex::default(),
            times: Mutex::default(),
            counters: Mutex::default(),
            speeds: Mutex::default(),
            testing: OnceLock::new(),
            away: AtomicU64::new(0),
            out: Mutex::new(out),
        }
    }

    /// Sends one line to the parent. A parent that is gone ends the phase.
    pub fn send(&self, line: &Line) {
        let mut out = lock(&self.out);
        let written = serde_json::to_vec(line).map_err(std::io::Error::from).and_then(|mut text| {
            text.push(b'\n');
            out.write_all(&text)?;
            out.flush()
        });
        if written.is_err() {
            self.stop.raise();
        }
    }

    /// Says what the lane is about to do. The parent knows it before it happens, so a crash has a name.
    pub fn doing(&self, lane: usize, what: &str) {
        if let Some(l) = self.lanes.get(lane) {
            lock(&l.doing).replace_range(.., what);
            l.active.store(true, Ordering::Relaxed);
            l.steps.fetch_add(1, Ordering::Relaxed);
        }
        self.send(&Line::Op { lane: lane as u32, doing: what.to_string() });
    }

    /// The lane has nothing more to do; it is no longer watched.
    pub fn rest(&self, lane: usize) {
        if let Some(l) = self.lanes.get(lane) {
            l.active.store(false, Ordering::Relaxed);
        }
    }

    /// The lane moved, without a finished cycle.
    pub fn step(&self, lane: usize) {
        if let Some(l) = self.lanes.get(lane) {
            l.steps.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// From here on results are checked: what came before was preparation.
    pub fn testing(&self) {
        self.testing.get_or_init(Instant::now);
    }

    /// Seconds since results are checked, without those in which nothing could run.
    pub fn tested_seconds(&self) -> f64 {
        let away = self.away.load(Ordering::Relaxed) as f64 * 1e-9;
        self.testing.get().map_or(0.0, |t| (t.elapsed().as_secs_f64() - away).max(0.0))
    }

    /// For so long nothing could run: the process was stopped, or nobody read its reports. No tested time.
    pub fn away(&self, time: Duration) {
        if self.testing.get().is_some() {
            add(&self.away, u64::try_from(time.as_nanos()).unwrap_or(u64::MAX));
        }
    }

    /// One finished cycle: result bytes made, of which checked, and the seconds it took.
    pub fn cycle(&self, lane: usize, made: u64, checked: u64, seconds: f64) {
        self.step(lane);
        let done = add(&self.done, 1).saturating_add(1);
        add(&self.bytes_made, made);
        add(&self.bytes_checked, checked);
        let mut times = lock(&self.times);
        // Enough for a 99th percentile; a sampler that is late must not make memory grow.
        if times.len() < 4096 {
            times.push(seconds);
        }
        drop(times);
        if self.crash_after.is_some_and(|n| done >= n) {
            super::die();
        }
    }

    /// A wrong result.
    pub fn mismatch(&self, what: String) {
        if add(&self.mismatches, 1) < TOLD {
            self.send(&Line::Finding { what });
        }
    }

    /// A failed operation. A device that is lost or poisoned ends the phase: the caller gets `false`. One that did not
    /// finish within its deadline hangs, and the parent hears so.
    pub fn failed(&self, e: &Error) -> bool {
        if e.code() == Code::LaunchTimeout {
            self.send(&Line::Stalled { doing: e.to_string(), seconds: self.deadline.as_secs_f64() });
        }
        if add(&self.errors, 1) < TOLD {
            self.send(&Line::Finding { what: e.to_string() });
        }
        !matches!(e.class(), crate::base::Class::Lost | crate::base::Class::Sticky)
    }

    /// Counts a failed operation; the error comes back only if the phase cannot go on after it.
    pub(super) fn survive(&self, e: Error) -> Result<()> {
        if self.failed(&e) { Ok(()) } else { Err(e) }
    }

    /// Something that is left out, and why.
    pub fn not_tested(&self, what: String) {
        self.send(&Line::NotTested { what });
    }

    /// Adds to a counter of the scenario's own.
    pub fn count(&self, name: &str, by: u64) {
        *lock(&self.counters).entry(name.to_string()).or_default() += by;
    }

    /// The scenario's own counters.
    pub fn counters(&self) -> BTreeMap<String, u64> {
        lock(&self.counters).clone()
    }

    /// The device did `work` units of what is called `what` in so many seconds of its own.
    pub fn speed(&self, what: &str, unit: &'static str, work: f64, seconds: f64) {
        if !(work > 0.0 && seconds > 0.0) {
            return;
        }
        let mut all = lock(&self.speeds);
        let of = all.entry(what.to_string()).or_insert_with(|| Speeds { unit, rates: Vec::new(), count: 0 });
        // The last ones count: a phase of hours would keep the first for ever.
        let at = (of.count % MEASURED) as usize;
        match of.rates.get_mut(at) {
            Some(rate) => *rate = work / seconds,
            None => of.rates.push(work / seconds),
        }
        of.count += 1;
    }

    /// The medians of the speeds that were measured.
    pub fn speeds(&self) -> BTreeMap<String, Speed> {
        let of = |s: &Speeds| Speed { rate: median(&s.rates), unit: s.unit.into(), samples: s.count };
        lock(&self.speeds).iter().map(|(what, s)| (what.clone(), of(s))).collect()
    }

    /// The ledger at a point where the scenario holds nothing on purpose.
    pub fn quiet(&self, state: LedgerState) {
        *lock(&self.quiet) = Some(state);
    }

    /// What is still allocated on a device that the scenario opened besides, and is done with.
    pub fn left(&self, state: LedgerState) {
        let mut left = lock(&self.left);
        *left = sum(*left, state);
    }

    /// A ledger with all that was left elsewhere.
    pub fn with_left(&self, state: LedgerState) -> LedgerState {
        sum(state, *lock(&self.left))
    }

    /// The last quiet ledger.
    pub fn last_quiet(&self) -> Option<LedgerState> {
        *lock(&self.quiet)
    }

    /// Counts so far.
    pub fn counts(&self) -> Counts {
        let get = |a: &AtomicU64| a.load(Ordering::Relaxed);
        Counts {
            done: get(&self.done),
            bytes_made: get(&self.bytes_made),
            bytes_checked: get(&self.bytes_checked),
            mismatches: get(&self.mismatches),
            errors: get(&self.errors),
        }
    }

    /// Seconds of the cycles since the last call.
    pub fn take_times(&self) -> Vec<f64> {
        std::mem::take(&mut *lock(&self.times))
    }

    /// Steps of every active lane and what it does.
    pub fn lanes(&self) -> Vec<Option<(u64, String)>> {
        let state = |l: &Lane| {
            l.active.load(Ordering::Relaxed).then(|| (l.steps.load(Ordering::Relaxed), lock(&l.doing).clone()))
        };
        self.lanes.iter().map(state).collect()
    }
}
