//! A prepared op as something that can be timed, and the phases of its calls.

use std::sync::Arc;
use std::time::Duration;

use crate::base::record::Phases;
use crate::base::{
    Attrs, Backend, Clock, Code, DType, DeviceClass, DeviceInfo, Error, Fill, HostTensor, Result, os, stats,
};
use crate::device::tap::Tap;
use crate::device::{Device, MemoryKind, Place, Queue};
use crate::engine::{Leased, Pins, Prepared, Runner};
use crate::op::{Probe, Role};

use super::residency::Residency;
use super::sampler::{PHASES, Subject};

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
        let mut subject = Self::again(runner, prepared, inputs, residency, deadline)?;
        let used = subject.moved.as_ref().unwrap_or(prepared);
        let q = subject.lease.queue()?;
        used.poison(q)?;
        used.upload(q, inputs)?;
        q.finish(deadline)?;
        Ok(subject)
    }

    /// The same of what was a subject before, which is only to be timed: operands are as that one has left them.
    pub fn again(
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
        let pins = match residency {
            Residency::AlwaysPinned => Some(prepared.pin(q, inputs)?),
            _ => None,
        };
        let results = match residency {
            Residency::Resident | Residency::AlwaysPinned => Vec::new(),
            _ => used.results()?,
        };
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
