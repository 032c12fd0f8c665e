//! What devices did and when: events, their totals, and what they add up to. Plain data; `device::tap` collects it,
//! `chrome` spells it for viewers.
//!
//! Totals are counted apart from the events, so that they hold for everything that was done although only so many events are
//! kept.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// What an event is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// A buffer was allocated.
    Alloc,
    /// A buffer was released; a moment.
    Release,
    /// A copy from the host to the device.
    H2d,
    /// A copy from the device to the host; its time includes the wait for earlier work.
    D2h,
    /// A copy on the device.
    D2d,
    /// Bytes of a buffer were set.
    Fill,
    /// A program was built.
    Compile,
    /// A launch was handed over; on the host's processor: done.
    Launch,
    /// Collected work was handed to the device.
    Flush,
    /// The host waited for the device.
    Wait,
    /// Launches as the device's own clock timed them.
    Kernel,
    /// A part of a job's work: a timed sample, a warm-up, the phases of a call.
    Region,
    /// A call that failed on a GPU and ran on the CPU; a moment.
    Fallback,
    /// Where a call was sent, and why; a moment.
    Placement,
    /// Something was found ready instead of being made: a program, a buffer; a moment.
    Hit,
}

impl Kind {
    /// All kinds.
    pub const ALL: [Kind; 15] = [
        Kind::Alloc,
        Kind::Release,
        Kind::H2d,
        Kind::D2h,
        Kind::D2d,
        Kind::Fill,
        Kind::Compile,
        Kind::Launch,
        Kind::Flush,
        Kind::Wait,
        Kind::Kernel,
        Kind::Region,
        Kind::Fallback,
        Kind::Placement,
        Kind::Hit,
    ];

    /// The word in traces.
    pub const fn name(self) -> &'static str {
        match self {
            Kind::Alloc => "alloc",
            Kind::Release => "release",
            Kind::H2d => "h2d",
            Kind::D2h => "d2h",
            Kind::D2d => "d2d",
            Kind::Fill => "fill",
            Kind::Compile => "compile",
            Kind::Launch => "launch",
            Kind::Flush => "flush",
            Kind::Wait => "wait",
            Kind::Kernel => "kernel",
            Kind::Region => "region",
            Kind::Fallback => "fallback",
            Kind::Placement => "placement",
            Kind::Hit => "hit",
        }
    }

    /// True for what has a time but no duration.
    pub const fn is_moment(self) -> bool {
        matches!(self, Kind::Release | Kind::Fallback | Kind::Placement | Kind::Hit)
    }

    /// True for copies between or within memories.
    pub const fn is_copy(self) -> bool {
        matches!(self, Kind::H2d | Kind::D2h | Kind::D2d | Kind::Fill)
    }
}

/// What an event belongs to.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Label {
    /// Op name.
    pub op: String,
    /// Dtype name.
    pub dtype: String,
    /// Sizes in declared order: `m64,n64,k64`.
    pub shape: String,
    /// Kernel variant; empty where none is chosen yet.
    pub variant: String,
}

/// A row of a viewer: a queue, its device side, or a thread.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Track {
    /// Its name.
    pub name: String,
    /// True if its time is simulated.
    pub simulated: bool,
}

/// A traced device.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Traced {
    /// Its id.
    pub id: String,
    /// Its name.
    pub name: String,
    /// Which launches have a device time, and why others have none.
    pub device_time: String,
    /// Most bytes allocated at once while it was traced, as its ledger counts them.
    pub peak_bytes: u64,
}

