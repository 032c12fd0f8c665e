//! What gpuctl asks of a CUDA driver and in which order, and that it gives everything back: against a made-up driver
//! (`made_up.rs`) that keeps books and works in the host's memory. It says nothing about a real driver, and nothing about kernels.
//!
//! The driver's library is found by name, so the tests run in processes of their own that look for it in a folder of ours.
#![cfg(all(feature = "cuda", target_os = "linux"))]
#![allow(clippy::print_stderr, reason = "a process tells what failed")]

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, OnceLock};

use gpuctl::base::rng::Philox;
use gpuctl::base::{Code, Env, Lang};
use gpuctl::device::cpu::Pin;
use gpuctl::device::cuda::CudaDevice;
use gpuctl::device::cuda::cudarc::driver::CudaContext;
use gpuctl::device::probe::{self, CpuConfig, Select};
use gpuctl::device::{
    Advice, Block, Buffer, DEADLINE, Device, Launch, MemoryKind, Pitch, Place, Program, Slice, Source, traced,
};
use gpuctl::engine::{Engine, Via};
use gpuctl::kernel::Param;
use gpuctl::kernel::source::Text;

/// The made-up drivers, built once: one of today, and one without what older ones lack.
fn drivers() -> &'static Path {
    static ONCE: OnceLock<tempfile::TempDir> = OnceLock::new();
    let folder = ONCE.get_or_init(|| {
        let folder = tempfile::tempdir().unwrap();
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cuda_driver/made_up.rs");
        for (name, extra) in [("new", [].as_slice()), ("old", &["--cfg", "old"])] {
            let to = folder.path().join(name);
            std::fs::create_dir(&to).unwrap();
            let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
            let built = Command::new(rustc)
                .args(["--edition", "2024", "--crate-type", "cdylib", "--cap-lints", "allow"])
                .args(extra)
                .arg(&source)
                .arg("-o")
                .arg(to.join("libcuda.so.1"))
                .output()
                .unwrap();
            assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
        }
        folder
    });
    folder.path()
}

/// Runs one of the ignored tests below against a driver; the lines that the driver wrote.
fn against(driver: &str, test: &str) -> Vec<String> {
    let log: PathBuf = drivers().join(format!("{driver}-{test}.log"));
    let out = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", test, "--ignored", "--nocapture"])
        .env("LD_LIBRARY_PATH", drivers().join(driver))
        .env("MADE_UP_LOG", &log)
        .output()
        .unwrap();
    let told = String::from_utf8_lossy(&out.stderr);
    let ran = String::from_utf8_lossy(&out.stdout);
    assert!(out.status.success() && ran.contains("1 passed"), "{test} against the {driver} driver: {ran}\n{told}");
    std::fs::read_to_string(log).unwrap_or_default().lines().map(String::from).collect()
}

fn count(log: &[String], what: &str) -> usize {
    log.iter().filter(|l| l.as_str() == what).count()
}

/// Nothing was left when the last context went.
fn nothing_left(log: &[String]) {
    let last = log.iter().rfind(|l| l.starts_with("left:")).expect("the context was released");
    assert_eq!(last.trim(), "left: memory=0", "{log:?}");
}

fn device(id: &str) -> Arc<dyn Device> {
    let rig =
        probe::open(&Select::parse(id).unwrap(), &Env::default(), CpuConfig { threads: 1, pin: Pin::Free }).unwrap();
    Arc::clone(&rig.devices[0])
}

fn engine() -> Engine {
    Engine::builder().env(Env::default()).profile("always-cpu").without_trials().without_pool().build().unwrap()
}

