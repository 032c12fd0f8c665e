//! Runs subjects in turn and reads the clock.

use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::base::record::Phases;
use crate::base::sink::Cancel;
use crate::base::{
    Attrs, Backend, Clock, Code, DType, DeviceClass, DeviceInfo, Error, Fill, HostTensor, Result, os, stats,
};
use crate::device::tap::Tap;
use crate::device::{DEADLINE, Device, MemoryKind, Place, Queue};
use crate::engine::{Leased, Pins, Prepared, Runner};
use crate::op::{Probe, Role, Unit};

use super::stop::{StopRule, Verdict, batch_for};

/// Where the operands are when a call begins, and where its result must be when it ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Residency {
    /// On the device: the call is the launch, and the wait for it or a share of one.
    Resident,
    /// In ordinary host memory: the call copies inputs there, launches, copies outputs back, into memory that was there before.
    Always,
    /// The same in page-locked host memory, where the device's API has it: copies need no detour. On the CPU that is ordinary
    /// memory, for nothing reads it but the processor.
    AlwaysPinned,
    /// In ordinary host memory, for [`Residency::calls`] calls between the copies in and out: each call's share of them.
    Once,
    /// In memory that migrates on demand and lies on the host: the device fetches what it uses, results are copied out.
    Managed,
    /// The same, sent to the device before the launch and back after it.
    ManagedPrefetched,
}

impl Residency {
    /// All residencies.
    pub const ALL: [Residency; 6] = [
        Residency::Resident,
        Residency::Always,
        Residency::AlwaysPinned,
        Residency::Once,
        Residency::Managed,
        Residency::ManagedPrefetched,
    ];

    /// Those of which placement asks: operands on the device, or in host memory.
    pub const PLACED: [Residency; 2] = [Residency::Resident, Residency::Always];

    /// Calls between copies (requirements C6: k = 10).
    pub const fn calls(self) -> u64 {
        match self {
            Residency::Once => 10,
            _ => 1,
        }
    }

    /// Whether a device offers it. Errors: the reason why not.
    pub fn offered(self, device: &dyn Device) -> Result<()> {
        // The processor reads any of these where it is.
        if device.info().backend == Backend::Cpu {
            return Ok(());
        }
        match self {
            Residency::Resident | Residency::Always | Residency::Once => Ok(()),
            Residency::AlwaysPinned => device.alloc(16, MemoryKind::Pinned).map(|_| ()),
            // Before each sample the operands go back to the host: without that only the first one would migrate.
            Residency::Managed | Residency::ManagedPrefetched => {
                let buffer = device.alloc(16, MemoryKind::Managed)?;
                let mut q = device.queue()?;
                q.prefetch(&buffer, Place::Host)?;
                q.finish(DEADLINE)
            }
        }
    }

    /// Whether it means something for ops in this unit: copies and waits are timed as they are.
    pub const fn takes(self, unit: Unit) -> bool {
        match self {
            Residency::Resident | Residency::Always => true,
            Residency::AlwaysPinned | Residency::Once | Residency::Managed | Residency::ManagedPrefetched => {
                !matches!(unit, Unit::Bytes | Unit::Calls)
            }
        }
    }

    /// The word in profiles and records.
    pub const fn name(self) -> &'static str {
        match self {
            Residency::Resident => "resident",
            Residency::Always => "always",
            Residency::AlwaysPinned => "always-pinned",
            Residency::Once => "once",
            Residency::Managed => "managed",
            Residency::ManagedPrefetched => "managed-prefetched",
        }
    }
}

impl std::str::FromStr for Residency {
    type Err = Error;
    fn from_str(s: &str) -> Result<Self> {
        Residency::ALL.into_iter().find(|r| r.name() == s).ok_or_else(|| {
            let known = Residency::ALL.map(Residency::name).join(" ");
            Error::new(Code::BadArgument, format!("unknown residency '{s}'; known: {known}"))
        })
    }
}

/// What caches hold when a timed region begins.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Cache {
    /// What the call before left there.
    #[default]
    Hot,
    /// Nothing of the operands: each sample is one call, after a sweep over more memory than the last cache holds.
    Cold,
}

impl Cache {
    /// The word on the command line and in records.
    pub const fn name(self) -> &'static str {
        match self {
            Cache::Hot => "hot",
            Cache::Cold => "cold",
        }
    }
}

