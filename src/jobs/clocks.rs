//! Whether cards had lowered their clocks when something was measured: asked before it, after it, and meanwhile.
//!
//! Looks fall between samples, never into one: whoever measures waits for the answer. They take at most a fiftieth of the time, and
//! at most ten are made a second. What begins and ends within one sample is seen where a card counts the time for which its clocks
//! were lowered (NVML).

use std::time::{Duration, Instant};

use crate::base::DeviceInfo;
use crate::base::telemetry::{Snapshot, lowered};
use crate::device::telemetry::{ANSWER, Telemetry, Told, card_of, cardless};

/// Least time between two looks while something is measured.
const PACE: Duration = Duration::from_millis(100);
/// A look's own time, so often, passes before the next one.
const SHARE: u32 = 50;

/// Asks cards, if there are any.
#[derive(Debug)]
pub(super) struct Clocks {
    telemetry: Telemetry,
    pace: Duration,
    /// When the next look between samples may be.
    next: Option<Instant>,
}

impl Clocks {
    pub(super) fn new(telemetry: Telemetry) -> Self {
        Clocks { telemetry, pace: PACE, next: None }
    }

    /// Looks between any two samples.
    #[cfg(test)]
    pub(super) fn without_pace(self) -> Self {
        Clocks { pace: Duration::ZERO, ..self }
    }

    /// What cards tell now; nothing is asked where none of the devices is one.
    pub(super) fn look<'d>(&mut self, mut devices: impl Iterator<Item = &'d DeviceInfo>) -> Option<Told> {
        if !devices.any(|d| cardless(d).is_none()) {
            return None;
        }
        let begun = Instant::now();
        let told = self.telemetry.ask(ANSWER);
        // Who does not answer now is not waited for again while something is measured.
        self.next = told
            .is_some()
            .then(|| Instant::now() + self.pace.max(begun.elapsed() * if self.pace.is_zero() { 0 } else { SHARE }));
        told
    }

    /// The same between two samples, if it is time and the last look was answered. Only what speaks against the measurement is
    /// given, so that long ones do not gather answers.
    pub(super) fn between<'d>(&mut self, devices: impl Iterator<Item = &'d DeviceInfo>) -> Option<Told> {
        let due = self.next.is_some_and(|next| Instant::now() >= next);
        let told = if due { self.look(devices) } else { None }?;
        told.cards.iter().any(|card| !lowered(&[card]).is_empty()).then_some(told)
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
    use crate::base::telemetry::Slowed;

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

        // Between two looks, by counters.
        let counted = |power_ns, heat_ns| {
            let mut one = told("GPU-1", Some(0x1));
            one.cards[0].slowed = Slowed { power_ns, heat_ns };
            one
        };
        let flags =
            |a: (u64, u64), b: (u64, u64)| flag(&[counted(Some(a.0), Some(a.1)), counted(Some(b.0), Some(b.1))], &gpu);
        assert_eq!(flags((7, 9), (7, 9)), None, "what was before does not count");
        assert_eq!(flags((7, 9), (8, 9)), Some("throttled: sw-power-cap".into()));
        assert_eq!(flags((7, 9), (7, 20)), Some("throttled: hw-thermal".into()));
        assert_eq!(flag(&[counted(Some(1), None), counted(None, Some(5))], &gpu), None, "one moment tells no growth");
    }

    #[test]
    fn looks_between_samples_wait_their_turn_and_end_with_a_silent_driver() {
        let gpu = DeviceInfo { uid: "GPU-1".into(), class: DeviceClass::Discrete, ..DeviceInfo::ordinary_gpu() };
        let hot = || Told {
            cards: vec![Snapshot { uid: "GPU-1".into(), throttle: Some(0x40), ..Snapshot::default() }],
            ..Told::default()
        };
        let mut clocks = Clocks::new(Telemetry::new(hot));
        assert!(clocks.between([&gpu].into_iter()).is_none(), "not before the first look");
        assert!(clocks.look([&gpu].into_iter()).is_some());
        clocks.next = Some(Instant::now() + Duration::from_secs(3600));
        assert!(clocks.between([&gpu].into_iter()).is_none(), "too early");
        clocks.next = Some(Instant::now());
        assert!(clocks.between([&gpu].into_iter()).is_some());
        assert!(clocks.next.is_some_and(|next| next > Instant::now()), "it takes its share of the time at most");

        let (release, held) = std::sync::mpsc::channel::<()>();
        let mut asked = 0;
        let mut clocks = Clocks::new(Telemetry::new(move || {
            asked += 1;
            if asked == 2 {
                let _ = held.recv();
            }
            assert!(asked < 3, "nobody asks again");
            hot()
        }))
        .without_pace();
        assert!(clocks.look([&gpu].into_iter()).is_some());
        assert!(clocks.between([&gpu].into_iter()).is_none(), "no answer in time");
        assert!(clocks.between([&gpu].into_iter()).is_none(), "and it is not waited for again");
        drop(release);
    }

    #[test]
    fn nothing_is_asked_without_a_card() {
        let mut clocks = Clocks::new(Telemetry::new(|| panic!("asked")));
        let cpu = DeviceInfo { class: DeviceClass::Cpu, ..DeviceInfo::ordinary_gpu() };
        assert!(clocks.look([&cpu].into_iter()).is_none());
    }
}
