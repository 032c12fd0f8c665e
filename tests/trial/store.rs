//! The files that verdicts are kept in: what is not a whole, sound file of our own is none.

use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use gpuctl::base::rng::Philox;
use gpuctl::base::{Attrs, DType, DeviceInfo, Env, Fill};
use gpuctl::engine::judge;
use gpuctl::engine::trials::{Program, Trials, Verdict};
use gpuctl::{kernel, op};

use super::{env, someone};

/// What a case of an op is built of on a device.
fn program(name: &str, info: &DeviceInfo) -> (Program, String) {
    let op = op::find(name).unwrap();
    let case = op.case(DType::F32, &[257], Attrs::new(), Fill::Uniform).unwrap();
    let choice = kernel::choose(op.kernels, &case, info, None).unwrap();
    (judge::programs(op, &case, &choice, info).unwrap().remove(0), case.to_string())
}

fn wrong(name: &str, info: &DeviceInfo) -> (Program, Verdict) {
    let (program, case) = program(name, info);
    (program, Verdict::Wrong { case, found: "element 3 is 1e0, expected 2e0".into() })
}

fn passed(name: &str, info: &DeviceInfo) -> (Program, Verdict) {
    let (program, case) = program(name, info);
    (program, Verdict::Passed { case })
}

/// The one file of verdicts.
fn file(cache: &Path) -> PathBuf {
    let all = std::fs::read_dir(cache.join("gpuctl/trials")).unwrap().flatten().map(|e| e.path());
    let pages: Vec<_> = all.filter(|p| p.extension().is_some_and(|e| e == "json")).collect();
    assert_eq!(pages.len(), 1, "{pages:?}");
    pages[0].clone()
}

fn mode(path: &Path) -> u32 {
    std::fs::symlink_metadata(path).unwrap().mode() & 0o777
}

fn set_mode(path: &Path, mode: u32) {
    std::fs::set_permissions(path, PermissionsExt::from_mode(mode)).unwrap();
}

#[test]
fn what_is_kept_is_found_again_by_its_owner_alone() {
    let cache = tempfile::tempdir().unwrap();
    let info = someone();
    let (first, second) = (Trials::of(&env(cache.path())), Trials::of(&env(cache.path())));
    // Both have read that there is nothing.
    assert!(first.wrong(&info).is_empty() && second.wrong(&info).is_empty());
    first.note(&info, &[wrong("exp", &info)]);
    second.note(&info, &[passed("relu", &info)]);
    let page = file(cache.path());
    assert_eq!((mode(&page), mode(page.parent().unwrap())), (0o600, 0o700));
    let third = Trials::of(&env(cache.path()));
    assert_eq!((third.wrong(&info).len(), third.passed(&info)), (1, 1), "neither took the other's away");
    let fault = third.wrong(&info).remove(0);
    assert_eq!((fault.program.clone(), fault.case.as_str()), (program("exp", &info).0, "exp/f32/n257/-/uniform"));
    let rerun = "gpuctl verify --case 'exp/f32/n257/-/uniform' --device opencl:ordinary --variant flat";
    assert_eq!(fault.rerun(&info), rerun);
    // Another driver, another card, another build of the kernel: nothing is known.
    let driver = DeviceInfo { driver: "2".into(), ..info.clone() };
    let card = DeviceInfo { uid: "other".into(), ..info.clone() };
    assert!(third.wrong(&driver).is_empty() && third.wrong(&card).is_empty());
    // Another compiler beside the same driver neither; where it lies changes nothing.
    let by = |note: &str| DeviceInfo { notes: vec![note.into()], ..info.clone() };
    third.note(&by("kernels by NVRTC 12.8 (/a)"), &[wrong("exp", &info)]);
    assert_eq!(third.wrong(&by("kernels by NVRTC 12.8 (/b)")).len(), 1);
    assert!(third.wrong(&by("kernels by NVRTC 13.0 (/b)")).is_empty());
    let (mut old, verdict) = wrong("sin", &info);
    old.text ^= 1;
    third.note(&info, &[(old, verdict)]);
    assert_eq!(Trials::of(&env(cache.path())).wrong(&info).len(), 1, "the text has changed since");
    // A later verdict takes the place of an earlier one.
    third.note(&info, &[passed("exp", &info)]);
    let last = Trials::of(&env(cache.path()));
    assert_eq!((last.wrong(&info).len(), last.passed(&info)), (0, 2));
    assert_eq!(last.trouble(), None);
}

#[test]
fn many_may_write_at_once() {
    let cache = tempfile::tempdir().unwrap();
    let info = someone();
    let ops = ["exp", "log", "sin", "cos", "tan", "tanh", "relu", "sqrt"];
    std::thread::scope(|scope| {
        for op in ops {
            let (info, folder) = (&info, cache.path());
            scope.spawn(move || {
                let kept = Trials::of(&env(folder));
                (0..5).for_each(|_| kept.note(info, &[passed(op, info)]));
                assert_eq!(kept.trouble(), None);
            });
        }
    });
    let kept = Trials::of(&env(cache.path()));
    assert!((1..=ops.len() as u64).contains(&kept.passed(&info)), "a whole page is left");
    let parts = std::fs::read_dir(cache.path().join("gpuctl/trials")).unwrap().flatten();
    assert!(!parts.into_iter().any(|e| e.path().extension().is_some_and(|e| e == "part")));
}

