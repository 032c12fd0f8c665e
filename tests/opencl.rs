//! The OpenCL device and the common C dialect, executed by whatever OpenCL driver is installed (PoCL will do).
//!
//! Without a driver every test says by name that it was skipped; with `GPUCTL_REQUIRE=opencl` it fails instead.
#![cfg(feature = "opencl")]
#![allow(clippy::print_stderr, clippy::print_stdout, reason = "skips are named; the child process reports on stdout")]

use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use gpuctl::base::{Attr, Attrs, Case, Code, DType, DeviceClass, Env, Exact, Fill, HostTensor, Lang};
use gpuctl::device::spoilt::Spoilt;
use gpuctl::device::{self, Buffer, DEADLINE, Device, Launch, MemoryKind, Probe, Program, Slice, Source, Waited};
use gpuctl::engine::{Guard, Runner};
use gpuctl::kernel::source::Text;
use gpuctl::kernel::{Body, Kernel, Param, choose, source};
use gpuctl::op::{self, OpDesc, Tier};

/// The backend's devices, or a named skip.
fn probe(test: &str) -> Option<Probe> {
    let probe = device::opencl::probe();
    if probe.found.is_empty() {
        let why: Vec<_> = probe.absent.iter().map(|a| format!("{}: {}", a.what, a.reason)).collect();
        let required = Env::read().unwrap().require.iter().any(|b| b == "opencl");
        assert!(!required, "GPUCTL_REQUIRE names opencl, but: {}", why.join("; "));
        eprintln!("skipped: opencl::{test}: {}", why.join("; "));
        return None;
    }
    Some(probe)
}

fn open(test: &str) -> Option<Arc<dyn Device>> {
    probe(test).map(|p| p.found[0].open().unwrap())
}

/// The first element that is out of its bound, in words.
fn judge(op: &OpDesc, case: &Case, inputs: &[HostTensor], outputs: &[HostTensor]) -> Result<(), String> {
    let x: Vec<_> = inputs.iter().map(Exact::read_all).collect();
    let references = (op.oracle)(case, &x);
    assert_eq!(references.len(), outputs.len(), "{case}");
    for (want, got) in references.iter().zip(outputs) {
        let bound = op.tolerance.bound(case, Lang::OpenclC, got.dtype).expect("a published limit");
        if let Some(wrong) = bound.first_wrong(want, got) {
            return Err(format!("{case}: {wrong}"));
        }
    }
    Ok(())
}

/// Runs a case on a runner: poisoned outputs, checked tails, judged result.
fn check(r: &Runner, op: &'static OpDesc, case: &Case, variant: Option<&str>) -> Result<(), String> {
    let kernels = op.kernels;
    check_kernels(r, op, case, kernels, variant)
}

fn check_kernels(
    r: &Runner,
    op: &'static OpDesc,
    case: &Case,
    kernels: &'static [Kernel],
    variant: Option<&str>,
) -> Result<(), String> {
    let choice = choose(kernels, case, r.device().info(), variant).unwrap();
    let p = r.prepare_choice(op, case, choice, Guard::WIDE).unwrap();
    let mut lease = r.lease().unwrap();
    let q = lease.queue().unwrap();
    p.poison(q).unwrap();
    let inputs = op::case::inputs(op, case).unwrap();
    let outputs = p.call(q, &inputs, DEADLINE).unwrap_or_else(|e| panic!("{case}: {e}"));
    p.check_guards(q).unwrap();
    judge(op, case, &inputs, &outputs)
}

