//! The faults of `stress --self-test`: each with the way it takes and the verdict it must end in.

use std::collections::BTreeMap;

use crate::base::record::StressSample;
use crate::base::telemetry::{MemoryErrors, Snapshot, Watched};
use crate::base::{Attrs, DType, Error, Fill, HostTensor, Lang, Result};
use crate::base::{Code, DeviceInfo};
use crate::device::LedgerState;
use crate::op::expected::Expected;
use crate::op::{self, case};

use super::scenario::Counts;
use super::scenario::reference::wrong;
use super::simulated::{clean_series, leaking_series, sound};
use super::supervisor::Exit;
use super::verdict::{Evidence, INTERRUPTED, Limits, Verdict, overall};
use super::worker::Line;

/// A fault, or a sound run, and what must become of it.
pub(super) struct Row {
    pub(super) name: &'static str,
    pub(super) by: By,
    pub(super) want: Verdict,
    /// Exit code, written out: it is half of what is tested.
    pub(super) exit: u8,
}

/// The way a fault takes.
pub(super) enum By {
    /// A real worker, in a thread, does the scenario with the fault planted.
    Worker { scenario: &'static str, inject: Option<&'static str>, heartbeat: f64 },
    /// The same in a process.
    Process { scenario: &'static str, inject: &'static str },
    /// Three real workers with a simulated card of one model each, and a fault for one of them.
    Node { scenario: &'static str, inject: Option<&'static str> },
    /// The real supervisor listens to a worker that says only this; the argument counts workers from 0.
    Script { says: fn(u32) -> Vec<Line>, exit: Option<Exit>, seconds: f64, interrupt: bool },
    /// The judge gets this evidence.
    Evidence(fn() -> Result<Evidence>),
    /// The judge of whole runs.
    Run(fn(&Limits) -> Verdict),
}

impl By {
    /// Real workers work: what they get done depends on the machine.
    pub(super) fn works(&self) -> bool {
        matches!(self, By::Worker { .. } | By::Process { .. } | By::Node { .. })
    }

    /// The word in the table.
    pub(super) fn words(&self) -> String {
        match self {
            By::Worker { scenario, inject, .. } => {
                format!("worker: {scenario}{}", inject.map_or(String::new(), |i| format!(" --inject {i}")))
            }
            By::Node { scenario, inject } => {
                format!("workers: {scenario}{}", inject.map_or(String::new(), |i| format!(" --inject {i}")))
            }
            By::Process { scenario, inject } => format!("process: {scenario} --inject {inject}"),
            By::Script { .. } => "supervisor".into(),
            By::Evidence(_) | By::Run(_) => "judge".into(),
        }
    }
}

const fn worker(scenario: &'static str, inject: &'static str) -> By {
    By::Worker { scenario, inject: Some(inject), heartbeat: 30.0 }
}

const fn clean(scenario: &'static str) -> By {
    By::Worker { scenario, inject: None, heartbeat: 30.0 }
}

const DONE: Option<Exit> = Some(Exit { code: Some(0), signal: None });

const fn script(says: fn(u32) -> Vec<Line>) -> By {
    By::Script { says, exit: DONE, seconds: 0.4, interrupt: false }
}

const fn row(name: &'static str, by: By, want: Verdict, exit: u8) -> Row {
    Row { name, by, want, exit }
}

use Verdict::{Corruption, Crash, Degradation, Hang, Inconclusive, Leak, Pass, Throttled};

