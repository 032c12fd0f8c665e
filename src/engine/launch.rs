//! Calls that nobody waits in: made by threads of the engine, with a handle to wait for, to ask, to cancel, or to await.
//!
//! A launched call owns its operands, so no copy outlives the data it reads, and its results are the handle's alone. Several
//! calls are under way at once, each on a queue of its own: one's copies run beside another's kernels where the device can.
//! Results do not depend on the order in which the threads take the calls.

use std::collections::VecDeque;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use crate::base::{Attrs, Cancel, Code, Error, HostTensor, Result};

use super::{Engine, Outcome};

/// Threads of an engine for launched calls.
const THREADS: usize = 4;

/// A call that was launched.
struct Call {
    engine: Weak<Engine>,
    op: String,
    inputs: Vec<HostTensor>,
    attrs: Attrs,
    shared: Arc<Shared>,
}

/// What a call and its handle share.
struct Shared {
    cancel: Cancel,
    state: Mutex<Progress>,
    ended: Condvar,
}

#[derive(Default)]
struct Progress {
    /// What the call gave, until the handle takes it.
    result: Option<Result<Outcome>>,
    ended: bool,
    waker: Option<Waker>,
}

fn lock<T>(m: &Mutex<T>) -> MutexGuard<'_, T> {
    m.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shared {
    fn end(&self, result: Result<Outcome>) {
        let waker = {
            let mut state = lock(&self.state);
            if state.ended {
                return;
            }
            state.result = Some(result);
            state.ended = true;
            state.waker.take()
        };
        self.ended.notify_all();
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

impl Drop for Call {
    /// A call that never ran must not leave its handle waiting.
    fn drop(&mut self) {
        self.shared.end(Err(Error::new(Code::Cancelled, "the engine is gone").op(&self.op)));
    }
}

/// A call under way. Dropping it lets the call go on and its results go; [`Handle::cancel`] before that ends it.
///
/// It is a [`Future`] of any runtime, or of none.
pub struct Handle {
    shared: Arc<Shared>,
}

impl std::fmt::Debug for Handle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Handle({})", if self.is_done() { "done" } else { "under way" })
    }
}

fn taken() -> Error {
    Error::new(Code::BadArgument, "the call's results were taken before")
}

impl Handle {
    /// Whether the call has ended.
    pub fn is_done(&self) -> bool {
        lock(&self.shared.state).ended
    }

    /// The call ends with the error `Cancelled` as soon as it may: before it begins, or between two of its steps. Work that
    /// a device has begun goes on there, unseen. After the end it does nothing.
    pub fn cancel(&self) {
        self.shared.cancel.raise();
    }

    /// Waits for the end. Errors: those of [`Engine::run`], and `Cancelled`.
    pub fn wait(self) -> Result<Outcome> {
        let state = self.shared.ended.wait_while(lock(&self.shared.state), |s| !s.ended);
        state.unwrap_or_else(PoisonError::into_inner).result.take().unwrap_or_else(|| Err(taken()))
    }

    /// Waits at most `timeout`; `None` if the call has not ended by then. It goes on.
    pub fn wait_for(&self, timeout: Duration) -> Option<Result<Outcome>> {
        let waited = self.shared.ended.wait_timeout_while(lock(&self.shared.state), timeout, |s| !s.ended);
        let mut state = waited.unwrap_or_else(PoisonError::into_inner).0;
        state.ended.then(|| state.result.take().unwrap_or_else(|| Err(taken())))
    }
}

impl Future for Handle {
    type Output = Result<Outcome>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let mut state = lock(&self.shared.state);
        if state.ended {
            return Poll::Ready(state.result.take().unwrap_or_else(|| Err(taken())));
        }
        state.waker = Some(context.waker().clone());
        Poll::Pending
    }
}

/// Calls that wait for a thread.
#[derive(Default)]
struct Waiting {
    calls: VecDeque<Call>,
    /// Threads that hold the engine, each one reference, taken and given up under this lock.
    at_work: usize,
    over: bool,
}

#[derive(Default)]
struct Line {
    waiting: Mutex<Waiting>,
    came: Condvar,
}

/// The threads.
pub(super) struct Launcher {
    line: Arc<Line>,
}

impl Launcher {
    /// Errors: `KernelFailed` if not even one thread can be started.
    fn start(thread: Spawn) -> Result<Self> {
        let line: Arc<Line> = Arc::default();
        for i in 0..THREADS {
            if let Err(e) = thread(i, Arc::clone(&line)) {
                if i == 0 {
                    let none = Error::new(Code::KernelFailed, "no thread for launched calls can be started");
                    return Err(none.caused_by(e));
                }
                log::warn!("launched calls have {i} threads: {e}");
                break;
            }
        }
        Ok(Launcher { line })
    }
}

/// Starts a thread of a number for a line.
type Spawn = fn(usize, Arc<Line>) -> std::io::Result<()>;

fn spawn(i: usize, line: Arc<Line>) -> std::io::Result<()> {
    let thread = std::thread::Builder::new().name(format!("gpuctl-launch-{i}"));
    thread.spawn(move || work(&line)).map(drop)
}

impl Drop for Launcher {
    fn drop(&mut self) {
        let calls = {
            let mut waiting = lock(&self.line.waiting);
            waiting.over = true;
            std::mem::take(&mut waiting.calls)
        };
        self.line.came.notify_all();
        // Their handles learn it.
        drop(calls);
    }
}

