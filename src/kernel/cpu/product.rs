//! Matrix products of floats: cut among threads, then into blocks that fit the caches, then into tiles.
//!
//! The operands need not be matrices that exist: a [`Side`] lays out the part of itself that a block asks for, so that a
//! convolution's patches are made where they are used. Every element of C is summed over p in the same order, in blocks whose
//! size follows from k alone: its bits depend neither on the number of threads nor on how C is cut.

use std::cell::Cell;
use std::ops::Range;

use bytemuck::{Pod, Zeroable};

use super::CpuCtx;
use super::number::Number;
use super::simd::tile::{Block, LARGEST, Set, Strip, Tiled};

/// Numbers of products.
pub(super) trait Element: Tiled + Number {}
impl<T: Tiled + Number> Element for T {}

/// One operand of a product: lines (rows of A, columns of B), each with an element at every depth p < k.
pub(super) trait Side<T: Element>: Sync {
    /// Lays out elements of the lines `first..first + count` at depths `depths`: that of line `first` + i at the depth p of them at
    /// `out[p * width + i]`, zeros where i ≥ `count`. `out` has `width` elements for each depth.
    fn pack(&self, first: usize, count: usize, depths: Range<usize>, width: usize, out: &mut [T]);

    /// Lays panels of `width` lines out, one behind the other, each as [`Side::pack`] does it.
    fn pack_panels(&self, first: usize, count: usize, depths: Range<usize>, width: usize, out: &mut [T]) {
        for (i, out) in (0..count).step_by(width).zip(out.chunks_exact_mut(width * depths.len())) {
            self.pack(first + i, width.min(count - i), depths.clone(), width, out);
        }
    }

    /// Lays the same elements out, for rows of A, in the way that costs least: that of line `first` + i at depth p of `len` at
    /// `out[i * len + p]`, then true; or at `out[p * count + i]`.
    fn pack_rows(&self, first: usize, count: usize, depths: Range<usize>, out: &mut [T]) -> bool {
        let len = depths.len();
        self.pack(first, count, depths, count, &mut out[..count * len]);
        false
    }

    /// The elements from line `first` and depth `depth` on as they lie in memory, if they do.
    fn in_place(&self, _first: usize, _depth: usize) -> Option<Strip<'_, T>> {
        None
    }
}

/// A matrix that lies in memory: element (line, p) at `data[line * line_stride + p * depth_stride]`.
#[derive(Clone, Copy)]
pub(super) struct View<'a, T> {
    pub(super) data: &'a [T],
    pub(super) line_stride: usize,
    pub(super) depth_stride: usize,
}

/// Copies in pieces of a size that the compiler knows.
#[inline(always)]
pub(super) fn copy<T: Copy>(to: &mut [T], from: &[T]) {
    let ((to, to_rest), (from, from_rest)) = (to.as_chunks_mut::<16>(), from.as_chunks::<16>());
    for (to, from) in to.iter_mut().zip(from) {
        *to = *from;
    }
    let ((to, to_rest), (from, from_rest)) = (to_rest.as_chunks_mut::<4>(), from_rest.as_chunks::<4>());
    for (to, from) in to.iter_mut().zip(from) {
        *to = *from;
    }
    for (to, from) in to_rest.iter_mut().zip(from_rest) {
        *to = *from;
    }
}

/// Depths whose elements of all lines are read before those of the next: as many as a cache line has.
const RUN: usize = 16;

