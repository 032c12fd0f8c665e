//! Conversions between all number types.
//!
//! Blocks of the input are widened exactly, floats to f64 and integers to i64 (u64 bit by bit), and narrowed from there,
//! so that twelve loops in and twelve out serve 144 pairs. f32, f16 and bf16 among each other go through f32.

use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};

use crate::base::{DType, Result};
use crate::kernel::plan_cast;

use super::number::with_element;
use super::{Call, CpuCtx, NativeArgs};

/// Elements widened at once; 4 KiB of them stay in the first-level cache.
const BLOCK: usize = 512;

/// A number type as a target.
trait Target: bytemuck::Pod + Send + Sync {
    /// From a float: saturated and NaN to 0 for integers, else to nearest even.
    fn from_f64(v: f64) -> Self;
    /// From an integer, or from the bits of an unsigned one: wrapped for integers, else to nearest even.
    fn from_i64(v: i64, unsigned: bool) -> Self;
}

macro_rules! int_target {
    ($($t:ident)*) => {$(
        impl Target for $t {
            #[inline(always)]
            fn from_f64(v: f64) -> $t {
                v as $t
            }
            #[inline(always)]
            fn from_i64(v: i64, _: bool) -> $t {
                v as $t
            }
        }
    )*};
}
int_target!(i8 i16 i32 i64 u8 u16 u32 u64);

macro_rules! real_target {
    ($($t:ident)*) => {$(
        impl Target for $t {
            #[inline(always)]
            fn from_f64(v: f64) -> $t {
                v as $t
            }
            #[inline(always)]
            fn from_i64(v: i64, unsigned: bool) -> $t {
                if unsigned { v as u64 as $t } else { v as $t }
            }
        }
    )*};
}
real_target!(f32 f64);

macro_rules! half_target {
    ($($t:ident)*) => {$(
        impl Target for $t {
            #[inline(always)]
            fn from_f64(v: f64) -> $t {
                $t::from_f32(odd_f32(v))
            }
            #[inline(always)]
            fn from_i64(v: i64, unsigned: bool) -> $t {
                $t::from_f32(odd_f32(odd_f64(v, unsigned)))
            }
        }
    )*};
}
half_target!(f16 bf16);

/// The f32 on either side of `v` whose last bit is 1, unless `v` is an f32. Rounding that to a shorter type gives what
/// rounding `v` would (Boldo and Melquiond, *When double rounding is odd*); rounding the nearest f32 would not, nor does
/// `half` 2's own conversion, which drops the lower half of the bits first.
fn odd_f32(v: f64) -> f32 {
    let near = v as f32;
    let back = f64::from(near);
    if back == v || v.is_nan() {
        return near;
    }
    let toward_zero = near.to_bits() - u32::from(back.abs() > v.abs());
    f32::from_bits(toward_zero | 1)
}

/// The same from integers to f64.
fn odd_f64(v: i64, unsigned: bool) -> f64 {
    let (magnitude, negative) = if unsigned { (v as u64, false) } else { (v.unsigned_abs(), v < 0) };
    let size = match magnitude >> 53 {
        0 => magnitude as f64,
        _ => (magnitude >> 11 | u64::from(magnitude & 0x7FF != 0)) as f64 * 2048.0,
    };
    if negative { -size } else { size }
}

/// `value` in a float dtype, rounded once; for scalars such as `fill`'s.
pub fn float_bits(dtype: DType, value: f64) -> u64 {
    match dtype {
        DType::F64 => value.to_bits(),
        DType::F16 => u64::from(<f16 as Target>::from_f64(value).to_bits()),
        DType::BF16 => u64::from(<bf16 as Target>::from_f64(value).to_bits()),
        _ => u64::from((value as f32).to_bits()),
    }
}

/// y = x in another number type. Params: n, ONNX's code of the type.
pub fn cast(ctx: &CpuCtx<'_>, args: &mut NativeArgs<'_>, call: &Call) -> Result<()> {
    cast_with(ctx, args, call, BLOCK)
}

/// The same element by element on one thread.
pub fn cast_naive(ctx: &CpuCtx<'_>, args: &mut NativeArgs<'_>, call: &Call) -> Result<()> {
    cast_with(&ctx.alone(), args, call, 1)
}

fn cast_with(ctx: &CpuCtx<'_>, args: &mut NativeArgs<'_>, call: &Call, block: usize) -> Result<()> {
    let (n, from) = (call.size(0), call.dtype);
    let to = plan_cast::dtype_of(call.size(1) as i64).ok_or_else(|| call.no_dtype())?;
    let x = args.input::<u8>(0, n * from.size() as usize)?;
    let parts = ctx.parts_for_bytes(n * (from.size() + to.size()) as usize);
    let chunk = CpuCtx::chunk(n, parts, BLOCK);
    let short = |d: DType| d.is_float() && d != DType::F64;
    if block > 1 && short(from) && short(to) {
        return through_f32(ctx, args, (n, chunk), x, from, to);
    }
    with_element!(to, T => {
        let y = args.output::<T>(0, n)?;
        ctx.split(y, chunk, |at, y| narrow::<T>(from, x, at, y, block));
    });
    Ok(())
}