/// A program of the made-up driver's one kernel: it adds 1 to each of n words. The image is an ELF file with nothing in it.
fn increment(d: &dyn Device) -> Program {
    let mut image = vec![0u8; 0x40 + 0x40 + 4];
    image[..6].copy_from_slice(b"\x7FELF\x02\x01");
    image[0x12] = 190;
    image[0x28] = 0x40;
    (image[0x3A], image[0x3C]) = (0x40, 1);
    (image[0x40 + 4], image[0x40 + 0x18], image[0x40 + 0x20]) = (1, 0x80, 4);
    let text = Text { lang: Lang::Cuda, text: String::new(), entry: "increment".into() };
    d.build(Source::Text(&text), Some(&image)).unwrap()
}

fn launch(program: &Program, y: &Buffer) -> Launch {
    Launch {
        program: program.clone(),
        group: [1; 3],
        groups: [1; 3],
        args: vec![Slice::whole(y)],
        writes: vec![true],
        params: vec![Param::U64(y.bytes() / 4)],
        cost: Default::default(),
    }
}

fn words(q: &mut dyn gpuctl::device::Queue, y: &Buffer) -> Vec<u32> {
    let mut out = vec![0u32; (y.bytes() / 4) as usize];
    q.read(y, 0, bytemuck::cast_slice_mut(&mut out)).unwrap();
    out
}

#[test]
fn device_memory_comes_from_the_drivers_pool() {
    let log = against("new", "memory");
    assert!(count(&log, "cuMemAllocFromPoolAsync") > 2 && count(&log, "cuMemAlloc") == 0, "{log:?}");
    assert_eq!(count(&log, "pool attribute 4 = 67108864"), 1, "the threshold of what it keeps: {log:?}");
    // One that does not fit has the pool give back what it keeps, and is tried once more.
    assert_eq!(count(&log, "cuMemPoolTrimTo"), 1, "{log:?}");
    nothing_left(&log);
    let log = against("old", "memory");
    assert!(count(&log, "cuMemAllocFromPoolAsync") == 0 && count(&log, "cuMemAlloc") > 2, "{log:?}");
    nothing_left(&log);
}

#[test]
#[ignore = "needs the made-up driver; run by the tests above"]
fn memory() {
    let d = device("cuda:0");
    let mut q = d.queue().unwrap();
    for round in 0..3u8 {
        let x = d.alloc(1000, MemoryKind::Device).unwrap();
        q.fill(&x, 0, 1000, round).unwrap();
        let mut out = [0xFF; 1000];
        q.read(&x, 0, &mut out).unwrap();
        assert_eq!(out, [round; 1000]);
    }
    let e =
        d.alloc(d.info().max_alloc_bytes, MemoryKind::Device).and_then(|_held| d.alloc(1 << 20, MemoryKind::Device));
    assert_eq!(e.map_err(|e| e.code()).err(), Some(Code::OutOfDeviceMemory));
    drop(q);
    assert_eq!(d.ledger().state().buffers, 0);
    assert_eq!(d.ledger().release_errors(), [""; 0]);
}

#[test]
fn mapped_memory_is_touched_without_the_driver() {
    let log = against("new", "mapped");
    assert_eq!(count(&log, "copy"), 2, "one copy on each side of it, none to or from the host's side: {log:?}");
    nothing_left(&log);
}

#[test]
#[ignore = "needs the made-up driver; run by the test above"]
fn mapped() {
    let d = device("cuda:0");
    assert!(d.info().facts.memory_kinds.contains(&"mapped".to_string()));
    let mut q = d.queue().unwrap();
    let (mapped, own) = (d.alloc(400, MemoryKind::Mapped).unwrap(), d.alloc(400, MemoryKind::Device).unwrap());
    assert_eq!((d.ledger().state().pinned, d.ledger().state().buffers), (1, 1));
    q.write(&mapped, 0, bytemuck::cast_slice(&[41u32; 100])).unwrap();
    // A kernel works on it where it lies.
    q.launch(&launch(&increment(&*d), &mapped)).unwrap();
    assert_eq!(words(q.as_mut(), &mapped), [42; 100]);
    q.copy(&mapped, 0, &own, 0, 400).unwrap();
    assert_eq!(words(q.as_mut(), &own), [42; 100]);
}

