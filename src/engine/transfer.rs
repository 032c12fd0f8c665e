//! Copies that nobody waits in, and copies between devices.
//!
//! A copy under way either owns the host's data, and gives them back when it has ended ([`Copying`]), or borrows them for a scope
//! that it cannot outlive ([`copies`]): in neither can the data go, or be changed, while a device reads them.

use std::future::Future;
use std::marker::PhantomData;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::thread::Scope;
use std::time::Duration;

use crate::base::{Code, Element, Error, Result};
use crate::device::MemoryKind;

use super::Target;
use super::resident::{DeviceVec, Resident, Way, hold};

/// Threads of a device for copies that nobody waits in: one each way.
const THREADS: usize = 2;
/// Bytes that go by way of the host at once.
const PIECE: u64 = 16 << 20;

fn lock<T>(m: &Mutex<T>) -> MutexGuard<'_, T> {
    m.lock().unwrap_or_else(PoisonError::into_inner)
}

type Job = Box<dyn FnOnce() + Send>;

/// The threads of a device's copies; they end when it goes.
#[derive(Default)]
pub(super) struct Copier {
    line: Mutex<Option<Sender<Job>>>,
}

impl Copier {
    /// Has the job done by a thread, or here if there is none.
    fn give(&self, job: Job) {
        let mut line = lock(&self.line);
        let sender = match &*line {
            Some(sender) => Some(sender.clone()),
            None => {
                let (sender, jobs) = mpsc::channel::<Job>();
                let jobs = Arc::new(Mutex::new(jobs));
                let started = (0..THREADS).filter(|_| start(&jobs)).count();
                (started > 0).then(|| line.insert(sender).clone())
            }
        };
        drop(line);
        let left = match sender {
            Some(sender) => sender.send(job).err().map(|e| e.0),
            None => Some(job),
        };
        if let Some(job) = left {
            job();
        }
    }
}

fn start(jobs: &Arc<Mutex<Receiver<Job>>>) -> bool {
    let jobs = Arc::clone(jobs);
    let work = move || {
        loop {
            let next = lock(&jobs).recv();
            let Ok(job) = next else { return };
            job();
        }
    };
    std::thread::Builder::new().name("gpuctl-copy".into()).spawn(work).is_ok()
}

/// What an asynchronous copy gave: the host's data, whatever happened, and the device's array or the error.
pub type Copied<T> = (Vec<T>, Result<DeviceVec<T>>);

struct State<T: Element> {
    ended: bool,
    /// Until it is taken.
    copied: Option<Copied<T>>,
    waker: Option<Waker>,
}

struct Shared<T: Element> {
    state: Mutex<State<T>>,
    rung: Condvar,
}

/// A copy under way, which owns the host's data until it has ended. Dropping it lets the copy go on.
///
/// It is a [`Future`] of any runtime, or of none.
pub struct Copying<T: Element> {
    shared: Arc<Shared<T>>,
}

impl<T: Element> std::fmt::Debug for Copying<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Copying({})", if self.is_done() { "done" } else { "under way" })
    }
}

impl<T: Element> Copying<T> {
    /// Starts a copy between these data and the array.
    fn start(
        data: Vec<T>,
        array: DeviceVec<T>,
        work: impl FnOnce(&mut Vec<T>, &mut DeviceVec<T>) -> Result<()> + Send + 'static,
    ) -> Self {
        let state = State { ended: false, copied: None, waker: None };
        let shared = Arc::new(Shared { state: Mutex::new(state), rung: Condvar::new() });
        let (told, home) = (Arc::clone(&shared), array.home().clone());
        let job = move || {
            let (mut data, mut array) = (data, array);
            let done = catch_unwind(AssertUnwindSafe(|| work(&mut data, &mut array)));
            let done = done.unwrap_or_else(|_| Err(Error::new(Code::Internal, "the copy panicked")));
            let waker = {
                let mut state = lock(&told.state);
                (state.ended, state.copied) = (true, Some((data, done.map(|()| array))));
                state.waker.take()
            };
            told.rung.notify_all();
            waker.into_iter().for_each(Waker::wake);
        };
        home.runner.copier.give(Box::new(job));
        Copying { shared }
    }

    /// Whether the copy has ended.
    pub fn is_done(&self) -> bool {
        lock(&self.shared.state).ended
    }

