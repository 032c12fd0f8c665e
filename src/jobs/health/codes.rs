//! Findings as data: what each is called, how grave it is, and what to do.

/// How grave a finding is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Grade {
    /// Worth knowing; the card does its work.
    Notice,
    /// The card works, slower or nearer to a failure than it should.
    Warning,
    /// Do not trust the card with work.
    Critical,
}

impl Grade {
    /// The word in records.
    pub const fn name(self) -> &'static str {
        match self {
            Grade::Notice => "notice",
            Grade::Warning => "warning",
            Grade::Critical => "critical",
        }
    }
}

/// A kind of finding.
#[derive(Clone, Copy, Debug)]
pub struct Kind {
    /// Its name, everywhere.
    pub code: &'static str,
    /// How grave.
    pub grade: Grade,
    /// What it concerns: memory, thermal, power, link, driver, processes, host.
    pub category: &'static str,
    /// What to do.
    pub next: &'static str,
}

const fn kind(code: &'static str, grade: Grade, category: &'static str, next: &'static str) -> Kind {
    Kind { code, grade, category, next }
}

use Grade::{Critical, Notice, Warning};

/// All kinds. Those of NVIDIA's memory follow "GPU Memory Error Management" (row remapping) and "Dynamic Page Retirement"
/// of NVIDIA's documentation.
pub const KINDS: &[Kind] = &[
    kind("gpu-lost", Critical, "driver", "restart the machine; if it returns, reseat the card, then replace it"),
    kind(
        "reset-required",
        Critical,
        "driver",
        "end all programs on the card and run `nvidia-smi --gpu-reset`, or restart",
    ),
    kind("inforom-damaged", Warning, "driver", "ask the maker for a replacement; counters of errors cannot be trusted"),
    kind(
        "driver-mismatch",
        Critical,
        "driver",
        "restart, or reload the kernel module: an update left the old one running",
    ),
    kind(
        "driver-broken",
        Warning,
        "driver",
        "see `gpuctl devices --why`, which waits longer; update or remove the driver: what loads it hangs or ends with it",
    ),
    kind("telemetry-hangs", Critical, "driver", "see the kernel's log; a driver that does not answer needs a restart"),
    kind("compute-prohibited", Critical, "driver", "allow programs again: `nvidia-smi --compute-mode=DEFAULT`"),
    kind("ecc-uncorrected", Critical, "memory", "move work away and reset the card; if it returns, replace the card"),
    kind("ecc-corrected", Notice, "memory", "nothing; watch whether the number grows fast"),
    kind("ecc-off", Notice, "memory", "switch it on where results matter: `nvidia-smi --ecc-config=1`, then restart"),
    kind("remap-failed", Critical, "memory", "replace the card: it has no spare rows left where they are needed"),
    kind("remap-pending", Warning, "memory", "reset the card when it is idle, so that the row is replaced"),
    kind("pages-retired", Notice, "memory", "nothing; from 60 pages on the card is to be replaced"),
    kind("pages-retired-many", Critical, "memory", "replace the card: it has nearly no pages left to take out of use"),
    kind("retire-pending", Warning, "memory", "restart when the card is idle, so that the page is taken out of use"),
    kind("temperature-slowdown", Critical, "thermal", "check fans, dust and the room; the card slows itself down"),
    kind("temperature-high", Warning, "thermal", "check fans, dust and the room before long runs"),
    kind(
        "clocks-protecting",
        Warning,
        "thermal",
        "check cooling and power supply; figures measured now are not the card's own",
    ),
    kind("clocks-limited", Notice, "power", "nothing, if the card is at work; else look at its power cap"),
    kind("power-cap-lowered", Notice, "power", "nothing, if it was meant so; else `nvidia-smi --power-limit=WATTS`"),
    kind(
        "link-slow",
        Warning,
        "link",
        "reseat the card; check risers, the slot and the firmware's setting of its generation",
    ),
    kind(
        "link-narrow",
        Warning,
        "link",
        "reseat the card; check risers and whether other cards share the slot's lanes",
    ),
    kind("memory-used", Notice, "processes", "end what uses the card before measuring"),
    kind("other-processes", Notice, "processes", "end them before measuring, or expect disturbed figures"),
    kind("exclusive", Notice, "processes", "only one process may use the card at a time"),
    kind(
        "persistence-off",
        Notice,
        "driver",
        "start nvidia-persistenced: the first call of each program is slow without it",
    ),
    kind("divided", Notice, "driver", "name the instance that is meant by its UUID"),
    kind(
        "event-hardware",
        Critical,
        "driver",
        "move work away; see NVIDIA's list of Xid errors for the number, then replace the card",
    ),
    kind("event-reset", Warning, "driver", "the driver reset the card; see the kernel's log for what ran then"),
    kind("event-program", Notice, "driver", "a program did something illegal; nothing is wrong with the card"),
    kind("event-other", Warning, "driver", "see NVIDIA's list of Xid errors for the number"),
    kind("disk-low", Warning, "host", "free space there: journals and caches could not be kept"),
];

/// The kind with that code.
pub fn find(code: &str) -> Option<&'static Kind> {
    KINDS.iter().find(|k| k.code == code)
}

/// What NVIDIA's numbers of events mean, by its document "XID Errors": the hardware, the driver's own reset, or a program.
pub(super) const fn xid(number: u32) -> &'static str {
    match number {
        // Double-bit error, failed row remapping, NVLink, off the bus, uncontained error, GSP and bus failures.
        48 | 64 | 74 | 79 | 92 | 95 | 119 | 120 | 140 => "event-hardware",
        // A row was remapped or an error contained; the card was cleaned up.
        62 | 63 | 94 => "event-reset",
        // Illegal accesses and instructions, stopped or preempted channels.
        8 | 13 | 31 | 32 | 43 | 45 | 68 | 69 => "event-program",
        _ => "event-other",
    }
}
