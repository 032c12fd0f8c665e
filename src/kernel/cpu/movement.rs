//! Transposition.

use crate::base::Result;

use super::simd::past;
use super::simd::turn::{Lines, turn};
use super::{Call, CpuCtx, NativeArgs};

/// Threads' shares are cut at multiples of so many rows of the result.
const UNIT: usize = 64;
/// Edge of a block that is swapped with its mirror image: 32 rows of 32 f64 fit the first-level cache twice.
const BLOCK: usize = 32;
/// Elements up to which blocks cost more than they save.
const FEW: usize = 64;
/// Bytes up to which a matrix is its own block.
const SMALL: usize = 48 << 10;

/// y[n, m] = x[m, n] transposed. Params: m, n. Any dtype: only its size matters.
pub fn transpose(ctx: &CpuCtx<'_>, args: &mut NativeArgs<'_>, call: &Call) -> Result<()> {
    match call.dtype.size() {
        1 => blocks::<u8>(ctx, args, call),
        2 => blocks::<u16>(ctx, args, call),
        4 => blocks::<u32>(ctx, args, call),
        _ => blocks::<u64>(ctx, args, call),
    }
}

/// Element by element on one thread.
pub fn transpose_naive(_: &CpuCtx<'_>, args: &mut NativeArgs<'_>, call: &Call) -> Result<()> {
    match call.dtype.size() {
        1 => elements::<u8>(args, call),
        2 => elements::<u16>(args, call),
        4 => elements::<u32>(args, call),
        _ => elements::<u64>(args, call),
    }
}

/// x[n, n] becomes its own transpose. Params: n, n. Any dtype.
///
/// One thread: two blocks that mirror each other lie in different rows, so no split by rows is free of sharing.
pub fn transpose_inplace(_: &CpuCtx<'_>, args: &mut NativeArgs<'_>, call: &Call) -> Result<()> {
    swaps(args, call, BLOCK)
}

/// Element by element.
pub fn transpose_inplace_naive(_: &CpuCtx<'_>, args: &mut NativeArgs<'_>, call: &Call) -> Result<()> {
    swaps(args, call, usize::MAX)
}

fn swaps(args: &mut NativeArgs<'_>, call: &Call, block: usize) -> Result<()> {
    match call.dtype.size() {
        1 => typed_swaps::<u8>(args, call, block),
        2 => typed_swaps::<u16>(args, call, block),
        4 => typed_swaps::<u32>(args, call, block),
        _ => typed_swaps::<u64>(args, call, block),
    }
}

fn typed_swaps<T: bytemuck::Pod>(args: &mut NativeArgs<'_>, call: &Call, block: usize) -> Result<()> {
    let n = call.size(0);
    let x = args.output::<T>(0, n * n)?;
    // Blocks are for what a first-level cache does not hold.
    let block = if size_of_val(x) <= SMALL { n.max(1) } else { block.min(n.max(1)) };
    for ib in (0..n).step_by(block) {
        for jb in (ib..n).step_by(block) {
            for i in ib..(ib + block).min(n) {
                for j in jb.max(i + 1)..(jb + block).min(n) {
                    x.swap(i * n + j, j * n + i);
                }
            }
        }
    }
    Ok(())
}

fn elements<T: bytemuck::Pod>(args: &mut NativeArgs<'_>, call: &Call) -> Result<()> {
    let (m, n) = (call.size(0), call.size(1));
    one_by_one(args.input::<T>(0, m * n)?, (m, n), args.output::<T>(0, m * n)?);
    Ok(())
}

fn one_by_one<T: Copy>(x: &[T], (m, n): (usize, usize), y: &mut [T]) {
    for (j, row) in y.chunks_exact_mut(m.max(1)).enumerate() {
        for (i, to) in row.iter_mut().enumerate() {
            *to = x[i * n + j];
        }
    }
}

fn blocks<T: bytemuck::Pod + Send + Sync>(ctx: &CpuCtx<'_>, args: &mut NativeArgs<'_>, call: &Call) -> Result<()> {
    let (m, n) = (call.size(0), call.size(1));
    let (x, y) = (args.input::<T>(0, m * n)?, args.output::<T>(0, m * n)?);
    if m * n <= FEW {
        one_by_one(x, (m, n), y);
        return Ok(());
    }
    let parts = ctx.parts_for_bytes(2 * size_of_val(x));
    let far = past::is_far(ctx.isa, size_of_val(y));
    // Each piece is a run of whole rows of y, that is, of columns of x.
    ctx.split(y, CpuCtx::chunk(n, parts, UNIT) * m, |first, y| {
        turn(ctx.isa, &x[first / m..], (m, y.len() / m), Lines { x: n, y: m }, y, far);
    });
    Ok(())
}
