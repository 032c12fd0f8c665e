//! Which keys are measured and kept: interruption, resuming, budgets, residencies, numbers of threads.

use std::time::Duration;

use gpuctl::base::record::{CalibrateRecord, Record};
use gpuctl::base::sink::{Cancel, Collect, Progress, Sink};
use gpuctl::base::{Attrs, Code, DType, Fill};
use gpuctl::device::sim::{self, Compute, Model};
use gpuctl::jobs::calibrate::{CalibrateConfig, Calibrated, joined, run};
use gpuctl::measure::Residency;
use gpuctl::op::find;
use gpuctl::profile::{Kind, Profile, Verdict};

use crate::{calibrate, config, rig, true_seconds};

/// Small sizes, which a simulated device computes at once.
fn small(ops: &[&str]) -> CalibrateConfig {
    CalibrateConfig { range: Some((1024, 1 << 14)), ..config(ops) }
}

/// Interrupts after so much progress.
struct Interrupt(Cancel, usize);

impl Sink for Interrupt {
    fn record(&mut self, _: &Record) {}
    fn progress(&mut self, _: &Progress) {
        self.1 = self.1.saturating_sub(1);
        if self.1 == 0 {
            self.0.raise();
        }
    }
    fn note(&mut self, _: &str) {}
}

#[test]
fn an_interruption_keeps_what_was_measured_and_is_resumed() {
    let (cpu, gpu) = sim::open("laptop").unwrap();
    let r = rig(cpu, vec![gpu]);
    let cfg = small(&["add", "exp", "relu"]);
    let measured = |c: &Calibrated| c.records.iter().filter(|r| r.verdict != "unmeasured").count();
    let cut_at = |progress: usize| {
        let cancel = Cancel::new();
        let cut = run(&cfg, &r, &mut Interrupt(cancel.clone(), progress), &cancel).unwrap();
        assert!(cut.interrupted && !cut.complete && cut.profile.partial, "{progress}");
        assert_eq!(cut.records.len(), 6, "every key is listed");
        assert_eq!(cut.decided(), measured(&cut), "what is open is to be resumed: {:?}", cut.records);
        cut
    };
    assert_eq!(measured(&cut_at(3)), 0, "while the third key begins");
    // Keys take turns, so their verdicts come close together.
    let cut = (4..200).map(cut_at).find(|cut| measured(cut) >= 2).unwrap();
    assert!(measured(&cut) < 6, "{}", measured(&cut));
    // The file is complete and readable, and says what it is.
    let text = cut.profile.to_toml().unwrap();
    let earlier = Profile::from_toml(&text).unwrap();
    assert!(earlier.partial && earlier.notes.iter().any(|n| n.contains("interrupted")));
    let resumed = calibrate(&CalibrateConfig { earlier: Some(earlier.clone()), ..cfg.clone() }, &r);
    assert_eq!((resumed.kept as usize, resumed.records.len()), (measured(&cut), 6 - measured(&cut)));
    assert!(!resumed.profile.partial && resumed.profile.entries.len() == 6);
    let unmeasured = resumed.profile.entries.iter().filter(|e| e.verdict == Verdict::Unmeasured).count();
    assert_eq!(unmeasured, 0, "{:?}", resumed.profile.entries);
    for old in earlier.entries.iter().filter(|e| e.verdict != Verdict::Unmeasured) {
        assert!(resumed.profile.entries.contains(old), "kept as it was: {old:?}");
    }
    // At once: nothing is known, and that is said.
    let cancel = Cancel::new();
    cancel.raise();
    let nothing = run(&cfg, &r, &mut Collect::default(), &cancel).unwrap();
    assert!(nothing.interrupted && nothing.profile.partial && nothing.decided() == 0);
}

