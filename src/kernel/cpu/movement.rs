//! Transposition.

use crate::base::Result;

use super::{Call, CpuCtx, NativeArgs};

/// Edge of a block: 32 rows of 32 f64 fit the first-level cache twice.
const BLOCK: usize = 32;
/// Bytes up to which a matrix is its own block.
const SMALL: usize = 48 << 10;

/// y[n, m] = x[m, n] transposed. Params: m, n. Any dtype: only its size matters.
pub fn transpose(ctx: &CpuCtx<'_>, args: &mut NativeArgs<'_>, call: &Call) -> Result<()> {
    blocks(ctx, args, call, BLOCK)
}

/// Element by element on one thread.
pub fn transpose_naive(ctx: &CpuCtx<'_>, args: &mut NativeArgs<'_>, call: &Call) -> Result<()> {
    blocks(&ctx.alone(), args, call, usize::MAX)
}

fn blocks(ctx: &CpuCtx<'_>, args: &mut NativeArgs<'_>, call: &Call, block: usize) -> Result<()> {
    match call.dtype.size() {
        1 => typed::<u8>(ctx, args, call, block),
        2 => typed::<u16>(ctx, args, call, block),
        4 => typed::<u32>(ctx, args, call, block),
        _ => typed::<u64>(ctx, args, call, block),
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

fn typed<T: bytemuck::Pod + Send + Sync>(
    ctx: &CpuCtx<'_>,
    args: &mut NativeArgs<'_>,
    call: &Call,
    block: usize,
) -> Result<()> {
    let (m, n) = (call.size(0), call.size(1));
    let x = args.input::<T>(0, m * n)?;
    let y = args.output::<T>(0, m * n)?;
    if m * n == 0 {
        return Ok(());
    }
    let parts = ctx.parts_for_bytes(2 * size_of_val(x));
    // Each piece is a run of whole rows of y, that is, of columns of x.
    ctx.split(y, CpuCtx::chunk(n, parts, BLOCK) * m, |first, y| {
        let (j0, rows) = (first / m, y.len() / m);
        let mut jb = 0;
        while jb < rows {
            let j_end = jb.saturating_add(block).min(rows);
            let mut ib = 0;
            while ib < m {
                let i_end = ib.saturating_add(block).min(m);
                for j in jb..j_end {
                    let out = &mut y[j * m + ib..j * m + i_end];
                    for (o, i) in out.iter_mut().zip(ib..i_end) {
                        *o = x[i * n + j0 + j];
                    }
                }
                ib = i_end;
            }
            jb = j_end;
        }
    });
    Ok(())
}
