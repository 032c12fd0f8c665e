//! Plans of the CPU's kernels, and the index arithmetic that all languages share.

use crate::base::{Case, Code, Cost, DeviceInfo, Error, Result};

use super::{Arg, Kernel, Param, Plan, Step};

/// One step of a native kernel: operands `reads` then `writes`, whole case in one call.
pub fn step(
    case: &Case,
    entry: &'static str,
    reads: &[usize],
    writes: &[usize],
    params: Vec<Param>,
    cost: Cost,
) -> Plan {
    Plan {
        steps: vec![Step {
            entry,
            dtype: case.dtype,
            defines: Vec::new(),
            group: [1; 3],
            groups: [1; 3],
            args: reads.iter().chain(writes).map(|i| Arg::Operand(*i)).collect(),
            writes: reads.iter().map(|_| false).chain(writes.iter().map(|_| true)).collect(),
            params,
            cost,
        }],
        scratch: Vec::new(),
    }
}

/// Sizes of all dimensions in order, as parameters.
pub fn sizes(case: &Case) -> Vec<Param> {
    case.dims.iter().map(|(_, v)| Param::U64(*v)).collect()
}

/// y = f(x): params n.
pub fn unary(_: &Kernel, case: &Case, _: &DeviceInfo) -> Result<Plan> {
    Ok(step(case, "unary", &[0], &[1], sizes(case), streams(case, 2, 1)))
}

/// y = f(a, b): params n, d0..d3, strides of a, strides of b.
pub fn binary(_: &Kernel, case: &Case, _: &DeviceInfo) -> Result<Plan> {
    let b = broadcast(case)?;
    let mut params = vec![Param::U64(b.n)];
    params.extend(b.d.iter().chain(&b.sa).chain(&b.sb).map(|v| Param::U64(*v)));
    Ok(step(case, "binary", &[0, 1], &[2], params, streams(case, 3, 1)))
}

/// y[outer, inner] = Σ x[outer, n, inner]: params outer, n, inner.
pub fn sum(_: &Kernel, case: &Case, _: &DeviceInfo) -> Result<Plan> {
    let cost = sum_cost(case);
    Ok(step(case, "sum", &[0], &[1], sizes(case), cost))
}

/// Work of a sum over the middle axis.
pub fn sum_cost(case: &Case) -> Cost {
    let (o, n, i) = (case.dim("outer"), case.dim("n"), case.dim("inner"));
    let total = o.saturating_mul(n).saturating_mul(i);
    let out_size = if case.dtype.is_float() { case.dtype.size() } else { 8 };
    Cost { flops: total, read: total.saturating_mul(case.dtype.size()), written: (o * i).saturating_mul(out_size) }
}

/// Row-wise softmax: params m, n.
pub fn softmax(_: &Kernel, case: &Case, _: &DeviceInfo) -> Result<Plan> {
    let cost = matrix_cost(case, 4);
    Ok(step(case, "softmax", &[0], &[1], sizes(case), cost))
}

/// y = transposed x: params m, n.
pub fn transpose(_: &Kernel, case: &Case, _: &DeviceInfo) -> Result<Plan> {
    let cost = matrix_cost(case, 0);
    Ok(step(case, "transpose", &[0], &[1], sizes(case), cost))
}

/// One m×n matrix in, one out, `flops` operations per element.
pub fn matrix_cost(case: &Case, flops: u64) -> Cost {
    let n = case.dim("m").saturating_mul(case.dim("n"));
    let bytes = n.saturating_mul(case.dtype.size());
    Cost { flops: flops * n, read: bytes, written: bytes }
}

/// C = alpha op(A) op(B) + beta C: params m, n, k, transA, transB, alpha, beta.
pub fn gemm(_: &Kernel, case: &Case, _: &DeviceInfo) -> Result<Plan> {
    Ok(step(case, "gemm", &[0, 1], &[2], gemm_params(case), gemm_cost(case)))
}

/// Parameters of the native gemm and of [`super::Routine::Gemm`].
pub fn gemm_params(case: &Case) -> Vec<Param> {
    let mut params = sizes(case);
    params.push(Param::U64(case.attrs.int("transA", 0) as u64));
    params.push(Param::U64(case.attrs.int("transB", 0) as u64));
    params.push(Param::scalar(case.dtype, case.attrs.float("alpha", 1.0)));
    params.push(Param::scalar(case.dtype, case.attrs.float("beta", 0.0)));
    params
}

/// GPU-BLOB's counts: 2·m·n·k + b·m·n operations with b = 1 if beta is 0, else 3; C is read only if beta is not 0.
pub fn gemm_cost(case: &Case) -> Cost {
    let (m, n, k) = (case.dim("m"), case.dim("n"), case.dim("k"));
    let reads_c = u64::from(case.attrs.float("beta", 0.0) != 0.0);
    let mul = |a: u64, b: u64| a.saturating_mul(b);
    let size = case.dtype.size();
    Cost {
        flops: mul(2, mul(m, mul(n, k))).saturating_add(mul(1 + 2 * reads_c, mul(m, n))),
        read: mul(size, mul(m, k).saturating_add(mul(k, n)).saturating_add(mul(reads_c, mul(m, n)))),
        written: mul(size, mul(m, n)),
    }
}

/// The emptiest launch, `n` times: each step stores the token.
pub fn launch(_: &Kernel, case: &Case, _: &DeviceInfo) -> Result<Plan> {
    let one = step(case, "launch", &[], &[0], Vec::new(), Cost { flops: 0, read: 0, written: 4 });
    let calls = usize::try_from(case.dim("n"))
        .map_err(|_| Error::new(Code::BadArgument, "too many launches in one submission"))?;
    Ok(Plan { steps: vec![one.steps[0].clone(); calls], scratch: Vec::new() })
}

