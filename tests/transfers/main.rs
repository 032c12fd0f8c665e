//! Arrays on devices from outside: copies with checked lengths, views, ops in chains, rows, copies without waiting, copies
//! between devices, and a device that the program owns.

#![allow(clippy::print_stdout, reason = "a test tells what it skipped and saw")]

use std::future::Future;
use std::pin::pin;
use std::sync::{Arc, Barrier};
use std::task::{Context, Poll, Wake};
use std::time::Duration;

use gpuctl::base::rng::Philox;
use gpuctl::base::{Attr, Attrs, Backend, Code, Element, Env, HostTensor};
use gpuctl::device::cpu::Pin;
use gpuctl::device::faulty::{Fault, FaultPlan, Faulty, On, Rule, When};
use gpuctl::device::probe::{self, CpuConfig, Select};
use gpuctl::device::{Device, MemoryKind, sim};
use gpuctl::engine::{DeviceVec, Engine, EngineBuilder, Placement, Rows, Target, Transfers, Via, copies};
use gpuctl::kernel::Body;
use gpuctl::op::{self, OpDesc, Role, Tier};

#[cfg(feature = "wgpu")]
mod given;
mod sequences;

/// Ids of what is here; a missing one fails if `GPUCTL_REQUIRE` names it.
fn everywhere() -> Vec<String> {
    let mut all = vec!["cpu".to_string(), "sim:textbook".into()];
    let required = Env::read().unwrap().require;
    for backend in [Backend::Opencl, Backend::Wgpu, Backend::Cuda] {
        let config = CpuConfig { threads: 1, pin: Pin::Free };
        let seen = probe::inventory_of(&[backend], &Env::default(), config).unwrap();
        match seen.found.iter().find(|f| f.info.backend == backend) {
            Some(found) => all.push(found.info.id.clone()),
            None => {
                assert!(!required.iter().any(|b| b == backend.name()), "{:?}", seen.absent);
                println!("skipped: {backend}: {:?}", seen.absent);
            }
        }
    }
    all
}

fn plain() -> EngineBuilder {
    Engine::builder().env(Env::default()).profile("always-cpu").without_trials().threads(2)
}

/// An engine whose host calls run there as well, and the name of the device in it.
fn there(id: &str) -> Engine {
    let placement = if id == "cpu" { Placement::ForceCpu } else { Placement::ForceGpu(id.into()) };
    plain().placement(placement).no_fallback().build().unwrap()
}

fn numbers<T: Element>(n: usize, make: fn(u64) -> T) -> Vec<T> {
    (0..n as u64).map(make).collect()
}

#[test]
fn slices_go_and_come_back_in_every_type() {
    fn both<T: Element + PartialEq + std::fmt::Debug>(engine: &Engine, id: &str, make: fn(u64) -> T) {
        let target = engine.on(id).unwrap();
        for n in [0, 1, 2, 3, 5, 255, 4097] {
            let data = numbers(n, make);
            let array = target.upload(&data).unwrap();
            assert_eq!((array.len(), array.dtype(), array.device_id()), (n, T::DTYPE, target.info().id.as_str()));
            let mut out = numbers(n, |_| T::zeroed());
            array.download(&mut out).unwrap();
            assert_eq!(out, data, "{id} {} {n}", T::DTYPE);
            let fewer = array.download(&mut out[..n.saturating_sub(1)]);
            if n > 0 {
                let e = fewer.unwrap_err();
                let told = e.to_string();
                assert!(
                    e.code() == Code::ShapeMismatch
                        && told.contains(&format!("has {n} elements"))
                        && told.contains(&format!("slice {}", n - 1)),
                    "both lengths: {told}"
                );
            }
        }
    }
    for id in everywhere() {
        let engine = there(&id);
        both::<f32>(&engine, &id, |i| i as f32 * 0.5);
        both::<i32>(&engine, &id, |i| i as i32 - 7);
        both::<u8>(&engine, &id, |i| (i * 37) as u8);
        both::<f64>(&engine, &id, |i| i as f64 * 0.25);
        both::<u16>(&engine, &id, |i| i as u16);
        both::<i64>(&engine, &id, |i| -(i as i64) << 33);
    }
}

