//! One device of an engine that calls may be sent to: opened at first need, taken out of service when it fails, opened again
//! after a rest, and back in service when it gives a known answer.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::Duration;

use crate::base::{Case, Class, Clock, Code, DeviceInfo, Error, Result};
use crate::device::probe::Found;
use crate::device::tap::Tracer;
use crate::device::{Device, Health, traced};
use crate::op::OpDesc;

use super::KernelCache;
use super::judge::{self, Judged};
use super::pool::PoolConfig;
use super::recover::{Failure, Recovery, RecoveryConfig, State};
use super::resident::Traffic;
use super::run::Runner;
use super::status::DeviceStatus;

/// What all devices of an engine share.
pub(super) struct Common {
    /// The engine's clock.
    pub(super) clock: Arc<dyn Clock>,
    /// Changes when a device leaves or returns: decisions made before may be void.
    pub(super) changes: AtomicU64,
    /// Devices that may come back.
    pub(super) resting: AtomicU64,
    /// Devices that came back so far.
    pub(super) returns: AtomicU64,
    pub(super) recovery: RecoveryConfig,
    /// `None`: every call allocates.
    pub(super) pool: Option<PoolConfig>,
    /// `None`: nothing is traced.
    pub(super) tracer: Option<Arc<Tracer>>,
    /// Where compiled kernels are kept.
    pub(super) kernels: KernelCache,
    /// How long a call may take on a device.
    pub(super) deadline: Duration,
    /// Copies of arrays that live on devices.
    pub(super) traffic: Arc<Traffic>,
}

impl Common {
    /// A runner as this engine's calls want it.
    pub(super) fn runner(&self, device: Arc<dyn Device>) -> Runner {
        let runner = Runner::new(match &self.tracer {
            // One that is tried again is traced already.
            Some(tracer) if !device.tap().is_some_and(|tap| Arc::ptr_eq(tap.tracer(), tracer)) => {
                traced::device(device, tracer)
            }
            _ => device,
        });
        let runner = runner.keeping(self.kernels.clone());
        match &self.pool {
            Some(pool) => runner.pooled(pool.clone()),
            None => runner,
        }
    }
}

/// The device as it is open now.
enum Opened {
    Not,
    Runner(Arc<Runner>),
    /// It did not open, which is not tried again.
    Failed(Code, String),
}