fn narrow<T: Target>(from: DType, x: &[u8], at: usize, y: &mut [T], block: usize) {
    let unsigned = from == DType::U64;
    let (mut floats, mut ints) = ([0f64; BLOCK], [0i64; BLOCK]);
    let mut first = at;
    for y in y.chunks_mut(block) {
        let len = y.len();
        if from.is_float() {
            widen_floats(from, x, first, &mut floats[..len]);
            for (y, v) in y.iter_mut().zip(&floats) {
                *y = T::from_f64(*v);
            }
        } else {
            widen_ints(from, x, first, &mut ints[..len]);
            for (y, v) in y.iter_mut().zip(&ints) {
                *y = T::from_i64(*v, unsigned);
            }
        }
        first += len;
    }
}

/// The elements of `x` from number `first` on.
fn elements<T: bytemuck::Pod>(x: &[u8], first: usize, len: usize) -> impl Iterator<Item = T> + '_ {
    let size = size_of::<T>();
    x[first * size..(first + len) * size].chunks_exact(size).map(bytemuck::pod_read_unaligned)
}

#[allow(clippy::useless_conversion, reason = "one of the types is f64 already")]
fn widen_floats(from: DType, x: &[u8], first: usize, out: &mut [f64]) {
    let len = out.len();
    with_element!(floats from, T => {
        for (o, v) in out.iter_mut().zip(elements::<T>(x, first, len)) {
            *o = f64::from(v);
        }
    }, else {})
}

#[allow(clippy::unnecessary_cast, reason = "one of the types is i64 already")]
fn widen_ints(from: DType, x: &[u8], first: usize, out: &mut [i64]) {
    let len = out.len();
    with_element!(ints from, T => {
        for (o, v) in out.iter_mut().zip(elements::<T>(x, first, len)) {
            *o = v as i64;
        }
    }, else {})
}

fn through_f32(
    ctx: &CpuCtx<'_>,
    args: &mut NativeArgs<'_>,
    (n, chunk): (usize, usize),
    x: &[u8],
    from: DType,
    to: DType,
) -> Result<()> {
    match to {
        DType::F32 => {
            let y = args.output::<f32>(0, n)?;
            ctx.split(y, chunk, |at, y| singles(from, x, at, y));
        }
        DType::F16 => {
            let y = args.output::<f16>(0, n)?;
            ctx.split(y, chunk, |at, y| to_half(from, x, at, y));
        }
        _ => {
            let y = args.output::<bf16>(0, n)?;
            ctx.split(y, chunk, |at, y| to_half(from, x, at, y));
        }
    }
    Ok(())
}

fn to_half<H>(from: DType, x: &[u8], at: usize, y: &mut [H])
where
    [H]: HalfFloatSliceExt,
{
    let mut wide = [0f32; BLOCK];
    for (i, y) in y.chunks_mut(BLOCK).enumerate() {
        let wide = &mut wide[..y.len()];
        singles(from, x, at + i * BLOCK, wide);
        y.convert_from_f32_slice(wide);
    }
}

/// f32, f16 or bf16 as f32.
fn singles(from: DType, x: &[u8], first: usize, out: &mut [f32]) {
    let (size, len) = (from.size() as usize, out.len());
    let bytes = &x[first * size..(first + len) * size];
    // Buffers are aligned; if one were not, elements would be read one by one.
    match (from, bytemuck::try_cast_slice::<u8, f16>(bytes), bytemuck::try_cast_slice::<u8, bf16>(bytes)) {
        (DType::F16, Ok(halves), _) => halves.convert_to_f32_slice(out),
        (DType::BF16, _, Ok(halves)) => halves.convert_to_f32_slice(out),
        (DType::F16, ..) => out.iter_mut().zip(elements::<f16>(x, first, len)).for_each(|(o, v)| *o = v.to_f32()),
        (DType::BF16, ..) => out.iter_mut().zip(elements::<bf16>(x, first, len)).for_each(|(o, v)| *o = v.to_f32()),
        _ => out.iter_mut().zip(elements::<f32>(x, first, len)).for_each(|(o, v)| *o = v),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn halves_are_rounded_once() {
        let just_above_a_tie = 1.0 + 2f64.powi(-11) + 2f64.powi(-40);
        assert_eq!(<f16 as Target>::from_f64(just_above_a_tie).to_f64(), 1.0 + 2f64.powi(-10));
        assert_eq!(<f16 as Target>::from_f64(1.0 + 2f64.powi(-11)).to_f64(), 1.0, "a tie goes to even");
        assert_eq!(
            <bf16 as Target>::from_f64(-(1.0 + 2f64.powi(-8) + 2f64.powi(-45))).to_f64(),
            -(1.0 + 2f64.powi(-7))
        );
        let above = (1i64 << 40) + (1 << 32) + 1;
        assert_eq!(<bf16 as Target>::from_i64(above, false).to_f64(), ((1i64 << 40) + (1i64 << 33)) as f64);
        assert_eq!(<bf16 as Target>::from_i64(-1, true).to_f64(), 2f64.powi(64));
        assert_eq!(<f16 as Target>::from_f64(1e300), f16::INFINITY);
        assert_eq!(<bf16 as Target>::from_f64(-1e300), bf16::NEG_INFINITY);
        assert_eq!(<f16 as Target>::from_f64(-1e-300).to_bits(), 0x8000);
        assert!(<f16 as Target>::from_f64(f64::NAN).is_nan());
    }
}