/// What measures copies has no form with arrays.
fn computes(op: &OpDesc) -> bool {
    !op.kernels.iter().any(|k| matches!(k.body, Body::Action(_)))
}

/// Ops on arrays give the bits of the same ops on host memory: every op and dtype on the CPU and the simulator; where a compiler
/// takes its time every third op and those that work in place, or all with `GPUCTL_TEST_ALL`.
#[test]
fn ops_on_arrays_are_those_on_the_host_bit_for_bit() {
    let every = std::env::var_os("GPUCTL_TEST_ALL").is_some();
    for id in everywhere() {
        let (engine, slow) = (there(&id), !every && (id != "cpu" && !id.starts_with("sim")));
        let target = engine.on(&id).unwrap();
        let (mut calls, mut ops, mut in_place) = (0, 0, 0);
        for (number, op) in op::all().filter(|op| computes(op)).enumerate() {
            let changes = op.operands.iter().any(|o| o.role == Role::InOut);
            if slow && number % 3 != 0 && !changes {
                continue;
            }
            let mut seen = false;
            for dtype in &op.dtypes[..if slow { 1 } else { op.dtypes.len() }] {
                // One case of each is enough: all ways from the table to a launch are the same code.
                let Some(spec) = op.specs(Tier::Smoke, *dtype).into_iter().nth(1) else { continue };
                let case = op.case(*dtype, &spec.dims, spec.attrs, spec.fill).unwrap();
                let inputs = op::case::inputs(op, &case).unwrap();
                let given: Vec<&HostTensor> = inputs.iter().collect();
                let Ok(host) = engine.run(op.name, &given, &case.attrs) else { continue };
                if host.ran_on != target.info().id {
                    continue;
                }
                let arrays: Vec<_> = inputs.iter().map(|t| target.upload_tensor(t).unwrap()).collect();
                let results = target.run(op.name, &arrays.iter().collect::<Vec<_>>(), &case.attrs).unwrap();
                assert_eq!(results.len(), host.outputs.len());
                for (array, tensor) in results.iter().zip(&host.outputs) {
                    assert_eq!(array.to_tensor().unwrap().bytes(), tensor.bytes(), "{case} on {id}");
                    assert_eq!(array.shape(), tensor.shape, "{case} on {id}");
                }
                for (array, tensor) in arrays.iter().zip(&inputs) {
                    assert_eq!(array.to_tensor().unwrap().bytes(), tensor.bytes(), "operands stay: {case} on {id}");
                }
                (calls, seen) = (calls + 1, true);
            }
            ops += u32::from(seen);
            in_place += u32::from(seen && changes);
        }
        println!("{id}: {calls} calls of {ops} ops, {in_place} of them in place");
        assert!(ops >= if slow { 15 } else { 50 } && in_place >= 3, "{id}: {calls} calls of {ops} ops, {in_place}");
    }
    let engine = there("cpu");
    let target = engine.on("cpu").unwrap();
    let x = target.upload(&[1i32; 16]).unwrap();
    assert_eq!(target.run("h2d", &[&x], &Attrs::new()).unwrap_err().code(), Code::OpUnsupported);
}

