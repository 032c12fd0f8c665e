//! What cards tell of themselves while cases run: a result of a card that was lost, or that met errors which it could not correct,
//! proves nothing, however right it looks.

use crate::base::record::Record;
use crate::base::sink::Sink;
use crate::base::{DeviceClass, DeviceInfo};
use crate::device::telemetry::{Telemetry, Watch};
use crate::jobs::health;

use super::VerifySummary;

/// Watches of all devices, each with somebody of its own to ask.
pub(super) struct Cards<'t>(Vec<(DeviceInfo, Watch<'t>)>);

impl<'t> Cards<'t> {
    /// Begins; `asked` is empty, or there is one for each device.
    pub(super) fn begin(asked: &'t mut [Telemetry], infos: &[DeviceInfo]) -> Self {
        let watch = |(telemetry, info): (&'t mut Telemetry, &DeviceInfo)| (info.clone(), Watch::begin(telemetry, info));
        let mut cards = Cards(asked.iter_mut().zip(infos).map(watch).collect());
        cards.tick();
        cards
    }

    /// Takes in what was told, and asks again if it is time. Waits for nothing.
    pub(super) fn tick(&mut self) {
        self.0.iter_mut().for_each(|(_, watch)| watch.tick());
    }

    /// A record for each card with a fault; remarks on those that told nothing or had lowered their clocks.
    pub(super) fn end(self, summary: &mut VerifySummary, sink: &mut dyn Sink) {
        for (info, watch) in self.0 {
            let told = watch.end();
            let id = &info.id;
            // Of the processor nobody expects it.
            if info.class == DeviceClass::Cpu {
                continue;
            }
            if told.source == "none" {
                sink.note(&format!("{id}: telemetry: none ({})", told.reason));
                continue;
            }
            if let Some(why) = told.throttled() {
                sink.note(&format!("{id}: {why}: results are judged all the same, times would not be"));
            }
            if let Some(r) = told.corrected.filter(|r| r.last > r.first) {
                let n = r.last - r.first;
                sink.note(&format!("{id}: the card's memory has corrected {n:.0} more errors meanwhile"));
            }
            let record = health::watched(&info, &told);
            if record.verdict == "finding" {
                summary.faults += 1;
                sink.record(&Record::Health(Box::new(record)));
            }
        }
    }
}

/// The line of a card's finding.
pub fn card_line(r: &crate::base::record::HealthRecord) -> String {
    let said = r.findings.iter().map(|f| format!("{}: {} while cases ran; {}", f.code, f.detail, f.next));
    format!("FAIL {}  {}", r.device, said.collect::<Vec<_>>().join("; "))
}
