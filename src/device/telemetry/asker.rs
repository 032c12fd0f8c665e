//! Asking without ever waiting for long: the question is put in a thread of its own, so that a driver that hangs keeps nobody.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use crate::base::telemetry::{NotTold, Snapshot, Watched};
use crate::base::{DeviceClass, DeviceInfo};

use super::Told;

/// Time for one round of questions; a driver that takes longer hangs.
pub const ANSWER: Duration = Duration::from_millis(1500);
/// Time for the first one: the question opens the drivers' libraries, and wakes drivers that nobody uses, a second for each card.
pub const FIRST: Duration = Duration::from_secs(15);
/// Time from one question of a [`Watch`] to the next.
const EVERY: Duration = Duration::from_secs(2);

type Question = Box<dyn FnMut() -> Told + Send>;

/// Somebody to ask, again and again. At most one question is open at a time, whatever the driver does.
pub struct Telemetry {
    /// Until it is put for the first time.
    question: Option<Question>,
    again: Option<Sender<()>>,
    told: Option<Receiver<Told>>,
    open: bool,
}

impl std::fmt::Debug for Telemetry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Telemetry(open: {})", self.open)
    }
}

impl Telemetry {
    /// Asks by `question`, which is first called at the first request.
    pub fn new(question: impl FnMut() -> Told + Send + 'static) -> Self {
        Telemetry { question: Some(Box::new(question)), again: None, told: None, open: false }
    }

    /// Puts the question, unless one is open. Does not wait.
    pub fn request(&mut self) {
        if let Some(mut question) = self.question.take() {
            let (again, asked) = channel();
            let (tell, told) = channel();
            std::thread::spawn(move || {
                while asked.recv().is_ok() {
                    let answer = catch_unwind(AssertUnwindSafe(&mut question)).unwrap_or_else(|_| panicked());
                    if tell.send(answer).is_err() {
                        break;
                    }
                }
            });
            (self.again, self.told) = (Some(again), Some(told));
        }
        if !self.open {
            self.open = self.again.as_ref().is_some_and(|again| again.send(()).is_ok());
        }
    }

    /// The answer to the open question, if it has come. Does not wait.
    pub fn poll(&mut self) -> Option<Told> {
        self.wait(Duration::ZERO)
    }

    fn wait(&mut self, limit: Duration) -> Option<Told> {
        let told = self.told.as_ref().filter(|_| self.open)?.recv_timeout(limit).ok();
        self.open &= told.is_none();
        told
    }

    /// Asks now and waits for at most `limit`. `None`: no answer in time, or an earlier question has none yet.
    pub fn ask(&mut self, limit: Duration) -> Option<Told> {
        let begun = Instant::now();
        // What comes now was told of an earlier moment.
        if self.open {
            self.wait(limit)?;
        }
        self.request();
        self.wait(limit.saturating_sub(begun.elapsed()))
    }
}

fn panicked() -> Told {
    let mut told = Told::default();
    told.host.not_told.push(NotTold { what: "cards".into(), why: "the library that was asked panicked".into() });
    told
}

/// Why a device is no card that could tell anything; `None` for what may be one.
pub fn cardless(device: &DeviceInfo) -> Option<&'static str> {
    match device.class {
        DeviceClass::Cpu => Some("the host's processor is no card"),
        DeviceClass::Software => Some("a software device: the host's processor does its work"),
        DeviceClass::Simulated => Some("a simulated device"),
        DeviceClass::Discrete | DeviceClass::Integrated | DeviceClass::Virtual => None,
    }
}

/// The card of a device among what was told, or why only the ledger knows of the device.
pub fn card_of<'t>(told: &'t Told, device: &DeviceInfo) -> Result<&'t Snapshot, String> {
    if let Some(why) = cardless(device) {
        return Err(why.into());
    }
    told.cards.iter().find(|card| card.is_of(device)).ok_or_else(|| {
        let mut why = "no card that tells anything has the device's uid or address".to_string();
        for silent in told.host.not_told.iter().filter(|n| n.what.contains("cards")) {
            why.push_str(&format!("; {}: {}", silent.what, silent.why));
        }
        why
    })
}

/// Watches the card of one device while a job runs. Only [`Watch::end`] waits, for at most [`ANSWER`].
#[derive(Debug)]
pub struct Watch<'t> {
    telemetry: &'t mut Telemetry,
    device: DeviceInfo,
    watched: Watched,
    /// What the card told last.
    latest: Option<Snapshot>,
    /// When the last question was put.
    asked: Option<Instant>,
    /// True if the last answer did not list a card that had been there.
    missing: bool,
}

impl<'t> Watch<'t> {
    /// Begins; the first [`Watch::tick`] asks.
    pub fn begin(telemetry: &'t mut Telemetry, device: &DeviceInfo) -> Self {
        let watched = cardless(device).map_or_else(Watched::default, Watched::none);
        Watch { telemetry, device: device.clone(), watched, latest: None, asked: None, missing: false }
    }

