//! Many threads on one device: shared programs and queues, mixed ops, every result checked.

use std::time::Duration;

use crate::base::rng::Philox;
use crate::base::{Code, Error, Result};

use super::reference::{build, candidates};
use super::soak::{order, slice};
use super::{Ctx, Meter};

/// Small cases: the threads meet in the driver, not in the kernels.
const MAX_CASE: u64 = 256 << 10;
const MAX_TOTAL: u64 = 64 << 20;
const SLICE: Duration = Duration::from_millis(2);

/// Takes a lane off the watch however its thread ends.
struct Watched<'m, 'o>(&'m Meter<'o>, usize);
impl Drop for Watched<'_, '_> {
    fn drop(&mut self) {
        self.0.rest(self.1);
    }
}

pub(super) fn run(ctx: &Ctx<'_>) -> Result<()> {
    let runner = ctx.runner();
    let budget = (0.15 * ctx.seconds).min(10.0);
    let goldens = build(ctx, &runner, candidates(&runner, MAX_CASE), budget, MAX_TOTAL)?;
    ctx.meter.count("cases", goldens.len() as u64);
    ctx.meter.rest(0);
    if goldens.is_empty() || ctx.idle {
        return Ok(());
    }
    ctx.meter.count("threads", u64::from(ctx.threads));
    ctx.meter.testing();
    let (runner, goldens) = (&runner, &goldens[..]);
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..ctx.threads as usize)
            .map(|lane| {
                scope.spawn(move || -> Result<()> {
                    let _watched = Watched(ctx.meter, lane);
                    let rng = Philox::new(ctx.seed ^ (lane as u64 + 1) << 32);
                    let mut round = 0;
                    while ctx.running() {
                        for golden in order(goldens, &rng, round) {
                            if !ctx.running() {
                                break;
                            }
                            slice(ctx, runner, golden, lane, SLICE)?;
                        }
                        round += 1;
                    }
                    Ok(())
                })
            })
            .collect();
        let mut end = Ok(());
        for thread in threads {
            let one =
                thread.join().unwrap_or_else(|_| Err(Error::new(Code::Internal, "a thread of the soak panicked")));
            end = end.and(one);
        }
        end
    })?;
    // All threads are back: what is allocated now is what nobody gave back.
    ctx.meter.quiet(ctx.device.ledger().state());
    ctx.count_kernels(runner);
    Ok(())
}