/// All of them. Those of other tools' real bugs name the tool.
pub(super) static ROWS: &[Row] = &[
    // Results.
    row("one wrong element in 16 million (Frobenius norms dilute it: RVS)", By::Evidence(one_in_16m), Corruption, 1),
    row(
        "all-zero output where two runs differ (tolerance off by 1000: RVS)",
        By::Evidence(zeros_in_bounds),
        Corruption,
        1,
    ),
    row("all-zero output from the first call on (self-consistent: gpu-burn)", worker("soak", "zeros"), Corruption, 1),
    row("wrong at the first call, nothing to compare yet (RVS Pulse)", worker("soak", "bitflip@nth=1"), Corruption, 1),
    row("NaN in the output (gpu-burn, RVS: NaN > tolerance is false)", worker("soak", "nan"), Corruption, 1),
    row("a bit flips now and then", worker("alloc-cycle", "bitflip@every=200"), Corruption, 1),
    row("a bit flips once", worker("soak", "bitflip@nth=300"), Corruption, 1),
    row("a bit flips under many threads", worker("concurrent", "bitflip@every=100"), Corruption, 1),
    row(
        "an error counter that runs over (gpu-burn)",
        By::Script { says: overflow, exit: SEGFAULT, seconds: 30.0, interrupt: false },
        Corruption,
        1,
    ),
    // Too little to pass.
    row("no work at all (gpu-burn)", worker("alloc-cycle", "zero"), Inconclusive, 4),
    row("no work after preparation", worker("soak", "zero"), Inconclusive, 4),
    row("a planted fault that never comes up", worker("alloc-cycle", "bitflip@nth=4000000000"), Inconclusive, 4),
    row("0 operations a second (gpu-fryer)", script(|_| said(flat(|s| s.rate = 0.0), |_| ())), Inconclusive, 4),
    row("a temperature of 1.8e19 degrees (gpu-fryer)", By::Evidence(burning), Inconclusive, 4),
    row("nothing checked", script(|_| said(flat(|_| ()), |a| a.counts.bytes_checked = 0)), Inconclusive, 4),
    row("half of the bytes checked", script(|_| said(flat(|_| ()), |a| a.counts.bytes_checked /= 2)), Inconclusive, 4),
    row("fewer cycles than planned", script(|_| said(flat(|_| ()), |a| a.counts.done = 3)), Inconclusive, 4),
    row("a third of the time tested", script(|_| said(flat(|_| ()), |a| a.tested = 0.13)), Inconclusive, 4),
    row("no samples", script(|_| said(Vec::new(), |_| ())), Inconclusive, 4),
    row("a phase that was skipped", By::Run(skipped), Inconclusive, 4),
    row("a device without a name", By::Run(nameless), Inconclusive, 4),
    row(
        "interrupted",
        By::Script { says: |_| said(flat(|_| ()), |_| ()), exit: DONE, seconds: 0.4, interrupt: true },
        Inconclusive,
        INTERRUPTED,
    ),
    row("device memory that other processes move", By::Evidence(neighbour), Inconclusive, 4),
    row("device memory that grows, nobody tells whose", By::Evidence(unattributed), Inconclusive, 4),
    // Errors.
    row("allocations that fail (DCGM passes)", worker("alloc-cycle", "alloc"), Verdict::Error, 1),
    row("a device that is lost", worker("soak", "lost"), Verdict::Error, 1),
    row("an error that the card's memory could not correct", By::Evidence(uncorrected), Verdict::Error, 1),
    row("a card that is gone", By::Evidence(gone), Verdict::Error, 1),
    // Leaks by kind.
    row("one buffer of a thousand is not released", worker("alloc-cycle", "leak@every=1000"), Leak, 1),
    row("buffers are not released by many threads", worker("concurrent", "leak"), Leak, 1),
    row("pinned buffers", script(|_| said(flat(|_| ()), |a| a.after.pinned += 1)), Leak, 1),
    row("bytes", script(|_| said(flat(|_| ()), |a| a.after.bytes += 4096)), Leak, 1),
    row("events", script(|_| said(flat(|_| ()), |a| a.after.events += 1)), Leak, 1),
    row("queues", script(|_| said(flat(|_| ()), |a| a.after.queues += 1)), Leak, 1),
    row("programs", script(|_| said(flat(|_| ()), |a| a.after.programs += 1)), Leak, 1),
    row("events that pile up and go at the end", script(|_| said(over_time(|s, i| s.events = i / 9), |_| ())), Leak, 1),
    row("file descriptors", script(|_| said(over_time(|s, i| s.fds = Some(9 + i / 4)), |_| ())), Leak, 1),
    row("threads", script(|_| said(over_time(|s, i| s.threads = Some(9 + i / 4)), |_| ())), Leak, 1),
    row(
        "resident memory, 1 MiB a minute under noise and a step",
        script(|_| said(leaking_series(5, MIB, 20.0 * MIB), |_| ())),
        Leak,
        1,
    ),
    row("memory of the card, the worker's own", By::Evidence(own_memory), Leak, 1),
    row("memory of the card, all others stand still", By::Evidence(shared_memory), Leak, 1),
    // Time.
    row(
        "throughput that falls",
        script(|_| said(over_time(|s, i| s.rate *= 1.0 - 0.001 * i as f64), |_| ())),
        Degradation,
        1,
    ),
    row("slow cycles that become slower", script(|_| said(over_time(tail), |_| ())), Degradation, 1),
    row("one card of three of a model is slow", By::Node { scenario: "burn", inject: Some(ONE_SLOW) }, Degradation, 1),
    row("clocks lowered for several reasons at once (gpu-fryer)", worker("alloc-cycle", "throttle"), Throttled, 1),
    row("clocks lowered by heat for a while", By::Evidence(heat), Throttled, 1),
    // Ends.
    row(
        "a queue that never finishes",
        By::Worker { scenario: "alloc-cycle", inject: Some("hang@nth=10"), heartbeat: 0.8 },
        Hang,
        1,
    ),
    row(
        "a worker that falls silent",
        By::Script { says: |_| Vec::new(), exit: None, seconds: 0.4, interrupt: false },
        Hang,
        1,
    ),
    row("a worker that reports a wedged operation", script(stalled), Hang, 1),
    row("a worker that aborts", By::Process { scenario: "alloc-cycle", inject: "crash" }, Crash, 5),
    row(
        "a driver that crashes in the middle",
        By::Script { says: |_| vec![op("gemm/f32/m64,n64,k64")], exit: SEGFAULT, seconds: 0.4, interrupt: false },
        Crash,
        5,
    ),
    row(
        "a driver that crashes when all is done",
        By::Script { says: |_| said(flat(|_| ()), |_| ()), exit: SEGFAULT, seconds: 0.4, interrupt: false },
        Crash,
        5,
    ),
    // Sound runs.
    row("sound: the mix of ops", clean("soak"), Pass, 0),
    row("sound: allocations", clean("alloc-cycle"), Pass, 0),
    row("sound: three cards of a model", By::Node { scenario: "burn", inject: None }, Pass, 0),
    row("sound: many threads", clean("concurrent"), Pass, 0),
    row("sound: two hours with noise and steps", script(|_| said(clean_series(1), |_| ())), Pass, 0),
    row("sound: two hours, another seed", script(|_| said(clean_series(2), |_| ())), Pass, 0),
    row("sound: power cap and idle clocks", By::Evidence(capped), Pass, 0),
    row("sound: every phase run", By::Run(whole), Pass, 0),
];