/// With the plans of a GPU, whatever the device is: `verify` runs those of a processor on one (tests/verify).
#[test]
fn every_op_agrees_with_its_oracle_as_planned_for_a_gpu() {
    let Some(d) = open("every_op_agrees_with_its_oracle_as_planned_for_a_gpu") else { return };
    let r = Runner::new(Arc::new(Spoilt::as_gpu(d)));
    let (mut cases, mut failed) = (0, Vec::new());
    for (at, op) in op::all().enumerate() {
        // Every op in f32; texts of other dtypes differ by types alone, so each gets its turn at some ops.
        let mut dtypes: Vec<_> = op.dtypes.iter().filter(|t| r.device().info().dtypes.contains(t)).collect();
        let turn = at % dtypes.len();
        dtypes = dtypes.iter().enumerate().filter(|(i, d)| **d == &DType::F32 || *i == turn).map(|(_, d)| *d).collect();
        for dtype in dtypes {
            for spec in op.specs(Tier::Smoke, *dtype) {
                let case = op.case(*dtype, &spec.dims, spec.attrs, spec.fill).unwrap();
                cases += 1;
                failed.extend(check(&r, op, &case, None).err());
            }
        }
    }
    let (built, seconds) = r.builds();
    eprintln!("{cases} cases, {built} programs in {seconds:.1} s");
    assert!(failed.is_empty(), "{} of {cases} wrong:\n{}", failed.len(), failed.join("\n"));
    drop(r);
}

/// The variants that a driver for processors would not choose by itself.
#[test]
fn every_gemm_variant_agrees_with_the_oracle() {
    let Some(d) = open("every_gemm_variant_agrees_with_the_oracle") else { return };
    let r = Runner::new(d);
    let gemm = op::find("gemm").unwrap();
    let mut failed = Vec::new();
    for variant in ["tiled128", "tiled64", "tiled16"] {
        for dtype in [DType::F32, DType::I32, DType::BF16] {
            for spec in (gemm.cases)(Tier::Smoke) {
                let case = gemm.case(dtype, &spec.dims, spec.attrs, spec.fill).unwrap();
                failed.extend(check(&r, gemm, &case, Some(variant)).err());
            }
        }
    }
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}

/// The full tier of what indexes: many parts, long columns, more groups than fit one axis of a small device.
#[test]
fn shapes_around_borders() {
    let Some(d) = open("shapes_around_borders") else { return };
    let r = Runner::new(d);
    let list = |a: &[i64]| Attr::Ints(a.to_vec());
    for (name, dims, attrs) in [
        ("sum", vec![1, 3_000_001, 1], Attrs::new()),
        ("sum", vec![2, 40_000, 3], Attrs::new()),
        ("sum", vec![70_000, 3, 1], Attrs::new()),
        ("softmax", vec![3, 5000], Attrs::new()),
        ("softmax", vec![5, 128], Attrs::new()),
        ("softmax", vec![5, 129], Attrs::new()),
        ("transpose", vec![2, 70_000], Attrs::new()),
        ("transpose", vec![1023, 1025], Attrs::new()),
        ("add", vec![210], Attrs::new().with("a_shape", list(&[2, 1, 5, 1])).with("b_shape", list(&[1, 3, 1, 7]))),
        ("gemm", vec![1, 257, 129], Attrs::new().with("transA", Attr::Int(1)).with("transB", Attr::Int(1))),
        ("gemm", vec![255, 130, 65], Attrs::new().with("alpha", Attr::Float(0.5)).with("beta", Attr::Float(2.0))),
    ] {
        let op = op::find(name).unwrap();
        let case = op.case(DType::F32, &dims, attrs, Fill::Uniform).unwrap();
        check(&r, op, &case, None).unwrap();
    }
}

/// beta = 0 must not read C: every element of C is NaN before the call.
#[test]
fn gemm_with_beta_zero_ignores_c() {
    let Some(d) = open("gemm_with_beta_zero_ignores_c") else { return };
    let r = Runner::new(d);
    let gemm = op::find("gemm").unwrap();
    for variant in [None, Some("tiled64")] {
        let case = gemm.case(DType::F32, &[33, 17, 9], Attrs::new(), Fill::Uniform).unwrap();
        let p = r.prepare(gemm, &case, variant).unwrap();
        let mut inputs = op::case::inputs(gemm, &case).unwrap();
        inputs[2] = HostTensor::from_slice(&[f32::NAN; 33 * 17], &[33, 17]).unwrap();
        let mut lease = r.lease().unwrap();
        let out = p.call(lease.queue().unwrap(), &inputs, DEADLINE).unwrap();
        judge(gemm, &case, &inputs, &out).unwrap();
    }
}

