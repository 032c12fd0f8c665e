//! Ops on arrays that lie on a device: operands stay where they are, and so do results.
//!
//! Where a call runs is said by where its operands lie; there is no other place that it falls back to, since the data are not
//! there. Errors are the caller's, and count against the device as those of other calls do.

use std::collections::HashMap;
use std::marker::PhantomData;
use std::sync::{Arc, PoisonError};

use crate::base::{Attrs, Case, Class, Code, DeviceInfo, Element, Error, HostTensor, Result, host};
use crate::device::{Buffer, ManagedUse, MemoryKind, Queue};
use crate::kernel::{self, Body};
use crate::op::{OpDesc, Role};
use crate::profile::Operands;

use super::call::{self, Frame};
use super::gpu::Gpu;
use super::pool::Rented;
use super::resident::{DeviceVec, Home, Resident, Transfers, Way, hold};
use super::run::{self, Guard};
use super::trials::Fault;
use super::{Engine, judge};

/// Kernels that were tried on devices, by device and case: what is wrong with each, if anything.
pub(super) type Tried = HashMap<(u64, String), Option<Fault>>;

/// Cases that are remembered.
const MOST_TRIED: usize = 4096;

/// A device of an engine, to keep arrays on and to compute with them there.
#[derive(Clone)]
pub struct Target<'e> {
    engine: &'e Engine,
    pub(super) home: Home,
    /// `None`: the CPU.
    pub(super) gpu: Option<Arc<Gpu>>,
}

impl std::fmt::Debug for Target<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Target({})", self.home.id())
    }
}

impl Engine {
    /// A device of the engine by its id or uid, for arrays that stay there; `cpu` is the host's. Opens it if it is not open.
    ///
    /// Any device that is here will do, whether the profile sends calls to it or not. Errors: `DeviceMissing` for one that is not
    /// here or not among the selected ones, `DeviceDisabled`, `DeviceLost` while it is out of use; those of opening it.
    pub fn on(&self, device: &str) -> Result<Target<'_>> {
        let common = &self.places.common;
        let home = |runner| Home { runner, traffic: Arc::clone(&common.traffic), deadline: common.deadline };
        let info = self.places.cpu.device().info();
        if device == info.id || device == info.uid {
            return Ok(Target { engine: self, home: home(Arc::clone(&self.places.cpu)), gpu: None });
        }
        let gpu = self.places.named(device)?;
        gpu.look_after();
        match gpu.out() {
            Some(why) => Err(Error::new(Code::DeviceLost, format!("it is out of use: {why}")).device(device)),
            None => Ok(Target { engine: self, home: home(gpu.runner()?), gpu: Some(gpu) }),
        }
    }

    /// Copies of arrays so far: those that lie on devices. Calls with operands in host memory ([`Engine::run`]) copy all of
    /// them, and are not counted here.
    pub fn transfers(&self) -> Transfers {
        self.places.common.traffic.all()
    }
}

