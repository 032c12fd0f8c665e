//! The kernel that goes astray: it writes outside of every buffer. `stress` loses a device with it, in a process that may die of
//! it. No op has it.

use crate::base::{Cost, DType, Lang, Result};

use super::source::{Text, assemble};
use super::{Arg, Body, Kernel, Needs, Param, Step, plan_c};

const STRAY: Kernel = Kernel {
    variant: "stray",
    body: Body::C(include_str!("../../kernels/stray.c")),
    dtypes: &[DType::U32],
    dtypes_why: "",
    expr: "",
    needs: Needs::NONE,
    only_when_named: true,
    plan: plan_c::launch,
};

/// Element of the buffer that it writes: 64 TiB behind its front, more than a process has of addresses there.
const FAR: u64 = 1 << 44;

/// Its launch, on one buffer of u32, and its text. `None` in WGSL, which keeps every access within the buffer.
///
/// Errors: none that a caller could cause.
pub fn stray(lang: Lang) -> Result<Option<(Step, Text)>> {
    if !matches!(lang, Lang::OpenclC | Lang::Cuda) {
        return Ok(None);
    }
    let step = Step {
        entry: "stray",
        dtype: DType::U32,
        defines: Vec::new(),
        group: [1; 3],
        groups: [1; 3],
        args: vec![Arg::Operand(0)],
        writes: vec![true],
        params: vec![Param::U64(FAR)],
        cost: Cost { flops: 0, read: 0, written: 4 },
    };
    let text = assemble(&STRAY, &step, lang)?;
    Ok(Some((step, text)))
}
