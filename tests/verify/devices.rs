//! Smoke tier and mutants of the real kernel texts on whatever OpenCL and wgpu devices are installed (PoCL and lavapipe
//! will do).
#![allow(clippy::print_stderr, reason = "skips are named")]

use gpuctl::base::Env;
use gpuctl::device::probe::{self, CpuConfig, Select};

use super::*;

/// A rig with this device, or a named skip; a failure where `GPUCTL_REQUIRE` lists its backend.
fn open(test: &str, id: &str) -> Option<Rig> {
    let env = Env::read().unwrap();
    match probe::open(&Select::Named(vec![id.into()]), &env, CpuConfig { threads: 2, pin: Pin::Free }) {
        Ok(rig) => Some(rig),
        Err(e) => {
            assert!(!env.require.iter().any(|b| id.starts_with(b.as_str())), "GPUCTL_REQUIRE names {id}, but: {e}");
            eprintln!("skipped: verify::{test}: {e}");
            None
        }
    }
}

/// The rig's device as GPUs are planned for.
#[cfg(feature = "opencl")]
fn as_gpu(rig: &Rig) -> Rig {
    let device = Arc::new(Spoilt::as_gpu(Arc::clone(&rig.devices[0])));
    Rig { devices: vec![device], cpu: Arc::clone(&rig.cpu), absent: Vec::new() }
}

fn on(cfg: &VerifyConfig, rig: &Rig) -> (VerifySummary, Vec<VerifyRecord>) {
    let mut sink = Collect::default();
    let summary = verify::run(cfg, rig, &mut sink, &Cancel::new()).unwrap();
    let records = sink.records.into_iter().filter_map(|r| if let Record::Verify(v) = r { Some(*v) } else { None });
    (summary, records.collect())
}

/// Every variant of every op; what the device cannot do says why.
fn smoke(rig: &Rig) {
    let (summary, records) = on(&VerifyConfig { all_variants: true, ..config() }, rig);
    let bad: Vec<_> = records.iter().filter(|r| r.subject.status == Status::Failed).map(line).collect();
    assert!(bad.is_empty(), "{}", bad.join("\n"));
    assert_eq!(summary.exit_code(), 0);
    // Nothing is left out, but for what WGSL leaves open as a whole: single results that are infinite or NaN.
    let skipped: Vec<_> = records.iter().filter(|r| r.subject.status == Status::Skipped).collect();
    let wgsl = rig.devices[0].info().takes(Lang::Wgsl);
    let open = |r: &&&VerifyRecord| wgsl && r.compared > 0 && r.undefined == r.compared;
    assert_eq!(skipped.iter().filter(open).count(), skipped.len(), "{skipped:?}");
    assert!(summary.passed > 100);
    for r in records.iter().filter(|r| r.subject.status == Status::Unsupported) {
        assert!(r.subject.reason.contains("no ") || r.subject.reason.contains("needs"), "{}", line(r));
    }
    if !rig.devices[0].info().takes(Lang::Wgsl) {
        little_is_open(&records);
    }
    assert!(records.iter().filter(|r| r.subject.op == "gemm").any(|r| r.max_vs_cpu.is_some()));
}

/// A kernel text with one place changed.
fn changed(text: &str, from: &str, to: &str) -> &'static str {
    assert!(text.contains(from), "the kernel no longer has '{from}'");
    Box::leak(text.replacen(from, to, 1).into_boxed_str())
}

fn mutate(rig: &Rig, replaces: &'static str, with: &'static str, variant: Option<&str>, bad: &[&str], good: &[&str]) {
    let mutant = Some(verify::Mutant { replaces, with });
    let variant = variant.map(str::to_string);
    let id = &rig.devices[0].info().id;
    for name in bad {
        let (summary, records) = on(&VerifyConfig { mutant, variant: variant.clone(), ..one(name) }, rig);
        let text = line(&records[0]);
        assert_eq!((summary.exit_code(), summary.failed), (1, 1), "the mutant passed: {text}");
        assert!(records[0].worst_index.is_some() && records[0].worst_bound.is_some(), "{text}");
        assert!(text.starts_with(&format!("FAIL {name} {id}")) && text.contains("(got "), "{text}");
        assert!(text.contains(&format!("rerun: gpuctl verify --case '{name}' --device {id}")), "{text}");
        let (clean, records) = on(&VerifyConfig { variant: variant.clone(), ..one(name) }, rig);
        assert_eq!(clean.exit_code(), 0, "the original fails: {}", line(&records[0]));
    }
    for name in good {
        let (summary, records) = on(&VerifyConfig { mutant, variant: variant.clone(), ..one(name) }, rig);
        assert_eq!((summary.exit_code(), summary.passed), (0, 1), "should miss it: {}", line(&records[0]));
    }
}

