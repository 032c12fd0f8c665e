//! Traces against what really happened: Chrome's format, the records of the same run, ledgers, planted faults.

#[cfg(feature = "cli")]
mod cli;
mod format;
mod library;
mod records;
