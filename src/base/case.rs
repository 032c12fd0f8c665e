//! One concrete problem: op, dtype, named sizes, attributes, data. Pure data; its name is its identity.
//!
//! The name reads `gemm/f32/m64,n64,k64/transA=1/uniform` (`-` where no attribute is set); it seeds the data, so a
//! failing case reruns bit for bit on any device.  Not here: parsing names (needs the op's record: `op::case`).

use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

use super::attr::Attrs;
use super::dtype::DType;
use super::error::{Code, Error};

/// What the inputs are filled with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Fill {
    /// Uniform over the op's stated domain of each input.
    Uniform,
    /// Uniform over the positive part of the domain: exposes the order of summation.
    Positive,
    /// Small integers, so that sums and products are exact and every bit must match.
    Integer,
    /// Zeros of both signs, infinities, NaN, subnormals, extremes, multiples of pi, mixed with uniform values.
    Special,
    /// One value everywhere.
    Constant,
    /// Both signs, magnitudes over 7/16 of the dtype's exponents around 1, so that products stay finite.
    Wide,
    /// Neighbours that cancel: x, -x(1 + a few ulps), ...; sums are tiny beside their terms.
    Cancelling,
    /// One element is not zero.
    Onehot,
    /// Numbers of like magnitude, so small that their squares vanish or nearly do; small integers in integer dtypes. For ops
    /// that treat such numbers apart.
    Tiny,
    /// The same about numbers whose squares overflow or nearly do.
    Huge,
    /// Close together and far from 0: the mean is some thousand times the deviation or more.
    Offset,
    /// Every bit pattern in order, this many whole cases further on: `bits17`. For functions of one number.
    Bits(u32),
}

impl Fill {
    /// The fills that only some ops' cases name.
    pub const EXTRA: [Fill; 3] = [Fill::Tiny, Fill::Huge, Fill::Offset];

    /// The fills that every op takes; [`Fill::Bits`] belongs to the exhaustive tier alone.
    pub const ALL: [Fill; 8] = [
        Fill::Uniform,
        Fill::Positive,
        Fill::Integer,
        Fill::Special,
        Fill::Constant,
        Fill::Wide,
        Fill::Cancelling,
        Fill::Onehot,
    ];

    /// The name used in case names.
    pub const fn name(self) -> &'static str {
        match self {
            Fill::Uniform => "uniform",
            Fill::Positive => "positive",
            Fill::Integer => "integer",
            Fill::Special => "special",
            Fill::Constant => "constant",
            Fill::Wide => "wide",
            Fill::Cancelling => "cancelling",
            Fill::Onehot => "onehot",
            Fill::Tiny => "tiny",
            Fill::Huge => "huge",
            Fill::Offset => "offset",
            Fill::Bits(_) => "bits",
        }
    }
}

impl fmt::Display for Fill {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Fill::Bits(part) => write!(f, "bits{part}"),
            other => f.write_str(other.name()),
        }
    }
}

impl FromStr for Fill {
    type Err = Error;
    fn from_str(s: &str) -> Result<Self, Error> {
        let part = s.strip_prefix("bits").and_then(|n| n.parse().ok()).map(Fill::Bits);
        part.or_else(|| Fill::ALL.into_iter().chain(Fill::EXTRA).find(|f| f.name() == s))
            .ok_or_else(|| Error::new(Code::BadArgument, format!("unknown data '{s}'")))
    }
}

/// A concrete problem.
#[derive(Clone, Debug, PartialEq)]
pub struct Case {
    /// Name of the op.
    pub op: &'static str,
    /// Number type of the operands.
    pub dtype: DType,
    /// Sizes in the op's declared order of dimension names.
    pub dims: Vec<(&'static str, u64)>,
    /// Attributes that differ from their defaults.
    pub attrs: Attrs,
    /// Data of the inputs.
    pub fill: Fill,
}

impl Case {
    /// Size of the dimension `name`; 1 if the op has no such dimension (a mistake in the op's record).
    pub fn dim(&self, name: &str) -> u64 {
        self.dims.iter().find(|(n, _)| *n == name).map_or(1, |(_, v)| *v)
    }

    /// The shape part of the name: `m64,n64,k64`.
    pub fn shape_text(&self) -> String {
        let parts: Vec<_> = self.dims.iter().map(|(n, v)| format!("{n}{v}")).collect();
        parts.join(",")
    }

    /// The attribute part of the name: `alpha=2,transA=1`, or `-`.
    pub fn attr_text(&self) -> String {
        if self.attrs.is_empty() {
            return "-".to_string();
        }
        let parts: Vec<_> = self.attrs.iter().map(|(n, v)| format!("{n}={v}")).collect();
        parts.join(",")
    }

    /// Seed of the case's data: FNV-1a-64 of its name.
    pub fn seed(&self) -> u64 {
        super::rng::fnv1a64(self.to_string().as_bytes())
    }
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}/{}/{}/{}", self.op, self.dtype, self.shape_text(), self.attr_text(), self.fill)
    }
}
