//! A mix over the whole table, one call after the other, and training steps of growing depth; every result is checked in full.

use std::time::{Duration, Instant};

use crate::base::Result;
use crate::base::rng::Philox;
use crate::engine::run::Runner;

use super::Ctx;
use super::reference::{Golden, build, candidates};
use super::train::{DEPTHS, Training};

/// Operand bytes of one case at most: the mix matters here, not the size.
const MAX_CASE: u64 = 4 << 20;
/// Inputs and references of all cases together.
const MAX_TOTAL: u64 = 256 << 20;
/// How long one case is repeated before the next.
const SLICE: Duration = Duration::from_millis(10);
/// Cases between two trainings.
const BETWEEN: usize = 16;

pub(super) fn run(ctx: &Ctx<'_>) -> Result<()> {
    let runner = ctx.runner();
    let budget = (0.25 * ctx.seconds).min(30.0);
    let goldens = build(ctx, &runner, candidates(&runner, MAX_CASE), budget, MAX_TOTAL)?;
    ctx.meter.count("cases", goldens.len() as u64);
    if goldens.is_empty() {
        return Ok(());
    }
    let trainings = trainings(ctx, 0.1 * ctx.seconds)?;
    ctx.meter.testing();
    let rng = Philox::new(ctx.seed);
    let mut round = 0;
    let mut steps = 0;
    while ctx.running() {
        for (i, golden) in order(&goldens, &rng, round).into_iter().enumerate() {
            if !ctx.running() {
                break;
            }
            slice(ctx, &runner, golden, 0, SLICE)?;
            if i % BETWEEN == 0 && !trainings.is_empty() {
                train(ctx, &runner, &trainings[steps % trainings.len()])?;
                steps += 1;
            }
            // Before that each training may add its programs, and on a busy machine that is a growth over the whole phase.
            if round > 0 && steps >= trainings.len() {
                ctx.meter.quiet(ctx.device.ledger().state());
            }
        }
        round += 1;
    }
    ctx.meter.count("rounds", round);
    ctx.meter.count("trainings", steps as u64);
    ctx.count_kernels(&runner);
    Ok(())
}

/// Networks of all depths that there is time to work out, the shallowest whatever it takes.
fn trainings(ctx: &Ctx<'_>, budget: f64) -> Result<Vec<Training>> {
    let start = Instant::now();
    let mut all: Vec<Training> = Vec::new();
    for depth in DEPTHS {
        // Twice as deep takes twice as long, and as long as all before it together.
        if start.elapsed().as_secs_f64() > 0.5 * budget && !all.is_empty() {
            ctx.meter.not_tested(format!("training of {depth} layers and more: no time for its reference"));
            break;
        }
        ctx.meter.doing(0, &format!("reference of a network of {depth} layers"));
        all.push(Training::new(ctx.seed, depth)?);
    }
    ctx.meter.count("deepest_network", all.last().map_or(0, |t| t.depth as u64));
    Ok(all)
}

/// Some steps, with everything given back at their end.
fn train(ctx: &Ctx<'_>, runner: &Runner, training: &Training) -> Result<()> {
    let mut lease = runner.lease()?;
    let ran = lease.queue().and_then(|q| training.run(ctx, runner, q, 0));
    ran.or_else(|e| {
        lease.discard();
        ctx.meter.survive(e)
    })
}

/// The cases in an order of this round's own (Fisher and Yates).
pub(super) fn order<'g>(goldens: &'g [Golden], rng: &Philox, round: u64) -> Vec<&'g Golden> {
    let mut all: Vec<&Golden> = goldens.iter().collect();
    for i in (1..all.len()).rev() {
        all.swap(i, (rng.u64(round, i as u64) % (i as u64 + 1)) as usize);
    }
    all
}

/// Prepares a case anew, repeats it for a while and gives everything back. A lost device is the error; other failures
/// are counted.
pub(super) fn slice(ctx: &Ctx<'_>, runner: &Runner, golden: &Golden, lane: usize, long: Duration) -> Result<()> {
    ctx.meter.doing(lane, &golden.name);
    let mut lease = runner.lease()?;
    let mut attempt = || -> Result<()> {
        let prepared = runner.prepare(golden.op, &golden.case, None)?;
        let q = lease.queue()?;
        let start = Instant::now();
        loop {
            let from = Instant::now();
            let wrong = golden.repeat(&prepared, q, ctx)?;
            ctx.meter.cycle(lane, golden.bytes, golden.bytes, from.elapsed().as_secs_f64());
            if let Some(wrong) = wrong {
                ctx.meter.mismatch(wrong);
            }
            if start.elapsed() >= long || ctx.meter.stop.raised() {
                break;
            }
        }
        if let Err(e) = prepared.check_guards(q) {
            if e.code() != crate::base::Code::ResultWrong {
                return Err(e);
            }
            ctx.meter.mismatch(e.to_string());
        }
        Ok(())
    };
    match attempt() {
        Ok(()) => Ok(()),
        Err(e) => {
            // Whatever the queue still holds belongs to the failed call.
            lease.discard();
            if ctx.meter.failed(&e) { Ok(()) } else { Err(e) }
        }
    }
}