/// Every mutant is caught, and passes the shapes that should miss it: the tests see the fault, not the change.
#[test]
fn mutant_kernels_are_caught() {
    let Some(d) = open("mutant_kernels_are_caught") else { return };
    let software = d.info().class == DeviceClass::Software;
    // The mutants are of the texts as GPUs get them.
    let r = Runner::new(Arc::new(Spoilt::as_gpu(d)));
    let trans = || Attrs::new().with("transA", Attr::Int(1));
    type Shapes = Vec<(Vec<u64>, Attrs)>;
    let plain = |list: &[&[u64]]| -> Shapes { list.iter().map(|d| (d.to_vec(), Attrs::new())).collect() };
    let mutants: [(&str, &str, Shapes, Shapes); 4] = [
        (
            "tanh",
            include_str!("../kernels/mutants/elementwise_tail.c"),
            plain(&[&[1], &[257], &[1023]]),
            plain(&[&[256], &[65_536]]),
        ),
        (
            "sum",
            include_str!("../kernels/mutants/reduce_barrier.c"),
            // Only a driver that runs work-items one after the other shows a race every time.
            if software { plain(&[&[1, 257, 1], &[3, 100, 1], &[1, 20_000, 1]]) } else { plain(&[]) },
            plain(&[&[1, 1, 1], &[3, 32, 1]]),
        ),
        (
            "transpose",
            include_str!("../kernels/mutants/movement_swap.c"),
            plain(&[&[33, 65], &[2, 3]]),
            plain(&[&[1, 1], &[64, 64], &[33, 33]]),
        ),
        (
            "gemm",
            include_str!("../kernels/mutants/matmul_trans.c"),
            vec![(vec![33, 18, 20], trans()), (vec![64, 64, 64], trans())],
            vec![(vec![33, 18, 20], Attrs::new()), (vec![1, 18, 20], trans())],
        ),
    ];
    // Positive data: of terms of both signs a long sum may lose half and stay within the bound.
    for (name, text, caught, missed) in mutants {
        let op = op::find(name).unwrap();
        let good = op.kernels.iter().rfind(|k| matches!(k.body, Body::C(_))).unwrap();
        let kernels: &'static [Kernel] = Box::leak(Box::new([Kernel { body: Body::C(text), ..*good }]));
        for (dims, attrs) in missed {
            let case = op.case(DType::F32, &dims, attrs, Fill::Positive).unwrap();
            check_kernels(&r, op, &case, kernels, None).unwrap_or_else(|e| panic!("should be missed: {e}"));
        }
        for (dims, attrs) in caught {
            let case = op.case(DType::F32, &dims, attrs, Fill::Positive).unwrap();
            let wrong = check_kernels(&r, op, &case, kernels, None);
            assert!(wrong.is_err(), "{case}: the mutant passed");
        }
    }
}

/// Text with a kernel of this test under the backend's prelude.
fn text(body: &str, entry: &str) -> Text {
    Text { lang: Lang::OpenclC, text: format!("{}\n{body}", source::PRELUDE_CL), entry: entry.into() }
}

fn launch(program: &Program, args: &[Slice], params: Vec<Param>) -> Launch {
    Launch {
        program: program.clone(),
        group: [1; 3],
        groups: [1; 3],
        writes: vec![true; args.len()],
        args: args.to_vec(),
        params,
        cost: Default::default(),
    }
}

fn buffer(d: &Arc<dyn Device>, bytes: u64) -> Buffer {
    d.alloc(bytes, MemoryKind::Device).unwrap()
}

