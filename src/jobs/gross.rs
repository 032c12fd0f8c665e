//! How far two devices' results may differ before one of them is wrong beyond any doubt, where no oracle is asked: bench
//! and calibrate look for skipped work and shifted or stale data; accuracy is judged by `verify`.

use crate::base::{DType, Exact, HostTensor, exact};

/// Largest finite magnitude among the elements `at`.
pub(super) fn largest(t: &HostTensor, at: impl Iterator<Item = u64>) -> f64 {
    at.map(|i| Exact::read(t, i).abs_f64()).filter(|v| v.is_finite()).fold(0.0, f64::max)
}

/// The slack of one output whose largest value is `own`, among outputs with the largest values `all`; integers have none.
///
/// The square root of the unit roundoff relative to `own` is far above any rounding of that output. What cancels (the mean
/// that batchnorm stores beside y) is only as exact as what it was taken of: 64 roundoffs of the largest value at all.
pub(super) fn slack(dtype: DType, own: f64, all: &[f64]) -> f64 {
    if !dtype.is_float() {
        return 0.0;
    }
    let u = dtype.unit_roundoff();
    u.sqrt() * own + exact::ulp(dtype, own) + 64.0 * u * all.iter().copied().fold(0.0, f64::max)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cancels_is_measured_by_what_it_was_taken_of() {
        let alone = slack(DType::F32, 4.6e-4, &[4.6e-4]);
        let beside = slack(DType::F32, 4.6e-4, &[1.7, 4.6e-4]);
        assert!(alone < 2e-7 && beside > 1e-6 && beside < 1e-5, "{alone:e} {beside:e}");
        assert_eq!(slack(DType::I32, 5.0, &[5.0]), 0.0);
        let t = HostTensor::from_slice(&[1.0f32, -3.0, f32::INFINITY, f32::NAN], &[4]).unwrap();
        assert_eq!((largest(&t, 0..4), largest(&t, 0..1)), (3.0, 1.0));
    }
}
