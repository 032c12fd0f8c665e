//! Whether cards had lowered their clocks when something was measured: asked before it and after it.

use crate::base::DeviceInfo;
use crate::base::telemetry::{Snapshot, lowered};
use crate::device::telemetry::{ANSWER, Telemetry, Told, card_of, cardless};

/// Asks cards, if there are any.
#[derive(Debug)]
pub(super) struct Clocks(pub(super) Telemetry);

impl Clocks {
    /// What cards tell now; nothing is asked where none of the devices is one.
    pub(super) fn look<'d>(&mut self, mut devices: impl Iterator<Item = &'d DeviceInfo>) -> Option<Told> {
        devices.any(|d| cardless(d).is_none()).then(|| self.0.ask(ANSWER)).flatten()
    }
}

/// Begins the flag of a row whose card had lowered its clocks; the reasons follow.
pub(super) const THROTTLED: &str = "throttled: ";

/// The flag of a row: `throttled: ..` with the reasons, `clocks-not-told` of a card that does not say; none for clocks as they
/// should be, and for devices that are no cards.
pub(super) fn flag(told: &[Told], device: &DeviceInfo) -> Option<String> {
    if cardless(device).is_some() {
        return None;
    }
    let moments: Vec<&Snapshot> = told.iter().filter_map(|t| card_of(t, device).ok()).collect();
    let words = lowered(&moments);
    if !words.is_empty() {
        Some(format!("{THROTTLED}{}", words.join(" ")))
    } else if moments.iter().any(|m| m.throttle.is_some()) {
        None
    } else {
        Some("clocks-not-told".into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::DeviceClass;

    #[test]
    fn rows_of_a_slowed_card_are_flagged() {
        let of = |class| DeviceInfo { uid: "GPU-1".into(), class, ..DeviceInfo::ordinary_gpu() };
        let gpu = of(DeviceClass::Discrete);
        let told = |uid: &str, throttle: Option<u64>| Told {
            cards: vec![Snapshot { uid: uid.into(), throttle, ..Snapshot::default() }],
            ..Told::default()
        };
        let (idle, slowed) = (told("GPU-1", Some(0x1)), told("GPU-1", Some(0x44)));
        assert_eq!(flag(&[idle.clone(), idle.clone()], &gpu), None);
        let words = Some("throttled: sw-power-cap hw-thermal".to_string());
        assert_eq!(flag(&[idle.clone(), slowed.clone()], &gpu), words);
        assert_eq!(flag(&[slowed.clone(), idle.clone()], &gpu), words, "before the samples, too");
        let silent = Some("clocks-not-told".to_string());
        assert_eq!(flag(&[told("GPU-1", None)], &gpu), silent);
        assert_eq!(flag(&[told("GPU-2", Some(0x44))], &gpu), silent, "another card's");
        assert_eq!(flag(&[], &gpu), silent, "no answer in time");
        assert_eq!(flag(&[slowed], &of(DeviceClass::Software)), None);
    }

    #[test]
    fn nothing_is_asked_without_a_card() {
        let mut clocks = Clocks(Telemetry::new(|| panic!("asked")));
        let cpu = DeviceInfo { class: DeviceClass::Cpu, ..DeviceInfo::ordinary_gpu() };
        assert!(clocks.look([&cpu].into_iter()).is_none());
    }
}
