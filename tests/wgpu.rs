//! The WGSL kernels and the wgpu device, on the first adapter (lavapipe where there is no GPU).
//!
//! Skips are printed; with `wgpu` in `GPUCTL_REQUIRE` a missing adapter is a failure.
#![cfg(feature = "wgpu")]
#![allow(clippy::print_stderr, reason = "skips are named on stderr")]

use std::sync::Arc;
use std::time::Duration;

use gpuctl::base::record::{Record, Status};
use gpuctl::base::sink::{Cancel, Collect};
use gpuctl::base::{Attr, Attrs, Case, Class, Code, DType, Env, Exact, Fill, HostTensor, Lang};
use gpuctl::device::cpu::{CpuDevice, Pin};
use gpuctl::device::probe::Rig;
use gpuctl::device::wgpu::WgpuDevice;
use gpuctl::device::{DEADLINE, Device, Health, Launch, MemoryKind, Queue, Slice, Source, Waited};
use gpuctl::engine::run::Runner;
use gpuctl::jobs::verify::{self, VerifyConfig};
use gpuctl::kernel::source::{Text, assemble};
use gpuctl::kernel::{Body, Isa, Kernel, Param};
use gpuctl::op::{self, OpDesc, Tier, Unit, case};

/// The first adapter, opened; `None` skips the test.
fn open(test: &str) -> Option<Arc<WgpuDevice>> {
    match WgpuDevice::open(0) {
        Ok(d) => Some(Arc::new(d)),
        Err(e) if Env::read().unwrap().require.iter().any(|r| r == "wgpu") => panic!("wgpu is required: {e}"),
        Err(e) => {
            eprintln!("skipped {test}: {e}");
            None
        }
    }
}

fn runner(test: &str) -> Option<Runner> {
    open(test).map(|d| Runner::new(d))
}

/// Compares outputs with the oracle; the first element out of bounds as text.
fn judge(op: &OpDesc, c: &Case, inputs: &[HostTensor], outputs: &[HostTensor]) -> Result<(), String> {
    let exact: Vec<_> = inputs.iter().map(Exact::read_all).collect();
    for (want, got) in (op.oracle)(c, &exact).iter().zip(outputs) {
        let Some(bound) = op.tolerance.bound(c, Lang::Wgsl, got.dtype) else {
            return Err(format!("{c}: no limit is published"));
        };
        if want.values.len() as u64 != got.len() {
            return Err(format!("{c}: {} results, {} expected", got.len(), want.values.len()));
        }
        if let Some(wrong) = bound.first_wrong(want, got) {
            return Err(format!("{c}: {wrong}"));
        }
    }
    Ok(())
}

/// Runs a case on poisoned buffers and judges it.
fn check(r: &Runner, op: &'static OpDesc, c: &Case) -> Result<(), String> {
    let mut lease = r.lease().unwrap();
    let q = lease.queue().unwrap();
    let p = r.prepare(op, c, None).map_err(|e| e.to_string())?;
    let inputs = case::inputs(op, c).unwrap();
    p.poison(q).map_err(|e| e.to_string())?;
    let out = p.call(q, &inputs, DEADLINE).map_err(|e| e.to_string())?;
    p.check_guards(q).map_err(|e| e.to_string())?;
    judge(op, c, &inputs, &out)
}

fn run(r: &Runner, name: &str) {
    let c = case::parse(name).unwrap();
    check(r, op::find(c.op).unwrap(), &c).unwrap();
}

/// True if the device holds every operand of a case: `cast` has targets that WGSL cannot store.
fn holds(d: &dyn Device, op: &OpDesc, c: &Case) -> bool {
    (0..op.operands.len()).all(|i| d.info().dtypes.contains(&op.operand_dtype(i, c)))
}

/// What a driver was found to get wrong, by device name and case: shown, not hidden, and no failure of ours.
/// Mesa 22.3's llvmpipe computes exp(-0.052) 3.16 ulp off, where WGSL allows 3.10.
const FINDINGS: &[(&str, &str)] = &[("llvmpipe", "exp/f32/n65535/-/uniform")];

