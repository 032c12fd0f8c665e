//! Runs ops: on one device ([`Runner`]), or wherever a profile says ([`Engine`]).
//!
//! ```
//! use gpuctl::base::{Attrs, HostTensor};
//! use gpuctl::engine::Engine;
//!
//! # fn main() -> gpuctl::base::Result<()> {
//! // The profile: from the builder, else GPUCTL_PROFILE, else the user's profile.toml, else always-cpu.
//! let engine = Engine::builder().profile("preset:default").build()?;
//! let x = HostTensor::from_slice(&[-1.0f32, 0.0, 2.5], &[3])?;
//! let out = engine.run("relu", &[&x], &Attrs::new())?;
//! assert_eq!(out.outputs[0].to_vec::<f32>()?, [0.0, 0.0, 2.5]);
//! assert_eq!(out.ran_on, "cpu"); // no preset has a threshold for relu, and unmeasured means CPU
//! assert!(out.decision.to_string().contains("no entry"));
//! # Ok(())
//! # }
//! ```
//!
//! Not here: what the numbers should be (`jobs::verify`), where thresholds come from (`jobs::calibrate`).

mod about;
mod action;
pub mod answered;
mod builder;
pub mod cache;
mod call;
mod fast;
mod gpu;
pub mod judge;
mod launch;
mod lease;
mod migrating;
mod operand;
mod pinned;
pub mod place;
pub mod pool;
mod private;
mod programs;
pub mod record;
pub mod recover;
pub mod resident;
mod route;
pub mod run;
pub mod sequence;
mod shelves;
mod spread;
mod status;
pub mod strategy;
mod sync;
mod synced;
mod target;
pub mod trace;
pub mod transfer;
pub mod trials;
mod tries;
mod turns;

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock};
use std::time::Duration;

use crate::base::trace::Kind;
use crate::base::{Attrs, Cancel, Case, Class, Code, DType, DeviceInfo, Error, HostTensor, Result};
use crate::device::DEADLINE;
use crate::device::tap::{Labelled, Tracer};
use crate::op::{self, OpDesc};
use crate::profile::{Operands, Profile, Source};

pub use builder::EngineBuilder;
pub use cache::KernelCache;
pub use launch::Handle;
pub use lease::Leased;
pub use pinned::Pins;
pub use place::{Explanation, Placement, Why};
pub use pool::{ClearPolicy, Pool, PoolConfig, PoolStats, Rented, Retention};
pub use record::{Workload, WorkloadRow};
pub use recover::{RecoveryConfig, State};
pub use resident::{DeviceVec, Resident, Rows, Transfers};
pub use route::{Ran, Route};
pub use run::{Guard, Prepared, Runner};
pub use sequence::{Recording, Sequence};
pub use spread::{Distribution, Load, assign};
pub use status::{DeviceStatus, Status};
pub use strategy::{ErrorEvent, Strategy, Taken};
pub use synced::{SyncStats, Synced};
pub use target::Target;
pub use transfer::{Copies, Copying, Via, copies};
pub use trials::Trials;

use call::Bound;
use gpu::Gpu;
use place::Places;
use record::Recorder;
use route::Planned;
use strategy::Hooks;

#[derive(Debug, Default)]
struct Counts {
    cpu: AtomicU64,
    gpu: AtomicU64,
    fallbacks: AtomicU64,
    retries: AtomicU64,
}

/// Calls of an engine so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Calls that the CPU computed, fallbacks included.
    pub cpu: u64,
    /// Calls that a GPU computed.
    pub gpu: u64,
    /// Calls that failed on a GPU and then ran on the CPU.
    pub fallbacks: u64,
    /// Calls that failed on a GPU and were made there once more, with fresh copies of their operands.
    pub retries: u64,
    /// Devices that failed and came back into use.
    pub recoveries: u64,
}