impl std::str::FromStr for Cache {
    type Err = Error;
    fn from_str(s: &str) -> Result<Self> {
        [Cache::Hot, Cache::Cold]
            .into_iter()
            .find(|c| c.name() == s)
            .ok_or_else(|| Error::new(Code::BadArgument, format!("unknown cache state '{s}'; known: hot cold")))
    }
}

/// What timed regions are called in a trace: samples, the calls before the first one, and calls whose phases are apart.
pub const SAMPLE: &str = "sample";
const WARM_UP: &str = "warm-up";
/// See [`SAMPLE`].
pub const PHASES: &str = "phases";

/// Something that can be timed.
pub trait Subject {
    /// Does it `calls` times and returns when the last one is complete.
    fn run(&mut self, calls: u64) -> Result<()>;
    /// Calls that one of these stands for; seconds per call are shared among them.
    fn share(&self) -> u64 {
        1
    }
    /// The clock its time passes on.
    fn clock(&self) -> Arc<dyn Clock>;
    /// Now, on the clock of a trace, if there is one.
    fn traced(&self) -> Option<f64> {
        None
    }
    /// Tells a trace of a timed region that ends now: what it was for, its calls, its begin and the seconds that were measured.
    fn told(&self, _remark: &'static str, _calls: u64, _begin: f64, _seconds: f64) {}
    /// What must happen before each timed region and is not timed; complete at return.
    fn before(&mut self) -> Result<()> {
        Ok(())
    }
    /// True if each sample is one call, however short: what [`Subject::before`] does holds for the first one only.
    fn one_call(&self) -> bool {
        false
    }
    /// The device, if it may be a card that another API shows as well.
    fn device(&self) -> Option<&DeviceInfo> {
        None
    }
    /// Takes the card back after another API's device has used it, untimed; complete at return.
    fn take_back(&mut self) -> Result<()> {
        Ok(())
    }
}

/// Samples of one subject.
#[derive(Clone, Debug, Default)]
pub struct Series {
    /// Seconds per call, in order.
    pub samples: Vec<f64>,
    /// Calls per sample.
    pub batch: u64,
    /// Calls in all, those before the first sample among them.
    pub calls: u64,
}

impl Series {
    /// Median seconds per call.
    pub fn median(&self) -> f64 {
        stats::median(&self.samples)
    }
}

/// Which subjects must take their card back before they are timed.
///
/// Two APIs have a context each on one card, and the first work after another context's waits for the switch: on an H200 140 us
/// for CUDA after OpenCL, 200 us for Vulkan, whatever the work. A program that uses one API never pays that, so no sample may.
struct Taken {
    /// Of each subject those on the same card by another API.
    others: Vec<Vec<usize>>,
    taken: Vec<bool>,
}

impl Taken {
    fn of(subjects: &[&mut dyn Subject]) -> Self {
        let infos: Vec<Option<&DeviceInfo>> = subjects.iter().map(|s| s.device()).collect();
        let shares = |a: &DeviceInfo, b: &DeviceInfo| a.id != b.id && a.same_card(b);
        let of = |a: &Option<&DeviceInfo>| {
            let beside = infos.iter().enumerate().filter(|(_, b)| a.zip(**b).is_some_and(|(a, b)| shares(a, b)));
            beside.map(|(i, _)| i).collect()
        };
        Taken { others: infos.iter().map(of).collect(), taken: vec![false; subjects.len()] }
    }