/// What the queue does itself; no step, the engine acts on the body.
pub fn action(_: &Kernel, _: &Case, _: &DeviceInfo) -> Result<Plan> {
    Ok(Plan::default())
}

fn streams(case: &Case, streams: u64, flops: u64) -> Cost {
    let n = case.dim("n");
    let bytes = n.saturating_mul(case.dtype.size());
    Cost { flops: flops * n, read: bytes.saturating_mul(streams - 1), written: bytes }
}

/// A broadcast of two operands, collapsed to at most four axes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Broadcast {
    /// Elements of the result.
    pub n: u64,
    /// Extents, outermost first, padded with 1 in front.
    pub d: [u64; 4],
    /// Strides of a in elements; 0 where it is repeated.
    pub sa: [u64; 4],
    /// Strides of b in elements; 0 where it is repeated.
    pub sb: [u64; 4],
    /// Full shape of a.
    pub a_shape: Vec<u64>,
    /// Full shape of b.
    pub b_shape: Vec<u64>,
    /// Full shape of the result.
    pub y_shape: Vec<u64>,
}

/// NumPy's rule: align at the last axis; extents must be equal or 1.
pub fn broadcast_shape(a: &[u64], b: &[u64]) -> Result<Vec<u64>> {
    let rank = a.len().max(b.len());
    let at = |s: &[u64], i: usize| if i + s.len() < rank { 1 } else { s[i + s.len() - rank] };
    (0..rank)
        .map(|i| match (at(a, i), at(b, i)) {
            (x, y) if x == y => Ok(x),
            (1, y) => Ok(y),
            (x, 1) => Ok(x),
            (x, y) => Err(Error::new(
                Code::ShapeMismatch,
                format!("{a:?} and {b:?} do not broadcast: {x} against {y} at axis {i}"),
            )),
        })
        .collect()
}

/// The index space of a binary case: attributes `a_shape` and `b_shape`, or two operands of n elements.
pub fn broadcast(case: &Case) -> Result<Broadcast> {
    let n = case.dim("n");
    let shape = |name: &str| -> Result<Vec<u64>> {
        let v = case.attrs.ints(name);
        if v.is_empty() {
            return Ok(vec![n]);
        }
        v.iter()
            .map(|d| {
                u64::try_from(*d)
                    .map_err(|_| Error::new(Code::ShapeMismatch, format!("{name} has the negative extent {d}")))
            })
            .collect()
    };
    let (a_shape, b_shape) = (shape("a_shape")?, shape("b_shape")?);
    let y_shape = broadcast_shape(&a_shape, &b_shape)?;
    let total = crate::base::host::count(&y_shape)?;
    if total != n {
        return Err(Error::new(
            Code::ShapeMismatch,
            format!("n is {n}, but {a_shape:?} and {b_shape:?} give {total} elements"),
        ));
    }
    let rank = y_shape.len();
    let own = |s: &[u64], i: usize| if i + s.len() < rank { 1 } else { s[i + s.len() - rank] };
    // Merge neighbouring axes on which each operand is either repeated on both or present on both.
    let mut axes: Vec<(u64, bool, bool)> = Vec::new();
    for (i, extent) in y_shape.iter().enumerate() {
        if *extent == 1 {
            continue;
        }
        let kind = (own(&a_shape, i) != 1, own(&b_shape, i) != 1);
        match axes.last_mut() {
            Some(last) if (last.1, last.2) == kind => last.0 *= extent,
            _ => axes.push((*extent, kind.0, kind.1)),
        }
    }
    if axes.len() > 4 {
        return Err(Error::new(
            Code::OpUnsupported,
            format!("{a_shape:?} and {b_shape:?} alternate over {} axes; 4 are supported", axes.len()),
        ));
    }
    let mut out = Broadcast { n, d: [1; 4], sa: [0; 4], sb: [0; 4], a_shape, b_shape, y_shape };
    let (mut step_a, mut step_b) = (1, 1);
    for (slot, (extent, a, b)) in (0..4).rev().zip(axes.iter().rev()) {
        out.d[slot] = *extent;
        if *a {
            out.sa[slot] = step_a;
            step_a *= extent;
        }
        if *b {
            out.sb[slot] = step_b;
            step_b *= extent;
        }
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::{Attr, Attrs, DType, Fill};

    fn case(n: u64, a: &[i64], b: &[i64]) -> Case {
        let attrs = Attrs::new().with("a_shape", Attr::Ints(a.to_vec())).with("b_shape", Attr::Ints(b.to_vec()));
        Case { op: "add", dtype: DType::F32, dims: vec![("n", n)], attrs, fill: Fill::Uniform }
    }

    #[test]
    fn axes_collapse() {
        let b = broadcast(&case(210, &[2, 3, 5, 7], &[1, 3, 1, 1])).unwrap();
        assert_eq!((b.d, b.sa, b.sb), ([1, 2, 3, 35], [0, 105, 35, 1], [0, 0, 1, 0]));
        let same = broadcast(&case(210, &[2, 3, 5, 7], &[2, 3, 5, 7])).unwrap();
        assert_eq!((same.d, same.sa, same.sb), ([1, 1, 1, 210], [0, 0, 0, 1], [0, 0, 0, 1]));
    }

    #[test]
    fn impossible_broadcasts_are_errors() {
        assert!(broadcast(&case(6, &[2, 3], &[4])).unwrap_err().to_string().contains("axis 1"));
        assert!(broadcast(&case(7, &[2, 3], &[3])).unwrap_err().to_string().contains("give 6"));
        assert!(broadcast(&case(6, &[-2, 3], &[3])).is_err());
    }
}
