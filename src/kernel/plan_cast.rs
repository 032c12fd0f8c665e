//! Plans of `cast` on the CPU and in the common C dialect, and ONNX's codes of number types.

use crate::base::{Case, Code, Cost, DType, DeviceInfo, Error, Result};

use super::{Arg, Kernel, Param, Plan, Step, plan_c, plan_native};

/// ONNX's TensorProto.DataType of every dtype.
pub const CODES: [(i64, DType); 12] = [
    (1, DType::F32),
    (2, DType::U8),
    (3, DType::I8),
    (4, DType::U16),
    (5, DType::I16),
    (6, DType::I32),
    (7, DType::I64),
    (10, DType::F16),
    (11, DType::F64),
    (12, DType::U32),
    (13, DType::U64),
    (16, DType::BF16),
];

/// The dtype of a code.
pub fn dtype_of(code: i64) -> Option<DType> {
    CODES.iter().find(|(c, _)| *c == code).map(|(_, d)| *d)
}

/// The code of a dtype.
pub fn code_of(dtype: DType) -> i64 {
    CODES.iter().find(|(_, d)| *d == dtype).map_or(0, |(c, _)| *c)
}

/// The dtype that a case converts to; f32 by default.
pub fn to(case: &Case) -> DType {
    dtype_of(case.attrs.int("to", 1)).unwrap_or(DType::F32)
}

/// The same, if the device holds it.
pub(super) fn target(case: &Case, info: &DeviceInfo) -> Result<DType> {
    let to = to(case);
    if info.dtypes.contains(&to) {
        return Ok(to);
    }
    let note = info.notes.iter().find(|n| n.starts_with(&format!("no {to}")));
    let why = note.cloned().unwrap_or_else(|| format!("the device does not hold {to}"));
    Err(Error::new(Code::DTypeUnsupported, why))
}

/// One conversion and both operands per element.
pub fn cost(case: &Case) -> Cost {
    let n = case.dim("n");
    Cost { flops: n, read: n.saturating_mul(case.dtype.size()), written: n.saturating_mul(to(case).size()) }
}

/// y = x in another type: params n, the type's code.
pub fn native(_: &Kernel, case: &Case, _: &DeviceInfo) -> Result<Plan> {
    let params = vec![Param::U64(case.dim("n")), Param::U64(code_of(to(case)) as u64)];
    Ok(plan_native::step(case, "convert", &[0], &[1], params, cost(case)))
}

fn other(what: &str) -> Error {
    Error::new(Code::OpUnsupported, format!("the variant needs {what}"))
}

/// `convert(x, y, n)` with `CONVERT(v)`, for pairs that one conversion of C serves.
pub fn direct_c(_: &Kernel, case: &Case, info: &DeviceInfo) -> Result<Plan> {
    let (from, to) = (case.dtype, target(case, info)?);
    let half = |d: DType| d.is_float() && d.size() == 2;
    if half(to) && (!from.is_float() || from == DType::F64) {
        return Err(other("pairs that are rounded once; f32 between would round twice"));
    }
    let mut defines = Vec::new();
    let mut define = |name: &str, value: String| defines.push((name.to_string(), value));
    match to.int_range() {
        None => define("CONVERT(v)", "(v)".into()),
        // By way of unsigned numbers, so that nothing overflows.
        Some(_) if !from.is_float() => define("CONVERT(v)", "((OUT)(u64)(v))".into()),
        Some(_) => {
            let bits = 8 * to.size() as u32;
            let top = if to.is_signed() { bits - 1 } else { bits };
            // Powers of two, exact in f32.
            let (high, low) = (2f64.powi(top as i32), if to.is_signed() { -2f64.powi(top as i32) } else { 0.0 });
            define("CONVERT(v)", "SATURATE(v)".into());
            define("HIGH", format!("{high:.1}f"));
            define("LOW", format!("{low:.1}f"));
            define("MOST", format!("(~(u64)0 >> {})", 64 - top));
            define("LEAST", if to.is_signed() { format!("((u64)1 << {top})") } else { "0".into() });
        }
    }
    c(case, info, to, defines)
}

/// `convert(x, y, n)` from integers to f16 and bf16.
pub fn int_half_c(_: &Kernel, case: &Case, info: &DeviceInfo) -> Result<Plan> {
    let to = target(case, info)?;
    if case.dtype.is_float() || !to.is_float() || to.size() != 2 {
        return Err(other("integers to f16 and bf16"));
    }
    c(case, info, to, Vec::new())
}

/// `convert(x, y, n)` from f64 to f16 and bf16.
pub fn f64_half_c(_: &Kernel, case: &Case, info: &DeviceInfo) -> Result<Plan> {
    let to = target(case, info)?;
    let (Some(digits), Some(least)) = (to.mantissa_bits(), to.min_exponent()) else {
        return Err(other("f64 to f16 and bf16"));
    };
    if case.dtype != DType::F64 || to.size() != 2 {
        return Err(other("f64 to f16 and bf16"));
    }
    c(case, info, to, vec![("DIGITS".into(), digits.to_string()), ("LEAST_EXPONENT".into(), format!("({least})"))])
}

fn c(case: &Case, info: &DeviceInfo, to: DType, defines: Vec<(String, String)>) -> Result<Plan> {
    let n = case.dim("n");
    if n == 0 {
        return Ok(Plan::default());
    }
    let mut step = plan_c::step(case.dtype, "convert", case.dtype.compute(), to, plan_c::GROUP);
    step.defines.extend(defines);
    Ok(plan_c::one(Step {
        args: vec![Arg::Operand(0), Arg::Operand(1)],
        writes: vec![false, true],
        params: vec![Param::U64(n)],
        cost: cost(case),
        ..plan_c::spread_elements(step, n, info)?
    }))
}
