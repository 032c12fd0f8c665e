//! Plans of the CPU's kernels, and the index arithmetic that all languages share.

use crate::base::{Case, Code, Cost, DType, DeviceInfo, Error, Result};

use super::{Arg, Kernel, Param, Plan, Step, plan_reduce};

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

/// y = f(x, s) or f(s, x): params n, s.
pub fn scalar(_: &Kernel, case: &Case, _: &DeviceInfo) -> Result<Plan> {
    let params = vec![Param::U64(case.dim("n")), Param::scalar(case.dtype, scalar_of(case)?)];
    Ok(step(case, "scalar", &[0], &[1], params, streams(case, 2, 1)))
}

/// a = f(a, b): params n.
pub fn accumulate(_: &Kernel, case: &Case, _: &DeviceInfo) -> Result<Plan> {
    Ok(step(case, "accumulate", &[0], &[1], sizes(case), streams(case, 3, 1)))
}

/// What `scalar` is where it is not given.
pub const SCALAR: f64 = 2.0;

/// The attribute `scalar`, rounded to the case's dtype; an error if it lies outside the dtype's range or, for integers, is
/// not whole.
pub fn scalar_of(case: &Case) -> Result<f64> {
    let given = case.attrs.float("scalar", SCALAR);
    if !case.dtype.holds(given) {
        return Err(Error::new(Code::BadArgument, format!("scalar: {given} is no {}", case.dtype)));
    }
    Ok(case.dtype.round(given))
}

/// A reduction over [`plan_reduce::blocks`]: params are each block's extent and whether it is reduced.
pub fn reduce(_: &Kernel, case: &Case, _: &DeviceInfo) -> Result<Plan> {
    let blocks = plan_reduce::blocks(case)?;
    let params = blocks.iter().flat_map(|(n, reduced)| [Param::U64(*n), Param::U64(u64::from(*reduced))]).collect();
    Ok(step(case, "reduce", &[0], &[1], params, reduce_cost(case, case.dtype.size())))
}

/// Work of a reduction whose results have `out` bytes each: an operation per element.
pub fn reduce_cost(case: &Case, out: u64) -> Cost {
    let results = case.dim("outer").saturating_mul(case.dim("inner"));
    let total = results.saturating_mul(case.dim("n"));
    Cost { flops: total, read: total.saturating_mul(case.dtype.size()), written: results.saturating_mul(out) }
}

/// y = Σ a·b: params n.
pub fn dot(_: &Kernel, case: &Case, _: &DeviceInfo) -> Result<Plan> {
    Ok(step(case, "dot", &[0, 1], &[2], sizes(case), dot_cost(case, case.dtype.size())))
}

/// Work of a dot product whose result has `out` bytes.
pub fn dot_cost(case: &Case, out: u64) -> Cost {
    let n = case.dim("n");
    Cost { flops: n.saturating_mul(2), read: n.saturating_mul(2 * case.dtype.size()), written: out }
}

/// y = √Σx²: params n.
pub fn nrm2(_: &Kernel, case: &Case, _: &DeviceInfo) -> Result<Plan> {
    Ok(step(case, "nrm2", &[0], &[1], sizes(case), nrm2_cost(case)))
}

/// Work of a norm.
pub fn nrm2_cost(case: &Case) -> Cost {
    let n = case.dim("n");
    Cost { flops: n.saturating_mul(2), read: n.saturating_mul(case.dtype.size()), written: case.dtype.size() }
}

/// Softmax over the middle axis of [m, n, inner]: params m, n, inner.
pub fn softmax(_: &Kernel, case: &Case, _: &DeviceInfo) -> Result<Plan> {
    let mut params = sizes(case);
    params.push(Param::U64(case.attrs.int("inner", 1) as u64));
    Ok(step(case, "softmax", &[0], &[1], params, softmax_cost(case)))
}

/// Work of softmax: five operations per element.
pub fn softmax_cost(case: &Case) -> Cost {
    let n = case.dim("m").saturating_mul(case.dim("n")).saturating_mul(case.attrs.int("inner", 1) as u64);
    let bytes = n.saturating_mul(case.dtype.size());
    Cost { flops: n.saturating_mul(5), read: bytes, written: bytes }
}

