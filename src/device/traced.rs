//! A decorator that tells a [`Tracer`] what is done on a device: every allocation, build, copy, fill, launch and wait, with the
//! host's time of the call and, where the API times launches cheaply, the device's own.
//!
//! Nothing waits for the sake of a trace. Device times come from marks around launches, which are asked for at the next wait
//! that the program makes itself; how many that may be is bounded, since queues remember a bounded number of marks. Devices on
//! which a mark would change what is measured (wgpu: it ends the pass) show the spans that the program asks for.
//!
//! A device's clock tells how long something took, not when: a kernel stands as early on its row as the order of the queue
//! allows.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use crate::base::trace::{Event, Kind};
use crate::base::{Backend, Clock, DeviceClass, DeviceInfo, Error, Result};
use crate::kernel::cpu::Call as NativeCall;
use crate::kernel::{NativeArgs, NativeFn};

use super::probe::Rig;
use super::tap::{Tap, Tracer};
use super::{
    Block, Buffer, Device, Health, Launch, Ledger, Mark, MemoryKind, MemoryState, Pitch, Program, Queue, Source, Span,
    Waited,
};

/// Launches behind each other that have a mark each; later ones of the same kind share one.
const SINGLE: usize = 16;
/// Launches, or groups of them, that have marks at all between two waits.
const MARKED: usize = 24;
/// Marks of the program that are remembered, as [`Queue::span`] promises.
const ASKED: usize = 64;

/// How launches get a device time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Spans {
    /// A launch is done when the call returns.
    Host,
    /// By marks around it.
    Own,
    /// By the marks that the program sets itself.
    Asked,
}

impl Spans {
    fn of(info: &DeviceInfo) -> Self {
        match info.backend {
            Backend::Cpu if info.class != DeviceClass::Simulated => Spans::Host,
            Backend::Wgpu => Spans::Asked,
            _ => Spans::Own,
        }
    }

    /// In words, for those who look for a time that is not there.
    const fn why(self) -> &'static str {
        match self {
            Spans::Host => "a launch is done when the call returns: its device time is the host's",
            Spans::Own => {
                "a launch is timed by marks around it; none of many between two waits, or if it was not waited for"
            }
            Spans::Asked => "a mark would end the pass that it times: only spans that the program asks for are shown",
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

/// The name of a failure, for an event.
fn failure<T>(result: &Result<T>) -> Option<String> {
    result.as_ref().err().map(|e: &Error| e.code().name().to_string())
}

impl TracedDevice {
    /// Does something on this thread's row.
    fn on_thread<T>(&self, kind: Kind, does: impl FnOnce(&mut Event) -> Result<T>) -> Result<T> {
        let mut event = self.tap.event(kind, self.tap.thread_row(), self.tap.now());
        let result = does(&mut event);
        event.seconds = self.tap.now() - event.at;
        event.error = failure(&result);
        let seconds = event.seconds;
        self.tap.put(event, seconds);
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
        self.on_thread(Kind::Alloc, |event| {
            event.bytes = bytes;
            event.note = (kind != MemoryKind::Device).then(|| format!("{kind:?}").to_lowercase());
            let buffer = self.inner.alloc(bytes, kind)?;
            if kind == MemoryKind::Pinned {
                buffer.set_pinned();
            }
            Ok(buffer)
        })
    }
    fn build(&self, source: Source<'_>, cached: Option<&[u8]>) -> Result<Program> {
        self.on_thread(Kind::Compile, |event| {
            let program = self.inner.build(source, cached);
            let entry = match source {
                Source::Text(text) => text.entry.clone(),
                Source::Native(..) => "native".into(),
                Source::Routine(routine, _) => format!("{routine:?}"),
            };
            let cached = program.as_ref().is_ok_and(|p| p.stats().from_cache);
            event.note = Some(if cached { format!("{entry}, from the cache") } else { entry });
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
            device_end: 0.0,
            asked: VecDeque::new(),
            launches: 0,
            last: None,
        }))
    }
    fn health(&self) -> Health {
        self.inner.health()
    }
    fn destroy(&self) -> bool {
        self.inner.destroy()
    }
    fn native(&self, run: NativeFn, args: &mut NativeArgs<'_>, call: &NativeCall) -> Option<Result<()>> {
        let at = self.tap.now();
        let result = self.inner.native(run, args, call)?;
        let seconds = self.tap.now() - at;
        let event = self.tap.event(Kind::Launch, self.tap.thread_row(), at);
        let error = failure(&result);
        let device_s = error.is_none().then_some(seconds);
        self.tap.put(Event { seconds, device_s, error, note: Some("on the caller's memory".into()), ..event }, seconds);
        Some(result)
    }
    fn tap(&self) -> Option<&Tap> {
        Some(&self.tap)
    }
}

/// A launch, or several of one kind behind each other.
struct Ran {
    event: Event,
    /// What the calls took, without what lay between them.
    seconds: f64,
    from: Option<Mark>,
    to: Option<Mark>,
}

/// A kernel whose time can be asked for once it is done.
struct Timed {
    event: Event,
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
    /// Kernels that were not waited for.
    waiting: Vec<Timed>,
    /// The mark behind everything enqueued so far, if there is one.
    position: Option<Mark>,
    /// Where the next kernel stands at the earliest.
    device_end: f64,
    /// The program's own marks, with the number of launches before each.
    asked: VecDeque<(Mark, u64, f64)>,
    launches: u64,
    /// The last launch, for spans that the program asks for.
    last: Option<Event>,
}

impl TracedQueue {
    /// Does something on the host's row of this queue; it may put work in the queue.
    fn does<T>(&mut self, kind: Kind, bytes: u64, call: impl FnOnce(&mut dyn Queue) -> Result<T>) -> Result<T> {
        self.close();
        let at = self.tap.now();
        let result = call(self.inner.as_mut());
        let seconds = self.tap.now() - at;
        let error = failure(&result);
        self.tap.put(Event { bytes, seconds, error, ..self.tap.event(kind, self.host, at) }, seconds);
        if kind.is_copy() {
            self.position = None;
        }
        result
    }

