//! How the threads of a soak, one per device, hand in what they have to the one that writes.

use std::sync::mpsc::Sender;

use crate::base::record::StressRecord;
use crate::base::sink::Live;
use crate::base::{Cancel, Progress};

use super::clocks::Jump;
use super::journal::Entry;
use super::verdict::Verdict;

/// What is handed in.
#[derive(Debug)]
pub(super) enum Event {
    /// A remark for people.
    Note(String),
    /// A line for the journal.
    Entry(Box<Entry>),
    /// What a device does now.
    Progress(usize, Progress),
    /// Figures of a running phase.
    Live(Box<Live>),
    /// Something happened to the time.
    Jump(Jump),
    /// Something that is left out, and why.
    NotTested(String),
    /// A phase is over; the flag: before its time.
    Done(Verdict, Box<StressRecord>, bool),
}

/// One device's way to hand in. Never waits: a terminal that takes nothing must not keep a device from working.
#[derive(Clone, Debug)]
pub(super) struct Post {
    pub(super) at: usize,
    pub(super) send: Sender<Event>,
}

impl Post {
    pub(super) fn event(&self, event: Event) {
        // The receiver lives longer than all senders.
        let _ = self.send.send(event);
    }
    pub(super) fn note(&self, text: &str) {
        self.event(Event::Note(text.to_string()));
    }
    pub(super) fn entry(&self, entry: Entry) {
        self.event(Event::Entry(Box::new(entry)));
    }
    pub(super) fn progress(&self, progress: Progress) {
        self.event(Event::Progress(self.at, progress));
    }
}

/// Why a soak ends early: somebody says so, or the first finding does (`--fail-early`).
#[derive(Clone, Copy, Debug)]
pub(super) struct Stop<'a> {
    pub(super) user: &'a Cancel,
    pub(super) finding: &'a Cancel,
}

impl Stop<'_> {
    pub(super) fn raised(&self) -> bool {
        self.user.raised() || self.finding.raised()
    }
    pub(super) fn why(&self) -> &'static str {
        if self.user.raised() { "interrupted" } else { "ended at the first finding" }
    }
}
