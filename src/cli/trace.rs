//! `--trace FILE`: what devices do, written for viewers at the end of the run.

use std::io::{BufRead, Write};
use std::path::Path;
use std::sync::Arc;

use crate::base::{Code, Error, Result};
use crate::device::tap::{KEPT, Tracer};
use crate::engine::trace::{Answers, Orders, Part, Target};
use crate::report;

use super::args::Command;
use super::commands::Ctx;
use super::output;

/// What a process that traces has in hand.
pub(super) struct Tracing {
    pub(super) tracer: Arc<Tracer>,
    to: To,
    quiet: bool,
}

enum To {
    /// The file that was asked for.
    File(Target),
    /// A worker's part of it.
    Part(Part),
}

impl Tracing {
    /// What the command line asks for. Errors: `BadArgument` for a file that cannot be written.
    pub(super) fn of(command: &Command) -> Result<Option<Tracing>> {
        let worker = |name: &str, parts: &Option<String>| {
            parts.as_deref().map(|parts| {
                let tracer = Tracer::new(&format!("gpuctl {name}"), KEPT);
                let part = Part::new(Path::new(parts), &tracer)?;
                Ok(Tracing { tracer, to: To::Part(part), quiet: true })
            })
        };
        let numbered = |n: u64| format!("worker {n}");
        let (file, quiet) = match command {
            Command::BenchWorker(w) => return worker(&numbered(w.worker), &w.trace_parts).transpose(),
            Command::CalibrateWorker(w) => return worker(&numbered(w.worker), &w.trace_parts).transpose(),
            Command::DevicesWorker(w) => return worker(&numbered(w.worker), &w.trace_parts).transpose(),
            Command::TrialWorker(w) => return worker(&format!("trial of {}", w.uid), &w.trace_parts).transpose(),
            Command::Devices(a) => (&a.trace, a.quiet),
            Command::Bench(a) => (&a.common.trace, a.common.quiet),
            Command::Calibrate(a) => (&a.common.trace, a.common.quiet),
            Command::Verify(a) => (&a.common.trace, a.common.quiet),
            Command::Stress(a) => (&a.common.trace, a.common.quiet),
            Command::Run(a) => (&a.trace, false),
            _ => return Ok(None),
        };
        let Some(file) = file else { return Ok(None) };
        if file == "-" {
            return Err(Error::new(Code::BadArgument, "--trace -: expected a file; stdout carries the results"));
        }
        let to = To::File(Target::new(Path::new(file))?);
        Ok(Some(Tracing { tracer: Tracer::new("gpuctl", KEPT), to, quiet }))
    }

    /// The folder for the parts of other processes.
    pub(super) fn parts(&self) -> Option<&Path> {
        match &self.to {
            To::File(target) => Some(target.parts()),
            To::Part(_) => None,
        }
    }

    /// This process's part, if it is a worker.
    pub(super) fn part(&self) -> Option<&Part> {
        match &self.to {
            To::File(_) => None,
            To::Part(part) => Some(part),
        }
    }

    /// Writes the file, and says what it adds up to.
    pub(super) fn finish(&self) -> Result<()> {
        let To::File(target) = &self.to else { return Ok(()) };
        let (trace, left_out) = target.finish(self.tracer.process())?;
        if !self.quiet {
            let mut summary = trace.summary();
            summary.dropped += left_out;
            output::talk(&report::trace::summary(&summary));
        }
        Ok(())
    }
}

impl Ctx<'_> {
    /// Runs a worker on its orders on stdin and answers on stdout; what it traced is on the disk before an answer goes out.
    pub(super) fn serve(&self, work: impl FnOnce(&mut dyn BufRead, &mut dyn Write) -> Result<()>) -> Result<u8> {
        let (mut input, mut output) = (std::io::stdin().lock(), std::io::stdout());
        match self.trace.and_then(Tracing::part) {
            Some(part) => work(&mut Orders(input, part.clone()), &mut Answers(output, part.clone())),
            None => work(&mut input, &mut output),
        }
        .map(|()| 0)
    }
}
