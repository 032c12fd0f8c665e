//! The matrix of `devices --ops` for a terminal: one row per op, one column per device, and below it each reason once with
//! what it concerns.

use std::collections::{BTreeMap, BTreeSet};

use crate::base::record::SupportRecord;
use crate::base::{DType, Record};

/// Longest list of dtypes in a cell; beyond, the count says enough, for the reasons below name the rest.
const LONGEST: usize = 28;

/// The table. Cells: `all` the op's dtypes, those that run, or how many of how many; `[1]` leads to the reason for the rest.
pub fn op_matrix(records: &[Record], width: usize) -> String {
    let cells: Vec<&SupportRecord> =
        records.iter().filter_map(|r| if let Record::Support(s) = r { Some(s.as_ref()) } else { None }).collect();
    let ops = in_order(cells.iter().map(|c| c.op.as_str()));
    let devices = in_order(cells.iter().map(|c| c.device.as_str()));
    let reasons = in_order(cells.iter().filter(|c| c.support == "no").map(|c| c.reason.as_str()));

    let mut rows = vec![["op", "dtypes"].iter().map(|s| (*s).to_string()).collect::<Vec<_>>()];
    rows[0].extend(devices.iter().map(|d| (*d).to_string()));
    for op in &ops {
        let of_op: Vec<&SupportRecord> = cells.iter().copied().filter(|c| c.op == *op).collect();
        let defined: BTreeSet<DType> = of_op.iter().filter(|c| c.support != "undefined").map(|c| c.dtype).collect();
        let mut row = vec![(*op).to_string(), names(&defined)];
        for device in &devices {
            let here: Vec<&SupportRecord> = of_op.iter().copied().filter(|c| c.device == *device).collect();
            row.push(cell(&here, defined.len(), &reasons));
        }
        rows.push(row);
    }
    let mut out = aligned(&rows);
    for (i, reason) in reasons.iter().enumerate() {
        out.push_str(&format!("\n[{}] {reason}\n", i + 1));
        for device in &devices {
            let of: Vec<&SupportRecord> = cells
                .iter()
                .copied()
                .filter(|c| c.support == "no" && c.reason == *reason && c.device == *device)
                .collect();
            for (dtypes, concerned) in by_dtypes(&of) {
                // Every op that is made for one of these dtypes: then the names say nothing.
                let makers: BTreeSet<&str> = cells
                    .iter()
                    .filter(|c| c.support != "undefined" && dtypes.contains(&c.dtype))
                    .map(|c| c.op.as_str())
                    .collect();
                let all = concerned.len() == makers.len() && makers.len() > 1;
                let list = if all { "every op that has them".to_string() } else { concerned.join(" ") };
                wrapped(&mut out, &format!("    {device}  {}: ", names(&dtypes)), &list, width);
            }
        }
    }
    let undefined: Vec<&SupportRecord> = cells
        .iter()
        .copied()
        .filter(|c| c.support == "undefined" && devices.first() == Some(&c.device.as_str()))
        .collect();
    if let Some(first) = undefined.first() {
        out.push_str(&format!("\nnot in the column dtypes: {}\n", first.reason));
    }
    out
}

fn in_order<'a>(names: impl Iterator<Item = &'a str>) -> Vec<&'a str> {
    let mut out: Vec<&str> = Vec::new();
    for n in names {
        if !out.contains(&n) {
            out.push(n);
        }
    }
    out
}

/// One device's dtypes of one op.
fn cell(here: &[&SupportRecord], defined: usize, reasons: &[&str]) -> String {
    let runs: BTreeSet<DType> = here.iter().filter(|c| c.support == "yes").map(|c| c.dtype).collect();
    let mut missing: Vec<usize> = here
        .iter()
        .filter(|c| c.support == "no")
        .filter_map(|c| reasons.iter().position(|r| *r == c.reason).map(|i| i + 1))
        .collect();
    missing.sort_unstable();
    missing.dedup();
    let notes: Vec<String> = missing.iter().map(usize::to_string).collect();
    let notes = if notes.is_empty() { String::new() } else { format!(" [{}]", notes.join(",")) };
    if runs.len() == defined {
        return format!("all{notes}");
    }
    let list = if runs.is_empty() { "none".to_string() } else { names(&runs) };
    let text = if list.len() > LONGEST { format!("{} of {defined}", runs.len()) } else { list };
    format!("{text}{notes}")
}