impl Target<'_> {
    /// What the device is.
    pub fn info(&self) -> &DeviceInfo {
        self.home.runner.device().info()
    }

    /// An array of one dimension with these elements. [`DeviceVec::download`] is the way back.
    pub fn upload<T: Element>(&self, data: &[T]) -> Result<DeviceVec<T>> {
        let array = Resident::new(&self.home, T::DTYPE, &[data.len() as u64], MemoryKind::Device)?;
        array.set(bytemuck::cast_slice(data))?;
        Ok(DeviceVec { array, of: PhantomData })
    }

    /// An array with a tensor's dtype, shape and elements.
    pub fn upload_tensor(&self, t: &HostTensor) -> Result<Resident> {
        let array = Resident::new(&self.home, t.dtype, &t.shape, MemoryKind::Device)?;
        array.set(t.bytes())?;
        Ok(array)
    }

    /// An array of zeros in this kind of memory. Ops take arrays in the device's own, in mapped or in managed memory; page-locked
    /// ones are for copies that are made often.
    ///
    /// Errors: `FeatureUnsupported` with the reason for a kind that the API does not have; those of allocating.
    pub fn zeros<T: Element>(&self, shape: &[u64], kind: MemoryKind) -> Result<DeviceVec<T>> {
        let array = Resident::new(&self.home, T::DTYPE, shape, kind)?;
        let buffer = &array.memory.buffer;
        array.memory.tell(self.home.queued(|q| q.fill(buffer, 0, buffer.bytes() / 4 * 4, 0)))?;
        Ok(DeviceVec { array, of: PhantomData })
    }

    /// Runs one op on arrays of this device: `inputs` as in [`Engine::run`]. The results are new arrays, in the op's order;
    /// operands never change, not even those that an op changes in place elsewhere: it works on a copy, made on the device.
    ///
    /// A kernel's first use is tried first, as in [`Engine::run`]. Errors: those of the call itself; `BufferForeign` for an
    /// array of another device, or of this one before it was lost; those of the device, which nothing makes up for.
    pub fn run(&self, op: &str, inputs: &[&Resident], attrs: &Attrs) -> Result<Vec<Resident>> {
        let op = call::find(op)?;
        let given: Vec<_> = inputs.iter().map(|r| (r.dtype, r.shape.as_slice())).collect();
        let frame = call::frame(op, &given, attrs)?;
        let named = |e: Error| e.op(op.name).shape(&frame.case.shape_text()).device(self.home.id());
        self.takes(inputs).map_err(named)?;
        let made = self.trust(op, &frame.case).and_then(|()| self.compute(op, &frame, inputs)).map_err(named);
        let counts = &self.engine.counts;
        match (&self.gpu, &made) {
            (Some(gpu), Ok(_)) => gpu.succeeded(),
            (Some(gpu), Err(e)) => gpu.failed(&self.home.runner, op, &frame.case, e),
            (None, _) => {}
        }
        if made.is_ok() {
            let count = if self.gpu.is_some() { &counts.gpu } else { &counts.cpu };
            count.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            self.engine.record(&frame.case, Operands::Device(&self.info().uid), 1, self.gpu.is_some());
        }
        made
    }

    /// Whether these arrays can be operands here, and the device is in use.
    pub(super) fn takes(&self, inputs: &[&Resident]) -> Result<()> {
        for r in inputs {
            if !r.home().is(&self.home) {
                let why = format!("an operand lies on {}, not here; `to` copies it", r.device_id());
                let why =
                    if r.device_id() == self.home.id() { "an operand is from before it was lost".into() } else { why };
                return Err(Error::new(Code::BufferForeign, why));
            }
            if r.kind() == MemoryKind::Pinned {
                let why = "an operand lies in page-locked memory; `copy_from` copies it";
                return Err(Error::new(Code::BadArgument, why));
            }
        }
        match self.gpu.as_ref().and_then(|g| g.out()) {
            Some(why) => Err(Error::new(Code::DeviceLost, format!("it is out of use: {why}"))),
            None => Ok(()),
        }
    }

    /// How much managed memory the device has in use; `None` where its API has none.
    pub fn managed(&self) -> Option<ManagedUse> {
        self.home.runner.device().managed()
    }

    /// Managed arrays of this device may hold more together than it has memory, from now on: a card can crawl or hang then, and
    /// nothing in gpuctl asks for it by itself. Errors: `FeatureUnsupported` where there is no such memory.
    pub fn oversubscribe(&self) -> Result<()> {
        if self.home.runner.device().oversubscribe() {
            return Ok(());
        }
        Err(Error::new(Code::FeatureUnsupported, "the API has no memory that migrates").device(self.home.id()))
    }

    pub(super) fn variant(&self) -> Option<&str> {
        if self.gpu.is_some() { None } else { self.engine.places.cpu_variant.as_deref() }
    }

    /// Fails (`ResultWrong`) for a kernel that computes wrong there.
    pub(super) fn trust(&self, op: &'static OpDesc, case: &Case) -> Result<()> {
        let (Some(trials), true) = (&self.engine.trials, self.gpu.is_some()) else { return Ok(()) };
        let runner = &self.home.runner;
        let key = (runner.device().serial(), case.to_string());
        let known = |tried: &Tried| {
            let fault = tried.get(&key)?.as_ref();
            Some(fault.map_or(Ok(()), |f| Err(runner.refused(f, op, case))))
        };
        let tried = || self.engine.tried.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(answer) = known(&tried()) {
            return answer;
        }
        let fault = judge::first_use(trials, runner, op, case, None)?;
        let mut tried = tried();
        if tried.len() >= MOST_TRIED {
            tried.clear();
        }
        tried.insert(key.clone(), fault);
        known(&tried).unwrap_or(Ok(()))
    }

    fn compute(&self, op: &'static OpDesc, frame: &Frame, inputs: &[&Resident]) -> Result<Vec<Resident>> {
        let Frame { case, results, .. } = frame;
        let (home, runner) = (&self.home, &self.home.runner);
        let choice = kernel::choose(op.kernels, case, self.info(), self.variant())?;
        if matches!(choice.kernel.body, Body::Action(_)) {
            let why = "it measures copies and calls of the device; no arrays come of it";
            return Err(Error::new(Code::OpUnsupported, why));
        }
        // Operands first, then the queue: whoever has a queue waits for nobody's array.
        let _hold = hold(inputs, None);
        let mut lease = runner.lease_in_turn(home.deadline.saturating_mul(2))?;
        let mut moved = Moved::default();
        let mut given: Vec<Option<(Buffer, u64)>> = vec![None; op.operands.len()];
        let read = (0..op.operands.len()).filter(|i| op.operands[*i].role != Role::Out);
        let mut begin = Vec::new();
        for (position, i) in read.enumerate() {
            match (inputs.get(position), op.operands[i].role) {
                (Some(r), Role::In) => given[i] = Some(moved.place(home, r)?),
                (from, _) => begin.push((i, from.copied())),
            }
        }
        let prepared = runner.prepare_with(op, case, choice, Guard::LIGHT, &given)?;
        // Its launches hold what they need; what came from the pool must not be held twice when it goes back.
        drop(given);
        let mut work = || -> Result<()> {
            let q = lease.queue()?;
            prepared.begin();
            for (from, to) in &moved.copies {
                moved.traffic_of(home, q, from, to)?;
            }
            for (i, from) in &begin {
                let o = &prepared.operands[*i];
                match from {
                    Some(r) => moved.traffic_of(home, q, r, &o.buffer)?,
                    None => q.fill(&o.buffer, 0, o.bytes.div_ceil(4) * 4, 0)?,
                }
            }
            prepared.launch(q)?;
            q.finish(home.deadline)
        };
        if let Err(e) = work() {
            let e = prepared.named(e);
            inputs.iter().for_each(|r| r.memory.fail());
            moved.copies.iter_mut().for_each(|(_, to)| to.discard());
            lease.discard();
            if e.class() == Class::Lost {
                run::bury((prepared, moved.into_memory()), lease);
            }
            return Err(e);
        }
        let written = prepared.into_written();
        if written.len() != results.len() {
            return Err(Error::new(Code::Internal, format!("{} results, expected {}", written.len(), results.len())));
        }
        let result = |(o, shape): (super::operand::OperandBuffer, &Vec<u64>)| {
            if host::count(shape)?.checked_mul(o.dtype.size()) != Some(o.bytes) {
                return Err(Error::new(Code::Internal, format!("{:?} came out, expected {shape:?}", o.shape)));
            }
            let (dtype, bytes, shape) = (o.dtype, o.bytes, shape.clone());
            Ok(Resident { memory: home.holding(o.buffer, MemoryKind::Device), offset: o.head, bytes, dtype, shape })
        };
        written.into_iter().zip(results).map(result).collect()
    }
}