#[test]
fn rows_are_one_call_of_the_driver() {
    let log = against("new", "rows");
    assert!(count(&log, "cuMemcpy2DAsync") > 30, "{log:?}");
    nothing_left(&log);
    let log = against("old", "rows");
    assert_eq!(count(&log, "cuMemcpy2DAsync"), 0);
    nothing_left(&log);
}

/// Random blocks each way, against plain loops; what lies beside them stays as it is.
#[test]
#[ignore = "needs the made-up driver; run by the test above"]
fn rows() {
    let d = device("cuda:0");
    let mut q = d.queue().unwrap();
    let (a, b) = (d.alloc(4096, MemoryKind::Device).unwrap(), d.alloc(4096, MemoryKind::Pinned).unwrap());
    let rng = Philox::new(5);
    let (mut here, mut there) = (vec![1u8; 4096], vec![2u8; 4096]);
    q.write(&a, 0, &here).unwrap();
    q.write(&b, 0, &there).unwrap();
    for step in 0..60 {
        let draw = |i: u64, below: u64| rng.u64(step, i) % below;
        let block = Block { rows: draw(0, 9), row_bytes: 1 + draw(1, 60) };
        let place = |i: u64| Pitch { offset: draw(i, 500), pitch: block.row_bytes + draw(i + 1, 300) };
        let (from, to) = (place(2), place(4));
        let data: Vec<u8> = (0..4096).map(|i| (i as u64 * 31 + step) as u8).collect();
        let copy = |src: &[u8], from: Pitch, dst: &mut [u8], to: Pitch| {
            for r in 0..block.rows {
                let (f, t) = ((from.offset + r * from.pitch) as usize, (to.offset + r * to.pitch) as usize);
                let n = block.row_bytes as usize;
                dst[t..t + n].copy_from_slice(&src[f..f + n]);
            }
        };
        q.write_rows(&a, to, &data, from, block).unwrap();
        copy(&data, from, &mut here, to);
        q.copy_rows(&a, to, &b, from, block).unwrap();
        copy(&here, to, &mut there, from);
        let (mut out, mut want) = (vec![3u8; 4096], vec![3u8; 4096]);
        q.read_rows(&b, from, &mut out, to, block).unwrap();
        copy(&there, from, &mut want, to);
        assert_eq!(out, want, "step {step}: {block:?} {from:?} {to:?}");
        let mut all = vec![0u8; 4096];
        for (buffer, want) in [(&a, &here), (&b, &there)] {
            q.read(buffer, 0, &mut all).unwrap();
            assert_eq!(all, *want, "step {step}");
        }
    }
    let far = Pitch { offset: 4000, pitch: 100 };
    let block = Block { rows: 2, row_bytes: 50 };
    let e = q.write_rows(&a, far, &[0; 200], Pitch { offset: 0, pitch: 60 }, block).unwrap_err();
    assert_eq!(e.code(), Code::BufferBounds);
}

#[test]
fn a_sequence_is_a_graph() {
    let log = against("new", "sequences");
    assert_eq!((count(&log, "cuGraphLaunch"), count(&log, "cuLaunchKernel")), (8, 0), "{log:?}");
    nothing_left(&log);
    let log = against("old", "sequences");
    assert_eq!((count(&log, "cuGraphLaunch"), count(&log, "cuLaunchKernel")), (0, 8 * 5 + 2), "{log:?}");
    nothing_left(&log);
}

