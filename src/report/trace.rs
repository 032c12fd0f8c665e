//! What a trace adds up to, as lines for people.

use crate::base::text::printable;
use crate::base::trace::TraceSummary;
use crate::base::units;

/// Ops that are listed; the rest is one line.
const LISTED: usize = 20;

/// Time per op, bytes moved, memory, builds, waits, fallbacks, and what is missing.
pub fn summary(s: &TraceSummary) -> String {
    let mut lines = vec![format!(
        "{:<16} {:<5} {:<10} {:>9} {:>10} {:>6} {:>10} {:>10}",
        "trace: op", "dtype", "device", "launches", "host", "share", "kernels", "median"
    )];
    let seconds = |known: bool, s: f64| if known { units::seconds(s) } else { "-".into() };
    for o in s.ops.iter().take(LISTED) {
        let op = if o.op.is_empty() { "(no op)" } else { &o.op };
        let part = if o.timed > 0 && o.timed < o.launches { format!(" of {}", o.timed) } else { String::new() };
        lines.push(format!(
            "{op:<16} {:<5} {:<10} {:>9} {:>10} {:>5.1} % {:>10} {:>10}{part}",
            o.dtype,
            o.device,
            o.launches,
            units::seconds(o.host_s),
            100.0 * o.share,
            seconds(o.timed > 0, o.device_s),
            seconds(o.median_s.is_some(), o.median_s.unwrap_or_default()),
        ));
    }
    if let Some(rest) = s.ops.get(LISTED..).filter(|r| !r.is_empty()) {
        let share: f64 = rest.iter().map(|o| o.share).sum();
        lines.push(format!("and {} more, {:.1} % of the host's time", rest.len(), 100.0 * share));
    }
    let copies =
        s.copies.iter().map(|c| format!("{} {} in {} to {}", c.kind, units::bytes(c.bytes), c.count, c.device));
    lines.push(format!("copies: {}", none_or(copies.collect())));
    let held = s.memory.iter().filter(|m| m.allocations > 0 || m.peak_bytes > 0);
    let held =
        held.map(|m| format!("{} at most {}, {} allocations", m.device, units::bytes(m.peak_bytes), m.allocations));
    lines.push(format!("memory: {}", none_or(held.collect())));
    let hits = s.hits.iter().map(|(what, n)| format!("{what} {n}"));
    lines.push(format!(
        "builds: {} in {}; waits: {} in {}; found ready: {}; failed: {}; fallbacks: {}",
        s.compile.count,
        units::seconds(s.compile.seconds),
        s.wait.count,
        units::seconds(s.wait.seconds),
        none_or(hits.collect()),
        s.failed,
        s.fallbacks
    ));
    if s.dropped > 0 {
        lines.push(format!("{} events were not kept: the totals above count them, medians and hits do not", s.dropped));
    }
    lines.extend(s.cut.iter().map(|(pid, why)| format!("process {pid}: its end is missing: {why}")));
    printable(&lines.join("\n")).into_owned()
}

fn none_or(parts: Vec<String>) -> String {
    if parts.is_empty() { "none".into() } else { parts.join(", ") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::trace::{Copied, Held, OpTime};

    #[test]
    fn what_is_missing_is_said() {
        let op = OpTime { op: "gemm".into(), launches: 9, timed: 4, median_s: Some(1e-3), ..OpTime::default() };
        let mut s = TraceSummary { ops: vec![op.clone(); 30], ..TraceSummary::default() };
        s.copies.push(Copied { kind: "h2d".into(), device: "opencl:0".into(), count: 2, bytes: 2048, seconds: 0.0 });
        s.memory.push(Held { device: "opencl:0".into(), peak_bytes: 4096, allocations: 3, ..Held::default() });
        let whole = summary(&s);
        assert!(whole.contains("1.00 ms of 4") && whole.contains("and 10 more"), "{whole}");
        assert!(whole.contains("h2d 2.00 KiB in 2 to opencl:0") && whole.contains("at most 4.00 KiB"), "{whole}");
        assert!(!whole.contains("not kept") && !whole.contains("missing"), "{whole}");
        s.dropped = 7;
        s.cut.insert(3, "it crashed".into());
        let part = summary(&s);
        assert!(part.contains("7 events were not kept") && part.contains("process 3: its end is missing: it crashed"));
    }
}