    /// Before subject `i` runs: whether it must take the card back.
    fn begins(&mut self, i: usize) -> bool {
        for other in &self.others[i] {
            self.taken[*other] = true;
        }
        std::mem::take(&mut self.taken[i])
    }
}

/// Samples all subjects interleaved, one sample each per round, in alternating order, until the rule says stop.
///
/// Each subject is warmed up first; the calls per sample are chosen there. One whose card another API's device has used since
/// takes it back before its sample, untimed. An interrupted run returns what it has, if every subject has at least one sample;
/// otherwise `Cancelled`.
pub fn sample(subjects: &mut [&mut dyn Subject], rule: &StopRule, cancel: &Cancel) -> Result<Vec<Series>> {
    sample_between(subjects, rule, cancel, &mut || ())
}

/// The same with something that happens after each sample, and after a card was taken back, outside of what is timed.
pub fn sample_between(
    subjects: &mut [&mut dyn Subject],
    rule: &StopRule,
    cancel: &Cancel,
    between: &mut dyn FnMut(),
) -> Result<Vec<Series>> {
    let Some(clock) = subjects.first().map(|s| s.clock()) else { return Ok(Vec::new()) };
    let begin = clock.now();
    let mut series = vec![Series::default(); subjects.len()];
    let mut cards = Taken::of(subjects);
    for (i, (s, out)) in subjects.iter_mut().zip(&mut series).enumerate() {
        cards.begins(i);
        (out.batch, out.calls) = warm_up(*s, rule)?;
        if cancel.raised() {
            return Err(Error::new(Code::Cancelled, "interrupted before the first sample"));
        }
    }
    let begin_samples = clock.now();
    loop {
        let round = series.iter().map(|s| s.samples.len()).min().unwrap_or(0);
        let forward = round % 2 == 0;
        for i in 0..subjects.len() {
            let i = if forward { i } else { subjects.len() - 1 - i };
            let batch = series[i].batch;
            let calls = batch * subjects[i].share();
            if cards.begins(i) {
                subjects[i].take_back()?;
                between();
            }
            let seconds = time(subjects[i], batch, SAMPLE)?;
            series[i].samples.push(seconds / calls as f64);
            series[i].calls += calls;
            between();
        }
        let views: Vec<&[f64]> = series.iter().map(|s| s.samples.as_slice()).collect();
        // The soft limit counts sampling alone, the budget everything.
        let soft = StopRule { budget_s: rule.budget_s - (begin_samples - begin), ..*rule };
        if soft.decide(&views, clock.now() - begin_samples) != Verdict::Continue || cancel.raised() {
            return Ok(series);
        }
    }
}

fn time(s: &mut dyn Subject, calls: u64, remark: &'static str) -> Result<f64> {
    s.before()?;
    let clock = s.clock();
    let begin = s.traced();
    let start = clock.now();
    s.run(calls)?;
    let seconds = clock.now() - start;
    if let Some(begin) = begin {
        s.told(remark, calls * s.share(), begin, seconds);
    }
    Ok(seconds)
}

/// Runs until a call is no longer faster than the one before, at most five times or a tenth of the budget; then sizes
/// the batch. Gives it and the number of calls.
fn warm_up(s: &mut dyn Subject, rule: &StopRule) -> Result<(u64, u64)> {
    let mut best = time(s, 1, WARM_UP)?;
    let mut spent = best;
    let mut calls = 1;
    for _ in 0..4 {
        if spent > rule.budget_s / 10.0 {
            break;
        }
        let t = time(s, 1, WARM_UP)?;
        calls += 1;
        spent += t;
        if t > 0.95 * best {
            best = best.min(t);
            break;
        }
        best = t;
    }
    let batch = if s.one_call() { 1 } else { batch_for(best, rule.region_s) };
    if batch > 1 {
        // One batch more settles caches and the estimate of a very short call.
        let per_call = time(s, batch, WARM_UP)? / batch as f64;
        return Ok((batch_for(per_call, rule.region_s), calls + batch));
    }
    Ok((batch, calls))
}

/// A prepared op as a subject.
pub struct OpSubject<'a> {
    prepared: &'a Prepared,
    /// The same with operands in memory that migrates, if that is where they are.
    moved: Option<Prepared>,
    device: Arc<dyn Device>,
    inputs: &'a [HostTensor],
    residency: Residency,
    /// Page-locked copies of the operands, if that is where they are.
    pins: Option<Pins>,
    /// Where results go: memory that has been there before, as the CPU writes to. Empty until it is needed.
    results: Vec<HostTensor>,
    lease: Leased<'a>,
    clock: Arc<dyn Clock>,
    deadline: Duration,
    sweep: Option<&'a Sweep>,
    single: bool,
}

/// Reads and writes more memory than a device's last cache holds, on all of its units.
pub struct Sweep {
    prepared: Prepared,
    /// Fills the host's caches, where operands come from there.
    host: std::cell::RefCell<Vec<u8>>,
}

