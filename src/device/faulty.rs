//! A decorator that plants faults into any device: calls that fail, hang, leak, corrupt or slow down, on schedule.
//!
//! Detectors are tested with it (`stress --inject`). Every planted error says that it was injected, and the device's
//! notes say so too, so that no row of such a device passes for a real finding.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use crate::base::rng::Philox;
use crate::base::{Clock, Code, DeviceInfo, Error, Result};

use super::{
    Buffer, Device, Health, Launch, Ledger, ManagedUse, Mark, MemoryKind, MemoryState, Program, Queue, Source, Span,
    Waited,
};

/// Kinds of calls that a rule counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "each variant is the call of its name")]
pub enum On {
    Alloc,
    Write,
    Read,
    Build,
    Launch,
    Mark,
    Wait,
    /// Releases of buffers, counted by their allocation.
    Release,
}

/// Which calls of the kind are hit; the first call is number 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    /// Only call number n.
    Nth(u64),
    /// Calls n, 2n, 3n, ...
    Every(u64),
    /// Call number n and all later ones.
    From(u64),
}

/// What happens to a call that is hit.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Fault {
    /// The call returns this error and does nothing.
    Fail(Code),
    /// The device is lost: this call and all later ones fail with `DeviceLost`.
    Lose,
    /// The queue never finishes: waits time out, reads fail with `LaunchTimeout`.
    Hang,
    /// The buffer is never released.
    Leak,
    /// Bit 30 of one 32-bit word of what is read flips: the highest exponent bit of an f32, a high bit of an i32, and
    /// far above the bound in an f64.
    FlipBit,
    /// One 64-bit word of what is read becomes all ones: NaN in every float dtype.
    Nan,
    /// All of what is read becomes zero.
    Zeros,
    /// The call takes so much longer on the device's clock.
    Slow(Duration),
    /// A write, launch or read does nothing and says that it did.
    Skip,
    /// What [`Faulty::doing`] was given is done, and the call is made: for what only the device itself can bring about.
    Do,
}

/// One planted fault.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rule {
    /// Kind of call.
    pub on: On,
    /// Which of them.
    pub when: When,
    /// What happens.
    pub fault: Fault,
}

/// All faults of a device.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct FaultPlan {
    /// The text it was read from, shown in every injected error.
    pub text: String,
    /// The rules, each with a counter of its own.
    pub rules: Vec<Rule>,
}

/// Names that [`FaultPlan::parse`] knows, with their rule and meaning. The periods let a soak of seconds meet each
/// fault several times after it has warmed up.
pub const FAULTS: [(&str, Rule, &str); 8] = [
    ("leak", Rule { on: On::Release, when: When::Every(5), fault: Fault::Leak }, "buffers are never released"),
    ("bitflip", Rule { on: On::Read, when: When::Every(23), fault: Fault::FlipBit }, "a bit of a result flips"),
    ("nan", Rule { on: On::Read, when: When::Every(23), fault: Fault::Nan }, "a value of a result becomes NaN"),
    ("zeros", Rule { on: On::Read, when: When::From(1), fault: Fault::Zeros }, "results are all zero"),
    ("hang", Rule { on: On::Wait, when: When::Nth(40), fault: Fault::Hang }, "a queue never finishes"),
    ("lost", Rule { on: On::Launch, when: When::Nth(60), fault: Fault::Lose }, "the device is lost"),
    (
        "alloc",
        Rule { on: On::Alloc, when: When::Every(11), fault: Fault::Fail(Code::OutOfDeviceMemory) },
        "allocations fail",
    ),
    (
        "slow",
        Rule { on: On::Launch, when: When::From(200), fault: Fault::Slow(Duration::from_millis(2)) },
        "launches slow down",
    ),
];

