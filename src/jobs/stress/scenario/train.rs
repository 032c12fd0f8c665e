//! Training steps of a small network: forward, backward, update, each op fed by the ones before it.
//!
//! All numbers are small whole ones (weights move by the sign of their gradient, activations and weights are cut off), so every
//! result is exact in f32 whatever the order of its sums, and the reference is the op's oracle, chained on the host: nothing of
//! the device is in it. Networks grow in depth from step to step, and everything that a step makes is held until its end: what
//! grows with depth shows, not only what grows with time.

use crate::base::rng::Philox;
use crate::base::{Attr, Attrs, Case, Code, DType, Error, Exact, Fill, HostTensor, Result};
use crate::device::Queue;
use crate::engine::run::{Prepared, Runner};
use crate::op::{self, OpDesc};

use super::Ctx;

/// Layers of the networks, the smallest first.
pub(super) const DEPTHS: [usize; 4] = [1, 2, 4, 8];
/// Rows of a batch, units of a layer, steps.
const BATCH: u64 = 12;
const UNITS: u64 = 20;
const STEPS: usize = 2;
/// Activations end here, as in ReLU6, and weights at plus and minus this.
const TOP: f32 = 6.0;
const EDGE: f32 = 3.0;

/// One op of a step with its operands and its proved result.
struct Call {
    op: &'static OpDesc,
    case: Case,
    inputs: Vec<HostTensor>,
    want: HostTensor,
}

/// All calls of some steps, in order.
pub(super) struct Training {
    pub(super) depth: usize,
    calls: Vec<Call>,
}

impl Training {
    /// Works the steps out on the host, by the ops' oracles.
    pub(super) fn new(seed: u64, depth: usize) -> Result<Self> {
        let mut calls = Vec::new();
        steps(seed, depth, &mut |name, inputs, attrs| {
            let op = op::find(name)?;
            let call = Call::new(op, inputs, attrs)?;
            let result = call.want.clone();
            calls.push(call);
            Ok(result)
        })?;
        Ok(Training { depth, calls })
    }

    /// Runs the steps on the device, each op on the results of those before it; every one is compared. `queue` belongs to lane
    /// `lane`.
    pub(super) fn run(&self, ctx: &Ctx<'_>, runner: &Runner, q: &mut dyn Queue, lane: usize) -> Result<()> {
        // As a tape holds them: nothing is released before the steps end.
        let mut tape: Vec<Prepared> = Vec::with_capacity(self.calls.len());
        for call in &self.calls {
            let from = std::time::Instant::now();
            ctx.meter.doing(lane, &format!("{} of a network of {} layers", call.case, self.depth));
            let prepared = runner.prepare(call.op, &call.case, None)?;
            prepared.poison(q)?;
            let got = prepared.call(q, &call.inputs, ctx.deadline())?;
            if let Some(wrong) = differs(&call.want, got.first()) {
                ctx.meter.mismatch(format!("{} in a training step: {wrong}", call.case));
            }
            tape.push(prepared);
            let bytes = call.want.bytes().len() as u64;
            ctx.meter.cycle(lane, bytes, bytes, from.elapsed().as_secs_f64());
            if ctx.meter.stop.raised() {
                break;
            }
        }
        Ok(())
    }
}

impl Call {
    fn new(op: &'static OpDesc, mut inputs: Vec<HostTensor>, attrs: Attrs) -> Result<Self> {
        let shapes: Vec<Vec<u64>> = inputs.iter().map(|t| t.shape.clone()).collect();
        let bound = (op.bind)(&shapes, &attrs)?;
        let case = op.case(DType::F32, &bound.dims, bound.attrs, Fill::Uniform)?;
        // What is written and may be left out (gemm's C) is zeros.
        let shapes = (op.shapes)(&case)?;
        let read: Vec<usize> = (0..op.operands.len()).filter(|i| op.operands[*i].role != op::Role::Out).collect();
        for i in read.iter().skip(inputs.len()) {
            inputs.push(HostTensor::zeros(op.operand_dtype(*i, &case), &shapes[*i])?);
        }
        let exact: Vec<Vec<Exact>> = inputs.iter().map(Exact::read_all).collect();
        let values = (op.oracle)(&case, &exact).into_iter().next().map(|r| r.values).unwrap_or_default();
        let values: Vec<f32> = values.iter().map(|v| v.to_f64() as f32).collect();
        // The promise that everything here rests on.
        if values.iter().any(|v| v.fract() != 0.0 || v.abs() > 1e6) {
            return Err(Error::new(Code::Internal, "a training step left the whole numbers").op(op.name));
        }
        // As the user thinks of it where that differs from how the kernels see it.
        let seen = op.written().next().and_then(|i| shapes.get(i)).cloned();
        let written = bound.results.into_iter().next().or(seen).unwrap_or_default();
        Ok(Call { op, case, inputs, want: HostTensor::from_slice(&values, &written)? })
    }
}

