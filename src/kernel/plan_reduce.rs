//! What all languages' reductions share: which axes are taken together, in which passes, and how the numbers of a dtype
//! become unsigned keys of the same order. Touches no device.

use crate::base::{Attr, Attrs, Case, Code, DType, DeviceInfo, Error, Result, host};

/// One pass over [outer, n, inner] along the middle axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pass {
    /// Product of the extents before the axis.
    pub outer: u64,
    /// Extent of the axis.
    pub n: u64,
    /// Product of the extents behind it; those reduced by earlier passes are gone.
    pub inner: u64,
    /// Elements that earlier passes joined to each one of this pass: position = index * behind + position in those.
    pub behind: u64,
    /// True if the axis is the parts into which an earlier launch cut this pass's.
    pub joins: bool,
}

impl Pass {
    /// Over operands as they are.
    pub const fn of(outer: u64, n: u64, inner: u64) -> Self {
        Pass { outer, n, inner, behind: 1, joins: false }
    }

    /// Results of the pass.
    pub fn results(&self) -> u64 {
        self.outer.saturating_mul(self.inner)
    }
}

/// An axis, or neighbours treated alike as one, and whether it is reduced.
pub type Block = (u64, bool);

/// The index space of a case: sizes outer, n, inner, n being reduced; or, if `x_shape` is given, that shape with the axes
/// `axes` reduced, of which outer counts the results and n the elements of each.
pub fn blocks(case: &Case) -> Result<Vec<Block>> {
    let (outer, n, inner) = (case.dim("outer"), case.dim("n"), case.dim("inner"));
    let shape = case.attrs.ints("x_shape");
    if shape.is_empty() {
        if !case.attrs.ints("axes").is_empty() {
            let why = "axes belong to x_shape; without it the middle one of outer, n, inner is reduced";
            return Err(Error::new(Code::BadArgument, why));
        }
        return Ok(collapse(&[outer, n, inner], &[false, true, false]));
    }
    let bad = |why: String| Error::new(Code::ShapeMismatch, why);
    let extents = shape
        .iter()
        .map(|d| u64::try_from(*d).map_err(|_| bad(format!("x_shape has the negative extent {d}"))))
        .collect::<Result<Vec<_>>>()?;
    let marks = reduced(case.attrs.ints("axes"), extents.len())?;
    let count = |keep: bool| {
        let chosen: Vec<u64> = extents.iter().zip(&marks).filter(|(_, r)| **r != keep).map(|(d, _)| *d).collect();
        host::count(&chosen)
    };
    let (kept, joined) = (count(true)?, count(false)?);
    if (outer, n, inner) != (kept, joined, 1) {
        return Err(bad(format!(
            "x_shape {extents:?} has {kept} results of {joined} elements: outer{kept},n{joined},inner1"
        )));
    }
    Ok(collapse(&extents, &marks))
}

/// Which of `rank` axes a list names; negative ones count from the end, no axes mean all.
pub fn reduced(axes: &[i64], rank: usize) -> Result<Vec<bool>> {
    let mut marks = vec![axes.is_empty(); rank];
    for a in axes {
        let at = if *a < 0 { a + rank as i64 } else { *a };
        let mark = usize::try_from(at).ok().and_then(|at| marks.get_mut(at));
        *mark.ok_or_else(|| Error::new(Code::BadArgument, format!("axis {a} is outside of rank {rank}")))? = true;
    }
    Ok(marks)
}

/// The index space [outer, c, inner] with all but the middle axis reduced.
pub fn outer_axes(sizes: &[u64; 3]) -> Vec<Block> {
    collapse(sizes, &[true, false, true])
}

/// Neighbours that are both kept or both reduced as one block; extents of 1 vanish.
fn collapse(extents: &[u64], marks: &[bool]) -> Vec<Block> {
    let mut out: Vec<Block> = Vec::new();
    for (extent, mark) in extents.iter().zip(marks).filter(|(e, _)| **e != 1) {
        match out.last_mut() {
            Some(last) if last.1 == *mark => last.0 = last.0.saturating_mul(*extent),
            _ => out.push((*extent, *mark)),
        }
    }
    out
}

/// Sizes and attributes of the case that reduces the given axes of a user's tensor.
pub fn bind(shape: &[u64], axes: &[i64]) -> Result<(Vec<u64>, Attrs)> {
    let marks = reduced(axes, shape.len())?;
    let blocks = collapse(shape, &marks);
    let product = |list: &[Block]| host::count(&list.iter().map(|b| b.0).collect::<Vec<_>>());
    let first = blocks.iter().position(|b| b.1).unwrap_or(blocks.len());
    if blocks.iter().filter(|b| b.1).count() <= 1 {
        let behind = (first + 1).min(blocks.len());
        return Ok((
            vec![product(&blocks[..first])?, product(&blocks[first..behind])?, product(&blocks[behind..])?],
            Attrs::new(),
        ));
    }
    let (joined, kept): (Vec<Block>, Vec<Block>) = blocks.iter().partition(|b| b.1);
    let list = |it: &mut dyn Iterator<Item = u64>| Attr::Ints(it.map(|v| v as i64).collect());
    let numbers = (0u64..).zip(&blocks).filter(|(_, b)| b.1).map(|(i, _)| i);
    let attrs = Attrs::new()
        .with("x_shape", list(&mut blocks.iter().map(|b| b.0)))
        .with("axes", list(&mut numbers.into_iter()));
    Ok((vec![product(&kept)?, product(&joined)?, 1], attrs))
}