/// Two dozen keys take turns, and an interruption meets others that have not begun.
#[test]
fn an_interruption_lists_every_key_of_many() {
    let (cpu, gpu) = sim::open("laptop").unwrap();
    let r = rig(cpu, vec![gpu]);
    let ops: Vec<&str> = gpuctl::op::all().filter(|op| op.tier == 1).map(|op| op.name).collect();
    let cfg = small(&ops);
    let all =
        run(&CalibrateConfig { budget: Duration::ZERO, ..cfg.clone() }, &r, &mut Collect::default(), &Cancel::new());
    let all = all.unwrap().records.len();
    assert!(all > 100, "{all}");
    let mut after = 0;
    for progress in [1, 30, 85, 118] {
        let cancel = Cancel::new();
        let cfg = CalibrateConfig { budget: Duration::from_millis(800), ..cfg.clone() };
        let cut = run(&cfg, &r, &mut Interrupt(cancel.clone(), progress), &cancel).unwrap();
        assert!(cut.interrupted && cut.profile.partial, "{progress}");
        assert_eq!((cut.records.len(), cut.profile.entries.len()), (all, all), "{progress}: every key is listed");
        after += usize::from(cut.records.iter().any(|r| !r.points.is_empty()));
    }
    assert!(after >= 2, "some had been measured");
}

/// Writes down what is done.
#[derive(Default)]
struct Doing(Vec<String>);

impl Sink for Doing {
    fn record(&mut self, _: &Record) {}
    fn progress(&mut self, p: &Progress) {
        self.0.push(p.doing.clone());
    }
    fn note(&mut self, _: &str) {}
}

/// What the machine does for a while is not to meet all looks of a key: other keys look in between.
#[test]
fn keys_take_turns() {
    let (cpu, gpu) = sim::open("textbook").unwrap();
    let ops = ["relu", "neg", "abs"];
    let cfg = CalibrateConfig { range: Some((1024, 1 << 18)), ..config(&ops) };
    let mut doing = Doing::default();
    run(&cfg, &rig(cpu, vec![gpu]), &mut doing, &Cancel::new()).unwrap();
    for what in ["crossing of", "other shapes of"] {
        let turns: Vec<&str> = doing.0.iter().filter_map(|d| d.strip_prefix(what)).collect();
        let of = |op: &str| -> Vec<usize> { (0..turns.len()).filter(|i| turns[*i].contains(op)).collect() };
        for op in ops {
            let own = of(op);
            assert!(own.len() >= 10, "{what} {op}: {turns:?}");
            // Calls differ in length, so whoever had less time may look a few times more.
            let between = own.windows(2).filter(|w| w[1] > w[0] + 1).count();
            assert!(3 * between >= own.len(), "{what} {op}: {between} of {} with another in between", own.len());
        }
    }
}

/// A verdict over a part of the sizes may cost more than a wide interval.
#[test]
fn sizes_that_were_left_out_come_before_narrower_crossings() {
    let mut reached = 0;
    for ms in [50, 100, 200, 400] {
        let (cpu, gpu) = sim::open("laptop").unwrap();
        let ops = ["exp", "add", "sum", "relu"];
        let budget = Duration::from_millis(ms);
        let cfg = CalibrateConfig { budget, range: Some((1 << 10, 1 << 19)), ..config(&ops) };
        let mut doing = Doing::default();
        let got = run(&cfg, &rig(cpu, vec![gpu]), &mut doing, &Cancel::new()).unwrap();
        let first = |what: &str| doing.0.iter().position(|d| d.starts_with(what)).unwrap_or(usize::MAX);
        let larger = first("larger sizes of");
        if larger < usize::MAX {
            assert!(larger < first("a narrower crossing of") && larger < first("other shapes of"), "{:?}", doing.0);
            reached += u64::from(got.cut < got.decided() as u64);
        }
    }
    assert!(reached > 0, "some keys had all their sizes in the end");
}

