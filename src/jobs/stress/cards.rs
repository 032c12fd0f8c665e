//! Devices that are one card, and whose turn it is there: a phase that fills the card's memory has the card alone.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::base::{DeviceInfo, units};
use crate::device::telemetry::Machine;
use crate::jobs::hardware;

use super::plan::Planned;
use super::scenario::Scenario;

/// Longest wait before somebody looks whether the run is to end.
const LOOK: Duration = Duration::from_millis(20);

/// The cards of a run.
#[derive(Debug)]
pub(super) struct Cards {
    /// Devices by their place in the run, for each card.
    groups: Vec<Vec<usize>>,
    gates: Vec<Gate>,
    /// The card of each device.
    of: Vec<usize>,
}

impl Cards {
    /// Finds which devices are one card, by the rule by which `gpuctl devices` does.
    pub(super) fn new(devices: &[DeviceInfo]) -> Self {
        let place = |id: &String| devices.iter().position(|d| d.id == *id);
        let rows = hardware::rows(devices, &[], &[], &Machine::default());
        let mut groups: Vec<Vec<usize>> = rows.iter().map(|r| r.ids.iter().filter_map(place).collect()).collect();
        let of: Vec<usize> = (0..devices.len())
            .map(|at| {
                groups.iter().position(|g| g.contains(&at)).unwrap_or_else(|| {
                    groups.push(vec![at]);
                    groups.len() - 1
                })
            })
            .collect();
        let gates = groups.iter().map(|_| Gate::default()).collect();
        Cards { groups, gates, of }
    }

    /// The devices of each card.
    pub(super) fn groups(&self) -> &[Vec<usize>] {
        &self.groups
    }

    /// The gate to the card of the device at a place.
    pub(super) fn gate(&self, at: usize) -> &Gate {
        &self.gates[self.of[at]]
    }

    /// Devices of the run that are the card of the device at a place, this one included.
    pub(super) fn sharing(&self, at: usize) -> u32 {
        self.groups[self.of[at]].len() as u32
    }

    /// Seconds that these scenarios need with their floors on the card that needs most: one that waits does nothing meanwhile.
    pub(super) fn least_seconds(&self, devices: &[DeviceInfo], rows: &[&'static Scenario]) -> f64 {
        let times = |group: &[usize], row: &Scenario| {
            let filling = group.iter().filter(|at| (row.fills)(&devices[**at])).count();
            if group.len() > 1 { 1 + filling } else { 1 }
        };
        let of = |group: &Vec<usize>| rows.iter().map(|row| times(group, row) as f64 * row.least_seconds).sum();
        self.groups.iter().map(of).fold(0.0, f64::max)
    }

    /// Seconds in which each device waits for others that fill its card, by the plans.
    pub(super) fn waits(&self, devices: &[DeviceInfo], plans: &[Vec<Planned>]) -> Vec<f64> {
        let fills = |at: usize| filling(&devices[at], &plans[at]).map(|p| p.seconds).sum::<f64>();
        let of = |at: usize| {
            let group = &self.groups[self.of[at]];
            group.iter().filter(|other| **other != at).map(|other| fills(*other)).sum()
        };
        (0..devices.len()).map(of).collect()
    }

    /// Who waits for whom and how long by the plans, in words.
    pub(super) fn remarks(&self, devices: &[DeviceInfo], plans: &[Vec<Planned>]) -> Vec<String> {
        let mut remarks = Vec::new();
        for group in self.groups.iter().filter(|g| g.len() > 1) {
            for at in group {
                let others: Vec<_> = group.iter().filter(|o| *o != at).map(|o| devices[*o].id.as_str()).collect();
                for p in filling(&devices[*at], &plans[*at]) {
                    let (who, filler, name) = (others.join(" "), &devices[*at].id, p.scenario.name);
                    let seconds = units::seconds(p.seconds);
                    remarks.push(format!(
                        "{who}: planned for {seconds} less: {filler} fills the card's memory alone ({name})"
                    ));
                }
            }
        }
        remarks
    }
}

/// The phases that fill the device's card.
fn filling<'a>(device: &'a DeviceInfo, plan: &'a [Planned]) -> impl Iterator<Item = &'a Planned> {
    plan.iter().filter(|p| (p.scenario.fills)(device))
}

/// Who works on a card.
#[derive(Debug, Default)]
struct Turn {
    working: usize,
    alone: bool,
    /// Those who wait to be alone. Nobody begins before them, or others would take turns for ever.
    waiting: usize,
}

impl Turn {
    fn enter(&mut self, alone: bool) -> bool {
        let free = !self.alone && if alone { self.working == 0 } else { self.waiting == 0 };
        if free {
            self.alone = alone;
            self.working += 1;
        }
        free
    }
}

/// Lets in many who share a card, or one who needs it alone.
#[derive(Debug, Default)]
pub(super) struct Gate {
    turn: Mutex<Turn>,
    left: Condvar,
}

/// A turn on a card, until it is dropped.
#[derive(Debug)]
pub(super) struct Pass<'a> {
    gate: &'a Gate,
    /// How long it was waited for.
    pub(super) waited: f64,
}