/// One event. Numbers of tracks, devices and labels are places in the lists of its [`Process`]; labels count from 1, 0 is none.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Event {
    /// What.
    pub kind: Kind,
    /// Row.
    pub track: u32,
    /// Device.
    pub device: u32,
    /// Label, from 1; 0: none.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub label: u32,
    /// Seconds since the process began to trace.
    pub at: f64,
    /// Seconds it took; of `count` operations from the first one's begin to the last one's end.
    #[serde(default)]
    pub seconds: f64,
    /// Operations that it stands for: launches of one kind behind each other are one event. Calls, of a region.
    pub count: u64,
    /// Bytes.
    #[serde(default, skip_serializing_if = "is_null")]
    pub bytes: u64,
    /// Groups per axis.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub grid: Option<[u64; 3]>,
    /// Work-items per group.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub block: Option<[u32; 3]>,
    /// Seconds by the device's clock; of a region those that the job measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device_s: Option<f64>,
    /// Ties a launch to its kernel event; 0: none.
    #[serde(default, skip_serializing_if = "is_null")]
    pub id: u64,
    /// Reason, word or remark.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
    /// Name of the error that it ended with.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde asks so")]
fn is_zero(n: &u32) -> bool {
    *n == 0
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde asks so")]
fn is_null(n: &u64) -> bool {
    *n == 0
}

impl Event {
    /// An event without extent.
    pub fn new(kind: Kind, track: u32, device: u32, label: u32, at: f64) -> Self {
        Event {
            kind,
            track,
            device,
            label,
            at,
            seconds: 0.0,
            count: 1,
            bytes: 0,
            grid: None,
            block: None,
            device_s: None,
            id: 0,
            note: None,
            error: None,
        }
    }
}

/// Bytes that a device holds from a moment on.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Memory {
    /// Device.
    pub device: u32,
    /// Seconds since the process began to trace.
    pub at: f64,
    /// Bytes of live buffers.
    pub bytes: u64,
}

/// What all events of one kind, device and label add up to, those that were not kept among them.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Total {
    /// Kind.
    pub kind: Kind,
    /// Device.
    pub device: u32,
    /// Label, from 1; 0: none.
    pub label: u32,
    /// Operations that succeeded.
    pub count: u64,
    /// Operations that failed.
    pub failed: u64,
    /// Seconds by the host's clock.
    pub seconds: f64,
    /// Seconds by the device's clock, of `timed` launches.
    pub device_s: f64,
    /// Launches whose device time is known.
    pub timed: u64,
    /// Bytes of those that succeeded.
    pub bytes: u64,
}

impl Total {
    /// Nothing yet.
    pub fn new(kind: Kind, device: u32, label: u32) -> Self {
        Total { kind, device, label, count: 0, failed: 0, seconds: 0.0, device_s: 0.0, timed: 0, bytes: 0 }
    }

    /// Adds an event. `seconds`: what its operations took, without what lay between them.
    pub fn add(&mut self, e: &Event, seconds: f64) {
        self.count_in(e.error.is_some(), (e.count, e.bytes), seconds, e.device_s);
    }

    /// Adds so many operations, which failed or moved so many bytes.
    pub(crate) fn count_in(&mut self, failed: bool, (count, bytes): (u64, u64), seconds: f64, device_s: Option<f64>) {
        self.seconds += seconds;
        if failed {
            self.failed += count;
            return;
        }
        self.count += count;
        self.bytes += bytes;
        if let (Some(device_s), true) = (device_s, self.kind != Kind::Region) {
            self.device_s += device_s;
            self.timed += count;
        }
    }

    fn join(&mut self, other: &Total) {
        self.count += other.count;
        self.failed += other.failed;
        self.seconds += other.seconds;
        self.device_s += other.device_s;
        self.timed += other.timed;
        self.bytes += other.bytes;
    }
}

/// What one process did.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Process {
    /// Its number with the system.
    pub pid: u32,
    /// What it is: `gpuctl`, `worker`.
    pub name: String,
    /// When it began to trace, in nanoseconds since 1970 (UTC).
    pub began_ns: u64,
    /// Rows.
    pub tracks: Vec<Track>,
    /// Devices.
    pub devices: Vec<Traced>,
    /// Labels.
    pub labels: Vec<Label>,
    /// Events, those of a row in order of their begin.
    pub events: Vec<Event>,
    /// Bytes held, in order of time for each device.
    pub memory: Vec<Memory>,
    /// Totals.
    pub totals: Vec<Total>,
    /// Events, and samples of memory, that were not kept because there were too many.
    pub dropped: u64,
    /// Why its end is missing; empty if it is not.
    pub cut: String,
}

