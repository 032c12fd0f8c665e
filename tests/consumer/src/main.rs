//! Loads a profile given as the first argument and runs one op; prints where it ran and the result.

use gpuctl::base::{Attrs, HostTensor, Result};
use gpuctl::engine::Engine;

fn main() -> Result<()> {
    let mut builder = Engine::builder();
    if let Some(spec) = std::env::args().nth(1) {
        builder = builder.profile(spec);
    }
    let engine = builder.build()?;
    let a = HostTensor::from_slice(&[1.0f32, 2.0, 3.0, 4.0], &[2, 2])?;
    let out = engine.run("gemm", &[&a, &a], &Attrs::new())?;
    println!("{} {} {:?}", engine.profile().name, out.ran_on, out.outputs[0].to_vec::<f32>()?);
    Ok(())
}