impl Gate {
    fn lock(&self) -> MutexGuard<'_, Turn> {
        self.turn.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for a turn; `None` if `stop` says before that there will be none. `waits` is called if it does not come at once.
    pub(super) fn enter(&self, alone: bool, stop: impl Fn() -> bool, waits: impl FnOnce()) -> Option<Pass<'_>> {
        let mut turn = self.lock();
        if turn.enter(alone) {
            return Some(Pass { gate: self, waited: 0.0 });
        }
        turn.waiting += usize::from(alone);
        drop(turn);
        waits();
        let from = Instant::now();
        let mut turn = self.lock();
        loop {
            let stopped = stop();
            let entered = !stopped && turn.enter(alone);
            if stopped || entered {
                turn.waiting -= usize::from(alone);
                // Others may have waited for one who waits no more.
                self.left.notify_all();
                return entered.then(|| Pass { gate: self, waited: from.elapsed().as_secs_f64() });
            }
            turn = self.left.wait_timeout(turn, LOOK).unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

impl Drop for Pass<'_> {
    fn drop(&mut self) {
        let mut turn = self.gate.lock();
        turn.working -= 1;
        turn.alone = false;
        self.gate.left.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

    use super::*;
    use crate::base::DeviceClass;
    use crate::base::facts::Facts;
    use crate::jobs::stress::scenario;

    fn device(id: &str, pci: Option<&str>, class: DeviceClass) -> DeviceInfo {
        let backend = crate::base::Backend::ALL.into_iter().find(|b| id.starts_with(b.name())).unwrap();
        let facts = Facts { pci: pci.map(Into::into), ..Facts::default() };
        DeviceInfo { id: id.into(), uid: id.into(), backend, class, facts, ..DeviceInfo::ordinary_gpu() }
    }

    fn node() -> Vec<DeviceInfo> {
        let (a, b) = (Some("0000:3b:00.0"), Some("0000:5e:00.0"));
        vec![
            device("cpu", None, DeviceClass::Cpu),
            device("cuda:0", a, DeviceClass::Discrete),
            device("cuda:1", b, DeviceClass::Discrete),
            device("opencl:0", a, DeviceClass::Discrete),
            device("wgpu:0", a, DeviceClass::Virtual),
        ]
    }

    /// The run in which a sound card was called faulty: CUDA filled its memory, and OpenCL had none.
    #[test]
    fn only_what_fills_a_card_is_waited_for_and_only_there() {
        let devices = node();
        let cards = Cards::new(&devices);
        assert_eq!(cards.groups(), [vec![0], vec![1, 3, 4], vec![2]]);
        assert_eq!((0..5).map(|at| cards.sharing(at)).collect::<Vec<_>>(), [1, 3, 1, 3, 3]);
        let phases: Vec<Planned> =
            ["memory", "oom"].map(|name| Planned { scenario: scenario::find(name).unwrap(), seconds: 2.0 }).into();
        let plans = vec![phases; 5];
        assert_eq!(cards.waits(&devices, &plans), [0.0, 0.0, 0.0, 2.0, 2.0]);
        let rows: Vec<_> = plans[0].iter().map(|p| p.scenario).collect();
        assert_eq!(cards.least_seconds(&devices, &rows), 6.0);
        assert_eq!(Cards::new(&devices[..3]).least_seconds(&devices[..3], &rows), 4.0);
        let remarks = cards.remarks(&devices, &plans);
        assert_eq!(remarks, ["opencl:0 wgpu:0: planned for 2.00 s less: cuda:0 fills the card's memory alone (oom)"]);
    }

    #[test]
    fn who_fills_a_card_is_alone_there_and_not_held_up_by_other_cards() {
        let devices = node();
        let cards = Cards::new(&devices);
        let (there, filling, elsewhere) = (AtomicUsize::new(0), AtomicBool::new(false), AtomicUsize::new(0));
        let (met, overlapped) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let (go, end) = (|| false, Instant::now() + Duration::from_secs(30));
        std::thread::scope(|scope| {
            // All keep the card busy by turns: whoever waits to be alone would wait for ever without a rule.
            for at in [3, 4, 4, 3] {
                let gate = cards.gate(at);
                let (there, filling, met) = (&there, &filling, &met);
                scope.spawn(move || {
                    while met.load(Ordering::SeqCst) < 20 && Instant::now() < end {
                        let _pass = gate.enter(false, go, || ()).unwrap();
                        there.fetch_add(1, Ordering::SeqCst);
                        assert!(!filling.load(Ordering::SeqCst), "somebody fills the card");
                        std::thread::sleep(Duration::from_millis(1));
                        there.fetch_sub(1, Ordering::SeqCst);
                    }
                });
            }
            let (elsewhere, met, overlapped) = (&elsewhere, &met, &overlapped);
            let other = cards.gate(2);
            scope.spawn(move || {
                while met.load(Ordering::SeqCst) < 20 && Instant::now() < end {
                    let _pass = other.enter(false, go, || ()).unwrap();
                    elsewhere.fetch_add(1, Ordering::SeqCst);
                    std::thread::sleep(Duration::from_millis(1));
                    elsewhere.fetch_sub(1, Ordering::SeqCst);
                }
            });
            let gate = cards.gate(1);
            for _ in 0..20 {
                let _pass = gate.enter(true, go, || ()).unwrap();
                assert!(!filling.swap(true, Ordering::SeqCst));
                assert_eq!(there.load(Ordering::SeqCst), 0, "others work on the card");
                let until = Instant::now() + Duration::from_secs(10);
                while elsewhere.load(Ordering::SeqCst) == 0 && Instant::now() < until {
                    std::thread::yield_now();
                }
                overlapped.fetch_add(elsewhere.load(Ordering::SeqCst).min(1), Ordering::SeqCst);
                assert_eq!(there.load(Ordering::SeqCst), 0, "others work on the card");
                filling.store(false, Ordering::SeqCst);
                met.fetch_add(1, Ordering::SeqCst);
            }
        });
        assert!(overlapped.into_inner() > 0, "another card waited as well");
    }

    #[test]
    fn whoever_waits_ends_with_the_run_and_holds_up_nobody_after() {
        let gate = Gate::default();
        let (first, stop) = (gate.enter(false, || false, || ()).unwrap(), AtomicBool::new(false));
        let (told, hears) = std::sync::mpsc::channel();
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| {
                let waits = || told.send(()).unwrap();
                gate.enter(true, || stop.load(Ordering::SeqCst), waits).is_none()
            });
            hears.recv_timeout(Duration::from_secs(30)).unwrap();
            // Behind the one who waits.
            assert!(gate.enter(false, || true, || ()).is_none());
            let from = Instant::now();
            stop.store(true, Ordering::SeqCst);
            assert!(waits.join().unwrap());
            assert!(from.elapsed() < Duration::from_secs(5), "{:?}", from.elapsed());
        });
        assert!(gate.enter(false, || true, || ()).is_some_and(|p| p.waited == 0.0), "nobody waits any more");
        drop(first);
        assert!(gate.enter(true, || true, || ()).is_some());
    }
}
