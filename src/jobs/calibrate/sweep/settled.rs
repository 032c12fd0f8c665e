//! Where a crossing is once all keys have been looked at: in the state that thresholds are stated at, and without what looks have in
//! common.

use crate::measure::common::Common;
use crate::measure::crossing::{self, Look, Outcome, Plan};
use crate::measure::state::State;

use super::visits::{Series, alone, looks, stated};

/// Normal quantile of a 95 % interval.
const WITHIN: f64 = 1.96;

/// Parts of what a state does that are taken off, until a crossing is found among the sizes that were looked at: they lie around where it
/// was as the machine was.
const PARTS: [f64; 3] = [1.0, 0.5, 0.25];

/// A crossing there. What the machine's state does is taken off all looks, and the interval is theirs, wider by how far that is not known.
/// What looks at other keys have in common with these moves a crossing within its interval alone: whatever all keys' looks are off by
/// on average, all of them are off by, and their scatter without it does not tell. What is no crossing stays as it is, and so does
/// one that would not be known so; one that would lie beyond the sizes that were measured lies at their end.
pub(super) fn settled(
    outcome: Outcome,
    (series, plan): (&Series, &Plan),
    (common, state): (&Common, Option<State>),
    snap: &dyn Fn(u64) -> u64,
) -> Outcome {
    let Outcome::Crossing { .. } = outcome else { return outcome };
    let within = |mut looks: Vec<Look>| {
        looks.retain(|l| plan.grid.last() >= Some(&l.size));
        looks
    };
    let measured = within(looks(series));
    let find = |told: Vec<Look>| Crossing::of(crossing::so_far_as((&measured, &within(told)), plan, snap)?);
    let Some(mut known) = Crossing::of(outcome.clone()) else { return outcome };
    let (mut part, mut further) = (1.0, 1.0);
    if let Some(state) = state {
        let at = |part: f64, but: f64| find(stated(series, common, part, but));
        let found = PARTS.iter().find_map(|part| {
            let ends = [-1.0, 1.0].map(|sign| at(*part, sign * WITHIN * state.error));
            let [Some(low), Some(high)] = ends else { return None };
            Some((*part, at(0.0, 0.0)?, at(*part, 0.0)?, (high.size / low.size).ln().abs() / 2.0))
        });
        let Some((some, was, there, half)) = found else { return outcome };
        // What is left of the way is as long as the first part of it.
        (part, further) = (some, (there.size / was.size).powf(1.0 / some - 1.0));
        known = there.wider(half / some).times(further);
    }
    if common.is_known()
        && let Some(alone) = find(alone(series, common, part))
    {
        known.size = (alone.size * further).clamp(known.ci[0], known.ci[1]);
    }
    let ends = (plan.grid.first(), plan.grid.last());
    let (Some(first), Some(last)) = ends else { return outcome };
    known.within(*first as f64, *last as f64).outcome()
}

/// [`Outcome::Crossing`], but not between whole sizes.
#[derive(Clone, Copy, Debug)]
struct Crossing {
    size: f64,
    ci: [f64; 2],
    stake: f64,
    without: Option<usize>,
}

impl Crossing {
    fn of(outcome: Outcome) -> Option<Self> {
        match outcome {
            Outcome::Crossing { size, ci, stake, without } => {
                Some(Crossing { size: size as f64, ci: ci.map(|end| end as f64), stake, without })
            }
            _ => None,
        }
    }

    /// With an independent half more of its interval, in the logarithm.
    fn wider(self, half: f64) -> Self {
        let end = |end: f64, sign: f64| self.size * (sign * (end / self.size).ln().hypot(half)).exp();
        Crossing { ci: [end(self.ci[0].min(self.size), -1.0), end(self.ci[1].max(self.size), 1.0)], ..self }
    }

    fn times(self, by: f64) -> Self {
        Crossing { size: self.size * by, ci: self.ci.map(|end| end * by), ..self }
    }

    /// Of these sizes: beyond them nothing was measured in any state.
    fn within(self, first: f64, last: f64) -> Self {
        Crossing { size: self.size.clamp(first, last), ci: self.ci.map(|end| end.clamp(first, last)), ..self }
    }

    fn outcome(self) -> Outcome {
        // The first whole size from there on.
        let whole = |size: f64| (size - 1e-6).ceil().max(1.0) as u64;
        Outcome::Crossing { size: whole(self.size), ci: self.ci.map(whole), stake: self.stake, without: self.without }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interval_is_wider_by_what_is_not_known() {
        let known = Crossing { size: 1000.0, ci: [900.0, 1200.0], stake: 1.1, without: None };
        let same = known.wider(0.0);
        assert!((same.ci[0] - 900.0).abs() < 1e-6 && (same.ci[1] - 1200.0).abs() < 1e-6, "{same:?}");
        // Squares of logarithms add up; a point in time is known as closely as the error says.
        let wide = known.wider(0.1);
        assert!((wide.ci[0] / 1000.0).ln() < -0.145 && (wide.ci[0] / 1000.0).ln() > -0.146, "{wide:?}");
        let Outcome::Crossing { size, ci, .. } = (Crossing { ci: [1000.0; 2], ..known }).wider(0.05).outcome() else {
            panic!("no crossing");
        };
        assert_eq!((size, ci), (1000, [952, 1052]));
        let Outcome::Crossing { size, ci, .. } = known.within(1024.0, 1100.0).outcome() else { panic!("no crossing") };
        assert_eq!((size, ci), (1024, [1024, 1100]));
        let Outcome::Crossing { size, ci, .. } = known.times(1.1).outcome() else { panic!("no crossing") };
        assert_eq!((size, ci), (1100, [990, 1320]));
    }
}
