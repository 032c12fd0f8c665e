//! What was measured at the sizes of a sweep, process by process.

use std::collections::BTreeMap;

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
    pub(super) fn add(&mut self, (at, whose): (f64, Whose), cpu: &[f64], device: &[f64], common: &mut Common) {
        let log = crossing::log_ratio(cpu, device);
        self.logs.push((log, common.add(at, whose, log, cpu.len().min(device.len()))));
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
    by(series, |_, (log, _)| log)
}

/// The same without what looks at other keys have in common with these; but sizes of the first look as they are, which say where
/// to look: that must not change with each look.
pub(super) fn alone(series: &Series, grid: &[u64], common: &Common) -> Vec<Look> {
    by(series, |size, (log, number)| if grid.contains(&size) { log } else { log - common.off(number) })
}

fn by(series: &Series, of: impl Fn(u64, (f64, usize)) -> f64) -> Vec<Look> {
    let look = |(size, all): (&u64, &Vec<Visited>)| {
        let logs = |v: &Visited| v.logs.iter().map(|log| of(*size, *log)).collect();
        let logs: Vec<Vec<f64>> = all.iter().map(logs).collect();
        Look::visited(*size, logs.iter().map(Vec::as_slice))
    };
    series.iter().map(look).collect()
}
