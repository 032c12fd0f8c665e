//! How often something else slowed the processor down while keys were looked at: for the profile and for people.

use crate::profile::Profile;

use super::sweep::Swept;

/// Share of looks from which on a note tells of it.
const OFTEN: f64 = 0.1;

/// Looks at groups that were judged.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Disturbed {
    looks: usize,
    disturbed: usize,
}

impl Disturbed {
    pub(super) fn add(&mut self, swept: &Swept) {
        self.looks += swept.looks;
        self.disturbed += swept.disturbed;
    }

    /// Tells a profile. Of a simulated machine, whose processor nobody reads (`read`), there is nothing to tell.
    pub(super) fn tell(self, profile: &mut Profile, read: bool) {
        if self.looks == 0 || (self.disturbed == 0 && !read) {
            return;
        }
        let share = self.disturbed as f64 / self.looks as f64;
        profile.host.iter_mut().for_each(|h| h.disturbed = Some((1000.0 * share).round() / 1000.0));
        if share > OFTEN {
            let percent = 100.0 * share;
            profile.notes.push(format!(
                "something else slowed the processor down in {percent:.0} % of the looks: in another hour thresholds may lie elsewhere"
            ));
        }
    }
}
