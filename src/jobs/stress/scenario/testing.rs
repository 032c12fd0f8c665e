//! A phase without a worker around it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::base::Cancel;
use crate::device::Device;
use crate::engine::KernelCache;

use super::{Ctx, Meter};

/// Does something as a phase of a second on a device; what it returned, and the lines that the parent would have read.
pub(super) fn on<R>(device: Arc<dyn Device>, work: impl FnOnce(&Ctx<'_>) -> R) -> (R, String) {
    let mut out = Vec::new();
    let done = {
        let meter = Meter::new(&mut out, 1, Cancel::new(), Duration::from_secs(60), None);
        let same = Arc::clone(&device);
        work(&Ctx {
            device,
            open: Arc::new(move || Ok(Arc::clone(&same))),
            seconds: 1.0,
            threads: 1,
            sharing: 1,
            seed: 1,
            start: Instant::now(),
            kernels: KernelCache::off(),
            victim: None,
            meter: &meter,
        })
    };
    (done, String::from_utf8_lossy(&out).into_owned())
}
