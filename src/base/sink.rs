//! How a job hands out results while it runs; the command line joins it to writers and a progress line.

use super::record::Record;

/// One step of progress, for people only.
#[derive(Clone, Debug)]
pub struct Progress {
    /// What is being done now.
    pub doing: String,
    /// Steps finished.
    pub done: u64,
    /// Steps in all, if known.
    pub total: Option<u64>,
}

/// Where a long phase stands, in numbers: all of it since the phase began.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Live {
    /// Scenario.
    pub scenario: String,
    /// Device id.
    pub device: String,
    /// Device uid.
    pub uid: String,
    /// Seconds tested.
    pub seconds: f64,
    /// Cycles done.
    pub done: u64,
    /// Result bytes checked.
    pub bytes_checked: u64,
    /// Wrong results.
    pub mismatches: u64,
    /// Failed operations.
    pub errors: u64,
    /// Workers replaced.
    pub restarts: u64,
    /// Degrees Celsius of the card, as last told.
    pub temperature_c: Option<f64>,
    /// Watts that the card draws, as last told.
    pub power_w: Option<f64>,
}

/// Receives records and progress. Records are data; progress may be dropped.
pub trait Sink {
    /// A finished result.
    fn record(&mut self, record: &Record);
    /// What is going on.
    fn progress(&mut self, progress: &Progress);
    /// A remark for people (stderr on the command line).
    fn note(&mut self, text: &str);
    /// Where a phase stands; may be dropped.
    fn live(&mut self, _: &Live) {}
}

/// Keeps everything in memory: for tests and library users.
#[derive(Debug, Default)]
pub struct Collect {
    /// Records in order of arrival.
    pub records: Vec<Record>,
    /// Notes in order of arrival.
    pub notes: Vec<String>,
}

impl Sink for Collect {
    fn record(&mut self, record: &Record) {
        self.records.push(record.clone());
    }
    fn progress(&mut self, _: &Progress) {}
    fn note(&mut self, text: &str) {
        self.notes.push(text.to_string());
    }
}

/// A flag that a signal handler or another thread raises; jobs look at it between steps.
#[derive(Clone, Debug, Default)]
pub struct Cancel(pub std::sync::Arc<std::sync::atomic::AtomicBool>);

impl Cancel {
    /// A flag that is down.
    pub fn new() -> Self {
        Self::default()
    }
    /// Raises the flag.
    pub fn raise(&self) {
        self.0.store(true, std::sync::atomic::Ordering::SeqCst);
    }
    /// True once raised.
    pub fn raised(&self) -> bool {
        self.0.load(std::sync::atomic::Ordering::SeqCst)
    }
}