/// The full tier of the ops that stretch the table most; `gpuctl verify --tier full` takes all, for minutes. Smoke cases of
/// every op are in tests/verify.
#[test]
fn every_full_case_of_the_founding_ops_agrees_with_the_oracle() {
    let Some(d) = open("every_full_case_of_the_founding_ops_agrees_with_the_oracle") else { return };
    let names =
        ["add", "relu", "exp", "tanh", "sigmoid", "sum", "softmax", "gemm", "transpose", "h2d", "d2h", "launch"];
    let ops = names.iter().map(|n| op::find(n).unwrap()).collect();
    let cfg = VerifyConfig { ops, tier: Tier::Full, ..VerifyConfig::default() };
    let cpu: Arc<dyn Device> = Arc::new(CpuDevice::new(2, Isa::detect(), Pin::Free).unwrap());
    let device: Arc<dyn Device> = d.clone();
    let rig = Rig { devices: vec![device], cpu, absent: Vec::new() };
    let mut sink = Collect::default();
    let summary = verify::run(&cfg, &rig, &mut sink, &Cancel::new()).unwrap();
    let mut wrong = Vec::new();
    for record in sink.records {
        let Record::Verify(r) = record else { continue };
        if r.subject.status != Status::Failed {
            continue;
        }
        if FINDINGS.iter().any(|(driver, case)| d.info().name.contains(driver) && r.case == *case) {
            eprintln!("known finding on {}: {}", d.info().name, verify::line(&r));
        } else {
            wrong.push(verify::line(&r));
        }
    }
    assert!(wrong.is_empty(), "{} of {} cases:\n{}", wrong.len(), summary.passed, wrong.join("\n"));
    assert!(summary.passed > 1000 && summary.skipped == 0, "{summary:?}");
    drop(rig);
    let s = d.ledger().state();
    assert_eq!((s.buffers, s.bytes, s.pinned, s.objects()), (0, 0, 0, 0), "{:?}", d.ledger().release_errors());
}

/// lavapipe ends an invocation's loops after 65,535 iterations and takes 65,535 groups per axis.
#[test]
fn sizes_beyond_the_usual_limits_are_right() {
    let Some(r) = runner("sizes_beyond_the_usual_limits_are_right") else { return };
    for name in [
        "sum/f32/outer1,n1000003,inner1/-/uniform",
        "sum/f32/outer1,n1000003,inner2/-/positive",
        "sum/f32/outer70000,n3,inner1/-/uniform",
        "sum/f32/outer66000,n65,inner1/-/uniform",
        "softmax/f32/m66000,n3/-/uniform",
        "softmax/f32/m2,n70001/-/uniform",
        "softmax/f32/m1,n600000/-/uniform",
        "relu/f32/n16777300/-/uniform",
        "transpose/f32/m1050000,n16/-/integer",
        "gemm/f32/m3,n5,k70000/alpha=2,beta=-1/integer",
        "gemm/f16/m3,n5,k33000/beta=-1/uniform",
    ] {
        run(&r, name);
    }
}

/// Every bit pattern of both halves goes through the conversions: relu keeps it or makes it zero.
#[test]
fn every_half_survives_the_conversions() {
    let Some(r) = runner("every_half_survives_the_conversions") else { return };
    let op = op::find("relu").unwrap();
    let f16s: Vec<half::f16> = (0..=u16::MAX).map(half::f16::from_bits).collect();
    let bf16s: Vec<half::bf16> = (0..=u16::MAX).map(half::bf16::from_bits).collect();
    let mut lease = r.lease().unwrap();
    let q = lease.queue().unwrap();
    let mut call = |dtype, x: HostTensor| {
        let c = op.case(dtype, &[65_536], Attrs::new(), Fill::Uniform).unwrap();
        r.prepare(op, &c, None).unwrap().call(q, &[x], DEADLINE).unwrap().remove(0)
    };
    let y = call(DType::F16, HostTensor::from_slice(&f16s, &[65_536]).unwrap());
    for (x, y) in f16s.iter().zip(y.to_vec::<half::f16>().unwrap()) {
        let want = if *x < half::f16::ZERO { half::f16::ZERO } else { *x };
        assert!(y.to_bits() == want.to_bits() || x.is_nan() && y.is_nan(), "{x:?}: {y:?}");
    }
    let y = call(DType::BF16, HostTensor::from_slice(&bf16s, &[65_536]).unwrap());
    for (x, y) in bf16s.iter().zip(y.to_vec::<half::bf16>().unwrap()) {
        let want = if *x < half::bf16::ZERO { half::bf16::ZERO } else { *x };
        assert!(y.to_bits() == want.to_bits() || x.is_nan() && y.is_nan(), "{x:?}: {y:?}");
    }
}

