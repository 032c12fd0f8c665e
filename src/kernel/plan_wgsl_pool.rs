//! Plans of pooling in WGSL.

use crate::base::{Case, Code, DType, DeviceInfo, Error, Result};

use super::plan_pool::{Form, include, largest, sizes};
use super::plan_wgsl_window::layout;
use super::plan_window::GROUP;
use super::window::{Window, product};
use super::{Arg, Kernel, Param, Plan, Step, plan_wgsl, spread_groups};

/// Loop iterations that one invocation may make, with room for the outer loops (lavapipe ends all at 65,535).
const ITERATIONS: u64 = 60_000;

const PUT_FULL: &str = "if (i < p.results) { result[i] = {{VALUE}}(i); }";
const PUT_HALF: &str = "if (2u * i < p.results) {
        var word = narrow({{VALUE}}(2u * i));
        if (2u * i + 1u < p.results) { word |= narrow({{VALUE}}(2u * i + 1u)) << 16u; }
        result[i] = word;
    }";
const MAX_FULL: &str = "if (i < p.results) { y[i] = x[pick(i)]; }";
const MAX_HALF: &str = "if (2u * i < p.results) {
        var word = half_bits(pick(2u * i));
        if (2u * i + 1u < p.results) { word |= half_bits(pick(2u * i + 1u)) << 16u; }
        y[i] = word;
    }";

/// Buffers of the texts with arithmetic: the first operand and, as number `at`, the result.
fn storage(dtype: DType, at: usize) -> String {
    let declare = |word: &str| {
        format!(
            "@group(0) @binding(0) var<storage, read> a: array<{word}>;\n\
             @group(0) @binding({at}) var<storage, read_write> result: array<{word}>;\n"
        )
    };
    match plan_wgsl::half_text(dtype) {
        Some(half) => format!(
            "{half}\n{}fn load(i: u32) -> f32 {{ return widen((a[i / 2u] >> ((i & 1u) * 16u)) & 0xffffu); }}\n",
            declare("u32")
        ),
        None => {
            let word = dtype.name();
            format!("{}fn load(i: u32) -> {word} {{ return a[i]; }}\n", declare(word))
        }
    }
}

/// WGSL: sizes, whether the padding counts, number of results. An invocation per word of the result.
fn wgsl(case: &Case, info: &DeviceInfo, form: Form) -> Result<Plan> {
    let w = Window::pool(case)?;
    let results = form.results(&w);
    if results == 0 {
        return Ok(Plan::default());
    }
    let half = plan_wgsl::half_text(case.dtype).is_some();
    let per_word = if half { 2 } else { 1 };
    // A pixel lies in at most as many windows as a window has pixels.
    let turns = w.kh.saturating_mul(w.kw + 1).saturating_mul(per_word);
    if turns > ITERATIONS {
        let why = format!("a window of {} by {} takes an invocation more than {ITERATIONS} turns", w.kh, w.kw);
        return Err(Error::new(Code::OpUnsupported, why));
    }
    let images = [product(&w.x()), product(&w.y())];
    plan_wgsl::fit(info, &[(images[0], case.dtype), (images[1], case.dtype)])?;
    plan_wgsl::countable(largest(&w))?;
    if matches!(form, Form::Max | Form::MaxBack) {
        plan_wgsl::fit(info, &[(images[1], DType::I32)])?;
    }
    let (reads, writes) = form.operands();
    let items = GROUP.to_string();
    let mut defines: Vec<(&str, String)> = layout(&w).iter().map(|(name, text)| (*name, (*text).to_string())).collect();
    defines.push(("ITEMS", items));
    if form == Form::Max {
        let (word, key) = match case.dtype {
            DType::F64 => ("vec2<u32>", "float_key(x[i].y, x[i].x, 0x7ff00000u)"),
            DType::F32 => ("u32", "float_key(x[i], 0u, 0x7f800000u)"),
            DType::F16 => ("u32", "float_key(half_bits(i) << 16u, 0u, 0x7c000000u)"),
            DType::BF16 => ("u32", "float_key(half_bits(i) << 16u, 0u, 0x7f800000u)"),
            _ => ("u32", "vec2<u32>(x[i] ^ 0x80000000u, 0u)"),
        };
        let bits = if half { "(x[i / 2u] >> ((i & 1u) * 16u)) & 0xffffu" } else { "0u" };
        let put = if half { MAX_HALF } else { MAX_FULL };
        defines.extend([("WORD", word.into()), ("KEY", key.into()), ("HALF", bits.into()), ("PUT", put.into())]);
    } else {
        let value = match form {
            Form::Mean => "mean",
            Form::MeanBack => "mean_bwd",
            _ => "max_bwd",
        };
        let put = if half { PUT_HALF } else { PUT_FULL };
        defines.extend([
            ("STORAGE", storage(case.dtype, reads)),
            ("LAST", (reads + writes).to_string()),
            ("ACC", case.dtype.compute().name().into()),
            ("PUT", put.replace("{{VALUE}}", value)),
        ]);
    }
    let defines: Vec<(&str, &str)> = defines.iter().map(|(n, v)| (*n, v.as_str())).collect();
    let mut params = sizes(&w);
    params.extend([Param::U64(include(case)), Param::U64(results)]);
    let entry = if form == Form::Max { "maxpool2d" } else { "pool" };
    let groups = spread_groups(results.div_ceil(per_word).div_ceil(GROUP), info)?;
    Ok(plan_wgsl::one(Step {
        group: [GROUP as u32, 1, 1],
        args: (0..reads + writes).map(Arg::Operand).collect(),
        writes: (0..reads + writes).map(|i| i >= reads).collect(),
        params,
        cost: form.cost(case, &w),
        ..plan_wgsl::step(case, entry, groups, &defines)
    }))
}

/// maxpool2d.
pub fn max(_: &Kernel, case: &Case, info: &DeviceInfo) -> Result<Plan> {
    wgsl(case, info, Form::Max)
}
/// avgpool2d.
pub fn mean(_: &Kernel, case: &Case, info: &DeviceInfo) -> Result<Plan> {
    wgsl(case, info, Form::Mean)
}
/// maxpool2d_bwd.
pub fn max_bwd(_: &Kernel, case: &Case, info: &DeviceInfo) -> Result<Plan> {
    wgsl(case, info, Form::MaxBack)
}
/// avgpool2d_bwd.
pub fn mean_bwd(_: &Kernel, case: &Case, info: &DeviceInfo) -> Result<Plan> {
    wgsl(case, info, Form::MeanBack)
}
