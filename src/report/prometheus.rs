//! A run of `stress` for Prometheus' textfile collector (the text exposition format, version 0.0.4).

use std::collections::BTreeMap;
use std::fmt::Write;

use crate::base::DeviceInfo;
use crate::base::record::StressRecord;
use crate::base::sink::Live;

/// Verdicts in the order of their severity; a device has the worst of its phases.
const VERDICTS: [&str; 9] =
    ["pass", "inconclusive", "throttled", "degradation", "error", "leak", "hang", "crash", "corruption"];

#[derive(Clone, Debug, Default)]
struct Totals {
    uid: String,
    seconds: f64,
    cycles: u64,
    bytes: u64,
    mismatches: u64,
    errors: u64,
    restarts: u64,
    phases: u64,
    /// Index of the worst verdict; `None` before the first phase has ended.
    worst: Option<usize>,
    lost: bool,
    temperature_c: Option<f64>,
    power_w: Option<f64>,
}

/// What is told of each device: its finished phases and the one that runs.
#[derive(Clone, Debug, Default)]
pub struct Metrics {
    devices: BTreeMap<String, Totals>,
    live: BTreeMap<String, Live>,
}

impl Metrics {
    /// A finished phase.
    pub fn record(&mut self, r: &StressRecord) {
        self.live.remove(&r.device);
        let t = self.devices.entry(r.device.clone()).or_default();
        t.uid.clone_from(&r.uid);
        t.seconds += r.seconds;
        t.cycles = t.cycles.saturating_add(r.done);
        t.bytes = t.bytes.saturating_add(r.bytes_checked);
        t.mismatches = t.mismatches.saturating_add(r.mismatches);
        t.errors = t.errors.saturating_add(r.errors);
        t.restarts = t.restarts.saturating_add(r.restarts);
        t.phases += 1;
        // A word that is not known here is no pass.
        let rank = VERDICTS.iter().position(|v| *v == r.verdict).unwrap_or(VERDICTS.len() - 1);
        t.worst = t.worst.max(Some(rank));
        t.lost |= r.telemetry.lost;
        t.temperature_c = r.telemetry.temperature_c.map(|range| range.last).or(t.temperature_c);
        t.power_w = r.telemetry.power_w.map(|range| range.last).or(t.power_w);
    }

    /// Where a phase stands.
    pub fn live(&mut self, live: &Live) {
        self.devices.entry(live.device.clone()).or_default().uid.clone_from(&live.uid);
        self.live.insert(live.device.clone(), live.clone());
    }

    /// Devices that were listed, with or without any phase.
    pub fn devices(&mut self, devices: &[DeviceInfo]) {
        for d in devices {
            self.devices.entry(d.id.clone()).or_default().uid.clone_from(&d.uid);
        }
    }

    /// The file. `exit_code`: of the run that has ended, `None` while it runs.
    pub fn text(&self, exit_code: Option<u8>) -> String {
        let mut out = String::new();
        let mut family = |name: &str, kind: &str, help: &str, samples: &[(String, f64)]| {
            if samples.is_empty() {
                return;
            }
            // Writing to a string cannot fail.
            let _ = writeln!(out, "# HELP gpuctl_{name} {help}\n# TYPE gpuctl_{name} {kind}");
            for (labels, value) in samples {
                let _ = writeln!(out, "gpuctl_{name}{labels} {value}");
            }
        };
        let version = format!("{{version=\"{}\"}}", escaped(env!("CARGO_PKG_VERSION")));
        family("build_info", "gauge", "Version of gpuctl.", &[(version, 1.0)]);
        let running = f64::from(u8::from(exit_code.is_none()));
        family("stress_running", "gauge", "Whether the run goes on.", &[(String::new(), running)]);
        let ended: Vec<_> = exit_code.map(|c| (String::new(), f64::from(c))).into_iter().collect();
        family("stress_exit_code", "gauge", "Exit code of the run, once it has ended.", &ended);
        let all: Vec<(String, Totals)> =
            self.devices.iter().map(|(id, t)| (labels(id, &t.uid), self.now(id, t))).collect();
        let each = |of: &dyn Fn(&Totals) -> Option<f64>| -> Vec<(String, f64)> {
            all.iter().filter_map(|(l, t)| of(t).map(|v| (format!("{{{l}}}"), v))).collect()
        };
        let flag = |b: bool| Some(f64::from(u8::from(b)));
        family(
            "stress_device_up",
            "gauge",
            "Whether the device is there: 0 if it was lost.",
            &each(&|t| flag(!t.lost)),
        );
        let state: Vec<(String, f64)> = all
            .iter()
            .filter_map(|(l, t)| t.worst.map(|w| (l, w)))
            .flat_map(|(l, w)| {
                let one =
                    move |(i, v): (usize, &&str)| (format!("{{{l},verdict=\"{v}\"}}"), f64::from(u8::from(i == w)));
                VERDICTS.iter().enumerate().map(one)
            })
            .collect();
        family("stress_verdict", "gauge", "Worst verdict of the finished phases: 1 for the one that holds.", &state);
        // Counts become inexact beyond 2^53, as all of Prometheus' numbers do.
        for (name, help, of) in [
            (
                "stress_tested_seconds_total",
                "Seconds in which results were made and checked.",
                (|t: &Totals| t.seconds) as fn(&_) -> _,
            ),
            ("stress_cycles_total", "Cycles done.", |t| t.cycles as f64),
            ("stress_checked_bytes_total", "Bytes of results checked.", |t| t.bytes as f64),
            ("stress_mismatches_total", "Wrong results.", |t| t.mismatches as f64),
            ("stress_errors_total", "Failed operations.", |t| t.errors as f64),
            ("stress_worker_restarts_total", "Workers that were replaced.", |t| t.restarts as f64),
            ("stress_phases_total", "Phases finished.", |t| t.phases as f64),
        ] {
            family(name, "counter", help, &each(&|t| Some(of(t))));
        }
        family("stress_temperature_celsius", "gauge", "Temperature of the card.", &each(&|t| t.temperature_c));
        family("stress_power_watts", "gauge", "Power that the card draws.", &each(&|t| t.power_w));
        out
    }

    /// The finished phases and the one that runs.
    fn now(&self, id: &str, t: &Totals) -> Totals {
        let Some(l) = self.live.get(id) else { return t.clone() };
        Totals {
            seconds: t.seconds + l.seconds,
            cycles: t.cycles.saturating_add(l.done),
            bytes: t.bytes.saturating_add(l.bytes_checked),
            mismatches: t.mismatches.saturating_add(l.mismatches),
            errors: t.errors.saturating_add(l.errors),
            restarts: t.restarts.saturating_add(l.restarts),
            temperature_c: l.temperature_c.or(t.temperature_c),
            power_w: l.power_w.or(t.power_w),
            ..t.clone()
        }
    }
}

fn labels(device: &str, uid: &str) -> String {
    format!("device=\"{}\",uid=\"{}\"", escaped(device), escaped(uid))
}

/// A label's value: backslash, quote and line end are the characters that the format escapes.
fn escaped(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}
