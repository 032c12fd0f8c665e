//! A run of `stress` as one page that needs nothing else: no script, no font, no picture from elsewhere.

use crate::base::record::StressRecord;
use crate::base::text::printable;
use crate::base::{Document, Record, Result, units};

use super::junit::escaped as xml;
use super::plot;

const STYLE: &str = "body{font:15px/1.45 sans-serif;max-width:1040px;margin:2em auto;padding:0 1em;color:#222}\
table{border-collapse:collapse;width:100%;font-size:14px}th,td{text-align:left;padding:.3em .6em;border-bottom:1px solid #ccc;\
vertical-align:top}.pass{color:#006b4a}.inconclusive{color:#8a5a00}.bad{color:#b00020}h2{margin-top:2em}svg{max-width:100%;\
height:auto}code{background:#f2f2f2;padding:.1em .3em;overflow-wrap:anywhere}small{color:#555}";

/// The page: the run's last line, devices, a table of the phases, what was not tested, and the course of each phase.
///
/// Errors: `Internal` if a chart cannot be drawn.
pub fn stress(doc: &Document, line: &str, not_tested: &[String]) -> Result<String> {
    let rows: Vec<&StressRecord> =
        doc.records.iter().filter_map(|r| if let Record::Stress(s) = r { Some(s.as_ref()) } else { None }).collect();
    let mut out = String::from("<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n");
    out.push_str(&format!(
        "<title>gpuctl stress</title>\n<style>{STYLE}</style></head><body>\n<h1>gpuctl stress</h1>\n"
    ));
    let word = line.trim_start_matches("interrupted; ").split([':', ' ']).next().unwrap_or_default();
    out.push_str(&format!("<p class=\"{}\"><strong>{}</strong></p>\n", class(word), text(line)));
    if !doc.complete {
        out.push_str("<p class=\"inconclusive\">The run was cut short; what is here is valid.</p>\n");
    }
    let host = &doc.host;
    let memory = units::bytes(host.memory_bytes);
    out.push_str(&format!(
        "<p><small>gpuctl {}; {}, {} CPUs, {memory}, {}; command: <code>{}</code>; exit code {}</small></p>\n",
        text(&doc.gpuctl),
        text(&host.cpu),
        host.cpus,
        text(&host.os),
        text(&doc.command.join(" ")),
        doc.exit_code
    ));
    out.push_str("<h2>Devices</h2>\n<ul>\n");
    for d in &doc.devices {
        let (id, name, uid) = (text(&d.id), text(&d.name), text(&d.uid));
        out.push_str(&format!("<li>{id}: {name} <small>{uid}, driver {}</small></li>\n", text(&d.driver)));
    }
    out.push_str("</ul>\n<h2>Phases</h2>\n<table><tr><th>scenario</th><th>device</th><th>verdict</th><th>tested</th>");
    out.push_str("<th>cycles</th><th>checked</th><th>wrong</th><th>failed</th><th>why</th></tr>\n");
    for r in &rows {
        out.push_str(&format!(
            "<tr><td>{}</td><td>{}</td><td class=\"{}\">{}</td><td>{}</td><td>{} of {}</td><td>{}</td><td>{}</td><td>{}</td>\
             <td>{}</td></tr>\n",
            text(&r.scenario),
            text(&r.device),
            class(&r.verdict),
            text(&r.verdict),
            units::seconds(r.seconds),
            r.done,
            r.planned,
            units::bytes(r.bytes_checked),
            r.mismatches,
            r.errors,
            text(&r.reason)
        ));
    }
    out.push_str(
        "</table>\n<p><small>A pass covers these phases and nothing else.</small></p>\n<h2>Not tested</h2>\n<ul>\n",
    );
    for what in not_tested {
        out.push_str(&format!("<li>{}</li>\n", text(what)));
    }
    out.push_str(if not_tested.is_empty() { "<li>nothing of the plan was left out</li>\n</ul>\n" } else { "</ul>\n" });
    for r in rows {
        out.push_str(&phase(r)?);
    }
    out.push_str("</body></html>\n");
    Ok(out)
}

fn phase(r: &StressRecord) -> Result<String> {
    let (name, verdict) = (text(&r.scenario), text(&r.verdict));
    let head =
        format!("<h2>{name} on {}: <span class=\"{}\">{verdict}</span></h2>\n", text(&r.device), class(&r.verdict));
    let mut out = head;
    for finding in &r.findings {
        out.push_str(&format!("<p class=\"bad\">{}</p>\n", text(finding)));
    }
    if !r.telemetry.throttle.is_empty() {
        out.push_str(&format!("<p>clocks were lowered: {}</p>\n", text(&r.telemetry.throttle.join(" "))));
    }
    match plot::stress(r)? {
        Some(svg) => out.push_str(&svg),
        None => out.push_str("<p>Fewer than two samples: nothing to draw.</p>\n"),
    }
    out.push_str(&format!("<p><small>again: <code>{}</code></small></p>\n", text(&r.rerun)));
    Ok(out)
}

fn class(verdict: &str) -> &'static str {
    match verdict {
        "pass" => "pass",
        "inconclusive" => "inconclusive",
        _ => "bad",
    }
}

/// Text from outside: nothing of it is markup, and nothing of it hides or turns around.
fn text(outside: &str) -> String {
    xml(&printable(outside))
}