/// Nothing crosses to the host between ops, and what is copied on the device without a wish is counted.
#[test]
fn a_chain_of_ops_copies_nothing_in_between() {
    for id in everywhere() {
        let engine = there(&id);
        let target = engine.on(&id).unwrap();
        let x = target.upload(&numbers(1000, |i| i as f32)).unwrap();
        let mut y = target.run("neg", &[&x], &Attrs::new()).unwrap().remove(0);
        for _ in 0..10 {
            y = target.run("add", &[&y, &x], &Attrs::new()).unwrap().remove(0);
        }
        let twice = target.run("add", &[&y, &y], &Attrs::new()).unwrap().remove(0).typed::<f32>().unwrap();
        assert_eq!(twice.to_vec().unwrap(), numbers(1000, |i| i as f32 * 18.0), "{id}");
        let one =
            Transfers { uploads: 1, upload_bytes: 4000, downloads: 1, download_bytes: 4000, ..Default::default() };
        assert_eq!(engine.transfers(), one, "{id}");
        // A view that begins where no device lets an operand begin.
        let odd = x.view(3..1000).unwrap();
        let neg = target.run("neg", &[&odd], &Attrs::new()).unwrap().remove(0).typed::<f32>().unwrap();
        assert_eq!(neg.to_vec().unwrap(), numbers(997, |i| -(i as f32 + 3.0)), "{id}");
        let t = engine.transfers();
        assert_eq!((t.copies, t.copy_bytes, t.implicit, t.uploads), (1, 997 * 4, 1, 1), "{id}: {t:?}");
        // gemm's C is changed in place by the kernel, so it is copied; a C that is left out is not.
        let a = target.upload(&[1.0f32, 2.0, 3.0, 4.0]).unwrap().reshape(&[2, 2]).unwrap();
        let beta = Attrs::new().with("beta", Attr::Float(1.0));
        let with = target.run("gemm", &[&a, &a, &a], &beta).unwrap().remove(0).typed::<f32>().unwrap();
        assert_eq!(with.to_vec().unwrap(), [8.0, 12.0, 18.0, 26.0], "{id}");
        let without = target.run("gemm", &[&a, &a], &Attrs::new()).unwrap().remove(0).typed::<f32>().unwrap();
        assert_eq!(without.to_vec().unwrap(), [7.0, 10.0, 15.0, 22.0], "{id}");
        assert_eq!(a.to_vec().unwrap(), [1.0, 2.0, 3.0, 4.0], "{id}: an operand stays");
        assert_eq!(engine.transfers().implicit, 2, "{id}");
    }
}

/// A view keeps the memory, the device and its threads, after everything else has gone; then all is given back.
#[test]
fn views_keep_what_they_look_at() {
    for id in everywhere() {
        let engine = there(&id);
        let target = engine.on(&id).unwrap();
        let mut x = target.upload(&numbers(4096, |i| i as f32)).unwrap();
        let middle = x.view(1000..1010).unwrap();
        let inner = middle.view(5..10).unwrap();
        x.overwrite(&numbers(4096, |i| -(i as f32))).unwrap();
        assert_eq!(inner.to_vec().unwrap(), [-1005.0, -1006.0, -1007.0, -1008.0, -1009.0], "{id}: the same memory");
        let square = inner.reshape(&[5, 1]).unwrap();
        assert_eq!(x.reshape(&[5, 1]).unwrap_err().code(), Code::ShapeMismatch);
        assert_eq!(inner.view(3..6).unwrap_err().code(), Code::BadArgument);
        let backwards = std::ops::Range { start: 3, end: 2 };
        assert_eq!(inner.view(backwards).unwrap_err().code(), Code::BadArgument);
        let full = x.view(4096..4096).unwrap();
        assert!(full.is_empty() && full.to_vec().unwrap().is_empty());
        drop((x, middle, inner, full));
        drop(engine);
        assert_eq!(square.to_vec().unwrap(), [-1005.0, -1006.0, -1007.0, -1008.0, -1009.0], "{id}");
        let erased = gpuctl::engine::Resident::from(square);
        assert_eq!(erased.clone().typed::<i32>().unwrap_err().code(), Code::DTypeMismatch);
        assert_eq!(erased.typed::<f32>().unwrap().shape(), [5, 1]);
    }
}

