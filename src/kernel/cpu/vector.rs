//! Matrix by vector: bound by memory, so the loops run along the rows of A as they are stored.

use half::slice::HalfFloatSliceExt;

use crate::base::Result;

use super::combine::{ROWS, add_row, add_rows};
use super::lanes::summed;
use super::math::Real;
use super::number::{Element, Number, with_element};
use super::simd::{Job, Style, dispatch};
use super::{Call, CpuCtx, NativeArgs};

/// Storage of which whole rows are turned into numbers.
pub(super) trait Wide: Element {
    /// The numbers of `row`, in `buffer` if they have to be converted.
    fn wide<'a>(row: &'a [Self], buffer: &'a mut Vec<Self::Acc>) -> &'a [Self::Acc];
}

macro_rules! wide {
    (as they are: $($t:ty)*) => {$(
        impl Wide for $t {
            fn wide<'a>(row: &'a [Self], _: &'a mut Vec<$t>) -> &'a [$t] {
                row
            }
        }
    )*};
    (converted: $($t:ty)*) => {$(
        impl Wide for $t {
            fn wide<'a>(row: &'a [Self], buffer: &'a mut Vec<f32>) -> &'a [f32] {
                buffer.resize(row.len(), 0.0);
                row.convert_to_f32_slice(buffer);
                buffer
            }
        }
    )*};
}
wide!(as they are: f32 f64);
wide!(converted: half::f16 half::bf16);

/// Results of rows of A: y = alpha·Σ a·x + beta·y.
struct Rows<'a, E, R> {
    a: &'a [E],
    x: &'a [R],
    y: &'a mut [E],
    p: &'a Problem<R>,
}

impl<R: Real + Number, E: Wide<Acc = R>> Job for Rows<'_, E, R> {
    type Out = ();
    #[inline(always)]
    fn run<S: Style>(self) {
        let n = self.x.len();
        let mut buffer = Vec::new();
        for (i, y) in self.y.iter_mut().enumerate() {
            let row = E::wide(&self.a[i * n..][..n], &mut buffer);
            self.p.end(summed(row, self.x, |s: R, a, b| a.fma::<S>(b, s)), y);
        }
    }
}

struct Problem<A> {
    m: usize,
    n: usize,
    trans: bool,
    alpha: A,
    beta: A,
    reads_y: bool,
}

impl<A: Number> Problem<A> {
    fn of(call: &Call) -> Self {
        let (alpha, beta) = (A::of(call.params[3]), A::of(call.params[4]));
        Problem {
            m: call.size(0),
            n: call.size(1),
            trans: call.size(2) != 0,
            alpha,
            beta,
            reads_y: call.scalar(4) != 0.0,
        }
    }
    /// alpha·s + beta·y.
    #[inline(always)]
    fn end<E: Element<Acc = A>>(&self, s: A, y: &mut E) {
        let old = if self.reads_y { self.beta.mul(y.load()) } else { A::default() };
        *y = E::store(self.alpha.mul(s).add(old));
    }
}

/// y = alpha·op(A)·x + beta·y; y is not read when beta is 0. Params: m, n, transA (U64), alpha, beta. Dtypes: floats.
pub fn gemv(ctx: &CpuCtx<'_>, args: &mut NativeArgs<'_>, call: &Call) -> Result<()> {
    with_element!(floats call.dtype, T => typed::<T, <T as Element>::Acc>(ctx, args, call), else Err(call.no_dtype()))
}

fn typed<E: Wide<Acc = A>, A: Real + Number>(ctx: &CpuCtx<'_>, args: &mut NativeArgs<'_>, call: &Call) -> Result<()> {
    let p = Problem::<A>::of(call);
    let (m, n) = (p.m, p.n);
    let (a, x, y) = (args.input::<E>(0, m * n)?, args.input::<E>(1, n)?, args.output::<E>(0, m)?);
    let mut buffer = Vec::new();
    let x = E::wide(x, &mut buffer);
    let parts = ctx.parts_for_bytes(size_of_val(a));
    // Results in whole lines of memory.
    ctx.split(y, CpuCtx::chunk(m, parts, 32), |first, y| {
        if !p.trans {
            return dispatch(ctx.isa, Rows { a: &a[first * n..], x, y, p: &p });
        }
        let mut sums = vec![A::default(); y.len()];
        let mut buffers = [const { Vec::new() }; ROWS];
        let row = |j: usize| &a[j * m + first..][..y.len()];
        let (eights, rest) = x.as_chunks::<ROWS>();
        for (j, x) in eights.iter().enumerate() {
            let mut rows = [&[][..]; ROWS];
            for (i, (wide, buffer)) in rows.iter_mut().zip(&mut buffers).enumerate() {
                *wide = E::wide(row(j * ROWS + i), buffer);
            }
            add_rows(ctx.isa, rows, *x, &mut sums);
        }
        for (i, x) in rest.iter().enumerate() {
            let row = E::wide(row(eights.len() * ROWS + i), &mut buffers[0]);
            add_row(ctx.isa, row, *x, &mut sums);
        }
        for (s, y) in sums.into_iter().zip(y) {
            p.end(s, y);
        }
    });
    Ok(())
}

/// The textbook's two loops on one thread.
pub fn gemv_naive(_: &CpuCtx<'_>, args: &mut NativeArgs<'_>, call: &Call) -> Result<()> {
    with_element!(floats call.dtype, T => naive::<T>(args, call), else Err(call.no_dtype()))
}

fn naive<E: Element>(args: &mut NativeArgs<'_>, call: &Call) -> Result<()> {
    let p = Problem::<E::Acc>::of(call);
    let (m, n) = (p.m, p.n);
    let (a, x, y) = (args.input::<E>(0, m * n)?, args.input::<E>(1, n)?, args.output::<E>(0, m)?);
    for (i, y) in y.iter_mut().enumerate() {
        let mut s = E::Acc::default();
        for (j, x) in x.iter().enumerate() {
            let at = if p.trans { j * m + i } else { i * n + j };
            s = s.add(a[at].load().mul(x.load()));
        }
        p.end(s, y);
    }
    Ok(())
}
