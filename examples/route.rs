//! Routes calls of two sizes by a profile and says where each ran and why.
//!
//! `cargo run --example route -- [preset:NAME | FILE]`; without an argument the usual search finds the profile.
#![allow(clippy::print_stdout, reason = "an example shows its results")]

use gpuctl::base::{Attrs, HostTensor, Result};
use gpuctl::engine::Engine;

fn main() -> Result<()> {
    let engine = match std::env::args().nth(1) {
        Some(spec) => Engine::builder().profile(spec).build()?,
        None => Engine::auto()?,
    };
    println!("profile: {} ({})", engine.profile().name, engine.source());
    for n in [64u64, 1024] {
        let a = HostTensor::from_slice(&vec![1.0f32; (n * n) as usize], &[n, n])?;
        let out = engine.run("gemm", &[&a, &a], &Attrs::new())?;
        assert_eq!(out.outputs[0].to_vec::<f32>()?[0], n as f32);
        println!("{n}: ran on {}; {}", out.ran_on, out.decision);
        if let Some(reason) = out.fallback {
            println!("    fell back: {reason}");
        }
    }
    println!("{:?}", engine.stats());
    Ok(())
}
