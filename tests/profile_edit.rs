//! Profiles in people's hands: earlier layouts, edits, seals, differences, merging.

#![allow(clippy::print_stderr, reason = "skips are named")]

use std::path::Path;
use std::process::{Command, Output};

use gpuctl::base::{Backend, Code, DType, DeviceClass, DeviceInfo};
use gpuctl::device::Device;
use gpuctl::device::cpu::{CpuDevice, Pin};
use gpuctl::kernel::Isa;
use gpuctl::profile::edit::{self, Which};
use gpuctl::profile::{
    self, Entry, Key, Kind, Place, Profile, ProfileDevice, Reason, SCHEMA, Source, Verdict, diff, merge,
};

/// What `calibrate --device sim:laptop --op gemm,exp,dot --budget 60s` of the last build with layout 1 wrote.
const LAPTOP: &str = include_str!("fixtures/profiles/schema-1-laptop.toml");
/// The same on `sim:h200`.
const H200: &str = include_str!("fixtures/profiles/schema-1-h200.toml");

fn laptop() -> Profile {
    Profile::from_toml(LAPTOP).unwrap()
}

/// Its first entry is gemm f32 square, resident: crossing 70, threshold 77.
const GEMM: usize = 0;

fn gemm_key<'a>() -> Key<'a> {
    Key {
        op: "gemm",
        dtype: DType::F32,
        family: Some("square"),
        unit: "dim",
        device_uid: "sim:laptop",
        residency: "resident",
        threads: 8,
        cpu_variant: "auto",
    }
}

#[test]
fn the_earlier_layout_is_read_whole() {
    for text in [LAPTOP, H200] {
        let raw: toml::Table = text.parse().unwrap();
        assert_eq!(raw["schema"].as_integer(), Some(1));
        let (p, warnings) = profile::file::read_toml(text).unwrap();
        assert!(warnings.is_empty(), "{warnings:?}");
        assert_eq!((p.schema, p.entries.len()), (SCHEMA, 8));
        // Nothing but the layout and the seals differs from what was in the file.
        let mut now: toml::Table = p.to_toml().unwrap().parse().unwrap();
        for entry in now["entry"].as_array_mut().unwrap() {
            let seal = entry.as_table_mut().unwrap().remove("seal").unwrap();
            assert_eq!(seal.as_str().unwrap().len(), 16);
        }
        let mut then = raw;
        for table in [&mut then, &mut now] {
            table.remove("schema");
            table["end"].as_table_mut().unwrap().remove("digest");
        }
        assert_eq!(now, then);
        assert_eq!(Profile::from_toml(&p.to_toml().unwrap()).unwrap(), p);
        // What the digest does not vouch for is not migrated.
        let edited = text.replacen("crossing = ", "crossing = 1", 1);
        assert_eq!(Profile::from_toml(&edited).unwrap_err().code(), Code::ProfileDigest);
    }
}

#[test]
fn a_later_layout_says_what_to_do() {
    let text = laptop().to_toml().unwrap();
    for later in [text.replacen("schema = 2", "schema = 7", 1), "schema = 7\ngpuctl = \"9.1.0\"\n".into()] {
        let e = Profile::from_toml(&later).unwrap_err();
        assert_eq!(e.code(), Code::ProfileSchema);
        let said = e.to_string();
        assert!(
            said.contains("layout 7") && said.contains("reads 1 to 2") && said.contains("calibrate again"),
            "{said}"
        );
        assert_eq!(edit::seal(&later).unwrap_err().code(), Code::ProfileSchema);
    }
}

/// `text` with one replacement, which must apply.
fn edited(text: &str, from: &str, to: &str) -> String {
    assert!(text.contains(from), "'{from}' is not in:\n{text}");
    text.replacen(from, to, 1)
}