/// ONNX's defaults.
pub const EPSILON: f64 = 1e-5;
/// Share of the running statistics that stays.
pub const MOMENTUM: f64 = 0.9;

/// Statistics per channel of [a, channels, inner], over n = a * inner elements each.
#[derive(Clone, Copy, Debug)]
pub struct Channels {
    /// Channels.
    pub channels: u64,
    /// Neighbouring elements of one channel.
    pub inner: u64,
    /// Elements of one channel.
    pub n: u64,
}

impl Channels {
    /// Those of a batchnorm: dims n, c, inner.
    pub fn of(case: &Case) -> Self {
        let inner = case.dim("inner");
        Channels { channels: case.dim("c"), inner, n: case.dim("n").saturating_mul(inner) }
    }
}

/// `flops` per element of an operand of `total` elements, which is read and written; and `small` elements beside it.
fn normalised(case: &Case, total: u64, flops: u64, small: u64, written: u64) -> Cost {
    let size = case.dtype.size();
    Cost {
        flops: total.saturating_mul(flops),
        read: total.saturating_add(small).saturating_mul(size),
        written: total.saturating_add(written).saturating_mul(size),
    }
}

/// Work of layernorm: eight operations per element.
pub fn layernorm_cost(case: &Case) -> Cost {
    let (m, n) = (case.dim("m"), case.dim("n"));
    normalised(case, m.saturating_mul(n), 8, n.saturating_mul(2), m.saturating_mul(2))
}

/// Work of batchnorm_train: eight operations per element.
pub fn batchnorm_train_cost(case: &Case) -> Cost {
    let c = Channels::of(case);
    normalised(case, c.channels.saturating_mul(c.n), 8, 4 * c.channels, 4 * c.channels)
}

/// Work of batchnorm_infer: two operations per element.
pub fn batchnorm_infer_cost(case: &Case) -> Cost {
    let c = Channels::of(case);
    normalised(case, c.channels.saturating_mul(c.n), 2, 4 * c.channels, 0)
}

/// Operands `reads`, then `writes`: params are the sizes, epsilon and momentum as f64.
fn normalisation(case: &Case, entry: &'static str, reads: &[usize], writes: &[usize], cost: Cost) -> Plan {
    let mut params = sizes(case);
    params.push(Param::F64(case.attrs.float("epsilon", EPSILON)));
    params.push(Param::F64(case.attrs.float("momentum", MOMENTUM)));
    step(case, entry, reads, writes, params, cost)
}

/// Params m, n, epsilon.
pub fn layernorm(_: &Kernel, case: &Case, _: &DeviceInfo) -> Result<Plan> {
    Ok(normalisation(case, "layernorm", &[0, 1, 2], &[3, 4, 5], layernorm_cost(case)))
}

/// Params n, c, inner, epsilon, momentum.
pub fn batchnorm_train(_: &Kernel, case: &Case, _: &DeviceInfo) -> Result<Plan> {
    Ok(normalisation(case, "batchnorm_train", &[0, 1, 2], &[3, 4, 5, 6, 7], batchnorm_train_cost(case)))
}

/// Params n, c, inner, epsilon.
pub fn batchnorm_infer(_: &Kernel, case: &Case, _: &DeviceInfo) -> Result<Plan> {
    Ok(normalisation(case, "batchnorm_infer", &[0, 1, 2, 3, 4], &[5], batchnorm_infer_cost(case)))
}

/// y = transposed x: params m, n.
pub fn transpose(_: &Kernel, case: &Case, _: &DeviceInfo) -> Result<Plan> {
    let cost = matrix_cost(case, 0);
    Ok(step(case, "transpose", &[0], &[1], sizes(case), cost))
}

/// x = its own transpose: params n, n.
pub fn transpose_inplace(_: &Kernel, case: &Case, _: &DeviceInfo) -> Result<Plan> {
    let n = Param::U64(case.dim("n"));
    Ok(step(case, "transpose_inplace", &[], &[0], vec![n, n], square_cost(case)))
}

