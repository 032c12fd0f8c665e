//! Matrix products.

use crate::base::{
    Attr, AttrDecl, AttrType, Attrs, Case, Code, DType, Error, Exact, Feature, Fill, Library, Result, host,
};
use crate::kernel::cpu::matmul;
use crate::kernel::{Body, Kernel, Needs, Routine, plan_blas, plan_c, plan_cuda, plan_native, plan_wgsl};

use super::freivalds;
use super::{
    Binding, CaseSpec, DTypeRule, Family, Gap, Grad, OpDesc, Operand, Range, Reference, Role, ShapeClass, Tier,
    Tolerance, Unit, products,
};

pub(super) const C_TEXT: &str = include_str!("../../kernels/matmul.c");
pub(super) const BLOCKS_TEXT: &str = include_str!("../../kernels/opencl/matmul_blocks.cl");
pub(super) const WGSL_TEXT: &str = include_str!("../../kernels/matmul.wgsl");
const MMA_TEXT: &str = include_str!("../../kernels/cuda/gemm_mma.cu");
const DTYPES: &[DType] = &[DType::F32, DType::F64, DType::I32, DType::F16, DType::BF16, DType::I8];
const WGSL_DTYPES: &[DType] = &[DType::F32, DType::F64, DType::I32, DType::F16, DType::BF16];

/// Ops of this file.
pub(super) static OPS: &[&OpDesc] = &[&GEMM];

const BASE: Kernel = Kernel {
    variant: "blocked",
    body: Body::Native(matmul::gemm),
    dtypes: DTYPES,
    dtypes_why: "",
    expr: "",
    needs: Needs::NONE,
    only_when_named: false,
    plan: plan_native::gemm,
};

/// Tiles of the C kernel: two buffers of TM×TK and TK×TN with one column of padding.
pub(super) const fn tiles(tm: u32, tn: u32, tk: u32, group: u32) -> Needs {
    Needs { local_elements: tk * (tm + 1) + tk * (tn + 1), group, ..Needs::NONE }
}