/// The folder does not grow without end, and what is thrown away first is what says least.
#[test]
fn what_is_kept_is_bounded() {
    let cache = tempfile::tempdir().unwrap();
    let info = someone();
    let kept = Trials::of(&env(cache.path()));
    let (program, verdict) = passed("relu", &info);
    let many = (0..9000).map(|text| (Program { text, ..program.clone() }, verdict.clone()));
    kept.note(&info, &many.chain([wrong("exp", &info)]).collect::<Vec<_>>());
    let again = Trials::of(&env(cache.path()));
    assert_eq!((again.wrong(&info).len(), again.passed(&info)), (1, 8191));
    let folder = cache.path().join("gpuctl/trials");
    let abandoned = folder.join("x.json.1-1.part");
    let file = std::fs::File::create(&abandoned).unwrap();
    file.set_modified(std::time::SystemTime::now() - std::time::Duration::from_secs(7200)).unwrap();
    for n in 0..80 {
        let card = DeviceInfo { uid: format!("card {n}"), ..info.clone() };
        kept.note(&card, &[passed("relu", &card)]);
    }
    let pages =
        std::fs::read_dir(&folder).unwrap().flatten().filter(|e| e.path().extension().is_some_and(|e| e == "json"));
    assert_eq!((pages.count(), abandoned.exists()), (64, false));
}

/// Whatever lies in the file's place is as good as nothing, and gives way to the next verdict.
#[test]
fn what_is_no_page_of_ours_is_none() {
    let cache = tempfile::tempdir().unwrap();
    let info = someone();
    Trials::of(&env(cache.path())).note(&info, &[wrong("exp", &info), passed("relu", &info)]);
    let page = file(cache.path());
    let good = std::fs::read(&page).unwrap();
    let text = String::from_utf8(good.clone()).unwrap();
    let mut bad: Vec<Vec<u8>> = vec![Vec::new(), b"{}".to_vec(), b"[".repeat(100_000), b"null".to_vec()];
    bad.extend((1..12).map(|i| good[..good.len() * i / 12].to_vec()));
    let rng = Philox::new(7);
    bad.extend((0..20).map(|stream| (0..500).map(|i| rng.u64(stream, i) as u8).collect()));
    for (from, to) in [
        ("\"gpuctl_trials\":1", "\"gpuctl_trials\":2"),
        ("\"gpuctl\":\"", "\"gpuctl\":\"9"),
        ("\"uid\":\"", "\"uid\":\"9"),
        ("\"fingerprint\":\"", "\"fingerprint\":\"9"),
        ("\"verdict\":\"wrong\"", "\"verdict\":\"fine\""),
        ("\"verdict\":\"wrong\"", "\"trust\":true,\"verdict\":\"wrong\""),
        ("\"dtype\":\"f32\"", "\"dtype\":\"f33\""),
        ("\"text\":", "\"text\":-"),
    ] {
        assert!(text.contains(from), "{text}");
        bad.push(text.replacen(from, to, 1).into_bytes());
    }
    bad.push(text.replacen("element 3", &"element 3".repeat(100), 1).into_bytes());
    let look = |what: &str| {
        let kept = Trials::of(&env(cache.path()));
        assert_eq!((kept.wrong(&info).len(), kept.passed(&info)), (0, 0), "{what}");
        kept
    };
    for bytes in bad {
        std::fs::write(&page, &bytes).unwrap();
        let kept = look(&String::from_utf8_lossy(&bytes[..bytes.len().min(200)]));
        assert_eq!(kept.trouble(), None);
        kept.note(&info, &[passed("relu", &info)]);
        assert_eq!(Trials::of(&env(cache.path())).passed(&info), 1, "it is written anew");
    }
    // Longer than any that we write.
    std::fs::write(&page, &good).unwrap();
    std::fs::File::options().write(true).open(&page).unwrap().set_len(9 << 20).unwrap();
    look("huge");
    // The good one, to see that nothing else is wrong here.
    std::fs::write(&page, &good).unwrap();
    assert_eq!(Trials::of(&env(cache.path())).wrong(&info).len(), 1);
}

