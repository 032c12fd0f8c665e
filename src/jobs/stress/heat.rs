//! `--max-temp`: when a phase pauses because its card is hot, and when it goes on.

use std::time::{Duration, Instant};

use crate::base::units;
use crate::device::telemetry::{ANSWER, Watch, cardless};

use super::StressConfig;
use super::guard::COOLER;
use crate::base::DeviceInfo;

/// A card that told nothing for so long may be of any temperature.
const SILENT: Duration = Duration::from_secs(20);

/// Watches one card's temperature during a phase.
#[derive(Debug)]
pub(super) struct Heat {
    /// `None` where there is no limit, or no card.
    limit: Option<f64>,
    answered: u64,
    fresh: Instant,
    /// Pauses so far.
    pub(super) pauses: u64,
    /// Seconds of them.
    pub(super) paused: f64,
    /// Why the last one was made.
    pub(super) why: String,
}

impl Heat {
    pub(super) fn new(cfg: &StressConfig, device: &DeviceInfo) -> Self {
        let limit = cfg.max_temp.filter(|_| cardless(device).is_none());
        Heat { limit, answered: 0, fresh: Instant::now(), pauses: 0, paused: 0.0, why: String::new() }
    }

    /// Why work must not go on now, if so.
    pub(super) fn too_hot(&mut self, card: Option<&Watch<'_>>) -> Option<String> {
        let limit = self.limit?;
        self.hear(card);
        if self.fresh.elapsed() > SILENT {
            return Some(format!("the card told no temperature for {}", units::seconds(SILENT.as_secs_f64())));
        }
        let now = temperature(card)?;
        (now > limit).then(|| format!("the card has {now:.0} C, the limit is {limit:.0} C"))
    }

    /// True if work may begin: a fresh answer that is cool enough. After a pause that is some degrees below the limit.
    pub(super) fn cool(&mut self, card: Option<&Watch<'_>>, after_pause: bool) -> bool {
        let Some(limit) = self.limit else { return true };
        let asked = self.answered;
        self.hear(card);
        let known = if after_pause { self.answered > asked } else { self.answered > 0 };
        let bound = if after_pause { limit - COOLER } else { limit };
        known && temperature(card).is_some_and(|t| t <= bound)
    }

    /// True until the first answer has come or is overdue: that is no pause.
    pub(super) fn waits_for_the_first(&mut self, card: Option<&Watch<'_>>) -> bool {
        self.hear(card);
        self.limit.is_some() && self.answered == 0 && self.fresh.elapsed() < ANSWER
    }

    fn hear(&mut self, card: Option<&Watch<'_>>) {
        let answered = card.map_or(0, |c| c.so_far().answered);
        if answered > self.answered {
            (self.answered, self.fresh) = (answered, Instant::now());
        }
    }
}

fn temperature(card: Option<&Watch<'_>>) -> Option<f64> {
    card?.latest()?.temperature_c
}
