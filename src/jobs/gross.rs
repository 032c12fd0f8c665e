//! How far two devices' results may differ before one of them is wrong beyond any doubt, where no oracle is asked: bench
//! and calibrate look for skipped work and shifted or stale data; accuracy is judged by `verify`.

use std::cell::OnceCell;

use crate::base::{Case, DType, Exact, HostTensor, exact};
use crate::op::{self, Reference, case};

/// An element that is grossly wrong.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wrong {
    /// Its number in its output.
    pub(super) element: u64,
    pub(super) got: Exact,
    /// The CPU's.
    pub(super) want: Exact,
}

/// Compares a device's outputs with the CPU's of the same shapes and dtypes: every element, or of longer ones about `most`,
/// evenly spread.
pub(super) fn wrong(c: &Case, got: &[HostTensor], want: &[HostTensor], most: u64) -> Option<Wrong> {
    // Odd, so that neither the even nor the odd elements are left out, nor any lane of a power of two.
    let probes = |w: &HostTensor| (0..w.len()).step_by((w.len() / most).max(1) as usize | 1);
    let largest: Vec<f64> = want.iter().map(|w| largest(w, probes(w))).collect();
    let doubt = Doubt::about(c);
    for (output, ((g, w), own)) in got.iter().zip(want).zip(&largest).enumerate() {
        let slack = slack(w.dtype, *own, &largest);
        let plain = floats(w.dtype);
        for element in probes(w) {
            // Nearly all are so near to each other that two numbers as they are say it.
            if plain.is_some_and(|read| near(read(g, element), read(w, element), slack)) {
                continue;
            }
            let (got, want) = (Exact::read(g, element), Exact::read(w, element));
            if !within(got, want, slack) && !doubt.excuses(output, element, got) {
                return Some(Wrong { element, got, want });
            }
        }
    }
    None
}

fn within(got: Exact, want: Exact, allowed: f64) -> bool {
    if let (Exact::I(a), Exact::I(b)) = (got, want) {
        return a == b;
    }
    let (g, w) = (got.to_f64(), want.to_f64());
    if g.is_finite() && w.is_finite() {
        if near(g, w, allowed) {
            return true;
        }
        got.add(want.neg()).abs_f64() <= allowed
    } else {
        g == w || g.is_nan() && w.is_nan()
    }
}

/// Whether two finite numbers are surely so near. Their difference in f64 is off by half a roundoff at most; only what is as
/// near to the limit is worth more.
fn near(got: f64, want: f64, allowed: f64) -> bool {
    (got - want).abs() * (1.0 + f64::EPSILON) <= allowed
}

/// An element as an f64, which holds any float; NaN out of range. `None` for integers.
type ReadFloat = fn(&HostTensor, u64) -> f64;

fn floats(dtype: DType) -> Option<ReadFloat> {
    fn at<const N: usize>(t: &HostTensor, i: u64) -> Option<[u8; N]> {
        t.bytes().get(i as usize * N..).and_then(|rest| rest.first_chunk()).copied()
    }
    match dtype {
        DType::F32 => Some(|t, i| at(t, i).map_or(f64::NAN, |b| f64::from(f32::from_le_bytes(b)))),
        DType::F64 => Some(|t, i| at(t, i).map_or(f64::NAN, f64::from_le_bytes)),
        DType::F16 => Some(|t, i| at(t, i).map_or(f64::NAN, |b| f64::from(half::f16::from_le_bytes(b)))),
        DType::BF16 => Some(|t, i| at(t, i).map_or(f64::NAN, |b| f64::from(half::bf16::from_le_bytes(b)))),
        _ => None,
    }
}

/// Largest finite magnitude among the elements `at`.
fn largest(t: &HostTensor, at: impl Iterator<Item = u64>) -> f64 {
    let of = |i: u64| floats(t.dtype).map_or_else(|| Exact::read(t, i).abs_f64(), |read| read(t, i).abs());
    at.map(of).filter(|v| v.is_finite()).fold(0.0, f64::max)
}

/// The slack of one output whose largest value is `own`, among outputs with the largest values `all`; integers have none.
///
/// The square root of the unit roundoff relative to `own` is far above any rounding of that output. What cancels (the mean
/// that batchnorm stores beside y) is only as exact as what it was taken of: 64 roundoffs of the largest value at all.
fn slack(dtype: DType, own: f64, all: &[f64]) -> f64 {
    if !dtype.is_float() {
        return 0.0;
    }
    let u = dtype.unit_roundoff();
    u.sqrt() * own + exact::ulp(dtype, own) + 64.0 * u * all.iter().copied().fold(0.0, f64::max)
}

/// Asked about an element that is further from the CPU's than the slack. A sum that happens to cancel, such as the mean of numbers of
/// both signs, is as exact as what it was taken of, and no longer as its own few digits: two right results may then differ.
struct Doubt<'a> {
    case: &'a Case,
    inputs: OnceCell<Option<Vec<HostTensor>>>,
    /// The oracle's outputs, of ops that have none for single elements.
    whole: OnceCell<Vec<Reference>>,
}

/// Elements of all inputs from which on nobody waits for the oracle's answer: a second's work.
const MOST: u64 = 1 << 24;

/// Sums in blocks or trees are, as a rule, within one roundoff of Σ|x| (the two sums that this is here for were 0.2
/// apart); far enough above, and near enough that a result that was never computed is not taken for one that cancels.
const ROUNDOFFS: f64 = 4.0;

