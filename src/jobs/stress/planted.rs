//! What `--inject` plants, so that a soak can be seen to find it.

use std::sync::{Arc, Mutex, PoisonError};

use crate::base::telemetry::Snapshot;
use crate::base::{Code, DeviceInfo, Error, Result};
use crate::device::Device;
use crate::device::faulty::{FaultPlan, Faulty, Tally};

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

/// Before the name of the only device that a part of a plan is for.
const ON_DEVICE: &str = "@device=";

impl Planted {
    /// Reads `--inject`: `zero`, `crash`, `throttle`, or a plan of the faulty device such as `leak` or `bitflip@every=50`; each
    /// part may end in `@device=ID`, which [`Planted::on_device`] looks at. `BadArgument` lists what there is.
    pub fn parse(text: Option<&str>) -> Result<Self> {
        let plain = text
            .map(|t| t.split('+').map(|p| p.split_once(ON_DEVICE).map_or(p, |p| p.0)).collect::<Vec<_>>().join("+"));
        match plain.as_deref() {
            None => Ok(Planted::Nothing),
            Some("zero") => Ok(Planted::Zero),
            Some("crash") => Ok(Planted::Crash),
            Some("throttle") => Ok(Planted::Throttle),
            Some(text) => FaultPlan::parse(text)
                .map(Planted::Device)
                .map_err(|e| Error::new(e.code(), format!("{} crash throttle zero", e.detail()))),
        }
    }

    /// What of a text is for this device: a part with `@device=ID` is for that device alone, by its id or uid. `None`: nothing.
    pub fn on_device(text: Option<&str>, device: &DeviceInfo) -> Option<String> {
        let is = |name: &str| name == device.id || name.eq_ignore_ascii_case(&device.uid);
        let part = |part: &str| match part.split_once(ON_DEVICE) {
            Some((what, name)) => is(name).then(|| what.to_string()),
            None => Some(part.to_string()),
        };
        let parts: Vec<_> = text?.split('+').filter_map(part).collect();
        (!parts.is_empty()).then(|| parts.join("+"))
    }

    /// Refuses what cannot be read, and what is for a device that is not among these.
    ///
    /// Errors: those of [`Planted::parse`], and `DeviceMissing`: a fault that nobody meets would let a run pass.
    pub fn check(text: Option<&str>, devices: &[DeviceInfo]) -> Result<()> {
        for part in text.into_iter().flat_map(|t| t.split('+')) {
            let Some((_, name)) = part.split_once(ON_DEVICE) else { continue };
            if !devices.iter().any(|d| Self::on_device(Some(part), d).is_some()) {
                let there: Vec<_> = devices.iter().map(|d| d.id.as_str()).collect();
                let why =
                    format!("the fault '{part}' is for '{name}', which takes no part; there are: {}", there.join(" "));
                return Err(Error::new(Code::DeviceMissing, why));
            }
        }
        Ok(())
    }

    /// Cycles before the process aborts, if it shall.
    pub fn crash_after(&self) -> Option<u64> {
        (*self == Planted::Crash).then_some(CRASH_AFTER)
    }

    /// What the card is made to tell, if the fault is the card's.
    pub fn card(&self) -> Option<Snapshot> {
        let told = || Snapshot { source: "injected".into(), throttle: Some(COMBINED), ..Snapshot::default() };
        (*self == Planted::Throttle).then(told)
    }
}

/// A fault in the devices of one worker, and whether it came up.
#[derive(Debug)]
pub(super) struct Plant {
    what: Planted,
    tallies: Mutex<Vec<Tally>>,
}

impl Plant {
    /// Nothing is planted yet.
    pub(super) fn new(what: Planted) -> Self {
        Plant { what, tallies: Mutex::default() }
    }

    /// What is planted.
    pub(super) fn what(&self) -> &Planted {
        &self.what
    }

    /// The device, with the fault if it is one of the device's.
    pub(super) fn plant(&self, device: Arc<dyn Device>) -> Arc<dyn Device> {
        let Planted::Device(plan) = &self.what else { return device };
        let faulty = Faulty::new(device, plan.clone());
        self.tallies.lock().unwrap_or_else(PoisonError::into_inner).push(faulty.tally());
        Arc::new(faulty)
    }

