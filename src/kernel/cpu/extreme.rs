//! Largest and smallest elements and their places. Bits become unsigned keys of the same order ([`Order`]), so the loops
//! are compiled for four widths, not for twelve dtypes, and NaN and zeros need no care.

use crate::base::{DType, Result};
use crate::kernel::plan_reduce::{Order, Pass, passes};

use super::lanes::{LANES, covered};
use super::reduce::{blocks, counts, only_pass, walk};
use super::simd::{Isa, Job, Style, dispatch};
use super::{Call, CpuCtx, NativeArgs};

/// Unsigned integers as keys.
trait Word: bytemuck::Pod + Ord + Send + Sync + Default {
    /// The low bits.
    fn of(v: u64) -> Self;
    fn xor(self, b: Self) -> Self;
    fn and(self, b: Self) -> Self;
    /// Bits of the largest or smallest of floats of this width, if there are such, and neither NaN among them nor a zero the
    /// result, which have rules of their own.
    fn float(x: &[Self], minimum: bool, isa: Isa) -> Option<Self>;
}

/// Largest or smallest of floats as their bits; `None` as in [`Word::float`].
struct Float<'a, W, const MINIMUM: bool>(&'a [W]);

/// Signed integers have the order of the floats with the same bits but for NaN, once the negative ones are turned around; and
/// of whole numbers the compiler makes vectors whatever the order in which they are compared.
macro_rules! floats {
    ($($w:ident $signed:ident $infinity:expr;)*) => {$(
        impl<const MINIMUM: bool> Job for Float<'_, $w, MINIMUM> {
            type Out = Option<$w>;
            #[inline(always)]
            fn run<S: Style>(self) -> Option<$w> {
                let turned = |v: $signed| v ^ (v >> ($w::BITS - 1) & $signed::MAX);
                let mut best = turned(*self.0.first()? as $signed);
                let mut magnitude = 0;
                covered(self.0, |v| {
                    let v = v as $signed;
                    best = if MINIMUM { best.min(turned(v)) } else { best.max(turned(v)) };
                    magnitude = magnitude.max(v & $signed::MAX);
                });
                let best = turned(best);
                (magnitude <= $infinity && best & $signed::MAX != 0).then_some(best as $w)
            }
        }
    )*};
}
floats! {
    u32 i32 f32::INFINITY.to_bits() as i32;
    u64 i64 f64::INFINITY.to_bits() as i64;
}

macro_rules! words {
    (@float floats $x:ident $minimum:ident $isa:ident) => {
        if $minimum { dispatch($isa, Float::<_, true>($x)) } else { dispatch($isa, Float::<_, false>($x)) }
    };
    (@float none $x:ident $minimum:ident $isa:ident) => {{
        let _ = ($x, $minimum, $isa);
        None
    }};
    ($($t:ident $float:ident)*) => {$(
        impl Word for $t {
            #[inline(always)]
            fn of(v: u64) -> $t {
                v as $t
            }
            #[inline(always)]
            fn xor(self, b: $t) -> $t {
                self ^ b
            }
            #[inline(always)]
            fn and(self, b: $t) -> $t {
                self & b
            }
            fn float(x: &[$t], minimum: bool, isa: Isa) -> Option<$t> {
                words!(@float $float x minimum isa)
            }
        }
    )*};
}
words!(u8 none u16 none u32 floats u64 floats);

/// An order in words of one width. Keys that are keys already have the order `None`.
#[derive(Clone, Copy)]
struct Keys<W> {
    all: W,
    sign: W,
    lift: W,
    negative: W,
    flip: W,
    magnitude: W,
    infinity: W,
    one_zero: bool,
    /// Of f32 and f64: whether the smallest is asked for.
    float: Option<bool>,
}

impl<W: Word> Keys<W> {
    /// Largest key of a row.
    fn top(keys: &Option<Self>, isa: Isa, x: &[W]) -> W {
        let float = keys.and_then(|k| Some(k.key(W::float(x, k.float?, isa)?)));
        float.unwrap_or_else(|| dispatch(isa, Top { x, keys: *keys }))
    }

    fn of(o: Order, float: Option<bool>) -> Self {
        Keys {
            float,
            all: W::of(o.all),
            sign: W::of(o.sign),
            lift: W::of(o.lift),
            negative: W::of(o.mask | o.lift),
            flip: W::of(o.flip),
            magnitude: W::of(o.magnitude),
            infinity: W::of(o.infinity),
            one_zero: o.one_zero,
        }
    }

