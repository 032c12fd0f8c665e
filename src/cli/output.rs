//! stdout for data, stderr for talk, a progress line on terminals only.

use std::io::{IsTerminal, Write};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::base::sink::{Progress, Sink};
use crate::base::text::printable;
use crate::base::{Code, Error, Record, Result, os};

/// Writes data to stdout. A closed pipe is no error: the reader has what it wanted.
pub(super) fn data(text: &str) -> Result<()> {
    delivered(text).map(|_| ())
}

/// The same for what has no end: false if nobody reads any more.
pub(super) fn delivered(text: &str) -> Result<bool> {
    let mut out = std::io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(e) if e.kind() == std::io::ErrorKind::BrokenPipe => Ok(false),
        Err(e) => Err(Error::new(Code::Io, "stdout").caused_by(e)),
        Ok(()) => Ok(true),
    }
}

/// Writes one line to stderr; nobody can be told if that fails. Files and drivers cannot slip in what a terminal obeys.
pub(super) fn talk(text: &str) {
    let _ = writeln!(std::io::stderr().lock(), "{}", printable(text));
}

/// Writes a file in one go: to a temporary name first, so that a reader never sees half of it.
pub(super) fn file(path: &str, text: &str) -> Result<()> {
    bytes(path, text.as_bytes())
}

/// Refuses (`BadArgument`) a file that could not be written in the end, before hours are spent on what goes there.
pub(super) fn check(path: &str) -> Result<()> {
    let bad = |why: &str| Err(Error::new(Code::BadArgument, format!("{path}: {why}")));
    let path_of = std::path::Path::new(path);
    let folder = path_of.parent().filter(|p| !p.as_os_str().is_empty());
    match () {
        () if path == "-" => Ok(()),
        () if path_of.is_dir() => bad("is a folder"),
        () if folder.is_some_and(|f| !f.is_dir()) => bad("its folder does not exist"),
        () => Ok(()),
    }
}

/// As [`file`], of what is no text.
pub(super) fn bytes(path: &str, text: &[u8]) -> Result<()> {
    let failed = |e: std::io::Error| Error::new(Code::Io, path.to_string()).caused_by(e);
    // Special files (/dev/stdout, pipes) cannot be replaced by a rename.
    let old = std::fs::metadata(path);
    if old.as_ref().is_ok_and(|m| !m.is_file()) {
        return std::fs::write(path, text).map_err(failed);
    }
    let fill = |f: &mut std::fs::File| {
        // Who could read the old file can read the new one.
        if let Ok(old) = old {
            f.set_permissions(old.permissions())?;
        }
        f.write_all(text)?;
        f.sync_all()
    };
    os::replace(std::path::Path::new(path), "part", &mut std::fs::OpenOptions::new(), fill).map_err(failed)
}

/// Width of the terminal on stdout; `None` where output is redirected.
pub(super) fn width() -> Option<u16> {
    if std::io::stdout().is_terminal() { None } else { Some(160) }
}

/// How a record becomes a line; `None` keeps silent.
type Line = Box<dyn FnMut(&Record) -> Option<String>>;

/// Keeps records for the document and prints lines as they come.
pub(super) struct CliSink {
    pub(super) records: Vec<Record>,
    line: Line,
    lines_to_stdout: bool,
    quiet: bool,
    /// True if stdout was a terminal at first: one that is closed later takes nothing more, and that is no error.
    terminal: bool,
    bar: Option<ProgressBar>,
    told: Vec<String>,
    /// True if a note that was shown is not shown again.
    once: bool,
    failed: Option<Error>,
}

impl CliSink {
    /// `line` formats a record; lines go to stdout, or to stderr when stdout carries something else.
    pub(super) fn new(quiet: bool, lines_to_stdout: bool, line: Line) -> Self {
        let bar = (!quiet && std::io::stderr().is_terminal()).then(|| {
            let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
            let style = ProgressStyle::with_template("{spinner} {pos}/{len} {msg} ({elapsed})");
            bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_spinner()));
            bar
        });
        let terminal = std::io::stdout().is_terminal();
        CliSink {
            records: Vec::new(),
            line,
            lines_to_stdout,
            quiet,
            terminal,
            bar,
            told: Vec::new(),
            once: false,
            failed: None,
        }
    }

    /// The same, but each note is shown once: for parts of a run that say the same of the machine.
    pub(super) fn once(self) -> Self {
        CliSink { once: true, ..self }
    }

    /// Prints a line above the progress line.
    pub(super) fn print(&mut self, text: &str) {
        let to_stdout = self.lines_to_stdout;
        let mut result = Ok(());
        let mut write = || {
            if to_stdout {
                result = data(&format!("{text}\n"));
            } else {
                talk(text);
            }
        };
        match &self.bar {
            Some(bar) => bar.suspend(&mut write),
            None => write(),
        }
        let closed = |e: &Error| {
            let io = std::error::Error::source(e).and_then(|s| s.downcast_ref::<std::io::Error>());
            self.terminal && io.is_some_and(os::is_hang_up)
        };
        if let Err(e) = result
            && !closed(&e)
        {
            self.failed.get_or_insert(e);
        }
    }

    /// The notes that were shown.
    pub(super) fn told(&self) -> &[String] {
        &self.told
    }

    /// Ends the progress line; gives the records, or the error that stdout had.
    pub(super) fn finish(self) -> Result<Vec<Record>> {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
        match self.failed {
            Some(e) => Err(e),
            None => Ok(self.records),
        }
    }
}

impl Sink for CliSink {
    fn record(&mut self, record: &Record) {
        if let Some(text) = (self.line)(record) {
            self.print(&text);
        }
        self.records.push(record.clone());
    }

    fn progress(&mut self, p: &Progress) {
        if let Some(bar) = &self.bar {
            if let Some(total) = p.total {
                bar.set_length(total);
            }
            bar.set_position(p.done);
            bar.set_message(p.doing.clone());
            bar.tick();
        }
    }

    fn note(&mut self, text: &str) {
        if self.quiet || (self.once && self.told.iter().any(|t| t == text)) {
            return;
        }
        match &self.bar {
            Some(bar) => bar.suspend(|| talk(text)),
            None => talk(text),
        }
        self.told.push(text.to_string());
    }
}
