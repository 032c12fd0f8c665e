//! Printing of times, bytes and rates for people. Data stays in SI base units (seconds, bytes, 1/s).

/// Seconds as `1.23 us`.
pub fn seconds(s: f64) -> String {
    let a = s.abs();
    if !s.is_finite() {
        "-".to_string()
    } else if a >= 100.0 {
        format!("{s:.0} s")
    } else if a >= 1.0 {
        format!("{s:.2} s")
    } else if a >= 1e-3 {
        format!("{} ms", three(s * 1e3))
    } else if a >= 1e-6 {
        format!("{} us", three(s * 1e6))
    } else {
        format!("{} ns", three(s * 1e9))
    }
}

/// Three significant digits without an exponent.
pub fn three(v: f64) -> String {
    let a = v.abs();
    if !v.is_finite() {
        "-".to_string()
    } else if a >= 100.0 || a == 0.0 {
        format!("{v:.0}")
    } else if a >= 10.0 {
        format!("{v:.1}")
    } else if a >= 0.001 {
        format!("{v:.2}")
    } else {
        format!("{v:.1e}")
    }
}

/// A rate with a decimal prefix: `51.2 TFLOP/s`.
pub fn rate(per_second: f64, unit: &str) -> String {
    let (mut v, mut prefix) = (per_second, "");
    for p in ["k", "M", "G", "T", "P"] {
        if v.abs() >= 1000.0 {
            (v, prefix) = (v / 1000.0, p);
        }
    }
    format!("{} {prefix}{unit}/s", three(v))
}

/// Bytes in binary units: `128 MiB`.
pub fn bytes(b: u64) -> String {
    const UNITS: [&str; 5] = ["KiB", "MiB", "GiB", "TiB", "PiB"];
    if b < 1024 {
        return format!("{b} B");
    }
    let mut v = b as f64;
    let mut unit = "B";
    for u in UNITS {
        if v < 1024.0 {
            break;
        }
        v /= 1024.0;
        unit = u;
    }
    format!("{} {unit}", three(v))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn people_can_read_them() {
        assert_eq!(seconds(1.5e-6), "1.50 us");
        assert_eq!(seconds(0.25), "250 ms");
        assert_eq!(seconds(f64::NAN), "-");
        assert_eq!(bytes(512), "512 B");
        assert_eq!(bytes(128 << 20), "128 MiB");
        assert_eq!(three(1234.6), "1235");
        assert_eq!((rate(51.2e12, "FLOP").as_str(), rate(999.0, "op").as_str()), ("51.2 TFLOP/s", "999 op/s"));
        assert_eq!((rate(1e18, "FLOP").as_str(), rate(f64::NAN, "op").as_str()), ("1000 PFLOP/s", "- op/s"));
    }
}
