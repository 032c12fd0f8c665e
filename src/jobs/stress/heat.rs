//! `--max-temp`: when a phase pauses because its card is hot, when it goes on, and what one that was too short proves.

use std::time::{Duration, Instant};

use crate::base::{DeviceInfo, units};
use crate::device::telemetry::{ANSWER, Watch, cardless};

use super::StressConfig;
use super::guard::COOLER;
use super::post::{Post, Stop};
use super::verdict::Verdict;
use super::watch::Job;

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

/// Waits until the card is cool enough to work on. False if the phase is over before.
pub(super) fn cooled(
    job: &Job<'_>,
    heat: &mut Heat,
    card: &mut Option<Watch<'_>>,
    post: &Post,
    stop: Stop<'_>,
    start: Instant,
) -> bool {
    let (mut begun, first) = (None, heat.why.is_empty());
    loop {
        card.iter_mut().for_each(Watch::tick);
        let card = card.as_ref();
        let left = job.seconds - start.elapsed().as_secs_f64();
        let go = heat.cool(card, begun.is_some() || !first);
        if !go && begun.is_none() && !heat.waits_for_the_first(card) {
            begun = Some(Instant::now());
            heat.pauses += 1;
            if let Some(why) = heat.too_hot(card) {
                heat.why = why;
            } else if heat.why.is_empty() {
                heat.why = "the card tells no temperature".into();
            }
            post.note(&format!("{} on {} pauses: {}", job.scenario.name, job.device.id, heat.why));
        }
        if go || left <= 0.0 || stop.raised() {
            heat.paused += begun.map_or(0.0, |b| b.elapsed().as_secs_f64());
            if go && begun.is_some() {
                post.note(&format!("{} on {} goes on", job.scenario.name, job.device.id));
            }
            return go && !stop.raised() && (left > 0.0 || begun.is_none());
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// A phase that was too short for its scenario proves nothing; why one that was paused did too little.
pub(super) fn below_floor(job: &Job<'_>, judged: (Verdict, String), heat: &Heat) -> (Verdict, String) {
    let least = job.scenario.least_seconds;
    match judged {
        (Verdict::Pass, _) if job.seconds < least && !job.cfg.below_floor => (
            Verdict::Inconclusive,
            format!(
                "{:.1} s are below the scenario's floor of {least:.1} s; nothing was wrong until then",
                job.seconds
            ),
        ),
        (Verdict::Inconclusive, why) if heat.pauses > 0 => {
            (Verdict::Inconclusive, format!("{why}; paused for {}: {}", units::seconds(heat.paused), heat.why))
        }
        other => other,
    }
}