/// The first element that is not the same number; zeros of both signs are.
fn differs(want: &HostTensor, got: Option<&HostTensor>) -> Option<String> {
    let (Ok(want), Some(Ok(got))) = (want.to_vec::<f32>(), got.map(HostTensor::to_vec::<f32>)) else {
        return Some("no result, or one of another dtype".into());
    };
    if want.len() != got.len() {
        return Some(format!("{} elements, not {}", got.len(), want.len()));
    }
    // Not equal also if it is no number.
    let at = (0..want.len()).find(|i| got[*i] != want[*i])?;
    Some(format!("element {at} is {:e}, not {:e}", got[at], want[at]))
}

/// Makes a call: op, operands, attributes -> its result.
type Eval<'e> = dyn FnMut(&str, Vec<HostTensor>, Attrs) -> Result<HostTensor> + 'e;

/// Some steps of a network of so many layers, as calls.
fn steps(seed: u64, depth: usize, eval: &mut Eval<'_>) -> Result<()> {
    let rng = Philox::new(seed);
    let whole = |stream: u64, shape: &[u64], most: u64| -> Result<HostTensor> {
        let count = shape.iter().product::<u64>();
        let value = |i| (rng.u64(stream, i) % (2 * most + 1)) as f32 - most as f32;
        HostTensor::from_slice(&(0..count).map(value).collect::<Vec<f32>>(), shape)
    };
    let full =
        |value: f32, shape: &[u64]| HostTensor::from_slice(&vec![value; shape.iter().product::<u64>() as usize], shape);
    let none = Attrs::new;
    let transposed = |name: &str| Attrs::new().with(name, Attr::Int(1));
    let (x, target) = (whole(0, &[BATCH, UNITS], 3)?, whole(1, &[BATCH, UNITS], 3)?);
    let mut weights = (0..depth as u64).map(|l| whole(2 + l, &[UNITS, UNITS], 2)).collect::<Result<Vec<_>>>()?;
    let mut biases = (0..depth as u64).map(|l| whole(100 + l, &[UNITS], 2)).collect::<Result<Vec<_>>>()?;
    for _ in 0..STEPS {
        let mut before = Vec::new();
        let mut activations = vec![x.clone()];
        for (w, b) in weights.iter().zip(&biases) {
            let input = activations[activations.len() - 1].clone();
            let z = eval("gemm", vec![input, w.clone()], none())?;
            let z = eval("bias_add", vec![z, b.clone()], none())?;
            let h = eval("relu", vec![z.clone()], none())?;
            activations.push(eval("minimum", vec![h, full(TOP, &[BATCH, UNITS])?], none())?);
            before.push(z);
        }
        let output = activations[depth].clone();
        let error = eval("sub", vec![output, target.clone()], none())?;
        let mut gradient = eval("sign", vec![error], none())?;
        for l in (0..depth).rev() {
            let at_z = eval("relu_bwd", vec![gradient.clone(), before[l].clone()], none())?;
            let of_weights = eval("gemm", vec![activations[l].clone(), at_z.clone()], transposed("transA"))?;
            let of_biases = eval("bias_add_bwd", vec![at_z.clone()], none())?;
            if l > 0 {
                let below = eval("gemm", vec![at_z, weights[l].clone()], transposed("transB"))?;
                gradient = eval("sign", vec![below], none())?;
            }
            for (parameter, of) in [(&mut weights[l], of_weights), (&mut biases[l], of_biases)] {
                let direction = eval("sign", vec![of], none())?;
                let down = Attrs::new().with("alpha", Attr::Float(-1.0));
                let moved = eval("axpy", vec![direction, parameter.clone()], down)?;
                let moved = HostTensor::from_slice(&moved.to_vec::<f32>()?, &parameter.shape)?;
                let low = eval("minimum", vec![moved, full(EDGE, &parameter.shape)?], none())?;
                *parameter = eval("maximum", vec![low, full(-EDGE, &parameter.shape)?], none())?;
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn networks_grow_in_depth_and_learn_something() {
        let one = Training::new(1, 1).unwrap();
        let four = Training::new(1, 4).unwrap();
        assert!(four.calls.len() > 3 * one.calls.len(), "{} and {}", one.calls.len(), four.calls.len());
        let names: std::collections::BTreeSet<_> = four.calls.iter().map(|c| c.op.name).collect();
        assert_eq!(names.len(), 10, "{names:?}");
        // Weights move, or the later steps would repeat the first.
        let gemms =
            |t: &Training| t.calls.iter().filter(|c| c.op.name == "gemm").map(|c| c.want.clone()).collect::<Vec<_>>();
        let all = gemms(&four);
        assert_ne!(all[0], all[all.len() / STEPS]);
    }

    #[test]
    fn a_wrong_number_differs_and_a_zero_of_the_other_sign_does_not() {
        let t = |v: &[f32]| HostTensor::from_slice(v, &[v.len() as u64]).unwrap();
        assert_eq!(differs(&t(&[1.0, 0.0]), Some(&t(&[1.0, -0.0]))), None);
        for wrong in [t(&[1.0, 1.0]), t(&[1.0, f32::NAN]), t(&[1.0])] {
            assert!(differs(&t(&[1.0, 0.0]), Some(&wrong)).is_some());
        }
        assert!(differs(&t(&[1.0]), None).is_some());
    }
}
