//! A device that is lost for real: in a process of its own a kernel writes outside of every buffer ([`victim`]). What becomes of
//! that process is the driver's to say: it dies, or is told an error. Here the device must go on working meanwhile ([`lose`]).

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::TryRecvError;
use std::time::{Duration, Instant};

use crate::base::{Backend, Class, Code, DeviceInfo, Error, Lang, Result, Told};
use crate::device::{Device, Launch, MemoryKind, Queue, Slice, Source};
use crate::engine::{Engine, KernelCache};
use crate::jobs::stress::supervisor::{Child, Exe, Spawn, await_end, reader, task_text};
use crate::jobs::stress::worker::{Line, Task};
use crate::kernel::stray::stray;

use super::known::{Known, engine_here, engine_of, settled};
use super::{Ctx, Open};

/// Longest life of a process that loses its device.
const LIFE: Duration = Duration::from_secs(60);
/// Its wait for the device, and its calls after the loss.
const WAIT: Duration = Duration::from_secs(20);
const AFTER: Duration = Duration::from_secs(5);
/// Between two calls on the device that must go on working.
const PAUSE: Duration = Duration::from_millis(5);
/// What it has for its end after its last word.
const END: Duration = Duration::from_secs(2);
/// Bytes of the buffer that the kernel leaves.
const BYTES: u64 = 4096;
/// What is said before the kernel is launched: from here on an end of the process is the kernel's doing.
const ARMED: &str = "a write outside of every buffer";

/// The language in which a kernel of this device can go astray.
fn lang(info: &DeviceInfo) -> Option<Lang> {
    match info.backend {
        Backend::Cuda => Some(Lang::Cuda),
        Backend::Opencl => Some(Lang::OpenclC),
        Backend::Cpu | Backend::Wgpu | Backend::Sim => None,
    }
}

/// The side that loses: a known answer, the kernel, then calls until the device is back or time is over.
///
/// Errors: what kept it from launching the kernel.
pub(in crate::jobs::stress) fn victim(
    device: Arc<dyn Device>,
    open: Open,
    kernels: KernelCache,
    say: &mut dyn FnMut(&Line) -> Result<()>,
) -> Result<()> {
    let info = device.info().clone();
    let none = || Error::new(Code::FeatureUnsupported, "no kernel of it can go astray").device(&info.id);
    let (step, text) = lang(&info).map_or(Ok(None), stray)?.ok_or_else(none)?;
    let known = Known::new(1)?;
    let (first, given) = (Arc::clone(&device), AtomicBool::new(false));
    let again: Open = Arc::new(move || match given.swap(true, Ordering::SeqCst) {
        false => Ok(Arc::clone(&first)),
        true => open(),
    });
    let engine = engine_of(&info, again, &kernels, WAIT).build()?;
    if let (_, Some(wrong)) = known.made(&engine)? {
        return Err(Error::new(Code::LaunchFailed, wrong).device(&info.id));
    }
    let program = device.build(Source::Text(&text), None)?;
    let buffer = device.alloc(BYTES, MemoryKind::Device)?;
    let mut queue = device.queue()?;
    queue.fill(&buffer, 0, BYTES, 0)?;
    queue.finish(WAIT)?;
    say(&Line::Op { lane: 0, doing: ARMED.into() })?;
    let launch = Launch {
        program,
        group: step.group,
        groups: step.groups,
        args: vec![Slice::whole(&buffer)],
        writes: step.writes,
        params: step.params,
        cost: step.cost,
    };
    let seen = fire(queue.as_mut(), &launch, &buffer).err();
    let (back, wrong) = if seen.is_some() { after(&known, &engine) } else { (false, None) };
    say(&Line::Lost { seen: seen.as_ref().map(Told::from), back, wrong })?;
    // Releases on a lost context may wait for ever; all of it goes with the process.
    std::mem::forget((engine, queue, launch, buffer, device));
    Ok(())
}

/// Launches it, waits, and reads: where an API tells late, the read does.
fn fire(queue: &mut dyn Queue, launch: &Launch, buffer: &crate::device::Buffer) -> Result<()> {
    queue.launch(launch)?;
    queue.finish(WAIT)?;
    queue.read(buffer, 0, &mut [0; BYTES as usize])
}