/// The next call with its engine; none once the line is over. A call whose engine has gone, or is held by nobody but these
/// threads, ends here: else they would keep the engine for one another until the last call is done.
fn next(line: &Line) -> Option<(Call, Arc<Engine>)> {
    loop {
        let waiting = line.came.wait_while(lock(&line.waiting), |w| w.calls.is_empty() && !w.over);
        let mut waiting = waiting.unwrap_or_else(PoisonError::into_inner);
        let call = waiting.calls.pop_front()?;
        let last = match call.engine.upgrade() {
            Some(engine) if Arc::strong_count(&engine) > waiting.at_work + 1 => {
                waiting.at_work += 1;
                return Some((call, engine));
            }
            engine => engine.and_then(Arc::into_inner),
        };
        // The engine's drop takes the lock, the call's tells its handle, whose waker may launch another.
        drop(waiting);
        drop((last, call));
    }
}

fn work(line: &Line) {
    while let Some((call, engine)) = next(line) {
        let inputs: Vec<&HostTensor> = call.inputs.iter().collect();
        let run = AssertUnwindSafe(|| engine.run_unless(&call.op, &inputs, &call.attrs, Some(&call.shared.cancel)));
        let result =
            catch_unwind(run).unwrap_or_else(|_| Err(Error::new(Code::Internal, "the call panicked").op(&call.op)));
        call.shared.end(result);
        let mut waiting = lock(&line.waiting);
        waiting.at_work -= 1;
        let last = Arc::into_inner(engine);
        drop(waiting);
        // Its drop takes the lock.
        drop(last);
    }
}

impl Engine {
    /// [`Engine::run`] without waiting: the operands are the call's until it has ended.
    ///
    /// ```
    /// use std::sync::Arc;
    /// use gpuctl::base::{Attrs, HostTensor};
    /// use gpuctl::engine::Engine;
    ///
    /// # fn main() -> gpuctl::base::Result<()> {
    /// let engine = Arc::new(Engine::builder().profile("preset:always-cpu").build()?);
    /// let x = HostTensor::from_slice(&[-1.0f32, 0.0, 2.5], &[3])?;
    /// let handle = engine.launch("relu", vec![x], &Attrs::new());
    /// assert_eq!(handle.wait()?.outputs[0].to_vec::<f32>()?, [0.0, 0.0, 2.5]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// Every error comes out of the handle.
    pub fn launch(self: &Arc<Self>, op: &str, inputs: Vec<HostTensor>, attrs: &Attrs) -> Handle {
        self.launch_by(spawn, op, inputs, attrs)
    }

    fn launch_by(self: &Arc<Self>, thread: Spawn, op: &str, inputs: Vec<HostTensor>, attrs: &Attrs) -> Handle {
        let shared = Arc::new(Shared { cancel: Cancel::new(), state: Mutex::default(), ended: Condvar::new() });
        let handle = Handle { shared: Arc::clone(&shared) };
        let call = Call { engine: Arc::downgrade(self), op: op.into(), inputs, attrs: attrs.clone(), shared };
        match self.launcher(thread) {
            Ok(Launcher { line }) => {
                lock(&line.waiting).calls.push_back(call);
                line.came.notify_one();
            }
            // Nobody would ever take it.
            Err(e) => call.shared.end(Err(e.op(op))),
        }
        handle
    }

    /// The threads, started at first need. Without any nothing is kept, so that the next call tries again.
    fn launcher(&self, thread: Spawn) -> Result<&Launcher> {
        match self.launcher.get() {
            Some(launcher) => Ok(launcher),
            None => {
                let started = Launcher::start(thread)?;
                Ok(self.launcher.get_or_init(|| started))
            }
        }
    }

    /// Waits until every handle's call has ended, or the time is over; true if all have.
    pub fn wait_all(handles: &[Handle], timeout: Duration) -> bool {
        let start = Instant::now();
        handles.iter().all(|h| {
            let left = timeout.saturating_sub(start.elapsed());
            let waited = h.shared.ended.wait_timeout_while(lock(&h.shared.state), left, |s| !s.ended);
            waited.unwrap_or_else(PoisonError::into_inner).0.ended
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::Env;

    /// Limits of a container may leave no thread; whoever waits is told, and a later call is made.
    #[test]
    fn a_call_that_no_thread_takes_tells_its_handle() {
        let engine = Engine::builder().env(Env::default()).profile("preset:always-cpu").threads(1).build().unwrap();
        let engine = Arc::new(engine);
        let x = || HostTensor::from_slice(&[-1.0f32, 2.0], &[2]).unwrap();
        let none: Spawn = |_, _| Err(std::io::Error::from(std::io::ErrorKind::WouldBlock));
        let handle = engine.launch_by(none, "relu", vec![x()], &Attrs::new());
        let told = handle.wait_for(Duration::from_secs(20)).expect("the handle waits for ever");
        let e = told.unwrap_err();
        assert!(e.code() == Code::KernelFailed && e.to_string().contains("no thread"), "{e}");
        let one: Spawn = |i, line| if i == 0 { spawn(i, line) } else { Err(std::io::ErrorKind::WouldBlock.into()) };
        let handle = engine.launch_by(one, "relu", vec![x()], &Attrs::new());
        let done = handle.wait_for(Duration::from_secs(60)).unwrap().unwrap();
        assert_eq!(done.outputs[0].to_vec::<f32>().unwrap(), [0.0, 2.0]);
    }
}