/// The passes that reduce all marked blocks, the last block first; one at least.
pub fn passes(blocks: &[Block]) -> Vec<Pass> {
    let product = |list: &mut dyn Iterator<Item = &Block>| list.fold(1u64, |acc, b| acc.saturating_mul(b.0));
    let mut out = Vec::new();
    for (at, (n, _)) in blocks.iter().enumerate().rev().filter(|(_, b)| b.1) {
        out.push(Pass {
            outer: product(&mut blocks[..at].iter()),
            n: *n,
            inner: product(&mut blocks[at + 1..].iter().filter(|b| !b.1)),
            behind: product(&mut blocks[at + 1..].iter().filter(|b| b.1)),
            joins: false,
        });
    }
    if out.is_empty() {
        out.push(Pass::of(product(&mut blocks.iter()), 1, 1));
    }
    out
}

/// Numbers as unsigned keys of the same width: larger keys win. Applied to bits `b`:
/// key = all ones for NaN, else b ^ (lift, or mask | lift where the sign bit is set) ^ flip.
///
/// Floats are ordered by their bits: of positive numbers the sign is set, of negative ones every bit inverted. Hence no
/// flushed subnormal, no NaN lost by a driver's maximum, and -0 lies below +0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Order {
    /// Every bit of the width.
    pub all: u64,
    /// The sign bit of floats; 0 for integers.
    pub sign: u64,
    /// What a set sign bit inverts.
    pub mask: u64,
    /// What is always inverted before: the sign bit of signed numbers.
    pub lift: u64,
    /// All ones for minima.
    pub flip: u64,
    /// Bits that tell NaN; all for integers.
    pub magnitude: u64,
    /// Largest magnitude that is not NaN; all ones for integers.
    pub infinity: u64,
    /// True if both zeros are one number, as for positions.
    pub one_zero: bool,
}

impl Order {
    /// The order of a dtype: for maxima or minima, of values or of positions.
    pub fn of(dtype: DType, minimum: bool, position: bool) -> Order {
        let bits = dtype.size() * 8;
        let all = u64::MAX >> (64 - bits);
        let top = 1 << (bits - 1);
        let flip = if minimum { all } else { 0 };
        let Some(p) = dtype.mantissa_bits() else {
            let lift = if dtype.is_signed() { top } else { 0 };
            return Order { all, sign: 0, mask: 0, lift, flip, magnitude: all, infinity: all, one_zero: false };
        };
        let infinity = (all ^ top) >> (p - 1) << (p - 1);
        Order { all, sign: top, mask: all, lift: top, flip, magnitude: all ^ top, infinity, one_zero: position }
    }

    /// Place of the number with these bits among all others that are not NaN, which lie outside.
    fn rank(self, bits: u64) -> u64 {
        let flipped = if bits & self.sign != 0 { self.mask | self.lift } else { self.lift };
        bits ^ flipped ^ self.flip
    }

    /// The ranks of the infinities, lower one first; of integers, which have no NaN, the ends of the width.
    pub fn ends(self) -> (u64, u64) {
        match self.sign {
            0 => (0, self.all),
            sign => {
                let (a, b) = (self.rank(self.infinity), self.rank(sign | self.infinity));
                (a.min(b), a.max(b))
            }
        }
    }
}

/// Segment of rows of `n` that leaves at least this many work-items busy, between `low` and `high`.
pub fn segment(n: u64, results: u64, items: u64, low: u64, high: u64) -> u64 {
    n.saturating_mul(results).div_ceil(items).clamp(low, high)
}

/// Elements of a row that one group of a GPU takes before another launch joins what the groups found: as many as leave
/// four groups for each of its units. Fewer than [`ROW`]'s first are not worth a group; its last bounds the error of
/// a sum in one group. Joined parts are one group's: another launch would cost more, and be a further text that only large
/// operands take.
pub fn row_segment(p: Pass, info: &DeviceInfo) -> u64 {
    if p.joins {
        return ROW.1;
    }
    let units = if info.compute_units == 0 { UNITS } else { u64::from(info.compute_units) };
    segment(p.n, p.outer, units * GROUPS_PER_UNIT, ROW.0, ROW.1)
}

/// See [`row_segment`].
pub const ROW: (u64, u64) = (2_048, 16_384);
const GROUPS_PER_UNIT: u64 = 4;
/// Of a GPU whose API does not tell (WebGPU).
const UNITS: u64 = 64;

