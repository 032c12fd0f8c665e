//! The table of `devices --health`.

use crate::base::record::HealthRecord;
use crate::base::{Record, units};

use super::text;

/// A row for each card and finding, and what was not told.
pub fn table(records: &[Record], width: Option<u16>) -> String {
    let all: Vec<&HealthRecord> =
        records.iter().filter_map(|r| if let Record::Health(h) = r { Some(h.as_ref()) } else { None }).collect();
    let mut t = text::table(&["device", "verdict", "checks", "severity", "finding", "what was seen"]);
    if let Some(w) = width {
        t.set_width(w);
    }
    for h in &all {
        let checks = format!("{} of {}", h.checked.len(), h.checked.len() + missing(h).count());
        let mut head = [h.device.clone(), h.verdict.clone(), checks];
        if h.findings.is_empty() {
            let [device, verdict, checks] = head;
            t.add_row([device, verdict, checks, "-".into(), "-".into(), readings(h)]);
            continue;
        }
        for f in &h.findings {
            let [device, verdict, checks] = head;
            t.add_row([device, verdict, checks, f.severity.clone(), f.code.clone(), f.detail.clone()]);
            head = std::array::from_fn(|_| String::new());
        }
    }
    let mut out = format!("{t}\n");
    for h in &all {
        for f in &h.findings {
            out.push_str(&format!("{}: {}: next: {}\n", h.device, f.code, f.next));
        }
        for n in &h.not_told {
            out.push_str(&format!("{}: not told: {}: {}\n", h.device, n.what, n.why));
        }
    }
    out
}

/// Checks that had nothing to look at; other facts that are not told are no checks.
fn missing(h: &HealthRecord) -> impl Iterator<Item = &str> {
    h.unchecked.iter().map(String::as_str)
}

/// The figures of a card without findings.
fn readings(h: &HealthRecord) -> String {
    let Some(s) = &h.snapshot else { return "-".into() };
    let mut parts = Vec::new();
    if let Some(c) = s.temperature_c {
        parts.push(format!("{c:.0} °C"));
    }
    if let Some(w) = s.power_w {
        parts.push(format!("{w:.0} W"));
    }
    if let (Some(used), Some(total)) = (s.memory_used, s.memory_total) {
        parts.push(format!("{} of {}", units::bytes(used), units::bytes(total)));
    }
    if parts.is_empty() { "-".into() } else { parts.join(", ") }
}

/// A line for scripts: `id verdict code,code`.
pub fn lines(records: &[Record]) -> String {
    let mut out = String::new();
    for record in records {
        if let Record::Health(h) = record {
            let codes: Vec<&str> = h.findings.iter().map(|f| f.code.as_str()).collect();
            let codes = if codes.is_empty() { "-".into() } else { codes.join(",") };
            out.push_str(&format!("{} {} {codes}\n", h.device, h.verdict));
        }
    }
    out
}