/// What a call gave.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// The call as a case; its data is the caller's, so its `fill` means nothing.
    pub case: Case,
    /// Written operands, in order.
    pub outputs: Vec<HostTensor>,
    /// Id of the device that computed them.
    pub ran_on: String,
    /// Kernel variant.
    pub variant: &'static str,
    /// Where the call was sent, and why.
    pub decision: Arc<Explanation>,
    /// Why it ran on the CPU although a GPU was chosen.
    pub fallback: Option<String>,
    /// Seconds of the call on the device's clock: copies, launches and the wait; buffers and kernels were made before.
    pub seconds: f64,
}

/// A call that was made.
struct Done<'e> {
    ran: Ran<'e>,
    variant: &'static str,
    why: Option<String>,
    /// On the device's clock; `None` if nothing but the kernel ran: reading a clock twice costs as much as a short call.
    seconds: Option<f64>,
}

/// What is logged once: op, dtype, family, device, and whether it was a fallback.
type Told = (&'static str, DType, Option<&'static str>, String, bool);

/// Runs ops where a profile says. Shared between threads.
pub struct Engine {
    places: Places,
    source: Source,
    strict: bool,
    /// Calls that were made before, by hash; emptied when there are too many.
    plans: RwLock<HashMap<u64, Arc<Planned>>>,
    /// Keys whose decision or fallback was logged.
    told: Mutex<HashSet<Told>>,
    counts: Counts,
    recorder: Option<Arc<Recorder>>,
    /// Verdicts on kernels; `None`: every kernel is trusted.
    trials: Option<Trials>,
    /// What they said about kernels of arrays.
    tried: Mutex<target::Tried>,
    /// Threads of calls that nobody waits in.
    launcher: OnceLock<launch::Launcher>,
    tracer: Option<Arc<Tracer>>,
    /// What the program says about errors.
    hooks: Hooks,
}

impl std::fmt::Debug for Engine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Engine(profile {}, {:?})", self.source, self.places.placement)
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        if let Err(e) = self.write_record() {
            log::warn!("{e}");
        }
    }
}

/// Calls that an engine remembers.
const MOST_PLANS: usize = 4096;

impl Engine {
    /// An engine by the usual search: `GPUCTL_PROFILE`, the user's `profile.toml`, always-cpu.
    pub fn auto() -> Result<Engine> {
        EngineBuilder::default().build()
    }

    /// Settings to start from.
    pub fn builder() -> EngineBuilder {
        EngineBuilder::default()
    }

    /// The profile.
    pub fn profile(&self) -> &Profile {
        self.places.profile()
    }

    /// Where the profile came from.
    pub fn source(&self) -> &Source {
        &self.source
    }

    /// A device of this engine by its id, as [`Outcome::ran_on`] names it.
    pub fn device_info(&self, id: &str) -> Result<DeviceInfo> {
        let none = || Error::new(Code::DeviceMissing, format!("the engine has no device '{id}'"));
        self.places.info(id).cloned().ok_or_else(none)
    }

    /// Counters.
    pub fn stats(&self) -> Stats {
        let at = |c: &AtomicU64| c.load(Ordering::Relaxed);
        Stats {
            cpu: at(&self.counts.cpu),
            gpu: at(&self.counts.gpu),
            fallbacks: at(&self.counts.fallbacks),
            retries: at(&self.counts.retries),
            recoveries: at(&self.places.common.returns),
        }
    }

    /// Where a case would run, and why. [`Engine::run`] decides by the same function.
    pub fn why(&self, case: &Case) -> Result<Explanation> {
        let op = op::find(case.op)?;
        let decided = self.places.decide(op, case);
        Ok(self.places.explain(op, case, &decided))
    }