#[test]
fn a_complete_profile_is_added_to_and_another_machines_is_not() {
    let (cpu, gpu) = sim::open("laptop").unwrap();
    let r = rig(cpu, vec![gpu]);
    let first = calibrate(&small(&["add"]), &r).profile;
    let both = calibrate(&CalibrateConfig { earlier: Some(first.clone()), ..small(&["exp"]) }, &r);
    assert_eq!((both.kept, both.records.len(), both.profile.entries.len()), (0, 2, 4));
    assert!(first.entries.iter().all(|e| both.profile.entries.contains(e)));
    // Measured now replaces measured then; not measured does not.
    let mut other = first.clone();
    other.entries[0].reason = "of an earlier day".into();
    let again = calibrate(&CalibrateConfig { earlier: Some(other.clone()), ..small(&["add"]) }, &r);
    assert_eq!((again.profile.entries.len(), again.profile.entries.contains(&other.entries[0])), (2, false));
    let none = CalibrateConfig { earlier: Some(other.clone()), budget: Duration::ZERO, ..small(&["add"]) };
    assert!(calibrate(&none, &r).profile.entries.contains(&other.entries[0]));
    let refused = |change: &dyn Fn(&mut Profile)| {
        let mut p = first.clone();
        change(&mut p);
        let cfg = CalibrateConfig { earlier: Some(p), ..small(&["add"]) };
        run(&cfg, &r, &mut Collect::default(), &Cancel::new()).unwrap_err()
    };
    for e in [
        refused(&|p| p.host.as_mut().unwrap().cpu = "another CPU".into()),
        refused(&|p| p.devices[0].fingerprint = "another device".into()),
        refused(&|p| p.margin = 1.5),
        refused(&|p| p.kind = Kind::Preset),
    ] {
        assert!(e.code() == Code::BadArgument && e.to_string().contains("the earlier profile"), "{e}");
    }
}

/// Copies that ten calls share are between copies for each call and none at all.
#[test]
fn operands_that_stay_for_ten_calls_have_a_threshold_of_their_own() {
    let mut spec = sim::spec("textbook").unwrap().quiet();
    (spec.device.link_upload, spec.device.link_download, spec.device.link_latency_s) = (1e11, 1e11, 1e-5);
    (spec.device.link_pinned, spec.device.link_managed) = (Some(4e11), Some(5e10));
    let (cpu, gpu) = sim::open_spec(spec.clone(), Compute::Real).unwrap();
    let op = find("exp").unwrap();
    let range = (1 << 10, 1 << 19);
    let cfg = CalibrateConfig { residencies: Residency::ALL.to_vec(), range: Some(range), ..config(&["exp"]) };
    let got = calibrate(&cfg, &rig(cpu, vec![gpu]));
    let of = |r: Residency| got.records.iter().find(|k| k.residency == r.name()).unwrap();
    let size = |r| of(r).crossing.unwrap_or(u64::MAX);
    assert!(size(Residency::Resident) < size(Residency::Once), "{:?}", got.records);
    assert!(size(Residency::Once) < size(Residency::Always), "{:?}", got.records);
    assert!(size(Residency::AlwaysPinned) < size(Residency::Always), "{:?}", got.records);
    // Memory that migrates when it is touched comes at half the rate of copies; sent ahead, it is copied.
    assert!(size(Residency::Always) < size(Residency::Managed), "{:?}", got.records);
    assert!(size(Residency::ManagedPrefetched) < size(Residency::Managed), "{:?}", got.records);
    let seconds = |n: u64, model: &Model, residency| {
        let case = op.case(DType::F32, &[n], Attrs::new(), Fill::Uniform).unwrap();
        true_seconds(model, op, &case, residency)
    };
    for residency in [Residency::Once, Residency::AlwaysPinned, Residency::Managed, Residency::ManagedPrefetched] {
        let [low, high] = of(residency).ci.unwrap();
        let wins = |n: u64| seconds(n, &spec.device, residency) < seconds(n, &spec.cpu, Residency::Resident);
        assert!(!wins(low - low / 50) && wins(high + high / 50), "{residency:?}: {low} to {high}");
    }
    // Where there is no such memory, the key says so and the others are measured.
    let (cpu, gpu) = sim::open("textbook").unwrap();
    let got = calibrate(&cfg, &rig(cpu, vec![gpu]));
    assert!(got.complete && got.decided() == 3, "{:?}", got.records);
    let missing: Vec<_> = got.records.iter().filter(|r| r.verdict == "unmeasured").collect();
    let words: Vec<_> = missing.iter().map(|r| r.residency.as_str()).collect();
    assert_eq!(words, ["always-pinned", "managed", "managed-prefetched"]);
    for (record, kind) in missing.iter().zip(["Pinned", "Managed", "Managed"]) {
        assert!(record.reason.contains(&format!("no {kind} memory")), "{}", record.reason);
    }
}

