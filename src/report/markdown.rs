//! Bench records as a Markdown table.

use crate::base::Record;

use super::rows::{BENCH_COLUMNS, bench_cells};

/// All bench records.
pub fn bench(records: &[Record]) -> String {
    let mut out = format!("| {} |\n|{}\n", BENCH_COLUMNS.join(" | "), " --- |".repeat(BENCH_COLUMNS.len()));
    for record in records {
        if let Record::Bench(r) = record {
            let cells = bench_cells(r).map(|c| c.replace('|', "\\|"));
            out.push_str(&format!("| {} |\n", cells.join(" | ")));
        }
    }
    out
}