/// A loop that no compiler shortens.
const SLOW: &str = "KERNEL_WG(slow, 1, 1, 1)(GLOBAL u32 *y, u64 n) {
    u32 v = y[0];
    for (u64 i = 0; i < n; i++) { v = (v ^ (v >> 7)) * 1664525u + 1013904223u; }
    y[0] = v;
}";

fn slow(n: u64) -> u32 {
    (0..n).fold(0, |v: u32, _| (v ^ (v >> 7)).wrapping_mul(1_664_525).wrapping_add(1_013_904_223))
}

#[test]
fn a_deadline_ends_the_wait_not_the_work() {
    let Some(d) = open("a_deadline_ends_the_wait_not_the_work") else { return };
    let n = 200_000_000;
    let program = d.build(Source::Text(&text(SLOW, "slow")), None).unwrap();
    let y = buffer(&d, 4);
    let mut q = d.queue().unwrap();
    q.write(&y, 0, &[0; 4]).unwrap();
    let from = q.mark().unwrap();
    q.launch(&launch(&program, &[Slice::whole(&y)], vec![Param::U64(n)])).unwrap();
    let to = q.mark().unwrap();
    assert_eq!(q.wait(from, DEADLINE).unwrap(), Waited::Done, "the launch comes after the first mark");
    assert_eq!(q.wait(to, Duration::from_millis(1)).unwrap(), Waited::Timeout);
    assert_eq!(q.span(from, to).unwrap_err().code(), Code::Internal, "not done yet");
    assert_eq!(q.finish(Duration::from_millis(1)).unwrap_err().code(), Code::LaunchTimeout);
    assert_eq!(q.wait(to, DEADLINE).unwrap(), Waited::Done);
    let span = q.span(from, to).unwrap();
    assert!(span.device.is_none_or(|s| s > 0.0), "{span:?}");
    let mut out = [0u8; 4];
    q.read(&y, 0, &mut out).unwrap();
    assert_eq!(u32::from_le_bytes(out), slow(n));
    // A queue with unfinished work may be given up; its objects still come back.
    q.launch(&launch(&program, &[Slice::whole(&y)], vec![Param::U64(n / 10)])).unwrap();
    drop((q, y, program));
    assert_eq!((d.ledger().state().buffers, d.ledger().state().objects()), (0, 0));
    assert_eq!(d.ledger().release_errors(), Vec::<String>::new());
}

#[test]
fn marks_are_bounded_and_spans_add_up() {
    let Some(d) = open("marks_are_bounded_and_spans_add_up") else { return };
    let y = buffer(&d, 1024);
    let mut q = d.queue().unwrap();
    let marks: Vec<_> = (0..200)
        .map(|i| {
            q.fill(&y, 0, 1024, i as u8).unwrap();
            q.mark().unwrap()
        })
        .collect();
    assert!(d.ledger().state().events <= 130, "{}", d.ledger().state().events);
    assert_eq!(q.wait(marks[3], DEADLINE).unwrap(), Waited::Done, "a forgotten mark can still be waited for");
    assert_eq!(q.wait(marks[199], DEADLINE).unwrap(), Waited::Done);
    assert_eq!(q.span(marks[3], marks[199]).unwrap_err().code(), Code::Internal);
    let whole = q.span(marks[150], marks[199]).unwrap();
    let part = q.span(marks[150], marks[160]).unwrap();
    assert!(whole.host >= part.host && whole.device >= part.device, "{whole:?} {part:?}");
    let empty = [q.mark().unwrap(), q.mark().unwrap()];
    assert_eq!(q.span(empty[0], empty[1]).unwrap().device, Some(0.0));
    drop((q, y));
    assert_eq!(d.ledger().state().events, 0);
}

/// Waiting for all work leaves no event behind, however often: what a soak counts at such moments must not grow.
#[test]
fn finished_work_keeps_no_events() {
    let Some(d) = open("finished_work_keeps_no_events") else { return };
    let (mut q, y) = (d.queue().unwrap(), buffer(&d, 64));
    let mut rounds = (0..200).map(|round| {
        q.fill(&y, 0, 64, round as u8).unwrap();
        q.finish(DEADLINE).unwrap();
        d.ledger().state().events
    });
    let first = rounds.next().unwrap();
    assert!(rounds.all(|events| events == first));
}

