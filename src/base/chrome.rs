//! Traces in Chrome's format (the "JSON Object Format" of its trace events), which Perfetto and chrome://tracing open.
//!
//! Spans are complete events (`X`), moments are instants (`i`), memory is a counter (`C`), names are metadata (`M`). Times are
//! microseconds. A process is a process, a queue or thread is a thread; what a device's own clock timed has a row of its own.

use std::collections::HashMap;
use std::io::{Result, Write};

use serde_json::{Map, Value, json};

use super::trace::{Event, Kind, Process, Trace};

/// Events beyond this many are left out of a file, the latest first, and counted as dropped: 400,000 make about 100 MB.
pub const MOST_EVENTS: usize = 400_000;

/// Writes the document; gives the number of events that found no room in it.
///
/// Real times of several processes have one zero, that of the first one; simulated times begin at zero in each.
pub fn write(trace: &Trace, most: usize, out: &mut dyn Write) -> Result<u64> {
    let zero = trace.processes.iter().map(|p| p.began_ns).min().unwrap_or(0);
    let all: usize = trace.processes.iter().map(|p| p.events.len() + p.memory.len()).sum();
    let mut summary = trace.summary();
    // Each process gives up the same share, so that none vanishes.
    let share = if all > most { most as f64 / all as f64 } else { 1.0 };
    let keep = |n: usize| (n as f64 * share).floor() as usize;
    let kept: usize = trace.processes.iter().map(|p| keep(p.events.len()) + keep(p.memory.len())).sum();
    let left_out = (all - kept) as u64;
    summary.dropped += left_out;
    let processes: Vec<Value> = trace
        .processes
        .iter()
        .map(|p| json!({ "pid": p.pid, "name": p.name, "began_ns": p.began_ns, "devices": p.devices, "cut": p.cut }))
        .collect();
    let about = json!({
        "version": env!("CARGO_PKG_VERSION"),
        "summary": summary,
        "processes": processes,
        "most_events": most,
        "dropped_events": summary.dropped,
        "complete": summary.dropped == 0 && summary.cut.is_empty(),
    });
    write!(out, "{{\"displayTimeUnit\":\"ns\",\"gpuctl\":{about},\"traceEvents\":[")?;
    let mut first = true;
    let mut put = |event: Value, out: &mut dyn Write| -> Result<()> {
        write!(out, "{}{event}", if std::mem::take(&mut first) { "\n" } else { ",\n" })
    };
    for p in &trace.processes {
        for event in names(p) {
            put(event, out)?;
        }
        let shift = p.began_ns.saturating_sub(zero) as f64 * 1e-3;
        let kernels: HashMap<u64, f64> =
            p.events.iter().filter(|e| e.kind == Kind::Kernel && e.id > 0).map(|e| (e.id, e.seconds)).collect();
        let mut events: Vec<&Event> = p.events.iter().collect();
        // What encloses comes before what it encloses.
        events.sort_by(|a, b| a.at.total_cmp(&b.at).then(b.seconds.total_cmp(&a.seconds)));
        for e in events.into_iter().take(keep(p.events.len())) {
            put(spelled(p, e, shift, &kernels), out)?;
        }
        let simulated = p.tracks.iter().any(|t| t.simulated);
        for m in p.memory.iter().take(keep(p.memory.len())) {
            let ts = if simulated { m.at * 1e6 } else { m.at * 1e6 + shift };
            let name = format!("memory of {}", p.device_id(m.device));
            put(
                json!({ "ph": "C", "name": name, "ts": ts, "pid": p.pid, "tid": 0, "args": { "bytes": m.bytes } }),
                out,
            )?;
        }
    }
    writeln!(out, "\n]}}")?;
    Ok(left_out)
}

fn names(p: &Process) -> Vec<Value> {
    let cut = if p.cut.is_empty() { String::new() } else { format!(" (its end is missing: {})", p.cut) };
    let process = format!("{} {}{cut}", p.name, p.pid);
    let mut all =
        vec![json!({ "ph": "M", "name": "process_name", "pid": p.pid, "tid": 0, "args": { "name": process } })];
    for (i, t) in p.tracks.iter().enumerate() {
        let tid = i + 1;
        let name = if t.simulated { format!("{} (simulated time)", t.name) } else { t.name.clone() };
        all.push(json!({ "ph": "M", "name": "thread_name", "pid": p.pid, "tid": tid, "args": { "name": name } }));
        let order = json!({ "sort_index": tid });
        all.push(json!({ "ph": "M", "name": "thread_sort_index", "pid": p.pid, "tid": tid, "args": order }));
    }
    all
}

