//! A decorator that tells a [`Tracer`] what is done on a device: every allocation, build, copy, fill, launch and wait, with the
//! host's time of the call and, where the API times launches cheaply, the device's own.
//!
//! Nothing waits for the sake of a trace. Device times come from marks around launches, which are asked for at the next wait
//! that the program makes itself; how many that may be is bounded, since queues remember a bounded number of marks. Where the
//! question is a submission of its own (wgpu) it is asked for several launches at once, and of an idle queue alone.
//!
//! A device's clock tells how long something took, not when: a kernel stands as early on its row as the order of the queue
//! allows.

use std::sync::Arc;
use std::time::Duration;

use crate::base::trace::Kind;
use crate::base::{Backend, Clock, Code, DeviceClass, DeviceInfo, Error, Result};
use crate::kernel::cpu::Call as NativeCall;
use crate::kernel::{NativeArgs, NativeFn};

use super::probe::Rig;
use super::tap::{Grid, Raw, Tap, Tracer};
use super::{
    Advice, Block, Buffer, Device, Health, Launch, Ledger, ManagedUse, Mark, MemoryKind, MemoryState, Pitch, Place,
    Program, Queue, Sequence, Source, Span, Waited,
};

/// Launches behind each other that have a mark each; later ones of the same kind share one.
const SINGLE: usize = 16;
/// Launches, or groups of them, that have marks at all between two waits.
const MARKED: usize = 24;
/// Kernels whose times are asked for together, where each question is work for the device ...
const TOGETHER: usize = 16;
/// ... unless the last question is so long ago that one more costs nothing.
const QUIET_S: f64 = 0.1;
/// Where a mark ends a pass, which takes up to a tenth of a millisecond, one launch in so many seconds has marks.
const APART_S: f64 = 0.02;
/// What marks and questions may take of a queue's time: this at first, so that a short program has them all ...
const CREDIT_S: f64 = 0.005;
/// ... and this share later.
const SHARE: f64 = 0.004;
/// Marks of a queue that are surely remembered ([`Queue::span`] promises 64), less those of one more launch.
const REMEMBERED: u64 = 60;

/// How launches get a device time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Spans {
    /// A launch is done when the call returns.
    Host,
    /// By marks around it, asked for when the program has waited.
    Own,
    /// The same of one launch now and then, asked for several at a time: marks end passes, and each question is a submission of
    /// its own.
    Together,
}

impl Spans {
    fn of(info: &DeviceInfo) -> Self {
        match info.backend {
            Backend::Cpu if info.class != DeviceClass::Simulated => Spans::Host,
            Backend::Wgpu => Spans::Together,
            _ => Spans::Own,
        }
    }

    /// In words, for those who look for a time that is not there.
    const fn why(self) -> &'static str {
        match self {
            Spans::Host => "a launch is done when the call returns: its device time is the host's",
            Spans::Own => {
                "a launch is timed by marks around it; none of many between two waits, if it was not waited for, or where marks \
                 would take more than half a percent of the time"
            }
            Spans::Together => {
                "a launch is timed by marks around it now and then, where the adapter has timestamps between commands; the \
                 last few times are known when their queue goes"
            }
        }
    }
}

/// A traced device. Buffers and programs are those of the device inside.
pub struct TracedDevice {
    inner: Arc<dyn Device>,
    tap: Tap,
    spans: Spans,
}

impl std::fmt::Debug for TracedDevice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "TracedDevice({})", self.inner.info().id)
    }
}

/// The device with everything that is done through it told to the tracer.
pub fn device(inner: Arc<dyn Device>, tracer: &Arc<Tracer>) -> Arc<dyn Device> {
    let (info, spans) = (inner.info(), Spans::of(inner.info()));
    let tap = Tap::new(tracer, (&info.id, &info.name), inner.clock(), spans.why(), inner.ledger());
    Arc::new(TracedDevice { inner, tap, spans })
}

/// All devices of a rig traced, the CPU that they are compared with among them.
pub fn rig(rig: &mut Rig, tracer: &Arc<Tracer>) {
    let serial = rig.cpu.serial();
    rig.cpu = device(Arc::clone(&rig.cpu), tracer);
    for d in &mut rig.devices {
        *d = if d.serial() == serial { Arc::clone(&rig.cpu) } else { device(Arc::clone(d), tracer) };
    }
}