#[test]
fn a_seal_tells_exactly_what_was_edited() {
    let was = laptop();
    let text = was.to_toml().unwrap();
    let by_hand = edited(&text, "threshold = 77\n", "threshold = 99 # measured elsewhere\n");
    let e = Profile::from_toml(&by_hand).unwrap_err();
    let said = e.to_string();
    assert_eq!(e.code(), Code::ProfileDigest);
    assert!(said.contains("changed: entry 1 (gemm f32 square on sim:laptop resident)"), "{said}");
    assert!(said.contains("gpuctl profile lint --seal"), "{said}");

    let sealed = edit::seal(&by_hand).unwrap();
    assert_eq!(sealed.changed, 1, "{:?}", sealed.remarks);
    let now = Profile::from_toml(&sealed.profile.to_toml().unwrap()).unwrap();
    let e = &now.entries[GEMM];
    assert!(e.edited && e.points.is_empty() && e.ci.is_none() && e.crossing.is_none() && e.reason.is_empty());
    assert_eq!((e.threshold, e.verify.as_str(), e.n), (Some(99), "not run", 0));
    assert_eq!(now.entries[1..], was.entries[1..], "the others keep their evidence");
    let at = |work: u128| now.lookup(&gemm_key(), work);
    assert_eq!((at(99u128.pow(3)).place, at(99u128.pow(3) - 1).place), (Place::Gpu, Place::Cpu));
    assert!(at(1).entry.unwrap().edited);

    // Signing again changes nothing, and says so.
    let again = edit::seal(&sealed.profile.to_toml().unwrap()).unwrap();
    assert_eq!((again.changed, &again.profile), (0, &sealed.profile));
}

/// What a change to one place of a file voids: entries, or none, or a refusal with the entry's name.
#[test]
fn seals_cover_what_evidence_rests_on() {
    let text = laptop().to_toml().unwrap();
    let exp = laptop().entries.iter().position(|e| e.op == "exp" && e.residency == "always").unwrap();
    let all = laptop().entries.len();
    for (from, to, changed) in [
        ("isa = \"seed 15\"", "isa = \"avx512\"", all),
        ("cpu = \"simulated 8-core laptop CPU\"", "cpu = \"mine\"", all),
        ("| cost model, 12 units, seed 15\"", "| another driver\"", all),
        ("name = \"calibrated\"", "name = \"mine\"", 0),
        ("[[transfer]]", "# a comment\n\n[[transfer]]", 0),
        ("h2d_latency_s", "h2d_latency_s ", 0),
        ("verify = \"ok\"", "verify = \"fine\"", 1),
        ("kernel = \"blocked\"", "kernel = \"other\"", 1),
        ("reason = \"the device wins", "reason = \"it wins", 1),
    ] {
        let sealed = edit::seal(&edited(&text, from, to)).unwrap();
        assert_eq!(sealed.changed, changed, "{from} -> {to}: {:?}", sealed.remarks);
        assert_eq!(sealed.profile.entries.iter().filter(|e| e.edited).count(), changed);
    }
    for (from, to, word) in [
        ("threshold = 77\n", "", "entry 1 (gemm f32 square on sim:laptop resident): a crossing needs a threshold"),
        ("threshold = 77", "threshold = \"77\"", "entry 1 (gemm f32 square on sim:laptop resident): line"),
        ("threshold = 77", "threshold = 7 7", "in entry 1"),
        (
            "margin = 1.1",
            "margin = 1.3",
            "entry 1 (gemm f32 square on sim:laptop resident): threshold 77, but crossing 70",
        ),
        ("op = \"gemm\"", "op = \"ge\\u001b[2Jmm\"", "entry 1 (ge\\u{1b}[2Jmm f32"),
        ("uid = \"sim:laptop\"", "uid = \"sim:other\"", "entry 1 (gemm f32 square on sim:laptop resident)"),
        ("[end]\n", "[ending]\n", "[end] does not say"),
    ] {
        let e = edit::seal(&edited(&text, from, to)).unwrap_err();
        assert!(e.to_string().contains(word), "{from} -> {to}: {e}");
    }
    // An entry that was copied with its seal speaks of another key; one that was added has none; one that was removed is gone.
    let entries: Vec<&str> = text.split("[[entry]]").collect();
    let copy = entries[1 + exp].replacen("op = \"exp\"", "op = \"log\"", 1);
    let more = text.replacen("[[entry]]", &format!("[[entry]]{copy}[[entry]]"), 1);
    let sealed = edit::seal(&more).unwrap();
    assert_eq!((sealed.changed, sealed.profile.entries.len()), (1, all + 1));
    assert!(sealed.profile.entries[0].edited && sealed.profile.entries[0].op == "log");
    let less = edit::seal(&text.replacen(&format!("[[entry]]{}", entries[1]), "", 1)).unwrap();
    assert_eq!((less.changed, less.profile.entries.len()), (0, all - 1));
    assert!(less.remarks.iter().any(|r| r.contains("there are 7 entries, 8 were written")), "{:?}", less.remarks);
}

