//! Shapes besides the sweep, for curves: chosen beforehand, then where curves leave the place in doubt; a look at a time.

use crate::base::{Case, Features, Result};
use crate::jobs::calibrate::shapes::{farthest, shapes};
use crate::profile::model;

use super::{Looked, Running};

/// Shapes besides the sweep that curves rest on: where there is one dimension, and where there are more.
const OTHERS: [usize; 2] = [10, 24];

/// Where the winner changes, so many times as many shapes more whose place is in doubt then, out of a pool of them. With several
/// dimensions few of a pool have nearly the extent at which threads may start, or are about as fast on both sides: out of 600, a
/// third round asked for none there; out of 2,400, no round asked for one at which a cache would have shown.
const DOUBTFUL: [usize; 3] = [16, 8, 9600];

/// First ones of the pool that are far from others: of more, the farthest would be more extreme ones.
const FAR: usize = 600;

/// Looks at each of these shapes.
const LOOKS: usize = 3;

/// Makes the seed of the pool another one.
const POOL_SEED: u64 = 0x9001;

/// Shapes besides the sweep.
#[derive(Debug)]
pub(super) struct Elsewhere {
    /// Those that are looked at, in this order, [`LOOKS`] times.
    cases: Vec<Case>,
    /// Where shapes in doubt are chosen from.
    pool: Vec<Case>,
    /// Times that some were chosen.
    rounds: usize,
    /// Looks so far at all of them, and at so many of them once more.
    looked: (usize, usize),
}

impl Running<'_, '_> {
    /// The next shape besides the sweep; true if there is another.
    pub(super) fn look_elsewhere(&mut self) -> Result<bool> {
        if self.out.stopped() || self.left() <= 0.0 {
            return Ok(false);
        }
        let mut elsewhere = match self.out.state.elsewhere.take() {
            Some(known) => known,
            None => match self.elsewhere()? {
                Some(new) => new,
                None => return Ok(false),
            },
        };
        let looked = self.look_at_one_of(&mut elsewhere);
        self.out.state.elsewhere = Some(elsewhere);
        looked
    }

    fn look_at_one_of(&mut self, elsewhere: &mut Elsewhere) -> Result<bool> {
        let [rounds, each, _] = DOUBTFUL;
        let (all, more) = elsewhere.looked;
        if all == 0 && more == elsewhere.cases.len() && elsewhere.rounds < rounds && self.out.crosses() {
            let sweep = self.sweep;
            let candidates: Vec<Features> = elsewhere.pool.iter().map(|case| sweep.op.features(case)).collect();
            let count = self.out.state.series.len();
            let keys = (0..count).map(|which| sweep.samples(self.out, which)).collect::<Result<Vec<_>>>()?;
            let chosen = model::doubtful(&keys, &candidates, each);
            elsewhere.cases.extend(chosen.into_iter().map(|i| elsewhere.pool[i].clone()));
            elsewhere.rounds += 1;
        }
        if more == elsewhere.cases.len() {
            elsewhere.looked = (all + 1, 0);
        }
        let (all, more) = elsewhere.looked;
        let Some(case) = elsewhere.cases.get(more).filter(|_| all < LOOKS) else { return Ok(false) };
        let process = (all + more) % self.sweep.processes.min(3);
        let residencies: Vec<usize> = (0..self.out.state.series.len()).collect();
        if let Looked::Timed(timed) = self.look(case, &residencies, process, false)? {
            self.out.calls[1] += timed.calls;
            let pairs = timed.devices.into_iter().map(|d| (timed.cpu.clone(), d)).collect();
            self.out.state.others.push((case.clone(), process, pairs));
        }
        elsewhere.looked = (all, more + 1);
        Ok(!self.out.stopped())
    }

    /// Which shapes; `None` where no size was measured.
    fn elsewhere(&self) -> Result<Option<Elsewhere>> {
        let grid = &self.out.state.grid;
        let (Some(low), Some(high)) = (grid.first().copied(), grid.last().copied()) else { return Ok(None) };
        let sweep = self.sweep;
        let range = (sweep.size(low)?, sweep.size(high)?);
        let n = OTHERS[usize::from(!sweep.op.has_one_dimension())];
        let pool = shapes(sweep.op, sweep.dtype, sweep.family, range, sweep.seed ^ POOL_SEED, DOUBTFUL[2], false)?;
        let mut cases = shapes(sweep.op, sweep.dtype, sweep.family, range, sweep.seed, n, true)?;
        if !sweep.op.has_one_dimension() {
            cases.truncate(n / 2);
            let far = farthest(sweep.op, &cases, &pool[..pool.len().min(FAR)], n - cases.len());
            cases.extend(far.into_iter().map(|i| pool[i].clone()));
        }
        Ok(Some(Elsewhere { cases, pool, rounds: 0, looked: (0, 0) }))
    }
}
