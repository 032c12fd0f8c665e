//! Templates for functions of two numbers with broadcasting, a scalar operand, or in place; an op supplies its expressions.
//!
//! Only the innermost loop is compiled for each op and dtype. It takes three runs of elements of one length: an operand
//! that is repeated is written out into a block first, and so are the operands of short rows.

use half::slice::HalfFloatSliceExt;

use crate::base::{DType, Result};

use super::elementwise::{LOOK, aligned};
use super::lanes::both;
use super::math::Real;
use super::number::{Element, Number, with_element};
use super::simd::{Isa, Job, Style, Textbook, dispatch, past};
use super::whole::Whole;
use super::{Call, CpuCtx, NativeArgs};

/// Which integers a function has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Integers {
    /// None: floats only.
    None,
    /// All; signed and unsigned operands of the same bits give the same bits, so one body serves both.
    SameBits,
    /// All.
    Each,
}

/// A function of two numbers.
pub trait Binary: Copy + Send + Sync + 'static {
    /// Integers that it has.
    const INTEGERS: Integers;
    /// True if there are operands that [`Binary::real`] is not for.
    const LEAVES_OUT: bool = false;
    /// What computing an element takes beyond reading and writing it: so many bytes could be moved meanwhile.
    const WORK: usize = 0;
    /// On floats.
    fn real<S: Style, R: Real>(a: R, b: R) -> R;
    /// True for floats that [`Binary::real`] is not for, unless its style is [`Textbook`]'s, which then is used for them.
    #[inline(always)]
    fn leaves_out<R: Real>(_: R, _: R) -> bool {
        false
    }
    /// True if no vectors can be made of [`Binary::real`].
    #[inline(always)]
    fn one_by_one<S: Style, R: Real>() -> bool {
        false
    }
    /// On integers, with wrapping arithmetic. Never called if there are none.
    fn whole<T: Whole>(a: T, b: T) -> T;
}

/// y[i] = f(a[i], b[i]) for runs of one length in elements.
type Inner = fn(Isa, &[u8], &[u8], &mut [u8]);

/// Bytes of a block, and of one for short runs: a block is filled with zeros first.
const BLOCK: usize = 8192;
const SHORT_BLOCK: usize = 512;
const WORDS: usize = BLOCK / 8;
const SHORT_WORDS: usize = SHORT_BLOCK / 8;
/// Rows shorter than this are gathered into blocks: a call for each would cost more than its elements.
const SHORT: usize = 64;

struct Zip<'a, B, R> {
    a: &'a [R],
    b: &'a [R],
    y: &'a mut [R],
    f: std::marker::PhantomData<B>,
}

impl<B: Binary, R: Real> Job for Zip<'_, B, R> {
    type Out = ();
    #[inline(always)]
    fn run<S: Style>(self) {
        if !B::LEAVES_OUT {
            both!(self.a, self.b, self.y, |a, b| B::real::<S, R>(a, b));
            return;
        }
        if B::one_by_one::<S, R>() {
            for ((y, a), b) in self.y.iter_mut().zip(self.a).zip(self.b) {
                let leave = B::leaves_out(*a, *b);
                *y = if leave { B::real::<Textbook, R>(*a, *b) } else { B::real::<S, R>(*a, *b) };
            }
            return;
        }
        for ((y, a), b) in self.y.chunks_mut(LOOK).zip(self.a.chunks(LOOK)).zip(self.b.chunks(LOOK)) {
            let mut out = 0u32;
            both!(a, b, &mut *y, |a, b| {
                out |= u32::from(B::leaves_out(a, b));
                B::real::<S, R>(a, b)
            });
            if out != 0 {
                for ((y, a), b) in y.iter_mut().zip(a).zip(b).filter(|((_, a), b)| B::leaves_out(**a, **b)) {
                    *y = B::real::<Textbook, R>(*a, *b);
                }
            }
        }
    }
}

