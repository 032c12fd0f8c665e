//! Sums along one axis of [outer, n, inner].

use crate::base::{DType, Result};

use super::simd::{Job, Style, dispatch};
use super::{Call, CpuCtx, NativeArgs};

/// Numbers that can be summed, and the type of the sum.
pub trait Summand: bytemuck::Pod + Send + Sync {
    /// f32 for f32, f64 for f64, i64 for i32 (our rule for integer sums).
    type Sum: bytemuck::Pod + Send + Sync + Default;
    /// acc + x.
    fn add(acc: Self::Sum, x: Self) -> Self::Sum;
    /// a + b.
    fn merge(a: Self::Sum, b: Self::Sum) -> Self::Sum;
}

macro_rules! summand {
    ($t:ty => $s:ty, |$a:ident, $x:ident| $add:expr, $merge:expr) => {
        impl Summand for $t {
            type Sum = $s;
            #[inline(always)]
            fn add($a: $s, $x: $t) -> $s {
                $add
            }
            #[inline(always)]
            fn merge(a: $s, b: $s) -> $s {
                let merge: fn($s, $s) -> $s = $merge;
                merge(a, b)
            }
        }
    };
}
summand!(f32 => f32, |a, x| a + x, |a, b| a + b);
summand!(f64 => f64, |a, x| a + x, |a, b| a + b);
summand!(i32 => i64, |a, x| a.wrapping_add(i64::from(x)), |a, b| a.wrapping_add(b));

/// Independent accumulators; enough to hide the latency of additions at any vector width.
pub const LANES: usize = 64;

struct Total<'a, T>(&'a [T]);

impl<T: Summand> Job for Total<'_, T> {
    type Out = T::Sum;
    #[inline(always)]
    fn run<S: Style>(self) -> T::Sum {
        if S::TEXTBOOK {
            return self.0.iter().fold(T::Sum::default(), |acc, x| T::add(acc, *x));
        }
        let mut acc = [T::Sum::default(); LANES];
        let mut blocks = self.0.chunks_exact(LANES);
        for block in &mut blocks {
            for (a, x) in acc.iter_mut().zip(block) {
                *a = T::add(*a, *x);
            }
        }
        for (a, x) in acc.iter_mut().zip(blocks.remainder()) {
            *a = T::add(*a, *x);
        }
        let mut width = LANES;
        while width > 1 {
            width /= 2;
            for i in 0..width {
                acc[i] = T::merge(acc[i], acc[i + width]);
            }
        }
        acc[0]
    }
}

/// Adds rows of x onto y, element by element.
struct AddRows<'a, T: Summand> {
    x: &'a [T],
    stride: usize,
    y: &'a mut [T::Sum],
}

impl<T: Summand> Job for AddRows<'_, T> {
    type Out = ();
    #[inline(always)]
    fn run<S: Style>(self) {
        let width = self.y.len();
        for row in self.x.chunks(self.stride) {
            for (y, x) in self.y.iter_mut().zip(&row[..width.min(row.len())]) {
                *y = T::add(*y, *x);
            }
        }
    }
}

/// y[outer, inner] = sum over n of x[outer, n, inner]. Params: outer, n, inner. Dtypes f32, f64, i32 (sum in i64).
pub fn sum(ctx: &CpuCtx<'_>, args: &mut NativeArgs<'_>, call: &Call) -> Result<()> {
    match call.dtype {
        DType::F32 => sum_typed::<f32>(ctx, args, call, false),
        DType::F64 => sum_typed::<f64>(ctx, args, call, false),
        DType::I32 => sum_typed::<i32>(ctx, args, call, false),
        _ => Err(call.no_dtype()),
    }
}

/// One accumulator, one thread, in order.
pub fn sum_naive(ctx: &CpuCtx<'_>, args: &mut NativeArgs<'_>, call: &Call) -> Result<()> {
    let one = CpuCtx { threads: 1, pool: None, ..*ctx };
    match call.dtype {
        DType::F32 => sum_typed::<f32>(&one, args, call, true),
        DType::F64 => sum_typed::<f64>(&one, args, call, true),
        DType::I32 => sum_typed::<i32>(&one, args, call, true),
        _ => Err(call.no_dtype()),
    }
}

fn sum_typed<T: Summand>(ctx: &CpuCtx<'_>, args: &mut NativeArgs<'_>, call: &Call, textbook: bool) -> Result<()> {
    let (outer, n, inner) = (call.size(0), call.size(1), call.size(2));
    let x = args.input::<T>(0, outer * n * inner)?;
    let y = args.output::<T::Sum>(0, outer * inner)?;
    if textbook {
        for (i, y) in y.iter_mut().enumerate() {
            let start = i / inner * n * inner + i % inner;
            *y = (0..n).fold(T::Sum::default(), |acc, j| T::add(acc, x[start + j * inner]));
        }
        return Ok(());
    }
    let parts = ctx.parts_for_bytes(size_of_val(x));
    if inner == 1 && outer == 1 {
        // One long row: each thread sums a piece, the pieces are merged in order.
        let piece = CpuCtx::chunk(n, parts, LANES).max(1);
        let mut partial = vec![T::Sum::default(); n.div_ceil(piece)];
        ctx.split(&mut partial, 1, |i, out| out[0] = dispatch(ctx.isa, Total(&x[i * piece..n.min((i + 1) * piece)])));
        y[0] = partial.into_iter().fold(T::Sum::default(), T::merge);
    } else if inner == 1 {
        ctx.split(y, CpuCtx::chunk(outer, parts, 1), |first, y| {
            for (i, y) in y.iter_mut().enumerate() {
                *y = dispatch(ctx.isa, Total(&x[(first + i) * n..(first + i + 1) * n]));
            }
        });
    } else {
        // A piece is a run of outputs; within it each outer index contributes one run of columns.
        ctx.split(y, CpuCtx::chunk(outer * inner, parts, LANES), |first, y| {
            let mut at = first;
            let mut rest = y;
            while !rest.is_empty() {
                let (o, c) = (at / inner, at % inner);
                let (run, tail) = rest.split_at_mut((inner - c).min(rest.len()));
                run.fill(T::Sum::default());
                at += run.len();
                if n > 0 {
                    let x = &x[o * n * inner + c..(o + 1) * n * inner];
                    dispatch(ctx.isa, AddRows { x, stride: inner, y: run });
                }
                rest = tail;
            }
        });
    }
    Ok(())
}
