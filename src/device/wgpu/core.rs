//! What all parts of an opened wgpu device share: the handles, how errors and losses are caught, how waits end.
//!
//! wgpu reports errors through scopes of the calling thread, through a callback for those outside of any scope, by
//! losing the device (a callback that runs inside a later poll), and, when a poll itself fails, by a panic. [`Core`]
//! turns all four into typed errors. After a loss wgpu accepts calls without complaint and does nothing, so the flag
//! that the loss callback sets is looked at on every call.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use wgpu::{ErrorFilter, PollError, PollType, SubmissionIndex};

use crate::base::api::Api;
use crate::base::{Code, Error, RealClock, Result};
use crate::device::{Ledger, Waited};

use super::given::OnLost;
use super::program::RawProgram;

/// Longest stretch of one poll. wgpu holds a lock while it waits, on which releases of buffers in other threads queue.
const SLICE: Duration = Duration::from_millis(10);

/// What the driver told outside of a call: written by callbacks, read by every call.
#[derive(Debug, Default)]
pub(super) struct Told {
    /// Row of the table and the driver's words.
    lost: Mutex<Option<(&'static str, String)>>,
    late: Mutex<Option<Error>>,
}

fn lock<T>(m: &Mutex<T>) -> MutexGuard<'_, T> {
    m.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Told {
    fn lose(&self, row: &'static str, why: String) {
        lock(&self.lost).get_or_insert((row, why));
    }
    pub(super) fn lost(&self) -> Option<String> {
        lock(&self.lost).as_ref().map(|l| l.1.clone())
    }
    fn loss(&self) -> Option<Error> {
        lock(&self.lost).as_ref().map(|(row, why)| Api::Wgpu.named_error(row, why.clone(), Code::DeviceLost))
    }
}

/// Whose device it is.
pub(super) enum Owner {
    Gpuctl,
    /// The program's, which may want to be told of a loss.
    Program(Option<OnLost>),
}

/// An opened device.
pub(super) struct Core {
    pub(super) id: String,
    pub(super) serial: u64,
    pub(super) device: wgpu::Device,
    pub(super) queue: wgpu::Queue,
    pub(super) limits: wgpu::Limits,
    /// Seconds per tick of timestamps in encoders, if the device has them.
    pub(super) tick: Option<f64>,
    pub(super) clock: Arc<RealClock>,
    pub(super) ledger: Arc<Ledger>,
    /// The program that fills buffers, built at its first use.
    pub(super) filler: Mutex<Option<Arc<RawProgram>>>,
    pub(super) told: Arc<Told>,
    next_buffer: AtomicU64,
    /// A wait has timed out and none has succeeded since.
    hung: AtomicBool,
    /// It is the program's: it is never destroyed.
    theirs: bool,
}

impl Core {
    pub(super) fn new(id: String, device: wgpu::Device, queue: wgpu::Queue, timestamps: bool, owner: Owner) -> Self {
        let (theirs, on_lost) = match owner {
            Owner::Gpuctl => (false, None),
            Owner::Program(on_lost) => (true, on_lost),
        };
        let told = Arc::new(Told::default());
        let heard = Arc::clone(&told);
        device.set_device_lost_callback(move |why, message| {
            let text = if message.is_empty() { format!("{why:?}") } else { format!("{why:?}: {}", one_line(&message)) };
            heard.lose(reason(why), text);
            if let Some(on_lost) = &on_lost {
                on_lost(why, message);
            }
        });
        // Without a handler wgpu panics. A program's own handler is left to hear of the program's own mistakes.
        if !theirs {
            let heard = Arc::clone(&told);
            device.on_uncaptured_error(Arc::new(move |e| {
                lock(&heard.late).get_or_insert(typed(&e, Code::LaunchFailed));
            }));
        }
        let period = f64::from(queue.get_timestamp_period()) * 1e-9;
        Core {
            id,
            serial: crate::device::next_serial(),
            limits: device.limits(),
            device,
            queue,
            tick: (timestamps && period > 0.0).then_some(period),
            clock: Arc::new(RealClock::new()),
            ledger: Ledger::new(),
            filler: Mutex::default(),
            told,
            next_buffer: AtomicU64::new(0),
            hung: AtomicBool::new(false),
            theirs,
        }
    }

    pub(super) fn fail(&self, code: Code, why: impl Into<String>) -> Error {
        Error::new(code, why).device(&self.id)
    }

    /// A number that no other buffer of this device has.
    pub(super) fn buffer_number(&self) -> u64 {
        self.next_buffer.fetch_add(1, Ordering::Relaxed)
    }

    /// Fails if the device is lost or an earlier call failed late.
    pub(super) fn usable(&self) -> Result<()> {
        if let Some(e) = self.told.loss() {
            return Err(e.device(&self.id));
        }
        match lock(&self.told.late).take() {
            Some(e) => Err(e.device(&self.id)),
            None => Ok(()),
        }
    }