/// What somebody else may have written is not read, and that is said.
#[test]
fn what_others_could_have_written_is_not_trusted() {
    let cache = tempfile::tempdir().unwrap();
    let info = someone();
    Trials::of(&env(cache.path())).note(&info, &[wrong("exp", &info)]);
    let page = file(cache.path());
    let folder = page.parent().unwrap().to_path_buf();
    let (good, aside) = (std::fs::read(&page).unwrap(), cache.path().join("aside"));
    let whole = || {
        std::fs::write(&page, &good).unwrap();
        set_mode(&page, 0o600);
        assert_eq!(Trials::of(&env(cache.path())).wrong(&info).len(), 1);
    };
    let refused = |word: &str| {
        let kept = Trials::of(&env(cache.path()));
        assert_eq!(kept.wrong(&info).len(), 0, "{word}");
        let said = kept.trouble().unwrap_or_default();
        assert!(said.contains(word), "{word}: {said}");
        kept
    };
    whole();
    for mode in [0o620, 0o602, 0o666] {
        set_mode(&page, mode);
        refused("others may write it").note(&info, &[wrong("exp", &info)]);
        assert_eq!(self::mode(&page), 0o600, "written anew, for its owner alone");
        whole();
    }
    std::fs::copy(&page, &aside).unwrap();
    std::fs::remove_file(&page).unwrap();
    std::os::unix::fs::symlink(&aside, &page).unwrap();
    refused(&page.display().to_string()).note(&info, &[passed("relu", &info)]);
    assert!(page.symlink_metadata().unwrap().is_file() && std::fs::read(&aside).unwrap() == good);
    std::fs::remove_file(&page).unwrap();
    assert!(std::process::Command::new("mkfifo").arg(&page).status().unwrap().success());
    refused("no file");
    std::fs::remove_file(&page).unwrap();
    std::fs::create_dir(&page).unwrap();
    let kept = refused("no file");
    kept.note(&info, &[passed("relu", &info)]);
    assert_eq!(kept.passed(&info), 1, "known to this program all the same");
    std::fs::remove_dir(&page).unwrap();
    whole();
    // Only root may give files away.
    if std::os::unix::fs::chown(&page, Some(12_345), None).is_ok() {
        refused("it belongs to another user");
        std::fs::remove_file(&page).unwrap();
        whole();
        std::os::unix::fs::chown(&folder, Some(12_345), None).unwrap();
        refused("it belongs to another user");
        std::os::unix::fs::chown(&folder, Some(std::fs::metadata(&page).unwrap().uid()), None).unwrap();
        whole();
    }
    set_mode(&folder, 0o777);
    let kept = refused("others may write it");
    kept.note(&info, &[passed("relu", &info)]);
    assert_eq!((kept.passed(&info), std::fs::read(&page).unwrap() == good), (1, true), "nor is it written there");
    set_mode(&folder, 0o700);
    let elsewhere = cache.path().join("elsewhere");
    std::fs::rename(&folder, &elsewhere).unwrap();
    std::os::unix::fs::symlink(&elsewhere, &folder).unwrap();
    refused("no folder, or a link to one");
    // Where nothing can be written, the program goes on with what it finds out itself.
    std::fs::remove_file(&folder).unwrap();
    std::fs::write(&folder, "a file").unwrap();
    refused("no folder");
    let nowhere = Env { cache_dir: Some(page.join("below a file")), ..Env::default() };
    let kept = Trials::of(&nowhere);
    kept.note(&info, &[wrong("exp", &info)]);
    assert!(kept.trouble().is_some() && kept.wrong(&info).len() == 1);
}

/// Cases are read from the file and planned: no name may bring that down.
#[test]
fn hostile_names_of_cases_are_of_no_case() {
    let cache = tempfile::tempdir().unwrap();
    let info = someone();
    let huge = u64::MAX.to_string();
    let mut names: Vec<String> = vec![
        String::new(),
        "/".repeat(400),
        format!("exp/f32/n{huge}/-/uniform"),
        "exp/f32/n18446744073709551614/-/special".into(),
        format!("gemm/f32/m{huge},n{huge},k{huge}/-/uniform"),
        "gemm/f32/m0,n18446744073709551615,k0/-/uniform".into(),
        "gemm/f32/m4294967296,n4294967296,k1/-/uniform".into(),
        format!("transpose/f32/m{huge},n0/-/uniform"),
        format!("sum/f32/outer{huge},n0,inner{huge}/-/uniform"),
        format!("conv2d/f32/n1,c1,h{huge},w1,co1,kh{huge},kw1/strides={huge}:{huge}/uniform"),
        "maxpool2d/f32/n1,c1,h3,w3/kernel_shape=9223372036854775807:1,strides=1:0/uniform".into(),
        "softmax/f32/m1,n1/inner=9223372036854775807/uniform".into(),
    ];
    for op in op::all() {
        let dims: Vec<String> =
            op.dims.iter().enumerate().map(|(i, d)| format!("{d}{}", [huge.as_str(), "0"][i % 2])).collect();
        names.push(format!("{}/f32/{}/-/uniform", op.name, dims.join(",")));
        let dims: Vec<String> = op.dims.iter().map(|d| format!("{d}4294967295")).collect();
        names.push(format!("{}/f32/{}/-/uniform", op.name, dims.join(",")));
    }
    let kept = Trials::of(&env(cache.path()));
    for (text, name) in names.iter().enumerate() {
        let op = name.split('/').next().unwrap_or_default().to_string();
        let program = Program { op, variant: "flat".into(), dtype: DType::F32, text: text as u64 };
        kept.note(&info, &[(program, Verdict::Wrong { case: name.clone(), found: "x".into() })]);
    }
    assert_eq!(kept.wrong(&info), []);
    assert_eq!(Trials::of(&env(cache.path())).wrong(&info), []);
}
