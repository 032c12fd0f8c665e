//! A user's call as a case: the op's sizes from the operands' shapes, and the results' shapes as the user thinks of them.

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::LazyLock;

use crate::base::{Attrs, Case, Code, DType, Error, Fill, HostTensor, Result, host};
use crate::op::{self, Binding, DTypeRule, OpDesc, Role};

/// A bound call.
#[derive(Debug)]
pub(super) struct Bound<'a> {
    /// The case; its data is the user's, so its `fill` means nothing.
    pub case: Case,
    /// All read operands, in order. Operands that may be left out (gemm's C) are zeros.
    pub inputs: Vec<Cow<'a, HostTensor>>,
    /// Dtypes and shapes of the written operands.
    pub results: Vec<(DType, Vec<u64>)>,
}

/// The op of that name, by hash: the table's own search compares names one by one.
pub(super) fn find(name: &str) -> Result<&'static OpDesc> {
    static BY_NAME: LazyLock<HashMap<&'static str, &'static OpDesc>> =
        LazyLock::new(|| op::all().map(|o| (o.name, o)).collect());
    BY_NAME.get(name).copied().map_or_else(|| op::find(name), Ok)
}

/// A call in terms of the op, before its operands.
#[derive(Debug)]
pub(super) struct Frame {
    /// The case; its data is the user's, so its `fill` means nothing.
    pub case: Case,
    /// Shapes of all operands.
    pub shapes: Vec<Vec<u64>>,
    /// Shapes of the written operands, as the user thinks of them.
    pub results: Vec<Vec<u64>>,
}

/// Binds a call by the dtypes and shapes of the given operands. Errors: `ShapeMismatch`, `DTypeMismatch`, `DTypeUnsupported`,
/// `BadArgument`, each naming the op.
pub(super) fn frame(op: &'static OpDesc, given: &[(DType, &[u64])], attrs: &Attrs) -> Result<Frame> {
    let named = |e: Error| e.op(op.name);
    // Looked at here because a `bind` may drop attributes that only shape the call.
    if let Some((name, _)) = attrs.iter().find(|(n, _)| !op.attrs.iter().any(|d| d.name == *n)) {
        return Err(named(Error::new(Code::BadArgument, format!("no attribute '{name}'"))));
    }
    for d in op.attrs {
        attrs.get(d.name).map_or(Ok(()), |v| d.check(v)).map_err(named)?;
    }
    let taken: Vec<Vec<u64>> = given.iter().map(|(_, shape)| shape.to_vec()).collect();
    let Binding { dims, attrs: kept, results } = (op.bind)(&taken, attrs).map_err(named)?;
    let read: Vec<usize> = (0..op.operands.len()).filter(|i| op.operands[*i].role != Role::Out).collect();
    let own = read.iter().zip(given).find(|(i, _)| matches!(op.operands[**i].dtype, DTypeRule::Same));
    let dtype = own.map_or(op.dtypes[0], |(_, t)| t.0);
    let case = op.case(dtype, &dims, kept, Fill::Uniform)?;
    let shapes = (op.shapes)(&case).map_err(named)?;
    for (position, i) in read.into_iter().enumerate() {
        let (operand, want) = (&op.operands[i], op.operand_dtype(i, &case));
        let (code, why) = match given.get(position) {
            Some((dtype, _)) if *dtype != want => {
                (Code::DTypeMismatch, format!("{} is {dtype}, expected {want}; gpuctl never promotes", operand.name))
            }
            Some((_, shape)) if host::count(shape)? != host::count(&shapes[i])? => {
                (Code::ShapeMismatch, format!("{} is {shape:?}, expected {:?}", operand.name, shapes[i]))
            }
            None if operand.role != Role::InOut => (Code::ShapeMismatch, format!("{} is missing", operand.name)),
            _ => continue,
        };
        return Err(named(Error::new(code, why)));
    }
    // A case may have flattened what the user's results look like.
    let results = if results.is_empty() { op.written().map(|i| shapes[i].clone()).collect() } else { results };
    Ok(Frame { case, shapes, results })
}