#[test]
fn arrays_of_other_devices_and_wrong_calls_are_typed_errors() {
    let (one, two) = (there("cpu"), there("cpu"));
    let (here, other) = (one.on("cpu").unwrap(), two.on("cpu").unwrap());
    let (x, mut far) = (here.upload(&[1.0f32; 4]).unwrap(), other.upload(&[1.0f32; 4]).unwrap());
    let code = |r: gpuctl::base::Result<Vec<gpuctl::engine::Resident>>| r.unwrap_err().code();
    assert_eq!(code(here.run("add", &[&x, &far], &Attrs::new())), Code::BufferForeign);
    assert_eq!(far.copy_from(&x).unwrap_err().code(), Code::BufferForeign);
    let short = here.upload(&[1.0f32; 3]).unwrap();
    let e = here.run("add", &[&x, &short], &Attrs::new()).unwrap_err();
    assert!(e.code() == Code::ShapeMismatch && e.op_name() == Some("add"), "{e}");
    let ints = here.upload(&[1i32; 4]).unwrap();
    assert_eq!(code(here.run("add", &[&x, &ints], &Attrs::new())), Code::DTypeMismatch);
    assert_eq!(code(here.run("add", &[&x], &Attrs::new())), Code::ShapeMismatch);
    assert_eq!(code(here.run("nothing", &[&x], &Attrs::new())), Code::UnknownOp);
    assert_eq!(one.on("opencl:99").unwrap_err().code(), Code::DeviceMissing);
    let off = plain().env(Env { disable_gpu: true, ..Env::default() }).build().unwrap();
    assert_eq!(off.on("opencl:0").unwrap_err().code(), Code::DeviceDisabled);
    // None of these has hurt the arrays.
    let sum = here.run("add", &[&x, &x], &Attrs::new()).unwrap().remove(0).typed::<f32>().unwrap();
    assert_eq!(sum.to_vec().unwrap(), [2.0; 4]);
}

/// Copies through memory of that kind, and whether ops take it.
fn through(target: &Target<'_>, mut array: DeviceVec<f32>, kind: MemoryKind) {
    let mut x = target.upload(&numbers(6, |i| i as f32)).unwrap();
    array.copy_from(&x.reshape(&[2, 3]).unwrap()).unwrap();
    assert_eq!((array.to_vec().unwrap(), array.kind()), (numbers(6, |i| i as f32), kind));
    match target.run("neg", &[&array], &Attrs::new()) {
        Ok(y) => {
            assert_ne!(kind, MemoryKind::Pinned);
            let y = y[0].clone().typed::<f32>().unwrap();
            assert_eq!(y.to_vec().unwrap(), numbers(6, |i| -(i as f32)), "{kind:?}");
        }
        Err(e) => {
            assert_eq!((e.code(), kind), (Code::BadArgument, MemoryKind::Pinned), "{e}");
            assert!(e.detail().contains("copy_from"), "{e}");
        }
    }
    array.overwrite(&[7.0; 6]).unwrap();
    x.copy_from(&array).unwrap();
    assert_eq!(x.to_vec().unwrap(), [7.0; 6]);
}

#[test]
fn page_locked_memory_is_for_copies() {
    let mut spec = sim::spec("textbook").unwrap();
    spec.device.link_pinned = Some(4e11);
    let (_, device) = sim::open_spec(spec, sim::Compute::Real).unwrap();
    let id = device.info().id.clone();
    let engine = plain().device(Arc::clone(&device)).build().unwrap();
    let target = engine.on(&id).unwrap();
    let array = target.zeros::<f32>(&[2, 3], MemoryKind::Pinned).unwrap();
    assert!(device.ledger().state().pinned > 0);
    through(&target, array, MemoryKind::Pinned);
    assert_eq!(device.ledger().state().pinned, 0, "given back");
}

