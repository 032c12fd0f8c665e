use std::time::Duration;

use super::*;
use crate::base::rng::Philox;
use crate::base::{Reading, VirtualClock};
use crate::measure::crossing::{OPEN_ABOVE, OPEN_BELOW};
use crate::measure::state::State;
use crate::op::{self, case};

/// Left to the last, keys of which only the smallest size was open had no curve on a real machine, and the CPU made calls that
/// took it ten times as long as the device.
#[test]
fn a_winner_that_may_change_near_the_smallest_size_counts_as_a_crossing() {
    let with = |o: Outcome| Swept { outcomes: vec![(Outcome::Always, 3), (o, 3)], ..Swept::default() }.crosses();
    assert!(with(Outcome::Inconclusive(OPEN_BELOW)) && with(Outcome::NonMonotone(Vec::new())));
    assert!(with(Outcome::Crossing { size: 5, ci: [4, 6], stake: 1.1, without: None }));
    for o in [Outcome::Never, Outcome::Inconclusive(SPENT), Outcome::Inconclusive(OPEN_ABOVE)] {
        assert!(!with(o.clone()), "{o:?}");
    }
}

/// Every element takes so many seconds, on both sides, and every look so many besides for what is done once.
struct Linear(Arc<VirtualClock>, f64, f64);

impl Looker for Linear {
    fn look(&mut self, order: &Order, _: usize, _: &Cancel) -> Result<Option<Timed>> {
        let call_s = self.1 * case::parse(&order.case)?.dim("n") as f64;
        let rounds = (order.pairs + BEFORE) as f64;
        self.0.sleep(Duration::from_secs_f64(2.0 * rounds * call_s + self.2));
        let samples = vec![call_s; order.pairs];
        let (cpu, devices) = (samples.clone(), vec![samples]);
        Ok(Some(Timed { calls: 2 * rounds as u64, once_s: self.2, ..timed(cpu, devices) }))
    }
}

fn timed(cpu: Vec<f64>, devices: Vec<Vec<f64>>) -> Timed {
    let (kernel, wrong) = (String::new(), None);
    Timed { cpu, devices, calls: 6, kernel, wrong, made_s: 0.0, once_s: 0.0, disturbed: false, readings: Vec::new() }
}

/// `exp` with resident operands, with any sizes, processes and time.
fn exp_sweep<'a>(clock: &Arc<VirtualClock>, cancel: &'a Cancel) -> Sweep<'a> {
    let op = op::find("exp").unwrap();
    Sweep {
        number: 0,
        op,
        dtype: DType::F32,
        family: &op.families[0],
        range: (1024, 1 << 23),
        device: "sim:none",
        residencies: &[Residency::Resident],
        processes: 5,
        clock: Arc::clone(clock) as Arc<dyn Clock>,
        budget_s: 100.0,
        seed: 1,
        shared: Box::leak(Box::default()),
        cancel,
    }
}

/// On a machine that had built no kernel before, most keys had no second size, and half of the budget was waited away.
#[test]
fn what_is_done_once_takes_nothing_of_a_share() {
    let (clock, cancel) = (Arc::new(VirtualClock::new()), Cancel::new());
    let found = [0.0, 1.5].map(|once_s| {
        let begin = clock.now();
        let sweep = Sweep { budget_s: 0.1, ..exp_sweep(&clock, &cancel) };
        let mut swept = Swept::default();
        sweep.begin(&mut Linear(Arc::clone(&clock), 1e-9, once_s), &mut swept).unwrap();
        let took = clock.now() - begin - swept.once_s;
        assert_eq!(swept.once_s, once_s * swept.looks as f64);
        assert!(took <= 0.1, "{took}");
        swept.state.grid
    });
    assert!(found[0].len() > 4, "{found:?}");
    assert_eq!(found[0], found[1]);
}