impl<'a> Doubt<'a> {
    /// About results of this case with its own data.
    fn about(case: &'a Case) -> Self {
        Doubt { case, inputs: OnceCell::new(), whole: OnceCell::new() }
    }

    /// True if the oracle's value lies within [`ROUNDOFFS`] of what the element is judged against (Σ|x| of a sum). False where no oracle
    /// answers.
    fn excuses(&self, output: usize, i: u64, got: Exact) -> bool {
        let dtype = self.case.dtype;
        let near =
            |(want, scale): (Exact, f64)| got.add(want.neg()).abs_f64() <= ROUNDOFFS * dtype.unit_roundoff() * scale;
        dtype.is_float() && self.answer(output, i).is_some_and(near)
    }

    /// The oracle's value of an element, and what it is judged against.
    fn answer(&self, output: usize, i: u64) -> Option<(Exact, f64)> {
        let op = op::find(self.case.op).ok()?;
        let inputs = self.inputs.get_or_init(|| case::inputs(op, self.case).ok()).as_ref()?;
        if let Some(element) = op.element {
            return Some(element(self.case, inputs, output, i));
        }
        if inputs.iter().map(HostTensor::len).sum::<u64>() > MOST {
            return None;
        }
        let all = || (op.oracle)(self.case, &inputs.iter().map(Exact::read_all).collect::<Vec<_>>());
        let of = self.whole.get_or_init(all).get(output)?;
        Some((*of.values.get(i as usize)?, *of.scale.get(i as usize)?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::{Attrs, Fill};

    #[test]
    fn a_mean_that_cancels_is_excused_and_a_wrong_one_is_not() {
        let op = op::find("mean").unwrap();
        let c = op.case(DType::F32, &[1, 3330, 1], Attrs::new(), Fill::Uniform).unwrap();
        let exact = (op.oracle)(&c, &[Exact::read_all(&case::inputs(op, &c).unwrap()[0])]);
        let (want, doubt) = (exact[0].values[0], Doubt::about(&c));
        assert!(want.abs_f64() < 1e-6, "it cancels");
        let beside = |far: f64| want.add(Exact::f(far));
        // What two orders of summation gave of this very case: 6e-9 apart, where sqrt(u) of the mean allows 2e-10.
        assert!(doubt.excuses(0, 0, beside(6.2e-9)) && doubt.excuses(0, 0, want));
        assert!(!doubt.excuses(0, 0, Exact::f(0.0)), "nothing was computed");
        assert!(!doubt.excuses(0, 0, beside(1e-4)) && !doubt.excuses(0, 0, Exact::f(f64::NAN)));
        let c = Case { op: "no such op", ..c };
        assert!(!Doubt::about(&c).excuses(0, 0, want));
    }

    #[test]
    fn what_cancels_is_measured_by_what_it_was_taken_of() {
        let alone = slack(DType::F32, 4.6e-4, &[4.6e-4]);
        let beside = slack(DType::F32, 4.6e-4, &[1.7, 4.6e-4]);
        assert!(alone < 2e-7 && beside > 1e-6 && beside < 1e-5, "{alone:e} {beside:e}");
        assert_eq!(slack(DType::I32, 5.0, &[5.0]), 0.0);
        let t = HostTensor::from_slice(&[1.0f32, -3.0, f32::INFINITY, f32::NAN], &[4]).unwrap();
        assert_eq!((largest(&t, 0..4), largest(&t, 0..1)), (3.0, 1.0));
    }

    #[test]
    fn floats_are_read_as_exactly_as_by_the_judges() {
        let bits: Vec<u8> = (0..=u16::MAX).flat_map(|b| (u64::from(b) << 48 | u64::from(b)).to_le_bytes()).collect();
        for dtype in DType::ALL {
            let mut t = HostTensor::zeros(dtype, &[bits.len() as u64 / dtype.size()]).unwrap();
            t.bytes_mut().copy_from_slice(&bits);
            let Some(read) = floats(dtype) else {
                assert!(!dtype.is_float(), "{dtype}");
                continue;
            };
            for i in (0..t.len()).chain([t.len(), t.len() + 7]) {
                let (got, want) = (read(&t, i), Exact::read(&t, i).to_f64());
                assert!(got.to_bits() == want.to_bits() || got.is_nan() && want.is_nan(), "{dtype} {i}: {got} {want}");
            }
        }
    }

    #[test]
    fn one_wrong_element_of_any_dtype_is_found() {
        let op = op::find("add").unwrap();
        for dtype in DType::ALL {
            let c = op.case(dtype, &[500], Attrs::new(), Fill::Uniform).unwrap();
            let want = vec![case::inputs(op, &c).unwrap().remove(0)];
            assert!(wrong(&c, &want, &want, 1 << 16).is_none(), "{dtype}");
            let size = dtype.size() as usize;
            // Its largest exponent bit, or a high bit of an integer; and bits of what is no number.
            for byte in [want[0].bytes()[200 * size + size - 1] ^ 0x40, 0xFF] {
                let mut got = want.clone();
                got[0].bytes_mut()[200 * size..201 * size].fill(byte);
                let found = wrong(&c, &got, &want, 1 << 16);
                assert!(found.is_some_and(|w| w.element == 200), "{dtype} {byte:x}");
            }
        }
    }
}
