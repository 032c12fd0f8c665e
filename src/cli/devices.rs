//! `devices`: what is there, as a table, for scripts, with reasons, as a map, or again and again.

use std::path::Path;
use std::time::{Duration, Instant};

use crate::base::record::Host;
use crate::base::system::System;
use crate::base::telemetry::throttle_words;
use crate::base::{Backend, Code, DeviceClass, DeviceInfo, Document, Error, Record, Result, os, units};
use crate::device::cpu::Pin;
use crate::device::probe::CpuConfig;
use crate::device::telemetry::{ANSWER, Machine, Told};
use crate::jobs::inventory::{self, Waits};
use crate::jobs::{devices, hardware};
use crate::report;

use super::args;
use super::commands::{Ctx, cancel_on_signals, host, seconds, this_program};
use super::output;

/// Longest sleep of the live view between looks at Ctrl-C.
const STEP: Duration = Duration::from_millis(50);

impl Ctx<'_> {
    pub(super) fn devices(&self, a: &args::Devices) -> Result<u8> {
        if a.watch {
            return self.watch(a);
        }
        let cpu = CpuConfig { threads: 0, pin: Pin::Free };
        let backends = match &a.backend {
            Some(text) => backends(text)?,
            None => Backend::ALL.to_vec(),
        };
        let inventory = inventory::ask(&backends, Waits::LONG, self.env, cpu, &this_program()?)?;
        let found = &inventory.devices;
        for backend in Backend::ALL {
            if self.env.require.iter().any(|r| r == backend.name()) && !found.iter().any(|d| d.backend == backend) {
                let why: Vec<_> =
                    inventory.absent.iter().filter(|x| x.backend == backend).map(|x| x.reason.clone()).collect();
                return Err(Error::new(
                    Code::DeviceMissing,
                    format!("GPUCTL_REQUIRE names {backend}, which has no device here: {}", why.join("; ")),
                ));
            }
        }
        let (told, machine) = self.beside_the_apis(&backends);
        let mut rows = hardware::rows(found, &backends, &told.cards, &machine);
        if let (Some(host), Some((_, free))) = (rows.iter_mut().find(|r| r.class == DeviceClass::Cpu), os::memory()) {
            (host.memory_free, host.memory_free_why) = (Some(free), String::new());
        }
        let host = Host { system: Some(System::read()), ..host() };
        let known = if a.ops || a.topology { Vec::new() } else { self.on_record(found) };
        let mut records: Vec<Record> = if a.ops {
            let refs: Vec<&DeviceInfo> = found.iter().collect();
            devices::matrix(&refs).into_iter().map(|c| Record::Support(Box::new(c))).collect()
        } else if a.topology {
            let map = hardware::topology(&rows, found, &told.cards, machine);
            vec![Record::Topology(Box::new(map))]
        } else {
            rows.iter().map(|r| Record::Hardware(Box::new(r.clone()))).collect()
        };
        if a.line {
            output::data(&report::devices::lines(&rows, found))?;
        } else if a.json.as_deref() != Some("-") {
            let width = output::width().unwrap_or_else(report::devices::terminal);
            let mut text = match records.first() {
                Some(Record::Topology(map)) => report::devices::topology(map),
                _ if a.ops => report::support::op_matrix(&records, 110),
                _ if a.wide => report::devices::wide(&rows, found),
                _ => report::devices::table(&rows, found, width),
            };
            if !text.ends_with('\n') && !text.is_empty() {
                text.push('\n');
            }
            let mut below = report::devices::blas(found);
            below.extend(known.iter().filter_map(report::trial::unfit).map(|line| line + "\n"));
            if a.why {
                below.push_str(&report::devices::host(&host));
                for r in &rows {
                    below.push_str(&report::devices::details(r, found));
                }
            }
            if !a.topology {
                below.push_str(&report::devices::absences(&inventory.absent));
            }
            text.push_str(&report::devices::folded(&below, width));
            output::data(&text)?;
            let software = found.iter().filter(|d| d.is_software()).count();
            if software > 0 && !a.quiet {
                output::talk(&format!(
                    "{software} software device(s): run only when named or with --device all, never counted as GPUs"
                ));
            }
        }
        records.extend(known.into_iter().map(|r| Record::Trial(Box::new(r))));
        let document = Document { host, ..self.document(inventory.devices, inventory.absent, records, true, 0) };
        self.write_json(a.json.as_deref(), &document)?;
        Ok(0)
    }

    /// What the system tells of cards without an API; nothing where GPUs are switched off or not asked for.
    fn beside_the_apis(&self, backends: &[Backend]) -> (Told, Machine) {
        if self.env.disable_gpu || backends == [Backend::Cpu] {
            return (Told::default(), Machine::default());
        }
        (self.telemetry().ask(ANSWER).unwrap_or_default(), Machine::at(Path::new("/")))
    }

    /// Figures of all cards and the host, until Ctrl-C or `--count` times. On a terminal they stay in their place.
    fn watch(&self, a: &args::Devices) -> Result<u8> {
        let every = Duration::try_from_secs_f64(seconds("--interval", &a.interval)?)
            .map_err(|e| Error::new(Code::BadArgument, format!("--interval {}: {e}", a.interval)))?;
        if a.count == Some(0) {
            return Err(Error::new(Code::BadArgument, "--count must be at least 1"));
        }
        let cancel = cancel_on_signals()?;
        let (terminal, begun) = (output::width().is_none(), Instant::now());
        let (mut lines, mut round) = (0, 0u64);
        let mut telemetry = self.telemetry();
        loop {
            let told = if self.env.disable_gpu { Some(Told::default()) } else { telemetry.ask(ANSWER) };
            let text = view(begun.elapsed(), told.as_ref());
            // Back to the first line of the last view, and away with it.
            let back = if terminal && lines > 0 { format!("\x1b[{lines}A\x1b[J") } else { String::new() };
            if !output::delivered(&format!("{back}{text}"))? {
                return Ok(0);
            }
            lines = text.lines().count();
            round += 1;
            if a.count.is_some_and(|n| round >= n) {
                return Ok(0);
            }
            let next = every.saturating_mul(u32::try_from(round).unwrap_or(u32::MAX));
            while begun.elapsed() < next {
                if cancel.raised() {
                    return Ok(0);
                }
                std::thread::sleep(STEP.min(next.saturating_sub(begun.elapsed())));
            }
        }
    }
}