/// Dtypes in their usual order, whole families as a range.
fn names(dtypes: &BTreeSet<DType>) -> String {
    use DType::{I8, I16, I32, I64, U8, U16, U32, U64};
    let mut parts: Vec<String> = Vec::new();
    let families = [([I8, I16, I32, I64], "i8-i64"), ([U8, U16, U32, U64], "u8-u64")];
    let whole = |family: &[DType; 4]| family.iter().all(|d| dtypes.contains(d));
    for dtype in DType::ALL.into_iter().filter(|d| dtypes.contains(d)) {
        match families.iter().find(|(f, _)| f.contains(&dtype) && whole(f)) {
            Some((f, name)) if f[0] == dtype => parts.push((*name).to_string()),
            Some(_) => {}
            None => parts.push(dtype.name().to_string()),
        }
    }
    parts.join(" ")
}

/// Ops with the same set of dtypes together, in order.
fn by_dtypes<'a>(cells: &[&'a SupportRecord]) -> Vec<(BTreeSet<DType>, Vec<&'a str>)> {
    let mut sets: BTreeMap<&str, BTreeSet<DType>> = BTreeMap::new();
    for c in cells {
        sets.entry(&c.op).or_default().insert(c.dtype);
    }
    let mut out: Vec<(BTreeSet<DType>, Vec<&str>)> = Vec::new();
    for op in in_order(cells.iter().map(|c| c.op.as_str())) {
        let Some(set) = sets.get(op) else { continue };
        match out.iter_mut().find(|(s, _)| s == set) {
            Some((_, ops)) => ops.push(op),
            None => out.push((set.clone(), vec![op])),
        }
    }
    out
}

/// Columns as wide as their widest cell.
fn aligned(rows: &[Vec<String>]) -> String {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |i: usize| rows.iter().filter_map(|r| r.get(i)).map(String::len).max().unwrap_or(0);
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let line = |r: &Vec<String>| {
        let cells: Vec<String> = r.iter().zip(&widths).map(|(c, w)| format!("{c:<w$}")).collect();
        format!("{}\n", cells.join("  ").trim_end())
    };
    rows.iter().map(line).collect()
}

/// A list of words behind a head, broken at the width.
fn wrapped(out: &mut String, head: &str, list: &str, width: usize) {
    let indent = " ".repeat(8);
    let mut line = head.to_string();
    let mut empty = true;
    for word in list.split(' ') {
        if !empty && line.len() + 1 + word.len() > width {
            out.push_str(line.trim_end());
            out.push('\n');
            line.clone_from(&indent);
        } else if !empty {
            line.push(' ');
        }
        line.push_str(word);
        empty = false;
    }
    out.push_str(line.trim_end());
    out.push('\n');
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(op: &str, dtype: DType, device: &str, reason: &str) -> Record {
        let support = match reason {
            "" => "yes",
            "the op is not made for this dtype" => "undefined",
            _ => "no",
        };
        Record::Support(Box::new(SupportRecord {
            op: op.into(),
            dtype,
            device: device.into(),
            uid: device.into(),
            support: support.into(),
            variant: String::new(),
            reason: reason.into(),
            detail: String::new(),
        }))
    }

    #[test]
    fn one_row_per_op_and_each_reason_once() {
        let mut records = Vec::new();
        for op in ["add", "sub", "exp"] {
            for dtype in DType::ALL {
                let made = op != "exp" || dtype.is_float();
                for device in ["cpu", "wgpu:0"] {
                    let reason = match (made, device, dtype) {
                        (false, ..) => "the op is not made for this dtype",
                        (_, "wgpu:0", DType::I8 | DType::U8) => "no small integers",
                        (_, "wgpu:0", DType::F64) if op == "exp" => "no f64 form",
                        _ => "",
                    };
                    records.push(record(op, dtype, device, reason));
                }
            }
        }
        let text = op_matrix(&records, 60);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[0].split_whitespace().collect::<Vec<_>>(), ["op", "dtypes", "cpu", "wgpu:0"]);
        assert!(lines[1].starts_with("add  f32 f64 f16 bf16 i8-i64 u8-u64  all  10 of 12 [1]"), "{text}");
        assert!(lines[3].starts_with("exp  f32 f64 f16 bf16                all  f32 f16 bf16 [2]"), "{text}");
        assert_eq!(text.matches("no small integers").count(), 1);
        assert!(text.contains("[1] no small integers\n    wgpu:0  i8 u8: every op that has them\n"), "{text}");
        assert!(text.contains("[2] no f64 form\n    wgpu:0  f64: exp\n"), "{text}");
        assert!(text.contains("not in the column dtypes: the op is not made for this dtype"));
    }

    #[test]
    fn long_lists_are_broken() {
        let mut out = String::new();
        wrapped(&mut out, "    d  f32: ", "aaaa bbbb cccc dddd", 24);
        assert_eq!(out, "    d  f32: aaaa bbbb\n        cccc dddd\n");
    }
}