/// Products of two halves are exact in f32, so the one rounding to f16 can be checked bit for bit, midpoints,
/// subnormals and overflow among them.
#[test]
fn halves_round_to_nearest_even() {
    let Some(r) = runner("halves_round_to_nearest_even") else { return };
    let op = op::find("gemm").unwrap();
    let n = 4096u64;
    let c = op.case(DType::F16, &[1, n, 1], Attrs::new().with("alpha", Attr::Float(1.0 / 4096.0)), Fill::Uniform);
    let c = c.unwrap();
    let mut lease = r.lease().unwrap();
    let q = lease.queue().unwrap();
    let p = r.prepare(op, &c, None).unwrap();
    for a in [3.0f32, 1.0 / 8192.0, 1023.5, 60_000.0] {
        let a = half::f16::from_f32(a);
        let b: Vec<half::f16> = (0..n as u16).map(|i| half::f16::from_bits(i * 7 + 1)).collect();
        let tensors = [
            HostTensor::from_slice(&[a], &[1, 1]).unwrap(),
            HostTensor::from_slice(&b, &[1, n]).unwrap(),
            HostTensor::zeros(DType::F16, &[1, n]).unwrap(),
        ];
        let out = p.call(q, &tensors, DEADLINE).unwrap();
        for (b, y) in b.iter().zip(out[0].to_vec::<half::f16>().unwrap()) {
            let want = half::f16::from_f32(a.to_f32() * b.to_f32() / 4096.0);
            assert_eq!(y.to_bits(), want.to_bits(), "{a} * {b} / 4096");
        }
    }
}

#[test]
fn nan_is_propagated() {
    let Some(r) = runner("nan_is_propagated") else { return };
    let nan = f32::NAN;
    let mut lease = r.lease().unwrap();
    let q = lease.queue().unwrap();
    for name in ["relu", "exp", "tanh"] {
        let op = op::find(name).unwrap();
        let c = op.case(DType::F32, &[3], Attrs::new(), Fill::Uniform).unwrap();
        let p = r.prepare(op, &c, None).unwrap();
        let x = HostTensor::from_slice(&[nan, 1.0, -nan], &[3]).unwrap();
        let y = p.call(q, &[x], DEADLINE).unwrap()[0].to_vec::<f32>().unwrap();
        assert!(y[0].is_nan() && !y[1].is_nan() && y[2].is_nan(), "{name}: {y:?}");
    }
    let op = op::find("softmax").unwrap();
    let c = op.case(DType::F32, &[4, 300], Attrs::new(), Fill::Uniform).unwrap();
    let p = r.prepare(op, &c, None).unwrap();
    let mut x = vec![1.0f32; 1200];
    (x[299], x[300 + 7], x[600]) = (nan, f32::INFINITY, f32::NEG_INFINITY);
    let y = p.call(q, &[HostTensor::from_slice(&x, &[4, 300]).unwrap()], DEADLINE).unwrap();
    let y = y[0].to_vec::<f32>().unwrap();
    assert!(y[..600].iter().all(|v| v.is_nan()), "NaN and +infinity spoil their rows");
    assert_eq!(y[600], 0.0);
    assert!(y[601..].iter().all(|v| v.is_finite() && *v > 0.0));
}

/// Sums that are infinite, and NaN where a tile's 0 for no term meets a filter's infinity, are made again: all 16 of an invocation,
/// with more terms than lavapipe's 65,535 iterations hold at once.
#[test]
fn gradients_of_infinite_filters_are_all_there() {
    let Some(r) = runner("gradients_of_infinite_filters_are_all_there") else { return };
    let op = op::find("conv2d_bwd_data").unwrap();
    let attrs = Attrs::new().with("pads", Attr::Ints(vec![1; 4]));
    let c = op.case(DType::F32, &[1, 16, 3, 3, 512, 3, 3], attrs, Fill::Uniform).unwrap();
    let mut lease = r.lease().unwrap();
    let q = lease.queue().unwrap();
    let p = r.prepare(op, &c, Some("tiled")).unwrap();
    let all = |value: f32, shape: &[u64]| {
        HostTensor::from_slice(&vec![value; shape.iter().product::<u64>() as usize], shape).unwrap()
    };
    p.poison(q).unwrap();
    let inputs = [all(1.0, &[1, 512, 3, 3]), all(f32::INFINITY, &[512, 16, 3, 3])];
    let dx = p.call(q, &inputs, DEADLINE).unwrap()[0].to_vec::<f32>().unwrap();
    assert_eq!(dx, [f32::INFINITY; 16 * 9]);
}