impl Sweep {
    /// Swept where nobody tells how large the last cache is.
    const UNKNOWN: u64 = 64 << 20;

    /// Bytes to touch for a cache of that size: four times as many, for caches that keep what is used again.
    pub fn bytes(cache: Option<u64>) -> u64 {
        cache.unwrap_or(Self::UNKNOWN).saturating_mul(4).clamp(16 << 20, 1 << 30)
    }

    /// For a device. Errors: those of allocating and building there.
    pub fn new(runner: &Runner) -> Result<Self> {
        let info = runner.device().info();
        let n = Self::bytes(info.cache_bytes).min(info.max_binding_bytes) / 8;
        let op = Probe::Copy.op();
        let prepared = runner.prepare(op, &op.case(DType::F32, &[n], Attrs::new(), Fill::Uniform)?, None)?;
        let simulated = info.class == DeviceClass::Simulated || info.backend == Backend::Cpu;
        let host = if simulated { 0 } else { Self::bytes(os::last_cache_bytes()) };
        Ok(Sweep { prepared, host: std::cell::RefCell::new(vec![0; host as usize]) })
    }

    fn run(&self, q: &mut dyn Queue, deadline: Duration) -> Result<()> {
        self.host.borrow_mut().iter_mut().step_by(64).for_each(|b| *b = b.wrapping_add(1));
        self.prepared.launch(q)?;
        q.finish(deadline)
    }
}

impl<'a> OpSubject<'a> {
    /// The same with one call per sample, so that each has its own wait.
    #[must_use]
    pub fn single(mut self) -> Self {
        self.single = true;
        self
    }

    /// The same with cold caches.
    #[must_use]
    pub fn cold(mut self, sweep: &'a Sweep) -> Self {
        self.sweep = Some(sweep);
        self
    }

    /// Uploads the inputs; fails if the device does.
    pub fn new(
        runner: &'a Runner,
        prepared: &'a Prepared,
        inputs: &'a [HostTensor],
        residency: Residency,
        deadline: Duration,
    ) -> Result<Self> {
        let residency = match (residency, runner.device().info().backend) {
            (Residency::AlwaysPinned, Backend::Cpu) => Residency::Always,
            // Nothing moves.
            (Residency::Managed | Residency::ManagedPrefetched, Backend::Cpu) => Residency::Resident,
            _ => residency,
        };
        let moved = match residency {
            Residency::Managed | Residency::ManagedPrefetched => {
                residency.offered(runner.device().as_ref())?;
                Some(runner.prepare_migrating(prepared)?)
            }
            _ => None,
        };
        let mut lease = runner.lease()?;
        let q = lease.queue()?;
        let used = moved.as_ref().unwrap_or(prepared);
        used.poison(q)?;
        used.upload(q, inputs)?;
        let pins = match residency {
            Residency::AlwaysPinned => Some(prepared.pin(q, inputs)?),
            _ => None,
        };
        let results = match residency {
            Residency::Resident | Residency::AlwaysPinned => Vec::new(),
            _ => used.results()?,
        };
        q.finish(deadline)?;
        Ok(OpSubject {
            prepared,
            moved,
            device: Arc::clone(runner.device()),
            inputs,
            residency,
            pins,
            results,
            lease,
            clock: runner.device().clock(),
            deadline,
            sweep: None,
            single: false,
        })
    }

    /// The outputs of the last call, until the next one. What works in place has changed its own operand in every call so far,
    /// and devices differ in their number: there it is one more call from the start.
    pub fn outputs(&mut self) -> Result<&[HostTensor]> {
        let q = self.lease.queue()?;
        let prepared = self.moved.as_ref().unwrap_or(self.prepared);
        if self.results.is_empty() {
            self.results = prepared.results()?;
        }
        // A copy that does not happen must not show what an earlier one left.
        self.results.iter_mut().for_each(|t| t.bytes_mut().fill(0xFF));
        if prepared.in_place() {
            prepared.call_into(q, self.inputs, &mut self.results, self.deadline)?;
        } else {
            prepared.download_into(q, &mut self.results)?;
        }
        Ok(&self.results)
    }
}

