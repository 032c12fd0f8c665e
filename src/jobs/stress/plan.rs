//! What fits into the time: scenarios by importance, each with at least its floor. Pure.

use super::scenario::Scenario;
use crate::base::units;

/// A scenario and the seconds of its phase.
#[derive(Clone, Copy, Debug)]
pub struct Planned {
    /// The scenario.
    pub scenario: &'static Scenario,
    /// Seconds of its phase.
    pub seconds: f64,
}

/// The phases of a device, and what has no place among them.
#[derive(Clone, Debug)]
pub struct Plan {
    /// In the order in which they run.
    pub phases: Vec<Planned>,
    /// Scenarios that do not fit, by name and with the reason; empty if all do.
    pub left_out: Vec<String>,
}

/// Fits scenarios into `seconds`. `rows` are in order of importance. Unless they were `asked` for by name, as many of them
/// are taken as fit with their floors ([`Scenario::least_seconds`]), the important ones first, and at least the first;
/// the time is divided evenly, but nobody gets less than the floor. What was asked for is never left out: all get the same,
/// and a phase below its floor cannot pass.
pub fn plan(rows: &[&'static Scenario], asked: bool, seconds: f64) -> Plan {
    let mut taken: Vec<&'static Scenario> = Vec::new();
    let mut left_out: Vec<&'static Scenario> = Vec::new();
    let mut needed = 0.0;
    for row in rows {
        if asked || taken.is_empty() || needed + row.least_seconds <= seconds {
            needed += row.least_seconds;
            taken.push(row);
        } else {
            left_out.push(row);
        }
    }
    let names: Vec<_> = left_out.iter().map(|s| s.name).collect();
    let left_out = match names.len() {
        0 => Vec::new(),
        n => vec![format!(
            "{} ({n} of {} scenarios): {} has no room for their floors",
            names.join(", "),
            rows.len(),
            units::seconds(seconds)
        )],
    };
    let shares = shares(&taken.iter().map(|s| s.least_seconds).collect::<Vec<_>>(), seconds);
    let phases = taken.into_iter().zip(shares).map(|(scenario, seconds)| Planned { scenario, seconds }).collect();
    Plan { phases, left_out }
}

/// Divides `total` evenly, but gives nobody less than the floor; where the floors do not fit together, evenly alone.
fn shares(floors: &[f64], total: f64) -> Vec<f64> {
    let even = total / floors.len().max(1) as f64;
    if floors.iter().sum::<f64>() > total {
        return vec![even; floors.len()];
    }
    // Whoever needs more than an even share gets the floor; the others divide the rest. Each round settles at least one.
    let mut fixed = vec![false; floors.len()];
    loop {
        let rest: f64 = total - floors.iter().zip(&fixed).filter(|(_, f)| **f).map(|(s, _)| s).sum::<f64>();
        let open = fixed.iter().filter(|f| !**f).count();
        let share = rest / open.max(1) as f64;
        let mut settled = true;
        for (floor, fixed) in floors.iter().zip(&mut fixed) {
            if !*fixed && *floor > share {
                *fixed = true;
                settled = false;
            }
        }
        if settled {
            return floors.iter().zip(&fixed).map(|(floor, fixed)| if *fixed { *floor } else { share }).collect();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn row(name: &'static str, least_seconds: f64) -> Scenario {
        Scenario { name, doc: "", least_seconds, floor: |_, _| 1, lanes: |_| 1, run: |_| Ok(()) }
    }
    static ROWS: [Scenario; 4] = [row("first", 2.0), row("long", 10.0), row("third", 2.0), row("last", 1.0)];

    fn of(asked: bool, seconds: f64) -> (Vec<(&'static str, f64)>, Vec<String>) {
        let plan = plan(&ROWS.iter().collect::<Vec<_>>(), asked, seconds);
        (plan.phases.iter().map(|p| (p.scenario.name, p.seconds)).collect(), plan.left_out)
    }

    #[test]
    fn as_many_as_fit_the_important_ones_first() {
        assert_eq!(of(false, 100.0), (vec![("first", 25.0), ("long", 25.0), ("third", 25.0), ("last", 25.0)], vec![]));
        // Evenly would be 5 s each: one needs 10.
        let (phases, left_out) = of(false, 19.0);
        assert_eq!(phases, [("first", 3.0), ("long", 10.0), ("third", 3.0), ("last", 3.0)]);
        assert!(left_out.is_empty());
        let (phases, left_out) = of(false, 6.0);
        assert_eq!(phases, [("first", 2.0), ("third", 2.0), ("last", 2.0)]);
        assert_eq!(left_out, ["long (1 of 4 scenarios): 6.00 s has no room for their floors"]);
        let (phases, left_out) = of(false, 0.5);
        assert_eq!(phases, [("first", 0.5)], "an empty plan would test nothing");
        assert!(left_out[0].starts_with("long, third, last (3 of 4"), "{left_out:?}");
    }

    #[test]
    fn what_was_asked_for_runs_and_nothing_is_lost_of_the_time() {
        assert_eq!(of(true, 4.0), (ROWS.iter().map(|r| (r.name, 1.0)).collect(), vec![]));
        for seconds in [3.0, 7.7, 15.0, 16.0, 50.0] {
            let sum: f64 = of(false, seconds).0.iter().map(|p| p.1).sum();
            assert!((sum - seconds).abs() < 1e-9, "{seconds}: {sum}");
        }
    }
}