fn real<B: Binary, R: Real>(isa: Isa, a: &[u8], b: &[u8], y: &mut [u8]) {
    let (a, b) = (bytemuck::cast_slice(a), bytemuck::cast_slice(b));
    dispatch(isa, Zip { a, b, y: bytemuck::cast_slice_mut::<u8, R>(y), f: std::marker::PhantomData::<B> });
}

fn whole<B: Binary, T: Whole>(_: Isa, a: &[u8], b: &[u8], y: &mut [u8]) {
    let (a, b): (&[T], &[T]) = (bytemuck::cast_slice(a), bytemuck::cast_slice(b));
    for ((y, a), b) in bytemuck::cast_slice_mut::<u8, T>(y).iter_mut().zip(a).zip(b) {
        *y = B::whole(*a, *b);
    }
}

/// f16 and bf16 are computed in f32, block by block.
fn halves<H>(isa: Isa, f: Inner, a: &[u8], b: &[u8], y: &mut [u8])
where
    H: bytemuck::Pod,
    [H]: HalfFloatSliceExt,
{
    const RUN: usize = 1024;
    let mut wide = [[0f32; RUN]; 3];
    let (a, b, y): (&[H], &[H], &mut [H]) =
        (bytemuck::cast_slice(a), bytemuck::cast_slice(b), bytemuck::cast_slice_mut(y));
    for ((a, b), y) in a.chunks(RUN).zip(b.chunks(RUN)).zip(y.chunks_mut(RUN)) {
        let [wa, wb, wy] = &mut wide;
        let (wa, wb, wy) = (&mut wa[..y.len()], &mut wb[..y.len()], &mut wy[..y.len()]);
        a.convert_to_f32_slice(wa);
        b.convert_to_f32_slice(wb);
        f(isa, bytemuck::cast_slice(wa), bytemuck::cast_slice(wb), bytemuck::cast_slice_mut(wy));
        y.convert_from_f32_slice(wy);
    }
}

fn f16s<B: Binary>(isa: Isa, a: &[u8], b: &[u8], y: &mut [u8]) {
    halves::<half::f16>(isa, real::<B, f32>, a, b, y);
}

fn bf16s<B: Binary>(isa: Isa, a: &[u8], b: &[u8], y: &mut [u8]) {
    halves::<half::bf16>(isa, real::<B, f32>, a, b, y);
}

/// The innermost loop of a dtype.
fn inner<B: Binary>(call: &Call) -> Result<Inner> {
    let each = B::INTEGERS == Integers::Each;
    Ok(match call.dtype {
        DType::F32 => real::<B, f32>,
        DType::F64 => real::<B, f64>,
        DType::F16 => f16s::<B>,
        DType::BF16 => bf16s::<B>,
        _ if B::INTEGERS == Integers::None => return Err(call.no_dtype()),
        DType::I8 if each => whole::<B, i8>,
        DType::I16 if each => whole::<B, i16>,
        DType::I32 if each => whole::<B, i32>,
        DType::I64 if each => whole::<B, i64>,
        DType::U8 | DType::I8 => whole::<B, u8>,
        DType::U16 | DType::I16 => whole::<B, u16>,
        DType::U32 | DType::I32 => whole::<B, u32>,
        DType::U64 | DType::I64 => whole::<B, u64>,
    })
}

/// One thread and no instruction set above the baseline: what the textbook's loop compiles to.
const TEXTBOOK: CpuCtx<'static> = CpuCtx { threads: 1, team: None, blas: None, isa: Isa::BASELINE };

/// y = f(a, b) over a four-dimensional index space with strides (0: broadcast).
/// Params: n, d0..d3, a's strides 0..3, b's strides 0..3.
pub fn binary<B: Binary>(ctx: &CpuCtx<'_>, args: &mut NativeArgs<'_>, call: &Call) -> Result<()> {
    broadcast(ctx, args, call, inner::<B>(call)?, B::WORK)
}