impl<T: Element> Side<T> for View<'_, T> {
    fn pack(&self, first: usize, count: usize, depths: Range<usize>, width: usize, out: &mut [T]) {
        if self.line_stride == 1 {
            for (p, out) in depths.zip(out.chunks_exact_mut(width)) {
                let (used, rest) = out.split_at_mut(count);
                copy(used, &self.data[first + p * self.depth_stride..][..count]);
                rest.fill(T::ZERO);
            }
            return;
        }
        if count < width {
            out.fill(T::ZERO);
        }
        for (run, out) in depths.clone().step_by(RUN).zip(out.chunks_mut(RUN * width)) {
            let len = RUN.min(depths.end - run);
            for i in 0..count {
                let from = &self.data[(first + i) * self.line_stride + run * self.depth_stride..];
                if self.depth_stride == 1 {
                    for (out, v) in out[i..].iter_mut().step_by(width).zip(&from[..len]) {
                        *out = *v;
                    }
                } else {
                    for (out, v) in
                        out[i..].iter_mut().step_by(width).zip(from.iter().step_by(self.depth_stride)).take(len)
                    {
                        *out = *v;
                    }
                }
            }
        }
    }

    fn pack_panels(&self, first: usize, count: usize, depths: Range<usize>, width: usize, out: &mut [T]) {
        let len = depths.len();
        if self.line_stride != 1 {
            for (i, out) in (0..count).step_by(width).zip(out.chunks_exact_mut(width * len)) {
                self.pack(first + i, width.min(count - i), depths.clone(), width, out);
            }
            return;
        }
        // All panels of one depth, then those of the next: memory is read in its order.
        let whole = count / width * width;
        for (at, p) in depths.clone().enumerate() {
            let row = &self.data[first + p * self.depth_stride..][..count];
            for (i, from) in row.chunks_exact(width).enumerate() {
                copy(&mut out[(i * len + at) * width..][..width], from);
            }
        }
        if whole < count {
            self.pack(first + whole, count - whole, depths, width, &mut out[whole * len..][..width * len]);
        }
    }

    fn pack_rows(&self, first: usize, count: usize, depths: Range<usize>, out: &mut [T]) -> bool {
        let len = depths.len();
        let together = self.depth_stride == 1;
        if together {
            for (i, out) in out.chunks_exact_mut(len).take(count).enumerate() {
                copy(out, &self.data[(first + i) * self.line_stride + depths.start..][..len]);
            }
        } else {
            self.pack(first, count, depths, count, &mut out[..count * len]);
        }
        together
    }

    fn in_place(&self, first: usize, depth: usize) -> Option<Strip<'_, T>> {
        let data = self.data.get(first * self.line_stride + depth * self.depth_stride..)?;
        Some(Strip { data, line: self.line_stride, depth: self.depth_stride })
    }
}

/// alpha and beta of alpha·A·B + beta·C; C is not read when beta is 0.
#[derive(Clone, Copy)]
pub(super) struct Scale<T> {
    pub(super) alpha: T,
    pub(super) beta: T,
}

impl<T: Element> Scale<T> {
    /// C = A·B.
    pub(super) const PLAIN: Scale<T> = Scale { alpha: T::ONE, beta: T::ZERO };
    /// C = A·B + C.
    pub(super) const ADDED: Scale<T> = Scale { alpha: T::ONE, beta: T::ONE };

    fn old(self, c: T) -> T {
        if self.beta == T::ZERO { T::ZERO } else { Number::mul(self.beta, c) }
    }
    /// An element of C from its sum and what it was.
    pub(super) fn of(self, sum: T, c: T) -> T {
        Number::add(Number::mul(self.alpha, sum), self.old(c))
    }
}

/// Bytes of a panel of B, two vectors wide, that stays in the first-level cache while rows of A pass by.
const PANEL: usize = 32 << 10;
/// Bytes of the block of B and of that of A that stay in a second-level cache.
const B_BLOCK: usize = 1 << 20;
const A_BLOCK: usize = 256 << 10;
/// Panels of the other operand from which on it pays to lay one out.
const REUSE: usize = 3;

/// What a thread does in a second, to guess how long a product takes: operations, and bytes of operands.
pub(super) const FLOPS_PER_S: f64 = 50e9;
const BYTES_PER_S: f64 = 20e9;

/// C = alpha·A·B + beta·C by all threads; C's rows are lines of A, its columns those of B.
pub(super) fn multiply<T: Element>(
    ctx: &CpuCtx<'_>,
    a: &dyn Side<T>,
    b: &dyn Side<T>,
    k: usize,
    scale: Scale<T>,
    c: Block<'_, T>,
) {
    // Of a few columns half a vector would be empty, and B would have to be laid out.
    let whole = T::set(ctx.isa);
    let set = if 2 * c.cols() <= whole.lanes { T::set(ctx.isa.narrower()) } else { whole };
    multiply_by(ctx, &set, a, b, k, scale, c);
}

