//! The judge judged: every planted fault is caught, a clean run is quiet, a legal difference passes.

mod cards;
#[cfg(any(feature = "opencl", feature = "wgpu"))]
mod devices;
mod outputs;
mod resume;
mod self_test;

use std::sync::Arc;

use gpuctl::base::record::{Record, Status, VerifyRecord};
use gpuctl::base::sink::{Cancel, Collect};
use gpuctl::base::{DType, Exact, HostTensor, Lang};
use gpuctl::device::Device;
use gpuctl::device::cpu::{CpuDevice, Pin};
use gpuctl::device::probe::Rig;
use gpuctl::device::spoilt::Spoilt;
use gpuctl::engine::Guard;
use gpuctl::jobs::verify::{self, VerifyConfig, VerifySummary, line};
use gpuctl::kernel::Isa;
use gpuctl::op::{self, Tier, case};

fn cpu() -> Arc<dyn Device> {
    Arc::new(CpuDevice::new(2, Isa::detect(), Pin::Free).unwrap())
}

fn config() -> VerifyConfig {
    VerifyConfig::default()
}

fn one(name: &str) -> VerifyConfig {
    VerifyConfig { case: Some(case::parse(name).unwrap()), ..config() }
}

fn run(cfg: &VerifyConfig, devices: Vec<Arc<dyn Device>>) -> (VerifySummary, Vec<VerifyRecord>) {
    let rig = Rig { devices, cpu: cpu(), absent: Vec::new() };
    let mut sink = Collect::default();
    let summary = verify::run(cfg, &rig, &mut sink, &Cancel::new()).unwrap();
    let records = sink.records.into_iter().filter_map(|r| match r {
        Record::Verify(v) => Some(*v),
        _ => None,
    });
    (summary, records.collect())
}

/// What a journal holds after these records.
fn done(
    cfg: &VerifyConfig,
    devices: &[Arc<dyn Device>],
    records: &[VerifyRecord],
) -> std::collections::HashSet<String> {
    let mut done = verify::Done::new(cfg, devices.iter().map(|d| d.info()));
    let mut keys: Vec<_> = records.iter().filter_map(|r| done.add(r)).collect();
    keys.extend(done.end());
    keys.into_iter().collect()
}

fn spoilt(edit: impl Fn(&mut [u8]) + Send + Sync + 'static) -> Spoilt {
    let inner = Arc::new(CpuDevice::new(1, Isa::detect(), Pin::Free).unwrap());
    Spoilt::new(inner, Guard::WIDE.head, move |bytes, _| edit(bytes))
}

fn device(edit: impl Fn(&mut [u8]) + Send + Sync + 'static) -> Arc<dyn Device> {
    Arc::new(spoilt(edit))
}

/// The case beyond 2^31 bytes is in the full tier; a device without room for it is a skip that says so, and red on demand.
#[test]
fn the_case_beyond_31_bits_is_never_left_out_in_silence() {
    let full = VerifyConfig { tier: Tier::Full, ops: vec![op::find("neg").unwrap()], ..config() };
    let (op, big) = verify::cases(&full).unwrap().pop().unwrap();
    assert!(op.total_bytes(&big).unwrap() / 2 > 1 << 31, "{big}");
    let small = || -> Arc<dyn Device> {
        let mut d = spoilt(|_| {});
        d.info_mut().max_alloc_bytes = 1 << 31;
        Arc::new(d)
    };
    let (summary, records) = run(&one(&big.to_string()), vec![small()]);
    assert_eq!((summary.skipped, summary.failed, summary.exit_code()), (1, 0, 4), "{}", line(&records[0]));
    assert!(records[0].subject.reason.contains("takes 2147483648 in one buffer"), "{}", line(&records[0]));
    let asked = VerifyConfig { require_big: true, ..one(&big.to_string()) };
    let (summary, records) = run(&asked, vec![small()]);
    assert_eq!((summary.skipped, summary.failed, summary.exit_code()), (0, 1, 1), "{}", line(&records[0]));
    let why = &records[0].subject.reason;
    assert!(why.contains("--require big asks for it: an operand of 2147487745 bytes"), "{why}");
    // What a device's language cannot hold is told as that.
    let mut other = spoilt(|_| {});
    other.info_mut().dtypes.retain(|d| *d != DType::I8);
    let (summary, _) = run(&one(&big.to_string()), vec![Arc::new(other)]);
    assert_eq!((summary.unsupported, summary.skipped), (1, 0));
}