#[test]
#[ignore = "needs the made-up driver; run by the test above"]
fn sequences() {
    let inner = device("cuda:0");
    let tracer = gpuctl::device::tap::Tracer::new("test", 1000);
    // A traced device hands sequences on as they are.
    for d in [Arc::clone(&inner), traced::device(Arc::clone(&inner), &tracer)] {
        let y = d.alloc(64, MemoryKind::Device).unwrap();
        let program = increment(&*d);
        let mut q = d.queue().unwrap();
        q.fill(&y, 0, 64, 0).unwrap();
        let sequence = q.sequence(vec![launch(&program, &y); 5]).unwrap();
        assert_eq!(words(q.as_mut(), &y), [0; 16], "recorded, not done");
        for _ in 0..3 {
            q.replay(&sequence).unwrap();
        }
        // Another queue of the device may replay it, and it keeps what it needs.
        let mut other = d.queue().unwrap();
        drop(program);
        other.replay(&sequence).unwrap();
        other.finish(DEADLINE).unwrap();
        assert_eq!(words(q.as_mut(), &y), [20; 16]);
        drop((sequence, y));
        q.finish(DEADLINE).unwrap();
        // A launch that cannot be is no recording under way.
        let small = d.alloc(16, MemoryKind::Device).unwrap();
        let program = increment(&*d);
        let wide = Launch { groups: [1, 1, 1 << 20], ..launch(&program, &small) };
        let e = q.sequence(vec![launch(&program, &small), wide]);
        if let Err(e) = e {
            assert_eq!(e.code(), Code::LaunchTooLarge);
        } else {
            // Without graphs a launch is looked at when it is made.
            assert_eq!(q.replay(&e.unwrap()).unwrap_err().code(), Code::LaunchTooLarge);
        }
        q.fill(&small, 0, 16, 0).unwrap();
        q.finish(DEADLINE).unwrap();
    }
    let launches = tracer.trace().summary().ops.iter().map(|o| o.launches).sum::<u64>();
    // Without graphs the launch before the one that cannot be was made.
    let old = std::env::var("LD_LIBRARY_PATH").unwrap().ends_with("old");
    assert_eq!(launches, 20 + u64::from(old), "a replay counts its launches");
}

#[test]
fn arrays_go_from_card_to_card() {
    let log = against("new", "peers");
    assert_eq!((count(&log, "cuMemcpyPeerAsync"), count(&log, "cuCtxEnablePeerAccess")), (2, 1), "{log:?}");
    assert_eq!(count(&log, "cuMemPoolSetAccess"), 1, "memory of a pool is opened by the pool: {log:?}");
    nothing_left(&log);
    let log = against("old", "peers");
    assert_eq!(count(&log, "cuMemcpyPeerAsync"), 0);
    nothing_left(&log);
}

#[test]
#[ignore = "needs the made-up driver; run by the test above"]
fn peers() {
    let engine = engine();
    let (one, two) = (engine.on("cuda:0").unwrap(), engine.on("cuda:1").unwrap());
    let x = one.upload(&[1.0f32, 2.0, 3.0, 4.0]).unwrap();
    let old = std::env::var("LD_LIBRARY_PATH").unwrap().ends_with("old");
    let way = if old { Via::Host } else { Via::Peer };
    for _ in 0..2 {
        let (there, via) = x.view(1..4).unwrap().to(&two).unwrap();
        assert_eq!((there.to_vec().unwrap(), there.device_id(), via), (vec![2.0, 3.0, 4.0], "cuda:1", way));
    }
    assert_eq!(x.to(&one).unwrap().1, Via::Device);
    let (home, via) = x.to(&engine.on("cpu").unwrap()).unwrap();
    assert_eq!((home.to_vec().unwrap(), via), (vec![1.0, 2.0, 3.0, 4.0], Via::Host));
}

#[test]
fn managed_memory_is_moved_and_advised() {
    let log = against("new", "managed");
    // Numbers of CUmem_advise; the host is -1.
    for line in ["advice 1 for -1", "advice 3 for 0", "advice 5 for -1", "advice 2 for -1", "advice 4 for -1"] {
        assert_eq!(count(&log, line), 1, "{line}: {log:?}");
    }
    nothing_left(&log);
}

