//! The pool of device memory from outside: reuse, the cap, clearing, memory pressure, threads, and what must not come back.

#![allow(clippy::print_stdout, reason = "a test tells what it skipped and counted")]

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use gpuctl::base::rng::Philox;
use gpuctl::base::{Attrs, Backend, Code, DType, DeviceClass, Env, Fill, HostTensor, os};
use gpuctl::device::cpu::{CpuDevice, Pin};
use gpuctl::device::faulty::{Fault, FaultPlan, Faulty, On, Rule, When};
use gpuctl::device::probe::{self, CpuConfig, Select};
use gpuctl::device::{DEADLINE, Device, sim};
use gpuctl::engine::{ClearPolicy, Engine, Placement, Pool, PoolConfig, Retention, Runner};
use gpuctl::kernel::Isa;
use gpuctl::op;

fn cpu() -> Arc<dyn Device> {
    Arc::new(CpuDevice::new(1, Isa::detect(), Pin::Free).unwrap())
}

/// The CPU, the simulator, and what drivers of OpenCL and wgpu are here; a missing one fails if `GPUCTL_REQUIRE` names it.
fn everywhere() -> Vec<Arc<dyn Device>> {
    let mut all = vec![cpu(), sim::open("textbook").unwrap().1];
    let required = Env::read().unwrap().require;
    for backend in [Backend::Opencl, Backend::Wgpu] {
        let config = CpuConfig { threads: 1, pin: Pin::Free };
        let seen = probe::inventory_of(&[backend], &Env::default(), config).unwrap();
        match seen.found.iter().find(|f| f.info.backend == backend) {
            Some(found) => all.push(found.open().unwrap()),
            None => {
                assert!(!required.iter().any(|b| b == backend.name()), "{:?}", seen.absent);
                println!("skipped: {backend}: {:?}", seen.absent);
            }
        }
    }
    all
}

fn quiet() -> PoolConfig {
    PoolConfig { trim_after: Duration::from_secs(3600), ..PoolConfig::default() }
}

#[test]
fn a_buffer_is_used_again_within_its_class() {
    let device = cpu();
    let pool = Pool::new(Arc::clone(&device), quiet());
    drop(pool.rent(1000).unwrap());
    let made = device.ledger().state().buffers_made;
    for bytes in [1, 1000, 4096, 4096 + 64] {
        assert_eq!(pool.rent(bytes).unwrap().bytes(), bytes, "no more can be reached than was asked for");
    }
    assert_eq!(device.ledger().state().buffers_made, made, "one of 4 KiB serves them all");
    let two = (pool.rent(10).unwrap(), pool.rent(5000).unwrap());
    let s = pool.stats();
    assert_eq!((s.hits, s.misses, s.live, s.idle, s.asked_bytes), (5, 2, 2, 0, 5010));
    assert_eq!(s.live_bytes, (4096 + 256) + (40 * 1024 + 256));
    assert!((s.fragmentation() - (1.0 - 5010.0 / s.live_bytes as f64)).abs() < 1e-12);
    assert!((s.hit_rate() - 5.0 / 7.0).abs() < 1e-12);
    drop(two);
    assert_eq!((pool.stats().live, pool.stats().live_bytes, pool.stats().asked_bytes), (0, 0, 0));
    assert_eq!(pool.trim(), s.live_bytes, "all that was made lies idle");
    assert_eq!((device.ledger().state().buffers, device.ledger().state().bytes), (0, 0));
    let large = pool.rent(100_000_001).unwrap();
    assert_eq!((large.bytes(), pool.stats().live_bytes), (100_000_001, 100_000_001));
    drop(large);
    assert_eq!((pool.stats().idle, device.ledger().state().buffers), (0, 0), "too large to be kept");
}