/// The cards of [`By::Node`], and a fault that makes each launch of one of them slower.
pub(super) const CARDS: &str = "sim:textbook:0,sim:textbook:1,sim:textbook:2";
const ONE_SLOW: &str = "slow@from=1@device=sim:textbook:1";

const MIB: f64 = 1024.0 * 1024.0;
const SEGFAULT: Option<Exit> = Some(Exit { code: None, signal: Some(11) });

/// What a scripted worker tells at its end.
struct Account {
    counts: Counts,
    tested: f64,
    after: LedgerState,
}

/// The lines of a worker with these samples that did, checked and gave back everything, but for `change`.
fn said(series: Vec<StressSample>, change: impl FnOnce(&mut Account)) -> Vec<Line> {
    let bytes = 1 << 30;
    let counts = Counts { done: 100_000, bytes_made: bytes, bytes_checked: bytes, ..Counts::default() };
    let mut account = Account { counts, tested: 0.4, after: LedgerState::default() };
    change(&mut account);
    let Account { counts, tested, after } = account;
    let mut lines = vec![op("gemm/f32/m64,n64,k64")];
    lines.extend(series.into_iter().map(|sample| Line::Sample { sample, counts, tested }));
    lines.push(Line::Finished {
        counts,
        tested,
        counters: BTreeMap::new(),
        speeds: BTreeMap::new(),
        ledger: (LedgerState::default(), after),
        release_errors: Vec::new(),
        unmet: None,
    });
    lines
}

fn op(doing: &str) -> Line {
    Line::Op { lane: 0, doing: doing.into() }
}

fn stalled(_: u32) -> Vec<Line> {
    vec![op("gemm/f32/m64,n64,k64"), Line::Stalled { doing: "gemm/f32/m64,n64,k64".into(), seconds: 1.0 }]
}

/// Two workers with half of all 64-bit numbers of wrong results each, then one that saw none: the plain sum is zero.
fn overflow(n: u32) -> Vec<Line> {
    let mut lines = said(flat(|_| ()), |a| a.counts.mismatches = if n < 2 { 1 << 63 } else { 0 });
    lines.pop();
    lines
}

/// Twenty even samples in less than a second.
fn flat(change: fn(&mut StressSample)) -> Vec<StressSample> {
    let sample = |i: u64| {
        let mut s =
            StressSample { t: 0.02 * i as f64, rate: 1000.0, rss_bytes: Some(1 << 28), ..StressSample::default() };
        change(&mut s);
        s
    };
    (1..=20).map(sample).collect()
}

/// Two even hours.
fn over_time(change: fn(&mut StressSample, u64)) -> Vec<StressSample> {
    let mut series = clean_series(3);
    series.iter_mut().zip(0..).for_each(|(s, i)| change(s, i));
    series
}

fn tail(s: &mut StressSample, i: u64) {
    s.p99_s = s.p99_s.map(|p| p * (1.0 + 0.02 * i as f64));
}