/// Every text of every op and dtype compiles and its pipeline is made, whatever `choose` would prefer.
#[test]
fn every_text_builds() {
    let Some(d) = open("every_text_builds") else { return };
    let mut built = std::collections::BTreeSet::new();
    for op in op::all() {
        for k in op.kernels.iter().filter(|k| matches!(k.body, Body::Wgsl(_))) {
            for dtype in k.dtypes.iter().filter(|t| op.dtypes.contains(t) && d.info().dtypes.contains(t)) {
                for spec in op.specs(Tier::Full, *dtype) {
                    let c = op.case(*dtype, &spec.dims, spec.attrs, spec.fill).unwrap();
                    if holds(d.as_ref(), op, &c) {
                        build_all(d.as_ref(), k, &c, &mut built);
                    }
                }
                too_large(d.as_ref(), op, k, *dtype);
            }
        }
    }
    assert!(built.len() > 20, "only {} texts", built.len());
}

/// Sizes that no binding covers are refused by the plan, not by the driver.
fn too_large(d: &dyn Device, op: &OpDesc, k: &Kernel, dtype: DType) {
    if matches!(op.unit, Unit::Bytes | Unit::Calls) {
        return;
    }
    let size = if op.dims.len() == 1 { 1 << 40 } else { 70_000 };
    let c = match op.case(dtype, &vec![size; op.dims.len()], Attrs::new(), Fill::Uniform) {
        Ok(c) => c,
        // Too many elements for 64 bits, or dimensions that do not fit each other.
        Err(e) => return assert_eq!(e.class(), Class::Usage, "{} {dtype}: {e}", op.name),
    };
    let refused = match (k.plan)(k, &c, d.info()) {
        Ok(plan) => panic!("{c} {}: {} launches planned", k.variant, plan.steps.len()),
        Err(e) => e,
    };
    let codes = [Code::AllocTooLarge, Code::LaunchTooLarge, Code::OpUnsupported, Code::FeatureUnsupported];
    assert!(codes.contains(&refused.code()), "{c} {}: {refused}", k.variant);
}

fn build_all(d: &dyn Device, k: &Kernel, c: &Case, built: &mut std::collections::BTreeSet<u64>) {
    // A variant may be made for other sizes.
    let Ok(plan) = (k.plan)(k, c, d.info()) else { return };
    for step in plan.steps {
        let text = assemble(k, &step, Lang::Wgsl).unwrap();
        if built.insert(text.hash()) {
            d.build(Source::Text(&text), None).unwrap();
        }
    }
}

fn text(entry: &str, text: &str) -> Text {
    Text { lang: Lang::Wgsl, text: text.into(), entry: entry.into() }
}

const DOUBLE: &str = "struct P { n: u32 }
@group(0) @binding(0) var<storage, read> x: array<u32>;
@group(0) @binding(1) var<storage, read_write> y: array<u32>;
@group(0) @binding(2) var<uniform> p: P;
@compute @workgroup_size(64) fn double(@builtin(global_invocation_id) id: vec3<u32>) {
    if (id.x < p.n) { y[id.x] = 2u * x[id.x]; }
}";

fn double(d: &WgpuDevice, args: Vec<Slice>, n: u64) -> Launch {
    let writes = (0..args.len()).map(|i| i == 1).collect();
    Launch {
        program: d.build(Source::Text(&text("double", DOUBLE)), None).unwrap(),
        group: [64, 1, 1],
        groups: [n.div_ceil(64).max(1), 1, 1],
        args,
        writes,
        params: vec![Param::U64(n)],
        cost: Default::default(),
    }
}

