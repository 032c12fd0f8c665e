//! What was measured at the sizes of a sweep, process by process.

use std::collections::BTreeMap;

use crate::measure::crossing::{self, Look};

/// Samples of the CPU and of the device in one process.
pub(super) type Pair = (Vec<f64>, Vec<f64>);

/// A size in one process: samples of all visits, and what each visit found.
#[derive(Clone, Debug, Default)]
pub(super) struct Visited {
    pub(super) pair: Pair,
    pub(super) logs: Vec<f64>,
}

impl Visited {
    pub(super) fn add(&mut self, cpu: &[f64], device: &[f64]) {
        self.logs.push(crossing::log_ratio(cpu, device));
        self.pair.0.extend(cpu);
        self.pair.1.extend(device);
    }
}

/// What was measured of one residency, by the number that the size is made from; the processes in order.
pub(super) type Series = BTreeMap<u64, Vec<Visited>>;

pub(super) fn looks(series: &Series) -> Vec<Look> {
    series.iter().map(|(size, all)| Look::visited(*size, all.iter().map(|v| v.logs.as_slice()))).collect()
}