/// The textbook form: one thread.
pub fn binary_naive<B: Binary>(_: &CpuCtx<'_>, args: &mut NativeArgs<'_>, call: &Call) -> Result<()> {
    broadcast(&TEXTBOOK, args, call, inner::<B>(call)?, B::WORK)
}

fn broadcast(ctx: &CpuCtx<'_>, args: &mut NativeArgs<'_>, call: &Call, f: Inner, work: usize) -> Result<()> {
    let (n, size) = (call.size(0), call.dtype.size() as usize);
    let four = |at: usize| [call.size(at), call.size(at + 1), call.size(at + 2), call.size(at + 3)];
    let (d, sa, sb) = (four(1), four(5), four(9));
    let extent = |s: [usize; 4]| if n == 0 { 0 } else { (0..4).map(|i| (d[i] - 1) * s[i]).sum::<usize>() + 1 };
    let operand = |i: usize, strides| -> Result<Operand<'_>> {
        Ok(Operand { bytes: args.input::<u8>(i, extent(strides) * size)?, strides })
    };
    let (a, b) = (operand(0, sa)?, operand(1, sb)?);
    let y = args.output::<u8>(0, n * size)?;
    Space { n, d, size, work, f }.run(ctx, a, b, y)
}

/// y = f(x, s). Params: n, s.
pub fn scalar<B: Binary>(ctx: &CpuCtx<'_>, args: &mut NativeArgs<'_>, call: &Call) -> Result<()> {
    with_scalar(ctx, args, call, inner::<B>(call)?, (false, B::WORK))
}

/// y = f(x, s), the textbook form.
pub fn scalar_naive<B: Binary>(_: &CpuCtx<'_>, args: &mut NativeArgs<'_>, call: &Call) -> Result<()> {
    with_scalar(&TEXTBOOK, args, call, inner::<B>(call)?, (false, B::WORK))
}

/// y = f(s, x). Params: n, s.
pub fn scalar_first<B: Binary>(ctx: &CpuCtx<'_>, args: &mut NativeArgs<'_>, call: &Call) -> Result<()> {
    with_scalar(ctx, args, call, inner::<B>(call)?, (true, B::WORK))
}

/// y = f(s, x), the textbook form.
pub fn scalar_first_naive<B: Binary>(_: &CpuCtx<'_>, args: &mut NativeArgs<'_>, call: &Call) -> Result<()> {
    with_scalar(&TEXTBOOK, args, call, inner::<B>(call)?, (true, B::WORK))
}

fn with_scalar(
    ctx: &CpuCtx<'_>,
    args: &mut NativeArgs<'_>,
    call: &Call,
    f: Inner,
    (first, work): (bool, usize),
) -> Result<()> {
    let (n, size) = (call.size(0), call.dtype.size() as usize);
    let Some(s) = call.params.get(1) else { return Err(call.no_dtype()) };
    let mut element = [0u64];
    let bytes: &mut [u8] = bytemuck::cast_slice_mut(&mut element);
    with_element!(call.dtype, T => {
        let value = <T as Element>::store(<<T as Element>::Acc as Number>::of(*s));
        bytes[..size].copy_from_slice(bytemuck::bytes_of(&value));
    });
    let x = Operand { bytes: args.input::<u8>(0, n * size)?, strides: [0, 0, 0, 1] };
    let s = Operand { bytes: &*bytes, strides: [0; 4] };
    let y = args.output::<u8>(0, n * size)?;
    let (a, b) = if first { (s, x) } else { (x, s) };
    Space { n, d: [1, 1, 1, n], size, work, f }.run(ctx, a, b, y)
}

/// a = f(a, b). Params: n.
pub fn accumulate<B: Binary>(ctx: &CpuCtx<'_>, args: &mut NativeArgs<'_>, call: &Call) -> Result<()> {
    in_place(ctx, args, call, inner::<B>(call)?)
}

/// The textbook form: one thread.
pub fn accumulate_naive<B: Binary>(_: &CpuCtx<'_>, args: &mut NativeArgs<'_>, call: &Call) -> Result<()> {
    in_place(&TEXTBOOK, args, call, inner::<B>(call)?)
}