#[cfg(test)]
mod tests {
    use super::*;

    fn key(o: Order, b: u64) -> u64 {
        if b & o.magnitude > o.infinity { o.all } else { o.rank(b) }
    }

    /// A sum of 65,536 numbers in four groups left 128 of an H200's 132 units idle: 23 us, PyTorch's 8.
    #[test]
    fn a_long_row_keeps_the_units_of_a_gpu_busy() {
        let info = |compute_units| DeviceInfo { compute_units, ..DeviceInfo::ordinary_gpu() };
        let of = |outer, n, units| row_segment(Pass::of(outer, n, 1), &info(units));
        assert_eq!([of(1, 100, 132), of(1, 65_536, 132), of(1, 1 << 20, 132)], [2_048; 3]);
        assert_eq!(of(1, 1 << 24, 132), 16_384);
        // Rows that keep it busy by themselves are not cut before they must be.
        assert_eq!([of(4_096, 16_384, 132), of(528, 10_000, 132)], [16_384, 10_000]);
        assert_eq!(of(1, 1 << 20, 0), of(1, 1 << 20, 64), "not told");
    }

    #[test]
    fn keys_have_the_order_of_their_numbers() {
        let floats = [f32::NEG_INFINITY, -1.0, -1e-45, -0.0, 0.0, 1e-45, 1.0, f32::MAX, f32::INFINITY];
        let (max, min) = (Order::of(DType::F32, false, false), Order::of(DType::F32, true, false));
        for w in floats.windows(2) {
            let (a, b) = (u64::from(w[0].to_bits()), u64::from(w[1].to_bits()));
            assert!(key(max, a) < key(max, b) && key(min, a) > key(min, b), "{w:?}");
        }
        for nan in [f32::NAN, -f32::NAN, f32::from_bits(0x7f80_0001)] {
            assert_eq!((key(max, nan.to_bits().into()), key(min, nan.to_bits().into())), (0xffff_ffff, 0xffff_ffff));
        }
        let byte = Order::of(DType::I8, false, false);
        assert!(key(byte, 0x80) < key(byte, 0xff) && key(byte, 0xff) < key(byte, 0) && key(byte, 0) < key(byte, 0x7f));
        assert_eq!(Order::of(DType::F16, false, false).infinity, 0x7c00);
        assert_eq!(Order::of(DType::BF16, false, false).infinity, 0x7f80);
    }

    #[test]
    fn nan_ranks_beyond_the_infinities() {
        for minimum in [false, true] {
            let o = Order::of(DType::F32, minimum, false);
            let (lowest, highest) = o.ends();
            for v in [f32::NEG_INFINITY, f32::MIN, -0.0, 0.0, 1e-45, f32::MAX, f32::INFINITY] {
                assert!((lowest..=highest).contains(&o.rank(v.to_bits().into())), "{v} {minimum}");
            }
            for nan in [f32::NAN, -f32::NAN, f32::from_bits(0x7f80_0001), f32::from_bits(0xff80_0001)] {
                assert!(!(lowest..=highest).contains(&o.rank(nan.to_bits().into())), "{nan} {minimum}");
            }
            assert_eq!(Order::of(DType::I16, minimum, false).ends(), (0, 0xffff));
            assert_eq!(Order::of(DType::U64, minimum, false).ends(), (0, u64::MAX));
        }
    }

    #[test]
    fn sets_of_axes_become_passes() {
        let (dims, attrs) = bind(&[2, 3, 5, 7], &[0, -2]).unwrap();
        assert_eq!(dims, [21, 10, 1]);
        assert_eq!((attrs.ints("x_shape"), attrs.ints("axes")), (&[2, 3, 5, 7][..], &[0, 2][..]));
        let case = Case {
            op: "sum",
            dtype: DType::F32,
            dims: vec![("outer", 21), ("n", 10), ("inner", 1)],
            attrs,
            fill: crate::base::Fill::Uniform,
        };
        let list = passes(&blocks(&case).unwrap());
        assert_eq!(list[0], Pass::of(6, 5, 7));
        assert_eq!(list[1], Pass { behind: 5, ..Pass::of(1, 2, 21) });
        // Neighbours, and axes of extent 1 between them, are one.
        assert_eq!(bind(&[4, 2, 1, 3, 5], &[1, 3]).unwrap(), (vec![4, 6, 5], Attrs::new()));
        assert_eq!(bind(&[4, 2], &[]).unwrap().0, [1, 8, 1]);
        assert_eq!(bind(&[], &[]).unwrap().0, [1, 1, 1]);
        assert_eq!(bind(&[4, 0, 3, 2], &[1, 3]).unwrap().0, [12, 0, 1]);
        assert!(bind(&[2, 3], &[2]).is_err() && bind(&[2, 3], &[-3]).is_err());
        let wrong = Case { dims: vec![("outer", 20), ("n", 10), ("inner", 1)], ..case };
        assert!(blocks(&wrong).unwrap_err().to_string().contains("outer21,n10,inner1"));
    }
}
