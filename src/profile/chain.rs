//! How far a key is known to a profile, part by part.
//!
//! There is no falling back from one key to a similar one: the chain ends at the first part that no entry has, and the
//! call runs on the CPU. It is made for people, by the rule of [`Profile::lookup`]; a test holds the two together.

use crate::base::text::printable;

use super::{ANY, Entry, Key, Profile};

/// One part of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// `op`, `dtype`, `family`, `device`, `residency`, `threads`, `cpu_variant`, `unit`.
    pub part: &'static str,
    /// What the call has.
    pub asked: String,
    /// Entries that agree up to and including this part.
    pub entries: usize,
    /// Where that is none: what the entries that agreed so far have instead.
    pub instead: Vec<String>,
}

impl Step {
    /// One line for people.
    pub fn text(&self) -> String {
        let Step { part, asked, entries, instead } = self;
        match (entries, instead.is_empty()) {
            (0, true) => format!("{part} {asked}: not in the profile; nothing is borrowed"),
            (0, false) => format!("{part} {asked}: none, there is {}; nothing is borrowed", instead.join(", ")),
            (1, _) => format!("{part} {asked}: 1 entry"),
            (n, _) => format!("{part} {asked}: {n} entries"),
        }
    }
}

impl Profile {
    /// The parts of a key in the order of [`Reason`](super::Reason), up to the first that no entry has.
    pub fn chain(&self, key: &Key<'_>) -> Vec<Step> {
        let number = |n: u32| if n == 0 { ANY.to_string() } else { n.to_string() };
        let parts: [(&'static str, String, &dyn Fn(&Entry) -> String); 8] = [
            ("op", key.op.into(), &|e| e.op.clone()),
            ("dtype", key.dtype.name().into(), &|e| e.dtype.clone()),
            ("family", key.family.unwrap_or("none").into(), &|e| e.family.clone()),
            ("device", key.device_uid.into(), &|e| e.device.clone()),
            ("residency", key.residency.into(), &|e| e.residency.clone()),
            ("threads", key.threads.to_string(), &|e| number(e.threads)),
            ("cpu_variant", key.cpu_variant.into(), &|e| e.cpu_variant.clone()),
            ("unit", key.unit.into(), &|e| e.unit.clone()),
        ];
        let mut left: Vec<&Entry> = self.entries.iter().collect();
        let mut steps = Vec::new();
        for (part, asked, of) in parts {
            let any = !matches!(part, "op" | "unit");
            // A shape outside every family agrees with no family by name, whatever that is called.
            let named = part != "family" || key.family.is_some();
            let (same, other): (Vec<&Entry>, Vec<&Entry>) =
                left.into_iter().partition(|e| (named && of(e) == asked) || (any && of(e) == ANY));
            let mut instead: Vec<String> = if same.is_empty() { other.iter().map(|e| of(e)).collect() } else { vec![] };
            instead.sort_unstable();
            instead.dedup();
            let more = instead.len().saturating_sub(8);
            instead.truncate(8);
            // All ops of a profile say little about one that it does not have.
            instead.retain(|_| part != "op");
            let mut instead: Vec<String> = instead.iter().map(|w| printable(w).into_owned()).collect();
            if more > 0 && part != "op" {
                instead.push(format!("{more} more"));
            }
            steps.push(Step { part, asked, entries: same.len(), instead });
            if same.is_empty() {
                break;
            }
            left = same;
        }
        steps
    }
}