/// The words by which a build for no fault of the text is told apart, and tried once more.
#[test]
fn a_wrong_text_fails_with_its_error() {
    let Some(d) = open("a_wrong_text_fails_with_its_error") else { return };
    let e = d.build(Source::Text(&text("__kernel void wrong(__global int *y) { y[0] = nowhere; }", "wrong")), None);
    let e = e.unwrap_err();
    assert_eq!(e.code(), Code::CompileFailed);
    assert!(e.context().log.as_deref().is_some_and(|log| log.contains("error:") && log.contains("nowhere")), "{e:?}");
}

#[test]
fn misuse_is_a_typed_error() {
    let Some(p) = probe("misuse_is_a_typed_error") else { return };
    let (d, other) = (p.found[0].open().unwrap(), p.found[0].open().unwrap());
    let y = buffer(&d, 64);
    let mut q = d.queue().unwrap();
    assert_eq!(q.write(&y, 60, &[0; 8]).unwrap_err().code(), Code::BufferBounds);
    assert_eq!(q.read(&y, 65, &mut []).unwrap_err().code(), Code::BufferBounds);
    assert_eq!(q.fill(&y, 2, 4, 0).unwrap_err().code(), Code::BadArgument);
    assert_eq!(q.copy(&y, 0, &y, 8, 16).unwrap_err().code(), Code::BadArgument, "overlapping ranges");
    let foreign = buffer(&other, 64);
    assert_eq!(q.write(&foreign, 0, &[0; 4]).unwrap_err().code(), Code::BufferForeign);
    let program = d.build(Source::Text(&text(SLOW, "slow")), None).unwrap();
    let good = launch(&program, &[Slice::whole(&y)], vec![Param::U64(1)]);
    let outside = Slice { buffer: y.clone(), offset: 32, bytes: 64 };
    let code = |q: &mut Box<dyn device::Queue>, l: Launch| q.launch(&l).unwrap_err().code();
    assert_eq!(code(&mut q, Launch { args: vec![outside], ..good.clone() }), Code::BufferBounds);
    assert_eq!(code(&mut q, Launch { params: vec![], ..good.clone() }), Code::Internal, "too few arguments");
    assert_eq!(code(&mut q, Launch { group: [1 << 20, 1, 1], ..good.clone() }), Code::LaunchTooLarge);
    assert_eq!(code(&mut q, Launch { groups: [1, 1, 1 << 40], ..good.clone() }), Code::LaunchTooLarge);
    assert_eq!(code(&mut q, Launch { groups: [0, 1, 1], ..good.clone() }), Code::LaunchTooLarge);
    assert_eq!(other.queue().unwrap().launch(&good).unwrap_err().code(), Code::BufferForeign);
    let limit = d.info().max_alloc_bytes;
    for bytes in [limit + 1, u64::MAX] {
        assert_eq!(d.alloc(bytes, MemoryKind::Device).unwrap_err().code(), Code::AllocTooLarge);
    }
    assert_eq!(d.alloc(16, MemoryKind::Pinned).unwrap_err().code(), Code::FeatureUnsupported);
    let e = d.build(Source::Text(&text("KERNEL(bad)(GLOBAL f32 *y) { y[0] = nowhere; }", "bad")), None).unwrap_err();
    assert_eq!(e.code(), Code::CompileFailed);
    assert!(e.to_string().contains("nowhere"), "the log names the mistake: {e}");
    let context = e.context();
    assert!(context.log.as_ref().is_some_and(|l| l.contains("nowhere")), "{context:?}");
    assert_eq!(context.status.as_ref().and_then(|s| s.number), Some(-11), "CL_BUILD_PROGRAM_FAILURE");
    let e = d.build(Source::Text(&text(SLOW, "missing")), None).unwrap_err();
    assert_eq!(e.code(), Code::EntryNotFound, "{e}");
    q.launch(&good).unwrap();
    q.finish(DEADLINE).unwrap();
    assert_eq!(d.ledger().state().programs, 1, "failed builds leave nothing");
}

