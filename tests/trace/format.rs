//! Chrome's format as a viewer reads it.

use std::collections::{BTreeMap, HashMap};

use serde_json::Value;

use gpuctl::base::chrome;
use gpuctl::base::trace::Trace;

/// Microseconds by which equal times may differ. On the simulator's clock a region begins at the very moment in which the one
/// before ends.
pub(crate) const ROUNDING: f64 = 1e-4;

/// An event of a document.
#[derive(Clone, Debug)]
pub(crate) struct Ev {
    pub(crate) ph: String,
    pub(crate) cat: String,
    pub(crate) name: String,
    pub(crate) pid: u64,
    pub(crate) tid: u64,
    pub(crate) ts: f64,
    pub(crate) dur: f64,
    pub(crate) args: Value,
}

impl Ev {
    pub(crate) fn text(&self, arg: &str) -> &str {
        self.args[arg].as_str().unwrap_or("")
    }
    pub(crate) fn number(&self, arg: &str) -> u64 {
        self.args[arg].as_u64().unwrap_or(0)
    }
    pub(crate) fn end(&self) -> f64 {
        self.ts + self.dur
    }
}

/// Reads a document as a viewer does. Errors: what is not in the format.
pub(crate) fn parse(doc: &Value) -> Result<Vec<Ev>, String> {
    let list = doc["traceEvents"].as_array().ok_or("no traceEvents")?;
    if !matches!(doc["displayTimeUnit"].as_str(), Some("ns" | "ms")) {
        return Err("displayTimeUnit is neither ns nor ms".into());
    }
    let mut events = Vec::new();
    let mut named: HashMap<(u64, u64), String> = HashMap::new();
    let mut processes = Vec::new();
    for e in list {
        let bad = |why: &str| Err(format!("{why}: {e}"));
        let (Some(ph), Some(name)) = (e["ph"].as_str(), e["name"].as_str()) else { return bad("no ph or name") };
        let (Some(pid), Some(tid)) = (e["pid"].as_u64(), e["tid"].as_u64()) else { return bad("no pid or tid") };
        if ph == "M" {
            match (name, e["args"]["name"].as_str(), e["args"]["sort_index"].as_u64()) {
                ("process_name", Some(_), _) => processes.push(pid),
                ("thread_name", Some(n), _) => drop(named.insert((pid, tid), n.into())),
                ("thread_sort_index", _, Some(_)) => {}
                _ => return bad("unknown metadata"),
            }
            continue;
        }
        let Some(ts) = e["ts"].as_f64().filter(|t| t.is_finite() && *t >= 0.0) else { return bad("no ts") };
        let dur = e["dur"].as_f64();
        match ph {
            "X" if dur.is_some_and(|d| d.is_finite() && d >= 0.0) => {}
            "i" if e["s"] == "t" && dur.is_none() => {}
            "C" if e["args"].as_object().is_some_and(|a| !a.is_empty() && a.values().all(Value::is_number)) => {}
            _ => return bad("not in the format"),
        }
        if ph != "C" && (e["cat"].as_str().is_none() || !e["args"].is_object()) {
            return bad("no cat or args");
        }
        events.push(Ev {
            ph: ph.into(),
            cat: e["cat"].as_str().unwrap_or("").into(),
            name: name.into(),
            pid,
            tid,
            ts,
            dur: dur.unwrap_or(0.0),
            args: e["args"].clone(),
        });
    }
    let mut once = processes.clone();
    once.sort_unstable();
    once.dedup();
    if once.len() != processes.len() {
        return Err(format!("a process is named twice: {processes:?}"));
    }
    let mut rows: BTreeMap<(u64, u64), Vec<&Ev>> = BTreeMap::new();
    for e in &events {
        if !processes.contains(&e.pid) || (e.ph != "C" && !named.contains_key(&(e.pid, e.tid))) {
            return Err(format!("its row has no name: {e:?}"));
        }
        if e.ph == "X" {
            rows.entry((e.pid, e.tid)).or_default().push(e);
        }
    }
    // A viewer stacks what lies within another event; what overlaps in part cannot be drawn.
    for row in rows.values_mut() {
        row.sort_by(|a, b| a.ts.total_cmp(&b.ts).then(b.dur.total_cmp(&a.dur)));
        let mut stack: Vec<&Ev> = Vec::new();
        for e in row.iter() {
            while stack.last().is_some_and(|top| top.end() <= e.ts + ROUNDING) {
                stack.pop();
            }
            if let Some(top) = stack.last().filter(|top| e.end() > top.end() + ROUNDING) {
                return Err(format!("overlap: {e:?} with {top:?}"));
            }
            stack.push(e);
        }
    }
    Ok(events)
}

pub(crate) fn document(trace: &Trace) -> Value {
    let mut text = Vec::new();
    assert_eq!(chrome::write(trace, chrome::MOST_EVENTS, &mut text).unwrap(), 0);
    serde_json::from_slice(&text).unwrap()
}

#[test]
fn what_is_not_in_the_format_is_refused() {
    let doc = |events: &str| -> Value {
        let names = r#"{"ph":"M","name":"process_name","pid":1,"tid":0,"args":{"name":"p"}},
            {"ph":"M","name":"thread_name","pid":1,"tid":1,"args":{"name":"t"}}"#;
        let text = format!(r#"{{"displayTimeUnit":"ns","traceEvents":[{names},{events}]}}"#);
        serde_json::from_str(&text).unwrap()
    };
    let x = |ts: f64, dur: f64, tid: u64| {
        format!(r#"{{"ph":"X","name":"n","cat":"c","pid":1,"tid":{tid},"ts":{ts},"dur":{dur},"args":{{}}}}"#)
    };
    let good = [x(0.0, 10.0, 1), x(1.0, 2.0, 1), x(4.0, 6.0, 1), x(10.0, 1.0, 1)].join(",");
    assert_eq!(parse(&doc(&good)).unwrap().len(), 4);
    for (events, why) in [
        ([x(0.0, 10.0, 1), x(5.0, 6.0, 1)].join(","), "overlap"),
        (x(0.0, 1.0, 2), "no name"),
        (x(-1.0, 1.0, 1), "no ts"),
        (x(0.0, 1.0, 1).replace("\"dur\":1,", ""), "not in the format"),
        (x(0.0, 1.0, 1).replace("\"X\"", "\"B\""), "not in the format"),
        (x(0.0, 1.0, 1).replace("\"cat\":\"c\",", ""), "no cat"),
        (r#"{"ph":"C","name":"m","pid":1,"tid":0,"ts":0,"args":{}}"#.into(), "not in the format"),
    ] {
        let found = parse(&doc(&events)).unwrap_err();
        assert!(found.contains(why), "{events}: {found}");
    }
}