/// Kinds of memory that an API does not have are refused with its reason, and `devices` lists those that it has; page-locked
/// memory is for copies, not for ops.
#[test]
fn kinds_of_memory() {
    for id in everywhere() {
        let engine = there(&id);
        let target = engine.on(&id).unwrap();
        for kind in [MemoryKind::Pinned, MemoryKind::Mapped, MemoryKind::Managed] {
            let listed = target.info().facts.memory_kinds.contains(&format!("{kind:?}").to_lowercase());
            // Page-locked memory is OpenCL's own affair; shared memory came with 2.0.
            let may = kind == MemoryKind::Managed || listed == (kind == MemoryKind::Mapped);
            assert!(!id.starts_with("opencl") || may, "{id}: {kind:?}");
            match target.zeros::<f32>(&[2, 3], kind) {
                Err(e) => {
                    assert!(!listed, "{id} lists {kind:?}: {e}");
                    assert_eq!(e.code(), Code::FeatureUnsupported, "{id}: {e}");
                    assert!(e.detail().contains(&format!("{kind:?}")) && e.detail().contains(": "), "a reason: {e}");
                }
                Ok(array) => {
                    assert!(listed, "{id}: {kind:?} that nobody knew of");
                    through(&target, array, kind);
                }
            }
        }
        let zeros = target.zeros::<f32>(&[2, 3], MemoryKind::Device).unwrap();
        assert_eq!((zeros.shape(), zeros.to_vec().unwrap()), ([2u64, 3].as_slice(), vec![0.0; 6]));
    }
}

/// Random blocks of rows, each way, against plain loops; what lies beside the rows stays as it is.
#[test]
fn rows_are_copied_as_plain_loops_do() {
    fn against<T: Element + PartialEq + std::fmt::Debug>(engine: &Engine, id: &str, seed: u64, make: fn(u64) -> T) {
        let target = engine.on(id).unwrap();
        let rng = Philox::new(seed);
        let (n, m) = (600usize, 500usize);
        let (mut device, mut host) = (numbers(n, make), numbers(m, |_| T::zeroed()));
        let mut array = target.upload(&device).unwrap();
        let mut some = 0;
        for step in 0..60 {
            let draw = |i: u64, below: usize| (rng.u64(step, i) % below as u64) as usize;
            let (rows, columns) = (draw(0, 9), draw(1, 40));
            let there = Rows { first: draw(2, 40), pitch: columns + draw(3, 30) * draw(4, 2) };
            let here = Rows { first: draw(5, 40), pitch: columns + draw(6, 20) * draw(7, 2) };
            let at = |r: Rows, row: usize| r.first + row * r.pitch..r.first + row * r.pitch + columns;
            let fits = rows == 0 || columns == 0 || (at(there, rows - 1).end <= n && at(here, rows - 1).end <= m);
            let done = match draw(8, 3) {
                0 => {
                    let fresh = numbers(m, |i| i).iter().map(|i| make(i * 3 + step)).collect::<Vec<_>>();
                    let done = array.upload_rows(there, &fresh, here, rows, columns);
                    for row in (0..rows).filter(|_| fits) {
                        device[at(there, row)].copy_from_slice(&fresh[at(here, row)]);
                    }
                    done
                }
                1 => {
                    let done = array.download_rows(there, &mut host, here, rows, columns);
                    for row in (0..rows).filter(|_| fits && columns > 0) {
                        assert_eq!(host[at(here, row)], device[at(there, row)], "{id} step {step}");
                    }
                    // Beside them everything is as it was.
                    let inside = |i: usize| fits && (0..rows).any(|row| at(here, row).contains(&i));
                    assert!((0..m).all(|i| inside(i) || host[i] == T::zeroed()), "{id} step {step}");
                    host.fill(T::zeroed());
                    done
                }
                _ => {
                    let other =
                        target.upload(&numbers(m, |i| i).iter().map(|i| make(i * 5 + step)).collect::<Vec<_>>());
                    let other = other.unwrap();
                    let plain = other.to_vec().unwrap();
                    let done = array.copy_rows(there, &other, here, rows, columns);
                    for row in (0..rows).filter(|_| fits) {
                        device[at(there, row)].copy_from_slice(&plain[at(here, row)]);
                    }
                    done
                }
            };
            match done {
                Ok(()) => assert!(fits, "{id} step {step}: {rows} x {columns} at {there:?} and {here:?}"),
                Err(e) => {
                    assert!(!fits, "{id} step {step}: {e}");
                    assert!(matches!(e.code(), Code::BadArgument | Code::ShapeMismatch), "{id} step {step}: {e}");
                }
            }
            some += u32::from(fits && rows > 1 && columns > 0);
            assert_eq!(array.to_vec().unwrap(), device, "{id} {} step {step}", T::DTYPE);
        }
        assert!(some > 15, "{id}: {some} of the blocks say something");
        let rows = Rows { first: 0, pitch: 3 };
        assert_eq!(array.upload_rows(rows, &host, rows, 2, 4).unwrap_err().code(), Code::BadArgument, "rows overlap");
        let wide = Rows { first: 1, pitch: usize::MAX };
        assert_eq!(array.download_rows(wide, &mut host, rows, 3, 2).unwrap_err().code(), Code::SizeOverflow);
        let view = array.clone();
        assert_eq!(array.copy_rows(rows, &view, rows, 1, 2).unwrap_err().code(), Code::BadArgument, "the same memory");
    }
    for id in everywhere() {
        let engine = there(&id);
        for seed in 0..2 {
            against::<f32>(&engine, &id, seed, |i| i as f32 + 1.0);
        }
        against::<u8>(&engine, &id, 2, |i| (i % 251) as u8 + 1);
        against::<u16>(&engine, &id, 3, |i| i as u16 + 1);
        against::<f64>(&engine, &id, 4, |i| i as f64 + 1.0);
    }
}

