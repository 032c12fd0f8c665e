//! Which cases are done on a device, for runs that go on where another stopped.
//!
//! Invariant: what failed, was skipped or was not compared is never done, and what was done under other conditions (another
//! driver, instruction set, BLAS, selection of variants or gpuctl) is done again.

use crate::base::DeviceInfo;
use crate::base::record::{Status, VerifyRecord};

use super::config::VerifyConfig;

/// What names a case that is done on a device: the case, and all that its results may depend on.
pub fn done_key(cfg: &VerifyConfig, case: &str, info: &DeviceInfo) -> String {
    format!("{case} {}", conditions(cfg, info))
}

fn conditions(cfg: &VerifyConfig, info: &DeviceInfo) -> String {
    let kernels = match &cfg.variant {
        Some(name) => format!("variant {name}"),
        None if cfg.all_variants => "all variants".to_string(),
        None => "the chosen variant".to_string(),
    };
    let watched = if cfg.watch { ", watched" } else { "" };
    let own = cfg.own.map_or_else(String::new, |own| format!(" | {}", own.options()));
    let (version, uid, print) = (env!("CARGO_PKG_VERSION"), &info.uid, info.fingerprint());
    // A driver's words must not end the line.
    format!("gpuctl {version} | {uid} | {print} | {kernels}{watched}{own}").replace(char::is_control, " ")
}

/// The records of one case on one device, as far as they have come.
struct Open {
    case: String,
    device: String,
    compared: bool,
    bad: bool,
}

/// Tells which cases are done from all records of a run, in the order in which [`run`](super::run) hands them out: those of
/// a case on a device follow each other, one for each variant.
pub struct Done {
    conditions: Vec<(String, String)>,
    open: Option<Open>,
}

impl Done {
    /// For a run on these devices.
    pub fn new<'i>(cfg: &VerifyConfig, devices: impl IntoIterator<Item = &'i DeviceInfo>) -> Self {
        let conditions = devices.into_iter().map(|info| (info.id.clone(), conditions(cfg, info))).collect();
        Done { conditions, open: None }
    }

    /// Takes a record. Gives the key of the case before it, where that is complete and done.
    pub fn add(&mut self, r: &VerifyRecord) -> Option<String> {
        let goes_on = |o: &Open| o.case == r.case && o.device == r.subject.device;
        let ended = if self.open.as_ref().is_some_and(goes_on) { None } else { self.end() };
        let open = self.open.get_or_insert_with(|| Open {
            case: r.case.clone(),
            device: r.subject.device.clone(),
            compared: false,
            bad: false,
        });
        match r.subject.status {
            Status::Ok => open.compared |= r.compared > r.undefined,
            // A variant that the device does not take is no reason to run the others again.
            Status::Unsupported => {}
            // What had no room may have some the next time.
            Status::Failed | Status::Suspect | Status::Skipped => open.bad = true,
        }
        ended
    }

    /// No record of the case follows: its key, if it is done.
    pub fn end(&mut self) -> Option<String> {
        let open = self.open.take().filter(|o| o.compared && !o.bad)?;
        let of = self.conditions.iter().find(|(id, _)| *id == open.device)?;
        Some(format!("{} {}", open.case, of.1))
    }
}
