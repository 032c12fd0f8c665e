//! Windows that slide over images: the sizes of a convolution or pooling, checked, and their kernels' parameters.

use crate::base::{Case, Code, Error, Result};

use super::Param;

/// Sizes of one convolution or pooling. Pooling has as many filters as channels, no groups and no dilation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names are those of the dimensions and attributes")]
pub struct Window {
    pub n: u64,
    pub c: u64,
    pub h: u64,
    pub w: u64,
    pub co: u64,
    pub kh: u64,
    pub kw: u64,
    pub ho: u64,
    pub wo: u64,
    pub sh: u64,
    pub sw: u64,
    /// Padding above and to the left; below and to the right it only shows in `ho` and `wo`.
    pub pt: u64,
    pub pl: u64,
    pub dh: u64,
    pub dw: u64,
    pub group: u64,
    pub nhwc: bool,
}

/// Sizes and steps beyond this are refused, so that no sum or product of two leaves 64 bits.
const MOST: u64 = i32::MAX as u64;

fn bad(why: String) -> Error {
    Error::new(Code::BadArgument, why)
}

/// A list attribute of `N` numbers, none of them below `least`; `default` if it is not given.
fn list<const N: usize>(case: &Case, name: &str, least: i64, default: [u64; N]) -> Result<[u64; N]> {
    let given = case.attrs.ints(name);
    if given.is_empty() {
        return Ok(default);
    }
    let values = <[i64; N]>::try_from(given).map_err(|_| bad(format!("{name} takes {N} numbers, {given:?} given")))?;
    match values.iter().find(|v| **v < least || **v > MOST as i64) {
        Some(v) => Err(bad(format!("{name} holds {v}; {least} to {MOST} are possible"))),
        None => Ok(values.map(|v| v as u64)),
    }
}

/// Padding above, left, below, right.
fn pads(case: &Case) -> Result<[u64; 4]> {
    match case.attrs.ints("pads").len() {
        2 => list::<2>(case, "pads", 0, [0; 2]).map(|[h, w]| [h, w, h, w]),
        0 | 4 => list::<4>(case, "pads", 0, [0; 4]),
        n => Err(bad(format!("pads takes 2 numbers (rows, columns) or 4 (top, left, bottom, right), {n} given"))),
    }
}

/// Positions of a window of `k` rows `d` apart on `size` rows with `pad` more, `s` apart.
fn positions(what: &str, size: u64, pad: u64, k: u64, d: u64, s: u64) -> Result<u64> {
    let reach = d * (k - 1) + 1;
    match (size + pad).checked_sub(reach) {
        Some(free) => Ok(free / s + 1),
        None => Err(Error::new(
            Code::ShapeMismatch,
            format!("the kernel spans {reach} {what}, the padded image has {}", size + pad),
        )),
    }
}

impl Window {
    fn new(case: &Case, co: u64, [kh, kw]: [u64; 2], group: u64) -> Result<Self> {
        let [n, c, h, w] = ["n", "c", "h", "w"].map(|d| case.dim(d));
        for (name, size) in [("h", h), ("w", w), ("kh", kh), ("kw", kw), ("c", c), ("co", co)] {
            if size > MOST {
                return Err(bad(format!("{name} = {size} exceeds {MOST}")));
            }
        }
        if kh == 0 || kw == 0 {
            return Err(Error::new(Code::ShapeMismatch, format!("a kernel of {kh} by {kw} has no element")));
        }
        let [sh, sw] = list(case, "strides", 1, [1; 2])?;
        let [dh, dw] = list(case, "dilations", 1, [1; 2])?;
        let [pt, pl, pb, pr] = pads(case)?;
        let ho = positions("rows", h, pt + pb, kh, dh, sh)?;
        let wo = positions("columns", w, pl + pr, kw, dw, sw)?;
        let nhwc = case.attrs.word("layout", "NCHW") == "NHWC";
        Ok(Window { n, c, h, w, co, kh, kw, ho, wo, sh, sw, pt, pl, dh, dw, group, nhwc })
    }

    /// The sizes of a convolution.
    pub fn conv(case: &Case) -> Result<Self> {
        let (c, co, group) = (case.dim("c"), case.dim("co"), case.attrs.int("group", 1));
        let group = u64::try_from(group).ok().filter(|g| *g > 0).ok_or_else(|| bad(format!("group = {group}")))?;
        if c % group != 0 || co % group != 0 {
            return Err(Error::new(
                Code::ShapeMismatch,
                format!("{group} groups: {c} channels and {co} filters must both be multiples of that"),
            ));
        }
        Self::new(case, co, [case.dim("kh"), case.dim("kw")], group)
    }

    /// The sizes of a pooling. No window lies in the padding alone.
    pub fn pool(case: &Case) -> Result<Self> {
        let kernel = list(case, "kernel_shape", 1, [2; 2])?;
        let pads = pads(case)?;
        if pads[0].max(pads[2]) >= kernel[0] || pads[1].max(pads[3]) >= kernel[1] {
            return Err(bad(format!(
                "pads {pads:?} reach the kernel's size {kernel:?}: a window would hold padding only"
            )));
        }
        if case.dim("h") == 0 || case.dim("w") == 0 {
            return Err(Error::new(Code::ShapeMismatch, "an image without pixels has nothing to pool"));
        }
        Self::new(case, case.dim("c"), kernel, 1)
    }

    /// Channels that one filter sees.
    pub fn cg(&self) -> u64 {
        self.c / self.group
    }
    /// Filters of one group.
    pub fn og(&self) -> u64 {
        self.co / self.group
    }
    /// Extents of a tensor of images in the order of the layout.
    pub fn image(&self, n: u64, c: u64, h: u64, w: u64) -> Vec<u64> {
        if self.nhwc { vec![n, h, w, c] } else { vec![n, c, h, w] }
    }
    /// Shape of x.
    pub fn x(&self) -> Vec<u64> {
        self.image(self.n, self.c, self.h, self.w)
    }
    /// Shape of y.
    pub fn y(&self) -> Vec<u64> {
        self.image(self.n, self.co, self.ho, self.wo)
    }
    /// Shape of the filters: [co, c/group, kh, kw], or [co, kh, kw, c/group] for NHWC.
    pub fn filters(&self) -> Vec<u64> {
        self.image(self.co, self.cg(), self.kh, self.kw)
    }
    /// The parameters that all kernels share, in order; the layout is not among them.
    pub fn params(&self) -> Vec<Param> {
        [
            self.n, self.c, self.h, self.w, self.co, self.kh, self.kw, self.ho, self.wo, self.sh, self.sw, self.pt,
            self.pl, self.dh, self.dw, self.group,
        ]
        .into_iter()
        .map(Param::U64)
        .collect()
    }
}

/// Product, saturating.
pub fn product(sizes: &[u64]) -> u64 {
    sizes.iter().fold(1, |a, b| a.saturating_mul(*b))
}
