//! Placing calls by a profile: policies, the index against the plain scan, and what a choice and a placed call cost in memory.

#![allow(clippy::print_stdout, reason = "a test tells what it skipped and found")]
#![allow(unsafe_code, reason = "an allocator that counts")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::hint::black_box;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use gpuctl::base::record::CalibratePoint;
use gpuctl::base::rng::Philox;
use gpuctl::base::{Attrs, Cost, DType, Env, Features, Fill, HostTensor, MOST_DIMS};
use gpuctl::device::cpu::{CpuDevice, Pin};
use gpuctl::device::sim;
use gpuctl::engine::{Engine, Placement, Runner};
use gpuctl::kernel::Isa;
use gpuctl::measure::{OpSubject, Residency, Subject};
use gpuctl::op;
use gpuctl::profile::model::{Curve, Side};
use gpuctl::profile::{
    ANY, Call, Chooser, Entry, Key, Kind, Operands, Place, Policy, Profile, ProfileDevice, Reason, Rule, Transfer,
    Verdict, load,
};

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
    /// Bytes.
    static LARGEST: Cell<usize> = const { Cell::new(0) };
}

struct Counting;

// SAFETY: every call goes to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    // SAFETY: as the trait demands of the caller.
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let _ = ALLOCATIONS.try_with(|n| n.set(n.get() + 1));
        let _ = LARGEST.try_with(|n| n.set(n.get().max(layout.size())));
        // SAFETY: the caller's layout.
        unsafe { System.alloc(layout) }
    }
    // SAFETY: as the trait demands of the caller.
    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: allocated above with this layout.
        unsafe { System.dealloc(memory, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

fn allocations(f: impl FnOnce()) -> u64 {
    let before = ALLOCATIONS.get();
    f();
    ALLOCATIONS.get() - before
}

/// Bytes of the largest allocation.
fn largest(f: impl FnOnce()) -> usize {
    LARGEST.set(0);
    f();
    LARGEST.get()
}

fn device(uid: &str) -> ProfileDevice {
    ProfileDevice { id: uid.into(), uid: uid.into(), backend: "cuda".into(), ..ProfileDevice::default() }
}

/// Times that grow with the size; the device wins from `threshold` elements on.
fn entry(uid: &str, residency: &str, threshold: u64, device_ns: f64) -> Entry {
    let point = |size: u64| CalibratePoint {
        size,
        cpu_s: size as f64 * 1e-9,
        gpu_s: size as f64 * device_ns * 1e-9,
        ratio_ci: [0.9, 1.1],
        pairs: 5,
    };
    Entry {
        op: "exp".into(),
        dtype: "f32".into(),
        family: "all".into(),
        device: uid.into(),
        residency: residency.into(),
        threads: 8,
        cpu_variant: "auto".into(),
        verdict: Verdict::Crossing,
        unit: "elements".into(),
        crossing: Some(threshold),
        threshold: Some(threshold),
        n: 2,
        verify: "ok".into(),
        points: vec![point(10), point(100_000)],
        ..Entry::default()
    }
}

fn profile(devices: &[&str], entries: Vec<Entry>) -> Profile {
    let mut p = Profile::new(Kind::Calibrated, "synthetic");
    p.devices = devices.iter().map(|d| device(d)).collect();
    p.entries = entries;
    p
}

fn exp(n: u64, operands: Operands<'_>) -> Call<'_> {
    let mut dims = [0; MOST_DIMS];
    dims[0] = n;
    let cost = Cost { flops: n, read: 4 * n, written: 4 * n };
    Call {
        op: "exp",
        dtype: DType::F32,
        family: Some("all"),
        unit: "elements",
        features: Features { work: u128::from(n), cost, dims },
        operands,
        threads: 8,
        cpu_variant: "auto",
    }
}

/// Device uid (or "cpu") and reason, by the scan and by the index.
fn chosen(p: &Profile, policy: Policy, call: &Call<'_>) -> (String, Reason) {
    let placed = p.choose(policy, call);
    let chooser = Chooser::new(p.clone());
    assert_eq!(chooser.choose(policy, call), placed, "the index answers otherwise: {policy:?} {call:?}");
    assert_eq!(placed.place == Place::Gpu, placed.device.is_some(), "{placed:?}");
    (placed.device.map_or("cpu".into(), |d| d.uid.clone()), placed.why)
}

fn is(answer: (String, Reason), device: &str, why: Reason) {
    assert_eq!((answer.0.as_str(), answer.1), (device, why));
}

#[test]
fn automatic_goes_by_where_the_operands_are() {
    let p = profile(&["a"], vec![entry("a", "always", 1000, 0.5), entry("a", "resident", 100, 0.1)]);
    let auto = |n, operands| chosen(&p, Policy::Automatic, &exp(n, operands));
    is(auto(999, Operands::Host), "cpu", Reason::BelowThreshold);
    is(auto(1000, Operands::Host), "a", Reason::ReachesThreshold);
    is(auto(99, Operands::Device("a")), "cpu", Reason::BelowThreshold);
    is(auto(100, Operands::Device("a")), "a", Reason::ReachesThreshold);
    is(auto(1 << 40, Operands::Device("gone")), "cpu", Reason::NoDevice);
    let outside = Call { family: None, ..exp(1 << 40, Operands::Host) };
    is(chosen(&p, Policy::Automatic, &outside), "cpu", Reason::NoFamily);
}

#[test]
fn the_cheapest_of_several_devices() {
    let uids = ["a", "b", "c", "d"];
    let speeds = [0.5, 0.2, 0.4, 0.1];
    let entries = uids.iter().zip(speeds).map(|(d, s)| entry(d, "always", 1000, s)).collect();
    let mut p = profile(&uids, entries);
    // The fastest one crosses late: it takes part from there on.
    p.entries[3].threshold = Some(50_000);
    is(chosen(&p, Policy::Automatic, &exp(2000, Operands::Host)), "b", Reason::ReachesThreshold);
    is(chosen(&p, Policy::Automatic, &exp(50_000, Operands::Host)), "d", Reason::ReachesThreshold);
    is(chosen(&p, Policy::Automatic, &exp(10, Operands::Host)), "cpu", Reason::BelowThreshold);
    // By cost alone thresholds do not count.
    is(chosen(&p, Policy::CostBased, &exp(10, Operands::Host)), "d", Reason::PredictedFaster);
    // A device that cannot be used gives way to the next, and is asked only when it is its turn.
    let chooser = Chooser::new(p.clone());
    let mut asked = Vec::new();
    let call = exp(50_000, Operands::Host);
    let placed = chooser.choose_among(Policy::Automatic, &call, |d| {
        asked.push(d);
        d != 3
    });
    assert_eq!((placed.device.unwrap().uid.as_str(), asked), ("b", vec![0, 1, 3]));
    // Wrong results are never fast.
    p.entries[3].verdict = Verdict::Unsafe;
    is(chosen(&p, Policy::CostBased, &exp(50_000, Operands::Host)), "b", Reason::PredictedFaster);
}

/// By their curves the sides meet at 100,000 elements, wherever the threshold stands.
#[test]
fn a_profile_that_goes_by_curves() {
    let side = |fixed_s, flop_s| Side { fixed_s, flop_s, ..Side::default() };
    let curve = Curve { span: [[1.0, 1e7]; 4], cpu: side(0.0, 1e-9), device: side(90e-6, 1e-10), ..Curve::default() };
    let mut p = profile(&["a"], vec![Entry { curve: Some(curve), ..entry("a", "always", 1_000_000, 0.5) }]);
    let auto = |p: &Profile, n| chosen(p, Policy::Automatic, &exp(n, Operands::Host));
    is(auto(&p, 200_000), "cpu", Reason::BelowThreshold);
    p.rule = Rule::Curve;
    is(auto(&p, 100_100), "a", Reason::PredictedFaster);
    is(auto(&p, 99_900), "cpu", Reason::PredictedSlower);
    p.entries[0].threshold = Some(10);
    is(auto(&p, 99_900), "cpu", Reason::PredictedSlower);
    // Beyond what was measured the curve says nothing, and the threshold decides.
    is(auto(&p, 1 << 40), "a", Reason::ReachesThreshold);
    let (chooser, call) = (Chooser::new(p.clone()), exp(200_000, Operands::Host));
    let count = allocations(|| assert_eq!(black_box(chooser.choose(Policy::Automatic, &call)).place, Place::Gpu));
    assert_eq!(count, 0);
    p.entries[0].verdict = Verdict::Unsafe;
    is(auto(&p, 200_000), "cpu", Reason::Unsafe);
    p.entries[0] = entry("a", "always", 1000, 0.5);
    is(auto(&p, 2000), "a", Reason::ReachesThreshold);
}

#[test]
fn forced_sides() {
    let p = profile(&["a", "b"], vec![entry("a", "always", 1000, 0.5), entry("b", "always", 1000, 0.2)]);
    for n in [1, 1 << 30] {
        is(chosen(&p, Policy::ForceCpu, &exp(n, Operands::Device("a"))), "cpu", Reason::Forced);
        is(chosen(&p, Policy::ForceGpu, &exp(n, Operands::Host)), "b", Reason::Forced);
        is(chosen(&p, Policy::ForceGpu, &exp(n, Operands::Device("a"))), "a", Reason::Forced);
    }
    let unknown = Call { op: "tanh", ..exp(5, Operands::Host) };
    is(chosen(&p, Policy::ForceGpu, &unknown), "a", Reason::Forced);
    is(chosen(&profile(&[], vec![]), Policy::ForceGpu, &unknown), "cpu", Reason::NoGpu);
}

#[test]
fn transfers_are_least_where_the_operands_are() {
    let mut p = profile(&["a"], vec![entry("a", "always", 1000, 0.5), entry("a", "resident", 100, 0.1)]);
    let there = |p: &Profile, n| chosen(p, Policy::MinimizeTransfers, &exp(n, Operands::Device("a")));
    is(there(&p, 1), "a", Reason::OperandsThere);
    is(chosen(&p, Policy::MinimizeTransfers, &exp(1 << 40, Operands::Host)), "cpu", Reason::OperandsThere);
    p.entries[1].verdict = Verdict::Never;
    is(there(&p, 1), "a", Reason::OperandsThere);
    for (verdict, why) in [(Verdict::Unsafe, Reason::Unsafe), (Verdict::Unmeasured, Reason::Unmeasured)] {
        p.entries[1].verdict = verdict;
        is(there(&p, 1), "cpu", why);
    }
    p.entries.pop();
    is(there(&p, 1), "cpu", Reason::NoResidency);
}

/// On the device 1.2 ns an element, on the CPU 1 ns: the copy back at 1 ns a byte tips the scales.
#[test]
fn costs_count_the_copy_off_the_device() {
    let mut p = profile(&["a", "b"], vec![entry("a", "resident", 1000, 1.2), entry("b", "always", 1000, 0.3)]);
    let by_cost = |p: &Profile, o| chosen(p, Policy::CostBased, &exp(10_000, o));
    is(by_cost(&p, Operands::Device("a")), "b", Reason::PredictedFaster);
    p.entries[1].op = "tanh".into();
    is(by_cost(&p, Operands::Device("a")), "cpu", Reason::PredictedSlower);
    let link = |uid: &str| Transfer {
        device: uid.into(),
        h2d_latency_s: 0.0,
        h2d_bytes_per_s: 1e9,
        d2h_latency_s: 0.0,
        d2h_bytes_per_s: 1e9,
    };
    p.transfers = vec![link("a")];
    is(by_cost(&p, Operands::Device("a")), "a", Reason::PredictedFaster);
    let times = p.choose(Policy::CostBased, &exp(10_000, Operands::Device("a"))).times.unwrap();
    // 10 us to compute, 40 us to copy 40,000 bytes.
    assert!((times.cpu_s - 50e-6).abs() < 1e-9 && (times.device_s - 12e-6).abs() < 1e-9, "{times:?}");
    // By way of the host: the copy off `a` and the whole call on `b`.
    p.entries[1].op = "exp".into();
    is(by_cost(&p, Operands::Device("a")), "a", Reason::PredictedFaster);
    p.entries[0].points.clear();
    is(by_cost(&p, Operands::Device("a")), "b", Reason::PredictedFaster);
    p.entries[1].points.clear();
    is(by_cost(&p, Operands::Device("a")), "cpu", Reason::NoPrediction);
}

#[test]
fn presets_mean_any_gpu_and_predict_nothing() {
    let p = load("preset:always-gpu").unwrap().profile;
    let e = &p.entries[0];
    let call = Call { op: &e.op, unit: &e.unit, ..exp(1 << 40, Operands::Host) };
    for (policy, place, why) in [
        (Policy::ForceGpu, Place::Gpu, Reason::Forced),
        (Policy::ForceCpu, Place::Cpu, Reason::Forced),
        (Policy::MinimizeTransfers, Place::Cpu, Reason::OperandsThere),
        (Policy::CostBased, Place::Cpu, Reason::NoPrediction),
    ] {
        let placed = p.choose(policy, &call);
        assert_eq!((placed.place, placed.why, placed.device), (place, why, None), "{policy:?}");
        assert!(placed.assumed || policy == Policy::ForceCpu);
        assert_eq!(Chooser::new(p.clone()).choose(policy, &call), placed);
    }
    let placed = p.choose(Policy::Automatic, &call);
    assert!(placed.place == Place::Gpu && placed.assumed && placed.entry.is_some(), "{placed:?}");
    assert_eq!(Chooser::new(p.clone()).choose(Policy::Automatic, &call), placed);
    for policy in Policy::ALL {
        assert_eq!(policy.name().parse::<Policy>().unwrap(), policy);
    }
    assert!("fast".parse::<Policy>().unwrap_err().to_string().contains("cost-based"));
}

/// Entries of random parts, so that keys differ in one part or several, are listed twice, or match anything.
fn random(rng: &Philox, seed: u64, wild: bool) -> Profile {
    let at = |i: u64, n: usize| rng.u64(seed, i) as usize % n;
    let pick = |i: u64, words: &[&str]| words[at(i, words.len())].to_string();
    // One device alone takes a shorter way.
    let mut p = if seed.is_multiple_of(3) { profile(&["u2"], vec![]) } else { profile(&["u1", "u2", "u3"], vec![]) };
    if wild && seed.is_multiple_of(4) {
        p.kind = Kind::Preset;
    }
    if seed % 5 > 1 {
        p.rule = Rule::Curve;
    }
    for k in 0..at(0, 60) as u64 {
        let i = 100 + 20 * k;
        let mut e = entry("u1", "always", 1 + at(i, 2000) as u64, 0.1 + at(i + 1, 20) as f64 / 10.0);
        let any = |i: u64| wild && at(i, 8) == 0;
        e.op = pick(i + 2, &["exp", "ex", "e", "exponential", "conv2d_bwd_weight", &"x".repeat(300)]);
        e.dtype = if any(i + 3) { ANY.into() } else { pick(i + 4, &["f32", "f64"]) };
        e.family = if any(i + 5) { ANY.into() } else { pick(i + 6, &["all", "square", "tall and narrow"]) };
        e.device = if any(i + 7) { ANY.into() } else { pick(i + 8, &["u1", "u2", "u3", "elsewhere"]) };
        e.residency = if any(i + 9) { ANY.into() } else { pick(i + 10, &["always", "resident", "once"]) };
        e.threads = if any(i + 11) { 0 } else { 1 + at(i + 12, 2) as u32 };
        e.cpu_variant = if any(i + 13) { ANY.into() } else { pick(i + 14, &["auto", "naive"]) };
        e.unit = pick(i + 15, &["elements", "elements", "dim"]);
        e.verdict = Verdict::ALL[at(i + 16, Verdict::ALL.len())];
        // More work than 64 bits hold, where a dimension is cubed.
        e.threshold = if at(i + 17, 20) == 0 { Some(1 << 40) } else { e.threshold };
        e.curve = (at(i + 18, 3) > 0).then(|| {
            let side = |flop_s: f64, fixed_s: f64| Side { fixed_s, flop_s, byte_s: 1e-11, ..Side::default() };
            let times = 1.0 + at(i + 19, 20) as f64;
            Curve {
                span: [[1.0, 1e3 * times]; 4],
                cpu: side(1e-9, 1e-8),
                device: side(1e-11, times * 1e-7),
                ..Curve::default()
            }
        });
        p.entries.push(e);
    }
    p
}

/// Words with one place in memory each, three of them with the same one.
static LONGEST: &str = "exponential";
static WORDS: [&str; 10] =
    [LONGEST, "conv2d_bwd_weight", "other", "all", "square", "elements", "dim", "auto", "naive", "any"];

/// Whatever the entries, whatever is asked: the index says what the plain scan says, entry and reason included, whether it
/// knows the words by their place in memory or not.
#[test]
fn the_index_answers_as_the_scan_does() {
    let rng = Philox::new(11);
    let (mut met, mut gpu, mut asked) = (0u64, 0u64, 0u64);
    let long = "x".repeat(300);
    for seed in 0..300 {
        let p = random(&rng, seed, seed % 2 == 1);
        let ops = [LONGEST, &LONGEST[..3], &LONGEST[..2], WORDS[1], WORDS[2], ""].into_iter();
        let words = ops.flat_map(|op| [3, 4, 9].map(|f| [5, 6].map(|unit| [op, WORDS[f], WORDS[unit]]))).flatten();
        let chooser = Chooser::knowing(p.clone(), words.filter(|_| seed / 2 % 2 == 1));
        // The same, but for an entry that no call has and that keeps it from short ways.
        let mut longer = p.clone();
        longer.entries.push(Entry { op: "none".into(), dtype: ANY.into(), ..entry("u2", "always", 1, 1.0) });
        let longer = Chooser::new(longer);
        for q in 0..200 {
            let stream = 1_000_000 + seed * 1000 + q;
            let at = |i: u64, n: usize| rng.u64(stream, i) as usize % n;
            // Half of the calls are those of an entry but for one part.
            let own = (at(10, 2) == 0 && !p.entries.is_empty()).then(|| &p.entries[at(11, p.entries.len())]);
            let drawn = Call {
                op: [&LONGEST[..3], &LONGEST[..2], LONGEST, WORDS[1], &long, WORDS[2]][at(0, 6)],
                dtype: [DType::F32, DType::F64, DType::I8][at(1, 3)],
                family: [Some(WORDS[3]), Some(WORDS[4]), Some(WORDS[9]), None][at(2, 4)],
                unit: WORDS[5 + at(3, 2)],
                threads: [1, 2, 0][at(4, 3)],
                cpu_variant: WORDS[7 + at(5, 3)],
                ..exp(1 << at(6, 12), [Operands::Host, Operands::Device("u2"), Operands::Device("elsewhere")][at(7, 3)])
            };
            let call = own.map_or(drawn, |e| {
                let changed = at(12, 10);
                let operands = if e.residency == "resident" { Operands::Device(&e.device) } else { Operands::Host };
                Call {
                    op: if changed == 0 { drawn.op } else { &e.op },
                    dtype: e.dtype.parse().ok().filter(|_| changed != 1).unwrap_or(drawn.dtype),
                    family: if changed == 2 { drawn.family } else { Some(&e.family) },
                    unit: if changed == 3 { drawn.unit } else { &e.unit },
                    threads: if changed == 4 { drawn.threads } else { e.threads },
                    cpu_variant: if changed == 5 { drawn.cpu_variant } else { &e.cpu_variant },
                    operands: if changed == 6 { drawn.operands } else { operands },
                    ..drawn
                }
            });
            for policy in Policy::ALL {
                let want = p.choose(policy, &call);
                assert_eq!(chooser.choose(policy, &call), want, "{seed} {policy:?} {call:?}");
                let refused = chooser.choose_among(policy, &call, |_| false);
                assert_eq!(refused, longer.choose_among(policy, &call, |_| false), "{seed} {policy:?} {call:?}");
                gpu += u64::from(want.place == Place::Gpu && policy != Policy::ForceGpu);
                met += u64::from(want.entry.is_some());
                asked += 1;
            }
            let key = Key {
                op: call.op,
                dtype: call.dtype,
                family: call.family,
                unit: call.unit,
                device_uid: ["u1", "u2", "elsewhere", "any", ""][at(8, 5)],
                residency: ["always", "resident", "once", "any", "never"][at(9, 5)],
                threads: call.threads,
                cpu_variant: call.cpu_variant,
            };
            assert_eq!(chooser.lookup(&key, call.features.work), p.lookup(&key, call.features.work), "{seed} {key:?}");
        }
    }
    println!("{asked} choices, {met} by an entry, {gpu} for a device");
    assert!(
        met > asked / 40 && gpu > 500,
        "{asked} choices, {met} by an entry, {gpu} for a device: too few to mean much"
    );
}

/// 10,000 keys of the op table's names, dtypes, families, residencies and numbers of threads.
fn many() -> Profile {
    let mut p = profile(&["GPU-aaaaaaaa-0000-0000-0000-000000000000"], vec![]);
    let uid = p.devices[0].uid.clone();
    'all: for threads in 1..=64 {
        for o in op::all().filter(|o| o.unit != op::Unit::Bytes && o.unit != op::Unit::Calls) {
            for dtype in o.dtypes {
                for family in o.families {
                    for residency in ["always", "resident"] {
                        let mut e = entry(&uid, residency, 1000, 0.5);
                        e.op = o.name.into();
                        e.dtype = dtype.name().into();
                        e.family = family.name.into();
                        e.unit = o.unit.name().into();
                        e.threads = threads;
                        p.entries.push(e);
                        if p.entries.len() == 10_000 {
                            break 'all;
                        }
                    }
                }
            }
        }
    }
    p
}

/// The calls of all entries, shuffled.
fn calls(p: &Profile) -> Vec<Call<'_>> {
    let uid = p.devices[0].uid.as_str();
    let mut calls: Vec<Call<'_>> = p
        .entries
        .iter()
        .enumerate()
        .map(|(i, e)| Call {
            op: &e.op,
            dtype: e.dtype.parse().unwrap(),
            family: Some(&e.family),
            unit: &e.unit,
            threads: e.threads,
            ..exp(
                if i % 2 == 0 { 10 } else { 1 << 40 },
                if e.residency == "always" { Operands::Host } else { Operands::Device(uid) },
            )
        })
        .collect();
    let rng = Philox::new(7);
    for i in (1..calls.len()).rev() {
        calls.swap(i, rng.u64(0, i as u64) as usize % (i + 1));
    }
    calls
}

#[test]
fn a_choice_allocates_nothing() {
    let p = many();
    assert_eq!(p.entries.len(), 10_000);
    let chooser = Chooser::new(p.clone());
    let calls = calls(&p);
    let (mut gpu, mut met) = (0, 0);
    let count = allocations(|| {
        for call in &calls {
            for policy in Policy::ALL {
                let placed = chooser.choose(policy, call);
                gpu += u32::from(placed.place == Place::Gpu);
                met += u32::from(placed.entry.is_some());
            }
            let unknown = Call { cpu_variant: "other", ..*call };
            gpu += u32::from(chooser.choose(Policy::Automatic, &unknown).place == Place::Gpu);
        }
        for call in calls.iter().step_by(100) {
            gpu += u32::from(p.choose(Policy::Automatic, call).place == Place::Gpu);
        }
    });
    assert_eq!(count, 0, "choosing allocates");
    assert!(gpu > 10_000 && met > 10_000, "{gpu} {met}");
    assert_eq!(allocations(|| drop(black_box(Box::new(1)))), 1, "or the count sees nothing");
}

/// The same calls in the words of the op table itself, as a program has them.
fn in_own_words<'a>(calls: &[Call<'a>]) -> Vec<Call<'a>> {
    let own = |c: &Call<'a>| {
        let o = op::find(c.op).unwrap();
        let family = o.families.iter().map(|f| f.name).find(|f| Some(*f) == c.family);
        Call { op: o.name, family, unit: o.unit.name(), ..*c }
    };
    calls.iter().map(own).collect()
}

