//! A call on a GPU, tried again where that may help; what is done about each error, the program being told.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::base::{Cancel, Class, Code, Error, HostTensor, Result};

use super::call::Bound;
use super::gpu::Gpu;
use super::route::Planned;
use super::{Care, Engine, ErrorEvent, Limits, Made, Placement, Runner, Taken, compute};

impl Engine {
    /// The call on a GPU, again where that may help, each time with fresh copies of the operands; else the last error and what
    /// is done about it.
    pub(super) fn tries_on_gpu(
        &self,
        gpu: &Arc<Gpu>,
        planned: &Planned,
        bound: &Bound<'_>,
        outputs: &mut [HostTensor],
        cancel: Option<&Cancel>,
    ) -> Result<Made, (Error, Taken)> {
        let mut attempt = 0;
        loop {
            let mut used = None;
            // The same text will not compile the next time either, and finding that out takes longest.
            let unfit = planned.unfit.get().is_some();
            let e = match self.once_on_gpu(gpu, planned, (bound, outputs), cancel, &mut used) {
                Ok(made) => return Ok(made),
                Err(e) => e,
            };
            // Who forces a device is not served by another one in its place.
            let forced = matches!(self.places.placement, Placement::ForceGpu(_)) && e.code() == Code::ResultWrong;
            let taken = self.hooks.decide(&e, if unfit { u32::MAX } else { attempt }, self.strict || forced);
            if let (Some(runner), false) = (&used, matches!(taken, Taken::Retry(_))) {
                if e.code() == Code::CompileFailed {
                    let _ = planned.unfit.set((e.code(), e.detail().to_string()));
                }
                gpu.failed(runner, planned.op, &planned.case, &e);
            }
            let (device, case, quarantined) = (gpu.info.id.as_str(), &planned.case, gpu.out().is_some());
            self.hooks.tell(&ErrorEvent { error: &e, device, case, attempt, taken, quarantined });
            let Taken::Retry(after) = taken else { return Err((e, taken)) };
            if let (Class::Oom, Some(pool)) = (e.class(), used.as_ref().and_then(|r| r.pool())) {
                pool.trim();
            }
            self.counts.retries.fetch_add(1, Ordering::Relaxed);
            if !after.is_zero() {
                used.map_or_else(|| self.places.common.clock.clone(), |r| r.device().clock()).sleep(after);
            }
            attempt += 1;
        }
    }

    /// The call on a GPU, once; `used` becomes the runner.
    fn once_on_gpu(
        &self,
        gpu: &Arc<Gpu>,
        planned: &Planned,
        (bound, outputs): (&Bound<'_>, &mut [HostTensor]),
        cancel: Option<&Cancel>,
        used: &mut Option<Arc<Runner>>,
    ) -> Result<Made> {
        if let Some((code, why)) = planned.unfit.get() {
            return Err(Error::new(*code, format!("{why} (earlier; not tried again)")).device(&gpu.info.id));
        }
        let runner = used.insert(gpu.runner()?);
        self.trust(runner, planned)?;
        let limits = Limits { deadline: self.places.common.deadline, cancel };
        compute(runner, planned.op, bound, outputs, None, Care::Plain, limits)
    }
}