#[test]
fn slices_copies_and_fills_reach_their_bytes() {
    let Some(d) = open("slices_copies_and_fills_reach_their_bytes") else { return };
    let body =
        "KERNEL_WG(put, 1, 1, 1)(GLOBAL u32 *y, u64 v, f32 f, i32 i) { y[0] = (u32)v; y[1] = (u32)f; y[2] = (u32)i; }";
    let program = d.build(Source::Text(&text(body, "put")), None).unwrap();
    let (x, y) = (buffer(&d, 8192), buffer(&d, 8192));
    let mut q = d.queue().unwrap();
    q.fill(&x, 0, 8192, 7).unwrap();
    let slice = Slice { buffer: x.clone(), offset: 4096, bytes: 64 };
    q.launch(&launch(&program, &[slice], vec![Param::U64(11), Param::F32(12.0), Param::I32(13)])).unwrap();
    q.copy(&x, 4096, &y, 16, 12).unwrap();
    let (mut out, mut around) = ([0u8; 12], [0u8; 4]);
    q.read(&y, 16, &mut out).unwrap();
    q.read(&x, 4092, &mut around).unwrap();
    assert_eq!(bytemuck::pod_collect_to_vec::<u8, u32>(&out), [11, 12, 13]);
    assert_eq!(around, [7; 4], "the bytes before the slice");
}

#[test]
fn binaries_are_reused_and_refused_cleanly() {
    let Some(d) = open("binaries_are_reused_and_refused_cleanly") else { return };
    let t = text(SLOW, "slow");
    let first = d.build(Source::Text(&t), None).unwrap();
    assert!(!first.stats().from_cache);
    let Some(binary) = first.binary().map(<[u8]>::to_vec) else {
        eprintln!("skipped: opencl::binaries_are_reused_and_refused_cleanly: the driver gives no binary");
        return;
    };
    let again = d.build(Source::Text(&t), Some(&binary)).unwrap();
    assert!(again.stats().from_cache, "{:?}", again.stats());
    let y = buffer(&d, 4);
    let mut q = d.queue().unwrap();
    for program in [&first, &again] {
        q.write(&y, 0, &[0; 4]).unwrap();
        q.launch(&launch(program, &[Slice::whole(&y)], vec![Param::U64(1000)])).unwrap();
        let mut out = [0u8; 4];
        q.read(&y, 0, &mut out).unwrap();
        assert_eq!(u32::from_le_bytes(out), slow(1000));
    }
    let mut flipped = binary.clone();
    flipped[binary.len() / 2] ^= 1;
    // A truncated binary crashes PoCL, so it must not get that far.
    for bad in [&b""[..], b"no binary", &binary[..binary.len() / 2], &flipped] {
        let p = d.build(Source::Text(&t), Some(bad)).unwrap();
        assert!(!p.stats().from_cache && p.stats().log.contains("refused"), "{:?}", p.stats());
    }
    let other = text(&SLOW.replace("1664525", "22695477"), "slow");
    assert!(!d.build(Source::Text(&other), Some(&binary)).unwrap().stats().from_cache, "the binary of another text");
}

/// One kernel object is shared by two queues: the arguments of the one must never reach the other's launch.
#[test]
fn threads_share_programs() {
    let Some(d) = open("threads_share_programs") else { return };
    let body = "KERNEL_WG(put, 1, 1, 1)(GLOBAL u64 *y, u64 v) { y[0] = v; }";
    let program = d.build(Source::Text(&text(body, "put")), None).unwrap();
    std::thread::scope(|scope| {
        for t in 0..4u64 {
            let (d, program) = (&d, &program);
            scope.spawn(move || {
                let y = buffer(d, 8);
                let mut q = d.queue().unwrap();
                for i in 0..200 {
                    q.launch(&launch(program, &[Slice::whole(&y)], vec![Param::U64(t << 32 | i)])).unwrap();
                    let mut out = [0u8; 8];
                    q.read(&y, 0, &mut out).unwrap();
                    assert_eq!(u64::from_le_bytes(out), t << 32 | i);
                }
            });
        }
    });
    drop(program);
    assert_eq!(d.ledger().state().buffers + d.ledger().state().objects(), 0);
}