#[cfg(feature = "opencl")]
#[test]
fn the_smoke_tier_is_clean_on_opencl() {
    let Some(rig) = open("the_smoke_tier_is_clean_on_opencl", "opencl:0") else { return };
    smoke(&rig);
}

#[cfg(feature = "wgpu")]
#[test]
fn the_smoke_tier_is_clean_on_wgpu() {
    let Some(rig) = open("the_smoke_tier_is_clean_on_wgpu", "wgpu:0") else { return };
    smoke(&rig);
}

/// Kernels that check their own accesses: quiet on the real texts, and they name line and index of a planted overrun.
#[cfg(feature = "opencl")]
#[test]
fn watched_kernels_name_the_place_of_an_overrun() {
    let Some(own) = open("watched_kernels_name_the_place_of_an_overrun", "opencl:0") else { return };
    let rig = as_gpu(&own);
    // Every entry of every text is in the smoke cases; dtypes besides f32 differ by types alone and take turns.
    for (at, op) in op::all().enumerate() {
        let other = if at % 2 == 0 { DType::I32 } else { DType::BF16 };
        for (rig, dtypes) in [(&own, vec![DType::F32]), (&rig, vec![DType::F32, other])] {
            let dtypes = Some(dtypes);
            let (summary, records) = on(&VerifyConfig { ops: vec![op], dtypes, watch: true, ..config() }, rig);
            let bad: Vec<_> = records.iter().filter(|r| r.subject.status == Status::Failed).map(line).collect();
            assert!(bad.is_empty() && summary.failed == 0, "{}", bad.join("\n"));
        }
    }
    // Texts that move words or bytes whatever the dtype.
    for name in
        ["copy/f64/n257/-/uniform", "copy/u8/n255/-/uniform", "fill/f64/n257/-/uniform", "fill/bf16/n257/-/uniform"]
    {
        let (summary, records) = on(&VerifyConfig { watch: true, ..one(name) }, &own);
        assert!(summary.passed == 1, "{}", line(&records[0]));
    }
    const ELEMENTWISE: &str = include_str!("../../kernels/elementwise.c");
    let from = "if (WITHIN(i, n))";
    let row = ELEMENTWISE[..ELEMENTWISE.find(from).unwrap()].matches('\n').count() + 2;
    let mutant = Some(verify::Mutant { replaces: ELEMENTWISE, with: changed(ELEMENTWISE, from, "if (i < n + 1)") });
    let cfg = VerifyConfig { watch: true, mutant, ..one("neg/f32/n257/-/uniform") };
    let (_, records) = on(&cfg, &rig);
    let text = line(&records[0]);
    let place = format!("kernel unary, line {row}, group [0, 0, 0], work-item [1, 0, 0]: index 257 of a buffer of 257");
    assert!(records[0].subject.status == Status::Failed && text.contains(&place), "{place} is not in: {text}");
    if own.devices[0].info().is_software() {
        // Of a vector its last element, too.
        const ROWS: &str = include_str!("../../kernels/opencl/norm_vectors.cl");
        let from = "\n    for (u64 j = 0; j + LANES <= n; j += LANES";
        let row = ROWS[..ROWS.find(from).unwrap()].matches('\n').count() + 3;
        let with = changed(ROWS, from, &from.replace("<= n", "<= n + 1"));
        let mutant = Some(verify::Mutant { replaces: ROWS, with });
        let (_, records) = on(&VerifyConfig { watch: true, mutant, ..one("layernorm/f32/m1,n31/-/uniform") }, &own);
        let text = line(&records[0]);
        let place = format!(
            "kernel layernorm_vectors, line {row}, group [0, 0, 0], work-item [0, 0, 0]: index 31 of a buffer of 31"
        );
        assert!(records[0].subject.status == Status::Failed && text.contains(&place), "{place} is not in: {text}");
    }
}

