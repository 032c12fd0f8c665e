//! Number types, by their usual short names.  Not here: arithmetic (kernels, `exact`).

use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

use super::error::{Code, Error};

/// The type of a tensor's elements. The name printed is the one used in the CLI, JSON, TOML and case names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[allow(missing_docs, reason = "each variant is the number type of its name")]
pub enum DType {
    F32,
    F64,
    F16,
    BF16,
    I8,
    I16,
    I32,
    I64,
    U8,
    U16,
    U32,
    U64,
}

impl DType {
    /// Every dtype, floats first.
    pub const ALL: [DType; 12] = [
        DType::F32,
        DType::F64,
        DType::F16,
        DType::BF16,
        DType::I8,
        DType::I16,
        DType::I32,
        DType::I64,
        DType::U8,
        DType::U16,
        DType::U32,
        DType::U64,
    ];

    /// Bytes of one element.
    pub const fn size(self) -> u64 {
        match self {
            DType::I8 | DType::U8 => 1,
            DType::F16 | DType::BF16 | DType::I16 | DType::U16 => 2,
            DType::F32 | DType::I32 | DType::U32 => 4,
            DType::F64 | DType::I64 | DType::U64 => 8,
        }
    }

    /// The short name, e.g. `f32`.
    pub const fn name(self) -> &'static str {
        match self {
            DType::F32 => "f32",
            DType::F64 => "f64",
            DType::F16 => "f16",
            DType::BF16 => "bf16",
            DType::I8 => "i8",
            DType::I16 => "i16",
            DType::I32 => "i32",
            DType::I64 => "i64",
            DType::U8 => "u8",
            DType::U16 => "u16",
            DType::U32 => "u32",
            DType::U64 => "u64",
        }
    }

    /// True for f16, bf16, f32, f64.
    pub const fn is_float(self) -> bool {
        matches!(self, DType::F16 | DType::BF16 | DType::F32 | DType::F64)
    }

    /// The type in which kernels compute: f32 for the storage-only floats, else the type itself.
    pub const fn compute(self) -> DType {
        match self {
            DType::F16 | DType::BF16 => DType::F32,
            other => other,
        }
    }

    /// Bits of the significand, the hidden one included; `None` for integers.
    pub const fn mantissa_bits(self) -> Option<i32> {
        match self {
            DType::F16 => Some(11),
            DType::BF16 => Some(8),
            DType::F32 => Some(24),
            DType::F64 => Some(53),
            _ => None,
        }
    }

    /// Exponent of the smallest normal number (IEEE 754 emin); `None` for integers.
    pub const fn min_exponent(self) -> Option<i32> {
        match self {
            DType::F16 => Some(-14),
            DType::BF16 | DType::F32 => Some(-126),
            DType::F64 => Some(-1022),
            _ => None,
        }
    }

    /// Smallest and largest integer; `None` for floats.
    pub const fn int_range(self) -> Option<(i128, i128)> {
        match self {
            DType::I8 => Some((i8::MIN as i128, i8::MAX as i128)),
            DType::I16 => Some((i16::MIN as i128, i16::MAX as i128)),
            DType::I32 => Some((i32::MIN as i128, i32::MAX as i128)),
            DType::I64 => Some((i64::MIN as i128, i64::MAX as i128)),
            DType::U8 => Some((0, u8::MAX as i128)),
            DType::U16 => Some((0, u16::MAX as i128)),
            DType::U32 => Some((0, u32::MAX as i128)),
            DType::U64 => Some((0, u64::MAX as i128)),
            _ => None,
        }
    }

    /// True for integers with a sign.
    pub const fn is_signed(self) -> bool {
        matches!(self, DType::I8 | DType::I16 | DType::I32 | DType::I64)
    }

    /// True if a scalar attribute keeps its value in the dtype: in floats any number that is not rounded to infinity, in
    /// integers whole numbers within the range.
    pub fn holds(self, value: f64) -> bool {
        if self.is_float() {
            return !value.is_finite() || self.round(value).is_finite();
        }
        // The bounds as f64 are exact or round up to a power of two, which is then out of range itself.
        self.int_range().is_none_or(|(low, high)| {
            value.fract() == 0.0 && value >= low as f64 && value <= high as f64 && (value as i128) <= high
        })
    }

    /// The nearest number of a float dtype; integers leave the value as it is.
    pub fn round(self, value: f64) -> f64 {
        match self {
            DType::F32 => f64::from(value as f32),
            DType::F16 => half::f16::from_f64(value).to_f64(),
            DType::BF16 => half::bf16::from_f64(value).to_f64(),
            _ => value,
        }
    }

    /// Unit roundoff u = 2^-p of a float (Higham, *Accuracy and Stability*, 2.1); 0 for integers.
    pub fn unit_roundoff(self) -> f64 {
        self.mantissa_bits().map_or(0.0, |p| 2f64.powi(-p))
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for DType {
    type Err = Error;
    fn from_str(s: &str) -> Result<Self, Error> {
        DType::ALL.into_iter().find(|d| d.name() == s).ok_or_else(|| {
            let known: Vec<_> = DType::ALL.iter().map(|d| d.name()).collect();
            Error::new(Code::BadArgument, format!("unknown dtype '{s}'; known: {}", known.join(" ")))
        })
    }
}