#[test]
fn misuse_is_a_typed_error() {
    let (Some(d), Some(other)) = (open("misuse_is_a_typed_error"), open("misuse_is_a_typed_error")) else { return };
    let x = d.alloc(256, MemoryKind::Device).unwrap();
    let y = d.alloc(256, MemoryKind::Device).unwrap();
    let mut q = d.queue().unwrap();
    assert_eq!(q.write(&x, 252, &[0; 8]).unwrap_err().code(), Code::BufferBounds);
    let foreign = other.alloc(256, MemoryKind::Device).unwrap();
    assert_eq!(q.write(&foreign, 0, &[0; 4]).unwrap_err().code(), Code::BufferForeign);
    let same = double(&d, vec![Slice::whole(&x), Slice::whole(&x)], 64);
    assert_eq!(q.launch(&same).unwrap_err().code(), Code::BadArgument);
    let good = double(&d, vec![Slice::whole(&x), Slice::whole(&y)], 64);
    let wide = Launch { groups: [1 << 33, 1, 1], ..good.clone() };
    assert_eq!(q.launch(&wide).unwrap_err().code(), Code::LaunchTooLarge);
    let large = Launch { params: vec![Param::U64(1 << 32)], ..good.clone() };
    assert_eq!(q.launch(&large).unwrap_err().code(), Code::LaunchTooLarge);
    let few = Launch { params: vec![], ..good.clone() };
    assert_eq!(q.launch(&few).unwrap_err().code(), Code::Internal);
    let one = Launch { args: vec![Slice::whole(&x)], writes: vec![false], ..good.clone() };
    assert_eq!(q.launch(&one).unwrap_err().code(), Code::Internal);
    let e = d.build(Source::Text(&text("f", "fn f( {")), None).unwrap_err();
    assert_eq!(e.code(), Code::CompileFailed);
    assert!(e.to_string().contains("expected"), "{e}");
    assert!(e.context().log.as_ref().is_some_and(|l| l.lines().count() > 1), "{:?}", e.context());
    let e = d.build(Source::Text(&text("g", DOUBLE)), None).unwrap_err();
    assert_eq!(e.code(), Code::EntryNotFound);
    assert!(e.to_string().contains("no such compute entry"), "{e}");
    assert_eq!(d.alloc(1 << 50, MemoryKind::Device).unwrap_err().code(), Code::AllocTooLarge);
    assert_eq!(d.alloc(16, MemoryKind::Pinned).unwrap_err().code(), Code::FeatureUnsupported);
    // After all that the device still works.
    q.fill(&x, 0, 256, 1).unwrap();
    q.launch(&good).unwrap();
    let mut out = [0u32; 64];
    q.read(&y, 0, bytemuck::cast_slice_mut(&mut out)).unwrap();
    assert_eq!(out, [0x0202_0202; 64]);
}

#[test]
fn odd_offsets_and_lengths_touch_nothing_else() {
    let Some(d) = open("odd_offsets_and_lengths_touch_nothing_else") else { return };
    let x = d.alloc(23, MemoryKind::Device).unwrap();
    let mut q = d.queue().unwrap();
    let mut want = [9u8; 23];
    q.write(&x, 0, &want).unwrap();
    for (offset, len) in [(0, 1), (1, 1), (3, 6), (4, 5), (8, 15), (22, 1), (5, 0)] {
        let data: Vec<u8> = (0..len).map(|i| (offset * 10 + i) as u8).collect();
        q.write(&x, offset as u64, &data).unwrap();
        want[offset..offset + len].copy_from_slice(&data);
        let mut got = [0u8; 23];
        q.read(&x, 0, &mut got).unwrap();
        assert_eq!(got, want, "{offset} + {len}");
        let mut part = vec![0u8; len];
        q.read(&x, offset as u64, &mut part).unwrap();
        assert_eq!(part, data);
    }
    let y = d.alloc(24, MemoryKind::Device).unwrap();
    q.fill(&y, 0, 24, 0xAB).unwrap();
    q.fill(&y, 8, 8, 0).unwrap();
    q.copy(&y, 4, &y, 12, 8).unwrap();
    let mut got = [0u32; 6];
    q.read(&y, 0, bytemuck::cast_slice_mut(&mut got)).unwrap();
    let ab = 0xABAB_ABAB;
    assert_eq!(got, [ab, ab, 0, ab, 0, ab]);
    assert_eq!(q.copy(&y, 1, &x, 0, 4).unwrap_err().code(), Code::FeatureUnsupported);
}

