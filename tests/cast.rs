//! `cast` bit by bit on every device that is here: values around the ties of every target, where rounding twice, in the
//! wrong direction or by way of a shorter type shows.
//!
//! Random data rarely comes near such ties (one f64 in 130,000 is rounded differently to bf16 by way of f32), so they are
//! made here. The wanted values come from the op's oracle, and the oracle's from integers worked out in its own tests.

#![allow(clippy::print_stderr, reason = "skips are named on stderr")]

use std::sync::Arc;

use gpuctl::base::{Attr, Attrs, Code, DType, Env, Exact, Fill, HostTensor};
use gpuctl::device::cpu::{CpuDevice, Pin};
use gpuctl::device::{DEADLINE, Device};
use gpuctl::engine::run::Runner;
use gpuctl::kernel::{Isa, plan_cast};
use gpuctl::op::{self, OpDesc};

/// Floats around the ties of f16, bf16 and f32 at several magnitudes, around the ends of every integer type, and special
/// values.
fn floats() -> Vec<f64> {
    let mut all =
        vec![0.0, f64::NAN, f64::INFINITY, f64::MAX, f64::MIN_POSITIVE, 5e-324, 65_504.0, 65_519.996, 65_520.0];
    for digits in [8, 11, 24] {
        for exponent in [-149, -140, -133, -127, -126, -30, -25, -24, -15, -14, -1, 0, 7, 15, 16, 127] {
            let unit = 2f64.powi(exponent);
            let tie = 2f64.powi(-digits);
            for odd in [1.0, 3.0] {
                // The tie, and numbers that every type between it and f64 takes for it.
                for off in [0.0, 2f64.powi(-26), -(2f64.powi(-26)), 2f64.powi(-40), -(2f64.powi(-40))] {
                    all.push(unit * (1.0 + odd * tie + off));
                }
            }
        }
    }
    for top in [7, 8, 15, 16, 31, 32, 63, 64] {
        let end = 2f64.powi(top);
        all.extend([end, end - 0.5, end - 1.0, end + 1.0, end.next_down(), end.next_up()]);
    }
    all.extend([0.5, 0.999, 1.5, 2.5]);
    let negative: Vec<f64> = all.iter().map(|v| -v).collect();
    all.extend(negative);
    all
}

/// Integers of every length around the ties of f16, bf16, f32 and f64.
fn integers() -> Vec<i128> {
    let mut all = vec![0, 65_503, 65_519, 65_520, 70_000];
    for length in 0..=64 {
        let size = 1i128 << length;
        for digits in [8, 11, 24, 53] {
            let tie = if length >= digits { size >> digits } else { 0 };
            all.extend([
                size,
                size - 1,
                size + tie,
                size + tie + 1,
                size + tie - 1,
                size + 3 * tie,
                size + 3 * tie + 1,
            ]);
        }
    }
    let negative: Vec<i128> = all.iter().map(|v| -v).collect();
    all.extend(negative);
    all
}

/// The values as a tensor: floats rounded to the type, integers cut to its bits.
fn tensor(dtype: DType) -> HostTensor {
    let (floats, integers) = (floats(), integers());
    let n = if dtype.is_float() { floats.len() } else { integers.len() } as u64;
    let mut t = HostTensor::zeros(dtype, &[n]).unwrap();
    let size = dtype.size() as usize;
    for (i, bytes) in t.bytes_mut().chunks_exact_mut(size).enumerate() {
        match dtype {
            DType::F64 => bytes.copy_from_slice(&floats[i].to_le_bytes()),
            DType::F32 => bytes.copy_from_slice(&(floats[i] as f32).to_le_bytes()),
            DType::F16 => bytes.copy_from_slice(&half::f16::from_f64(floats[i]).to_le_bytes()),
            DType::BF16 => bytes.copy_from_slice(&half::bf16::from_f64(floats[i]).to_le_bytes()),
            _ => bytes.copy_from_slice(&integers[i].to_le_bytes()[..size]),
        }
    }
    t
}

fn same(a: Exact, b: Exact) -> bool {
    match (a, b) {
        (Exact::I(a), Exact::I(b)) => a == b,
        (a, b) => {
            let (a, b) = (a.to_f64(), b.to_f64());
            a.is_nan() && b.is_nan() || a.to_bits() == b.to_bits()
        }
    }
}