#[test]
fn what_editors_do_to_lines_is_named_and_mended() {
    let text = laptop().to_toml().unwrap();
    for (changed, word) in [(text.replace('\n', "\r\n"), "CRLF"), (format!("\u{feff}{text}"), "byte order mark")] {
        let e = Profile::from_toml(&changed).unwrap_err();
        assert!(e.code() == Code::ProfileDigest && e.to_string().contains(word), "{e}");
        let sealed = edit::seal(&changed).unwrap();
        assert_eq!((sealed.changed, sealed.profile.to_toml().unwrap()), (0, text.clone()));
    }
    // The earlier layout has no seals: its digest vouches for all of it or for nothing.
    let whole = edit::seal(&LAPTOP.replace('\n', "\r\n")).unwrap();
    assert_eq!((whole.changed, &whole.profile), (0, &laptop()));
    let touched = edit::seal(&edited(LAPTOP, "name = \"calibrated\"", "name = \"mine\"")).unwrap();
    assert_eq!(touched.changed, 8);
}

#[test]
fn results_that_were_wrong_stay_on_the_cpu() {
    let mut p = laptop();
    p.entries[GEMM].verdict = Verdict::Unsafe;
    p.entries[GEMM].verify = "failed".into();
    let text = p.to_toml().unwrap();
    for assignment in ["gemm.f32.square.threshold=100", "gemm.f32.square.verdict=always"] {
        let which = Which { residency: Some("resident".into()), ..Which::default() };
        let e = edit::set(&mut p, assignment, &which).unwrap_err();
        assert!(e.to_string().contains("results were wrong"), "{e}");
    }
    let e = edit::seal(&edited(&text, "verdict = \"unsafe\"", "verdict = \"always\"")).unwrap_err();
    assert!(e.to_string().contains("entry 1 (gemm f32 square on sim:laptop resident): its results were wrong"), "{e}");
}

#[test]
fn set_changes_one_entry_and_asks_where_there_are_several() {
    let mut p = laptop();
    let any = Which::default();
    let resident = Which { residency: Some("resident".into()), device: Some("sim:laptop".into()), ..Which::default() };
    let e = edit::set(&mut p, "gemm.f32.square.threshold=512", &any).unwrap_err();
    let said = e.to_string();
    assert!(
        said.contains("2 entries") && said.contains("on sim:laptop resident") && said.contains("on sim:laptop always")
    );
    assert_eq!(p, laptop(), "a refusal changes nothing");
    let done = edit::set(&mut p, "gemm.f32.square.threshold=512", &resident).unwrap();
    assert_eq!(
        done,
        [
            "entry 1 (gemm f32 square on sim:laptop resident): crossing, threshold 77 dim -> crossing, threshold 512 dim, edited"
        ]
    );
    assert!(p.entries[GEMM].edited && p.entries[1..] == laptop().entries[1..]);
    edit::set(&mut p, "gemm.f32.square.verdict=never", &resident).unwrap();
    assert_eq!(p.lookup(&gemm_key(), u128::MAX).why, Reason::Never);
    edit::set(&mut p, "gemm.f32.square.verdict=always", &resident).unwrap();
    assert_eq!(p.lookup(&gemm_key(), 0).place, Place::Gpu);
    assert_eq!(Profile::from_toml(&p.to_toml().unwrap()).unwrap(), p);

    for (assignment, word) in [
        ("gemm.f32.square.threshold", "KEY=VALUE"),
        ("gemm.f32.square.threshold=-1", "whole number"),
        ("gemm.f32.square.threshold=1e3", "whole number"),
        ("gemm.f32.square.threshold=9223372036854775808", "below 2^63"),
        ("gemm.f32.square.verdict=crossing", "threshold instead"),
        ("gemm.f32.square.verdict=inconclusive", "only a measurement"),
        ("gemm.f32.square.verdict=perhaps", "no verdict 'perhaps'"),
        ("gemm.f64.threshold=1", "of that op there are: entry 1 (gemm f32"),
        ("sum.threshold=1", "none of that op"),
        ("gemm.f32.square.crossing=1", "can be set"),
        ("created=now", "can be set"),
        ("margin=0.9", "1 to 100"),
        ("margin=nan", "1 to 100"),
        ("rule=Curve", "known: threshold curve"),
    ] {
        let before = p.clone();
        let e = edit::set(&mut p, assignment, &resident).unwrap_err();
        assert!(e.code() == Code::BadArgument && e.to_string().contains(word), "{assignment}: {e}");
        assert_eq!(p, before);
    }
    let elsewhere = Which { device: Some("cuda:0".into()), ..Which::default() };
    let e = edit::set(&mut p, "gemm.threshold=1", &elsewhere).unwrap_err();
    assert!(e.to_string().contains("with these options; there are: entry 1"), "{e}");
    let other_threads = Which { threads: Some(4), ..resident.clone() };
    assert!(edit::set(&mut p, "gemm.threshold=1", &other_threads).is_err());
}