/// Run by the tests below in processes with other environments.
#[test]
#[ignore = "started by other tests"]
fn child_lists_devices() {
    let p = device::opencl::probe();
    for f in &p.found {
        println!("found|{}|{}|{}", f.info.id, f.info.uid, f.open().is_ok());
    }
    for a in &p.absent {
        println!("absent|{}|{}|{}", a.what, a.reason, a.next);
    }
}

fn child(name: &str, value: &std::ffi::OsStr) -> Vec<Vec<String>> {
    let out = Command::new(std::env::current_exe().unwrap())
        .args(["--ignored", "--exact", "child_lists_devices", "--nocapture", "--test-threads=1"])
        .env(name, value)
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&out.stdout).into_owned();
    assert!(out.status.success(), "{name}={value:?}: {text} {}", String::from_utf8_lossy(&out.stderr));
    let rows = text.lines().filter_map(|l| {
        let at = l.find("found|").or_else(|| l.find("absent|"))?;
        Some(l[at..].split('|').map(str::to_string).collect())
    });
    rows.collect()
}

#[test]
fn several_devices_are_told_apart() {
    let Some(p) = probe("several_devices_are_told_apart") else { return };
    if !p.found.iter().any(|f| f.info.driver.contains("Portable Computing Language")) {
        eprintln!("skipped: opencl::several_devices_are_told_apart: needs PoCL");
        return;
    }
    let rows = child("POCL_DEVICES", "pthread pthread".as_ref());
    let found: Vec<_> = rows.iter().filter(|r| r[0] == "found").collect();
    assert_eq!(found.len(), p.found.len() + 1, "{rows:?}");
    assert!(found.iter().all(|r| r[3] == "true"), "{rows:?}");
    for column in [1, 2] {
        let mut names: Vec<_> = found.iter().map(|r| &r[column]).collect();
        names.sort();
        names.dedup();
        assert_eq!(names.len(), found.len(), "{rows:?}");
    }
}

/// Whatever is missing, the answer is a reason with a next step, never a panic.
#[test]
fn missing_drivers_and_libraries_are_reasons() {
    let dir = tempfile::tempdir().unwrap();
    let one = |rows: &[Vec<String>], reason: &str, next: &str| {
        assert_eq!(rows.len(), 1, "{rows:?}");
        assert!(rows[0][0] == "absent" && rows[0][2].contains(reason) && rows[0][3].contains(next), "{rows:?}");
    };
    if probe("missing_drivers_and_libraries_are_reasons").is_some() {
        one(&child("OCL_ICD_VENDORS", dir.path().as_os_str()), "no driver (ICD)", "pocl-opencl-icd");
    }
    if cfg!(target_os = "linux") {
        // An unreadable library in front of the real one.
        std::fs::write(dir.path().join("libOpenCL.so.1"), "").unwrap();
        one(&child("LD_LIBRARY_PATH", dir.path().as_os_str()), "could not be loaded", "ocl-icd-libopencl1");
        // A library that is not OpenCL lacks every function.
        one(&child("OPENCL_DYLIB_PATH", "libm.so.6".as_ref()), "driver-too-old", "ocl-icd-libopencl1");
    }
}

