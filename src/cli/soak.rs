//! What `stress` writes beside its table: the self-test of its detectors, pages and files for other programs.

use std::time::{Duration, Instant};

use crate::base::sink::{Live, Progress, Sink};
use crate::base::{Code, Document, Error, Record, Result};
use crate::jobs::stress::{self, StressSummary, Verdict};
use crate::report;
use crate::report::prometheus::Metrics;

use super::args;
use super::commands::{Ctx, cancel_on_signals};
use super::output::{self, CliSink};

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

/// Time from one state of `--prometheus` to the next; collectors ask every 15 s or more seldom.
const EVERY: Duration = Duration::from_secs(3);

/// A sink that keeps the file of `--prometheus` up to date.
pub(super) struct Reporting<'a> {
    inner: CliSink,
    asked: &'a args::StressReports,
    metrics: Metrics,
    written: Option<Instant>,
    told: bool,
}

impl<'a> Reporting<'a> {
    /// Errors: `FeatureUnsupported` for a page that this build cannot draw.
    pub(super) fn new(inner: CliSink, asked: &'a args::StressReports) -> Result<Self> {
        if asked.html.is_some() && cfg!(not(feature = "plot")) {
            let why = "--html needs a build with the cargo feature 'plot'";
            return Err(Error::new(Code::FeatureUnsupported, why));
        }
        Ok(Reporting { inner, asked, metrics: Metrics::default(), written: None, told: false })
    }

    /// Writes the metrics, not more often than every few seconds. The first failure is told, and the soak goes on.
    fn update(&mut self) {
        let Some(path) = &self.asked.prometheus else { return };
        if self.written.is_some_and(|at| at.elapsed() < EVERY) {
            return;
        }
        self.written = Some(Instant::now());
        if let Err(e) = output::file(path, &self.metrics.text(None))
            && !std::mem::replace(&mut self.told, true)
        {
            self.inner.note(&format!("--prometheus: {e}; the soak goes on"));
        }
    }

    /// Prints a line above the progress line.
    pub(super) fn print(&mut self, text: &str) {
        self.inner.print(text);
    }

    /// Ends the output and writes what was asked for, all of it even if some cannot be written; gives the document.
    pub(super) fn finish(self, ctx: &Ctx<'_>, summary: StressSummary, code: u8) -> Result<Document> {
        let Reporting { inner, asked, mut metrics, .. } = self;
        let records = inner.finish()?;
        let (line, not_tested) = (summary.line(), summary.not_tested);
        let whole = !summary.interrupted && summary.verdict == summary_of(&records);
        let junit = report::junit::stress(&records, &line, whole);
        metrics.devices(&summary.devices);
        let doc = ctx.document(summary.devices, summary.absent, records, !summary.interrupted, code);
        let written = [
            asked.prometheus.as_ref().map(|path| output::file(path, &metrics.text(Some(code)))),
            asked.junit.as_ref().map(|path| output::file(path, &junit)),
            asked.html.as_ref().map(|path| page(path, &doc, &line, &not_tested)),
        ];
        written.into_iter().flatten().collect::<Result<Vec<()>>>()?;
        Ok(doc)
    }
}

/// The worst verdict of the records themselves; a run whose own verdict differs lacks something.
fn summary_of(records: &[Record]) -> Verdict {
    let of = |r: &Record| if let Record::Stress(s) = r { Verdict::parse(&s.verdict) } else { None };
    records.iter().filter_map(of).max().unwrap_or(Verdict::Inconclusive)
}

#[cfg(feature = "plot")]
fn page(path: &str, doc: &Document, line: &str, not_tested: &[String]) -> Result<()> {
    output::file(path, &report::html::stress(doc, line, not_tested)?)
}

#[cfg(not(feature = "plot"))]
fn page(_: &str, _: &Document, _: &str, _: &[String]) -> Result<()> {
    Err(Error::new(Code::FeatureUnsupported, "--html needs a build with the cargo feature 'plot'"))
}

impl Sink for Reporting<'_> {
    fn record(&mut self, record: &Record) {
        if let Record::Stress(s) = record {
            self.metrics.record(s);
            self.update();
        }
        self.inner.record(record);
    }
    fn progress(&mut self, p: &Progress) {
        self.inner.progress(p);
    }
    fn note(&mut self, text: &str) {
        self.inner.note(text);
    }
    fn live(&mut self, live: &Live) {
        self.metrics.live(live);
        self.update();
    }
}