#[test]
fn a_margin_moves_measured_thresholds_and_leaves_the_evidence() {
    let mut p = laptop();
    let resident = Which { residency: Some("resident".into()), ..Which::default() };
    edit::set(&mut p, "exp.threshold=1000", &resident).unwrap();
    edit::set(&mut p, "margin=1.5", &Which::default()).unwrap();
    for (now, then) in p.entries.iter().zip(laptop().entries) {
        assert_eq!(now.edited, then.op == "exp" && then.residency == "resident");
        if now.edited {
            assert_eq!(now.threshold, Some(1000));
            continue;
        }
        assert_eq!(now.threshold, then.crossing.map(|c| (c as f64 * 1.5).ceil() as u64), "{}", now.op);
        assert_eq!((now.crossing, now.ci, &now.points), (then.crossing, then.ci, &then.points));
    }
    assert_eq!(Profile::from_toml(&p.to_toml().unwrap()).unwrap(), p);
    for rule in ["threshold", "curve"] {
        edit::set(&mut p, &format!("rule={rule}"), &Which::default()).unwrap();
        assert_eq!(p.rule.name(), rule);
        assert_eq!(Profile::from_toml(&p.to_toml().unwrap()).unwrap(), p);
    }
    edit::set(&mut p, "name=my machine = good", &Which::default()).unwrap();
    assert_eq!(p.name, "my machine = good");
}

#[test]
fn a_preset_of_ones_own_is_still_assumed() {
    let mut p = profile::load("default").unwrap().profile;
    edit::set(&mut p, "gemm.threshold=300", &Which::default()).unwrap();
    let again = Profile::from_toml(&p.to_toml().unwrap()).unwrap();
    let gemm = again.entries.iter().find(|e| e.op == "gemm").unwrap();
    assert_eq!((again.kind, gemm.threshold, gemm.edited), (Kind::Preset, Some(300), false));
    // An editor will do, too: there is no evidence that could be void.
    let text = edited(&again.to_toml().unwrap(), "threshold = 300", "threshold = 301");
    assert_eq!(Profile::from_toml(&text).unwrap_err().code(), Code::ProfileDigest);
    let sealed = edit::seal(&text).unwrap();
    assert_eq!((sealed.changed, sealed.profile.entries.iter().filter(|e| e.edited).count()), (0, 0));
}

fn words(a: &Profile, b: &Profile, tolerance: f64) -> Vec<String> {
    diff::diff(a, b, tolerance).into_iter().map(|r| r.verdict).collect()
}

#[test]
fn a_machine_that_was_disturbed_more_often_is_told() {
    let of = |share: Option<f64>| {
        let mut p = laptop();
        p.host = Some(profile::Host { disturbed: share, ..profile::Host::default() });
        p
    };
    let told = |a, b| diff::disturbed(&of(a), &of(b));
    let line = told(Some(0.03), Some(0.56)).unwrap();
    assert!(line.contains("in 3 % of the first one's looks and 56 % of the second's"), "{line}");
    assert!(told(Some(0.56), Some(0.03)).is_some());
    for (a, b) in [(Some(0.03), Some(0.12)), (None, Some(0.56)), (Some(0.56), None), (None, None)] {
        assert_eq!(told(a, b), None);
    }
    assert_eq!(diff::disturbed(&laptop(), &laptop()), None);
}

