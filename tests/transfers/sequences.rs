//! Calls that are recorded once and replayed, against the same calls made one by one.

use gpuctl::base::{Attr, Attrs, Code};
use gpuctl::device::MemoryKind;
use gpuctl::device::faulty::{Fault, FaultPlan, Faulty, On, Rule, When};
use gpuctl::device::sim;
use gpuctl::engine::{Resident, Target};
use std::sync::Arc;

use crate::{everywhere, numbers, plain, there};

/// Three ops that feed each other; the last result.
fn by_hand(target: &Target<'_>, x: &Resident, w: &Resident) -> Vec<f32> {
    let a = target.run("gemm", &[x, w], &Attrs::new()).unwrap().remove(0);
    let b = target.run("relu", &[&a], &Attrs::new()).unwrap().remove(0);
    let c = target.run("add", &[&b, &a], &Attrs::new()).unwrap().remove(0);
    c.typed::<f32>().unwrap().to_vec().unwrap()
}

#[test]
fn a_replay_computes_what_calls_compute() {
    for id in everywhere() {
        let engine = there(&id);
        let target = engine.on(&id).unwrap();
        let mut x = target.upload(&numbers(12 * 7, |i| (i % 11) as f32 - 5.0)).unwrap();
        let w = target.upload(&numbers(7 * 5, |i| (i % 5) as f32 - 2.0)).unwrap().reshape(&[7, 5]).unwrap();
        let left = x.reshape(&[12, 7]).unwrap();
        let mut recording = target.record();
        let a = recording.run("gemm", &[&left, &w], &Attrs::new()).unwrap().remove(0);
        let b = recording.run("relu", &[&a], &Attrs::new()).unwrap().remove(0);
        let c = recording.run("add", &[&b, &a], &Attrs::new()).unwrap().remove(0).typed::<f32>().unwrap();
        let sequence = recording.end().unwrap();
        assert_eq!((sequence.len(), sequence.is_empty()), (3, false));
        assert_eq!(c.to_vec().unwrap(), [0.0; 60], "{id}: nothing was computed yet");
        // Graphs are CUDA's; whoever has none says why.
        assert_eq!(sequence.one_by_one().is_some(), !id.starts_with("cuda"), "{id}: {sequence:?}");
        for round in 0..3u64 {
            let data = numbers(12 * 7, |i| (i % 13) as f32 - 6.0).iter().map(|v| v + round as f32).collect::<Vec<_>>();
            x.overwrite(&data).unwrap();
            sequence.replay().unwrap();
            sequence.replay().unwrap();
            assert_eq!(c.to_vec().unwrap(), by_hand(&target, &left, &w), "{id}, round {round}");
        }
        // It keeps what it needs.
        drop((x, w, left, a, b));
        sequence.replay().unwrap();
        let kept = c.to_vec().unwrap();
        drop((sequence, engine));
        assert_eq!(c.to_vec().unwrap(), kept, "{id}");
    }
}

/// All memory comes back when sequence and arrays have gone.
#[test]
fn sequences_leave_nothing() {
    let (_, device) = sim::open("textbook").unwrap();
    let id = device.info().id.clone();
    let engine = plain().device(Arc::clone(&device)).without_pool().build().unwrap();
    let target = engine.on(&id).unwrap();
    let x = target.upload(&[1.0f32; 100]).unwrap();
    let before = device.ledger().state();
    for _ in 0..10 {
        let mut recording = target.record();
        let y = recording.run("softmax", &[&x.reshape(&[10, 10]).unwrap()], &Attrs::new()).unwrap().remove(0);
        let sequence = recording.end().unwrap();
        sequence.replay().unwrap();
        assert_eq!(y.typed::<f32>().unwrap().to_vec().unwrap(), [0.1; 100]);
        drop(target.record());
    }
    let after = device.ledger().state();
    assert_eq!((after.buffers, after.bytes, after.events), (before.buffers, before.bytes, before.events));
}

#[test]
fn what_cannot_be_replayed_is_refused() {
    let (engine, other) = (there("cpu"), there("cpu"));
    let target = engine.on("cpu").unwrap();
    let x = target.upload(&[1.0f32; 4]).unwrap().reshape(&[2, 2]).unwrap();
    let far = other.on("cpu").unwrap().upload(&[1.0f32; 4]).unwrap().reshape(&[2, 2]).unwrap();
    let mut r = target.record();
    let code = |r: gpuctl::base::Result<Vec<Resident>>| r.unwrap_err().code();
    let beta = Attrs::new().with("beta", Attr::Float(1.0));
    assert_eq!(code(r.run("gemm", &[&x, &x, &x], &beta)), Code::OpUnsupported, "it would add to its own result");
    let flat = x.reshape(&[4]).unwrap();
    assert_eq!(code(r.run("accumulate", &[&flat, &flat], &Attrs::new())), Code::OpUnsupported);
    assert_eq!(code(r.run("add", &[&x, &far], &Attrs::new())), Code::BufferForeign);
    assert_eq!(code(r.run("add", &[&x], &Attrs::new())), Code::ShapeMismatch);
    assert_eq!(code(r.run("nothing", &[&x], &Attrs::new())), Code::UnknownOp);
    let ints = target.upload(&[1i32; 4]).unwrap();
    assert_eq!(code(r.run("h2d", &[&ints], &Attrs::new())), Code::OpUnsupported, "no arrays come of it");
    let odd = target.upload(&[1.0f32; 9]).unwrap().view(3..9).unwrap();
    assert_eq!(code(r.run("relu", &[&odd], &Attrs::new())), Code::BadArgument);
    assert_eq!(r.end().unwrap_err().code(), Code::BadArgument, "no calls");
}

