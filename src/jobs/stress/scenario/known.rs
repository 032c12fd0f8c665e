//! A call whose right answer is known to the bit, and an engine that must make it on the phase's device.

use std::sync::Arc;
use std::time::Duration;

use crate::base::{Attr, Attrs, Backend, Code, DeviceInfo, Env, Error, HostTensor, Result};
use crate::device::probe::Select;
use crate::engine::{Engine, EngineBuilder, KernelCache, Outcome, Placement, RecoveryConfig};

use super::{Ctx, Open};

/// Rows and columns of the matrices.
const SIZE: usize = 24;
/// Rest of a device after its first failure: a scenario has seconds, not minutes. The engine of a simulated machine knows its
/// virtual time only, which its calls move on by microseconds.
const REST: Duration = Duration::from_millis(20);
const VIRTUAL_REST: Duration = Duration::from_micros(20);

/// C += A B of small whole numbers: every device and every order of the sums give the same bits, and a call that was made
/// twice on one C shows.
pub(super) struct Known {
    operands: [HostTensor; 3],
    attrs: Attrs,
    want: Vec<f32>,
}

impl Known {
    pub(super) const OP: &str = "gemm";

    /// Matrices that depend on `seed`.
    pub(super) fn new(seed: u64) -> Result<Self> {
        let value = |i: usize, shift: u64| ((i as u64 * 5 + seed % 1021 + shift) % 7) as f32 - 3.0;
        let whole = |shift| (0..SIZE * SIZE).map(|i| value(i, shift)).collect::<Vec<f32>>();
        let (a, b, c) = (whole(0), whole(2), whole(5));
        let element = |i: usize| {
            let (row, column) = (i / SIZE, i % SIZE);
            (0..SIZE).map(|k| a[row * SIZE + k] * b[k * SIZE + column]).sum::<f32>() + c[i]
        };
        let want = (0..SIZE * SIZE).map(element).collect();
        let tensor = |v: &[f32]| HostTensor::from_slice(v, &[SIZE as u64, SIZE as u64]);
        let operands = [tensor(&a)?, tensor(&b)?, tensor(&c)?];
        Ok(Known { operands, attrs: Attrs::new().with("beta", Attr::Float(1.0)), want })
    }

    /// Bytes of the result.
    pub(super) fn bytes(&self) -> u64 {
        4 * self.want.len() as u64
    }

    /// Makes the call. What is wrong with its result is counted.
    pub(super) fn call(&self, ctx: &Ctx<'_>, engine: &Engine) -> Result<Outcome> {
        let (out, wrong) = self.made(engine)?;
        if let Some(wrong) = wrong {
            ctx.meter.mismatch(wrong);
        }
        Ok(out)
    }

    /// Makes the call; what is wrong with its result, in words.
    pub(super) fn made(&self, engine: &Engine) -> Result<(Outcome, Option<String>)> {
        let [a, b, c] = &self.operands;
        let out = engine.run(Self::OP, &[a, b, c], &self.attrs)?;
        let got = match out.outputs.first() {
            Some(y) => y.to_vec::<f32>()?,
            None => Vec::new(),
        };
        let what = if got.len() == self.want.len() {
            let at = (0..got.len()).find(|i| got[*i] != self.want[*i]);
            at.map(|i| format!("element {i} is {:e}, not {:e}", got[i], self.want[i]))
        } else {
            Some(format!("{} elements", got.len()))
        };
        let wrong = what.map(|what| format!("{} on {}: {what}", out.case, out.ran_on));
        Ok((out, wrong))
    }
}

/// Settings of an engine whose calls go to the device that `open` gives, and to no other.
pub(super) fn engine(ctx: &Ctx<'_>, open: Open) -> EngineBuilder {
    engine_of(ctx.device.info(), open, &ctx.kernels, ctx.deadline())
}

/// The same without a phase.
pub(super) fn engine_of(info: &DeviceInfo, open: Open, kernels: &KernelCache, deadline: Duration) -> EngineBuilder {
    let rest = if info.backend == Backend::Sim { VIRTUAL_REST } else { REST };
    let there = Placement::ForceGpu(info.uid.clone());
    Engine::builder()
        .env(Env::default())
        .threads(1)
        .without_trials()
        .kernel_cache(kernels.clone())
        .deadline(deadline)
        .recovery(RecoveryConfig { first: rest, ..RecoveryConfig::default() })
        .devices(Select::Named(Vec::new()))
        .device_from(move || open())
        .placement(there)
}

/// The same on the device that is open.
pub(super) fn engine_here(ctx: &Ctx<'_>) -> EngineBuilder {
    let device = Arc::clone(&ctx.device);
    engine(ctx, Arc::new(move || Ok(Arc::clone(&device))))
}

/// Whether no call had to be made twice: an engine hides what a soak must tell.
pub(super) fn settled(engine: &Engine) -> Result<()> {
    match engine.stats().retries {
        0 => Ok(()),
        n => Err(Error::new(Code::LaunchFailed, format!("calls that failed and were made again: {n}"))),
    }
}
