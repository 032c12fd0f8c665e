//! Recording what a program calls.

use gpuctl::base::{Attr, Attrs, Code, DType, Env, Fill, HostTensor};
use gpuctl::engine::{Engine, Placement, Workload};
use gpuctl::op;
use gpuctl::profile::Operands;

fn engine(env: Env) -> Engine {
    Engine::builder().env(env).placement(Placement::ForceCpu).build().unwrap()
}

fn read(path: &std::path::Path) -> Vec<(String, String, u64, u64)> {
    let workload = Workload::parse(&std::fs::read_to_string(path).unwrap()).unwrap();
    workload.rows.into_iter().map(|r| (r.case.to_string(), r.residency, r.count, r.gpu)).collect()
}

fn row(case: &str, residency: &str, count: u64, gpu: u64) -> (String, String, u64, u64) {
    (case.into(), residency.into(), count, gpu)
}

#[test]
fn calls_are_counted_by_case_and_residency() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("calls.jsonl");
    let engine = engine(Env { record: Some(path.clone()), ..Env::default() });
    let x = HostTensor::zeros(DType::F32, &[4, 4]).unwrap();
    let scaled = Attrs::new().with("alpha", Attr::Float(2.0));
    for _ in 0..3 {
        engine.run("gemm", &[&x, &x], &Attrs::new()).unwrap();
    }
    engine.run("gemm", &[&x, &x], &scaled).unwrap();
    let route = engine.route("relu", &[&x], &Attrs::new()).unwrap();
    let mut y = route.outputs().unwrap();
    for _ in 0..5 {
        route.run_into(&[&x], &mut y).unwrap();
    }
    // A failed call is no call.
    engine.run("gemm", &[&x], &Attrs::new()).unwrap_err();
    let exp = op::find("exp").unwrap().case(DType::F64, &[77], Attrs::new(), Fill::Integer).unwrap();
    engine.record(&exp, Operands::Device("pci:1"), 9, true);
    engine.record(&exp, Operands::Host, 0, false);
    assert!(!path.exists(), "nothing is written while the program computes");
    engine.write_record().unwrap();
    let want = [
        row("exp/f64/n77/-/uniform", "resident", 9, 9),
        row("relu/f32/n16/-/uniform", "always", 5, 0),
        row("gemm/f32/m4,n4,k4/-/uniform", "always", 3, 0),
        row("gemm/f32/m4,n4,k4/alpha=2/uniform", "always", 1, 0),
    ];
    assert_eq!(read(&path), want);
    // A second engine of the process adds to the same record; dropping writes.
    let second = Engine::builder().env(Env::default()).placement(Placement::ForceCpu).record(&path).build().unwrap();
    second.run("relu", &[&x], &Attrs::new()).unwrap();
    drop(second);
    drop(route);
    drop(engine);
    assert!(read(&path).contains(&row("relu/f32/n16/-/uniform", "always", 6, 0)), "{:?}", read(&path));
    let names: Vec<_> = std::fs::read_dir(dir.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert_eq!(names, ["calls.jsonl"], "no part is left behind");
}

#[test]
fn a_record_that_cannot_be_written_stops_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("no/such/folder/calls.jsonl");
    let engine = engine(Env { record: Some(path.clone()), ..Env::default() });
    let x = HostTensor::from_slice(&[-1.0f32, 2.0], &[2]).unwrap();
    let out = engine.run("relu", &[&x], &Attrs::new()).unwrap();
    assert_eq!(out.outputs[0].to_vec::<f32>().unwrap(), [0.0, 2.0]);
    let e = engine.write_record().unwrap_err();
    assert!(e.code() == Code::Io && e.to_string().contains("calls.jsonl"), "{e}");
    // A full disk: what was there before stays whole.
    if std::path::Path::new("/dev/full").exists() {
        let full = std::path::Path::new("/dev/full/calls.jsonl");
        assert_eq!(
            self::engine(Env { record: Some(full.into()), ..Env::default() }).write_record().unwrap_err().code(),
            Code::Io
        );
    }
    drop(engine);
    assert!(!path.exists());
    // The folder appears later: what was counted is still there.
    let again = self::engine(Env { record: Some(path.clone()), ..Env::default() });
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    drop(again);
    assert_eq!(read(&path), [row("relu/f32/n2/-/uniform", "always", 1, 0)]);
}

#[test]
fn a_process_may_have_a_file_of_its_own() {
    let dir = tempfile::tempdir().unwrap();
    let engine = engine(Env { record: Some(dir.path().join("calls-%p.jsonl")), ..Env::default() });
    let x = HostTensor::zeros(DType::F32, &[2]).unwrap();
    engine.run("relu", &[&x], &Attrs::new()).unwrap();
    drop(engine);
    assert_eq!(read(&dir.path().join(format!("calls-{}.jsonl", std::process::id()))).len(), 1);
}