/// No byte of an earlier buffer is visible, on any device, whatever the sizes; and without clearing it is, so the test sees.
#[test]
fn cleared_memory_shows_nothing_of_its_last_user() {
    for device in everywhere() {
        let id = device.info().id.clone();
        let seen = |clear: ClearPolicy| {
            let pool = Pool::new(Arc::clone(&device), PoolConfig { clear, ..quiet() });
            let mut q = device.queue().unwrap();
            let (mut left, mut reused) = (0, 0);
            for (first, then) in [(4096, 4096), (16, 4096), (4000, 160), (100_000, 300_000), (4160, 1040)] {
                let made = device.ledger().state().buffers_made;
                let one = pool.rent(first).unwrap();
                q.fill(&one, 0, first, 0xFF).unwrap();
                q.finish(DEADLINE).unwrap();
                drop(one);
                let two = pool.rent(then).unwrap();
                let mut bytes = vec![0x55u8; then as usize];
                q.read(&two, 0, &mut bytes).unwrap();
                left += bytes.iter().filter(|b| **b == 0xFF).count();
                if clear == ClearPolicy::Zero {
                    assert!(bytes.iter().all(|b| *b == 0), "{id}: {first} then {then}");
                }
                reused += 2 - (device.ledger().state().buffers_made - made);
            }
            assert!(reused >= 5, "{id}: a buffer that is not reused shows nothing: {reused}");
            left
        };
        assert_eq!(seen(ClearPolicy::Zero), 0, "{id}");
        assert!(seen(ClearPolicy::Never) > 4096, "{id}: else the check sees nothing");
    }
}

/// New memory is cleared, too: a driver gives what the process used before.
#[test]
fn new_memory_is_cleared_as_well() {
    for device in everywhere() {
        let mut q = device.queue().unwrap();
        // Released, so that the driver may give the same memory again.
        for _ in 0..8 {
            let raw = device.alloc(1 << 16, gpuctl::device::MemoryKind::Device).unwrap();
            q.fill(&raw, 0, 1 << 16, 0xFF).unwrap();
            q.finish(DEADLINE).unwrap();
        }
        let pool = Pool::new(Arc::clone(&device), PoolConfig { clear: ClearPolicy::Zero, ..quiet() });
        let mut bytes = vec![1u8; 1 << 16];
        q.read(&pool.rent(1 << 16).unwrap(), 0, &mut bytes).unwrap();
        assert!(bytes.iter().all(|b| *b == 0), "{}", device.info().id);
    }
}

/// 4,000 distinct sizes, a few in use at a time: what lies idle never exceeds the cap, and nothing is left at the end.
#[test]
fn random_sizes_stay_under_the_cap() {
    for retention in [Retention::Adaptive, Retention::Lru, Retention::KeepAll, Retention::None] {
        let device = cpu();
        let cap = 6 << 20;
        let config = PoolConfig { max_bytes: cap, retention, ..quiet() };
        let pool = Pool::new(Arc::clone(&device), config);
        let rng = Philox::new(979);
        let mut held = std::collections::VecDeque::new();
        let mut sizes: Vec<u64> = (0..4000).map(|i| 1 + i * 211).collect();
        for i in (1..sizes.len()).rev() {
            sizes.swap(i, (rng.u64(1, i as u64) % (i as u64 + 1)) as usize);
        }
        for bytes in sizes {
            held.push_back(pool.rent(bytes).unwrap());
            if held.len() > 3 {
                held.pop_front();
            }
            let s = pool.stats();
            assert!(s.idle_bytes <= cap, "{retention:?}: {s:?}");
            assert!(device.ledger().state().bytes <= cap + s.live_bytes, "{retention:?}: {s:?}");
            assert_eq!(s.live, held.len() as u64);
        }
        let s = pool.stats();
        println!("{retention:?}: {:.0} % hits, {} over the cap", 100.0 * s.hit_rate(), s.over_cap);
        match retention {
            Retention::None => assert_eq!((s.hits, s.idle), (0, 0)),
            _ => assert!(s.hit_rate() > 0.5 && s.over_cap > 0, "{retention:?}: {s:?}"),
        }
        held.clear();
        pool.trim();
        assert_eq!(device.ledger().state().bytes, 0, "{retention:?}");
    }
}

