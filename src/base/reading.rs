//! What tells the state of a machine: how long two things take that are always the same.

use serde::{Deserialize, Serialize};

/// A machine that reads so many times as slow or fast is another one: nothing is stated for what is remembered of it.
pub const FAR_OFF: f64 = 1.3;

/// What was timed around a look, or what is remembered of a machine: seconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Reading {
    /// Of a search on the CPU.
    pub cpu_s: f64,
    /// Of a call of a device.
    pub device_s: f64,
}

impl Reading {
    /// Geometric mean of two.
    pub fn between(self, other: Reading) -> Reading {
        let mean = |a: f64, b: f64| (a * b).sqrt();
        Reading { cpu_s: mean(self.cpu_s, other.cpu_s), device_s: mean(self.device_s, other.device_s) }
    }

    /// How many times as large the part is that differs more, at least 1; not a number or infinite where a part is no time.
    pub fn change(self, other: Reading) -> f64 {
        let of = |a: f64, b: f64| (a / b).max(b / a);
        let (cpu, device) = (of(self.cpu_s, other.cpu_s), of(self.device_s, other.device_s));
        if cpu.is_nan() || device.is_nan() { f64::NAN } else { cpu.max(device) }
    }

    /// True if both are times.
    pub fn is_sound(self) -> bool {
        [self.cpu_s, self.device_s].iter().all(|s| s.is_normal() && *s > 0.0)
    }

    /// Their logarithms.
    pub fn logs(self) -> [f64; 2] {
        [self.cpu_s.ln(), self.device_s.ln()]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_differs_more_counts_either_way() {
        let of = |cpu_s, device_s| Reading { cpu_s, device_s };
        let change = |a: Reading, b: Reading| (100.0 * a.change(b)).round();
        assert_eq!((change(of(1.0, 2.0), of(1.1, 2.0)), change(of(1.1, 2.0), of(1.0, 2.0))), (110.0, 110.0));
        assert_eq!(change(of(1.0, 2.0), of(1.1, 1.0)), 200.0);
        assert_eq!(of(1.0, 4.0).between(of(4.0, 1.0)), of(2.0, 2.0));
        assert!(of(f64::NAN, 1.0).change(of(1.0, 1.0)).is_nan() && of(0.0, 1.0).change(of(1.0, 1.0)).is_infinite());
        assert!(of(1e-9, 1e9).is_sound());
        for bad in [0.0, -1.0, f64::NAN, f64::INFINITY, 1e-320] {
            assert!(!of(bad, 1.0).is_sound() && !of(1.0, bad).is_sound(), "{bad}");
        }
    }
}
