//! `--rtol --atol`, `--save-failing` and JUnit XML, on devices with planted faults.

use std::path::Path;

use gpuctl::base::record::{Record, Status, VerifyRecord};
use gpuctl::base::{DType, Exact, npy};
use gpuctl::jobs::verify::{OwnBound, VerifyConfig};
use gpuctl::report::junit;

use crate::{config, cpu, device, f32s, one, run};

const CASE: &str = "exp/f32/n1025/-/uniform";

fn own(rtol: f64, atol: f64) -> Option<OwnBound> {
    OwnBound::new(Some(rtol), Some(atol)).unwrap()
}

fn first(cfg: &VerifyConfig, edit: impl Fn(&mut [u8]) + Send + Sync + 'static) -> (u64, VerifyRecord) {
    let (summary, mut records) = run(cfg, vec![device(edit)]);
    (summary.beyond, records.remove(0))
}

/// The derived bound rejects one element; a looser one lets it pass, but not in silence.
#[test]
fn a_looser_bound_passes_with_a_flag() {
    let off = || f32s(|v| v[700] *= 1.0001);
    let (_, derived) = first(&one(CASE), off());
    assert_eq!((derived.subject.status, derived.wrong), (Status::Failed, 1));
    let (beyond, loose) = first(&VerifyConfig { own: own(1e-3, 0.0), ..one(CASE) }, off());
    assert_eq!((loose.subject.status, loose.wrong, beyond), (Status::Ok, 0, 1));
    assert!(loose.subject.flags.iter().any(|f| f == "beyond-own-bound"), "{:?}", loose.subject.flags);
    assert!(loose.tolerance.starts_with("asked for: |got - want| <= 0e0 + 1e-3 |want|"), "{}", loose.tolerance);
    assert!(loose.tolerance.contains(&derived.tolerance) && loose.rerun.ends_with("--rtol 1e-3 --atol 0e0"));
    assert!(loose.strict_met == Some(false), "the strict line is not the user's to move");
    // A right result carries no flag, and a tighter bound than the derived one decides, too.
    let (beyond, clean) = first(&VerifyConfig { own: own(1e-3, 0.0), ..one(CASE) }, |_| {});
    assert!(beyond == 0 && clean.subject.flags.is_empty() && clean.subject.status == Status::Ok);
    let (_, tight) = first(&VerifyConfig { own: own(0.0, 0.0), ..one(CASE) }, |_| {});
    assert_eq!(tight.subject.status, Status::Failed, "no exp is exact");
    // What is no distance is no matter of tolerance.
    let (_, nan) = first(&VerifyConfig { own: own(10.0, 10.0), ..one(CASE) }, f32s(|v| v[3] = f32::NAN));
    assert_eq!((nan.subject.status, nan.detectors.as_slice()), (Status::Failed, &["class".to_string()][..]));
}

#[test]
fn every_record_says_by_which_bound_it_was_judged() {
    let relu = vec![gpuctl::op::find("relu").unwrap(), gpuctl::op::find("sum").unwrap()];
    let cfg = VerifyConfig { ops: relu, own: own(1e-2, 1e-2), ..config() };
    let (summary, records) = run(&cfg, vec![cpu()]);
    assert_eq!((summary.failed, summary.beyond), (0, 0));
    assert!(records.len() > 20 && records.iter().all(|r| r.tolerance.starts_with("asked for: ")));
}

