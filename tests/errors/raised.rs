//! Every code is raised by something: a row that nothing raises would be a promise that nobody keeps.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use gpuctl::base::api::Api;
use gpuctl::base::sink::{Cancel, Collect};
use gpuctl::base::{Attr, Attrs, Code, DType, DeviceInfo, Env, Error, Fill, HostTensor, npy};
use gpuctl::device::cpu::{CpuDevice, Pin};
use gpuctl::device::faulty::{Fault, On, When};
use gpuctl::device::{Device, Mark, MemoryKind, sim};
use gpuctl::engine::{Engine, Placement, Runner};
use gpuctl::jobs::{stress, trial};
use gpuctl::kernel::cpu::{Call, CpuCtx};
use gpuctl::kernel::{self, Isa, NativeArgs, Param};
use gpuctl::num;
use gpuctl::op;
use gpuctl::profile::{Kind, Profile, file};

use crate::{builder, planted, relu};

/// How a test brings a code about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum How {
    /// The library fails by itself.
    Real,
    /// A fault was planted in a device.
    Planted,
    /// A driver's number goes through the function by which its backend makes errors; here is no device that would give it.
    Status,
}

fn cpu() -> Arc<dyn Device> {
    Arc::new(CpuDevice::new(1, Isa::detect(), Pin::Free).unwrap())
}

fn zeros(dtype: DType, shape: &[u64]) -> HostTensor {
    HostTensor::zeros(dtype, shape).unwrap()
}

fn run(op: &str, inputs: &[&HostTensor]) -> Error {
    let engine = Engine::builder().env(Env::default()).profile("preset:always-cpu").build().unwrap();
    engine.run(op, inputs, &Attrs::new()).unwrap_err()
}

fn forced(env: Env) -> Error {
    let builder = Engine::builder().env(env).profile("preset:always-cpu");
    builder.placement(Placement::ForceGpu("cuda:77".into())).build().unwrap_err()
}

fn planted_error(on: On, fault: Fault) -> Error {
    relu(&builder(&planted(on, When::From(1), fault)).no_fallback().build().unwrap()).unwrap_err()
}

fn status(api: Api, number: i32) -> Error {
    api.error("a call", number, Code::LaunchFailed)
}

fn signed() -> String {
    Profile::new(Kind::Calibrated, "mine").to_toml().unwrap()
}

fn ones(_: &CpuCtx<'_>, args: &mut NativeArgs<'_>, call: &Call) -> gpuctl::base::Result<()> {
    args.output::<f32>(0, call.size(0))?.fill(1.0);
    Ok(())
}

/// A native kernel on host memory that begins off an element.
fn crooked() -> Error {
    let mut words = [0u64; 4];
    let bytes: &mut [u8] = bytemuck::cast_slice_mut(&mut words);
    let mut args = NativeArgs { ins: Vec::new(), outs: vec![&mut bytes[1..17]] };
    let call = Call { dtype: DType::F32, params: vec![Param::U64(4)] };
    cpu().native(ones, &mut args, &call).expect("the CPU computes on host memory").unwrap_err()
}

/// A device that flips a bit of all that is read: the trial of its kernel fails.
fn lying() -> Error {
    let device: Arc<dyn Device> = planted(On::Read, When::From(1), Fault::FlipBit);
    let engine = Engine::builder().env(Env::default()).profile("preset:always-cpu").device(device);
    relu(&engine.placement(Placement::ForceGpu(crate::ID.into())).build().unwrap()).unwrap_err()
}

fn without_languages() -> Error {
    let relu = op::find("relu").unwrap();
    let case = relu.case(DType::F32, &[3], Attrs::new(), Fill::Uniform).unwrap();
    let info = DeviceInfo { langs: Vec::new(), ..cpu().info().clone() };
    kernel::choose(relu.kernels, &case, &info, None).unwrap_err()
}

/// A number type that refuses what it cannot hold.
#[derive(Clone, Debug)]
struct Small(i8);

impl num::Num for Small {
    fn zero() -> Self {
        Small(0)
    }
    fn try_add(&self, other: &Self) -> Option<Self> {
        self.0.checked_add(other.0).map(Small)
    }
    fn try_sub(&self, other: &Self) -> Option<Self> {
        self.0.checked_sub(other.0).map(Small)
    }
    fn try_mul(&self, other: &Self) -> Option<Self> {
        self.0.checked_mul(other.0).map(Small)
    }
    fn try_div(&self, other: &Self) -> Option<Self> {
        self.0.checked_div(other.0).map(Small)
    }
}