    /// Takes in an answer that has come, and asks if it is time.
    pub fn tick(&mut self) {
        if let Some(told) = self.telemetry.poll() {
            self.hear(&told);
        }
        if self.is_cardless() || self.asked.is_some_and(|at| at.elapsed() < EVERY) {
            return;
        }
        // A question that is still open counts as one more without an answer.
        self.telemetry.request();
        self.watched.asked += 1;
        self.asked = Some(Instant::now());
    }

    fn is_cardless(&self) -> bool {
        self.watched.source == "none"
    }

    fn hear(&mut self, told: &Told) {
        match card_of(told, &self.device) {
            Ok(card) => {
                self.watched.take(card);
                self.latest = Some(card.clone());
                self.missing = false;
            }
            Err(why) if self.watched.answered == 0 => {
                self.watched = Watched { asked: self.watched.asked, ..Watched::none(&why) };
            }
            Err(_) => self.missing = true,
        }
    }

    /// What was told so far.
    pub fn so_far(&self) -> &Watched {
        &self.watched
    }

    /// What the card told last.
    pub fn latest(&self) -> Option<&Snapshot> {
        self.latest.as_ref()
    }

    /// Asks once more, so that nothing of the last seconds is missed, and ends.
    pub fn end(mut self) -> Watched {
        if let Some(told) = self.telemetry.wait(ANSWER) {
            self.hear(&told);
        }
        if !self.is_cardless() && !self.telemetry.open {
            self.watched.asked += 1;
            if let Some(told) = self.telemetry.ask(ANSWER) {
                self.hear(&told);
            }
        }
        self.watched.lost |= self.missing;
        if self.watched.answered == 0 && !self.is_cardless() {
            let why = format!("no answer within {:.1} s", ANSWER.as_secs_f64());
            self.watched = Watched { asked: self.watched.asked, ..Watched::none(&why) };
        }
        self.watched
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gpu() -> DeviceInfo {
        DeviceInfo { uid: "GPU-1".into(), class: DeviceClass::Discrete, ..DeviceInfo::ordinary_gpu() }
    }

    fn told(uids: &[&str]) -> Told {
        let card = |uid: &&str| Snapshot { uid: (*uid).into(), source: "test".into(), ..Snapshot::default() };
        Told { cards: uids.iter().map(card).collect(), ..Told::default() }
    }

    /// One answer, and others ever after.
    fn answers(first: &'static str, then: &'static [&'static str]) -> Telemetry {
        let mut begun = false;
        Telemetry::new(move || if std::mem::replace(&mut begun, true) { told(then) } else { told(&[first]) })
    }

    #[test]
    fn a_driver_that_hangs_keeps_nobody_and_is_asked_once() {
        let (release, held) = channel::<()>();
        let mut calls = 0;
        let mut telemetry = Telemetry::new(move || {
            calls += 1;
            if calls == 2 {
                let _ = held.recv();
            }
            assert!(calls < 4, "a panic is an answer");
            told(&[&format!("GPU-{calls}")])
        });
        let limit = Duration::from_secs(60);
        assert_eq!(telemetry.ask(limit).unwrap().cards[0].uid, "GPU-1");
        for _ in 0..3 {
            assert!(telemetry.ask(Duration::from_millis(5)).is_none());
            assert!(telemetry.poll().is_none());
        }
        release.send(()).unwrap();
        // The late answer is of an earlier moment.
        assert_eq!(telemetry.ask(limit).unwrap().cards[0].uid, "GPU-3");
        assert!(telemetry.ask(limit).unwrap().host.not_told[0].why.contains("panicked"));
    }

    #[test]
    fn what_is_no_card_is_not_asked() {
        let cpu = DeviceInfo { class: DeviceClass::Software, ..gpu() };
        let mut never = Telemetry::new(|| panic!("asked"));
        let mut watch = Watch::begin(&mut never, &cpu);
        watch.tick();
        let watched = watch.end();
        assert_eq!((watched.source.as_str(), watched.asked, watched.fault()), ("none", 0, None));
        assert!(watched.reason.contains("software"), "{}", watched.reason);
        assert!(card_of(&told(&["GPU-1"]), &cpu).is_err());
    }

    #[test]
    fn a_card_that_is_never_told_of_has_a_reason_and_is_not_lost() {
        let mut telemetry = answers("GPU-2", &["GPU-2"]);
        let mut watch = Watch::begin(&mut telemetry, &gpu());
        watch.tick();
        let watched = watch.end();
        assert_eq!((watched.source.as_str(), watched.lost), ("none", false));
        assert!(watched.reason.contains("uid or address"), "{}", watched.reason);
    }

    #[test]
    fn a_card_that_is_gone_at_the_end_is_lost() {
        let cases: [(&'static [&'static str], bool); 3] = [(&["GPU-2"], true), (&["GPU-1"], false), (&[], true)];
        for (then, lost) in cases {
            let mut telemetry = answers("GPU-1", then);
            let mut watch = Watch::begin(&mut telemetry, &gpu());
            watch.tick();
            while watch.so_far().answered == 0 {
                watch.tick();
                std::thread::sleep(Duration::from_millis(1));
            }
            let watched = watch.end();
            assert_eq!((watched.source.as_str(), watched.lost), ("test", lost), "{then:?}");
            assert_eq!(watched.fault().is_some(), lost);
        }
    }
}
