//! Engines and devices that come and go ([`cycle`]), and calls that are wrong ([`errors`]).

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use crate::base::{Attr, Attrs, Code, DType, Error, HostTensor, Result, os};
use crate::device::cpu::{CpuDevice, Pin};
use crate::device::{Device, MemoryKind};
use crate::engine::Engine;
use crate::engine::run::Runner;
use crate::kernel::Isa;

use super::Ctx;
use super::known::{Known, engine, engine_here, settled};

/// Devices opened anew in a phase. Drivers keep a little of each for as long as the process lives, and hours of them would
/// look like a leak of ours.
const OPENED: u64 = 100;
/// Calls of an engine.
const CALLS: u64 = 3;
/// Cycles before threads and files are counted for the first time.
const WARM: u64 = 4;
/// Threads and files that others of the process may begin meanwhile.
const OTHERS: u64 = 32;

/// Opens the device, builds an engine on it, uses it, drops both.
pub(super) fn cycle(ctx: &Ctx<'_>) -> Result<()> {
    let known = Known::new(ctx.seed)?;
    ctx.meter.testing();
    let (mut cycles, mut opened, mut opened_warm) = (0u64, 0u64, 0u64);
    let mut warm = None;
    while ctx.running() {
        let from = Instant::now();
        let anew = opened < OPENED;
        ctx.meter.doing(0, &format!("engine {cycles}{}", if anew { " on a device opened for it" } else { "" }));
        match one(ctx, &known, anew) {
            Ok(fresh) => {
                opened += u64::from(fresh);
                let bytes = CALLS * known.bytes();
                ctx.meter.cycle(0, bytes, bytes, from.elapsed().as_secs_f64());
            }
            Err(e) => ctx.meter.survive(e)?,
        }
        cycles += 1;
        ctx.meter.quiet(ctx.device.ledger().state());
        if cycles == WARM {
            (warm, opened_warm) = (Some((os::threads(), os::open_fds())), opened);
        }
    }
    ctx.meter.count("engines", cycles);
    ctx.meter.count("devices_opened", opened);
    if opened == 0 {
        ctx.meter.not_tested("opening the device: it cannot be opened twice here".into());
    }
    let Some((threads, files)) = warm else { return Ok(()) };
    for (what, before, now) in [("threads", threads, os::threads()), ("open files", files, os::open_fds())] {
        if let (Some(before), Some(now)) = (before, now)
            && now > before + may_stay(opened - opened_warm)
        {
            let (engines, devices) = (cycles - WARM, opened - opened_warm);
            let why = format!("{what} grew from {before} to {now} over {engines} engines and {devices} opened devices");
            ctx.meter.failed(&Error::new(Code::OutOfResources, why).device(&ctx.device.info().id));
        }
    }
    Ok(())
}

/// Threads or files that may be there besides after so many devices were opened. Engines may keep none: a phase makes thousands of
/// them, and an allowance for each would cover what stays of every device.
const fn may_stay(opened: u64) -> u64 {
    OTHERS + opened / 2
}

/// One engine from its beginning to its end. Whether its device was opened for it.
fn one(ctx: &Ctx<'_>, known: &Known, anew: bool) -> Result<bool> {
    let device = if anew { (ctx.open)()? } else { Arc::clone(&ctx.device) };
    let fresh = device.serial() != ctx.device.serial();
    let given = Arc::clone(&device);
    let engine = engine(ctx, Arc::new(move || Ok(Arc::clone(&given)))).no_fallback().build()?;
    let called = (0..CALLS).try_for_each(|_| {
        ctx.meter.step(0);
        known.call(ctx, &engine).map(drop)
    });
    let settled = settled(&engine);
    drop(engine);
    if fresh {
        ctx.meter.left(device.ledger().state());
    }
    called.and(settled).map(|()| fresh)
}

/// A wrong call: what is wrong, the code that must come, the call.
type Wrong<'a> = (&'static str, Code, Box<dyn Fn() -> Result<()> + 'a>);