/// Two hours of a card whose memory grows by 1 MiB a sample.
fn grows(change: fn(&mut StressSample, u64)) -> Result<Evidence> {
    let mut series = clean_series(4);
    for (s, i) in series.iter_mut().zip(0u64..) {
        s.device_used_bytes = Some((3000 + i) << 20);
        change(s, i);
    }
    Ok(sound(series))
}

fn neighbour() -> Result<Evidence> {
    grows(|s, i| s.device_other_bytes = Some((500 + i) << 20))
}

fn unattributed() -> Result<Evidence> {
    grows(|s, _| s.device_other_bytes = None)
}

fn own_memory() -> Result<Evidence> {
    grows(|s, i| s.device_own_bytes = Some((100 + i) << 20))
}

fn shared_memory() -> Result<Evidence> {
    grows(|_, _| ())
}

/// A sound phase on a card that told this, one after the other.
fn card(snapshots: &[Snapshot]) -> Evidence {
    let mut told = Watched::default();
    snapshots.iter().for_each(|s| told.take(s));
    Evidence {
        card: told.fault(),
        throttled: told.throttled(),
        incredible: told.incredible(),
        ..sound(clean_series(1))
    }
}

fn burning() -> Result<Evidence> {
    let at = |t| Snapshot { temperature_c: Some(t), ..Snapshot::default() };
    Ok(card(&[at(50.0), at(1.8e19)]))
}

fn uncorrected() -> Result<Evidence> {
    let at = |n| Snapshot {
        memory: MemoryErrors { uncorrected: Some(n), ..MemoryErrors::default() },
        ..Snapshot::default()
    };
    Ok(card(&[at(2), at(2), at(3)]))
}

fn gone() -> Result<Evidence> {
    Ok(card(&[Snapshot::default(), Snapshot { lost: true, ..Snapshot::default() }]))
}

fn throttling(masks: &[u64]) -> Evidence {
    let at = |mask: &u64| Snapshot { throttle: Some(*mask), ..Snapshot::default() };
    card(&masks.iter().map(at).collect::<Vec<_>>())
}

fn heat() -> Result<Evidence> {
    Ok(throttling(&[0x1, 0x4, 0x24, 0x64, 0x4, 0x1]))
}

fn capped() -> Result<Evidence> {
    // Full load at the power cap is how cards are meant to run; one moment of heat among many is told and not judged.
    Ok(throttling(&[0x1, 0x4, 0x4, 0x6, 0x24, 0x4, 0x1]))
}

/// A sound phase in which the comparison found this.
fn compared(found: Option<String>) -> Evidence {
    Evidence { mismatches: u64::from(found.is_some()), finding: found, ..sound(clean_series(1)) }
}

fn one_in_16m() -> Result<Evidence> {
    let n = 1usize << 24;
    let mut values = vec![1.0f32; n];
    let want = HostTensor::from_slice(&values, &[n as u64])?;
    if let Some(v) = values.get_mut(n - 3) {
        *v = f32::from_bits(v.to_bits() ^ 1);
    }
    let got = HostTensor::from_slice(&values, &[n as u64])?;
    Ok(compared(wrong(&[want], &[got], None)))
}

fn zeros_in_bounds() -> Result<Evidence> {
    let op = op::find("gemm")?;
    let case = op.case(DType::F32, &[64, 64, 64], Attrs::new(), Fill::Uniform)?;
    let inputs = case::inputs(op, &case)?;
    let none = || Error::new(Code::Internal, format!("{case}: no published limit"));
    let expected = Expected::new(op, &case, Lang::OpenclC, &inputs).ok_or_else(none)?;
    let zeros = || HostTensor::zeros(DType::F32, &[64, 64]);
    let ones = HostTensor::from_slice(&[1f32; 64 * 64], &[64, 64])?;
    Ok(compared(wrong(&[ones], &[zeros()?], Some((&expected, &inputs)))))
}

fn phases(n: usize) -> Vec<(String, Verdict)> {
    let id = DeviceInfo::ordinary_gpu().id;
    (0..n).map(|_| (id.clone(), Verdict::Pass)).collect()
}

fn skipped(limits: &Limits) -> Verdict {
    overall(&[DeviceInfo::ordinary_gpu()], &phases(2), 3, false, limits)
}

fn nameless(limits: &Limits) -> Verdict {
    let device = DeviceInfo { name: String::new(), ..DeviceInfo::ordinary_gpu() };
    overall(&[device], &phases(3), 3, false, limits)
}

fn whole(limits: &Limits) -> Verdict {
    overall(&[DeviceInfo::ordinary_gpu()], &phases(3), 3, false, limits)
}