/// A device that calls may be sent to.
pub(super) struct Gpu {
    pub(super) info: DeviceInfo,
    /// How it is opened; `None` for a device that the program opened itself.
    found: Option<Found>,
    opened: RwLock<Opened>,
    recovery: Recovery,
    /// The call that failed, whose op must give a known answer before the device is used again.
    failed: Mutex<Option<(&'static OpDesc, Case)>>,
    /// Whether it is one of [`Common::resting`].
    counted: AtomicBool,
    common: Arc<Common>,
}

fn lock<T>(m: &Mutex<T>) -> MutexGuard<'_, T> {
    m.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Gpu {
    /// A device that is open already.
    pub(super) fn open(device: Arc<dyn Device>, common: &Arc<Common>) -> Self {
        let info = device.info().clone();
        Self::new(info, None, Opened::Runner(Arc::new(common.runner(device))), common)
    }

    /// A device that was seen.
    pub(super) fn seen(found: Found, common: &Arc<Common>) -> Self {
        Self::new(found.info.clone(), Some(found), Opened::Not, common)
    }

    /// A device that is open already, and how it is opened again.
    pub(super) fn open_from(device: Arc<dyn Device>, found: Found, common: &Arc<Common>) -> Self {
        let info = device.info().clone();
        Self::new(info, Some(found), Opened::Runner(Arc::new(common.runner(device))), common)
    }

    fn new(info: DeviceInfo, found: Option<Found>, opened: Opened, common: &Arc<Common>) -> Self {
        Gpu {
            info,
            found,
            opened: RwLock::new(opened),
            recovery: Recovery::new(common.recovery),
            failed: Mutex::default(),
            counted: AtomicBool::new(false),
            common: Arc::clone(common),
        }
    }

    /// Whether this is its id or uid.
    pub(super) fn called(&self, name: &str) -> bool {
        self.info.id == name || self.info.uid == name
    }

    /// Its runner; opens the device at the first call. A device that did not open is not tried again.
    pub(super) fn runner(&self) -> Result<Arc<Runner>> {
        let failed = |code: Code, why: &str| Err(Error::new(code, why).device(&self.info.id));
        match &*self.opened.read().unwrap_or_else(PoisonError::into_inner) {
            Opened::Runner(runner) => return Ok(Arc::clone(runner)),
            Opened::Failed(code, why) => return failed(*code, why),
            Opened::Not => {}
        }
        let mut opened = self.opened.write().unwrap_or_else(PoisonError::into_inner);
        if matches!(*opened, Opened::Not) {
            let found = self.found.as_ref().map(Found::open);
            *opened = match found {
                Some(Ok(device)) => Opened::Runner(Arc::new(self.common.runner(device))),
                Some(Err(e)) => Opened::Failed(e.code(), e.detail().to_string()),
                None => Opened::Failed(Code::DeviceMissing, "the device was never found".into()),
            };
        }
        match &*opened {
            Opened::Runner(runner) => Ok(Arc::clone(runner)),
            Opened::Failed(code, why) => failed(*code, why),
            Opened::Not => failed(Code::Internal, "the device is not open"),
        }
    }

    /// The runner, if the device is open; opens nothing.
    pub(super) fn at_hand(&self) -> Option<Arc<Runner>> {
        match &*self.opened.read().unwrap_or_else(PoisonError::into_inner) {
            Opened::Runner(runner) => Some(Arc::clone(runner)),
            _ => None,
        }
    }

    /// Why the device is not in use, if it is not.
    pub(super) fn out(&self) -> Option<String> {
        self.recovery.out()
    }

    /// What it is and did so far; opens nothing.
    pub(super) fn status(&self) -> DeviceStatus {
        let (state, failures, why) = self.recovery.state();
        let (state, why) = match &*self.opened.read().unwrap_or_else(PoisonError::into_inner) {
            Opened::Failed(_, why) => (None, why.clone()),
            _ => (Some(state), why),
        };
        let runner = self.at_hand();
        DeviceStatus {
            id: self.info.id.clone(),
            uid: self.info.uid.clone(),
            name: self.info.name.clone(),
            opened: runner.is_some(),
            state,
            failures,
            why,
            builds: runner.as_ref().map_or((0, 0.0), |r| r.builds()),
            pool: runner.as_ref().and_then(|r| r.pool()).map(|p| p.stats()),
        }
    }

    /// A call succeeded.
    pub(super) fn succeeded(&self) {
        self.recovery.succeeded();
    }

    /// A call failed with this runner, after all retries.
    pub(super) fn failed(&self, runner: &Arc<Runner>, op: &'static OpDesc, case: &Case, e: &Error) {
        let failure = match e.class() {
            // Nobody's fault, and too many callers at once.
            _ if matches!(e.code(), Code::Cancelled | Code::QueueBusy) => return,
            Class::Lost => Failure::Lost,
            Class::Sticky => Failure::Poisoned,
            // The call is to blame, or the kernel, or the memory is full: none makes the device a bad one.
            Class::Usage | Class::Unsupported | Class::Oom | Class::Internal => return,
            Class::Transient => Failure::Call,
        };
        // Of a device that was replaced meanwhile.
        if !self.at_hand().is_some_and(|now| Arc::ptr_eq(&now, runner)) {
            return;
        }
        if self.recovery.failed(self.common.clock.now(), failure, &e.to_string()) {
            *lock(&self.failed) = Some((op, case.clone()));
            self.left();
        }
    }

    /// The device has gone out of service.
    fn left(&self) {
        log::warn!("{} is out of use: {}", self.info.id, self.recovery.state().2);
        self.counted.store(true, Ordering::Release);
        self.common.resting.fetch_add(1, Ordering::AcqRel);
        self.common.changes.fetch_add(1, Ordering::AcqRel);
        self.settle();
    }

    /// Counts a device that is back, or gone for good, no longer among those that may come back.
    fn settle(&self) {
        let state = self.recovery.state().0;
        if matches!(state, State::Serving | State::Disabled) && self.counted.swap(false, Ordering::AcqRel) {
            if state == State::Disabled {
                log::warn!("{} is not used any more in this process", self.info.id);
            }
            self.common.resting.fetch_sub(1, Ordering::AcqRel);
            self.common.changes.fetch_add(1, Ordering::AcqRel);
        }
    }

    /// Opens the device again if it rests and that time is over. In a thread of its own: a driver that hangs must hold up
    /// nobody's call.
    pub(super) fn look_after(self: &Arc<Self>) {
        let now = self.common.clock.now();
        // Without a claim: an attempt that hung may have been the last one allowed.
        let Some(attempt) = self.recovery.claim(now) else { return self.settle() };
        let gpu = Arc::clone(self);
        let thread = std::thread::Builder::new().name("gpuctl-recover".into());
        let spawned = thread.spawn(move || {
            let tried = catch_unwind(AssertUnwindSafe(|| gpu.again()));
            let tried = tried.unwrap_or_else(|_| Err("the driver's code panicked".into()));
            gpu.tried(attempt, tried);
        });
        if let Err(e) = spawned {
            self.tried(attempt, Err(format!("no thread to open it again: {e}")));
        }
    }

    fn tried(&self, attempt: u64, tried: Result<Arc<Runner>, String>) {
        let now = self.common.clock.now();
        let (result, runner) = match tried {
            Ok(runner) => (Ok(()), Some(runner)),
            Err(why) => (Err(why), None),
        };
        let mut old = None;
        let serves = self.recovery.ended(attempt, now, result.as_ref().copied().map_err(String::as_str), || {
            let mut opened = self.opened.write().unwrap_or_else(PoisonError::into_inner);
            if let Some(runner) = runner {
                old = Some(std::mem::replace(&mut *opened, Opened::Runner(runner)));
            }
            // Before anybody can meet it in service again.
            self.common.returns.fetch_add(1, Ordering::AcqRel);
        });
        // Releasing what the lost device held may take its time, too.
        drop(old);
        if serves {
            log::warn!("{} is in use again: it gave a known answer", self.info.id);
        } else if let Err(why) = &result {
            log::warn!("{} stays out of use: {why}", self.info.id);
        }
        self.settle();
    }

    /// A runner on the device, opened anew, that gave a known answer; else why not.
    fn again(&self) -> Result<Arc<Runner>, String> {
        let device = match &self.found {
            Some(found) => found.open().map_err(|e| e.to_string())?,
            None => match self.at_hand() {
                Some(runner) => Arc::clone(runner.device()),
                None => return Err("it was never open".into()),
            },
        };
        if device.info().uid != self.info.uid {
            return Err(format!("another device is in its place: {}", device.info().uid));
        }
        if let Health::Lost(why) = device.health() {
            return Err(why);
        }
        let runner = self.common.runner(device);
        let Some((op, case)) = lock(&self.failed).clone() else { return Err("no call is known to have failed".into()) };
        match judge::known_answer(&runner, op, &case, self.common.deadline) {
            Ok(Judged::Right(_)) => Ok(Arc::new(runner)),
            Ok(Judged::Wrong(found)) => Err(format!("its {} is wrong: {found}", op.name)),
            Ok(Judged::Unjudged(why)) => Err(format!("its {} cannot be judged: {why}", op.name)),
            Err(e) => Err(e.to_string()),
        }
    }
}