impl Subject for OpSubject<'_> {
    fn run(&mut self, calls: u64) -> Result<()> {
        let (prepared, deadline) = (self.moved.as_ref().unwrap_or(self.prepared), self.deadline);
        let _scope = prepared.scope();
        let q = self.lease.queue()?;
        let results = &mut self.results;
        let mut go = || -> Result<()> {
            match self.residency {
                Residency::Resident => {
                    for _ in 0..calls {
                        prepared.launch(q)?;
                    }
                    q.finish(deadline)
                }
                Residency::Always => {
                    for _ in 0..calls {
                        prepared.call_into(q, self.inputs, results, deadline)?;
                    }
                    Ok(())
                }
                Residency::AlwaysPinned => {
                    let gone = || Error::new(Code::Internal, "no page-locked memory was prepared");
                    let pins = self.pins.as_ref().ok_or_else(gone)?;
                    for _ in 0..calls {
                        prepared.call_pinned(q, pins, deadline)?;
                    }
                    Ok(())
                }
                // One call: what migrated stays where it is until it is sent back.
                Residency::Managed | Residency::ManagedPrefetched => {
                    let ahead = self.residency == Residency::ManagedPrefetched;
                    for _ in 0..calls {
                        if ahead {
                            prepared.send(q, Place::Device, |_| true)?;
                        }
                        prepared.launch(q)?;
                        if ahead {
                            prepared.send(q, Place::Host, |role| role != Role::In)?;
                        }
                        q.finish(deadline)?;
                        prepared.download_into(q, results)?;
                    }
                    Ok(())
                }
                // Whole groups: each has its copies, and the call's time is its share of them.
                Residency::Once => {
                    for _ in 0..calls {
                        prepared.upload(q, self.inputs)?;
                        for _ in 0..self.residency.calls() {
                            prepared.launch(q)?;
                        }
                        q.finish(deadline)?;
                        prepared.download_into(q, results)?;
                    }
                    Ok(())
                }
            }
        };
        let result = go();
        if result.is_err() {
            self.lease.discard();
        }
        result
    }
    fn clock(&self) -> Arc<dyn Clock> {
        Arc::clone(&self.clock)
    }
    fn share(&self) -> u64 {
        self.residency.calls()
    }
    fn traced(&self) -> Option<f64> {
        self.device.tap().map(Tap::now)
    }
    fn told(&self, remark: &'static str, calls: u64, begin: f64, seconds: f64) {
        if let Some(tap) = self.device.tap() {
            let _scope = self.prepared.scope();
            tap.region(remark, calls, begin, seconds);
        }
    }
    fn before(&mut self) -> Result<()> {
        let q = self.lease.queue()?;
        if let Some(moved) = &self.moved {
            moved.send(q, Place::Host, |_| true)?;
            q.finish(self.deadline)?;
        }
        match self.sweep {
            Some(sweep) => sweep.run(q, self.deadline),
            None => Ok(()),
        }
    }
    fn one_call(&self) -> bool {
        self.single || self.sweep.is_some() || self.moved.is_some()
    }
    fn device(&self) -> Option<&DeviceInfo> {
        Some(self.device.info())
    }
    /// By one launch: a write may be the host's affair, and waits for nobody.
    fn take_back(&mut self) -> Result<()> {
        let prepared = self.moved.as_ref().unwrap_or(self.prepared);
        let q = self.lease.queue()?;
        let result = prepared.launch(q).and_then(|()| q.finish(self.deadline));
        if result.is_err() {
            self.lease.discard();
        }
        result
    }
}