#[test]
fn differences_count_beyond_both_intervals() {
    let a = laptop();
    assert!(words(&a, &a, 0.0).iter().all(|w| w == diff::SAME));
    // The first entry: crossing 70, 95 % from 65 to 76.
    let with = |crossing: u64, ci: [u64; 2]| {
        let mut b = a.clone();
        let e = &mut b.entries[GEMM];
        (e.crossing, e.ci, e.threshold) = (Some(crossing), Some(ci), Some(profile::with_margin(crossing, 1.1)));
        b
    };
    for (b, tolerance, word) in [
        (with(72, [68, 77]), 0.0, diff::WITHIN),
        (with(82, [76, 88]), 0.0, diff::WITHIN),
        (with(82, [77, 88]), 0.0, diff::MOVED),
        (with(60, [56, 64]), 0.0, diff::MOVED),
        (with(60, [56, 64]), 0.10, diff::MOVED),
        (with(60, [56, 64]), 0.20, diff::WITHIN),
    ] {
        assert_eq!(words(&a, &b, tolerance)[GEMM], word, "{:?}", b.entries[GEMM].ci);
        assert_eq!(words(&b, &a, tolerance)[GEMM], word, "the other way round");
        assert!(words(&a, &b, tolerance)[1..].iter().all(|w| w == diff::SAME));
    }
    let mut b = a.clone();
    b.entries[GEMM].verdict = Verdict::Never;
    assert_eq!(words(&a, &b, 9.0)[GEMM], diff::UNKNOWN, "the points say the same");
    let mut b = a.clone();
    edit::set(
        &mut b,
        "gemm.f32.square.threshold=78",
        &Which { residency: Some("resident".into()), ..Which::default() },
    )
    .unwrap();
    assert_eq!(words(&a, &b, 0.0)[GEMM], diff::MOVED, "a word of hand has no interval");
    assert_eq!(words(&a, &b, 0.05)[GEMM], diff::WITHIN);
    // Keys of one side: findings, but not where a calibration was cut short.
    let mut b = a.clone();
    b.entries.remove(GEMM);
    assert_eq!(words(&a, &b, 0.0)[GEMM], diff::ALONE);
    assert_eq!(words(&b, &a, 0.0).last().unwrap(), diff::ALONE);
    b.partial = true;
    assert_eq!(words(&a, &b, 0.0)[GEMM], diff::UNKNOWN);
    assert_eq!(words(&b, &a, 0.0).last().unwrap(), diff::UNKNOWN);
    let mut b = a.clone();
    b.entries[GEMM] = Entry { verdict: Verdict::Unmeasured, threshold: None, ..b.entries[GEMM].clone() };
    assert_eq!(words(&a, &b, 0.0)[GEMM], diff::VERDICT);
    b.partial = true;
    assert_eq!(words(&a, &b, 0.0)[GEMM], diff::UNKNOWN);
    for word in diff::WORDS {
        assert_eq!(diff::is_finding(word), ["MOVED", "VERDICT", "ALONE"].contains(&word));
    }
}

/// A profile of the same host with one device of its own, made at `created`.
fn other_device(uid: &str, created: &str) -> Profile {
    let mut p = laptop();
    p.created = created.into();
    p.devices[0] = ProfileDevice { id: "cuda:0".into(), uid: uid.into(), ..p.devices[0].clone() };
    p.transfers[0].device = uid.into();
    p.entries.iter_mut().for_each(|e| e.device = uid.into());
    p
}

#[test]
fn merging_joins_devices_and_lets_the_newer_win() {
    let a = laptop();
    let b = other_device("GPU-1", "2030-01-01T00:00:00Z");
    for (x, y) in [(&a, &b), (&b, &a)] {
        let (m, notes) = merge(x, y).unwrap();
        assert!(notes.is_empty(), "{notes:?}");
        assert_eq!((m.devices.len(), m.transfers.len(), m.entries.len()), (2, 2, 16));
        assert_eq!(Profile::from_toml(&m.to_toml().unwrap()).unwrap(), m);
        assert!(a.entries.iter().chain(&b.entries).all(|e| m.entries.contains(e)));
        assert_eq!(m.created, b.created);
    }
    // The same keys again, measured later: the later ones stay, in either order, but ignorance never wins.
    let mut later = laptop();
    later.created = "2030-01-01T00:00:00Z".into();
    later.entries[GEMM].threshold = Some(80);
    let blank = Entry { verdict: Verdict::Unmeasured, points: vec![], ..later.entries[1].clone() };
    later.entries[1] = Entry { crossing: None, ci: None, threshold: None, ..blank };
    for (x, y) in [(&a, &later), (&later, &a)] {
        let (m, notes) = merge(x, y).unwrap();
        assert_eq!(m.entries.len(), 8);
        assert_eq!((m.entries[GEMM].threshold, &m.entries[1]), (Some(80), &a.entries[1]));
        assert_eq!(notes.len(), 2, "{notes:?}");
        assert!(
            notes.iter().any(|n| n.contains("gives way")) && notes.iter().any(|n| n.contains("did not measure it"))
        );
    }
    // Another driver since: what was measured with the earlier one is void.
    let mut driver = later.clone();
    driver.devices[0].fingerprint = "newer".into();
    driver.entries.truncate(1);
    let (m, notes) = merge(&a, &driver).unwrap();
    assert_eq!((m.entries.len(), m.devices.len(), m.devices[0].fingerprint.as_str()), (1, 1, "newer"));
    assert!(notes[0].contains("left out"), "{notes:?}");
    let partial = Profile { partial: true, ..b.clone() };
    let (m, notes) = merge(&a, &partial).unwrap();
    assert!(m.partial && notes.iter().any(|n| n.contains("partial")), "{notes:?}");
}