    /// The parts of the fault that no device met until now, joined by `+`; asked by a worker that got to its end, which no
    /// planted crash lets it. Without such a part the phase says something about its detectors.
    pub(super) fn unmet(&self) -> Option<String> {
        let plan = match &self.what {
            Planted::Device(plan) => plan,
            Planted::Crash => return Some("crash".into()),
            // Both are so from the start.
            Planted::Nothing | Planted::Zero | Planted::Throttle => return None,
        };
        let tallies = self.tallies.lock().unwrap_or_else(PoisonError::into_inner);
        let hits: Vec<Vec<u64>> = tallies.iter().map(Tally::hits).collect();
        let missed = |at: &usize| hits.iter().all(|h| h.get(*at).is_none_or(|n| *n == 0));
        let parts = plan.text.split('+').enumerate().filter(|(at, _)| missed(at));
        let parts: Vec<&str> = parts.map(|p| p.1).collect();
        (!parts.is_empty()).then(|| parts.join("+"))
    }
}

#[cfg(test)]
mod tests {
    use crate::device::{MemoryKind, sim};

    use super::*;

    fn card(at: usize) -> DeviceInfo {
        DeviceInfo { id: format!("cuda:{at}"), uid: format!("GPU-{at}a"), ..DeviceInfo::ordinary_gpu() }
    }

    #[test]
    fn a_fault_may_be_for_one_device_alone() {
        let on = |text, at| Planted::on_device(Some(text), &card(at));
        assert_eq!(on("slow@from=9@device=cuda:1", 1).as_deref(), Some("slow@from=9"));
        assert_eq!(on("slow@from=9@device=cuda:1", 0), None);
        assert_eq!(on("slow@device=gpu-1A+leak", 1).as_deref(), Some("slow+leak"), "by its uid");
        assert_eq!(on("slow@device=cuda:1+leak", 0).as_deref(), Some("leak"));
        assert_eq!(on("zero", 7).as_deref(), Some("zero"));
        assert_eq!(Planted::on_device(None, &card(0)), None);
        assert_eq!(Planted::parse(Some("crash@device=cuda:0")).unwrap(), Planted::Crash);
        assert_eq!(Planted::parse(Some("sloow@device=cuda:0")).unwrap_err().code(), Code::BadArgument);
    }

    #[test]
    fn a_fault_that_no_device_met_is_told() {
        let plant = |text| Plant::new(Planted::parse(text).unwrap());
        let device = || sim::open("textbook").unwrap().1;
        for text in [None, Some("zero"), Some("throttle")] {
            assert_eq!(plant(text).unmet(), None, "{text:?}");
        }
        assert_eq!(plant(Some("crash")).unmet().as_deref(), Some("crash"), "the worker lives");
        let p = plant(Some("alloc@nth=3+leak@nth=2+hang"));
        assert_eq!(p.unmet().as_deref(), Some("alloc@nth=3+leak@nth=2+hang"), "no device at all");
        // Each device counts for itself; what one of them met is met.
        for (allocations, unmet) in [(1, "alloc@nth=3+leak@nth=2+hang"), (2, "alloc@nth=3+hang"), (3, "hang")] {
            let device = p.plant(device());
            let made = (0..allocations).filter(|_| device.alloc(16, MemoryKind::Device).is_ok()).count();
            drop(device);
            assert_eq!((p.unmet().as_deref(), made), (Some(unmet), allocations.min(2)));
        }
        let p = plant(Some("alloc@nth=1"));
        assert!(p.plant(device()).alloc(16, MemoryKind::Device).is_err());
        assert_eq!(p.unmet(), None);
    }

    #[test]
    fn a_fault_that_nobody_would_meet_is_refused() {
        let cards = [card(0), card(1)];
        assert!(Planted::check(None, &cards).is_ok() && Planted::check(Some("leak"), &cards).is_ok());
        assert!(Planted::check(Some("leak@device=cuda:1"), &cards).is_ok());
        let e = Planted::check(Some("leak+slow@device=cuda:2"), &cards).unwrap_err();
        assert_eq!(e.code(), Code::DeviceMissing);
        assert!(e.to_string().contains("'cuda:2', which takes no part; there are: cuda:0 cuda:1"), "{e}");
    }
}