    /// Ends the run of launches: tells them, and sets the mark behind the last.
    fn close(&mut self) {
        if self.run.is_empty() {
            return;
        }
        let mut run = std::mem::take(&mut self.run);
        if let Some(last) = run.last_mut()
            && last.from.is_some()
            && last.to.is_none()
        {
            last.to = self.place();
        }
        for ran in run {
            if let (Some(from), Some(to), None) = (ran.from, ran.to, &ran.event.error) {
                self.waiting.push(Timed { event: ran.event.clone(), from, to });
            }
            self.tap.put(ran.event, ran.seconds);
        }
    }

    /// A mark at this point of the queue. A queue that cannot set one says so at the next call.
    fn place(&mut self) -> Option<Mark> {
        if self.position.is_none() {
            self.position = self.inner.mark().ok();
        }
        self.position
    }

    /// Asks for the times of kernels that are done: all, or those up to a mark.
    fn resolve(&mut self, up_to: Option<Mark>) {
        let done = |t: &Timed| up_to.is_none_or(|mark| t.to <= mark);
        let (done, waiting): (Vec<_>, Vec<_>) = std::mem::take(&mut self.waiting).into_iter().partition(done);
        self.waiting = waiting;
        for Timed { event, from, to } in done {
            if let Ok(Span { device: Some(seconds), .. }) = self.inner.span(from, to) {
                self.kernel(event, seconds);
            }
        }
    }

