//! `devices --health`: what cards and the host tell, judged.

use crate::base::telemetry::{NotTold, Snapshot};
use crate::base::{Absence, Backend, Code, DeviceInfo, Record, Result};
use crate::device::cpu::Pin;
use crate::device::probe::{CpuConfig, Found, inventory_of};
use crate::device::telemetry::{ANSWER, FIRST, Telemetry, Told};
use crate::jobs::health;
use crate::jobs::inventory::{self, Waits};
use crate::report;

use super::args;
use super::commands::{Ctx, this_program};
use super::output;

impl Ctx<'_> {
    /// All that this system tells of cards and itself, asked so that a driver that hangs is a finding.
    pub(super) fn telemetry(&self) -> Telemetry {
        let dirs = [("cache", self.env.cache_dir.clone()), ("journal", self.env.state_dir.clone())];
        Telemetry::system(dirs.into_iter().filter_map(|(of, d)| Some((of, d?))).collect())
    }

    pub(super) fn health(&self, a: &args::Devices) -> Result<u8> {
        let cpu = CpuConfig { threads: 0, pin: Pin::Free };
        // First of all, since it wakes drivers that nobody uses; who is slow afterwards does not sleep.
        let mut telemetry = self.telemetry();
        let first = woken(&mut telemetry);
        let seen = inventory::ask(&Backend::ALL, Waits::SHORT, self.env, cpu, &this_program()?)?;
        let infos = seen.devices;
        let mut records = Vec::new();
        match first {
            None => records.push(health::hanging("host", "the system's sources", FIRST.as_secs_f64())),
            Some(mut first) => {
                let broken = broken(&seen.absent);
                // Only backends that show one of the cards are loaded here, and none with a driver that would take this
                // process with it.
                let sound = |b: Backend| !broken.iter().any(|(of, _)| *of == b);
                let ours = |i: &&DeviceInfo| sound(i.backend) && first.cards.iter().any(|c| c.is_of(i));
                let backends: Vec<_> = infos.iter().filter(ours).map(|i| i.backend).collect();
                let found =
                    if backends.is_empty() { Vec::new() } else { inventory_of(&backends, self.env, cpu)?.found };
                first.host.broken_drivers = Some(broken.into_iter().map(|(_, what)| what).collect());
                let told = links_under_load(first, found, &mut telemetry);
                let own = std::process::id();
                for card in &told.cards {
                    records.push(health::card(id_of(&infos, card), card, own));
                }
                records.push(health::host(&told.host));
            }
        }
        let exit_code = health::exit_code(&records);
        let cards = records.iter().filter(|r| r.device != "host").count();
        let records: Vec<Record> = records.into_iter().map(|r| Record::Health(Box::new(r))).collect();
        if a.line {
            output::data(&report::health::lines(&records))?;
        } else if a.json.as_deref() != Some("-") {
            output::data(&report::health::table(&records, output::width()))?;
        }
        if cards == 0 && !a.quiet {
            output::talk("no card tells its health here: nothing is known of any GPU");
        }
        self.write_json(a.json.as_deref(), &self.document(infos, seen.absent, records, true, exit_code))?;
        Ok(exit_code)
    }
}

/// The first answer of cards that may have slept.
fn woken(telemetry: &mut Telemetry) -> Option<Told> {
    telemetry.ask(FIRST)
}

/// Reads the links again while copies run. Only a card that the API can open is put under load.
fn links_under_load(mut told: Told, found: Vec<Found>, telemetry: &mut Telemetry) -> Told {
    let (mut cards, mut devices) = (Vec::new(), Vec::new());
    for f in found {
        let card = told.cards.iter().position(|c| c.is_of(&f.info));
        if let Some(card) = card.filter(|c| !cards.contains(c)) {
            cards.push(card);
            devices.push(Box::new(move || f.open()) as Box<dyn FnOnce() -> _ + Send>);
        }
    }
    let (again, loaded) = health::under_load(devices, || telemetry.ask(ANSWER));
    for (number, card) in cards.into_iter().enumerate() {
        let card = &mut told.cards[card];
        let busy = again.as_ref().and_then(|t| t.cards.iter().find(|c| c.uid == card.uid));
        match busy.filter(|_| loaded.contains(&number)) {
            Some(busy) => {
                card.link.generation = busy.link.generation;
                card.link.width = busy.link.width;
                card.link.under_load = true;
            }
            None => card.not_told.push(NotTold { what: "link".into(), why: "no copy could be run meanwhile".into() }),
        }
    }
    for card in told.cards.iter_mut().filter(|c| !c.link.under_load) {
        if !card.not_told.iter().any(|n| n.what == "link") {
            let why = "only a link under load can be judged, and no API here opens the card";
            card.not_told.push(NotTold { what: "link".into(), why: why.into() });
        }
    }
    told
}

/// Drivers that hung or crashed when they were asked for their devices.
fn broken(absent: &[Absence]) -> Vec<(Backend, String)> {
    let is = |a: &&Absence| [Code::LaunchTimeout, Code::WorkerCrashed].iter().any(|c| a.reason.starts_with(c.name()));
    absent.iter().filter(is).map(|a| (a.backend, format!("{}: {}", a.what, a.reason))).collect()
}

/// The card's id for `--device`, else its uid.
fn id_of<'a>(infos: &'a [DeviceInfo], card: &'a Snapshot) -> &'a str {
    infos.iter().find(|i| card.is_of(i)).map_or(card.uid.as_str(), |i| i.id.as_str())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Without persistence a driver sleeps until somebody asks: no fault.
    #[test]
    fn a_driver_that_has_to_wake_up_does_not_hang() {
        let mut slow = Telemetry::new(|| {
            std::thread::sleep(ANSWER + ANSWER / 4);
            Told::default()
        });
        assert!(woken(&mut slow).is_some());
    }
}