fn for_the_device(chooser: &Chooser, calls: &[Call<'_>]) -> u64 {
    calls.iter().map(|c| u64::from(chooser.choose(Policy::Automatic, black_box(c)).place == Place::Gpu)).sum()
}

/// What the first instruction count is taken of.
#[inline(never)]
fn choices_by_place(chooser: &Chooser, calls: &[Call<'_>]) -> u64 {
    black_box(for_the_device(chooser, calls))
}

/// What the third one is taken of.
#[inline(never)]
fn choices_by_curve(chooser: &Chooser, calls: &[Call<'_>]) -> u64 {
    black_box(for_the_device(chooser, black_box(calls)) + 1) - 1
}

/// What the second one is taken of.
#[inline(never)]
fn choices_by_text(chooser: &Chooser, calls: &[Call<'_>]) -> u64 {
    black_box(for_the_device(chooser, black_box(calls)))
}

/// Run by [`instructions_per_choice`] under valgrind; by itself it checks only that half of the calls go to the device.
#[test]
fn counted() {
    let p = many();
    let chooser = Chooser::knowing(p.clone(), op::words());
    let calls = calls(&p);
    let gpu = choices_by_text(&chooser, &calls);
    assert!((4_900..=5_100).contains(&gpu), "{gpu}");
    assert_eq!(choices_by_place(&chooser, &in_own_words(&calls)), gpu);
    let mut curves = p.clone();
    curves.rule = Rule::Curve;
    let side = |flop_s, fixed_s| Side { fixed_s, flop_s, wave: 65_536.0, wave_most: 8.0, ..Side::default() };
    let curve = Curve { span: [[1.0, 1e18]; 4], cpu: side(1e-9, 1e-7), device: side(1e-12, 1e-5), ..Curve::default() };
    curves.entries.iter_mut().for_each(|e| e.curve = Some(curve.clone()));
    let chooser = Chooser::knowing(curves, op::words());
    assert_eq!(choices_by_curve(&chooser, &in_own_words(&calls)), gpu);
}

/// Instructions do not depend on what else the machine does. This build is optimised less than a release.
#[test]
fn instructions_per_choice() {
    for (of, most) in [("choices_by_place", 400.0), ("choices_by_text", 750.0), ("choices_by_curve", 450.0)] {
        let run = Command::new("valgrind")
            .args(["--tool=callgrind", "--callgrind-out-file=/dev/null", &format!("--toggle-collect=*{of}*")])
            .arg(std::env::current_exe().unwrap())
            .args(["--exact", "counted", "--test-threads=1"])
            .output();
        let Ok(out) = run else {
            println!("skipped: instructions_per_choice: no valgrind");
            return;
        };
        let said = String::from_utf8_lossy(&out.stderr);
        assert!(out.status.success(), "{said}");
        let line = said.lines().find(|l| l.contains("Collected :")).unwrap_or_else(|| panic!("no count: {said}"));
        let total: f64 = line.split(':').next_back().unwrap().trim().parse().unwrap();
        let each = total / 10_000.0;
        println!("{of}: {each:.0} instructions per choice");
        assert!((50.0..most).contains(&each), "{of}: {each:.0} instructions per choice, at most {most} are allowed");
    }
}

/// Fresh memory for results is cleared and taken page by page, which can be most of a call to a device, and the CPU that it is
/// compared with writes to memory that is there.
#[test]
fn results_go_where_they_went_before() {
    let (n, wait) = (100_000, Duration::from_secs(10));
    let op = op::find("exp").unwrap();
    let case = op.case(DType::F32, &[n], Attrs::new(), Fill::Uniform).unwrap();
    let bytes = 4 * n as usize;
    let x = HostTensor::zeros(DType::F32, &[n]).unwrap();
    let runner = Runner::new(Arc::new(CpuDevice::new(1, Isa::BASELINE, Pin::Free).unwrap()));
    let prepared = runner.prepare(op, &case, None).unwrap();
    let inputs = [x.clone()];
    for residency in [Residency::Always, Residency::Once] {
        let mut measured = OpSubject::new(&runner, &prepared, &inputs, residency, wait).unwrap();
        let most = largest(|| measured.run(3).unwrap());
        assert!(most < bytes, "{}: {most} bytes at once", residency.name());
        assert!(measured.outputs().unwrap()[0].to_vec::<f32>().unwrap().iter().all(|v| *v == 1.0));
    }
    let mut lease = runner.lease().unwrap();
    let fresh = largest(|| drop(prepared.call(lease.queue().unwrap(), &inputs, wait).unwrap()));
    assert!(fresh >= bytes, "or the count sees nothing: {fresh}");

    let (_, device) = sim::open("laptop").unwrap();
    let builder = Engine::builder().env(Env::default()).device(device).without_trials();
    let engine = builder.placement(Placement::ForceGpu("sim:laptop".into())).build().unwrap();
    let route = engine.route("exp", &[&x], &Attrs::new()).unwrap();
    let mut y = route.outputs().unwrap();
    route.run_into(&[&x], &mut y).unwrap();
    y[0].bytes_mut().fill(0);
    let most = largest(|| assert_eq!(route.run_into(&[&x], &mut y).unwrap().on, "sim:laptop"));
    assert!(most < bytes, "a route: {most} bytes at once");
    assert!(y[0].to_vec::<f32>().unwrap().iter().all(|v| *v == 1.0));
}