    /// Tells a kernel's time.
    fn kernel(&mut self, launch: Event, seconds: f64) {
        let at = launch.at.max(self.device_end);
        self.device_end = at + seconds;
        let event = Event { kind: Kind::Kernel, track: self.device, at, seconds, device_s: Some(seconds), ..launch };
        self.tap.put(event, seconds);
    }
}

impl Queue for TracedQueue {
    fn write(&mut self, dst: &Buffer, offset: u64, data: &[u8]) -> Result<()> {
        self.does(Kind::H2d, data.len() as u64, |q| q.write(dst, offset, data))
    }
    fn read(&mut self, src: &Buffer, offset: u64, out: &mut [u8]) -> Result<()> {
        let bytes = out.len() as u64;
        self.does(Kind::D2h, bytes, |q| q.read(src, offset, out))?;
        self.resolve(None);
        Ok(())
    }
    fn copy(&mut self, src: &Buffer, src_offset: u64, dst: &Buffer, dst_offset: u64, bytes: u64) -> Result<()> {
        // Page-locked memory is the host's.
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
        self.resolve(None);
        Ok(())
    }
    fn copy_rows(&mut self, src: &Buffer, from: Pitch, dst: &Buffer, to: Pitch, block: Block) -> Result<()> {
        let bytes = block.rows.saturating_mul(block.row_bytes);
        self.does(Kind::D2d, bytes, |q| q.copy_rows(src, from, dst, to, block))
    }
    fn fill(&mut self, dst: &Buffer, offset: u64, bytes: u64, value: u8) -> Result<()> {
        self.does(Kind::Fill, bytes, |q| q.fill(dst, offset, bytes, value))
    }
    fn launch(&mut self, launch: &Launch) -> Result<()> {
        let mut event = self.tap.event(Kind::Launch, self.host, 0.0);
        (event.grid, event.block) = (Some(launch.groups), Some(launch.group));
        let alike = |r: &Ran| (r.event.label, r.event.grid, r.event.block) == (event.label, event.grid, event.block);
        let joins = self.run.len() >= SINGLE && self.run.last().is_some_and(|r| alike(r) && r.event.error.is_none());
        let marked = self.spans == Spans::Own && self.waiting.len() + self.run.len() < MARKED;
        let mut from = None;
        if marked && !joins {
            from = self.place();
            if let Some(last) = self.run.last_mut().filter(|r| r.from.is_some() && r.to.is_none()) {
                last.to = from;
            }
        }
        event.at = self.tap.now();
        let result = self.inner.launch(launch);
        let seconds = self.tap.now() - event.at;
        self.position = None;
        self.launches += 1;
        event.error = failure(&result);
        if let Some(last) = self.run.last_mut().filter(|_| joins && event.error.is_none()) {
            last.event.count += 1;
            last.event.seconds = event.at + seconds - last.event.at;
            last.seconds += seconds;
            last.event.device_s = last.event.device_s.map(|s| s + seconds);
            return result;
        }
        event.seconds = seconds;
        match self.spans {
            Spans::Host if event.error.is_none() => event.device_s = Some(seconds),
            Spans::Own if from.is_some() => event.id = self.tap.id(),
            _ => {}
        }
        if self.spans == Spans::Asked {
            self.last = Some(event.clone());
        }
        self.run.push(Ran { event, seconds, from, to: None });
        if result.is_err() {
            // There may be no other call of a queue that failed.
            self.close();
        }
        result
    }
    fn mark(&mut self) -> Result<Mark> {
        // Before anything is told: what lies between two marks is timed.
        let mark = self.inner.mark()?;
        self.position = Some(mark);
        self.close();
        if self.asked.len() == ASKED {
            self.asked.pop_front();
        }
        self.asked.push_back((mark, self.launches, self.tap.now()));
        Ok(mark)
    }
    fn flush(&mut self) -> Result<()> {
        self.does(Kind::Flush, 0, |q| q.flush())
    }
    fn wait(&mut self, mark: Mark, deadline: Duration) -> Result<Waited> {
        let waited = self.does(Kind::Wait, 0, |q| q.wait(mark, deadline))?;
        if waited == Waited::Done {
            self.resolve(Some(mark));
        }
        Ok(waited)
    }
    fn span(&mut self, from: Mark, to: Mark) -> Result<Span> {
        let span = self.inner.span(from, to)?;
        if let (Spans::Asked, Some(seconds)) = (self.spans, span.device) {
            let at = |mark: Mark| self.asked.iter().find(|a| a.0 == mark).map(|a| (a.1, a.2));
            if let (Some((before, begin)), Some((after, _)), Some(last)) = (at(from), at(to), self.last.clone())
                && after > before
            {
                self.kernel(Event { count: after - before, at: begin, ..last }, seconds);
            }
        }
        Ok(span)
    }
    fn finish(&mut self, deadline: Duration) -> Result<()> {
        self.does(Kind::Wait, 0, |q| q.finish(deadline))?;
        self.position = None;
        self.resolve(None);
        Ok(())
    }
}

impl Drop for TracedQueue {
    fn drop(&mut self) {
        self.close();
        self.tap.give_back((self.host, self.device));
    }
}