#[test]
#[ignore = "needs the made-up driver; run by the test above"]
fn managed() {
    let engine = engine();
    let target = engine.on("cuda:0").unwrap();
    let x = target.zeros::<f32>(&[1000], MemoryKind::Managed).unwrap();
    assert_eq!(x.location().unwrap(), None);
    x.prefetch(Place::Device).unwrap();
    assert_eq!(x.location().unwrap(), Some(Place::Device));
    x.prefetch(Place::Host).unwrap();
    assert_eq!(x.location().unwrap(), Some(Place::Host));
    let on = [Advice::ReadMostly(true), Advice::Preferred(Some(Place::Device)), Advice::AccessedBy(Place::Host, true)];
    for advice in on.into_iter().chain([Advice::ReadMostly(false), Advice::Preferred(None)]) {
        x.advise(advice).unwrap();
    }
    assert_eq!(x.to_vec().unwrap(), [0.0; 1000]);
    let own = target.zeros::<f32>(&[1], MemoryKind::Device).unwrap();
    assert_eq!(own.prefetch(Place::Host).unwrap_err().code(), Code::FeatureUnsupported);
    // More than the card has only on the program's word.
    let used = target.managed().unwrap();
    assert!(used.bytes >= 4000 && !used.oversubscribed, "{used:?}");
    let half = used.limit as usize / 2 / 4;
    let held = target.zeros::<f32>(&[half as u64], MemoryKind::Managed).unwrap();
    let e = target.zeros::<f32>(&[half as u64], MemoryKind::Managed).unwrap_err();
    assert!(e.code() == Code::AllocTooLarge && e.detail().contains("oversubscribe"), "{e}");
    target.oversubscribe().unwrap();
    let more = target.zeros::<f32>(&[half as u64], MemoryKind::Managed).unwrap();
    let used = target.managed().unwrap();
    assert!(used.oversubscribed && used.bytes > used.limit, "{used:?}");
    drop((held, more, x));
    assert_eq!(target.managed().unwrap().bytes, 0);
}

#[test]
fn a_context_of_the_programs_stays_the_programs() {
    let log = against("new", "given");
    // Theirs, and those of the pools of two devices made on their context.
    assert_eq!(count(&log, "cuStreamDestroy"), 3, "{log:?}");
    nothing_left(&log);
}

#[test]
#[ignore = "needs the made-up driver; run by the test above"]
fn given() {
    let context = CudaContext::new(0).unwrap();
    let stream = context.new_stream().unwrap();
    let engine = Engine::from_cuda(&context, &stream).unwrap();
    let target = engine.on("cuda:given").unwrap();
    let x = target.upload(&[1.0f32, 2.0]).unwrap();
    assert_eq!(x.to_vec().unwrap(), [1.0, 2.0]);
    let other = CudaContext::new(1).unwrap();
    assert_eq!(Engine::from_cuda(&other, &stream).unwrap_err().code(), Code::BadArgument);
    drop((x, target));
    drop(engine);
    // Its stream is not recorded: the program may put work of its own there at any time.
    let d = CudaDevice::from_cuda(&context, &stream).unwrap();
    let y = d.alloc(64, MemoryKind::Device).unwrap();
    let mut q = d.queue().unwrap();
    q.fill(&y, 0, 64, 0).unwrap();
    let sequence = q.sequence(vec![launch(&increment(&d), &y); 2]).unwrap();
    assert!(sequence.one_by_one().is_some_and(|why| why.contains("program's")), "{sequence:?}");
    q.replay(&sequence).unwrap();
    assert_eq!(words(q.as_mut(), &y), [2; 16]);
    drop((sequence, q, y, d));
    // Both still work.
    stream.synchronize().unwrap();
    drop(stream);
}

#[test]
fn the_programs_work_is_done_before_a_copy_begins() {
    let log = against("new", "busy");
    assert_eq!((count(&log, "busy"), count(&log, "copy"), count(&log, "cuMemcpy2DAsync")), (4, 2, 2), "{log:?}");
    // There it would be waited for without a deadline.
    assert_eq!(count(&log, "a copy blocks"), 0, "{log:?}");
    nothing_left(&log);
}