    #[inline(always)]
    fn key(&self, b: W) -> W {
        let zero = W::default();
        let size = b.and(self.magnitude);
        let b = if self.one_zero && size == zero { zero } else { b };
        let flipped = if b.and(self.sign) == zero { self.lift } else { self.negative };
        if size > self.infinity { self.all } else { b.xor(flipped).xor(self.flip) }
    }

    fn bits(&self, k: W) -> W {
        let u = k.xor(self.flip);
        u.xor(if u.and(self.sign) == W::default() { self.negative } else { self.lift })
    }
}

/// Largest key of a row.
struct Top<'a, W> {
    x: &'a [W],
    keys: Option<Keys<W>>,
}

impl<W: Word> Job for Top<'_, W> {
    type Out = W;
    #[inline(always)]
    fn run<S: Style>(self) -> W {
        let zero = W::default();
        match &self.keys {
            Some(keys) => self.x.iter().fold(zero, |top, b| top.max(keys.key(*b))),
            None => self.x.iter().fold(zero, |top, k| top.max(*k)),
        }
    }
}

/// Raises keys of columns by rows of x, `stride` apart; where a key rises its place becomes the row's number.
struct Columns<'a, W> {
    x: &'a [W],
    stride: usize,
    keys: Option<Keys<W>>,
    best: &'a mut [W],
    place: Option<&'a mut [u32]>,
}

impl<W: Word> Job for Columns<'_, W> {
    type Out = ();
    #[inline(always)]
    fn run<S: Style>(self) {
        let width = self.best.len();
        let key = |b: W| self.keys.as_ref().map_or(b, |keys| keys.key(b));
        match self.place {
            None => {
                for row in self.x.chunks(self.stride) {
                    for (t, b) in self.best.iter_mut().zip(&row[..width.min(row.len())]) {
                        *t = (*t).max(key(*b));
                    }
                }
            }
            Some(place) => {
                for (i, row) in (0u32..).zip(self.x.chunks(self.stride)) {
                    for ((t, p), b) in self.best.iter_mut().zip(place.iter_mut()).zip(&row[..width.min(row.len())]) {
                        let k = key(*b);
                        let rises = k > *t || i == 0;
                        *p = if rises { i } else { *p };
                        *t = if rises { k } else { *t };
                    }
                }
            }
        }
    }
}

/// Rows shorter than this are looked at once.
const SHORT: usize = 16;

/// What is asked for.
#[derive(Clone, Copy)]
struct Ask {
    minimum: bool,
    place: bool,
    naive: bool,
}

