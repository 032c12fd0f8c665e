//! Prices that no smooth curve describes: tiles, waves, chunks, cliffs, bands, packets, threads that start at a size.
//!
//! What calibration fits knows none of this file's forms, and this file none of the fitted ones, so that what a fit leaves
//! unexplained here is what it might leave on a device. Pure functions.

use serde::Deserialize;

use crate::base::{Code, Cost, Error, Result};

use super::Model;

/// How one side departs from launch + max(arithmetic, traffic). Zero or empty: not in this respect.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Rough {
    /// Results that a unit makes at a time; a started tile takes as long as a whole one, and units take tiles in waves.
    pub tile: u64,
    /// Operations per result that a unit does at a time, rounded up.
    pub chunk: u64,
    /// Operations per result from which on the work of a result is shared by several units.
    pub split: u64,
    /// Operations per result that a tile costs besides: filling and emptying its pipeline.
    pub prologue: u64,
    /// Bytes of a launch from which on traffic takes so many times as long; ascending.
    pub cliffs: Vec<(u64, f64)>,
    /// Launches whose larger operand stream lies between these bytes take so many times as long.
    pub bands: Vec<(u64, u64, f64)>,
    /// Elements from which on all units take part, before that one does (a CPU's threads).
    pub grain: u64,
    /// Time to start the others.
    pub fork_s: f64,
    /// Copies travel in packets of so many bytes.
    pub packet: u64,
    /// A long copy's rate falls to 1 / (1 + this): others use the link.
    pub contention: f64,
    /// Bytes at which half of that is reached.
    pub contention_bytes: u64,
    /// Mean of an exponential delay of each launch.
    pub jitter_s: f64,
}

impl Rough {
    pub(super) fn check(&self, part: &str) -> Result<()> {
        let numbers = [self.fork_s, self.contention, self.jitter_s];
        let factors = self.cliffs.iter().map(|c| c.1).chain(self.bands.iter().map(|b| b.2));
        let sound = numbers.iter().all(|v| v.is_finite() && *v >= 0.0)
            && factors.clone().all(|f| f.is_finite() && f > 0.0)
            && self.cliffs.windows(2).all(|w| w[0].0 < w[1].0)
            && self.bands.iter().all(|b| b.0 < b.1);
        if sound {
            return Ok(());
        }
        Err(Error::new(
            Code::BadArgument,
            format!("simulated {part}: rough: times must be zero or more, factors positive, sizes must ascend"),
        ))
    }

    /// Noise-free seconds of a launch with elements of `size` bytes at `rate` operations per second.
    pub(super) fn launch(&self, m: &Model, cost: &Cost, size: u64, rate: f64) -> f64 {
        let results = (cost.written / size).max(1);
        let elements = (cost.read.max(cost.written) / size).max(1);
        let depth = cost.flops.div_ceil(results).max(1);
        let units = u64::from(m.units);
        let forked = self.grain > 0 && elements >= self.grain;
        let workers = if self.grain > 0 && !forked { 1 } else { units };
        let parts = if self.split > 0 { depth.div_ceil(self.split) } else { 1 };
        let up = |v: u64, to: u64| if to > 0 { v.div_ceil(to) * to } else { v };
        let steps = up(depth.div_ceil(parts), self.chunk) + self.prologue;
        let per_unit = rate / units as f64;
        let arithmetic = if self.tile > 0 {
            let waves = (results.div_ceil(self.tile) * parts).div_ceil(workers);
            (waves * self.tile * steps) as f64 / per_unit
        } else {
            (results * parts * steps) as f64 / (per_unit * workers as f64)
        };
        let bytes = cost.bytes();
        let cliff = self.cliffs.iter().rev().find(|c| bytes >= c.0).map_or(1.0, |c| c.1);
        // One unit draws its share and half as much again of what the others leave.
        let share = if workers == units { 1.0 } else { (1.5 / units as f64).min(1.0) };
        let traffic = bytes as f64 / (m.cache_bandwidth * share) * cliff;
        // They overlap, but get into each other's way.
        let body = (arithmetic.powi(3) + traffic.powi(3)).cbrt();
        let stream = elements * size;
        let band: f64 = self.bands.iter().filter(|b| b.0 <= stream && stream < b.1).map(|b| b.2).product();
        m.launch_s + self.jitter_s + if forked { self.fork_s } else { 0.0 } + body * band
    }

    /// Noise-free seconds of a copy at this rate, latency apart.
    pub(super) fn copy(&self, bytes: u64, rate: f64) -> f64 {
        let sent = if self.packet > 0 { bytes.div_ceil(self.packet) * self.packet } else { bytes } as f64;
        let half = self.contention_bytes.max(1) as f64;
        sent / rate * (1.0 + self.contention * sent / (sent + half))
    }

    /// A launch's delay beyond its mean, for a uniform number in [0, 1): exponential, so it is at least minus the mean.
    pub(super) fn delay(&self, uniform: f64) -> f64 {
        self.jitter_s * (-(1.0 - uniform).ln() - 1.0)
    }
}
