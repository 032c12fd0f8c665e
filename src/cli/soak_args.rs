//! The arguments of `stress`.

use clap::Args;

use super::args::Common;

#[derive(Debug, Args)]
pub(super) struct Stress {
    /// Duration in hours
    #[arg(long, value_name = "H", group = "duration")]
    pub(super) hours: Option<f64>,
    /// Duration in minutes
    #[arg(long, value_name = "M", group = "duration")]
    pub(super) minutes: Option<f64>,
    /// Duration in seconds [default: 60]
    #[arg(long, value_name = "S", group = "duration")]
    pub(super) seconds: Option<f64>,
    /// Scenarios, separated by commas [default: as many as fit with their floors, the important ones first]
    #[arg(long, value_name = "A,B")]
    pub(super) scenario: Option<String>,
    /// Journal file [default: below the state folder of the user]
    #[arg(long, value_name = "FILE", conflicts_with = "no_journal")]
    pub(super) journal: Option<String>,
    /// Keep no journal
    #[arg(long)]
    pub(super) no_journal: bool,
    /// Go on with the last run that did not end, or with that of a journal; what it was asked for holds
    #[arg(long, value_name = "PATH", num_args = 0..=1, conflicts_with_all = [
        "duration", "scenario", "journal", "no_journal", "inject", "device", "threads", "max_temp",
    ])]
    pub(super) resume: Option<Option<String>>,
    /// Work on cards that other processes use; otherwise that ends the run
    #[arg(long)]
    pub(super) shared: bool,
    /// Pause while a card is hotter than so many degrees Celsius
    #[arg(long, value_name = "C")]
    pub(super) max_temp: Option<f64>,
    /// Plant a fault: the run must then end with a finding
    #[arg(long, value_name = "FAULT")]
    pub(super) inject: Option<String>,
    /// End at the first finding
    #[arg(long)]
    pub(super) fail_early: bool,
    #[command(flatten)]
    pub(super) reports: StressReports,
    #[command(flatten)]
    pub(super) common: Common,
}

/// What `stress` writes beside its table, and the test of its own detectors.
#[derive(Debug, Args)]
pub(super) struct StressReports {
    /// Plant faults and see that each ends in its verdict and exit code; exit code 1 if one does not
    #[arg(long, conflicts_with_all = ["duration", "scenario", "inject", "html", "junit", "prometheus", "trace"])]
    pub(super) self_test: bool,
    /// Write a page with the course of every phase to an HTML file
    #[arg(long, value_name = "FILE.html")]
    pub(super) html: Option<String>,
    /// Write a test case for each phase to a JUnit XML file
    #[arg(long, value_name = "FILE.xml")]
    pub(super) junit: Option<String>,
    /// Keep a file for Prometheus' textfile collector up to date while running
    #[arg(long, value_name = "FILE.prom")]
    pub(super) prometheus: Option<String>,
}
