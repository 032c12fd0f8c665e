//! Calls that are made again and again with the same arrays: chosen, built and checked once, then enqueued together.
//!
//! ```
//! use gpuctl::base::Attrs;
//! use gpuctl::engine::Engine;
//!
//! # fn main() -> gpuctl::base::Result<()> {
//! let engine = Engine::builder().profile("preset:always-cpu").build()?;
//! let device = engine.on("cpu")?;
//! let mut x = device.upload(&[-1.0f32, 2.0])?;
//! let mut recording = device.record();
//! let positive = recording.run("relu", &[&x], &Attrs::new())?.remove(0);
//! let doubled = recording.run("add", &[&positive, &positive], &Attrs::new())?.remove(0).typed::<f32>()?;
//! let sequence = recording.end()?; // nothing has been computed yet
//! sequence.replay()?;
//! assert_eq!(doubled.to_vec()?, [0.0, 4.0]);
//! x.overwrite(&[3.0, -4.0])?; // new data in the same memory
//! sequence.replay()?;
//! assert_eq!(doubled.to_vec()?, [6.0, 0.0]);
//! # Ok(())
//! # }
//! ```
//!
//! On CUDA a sequence is a graph, one call of the driver for all of its kernels. No other API that gpuctl uses records launches:
//! there they are enqueued one by one, in one go, and [`Sequence::one_by_one`] says why. What is saved everywhere is choosing,
//! planning, renting and waiting for each call.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::base::{Attrs, Case, Class, Code, Error, Result};
use crate::device::{self, Buffer, MemoryKind};
use crate::kernel::{self, Body};
use crate::op::{OpDesc, Role};

use super::call;
use super::gpu::Gpu;
use super::resident::{Home, Resident, hold};
use super::run::{Guard, Prepared};
use super::target::Target;

/// Calls that are being put together.
pub struct Recording<'e> {
    target: Target<'e>,
    calls: Vec<Call>,
}

/// One call with its operands.
struct Call {
    op: &'static OpDesc,
    case: Case,
    prepared: Prepared,
    read: Vec<Resident>,
    written: Vec<Resident>,
}

impl std::fmt::Debug for Recording<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Recording({} calls on {})", self.calls.len(), self.target.info().id)
    }
}

impl<'e> Target<'e> {
    /// Begins a sequence of calls on arrays of this device.
    pub fn record(&self) -> Recording<'e> {
        Recording { target: self.clone(), calls: Vec::new() }
    }
}

impl Recording<'_> {
    /// Adds a call: `inputs` as in [`Target::run`], results of earlier calls of this recording among them. Nothing is computed
    /// yet; the results hold zeros until the sequence is first replayed.
    ///
    /// Errors: those of [`Target::run`] that come before its launch; `OpUnsupported` for an op that changes an operand, since
    /// the second replay would begin with what the first one left; `BadArgument` for a view that begins where the device lets no
    /// operand begin.
    pub fn run(&mut self, op: &str, inputs: &[&Resident], attrs: &Attrs) -> Result<Vec<Resident>> {
        let op = call::find(op)?;
        let given: Vec<_> = inputs.iter().map(|r| (r.dtype, r.shape.as_slice())).collect();
        let frame = call::frame(op, &given, attrs)?;
        let named = |e: Error| e.op(op.name).shape(&frame.case.shape_text()).device(self.target.home.id());
        self.target.takes(inputs).and_then(|()| self.target.trust(op, &frame.case)).map_err(named)?;
        let (call, results) = prepare(&self.target, op, frame.case.clone(), &frame.results, inputs).map_err(named)?;
        self.calls.push(call);
        Ok(results)
    }

    /// The sequence of all calls so far.
    ///
    /// Errors: `BadArgument` without any; those of the device.
    pub fn end(self) -> Result<Sequence> {
        if self.calls.is_empty() {
            return Err(Error::new(Code::BadArgument, "a sequence of no calls").device(self.target.home.id()));
        }
        let launches = self.calls.iter().flat_map(|c| c.prepared.launches.iter().cloned()).collect();
        let home = self.target.home.clone();
        let inner = home.queued(|q| q.sequence(launches))?;
        Ok(Sequence { home, gpu: self.target.gpu.clone(), inner, calls: self.calls })
    }
}

