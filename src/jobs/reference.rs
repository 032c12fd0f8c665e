//! The op table and the limits as Markdown, for docs/ops.md and docs/tolerances.md (tests/docs.rs compares them).

use std::fmt::Write as _;

use crate::base::AttrType;
use crate::op::limits::LIMITS;
use crate::op::{self, Gap, OpDesc, Role};

/// One section per op: what it computes, operands, attributes, sizes, dtypes, kernels, tolerance, what is not covered.
pub fn ops() -> String {
    let mut out = String::new();
    let _ = writeln!(out, "{} ops. `n` in `--sizes n` is in the op's unit.\n", op::all().count());
    for op in op::all() {
        section(&mut out, op);
    }
    out
}

fn section(out: &mut String, op: &OpDesc) {
    let _ = writeln!(out, "## {}\n\n{}\n", op.name, op.doc);
    let names = |written: bool| {
        let list: Vec<&str> = op.operands.iter().filter(|o| (o.role != Role::In) == written).map(|o| o.name).collect();
        if list.is_empty() { "none".to_string() } else { list.join(", ") }
    };
    let both: Vec<&str> = op.operands.iter().filter(|o| o.role == Role::InOut).map(|o| o.name).collect();
    let _ = write!(out, "- reads {}; writes {}", names(false), names(true));
    let _ = if both.is_empty() { writeln!(out) } else { writeln!(out, " (in place: {})", both.join(", ")) };
    let dtypes: Vec<&str> = op.dtypes.iter().map(|d| d.name()).collect();
    let _ = writeln!(out, "- dtypes {}", dtypes.join(" "));
    let _ = writeln!(out, "- sizes {} (`--shape {}`); unit {}", op.dims.join(", "), op.dims.join("x"), op.unit.name());
    if let Some(onnx) = op.onnx {
        let _ = writeln!(out, "- ONNX {onnx}");
    }
    for a in op.attrs {
        let default = match a.kind {
            AttrType::Int(v) => v.to_string(),
            AttrType::Float(v) => v.to_string(),
            AttrType::Ints => "empty".into(),
            AttrType::Word(list) => list.join(" or "),
        };
        let _ = writeln!(out, "- `{}` ({default}): {}", a.name, a.doc);
    }
    let families: Vec<String> = op.families.iter().map(|f| format!("{}: {}", f.name, f.doc)).collect();
    let _ = writeln!(out, "- thresholds for {}", families.join("; "));
    let kernels: Vec<String> = op.kernels.iter().map(|k| format!("{} ({:?})", k.variant, k.body)).collect();
    let _ = writeln!(out, "- kernels {}", kernels.join(", "));
    let _ = writeln!(out, "- tolerance {}", op.tolerance.words());
    for gap in op.gaps {
        let _ = match gap {
            Gap::Shape(class, why) => writeln!(out, "- not in the full tier: {} shapes ({why})", class.name()),
            Gap::Data(fill, why) => writeln!(out, "- not in the full tier: {fill} data ({why})"),
        };
    }
    out.push('\n');
}

/// The published limits as a table.
pub fn limits() -> String {
    let mut out = String::from("| function | language | dtype | limit and source |\n|---|---|---|---|\n");
    for r in LIMITS {
        let words = r.words();
        let limit = words.strip_prefix(r.function).map_or(words.as_str(), |w| w.trim_start_matches([':', ' ']));
        let _ = writeln!(out, "| {} | {:?} | {} | {} |", r.function, r.lang, r.dtype, limit.replace('|', "\\|"));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_op_has_a_section_with_its_dtypes_and_tolerance() {
        let text = ops();
        for op in op::all() {
            let at = text.find(&format!("## {}\n", op.name)).expect(op.name);
            let section = &text[at..at + text[at + 3..].find("\n## ").unwrap_or(text.len() - at - 3)];
            assert!(section.contains("- dtypes ") && section.contains("- tolerance "), "{section}");
        }
        assert_eq!(limits().lines().count(), LIMITS.len() + 2);
    }
}
