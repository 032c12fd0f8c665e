//! Before a card is worked hard: is it somebody else's, and can its heat be watched? Asked once, before any work.

use std::path::Path;

use crate::base::telemetry::GpuProcess;
use crate::base::{Code, DeviceInfo, Error, Result, units};
use crate::device::telemetry::{FIRST, Telemetry, Told, card_of, cardless};

/// Degrees below the limit at which a paused phase goes on.
pub const COOLER: f64 = 5.0;

/// What cards told before the work.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Before {
    /// Cards that others use: device id and these processes.
    pub used: Vec<(String, Vec<GpuProcess>)>,
    /// What is not known, with the reason.
    pub unknown: Vec<String>,
}

impl Before {
    /// Who uses what: `cuda:0: pid 4711 (2.10 GiB)`; `None` if nobody does.
    pub fn words(&self) -> Option<String> {
        let text = |p: &GpuProcess| match p.bytes {
            Some(bytes) => format!("pid {} ({})", p.pid, units::bytes(bytes)),
            None => format!("pid {}", p.pid),
        };
        let of = |(id, pids): &(String, Vec<GpuProcess>)| {
            format!("{id}: {}", pids.iter().map(text).collect::<Vec<_>>().join(", "))
        };
        (!self.used.is_empty()).then(|| self.used.iter().map(of).collect::<Vec<_>>().join("; "))
    }
}

/// Asks all cards of this system, or of a tree that looks like `/`. `None` if there is no answer in time.
pub fn ask(devices: &[DeviceInfo], tree: Option<&Path>) -> Option<Told> {
    if devices.iter().all(|d| cardless(d).is_some()) {
        return Some(Told::default());
    }
    tree.map_or_else(Telemetry::users, |t| Telemetry::tree(t.into())).ask(FIRST)
}

/// Who else uses the devices' cards. `own` is this process; its workers must not run yet.
pub fn users(devices: &[DeviceInfo], told: Option<&Told>, own: u32) -> Before {
    let mut before = Before::default();
    for device in devices.iter().filter(|d| cardless(d).is_none()) {
        let what = format!("whether other processes use {}", device.id);
        let card = match told.map(|t| card_of(t, device)) {
            Some(Ok(card)) => card,
            Some(Err(why)) => {
                before.unknown.push(format!("{what}: {why}"));
                continue;
            }
            None => {
                before.unknown.push(format!("{what}: no answer within {} s", FIRST.as_secs()));
                continue;
            }
        };
        match &card.processes {
            None => before.unknown.push(format!("{what}: {} does not tell", card.source)),
            Some(all) => {
                let others: Vec<_> = all.iter().filter(|p| p.pid != own).cloned().collect();
                if !others.is_empty() {
                    before.used.push((device.id.clone(), others));
                }
            }
        }
    }
    before
}

/// Whether a limit of temperature can be kept: each card must tell its temperature, and at least one device must be a card.
/// Gives the devices for which the limit means nothing. Errors: `FeatureUnsupported`, with the reason.
pub fn temperatures(devices: &[DeviceInfo], told: Option<&Told>, max: f64) -> Result<Vec<String>> {
    let mut exempt = Vec::new();
    for device in devices {
        if let Some(why) = cardless(device) {
            exempt.push(format!("{}: --max-temp means nothing here: {why}", device.id));
            continue;
        }
        let why = match told.map(|t| card_of(t, device)) {
            Some(Ok(card)) if card.temperature_c.is_some() => continue,
            Some(Ok(card)) => format!("{} does not tell its temperature", card.source),
            Some(Err(why)) => why,
            None => format!("no answer within {} s", FIRST.as_secs()),
        };
        return Err(unwatched(max, &device.id, &why));
    }
    match devices.first().and_then(cardless) {
        Some(why) if exempt.len() == devices.len() => Err(unwatched(max, &devices[0].id, why)),
        _ => Ok(exempt),
    }
}

fn unwatched(max: f64, id: &str, why: &str) -> Error {
    let text = format!("--max-temp {max:.0}: the temperature of {id} is not known: {why}; leave the limit out");
    Error::new(Code::FeatureUnsupported, text).device(id)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::DeviceClass;
    use crate::base::telemetry::Snapshot;

    fn card(uid: &str, class: DeviceClass) -> DeviceInfo {
        DeviceInfo { id: format!("cuda:{uid}"), uid: uid.into(), class, ..DeviceInfo::ordinary_gpu() }
    }

    fn told(processes: Option<Vec<GpuProcess>>, temperature_c: Option<f64>) -> Told {
        let card = Snapshot { uid: "A".into(), source: "nvml".into(), processes, temperature_c, ..Snapshot::default() };
        Told { cards: vec![card], ..Told::default() }
    }

    #[test]
    fn others_are_named_and_silence_is_not_nobody() {
        let devices = [card("A", DeviceClass::Discrete), card("S", DeviceClass::Software)];
        let process = |pid, bytes| GpuProcess { pid, bytes };
        let seen = |p| users(&devices, Some(&told(p, None)), 7);
        assert_eq!(seen(Some(vec![process(7, None)])), Before::default(), "this process itself");
        let used = seen(Some(vec![process(7, None), process(4711, Some(3 << 30)), process(5, None)]));
        assert_eq!(used.words().unwrap(), "cuda:A: pid 4711 (3.00 GiB), pid 5");
        for silent in [seen(None), users(&devices, None, 7), users(&devices, Some(&Told::default()), 7)] {
            assert_eq!((silent.words(), silent.unknown.len()), (None, 1), "{silent:?}");
            assert!(silent.unknown[0].starts_with("whether other processes use cuda:A: "), "{silent:?}");
        }
    }

    #[test]
    fn a_limit_that_cannot_be_kept_is_refused() {
        let (real, software) = (card("A", DeviceClass::Discrete), card("S", DeviceClass::Software));
        let refused = |devices: &[DeviceInfo], told: Option<&Told>| {
            let e = temperatures(devices, told, 80.0).unwrap_err();
            assert_eq!(e.code(), Code::FeatureUnsupported);
            e.to_string()
        };
        let warm = told(None, Some(50.0));
        assert_eq!(temperatures(std::slice::from_ref(&real), Some(&warm), 80.0).unwrap(), Vec::<String>::new());
        let exempt = temperatures(&[real.clone(), software.clone()], Some(&warm), 80.0).unwrap();
        assert!(exempt[0].contains("cuda:S") && exempt.len() == 1, "{exempt:?}");
        assert!(refused(&[software], Some(&warm)).contains("software device"));
        assert!(
            refused(std::slice::from_ref(&real), Some(&told(None, None))).contains("does not tell its temperature")
        );
        assert!(refused(std::slice::from_ref(&real), Some(&Told::default())).contains("no card"));
        assert!(refused(&[real], None).contains("no answer"));
    }
}
