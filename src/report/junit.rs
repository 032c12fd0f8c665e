//! Verify and stress records as JUnit XML, which CI systems read: one test case per record.

use crate::base::Record;
use crate::base::record::{Status, StressRecord, VerifyRecord};

/// All verify records; other kinds have no form here. A case that was not run is skipped, never passed.
pub fn verify(records: &[Record], interrupted: bool) -> String {
    let rows: Vec<&VerifyRecord> =
        records.iter().filter_map(|r| if let Record::Verify(v) = r { Some(v.as_ref()) } else { None }).collect();
    let count = |of: fn(Status) -> bool| rows.iter().filter(|r| of(r.subject.status)).count();
    let (failed, left_out) = (count(is_failure), count(is_skip));
    // An interrupted run must not look like a passed one.
    let errors = usize::from(interrupted);
    let totals =
        format!("tests=\"{}\" failures=\"{failed}\" errors=\"{errors}\" skipped=\"{left_out}\"", rows.len() + errors);
    let mut out = format!("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuites {totals}>\n");
    out.push_str(&format!("  <testsuite name=\"gpuctl verify\" {totals}>\n"));
    for row in rows {
        out.push_str(&test_case(row));
    }
    if interrupted {
        out.push_str("    <testcase classname=\"gpuctl\" name=\"the whole run\">\n");
        out.push_str("      <error message=\"interrupted: later cases are missing\"/>\n    </testcase>\n");
    }
    out.push_str("  </testsuite>\n</testsuites>\n");
    out
}

/// All stress records: a test case for each phase. A phase that proves nothing and a worker that crashed are errors, never
/// passed and never only skipped. `line` is the run's last line, `whole` false if phases are missing.
pub fn stress(records: &[Record], line: &str, whole: bool) -> String {
    let rows: Vec<&StressRecord> =
        records.iter().filter_map(|r| if let Record::Stress(s) = r { Some(s.as_ref()) } else { None }).collect();
    let count = |of: fn(&str) -> bool| rows.iter().filter(|r| of(&r.verdict)).count();
    // A run without all of its phases must not look like a passed one.
    let missing = usize::from(!whole || rows.is_empty());
    let (failed, errors) = (count(|v| v != "pass" && !proves_nothing(v)), count(proves_nothing) + missing);
    let tests = rows.len() + missing;
    let totals = format!("tests=\"{tests}\" failures=\"{failed}\" errors=\"{errors}\" skipped=\"0\"");
    let mut out = format!("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuites {totals}>\n");
    out.push_str(&format!("  <testsuite name=\"gpuctl stress\" {totals}>\n"));
    for r in rows {
        out.push_str(&phase(r));
    }
    if missing > 0 {
        out.push_str("    <testcase classname=\"gpuctl\" name=\"the whole run\">\n");
        out.push_str(&format!("      <error message=\"{}\"/>\n    </testcase>\n", escaped(line)));
    }
    out.push_str("  </testsuite>\n</testsuites>\n");
    out
}

fn proves_nothing(verdict: &str) -> bool {
    matches!(verdict, "inconclusive" | "crash")
}

fn phase(r: &StressRecord) -> String {
    let (class, name) = (format!("{}.stress", r.device), escaped(&r.scenario));
    let class = escaped(&class);
    let mut out = format!("    <testcase classname=\"{class}\" name=\"{name}\" time=\"{:.3}\">\n", r.seconds);
    out.push_str("      <properties>\n");
    for (name, value) in [
        ("uid", r.uid.clone()),
        ("cycles", r.done.to_string()),
        ("cycles_planned", r.planned.to_string()),
        ("bytes_checked", r.bytes_checked.to_string()),
        ("mismatches", r.mismatches.to_string()),
        ("errors", r.errors.to_string()),
        ("restarts", r.restarts.to_string()),
    ] {
        out.push_str(&format!("        <property name=\"{name}\" value=\"{}\"/>\n", escaped(&value)));
    }
    out.push_str("      </properties>\n");
    if r.verdict != "pass" {
        let tag = if proves_nothing(&r.verdict) { "error" } else { "failure" };
        let (kind, message) = (escaped(&r.verdict), escaped(&r.reason));
        let details: Vec<String> = r.findings.iter().cloned().chain([format!("rerun: {}", r.rerun)]).collect();
        out.push_str(&format!("      <{tag} type=\"{kind}\" message=\"{message}\">"));
        out.push_str(&escaped(&details.join("\n")));
        out.push_str(&format!("</{tag}>\n"));
    }
    out.push_str("    </testcase>\n");
    out
}

