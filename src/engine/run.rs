//! One op on one device: buffers, programs, launches, made once and run often.
//!
//! Not here: which device (`place`), what the numbers should be (`jobs::verify`).

use std::borrow::Borrow;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::base::{Case, Code, Error, HostTensor, Lang, Result, host};
use crate::device::{Buffer, Device, Launch, MemoryKind, Program, Queue, Slice, Source};
use crate::kernel::{self, ALLOC_TOKEN, Action, Arg, Body, Choice, source};
use crate::op::{OpDesc, Role};

/// Bytes behind every operand that no kernel may touch; [`Prepared::check_tails`] looks at them.
const TAIL: u64 = 64;

/// An opened device with its programs and idle queues. Shared between threads.
pub struct Runner {
    device: Arc<dyn Device>,
    programs: Mutex<HashMap<ProgramKey, Program>>,
    queues: Mutex<Vec<Box<dyn Queue>>>,
    builds: AtomicU64,
    build_nanos: AtomicU64,
}

#[derive(Clone, PartialEq, Eq, Hash)]
enum ProgramKey {
    Text(u64, String),
    Native(usize, crate::base::DType),
    Routine(kernel::Routine, crate::base::DType),
}

impl std::fmt::Debug for Runner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Runner({})", self.device.info().id)
    }
}

fn lock<T>(m: &Mutex<T>) -> MutexGuard<'_, T> {
    m.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A queue on loan; it goes back when dropped, unless it failed.
pub struct Leased<'r> {
    runner: &'r Runner,
    queue: Option<Box<dyn Queue>>,
    broken: bool,
}

impl std::fmt::Debug for Leased<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Leased(queue of {:?})", self.runner)
    }
}

impl Leased<'_> {
    /// The queue.
    pub fn queue(&mut self) -> Result<&mut dyn Queue> {
        match &mut self.queue {
            Some(q) => Ok(q.as_mut()),
            None => Err(Error::new(Code::Internal, "the leased queue is gone")),
        }
    }
    /// Gives the queue up instead of back: after a timeout or a lost device its state is unknown.
    pub fn discard(&mut self) {
        self.broken = true;
    }
}

impl Drop for Leased<'_> {
    fn drop(&mut self) {
        if let Some(q) = self.queue.take()
            && !self.broken
        {
            lock(&self.runner.queues).push(q);
        }
    }
}

impl Runner {
    /// A runner for an opened device.
    pub fn new(device: Arc<dyn Device>) -> Self {
        Runner {
            device,
            programs: Mutex::default(),
            queues: Mutex::default(),
            builds: AtomicU64::new(0),
            build_nanos: AtomicU64::new(0),
        }
    }

    /// The device.
    pub fn device(&self) -> &Arc<dyn Device> {
        &self.device
    }

    /// Number of programs built so far and the seconds that took; flat after warm-up.
    pub fn builds(&self) -> (u64, f64) {
        (self.builds.load(Ordering::Relaxed), self.build_nanos.load(Ordering::Relaxed) as f64 * 1e-9)
    }