#[test]
fn merging_refuses_what_means_nothing_together() {
    let a = laptop();
    let cases: [(fn(&mut Profile), &str); 7] = [
        (|p| p.host.as_mut().unwrap().isa = "avx2".into(), "another CPU"),
        (|p| p.host.as_mut().unwrap().blas = "MKL 2026.0, AVX-512".into(), "with MKL 2026.0, AVX-512"),
        (|p| p.host.as_mut().unwrap().cpu = "\u{1b}[2J".into(), "\\u{1b}[2J"),
        (|p| p.host = None, "does not name its host"),
        (|p| p.created = String::new(), "when it was created"),
        (|p| p.margin = 1.2, "set margin=1.1"),
        (|p| p.kind = Kind::Preset, "preset"),
    ];
    for (change, word) in cases {
        let mut b = other_device("GPU-1", "2030-01-01T00:00:00Z");
        change(&mut b);
        let e = merge(&a, &b).unwrap_err();
        assert!(e.code() == Code::BadArgument && e.to_string().contains(word), "{e}");
        assert!(!e.to_string().contains('\u{1b}'));
    }
}

/// The chain ends where the lookup says that it ends.
#[test]
fn the_chain_is_the_lookups_own() {
    let p = laptop();
    let parts = [
        (Key { op: "sum", ..gemm_key() }, "op", Reason::NoOp),
        (Key { dtype: DType::F64, ..gemm_key() }, "dtype", Reason::NoDtype),
        (Key { family: None, ..gemm_key() }, "family", Reason::NoFamily),
        (Key { device_uid: "cuda:0", ..gemm_key() }, "device", Reason::NoDevice),
        (Key { residency: "managed", ..gemm_key() }, "residency", Reason::NoResidency),
        (Key { threads: 4, ..gemm_key() }, "threads", Reason::OtherThreads),
        (Key { cpu_variant: "naive", ..gemm_key() }, "cpu_variant", Reason::OtherCpuVariant),
        (Key { unit: "elements", ..gemm_key() }, "unit", Reason::OtherUnit),
    ];
    for (i, (key, part, reason)) in parts.iter().enumerate() {
        let chain = p.chain(key);
        let last = chain.last().unwrap();
        assert_eq!((last.part, last.entries, chain.len()), (*part, 0, i + 1));
        assert_eq!(p.lookup(key, 1 << 60).why, *reason);
        assert!(last.text().ends_with("nothing is borrowed"), "{}", last.text());
        assert!(chain[..i].iter().all(|s| s.entries > 0));
    }
    assert_eq!(p.chain(&parts[1].0)[1].text(), "dtype f64: none, there is f32; nothing is borrowed");
    let whole = p.chain(&gemm_key());
    assert_eq!((whole.len(), whole.last().unwrap().entries), (8, 1));
    let preset = profile::load("default").unwrap().profile;
    assert_eq!(
        preset.chain(&Key { family: None, ..gemm_key() }).last().unwrap().entries,
        1,
        "any matches no family, too"
    );
}