    /// Waits at most so long; true if the copy has ended.
    pub fn wait_for(&self, timeout: Duration) -> bool {
        let waited = self.shared.rung.wait_timeout_while(lock(&self.shared.state), timeout, |s| !s.ended);
        waited.unwrap_or_else(PoisonError::into_inner).0.ended
    }

    /// Waits for the end. How long a copy may take is the engine's deadline.
    pub fn wait(self) -> Copied<T> {
        let waited = self.shared.rung.wait_while(lock(&self.shared.state), |s| !s.ended);
        waited.unwrap_or_else(PoisonError::into_inner).copied.take().unwrap_or_else(taken)
    }
}

/// What a future gives that is asked again after its end.
fn taken<T: Element>() -> Copied<T> {
    (Vec::new(), Err(Error::new(Code::BadArgument, "the copy's result was taken before")))
}

impl<T: Element> Future for Copying<T> {
    type Output = Copied<T>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Copied<T>> {
        let mut state = lock(&self.shared.state);
        if state.ended {
            return Poll::Ready(state.copied.take().unwrap_or_else(taken));
        }
        state.waker = Some(cx.waker().clone());
        Poll::Pending
    }
}

impl Target<'_> {
    /// [`Target::upload`] without waiting: the data are the copy's until it has ended, and come back with the array.
    ///
    /// ```
    /// # fn main() -> gpuctl::base::Result<()> {
    /// # let engine = gpuctl::engine::Engine::builder().profile("preset:always-cpu").build()?;
    /// let copying = engine.on("cpu")?.upload_async(vec![1.0f32, 2.0, 3.0])?;
    /// // ... something else ...
    /// let (data, array) = copying.wait();
    /// assert_eq!(array?.to_vec()?, data);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// Errors: those of allocating. Those of the copy come out of [`Copying::wait`].
    pub fn upload_async<T: Element>(&self, data: Vec<T>) -> Result<Copying<T>> {
        let array = Resident::new(&self.home, T::DTYPE, &[data.len() as u64], MemoryKind::Device)?;
        let array = DeviceVec { array, of: PhantomData };
        Ok(Copying::start(data, array, |data, array| array.overwrite(data)))
    }
}

impl<T: Element> DeviceVec<T> {
    /// [`DeviceVec::download`] without waiting: `into` is the copy's until it has ended, and comes back filled. Errors, that of a
    /// length that does not fit among them, come out of [`Copying::wait`].
    pub fn download_async(&self, into: Vec<T>) -> Copying<T> {
        Copying::start(into, self.clone(), |into, array| array.download(into))
    }
}

/// Copies of borrowed data, made side by side: all have ended when this returns. The error is the first that one of them met.
///
/// ```
/// # fn main() -> gpuctl::base::Result<()> {
/// # let engine = gpuctl::engine::Engine::builder().profile("preset:always-cpu").build()?;
/// # let device = engine.on("cpu")?;
/// # let (mut x, y) = (device.upload(&[0.0f32; 3])?, device.upload(&[4.0f32; 3])?);
/// let data = vec![1.0f32, 2.0, 3.0];
/// let mut out = [0.0f32; 3];
/// gpuctl::engine::copies(|c| {
///     c.upload(&mut x, &data);
///     c.download(&y, &mut out);
/// })?;
/// assert_eq!((x.to_vec()?, out), (data, [4.0; 3]));
/// # Ok(())
/// # }
/// ```
///
/// Data that go before the copies end do not compile:
///
/// ```compile_fail,E0597
/// # fn main() -> gpuctl::base::Result<()> {
/// # let engine = gpuctl::engine::Engine::builder().profile("preset:always-cpu").build()?;
/// # let device = engine.on("cpu")?;
/// # let mut x = device.upload(&[0.0f32; 3])?;
/// gpuctl::engine::copies(|c| {
///     let data = vec![1.0f32, 2.0, 3.0];
///     c.upload(&mut x, &data);
/// })?;
/// # Ok(())
/// # }
/// ```
///
/// Nor do data that are written while they are copied:
///
/// ```compile_fail,E0506
/// # fn main() -> gpuctl::base::Result<()> {
/// # let engine = gpuctl::engine::Engine::builder().profile("preset:always-cpu").build()?;
/// # let device = engine.on("cpu")?;
/// # let y = device.upload(&[0.0f32; 3])?;
/// let mut out = [0.0f32; 3];
/// gpuctl::engine::copies(|c| {
///     c.download(&y, &mut out);
///     out[0] = 1.0;
/// })?;
/// # Ok(())
/// # }
/// ```
pub fn copies<'env, R>(work: impl for<'scope> FnOnce(&Copies<'scope, 'env>) -> R) -> Result<R> {
    let first = Arc::new(Mutex::new(None));
    let done = std::thread::scope(|scope| work(&Copies { scope, first: Arc::clone(&first) }));
    lock(&first).take().map_or(Ok(done), Err)
}

