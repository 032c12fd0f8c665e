//! Plans of the ops that stream their operands once, on the CPU and in the common C dialect.

use crate::base::{Case, Cost, DType, DeviceInfo, Result};

use super::cpu::cast::float_bits;
use super::{Kernel, Param, Plan, Step, plan_c, plan_native, spread_groups};

/// The attribute `name` as a scalar of the arithmetic.
pub(super) fn scalar(case: &Case, default: f64) -> Param {
    Param::scalar(case.dtype, case.attrs.float("alpha", default))
}

/// Default of axpy's alpha.
pub const AXPY_ALPHA: f64 = 1.0;
/// Default of scal's alpha: calls in place may be repeated without growing or shrinking, and still do something.
pub const SCAL_ALPHA: f64 = -1.0;
/// STREAM's scalar.
pub const TRIAD_ALPHA: f64 = 3.0;

/// `flops` operations per element, `read` and `written` operands of n elements.
pub fn cost(case: &Case, flops: u64, read: u64, written: u64) -> Cost {
    let n = case.dim("n");
    let bytes = n.saturating_mul(case.dtype.size());
    Cost { flops: n.saturating_mul(flops), read: bytes.saturating_mul(read), written: bytes.saturating_mul(written) }
}

/// The bits of `fill`'s value in the case's dtype.
pub fn pattern(case: &Case) -> u64 {
    let value = case.attrs.float("value", 0.0);
    if case.dtype.is_float() { float_bits(case.dtype, value) } else { value as i128 as u64 }
}

/// The pattern as two words that alternate.
pub(super) fn pattern_words(case: &Case) -> [Param; 2] {
    let bits = pattern(case);
    let (even, odd) = match case.dtype.size() {
        1 => (bits as u8 as u32 * 0x0101_0101, bits as u8 as u32 * 0x0101_0101),
        2 => (bits as u16 as u32 * 0x0001_0001, bits as u16 as u32 * 0x0001_0001),
        4 => (bits as u32, bits as u32),
        _ => (bits as u32, (bits >> 32) as u32),
    };
    [Param::U32(even), Param::U32(odd)]
}

/// Words of 32 bits that n elements take.
pub(super) fn words(case: &Case) -> u64 {
    case.dim("n").saturating_mul(case.dtype.size()).div_ceil(4)
}

/// y += alpha·x: params n, alpha.
pub fn axpy_native(_: &Kernel, case: &Case, _: &DeviceInfo) -> Result<Plan> {
    let params = vec![Param::U64(case.dim("n")), scalar(case, AXPY_ALPHA)];
    Ok(plan_native::step(case, "axpy", &[0], &[1], params, cost(case, 2, 2, 1)))
}

/// x *= alpha: params n, alpha.
pub fn scal_native(_: &Kernel, case: &Case, _: &DeviceInfo) -> Result<Plan> {
    let params = vec![Param::U64(case.dim("n")), scalar(case, SCAL_ALPHA)];
    Ok(plan_native::step(case, "scal", &[], &[0], params, cost(case, 1, 1, 1)))
}

/// y = a + alpha·b: params n, alpha.
pub fn triad_native(_: &Kernel, case: &Case, _: &DeviceInfo) -> Result<Plan> {
    let params = vec![Param::U64(case.dim("n")), scalar(case, TRIAD_ALPHA)];
    Ok(plan_native::step(case, "triad", &[0, 1], &[2], params, cost(case, 2, 2, 1)))
}

/// y = x: params n.
pub fn copy_native(_: &Kernel, case: &Case, _: &DeviceInfo) -> Result<Plan> {
    Ok(plan_native::step(case, "copy", &[0], &[1], plan_native::sizes(case), cost(case, 0, 1, 1)))
}

/// y = value: params n, the value's bits.
pub fn fill_native(_: &Kernel, case: &Case, _: &DeviceInfo) -> Result<Plan> {
    let params = vec![Param::U64(case.dim("n")), Param::Wide(pattern(case))];
    Ok(plan_native::step(case, "fill", &[], &[0], params, cost(case, 0, 0, 1)))
}

/// A step over `n` elements or words with operands `args`, the last one written.
fn c(case: &Case, info: &DeviceInfo, native: Plan, n: u64, dtype: DType, params: Vec<Param>) -> Result<Plan> {
    if n == 0 {
        return Ok(Plan::default());
    }
    let [native] = &native.steps[..] else { return Ok(Plan::default()) };
    let step = plan_c::step(dtype, native.entry, dtype.compute(), dtype, plan_c::GROUP);
    let step = plan_c::spread_elements(step, n, info)?;
    Ok(plan_c::one(Step {
        args: native.args.clone(),
        writes: native.writes.clone(),
        params,
        cost: native.cost,
        dtype: case.dtype,
        ..step
    }))
}

/// `axpy(x, y, n, alpha)`.
pub fn axpy_c(k: &Kernel, case: &Case, info: &DeviceInfo) -> Result<Plan> {
    let native = axpy_native(k, case, info)?;
    let params = native.steps[0].params.clone();
    c(case, info, native, case.dim("n"), case.dtype, params)
}

