//! A call of `run`, and the arrays of it.

use serde::{Deserialize, Serialize};

use super::dtype::DType;
use super::record::Subject;

/// One call of `run` on the user's own arrays.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RunRecord {
    /// What ran where.
    #[serde(flatten)]
    pub subject: Subject,
    /// Seconds of the call: copies, launches and the wait; buffers and kernels were made before. One call, not a median.
    pub seconds: f64,
    /// The arrays read.
    pub inputs: Vec<ArrayFile>,
    /// The arrays written.
    pub outputs: Vec<ArrayFile>,
    /// Why it ran on the CPU although the profile chose a GPU.
    pub fallback: Option<String>,
}

/// An array in a file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ArrayFile {
    /// Name of the operand.
    pub operand: String,
    /// Path of the file.
    pub path: String,
    /// Number type of the elements.
    pub dtype: DType,
    /// Extents, outermost first.
    pub shape: Vec<u64>,
}