impl FaultPlan {
    /// Reads `NAME[@every=N|@nth=N|@from=N]`, several joined by `+`: `leak`, `bitflip@every=50+slow@from=10`.
    ///
    /// Errors: `BadArgument`, listing the names.
    pub fn parse(text: &str) -> Result<Self> {
        let bad = |why: String| {
            let known: Vec<_> = FAULTS.iter().map(|f| f.0).collect();
            Err(Error::new(Code::BadArgument, format!("fault '{text}': {why}; known: {}", known.join(" "))))
        };
        let mut plan = FaultPlan { text: text.to_string(), rules: Vec::new() };
        for part in text.split('+') {
            let (name, when) = part.split_once('@').map_or((part, None), |(n, w)| (n, Some(w)));
            let Some((_, rule, _)) = FAULTS.iter().find(|f| f.0 == name) else {
                return bad(format!("there is no '{name}'"));
            };
            let mut rule = *rule;
            if let Some(when) = when {
                let (word, number) = when.split_once('=').unwrap_or((when, ""));
                let n = match number.parse::<u64>() {
                    Ok(n) if n > 0 => n,
                    _ => return bad(format!("'{when}' needs a number from 1, as in every=50")),
                };
                rule.when = match word {
                    "every" => When::Every(n),
                    "nth" => When::Nth(n),
                    "from" => When::From(n),
                    _ => return bad(format!("'{word}' is none of every, nth, from")),
                };
            }
            plan.rules.push(rule);
        }
        Ok(plan)
    }
}

/// A device with planted faults. Buffers and programs are those of the device inside.
pub struct Faulty {
    inner: Arc<dyn Device>,
    info: DeviceInfo,
    state: Arc<State>,
}

struct State {
    plan: FaultPlan,
    counts: Arc<[AtomicU64]>,
    lost: AtomicBool,
    leaked: Mutex<Vec<Buffer>>,
    clock: Arc<dyn Clock>,
    id: String,
    deed: OnceLock<Box<dyn Fn() + Send + Sync>>,
}

fn lock<T>(m: &Mutex<T>) -> MutexGuard<'_, T> {
    m.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Faulty {
    /// Plants `plan` into a device.
    pub fn new(inner: Arc<dyn Device>, plan: FaultPlan) -> Self {
        let mut info = inner.info().clone();
        info.notes.push(format!("faults are injected on purpose: {}", plan.text));
        let state = State {
            counts: plan.rules.iter().map(|_| AtomicU64::new(0)).collect(),
            lost: AtomicBool::new(false),
            leaked: Mutex::default(),
            clock: inner.clock(),
            id: info.id.clone(),
            deed: OnceLock::new(),
            plan,
        };
        Faulty { inner, info, state: Arc::new(state) }
    }

    /// What a call hit by [`Fault::Do`] does first.
    pub fn doing(self, deed: impl Fn() + Send + Sync + 'static) -> Self {
        // A second one would be ignored; there is none, as `self` is new.
        let _ = self.state.deed.set(Box::new(deed));
        self
    }

    /// Number of calls hit so far, per rule of the plan.
    pub fn hits(&self) -> Vec<u64> {
        self.tally().hits()
    }

    /// The same for whoever outlives the device.
    pub fn tally(&self) -> Tally {
        Tally { rules: self.state.plan.rules.clone(), counts: Arc::clone(&self.state.counts) }
    }
}

/// Counts the calls of a [`Faulty`] without holding it.
#[derive(Clone, Debug)]
pub struct Tally {
    rules: Vec<Rule>,
    counts: Arc<[AtomicU64]>,
}

impl Tally {
    /// Number of calls hit so far, per rule of the plan.
    pub fn hits(&self) -> Vec<u64> {
        let of = |(rule, count): (&Rule, &AtomicU64)| {
            let n = count.load(Ordering::SeqCst);
            match rule.when {
                When::Nth(at) => u64::from(n >= at),
                When::Every(period) => n / period.max(1),
                When::From(at) => (n + 1).saturating_sub(at),
            }
        };
        self.rules.iter().zip(self.counts.iter()).map(of).collect()
    }
}

impl State {
    /// Counts a call and gives the faults that hit it. A lost device fails every call.
    fn meet(&self, on: On) -> Result<Vec<Fault>> {
        if self.lost.load(Ordering::SeqCst) {
            return Err(self.error(Code::DeviceLost, "the device was lost before"));
        }
        let mut hit = Vec::new();
        for (rule, count) in self.plan.rules.iter().zip(self.counts.iter()) {
            if rule.on != on {
                continue;
            }
            let n = count.fetch_add(1, Ordering::SeqCst) + 1;
            let met = match rule.when {
                When::Nth(at) => n == at,
                When::Every(period) => n % period.max(1) == 0,
                When::From(at) => n >= at,
            };
            if !met {
                continue;
            }
            match rule.fault {
                Fault::Fail(code) => return Err(self.error(code, &format!("{on:?} number {n} fails"))),
                Fault::Lose => {
                    self.lost.store(true, Ordering::SeqCst);
                    return Err(self.error(Code::DeviceLost, &format!("lost at {on:?} number {n}")));
                }
                Fault::Slow(by) => self.clock.sleep(by),
                Fault::Do => self.deed.get().into_iter().for_each(|deed| deed()),
                other => hit.push(other),
            }
        }
        Ok(hit)
    }

