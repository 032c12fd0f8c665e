//! One function per subcommand: configuration, job, output, exit code.

use std::sync::Arc;

use signal_hook::consts::{SIGINT, SIGTERM};

use crate::base::record::{Host, SCHEMA};
use crate::base::sink::Cancel;
use crate::base::{Backend, Code, DType, DeviceInfo, Document, Env, Error, Record, Result, os};
use crate::device::cpu::Pin;
use crate::device::probe::{CpuConfig, Rig, Select, inventory, open};
use crate::jobs::{bench, devices};
use crate::measure::Residency;
use crate::op::{self, OpDesc};
use crate::report;

use super::args::{self, Cli, Command, Common};
use super::output::{self, CliSink};
use super::sizes::{parse_shape, parse_sizes};

/// Runs the subcommand; gives its exit code.
pub(super) fn run(cli: &Cli, command: &[String], env: &Env) -> Result<u8> {
    let ctx = Ctx { command, env };
    match &cli.command {
        Command::Devices(a) => ctx.devices(a),
        Command::Bench(a) => ctx.bench(a),
        _ => Err(Error::new(Code::BadArgument, "this subcommand is not wired up yet")),
    }
}

struct Ctx<'a> {
    command: &'a [String],
    env: &'a Env,
}

/// SIGINT and SIGTERM raise the flag; a second SIGINT ends the process at once.
fn cancel_on_signals() -> Result<Cancel> {
    let cancel = Cancel::new();
    let failed = |e: std::io::Error| Error::new(Code::Internal, "signals cannot be handled").caused_by(e);
    signal_hook::flag::register_conditional_shutdown(SIGINT, i32::from(super::INTERRUPTED), Arc::clone(&cancel.0))
        .map_err(failed)?;
    for signal in [SIGINT, SIGTERM] {
        signal_hook::flag::register(signal, Arc::clone(&cancel.0)).map_err(failed)?;
    }
    Ok(cancel)
}

/// A duration: `10s`, `2m`, `1h`, `250ms`, or plain seconds.
fn seconds(name: &str, text: &str) -> Result<f64> {
    let bad = || {
        Error::new(Code::BadArgument, format!("{name} {text}: expected a positive duration such as 10s, 2m or 500ms"))
    };
    let split = text.find(|c: char| c.is_ascii_alphabetic()).unwrap_or(text.len());
    let (number, unit) = text.split_at(split);
    let factor = match unit {
        "" | "s" => 1.0,
        "ms" => 1e-3,
        "m" | "min" => 60.0,
        "h" => 3600.0,
        _ => return Err(bad()),
    };
    let v = number.parse::<f64>().map_err(|_| bad())? * factor;
    if v > 0.0 && v.is_finite() { Ok(v) } else { Err(bad()) }
}

fn list<T>(text: &str, parse: impl Fn(&str) -> Result<T>) -> Result<Vec<T>> {
    text.split(',').map(|s| parse(s.trim())).collect()
}

fn ops(text: &str) -> Result<Vec<&'static OpDesc>> {
    if text == "all" { Ok(op::all().collect()) } else { list(text, op::find) }
}

fn dtypes(text: &str) -> Result<Vec<DType>> {
    list(text, |s| s.parse())
}

