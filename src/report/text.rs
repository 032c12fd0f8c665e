//! Tables for a terminal.

use std::collections::BTreeMap;

use comfy_table::{Cell, ContentArrangement, Table, presets};

use crate::base::record::{BenchRecord, CalibrateRecord, ChangeRecord, StressRecord, ThresholdRecord};
use crate::base::regret::RegretRecord;
use crate::base::telemetry::{Range, Watched};
use crate::base::units;

use super::rows::{BENCH_COLUMNS, COLUMNS, bench_cells};

/// Widths of the bench table's columns when rows are printed one by one.
const WIDTHS: [usize; COLUMNS] = [9, 5, 20, 10, 9, 8, 20, 8, 8, 10, 7, 8, 6, 8, 15, 0];

/// The header of the bench table; rows follow one by one as they are measured.
pub fn bench_header() -> String {
    padded(&BENCH_COLUMNS.map(String::from))
}

/// One row of the bench table.
pub fn bench_row(r: &BenchRecord) -> String {
    padded(&bench_cells(r))
}

fn padded(cells: &[String; COLUMNS]) -> String {
    let mut line = String::new();
    for (i, (cell, width)) in cells.iter().zip(WIDTHS).enumerate() {
        // Numbers are aligned at the right.
        if (5..14).contains(&i) && i != 6 {
            line.push_str(&format!("{cell:>width$}  "));
        } else {
            line.push_str(&format!("{cell:<width$}  "));
        }
    }
    line.trim_end().to_string()
}

pub(super) fn table(columns: &[&str]) -> Table {
    let mut t = Table::new();
    t.load_style(presets::ASCII_MARKDOWN).set_content_arrangement(ContentArrangement::Dynamic);
    t.set_header(columns.iter().map(|c| Cell::new(*c)));
    t
}

/// A blank that no line is folded at.
const HELD: char = '\u{a0}';

/// Lines folded to `width` columns. What goes on stands under the text that it goes on from; lines of tables, words without
/// blanks (paths, for instance) and commands in backquotes stay whole.
pub(super) fn folded(text: &str, width: u16) -> String {
    let mut out = String::new();
    for line in text.lines() {
        if line.starts_with('|') || textwrap::core::display_width(line) <= usize::from(width) {
            out.push_str(line);
        } else {
            let hang = " ".repeat(hang(line));
            let how = textwrap::Options::new(width.into()).subsequent_indent(&hang).break_words(false);
            // Every second piece is a command.
            let pieces: Vec<String> = line.split('`').map(String::from).collect();
            let held = |(i, piece): (usize, &String)| {
                if i % 2 == 1 && i + 1 < pieces.len() { piece.replace(' ', &HELD.to_string()) } else { piece.clone() }
            };
            let line = pieces.iter().enumerate().map(held).collect::<Vec<_>>().join("`");
            out.push_str(&textwrap::fill(&line, how).replace(HELD, " "));
        }
        out.push('\n');
    }
    out
}

/// Where the value of an indented `name   value` or `name: value` begins; four columns in for other lines.
fn hang(line: &str) -> usize {
    let text = line.trim_start();
    let indent = line.len() - text.len();
    let value = text.find("  ").map(|at| at + text[at..].len() - text[at..].trim_start().len());
    let value = value.or_else(|| text.find(": ").map(|at| at + 2)).filter(|at| indent > 0 && *at < 20);
    indent + value.unwrap_or(4)
}

/// The verdicts of a calibration.
pub fn thresholds(records: &[CalibrateRecord], width: Option<u16>) -> String {
    // The threshold lies above the crossing, by the margin, and often above its interval.
    let last = ["threshold", "crossing, 95 %", "at stake", "remarks"];
    let mut t = table(&[&["op", "dtype", "family", "device", "residency", "verdict"][..], &last].concat());
    if let Some(w) = width {
        t.set_width(w);
    }
    for r in records {
        t.add_row([
            r.op.clone(),
            r.dtype.to_string(),
            r.family.clone(),
            r.device.clone(),
            r.residency.clone(),
            r.verdict.clone(),
            r.threshold.map_or("-".into(), |v| format!("{v} {}", r.unit)),
            r.ci.map_or("-".into(), |c| format!("{} .. {}", c[0], c[1])),
            r.stake.map_or("-".into(), |s| format!("{:.0} %", 100.0 * (s - 1.0))),
            r.reason.clone(),
        ]);
    }
    t.to_string()
}