/// [`multiply`] with tiles of a kind of their own.
pub(super) fn multiply_by<T: Element>(
    ctx: &CpuCtx<'_>,
    set: &Set<T>,
    a: &dyn Side<T>,
    b: &dyn Side<T>,
    k: usize,
    scale: Scale<T>,
    c: Block<'_, T>,
) {
    let (m, n) = (c.rows(), c.cols());
    if m == 0 || n == 0 {
        return;
    }
    let flops = 2.0 * m as f64 * n as f64 * k as f64;
    let bytes = size_of::<T>() as f64 * ((m as f64 + n as f64) * k as f64 + m as f64 * n as f64);
    let parts = ctx.parts_for_seconds((flops / FLOPS_PER_S).max(bytes / BYTES_PER_S));
    if parts < 2 {
        block(set, (a, b), (0, 0), k, scale, c);
        return;
    }
    let (rows, cols) = pieces(set, (m, n, k), parts);
    let mut cut = c.cut(rows, cols);
    ctx.split(&mut cut, 1, |_, pieces| {
        for (at, c) in pieces {
            block(set, (a, b), *at, k, scale, c.reborrow());
        }
    });
}

/// Rows and vectors of the largest tile for a product of so many rows and columns.
fn tallest<T>(set: &Set<T>, m: usize, n: usize) -> (usize, usize) {
    // Tiles of four vectors are the better ones where they hold as many sums as those of two.
    let many = 2 * set.wide_rows >= set.rows && n > 2 * set.lanes;
    if many || m <= set.wide_rows { (set.wide_rows, 4) } else { (set.rows, 2) }
}

/// Rows and columns of the pieces of C of which each costs least if about `parts` are wanted.
fn pieces<T: Element>(set: &Set<T>, (m, n, k): (usize, usize, usize), parts: usize) -> (usize, usize) {
    let (high, vectors) = tallest(set, m, n);
    let wide = vectors * set.lanes;
    let cost = |down: usize| {
        let across = parts / down;
        let (rows, cols) = (m.div_ceil(down), n.div_ceil(across));
        let (rows, cols) = (rows.div_ceil(high) * high, cols.div_ceil(wide) * wide);
        // Cycles: of the tiles; of laying out an element of B, of A.
        let tiles = (rows.min(m) * cols) as f64 / (2 * set.lanes) as f64;
        (k as f64 * (tiles + 0.5 * cols as f64 + 0.25 * rows as f64), rows, cols)
    };
    let best = (1..=parts).filter(|d| parts.is_multiple_of(*d)).map(cost).min_by(|x, y| x.0.total_cmp(&y.0));
    best.map_or((m, n), |(_, rows, cols)| (rows, cols))
}

/// A cache line of memory that blocks are laid out in.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C, align(64))]
struct Line([u8; 64]);

thread_local! {
    /// The blocks of the last product on this thread: fresh memory would cost more than small products do.
    static SPACE: Cell<Vec<Line>> = const { Cell::new(Vec::new()) };
}

/// Depths of a block: k in equal parts none of which is longer than a panel may be.
fn depths<T>(k: usize, wide: usize) -> usize {
    let most = PANEL / size_of::<T>() / wide;
    k.div_ceil(k.div_ceil(most).max(1))
}

/// How a product is cut into blocks and tiles on one thread.
struct Cut {
    /// Vectors of a panel of B, and its columns.
    vectors: usize,
    wide: usize,
    /// Rows of a strip of A.
    high: usize,
    /// Depths, rows and columns of a block.
    deep: usize,
    rows: usize,
    cols: usize,
    /// Whether A and B are laid out though they could be read in place.
    lay_a: bool,
    lay_b: bool,
}

impl Cut {
    /// Vectors of a panel of which `width` columns are used.
    fn vectors(&self, width: usize, lanes: usize) -> usize {
        width.div_ceil(lanes).min(self.vectors)
    }

    fn of<T: Element>(set: &Set<T>, (m, n, k): (usize, usize, usize)) -> Self {
        let (most, vectors) = tallest(set, m, n);
        let wide = vectors * set.lanes;
        // Strips of nearly the same height.
        let high = m.div_ceil(m.div_ceil(most));
        let deep = depths::<T>(k, 2 * set.lanes);
        let fit = |bytes: usize, unit: usize| (bytes / size_of::<T>() / deep / unit).max(1) * unit;
        Cut {
            vectors,
            wide,
            high,
            deep,
            rows: fit(A_BLOCK, high).min(m.next_multiple_of(high)),
            cols: fit(B_BLOCK, wide).min(n.next_multiple_of(wide)),
            lay_a: n > REUSE * wide,
            lay_b: m > REUSE * high,
        }
    }
}