struct Quiet;

impl Wake for Quiet {
    fn wake(self: Arc<Self>) {}
}

/// What is copied without waiting comes back whole, by waiting and by awaiting, and so do the host's data after a failure.
#[test]
fn copies_without_waiting_give_the_data_back() {
    for id in everywhere() {
        let engine = there(&id);
        let target = engine.on(&id).unwrap();
        let all: Vec<Vec<f32>> = (0..12).map(|k| (0..2000 + k).map(|i| (i * k) as f32).collect()).collect();
        let going: Vec<_> = all.iter().map(|data| target.upload_async(data.clone()).unwrap()).collect();
        for (copying, want) in going.into_iter().zip(&all) {
            let (data, array) = copying.wait();
            assert_eq!(data, *want);
            let array = array.unwrap();
            let mut back = array.download_async(vec![0.0; want.len()]);
            assert!(back.wait_for(Duration::from_secs(60)) && back.is_done());
            let waker = Arc::new(Quiet).into();
            let polled = pin!(&mut back).poll(&mut Context::from_waker(&waker));
            let Poll::Ready((out, same)) = polled else { panic!("it was done") };
            assert_eq!(out, *want, "{id}");
            assert_eq!(same.unwrap().len(), want.len());
            let Poll::Ready((_, again)) = pin!(&mut back).poll(&mut Context::from_waker(&waker)) else { panic!() };
            assert_eq!(again.unwrap_err().code(), Code::BadArgument, "taken before");
            let (short, refused) = array.download_async(vec![5.0; 3]).wait();
            assert_eq!((short, refused.unwrap_err().code()), (vec![5.0; 3], Code::ShapeMismatch));
        }
        // One that nobody waits for, whose engine goes.
        drop(target.upload_async(vec![1.0f32; 100_000]).unwrap());
        let left = target.upload_async(vec![1.0f32; 100_000]).unwrap();
        drop(engine);
        assert_eq!(left.wait().1.unwrap().to_vec().unwrap(), vec![1.0; 100_000]);
    }
}

#[test]
fn borrowed_copies_have_ended_when_their_scope_has() {
    for id in everywhere() {
        let engine = there(&id);
        let target = engine.on(&id).unwrap();
        let (mut x, y) = (target.upload(&[0.0f32; 5000]).unwrap(), target.upload(&[4.0f32; 5000]).unwrap());
        let (data, mut out, mut short) = (numbers(5000, |i| i as f32), vec![0.0f32; 5000], [0.0f32; 3]);
        let seven = copies(|c| {
            c.upload(&mut x, &data);
            c.download(&y, &mut out);
            7
        });
        assert_eq!((seven.unwrap(), &out), (7, &vec![4.0; 5000]), "{id}");
        assert_eq!(x.to_vec().unwrap(), data);
        let e = copies(|c| c.download(&y, &mut short)).unwrap_err();
        assert_eq!(e.code(), Code::ShapeMismatch);
    }
}

