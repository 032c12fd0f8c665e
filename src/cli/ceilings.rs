//! `devices --measure`: ceilings, measured in several processes and kept for `bench`, one file for each device.

use std::path::PathBuf;
use std::time::Duration;

use crate::base::record::{CeilingRecord, Host, NoiseRecord, SCHEMA, Status};
use crate::base::sink::Sink;
use crate::base::{Code, DeviceInfo, Document, Error, Record, Result, rng};
use crate::device::cpu::Pin;
use crate::device::probe::Select;
use crate::jobs::ceilings::{self, judge::Ceilings};
use crate::report;

use super::args;
use super::commands::{Ctx, cancel_on_signals, host, seconds};
use super::kept;
use super::output::{self, CliSink};

/// Largest file that is read as ceilings.
const LARGEST: u64 = 16 << 20;

/// Seconds that the self-calibration of all devices may take.
pub(super) const NOISE_S: f64 = 0.3;

impl Ctx<'_> {
    fn measured_select(a: &args::Devices) -> Result<Select> {
        a.device.as_deref().map_or(Ok(Select::Default), Select::parse)
    }

    /// Seconds for each probe, device and process.
    fn measure_budget(a: &args::Devices) -> Result<f64> {
        if !(1..=64).contains(&a.processes) {
            return Err(Error::new(Code::BadArgument, format!("--processes {}: expected 1 to 64", a.processes)));
        }
        Ok(seconds("--budget", &a.budget)? / a.processes as f64)
    }

    /// Measures the probes whose numbers come in, for [`Ctx::measure`] in another process.
    pub(super) fn measure_worker(&self, a: &args::Devices) -> Result<u8> {
        let budget_s = Self::measure_budget(a)?;
        let cancel = cancel_on_signals()?;
        let rig = self.rig_of(&Self::measured_select(a)?, a.threads, Pin::Workers)?;
        self.serve(|input, output| ceilings::worker(&rig, budget_s, input, output, &cancel))
    }

    pub(super) fn measure(&self, a: &args::Devices) -> Result<u8> {
        let budget_s = Self::measure_budget(a)?;
        let cancel = cancel_on_signals()?;
        let alone = a.processes == 1;
        let rig = self.rig_of(&Self::measured_select(a)?, a.threads, if alone { Pin::Workers } else { Pin::Free })?;
        let infos: Vec<DeviceInfo> = rig.devices.iter().map(|d| d.info().clone()).collect();
        let absent = rig.absent.clone();
        let awake = self.awake(&rig, None)?;
        let mut sink = CliSink::new(a.quiet, false, Box::new(|_| None));
        for record in ceilings::noise(&rig, NOISE_S, &mut sink, &cancel) {
            sink.record(&Record::Noise(Box::new(record)));
        }
        let summary = if alone {
            ceilings::run(&rig, budget_s, &mut sink, &cancel)?
        } else {
            // What this process holds of the devices is given back before others measure.
            drop(rig);
            let limit = Duration::from_secs_f64(120.0 + 8.0 * budget_s * (infos.len() + 1) as f64);
            let start = self.workers("devices-worker", a.processes, limit)?;
            ceilings::run_workers(&infos, budget_s, &start, &mut sink, &cancel)?
        };
        let records = sink.finish()?;
        let found: Vec<&CeilingRecord> = ceilings_of(&records);
        let code = match () {
            () if summary.cancelled => super::INTERRUPTED,
            () if found.iter().any(|c| matches!(c.status, Status::Failed | Status::Suspect)) => 1,
            () if found.iter().all(|c| c.value.is_none()) => 4,
            () => 0,
        };
        if a.json.as_deref() != Some("-") {
            output::data(&report::ceilings::table(&records, output::width()))?;
        }
        let host = Host { awake: awake.is_some(), ..host() };
        if !summary.cancelled {
            self.keep(a, &host, &infos, &records)?;
        }
        let doc = Document { host, ..self.document(infos, absent, records, !summary.cancelled, code) };
        self.write_json(a.json.as_deref(), &doc)?;
        Ok(code)
    }

    /// Writes each device's records where `bench` looks for them.
    fn keep(&self, a: &args::Devices, host: &Host, infos: &[DeviceInfo], records: &[Record]) -> Result<()> {
        for info in infos {
            let Some(path) = self.ceilings_path(info) else {
                return match a.quiet {
                    true => Ok(()),
                    false => {
                        output::talk("not kept: GPUCTL_CACHE is off, or neither it nor XDG_CACHE_HOME nor HOME is set");
                        Ok(())
                    }
                };
            };
            let mine: Vec<Record> = records.iter().filter(|r| device_of(r) == Some(&info.id)).cloned().collect();
            let made = self.document(vec![info.clone()], Vec::new(), mine, true, 0);
            let doc = Document { host: host.clone(), ..made };
            kept::write(&path, &report::json::document(&doc)?)?;
            if !a.quiet {
                output::talk(&format!("{}: kept in {}", info.id, path.display()));
            }
        }
        Ok(())
    }

    /// One file for each device, driver and number of threads.
    fn ceilings_path(&self, info: &DeviceInfo) -> Option<PathBuf> {
        let key = rng::fnv1a64(format!("{} | {}", info.uid, info.chip()).as_bytes());
        Some(self.env.cache_dir.as_ref()?.join("ceilings").join(format!("{key:016x}.json")))
    }

    /// What was measured of these devices, and remarks about what was not.
    pub(super) fn kept_ceilings(&self, infos: &[DeviceInfo]) -> Kept {
        let mut all = Ceilings::default();
        let (mut notes, mut without) = (Vec::new(), Vec::new());
        for info in infos {
            let Some(path) = self.ceilings_path(info).filter(|p| p.exists()) else {
                without.push(info.id.clone());
                continue;
            };
            match read(&path, info) {
                Ok(found) => all.join(found),
                Err(e) => notes.push(format!("ceilings of {} are not used: {e}", info.id)),
            }
        }
        let ids = without.join(",");
        let hint = (!ids.is_empty())
            .then(|| format!("no measured ceilings of {ids}: `gpuctl devices --measure --device {ids}` measures them"));
        Kept { ceilings: all, faults: notes, hint }
    }
}

