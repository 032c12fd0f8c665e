//! The oracle's answers, once per case for all devices.

use std::sync::OnceLock;

use crate::base::exact::min_normal;
use crate::base::{Case, DType, Exact, HostTensor, Result};
use crate::op::{OpDesc, Reference, case};

/// Multiply-adds beyond which a double-double oracle takes too long to be asked.
const MOST: u64 = 2_000_000_000;
/// Seconds of one multiply-add of the oracle: double-double, one thread; measured 73 ns on a 2.1 GHz Xeon.
const SECONDS: f64 = 70e-9;

/// Data of a case and what comes out exactly.
#[derive(Debug)]
pub(super) struct Oracle {
    pub(super) inputs: Vec<HostTensor>,
    pub(super) answers: Vec<Reference>,
    exact: Vec<Vec<Exact>>,
    flushed: OnceLock<Option<Vec<Reference>>>,
}

/// The reason for leaving a case out, if its oracle would take too long.
pub(super) fn too_long(op: &OpDesc, case: &Case) -> Option<String> {
    let pairs = (op.cost)(case).flops / 2;
    (pairs > MOST).then(|| format!("predicted {:.0} s of oracle", pairs as f64 * SECONDS))
}

/// Makes the data and asks the op's oracle.
pub(super) fn ask(op: &OpDesc, c: &Case) -> Result<Oracle> {
    let inputs = case::inputs(op, c)?;
    let exact: Vec<_> = inputs.iter().map(Exact::read_all).collect();
    let answers = (op.oracle)(c, &exact);
    Ok(Oracle { inputs, answers, exact, flushed: OnceLock::new() })
}

impl Oracle {
    /// The answers for the same data with subnormal numbers replaced by zeros; `None` if there are none.
    pub(super) fn flushed(&self, op: &OpDesc, case: &Case) -> Option<&[Reference]> {
        let answers = self.flushed.get_or_init(|| {
            let mut any = false;
            let mut zeroed = self.exact.clone();
            for (values, tensor) in zeroed.iter_mut().zip(&self.inputs) {
                for v in values {
                    if subnormal(*v, tensor.dtype) {
                        any = true;
                        *v = v.mul(Exact::f(0.0));
                    }
                }
            }
            any.then(|| (op.oracle)(case, &zeroed))
        });
        answers.as_deref()
    }
}

fn subnormal(v: Exact, dtype: DType) -> bool {
    matches!(v, Exact::F(_)) && v.to_f64() != 0.0 && v.abs_f64() < min_normal(dtype)
}