/// Binds operands and attributes. Errors: those of [`frame`].
pub(super) fn bind<'a>(op: &'static OpDesc, inputs: &[&'a HostTensor], attrs: &Attrs) -> Result<Bound<'a>> {
    let given: Vec<(DType, &[u64])> = inputs.iter().map(|t| (t.dtype, t.shape.as_slice())).collect();
    let Frame { case, shapes, results } = frame(op, &given, attrs)?;
    let read = (0..op.operands.len()).filter(|i| op.operands[*i].role != Role::Out);
    let operand = |(position, i): (usize, usize)| {
        Ok(match inputs.get(position) {
            Some(t) => Cow::Borrowed(*t),
            None => Cow::Owned(HostTensor::zeros(op.operand_dtype(i, &case), &shapes[i])?),
        })
    };
    let operands = read.enumerate().map(operand).collect::<Result<Vec<_>>>()?;
    let written: Vec<DType> = op.written().map(|i| op.operand_dtype(i, &case)).collect();
    if results.len() != written.len() {
        return Err(Error::new(Code::Internal, format!("{} results", results.len())).op(op.name));
    }
    Ok(Bound { case, inputs: operands, results: written.into_iter().zip(results).collect() })
}

/// Memory for results of these dtypes and shapes, filled with zeros.
pub(super) fn zeros(results: &[(DType, Vec<u64>)]) -> Result<Vec<HostTensor>> {
    results.iter().map(|(dtype, shape)| HostTensor::zeros(*dtype, shape)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::Attr;
    use crate::op::find;

    fn zeros(shape: &[u64]) -> HostTensor {
        HostTensor::zeros(DType::F32, shape).unwrap()
    }

    fn results(op: &str, inputs: &[&[u64]], attrs: Attrs) -> Vec<Vec<u64>> {
        let tensors: Vec<HostTensor> = inputs.iter().map(|s| zeros(s)).collect();
        let refs: Vec<&HostTensor> = tensors.iter().collect();
        bind(find(op).unwrap(), &refs, &attrs).unwrap().results.into_iter().map(|(_, shape)| shape).collect()
    }

    #[test]
    fn results_have_the_users_shapes() {
        let none = Attrs::new;
        assert_eq!(results("relu", &[&[2, 3, 4]], none()), [[2, 3, 4]]);
        assert_eq!(results("add", &[&[2, 3], &[2, 3]], none()), [[2, 3]]);
        assert_eq!(results("add", &[&[2, 3], &[3]], none()), [[2, 3]]);
        assert_eq!(results("add", &[&[2, 1], &[1, 3]], none()), [[2, 3]]);
        assert_eq!(results("softmax", &[&[2, 3, 4]], none()), [[2, 3, 4]]);
        assert_eq!(results("transpose", &[&[2, 3]], none()), [[3, 2]]);
        assert_eq!(results("gemm", &[&[2, 3], &[3, 5]], none()), [[2, 5]]);
        let sum = |axes: &[i64], keep: i64| {
            let attrs = none().with("axes", Attr::Ints(axes.to_vec())).with("keepdims", Attr::Int(keep));
            results("sum", &[&[2, 3, 4]], attrs).remove(0)
        };
        assert_eq!(sum(&[1], 0), [2, 4]);
        assert_eq!(sum(&[1], 1), [2, 1, 4]);
        assert_eq!(sum(&[-1], 0), [2, 3]);
        assert_eq!(sum(&[], 0), [0u64; 0]);
        assert_eq!(sum(&[0, 1], 1), [1, 1, 4]);
    }

    #[test]
    fn a_missing_c_is_zeros_and_wrong_operands_are_refused() {
        let gemm = find("gemm").unwrap();
        let (a, b) = (zeros(&[2, 3]), zeros(&[3, 5]));
        let bound = bind(gemm, &[&a, &b], &Attrs::new()).unwrap();
        assert_eq!(bound.inputs.len(), 3);
        assert_eq!(bound.inputs[2].shape, [2, 5]);
        let beta = Attrs::new().with("beta", Attr::Float(1.0));
        assert_eq!(bind(gemm, &[&a, &b], &beta).unwrap_err().code(), Code::ShapeMismatch);
        let wide = HostTensor::zeros(DType::F64, &[3, 5]).unwrap();
        let e = bind(gemm, &[&a, &wide], &Attrs::new()).unwrap_err();
        assert!(e.code() == Code::DTypeMismatch && e.to_string().contains("gemm"), "{e}");
        let e = bind(gemm, &[&a], &Attrs::new()).unwrap_err();
        assert_eq!(e.code(), Code::ShapeMismatch);
        let odd = Attrs::new().with("gamma", Attr::Int(1));
        assert_eq!(bind(gemm, &[&a, &b], &odd).unwrap_err().code(), Code::BadArgument);
        assert_eq!(bind(find("relu").unwrap(), &[&a], &odd).unwrap_err().code(), Code::BadArgument);
    }
}