/// Medians of the phases of a call with operands in host memory, from up to `repeats` calls or `budget_s` seconds.
///
/// `alloc` allocates and releases buffers of the operands' sizes; `kernel` is the device's own time where it has a
/// clock; `sync` is what the host waited beyond that. Errors: `FeatureUnsupported` for operands that migrate; those of a call.
pub fn phases(
    device: &Arc<dyn Device>,
    subject: &mut OpSubject<'_>,
    operand_bytes: &[u64],
    repeats: usize,
    budget_s: f64,
) -> Result<Phases> {
    if subject.moved.is_some() {
        let why = "operands that migrate are copied within the kernel: there are no phases apart";
        return Err(Error::new(Code::FeatureUnsupported, why));
    }
    let clock = device.clock();
    let begin = clock.now();
    let mut rows: Vec<[f64; 6]> = Vec::new();
    let mut by_device = true;
    let (prepared, inputs, deadline) = (subject.prepared, subject.inputs, subject.deadline);
    let _scope = prepared.scope();
    while rows.len() < repeats && (rows.is_empty() || clock.now() - begin < budget_s) {
        let traced = device.tap().map(|tap| (tap, tap.now()));
        let t0 = clock.now();
        let buffers = operand_bytes.iter().map(|b| device.alloc(*b, MemoryKind::Device)).collect::<Result<Vec<_>>>()?;
        let t1 = clock.now();
        drop(buffers);
        let (q, pins, results) = (subject.lease.queue()?, subject.pins.as_ref(), &mut subject.results);
        if results.is_empty() && pins.is_none() {
            *results = prepared.results()?;
        }
        let t2 = clock.now();
        match pins {
            Some(pins) => prepared.upload_pinned(q, pins)?,
            None => prepared.upload(q, inputs)?,
        }
        q.finish(deadline)?;
        let t3 = clock.now();
        let from = q.mark()?;
        prepared.launch(q)?;
        let to = q.mark()?;
        q.flush()?;
        let t4 = clock.now();
        if q.wait(to, deadline)? == crate::device::Waited::Timeout {
            return Err(Error::new(Code::LaunchTimeout, format!("not finished within {} s", deadline.as_secs())));
        }
        let t5 = clock.now();
        match pins {
            Some(pins) => {
                prepared.download_pinned(q, pins)?;
                q.finish(deadline)?;
            }
            None => prepared.download_into(q, results)?,
        }
        let t6 = clock.now();
        let (launch, waited) = (t4 - t3, t5 - t4);
        // Without a device clock the kernel is what was waited for; with one it may overlap the submission.
        let device_s = q.span(from, to)?.device;
        by_device &= device_s.is_some();
        let kernel = device_s.unwrap_or(waited);
        let sync = (launch + waited - kernel).clamp(0.0, waited);
        if let Some((tap, begin)) = traced {
            tap.region(PHASES, 1, begin, t6 - t0);
        }
        rows.push([t1 - t0, t3 - t2, launch, kernel, sync, t6 - t5]);
    }
    let median = |i: usize| Some(stats::median(&rows.iter().map(|r| r[i]).collect::<Vec<_>>()));
    Ok(Phases {
        alloc: median(0),
        h2d: median(1),
        launch: median(2),
        kernel: median(3),
        sync: median(4),
        d2h: median(5),
        kernel_clock: if by_device { "device" } else { "host" }.into(),
    })
}