/// Launches, writes and copies keep their order across batches and threads.
#[test]
fn order_is_kept_across_batches_and_queues() {
    let Some(d) = open("order_is_kept_across_batches_and_queues") else { return };
    std::thread::scope(|s| {
        for t in 0..3u32 {
            let d = &d;
            s.spawn(move || {
                let (x, y) = (d.alloc(4, MemoryKind::Device).unwrap(), d.alloc(4, MemoryKind::Device).unwrap());
                let mut q = d.queue().unwrap();
                let there = double(d, vec![Slice::whole(&x), Slice::whole(&y)], 1);
                let mut want = t + 1;
                q.write(&x, 0, &want.to_le_bytes()).unwrap();
                for round in 0..300u32 {
                    q.launch(&there).unwrap();
                    q.copy(&y, 0, &x, 0, 4).unwrap();
                    want = want.wrapping_mul(2);
                    if round % 31 == 30 {
                        want = round + t;
                        q.write(&x, 0, &want.to_le_bytes()).unwrap();
                    }
                }
                let mut got = [0u8; 4];
                q.read(&x, 0, &mut got).unwrap();
                assert_eq!(u32::from_le_bytes(got), want);
            });
        }
    });
    let s = d.ledger().state();
    assert_eq!((s.buffers, s.bytes, s.pinned, s.objects()), (0, 0, 0, 0));
}

#[test]
fn marks_and_spans_make_sense() {
    let Some(d) = open("marks_and_spans_make_sense") else { return };
    let bytes = 16 << 20;
    let x = d.alloc(bytes, MemoryKind::Device).unwrap();
    let mut q = d.queue().unwrap();
    let before = q.mark().unwrap();
    for v in 1..=4 {
        q.fill(&x, 0, bytes, v).unwrap();
    }
    let after = q.mark().unwrap();
    q.flush().unwrap();
    assert_eq!(q.wait(after, DEADLINE).unwrap(), Waited::Done);
    let end = q.mark().unwrap();
    let span = q.span(before, after).unwrap();
    let host = q.span(before, end).unwrap().host;
    assert!(span.host >= 0.0 && host >= span.host);
    if let Some(device) = span.device {
        // Device and host clocks measure the same stretch: the fills lie between the first mark and the wait's end.
        assert!(device > 0.0 && device <= host * 1.05 + 1e-4, "{device} s of {host} s");
    } else {
        eprintln!("no device time: {:?}", d.info().notes);
    }
    for _ in 0..300 {
        q.mark().unwrap();
    }
    assert_eq!(q.span(before, after).unwrap_err().code(), Code::Internal);
    assert_eq!(q.wait(before, DEADLINE).unwrap(), Waited::Done);
}

/// A wait ends at its deadline although the work goes on.
#[test]
fn a_deadline_is_kept() {
    let Some(d) = open("a_deadline_is_kept") else { return };
    let bytes = 64 << 20;
    let x = d.alloc(bytes, MemoryKind::Device).unwrap();
    let mut q = d.queue().unwrap();
    for i in 0..100 {
        q.fill(&x, 0, bytes, 1 + (i % 7) as u8).unwrap();
    }
    let mark = q.mark().unwrap();
    q.flush().unwrap();
    assert_eq!(q.wait(mark, Duration::ZERO).unwrap(), Waited::Timeout);
    assert_eq!(q.wait(mark, DEADLINE).unwrap(), Waited::Done);
    assert_eq!(d.health(), Health::Usable);
}

