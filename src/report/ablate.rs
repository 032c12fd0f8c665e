//! The table of `bench --suite ablate`.

use crate::base::record::{AblateRecord, Status};
use crate::base::units;

/// The head of [`row`]'s columns.
pub fn header() -> String {
    format!("{:<16} {:<10} {:<32} {:>10} {:>10}  gain", "without", "device", "calls", "with", "without")
}

/// A row: medians of a call, and how many times as long it takes without the part, with the 95 % interval.
pub fn row(r: &AblateRecord) -> String {
    let head = format!("{:<16} {:<10} {:<32}", r.without, r.device, r.calls);
    let seconds = |s: Option<f64>| s.map_or_else(|| "-".into(), units::seconds);
    match (r.status, r.gain, r.gain_ci) {
        (Status::Ok, Some(gain), Some([lo, hi])) => {
            let times = format!("{:>10} {:>10}", seconds(r.with_s), seconds(r.without_s));
            let pool = r.pool.map_or_else(String::new, |p| {
                let (all, peak) = (p.hits + p.misses, units::bytes(p.peak_bytes));
                format!("; {} of {all} buffers from the shelf, at most {peak}", p.hits)
            });
            format!("{head} {times}  {gain:.2} ({lo:.2} to {hi:.2}){pool}")
        }
        _ => format!("{head} {}: {}", r.status.name(), r.reason),
    }
}
