//! Hundreds of tiny launches that nobody waits for: y += x, so that the sum tells how many of them ran.

use crate::base::rng::Philox;
use crate::base::{Attr, Attrs, DType, Fill, HostTensor, Result};
use crate::op;

use super::Ctx;

/// Elements: less than one group.
const LENGTH: u64 = 61;
/// Launches of the largest storm. The sums stay whole numbers far below 2^24.
const MOST: u64 = 512;

pub(super) fn run(ctx: &Ctx<'_>) -> Result<()> {
    let runner = ctx.runner();
    let op = op::find("axpy")?;
    let case = op.case(DType::F32, &[LENGTH], Attrs::new().with("alpha", Attr::Float(1.0)), Fill::Uniform)?;
    let prepared = runner.prepare(op, &case, None)?;
    let rng = Philox::new(ctx.seed);
    let mut launches = 0;
    ctx.repeat(&runner, |q, round| {
        let number = |stream: u64| move |i: u64| (rng.u64(stream, round * LENGTH + i) % 19) as f32 - 9.0;
        let (x, y): (Vec<f32>, Vec<f32>) = (0..LENGTH).map(|i| (number(0)(i), number(1)(i))).unzip();
        let storm = 1 + rng.u64(2, round) % MOST;
        ctx.meter.doing(0, &format!("storm {round} of {storm} launches"));
        let tensor = |v: &[f32]| HostTensor::from_slice(v, &[LENGTH]);
        prepared.upload(q, &[tensor(&x)?, tensor(&y)?])?;
        for _ in 0..storm {
            prepared.launch(q)?;
        }
        q.finish(ctx.deadline())?;
        launches += storm;
        let out = prepared.download(q)?;
        let got = out.first().map_or(Ok(Vec::new()), HostTensor::to_vec::<f32>)?;
        let want = x.iter().zip(&y).map(|(x, y)| y + storm as f32 * x);
        if let Some((i, want)) = want.enumerate().find(|(i, want)| got.get(*i) != Some(want)) {
            let ran = got.get(i).map_or(f32::NAN, |got| (got - y[i]) / x[i]);
            let what = format!("element {i} is {:?}, not {want:e}", got.get(i));
            ctx.meter.mismatch(format!("{storm} launches of {case}: {what}; as after {ran} launches"));
        }
        Ok((4 * LENGTH, 4 * LENGTH))
    })?;
    ctx.meter.count("launches", launches);
    let seconds = ctx.meter.tested_seconds().max(1e-9);
    ctx.meter.count("launches_per_second", (launches as f64 / seconds) as u64);
    drop(prepared);
    ctx.meter.quiet(ctx.device.ledger().state());
    Ok(())
}
