//! Operands of any dtype read as numbers of one type of arithmetic: in place where the types agree, else converted block
//! by block. So a kernel's loops are compiled for three types instead of twelve.

use half::slice::HalfFloatSliceExt;

use crate::base::{DType, Result};

use super::lanes::summed;
use super::number::Number;
use super::simd::{Job, Style};
use super::{Call, NativeArgs};

/// Elements converted at once: they stay in the first-level cache.
pub const BLOCK: usize = 1024;

/// Types of arithmetic that sums are computed in: f32, f64 and i64 (unsigned sums have the same bits).
pub trait Acc: Number {
    /// The function that converts a dtype's bytes, if the dtype can be read so.
    fn widen(dtype: DType) -> Option<fn(&[u8], &mut [Self])>;
    /// True if a dtype's bytes are this type's.
    fn same(dtype: DType) -> bool;
    /// True if results of a call with this dtype are written in this type.
    fn kept(dtype: DType) -> bool;
    /// Writes results in a float dtype.
    fn narrow(values: &[Self], args: &mut NativeArgs<'_>, output: usize, dtype: DType) -> Result<()>;
}

fn cast<T: bytemuck::Pod, A: Copy>(f: impl Fn(T) -> A, from: &[u8], to: &mut [A]) {
    for (to, from) in to.iter_mut().zip(from.chunks_exact(size_of::<T>())) {
        *to = f(bytemuck::pod_read_unaligned(from));
    }
}

/// Halves through the processor's conversion, if it has one.
fn halves<H: bytemuck::Pod>(from: &[u8], to: &mut [f32])
where
    [H]: HalfFloatSliceExt,
{
    if let Ok(h) = bytemuck::try_cast_slice::<u8, H>(from) {
        h.convert_to_f32_slice(to);
    }
}

fn wide_halves<H: bytemuck::Pod>(from: &[u8], to: &mut [f64])
where
    [H]: HalfFloatSliceExt,
{
    if let Ok(h) = bytemuck::try_cast_slice::<u8, H>(from) {
        h.convert_to_f64_slice(to);
    }
}

fn narrow_halves<H: bytemuck::Pod>(values: &[f32], args: &mut NativeArgs<'_>, output: usize) -> Result<()>
where
    [H]: HalfFloatSliceExt,
{
    args.output::<H>(output, values.len())?.convert_from_f32_slice(values);
    Ok(())
}

impl Acc for f32 {
    fn widen(dtype: DType) -> Option<fn(&[u8], &mut [f32])> {
        match dtype {
            DType::F32 => Some(|x, y| cast(|v: f32| v, x, y)),
            DType::F16 => Some(halves::<half::f16>),
            DType::BF16 => Some(halves::<half::bf16>),
            _ => None,
        }
    }
    fn same(dtype: DType) -> bool {
        dtype == DType::F32
    }
    fn kept(dtype: DType) -> bool {
        dtype == DType::F32
    }
    fn narrow(values: &[f32], args: &mut NativeArgs<'_>, output: usize, dtype: DType) -> Result<()> {
        match dtype {
            DType::F16 => narrow_halves::<half::f16>(values, args, output),
            DType::BF16 => narrow_halves::<half::bf16>(values, args, output),
            _ => {
                args.output::<f32>(output, values.len())?.copy_from_slice(values);
                Ok(())
            }
        }
    }
}

impl Acc for f64 {
    fn widen(dtype: DType) -> Option<fn(&[u8], &mut [f64])> {
        Some(match dtype {
            DType::F32 => |x, y| cast(|v: f32| f64::from(v), x, y),
            DType::F64 => |x, y| cast(|v: f64| v, x, y),
            DType::F16 => wide_halves::<half::f16>,
            DType::BF16 => wide_halves::<half::bf16>,
            DType::I8 => |x, y| cast(|v: i8| f64::from(v), x, y),
            DType::I16 => |x, y| cast(|v: i16| f64::from(v), x, y),
            DType::I32 => |x, y| cast(|v: i32| f64::from(v), x, y),
            DType::I64 => |x, y| cast(|v: i64| v as f64, x, y),
            DType::U8 => |x, y| cast(|v: u8| f64::from(v), x, y),
            DType::U16 => |x, y| cast(|v: u16| f64::from(v), x, y),
            DType::U32 => |x, y| cast(|v: u32| f64::from(v), x, y),
            DType::U64 => |x, y| cast(|v: u64| v as f64, x, y),
        })
    }
    fn same(dtype: DType) -> bool {
        dtype == DType::F64
    }
    fn kept(_: DType) -> bool {
        true
    }
    fn narrow(values: &[f64], args: &mut NativeArgs<'_>, output: usize, _: DType) -> Result<()> {
        args.output::<f64>(output, values.len())?.copy_from_slice(values);
        Ok(())
    }
}

impl Acc for i64 {
    fn widen(dtype: DType) -> Option<fn(&[u8], &mut [i64])> {
        Some(match dtype {
            DType::I8 => |x, y| cast(|v: i8| i64::from(v), x, y),
            DType::I16 => |x, y| cast(|v: i16| i64::from(v), x, y),
            DType::I32 => |x, y| cast(|v: i32| i64::from(v), x, y),
            DType::U8 => |x, y| cast(|v: u8| i64::from(v), x, y),
            DType::U16 => |x, y| cast(|v: u16| i64::from(v), x, y),
            DType::U32 => |x, y| cast(|v: u32| i64::from(v), x, y),
            DType::I64 | DType::U64 => |x, y| cast(|v: i64| v, x, y),
            _ => return None,
        })
    }
    fn same(dtype: DType) -> bool {
        matches!(dtype, DType::I64 | DType::U64)
    }
    fn kept(_: DType) -> bool {
        true
    }
    fn narrow(values: &[i64], args: &mut NativeArgs<'_>, output: usize, _: DType) -> Result<()> {
        args.output::<i64>(output, values.len())?.copy_from_slice(values);
        Ok(())
    }
}

/// Types in which results are stored, computed in `Of`.
pub trait Store: bytemuck::Pod + Send + Sync {
    /// Type of the arithmetic.
    type Of: Acc;
    /// Rounds numbers to storage.
    fn put(from: &[Self::Of], to: &mut [Self]);
    /// The storage itself, where numbers are stored as they are.
    fn direct(_: &mut [Self]) -> Option<&mut [Self::Of]> {
        None
    }
}

macro_rules! stores {
    ($($t:ty as $acc:ident |$from:ident, $to:ident| $put:expr $(, direct $direct:ident)?;)*) => {$(
        impl Store for $t {
            type Of = $acc;
            #[inline]
            fn put($from: &[$acc], $to: &mut [$t]) {
                $put
            }
            $(
                fn direct(to: &mut [$t]) -> Option<&mut [$direct]> {
                    Some(to)
                }
            )?
        }
    )*};
}
stores! {
    f32 as f32 |from, to| to.copy_from_slice(from), direct f32;
    f64 as f64 |from, to| to.copy_from_slice(from), direct f64;
    half::f16 as f32 |from, to| to.convert_from_f32_slice(from);
    half::bf16 as f32 |from, to| to.convert_from_f32_slice(from);
}

/// An operand read as numbers of type `A`.
#[derive(Clone, Copy, Debug)]
pub struct View<'a, A> {
    direct: Option<&'a [A]>,
    bytes: &'a [u8],
    size: usize,
    widen: fn(&[u8], &mut [A]),
}

impl<'a, A: Acc> View<'a, A> {
    /// Input `i` of the call's dtype, at least `len` elements.
    pub fn of(args: &NativeArgs<'a>, call: &Call, i: usize, len: usize) -> Result<Self> {
        let widen = A::widen(call.dtype).ok_or_else(|| call.no_dtype())?;
        let size = call.dtype.size() as usize;
        let direct = if A::same(call.dtype) { Some(args.input::<A>(i, len)?) } else { None };
        // The typed view also checks the alignment that the conversions of halves ask for.
        let bytes =
            if size == 2 { bytemuck::cast_slice(args.input::<u16>(i, len)?) } else { args.input::<u8>(i, len * size)? };
        Ok(View { direct, bytes, size, widen })
    }

