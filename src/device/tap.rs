//! Collects what traced devices do ([`super::traced`]), and what the layers above say of it.
//!
//! A device that is traced has a [`Tap`] ([`super::Device::tap`]); one that is not has none, so that all of this costs one
//! branch there. Events are kept in memory up to a limit, behind a few locks that queues hardly share; what finds no room is
//! counted. Totals count everything.

use std::cell::Cell;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{SystemTime, UNIX_EPOCH};

use crate::base::trace::{Event, Kind, Label, Memory, Process, Total, Trace, Traced, Track, joined};
use crate::base::{Case, Clock, RealClock};

use super::Ledger;
use super::ledger::Watch;

/// Events and samples of memory that a tracer keeps unless told otherwise: some 30 MB.
pub const KEPT: usize = 200_000;
/// Labels that a tracer tells apart; later ones share one.
const LABELS: usize = 10_000;
/// Locks that events are spread over.
const SHARDS: usize = 16;

/// What calls of this thread belong to: a tracer's serial and a label.
type Belongs = (u64, u32);

thread_local! {
    static BELONGS: Cell<Belongs> = const { Cell::new((0, 0)) };
    static THREAD: Number = Number::take();
}

/// A small number for a thread; it serves the next thread after this one.
struct Number(u32);

static FREE: Mutex<(u32, Vec<u32>)> = Mutex::new((0, Vec::new()));

impl Number {
    fn take() -> Self {
        let mut free = lock(&FREE);
        let next = free.0 + 1;
        Number(free.1.pop().unwrap_or_else(|| {
            free.0 = next;
            next
        }))
    }
}

impl Drop for Number {
    fn drop(&mut self) {
        lock(&FREE).1.push(self.0);
    }
}

fn lock<T: ?Sized>(m: &Mutex<T>) -> MutexGuard<'_, T> {
    m.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A label in the list of one tracer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Labelled {
    tracer: u64,
    number: u32,
}

impl Labelled {
    /// From here on calls of this thread belong to the label, until the scope is dropped.
    #[must_use]
    pub fn enter(self) -> Scope {
        Scope(BELONGS.replace((self.tracer, self.number)))
    }
}

/// Restores what calls of this thread belong to when dropped.
#[derive(Debug)]
pub struct Scope(Belongs);

impl Drop for Scope {
    fn drop(&mut self) {
        BELONGS.set(self.0);
    }
}

#[derive(Default)]
struct Tables {
    tracks: Vec<Track>,
    devices: Vec<Traced>,
    labels: Vec<Label>,
    numbers: HashMap<Label, u32>,
    /// Rows of threads by the clock that they are timed with.
    threads: HashMap<(u32, u32), u32>,
    /// Rows of queues that are gone, by device.
    free: HashMap<u32, Vec<(u32, u32)>>,
    queues: HashMap<u32, u32>,
    /// Clocks by address; 0 is the real one.
    clocks: Vec<usize>,
    /// How many tracks and labels were given away by [`Tracer::take`].
    taken: (usize, usize),
}

#[derive(Default)]
struct Shard {
    events: Vec<Event>,
    memory: Vec<Memory>,
    totals: HashMap<(Kind, u32, u32), Total>,
}

/// Collects the events of all devices that it is given to. Shared between threads.
pub struct Tracer {
    serial: u64,
    name: String,
    clock: RealClock,
    began_ns: u64,
    most: usize,
    kept: AtomicUsize,
    dropped: AtomicU64,
    ids: AtomicU64,
    tables: Mutex<Tables>,
    shards: [Mutex<Shard>; SHARDS],
}

impl std::fmt::Debug for Tracer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Tracer({} of {} events)", self.kept.load(Ordering::Relaxed), self.most)
    }
}

impl Tracer {
    /// A tracer for this process, called `name` in traces, that keeps so many events at most ([`KEPT`]).
    pub fn new(name: &str, most: usize) -> Arc<Self> {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let since = SystemTime::now().duration_since(UNIX_EPOCH);
        Arc::new(Tracer {
            serial: NEXT.fetch_add(1, Ordering::Relaxed),
            name: name.into(),
            clock: RealClock::new(),
            began_ns: since.map_or(0, |d| u64::try_from(d.as_nanos()).unwrap_or(0)),
            most,
            kept: AtomicUsize::new(0),
            dropped: AtomicU64::new(0),
            ids: AtomicU64::new(1),
            tables: Mutex::default(),
            shards: std::array::from_fn(|_| Mutex::default()),
        })
    }

    /// A copy of what was collected so far.
    pub fn process(&self) -> Process {
        self.collect(false)
    }

    /// The same as a trace of one process.
    pub fn trace(&self) -> Trace {
        Trace { processes: vec![self.process()] }
    }

    /// What was collected since the last call, which makes room for more. Rows and labels go on where those of the last call
    /// ended; totals, peaks and drops hold from the begin ([`Process::extend`]).
    pub fn take(&self) -> Process {
        self.collect(true)
    }