/// More calls at once than a device has queues for.
fn crowded() -> Error {
    let runner = Runner::new(cpu());
    let mut leased = Vec::new();
    loop {
        match runner.lease_in_turn(Duration::from_millis(1)) {
            Ok(queue) => leased.push(queue),
            Err(e) => return e,
        }
    }
}

fn interrupted() -> Error {
    let start =
        trial::Start { program: "sleep".into(), arguments: vec!["30".into()], silence: Duration::from_secs(30) };
    let cancel = Cancel::new();
    cancel.raise();
    trial::run(cpu().info(), &start, None, &mut Collect::default(), &cancel).unwrap_err()
}

fn crashed() -> Error {
    let cfg = stress::StressConfig { seconds: 1.0, device: Some("cpu".into()), ..Default::default() };
    let program = stress::Exe { path: PathBuf::from("false") };
    stress::run(&cfg, &program, &mut Collect::default(), &Cancel::new()).unwrap_err()
}

fn raised(code: Code) -> (How, Error) {
    use How::{Planted, Real, Status};
    let f32s = || zeros(DType::F32, &[4, 4]);
    let (cuda, opencl) = (|n| (Status, status(Api::Cuda, n)), |n| (Status, status(Api::Opencl, n)));
    match code {
        Code::BadArgument => (Real, gpuctl::device::probe::Select::parse("").unwrap_err()),
        Code::UnknownOp => (Real, op::find("gem").unwrap_err()),
        Code::ShapeMismatch => (Real, run("gemm", &[&f32s(), &zeros(DType::F32, &[3, 4])])),
        Code::DTypeMismatch => (Real, run("add", &[&f32s(), &zeros(DType::F64, &[4, 4])])),
        Code::SizeOverflow => (Real, HostTensor::zeros(DType::F64, &[u64::MAX]).unwrap_err()),
        Code::DTypeUnsupported => (Real, run("tanh", &[&zeros(DType::I32, &[4])])),
        Code::OpUnsupported => (Real, without_languages()),
        Code::FeatureUnsupported => (Real, cpu().alloc(16, MemoryKind::Pinned).unwrap_err()),
        Code::DeviceMissing => (Real, forced(Env::default())),
        Code::DeviceDisabled => (Real, forced(Env { disable_gpu: true, ..Env::default() })),
        Code::LibraryNotFound => opencl(-2000),
        Code::LibraryVersion => cuda(803),
        Code::DriverTooOld => opencl(-2001),
        Code::NoPlatform => opencl(-1001),
        Code::PermissionDenied => cuda(800),
        Code::NoDevice => cuda(100),
        Code::DeviceBusy => cuda(46),
        Code::ContextCreate => (Status, Api::Wgpu.named_error("RequestDeviceError", "x", Code::LaunchFailed)),
        Code::AllocTooLarge => (Real, cpu().alloc(u64::MAX, MemoryKind::Device).unwrap_err()),
        Code::LaunchTooLarge => opencl(-54),
        Code::OutOfDeviceMemory => {
            let device = sim::open("textbook").unwrap().1;
            let most = device.info().max_alloc_bytes;
            let held: Vec<_> = (0..64).map_while(|_| device.alloc(most, MemoryKind::Device).ok()).collect();
            let full = device.alloc(most, MemoryKind::Device);
            assert!(full.is_err(), "{} buffers of {most} bytes fit", held.len());
            (Real, full.unwrap_err())
        }
        Code::OutOfResources => opencl(-5),
        Code::OutOfHostMemory => (Real, HostTensor::zeros(DType::F64, &[1 << 58]).unwrap_err()),
        Code::CompileFailed => opencl(-11),
        Code::LinkFailed => opencl(-17),
        Code::EntryNotFound => opencl(-46),
        Code::BinaryRefused => cuda(209),
        Code::InvalidCall => opencl(-30),
        Code::LaunchFailed => (Planted, planted_error(On::Launch, Fault::Fail(code))),
        Code::LaunchTimeout => (Planted, planted_error(On::Wait, Fault::Hang)),
        Code::TransferFailed => (Planted, planted_error(On::Write, Fault::Fail(code))),
        Code::MapFailed => opencl(-12),
        Code::BufferBounds => {
            let d = cpu();
            let buffer = d.alloc(16, MemoryKind::Device).unwrap();
            (Real, d.queue().unwrap().write(&buffer, 12, &[0; 8]).unwrap_err())
        }
        Code::BufferForeign => {
            let foreign = cpu().alloc(16, MemoryKind::Device).unwrap();
            (Real, cpu().queue().unwrap().write(&foreign, 0, &[0; 4]).unwrap_err())
        }
        Code::ContextPoisoned => cuda(719),
        Code::IllegalAddress => cuda(700),
        Code::MisalignedAddress => cuda(716),
        Code::IllegalInstruction => cuda(715),
        Code::DeviceAssert => cuda(710),
        Code::EccUncorrectable => cuda(214),
        Code::HardwareError => cuda(714),
        Code::UnknownStatus => cuda(123_456),
        Code::QueueBusy => (Real, crowded()),
        Code::DeviceLost => (Planted, planted_error(On::Launch, Fault::Lose)),
        Code::KernelFailed => (Real, crooked()),
        Code::ResultWrong => (Planted, lying()),
        Code::ProfileNotFound => (Real, file::load("no/such.toml").unwrap_err()),
        Code::ProfileParse => (Real, Profile::from_toml(&signed().replacen('=', "", 1)).unwrap_err()),
        Code::ProfileTruncated => (Real, Profile::from_toml("schema = 1\n").unwrap_err()),
        Code::ProfileDigest => (Real, Profile::from_toml(&signed().replace("mine", "minx")).unwrap_err()),
        Code::ProfileSchema => (Real, Profile::from_toml(&signed().replace("schema = 2", "schema = 3")).unwrap_err()),
        Code::NumberRange => {
            let most = num::Array::new(&[1], vec![Small(i8::MAX)]).unwrap();
            (Real, num::add(&most, &most).unwrap_err())
        }
        Code::ArrayFile => {
            let dir = tempfile::tempdir().unwrap();
            let path = dir.path().join("x.npy");
            std::fs::write(&path, "no array").unwrap();
            (Real, npy::read(&path).unwrap_err())
        }
        Code::Io => (Real, npy::write(&[(Path::new("no/such/folder/x.npy"), &f32s())]).unwrap_err()),
        Code::Cancelled => (Real, interrupted()),
        Code::WorkerCrashed => (Real, crashed()),
        Code::Internal => (Real, cpu().queue().unwrap().span(Mark(7), Mark(8)).unwrap_err()),
    }
}

