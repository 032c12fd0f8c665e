//! The number rules (integers wrap, x / 0 = x, NaN propagates, ...) as macros of the common C dialect, by dtype.
//!
//! Arguments are plain names and may be evaluated several times. Signed overflow is undefined in C, so sums and products
//! of integers are computed in an unsigned type of at least 32 bits, which has the same bits.

use crate::base::DType;

/// `N_ADD N_SUB N_MUL N_DIV N_POW N_MAX N_MIN` of two numbers, `N_NEG N_ABS N_SIGN N_ROOT` of one; `SCALAR`, the type of
/// a scalar argument.
pub(super) fn defines(dtype: DType) -> Vec<(String, String)> {
    let text = match (dtype.is_float(), dtype.is_signed()) {
        (true, _) => FLOAT,
        (_, true) => SIGNED,
        _ => UNSIGNED,
    };
    let bits = if dtype.size() == 8 { "u64" } else { "u32" };
    let mut out = vec![("N_BITS".to_string(), bits.to_string()), ("SCALAR".to_string(), scalar(dtype).to_string())];
    out.extend(text.iter().map(|(name, value)| ((*name).to_string(), (*value).to_string())));
    if !dtype.is_float() {
        out.extend(INTEGER.iter().map(|(name, value)| ((*name).to_string(), (*value).to_string())));
    }
    out
}

/// The dtype's arithmetic, with the short integers as 32 bits (`Param::scalar`).
fn scalar(dtype: DType) -> &'static str {
    match dtype.compute() {
        DType::I8 | DType::I16 => "i32",
        DType::U8 | DType::U16 => "u32",
        other => other.name(),
    }
}

/// C's pow follows F.10.4.4 of C99 in both languages. Of equal numbers N_MAX and N_MIN give the first.
const FLOAT: &[(&str, &str)] = &[
    ("N_ADD(x, b)", "((x) + (b))"),
    ("N_SUB(x, b)", "((x) - (b))"),
    ("N_MUL(x, b)", "((x) * (b))"),
    ("N_DIV(x, b)", "((x) / (b))"),
    ("N_POW(x, b)", "pow((x), (b))"),
    ("N_MAX(x, b)", "((x) >= (b) || IS_NAN(x) ? (x) : (b))"),
    ("N_MIN(x, b)", "((x) <= (b) || IS_NAN(x) ? (x) : (b))"),
    ("N_NEG(x)", "(-(x))"),
    ("N_ABS(x)", "fabs(x)"),
    ("N_SIGN(x)", "((x) > (ACC)0 ? (ACC)1 : (x) < (ACC)0 ? (ACC)-1 : IS_NAN(x) ? (x) : (ACC)0)"),
    ("N_ROOT(x)", "sqrt(x)"),
];

const INTEGER: &[(&str, &str)] = &[
    ("N_ADD(x, b)", "((ACC)((N_BITS)(x) + (N_BITS)(b)))"),
    ("N_SUB(x, b)", "((ACC)((N_BITS)(x) - (N_BITS)(b)))"),
    ("N_MUL(x, b)", "((ACC)((N_BITS)(x) * (N_BITS)(b)))"),
    ("N_MAX(x, b)", "((x) >= (b) ? (x) : (b))"),
    ("N_MIN(x, b)", "((x) <= (b) ? (x) : (b))"),
];

const SIGNED: &[(&str, &str)] = &[
    ("N_NEG(x)", "((ACC)((N_BITS)0 - (N_BITS)(x)))"),
    ("N_DIV(x, b)", "((b) == 0 ? (x) : (b) == -1 ? N_NEG(x) : (ACC)((x) / (b)))"),
    ("N_UNIT(x, b)", "((x) == 1 || (x) == -1 && ((b) & 1) == 0 ? 1 : (x) == -1 ? -1 : 0)"),
    ("N_POW(x, b)", "((ACC)((b) < 0 ? (u64)(i64)N_UNIT(x, b) : whole_power((u64)(i64)(x), (u64)(i64)(b))))"),
    ("N_ABS(x)", "((x) < 0 ? N_NEG(x) : (x))"),
    ("N_SIGN(x)", "((x) > 0 ? 1 : (x) < 0 ? -1 : 0)"),
    ("N_ROOT(x)", "((ACC)whole_root((x) > 0 ? (u64)(x) : (u64)0))"),
];

const UNSIGNED: &[(&str, &str)] = &[
    ("N_DIV(x, b)", "((b) == 0 ? (x) : (ACC)((x) / (b)))"),
    ("N_POW(x, b)", "((ACC)whole_power((u64)(x), (u64)(b)))"),
    ("N_SIGN(x)", "((x) > 0 ? 1 : 0)"),
    ("N_ROOT(x)", "((ACC)whole_root((u64)(x)))"),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_dtype_has_every_rule_once() {
        for dtype in DType::ALL {
            let names: Vec<String> = defines(dtype).into_iter().map(|(n, _)| n).collect();
            for rule in ["ADD", "SUB", "MUL", "DIV", "POW", "MAX", "MIN", "SIGN", "ROOT"] {
                assert_eq!(names.iter().filter(|n| n.starts_with(&format!("N_{rule}("))).count(), 1, "{dtype} {rule}");
            }
            assert_eq!(names.iter().any(|n| n.starts_with("N_ABS(")), dtype.is_float() || dtype.is_signed(), "{dtype}");
        }
    }
}