#[test]
fn a_gpu_that_nobody_measured_is_told_of() {
    let cpu = CpuDevice::new(1, Isa::BASELINE, Pin::Free).unwrap();
    let gpu = |class, uid: &str| DeviceInfo {
        id: "cuda:0".into(),
        uid: uid.into(),
        name: "A GPU".into(),
        backend: Backend::Cuda,
        class,
        ..cpu.info().clone()
    };
    let here = [cpu.info().clone(), gpu(DeviceClass::Discrete, "GPU-1")];
    let file = Source::File("t.toml".into());
    let empty = Profile { entries: vec![], devices: vec![], ..laptop() };
    let text = empty.cpu_only(&file, &here).unwrap();
    assert!(text.contains("cuda:0 (A GPU)") && text.contains("gpuctl calibrate -o t.toml"), "{text}");
    let always_cpu = profile::load("always-cpu").unwrap().profile;
    assert!(always_cpu.cpu_only(&Source::Embedded, &here).unwrap().contains("gpuctl calibrate"));
    // Nothing to tell: it was asked for; there is no GPU; it is used; it was measured and lost.
    assert_eq!(always_cpu.cpu_only(&Source::Preset("always-cpu".into()), &here), None);
    for class in [DeviceClass::Software, DeviceClass::Simulated, DeviceClass::Cpu] {
        assert_eq!(empty.cpu_only(&file, &[gpu(class, "GPU-1")]), None);
    }
    assert_eq!(laptop().cpu_only(&file, &here), None);
    let mut lost = other_device("GPU-1", "2030-01-01T00:00:00Z");
    lost.entries.iter_mut().for_each(|e| *e = Entry { verdict: Verdict::Never, threshold: None, ..e.clone() });
    assert_eq!(lost.cpu_only(&file, &here), None);
    assert!(lost.cpu_only(&file, &[gpu(DeviceClass::Integrated, "GPU-2")]).is_some());
    // What can be told without opening a driver: only where no device was looked at.
    let nodes = ["nvidia0".to_string()];
    let text = empty.cpu_only_by_nodes(&file, &nodes).unwrap();
    assert!(text.contains("/dev/nvidia0") && text.contains("gpuctl calibrate -o t.toml"), "{text}");
    assert!(always_cpu.cpu_only_by_nodes(&Source::Embedded, &nodes).is_some());
    assert_eq!(always_cpu.cpu_only_by_nodes(&Source::Preset("always-cpu".into()), &nodes), None);
    assert_eq!(empty.cpu_only_by_nodes(&file, &[]), None);
    assert_eq!(lost.cpu_only_by_nodes(&file, &nodes), None);
    assert_eq!(laptop().cpu_only_by_nodes(&file, &nodes), None);
}

fn gpuctl(folder: &Path, args: &[&str]) -> Option<Output> {
    let mut c = Command::new(option_env!("CARGO_BIN_EXE_gpuctl")?);
    c.args(args).current_dir(folder).env("NODEVICE_SELECT", "1").env("GPUCTL_DISABLE_GPU", "1");
    c.env_remove("GPUCTL_PROFILE").env_remove("GPUCTL_REQUIRE");
    Some(c.output().unwrap())
}