/// The plan decides by what the device says; a GPU must never get the processor's tile.
#[test]
fn the_processor_tile_is_for_processors() {
    let Some(d) = open("the_processor_tile_is_for_processors") else { return };
    let gemm = op::find("gemm").unwrap();
    let case = gemm.case(DType::F32, &[256, 256, 256], Attrs::new(), Fill::Uniform).unwrap();
    let mut info = d.info().clone();
    info.class = DeviceClass::Software;
    assert_eq!(choose(gemm.kernels, &case, &info, None).unwrap().kernel.variant, "cpu-tile");
    info.class = DeviceClass::Discrete;
    let gpu = choose(gemm.kernels, &case, &info, None).unwrap();
    assert_eq!(gpu.kernel.variant, "tiled128");
    assert!(gpu.reason.contains("cpu-tile (needs a processor"), "{}", gpu.reason);
}

/// Results of 2 MiB and more, which a processor stores past its caches: each kernel of that text, each size of element, with
/// special values, and ends that are no whole piece.
#[test]
fn large_elementwise_results_go_past_the_caches() {
    let Some(d) = open("large_elementwise_results_go_past_the_caches") else { return };
    if d.info().class != DeviceClass::Software {
        eprintln!("skipped: opencl::large_elementwise_results_go_past_the_caches: the device is no processor");
        return;
    }
    let r = Runner::new(d);
    let mut failed = Vec::new();
    for (name, dtype) in [
        ("neg", DType::I8),
        ("neg", DType::F32),
        ("abs", DType::F64),
        ("add", DType::U16),
        ("maximum", DType::F32),
        ("mul", DType::I64),
        ("add_scalar", DType::U8),
        ("mul_scalar", DType::F32),
        ("rsub_scalar", DType::I16),
        ("rdiv_scalar", DType::F64),
        ("triad", DType::F32),
        ("triad", DType::F64),
        ("relu", DType::F32),
        ("leaky_relu_bwd", DType::F64),
    ] {
        let op = op::find(name).unwrap();
        for (bytes, fill) in [((2 << 20) - 8, Fill::Uniform), (2 << 20, Fill::Uniform), (2_500_008, Fill::Special)] {
            let case = op.case(dtype, &[bytes / dtype.size()], Attrs::new(), fill).unwrap();
            assert_eq!(choose(op.kernels, &case, r.device().info(), None).unwrap().kernel.variant, "cpu-vectors");
            failed.extend(check(&r, op, &case, None).err());
        }
    }
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}

/// Mapped memory is the host's, counted as such, and what is written through it is what copies and kernels see.
#[test]
fn mapped_memory_is_written_in_place() {
    let Some(d) = open("mapped_memory_is_written_in_place") else { return };
    let before = d.ledger().state();
    let mapped = d.alloc(1000, MemoryKind::Mapped).unwrap();
    let plain = d.alloc(1000, MemoryKind::Device).unwrap();
    let held = d.ledger().state();
    assert_eq!((held.pinned, held.buffers), (before.pinned + 1, before.buffers + 1));
    let mut q = d.queue().unwrap();
    q.fill(&mapped, 0, 1000, 0x5A).unwrap();
    let data: Vec<u8> = (0..701).map(|i| (i * 7) as u8).collect();
    q.write(&mapped, 13, &data).unwrap();
    q.copy(&mapped, 0, &plain, 0, 1000).unwrap();
    let (mut there, mut here) = (vec![0u8; 1000], vec![0u8; 1000]);
    q.read(&plain, 0, &mut there).unwrap();
    q.read(&mapped, 0, &mut here).unwrap();
    assert_eq!((&here[13..714], &here[..13], &here[714..]), (&data[..], &[0x5A; 13][..], &[0x5A; 286][..]));
    assert_eq!(there, here, "a copy on the device sees what was mapped");
    q.write(&mapped, 0, &[]).unwrap();
    assert_eq!(q.read(&mapped, 990, &mut [0; 11]).unwrap_err().code(), Code::BufferBounds);
    drop((mapped, plain, q));
    let after = d.ledger().state();
    assert_eq!((after.pinned, after.buffers, after.events), (before.pinned, before.buffers, before.events));
    assert_eq!(d.ledger().release_errors(), [""; 0]);
}
