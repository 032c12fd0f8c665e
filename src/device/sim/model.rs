//! The simulator's cost model: what a machine is, and what each action costs on it, as pure functions.
//!
//! Noise-free prices are the truth that tests compare measured thresholds with. Not here: clocks and queues (`sim`).

use std::collections::BTreeMap;

use serde::Deserialize;

use crate::base::rng::Philox;
use crate::base::{Code, Cost, DType, Error, Result};

use super::rough::Rough;

/// A simulated machine: a CPU and a device on one clock.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Spec {
    /// Name of the preset; the device's id is `sim:NAME`, or `sim:NAME:CARD`.
    #[serde(skip)]
    pub name: String,
    /// Number of the card, where a machine is said to have several of them: each is opened apart.
    #[serde(skip)]
    pub card: Option<u16>,
    /// Key of the noise; equal seeds give equal times.
    pub seed: u64,
    /// Number of the simulated process: it selects the per-process part of the noise.
    #[serde(default)]
    pub process: u64,
    /// True if device and CPU share one memory.
    pub link_shared: bool,
    /// The baseline.
    pub cpu: Model,
    /// The GPU.
    pub device: Model,
}

/// One side of the machine. Times in seconds, rates per second, sizes in bytes.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Model {
    /// Name; says that it is simulated.
    pub name: String,
    /// Vendor.
    pub vendor: String,
    /// True if a launch runs on the calling thread (CPU); else it is queued and the host goes on.
    pub synchronous: bool,
    /// Memory; allocations beyond it fail.
    pub memory_bytes: u64,
    /// Compute units that work side by side.
    pub units: u32,
    /// Elements of the larger operand stream that one unit takes at a time.
    pub tile: u64,
    /// Units needed to draw the full bandwidth.
    pub bandwidth_units: u32,
    /// Fixed time of a launch on the device.
    pub launch_s: f64,
    /// Time of the host to submit a launch.
    pub submit_s: f64,
    /// Time of the host to notice that work is done.
    pub sync_s: f64,
    /// Fixed time of an allocation.
    pub alloc_s: f64,
    /// Time of an allocation per byte.
    pub alloc_s_per_byte: f64,
    /// Bandwidth of the memory.
    pub bandwidth: f64,
    /// Size of the last cache.
    pub cache_bytes: u64,
    /// Bandwidth while everything fits into the cache.
    pub cache_bandwidth: f64,
    /// Fixed time of a copy to or from the host.
    pub link_latency_s: f64,
    /// Bandwidth from the host.
    pub link_upload: f64,
    /// Bandwidth to the host.
    pub link_download: f64,
    /// Bandwidth between page-locked memory of the host and the device; absent: there is no such memory.
    #[serde(default)]
    pub link_pinned: Option<f64>,
    /// Bandwidth at which managed memory migrates when a launch touches it; absent: there is no such memory.
    #[serde(default)]
    pub link_managed: Option<f64>,
    /// Standard deviation of the logarithm of each single time.
    pub noise: f64,
    /// Standard deviation of the logarithm of a factor that is constant within a process.
    pub process_noise: f64,
    /// A step in speed, if any.
    #[serde(default)]
    pub throttle: Option<Throttle>,
    /// Prices of another form, if it has them. Then `tile`, `bandwidth_units`, `bandwidth` and `cache_bytes` say nothing.
    #[serde(default)]
    pub rough: Option<Rough>,
    /// Operations per second by dtype; a dtype without a rate is not supported.
    pub rates: BTreeMap<DType, f64>,
}

/// From `after_s` on the clock, launches take `factor` times as long.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Throttle {
    /// Seconds on the virtual clock.
    pub after_s: f64,
    /// Factor on the time of a launch.
    pub factor: f64,
}

impl Spec {
    /// Reads a machine. Errors: `BadArgument` for text that is not one or numbers that mean nothing.
    pub fn parse(name: &str, text: &str) -> Result<Self> {
        let mut spec: Spec = toml::from_str(text)
            .map_err(|e| Error::new(Code::BadArgument, format!("simulated machine '{name}': {}", e.message())))?;
        spec.name = name.to_string();
        spec.cpu.check("cpu")?;
        spec.device.check("device")?;
        Ok(spec)
    }