impl Process {
    /// Adds what came later. Lists of `later` go on where those of `self` end; its totals, drops and peaks hold from the begin.
    pub fn extend(&mut self, later: Process) {
        (self.pid, self.name, self.began_ns) = (later.pid, later.name, later.began_ns);
        self.tracks.extend(later.tracks);
        self.labels.extend(later.labels);
        self.events.extend(later.events);
        self.memory.extend(later.memory);
        self.devices = later.devices;
        self.totals = later.totals;
        self.dropped = later.dropped;
        self.cut = later.cut;
    }

    /// The label of that number.
    pub fn label(&self, number: u32) -> Option<&Label> {
        self.labels.get((number as usize).checked_sub(1)?)
    }

    /// Id of the device of that number.
    pub fn device_id(&self, number: u32) -> &str {
        self.devices.get(number as usize).map_or("", |d| d.id.as_str())
    }
}

/// What all processes of a run did.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Trace {
    /// Processes; no two have the same number.
    pub processes: Vec<Process>,
}

/// An op on a device.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct OpTime {
    /// Op name; empty for what belongs to none.
    pub op: String,
    /// Dtype name.
    pub dtype: String,
    /// Id of the device.
    pub device: String,
    /// Launches.
    pub launches: u64,
    /// Seconds that the host spent in calls of the device for it, building and allocating included.
    pub host_s: f64,
    /// Share of all such seconds.
    pub share: f64,
    /// Seconds of its launches by the device's clock, of `timed` of them.
    pub device_s: f64,
    /// Launches whose device time is known.
    pub timed: u64,
    /// Median seconds of a launch by the device's clock, of the events that were kept.
    pub median_s: Option<f64>,
}

/// Copies of one kind on a device.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Copied {
    /// `h2d`, `d2h`, `d2d` or `fill`.
    pub kind: String,
    /// Id of the device.
    pub device: String,
    /// Copies.
    pub count: u64,
    /// Bytes.
    pub bytes: u64,
    /// Seconds of the host.
    pub seconds: f64,
}

/// Memory of a device.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Held {
    /// Id of the device.
    pub device: String,
    /// Most bytes allocated at once in one process.
    pub peak_bytes: u64,
    /// Allocations.
    pub allocations: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Releases.
    pub releases: u64,
}

/// Count and seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Spent {
    /// How often.
    pub count: u64,
    /// Seconds of the host.
    pub seconds: f64,
}

/// What a trace adds up to.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct TraceSummary {
    /// Time per op, most first.
    pub ops: Vec<OpTime>,
    /// Copies and fills.
    pub copies: Vec<Copied>,
    /// Memory.
    pub memory: Vec<Held>,
    /// Programs that were built.
    pub compile: Spent,
    /// Waits for devices.
    pub wait: Spent,
    /// Calls that fell back to the CPU.
    pub fallbacks: u64,
    /// Operations that failed.
    pub failed: u64,
    /// What was found ready instead of being made, by its word.
    pub hits: BTreeMap<String, u64>,
    /// Events that were not kept; totals count them all.
    pub dropped: u64,
    /// Processes whose end is missing, and why.
    pub cut: BTreeMap<u32, String>,
}

/// The value at half of the weight; `None` without any.
fn weighted_median(values: &mut [(f64, u64)]) -> Option<f64> {
    values.sort_by(|a, b| a.0.total_cmp(&b.0));
    let half: u64 = values.iter().map(|v| v.1).sum::<u64>().div_ceil(2);
    let mut seen = 0;
    values
        .iter()
        .find(|(_, weight)| {
            seen += weight;
            seen >= half
        })
        .map(|v| v.0)
        .filter(|v| v.is_finite())
}