    /// Runs one op on operands in host memory, where the profile says.
    ///
    /// `inputs` are the read operands in the op's order; a trailing one that is also written (gemm's C) may be left out
    /// where it is not read. A call that fails on a GPU runs on the CPU with fresh copies of the operands, unless the
    /// builder said `no_fallback`; errors of the call itself (shapes, dtypes, attributes) are returned at once.
    ///
    /// A kernel that is used on a device for the first time computes a small known case first ([`judge`]). One that is wrong
    /// there is not used: the CPU makes the call, which counts as a fallback, or it is the error `ResultWrong` where the
    /// device is forced.
    ///
    /// For a call that is made often, [`Engine::route`] leaves out what this does anew each time: making the results.
    pub fn run(&self, op: &str, inputs: &[&HostTensor], attrs: &Attrs) -> Result<Outcome> {
        self.run_unless(op, inputs, attrs, None)
    }

    /// [`Engine::run`], given up with `Cancelled` between its steps once the flag is up.
    fn run_unless(&self, op: &str, inputs: &[&HostTensor], attrs: &Attrs, cancel: Option<&Cancel>) -> Result<Outcome> {
        let hash = route::hash(op, inputs, attrs);
        let known = self.plans.read().unwrap_or_else(PoisonError::into_inner).get(&hash).map(Arc::clone);
        let known = known.filter(|p| p.generation == self.places.generation() && p.is(op, inputs, attrs));
        let planned = match known {
            Some(p) => p,
            None => {
                let fresh = self.planned(call::find(op)?, inputs, attrs)?;
                let mut plans = self.plans.write().unwrap_or_else(PoisonError::into_inner);
                if plans.len() >= MOST_PLANS {
                    plans.clear();
                }
                plans.insert(hash, Arc::clone(&fresh));
                fresh
            }
        };
        self.outcome(&planned, inputs, cancel)
    }

    /// Makes a planned call.
    fn outcome(&self, planned: &Planned, inputs: &[&HostTensor], cancel: Option<&Cancel>) -> Result<Outcome> {
        let mut outputs = planned.outputs()?;
        let begin = std::time::Instant::now();
        let done = self.go(planned, inputs, &mut outputs, cancel)?;
        let seconds = done.seconds.unwrap_or_else(|| begin.elapsed().as_secs_f64());
        Ok(Outcome {
            case: planned.case.clone(),
            outputs,
            ran_on: done.ran.on.to_string(),
            variant: done.variant,
            decision: Arc::clone(&planned.explanation),
            fallback: done.why,
            seconds,
        })
    }