/// Calls after the loss: whether the device was used again, and what was wrong with a result.
fn after(known: &Known, engine: &Engine) -> (bool, Option<String>) {
    let start = Instant::now();
    while start.elapsed() < AFTER {
        match known.made(engine) {
            Ok((_, Some(wrong))) => return (false, Some(wrong)),
            Ok((out, None)) if engine.stats().recoveries > 0 && out.fallback.is_none() => return (true, None),
            Ok(_) | Err(_) => std::thread::sleep(PAUSE),
        }
    }
    (false, None)
}

/// What became of a process that was to lose its device.
#[derive(Debug, Default)]
struct Seen {
    armed: bool,
    lost: Option<(Option<Told>, bool, Option<String>)>,
    refused: Option<Told>,
}

/// Starts such a process and works on the phase's device until it is over: the bytes of all results here, each of which was
/// compared. `None` if no kernel of this device can go astray or such a process cannot be had, with the reason.
pub(super) fn lose(ctx: &Ctx<'_>, known: &Known, program: &Path) -> Result<std::result::Result<u64, String>> {
    let info = ctx.device.info();
    if lang(info).is_none() {
        return Ok(Err(format!("{} has no call that loses one device", info.backend)));
    }
    let engine = engine_here(ctx).build()?;
    let task = task_text(&Task { device: Some(info.id.clone()), phase: None, lose: true })?;
    let mut child = Exe { path: program.to_path_buf() }.spawn(&task)?;
    let mut seen = Seen::default();
    let worked = beside(ctx, known, &engine, child.as_mut(), &mut seen);
    let exit = await_end(child.as_mut(), if worked.is_ok() { END } else { Duration::ZERO });
    let bytes = worked?;
    settled(&engine)?;
    let failed = |why: String| Err(Error::new(Code::DeviceLost, why).device(&info.id));
    let how = exit.map_or_else(|| "it did not end".into(), |e| e.words());
    match (seen.lost, seen.refused, seen.armed) {
        _ if ctx.meter.stop.raised() => Ok(Ok(bytes)),
        (Some((_, _, Some(wrong))), ..) => failed(format!("a result after a real loss is wrong: {wrong}")),
        (Some((Some(told), back, None)), ..) => {
            let error = told.error();
            if !matches!(error.class(), Class::Lost | Class::Sticky) {
                return failed(format!("a write outside of every buffer is told as: {error}"));
            }
            ctx.meter.count("losses_told", 1);
            ctx.meter.count("losses_and_back", u64::from(back));
            Ok(Ok(bytes))
        }
        (Some((None, ..)), ..) => Ok(Err("a write outside of every buffer has no effect that anybody sees".into())),
        (None, Some(told), _) => Ok(Err(format!("a second process cannot use the device: {}", told.error()))),
        (None, None, true) if exit.is_some_and(|e| !e.success()) => {
            ctx.meter.count("losses_ended_the_process", 1);
            Ok(Ok(bytes))
        }
        (None, None, _) => {
            let errors = child.errors();
            failed(format!("the process that was to lose its device did not get that far: {how} {}", errors.trim()))
        }
    }
}

/// Calls on the phase's device as long as the process says something or lives.
fn beside(ctx: &Ctx<'_>, known: &Known, engine: &Engine, child: &mut dyn Child, seen: &mut Seen) -> Result<u64> {
    let lines = reader(child);
    let start = Instant::now();
    let mut bytes = 0;
    loop {
        known.call(ctx, engine)?;
        bytes += known.bytes();
        ctx.meter.step(0);
        loop {
            match lines.try_recv() {
                Ok(Line::Op { doing, .. }) => seen.armed |= doing == ARMED,
                Ok(Line::Lost { seen: told, back, wrong }) => seen.lost = Some((told, back, wrong)),
                Ok(Line::Refused(told)) => seen.refused = Some(told),
                Ok(_) => {}
                Err(TryRecvError::Empty) => break,
                // Its last call comes after its end.
                Err(TryRecvError::Disconnected) => {
                    known.call(ctx, engine)?;
                    return Ok(bytes + known.bytes());
                }
            }
        }
        if ctx.meter.stop.raised() {
            return Ok(bytes);
        }
        if start.elapsed() > LIFE {
            let why = format!("a process that lost it did not end within {} s", LIFE.as_secs());
            return Err(Error::new(Code::DeviceLost, why).device(&ctx.device.info().id));
        }
        std::thread::sleep(PAUSE);
    }
}
