//! What was measured at the sizes of a sweep, process by process.

use std::collections::BTreeMap;

use crate::base::Reading;
use crate::measure::common::{Common, Whose};
use crate::measure::crossing::{self, Look};

/// Samples of the CPU and of the device in one process.
pub(super) type Pair = (Vec<f64>, Vec<f64>);

/// A size in one process: samples of all visits, and what each visit found, with its number among all looks.
#[derive(Clone, Debug, Default)]
pub(super) struct Visited {
    pub(super) pair: Pair,
    logs: Vec<(f64, usize)>,
}

impl Visited {
    /// One visit more, at that time.
    pub(super) fn add(
        &mut self,
        (at, whose): (f64, Whose),
        (cpu, device): (&[f64], &[f64]),
        reading: Option<Reading>,
        common: &mut Common,
    ) {
        let log = crossing::log_ratio(cpu, device);
        self.logs.push((log, common.add(at, whose, log, cpu.len().min(device.len()), reading)));
        self.pair.0.extend(cpu);
        self.pair.1.extend(device);
    }

    pub(super) fn visits(&self) -> usize {
        self.logs.len()
    }
}

/// What was measured of one residency, by the number that the size is made from; the processes in order.
pub(super) type Series = BTreeMap<u64, Vec<Visited>>;

pub(super) fn looks(series: &Series) -> Vec<Look> {
    by(series, |(log, _)| log)
}

/// The same with such a part of what the machine's state does taken off, and of so much more.
pub(super) fn stated(series: &Series, common: &Common, part: f64, more: f64) -> Vec<Look> {
    by(series, |(log, number)| log - part * (common.off_by_state(number) + more))
}

/// The same with that part taken off, and what looks at other keys have in common with these.
pub(super) fn alone(series: &Series, common: &Common, part: f64) -> Vec<Look> {
    by(series, |(log, number)| log - part * common.off_by_state(number) - common.off_in_common(number))
}

fn by(series: &Series, of: impl Fn((f64, usize)) -> f64) -> Vec<Look> {
    let look = |(size, all): (&u64, &Vec<Visited>)| {
        let logs = |v: &Visited| v.logs.iter().map(|log| of(*log)).collect();
        let logs: Vec<Vec<f64>> = all.iter().map(logs).collect();
        Look::visited(*size, logs.iter().map(Vec::as_slice))
    };
    series.iter().map(look).collect()
}
