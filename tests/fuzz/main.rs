//! Profiles that were changed after they were written, by rules that know their structure.
//!
//! Changed and not signed, none may load. Changed and signed, whatever still loads must not place a call by a number that
//! nobody measured or wrote by hand. The full counts: `cargo test --test fuzz -- --ignored --nocapture`.

#![allow(clippy::print_stdout, reason = "a fuzz target tells what it tried")]

mod mutate;

use std::collections::BTreeMap;

use gpuctl::base::{Code, Cost, DType, Features, MOST_DIMS};
use gpuctl::profile::edit;
use gpuctl::profile::{ANY, Call, Entry, Key, Kind, Operands, Place, Policy, Profile, Verdict, work_of};
use mutate::{Dice, in_entry, in_text, profile, sign};

const SMALL: u64 = 6_000;
const FULL: u64 = 1_000_000;

/// Profiles of this build's layout, and those that an earlier one wrote.
fn sound(seed: u64) -> Vec<(Profile, String)> {
    let mut all: Vec<(Profile, String)> = (0..61)
        .map(|i| profile(&Dice::new(seed, i)))
        .map(|p| {
            let text = p.to_toml().unwrap();
            (p, text)
        })
        .collect();
    for text in [
        include_str!("../fixtures/profiles/schema-1-laptop.toml"),
        include_str!("../fixtures/profiles/schema-1-h200.toml"),
        include_str!("../../profiles/default.toml"),
    ] {
        all.push((Profile::from_toml(text).unwrap(), text.to_string()));
    }
    all
}

/// One to three changes, to values of one entry or anywhere in the text.
fn change(d: &Dice, text: &str, other: &str) -> String {
    let mut changed = text.to_string();
    for _ in 0..1 + d.below(3) {
        changed = match (d.below(2), in_entry(d, &changed)) {
            (0, Some((next, _))) => next,
            _ => in_text(d, &changed, other),
        };
    }
    changed
}

fn unsigned(count: u64) {
    let sound = sound(1);
    let mut codes: BTreeMap<&str, u64> = BTreeMap::new();
    for case in 0..count {
        let d = Dice::new(2, case);
        let (_, text) = &sound[d.below(sound.len())];
        let (_, other) = &sound[d.below(sound.len())];
        let changed = change(&d, text, other);
        match Profile::from_toml(&changed) {
            Ok(_) => {
                // Another sound file, whole, is a sound file.
                assert!(sound.iter().any(|(_, t)| *t == changed), "case {case} loads:\n{changed}");
                *codes.entry("unchanged").or_default() += 1;
            }
            Err(e) => {
                let said = e.to_string();
                assert!(!said.chars().any(|c| c.is_control()), "case {case}: {said:?}");
                assert!(said.len() < 2_000, "case {case}: {} bytes of message", said.len());
                *codes.entry(e.code().name()).or_default() += 1;
            }
        }
    }
    println!("{count} files changed after the digest: {codes:?}");
    // Each kind of refusal was met, so that none of the rules is idle.
    for code in [Code::ProfileDigest, Code::ProfileParse, Code::ProfileTruncated, Code::ProfileSchema] {
        assert!(codes.get(code.name()).is_some_and(|n| *n > 0), "never {}: {codes:?}", code.name());
    }
}

/// What holds for any profile that was loaded, whoever wrote it.
fn is_sane(p: &Profile, case: u64) {
    let text = p.to_toml().unwrap_or_else(|e| panic!("case {case}: loads, but cannot be written: {e}"));
    assert_eq!(Profile::from_toml(&text).unwrap(), *p, "case {case}");
    for e in &p.entries {
        places(p, e, case);
        let Some(least) = e.threshold_work() else { continue };
        assert!(matches!(e.verdict, Verdict::Always | Verdict::Crossing), "case {case}: {e:?}");
        let Some(dtype) = DType::ALL.iter().copied().find(|d| d.name() == e.dtype) else {
            assert!(p.kind == Kind::Preset && e.dtype == ANY, "case {case}: {e:?}");
            continue;
        };
        let key = Key {
            op: &e.op,
            dtype,
            family: Some(&e.family),
            unit: &e.unit,
            device_uid: &e.device,
            residency: &e.residency,
            threads: e.threads,
            cpu_variant: &e.cpu_variant,
        };
        let below = p.lookup(&key, least.saturating_sub(1));
        assert!(least == 0 || below.place == Place::Cpu, "case {case}: {e:?}");
        assert_eq!(below.assumed, p.kind == Kind::Preset);
        if p.kind == Kind::Preset {
            continue;
        }
        assert_eq!(p.lookup(&Key { device_uid: "elsewhere", ..key }, u128::MAX).place, Place::Cpu, "case {case}");
        // With other threads only an entry of its own may answer: one may differ from this in nothing else.
        let threads = e.threads.wrapping_add(1);
        let other = p.lookup(&Key { threads, ..key }, u128::MAX);
        assert!(
            other.place == Place::Cpu || other.entry.is_some_and(|x| x.threads == threads),
            "case {case}: {other:?}"
        );
        if !e.edited {
            let first = e.points.first().map(|p| p.size);
            assert!(
                first.and_then(|s| work_of(&e.unit, s)).is_some_and(|s| s <= least),
                "case {case}: from nowhere: {e:?}"
            );
        }
    }
}

