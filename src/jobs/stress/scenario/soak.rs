//! A mix over the whole table, one call after the other, every result checked in full.

use std::time::{Duration, Instant};

use crate::base::Result;
use crate::base::rng::Philox;
use crate::engine::run::Runner;

use super::Ctx;
use super::reference::{Golden, build, candidates};

/// Operand bytes of one case at most: the mix matters here, not the size.
const MAX_CASE: u64 = 4 << 20;
/// Inputs and references of all cases together.
const MAX_TOTAL: u64 = 256 << 20;
/// How long one case is repeated before the next.
const SLICE: Duration = Duration::from_millis(10);

pub(super) fn run(ctx: &Ctx<'_>) -> Result<()> {
    let runner = ctx.runner();
    let budget = (0.25 * ctx.seconds).min(30.0);
    let goldens = build(ctx, &runner, candidates(&runner, MAX_CASE), budget, MAX_TOTAL)?;
    ctx.meter.count("cases", goldens.len() as u64);
    if goldens.is_empty() || ctx.idle {
        return Ok(());
    }
    ctx.meter.testing();
    let rng = Philox::new(ctx.seed);
    let mut round = 0;
    while ctx.running() {
        for golden in order(&goldens, &rng, round) {
            if !ctx.running() {
                break;
            }
            slice(ctx, &runner, golden, 0, SLICE)?;
            ctx.meter.quiet(ctx.device.ledger().state());
        }
        round += 1;
    }
    ctx.meter.count("rounds", round);
    ctx.count_kernels(&runner);
    Ok(())
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