    /// Borrows a queue; makes one if all are in use.
    pub fn lease(&self) -> Result<Leased<'_>> {
        let idle = lock(&self.queues).pop();
        let queue = match idle {
            Some(q) => q,
            None => self.device.queue().map_err(|e| e.device(&self.device.info().id))?,
        };
        Ok(Leased { runner: self, queue: Some(queue), broken: false })
    }

    /// Plans a case for this device, builds what it needs (or finds it built) and allocates its operands.
    ///
    /// `variant` restricts the choice to one kernel. Errors name op, shape and device.
    pub fn prepare(&self, op: &'static OpDesc, case: &Case, variant: Option<&str>) -> Result<Prepared> {
        let info = self.device.info();
        let named = |e: Error| e.op(op.name).shape(&case.shape_text()).device(&info.id);
        let choice = kernel::choose(op.kernels, case, info, variant)?;
        self.prepare_choice(op, case, choice).map_err(named)
    }

    /// The same for a kernel that was chosen already.
    pub fn prepare_choice(&self, op: &'static OpDesc, case: &Case, choice: Choice) -> Result<Prepared> {
        let shapes = (op.shapes)(case)?;
        let mut operands = Vec::with_capacity(shapes.len());
        for (i, shape) in shapes.iter().enumerate() {
            let dtype = op.operand_dtype(i, case);
            let bytes = host::count(shape)?
                .checked_mul(dtype.size())
                .ok_or_else(|| Error::new(Code::SizeOverflow, format!("{shape:?} of {dtype}")))?;
            operands.push(OperandBuffer {
                buffer: self.device.alloc(round16(bytes) + TAIL, MemoryKind::Device)?,
                role: op.operands[i].role,
                dtype,
                shape: shape.clone(),
                bytes,
            });
        }
        let scratch = choice
            .plan
            .scratch
            .iter()
            .map(|b| self.device.alloc(round16(*b), MemoryKind::Device))
            .collect::<Result<Vec<_>>>()?;
        let mut launches = Vec::with_capacity(choice.plan.steps.len());
        for step in &choice.plan.steps {
            let args = step
                .args
                .iter()
                .map(|arg| match arg {
                    Arg::Operand(i) => {
                        Slice { buffer: operands[*i].buffer.clone(), offset: 0, bytes: round16(operands[*i].bytes) }
                    }
                    Arg::Scratch(i) => Slice::whole(&scratch[*i]),
                })
                .collect();
            launches.push(Launch {
                program: self.program(&choice, step)?,
                group: step.group,
                groups: step.groups,
                args,
                writes: step.writes.clone(),
                params: step.params.clone(),
                cost: step.cost,
            });
        }
        let action = if let Body::Action(a) = choice.kernel.body { Some(a) } else { None };
        Ok(Prepared {
            device: Arc::clone(&self.device),
            op,
            case: case.clone(),
            variant: choice.kernel.variant,
            lang: choice.lang,
            reason: choice.reason,
            operands,
            launches,
            action,
            staged: Mutex::default(),
        })
    }

    fn program(&self, choice: &Choice, step: &kernel::Step) -> Result<Program> {
        let text;
        let (key, src) = match choice.kernel.body {
            Body::Native(f) => (ProgramKey::Native(f as usize, step.dtype), Source::Native(f, step.dtype)),
            Body::Routine(r) => (ProgramKey::Routine(r, step.dtype), Source::Routine(r, step.dtype)),
            Body::C(_) | Body::Cuda(_) | Body::Wgsl(_) => {
                text = source::assemble(choice.kernel, step, choice.lang)?;
                (ProgramKey::Text(text.hash(), text.entry.clone()), Source::Text(&text))
            }
            Body::Action(_) => return Err(Error::new(Code::Internal, "an action has no program")),
        };
        if let Some(p) = lock(&self.programs).get(&key) {
            return Ok(p.clone());
        }
        // Built outside the lock: two threads may build the same program once, but none waits for another's compiler.
        let start = std::time::Instant::now();
        let program = self.device.build(src, None)?;
        self.builds.fetch_add(1, Ordering::Relaxed);
        self.build_nanos.fetch_add(start.elapsed().as_nanos() as u64, Ordering::Relaxed);
        Ok(lock(&self.programs).entry(key).or_insert(program).clone())
    }
}

/// End of an operand's data for the tails: WGSL stores 16-bit elements in pairs, and copies move whole words.
fn round4(bytes: u64) -> u64 {
    bytes.div_ceil(4) * 4
}

fn round16(bytes: u64) -> u64 {
    bytes.max(1).div_ceil(16) * 16
}

struct OperandBuffer {
    buffer: Buffer,
    role: Role,
    dtype: crate::base::DType,
    shape: Vec<u64>,
    bytes: u64,
}

/// Host side of the queue actions.
#[derive(Default)]
struct Staged {
    host: Vec<u8>,
    buffer: Option<Buffer>,
}

/// A case on a device, ready to run any number of times.
pub struct Prepared {
    device: Arc<dyn Device>,
    op: &'static OpDesc,
    case: Case,
    /// Kernel variant.
    pub variant: &'static str,
    /// Language of the kernel.
    pub lang: Lang,
    /// Why this variant.
    pub reason: String,
    operands: Vec<OperandBuffer>,
    launches: Vec<Launch>,
    action: Option<Action>,
    staged: Mutex<Staged>,
}