/// The code of a failure, for an event.
fn failure<T>(result: &Result<T>) -> Option<Code> {
    result.as_ref().err().map(Error::code)
}

impl TracedDevice {
    /// Does something on this thread's row. A text that `does` gives becomes the event's.
    fn on_thread<T>(&self, kind: Kind, bytes: u64, does: impl FnOnce(&mut Option<String>) -> Result<T>) -> Result<T> {
        let raw = self.tap.raw(kind, self.tap.thread_row(), self.tap.now());
        let mut text = None;
        let result = does(&mut text);
        let seconds = self.tap.now() - raw.at;
        self.tap.put_with(Raw { bytes, seconds, error: failure(&result), ..raw }, seconds, text);
        result
    }
}

impl Device for TracedDevice {
    fn info(&self) -> &DeviceInfo {
        self.inner.info()
    }
    fn serial(&self) -> u64 {
        self.inner.serial()
    }
    fn clock(&self) -> Arc<dyn Clock> {
        self.inner.clock()
    }
    fn ledger(&self) -> &Arc<Ledger> {
        self.inner.ledger()
    }
    fn memory(&self) -> MemoryState {
        self.inner.memory()
    }
    fn alloc(&self, bytes: u64, kind: MemoryKind) -> Result<Buffer> {
        self.on_thread(Kind::Alloc, bytes, |text| {
            *text = (kind != MemoryKind::Device).then(|| format!("{kind:?}").to_lowercase());
            let buffer = self.inner.alloc(bytes, kind)?;
            if matches!(kind, MemoryKind::Pinned | MemoryKind::Mapped) {
                buffer.set_pinned();
            }
            Ok(buffer)
        })
    }
    fn build(&self, source: Source<'_>, cached: Option<&[u8]>) -> Result<Program> {
        self.on_thread(Kind::Compile, 0, |text| {
            let program = self.inner.build(source, cached);
            let entry = match source {
                Source::Text(text) => text.entry.clone(),
                Source::Native(..) => "native".into(),
                Source::Routine(routine, _) => format!("{routine:?}"),
            };
            let cached = program.as_ref().is_ok_and(|p| p.stats().from_cache);
            *text = Some(if cached { format!("{entry}, from the cache") } else { entry });
            program
        })
    }
    fn queue(&self) -> Result<Box<dyn Queue>> {
        let inner = self.inner.queue()?;
        let (host, device) = self.tap.queue_rows();
        Ok(Box::new(TracedQueue {
            inner,
            tap: self.tap.clone(),
            host,
            device,
            spans: self.spans,
            run: Vec::new(),
            waiting: Vec::new(),
            position: None,
            newest: 0,
            idle: true,
            asked_at: f64::NEG_INFINITY,
            marked_at: f64::NEG_INFINITY,
            begun: self.tap.now(),
            spent: 0.0,
            device_end: 0.0,
            grid: (([0; 3], [0; 3]), 0),
        }))
    }
    fn health(&self) -> Health {
        self.inner.health()
    }
    fn managed(&self) -> Option<ManagedUse> {
        self.inner.managed()
    }
    fn oversubscribe(&self) -> bool {
        self.inner.oversubscribe()
    }
    fn destroy(&self) -> bool {
        self.inner.destroy()
    }
    fn native(&self, run: NativeFn, args: &mut NativeArgs<'_>, call: &NativeCall) -> Option<Result<()>> {
        let at = self.tap.now();
        let result = self.inner.native(run, args, call)?;
        let seconds = self.tap.now() - at;
        let raw = self.tap.raw(Kind::Launch, self.tap.thread_row(), at);
        let error = failure(&result);
        let device_s = error.is_none().then_some(seconds);
        self.tap.put(Raw { seconds, device_s, error, word: Some("on the caller's memory"), ..raw }, seconds);
        Some(result)
    }
    fn tap(&self) -> Option<&Tap> {
        Some(&self.tap)
    }
}

/// A launch, or several of one kind behind each other.
struct Ran {
    raw: Raw,
    /// What the calls took, without what lay between them.
    seconds: f64,
    from: Option<Mark>,
    to: Option<Mark>,
}

/// A kernel whose time can be asked for once it is done.
struct Timed {
    raw: Raw,
    from: Mark,
    to: Mark,
}

