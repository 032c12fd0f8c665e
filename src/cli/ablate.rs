//! `bench --suite ablate`: what the parts of the engine are worth.

use crate::base::{DeviceInfo, Record, Result};
use crate::device::cpu::Pin;
use crate::jobs::ablate::{self, AblateConfig, PARTS};
use crate::op;
use crate::report;

use super::args;
use super::commands::{Ctx, cancel_on_signals, ops, seconds};
use super::output::{self, CliSink};
use super::sizes::parse_sizes;

/// Ops of the suite, unless others are named.
const OPS: [&str; 3] = ["relu", "softmax", "gemm"];

impl Ctx<'_> {
    pub(super) fn ablate(&self, a: &args::Bench) -> Result<u8> {
        let cfg = AblateConfig {
            ops: match a.op.as_deref() {
                Some(named) => ops(named)?,
                None => OPS.iter().map(|name| op::find(name)).collect::<Result<_>>()?,
            },
            sizes: a.sizes.as_deref().map(parse_sizes).transpose()?,
            budget_s: seconds("--budget", &a.budget)?.min(2.0),
            env: self.env.clone(),
        };
        ablate::check(&cfg)?;
        let cancel = cancel_on_signals()?;
        let rig = self.rig(&a.common, Pin::Free)?;
        let table = a.common.json.as_deref() != Some("-");
        let mut header = Some(report::ablate::header());
        let mut sink = CliSink::new(
            a.common.quiet,
            true,
            Box::new(move |r| match r {
                Record::Ablate(r) if table => {
                    let row = report::ablate::row(r);
                    Some(header.take().map_or_else(|| row.clone(), |h| format!("{h}\n{row}")))
                }
                _ => None,
            }),
        );
        let summary = ablate::run(&cfg, &rig, &mut sink, &cancel)?;
        let infos: Vec<DeviceInfo> = rig.devices.iter().map(|d| d.info().clone()).collect();
        let records = sink.finish()?;
        if !a.common.quiet {
            PARTS.iter().for_each(|(part, what)| output::talk(&format!("{part}: {what}")));
        }
        let code = if summary.cancelled { super::INTERRUPTED } else { summary.exit_code() };
        let doc = self.document(infos, rig.absent.clone(), records, !summary.cancelled, code);
        self.write_json(a.common.json.as_deref(), &doc)?;
        Ok(code)
    }
}