/// The copies of one scope.
pub struct Copies<'scope, 'env> {
    scope: &'scope Scope<'scope, 'env>,
    first: Arc<Mutex<Option<Error>>>,
}

impl std::fmt::Debug for Copies<'_, '_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Copies")
    }
}

impl<'env> Copies<'_, 'env> {
    /// [`DeviceVec::overwrite`], beside the scope's other copies.
    pub fn upload<T: Element>(&self, to: &'env mut DeviceVec<T>, data: &'env [T]) {
        self.copy(move || to.overwrite(data));
    }

    /// [`DeviceVec::download`], beside the scope's other copies.
    pub fn download<T: Element>(&self, from: &'env DeviceVec<T>, out: &'env mut [T]) {
        self.copy(move || from.download(out));
    }

    fn copy(&self, copy: impl FnOnce() -> Result<()> + Send + 'env) {
        let first = Arc::clone(&self.first);
        let note = move |done: Result<()>| {
            if let Err(e) = done {
                lock(&first).get_or_insert(e);
            }
        };
        let unstarted = note.clone();
        let thread = std::thread::Builder::new().name("gpuctl-copy".into());
        let contained = move || {
            let done = catch_unwind(AssertUnwindSafe(copy));
            note(done.unwrap_or_else(|_| Err(Error::new(Code::Internal, "the copy panicked"))));
        };
        if let Err(e) = thread.spawn_scoped(self.scope, contained) {
            // The copy went with the thread that did not begin.
            unstarted(Err(Error::new(Code::OutOfHostMemory, format!("no thread for a copy: {e}"))));
        }
    }
}

/// How an array came to another device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Via {
    /// It lay there already; the copy was made within the device.
    Device,
    /// From one device to the other by the driver, without host memory of ours.
    Peer,
    /// Through host memory, in pieces.
    Host,
}

impl Resident {
    /// A copy of the array on a device, and how it came there.
    ///
    /// Errors: those of allocating there and of copying on either device.
    pub fn to(&self, target: &Target<'_>) -> Result<(Resident, Via)> {
        let there = Resident::new(&target.home, self.dtype, &self.shape, MemoryKind::Device)?;
        let _hold = hold(&[self], None);
        let (src, dst) = (&self.memory, &there.memory);
        if self.home().is(&target.home) {
            let direct = src.tell(dst.tell(target.home.queued(|q| self.enqueue_copy(q, &dst.buffer))))?;
            if direct {
                target.home.traffic.add(Way::Within, self.bytes);
                return Ok((there, Via::Device));
            }
        }
        if !self.home().is(&target.home) {
            // No queue of ours works on the source meanwhile: its last work was waited for, and it is held.
            let (from, bytes) = (self.offset, self.bytes);
            match target.home.queued(|q| q.copy_peer(&src.buffer, from, &dst.buffer, 0, bytes)) {
                Ok(()) => {
                    target.home.traffic.add(Way::Within, self.bytes);
                    return Ok((there, Via::Peer));
                }
                Err(e) if e.code() == Code::FeatureUnsupported => {}
                Err(e) => return src.tell(dst.tell(Err(e))),
            }
        }
        let mut piece = vec![0u8; self.bytes.min(PIECE) as usize];
        let mut at = 0;
        while at < self.bytes {
            let now = &mut piece[..(self.bytes - at).min(PIECE) as usize];
            src.tell(self.home().queued(|q| q.read(&src.buffer, self.offset + at, now)))?;
            dst.tell(target.home.queued(|q| q.write(&dst.buffer, at, now)))?;
            at += now.len() as u64;
        }
        self.home().traffic.add(Way::Down, self.bytes);
        target.home.traffic.add(Way::Up, self.bytes);
        Ok((there, Via::Host))
    }
}

impl<T: Element> DeviceVec<T> {
    /// [`Resident::to`].
    pub fn to(&self, target: &Target<'_>) -> Result<(DeviceVec<T>, Via)> {
        let (array, via) = self.array.to(target)?;
        Ok((DeviceVec { array, of: PhantomData }, via))
    }
}