    fn collect(&self, take: bool) -> Process {
        let mut p =
            Process { pid: std::process::id(), name: self.name.clone(), began_ns: self.began_ns, ..Process::default() };
        let mut totals = Vec::new();
        for shard in &self.shards {
            let mut shard = lock(shard);
            totals.extend(shard.totals.values().copied());
            if take {
                p.events.append(&mut shard.events);
                p.memory.append(&mut shard.memory);
            } else {
                p.events.extend_from_slice(&shard.events);
                p.memory.extend_from_slice(&shard.memory);
            }
        }
        if take {
            self.kept.fetch_sub(p.events.len() + p.memory.len(), Ordering::Relaxed);
        }
        // After the events: what they name is there by now.
        let mut tables = lock(&self.tables);
        let (tracks, labels) = if take { tables.taken } else { (0, 0) };
        p.tracks = tables.tracks[tracks..].to_vec();
        p.labels = tables.labels[labels..].to_vec();
        p.devices = tables.devices.clone();
        if take {
            tables.taken = (tables.tracks.len(), tables.labels.len());
        }
        drop(tables);
        p.events.sort_by(|a, b| (a.track, a.at).partial_cmp(&(b.track, b.at)).unwrap_or(std::cmp::Ordering::Equal));
        p.memory.sort_by(|a, b| a.at.total_cmp(&b.at));
        p.totals = joined(totals.into_iter());
        p.dropped = self.dropped.load(Ordering::Relaxed);
        p
    }

    /// The number of a label.
    pub fn label(&self, label: Label) -> Labelled {
        let mut tables = lock(&self.tables);
        let number = match tables.numbers.get(&label) {
            Some(n) => *n,
            None => {
                let label =
                    if tables.labels.len() < LABELS { label } else { Label { op: "other".into(), ..Label::default() } };
                match tables.numbers.get(&label) {
                    Some(n) => *n,
                    None => {
                        tables.labels.push(label.clone());
                        let n = tables.labels.len() as u32;
                        tables.numbers.insert(label, n);
                        n
                    }
                }
            }
        };
        Labelled { tracer: self.serial, number }
    }

    fn room(&self) -> bool {
        if self.kept.fetch_add(1, Ordering::Relaxed) < self.most {
            return true;
        }
        self.kept.fetch_sub(1, Ordering::Relaxed);
        self.dropped.fetch_add(1, Ordering::Relaxed);
        false
    }

    fn shard(&self, track: u32) -> MutexGuard<'_, Shard> {
        lock(&self.shards[track as usize % SHARDS])
    }
}

/// Where one device's events go. Real times are the tracer's for all devices, so that they agree to the last digit; simulated
/// ones are the device's own.
#[derive(Clone)]
pub struct Tap {
    tracer: Arc<Tracer>,
    device: u32,
    /// The simulated clock, if the device has one.
    clock: Option<Arc<dyn Clock>>,
    /// Number of the clock among the tracer's; 0: the real one.
    domain: u32,
}

impl std::fmt::Debug for Tap {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Tap(device {} of {:?})", self.device, self.tracer)
    }
}

/// Follows a device's ledger as long as the tracer is there.
struct Follow {
    tracer: Weak<Tracer>,
    device: u32,
    clock: Option<Arc<dyn Clock>>,
    domain: u32,
}

impl Watch for Follow {
    fn changed(&self, moved: i64, bytes: u64) -> bool {
        let Some(tracer) = self.tracer.upgrade() else { return false };
        Tap { tracer, device: self.device, clock: self.clock.clone(), domain: self.domain }.memory(moved, bytes);
        true
    }
}

impl Tap {
    /// A tap for a device of this id and name; `device_time` says which launches have a device time and why others have none.
    pub(super) fn new(
        tracer: &Arc<Tracer>,
        (id, name): (&str, &str),
        clock: Arc<dyn Clock>,
        device_time: &str,
        ledger: &Ledger,
    ) -> Tap {
        let address = Arc::as_ptr(&clock).cast::<()>().addr();
        let mut tables = lock(&tracer.tables);
        let domain = match (clock.is_virtual(), tables.clocks.iter().position(|c| *c == address)) {
            (false, _) => 0,
            (true, Some(known)) => known as u32 + 1,
            (true, None) => {
                tables.clocks.push(address);
                tables.clocks.len() as u32
            }
        };
        let device = tables.devices.len() as u32;
        tables.devices.push(Traced {
            id: id.into(),
            name: name.into(),
            device_time: device_time.into(),
            peak_bytes: 0,
        });
        drop(tables);
        let clock = (domain > 0).then_some(clock);
        let tap = Tap { tracer: Arc::clone(tracer), device, clock: clock.clone(), domain };
        ledger.watch(Box::new(Follow { tracer: Arc::downgrade(tracer), device, clock, domain }));
        tap.memory(0, ledger.state().bytes);
        tap
    }

