//! Profiles from outside: the shipped presets, hostile files, and what a lookup may never do.

use gpuctl::base::record::CalibratePoint;
use gpuctl::base::rng::{Philox, fnv1a64};
use gpuctl::base::{Code, DType, DeviceInfo};
use gpuctl::device::Device;
use gpuctl::device::cpu::{CpuDevice, Pin};
use gpuctl::kernel::Isa;
use gpuctl::profile::{self, Entry, Fit, Host, Key, Kind, Place, Profile, ProfileDevice, Reason, Verdict};

/// Thresholds of AiDotNet's `AdaptiveThresholds` (requirements B3) under our op names, in the order of [`NAMES`];
/// `u64::MAX` is its "never".
const B3: &[(&[&str], &str, [u64; 5])] = &[
    (&["add", "sub", "mul", "div"], "elements", [10_000, 5_000, 50_000, u64::MAX, 0]),
    (&["sqrt", "pow"], "elements", [5_000, 2_000, 20_000, u64::MAX, 0]),
    (&["gemm"], "dim", [256, 128, 512, u64::MAX, 0]),
    (&["gemv"], "dim", [512, 256, 1_024, u64::MAX, 0]),
    (&["conv2d"], "input_elements", [1_000, 500, 5_000, u64::MAX, 0]),
    (&["maxpool2d", "avgpool2d"], "input_elements", [2_000, 1_000, 10_000, u64::MAX, 0]),
    (&["bmm"], "dim", [128, 64, 256, u64::MAX, 0]),
];
const NAMES: [&str; 5] = ["default", "high-end", "low-end", "always-cpu", "always-gpu"];

fn b3_preset(column: usize) -> Profile {
    let mut p = Profile::new(Kind::Preset, NAMES[column]);
    p.gpuctl = "0.1.0".into();
    p.margin = 1.0;
    p.notes = vec!["assumed, not measured: AiDotNet's AdaptiveThresholds; used only when named".into()];
    for (ops, unit, values) in B3 {
        for op in *ops {
            let any = || "any".to_string();
            let (verdict, threshold) = match values[column] {
                u64::MAX => (Verdict::Never, None),
                0 => (Verdict::Always, Some(0)),
                n => (Verdict::Crossing, Some(n)),
            };
            p.entries.push(Entry {
                op: (*op).into(),
                dtype: any(),
                family: any(),
                device: any(),
                residency: any(),
                cpu_variant: any(),
                verdict,
                unit: (*unit).into(),
                threshold,
                ..Entry::default()
            });
        }
    }
    p
}

#[test]
fn shipped_presets_are_b3() {
    for (column, name) in NAMES.iter().enumerate() {
        let want = b3_preset(column).to_toml().unwrap();
        let (_, shipped) = profile::PRESETS.iter().find(|(n, _)| n == name).unwrap();
        if want != *shipped {
            let at = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}.toml"));
            std::fs::write(&at, &want).unwrap();
            panic!("profiles/{name}.toml is not B3's; what it should be lies in {}", at.display());
        }
        let loaded = profile::load(&format!("preset:{name}")).unwrap();
        assert_eq!(loaded.profile, b3_preset(column));
        assert!(loaded.warnings.is_empty(), "{:?}", loaded.warnings);
        assert_eq!(profile::load(name).unwrap().profile, loaded.profile, "the bare name means the same");
    }
}

#[test]
fn presets_decide_as_b3_says_and_admit_to_assuming() {
    for (column, name) in NAMES.iter().enumerate() {
        let p = profile::load(name).unwrap().profile;
        for (ops, unit, values) in B3 {
            for op in *ops {
                let key = Key { op, unit, family: None, ..key() };
                let cube = |v: u64| if *unit == "dim" { u128::from(v).pow(3) } else { u128::from(v) };
                let t = values[column];
                let at = p.lookup(&key, if t == u64::MAX { u128::MAX } else { cube(t) });
                assert_eq!(at.place, if t == u64::MAX { Place::Cpu } else { Place::Gpu }, "{name} {op}");
                assert!(at.assumed);
                if (1..u64::MAX).contains(&t) {
                    assert_eq!(p.lookup(&key, cube(t) - 1).why, Reason::BelowThreshold, "{name} {op}");
                }
            }
        }
        assert_eq!(p.may_use_gpu(), *name != "always-cpu");
        assert_eq!(p.backends().is_empty(), *name == "always-cpu");
        assert_eq!(p.lookup(&Key { op: "softmax", ..key() }, u128::MAX).why, Reason::NoOp);
    }
}