/// The budget is twice a key's even share, and a verdict takes five looks at the largest size.
#[test]
fn a_new_size_leaves_time_for_a_verdict() {
    let (clock, cancel) = (Arc::new(VirtualClock::new()), Cancel::new());
    for budget_s in (0..12).map(|i| 0.05 * 1.3f64.powi(i)) {
        let sweep = Sweep { budget_s, ..exp_sweep(&clock, &cancel) };
        let mut swept = Swept::default();
        let mut looker = Linear(Arc::clone(&clock), 1e-9, 0.0);
        sweep.begin(&mut looker, &mut swept).unwrap();
        let largest = *swept.state.grid.last().unwrap();
        let looks = |size: u64| 5.0 * 2.0 * (LEAST + BEFORE) as f64 * 1e-9 * size as f64;
        let part = 0.4 * budget_s / 2.0;
        assert!(looks(largest) <= part, "{budget_s}: {largest}");
        // A factor of 3 further, and the rounds that warm up count once more, as what making operands takes.
        let next = crossing::grid(sweep.range).into_iter().find(|size| *size > largest).unwrap();
        assert!(looks(next) * 1.4 > part, "{budget_s}: {largest}");
        assert!(swept.cut_short && swept.cut.is_some());
    }
}

/// A device that wins from 40,000 elements on, until a worker dies.
struct Dying(usize);

impl Looker for Dying {
    fn look(&mut self, order: &Order, process: usize, _: &Cancel) -> Result<Option<Timed>> {
        self.0 = self.0.saturating_sub(1);
        if self.0 == 0 {
            return Err(Error::new(Code::WorkerCrashed, "killed"));
        }
        let n = case::parse(&order.case)?.dim("n") as f64;
        let (cpu, device) = (n * 1e-9, 4e-5 * (1.0 + 1e-3 * process as f64));
        let (cpu, devices) = (vec![cpu; order.pairs], vec![vec![device; order.pairs]]);
        Ok(Some(timed(cpu, devices)))
    }
}

#[test]
fn an_error_takes_no_verdict_back() {
    let (clock, cancel) = (Arc::new(VirtualClock::new()), Cancel::new());
    let sweep = Sweep { range: (1024, 1 << 20), processes: 11, ..exp_sweep(&clock, &cancel) };
    let run = |looks: usize| {
        let (mut swept, mut looker) = (Swept::default(), Dying(looks));
        sweep.begin(&mut looker, &mut swept).unwrap();
        for depth in [Depth::First, Depth::Full(6), Depth::Full(11)] {
            swept.waits = !swept.stopped();
            while swept.waits {
                sweep.turn(&mut looker, &mut swept, depth).unwrap();
            }
        }
        swept
    };
    let whole = run(usize::MAX);
    assert!(matches!(whole.outcomes[0].0, Outcome::Crossing { .. }) && !whole.is_void(), "{:?}", whole.outcomes);
    let sizes: Vec<usize> = whole.state.series[0].values().map(Vec::len).filter(|n| *n == 11).collect();
    assert!(sizes.len() >= 7, "eleven processes at the crossing: {:?}", whole.state.series[0].keys());
    // After the first verdict, and before.
    let late = run(80);
    assert!(late.stopped() && !late.is_void(), "{:?}", late.error);
    assert!(matches!(late.outcomes[0].0, Outcome::Crossing { .. }), "{:?}", late.outcomes);
    assert!(matches!(sweep.found(&late).unwrap()[0].outcome, Outcome::Crossing { .. }));
    let early = run(12);
    assert!(early.stopped() && early.is_void(), "{:?}", early.outcomes);
}