/// The old contents pass through a block, since the innermost loop wants its result apart from its operands.
fn in_place(ctx: &CpuCtx<'_>, args: &mut NativeArgs<'_>, call: &Call, f: Inner) -> Result<()> {
    let (n, size) = (call.size(0), call.dtype.size() as usize);
    let (b, a) = (args.input::<u8>(0, n * size)?, args.output::<u8>(0, n * size)?);
    aligned(a, size)?;
    aligned(b, size)?;
    let chunk = CpuCtx::chunk(n, ctx.parts_for_bytes(3 * n * size), 1024);
    let isa = ctx.isa;
    ctx.split(a, chunk * size, |first, a| {
        if a.len() <= SHORT_BLOCK {
            through(isa, f, Block::<SHORT_WORDS>::new().bytes(), &b[first..first + a.len()], a);
        } else {
            through(isa, f, Block::<WORDS>::new().bytes(), &b[first..first + a.len()], a);
        }
    });
    Ok(())
}

/// a = f(a, b) by way of a block.
fn through(isa: Isa, f: Inner, block: &mut [u8], b: &[u8], a: &mut [u8]) {
    for (a, b) in a.chunks_mut(block.len()).zip(b.chunks(block.len())) {
        let old = &mut block[..a.len()];
        old.copy_from_slice(a);
        f(isa, old, b, a);
    }
}

/// Storage on the stack, aligned for every dtype.
struct Block<const WORDS: usize>([u64; WORDS]);

impl<const WORDS: usize> Block<WORDS> {
    fn new() -> Self {
        Block([0; WORDS])
    }
    fn bytes(&mut self) -> &mut [u8] {
        bytemuck::cast_slice_mut(&mut self.0)
    }
}

#[derive(Clone, Copy)]
struct Operand<'a> {
    bytes: &'a [u8],
    strides: [usize; 4],
}

/// The index space of the result, its elements' size and what is computed.
#[derive(Clone, Copy)]
struct Space {
    n: usize,
    d: [usize; 4],
    size: usize,
    work: usize,
    f: Inner,
}

impl Space {
    fn run(self, ctx: &CpuCtx<'_>, a: Operand<'_>, b: Operand<'_>, y: &mut [u8]) -> Result<()> {
        for bytes in [a.bytes, b.bytes, &*y] {
            aligned(bytes, self.size)?;
        }
        if self.n == 0 {
            return Ok(());
        }
        let row = self.d[3];
        let parts = ctx.parts_for_bytes(self.n * (3 * self.size + self.work));
        // Pieces are whole rows, or parts of the only row.
        let chunk = CpuCtx::chunk(self.n, parts, if self.n == row { 1024 } else { row });
        let isa = ctx.isa;
        if self.n == row && a.strides[3] == 1 && b.strides[3] == 1 {
            let (f, a, b, far) = (self.f, a.bytes, b.bytes, past::is_far(isa, y.len()));
            ctx.split(y, chunk * self.size, |at, y| {
                let f = |at: usize, y: &mut [u8]| f(isa, &a[at..at + y.len()], &b[at..at + y.len()], y);
                if far { past::fill(isa, y, |from, y| f(at + from, y)) } else { f(at, y) }
            });
            return Ok(());
        }
        ctx.split(y, chunk * self.size, |at, y| {
            if row < SHORT && self.n > row {
                self.gathered(isa, at / self.size, a, b, y);
            } else {
                self.by_rows(isa, at / self.size, a, b, y);
            }
        });
        Ok(())
    }

    /// Coordinates of a result.
    fn place(&self, at: usize) -> [usize; 4] {
        let d = self.d;
        let (line, i3) = (at / d[3], at % d[3]);
        [line / d[2] / d[1], line / d[2] % d[1], line % d[2], i3]
    }