/// Exit codes, streams and files of the subcommands.
#[test]
fn the_command_line_edits_compares_and_merges() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    std::fs::write(at("a.toml"), LAPTOP).unwrap();
    std::fs::write(at("b.toml"), other_device("GPU-1", "2030-01-01T00:00:00Z").to_toml().unwrap()).unwrap();
    if gpuctl(dir.path(), &["--version"]).is_none() {
        eprintln!("skipped: the subcommands of profile: built without the feature cli");
        return;
    }
    let run = |args: &[&str], code: i32| -> (String, String) {
        let out = gpuctl(dir.path(), args).unwrap();
        let text = |b: &[u8]| String::from_utf8_lossy(b).into_owned();
        let (data, talk) = (text(&out.stdout), text(&out.stderr));
        assert_eq!(out.status.code(), Some(code), "{args:?}: {data}{talk}");
        assert!(!data.contains('\u{1b}') && !talk.contains('\u{1b}'), "{args:?}");
        (data, talk)
    };
    assert!(run(&["profile", "lint", "a.toml"], 0).0.contains("layout 1 becomes 2"));
    assert!(run(&["profile", "lint", "--seal", "a.toml"], 0).0.contains("0 of 8 entries edited"));
    assert!(run(&["profile", "lint", "--seal", "a.toml"], 0).0.contains("nothing was changed"));
    let (_, said) = run(&["profile", "set", "gemm.f32.square.threshold=512", "a.toml"], 2);
    assert!(said.contains("'gemm.f32.square' is 2 entries") && said.lines().count() == 1, "{said}");
    run(&["profile", "set", "gemm.f32.square.threshold=512", "a.toml", "--residency", "resident", "-o", "c.toml"], 0);
    let (table, _) = run(&["profile", "diff", "a.toml", "c.toml"], 1);
    assert!(table.contains("1 MOVED, 0 VERDICT, 0 ALONE, 0 UNKNOWN, 0 WITHIN, 7 SAME"), "{table}");
    assert!(table.contains("crossing 512 (edited)"), "{table}");
    assert!(run(&["profile", "diff", "a.toml", "a.toml"], 0).0.contains("8 SAME"));
    let (json, _) = run(&["profile", "diff", "a.toml", "c.toml", "--json", "-"], 1);
    let doc: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!((&doc["records"][0]["kind"], &doc["records"][0]["verdict"]), (&"threshold".into(), &"MOVED".into()));
    assert_eq!(doc["records"].as_array().unwrap().len(), 8);
    run(&["profile", "merge", "a.toml", "b.toml", "-o", "m.toml"], 0);
    assert_eq!(profile::load(at("m.toml").to_str().unwrap()).unwrap().profile.devices.len(), 2);
    let (toml, _) = run(&["profile", "merge", "a.toml", "b.toml"], 0);
    assert_eq!(toml, std::fs::read_to_string(at("m.toml")).unwrap());
    assert!(run(&["profile", "merge", "a.toml", "default"], 2).1.contains("preset"));
    assert!(run(&["profile", "show", "c.toml"], 0).0.contains("(edited by hand, not measured)"));
    let why = ["profile", "why", "gemm", "--shape", "64x64x64", "--profile", "c.toml", "--threads", "1"];
    let (text, _) = run(&why, 0);
    assert!(text.contains("threads 1: none, there is 8; nothing is borrowed"), "{text}");

    // By hand: refused until it is signed, and then marked.
    let text = std::fs::read_to_string(at("m.toml")).unwrap();
    std::fs::write(at("m.toml"), edited(&text, "threshold = 77\n", "threshold = 66\n")).unwrap();
    let (report, _) = run(&["profile", "lint", "m.toml"], 1);
    assert!(report.contains("changed: entry 1 (gemm") && report.contains("gpuctl profile lint --seal"), "{report}");
    run(&["profile", "show", "m.toml"], 2);
    assert!(run(&["profile", "lint", "--seal", "m.toml"], 0).0.contains("1 of 16 entries edited"));
    run(&["profile", "show", "m.toml"], 0);
    // What would not validate is refused by name, and the file stays as it was.
    let text = std::fs::read_to_string(at("m.toml")).unwrap();
    let broken = edited(&text, "threshold = 66\n", "threshold = -66\n");
    std::fs::write(at("m.toml"), &broken).unwrap();
    assert!(run(&["profile", "lint", "--seal", "m.toml"], 2).1.contains("entry 1 (gemm"));
    assert_eq!(std::fs::read_to_string(at("m.toml")).unwrap(), broken);
    assert!(run(&["profile", "set", "gemm.threshold=1", "default"], 2).1.contains("-o FILE"));
    run(&["profile", "set", "gemm.threshold=300", "default", "-o", "mine.toml"], 0);
    assert!(
        run(&["profile", "show", "mine.toml"], 0).0.contains("gemm any any on any, any: crossing, threshold 300 dim")
    );
    // Nothing of a hostile file reaches the terminal as it is, and no temporary file is left.
    let hostile = edited(LAPTOP, "name = \"calibrated\"", "name = \"\\u001b]0;owned\\u0007\\u202e\"");
    std::fs::write(at("h.toml"), hostile).unwrap();
    run(&["profile", "lint", "--seal", "h.toml"], 0);
    assert!(run(&["profile", "show", "h.toml"], 0).0.contains("\\u{1b}]0;owned\\u{7}\\u{202e}"));
    let mut names: Vec<_> = std::fs::read_dir(dir.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
    names.sort();
    assert_eq!(names, ["a.toml", "b.toml", "c.toml", "h.toml", "m.toml", "mine.toml"]);
}

#[cfg(unix)]
#[test]
fn writing_keeps_links_and_permissions() {
    use std::os::unix::fs::PermissionsExt;
    let dir = tempfile::tempdir().unwrap();
    let (real, link) = (dir.path().join("real.toml"), dir.path().join("link.toml"));
    std::fs::write(&real, LAPTOP).unwrap();
    std::fs::set_permissions(&real, std::fs::Permissions::from_mode(0o640)).unwrap();
    std::os::unix::fs::symlink(&real, &link).unwrap();
    profile::file::save(&laptop(), &link).unwrap();
    assert!(std::fs::symlink_metadata(&link).unwrap().is_symlink());
    assert_eq!(std::fs::metadata(&real).unwrap().permissions().mode() & 0o777, 0o640);
    assert_eq!(profile::load(real.to_str().unwrap()).unwrap().profile, laptop());
    assert!(profile::file::save(&laptop(), Path::new("/nonexistent/folder/p.toml")).is_err());
}