/// Data that come back from a failed copy are whole, the error is typed, and the array's memory is not lent again.
#[test]
fn a_failed_copy_is_a_typed_error() {
    for (on, fault, code) in [
        (On::Write, Fault::Fail(Code::TransferFailed), Code::TransferFailed),
        (On::Wait, Fault::Hang, Code::LaunchTimeout),
        (On::Write, Fault::Lose, Code::DeviceLost),
    ] {
        let (_, inner) = sim::open("textbook").unwrap();
        let plan = FaultPlan { text: "planted".into(), rules: vec![Rule { on, when: When::Nth(2), fault }] };
        let device: Arc<dyn Device> = Arc::new(Faulty::new(inner, plan));
        let id = device.info().id.clone();
        let engine = plain().device(Arc::clone(&device)).deadline(Duration::from_secs(1)).build().unwrap();
        let target = engine.on(&id).unwrap();
        let good = target.upload(&[1.0f32; 8]).unwrap();
        let (data, copied) = target.upload_async(vec![2.0f32; 8]).unwrap().wait();
        assert_eq!((data, copied.unwrap_err().code()), (vec![2.0; 8], code));
        if fault == Fault::Fail(Code::TransferFailed) {
            assert_eq!(good.to_vec().unwrap(), [1.0; 8], "the next call is another one");
            assert_eq!(target.upload(&[3.0f32; 8]).unwrap().to_vec().unwrap(), [3.0; 8]);
        } else {
            assert_ne!(good.to_vec().err().map(|e| e.code()), Some(Code::Internal));
        }
    }
}

/// An array that is overwritten while others compute with it is the one or the other, never a mixture.
#[test]
fn writers_and_readers_take_turns() {
    for id in everywhere() {
        let engine = there(&id);
        let target = engine.on(&id).unwrap();
        let n = 20_000;
        let x = target.upload(&vec![1.0f32; n]).unwrap();
        target.run("neg", &[&x], &Attrs::new()).unwrap();
        let (begin, rounds) = (Barrier::new(3), 20);
        std::thread::scope(|s| {
            for (half, value) in [(0, 1.0f32), (1, 2.0)] {
                let (mut mine, begin, target) = (x.clone(), &begin, target.clone());
                s.spawn(move || {
                    begin.wait();
                    for round in 0..rounds {
                        mine.overwrite(&vec![value; n]).unwrap();
                        if (round + half) % 5 == 0 {
                            target.run("add", &[&mine, &mine], &Attrs::new()).unwrap();
                        }
                    }
                });
            }
            begin.wait();
            for _ in 0..rounds {
                let y = target.run("neg", &[&x], &Attrs::new()).unwrap().remove(0).typed::<f32>().unwrap();
                let y = y.to_vec().unwrap();
                assert!(y[0] == -1.0 || y[0] == -2.0);
                assert!(y.iter().all(|v| *v == y[0]), "{id}: half of one and half of the other");
            }
        });
    }
}

