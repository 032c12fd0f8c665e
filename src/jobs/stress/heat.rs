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
    /// The last temperature: an answer without one changes nothing of it but its age.
    last: Option<f64>,
    /// When that was told.
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
        Heat { limit, answered: 0, last: None, fresh: Instant::now(), pauses: 0, paused: 0.0, why: String::new() }
    }

    /// Why work must not go on now, if so.
    pub(super) fn too_hot(&mut self, card: Option<&Watch<'_>>) -> Option<String> {
        let limit = self.limit?;
        self.hear(card);
        if self.fresh.elapsed() > SILENT {
            return Some(format!("the card told no temperature for {}", units::seconds(SILENT.as_secs_f64())));
        }
        let now = self.last?;
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
            self.answered = answered;
            if let Some(now) = temperature(card) {
                (self.last, self.fresh) = (Some(now), Instant::now());
            }
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::telemetry::Snapshot;
    use crate::device::telemetry::{Telemetry, Told};

    /// A card that tells these temperatures, one an answer.
    fn telling(temperatures: &'static [Option<f64>]) -> Telemetry {
        let mut at = 0;
        Telemetry::new(move || {
            let temperature_c = temperatures[at.min(temperatures.len() - 1)];
            at += 1;
            let card = Snapshot { uid: "GPU-1".into(), source: "test".into(), temperature_c, ..Snapshot::default() };
            Told { cards: vec![card], ..Told::default() }
        })
    }

    fn answers(card: &mut Watch<'_>, n: u64) {
        while card.so_far().answered < n {
            card.tick();
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// A sensor that fails is silence, though the card goes on answering.
    #[test]
    fn answers_without_a_temperature_do_not_make_the_last_one_fresh() {
        let cfg = StressConfig { max_temp: Some(80.0), ..StressConfig::default() };
        let info = DeviceInfo { uid: "GPU-1".into(), ..DeviceInfo::ordinary_gpu() };
        let (lost, found) = (&[Some(70.0), None][..], &[Some(70.0), Some(71.0)][..]);
        for (told, why) in [(lost, Some("the card told no temperature for 20.00 s")), (found, None)] {
            let mut telemetry = telling(told);
            let (mut heat, mut card) = (Heat::new(&cfg, &info), Watch::begin(&mut telemetry, &info));
            answers(&mut card, 1);
            assert_eq!(heat.too_hot(Some(&card)), None);
            // So much time later the second answer comes.
            heat.fresh = heat.fresh.checked_sub(SILENT + Duration::from_secs(1)).unwrap();
            answers(&mut card, 2);
            assert_eq!(heat.too_hot(Some(&card)).as_deref(), why);
        }
    }

    #[test]
    fn a_hot_card_does_not_cool_by_telling_nothing() {
        let cfg = StressConfig { max_temp: Some(80.0), ..StressConfig::default() };
        let info = DeviceInfo { uid: "GPU-1".into(), ..DeviceInfo::ordinary_gpu() };
        let mut telemetry = telling(&[Some(90.0), None]);
        let (mut heat, mut card) = (Heat::new(&cfg, &info), Watch::begin(&mut telemetry, &info));
        for n in [1, 2] {
            answers(&mut card, n);
            let why = heat.too_hot(Some(&card)).unwrap();
            assert!(why.contains("the card has 90 C"), "{why}");
            assert!(!heat.cool(Some(&card), false));
        }
    }
}
