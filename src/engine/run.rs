//! One op on one device: buffers, programs, launches, made once and run often.
//!
//! Not here: which device (`place`), what the numbers should be (`jobs::verify`).

use std::borrow::Borrow;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::base::{Cancel, Case, Code, Error, HostTensor, Lang, Result, host};
use crate::device::tap::{Labelled, Scope};
use crate::device::{Buffer, Device, Launch, MemoryKind, Queue, Slice};
use crate::kernel::debug::{Report, WORDS};
use crate::kernel::{self, Arg, Body, Choice};
use crate::op::{OpDesc, Role};

use super::about::About;
use super::action::Acting;
use super::lease::{Leased, places};
use super::operand::{OperandBuffer, round4, round16};
use super::pool::{Pool, PoolConfig, Rented};
use super::programs::Programs;
use super::transfer::Copier;
use super::turns::Turns;

/// Bytes around every operand that no kernel may touch; [`Prepared::check_guards`] looks at them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Guard {
    /// In front; a multiple of every API's alignment of slices.
    pub head: u64,
    /// Behind.
    pub tail: u64,
}

impl Guard {
    /// Little memory and no offset: for measured and library calls.
    pub const LIGHT: Guard = Guard { head: 0, tail: 64 };
    /// A whole group's or tile row's worth on both sides: for `verify`.
    pub const WIDE: Guard = Guard { head: 1024, tail: 4096 };
}

/// An opened device with its programs and idle queues. Shared between threads.
pub struct Runner {
    pub(super) device: Arc<dyn Device>,
    pub(super) programs: Programs,
    pub(super) queues: Turns<Box<dyn Queue>>,
    /// Microseconds of `since` at which a waiting call last got the place of one that ended.
    pub(super) handed_us: AtomicU64,
    pub(super) since: Instant,
    pub(super) watch: bool,
    pool: Option<Pool>,
    /// Threads of copies that nobody waits in.
    pub(super) copier: Copier,
}

impl std::fmt::Debug for Runner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Runner({})", self.device.info().id)
    }
}