/// [`multiply`] on this thread, of the rows and columns of C that begin at `origin`.
fn block<T: Element>(
    set: &Set<T>,
    (a, b): (&dyn Side<T>, &dyn Side<T>),
    origin: (usize, usize),
    k: usize,
    scale: Scale<T>,
    mut c: Block<'_, T>,
) {
    let (m, n) = (c.rows(), c.cols());
    if k == 0 {
        for i in 0..m {
            c.row(i).iter_mut().for_each(|c| *c = scale.old(*c));
        }
        return;
    }
    let cut = Cut::of(set, (m, n, k));
    let mut space = SPACE.take();
    let line = 64 / size_of::<T>();
    let (a_len, b_len) = (cut.rows * cut.deep, (cut.cols * cut.deep).next_multiple_of(line));
    let lines = (a_len + b_len).div_ceil(line);
    if space.len() < lines {
        space.resize(lines, Line([0; 64]));
    }
    let (b_space, a_space) = bytemuck::cast_slice_mut::<_, T>(&mut space).split_at_mut(b_len);
    for from in (0..k).step_by(cut.deep) {
        let depths = from..k.min(from + cut.deep);
        let len = depths.len();
        let scale = if from == 0 { scale } else { Scale { beta: T::ONE, ..scale } };
        for left in (0..n).step_by(cut.cols) {
            let cols = cut.cols.min(n - left);
            let panels = Panels::new(b, &cut, set.lanes, origin.1 + left, cols, depths.clone(), b_space);
            for top in (0..m).step_by(cut.rows) {
                let rows = cut.rows.min(m - top);
                let strips = Strips::new(a, &cut, origin.0 + top, rows, depths.clone(), a_space);
                let mut tile = |i: usize, j: usize| {
                    let (height, width) = (cut.high.min(rows - i), cut.wide.min(cols - j));
                    let (panel, vectors) = panels.at(&cut, j, width);
                    let tile = Tile { depth: len, a: (strips.at(i, height), height), b: panel, vectors };
                    tile.run(set, &mut c, (top + i, left + j), width, scale);
                };
                if len <= SHALLOW {
                    // Most of the time goes into C: along its rows.
                    (0..rows).step_by(cut.high).for_each(|i| (0..cols).step_by(cut.wide).for_each(|j| tile(i, j)));
                } else {
                    (0..cols).step_by(cut.wide).for_each(|j| (0..rows).step_by(cut.high).for_each(|i| tile(i, j)));
                }
            }
        }
    }
    SPACE.set(space);
}

/// Products of so few depths are bound by C.
const SHALLOW: usize = 64;

/// Where the columns of a block of B lie.
struct Panels<'a, T> {
    /// From the first column on, rows so far apart: for panels that can be read there.
    in_place: Option<(&'a [T], usize)>,
    /// Panels that were laid out, or only the last one, for its missing columns.
    laid: &'a [T],
    /// The first column that was laid out.
    from: usize,
    len: usize,
    lanes: usize,
}

impl<'a, T: Element> Panels<'a, T> {
    fn new(
        b: &'a dyn Side<T>,
        cut: &Cut,
        lanes: usize,
        first: usize,
        cols: usize,
        depths: Range<usize>,
        space: &'a mut [T],
    ) -> Self {
        let in_place = if cut.lay_b { None } else { b.in_place(first, depths.start).filter(|b| b.line == 1) };
        // Columns that whole vectors have are read in place.
        let last = cols % cut.wide;
        let from = match in_place {
            None => 0,
            Some(_) if last == cut.vectors(last, lanes) * lanes => cols,
            Some(_) => cols - last,
        };
        let len = depths.len();
        if from < cols {
            b.pack_panels(first + from, cols - from, depths, cut.wide, space);
        }
        Panels { in_place: in_place.map(|b| (b.data, b.depth)), laid: space, from, len, lanes }
    }

