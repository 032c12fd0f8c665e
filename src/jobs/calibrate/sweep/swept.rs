//! What came of a sweep so far, and what more looks may add.

use crate::base::Error;
use crate::measure::crossing::{OPEN_BELOW, Outcome};

use super::{SPENT, State};

/// What came of it, so far.
#[derive(Debug, Default)]
pub(crate) struct Swept {
    pub(super) state: State,
    /// True if a turn ended before what it was for.
    pub(crate) waits: bool,
    /// True if a residency has no verdict, or a wide one, and more time may give it one.
    pub(crate) undecided: bool,
    /// True if more time may reach larger sizes.
    pub(crate) cut_short: bool,
    /// One for each residency, sizes in the op's unit; and how many sizes of the first look it knows of.
    pub(super) outcomes: Vec<(Outcome, usize)>,
    /// Kernel on the device at the largest size.
    pub(crate) kernel: String,
    /// Calls that were timed, those to warm up among them: for the crossings, and at other shapes for the curves.
    pub(crate) calls: [u64; 2],
    /// Looks so far.
    pub(crate) looks: usize,
    /// Those of them that something else on the machine disturbed.
    pub(crate) disturbed: usize,
    /// Seconds of what is done once for a case, which no share is charged with ([`Timed::once_s`](crate::jobs::look::Timed)).
    pub(crate) once_s: f64,
    /// Seconds that went into narrower intervals, as they are counted.
    pub(crate) narrowed_s: f64,
    /// Why sizes beyond those of the first look are missing, if they are.
    pub(super) cut: Option<String>,
    /// A measured run whose result is grossly wrong.
    pub(crate) wrong: Option<String>,
    /// The error that ended the sweep, if one did.
    pub(crate) error: Option<Error>,
}

impl Swept {
    /// One residency of which this is known.
    #[cfg(test)]
    pub(crate) fn knowing(outcome: Outcome) -> Self {
        Swept { outcomes: vec![(outcome, 3)], ..Swept::default() }
    }

    /// True if a device went wrong.
    pub(crate) fn stopped(&self) -> bool {
        self.wrong.is_some() || self.error.is_some()
    }

    /// True if nothing that was measured counts: a result was wrong, or an error came before any verdict.
    pub(crate) fn is_void(&self) -> bool {
        let known = self.outcomes.iter().any(|(o, _)| !matches!(o, Outcome::Inconclusive(_)));
        self.wrong.is_some() || self.error.is_some() && !known
    }

    /// True if a residency's winner changes once, or nobody knows: more looks may tell more.
    pub(crate) fn is_open(&self) -> bool {
        use Outcome::{Crossing, Inconclusive};
        self.undecided || self.outcomes.iter().any(|(o, _)| matches!(o, Crossing { .. } | Inconclusive(_)))
    }

    /// Upper over lower end of the widest interval of a crossing.
    pub(crate) fn widest(&self) -> Option<f64> {
        let width = |o: &Outcome| match o {
            Outcome::Crossing { ci: [low, high], .. } => Some(*high as f64 / (*low).max(1) as f64),
            _ => None,
        };
        self.outcomes.iter().filter_map(|(o, _)| width(o)).max_by(f64::total_cmp)
    }

    /// True if the winner changes in a residency, or nobody knows yet whether it does.
    pub(crate) fn may_narrow(&self) -> bool {
        self.crosses() || self.outcomes.iter().any(|(o, _)| *o == Outcome::Inconclusive(SPENT))
    }

    /// True if the winner changes in a residency, or may where calls take little: without a curve the CPU would make them all.
    pub(crate) fn crosses(&self) -> bool {
        use Outcome::{Crossing, Inconclusive, NonMonotone};
        let changes = |o: &Outcome| matches!(o, Crossing { .. } | NonMonotone(_) | Inconclusive(OPEN_BELOW));
        self.outcomes.iter().any(|(o, _)| changes(o))
    }
}