    /// Runs wgpu calls inside error scopes; `code` is what a validation error or a driver's internal error means here.
    /// A panic counts as a loss: wgpu panics where a lost device leaves it no other way out.
    pub(super) fn guarded<T>(&self, code: Code, calls: impl FnOnce() -> T) -> Result<T> {
        self.usable()?;
        let scopes = [ErrorFilter::OutOfMemory, ErrorFilter::Internal, ErrorFilter::Validation]
            .map(|filter| self.device.push_error_scope(filter));
        let result = catch_unwind(AssertUnwindSafe(calls));
        let mut error = None;
        for scope in scopes.into_iter().rev() {
            let caught = pollster::block_on(scope.pop());
            error = error.or(caught);
        }
        match (result, error) {
            (Err(panic), _) => {
                self.told.lose("panic", format!("wgpu panicked: {}", panic_text(&*panic)));
                Err(self.usable().err().unwrap_or_else(|| self.fail(Code::DeviceLost, "wgpu panicked")))
            }
            (Ok(_), Some(e)) => {
                // After a loss calls fail with all kinds of messages; the loss itself is told by a poll.
                self.pump()?;
                Err(typed(&e, code).device(&self.id))
            }
            (Ok(value), None) => {
                self.usable()?;
                Ok(value)
            }
        }
    }

    /// Lets callbacks run without waiting, so that a loss is noticed.
    pub(super) fn pump(&self) -> Result<()> {
        self.look()?;
        self.usable()
    }

    /// One poll that waits for nothing.
    pub(super) fn look(&self) -> Result<()> {
        self.poll_once(PollType::Poll).map(drop)
    }

    /// Waits until a submission is done, at most `deadline`.
    pub(super) fn wait(&self, submission: &SubmissionIndex, deadline: Duration) -> Result<Waited> {
        let start = Instant::now();
        loop {
            self.usable()?;
            let left = deadline.saturating_sub(start.elapsed());
            let done = self.poll_once(PollType::Wait {
                submission_index: Some(submission.clone()),
                timeout: Some(left.min(SLICE)),
            })?;
            self.usable()?;
            if done {
                self.hung.store(false, Ordering::Relaxed);
                return Ok(Waited::Done);
            }
            if left.is_zero() {
                self.hung.store(true, Ordering::Relaxed);
                return Ok(Waited::Timeout);
            }
        }
    }

    /// One poll; false if its time ran out.
    fn poll_once(&self, how: PollType) -> Result<bool> {
        match catch_unwind(AssertUnwindSafe(|| self.device.poll(how))) {
            Ok(Ok(_)) => Ok(true),
            Ok(Err(PollError::Timeout)) => Ok(false),
            // A submission that never came to be: the device was lost, which the next poll tells, or it is our mistake.
            Ok(Err(e @ PollError::WrongSubmissionIndex(..))) => {
                self.pump()?;
                let e =
                    Api::Wgpu.named_error("PollError::WrongSubmissionIndex", one_line(&e.to_string()), Code::Internal);
                Err(e.device(&self.id))
            }
            Err(panic) if overtaken(&panic_text(&*panic)) => Ok(false),
            Err(panic) => {
                let why = panic_text(&*panic);
                self.told.lose("panic", format!("poll failed: {why}"));
                Err(self.usable().err().unwrap_or_else(|| self.fail(Code::DeviceLost, why)))
            }
        }
    }
}

impl Drop for Core {
    /// wgpu waits for unfinished work when the last handle goes, without end on a hung GPU. After a timeout the
    /// handles are leaked instead; the process must still be ended with `exit`, as some drivers wait at its end too.
    fn drop(&mut self) {
        let last = PollType::Wait { submission_index: None, timeout: Some(SLICE) };
        if self.hung.load(Ordering::Relaxed) && !self.poll_once(last).unwrap_or(false) {
            if !self.theirs {
                self.device.destroy();
            }
            std::mem::forget((self.device.clone(), self.queue.clone()));
            self.ledger.release_failed("the device did not finish its work and was left behind".into());
        }
    }
}

/// An error as a row of the table names it. Each match is complete, so that a new kind of error does not compile.
fn typed(e: &wgpu::Error, code: Code) -> Error {
    let (name, detail) = match e {
        wgpu::Error::OutOfMemory { .. } => ("Error::OutOfMemory", "the driver gave no memory".into()),
        wgpu::Error::Validation { description, .. } => ("Error::Validation", one_line(description)),
        wgpu::Error::Internal { description, .. } => ("Error::Internal", one_line(description)),
    };
    Api::Wgpu.named_error(name, detail, code)
}

fn reason(r: wgpu::DeviceLostReason) -> &'static str {
    match r {
        wgpu::DeviceLostReason::Unknown => "DeviceLostReason::Unknown",
        wgpu::DeviceLostReason::Destroyed => "DeviceLostReason::Destroyed",
    }
}

/// The error of an adapter that gives no device.
pub(super) fn not_given(e: &wgpu::RequestDeviceError) -> Error {
    let why = format!("the adapter gave no device: {}", one_line(&e.to_string()));
    Api::Wgpu.named_error("RequestDeviceError", why, Code::ContextCreate)
}

/// wgpu's messages are trees over several lines; ours are one line.
pub(super) fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Whether a poll met a race of wgpu's, not a fault: its time was over, and before it had looked around another thread took what
/// had just been done. wgpu-core 30.0.1 panics then, of a sound device; later ones do not (gfx-rs/wgpu#9958). The next poll
/// sees how things stand; mappings that this one had made are there, but their callbacks went with the panic
/// ([`super::mapping`]).
pub(super) fn overtaken(panic: &str) -> bool {
    panic.starts_with("If the queue is empty, the current submission index")
}

fn panic_text(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str).or_else(|| panic.downcast_ref::<&str>().copied());
    one_line(text.unwrap_or("no message"))
}
