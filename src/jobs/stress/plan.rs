//! What fits into the time: scenarios by importance, each with at least its floor. Pure.

use super::scenario::Scenario;
use crate::base::{DeviceInfo, units};

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
    let left_out = no_room(&left_out, rows.len(), seconds);
    let shares = shares(&taken.iter().map(|s| s.least_seconds).collect::<Vec<_>>(), seconds);
    let phases = taken.into_iter().zip(shares).map(|(scenario, seconds)| Planned { scenario, seconds }).collect();
    Plan { phases, left_out }
}

/// What has no place in so many seconds, in words.
fn no_room(left_out: &[&Scenario], of: usize, seconds: f64) -> Vec<String> {
    let names: Vec<_> = left_out.iter().map(|s| s.name).collect();
    match names.len() {
        0 => Vec::new(),
        n => vec![format!(
            "{} ({n} of {of} scenarios): {} has no room for their floors",
            names.join(", "),
            units::seconds(seconds)
        )],
    }
}

/// The plans of devices that are one card. A phase that fills the card's memory ([`Scenario::fills`]) has the card alone: it comes
/// last, when the others are done, and what each device does before is planned for what is left of the time, so that all of
/// them end together. A filling phase gets what an equal part would be in the plan of a device that waits for all of them.
///
/// Unless it was asked for by name, a scenario fills nothing where its floors leave no room for those of more important ones.
pub fn on_card(rows: &[&'static Scenario], asked: bool, seconds: f64, devices: &[&DeviceInfo]) -> Vec<Plan> {
    let alone = plan(rows, asked, seconds);
    let fillers = |row: &Scenario| devices.iter().filter(|d| (row.fills)(d)).count();
    if devices.len() < 2 || !rows.iter().any(|row| fillers(row) > 0) {
        return vec![alone; devices.len()];
    }
    // Each filling phase: its row among all, and its floor.
    let mut filling: Vec<(&'static Scenario, f64)> = Vec::new();
    let (mut before, mut least) = (0.0, 0.0);
    for row in alone.phases.iter().map(|p| p.scenario) {
        let all = fillers(row) as f64 * row.least_seconds;
        if all > 0.0 && (asked || before + least + all <= seconds) {
            least += all;
            filling.extend(std::iter::repeat_n((row, row.least_seconds), fillers(row)));
        }
        before += row.least_seconds;
    }
    let floors = alone.phases.iter().map(|p| p.scenario.least_seconds).chain(filling.iter().map(|f| f.1));
    let floors: Vec<f64> = floors.collect();
    if asked || floors.iter().sum::<f64>() <= seconds {
        let shares = shares(&floors, seconds);
        filling.iter_mut().zip(&shares[alone.phases.len()..]).for_each(|(f, share)| f.1 = *share);
    }
    let rest = seconds - filling.iter().map(|f| f.1).sum::<f64>();
    let of = |device: &&DeviceInfo| {
        let (own, ordinary): (Vec<&'static Scenario>, Vec<_>) = rows.iter().partition(|row| (row.fills)(device));
        let mut phases = plan(&ordinary, asked, rest).phases;
        for row in own {
            let seconds = filling.iter().find(|f| f.0.name == row.name).map(|f| f.1);
            phases.extend(seconds.map(|seconds| Planned { scenario: row, seconds }));
        }
        let missing = |row: &&&'static Scenario| !phases.iter().any(|p| p.scenario.name == row.name);
        let missing: Vec<&Scenario> = rows.iter().filter(missing).copied().collect();
        let left_out = no_room(&missing, rows.len(), phases.iter().map(|p| p.seconds).sum());
        let left_out = left_out.into_iter().map(|what| format!("on {}: {what}", device.id)).collect();
        Plan { phases, left_out }
    };
    devices.iter().map(of).collect()
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
        Scenario { name, doc: "", least_seconds, floor: |_, _| 1, lanes: |_| 1, fills: |_| false, run: |_| Ok(()) }
    }
    static ROWS: [Scenario; 4] = [row("first", 2.0), row("long", 10.0), row("third", 2.0), row("last", 1.0)];

    /// Rows of which `name` fills the memory of devices that are called `cuda`.
    fn filled(name: &str) -> Vec<&'static Scenario> {
        let fills = |d: &DeviceInfo| d.id.starts_with("cuda");
        let of = |r: &Scenario| Scenario {
            fills: if r.name == name { fills } else { |_| false },
            ..row(r.name, r.least_seconds)
        };
        ROWS.iter().map(|r| &*Box::leak(Box::new(of(r)))).collect()
    }

    fn devices(ids: &[&str]) -> Vec<DeviceInfo> {
        ids.iter().map(|id| DeviceInfo { id: id.to_string(), ..DeviceInfo::ordinary_gpu() }).collect()
    }

    type Shown = Vec<(&'static str, f64)>;

    fn card(rows: &[&'static Scenario], asked: bool, seconds: f64, ids: &[&str]) -> (Vec<Shown>, Vec<String>) {
        let devices = devices(ids);
        let plans = on_card(rows, asked, seconds, &devices.iter().collect::<Vec<_>>());
        let shown = plans.iter().map(|p| p.phases.iter().map(|p| (p.scenario.name, p.seconds)).collect()).collect();
        (shown, plans.into_iter().flat_map(|p| p.left_out).collect())
    }

    /// The others are done when it begins, and nobody ends later than was asked.
    #[test]
    fn who_fills_a_card_has_it_alone_at_the_end_and_all_end_together() {
        let rows = filled("third");
        let (plans, left_out) = card(&rows, false, 100.0, &["cuda:0", "opencl:0", "wgpu:0"]);
        // One part in five is for the filling phase.
        assert_eq!(plans[0], [("first", 80.0 / 3.0), ("long", 80.0 / 3.0), ("last", 80.0 / 3.0), ("third", 20.0)]);
        assert_eq!(plans[1], [("first", 20.0), ("long", 20.0), ("third", 20.0), ("last", 20.0)]);
        assert_eq!((&plans[1], left_out), (&plans[2], vec![]));
        for (asked, seconds) in [(false, 20.0), (false, 17.0), (false, 6.0), (true, 8.0), (true, 1.0)] {
            let (plans, _) = card(&rows, asked, seconds, &["cuda:0", "cuda:1", "opencl:0"]);
            let sum = |p: &Shown| p.iter().map(|p| p.1).sum::<f64>();
            let fill = |p: &Shown| p.iter().filter(|p| p.0 == "third").map(|p| p.1).sum::<f64>();
            let both = fill(&plans[0]) + fill(&plans[1]);
            for (p, own) in plans.iter().zip([fill(&plans[0]), fill(&plans[1]), 0.0]) {
                let wall = sum(p) - own + both;
                assert!((wall - seconds).abs() < 1e-9, "{asked} {seconds}: {wall}: {plans:?}");
                assert!(p.iter().all(|p| p.1 > 0.0), "{plans:?}");
                assert!(asked || p.iter().all(|p| p.1 >= rows.iter().find(|r| r.name == p.0).unwrap().least_seconds));
            }
        }
    }

    #[test]
    fn a_device_alone_on_its_card_or_beside_none_that_fills_is_planned_for_as_ever() {
        for (rows, ids) in [
            (filled("third"), &["cuda:0"][..]),
            (filled("third"), &["opencl:0", "wgpu:0"]),
            (filled("-"), &["cuda:0", "wgpu:0"]),
        ] {
            for seconds in [0.5, 6.0, 100.0] {
                let (plans, left_out) = card(&rows, false, seconds, ids);
                let (want, out) = of(false, seconds);
                assert!(plans.iter().all(|p| *p == want), "{ids:?}: {plans:?}");
                assert!(left_out.iter().all(|what| out.contains(what)), "{left_out:?}");
            }
        }
    }

    #[test]
    fn little_time_is_for_floors_first_and_for_the_important_ones_first() {
        let rows = filled("third");
        // Alone there would be room for three; the other device waits for the second of them.
        let (plans, left_out) = card(&rows, false, 5.0, &["cuda:0", "opencl:0"]);
        assert_eq!(plans, [vec![("first", 2.0), ("last", 1.0), ("third", 2.0)], vec![("first", 2.0), ("last", 1.0)]]);
        assert_eq!(
            left_out,
            [
                "on cuda:0: long (1 of 4 scenarios): 5.00 s has no room for their floors",
                "on opencl:0: long, third (2 of 4 scenarios): 3.00 s has no room for their floors"
            ]
        );
        // Three that fill leave no room for what is more important.
        let (plans, left_out) = card(&rows, false, 7.0, &["cuda:0", "cuda:1", "cuda:2"]);
        assert!(plans.iter().all(|p| p.iter().all(|p| p.0 != "third")), "{plans:?}");
        assert!(left_out.len() == 3 && left_out[2].starts_with("on cuda:2: long, third (2 of 4"), "{left_out:?}");
        // What was asked for is divided, even if it is nothing else.
        let (plans, left_out) = card(&rows[2..3], true, 3.0, &["cuda:0", "opencl:0"]);
        assert_eq!((plans, left_out), (vec![vec![("third", 1.5)]; 2], vec![]));
    }

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