/// From device to device: within one, between contexts of the same one, between APIs. What came of it says which way it went.
#[test]
fn arrays_go_from_device_to_device() {
    let ids = everywhere();
    let (one, two) = (plain().devices(Select::All).build().unwrap(), plain().build().unwrap());
    let real: Vec<&String> = ids.iter().filter(|id| !id.starts_with("sim")).collect();
    for from in &real {
        for to in &real {
            // More than one piece, by one element and a half word.
            for n in [5usize, (8 << 20) + 3] {
                if n > 5 && (from.as_str() == "cpu") == (to.as_str() == "cpu") {
                    continue;
                }
                let data = numbers(n, |i| (i * 7) as u16);
                let x = one.on(from).unwrap().upload(&data).unwrap();
                for (engine, near) in [(&one, from == to), (&two, false)] {
                    let (y, via) = x.to(&engine.on(to).unwrap()).unwrap();
                    assert_eq!(via, if near { Via::Device } else { Via::Host }, "{from} -> {to}");
                    assert_eq!(y.device_id(), to.as_str());
                    assert!(y.to_vec().unwrap() == data, "{from} -> {to}, {n}");
                }
            }
            let x = one.on(from).unwrap().upload(&[1u8, 2, 3, 4, 5, 6, 7]).unwrap();
            let (y, _) = x.view(1..6).unwrap().to(&one.on(to).unwrap()).unwrap();
            assert_eq!(y.to_vec().unwrap(), [2, 3, 4, 5, 6], "{from} -> {to}: an odd view");
        }
    }
}

/// Two PoCL devices beside each other, in a process of their own: the variable is read when the driver is loaded.
#[test]
fn between_two_devices_of_one_driver() {
    if !everywhere().iter().any(|id| id == "opencl:0") {
        println!("skipped: between_two_devices_of_one_driver: no OpenCL device");
        return;
    }
    let out = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--ignored", "--exact", "child_with_two_devices", "--nocapture", "--test-threads=1"])
        .env("POCL_DEVICES", "pthread pthread")
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&out.stdout).into_owned();
    assert!(out.status.success(), "{text} {}", String::from_utf8_lossy(&out.stderr));
    assert!(text.contains("copied") || text.contains("not PoCL"), "{text}");
}

#[test]
#[ignore = "a child of between_two_devices_of_one_driver"]
fn child_with_two_devices() {
    let engine = plain().build().unwrap();
    let Ok(second) = engine.on("opencl:1") else {
        println!("not PoCL: there is one device");
        return;
    };
    let first = engine.on("opencl:0").unwrap();
    assert_ne!(first.info().uid, second.info().uid);
    let data = numbers(70_000, |i| i as f32);
    let x = first.upload(&data).unwrap();
    assert_eq!(second.run("neg", &[&x], &Attrs::new()).unwrap_err().code(), Code::BufferForeign);
    let (y, via) = x.to(&second).unwrap();
    let z = second.run("neg", &[&y], &Attrs::new()).unwrap().remove(0).typed::<f32>().unwrap();
    assert_eq!(z.to_vec().unwrap(), data.iter().map(|v| -v).collect::<Vec<_>>());
    assert_eq!((via, engine.transfers().downloads, engine.transfers().uploads), (Via::Host, 2, 2));
    println!("copied {via:?}");
}

/// Every array that was made is given back, in every kind of call, also those that failed.
#[test]
fn nothing_is_left_in_the_ledger() {
    for id in everywhere().into_iter().filter(|id| id != "cpu") {
        let config = CpuConfig { threads: 1, pin: Pin::Free };
        let rig = probe::open(&Select::Named(vec![id.clone()]), &Env::default(), config).unwrap();
        let device = Arc::clone(&rig.devices[0]);
        let engine = plain().device(Arc::clone(&device)).without_pool().build().unwrap();
        let before = device.ledger().state();
        {
            let target = engine.on(&device.info().id).unwrap();
            let x = target.upload(&numbers(1000, |i| i as f32)).unwrap();
            let odd = x.view(1..1000).unwrap();
            let y = target.run("neg", &[&odd], &Attrs::new()).unwrap();
            let far = target.upload(&[1.0f32; 3]).unwrap();
            target.run("add", &[&x, &far], &Attrs::new()).unwrap_err();
            target.upload_async(vec![1.0f32; 10]).unwrap().wait().1.unwrap();
            y[0].to(&target).unwrap();
            assert!(device.ledger().state().buffers > before.buffers);
        }
        let after = device.ledger().state();
        assert_eq!((after.buffers, after.bytes), (before.buffers, before.bytes), "{id}");
    }
}