    /// The same machine without noise and throttling; each launch is delayed by the mean.
    pub fn quiet(mut self) -> Self {
        for m in [&mut self.cpu, &mut self.device] {
            (m.noise, m.process_noise, m.throttle) = (0.0, 0.0, None);
            if let Some(rough) = &mut m.rough {
                m.launch_s += rough.jitter_s;
                rough.jitter_s = 0.0;
            }
        }
        self
    }
}

impl Model {
    fn check(&self, part: &str) -> Result<()> {
        let positive = [
            ("bandwidth", self.bandwidth),
            ("cache_bandwidth", self.cache_bandwidth),
            ("link_upload", self.link_upload),
            ("link_download", self.link_download),
            ("link_pinned", self.link_pinned.unwrap_or(1.0)),
            ("link_managed", self.link_managed.unwrap_or(1.0)),
            ("units", f64::from(self.units)),
            ("tile", self.tile as f64),
            ("bandwidth_units", f64::from(self.bandwidth_units)),
        ];
        let not_negative = [
            ("launch_s", self.launch_s),
            ("submit_s", self.submit_s),
            ("sync_s", self.sync_s),
            ("alloc_s", self.alloc_s),
            ("alloc_s_per_byte", self.alloc_s_per_byte),
            ("link_latency_s", self.link_latency_s),
            ("noise", self.noise),
            ("process_noise", self.process_noise),
        ];
        let bad = |name: &str, v: f64, rule: &str| {
            Err(Error::new(Code::BadArgument, format!("simulated {part}: {name} = {v} must be {rule}")))
        };
        if let Some((name, v)) = positive.into_iter().find(|(_, v)| !(v.is_finite() && *v > 0.0)) {
            return bad(name, v, "positive");
        }
        if let Some((name, v)) = not_negative.into_iter().find(|(_, v)| !(v.is_finite() && *v >= 0.0)) {
            return bad(name, v, "zero or positive");
        }
        if let Some((dtype, v)) = self.rates.iter().find(|(_, v)| !(v.is_finite() && **v > 0.0)) {
            return bad(&format!("rates.{dtype}"), *v, "positive");
        }
        if let Some(t) = self.throttle
            && !(t.factor.is_finite() && t.factor > 0.0 && t.after_s >= 0.0)
        {
            return bad("throttle.factor", t.factor, "positive, after_s zero or positive");
        }
        self.rough.as_ref().map_or(Ok(()), |r| r.check(part))?;
        if self.rates.is_empty() { bad("rates", 0.0, "given for at least one dtype") } else { Ok(()) }
    }

    /// Noise-free seconds of one launch on the device, the fixed part included: launch + max(arithmetic, traffic).
    ///
    /// Work is cut into tiles of `tile` elements, one unit each. A GPU takes them in waves, and a wave that is not full
    /// takes as long as a full one; a CPU's threads share what is left over. Fewer tiles than `bandwidth_units` do not
    /// draw the full bandwidth. Both terms never fall when elements and work grow together. `None` if the dtype has no
    /// rate.
    pub fn launch(&self, cost: &Cost, dtype: DType) -> Option<f64> {
        self.launch_from(cost, dtype, 0.0)
    }

    /// The same where the cache has lost this share of the operands.
    pub fn launch_from(&self, cost: &Cost, dtype: DType, lost: f64) -> Option<f64> {
        let rate = *self.rates.get(&dtype)?;
        if let Some(rough) = &self.rough {
            return Some(rough.launch(self, cost, dtype.size(), rate));
        }
        let bytes = cost.bytes();
        let elements = (cost.read.max(cost.written) / dtype.size()).max(1) as f64;
        let tile = self.tile as f64;
        let tiles = (elements / tile).max(1.0);
        let units = f64::from(self.units);
        let waves = if self.synchronous { (tiles / units).max(1.0) } else { (tiles / units).ceil() };
        let arithmetic = cost.flops as f64 / rate * (waves * units / tiles);
        let traffic = self.traffic(bytes) * (1.0 - lost) + bytes as f64 / self.bandwidth * lost;
        let starved = (f64::from(self.bandwidth_units) / tiles).max(1.0);
        Some(self.launch_s + arithmetic.max(traffic * starved))
    }