impl Trace {
    /// Adds everything up.
    pub fn summary(&self) -> TraceSummary {
        let mut ops: BTreeMap<(String, String, String), OpTime> = BTreeMap::new();
        let mut launches: BTreeMap<(String, String, String), Vec<(f64, u64)>> = BTreeMap::new();
        let mut copies: BTreeMap<(String, Kind), Copied> = BTreeMap::new();
        let mut memory: BTreeMap<String, Held> = BTreeMap::new();
        let mut sum = TraceSummary::default();
        for p in &self.processes {
            sum.dropped += p.dropped;
            if !p.cut.is_empty() {
                sum.cut.insert(p.pid, p.cut.clone());
            }
            for d in &p.devices {
                let held =
                    memory.entry(d.id.clone()).or_insert_with(|| Held { device: d.id.clone(), ..Held::default() });
                held.peak_bytes = held.peak_bytes.max(d.peak_bytes);
            }
            let key = |device: u32, label: u32| {
                let of = p.label(label).cloned().unwrap_or_default();
                (of.op, of.dtype, p.device_id(device).to_string())
            };
            for e in p.events.iter().filter(|e| e.error.is_none()) {
                if let (Some(device_s), 1.., true) = (e.device_s, e.count, e.kind != Kind::Region) {
                    launches.entry(key(e.device, e.label)).or_default().push((device_s / e.count as f64, e.count));
                }
                if let (Kind::Hit, Some(word)) = (e.kind, &e.note) {
                    *sum.hits.entry(word.clone()).or_default() += e.count;
                }
            }
            for t in &p.totals {
                sum.failed += t.failed;
                let id = p.device_id(t.device);
                match t.kind {
                    Kind::Alloc | Kind::Release => {
                        let held = memory.entry(id.into()).or_default();
                        held.device = id.into();
                        if t.kind == Kind::Alloc {
                            (held.allocations, held.bytes) = (held.allocations + t.count, held.bytes + t.bytes);
                        } else {
                            held.releases += t.count;
                        }
                    }
                    kind if kind.is_copy() => {
                        let c = copies.entry((id.into(), kind)).or_default();
                        (c.kind, c.device) = (kind.name().into(), id.into());
                        (c.count, c.bytes, c.seconds) = (c.count + t.count, c.bytes + t.bytes, c.seconds + t.seconds);
                    }
                    Kind::Compile => add(&mut sum.compile, t),
                    Kind::Wait => add(&mut sum.wait, t),
                    Kind::Fallback => sum.fallbacks += t.count,
                    _ => {}
                }
                if t.kind.is_moment() || t.kind == Kind::Region {
                    continue;
                }
                let (op, dtype, device) = key(t.device, t.label);
                let line = ops.entry((op.clone(), dtype.clone(), device.clone())).or_insert_with(|| OpTime {
                    op,
                    dtype,
                    device,
                    ..OpTime::default()
                });
                // A kernel event is the device's side of launches that are counted already.
                if t.kind != Kind::Kernel {
                    line.host_s += t.seconds;
                }
                if t.kind == Kind::Launch {
                    line.launches += t.count;
                }
                (line.device_s, line.timed) = (line.device_s + t.device_s, line.timed + t.timed);
            }
        }
        let all: f64 = ops.values().map(|o| o.host_s).sum();
        for (key, line) in &mut ops {
            line.share = if all > 0.0 { line.host_s / all } else { 0.0 };
            line.median_s = launches.get_mut(key).and_then(|l| weighted_median(l));
        }
        sum.ops = ops.into_values().collect();
        sum.ops.sort_by(|a, b| b.host_s.total_cmp(&a.host_s));
        sum.copies = copies.into_values().collect();
        sum.memory = memory.into_values().collect();
        sum
    }

    /// The totals that the kept events give, in the order of [`Process::totals`]: equal to those where nothing was dropped, and
    /// launches that share an event have their time from the first begin to the last end.
    pub fn recount(process: &Process) -> Vec<Total> {
        let mut totals: BTreeMap<(Kind, u32, u32), Total> = BTreeMap::new();
        for e in &process.events {
            let t = totals.entry((e.kind, e.device, e.label)).or_insert_with(|| Total::new(e.kind, e.device, e.label));
            t.add(e, e.seconds);
        }
        totals.into_values().collect()
    }
}