fn arrays(folder: &Path) -> Vec<String> {
    let mut names: Vec<String> =
        std::fs::read_dir(folder).unwrap().map(|e| e.unwrap().file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

#[test]
fn failing_cases_are_saved_whole() {
    let dir = tempfile::tempdir().unwrap();
    let cfg = |name: &str| VerifyConfig { save_failing: Some(dir.path().join("failing")), ..one(name) };
    let (_, passed) = first(&cfg(CASE), |_| {});
    assert!(passed.subject.status == Status::Ok && !dir.path().join("failing").exists(), "nothing failed");
    let (_, r) = first(&cfg(CASE), f32s(|v| v[700] += 1.0));
    let folder = dir.path().join("failing").join(format!("exp_f32_n1025_-_uniform@spoilt-0+{}", r.subject.variant));
    assert!(r.subject.reason.ends_with(&format!("arrays in {}", folder.display())), "{}", r.subject.reason);
    assert_eq!(arrays(&folder), ["case.txt", "got0-y.npy", "in0-x.npy", "want0-y.npy"]);
    let load = |name: &str| npy::read(&folder.join(name)).unwrap();
    let (x, got, want) = (load("in0-x.npy"), load("got0-y.npy"), load("want0-y.npy"));
    assert_eq!((x.dtype, got.dtype, want.dtype), (DType::F32, DType::F32, DType::F64));
    // Anyone can repeat the judgement from the files alone.
    let wrong = |i: u64| (Exact::read(&got, i).to_f64() - Exact::read(&want, i).to_f64()).abs() > 0.5;
    assert_eq!((0..1025).filter(|i| wrong(*i)).collect::<Vec<_>>(), [700]);
    let exp = |i: u64| Exact::read(&x, i).to_f64().exp();
    assert!((0..1025).all(|i| (Exact::read(&want, i).to_f64() / exp(i) - 1.0).abs() < 1e-14));
    let note = std::fs::read_to_string(folder.join("case.txt")).unwrap();
    assert!(note.starts_with(&format!("{CASE}\n")) && note.contains(&r.rerun) && note.contains("1 of 1025"), "{note}");
    // Integers keep all their bits; several operands have their names.
    let (_, ints) = first(&cfg("sum/i32/outer3,n50,inner7/-/uniform"), |bytes| bytes[0] ^= 1);
    let folder = ints.subject.reason.rsplit("arrays in ").next().unwrap();
    assert_eq!(npy::read(&Path::new(folder).join("want0-y.npy")).unwrap().dtype, DType::I64);
    let (_, gemm) = first(&cfg("gemm/f32/m5,n7,k3/-/uniform"), f32s(|v| v[0] += 1.0));
    let folder = gemm.subject.reason.rsplit("arrays in ").next().unwrap();
    let names = arrays(Path::new(folder));
    assert_eq!(names, ["case.txt", "got0-C.npy", "in0-A.npy", "in1-B.npy", "in2-C.npy", "want0-C.npy"]);
    assert_eq!(npy::read(&Path::new(folder).join("got0-C.npy")).unwrap().shape, [5, 7]);
}

/// A run that can be repeated: the second differs.
#[test]
fn both_runs_are_saved_where_they_differ() {
    let dir = tempfile::tempdir().unwrap();
    let cfg = VerifyConfig { save_failing: Some(dir.path().into()), ..one(CASE) };
    let calls = std::sync::atomic::AtomicU32::new(0);
    let (_, r) = first(&cfg, move |bytes| {
        if calls.fetch_add(1, std::sync::atomic::Ordering::Relaxed) % 2 == 1 {
            bytes[..4].copy_from_slice(&7.5f32.to_le_bytes());
        }
    });
    let folder = r.subject.reason.rsplit("arrays in ").next().unwrap();
    assert!(arrays(Path::new(folder)).contains(&"again0-y.npy".to_string()), "{:?}", r.subject.reason);
}

#[test]
fn a_folder_that_cannot_be_made_is_told() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let cfg = VerifyConfig { save_failing: Some(file.path().join("below")), ..one(CASE) };
    let (_, r) = first(&cfg, f32s(|v| v[0] = 0.0));
    assert!(r.subject.reason.contains("not saved: io: "), "{}", r.subject.reason);
}

#[test]
fn junit_has_a_test_case_per_record() {
    let (_, failed) = first(&one(CASE), f32s(|v| v[700] += 1.0));
    let (_, passed) = first(&one(CASE), |_| {});
    let mut left_out = passed.clone();
    left_out.subject.status = Status::Unsupported;
    left_out.subject.reason = "no f64: needs cl_khr_fp64 & <more>".into();
    let records: Vec<Record> = [&failed, &passed, &left_out].map(|r| Record::Verify(Box::new(r.clone()))).to_vec();
    let xml = junit::verify(&records, false);
    assert!(
        xml.contains("<testsuite name=\"gpuctl verify\" tests=\"3\" failures=\"1\" errors=\"0\" skipped=\"1\">"),
        "{xml}"
    );
    assert_eq!(xml.matches("<testcase ").count(), 3);
    assert_eq!(xml.matches("</testcase>").count(), 3);
    assert!(xml.contains("classname=\"spoilt:0.exp.f32\" name=\"exp/f32/n1025/-/uniform +simd\""), "{xml}");
    let failure = &xml[xml.find("<failure type=\"bound\"").expect("a failure")..xml.find("</failure>").unwrap()];
    for part in
        ["worst element [700]", "1 of 1025 elements wrong", "rerun: gpuctl verify --case 'exp/f32/n1025/-/uniform'"]
    {
        assert!(failure.contains(part), "{part}: {failure}");
    }
    assert!(xml.contains("<skipped message=\"unsupported: no f64: needs cl_khr_fp64 &amp; &lt;more&gt;\"/>"), "{xml}");
}
