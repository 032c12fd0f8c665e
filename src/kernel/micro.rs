//! The token kernel, in every language: what the ops `launch` and `compile` measure with.

use crate::base::DType;

use super::cpu::micro;
use super::{Body, Kernel, Needs, Step, plan_c, plan_native, plan_wgsl};

const C_TEXT: &str = include_str!("../../kernels/micro.c");
const WGSL_TEXT: &str = include_str!("../../kernels/micro.wgsl");

const NATIVE: Kernel = Kernel {
    variant: "token",
    body: Body::Native(micro::launch),
    dtypes: &[DType::I32],
    dtypes_why: "",
    expr: "",
    needs: Needs::NONE,
    only_when_named: false,
    plan: plan_native::launch,
};

/// One work-item that stores a token; `n` launches of it.
pub const TOKEN: &[Kernel] = &[
    Kernel { body: Body::C(C_TEXT), plan: plan_c::launch, ..NATIVE },
    Kernel { body: Body::Wgsl(WGSL_TEXT), plan: plan_wgsl::launch, ..NATIVE },
    NATIVE,
];

/// The same step with another token in its text, so that no cache knows it; the token that it will store. A native step
/// has no text and keeps its own.
pub fn with_token(step: &mut Step, token: i32) -> i32 {
    match step.defines.iter_mut().find(|(name, _)| name == "TOKEN") {
        Some((_, value)) => {
            *value = token.to_string();
            token
        }
        None => super::LAUNCH_TOKEN,
    }
}