/// The match above is complete, so that a new code does not compile without a way to raise it.
#[test]
fn every_code_is_raised() {
    let mut counts = [0; 3];
    for code in Code::ALL {
        let (how, e) = raised(*code);
        assert_eq!(e.code(), *code, "{how:?}: {e}");
        let text = e.to_string();
        assert!(text.starts_with(code.name()) && text.contains("(next: ") && !text.contains('\n'), "{text}");
        counts[how as usize] += 1;
    }
    let [real, planted, status] = counts;
    println!(
        "{} codes: {real} raised by themselves, {planted} by planted faults, {status} by a status",
        Code::ALL.len()
    );
    assert!(Code::ALL.len() >= 40 && real >= 20, "{counts:?}");
}

/// Each code is made somewhere in the library: by name, or by a row of the tables of statuses.
#[test]
fn every_code_is_made_by_the_library() {
    let mut names = BTreeSet::new();
    let mut folders = vec![Path::new(env!("CARGO_MANIFEST_DIR")).join("src")];
    while let Some(folder) = folders.pop() {
        for path in std::fs::read_dir(folder).unwrap().map(|e| e.unwrap().path()) {
            if path.is_dir() {
                folders.push(path);
                continue;
            }
            if path.ends_with("base/error.rs") || path.extension().is_none_or(|e| e != "rs") {
                continue;
            }
            let text = std::fs::read_to_string(&path).unwrap();
            // Tests are at the end of a file, and do not count.
            let text = text.split("#[cfg(test)]\nmod tests").next().unwrap_or_default();
            for part in text.split("Code::").skip(1) {
                names.insert(part.chars().take_while(|c| c.is_alphanumeric()).collect::<String>());
            }
        }
    }
    for code in Code::ALL {
        assert!(names.contains(&format!("{code:?}")), "nothing makes {code:?}: take its row out");
    }
    assert!(!names.contains("NoSuchCode"));
}

/// What a caller can do with an attribute that is none.
#[test]
fn a_wrong_attribute_is_the_callers() {
    let engine = Engine::builder().env(Env::default()).profile("preset:always-cpu").build().unwrap();
    let attrs = Attrs::new().with("no_such", Attr::Int(1));
    let e = engine.run("relu", &[&zeros(DType::F32, &[3])], &attrs).unwrap_err();
    assert_eq!((e.code(), e.op_name()), (Code::BadArgument, Some("relu")), "{e}");
}