static GEMM: OpDesc = OpDesc {
    name: "gemm",
    doc: "C = alpha op(A) op(B) + beta C, row-major; beta = 0 does not read C; the product of i8 is i32 with i32 factors.",
    tier: 1,
    onnx: Some("Gemm"),
    dims: &["m", "n", "k"],
    families: &[
        Family {
            name: "square",
            doc: "no dimension more than four times another",
            matches: |c| {
                let d = [c.dim("m"), c.dim("n"), c.dim("k")];
                let (low, high) = (d.iter().min().copied().unwrap_or(0), d.iter().max().copied().unwrap_or(0));
                high <= low.saturating_mul(4)
            },
            sweep: |n| vec![n, n, n],
        },
        Family {
            name: "narrow",
            doc: "one of m and n at most a quarter of the other; 32 columns in the sweep",
            matches: |c| c.dim("m").min(c.dim("n")).saturating_mul(4) < c.dim("m").max(c.dim("n")),
            sweep: |n| {
                // m·n·k = size³ with n = 32 and m = k.
                let m = (u128::from(n).pow(3) / 32).isqrt() as u64;
                vec![m.max(129 + n), 32.min(n), m.max(129 + n)]
            },
        },
    ],
    unit: Unit::Dim,
    work: |c| u128::from(c.dim("m")) * u128::from(c.dim("n")) * u128::from(c.dim("k")),
    attrs: &[
        AttrDecl { name: "alpha", kind: AttrType::Float(1.0), doc: "factor of the product" },
        AttrDecl { name: "beta", kind: AttrType::Float(0.0), doc: "factor of C" },
        AttrDecl { name: "transA", kind: AttrType::Int(0), doc: "1: A is stored k by m" },
        AttrDecl { name: "transB", kind: AttrType::Int(0), doc: "1: B is stored n by k" },
    ],
    dtypes: DTYPES,
    operands: &[
        Operand::input("A"),
        Operand::input("B"),
        Operand { name: "C", role: Role::InOut, dtype: DTypeRule::By(products::result) },
    ],
    shapes,
    bind,
    cost: plan_native::gemm_cost,
    oracle,
    element: Some(products::element),
    // k products and k - 1 additions in any order, alpha, beta and the last addition.
    whole: Some(freivalds::products),
    tolerance: Tolerance::Gamma(|c| c.dim("k") + 3),
    domain: &[Range(-1.0, 1.0), Range(-1.0, 1.0), Range(-1.0, 1.0)],
    grad: Grad::None("dA and dB are gemms, dC needs mul_scalar, which the table does not have yet"),
    kernels: &[
        Kernel {
            variant: "cublas",
            body: Body::Routine(Routine::Gemm),
            dtypes: &[DType::F32, DType::F64, DType::F16, DType::BF16],
            dtypes_why: "cuBLAS has no i32 product with i32 accumulation, and is not asked for that of i8",
            needs: Needs { library: Some(Library::Cublas), ..Needs::NONE },
            plan: plan_cuda::gemm_cublas,
            ..BASE
        },
        Kernel {
            variant: "mma",
            body: Body::Cuda(MMA_TEXT),
            dtypes: &[DType::BF16],
            dtypes_why: "mma.sync.m16n8k16 multiplies bf16",
            needs: Needs {
                features: &[Feature::TensorBf16],
                compute_capability: Some((8, 0)),
                // Two tiles of 64 by 32 bf16 with 8 elements of padding per line, counted in f32.
                local_elements: 2 * 64 * (32 + 8) / 2,
                group: 128,
                ..Needs::NONE
            },
            plan: plan_cuda::gemm_mma,
            ..BASE
        },
        Kernel {
            variant: "cpu-tile",
            body: Body::Opencl(BLOCKS_TEXT),
            needs: plan_c::BLOCK_NEEDS,
            plan: plan_c::gemm_cpu_tile,
            ..BASE
        },
        Kernel {
            variant: "tiled128",
            body: Body::C(C_TEXT),
            needs: tiles(128, 128, 16, 256),
            plan: plan_c::gemm_tiled128,
            ..BASE
        },
        Kernel {
            variant: "tiled64",
            body: Body::C(C_TEXT),
            needs: tiles(64, 64, 16, 256),
            plan: plan_c::gemm_tiled64,
            ..BASE
        },
        Kernel {
            variant: "tiled16",
            body: Body::C(C_TEXT),
            needs: tiles(16, 16, 16, 256),
            plan: plan_c::gemm_tiled16,
            ..BASE
        },
        Kernel {
            variant: "tiled",
            body: Body::Wgsl(WGSL_TEXT),
            dtypes: WGSL_DTYPES,
            dtypes_why: "WGSL stores no integers below 32 bits",
            needs: Needs { local_elements: 2 * 16 * 64, group: 256, ..Needs::NONE },
            plan: plan_wgsl::gemm,
            ..BASE
        },
        plan_blas::gemm(BASE),
        BASE,
        Kernel { variant: "naive", body: Body::Native(matmul::gemm_naive), only_when_named: true, ..BASE },
    ],
    cases,
    gaps: &[Gap::Shape(ShapeClass::ManyGroups, "same text and index arithmetic as bmm")],
};

fn shapes(case: &Case) -> Result<Vec<Vec<u64>>> {
    let (m, n, k) = (case.dim("m"), case.dim("n"), case.dim("k"));
    host::count(&[m, k])?;
    host::count(&[k, n])?;
    host::count(&[m, n])?;
    for name in ["transA", "transB"] {
        if !(0..=1).contains(&case.attrs.int(name, 0)) {
            return Err(Error::new(Code::BadArgument, format!("{name} must be 0 or 1")));
        }
    }
    if !case.dtype.is_float() {
        for name in ["alpha", "beta"] {
            let v = case.attrs.float(name, 0.0);
            if !DType::I32.holds(v) {
                return Err(Error::new(Code::BadArgument, format!("{name} = {v} does not fit i32")));
            }
        }
    }
    let flip = |name: &str, r: u64, c: u64| if case.attrs.int(name, 0) == 1 { vec![c, r] } else { vec![r, c] };
    Ok(vec![flip("transA", m, k), flip("transB", k, n), vec![m, n]])
}

fn bind(shapes: &[Vec<u64>], attrs: &Attrs) -> Result<Binding> {
    let wrong = |why: String| Error::new(Code::ShapeMismatch, why);
    let (a, b, c) = match shapes {
        [a, b] => (a, b, None),
        [a, b, c] => (a, b, Some(c)),
        _ => return Err(wrong(format!("{} operands given; A, B and optionally C are expected", shapes.len()))),
    };
    if a.len() != 2 || b.len() != 2 {
        return Err(wrong(format!("A {a:?} and B {b:?} must be matrices")));
    }
    let (ta, tb) = (attrs.int("transA", 0) == 1, attrs.int("transB", 0) == 1);
    let (m, k) = if ta { (a[1], a[0]) } else { (a[0], a[1]) };
    let (kb, n) = if tb { (b[1], b[0]) } else { (b[0], b[1]) };
    if k != kb {
        return Err(wrong(format!("op(A) is {m} by {k}, op(B) is {kb} by {n}: the inner sizes differ")));
    }
    match c {
        Some(c) if *c != [m, n] => return Err(wrong(format!("C is {c:?}, [{m}, {n}] is expected"))),
        None if attrs.float("beta", 0.0) != 0.0 => return Err(wrong("beta is not 0, so C must be given".into())),
        _ => {}
    }
    Ok(Binding { dims: vec![m, n, k], attrs: attrs.clone(), ..Binding::default() })
}

