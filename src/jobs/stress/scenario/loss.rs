//! The device is lost at every kind of call in turn. Every call must have its right result, the engine must open the device
//! again, hear a known answer from it and use it.
//!
//! Where an API has a call that loses a device (wgpu's `destroy`) the loss is real; elsewhere the driver's answer is replaced.
//! Where a kernel can leave its buffer (CUDA, OpenCL) one does, in a process of its own ([`astray`]). Counters say how many of
//! each there were.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::base::{Class, Code, Error, Result};
use crate::device::Device;
use crate::device::faulty::{Fault, FaultPlan, Faulty, On, Rule, When};
use crate::engine::Engine;

use super::known::{Known, engine, settled};
use super::{Ctx, astray};

/// Kinds of calls at which it is lost.
const CALLS: [(On, &str); 6] = [
    (On::Launch, "launch"),
    (On::Write, "write"),
    (On::Read, "read"),
    (On::Wait, "wait"),
    (On::Alloc, "allocation"),
    (On::Build, "build"),
];

/// Rounds between two real losses by a kernel, each of which costs a process.
const EVERY: usize = 4 * CALLS.len();

pub(super) fn run(ctx: &Ctx<'_>) -> Result<()> {
    let known = Known::new(ctx.seed)?;
    ctx.meter.testing();
    let (mut real, mut possible) = (0, true);
    let (mut round, mut strays) = (0, 0);
    let mut victim = ctx.victim.as_deref();
    let mut why = format!("{} has no call that loses one device", ctx.device.info().backend);
    while ctx.running() {
        let from = Instant::now();
        if let (Some(program), true) = (victim, round >= strays * EVERY) {
            ctx.meter.doing(0, &format!("real loss {strays}, in a process of its own"));
            strays += 1;
            match astray::lose(ctx, &known, program) {
                Ok(Ok(bytes)) => {
                    real += 1;
                    ctx.meter.count("losses_real", 1);
                    ctx.meter.cycle(0, bytes, bytes, from.elapsed().as_secs_f64());
                }
                Ok(Err(none)) => (victim, why) = (None, none),
                Err(e) => ctx.meter.survive(e)?,
            }
            continue;
        }
        let (on, what) = CALLS[round % CALLS.len()];
        // Real losses and injected ones in turns, where both can be had.
        let wanted = possible && round % (2 * CALLS.len()) < CALLS.len();
        ctx.meter.doing(0, &format!("loss {round}, at a {what}"));
        match lose(ctx, &known, on, wanted) {
            Ok(None) => {
                possible = false;
                continue;
            }
            Ok(Some(bytes)) => {
                real += u64::from(wanted);
                ctx.meter.count(if wanted { "losses_real" } else { "losses_injected" }, 1);
                ctx.meter.cycle(0, bytes, bytes, from.elapsed().as_secs_f64());
            }
            // What was lost here was another device than the phase's.
            Err(e) => {
                ctx.meter.failed(&e);
            }
        }
        round += 1;
    }
    if real == 0 {
        ctx.meter.not_tested(format!("a real loss: {why}; losses were injected"));
    }
    Ok(())
}

/// Losses of a phase at most: drivers keep a little of each device that was opened for as long as the process lives. Until the
/// next one the device that came back works.
const MOST: f64 = 200.0;

/// Builds an engine, loses its device, waits until it is used again: the bytes of all results, each of which was compared.
/// `None` if a real loss was wanted and cannot be had.
fn lose(ctx: &Ctx<'_>, known: &Known, on: On, wanted: bool) -> Result<Option<u64>> {
    let opened: Arc<Mutex<Vec<Arc<dyn Device>>>> = Arc::default();
    let refused = Arc::new(AtomicBool::new(false));
    let open = {
        let (open, opened, refused) = (Arc::clone(&ctx.open), Arc::clone(&opened), Arc::clone(&refused));
        let shared = ctx.device.serial();
        move || {
            let device = open()?;
            let mut opened = opened.lock().unwrap_or_else(PoisonError::into_inner);
            opened.push(Arc::clone(&device));
            if opened.len() > 1 {
                return Ok(device);
            }
            let (target, refused) = (Arc::clone(&device), Arc::clone(&refused));
            let fault = if wanted { Fault::Do } else { Fault::Lose };
            let rules = vec![Rule { on, when: When::Nth(1), fault }];
            let faulty = Faulty::new(device, FaultPlan { text: "device-loss".into(), rules });
            Ok(Arc::new(faulty.doing(move || {
                // The one of the phase itself must not be lost.
                let lost = target.serial() != shared && target.destroy();
                refused.store(!lost, Ordering::SeqCst);
            })) as Arc<dyn Device>)
        }
    };
    let losses = Arc::new(AtomicU64::new(0));
    let heard = Arc::clone(&losses);
    let engine = engine(ctx, Arc::new(open))
        .on_error(move |event| {
            heard.fetch_add(u64::from(event.error.class() == Class::Lost), Ordering::SeqCst);
        })
        .build()?;
    let bytes = back(ctx, known, &engine, &refused, &losses);
    drop(engine);
    released(ctx, &opened);
    bytes
}

/// Calls until the device was lost once and is in use again.
fn back(
    ctx: &Ctx<'_>,
    known: &Known,
    engine: &Engine,
    refused: &AtomicBool,
    losses: &AtomicU64,
) -> Result<Option<u64>> {
    let failed = |why: String| Err(Error::new(Code::DeviceLost, why).device(&ctx.device.info().id));
    let (start, mut bytes, mut fallbacks) = (Instant::now(), 0, 0);
    loop {
        let out = known.call(ctx, engine)?;
        bytes += known.bytes();
        ctx.meter.step(0);
        fallbacks += u64::from(out.fallback.is_some());
        let stats = engine.stats();
        if refused.load(Ordering::SeqCst) {
            return Ok(None);
        }
        let back = stats.recoveries > 0 && out.fallback.is_none();
        if back && start.elapsed().as_secs_f64() >= ctx.seconds / MOST {
            break;
        }
        if !back && start.elapsed() > ctx.deadline() {
            return failed(format!(
                "it did not come back within {:.1} s: {}",
                ctx.deadline().as_secs_f64(),
                engine.status()
            ));
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    ctx.meter.count("fallbacks", fallbacks);
    let stats = engine.stats();
    ctx.meter.count("recoveries", stats.recoveries);
    settled(engine)?;
    let losses = losses.load(Ordering::SeqCst);
    if losses != 1 || stats.recoveries != 1 {
        return failed(format!(
            "it was lost {losses} times and came back {} times, both expected once",
            stats.recoveries
        ));
    }
    Ok(Some(bytes))
}

/// Waits until what the engine's devices held is released (a lost device's in a thread of its own), and counts what is not.
fn released(ctx: &Ctx<'_>, opened: &Mutex<Vec<Arc<dyn Device>>>) {
    let opened = std::mem::take(&mut *opened.lock().unwrap_or_else(PoisonError::into_inner));
    let start = Instant::now();
    for device in opened.iter().filter(|d| d.serial() != ctx.device.serial()) {
        let held = || {
            let now = device.ledger().state();
            now.buffers + now.pinned + now.objects()
        };
        while held() > 0 && start.elapsed() < ctx.deadline() && !ctx.meter.stop.raised() {
            std::thread::sleep(Duration::from_millis(2));
            ctx.meter.step(0);
        }
        ctx.meter.left(device.ledger().state());
    }
}
