//! How often something else slowed processors down while keys were looked at: for the profile and for people.

use crate::profile::Profile;

use super::sweep::Swept;

/// Share of readings from which on a note tells of it.
const OFTEN: f64 = 0.1;

/// Looks at groups that were judged.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Disturbed {
    looks: usize,
    /// The sum of their shares of disturbed readings.
    disturbed: f64,
}

impl Disturbed {
    pub(super) fn add(&mut self, swept: &Swept) {
        self.looks += swept.looks;
        self.disturbed += swept.disturbed;
    }

    /// Tells a profile. Of a simulated machine, whose processors nobody reads (`read`), there is nothing to tell.
    pub(super) fn tell(self, profile: &mut Profile, read: bool) {
        if self.looks == 0 || (self.disturbed == 0.0 && !read) {
            return;
        }
        let share = self.disturbed / self.looks as f64;
        profile.host.iter_mut().for_each(|h| h.disturbed = Some((1000.0 * share).round() / 1000.0));
        if share > OFTEN {
            let percent = 100.0 * share;
            profile.notes.push(format!(
                "something else slowed processors down in {percent:.0} % of the readings: in another hour thresholds may lie elsewhere"
            ));
        }
    }
}