/// `scal(x, n, alpha)`.
pub fn scal_c(k: &Kernel, case: &Case, info: &DeviceInfo) -> Result<Plan> {
    let native = scal_native(k, case, info)?;
    let params = native.steps[0].params.clone();
    c(case, info, native, case.dim("n"), case.dtype, params)
}

/// `triad(a, b, y, n, alpha)`.
pub fn triad_c(k: &Kernel, case: &Case, info: &DeviceInfo) -> Result<Plan> {
    let native = triad_native(k, case, info)?;
    let params = native.steps[0].params.clone();
    c(case, info, native, case.dim("n"), case.dtype, params)
}

/// `copy(x, y, from, n)`: whole words of 32 bits, then the short elements behind them one by one.
pub fn copy_c(k: &Kernel, case: &Case, info: &DeviceInfo) -> Result<Plan> {
    let size = case.dtype.size();
    let bytes = case.dim("n").saturating_mul(size);
    let (whole, rest) = (bytes / 4, bytes % 4 / size);
    let part = |dtype, from, n| {
        let params = vec![Param::U64(from), Param::U64(n)];
        c(case, info, copy_native(k, case, info)?, n, dtype, params)
    };
    let mut plan = part(DType::U32, 0, whole)?;
    let short = if size == 1 { DType::U8 } else { DType::U16 };
    plan.steps.extend(part(short, whole * 4 / size, rest)?.steps);
    Ok(plan)
}

/// `fill(y, words, even, odd)`: whole words of 32 bits.
pub fn fill_c(k: &Kernel, case: &Case, info: &DeviceInfo) -> Result<Plan> {
    let (n, [even, odd]) = (words(case), pattern_words(case));
    c(case, info, fill_native(k, case, info)?, n, DType::U32, vec![Param::U64(n), even, odd])
}

/// Words, or bytes, that a work-item of a processor moves.
const ITEMS: u64 = 16_384;

/// A step of stream_vectors.cl over `n` of them, for devices that are processors.
fn vectors(case: &Case, info: &DeviceInfo, native: &Plan, entry: &'static str, n: u64) -> Result<Step> {
    let mut step = plan_c::step(case.dtype, entry, case.dtype.compute(), case.dtype, 1);
    step.defines.push(("ITEMS".into(), ITEMS.to_string()));
    let [native] = &native.steps[..] else { return Ok(step) };
    Ok(Step {
        groups: spread_groups(n.div_ceil(ITEMS), info)?,
        args: native.args.clone(),
        writes: native.writes.clone(),
        cost: native.cost,
        ..step
    })
}

/// `copy_vectors(x, y, n, past)`: bytes.
pub fn copy_vectors(k: &Kernel, case: &Case, info: &DeviceInfo) -> Result<Plan> {
    plan_c::for_processors(info)?;
    let bytes = case.dim("n").saturating_mul(case.dtype.size());
    if bytes == 0 {
        return Ok(Plan::default());
    }
    let step = vectors(case, info, &copy_native(k, case, info)?, "copy_vectors", bytes)?;
    Ok(plan_c::one(Step { params: vec![Param::U64(bytes), plan_c::past_caches(bytes)], ..step }))
}

/// `fill_vectors(y, words, even, odd, past)`: whole words of 32 bits.
pub fn fill_vectors(k: &Kernel, case: &Case, info: &DeviceInfo) -> Result<Plan> {
    plan_c::for_processors(info)?;
    let (n, [even, odd]) = (words(case), pattern_words(case));
    if n == 0 {
        return Ok(Plan::default());
    }
    let step = vectors(case, info, &fill_native(k, case, info)?, "fill_vectors", n)?;
    let past = plan_c::past_caches(n.saturating_mul(4));
    Ok(plan_c::one(Step { params: vec![Param::U64(n), even, odd, past], ..step }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::{Attr, Attrs, Fill};

    fn case(dtype: DType, value: f64) -> Case {
        let attrs = Attrs::new().with("value", Attr::Float(value));
        Case { op: "fill", dtype, dims: vec![("n", 3)], attrs, fill: Fill::Uniform }
    }

    #[test]
    fn patterns_fill_whole_words() {
        let two = |d, v| pattern_words(&case(d, v)).map(|p| p.int());
        assert_eq!(two(DType::I8, -2.0), [0xFEFE_FEFE; 2]);
        assert_eq!(two(DType::F16, 1.0), [0x3C00_3C00; 2]);
        assert_eq!(two(DType::F32, -0.0), [0x8000_0000; 2]);
        assert_eq!(two(DType::F64, 1.0), [0, 0x3FF0_0000]);
        assert_eq!(two(DType::I64, -1.0), [0xFFFF_FFFF; 2]);
        assert_eq!(two(DType::U64, 4_294_967_296.0), [0, 1]);
        assert_eq!((words(&case(DType::I8, 0.0)), words(&case(DType::F64, 0.0))), (1, 6));
    }
}