/// Calls of an entry's key, from the least to the largest there is: none panics, and none goes where nobody looked.
fn places(p: &Profile, e: &Entry, case: u64) {
    let Some(dtype) = DType::ALL.iter().copied().find(|d| d.name() == e.dtype) else { return };
    for n in [0, 1, 1 << 10, 1 << 30, u64::MAX] {
        let mut dims = [0; MOST_DIMS];
        dims[0] = n;
        let features = Features { work: n.into(), cost: Cost { flops: n, read: n, written: n }, dims };
        let call = Call {
            op: &e.op,
            dtype,
            family: Some(&e.family),
            unit: &e.unit,
            features,
            operands: Operands::Host,
            threads: e.threads,
            cpu_variant: &e.cpu_variant,
        };
        for policy in Policy::ALL {
            let placed = p.choose(policy, &call);
            let sent = placed.place == Place::Gpu && policy != Policy::ForceGpu;
            let doubt = |e: &Entry| matches!(e.verdict, Verdict::Unsafe | Verdict::Unmeasured);
            assert!(!sent || placed.entry.is_some_and(|e| !doubt(e)), "case {case}, {policy:?}: {placed:?}");
            // Whoever opens drivers asks this first. The simulator has none.
            let opened = match placed.device {
                Some(d) if ["sim", "cpu"].contains(&d.backend.as_str()) => true,
                Some(d) => p.backends_by(policy).iter().any(|b| b.name() == d.backend),
                None => p.may_use_gpu_by(policy),
            };
            assert!(!sent || opened, "case {case}, {policy:?}: {placed:?}");
        }
    }
}

/// An entry that claims to be measured is one of those that were.
fn is_measured(e: &Entry, was: &[&Profile]) -> bool {
    e.edited || was.iter().any(|p| p.entries.contains(e))
}

fn signed(count: u64) {
    let sound = sound(3);
    let mut counts: BTreeMap<&str, u64> = BTreeMap::new();
    for case in 0..count {
        let mut seen = |what| *counts.entry(what).or_default() += 1;
        let d = Dice::new(4, case);
        let (p, text) = &sound[d.below(sound.len())];
        let (q, other) = &sound[d.below(sound.len())];
        let old = |text: &str| text.contains("schema = 1\n");
        let changed = change(&d, text, other);

        // A forged digest: what loads is as it was measured, for every entry has its seal. Earlier layouts have none.
        match Profile::from_toml(&sign(&changed)) {
            Ok(now) => {
                is_sane(&now, case);
                let sealed = now.kind == Kind::Calibrated && !old(&changed);
                assert!(!sealed || now.entries.iter().all(|e| is_measured(e, &[p, q])), "case {case}:\n{changed}");
                seen("forged, loads");
            }
            Err(_) => seen("forged, refused"),
        }
        // `lint --seal`: what was changed is marked, whatever the layout.
        match edit::seal(&changed) {
            Ok(now) => {
                is_sane(&now.profile, case);
                let measured = now.profile.entries.iter().all(|e| is_measured(e, &[p, q]));
                assert!(now.profile.kind == Kind::Preset || measured, "case {case}:\n{changed}");
                seen(if now.changed > 0 { "sealed, edited" } else { "sealed" });
            }
            Err(_) => seen("not sealed"),
        }
        // One entry alone: the refusal names it.
        let Some((changed, at)) = in_entry(&d, text) else { continue };
        let name = format!("entry {} (", at + 1);
        for error in [Profile::from_toml(&sign(&changed)).err(), edit::seal(&changed).err()].into_iter().flatten() {
            let said = error.to_string();
            assert!(said.contains(&name) || said.contains("listed twice"), "case {case}, {name}...): {said}");
            seen("named");
        }
    }
    println!("{count} files changed and signed: {counts:?}");
    for what in ["forged, loads", "forged, refused", "sealed, edited", "sealed", "not sealed", "named"] {
        assert!(counts.get(what).is_some_and(|n| *n > count / 1000), "hardly ever '{what}': {counts:?}");
    }
}

#[test]
fn changed_after_the_digest_none_loads() {
    unsigned(SMALL);
}

#[test]
fn changed_and_signed_nothing_is_invented() {
    signed(SMALL);
}

#[test]
#[ignore = "minutes: the full count"]
fn a_million_changed_after_the_digest() {
    unsigned(FULL);
}

#[test]
#[ignore = "minutes: the full count"]
fn a_million_changed_and_signed() {
    signed(FULL);
}

/// Files made to cost memory or time end in a typed error.
#[test]
fn large_and_deep_files_are_refused() {
    let end = "\n[end]\nentries = 0\npartial = false\ndigest = \"0000000000000000\"\n";
    let big = gpuctl::profile::file::MAX_BYTES as usize;
    for (what, text) in [
        ("nested arrays", format!("a = {}{end}", "[".repeat(1_000_000))),
        ("nested tables", format!("a = {}{end}", "{a=".repeat(1_000_000))),
        ("dotted keys", format!("a{} = 1{end}", ".a".repeat(1_000_000))),
        ("numbers", format!("a = [{}]{end}", "0,".repeat((big - 200) / 2))),
        ("tables", format!("{}{end}", "[[entry]]\n".repeat((big - 200) / 10))),
        ("one string", format!("name = \"{}\"{end}", "x".repeat(big - 200))),
        ("quotes", format!("name = {}{end}", "\"".repeat(big - 200))),
        ("one byte too many", "#".repeat(big + 1)),
    ] {
        for e in [Profile::from_toml(&text).unwrap_err(), edit::seal(&text).unwrap_err()] {
            assert!(e.code().name().starts_with("profile-"), "{what}: {e}");
            assert!(e.to_string().len() < 2_000, "{what}: {} bytes of message", e.to_string().len());
        }
    }
}