    /// Numbers that are in memory already.
    pub fn plain(x: &'a [A]) -> Self {
        View { direct: Some(x), bytes: &[], size: size_of::<A>(), widen: |_, _| {} }
    }

    /// All elements in place, if they need no conversion.
    pub fn direct(&self) -> Option<&'a [A]> {
        self.direct
    }

    /// Elements `at .. at + len`, converted into `buffer` (of at least `len`) if they must be.
    #[inline]
    pub fn block<'b>(&self, at: usize, len: usize, buffer: &'b mut [A]) -> &'b [A]
    where
        'a: 'b,
    {
        match self.direct {
            Some(x) => &x[at..at + len],
            None => {
                (self.widen)(&self.bytes[at * self.size..(at + len) * self.size], &mut buffer[..len]);
                &buffer[..len]
            }
        }
    }

    /// One element.
    #[inline]
    pub fn get(&self, at: usize) -> A {
        let mut one = [A::default()];
        self.block(at, 1, &mut one)[0]
    }
}

/// Sum of a block.
pub struct Total<'a, A>(pub &'a [A]);

impl<A: Acc> Job for Total<'_, A> {
    type Out = A;
    #[inline(always)]
    fn run<S: Style>(self) -> A {
        summed(self.0, self.0, |s: A, x, _| s.add(x))
    }
}

/// Adds rows of x, `stride` apart, onto y.
pub struct AddRows<'a, A> {
    /// Rows; only the first `y.len()` of each count.
    pub x: &'a [A],
    /// Distance of rows.
    pub stride: usize,
    /// Sums.
    pub y: &'a mut [A],
}

impl<A: Acc> Job for AddRows<'_, A> {
    type Out = ();
    #[inline(always)]
    fn run<S: Style>(self) {
        let width = self.y.len();
        for row in self.x.chunks(self.stride) {
            for (y, x) in self.y.iter_mut().zip(&row[..width.min(row.len())]) {
                *y = y.add(*x);
            }
        }
    }
}

/// Sum of products of two blocks.
pub struct Products<'a, A>(pub &'a [A], pub &'a [A]);

impl<A: Acc> Job for Products<'_, A> {
    type Out = A;
    #[inline(always)]
    fn run<S: Style>(self) -> A {
        summed(self.0, self.1, |s: A, a, b| s.add(a.mul(b)))
    }
}

/// Sum of squares in f64, where those of f32 neither overflow nor vanish.
pub struct Squares<'a>(pub &'a [f32]);

impl Job for Squares<'_> {
    type Out = f64;
    #[inline(always)]
    fn run<S: Style>(self) -> f64 {
        summed(self.0, self.0, |s: f64, x, _| s + f64::from(x) * f64::from(x))
    }
}
