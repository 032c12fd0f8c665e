//! Lines of `devices --trial`, and of what trials have left on record.

use crate::base::record::TrialRecord;
use crate::base::text::printable;

/// What came of one device's trial.
pub fn line(r: &TrialRecord) -> String {
    let text = match (r.fitness.as_str(), &r.found) {
        ("unfit", found) => {
            let of = format!("{} of {} cases failed", r.failed, r.failed + r.passed);
            let rerun = r.rerun.as_deref().unwrap_or_default();
            let found = found.as_deref().unwrap_or_default();
            format!("unfit: {}: {}{found}; {of}\n    rerun: {rerun}", r.device, case(r))
        }
        ("fit", _) => {
            let rest = if r.left_out > 0 { format!(", {} left out", r.left_out) } else { String::new() };
            format!("fit: {}: {} cases of {} ops passed{rest}", r.device, r.passed, r.ops)
        }
        _ => format!("not judged: {}: {}", r.device, r.reason),
    };
    printable(&text).into_owned()
}

/// The line of a listed device that is on record as unfit; `None` for any other.
pub fn unfit(r: &TrialRecord) -> Option<String> {
    let found = r.found.as_deref().filter(|_| r.fitness == "unfit")?;
    let again = format!("run `gpuctl devices --trial --device {}` to try again", r.device);
    // One line, whatever the file says.
    let text = format!("unfit: {}: {}{found}; {again}", r.device, case(r));
    Some(printable(&text).replace(['\n', '\t'], " "))
}

fn case(r: &TrialRecord) -> String {
    r.case.as_ref().map_or(String::new(), |c| format!("{c}: "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_says_what_and_what_next() {
        let r = TrialRecord {
            device: "opencl:0".into(),
            fitness: "unfit".into(),
            case: Some("add/f32/n257/-/uniform".into()),
            found: Some("element 0 is 1,\nexpected 2\u{1b}[2J".into()),
            rerun: Some("gpuctl verify ..".into()),
            ..TrialRecord::default()
        };
        assert!(line(&r).ends_with("\n    rerun: gpuctl verify .."), "{}", line(&r));
        let listed = unfit(&r).unwrap();
        assert!(
            listed.starts_with("unfit: opencl:0: add/f32/n257/-/uniform: element 0 is 1, expected 2\\u{1b}[2J; run")
        );
        let fit = TrialRecord { fitness: "fit".into(), passed: 9, ops: 2, left_out: 3, found: None, ..r };
        assert_eq!(line(&fit), "fit: opencl:0: 9 cases of 2 ops passed, 3 left out");
        assert_eq!(unfit(&fit), None);
    }
}