/// Ten wrong calls and more in a row, then a right one.
pub(super) fn errors(ctx: &Ctx<'_>) -> Result<()> {
    let known = Known::new(ctx.seed)?;
    let runner = ctx.runner();
    let engine = engine_here(ctx).build()?;
    let other: Arc<dyn Device> = Arc::new(CpuDevice::new(1, Isa::BASELINE, Pin::Free)?);
    let wrong = wrong_calls(ctx, &engine, &runner, &other)?;
    ctx.meter.count("kinds_of_wrong_calls", wrong.len() as u64);
    // Its kernel is built before the time begins.
    known.call(ctx, &engine)?;
    ctx.meter.testing();
    let mut seen: BTreeMap<&str, u64> = BTreeMap::new();
    let mut round = 0;
    while ctx.running() {
        let from = Instant::now();
        ctx.meter.doing(0, &format!("wrong calls, round {round}"));
        for (i, _) in wrong.iter().enumerate() {
            // Another order each round: what one leaves behind meets another next.
            let (what, want, call) = &wrong[(i * 5 + round) % wrong.len()];
            match call() {
                Err(e) if e.code() == *want => *seen.entry(want.name()).or_default() += 1,
                Err(e) => {
                    let told = Error::new(e.code(), format!("{what}: expected {}, got: {}", want.name(), e.detail()));
                    ctx.meter.survive(told.device(&ctx.device.info().id))?;
                }
                Ok(()) => {
                    ctx.meter.mismatch(format!("{what}: the call was accepted, expected the error {}", want.name()))
                }
            }
            ctx.meter.step(0);
        }
        let out = known.call(ctx, &engine)?;
        if let Some(why) = out.fallback {
            let e =
                Error::new(Code::Internal, format!("after wrong calls a right one did not run on the device: {why}"));
            ctx.meter.survive(e)?;
        }
        ctx.meter.cycle(0, known.bytes(), known.bytes(), from.elapsed().as_secs_f64());
        // Once is enough: the engine counts from its beginning.
        if ctx.meter.counts().errors == 0 {
            settled(&engine).or_else(|e| ctx.meter.survive(e))?;
        }
        ctx.meter.quiet(ctx.device.ledger().state());
        round += 1;
    }
    for (code, n) in seen {
        ctx.meter.count(&format!("refused_{}", code.replace('-', "_")), n);
    }
    Ok(())
}

fn wrong_calls<'a>(
    ctx: &'a Ctx<'_>,
    engine: &'a Engine,
    runner: &'a Runner,
    other: &'a Arc<dyn Device>,
) -> Result<Vec<Wrong<'a>>> {
    let device = &ctx.device;
    let tensor = |dtype, shape: &[u64]| HostTensor::zeros(dtype, shape);
    let (a, b) = (tensor(DType::F32, &[3, 4])?, tensor(DType::F32, &[3, 4])?);
    let (whole, double) = (tensor(DType::I32, &[4, 3])?, tensor(DType::F64, &[4, 3])?);
    let fits = tensor(DType::F32, &[4, 3])?;
    let run = move |op: &str, inputs: &[&HostTensor], attrs: &Attrs| engine.run(op, inputs, attrs).map(drop);
    let none = Attrs::new;
    let with = |name: &str, value: Attr| Attrs::new().with(name, value);
    let (a1, a2, a3, a4, a5, a6) = (a.clone(), a.clone(), a.clone(), a.clone(), a.clone(), a);
    let (w, axes) = (whole.clone(), with("transA", Attr::Int(7)));
    let too_much = device.info().max_alloc_bytes.saturating_add(4096);
    let small = move || device.alloc(64, MemoryKind::Device);
    // A queue for each: what a failed call leaves in one is thrown away.
    let queue = move || device.queue();
    Ok(vec![
        ("shapes that do not fit", Code::ShapeMismatch, Box::new(move || run("gemm", &[&a1, &b], &none()))),
        ("an operand too few", Code::ShapeMismatch, Box::new(move || run("add", &[&a2], &none()))),
        ("an op that does not exist", Code::UnknownOp, Box::new(move || run("gem", &[&a3], &none()))),
        (
            "an attribute that the op does not have",
            Code::BadArgument,
            Box::new(move || run("relu", &[&a4], &with("slope", Attr::Float(1.0)))),
        ),
        ("an attribute out of its range", Code::BadArgument, Box::new(move || run("gemm", &[&a5, &fits], &axes))),
        ("two dtypes", Code::DTypeMismatch, Box::new(move || run("gemm", &[&a6, &double], &none()))),
        ("a dtype that the op does not have", Code::DTypeUnsupported, Box::new(move || run("softmax", &[&w], &none()))),
        (
            "a buffer beyond the device's limit",
            Code::AllocTooLarge,
            Box::new(move || device.alloc(too_much, MemoryKind::Device).map(drop)),
        ),
        ("a write behind the end", Code::BufferBounds, Box::new(move || queue()?.write(&small()?, 60, &[0; 8]))),
        ("a read behind the end", Code::BufferBounds, Box::new(move || queue()?.read(&small()?, 64, &mut [0; 4]))),
        ("a copy behind the end", Code::BufferBounds, Box::new(move || queue()?.copy(&small()?, 0, &small()?, 32, 64))),
        (
            "another device's buffer",
            Code::BufferForeign,
            Box::new(move || queue()?.write(&other.alloc(64, MemoryKind::Device)?, 0, &[0; 8])),
        ),
        (
            "a variant that does not exist",
            Code::BadArgument,
            Box::new(move || {
                let op = crate::op::find(Known::OP)?;
                let case = op.case(DType::F32, &[3, 4, 5], Attrs::new(), crate::base::Fill::Uniform)?;
                runner.prepare(op, &case, Some("no-such-variant")).map(drop)
            }),
        ),
    ])
}

#[cfg(test)]
mod tests {
    use super::*;

    /// However many engines a phase makes, it opens a hundred devices: one thing that stays of each is too much.
    #[test]
    fn what_stays_of_each_opened_device_is_seen() {
        let opened = OPENED - WARM;
        assert!(opened > may_stay(opened), "one each");
        assert!(opened / 3 <= may_stay(opened) && OTHERS <= may_stay(0), "a few, and those of others");
    }
}
