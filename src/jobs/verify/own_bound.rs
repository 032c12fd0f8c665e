//! `--rtol X --atol Y`: results judged by the user's own bound instead of the derived one.
//!
//! The derived bound is asked about every element all the same: where it rejects what the user's accepts, the record says
//! so by the flag `beyond-own-bound`. Only finite values are measured by the user's bound; whether NaN or an infinity may
//! stand at a place is not a matter of distance and stays with the derived one.

use crate::base::{Code, Error, Exact, Result};
use crate::op::tolerance::{Bound, Judged};

/// The flag of a record with an element that only the user's bound accepts.
pub(super) const BEYOND: &str = "beyond-own-bound";

/// |got - want| <= atol + rtol·|want|.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct OwnBound {
    rtol: f64,
    atol: f64,
}

impl OwnBound {
    /// Both must be finite and not negative; what is left out is zero. `None` if neither is given.
    pub fn new(rtol: Option<f64>, atol: Option<f64>) -> Result<Option<Self>> {
        for (name, value) in [("--rtol", rtol), ("--atol", atol)] {
            if let Some(v) = value
                && !(v.is_finite() && v >= 0.0)
            {
                return Err(Error::new(Code::BadArgument, format!("{name} {v}: expected a number from 0 on")));
            }
        }
        let given = rtol.is_some() || atol.is_some();
        Ok(given.then(|| OwnBound { rtol: rtol.unwrap_or(0.0), atol: atol.unwrap_or(0.0) }))
    }

    /// The bound in words.
    pub fn words(&self) -> String {
        format!("asked for: |got - want| <= {:e} + {:e} |want|", self.atol, self.rtol)
    }

    /// The options that give it, for rerun commands.
    pub fn options(&self) -> String {
        format!("--rtol {:e} --atol {:e}", self.rtol, self.atol)
    }

    /// The same element judged by this bound, given what the derived one said.
    fn judge(&self, derived: Judged, want: Exact) -> Judged {
        match derived.error {
            // What the language leaves open stays open.
            Some(error) if !derived.undefined => {
                let allowed = self.atol + self.rtol * want.abs_f64();
                Judged { ok: error <= allowed, allowed, ..derived }
            }
            _ => derived,
        }
    }
}

/// The bound of one output, and the user's, which then decides.
#[derive(Clone, Copy, Debug)]
pub(super) struct Judge<'a> {
    pub(super) bound: &'a Bound,
    pub(super) own: Option<OwnBound>,
}

impl Judge<'_> {
    /// Judges one element; true if it passes although the derived bound rejects it.
    pub(super) fn judge(&self, got: Exact, want: Exact, scale: f64) -> (Judged, bool) {
        let derived = self.bound.judge(got, want, scale);
        match self.own {
            None => (derived, false),
            Some(own) => {
                let judged = own.judge(derived, want);
                (judged, judged.ok && !derived.ok)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::{Attrs, Case, DType, Fill, Lang};
    use crate::op::Tolerance;

    fn bound(lang: Lang) -> Bound {
        let case = Case { op: "t", dtype: DType::F32, dims: vec![("n", 4)], attrs: Attrs::new(), fill: Fill::Uniform };
        Tolerance::Rounded.bound(&case, lang, DType::F32).unwrap()
    }

    fn judged(own: OwnBound, got: f64, want: f64) -> (bool, bool) {
        let bound = bound(Lang::Native);
        let (j, beyond) = Judge { bound: &bound, own: Some(own) }.judge(Exact::f(got), Exact::f(want), 1.0);
        (j.ok, beyond)
    }

    #[test]
    fn a_looser_bound_passes_and_is_told() {
        let own = OwnBound::new(Some(1e-3), Some(1e-6)).unwrap().unwrap();
        assert_eq!(judged(own, 1.0005, 1.0), (true, true));
        assert_eq!(judged(own, 1.0, 1.0), (true, false));
        assert_eq!(judged(own, 1.002, 1.0), (false, false));
        assert_eq!(judged(own, 9e-7, 0.0), (true, true));
        // 1e-6 + 1e-3 · 40, and nothing beyond.
        assert_eq!((judged(own, 40.04, 40.0), judged(own, 40.0402, 40.0)), ((true, true), (false, false)));
        assert_eq!(own.options(), "--rtol 1e-3 --atol 1e-6");
        assert_eq!(own.words(), "asked for: |got - want| <= 1e-6 + 1e-3 |want|");
        assert_eq!(judged(own, f64::NAN, 1.0), (false, false), "no distance makes NaN right");
        assert_eq!(judged(own, f64::INFINITY, f64::INFINITY), (true, false));
        assert_eq!(judged(own, f64::NEG_INFINITY, f64::INFINITY), (false, false));
        // The nearest f32 to 2e39 is an infinity: that is right by any bound.
        assert_eq!(judged(own, f64::INFINITY, 2e39), (true, false));
    }

    #[test]
    fn a_tighter_bound_decides_too() {
        let none = OwnBound::new(Some(0.0), None).unwrap().unwrap();
        let third = 1.0 / 3.0;
        assert_eq!(judged(none, f64::from(third as f32), third), (false, false));
        assert_eq!(judged(none, 0.5, 0.5), (true, false));
        let case = Case { op: "t", dtype: DType::I32, dims: vec![("n", 4)], attrs: Attrs::new(), fill: Fill::Uniform };
        let bound = Tolerance::Exact.bound(&case, Lang::Native, DType::I32).unwrap();
        let own = OwnBound::new(None, Some(1.0)).unwrap();
        let (j, beyond) = Judge { bound: &bound, own }.judge(Exact::I(8), Exact::I(7), 0.0);
        assert!(j.ok && beyond, "integers, too");
    }

    #[test]
    fn what_is_no_bound_is_refused() {
        assert!(OwnBound::new(None, None).unwrap().is_none());
        for (r, a) in [(Some(-1.0), None), (None, Some(f64::NAN)), (Some(f64::INFINITY), Some(1.0))] {
            assert_eq!(OwnBound::new(r, a).unwrap_err().code(), Code::BadArgument);
        }
    }
}
