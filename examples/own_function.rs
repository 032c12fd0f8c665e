//! A threshold for a function of one's own, and what a profile with it answers.
//!
//! `cargo run --example own_function`. Both sides are simulated here, so that everyone sees the same: the CPU takes 1 ns an
//! element, the device 90 us and a tenth of a nanosecond an element, and both waver by 5 %. Yours go into the closures, with
//! `RealClock` in place of `VirtualClock`.
#![allow(clippy::print_stdout, reason = "an example shows its results")]

use std::sync::Arc;

use gpuctl::base::rng::Philox;
use gpuctl::base::sink::Cancel;
use gpuctl::base::{Result, VirtualClock};
use gpuctl::jobs::calibrate::{Own, measure};
use gpuctl::profile::{Call, Kind, Place, Policy, Profile, ProfileDevice};

fn main() -> Result<()> {
    let clock = Arc::new(VirtualClock::new());
    let rng = Philox::new(1);
    let takes = |stream: u64, count: &mut u64, seconds: f64| {
        *count += 1;
        clock.advance(seconds * (0.05 * rng.normal(stream, *count)).exp());
        Ok(())
    };
    let (mut cpu_calls, mut gpu_calls) = (0, 0);
    let mut on_cpu = |n: u64| takes(0, &mut cpu_calls, n as f64 * 1e-9);
    let mut on_gpu = |n: u64| takes(1, &mut gpu_calls, 90e-6 + n as f64 * 1e-10);

    let own = Own {
        name: "blur".into(),
        device: ProfileDevice {
            id: "opencl:0".into(),
            uid: "simulated".into(),
            backend: "opencl".into(),
            ..ProfileDevice::default()
        },
        margin: 1.1,
        budget_s: 60.0,
        clock: clock.clone(),
    };
    let entry = measure(&own, "elements", (1_000, 10_000_000), &mut on_cpu, &mut on_gpu, &Cancel::new())?;
    println!("{}: {}, crossing {:?} in {:?}", entry.op, entry.verdict, entry.crossing, entry.ci);

    let mut profile = Profile::new(Kind::Calibrated, "mine");
    profile.put(&own.device, entry);
    // Saved and loaded, it answers without an engine.
    let profile = Profile::from_toml(&profile.to_toml()?)?;
    for (n, want) in [(50_000, Place::Cpu), (200_000, Place::Gpu)] {
        let placed = profile.choose(Policy::Automatic, &Call::own("blur", "elements", n));
        println!("{n} elements: {:?}, because {}", placed.place, placed.why.text());
        assert_eq!(placed.place, want);
    }
    Ok(())
}
