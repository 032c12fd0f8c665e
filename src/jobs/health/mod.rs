//! Whether a card is fit for work: pure judgement of what it told.
//!
//! A card is called healthy only if enough was told to say so; what was not told is listed with its reason, never passed over.

mod checks;
mod codes;
mod load;

use crate::base::DeviceInfo;
use crate::base::telemetry::{Finding, HealthRecord, HostSnapshot, NotTold, Snapshot, Watched};

pub use codes::{Grade, KINDS, Kind, find};
pub use load::under_load;

/// Fewest checks of a card that must have had something to look at.
const ENOUGH: usize = 3;

/// What a check says: nothing was told to judge by, or what it found.
type Outcome = Option<Vec<(&'static str, String)>>;

fn finding((code, detail): (&'static str, String)) -> Finding {
    let kind = find(code);
    Finding {
        code: code.into(),
        severity: kind.map_or(Grade::Critical, |k| k.grade).name().into(),
        category: kind.map_or("driver", |k| k.category).into(),
        detail,
        next: kind.map_or("", |k| k.next).into(),
    }
}

/// Gravest first; ties stay in the order of the checks.
fn sorted(found: Vec<(&'static str, String)>) -> Vec<Finding> {
    let mut found = found;
    found.sort_by_key(|(code, _)| std::cmp::Reverse(find(code).map(|k| k.grade)));
    found.into_iter().map(finding).collect()
}

/// The word for what was found: `finding` if anything is graver than a notice, `unknown` if too little was looked at.
fn verdict(findings: &[Finding], enough: bool) -> String {
    let grave = findings.iter().any(|f| f.severity != Grade::Notice.name());
    if grave {
        "finding"
    } else if enough {
        "healthy"
    } else {
        "unknown"
    }
    .into()
}

/// What all checks of a table say.
#[derive(Default)]
struct Looked {
    found: Vec<(&'static str, String)>,
    checked: Vec<String>,
    unchecked: Vec<String>,
    not_told: Vec<NotTold>,
}

impl Looked {
    fn take(&mut self, name: &str, outcome: Outcome, why: impl Fn() -> String) {
        match outcome {
            Some(findings) => {
                self.checked.push(name.into());
                self.found.extend(findings);
            }
            None => {
                self.unchecked.push(name.into());
                if !self.not_told.iter().any(|n| n.what == name) {
                    self.not_told.push(NotTold { what: name.into(), why: why() });
                }
            }
        }
    }

    fn record(self, device: &str, source: &str, least: usize) -> HealthRecord {
        let findings = sorted(self.found);
        HealthRecord {
            device: device.into(),
            uid: String::new(),
            name: String::new(),
            source: source.into(),
            verdict: verdict(&findings, self.checked.len() >= least),
            checked: self.checked,
            unchecked: self.unchecked,
            not_told: self.not_told,
            findings,
            snapshot: None,
        }
    }
}

/// Judges one card. `own` is the process that asks, which uses the card itself.
pub fn card(id: &str, s: &Snapshot, own: u32) -> HealthRecord {
    let mut looked = Looked { not_told: s.not_told.clone(), ..Looked::default() };
    for (name, check) in checks::CARD {
        looked.take(name, check(s, own), || format!("{} does not tell it", s.source));
    }
    let record = looked.record(id, &s.source, ENOUGH);
    HealthRecord { uid: s.uid.clone(), name: s.name.clone(), snapshot: Some(s.clone()), ..record }
}

/// Judges what a device's card told while a job ran: what speaks against the job's results, and nothing else.
pub fn watched(info: &DeviceInfo, w: &Watched) -> HealthRecord {
    let code = if w.lost {
        "gpu-lost"
    } else if w.reset_required {
        "reset-required"
    } else {
        "ecc-uncorrected"
    };
    let mut looked = Looked::default();
    let fault = (w.answered > 0).then(|| w.fault().map(|why| (code, why)).into_iter().collect());
    looked.take("while it worked", fault, || w.reason.clone());
    let record = looked.record(&info.id, &w.source, 1);
    HealthRecord { uid: info.uid.clone(), name: info.name.clone(), ..record }
}

/// Judges what the host tells: driver against library, the kernel's log, free space.
pub fn host(h: &HostSnapshot) -> HealthRecord {
    let mut looked = Looked { not_told: h.not_told.clone(), ..Looked::default() };
    for (name, check) in checks::HOST {
        looked.take(name, check(h), || "nothing of the kind is here".into());
    }
    looked.record("host", "system", 1)
}

/// The record of somebody who did not answer in time.
pub fn hanging(device: &str, who: &str, seconds: f64) -> HealthRecord {
    let detail = format!("{who} gave no answer in {seconds:.1} s");
    let looked = Looked { found: vec![("telemetry-hangs", detail)], ..Looked::default() };
    looked.record(device, "system", 1)
}

/// The exit code: 1 if anything was found, else 4 if a card could not be judged or there is none, else 0.
pub fn exit_code(records: &[HealthRecord]) -> u8 {
    let cards = || records.iter().filter(|r| r.device != "host");
    if records.iter().any(|r| r.verdict == "finding") {
        1
    } else if cards().count() == 0 || cards().any(|r| r.verdict != "healthy") {
        4
    } else {
        0
    }
}