struct TracedQueue {
    inner: Box<dyn Queue>,
    tap: Tap,
    /// Rows.
    host: u32,
    device: u32,
    spans: Spans,
    /// Launches since another call; they are told when it comes.
    run: Vec<Ran>,
    /// Kernels whose time was not asked for.
    waiting: Vec<Timed>,
    /// The mark behind everything enqueued so far, if there is one.
    position: Option<Mark>,
    /// The newest mark of all.
    newest: u64,
    /// Whether everything that was enqueued is known to be done.
    idle: bool,
    /// When times were last asked for, and a launch was last given marks.
    asked_at: f64,
    marked_at: f64,
    /// When the queue was made, and what marks and questions have taken since.
    begun: f64,
    spent: f64,
    /// Where the next kernel stands at the earliest.
    device_end: f64,
    /// The last launch's groups and their number.
    grid: (Grid, u32),
}

impl TracedQueue {
    /// Does something on the host's row of this queue; it may put work in the queue.
    fn does<T>(&mut self, kind: Kind, bytes: u64, call: impl FnOnce(&mut dyn Queue) -> Result<T>) -> Result<T> {
        self.close();
        let at = self.tap.now();
        let result = call(self.inner.as_mut());
        let seconds = self.tap.now() - at;
        let error = failure(&result);
        self.tap.put(Raw { bytes, seconds, error, ..self.tap.raw(kind, self.host, at) }, seconds);
        if kind.is_copy() {
            (self.position, self.idle) = (None, false);
        }
        result
    }

    /// Ends the run of launches: tells them, and sets the mark behind the last.
    fn close(&mut self) {
        if self.run.is_empty() {
            return;
        }
        if self.run.last().is_some_and(|last| last.from.is_some() && last.to.is_none()) {
            let place = self.place();
            if let Some(last) = self.run.last_mut() {
                last.to = place;
            }
        }
        for ran in self.run.drain(..) {
            if let (Some(from), Some(to), None) = (ran.from, ran.to, ran.raw.error) {
                self.waiting.push(Timed { raw: ran.raw, from, to });
            }
            self.tap.put(ran.raw, ran.seconds);
        }
    }

    /// A mark at this point of the queue. A queue that cannot set one says so at the next call.
    fn place(&mut self) -> Option<Mark> {
        if self.position.is_none() {
            let at = self.tap.now();
            self.position = self.inner.mark().ok();
            self.newest = self.position.map_or(self.newest, |m| m.0);
            self.spent += self.tap.now() - at;
        }
        self.position
    }

    /// Asks for the times of kernels that are done: all, or those up to a mark. Where the question is work for the device, only
    /// of an idle queue, and if there are several, or none was asked for a while.
    fn resolve(&mut self, up_to: Option<Mark>) {
        if self.waiting.is_empty() {
            return;
        }
        if self.spans == Spans::Together {
            let now = self.tap.now();
            let enough = self.waiting.len() >= TOGETHER || now - self.asked_at >= QUIET_S || self.fades();
            if !self.idle || !enough {
                return;
            }
            self.asked_at = now;
        }
        self.ask(up_to);
    }

    /// Whether a launch may have marks now.
    fn marks(&mut self) -> bool {
        if self.spans == Spans::Host || self.waiting.len() + self.run.len() >= MARKED {
            return false;
        }
        // Where the program has set a mark itself one more use of it costs nothing.
        if self.position.is_some() {
            return true;
        }
        let now = self.tap.now();
        let afforded = self.spent <= CREDIT_S + SHARE * (now - self.begun);
        let due = afforded && (self.spans == Spans::Own || now - self.marked_at >= APART_S);
        if due {
            self.marked_at = now;
        }
        due
    }

    /// Whether the oldest mark that is needed may soon be forgotten.
    fn fades(&self) -> bool {
        self.waiting.first().is_some_and(|t| self.newest.saturating_sub(t.from.0) >= REMEMBERED)
    }

    fn ask(&mut self, up_to: Option<Mark>) {
        let done = up_to.map_or(self.waiting.len(), |mark| self.waiting.iter().take_while(|t| t.to <= mark).count());
        let mut waiting = std::mem::take(&mut self.waiting);
        let pairs: Pairs = waiting[..done].iter().map(|t| (t.from, t.to)).collect();
        let at = self.tap.now();
        let spans = self.inner.spans(&pairs);
        self.spent += self.tap.now() - at;
        for (Timed { raw, .. }, span) in waiting.drain(..done).zip(spans) {
            if let Ok(Span { device: Some(seconds), .. }) = span {
                self.kernel(raw, seconds);
            }
        }
        self.waiting = waiting;
    }

