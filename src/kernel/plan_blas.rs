//! Launch plans of the variant `blas`: the native ones, where the opened library may be asked.

use crate::base::blas::VARIANT;
use crate::base::{Case, Code, DType, DeviceInfo, Error, Library, Result};

use super::cpu::blas;
use super::{Body, Kernel, NativeFn, Needs, Plan, plan_native, plan_stream};

/// A BLAS has these.
pub const DTYPES: &[DType] = &[DType::F32, DType::F64];

/// The variant of an op, with the rest of its record as that of ours.
pub const fn kernel(own: Kernel, run: NativeFn, plan: fn(&Kernel, &Case, &DeviceInfo) -> Result<Plan>) -> Kernel {
    Kernel {
        variant: VARIANT,
        body: Body::Native(run),
        dtypes: DTYPES,
        dtypes_why: "a BLAS has f32 and f64",
        needs: Needs { library: Some(Library::Blas), ..Needs::NONE },
        plan,
        ..own
    }
}

/// The variant of gemm.
pub const fn gemm(own: Kernel) -> Kernel {
    kernel(own, blas::gemm, |k, case, info| named(case, info, "blas gemm", plan_native::gemm(k, case, info)))
}

/// The variant of bmm.
pub const fn bmm(own: Kernel) -> Kernel {
    kernel(own, blas::gemm, |k, case, info| named(case, info, "blas bmm", plan_native::bmm(k, case, info)))
}

/// The variant of gemv.
pub const fn gemv(own: Kernel) -> Kernel {
    kernel(own, blas::gemv, |k, case, info| named(case, info, "blas gemv", plan_native::gemv(k, case, info)))
}

/// The variant of dot.
pub const fn dot(own: Kernel) -> Kernel {
    kernel(own, blas::dot, |k, case, info| named(case, info, "blas dot", plan_native::dot(k, case, info)))
}

/// The variant of nrm2.
pub const fn nrm2(own: Kernel) -> Kernel {
    kernel(own, blas::nrm2, |k, case, info| named(case, info, "blas nrm2", plan_native::nrm2(k, case, info)))
}

/// The variant of axpy.
pub const fn axpy(own: Kernel) -> Kernel {
    kernel(own, blas::axpy, |k, case, info| named(case, info, "blas axpy", plan_stream::axpy_native(k, case, info)))
}

/// The plan under a name of its own, if the library may be asked for the case.
fn named(case: &Case, info: &DeviceInfo, entry: &'static str, plan: Result<Plan>) -> Result<Plan> {
    let no = |why: String| Err(Error::new(Code::OpUnsupported, why));
    if let Some((name, _)) = case.dims.iter().find(|(_, size)| *size == 0) {
        return no(format!("{name} is 0, for which libraries differ"));
    }
    let bits = info.facts.blas.as_ref().map_or(32, |b| b.int_bits);
    if bits == 32
        && let Some((name, size)) = case.dims.iter().find(|(_, size)| i32::try_from(*size).is_err())
    {
        return no(format!("{name} = {size} does not fit the library's integers of 32 bits"));
    }
    if case.attrs.float("alpha", 1.0) == 0.0 {
        return no("alpha is 0: a BLAS then reads no operand, and loses NaN and infinities in them".into());
    }
    let mut plan = plan?;
    plan.steps.iter_mut().for_each(|step| step.entry = entry);
    Ok(plan)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::blas::BlasInfo;
    use crate::base::{Attr, Attrs, Fill, Lang};
    use crate::kernel::choose;

    static KERNELS: [Kernel; 2] = [gemm(OWN), OWN];
    const OWN: Kernel = Kernel {
        variant: "own",
        body: Body::Native(crate::kernel::cpu::matmul::gemm),
        dtypes: &[DType::F32, DType::F64, DType::F16],
        dtypes_why: "",
        expr: "",
        needs: Needs::NONE,
        only_when_named: false,
        plan: plan_native::gemm,
    };

    fn cpu(bits: Option<u32>) -> DeviceInfo {
        let mut info = DeviceInfo { langs: vec![Lang::Native], ..DeviceInfo::ordinary_gpu() };
        if let Some(int_bits) = bits {
            info.libraries = vec![(Library::Blas, "made up".into())];
            info.facts.blas = Some(BlasInfo { int_bits, ..BlasInfo::default() });
        }
        info
    }

    fn case(dtype: DType, dims: [u64; 3], attrs: Attrs) -> Case {
        let dims = ["m", "n", "k"].into_iter().zip(dims).collect();
        Case { op: "gemm", dtype, dims, attrs, fill: Fill::Uniform }
    }

    #[test]
    fn a_library_is_the_first_choice_where_it_may_be_asked() {
        let pick = |case: &Case, bits| {
            let choice = choose(&KERNELS, case, &cpu(bits), None).unwrap();
            (choice.kernel.variant, choice.reason)
        };
        let plain = case(DType::F32, [4, 5, 6], Attrs::new());
        assert_eq!(pick(&plain, Some(32)).0, "blas");
        let (variant, why) = pick(&plain, None);
        assert_eq!(variant, "own");
        assert!(why.contains("blas (no BLAS was opened"), "{why}");
        let half = case(DType::F16, [4, 5, 6], Attrs::new());
        assert!(pick(&half, Some(32)).1.contains("a BLAS has f32 and f64"));
        for (dims, attrs, word) in [
            ([4, 5, 0], Attrs::new(), "k is 0"),
            ([1 << 31, 1, 1], Attrs::new(), "integers of 32 bits"),
            ([4, 5, 6], Attrs::new().with("alpha", Attr::Float(0.0)), "alpha is 0"),
        ] {
            let case = case(DType::F64, dims, attrs);
            let (variant, why) = pick(&case, Some(32));
            assert!(variant == "own" && why.contains(word), "{variant}: {why}");
            let e = choose(&KERNELS, &case, &cpu(Some(32)), Some("blas")).unwrap_err();
            assert_eq!(e.code(), Code::OpUnsupported, "named, it is refused and not replaced: {e}");
        }
        assert_eq!(pick(&case(DType::F64, [1 << 31, 1, 1], Attrs::new()), Some(64)).0, "blas");
        assert_eq!(pick(&case(DType::F64, [i32::MAX as u64, 1, 1], Attrs::new()), Some(32)).0, "blas");
    }
}