    /// The tracer.
    pub fn tracer(&self) -> &Arc<Tracer> {
        &self.tracer
    }

    /// Seconds since the tracer was made, or on the simulated clock.
    pub fn now(&self) -> f64 {
        self.clock.as_ref().map_or_else(|| self.tracer.clock.now(), |c| c.now())
    }

    /// The number of what an op computes here with this kernel.
    pub fn label(&self, case: &Case, variant: &str) -> Labelled {
        self.tracer.label(Label {
            op: case.op.into(),
            dtype: case.dtype.name().into(),
            shape: case.shape_text(),
            variant: variant.into(),
        })
    }

    /// Something that happened now: a fallback, a placement, with its reason.
    pub fn moment(&self, kind: Kind, note: String) {
        let event = self.event(kind, self.thread_row(), self.now());
        self.put(Event { note: Some(note), ..event }, 0.0);
    }

    /// Something was found ready instead of being made: `what` is a word such as `program`.
    pub fn hit(&self, what: &str, bytes: u64) {
        let event = self.event(Kind::Hit, self.thread_row(), self.now());
        self.put(Event { note: Some(what.into()), bytes, ..event }, 0.0);
    }

    /// A part of this thread's work that ends now: so many calls, its begin ([`Tap::now`]), the seconds that the job measured.
    pub fn region(&self, remark: &str, calls: u64, begin: f64, measured_s: f64) {
        let seconds = self.now() - begin;
        let event = self.event(Kind::Region, self.thread_row(), begin);
        let event = Event { note: Some(remark.into()), count: calls, seconds, device_s: Some(measured_s), ..event };
        self.put(event, seconds);
    }

    /// An event of this device that belongs to what this thread is at.
    pub(super) fn event(&self, kind: Kind, track: u32, at: f64) -> Event {
        let (tracer, label) = BELONGS.get();
        Event::new(kind, track, self.device, if tracer == self.tracer.serial { label } else { 0 }, at)
    }

    /// Keeps an event if there is room, and counts it. `seconds`: what its operations took.
    pub(super) fn put(&self, event: Event, seconds: f64) {
        let mut shard = self.tracer.shard(event.track);
        let (kind, device, label) = (event.kind, event.device, event.label);
        let total = shard.totals.entry((kind, device, label)).or_insert_with(|| Total::new(kind, device, label));
        total.add(&event, seconds);
        if self.tracer.room() {
            shard.events.push(event);
        }
    }

    fn memory(&self, moved: i64, bytes: u64) {
        let at = self.now();
        if let Some(d) = lock(&self.tracer.tables).devices.get_mut(self.device as usize) {
            d.peak_bytes = d.peak_bytes.max(bytes);
        }
        if self.tracer.room() {
            self.tracer.shard(self.device).memory.push(Memory { device: self.device, at, bytes });
        }
        if moved < 0 {
            let event = self.event(Kind::Release, self.thread_row(), at);
            self.put(Event { bytes: moved.unsigned_abs(), ..event }, 0.0);
        }
    }

    /// A number for a launch and its kernel event.
    pub(super) fn id(&self) -> u64 {
        self.tracer.ids.fetch_add(1, Ordering::Relaxed)
    }

    /// The row of this thread.
    pub(super) fn thread_row(&self) -> u32 {
        let thread = THREAD.try_with(|n| n.0).unwrap_or(0);
        let mut tables = lock(&self.tracer.tables);
        if let Some(row) = tables.threads.get(&(self.domain, thread)) {
            return *row;
        }
        let current = std::thread::current();
        let name = current.name().map_or_else(|| format!("thread {thread}"), |n| format!("thread {thread}, {n}"));
        let row = tables.row(name, self.domain > 0);
        tables.threads.insert((self.domain, thread), row);
        row
    }

    /// The rows of a queue: the host's and the device's side.
    pub(super) fn queue_rows(&self) -> (u32, u32) {
        let mut tables = lock(&self.tracer.tables);
        if let Some(rows) = tables.free.get_mut(&self.device).and_then(Vec::pop) {
            return rows;
        }
        let number = tables.queues.entry(self.device).or_default();
        *number += 1;
        let number = *number;
        let id = tables.devices.get(self.device as usize).map_or_else(String::new, |d| d.id.clone());
        let simulated = self.domain > 0;
        let host = tables.row(format!("{id} queue {number}"), simulated);
        (host, tables.row(format!("{id} queue {number}, on the device"), simulated))
    }

    /// The queue is gone: the next one may have its rows.
    pub(super) fn give_back(&self, rows: (u32, u32)) {
        lock(&self.tracer.tables).free.entry(self.device).or_default().push(rows);
    }
}

impl Tables {
    fn row(&mut self, name: String, simulated: bool) -> u32 {
        self.tracks.push(Track { name, simulated });
        self.tracks.len() as u32 - 1
    }
}
