//! Transposition.

use crate::base::Result;

use super::{Call, CpuCtx, NativeArgs};

/// Edge of a block: 32 rows of 32 f64 fit the first-level cache twice.
const BLOCK: usize = 32;

/// y[n, m] = x[m, n] transposed. Params: m, n. Any dtype of 4 or 8 bytes.
pub fn transpose(ctx: &CpuCtx<'_>, args: &mut NativeArgs<'_>, call: &Call) -> Result<()> {
    match call.dtype.size() {
        4 => typed::<u32>(ctx, args, call, BLOCK),
        8 => typed::<u64>(ctx, args, call, BLOCK),
        _ => Err(call.no_dtype()),
    }
}

/// Element by element on one thread.
pub fn transpose_naive(ctx: &CpuCtx<'_>, args: &mut NativeArgs<'_>, call: &Call) -> Result<()> {
    let one = CpuCtx { threads: 1, pool: None, ..*ctx };
    match call.dtype.size() {
        4 => typed::<u32>(&one, args, call, usize::MAX),
        8 => typed::<u64>(&one, args, call, usize::MAX),
        _ => Err(call.no_dtype()),
    }
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