    /// Seconds to move `bytes` at full bandwidth. Up to the cache's size everything hits; from twice its size on nothing
    /// does (a stream larger than its cache evicts itself), linear between.
    fn traffic(&self, bytes: u64) -> f64 {
        let missed = bytes.saturating_sub(self.cache_bytes).saturating_mul(2).min(bytes);
        (bytes - missed) as f64 / self.cache_bandwidth + missed as f64 / self.bandwidth
    }

    /// Noise-free seconds of a copy from the host.
    pub fn upload(&self, bytes: u64) -> f64 {
        self.link_latency_s + self.copy(bytes, self.link_upload)
    }

    /// Noise-free seconds of a copy to the host.
    pub fn download(&self, bytes: u64) -> f64 {
        self.link_latency_s + self.copy(bytes, self.link_download)
    }

    /// Noise-free seconds of a copy between the device and page-locked memory of the host; `None` if it has none.
    pub fn pinned(&self, bytes: u64) -> Option<f64> {
        self.link_pinned.map(|rate| self.link_latency_s + self.copy(bytes, rate))
    }

    /// Noise-free seconds in which managed memory migrates to a launch that touches it; `None` if there is none.
    pub fn migrated(&self, bytes: u64) -> Option<f64> {
        self.link_managed.map(|rate| self.link_latency_s + self.copy(bytes, rate))
    }

    fn copy(&self, bytes: u64, rate: f64) -> f64 {
        self.rough.as_ref().map_or(bytes as f64 / rate, |r| r.copy(bytes, rate))
    }

    /// What launch number `index` of part `part` in process `process` takes longer than the mean, or shorter.
    pub fn jitter(&self, seed: u64, part: u64, process: u64, index: u64) -> f64 {
        let uniform = || Philox::new(seed).unit(2 * part + 1 + (process << 8) + (1 << 32), index);
        self.rough.as_ref().filter(|r| r.jitter_s > 0.0).map_or(0.0, |r| r.delay(uniform()))
    }

    /// Noise-free seconds of a copy or fill within the device.
    pub fn local(&self, bytes: u64) -> f64 {
        self.launch_s + self.traffic(bytes)
    }

    /// Noise-free seconds of an allocation with its release.
    pub fn allocation(&self, bytes: u64) -> f64 {
        self.alloc_s + bytes as f64 * self.alloc_s_per_byte
    }

    /// Noise-free seconds of a whole call on an idle device: uploads (bytes each), launches in order, one wait,
    /// downloads (bytes each). `None` if the dtype has no rate.
    pub fn call(&self, uploads: &[u64], launches: &[Cost], dtype: DType, downloads: &[u64]) -> Option<f64> {
        let mut host: f64 = uploads.iter().map(|b| self.upload(*b)).sum();
        let mut busy = host;
        for cost in launches {
            host += self.submit_s;
            busy = busy.max(host) + self.launch(cost, dtype)?;
            if self.synchronous {
                host = busy;
            }
        }
        Some(host.max(busy) + self.sync_s + downloads.iter().map(|b| self.download(*b)).sum::<f64>())
    }