fn spelled(p: &Process, e: &Event, shift: f64, kernels: &HashMap<u64, f64>) -> Value {
    let label = p.label(e.label);
    let what = match (e.kind, &e.note) {
        (Kind::Region | Kind::Hit, Some(word)) => format!("{} {word}", e.kind.name()),
        _ => e.kind.name().to_string(),
    };
    let times = if e.count > 1 { format!(" ×{}", e.count) } else { String::new() };
    let name = label.map_or_else(|| format!("{what}{times}"), |l| format!("{what} {}{times}", l.op));
    let mut args = Map::new();
    let mut arg = |name: &str, value: Value| drop(args.insert(name.into(), value));
    arg("device", p.device_id(e.device).into());
    if let Some(l) = label {
        arg("op", l.op.clone().into());
        arg("dtype", l.dtype.clone().into());
        arg("shape", l.shape.clone().into());
        if !l.variant.is_empty() {
            arg("variant", l.variant.clone().into());
        }
    }
    if e.bytes > 0 || e.kind.is_copy() || matches!(e.kind, Kind::Alloc | Kind::Release) {
        arg("bytes", e.bytes.into());
    }
    if matches!(e.kind, Kind::Launch | Kind::Kernel | Kind::Region) {
        arg("count", e.count.into());
    }
    if let Some(grid) = e.grid {
        arg("grid", json!(grid));
    }
    if let Some(block) = e.block {
        arg("block", json!(block));
    }
    if e.kind == Kind::Launch {
        match e.device_s.or_else(|| kernels.get(&e.id).copied()) {
            Some(s) => arg("device_us", (s * 1e6).into()),
            None => {
                let why = p.devices.get(e.device as usize).map_or("", |d| d.device_time.as_str());
                arg("no_device_time", why.into());
            }
        }
    }
    if let (Kind::Region, Some(s)) = (e.kind, e.device_s) {
        arg("measured_us", (s * 1e6).into());
    }
    if let Some(note) = e.note.as_deref().filter(|_| !matches!(e.kind, Kind::Region | Kind::Hit)) {
        arg("note", note.into());
    }
    if let Some(error) = &e.error {
        arg("error", error.clone().into());
    }
    let simulated = p.tracks.get(e.track as usize).is_some_and(|t| t.simulated);
    let ts = if simulated { e.at * 1e6 } else { e.at * 1e6 + shift };
    let mut event = json!({
        "name": name,
        "cat": e.kind.name(),
        "ts": ts,
        "pid": p.pid,
        "tid": e.track + 1,
        "args": args,
    });
    if let Some(fields) = event.as_object_mut() {
        if e.kind.is_moment() {
            fields.insert("ph".into(), "i".into());
            fields.insert("s".into(), "t".into());
        } else {
            fields.insert("ph".into(), "X".into());
            fields.insert("dur".into(), (e.seconds * 1e6).into());
        }
    }
    event
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::trace::{Label, Memory, Track};

    #[test]
    fn what_finds_no_room_is_counted_and_none_of_the_processes_vanishes() {
        let process = |pid, n: usize| Process {
            pid,
            name: "worker \"x\"\n".into(),
            tracks: vec![Track { name: "queue 1".into(), simulated: false }],
            labels: vec![Label { op: "gemm".into(), ..Label::default() }],
            events: (0..n).map(|i| Event::new(Kind::Flush, 0, 0, 1, i as f64)).collect(),
            memory: vec![Memory { device: 0, at: 0.0, bytes: 1 }; n],
            ..Process::default()
        };
        let trace = Trace { processes: vec![process(1, 60), process(2, 40)] };
        for (most, left) in [(200, 0), (1000, 0), (100, 100), (10, 190)] {
            let mut text = Vec::new();
            assert_eq!(write(&trace, most, &mut text).unwrap(), left);
            let doc: Value = serde_json::from_slice(&text).unwrap();
            let events = doc["traceEvents"].as_array().unwrap();
            let of = |pid: u64, ph: &str| events.iter().filter(|e| e["pid"] == pid && e["ph"] == ph).count();
            assert_eq!(of(1, "X") + of(2, "X") + of(1, "C") + of(2, "C"), 200 - left as usize);
            assert!(of(1, "X") > 0 && of(2, "X") > 0 && of(2, "C") > 0);
            assert_eq!(doc["gpuctl"]["dropped_events"], left);
            assert_eq!(doc["gpuctl"]["complete"], left == 0);
        }
    }
}