/// One call, ready to be launched, and its results.
fn prepare(
    target: &Target<'_>,
    op: &'static OpDesc,
    case: Case,
    results: &[Vec<u64>],
    inputs: &[&Resident],
) -> Result<(Call, Vec<Resident>)> {
    let (home, runner) = (&target.home, &target.home.runner);
    let choice = kernel::choose(op.kernels, &case, target.info(), target.variant())?;
    if matches!(choice.kernel.body, Body::Action(_)) {
        return Err(Error::new(
            Code::OpUnsupported,
            "it measures copies and calls of the device; no arrays come of it",
        ));
    }
    let (mut read, mut written) = (inputs.iter(), Vec::new());
    let (mut places, mut shapes) = (Vec::with_capacity(op.operands.len()), results.iter());
    for (i, operand) in op.operands.iter().enumerate() {
        // What is left out stands behind all others.
        let from = if operand.role == Role::Out { None } else { read.next() };
        match (operand.role, from) {
            (Role::In, Some(r)) if r.offset.is_multiple_of(Guard::WIDE.head) => {
                places.push(Some((Buffer::clone(&r.memory.buffer), r.offset)));
            }
            (Role::In, Some(_)) => {
                let why = "a view that begins where the device lets no operand begin; copy it first (`copy_from`)";
                return Err(Error::new(Code::BadArgument, why));
            }
            (Role::In, None) => return Err(Error::new(Code::ShapeMismatch, "too few inputs")),
            (Role::InOut, from) if from.is_some() || case.attrs.float("beta", 0.0) != 0.0 => {
                let why = "it changes an operand: a second replay would begin with what the first one left";
                return Err(Error::new(Code::OpUnsupported, why));
            }
            (Role::InOut | Role::Out, _) => {
                let shape = shapes.next().ok_or_else(|| Error::new(Code::Internal, "a result without a shape"))?;
                let array = Resident::new(home, op.operand_dtype(i, &case), shape, MemoryKind::Device)?;
                let buffer = Buffer::clone(&array.memory.buffer);
                array.memory.tell(home.queued(|q| q.fill(&buffer, 0, buffer.bytes() / 4 * 4, 0)))?;
                places.push(Some((buffer, 0)));
                written.push(array);
            }
        }
    }
    let prepared = runner.prepare_with(op, &case, choice, Guard::LIGHT, &places)?;
    let read = inputs.iter().map(|r| (*r).clone()).collect();
    let results = written.clone();
    Ok((Call { op, case, prepared, read, written }, results))
}

/// Calls that are enqueued together, as often as wanted, on what their arrays hold then. It keeps its arrays.
pub struct Sequence {
    home: Home,
    gpu: Option<Arc<Gpu>>,
    inner: device::Sequence,
    calls: Vec<Call>,
}

impl std::fmt::Debug for Sequence {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Sequence({} calls on {}, {:?})", self.calls.len(), self.home.id(), self.inner)
    }
}

impl Sequence {
    /// Number of its calls.
    pub fn len(&self) -> usize {
        self.calls.len()
    }
    /// Always false: there is none without calls.
    pub fn is_empty(&self) -> bool {
        self.calls.is_empty()
    }
    /// Why the device is given the launches one by one; `None` if they are one call of its API.
    pub fn one_by_one(&self) -> Option<&'static str> {
        self.inner.one_by_one()
    }

    /// Computes all calls in their order, and waits for the last.
    ///
    /// Errors: those of the device; `DeviceLost` once it was lost, for its arrays are gone with it.
    pub fn replay(&self) -> Result<()> {
        if let Some(why) = self.gpu.as_ref().and_then(|g| g.out()) {
            return Err(Error::new(Code::DeviceLost, format!("it is out of use: {why}")).device(self.home.id()));
        }
        let read: Vec<&Resident> = self.calls.iter().flat_map(|c| &c.read).collect();
        let _hold = hold(&read, self.calls.iter().flat_map(|c| &c.written));
        self.calls.iter().for_each(|c| c.prepared.begin());
        match self.home.queued(|q| q.replay(&self.inner)) {
            Ok(()) => {
                self.calls.iter().for_each(|c| c.prepared.settled.store(true, Ordering::Release));
                self.gpu.iter().for_each(|g| g.succeeded());
                Ok(())
            }
            Err(e) => {
                for array in self.calls.iter().flat_map(|c| c.read.iter().chain(&c.written)) {
                    if e.class() != Class::Usage {
                        array.memory.fail();
                    }
                }
                if let (Some(gpu), Some(first)) = (&self.gpu, self.calls.first()) {
                    gpu.failed(&self.home.runner, first.op, &first.case, &e);
                }
                Err(e)
            }
        }
    }
}