/// What placing held-out shapes costs, in per cent of the time of the best placement, and how many keys cross at all.
pub fn regret(records: &[RegretRecord], width: Option<u16>) -> String {
    let mut t = table(&[
        "op",
        "dtype",
        "family",
        "device",
        "residency",
        "verdict",
        "shapes",
        "auto: mean",
        "near crossing",
        "worst",
        "threshold",
        "always-cpu",
        "always-gpu",
        "default",
        "gpu-blob",
        "x1.5",
        "finding",
    ]);
    if let Some(w) = width {
        t.set_width(w);
    }
    let percent = |v: f64| format!("{:.1} %", 100.0 * v);
    for r in records {
        let of = |name: &str| r.policies.iter().find(|p| p.name == name);
        let mean = |name: &str| of(name).map_or("-".into(), |p| percent(p.mean));
        t.add_row([
            r.op.clone(),
            r.dtype.to_string(),
            r.family.clone(),
            r.device.clone(),
            r.residency.clone(),
            r.verdict.clone(),
            r.shapes.len().to_string(),
            mean("auto"),
            of("auto").and_then(|p| p.near).map_or("-".into(), percent),
            of("auto").map_or("-".into(), |p| percent(p.worst)),
            mean("threshold"),
            mean("always-cpu"),
            mean("always-gpu"),
            mean("default"),
            mean("gpu-blob"),
            mean("threshold x1.5"),
            if r.finding == "ok" { r.finding.clone() } else { format!("{} is better", r.finding) },
        ]);
    }
    let crossing = |r: &&RegretRecord| {
        let smallest = r.dense.smallest;
        r.dense.crossing.is_some_and(|c| smallest.is_some_and(|s| s < c))
    };
    let crossing = records.iter().filter(crossing).count();
    format!(
        "{t}\nregret on shapes that the calibration did not see; a dense sweep crosses in {crossing} of {} keys\n",
        records.len()
    )
}

/// The verdicts of a comparison with an earlier run, and how many there are of each.
pub fn changes(records: &[ChangeRecord], width: Option<u16>) -> String {
    let mut t = table(&[
        "op",
        "dtype",
        "shape",
        "device",
        "residency",
        "then",
        "now",
        "now / then",
        "95 % interval",
        "verdict",
        "remarks",
    ]);
    if let Some(w) = width {
        t.set_width(w);
    }
    let time = |s: Option<f64>| s.map_or("-".into(), units::seconds);
    for r in records {
        t.add_row([
            r.op.clone(),
            r.dtype.to_string(),
            r.shape_text.clone(),
            r.device.clone(),
            r.residency.clone(),
            time(r.old_s),
            time(r.new_s),
            r.ratio.map_or("-".into(), |v| format!("{v:.3}")),
            r.ratio_ci.map_or("-".into(), |c| format!("{:.3} .. {:.3}", c[0], c[1])),
            r.verdict.clone(),
            remarks(r),
        ]);
    }
    let count = |word: &str| records.iter().filter(|r| r.verdict == word).count();
    let words = ["SLOWER", "FASTER", "SAME", "AMBIGUOUS", "NOT COMPARABLE"];
    let counts: Vec<String> = words.iter().map(|w| format!("{} {w}", count(w))).collect();
    format!("{t}\n{}\n", counts.join(", "))
}

fn remarks(r: &ChangeRecord) -> String {
    // Up to here the machine is the same for people; the verdict takes it as it is.
    let machine = r.machine_ratio.filter(|m| !(0.95..=1.05).contains(m)).map(|m| format!("machine's speed x{m:.2}"));
    let parts: Vec<String> = machine.into_iter().chain((!r.reason.is_empty()).then(|| r.reason.clone())).collect();
    parts.join("; ")
}

