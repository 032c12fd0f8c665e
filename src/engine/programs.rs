//! The programs of a device: built or loaded at first need, kept for the next process, forgotten where they compute wrong.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::base::record::KernelsRecord;
use crate::base::{Case, Code, DType, Error, Result};
use crate::device::{Health, Program, Source};
use crate::kernel::{self, Body, Choice, source};
use crate::op::{self, OpDesc};

use super::Engine;
use super::cache::{self, Counters, KernelCache};
use super::run::Runner;
use super::trials::Fault;

/// What a runner has built so far.
#[derive(Default)]
pub(super) struct Programs {
    made: Mutex<HashMap<ProgramKey, Program>>,
    kernels: KernelCache,
    counters: Arc<Counters>,
}

#[derive(Clone, PartialEq, Eq, Hash)]
enum ProgramKey {
    Text(u64, String),
    Native(usize, DType),
    Routine(kernel::Routine, DType),
}

fn lock<T>(m: &Mutex<T>) -> MutexGuard<'_, T> {
    m.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Runner {
    /// Kernels in the common C dialect check their own accesses from now on (`kernel::debug`); slow, for finding faults.
    pub fn watching(mut self) -> Self {
        self.watch = true;
        self
    }

    /// Programs are loaded from this cache where it has them, and kept in it where it may be written.
    pub fn keeping(mut self, kernels: KernelCache) -> Self {
        self.programs.kernels = kernels;
        self
    }

    /// Number of programs built so far and the seconds that took; flat after warm-up.
    pub fn builds(&self) -> (u64, f64) {
        self.programs.counters.builds()
    }

    /// What became of its programs so far.
    pub fn kernels(&self) -> KernelsRecord {
        self.programs.counters.record(self.device.info(), &self.programs.kernels)
    }

    /// Builds everything that a case needs, as [`Runner::prepare`] would, and runs nothing. Gives the number of its programs;
    /// 0 for what the queue does itself.
    ///
    /// Errors: those of [`Runner::prepare`] that no memory is needed for.
    pub fn precompile(&self, op: &'static OpDesc, case: &Case, variant: Option<&str>) -> Result<usize> {
        let info = self.device.info();
        let named = |e: Error| e.op(op.name).shape(&case.shape_text()).device(&info.id);
        let choice = kernel::choose(op.kernels, case, info, variant)?;
        if matches!(choice.kernel.body, Body::Action(_)) {
            return Ok(0);
        }
        choice.plan.steps.iter().try_for_each(|step| self.program(&choice, step).map(drop)).map_err(named)?;
        Ok(choice.plan.steps.len())
    }

    /// Forgets the programs of a case that computes wrong: here, so that the next use builds them from their source, and in
    /// the kernel cache, for good.
    ///
    /// Errors: those of choosing a kernel.
    pub fn distrust(&self, op: &'static OpDesc, case: &Case, variant: Option<&str>) -> Result<()> {
        let info = self.device.info();
        let choice = kernel::choose(op.kernels, case, info, variant)?;
        if matches!(choice.kernel.body, Body::Native(_) | Body::Routine(_) | Body::Action(_)) {
            return Ok(());
        }
        for step in &choice.plan.steps {
            let text = source::assemble(choice.kernel, step, choice.lang)?;
            lock(&self.programs.made).remove(&ProgramKey::Text(text.hash(), text.entry.clone()));
            self.programs.kernels.distrust(info, &text, choice.kernel.variant, step.dtype);
        }
        Ok(())
    }

    /// Forgets all programs that it has built: the next call of each builds it again.
    pub fn forget(&self) {
        let made = std::mem::take(&mut *lock(&self.programs.made));
        // Released outside of the lock.
        drop(made);
    }

    /// The error of a call whose kernel computes wrong. The next process shall see what its compiler makes.
    pub(super) fn refused(&self, fault: &Fault, op: &'static OpDesc, case: &Case) -> Error {
        self.distrust(op, case, None).err().unwrap_or_else(|| fault.error(self.device.info()))
    }

    /// The program of a step, built if it was not before.
    pub(super) fn program(&self, choice: &Choice, step: &kernel::Step) -> Result<Program> {
        let text;
        let (key, src) = match choice.kernel.body {
            Body::Native(f) => (ProgramKey::Native(f as usize, step.dtype), Source::Native(f, step.dtype)),
            Body::Routine(r) => (ProgramKey::Routine(r, step.dtype), Source::Routine(r, step.dtype)),
            Body::C(_) | Body::Opencl(_) | Body::Cuda(_) | Body::Wgsl(_) => {
                text = match self.watch {
                    true => source::assemble_watched(choice.kernel, step, choice.lang)?,
                    false => None,
                }
                .map_or_else(|| source::assemble(choice.kernel, step, choice.lang), Ok)?;
                (ProgramKey::Text(text.hash(), text.entry.clone()), Source::Text(&text))
            }
            Body::Action(_) => return Err(Error::new(Code::Internal, "an action has no program")),
        };
        if let Some(p) = lock(&self.programs.made).get(&key) {
            self.programs.counters.hit();
            self.device.tap().inspect(|tap| tap.hit("program", 0));
            return Ok(p.clone());
        }
        // Built outside the lock: two threads may build the same program once, but none waits for another's compiler.
        let of = (choice.kernel.variant, step.dtype);
        // Texts that watch themselves are for finding a fault, once.
        let kernels = if self.watch { &KernelCache::off() } else { &self.programs.kernels };
        let program = kernels.build(&*self.device, src, of, &self.programs.counters)?;
        Ok(lock(&self.programs.made).entry(key).or_insert(program).clone())
    }
}