fn key() -> Key<'static> {
    Key {
        op: "add",
        dtype: DType::F32,
        family: Some("all"),
        unit: "elements",
        device_uid: "pci:1",
        residency: "always",
        threads: 2,
        cpu_variant: "auto",
    }
}

fn entry(op: &str, unit: &str, threshold: u64) -> Entry {
    // What gives this threshold with a margin of 1.1.
    let crossing = threshold - threshold / 11;
    let point = |size: u64| CalibratePoint {
        size,
        cpu_s: size as f64 * 1e-9,
        gpu_s: 1e-5 + size as f64 * 1e-10,
        ratio_ci: [0.9, 1.1],
        pairs: 20,
    };
    Entry {
        op: op.into(),
        dtype: "f32".into(),
        family: "all".into(),
        device: "pci:1".into(),
        residency: "always".into(),
        threads: 2,
        cpu_variant: "auto".into(),
        verdict: Verdict::Crossing,
        unit: unit.into(),
        crossing: Some(crossing),
        ci: Some([crossing / 2, threshold]),
        threshold: Some(threshold),
        n: 2,
        verify: "ok".into(),
        kernel: "vec4".into(),
        reason: "synthetic".into(),
        points: vec![point(1), point(1_000_000)],
        ..Entry::default()
    }
}

fn calibrated() -> Profile {
    let mut p = Profile::new(Kind::Calibrated, "test");
    p.created = "2026-01-31T12:00:00Z".into();
    p.notes = vec!["a note with \"quotes\" and\na second line".into()];
    p.host = Some(Host {
        cpu: "CPU".into(),
        isa: "avx2".into(),
        blas: String::new(),
        cpus: 2,
        memory_bytes: 1 << 34,
        os: "Linux".into(),
        awake: false,
        disturbed: Some(0.25),
    });
    for n in 1..=2 {
        p.devices.push(ProfileDevice {
            id: format!("opencl:{n}"),
            uid: format!("pci:{n}"),
            fingerprint: "opencl | GPU | 1.0 | OpenCL 3.0".into(),
            backend: "opencl".into(),
            name: "GPU".into(),
            driver: "1.0".into(),
        });
    }
    p.transfers.push(profile::Transfer {
        device: "pci:1".into(),
        h2d_latency_s: 1e-5,
        h2d_bytes_per_s: 1e10,
        d2h_latency_s: 1.5e-5,
        d2h_bytes_per_s: 9e9,
    });
    p.states.push(profile::State {
        device: "pci:1".into(),
        residency: "always".into(),
        threads: 3,
        looks: 2000,
        cpu_s: 1e-5,
        device_s: 5e-5,
        stated_cpu_s: 1.1e-5,
        stated_device_s: 4e-5,
    });
    p.entries = vec![entry("add", "elements", 110_000), entry("gemm", "dim", 330)];
    p.entries.push(Entry { verdict: Verdict::Never, threshold: None, crossing: None, ..entry("relu", "elements", 1) });
    p.entries[2].ci = None;
    p
}

#[test]
fn what_is_written_is_what_is_read() {
    for partial in [false, true] {
        let p = Profile { partial, ..calibrated() };
        let text = p.to_toml().unwrap();
        let (again, warnings) = profile::file::read_toml(&text).unwrap();
        assert_eq!(again, p);
        // Every key that is written is known: the lists of known keys cannot lag behind the structs.
        assert_eq!(warnings.len(), usize::from(partial), "{warnings:?}");
        assert_eq!(again.to_toml().unwrap(), text);
    }
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("profile.toml");
    profile::file::save(&calibrated(), &path).unwrap();
    assert_eq!(profile::load(path.to_str().unwrap()).unwrap().profile, calibrated());
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1, "no temporary file is left");
}

/// Signs a text whose body was edited, as a forger would.
fn reseal(text: &str) -> String {
    let body = &text[..text.rfind("digest = ").unwrap()];
    format!("{body}digest = \"{:016x}\"\n", fnv1a64(body.as_bytes()))
}