/// Operands that are copied first, to where the device allows operands to begin.
#[derive(Default)]
struct Moved<'r> {
    copies: Vec<(&'r Resident, Rented)>,
}

impl<'r> Moved<'r> {
    /// Where an operand lies, or will lie.
    fn place(&mut self, home: &Home, r: &'r Resident) -> Result<(Buffer, u64)> {
        if r.offset.is_multiple_of(Guard::WIDE.head) {
            return Ok((Buffer::clone(&r.memory.buffer), r.offset));
        }
        let fresh = home.runner.memory(super::operand::round16(r.bytes) + Guard::LIGHT.tail)?;
        let place = (Buffer::clone(&fresh), 0);
        self.copies.push((r, fresh));
        Ok(place)
    }

    /// Enqueues a copy that nobody asked for, and counts it.
    fn traffic_of(&self, home: &Home, q: &mut dyn Queue, from: &Resident, to: &Buffer) -> Result<()> {
        if from.enqueue_copy(q, to)? {
            home.traffic.add(Way::Within, from.bytes);
        } else {
            // The API moves whole words only: by way of the host, then.
            let mut bytes = vec![0u8; from.bytes as usize];
            q.read(&from.memory.buffer, from.offset, &mut bytes)?;
            q.write(to, 0, &bytes)?;
            home.traffic.add(Way::Down, from.bytes);
            home.traffic.add(Way::Up, from.bytes);
            home.traffic.implicit();
        }
        home.traffic.implicit();
        Ok(())
    }

    fn into_memory(self) -> Vec<Rented> {
        self.copies.into_iter().map(|(_, to)| to).collect()
    }
}
