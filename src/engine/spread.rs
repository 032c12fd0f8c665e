//! Many calls of one op over several devices.
//!
//! Who gets which call is decided before the first one runs, by a pure function of the calls' sizes and the devices'
//! capacities, so that a run can be repeated.

use crate::base::{Attrs, Code, Error, HostTensor, Result};

use super::{Engine, Outcome, call};

/// How calls are spread over devices.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Distribution {
    /// In turn.
    #[default]
    RoundRobin,
    /// So that each device holds operands in proportion to its memory.
    MemoryBalanced,
    /// So that all devices are done at about the same time, by their compute units.
    ComputeBalanced,
}

/// A call or a device: its bytes and its work, or how much of each it can bear, in any unit.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Load {
    /// Bytes of operands; or of memory.
    pub bytes: f64,
    /// Work; or work in a unit of time.
    pub work: f64,
}

/// The device of each call. With a balance the largest call is placed first, each on the device that is then least full, of
/// equals the first.
pub fn assign(calls: &[Load], devices: &[Load], how: Distribution) -> Vec<usize> {
    let mut to = vec![0; calls.len()];
    if devices.is_empty() {
        return to;
    }
    let of = |l: &Load| match how {
        Distribution::RoundRobin => 1.0,
        Distribution::MemoryBalanced => l.bytes,
        Distribution::ComputeBalanced => l.work,
    };
    if how == Distribution::RoundRobin {
        to.iter_mut().enumerate().for_each(|(i, t)| *t = i % devices.len());
        return to;
    }
    let mut order: Vec<usize> = (0..calls.len()).collect();
    order.sort_by(|a, b| of(&calls[*b]).total_cmp(&of(&calls[*a])).then(a.cmp(b)));
    let mut full = vec![0.0; devices.len()];
    for i in order {
        let after = |d: usize| (full[d] + of(&calls[i])) / of(&devices[d]).max(f64::MIN_POSITIVE);
        let best = (0..devices.len()).min_by(|a, b| after(*a).total_cmp(&after(*b))).unwrap_or(0);
        full[best] += of(&calls[i]);
        to[i] = best;
    }
    to
}

impl Engine {
    /// Makes many calls of one op on several devices at once, and gives their results in the calls' order.
    ///
    /// `devices` are ids or uids of devices of this engine. A call that fails on its device is made by the CPU, as in
    /// [`Engine::run`]. Errors: `DeviceMissing` for one that is not there; errors of single calls are in their places.
    pub fn spread(
        &self,
        op: &str,
        calls: &[Vec<&HostTensor>],
        attrs: &Attrs,
        devices: &[&str],
        how: Distribution,
    ) -> Result<Vec<Result<Outcome>>> {
        let desc = call::find(op)?;
        let gpus = devices
            .iter()
            .map(|name| {
                let missing = || Error::new(Code::DeviceMissing, format!("the engine has no device '{name}'"));
                self.places.find(name).ok_or_else(missing)
            })
            .collect::<Result<Vec<usize>>>()?;
        if gpus.is_empty() {
            return Err(Error::new(Code::BadArgument, "no device is named").op(desc.name));
        }
        let able = |at: &usize| {
            let info = self.places.gpu(*at).map(|g| &g.info);
            let memory = info.and_then(|i| i.memory_bytes.or(Some(i.max_alloc_bytes))).unwrap_or(1);
            let units = info.map_or(1, |i| i.compute_units.max(1));
            Load { bytes: memory as f64, work: f64::from(units) }
        };
        let loads: Vec<Load> = calls
            .iter()
            .map(|inputs| {
                let bytes = inputs.iter().map(|t| t.bytes().len() as f64).sum();
                let work = call::bind(desc, inputs, attrs).map_or(0.0, |b| (desc.work)(&b.case) as f64);
                Load { bytes, work }
            })
            .collect();
        let to = assign(&loads, &gpus.iter().map(able).collect::<Vec<_>>(), how);
        let mut results: Vec<Option<Result<Outcome>>> = calls.iter().map(|_| None).collect();
        let done: Vec<(usize, Result<Outcome>)> = std::thread::scope(|s| {
            let threads: Vec<_> = gpus
                .iter()
                .enumerate()
                .map(|(lane, at)| {
                    let to = &to;
                    s.spawn(move || {
                        let mine = calls.iter().enumerate().filter(|(i, _)| to[*i] == lane);
                        mine.map(|(i, inputs)| (i, self.run_there(desc, inputs, attrs, *at))).collect::<Vec<_>>()
                    })
                })
                .collect();
            threads.into_iter().flat_map(|t| t.join().unwrap_or_default()).collect()
        });
        for (i, result) in done {
            results[i] = Some(result);
        }
        let lost = || Err(Error::new(Code::Internal, "the thread of its device panicked").op(desc.name));
        Ok(results.into_iter().map(|r| r.unwrap_or_else(lost)).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn loads(work: &[f64]) -> Vec<Load> {
        work.iter().map(|w| Load { bytes: 10.0 * w, work: *w }).collect()
    }

    #[test]
    fn calls_are_spread_by_turn_memory_or_speed() {
        let calls = loads(&[1.0, 2.0, 3.0, 4.0]);
        let same = [Load { bytes: 1.0, work: 1.0 }; 2];
        assert_eq!(assign(&calls, &same, Distribution::RoundRobin), [0, 1, 0, 1]);
        assert_eq!(assign(&calls, &same, Distribution::ComputeBalanced), [0, 1, 1, 0], "4 + 1 and 3 + 2");
        // The second device has three times the memory, the first three times the speed.
        let uneven = [Load { bytes: 1.0, work: 3.0 }, Load { bytes: 3.0, work: 1.0 }];
        let share = |how| {
            let to = assign(&loads(&[1.0; 40]), &uneven, how);
            to.iter().filter(|d| **d == 0).count()
        };
        assert_eq!(share(Distribution::MemoryBalanced), 10);
        assert_eq!(share(Distribution::ComputeBalanced), 30);
        assert!(assign(&calls, &[], Distribution::RoundRobin).iter().all(|d| *d == 0));
    }
}