/// Median seconds of the kernel itself in calls that follow each other with their operands where they are, as in samples, by the
/// device's own clock; `None` where it has none. Errors: those of a call.
pub fn kernel_again(subject: &mut OpSubject<'_>, repeats: usize) -> Result<Option<f64>> {
    let deadline = subject.deadline;
    let prepared = subject.moved.as_ref().unwrap_or(subject.prepared);
    let q = subject.lease.queue()?;
    let mut all = Vec::new();
    // The first one finds whatever was left.
    for i in 0..=repeats {
        let from = q.mark()?;
        prepared.launch(q)?;
        let to = q.mark()?;
        if q.wait(to, deadline)? == crate::device::Waited::Timeout {
            return Err(Error::new(Code::LaunchTimeout, format!("not finished within {} s", deadline.as_secs())));
        }
        match q.span(from, to)?.device {
            Some(seconds) if i > 0 => all.push(seconds),
            Some(_) => {}
            None => return Ok(None),
        }
    }
    Ok(Some(stats::median(&all)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::VirtualClock;

    /// Takes a scripted time per call on a virtual clock.
    struct Scripted {
        clock: Arc<VirtualClock>,
        call_s: Box<dyn FnMut() -> f64>,
        log: Arc<std::sync::Mutex<Vec<char>>>,
        name: char,
    }

    impl Subject for Scripted {
        fn run(&mut self, calls: u64) -> Result<()> {
            self.log.lock().unwrap().push(self.name);
            for _ in 0..calls {
                self.clock.advance((self.call_s)());
            }
            Ok(())
        }
        fn clock(&self) -> Arc<dyn Clock> {
            self.clock.clone()
        }
    }

    fn scripted(clock: &Arc<VirtualClock>, name: char, call_s: f64) -> Scripted {
        Scripted { clock: clock.clone(), call_s: Box::new(move || call_s), log: Arc::default(), name }
    }

    #[test]
    fn samples_are_interleaved_and_exact_on_a_virtual_clock() {
        let clock = Arc::new(VirtualClock::new());
        let (mut a, mut b) = (scripted(&clock, 'a', 1e-3), scripted(&clock, 'b', 1e-7));
        b.log = a.log.clone();
        let rule = StopRule::with_budget(10.0);
        let s = sample(&mut [&mut a, &mut b], &rule, &Cancel::new()).unwrap();
        assert!((s[0].median() / 1e-3 - 1.0).abs() < 1e-6 && (s[1].median() / 1e-7 - 1.0).abs() < 1e-6);
        assert_eq!(s[0].batch, 1);
        assert!((499..=501).contains(&s[1].batch), "a region lasts 50 us: {}", s[1].batch);
        assert_eq!(s[0].calls, 2 + rule.min_samples as u64, "two to warm up");
        assert_eq!(s[1].calls, 2 + s[1].batch * (1 + rule.min_samples as u64), "and one batch");
        assert_eq!(s[0].samples.len(), rule.min_samples);
        let log: String = a.log.lock().unwrap().iter().collect();
        assert!(log.ends_with("abbaabbaabbaab"), "{log}");
    }

    /// A card on which the first work after another context's takes 140 us more.
    struct OnCard {
        clock: Arc<VirtualClock>,
        context: Arc<std::sync::Mutex<String>>,
        info: DeviceInfo,
    }

    impl OnCard {
        fn new(clock: &Arc<VirtualClock>, context: &Arc<std::sync::Mutex<String>>, id: &str, pci: &str) -> Self {
            let mut info = DeviceInfo { id: id.into(), ..DeviceInfo::ordinary_gpu() };
            info.facts.pci = Some(pci.into());
            OnCard { clock: clock.clone(), context: context.clone(), info }
        }
    }

    impl Subject for OnCard {
        fn run(&mut self, calls: u64) -> Result<()> {
            let mut context = self.context.lock().unwrap();
            if *context != self.info.id {
                self.clock.advance(140e-6);
                context.clone_from(&self.info.id);
            }
            self.clock.advance(1e-5 * calls as f64);
            Ok(())
        }
        fn clock(&self) -> Arc<dyn Clock> {
            self.clock.clone()
        }
        fn device(&self) -> Option<&DeviceInfo> {
            Some(&self.info)
        }
        fn take_back(&mut self) -> Result<()> {
            self.run(1)
        }
    }

    #[test]
    fn no_sample_waits_for_another_apis_context_on_its_card() {
        let (clock, context) = (Arc::new(VirtualClock::new()), Arc::default());
        let on = |id: &str| OnCard::new(&clock, &context, id, "0000:00:06.0");
        let (mut cuda, mut opencl, mut wgpu) = (on("cuda:0"), on("opencl:0"), on("wgpu:0"));
        let mut cpu = scripted(&clock, 'c', 1e-4);
        let subjects: &mut [&mut dyn Subject] = &mut [&mut cpu, &mut cuda, &mut opencl, &mut wgpu];
        let mut pauses = 0;
        let series =
            sample_between(subjects, &StopRule::with_budget(10.0), &Cancel::new(), &mut || pauses += 1).unwrap();
        for s in &series[1..] {
            assert!(s.samples.iter().all(|t| (t / 1e-5 - 1.0).abs() < 1e-6), "{:?}", s.samples);
        }
        let samples: usize = series.iter().map(|s| s.samples.len()).sum();
        assert!(
            pauses > samples,
            "{pauses} pauses, {samples} samples: one after each time that the card was taken back too"
        );
    }

    #[test]
    fn who_has_a_card_alone_has_nothing_to_take_back() {
        let (clock, context) = (Arc::new(VirtualClock::new()), Arc::default());
        let mut one = OnCard::new(&clock, &context, "cuda:0", "0000:00:06.0");
        // Operands elsewhere, the same context.
        let mut again = OnCard::new(&clock, &context, "cuda:0", "0000:00:06.0");
        let other_card = Arc::default();
        let mut other = OnCard::new(&clock, &other_card, "cuda:1", "0000:00:07.0");
        let subjects: &mut [&mut dyn Subject] = &mut [&mut one, &mut again, &mut other];
        let mut pauses = 0;
        let series =
            sample_between(subjects, &StopRule::with_budget(10.0), &Cancel::new(), &mut || pauses += 1).unwrap();
        assert_eq!(pauses, series.iter().map(|s| s.samples.len()).sum::<usize>());
    }

    #[test]
    fn the_budget_bounds_a_slow_subject() {
        let clock = Arc::new(VirtualClock::new());
        let mut a = scripted(&clock, 'a', 0.7);
        let s = sample(&mut [&mut a], &StopRule::with_budget(2.0), &Cancel::new()).unwrap();
        assert!(s[0].samples.len() <= 3 && clock.now() < 3.6, "{} at {}", s[0].samples.len(), clock.now());
    }

    #[test]
    fn cancelling_keeps_what_there_is() {
        let clock = Arc::new(VirtualClock::new());
        let cancel = Cancel::new();
        let mut a = scripted(&clock, 'a', 1e-3);
        let (c, mut calls) = (cancel.clone(), 0);
        a.call_s = Box::new(move || {
            calls += 1;
            if calls == 5 {
                c.raise();
            }
            1e-3 * f64::from(calls)
        });
        let s = sample(&mut [&mut a], &StopRule::with_budget(10.0), &cancel).unwrap();
        assert!(!s[0].samples.is_empty() && s[0].samples.len() < 7);
    }

    /// Calls write their results into the same memory again and again: what is compared must be the last one's.
    #[test]
    fn a_copy_that_does_not_happen_shows_no_earlier_result() {
        use crate::base::{Attrs, DType, Fill};
        use crate::device::faulty::{Fault, FaultPlan, Faulty, On, Rule, When};
        let (_, device) = crate::device::sim::open("laptop").unwrap();
        let rule = Rule { on: On::Read, when: When::From(4), fault: Fault::Skip };
        let faulty = Arc::new(Faulty::new(device, FaultPlan { text: "planted".into(), rules: vec![rule] }));
        let runner = Runner::new(Arc::clone(&faulty) as Arc<dyn Device>);
        let op = crate::op::find("exp").unwrap();
        let case = op.case(DType::F32, &[2], Attrs::new(), Fill::Uniform).unwrap();
        let (prepared, inputs) =
            (runner.prepare(op, &case, None).unwrap(), [HostTensor::from_slice(&[0.0f32; 2], &[2]).unwrap()]);
        let wait = Duration::from_secs(10);
        let mut s = OpSubject::new(&runner, &prepared, &inputs, Residency::Always, wait).unwrap();
        s.run(2).unwrap();
        assert_eq!(s.outputs().unwrap()[0].to_vec::<f32>().unwrap(), [1.0; 2], "as long as it copies");
        s.run(1).unwrap();
        assert!(s.outputs().unwrap()[0].to_vec::<f32>().unwrap().iter().all(|v| v.is_nan()));
        assert_eq!(faulty.hits(), [2]);
    }

    /// axpy in place: three calls leave y + 3x, which no other device's number of calls would match.
    #[test]
    fn outputs_of_what_works_in_place_are_those_of_one_call() {
        use crate::base::{Attrs, DType, Fill};
        use crate::device::cpu::{CpuDevice, Pin};
        use crate::kernel::Isa;
        let runner = Runner::new(Arc::new(CpuDevice::new(1, Isa::BASELINE, Pin::Free).unwrap()));
        let op = crate::op::find("axpy").unwrap();
        let case = op.case(DType::F32, &[2], Attrs::new(), Fill::Uniform).unwrap();
        let prepared = runner.prepare(op, &case, None).unwrap();
        assert!(prepared.in_place());
        let inputs = [[1.0f32, 2.0], [10.0, 20.0]].map(|v| HostTensor::from_slice(&v, &[2]).unwrap());
        let wait = Duration::from_secs(10);
        let mut s = OpSubject::new(&runner, &prepared, &inputs, Residency::Resident, wait).unwrap();
        s.run(3).unwrap();
        assert_eq!(s.outputs().unwrap()[0].to_vec::<f32>().unwrap(), [11.0, 22.0]);
    }
}