    /// The factor on time number `index` of part `part` in process `process`: exp(process_noise·N + noise·N').
    pub fn noise_factor(&self, seed: u64, part: u64, process: u64, index: u64) -> f64 {
        let rng = Philox::new(seed);
        let mut log = 0.0;
        if self.process_noise > 0.0 {
            log += self.process_noise * rng.normal(2 * part, process);
        }
        if self.noise > 0.0 {
            log += self.noise * rng.normal(2 * part + 1 + (process << 8), index);
        }
        log.exp()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::sim;

    fn stream(n: u64) -> Cost {
        Cost { flops: n, read: 8 * n, written: 4 * n }
    }

    #[test]
    fn prices_follow_the_stated_rates() {
        let h = sim::spec("h200").unwrap();
        // 2^31 elements of 12 bytes lie far beyond the cache: 4.3 TB/s.
        let n = 1u64 << 31;
        let t = h.device.launch(&stream(n), DType::F32).unwrap();
        let want = 12.0 * n as f64 / 4.3e12;
        assert!((t / want - 1.0).abs() < 0.01, "{t} {want}");
        // gemm 16384³ is bound by arithmetic.
        let n = 16_384u64;
        let gemm = Cost { flops: 2 * n * n * n, read: 8 * n * n, written: 4 * n * n };
        let t = h.device.launch(&gemm, DType::F32).unwrap();
        assert!((t / (2.0 * (n as f64).powi(3) / 5.4e13) - 1.0).abs() < 0.01);
        // An empty launch costs its fixed part; an unknown dtype nothing at all.
        assert_eq!(h.device.launch(&Cost::default(), DType::F32), Some(h.device.launch_s));
        assert_eq!(h.device.launch(&Cost::default(), DType::U8), None);
    }

    #[test]
    fn prices_never_fall_with_size() {
        for name in sim::presets() {
            let s = sim::spec(name).unwrap();
            for m in [&s.cpu, &s.device].into_iter().filter(|m| m.rough.is_none()) {
                let (mut last, mut last_gemm) = (0.0, 0.0);
                let mut n = 1u64;
                while n < 1 << 26 {
                    let t = m.launch(&stream(n), DType::F32).unwrap();
                    assert!(t >= last * (1.0 - 1e-12), "{} at {n}: {t} < {last}", m.name);
                    last = t;
                    let d = (n as f64).cbrt() as u64 * 4;
                    let t = m
                        .launch(&Cost { flops: 2 * d * d * d, read: 8 * d * d, written: 4 * d * d }, DType::F32)
                        .unwrap();
                    assert!(t >= last_gemm * (1.0 - 1e-12), "{} gemm at {d}", m.name);
                    last_gemm = t;
                    n = n + n / 37 + 1;
                }
            }
        }
    }

    #[test]
    fn the_cache_has_a_cliff_and_waves_have_steps() {
        let m = sim::spec("h200").unwrap().device;
        let (inside, outside) = (m.traffic(m.cache_bytes), m.traffic(2 * m.cache_bytes));
        assert!(outside / inside > 3.0, "twice the bytes take {} times as long", outside / inside);
        // One element more than a full wave starts another one.
        let wave = m.tile * u64::from(m.units);
        let heavy = |n: u64| m.launch(&Cost { flops: 100_000 * n, read: 4 * n, written: 4 * n }, DType::F32).unwrap();
        let step = (heavy(wave + 1) - m.launch_s) / (heavy(wave) - m.launch_s);
        assert!((step - 2.0).abs() < 0.01, "{step}");
    }

    #[test]
    fn noise_has_the_stated_spread_and_repeats() {
        let mut m = sim::spec("h200").unwrap().device;
        m.noise = 0.1;
        m.process_noise = 0.0;
        let logs: Vec<f64> = (0..4000).map(|i| m.noise_factor(1, 1, 0, i).ln()).collect();
        let var = logs.iter().map(|v| v * v).sum::<f64>() / logs.len() as f64;
        assert!((var.sqrt() - 0.1).abs() < 0.005, "{}", var.sqrt());
        assert_eq!(m.noise_factor(1, 1, 0, 7), m.noise_factor(1, 1, 0, 7));
        m.noise = 0.0;
        m.process_noise = 0.1;
        assert_eq!(m.noise_factor(1, 1, 3, 0), m.noise_factor(1, 1, 3, 99), "constant within a process");
        assert_ne!(m.noise_factor(1, 1, 3, 0), m.noise_factor(1, 1, 4, 0));
    }

    #[test]
    fn nonsense_is_refused() {
        let good = include_str!("textbook.toml");
        assert!(Spec::parse("x", good).is_ok());
        for (from, to) in [
            ("units = 1", "units = 0"),
            ("bandwidth = 1.0e30", "bandwidth = nan"),
            ("launch_s = 9.0e-5", "launch_s = -1.0"),
            ("f32 = 1.0e10", "f99 = 1.0e10"),
            ("seed = 0", "sed = 0"),
        ] {
            assert!(good.contains(from));
            let e = Spec::parse("x", &good.replacen(from, to, 1)).unwrap_err();
            assert_eq!(e.code(), Code::BadArgument, "{to}");
        }
    }
}