#[test]
fn cut_anywhere_is_truncated() {
    let text = calibrated().to_toml().unwrap();
    assert_eq!(Profile::from_toml("").unwrap_err().code(), Code::ProfileTruncated);
    let mut cuts = 0;
    for at in 0..text.len() {
        if text.is_char_boundary(at) {
            assert_eq!(Profile::from_toml(&text[..at]).unwrap_err().code(), Code::ProfileTruncated, "cut at byte {at}");
            cuts += usize::from(text[..at].ends_with('\n'));
        }
    }
    assert!(cuts > 40, "the profile has {cuts} lines: too few to mean much");
}

#[test]
fn an_end_mark_in_a_note_is_no_end_mark() {
    let mut p = calibrated();
    p.notes = vec!["\n[end]\ndigest = \"0000000000000000\"\n".into()];
    let text = p.to_toml().unwrap();
    assert_eq!(Profile::from_toml(&text).unwrap(), p);
    for (at, _) in text.match_indices('\n') {
        if at + 1 < text.len() {
            assert!(Profile::from_toml(&text[..=at]).is_err(), "cut after byte {at}");
        }
    }
}

#[test]
fn a_flipped_bit_never_passes() {
    let text = calibrated().to_toml().unwrap();
    let rng = Philox::new(7);
    for i in 0..3_000 {
        let mut bytes = text.clone().into_bytes();
        let at = (rng.u64(0, i) % bytes.len() as u64) as usize;
        bytes[at] ^= 1 << (rng.u64(1, i) % 8);
        if let Ok(changed) = String::from_utf8(bytes) {
            let e = Profile::from_toml(&changed).unwrap_err();
            let known = [Code::ProfileTruncated, Code::ProfileDigest, Code::ProfileParse, Code::ProfileSchema];
            assert!(known.contains(&e.code()), "byte {at}: {e}");
        }
    }
}

/// Damage that also forges the digest: no panic, and what still loads stays within its own key.
#[test]
fn mutated_and_resealed_files_never_panic_nor_reach_beyond_their_key() {
    let text = calibrated().to_toml().unwrap();
    let body = text.rfind("digest = ").unwrap() as u64;
    let pieces =
        ["-1", "nan", "inf", "1e999", "99999999999999999999", "\"", "[", "{}", "\n", "= ", "any", "0", "\u{0}"];
    let rng = Philox::new(11);
    let mut loaded = 0;
    for i in 0..3_000 {
        let mut at = (rng.u64(0, i) % body) as usize;
        while !text.is_char_boundary(at) {
            at -= 1;
        }
        let piece = pieces[(rng.u64(1, i) % pieces.len() as u64) as usize];
        let skip = (at + (rng.u64(2, i) % 4) as usize).min(body as usize);
        if !text.is_char_boundary(skip) {
            continue;
        }
        let forged = reseal(&format!("{}{piece}{}", &text[..at], &text[skip..]));
        if let Ok(p) = Profile::from_toml(&forged) {
            loaded += 1;
            let foreign = Key { device_uid: "pci:3", ..key() };
            assert_eq!(p.lookup(&foreign, u128::MAX).place, Place::Cpu, "{forged}");
            p.to_toml().unwrap();
        }
    }
    assert!(loaded > 100, "only {loaded} of the forged files load: the test does not test much");
}

