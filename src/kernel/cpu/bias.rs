//! A bias per channel of [outer, c, inner], and its gradient.

use crate::base::Result;

use super::lanes::summed;
use super::number::{Element, Number, with_element};
use super::{Call, CpuCtx, NativeArgs};

/// Channels whose sums lie on the stack.
const FEW: usize = 64;

/// `y[o, c, i] = x[o, c, i] + b[c]`. Params: outer, c, inner. Dtypes: the floats.
pub fn bias_add(ctx: &CpuCtx<'_>, args: &mut NativeArgs<'_>, call: &Call) -> Result<()> {
    with_element!(floats call.dtype, T => add_typed::<T>(ctx, args, call), else Err(call.no_dtype()))
}

/// The same on one thread, an index computed for every element.
pub fn bias_add_naive(_: &CpuCtx<'_>, args: &mut NativeArgs<'_>, call: &Call) -> Result<()> {
    with_element!(floats call.dtype, T => {
        let (c, inner) = (call.size(1), call.size(2));
        let n = call.size(0) * c * inner;
        let (x, b, y) = (args.input::<T>(0, n)?, args.input::<T>(1, c)?, args.output::<T>(0, n)?);
        for (i, (y, x)) in y.iter_mut().zip(x).enumerate() {
            *y = T::store(x.load().add(b[i / inner % c].load()));
        }
        Ok(())
    }, else Err(call.no_dtype()))
}

fn add_typed<T: Element>(ctx: &CpuCtx<'_>, args: &mut NativeArgs<'_>, call: &Call) -> Result<()> {
    let (c, inner) = (call.size(1), call.size(2));
    let n = call.size(0) * c * inner;
    let (x, b, y) = (args.input::<T>(0, n)?, args.input::<T>(1, c)?, args.output::<T>(0, n)?);
    let parts = ctx.parts_for_bytes(2 * size_of_val(x));
    // Runs over which the bias is a row, or one number.
    let run = if inner == 1 { c } else { inner };
    ctx.split(y, CpuCtx::chunk(n, parts, run.max(1)), |first, y| {
        for (i, y) in y.chunks_mut(run).enumerate() {
            let at = first + i * run;
            let x = &x[at..at + y.len()];
            if inner == 1 {
                for ((y, x), b) in y.iter_mut().zip(x).zip(b) {
                    *y = T::store(x.load().add(b.load()));
                }
            } else {
                let b = b[at / inner % c].load();
                for (y, x) in y.iter_mut().zip(x) {
                    *y = T::store(x.load().add(b));
                }
            }
        }
    });
    Ok(())
}

/// `db[c]` is the sum of `g[o, c, i]` over o and i. Params: outer, c, inner. Dtypes: the floats; f16 and bf16 sum in f32.
pub fn bias_sum(ctx: &CpuCtx<'_>, args: &mut NativeArgs<'_>, call: &Call) -> Result<()> {
    with_element!(floats call.dtype, T => sum_typed::<T>(ctx, args, call), else Err(call.no_dtype()))
}

/// One accumulator per channel, one thread, in order.
pub fn bias_sum_naive(_: &CpuCtx<'_>, args: &mut NativeArgs<'_>, call: &Call) -> Result<()> {
    with_element!(floats call.dtype, T => {
        let (outer, c, inner) = (call.size(0), call.size(1), call.size(2));
        let (g, db) = (args.input::<T>(0, outer * c * inner)?, args.output::<T>(0, c)?);
        for (channel, db) in db.iter_mut().enumerate() {
            let mut sum = <T as Element>::Acc::default();
            for o in 0..outer {
                for i in 0..inner {
                    sum = sum.add(g[(o * c + channel) * inner + i].load());
                }
            }
            *db = T::store(sum);
        }
        Ok(())
    }, else Err(call.no_dtype()))
}

fn sum_typed<T: Element>(ctx: &CpuCtx<'_>, args: &mut NativeArgs<'_>, call: &Call) -> Result<()> {
    let (outer, c, inner) = (call.size(0), call.size(1), call.size(2));
    let (g, db) = (args.input::<T>(0, outer * c * inner)?, args.output::<T>(0, c)?);
    let parts = ctx.parts_for_bytes(size_of_val(g));
    // Each piece is a run of channels; rows of g are walked in order.
    ctx.split(db, CpuCtx::chunk(c, parts, 1), |first, db| {
        let (mut few, mut many) = ([T::Acc::default(); FEW], Vec::new());
        let sums = if db.len() <= FEW {
            &mut few[..db.len()]
        } else {
            many.resize(db.len(), T::Acc::default());
            &mut many
        };
        for o in 0..outer {
            let row = &g[(o * c + first) * inner..(o * c + first + db.len()) * inner];
            if inner == 1 {
                for (s, g) in sums.iter_mut().zip(row) {
                    *s = s.add(g.load());
                }
            } else if inner > 1 {
                for (s, run) in sums.iter_mut().zip(row.chunks_exact(inner)) {
                    *s = s.add(summed(run, run, |s: T::Acc, g, _| s.add(g.load())));
                }
            }
        }
        for (y, s) in db.iter_mut().zip(sums) {
            *y = T::store(*s);
        }
    });
    Ok(())
}
