//! Queues on loan: how many calls work on a device at once, and who gets the place of one that ended.

use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::base::{Backend, Code, DeviceClass, DeviceInfo, Error, Result};
use crate::device::Queue;

use super::run::Runner;

/// Calls that work on a device at once; more would only take turns inside the driver, at a higher price. All queues of a wgpu
/// device are one inside, and a software device of wgpu's works on the processors of those who call: with eight at once on lavapipe
/// 128 threads reach 0.86 of the best rate of a few, with two 0.96 (`cargo bench --bench threads`).
pub(super) fn places(info: &DeviceInfo) -> usize {
    match (info.backend, info.class) {
        (Backend::Wgpu, DeviceClass::Software) => 2,
        (Backend::Wgpu, _) => 4,
        _ => 8,
    }
}

/// How often a waiting call gets the very place of one that ended, in microseconds. Each time a thread wakes and another goes to
/// sleep: every 0.5 ms that left 128 threads on PoCL 0.86 of the best rate of a few, every 5 ms it leaves 0.94. Where 128 threads
/// do nothing but call, the last of them then waits for half a second.
const HANDED_EVERY_US: u64 = 5_000;

/// A queue on loan; it goes back when dropped, unless it failed.
pub struct Leased<'r> {
    runner: &'r Runner,
    queue: Option<Box<dyn Queue>>,
    broken: bool,
}

impl std::fmt::Debug for Leased<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Leased(queue of {:?})", self.runner)
    }
}

impl Leased<'_> {
    /// The queue.
    pub fn queue(&mut self) -> Result<&mut dyn Queue> {
        match &mut self.queue {
            Some(q) => Ok(q.as_mut()),
            None => Err(Error::new(Code::Internal, "the leased queue is gone")),
        }
    }
    /// Gives the queue up instead of back: after a timeout or a lost device its state is unknown.
    pub fn discard(&mut self) {
        self.broken = true;
    }
    /// The same, and hands it over: releasing it may take as long as the device hangs.
    pub(super) fn give_up(&mut self) -> Option<Box<dyn Queue>> {
        self.broken = true;
        self.queue.take()
    }
}

impl Drop for Leased<'_> {
    fn drop(&mut self) {
        let queue = self.queue.take().filter(|_| !self.broken);
        self.runner.queues.give(queue, || self.runner.hands_over());
    }
}

impl Runner {
    /// Borrows a queue; makes one if all are in use.
    pub fn lease(&self) -> Result<Leased<'_>> {
        self.leased(self.queues.take())
    }

    /// The same for one of many callers: so many work at once, the others wait for their turn.
    ///
    /// Errors: `QueueBusy` if none comes back within `patience`.
    pub fn lease_in_turn(&self, patience: Duration) -> Result<Leased<'_>> {
        let taken = self.queues.take_in_turn(patience).map_err(|()| {
            let most = places(self.device.info());
            let why = format!("{most} calls are under way, and none ended within {:.1} s", patience.as_secs_f64());
            Error::new(Code::QueueBusy, why).device(&self.device.info().id)
        })?;
        self.leased(taken)
    }

    fn leased(&self, idle: Option<Box<dyn Queue>>) -> Result<Leased<'_>> {
        // From here on dropping it gives the place back.
        let mut leased = Leased { runner: self, queue: idle, broken: false };
        if leased.queue.is_none() {
            leased.queue = Some(self.device.queue().map_err(|e| e.device(&self.device.info().id))?);
        }
        Ok(leased)
    }

    /// Whether it is time to hand a place over.
    fn hands_over(&self) -> bool {
        let now = self.since.elapsed().as_micros() as u64;
        let due = now >= self.handed_us.load(Ordering::Relaxed).saturating_add(HANDED_EVERY_US);
        if due {
            self.handed_us.store(now, Ordering::Relaxed);
        }
        due
    }
}