fn lock<T>(m: &Mutex<T>) -> MutexGuard<'_, T> {
    m.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Runner {
    /// A runner for an opened device.
    pub fn new(device: Arc<dyn Device>) -> Self {
        Runner {
            queues: Turns::new(places(device.info())),
            device,
            programs: Programs::default(),
            handed_us: AtomicU64::new(0),
            since: Instant::now(),
            watch: false,
            pool: None,
            copier: Copier::default(),
        }
    }

    /// Operands and scratch come from a pool from now on. Without it they are allocated for every [`Runner::prepare`], which
    /// is what `verify` wants: each in memory of its own, so that tools see what lies outside.
    pub fn pooled(mut self, config: PoolConfig) -> Self {
        self.pool = Some(Pool::new(Arc::clone(&self.device), config));
        self
    }

    /// The pool, if there is one.
    pub fn pool(&self) -> Option<&Pool> {
        self.pool.as_ref()
    }

    pub(super) fn memory(&self, bytes: u64) -> Result<Rented> {
        match &self.pool {
            Some(pool) => pool.rent(bytes),
            None => Ok(self.device.alloc(bytes, MemoryKind::Device)?.into()),
        }
    }

    /// The device.
    pub fn device(&self) -> &Arc<dyn Device> {
        &self.device
    }

    /// Plans a case for this device, builds what it needs (or finds it built) and allocates its operands.
    ///
    /// `variant` restricts the choice to one kernel. Errors name op, shape and device.
    pub fn prepare(&self, op: &'static OpDesc, case: &Case, variant: Option<&str>) -> Result<Prepared> {
        let info = self.device.info();
        let named = |e: Error| e.op(op.name).shape(&case.shape_text()).device(&info.id);
        let choice = kernel::choose(op.kernels, case, info, variant)?;
        self.prepare_choice(op, case, choice, Guard::LIGHT).map_err(named)
    }

    /// The same for a kernel that was chosen already, and with this much room around its operands.
    pub fn prepare_choice(&self, op: &'static OpDesc, case: &Case, choice: Choice, guard: Guard) -> Result<Prepared> {
        self.prepare_with(op, case, choice, guard, &[])
    }

    /// The same with operands that lie on the device already: their memory and their first byte, by number.
    pub(super) fn prepare_with(
        &self,
        op: &'static OpDesc,
        case: &Case,
        choice: Choice,
        guard: Guard,
        given: &[Option<(Buffer, u64)>],
    ) -> Result<Prepared> {
        let about = About::of(&choice);
        let told = about.clone();
        // They outlive a failure, so that it is told of what was held then.
        let mut operands = Vec::new();
        let made = self.make(op, case, choice, guard, about, given, &mut operands);
        made.map_err(|e| told.tell(e, &self.device, op, case))
    }

    #[allow(clippy::too_many_arguments, reason = "one caller, which names them all")]
    fn make(
        &self,
        op: &'static OpDesc,
        case: &Case,
        choice: Choice,
        guard: Guard,
        about: About,
        given: &[Option<(Buffer, u64)>],
        operands: &mut Vec<OperandBuffer>,
    ) -> Result<Prepared> {
        let label = self.device.tap().map(|tap| tap.label(case, choice.kernel.variant));
        let _scope = label.map(Labelled::enter);
        let shapes = (op.shapes)(case)?;
        for (i, shape) in shapes.iter().enumerate() {
            let dtype = op.operand_dtype(i, case);
            let bytes = host::count(shape)?
                .checked_mul(dtype.size())
                .ok_or_else(|| Error::new(Code::SizeOverflow, format!("{shape:?} of {dtype}")))?;
            let (buffer, head) = match given.get(i).and_then(Option::as_ref) {
                Some((buffer, head)) => (Rented::from(buffer.clone()), *head),
                None => (self.memory(guard.head + round16(bytes) + guard.tail)?, guard.head),
            };
            operands.push(OperandBuffer {
                buffer,
                head,
                role: op.operands[i].role,
                dtype,
                shape: shape.clone(),
                bytes,
            });
        }
        let scratch = choice.plan.scratch.iter().map(|b| self.memory(round16(*b))).collect::<Result<Vec<_>>>()?;
        let watched = self.watch && matches!(choice.kernel.body, Body::C(_) | Body::Opencl(_));
        let report = match watched {
            true => Some(self.device.alloc(4 * WORDS as u64, MemoryKind::Device)?),
            false => None,
        };
        let mut launches = Vec::with_capacity(choice.plan.steps.len());
        for step in &choice.plan.steps {
            let args = step
                .args
                .iter()
                .map(|arg| match arg {
                    Arg::Operand(i) => {
                        let o = &operands[*i];
                        Slice { buffer: o.buffer.clone(), offset: o.head, bytes: round16(o.bytes) }
                    }
                    Arg::Scratch(i) => Slice::whole(&scratch[*i]),
                })
                .collect();
            let mut launch = Launch {
                program: self.program(&choice, step)?,
                group: step.group,
                groups: step.groups,
                args,
                writes: step.writes.clone(),
                params: step.params.clone(),
                cost: step.cost,
            };
            if let Some(report) = &report {
                // Lengths in bytes: the text knows what it takes them for, elements, words or single bytes.
                let limit = |arg: &Arg| match arg {
                    Arg::Operand(i) => operands[*i].bytes,
                    Arg::Scratch(i) => choice.plan.scratch[*i],
                };
                launch.params.extend(step.args.iter().map(|a| kernel::Param::U64(limit(a))));
                launch.args.push(Slice::whole(report));
                launch.writes.push(true);
            }
            launches.push(launch);
        }
        let acting = match choice.kernel.body {
            Body::Action(action) => Some(Mutex::new(Acting::new(action, &self.device, case, operands)?)),
            _ => None,
        };
        Ok(Prepared {
            device: Arc::clone(&self.device),
            op,
            case: case.clone(),
            variant: choice.kernel.variant,
            lang: choice.lang,
            reason: choice.reason,
            operands: std::mem::take(operands),
            scratch,
            settled: AtomicBool::new(true),
            launches,
            report,
            about,
            acting,
            label,
        })
    }
}