/// `--backend`.
fn backends(text: &str) -> Result<Vec<Backend>> {
    let known: Vec<Backend> = Backend::ALL.into_iter().filter(|b| *b != Backend::Sim).collect();
    let names: Vec<&str> = known.iter().map(|b| b.name()).collect();
    let one = |name: &str| {
        known.iter().copied().find(|b| b.name() == name.trim()).ok_or_else(|| {
            let why = format!("--backend {}: there are {}", name.trim(), names.join(" "));
            Error::new(Code::BadArgument, why)
        })
    };
    text.split(',').map(one).collect()
}

/// One round of the live view: the host, and a line for each card.
fn view(at: Duration, told: Option<&Told>) -> String {
    let memory = os::memory().map_or("memory not told".into(), |(total, available)| {
        format!("memory {} of {} used", units::bytes(total.saturating_sub(available)), units::bytes(total))
    });
    let load = os::load().map_or("load not told".into(), |l| format!("load {l:.2}"));
    let seconds = at.as_secs();
    let mut out = format!("{seconds:>6} s  host  {load}, {memory}\n");
    let Some(told) = told else {
        out.push_str(&format!("{seconds:>6} s  cards  their driver does not answer\n"));
        return out;
    };
    if told.cards.is_empty() {
        out.push_str(&format!("{seconds:>6} s  cards  none tells its state here\n"));
    }
    for c in &told.cards {
        let mut parts = Vec::new();
        parts.extend(c.temperature_c.map(|v| format!("{v:.0} C")));
        let cap = c.power_cap_w.map_or(String::new(), |v| format!(" of {v:.0}"));
        parts.extend(c.power_w.map(|v| format!("{v:.0}{cap} W")));
        parts.extend(c.clock_mhz.map(|v| format!("{v} MHz")));
        parts.extend(c.busy.map(|v| format!("busy {:.0} %", 100.0 * v)));
        let total = c.memory_total.map_or(String::new(), |v| format!(" of {}", units::bytes(v)));
        parts.extend(c.memory_used.map(|v| format!("memory {}{total}", units::bytes(v))));
        let reasons: Vec<String> =
            c.throttle.map_or_else(Vec::new, |m| throttle_words(m).into_iter().map(|w| w.0).collect());
        parts.extend((!reasons.is_empty()).then(|| format!("clocks lowered: {}", reasons.join(" "))));
        parts.extend(c.memory.uncorrected.filter(|n| *n > 0).map(|n| format!("{n} uncorrected errors")));
        let said = if c.lost { "lost".into() } else { parts.join(", ") };
        let said = if said.is_empty() { "tells nothing".into() } else { said };
        out.push_str(&format!("{seconds:>6} s  {}  {}  {said}\n", c.pci.as_deref().unwrap_or(&c.uid), c.name));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::telemetry::Snapshot;

    #[test]
    fn backends_are_named_or_refused() {
        assert_eq!(backends("cuda, wgpu").unwrap(), [Backend::Cuda, Backend::Wgpu]);
        let e = backends("vulkan").unwrap_err().to_string();
        assert!(e.contains("vulkan") && e.contains("cpu cuda opencl wgpu"), "{e}");
        assert!(backends("sim").is_err() && backends("").is_err());
    }

    /// Synthetic cards: one that tells much, one that is lost, one that is silent.
    #[test]
    fn a_view_has_a_line_for_each_card() {
        let card = |pci: &str| Snapshot { pci: Some(pci.into()), name: "A card".into(), ..Snapshot::default() };
        let busy = Snapshot {
            temperature_c: Some(71.0),
            power_w: Some(401.2),
            power_cap_w: Some(700.0),
            busy: Some(0.5),
            throttle: Some(0x48),
            ..card("0000:01:00.0")
        };
        let lost = Snapshot { lost: true, ..card("0000:02:00.0") };
        let told = Told { cards: vec![busy, lost, card("0000:03:00.0")], ..Told::default() };
        let text = view(Duration::from_secs(4), Some(&told));
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 4);
        assert!(lines[0].contains("4 s  host  load"), "{text}");
        assert!(lines[1].ends_with("71 C, 401 of 700 W, busy 50 %, clocks lowered: hw-slowdown hw-thermal"), "{text}");
        assert!(lines[2].ends_with("lost") && lines[3].ends_with("tells nothing"), "{text}");
        assert!(view(Duration::ZERO, None).contains("does not answer"));
        assert!(view(Duration::ZERO, Some(&Told::default())).contains("none tells"));
    }
}
