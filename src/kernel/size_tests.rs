//! Sizes that plans take and refuse, asked of devices that exist nowhere.

use super::*;
use crate::base::{Attr, Attrs, DeviceClass, Fill};

type Planned = fn(&Kernel, &Case, &DeviceInfo) -> Result<Plan>;

fn gpu(binding: u64) -> DeviceInfo {
    DeviceInfo { max_binding_bytes: binding, ..DeviceInfo::ordinary_gpu() }
}

fn case(op: &'static str, dtype: DType, dims: &[(&'static str, u64)], ints: &[(&'static str, [i64; 2])]) -> Case {
    let attrs = ints.iter().fold(Attrs::new(), |a, (name, v)| a.with(name, Attr::Ints(v.to_vec())));
    Case { op, dtype, dims: dims.to_vec(), attrs, fill: Fill::Uniform }
}

fn plan(planned: Planned, c: &Case, info: &DeviceInfo) -> Result<Plan> {
    let kernel = Kernel {
        variant: "any",
        body: Body::C(""),
        dtypes: &[],
        dtypes_why: "",
        expr: "",
        needs: Needs::NONE,
        only_when_named: false,
        plan: planned,
    };
    planned(&kernel, c, info)
}

/// The type of indices in the C dialect.
fn index(planned: Planned, c: &Case) -> String {
    let plan = plan(planned, c, &gpu(8 << 30)).unwrap();
    plan.steps[0].defines.iter().find(|(name, _)| name == "INDEX").unwrap().1.clone()
}

/// Pooling has as many filters as channels, and no tensor of them: the last pooling of ResNet-50, and one of many channels.
#[test]
fn pooling_is_limited_by_its_images() {
    let last = [("n", 1), ("c", 2048), ("h", 7), ("w", 7)];
    let seven = [("kernel_shape", [7, 7])];
    for (op, planned) in [
        ("avgpool2d", plan_wgsl_pool::mean as Planned),
        ("avgpool2d_bwd", plan_wgsl_pool::mean_bwd),
        ("maxpool2d", plan_wgsl_pool::max),
        ("maxpool2d_bwd", plan_wgsl_pool::max_bwd),
    ] {
        let c = case(op, DType::F32, &last, &seven);
        plan(planned, &c, &gpu(128 << 20)).unwrap();
        assert!(plan(planned, &c, &gpu(7 * 7 * 2048 * 4 - 4)).is_err(), "{op}: an image that does not fit");
    }
    let many = case("avgpool2d", DType::F32, &[("n", 1), ("c", 65_536), ("h", 2), ("w", 2)], &[]);
    assert_eq!(index(plan_pool::mean_c, &many), "u32");
    // 2^31 pixels; a window of 2^32, most of it padding, which a mean divides by.
    let large = case("avgpool2d", DType::F16, &[("n", 2), ("c", 1), ("h", 1 << 15), ("w", 1 << 15)], &[]);
    assert_eq!(index(plan_pool::mean_c, &large), "u64");
    let wide = [("kernel_shape", [65_536; 2]), ("pads", [65_535; 2]), ("strides", [65_536; 2])];
    let wide = case("avgpool2d", DType::F32, &[("n", 1), ("c", 1), ("h", 1), ("w", 1)], &wide);
    assert_eq!(index(plan_pool::mean_c, &wide), "u64");
    // Coordinates leave 31 bits though both images are small.
    let steps = [("kernel_shape", [1, 1]), ("strides", [1, i64::from(i32::MAX)])];
    let far = case("avgpool2d", DType::F32, &[("n", 1), ("c", 1), ("h", 1), ("w", 9)], &steps);
    assert_eq!(plan(plan_wgsl_pool::mean, &far, &gpu(128 << 20)).unwrap_err().code(), Code::AllocTooLarge);
}

/// Whatever one binding covers: a plan in WGSL says no, or all its scratch fits.
#[test]
fn scratch_fits_a_binding_or_there_is_no_plan() {
    let results = [("outer", 1024), ("n", 2), ("inner", 1)];
    let cases: [(Planned, Case); 10] = [
        (plan_wgsl_norm::softmax, case("softmax", DType::F16, &[("m", 16), ("n", 64)], &[])),
        (plan_wgsl_norm::layernorm, case("layernorm", DType::F32, &[("m", 256), ("n", 1)], &[])),
        (
            plan_wgsl_norm::batchnorm_train,
            case("batchnorm_train", DType::F32, &[("n", 1), ("c", 256), ("inner", 1)], &[]),
        ),
        (plan_wgsl_reduce::sum, case("sum", DType::F16, &results, &[])),
        (plan_wgsl_reduce::mean, case("mean", DType::F32, &[("outer", 1024), ("n", 1), ("inner", 1)], &[])),
        (plan_wgsl_reduce::max, case("max", DType::F16, &results, &[])),
        (plan_wgsl_reduce::argmax, case("argmax", DType::F64, &results, &[])),
        (plan_wgsl_reduce::dot, case("dot", DType::F16, &[("n", 2048)], &[])),
        (plan_bias_wgsl::sum, case("bias_add_bwd", DType::BF16, &[("n", 2), ("c", 1023), ("inner", 1)], &[])),
        (plan_wgsl::gemm, case("gemm", DType::F16, &[("m", 31), ("n", 33), ("k", 2)], &[])),
    ];
    for (planned, c) in cases {
        let mut took = false;
        // Devices tell of multiples of 16 bytes.
        for binding in (16..40_000).step_by(16) {
            let Ok(plan) = plan(planned, &c, &gpu(binding)) else { continue };
            took = true;
            assert!(plan.scratch.iter().all(|s| *s <= binding), "{c}: {:?} in {binding}", plan.scratch);
        }
        assert!(took, "{c}: never planned");
    }
}

/// lavapipe ends an invocation's loops after 65,535 iterations. For dx all of its 16 sums may be NaN, and are made again.
#[test]
fn convolutions_as_products_stay_below_lavapipes_iterations() {
    let dims = [("n", 1), ("c", 512), ("h", 9), ("w", 9), ("co", 6000), ("kh", 3), ("kw", 3)];
    let software = DeviceInfo { class: DeviceClass::Software, ..gpu(8 << 30) };
    for (op, planned, sums_again) in [
        ("conv2d", plan_wgsl_window::forward_tiled as Planned, 0),
        ("conv2d_bwd_data", plan_wgsl_window::data_tiled, 16),
        ("conv2d_bwd_weight", plan_wgsl_window::weight_tiled, 0),
    ] {
        let c = case(op, DType::F32, &dims, &[]);
        let plan = plan(planned, &c, &software).unwrap();
        let mut done = 0;
        for step in &plan.steps {
            let (Param::U64(first), Param::U64(end)) = (step.params[0], step.params[1]) else { panic!("{step:?}") };
            assert_eq!(first, done);
            let terms = end - first;
            // Outer loop, inner loop, sums that are made again, results.
            let iterations = terms.div_ceil(16) * 17 + sums_again * terms + 4 * 4;
            assert!(iterations < 65_535, "{op}: {iterations} for {terms} terms");
            done = end;
        }
        let terms = if op == "conv2d_bwd_data" {
            6000 * 9
        } else if op == "conv2d" {
            512 * 9
        } else {
            7 * 7
        };
        assert_eq!(done, terms, "{op}");
    }
}