impl Ctx<'_> {
    fn rig(&self, common: &Common, pin: Pin) -> Result<Rig> {
        let select = common.device.as_deref().map_or(Ok(Select::Default), Select::parse)?;
        self.rig_of(&select, common.threads, pin)
    }

    fn rig_of(&self, select: &Select, threads: Option<usize>, pin: Pin) -> Result<Rig> {
        if threads == Some(0) || threads.is_some_and(|t| t > 4096) {
            return Err(Error::new(Code::BadArgument, "--threads must be from 1 to 4096"));
        }
        let rig = open(select, self.env, CpuConfig { threads: threads.unwrap_or(0), pin })?;
        let there: Vec<&DeviceInfo> = rig.devices.iter().map(|d| d.info()).collect();
        self.require(&there, matches!(select, Select::Named(_)))?;
        Ok(rig)
    }

    /// `GPUCTL_REQUIRE` names backends that must be there. With named devices the selection itself is the requirement.
    fn require(&self, there: &[&DeviceInfo], named: bool) -> Result<()> {
        if named {
            return Ok(());
        }
        for backend in Backend::ALL {
            let wanted = self.env.require.iter().any(|r| r == backend.name());
            let found = there.iter().any(|d| d.backend == backend && !(d.is_software() && backend == Backend::Cpu));
            // Software devices are not in the default selection; asking for their backend is satisfied by `devices`.
            if wanted && !found && !matches!(backend, Backend::Opencl | Backend::Wgpu) {
                return Err(Error::new(
                    Code::DeviceMissing,
                    format!("GPUCTL_REQUIRE names {backend}, which has no device here"),
                ));
            }
        }
        Ok(())
    }

    fn document(
        &self,
        devices: Vec<DeviceInfo>,
        absent: Vec<crate::base::Absence>,
        records: Vec<Record>,
        complete: bool,
        exit_code: u8,
    ) -> Document {
        Document {
            schema: SCHEMA,
            gpuctl: env!("CARGO_PKG_VERSION").into(),
            command: self.command.to_vec(),
            complete,
            exit_code,
            host: Host {
                cpu: os::cpu_name(),
                cpus: u32::try_from(os::allowed_cpus().len()).unwrap_or(0),
                memory_bytes: os::memory().map_or(0, |m| m.0),
                os: os::os_name(),
            },
            devices,
            absent,
            records,
        }
    }

    /// Writes the document where `--json` says, if it says anything.
    fn write_json(&self, to: Option<&str>, doc: &Document) -> Result<()> {
        match to {
            None => Ok(()),
            Some("-") => output::data(&report::json::document(doc)?),
            Some(path) => output::file(path, &report::json::document(doc)?),
        }
    }

    fn devices(&self, a: &args::Devices) -> Result<u8> {
        let inventory = inventory(self.env, CpuConfig { threads: 0, pin: Pin::Free })?;
        let found: Vec<&DeviceInfo> = inventory.found.iter().map(|f| &f.info).collect();
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
        if a.json.as_deref() != Some("-") {
            let mut text = String::new();
            if a.ops {
                text.push_str(&self.op_table(&found)?);
            } else {
                text.push_str(&report::text::devices(&found, devices::remarks, output::width()));
                text.push('\n');
            }
            if a.why {
                for d in &found {
                    text.push_str(&report::text::device_details(d));
                }
            }
            text.push_str(&report::text::absences(&inventory.absent));
            output::data(&text)?;
            let software = found.iter().filter(|d| d.is_software()).count();
            if software > 0 && !a.quiet {
                output::talk(&format!(
                    "{software} software device(s): run only when named or with --device all, never counted as GPUs"
                ));
            }
        }
        let infos = found.into_iter().cloned().collect();
        self.write_json(a.json.as_deref(), &self.document(infos, inventory.absent, Vec::new(), true, 0))?;
        Ok(0)
    }

    fn op_table(&self, found: &[&DeviceInfo]) -> Result<String> {
        let mut reasons: Vec<String> = Vec::new();
        let mut rows = Vec::new();
        for row in devices::matrix(found)? {
            let cells = row.cells.iter().map(|c| match c {
                devices::Support::Yes(variant) => (*variant).to_string(),
                devices::Support::No(why) => {
                    let at = reasons.iter().position(|r| r == why).unwrap_or_else(|| {
                        reasons.push(why.clone());
                        reasons.len() - 1
                    });
                    format!("no [{}]", at + 1)
                }
            });
            rows.push((row.op.name.to_string(), row.dtype.to_string(), cells.collect()));
        }
        let ids: Vec<String> = found.iter().map(|d| d.id.clone()).collect();
        let mut text = report::text::op_matrix(&ids, &rows, output::width());
        text.push('\n');
        for (i, why) in reasons.iter().enumerate() {
            text.push_str(&format!("[{}] {why}\n", i + 1));
        }
        Ok(text)
    }

    fn bench(&self, a: &args::Bench) -> Result<u8> {
        let cfg = bench::BenchConfig {
            ops: ops(&a.op)?,
            sizes: a.sizes.as_deref().map(parse_sizes).transpose()?,
            shape: a.shape.as_deref().map(parse_shape).transpose()?,
            attrs: a.attr.clone(),
            dtypes: dtypes(&a.dtype)?,
            residencies: if a.residency == "all" {
                Residency::ALL.to_vec()
            } else {
                list(&a.residency, |s| s.parse())?
            },
            variant: a.variant.clone(),
            cpu_variant: a.cpu_variant.clone(),
            budget_s: seconds("--budget", &a.budget)?,
        };
        let cancel = cancel_on_signals()?;
        let rig = self.rig(&a.common, Pin::Workers)?;
        let json_on_stdout = a.common.json.as_deref() == Some("-");
        let table = !json_on_stdout && !a.csv && !a.markdown;
        let mut sink = CliSink::new(
            a.common.quiet,
            true,
            Box::new(move |r| match r {
                Record::Bench(b) if table => Some(report::text::bench_row(b)),
                _ => None,
            }),
        );
        if table {
            sink.print(&report::text::bench_header());
        }
        let summary = bench::run(&cfg, &rig, &mut sink, &cancel)?;
        let code = if summary.cancelled { super::INTERRUPTED } else { summary.exit_code() };
        let records = sink.finish()?;
        if a.csv && !json_on_stdout {
            output::data(&report::csv::bench(&records))?;
        }
        if a.markdown && !json_on_stdout {
            output::data(&report::markdown::bench(&records))?;
        }
        self.plot(a.plot.as_deref(), &records)?;
        let infos = rig.devices.iter().map(|d| d.info().clone()).collect();
        let doc = self.document(infos, rig.absent, records, !summary.cancelled, code);
        self.write_json(a.common.json.as_deref(), &doc)?;
        Ok(code)
    }

    #[cfg(feature = "plot")]
    fn plot(&self, path: Option<&str>, records: &[Record]) -> Result<()> {
        match path {
            Some(path) => output::file(path, &report::plot::bench_svg(records)?),
            None => Ok(()),
        }
    }

    #[cfg(not(feature = "plot"))]
    fn plot(&self, path: Option<&str>, _: &[Record]) -> Result<()> {
        match path {
            Some(_) => Err(Error::new(Code::FeatureUnsupported, "--plot needs a build with the cargo feature 'plot'")),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations() {
        assert_eq!(seconds("--budget", "2m").unwrap(), 120.0);
        assert_eq!(seconds("--budget", "500ms").unwrap(), 0.5);
        assert_eq!(seconds("--budget", "3").unwrap(), 3.0);
        for bad in ["", "s", "-1s", "0", "10 parsecs", "nan", "inf"] {
            assert!(seconds("--budget", bad).is_err(), "{bad}");
        }
    }
}