    /// Tells a kernel's time.
    fn kernel(&mut self, launch: Raw, seconds: f64) {
        let at = launch.at.max(self.device_end);
        self.device_end = at + seconds;
        let raw = Raw { kind: Kind::Kernel, track: self.device, at, seconds, device_s: Some(seconds), ..launch };
        self.tap.put(raw, seconds);
    }

    /// The number of a launch's groups.
    fn grid(&mut self, grid: Grid) -> u32 {
        if self.grid.0 != grid || self.grid.1 == 0 {
            self.grid = (grid, self.tap.grid(grid));
        }
        self.grid.1
    }
}

type Pairs = Vec<(Mark, Mark)>;

impl Queue for TracedQueue {
    fn write(&mut self, dst: &Buffer, offset: u64, data: &[u8]) -> Result<()> {
        self.does(Kind::H2d, data.len() as u64, |q| q.write(dst, offset, data))
    }
    fn read(&mut self, src: &Buffer, offset: u64, out: &mut [u8]) -> Result<()> {
        let bytes = out.len() as u64;
        self.does(Kind::D2h, bytes, |q| q.read(src, offset, out))?;
        self.idle = true;
        self.resolve(None);
        Ok(())
    }
    fn copy(&mut self, src: &Buffer, src_offset: u64, dst: &Buffer, dst_offset: u64, bytes: u64) -> Result<()> {
        // Page-locked and mapped memory is the host's.
        let kind = match (src.is_pinned(), dst.is_pinned()) {
            (true, false) => Kind::H2d,
            (false, true) => Kind::D2h,
            _ => Kind::D2d,
        };
        self.does(kind, bytes, |q| q.copy(src, src_offset, dst, dst_offset, bytes))
    }
    fn write_rows(&mut self, dst: &Buffer, to: Pitch, data: &[u8], from: Pitch, block: Block) -> Result<()> {
        let bytes = block.rows.saturating_mul(block.row_bytes);
        self.does(Kind::H2d, bytes, |q| q.write_rows(dst, to, data, from, block))
    }
    fn read_rows(&mut self, src: &Buffer, from: Pitch, out: &mut [u8], to: Pitch, block: Block) -> Result<()> {
        let bytes = block.rows.saturating_mul(block.row_bytes);
        self.does(Kind::D2h, bytes, |q| q.read_rows(src, from, out, to, block))?;
        self.idle = true;
        self.resolve(None);
        Ok(())
    }
    fn copy_rows(&mut self, src: &Buffer, from: Pitch, dst: &Buffer, to: Pitch, block: Block) -> Result<()> {
        let bytes = block.rows.saturating_mul(block.row_bytes);
        self.does(Kind::D2d, bytes, |q| q.copy_rows(src, from, dst, to, block))
    }
    fn copy_peer(&mut self, src: &Buffer, src_offset: u64, dst: &Buffer, dst_offset: u64, bytes: u64) -> Result<()> {
        self.does(Kind::D2d, bytes, |q| q.copy_peer(src, src_offset, dst, dst_offset, bytes))
    }
    fn prefetch(&mut self, buffer: &Buffer, to: Place) -> Result<()> {
        let kind = if to == Place::Host { Kind::D2h } else { Kind::H2d };
        self.does(kind, buffer.bytes(), |q| q.prefetch(buffer, to))
    }
    fn advise(&mut self, buffer: &Buffer, advice: Advice) -> Result<()> {
        self.inner.advise(buffer, advice)
    }
    fn location(&mut self, buffer: &Buffer) -> Result<Option<Place>> {
        self.inner.location(buffer)
    }
    fn fill(&mut self, dst: &Buffer, offset: u64, bytes: u64, value: u8) -> Result<()> {
        self.does(Kind::Fill, bytes, |q| q.fill(dst, offset, bytes, value))
    }
    fn sequence(&mut self, launches: Vec<Launch>) -> Result<Sequence> {
        self.inner.sequence(launches)
    }
    fn replay(&mut self, sequence: &Sequence) -> Result<()> {
        // One by one they are launches as any others.
        if sequence.one_by_one().is_some() {
            return sequence.launches().iter().try_for_each(|l| self.launch(l));
        }
        self.close();
        let from = if self.marks() { self.place() } else { None };
        let at = self.tap.now();
        let result = self.inner.replay(sequence);
        let seconds = self.tap.now() - at;
        (self.position, self.idle) = (None, false);
        let id = if from.is_some() { self.tap.id() } else { 0 };
        let (count, error) = (sequence.launches().len() as u64, failure(&result));
        let raw = self.tap.raw(Kind::Launch, self.host, at);
        self.run.push(Ran {
            raw: Raw { count, seconds, error, id, word: Some("a recorded sequence"), ..raw },
            seconds,
            from,
            to: None,
        });
        self.close();
        result
    }
    fn launch(&mut self, launch: &Launch) -> Result<()> {
        let grid = self.grid((launch.groups, launch.group));
        let mut raw = Raw { grid, ..self.tap.raw(Kind::Launch, self.host, 0.0) };
        let alike = |r: &Ran| (r.raw.label, r.raw.grid) == (raw.label, raw.grid);
        let joins = self.run.len() >= SINGLE && self.run.last().is_some_and(|r| alike(r) && r.raw.error.is_none());
        let mut from = None;
        // The one before is ended here, whether this one has marks or not.
        let open = self.run.last().is_some_and(|r| r.from.is_some() && r.to.is_none());
        let wanted = !joins && self.marks() && !(open && self.spans == Spans::Together);
        if wanted || (open && !joins) {
            let place = self.place();
            if let Some(last) = self.run.last_mut().filter(|_| open) {
                last.to = place;
            }
            from = place.filter(|_| wanted);
        }
        raw.at = self.tap.now();
        let result = self.inner.launch(launch);
        let seconds = self.tap.now() - raw.at;
        (self.position, self.idle) = (None, false);
        raw.error = failure(&result);
        if let Some(last) = self.run.last_mut().filter(|_| joins && raw.error.is_none()) {
            last.raw.count += 1;
            last.raw.seconds = raw.at + seconds - last.raw.at;
            last.seconds += seconds;
            last.raw.device_s = last.raw.device_s.map(|s| s + seconds);
            return result;
        }
        raw.seconds = seconds;
        match self.spans {
            Spans::Host if raw.error.is_none() => raw.device_s = Some(seconds),
            Spans::Own | Spans::Together if from.is_some() => raw.id = self.tap.id(),
            _ => {}
        }
        self.run.push(Ran { raw, seconds, from, to: None });
        if result.is_err() {
            // There may be no other call of a queue that failed.
            self.close();
        }
        result
    }
    fn mark(&mut self) -> Result<Mark> {
        // Before anything is told: what lies between two marks is timed.
        let mark = self.inner.mark()?;
        (self.position, self.newest) = (Some(mark), mark.0);
        self.close();
        Ok(mark)
    }
    fn flush(&mut self) -> Result<()> {
        self.does(Kind::Flush, 0, |q| q.flush())
    }
    fn wait(&mut self, mark: Mark, deadline: Duration) -> Result<Waited> {
        let waited = self.does(Kind::Wait, 0, |q| q.wait(mark, deadline))?;
        if waited == Waited::Done {
            self.idle |= self.position == Some(mark);
            self.resolve(Some(mark));
        }
        Ok(waited)
    }
    fn span(&mut self, from: Mark, to: Mark) -> Result<Span> {
        self.inner.span(from, to)
    }
    fn spans(&mut self, pairs: &[(Mark, Mark)]) -> Vec<Result<Span>> {
        self.inner.spans(pairs)
    }
    fn finish(&mut self, deadline: Duration) -> Result<()> {
        self.does(Kind::Wait, 0, |q| q.finish(deadline))?;
        self.position = None;
        // A queue may have set a mark of its own.
        (self.newest, self.idle) = (self.newest + 1, true);
        self.resolve(None);
        Ok(())
    }
}

impl Drop for TracedQueue {
    fn drop(&mut self) {
        self.close();
        if self.spans == Spans::Together && self.idle && !self.waiting.is_empty() {
            self.ask(None);
        }
        self.tap.give_back((self.host, self.device));
    }
}