/// A real loss: the API's destroy. Every call then fails with a type; nothing panics or hangs; everything is given back.
#[test]
fn a_lost_device_gives_typed_errors() {
    let Some(d) = open("a_lost_device_gives_typed_errors") else { return };
    let (x, y) = (d.alloc(1024, MemoryKind::Device).unwrap(), d.alloc(1024, MemoryKind::Device).unwrap());
    let mut q = d.queue().unwrap();
    let launch = double(&d, vec![Slice::whole(&x), Slice::whole(&y)], 256);
    q.write(&x, 0, &[1; 1024]).unwrap();
    q.launch(&launch).unwrap();
    let mark = q.mark().unwrap();
    d.destroy_for_test();
    assert_eq!(q.wait(mark, DEADLINE).unwrap_err().code(), Code::DeviceLost);
    let mut out = [0u8; 16];
    assert_eq!(q.read(&y, 0, &mut out).unwrap_err().code(), Code::DeviceLost);
    assert_eq!(q.write(&x, 0, &[1; 16]).unwrap_err().code(), Code::DeviceLost);
    assert_eq!(q.fill(&x, 0, 16, 1).unwrap_err().code(), Code::DeviceLost);
    assert_eq!(q.copy(&x, 0, &y, 0, 16).unwrap_err().code(), Code::DeviceLost);
    assert_eq!(q.launch(&launch).unwrap_err().code(), Code::DeviceLost);
    assert_eq!(q.mark().unwrap_err().code(), Code::DeviceLost);
    assert_eq!(q.flush().unwrap_err().code(), Code::DeviceLost);
    assert_eq!(d.alloc(16, MemoryKind::Device).unwrap_err().code(), Code::DeviceLost);
    assert_eq!(d.queue().err().map(|e| e.code()), Some(Code::DeviceLost));
    let e = d.build(Source::Text(&text("double", DOUBLE)), None).unwrap_err();
    assert_eq!(e.code(), Code::DeviceLost);
    assert!(matches!(d.health(), Health::Lost(why) if why.contains("Destroyed")));
    drop((x, y, q, launch));
    let s = d.ledger().state();
    assert_eq!((s.buffers, s.bytes, s.objects()), (0, 0, 0));
    // The machine is not lost: a new device works.
    let again = open("a_lost_device_gives_typed_errors").unwrap();
    assert_eq!(again.health(), Health::Usable);
}

/// A loss that is noticed first by a read, or by nothing but the next allocation.
#[test]
fn a_loss_is_noticed_by_whatever_call_comes_first() {
    type Call = fn(&WgpuDevice, &mut dyn Queue, &gpuctl::device::Buffer) -> Code;
    let calls: [Call; 4] = [
        |_, q, x| q.read(x, 0, &mut [0; 16]).unwrap_err().code(),
        |d, _, _| d.alloc(16, MemoryKind::Device).unwrap_err().code(),
        |d, _, _| d.build(Source::Text(&text("double", DOUBLE)), None).unwrap_err().code(),
        |_, q, _| q.finish(DEADLINE).unwrap_err().code(),
    ];
    for call in calls {
        let Some(d) = open("a_loss_is_noticed_by_whatever_call_comes_first") else { return };
        let x = d.alloc(16, MemoryKind::Device).unwrap();
        let mut q = d.queue().unwrap();
        d.destroy_for_test();
        assert_eq!(call(&d, q.as_mut(), &x), Code::DeviceLost);
    }
}

/// In a child process without any Vulkan driver the backend is absent with a reason. The child is this binary.
#[test]
fn hidden_vulkan_is_a_reason() {
    if std::env::var_os("GPUCTL_TEST_CHILD").is_some() {
        let probe = gpuctl::device::wgpu::probe();
        assert!(probe.found.is_empty());
        assert_eq!(probe.absent.len(), 1);
        assert!(probe.absent[0].reason.contains("Vulkan"), "{:?}", probe.absent);
        assert_eq!(WgpuDevice::open(0).err().map(|e| e.code()), Some(Code::DeviceMissing));
        return;
    }
    let out = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "hidden_vulkan_is_a_reason", "--nocapture"])
        .env("GPUCTL_TEST_CHILD", "1")
        .env("VK_DRIVER_FILES", "/nonexistent")
        .env("VK_ICD_FILENAMES", "/nonexistent")
        .output()
        .unwrap();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
}

#[test]
fn the_probe_tells_what_is_missing() {
    let Some(d) = open("the_probe_tells_what_is_missing") else { return };
    let info = d.info();
    assert_eq!(info.id, "wgpu:0");
    assert!(info.uid.contains(':') && !info.name.is_empty() && info.max_alloc_bytes >= 1 << 20);
    for missing in DType::ALL.iter().filter(|t| !info.dtypes.contains(t)) {
        assert!(info.notes.iter().any(|n| n.starts_with(&format!("no {missing}:"))), "no reason for {missing}");
    }
}
