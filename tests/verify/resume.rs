//! `--resume`: what is left out the next time, and what is not.

use std::process::Command;

use super::*;

fn softmax() -> VerifyConfig {
    VerifyConfig { ops: vec![op::find("softmax").unwrap()], dtypes: Some(vec![DType::F32]), ..config() }
}

/// One variant that fails is a case that failed, whichever comes first.
#[test]
fn a_case_is_done_if_none_of_its_variants_failed() {
    let cfg = VerifyConfig { all_variants: true, ..softmax() };
    let (_, mut records) = run(&cfg, vec![cpu()]);
    // Without elements there is nothing that could be proved once and for all.
    records.retain(|r| r.compared > 0);
    let cases: std::collections::BTreeSet<_> = records.iter().map(|r| r.case.clone()).collect();
    assert!(cases.len() > 1 && records.len() >= 2 * cases.len());
    assert_eq!(done(&cfg, &[cpu()], &records).len(), cases.len());
    for (at, status) in [(0, Status::Failed), (1, Status::Failed), (1, Status::Skipped)] {
        let mut bad = records.clone();
        bad[at].subject.status = status;
        let done = done(&cfg, &[cpu()], &bad);
        assert_eq!(done.len(), cases.len() - 1, "{at}");
        // The next run meets the failing case again.
        let (summary, again) = run(&VerifyConfig { done, ..cfg.clone() }, vec![cpu()]);
        assert_eq!(summary.resumed as usize, cases.len() - 1);
        let again: Vec<_> = again.iter().filter(|r| r.compared > 0).collect();
        assert!(!again.is_empty() && again.iter().all(|r| r.case == records[0].case), "{again:?}");
    }
    // What ran without a result that was judged is not done.
    let mut open = records.clone();
    for r in open.iter_mut().filter(|r| r.case == records[0].case) {
        r.undefined = r.compared;
    }
    assert_eq!(done(&cfg, &[cpu()], &open).len(), cases.len() - 1);
}

#[test]
fn a_case_is_done_under_the_same_conditions_only() {
    let cfg = softmax();
    let info = cpu().info().clone();
    let key = |cfg: &VerifyConfig, info| verify::done_key(cfg, "softmax/f32/m7,n33/-/uniform", info);
    let own = key(&cfg, &info);
    assert_eq!(own.lines().count(), 1);
    let all = VerifyConfig { all_variants: true, ..cfg.clone() };
    let named = VerifyConfig { variant: Some("naive".into()), ..cfg.clone() };
    let watched = VerifyConfig { watch: true, ..cfg.clone() };
    let (mut driver, mut isa, mut other) = (info.clone(), info.clone(), info.clone());
    driver.driver = "another\nline".into();
    isa.api = "2 threads, none".into();
    other.uid = "another".into();
    let keys = [
        own,
        key(&all, &info),
        key(&named, &info),
        key(&watched, &info),
        key(&cfg, &driver),
        key(&cfg, &isa),
        key(&cfg, &other),
    ];
    let different: std::collections::BTreeSet<_> = keys.iter().collect();
    assert_eq!(different.len(), keys.len(), "{keys:?}");
    assert!(keys.iter().all(|k| k.lines().count() == 1));
}

/// Of two devices one takes no f64: it is asked again, the other is not, and the run is a pass as the first one was.
#[test]
fn what_a_device_does_not_take_is_no_obstacle_the_next_time() {
    let cfg = VerifyConfig { dtypes: Some(vec![DType::F32, DType::F64]), ..softmax() };
    let narrow = || -> Arc<dyn Device> {
        let mut d = spoilt(|_| {});
        d.info_mut().dtypes.retain(|d| *d != DType::F64);
        Arc::new(d)
    };
    let devices = || vec![cpu(), narrow()];
    let (first, records) = run(&cfg, devices());
    assert!(first.unsupported > 0 && first.exit_code() == 0);
    let noted = done(&cfg, &devices(), &records);
    assert_eq!(noted.len() as u64, records.iter().filter(|r| r.compared > 0).count() as u64);
    let (second, again) = run(&VerifyConfig { done: noted.clone(), ..cfg.clone() }, devices());
    assert_eq!((second.resumed, second.exit_code()), (noted.len() as u64, 0), "{second:?}");
    assert!(again.iter().all(|r| r.compared == 0), "{:?}", again.iter().map(line).collect::<Vec<_>>());
    // Alone, a device that never took anything has still proved nothing.
    let wide = VerifyConfig { dtypes: Some(vec![DType::F64]), ..softmax() };
    let (_, records) = run(&wide, vec![narrow()]);
    let none = done(&wide, &[narrow()], &records);
    assert!(none.is_empty());
    assert_eq!(run(&VerifyConfig { done: none, ..wide }, vec![narrow()]).0.exit_code(), 4);
}

#[test]
fn a_journal_is_gone_on_with() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("journal");
    let verify = |more: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_gpuctl"));
        command
            .args(["verify", "--op", "softmax", "--dtype", "f32", "--device", "cpu", "--resume"])
            .arg(&path)
            .args(more);
        let out = command.output().unwrap();
        let said = String::from_utf8_lossy(&out.stdout).into_owned();
        (out.status.code(), said.lines().last().unwrap_or_default().to_string())
    };
    let (code, said) = verify(&[]);
    assert_eq!(code, Some(0), "{said}");
    let lines = std::fs::read_to_string(&path).unwrap().lines().count();
    assert!(lines > 1);
    let (code, said) = verify(&[]);
    assert!(
        code == Some(0)
            && said.contains(&format!(
                "0 failed, 0 unsupported, 0 skipped; 0 elements compared; {lines} had passed before"
            )),
        "{said}"
    );
    // Other variants have not passed yet.
    let (code, said) = verify(&["--all-variants"]);
    assert!(code == Some(0) && !said.contains("had passed before"), "{said}");
}
