//! Collects what traced devices do ([`super::traced`]), and what the layers above say of it.
//!
//! A device that is traced has a [`Tap`] ([`super::Device::tap`]); one that is not has none, so that all of this costs one
//! branch there. Events are kept in memory up to a limit, behind a few locks that queues hardly share; what finds no room is
//! counted. Totals count everything.
//!
//! What is kept of an event while the program runs is a few numbers (`Raw`): texts are looked up, and lists sorted, when
//! somebody asks for the trace.

use std::cell::Cell;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{SystemTime, UNIX_EPOCH};

use crate::base::trace::{Event, Kind, Label, Memory, Process, Total, Trace, Traced, Track, joined};
use crate::base::{Case, Clock, Code, RealClock};

use super::Ledger;
use super::ledger::Watch;

/// Events and samples of memory that a tracer keeps unless told otherwise: some 30 MB.
pub const KEPT: usize = 200_000;
/// Labels that a tracer tells apart; later ones share one.
const LABELS: usize = 10_000;
/// Locks that events are spread over.
const SHARDS: usize = 16;
/// Events that are allocated for at once: a list that grows would be copied as a whole.
const CHUNK: usize = 1024;
/// Places that a lock's events claim at once, where there are plenty.
const CLAIM: usize = 64;

/// What calls of this thread belong to: a tracer's serial and a label.
type Belongs = (u64, u32);

thread_local! {
    static BELONGS: Cell<Belongs> = const { Cell::new((0, 0)) };
    static THREAD: Number = Number::take();
    /// The row of this thread that was asked for last: tracer, clock, row.
    static ROW: Cell<(u64, u32, u32)> = const { Cell::new((0, 0, 0)) };
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
    /// Most bytes of each device so far.
    peaks: Vec<Arc<AtomicU64>>,
    /// Groups of launches and their sizes, by the number that events know them by, less one.
    grids: Vec<Grid>,
    grid_numbers: HashMap<Grid, u32>,
    /// How many tracks and labels were given away by [`Tracer::take`].
    taken: (usize, usize),
}

/// Groups per axis, work-items per group.
pub(super) type Grid = ([u64; 3], [u32; 3]);

/// An event as it is kept. Numbers are those of [`Event`]; 0 is none.
#[derive(Clone, Copy, Debug)]
pub(super) struct Raw {
    pub(super) at: f64,
    pub(super) seconds: f64,
    pub(super) device_s: Option<f64>,
    pub(super) bytes: u64,
    pub(super) count: u64,
    pub(super) id: u64,
    pub(super) grid: u32,
    pub(super) track: u32,
    pub(super) device: u32,
    pub(super) label: u32,
    /// Place in the texts of its lock, from 1.
    pub(super) text: u32,
    pub(super) word: Option<&'static str>,
    pub(super) kind: Kind,
    pub(super) error: Option<Code>,
}

impl Raw {
    fn event(&self, grids: &[Grid], texts: &[String]) -> Event {
        let place = |number: u32| (number as usize).checked_sub(1);
        let grid = place(self.grid).and_then(|i| grids.get(i));
        let text = place(self.text).and_then(|i| texts.get(i)).map(String::as_str);
        Event {
            seconds: self.seconds,
            count: self.count,
            bytes: self.bytes,
            grid: grid.map(|g| g.0),
            block: grid.map(|g| g.1),
            device_s: self.device_s,
            id: self.id,
            note: text.or(self.word).map(String::from),
            error: self.error.map(|c| c.name().into()),
            ..Event::new(self.kind, self.track, self.device, self.label, self.at)
        }
    }
}

#[derive(Default)]
struct Shard {
    events: Vec<Vec<Raw>>,
    texts: Vec<String>,
    memory: Vec<Memory>,
    totals: Vec<Total>,
    places: HashMap<(Kind, u32, u32), usize>,
    /// Place of the total that a kind of event was last added to.
    last: [usize; Kind::ALL.len()],
    /// Claimed and not used.
    claimed: usize,
}

impl Shard {
    fn total(&mut self, kind: Kind, device: u32, label: u32) -> &mut Total {
        let fits = |t: &Total| (t.kind, t.device, t.label) == (kind, device, label);
        let mut at = self.last[kind as usize];
        if !self.totals.get(at).is_some_and(fits) {
            at = *self.places.entry((kind, device, label)).or_insert(self.totals.len());
            if at == self.totals.len() {
                self.totals.push(Total::new(kind, device, label));
            }
            self.last[kind as usize] = at;
        }
        &mut self.totals[at]
    }