    /// Binds and places a call that is to be made often, with operands of these dtypes and shapes.
    ///
    /// Errors: those of the call itself, as in [`Engine::run`].
    pub fn route(&self, op: &str, inputs: &[&HostTensor], attrs: &Attrs) -> Result<Route<'_>> {
        Ok(Route::new(self, self.planned(call::find(op)?, inputs, attrs)?))
    }

    /// Counts calls that the program makes by other means, so that they are part of the record; nothing if there is none.
    pub fn record(&self, case: &Case, operands: Operands<'_>, calls: u64, on_gpu: bool) {
        if let Some(recorder) = &self.recorder
            && calls > 0
        {
            recorder.counts(case, operands != Operands::Host).add(calls, on_gpu);
        }
    }

    /// Writes what was recorded so far, by all engines of this process that record to the same file. Nothing if nothing is
    /// recorded. Dropping the engine does the same, with a warning instead of an error.
    ///
    /// Errors: `Io`; the file is then as it was.
    pub fn write_record(&self) -> Result<()> {
        self.recorder.as_ref().map_or(Ok(()), |r| r.write())
    }

    /// [`Engine::run`] on GPU number `at`, whatever the profile says.
    fn run_there(&self, op: &'static OpDesc, inputs: &[&HostTensor], attrs: &Attrs, at: usize) -> Result<Outcome> {
        self.outcome(&*self.planned_on(op, inputs, attrs, Some(at))?, inputs, None)
    }

    /// Binds a call and decides where it goes.
    fn planned(&self, op: &'static OpDesc, inputs: &[&HostTensor], attrs: &Attrs) -> Result<Arc<Planned>> {
        self.planned_on(op, inputs, attrs, None)
    }

    /// The same, on a GPU by its number if one is given.
    fn planned_on(
        &self,
        op: &'static OpDesc,
        inputs: &[&HostTensor],
        attrs: &Attrs,
        at: Option<usize>,
    ) -> Result<Arc<Planned>> {
        // Read first: a device that drops out meanwhile makes the plan an old one.
        let generation = self.places.generation();
        let bound = call::bind(op, inputs, attrs)?;
        let decided = match at.and_then(|at| self.places.gpu(at)) {
            Some(gpu) => self.places.forced(op, &bound.case, gpu),
            None => self.places.decide(op, &bound.case),
        };
        let explanation = self.places.explain(op, &bound.case, &decided);
        self.tell(op, &bound.case, &explanation, false, || format!("{explanation}"));
        let label = self.tell_trace(&bound.case, &explanation);
        Ok(Arc::new(Planned {
            op,
            given: inputs.iter().map(|t| (t.dtype, t.shape.clone())).collect(),
            attrs: attrs.clone(),
            results: bound.results,
            gpu: decided.gpu.and_then(|g| self.places.number(g)),
            explanation: Arc::new(explanation),
            generation,
            counts: self.recorder.as_ref().map(|r| r.counts(&bound.case, false)),
            direct: OnceLock::new(),
            tried: OnceLock::new(),
            unfit: OnceLock::new(),
            case: bound.case,
            label,
        }))
    }

    /// Makes a planned call with operands that fit it.
    fn go(
        &self,
        planned: &Planned,
        inputs: &[&HostTensor],
        outputs: &mut [HostTensor],
        cancel: Option<&Cancel>,
    ) -> Result<Done<'_>> {
        let _scope = planned.label.map(Labelled::enter);
        let mut fallback = None;
        self.places.look_after();
        if let Some(gpu) = planned.gpu.and_then(|at| self.places.gpu(at)) {
            match self.on_gpu(gpu, planned, inputs, outputs, cancel) {
                Ok(done) => return Ok(done),
                Err(text) => fallback = Some(text?),
            }
        }
        run::not_cancelled(cancel)?;
        let cpu = &self.places.cpu;
        let on = cpu.device().info().id.as_str();
        let count = || {
            self.counts.cpu.fetch_add(1, Ordering::Relaxed);
            if let Some(counts) = &planned.counts {
                counts.add(1, false);
            }
        };
        if let Some(direct) = planned.direct(self)
            && let Some(ran) = direct.run(self, inputs, outputs)
        {
            ran.map_err(|e| planned.failed(e, on))?;
            count();
            let ran = Ran { on, fallback: fallback.is_some() };
            return Ok(Done { ran, variant: direct.variant, why: fallback, seconds: None });
        }
        let bound = call::bind(planned.op, inputs, &planned.attrs)?;
        let made = compute(
            cpu,
            planned.op,
            &bound,
            outputs,
            self.places.cpu_variant.as_deref(),
            Care::Plain,
            Limits { deadline: DEADLINE, cancel },
        )?;
        count();
        let ran = Ran { on, fallback: fallback.is_some() };
        Ok(Done { ran, variant: made.variant, why: fallback, seconds: Some(made.seconds) })
    }

    /// The call on a GPU; else why the CPU makes it, or the error that ends it.
    fn on_gpu<'e>(
        &'e self,
        gpu: &'e Arc<Gpu>,
        planned: &Planned,
        inputs: &[&HostTensor],
        outputs: &mut [HostTensor],
        cancel: Option<&Cancel>,
    ) -> Result<Done<'e>, Result<String>> {
        let bound = call::bind(planned.op, inputs, &planned.attrs).map_err(Err)?;
        match self.tries_on_gpu(gpu, planned, &bound, outputs, cancel) {
            Ok(made) => {
                gpu.succeeded();
                self.counts.gpu.fetch_add(1, Ordering::Relaxed);
                if let Some(counts) = &planned.counts {
                    counts.add(1, true);
                }
                let ran = Ran { on: &gpu.info.id, fallback: false };
                Ok(Done { ran, variant: made.variant, why: None, seconds: Some(made.seconds) })
            }
            Err((e, Taken::Fallback | Taken::Retry(_))) => {
                let text = e.to_string();
                self.counts.fallbacks.fetch_add(1, Ordering::Relaxed);
                self.places.cpu.device().tap().inspect(|tap| tap.moment(Kind::Fallback, text.clone()));
                let explanation = &planned.explanation;
                self.tell(planned.op, &planned.case, explanation, true, || {
                    format!("{} runs on the CPU instead: {text}", explanation.case)
                });
                Err(Ok(text))
            }
            Err((e, Taken::Fail)) => Err(Err(e)),
        }
    }

    /// Fails (`ResultWrong`) for a kernel that computes wrong there; its first use is tried before.
    fn trust(&self, runner: &Runner, planned: &Planned) -> Result<()> {
        let Some(trials) = &self.trials else { return Ok(()) };
        let wrong = match planned.tried.get() {
            Some(wrong) => wrong,
            None => {
                let wrong = judge::first_use(trials, runner, planned.op, &planned.case, None)?;
                planned.tried.get_or_init(|| wrong)
            }
        };
        wrong.as_ref().map_or(Ok(()), |w| Err(runner.refused(w, planned.op, &planned.case)))
    }

    /// Logs a decision or fallback once per op, dtype, family and device.
    fn tell(
        &self,
        op: &'static OpDesc,
        case: &Case,
        explanation: &Explanation,
        fallback: bool,
        text: impl Fn() -> String,
    ) {
        let key = (op.name, case.dtype, explanation.family, explanation.device.clone(), fallback);
        if !self.told.lock().unwrap_or_else(PoisonError::into_inner).insert(key) {
            return;
        }
        let level = if fallback { log::Level::Warn } else { log::Level::Info };
        log::log!(level, "{}", text());
    }
}