/// Drops what a device may still work on, in a thread of its own: releasing it waits for the device, which may hang.
pub(super) fn bury(held: impl Send + 'static, mut lease: Leased<'_>) {
    let all = (held, lease.give_up());
    let thread = std::thread::Builder::new().name("gpuctl-release".into());
    if let Err(e) = thread.spawn(move || drop(all)) {
        log::warn!("no thread to release what a lost device holds: {e}");
    }
}

/// The error `Cancelled` once the flag is up.
pub(super) fn not_cancelled(cancel: Option<&Cancel>) -> Result<()> {
    match cancel {
        Some(c) if c.raised() => Err(Error::new(Code::Cancelled, "the call was cancelled")),
        _ => Ok(()),
    }
}

/// A case on a device, ready to run any number of times.
pub struct Prepared {
    pub(super) device: Arc<dyn Device>,
    op: &'static OpDesc,
    case: Case,
    /// Kernel variant.
    pub variant: &'static str,
    /// Language of the kernel.
    pub lang: Lang,
    /// Why this variant.
    pub reason: String,
    pub(super) operands: Vec<OperandBuffer>,
    scratch: Vec<Rented>,
    /// Whether all work that uses the buffers has been waited for; else they are not lent again.
    pub(super) settled: AtomicBool,
    pub(super) launches: Vec<Launch>,
    /// Where watched kernels note their first violation.
    report: Option<Buffer>,
    about: About,
    /// What is done besides the launches.
    acting: Option<Mutex<Acting>>,
    /// What it is called in a trace, if its device is traced.
    label: Option<Labelled>,
}

impl Drop for Prepared {
    fn drop(&mut self) {
        // They hold clones of the buffers, which are then free.
        self.launches.clear();
        if !*self.settled.get_mut() {
            self.operands.iter_mut().for_each(|o| o.buffer.discard());
            self.scratch.iter_mut().for_each(Rented::discard);
        }
    }
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

    /// What this thread does with the device from here on belongs to the case, until the scope is dropped; `None` where nothing
    /// is traced.
    pub fn scope(&self) -> Option<Scope> {
        self.label.map(Labelled::enter)
    }

    pub(super) fn named(&self, e: Error) -> Error {
        self.about.tell(e, &self.device, self.op, &self.case)
    }

    /// Fills every operand that is only written with 0xFF (NaN, or -1) and all guards, so that an element that a kernel
    /// leaves out or writes out of range is found.
    pub fn poison(&self, q: &mut dyn Queue) -> Result<()> {
        self.poison_with(q, 0xFF)
    }

    /// The same with another byte in the written operands (the guards stay as they are): an element that shows a different
    /// poison in each of two runs was never written, whatever its right value is.
    pub fn poison_with(&self, q: &mut dyn Queue, byte: u8) -> Result<()> {
        self.begin();
        let _scope = self.scope();
        for o in &self.operands {
            let end = round4(o.bytes);
            if o.role == Role::Out && end > 0 {
                q.fill(&o.buffer, o.head, end, byte).map_err(|e| self.named(e))?;
            }
            for (from, bytes) in o.guards().into_iter().filter(|g| g.1 > 0) {
                q.fill(&o.buffer, from, bytes, o.guard_byte()).map_err(|e| self.named(e))?;
            }
        }
        if let Some(acting) = &self.acting {
            lock(acting).poison(q, byte).map_err(|e| self.named(e))?;
        }
        Ok(())
    }

    /// True if a written operand may be read, so that a second launch starts from the first one's result.
    pub fn in_place(&self) -> bool {
        self.operands.iter().any(|o| o.role == Role::InOut)
    }

    /// Copies the inputs (roles In and InOut, in order) to the device.
    pub fn upload<T: Borrow<HostTensor>>(&self, q: &mut dyn Queue, inputs: &[T]) -> Result<()> {
        self.begin();
        let _scope = self.scope();
        let mut given = inputs.iter().map(Borrow::borrow);
        for o in self.operands.iter().filter(|o| o.role != Role::Out) {
            let Some(t) = given.next() else {
                return Err(self.named(Error::new(Code::ShapeMismatch, "too few inputs")));
            };
            if t.dtype != o.dtype || t.bytes().len() as u64 != o.bytes {
                let why = format!("expected {} {:?}, got {} {:?}", o.dtype, o.shape, t.dtype, t.shape);
                return Err(self.named(Error::new(Code::ShapeMismatch, why)));
            }
            let taken = match &self.acting {
                Some(acting) => lock(acting).take(q, t.bytes()).map_err(|e| self.named(e))?,
                None => false,
            };
            if !taken && !t.bytes().is_empty() {
                q.write(&o.buffer, o.head, t.bytes()).map_err(|e| self.named(e))?;
            }
        }
        Ok(())
    }