/// The keys about which two profiles differ, as a table if there are any, and how many there are of each kind.
pub fn threshold_changes(records: &[ThresholdRecord], width: Option<u16>) -> (Option<String>, String) {
    let columns = ["op", "dtype", "family", "device", "residency", "threads", "first", "second", "", "remarks"];
    let mut t = table(&columns);
    if let Some(w) = width {
        t.set_width(w);
    }
    let side = |verdict: &Option<String>, threshold: Option<u64>, ci: Option<[u64; 2]>, edited: bool| {
        let mut text = verdict.clone().unwrap_or_else(|| "-".into());
        text.extend(threshold.map(|n| format!(" {n}")));
        text.extend(ci.map(|[low, high]| format!(" (crossing {low} .. {high})")));
        text.push_str(if edited { " (edited)" } else { "" });
        text
    };
    let differ: Vec<&ThresholdRecord> = records.iter().filter(|r| r.verdict != "SAME").collect();
    for r in &differ {
        t.add_row([
            r.op.clone(),
            r.dtype.clone(),
            r.family.clone(),
            r.device.clone(),
            r.residency.clone(),
            format!("{} {}", r.threads, r.cpu_variant),
            side(&r.old_verdict, r.old_threshold, r.old_ci, r.old_edited),
            side(&r.new_verdict, r.new_threshold, r.new_ci, r.new_edited),
            r.verdict.clone(),
            r.reason.clone(),
        ]);
    }
    let count = |word: &str| records.iter().filter(|r| r.verdict == word).count();
    let words = ["MOVED", "VERDICT", "ALONE", "UNKNOWN", "WITHIN", "SAME"];
    let counts: Vec<String> = words.iter().map(|w| format!("{} {w}", count(w))).collect();
    ((!differ.is_empty()).then(|| t.to_string()), counts.join(", "))
}

/// What a card told while a job ran; nothing where it told nothing, which is said once per device.
fn told(w: &Watched) -> String {
    let span = |r: Option<Range>, unit: &str| r.map(|r| format!("{:.0} to {:.0} {unit}", r.least, r.most));
    let mut parts: Vec<String> = [
        span(w.temperature_c, "C"),
        span(w.power_w, "W"),
        span(w.clock_mhz, "MHz"),
        w.memory_used.map(|r| format!("memory {} to {}", units::bytes(r.first as u64), units::bytes(r.last as u64))),
    ]
    .into_iter()
    .flatten()
    .collect();
    let lowered: Vec<&str> = w.throttle.iter().map(String::as_str).filter(|word| *word != "gpu-idle").collect();
    if !lowered.is_empty() {
        parts.push(format!("clocks lowered: {}", lowered.join(" ")));
    }
    if parts.is_empty() { String::new() } else { format!("; card: {}", parts.join(", ")) }
}

/// What became of a scenario's kernels; nothing if it counts none.
fn kernels(counters: &BTreeMap<String, u64>) -> String {
    let of = |name: &str| counters.get(name).copied();
    let (Some(builds), Some(loads)) = (of("kernel_builds"), of("kernel_loads")) else { return String::new() };
    let refused = of("kernels_refused").filter(|n| *n > 0).map_or(String::new(), |n| format!(", {n} refused"));
    format!("; kernels: {builds} built, {loads} loaded{refused}")
}

/// One finished scenario.
pub fn stress_row(r: &StressRecord) -> String {
    let mut line = format!(
        "{:<12} {:<12} {:<10} {:>8}  {} of {} cycles, {} of results checked, {} mismatches",
        r.verdict,
        r.scenario,
        r.device,
        units::seconds(r.seconds),
        r.done,
        r.planned,
        units::bytes(r.bytes_checked),
        r.mismatches
    );
    if !r.reason.is_empty() {
        line.push_str(&format!("; {}", r.reason));
    }
    line.push_str(&kernels(&r.counters));
    line.push_str(&told(&r.telemetry));
    if r.verdict != "pass" {
        line.push_str(&format!("  rerun: {}", r.rerun));
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_folded_under_their_values_and_lose_no_word() {
        let text = "cuda: not usable: the library was not found\n    next: install the driver, then try it again\n    uid            \
                    opencl/0 (platform and place in its list)\n| a row of a table stays whole, however wide it is |\nshort\n";
        let folded = folded(text, 30);
        let want = "cuda: not usable: the library\n    was not found\n    next: install the driver,\n          then try it again\n    \
                    uid            opencl/0\n                   (platform\n                   and place\n                   \
                    in its\n                   list)\n| a row of a table stays whole, however wide it is |\nshort\n";
        assert_eq!(folded, want);
        let words = |t: &str| t.split_whitespace().map(String::from).collect::<Vec<_>>();
        assert_eq!(words(&folded), words(text));
        // Paths and commands can be copied.
        let command =
            "unfit: opencl:0: one of two; run `gpuctl devices --trial --device opencl:0` to try it again, or `not";
        let folded = super::folded(command, 40);
        assert!(folded.contains("\n    `gpuctl devices --trial --device opencl:0`\n"), "{folded}");
        assert_eq!(words(&folded), words(command));
        let path = format!("    next: see /{}/x", "long".repeat(20));
        assert!(super::folded(&path, 30).contains(&"long".repeat(20)));
        assert_eq!(super::folded("", 30), "");
    }
}
