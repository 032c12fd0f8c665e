//! What `stress` writes beside its table: the self-test of its detectors, pages and files for other programs.

use crate::base::{Record, Result};
use crate::jobs::stress;

use super::args;
use super::commands::{Ctx, cancel_on_signals};
use super::output::CliSink;

impl Ctx<'_> {
    pub(super) fn stress_self_test(&self, a: &args::Stress) -> Result<u8> {
        let cancel = cancel_on_signals()?;
        let json_on_stdout = a.common.json.as_deref() == Some("-");
        let mut sink = CliSink::new(
            a.common.quiet,
            !json_on_stdout,
            Box::new(move |r| match r {
                Record::SelfTest(s) if !json_on_stdout => Some(stress::self_test_line(s)),
                _ => None,
            }),
        );
        let cfg = stress::SelfTestConfig::default();
        let summary = stress::self_test(&cfg, &stress::Exe::current()?, &mut sink, &cancel)?;
        let code = if summary.cancelled { super::INTERRUPTED } else { summary.exit_code() };
        let word = match code {
            0 => "PASS",
            1 => "FAIL",
            _ => "INCONCLUSIVE",
        };
        sink.print(&format!(
            "{word}: {} faults ended in their verdict and exit code, {} sound runs passed, {} rows did otherwise",
            summary.caught, summary.passed, summary.wrong
        ));
        let records = sink.finish()?;
        let doc = self.document(Vec::new(), Vec::new(), records, !summary.cancelled, code);
        self.write_json(a.common.json.as_deref(), &doc)?;
        Ok(code)
    }
}
