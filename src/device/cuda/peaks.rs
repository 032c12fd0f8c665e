//! What a chip's figures allow at most.

use crate::base::Theoretical;

/// What the driver tells about a chip.
#[derive(Clone, Copy, Debug)]
pub(super) struct Figures {
    /// Compute capability.
    pub(super) compute_capability: (u32, u32),
    /// Multiprocessors.
    pub(super) units: u32,
    /// Highest clock of the multiprocessors.
    pub(super) clock_khz: u32,
    /// Clock of the memory.
    pub(super) memory_khz: u32,
    /// Width of the memory's bus.
    pub(super) bus_bits: u32,
}

/// Fused multiply-adds per clock and multiprocessor in f32 and f64, from the table "Throughput of Native Arithmetic
/// Instructions" of the CUDA C++ Programming Guide (12.8, 8.4.1).
const LANES: [((u32, u32), f64, f64); 13] = [
    ((5, 0), 128.0, 4.0),
    ((5, 2), 128.0, 4.0),
    ((5, 3), 128.0, 4.0),
    ((6, 0), 64.0, 32.0),
    ((6, 1), 128.0, 4.0),
    ((6, 2), 128.0, 4.0),
    ((7, 0), 64.0, 32.0),
    ((7, 5), 64.0, 2.0),
    ((8, 0), 64.0, 32.0),
    ((8, 6), 128.0, 2.0),
    ((8, 9), 128.0, 2.0),
    ((9, 0), 128.0, 64.0),
    ((12, 0), 128.0, 2.0),
];

/// Peaks at the highest clock; `None` if the driver tells none of them. A chip that is not in the table has no peak of
/// arithmetic.
pub(super) fn theoretical(f: &Figures) -> Option<Theoretical> {
    let lanes = LANES.iter().find(|(cc, ..)| *cc == f.compute_capability);
    let rate = |per_clock: f64| Some(2.0 * per_clock * f64::from(f.units) * f64::from(f.clock_khz) * 1e-6);
    let known = |v: Option<f64>| v.filter(|v| *v > 0.0);
    let peaks = Theoretical {
        f32_gflops: known(lanes.and_then(|l| rate(l.1))),
        f64_gflops: known(lanes.and_then(|l| rate(l.2))),
        // Two transfers a clock, in the driver's way of counting clocks.
        memory_gbps: known(Some(2.0 * f64::from(f.memory_khz) * f64::from(f.bus_bits) / 8.0 * 1e-6)),
        source: "clocks, units and bus width as the driver tells them".into(),
    };
    let any = peaks.f32_gflops.or(peaks.f64_gflops).or(peaks.memory_gbps);
    any.map(|_| peaks)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// NVIDIA's H100 SXM5 and GeForce RTX 4090 as their data sheets state them: 67 and 34 TFLOP/s, 3.35 TB/s; 82.6 TFLOP/s,
    /// 1008 GB/s.
    #[test]
    fn data_sheets_are_met() {
        let h100 = Figures {
            compute_capability: (9, 0),
            units: 132,
            clock_khz: 1_980_000,
            memory_khz: 2_619_000,
            bus_bits: 5120,
        };
        let near = |got: Option<f64>, want: f64| assert!((got.unwrap() / want - 1.0).abs() < 0.02, "{got:?} {want}");
        let p = theoretical(&h100).unwrap();
        near(p.f32_gflops, 67_000.0);
        near(p.f64_gflops, 33_500.0);
        near(p.memory_gbps, 3_350.0);
        let rtx = Figures {
            compute_capability: (8, 9),
            units: 128,
            clock_khz: 2_520_000,
            memory_khz: 10_501_000,
            bus_bits: 384,
        };
        let p = theoretical(&rtx).unwrap();
        near(p.f32_gflops, 82_600.0);
        near(p.memory_gbps, 1_008.0);
        let silent = Figures { clock_khz: 0, memory_khz: 0, ..h100 };
        assert_eq!(theoretical(&silent), None);
        let new = theoretical(&Figures { compute_capability: (99, 0), ..h100 }).unwrap();
        assert!(new.f32_gflops.is_none() && new.memory_gbps.is_some());
    }
}