    /// The panel that begins at column `j`, and its vectors.
    fn at(&self, cut: &Cut, j: usize, width: usize) -> ((&[T], usize), usize) {
        let vectors = cut.vectors(width, self.lanes);
        match self.in_place {
            Some((data, depth)) if j < self.from => ((&data[j..], depth), vectors),
            _ => ((&self.laid[(j - self.from) * self.len..][..cut.wide * self.len], cut.wide), vectors),
        }
    }
}

/// Where the rows of a block of A lie.
enum Strips<'a, T> {
    InPlace(Strip<'a, T>),
    /// Laid out, strip after strip of so many rows and depths; whether the depths of a row lie together.
    Laid(&'a [T], usize, bool),
}

impl<'a, T: Element> Strips<'a, T> {
    fn new(a: &'a dyn Side<T>, cut: &Cut, first: usize, rows: usize, depths: Range<usize>, space: &'a mut [T]) -> Self {
        if !cut.lay_a
            && let Some(strip) = a.in_place(first, depths.start)
        {
            return Strips::InPlace(strip);
        }
        let len = depths.len();
        let mut together = false;
        for (i, out) in (0..rows).step_by(cut.high).zip(space.chunks_exact_mut(cut.high * len)) {
            together = a.pack_rows(first + i, cut.high.min(rows - i), depths.clone(), out);
        }
        Strips::Laid(space, len, together)
    }
    /// The strip of rows `i..i + height`.
    fn at(&self, i: usize, height: usize) -> Strip<'_, T> {
        match self {
            Strips::InPlace(all) => Strip { data: &all.data[i * all.line..], ..*all },
            Strips::Laid(data, len, true) => Strip { data: &data[i * len..], line: *len, depth: 1 },
            Strips::Laid(data, len, false) => Strip { data: &data[i * len..], line: 1, depth: height },
        }
    }
}