/// All of these are looked at to the end, in no fixed order: what keys that take even turns are off by, their neighbours are off by as
/// well.
fn in_turns(all: &mut [(Sweep<'_>, Swept)], looker: &mut dyn Looker, seed: u64) {
    all.iter_mut().for_each(|(sweep, swept)| sweep.begin(looker, swept).unwrap());
    let rng = Philox::new(seed);
    for (depth, turns) in [(Depth::First, 1000), (Depth::Full(11), 3000)] {
        all.iter_mut().for_each(|(_, swept)| swept.waits = true);
        for i in 0..turns {
            let which = rng.u64(turns, i) as usize % all.len();
            let (sweep, swept) = &mut all[which];
            if swept.waits {
                sweep.turn(looker, swept, depth).unwrap();
            }
        }
    }
}

/// A device that takes longer and less for some hundredths of a second, whatever it is asked for: by so much.
struct Wandering {
    by: f64,
    clock: Arc<VirtualClock>,
    rng: Philox,
    looks: u64,
    state: f64,
}

impl Looker for Wandering {
    fn look(&mut self, order: &Order, _: usize, _: &Cancel) -> Result<Option<Timed>> {
        self.clock.sleep(Duration::from_millis(5));
        self.looks += 1;
        self.state = 0.9 * self.state + (1.0_f64 - 0.81).sqrt() * self.rng.normal(1, self.looks);
        let n = case::parse(&order.case)?.dim("n") as f64;
        let device = 4e-5 * (self.by * self.state + 0.05 * self.rng.normal(2, self.looks)).exp();
        Ok(Some(timed(vec![n * 1e-9; order.pairs], vec![vec![device; order.pairs]])))
    }
}

#[test]
fn what_a_device_does_to_all_keys_is_not_taken_for_theirs() {
    // Squares of what crossings are off by, and of what they differ by, where keys know of each other and where each is alone.
    let off = |seed: u64, by: f64, known: bool| -> [f64; 2] {
        let (clock, cancel) = (Arc::new(VirtualClock::new()), Cancel::new());
        let rng = Philox::new(seed);
        let mut looker = Wandering { by, clock: Arc::clone(&clock), rng, looks: 0, state: 0.0 };
        let all: Vec<Shared> = (0..12).map(|_| Shared::default()).collect();
        let sweep = |number: usize| Sweep {
            number,
            shared: &all[if known { 0 } else { number }],
            range: (1024, 1 << 20),
            processes: 11,
            ..exp_sweep(&clock, &cancel)
        };
        let mut swept: Vec<(Sweep<'_>, Swept)> = (0..12).map(|i| (sweep(i), Swept::default())).collect();
        in_turns(&mut swept, &mut looker, seed);
        all.iter().for_each(|shared| shared.settle(|_, _| None));
        let off = |(sweep, swept): &(Sweep<'_>, Swept)| match sweep.found(swept).unwrap()[0].outcome {
            Outcome::Crossing { size, .. } => (size as f64 / 4e4).ln(),
            ref other => panic!("{other:?}"),
        };
        let off: Vec<f64> = swept.iter().map(off).collect();
        let mean = off.iter().sum::<f64>() / off.len() as f64;
        [0.0, mean].map(|from| off.iter().map(|off| (off - from).powi(2)).sum())
    };
    let all = |by: f64| {
        let sum =
            |known: bool| (0..6).map(|seed| off(seed, by, known)).fold([0.0; 2], |a, b| [a[0] + b[0], a[1] + b[1]]);
        [sum(true), sum(false)]
    };
    let [known, alone] = all(0.2);
    assert!(known[0] < 0.9 * alone[0] && known[1] < 0.7 * alone[1], "{known:?} {alone:?}");
    let [known, alone] = all(0.0);
    assert_eq!(known, alone, "nothing in common");
}

/// A device that is slower for seconds, and all the while by so much; what tells of it is read with some noise.
struct Slowed {
    always: f64,
    clock: Arc<VirtualClock>,
    rng: Philox,
    looks: u64,
    state: f64,
    /// Whether its state is read.
    read: bool,
}

impl Looker for Slowed {
    fn look(&mut self, order: &Order, _: usize, _: &Cancel) -> Result<Option<Timed>> {
        self.clock.sleep(Duration::from_millis(40));
        self.looks += 1;
        let keep: f64 = 0.97;
        self.state = keep * self.state + 0.08 * (1.0 - keep * keep).sqrt() * self.rng.normal(1, self.looks);
        let (slow, noise) = (self.always + self.state, |stream| 0.04 * self.rng.normal(stream, self.looks));
        let n = case::parse(&order.case)?.dim("n") as f64;
        let (device, cpu) = (4e-5 * (slow + noise(2)).exp(), n * 1e-9);
        let read = Reading { cpu_s: 1e-5 * (0.2 * noise(3)).exp(), device_s: 3e-5 * (slow + noise(4)).exp() };
        let readings = if self.read && order.read { vec![read] } else { Vec::new() };
        Ok(Some(Timed { readings, ..timed(vec![cpu; order.pairs], vec![vec![device; order.pairs]]) }))
    }
}

/// Two calibrations of one machine, of which the second found the device slower by a tenth for all of its time.
#[test]
fn crossings_are_stated_for_the_state_that_is_asked_for() {
    type Crossings = Vec<(u64, [u64; 2])>;
    let run_from =
        |from: u64, seed: u64, always: f64, read: bool, asked: Option<Reading>| -> (Crossings, Option<State>) {
            let (clock, cancel) = (Arc::new(VirtualClock::new()), Cancel::new());
            let mut looker =
                Slowed { always, clock: Arc::clone(&clock), rng: Philox::new(seed), looks: 0, state: 0.0, read };
            let shared = Shared::default();
            let sweep = |number: usize| Sweep {
                number,
                shared: &shared,
                range: (from, 1 << 20),
                processes: 11,
                ..exp_sweep(&clock, &cancel)
            };
            let mut swept: Vec<(Sweep<'_>, Swept)> = (0..12).map(|i| (sweep(i), Swept::default())).collect();
            in_turns(&mut swept, &mut looker, seed);
            shared.settle(|id, residency| asked.filter(|_| (id, residency) == ("sim:none", Residency::Resident)));
            let found = |(sweep, swept): &(Sweep<'_>, Swept)| match sweep.found(swept).unwrap().remove(0).outcome {
                Outcome::Crossing { size, ci, .. } => (size, ci),
                other => panic!("{other:?}"),
            };
            (swept.iter().map(found).collect(), shared.states().first().map(|(.., state)| *state))
        };
    let run = |seed, always, read, asked| run_from(1024, seed, always, read, asked);
    let mean = |all: &Crossings| all.iter().map(|(size, _)| (*size as f64).ln()).sum::<f64>() / all.len() as f64;
    for seed in 0..3 {
        let (first, state) = run(seed, 0.0, true, None);
        let state = state.unwrap();
        assert!((state.read.device_s / 3e-5).ln().abs() < 0.05 && state.error == 0.0, "{state:?}");
        let (later, stated) = run(100 + seed, 0.1, true, Some(state.read));
        assert_eq!(stated.unwrap().stated, state.read);
        let (unread, none) = run(100 + seed, 0.1, false, Some(state.read));
        assert_eq!(none, None);
        let [off, without] = [&later, &unread].map(|all| mean(all) - mean(&first));
        assert!(without > 0.07 && off.abs() < 0.03, "{seed}: {off} instead of {without}");
        let meet = first.iter().zip(&later).filter(|((_, a), (_, b))| a[0] <= b[1] && b[0] <= a[1]).count();
        assert!(meet >= 11, "{seed}: {meet} of 12 intervals meet");
        assert!(later.iter().all(|(size, ci)| ci[0] <= *size && *size <= ci[1]));
    }
    // A faster device would win below the sizes that were measured, where nothing is known: a run on PoCL was lost to that.
    let (_, state) = run_from(37_000, 1, 0.0, true, None);
    let faster = state.map(|s| Reading { device_s: 0.8 * s.read.device_s, ..s.read });
    let (all, state) = run_from(37_000, 1, 0.0, true, faster);
    assert_eq!(state.map(|s| s.stated), faster);
    assert!(all.iter().all(|(size, ci)| *size == 37_000 && ci[0] == 37_000 && ci[1] < 40_000), "{all:?}");
}

/// A device that takes what the CPU takes for so many input elements, whatever it computes.
struct Even(f64);

impl Looker for Even {
    fn look(&mut self, order: &Order, _: usize, _: &Cancel) -> Result<Option<Timed>> {
        let case = case::parse(&order.case)?;
        let elements = (op::find(case.op)?.work)(&case) as f64;
        let (cpu, devices) = (vec![1e-9 * elements; order.pairs], vec![vec![1e-9 * self.0; order.pairs]]);
        Ok(Some(timed(cpu, devices)))
    }
}

/// Two runs of one machine called two neighbours among the sweep's images the crossing.
#[test]
fn a_crossing_between_two_images_is_known_between_them() {
    let (clock, cancel, op) = (Arc::new(VirtualClock::new()), Cancel::new(), op::find("conv2d").unwrap());
    let sweep = Sweep { op, family: &op.families[0], range: (1000, 1 << 20), ..exp_sweep(&clock, &cancel) };
    for size in [1150, 1255] {
        assert!(sweep.size(size).unwrap().abs_diff(size) >= 40, "no image of the sweep");
        let (mut swept, mut looker) = (Swept::default(), Even(size as f64));
        sweep.begin(&mut looker, &mut swept).unwrap();
        for depth in [Depth::First, Depth::Full(5)] {
            swept.waits = true;
            while swept.waits {
                sweep.turn(&mut looker, &mut swept, depth).unwrap();
            }
        }
        let found = sweep.found(&swept).unwrap().remove(0).outcome;
        let Outcome::Crossing { size: found, ci: [low, high], .. } = found else { panic!("{swept:?}") };
        assert!(found.abs_diff(size) <= size / 50, "{found} instead of {size}");
        assert!(
            low <= size + size / 50 && size <= high + size / 50 && high < low + low / 10,
            "[{low}, {high}] around {size}"
        );
    }
}

/// Keeps how many pairs each look had.
struct Counted(f64, Vec<usize>);

impl Looker for Counted {
    fn look(&mut self, order: &Order, process: usize, cancel: &Cancel) -> Result<Option<Timed>> {
        self.1.push(order.pairs);
        let found = Dying(usize::MAX).look(order, process, cancel)?;
        let slower = |all: Vec<f64>| all.into_iter().map(|s| s * self.0).collect::<Vec<f64>>();
        Ok(found.map(|t| Timed { cpu: slower(t.cpu), devices: t.devices.into_iter().map(slower).collect(), ..t }))
    }
}

/// A pair takes about 80 us around the crossing, and so many times as long.
#[test]
fn short_calls_have_more_pairs_where_the_interval_is_what_matters() {
    let (clock, cancel) = (Arc::new(VirtualClock::new()), Cancel::new());
    let sweep = Sweep { range: (1024, 1 << 20), processes: 11, ..exp_sweep(&clock, &cancel) };
    for (slower, pairs) in [(1.0, 9..=9), (15.0, 4..=8), (1000.0, LEAST..=LEAST)] {
        let (mut swept, mut looker) = (Swept::default(), Counted(slower, Vec::new()));
        sweep.begin(&mut looker, &mut swept).unwrap();
        for depth in [Depth::First, Depth::Full(11)] {
            let before = looker.1.len();
            swept.waits = true;
            while swept.waits {
                sweep.turn(&mut looker, &mut swept, depth).unwrap();
            }
            let want = if depth == Depth::First { LEAST..=LEAST } else { pairs.clone() };
            assert!(
                looker.1.len() > before && looker.1[before..].iter().all(|n| want.contains(n)),
                "{slower}: {looker:?}",
                looker = looker.1
            );
        }
    }
}
