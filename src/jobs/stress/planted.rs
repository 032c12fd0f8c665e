//! What `--inject` plants, so that a soak can be seen to find it.

use std::sync::Arc;

use crate::base::telemetry::Snapshot;
use crate::base::{Error, Result};
use crate::device::Device;
use crate::device::faulty::{FaultPlan, Faulty};

/// A fault of the worker itself, of the device, or of its card.
#[derive(Clone, Debug, PartialEq)]
pub enum Planted {
    /// Nothing.
    Nothing,
    /// The scenario does no work.
    Zero,
    /// The process aborts in the middle of the work.
    Crash,
    /// The card tells of clocks that it lowered for several reasons at once.
    Throttle,
    /// The device misbehaves by this plan.
    Device(FaultPlan),
}

/// Cycles before a planted crash.
const CRASH_AFTER: u64 = 200;
/// Idle, power cap, software's and hardware's thermal slow-down at once: none of them is alone in the mask.
const COMBINED: u64 = 0x1 | 0x4 | 0x20 | 0x40;

impl Planted {
    /// Reads `--inject`: `zero`, `crash`, `throttle`, or a plan of the faulty device such as `leak` or `bitflip@every=50`.
    /// `BadArgument` lists what there is.
    pub fn parse(text: Option<&str>) -> Result<Self> {
        match text {
            None => Ok(Planted::Nothing),
            Some("zero") => Ok(Planted::Zero),
            Some("crash") => Ok(Planted::Crash),
            Some("throttle") => Ok(Planted::Throttle),
            Some(text) => FaultPlan::parse(text)
                .map(Planted::Device)
                .map_err(|e| Error::new(e.code(), format!("{} crash throttle zero", e.detail()))),
        }
    }

    /// Cycles before the process aborts, if it shall.
    pub fn crash_after(&self) -> Option<u64> {
        (*self == Planted::Crash).then_some(CRASH_AFTER)
    }

    /// The device, with the fault if it is one of the device's.
    pub fn plant(&self, device: Arc<dyn Device>) -> Arc<dyn Device> {
        match self {
            Planted::Device(plan) => Arc::new(Faulty::new(device, plan.clone())),
            _ => device,
        }
    }

    /// What the card is made to tell, if the fault is the card's.
    pub fn card(&self) -> Option<Snapshot> {
        let told = || Snapshot { source: "injected".into(), throttle: Some(COMBINED), ..Snapshot::default() };
        (*self == Planted::Throttle).then(told)
    }
}