macro_rules! entries {
    ($($(#[$doc:meta])* $name:ident $minimum:literal $place:literal $naive:literal;)*) => {$(
        $(#[$doc])*
        pub fn $name(ctx: &CpuCtx<'_>, args: &mut NativeArgs<'_>, call: &Call) -> Result<()> {
            by_width(ctx, args, call, Ask { minimum: $minimum, place: $place, naive: $naive })
        }
    )*};
}
entries! {
    /// Largest element. Params: blocks. All dtypes.
    max false false false;
    /// Smallest element.
    min true false false;
    /// Place of the first largest element.
    argmax false true false;
    /// Place of the first smallest element.
    argmin true true false;
    /// One comparison after the other, one thread.
    max_naive false false true;
    /// One comparison after the other, one thread.
    min_naive true false true;
    /// One comparison after the other, one thread.
    argmax_naive false true true;
    /// One comparison after the other, one thread.
    argmin_naive true true true;
}

fn by_width(ctx: &CpuCtx<'_>, args: &mut NativeArgs<'_>, call: &Call, ask: Ask) -> Result<()> {
    match call.dtype.size() {
        1 => run::<u8>(ctx, args, call, ask),
        2 => run::<u16>(ctx, args, call, ask),
        4 => run::<u32>(ctx, args, call, ask),
        _ => run::<u64>(ctx, args, call, ask),
    }
}

fn run<W: Word>(ctx: &CpuCtx<'_>, args: &mut NativeArgs<'_>, call: &Call, ask: Ask) -> Result<()> {
    let float = matches!(call.dtype, DType::F32 | DType::F64).then_some(ask.minimum);
    let keys = Keys::<W>::of(Order::of(call.dtype, ask.minimum, ask.place), float);
    if !ask.naive
        && let Some(p) = only_pass(call)
    {
        return in_one(ctx, args, p, keys, ask);
    }
    let blocks = blocks(call);
    let (count, results) = counts(&blocks);
    let x = args.input::<W>(0, count * results)?;
    let mut best = vec![W::default(); results];
    let mut place = vec![0u32; if ask.place { results } else { 0 }];
    if ask.naive {
        let mut seen = vec![0usize; results];
        walk(&blocks, |r, at| {
            let k = keys.key(x[at]);
            if seen[r] == 0 || k > best[r] {
                best[r] = k;
                if ask.place {
                    place[r] = seen[r] as u32;
                }
            }
            seen[r] += 1;
        });
    } else {
        let list = passes(&blocks);
        for (i, p) in list.iter().enumerate() {
            let (mut next, mut found) = (vec![W::default(); p.results() as usize], Vec::new());
            let (source, order) = if i == 0 { (x, Some(keys)) } else { (&best[..], None) };
            if ask.place {
                found = vec![0u32; next.len()];
                places(ctx, source, order, *p, &mut next, &mut found);
                if i > 0 {
                    chain(*p, &place, &mut found);
                }
            } else {
                pass(ctx, source, order, *p, &mut next);
            }
            (best, place) = (next, found);
        }
    }
    if ask.place {
        args.output::<u32>(0, results)?.copy_from_slice(&place);
    } else {
        for (y, k) in args.output::<W>(0, results)?.iter_mut().zip(best) {
            *y = keys.bits(k);
        }
    }
    Ok(())
}

/// A call of one pass writes its results where they belong.
fn in_one<W: Word>(ctx: &CpuCtx<'_>, args: &mut NativeArgs<'_>, p: Pass, keys: Keys<W>, ask: Ask) -> Result<()> {
    let results = p.results() as usize;
    let x = args.input::<W>(0, p.n as usize * results)?;
    if !ask.place {
        let y = args.output::<W>(0, results)?;
        // Columns raise what is there.
        y.fill(W::default());
        pass(ctx, x, Some(keys), p, y);
        for y in y {
            *y = keys.bits(*y);
        }
        return Ok(());
    }
    let (mut one, mut many) = ([W::default()], Vec::new());
    let best = match results {
        1 => &mut one[..],
        _ => {
            many.resize(results, W::default());
            &mut many
        }
    };
    places(ctx, x, Some(keys), p, best, args.output::<u32>(0, results)?);
    Ok(())
}

/// Largest keys of one pass.
fn pass<W: Word>(ctx: &CpuCtx<'_>, x: &[W], keys: Option<Keys<W>>, p: Pass, y: &mut [W]) {
    let (outer, n, inner) = (p.outer as usize, p.n as usize, p.inner as usize);
    let parts = ctx.parts_for_bytes(size_of_val(x));
    if inner == 1 && outer == 1 && parts == 1 {
        y[0] = Keys::top(&keys, ctx.isa, &x[..n]);
    } else if inner == 1 && outer == 1 {
        let piece = CpuCtx::chunk(n, parts, LANES).max(1);
        let mut partial = vec![W::default(); n.div_ceil(piece)];
        ctx.split(&mut partial, 1, |i, out| {
            out[0] = Keys::top(&keys, ctx.isa, &x[i * piece..n.min((i + 1) * piece)]);
        });
        y[0] = partial.into_iter().max().unwrap_or_default();
    } else if inner == 1 {
        ctx.split(y, CpuCtx::chunk(outer, parts, 1), |first, y| {
            for (i, y) in y.iter_mut().enumerate() {
                *y = Keys::top(&keys, ctx.isa, &x[(first + i) * n..(first + i + 1) * n]);
            }
        });
    } else {
        ctx.split(y, CpuCtx::chunk(outer * inner, parts, LANES), |first, y| {
            runs(first, y.len(), inner, |o, c, at, len| {
                let rows = &x[o * n * inner + c..(o + 1) * n * inner];
                let best = &mut y[at..at + len];
                dispatch(ctx.isa, Columns { x: rows, stride: inner, keys, best, place: None });
            });
        });
    }
}

/// Calls `f(outer, column, at, len)` for the runs within one outer index that make `first .. first + total`.
fn runs(first: usize, total: usize, inner: usize, mut f: impl FnMut(usize, usize, usize, usize)) {
    let mut at = 0;
    while at < total {
        let (o, c) = ((first + at) / inner, (first + at) % inner);
        let len = (inner - c).min(total - at);
        f(o, c, at, len);
        at += len;
    }
}

/// Largest keys of one pass and their first indices along its axis.
fn places<W: Word>(ctx: &CpuCtx<'_>, x: &[W], keys: Option<Keys<W>>, p: Pass, y: &mut [W], found: &mut [u32]) {
    let (outer, n, inner) = (p.outer as usize, p.n as usize, p.inner as usize);
    if inner == 1 {
        if (1..SHORT).contains(&n) && outer < SHORT {
            // One comparison after the other is faster than two looks.
            for ((row, y), found) in x.chunks_exact(n.max(1)).zip(y.iter_mut()).zip(found.iter_mut()) {
                for (k, i) in row.iter().map(|b| keys.map_or(*b, |k| k.key(*b))).zip(0u32..) {
                    if i == 0 || k > *y {
                        (*y, *found) = (k, i);
                    }
                }
            }
            return;
        }
        // The largest key by vector code, then the first element that has it.
        pass(ctx, x, keys, p, y);
        let parts = ctx.parts_for_bytes(size_of_val(x));
        let y = &*y;
        ctx.split(found, CpuCtx::chunk(outer, parts, 1), |first, found| {
            for (i, place) in found.iter_mut().enumerate() {
                let row = first + i;
                let has = |b: &W| keys.map_or(*b, |k| k.key(*b)) == y[row];
                *place = x[row * n..(row + 1) * n].iter().position(has).unwrap_or(0) as u32;
            }
        });
        return;
    }
    // Keys and places are cut alike: pairs, so that one split serves both.
    let mut pairs: Vec<(&mut W, &mut u32)> = y.iter_mut().zip(found).collect();
    let parts = ctx.parts_for_bytes(size_of_val(x));
    ctx.split(&mut pairs, CpuCtx::chunk(outer * inner, parts, LANES), |first, pairs| {
        let (mut best, mut place) = ([W::default(); 256], [0u32; 256]);
        runs(first, pairs.len(), inner, |o, c, at, len| {
            for from in (0..len).step_by(256) {
                let width = 256.min(len - from);
                let rows = &x[o * n * inner + c + from..(o + 1) * n * inner];
                let (best, place) = (&mut best[..width], &mut place[..width]);
                best.fill(W::default());
                dispatch(ctx.isa, Columns { x: rows, stride: inner, keys, best: &mut *best, place: Some(&mut *place) });
                for ((y, found), (k, i)) in pairs[at + from..].iter_mut().zip(best.iter().zip(place.iter())) {
                    **y = *k;
                    **found = *i;
                }
            }
        });
    });
}

/// Places of an earlier pass under the indices that this pass found.
fn chain(p: Pass, before: &[u32], found: &mut [u32]) {
    let (n, inner) = (p.n as usize, p.inner as usize);
    for (at, place) in found.iter_mut().enumerate() {
        let index = *place as usize;
        let element = (at / inner * n + index) * inner + at % inner;
        *place = (index * p.behind as usize) as u32 + before[element];
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::DType;
    use crate::kernel::Param;
    use crate::kernel::cpu::Isa;

    fn place(dtype: DType, blocks: &[u64], x: &[u8], f: crate::kernel::NativeFn) -> Vec<u32> {
        let ctx = CpuCtx { threads: 1, isa: Isa::detect(), team: None, blas: None };
        let params = blocks.iter().map(|v| Param::U64(*v)).collect();
        let mut y = vec![0u32; 16];
        let mut args = NativeArgs { ins: vec![x], outs: vec![bytemuck::cast_slice_mut(&mut y)] };
        f(&ctx, &mut args, &Call { dtype, params }).unwrap();
        y
    }

    #[test]
    fn the_first_of_equals_and_the_first_nan_win() {
        let all: [(crate::kernel::NativeFn, u32); 4] = [(argmax, 1), (argmax_naive, 1), (argmin, 0), (argmin_naive, 0)];
        for (f, want) in all {
            let tie = [1.0f32, 3.0, 3.0, 1.0];
            assert_eq!(place(DType::F32, &[4, 1], bytemuck::cast_slice(&tie), f)[0], want);
            let nan = [1.0f32, f32::INFINITY, -f32::NAN, f32::NAN];
            assert_eq!(place(DType::F32, &[4, 1], bytemuck::cast_slice(&nan), f)[0], 2);
            let zeros = [-0.0f32, 0.0, -0.0];
            assert_eq!(place(DType::F32, &[3, 1], bytemuck::cast_slice(&zeros), f)[0], 0);
        }
    }

    #[test]
    fn places_of_split_axes_count_row_by_row() {
        // [2, 3, 2] with axes 0 and 2 reduced: of column 1 the elements 2 3 | 8 9, the largest at [1, 0].
        let mut x = [0i16; 12];
        (x[2], x[8], x[9]) = (5, 7, 6);
        for f in [argmax as crate::kernel::NativeFn, argmax_naive] {
            assert_eq!(place(DType::I16, &[2, 1, 3, 0, 2, 1], bytemuck::cast_slice(&x), f)[..3], [0, 2, 0]);
        }
    }
}