/// A CPU with half the threads is another CPU: another key, another threshold.
#[test]
fn numbers_of_threads_are_keys_of_their_own() {
    let spec = sim::spec("textbook").unwrap().quiet();
    let with = |units: u32| {
        let mut spec = spec.clone();
        let share = f64::from(units) / f64::from(spec.cpu.units);
        spec.cpu.units = units;
        spec.cpu.rates.values_mut().for_each(|r| *r *= share);
        let (cpu, gpu) = sim::open_spec(spec, Compute::Real).unwrap();
        let cfg = CalibrateConfig { range: Some((1 << 10, 1 << 19)), ..config(&["exp"]) };
        calibrate(&cfg, &rig(cpu, vec![gpu]))
    };
    let (one, two) = (with(1), with(2));
    let both = joined(vec![one.clone(), two.clone()]).unwrap();
    assert_eq!((both.profile.entries.len(), both.records.len(), both.profile.devices.len()), (4, 4, 1));
    let of = |threads: u32| {
        let mut all = both.profile.entries.iter();
        all.find(|e| e.threads == threads && e.residency == "resident").unwrap().crossing.unwrap()
    };
    assert!(of(1) < of(2), "a slower CPU loses earlier: {} {}", of(1), of(2));
    assert_eq!(Profile::from_toml(&both.profile.to_toml().unwrap()).unwrap(), both.profile);
    let cut = Calibrated { interrupted: true, profile: Profile { partial: true, ..two.profile.clone() }, ..two };
    let both = joined(vec![one, cut]).unwrap();
    assert!(both.interrupted && both.profile.partial);
    assert_eq!(joined(Vec::new()).unwrap_err().code(), Code::BadArgument);
}

/// What takes little time comes first: a verdict for every key that a few processes suffice for.
#[test]
fn a_short_budget_gives_most_keys_a_verdict() {
    for seconds in [1] {
        let (cpu, gpu) = sim::open("laptop").unwrap();
        let cfg = CalibrateConfig {
            budget: Duration::from_secs(seconds),
            ..config(&["relu", "exp", "add", "softmax", "sum", "layernorm"])
        };
        let got = calibrate(&cfg, &rig(cpu, vec![gpu]));
        let (decided, all) = (got.decided(), got.records.len());
        assert!(4 * decided >= 3 * all, "{seconds} s: {decided} of {all}");
        // Larger sizes, too, were looked at; what came of them does not undo what was known without, nor is it part of that.
        for r in got.records.iter().filter(|r| r.verdict == "never") {
            assert!(r.reason.contains(&format!(" to {}", r.points.last().unwrap().size)), "{r:?}");
        }
        // Rows of softmax come in whole numbers: many sizes are one shape, which is measured once.
        for record in got.records.iter().filter(|r| r.op == "softmax") {
            assert!(record.points.windows(2).all(|w| w[0].size < w[1].size), "{:?}", record.points);
        }
    }
}

/// Time that some keys do not need goes to those that it was not enough for. What is left in the end is less than ten times
/// what the next look would take.
#[test]
fn no_time_is_left_while_a_key_is_open() {
    let mut ended_open = 0;
    for ms in [40, 80, 160, 320, 640] {
        let (cpu, gpu) = sim::open("laptop").unwrap();
        let clock = cpu.clock();
        let cfg = CalibrateConfig {
            budget: Duration::from_millis(ms),
            range: Some((1 << 10, 1 << 17)),
            ..config(&["exp", "add", "sum", "relu"])
        };
        let got = calibrate(&cfg, &rig(cpu, vec![gpu]));
        let (spent, budget) = (clock.now(), cfg.budget.as_secs_f64());
        assert!(spent < 1.1 * budget + 0.02, "{spent} of {budget}");
        let for_time = |r: &&CalibrateRecord| r.reason.contains("the budget") || r.reason.contains("the key has");
        let open = got.records.iter().filter(for_time).count();
        ended_open += open;
        assert!(open == 0 || spent > 0.8 * budget, "{ms} ms: {open} open, {spent} of {budget}: {:#?}", got.records);
    }
    assert!(ended_open > 0, "the smallest budgets are not enough");
}