fn add(spent: &mut Spent, t: &Total) {
    spent.count += t.count;
    spent.seconds += t.seconds;
}

/// Joins totals of one kind, device and label, and sorts them.
pub fn joined(all: impl Iterator<Item = Total>) -> Vec<Total> {
    let mut totals: BTreeMap<(Kind, u32, u32), Total> = BTreeMap::new();
    for t in all {
        let key = (t.kind, t.device, t.label);
        totals.entry(key).or_insert_with(|| Total::new(t.kind, t.device, t.label)).join(&t);
    }
    totals.into_values().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(kind: Kind, label: u32, seconds: f64, bytes: u64) -> Event {
        Event { seconds, bytes, ..Event::new(kind, 0, 0, label, 0.0) }
    }

    /// Two ops, a copy that failed, kernels of which one event stands for three launches.
    fn process() -> Process {
        let label = |op: &str| Label { op: op.into(), dtype: "f32".into(), ..Label::default() };
        let timed = |e: Event, device_s, count| Event { device_s: Some(device_s), count, ..e };
        let events = vec![
            event(Kind::H2d, 1, 0.25, 400),
            Event { error: Some("device-lost".into()), ..event(Kind::H2d, 1, 0.125, 400) },
            Event { count: 3, ..event(Kind::Launch, 1, 0.5, 0) },
            timed(event(Kind::Kernel, 1, 3.0, 0), 3.0, 3),
            timed(event(Kind::Kernel, 1, 9.0, 0), 9.0, 1),
            timed(event(Kind::Launch, 2, 0.125, 0), 0.125, 1),
            Event { note: Some("program".into()), ..event(Kind::Hit, 2, 0.0, 0) },
            event(Kind::Fallback, 2, 0.0, 0),
            event(Kind::Alloc, 1, 0.0, 64),
            event(Kind::Wait, 0, 2.0, 0),
            event(Kind::Compile, 1, 1.0, 0),
        ];
        let device = Traced { id: "sim:x".into(), peak_bytes: 64, ..Traced::default() };
        let mut p =
            Process { labels: vec![label("gemm"), label("relu")], devices: vec![device], events, ..Process::default() };
        p.totals = Trace::recount(&p);
        p
    }

    #[test]
    fn a_summary_adds_up() {
        let sum =
            Trace { processes: vec![process(), Process { pid: 7, cut: "it crashed".into(), ..process() }] }.summary();
        let gemm = sum.ops.iter().find(|o| o.op == "gemm").unwrap();
        assert_eq!((gemm.launches, gemm.timed, gemm.device_s), (6, 8, 24.0));
        assert_eq!(gemm.median_s, Some(1.0), "three of four launches took a second each");
        assert_eq!(gemm.host_s, 2.0 * (0.25 + 0.125 + 0.5 + 1.0));
        assert!((sum.ops.iter().map(|o| o.share).sum::<f64>() - 1.0).abs() < 1e-12);
        assert_eq!(sum.ops[0].op, "", "the wait belongs to no op, and took longest");
        assert_eq!((sum.copies[0].count, sum.copies[0].bytes), (2, 800), "a copy that failed moved nothing");
        assert_eq!((sum.failed, sum.fallbacks, sum.hits["program"]), (2, 2, 2));
        assert_eq!((sum.memory[0].allocations, sum.memory[0].bytes, sum.memory[0].peak_bytes), (2, 128, 64));
        assert_eq!((sum.compile.count, sum.wait.seconds), (2, 4.0));
        assert_eq!(sum.cut[&7], "it crashed");
    }

    #[test]
    fn parts_go_on_where_the_part_before_ended() {
        let whole = process();
        let (first, rest) = whole.events.split_at(4);
        let mut joined = Process { events: first.to_vec(), totals: Vec::new(), ..whole.clone() };
        joined.extend(Process { labels: Vec::new(), events: rest.to_vec(), ..whole.clone() });
        assert_eq!(joined, whole);
        let text = serde_json::to_string(&whole).unwrap();
        assert_eq!(serde_json::from_str::<Process>(&text).unwrap(), whole);
    }
}