    fn error(&self, code: Code, what: &str) -> Error {
        Error::new(code, format!("injected on purpose ({}): {what}", self.plan.text)).device(&self.id)
    }

    fn corrupt(&self, fault: Fault, out: &mut [u8]) {
        if out.is_empty() {
            return;
        }
        // Results shorter than a word are words that end early.
        let words = out.len().div_ceil(4);
        let rng = Philox::new(0xFA17);
        let hits: u64 = self.counts.iter().map(|c| c.load(Ordering::SeqCst)).sum();
        let word = (rng.u64(0, hits) % words as u64) as usize;
        match fault {
            Fault::FlipBit => {
                let last = (4 * word + 3).min(out.len() - 1);
                out[last] ^= 0x40;
            }
            Fault::Nan => {
                let from = 4 * word / 8 * 8;
                let to = (from + 8).min(out.len());
                // No number in any type of floats, and not the bytes that guards are filled with: a hit on those changes them, too.
                out[from..to].chunks_mut(2).for_each(|two| two.copy_from_slice(&[0xFE, 0xFF][..two.len()]));
            }
            Fault::Zeros => out.fill(0),
            _ => {}
        }
    }
}

impl Device for Faulty {
    fn info(&self) -> &DeviceInfo {
        &self.info
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
        self.state.meet(On::Alloc)?;
        let buffer = self.inner.alloc(bytes, kind)?;
        match self.state.meet(On::Release) {
            Ok(faults) if faults.contains(&Fault::Leak) => lock(&self.state.leaked).push(buffer.clone()),
            Ok(_) => {}
            // A release has nobody to return its error to, and what is not released stays allocated.
            Err(e) => {
                self.inner.ledger().release_failed(e.to_string());
                lock(&self.state.leaked).push(buffer.clone());
            }
        }
        Ok(buffer)
    }
    fn build(&self, source: Source<'_>, cached: Option<&[u8]>) -> Result<Program> {
        self.state.meet(On::Build)?;
        self.inner.build(source, cached)
    }
    fn queue(&self) -> Result<Box<dyn Queue>> {
        if self.state.lost.load(Ordering::SeqCst) {
            return Err(self.state.error(Code::DeviceLost, "the device was lost before"));
        }
        Ok(Box::new(FaultyQueue { inner: self.inner.queue()?, state: Arc::clone(&self.state), hung: false }))
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
    fn tap(&self) -> Option<&super::tap::Tap> {
        self.inner.tap()
    }
    fn health(&self) -> Health {
        if self.state.lost.load(Ordering::SeqCst) {
            return Health::Lost(format!("injected on purpose ({})", self.state.plan.text));
        }
        self.inner.health()
    }
}

struct FaultyQueue {
    inner: Box<dyn Queue>,
    state: Arc<State>,
    hung: bool,
}

impl FaultyQueue {
    fn alive(&self) -> Result<()> {
        if self.state.lost.load(Ordering::SeqCst) {
            return Err(self.state.error(Code::DeviceLost, "the device was lost before"));
        }
        Ok(())
    }
}

impl Queue for FaultyQueue {
    fn write(&mut self, dst: &Buffer, offset: u64, data: &[u8]) -> Result<()> {
        if self.state.meet(On::Write)?.contains(&Fault::Skip) {
            return self.alive();
        }
        self.inner.write(dst, offset, data)
    }
    fn read(&mut self, src: &Buffer, offset: u64, out: &mut [u8]) -> Result<()> {
        let faults = self.state.meet(On::Read)?;
        if self.hung || faults.contains(&Fault::Hang) {
            self.hung = true;
            return Err(self.state.error(Code::LaunchTimeout, "the queue hangs"));
        }
        if faults.contains(&Fault::Skip) {
            return Ok(());
        }
        self.inner.read(src, offset, out)?;
        for fault in faults {
            self.state.corrupt(fault, out);
        }
        Ok(())
    }
    fn copy(&mut self, src: &Buffer, src_offset: u64, dst: &Buffer, dst_offset: u64, bytes: u64) -> Result<()> {
        self.alive()?;
        self.inner.copy(src, src_offset, dst, dst_offset, bytes)
    }
    fn fill(&mut self, dst: &Buffer, offset: u64, bytes: u64, value: u8) -> Result<()> {
        self.alive()?;
        self.inner.fill(dst, offset, bytes, value)
    }
    fn launch(&mut self, launch: &Launch) -> Result<()> {
        let faults = self.state.meet(On::Launch)?;
        self.hung |= faults.contains(&Fault::Hang);
        if faults.contains(&Fault::Skip) {
            return Ok(());
        }
        self.inner.launch(launch)
    }
    fn mark(&mut self) -> Result<Mark> {
        self.state.meet(On::Mark)?;
        self.inner.mark()
    }
    fn flush(&mut self) -> Result<()> {
        self.alive()?;
        self.inner.flush()
    }
    fn wait(&mut self, mark: Mark, deadline: Duration) -> Result<Waited> {
        let faults = self.state.meet(On::Wait)?;
        if self.hung || faults.contains(&Fault::Hang) {
            self.hung = true;
            // As long as a real hang would take, and no longer.
            self.state.clock.sleep(deadline);
            return Ok(Waited::Timeout);
        }
        self.inner.wait(mark, deadline)
    }
    fn span(&mut self, from: Mark, to: Mark) -> Result<Span> {
        self.inner.span(from, to)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::{Cost, DType};
    use crate::device::{Slice, sim};
    use crate::kernel::cpu::{Call, CpuCtx};
    use crate::kernel::{NativeArgs, Param};

    fn ones(_: &CpuCtx<'_>, args: &mut NativeArgs<'_>, call: &Call) -> Result<()> {
        args.output::<f32>(0, call.size(0))?.fill(1.0);
        Ok(())
    }

    /// On the simulator, so that a hang costs no real time.
    fn faulty(text: &str) -> Faulty {
        Faulty::new(sim::open("textbook").unwrap().1, FaultPlan::parse(text).unwrap())
    }

    fn launch(d: &dyn Device, y: &Buffer) -> Result<Launch> {
        Ok(Launch {
            program: d.build(Source::Native(ones, DType::F32), None)?,
            group: [1; 3],
            groups: [1; 3],
            args: vec![Slice::whole(y)],
            writes: vec![true],
            params: vec![Param::U64(y.bytes() / 4)],
            cost: Cost { flops: 1, read: 0, written: y.bytes() },
        })
    }

    fn read(q: &mut dyn Queue, y: &Buffer) -> Vec<f32> {
        let mut out = vec![0f32; (y.bytes() / 4) as usize];
        q.read(y, 0, bytemuck::cast_slice_mut(&mut out)).unwrap();
        out
    }

    #[test]
    fn every_named_fault_parses_and_others_are_refused() {
        for (name, rule, meaning) in FAULTS {
            assert_eq!(FaultPlan::parse(name).unwrap().rules, [rule]);
            assert!(!meaning.is_empty());
        }
        let two = FaultPlan::parse("leak@nth=3+slow@from=10").unwrap();
        assert_eq!((two.rules[0].when, two.rules[1].when), (When::Nth(3), When::From(10)));
        for text in ["", "melt", "leak@", "leak@every=0", "leak@every=x", "leak@at=3", "leak+"] {
            let e = FaultPlan::parse(text).unwrap_err();
            assert!(e.code() == Code::BadArgument && e.to_string().contains("bitflip"), "{text}: {e}");
        }
    }

    #[test]
    fn allocations_fail_on_schedule_and_say_that_it_was_injected() {
        let d = faulty("alloc@every=3");
        let made: Vec<bool> = (0..9).map(|_| d.alloc(16, MemoryKind::Device).is_ok()).collect();
        assert_eq!(made, [true, true, false, true, true, false, true, true, false]);
        let d = faulty("alloc@nth=1");
        let e = d.alloc(16, MemoryKind::Device).unwrap_err();
        assert_eq!(e.code(), Code::OutOfDeviceMemory);
        assert!(e.to_string().contains("injected on purpose (alloc@nth=1): Alloc number 1"), "{e}");
        assert!(d.info().notes.iter().any(|n| n.contains("injected")));
        assert_eq!(d.hits(), [1]);
    }

    #[test]
    fn leaked_buffers_stay_in_the_ledger() {
        let d = faulty("leak@every=2");
        for _ in 0..10 {
            drop(d.alloc(100, MemoryKind::Device).unwrap());
        }
        assert_eq!((d.ledger().state().buffers, d.ledger().state().bytes), (5, 500));
    }

    #[test]
    fn corruption_shows_in_what_is_read_and_nowhere_else() {
        let clean = faulty("bitflip@nth=1000000");
        let d = faulty("bitflip@every=2");
        let n = faulty("nan@every=1");
        for (d, changed) in [(&clean, [0, 0, 0, 0]), (&d, [0, 1, 0, 1]), (&n, [2, 2, 2, 2])] {
            let y = d.alloc(4000, MemoryKind::Device).unwrap();
            let mut q = d.queue().unwrap();
            q.launch(&launch(d, &y).unwrap()).unwrap();
            let wrong = changed.map(|_| read(q.as_mut(), &y).iter().filter(|v| **v != 1.0).count());
            assert_eq!(wrong, changed);
        }
        // One becomes 2^-127·1: far outside of any bound.
        let y = d.alloc(4, MemoryKind::Device).unwrap();
        let mut q = d.queue().unwrap();
        q.launch(&launch(&d, &y).unwrap()).unwrap();
        let values: Vec<f32> = (0..2).flat_map(|_| read(q.as_mut(), &y)).collect();
        assert!(values.iter().any(|v| (v - 1.0).abs() > 0.5), "{values:?}");
    }

    #[test]
    fn a_hang_lasts_until_the_deadline_and_stays() {
        let d = faulty("hang@nth=2");
        let mut q = d.queue().unwrap();
        q.finish(Duration::from_secs(1)).unwrap();
        let before = d.clock().now();
        assert_eq!(q.finish(Duration::from_secs(5)).unwrap_err().code(), Code::LaunchTimeout);
        assert!((d.clock().now() - before - 5.0).abs() < 1e-6);
        let y = d.alloc(4, MemoryKind::Device).unwrap();
        assert_eq!(q.read(&y, 0, &mut [0; 4]).unwrap_err().code(), Code::LaunchTimeout);
        assert_eq!(
            d.queue().unwrap().finish(Duration::from_secs(1)).map_err(|e| e.code()),
            Ok(()),
            "a fresh queue works"
        );
    }

    #[test]
    fn a_lost_device_stays_lost() {
        let d = faulty("lost@nth=2");
        let y = d.alloc(4, MemoryKind::Device).unwrap();
        let l = launch(&d, &y).unwrap();
        let mut q = d.queue().unwrap();
        q.launch(&l).unwrap();
        assert_eq!(d.health(), Health::Usable);
        assert_eq!(q.launch(&l).unwrap_err().code(), Code::DeviceLost);
        assert!(matches!(d.health(), Health::Lost(why) if why.contains("injected")));
        assert_eq!(q.mark().unwrap_err().code(), Code::DeviceLost);
        assert_eq!(d.alloc(4, MemoryKind::Device).unwrap_err().code(), Code::DeviceLost);
        assert_eq!(d.queue().err().map(|e| e.code()), Some(Code::DeviceLost));
    }

    #[test]
    fn what_is_skipped_was_not_done() {
        let skip = |on| Rule { on, when: When::Nth(2), fault: Fault::Skip };
        let rules = vec![skip(On::Write), skip(On::Launch)];
        let d = Faulty::new(sim::open("textbook").unwrap().1, FaultPlan { text: "a test".into(), rules });
        let y = d.alloc(4, MemoryKind::Device).unwrap();
        let l = launch(&d, &y).unwrap();
        let mut q = d.queue().unwrap();
        let mut values = Vec::new();
        for n in [2f32, 3.0, 4.0] {
            q.write(&y, 0, &n.to_le_bytes()).unwrap();
            values.extend(read(q.as_mut(), &y));
        }
        for _ in 0..3 {
            q.write(&y, 0, &7f32.to_le_bytes()).unwrap();
            q.launch(&l).unwrap();
            values.extend(read(q.as_mut(), &y));
        }
        assert_eq!(values, [2.0, 2.0, 4.0, 1.0, 7.0, 1.0]);
    }

    #[test]
    fn slowness_takes_the_devices_time() {
        let d = faulty("slow@from=2");
        let y = d.alloc(4, MemoryKind::Device).unwrap();
        let l = launch(&d, &y).unwrap();
        let mut q = d.queue().unwrap();
        let mut times = Vec::new();
        for _ in 0..3 {
            let before = d.clock().now();
            q.launch(&l).unwrap();
            q.finish(Duration::from_secs(1)).unwrap();
            times.push(d.clock().now() - before);
        }
        assert!(times[0] < 1e-3 && times[1] > 2e-3 && times[2] > 2e-3, "{times:?}");
    }
}