/// A loss in a replay is a typed error, and so is every replay after it.
#[test]
fn a_lost_device_replays_nothing() {
    let rule = Rule { on: On::Launch, when: When::Nth(4), fault: Fault::Lose };
    let plan = FaultPlan { text: "a test".into(), rules: vec![rule] };
    let device = Arc::new(Faulty::new(sim::open("textbook").unwrap().1, plan));
    let engine = plain().device(device).build().unwrap();
    let target = engine.on("sim:textbook").unwrap();
    let x = target.upload(&[-1.0f32; 8]).unwrap();
    let mut recording = target.record();
    let y = recording.run("neg", &[&x], &Attrs::new()).unwrap().remove(0);
    recording.run("relu", &[&y], &Attrs::new()).unwrap();
    let sequence = recording.end().unwrap();
    sequence.replay().unwrap();
    assert_eq!(sequence.replay().unwrap_err().code(), Code::DeviceLost);
    assert_eq!(sequence.replay().unwrap_err().code(), Code::DeviceLost);
}

/// Managed memory holds what was written from either side, wherever it is sent, and is counted until the last use of it has ended.
#[test]
fn memory_that_moves_holds_what_was_written() {
    use gpuctl::device::{Advice, Place};
    const N: usize = 300_001;
    for id in everywhere() {
        let engine = there(&id);
        let target = engine.on(&id).unwrap();
        let listed = target.info().facts.memory_kinds.iter().any(|k| k == "managed");
        let Some(before) = target.managed() else {
            assert!(!listed, "{id}");
            continue;
        };
        assert!(listed && before.bytes == 0 && before.limit > 0 && !before.oversubscribed, "{id}: {before:?}");
        let mut x = target.zeros::<f32>(&[N as u64], MemoryKind::Managed).unwrap();
        assert!((4 * N as u64..4 * N as u64 + 256).contains(&target.managed().unwrap().bytes), "{id}");
        let mut last = None;
        for (round, to) in [Place::Device, Place::Host, Place::Device].into_iter().enumerate() {
            let data = numbers(N, |i| i as f32);
            let data: Vec<f32> = data.iter().map(|v| v + round as f32).collect();
            x.overwrite(&data).unwrap();
            x.prefetch(to).unwrap();
            assert_eq!(x.location().unwrap(), Some(to), "{id}");
            let y = target.run("neg", &[&x], &Attrs::new()).unwrap().remove(0).typed::<f32>().unwrap();
            assert!(y.to_vec().unwrap().iter().zip(&data).all(|(y, x)| *y == -x), "{id} {to:?}");
            assert!(x.to_vec().unwrap() == data, "{id} {to:?}");
            // A part of it: an operand that begins inside.
            let part = x.view(1024..2048).unwrap();
            let y = target.run("neg", &[&part], &Attrs::new()).unwrap().remove(0).typed::<f32>().unwrap();
            assert_eq!(y.to_vec().unwrap()[7], -data[1031], "{id}");
            last = Some(target.run("neg", &[&x], &Attrs::new()).unwrap());
        }
        match x.advise(Advice::ReadMostly(true)) {
            Ok(()) => assert!(id.starts_with("cuda"), "{id}"),
            Err(e) => assert!(e.code() == Code::FeatureUnsupported && e.detail().contains("advice"), "{id}: {e}"),
        }
        let plain = target.zeros::<f32>(&[4], MemoryKind::Device).unwrap();
        for e in [plain.prefetch(Place::Host).unwrap_err(), plain.location().unwrap_err()] {
            assert!(e.code() == Code::FeatureUnsupported && e.detail().contains("managed"), "{id}: {e}");
        }
        drop(x);
        assert_eq!(last.unwrap()[0].clone().typed::<f32>().unwrap().to_vec().unwrap()[5], -7.0, "{id}");
        assert_eq!(target.managed().unwrap().bytes, 0, "{id}: given back");
        target.oversubscribe().unwrap();
        assert!(target.managed().unwrap().oversubscribed, "{id}");
    }
}

/// More managed memory than the device has is refused unless a program asks for it.
#[test]
fn managed_memory_ends_with_the_devices() {
    for id in everywhere() {
        let engine = there(&id);
        let target = engine.on(&id).unwrap();
        let Some(use_) = target.managed() else { continue };
        let e = target.zeros::<f32>(&[use_.limit / 4 + 64], MemoryKind::Managed).unwrap_err();
        assert_eq!((e.code(), target.managed().unwrap().bytes), (Code::AllocTooLarge, 0), "{id}: {e}");
    }
}

/// What only managed memory has is refused elsewhere, with the reason.
#[test]
fn memory_that_stays_is_not_moved() {
    use gpuctl::device::{Advice, Place};
    for id in everywhere() {
        let engine = there(&id);
        let target = engine.on(&id).unwrap();
        if target.managed().is_some() {
            continue;
        }
        let x = target.zeros::<f32>(&[4], MemoryKind::Device).unwrap();
        let refused = [
            x.prefetch(Place::Device).unwrap_err(),
            x.advise(Advice::ReadMostly(true)).unwrap_err(),
            x.location().unwrap_err(),
            target.oversubscribe().unwrap_err(),
        ];
        for e in refused {
            assert_eq!(e.code(), Code::FeatureUnsupported, "{id}: {e}");
            assert!(e.detail().contains("migrates"), "{e}");
        }
        assert_eq!(target.managed(), None, "{id}");
        assert_eq!(x.to_vec().unwrap(), [0.0; 4], "{id}: the queue goes on");
    }
}
