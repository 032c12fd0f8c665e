//! What codes mean, as text for a terminal and as the tables of `docs/errors.md`.

use crate::base::record::ExplainRecord;

/// One code in full.
pub fn one(r: &ExplainRecord) -> String {
    let mut out = match (&r.api, r.number) {
        (Some(api), Some(number)) => format!("{} ({api} {number}): a {}\n", r.name, r.what),
        (Some(api), None) => format!("{} ({api}): a {}\n", r.name, r.what),
        _ => format!("{}: {} {}\n", r.name, if r.what == "error" { "an" } else { "a" }, r.what),
    };
    let mut line = |label: &str, text: &str| {
        if !text.is_empty() {
            out.push_str(&format!("  {label:<9} {text}\n"));
        }
    };
    line("means", &r.means);
    line("error", r.code.as_deref().unwrap_or_default());
    line("class", r.class.as_deref().unwrap_or_default());
    line("severity", r.severity.as_deref().unwrap_or_default());
    line("gpuctl", &r.does);
    line("next", &r.next);
    for (i, status) in r.statuses.iter().enumerate() {
        line(if i == 0 { "comes of" } else { "" }, status);
    }
    out
}

/// Many codes, a row each, `width` columns wide if that is limited.
pub fn table(records: &[ExplainRecord], width: Option<u16>) -> String {
    let mut t = super::text::table(&["code", "what", "class", "severity", "means", "next"]);
    if let Some(width) = width {
        t.set_width(width);
    }
    for r in records {
        let name = r.number.map_or_else(|| r.name.clone(), |n| format!("{n} {}", r.name));
        let class = r.code.as_ref().or(r.class.as_ref()).map_or("", String::as_str);
        let severity = r.severity.as_deref().unwrap_or_default();
        t.add_row([name.as_str(), r.what.as_str(), class, severity, r.means.as_str(), r.next.as_str()]);
    }
    format!("{}\n", t.trim_fmt())
}

/// The table of `docs/errors.md`: errors in full, or the statuses of an API.
pub fn markdown(records: &[ExplainRecord]) -> String {
    let cell = |text: &str| text.replace('|', "\\|");
    let mut out = String::new();
    if records.iter().any(|r| r.what == "status") {
        out.push_str("| status | name | error | class |\n| --- | --- | --- | --- |\n");
        for r in records.iter().filter(|r| r.what == "status") {
            let number = r.number.map_or(String::new(), |n| n.to_string());
            let code = r.code.as_ref().map_or("that of the call".into(), |c| format!("`{c}`"));
            let class = r.class.as_deref().unwrap_or("never transient");
            out.push_str(&format!("| {number} | `{}` | {code} | {class} |\n", r.name));
        }
    } else {
        out.push_str("| code | class | severity | what happened | next step |\n| --- | --- | --- | --- | --- |\n");
        for r in records {
            let (class, severity) = (r.class.as_deref().unwrap_or("-"), r.severity.as_deref().unwrap_or("-"));
            out.push_str(&format!(
                "| `{}` | {class} | {severity} | {} | {} |\n",
                r.name,
                cell(&r.means),
                cell(&r.next)
            ));
        }
    }
    out
}