/// Verifies one case on a device with this fault; the clean device must pass the same case.
fn plant(name: &str, edit: impl Fn(&mut [u8]) + Send + Sync + 'static) -> VerifyRecord {
    let (clean, records) = run(&one(name), vec![device(|_| {})]);
    assert_eq!(clean.exit_code(), 0, "clean {}", line(&records[0]));
    let (summary, mut records) = run(&one(name), vec![device(edit)]);
    assert_eq!(records.len(), 1);
    let r = records.remove(0);
    assert_eq!(summary.exit_code() == 1, r.subject.status == Status::Failed);
    r
}

fn caught(name: &str, edit: impl Fn(&mut [u8]) + Send + Sync + 'static) -> VerifyRecord {
    let r = plant(name, edit);
    let text = line(&r);
    assert_eq!(r.subject.status, Status::Failed, "not caught: {text}");
    assert!(text.starts_with(&format!("FAIL {name} spoilt:0 ")), "{text}");
    assert!(text.contains(&format!("rerun: gpuctl verify --case '{name}' --device spoilt:0")), "{text}");
    r
}

fn f32s(f: impl Fn(&mut [f32]) + Send + Sync + 'static) -> impl Fn(&mut [u8]) + Send + Sync + 'static {
    move |bytes| {
        let mut v: Vec<f32> = bytemuck::pod_collect_to_vec(bytes);
        f(&mut v);
        bytes.copy_from_slice(bytemuck::cast_slice(&v));
    }
}

fn f64s(f: impl Fn(&mut [f64]) + Send + Sync + 'static) -> impl Fn(&mut [u8]) + Send + Sync + 'static {
    move |bytes| {
        let mut v: Vec<f64> = bytemuck::pod_collect_to_vec(bytes);
        f(&mut v);
        bytes.copy_from_slice(bytemuck::cast_slice(&v));
    }
}

fn data(name: &str) -> Vec<HostTensor> {
    let c = case::parse(name).unwrap();
    case::inputs(op::find(c.op).unwrap(), &c).unwrap()
}

#[test]
fn the_smoke_tier_is_clean_on_the_cpu_in_every_variant() {
    let cfg = VerifyConfig { all_variants: true, ..config() };
    let (summary, records) = run(&cfg, vec![cpu()]);
    // No BLAS was opened for this device.
    let (blas, records): (Vec<_>, Vec<_>) = records.into_iter().partition(|r| r.subject.variant == "blas");
    assert!(!blas.is_empty() && blas.iter().all(|r| r.subject.status == Status::Unsupported), "{} rows", blas.len());
    let bad: Vec<_> = records.iter().filter(|r| r.subject.status != Status::Ok).map(line).collect();
    assert!(bad.is_empty(), "{}", bad.join("\n"));
    assert_eq!(summary.exit_code(), 0);
    assert!(records.iter().any(|r| r.subject.variant == "naive"));
    for op in op::all() {
        for dtype in op.dtypes {
            let of = |r: &&VerifyRecord| r.subject.op == op.name && r.subject.dtype == *dtype;
            let compared: u64 = records.iter().filter(of).map(|r| r.compared).sum();
            assert!(compared > 0, "{} {dtype}: nothing was compared", op.name);
        }
    }
    little_is_open(&records);
}

/// Ops with intermediate results that special values may make overflow where the exact result does not, and the largest
/// share of their special results about which a rule may then claim nothing. A row of a normalisation goes as a whole.
const OPEN: &[(&str, f64)] = &[
    ("layernorm", 0.12),
    ("sigmoid_bwd", 0.03),
    ("tanh_bwd", 0.05),
    ("gelu_bwd", 0.01),
    ("gelu_tanh_bwd", 0.01),
    ("avgpool2d", 0.01),
];

/// Only these ops, with special data, may leave results open; of all others every element is judged.
fn little_is_open(records: &[VerifyRecord]) {
    let mut special = std::collections::BTreeMap::new();
    for r in records {
        let allowed = OPEN.iter().find(|(op, _)| *op == r.subject.op && r.case.ends_with("/special"));
        let Some((op, share)) = allowed else {
            assert_eq!(r.undefined, 0, "{}", line(r));
            continue;
        };
        let sums: &mut (f64, u64, u64) = special.entry((*op, r.subject.dtype)).or_default();
        *sums = (*share, sums.1 + r.undefined, sums.2 + r.compared);
    }
    for ((op, dtype), (share, open, compared)) in special {
        assert!(open as f64 <= share * compared as f64, "{op} {dtype}: {open} of {compared} results are not judged");
    }
}

#[test]
fn one_wrong_element_of_a_hundred_thousand() {
    let r = caught("add/f32/n100000/-/uniform", f32s(|v| v[70_001] = v[70_001].next_up()));
    assert_eq!((r.wrong, r.compared, r.worst_index), (1, 100_000, Some(70_001)));
    assert_eq!(r.worst_at, [70_001]);
    assert!(line(&r).contains("at [70001]") && line(&r).contains("max err "), "{}", line(&r));
}

#[test]
fn two_ulps_in_f64_functions_and_products() {
    let two_up = |x: f64| x.next_up().next_up();
    let r = caught("exp/f64/n257/-/uniform", f64s(move |v| v.iter_mut().for_each(|x| *x = two_up(*x))));
    // The kernel's own error may hide part of the fault, never most of it.
    assert!(r.wrong > 200, "{}", line(&r));
    assert!(caught("exp/f64/n257/-/uniform", f64s(move |v| v[256] = two_up(two_up(v[256])))).wrong == 1);
    // A product of one term is rounded at most thrice; beyond that two ulps show where |A||B| = |C|.
    let r = caught("gemm/f64/m17,n9,k1/-/integer", f64s(move |v| v.iter_mut().for_each(|x| *x = two_up(*x))));
    assert_eq!(r.wrong, 153, "integer data leave no slack");
    caught("gemm/f64/m4,n4,k8/-/integer", f64s(move |v| v[5] = two_up(v[5])));
}

#[test]
fn a_flushed_subnormal() {
    let flush = || f32s(|v| v.iter_mut().filter(|x| x.is_subnormal()).for_each(|x| *x = 0.0));
    for name in [
        "exp/f32/n1000/-/special",
        "add/f32/n1000/-/special",
        "tanh/f32/n1000/-/special",
        "transpose/f32/m31,n32/-/special",
    ] {
        caught(name, flush());
    }
}

#[test]
fn nan_infinity_and_the_sign_of_zero() {
    caught("softmax/f32/m7,n33/-/uniform", f32s(|v| v[40] = f32::NAN));
    caught("add/f64/n257/-/uniform", f64s(|v| v[0] = f64::INFINITY));
    caught("exp/f32/n1000/-/special", f32s(|v| v.iter_mut().filter(|x| x.is_nan()).for_each(|x| *x = 0.0)));
    caught("relu/f32/n1000/-/special", f32s(|v| v.iter_mut().filter(|x| **x == 0.0).for_each(|x| *x = 0.0)));
    let r = caught(
        "exp/f32/n1000/-/special",
        f32s(|v| v.iter_mut().filter(|x| x.is_infinite()).for_each(|x| *x = f32::MAX)),
    );
    assert!(line(&r).contains("want "), "{}", line(&r));
}

#[test]
fn tails_zeros_constants_and_elements_never_written() {
    let r = caught("add/f32/n257/-/uniform", f32s(|v| v[250..].fill(0.0)));
    assert!(
        r.subject.reason.contains("all from [250] to the last; every wrong element is zero"),
        "{}",
        r.subject.reason
    );
    let r = caught("softmax/f32/m7,n33/-/uniform", f32s(|v| v.fill(0.030_303_03)));
    assert!(r.subject.reason.contains("suspicious: all 231 elements equal"), "{}", r.subject.reason);
    // What a kernel leaves out shows the poison of each run, also where the right value is NaN.
    let name = "exp/f32/n1000/-/special";
    let nan = data(name)[0].to_vec::<f32>().unwrap().iter().position(|x| x.is_nan()).unwrap();
    let runs = std::sync::atomic::AtomicU32::new(0);
    let r = caught(name, move |bytes| {
        let run = runs.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
        bytes[nan * 4..nan * 4 + 4].fill(if run == 0 { 0xFF } else { 0x5A });
    });
    assert!(r.subject.reason.contains(&format!("1 elements were never written, the first at [{nan}]")), "{}", line(&r));
    let r = caught("sum/i32/outer1,n257,inner1/-/uniform", |bytes| bytes[..8].fill(0xFF));
    assert_eq!((r.worst_got.as_deref(), r.wrong), (Some("-1"), 1));
}

#[test]
fn a_write_around_an_operand() {
    let name = "add/f32/n257/-/uniform";
    let head = Guard::WIDE.head;
    for (at, place) in [
        (head + 257 * 4, "byte 0 behind operand y"),
        (head + 257 * 4 + 4000, "byte 4000 behind operand y"),
        (head - 4, "4 bytes in front of operand y"),
        (0, "1024 bytes in front of operand y"),
    ] {
        let device = spoilt(|_| {}).overrun(at);
        let (summary, records) = run(&one(name), vec![Arc::new(device)]);
        assert_eq!(summary.exit_code(), 1);
        let text = line(&records[0]);
        assert!(text.contains("result-wrong") && text.contains(&format!("{place} was overwritten")), "{text}");
    }
}

/// A long sum's bound is wider than one element, so integer data must show a lost one.
#[test]
fn one_element_missing_in_a_long_sum() {
    let name = "sum/f32/outer1,n100003,inner1/-/integer";
    let x = data(name)[0].to_vec::<f32>().unwrap();
    let last = x.iter().copied().rfind(|x| *x != 0.0).unwrap();
    caught(name, f32s(move |v| v[0] -= last));
}

#[test]
fn swapped_indices() {
    let swap = |m: usize, n: usize| {
        f32s(move |v| {
            let x = v.to_vec();
            (0..m * n).for_each(|i| v[i] = x[i % m * n + i / m]);
        })
    };
    caught("transpose/f32/m16,n16/-/uniform", swap(16, 16));
    caught("transpose/f32/m33,n65/-/uniform", swap(65, 33));
    caught("gemm/f32/m16,n16,k16/-/uniform", swap(16, 16));
    caught(
        "softmax/f32/m7,n33/-/uniform",
        f32s(|v| {
            let (a, b) = v.split_at_mut(33);
            a.swap_with_slice(&mut b[..33]);
        }),
    );
}

#[test]
fn sums_in_too_narrow_a_type() {
    let r = caught("sum/i32/outer1,n1000,inner1/-/special", |bytes| {
        let v = i64::from_le_bytes(bytes[..8].try_into().unwrap());
        bytes[..8].copy_from_slice(&i64::from(v as i32).to_le_bytes());
    });
    assert_eq!(r.wrong, 1);
}

#[test]
fn rounding_toward_zero_and_half_precision() {
    let name = "exp/f16/n1025/-/uniform";
    let x = data(name)[0].to_vec::<half::f16>().unwrap();
    let r = caught(name, move |bytes| {
        for (b, x) in bytes.chunks_exact_mut(2).zip(&x) {
            let y = x.to_f64().exp();
            let near = half::f16::from_f64(y);
            let cut = if near.to_f64() > y { half::f16::from_bits(near.to_bits() - 1) } else { near };
            b.copy_from_slice(&cut.to_le_bytes());
        }
    });
    assert!(r.wrong > 100, "{}", line(&r));
    let through = |bits: fn(f32) -> f32| f32s(move |v| v.iter_mut().for_each(|x| *x = bits(*x)));
    let half = |x: f32| half::f16::from_f32(x).to_f32();
    for name in [
        "exp/f32/n257/-/uniform",
        "gemm/f32/m17,n33,k65/-/uniform",
        "softmax/f32/m7,n33/-/uniform",
        "add/f32/n257/-/uniform",
        "sum/f32/outer33,n65,inner1/-/uniform",
    ] {
        caught(name, through(half));
    }
}

#[test]
fn another_order_of_summation_passes() {
    let sum =
        |x: Vec<f32>| f32s(move |v| v[0] = x.iter().rev().step_by(2).chain(x.iter().rev().skip(1).step_by(2)).sum());
    for fill in ["uniform", "positive"] {
        let name = format!("sum/f32/outer1,n100003,inner1/-/{fill}");
        let r = plant(&name, sum(data(&name)[0].to_vec().unwrap()));
        assert_eq!(r.subject.status, Status::Ok, "{}", line(&r));
    }
    let name = "gemm/f32/m17,n33,k65/-/uniform";
    let operands = data(name);
    let (a, b) = (operands[0].to_vec::<f32>().unwrap(), operands[1].to_vec::<f32>().unwrap());
    let r = plant(
        name,
        f32s(move |c| {
            for (at, c) in c.iter_mut().enumerate() {
                let (i, j) = (at / 33, at % 33);
                *c = (0..65).rev().map(|p| a[i * 65 + p] * b[p * 33 + j]).sum();
            }
        }),
    );
    assert_eq!(r.subject.status, Status::Ok, "{}", line(&r));
}

#[test]
fn a_result_that_changes_between_runs_is_flagged_and_judged() {
    let count = std::sync::atomic::AtomicU32::new(0);
    let name = "sum/f32/outer1,n257,inner1/-/uniform";
    let r = plant(
        name,
        f32s(move |v| {
            if count.fetch_add(1, std::sync::atomic::Ordering::SeqCst) % 2 == 1 {
                v[0] = v[0].next_up();
            }
        }),
    );
    assert_eq!(r.subject.status, Status::Ok, "{}", line(&r));
    assert_eq!(r.subject.flags, ["nondeterministic"]);
    let count = std::sync::atomic::AtomicU32::new(0);
    let r = caught(
        name,
        f32s(move |v| {
            if count.fetch_add(1, std::sync::atomic::Ordering::SeqCst) % 2 == 1 {
                v[0] += 1.0;
            }
        }),
    );
    assert!(r.subject.flags.contains(&"nondeterministic".to_string()), "the second run is judged too");
}

/// A deep stack of small faults in a large product: with integer data every bit position shows.
#[test]
fn any_flipped_bit_of_an_integer_product() {
    for bit in 0..32 {
        caught("gemm/f32/m31,n29,k37/-/integer", f32s(move |v| v[450] = f32::from_bits(v[450].to_bits() ^ 1 << bit)));
    }
}

#[test]
fn the_strict_line_is_told_apart_from_the_verdict() {
    let (_, records) = run(&one("tanh/f32/n257/-/uniform"), vec![cpu()]);
    assert_eq!(records[0].strict_met, Some(true), "{}", line(&records[0]));
    let (_, records) = run(&one("exp/f16/n257/-/uniform"), vec![cpu()]);
    assert_eq!(records[0].strict_met, None);
    let far = device(f32s(|v| v.iter_mut().for_each(|x| *x *= 1.00001)));
    let (_, records) = run(&one("softmax/f32/m7,n33/-/uniform"), vec![far]);
    assert_eq!((records[0].subject.status, records[0].strict_met), (Status::Failed, Some(false)));
}

#[test]
fn nothing_compared_is_not_a_pass() {
    let (summary, records) = run(&one("transpose/f32/m0,n3/-/uniform"), vec![cpu()]);
    assert_eq!((records[0].subject.status, records[0].compared), (Status::Ok, 0));
    assert!(records[0].subject.reason.contains("nothing to compare"));
    assert_eq!((summary.exit_code(), summary.idle.as_slice()), (4, &["cpu".to_string()][..]));
    // A device that takes no language of the op.
    let mut mute = spoilt(|_| {});
    mute.info_mut().langs = vec![Lang::Wgsl];
    mute.info_mut().dtypes = vec![DType::I32];
    let cfg = VerifyConfig { ops: vec![op::find("softmax").unwrap()], ..config() };
    let (summary, records) = run(&cfg, vec![cpu(), Arc::new(mute)]);
    assert!(summary.passed > 0 && summary.unsupported > 0);
    assert_eq!((summary.exit_code(), summary.idle.as_slice()), (4, &["spoilt:0".to_string()][..]));
    assert!(records.iter().all(|r| !r.subject.reason.is_empty() && !line(r).is_empty()));
}

/// 2^24 roundings in f32: gamma says nothing, and a kernel that writes zero or NaN would pass. So nobody passes.
#[test]
fn a_bound_that_allows_anything_proves_nothing() {
    let name = "sum/f32/outer1,n16777300,inner1/-/uniform";
    for value in [f32::NAN, 0.0] {
        let (summary, records) = run(&one(name), vec![device(f32s(move |v| v[0] = value))]);
        let r = &records[0];
        assert_eq!((r.subject.status, r.undefined, r.strict_met), (Status::Skipped, 1, None), "{}", line(r));
        assert!(line(r).contains("leaves every result open: gamma_"), "{}", line(r));
        assert_eq!((summary.passed, summary.skipped, summary.compared, summary.exit_code()), (0, 1, 0, 4));
        assert_eq!(summary.idle, ["spoilt:0"]);
    }
    // Whole numbers have exact sums, however many.
    assert_eq!(run(&one(&name.replace("uniform", "onehot")), vec![cpu()]).0.failed, 0);
}

/// Each element adds up to about 100,000: infinite in f16, of a product that is checked whole as well.
#[test]
fn a_product_that_f16_does_not_hold_passes() {
    let (summary, records) = run(&one("gemm/f16/m8,n8,k400000/-/positive"), vec![cpu()]);
    assert_eq!((summary.passed, summary.exit_code()), (1, 0), "{}", line(&records[0]));
}

#[test]
fn a_product_beyond_the_oracle_is_judged_on_a_sample_and_whole() {
    let (summary, records) = run(&one("gemm/f32/m2000,n2000,k2000/-/uniform"), vec![cpu()]);
    assert_eq!((summary.skipped, summary.passed, summary.exit_code()), (0, 1, 0));
    assert!(records[0].compared > 4000, "{}", line(&records[0]));
    assert!(records[0].subject.flags.iter().any(|f| f.ends_with("-of-4000000")), "{:?}", records[0].subject.flags);
}

#[test]
fn an_interrupted_run_keeps_what_it_has_and_says_so() {
    let cancel = Cancel::new();
    cancel.raise();
    let rig = Rig { devices: vec![cpu()], cpu: cpu(), absent: Vec::new() };
    let summary = verify::run(&config(), &rig, &mut Collect::default(), &cancel).unwrap();
    assert!(summary.cancelled && summary.exit_code() == 4);
}

#[test]
fn the_difference_from_the_cpu_is_told() {
    let r = plant("softmax/f32/m7,n33/-/uniform", |_| {});
    assert!(r.max_vs_cpu.is_some_and(|d| d < 1e-6), "{:?}", r.max_vs_cpu);
    let (_, records) = run(&one("softmax/f32/m7,n33/-/uniform"), vec![cpu()]);
    assert!(records[0].max_vs_cpu.is_none() || records[0].max_vs_cpu == Some(0.0));
}

/// A record must survive JSON whatever the values were.
#[test]
fn records_of_nan_and_infinity_survive_json() {
    let r = caught("add/f64/n257/-/uniform", f64s(|v| (v[0], v[1]) = (f64::NAN, f64::INFINITY)));
    let text = serde_json::to_string(&Record::Verify(Box::new(r.clone()))).unwrap();
    let Record::Verify(back) = serde_json::from_str(&text).unwrap() else { panic!("another kind") };
    assert_eq!(*back, r);
    assert_eq!(r.worst_got.as_deref(), Some("NaN"));
}

#[test]
fn an_oracle_value_is_not_a_kernel_value() {
    // 1/3 has no f32: the oracle's value lies between two of them.
    let c = case::parse("softmax/f32/m1,n3/-/constant").unwrap();
    let op = op::find("softmax").unwrap();
    let x: Vec<Vec<Exact>> = case::inputs(op, &c).unwrap().iter().map(Exact::read_all).collect();
    let y = (op.oracle)(&c, &x)[0].values[0];
    assert!(y.mul(Exact::f(3.0)).add(Exact::f(-1.0)).abs_f64() < 1e-30);
}

/// All 65,536 numbers of f16; what passed before is not run again.
#[test]
fn the_exhaustive_tier_takes_every_bit_pattern_and_goes_on_where_it_stopped() {
    let relu = vec![op::find("relu").unwrap()];
    let cfg = VerifyConfig { ops: relu, dtypes: Some(vec![DType::F16]), tier: Tier::Exhaustive, ..config() };
    let (summary, records) = run(&cfg, vec![cpu()]);
    assert_eq!((summary.passed, summary.compared, summary.exit_code()), (1, 65_536, 0));
    assert_eq!(records[0].case, "relu/f16/n65536/-/bits0");
    let bytes = data(&records[0].case)[0].bytes().to_vec();
    assert!(bytes.chunks(2).enumerate().all(|(i, b)| usize::from(u16::from_le_bytes([b[0], b[1]])) == i));
    let done = done(&cfg, &[cpu()], &records);
    assert_eq!(done.len(), 1);
    let (summary, records) = run(&VerifyConfig { done, ..cfg.clone() }, vec![cpu()]);
    assert_eq!((summary.resumed, records.len(), summary.exit_code()), (1, 0, 0));
    // Each target of a conversion, once.
    let cast = VerifyConfig { ops: vec![op::find("cast").unwrap()], ..cfg.clone() };
    let (summary, records) = run(&VerifyConfig { dtypes: Some(vec![DType::F16]), ..cast }, vec![cpu()]);
    let mut cases: Vec<&str> = records.iter().map(|r| r.case.as_str()).collect();
    assert!(cases.len() >= 8 && cases.iter().any(|c| c.contains("to=")), "{cases:?}");
    assert_eq!((summary.passed, summary.failed), (cases.len() as u64, 0));
    cases.sort_unstable();
    cases.dedup();
    assert_eq!(cases.len(), records.len());
    // Ops of other forms have no such tier: nothing was compared, which is no pass.
    let cfg = VerifyConfig { ops: vec![op::find("gemm").unwrap()], tier: Tier::Exhaustive, ..config() };
    assert_eq!(run(&cfg, vec![cpu()]).0.exit_code(), 4);
    // A subnormal lost anywhere shows.
    caught("exp/f16/n65536/-/bits0", |bytes| {
        for b in bytes.chunks_exact_mut(2) {
            if u16::from_le_bytes([b[0], b[1]]) & 0x7FFF == 1 {
                b.fill(0);
            }
        }
    });
}