/// In a process of its own: the memory of this one is that of all its tests.
#[test]
fn ten_million_cycles_leave_nothing_behind() {
    let alone = ["--exact", "ten_million_cycles_alone", "--ignored", "--nocapture"];
    let out = std::process::Command::new(std::env::current_exe().unwrap()).args(alone).output().unwrap();
    let text = String::from_utf8_lossy(&out.stdout);
    assert!(out.status.success() && text.contains("1 passed"), "{text}{}", String::from_utf8_lossy(&out.stderr));
    text.lines().filter(|l| l.contains("ns a cycle")).for_each(|l| println!("{l}"));
}

/// The ledger and the process's memory stay where they are over ten million cycles.
#[test]
#[ignore = "run by the test above"]
fn ten_million_cycles_alone() {
    let device = cpu();
    let pool = Pool::new(Arc::clone(&device), quiet());
    let sizes = [16u64, 4096, 30_000, 400_000, 1_000];
    let cycle = |n: u64| {
        for i in 0..n {
            let rented = pool.rent(sizes[(i % 5) as usize]).unwrap();
            assert_eq!(rented.bytes(), sizes[(i % 5) as usize]);
        }
    };
    cycle(100_000);
    let (ledger, rss) = (device.ledger().state(), os::rss_bytes());
    let start = Instant::now();
    cycle(10_000_000);
    println!("{:.0} ns a cycle in this build", start.elapsed().as_secs_f64() * 1e9 / 1e7);
    assert_eq!(device.ledger().state(), ledger, "not one object more or less");
    assert_eq!((pool.stats().misses, pool.stats().returns), (3, 10_100_000));
    if let (Some(before), Some(after)) = (rss, os::rss_bytes()) {
        assert!(after < before + (16 << 20), "{before} bytes before, {after} after");
    }
}

#[test]
fn what_may_still_be_in_use_is_not_lent_again() {
    let device = cpu();
    let pool = Pool::new(Arc::clone(&device), quiet());
    let mut one = pool.rent(100).unwrap();
    one.discard();
    drop(one);
    assert_eq!((pool.stats().idle, pool.stats().live, device.ledger().state().buffers), (0, 0, 0));
    let two = pool.rent(100).unwrap();
    let kept = two.clone();
    drop(two);
    assert_eq!(pool.stats().idle, 0, "somebody still holds it");
    assert_eq!(device.ledger().state().buffers, 1);
    drop(kept);
    assert_eq!(device.ledger().state().buffers, 0);
}

/// A call that failed may have left work behind that still writes: its buffers are released, others are lent again.
#[test]
fn buffers_of_a_failed_call_are_released() {
    let op = op::find("relu").unwrap();
    let case = op.case(DType::F32, &[1000], Attrs::new(), Fill::Uniform).unwrap();
    let inputs = op::case::inputs(op, &case).unwrap();
    let failing = Rule { on: On::Read, when: When::Nth(2), fault: Fault::Fail(Code::TransferFailed) };
    let plan = FaultPlan { text: "test".into(), rules: vec![failing] };
    let device: Arc<dyn Device> = Arc::new(Faulty::new(cpu(), plan));
    let runner = Runner::new(Arc::clone(&device)).pooled(quiet());
    let stats = || runner.pool().unwrap().stats();
    let call = || {
        let prepared = runner.prepare(op, &case, None).unwrap();
        let mut lease = runner.lease().unwrap();
        prepared.call(lease.queue().unwrap(), &inputs, DEADLINE).map(|_| ())
    };
    call().unwrap();
    assert_eq!((stats().idle, stats().live), (2, 0));
    call().unwrap_err();
    assert_eq!((stats().idle, stats().live), (0, 0), "neither operand is lent again");
    assert_eq!(device.ledger().state().buffers, 0);
    call().unwrap();
    assert_eq!((stats().idle, stats().misses), (2, 4));
    // Enqueued and never waited for.
    let prepared = runner.prepare(op, &case, None).unwrap();
    let mut lease = runner.lease().unwrap();
    prepared.upload(lease.queue().unwrap(), &inputs).unwrap();
    drop(prepared);
    assert_eq!(stats().idle, 0);
}