impl std::fmt::Debug for Prepared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Prepared({} on {}, {})", self.case, self.device.info().id, self.variant)
    }
}

impl Prepared {
    /// The case.
    pub fn case(&self) -> &Case {
        &self.case
    }
    /// The op.
    pub fn op(&self) -> &'static OpDesc {
        self.op
    }
    /// Id of the device.
    pub fn device_id(&self) -> &str {
        &self.device.info().id
    }
    /// Work-groups of the largest launch; 0 where nothing is launched.
    pub fn groups(&self) -> u64 {
        self.launches.iter().map(|l| l.groups.iter().product()).max().unwrap_or(0)
    }

    fn named(&self, e: Error) -> Error {
        e.op(self.op.name).shape(&self.case.shape_text()).device(&self.device.info().id)
    }

    /// Fills every written operand and all tails with 0xFF (NaN, or -1), so that an element that a kernel leaves out or
    /// writes out of range is found.
    pub fn poison(&self, q: &mut dyn Queue) -> Result<()> {
        self.poison_with(q, 0xFF)
    }

    /// The same with another byte in the written operands (the tails stay 0xFF): an element that shows a different
    /// poison in each of two runs was never written, whatever its right value is.
    pub fn poison_with(&self, q: &mut dyn Queue, byte: u8) -> Result<()> {
        for o in &self.operands {
            let end = round4(o.bytes);
            if o.role == Role::Out && end > 0 {
                q.fill(&o.buffer, 0, end, byte).map_err(|e| self.named(e))?;
            }
            q.fill(&o.buffer, end, o.buffer.bytes() - end, 0xFF).map_err(|e| self.named(e))?;
        }
        Ok(())
    }

    /// Copies the inputs (roles In and InOut, in order) to the device.
    pub fn upload<T: Borrow<HostTensor>>(&self, q: &mut dyn Queue, inputs: &[T]) -> Result<()> {
        let mut given = inputs.iter().map(Borrow::borrow);
        for o in self.operands.iter().filter(|o| o.role != Role::Out) {
            let Some(t) = given.next() else {
                return Err(self.named(Error::new(Code::ShapeMismatch, "too few inputs")));
            };
            if t.dtype != o.dtype || t.bytes().len() as u64 != o.bytes {
                let why = format!("expected {} {:?}, got {} {:?}", o.dtype, o.shape, t.dtype, t.shape);
                return Err(self.named(Error::new(Code::ShapeMismatch, why)));
            }
            if self.action == Some(Action::Upload) {
                lock(&self.staged).host = t.bytes().to_vec();
            } else if !t.bytes().is_empty() {
                q.write(&o.buffer, 0, t.bytes()).map_err(|e| self.named(e))?;
            }
        }
        Ok(())
    }

    /// Enqueues all launches (or performs the queue action). Returns before the device is done.
    pub fn launch(&self, q: &mut dyn Queue) -> Result<()> {
        let mut go = || -> Result<()> {
            for l in &self.launches {
                q.launch(l)?;
            }
            let Some(action) = self.action else { return Ok(()) };
            let mut staged = lock(&self.staged);
            let last = &self.operands[self.operands.len() - 1];
            match action {
                Action::Upload => q.write(&last.buffer, 0, &staged.host)?,
                Action::Download => {
                    let x = &self.operands[0];
                    staged.host.resize(x.bytes as usize, 0);
                    q.read(&x.buffer, 0, &mut staged.host)?;
                }
                Action::Allocate => {
                    // The buffer of the call before goes first: one allocation and one release per call.
                    staged.buffer = None;
                    let fresh = self.device.alloc(round16(last.bytes), MemoryKind::Device)?;
                    q.fill(&fresh, 0, round16(last.bytes), ALLOC_TOKEN)?;
                    staged.buffer = Some(fresh);
                }
            }
            Ok(())
        };
        go().map_err(|e| self.named(e))
    }

    /// Copies the written operands back, in order; waits for them.
    pub fn download(&self, q: &mut dyn Queue) -> Result<Vec<HostTensor>> {
        let mut out = Vec::new();
        for o in self.operands.iter().filter(|o| o.role != Role::In) {
            let mut t = HostTensor::zeros(o.dtype, &o.shape)?;
            let staged = lock(&self.staged);
            match self.action {
                Some(Action::Download) => t.bytes_mut().copy_from_slice(&staged.host),
                _ if t.bytes().is_empty() => {}
                _ => {
                    let from = staged.buffer.as_ref().unwrap_or(&o.buffer);
                    q.read(from, 0, t.bytes_mut()).map_err(|e| self.named(e))?;
                }
            }
            out.push(t);
        }
        Ok(out)
    }

    /// Fails if anything wrote behind an operand since [`Prepared::poison`].
    pub fn check_tails(&self, q: &mut dyn Queue) -> Result<()> {
        for (i, o) in self.operands.iter().enumerate() {
            let from = round4(o.bytes);
            let mut tail = vec![0u8; (o.buffer.bytes() - from) as usize];
            q.read(&o.buffer, from, &mut tail).map_err(|e| self.named(e))?;
            if let Some(at) = tail.iter().position(|b| *b != 0xFF) {
                let name = self.op.operands[i].name;
                let why = format!("byte {} behind operand {name} was overwritten", from + at as u64 - o.bytes);
                return Err(self.named(Error::new(Code::ResultWrong, why)));
            }
        }
        Ok(())
    }

    /// Uploads, launches, waits and downloads: one whole call with operands in host memory.
    pub fn call<T: Borrow<HostTensor>>(
        &self,
        q: &mut dyn Queue,
        inputs: &[T],
        deadline: Duration,
    ) -> Result<Vec<HostTensor>> {
        self.upload(q, inputs)?;
        self.launch(q)?;
        q.finish(deadline).map_err(|e| self.named(e))?;
        self.download(q)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::{Attrs, DType, Fill};
    use crate::device::DEADLINE;
    use crate::device::cpu::{CpuDevice, Pin};
    use crate::kernel::Isa;
    use crate::op::{Tier, case, find};

    fn runner() -> Runner {
        Runner::new(Arc::new(CpuDevice::new(2, Isa::detect(), Pin::Free).unwrap()))
    }

    #[test]
    fn every_smoke_case_runs_on_the_cpu_and_leaves_the_tails_alone() {
        let r = runner();
        let mut lease = r.lease().unwrap();
        for op in crate::op::all() {
            for dtype in op.dtypes {
                for spec in (op.cases)(Tier::Smoke) {
                    let c = op.case(*dtype, &spec.dims, spec.attrs, spec.fill).unwrap();
                    let p = r.prepare(op, &c, None).unwrap();
                    let q = lease.queue().unwrap();
                    p.poison(q).unwrap();
                    let out = p.call(q, &case::inputs(op, &c).unwrap(), DEADLINE).unwrap();
                    p.check_tails(q).unwrap();
                    assert_eq!(out.len(), 1, "{c}");
                }
            }
        }
        drop(lease);
        assert_eq!(r.device().ledger().state().buffers, 0, "operands are released");
    }

    #[test]
    fn programs_are_built_once_and_queues_reused() {
        let r = runner();
        let op = find("relu").unwrap();
        let c = op.case(DType::F32, &[10], Attrs::new(), Fill::Uniform).unwrap();
        for _ in 0..5 {
            let p = r.prepare(op, &c, None).unwrap();
            let mut lease = r.lease().unwrap();
            p.call(lease.queue().unwrap(), &case::inputs(op, &c).unwrap(), DEADLINE).unwrap();
        }
        assert_eq!(r.builds().0, 1);
        assert_eq!(r.device().ledger().state().queues, 1);
    }

    #[test]
    fn wrong_inputs_are_refused() {
        let r = runner();
        let op = find("relu").unwrap();
        let c = op.case(DType::F32, &[10], Attrs::new(), Fill::Uniform).unwrap();
        let p = r.prepare(op, &c, None).unwrap();
        let mut lease = r.lease().unwrap();
        let short = HostTensor::zeros(DType::F32, &[9]).unwrap();
        let e = p.call(lease.queue().unwrap(), &[short], DEADLINE).unwrap_err();
        assert!(e.to_string().contains("relu [n10] on cpu"), "{e}");
    }
}