    /// Runs of the result that lie in one row. Repeated elements are written into a block no longer than what they are for.
    fn by_rows(&self, isa: Isa, first: usize, a: Operand<'_>, b: Operand<'_>, y: &mut [u8]) {
        if a.strides[3] != 0 && b.strides[3] != 0 {
            self.by_rows_with(isa, first, (a, b), y, &mut [], &mut []);
        } else if y.len().min(self.d[3] * self.size) <= SHORT_BLOCK {
            let (mut a_block, mut b_block) = (Block::<SHORT_WORDS>::new(), Block::<SHORT_WORDS>::new());
            self.by_rows_with(isa, first, (a, b), y, a_block.bytes(), b_block.bytes());
        } else {
            let (mut a_block, mut b_block) = (Block::<WORDS>::new(), Block::<WORDS>::new());
            self.by_rows_with(isa, first, (a, b), y, a_block.bytes(), b_block.bytes());
        }
    }

    fn by_rows_with(
        &self,
        isa: Isa,
        first: usize,
        (a, b): (Operand<'_>, Operand<'_>),
        y: &mut [u8],
        block_a: &mut [u8],
        block_b: &mut [u8],
    ) {
        let size = self.size;
        let repeats = a.strides[3] == 0 || b.strides[3] == 0;
        let most = if repeats { block_a.len() / size } else { usize::MAX };
        let (mut block_a, mut block_b) = ((block_a, None), (block_b, None));
        let (mut at, mut rest) = (first, y);
        while !rest.is_empty() {
            let place = self.place(at);
            let len = (self.d[3] - place[3]).min(rest.len() / size).min(most);
            let (now, later) = rest.split_at_mut(len * size);
            let lengths = (len, self.d[3]);
            (self.f)(isa, run(a, place, size, lengths, &mut block_a), run(b, place, size, lengths, &mut block_b), now);
            (at, rest) = (at + len, later);
        }
    }

    /// Blocks of the result whose operands are collected one by one.
    fn gathered(&self, isa: Isa, first: usize, a: Operand<'_>, b: Operand<'_>, y: &mut [u8]) {
        let size = self.size;
        let (mut block_a, mut block_b) = (Block::<WORDS>::new(), Block::<WORDS>::new());
        for (i, y) in y.chunks_mut(BLOCK / size * size).enumerate() {
            let at = first + i * (BLOCK / size);
            let collect = |o: Operand<'_>, to: &mut [u8]| match size {
                1 => self.collect::<u8>(at, o, to),
                2 => self.collect::<u16>(at, o, to),
                4 => self.collect::<u32>(at, o, to),
                _ => self.collect::<u64>(at, o, to),
            };
            let (to_a, to_b) = (&mut block_a.bytes()[..y.len()], &mut block_b.bytes()[..y.len()]);
            collect(a, to_a);
            collect(b, to_b);
            (self.f)(isa, to_a, to_b, y);
        }
    }

    fn collect<T: bytemuck::Pod>(&self, at: usize, o: Operand<'_>, to: &mut [u8]) {
        let (from, to): (&[T], &mut [T]) =
            (bytemuck::cast_slice(whole_elements::<T>(o.bytes)), bytemuck::cast_slice_mut(to));
        let mut place = self.place(at);
        let mut offset: usize = (0..4).map(|i| place[i] * o.strides[i]).sum();
        for t in to {
            *t = from[offset];
            // The next place, with a carry into the slower axes.
            for axis in (0..4).rev() {
                place[axis] += 1;
                offset += o.strides[axis];
                if place[axis] < self.d[axis] || axis == 0 {
                    break;
                }
                offset -= place[axis] * o.strides[axis];
                place[axis] = 0;
            }
        }
    }
}

/// The scalar's eight bytes hold one element of any size.
fn whole_elements<T>(bytes: &[u8]) -> &[u8] {
    &bytes[..bytes.len() / size_of::<T>() * size_of::<T>()]
}

fn repeat<T: bytemuck::Pod>(element: &[u8], to: &mut [u8]) {
    bytemuck::cast_slice_mut::<u8, T>(to).fill(bytemuck::pod_read_unaligned(element));
}

