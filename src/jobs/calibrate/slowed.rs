//! Cards that had lowered their clocks while a key was measured: their thresholds hold for that state of the card alone.

use std::collections::{BTreeMap, HashMap};

use crate::base::DeviceInfo;
use crate::device::telemetry::{Telemetry, Told};
use crate::jobs::clocks::{self, Clocks};

/// What cards told around the measurements of groups of keys.
pub(super) struct Slowed {
    clocks: Clocks,
    /// Answers by number of the group.
    told: HashMap<usize, Vec<Told>>,
    /// By device id and flag: the keys that have it.
    flags: BTreeMap<(String, String), usize>,
}

impl Slowed {
    pub(super) fn new(telemetry: Telemetry) -> Self {
        Slowed { clocks: Clocks::new(telemetry), told: HashMap::new(), flags: BTreeMap::new() }
    }

    /// Asks the card of a group, if its device is one.
    pub(super) fn look(&mut self, group: usize, device: &DeviceInfo) {
        if let Some(told) = self.clocks.look(std::iter::once(device)) {
            self.told.entry(group).or_default().push(told);
        }
    }

    /// What the thresholds of a group's `keys` have to say of their card's clocks; nothing of a card that does not tell, which
    /// the notes say once.
    pub(super) fn reason(&mut self, group: usize, device: &DeviceInfo, keys: usize) -> Option<String> {
        let flag = clocks::flag(&self.told.remove(&group).unwrap_or_default(), device)?;
        let reason = flag.strip_prefix(clocks::THROTTLED).map(|why| format!("the card had lowered its clocks ({why})"));
        *self.flags.entry((device.id.clone(), flag)).or_default() += keys;
        reason
    }

    /// A line for each card and flag.
    pub(super) fn notes(&self) -> Vec<String> {
        let note = |((id, flag), keys): (&(String, String), &usize)| match flag.strip_prefix(clocks::THROTTLED) {
            Some(why) => format!(
                "{id}: {keys} keys were measured while the card had lowered its clocks ({why}): as it is otherwise, it may win \
                 from smaller sizes on; see `gpuctl devices --health`, then calibrate again"
            ),
            None => format!(
                "{id}: of {keys} keys it is not known whether the card had lowered its clocks: it does not tell"
            ),
        };
        self.flags.iter().map(note).collect()
    }
}