/// Pairs judged and the first wrong element, with a variant or the chosen one.
fn pairs(r: &Runner, cast: &'static OpDesc, variant: Option<&str>) -> usize {
    let mut judged = 0;
    let mut lease = r.lease().unwrap();
    for from in DType::ALL {
        let x = tensor(from);
        let exact = vec![Exact::read_all(&x)];
        for to in DType::ALL {
            let attrs = Attrs::new().with("to", Attr::Int(plan_cast::code_of(to)));
            let case = cast.case(from, &[x.len()], attrs, Fill::Uniform).unwrap();
            let prepared = match r.prepare(cast, &case, variant) {
                Ok(p) => p,
                Err(e) if matches!(e.code(), Code::DTypeUnsupported | Code::OpUnsupported) => continue,
                Err(e) => panic!("{case}: {e}"),
            };
            let y = prepared.call(lease.queue().unwrap(), &[&x], DEADLINE).unwrap().remove(0);
            assert_eq!(y.dtype, to, "{case}");
            let want = (cast.oracle)(&case, &exact).remove(0).values;
            for (i, want) in want.iter().enumerate() {
                let got = Exact::read(&y, i as u64);
                assert!(same(got, *want), "{from} to {to}: {:?} gives {got:?}, not {want:?}", exact[0][i]);
            }
            judged += 1;
        }
    }
    judged
}

#[test]
fn every_pair_on_the_cpu() {
    let cast = op::find("cast").unwrap();
    for (threads, isa) in [(1, Isa::BASELINE), (2, Isa::detect())] {
        let device: Arc<dyn Device> = Arc::new(CpuDevice::new(threads, isa, Pin::Free).unwrap());
        let r = Runner::new(device);
        for variant in [None, Some("naive")] {
            assert_eq!(pairs(&r, cast, variant), 144);
        }
    }
}

/// The oracle is not a kernel's rounding repeated: the standard library agrees where it rounds once.
#[test]
fn the_oracle_agrees_with_the_standard_library() {
    let cast = op::find("cast").unwrap();
    let with = |from, to, v: Exact| {
        let attrs = Attrs::new().with("to", Attr::Int(plan_cast::code_of(to)));
        let case = cast.case(from, &[1], attrs, Fill::Uniform).unwrap();
        (cast.oracle)(&case, &[vec![v]])[0].values[0]
    };
    for v in floats() {
        assert!(same(with(DType::F64, DType::F32, Exact::f(v)), Exact::f(f64::from(v as f32))), "{v:e}");
        assert!(same(with(DType::F64, DType::I64, Exact::f(v)), Exact::I(i128::from(v as i64))), "{v:e}");
        assert!(same(with(DType::F64, DType::U8, Exact::f(v)), Exact::I(i128::from(v as u8))), "{v:e}");
        let single = v as f32;
        let half = f64::from(half::f16::from_f32(single));
        assert!(same(with(DType::F32, DType::F16, Exact::f(single.into())), Exact::f(half)), "{single:e}");
    }
    let twice = floats().into_iter().filter(|v| {
        let detour = Exact::f(f64::from(half::bf16::from_f32(*v as f32)));
        !same(with(DType::F64, DType::BF16, Exact::f(*v)), detour)
    });
    assert!(twice.count() > 20, "the values do not tell one rounding from two");
    for v in integers() {
        let (long, int) = (v as u64, v as i32);
        assert!(same(with(DType::U64, DType::F32, Exact::I(long.into())), Exact::f(f64::from(long as f32))), "{long}");
        assert!(same(with(DType::U64, DType::F64, Exact::I(long.into())), Exact::f(long as f64)), "{long}");
        assert!(same(with(DType::I32, DType::U16, Exact::I(int.into())), Exact::I(i128::from(int as u16))), "{int}");
    }
}

/// Judges the device of a backend, or skips; a failure where `GPUCTL_REQUIRE` lists it.
#[cfg(any(feature = "opencl", feature = "wgpu"))]
fn on(backend: &str, device: Result<Arc<dyn Device>, String>, least: usize) {
    match device {
        Ok(d) => {
            let judged = pairs(&Runner::new(d), op::find("cast").unwrap(), None);
            assert!(judged >= least, "only {judged} pairs");
        }
        Err(e) if Env::read().unwrap().require.iter().any(|r| r == backend) => panic!("{backend} is required: {e}"),
        Err(e) => eprintln!("skipped every_pair_on_{backend}: {e}"),
    }
}

#[cfg(feature = "opencl")]
#[test]
fn every_pair_on_opencl() {
    let probe = gpuctl::device::opencl::probe();
    let device = probe.found.first().map(|f| f.open().map_err(|e| e.to_string()));
    // Without f64 there are 121.
    on("opencl", device.unwrap_or_else(|| Err("no device".into())), 121);
}

#[cfg(feature = "wgpu")]
#[test]
fn every_pair_on_wgpu() {
    let device = gpuctl::device::wgpu::WgpuDevice::open(0);
    // f32, f16, bf16, i32, u32 are always there.
    on("wgpu", device.map(|d| Arc::new(d) as Arc<dyn Device>).map_err(|e| e.to_string()), 25);
}