/// What a call on one device gave.
#[derive(Clone, Debug)]
pub struct Computed {
    /// The call as a case; its data is the caller's, so its `fill` means nothing.
    pub case: Case,
    /// Written operands, in order.
    pub outputs: Vec<HostTensor>,
    /// Kernel variant.
    pub variant: &'static str,
    /// Why this variant.
    pub reason: String,
    /// Seconds of the call on the device's clock: copies, launches and the wait; buffers and kernels were made before.
    pub seconds: f64,
}

impl Runner {
    /// Runs one op on operands in host memory on this device and no other, with this variant if one is named.
    ///
    /// Operands as in [`Engine::run`]. Outputs are poisoned before and the bytes around all operands looked at after: a
    /// kernel that writes out of range is `ResultWrong`.
    pub fn run(
        &self,
        op: &'static OpDesc,
        inputs: &[&HostTensor],
        attrs: &Attrs,
        variant: Option<&str>,
    ) -> Result<Computed> {
        let bound = call::bind(op, inputs, attrs)?;
        let mut outputs = call::zeros(&bound.results)?;
        let limits = Limits { deadline: DEADLINE, cancel: None };
        let made = compute(self, op, &bound, &mut outputs, variant, Care::Guarded, limits)?;
        let Made { variant, reason, seconds } = made;
        Ok(Computed { case: bound.case, outputs, variant, reason, seconds })
    }
}

/// Whether a call is only made, or also watched.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Care {
    Plain,
    Guarded,
}

/// When a call is given up.
#[derive(Clone, Copy)]
struct Limits<'a> {
    deadline: Duration,
    cancel: Option<&'a Cancel>,
}

/// How a call on one device was made.
struct Made {
    variant: &'static str,
    reason: String,
    seconds: f64,
}

