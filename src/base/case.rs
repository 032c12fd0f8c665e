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
}

impl Fill {
    /// All fills.
    pub const ALL: [Fill; 5] = [Fill::Uniform, Fill::Positive, Fill::Integer, Fill::Special, Fill::Constant];

    /// The name used in case names.
    pub const fn name(self) -> &'static str {
        match self {
            Fill::Uniform => "uniform",
            Fill::Positive => "positive",
            Fill::Integer => "integer",
            Fill::Special => "special",
            Fill::Constant => "constant",
        }
    }
}

impl FromStr for Fill {
    type Err = Error;
    fn from_str(s: &str) -> Result<Self, Error> {
        Fill::ALL
            .into_iter()
            .find(|f| f.name() == s)
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
        write!(f, "{}/{}/{}/{}/{}", self.op, self.dtype, self.shape_text(), self.attr_text(), self.fill.name())
    }
}