#[test]
fn memory_pressure_releases_what_lies_idle_and_tries_again() {
    // A device of 1 MiB in all: the third buffer does not fit beside the two idle ones.
    struct Small(Arc<dyn Device>, u64);
    impl Device for Small {
        fn info(&self) -> &gpuctl::base::DeviceInfo {
            self.0.info()
        }
        fn serial(&self) -> u64 {
            self.0.serial()
        }
        fn clock(&self) -> Arc<dyn gpuctl::base::Clock> {
            self.0.clock()
        }
        fn ledger(&self) -> &Arc<gpuctl::device::Ledger> {
            self.0.ledger()
        }
        fn memory(&self) -> gpuctl::device::MemoryState {
            self.0.memory()
        }
        fn alloc(&self, bytes: u64, kind: gpuctl::device::MemoryKind) -> gpuctl::base::Result<gpuctl::device::Buffer> {
            if self.ledger().state().bytes + bytes > self.1 {
                return Err(gpuctl::base::Error::new(Code::OutOfDeviceMemory, "full"));
            }
            self.0.alloc(bytes, kind)
        }
        fn build(
            &self,
            source: gpuctl::device::Source<'_>,
            cached: Option<&[u8]>,
        ) -> gpuctl::base::Result<gpuctl::device::Program> {
            self.0.build(source, cached)
        }
        fn queue(&self) -> gpuctl::base::Result<Box<dyn gpuctl::device::Queue>> {
            self.0.queue()
        }
        fn health(&self) -> gpuctl::device::Health {
            self.0.health()
        }
    }
    let device: Arc<dyn Device> = Arc::new(Small(cpu(), 1 << 20));
    let pool = Pool::new(Arc::clone(&device), quiet());
    drop((pool.rent(300_000).unwrap(), pool.rent(300_000).unwrap()));
    assert_eq!(pool.stats().idle, 2);
    // Its class is 4 MiB: more than there is. Made just as large as it was asked for.
    let large = pool.rent(900_000).unwrap();
    assert_eq!((large.bytes(), pool.stats().idle, pool.stats().trimmed), (900_000, 0, 2));
    let e = pool.rent(900_000).unwrap_err();
    assert_eq!((e.code(), pool.stats().failed, pool.stats().live), (Code::OutOfDeviceMemory, 1, 1));
    drop(large);
    assert_eq!((pool.stats().live, pool.stats().asked_bytes, device.ledger().state().bytes), (0, 0, 0));
}

#[test]
fn idle_memory_goes_by_itself() {
    let device = cpu();
    for retention in [Retention::Adaptive, Retention::Lru] {
        let config = PoolConfig { trim_after: Duration::from_millis(40), retention, ..PoolConfig::default() };
        let pool = Pool::new(Arc::clone(&device), config.clone());
        pool.prewarm(&[1000, 1000, 100_000]).unwrap();
        assert_eq!(pool.stats().idle, 3);
        // Off the shelf first, released a moment later.
        let held = || (pool.stats().idle, device.ledger().state().buffers);
        let start = Instant::now();
        while held() != (0, 0) && start.elapsed() < Duration::from_secs(20) {
            std::thread::sleep(Duration::from_millis(5));
        }
        assert_eq!(held(), (0, 0), "{retention:?}");
        // The thread that saw to it ended with the last buffer; the next one that comes starts another.
        drop(pool.rent(1000).unwrap());
        let start = Instant::now();
        while pool.stats().idle > 0 && start.elapsed() < Duration::from_secs(20) {
            std::thread::sleep(Duration::from_millis(5));
        }
        assert_eq!(pool.stats().idle, 0, "{retention:?}");
        let kept = Pool::new(Arc::clone(&device), PoolConfig { retention: Retention::KeepAll, ..config });
        drop(kept.rent(1000).unwrap());
        std::thread::sleep(Duration::from_millis(200));
        assert_eq!(kept.stats().idle, 1);
    }
}