#[test]
fn hostile_values_are_typed_errors() {
    let text = calibrated().to_toml().unwrap();
    let cases = [
        ("schema = 2", "schema = 3", Code::ProfileSchema, "layout 3"),
        ("schema = 2", "schema = 0", Code::ProfileSchema, "layout 0"),
        ("schema = 2", "schema = \"2\"", Code::ProfileSchema, "no schema"),
        ("margin = 1.1", "margin = nan", Code::ProfileParse, "margin"),
        ("stated_cpu_s = 0.000011", "stated_cpu_s = 0.0", Code::ProfileParse, "state of 'pci:1', always"),
        ("device_s = 0.00005\n", "device_s = inf\n", Code::ProfileParse, "state of 'pci:1', always"),
        ("threads = 3", "threads = 0", Code::ProfileParse, "0 threads"),
        ("disturbed = 0.25", "disturbed = nan", Code::ProfileParse, "host.disturbed"),
        ("disturbed = 0.25", "disturbed = 1.5", Code::ProfileParse, "host.disturbed"),
        ("margin = 1.1", "margin = -1.0", Code::ProfileParse, "margin"),
        ("threshold = 330", "threshold = -330", Code::ProfileParse, "line"),
        ("threshold = 330", "threshold = 33e1", Code::ProfileParse, "line"),
        ("threshold = 330", "threshold = 99999999999999999999", Code::ProfileParse, "line"),
        ("threshold = 330", "threshold = 100", Code::ProfileParse, "below the crossing"),
        ("threshold = 330\n", "", Code::ProfileParse, "needs a threshold"),
        ("unit = \"dim\"", "unit = \"cubits\"", Code::ProfileParse, "cubits"),
        ("dtype = \"f32\"", "dtype = \"f99\"", Code::ProfileParse, "dtype"),
        ("dtype = \"f32\"", "dtype = \"any\"", Code::ProfileParse, "only presets"),
        ("threads = 2", "threads = 0", Code::ProfileParse, "only presets"),
        ("verdict = \"crossing\"", "verdict = \"sometimes\"", Code::ProfileParse, "line"),
        ("verify = \"ok\"", "verify = \"\"", Code::ProfileParse, "verify"),
        ("device = \"pci:1\"\nresidency", "device = \"pci:9\"\nresidency", Code::ProfileParse, "no [[device]]"),
        ("uid = \"pci:2\"", "uid = \"pci:1\"", Code::ProfileParse, "twice"),
        ("op = \"gemm\"", "op = \"add\"", Code::ProfileParse, "twice"),
        ("d2h_bytes_per_s = 9000000000.0", "d2h_bytes_per_s = inf", Code::ProfileParse, "rates"),
        ("entries = 3", "entries = 4", Code::ProfileDigest, "there are 3"),
        ("entries = 3", "entries = true", Code::ProfileTruncated, "how many"),
        ("name = \"test\"", "name = ", Code::ProfileParse, "line"),
    ];
    for (from, to, code, word) in cases {
        assert!(text.contains(from), "'{from}' is not in the file:\n{text}");
        let e = Profile::from_toml(&reseal(&text.replacen(from, to, 1))).unwrap_err();
        assert_eq!(e.code(), code, "{from} -> {to}: {e}");
        assert!(e.to_string().contains(word), "{from} -> {to}: {e}");
        if !from.contains("schema") && !to.is_empty() {
            // Without the forged digest the edit alone is enough to be refused.
            assert!(Profile::from_toml(&text.replacen(from, to, 1)).is_err());
        }
    }
    let edited = text.replacen("threshold = 330", "threshold = 331", 1);
    assert_eq!(Profile::from_toml(&edited).unwrap_err().code(), Code::ProfileDigest);
    let bomb = format!("a = {}\n[end]\ndigest = \"0000000000000000\"\n", "[".repeat(100_000));
    assert_eq!(Profile::from_toml(&bomb).unwrap_err().code(), Code::ProfileParse);
}

#[test]
fn unknown_keys_warn() {
    let text = calibrated().to_toml().unwrap();
    let text = text.replacen("margin = 1.1", "margin = 1.1\ncolour = 3", 1);
    let edited = text.replacen("unit = \"dim\"", "unit = \"dim\"\ntreshold = 3", 1);
    let text = reseal(&text.replacen("[[transfer]]", "[[transfer]]\n\"sp\\u001beed\" = 3", 1));
    let (_, warnings) = profile::file::read_toml(&text).unwrap();
    assert_eq!(warnings, ["unknown key 'colour' is ignored", "unknown key 'transfer.sp\\u{1b}eed' is ignored"]);
    // In an entry it is a change all the same: a later gpuctl may know the key.
    let e = Profile::from_toml(&reseal(&edited)).unwrap_err();
    assert!(
        e.code() == Code::ProfileDigest && e.to_string().contains("entry 2 (gemm f32 all on opencl:1 always)"),
        "{e}"
    );
}