    /// Enqueues all launches (or performs the queue action). Returns before the device is done.
    pub fn launch(&self, q: &mut dyn Queue) -> Result<()> {
        self.launch_unless(q, None)
    }

    fn launch_unless(&self, q: &mut dyn Queue, cancel: Option<&Cancel>) -> Result<()> {
        self.begin();
        let _scope = self.scope();
        let mut go = || -> Result<()> {
            for l in &self.launches {
                not_cancelled(cancel)?;
                q.launch(l)?;
            }
            match &self.acting {
                Some(acting) => lock(acting).act(q, &self.device, &self.case, &self.operands),
                None => Ok(()),
            }
        };
        go().map_err(|e| self.named(e))
    }

    /// Memory for the written operands, in order, filled with zeros. Errors: `OutOfHostMemory`.
    pub fn results(&self) -> Result<Vec<HostTensor>> {
        self.operands.iter().filter(|o| o.role != Role::In).map(|o| HostTensor::zeros(o.dtype, &o.shape)).collect()
    }

    /// Copies the written operands back, in order; waits for them.
    pub fn download(&self, q: &mut dyn Queue) -> Result<Vec<HostTensor>> {
        let mut out = self.results()?;
        self.download_into(q, &mut out)?;
        Ok(out)
    }

    /// [`Prepared::download`] into memory that is there already; its shapes stay as they are. After an error its contents mean
    /// nothing. Errors: `ShapeMismatch` for another number of results, another dtype or another number of bytes.
    pub fn download_into(&self, q: &mut dyn Queue, out: &mut [HostTensor]) -> Result<()> {
        let _scope = self.scope();
        let written: Vec<&OperandBuffer> = self.operands.iter().filter(|o| o.role != Role::In).collect();
        let fits = |(t, o): (&HostTensor, &&OperandBuffer)| t.dtype == o.dtype && t.bytes().len() as u64 == o.bytes;
        if out.len() != written.len() || !out.iter().zip(&written).all(fits) {
            let found: Vec<_> = out.iter().map(|t| (t.dtype, &t.shape)).collect();
            let want: Vec<_> = written.iter().map(|o| (o.dtype, &o.shape)).collect();
            return Err(self.named(Error::new(Code::ShapeMismatch, format!("results {found:?}, expected {want:?}"))));
        }
        for (t, o) in out.iter_mut().zip(written) {
            let given = match &self.acting {
                Some(acting) => lock(acting).give(q, t).map_err(|e| self.named(e))?,
                None => false,
            };
            if !given && !t.bytes().is_empty() {
                q.read(&o.buffer, o.head, t.bytes_mut()).map_err(|e| self.named(e))?;
            }
        }
        Ok(())
    }

    /// Copies the written operands, in order and each rounded up to 16 bytes, to `dst` from byte `at` on, after all work
    /// enqueued before: so results outlive the buffers that they were made in. Returns the byte behind the last.
    ///
    /// Errors: `BufferBounds` if they do not fit.
    pub fn copy_results(&self, q: &mut dyn Queue, dst: &Buffer, mut at: u64) -> Result<u64> {
        let _scope = self.scope();
        for o in self.operands.iter().filter(|o| o.role != Role::In) {
            q.copy(&o.buffer, o.head, dst, at, round4(o.bytes)).map_err(|e| self.named(e))?;
            at += round16(o.bytes);
        }
        Ok(at)
    }