#[test]
#[ignore = "needs the made-up driver; run by the test above"]
fn busy() {
    let context = CudaContext::new(0).unwrap();
    let stream = context.new_stream().unwrap();
    let theirs = context.new_event(None).unwrap();
    let d = CudaDevice::from_cuda(&context, &stream).unwrap();
    let y = d.alloc(64, MemoryKind::Device).unwrap();
    let mut q = d.queue().unwrap();
    let (block, wide) = (Block { rows: 2, row_bytes: 8 }, Pitch { offset: 0, pitch: 16 });
    let mut out = [0u8; 64];
    stream.wait(&theirs).unwrap();
    q.write(&y, 0, &[1; 64]).unwrap();
    stream.wait(&theirs).unwrap();
    q.write_rows(&y, wide, &[2; 64], wide, block).unwrap();
    stream.wait(&theirs).unwrap();
    q.read(&y, 0, &mut out).unwrap();
    assert_eq!((out[..8].to_vec(), out[8..16].to_vec()), (vec![2; 8], vec![1; 8]));
    stream.wait(&theirs).unwrap();
    q.read_rows(&y, wide, &mut out, wide, block).unwrap();
    // A queue of which nothing is unfinished goes at once, whatever the program has in its stream.
    drop((q, y, d));
}

#[test]
fn what_cannot_be_waited_for_leaves_nothing_behind() {
    let log = against("new", "unlucky");
    // The allocation is given back, and each of the two copies is over before its call returns.
    assert_eq!(count(&log, "cuMemAllocFromPoolAsync"), count(&log, "cuMemFreeAsync"), "{log:?}");
    assert_eq!(count(&log, "cuStreamSynchronize"), 2, "{log:?}");
    nothing_left(&log);
}

#[test]
#[ignore = "needs the made-up driver; run by the test above"]
fn unlucky() {
    // `UNLUCKY` of the made-up driver.
    const BYTES: usize = 1296;
    let d = device("cuda:0");
    assert!(d.alloc(BYTES as u64, MemoryKind::Device).is_err());
    let y = d.alloc(2 * BYTES as u64, MemoryKind::Device).unwrap();
    let mut q = d.queue().unwrap();
    let (block, wide) = (Block { rows: 2, row_bytes: BYTES as u64 / 2 }, Pitch { offset: 0, pitch: BYTES as u64 });
    let mut out = vec![0u8; 2 * BYTES];
    assert!(q.read(&y, 0, &mut out[..BYTES]).is_err());
    assert!(q.read_rows(&y, wide, &mut out, wide, block).is_err());
    q.read(&y, 0, &mut out).unwrap();
    drop((q, y));
    assert_eq!((d.ledger().state().buffers, d.ledger().release_errors().len()), (0, 0));
}

#[test]
fn a_written_buffer_is_no_other_argument() {
    let log = against("new", "twice");
    assert_eq!(count(&log, "cuLaunchKernel"), 0, "{log:?}");
    nothing_left(&log);
}

#[test]
#[ignore = "needs the made-up driver; run by the test above"]
fn twice() {
    let d = device("cuda:0");
    let y = d.alloc(64, MemoryKind::Device).unwrap();
    let program = increment(&*d);
    let mut q = d.queue().unwrap();
    for writes in [[true, false], [false, true], [true, true]] {
        // Parts that lie apart are refused as well, as on every other device.
        let parts = [0, 32].map(|offset| Slice { buffer: y.clone(), offset, bytes: 32 }).to_vec();
        let twice = Launch { args: parts, writes: writes.to_vec(), ..launch(&program, &y) };
        assert_eq!(q.launch(&twice).unwrap_err().code(), Code::BadArgument, "{writes:?}");
        assert_eq!(q.sequence(vec![twice]).unwrap_err().code(), Code::BadArgument, "{writes:?}");
    }
}