/// One n×n matrix read and written.
pub fn square_cost(case: &Case) -> Cost {
    let n = case.dim("n");
    let bytes = n.saturating_mul(n).saturating_mul(case.dtype.size());
    Cost { flops: 0, read: bytes, written: bytes }
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
    let mut params: Vec<Param> = ["m", "n", "k"].iter().map(|d| Param::U64(case.dim(d))).collect();
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
    // The product of i8 is i32.
    let out = if case.dtype == DType::I8 { 4 } else { size };
    Cost {
        flops: mul(2, mul(m, mul(n, k))).saturating_add(mul(1 + 2 * reads_c, mul(m, n))),
        read: mul(size, mul(m, k).saturating_add(mul(k, n))).saturating_add(mul(out, mul(reads_c, mul(m, n)))),
        written: mul(out, mul(m, n)),
    }
}

/// `b` products one behind the other: gemm's params, then b.
pub fn bmm(_: &Kernel, case: &Case, _: &DeviceInfo) -> Result<Plan> {
    let mut params = gemm_params(case);
    params.push(Param::U64(case.dim("b")));
    Ok(step(case, "bmm", &[0, 1], &[2], params, bmm_cost(case)))
}

/// Work of a batched product.
pub fn bmm_cost(case: &Case) -> Cost {
    let (b, m, n, k) = (case.dim("b"), case.dim("m"), case.dim("n"), case.dim("k"));
    let mul = |f: &[u64]| f.iter().fold(1u64, |a, v| a.saturating_mul(*v));
    let size = case.dtype.size();
    Cost {
        flops: mul(&[2, b, m, n, k]),
        read: mul(&[size, b, m, k]).saturating_add(mul(&[size, b, k, n])),
        written: mul(&[size, b, m, n]),
    }
}

/// y = alpha op(A) x + beta y: params m, n, transA, alpha, beta.
pub fn gemv(_: &Kernel, case: &Case, _: &DeviceInfo) -> Result<Plan> {
    let mut params = sizes(case);
    params.push(Param::U64(case.attrs.int("transA", 0) as u64));
    params.push(Param::scalar(case.dtype, case.attrs.float("alpha", 1.0)));
    params.push(Param::scalar(case.dtype, case.attrs.float("beta", 0.0)));
    Ok(step(case, "gemv", &[0, 1], &[2], params, gemv_cost(case)))
}

/// GPU-BLOB's counts, as for gemm.
pub fn gemv_cost(case: &Case) -> Cost {
    let (m, n) = (case.dim("m"), case.dim("n"));
    let reads_y = u64::from(case.attrs.float("beta", 0.0) != 0.0);
    let (mn, size) = (m.saturating_mul(n), case.dtype.size());
    Cost {
        flops: mn.saturating_mul(2).saturating_add((1 + 2 * reads_y).saturating_mul(m)),
        read: mn.saturating_add(n).saturating_add(reads_y * m).saturating_mul(size),
        written: m.saturating_mul(size),
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
    use crate::base::{Attr, Attrs, Fill};

    fn case(n: u64, a: &[i64], b: &[i64]) -> Case {
        let attrs = Attrs::new().with("a_shape", Attr::Ints(a.to_vec())).with("b_shape", Attr::Ints(b.to_vec()));
        Case { op: "add", dtype: DType::F32, dims: vec![("n", n)], attrs, fill: Fill::Uniform }
    }

    #[test]
    fn scalars_are_cast_to_the_dtype_or_refused() {
        let of = |dtype, s: f64| {
            let attrs = Attrs::new().with("scalar", Attr::Float(s));
            scalar_of(&Case { op: "add_scalar", dtype, dims: vec![("n", 1)], attrs, fill: Fill::Uniform })
        };
        assert_eq!(of(DType::F32, 0.1).unwrap(), f64::from(0.1f32));
        assert_eq!(of(DType::F16, 0.1).unwrap(), half::f16::from_f64(0.1).to_f64());
        assert_eq!(of(DType::I8, -128.0).unwrap(), -128.0);
        assert_eq!(of(DType::F32, f64::INFINITY).unwrap(), f64::INFINITY);
        for (dtype, s) in
            [(DType::I8, 128.0), (DType::U32, -1.0), (DType::I64, 0.5), (DType::F32, 1e300), (DType::F16, 1e5)]
        {
            assert_eq!(of(dtype, s).unwrap_err().code(), Code::BadArgument, "{s} as {dtype}");
        }
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