impl Engine {
    /// What became of the programs of each device that was opened, the CPU's first.
    pub fn kernels(&self) -> Vec<KernelsRecord> {
        std::iter::once(self.places.cpu.kernels()).chain(self.places.told()).collect()
    }

    /// Forgets all programs of all devices ([`Runner::forget`]).
    pub fn forget_kernels(&self) {
        self.places.cpu.forget();
        let gpus = self.places.gpus.get();
        gpus.iter().flat_map(|g| &g.all).filter_map(|g| g.at_hand()).for_each(|r| r.forget());
    }

    /// Builds what these cases need where they would run, and runs nothing: the first call is then as fast as the next. Gives
    /// the number of programs, those that were there already among them.
    ///
    /// ```
    /// use gpuctl::base::{Attrs, DType, Fill};
    /// use gpuctl::engine::Engine;
    /// use gpuctl::op;
    ///
    /// # fn main() -> gpuctl::base::Result<()> {
    /// let engine = Engine::builder().profile("always-cpu").build()?;
    /// let case = |name, n| op::find(name)?.case(DType::F32, &[n], Attrs::new(), Fill::Uniform);
    /// assert_eq!(engine.precompile(&[case("relu", 1000)?, case("exp", 64)?])?, 2);
    /// let built = engine.kernels()[0].builds;
    /// assert_eq!(engine.precompile(&[case("relu", 500_000)?])?, 1);
    /// assert_eq!(engine.kernels()[0].builds, built); // any length takes the same program
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// Errors: those of building, on the first case that has one. A device that does not open is one, too, though
    /// [`Engine::run`] would use the CPU then.
    pub fn precompile(&self, cases: &[Case]) -> Result<usize> {
        let mut programs = 0;
        for case in cases {
            let op = op::find(case.op)?;
            let gpu = self.places.decide(op, case).gpu;
            programs += match gpu {
                Some(gpu) => gpu.runner()?.precompile(op, case, None)?,
                None => self.places.cpu.precompile(op, case, self.places.cpu_variant.as_deref())?,
            };
        }
        Ok(programs)
    }
}

impl Drop for Runner {
    /// What it built is kept first, if that is soon done. A device that is lost is asked for nothing more.
    fn drop(&mut self) {
        match self.device.health() {
            Health::Usable => {
                self.programs.kernels.flush(cache::FLUSH);
            }
            Health::Lost(_) => self.programs.kernels.abandon(),
        }
    }
}