fn oracle(case: &Case, x: &[Vec<Exact>]) -> Vec<Reference> {
    products::every(case, |batch, i, j| products::one(case, &|t, at| x[t][at as usize], batch, i, j))
}

fn cases(tier: Tier) -> Vec<CaseSpec> {
    let plain = Attrs::new;
    let f = |name: &str, v: f64| Attrs::new().with(name, Attr::Float(v));
    let t = |a: i64, b: i64| Attrs::new().with("transA", Attr::Int(a)).with("transB", Attr::Int(b));
    let both = f("alpha", 2.0).with("beta", Attr::Float(-3.0));
    let mut list = vec![
        ([0, 3, 4], plain(), Fill::Uniform),
        ([3, 4, 0], plain(), Fill::Uniform),
        ([1, 1, 1], plain(), Fill::Uniform),
        ([17, 33, 65], plain(), Fill::Uniform),
        ([64, 64, 64], plain(), Fill::Integer),
        ([65, 63, 31], both.clone(), Fill::Uniform),
        ([33, 18, 20], t(1, 0), Fill::Uniform),
        ([20, 33, 18], t(0, 1), Fill::Uniform),
        ([31, 29, 37], t(1, 1), Fill::Integer),
        ([129, 127, 70], plain(), Fill::Uniform),
        // C is full of special values here and must not be read.
        ([9, 11, 5], plain(), Fill::Special),
    ];
    if tier == Tier::Full {
        list.extend([
            ([1, 257, 129], plain(), Fill::Uniform),
            ([257, 1, 129], plain(), Fill::Uniform),
            ([64, 128, 1], plain(), Fill::Uniform),
            ([128, 128, 1], plain(), Fill::Uniform),
            ([128, 128, 128], plain(), Fill::Positive),
            ([255, 256, 257], plain(), Fill::Integer),
            ([15, 16, 17], t(1, 1), Fill::Uniform),
            ([63, 65, 130], f("alpha", -2.0), Fill::Uniform),
            ([3, 4, 0], both, Fill::Uniform),
            ([16, 16, 2000], plain(), Fill::Positive),
            ([17, 13, 11], plain(), Fill::Constant),
            ([33, 31, 40], plain(), Fill::Wide),
            ([9, 70, 64], t(1, 0), Fill::Cancelling),
            ([20, 21, 22], t(0, 1), Fill::Onehot),
            ([5, 7, 3], f("beta", 1.0), Fill::Special),
            ([11, 6, 2], t(1, 1), Fill::Wide),
            ([1, 2, 40_001], plain(), Fill::Integer),
            ([600_001, 1, 1], plain(), Fill::Uniform),
        ]);
    }
    list.into_iter().map(|(d, attrs, fill)| CaseSpec { dims: d.to_vec(), attrs, fill }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::{Backend, DeviceClass, DeviceInfo, Lang};
    use crate::kernel::choose;

    /// A card as a test needs it; every test changes what it is about.
    fn card() -> DeviceInfo {
        DeviceInfo {
            id: "cuda:0".into(),
            uid: "GPU-test".into(),
            name: "test card".into(),
            vendor: "NVIDIA".into(),
            backend: Backend::Cuda,
            class: DeviceClass::Discrete,
            driver: "0".into(),
            api: "CUDA".into(),
            langs: vec![Lang::Cuda],
            memory_bytes: Some(8 << 30),
            max_alloc_bytes: 8 << 30,
            max_binding_bytes: 8 << 30,
            max_group: 1024,
            max_groups: [i32::MAX as u64, 65535, 65535],
            local_bytes: 48 * 1024,
            compute_units: 80,
            compute_capability: Some((9, 0)),
            dtypes: DType::ALL.to_vec(),
            features: vec![Feature::Fp64, Feature::Int64, Feature::TensorBf16],
            libraries: vec![(Library::Cublas, "12.9".into())],
            unified_memory: false,
            cache_bytes: None,
            theoretical: None,
            facts: Default::default(),
            notes: vec![],
        }
    }

    fn pick(dtype: DType, info: &DeviceInfo) -> (String, String) {
        let case = GEMM.case(dtype, &[256, 256, 256], Attrs::new(), Fill::Uniform).unwrap();
        let choice = choose(GEMM.kernels, &case, info, None).unwrap();
        (choice.kernel.variant.to_string(), choice.reason)
    }

    /// The plan interface: one op, three ways to compute it, chosen by what the device has.
    #[test]
    fn the_choice_and_its_reason_follow_the_device() {
        let mut info = card();
        assert_eq!(pick(DType::BF16, &info), ("cublas".into(), "cublas: first choice".into()));

        info.libraries.clear();
        let (variant, why) = pick(DType::BF16, &info);
        assert_eq!(variant, "mma");
        assert!(why.contains("Cublas was not found"), "{why}");

        info.features.retain(|f| *f != Feature::TensorBf16);
        let (variant, why) = pick(DType::BF16, &info);
        assert_eq!(variant, "tiled128");
        assert!(why.contains("lacks TensorBf16"), "{why}");

        info.local_bytes = 16 * 1024;
        let (variant, why) = pick(DType::BF16, &info);
        assert_eq!(variant, "tiled64");
        assert!(why.contains("local memory, the device has 16384 B"), "{why}");

        info.local_bytes = 0;
        let case = GEMM.case(DType::F32, &[8, 8, 8], Attrs::new(), Fill::Uniform).unwrap();
        let e = choose(GEMM.kernels, &case, &info, None).unwrap_err();
        assert!(e.to_string().contains("tiled16 (needs"), "{e}");
    }

    /// Many products are one call of the library, whose last parameter is their number; those without summands are left to
    /// another variant, and so is a card without the library.
    #[test]
    fn many_products_are_one_call_of_the_library() {
        let bmm = crate::op::find("bmm").unwrap();
        let mut info = card();
        let case = |dtype, dims: &[u64]| bmm.case(dtype, dims, Attrs::new(), Fill::Uniform).unwrap();
        let product = case(DType::F16, &[7, 33, 65, 17]);
        let choice = choose(bmm.kernels, &product, &info, None).unwrap();
        assert_eq!((choice.kernel.variant, choice.plan.steps.len()), ("cublas", 1));
        let step = &choice.plan.steps[0];
        assert_eq!(step.params.iter().take(3).map(|p| p.u64()).collect::<Vec<_>>(), [33, 65, 17]);
        assert_eq!((step.params.len(), step.params[7].u64(), step.writes.clone()), (8, 7, vec![false, false, true]));
        let empty = choose(bmm.kernels, &case(DType::F32, &[7, 33, 65, 0]), &info, None).unwrap();
        assert_eq!(empty.kernel.variant, "tiled64", "{}", empty.reason);
        info.libraries.clear();
        let choice = choose(bmm.kernels, &product, &info, None).unwrap();
        assert!(
            choice.kernel.variant == "tiled64" && choice.reason.contains("Cublas was not found"),
            "{}",
            choice.reason
        );
    }

    #[test]
    fn the_naive_variant_runs_only_when_named() {
        let mut info = card();
        info.langs = vec![Lang::Native];
        let case = GEMM.case(DType::F32, &[8, 8, 8], Attrs::new(), Fill::Uniform).unwrap();
        assert_eq!(choose(GEMM.kernels, &case, &info, None).unwrap().kernel.variant, "blocked");
        assert_eq!(choose(GEMM.kernels, &case, &info, Some("naive")).unwrap().kernel.variant, "naive");
        let e = choose(GEMM.kernels, &case, &info, Some("fastest")).unwrap_err();
        assert!(e.to_string().contains("known: blas blocked naive"), "{e}");
    }

    /// BLAS lets a library leave the operands alone then.
    #[test]
    fn no_library_multiplies_by_nothing() {
        let info = card();
        let attrs = Attrs::new().with("alpha", Attr::Float(0.0));
        let case = GEMM.case(DType::F32, &[64, 64, 64], attrs, Fill::Special).unwrap();
        let choice = choose(GEMM.kernels, &case, &info, None).unwrap();
        assert_ne!(choice.kernel.variant, "cublas", "{}", choice.reason);
        assert!(choose(GEMM.kernels, &case, &info, Some("cublas")).is_err());
    }
}