/// What earlier runs left.
pub(super) struct Kept {
    pub(super) ceilings: Ceilings,
    /// Files that are there and not used, and why.
    pub(super) faults: Vec<String>,
    /// Devices of which there is none, and what to do about it.
    pub(super) hint: Option<String>,
}

/// Reads a kept file; it must be of this device.
fn read(path: &std::path::Path, info: &DeviceInfo) -> Result<Ceilings> {
    let bad = |why: String| Error::new(Code::BadArgument, format!("{}: {why}", path.display()));
    let text = kept::read(path, LARGEST)?;
    let doc: Document = serde_json::from_str(&text).map_err(|e| bad(e.to_string()))?;
    if doc.schema != SCHEMA {
        return Err(bad(format!("layout {}, this gpuctl reads {SCHEMA}", doc.schema)));
    }
    match doc.devices.as_slice() {
        [d] if d.uid == info.uid && d.chip() == info.chip() => {}
        _ => return Err(bad("of another device or driver".into())),
    }
    if doc.records.iter().any(|r| matches!(r, Record::Ceiling(c) if c.uid != info.uid)) {
        return Err(bad("it holds another device's records".into()));
    }
    Ok(Ceilings::of(&doc.records))
}

fn ceilings_of(records: &[Record]) -> Vec<&CeilingRecord> {
    let all = records.iter().filter_map(|r| match r {
        Record::Ceiling(c) => Some(&**c),
        _ => None,
    });
    all.collect()
}

fn device_of(record: &Record) -> Option<&str> {
    match record {
        Record::Ceiling(c) => Some(&c.device),
        Record::Noise(n) => Some(&n.device),
        _ => None,
    }
}

/// What `bench` says of the self-calibration.
pub(super) fn noise_line(n: &NoiseRecord) -> String {
    let floor = format!("{}: two equal things differ by up to {:.1} % here", n.device, 100.0 * n.floor);
    match n.sound {
        true => format!("{floor}; {:.0} times the work takes {:.2} times as long", n.known, n.known_ratio),
        false => format!("{floor}; NOT SOUND: {}", n.reason),
    }
}