    fn push(&mut self, raw: Raw) {
        match self.events.last_mut() {
            Some(chunk) if chunk.len() < CHUNK => chunk.push(raw),
            _ => {
                let mut chunk = Vec::with_capacity(CHUNK);
                chunk.push(raw);
                self.events.push(chunk);
            }
        }
    }
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
        // Events name no groups that come later.
        let mut kept: Vec<(Vec<Vec<Raw>>, Vec<String>)> = Vec::with_capacity(SHARDS);
        for shard in &self.shards {
            let mut shard = lock(shard);
            totals.extend_from_slice(&shard.totals);
            if take {
                kept.push((std::mem::take(&mut shard.events), std::mem::take(&mut shard.texts)));
                p.memory.append(&mut shard.memory);
            } else {
                kept.push((shard.events.clone(), shard.texts.clone()));
                p.memory.extend_from_slice(&shard.memory);
            }
        }
        let grids = lock(&self.tables).grids.clone();
        for (events, texts) in kept {
            p.events.extend(events.iter().flatten().map(|raw| raw.event(&grids, &texts)));
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
        for (d, peak) in p.devices.iter_mut().zip(&tables.peaks) {
            d.peak_bytes = peak.load(Ordering::Relaxed);
        }
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

    /// Whether there is room for one more in this shard. Where the end is near places are claimed one by one, so that none
    /// is left over elsewhere.
    fn room(&self, shard: &mut Shard) -> bool {
        if let Some(left) = shard.claimed.checked_sub(1) {
            shard.claimed = left;
            return true;
        }
        let near = self.most.saturating_sub(self.kept.load(Ordering::Relaxed)) < 2 * CLAIM * SHARDS;
        let wanted = if near { 1 } else { CLAIM };
        if self.kept.fetch_add(wanted, Ordering::Relaxed) + wanted <= self.most {
            shard.claimed = wanted - 1;
            return true;
        }
        self.kept.fetch_sub(wanted, Ordering::Relaxed);
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
    /// Most bytes allocated at once.
    peak: Arc<AtomicU64>,
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
    peak: Arc<AtomicU64>,
}

impl Watch for Follow {
    fn changed(&self, moved: i64, bytes: u64) -> bool {
        let Some(tracer) = self.tracer.upgrade() else { return false };
        let (clock, peak) = (self.clock.clone(), Arc::clone(&self.peak));
        Tap { tracer, device: self.device, clock, domain: self.domain, peak }.memory(moved, bytes);
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
        let peak = Arc::new(AtomicU64::new(0));
        tables.peaks.push(Arc::clone(&peak));
        drop(tables);
        let clock = (domain > 0).then_some(clock);
        let tap = Tap { tracer: Arc::clone(tracer), device, clock: clock.clone(), domain, peak: Arc::clone(&peak) };
        ledger.watch(Box::new(Follow { tracer: Arc::downgrade(tracer), device, clock, domain, peak }));
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
        self.put_with(self.raw(kind, self.thread_row(), self.now()), 0.0, Some(note));
    }

    /// Something was found ready instead of being made: `what` is a word such as `program`.
    pub fn hit(&self, what: &'static str, bytes: u64) {
        let raw = self.raw(Kind::Hit, self.thread_row(), self.now());
        self.put(Raw { word: Some(what), bytes, ..raw }, 0.0);
    }

    /// A part of this thread's work that ends now: so many calls, its begin ([`Tap::now`]), the seconds that the job measured.
    pub fn region(&self, remark: &'static str, calls: u64, begin: f64, measured_s: f64) {
        let seconds = self.now() - begin;
        let raw = self.raw(Kind::Region, self.thread_row(), begin);
        let raw = Raw { word: Some(remark), count: calls, seconds, device_s: Some(measured_s), ..raw };
        self.put(raw, seconds);
    }

    /// An event of this device that belongs to what this thread is at.
    pub(super) fn raw(&self, kind: Kind, track: u32, at: f64) -> Raw {
        let (tracer, label) = BELONGS.get();
        Raw {
            at,
            seconds: 0.0,
            device_s: None,
            bytes: 0,
            count: 1,
            id: 0,
            grid: 0,
            track,
            device: self.device,
            label: if tracer == self.tracer.serial { label } else { 0 },
            text: 0,
            word: None,
            kind,
            error: None,
        }
    }

    /// The number of a launch's groups and their sizes.
    pub(super) fn grid(&self, grid: Grid) -> u32 {
        let mut tables = lock(&self.tracer.tables);
        let next = tables.grids.len() as u32 + 1;
        let number = *tables.grid_numbers.entry(grid).or_insert(next);
        if number == next {
            tables.grids.push(grid);
        }
        number
    }

    /// Keeps an event if there is room, and counts it. `seconds`: what its operations took.
    pub(super) fn put(&self, raw: Raw, seconds: f64) {
        self.put_with(raw, seconds, None);
    }

    /// The same for one with a text of its own.
    pub(super) fn put_with(&self, mut raw: Raw, seconds: f64, text: Option<String>) {
        let mut shard = self.tracer.shard(raw.track);
        let total = shard.total(raw.kind, raw.device, raw.label);
        total.count_in(raw.error.is_some(), (raw.count, raw.bytes), seconds, raw.device_s);
        if self.tracer.room(&mut shard) {
            if let Some(text) = text {
                shard.texts.push(text);
                raw.text = shard.texts.len() as u32;
            }
            shard.push(raw);
        }
    }

    fn memory(&self, moved: i64, bytes: u64) {
        let at = self.now();
        self.peak.fetch_max(bytes, Ordering::Relaxed);
        let mut shard = self.tracer.shard(self.device);
        if self.tracer.room(&mut shard) {
            shard.memory.push(Memory { device: self.device, at, bytes });
        }
        drop(shard);
        if moved < 0 {
            let raw = self.raw(Kind::Release, self.thread_row(), at);
            self.put(Raw { bytes: moved.unsigned_abs(), ..raw }, 0.0);
        }
    }

    /// A number for a launch and its kernel event.
    pub(super) fn id(&self) -> u64 {
        self.tracer.ids.fetch_add(1, Ordering::Relaxed)
    }

    /// The row of this thread.
    pub(super) fn thread_row(&self) -> u32 {
        let known = ROW.get();
        if (known.0, known.1) == (self.tracer.serial, self.domain) {
            return known.2;
        }
        let row = self.looked_up_row();
        ROW.set((self.tracer.serial, self.domain, row));
        row
    }

    fn looked_up_row(&self) -> u32 {
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
