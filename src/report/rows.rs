//! A bench record as one row of named cells: what CSV, Markdown and the terminal's table share.

use crate::base::record::{BenchRecord, Status};
use crate::base::units;

/// Columns of the table for people.
pub const COLUMNS: usize = 16;

/// Their titles.
pub const BENCH_COLUMNS: [&str; COLUMNS] = [
    "op",
    "dtype",
    "shape",
    "device",
    "variant",
    "median",
    "95 % interval",
    "GFLOP/s",
    "GB/s",
    "of ceiling",
    "of peak",
    "transfer",
    "launch",
    "vs CPU",
    "bottleneck",
    "phases / remarks",
];

/// Cells of the table for people.
pub fn bench_cells(r: &BenchRecord) -> [String; COLUMNS] {
    let s = &r.subject;
    let number = |v: Option<f64>| v.map_or("-".to_string(), units::three);
    let time = |v: Option<f64>| v.map_or("-".to_string(), units::seconds);
    let percent = |v: Option<f64>| v.map_or("-".to_string(), |v| format!("{:.0} %", 100.0 * v));
    let shape = if s.attrs.is_empty() { s.shape_text.clone() } else { format!("{} {}", s.shape_text, attr_text(r)) };
    let device = if r.residency == "resident" { s.device.clone() } else { format!("{} {}", s.device, r.residency) };
    let interval = r.ci_s.map_or("-".to_string(), |c| format!("{} .. {}", units::seconds(c[0]), units::seconds(c[1])));
    let last = if s.status == Status::Ok { remarks(r) } else { format!("{}: {}", s.status.name(), s.reason) };
    [
        s.op.clone(),
        s.dtype.name().into(),
        shape,
        device,
        s.variant.clone(),
        time(r.median_s),
        interval,
        number(r.gflops),
        number(r.gbps),
        percent(r.analysis.ceiling_fraction),
        percent(r.peak_fraction),
        percent(r.analysis.transfer_fraction),
        percent(r.analysis.launch_fraction),
        r.speedup_vs_cpu.map_or("-".to_string(), |v| format!("{}x", units::three(v))),
        if r.analysis.bottleneck.is_empty() { "-".into() } else { r.analysis.bottleneck.clone() },
        last,
    ]
}

fn attr_text(r: &BenchRecord) -> String {
    r.subject.attrs.iter().map(|(n, v)| format!("{n}={v}")).collect::<Vec<_>>().join(",")
}

fn remarks(r: &BenchRecord) -> String {
    let p = &r.phases_s;
    let parts: Vec<String> = [
        ("alloc", p.alloc),
        ("h2d", p.h2d),
        ("launch", p.launch),
        ("kernel", p.kernel),
        ("sync", p.sync),
        ("d2h", p.d2h),
    ]
    .into_iter()
    .filter_map(|(name, v)| v.map(|v| format!("{name} {}", units::seconds(v))))
    .collect();
    let mut text = parts.join(", ");
    if p.kernel_clock == "host" {
        text.push_str(" (kernel timed by the host)");
    }
    if !r.analysis.advice.is_empty() {
        text.push_str(&format!("; {}", r.analysis.advice));
    }
    if !r.subject.flags.is_empty() {
        text.push_str(&format!(" [{}]", r.subject.flags.join(", ")));
    }
    text
}
