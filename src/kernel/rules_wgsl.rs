//! How WGSL's elementwise kernels hold a dtype: the type of a buffer's element, the type of the arithmetic, and the texts
//! with the number rules (`n_neg n_abs n_sign n_sqrt n_max n_min n_pow`) and the conversions.

use crate::base::DType;

const FULL: &str = include_str!("../../kernels/codec_full.wgsl");
const F32: &str = include_str!("../../kernels/codec_f32.wgsl");
const HALF: &str = include_str!("../../kernels/codec_half.wgsl");
const PAIR_FULL: &str = include_str!("../../kernels/codec_pair_full.wgsl");
const PAIR_HALF: &str = include_str!("../../kernels/codec_pair_half.wgsl");
const HALF_F16: &str = include_str!("../../kernels/half_f16.wgsl");
const HALF_BF16: &str = include_str!("../../kernels/half_bf16.wgsl");
const RULES_F32: &str = include_str!("../../kernels/rules_f32.wgsl");
const RULES_F64: &str = include_str!("../../kernels/rules_f64.wgsl");
const RULES_SIGNED: &str = include_str!("../../kernels/rules_signed.wgsl");
const RULES_UNSIGNED: &str = include_str!("../../kernels/rules_unsigned.wgsl");

/// Conversions of the two 16-bit floats; `None` for other dtypes.
pub(super) fn half_text(dtype: DType) -> Option<&'static str> {
    match dtype {
        DType::F16 => Some(HALF_F16),
        DType::BF16 => Some(HALF_BF16),
        _ => None,
    }
}

/// Substitutions of one elementwise text; what a value names is filled in by a later one.
pub(super) fn defines(dtype: DType, guard: bool) -> Vec<(&'static str, String)> {
    let rules = match dtype {
        DType::F64 => RULES_F64,
        d if d.is_float() => RULES_F32,
        d if d.is_signed() => RULES_SIGNED,
        _ => RULES_UNSIGNED,
    };
    let (codec, pair) = match (half_text(dtype), dtype, guard) {
        (Some(half), _, _) => (format!("{half}\n{HALF}"), format!("{half}\n{PAIR_HALF}")),
        (_, DType::F32, true) => (F32.to_string(), PAIR_FULL.to_string()),
        _ => (FULL.to_string(), PAIR_FULL.to_string()),
    };
    let store = if half_text(dtype).is_some() { "u32" } else { dtype.name() };
    vec![
        ("CODEC", format!("{rules}\n{codec}")),
        ("PAIR", format!("{rules}\n{pair}")),
        ("GUARD", guard.to_string()),
        ("STORE", store.to_string()),
        ("ACC", dtype.compute().name().to_string()),
        // Twice the highest bit of a square root.
        ("TOP", (8 * dtype.size()).saturating_sub(2).to_string()),
    ]
}

/// Words that hold `n` elements.
pub(super) fn words(dtype: DType, n: u64) -> u64 {
    if half_text(dtype).is_some() { n.div_ceil(2) } else { n }
}