#[test]
fn missing_profiles_are_the_users_mistake() {
    for spec in ["/nonexistent/p.toml", "preset:fast", "", "src"] {
        let e = profile::load(spec).unwrap_err();
        assert_eq!(e.code(), Code::ProfileNotFound, "{spec}: {e}");
        assert_eq!(e.class(), gpuctl::base::Class::Usage);
    }
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("p.toml");
    std::fs::write(&path, [0xff, 0xfe, 0x00]).unwrap();
    assert_eq!(profile::load(path.to_str().unwrap()).unwrap_err().code(), Code::ProfileParse);
    std::fs::write(&path, "").unwrap();
    let e = profile::load(path.to_str().unwrap()).unwrap_err();
    assert!(e.code() == Code::ProfileTruncated && e.to_string().contains("p.toml"), "{e}");
}

/// Every key that differs from the entry's in any one part, or in several, is answered with the CPU.
#[test]
fn nothing_is_borrowed_from_another_key() {
    let p = calibrated();
    assert_eq!(p.lookup(&key(), 110_000).place, Place::Gpu);
    let ops = ["add", "sub", "ad", "adds", ""];
    let dtypes = DType::ALL;
    let families = [Some("all"), Some("any"), Some("narrow"), None];
    let units = ["elements", "dim"];
    let uids = ["pci:1", "pci:2", "any", ""];
    let residencies = ["always", "resident", "any"];
    let threads = [2, 1, 0, 64];
    let variants = ["auto", "naive", "any"];
    let mut asked = 0u32;
    for op in ops {
        for dtype in dtypes {
            for family in families {
                for unit in units {
                    for device_uid in uids {
                        for residency in residencies {
                            for threads in threads {
                                for cpu_variant in variants {
                                    let k =
                                        Key { op, dtype, family, unit, device_uid, residency, threads, cpu_variant };
                                    let own = format!("{k:?}") == format!("{:?}", key());
                                    let d = p.lookup(&k, u128::MAX);
                                    assert_eq!(d.place == Place::Gpu, own, "{k:?}");
                                    assert_eq!(d.entry.is_some(), own);
                                    asked += 1;
                                }
                            }
                        }
                    }
                }
            }
        }
    }
    assert_eq!(asked, 5 * 12 * 4 * 2 * 4 * 3 * 4 * 3);
}

#[test]
fn the_reason_names_the_part_that_differs() {
    let p = calibrated();
    let cases = [
        (Key { op: "sum", ..key() }, Reason::NoOp),
        (Key { dtype: DType::F64, ..key() }, Reason::NoDtype),
        (Key { family: None, ..key() }, Reason::NoFamily),
        (Key { device_uid: "pci:2", ..key() }, Reason::NoDevice),
        (Key { residency: "resident", ..key() }, Reason::NoResidency),
        (Key { threads: 8, ..key() }, Reason::OtherThreads),
        (Key { cpu_variant: "naive", ..key() }, Reason::OtherCpuVariant),
        (Key { unit: "dim", ..key() }, Reason::OtherUnit),
        (Key { op: "relu", ..key() }, Reason::Never),
        (key(), Reason::ReachesThreshold),
    ];
    for (k, why) in cases {
        assert_eq!(p.lookup(&k, u128::MAX).why, why, "{k:?}");
    }
    for verdict in Verdict::ALL {
        let mut q = calibrated();
        q.entries[0].verdict = verdict;
        let gpu = matches!(verdict, Verdict::Always | Verdict::Crossing);
        assert_eq!(q.lookup(&key(), u128::MAX).place == Place::Gpu, gpu, "{verdict}");
        assert_eq!(q.lookup(&key(), 109_999).place, Place::Cpu, "{verdict}: below every threshold");
        assert_eq!(Verdict::parse(verdict.name()), Some(verdict));
    }
}

/// Once on the GPU, always on the GPU: over every power of two up to 2^120 and its neighbours.
#[test]
fn placement_is_monotone_in_the_work() {
    let mut p = calibrated();
    for (unit, threshold) in
        [("elements", 1u64), ("elements", 110_000), ("dim", 330), ("dim", 1 << 40), ("dim", i64::MAX as u64)]
    {
        p.entries[0] = entry("add", unit, threshold);
        let mut gpu = false;
        for e in 0..=120 {
            for work in [(1u128 << e) - 1, 1 << e, (1 << e) + 1] {
                let now = p.lookup(&Key { unit, ..key() }, work).place == Place::Gpu;
                assert!(now || !gpu, "{unit} {threshold}: work {work} goes back to the CPU");
                let wide = profile::work_of(unit, threshold).unwrap();
                assert_eq!(now, work >= wide, "{unit} {threshold} at {work}");
                gpu = now;
            }
        }
        // The cube of 2^63 does not fit 128 bits: no work reaches it.
        assert_eq!(gpu, threshold <= 1 << 40);
    }
}