/// A tile's operands.
struct Tile<'a, T> {
    depth: usize,
    a: (Strip<'a, T>, usize),
    b: (&'a [T], usize),
    vectors: usize,
}

impl<T: Element> Tile<'_, T> {
    /// Computes the first `width` columns of the tile at `at`.
    fn run(&self, set: &Set<T>, c: &mut Block<'_, T>, at: (usize, usize), width: usize, scale: Scale<T>) {
        let wide = self.vectors * set.lanes;
        let add = scale.beta != T::ZERO;
        if width == wide && scale.alpha == T::ONE && (!add || scale.beta == T::ONE) {
            set.run(self.depth, self.a, self.b, self.vectors, c, at, add);
            return;
        }
        let mut sums = [T::ZERO; LARGEST];
        let rows = self.a.1;
        set.run(self.depth, self.a, self.b, self.vectors, &mut Block::new(&mut sums, rows, wide, wide), (0, 0), false);
        for (i, sums) in sums.chunks_exact(wide).take(rows).enumerate() {
            for (c, s) in c.row(at.0 + i)[at.1..][..width].iter_mut().zip(sums) {
                *c = scale.of(*s, *c);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::cpu::Isa;
    use crate::kernel::cpu::math::Real;

    /// Small integers, whose products and sums are exact: every order of summation gives the same bits.
    fn numbers<T: Element + Real>(len: usize, seed: usize) -> Vec<T> {
        (0..len).map(|i| <T as Real>::of(((i * 7 + seed * 13 + i / 5) % 11) as f64 - 5.0)).collect()
    }

    fn isas() -> Vec<Isa> {
        ["baseline", "avx2", "avx512"].iter().map(|name| Isa::capped(name).unwrap()).collect()
    }

    fn by_hand<T: Element + Real>(a: View<'_, T>, b: View<'_, T>, [m, n, k]: [usize; 3], scale: Scale<T>, c: &mut [T]) {
        for (at, c) in c.iter_mut().enumerate() {
            let (i, j) = (at / n, at % n);
            let at = |v: &View<'_, T>, line: usize, p: usize| v.data[line * v.line_stride + p * v.depth_stride];
            let sum = (0..k).fold(T::ZERO, |s, p| Number::add(s, Number::mul(at(&a, i, p), at(&b, j, p))));
            *c = scale.of(sum, *c);
        }
        let _ = m;
    }

    fn agrees<T: Element + Real + std::fmt::Debug>(
        shape: [usize; 3],
        trans_a: bool,
        trans_b: bool,
        (alpha, beta): (f64, f64),
    ) {
        let [m, n, k] = shape;
        let (a, b, old) = (numbers::<T>(m * k, 1), numbers::<T>(k * n, 2), numbers::<T>(m * n, 3));
        let stride = |trans: bool, lines: usize| if trans { (1, lines) } else { (k, 1) };
        let (sa, sb) = (stride(trans_a, m), stride(!trans_b, n));
        let a = View { data: &a, line_stride: sa.0, depth_stride: sa.1 };
        let b = View { data: &b, line_stride: sb.0, depth_stride: sb.1 };
        let scale = Scale { alpha: <T as Real>::of(alpha), beta: <T as Real>::of(beta) };
        let mut want = old.clone();
        by_hand(a, b, shape, scale, &mut want);
        for isa in isas() {
            let ctx = CpuCtx { threads: 1, isa, team: None, blas: None };
            let mut got = old.clone();
            multiply(&ctx, &a, &b, k, scale, Block::new(&mut got, m, n, n));
            assert_eq!(got, want, "{shape:?} {trans_a} {trans_b} {alpha} {beta} {}", isa.name());
        }
    }

    #[test]
    fn every_shape_layout_and_scale_is_right() {
        let sizes = [1, 2, 3, 4, 5, 7, 12, 13, 16, 17, 31, 33, 48, 65, 100];
        let mut shapes = Vec::new();
        for (i, m) in sizes.iter().enumerate() {
            for (j, n) in sizes.iter().enumerate() {
                shapes.push([*m, *n, sizes[(i * 5 + j * 3) % sizes.len()]]);
            }
        }
        shapes.extend([[1, 300, 1000], [300, 1, 1000], [37, 70, 2000], [200, 1100, 390], [600, 40, 400], [3, 3, 0]]);
        for (i, shape) in shapes.into_iter().enumerate() {
            let scale = [(1.0, 0.0), (1.0, 1.0), (2.0, -1.0), (-1.0, 0.0), (1.0, 0.5)][i % 5];
            agrees::<f32>(shape, i % 2 == 1, i % 3 == 1, scale);
            agrees::<f64>(shape, i % 3 == 2, i % 2 == 0, scale);
        }
    }

    /// What a thread gets of C must not show in the result.
    #[test]
    fn the_bits_do_not_depend_on_how_c_is_cut() {
        let [m, n, k] = [70, 130, 900];
        let of = |len: usize, seed: usize| (0..len).map(|i| ((i * 37 + seed) % 101) as f32 / 7.0).collect::<Vec<_>>();
        let (a, b) = (of(m * k, 1), of(k * n, 2));
        let a = View { data: &a, line_stride: k, depth_stride: 1 };
        let b = View { data: &b, line_stride: 1, depth_stride: n };
        for isa in isas() {
            let set = f32::set(isa);
            let product = |rows: usize, cols: usize| {
                let mut c = vec![0.0; m * n];
                for (at, c) in Block::new(&mut c, m, n, n).cut(rows, cols) {
                    block(&set, (&a, &b), at, k, Scale::PLAIN, c);
                }
                c.iter().map(|v| v.to_bits()).collect::<Vec<_>>()
            };
            let whole = product(m, n);
            for (rows, cols) in [(1, n), (m, 1), (35, 64), (13, 33), (24, 96)] {
                assert_eq!(whole, product(rows, cols), "{rows}x{cols} {}", isa.name());
            }
        }
    }

    #[test]
    fn pieces_cover_c_and_are_about_as_many_as_wanted() {
        for isa in isas() {
            let set = f32::set(isa);
            for shape in [(1, 4096, 64), (4096, 1, 64), (512, 512, 512), (2000, 7, 70), (7, 2000, 70)] {
                for parts in [2, 8, 16] {
                    let (rows, cols) = pieces(&set, shape, parts);
                    let count = shape.0.div_ceil(rows) * shape.1.div_ceil(cols);
                    assert!(
                        (1..=parts).contains(&count) && count * 2 >= parts.min(4),
                        "{shape:?} {parts}: {rows}x{cols}"
                    );
                }
            }
        }
    }
}