/// `len` elements of an operand from a place on, of at most `row`; a repeated one is written out once for all runs with the same element.
fn run<'a>(
    o: Operand<'a>,
    place: [usize; 4],
    size: usize,
    (len, row): (usize, usize),
    (block, holds): &'a mut (&mut [u8], Option<usize>),
) -> &'a [u8] {
    let from = (0..4).map(|i| place[i] * o.strides[i]).sum::<usize>() * size;
    if o.strides[3] != 0 {
        return &o.bytes[from..from + len * size];
    }
    let most = (row * size).min(block.len() / size * size);
    let bytes = &mut block[..most];
    if *holds != Some(from) {
        *holds = Some(from);
        let element = &o.bytes[from..from + size];
        match size {
            1 => bytes.fill(element[0]),
            2 => repeat::<u16>(element, bytes),
            4 => repeat::<u32>(element, bytes),
            _ => repeat::<u64>(element, bytes),
        }
    }
    &bytes[..len * size]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::Param;

    #[derive(Clone, Copy)]
    struct Sub;
    impl Binary for Sub {
        const INTEGERS: Integers = Integers::SameBits;
        fn real<S: Style, R: Real>(a: R, b: R) -> R {
            a - b
        }
        fn whole<T: Whole>(a: T, b: T) -> T {
            a.sub(b)
        }
    }

    fn computed(d: [u64; 4], sa: [u64; 4], sb: [u64; 4], a: &[i16], b: &[i16], isa: Isa) -> Vec<i16> {
        let n: u64 = d.iter().product();
        let mut params = vec![Param::U64(n)];
        params.extend([d, sa, sb].concat().into_iter().map(Param::U64));
        let mut y = vec![0i16; n as usize];
        let mut args = NativeArgs {
            ins: vec![bytemuck::cast_slice(a), bytemuck::cast_slice(b)],
            outs: vec![bytemuck::cast_slice_mut(&mut y)],
        };
        let ctx = CpuCtx { threads: 1, isa, team: None, blas: None };
        binary::<Sub>(&ctx, &mut args, &Call { dtype: DType::I16, params }).unwrap();
        y
    }

    /// Rows on both sides of the length from which they are no longer gathered, and longer than a block.
    #[test]
    fn short_and_long_rows_agree_with_plain_loops() {
        let a: Vec<i16> = (0..20_000).map(|i| i as i16).collect();
        let b: Vec<i16> = (0..20_000).map(|i| (i * 7) as i16).collect();
        for row in [1u64, 2, 63, 64, 65, 5000] {
            for (sa3, sb3) in [(1, 0), (0, 1), (1, 1)] {
                let d = [1, 3, 2, row];
                let (sa, sb) =
                    ([0, if sa3 == 1 { row } else { 1 }, 0, sa3], [0, 0, if sb3 == 1 { row } else { 1 }, sb3]);
                let y = computed(d, sa, sb, &a, &b, Isa::detect());
                let mut at = 0;
                for i1 in 0..3 {
                    for i2 in 0..2 {
                        for i3 in 0..row {
                            let want =
                                a[(i1 * sa[1] + i3 * sa3) as usize].wrapping_sub(b[(i2 * sb[2] + i3 * sb3) as usize]);
                            assert_eq!(y[at], want, "row {row}, strides {sa3} {sb3}, at {i1} {i2} {i3}");
                            at += 1;
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn a_misaligned_buffer_is_an_error() {
        let bytes = [0u64; 4];
        let raw: &[u8] = bytemuck::cast_slice(&bytes);
        let mut y = [0u8; 8];
        let mut args = NativeArgs { ins: vec![&raw[1..9]], outs: vec![&mut y] };
        let ctx = CpuCtx { threads: 1, isa: Isa::BASELINE, team: None, blas: None };
        let call = Call { dtype: DType::I32, params: vec![Param::U64(2), Param::I32(1)] };
        assert!(scalar::<Sub>(&ctx, &mut args, &call).is_err());
    }
}