#[test]
fn devices_are_compared_by_uid_and_fingerprint() {
    let cpu = CpuDevice::new(1, Isa::BASELINE, Pin::Free).unwrap();
    let here = DeviceInfo { uid: "pci:1".into(), id: "opencl:0".into(), ..cpu.info().clone() };
    let mut p = calibrated();
    p.devices[0] = ProfileDevice::of(&here);
    let fit = |now: &DeviceInfo| p.check(std::slice::from_ref(now)).remove(0).1;
    assert_eq!(fit(&here), Fit::Exact);
    assert_eq!(fit(&DeviceInfo { id: "opencl:7".into(), ..here.clone() }), Fit::Exact, "ids may be reordered");
    let newer = fit(&DeviceInfo { driver: "2.0".into(), ..here.clone() });
    assert!(matches!(newer, Fit::OtherDriver { .. }) && newer.usable() && newer.text().contains("2.0"));
    let other = fit(&DeviceInfo { name: "another chip".into(), ..here.clone() });
    assert!(matches!(other, Fit::Other { .. }) && !other.usable() && other.text().contains("profile-stale"));
    assert_eq!(fit(&DeviceInfo { uid: "pci:5".into(), ..here }), Fit::Absent);
    let now = |isa: &str, blas: &str| gpuctl::profile::Host {
        cpu: "CPU".into(),
        isa: isa.into(),
        blas: blas.into(),
        ..Default::default()
    };
    assert_eq!(p.other_host(&now("avx2", "")), None);
    assert!(p.other_host(&now("avx512", "")).unwrap().contains("avx2"));
    let with = p.other_host(&now("avx2", "MKL 2026.0, AVX-512")).unwrap();
    assert!(with.contains("this CPU is 'CPU, avx2 with MKL 2026.0, AVX-512'"), "{with}");
    let mut made_with = p.clone();
    made_with.host.as_mut().unwrap().blas = "MKL 2026.0, AVX-512".into();
    assert!(
        made_with.other_host(&now("avx2", "")).is_some(),
        "a profile against a library is none against our kernels"
    );
    assert_eq!(made_with.other_host(&now("avx2", "MKL 2026.0, AVX-512")), None);
}

#[test]
fn lint_reports_and_show_lists() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("p.toml");
    let spec = path.to_str().unwrap();
    let mut p = calibrated();
    p.entries.push(entry("frobnicate", "elements", 55));
    p.entries[1].unit = "elements".into();
    let text = p.to_toml().unwrap();
    std::fs::write(&path, &text).unwrap();
    let report = gpuctl::jobs::profile::lint(spec).unwrap();
    assert_eq!((report.exit_code(), report.entries), (0, 4));
    let lines = report.lines().join("\n");
    assert!(lines.contains("no op 'frobnicate'") && lines.contains("gemm: unit elements"), "{lines}");
    let shown = gpuctl::jobs::profile::show(&profile::load(spec).unwrap()).join("\n");
    assert!(shown.contains("add f32 all on opencl:1, always, against 2 CPU threads (auto): crossing"), "{shown}");
    std::fs::write(&path, text.replace("threshold = 55\n", "threshold = 56\n")).unwrap();
    let report = gpuctl::jobs::profile::lint(spec).unwrap();
    assert_eq!(report.exit_code(), 1);
    assert!(report.lines()[0].contains("profile-digest"), "{:?}", report.lines());
    assert_eq!(gpuctl::jobs::profile::lint("/nonexistent").unwrap_err().code(), Code::ProfileNotFound);
    for name in NAMES {
        let report = gpuctl::jobs::profile::lint(name).unwrap();
        assert!(report.exit_code() == 0 && report.warnings.is_empty(), "{name}: {:?}", report.warnings);
    }
}