    /// Fails if anything wrote in front of or behind an operand since [`Prepared::poison`].
    pub fn check_guards(&self, q: &mut dyn Queue) -> Result<()> {
        let _scope = self.scope();
        for (i, o) in self.operands.iter().enumerate() {
            for (from, bytes) in o.guards().into_iter().filter(|g| g.1 > 0) {
                let mut guard = vec![0u8; bytes as usize];
                q.read(&o.buffer, from, &mut guard).map_err(|e| self.named(e))?;
                if let Some(at) = guard.iter().position(|b| *b != o.guard_byte()) {
                    let (name, at) = (self.op.operands[i].name, from + at as u64);
                    let place = if at < o.head {
                        format!("{} bytes in front of", o.head - at)
                    } else {
                        format!("byte {} behind", at - o.head - o.bytes)
                    };
                    let why = format!("{place} operand {name} was overwritten");
                    return Err(self.named(Error::new(Code::ResultWrong, why)));
                }
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
        let mut out = self.results()?;
        self.call_into(q, inputs, &mut out, deadline)?;
        Ok(out)
    }

    /// [`Prepared::call`] into memory that is there already, as [`Prepared::download_into`] has it: fresh memory for results is
    /// cleared first and takes the machine page by page, which can be most of a call.
    pub fn call_into<T: Borrow<HostTensor>>(
        &self,
        q: &mut dyn Queue,
        inputs: &[T],
        out: &mut [HostTensor],
        deadline: Duration,
    ) -> Result<()> {
        self.call_unless(q, inputs, out, deadline, None)
    }

    /// [`Prepared::call_into`], given up with `Cancelled` between its steps once the flag is up; what was enqueued goes on.
    pub(super) fn call_unless<T: Borrow<HostTensor>>(
        &self,
        q: &mut dyn Queue,
        inputs: &[T],
        out: &mut [HostTensor],
        deadline: Duration,
        cancel: Option<&Cancel>,
    ) -> Result<()> {
        not_cancelled(cancel)?;
        let _scope = self.scope();
        self.upload(q, inputs)?;
        if let Some(report) = &self.report {
            q.fill(report, 0, report.bytes(), 0).map_err(|e| self.named(e))?;
        }
        self.launch_unless(q, cancel)?;
        q.finish(deadline).map_err(|e| self.named(e))?;
        not_cancelled(cancel)?;
        self.check_report(q, inputs)?;
        self.download_into(q, out)?;
        self.settled.store(true, Ordering::Release);
        Ok(())
    }

    /// Work that uses the buffers is under way from now on.
    pub(super) fn begin(&self) {
        self.settled.store(false, Ordering::Release);
    }

    /// The memory of what a call wrote whose work has been waited for, in order.
    pub(super) fn into_written(mut self) -> Vec<OperandBuffer> {
        *self.settled.get_mut() = true;
        let operands = std::mem::take(&mut self.operands);
        operands.into_iter().filter(|o| o.role != Role::In).collect()
    }

    /// Fails with the first violation that a watched kernel noted.
    fn check_report<T: Borrow<HostTensor>>(&self, q: &mut dyn Queue, inputs: &[T]) -> Result<()> {
        let Some(report) = &self.report else { return Ok(()) };
        let mut bytes = [0u8; 4 * WORDS];
        q.read(report, 0, &mut bytes).map_err(|e| self.named(e))?;
        let words: Vec<u32> = bytemuck::pod_collect_to_vec(&bytes);
        let finite = inputs.iter().map(Borrow::borrow).all(|t: &HostTensor| {
            // 0 / 0, the root of a negative number: only from finite numbers above 0 is a NaN never right.
            let sound = |v: f64| v.is_finite() && v > 0.0;
            !t.is_empty()
                && (!t.dtype.is_float() || (0..t.len()).all(|i| sound(crate::base::Exact::read(t, i).to_f64())))
        });
        match Report::read(&words, finite) {
            Some(r) => Err(self.named(r.error(&self.about.entries()))),
            None => Ok(()),
        }
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
                for spec in op.specs(Tier::Smoke, *dtype) {
                    let c = op.case(*dtype, &spec.dims, spec.attrs, spec.fill).unwrap();
                    let p = r.prepare(op, &c, None).unwrap();
                    let q = lease.queue().unwrap();
                    p.poison(q).unwrap();
                    let out = p.call(q, &case::inputs(op, &c).unwrap(), DEADLINE).unwrap();
                    p.check_guards(q).unwrap();
                    assert_eq!(out.len(), op.written().count(), "{c}");
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