/// One whole call on one device, its results in `outputs`, which mean nothing after an error.
fn compute(
    runner: &Runner,
    op: &'static OpDesc,
    bound: &Bound<'_>,
    outputs: &mut [HostTensor],
    variant: Option<&str>,
    care: Care,
    limits: Limits<'_>,
) -> Result<Made> {
    let Limits { deadline, cancel } = limits;
    // Before there is memory for it, so that callers who wait for their turn hold none. Longer than a call may take: on a
    // device that hangs the calls before give their turn up first.
    let mut lease = runner.lease_in_turn(deadline.saturating_mul(2))?;
    let prepared = runner.prepare(op, &bound.case, variant)?;
    let inputs: Vec<&HostTensor> = bound.inputs.iter().map(|t| t.as_ref()).collect();
    let clock = runner.device().clock();
    let mut call = || -> Result<f64> {
        let q = lease.queue()?;
        if care == Care::Guarded {
            prepared.poison(q)?;
            q.finish(deadline)?;
        }
        let start = clock.now();
        prepared.call_unless(q, &inputs, outputs, deadline, cancel)?;
        let seconds = clock.now() - start;
        if care == Care::Guarded {
            prepared.check_guards(q)?;
        }
        Ok(seconds)
    };
    match call() {
        Ok(seconds) => Ok(Made { variant: prepared.variant, reason: prepared.reason.clone(), seconds }),
        Err(e) => {
            // What the queue still holds is unknown.
            lease.discard();
            if e.class() == Class::Lost {
                run::bury(prepared, lease);
            }
            Err(e)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::{Backend, Env};
    use crate::device::cpu::{CpuDevice, Pin};
    use crate::device::probe;
    use crate::profile::model::{Curve, Side};
    use crate::profile::{self, Entry, Kind, Profile, ProfileDevice, Rule, Verdict};

    /// A program that never uses a GPU must not pay for one: no driver is opened unless a call could go there.
    #[test]
    fn drivers_are_opened_at_first_need() {
        let x = HostTensor::from_slice(&[1.0f32; 16], &[4, 4]).unwrap();
        let probed = |spec: &str, placement: Placement, op: &str| {
            let engine = Engine::builder().env(Env::default()).profile(spec).placement(placement).build();
            let engine = engine.unwrap();
            let inputs = if op == "gemm" { vec![&x, &x] } else { vec![&x] };
            engine.run(op, &inputs, &Attrs::new()).unwrap();
            engine.places.gpus.get().is_some()
        };
        assert!(!probed("always-cpu", Placement::Automatic, "gemm"));
        assert!(!probed("default", Placement::Automatic, "gemm"), "4x4x4 is below the threshold");
        assert!(!probed("always-gpu", Placement::Automatic, "softmax"), "no entry of it");
        assert!(!probed("always-gpu", Placement::ForceCpu, "gemm"));
        assert!(probed("always-gpu", Placement::Automatic, "gemm"), "else the test sees nothing");
    }

    /// Backends that were asked for devices: those that say why they have none, and those of what was found.
    fn asked(engine: &Engine) -> Vec<Backend> {
        let gpus = engine.places.gpus.get().expect("nothing was probed");
        let absent = gpus.absent.iter().map(|a| a.backend);
        absent.chain(gpus.all.iter().map(|g| g.info.backend)).collect()
    }

    fn measured_on(name: &str, verdict: Verdict) -> Profile {
        let mut p = Profile::new(Kind::Calibrated, "synthetic");
        p.devices.push(ProfileDevice {
            id: "opencl:0".into(),
            uid: "nowhere".into(),
            backend: "opencl".into(),
            name: name.into(),
            ..ProfileDevice::default()
        });
        let fast = Side { fixed_s: 1e-12, flop_s: 1e-15, ..Side::default() };
        let slow = Side { fixed_s: 1.0, ..fast.clone() };
        p.entries.push(Entry {
            op: "relu".into(),
            dtype: "f32".into(),
            family: op::find("relu").unwrap().families[0].name.into(),
            device: "nowhere".into(),
            residency: "always".into(),
            threads: 1,
            cpu_variant: profile::CPU_AUTO.into(),
            verdict,
            unit: "elements".into(),
            verify: "ok".into(),
            curve: Some(Curve { span: [[1.0, 1e9]; 4], cpu: slow, device: fast, ..Curve::default() }),
            ..Entry::default()
        });
        p
    }

    /// Whatever sends a call to a device lets the device's driver be asked whether it is there.
    #[test]
    fn what_a_curve_sends_is_looked_for() {
        let x = HostTensor::from_slice(&[1.0f32; 16], &[16]).unwrap();
        let looked = |rule: Rule, verdict, placement: Placement| {
            let p = Profile { rule, ..measured_on("some GPU", verdict) };
            let engine = Engine::builder().env(Env::default()).profile_value(p).threads(1).placement(placement);
            let engine = engine.build().unwrap();
            let ran = engine.run("relu", &[&x], &Attrs::new()).unwrap();
            assert_eq!(ran.ran_on, "cpu", "the device is nowhere");
            engine.places.gpus.get().is_some().then(|| asked(&engine))
        };
        for verdict in [Verdict::NonMonotone, Verdict::Inconclusive, Verdict::Never] {
            for (rule, placement) in [(Rule::Curve, Placement::Automatic), (Rule::Threshold, Placement::CostBased)] {
                let asked = looked(rule, verdict, placement.clone()).expect("the call goes to the device");
                assert!(!asked.is_empty() && asked.iter().all(|b| *b == Backend::Opencl), "{asked:?}");
            }
            assert_eq!(looked(Rule::Threshold, verdict, Placement::Automatic), None);
        }
        // What nobody looked at, or was wrong, goes nowhere.
        for verdict in [Verdict::Unsafe, Verdict::Unmeasured] {
            assert_eq!(looked(Rule::Curve, verdict, Placement::Automatic), None);
            assert_eq!(looked(Rule::Curve, verdict, Placement::CostBased), None);
        }
    }

    /// A forced device is looked for whatever the profile lists: nothing, or what the program brought.
    #[test]
    fn a_forced_device_is_looked_for_whatever_the_profile_lists() {
        let brought = || CpuDevice::new(1, crate::kernel::Isa::detect(), Pin::Free).unwrap();
        let listed = {
            let mut p = Profile::new(Kind::Calibrated, "synthetic");
            p.devices.push(ProfileDevice::of(crate::device::Device::info(&brought())));
            p
        };
        let force = |p: &Profile, id: &str| {
            let builder = Engine::builder().env(Env::default()).profile_value(p.clone()).device(Arc::new(brought()));
            builder.placement(Placement::ForceGpu(id.into())).build()
        };
        for p in [Profile::new(Kind::Calibrated, "empty"), listed.clone()] {
            // No machine has so many. Where OpenCL is missing altogether, the list of devices ends with the program's own.
            let found = probe::inventory_of(
                &[Backend::Opencl],
                &Env::default(),
                probe::CpuConfig { threads: 1, pin: Pin::Free },
            );
            let here: Vec<String> =
                found.unwrap().found.iter().map(|f| f.info.id.clone()).filter(|i| i != "cpu").collect();
            let e = force(&p, "opencl:9999").unwrap_err().to_string();
            assert!(here.iter().all(|id| e.contains(id)), "{here:?}: {e}");
            for id in &here {
                assert!(force(&p, id).is_ok(), "{id}");
            }
        }
    }

    #[test]
    fn an_engine_is_shared_between_threads() {
        fn shared<T: Send + Sync>() {}
        shared::<Engine>();
        shared::<EngineBuilder>();
        shared::<Route<'_>>();
    }
}
