//! Simulated soaks: two hours of samples as a sound worker gives them, for judging the judge. Simulated, and only for that.

use crate::base::record::StressSample;
use crate::base::rng::Philox;
use crate::device::LedgerState;

use super::verdict::Evidence;

const MIB: f64 = 1024.0 * 1024.0;
/// Samples of a soak and the seconds between them.
pub const SAMPLES: usize = 480;
/// Seconds from one sample to the next.
pub const EVERY: f64 = 15.0;

/// Noise that remembers: each value is 0.9 of the one before and a normal part, so that its deviation is 1.
fn lasting(rng: &Philox, stream: u64) -> Vec<f64> {
    let mut last = 0.0;
    let part = (1.0f64 - 0.81).sqrt();
    (0..SAMPLES as u64)
        .map(|i| {
            last = 0.9 * last + part * rng.normal(stream, i);
            last
        })
        .collect()
}

/// The samples of a sound soak: resident memory that warms up, with noise of up to 20 MiB and, in some, steps of up to 200 MiB;
/// throughput with noise and, in some, a stretch under another load; a ledger whose programs grow only at first; memory of the
/// card with noise. Another `seed` is another soak.
pub fn clean_series(seed: u64) -> Vec<StressSample> {
    let rng = Philox::new(seed);
    let unit = |stream: u64| rng.unit(stream, 0);
    let (slow_rss, slow_rate, slow_card) = (lasting(&rng, 20), lasting(&rng, 21), lasting(&rng, 22));
    let (warm_up, tau) = (100.0 * unit(1) * MIB, 60.0 + 240.0 * unit(2));
    let (white, lasting) = (20.0 * unit(3) * MIB, 8.0 * unit(4) * MIB);
    // Up to two steps, up or down, anywhere.
    let steps: Vec<(usize, f64)> = (0..2u64)
        .filter(|i| rng.unit(5, *i) < 0.3)
        .map(|i| {
            let up = if rng.unit(7, i) < 0.7 { 1.0 } else { -1.0 };
            ((rng.unit(6, i) * SAMPLES as f64) as usize, up * (20.0 + 180.0 * rng.unit(17, i)) * MIB)
        })
        .collect();
    let (rate, noise) = (100.0 + 10_000.0 * unit(8), 0.02 + 0.06 * unit(9));
    let loaded = (unit(10) < 0.3).then(|| (unit(11) * SAMPLES as f64, 20.0 + 60.0 * unit(12)));
    (0..SAMPLES)
        .map(|i| {
            let (t, n) = (EVERY * (i + 1) as f64, i as u64);
            let stepped: f64 = steps.iter().filter(|s| s.0 <= i).map(|s| s.1).sum();
            let rss = 700.0 * MIB
                + warm_up * (1.0 - (-t / tau).exp())
                + stepped
                + white * rng.normal(0, n)
                + lasting * slow_rss[i];
            let slowed = loaded.is_some_and(|(from, long)| (from..from + long).contains(&(i as f64)));
            let factor = (noise * rng.normal(13, n) + 0.02 * slow_rate[i]).exp() * if slowed { 0.7 } else { 1.0 };
            let programs = (i as u64 + 1).min(40);
            StressSample {
                t,
                objects: 2 + programs,
                queues: 2,
                programs,
                rss_bytes: Some(rss.max(0.0) as u64),
                fds: Some(12 + rng.u64(14, n) % 3),
                threads: Some(9 + rng.u64(15, n) % 2),
                rate: rate * factor,
                p50_s: Some(1.0 / (rate * factor)),
                p99_s: Some(4.0 / rate * (0.3 * rng.normal(16, n)).exp()),
                device_used_bytes: Some(((3000.0 + 2.0 * slow_card[i]) * MIB) as u64),
                device_other_bytes: Some((500.0 * MIB) as u64),
                temperature_c: Some(60.0 + 5.0 * slow_card[i]),
                ..StressSample::default()
            }
        })
        .collect()
}

/// A sound phase with these samples: all of its work done, checked and given back.
pub fn sound(series: Vec<StressSample>) -> Evidence {
    let seconds = series.last().map_or(0.0, |s| s.t);
    Evidence {
        series,
        seconds,
        planned_seconds: seconds,
        planned: 1000,
        done: 1_000_000,
        bytes_planned: 1 << 40,
        bytes_checked: 1 << 40,
        ledger: Some((LedgerState::default(), LedgerState::default())),
        ..Evidence::default()
    }
}

/// Two hours in which resident memory leaks `per_minute` bytes a minute under normal noise, with one step of 200 MiB.
pub fn leaking_series(seed: u64, per_minute: f64, noise: f64) -> Vec<StressSample> {
    let rng = Philox::new(seed);
    let mut series = clean_series(seed);
    let at = (rng.unit(30, 0) * SAMPLES as f64) as usize;
    for (i, s) in series.iter_mut().enumerate() {
        let step = if i >= at { 200.0 * MIB } else { 0.0 };
        let rss = 500.0 * MIB + per_minute * s.t / 60.0 + step + noise * rng.normal(31, i as u64);
        s.rss_bytes = Some(rss.max(0.0) as u64);
    }
    series
}

/// A phase of `seconds` in which resident memory grows as the heap of a driver does that serves random sizes: `per_fold` bytes for
/// each e-fold of time, and beyond it a leak of `per_minute`, under normal noise.
pub fn settling_series(seed: u64, seconds: f64, per_fold: f64, per_minute: f64, noise: f64) -> Vec<StressSample> {
    let rng = Philox::new(seed);
    let mut series = clean_series(seed);
    let every = seconds / SAMPLES as f64;
    for (i, s) in series.iter_mut().enumerate() {
        s.t = every * (i + 1) as f64;
        let rss = 200.0 * MIB + per_fold * s.t.ln() + per_minute * s.t / 60.0 + noise * rng.normal(32, i as u64);
        s.rss_bytes = Some(rss.max(0.0) as u64);
    }
    series
}