fn is_failure(s: Status) -> bool {
    matches!(s, Status::Failed | Status::Suspect)
}

fn is_skip(s: Status) -> bool {
    matches!(s, Status::Unsupported | Status::Skipped)
}

fn test_case(r: &VerifyRecord) -> String {
    let s = &r.subject;
    let class = format!("{}.{}.{}", s.device, s.op, s.dtype);
    let name = if s.variant.is_empty() { r.case.clone() } else { format!("{} +{}", r.case, s.variant) };
    let mut out = format!("    <testcase classname=\"{}\" name=\"{}\">\n", escaped(&class), escaped(&name));
    out.push_str("      <properties>\n");
    for (name, value) in [("tolerance", r.tolerance.clone()), ("flags", s.flags.join(" ")), ("uid", s.uid.clone())] {
        if !value.is_empty() {
            out.push_str(&format!("        <property name=\"{name}\" value=\"{}\"/>\n", escaped(&value)));
        }
    }
    out.push_str("      </properties>\n");
    if is_failure(s.status) {
        let kind = if r.detectors.is_empty() { s.status.name().to_string() } else { r.detectors.join(",") };
        let message = escaped(&s.reason);
        out.push_str(&format!("      <failure type=\"{}\" message=\"{message}\">", escaped(&kind)));
        out.push_str(&escaped(&details(r)));
        out.push_str("</failure>\n");
    } else if is_skip(s.status) {
        out.push_str(&format!("      <skipped message=\"{}: {}\"/>\n", s.status.name(), escaped(&s.reason)));
    }
    out.push_str("    </testcase>\n");
    out
}

/// The worst element and the command that repeats the case.
fn details(r: &VerifyRecord) -> String {
    let mut lines = Vec::new();
    if let (Some(got), Some(want)) = (&r.worst_got, &r.worst_want) {
        let mut line = format!("worst element {:?}: got {got}, want {want}", r.worst_at);
        if let (Some(error), Some(bound)) = (r.worst_error, r.worst_bound) {
            line.push_str(&format!(", error {error:e}, bound {bound:e}"));
        }
        lines.push(line);
    }
    lines.push(format!("{} of {} elements wrong", r.wrong, r.compared));
    lines.push(format!("rerun: {}", r.rerun));
    lines.join("\n")
}

/// Text as XML 1.0 takes it, in attributes and between tags. What it cannot hold (control characters) becomes `?`.
pub(super) fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\n' | '\t' => out.push_str(&format!("&#{};", c as u32)),
            '\u{FFFE}' | '\u{FFFF}' => out.push('?'),
            c if c.is_control() => out.push('?'),
            c => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_survives_as_xml() {
        assert_eq!(escaped("a<b> & \"c\"\nd\u{1}é"), "a&lt;b&gt; &amp; &quot;c&quot;&#10;d?é");
    }

    #[test]
    fn no_records_are_no_tests_and_an_interruption_is_an_error() {
        assert!(verify(&[], false).contains("tests=\"0\" failures=\"0\" errors=\"0\" skipped=\"0\""));
        let cut = verify(&[], true);
        assert!(cut.contains("tests=\"1\"") && cut.contains("errors=\"1\"") && cut.contains("<error message"));
    }
}
