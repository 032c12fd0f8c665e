//! Plans of CUDA-only variants of gemm: the vendor routine and the tensor-core text.

use crate::base::{Case, Code, DType, DeviceInfo, Error, Result};

use super::{Arg, Kernel, Plan, Step, plan_native, spread_groups};

/// cuBLAS: one routine call; params as [`plan_native::gemm_params`].
///
/// Products without summands are left to other variants: cuBLAS documents no leading dimension of 0, and what it does
/// with C then is not stated for every release.
pub fn gemm_cublas(_: &Kernel, case: &Case, _: &DeviceInfo) -> Result<Plan> {
    if case.dim("m") == 0 || case.dim("n") == 0 {
        return Ok(Plan::default());
    }
    summands(case)?;
    Ok(plan_native::step(case, "gemm", &[0, 1], &[2], plan_native::gemm_params(case), plan_native::gemm_cost(case)))
}

/// cuBLAS: one routine call for all products; params as [`plan_native::bmm`]. Without summands as [`gemm_cublas`].
pub fn bmm_cublas(kernel: &Kernel, case: &Case, info: &DeviceInfo) -> Result<Plan> {
    if ["b", "m", "n"].iter().any(|d| case.dim(d) == 0) {
        return Ok(Plan::default());
    }
    summands(case)?;
    plan_native::bmm(kernel, case, info)
}

fn summands(case: &Case) -> Result<()> {
    let no = |why| Err(Error::new(Code::OpUnsupported, why));
    match () {
        () if case.dim("k") == 0 => no("cuBLAS is not asked for products with k = 0"),
        // BLAS lets a library leave the operands alone then, and cuBLAS does not say whether it does.
        () if case.attrs.float("alpha", 1.0) == 0.0 => {
            no("alpha is 0: a BLAS may lose NaN and infinities in the operands")
        }
        () => Ok(()),
    }
}

/// Rows and columns of C that one group of [`gemm_mma`] owns.
const MMA_TILE: u64 = 64;

/// bf16 by `mma.sync.m16n8k16` with f32 accumulation: groups of 128 threads own 64×64 tiles of C, numbered row by row
/// and spread over x and y.
/// Params: m, n, k, A's row and column stride, B's row and column stride (U64, elements), alpha, beta (F32).
pub fn gemm_mma(_: &Kernel, case: &Case, info: &DeviceInfo) -> Result<Plan> {
    debug_assert_eq!(case.dtype, DType::BF16);
    let (m, n) = (case.dim("m"), case.dim("n"));
    if m == 0 || n == 0 {
        return Ok(Plan::default());
    }
    Ok(Plan {
        steps: vec![Step {
            entry: "gemm_mma",
            dtype: case.dtype,
            defines: Vec::new(),
            group: [128, 1, 1],
            groups: spread_groups(m.div_ceil(MMA_TILE).saturating_mul(n.div_ceil(MMA_TILE)), info)?,
            args: vec![Arg::Operand(0), Arg::Operand(1), Arg::Operand(2)],
            writes: vec![false, false, true],
            params: super::plan_c::gemm_params(case),
            cost: plan_native::gemm_cost(case),
        }],
        scratch: Vec::new(),
    })
}