/// No two threads hold one buffer at a time: each writes its mark and finds it again.
#[test]
fn threads_never_share_a_buffer() {
    let device = cpu();
    let config = PoolConfig { max_bytes: 100_000, retention: Retention::Lru, ..quiet() };
    let pool = Pool::new(Arc::clone(&device), config);
    let wrong = AtomicU64::new(0);
    std::thread::scope(|s| {
        for thread in 0..16u64 {
            let (pool, device, wrong) = (&pool, &device, &wrong);
            s.spawn(move || {
                let mut q = device.queue().unwrap();
                let rng = Philox::new(thread);
                for i in 0..2000 {
                    let rented = pool.rent(8 + rng.u64(0, i) % 50_000).unwrap();
                    let mark = (thread << 32 | i).to_le_bytes();
                    q.write(&rented, 0, &mark).unwrap();
                    std::thread::yield_now();
                    let mut back = [0; 8];
                    q.read(&rented, 0, &mut back).unwrap();
                    wrong.fetch_add(u64::from(back != mark), Ordering::Relaxed);
                }
            });
        }
    });
    assert_eq!(wrong.load(Ordering::Relaxed), 0);
    let s = pool.stats();
    assert_eq!((s.live, s.returns, s.hits + s.misses), (0, 32_000, 32_000));
    assert!(s.hits > 1000 && s.idle_bytes <= 100_000, "{s:?}");
    pool.trim();
    assert_eq!(device.ledger().state().bytes, 0);
}

/// After the first call an engine allocates nothing any more, and computes what it computed without a pool.
#[test]
fn calls_of_an_engine_share_their_memory() {
    for device in everywhere() {
        let info = device.info().clone();
        if info.class == DeviceClass::Cpu {
            continue;
        }
        let force = |b: gpuctl::engine::EngineBuilder| {
            let select = Select::Named(vec![info.id.clone()]);
            let b = b.env(Env::default()).device(Arc::clone(&device)).devices(select).without_trials().no_fallback();
            b.placement(Placement::ForceGpu(info.id.clone())).build().unwrap()
        };
        let pooled = force(Engine::builder());
        let plain = force(Engine::builder().without_pool());
        let x = |n: u64| {
            let values: Vec<f32> = (0..n * n).map(|i| (i % 13) as f32 - 6.0).collect();
            HostTensor::from_slice(&values, &[n, n]).unwrap()
        };
        let run = |engine: &Engine, n: u64| engine.run("gemm", &[&x(n), &x(n)], &Attrs::new()).unwrap().outputs;
        // Of each class as many as a call needs.
        [64, 17].iter().for_each(|n| drop(run(&pooled, *n)));
        let made = device.ledger().state().buffers_made;
        for n in [64, 33, 17, 60] {
            assert_eq!(run(&pooled, n), run(&pooled, n), "{}", info.id);
        }
        assert_eq!(device.ledger().state().buffers_made, made, "{}", info.id);
        for n in [64, 33, 17, 60] {
            assert_eq!(run(&pooled, n), run(&plain, n), "{}: gemm {n}", info.id);
        }
        assert!(device.ledger().state().buffers_made > made, "{}: without a pool it allocates", info.id);
        let status = pooled.status();
        let pool = status.gpus[0].pool.unwrap();
        assert!(pool.hit_rate() > 0.5 && pool.live == 0, "{}: {pool:?}", info.id);
        assert!(status.to_string().contains("% hits"), "{status}");
        assert!(plain.status().gpus[0].pool.is_none());
    }
}