#[cfg(feature = "opencl")]
#[test]
fn mutants_of_the_c_kernels_are_caught() {
    let Some(rig) = open("mutants_of_the_c_kernels_are_caught", "opencl:0") else { return };
    let software = rig.devices[0].info().is_software();
    const ELEMENTWISE: &str = include_str!("../../kernels/elementwise.c");
    if software {
        // A processor's work-item goes by its number of elements alone.
        let short = changed(ELEMENTWISE, "OWN(first, n)", "OWN(first, n - 1)");
        mutate(&rig, ELEMENTWISE, short, None, &["exp/f32/n257/-/uniform", "exp/f64/n4097/-/uniform"], &[]);
    }
    // The mutants are of the texts as GPUs get them.
    let rig = as_gpu(&rig);
    mutate(
        &rig,
        ELEMENTWISE,
        include_str!("../../kernels/mutants/elementwise_tail.c"),
        None,
        &["exp/f32/n257/-/uniform", "exp/f64/n1025/-/uniform", "tanh/f16/n1/-/uniform"],
        &["tanh/f32/n256/-/uniform", "exp/f64/n65536/-/uniform"],
    );
    // A race need not show: PoCL puts a barrier of its own before the loop where the mutant file lacks one. Without the
    // barrier inside the loop work-items run through all levels one after the other on a software device.
    const REDUCE: &str = include_str!("../../kernels/reduce.c");
    let no_barrier = changed(
        REDUCE,
        "tree[lid] += tree[lid + half_width];\n        }\n        BARRIER();",
        "tree[lid] += tree[lid + half_width];\n        }",
    );
    let rows = &["sum/f32/outer1,n257,inner1/-/uniform", "sum/i32/outer3,n100,inner1/-/uniform"];
    mutate(&rig, REDUCE, no_barrier, None, if software { rows } else { &[] }, &["sum/f32/outer3,n1,inner1/-/uniform"]);
    let early = include_str!("../../kernels/mutants/reduce_barrier.c");
    mutate(&rig, REDUCE, early, None, &[], &["sum/f32/outer3,n32,inner1/-/uniform"]);
    mutate(
        &rig,
        include_str!("../../kernels/movement.c"),
        include_str!("../../kernels/mutants/movement_swap.c"),
        None,
        &["transpose/f32/m33,n65/-/uniform", "transpose/i32/m64,n96/-/integer"],
        &["transpose/f32/m64,n64/-/uniform"],
    );
    mutate(
        &rig,
        include_str!("../../kernels/matmul.c"),
        include_str!("../../kernels/mutants/matmul_trans.c"),
        None,
        &["gemm/f32/m33,n18,k20/transA=1/uniform", "gemm/f64/m31,n29,k37/transA=1,transB=1/integer"],
        &["gemm/f32/m33,n18,k20/-/uniform", "gemm/f32/m1,n18,k20/transA=1/uniform"],
    );
}

/// Wrong texts made from the right ones by changing one place.
#[cfg(feature = "wgpu")]
#[test]
fn mutants_of_the_wgsl_kernels_are_caught() {
    let Some(rig) = open("mutants_of_the_wgsl_kernels_are_caught", "wgpu:0") else { return };
    const ELEMENTWISE: &str = include_str!("../../kernels/elementwise.wgsl");
    const MOVEMENT: &str = include_str!("../../kernels/movement.wgsl");
    const REDUCE: &str = include_str!("../../kernels/reduce.wgsl");
    // Only whole groups are computed.
    let tail = changed(ELEMENTWISE, "i < words(p.n)", "i / {{GROUP}}u < words(p.n) / {{GROUP}}u");
    let caught = &["tanh/f32/n257/-/uniform", "exp/f32/n1025/-/uniform"];
    mutate(&rig, ELEMENTWISE, tail, None, caught, &["tanh/f32/n256/-/uniform"]);
    // The output's row length is taken to be n.
    let swap = changed(MOVEMENT, "y[row * p.m + column]", "y[(row * p.n + column) % (p.m * p.n)]");
    mutate(&rig, MOVEMENT, swap, None, &["transpose/f32/m33,n65/-/uniform"], &["transpose/f32/m64,n64/-/uniform"]);
    // The barrier between filling and reading the tile is missing; it shows every time only on software devices.
    let race = changed(MOVEMENT, "    workgroupBarrier();\n", "");
    if rig.devices[0].info().is_software() {
        mutate(&rig, MOVEMENT, race, None, &["transpose/f32/m33,n65/-/uniform"], &["transpose/f32/m1,n1/-/uniform"]);
    }
    // The last element of each segment is left out.
    let short = changed(
        REDUCE,
        "let end = min(r.n, (part + 1u) * r.segment);",
        "let end = min(r.n - 1u, (part + 1u) * r.segment);",
    );
    mutate(
        &rig,
        REDUCE,
        short,
        None,
        &["sum/f32/outer1,n257,inner1/-/uniform", "sum/f32/outer1,n4096,inner1/-/integer"],
        &[],
    );
}
